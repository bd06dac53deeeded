//! Writes the plan: segments of commands over ranges of memory, with their kernels and constants.

mod commands;
mod images;
mod tables;

use super::barriers::ios;
use super::flow::ValueId;
use super::lowering::{LoweredFlow, NodeWork, PlanCx};
use super::memory_plan::MemoryPlan;
use super::schedule::Schedule;
use super::segments::Lane;
use super::{
    Location, NodeReport, Plan, PlanError, PlanReport, PlannedCommand, PlannedConstant, Segment, Space,
    TunedKernel, Work,
};
use crate::graph::TensorInfo;
use crate::ops::{Cost, Lowered, OpCx};
use tables::{Constants, Kernels};

/// The plan of lowered, ordered and placed nodes, without barriers and waits between segments.
pub(super) fn emit(
    cx: &PlanCx<'_>,
    lowered: &LoweredFlow,
    schedule: &Schedule,
    memory: MemoryPlan,
) -> Result<Plan, PlanError> {
    let mut emitter = Emitter {
        cx,
        lowered,
        schedule,
        memory: &memory,
        kernels: Kernels::default(),
        constants: Constants::default(),
        segments: Vec::new(),
        nodes: Vec::new(),
        segment_of: vec![None; lowered.nodes.len()],
    };
    let mut current = None;
    for (step, &n) in schedule.order.iter().enumerate() {
        let segment = schedule.segments.of[step];
        emitter.node(n, current != Some(segment))?.then(|| current = Some(segment));
    }
    for at in 0..memory.classes.copies.len() {
        emitter.copy_to_output(at)?;
    }
    Ok(emitter.finish())
}

struct Emitter<'a> {
    cx: &'a PlanCx<'a>,
    lowered: &'a LoweredFlow,
    schedule: &'a Schedule,
    memory: &'a MemoryPlan,
    kernels: Kernels,
    constants: Constants,
    segments: Vec<Segment>,
    nodes: Vec<NodeReport>,
    /// The segment of each node that has commands.
    segment_of: Vec<Option<u32>>,
}

