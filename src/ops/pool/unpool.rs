//! MaxUnpool: the maxima of a pool back at their places.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeArgs, NativeKernel, Unit};
use crate::ops::index::positions::position;
use crate::ops::movement::region::{self, signed_strides};
use crate::ops::real::FLOATS;
use crate::ops::strided::Nest;
use crate::ops::word::word;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator};
use crate::shape::Shape;

/// Input 0 at the places that input 1 (MaxPool's second output) names, 0 elsewhere. The places are those in a
/// tensor of the size that the pool's window had; where input 2 gives a larger one, zeros follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaxUnpool {
    /// Sizes of the window.
    pub kernel: Vec<usize>,
    /// Its steps, 1 where empty.
    pub strides: Vec<usize>,
    /// Elements of padding before each axis, then after each; none where empty.
    pub pads: Vec<usize>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let list = |name: &str| -> Result<Option<Vec<usize>>, OpError> {
        let Some(values) = attrs.ints_opt(name)? else { return Ok(None) };
        let sizes: Result<Vec<usize>, _> = values.iter().map(|v| usize::try_from(*v)).collect();
        sizes.map(Some).map_err(|_| attrs.error(name, "has a negative number").into())
    };
    let kernel = list("kernel_shape")?.ok_or_else(|| attrs.error("kernel_shape", "is missing"))?;
    let (strides, pads) = (list("strides")?.unwrap_or_default(), list("pads")?.unwrap_or_default());
    for (name, given, expected) in
        [("strides", strides.len(), kernel.len()), ("pads", pads.len(), 2 * kernel.len())]
    {
        if given != 0 && given != expected {
            return Err(attrs.error(name, format!("has {given} numbers, expected {expected}")).into());
        }
    }
    Ok(Arc::new(MaxUnpool { kernel, strides, pads }))
}

impl MaxUnpool {
    /// The shape of what was pooled, as the window tells.
    fn pooled(&self, cx: &OpCx) -> Result<Shape, OpError> {
        let x = cx.shape(0)?;
        let rank = self.kernel.len();
        if x.rank() != rank + 2 {
            return Err(cx.shape_error(0, format!("{} dimensions", rank + 2)));
        }
        let mut dims = x[..2].to_vec();
        for d in 0..rank {
            let stride = self.strides.get(d).copied().unwrap_or(1);
            let pads = [d, rank + d].map(|p| self.pads.get(p).copied().unwrap_or(0));
            let size = x[2 + d]
                .checked_sub(1)
                .and_then(|n| n.checked_mul(stride)?.checked_add(self.kernel[d]))
                .and_then(|n| n.checked_sub(pads[0])?.checked_sub(pads[1]));
            dims.push(size.ok_or_else(|| cx.shape_error(0, "sizes that the window and padding fit"))?);
        }
        Ok(Shape::new(dims)?)
    }

    fn shapes(&self, cx: &OpCx) -> Result<[Shape; 2], OpError> {
        let pooled = self.pooled(cx)?;
        let Some(dims) = cx.need_i64s_opt(2)? else { return Ok([pooled.clone(), pooled]) };
        let output = Shape::from_i64(&dims)?;
        let fits = output.rank() == pooled.rank()
            && output[..2] == pooled[..2]
            && output.iter().zip(pooled.iter()).all(|(o, p)| o >= p);
        if !fits {
            let problem = format!("is {output}, which does not hold {pooled}");
            return Err(OpError::Value { input: 2, problem });
        }
        Ok([pooled, output])
    }
}

fn run<W: bytemuck::Pod>(
    args: &mut NativeArgs<'_, '_>,
    out: usize,
    [pooled, output]: &[Shape; 2],
) -> Result<(), KernelError> {
    let (x, at) = (args.read::<W>(0)?, args.read::<i64>(1)?);
    let y = args.take_write::<W>(out)?;
    y.fill(W::zeroed());
    let (from, to) = (pooled.strides(), output.strides());
    let (same, places) = (pooled == output, pooled.elements());
    for (x, &i) in x.iter().zip(at) {
        let i = position(i, places)?;
        if same {
            if let Some(y) = y.get_mut(i) {
                *y = *x;
            }
            continue;
        }
        let place: usize = (0..pooled.rank()).map(|d| i / from[d].max(1) % pooled[d].max(1) * to[d]).sum();
        if let Some(y) = y.get_mut(place) {
            *y = *x;
        }
    }
    Ok(())
}

