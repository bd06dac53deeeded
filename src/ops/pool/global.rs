//! GlobalAveragePool, GlobalMaxPool and GlobalLpPool: one element for every channel.

use std::sync::Arc;

use super::pool_op::{PoolKind, read_p};
use super::rows::{power, root};
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::linalg::product::sum_of;
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, real_kernel};
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator, par};
use crate::shape::Shape;
use crate::simd::wide;

/// A pool over all of `[n, c, ...]` but its first two dimensions, which become one element each.
#[derive(Clone, Debug)]
pub struct GlobalPool {
    /// The reduction of a channel; padding and positions have no meaning here.
    pub kind: PoolKind,
}

pub(super) fn average(_attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(GlobalPool { kind: PoolKind::Average { include_pad: false } }))
}

pub(super) fn max(_attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(GlobalPool { kind: PoolKind::Max { column_major: false } }))
}

pub(super) fn lp(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(GlobalPool { kind: PoolKind::Lp { p: read_p(attrs, opset)? } }))
}

/// The channels of a tensor: how many, and elements of each.
pub(super) fn channels(cx: &OpCx) -> Result<(usize, usize), OpError> {
    let [n, c, rest @ ..] = cx.shape(0)?.dims() else {
        return Err(cx.shape_error(0, "[batch, channels, ...]"));
    };
    Ok((n * c, rest.iter().product()))
}

impl Operator for GlobalPool {
    fn name(&self) -> &'static str {
        match self.kind {
            PoolKind::Max { .. } => "GlobalMaxPool",
            PoolKind::Average { .. } => "GlobalAveragePool",
            PoolKind::Lp { .. } => "GlobalLpPool",
        }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        let (_, elements) = channels(cx)?;
        if elements == 0 {
            return Err(cx.shape_error(0, "channels of at least one element"));
        }
        let shape = cx.shape(0)?;
        let dims: Vec<usize> = shape.iter().enumerate().map(|(i, d)| if i < 2 { *d } else { 1 }).collect();
        Ok(vec![TensorInfo::new(dtype, Shape::new(dims)?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: cx.input_opt(0).map_or(0, |i| i.elements() as u64), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (channels, elements) = channels(cx)?;
        real_kernel(self.name(), cx, Run { channels, elements, kind: self.kind })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        super::device::global(cx, channels(cx)?, self.kind, lower)
    }
}

/// Elements that one task has at least.
const PART: usize = 32 << 10;

/// The largest number.
#[inline(always)]
fn largest<T: Real>(x: &[T]) -> T {
    let larger = |m: T, v: T| if v > m { v } else { m };
    let (blocks, rest) = x.as_chunks::<16>();
    let mut tops = [T::LOWEST; 16];
    for block in blocks {
        for i in 0..16 {
            tops[i] = larger(tops[i], block[i]);
        }
    }
    tops.into_iter().chain(rest.iter().copied()).fold(T::LOWEST, larger)
}

struct Run {
    channels: usize,
    elements: usize,
    kind: PoolKind,
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let (y, inputs) = io.output(0, self.channels)?;
        let x = inputs.get(0, self.channels * self.elements)?;
        let one = |(y, x): (&mut T, &[T])| {
            *y = match self.kind {
                PoolKind::Max { .. } => wide(
                    #[inline(always)]
                    || largest(x),
                ),
                PoolKind::Average { .. } => sum_of(x, |v| v) / T::from_f64(self.elements as f64),
                PoolKind::Lp { p } => root(sum_of(x, |v| power(v, p)), p),
            };
        };
        let size = self.elements.max(1);
        let part = (PART / size).max(1);
        par::share(y.chunks_mut(part).zip(x.chunks(part * size)), |(y, x)| {
            y.iter_mut().zip(x.chunks(size)).for_each(one);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::AttrValue;
    use crate::ops::test_util::{assert_near, attrs, read_op, run_f32, tensor};

    #[test]
    fn global_pools_match_their_definition() {
        for shape in [vec![2, 3, 5, 7], vec![1, 2, 40], vec![2, 1, 3, 4, 5]] {
            let x = tensor(&shape, 1);
            let plane: usize = shape[2..].iter().product();
            let v: Vec<f64> = x.to_f32s().unwrap().into_iter().map(f64::from).collect();
            let check = |name: &str, list: &[(&str, AttrValue)], f: &dyn Fn(&[f64]) -> f64| {
                let op = read_op(name, 22, &attrs(list)).unwrap();
                let got = run_f32(&*op, &[Some(x.clone())]).unwrap();
                assert_eq!(got.shape().rank(), shape.len());
                assert_near(&got, &v.chunks(plane).map(f).collect::<Vec<_>>(), 1e-6);
            };
            check("GlobalAveragePool", &[], &|c| c.iter().sum::<f64>() / c.len() as f64);
            check("GlobalMaxPool", &[], &|c| c.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            check("GlobalLpPool", &[], &|c| c.iter().map(|v| v * v).sum::<f64>().sqrt());
            check("GlobalLpPool", &[("p", AttrValue::Int(3))], &|c| {
                c.iter().map(|v| v.abs().powi(3)).sum::<f64>().cbrt()
            });
        }
    }

    #[test]
    fn channels_without_elements_are_errors() {
        let op = read_op("GlobalMaxPool", 22, &attrs(&[])).unwrap();
        assert!(run_f32(&*op, &[Some(tensor(&[1, 2, 0], 1))]).is_err());
        assert!(run_f32(&*op, &[Some(tensor(&[2], 1))]).is_err());
    }
}
