//! ReduceSum, ReduceMean, ReduceMax, ...: blocks of elements to one each.

use std::sync::Arc;

use half::{bf16, f16};

use super::accumulator::{Accumulator, Number};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::codes::reduce::{Combine, Finish, GROUP, MAX_RANK, Map};
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::memory::model::DeviceKind;
use crate::ops::movement::region::signed_strides;
use crate::ops::strided::Nest;
use crate::ops::word::word;
use crate::ops::{AttrReader, Cost, HalfRule, Lowering, OpCx, OpError, Operand, Operator, Structure, par};
use crate::shape::{Shape, normalize_axis};
use crate::simd::wide;

/// When long rows are cut in two stages.
struct Cut {
    /// Fewer results than this leave a device idle.
    few: usize,
    /// Rows shorter than this are not worth a second stage.
    long: usize,
    /// The most parts of a row.
    parts: usize,
}

impl Cut {
    /// For `n` results, each done by an invocation or, in `groups`, by a team of them.
    fn of(lower: &Lowering<'_>, n: usize, groups: bool) -> Cut {
        /// Invocations that keep a large device busy: each has several loads at once.
        const MANY: usize = 1 << 16;
        match (groups, lower.device().kind == DeviceKind::Cpu) {
            (true, _) => Cut { few: 1024, long: 8192, parts: 1024 },
            // Few cores: a second stage costs more than it brings.
            (false, true) => Cut { few: 4096, long: 2048, parts: 256 },
            (false, false) => Cut { few: MANY / 2, long: 256, parts: (MANY / n.max(1)).min(256) },
        }
    }
}

/// Fetches of an invocation of a team at least, where a row has so many.
const FETCHES: usize = 4;
/// The fewest invocations of a team.
const LEAST_TEAM: usize = 8;

/// Which reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceKind {
    /// Sum of absolute values.
    L1,
    /// Square root of the sum of squares.
    L2,
    /// Logarithm of the sum.
    LogSum,
    /// Logarithm of the sum of exponentials, computed without overflow.
    LogSumExp,
    /// Largest element.
    Max,
    /// Mean.
    Mean,
    /// Smallest element.
    Min,
    /// Product.
    Prod,
    /// Sum.
    Sum,
    /// Sum of squares.
    SumSquare,
}

impl ReduceKind {
    /// The steps of the device kernel.
    fn steps(self) -> (Map, Combine, Finish) {
        match self {
            ReduceKind::L1 => (Map::Abs, Combine::Sum, Finish::None),
            ReduceKind::L2 => (Map::Square, Combine::Sum, Finish::Root),
            ReduceKind::LogSum => (Map::None, Combine::Sum, Finish::Log),
            ReduceKind::LogSumExp => (Map::None, Combine::LogSumExp, Finish::None),
            ReduceKind::Max => (Map::None, Combine::Max, Finish::None),
            ReduceKind::Mean => (Map::None, Combine::Sum, Finish::Mean),
            ReduceKind::Min => (Map::None, Combine::Min, Finish::None),
            ReduceKind::Prod => (Map::None, Combine::Product, Finish::None),
            ReduceKind::Sum => (Map::None, Combine::Sum, Finish::None),
            ReduceKind::SumSquare => (Map::Square, Combine::Sum, Finish::None),
        }
    }

    fn name(self) -> &'static str {
        match self {
            ReduceKind::L1 => "ReduceL1",
            ReduceKind::L2 => "ReduceL2",
            ReduceKind::LogSum => "ReduceLogSum",
            ReduceKind::LogSumExp => "ReduceLogSumExp",
            ReduceKind::Max => "ReduceMax",
            ReduceKind::Mean => "ReduceMean",
            ReduceKind::Min => "ReduceMin",
            ReduceKind::Prod => "ReduceProd",
            ReduceKind::Sum => "ReduceSum",
            ReduceKind::SumSquare => "ReduceSumSquare",
        }
    }
}

