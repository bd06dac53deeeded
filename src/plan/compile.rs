//! Makes a plan: places, lowers, decides storage, packs arenas, inserts barriers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::arena::{Request, pack, tvm_rule};
use super::barriers::ios;
use super::boundary::{Carrier, cross};
use super::draft::is_alias;
use super::flow::{Flow, FlowNode, ValueId, node_error};
use super::half::{HalfConstants, Precision};
use super::images::needs;
use super::in_place::merge_in_place;
use super::index::FlowIndex;
use super::operands::{check_limits, check_native_limits, operand_bytes};
use super::quantized::Integers;
use super::report::{NodeReport, PlanReport};
use super::segments::{Cut, Lane, Needs, Step as Placed, order_segments, schedule, steps_of};
use super::storage::{Backing, Life, Storage};
use super::{
    Bound, Domain, KernelCode, Loc, Place, Plan, PlanError, PlannedArena, PlannedCommand, PlannedConstant,
    PlannedKernel, Segment, Work, insert_barriers,
};
use crate::backend::DeviceInfo;
use crate::graph::{Graph, Tensor, TensorIdentity, TensorInfo};
use crate::kernel::{KernelId, KernelSource, touch};
use crate::memory::coherency::Access;
use crate::memory::image::{Filter, ImageDesc};
use crate::ops::image::compact;
use crate::ops::pointwise::Programs;
use crate::ops::{
    Cost, Lowered, Lowering, Native, OpCx, OpError, Operand, PackKey, Packed, Step, StepKernel,
};

/// What the caller decides about plans.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// Lets operators absorb their bias, normalization and activation, and makes one operator of chains of
    /// pointwise ones.
    pub fuse: bool,
    /// Whether `fuse` makes one operator of chains of pointwise ones.
    pub chains: bool,
    /// Lets outputs overwrite inputs that are dead afterwards.
    pub in_place: bool,
    /// Lets an operator without a kernel on its device run on the first native device of the table.
    pub fallback: bool,
    /// What a `float32` graph computes in.
    pub precision: Precision,
    /// Whether operators between DequantizeLinear and QuantizeLinear compute with bytes.
    pub integers: Integers,
    /// Constants in `float16`, shared by all plans made with these options.
    pub halves: Arc<HalfConstants>,
    /// Lets the hardware interpolate between texels of images even where its weights of a few bits are not exact.
    pub coarse_filter: bool,
    /// Devices by node name; beats everything else.
    pub place_nodes: BTreeMap<String, u32>,
    /// Devices by operator name; beats the graph.
    pub place_ops: BTreeMap<String, u32>,
    /// The device of all nodes that neither these nor the graph place; what is decided by measurements does not beat it.
    pub place_rest: Option<u32>,
    /// Where nodes go that nobody places.
    pub device: u32,
    /// The device of each node of the [`Draft`](super::Draft) that was made with the same options; those of nodes that the
    /// options above or the graph place are not read.
    pub assigned: Option<Arc<[u32]>>,
    /// Names of nodes that the graph places on devices which the table does not have, and which run on entry 0.
    pub foreign: BTreeSet<String>,
    /// Lets devices use tensors between them in place, where they can; else the session copies them.
    pub share: bool,
}

impl Default for PlanOptions {
    fn default() -> Self {
        PlanOptions {
            fuse: true,
            chains: true,
            in_place: true,
            fallback: true,
            precision: Precision::F32,
            integers: Integers::Auto,
            halves: Arc::default(),
            coarse_filter: false,
            place_nodes: BTreeMap::new(),
            place_ops: BTreeMap::new(),
            place_rest: None,
            device: 0,
            assigned: None,
            foreign: BTreeSet::new(),
            share: true,
        }
    }
}

/// Makes plans of one graph for one device table.
#[derive(Debug)]
pub struct Compiler<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The session's devices.
    pub devices: &'a [&'a DeviceInfo],
    /// The caller's decisions.
    pub options: &'a PlanOptions,
    /// Chains that plans share.
    pub programs: &'a Programs,
}

