//! SVMRegressor.

use std::sync::Arc;

use super::svm::{SvmKernel, features_of};
use super::{FEATURES, cost_of_rows, numbers, regress, rows};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, OpCx, OpError, Operator};
use crate::shape::Shape;

/// The sum of a row's likenesses to the support vectors, each with its coefficient: numbers `[n, 1]` of rows
/// `[n, features]`.
#[derive(Clone, Debug)]
pub struct SvmRegressor {
    kernel: SvmKernel,
    /// Contiguous support vectors.
    vectors: Vec<f64>,
    /// Factor of each.
    coefficients: Vec<f64>,
    /// Features of a row.
    features: usize,
    /// The summand.
    rho: f64,
    /// Whether only the sign is wanted: 1 above 0, else -1.
    one_class: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let transform = attrs.str("post_transform", "NONE")?;
    if transform != "NONE" {
        return Err(OpError::unsupported(format!("SVMRegressor with post_transform {transform:?}")));
    }
    let kernel = SvmKernel::read(attrs)?;
    let one_class = attrs.flag("one_class", false)?;
    let rho = numbers(attrs, "rho")?;
    let Some(&rho) = rho.first() else { return Err(bad("rho", "is missing".into())) };
    let supports = attrs.int("n_supports", 0)?;
    let supports = usize::try_from(supports)
        .map_err(|_| bad("n_supports", format!("is {supports}, expected at least 0")))?;
    let (coefficients, vectors) = (numbers(attrs, "coefficients")?, numbers(attrs, "support_vectors")?);
    if supports == 0 {
        // A linear model: its coefficients are those of the features.
        let features = features_of("coefficients", &coefficients, 1)?;
        let (kernel, vectors, coefficients) = (SvmKernel::Linear, coefficients, vec![1.0]);
        return Ok(Arc::new(SvmRegressor { kernel, vectors, coefficients, features, rho, one_class }));
    }
    let features = features_of("support_vectors", &vectors, supports)?;
    if coefficients.len() != supports {
        let problem = format!("has {} elements for {supports} vectors", coefficients.len());
        return Err(bad("coefficients", problem));
    }
    Ok(Arc::new(SvmRegressor { kernel, vectors, coefficients, features, rho, one_class }))
}

impl SvmRegressor {
    fn row(&self, x: &[f64]) -> f64 {
        let vectors = self.vectors.chunks(self.features).zip(&self.coefficients);
        let sum = self.rho + vectors.map(|(v, c)| c * self.kernel.of(x, v)).sum::<f64>();
        match self.one_class {
            true if sum > 0.0 => 1.0,
            true => -1.0,
            false => sum,
        }
    }
}

impl Operator for SvmRegressor {
    fn name(&self) -> &'static str {
        "SVMRegressor"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        cx.dtype_of(0, FEATURES)?;
        let [n, len] = rows(cx)?;
        if len != self.features {
            return Err(cx.shape_error(0, format!("{} features", self.features)));
        }
        Ok(vec![TensorInfo::new(DType::F32, Shape::new([n, 1])?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        cost_of_rows(cx, 2 * self.vectors.len())
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let op = self.clone();
        regress::<f32>("SVMRegressor", cx, 1, self.cost(cx), move |x, y| y.fill(op.row(x)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{floats, read, text};
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, attrs, facts, run_cpu, tensor};
    use crate::ops::{AttrMap, AttrValue};

    fn supports() -> AttrMap {
        attrs(&[
            ("support_vectors", floats(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0])),
            ("coefficients", floats(&[1.0, -2.0, 0.5])),
            ("n_supports", AttrValue::Int(3)),
            ("rho", floats(&[0.25])),
            ("kernel_type", text("RBF")),
            ("kernel_params", floats(&[0.5, 0.0, 0.0])),
        ])
    }

    #[test]
    fn likenesses_are_summed() {
        let x = || Some(Tensor::new([2, 2], &[1.0f64, 0.0, 3.0, -1.0]).unwrap());
        let e = |d: f64| (-0.5 * d).exp();
        let want = [0.25 + 1.0 - 2.0 * e(2.0) + 0.5 * e(1.0), 0.25 + e(5.0) - 2.0 * e(13.0) + 0.5 * e(8.0)];
        let mut map = supports();
        let y = run_cpu(&*read("SVMRegressor", &map).unwrap(), &[x()], 1).unwrap();
        assert_eq!(y[0].shape().dims(), [2, 1]);
        assert_near(&y[0], &want, 1e-6);
        map.insert("rho".into(), floats(&[-0.4]));
        map.insert("one_class".into(), AttrValue::Int(1));
        let y = run_cpu(&*read("SVMRegressor", &map).unwrap(), &[x()], 1).unwrap();
        assert_near(&y[0], &[1.0, -1.0], 0.0);
    }

    #[test]
    fn without_vectors_it_is_linear() {
        let map = attrs(&[("coefficients", floats(&[2.0, -1.0])), ("rho", floats(&[0.5]))]);
        let op = read("SVMRegressor", &map).unwrap();
        let x = Some(Tensor::new([3, 2], &[1i32, 2, -3, 0, 0, 0]).unwrap());
        assert_near(&run_cpu(&*op, &[x], 1).unwrap()[0], &[0.5, -5.5, 0.5], 1e-6);
        assert!(facts(&*op, &[Some(tensor(&[2, 3], 1))], 1).is_err());
    }

    #[test]
    fn attributes_that_disagree_are_errors() {
        let wrong = [
            ("support_vectors", floats(&[1.0; 4])),
            ("support_vectors", floats(&[])),
            ("coefficients", floats(&[1.0])),
            ("rho", floats(&[])),
            ("n_supports", AttrValue::Int(-1)),
            ("n_supports", AttrValue::Int(i64::MAX)),
            ("post_transform", text("LOGISTIC")),
        ];
        for (name, value) in wrong {
            let mut map = supports();
            map.insert(name.into(), value);
            assert!(read("SVMRegressor", &map).is_err(), "{name}");
        }
    }
}
