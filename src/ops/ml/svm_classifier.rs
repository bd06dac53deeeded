//! SVMClassifier.

use std::sync::Arc;

use super::post::PostTransform;
use super::svm::{SvmKernel, features_of};
use super::{FEATURES, best, classified, classify, cost_of_rows, labels, numbers, rows};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, OpCx, OpError, Operator};

/// The labels `[n]` of rows `[n, features]`, and scores `[n, columns]`: one for every class where there are
/// probabilities, a linear model or two classes; else one for every pair of classes.
#[derive(Clone, Debug)]
pub struct SvmClassifier {
    labels: Vec<i64>,
    /// Features of a row.
    features: usize,
    model: Model,
    post: PostTransform,
    /// Whether no coefficient is negative.
    positive: bool,
}

#[derive(Clone, Debug)]
enum Model {
    /// A row of coefficients for every class, and what is added to each product.
    Linear { coefficients: Vec<f64>, rho: f64, probabilities: bool },
    /// Every pair of classes votes.
    Pairs(Pairs),
}

/// Support vectors that are grouped by class.
#[derive(Clone, Debug)]
struct Pairs {
    kernel: SvmKernel,
    vectors: Vec<f64>,
    /// Where each class's vectors begin, and where the last one's end.
    starts: Vec<usize>,
    /// `[classes - 1, vectors]`: of a vector of class i against class j, in row j below i and j - 1 above.
    coefficients: Vec<f64>,
    /// The summand of each pair.
    rho: Vec<f64>,
    /// The two parameters of each pair's probability; empty without probabilities.
    sigmoid: Vec<[f64; 2]>,
}

/// Number of pairs of `classes`.
fn pair_count(classes: usize) -> usize {
    classes.saturating_mul(classes.saturating_sub(1)) / 2
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let labels = labels(attrs, "classlabels_ints")?;
    let (classes, pairs) = (labels.len(), pair_count(labels.len()));
    let kernel = SvmKernel::read(attrs)?;
    let post = PostTransform::read(attrs)?;
    let coefficients = numbers(attrs, "coefficients")?;
    let positive = coefficients.iter().all(|c| *c >= 0.0);
    let (a, b) = (numbers(attrs, "prob_a")?, numbers(attrs, "prob_b")?);
    let (vectors, rho) = (numbers(attrs, "support_vectors")?, numbers(attrs, "rho")?);
    if a.len() != b.len() {
        return Err(bad("prob_b", format!("has {} elements, prob_a has {}", b.len(), a.len())));
    }

    let mut starts = vec![0];
    let mut count = 0usize;
    for n in attrs.ints_opt("vectors_per_class")?.unwrap_or_default() {
        let more = usize::try_from(n).ok().and_then(|n| count.checked_add(n));
        count = more.ok_or_else(|| bad("vectors_per_class", format!("has {n}")))?;
        starts.push(count);
    }
    if count == 0 {
        let features = features_of("coefficients", &coefficients, classes)?;
        let Some(&rho) = rho.first() else { return Err(bad("rho", "is missing".into())) };
        let model = Model::Linear { coefficients, rho, probabilities: !a.is_empty() };
        return Ok(Arc::new(SvmClassifier { labels, features, model, post, positive }));
    }

    if classes < 2 {
        return Err(OpError::unsupported("a classifier of one class"));
    }
    let features = features_of("support_vectors", &vectors, count)?;
    let check = |name: &str, len: usize, want: usize, of: &str| match len == want {
        true => Ok(()),
        false => Err(bad(name, format!("has {len} elements for {of}, expected {want}"))),
    };
    check("vectors_per_class", starts.len() - 1, classes, "the classes")?;
    let want = count.saturating_mul(classes - 1);
    check("coefficients", coefficients.len(), want, "the vectors of all classes")?;
    check("rho", rho.len(), pairs, "the pairs of classes")?;
    if !a.is_empty() {
        check("prob_a", a.len(), pairs, "the pairs of classes")?;
    }
    let sigmoid = a.into_iter().zip(b).map(|(a, b)| [a, b]).collect();
    let model = Model::Pairs(Pairs { kernel, vectors, starts, coefficients, rho, sigmoid });
    Ok(Arc::new(SvmClassifier { labels, features, model, post, positive }))
}