pub(super) enum NodeWork {
    Alias,
    Native(Native),
    Device(Lowered),
    /// The session copies from memory of a device.
    Session {
        from: u32,
    },
}

pub(super) struct Lowering1 {
    pub(super) device: u32,
    fallback: Option<String>,
    pub(super) work: NodeWork,
}

impl Lowering1 {
    fn lane(&self) -> Lane {
        match self.work {
            NodeWork::Session { .. } => Lane::Session(self.device),
            _ => Lane::Device(self.device),
        }
    }

    /// The device that reads what the node reads.
    fn reads_on(&self) -> u32 {
        match self.work {
            NodeWork::Session { from } => from,
            _ => self.device,
        }
    }
}

impl Compiler<'_> {
    /// The plan for inputs of types and shapes `infos`; `values` are inputs given by value.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn compile(&self, infos: &[TensorInfo], values: &BTreeMap<usize, Tensor>) -> Result<Plan, PlanError> {
        let (flow, fused, halved) = self.flow(infos, values)?;
        let (mut flow, mut lowered, images) = self.lower_all(flow)?;
        let devices: Vec<u32> = lowered.iter().map(|l| l.device).collect();
        let alias = aliases(&flow, &lowered);
        let (crossings, carriers) = cross(&mut flow, &devices, &alias, self.devices, self.options.share);
        for carrier in carriers {
            lowered.push(self.carry(&flow, lowered.len(), carrier)?);
        }
        let steps: Vec<Placed> = (0..lowered.len()).map(|n| placed(&flow, &lowered, n)).collect();
        let needs = Needs::new(&flow, &steps)?;
        let order = schedule(&flow, &steps, &needs);
        let cut = Cut::new(&order, &steps, &needs);
        let mut emit = Emitter::new(self, &flow, &lowered, &order, &cut, &needs, &steps);
        emit.pack();
        let mut plan = emit.emit()?;
        plan.report.crossings = crossings;
        plan.report.foreign = self.options.foreign.iter().cloned().collect();
        plan.report.graph_nodes = self.graph.nodes().len() + self.graph.settled;
        plan.report.fused = fused + self.graph.absorbed;
        plan.report.quantized = self.graph.quantized;
        plan.report.halved = halved;
        plan.report.images = images;
        order_segments(&mut plan, &|place| (place, 0));
        let bound = Bound { resolve: &|place| (place, 0), is_copied: &|_, _| false };
        insert_barriers(&mut plan, self.devices, &bound);
        plan.report.barriers = plan.segments.iter().map(|s| s.barriers().count()).sum();
        Ok(plan)
    }

    pub(super) fn wanted_device(&self, node: &FlowNode) -> u32 {
        node.device.unwrap_or(self.options.device)
    }

    pub(super) fn lower(&self, flow: &Flow, n: usize) -> Result<Lowering1, PlanError> {
        let node = &flow.nodes[n];
        let wanted = self.wanted_device(node);
        let cx = flow.cx(n);
        if is_alias(node, &cx) {
            return Ok(Lowering1 { device: wanted, fallback: None, work: NodeWork::Alias });
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
                    return Ok(Lowering1 { device, fallback, work });
                }
                Err(OpError::Unsupported { what }) => {
                    let name = self.devices.get(device as usize).map_or("", |d| d.name.as_str());
                    reasons.push(format!("{name}: {what}"));
                }
                Err(source) => return Err(node_error(&node.name, node.op.as_ref(), source)),
            }
        }
        Err(PlanError::NoKernel { node: node.name.clone(), op: node.op.name(), reason: reasons.join("; ") })
    }

    /// How many commands a node becomes on `device`.
    pub(super) fn commands_on(&self, node: &FlowNode, cx: &OpCx, device: u32) -> Result<u32, OpError> {
        Ok(match self.lower_on(node, cx, device)? {
            NodeWork::Alias => 0,
            NodeWork::Native(_) | NodeWork::Session { .. } => 1,
            NodeWork::Device(lowered) => lowered.steps.len() as u32,
        })
    }

    fn carry(&self, flow: &Flow, n: usize, carrier: Carrier) -> Result<Lowering1, PlanError> {
        let node = &flow.nodes[n];
        let (device, work) = match carrier {
            Carrier::Session { from, to } => (to, Ok(NodeWork::Session { from })),
            Carrier::Device(d) => (d, self.lower_on(node, &flow.cx(n), d)),
        };
        let work = work.map_err(|source| node_error(&node.name, node.op.as_ref(), source))?;
        Ok(Lowering1 { device, fallback: None, work })
    }

    fn lower_on(&self, node: &FlowNode, cx: &OpCx, device: u32) -> Result<NodeWork, OpError> {
        let info = self.devices[device as usize];
        if info.native {
            let native = node.op.cpu_on(cx, info)?;
            check_native_limits(&native, node.op.as_ref(), cx, info)?;
            return Ok(NodeWork::Native(Native { kernel: compact(native.kernel, cx), ..native }));
        }
        if cx.outputs().iter().all(|o| o.bytes() == 0) {
            return Ok(NodeWork::Device(Lowered::default()));
        }
        let mut lowering = Lowering::new(info).with_coarse_filter(self.options.coarse_filter);
        node.op.gpu(cx, &mut lowering)?;
        let lowered = lowering.finish();
        check_limits(&lowered, cx, info)?;
        Ok(NodeWork::Device(lowered))
    }
}

