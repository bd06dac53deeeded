//! Memory that is an input and an output: operators write into it what changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::operator::Operator;
use crate::plan::flow::Flow;
use crate::plan::index::FlowIndex;

/// An input and an output that are the same memory: of a node, and of the graph.
pub(super) type Pair = [(usize, usize); 2];

/// Lets each node that alone reads an input of `updates` and makes the output paired with it write into that memory,
/// where its operator can; how many inputs are updated so.
pub(super) fn update_in_place(flow: &mut Flow, updates: &[(usize, usize)]) -> usize {
    let before = flow.updates.len();
    for (n, op, pairs) in updating(flow, updates) {
        flow.nodes[n].op = op;
        pairs.iter().for_each(|[(input, _), _]| flow.nodes[n].inputs[*input] = None);
        flow.updates.extend(pairs.iter().map(|[_, graph]| *graph));
    }
    flow.updates.len() - before
}

/// The nodes that can write into memory of `updates`, each with the operator that does so and what it updates.
pub(super) fn updating(
    flow: &Flow,
    updates: &[(usize, usize)],
) -> Vec<(usize, Arc<dyn Operator>, Vec<Pair>)> {
    if updates.is_empty() {
        return Vec::new();
    }
    let index = FlowIndex::new(flow);
    let mut pairs: BTreeMap<usize, Vec<Pair>> = BTreeMap::new();
    for &(i, o) in updates {
        let (Some(&source), Some(&(_, made))) = (flow.inputs.get(i), flow.outputs.get(o)) else { continue };
        let (Some(n), true) = (index.only_user(source), source != made) else { continue };
        let node = &flow.nodes[n];
        let input = node.inputs.iter().position(|v| *v == Some(source));
        let output = node.outputs.iter().position(|v| *v == made);
        // An output of the graph under two names is written by a copy.
        let once = flow.outputs.iter().filter(|(_, v)| *v == made).count() == 1;
        let same = flow.values[source].info == flow.values[made].info;
        if let (Some(input), Some(output), true, true) = (input, output, once, same) {
            pairs.entry(n).or_default().push([(input, output), (i, o)]);
        }
    }
    let nodes = pairs.into_iter().filter_map(|(n, pairs)| {
        let own: Vec<(usize, usize)> = pairs.iter().map(|[own, _]| *own).collect();
        let op = flow.nodes[n].op.updating(&own, &flow.cx(n))?;
        Some((n, op, pairs))
    });
    nodes.collect()
}
