//! Tensors that cross from one device to another. It calls no driver.
//!
//! Devices that import host memory access the same bytes there: nothing is copied, a barrier and an event order the
//! two sides. A device that reads a tensor so often that a copy is cheaper makes the copy itself. Where one side
//! cannot import, the session copies the bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::graph::StorageScope;
use crate::ops::image::TensorCopy;
use crate::plan::PlanError;
use crate::plan::flow::{Flow, FlowNode, ValueId, node_error};
use crate::plan::index::FlowIndex;
use crate::plan::lowering::{LoweredFlow, LoweredNode, NodeWork, PlanCx};

/// How a tensor gets from one device to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Crossing {
    /// Both use the same host memory: a barrier and an event, no copy.
    Shared,
    /// A device copies between host memory and its own.
    Direct,
    /// The session copies: one side cannot use host memory of the process.
    Staged,
}

/// A tensor that one device writes and another reads.
#[derive(Clone, Debug, serde::Serialize)]
pub struct CrossingReport {
    /// The tensor.
    pub tensor: String,
    /// The device that writes it, or reads it first where it is an input.
    pub from: u32,
    /// The device that reads it.
    pub to: u32,
    /// Its bytes.
    pub bytes: u64,
    /// How it crosses.
    pub path: Crossing,
    /// Why it crosses like that.
    pub reason: &'static str,
}

impl CrossingReport {
    /// Bytes that are copied in each run.
    pub fn copied(&self) -> u64 {
        match self.path {
            Crossing::Shared => 0,
            Crossing::Direct | Crossing::Staged => self.bytes,
        }
    }
}

/// A node added for a crossing. These are the last nodes of the flow, in order.
#[derive(Clone, Copy, Debug)]
enum Carrier {
    /// Device `0` copies.
    Device(u32),
    /// The session copies from memory of device `from` to memory of device `to`.
    Session {
        /// Where the tensor is.
        from: u32,
        /// Where it goes.
        to: u32,
    },
}

/// Adds a lowered node for each copy that crossings need; returns how many.
pub(super) fn copy_between_devices(lowered: &mut LoweredFlow, cx: &PlanCx<'_>) -> Result<usize, PlanError> {
    let devices: Vec<u32> = lowered.nodes.iter().map(|l| l.device).collect();
    let alias = lowered.aliases();
    let (crossings, carriers) = cross(&mut lowered.flow, &devices, &alias, cx);
    let copies = carriers.len();
    for carrier in carriers {
        let (flow, n) = (&lowered.flow, lowered.nodes.len());
        let node = &flow.nodes[n];
        let (device, work) = match carrier {
            Carrier::Session { from, to } => (to, Ok(NodeWork::Session { from })),
            Carrier::Device(d) => (d, cx.lower_on(node, &flow.cx(n), d)),
        };
        let work = work.map_err(|source| node_error(&node.name, node.op.as_ref(), source))?;
        lowered.nodes.push(LoweredNode { device, fallback: None, work });
    }
    lowered.crossings = crossings;
    Ok(copies)
}

/// Decides the crossings of `flow`, whose nodes run on `devices`; `alias[n]` is the input whose bytes node `n` passes
/// on. Adds a node for each copy at the end of the flow.
fn cross(
    flow: &mut Flow,
    devices: &[u32],
    alias: &[Option<usize>],
    cx: &PlanCx<'_>,
) -> (Vec<CrossingReport>, Vec<Carrier>) {
    let mut boundary = Boundary {
        class: classes(flow, alias),
        reads: BTreeMap::new(),
        flow,
        cx,
        reports: Vec::new(),
        carriers: Vec::new(),
    };
    if devices.iter().collect::<BTreeSet<_>>().len() > 1 {
        boundary.collect(devices, alias);
        boundary.decide(devices, alias);
    }
    (boundary.reports, boundary.carriers)
}

/// For each value the one whose bytes it has.
fn classes(flow: &Flow, alias: &[Option<usize>]) -> Vec<ValueId> {
    let mut class: Vec<ValueId> = (0..flow.values.len()).collect();
    for (node, alias) in flow.nodes.iter().zip(alias) {
        if let Some(source) = alias.and_then(|i| node.inputs.get(i).copied().flatten()) {
            class[node.outputs[0]] = class[source];
        }
    }
    class
}

/// The users of a class of values that share their bytes: by device, (node, input).
type Readers = BTreeMap<u32, Vec<(usize, usize)>>;

struct Boundary<'a> {
    flow: &'a mut Flow,
    cx: &'a PlanCx<'a>,
    class: Vec<ValueId>,
    reads: BTreeMap<ValueId, Readers>,
    reports: Vec<CrossingReport>,
    carriers: Vec<Carrier>,
}