/// For each node the input whose bytes it passes on, if it does nothing else.
fn aliases(flow: &Flow, lowered: &[Lowering1]) -> Vec<Option<usize>> {
    let alias = |n: usize| match lowered[n].work {
        NodeWork::Alias => flow.nodes[n].op.alias(&flow.cx(n)),
        _ => None,
    };
    (0..lowered.len()).map(alias).collect()
}

fn placed(flow: &Flow, lowered: &[Lowering1], n: usize) -> Placed {
    let alias = matches!(lowered[n].work, NodeWork::Alias);
    let cost = if alias { Cost::default() } else { flow.nodes[n].op.cost(&flow.cx(n)) };
    Placed { lane: lowered[n].lane(), alias, work: cost.flops.saturating_add(cost.bytes) }
}

pub(super) struct Emitter<'a> {
    pub(super) compiler: &'a Compiler<'a>,
    pub(super) flow: &'a Flow,
    lowered: &'a [Lowering1],
    order: &'a [usize],
    cut: &'a Cut,
    needs: &'a Needs,
    pub(super) storage: Storage,
    /// The device of each of the copies of `storage`.
    copied_on: Vec<u32>,
    /// The steps that touch each class.
    touched: HashMap<ValueId, BTreeSet<u32>>,
    pub(super) life: HashMap<ValueId, Life>,
    /// Arena and offset of every class that lies in one.
    pub(super) placed: HashMap<ValueId, (u32, u64)>,
    /// Arena and offset of each node's scratch ranges.
    scratch: HashMap<usize, Vec<(u32, u64)>>,
    pub(super) arenas: Vec<PlannedArena>,
    kernels: Vec<PlannedKernel>,
    kernel_index: HashMap<KernelKey, u32>,
    constants: Vec<PlannedConstant>,
    constant_index: HashMap<(u32, TensorIdentity, Option<PackKey>, Option<ImageDesc>), u32>,
}

/// Device, code and specialization of a kernel; a module is known by the address of its source, which the
/// kernel that has it keeps.
type KernelKey = (u32, CodeKey, Vec<(u32, u32)>);

#[derive(PartialEq, Eq, Hash)]
enum CodeKey {
    Table(KernelId),
    Module(*const KernelSource),
}

