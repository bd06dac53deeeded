//! A graph before its nodes have devices, as placement sees it.

use std::collections::BTreeMap;

use super::flow::{Flow, FlowNode, ValueId, node_error};
use super::lowering::PlanCx;
use super::passes::{PassLog, rewritten};
use super::place::{Net, Problem};
use super::{Assignment, Compiler, PlanError, PlanOutcome, PlanRequest};
use crate::backend::DeviceInfo;
use crate::ops::{Cost, OpCx, OpError};

/// A graph specialized and fused, with the nodes that each device can run.
#[derive(Clone, Debug)]
pub struct UnplacedPlan {
    /// The graph.
    pub flow: Flow,
    /// Facts of each node of [`UnplacedPlan::flow`].
    pub nodes: Vec<UnplacedNode>,
}

/// A node to be placed.
#[derive(Clone, Debug)]
pub struct UnplacedNode {
    /// It has no work: its output is an input's bytes.
    pub alias: bool,
    /// The caller or the graph placed it.
    pub fixed: bool,
    /// For each device the number of its commands; `None` where it must not or cannot run.
    pub commands: Vec<Option<u32>>,
    /// Its cost.
    pub cost: Cost,
}

/// The cost of a boundary on one device, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BoundaryCost {
    /// For one more submission.
    pub submit: u64,
    /// For each byte in host memory.
    pub byte: f64,
}

impl Compiler<'_> {
    /// The graph of `request` with its passes run, before placement.
    ///
    /// # Errors
    /// As [`Compiler::compile`].
    pub fn unplaced(&self, request: &PlanRequest<'_>) -> Result<PlanOutcome<UnplacedPlan>, PlanError> {
        let cx = self.cx(&Assignment::Open, request);
        rewritten(request, &cx, &mut PassLog::default())?.try_map(|flow| {
            let nodes =
                (0..flow.nodes.len()).map(|n| cx.unplaced_node(&flow, n)).collect::<Result<_, _>>()?;
            Ok(UnplacedPlan { flow, nodes })
        })
    }
}

impl PlanCx<'_> {
    fn unplaced_node(&self, flow: &Flow, n: usize) -> Result<UnplacedNode, PlanError> {
        let (node, cx) = (&flow.nodes[n], flow.cx(n));
        let devices = self.devices.len() as u32;
        let fixed = node.device.is_some();
        if is_alias(node, &cx) {
            let commands = vec![Some(0); self.devices.len()];
            return Ok(UnplacedNode { alias: true, fixed, commands, cost: Cost::default() });
        }
        let mut reasons = Vec::new();
        let mut on = |d: u32| match self.commands_on(node, &cx, d) {
            Ok(commands) => Ok(Some(commands)),
            Err(OpError::Unsupported { what }) => {
                let name = self.devices.get(d as usize).map_or("", |d| d.name.as_str());
                reasons.push(format!("{name}: {what}"));
                Ok(None)
            }
            Err(source) => Err(node_error(&node.name, node.op.as_ref(), source)),
        };
        let mut commands: Vec<Option<u32>> = (0..devices)
            .map(|d| if node.device.is_none_or(|fixed| fixed == d) { on(d) } else { Ok(None) })
            .collect::<Result<_, _>>()?;
        if commands.iter().all(Option::is_none) && fixed && self.options.fallback {
            // As without placement: it runs on the first other native device instead.
            let other = |(d, info): (u32, &&DeviceInfo)| (info.native && node.device != Some(d)).then_some(d);
            if let Some(d) = (0u32..).zip(self.devices).find_map(other) {
                commands[d as usize] = on(d)?;
            }
        }
        if commands.iter().all(Option::is_none) {
            let reason = reasons.join("; ");
            return Err(PlanError::NoKernel { node: flow.called(node), op: node.op.name(), reason });
        }
        Ok(UnplacedNode { alias: false, fixed, commands, cost: node.op.cost(&cx) })
    }
}

