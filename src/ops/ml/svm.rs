//! Support vector machines: what their classifier and their regressor share.

use super::numbers;
use crate::ops::window::bad;
use crate::ops::{AttrReader, OpError};

/// The kernel function of two rows of features.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SvmKernel {
    /// `x . y`.
    Linear,
    /// `(gamma x . y + coef0) ^ degree`.
    Poly {
        /// Factor of the product.
        gamma: f64,
        /// Its summand.
        coef0: f64,
        /// The exponent.
        degree: f64,
    },
    /// `exp(-gamma |x - y|^2)`.
    Rbf {
        /// Factor of the squared distance.
        gamma: f64,
    },
    /// `tanh(gamma x . y + coef0)`.
    Sigmoid {
        /// Factor of the product.
        gamma: f64,
        /// Its summand.
        coef0: f64,
    },
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

impl SvmKernel {
    /// The attributes `kernel_type` and `kernel_params`.
    pub(super) fn read(attrs: &AttrReader<'_>) -> Result<SvmKernel, OpError> {
        let params = numbers(attrs, "kernel_params")?;
        let (gamma, coef0, degree) = match *params.as_slice() {
            [] => (0.0, 0.0, 0.0),
            [gamma, coef0, degree] => (gamma, coef0, degree),
            _ => return Err(bad("kernel_params", format!("has {} elements, expected 3", params.len()))),
        };
        let words = &[
            ("LINEAR", SvmKernel::Linear),
            ("POLY", SvmKernel::Poly { gamma, coef0, degree }),
            ("RBF", SvmKernel::Rbf { gamma }),
            ("SIGMOID", SvmKernel::Sigmoid { gamma, coef0 }),
        ];
        Ok(attrs.choice("kernel_type", SvmKernel::Linear, words)?)
    }

    /// Its value for two rows of one length.
    pub(super) fn of(self, x: &[f64], y: &[f64]) -> f64 {
        match self {
            SvmKernel::Linear => dot(x, y),
            SvmKernel::Poly { gamma, coef0, degree } => (gamma * dot(x, y) + coef0).powf(degree),
            SvmKernel::Rbf { gamma } => {
                let distance: f64 = x.iter().zip(y).map(|(x, y)| (x - y) * (x - y)).sum();
                (-gamma * distance).exp()
            }
            SvmKernel::Sigmoid { gamma, coef0 } => (gamma * dot(x, y) + coef0).tanh(),
        }
    }
}

/// Number of features of each of `rows` rows of `list`; at least one.
pub(super) fn features_of(name: &str, list: &[f64], rows: usize) -> Result<usize, OpError> {
    match list.len().checked_div(rows) {
        Some(features) if features > 0 && list.len().is_multiple_of(rows) => Ok(features),
        _ => Err(bad(name, format!("has {} elements for {rows} vectors", list.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_util::attrs;
    use crate::ops::{AttrMap, AttrValue};

    #[test]
    fn kernels_are_read_and_computed() {
        let (x, y) = ([1.0, -2.0, 0.5], [0.5, 1.0, 2.0]);
        let run = |kind: &str, params: &[f32]| {
            let map: AttrMap = attrs(&[
                ("kernel_type", AttrValue::Str(kind.as_bytes().to_vec())),
                ("kernel_params", AttrValue::Floats(params.to_vec())),
            ]);
            Ok::<_, OpError>(SvmKernel::read(&AttrReader::new(&map, 1, 1))?.of(&x, &y))
        };
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-12, "{got}, expected {want}");
        near(run("LINEAR", &[]).unwrap(), -0.5);
        near(run("POLY", &[0.5, 1.0, 3.0]).unwrap(), 0.75f64.powi(3));
        near(run("RBF", &[0.25, 0.0, 0.0]).unwrap(), (-0.25f64 * 11.5).exp());
        near(run("SIGMOID", &[2.0, 0.5, 0.0]).unwrap(), (-0.5f64).tanh());
        assert!(run("RBF", &[0.25]).is_err());
        assert!(run("COSINE", &[]).is_err());
    }

    #[test]
    fn vectors_have_one_length() {
        assert_eq!(features_of("v", &[0.0; 6], 3).unwrap(), 2);
        assert!(features_of("v", &[0.0; 6], 4).is_err());
        assert!(features_of("v", &[0.0; 6], 0).is_err());
        assert!(features_of("v", &[], 3).is_err());
    }
}