/// Reduces its input over axes, which are an attribute or input 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reduce {
    /// Which reduction.
    pub kind: ReduceKind,
    /// The axes, where they are an attribute.
    pub axes: Option<Vec<i64>>,
    /// Whether reduced axes stay, with size 1.
    pub keep_dims: bool,
    /// Whether no axes at all mean that nothing is reduced, rather than everything.
    pub noop_with_empty_axes: bool,
}

pub(super) fn read(
    attrs: &mut AttrReader<'_>,
    _: i64,
    kind: ReduceKind,
) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Reduce {
        kind,
        axes: attrs.ints_opt("axes")?,
        keep_dims: attrs.flag("keepdims", true)?,
        noop_with_empty_axes: attrs.flag("noop_with_empty_axes", false)?,
    }))
}

/// The elements of a reduction: where each result's block begins, and what lies in a block.
struct Blocks {
    kept: Nest,
    reduced: Nest,
    count: usize,
}

impl Reduce {
    /// Marks the axes that are reduced.
    fn marks(&self, cx: &OpCx) -> Result<Vec<bool>, OpError> {
        let rank = cx.shape(0)?.rank();
        let axes = match &self.axes {
            Some(axes) => Some(axes.clone()),
            None => cx.need_i64s_opt(1)?,
        };
        let axes = axes.unwrap_or_default();
        if axes.is_empty() {
            return Ok(vec![!self.noop_with_empty_axes; rank]);
        }
        let mut marks = vec![false; rank];
        for a in axes {
            marks[normalize_axis(a, rank)?] = true;
        }
        Ok(marks)
    }

    fn blocks(&self, cx: &OpCx) -> Result<Blocks, OpError> {
        let x = cx.shape(0)?;
        let (strides, marks) = (signed_strides(x), self.marks(cx)?);
        let nest = |reduced: bool| {
            let own = || (0..x.rank()).filter(|&d| marks[d] == reduced);
            let dims: Vec<usize> = own().map(|d| x[d]).collect();
            Nest::new(&dims, &[own().map(|d| strides[d]).collect()])
        };
        let count = (0..x.rank()).filter(|&d| marks[d]).map(|d| x[d]).product();
        Ok(Blocks { kept: nest(false), reduced: nest(true), count })
    }
}

