//! Which input elements every output element of a resized axis is made of.

use super::resize::{CoordinateMode, Interpolation, NearestMode};

/// The resampling of one axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AxisDesc {
    /// Elements of the input.
    pub(super) input: usize,
    /// Elements of the output.
    pub(super) output: usize,
    /// Output elements for one of the input.
    pub(super) scale: f64,
    /// Start and end of the region of interest, as parts of the input.
    pub(super) roi: [f64; 2],
    /// The mapping of positions in the output to positions in the input.
    pub(super) coordinates: CoordinateMode,
    /// The interpolation of neighbouring elements.
    pub(super) mode: Interpolation,
    /// Whether a smaller output averages over all that it covers.
    pub(super) antialias: bool,
    /// Whether elements beyond the edge have no weight instead of the edge's value.
    pub(super) exclude_outside: bool,
}

/// The taps of one axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AxisTable {
    /// Elements of the input.
    pub(super) input: usize,
    /// Taps of one output element.
    pub(super) taps: usize,
    /// For every output element and tap the input element; -1 where the element is extrapolated.
    pub(super) index: Vec<i32>,
    /// The weight of every tap.
    pub(super) weight: Vec<f64>,
}

impl AxisTable {
    /// Elements of the output.
    pub(super) fn output(&self) -> usize {
        self.index.len() / self.taps.max(1)
    }

    /// Indices and weights as kernels read them: each tap's input element, then its weight.
    pub(super) fn words(&self) -> Vec<i32> {
        self.index.iter().zip(&self.weight).flat_map(|(i, w)| [*i, (*w as f32).to_bits() as i32]).collect()
    }

    /// Whether the output is the input.
    pub(super) fn is_identity(&self) -> bool {
        self.output() == self.input
            && self.index.chunks(self.taps).zip(self.weight.chunks(self.taps)).enumerate().all(
                |(i, (index, weight))| {
                    index
                        .iter()
                        .zip(weight)
                        .all(|(j, w)| if *j == i as i32 { true } else { *w == 0.0 && *j >= 0 })
                        && (weight
                            .iter()
                            .zip(index)
                            .filter(|(_, j)| **j == i as i32)
                            .map(|(w, _)| *w)
                            .sum::<f64>()
                            - 1.0)
                            .abs()
                            < 1e-12
                },
            )
    }

    /// The table of an axis with input elements.
    pub(super) fn new(desc: &AxisDesc) -> AxisTable {
        // A scale that leaves no output may be as small as it likes.
        let stretch = if desc.antialias && desc.output > 0 { desc.scale.min(1.0) } else { 1.0 };
        // Taps from `first` on, relative to the element at or left of the place.
        let (first, taps) = match desc.mode {
            Interpolation::Nearest(_) => (0, 1),
            Interpolation::Linear => window(1.0, stretch),
            Interpolation::Cubic { .. } => window(2.0, stretch),
        };
        let mut table = AxisTable { input: desc.input, taps, index: Vec::new(), weight: Vec::new() };
        let last = desc.input as i64 - 1;
        for o in 0..desc.output {
            let x = desc.place(o);
            let outside = x < 0.0 || x > last as f64;
            if desc.coordinates == CoordinateMode::TfCropAndResize && outside {
                table.index.extend(std::iter::repeat_n(-1, taps));
                table.weight.extend(std::iter::repeat_n(0.0, taps));
                continue;
            }
            let left = x.floor();
            let mut weights: Vec<f64> = match desc.mode {
                Interpolation::Nearest(mode) => {
                    // In f32, as other runtimes round: 3 elements of a third each end at 1.
                    let x = f64::from(x as f32);
                    table.index.push(mode.round(x).clamp(0, last) as i32);
                    table.weight.push(1.0);
                    continue;
                }
                Interpolation::Linear => kernel(first, taps, x - left, stretch, |d| (1.0 - d).max(0.0)),
                Interpolation::Cubic { a } => {
                    kernel(first, taps, x - left, stretch, |d| cubic(d, f64::from(a)))
                }
            };
            let places = (0..taps as i64).map(|t| (left as i64).saturating_add(first + t));
            if desc.exclude_outside {
                places.clone().zip(&mut weights).for_each(|(p, w)| {
                    if p < 0 || p > last {
                        *w = 0.0;
                    }
                });
            }
            if desc.exclude_outside || stretch < 1.0 {
                let sum: f64 = weights.iter().sum();
                if sum != 0.0 {
                    weights.iter_mut().for_each(|w| *w /= sum);
                }
            }
            table.index.extend(places.map(|p| p.clamp(0, last) as i32));
            table.weight.extend(weights);
        }
        table
    }
}