impl UnplacedPlan {
    /// Whether there is a choice: a node that may run on several devices.
    pub fn is_open(&self) -> bool {
        let choices = |n: &UnplacedNode| n.commands.iter().flatten().count();
        self.nodes.iter().any(|n| !n.alias && choices(n) > 1)
    }

    /// The placement problem: `times` are nanoseconds by node and device, `boundary` the cost of a boundary on each
    /// device.
    ///
    /// A tensor that devices share costs each of them one more submission and the transfer of its bytes. This counts
    /// a submission for every tensor, although those that cross together need only one: a boundary is never
    /// underestimated.
    pub fn problem(&self, times: Vec<Vec<Option<u64>>>, boundary: &[BoundaryCost]) -> Problem {
        let root = self.roots();
        let flow = &self.flow;
        let mut touching: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
        for (n, node) in flow.nodes.iter().enumerate().filter(|(n, _)| !self.nodes[*n].alias) {
            let by_value = node.op.value_inputs();
            let reads = node.inputs.iter().enumerate().filter(|(i, _)| !by_value.contains(i));
            for v in reads.filter_map(|(_, v)| *v).chain(node.outputs.iter().copied()) {
                let nodes = touching.entry(root[v]).or_default();
                if flow.values[v].constant.is_none() && nodes.last() != Some(&n) {
                    nodes.push(n);
                }
            }
        }
        let mut outside = vec![false; flow.values.len()];
        flow.inputs.iter().for_each(|&v| outside[root[v]] = true);
        let mut written = vec![false; flow.values.len()];
        let real = flow.nodes.iter().zip(&self.nodes).filter(|(_, d)| !d.alias);
        real.flat_map(|(n, _)| &n.outputs).for_each(|&v| written[root[v]] = true);
        flow.outputs.iter().for_each(|(_, v)| outside[root[*v]] = true);
        let submits = || boundary.iter().map(|b| b.submit).collect::<Vec<u64>>();
        let mut nets = Vec::new();
        for (v, nodes) in touching {
            let bytes = flow.values[v].info.bytes() as f64;
            let way: Vec<u64> = boundary.iter().map(|b| (bytes * b.byte) as u64).collect();
            // Bound memory lies outside of all devices, and only written tensors are waited for.
            let moved = way.iter().any(|w| *w > 0);
            if outside[v] && moved {
                nets.push(Net { nodes: nodes.clone(), costs: way.clone(), always: true });
            }
            if written[v] && nodes.len() > 1 {
                let bytes = if outside[v] { vec![0; way.len()] } else { way };
                let costs = submits().iter().zip(bytes).map(|(s, b)| s.saturating_add(b)).collect();
                nets.push(Net { nodes, costs, always: false });
            }
        }
        for (n, node) in flow.nodes.iter().enumerate() {
            for &before in node.control_deps.iter().filter(|d| **d != n) {
                nets.push(Net { nodes: vec![before, n], costs: submits(), always: false });
            }
        }
        Problem { devices: boundary.len(), times, nets }
    }

    /// The value whose bytes each value shares.
    fn roots(&self) -> Vec<ValueId> {
        let mut root: Vec<ValueId> = (0..self.flow.values.len()).collect();
        for (n, node) in self.flow.nodes.iter().enumerate().filter(|(n, _)| self.nodes[*n].alias) {
            let source = node.op.alias(&self.flow.cx(n)).and_then(|i| node.inputs.get(i).copied().flatten());
            if let (Some(source), Some(&out)) = (source, node.outputs.first()) {
                root[out] = root[source];
            }
        }
        root
    }
}

/// Whether a node has no work: its output is an input's bytes.
pub(super) fn is_alias(node: &FlowNode, cx: &OpCx) -> bool {
    node.op.alias(cx).is_some_and(|i| node.inputs.get(i).copied().flatten().is_some())
}
