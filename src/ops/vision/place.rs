//! Places between the elements of an axis, and which elements make up the value there.

use crate::ops::real::Real;

/// What is made of the elements around a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SampleMode {
    /// The nearest one, the even one of two.
    Nearest,
    /// A line between two.
    #[default]
    Linear,
    /// Keys' cubic through four, with the coefficient -0.75.
    Cubic,
}

impl SampleMode {
    /// Elements of one axis that a place takes.
    pub(super) fn taps(self) -> usize {
        match self {
            SampleMode::Nearest => 1,
            SampleMode::Linear => 2,
            SampleMode::Cubic => 4,
        }
    }
}

/// What lies outside an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outside {
    /// Zeros.
    #[default]
    Zeros,
    /// The elements of the border.
    Border,
    /// The image mirrored, again and again.
    Reflection,
}

/// One axis that is sampled.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampledAxis {
    /// Its elements, at least one.
    pub(super) size: usize,
    /// How it is sampled.
    pub(super) mode: SampleMode,
    /// What lies outside.
    pub(super) outside: Outside,
    /// Whether -1 and 1 are the centres of the outermost elements instead of their outer edges.
    pub(super) align_corners: bool,
}

/// The elements that make up the value at a place; -1 stands for a zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Taps<T> {
    pub(super) index: [i32; 4],
    pub(super) weight: [T; 4],
}

/// The largest whole number that is not above `x`.
fn floor<T: Real>(x: T) -> T {
    T::from_f64(x.to_f64().floor())
}

impl SampledAxis {
    /// The taps of the normalized place `n`, where -1 is the beginning and 1 the end.
    pub(super) fn taps<T: Real>(&self, n: T) -> Taps<T> {
        let [one, two] = [1.0, 2.0].map(T::from_f64);
        let len = T::from_f64(self.size as f64);
        let x =
            if self.align_corners { (n + one) / two * (len - one) } else { ((n + one) * len - one) / two };
        let x = match self.mode {
            SampleMode::Nearest => T::from_f64(x.to_f64().round_ties_even()),
            _ => x,
        };
        let x = self.inside(x);
        let base = floor(x);
        let (first, f) = (base.to_f64() as i64, x - base);
        let mut taps = Taps { index: [-1; 4], weight: [T::ZERO; 4] };
        let start = if self.mode == SampleMode::Cubic { first - 1 } else { first };
        for (k, index) in taps.index.iter_mut().take(self.mode.taps()).enumerate() {
            *index = self.element::<T>(start + k as i64);
        }
        match self.mode {
            SampleMode::Nearest => taps.weight[0] = one,
            SampleMode::Linear => [taps.weight[0], taps.weight[1]] = [one - f, f],
            SampleMode::Cubic => taps.weight = cubic(f),
        }
        taps
    }

    /// The place `x`, in elements, brought to where all taps are near the axis. No number counts as the
    /// lowest one.
    fn inside<T: Real>(&self, x: T) -> T {
        let last = T::from_f64(self.size as f64 - 1.0);
        // Beyond these no tap is inside.
        let (low, high) = (T::from_f64(-3.0), last + T::from_f64(3.0));
        match self.outside {
            Outside::Zeros => {
                if x >= low && x <= high {
                    x
                } else {
                    low
                }
            }
            Outside::Border => {
                // Of a cubic every tap is brought inside by itself.
                let (low, high) = if self.mode == SampleMode::Cubic { (low, high) } else { (T::ZERO, last) };
                let x = if x >= low { x } else { low };
                if x > high { high } else { x }
            }
            Outside::Reflection => self.reflect(x),
        }
    }

    /// The place `x` mirrored at the ends until it lies between them.
    fn reflect<T: Real>(&self, x: T) -> T {
        let half = T::from_f64(0.5);
        let last = T::from_f64(self.size as f64 - 1.0);
        let (min, max) = if self.align_corners { (T::ZERO, last) } else { (-half, last + half) };
        let range = max - min;
        if (x >= min && x <= max) || range <= T::ZERO {
            return if range <= T::ZERO { T::ZERO } else { x };
        }
        let below = x < min;
        let d = if below { min - x } else { x - max };
        let turns = floor(d / range);
        let rest = d - turns * range;
        let even = turns == floor(turns * half) * T::from_f64(2.0);
        let x = if even == below { min + rest } else { max - rest };
        // Huge places and no numbers end up anywhere.
        let x = if x >= min { x } else { min };
        if x > max { max } else { x }
    }

    /// The element that index `i`, not far from the axis, stands for.
    fn element<T: Real>(&self, i: i64) -> i32 {
        let last = self.size as i64 - 1;
        let inside = match self.outside {
            _ if (0..=last).contains(&i) => i,
            Outside::Zeros => return -1,
            Outside::Border => i.clamp(0, last),
            Outside::Reflection => (self.reflect(T::from_f64(i as f64)).to_f64() as i64).clamp(0, last),
        };
        inside as i32
    }
}

/// Weights of the four elements around position `f` from the second (Keys 1981, equation 4, a = -0.75).
fn cubic<T: Real>(f: T) -> [T; 4] {
    let c = |v: f64| T::from_f64(v);
    let a = c(-0.75);
    let near = |x: T| ((a + c(2.0)) * x - (a + c(3.0))) * x * x + c(1.0);
    let far = |x: T| ((a * x - c(5.0) * a) * x + c(8.0) * a) * x - c(4.0) * a;
    [far(f + c(1.0)), near(f), near(c(1.0) - f), far(c(2.0) - f)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(mode: SampleMode, outside: Outside, align_corners: bool) -> SampledAxis {
        SampledAxis { size: 5, mode, outside, align_corners }
    }

    #[test]
    fn any_place_has_elements_of_the_axis() {
        let places = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, 3.7, -2.2, -1.0, 1.0, 0.3];
        for mode in [SampleMode::Nearest, SampleMode::Linear, SampleMode::Cubic] {
            for outside in [Outside::Zeros, Outside::Border, Outside::Reflection] {
                for align in [false, true] {
                    for size in [1, 5] {
                        for place in places {
                            let axis = SampledAxis { size, ..axis(mode, outside, align) };
                            let taps = axis.taps(place);
                            let low = if outside == Outside::Zeros { -1 } else { 0 };
                            for i in &taps.index[..mode.taps()] {
                                assert!((low..size as i32).contains(i), "{axis:?} at {place}: {i}");
                            }
                            let sum: f32 = taps.weight.iter().sum();
                            assert!((sum - 1.0).abs() < 1e-5, "{axis:?} at {place}: {sum}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn mirrors_stand_at_edges_or_centres() {
        let at = |x: f32, align| axis(SampleMode::Nearest, Outside::Reflection, align).reflect(x);
        assert_eq!([-1.0, -2.0, -5.5, 5.0, 9.0].map(|x| at(x, false)), [0.0, 1.0, 4.5, 4.0, 0.0]);
        assert_eq!([-1.0, -4.0, -5.0, 5.0, 9.0].map(|x| at(x, true)), [1.0, 4.0, 3.0, 3.0, 1.0]);
    }

    #[test]
    fn the_corners_are_centres_or_edges() {
        let taps = |n: f32, align| axis(SampleMode::Linear, Outside::Zeros, align).taps(n);
        assert_eq!(taps(-1.0, true).index[0], 0);
        assert_eq!(taps(1.0, true).index[0], 4);
        let edge = taps(-1.0, false);
        assert_eq!((edge.index[0], edge.index[1], edge.weight[1]), (-1, 0, 0.5));
    }
}
