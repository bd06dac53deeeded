//! Two products of few rows, of which one is the gate of the other.

use std::sync::Arc;

use super::device::{Product, Source};
use super::joined::{self, Beside, FewRows};
use super::matmul::{Dims, MatMul, Run};
use crate::backend::DeviceInfo;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, real_kernel};
use crate::ops::scratch::Scratch;
use crate::ops::{Absorbed, AbsorbedInput, Activation, Cost, Fact, Lowering, OpCx, OpError, Operator};

/// `activation(A x B) * (A x C)`. Inputs: A, B and C, which are both given transposed where [`GatedMatMul::transposed`]. The
/// planner makes it of products of one input (pass `join_gates`).
#[derive(Clone, Debug)]
pub struct GatedMatMul {
    /// Whether B and C, of two dimensions, are given transposed.
    pub transposed: bool,
    /// Of the first product.
    pub activation: Activation,
}

impl GatedMatMul {
    fn plain(&self) -> MatMul {
        MatMul { transposed: self.transposed, ..MatMul::default() }
    }

    /// The facts of the product with input `right`.
    fn part(cx: &OpCx, right: usize) -> OpCx {
        let facts = [0, right].map(|i| cx.input_opt(i).cloned().map(Fact::of));
        OpCx::for_infer(facts.to_vec(), 1)
    }

    fn resolve(&self, cx: &OpCx) -> Result<Dims, OpError> {
        let dims = self.plain().resolve(&GatedMatMul::part(cx, 1))?;
        if cx.shape(2)? != cx.shape(1)? || dims.pairs.len() > 1 {
            return Err(cx.shape_error(2, format!("{}, as input 1, a single matrix", cx.shape(1)?)));
        }
        Ok(dims)
    }

    /// The first product, and the right operand of the second.
    fn products(&self, cx: &OpCx) -> Result<(Product, Source), OpError> {
        let dims = self.resolve(cx)?;
        let mut product = Product::of(cx, &dims)?;
        product.b = Source::input(cx, 1, dims.k, dims.n, self.transposed)?;
        product.activation = self.activation;
        Ok((product, Source::input(cx, 2, dims.k, dims.n, self.transposed)?))
    }

    /// `own` and `other`, where a kernel of `device` does both at once.
    pub(super) fn of(
        (own, cx): (&MatMul, &OpCx),
        (other, other_cx): (&MatMul, &OpCx),
        activation: &Activation,
        device: &DeviceInfo,
    ) -> Option<Absorbed> {
        let plain = |op: &MatMul| !op.biased && op.activation == Activation::None;
        if !plain(own) || !plain(other) || own.transposed != other.transposed || device.prefers_texels {
            return None;
        }
        let facts = [cx.input_opt(0), cx.input_opt(1), other_cx.input_opt(1)];
        let facts = facts.map(|info| info.cloned().map(Fact::of));
        let op = GatedMatMul { transposed: own.transposed, activation: *activation };
        let (product, _) = op.products(&OpCx::for_infer(facts.to_vec(), 1)).ok()?;
        let few = product.m > 0 && product.n > 1 && !product.pairs.is_empty();
        if !few || product.wide_vectors(true, &Lowering::new(device)).is_none() {
            return None;
        }
        let inputs = vec![AbsorbedInput::Own(0), AbsorbedInput::Own(1), AbsorbedInput::Next(1)];
        Some(Absorbed { op: Arc::new(op), inputs })
    }
}