impl Operator for Reduce {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn structure(&self) -> Option<Structure<'_>> {
        (self.kind == ReduceKind::Mean && self.keep_dims).then_some(Structure::Mean)
    }

    fn half_rule(&self) -> HalfRule {
        match self.kind {
            // They give one of the elements.
            ReduceKind::Max | ReduceKind::Min => HalfRule::Half,
            _ => HalfRule::Full,
        }
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=2, 1..=1)?;
        let dtype = cx.dtype_of(0, super::TYPES)?;
        let x = cx.shape(0)?;
        let marks = self.marks(cx)?;
        let dims: Vec<usize> = x
            .iter()
            .zip(&marks)
            .filter(|(_, reduced)| self.keep_dims || !**reduced)
            .map(|(&d, reduced)| if *reduced { 1 } else { d })
            .collect();
        let out = Shape::new(dims)?;
        Ok(vec![TensorInfo::new(dtype, out)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let elements = cx.input_opt(0).map_or(0, |x| x.elements() as u64);
        Cost { flops: elements, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let blocks = self.blocks(cx)?;
        let (kind, out) = (self.kind, cx.input_count());
        let run = move |args: &mut NativeArgs<'_, '_>, dtype| match dtype {
            DType::F32 => reduce::<f32>(args, out, &blocks, kind),
            DType::F64 => reduce::<f64>(args, out, &blocks, kind),
            DType::F16 => reduce::<f16>(args, out, &blocks, kind),
            DType::BF16 => reduce::<bf16>(args, out, &blocks, kind),
            DType::I32 => reduce::<i32>(args, out, &blocks, kind),
            DType::I64 => reduce::<i64>(args, out, &blocks, kind),
            DType::U32 => reduce::<u32>(args, out, &blocks, kind),
            DType::U64 => reduce::<u64>(args, out, &blocks, kind),
            DType::I8 => reduce::<i8>(args, out, &blocks, kind),
            // The least of no truth values is true; as a byte it would be 255.
            DType::Bool if blocks.count == 0 => {
                args.take_write::<u8>(out)?.fill(u8::from(kind == ReduceKind::Min));
                Ok(())
            }
            _ => reduce::<u8>(args, out, &blocks, kind),
        };
        let dtype = cx.dtype(0)?;
        Ok(NativeKernel::new(self.name(), move |args| run(args, dtype)))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let dtype = cx.dtype(0)?;
        let (map, combine, finish) = self.kind.steps();
        let exponentials = combine == Combine::LogSumExp;
        if !dtype.is_float() && (exponentials || matches!(finish, Finish::Root | Finish::Log)) {
            return Err(OpError::unsupported("no device kernel for roots and logarithms of integers"));
        }
        let Blocks { kept, reduced, count } = self.blocks(cx)?;
        if count == 0 {
            return Err(OpError::unsupported("no device kernel for results without elements"));
        }
        let n = kept.elements();
        let row = reduced.sizes().last().copied().unwrap_or(1);
        let limits = Cut::of(lower, n, in_groups(lower, &reduced));
        let divides = |unit: usize| (2..=limits.parts).rev().find(|p| row.is_multiple_of(p * unit));
        // Parts of whole vectors are read faster.
        let parts = divides(8).or_else(|| divides(4)).or_else(|| divides(1)).unwrap_or(1);
        let cut =
            n < limits.few && row >= limits.long && parts > 1 && !exponentials && kept.rank() < MAX_RANK;
        let stage = |map: Map, finish: Finish| {
            [
                (spec::reduce::MAP, map as u32),
                (spec::reduce::COMBINE, combine as u32),
                (spec::reduce::FINISH, finish as u32),
            ]
        };
        if !cut {
            let codes = stage(map, finish);
            let args = [Operand::Input(0), Operand::Output(0)];
            return dispatch(lower, (dtype, dtype), &codes, args, [&kept, &reduced], count);
        }
        // First every row in parts, then the parts of each result.
        let between = if dtype == DType::F16 { DType::F32 } else { dtype };
        let partial = lower.scratch(n * parts * between.bytes());
        let step = reduced.inner_stride(0);
        let mut dims = kept.sizes().to_vec();
        let mut strides = kept.strides(0).to_vec();
        dims.push(parts);
        strides.push(step * (row / parts) as isize);
        let mut inner = reduced.sizes().to_vec();
        if let Some(last) = inner.last_mut() {
            *last = row / parts;
        }
        let first = Nest::new(&dims, &[strides]);
        let inner = Nest::new(&inner, &[reduced.strides(0).to_vec()]);
        if first.rank() > MAX_RANK || inner.rank() > MAX_RANK {
            return Err(OpError::unsupported("a reduction over more dimensions than the kernel walks"));
        }
        let codes = stage(map, Finish::None);
        dispatch(lower, (dtype, between), &codes, [Operand::Input(0), partial], [&first, &inner], 1)?;
        let outer = Nest::new(&[n], &[vec![parts as isize]]);
        let rest = Nest::new(&[parts], &[vec![1]]);
        let codes = stage(Map::None, finish);
        dispatch(lower, (between, dtype), &codes, [partial, Operand::Output(0)], [&outer, &rest], count)
    }
}

/// Whether a team does each result: its elements are contiguous. A processor sums a line faster alone.
fn in_groups(lower: &Lowering<'_>, reduced: &Nest) -> bool {
    reduced.inner_stride(0) == 1
        && lower.device().kind != DeviceKind::Cpu
        && lower.grouped(reduced.sizes().last().copied().unwrap_or(1))
}

/// Emits the reduction of the blocks `reduced`, each at one of the places `kept`, between elements of types `tx` and `ty`.
fn dispatch(
    lower: &mut Lowering<'_>,
    (tx, ty): (DType, DType),
    codes: &[(u32, u32)],
    args: [Operand; 2],
    [kept, reduced]: [&Nest; 2],
    count: usize,
) -> Result<(), OpError> {
    if kept.rank() > MAX_RANK || reduced.rank() > MAX_RANK {
        return Err(OpError::unsupported(format!(
            "a reduction that keeps {} and reduces {} dimensions, the kernel walks {MAX_RANK}",
            kept.rank(),
            reduced.rank()
        )));
    }
    let side = |nest: &Nest| -> Result<([u32; MAX_RANK], [i32; MAX_RANK]), OpError> {
        let (mut dims, mut strides) = ([1; MAX_RANK], [0; MAX_RANK]);
        for (d, (&size, &stride)) in nest.sizes().iter().zip(nest.strides(0)).enumerate() {
            dims[d] = word(size)?;
            strides[d] = i32::try_from(stride).map_err(|_| OpError::unsupported("strides beyond 32 bits"))?;
        }
        Ok((dims, strides))
    };
    let ((kept_dims, kept_strides), (reduced_dims, reduced_strides)) = (side(kept)?, side(reduced)?);
    let inner = reduced.sizes().last().copied().unwrap_or(1);
    let n = kept.elements();
    let p = params::Reduce {
        kept: kept_dims,
        kept_strides,
        reduced: reduced_dims,
        reduced_strides,
        n: word(n)?,
        inner: word(inner)?,
        outer: word(reduced.elements() / inner.max(1))?,
        count: word(count)?,
    };
    let mut constants = codes.to_vec();
    constants.push((spec::reduce::KEPT, kept.rank() as u32));
    constants.push((spec::reduce::REDUCED, reduced.rank() as u32));
    let grouped = in_groups(lower, reduced);
    let outer_strides = reduced.strides(0).iter().rev().skip(1);
    // Elements of 16 bytes.
    let width = 16 / tx.bytes().min(16);
    let steps = kept.strides(0).iter().chain(outer_strides);
    let whole =
        inner.is_multiple_of(width) && steps.into_iter().all(|s| s.unsigned_abs().is_multiple_of(width));
    let wide = grouped && whole && matches!(tx, DType::F32 | DType::F16 | DType::I32);
    let kernel = variants::Reduce { tx, ty, grouped, wide }.id()?;
    // Some fetches for each invocation, and short rows side by side in a work-group.
    let fetches = if wide { inner / width } else { inner };
    let team = (fetches / FETCHES).next_power_of_two().clamp(LEAST_TEAM, GROUP);
    if grouped {
        constants.push((spec::reduce::TEAM, team as u32));
    }
    // Exponentials take two passes.
    lower.iterations(2 * reduced.elements() / if grouped { LEAST_TEAM } else { 1 })?;
    let rows = if grouped { n.div_ceil(GROUP / team) } else { n };
    lower.dispatch_rows(kernel, &constants, &args, &p, rows, grouped)
}

fn reduce<T: Number>(
    args: &mut NativeArgs<'_, '_>,
    out: usize,
    blocks: &Blocks,
    kind: ReduceKind,
) -> Result<(), KernelError> {
    let x = args.read::<T>(0)?;
    let y = args.take_write::<T>(out)?;
    if blocks.count == 0 {
        y.fill(T::narrow(of_nothing::<T>(kind)));
        return Ok(());
    }
    let lines = Lines::of(&blocks.reduced);
    let folds = Folds { x, kept: &blocks.kept, lines: &lines, count: blocks.count };
    let (low, high) = T::bounds();
    let same = |v| v;
    let (map, combine, finish) = kind.steps();
    match (combine, map) {
        (Combine::Sum, Map::None) => folds.each(y, T::Acc::ZERO, same, T::Acc::add, finish),
        (Combine::Sum, Map::Abs) => folds.each(y, T::Acc::ZERO, T::Acc::abs, T::Acc::add, finish),
        (Combine::Sum, Map::Square) => folds.each(y, T::Acc::ZERO, |v| v.mul(v), T::Acc::add, finish),
        (Combine::Product, _) => folds.each(y, T::Acc::ONE, same, T::Acc::mul, finish),
        (Combine::Max, _) => {
            folds.each(y, low, same, |a, v| if v > a || v.is_nan() { v } else { a }, finish);
        }
        (Combine::Min, _) => {
            folds.each(y, high, same, |a, v| if v < a || v.is_nan() { v } else { a }, finish);
        }
        (Combine::LogSumExp, _) => folds.log_sums(y),
    }
    Ok(())
}

/// Finishes results that `count` elements were combined to.
fn finish_all<A: Accumulator>(finish: Finish, results: &mut [A], count: usize) {
    if finish == Finish::None {
        return;
    }
    wide(
        #[inline(always)]
        || {
            for a in results {
                *a = match finish {
                    Finish::None => *a,
                    Finish::Mean => a.div_count(count),
                    Finish::Root => A::from_f64(a.as_f64().sqrt()),
                    Finish::Log => A::from_f64(a.as_f64().ln()),
                };
            }
        },
    );
}

/// The result for no elements.
fn of_nothing<T: Number>(kind: ReduceKind) -> T::Acc {
    let (low, high) = T::bounds();
    match kind {
        ReduceKind::Prod => T::Acc::ONE,
        ReduceKind::Max => low,
        ReduceKind::Min => high,
        ReduceKind::LogSum | ReduceKind::LogSumExp => T::Acc::from_f64(f64::NEG_INFINITY),
        ReduceKind::Mean => T::Acc::from_f64(f64::NAN),
        _ => T::Acc::ZERO,
    }
}

/// The elements of one result: lines of equal length, by their distance from the first element.
pub(super) struct Lines {
    pub(super) starts: Vec<isize>,
    pub(super) len: usize,
    pub(super) step: isize,
}

impl Lines {
    fn of(reduced: &Nest) -> Lines {
        let mut starts = Vec::new();
        reduced.runs(0..reduced.elements(), |_, _, at| starts.push(at[0]));
        Lines { starts, len: reduced.sizes().last().copied().unwrap_or(1), step: reduced.inner_stride(0) }
    }
}

/// Results that are computed side by side where their elements are neighbours.
pub(super) const SIDE: usize = 256;
/// Sums of one line that are kept side by side.
const LANES: usize = 16;

/// The input of a reduction and the walk over it.
pub(super) struct Folds<'a, T> {
    pub(super) x: &'a [T],
    pub(super) kept: &'a Nest,
    pub(super) lines: &'a Lines,
    /// Elements of one result.
    pub(super) count: usize,
}