impl<'a> Emitter<'a> {
    fn new(
        compiler: &'a Compiler<'a>,
        flow: &'a Flow,
        lowered: &'a [Lowering1],
        order: &'a [usize],
        cut: &'a Cut,
        needs: &'a Needs,
        steps: &[Placed],
    ) -> Self {
        let mut storage = Storage::new(flow, &aliases(flow, lowered));
        if compiler.options.in_place {
            merge_in_place(compiler, flow, lowered, order, &mut storage);
        }
        let mut life: HashMap<ValueId, Life> = HashMap::new();
        for (step, &n) in order.iter().enumerate() {
            if matches!(lowered[n].work, NodeWork::Alias) {
                continue;
            }
            let by_value = flow.nodes[n].op.value_inputs();
            let node = &flow.nodes[n];
            let reads = node.inputs.iter().enumerate().filter(|(i, _)| !by_value.contains(i));
            for v in reads.filter_map(|(_, v)| *v) {
                life.entry(storage.root(v)).or_default().touch(step as u32, lowered[n].reads_on());
            }
            for &v in &node.outputs {
                life.entry(storage.root(v)).or_default().touch(step as u32, lowered[n].device);
            }
        }
        // Copies into outputs run after everything else.
        let copied_on = copied_on(flow, lowered, &storage, compiler.options.device);
        for (&(_, v), &device) in storage.copies.iter().zip(&copied_on) {
            life.entry(storage.root(v)).or_default().touch(order.len() as u32, device);
        }
        let touched = steps_of(order, flow, steps, &|v| storage.root(v));
        Emitter {
            compiler,
            flow,
            lowered,
            order,
            cut,
            needs,
            storage,
            copied_on,
            touched,
            life,
            placed: HashMap::new(),
            scratch: HashMap::new(),
            arenas: Vec::new(),
            kernels: Vec::new(),
            kernel_index: HashMap::new(),
            constants: Vec::new(),
            constant_index: HashMap::new(),
        }
    }

    /// Decides the offsets of everything that lies in an arena.
    fn pack(&mut self) {
        enum Owner {
            Class(ValueId),
            Scratch(usize, usize),
        }
        let limits = self.compiler.devices.iter().map(|d| &d.limits);
        let alignment = limits
            .map(|l| l.argument_alignment.max(l.texel_alignment).max(l.non_coherent_atom))
            .fold(64, u64::max)
            .next_power_of_two();
        let images = needs(self.flow, &self.storage, |root| {
            let device = self.life.get(&root)?.devices.first()?;
            self.compiler.devices.get(*device as usize)?.images.clone()
        });
        let mut requests: BTreeMap<Domain, Vec<(Owner, Request)>> = BTreeMap::new();
        let mut roots: Vec<ValueId> = self.life.keys().copied().collect();
        roots.sort_unstable();
        let mut bytes_of: HashMap<ValueId, usize> = HashMap::new();
        for v in 0..self.flow.values.len() {
            let bytes = self.flow.values[v].info.bytes();
            let most = bytes_of.entry(self.storage.root(v)).or_default();
            *most = (*most).max(bytes);
        }
        for root in roots {
            let life = &self.life[&root];
            if self.storage.backing(root) != Backing::Arena || !life.touched {
                continue;
            }
            let domain = match life.devices.iter().collect::<Vec<_>>()[..] {
                [device] => Domain::Device(*device),
                _ => Domain::Host,
            };
            // Whole 16-byte texels, so that a view over the range may be rounded up.
            let bytes = (bytes_of.get(&root).copied().unwrap_or(0) as u64).next_multiple_of(16);
            let (image_bytes, image_alignment) = images.get(&root).copied().unwrap_or_default();
            let (bytes, alignment) = (bytes.max(image_bytes), alignment.max(image_alignment));
            let (mut first, mut last) = (life.first, life.last);
            if domain == Domain::Host
                && let Some(beside) = self.touched.get(&root).and_then(|t| self.cut.lifetime(t))
            {
                (first, last) = (first.min(beside.0), last.max(beside.1));
            }
            let request = Request { bytes, alignment, first, last };
            requests.entry(domain).or_default().push((Owner::Class(root), request));
        }
        for (step, &n) in self.order.iter().enumerate() {
            if let NodeWork::Device(lowered) = &self.lowered[n].work {
                for (i, &bytes) in lowered.scratch.iter().enumerate() {
                    let (first, last) = (step as u32, step as u32);
                    let request =
                        Request { bytes: (bytes as u64).next_multiple_of(16), alignment, first, last };
                    let domain = Domain::Device(self.lowered[n].device);
                    requests.entry(domain).or_default().push((Owner::Scratch(n, i), request));
                }
            }
        }
        for (domain, owned) in requests {
            let arena = self.arenas.len() as u32;
            let raw: Vec<Request> = owned.iter().map(|(_, r)| *r).collect();
            let packing = pack(&raw);
            for ((owner, _), offset) in owned.iter().zip(&packing.offsets) {
                match owner {
                    Owner::Class(root) => {
                        self.placed.insert(*root, (arena, *offset));
                    }
                    Owner::Scratch(n, i) => {
                        let ranges = self.scratch.entry(*n).or_default();
                        ranges.resize(ranges.len().max(i + 1), (arena, 0));
                        ranges[*i] = (arena, *offset);
                    }
                }
            }
            self.arenas.push(PlannedArena {
                domain,
                bytes: packing.peak,
                lower_bound: packing.lower_bound,
                tvm_bytes: tvm_rule(&raw).aligned_total(&raw),
                naive_bytes: raw.iter().map(|r| r.bytes).fold(0, u64::saturating_add),
                ranges: raw.len(),
            });
        }
    }

