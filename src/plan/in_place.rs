//! Outputs that reuse the bytes of inputs.

use std::collections::{BTreeSet, HashMap};

use super::alias_classes::{AliasClasses, Backing};
use super::flow::ValueId;
use super::lowering::{LoweredFlow, NodeWork, PlanCx};

/// Lets outputs reuse the bytes of inputs whose lifetime ends with the node.
pub(super) fn merge_in_place(
    cx: &PlanCx<'_>,
    LoweredFlow { flow, nodes: lowered, .. }: &LoweredFlow,
    order: &[usize],
    storage: &mut AliasClasses,
) {
    let mut last_use: HashMap<ValueId, usize> = HashMap::new();
    let mut devices: HashMap<ValueId, BTreeSet<u32>> = HashMap::new();
    for (step, &n) in order.iter().enumerate() {
        let node = &flow.nodes[n];
        for &v in node.inputs.iter().flatten().chain(&node.outputs) {
            let root = storage.root(v);
            last_use.insert(root, step);
            devices.entry(root).or_default().insert(lowered[n].device);
        }
    }
    for &(_, v) in &storage.copies {
        last_use.insert(storage.root(v), order.len());
    }
    for (step, &n) in order.iter().enumerate() {
        let device = lowered[n].device;
        // A native kernel gets its arguments as slices, which must not overlap.
        if !matches!(lowered[n].work, NodeWork::Device(_)) || cx.devices[device as usize].native {
            continue;
        }
        let node = &flow.nodes[n];
        let Some(source) = node.op.in_place(&flow.cx(n)).and_then(|i| node.inputs.get(i).copied().flatten())
        else {
            continue;
        };
        let (from, to) = (storage.root(source), storage.root(node.outputs[0]));
        let same = flow.values[source].info.bytes() == flow.values[node.outputs[0]].info.bytes();
        let both = storage.backing(from) == Backing::Arena && storage.backing(to) == Backing::Arena;
        let read_once = node.inputs.iter().flatten().filter(|v| storage.root(**v) == from).count() == 1;
        if from == to || !same || !both || !read_once || last_use.get(&from) != Some(&step) {
            continue;
        }
        // Another device could still be reading the bytes that are overwritten.
        if devices.get(&from) != devices.get(&to) || devices.get(&from).is_some_and(|d| d.len() > 1) {
            continue;
        }
        if storage.merge(source, node.outputs[0]) {
            let last = last_use.get(&to).copied().unwrap_or(step);
            last_use.insert(storage.root(source), last);
        }
    }
}
