//! Dispatches of the broadcasting kernels.

use crate::dtype::DType;
use crate::expr::BinaryFunction;
use crate::kernel::Unit;
use crate::kernel::codes::nest::RANK;
use crate::kernel::table::{params, spec, variants};
use crate::ops::strided::Nest;
use crate::ops::{Lowering, OpError, Operand};
use crate::shape::Shape;

/// An operand of a kernel and its shape.
pub(super) type Io<'a> = (Operand, &'a Shape);

/// Whether operand `k` has four neighbours wherever four outputs begin.
fn in_fours(nest: &Nest, k: usize) -> bool {
    let outer = nest.strides(k).split_last().map_or(&[][..], |(_, outer)| outer);
    nest.inner_stride(k) == 1 && outer.iter().all(|s| s % 4 == 0)
}

/// The traversal of a broadcast, with the contents of its parameters.
struct Walk<const K: usize> {
    nest: Nest,
    n: u32,
    sizes: [u32; RANK],
    strides: [[i32; RANK]; K],
}

fn walk<const K: usize>(out: &Shape, inputs: [&Shape; K]) -> Result<Option<Walk<K>>, OpError> {
    let nest = Nest::broadcast(out, &inputs)?;
    let fail = || OpError::unsupported(format!("broadcasting to {out} on the device"));
    if nest.elements() == 0 {
        return Ok(None);
    }
    let n = i32::try_from(nest.elements()).map_err(|_| fail())? as u32;
    let sizes = nest.kernel_sizes().ok_or_else(fail)?;
    let mut strides = [[0; RANK]; K];
    for (k, s) in strides.iter_mut().enumerate() {
        *s = nest.kernel_strides(k).ok_or_else(fail)?;
    }
    Ok(Some(Walk { nest, n, sizes, strides }))
}

/// Emits `y = op(a, b)`, divided by `count` where that is given.
pub(super) fn arithmetic(
    lower: &mut Lowering<'_>,
    op: BinaryFunction,
    dtype: DType,
    [a, b, y]: [Io<'_>; 3],
    count: Option<usize>,
) -> Result<(), OpError> {
    let Some(walk) = walk(y.1, [a.1, b.1])? else { return Ok(()) };
    let nest = &walk.nest;
    let inner = nest.sizes().last().copied().unwrap_or(1);
    let splat = |k| nest.inner_stride(k) == 0;
    let fours = dtype == DType::F32 && inner.is_multiple_of(4);
    let (fours, splat, swap) = match [0, 1].map(|k| fours && in_fours(nest, k)) {
        [true, true] => (true, false, false),
        [true, false] if splat(1) => (true, true, false),
        [false, true] if splat(0) => (true, true, true),
        _ => (false, false, false),
    };
    let kernel = variants::Binary { t: element(dtype), fours, splat }.id().ok();
    let kernel = kernel.filter(|_| dtype != DType::F64 || !op.is_alone()).ok_or_else(|| none(op, dtype))?;
    let (left, right) = if swap { (1, 0) } else { (0, 1) };
    let n = if fours { walk.n / 4 } else { walk.n };
    let constants = [
        (spec::binary::OP, op as u32),
        (spec::broadcast::A_KIND, nest.kind(left) as u32),
        (spec::broadcast::B_KIND, nest.kind(right) as u32),
        (spec::broadcast::RANK, nest.rank() as u32),
        (spec::binary::SWAP, swap.into()),
        (spec::binary::MEAN, count.is_some().into()),
    ];
    let (sizes, a_strides, b_strides) = (walk.sizes, walk.strides[left], walk.strides[right]);
    let params = params::Binary { n, count: count.unwrap_or(1) as f32, sizes, a_strides, b_strides };
    let operands = [[a, b][left].0, [a, b][right].0, y.0];
    lower.dispatch_1d(kernel, &constants, &operands, &params, n as usize)?;
    lower.writes_in_order(dtype.bytes());
    Ok(())
}

/// Emits `y = a op b` as `bool`.
pub(super) fn compare(
    lower: &mut Lowering<'_>,
    op: BinaryFunction,
    dtype: DType,
    [a, b, y]: [Io<'_>; 3],
) -> Result<(), OpError> {
    let Some(walk) = walk(y.1, [a.1, b.1])? else { return Ok(()) };
    let kernel = variants::Compare { t: element(dtype) }.id().map_err(|_| none(op, dtype))?;
    let constants = [
        (spec::compare::OP, op as u32),
        (spec::broadcast::A_KIND, walk.nest.kind(0) as u32),
        (spec::broadcast::B_KIND, walk.nest.kind(1) as u32),
        (spec::broadcast::RANK, walk.nest.rank() as u32),
    ];
    let [a_strides, b_strides] = walk.strides;
    let params = params::Compare { n: walk.n, sizes: walk.sizes, a_strides, b_strides };
    lower.dispatch_1d(kernel, &constants, &[a.0, b.0, y.0], &params, walk.n as usize)
}

/// The type of elements in kernels.
fn element(dtype: DType) -> DType {
    if dtype == DType::Bool { DType::U8 } else { dtype }
}

fn none(op: BinaryFunction, dtype: DType) -> OpError {
    OpError::unsupported(format!("{} of {dtype} on the device", op.name()))
}

/// Emits `y = condition ? a : b` for elements of `bytes` bytes.
pub(super) fn select(
    lower: &mut Lowering<'_>,
    bytes: usize,
    [condition, a, b, y]: [Io<'_>; 4],
) -> Result<(), OpError> {
    let Some(walk) = walk(y.1, [condition.1, a.1, b.1])? else { return Ok(()) };
    let kernel = variants::Select { t: Unit::Bytes(bytes) }.id()?;
    let [c_strides, a_strides, b_strides] = walk.strides;
    let params = params::Select { n: walk.n, sizes: walk.sizes, c_strides, a_strides, b_strides };
    let constants = [(spec::select::RANK, walk.nest.rank() as u32)];
    lower.dispatch_1d(kernel, &constants, &[condition.0, a.0, b.0, y.0], &params, walk.n as usize)?;
    lower.writes_in_order(bytes);
    Ok(())
}
