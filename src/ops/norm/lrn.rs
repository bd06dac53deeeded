//! LRN: every element divided by what its neighbours in other channels sum up to.

use std::sync::Arc;

use crate::graph::TensorInfo;
use crate::kernel::table::{params, variants};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, real_kernel};
use crate::ops::window::bad;
use crate::ops::word::index32;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, par};

/// `x / (bias + alpha / size * sum of squares over size channels)^beta`.
#[derive(Clone, Debug)]
pub struct Lrn {
    /// Factor of the mean square.
    pub alpha: f32,
    /// Exponent.
    pub beta: f32,
    /// Summand.
    pub bias: f32,
    /// Channels that are summed over.
    pub size: usize,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let size = attrs.int("size", 0)?;
    Ok(Arc::new(Lrn {
        alpha: attrs.float("alpha", 1e-4)?,
        beta: attrs.float("beta", 0.75)?,
        bias: attrs.float("bias", 1.0)?,
        size: usize::try_from(size)
            .ok()
            .filter(|s| (1..=i32::MAX as usize).contains(s))
            .ok_or_else(|| bad("size", format!("is {size}, expected at least 1")))?,
    }))
}

impl Lrn {
    /// Images, channels, elements of a channel.
    pub(crate) fn resolve(&self, cx: &OpCx) -> Result<[usize; 3], OpError> {
        let [n, c, rest @ ..] = cx.shape(0)?.dims() else {
            return Err(cx.shape_error(0, "[batch, channels, ...]"));
        };
        Ok([*n, *c, rest.iter().product()])
    }

    /// Numbers of channels before and after an element's own that are summed.
    pub(crate) fn reach(&self) -> (usize, usize) {
        ((self.size - 1) / 2, self.size / 2)
    }
}

impl Operator for Lrn {
    fn name(&self) -> &'static str {
        "LRN"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        self.resolve(cx)?;
        Ok(vec![TensorInfo::new(dtype, cx.shape(0)?.clone())])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let elements = cx.input_opt(0).map_or(0, TensorInfo::elements);
        Cost { flops: Cost::product(&[elements, 2 * self.size + 4]), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel("LRN", cx, Run { op: self.clone(), dims: self.resolve(cx)? })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let kernel = variants::Lrn { t: cx.dtype(0)? }.id()?;
        let [batch, channels, plane] = self.resolve(cx)?;
        let n = index32(batch * channels * plane)?;
        let (before, after) = self.reach();
        let params = params::Lrn {
            n,
            channels: channels as u32,
            plane: plane as u32,
            before: before as u32,
            after: after as u32,
            factor: (f64::from(self.alpha) / self.size as f64) as f32,
            bias: self.bias,
            exponent: -self.beta,
        };
        lower.dispatch_1d(kernel, &[], &[Operand::Input(0), Operand::Output(0)], &params, n as usize)
    }
}

struct Run {
    op: Lrn,
    dims: [usize; 3],
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let [batch, channels, plane] = self.dims;
        let (y, inputs) = io.output(0, batch * channels * plane)?;
        let x = inputs.get(0, batch * channels * plane)?;
        if y.is_empty() {
            return Ok(());
        }
        let (before, after) = self.op.reach();
        let factor = T::from_f64(f64::from(self.op.alpha) / self.op.size as f64);
        let (bias, exponent) = (T::from_f64(self.op.bias.into()), T::from_f64(-f64::from(self.op.beta)));
        // A power takes as long as many products.
        let work = y.len() * (16 + self.op.size.min(channels));
        par::rows(y, plane, work, |i, y| {
            let c = i % channels;
            let image = &x[(i - c) * plane..][..channels * plane];
            y.fill(T::ZERO);
            let window = c.saturating_sub(before)..c.saturating_add(after + 1).min(channels);
            for x in image[window.start * plane..window.end * plane].chunks(plane) {
                y.iter_mut().zip(x).for_each(|(y, x)| *y += *x * *x);
            }
            y.iter_mut().zip(&image[c * plane..]).for_each(|(y, x)| {
                *y = *x * (bias + factor * *y).powf(exponent);
            });
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::AttrValue;
    use crate::ops::test_util::{assert_near, attrs, read_op, run_f32, tensor};

    #[test]
    fn neighbouring_channels_are_summed() {
        for size in [1i64, 2, 3, 4, 9] {
            let (n, c, plane) = (2, 5, 6);
            let x = tensor(&[n, c, 2, 3], 1);
            let map = attrs(&[("size", AttrValue::Int(size)), ("alpha", AttrValue::Float(0.5))]);
            let op = read_op("LRN", 13, &map).unwrap();
            let v = x.to_f32s().unwrap();
            let mut want = Vec::new();
            for i in 0..v.len() {
                let (image, channel) = (i / plane / c, (i / plane % c) as i64);
                let (before, after) = ((size - 1) / 2, size - 1 - (size - 1) / 2);
                let sum: f64 = (channel - before..=channel + after)
                    .filter(|k| (0..c as i64).contains(k))
                    .map(|k| f64::from(v[(image * c + k as usize) * plane + i % plane]).powi(2))
                    .sum();
                want.push(f64::from(v[i]) / (1.0 + 0.5 / size as f64 * sum).powf(0.75));
            }
            assert_near(&run_f32(&*op, &[Some(x)]).unwrap(), &want, 1e-5);
        }
        assert!(read_op("LRN", 13, &attrs(&[])).is_err());
    }
}
