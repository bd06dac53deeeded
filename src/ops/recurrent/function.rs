//! The functions that recurrent layers apply to their gates.

use crate::ops::real::Real;
use crate::ops::window::bad;
use crate::ops::{AttrReader, OpError};
use crate::spirv::wide::wide;

/// Which function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    /// `alpha * x + beta`.
    Affine,
    /// `max(x, 0)`.
    Relu,
    /// `x < 0 ? alpha * x : x`.
    LeakyRelu,
    /// `x < alpha ? 0 : x`.
    ThresholdedRelu,
    /// `tanh(x)`.
    Tanh,
    /// `alpha * tanh(beta * x)`.
    ScaledTanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `min(max(alpha * x + beta, 0), 1)`.
    HardSigmoid,
    /// `x < 0 ? alpha * (exp(x) - 1) : x`.
    Elu,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `log(1 + exp(x))`.
    Softplus,
}

/// Name, kind, and the defaults of alpha and beta where the function has them.
const FUNCTIONS: &[(&str, FunctionKind, Option<f32>, Option<f32>)] = &[
    ("Affine", FunctionKind::Affine, Some(1.0), Some(0.0)),
    ("Relu", FunctionKind::Relu, None, None),
    ("LeakyRelu", FunctionKind::LeakyRelu, Some(0.01), None),
    ("ThresholdedRelu", FunctionKind::ThresholdedRelu, Some(1.0), None),
    ("Tanh", FunctionKind::Tanh, None, None),
    ("ScaledTanh", FunctionKind::ScaledTanh, Some(1.0), Some(1.0)),
    ("Sigmoid", FunctionKind::Sigmoid, None, None),
    ("HardSigmoid", FunctionKind::HardSigmoid, Some(0.2), Some(0.5)),
    ("Elu", FunctionKind::Elu, Some(1.0), None),
    ("Softsign", FunctionKind::Softsign, None, None),
    ("Softplus", FunctionKind::Softplus, None, None),
];

/// A function with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Function {
    /// Which.
    pub kind: FunctionKind,
    /// Its first parameter, where it has one.
    pub alpha: f32,
    /// Its second parameter, where it has one.
    pub beta: f32,
}

impl Function {
    /// `1 / (1 + exp(-x))`.
    pub const SIGMOID: Function = Function { kind: FunctionKind::Sigmoid, alpha: 0.0, beta: 0.0 };
    /// `tanh(x)`.
    pub const TANH: Function = Function { kind: FunctionKind::Tanh, alpha: 0.0, beta: 0.0 };

    /// The number that selects it in `shaders/recurrent/cell.comp`.
    pub(super) fn code(&self) -> u32 {
        self.kind as u32
    }

    /// Applies it to every element of `values`.
    pub(super) fn apply<T: Real>(&self, values: &mut [T]) {
        let (alpha, beta) = (T::from_f64(self.alpha.into()), T::from_f64(self.beta.into()));
        let each = |values: &mut [T], f: &dyn Fn(T) -> T| values.iter_mut().for_each(|v| *v = f(*v));
        match self.kind {
            // The common ones as loops of their own, for the vectorizer.
            FunctionKind::Sigmoid => wide(
                #[inline(always)]
                || values.iter_mut().for_each(|v| *v = sigmoid(*v)),
            ),
            FunctionKind::Tanh => wide(
                #[inline(always)]
                || values.iter_mut().for_each(|v| *v = tanh(*v)),
            ),
            FunctionKind::Relu => each(values, &|x| if x < T::ZERO { T::ZERO } else { x }),
            FunctionKind::Affine => each(values, &|x| alpha * x + beta),
            FunctionKind::LeakyRelu => each(values, &|x| if x < T::ZERO { alpha * x } else { x }),
            FunctionKind::ThresholdedRelu => each(values, &|x| if x < alpha { T::ZERO } else { x }),
            FunctionKind::ScaledTanh => each(values, &|x| alpha * tanh(beta * x)),
            FunctionKind::HardSigmoid => each(values, &|x| bound(alpha * x + beta, T::ZERO, T::ONE)),
            FunctionKind::Elu => each(values, &|x| if x < T::ZERO { alpha * (x.exp() - T::ONE) } else { x }),
            FunctionKind::Softsign => each(values, &|x| x / (T::ONE + x.abs())),
            FunctionKind::Softplus => each(values, &softplus),
        }
    }
}

/// `x` within `low` and `high`; NaN stays NaN.
pub(super) fn bound<T: Real>(x: T, low: T, high: T) -> T {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

#[inline(always)]
fn sigmoid<T: Real>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// `tanh(x)` without a branch: its series up to x^11 where the exponential would cancel.
#[inline(always)]
fn tanh<T: Real>(x: T) -> T {
    let large = T::ONE - T::from_f64(2.0) / ((x + x).exp() + T::ONE);
    let z = x * x;
    let mut p = T::from_f64(-1382.0 / 155_925.0);
    for c in [62.0 / 2835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0, 1.0] {
        p = p * z + T::from_f64(c);
    }
    if z < T::from_f64(0.01) { p * x } else { large }
}

/// `log(1 + exp(x))` without overflow.
fn softplus<T: Real>(x: T) -> T {
    let large = if x > T::ZERO { x } else { T::ZERO };
    large + (T::ONE + (-x.abs()).exp()).ln()
}

/// `count` functions for each of `directions` directions from the attributes `activations`, `activation_alpha` and
/// `activation_beta`, whose numbers go in order to the functions that have such a parameter.
///
/// # Errors
/// [`OpError::Attr`] for a wrong number of functions and unknown ones.
pub(super) fn read(
    attrs: &AttrReader<'_>,
    directions: usize,
    defaults: &[Function],
) -> Result<Vec<Vec<Function>>, OpError> {
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
        let row = FUNCTIONS.iter().find(|f| f.0.eq_ignore_ascii_case(name));
        let Some(&(_, kind, alpha, beta)) = row else {
            let known: Vec<&str> = FUNCTIONS.iter().map(|f| f.0).collect();
            return Err(bad("activations", format!("names {name:?}, expected one of {}", known.join(", "))));
        };
        let take = |default: Option<f32>, list: &mut std::vec::IntoIter<f32>| {
            default.map_or(0.0, |d| list.next().unwrap_or(d))
        };
        let (alpha, beta) = (take(alpha, &mut alphas), take(beta, &mut betas));
        functions.push(Function { kind, alpha, beta });
    }
    Ok(functions.chunks(count).map(<[Function]>::to_vec).collect())
}
