//! Activations that other operators' kernels apply to their output.

use super::OpError;
use crate::spirv::math;

/// A function of one element that a producer's kernel can apply before it stores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// The element itself.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// `x < 0 ? slope * x : x`.
    LeakyRelu {
        /// Factor of negative elements.
        slope: f32,
    },
    /// `min(max(x, low), high)`.
    Clip {
        /// Lower bound.
        low: f32,
        /// Upper bound.
        high: f32,
    },
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
    /// `max(0, min(1, alpha * x + beta))`.
    HardSigmoid {
        /// Slope.
        alpha: f32,
        /// Offset.
        beta: f32,
    },
    /// `x * max(0, min(1, x / 6 + 1 / 2))`.
    HardSwish,
    /// `x * sigmoid(x)`.
    Silu,
    /// `x / 2 * (1 + erf(x / sqrt(2)))`.
    Gelu,
    /// Gelu by its approximation through tanh.
    GeluTanh,
}

impl Activation {
    /// The activation that attribute `activation` of a fused operator names, with its parameters (ONNX's
    /// defaults where they are not given); the empty text is none.
    ///
    /// # Errors
    /// [`OpError::Unsupported`] for other names.
    pub(crate) fn named(name: &str, given: [Option<f32>; 2]) -> Result<Activation, OpError> {
        let [a, b] = given;
        Ok(match name {
            "" => Activation::None,
            "Relu" => Activation::Relu,
            "Sigmoid" => Activation::Sigmoid,
            "Tanh" => Activation::Tanh,
            "LeakyRelu" => Activation::LeakyRelu { slope: a.unwrap_or(0.01) },
            "Clip" => Activation::Clip { low: a.unwrap_or(f32::MIN), high: b.unwrap_or(f32::MAX) },
            "HardSigmoid" => Activation::HardSigmoid { alpha: a.unwrap_or(0.2), beta: b.unwrap_or(0.5) },
            "HardSwish" => Activation::HardSwish,
            other => return Err(OpError::unsupported(format!("the fused activation {other:?}"))),
        })
    }

    /// The number that selects it in kernels (`shaders/include/activation.glsl`), and its two parameters.
    pub fn code(&self) -> (u32, [f32; 2]) {
        match *self {
            Activation::None => (0, [0.0; 2]),
            Activation::Relu => (1, [0.0; 2]),
            Activation::LeakyRelu { slope } => (2, [slope, 0.0]),
            Activation::Clip { low, high } => (3, [low, high]),
            Activation::Sigmoid => (4, [0.0; 2]),
            Activation::Tanh => (5, [0.0; 2]),
            Activation::HardSigmoid { alpha, beta } => (6, [alpha, beta]),
            Activation::HardSwish => (7, [0.0; 2]),
            Activation::Silu => (8, [0.0; 2]),
            Activation::Gelu => (9, [0.0; 2]),
            Activation::GeluTanh => (10, [0.0; 2]),
        }
    }

    /// Its value at `x`, without calls, so that loops over it vectorize where the kind is known.
    #[inline(always)]
    pub fn apply(&self, x: f32) -> f32 {
        match *self {
            Activation::None => x,
            // Written so that NaN stays NaN.
            Activation::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            Activation::LeakyRelu { slope } => {
                if x < 0.0 {
                    slope * x
                } else {
                    x
                }
            }
            Activation::Clip { low, high } => {
                let y = if x < low { low } else { x };
                if y > high { high } else { y }
            }
            Activation::Sigmoid => math::sigmoid(x, 0.0, 0.0),
            Activation::Tanh => math::tanh(x, 0.0, 0.0),
            Activation::HardSigmoid { alpha, beta } => (alpha * x + beta).clamp(0.0, 1.0),
            Activation::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
            Activation::Silu => math::swish(x, 1.0, 0.0),
            Activation::Gelu => math::gelu(x, 0.0, 0.0),
            Activation::GeluTanh => math::gelu_tanh(x, 0.0, 0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_nan_survives_clipping() {
        let all = [
            Activation::None,
            Activation::Relu,
            Activation::LeakyRelu { slope: 0.1 },
            Activation::Clip { low: 0.0, high: 6.0 },
            Activation::Sigmoid,
            Activation::Tanh,
            Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
            Activation::HardSwish,
            Activation::Silu,
            Activation::Gelu,
            Activation::GeluTanh,
        ];
        let codes: std::collections::BTreeSet<u32> = all.iter().map(|a| a.code().0).collect();
        assert_eq!(codes.len(), all.len());
        assert!(Activation::Relu.apply(f32::NAN).is_nan());
        assert!(Activation::Clip { low: 0.0, high: 6.0 }.apply(f32::NAN).is_nan());
        assert_eq!(Activation::Clip { low: 0.0, high: 6.0 }.apply(9.0), 6.0);
    }
}