impl Pairs {
    /// The sums of all pairs of classes, the first class's side being above 0.
    fn sums(&self, x: &[f64]) -> Vec<f64> {
        let alike: Vec<f64> = self.vectors.chunks(x.len()).map(|v| self.kernel.of(x, v)).collect();
        let part = |row: usize, class: usize| -> f64 {
            let range = self.starts[class]..self.starts[class + 1];
            let row = &self.coefficients[row * alike.len()..][..alike.len()];
            row[range.clone()].iter().zip(&alike[range]).map(|(c, k)| c * k).sum()
        };
        let classes = self.starts.len() - 1;
        let pairs = (0..classes).flat_map(|i| (i + 1..classes).map(move |j| (i, j)));
        pairs.zip(&self.rho).map(|((i, j), rho)| rho + part(j - 1, i) + part(i, j)).collect()
    }

    /// Number of pairs that each class wins.
    fn votes(&self, sums: &[f64]) -> Vec<f64> {
        let classes = self.starts.len() - 1;
        let mut votes = vec![0.0; classes];
        let pairs = (0..classes).flat_map(|i| (i + 1..classes).map(move |j| (i, j)));
        for ((i, j), sum) in pairs.zip(sums) {
            votes[if *sum > 0.0 { i } else { j }] += 1.0;
        }
        votes
    }

    /// The probability of each class from those of the pairs.
    fn probabilities(&self, sums: &[f64]) -> Vec<f64> {
        let classes = self.starts.len() - 1;
        let mut r = vec![0.0; classes * classes];
        let pairs = (0..classes).flat_map(|i| (i + 1..classes).map(move |j| (i, j)));
        for (((i, j), sum), [a, b]) in pairs.zip(sums).zip(&self.sigmoid) {
            let p = (1.0 / (1.0 + (sum * a + b).exp())).clamp(1e-7, 1.0 - 1e-7);
            r[i * classes + j] = p;
            r[j * classes + i] = 1.0 - p;
        }
        couple(classes, &r)
    }
}

/// The probabilities of classes from those of pairs, `r[i, j]` being that of i where it is i or j: the second
/// method of Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling"
/// (2004), algorithm 2, which ends after as many steps, or as near, as libsvm and onnxruntime do.
fn couple(classes: usize, r: &[f64]) -> Vec<f64> {
    let mut q = vec![0.0; classes * classes];
    for i in 0..classes {
        for j in (0..classes).filter(|j| *j != i) {
            q[i * classes + i] += r[j * classes + i] * r[j * classes + i];
            q[i * classes + j] = -r[j * classes + i] * r[i * classes + j];
        }
    }
    let near = 0.005 / classes as f64;
    let mut p = vec![1.0 / classes as f64; classes];
    for _ in 0..100 {
        let row = |t: usize, p: &[f64]| -> f64 {
            q[t * classes..][..classes].iter().zip(p).map(|(q, p)| q * p).sum()
        };
        let mut qp: Vec<f64> = (0..classes).map(|t| row(t, &p)).collect();
        let mut total: f64 = p.iter().zip(&qp).map(|(p, q)| p * q).sum();
        if qp.iter().all(|q| (q - total).abs() < near) {
            break;
        }
        for t in 0..classes {
            let own = q[t * classes + t];
            let step = (total - qp[t]) / own;
            p[t] += step;
            total = (total + step * (step * own + 2.0 * qp[t])) / (1.0 + step) / (1.0 + step);
            let row = &q[t * classes..][..classes];
            for ((qp, p), q) in qp.iter_mut().zip(&mut p).zip(row) {
                *qp = (*qp + step * q) / (1.0 + step);
                *p /= 1.0 + step;
            }
        }
    }
    p
}

