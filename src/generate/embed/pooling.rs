//! From the vectors of a text's tokens to one vector, as sentence-transformers' `Pooling` module.

/// How the vectors of the tokens that count become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The vector of the first token.
    First,
    /// The largest of each element.
    Max,
    /// Their mean.
    Mean,
    /// Their sum over the square root of their number.
    MeanSqrt,
    /// Their mean with weights that grow by one from token to token: Muennighoff, "SGPT: GPT sentence
    /// embeddings for semantic search", 2022, equation 2.
    WeightedMean,
    /// The vector of the last token.
    Last,
}

impl Pooling {
    /// All of them, in the order in which results of several are joined; each with its names in settings.
    pub(super) const ALL: [(Pooling, &'static str, &'static str); 6] = [
        (Pooling::First, "cls", "pooling_mode_cls_token"),
        (Pooling::Max, "max", "pooling_mode_max_tokens"),
        (Pooling::Mean, "mean", "pooling_mode_mean_tokens"),
        (Pooling::MeanSqrt, "mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
        (Pooling::WeightedMean, "weightedmean", "pooling_mode_weightedmean_tokens"),
        (Pooling::Last, "lasttoken", "pooling_mode_lasttoken"),
    ];

    /// One vector of `width` elements from those of the tokens in `vectors`, [tokens, width], of which the first
    /// `skipped` do not count.
    pub(super) fn of(self, vectors: &[f32], width: usize, skipped: usize) -> Vec<f32> {
        let rows = || vectors.chunks_exact(width.max(1)).enumerate().skip(skipped);
        let sum = |weight: &dyn Fn(usize) -> f64| -> (Vec<f64>, f64) {
            let (mut sums, mut total) = (vec![0.0; width], 0.0);
            for (at, row) in rows() {
                let weight = weight(at);
                total += weight;
                sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += weight * f64::from(*v));
            }
            (sums, total)
        };
        let over =
            |sums: Vec<f64>, by: f64| sums.into_iter().map(|sum| (sum / by.max(1e-9)) as f32).collect();
        match self {
            // It counts whatever is left out.
            Pooling::First => vectors.iter().take(width).copied().collect(),
            Pooling::Last => {
                vectors.chunks_exact(width.max(1)).next_back().map(<[f32]>::to_vec).unwrap_or_default()
            }
            Pooling::Max => {
                let mut most = vec![f32::MIN; width];
                rows()
                    .for_each(|(_, row)| most.iter_mut().zip(row).for_each(|(most, v)| *most = most.max(*v)));
                most
            }
            Pooling::Mean => {
                let (sums, total) = sum(&|_| 1.0);
                over(sums, total)
            }
            Pooling::MeanSqrt => {
                let (sums, total) = sum(&|_| 1.0);
                over(sums, total.sqrt())
            }
            Pooling::WeightedMean => {
                let (sums, total) = sum(&|at| (at + 1) as f64);
                over(sums, total)
            }
        }
    }
}

/// Scales `vector` to length 1; one of length 0 stays.
pub(super) fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_is_its_definition() {
        let vectors = [1.0, -2.0, 3.0, 0.0, 5.0, 8.0, -1.0, 2.0];
        for (pooling, all, two) in [
            (Pooling::First, [1.0, -2.0], [1.0, -2.0]),
            (Pooling::Max, [5.0, 8.0], [5.0, 8.0]),
            (Pooling::Mean, [2.0, 2.0], [2.0, 5.0]),
            (Pooling::MeanSqrt, [4.0, 4.0], [4.0 / 2_f32.sqrt(), 10.0 / 2_f32.sqrt()]),
            (Pooling::WeightedMean, [1.8, 3.0], [11.0 / 7.0, 32.0 / 7.0]),
            (Pooling::Last, [-1.0, 2.0], [-1.0, 2.0]),
        ] {
            assert_eq!(pooling.of(&vectors, 2, 0), all, "{pooling:?}");
            assert_eq!(pooling.of(&vectors, 2, 2), two, "{pooling:?} of the last two");
        }
        let mut vector = [3.0, -4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, -0.8]);
        let mut nothing = [0.0; 3];
        normalize(&mut nothing);
        assert_eq!(nothing, [0.0; 3]);
    }
}
