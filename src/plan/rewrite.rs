//! Rewrites of a flow that save passes over memory.

use super::PlanError;
use super::flow::{Flow, drop_folded};
use crate::ops::AbsorbedInput;

/// No operator with more inputs is absorbed, which is not asked for each of them.
const MOST_INPUTS: usize = 16;

/// Lets operators absorb their only reader (bias, batch normalization, activation) until nothing changes.
///
/// # Errors
/// [`PlanError::Fold`] where a constant that appeared cannot be computed.
pub fn fuse(flow: &mut Flow) -> Result<usize, PlanError> {
    let mut fused = 0;
    while let Some(n) = absorb_once(flow) {
        fused += n;
        flow.drop_dead();
    }
    for n in 0..flow.nodes.len() {
        flow.fold(n)?;
    }
    drop_folded(flow);
    flow.drop_dead();
    Ok(fused)
}

fn absorb_once(flow: &mut Flow) -> Option<usize> {
    let mut users = flow.users();
    let is_output: Vec<bool> = {
        let mut marks = vec![false; flow.values.len()];
        flow.outputs.iter().for_each(|(_, v)| marks[*v] = true);
        marks
    };
    let mut dead = vec![false; flow.nodes.len()];
    let mut awaited = vec![false; flow.nodes.len()];
    flow.nodes.iter().flat_map(|n| &n.control_deps).for_each(|d| awaited[*d] = true);
    let mut count = 0;
    for first in 0..flow.nodes.len() {
        // Who waits for `first` may stand before `next`, where the pair would stand.
        if dead[first] || awaited[first] {
            continue;
        }
        let out = flow.nodes[first].outputs[0];
        let [next] = users[out][..] else { continue };
        // A second output that is read, or a value the caller wants, must stay.
        let others_read =
            flow.nodes[first].outputs[1..].iter().any(|&v| !users[v].is_empty() || is_output[v]);
        if is_output[out] || others_read || dead[next] || flow.nodes[next].outputs.len() != 1 {
            continue;
        }
        let (a, b) = (&flow.nodes[first], &flow.nodes[next]);
        if b.inputs.len() > MOST_INPUTS {
            continue;
        }
        // A node that is placed nowhere goes with the one before it.
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
        let inputs = absorbed
            .inputs
            .into_iter()
            .enumerate()
            .map(|(k, source)| match source {
                AbsorbedInput::Own(i) => own.get(i).copied().flatten(),
                AbsorbedInput::Next(i) => theirs.get(i).copied().flatten(),
                AbsorbedInput::New(t) => Some(flow.add_constant(format!("{name}:folded{k}"), t)),
                AbsorbedInput::Absent => None,
            })
            .collect();
        users.resize(flow.values.len(), Vec::new());
        control_deps.extend(&flow.nodes[next].control_deps);
        // The pair stands where its second part stood: all it reads has been produced there.
        let merged = &mut flow.nodes[next];
        merged.name = name;
        merged.op = absorbed.op;
        merged.inputs = inputs;
        merged.control_deps = control_deps;
        merged.device = device;
        for &v in flow.nodes[next].inputs.clone().iter().flatten() {
            for u in users[v].iter_mut().filter(|u| **u == first) {
                *u = next;
            }
        }
        users[out].clear();
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
