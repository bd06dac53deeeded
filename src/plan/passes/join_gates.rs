//! Products of one input whose results meet in `activation(a) * b` become one operator, where the device has a kernel that
//! does both at once: of few rows, as of one token, dispatches take longer than what they compute.

use super::super::lowering::PlanCx;
use crate::ops::{AbsorbedInput, Activation, Elementwise, Structure};
use crate::plan::flow::{Flow, ValueId};
use crate::plan::index::FlowIndex;

/// Joins gates with the products that they gate; returns how many operators are gone.
pub(super) fn join_gates(flow: &mut Flow, cx: &PlanCx<'_>) -> usize {
    let index = FlowIndex::new(flow);
    let before = flow.nodes.len();
    let mut found = false;
    for n in 0..flow.nodes.len() {
        found |= join(flow, &index, n, cx).is_some();
    }
    if found {
        flow.drop_dead();
    }
    before - flow.nodes.len()
}

/// Joins the products whose results meet in node `n`.
fn join(flow: &mut Flow, index: &FlowIndex, n: usize, cx: &PlanCx<'_>) -> Option<()> {
    let (activation, gate, up) = gated(flow, index, n)?;
    let alone =
        |v: ValueId| index.producer(v).filter(|p| index.only_user(v).is_some() && !index.is_ordered(*p));
    let (first, second) = (alone(gate)?, alone(up)?);
    let (a, b) = (&flow.nodes[first], &flow.nodes[second]);
    let device = cx.device_of(a)?;
    let same =
        a.inputs.first() == b.inputs.first() && a.device == b.device && a.device == flow.nodes[n].device;
    if first == second || !same || device.native || [a, b].iter().any(|node| node.outputs.len() != 1) {
        return None;
    }
    let other = (b.op.as_ref(), &flow.cx(second));
    let joined = a.op.gate(&flow.cx(first), other, &activation, device)?;
    let input = |from: &AbsorbedInput| match *from {
        AbsorbedInput::Own(i) => Some(a.inputs.get(i).copied().flatten()),
        AbsorbedInput::Next(i) => Some(b.inputs.get(i).copied().flatten()),
        AbsorbedInput::Absent => Some(None),
        AbsorbedInput::New(_) => None,
    };
    let inputs = joined.inputs.iter().map(input).collect::<Option<_>>()?;
    let name = a.name.clone();
    let node = &mut flow.nodes[n];
    (node.op, node.inputs, node.name) = (joined.op, inputs, name);
    Some(())
}

/// The activation, and the values `a` and `b` of the `activation(a) * b` that node `n` is.
fn gated(flow: &Flow, index: &FlowIndex, n: usize) -> Option<(Activation, ValueId, ValueId)> {
    let node = &flow.nodes[n];
    let (&[Some(x), Some(y)], &[out]) = (&node.inputs[..], &node.outputs[..]) else { return None };
    let plain = |v: ValueId| {
        flow.values[v].scope == Default::default() && flow.values[v].info == flow.values[out].info
    };
    if index.is_ordered(n) || x == y || !plain(x) || !plain(y) {
        return None;
    }
    match node.op.structure()? {
        Structure::Gate(activation) => return Some((activation, x, y)),
        Structure::Elementwise(Elementwise::Mul) => {}
        _ => return None,
    }
    [(x, y), (y, x)].into_iter().find_map(|(active, up)| {
        let p =
            index.producer(active).filter(|p| index.only_user(active).is_some() && !index.is_ordered(*p))?;
        let function = &flow.nodes[p];
        let (&[Some(gate)], true) = (&function.inputs[..], function.device == node.device) else {
            return None;
        };
        let activation = function.op.as_activation(&flow.cx(p))?;
        (plain(gate) && flow.values[gate].constant.is_none()).then_some((activation, gate, up))
    })
}
