//! Places between pixels, as `shaders/frame/frame.glsl` has them.

use crate::frame::Filter;
use crate::kernel::table::codes::frame::WEIGHT_ONE;

/// Places after the binary point of a weight.
pub(super) const WEIGHT_BITS: u32 = WEIGHT_ONE.ilog2();

/// The two pixels around a place, and the weight of the second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tap {
    pub(super) first: u32,
    pub(super) second: u32,
    pub(super) weight: i32,
}

/// For each of `size` pixels its place among `len` pixels; both are at most 2^14.
pub(super) fn taps(filter: Filter, size: u32, len: u32) -> Vec<Tap> {
    (0..size).map(|o| tap(filter, o, size, len)).collect()
}

fn tap(filter: Filter, o: u32, size: u32, len: u32) -> Tap {
    let (twice, unit) = ((2 * o + 1) * len, 2 * size);
    if filter == Filter::Nearest {
        return Tap { first: twice / unit, second: twice / unit, weight: 0 };
    }
    let at = twice.saturating_sub(size);
    let first = at / unit;
    let weight = ((at - first * unit) * WEIGHT_ONE as u32 + size) / unit;
    Tap { first, second: (first + 1).min(len - 1), weight: weight as i32 }
}

/// Two values of at most 16 bits weighed, with `drop` fewer places after the binary point than their products have.
fn between(a: i32, b: i32, weight: i32, drop: u32) -> i32 {
    (a * (WEIGHT_ONE as i32 - weight) + b * weight + (1 << (drop - 1))) >> drop
}

/// The value between the pixels of two taps: `drop` is between neighbours in a row. The value of a single pixel has as
/// many places more as [`between`] would give it.
pub(super) fn sampled(tx: Tap, ty: Tap, filter: Filter, drop: u32, load: impl Fn(u32, u32) -> i32) -> i32 {
    let first = load(tx.first, ty.first);
    if filter == Filter::Nearest {
        return first << (WEIGHT_BITS - drop);
    }
    let upper = between(first, load(tx.second, ty.first), tx.weight, drop);
    let lower = between(load(tx.first, ty.second), load(tx.second, ty.second), tx.weight, drop);
    between(upper, lower, ty.weight, WEIGHT_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_pixel_centres() {
        for (size, len) in
            [(1u32, 1u32), (3, 7), (7, 3), (16_384, 5), (5, 16_384), (16_384, 16_384), (640, 1920)]
        {
            for filter in [Filter::Nearest, Filter::Bilinear] {
                for (o, tap) in taps(filter, size, len).into_iter().enumerate() {
                    let place = (o as f64 + 0.5) * f64::from(len) / f64::from(size);
                    assert!(
                        tap.first < len && tap.second < len && (0..=WEIGHT_ONE as i32).contains(&tap.weight)
                    );
                    if filter == Filter::Nearest {
                        assert_eq!(tap.first, place.floor() as u32);
                        continue;
                    }
                    let want = (place - 0.5).clamp(0.0, f64::from(len - 1));
                    let part = f64::from(tap.weight) / WEIGHT_ONE as f64;
                    let got = f64::from(tap.first) * (1.0 - part) + f64::from(tap.second) * part;
                    assert!((got - want).abs() <= 0.5 / WEIGHT_ONE as f64 + 1e-9, "{o} of {size} in {len}");
                }
            }
        }
    }
}
