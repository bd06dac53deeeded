//! Lowering of nodes to commands, native calls, copies by the session, or nothing.

use std::collections::HashSet;

use super::flow::{Flow, FlowNode, node_error};
use super::operands::{check_limits, check_native_limits};
use super::passes::CrossingReport;
use super::segments::Lane;
use super::unplaced::is_alias;
use super::{Assignment, PlanCache, PlanError, PlanOptions};
use crate::backend::DeviceInfo;
use crate::ops::image::compact;
use crate::ops::{Choices, Cost, Lowered, Lowering, Native, OpCx, OpError, Operator, Packed};

/// Context of all passes over a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanCx<'a> {
    /// The session's devices.
    pub(super) devices: &'a [&'a DeviceInfo],
    /// The caller's wishes.
    pub(super) options: &'a PlanOptions,
    /// Devices of nodes that nothing else places.
    pub(super) assignment: &'a Assignment,
    /// State shared by plans.
    pub(super) cache: &'a PlanCache,
    /// Inputs and outputs, by position, that are one memory.
    pub(super) updates: &'a [(usize, usize)],
}

/// The work of a lowered node.
pub(super) enum NodeWork {
    /// Nothing: its output is an input's bytes.
    Alias,
    /// A function.
    Native(Native),
    /// Commands.
    Device(Lowered),
    /// The session copies from memory of a device.
    Session {
        /// The device.
        from: u32,
    },
}

/// A node on its device.
pub(super) struct LoweredNode {
    pub(super) device: u32,
    /// Why it is not the requested device.
    pub(super) fallback: Option<String>,
    pub(super) work: NodeWork,
}

impl LoweredNode {
    /// Whether it has no work.
    pub(super) fn is_alias(&self) -> bool {
        matches!(self.work, NodeWork::Alias)
    }

    /// Where it runs.
    pub(super) fn lane(&self) -> Lane {
        match self.work {
            NodeWork::Session { .. } => Lane::Session(self.device),
            _ => Lane::Device(self.device),
        }
    }

    /// The device from whose memory the node reads.
    pub(super) fn reads_on(&self) -> u32 {
        match self.work {
            NodeWork::Session { from } => from,
            _ => self.device,
        }
    }
}

/// A flow with its nodes lowered.
#[derive(Default)]
pub(super) struct LoweredFlow {
    pub(super) flow: Flow,
    /// Its nodes, lowered.
    pub(super) nodes: Vec<LoweredNode>,
    /// Tensors that cross between devices.
    pub(super) crossings: Vec<CrossingReport>,
}

impl LoweredFlow {
    /// Lowers all nodes; returns how many have work.
    pub(super) fn lower(&mut self, cx: &PlanCx<'_>) -> Result<usize, PlanError> {
        let flow = &self.flow;
        self.nodes = (0..flow.nodes.len()).map(|n| cx.lower(flow, n)).collect::<Result<_, _>>()?;
        self.read_once(cx)?;
        Ok(self.nodes.iter().filter(|n| !n.is_alias()).count())
    }

    /// A constant that one native function reads as it lies and another one packed, here or in another session, would be in
    /// memory twice: both read it as it lies.
    fn read_once(&mut self, cx: &PlanCx<'_>) -> Result<(), PlanError> {
        let mut plain = HashSet::new();
        for (n, lowered) in self.nodes.iter().enumerate() {
            let NodeWork::Native(native) = &lowered.work else { continue };
            let (node, facts) = (&self.flow.nodes[n], self.flow.cx(n));
            let by_value = node.op.value_inputs();
            let read = |i: &usize| native.packed(*i).is_none() && !by_value.contains(i);
            let constants = (0..facts.input_count()).filter(read).filter_map(|i| facts.value(i));
            plain.extend(constants.map(|constant| (lowered.device, constant.identity())));
        }
        for (n, lowered) in self.nodes.iter_mut().enumerate() {
            let NodeWork::Native(native) = &lowered.work else { continue };
            let twice = |packed: &Packed| {
                let shared = packed.optional && cx.options.shared_parameters;
                shared || plain.contains(&(lowered.device, packed.source.identity()))
            };
            if native.packed.iter().any(|(_, packed)| twice(packed)) {
                let node = &self.flow.nodes[n];
                let native = node.op.cpu(&self.flow.cx(n)).map(Native::from);
                lowered.work = native
                    .and_then(|native| cx.native(native, node, &self.flow.cx(n), lowered.device))
                    .map_err(|source| node_error(&self.flow.called(node), node.op.as_ref(), source))?;
            }
        }
        Ok(())
    }

    /// For each node the input whose bytes are its output, if it has no other work.
    pub(super) fn aliases(&self) -> Vec<Option<usize>> {
        let alias = |(n, node): (usize, &LoweredNode)| match node.work {
            NodeWork::Alias => self.flow.nodes[n].op.alias(&self.flow.cx(n)),
            _ => None,
        };
        self.nodes.iter().enumerate().map(alias).collect()
    }

