//! Makes a plan: places, lowers, decides storage, packs arenas, inserts barriers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::arena::{Request, pack, tvm_rule};
use super::flow::{Flow, FlowNode, ValueId, node_error};
use super::half::{HalfConstants, Precision};
use super::report::{NodeReport, PlanReport};
use super::storage::{Backing, Life, Storage};
use super::{
    Domain, KernelCode, Loc, Place, Plan, PlanError, PlannedArena, PlannedCommand, PlannedConstant,
    PlannedIo, PlannedKernel, Segment, Work, insert_barriers,
};
use crate::backend::DeviceInfo;
use crate::graph::{Graph, Tensor, TensorIdentity, TensorInfo};
use crate::kernel::{KernelId, KernelSource, NativeKernel, touch};
use crate::memory::coherency::Access;
use crate::ops::pointwise::Programs;
use crate::ops::{Cost, Lowered, Lowering, OpCx, OpError, Operand, PackKey, Packed, Step, StepKernel};

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
    /// Constants in `float16`, shared by all plans made with these options.
    pub halves: Arc<HalfConstants>,
    /// Devices by node name; beats everything else.
    pub place_nodes: BTreeMap<String, u32>,
    /// Devices by operator name; beats the graph.
    pub place_ops: BTreeMap<String, u32>,
    /// Where nodes go that nobody places.
    pub device: u32,
    /// The device of each node of the [`Draft`] that was made with the same options; those of nodes that the
    /// options above or the graph place are not read.
    pub assigned: Option<Arc<[u32]>>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        PlanOptions {
            fuse: true,
            chains: true,
            in_place: true,
            fallback: true,
            precision: Precision::F32,
            halves: Arc::default(),
            place_nodes: BTreeMap::new(),
            place_ops: BTreeMap::new(),
            device: 0,
            assigned: None,
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

enum NodeWork {
    Alias,
    Native(NativeKernel),
    Device(Lowered),
}

struct Lowering1 {
    device: u32,
    fallback: Option<String>,
    work: NodeWork,
}

impl Compiler<'_> {
    /// The plan for inputs of types and shapes `infos`; `values` are inputs given by value.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn compile(&self, infos: &[TensorInfo], values: &BTreeMap<usize, Tensor>) -> Result<Plan, PlanError> {
        let (flow, fused, halved) = self.flow(infos, values)?;
        let lowered: Vec<Lowering1> =
            (0..flow.nodes.len()).map(|n| self.lower(&flow, n)).collect::<Result<_, _>>()?;
        let order = schedule(&flow, &lowered);
        let mut emit = Emitter::new(self, &flow, &lowered, &order);
        emit.pack();
        let mut plan = emit.emit()?;
        plan.report.graph_nodes = self.graph.nodes().len();
        plan.report.fused = fused;
        plan.report.halved = halved;
        insert_barriers(&mut plan, self.devices, &|place| (place, 0));
        plan.report.barriers = plan.segments.iter().map(|s| s.barriers().count()).sum();
        Ok(plan)
    }

    pub(super) fn wanted_device(&self, node: &FlowNode) -> u32 {
        node.device.unwrap_or(self.options.device)
    }

    fn lower(&self, flow: &Flow, n: usize) -> Result<Lowering1, PlanError> {
        let node = &flow.nodes[n];
        let wanted = self.wanted_device(node);
        let cx = flow.cx(n);
        if is_alias(node, &cx) {
            return Ok(Lowering1 { device: wanted, fallback: None, work: NodeWork::Alias });
        }
        let native = self.devices.iter().position(|d| d.native).map(|d| d as u32);
        let mut candidates = vec![wanted];
        if self.options.fallback {
            candidates.extend(native.filter(|d| *d != wanted));
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
            NodeWork::Native(_) => 1,
            NodeWork::Device(lowered) => lowered.steps.len() as u32,
        })
    }

    fn lower_on(&self, node: &FlowNode, cx: &OpCx, device: u32) -> Result<NodeWork, OpError> {
        let info = self.devices[device as usize];
        if info.native {
            return Ok(NodeWork::Native(node.op.cpu(cx)?));
        }
        if cx.outputs().iter().all(|o| o.bytes() == 0) {
            return Ok(NodeWork::Device(Lowered::default()));
        }
        let mut lowering = Lowering::new(info);
        node.op.gpu(cx, &mut lowering)?;
        let lowered = lowering.finish();
        check_limits(&lowered, cx, info)?;
        Ok(NodeWork::Device(lowered))
    }
}

