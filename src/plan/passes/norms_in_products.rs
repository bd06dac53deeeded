//! Products of few rows normalize the rows that they read, and the product before a residual sum adds the
//! other summand: a decoder's layer of one token then has no command for its normalizations and sums, which
//! take longer to start than to run.

use super::super::lowering::PlanCx;
use crate::ops::{Absorbed, AbsorbedInput, Structure};
use crate::plan::flow::{Flow, FlowNode, Value, ValueId};
use crate::plan::index::FlowIndex;
use crate::shape::normalize_axis;

/// Moves normalizations without a mean, and the sums that they are of, into products; returns how many operators are gone.
pub(super) fn norms_in_products(flow: &mut Flow, cx: &PlanCx<'_>) -> usize {
    let index = FlowIndex::new(flow);
    let mut keep = vec![true; flow.nodes.len()];
    for n in 0..flow.nodes.len() {
        if let Some(moved) = moved(flow, &index, n, cx) {
            apply(flow, &mut keep, n, moved);
        }
    }
    flow.retain(&keep)
}

/// Where a normalization goes.
struct Moved {
    gain: ValueId,
    /// Its rows, as they are given or as the product of this node and this other summand make them.
    rows: Rows,
    readers: Vec<(usize, Absorbed)>,
}

enum Rows {
    Given(ValueId),
    Sum { product: usize, summand: ValueId, joined: Absorbed },
}

/// Where node `n` goes, a normalization over the last axis that products alone read. Readers come after it, and no later
/// node moves before it, so the index stays true of all that is asked here.
fn moved(flow: &Flow, index: &FlowIndex, n: usize, cx: &PlanCx<'_>) -> Option<Moved> {
    let node = &flow.nodes[n];
    let device = cx.device_of(node)?;
    let (out, rest) = node.outputs.split_first()?;
    let info = &flow.values[*out].info;
    let last = info.shape.rank().checked_sub(1)?;
    let unread = rest.iter().take(2).all(|v| index.is_unread(*v));
    if device.native || device.prefers_texels || index.is_ordered(n) || index.is_output(*out) || !unread {
        return None;
    }
    let plain = |v: ValueId| flow.values[v].info == *info && flow.values[v].scope == Default::default();
    let given = node.inputs.iter().rposition(Option::is_some)? + 1;
    let inputs: Vec<ValueId> = node.inputs.iter().take(given).copied().collect::<Option<_>>()?;
    let (epsilon, gain, summands) = match (node.op.structure()?, &inputs[..]) {
        (Structure::LayerNormalization { axis, epsilon, center: false }, [_, gain])
            if normalize_axis(axis, info.shape.rank()).ok() == Some(last) =>
        {
            (epsilon, *gain, &inputs[..1])
        }
        (Structure::SumNormalization { epsilon, center: false }, [_, _, gain]) => {
            (epsilon, *gain, &inputs[..2])
        }
        _ => return None,
    };
    let gains = &flow.values[gain].info;
    let fits = gains.dtype == info.dtype && Some(&gains.shape.elements()) == info.shape.last();
    if !fits || !plain(*out) || !summands.iter().all(|v| plain(*v)) {
        return None;
    }
    let rows = match *summands {
        [x] => Rows::Given(x),
        [a, b] => [(a, b), (b, a)].into_iter().find_map(|(summand, made)| {
            let product = index.producer(made)?;
            let alone = index.only_user(made) == Some(n) && !index.is_ordered(product);
            let first = &flow.nodes[product];
            if !alone || first.device != node.device || first.outputs.len() != 1 {
                return None;
            }
            let joined = first.op.with_summand(&flow.cx(product), device)?;
            Some(Rows::Sum { product, summand, joined })
        })?,
        _ => return None,
    };
    let users = index.users(*out);
    let readers = users.iter().map(|&user| {
        let reader = &flow.nodes[user];
        let once = reader.inputs.iter().filter(|i| **i == Some(*out)).count() == 1;
        if !once || reader.inputs.first() != Some(&Some(*out)) || reader.device != node.device {
            return None;
        }
        Some((user, reader.op.with_normalized_rows(&flow.cx(user), epsilon, device)?))
    });
    let readers: Vec<(usize, Absorbed)> = readers.collect::<Option<_>>()?;
    (!readers.is_empty()).then_some(Moved { gain, rows, readers })
}

/// Moves normalization `n`.
fn apply(flow: &mut Flow, keep: &mut [bool], n: usize, moved: Moved) {
    let Moved { gain, rows, readers } = moved;
    let rows = match rows {
        Rows::Given(x) => {
            keep[n] = false;
            x
        }
        Rows::Sum { product, summand, joined } => {
            let sum = flow.nodes[n].outputs.get(3).copied().unwrap_or_else(|| {
                let out = &flow.values[flow.nodes[n].outputs[0]];
                let (name, info) = (format!("{}:sum", out.name), out.info.clone());
                flow.values.push(Value { name, info, constant: None, scope: Default::default() });
                flow.values.len() - 1
            });
            // Where the normalization was, the other summand is there.
            let first = &flow.nodes[product];
            flow.nodes[n] = FlowNode {
                inputs: inputs_of(&joined, first, &[summand]),
                op: joined.op,
                outputs: vec![sum],
                ..first.clone()
            };
            keep[product] = false;
            sum
        }
    };
    for (reader, joined) in readers {
        let inputs = inputs_of(&joined, &flow.nodes[reader], &[rows, gain]);
        let node = &mut flow.nodes[reader];
        (node.op, node.inputs) = (joined.op, inputs);
    }
}

/// The inputs of `node` after it has absorbed another one, whose inputs are `others`.
fn inputs_of(joined: &Absorbed, node: &FlowNode, others: &[ValueId]) -> Vec<Option<ValueId>> {
    let input = |from: &AbsorbedInput| match *from {
        AbsorbedInput::Own(i) => node.inputs.get(i).copied().flatten(),
        AbsorbedInput::Next(i) => others.get(i).copied(),
        AbsorbedInput::New(_) | AbsorbedInput::Absent => None,
    };
    joined.inputs.iter().map(input).collect()
}

#[cfg(test)]
mod tests;
