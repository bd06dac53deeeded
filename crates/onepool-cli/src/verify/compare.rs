//! Whether a result is what a test case expects.

use std::fmt;

use half::{bf16, f16};

use onepool::dtype::DType;
use onepool::graph::Tensor;

/// How far a float may be off: `|got - expected| <= atol + rtol * |expected|`.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Tolerance {
    /// Share of the expected value.
    pub(crate) rtol: f64,
    /// Added to it.
    pub(crate) atol: f64,
}

impl Tolerance {
    /// What holds where a case and the arguments say nothing.
    pub(crate) const DEFAULT: Tolerance = Tolerance { rtol: 1e-3, atol: 1e-5 };

    /// The tolerance of a case: never tighter than the default or what the case allows. What the arguments
    /// say comes before both, as far as the case allows no more.
    pub(super) fn of(given: (Option<f64>, Option<f64>), case: (Option<f64>, Option<f64>)) -> Tolerance {
        let one = |given: Option<f64>, case: Option<f64>, default: f64| {
            given.unwrap_or(default).max(case.unwrap_or(0.0))
        };
        Tolerance {
            rtol: one(given.0, case.0, Self::DEFAULT.rtol),
            atol: one(given.1, case.1, Self::DEFAULT.atol),
        }
    }

    /// The tolerance for results of rounded operands: differences are as large as this share of the largest element.
    pub(crate) fn rounded(self, expected: &Tensor) -> Tolerance {
        const SHARE: f64 = 0.05;
        Tolerance { atol: self.atol.max(SHARE * magnitude(expected)), ..self }
    }

    /// A bfloat16 has eight bits: two roundings differ by more than the default.
    fn for_type(self, dtype: DType) -> Tolerance {
        match dtype {
            DType::BF16 => Tolerance { rtol: self.rtol.max(1.0 / 64.0), ..self },
            _ => self,
        }
    }
}

/// How a result differs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Difference {
    /// Another element type.
    Type {
        /// The result's.
        got: DType,
        /// The case's.
        expected: DType,
    },
    /// Another shape.
    Shape {
        /// The result's.
        got: String,
        /// The case's.
        expected: String,
    },
    /// Other elements.
    Values {
        /// How many are too far off.
        wrong: usize,
        /// How many there are.
        total: usize,
        /// Where the one lies that is farthest off.
        index: Vec<usize>,
        /// It.
        got: String,
        /// What it should be.
        expected: String,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Type { got, expected } => write!(f, "has type {got}, expected {expected}"),
            Difference::Shape { got, expected } => write!(f, "has shape {got}, expected {expected}"),
            Difference::Values { wrong, total, index, got, expected } => write!(
                f,
                "{wrong} of {total} elements are wrong, the farthest at {index:?}: got {got}, expected {expected}"
            ),
        }
    }
}

/// Compares type and shape.
pub(super) fn compare_info(got: &Tensor, expected: &Tensor) -> Result<(), Difference> {
    if got.dtype() != expected.dtype() {
        return Err(Difference::Type { got: got.dtype(), expected: expected.dtype() });
    }
    if got.shape() != expected.shape() {
        let (got, expected) = (got.shape().to_string(), expected.shape().to_string());
        return Err(Difference::Shape { got, expected });
    }
    Ok(())
}

