//! The steps of an operator's device lowering: dispatches as plain data.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::OpError;
use super::choice::{Asked, Candidate, ChoiceKey, Choices};
use crate::backend::{DeviceInfo, DeviceKind};
use crate::kernel::{KernelId, KernelInfo, KernelSource, Requires, grid_1d};
use crate::memory::image::Filter;
pub use crate::tensor::{PackInPlaceFn, PackKey, PackLines, PackLinesFn, UnpackFn};
use crate::tensor::{PackedForm, Tensor};

/// Invocations of a work-group of most kernels, and of their work-groups for large problems: a device starts so many groups in
/// a second, and 64 invocations that copy 16 bytes each are done before the next group can begin.
const USUAL_GROUP: u32 = 64;
const WIDE_GROUP: u32 = 256;
/// Invocations from which on groups are wide: there are thousands of them, enough for every processor.
const MANY_ITEMS: usize = 1 << 19;

/// A tensor or scratch range that a step reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// An input of the operator.
    Input(usize),
    /// An output of the operator.
    Output(usize),
    /// Scratch range made by [`Lowering::scratch`].
    Scratch(usize),
    /// The counters that [`Lowering::counters`] asked for.
    Counters,
    /// A constant in a packed layout, made by [`Lowering::packed`].
    Packed(usize),
    /// An input that lies in an image ([`super::OpCx::image`]), through the image.
    Image(usize, Filter),
    /// An output that lies in an image, through the image.
    ImageOutput(usize),
    /// An argument that the kernel variant declares but does not touch; any small range is bound.
    Unused,
}

/// Writes a constant in a packed layout.
pub type PackFn = dyn Fn(&Tensor, &mut [u8]) -> Result<(), OpError> + Send + Sync;

/// A constant in a packed layout.
#[derive(Clone)]
pub struct Packed {
    /// What was packed; with [`Packed::key`] it identifies the result.
    pub source: Tensor,
    /// The layout.
    pub key: PackKey,
    /// Bytes of the result.
    pub bytes: usize,
    /// Writes the packed bytes.
    pub pack: Arc<PackFn>,
    /// As `pack`, line by line, where the layout allows that.
    pub lines: Option<PackLines>,
    /// As `pack`, where the constant lies, where the layout has its bytes and nothing else.
    pub in_place: Option<Arc<PackInPlaceFn>>,
    /// The inverse, where the layout has every element of the constant: the constant need not be kept then.
    pub unpack: Option<Arc<UnpackFn>>,
    /// Whether [`Operator::cpu`](super::Operator::cpu) reads the constant as it lies, so that it need not be packed where
    /// memory counts.
    pub optional: bool,
}

impl Packed {
    /// The layout, and what undoes it.
    pub(crate) fn form(&self) -> PackedForm<'_> {
        let (key, bytes, lines) = (self.key, self.bytes, self.lines.as_ref());
        PackedForm { key, bytes, lines, in_place: self.in_place.as_ref(), unpack: self.unpack.as_ref() }
    }
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Packed({:?}, {:?})", self.source, self.key)
    }
}

/// Which kernel a dispatch runs.
#[derive(Clone, Debug)]
pub enum StepKernel {
    /// One of ours.
    Table(KernelId),
    /// A module built at load or given by the caller.
    Module(Arc<KernelSource>),
}

/// One step of a lowering; steps run in order, and the planner puts barriers where they overlap.
#[derive(Clone, Debug)]
pub enum Step {
    /// Runs a kernel.
    Dispatch {
        /// Which.
        kernel: StepKernel,
        /// Specialization constants, (id, value as 32 bits).
        spec: Vec<(u32, u32)>,
        /// Arguments in binding order.
        args: Vec<Operand>,
        /// Parameter bytes.
        params: Vec<u8>,
        /// Work-groups.
        groups: [u32; 3],
    },
    /// Copies bytes.
    Copy {
        /// Where from, and the offset in bytes.
        src: (Operand, u64),
        /// Where to, and the offset in bytes.
        dst: (Operand, u64),
        /// How many.
        bytes: u64,
    },
    /// Fills with a word; offset and length are multiples of four.
    Fill {
        /// What.
        dst: Operand,
        /// The word.
        value: u32,
    },
}

/// The least bytes of each of the neighbouring invocations that write whole lines together.
const LINE_PIECE: usize = 4;

