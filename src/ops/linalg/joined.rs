//! Products of few rows with what comes before and after them in a decoder: the normalization of their rows, and the residual
//! sum.

use std::sync::Arc;

use crate::backend::DeviceInfo;
use crate::graph::TensorInfo;
use crate::kernel::table::spec;
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::norm::statistics;
use crate::ops::real::{Real, RealIo, RealKernel, real_kernel};
use crate::ops::{Absorbed, AbsorbedInput, Activation, Cost, Lowering, OpCx, OpError, Operand, Operator};
use crate::simd::wide;

/// What a kernel for few rows does besides its product (`shaders/include/beside.glsl`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beside {
    /// The gain of normalized rows, and what is added to their mean square.
    pub norm: Option<(Operand, f32)>,
    /// A tensor as the result.
    pub summand: Option<Operand>,
    /// A second matrix, whose inputs follow those of the first: the result is this function of the first product times the second.
    pub gate: Option<Activation>,
}

impl Beside {
    /// Constants of the kernel, none where it does the product alone.
    pub(crate) fn constants(&self) -> Vec<(u32, u32)> {
        let mut constants = Vec::new();
        if let Some((_, epsilon)) = self.norm {
            constants.extend([(spec::beside::NORMED, 1), (spec::beside::EPSILON, epsilon.to_bits())]);
        }
        constants.extend(self.summand.map(|_| (spec::beside::SUMMED, 1)));
        constants
    }

    pub(crate) fn gain(&self) -> Operand {
        self.norm.map_or(Operand::Unused, |(gain, _)| gain)
    }

    pub(crate) fn summand(&self) -> Operand {
        self.summand.unwrap_or(Operand::Unused)
    }

    /// The error of products of `m` rows, for which there is no such kernel.
    pub(crate) fn unsupported(&self, m: usize) -> OpError {
        let what = if self.gate.is_some() { "a gate of products" } else { "a product" };
        OpError::unsupported(format!("{what} of {m} rows on a device"))
    }
}

/// A product whose left operand, input 0, is rows, and for which there are kernels for few of them.
pub(crate) trait FewRows: Operator + Clone {
    /// Its native function, for floating-point numbers.
    type Native: RealKernel;

    /// What it is called with a normalization.
    const NORMED: &'static str;

