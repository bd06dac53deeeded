//! Scales of `float32` as kernels of cooperative matrices take them, in `float16`.

/// Exponents of the least normal number of `float16`, and of a power of two that weights stay below.
const LEAST: i32 = -14;
const LARGEST: i32 = 15;
/// Exponents of powers of two that, with all sums of products, stay in `float32`; their inverses do.
const POWERS: std::ops::RangeInclusive<i32> = -32..=112;

/// The exponent of the power of two that scales are multiplied by, of columns of `blocks` of them for codes of
/// `bits`. With it the largest scale of each column is a normal number, and no weight is too large. 0 where that is
/// so as it is; `None` where no power does it.
pub(super) fn exponent(scales: &[f32], blocks: usize, bits: usize) -> Option<i32> {
    let (mut least, mut most) = (f32::INFINITY, 0.0f32);
    for column in scales.chunks(blocks.max(1)) {
        // What is no number stays the largest.
        let larger = |most: f32, s: &f32| if s.abs() <= most || most.is_nan() { most } else { s.abs() };
        let largest = column.iter().fold(0.0, larger);
        if largest.is_normal() {
            (least, most) = (least.min(largest), most.max(largest));
        } else if largest != 0.0 {
            return None;
        }
    }
    if most == 0.0 {
        return Some(0);
    }
    let of = |value: f32| (value.to_bits() >> 23) as i32 - 127;
    let (up, down) = (LEAST - of(least), LARGEST - bits as i32 - (of(most) + 1));
    (up <= down).then(|| 0.clamp(up, down)).filter(|exponent| POWERS.contains(exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_moved_no_farther_than_they_must() {
        let of = |columns: &[[f32; 2]], bits| exponent(columns.as_flattened(), 2, bits);
        // As models have them.
        assert_eq!(of(&[[0.01, 0.02], [7e-5, 1e-9], [0.0, 0.0]], 4), Some(0));
        assert_eq!(of(&[[0.0; 2]], 4), Some(0));
        assert_eq!(of(&[], 4), Some(0));
        // Scales that float16 does not have, and one column of them.
        assert_eq!(of(&[[3e-8, -1e-8]], 4), Some(11));
        assert_eq!(of(&[[0.01, 0.02], [3e-8, 0.0]], 4), Some(11));
        assert_eq!(of(&[[1e-38, 2e-38]], 2), Some(112));
        // Weights that it does not have.
        assert_eq!(of(&[[4000.0, -1.0]], 4), Some(-1));
        assert_eq!([2, 4, 8].map(|bits| of(&[[130.0, 0.0]], bits)), [Some(0), Some(0), Some(-1)]);
        // Columns that are too far apart, and what is no number.
        assert_eq!(of(&[[1e6, 0.0], [1e-6, 0.0]], 4), None);
        for wrong in [f32::NAN, f32::INFINITY, -f32::INFINITY, 1e-40, 1e38] {
            assert_eq!(of(&[[1.0, 2.0], [wrong, 0.0]], 4), None, "{wrong}");
        }
        assert_eq!(of(&[[f32::NAN, 1.0]], 4), None);
    }

    #[test]
    fn what_is_left_of_scales_is_near_them() {
        for largest in [1e-30f32, 1e-12, 3e-8, 6e-5, 0.1, 2e3, 1e5] {
            let column = [largest, largest * 0.37, -largest * 0.9];
            let power = 2f32.powi(exponent(&column, 3, 4).unwrap());
            for scale in column {
                let half = half::f16::from_f32(scale * power).to_f32();
                assert!((half / power - scale).abs() <= largest / 2048.0, "{scale}: {half}");
                assert!(half.abs() * 15.0 < 65504.0);
            }
        }
    }
}