impl<T: Number> Folds<'_, T> {
    /// Calls `f(base, results)` for results whose blocks begin one stride after one another, at most [`SIDE`]
    /// where they are neighbours. Called by pointer, so that it is compiled once for each type.
    pub(super) fn parts(&self, y: &mut [T], f: &(dyn Fn(isize, &mut [T]) + Sync)) {
        let least = if self.columns() { SIDE } else { 1 };
        let chunk = (4096 / self.count).max(least);
        let step = self.kept.inner_stride(0);
        let work = y.len().saturating_mul(self.count);
        par::rows(y, chunk, work, |c, out| {
            let first = c * chunk;
            self.kept.runs(first..first + out.len(), |start, len, at| {
                if let Some(out) = out.get_mut(start - first..start - first + len) {
                    let side = if self.columns() { SIDE } else { len };
                    for (k, out) in out.chunks_mut(side).enumerate() {
                        f(at[0] + step * (k * side) as isize, out);
                    }
                }
            });
        });
    }

    /// Whether neighbours among the results have neighbours among the elements.
    pub(super) fn columns(&self) -> bool {
        self.kept.inner_stride(0) == 1 && self.lines.step != 1
    }

    /// `len` elements from `base + offset` on; fewer where the input ends.
    #[inline(always)]
    pub(super) fn row(&self, base: isize, offset: isize, len: usize) -> &[T] {
        let from = (base + offset).unsigned_abs().min(self.x.len());
        &self.x[from..from.saturating_add(len).min(self.x.len())]
    }

    /// Writes the elements of each block, mapped, combined with `first` and finished.
    fn each(
        &self,
        y: &mut [T],
        first: T::Acc,
        map: impl Fn(T::Acc) -> T::Acc + Copy + Sync,
        combine: impl Fn(T::Acc, T::Acc) -> T::Acc + Copy + Sync,
        finish: Finish,
    ) {
        let Lines { starts, len, step } = self.lines;
        if self.columns() {
            self.parts(y, &|base, out| {
                wide(
                    #[inline(always)]
                    || {
                        // From one to the other: in place, what a comparison leaves would not be stored, and AVX2 has no fast
                        // vectors for a condition of each store.
                        let (mut acc, mut next) = (&mut [first; SIDE], &mut [first; SIDE]);
                        for start in starts {
                            for i in 0..*len {
                                let row = self.row(base, start + step * i as isize, out.len());
                                for ((next, acc), v) in next.iter_mut().zip(&*acc).zip(row) {
                                    *next = combine(*acc, map(v.widen()));
                                }
                                std::mem::swap(&mut acc, &mut next);
                            }
                        }
                        finish_all(finish, &mut acc[..out.len()], self.count);
                        out.iter_mut().zip(&*acc).for_each(|(y, a)| *y = T::narrow(*a));
                    },
                );
            });
            return;
        }
        let next = self.kept.inner_stride(0);
        self.parts(y, &|base, out| {
            wide(
                #[inline(always)]
                || {
                    let mut results = [first; LANES];
                    let mut base = base;
                    for out in out.chunks_mut(LANES) {
                        let results = &mut results[..out.len()];
                        for result in results.iter_mut() {
                            *result = self.fold(base, first, map, combine);
                            base += next;
                        }
                        finish_all(finish, results, self.count);
                        out.iter_mut().zip(results).for_each(|(y, a)| *y = T::narrow(*a));
                    }
                },
            );
        });
    }

    /// The elements of one block, mapped and combined with `first`, which changes nothing.
    #[inline(always)]
    fn fold(
        &self,
        base: isize,
        first: T::Acc,
        map: impl Fn(T::Acc) -> T::Acc,
        combine: impl Fn(T::Acc, T::Acc) -> T::Acc,
    ) -> T::Acc {
        let Lines { starts, len, step } = self.lines;
        let mut acc = first;
        for start in starts {
            if *step != 1 {
                for i in 0..*len {
                    let v = self.row(base, start + step * i as isize, 1);
                    acc = v.iter().fold(acc, |a, v| combine(a, map(v.widen())));
                }
                continue;
            }
            let (lanes, rest) = self.row(base, *start, *len).as_chunks::<LANES>();
            if !lanes.is_empty() {
                let mut part = [first; LANES];
                for lane in lanes {
                    part.iter_mut().zip(lane).for_each(|(p, v)| *p = combine(*p, map(v.widen())));
                }
                acc = part.into_iter().fold(acc, &combine);
            }
            acc = rest.iter().fold(acc, |a, v| combine(a, map(v.widen())));
        }
        acc
    }
}

