//! The table of functions of one element. Each is defined here, once; loops of the CPU, kernels of devices, expressions of
//! chains, activations and gates are made from its row.
//!
//! A row reads `Name(x, parameter = default) [operator] TYPES => formula`. The operator is ONNX's with the first version of
//! its operator set, or `"domain"` and that; `[]` is a function that no operator of its own stands for. `activation`
//! before the types says that kernels of other operators apply it to what they store, which makes each of them larger;
//! `gate` that those of recurrent layers do.

use super::loops::Loops;
use super::pointwise::{Expr, ExprId, PointwiseDesc, PointwiseError};
use super::value::{Plain, Sym, Value};

/// Which element types a function takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Types {
    /// Floating point.
    Floats,
    /// Floating point and integers.
    Numbers,
    /// Those of them that have a sign.
    Signed,
    /// Integers.
    Integers,
    /// Truth values, as bytes 0 and 1.
    Bool,
}

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

/// A parameter of a function: ONNX's attribute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its value where none is given.
    pub default: f32,
}

/// The operator that a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorName {
    /// The domain; empty for ONNX's own.
    pub domain: &'static str,
    /// The first version.
    pub since: i64,
}

/// Which kernels of other operators have a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// None.
    Alone,
    /// Recurrent layers.
    Gate,
    /// All that apply an activation to what they store, and recurrent layers.
    Activation,
}

type Write = for<'s> fn(Sym<'s>, [Sym<'s>; 2]) -> Sym<'s>;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The function.
    pub function: Function,
    /// The name of the operator, or of the one that it is a form of.
    pub name: &'static str,
    /// The operator, where it has one of its own.
    pub operator: Option<OperatorName>,
    /// Which kernels of other operators have it.
    pub used: Use,
    /// The element types.
    pub types: Types,
    /// Its parameters, at most two.
    pub parameters: &'static [Parameter],
    write: Write,
    loops: Loops,
}

macro_rules! row {
    (@operator []) => { None };
    (@operator [$since:literal]) => { Some(OperatorName { domain: "", since: $since }) };
    (@operator [$domain:literal $since:literal]) => { Some(OperatorName { domain: $domain, since: $since }) };
    (@name $id:ident) => { stringify!($id) };
    (@name $id:ident $name:literal) => { $name };
    (@used) => { Use::Alone };
    (@used gate) => { Use::Gate };
    (@used activation) => { Use::Activation };
    (@formula FLOATS $id:ident ($x:ident $($p:ident)*) $body:expr) => {
        impl FloatFormula for $id { row!(@of Value ($x $($p)*) $body); }
    };
    (@formula $types:ident $id:ident ($x:ident $($p:ident)*) $body:expr) => {
        impl NumberFormula for $id { row!(@of Plain ($x $($p)*) $body); }
    };
    (@of $bound:ident ($x:ident $($p:ident)*) $body:expr) => {
        #[inline(always)]
        fn of<V: $bound>($x: V, _p: [V; 2]) -> V {
            $(let ($p, _p) = (_p[0], [_p[1], _p[0]]);)*
            $body
        }
    };
    (@types FLOATS) => { Types::Floats };
    (@types NUMBERS) => { Types::Numbers };
    (@types SIGNED) => { Types::Signed };
    (@types INTEGERS) => { Types::Integers };
    (@types BOOL) => { Types::Bool };
    (@loops FLOATS $id:ident) => { Loops::floats::<formulas::$id>() };
    (@loops $types:ident $id:ident) => { Loops::numbers::<formulas::$id>() };
}

macro_rules! functions {
    ($(
        $id:ident $(= $name:literal)? ($x:ident $(, $p:ident = $default:expr)*) [$($operator:literal)*] $($used:ident)?, $types:ident
            => $body:expr;
    )*) => {
        /// A function of one element.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Function {
            $(
                #[doc = concat!("`", stringify!($body), "`")]
                $id,
            )*
        }

        /// Each formula as a type.
        mod formulas {
            use super::*;
            $(
                pub(super) struct $id;
                row!(@formula $types $id ($x $($p)*) $body);
            )*
        }

        impl Function {
            /// Every function, in the order of their numbers.
            pub const ALL: &[Function] = &[$(Function::$id),*];
        }

        const ROWS: &[Row] = &[$(
            Row {
                function: Function::$id,
                name: row!(@name $id $($name)?),
                operator: row!(@operator [$($operator)*]),
                used: row!(@used $($used)?),
                types: row!(@types $types),
                parameters: &[$(Parameter { name: stringify!($p), default: $default }),*],
                write: |x, p| <formulas::$id as FloatFormula>::of(x, p),
                loops: row!(@loops $types $id),
            },
        )*];
    };
}

