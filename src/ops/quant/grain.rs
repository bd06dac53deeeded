//! Which scale and zero point an element has: one for all, one for each place of an axis, or one for each
//! block of an axis (ONNX, QuantizeLinear, "quantization granularities").

use super::elements::{Numbers, all};
use crate::dtype::DType;
use crate::kernel::{KernelError, NativeArgs};
use crate::ops::norm::Along;
use crate::ops::real::check_len;
use crate::ops::{OpCx, OpError, par};
use crate::simd::wide;

/// Elements that are computed at a time.
const CHUNK: usize = 256;

/// The scale of element `(outer, place, inner)` is that at `outer * steps[0] + place / block * steps[1] + inner *
/// steps[2]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grain {
    /// The data along the axis.
    pub along: Along,
    /// Places of the axis that have one scale.
    pub block: usize,
    /// Strides of the scales.
    pub steps: [usize; 3],
    /// Number of scales.
    pub scales: usize,
}

/// Contiguous elements whose scales are contiguous, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Number of elements.
    pub len: usize,
    /// The scale of the first one.
    pub scale: usize,
    /// 0 where they have one scale, else 1.
    pub step: usize,
}

impl Grain {
    /// That of input 0 with the scales of input 1 and, where given, the zero points of input 2.
    pub(super) fn resolve(cx: &OpCx, axis: i64, block_size: i64) -> Result<Grain, OpError> {
        let (x, scale) = (cx.shape(0)?, cx.shape(1)?);
        if let Some(zero) = cx.input_opt(2)
            && zero.shape != *scale
            && (zero.elements(), scale.elements()) != (1, 1)
        {
            return Err(cx.shape_error(2, format!("{scale}, as the scales have")));
        }
        let scales = scale.elements();
        if block_size == 0 && scales == 1 && scale.rank() <= 1 {
            let along = Along { outer: 1, len: x.elements(), inner: 1 };
            return Ok(Grain { along, block: usize::MAX, steps: [0, 0, 0], scales });
        }
        let axis = x.axis(axis)?;
        let dims = x.dims();
        let along = Along::axes(dims, axis, axis + 1);
        if block_size == 0 {
            if scale.dims() != [along.len] {
                return Err(
                    cx.shape_error(1, format!("[] or [{}], one scale for each place of the axis", along.len))
                );
            }
            return Ok(Grain { along, block: 1, steps: [0, 1, 0], scales });
        }
        let block = usize::try_from(block_size)
            .map_err(|_| OpError::unsupported(format!("blocks of {block_size} elements")))?;
        let blocks = along.len.div_ceil(block.max(1));
        let expected: Vec<usize> =
            dims.iter().enumerate().map(|(i, d)| if i == axis { blocks } else { *d }).collect();
        if scale.dims() != expected {
            return Err(cx.shape_error(1, format!("{expected:?}, one scale for {block} places of the axis")));
        }
        Ok(Grain { along, block, steps: [blocks * along.inner, along.inner, 1], scales })
    }

    /// The run that begins with element `i`; it may go beyond the last element.
    pub(super) fn run(&self, i: usize) -> Run {
        let Along { len, inner, .. } = self.along;
        let (inner, len) = (inner.max(1), len.max(1));
        let (r, place) = (i % inner, i / inner % len);
        let outer = i / inner / len;
        let scale = outer * self.steps[0] + place / self.block * self.steps[1] + r * self.steps[2];
        if inner > 1 {
            return Run { len: inner - r, scale, step: self.steps[2] };
        }
        if self.block > 1 {
            return Run { len: (self.block - place % self.block).min(len - place), scale, step: 0 };
        }
        Run { len: len - place, scale, step: self.steps[1] }
    }
}

/// The native part of QuantizeLinear and DequantizeLinear: a function of each element of input 0, its scale and its
/// zero point.
pub(super) struct Call {
    grain: Grain,
    types: [Option<DType>; 3],
    len: usize,
    result: usize,
}

impl Call {
    pub(super) fn of(cx: &OpCx, grain: Grain) -> Result<Call, OpError> {
        let types = [0, 1, 2].map(|i| cx.input_opt(i).map(|t| t.dtype));
        Ok(Call { grain, types, len: cx.input(0)?.elements(), result: cx.input_count() })
    }

    /// Writes `f(number, scale, zero point)` of every element.
    pub(super) fn map<D: bytemuck::Pod + Send>(
        &self,
        args: &mut NativeArgs<'_, '_>,
        f: impl Fn(f32, f32, f32) -> D + Send + Sync,
    ) -> Result<(), KernelError> {
        let data = self.types[0].ok_or(KernelError::Absent { index: 0 })?;
        let x = Numbers::read(args, 0, data, self.len)?;
        let scales = all(args, 1, self.types[1], self.grain.scales)?;
        let zeros = all(args, 2, self.types[2], self.grain.scales)?;
        let y = args.take_write::<D>(self.result)?;
        check_len(self.result, y.len(), self.len)?;
        par::parts(y, |start, part| {
            let mut buffer = [0f32; CHUNK];
            let mut at = 0;
            while at < part.len() {
                let run = self.grain.run(start + at);
                let len = run.len.min(part.len() - at).min(CHUNK);
                let (values, out) = (&mut buffer[..len], &mut part[at..at + len]);
                x.load(start + at, values);
                wide(
                    #[inline(always)]
                    || {
                        let each = out.iter_mut().zip(values);
                        let mut parameters = scales[run.scale..].iter().zip(&zeros[run.scale..]);
                        if run.step == 0 {
                            let Some((&s, &z)) = parameters.next() else { return };
                            each.for_each(|(y, v)| *y = f(*v, s, z));
                        } else {
                            each.zip(parameters).for_each(|((y, v), (s, z))| *y = f(*v, *s, *z));
                        }
                    },
                );
                at += len;
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_agree_with_single_elements() {
        let along = |outer, len, inner| Along { outer, len, inner };
        let grains = [
            Grain { along: along(1, 24, 1), block: usize::MAX, steps: [0, 0, 0], scales: 1 },
            Grain { along: along(2, 4, 3), block: 1, steps: [0, 1, 0], scales: 4 },
            Grain { along: along(6, 4, 1), block: 1, steps: [0, 1, 0], scales: 4 },
            Grain { along: along(2, 4, 3), block: 3, steps: [6, 3, 1], scales: 12 },
            Grain { along: along(4, 6, 1), block: 4, steps: [2, 1, 1], scales: 8 },
        ];
        for g in grains {
            let at = |i: usize| {
                let (r, place, o) =
                    (i % g.along.inner, i / g.along.inner % g.along.len, i / g.along.inner / g.along.len);
                o * g.steps[0] + place / g.block * g.steps[1] + r * g.steps[2]
            };
            for first in 0..24 {
                let run = g.run(first);
                assert!(run.len > 0);
                for i in 0..run.len.min(24 - first) {
                    assert_eq!(run.scale + i * run.step, at(first + i), "{g:?} {first} {i}");
                }
            }
            assert!((0..24).all(|i| at(i) < g.scales));
        }
    }
}