    fn emit(mut self) -> Result<Plan, PlanError> {
        let mut segments: Vec<Segment> = Vec::new();
        let mut nodes = Vec::new();
        let mut segment_of: Vec<Option<u32>> = vec![None; self.lowered.len()];
        let mut cut = None;
        for (step, &n) in self.order.iter().enumerate() {
            let (device, node) = (self.lowered[n].device, nodes.len() as u32);
            let works = self.node_works(n)?;
            let flow_node = &self.flow.nodes[n];
            let cx = self.flow.cx(n);
            let alias = matches!(self.lowered[n].work, NodeWork::Alias);
            nodes.push(NodeReport {
                name: flow_node.name.clone(),
                op: flow_node.op.name(),
                device,
                fallback: self.lowered[n].fallback.clone(),
                cost: if alias { Cost::default() } else { flow_node.op.cost(&cx) },
                commands: works.len() as u32,
                output: cx.outputs().first().map(ToString::to_string).unwrap_or_default(),
            });
            if works.is_empty() {
                continue;
            }
            if cut.replace(self.cut.of[step]) != Some(self.cut.of[step]) {
                let by_session = matches!(self.lowered[n].lane(), Lane::Session(_));
                segments.push(Segment { by_session, ..Segment::new(device) });
            }
            push_commands(&mut segments, works, node, self.joined(n));
            segment_of[n] = Some(segments.len() as u32 - 1);
            self.order_by_control(n, &segment_of, &mut segments);
        }
        let copies = self.storage.copies.clone().into_iter().zip(self.copied_on.clone());
        for ((o, v), device) in copies {
            let info = &self.flow.values[v].info;
            let bytes = info.bytes() as u64;
            let node = nodes.len() as u32;
            let mut works = Vec::new();
            if bytes > 0 {
                let src = self.loc(v, device)?;
                works.push(Work::Copy { src, dst: Loc { place: Place::Output(o), offset: 0, bytes } });
            }
            nodes.push(NodeReport {
                name: self.flow.outputs[o as usize].0.clone(),
                op: "Copy",
                device,
                fallback: None,
                cost: Cost { flops: 0, bytes: 2 * bytes },
                commands: works.len() as u32,
                output: info.to_string(),
            });
            if !works.is_empty() && segments.last().is_none_or(|s| s.lane() != Lane::Device(device)) {
                segments.push(Segment::new(device));
            }
            push_commands(&mut segments, works, node, None);
        }
        let total = |f: fn(&Cost) -> u64| nodes.iter().map(|n: &NodeReport| f(&n.cost)).sum();
        let report = PlanReport {
            cost: Cost { flops: total(|c| c.flops), bytes: total(|c| c.bytes) },
            commands: segments.iter().map(|s| s.commands.len()).sum(),
            constant_bytes: self.constants.iter().map(PlannedConstant::bytes).sum(),
            arenas: self.arenas.clone(),
            nodes,
            ..PlanReport::default()
        };
        let images = self.images();
        let flow = self.flow;
        let inputs = flow.inputs.iter().enumerate().map(|(i, &v)| {
            let value = &flow.values[v];
            (Place::Input(i as u32), value.name.clone(), value.info.clone())
        });
        let outputs = flow
            .outputs
            .iter()
            .enumerate()
            .map(|(o, (name, v))| (Place::Output(o as u32), name.clone(), flow.values[*v].info.clone()));
        let mut inputs = ios(&segments, &report.nodes, inputs.chain(outputs));
        let outputs = inputs.split_off(flow.inputs.len());
        Ok(Plan {
            inputs,
            outputs,
            kernels: self.kernels,
            constants: self.constants,
            arenas: self.arenas,
            images,
            segments,
            report,
        })
    }