/// Whether nothing runs for a node: its output is an input's bytes.
pub(super) fn is_alias(node: &FlowNode, cx: &OpCx) -> bool {
    node.op.alias(cx).is_some_and(|i| node.inputs.get(i).copied().flatten().is_some())
}

/// Every range that a dispatch binds must fit the device's longest argument.
fn check_limits(lowered: &Lowered, cx: &OpCx, info: &DeviceInfo) -> Result<(), OpError> {
    let limit = info.limits.max_argument_bytes;
    for step in &lowered.steps {
        let Step::Dispatch { args, .. } = step else { continue };
        for arg in args {
            let bytes = operand_bytes(*arg, lowered, cx);
            if bytes > limit {
                return Err(OpError::unsupported(format!(
                    "a tensor of {bytes} bytes is above the device's longest kernel argument of {limit}"
                )));
            }
        }
    }
    Ok(())
}

fn operand_bytes(operand: Operand, lowered: &Lowered, cx: &OpCx) -> u64 {
    let bytes = match operand {
        Operand::Input(i) => cx.input_opt(i).map_or(0, TensorInfo::bytes),
        Operand::Output(i) => cx.outputs().get(i).map_or(0, TensorInfo::bytes),
        Operand::Scratch(i) => lowered.scratch.get(i).copied().unwrap_or(0),
        Operand::Packed(i) => lowered.packed.get(i).map_or(0, |p| p.bytes),
        Operand::Unused => 0,
    };
    bytes as u64
}

/// An order of the nodes in which producers come first and the device changes seldom.
fn schedule(flow: &Flow, lowered: &[Lowering1]) -> Vec<usize> {
    let n = flow.nodes.len();
    let devices: BTreeSet<u32> = lowered.iter().map(|l| l.device).collect();
    if devices.len() < 2 {
        return (0..n).collect();
    }
    let mut producer = vec![usize::MAX; flow.values.len()];
    for (i, node) in flow.nodes.iter().enumerate() {
        node.outputs.iter().for_each(|&v| producer[v] = i);
    }
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); n];
    let mut waits = vec![0usize; n];
    for (i, node) in flow.nodes.iter().enumerate() {
        let reads = node.inputs.iter().flatten().map(|&v| producer[v]).filter(|p| *p != usize::MAX);
        let before: BTreeSet<usize> = reads.chain(node.control_deps.iter().copied()).collect();
        waits[i] = before.len();
        before.into_iter().for_each(|b| users[b].push(i));
    }
    let mut ready: BTreeSet<(u32, usize)> =
        (0..n).filter(|&i| waits[i] == 0).map(|i| (lowered[i].device, i)).collect();
    let mut order = Vec::with_capacity(n);
    let mut current = ready.first().map_or(0, |r| r.0);
    while let Some(&next) = ready.range((current, 0)..=(current, usize::MAX)).next().or(ready.first()) {
        ready.remove(&next);
        current = next.0;
        order.push(next.1);
        for &u in &users[next.1] {
            waits[u] -= 1;
            if waits[u] == 0 {
                ready.insert((lowered[u].device, u));
            }
        }
    }
    order
}