impl Operator for GatedMatMul {
    fn name(&self) -> &'static str {
        "GatedMatMul"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=3, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        [1, 2].into_iter().try_for_each(|i| cx.expect_dtype(i, dtype))?;
        Ok(vec![TensorInfo::new(dtype, self.resolve(cx)?.output)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.resolve(cx).map_or(0, |d| 2 * d.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel(self.name(), cx, self.native(cx)?)
    }

    fn with_normalized_rows(&self, cx: &OpCx, epsilon: f32, device: &DeviceInfo) -> Option<Absorbed> {
        joined::with_normalized_rows(self, cx, epsilon, device)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        self.lower_beside(cx, &Beside::default(), lower)
    }
}

impl FewRows for GatedMatMul {
    type Native = Gated;

    const NORMED: &'static str = "NormedGatedMatMul";
    const SUMMED: Option<[&'static str; 2]> = None;

    fn inputs(&self) -> usize {
        3
    }

    fn native(&self, cx: &OpCx) -> Result<Gated, OpError> {
        let sizes = [cx.input(0)?.elements(), cx.input(1)?.elements()];
        let run = Run { dims: self.resolve(cx)?, sizes, op: self.plain() };
        Ok(Gated { run, activation: self.activation })
    }

    fn is_few(&self, cx: &OpCx, _summed: bool, device: &DeviceInfo) -> bool {
        let product = self.products(cx).ok();
        product.is_some_and(|(product, _)| product.is_few(true, &Lowering::new(device)))
    }

    fn lower_beside(&self, cx: &OpCx, beside: &Beside, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (product, other) = self.products(cx)?;
        if product.m == 0 || product.n == 0 || product.pairs.is_empty() {
            return Ok(());
        }
        if product.lower_wide_vectors(Some(other.operand), beside, lower)? {
            return Ok(());
        }
        Err(OpError::unsupported(format!("a gate of products of {} rows on a device", product.m)))
    }
}

/// The native function.
pub(crate) struct Gated {
    run: Run,
    activation: Activation,
}

impl RealKernel for Gated {
    const HALF: &'static [usize] = &[1, 2];

    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let (y, inputs) = io.output(0, self.run.dims.output.elements())?;
        gated(y, self.activation, |other, y| self.run.product(&inputs, if other { 2 } else { 1 }, y))
    }
}

/// `y = activation(first) * other`, of two products of as many elements; `product` computes one of them, the other one where
/// it is told so.
pub(crate) fn gated<T: Real>(
    y: &mut [T],
    activation: Activation,
    product: impl Fn(bool, &mut [T]) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    product(false, y)?;
    activation.apply(y);
    let mut other = Scratch::new(y.len());
    product(true, &mut other)?;
    y.iter_mut().zip(&*other).for_each(|(y, v)| *y *= *v);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Function;
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, facts, run_cpu, tensor, tensor_of};

    fn operands(m: usize, k: usize, n: usize, transposed: bool) -> [Option<Tensor>; 3] {
        let right = if transposed { [n, k] } else { [k, n] };
        [Some(tensor(&[1, m, k], 1)), Some(tensor(&right, 2)), Some(tensor(&right, 3))]
    }

    #[test]
    fn gated_products_are_products_that_meet() {
        for (m, k, n, transposed) in [
            (1, 64, 36, false),
            (3, 36, 100, true),
            (4, 132, 4100, false),
            (2, 260, 12, true),
            (1, 1100, 48, false),
            (3, 776, 20, true),
        ] {
            let inputs = operands(m, k, n, transposed);
            let plain = MatMul { transposed, ..MatMul::default() };
            let product = |i: usize| -> Vec<f32> {
                let inputs = [inputs[0].clone(), inputs[i].clone()];
                run_cpu(&plain, &inputs, 1).unwrap()[0].to_f32s().unwrap()
            };
            let want: Vec<f64> = product(1)
                .iter()
                .zip(product(2))
                .map(|(g, u)| f64::from(*g) / (1.0 + (-f64::from(*g)).exp()) * f64::from(u))
                .collect();
            let op = GatedMatMul { transposed, activation: Activation::of(Function::Swish) };
            assert_near(&run_cpu(&op, &inputs, 1).unwrap()[0], &want, 1e-4);
            #[cfg(feature = "vulkan")]
            {
                use crate::ops::testing::{Check, no_texels};
                Check::new(&op, &inputs).pretend(no_texels).tolerance(1e-4).run();
                let half = |t: &Option<Tensor>| {
                    let t = t.as_ref()?;
                    Some(tensor_of(t.shape().dims(), &t.to_f32s().unwrap(), half::f16::from_f32))
                };
                let inputs: Vec<Option<Tensor>> = inputs.iter().map(half).collect();
                Check::new(&op, &inputs).pretend(no_texels).tolerance(4e-3).run();
                Check::new(&plain, &inputs[..2]).pretend(no_texels).tolerance(4e-3).run();
            }
        }
    }

    /// Products of many rows, of rows that are no whole groups of four, or with a bias stay two.
    #[test]
    fn products_that_are_no_gate_stay_apart() {
        let mut device = crate::registry::Registry::with_defaults().find("sim").unwrap();
        device.prefers_texels = false;
        let joins = |m: usize, k: usize, n: usize, own: &MatMul, device: &DeviceInfo| {
            let [a, b, c] = operands(m, k, n, own.transposed);
            let plain = MatMul { transposed: own.transposed, ..MatMul::default() };
            let (own_cx, other_cx) =
                (facts(&plain, &[a.clone(), b], 1).unwrap(), facts(&plain, &[a, c], 1).unwrap());
            own.gate(&own_cx, (&plain, &other_cx), &Activation::of(Function::Gelu), device).is_some()
        };
        let plain = MatMul::default();
        assert!(joins(1, 64, 36, &plain, &device) && joins(4, 64, 36, &plain, &device));
        assert!(joins(1, 64, 35, &MatMul { transposed: true, ..MatMul::default() }, &device));
        assert!(!joins(5, 64, 36, &plain, &device) && !joins(1, 64, 35, &plain, &device));
        assert!(!joins(1, 64, 36, &plain.with_bias().unwrap(), &device));
        device.prefers_texels = true;
        assert!(!joins(1, 64, 36, &plain, &device));
    }
}
