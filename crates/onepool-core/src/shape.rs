//! Shapes: concrete sizes, symbolic sizes, broadcasting, strides.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::limits;

/// Why sizes do not make a shape or do not fit one another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// The number of elements or bytes does not fit.
    #[error("shape {shape} has too many elements for this machine")]
    Overflow {
        /// The shape, printed.
        shape: String,
    },
    /// More dimensions than any operator takes.
    #[error("shape has {rank} dimensions, at most {limit} are supported")]
    Rank {
        /// The dimensions found.
        rank: usize,
        /// [`limits::MAX_RANK`].
        limit: usize,
    },
    /// Two shapes cannot be broadcast together.
    #[error("shapes {a} and {b} cannot be broadcast together")]
    Broadcast {
        /// One shape.
        a: String,
        /// The other.
        b: String,
    },
    /// An axis outside the shape.
    #[error("axis {axis} is outside a tensor of {rank} dimensions")]
    Axis {
        /// The axis as given.
        axis: i64,
        /// The dimensions there are.
        rank: usize,
    },
    /// A negative or otherwise impossible size.
    #[error("dimension {index} has the impossible size {size}")]
    Size {
        /// Which dimension.
        index: usize,
        /// Its size as given.
        size: i64,
    },
    /// A symbolic dimension has two values in one run.
    #[error("dimension {symbol:?} is {first} in one input and {second} in another")]
    Conflict {
        /// The symbol.
        symbol: String,
        /// The size first seen.
        first: usize,
        /// The other size.
        second: usize,
    },
    /// A tensor whose shape does not match what is declared.
    #[error("expected shape {expected}, got {got}")]
    Mismatch {
        /// The declared shape.
        expected: String,
        /// The shape given.
        got: String,
    },
}

/// The sizes of a tensor's dimensions, outermost first; a scalar has none.
///
/// The number of elements, times eight, always fits `isize`.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// A shape of the sizes `dims`.
    ///
    /// # Errors
    /// [`ShapeError::Rank`] and [`ShapeError::Overflow`].
    pub fn new(dims: impl Into<Vec<usize>>) -> Result<Self, ShapeError> {
        let dims = dims.into();
        if dims.len() > limits::MAX_RANK {
            return Err(ShapeError::Rank { rank: dims.len(), limit: limits::MAX_RANK });
        }
        // Zero sizes must not hide an overflow of the others: strides are products of the others.
        let product = dims.iter().filter(|d| **d != 0).try_fold(8usize, |n, d| n.checked_mul(*d));
        match product {
            Some(n) if n <= isize::MAX as usize => Ok(Shape(dims)),
            _ => Err(ShapeError::Overflow { shape: format!("{dims:?}") }),
        }
    }

    /// A shape from signed sizes, as files hold them.
    ///
    /// # Errors
    /// As [`Shape::new`], and [`ShapeError::Size`] for a negative size.
    pub fn from_i64(dims: &[i64]) -> Result<Self, ShapeError> {
        let sizes: Result<Vec<usize>, ShapeError> = dims
            .iter()
            .enumerate()
            .map(|(index, &size)| usize::try_from(size).map_err(|_| ShapeError::Size { index, size }))
            .collect();
        Shape::new(sizes?)
    }

    /// The shape of a scalar.
    pub const fn scalar() -> Self {
        Shape(Vec::new())
    }

    /// The sizes.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// How many dimensions there are.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// How many elements there are.
    pub fn elements(&self) -> usize {
        self.0.iter().product()
    }

    /// Row-major strides in elements.
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.0.len()];
        for i in (1..self.0.len()).rev() {
            strides[i - 1] = strides[i] * self.0[i].max(1);
        }
        strides
    }

    /// Whether a tensor with these strides in elements lies compactly in row-major order.
    pub fn is_compact(&self, strides: &[i64]) -> bool {
        let same =
            |((got, want), dim): ((&i64, usize), &usize)| *dim == 1 || usize::try_from(*got) == Ok(want);
        strides.len() == self.rank()
            && (self.elements() == 0 || strides.iter().zip(self.strides()).zip(&self.0).all(same))
    }

    /// The axis `axis`, negative ones counted from the end, as an index.
    ///
    /// # Errors
    /// [`ShapeError::Axis`] where there is no such axis.
    pub fn axis(&self, axis: i64) -> Result<usize, ShapeError> {
        normalize_axis(axis, self.rank())
    }

    /// The shape that both broadcast to by NumPy's rule.
    ///
    /// # Errors
    /// [`ShapeError::Broadcast`] where a pair of sizes differs and neither is 1.
    pub fn broadcast(&self, other: &Shape) -> Result<Shape, ShapeError> {
        let rank = self.rank().max(other.rank());
        let at = |s: &Shape, i: usize| (i + s.rank()).checked_sub(rank).map_or(1, |j| s.0[j]);
        let dims: Option<Vec<usize>> = (0..rank)
            .map(|i| match (at(self, i), at(other, i)) {
                (a, b) if a == b => Some(a),
                (1, b) => Some(b),
                (a, 1) => Some(a),
                _ => None,
            })
            .collect();
        match dims {
            Some(dims) => Shape::new(dims),
            None => Err(ShapeError::Broadcast { a: self.to_string(), b: other.to_string() }),
        }
    }

    /// Strides in elements with which a tensor of this shape is read as `to`: 0 where it is repeated.
    ///
    /// # Errors
    /// [`ShapeError::Broadcast`] where this shape does not broadcast to `to`.
    pub fn broadcast_strides(&self, to: &Shape) -> Result<Vec<usize>, ShapeError> {
        let fail = || ShapeError::Broadcast { a: self.to_string(), b: to.to_string() };
        let lead = to.rank().checked_sub(self.rank()).ok_or_else(fail)?;
        let own = self.strides();
        let mut out = vec![0; to.rank()];
        for (i, &d) in self.0.iter().enumerate() {
            if d == to.0[lead + i] {
                out[lead + i] = if d == 1 { 0 } else { own[i] };
            } else if d != 1 {
                return Err(fail());
            }
        }
        Ok(out)
    }
}

