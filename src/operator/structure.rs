//! Computations of operators, in the terms of the planner's passes.

use super::Activation;
use crate::dtype::DType;

/// The computation of an operator ([`super::Operator::structure`]). One that does more than a variant says, such as apply an
/// activation to a product, is not of that structure.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Structure<'a> {
    /// `alpha * A * B + beta * C`: products of the matrices in the last two dimensions of inputs A and B, optionally
    /// with C.
    MatMul {
        /// Factor of the product.
        alpha: f32,
        /// Factor of C.
        beta: f32,
        /// Whether A and B are given transposed.
        transposed: [bool; 2],
    },
    /// Products of the rows of input 0 with a matrix that later inputs hold as codes of few bits.
    CodedMatMul,
    /// Attention of queries over keys and values, or a product of it.
    Attention(AttentionPorts),
    /// A convolution of input 0 with weights `[channels, ...]`, input 1, optionally with a bias `[channels]`, input 2.
    Conv,
    /// A function of the elements at one place of all inputs, which are broadcast by NumPy's rule.
    Elementwise(Elementwise),
    /// A function of input 0 times input 1, both of one shape.
    Gate(Activation),
    /// The exponents of vectors divided by their sum.
    Softmax {
        /// The axis of the vectors, negative ones counted from the end.
        axis: i64,
        /// Whether all axes from `axis` on are one vector.
        flatten: bool,
    },
    /// Means of input 0 over some axes, which stay with size 1.
    Mean,
    /// Input 0 normalized over the axes from `axis` on, with statistics in `float32`, times a scale, input 1, plus, with the
    /// mean, a bias, input 2.
    LayerNormalization {
        /// The first axis, negative ones counted from the end.
        axis: i64,
        /// Added to the variance.
        epsilon: f32,
        /// Whether the mean is subtracted.
        center: bool,
    },
    /// The sum of inputs 0 and 1, of which the second may be repeated, and of a bias, the last input where there is one,
    /// normalized over the last axis as [`Structure::LayerNormalization`] is, times a scale, input 2, plus, with the mean, input
    /// 3. Output 3 is the sum.
    SumNormalization {
        /// Added to the variance.
        epsilon: f32,
        /// Whether the mean is subtracted.
        center: bool,
    },
    /// Dimension `i` of the output is dimension `perm[i]` of the input.
    Transpose {
        /// The order, where it is written out.
        perm: Option<&'a [i64]>,
    },
    /// Input 0 repeated along the dimensions in which the output is larger.
    Expand,
    /// The elements of input 0 in another type. Of other inputs the type alone is read.
    Cast,
    /// Input 1 where input 0 is true, else input 2.
    Select,
    /// Whether an element of input 0 is not a number.
    IsNan,
    /// The inputs joined along an axis.
    Concat,
    /// `activation((x - mean) / sqrt(var + epsilon) * scale + bias)` for every channel of input 0 `[n, c, ...]`; the
    /// other inputs are scale, bias, mean and var, each `[c]`; of some models each is `[c, ...]`, a number for every element
    /// of an image.
    BatchNormalization {
        /// Added to the variance.
        epsilon: f32,
        /// Applied to the output.
        activation: Activation,
    },
    /// Input 0 `[n, c, ...]` normalized over each group of channels of an image, times a scale, input 1, plus a bias, input 2.
    GroupNormalization {
        /// How many groups; `None` where each channel is one.
        groups: Option<usize>,
        /// Added to the variance.
        epsilon: f32,
        /// Whether scale and bias have a number for each channel, not for each group.
        by_channel: bool,
        /// Applied to the output.
        activation: Activation,
    },
    /// Input 0 as elements of a smaller type, by a scale, input 1, and optionally a zero point, input 2.
    Quantize {
        /// Whether places of an axis share a scale in blocks.
        blocks: bool,
        /// The output's type; `None` takes that of the zero point, without one `uint8`.
        dtype: Option<DType>,
        /// The type that is divided in; `None` takes the scale's.
        precision: Option<DType>,
    },
    /// The numbers that the elements of input 0 stand for, by a scale, input 1, and optionally a zero point, input 2.
    Dequantize {
        /// The axis of scales, negative ones counted from the end.
        axis: i64,
        /// Whether places of the axis share a scale in blocks.
        blocks: bool,
        /// The output's type; `None` takes the scale's.
        dtype: Option<DType>,
    },
    /// A function of the application's, which runs for its results alone.
    Custom,
}

/// A function of the elements at one place ([`Structure::Elementwise`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Elementwise {
    /// The sum of two.
    Add,
    /// The product of two.
    Mul,
    /// The first divided by the second.
    Div,
    /// The first, where it is below 0 times the second.
    PRelu,
    /// Another function.
    Other,
}

/// What attention reads ([`Structure::Attention`]). All numbers are positions of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionPorts {
    /// Keys of this run.
    pub keys: usize,
    /// Keys of earlier runs, `[batch, heads, rows, elements]`, where they are an input.
    pub past: Option<usize>,
    /// What is added to the scores.
    pub bias: Option<usize>,
    /// How many rows of keys there are, of which the value is read.
    pub total: Option<usize>,
    /// Whether it extends the past keys and values and gives them as its next outputs.
    pub extends: bool,
    /// Whether the places of keys mean anything beyond their order: rows are counted by inputs, or lie in a window that ends
    /// at the query.
    pub placed: bool,
}

impl AttentionPorts {
    /// Attention over the keys `keys` of this run alone.
    pub fn new(keys: usize) -> Self {
        AttentionPorts { keys, past: None, bias: None, total: None, extends: false, placed: false }
    }
}

/// A tensor of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The input of this position.
    Input(usize),
    /// The output of this position.
    Output(usize),
}