struct Emitter<'a> {
    compiler: &'a Compiler<'a>,
    flow: &'a Flow,
    lowered: &'a [Lowering1],
    order: &'a [usize],
    storage: Storage,
    life: HashMap<ValueId, Life>,
    /// Arena and offset of every class that lies in one.
    placed: HashMap<ValueId, (u32, u64)>,
    /// Arena and offset of each node's scratch ranges.
    scratch: HashMap<usize, Vec<(u32, u64)>>,
    arenas: Vec<PlannedArena>,
    kernels: Vec<PlannedKernel>,
    kernel_index: HashMap<KernelKey, u32>,
    constants: Vec<PlannedConstant>,
    constant_index: HashMap<(u32, TensorIdentity, Option<PackKey>), u32>,
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
    fn new(compiler: &'a Compiler<'a>, flow: &'a Flow, lowered: &'a [Lowering1], order: &'a [usize]) -> Self {
        let alias: Vec<Option<usize>> = (0..flow.nodes.len())
            .map(|n| match lowered[n].work {
                NodeWork::Alias => flow.nodes[n].op.alias(&flow.cx(n)),
                _ => None,
            })
            .collect();
        let mut storage = Storage::new(flow, &alias);
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
            for v in reads.filter_map(|(_, v)| *v).chain(node.outputs.iter().copied()) {
                life.entry(storage.root(v)).or_default().touch(step as u32, lowered[n].device);
            }
        }
        // Copies into outputs run after everything else, where nodes go that nobody places.
        for &(_, v) in &storage.copies {
            life.entry(storage.root(v)).or_default().touch(order.len() as u32, compiler.options.device);
        }
        Emitter {
            compiler,
            flow,
            lowered,
            order,
            storage,
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
            let request = Request { bytes, alignment, first: life.first, last: life.last };
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
                tvm_bytes: tvm_rule(&raw).total(),
                naive_bytes: raw.iter().map(|r| r.bytes).sum(),
                ranges: raw.len(),
            });
        }
    }

    fn emit(mut self) -> Result<Plan, PlanError> {
        let mut segments: Vec<Segment> = Vec::new();
        let mut nodes = Vec::new();
        for &n in self.order {
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
            push_commands(&mut segments, device, works, node, self.joined(n));
        }
        let device = self.compiler.options.device;
        for (o, v) in self.storage.copies.clone() {
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
            push_commands(&mut segments, device, works, node, None);
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
        let flow = self.flow;
        let inputs = flow.inputs.iter().enumerate().map(|(i, &v)| {
            let value = &flow.values[v];
            io(&segments, Place::Input(i as u32), value.name.clone(), value.info.clone())
        });
        let outputs = flow.outputs.iter().enumerate().map(|(o, (name, v))| {
            io(&segments, Place::Output(o as u32), name.clone(), flow.values[*v].info.clone())
        });
        Ok(Plan {
            inputs: inputs.collect(),
            outputs: outputs.collect(),
            kernels: self.kernels,
            constants: self.constants,
            arenas: self.arenas,
            segments,
            report,
        })
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
            NodeWork::Native(kernel) => {
                let node = &self.flow.nodes[n];
                let by_value = node.op.value_inputs();
                let mut args = Vec::with_capacity(node.inputs.len() + node.outputs.len());
                for (i, input) in node.inputs.iter().enumerate() {
                    args.push(match input {
                        Some(v) if !by_value.contains(&i) => {
                            Some((self.loc(*v, device)?, Access::KERNEL_READ))
                        }
                        _ => None,
                    });
                }
                for &v in &node.outputs {
                    args.push(Some((self.loc(v, device)?, Access::KERNEL_WRITE)));
                }
                let code = KernelCode::Native(kernel.clone());
                self.kernels.push(PlannedKernel { device, code, spec: Vec::new() });
                let kernel = (self.kernels.len() - 1) as u32;
                Ok(vec![Work::Dispatch { kernel, args, params: Vec::new(), groups: [1; 3] }])
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
                let args = args
                    .iter()
                    .zip(access)
                    .map(|(&arg, access)| {
                        // An argument that is not used is bound all the same, to a few bytes of nobody's.
                        let nothing = Loc { place: Place::Arena(u32::MAX), offset: 0, bytes: 0 };
                        Ok(Some((self.operand(n, device, l, arg)?.unwrap_or(nothing), access)))
                    })
                    .collect::<Result<_, PlanError>>()?;
                let kernel = self.kernel(device, kernel, spec);
                Ok(Work::Dispatch { kernel, args, params: params.clone(), groups: *groups })
            }
            Step::Copy { src, dst, bytes } => {
                let src = self.part(n, device, l, *src, *bytes)?;
                Ok(Work::Copy { src, dst: self.part(n, device, l, *dst, *bytes)? })
            }
            Step::Fill { dst, value } => {
                let mut dst = self.part(n, device, l, (*dst, 0), operand_bytes(*dst, l, &self.flow.cx(n)))?;
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
            Operand::Input(i) => match node.inputs.get(i).copied().flatten() {
                Some(v) => Some(self.loc(v, device)?),
                None => None,
            },
            Operand::Output(i) => match node.outputs.get(i) {
                Some(&v) => Some(self.loc(v, device)?),
                None => None,
            },
            Operand::Scratch(i) => {
                let at = self.scratch.get(&n).and_then(|s| s.get(i)).copied();
                let bytes = l.scratch.get(i).copied().unwrap_or(0) as u64;
                at.map(|(arena, offset)| Loc { place: Place::Arena(arena), offset, bytes })
            }
            Operand::Packed(i) => l.packed.get(i).map(|p| {
                let name = node.name.clone();
                let index = self.constant(device, name, p.source.clone(), Some(p.clone()));
                Loc { place: Place::Constant(index), offset: 0, bytes: p.bytes as u64 }
            }),
            Operand::Unused => None,
        })
    }

    /// Where value `v` lies for `device`.
    fn loc(&mut self, v: ValueId, device: u32) -> Result<Loc, PlanError> {
        let value = &self.flow.values[v];
        let bytes = value.info.bytes() as u64;
        let root = self.storage.root(v);
        let (place, offset) = match self.storage.backing(v) {
            Backing::Input(i) => (Place::Input(i), 0),
            Backing::Output(o) => (Place::Output(o), 0),
            Backing::Constant => {
                let missing = || PlanError::MissingInput { name: value.name.clone() };
                let tensor = self.flow.values[root].constant.clone().ok_or_else(missing)?;
                (Place::Constant(self.constant(device, value.name.clone(), tensor, None)), 0)
            }
            Backing::Arena => match self.placed.get(&root) {
                Some(&(arena, offset)) => (Place::Arena(arena), offset),
                None => return Err(PlanError::MissingInput { name: value.name.clone() }),
            },
        };
        Ok(Loc { place, offset, bytes })
    }

    fn constant(&mut self, device: u32, name: String, tensor: Tensor, packed: Option<Packed>) -> u32 {
        let key = (device, tensor.identity(), packed.as_ref().map(|p| p.key));
        let next = self.constants.len() as u32;
        let index = *self.constant_index.entry(key).or_insert(next);
        if index == next {
            self.constants.push(PlannedConstant { device, name, tensor, packed });
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

/// Lets outputs take over the bytes of inputs that die with the node.
fn merge_in_place(
    compiler: &Compiler<'_>,
    flow: &Flow,
    lowered: &[Lowering1],
    order: &[usize],
    storage: &mut Storage,
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
        if !matches!(lowered[n].work, NodeWork::Device(_)) || compiler.devices[device as usize].native {
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
        if devices.get(&from) != devices.get(&to) {
            continue;
        }
        storage.merge(source, node.outputs[0]);
        let last = last_use.get(&to).copied().unwrap_or(step);
        last_use.insert(from, last);
    }
}

fn push_commands(
    segments: &mut Vec<Segment>,
    device: u32,
    works: Vec<Work>,
    node: u32,
    joined: Option<&BTreeSet<usize>>,
) {
    if works.is_empty() {
        return;
    }
    if segments.last().is_none_or(|s| s.device != device) {
        segments.push(Segment::new(device));
    }
    if let Some(segment) = segments.last_mut() {
        segment.commands.extend(works.into_iter().enumerate().map(|(i, work)| {
            let joined = joined.is_some_and(|j| j.contains(&i));
            PlannedCommand { barrier: None, work, node, joined }
        }));
    }
}

/// Who touches the memory bound at `place`, and when.
fn io(segments: &[Segment], place: Place, name: String, info: TensorInfo) -> PlannedIo {
    let mut io = PlannedIo {
        name,
        info,
        devices: Vec::new(),
        reads: 0,
        writes: 0,
        first: (u32::MAX, 0),
        last: (0, 0),
    };
    for (s, segment) in segments.iter().enumerate() {
        for (c, command) in segment.commands.iter().enumerate() {
            let mut touched = false;
            command.work.for_each_touch(&mut |loc, access| {
                if loc.place == place {
                    touched = true;
                    io.reads += u32::from(!access.reads().is_empty());
                    io.writes += u32::from(!access.writes().is_empty());
                }
            });
            if touched {
                let at = (s as u32, c as u32);
                io.first = io.first.min(at);
                io.last = io.last.max(at);
                if let Err(i) = io.devices.binary_search(&segment.device) {
                    io.devices.insert(i, segment.device);
                }
            }
        }
    }
    io
}
