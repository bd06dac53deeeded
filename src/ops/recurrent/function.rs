//! The functions that recurrent layers apply to their gates.

use crate::expr::Function;
use crate::ops::pointwise::Pointwise;
use crate::ops::real::Real;
use crate::ops::window::bad;
use crate::ops::{AttrReader, OpError};

/// The functions that a layer may name.
const FUNCTIONS: [Function; 11] = [
    Function::Affine,
    Function::Relu,
    Function::LeakyRelu,
    Function::ThresholdedReluGate,
    Function::Tanh,
    Function::ScaledTanh,
    Function::Sigmoid,
    Function::HardSigmoid,
    Function::Elu,
    Function::Softsign,
    Function::Softplus,
];

/// `x` within `low` and `high`; NaN stays NaN.
pub(super) fn bound<T: Real>(x: T, low: T, high: T) -> T {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// `count` functions for each of `directions` directions from the attributes `activations`, `activation_alpha` and
/// `activation_beta`, whose numbers go in order to the functions that have such a parameter.
pub(super) fn read(
    attrs: &AttrReader<'_>,
    directions: usize,
    defaults: &[Pointwise],
) -> Result<Vec<Vec<Pointwise>>, OpError> {
    let names = attrs.strs_opt("activations")?.unwrap_or_default();
    let mut alphas = attrs.floats_opt("activation_alpha")?.unwrap_or_default().into_iter();
    let mut betas = attrs.floats_opt("activation_beta")?.unwrap_or_default().into_iter();
    if names.is_empty() {
        return Ok(vec![defaults.to_vec(); directions]);
    }
    let count = defaults.len();
    if names.len() != count * directions {
        let expected = count * directions;
        return Err(bad("activations", format!("names {} functions, expected {expected}", names.len())));
    }
    let mut functions = Vec::with_capacity(names.len());
    for name in names {
        let named = FUNCTIONS.into_iter().find(|f| f.name().eq_ignore_ascii_case(name));
        let Some(function) = named else {
            let known: Vec<&str> = FUNCTIONS.iter().map(|f| f.name()).collect();
            return Err(bad("activations", format!("names {name:?}, expected one of {}", known.join(", "))));
        };
        let mut params = function.defaults();
        for (i, param) in params.iter_mut().enumerate().take(function.row().parameters.len()) {
            let list = if i == 0 { &mut alphas } else { &mut betas };
            *param = list.next().unwrap_or(*param);
        }
        functions.push(Pointwise { function, params });
    }
    Ok(functions.chunks(count).map(<[Pointwise]>::to_vec).collect())
}
