//! Products of integer matrices, wrapping around like the machine's arithmetic.

use super::product::Mat;
use crate::dtype::Element;
use crate::ops::par;

/// Integers that are multiplied modulo their range.
pub(crate) trait Int: Element {
    /// The product, wrapped.
    fn times(self, other: Self) -> Self;
    /// The sum, wrapped.
    fn plus(self, other: Self) -> Self;
    /// The nearest integer of a whole number.
    fn from_whole(v: f32) -> Self;
}

macro_rules! int {
    ($($t:ty),*) => {$(
        impl Int for $t {
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn from_whole(v: f32) -> Self {
                v as $t
            }
        }
    )*};
}

int!(i32, i64, u32, u64);

/// `c += a * b` where `c` is rows of `n` elements; the operands cover their matrices.
pub(crate) fn add_product<T: Int>(n: usize, k: usize, a: Mat<'_, T>, b: Mat<'_, T>, c: &mut [T]) {
    let work = c.len().saturating_mul(k);
    par::rows(c, n, work, |r, c| {
        for i in 0..k {
            let x = a.data[r * a.row + i * a.col];
            let row = b.data[i * b.row..].iter().step_by(b.col);
            c.iter_mut().zip(row).for_each(|(c, b)| *c = c.plus(x.times(*b)));
        }
    });
}