/// First tap and number of taps of a kernel that reaches `radius` elements to both sides.
fn window(radius: f64, stretch: f64) -> (i64, usize) {
    let first = (-radius / stretch).floor() as i64 + 1;
    (first, (2 - 2 * first) as usize)
}

fn kernel(first: i64, taps: usize, fraction: f64, stretch: f64, f: impl Fn(f64) -> f64) -> Vec<f64> {
    (0..taps as i64).map(|t| f(((first + t) as f64 - fraction).abs() * stretch)).collect()
}

/// Keys' cubic kernel at distance `d`.
fn cubic(d: f64, a: f64) -> f64 {
    if d <= 1.0 {
        ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
    } else if d < 2.0 {
        ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
    } else {
        0.0
    }
}

impl NearestMode {
    fn round(self, x: f64) -> i64 {
        let y = match self {
            NearestMode::RoundPreferFloor => (x - 0.5).ceil(),
            NearestMode::RoundPreferCeil => (x + 0.5).floor(),
            NearestMode::Floor | NearestMode::FloorOrCeil => x.floor(),
            NearestMode::Ceil => x.ceil(),
        };
        y as i64
    }
}

impl AxisDesc {
    /// The place in the input of output element `o`.
    fn place(&self, o: usize) -> f64 {
        let (x, last) = (o as f64, self.input as f64 - 1.0);
        // Not rounded: a scale that is no ratio of sizes moves the places, as ONNX defines it.
        let resized = self.scale * self.input as f64;
        match self.coordinates {
            CoordinateMode::HalfPixel => (x + 0.5) / self.scale - 0.5,
            CoordinateMode::TfHalfPixelForNearest => (x + 0.5) / self.scale,
            CoordinateMode::HalfPixelSymmetric => {
                let adjustment = self.output as f64 / resized;
                let offset = self.input as f64 / 2.0 * (1.0 - adjustment);
                offset + (x + 0.5) / self.scale - 0.5
            }
            CoordinateMode::PytorchHalfPixel => {
                if resized > 1.0 {
                    (x + 0.5) / self.scale - 0.5
                } else {
                    0.0
                }
            }
            CoordinateMode::AlignCorners => {
                if resized == 1.0 {
                    0.0
                } else {
                    x * last / (resized - 1.0)
                }
            }
            CoordinateMode::Asymmetric => x / self.scale,
            CoordinateMode::TfCropAndResize => {
                let [start, end] = self.roi;
                let inner = if resized > 1.0 {
                    x * (end - start) * last / (resized - 1.0)
                } else {
                    (end - start) * last / 2.0
                };
                start * last + inner
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desc(input: usize, output: usize, mode: Interpolation) -> AxisDesc {
        AxisDesc {
            input,
            output,
            scale: output as f64 / input as f64,
            roi: [0.0, 1.0],
            coordinates: CoordinateMode::HalfPixel,
            mode,
            antialias: false,
            exclude_outside: false,
        }
    }

    #[test]
    fn no_scale_and_no_place_is_too_far() {
        for scale in [1e-30, f64::MIN_POSITIVE, 1.0, 1e30] {
            for output in [0, 3] {
                for (mode, antialias) in
                    [(Interpolation::Linear, scale < 1e-20 && output == 0), (Interpolation::Linear, false)]
                {
                    let coordinates = CoordinateMode::Asymmetric;
                    let d = AxisDesc { scale, coordinates, antialias, ..desc(5, output, mode) };
                    let table = AxisTable::new(&d);
                    assert_eq!((table.output(), table.taps), (output, 2));
                    assert!(table.index.iter().all(|i| (0..5).contains(i)));
                }
            }
        }
    }

    #[test]
    fn weights_sum_to_one_and_reproduce_a_line() {
        for mode in
            [Interpolation::Linear, Interpolation::Cubic { a: -0.75 }, Interpolation::Cubic { a: -0.5 }]
        {
            for (input, output) in [(5, 9), (9, 5), (7, 7), (3, 20), (20, 3)] {
                for antialias in [false, true] {
                    let table = AxisTable::new(&AxisDesc { antialias, ..desc(input, output, mode) });
                    assert_eq!(table.output(), output);
                    for w in table.weight.chunks(table.taps) {
                        assert!((w.iter().sum::<f64>() - 1.0).abs() < 1e-9);
                    }
                }
            }
        }
        // Away from the edges, linear interpolation of i is the place itself.
        let d = desc(10, 15, Interpolation::Linear);
        let table = AxisTable::new(&d);
        for o in 2..13 {
            let at = o * table.taps..(o + 1) * table.taps;
            let got: f64 =
                table.index[at.clone()].iter().zip(&table.weight[at]).map(|(i, w)| f64::from(*i) * w).sum();
            assert!((got - d.place(o)).abs() < 1e-9);
        }
    }

    #[test]
    fn equal_sizes_are_the_identity() {
        for mode in [
            Interpolation::Nearest(NearestMode::RoundPreferFloor),
            Interpolation::Linear,
            Interpolation::Cubic { a: -0.75 },
        ] {
            assert!(AxisTable::new(&desc(6, 6, mode)).is_identity(), "{mode:?}");
            assert!(!AxisTable::new(&desc(6, 7, mode)).is_identity());
        }
        let d = AxisDesc {
            coordinates: CoordinateMode::TfCropAndResize,
            roi: [-1.0, 1.0],
            ..desc(6, 6, Interpolation::Linear)
        };
        let table = AxisTable::new(&d);
        assert!(table.index.contains(&-1) && !table.is_identity());
    }

    #[test]
    fn ties_are_rounded_as_asked() {
        for (mode, want) in [
            (NearestMode::RoundPreferFloor, [1, 2, 2]),
            (NearestMode::RoundPreferCeil, [2, 2, 2]),
            (NearestMode::Floor, [1, 1, 2]),
            (NearestMode::Ceil, [2, 2, 2]),
        ] {
            assert_eq!([1.5, 1.6, 2.0].map(|x| mode.round(x)), want, "{mode:?}");
        }
    }

    #[test]
    fn before_opset_11_shrinking_takes_the_element_behind() {
        use crate::graph::Tensor;
        use crate::ops::test_util::{attrs, read_op, run_cpu};
        let op = read_op("Resize", 10, &attrs(&[])).unwrap();
        let x = Tensor::new([1, 1, 2, 4], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
        let run = |scales: &[f32]| {
            let scales = Tensor::new([4], scales).unwrap();
            run_cpu(&*op, &[Some(x.clone()), Some(scales)], 1).unwrap().remove(0).to_f32s().unwrap()
        };
        assert_eq!(run(&[1.0, 1.0, 0.6, 0.6]), [1.0, 3.0]);
        assert_eq!(run(&[1.0, 1.0, 0.6, 1.5]), [1.0, 1.0, 2.0, 3.0, 3.0, 4.0]);
    }

    #[test]
    fn places_are_those_of_other_runtimes() {
        // A third in f32 is more than a third: in f64 the second element would be the one before its begin.
        let thirds = AxisDesc {
            coordinates: CoordinateMode::Asymmetric,
            scale: f64::from(1.0f32 / 3.0),
            ..desc(18, 6, Interpolation::Nearest(NearestMode::Floor))
        };
        assert_eq!(AxisTable::new(&thirds).index, [0, 3, 6, 9, 12, 15]);
        let tf = AxisDesc { coordinates: CoordinateMode::TfHalfPixelForNearest, ..thirds };
        assert_eq!(AxisTable::new(&tf).index, [1, 4, 7, 10, 13, 16]);
    }
}