/// The lowering of one operator.
#[derive(Clone, Debug, Default)]
pub struct Lowered {
    /// Its steps.
    pub steps: Vec<Step>,
    /// Bytes of each scratch range.
    pub scratch: Vec<usize>,
    /// Bytes of counters.
    pub counters: usize,
    /// Packed constants.
    pub packed: Vec<Packed>,
    /// Steps that may run in parallel with the previous step ([`Lowering::no_barrier`]).
    pub no_barrier_before: BTreeSet<usize>,
    /// Dispatches that write whole lines ([`Lowering::writes_in_order`]).
    pub writes_lines: BTreeSet<usize>,
    /// What it chose between, where it has [`Lowering::with_choices`].
    pub asked: Vec<Asked>,
}

/// Collects the lowering of one operator for one device.
#[derive(Debug)]
pub struct Lowering<'a> {
    device: &'a DeviceInfo,
    coarse_filter: bool,
    choices: Option<&'a Choices>,
    /// The scratch range of [`Lowering::passing_scratch`].
    passing: Option<usize>,
    out: Lowered,
}

impl<'a> Lowering<'a> {
    /// An empty lowering for `device`.
    pub fn new(device: &'a DeviceInfo) -> Self {
        Lowering { device, coarse_filter: false, choices: None, passing: None, out: Lowered::default() }
    }

    /// Lets the hardware interpolate between texels even where its weights of a few bits are not exact.
    pub fn with_coarse_filter(self, coarse_filter: bool) -> Self {
        Lowering { coarse_filter, ..self }
    }

    /// Whether [`Lowering::with_coarse_filter`] was asked for.
    pub fn coarse_filter(&self) -> bool {
        self.coarse_filter
    }

    /// Takes the candidates that `choices` have, and records what was chosen between.
    pub fn with_choices(self, choices: &'a Choices) -> Self {
        Lowering { choices: Some(choices), ..self }
    }

    /// The candidate to take: the one chosen for the key that `ask` gives, where it is among the candidates that `ask` gives
    /// and there are choices at all; else `default`. The candidates must all be valid for this operator and device.
    pub fn choose<C: Candidate>(&mut self, default: C, ask: impl FnOnce(&Self) -> (ChoiceKey, Vec<C>)) -> C {
        let Some(choices) = self.choices else { return default };
        let (key, mut candidates) = ask(self);
        let first = default.name();
        candidates.retain(|candidate| candidate.name() != first);
        if candidates.is_empty() {
            return default;
        }
        candidates.insert(0, default);
        let names: Vec<String> = candidates.iter().map(Candidate::name).collect();
        let taken = choices.get(&key).and_then(|name| names.iter().position(|n| n == name)).unwrap_or(0);
        self.out.asked.push(Asked { key, candidates: names, taken });
        candidates.swap_remove(taken)
    }

