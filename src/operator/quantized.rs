//! Operators on bytes that represent numbers.

use std::sync::Arc;

use super::Operator;
use crate::dtype::DType;

/// The numbers that the bytes of a tensor represent: `(byte - zero point) * scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// `int8` or `uint8`.
    pub dtype: DType,
    /// Finite and above 0.
    pub scale: f32,
    /// An element of `dtype`.
    pub zero: i32,
}

impl Scaling {
    /// The smallest and the largest element.
    pub fn range(&self) -> [i32; 2] {
        if self.dtype == DType::I8 { [-128, 127] } else { [0, 255] }
    }

    /// The element that stands for `v`, as QuantizeLinear has it.
    pub fn element(&self, v: f32) -> i32 {
        let [low, high] = self.range();
        let whole = (v / self.scale).round_ties_even() + self.zero as f32;
        // NaN becomes 0.
        whole.clamp(low as f32, high as f32) as i32
    }
}

/// The facts for a form of an operator on bytes ([`Operator::quantized`]).
#[derive(Clone, Copy, Debug)]
pub struct Quantized<'a> {
    /// The scalings of the inputs; of products only that of input 0, because weights may have several scales.
    pub inputs: &'a [Scaling],
    /// The scaling of the output.
    pub output: Scaling,
    /// The smallest and the largest element of the output, where an activation keeps it within fewer than there are.
    pub clamp: Option<[i32; 2]>,
    /// Whether a product has a bias.
    pub biased: bool,
}

/// How an operator that puts zeros between the elements that it moves does so with bytes ([`Operator::zero_fill`]).
#[derive(Clone, Debug)]
pub enum ZeroFill {
    /// It puts none.
    None,
    /// This operator takes its place.
    By(Arc<dyn Operator>),
    /// It reads what it puts there from this input.
    Input(usize),
}
