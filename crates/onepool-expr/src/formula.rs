//! What a row of the table defines: a formula over any kind of value.

use super::value::{Plain, Value};

/// A function of floats with at most two parameters.
pub(super) trait FloatFormula {
    /// Its value at `x` with parameters `p`.
    fn of<V: Value>(x: V, p: [V; 2]) -> V;
}

/// A function of any numbers.
pub(super) trait NumberFormula {
    /// Its value at `x` with parameters `p`.
    fn of<V: Plain>(x: V, p: [V; 2]) -> V;
}

impl<F: NumberFormula> FloatFormula for F {
    #[inline(always)]
    fn of<V: Value>(x: V, p: [V; 2]) -> V {
        <F as NumberFormula>::of(x, p)
    }
}

/// A question about one float.
pub(super) trait TestFormula {
    /// Whether it holds at `x` with parameters `p`.
    fn of<V: Value>(x: V, p: [V; 2]) -> V::Truth;
}
