//! The loops that the CPU runs for a function of the table: one for each element type, compiled from its formula.

use super::functions::{FloatFormula, NumberFormula, TestFormula};
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

/// Loops over each type of integers, of functions without parameters.
#[derive(Clone, Copy, Debug)]
pub struct IntegerLoops {
    /// Over `i8`.
    pub i8: fn(&[i8], &mut [i8]),
    /// Over `i16`.
    pub i16: fn(&[i16], &mut [i16]),
    /// Over `i32`.
    pub i32: fn(&[i32], &mut [i32]),
    /// Over `i64`.
    pub i64: fn(&[i64], &mut [i64]),
    /// Over `u8`.
    pub u8: fn(&[u8], &mut [u8]),
    /// Over `u16`.
    pub u16: fn(&[u16], &mut [u16]),
    /// Over `u32`.
    pub u32: fn(&[u32], &mut [u32]),
    /// Over `u64`.
    pub u64: fn(&[u64], &mut [u64]),
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
                        each(x, y, |x| F::of(Lane(x), p).0);
                    },
                );
            },
            f32_in_place: |y, p| {
                wide(
                    #[inline(always)]
                    || {
                        let p = p.map(Lane);
                        y.iter_mut().for_each(|y| *y = F::of(Lane(*y), p).0);
                    },
                );
            },
            f64: |x, y, p| each(x, y, |x| F::of(Lane(x), p.map(|p| Lane(p.into()))).0),
            integers: None,
        }
    }

    /// Those of a function of numbers.
    pub(super) const fn numbers<F: NumberFormula>() -> Self {
        Loops {
            integers: Some(IntegerLoops {
                i8: |x, y| each(x, y, |x| <F as NumberFormula>::of(Lane(x), [Lane(0); 2]).0),
                i16: |x, y| each(x, y, |x| <F as NumberFormula>::of(Lane(x), [Lane(0); 2]).0),
                i32: |x, y| each(x, y, |x| <F as NumberFormula>::of(Lane(x), [Lane(0); 2]).0),
                i64: |x, y| each(x, y, |x| <F as NumberFormula>::of(Lane(x), [Lane(0); 2]).0),
                u8: |x, y| each(x, y, |x| <F as NumberFormula>::of(Lane(x), [Lane(0); 2]).0),
                u16: |x, y| each(x, y, |x| <F as NumberFormula>::of(Lane(x), [Lane(0); 2]).0),
                u32: |x, y| each(x, y, |x| <F as NumberFormula>::of(Lane(x), [Lane(0); 2]).0),
                u64: |x, y| each(x, y, |x| <F as NumberFormula>::of(Lane(x), [Lane(0); 2]).0),
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
