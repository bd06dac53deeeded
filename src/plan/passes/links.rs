//! Nodes that only move elements: reshapes, transposes and slices, by which a value lies in another one.

use crate::graph::StorageScope;
use crate::operator::ViewStep;
use crate::plan::flow::{Flow, ValueId};
use crate::plan::index::FlowIndex;

/// Longer chains are not followed, which bounds the search.
pub(super) const MOST_STEPS: usize = 24;

/// A node that writes elements of one value in other places.
pub(super) struct Link {
    pub source: ValueId,
    pub step: ViewStep,
}

/// How `v`, which a node on `device` writes, comes from another value; both are in plain memory.
pub(super) fn link(flow: &Flow, index: &FlowIndex, device: Option<u32>, v: ValueId) -> Option<Link> {
    let t = index.producer(v)?;
    let node = &flow.nodes[t];
    let output = node.outputs.iter().position(|o| *o == v)?;
    (node.device == device).then_some(())?;
    let cx = flow.cx(t);
    let (input, step) = match node.op.alias(&cx).filter(|_| output == 0) {
        Some(input) => (input, ViewStep::Reshape),
        None => (0, node.op.view_step(&cx, output)?),
    };
    let source = node.inputs.get(input).copied().flatten()?;
    let (x, y) = (&flow.values[source], &flow.values[v]);
    let plain = [x, y].iter().all(|value| value.scope == StorageScope::default());
    (plain && x.info.dtype == y.info.dtype).then_some(Link { source, step })
}
