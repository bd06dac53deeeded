//! What a function of the table computes with: numbers of the CPU, or expressions.
//!
//! A formula is written once over [`Plain`], or over a trait that adds to it: [`Value`] for floats,
//! [`Arithmetic`] for what no chain computes, [`Bits`] for integers. With [`Sym`] it makes an expression,
//! with `Lane` it is a loop's body, with `Text` it is printed for a shader. All take the same steps in the
//! same order, so that results are the same bits.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};

use super::pointwise::{BinaryOp, CompareOp, Expr, ExprId, PointwiseDesc, UnaryOp};

/// An operand of a formula: a value, or a number that becomes one.
pub trait Arg<V> {
    /// The value, of the kind of `like`.
    fn value(self, like: V) -> V;
}

impl<V: Plain> Arg<V> for V {
    #[inline(always)]
    fn value(self, _: V) -> V {
        self
    }
}

impl<V: Plain> Arg<V> for f64 {
    #[inline(always)]
    fn value(self, like: V) -> V {
        like.number(self)
    }
}

/// Arithmetic of every element type. Integers wrap.
pub trait Plain:
    Copy
    + Neg<Output = Self>
    + Add<Output = Self>
    + Add<f64, Output = Self>
    + Sub<Output = Self>
    + Sub<f64, Output = Self>
    + Mul<Output = Self>
    + Mul<f64, Output = Self>
{
    /// Whether a comparison holds.
    type Truth;

    /// A constant of the same kind.
    fn number(self, value: f64) -> Self;
    /// The magnitude.
    fn abs(self) -> Self;
    /// A function of two values.
    fn binary(self, op: BinaryOp, b: Self) -> Self;
    /// `then` where the comparison with `b` holds, else `otherwise`.
    fn select(self, test: CompareOp, b: Self, then: Self, otherwise: Self) -> Self;
    /// Whether the comparison with `b` holds.
    fn holds(self, test: CompareOp, b: Self) -> Self::Truth;

    /// `self == b`
    #[inline(always)]
    fn is_equal(self, b: Self) -> Self::Truth {
        self.holds(CompareOp::Equal, b)
    }

    /// `self < b`
    #[inline(always)]
    fn is_less(self, b: Self) -> Self::Truth {
        self.holds(CompareOp::Less, b)
    }

    /// `self <= b`
    #[inline(always)]
    fn is_at_most(self, b: Self) -> Self::Truth {
        self.holds(CompareOp::LessEqual, b)
    }

    /// `self > b`
    #[inline(always)]
    fn is_greater(self, b: Self) -> Self::Truth {
        self.holds(CompareOp::Greater, b)
    }

    /// `self >= b`
    #[inline(always)]
    fn is_at_least(self, b: Self) -> Self::Truth {
        self.holds(CompareOp::GreaterEqual, b)
    }

    /// Whether it is no number.
    #[inline(always)]
    fn is_nan(self) -> Self::Truth {
        self.holds(CompareOp::Unordered, self)
    }

    /// The quotient; of integers cut off toward zero, 0 where the divisor is 0.
    #[inline(always)]
    fn divide(self, b: Self) -> Self {
        self.binary(BinaryOp::Div, b)
    }

    /// The smaller one; NaN where either is.
    #[inline(always)]
    fn lesser(self, b: Self) -> Self {
        self.binary(BinaryOp::Min, b)
    }

    /// The larger one; NaN where either is.
    #[inline(always)]
    fn greater(self, b: Self) -> Self {
        self.binary(BinaryOp::Max, b)
    }

    /// `then` where it is below `b`, else `otherwise`, as for NaN.
    #[inline(always)]
    fn if_less(self, b: impl Arg<Self>, then: impl Arg<Self>, otherwise: impl Arg<Self>) -> Self {
        self.select(CompareOp::Less, b.value(self), then.value(self), otherwise.value(self))
    }

    /// `then` where it is not above `b`, else `otherwise`, as for NaN.
    #[inline(always)]
    fn if_at_most(self, b: impl Arg<Self>, then: impl Arg<Self>, otherwise: impl Arg<Self>) -> Self {
        self.select(CompareOp::LessEqual, b.value(self), then.value(self), otherwise.value(self))
    }

    /// `then` where it is above `b`, else `otherwise`, as for NaN.
    #[inline(always)]
    fn if_greater(self, b: impl Arg<Self>, then: impl Arg<Self>, otherwise: impl Arg<Self>) -> Self {
        self.select(CompareOp::Greater, b.value(self), then.value(self), otherwise.value(self))
    }

    /// `then` where it is `b`, else `otherwise`.
    #[inline(always)]
    fn if_equal(self, b: impl Arg<Self>, then: impl Arg<Self>, otherwise: impl Arg<Self>) -> Self {
        self.select(CompareOp::Equal, b.value(self), then.value(self), otherwise.value(self))
    }

    /// `then` where it is NaN, else `otherwise`.
    #[inline(always)]
    fn if_nan(self, then: impl Arg<Self>, otherwise: impl Arg<Self>) -> Self {
        self.select(CompareOp::Unordered, self, then.value(self), otherwise.value(self))
    }

    /// The value, or `low` where it is below; NaN stays NaN.
    #[inline(always)]
    fn at_least(self, low: impl Arg<Self>) -> Self {
        self.binary(BinaryOp::AtLeast, low.value(self))
    }

    /// The value, or `high` where it is above; NaN stays NaN.
    #[inline(always)]
    fn at_most(self, high: impl Arg<Self>) -> Self {
        self.binary(BinaryOp::AtMost, high.value(self))
    }

    /// The value within bounds; NaN stays NaN.
    #[inline(always)]
    fn clip(self, low: impl Arg<Self>, high: impl Arg<Self>) -> Self {
        self.at_least(low).at_most(high)
    }
}