    /// Puts the commands of node `n`, the last ones there are, behind what control dependencies name.
    fn order_by_control(&self, n: usize, segment_of: &[Option<u32>], segments: &mut [Segment]) {
        let (Some(at), Some(segment)) = (segment_of[n], segments.last_mut()) else { return };
        let node = segment.commands.last().map_or(0, |c| c.node);
        for before in self.needs.control[n].iter().filter_map(|&dep| segment_of[dep]) {
            if before != at {
                segment.after.insert(before);
            } else if let Some(first) =
                segment.commands.iter_mut().rev().take_while(|c| c.node == node).last()
            {
                first.ordered = true;
            }
        }
    }

    fn joined(&self, n: usize) -> Option<&'a BTreeSet<usize>> {
        match &self.lowered[n].work {
            NodeWork::Device(lowered) => Some(&lowered.joined),
            _ => None,
        }
    }

    fn node_works(&mut self, n: usize) -> Result<Vec<Work>, PlanError> {
        let lowered = self.lowered;
        let device = lowered[n].device;
        match &lowered[n].work {
            NodeWork::Alias => Ok(Vec::new()),
            &NodeWork::Session { from } => {
                let node = &self.flow.nodes[n];
                let (Some(&Some(source)), Some(&to)) = (node.inputs.first(), node.outputs.first()) else {
                    return Ok(Vec::new());
                };
                let (src, dst) = (self.loc(source, from)?, self.loc(to, device)?);
                Ok(if dst.bytes == 0 { Vec::new() } else { vec![Work::Move { src, from, dst }] })
            }
            NodeWork::Native(native) => {
                let node = &self.flow.nodes[n];
                let by_value = node.op.value_inputs();
                let mut args = Vec::with_capacity(node.inputs.len() + node.outputs.len());
                let mut images = Vec::new();
                let nearest = Filter::Nearest;
                for (i, input) in node.inputs.iter().enumerate() {
                    let Some(v) = input.filter(|_| !by_value.contains(&i)) else {
                        args.push(None);
                        continue;
                    };
                    if let Some(packed) = native.packed(i) {
                        args.push(Some((self.packed(device, node, packed), Access::KERNEL_READ)));
                        continue;
                    }
                    let loc = match self.image_arg(Some(v), device, (i, nearest), &mut images) {
                        Some(loc) => loc,
                        None => self.loc(v, device)?,
                    };
                    args.push(Some((loc, Access::KERNEL_READ)));
                }
                for &v in &node.outputs {
                    let loc = match self.image_arg(Some(v), device, (args.len(), nearest), &mut images) {
                        Some(loc) => loc,
                        None => self.loc(v, device)?,
                    };
                    args.push(Some((loc, Access::KERNEL_WRITE)));
                }
                let code = KernelCode::Native(native.kernel.clone());
                self.kernels.push(PlannedKernel { device, code, spec: Vec::new() });
                let kernel = (self.kernels.len() - 1) as u32;
                Ok(vec![Work::Dispatch { kernel, args, params: Vec::new(), groups: [1; 3], images }])
            }
            NodeWork::Device(l) => l.steps.iter().map(|step| self.step(n, device, l, step)).collect(),
        }
    }

    fn step(&mut self, n: usize, device: u32, l: &Lowered, step: &Step) -> Result<Work, PlanError> {
        match step {
            Step::Dispatch { kernel, spec, args, params, groups } => {
                let access: Vec<Access> = match kernel {
                    StepKernel::Table(id) => id.info().bindings.iter().map(|b| touch(b.access)).collect(),
                    StepKernel::Module(source) => source.accesses(),
                };
                let mut images = Vec::new();
                let args = args
                    .iter()
                    .zip(access)
                    .enumerate()
                    .map(|(at, (&arg, access))| {
                        // An argument that is not used is bound all the same, to a few bytes of nobody's.
                        let nothing = Loc { place: Place::Arena(u32::MAX), offset: 0, bytes: 0 };
                        let node = &self.flow.nodes[n];
                        let image = match arg {
                            Operand::Image(i, filter) => {
                                Some((node.inputs.get(i).copied().flatten(), filter))
                            }
                            Operand::ImageOutput(o) => Some((node.outputs.get(o).copied(), Filter::Nearest)),
                            _ => None,
                        };
                        let loc = match image {
                            Some((v, filter)) => self.image_arg(v, device, (at, filter), &mut images),
                            None => self.operand(n, device, l, arg)?,
                        };
                        Ok(Some((loc.unwrap_or(nothing), access)))
                    })
                    .collect::<Result<_, PlanError>>()?;
                let kernel = self.kernel(device, kernel, spec);
                Ok(Work::Dispatch { kernel, args, params: params.clone(), groups: *groups, images })
            }
            Step::Copy { src, dst, bytes } => {
                let src = self.part(n, device, l, *src, *bytes)?;
                Ok(Work::Copy { src, dst: self.part(n, device, l, *dst, *bytes)? })
            }
            Step::Fill { dst, value } => {
                let mut dst = self.part(n, device, l, (*dst, 0), operand_bytes(*dst, l, &self.flow.cx(n)))?;
                let node = &self.flow.nodes[n];
                if !dst.bytes.is_multiple_of(4) && matches!(dst.place, Place::Output(_)) {
                    // Behind an application's tensor is its memory.
                    let what = OpError::unsupported("fills a part of a word");
                    return Err(node_error(&node.name, node.op.as_ref(), what));
                }
                dst.bytes = dst.bytes.next_multiple_of(4);
                Ok(Work::Fill { dst, value: *value })
            }
        }
    }

    fn part(
        &mut self,
        n: usize,
        device: u32,
        l: &Lowered,
        (operand, offset): (Operand, u64),
        bytes: u64,
    ) -> Result<Loc, PlanError> {
        let node = &self.flow.nodes[n];
        let broken = |what: &str| node_error(&node.name, node.op.as_ref(), OpError::unsupported(what));
        let loc = self.operand(n, device, l, operand)?.ok_or_else(|| broken("copies an absent operand"))?;
        if offset.checked_add(bytes).is_none_or(|end| end > loc.bytes) {
            return Err(broken("copies beyond the end of an operand"));
        }
        Ok(Loc { place: loc.place, offset: loc.offset + offset, bytes })
    }

    fn operand(
        &mut self,
        n: usize,
        device: u32,
        l: &Lowered,
        operand: Operand,
    ) -> Result<Option<Loc>, PlanError> {
        let node = &self.flow.nodes[n];
        Ok(match operand {
            Operand::Input(i) | Operand::Image(i, _) => match node.inputs.get(i).copied().flatten() {
                Some(v) => Some(self.loc(v, device)?),
                None => None,
            },
            Operand::Output(i) | Operand::ImageOutput(i) => match node.outputs.get(i) {
                Some(&v) => Some(self.loc(v, device)?),
                None => None,
            },
            Operand::Scratch(i) => {
                let at = self.scratch.get(&n).and_then(|s| s.get(i)).copied();
                let bytes = l.scratch.get(i).copied().unwrap_or(0) as u64;
                at.map(|(arena, offset)| Loc { place: Place::Arena(arena), offset, bytes })
            }
            Operand::Packed(i) => l.packed.get(i).map(|p| self.packed(device, node, p)),
            Operand::Unused => None,
        })
    }

    /// A constant of `node` in a packed layout.
    fn packed(&mut self, device: u32, node: &FlowNode, packed: &Packed) -> Loc {
        let (name, source) = (node.name.clone(), packed.source.clone());
        let index = self.constant(device, name, source, Some(packed.clone()), None);
        Loc { place: Place::Constant(index), offset: 0, bytes: packed.bytes as u64 }
    }

    /// Where value `v` lies for `device`.
    fn loc(&mut self, v: ValueId, device: u32) -> Result<Loc, PlanError> {
        let value = &self.flow.values[v];
        // Rows with gaps between them are more bytes than the tensor.
        let image = self.flow.images.get(&v).map_or(0, ImageDesc::bytes);
        let bytes = (value.info.bytes() as u64).max(image);
        let root = self.storage.root(v);
        let (place, offset) = match self.storage.backing(v) {
            Backing::Input(i) => (Place::Input(i), 0),
            Backing::Output(o) => (Place::Output(o), 0),
            Backing::Constant => {
                let missing = || PlanError::MissingInput { name: value.name.clone() };
                let tensor = self.flow.values[root].constant.clone().ok_or_else(missing)?;
                (Place::Constant(self.constant(device, value.name.clone(), tensor, None, None)), 0)
            }
            Backing::Arena => match self.placed.get(&root) {
                Some(&(arena, offset)) => (Place::Arena(arena), offset),
                None => return Err(PlanError::MissingInput { name: value.name.clone() }),
            },
        };
        Ok(Loc { place, offset, bytes })
    }

    pub(super) fn constant(
        &mut self,
        device: u32,
        name: String,
        tensor: Tensor,
        packed: Option<Packed>,
        image: Option<(ImageDesc, u64)>,
    ) -> u32 {
        let key = (device, tensor.identity(), packed.as_ref().map(|p| p.key), image.map(|(image, _)| image));
        let next = self.constants.len() as u32;
        let index = *self.constant_index.entry(key).or_insert(next);
        if index == next {
            self.constants.push(PlannedConstant { device, name, tensor, packed, image });
        }
        index
    }

    fn kernel(&mut self, device: u32, kernel: &StepKernel, spec: &[(u32, u32)]) -> u32 {
        let next = self.kernels.len() as u32;
        let code = match kernel {
            StepKernel::Table(id) => CodeKey::Table(*id),
            StepKernel::Module(source) => CodeKey::Module(Arc::as_ptr(source)),
        };
        let index = *self.kernel_index.entry((device, code, spec.to_vec())).or_insert(next);
        if index == next {
            let code = KernelCode::Device(kernel.clone());
            self.kernels.push(PlannedKernel { device, code, spec: spec.to_vec() });
        }
        index
    }
}

/// For each output that is written by a copy the device that copies: the one that made it.
fn copied_on(flow: &Flow, lowered: &[Lowering1], storage: &Storage, otherwise: u32) -> Vec<u32> {
    if storage.copies.is_empty() {
        return Vec::new();
    }
    let index = FlowIndex::new(flow);
    let device = |v: ValueId| Some(lowered.get(index.producer(storage.root(v))?)?.device);
    storage.copies.iter().map(|&(_, v)| device(v).unwrap_or(otherwise)).collect()
}

/// Adds commands to the last segment.
fn push_commands(segments: &mut [Segment], works: Vec<Work>, node: u32, joined: Option<&BTreeSet<usize>>) {
    if let Some(segment) = segments.last_mut() {
        segment.commands.extend(works.into_iter().enumerate().map(|(i, work)| {
            let joined = joined.is_some_and(|j| j.contains(&i));
            PlannedCommand { barrier: None, work, node, joined, ordered: false }
        }));
    }
}
