//! Memory that is an input and an output: operators write into it what changes.

use std::collections::BTreeMap;

use crate::plan::flow::Flow;
use crate::plan::index::FlowIndex;

/// Lets each node that alone reads an input of `updates` and makes the output paired with it write into that memory,
/// where its operator can; how many inputs are updated so.
pub(super) fn update_in_place(flow: &mut Flow, updates: &[(usize, usize)]) -> usize {
    let index = FlowIndex::new(flow);
    // Of each node, the pairs of its own inputs and outputs, and those of the graph.
    let mut pairs: BTreeMap<usize, Vec<[(usize, usize); 2]>> = BTreeMap::new();
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
    let before = flow.updates.len();
    for (n, pairs) in pairs {
        let own: Vec<(usize, usize)> = pairs.iter().map(|[own, _]| *own).collect();
        let Some(op) = flow.nodes[n].op.updating(&own, &flow.cx(n)) else { continue };
        flow.nodes[n].op = op;
        own.iter().for_each(|(input, _)| flow.nodes[n].inputs[*input] = None);
        flow.updates.extend(pairs.iter().map(|[_, graph]| *graph));
    }
    flow.updates.len() - before
}
