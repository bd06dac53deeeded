//! Dispatches of the broadcasting kernels.

use crate::dtype::DType;
use crate::expr::BinaryFunction;
use crate::kernel::KernelId;
use crate::kernel::codes::nest::RANK;
use crate::kernel::table::{id, params, spec};
use crate::ops::strided::Nest;
use crate::ops::{Lowering, OpError, Operand};
use crate::shape::Shape;

/// An operand of a kernel and its shape.
pub(super) type Io<'a> = (Operand, &'a Shape);

/// How a kernel reads an operand: `A_KIND` and `B_KIND`.
const DENSE: u32 = 0;
const SCALAR: u32 = 1;
const STRIDED: u32 = 2;

fn kind(nest: &Nest, k: usize) -> u32 {
    if nest.is_scalar(k) {
        SCALAR
    } else if nest.is_dense(k) {
        DENSE
    } else {
        STRIDED
    }
}

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
    let (kernel, swap) = match dtype {
        DType::F32 if fours && in_fours(nest, 0) && in_fours(nest, 1) => (id::BINARY_F32X4, false),
        DType::F32 if fours && in_fours(nest, 0) && splat(1) => (id::BINARY_F32X4S, false),
        DType::F32 if fours && splat(0) && in_fours(nest, 1) => (id::BINARY_F32X4S, true),
        DType::F32 => (id::BINARY_F32, false),
        DType::F16 => (id::BINARY_F16, false),
        DType::F64 if !op.is_alone() => (id::BINARY_F64, false),
        DType::I8 => (id::BINARY_I8, false),
        DType::I16 => (id::BINARY_I16, false),
        DType::I32 => (id::BINARY_I32, false),
        DType::I64 => (id::BINARY_I64, false),
        DType::U8 | DType::Bool => (id::BINARY_U8, false),
        DType::U16 => (id::BINARY_U16, false),
        DType::U32 => (id::BINARY_U32, false),
        DType::U64 => (id::BINARY_U64, false),
        _ => return Err(OpError::unsupported(format!("{} of {dtype} on the device", op.name()))),
    };
    let (left, right) = if swap { (1, 0) } else { (0, 1) };
    let n = if [id::BINARY_F32X4, id::BINARY_F32X4S].contains(&kernel) { walk.n / 4 } else { walk.n };
    let constants = [
        (spec::binary::OP, op as u32),
        (spec::binary::A_KIND, kind(nest, left)),
        (spec::binary::B_KIND, kind(nest, right)),
        (spec::binary::RANK, nest.rank() as u32),
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
    let kernel = compare_kernel(dtype)
        .ok_or_else(|| OpError::unsupported(format!("{} of {dtype} on the device", op.name())))?;
    let constants = [
        (spec::compare::OP, op as u32),
        (spec::compare::A_KIND, kind(&walk.nest, 0)),
        (spec::compare::B_KIND, kind(&walk.nest, 1)),
        (spec::compare::RANK, walk.nest.rank() as u32),
    ];
    let [a_strides, b_strides] = walk.strides;
    let params = params::Compare { n: walk.n, sizes: walk.sizes, a_strides, b_strides };
    lower.dispatch_1d(kernel, &constants, &[a.0, b.0, y.0], &params, walk.n as usize)
}

fn compare_kernel(dtype: DType) -> Option<KernelId> {
    Some(match dtype {
        DType::F32 => id::COMPARE_F32,
        DType::F16 => id::COMPARE_F16,
        DType::F64 => id::COMPARE_F64,
        DType::I8 => id::COMPARE_I8,
        DType::I16 => id::COMPARE_I16,
        DType::I32 => id::COMPARE_I32,
        DType::I64 => id::COMPARE_I64,
        DType::U8 | DType::Bool => id::COMPARE_U8,
        DType::U16 => id::COMPARE_U16,
        DType::U32 => id::COMPARE_U32,
        DType::U64 => id::COMPARE_U64,
        _ => return None,
    })
}

/// Emits `y = condition ? a : b` for elements of `bytes` bytes.
pub(super) fn select(
    lower: &mut Lowering<'_>,
    bytes: usize,
    [condition, a, b, y]: [Io<'_>; 4],
) -> Result<(), OpError> {
    let Some(walk) = walk(y.1, [condition.1, a.1, b.1])? else { return Ok(()) };
    let kernel = match bytes {
        1 => id::SELECT_B8,
        2 => id::SELECT_B16,
        4 => id::SELECT_B32,
        _ => id::SELECT_B64,
    };
    let [c_strides, a_strides, b_strides] = walk.strides;
    let params = params::Select { n: walk.n, sizes: walk.sizes, c_strides, a_strides, b_strides };
    let constants = [(spec::select::RANK, walk.nest.rank() as u32)];
    lower.dispatch_1d(kernel, &constants, &[condition.0, a.0, b.0, y.0], &params, walk.n as usize)?;
    lower.writes_in_order(bytes);
    Ok(())
}
