//! Two products of few rows, of which one is the gate of the other.

use std::sync::Arc;

use super::joined::{self, Beside, FewRows};
use crate::backend::DeviceInfo;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::real::{Real, RealInputs, RealIo, RealKernel, real_kernel};
use crate::ops::scratch::Scratch;
use crate::ops::{Absorbed, AbsorbedInput, Activation, Cost, Lowering, OpCx, OpError, Operator};

/// A product of few rows of which two of one form are one operator.
pub(crate) trait Gate: FewRows<Native: GateKernel> {
    /// What both are called, and with a normalization of their rows.
    const GATED: [&'static str; 2];

    /// Inputs of a matrix, which follow the rows: those of the first, then those of the second.
    const EACH: usize;

    /// Whether `other` is a product of the same form.
    fn is_form_of(&self, other: &Self) -> bool;

    /// Whether the facts of the first product and of the second allow one kernel for both.
    ///
    /// # Errors
    /// As [`Operator::infer`], which has looked at each.
    fn check_both(&self, facts: [&OpCx; 2]) -> Result<(), OpError>;
}

/// The native function of such a product.
pub(crate) trait GateKernel: RealKernel {
    /// As [`RealKernel::HALF`], for both matrices.
    const HALVES: &'static [usize];

    /// Elements of its result.
    fn elements(&self) -> usize;

    /// The product with the matrix after `before` inputs of another one.
    ///
    /// # Errors
    /// As [`RealKernel::run`].
    fn product<T: Real>(
        &self,
        inputs: &RealInputs<'_, T>,
        before: usize,
        y: &mut [T],
    ) -> Result<(), KernelError>;
}

/// `activation(A x B) * (A x C)`. Inputs: A, then those of B as the product has them, and the same of C. The planner makes it of
/// products of one input (pass `join_gates`).
#[derive(Clone, Copy, Debug)]
pub struct Gated<P> {
    /// The form of both products.
    pub product: P,
    /// Of the first.
    pub activation: Activation,
}

/// As [`Operator::gate`].
pub(crate) fn gate<P: Gate>(
    product: &P,
    cx: &OpCx,
    (other, other_cx): (&dyn Operator, &OpCx),
    activation: &Activation,
    device: &DeviceInfo,
) -> Option<Absorbed> {
    let other: &P = other.downcast_ref()?;
    let more = |cx: &OpCx| (P::EACH + 1..cx.input_count()).any(|i| cx.has(i));
    if !product.is_form_of(other) || more(cx) || more(other_cx) {
        return None;
    }
    let op = Gated { product: product.clone(), activation: *activation };
    let facts = (0..=P::EACH).map(|i| cx.fact(i)).chain((1..=P::EACH).map(|i| other_cx.fact(i)));
    let both = OpCx::for_infer(facts.map(Option::<&_>::cloned).collect(), 1);
    op.infer(&both).ok()?;
    let inputs = (0..=P::EACH).map(AbsorbedInput::Own).chain((1..=P::EACH).map(AbsorbedInput::Next));
    let few = op.is_few(&both, &Beside::default(), device);
    few.then(|| Absorbed { op: Arc::new(op), inputs: inputs.collect() })
}

/// The parts of [`Operator`] that products of few rows share: what they do at once with others.
macro_rules! few_rows {
    () => {
        fn gate(
            &self,
            cx: &OpCx,
            other: (&dyn Operator, &OpCx),
            activation: &Activation,
            device: &DeviceInfo,
        ) -> Option<Absorbed> {
            crate::ops::linalg::gated::gate(self, cx, other, activation, device)
        }

        fn with_normalized_rows(&self, cx: &OpCx, epsilon: f32, device: &DeviceInfo) -> Option<Absorbed> {
            crate::ops::linalg::joined::with_normalized_rows(self, cx, epsilon, device)
        }

        fn with_summand(&self, cx: &OpCx, device: &DeviceInfo) -> Option<Absorbed> {
            crate::ops::linalg::joined::with_summand(self, cx, device)
        }
    };
}
pub(crate) use few_rows;

/// The facts of product `n`.
fn part<P: Gate>(cx: &OpCx, n: usize) -> OpCx {
    let place = |i: usize| if i == 0 { 0 } else { n * P::EACH + i };
    let part = OpCx::for_infer((0..=P::EACH).map(|i| cx.fact(place(i)).cloned()).collect(), 1);
    if cx.outputs().is_empty() { part } else { part.with_outputs(cx.outputs().to_vec()) }
}

impl<P> Gated<P> {
    /// What its kernel does besides the first product.
    fn beside(&self, beside: &Beside) -> Beside {
        Beside { gate: Some(self.activation), ..*beside }
    }
}

impl<P: Gate> Operator for Gated<P> {
    fn name(&self) -> &'static str {
        P::GATED[0]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(P::EACH + 2..=2 * P::EACH + 1, 1..=1)?;
        let [own, other] = [0, 1].map(|n| part::<P>(cx, n));
        let outputs = self.product.infer(&own)?;
        self.product.infer(&other)?;
        self.product.check_both([&own, &other])?;
        Ok(outputs)
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let flops = self.product.cost(&part::<P>(cx, 0)).flops;
        Cost { flops: flops.saturating_mul(2), bytes: cx.bytes_touched() }
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

impl<P: Gate> FewRows for Gated<P> {
    type Native = Native<P::Native>;

    const NORMED: &'static str = P::GATED[1];
    const SUMMED: Option<[&'static str; 2]> = None;

    fn inputs(&self) -> usize {
        2 * P::EACH + 1
    }

    fn native(&self, cx: &OpCx) -> Result<Self::Native, OpError> {
        let product = self.product.native(&part::<P>(cx, 0))?;
        Ok(Native { product, each: P::EACH, activation: self.activation })
    }

    fn is_few(&self, cx: &OpCx, beside: &Beside, device: &DeviceInfo) -> bool {
        self.product.is_few(&part::<P>(cx, 0), &self.beside(beside), device)
    }

    fn is_worth_a_gain(&self, cx: &OpCx, beside: &Beside, device: &DeviceInfo) -> bool {
        self.product.is_worth_a_gain(&part::<P>(cx, 0), &self.beside(beside), device)
    }

    fn lower_beside(&self, cx: &OpCx, beside: &Beside, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        self.product.lower_beside(&part::<P>(cx, 0), &self.beside(beside), lower)
    }
}

/// The native function of both products.
pub(crate) struct Native<K> {
    product: K,
    each: usize,
    activation: Activation,
}

impl<K: GateKernel> RealKernel for Native<K> {
    const HALF: &'static [usize] = K::HALVES;

    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let (y, inputs) = io.output(0, self.product.elements())?;
        self.product.product(&inputs, 0, y)?;
        self.activation.apply(y);
        let mut other = Scratch::new(y.len());
        self.product.product(&inputs, self.each, &mut other)?;
        y.iter_mut().zip(&*other).for_each(|(y, v)| *y *= *v);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Function;
    use crate::graph::Tensor;
    use crate::ops::linalg::{GatedMatMul, MatMul};
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
            let op = GatedMatMul { product: plain.clone(), activation: Activation::of(Function::Swish) };
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
