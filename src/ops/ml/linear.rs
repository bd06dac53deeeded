//! LinearClassifier and LinearRegressor.

use std::sync::Arc;

use super::post::PostTransform;
use super::{FEATURES, best, classified, classify, cost_of_rows, labels, numbers, regress, rows};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, OpCx, OpError, Operator};
use crate::shape::Shape;

/// Scores `x * coefficients^T + intercepts`.
#[derive(Clone, Debug)]
struct Scores {
    coefficients: Vec<f64>,
    intercepts: Vec<f64>,
    count: usize,
}

impl Scores {
    fn read(attrs: &AttrReader<'_>, count: usize) -> Result<Scores, OpError> {
        let (coefficients, intercepts) = (numbers(attrs, "coefficients")?, numbers(attrs, "intercepts")?);
        if coefficients.is_empty() || coefficients.len() % count != 0 {
            let problem = format!("has {} elements for {count} scores", coefficients.len());
            return Err(bad("coefficients", problem));
        }
        if !intercepts.is_empty() && intercepts.len() != count {
            return Err(bad("intercepts", format!("has {} elements for {count} scores", intercepts.len())));
        }
        Ok(Scores { coefficients, intercepts, count })
    }

    fn check(&self, cx: &OpCx) -> Result<usize, OpError> {
        cx.dtype_of(0, FEATURES)?;
        let ([n, len], want) = (rows(cx)?, self.coefficients.len() / self.count);
        if len != want {
            return Err(cx.shape_error(0, format!("{want} features")));
        }
        Ok(n)
    }

    fn row(&self, x: &[f64], out: &mut [f64]) {
        for (i, out) in out.iter_mut().enumerate().take(self.count) {
            let c = &self.coefficients[i * x.len()..][..x.len()];
            let sum: f64 = x.iter().zip(c).map(|(x, c)| x * c).sum();
            *out = sum + self.intercepts.get(i).copied().unwrap_or(0.0);
        }
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        cost_of_rows(cx, 2 * self.coefficients.len())
    }
}

/// The numbers `[n, targets]` of rows `[n, features]`.
#[derive(Clone, Debug)]
pub struct LinearRegressor {
    scores: Scores,
    post: PostTransform,
}

pub(super) fn read_regressor(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let targets = attrs.int("targets", 1)?;
    let count = usize::try_from(targets).ok().filter(|t| *t > 0);
    let count = count.ok_or_else(|| bad("targets", format!("is {targets}, expected at least 1")))?;
    let scores = Scores::read(attrs, count)?;
    Ok(Arc::new(LinearRegressor { scores, post: PostTransform::read(attrs)? }))
}

impl Operator for LinearRegressor {
    fn name(&self) -> &'static str {
        "LinearRegressor"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let n = self.scores.check(cx)?;
        Ok(vec![TensorInfo::new(DType::F32, Shape::new([n, self.scores.count])?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        self.scores.cost(cx)
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let op = self.clone();
        regress::<f32>("LinearRegressor", cx, self.scores.count, self.cost(cx), move |x, scores| {
            op.scores.row(x, scores);
            op.post.apply(scores);
        })
    }
}

/// The labels `[n]` of the best classes of rows `[n, features]`, and the scores `[n, classes]`.
#[derive(Clone, Debug)]
pub struct LinearClassifier {
    scores: Scores,
    labels: Vec<i64>,
    post: PostTransform,
}

pub(super) fn read_classifier(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    attrs.value("multi_class");
    let labels = labels(attrs, "classlabels_ints")?;
    // Two classes may have a single score, as the number of intercepts tells; without intercepts each has its own.
    let count = match numbers(attrs, "intercepts")?.len() {
        0 => labels.len(),
        count => count,
    };
    let scores = Scores::read(attrs, count)?;
    if scores.count != labels.len() && (scores.count, labels.len()) != (1, 2) {
        let problem = format!("has {} elements for {} scores", labels.len(), scores.count);
        return Err(bad("classlabels_ints", problem));
    }
    Ok(Arc::new(LinearClassifier { scores, labels, post: PostTransform::read(attrs)? }))
}

impl LinearClassifier {
    /// The class is that of the best score before it is transformed, as in onnxruntime; one score of two classes is
    /// that of the second one, which it is above 0.
    fn row(&self, x: &[f64], scores: &mut [f64]) -> i64 {
        self.scores.row(x, scores);
        match scores {
            [first, second] if self.scores.count == 1 => {
                let score = *first;
                let mut both = [0.0; 2];
                self.post.apply_to_one(score, true, &mut both);
                [*first, *second] = both;
                self.labels[usize::from(score > 0.0)]
            }
            [score] => {
                self.post.apply(std::slice::from_mut(score));
                let threshold = if self.post == PostTransform::None { 0.0 } else { 0.5 };
                if *score >= threshold { self.labels[0] } else { 0 }
            }
            scores => {
                let class = best(scores);
                self.post.apply(scores);
                self.labels[class]
            }
        }
    }
}

impl Operator for LinearClassifier {
    fn name(&self) -> &'static str {
        "LinearClassifier"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=2)?;
        let n = self.scores.check(cx)?;
        classified(cx, n, self.labels.len())
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        self.scores.cost(cx)
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let op = self.clone();
        classify("LinearClassifier", cx, self.labels.len(), self.cost(cx), move |x, scores| op.row(x, scores))
    }
}
