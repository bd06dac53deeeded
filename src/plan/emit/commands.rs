//! The commands of one node, and the locations of its operands.

use super::Emitter;
use crate::kernel::touch;
use crate::memory::coherency::Access;
use crate::memory::image::{Filter, ImageDesc, ImageView};
use crate::ops::{Lowered, Native, OpError, Operand, Packed, PassedBytes, Step, StepKernel};
use crate::plan::alias_classes::Backing;
use crate::plan::flow::{FlowNode, ValueId, node_error};
use crate::plan::lowering::NodeWork;
use crate::plan::operands::operand_bytes;
use crate::plan::{Location, PlanError, Space, Work};

/// An argument of a dispatch.
type Arg = Option<(Location, Access)>;

/// Whether `step` moves those bytes.
fn moves(step: &Step, passed: &PassedBytes) -> bool {
    let ends = [Operand::Input(passed.input), Operand::Output(passed.output)];
    match step {
        Step::Dispatch { args, .. } => ends.iter().all(|end| args.contains(end)),
        Step::Copy { src, dst, .. } => [src.0, dst.0] == ends,
        Step::Fill { .. } => false,
    }
}

impl Emitter<'_> {
    /// The commands of node `n`, each with the step of its lowering.
    pub(super) fn works(&mut self, n: usize) -> Result<Vec<(usize, Work)>, PlanError> {
        let lowered = self.lowered;
        let device = lowered.nodes[n].device;
        match &lowered.nodes[n].work {
            NodeWork::Alias => Ok(Vec::new()),
            &NodeWork::Session { from } => {
                let node = &lowered.flow.nodes[n];
                let (Some(&Some(source)), Some(&to)) = (node.inputs.first(), node.outputs.first()) else {
                    return Ok(Vec::new());
                };
                let (src, dst) = (self.loc(source, from)?, self.loc(to, device)?);
                Ok(if dst.bytes == 0 { Vec::new() } else { vec![(0, Work::Move { src, from, dst })] })
            }
            // Of a native function all is passed on, or nothing.
            NodeWork::Native(_) if self.memory.overlaid.contains_key(&n) => Ok(Vec::new()),
            NodeWork::Native(native) => Ok(vec![(0, self.call(n, device, native)?)]),
            NodeWork::Device(l) => {
                let passed = self.memory.overlaid.get(&n).map_or(&[][..], Vec::as_slice);
                let steps =
                    l.steps.iter().enumerate().filter(|(_, step)| !passed.iter().any(|p| moves(step, p)));
                // Whoever has the counters leaves them zero.
                let counters = self.memory.counters.get(&device).filter(|counters| counters.first == n);
                let fill =
                    counters.map(|counters| Ok((0, Work::Fill { dst: counters.location(), value: 0 })));
                let steps = steps.map(|(i, step)| Ok((i, self.step(n, device, l, step)?)));
                fill.into_iter().chain(steps).collect()
            }
        }
    }

    /// The call of a native function.
    fn call(&mut self, n: usize, device: u32, native: &Native) -> Result<Work, PlanError> {
        let node = &self.lowered.flow.nodes[n];
        let by_value = node.op.value_inputs();
        let mut args: Vec<Arg> = Vec::with_capacity(node.inputs.len() + node.outputs.len());
        let mut images = Vec::new();
        for (i, input) in node.inputs.iter().enumerate() {
            let loc = match (input.filter(|_| !by_value.contains(&i)), native.packed(i)) {
                (None, _) => None,
                (Some(_), Some(packed)) => Some(self.packed(device, node, packed)),
                (Some(v), None) => Some(self.native_arg(v, device, i, &mut images)?),
            };
            args.push(loc.map(|loc| (loc, Access::KERNEL_READ)));
        }
        for (o, &v) in node.outputs.iter().enumerate() {
            let loc = self.native_arg(v, device, args.len(), &mut images)?;
            let earlier = if node.op.updates(o) { Access::KERNEL_READ } else { Access::NONE };
            args.push(Some((loc, Access::KERNEL_WRITE.and(earlier))));
        }
        let kernel = self.kernels.native(device, native.kernel.clone());
        Ok(Work::Dispatch { kernel, args, params: Vec::new(), groups: [1; 3], images })
    }

    /// Argument `index` of a native function: value `v`, through its image where it has one.
    fn native_arg(
        &mut self,
        v: ValueId,
        device: u32,
        index: usize,
        images: &mut Vec<(u32, ImageView)>,
    ) -> Result<Location, PlanError> {
        match self.image_arg(Some(v), device, (index, Filter::Nearest), images) {
            Some(loc) => Ok(loc),
            None => self.loc(v, device),
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
                let args = args.iter().zip(access).enumerate();
                let args = args
                    .map(|(at, (&arg, access))| {
                        Ok(Some((self.dispatch_arg(n, device, l, (at, arg), &mut images)?, access)))
                    })
                    .collect::<Result<Vec<Arg>, PlanError>>()?;
                let kernel = self.kernels.device(device, kernel, spec);
                Ok(Work::Dispatch { kernel, args, params: params.clone(), groups: *groups, images })
            }
            Step::Copy { src, dst, bytes } => {
                let src = self.part(n, device, l, *src, *bytes)?;
                Ok(Work::Copy { src, dst: self.part(n, device, l, *dst, *bytes)? })
            }
            Step::Fill { dst, value } => {
                let flow = &self.lowered.flow;
                let mut dst = self.part(n, device, l, (*dst, 0), operand_bytes(*dst, l, &flow.cx(n)))?;
                let node = &flow.nodes[n];
                if !dst.bytes.is_multiple_of(4) && matches!(dst.space, Space::Output(_)) {
                    // The memory of an application's tensor follows it.
                    let what = OpError::unsupported("fills a part of a word");
                    return Err(node_error(&node.name, node.op.as_ref(), what));
                }
                dst.bytes = dst.bytes.next_multiple_of(4);
                Ok(Work::Fill { dst, value: *value })
            }
        }
    }

    /// Argument `at` of a dispatch.
    fn dispatch_arg(
        &mut self,
        n: usize,
        device: u32,
        l: &Lowered,
        (at, arg): (usize, Operand),
        images: &mut Vec<(u32, ImageView)>,
    ) -> Result<Location, PlanError> {
        let node = &self.lowered.flow.nodes[n];
        let loc = match arg {
            Operand::Image(i, filter) => {
                self.image_arg(node.inputs.get(i).copied().flatten(), device, (at, filter), images)
            }
            Operand::ImageOutput(o) => {
                self.image_arg(node.outputs.get(o).copied(), device, (at, Filter::Nearest), images)
            }
            _ => self.operand(n, device, l, arg)?,
        };
        Ok(loc.unwrap_or(Location { space: Space::Unused, offset: 0, bytes: 0 }))
    }

    fn part(
        &mut self,
        n: usize,
        device: u32,
        l: &Lowered,
        (operand, offset): (Operand, u64),
        bytes: u64,
    ) -> Result<Location, PlanError> {
        let node = &self.lowered.flow.nodes[n];
        let broken = |what: &str| node_error(&node.name, node.op.as_ref(), OpError::unsupported(what));
        let loc = self.operand(n, device, l, operand)?.ok_or_else(|| broken("copies an absent operand"))?;
        if offset.checked_add(bytes).is_none_or(|end| end > loc.bytes) {
            return Err(broken("copies beyond the end of an operand"));
        }
        Ok(Location { space: loc.space, offset: loc.offset + offset, bytes })
    }

    fn operand(
        &mut self,
        n: usize,
        device: u32,
        l: &Lowered,
        operand: Operand,
    ) -> Result<Option<Location>, PlanError> {
        let node = &self.lowered.flow.nodes[n];
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
                let at = self.memory.scratch.get(&n).and_then(|s| s.get(i)).copied();
                let bytes = l.scratch.get(i).copied().unwrap_or(0) as u64;
                at.map(|(arena, offset)| Location { space: Space::Arena(arena), offset, bytes })
            }
            Operand::Counters => self
                .memory
                .counters
                .get(&device)
                .map(|counters| Location { bytes: l.counters as u64, ..counters.location() }),
            Operand::Packed(i) => l.packed.get(i).map(|p| self.packed(device, node, p)),
            Operand::Unused => None,
        })
    }

    /// A constant of `node` in a packed layout.
    fn packed(&mut self, device: u32, node: &FlowNode, packed: &Packed) -> Location {
        let (name, source) = (node.name.clone(), packed.source.clone());
        let index = self.constants.add(device, name, source, Some(packed.clone()), None);
        Location { space: Space::Constant(index), offset: 0, bytes: packed.bytes as u64 }
    }

    /// The location of value `v` on `device`.
    pub(super) fn loc(&mut self, v: ValueId, device: u32) -> Result<Location, PlanError> {
        let (flow, memory) = (&self.lowered.flow, self.memory);
        let value = &flow.values[v];
        // Padded rows take more bytes than the tensor.
        let image = flow.images.get(&v).map_or(0, ImageDesc::bytes);
        let bytes = (value.info.bytes() as u64).max(image);
        let root = memory.classes.root(v);
        let missing = || PlanError::MissingInput { name: value.name.clone() };
        let (space, offset) = match memory.classes.backing(v) {
            Backing::Input(i) => (Space::Input(i), 0),
            Backing::Output(o) => (Space::Output(o), 0),
            Backing::Constant => {
                let tensor = flow.values[root].constant.clone().ok_or_else(missing)?;
                (Space::Constant(self.constants.add(device, value.name.clone(), tensor, None, None)), 0)
            }
            Backing::Arena => {
                let &(arena, offset) = memory.placed.get(&root).ok_or_else(missing)?;
                (Space::Arena(arena), offset + memory.classes.offset(v))
            }
        };
        Ok(Location { space, offset, bytes })
    }
}