/// Arithmetic of every element type that chains leave to nodes of their own.
pub trait Arithmetic: Plain {
    /// The remainder with the sign of the dividend; 0 where an integer is divided by 0.
    fn remainder(self, b: Self) -> Self;
    /// The power; of integers the bits that the type holds, and the quotient of 1 for a negative exponent.
    fn power(self, b: Self) -> Self;

    /// The remainder with the sign of the divisor; 0 where an integer is divided by 0.
    #[inline(always)]
    fn modulo(self, b: Self) -> Self {
        let r = self.remainder(b);
        let zero = b.if_less(0.0, -0.0, 0.0);
        let moved = r.if_less(0.0, b.if_less(0.0, r, r + b), b.if_less(0.0, r + b, r));
        r.if_equal(0.0, zero, moved)
    }
}

/// Integers as bits.
pub trait Bits: Plain {
    /// Bits that are in both.
    fn and(self, b: Self) -> Self;
    /// Bits that are in either.
    fn or(self, b: Self) -> Self;
    /// Bits that are in one.
    fn xor(self, b: Self) -> Self;
    /// Bits moved up; nothing is left beyond the width or by a negative number.
    fn shift_left(self, b: Self) -> Self;
    /// Bits moved down; beyond the width or by a negative number nothing but copies of the sign.
    fn shift_right(self, b: Self) -> Self;
}

/// Methods for functions of one value.
macro_rules! functions_of_one {
    ($($name:ident $op:ident)*) => {$(
        #[doc = concat!("[`UnaryOp::", stringify!($op), "`]")]
        #[inline(always)]
        fn $name(self) -> Self {
            self.unary(UnaryOp::$op)
        }
    )*};
}

/// Arithmetic and functions of floats.
pub trait Value: Plain + Div<Output = Self> + Div<f64, Output = Self> {
    /// A function of one value.
    fn unary(self, op: UnaryOp) -> Self;

    /// `1 / x`
    #[inline(always)]
    fn reciprocal(self) -> Self {
        self.number(1.0) / self
    }

    functions_of_one! {
        floor Floor ceil Ceil round Round sqrt Sqrt exp Exp log Log expm1 Expm1 sigmoid Sigmoid softplus Softplus erf Erf
        normal_cdf NormalCdf sin Sin cos Cos tan Tan asin Asin acos Acos atan Atan sinh Sinh cosh Cosh tanh Tanh
        asinh Asinh acosh Acosh atanh Atanh
    }
}

/// A value of an expression that is being written.
#[derive(Clone, Copy)]
pub(crate) struct Sym<'d> {
    desc: &'d RefCell<PointwiseDesc>,
    id: ExprId,
}

impl<'d> Sym<'d> {
    /// What `write` makes of values `args` of `desc`, which are there.
    pub(super) fn write<const N: usize>(
        desc: &mut PointwiseDesc,
        args: [ExprId; N],
        write: impl for<'s> FnOnce([Sym<'s>; N]) -> Sym<'s>,
    ) -> ExprId {
        let cell = RefCell::new(std::mem::take(desc));
        let id = write(args.map(|id| Sym { desc: &cell, id })).id;
        *desc = cell.into_inner();
        id
    }

    fn with(self, expr: Expr) -> Self {
        Sym { id: self.desc.borrow_mut().add(expr), ..self }
    }
}

impl Plain for Sym<'_> {
    /// 1 or 0.
    type Truth = Self;

    fn number(self, value: f64) -> Self {
        self.with(Expr::Const(value as f32))
    }

    fn abs(self) -> Self {
        self.with(Expr::Unary(UnaryOp::Abs, self.id))
    }

    fn binary(self, op: BinaryOp, b: Self) -> Self {
        let id = self.desc.borrow_mut().add_binary(op, self.id, b.id);
        Sym { id, ..self }
    }

    fn select(self, test: CompareOp, b: Self, then: Self, otherwise: Self) -> Self {
        self.with(Expr::Select { test, a: self.id, b: b.id, then: then.id, otherwise: otherwise.id })
    }

    fn holds(self, test: CompareOp, b: Self) -> Self {
        self.select(test, b, self.number(1.0), self.number(0.0))
    }
}

impl Value for Sym<'_> {
    fn unary(self, op: UnaryOp) -> Self {
        self.with(Expr::Unary(op, self.id))
    }
}

impl Neg for Sym<'_> {
    type Output = Self;

    fn neg(self) -> Self {
        self.with(Expr::Unary(UnaryOp::Neg, self.id))
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident)*) => {$(
        impl $trait for Sym<'_> {
            type Output = Self;

            fn $method(self, b: Self) -> Self {
                self.binary(BinaryOp::$trait, b)
            }
        }

        impl $trait<f64> for Sym<'_> {
            type Output = Self;

            fn $method(self, b: f64) -> Self {
                self.binary(BinaryOp::$trait, self.number(b))
            }
        }
    )*};
}

operators!(Add add Sub sub Mul mul Div div);
