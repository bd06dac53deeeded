//! Activations that other operators' kernels apply to their output.

use super::OpError;
use super::pointwise::Pointwise;
use super::real::{Real, as_f32s_mut, as_f64s_mut};
use crate::expr::{Function, code};

/// A function of one element that a producer's kernel can apply before it stores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// The element itself.
    #[default]
    None,
    /// A function of the table, one that kernels have ([`crate::expr::Use`]).
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

    /// The activation that attribute `activation` of a fused operator names, with its parameters (ONNX's
    /// defaults where they are not given); the empty text is none.
    ///
    /// # Errors
    /// [`OpError::Unsupported`] for other names.
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

    /// Applies it to every element.
    pub(crate) fn apply<T: Real>(&self, values: &mut [T]) {
        if let Activation::Of(function) = self {
            function.apply(values);
        }
    }
}

impl Pointwise {
    /// Applies it to every element in place.
    pub(crate) fn apply<T: Real>(&self, values: &mut [T]) {
        /// Elements that are copied at once.
        const COPIED: usize = 128;
        let loops = self.function.loops();
        if let Some(values) = as_f32s_mut(values) {
            (loops.f32_in_place)(values, self.params);
        } else if let Some(values) = as_f64s_mut(values) {
            let mut x = [0.0; COPIED];
            for values in values.chunks_mut(COPIED) {
                let x = &mut x[..values.len()];
                x.copy_from_slice(values);
                (loops.f64)(x, values, self.params);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_nan_survives_clipping() {
        let all = Function::ALL.iter().map(|f| Activation::of(*f)).chain([Activation::None]);
        let codes: std::collections::BTreeSet<u32> = all.map(|a| a.code().0).collect();
        assert_eq!(codes.len(), Function::ALL.len() + 1);
        let mut values = [f32::NAN, 9.0, -9.0];
        Activation::with(Function::Clip, [0.0, 6.0]).apply(&mut values);
        assert!(values[0].is_nan() && values[1..] == [6.0, 0.0]);
        let mut values = [f64::NAN, 9.0, -9.0];
        Activation::of(Function::Relu).apply(&mut values);
        assert!(values[0].is_nan() && values[1..] == [9.0, 0.0]);
    }

    #[test]
    fn a_fused_operator_names_an_activation() {
        assert_eq!(Activation::named("", [None; 2]), Ok(Activation::None));
        let slope = Activation::with(Function::LeakyRelu, [0.5, 0.0]);
        assert_eq!(Activation::named("LeakyRelu", [Some(0.5), None]), Ok(slope));
        assert_eq!(Activation::named("HardSigmoid", [None; 2]), Ok(Activation::of(Function::HardSigmoid)));
        assert!(Activation::named("Sin", [None; 2]).is_err());
    }
}