/// Compares type, shape and elements: floats within `tolerance` (NaN equals NaN, an infinity itself), the
/// rest exactly.
pub(crate) fn compare(got: &Tensor, expected: &Tensor, tolerance: Tolerance) -> Result<(), Difference> {
    compare_info(got, expected)?;
    let tolerance = tolerance.for_type(got.dtype());
    let dims = got.shape().dims();
    match got.dtype() {
        DType::F32 => floats(dims, slices::<f32>(got, expected), |v| v.into(), tolerance),
        DType::F64 => floats(dims, slices::<f64>(got, expected), |v| v, tolerance),
        DType::F16 => floats(dims, slices::<f16>(got, expected), f16::to_f64, tolerance),
        DType::BF16 => floats(dims, slices::<bf16>(got, expected), bf16::to_f64, tolerance),
        DType::I8 => exact(dims, slices::<i8>(got, expected)),
        DType::I16 => exact(dims, slices::<i16>(got, expected)),
        DType::I32 => exact(dims, slices::<i32>(got, expected)),
        DType::I64 => exact(dims, slices::<i64>(got, expected)),
        DType::U8 | DType::Bool => exact(dims, slices::<u8>(got, expected)),
        DType::U16 => exact(dims, slices::<u16>(got, expected)),
        DType::U32 => exact(dims, slices::<u32>(got, expected)),
        DType::U64 => exact(dims, slices::<u64>(got, expected)),
        DType::I4 | DType::I2 => exact(dims, slices::<i8>(got, expected)),
        narrow => match narrow.format() {
            None => exact(dims, slices::<u8>(got, expected)),
            Some(format) => {
                let numbers = |t: &Tensor| -> Vec<f32> {
                    t.bytes().iter().map(|code| format.decode((*code).into())).collect()
                };
                let (got, expected) = (numbers(got), numbers(expected));
                floats(dims, (&got, &expected), |v| v.into(), tolerance)
            }
        },
    }
}

/// The largest finite magnitude among the elements of a float tensor; 0 for other types.
fn magnitude(tensor: &Tensor) -> f64 {
    fn of<T: Copy>(values: Option<&[T]>, wide: impl Fn(T) -> f64) -> f64 {
        let finite = values.unwrap_or_default().iter().map(|v| wide(*v).abs()).filter(|v| v.is_finite());
        finite.fold(0.0, f64::max)
    }
    match tensor.dtype() {
        DType::F32 => of(tensor.as_slice::<f32>().ok(), f64::from),
        DType::F64 => of(tensor.as_slice::<f64>().ok(), |v| v),
        DType::F16 => of(tensor.as_slice::<f16>().ok(), f16::to_f64),
        DType::BF16 => of(tensor.as_slice::<bf16>().ok(), bf16::to_f64),
        _ => 0.0,
    }
}

/// The elements of both. Types and shapes are equal by now, so both have as many.
fn slices<'t, T: onepool::dtype::Element>(got: &'t Tensor, expected: &'t Tensor) -> (&'t [T], &'t [T]) {
    (got.as_slice().unwrap_or_default(), expected.as_slice().unwrap_or_default())
}

fn floats<T: Copy + fmt::Display>(
    dims: &[usize],
    (got, expected): (&[T], &[T]),
    wide: impl Fn(T) -> f64,
    tolerance: Tolerance,
) -> Result<(), Difference> {
    let off = |(g, e): (T, T)| {
        let (g, e) = (wide(g), wide(e));
        // Equal infinities subtract to NaN.
        if g == e || (g.is_nan() && e.is_nan()) {
            return None;
        }
        let distance = (g - e).abs();
        let allowed = tolerance.atol + tolerance.rtol * e.abs();
        let near = distance <= allowed && allowed.is_finite();
        (!near).then_some(if distance.is_nan() { f64::INFINITY } else { distance })
    };
    elements(dims, got, expected, off)
}

fn exact<T: Copy + fmt::Display + PartialEq>(
    dims: &[usize],
    (got, expected): (&[T], &[T]),
) -> Result<(), Difference> {
    // The first one stands for all: how far integers are off says little.
    elements(dims, got, expected, |(g, e)| (g != e).then_some(1.0))
}

fn elements<T: Copy + fmt::Display>(
    dims: &[usize],
    got: &[T],
    expected: &[T],
    off: impl Fn((T, T)) -> Option<f64>,
) -> Result<(), Difference> {
    let mut worst: Option<(usize, f64)> = None;
    let mut wrong = 0;
    for (i, (&g, &e)) in got.iter().zip(expected).enumerate() {
        let Some(distance) = off((g, e)) else { continue };
        wrong += 1;
        if worst.is_none_or(|(_, w)| distance > w) {
            worst = Some((i, distance));
        }
    }
    let Some((at, _)) = worst else { return Ok(()) };
    Err(Difference::Values {
        wrong,
        total: got.len(),
        index: coordinates(at, dims),
        got: got[at].to_string(),
        expected: expected[at].to_string(),
    })
}

