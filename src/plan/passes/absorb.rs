//! Operators absorb their only user (a bias, a normalization, an activation) and what makes a small input of theirs.

use super::Precision;
use crate::ops::{AbsorbedInput, HalfRule};
use crate::plan::PlanError;
use crate::plan::flow::{Flow, ValueId, drop_folded};
use crate::plan::index::FlowIndex;

/// Operators with more inputs than this are not absorbed, which bounds the search.
const MOST_INPUTS: usize = 16;

/// Lets operators absorb their only user until nothing changes, then what makes inputs of theirs; returns how many were
/// absorbed. In half precision, what must stay in `float32` is left to itself.
pub(crate) fn absorb(flow: &mut Flow, precision: Precision) -> Result<usize, PlanError> {
    let mut fused = 0;
    while let Some(n) = absorb_once(flow, precision) {
        fused += n;
        flow.drop_dead();
    }
    fused += absorb_before(flow);
    for n in 0..flow.nodes.len() {
        flow.fold(n)?;
    }
    drop_folded(flow);
    flow.drop_dead();
    Ok(fused)
}

/// Lets operators absorb what makes their inputs; returns how many nodes are gone.
fn absorb_before(flow: &mut Flow) -> usize {
    let (index, before) = (FlowIndex::new(flow), flow.nodes.len());
    for n in 0..before {
        for at in 0..flow.nodes[n].inputs.len() {
            let Some(made) = flow.nodes[n].inputs.get(at).copied().flatten() else { continue };
            let Some(p) = index.producer(made).filter(|p| !index.is_ordered(*p)) else { continue };
            let (node, other) = (&flow.nodes[n], &flow.nodes[p]);
            let elsewhere = other.device.is_some() && other.device != node.device;
            let scoped = flow.values[made].scope != Default::default();
            if other.outputs.len() != 1 || elsewhere || scoped {
                continue;
            }
            let taken = node.op.absorb_before(&flow.cx(n), at, other.op.as_ref(), &flow.cx(p));
            let Some(absorbed) = taken else { continue };
            let (own, theirs) = (node.inputs.clone(), other.inputs.clone());
            let name = node.name.clone();
            let inputs = inputs_of(flow, &name, absorbed.inputs, &own, &theirs);
            let node = &mut flow.nodes[n];
            (node.op, node.inputs) = (absorbed.op, inputs);
        }
    }
    flow.drop_dead();
    before - flow.nodes.len()
}

/// The inputs of a node that has absorbed another one.
fn inputs_of(
    flow: &mut Flow,
    name: &str,
    inputs: Vec<AbsorbedInput>,
    own: &[Option<ValueId>],
    theirs: &[Option<ValueId>],
) -> Vec<Option<ValueId>> {
    let input = |(k, source)| match source {
        AbsorbedInput::Own(i) => own.get(i).copied().flatten(),
        AbsorbedInput::Next(i) => theirs.get(i).copied().flatten(),
        AbsorbedInput::New(t) => Some(flow.add_constant(format!("{name}:folded{k}"), t)),
        AbsorbedInput::Absent => None,
    };
    inputs.into_iter().enumerate().map(input).collect()
}

fn absorb_once(flow: &mut Flow, precision: Precision) -> Option<usize> {
    let mut index = FlowIndex::new(flow);
    let mut dead = vec![false; flow.nodes.len()];
    let mut count = 0;
    for first in 0..flow.nodes.len() {
        // Nodes that wait for `first` may come before `next`, the position of the merged node.
        if dead[first] || index.is_awaited(first) {
            continue;
        }
        let out = flow.nodes[first].outputs[0];
        let Some(next) = index.only_user(out) else { continue };
        // Another output that is read must stay.
        let others_read = flow.nodes[first].outputs[1..].iter().any(|&v| !index.is_unread(v));
        if others_read || dead[next] || flow.nodes[next].outputs.len() != 1 {
            continue;
        }
        let (a, b) = (&flow.nodes[first], &flow.nodes[next]);
        let is_full = precision == Precision::F16 && b.op.half_rule() == HalfRule::Full;
        if b.inputs.len() > MOST_INPUTS || is_full && a.op.half_rule() != HalfRule::Full {
            continue;
        }
        // A node without a requested device moves to the device of the one before it.
        if b.device.is_some() && a.device != b.device || flow.values[out].scope != Default::default() {
            continue;
        }
        let Some(at) = b.inputs.iter().position(|i| *i == Some(out)) else { continue };
        let Some(absorbed) = a.op.absorb(&flow.cx(first), b.op.as_ref(), &flow.cx(next), at) else {
            continue;
        };
        let (own, theirs) = (a.inputs.clone(), b.inputs.clone());
        let mut control_deps = a.control_deps.clone();
        let (name, device) = (a.name.clone(), a.device);
        let inputs = inputs_of(flow, &name, absorbed.inputs, &own, &theirs);
        index.grow(flow.values.len());
        control_deps.extend(&flow.nodes[next].control_deps);
        // The merged node takes the position of its second part: all its inputs are produced before that.
        let merged = &mut flow.nodes[next];
        merged.name = name;
        merged.op = absorbed.op;
        merged.inputs = inputs;
        merged.control_deps = control_deps;
        merged.device = device;
        for &v in flow.nodes[next].inputs.iter().flatten() {
            index.replace_user(v, first, next);
        }
        index.clear_users(out);
        dead[first] = true;
        count += 1;
    }
    if count == 0 {
        return None;
    }
    let keep: Vec<bool> = dead.iter().map(|d| !d).collect();
    flow.retain(&keep);
    Some(count)
}

#[cfg(test)]
mod tests;