impl SvmClassifier {
    /// Scores of a row.
    fn columns(&self) -> usize {
        match &self.model {
            Model::Pairs(pairs) if pairs.sigmoid.is_empty() && self.labels.len() > 2 => pairs.rho.len(),
            _ => self.labels.len(),
        }
    }

    fn row(&self, x: &[f64], out: &mut [f64]) -> i64 {
        let label = match &self.model {
            Model::Linear { coefficients, rho, probabilities } => {
                for (out, c) in out.iter_mut().zip(coefficients.chunks(self.features)) {
                    *out = rho + SvmKernel::Linear.of(x, c);
                }
                let first = best(out);
                let above = if self.positive { out[first] >= 0.5 } else { out[first] > 0.0 };
                let second = self.labels.len() == 2 && !probabilities && above;
                self.labels[if second { 1 } else { first }]
            }
            Model::Pairs(pairs) => {
                let sums = pairs.sums(x);
                let label = self.labels[best(&pairs.votes(&sums))];
                match *sums.as_slice() {
                    _ if !pairs.sigmoid.is_empty() => out.copy_from_slice(&pairs.probabilities(&sums)),
                    [s] if matches!(self.post, PostTransform::None | PostTransform::Logistic) => {
                        out.copy_from_slice(&[-s, s]);
                    }
                    // One number, of which other functions make nothing but its complement.
                    [s] => {
                        out.copy_from_slice(&[1.0 - s, s]);
                        return label;
                    }
                    _ => out.copy_from_slice(&sums),
                }
                label
            }
        };
        self.post.apply(out);
        label
    }
}

