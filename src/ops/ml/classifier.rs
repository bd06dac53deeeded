//! TreeEnsembleClassifier.

use std::sync::Arc;

use super::forest::{Aggregate, Forest};
use super::post::PostTransform;
use super::tree_ensemble::check_features;
use super::{FEATURES, classified, classify, cost_of_rows, labels, tree_attrs};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, OpCx, OpError, Operator};

/// The labels `[n]` of the best classes of rows `[n, features]`, and the scores `[n, classes]`.
#[derive(Clone, Debug)]
pub struct TreeEnsembleClassifier {
    /// The trees; their targets are classes.
    pub forest: Arc<Forest>,
    /// The classes' labels.
    pub labels: Vec<i64>,
    /// Added to the scores.
    pub base: Vec<f64>,
    /// The transformation of the scores of a row.
    pub post: PostTransform,
    /// The only one of two classes with leaves; it determines the other one's score.
    pub only: Option<usize>,
    /// Whether leaves' weights are all 0 or above.
    pub positive: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let labels = labels(attrs, "classlabels_int64s")?;
    if labels.len() < 2 {
        return Err(OpError::unsupported("a classifier of one class"));
    }
    let forest = tree_attrs::forest(attrs, "class", labels.len())?;
    let base = tree_attrs::numbers(attrs, "base_values")?;
    let weights = || forest.leaves.iter().flatten();
    let first = weights().next().map_or(0, |w| w.0);
    let only = (labels.len() == 2 && weights().all(|w| w.0 == first)).then_some(first);
    let fits = base.is_empty() || base.len() == labels.len() || (only.is_some() && base.len() == 1);
    if !fits {
        return Err(bad("base_values", format!("has {} elements for {} classes", base.len(), labels.len())));
    }
    let positive = weights().all(|w| w.1 >= 0.0);
    let post = PostTransform::read(attrs)?;
    Ok(Arc::new(TreeEnsembleClassifier { forest: Arc::new(forest), labels, base, post, only, positive }))
}

impl TreeEnsembleClassifier {
    /// The class is that of the best score before it is transformed, the first of equal ones; as in onnxruntime a
    /// class without a leaf is never chosen. Of two classes the second is chosen where its score is above one half if
    /// scores are probabilities, and above 0 otherwise.
    fn row(&self, x: &[f64], scores: &mut [f64]) -> i64 {
        let spoken = self.forest.scores(x, Aggregate::Sum, scores);
        scores.iter_mut().zip(&self.base).for_each(|(s, b)| *s += b);
        let (Some(only), [first, second]) = (self.only, &mut *scores) else {
            let known = |i: &usize| !self.base.is_empty() || spoken[*i];
            let better = |best: usize, i: usize| if scores[i] > scores[best] { i } else { best };
            let class = (0..scores.len()).filter(known).reduce(better).unwrap_or(0);
            self.post.apply(scores);
            return self.labels[class];
        };
        let threshold = if self.positive { 0.5 } else { 0.0 };
        if only == 0 && self.base.len() < 2 {
            let score = *first;
            let mut both = [0.0; 2];
            self.post.apply_to_one(score, self.positive, &mut both);
            [*first, *second] = both;
            return self.labels[usize::from(score > threshold)];
        }
        // Class 0 has a score of its own, which decides nothing.
        let class = usize::from(*second > threshold);
        self.post.apply(scores);
        self.labels[class]
    }
}

impl Operator for TreeEnsembleClassifier {
    fn name(&self) -> &'static str {
        "TreeEnsembleClassifier"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=2)?;
        cx.dtype_of(0, FEATURES)?;
        let [n, _] = check_features(cx, &self.forest)?;
        classified(cx, n, self.labels.len())
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        cost_of_rows(cx, 8 * self.forest.roots.len())
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let op = self.clone();
        classify("TreeEnsembleClassifier", cx, self.labels.len(), self.cost(cx), move |x, scores| {
            op.row(x, scores)
        })
    }
}
