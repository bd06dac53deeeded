//! The loops that the CPU runs for a function of the table: one for each element type, compiled from its formula.

use super::formula::{FloatFormula, NumberFormula, TestFormula};
use super::lane::Lane;
use crate::simd::wide;

/// `y[i] = f(x[i])`, with the function's parameters.
pub type Loop<T> = fn(&[T], &mut [T], [f32; 2]);

/// A function's loops. Input and output are of one length.
#[derive(Clone, Copy, Debug)]
pub struct Loops {
    /// Over `f32`; compiled for the widest vectors of the CPU.
    pub f32: Loop<f32>,
    /// The same in place.
    pub f32_in_place: fn(&mut [f32], [f32; 2]),
    /// Over `f64`.
    pub f64: Loop<f64>,
    /// Over integers, of functions that have those.
    pub integers: Option<IntegerLoops>,
}

/// Loops over each type of integers. Those of functions with parameters compute in `f64`, since parameters may be
/// fractions.
#[derive(Clone, Copy, Debug)]
pub struct IntegerLoops {
    /// Over `i8`.
    pub i8: Loop<i8>,
    /// Over `i16`.
    pub i16: Loop<i16>,
    /// Over `i32`.
    pub i32: Loop<i32>,
    /// Over `i64`.
    pub i64: Loop<i64>,
    /// Over `u8`.
    pub u8: Loop<u8>,
    /// Over `u16`.
    pub u16: Loop<u16>,
    /// Over `u32`.
    pub u32: Loop<u32>,
    /// Over `u64`.
    pub u64: Loop<u64>,
}

impl Loops {
    /// Those of a function of floats.
    pub(super) const fn floats<F: FloatFormula>() -> Self {
        Loops {
            f32: |x, y, p| {
                wide(
                    #[inline(always)]
                    || {
                        let p = p.map(Lane);
                        each(
                            x,
                            y,
                            #[inline(always)]
                            |x| F::of(Lane(x), p).0,
                        );
                    },
                );
            },
            f32_in_place: |y, p| {
                wide(
                    #[inline(always)]
                    || {
                        let p = p.map(Lane);
                        each_in_place(
                            y,
                            #[inline(always)]
                            |x| F::of(Lane(x), p).0,
                        );
                    },
                );
            },
            f64: |x, y, p| each(x, y, |x| F::of(Lane(x), p.map(|p| Lane(p.into()))).0),
            integers: None,
        }
    }

    /// Those of a function of numbers without parameters.
    pub(super) const fn numbers<F: NumberFormula>() -> Self {
        /// The loop over one type.
        macro_rules! of {
            ($zero:literal) => {
                |x, y, _| each(x, y, |x| <F as NumberFormula>::of(Lane(x), [Lane($zero); 2]).0)
            };
        }
        Loops {
            integers: Some(IntegerLoops {
                i8: of!(0),
                i16: of!(0),
                i32: of!(0),
                i64: of!(0),
                u8: of!(0),
                u16: of!(0),
                u32: of!(0),
                u64: of!(0),
            }),
            ..Loops::floats::<F>()
        }
    }

    /// Those of a function of numbers with parameters.
    pub(super) const fn numbers_with_parameters<F: NumberFormula>() -> Self {
        /// The loop over one type.
        macro_rules! of {
            ($t:ty) => {
                |x, y, p| {
                    let p = p.map(|p| Lane(f64::from(p)));
                    each(x, y, |x| <F as NumberFormula>::of(Lane(x as f64), p).0 as $t);
                }
            };
        }
        Loops {
            integers: Some(IntegerLoops {
                i8: of!(i8),
                i16: of!(i16),
                i32: of!(i32),
                i64: of!(i64),
                u8: of!(u8),
                u16: of!(u16),
                u32: of!(u32),
                u64: of!(u64),
            }),
            ..Loops::floats::<F>()
        }
    }
}

/// The loops of a question about floats, with its parameters. Input and output are of one length.
#[derive(Clone, Copy, Debug)]
pub struct TestLoops {
    /// Over `f32`.
    pub f32: fn(&[f32], &mut [u8], [f32; 2]),
    /// Over `f64`.
    pub f64: fn(&[f64], &mut [u8], [f32; 2]),
}

impl TestLoops {
    /// Those of `F`.
    pub(super) const fn of<F: TestFormula>() -> Self {
        TestLoops {
            f32: |x, y, p| each(x, y, |x| F::of(Lane(x), p.map(Lane)).into()),
            f64: |x, y, p| each(x, y, |x| F::of(Lane(x), p.map(|p| Lane(p.into()))).into()),
        }
    }
}

#[inline(always)]
fn each<X: Copy, Y>(x: &[X], y: &mut [Y], f: impl Fn(X) -> Y) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = f(*x);
    }
}

/// As [`each`], in place.
#[inline(always)]
fn each_in_place(y: &mut [f32], f: impl Fn(f32) -> f32) {
    // The sum is the element, which the compiler does not know. Otherwise elements that `f` leaves as they are would not be
    // stored, and AVX2 has no fast vectors for a condition of each store.
    let nothing = std::hint::black_box(-0.0);
    for y in y {
        *y = f(*y + nothing);
    }
}