    /// The device: its limits and features.
    pub fn device(&self) -> &'a DeviceInfo {
        self.device
    }

    /// The device's processors: fewer work-groups than that leave some of them idle. Where its driver does not tell, a
    /// number that suits its kind.
    pub fn processors(&self) -> usize {
        let usual = match self.device.kind {
            // A host's cores are few: products in more parts than they have work for only take longer.
            DeviceKind::Cpu => 1,
            DeviceKind::Integrated => 16,
            _ => 128,
        };
        self.device.processors.map_or(usual, |count| count.max(1) as usize)
    }

    /// Whether `groups` work-groups of wide tiles leave more of the device idle than their speed is worth.
    pub(crate) fn few_wide(&self, groups: usize) -> bool {
        groups < self.processors().div_ceil(2)
    }

    /// Whether the device has the features and the local memory for kernel `id` with the defaults of its constants, and takes
    /// so many arguments.
    pub fn can_run(&self, id: KernelId) -> bool {
        let (info, limits) = (id.info(), &self.device.limits);
        self.device.features.contains(info.requires)
            && info.shared_bytes <= limits.max_local_bytes
            && info.bindings.len() <= limits.max_arguments as usize
    }

    /// Invocations of the `subgroups` that a work-group of `kernel` has, where it can use cooperative matrices of
    /// `float16`.
    pub fn matrix_threads(&self, kernel: KernelId, subgroups: usize) -> Option<u32> {
        let device = self.device;
        let threads = device.subgroup.checked_mul(subgroups as u32)?;
        // Both sizes divide what the kernels load in a step.
        let fits = matches!(device.subgroup, 32 | 64)
            && threads <= device.limits.max_group_items.min(device.limits.max_group_size[0]);
        let has = device.features.contains(Requires::MATRIX_F16) && self.can_run(kernel);
        (fits && has).then_some(threads)
    }

    /// Makes a scratch range of `bytes`, valid for this operator's steps.
    pub fn scratch(&mut self, bytes: usize) -> Operand {
        self.out.scratch.push(bytes.max(4));
        Operand::Scratch(self.out.scratch.len() - 1)
    }

    /// Asks for counters, words that are zero before the operator's first step. It must leave them zero: other operators of
    /// the run have the same ones.
    pub fn counters(&mut self, words: usize) -> Operand {
        self.out.counters = self.out.counters.max(4 * words);
        Operand::Counters
    }

    /// The scratch range for what is done with before the next call: all calls for an operator share it, and
    /// it is as long as the longest of them needs.
    pub(crate) fn passing_scratch(&mut self, bytes: usize) -> Operand {
        let at = *self.passing.get_or_insert(self.out.scratch.len());
        match self.out.scratch.get_mut(at) {
            Some(range) => *range = bytes.max(*range),
            None => self.out.scratch.push(bytes.max(4)),
        }
        Operand::Scratch(at)
    }

    /// Asks for constant `source` in a packed layout of `bytes`, packed once at load.
    pub fn packed(
        &mut self,
        source: &Tensor,
        key: PackKey,
        bytes: usize,
        pack: impl Fn(&Tensor, &mut [u8]) -> Result<(), OpError> + Send + Sync + 'static,
    ) -> Operand {
        let pack = Arc::new(pack);
        let packed = Packed {
            source: source.clone(),
            key,
            bytes: bytes.max(4),
            pack,
            lines: None,
            in_place: None,
            unpack: None,
            optional: false,
        };
        self.out.packed.push(packed);
        Operand::Packed(self.out.packed.len() - 1)
    }

    /// Says what turns the layout that was asked for last into all bytes of its constant again.
    pub fn unpacked_by(&mut self, unpack: impl Fn(&[u8], &mut [u8]) + Send + Sync + 'static) {
        if let Some(packed) = self.out.packed.last_mut() {
            packed.unpack = Some(Arc::new(unpack));
        }
    }

    /// Says how the constant that was asked for last is packed line by line.
    pub fn packed_by_lines(&mut self, lines: PackLines) {
        if let Some(packed) = self.out.packed.last_mut() {
            packed.lines = Some(lines);
        }
    }

    /// Says how the constant that was asked for last is packed where it lies.
    pub fn packed_in_place(&mut self, pack: impl Fn(&mut [u8]) + Send + Sync + 'static) {
        if let Some(packed) = self.out.packed.last_mut() {
            packed.in_place = Some(Arc::new(pack));
        }
    }

    /// Adds a dispatch of one of our kernels.
    ///
    /// # Errors
    /// [`OpError::Unsupported`] where the device lacks a feature the kernel needs, where the number of
    /// arguments or the parameter struct is not the kernel's, or where the grid is beyond the device's.
    pub fn dispatch<P: bytemuck::Pod>(
        &mut self,
        kernel: KernelId,
        spec: &[(u32, u32)],
        args: &[Operand],
        params: &P,
        groups: [u32; 3],
    ) -> Result<(), OpError> {
        let info = kernel.info();
        let params = bytemuck::bytes_of(params);
        self.check(info, args.len(), params.len(), groups)?;
        if groups.contains(&0) {
            return Ok(());
        }
        self.out.steps.push(Step::Dispatch {
            kernel: StepKernel::Table(kernel),
            spec: spec.to_vec(),
            args: args.to_vec(),
            params: params.to_vec(),
            groups,
        });
        Ok(())
    }

    /// Adds a dispatch over a one-dimensional problem of `items` work-items (`shaders/include/grid.glsl`); none where there
    /// are no items.
    ///
    /// # Errors
    /// As [`Lowering::dispatch`].
    pub fn dispatch_1d<P: bytemuck::Pod>(
        &mut self,
        kernel: KernelId,
        spec: &[(u32, u32)],
        args: &[Operand],
        params: &P,
        items: usize,
    ) -> Result<(), OpError> {
        let info = kernel.info();
        let (mut local, mut spec) = (info.local_size[0], spec.to_vec());
        if items >= MANY_ITEMS
            && let Some(id) = self.widens(info)
        {
            local = WIDE_GROUP;
            spec.push((id, local));
        }
        let groups = match items {
            0 => [0; 3],
            items => grid_1d(items as u64, local, self.device.limits.max_groups[0]),
        };
        self.dispatch(kernel, &spec, args, params, groups)
    }

    /// The constant that makes the work-groups of a kernel wider, where a device starts fewer and wider ones sooner and the
    /// kernel's invocations have nothing to do with each other.
    fn widens(&self, info: &KernelInfo) -> Option<u32> {
        let (device, limits) = (self.device, &self.device.limits);
        let takes = limits.max_group_items.min(limits.max_group_size[0]) >= WIDE_GROUP;
        let alone = info.shared_bytes == 0 && info.local_size == [USUAL_GROUP, 1, 1];
        let pays = !matches!(device.kind, DeviceKind::Cpu) && !device.prefers_texels;
        info.local_size_spec[0].filter(|_| takes && alone && pays)
    }

    /// Adds a dispatch of a module that is not in our table, with its specialization constants.
    pub fn dispatch_module(
        &mut self,
        source: Arc<KernelSource>,
        spec: Vec<(u32, u32)>,
        args: &[Operand],
        params: Vec<u8>,
        groups: [u32; 3],
    ) {
        let args = args.to_vec();
        self.out.steps.push(Step::Dispatch {
            kernel: StepKernel::Module(source),
            spec,
            args,
            params,
            groups,
        });
    }

    /// Whether `f32` operands of at most `elements` elements are better read as rows of `len` elements in
    /// whole texels, and can be.
    pub fn texels(&self, len: usize, elements: usize) -> bool {
        let texels = elements.div_ceil(4) as u64;
        self.device.prefers_texels && len.is_multiple_of(4) && texels <= self.device.limits.max_texels
    }

    /// Checks that the driver lets the loops of an invocation go round `count` times.
    ///
    /// # Errors
    /// [`OpError::Unsupported`]: it would end them before, and the result would be wrong.
    pub fn iterations(&self, count: usize) -> Result<(), OpError> {
        match self.device.most_iterations {
            Some(most) if count > most as usize => Err(OpError::unsupported(format!(
                "a kernel whose loops go round {count} times: the driver ends them after {most}"
            ))),
            _ => Ok(()),
        }
    }

    /// As [`Lowering::iterations`], of rows that take `count` times of one invocation, or of a work-group where `grouped`.
    ///
    /// # Errors
    /// [`OpError::Unsupported`].
    pub fn row_iterations(&self, count: usize, grouped: bool) -> Result<(), OpError> {
        /// The fewest invocations of a work-group for rows.
        const LEAST: usize = 64;
        self.iterations(if grouped { count / LEAST } else { count })
    }

    /// Whether rows of `len` elements are better done by a work-group each than by an invocation each.
    pub fn grouped(&self, len: usize) -> bool {
        // lavapipe runs the invocations of a work-group one after another, between barriers.
        !self.device.prefers_texels && len >= 32
    }

    /// Adds a dispatch of `rows` work-items, or of as many work-groups where `grouped`.
    ///
    /// # Errors
    /// As [`Lowering::dispatch`].
    pub fn dispatch_rows<P: bytemuck::Pod>(
        &mut self,
        kernel: KernelId,
        spec: &[(u32, u32)],
        args: &[Operand],
        params: &P,
        rows: usize,
        grouped: bool,
    ) -> Result<(), OpError> {
        if !grouped {
            return self.dispatch_1d(kernel, spec, args, params, rows);
        }
        let groups = grid_1d(rows as u64, 1, self.device.limits.max_groups[0]);
        self.dispatch(kernel, spec, args, params, groups)
    }

    /// Lets the last step run in parallel with the previous one although both write one operand:
    /// they write different elements.
    pub fn no_barrier(&mut self) {
        self.out.no_barrier_before.extend(self.out.steps.len().checked_sub(1));
    }

    /// Says that neighbouring invocations of the last step write neighbouring pieces of `bytes` bytes. Of words and more,
    /// a bus to the host's memory carries whole lines. What other kernels write for the host is copied there by the
    /// device, where that has memory of its own.
    pub fn writes_in_order(&mut self, bytes: usize) {
        if bytes >= LINE_PIECE {
            self.out.writes_lines.extend(self.out.steps.len().checked_sub(1));
        }
    }

    /// Adds a copy of bytes.
    pub fn copy(&mut self, src: (Operand, u64), dst: (Operand, u64), bytes: u64) {
        if bytes > 0 {
            self.out.steps.push(Step::Copy { src, dst, bytes });
        }
    }

    /// Fills an operand with a word.
    pub fn fill(&mut self, dst: Operand, value: u32) {
        self.out.steps.push(Step::Fill { dst, value });
    }

    /// What was collected.
    pub fn finish(self) -> Lowered {
        self.out
    }

    fn check(&self, info: &KernelInfo, args: usize, params: usize, groups: [u32; 3]) -> Result<(), OpError> {
        let limits = &self.device.limits;
        let fail = |problem: String| Err(OpError::unsupported(format!("kernel {}: {problem}", info.name)));
        if !self.device.features.contains(info.requires) {
            return fail(format!("the device lacks {:?}", info.requires));
        }
        if args != info.bindings.len() {
            return fail(format!("{args} arguments for {} bindings", info.bindings.len()));
        }
        if params != info.params_bytes as usize {
            return fail(format!("{params} parameter bytes, the kernel takes {}", info.params_bytes));
        }
        if groups.iter().zip(&limits.max_groups).any(|(g, max)| g > max) {
            return fail(format!("grid {groups:?} is beyond the device's {:?}", limits.max_groups));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::table::{params, spec};
    use crate::kernel::{KernelId, id};

    fn device(change: fn(&mut DeviceInfo)) -> DeviceInfo {
        let mut device = crate::registry::Registry::with_defaults().find("sim:discrete").unwrap();
        device.prefers_texels = false;
        change(&mut device);
        device
    }

    /// The work-groups and the constants for a problem of so many items.
    fn dispatched(items: usize, change: fn(&mut DeviceInfo)) -> ([u32; 3], Vec<(u32, u32)>) {
        let device = device(change);
        let mut lower = Lowering::new(&device);
        let args = vec![Operand::Unused; id::AXPB_F32.info().bindings.len()];
        let params = params::Axpb { n: items as u32, a: 1.0, b: 0.0 };
        lower.dispatch_1d(id::AXPB_F32, &[], &args, &params, items).unwrap();
        match lower.finish().steps.as_slice() {
            [Step::Dispatch { spec, groups, .. }] => (*groups, spec.clone()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn large_problems_have_wide_groups_where_the_device_takes_them() {
        let wide = vec![(spec::axpb::LOCAL_SIZE_X, WIDE_GROUP)];
        assert_eq!(dispatched(MANY_ITEMS - 1, |_| {}), ([8192, 1, 1], vec![]));
        assert_eq!(dispatched(MANY_ITEMS, |_| {}), ([2048, 1, 1], wide.clone()));
        assert_eq!(dispatched(MANY_ITEMS + 1, |_| {}), ([2049, 1, 1], wide));
        for change in [
            |device: &mut DeviceInfo| device.limits.max_group_items = 128,
            |device: &mut DeviceInfo| device.limits.max_group_size[0] = 128,
            |device: &mut DeviceInfo| device.kind = DeviceKind::Cpu,
            |device: &mut DeviceInfo| device.prefers_texels = true,
        ] {
            assert_eq!(dispatched(MANY_ITEMS, change), ([8192, 1, 1], vec![]));
        }
    }

    /// What shares memory has the work-groups that it was written for.
    #[test]
    fn kernels_that_share_memory_stay_as_they_are() {
        let device = device(|_| {});
        let lower = Lowering::new(&device);
        let (wide, own): (Vec<KernelId>, _) =
            KernelId::all().partition(|kernel| lower.widens(kernel.info()).is_some());
        assert!(wide.iter().all(|kernel| kernel.info().shared_bytes == 0));
        let begins =
            |kernels: &[KernelId], name| kernels.iter().any(|kernel| kernel.info().name.starts_with(name));
        assert!(begins(&wide, "strided_copy") && begins(&wide, "axpb"));
        assert!(begins(&own, "reduce") && begins(&own, "einsum"));
    }
}