/// The axis `axis` of a tensor of `rank` dimensions, negative ones counted from the end.
///
/// # Errors
/// [`ShapeError::Axis`] where there is no such axis.
pub fn normalize_axis(axis: i64, rank: usize) -> Result<usize, ShapeError> {
    let r = rank as i64;
    let i = if axis < 0 { axis.saturating_add(r) } else { axis };
    if (0..r).contains(&i) { Ok(i as usize) } else { Err(ShapeError::Axis { axis, rank }) }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl serde::Serialize for Shape {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(&self.0)
    }
}

/// One dimension of a declared shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A size fixed by the model.
    Known(usize),
    /// A size with a name: equal names have equal sizes in one run.
    Symbol(Arc<str>),
    /// A size that the model does not tell.
    Unknown,
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Known(n) => write!(f, "{n}"),
            Dim::Symbol(s) => f.write_str(s),
            Dim::Unknown => f.write_str("?"),
        }
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Self {
        Dim::Known(n)
    }
}

impl From<&str> for Dim {
    fn from(s: &str) -> Self {
        Dim::Symbol(s.into())
    }
}

/// A declared shape whose sizes may be symbolic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct SymShape(pub Vec<Dim>);

impl SymShape {
    /// The concrete shape, if every size is known.
    pub fn concrete(&self) -> Option<Shape> {
        let dims: Option<Vec<usize>> =
            self.0.iter().map(|d| if let Dim::Known(n) = d { Some(*n) } else { None }).collect();
        Shape::new(dims?).ok()
    }

    /// Checks `shape` against this declaration and records the sizes of its symbols.
    ///
    /// # Errors
    /// [`ShapeError::Mismatch`] and [`ShapeError::Conflict`].
    pub fn unify(&self, shape: &Shape, symbols: &mut BTreeMap<Arc<str>, usize>) -> Result<(), ShapeError> {
        let mismatch = || ShapeError::Mismatch { expected: self.to_string(), got: shape.to_string() };
        if shape.rank() != self.0.len() {
            return Err(mismatch());
        }
        for (dim, &size) in self.0.iter().zip(shape.iter()) {
            match dim {
                Dim::Known(n) if *n != size => return Err(mismatch()),
                Dim::Symbol(s) => match symbols.get(s) {
                    Some(&first) if first != size => {
                        return Err(ShapeError::Conflict { symbol: s.to_string(), first, second: size });
                    }
                    _ => {
                        symbols.insert(s.clone(), size);
                    }
                },
                _ => {}
            }
        }
        Ok(())
    }
}

impl From<&Shape> for SymShape {
    fn from(s: &Shape) -> Self {
        SymShape(s.iter().map(|&n| Dim::Known(n)).collect())
    }
}

impl fmt::Display for SymShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(d: &[usize]) -> Shape {
        Shape::new(d).unwrap()
    }

    #[test]
    fn compact_strides_are_known_and_those_of_one_element_do_not_count() {
        assert!(s(&[2, 3]).is_compact(&[3, 1]) && s(&[2, 1, 3]).is_compact(&[3, -7, 1]));
        assert!(s(&[0, 3]).is_compact(&[9, 9]) && s(&[]).is_compact(&[]));
        assert!(
            !s(&[2, 3]).is_compact(&[1, 2]) && !s(&[2]).is_compact(&[-1]) && !s(&[2, 3]).is_compact(&[1])
        );
    }

    #[test]
    fn an_overflowing_shape_is_an_error_even_after_a_zero() {
        assert!(matches!(Shape::new([usize::MAX, 2]), Err(ShapeError::Overflow { .. })));
        assert!(matches!(Shape::new([0, usize::MAX, 2]), Err(ShapeError::Overflow { .. })));
        assert_eq!(s(&[0, 3]).elements(), 0);
        assert!(matches!(Shape::from_i64(&[2, -1]), Err(ShapeError::Size { index: 1, size: -1 })));
    }

    #[test]
    fn broadcasting_follows_numpy() {
        assert_eq!(s(&[3, 1]).broadcast(&s(&[4])).unwrap(), s(&[3, 4]));
        assert_eq!(s(&[]).broadcast(&s(&[2, 0])).unwrap(), s(&[2, 0]));
        assert!(s(&[3]).broadcast(&s(&[4])).is_err());
        assert_eq!(s(&[3, 1]).broadcast_strides(&s(&[2, 3, 4])).unwrap(), vec![0, 1, 0]);
        assert!(s(&[3, 2]).broadcast_strides(&s(&[2])).is_err());
    }

    #[test]
    fn symbols_unify_across_inputs() {
        let mut symbols = BTreeMap::new();
        let d = SymShape(vec!["n".into(), 3.into(), Dim::Unknown]);
        d.unify(&s(&[2, 3, 9]), &mut symbols).unwrap();
        assert_eq!(symbols.get("n"), Some(&2));
        assert!(matches!(d.unify(&s(&[4, 3, 9]), &mut symbols), Err(ShapeError::Conflict { .. })));
        assert!(matches!(d.unify(&s(&[2, 5, 9]), &mut symbols), Err(ShapeError::Mismatch { .. })));
    }

    #[test]
    fn axes_count_from_both_ends() {
        assert_eq!(s(&[2, 3]).axis(-1).unwrap(), 1);
        assert!(s(&[2, 3]).axis(2).is_err());
        assert!(s(&[2, 3]).axis(i64::MIN).is_err());
    }
}
