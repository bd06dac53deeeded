//! TreeEnsembleRegressor.

use std::sync::Arc;

use super::forest::{Aggregate, Forest};
use super::post::PostTransform;
use super::tree_ensemble::check_features;
use super::{FEATURES, cost_of_rows, regress, tree_attrs};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, OpCx, OpError, Operator};
use crate::shape::Shape;

/// The numbers `[n, targets]` that trees give to rows `[n, features]`.
#[derive(Clone, Debug)]
pub struct TreeEnsembleRegressor {
    /// The trees.
    pub forest: Arc<Forest>,
    /// The aggregation of their weights.
    pub aggregate: Aggregate,
    /// Added to the targets.
    pub base: Vec<f64>,
    /// The transformation of the scores of a row.
    pub post: PostTransform,
}

/// The most targets.
const MAX_TARGETS: i64 = 1 << 24;

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let targets = attrs.int("n_targets", 1)?;
    if !(1..=MAX_TARGETS).contains(&targets) {
        return Err(bad("n_targets", format!("is {targets}, expected 1 to {MAX_TARGETS}")));
    }
    let forest = tree_attrs::forest(attrs, "target", targets as usize)?;
    let base = tree_attrs::numbers(attrs, "base_values")?;
    if !base.is_empty() && base.len() != forest.targets {
        return Err(bad("base_values", format!("has {} elements for {targets} targets", base.len())));
    }
    let words = &[
        ("SUM", Aggregate::Sum),
        ("AVERAGE", Aggregate::Average),
        ("MIN", Aggregate::Min),
        ("MAX", Aggregate::Max),
    ];
    Ok(Arc::new(TreeEnsembleRegressor {
        forest: Arc::new(forest),
        aggregate: attrs.choice("aggregate_function", Aggregate::Sum, words)?,
        base,
        post: PostTransform::read(attrs)?,
    }))
}

impl Operator for TreeEnsembleRegressor {
    fn name(&self) -> &'static str {
        "TreeEnsembleRegressor"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        cx.dtype_of(0, FEATURES)?;
        let [n, _] = check_features(cx, &self.forest)?;
        Ok(vec![TensorInfo::new(DType::F32, Shape::new([n, self.forest.targets])?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        cost_of_rows(cx, 8 * self.forest.roots.len())
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let op = self.clone();
        regress::<f32>("TreeEnsembleRegressor", cx, self.forest.targets, self.cost(cx), move |x, scores| {
            op.forest.scores(x, op.aggregate, scores);
            scores.iter_mut().zip(&op.base).for_each(|(s, b)| *s += b);
            op.post.apply(scores);
        })
    }
}