    /// What node `n` costs, as it was lowered.
    pub(super) fn cost(&self, n: usize, cx: &OpCx) -> Cost {
        if self.nodes[n].is_alias() { Cost::default() } else { self.flow.nodes[n].op.cost(cx) }
    }
}

impl PlanCx<'_> {
    /// The device that `node` should run on.
    pub(super) fn wanted_device(&self, node: &FlowNode) -> u32 {
        node.device.unwrap_or(self.assignment.rest())
    }

    /// The device that is sure to run `node`. Where devices are still to be chosen there is none: the choice is between the
    /// operators of the graph, and passes that join some for one device wait.
    pub(super) fn device_of(&self, node: &FlowNode) -> Option<&DeviceInfo> {
        let device = match self.assignment {
            Assignment::All(device) => node.device.unwrap_or(*device),
            Assignment::Open | Assignment::Each(_) => node.device?,
        };
        self.devices.get(device as usize).copied()
    }

    /// Lowers node `n` on its device, or on the first other native one where its device has no kernel and fallback is
    /// allowed.
    pub(super) fn lower(&self, flow: &Flow, n: usize) -> Result<LoweredNode, PlanError> {
        let node = &flow.nodes[n];
        let wanted = self.wanted_device(node);
        let cx = flow.cx(n);
        if is_alias(node, &cx) {
            return Ok(LoweredNode { device: wanted, fallback: None, work: NodeWork::Alias });
        }
        let mut natives = (0u32..).zip(self.devices).filter(|(d, info)| info.native && *d != wanted);
        let mut candidates = vec![wanted];
        if self.options.fallback {
            candidates.extend(natives.next().map(|(d, _)| d));
        }
        let mut reasons = Vec::new();
        for device in candidates {
            match self.lower_on(node, &cx, device) {
                Ok(work) => {
                    let fallback = (!reasons.is_empty()).then(|| reasons.join("; "));
                    return Ok(LoweredNode { device, fallback, work });
                }
                Err(OpError::Unsupported { what }) => {
                    let name = self.devices.get(device as usize).map_or("", |d| d.name.as_str());
                    reasons.push(format!("{name}: {what}"));
                }
                Err(source) => return Err(node_error(&flow.called(node), node.op.as_ref(), source)),
            }
        }
        Err(PlanError::NoKernel { node: flow.called(node), op: node.op.name(), reason: reasons.join("; ") })
    }

    /// Number of commands of a node on `device`.
    pub(super) fn commands_on(&self, node: &FlowNode, cx: &OpCx, device: u32) -> Result<u32, OpError> {
        Ok(match self.lower_on(node, cx, device)? {
            NodeWork::Alias => 0,
            NodeWork::Native(_) | NodeWork::Session { .. } => 1,
            NodeWork::Device(lowered) => lowered.steps.len() as u32,
        })
    }

    /// The work of `node` on `device`.
    pub(super) fn lower_on(&self, node: &FlowNode, cx: &OpCx, device: u32) -> Result<NodeWork, OpError> {
        let info = self.devices[device as usize];
        if info.native {
            return self.native(node.op.cpu_on(cx, info)?, node, cx, device);
        }
        if cx.outputs().iter().all(|o| o.bytes() == 0) {
            return Ok(NodeWork::Device(Lowered::default()));
        }
        let with = |choices| lower_with(node.op.as_ref(), cx, info, self.options, choices);
        let lowered = match self.options.choices.get(device as usize) {
            // A choice that was made for similar sizes may be beyond a limit with these.
            Some(choices) => with(Some(&**choices)).or_else(|e| match e {
                OpError::Unsupported { .. } => with(None),
                other => Err(other),
            }),
            None => with(None),
        };
        lowered.map(NodeWork::Device)
    }

    /// A native function as the work of `node`.
    fn native(&self, native: Native, node: &FlowNode, cx: &OpCx, device: u32) -> Result<NodeWork, OpError> {
        check_native_limits(&native, node.op.as_ref(), cx, self.devices[device as usize])?;
        Ok(NodeWork::Native(Native { kernel: compact(native.kernel, cx), ..native }))
    }
}

/// The commands of an operator on `device`, which is not native.
pub(super) fn lower_with(
    op: &dyn Operator,
    cx: &OpCx,
    device: &DeviceInfo,
    options: &PlanOptions,
    choices: Option<&Choices>,
) -> Result<Lowered, OpError> {
    let mut lowering = Lowering::new(device).with_coarse_filter(options.coarse_filter);
    if let Some(choices) = choices {
        lowering = lowering.with_choices(choices);
    }
    op.gpu(cx, &mut lowering)?;
    let lowered = lowering.finish();
    check_limits(&lowered, cx, device)?;
    Ok(lowered)
}