    /// What it is called with a summand, and with both; `None` where its kernels have no summand.
    const SUMMED: Option<[&'static str; 2]>;

    /// Positions of its inputs.
    fn inputs(&self) -> usize;

    /// Its native function.
    ///
    /// # Errors
    /// As [`Operator::cpu`].
    fn native(&self, cx: &OpCx) -> Result<Self::Native, OpError>;

    /// Whether such a kernel does it and what is `beside` it on `device`.
    fn is_few(&self, cx: &OpCx, beside: &Beside, device: &DeviceInfo) -> bool;

    /// Whether `device` reads a gain beside its rows in less time than a dispatch of the normalization takes.
    fn is_worth_a_gain(&self, _cx: &OpCx, _beside: &Beside, _device: &DeviceInfo) -> bool {
        true
    }

    /// Emits that kernel.
    ///
    /// # Errors
    /// As [`Operator::gpu`].
    fn lower_beside(&self, cx: &OpCx, beside: &Beside, lower: &mut Lowering<'_>) -> Result<(), OpError>;
}

/// `product` of normalized rows, plus a summand. Inputs: its own, in [`FewRows::inputs`] places, the gain of the
/// normalization, and the summand. The planner makes it (pass `norms_in_products`).
#[derive(Clone, Debug)]
pub(crate) struct Joined<P> {
    /// The product.
    product: P,
    /// What is added to the mean square of a row, where rows are normalized.
    epsilon: Option<f32>,
    /// Whether there is a summand.
    summed: bool,
}

/// As [`Operator::with_normalized_rows`].
pub(crate) fn with_normalized_rows<P: FewRows>(
    product: &P,
    cx: &OpCx,
    epsilon: f32,
    device: &DeviceInfo,
) -> Option<Absorbed> {
    let beside = Beside::default();
    if !product.is_worth_a_gain(cx, &beside, device) || !product.is_few(cx, &beside, device) {
        return None;
    }
    let op = Joined { product: product.clone(), epsilon: Some(epsilon), summed: false };
    let own = (1..product.inputs()).map(|i| own(cx, i));
    let inputs = [AbsorbedInput::Next(0)].into_iter().chain(own).chain([AbsorbedInput::Next(1)]).collect();
    Some(Absorbed { op: Arc::new(op), inputs })
}

/// As [`Operator::with_summand`].
pub(crate) fn with_summand<P: FewRows>(product: &P, cx: &OpCx, device: &DeviceInfo) -> Option<Absorbed> {
    Joined { product: product.clone(), epsilon: None, summed: false }.summed(cx, device)
}

fn own(cx: &OpCx, i: usize) -> AbsorbedInput {
    if cx.has(i) { AbsorbedInput::Own(i) } else { AbsorbedInput::Absent }
}

impl<P: FewRows> Joined<P> {
    /// The same with a summand.
    fn summed(&self, cx: &OpCx, device: &DeviceInfo) -> Option<Absorbed> {
        let op = Joined { summed: true, ..self.clone() };
        let fits =
            !self.summed && P::SUMMED.is_some() && self.product.is_few(&self.part(cx), &op.beside(), device);
        let inputs = (0..self.gain()).map(|i| own(cx, i));
        let gain = if self.epsilon.is_some() { own(cx, self.gain()) } else { AbsorbedInput::Absent };
        let inputs = inputs.chain([gain, AbsorbedInput::Next(0)]).collect();
        fits.then(|| Absorbed { op: Arc::new(op), inputs })
    }

    /// What the kernel does besides the product.
    fn beside(&self) -> Beside {
        Beside {
            norm: self.epsilon.map(|epsilon| (Operand::Input(self.gain()), epsilon)),
            summand: self.summed.then(|| Operand::Input(self.summand())),
            gate: None,
        }
    }

    /// Where the gain is among the inputs.
    fn gain(&self) -> usize {
        self.product.inputs()
    }

    /// Where the summand is among the inputs.
    fn summand(&self) -> usize {
        self.product.inputs() + 1
    }

    /// The facts of the product.
    fn part(&self, cx: &OpCx) -> OpCx {
        let facts = (0..self.product.inputs()).map(|i| cx.fact(i).cloned());
        let part = OpCx::for_infer(facts.collect(), 1);
        if cx.outputs().is_empty() { part } else { part.with_outputs(cx.outputs().to_vec()) }
    }

    /// Elements of a row.
    fn len(&self, cx: &OpCx) -> Result<usize, OpError> {
        cx.shape(0)?.last().copied().ok_or_else(|| cx.shape_error(0, "at least one dimension"))
    }
}

impl<P: FewRows> Operator for Joined<P> {
    fn name(&self) -> &'static str {
        match P::SUMMED.filter(|_| self.summed) {
            Some([_, both]) if self.epsilon.is_some() => both,
            Some([summed, _]) => summed,
            None => P::NORMED,
        }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let inputs = if self.summed { self.summand() } else { self.gain() } + 1;
        cx.expect_counts(inputs..=inputs, 1..=1)?;
        let outputs = self.product.infer(&self.part(cx))?;
        if self.epsilon.is_some() {
            cx.expect_dtype(self.gain(), cx.dtype(0)?)?;
            let len = self.len(cx)?;
            if cx.shape(self.gain())?.elements() != len {
                return Err(cx.shape_error(self.gain(), format!("{len} elements")));
            }
        }
        match outputs.first() {
            Some(y) if self.summed => {
                cx.expect_dtype(self.summand(), y.dtype)?;
                if *cx.shape(self.summand())? != y.shape {
                    return Err(cx.shape_error(self.summand(), y.shape.to_string()));
                }
            }
            _ => {}
        }
        Ok(outputs)
    }

    fn with_summand(&self, cx: &OpCx, device: &DeviceInfo) -> Option<Absorbed> {
        self.summed(cx, device)
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.product.cost(&self.part(cx)).flops, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let part = self.part(cx);
        let native = Native {
            product: self.product.native(&part)?,
            norm: self.epsilon.map(|epsilon| (self.gain(), epsilon)),
            summand: self.summed.then(|| self.summand()),
            rows: cx.input(0)?.elements(),
            len: self.len(cx)?,
            result: cx.output(0)?.elements(),
        };
        real_kernel(self.name(), cx, native)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (part, beside) = (self.part(cx), self.beside());
        if !self.product.is_few(&part, &beside, lower.device()) {
            return Err(OpError::unsupported(format!("{} of such rows on this device", self.name())));
        }
        self.product.lower_beside(&part, &beside, lower)
    }
}

/// The native function of a [`Joined`]: its parts, one after the other.
struct Native<K> {
    product: K,
    norm: Option<(usize, f32)>,
    summand: Option<usize>,
    /// Elements of all rows, of one of them, and of the result.
    rows: usize,
    len: usize,
    result: usize,
}

impl<K: RealKernel> RealKernel for Native<K> {
    const HALF: &'static [usize] = K::HALF;

    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        if let Some((gain, epsilon)) = self.norm {
            let inputs = io.inputs();
            let (x, gain) = (inputs.get(0, self.rows)?, inputs.get(gain, self.len)?);
            let epsilon = T::from_f64(epsilon.into());
            let mut normed = Vec::with_capacity(x.len());
            for x in x.chunks(self.len.max(1)) {
                let (_, inverse) = wide(
                    #[inline(always)]
                    || statistics(x, false, epsilon),
                );
                normed.extend(x.iter().zip(gain).map(|(x, gain)| *x * inverse * *gain));
            }
            io.replace_input(0, normed);
        }
        self.product.run(io)?;
        if let Some(index) = self.summand {
            let (y, inputs) = io.output(0, self.result)?;
            let summand = inputs.get(index, self.result)?;
            y.iter_mut().zip(summand).for_each(|(y, v)| *y += *v);
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests;