impl Emitter<'_> {
    /// Adds the commands of node `n`, in a new segment if `opens`. Returns whether there are any.
    fn node(&mut self, n: usize, opens: bool) -> Result<bool, PlanError> {
        let lowered = self.lowered;
        let (at, node) = (&lowered.nodes[n], &lowered.flow.nodes[n]);
        let works = self.works(n)?;
        let cx = lowered.flow.cx(n);
        let reported = self.nodes.len() as u32;
        self.nodes.push(NodeReport {
            name: node.name.clone(),
            op: node.op.name(),
            device: at.device,
            fallback: at.fallback.clone(),
            cost: self.cost(n, &cx),
            commands: works.len() as u32,
            output: cx.outputs().first().map(ToString::to_string).unwrap_or_default(),
            tuned: match &at.work {
                NodeWork::Device(lowered) => TunedKernel::of(&lowered.asked),
                _ => Vec::new(),
            },
        });
        if works.is_empty() {
            return Ok(false);
        }
        if opens {
            let by_session = matches!(at.lane(), Lane::Session(_));
            self.segments.push(Segment { by_session, ..Segment::new(at.device) });
        }
        let lowered = match &at.work {
            NodeWork::Device(lowered) => Some(lowered),
            _ => None,
        };
        self.push(works, reported, lowered);
        self.segment_of[n] = Some(self.segments.len() as u32 - 1);
        self.order_by_control(n);
        Ok(true)
    }

    /// What node `n` costs without the moves that need no command.
    fn cost(&self, n: usize, cx: &OpCx) -> Cost {
        let cost = self.lowered.cost(n, cx);
        let Some(passed) = self.memory.overlaid.get(&n) else { return cost };
        let bytes = passed.iter().map(|p| {
            let input = cx.input_opt(p.input).map_or(0, TensorInfo::bytes);
            input.min(cx.outputs().get(p.output).map_or(0, TensorInfo::bytes)) as u64
        });
        Cost { bytes: cost.bytes.saturating_sub(2 * bytes.sum::<u64>()), ..cost }
    }

    /// Adds the copy at index `at` of those that write outputs, after all nodes.
    fn copy_to_output(&mut self, at: usize) -> Result<(), PlanError> {
        let ((o, v), device) = (self.memory.classes.copies[at], self.memory.copied_on[at]);
        let flow = &self.lowered.flow;
        let info = &flow.values[v].info;
        let bytes = info.bytes() as u64;
        let mut works = Vec::new();
        if bytes > 0 {
            let src = self.loc(v, device)?;
            let dst = Location { space: Space::Output(o), offset: 0, bytes };
            works.push((0, Work::Copy { src, dst }));
        }
        let reported = self.nodes.len() as u32;
        self.nodes.push(NodeReport {
            name: flow.outputs[o as usize].0.clone(),
            op: "Copy",
            device,
            fallback: None,
            cost: Cost { flops: 0, bytes: 2 * bytes },
            commands: works.len() as u32,
            output: info.to_string(),
            tuned: Vec::new(),
        });
        if !works.is_empty() && self.segments.last().is_none_or(|s| s.lane() != Lane::Device(device)) {
            self.segments.push(Segment::new(device));
        }
        self.push(works, reported, None);
        Ok(())
    }

    /// Adds commands to the last segment, each with its step of `lowered` where a kernel's lowering made it.
    fn push(&mut self, works: Vec<(usize, Work)>, node: u32, lowered: Option<&Lowered>) {
        let first = works.first().map_or(0, |(step, _)| *step);
        if let Some(segment) = self.segments.last_mut() {
            segment.commands.extend(works.into_iter().map(|(i, work)| {
                PlannedCommand {
                    barrier: None,
                    node,
                    no_barrier_before: i != first
                        && lowered.is_some_and(|l| l.no_barrier_before.contains(&i)),
                    full_barrier_before: false,
                    // Native functions and copies do.
                    writes_lines: lowered.is_none_or(|l| l.writes_lines.contains(&i))
                        || !matches!(work, Work::Dispatch { .. }),
                    work,
                }
            }));
        }
    }

    /// Orders the commands of node `n`, the last ones so far, after its control dependencies.
    fn order_by_control(&mut self, n: usize) {
        let (Some(at), Some(segment)) = (self.segment_of[n], self.segments.last_mut()) else { return };
        let node = segment.commands.last().map_or(0, |c| c.node);
        let control = &self.schedule.dependencies.control[n];
        for before in control.iter().filter_map(|&dep| self.segment_of[dep]) {
            if before != at {
                segment.after.insert(before);
            } else if let Some(first) =
                segment.commands.iter_mut().rev().take_while(|c| c.node == node).last()
            {
                first.full_barrier_before = true;
            }
        }
    }

    fn finish(self) -> Plan {
        let (nodes, segments, constants) = (self.nodes, self.segments, self.constants.all);
        let images = images::planned(self.cx, &self.lowered.flow, self.memory);
        let total = |f: fn(&Cost) -> u64| nodes.iter().map(|n: &NodeReport| f(&n.cost)).sum();
        let flow = &self.lowered.flow;
        let report = PlanReport {
            cost: Cost { flops: total(|c| c.flops), bytes: total(|c| c.bytes) },
            commands: segments.iter().map(|s| s.commands.len()).sum(),
            constant_bytes: constants.iter().map(PlannedConstant::bytes).sum(),
            arenas: self.memory.arenas.clone(),
            images: flow.image_reports.clone(),
            remarks: flow.remarks.clone(),
            crossings: self.lowered.crossings.clone(),
            nodes,
            ..PlanReport::default()
        };
        let named = |v: ValueId| (flow.values[v].name.clone(), flow.values[v].info.clone());
        let inputs = flow.inputs.iter().enumerate().map(|(i, &v)| {
            let (name, info) = named(v);
            (Space::Input(i as u32), name, info)
        });
        let outputs = flow.outputs.iter().enumerate();
        let outputs = outputs.map(|(o, (name, v))| (Space::Output(o as u32), name.clone(), named(*v).1));
        let mut inputs = ios(&segments, &report.nodes, inputs.chain(outputs));
        let mut outputs = inputs.split_off(flow.inputs.len());
        for &(i, o) in &flow.updates {
            (inputs[i].updated, outputs[o].updated) = (Some(o as u32), Some(i as u32));
        }
        let (kernels, arenas) = (self.kernels.all, self.memory.arenas.clone());
        Plan { inputs, outputs, kernels, constants, arenas, images, segments, report }
    }
}
