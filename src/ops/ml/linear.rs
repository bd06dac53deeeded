//! LinearClassifier and LinearRegressor.

use std::any::Any;
use std::sync::Arc;

use rayon::prelude::*;

use super::post::PostTransform;
use super::{FEATURES, best, features, labels, rows};
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
    fn read(attrs: &AttrReader<'_>, count: Option<usize>) -> Result<Scores, OpError> {
        let list = |name: &str| -> Result<Vec<f64>, OpError> {
            Ok(attrs.floats_opt(name)?.unwrap_or_default().into_iter().map(f64::from).collect())
        };
        let (coefficients, intercepts) = (list("coefficients")?, list("intercepts")?);
        let count = match count {
            Some(count) => count,
            None => intercepts.len().max(1),
        };
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
        let rows = rows(cx).map_or(0, |[n, _]| n as u64);
        Cost { flops: rows * 2 * self.coefficients.len() as u64, bytes: cx.bytes_touched() }
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
    let scores = Scores::read(attrs, Some(count))?;
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
        let ([n, len], dtype, op) = (rows(cx)?, cx.dtype(0)?, self.clone());
        Ok(NativeKernel::new("LinearRegressor", move |args| {
            let x = features(args, dtype, n * len)?;
            let y = args.take_write::<f32>(1)?;
            y.par_chunks_mut(op.scores.count).enumerate().for_each(|(i, y)| {
                let mut scores = vec![0.0; op.scores.count];
                op.scores.row(&x[i * len..][..len], &mut scores);
                op.post.apply(&mut scores);
                y.iter_mut().zip(scores).for_each(|(y, s)| *y = s as f32);
            });
            Ok(())
        }))
    }

    fn as_any(&self) -> &dyn Any {
        self
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
    let scores = Scores::read(attrs, None)?;
    if scores.count != labels.len() && (scores.count, labels.len()) != (1, 2) {
        let problem = format!("has {} elements for {} scores", labels.len(), scores.count);
        return Err(bad("classlabels_ints", problem));
    }
    Ok(Arc::new(LinearClassifier { scores, labels, post: PostTransform::read(attrs)? }))
}

impl LinearClassifier {
    fn row(&self, x: &[f64], scores: &mut [f64]) -> i64 {
        self.scores.row(x, scores);
        if self.scores.count == 1 && scores.len() == 2 {
            scores[1] = scores[0];
            scores[0] = -scores[1];
        }
        self.post.apply(scores);
        if let [score] = *scores {
            let threshold = if self.post == PostTransform::None { 0.0 } else { 0.5 };
            return if score >= threshold { self.labels[0] } else { 0 };
        }
        self.labels[best(scores)]
    }
}

impl Operator for LinearClassifier {
    fn name(&self) -> &'static str {
        "LinearClassifier"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=2)?;
        let n = self.scores.check(cx)?;
        let mut outputs = vec![TensorInfo::new(DType::I64, Shape::new([n])?)];
        outputs.push(TensorInfo::new(DType::F32, Shape::new([n, self.labels.len()])?));
        outputs.truncate(cx.output_count());
        Ok(outputs)
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        self.scores.cost(cx)
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let ([n, len], dtype, op) = (rows(cx)?, cx.dtype(0)?, self.clone());
        Ok(NativeKernel::new("LinearClassifier", move |args| {
            let x = features(args, dtype, n * len)?;
            let classes = op.labels.len();
            let mut scores = vec![0.0; n * classes];
            let row = |(i, scores): (usize, &mut [f64])| op.row(&x[i * len..][..len], scores);
            let found: Vec<i64> = scores.par_chunks_mut(classes).enumerate().map(row).collect();
            if args.has(1) {
                args.take_write::<i64>(1)?.iter_mut().zip(found).for_each(|(y, l)| *y = l);
            }
            if args.has(2) {
                args.take_write::<f32>(2)?.iter_mut().zip(scores).for_each(|(z, s)| *z = s as f32);
            }
            Ok(())
        }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
