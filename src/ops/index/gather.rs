//! Gather: slices of one axis, picked by indices.

use std::sync::Arc;

use rayon::prelude::*;

use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{id, params, spec};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::movement::region::word;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator};
use crate::shape::Shape;

/// Picks slices of `axis` of input 0 by the indices of input 1; negative ones count from the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gather {
    /// The axis, negative ones counted from the end.
    pub axis: i64,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Gather { axis: attrs.int("axis", 0)? }))
}

/// Sizes of a gather: `[outer, size, inner]` of the data, and how many indices.
#[derive(Clone, Copy)]
struct Sizes {
    outer: usize,
    size: usize,
    inner: usize,
    indices: usize,
}

impl Gather {
    fn sizes(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        let x = cx.shape(0)?;
        let axis = x.axis(self.axis)?;
        Ok(Sizes {
            outer: x[..axis].iter().product(),
            size: x[axis],
            inner: x[axis + 1..].iter().product(),
            indices: cx.shape(1)?.elements(),
        })
    }
}

/// The position that index `i` means on an axis of `size`.
///
/// # Errors
/// [`KernelError::Value`] where it is out of range.
pub(crate) fn position(i: i64, size: usize) -> Result<usize, KernelError> {
    let n = size as i64;
    let at = if i < 0 { i.saturating_add(n) } else { i };
    if (0..n).contains(&at) {
        return Ok(at as usize);
    }
    Err(KernelError::Value { what: format!("index {i} is out of range for an axis of {size} elements") })
}

impl Operator for Gather {
    fn name(&self) -> &'static str {
        "Gather"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        let x = cx.input(0)?;
        cx.dtype_of(1, &[DType::I64, DType::I32])?;
        let axis = x.shape.axis(self.axis)?;
        let mut dims = x.shape[..axis].to_vec();
        dims.extend_from_slice(cx.shape(1)?);
        dims.extend_from_slice(&x.shape[axis + 1..]);
        let shape = Shape::new(dims)?;
        if x.shape[axis] == 0 && shape.elements() > 0 {
            return Err(cx.shape_error(0, "at least one element along the axis"));
        }
        Ok(vec![TensorInfo::new(x.dtype, shape)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let out: u64 = cx.outputs().iter().map(|o| o.bytes() as u64).sum();
        Cost { flops: 0, bytes: 2 * out + cx.input_opt(1).map_or(0, |i| i.bytes() as u64) }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let Sizes { size, inner, .. } = self.sizes(cx)?;
        let row = inner * cx.dtype(0)?.bytes();
        let wide = cx.dtype(1)? == DType::I64;
        Ok(NativeKernel::new("Gather", move |args| {
            let x = args.read::<u8>(0)?;
            let indices: Vec<usize> = if wide {
                args.read::<i64>(1)?.iter().map(|&i| position(i, size)).collect::<Result<_, _>>()?
            } else {
                args.read::<i32>(1)?.iter().map(|&i| position(i.into(), size)).collect::<Result<_, _>>()?
            };
            let y = args.take_write::<u8>(2)?;
            if y.is_empty() || row == 0 {
                return Ok(());
            }
            let block = indices.len() * row;
            let rows = |(o, out): (usize, &mut [u8])| {
                for (&k, out) in indices.iter().zip(out.chunks_exact_mut(row)) {
                    let from = (o * size + k) * row;
                    if let Some(src) = x.get(from..from + row) {
                        out.copy_from_slice(src);
                    }
                }
            };
            if y.len() > 1 << 18 && y.len() > block {
                y.par_chunks_mut(block).enumerate().for_each(rows);
            } else {
                y.chunks_mut(block).enumerate().for_each(rows);
            }
            Ok(())
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Sizes { outer, size, mut inner, indices } = self.sizes(cx)?;
        let mut bytes = cx.dtype(0)?.bytes();
        while bytes < 16 && inner % 2 == 0 {
            inner /= 2;
            bytes *= 2;
        }
        let kernel = match bytes {
            1 => id::GATHER_B8,
            2 => id::GATHER_B16,
            4 => id::GATHER_B32,
            8 => id::GATHER_B64,
            _ => id::GATHER_B128,
        };
        let n = outer * indices * inner;
        let p =
            params::Gather { n: word(n)?, inner: word(inner)?, indices: word(indices)?, size: word(size)? };
        let words = if cx.dtype(1)? == DType::I64 { 2 } else { 1 };
        let args = [Operand::Input(0), Operand::Input(1), Operand::Output(0)];
        lower.dispatch_1d(kernel, &[(spec::gather::INDEX_WORDS, words)], &args, &p, n)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_count_from_both_ends_and_are_bounded() {
        assert_eq!(position(-1, 3).unwrap(), 2);
        assert_eq!(position(0, 3).unwrap(), 0);
        assert!(position(3, 3).is_err());
        assert!(position(-4, 3).is_err());
        assert!(position(i64::MIN, 3).is_err());
    }
}