fn coordinates(mut at: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (i, &n) in index.iter_mut().zip(dims).rev() {
        *i = at % n.max(1);
        at /= n.max(1);
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Tolerance = Tolerance::DEFAULT;

    fn one(got: f32, expected: f32) -> Result<(), Difference> {
        compare(&Tensor::new([1], &[got]).unwrap(), &Tensor::new([1], &[expected]).unwrap(), T)
    }

    #[test]
    fn floats_may_be_off_by_the_tolerance_and_no_more() {
        assert!(one(1.0009, 1.0).is_ok());
        assert!(one(1.0011, 1.0).is_err());
        assert!(one(0.9e-5, 0.0).is_ok());
        assert!(one(1.1e-5, 0.0).is_err());
        assert!(one(-100.05, -100.0).is_ok());
        // The tolerance is a share of what is expected, not of what came.
        assert!(one(1001.1, 1000.0).is_err());
    }

    #[test]
    fn nan_and_infinity_equal_themselves_only() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert!(one(nan, nan).is_ok());
        assert!(one(inf, inf).is_ok());
        assert!(one(-inf, inf).is_err());
        assert!(one(nan, 1.0).is_err());
        assert!(one(1.0, nan).is_err());
        assert!(one(3e38, inf).is_err());
        assert!(one(inf, 3e38).is_err());
        assert!(one(-0.0, 0.0).is_ok());
    }

    #[test]
    fn the_farthest_element_is_named() {
        let got = Tensor::new([2, 3], &[1.0f32, 2.0, 3.0, 4.0, 9.0, 6.5]).unwrap();
        let expected = Tensor::new([2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let e = compare(&got, &expected, T).unwrap_err();
        assert_eq!(e.to_string(), "2 of 6 elements are wrong, the farthest at [1, 1]: got 9, expected 5");
    }

    #[test]
    fn integers_are_exact_and_types_and_shapes_count() {
        let a = Tensor::new([2], &[1000i32, 2]).unwrap();
        assert!(compare(&a, &a, T).is_ok());
        let b = Tensor::new([2], &[1000i32, 3]).unwrap();
        assert!(matches!(compare(&a, &b, T), Err(Difference::Values { wrong: 1, .. })));
        assert!(matches!(
            compare(&a, &Tensor::new([2], &[1000f32, 2.0]).unwrap(), T),
            Err(Difference::Type { .. })
        ));
        assert!(matches!(
            compare(&a, &Tensor::new([1, 2], &[1000i32, 2]).unwrap(), T),
            Err(Difference::Shape { .. })
        ));
        let empty = Tensor::new::<f32>([0], &[]).unwrap();
        assert!(compare(&empty, &empty, T).is_ok());
    }

    #[test]
    fn half_floats_are_compared_as_numbers() {
        let h = |v: f32| Tensor::new([1], &[f16::from_f32(v)]).unwrap();
        assert!(compare(&h(1.0), &h(1.0005), T).is_ok());
        assert!(compare(&h(1.0), &h(1.01), T).is_err());
        let b = |v: f32| Tensor::new([1], &[bf16::from_f32(v)]).unwrap();
        assert!(compare(&b(1.0), &b(1.0078125), T).is_ok());
        assert!(compare(&b(1.0), &b(1.1), T).is_err());
    }

    #[test]
    fn a_case_loosens_and_never_tightens() {
        assert_eq!(Tolerance::of((None, None), (None, None)), T);
        assert_eq!(Tolerance::of((None, None), (Some(1e-3), Some(1e-7))), T);
        let loose = Tolerance::of((None, None), (Some(0.1), Some(0.2)));
        assert_eq!((loose.rtol, loose.atol), (0.1, 0.2));
        let given = Tolerance::of((Some(1e-6), Some(0.5)), (Some(1e-2), None));
        assert_eq!((given.rtol, given.atol), (1e-2, 0.5));
    }
}