impl Operator for MaxUnpool {
    fn name(&self) -> &'static str {
        "MaxUnpool"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[2]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=3, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        cx.expect_dtype(1, DType::I64)?;
        if cx.shape(1)? != cx.shape(0)? {
            return Err(cx.shape_error(1, cx.shape(0)?.to_string()));
        }
        let [_, output] = self.shapes(cx)?;
        Ok(vec![TensorInfo::new(dtype, output)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 0, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (shapes, out, bytes) = (self.shapes(cx)?, cx.input_count(), cx.dtype(0)?.bytes());
        Ok(NativeKernel::new("MaxUnpool", move |args| match bytes {
            2 => run::<u16>(args, out, &shapes),
            4 => run::<u32>(args, out, &shapes),
            _ => run::<u64>(args, out, &shapes),
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let kernel = variants::Unpool { t: Unit::Bytes(cx.dtype(0)?.bytes()) }.id()?;
        let [pooled, output] = self.shapes(cx)?;
        region::zeros(lower, cx, 0)?;
        let n = cx.input(0)?.elements();
        if n == 0 || pooled.elements() == 0 {
            return Ok(());
        }
        let nest = Nest::new(&pooled, &[signed_strides(&output)]);
        let many = || OpError::unsupported("more dimensions or elements than the kernel walks");
        let p = params::Unpool {
            sizes: nest.kernel_sizes().ok_or_else(many)?,
            strides: nest.kernel_strides(0).ok_or_else(many)?,
            n: word(n)?,
            places: word(pooled.elements())?,
        };
        let rank = [(spec::unpool::RANK, nest.rank() as u32)];
        let args = [Operand::Input(0), Operand::Input(1), Operand::Output(0)];
        lower.dispatch_1d(kernel, &rank, &args, &p, n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{facts, run_cpu, tensor, tensor_of};

    fn op(pads: &[usize]) -> MaxUnpool {
        MaxUnpool { kernel: vec![2, 3], strides: vec![2, 3], pads: pads.to_vec() }
    }

    #[test]
    fn places_are_those_of_the_window_also_in_a_larger_output() {
        let x = Tensor::new([1, 1, 1, 2], &[5f32, 6.0]).unwrap();
        let at = Tensor::new([1, 1, 1, 2], &[2i64, 9]).unwrap();
        let shape = Tensor::from_i64s(&[1, 1, 2, 7]);
        let y = run_cpu(&op(&[]), &[Some(x.clone()), Some(at.clone()), Some(shape)], 1).unwrap();
        let mut want = [0f32; 14];
        (want[2], want[10]) = (5.0, 6.0);
        assert_eq!(y[0].as_slice::<f32>().unwrap(), want);
        let small = Tensor::from_i64s(&[1, 1, 2, 5]);
        assert!(facts(&op(&[]), &[Some(x.clone()), Some(at.clone()), Some(small)], 1).is_err());
        let cx = facts(&op(&[0, 1, 0, 1]), &[Some(x), Some(at)], 1).unwrap();
        assert_eq!(cx.outputs()[0].shape.dims(), [1, 1, 2, 4]);
    }

    #[cfg(feature = "vulkan")]
    #[test]
    fn devices_put_them_at_the_same_places() {
        use crate::ops::testing::check_op;
        let x = tensor(&[2, 3, 3, 5], 1);
        let at: Vec<i64> = (0..90).map(|i| i * 6 + i % 6).collect();
        let at = Tensor::new([2, 3, 3, 5], &at).unwrap();
        let halves = tensor_of(x.shape(), &x.to_f32s().unwrap(), half::f16::from_f32);
        let shape = Tensor::from_i64s(&[2, 3, 8, 15]);
        for x in [x, halves] {
            check_op(&op(&[]), &[Some(x.clone()), Some(at.clone())], 0.0);
            check_op(&op(&[]), &[Some(x), Some(at.clone()), Some(shape.clone())], 0.0);
        }
        // An odd number of halves, which end within a word.
        let x = tensor_of(&[1, 1, 1, 1], &[2.5], half::f16::from_f32);
        let at = Tensor::new([1, 1, 1, 1], &[3i64]).unwrap();
        check_op(&op(&[]), &[Some(x), Some(at), Some(Tensor::from_i64s(&[1, 1, 3, 3]))], 0.0);
    }
}