impl Boundary<'_> {
    fn collect(&mut self, devices: &[u32], alias: &[Option<usize>]) {
        for (n, node) in self.flow.nodes.iter().enumerate().filter(|(n, _)| alias[*n].is_none()) {
            let by_value = node.op.value_inputs();
            for (i, input) in node.inputs.iter().enumerate().filter(|(i, _)| !by_value.contains(i)) {
                let Some(v) = *input else { continue };
                if self.flow.values[v].constant.is_none() {
                    let readers = self.reads.entry(self.class[v]).or_default();
                    readers.entry(devices[n]).or_default().push((n, i));
                }
            }
        }
    }

    fn decide(&mut self, devices: &[u32], alias: &[Option<usize>]) {
        let index = FlowIndex::new(self.flow);
        let mut members = vec![0u32; self.class.len()];
        self.class.iter().for_each(|&root| members[root] += 1);
        for (root, mut readers) in std::mem::take(&mut self.reads) {
            // The memory of an input belongs to the first device that can use host memory.
            let shares = |d: &u32| self.cx.devices.get(*d as usize).is_some_and(|i| i.import.is_some());
            let first = readers.keys().copied().find(shares).or(readers.keys().copied().next());
            let maker = index.producer(root).filter(|&n| alias[n].is_none());
            let made = maker.map(|n| devices[n]);
            let Some(from) = made.or(first) else { continue };
            let own = readers.remove(&from).unwrap_or_default();
            if readers.is_empty() {
                continue;
            }
            let bytes = self.flow.values[root].info.bytes() as u64;
            // Its own kernels would access the tensor in host memory.
            let leaves = readers.keys().any(|d| self.shares(from, *d));
            let keeps = made.is_some() && !own.is_empty() && leaves;
            let mut outside = root;
            if keeps && self.copy_pays(from, bytes, 1 + self.touches(&own)) && members[root] == 1 {
                outside = self.copy(root, Carrier::Device(from), from);
            }
            for (to, uses) in readers {
                self.one(root, outside, from, to, &uses);
            }
        }
    }

    fn one(&mut self, root: ValueId, outside: ValueId, from: u32, to: u32, uses: &[(usize, usize)]) {
        let bytes = self.flow.values[root].info.bytes() as u64;
        let read = |(n, i): &(usize, usize)| self.flow.nodes[*n].inputs.get(*i).copied().flatten();
        let values: BTreeSet<ValueId> = uses.iter().filter_map(read).collect();
        let (path, reason, carrier) = if !self.shares(from, to) {
            let reason = if self.cx.options.share {
                "one of the devices cannot import host memory"
            } else {
                "as was asked for"
            };
            (Crossing::Staged, reason, Some(Carrier::Session { from, to }))
        } else if self.copy_pays(to, bytes, self.touches(uses)) {
            let reason = match self.has_own_memory(to) {
                true => "the device has its own memory and reads the tensor more than once",
                false => "the device was measured to read it faster from a copy",
            };
            (Crossing::Direct, reason, Some(Carrier::Device(to)))
        } else if outside != root {
            let reason = match self.has_own_memory(from) {
                true => "the device that makes it has its own memory and keeps a copy for its own kernels",
                false => "the device that makes it was measured to be faster with a copy for its own kernels",
            };
            (Crossing::Direct, reason, None)
        } else {
            (Crossing::Shared, "both devices use the same host memory", None)
        };
        if carrier.is_some() || outside != root {
            for v in values {
                let seen = if v == root { outside } else { v };
                let seen = carrier.map_or(seen, |carrier| self.copy(seen, carrier, to));
                for &(n, i) in uses {
                    if let Some(input) = self.flow.nodes[n].inputs.get_mut(i).filter(|x| **x == Some(v)) {
                        *input = Some(seen);
                    }
                }
            }
        }
        let tensor = self.flow.values[root].name.clone();
        self.reports.push(CrossingReport { tensor, from, to, bytes, path, reason });
    }

    /// Whether both devices can use the same host memory.
    fn shares(&self, a: u32, b: u32) -> bool {
        self.cx.options.share
            && [a, b].iter().all(|d| self.cx.devices.get(*d as usize).is_some_and(|i| i.import.is_some()))
    }

    fn has_own_memory(&self, d: u32) -> bool {
        let info = self.cx.devices.get(d as usize);
        info.is_some_and(|info| !info.memory.shares_host_memory())
    }

    /// Whether a device that accesses `bytes` bytes `touches` times is faster with a copy of its own.
    fn copy_pays(&self, d: u32, bytes: u64, touches: u32) -> bool {
        let info = self.cx.devices.get(d as usize);
        info.map(|info| self.cx.cache.costs(d, info)).is_some_and(|costs| {
            bytes >= costs.copy_threshold && costs.direct_reads.is_some_and(|most| touches > most)
        })
    }

    /// How often nodes read each element of the tensor.
    fn touches(&self, uses: &[(usize, usize)]) -> u32 {
        let passes = uses.iter().map(|&(n, _)| self.flow.nodes[n].op.cost(&self.flow.cx(n)).passes());
        passes.fold(0, u32::saturating_add)
    }

    /// Adds a copy of `v` in memory of `device`.
    fn copy(&mut self, v: ValueId, carrier: Carrier, device: u32) -> ValueId {
        let value = &self.flow.values[v];
        let name = format!("{} for device {device}", value.name);
        let copy = crate::plan::Value {
            name: name.clone(),
            info: value.info.clone(),
            constant: None,
            scope: StorageScope::Buffer,
        };
        let id = self.flow.values.len();
        self.flow.values.push(copy);
        self.class.push(id);
        self.flow.nodes.push(FlowNode {
            name,
            op: Arc::new(TensorCopy::Crossing),
            inputs: vec![Some(v)],
            outputs: vec![id],
            device: Some(device),
            control_deps: Vec::new(),
        });
        self.carriers.push(carrier);
        id
    }
}
