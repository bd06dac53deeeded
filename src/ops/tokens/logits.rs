//! Passes over the logits of a large vocabulary, by vectors.

use crate::simd::{exp, wide};

/// Logits that are compared side by side, and those of a part that is searched on its own.
const LANES: usize = 32;
const PART: usize = 256 * LANES;

/// There is a NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NotANumber;

/// Vectors of `logits`, the last one filled up with `fill`.
#[inline(always)]
fn vectors(logits: &[f32], fill: f32) -> impl Iterator<Item = [f32; LANES]> {
    let (whole, rest) = logits.as_chunks::<LANES>();
    let mut last = [fill; LANES];
    last[..rest.len()].copy_from_slice(rest);
    whole.iter().copied().chain((!rest.is_empty()).then_some(last))
}

/// The logit of a token that was seen before. By the reciprocal of the penalty, because not every device rounds
/// quotients to the nearest number.
pub(crate) fn penalized(v: f32, penalty: f32) -> f32 {
    if v > 0.0 { v * penalty.recip() } else { v * penalty }
}

/// The first of the largest logits, unless one is NaN; `None` where there are none.
pub(crate) fn most_likely(logits: &[f32]) -> Option<Result<(u32, f32), NotANumber>> {
    let mut best: Option<(usize, f32)> = None;
    for (part, values) in logits.chunks(PART).enumerate() {
        let (most, odd) = wide(
            #[inline(always)]
            || {
                // Values of the loop, of the width of the logits: so they stay in registers.
                let first = ([f32::NEG_INFINITY; LANES], [0u32; LANES]);
                vectors(values, f32::NEG_INFINITY).fold(first, |(mut most, mut odd), values| {
                    for i in 0..LANES {
                        most[i] = if values[i] > most[i] { values[i] } else { most[i] };
                        odd[i] |= u32::from(values[i].is_nan());
                    }
                    (most, odd)
                })
            },
        );
        if odd.iter().any(|odd| *odd != 0) {
            return Some(Err(NotANumber));
        }
        let most = most.into_iter().fold(f32::NEG_INFINITY, f32::max);
        if best.is_none_or(|(_, before)| most > before) {
            best = Some((part, most));
        }
    }
    let (part, most) = best?;
    let at = part * PART + logits.get(part * PART..)?.iter().position(|v| *v == most)?;
    Some(Ok((u32::try_from(at).ok()?, most)))
}

/// Adds the tokens whose logits are at least `bound`, which none is that is NaN.
pub(crate) fn at_least(logits: &[f32], bound: f32, to: &mut Vec<(u32, f32)>) {
    wide(
        #[inline(always)]
        || {
            for (first, values) in (0u32..).step_by(LANES).zip(vectors(logits, f32::NAN)) {
                let any = values.iter().fold(0u32, |any, v| any | u32::from(*v >= bound));
                if any != 0 {
                    to.extend((first..).zip(values).filter(|(_, v)| *v >= bound));
                }
            }
        },
    );
}

/// A bound that at least `count` logits reach, of which there are as many, and few more: the largest of every
/// `LANES` are compared.
pub(crate) fn bound_of(logits: &[f32], count: usize) -> f32 {
    let mut largest: Vec<f32> = Vec::with_capacity(logits.len() / LANES + 1);
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    wide(
        #[inline(always)]
        || {
            largest.extend(vectors(logits, f32::NEG_INFINITY).map(|values| {
                let mut some = [f32::NEG_INFINITY; LANES / 4];
                for values in values.as_chunks::<{ LANES / 4 }>().0 {
                    for i in 0..some.len() {
                        some[i] = larger(some[i], values[i]);
                    }
                }
                some.into_iter().fold(f32::NEG_INFINITY, larger)
            }));
        },
    );
    if count == 0 || count > largest.len() {
        return f32::NEG_INFINITY;
    }
    *largest.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1
}

/// The sum of `exp((logit - most) / temperature)`, each rounded to `f32`.
pub(crate) fn sum_of_weights(logits: &[f32], most: f32, temperature: f32) -> f64 {
    let mut sum = 0.0;
    for values in logits.chunks(PART) {
        let sums = wide(
            #[inline(always)]
            || {
                vectors(values, f32::NEG_INFINITY).fold([0f32; LANES], |mut sums, values| {
                    for i in 0..LANES {
                        sums[i] += exp((values[i] - most) / temperature);
                    }
                    sums
                })
            },
        );
        sum += sums.iter().map(|s| f64::from(*s)).sum::<f64>();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found in parts of a large vocabulary as one after another.
    #[test]
    fn the_most_likely_token_is_the_first_of_the_largest() {
        let mut logits: Vec<f32> =
            (0..151_937u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as f32).collect();
        let plain = |logits: &[f32]| {
            let best = |best: (u32, f32), (i, v): (u32, &f32)| if *v > best.1 { (i, *v) } else { best };
            (0u32..).zip(logits).fold((0, logits[0]), best)
        };
        for at in [0, 5, PART - 1, PART, 70_000, 151_936] {
            assert_eq!(most_likely(&logits), Some(Ok(plain(&logits))));
            logits[at] = 1e9;
            assert_eq!(most_likely(&logits[..=at]), Some(Ok(plain(&logits[..=at]))));
        }
        assert_eq!(most_likely(&logits), Some(Ok((0, 1e9))));
        logits[151_000] = f32::NAN;
        assert_eq!(most_likely(&logits), Some(Err(NotANumber)));
        assert_eq!(most_likely(&[f32::NEG_INFINITY; 3]), Some(Ok((0, f32::NEG_INFINITY))));
        assert_eq!(most_likely(&[]), None);
    }

    #[test]
    fn bounds_keep_what_is_asked_for_and_little_else() {
        let logits: Vec<f32> = (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as f32).collect();
        let mut sorted = logits.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        for count in [1, 40, 1000, 3125, 3126] {
            let bound = bound_of(&logits, count);
            let mut found = Vec::new();
            at_least(&logits, bound, &mut found);
            assert!(found.len() >= count && bound <= sorted[count - 1], "{count}: {bound}");
            assert!(count > 1000 || found.len() < 2 * count + 10, "{count}: {}", found.len());
            let right = |(token, v): &(u32, f32)| logits[*token as usize] == *v && *v >= bound;
            assert!(found.iter().all(right));
        }
        let odd = [f32::NAN, f32::NEG_INFINITY, 1.0];
        let mut found = Vec::new();
        at_least(&odd, f32::NEG_INFINITY, &mut found);
        assert_eq!(found, [(1, f32::NEG_INFINITY), (2, 1.0)]);
    }

    #[test]
    fn weights_sum_up_as_in_double_precision() {
        let logits: Vec<f32> = (0..50_001).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
        for temperature in [0.2, 1.0, 3.0] {
            let want: f64 = logits.iter().map(|v| (f64::from(*v - 9.0) / f64::from(temperature)).exp()).sum();
            let got = sum_of_weights(&logits, 9.0, temperature);
            assert!((got - want).abs() < 1e-6 * want, "{temperature}: {got}, not {want}");
        }
        assert_eq!(sum_of_weights(&[f32::NEG_INFINITY, 2.0], 2.0, 0.5), 1.0);
        // One over the least temperatures is no number.
        assert_eq!(sum_of_weights(&[1.5, 2.0], 2.0, f32::from_bits(1)), 1.0);
    }
}