functions! {
    Abs(x) [6], NUMBERS => x.abs();
    Acos(x) [7], FLOATS => x.acos();
    Acosh(x) [9], FLOATS => x.acosh();
    Affine(x, alpha = 1.0, beta = 0.0) [] gate, FLOATS => x * alpha + beta;
    Asin(x) [7], FLOATS => x.asin();
    Asinh(x) [9], FLOATS => x.asinh();
    Atan(x) [7], FLOATS => x.atan();
    Atanh(x) [9], FLOATS => x.atanh();
    BitwiseNot(x) [18], INTEGERS => -x - 1.0;
    Ceil(x) [6], FLOATS => x.ceil();
    Celu(x, alpha = 1.0) [12], FLOATS => x.if_greater(0.0, x, (x / alpha).expm1() * alpha);
    Clip(x, min = f32::MIN, max = f32::MAX) [] activation, NUMBERS => x.clip(min, max);
    Cos(x) [7], FLOATS => x.cos();
    Cosh(x) [9], FLOATS => x.cosh();
    Elu(x, alpha = 1.0) [6] gate, FLOATS => x.if_less(0.0, x.expm1() * alpha, x);
    Erf(x) [9], FLOATS => x.erf();
    Exp(x) [6], FLOATS => x.exp();
    Floor(x) [6], FLOATS => x.floor();
    Gelu(x) [] activation, FLOATS => x * 0.5 * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0);
    GeluTanh = "Gelu" (x) [] activation, FLOATS
        => x * 0.5 * (((x * x * x * 0.044715 + x) * 0.797_884_560_802_865_4).tanh() + 1.0);
    HardSigmoid(x, alpha = 0.2, beta = 0.5) [6] activation, FLOATS => (x * alpha + beta).clip(0.0, 1.0);
    HardSwish(x) [14] activation, FLOATS => x * (x * (1.0 / 6.0) + 0.5).clip(0.0, 1.0);
    LeakyRelu(x, alpha = 0.01) [6] activation, FLOATS => x.if_less(0.0, x * alpha, x);
    Log(x) [6], FLOATS => x.log();
    Mish(x) [18], FLOATS => x * tanh_of_softplus(x);
    Neg(x) [6], SIGNED => -x;
    Not(x) [1], BOOL => x.if_equal(0.0, 1.0, 0.0);
    ParametricSoftplus(x, alpha = 1.0, beta = 1.0) [1], FLOATS => (x * beta).softplus() * alpha;
    Reciprocal(x) [6], FLOATS => x.reciprocal();
    Relu(x) [6] activation, SIGNED => x.at_least(0.0);
    Round(x) [11], FLOATS => x.round();
    ScaledTanh(x, alpha = 1.0, beta = 1.0) [] gate, FLOATS => (x * beta).tanh() * alpha;
    Selu(x, alpha = 1.673_263_2, gamma = 1.050_701) [6], FLOATS
        => x.if_greater(0.0, x * gamma, x.expm1() * (alpha * gamma));
    Shrink(x, lambd = 0.5, bias = 0.0) [9], NUMBERS
        => x.if_less(-lambd, x + bias, x.if_greater(lambd, x - bias, x.if_nan(x, 0.0)));
    Sigmoid(x) [6] activation, FLOATS => x.sigmoid();
    Sign(x) [9], NUMBERS => x.if_greater(0.0, 1.0, x.if_less(0.0, -x.number(1.0), x));
    Sin(x) [7], FLOATS => x.sin();
    Sinh(x) [9], FLOATS => x.sinh();
    Softplus(x) [1] gate, FLOATS => x.softplus();
    Softsign(x) [1] gate, FLOATS => x / (x.abs() + 1.0);
    Sqrt(x) [6], FLOATS => x.sqrt();
    Swish(x, alpha = 1.0) [24] activation, FLOATS => x * (x * alpha).sigmoid();
    Tan(x) [7], FLOATS => x.tan();
    Tanh(x) [6] activation, FLOATS => x.tanh();
    ThresholdedRelu(x, alpha = 1.0) [10], FLOATS => x.if_at_most(alpha, 0.0, x);
    // The one of recurrent layers, which keeps alpha itself.
    ThresholdedReluGate = "ThresholdedRelu" (x, alpha = 1.0) [] gate, FLOATS => x.if_less(alpha, 0.0, x);
}

/// `tanh(ln(1 + e^x))`, which is `(e^2 + 2e) / (e^2 + 2e + 2)`, and 1 long before `e^2` overflows.
#[inline(always)]
fn tanh_of_softplus<V: Value>(x: V) -> V {
    let e = x.at_most(20.0).exp();
    let n = e * (e + 2.0);
    n / (n + 2.0)
}

impl Function {
    /// Its row.
    pub const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The name of the operator, or of the one that it is a form of.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The parameters where none are given; those that it does not have are 0.
    pub const fn defaults(self) -> [f32; 2] {
        match self.row().parameters {
            [] => [0.0; 2],
            [a] => [a.default, 0.0],
            [a, b, ..] => [a.default, b.default],
        }
    }

    /// Adds it to `desc`, of value `x` with parameters `params`.
    ///
    /// # Errors
    /// `x` is not there.
    pub fn build(
        self,
        desc: &mut PointwiseDesc,
        x: ExprId,
        params: [f32; 2],
    ) -> Result<ExprId, PointwiseError> {
        desc.check(x)?;
        let params = params.map(|p| desc.add(Expr::Const(p)));
        Ok(self.build_with(desc, x, params))
    }

    /// As [`Function::build`], of values of `desc`.
    pub(super) fn build_with(self, desc: &mut PointwiseDesc, x: ExprId, [a, b]: [ExprId; 2]) -> ExprId {
        Sym::write(desc, [x, a, b], |[x, a, b]| (self.row().write)(x, [a, b]))
    }

    /// The loops of the CPU.
    #[allow(dead_code, reason = "the build script reads the table and runs no loops")]
    pub fn loops(self) -> &'static Loops {
        &self.row().loops
    }
}
