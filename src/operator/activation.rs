//! Activations that other operators' kernels apply to their output.

use super::OpError;
use crate::expr::{Function, code};

/// A function of one element with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pointwise {
    /// The function.
    pub function: Function,
    /// Its parameters, in the order of its row; those that it does not have are 0.
    pub params: [f32; 2],
}

impl Pointwise {
    /// `function` with the parameters that ONNX gives it by default.
    pub const fn new(function: Function) -> Self {
        Pointwise { function, params: function.defaults() }
    }
}

/// A function of one element that a producer's kernel can apply before it stores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// The element itself.
    #[default]
    None,
    /// A function of the table, one that kernels have ([`Function::is_epilogue`]).
    Of(Pointwise),
}

impl Activation {
    /// `function` with the parameters that ONNX gives it by default.
    pub const fn of(function: Function) -> Activation {
        Activation::Of(Pointwise::new(function))
    }

    /// `function` with parameters.
    pub const fn with(function: Function, params: [f32; 2]) -> Activation {
        Activation::Of(Pointwise { function, params })
    }

    /// This one and then `next`, where one function does both.
    pub(crate) fn then(&self, next: &Activation) -> Option<Activation> {
        let (first, factor, term) = match (self, next) {
            (Activation::None, next) => return Some(*next),
            (
                Activation::Of(first),
                &Activation::Of(Pointwise { function: Function::Affine, params: [factor, term] }),
            ) => (first, factor, term),
            _ => return None,
        };
        // A sum after a product is one function with it, where the product added nothing.
        let is_product =
            first.params[1].to_bits() == (-0.0f32).to_bits() && factor.to_bits() == 1.0f32.to_bits();
        match first.function {
            Function::Relu => Some(Activation::with(Function::AffineRelu, [factor, term])),
            Function::HardSwish => Some(Activation::with(Function::AffineHardSwish, [factor, term])),
            Function::Affine | Function::AffineRelu | Function::AffineHardSwish if is_product => {
                Some(Activation::with(first.function, [first.params[0], term]))
            }
            _ => None,
        }
    }

    /// The activation that attribute `activation` of a fused operator names, with its parameters (ONNX's
    /// defaults where they are not given); the empty text is none.
    pub(crate) fn named(name: &str, given: [Option<f32>; 2]) -> Result<Activation, OpError> {
        const NAMED: [Function; 7] = [
            Function::Relu,
            Function::Sigmoid,
            Function::Tanh,
            Function::LeakyRelu,
            Function::Clip,
            Function::HardSigmoid,
            Function::HardSwish,
        ];
        if name.is_empty() {
            return Ok(Activation::None);
        }
        let function = NAMED.into_iter().find(|f| f.name() == name);
        let function =
            function.ok_or_else(|| OpError::unsupported(format!("the fused activation {name:?}")))?;
        let mut params = function.defaults();
        for (param, given) in params.iter_mut().zip(given).take(function.row().parameters.len()) {
            *param = given.unwrap_or(*param);
        }
        Ok(Activation::Of(Pointwise { function, params }))
    }

    /// The number that selects it in kernels (`activate` of the generated `functions.glsl`), and its two parameters.
    pub fn code(&self) -> (u32, [f32; 2]) {
        match self {
            Activation::None => (0, [0.0; 2]),
            Activation::Of(Pointwise { function, params }) => (code(*function), *params),
        }
    }

    /// The bounds that it keeps values in, where that is all it does.
    pub(crate) fn bounds(&self) -> Option<[f32; 2]> {
        match self {
            Activation::Of(Pointwise { function: Function::Relu, .. }) => Some([0.0, f32::INFINITY]),
            Activation::Of(Pointwise { function: Function::Clip, params }) => Some(*params),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fused_operator_names_an_activation() {
        assert_eq!(Activation::named("", [None; 2]), Ok(Activation::None));
        let slope = Activation::with(Function::LeakyRelu, [0.5, 0.0]);
        assert_eq!(Activation::named("LeakyRelu", [Some(0.5), None]), Ok(slope));
        assert_eq!(Activation::named("HardSigmoid", [None; 2]), Ok(Activation::of(Function::HardSigmoid)));
        assert!(Activation::named("Sin", [None; 2]).is_err());
    }

    /// A term of positive zero would make a negative zero positive.
    #[test]
    fn a_factor_and_a_term_are_one_function_with_what_is_before_them() {
        let [relu, swish] = [Function::Relu, Function::HardSwish].map(Activation::of);
        let affine = |factor, term| Activation::with(Function::Affine, [factor, term]);
        let (product, plus) = (affine(-3.0, -0.0), affine(1.0, 2.0));
        assert_eq!(Activation::None.then(&relu), Some(relu));
        for (first, both) in [
            (Activation::None, Function::Affine),
            (relu, Function::AffineRelu),
            (swish, Function::AffineHardSwish),
        ] {
            let scaled = first.then(&product);
            assert_eq!(scaled, Some(Activation::with(both, [-3.0, -0.0])));
            assert_eq!(scaled.unwrap().then(&plus), Some(Activation::with(both, [-3.0, 2.0])));
        }
        let after_a_sum = [(plus, product), (plus, plus), (affine(2.0, 0.0), plus)];
        let others = [(relu, relu), (Activation::of(Function::Tanh), product)];
        for (first, next) in after_a_sum.into_iter().chain(others) {
            assert_eq!(first.then(&next), None, "{first:?}, {next:?}");
        }
    }
}