#[cfg(all(test, feature = "vulkan"))]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{tensor, tensor_of, values};
    use crate::ops::testing::{Check, as_is, check_op, no_texels};

    fn reduce_of(kind: ReduceKind, axes: &[i64]) -> Reduce {
        Reduce { kind, axes: Some(axes.to_vec()), keep_dims: true, noop_with_empty_axes: false }
    }

    #[test]
    fn halves_reduce_on_the_device() {
        use ReduceKind::*;
        let x = tensor_of(&[3, 5, 7], &values(105, 1), |v| f16::from_f32(v.abs() + 0.25));
        for kind in [L1, L2, LogSum, LogSumExp, Max, Mean, Min, Prod, Sum, SumSquare] {
            for axes in [&[2][..], &[0, 1], &[1]] {
                check_op(&reduce_of(kind, axes), &[Some(x.clone())], 2e-3);
            }
        }
    }

    #[test]
    fn rows_are_the_same_by_invocations_and_by_groups() {
        use ReduceKind::*;
        // Rows of whole vectors, of others, over an outer dimension too, few long ones, and columns of several blocks of loads.
        let cases: [(&[usize], &[i64]); 7] = [
            (&[3, 5, 64], &[2]),
            (&[3, 2, 37], &[2]),
            (&[4, 3, 36], &[0, 2]),
            (&[2, 3, 33], &[0, 2]),
            (&[2, 16_384], &[1]),
            (&[37, 6], &[0]),
            (&[2, 33, 5], &[0, 1]),
        ];
        for (shape, axes) in cases {
            for kind in [L1, L2, LogSum, LogSumExp, Max, Mean, Min, Sum, SumSquare] {
                let count = shape.iter().product();
                let near = |v: f32| v.abs() + 0.25;
                let inputs = [
                    (tensor_of(shape, &values(count, 1), near), 2e-5),
                    (tensor_of(shape, &values(count, 2), |v| f16::from_f32(near(v))), 4e-3),
                    (tensor_of(shape, &values(count, 3), |v| (v * 40.0) as i32), 0.0),
                    (tensor_of(shape, &values(count, 4), |v| (v * 40.0) as i64), 0.0),
                ];
                for (x, tolerance) in inputs {
                    for change in [as_is, no_texels] {
                        let op = reduce_of(kind, axes);
                        Check::new(&op, &[Some(x.clone())])
                            .pretend(change)
                            .optional()
                            .tolerance(tolerance)
                            .run();
                    }
                }
            }
        }
        // NaN stays, wherever it lies.
        for at in [0, 63, 100, 127] {
            let x = tensor_of(&[2, 128], &values(256, 5), |v| v);
            let mut bytes = x.to_f32s().unwrap();
            bytes[at] = f32::NAN;
            let x = Tensor::new([2, 128], &bytes).unwrap();
            for kind in [Max, Min] {
                let y = Check::new(&reduce_of(kind, &[1]), &[Some(x.clone())]).pretend(no_texels).run();
                let y = y[0].to_f32s().unwrap();
                assert!(y[0].is_nan() && !y[1].is_nan(), "{kind:?} {y:?}");
                let turned: Vec<f32> = (0..256).map(|i| bytes[i % 2 * 128 + i / 2]).collect();
                let x = Tensor::new([128, 2], &turned).unwrap();
                let y = Check::new(&reduce_of(kind, &[0]), &[Some(x)]).run();
                let y = y[0].to_f32s().unwrap();
                assert!(y[0].is_nan() && !y[1].is_nan(), "{kind:?} of columns {y:?}");
            }
        }
    }

    #[test]
    fn integers_beyond_the_signed_ones_are_ordered() {
        let x = Tensor::new([4], &[u64::MAX, 3, 1 << 63, 7]).unwrap();
        let of = |kind, x: &Tensor| {
            let y = Check::new(&reduce_of(kind, &[0]), &[Some(x.clone())]).optional().run();
            y[0].as_slice::<u64>().unwrap()[0]
        };
        assert_eq!(of(ReduceKind::Max, &x), u64::MAX);
        assert_eq!(of(ReduceKind::Min, &x), 3);
        let none = Tensor::new([0], &[0u64; 0]).unwrap();
        assert_eq!(of(ReduceKind::Min, &none), u64::MAX);
    }

    #[test]
    fn roots_and_logarithms_of_integers_are_whole_on_every_device() {
        let x = Tensor::new([3, 2], &[3i32, 1, 4, 1, 12, 1]).unwrap();
        for (kind, want) in
            [(ReduceKind::L2, [13, 1]), (ReduceKind::LogSum, [2, 1]), (ReduceKind::LogSumExp, [12, 2])]
        {
            let y = Check::new(&reduce_of(kind, &[0]), &[Some(x.clone())]).optional().run();
            assert_eq!(y[0].as_slice::<i32>().unwrap(), want, "{kind:?}");
        }
    }

    #[test]
    fn sums_of_parts_of_long_rows_are_no_halves() {
        // Parts of 70,000 elements of 4 exceed what a half can hold; the mean does not.
        let x = tensor_of(&[2, 70_000], &vec![4.0; 140_000], f16::from_f32);
        let y = check_op(&reduce_of(ReduceKind::Mean, &[1]), &[Some(x)], 1e-3);
        assert_eq!(y[0].to_f32s().unwrap(), [4.0, 4.0]);
        let x: Tensor = tensor(&[2, 70_000], 3);
        check_op(&reduce_of(ReduceKind::Max, &[1]), &[Some(x)], 0.0);
    }
}