impl Operator for SvmClassifier {
    fn name(&self) -> &'static str {
        "SVMClassifier"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=2)?;
        cx.dtype_of(0, FEATURES)?;
        let [n, len] = rows(cx)?;
        if len != self.features {
            return Err(cx.shape_error(0, format!("{} features", self.features)));
        }
        classified(cx, n, self.columns())
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let numbers = match &self.model {
            Model::Linear { coefficients, .. } => coefficients.len(),
            Model::Pairs(pairs) => pairs.vectors.len() + pairs.coefficients.len(),
        };
        cost_of_rows(cx, 2 * numbers)
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let op = self.clone();
        classify("SVMClassifier", cx, self.columns(), self.cost(cx), move |x, scores| op.row(x, scores))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{floats, ints, read, text};
    use super::couple;
    use crate::graph::Tensor;
    use crate::ops::AttrMap;
    use crate::ops::test_util::{assert_near, attrs, facts, run_cpu, tensor};

    /// Three classes of one, one and two vectors.
    fn pairs() -> AttrMap {
        attrs(&[
            ("classlabels_ints", ints(&[7, 8, 9])),
            ("vectors_per_class", ints(&[1, 1, 2])),
            ("support_vectors", floats(&[1.0, 0.0, 0.0, 1.0, -1.0, 0.0, 0.0, -1.0])),
            ("coefficients", floats(&[1.0, -2.0, -1.0, -0.5, 0.5, 3.0, -4.0, -0.25])),
            ("rho", floats(&[0.1, 0.2, 0.3])),
            ("kernel_type", text("LINEAR")),
        ])
    }

    fn x() -> Option<Tensor> {
        Some(Tensor::new([2, 2], &[1.0f32, 0.5, -2.0, 1.0]).unwrap())
    }

    #[test]
    fn every_pair_of_classes_votes() {
        let op = read("SVMClassifier", &pairs()).unwrap();
        let y = run_cpu(&*op, &[x()], 2).unwrap();
        // Products with the vectors: 1, 0.5, -1, -0.5 and -2, 1, 2, -1.
        let want = [0.1, 1.95, 5.925, -3.9, -2.3, -4.45];
        assert_near(&y[1], &want, 1e-6);
        assert_eq!(y[0].to_i64s().unwrap(), [7, 9]);
    }

    #[test]
    fn two_classes_have_one_sum() {
        let mut map = pairs();
        map.insert("classlabels_ints".into(), ints(&[4, 5]));
        map.insert("vectors_per_class".into(), ints(&[1, 3]));
        map.insert("coefficients".into(), floats(&[1.0, -2.0, -1.0, -0.5]));
        map.insert("rho".into(), floats(&[0.25]));
        let run = |map: &AttrMap| run_cpu(&*read("SVMClassifier", map).unwrap(), &[x()], 2).unwrap();
        let y = run(&map);
        assert_near(&y[1], &[-1.5, 1.5, 5.25, -5.25], 1e-6);
        assert_eq!(y[0].to_i64s().unwrap(), [4, 5]);
        map.insert("post_transform".into(), text("LOGISTIC"));
        let e = |s: f64| 1.0 / (1.0 + (-s).exp());
        assert_near(&run(&map)[1], &[e(-1.5), e(1.5), e(5.25), e(-5.25)], 1e-6);
        map.remove("post_transform");
        map.insert("prob_a".into(), floats(&[-1.0]));
        map.insert("prob_b".into(), floats(&[0.5]));
        let y = run(&map);
        let p = |s: f64| 1.0 / (1.0 + (0.5 - s).exp());
        assert_near(&y[1], &[p(1.5), 1.0 - p(1.5), p(-5.25), 1.0 - p(-5.25)], 1e-3);
        assert_eq!(y[0].to_i64s().unwrap(), [4, 5]);
    }

    #[test]
    fn pairs_that_agree_give_the_probabilities_they_come_from() {
        let p = [0.5, 0.2, 0.3];
        let r: Vec<f64> =
            (0..9).map(|i| if i / 3 == i % 3 { 0.0 } else { p[i / 3] / (p[i / 3] + p[i % 3]) }).collect();
        for (got, want) in couple(3, &r).iter().zip(p) {
            assert!((got - want).abs() < 5e-3, "{got}, expected {want}");
        }
    }

    #[test]
    fn without_vectors_it_is_linear() {
        let map = attrs(&[
            ("classlabels_ints", ints(&[1, 2, 3])),
            ("coefficients", floats(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0])),
            ("rho", floats(&[-0.5])),
        ]);
        let op = read("SVMClassifier", &map).unwrap();
        let y = run_cpu(&*op, &[x()], 2).unwrap();
        assert_near(&y[1], &[0.5, 0.0, 1.0, -2.5, 0.5, -1.5], 1e-6);
        assert_eq!(y[0].to_i64s().unwrap(), [3, 2]);
        assert!(facts(&*op, &[Some(tensor(&[2, 3], 1))], 2).is_err());
    }

    #[test]
    fn attributes_that_disagree_are_errors() {
        let wrong = [
            ("vectors_per_class", ints(&[1, 1, 3])),
            ("vectors_per_class", ints(&[1, 3])),
            ("vectors_per_class", ints(&[1, -1, 4])),
            ("vectors_per_class", ints(&[i64::MAX, i64::MAX, i64::MAX])),
            ("support_vectors", floats(&[1.0; 7])),
            ("coefficients", floats(&[1.0; 7])),
            ("rho", floats(&[1.0; 2])),
            ("prob_a", floats(&[1.0; 3])),
            ("classlabels_ints", ints(&[])),
        ];
        for (name, value) in wrong {
            let mut map = pairs();
            map.insert(name.into(), value);
            assert!(read("SVMClassifier", &map).is_err(), "{name}");
        }
        let mut map = pairs();
        map.insert("prob_a".into(), floats(&[1.0]));
        map.insert("prob_b".into(), floats(&[1.0]));
        assert!(read("SVMClassifier", &map).is_err());
    }
}
