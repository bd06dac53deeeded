//! Transformations of the scores of one row.

use crate::ops::{AttrError, AttrReader};

/// A function of the scores of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PostTransform {
    /// The scores themselves.
    #[default]
    None,
    /// Exponentials that sum up to 1.
    Softmax,
    /// `1 / (1 + e^-x)`.
    Logistic,
    /// As `Softmax`, but scores of 0 stay 0.
    SoftmaxZero,
    /// The inverse of the normal distribution.
    Probit,
}

impl PostTransform {
    /// By ONNX's number of it.
    pub(super) fn from_number(number: i64) -> Option<PostTransform> {
        use PostTransform as P;
        let all = [P::None, P::Softmax, P::Logistic, P::SoftmaxZero, P::Probit];
        usize::try_from(number).ok().and_then(|n| all.get(n)).copied()
    }

    /// The attribute `post_transform`.
    pub(super) fn read(attrs: &AttrReader<'_>) -> Result<PostTransform, AttrError> {
        let words = &[
            ("NONE", PostTransform::None),
            ("SOFTMAX", PostTransform::Softmax),
            ("LOGISTIC", PostTransform::Logistic),
            ("SOFTMAX_ZERO", PostTransform::SoftmaxZero),
            ("PROBIT", PostTransform::Probit),
        ];
        attrs.choice("post_transform", PostTransform::None, words)
    }

    /// The scores of two classes of which only the second has one, `score`: a probability, or a number whose sign
    /// tells. As onnxruntime has it, which makes functions other than `Logistic` of several scores only.
    pub(super) fn apply_to_one(self, score: f64, probability: bool, scores: &mut [f64; 2]) {
        let other = if probability { 1.0 - score } else { -score };
        match self {
            PostTransform::Logistic => {
                *scores = [-score, score];
                self.apply(scores);
            }
            PostTransform::Probit => {
                *scores = [other, score];
                self.apply(scores);
            }
            _ => *scores = [other, score],
        }
    }

    /// Applies it to the scores of one row.
    pub(super) fn apply(self, scores: &mut [f64]) {
        match self {
            PostTransform::None => {}
            PostTransform::Logistic => scores.iter_mut().for_each(|s| *s = 1.0 / (1.0 + (-*s).exp())),
            PostTransform::Softmax => softmax(scores, |_| true),
            PostTransform::SoftmaxZero => softmax(scores, |s| s.abs() > 1e-7),
            PostTransform::Probit => scores.iter_mut().for_each(|s| *s = probit(*s)),
        }
    }
}

/// Exponentials of the scores that `counts`, divided by their sum; the others become 0.
fn softmax(scores: &mut [f64], counts: impl Fn(f64) -> bool) {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for s in scores.iter_mut() {
        *s = if counts(*s) { (*s - max).exp() } else { 0.0 };
        sum += *s;
    }
    if sum > 0.0 {
        scores.iter_mut().for_each(|s| *s /= sum);
    } else {
        scores.fill(0.5);
    }
}

/// `sqrt(2) * erf^-1(2 x - 1)` with Winitzki's approximation (2008) that ONNX runtimes use, a = 0.147.
fn probit(x: f64) -> f64 {
    const A: f64 = 0.147;
    let z = 2.0 * x - 1.0;
    let log = ((1.0 - z) * (1.0 + z)).ln();
    let v = 2.0 / (std::f64::consts::PI * A) + 0.5 * log;
    std::f64::consts::SQRT_2 * z.signum() * ((v * v - log / A).sqrt() - v).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_score_stands_for_two_classes() {
        let run = |p: PostTransform, score, probability| {
            let mut scores = [9.0; 2];
            p.apply_to_one(score, probability, &mut scores);
            scores
        };
        assert_eq!(run(PostTransform::None, 0.25, true), [0.75, 0.25]);
        assert_eq!(run(PostTransform::Softmax, 2.5, false), [-2.5, 2.5]);
        assert_eq!(run(PostTransform::SoftmaxZero, 0.0, true), [1.0, 0.0]);
        assert_eq!(run(PostTransform::Logistic, 0.0, true), [0.5; 2]);
        assert!(run(PostTransform::Probit, 0.5, true).iter().all(|s| s.abs() < 1e-6));
    }

    #[test]
    fn scores_become_probabilities() {
        let run = |p: PostTransform, scores: &[f64]| {
            let mut s = scores.to_vec();
            p.apply(&mut s);
            s
        };
        let near = |a: Vec<f64>, b: &[f64]| {
            assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 3e-3), "{a:?}, expected {b:?}");
        };
        near(run(PostTransform::Softmax, &[0.0, 0.0, 1e4]), &[0.0, 0.0, 1.0]);
        near(run(PostTransform::Logistic, &[0.0, 100.0, -100.0]), &[0.5, 1.0, 0.0]);
        near(run(PostTransform::SoftmaxZero, &[0.0, 1.0, 1.0]), &[0.0, 0.5, 0.5]);
        near(run(PostTransform::SoftmaxZero, &[0.0, 0.0]), &[0.5, 0.5]);
        near(run(PostTransform::Probit, &[0.5, 0.841_34, 0.022_75]), &[0.0, 1.0, -2.0]);
        assert_eq!(PostTransform::from_number(4), Some(PostTransform::Probit));
        assert_eq!(PostTransform::from_number(-1), None);
    }
}
