//! The table of functions of one and two elements. Each is defined here, once; loops of the CPU, kernels of devices,
//! expressions of chains, activations and gates are made from its row.
//!
//! A row reads `Name(x, parameter = default) [operator] words, TYPES => formula`. The operator is ONNX's with the first
//! version of its operator set, or `"domain"` and that; `[]` is a function that no operator of its own stands for. The
//! words `full` and `mask` are [`HalfRule`]s. Whether kernels of other operators apply it to what they store follows from
//! the formula ([`Function::is_epilogue`]).
//!
//! A row of two elements says how it is computed after the types: `fused` is one of numbers, in chains too; `alone` is one
//! that only nodes of its own have; `bits` is one of integers; `test` is a comparison.

use super::formula::{FloatFormula, NumberFormula, TestFormula};
use super::loops::{Loops, TestLoops};
use super::pointwise::{Expr, ExprId, Indexing, PointwiseDesc, PointwiseError};
pub use super::row::{HalfRule, OperatorName, Parameter, Types};
use super::row::{column, functions, functions_of_two, tests_of_one};
use super::value::{Arithmetic, Bits, Plain, Sym, Value};

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
    /// How it takes part in graphs of `float16`.
    pub half: HalfRule,
    /// The element types.
    pub types: Types,
    /// Its parameters, at most two.
    pub parameters: &'static [Parameter],
    write: Write,
    loops: Loops,
}

/// A function of two numbers that chains have.
pub trait FusedFormula {
    /// Its value.
    fn of<V: Plain>(a: V, b: V) -> V;
}

/// A function of two numbers.
pub trait PairFormula {
    /// Its value.
    fn of<V: Arithmetic>(a: V, b: V) -> V;
}

impl<F: FusedFormula> PairFormula for F {
    #[inline(always)]
    fn of<V: Arithmetic>(a: V, b: V) -> V {
        <F as FusedFormula>::of(a, b)
    }
}

/// A function of the bits of two integers.
pub trait BitFormula {
    /// Its value.
    fn of<V: Bits>(a: V, b: V) -> V;
}

/// A comparison.
pub trait PairTest {
    /// Whether it holds.
    fn of<V: Plain>(a: V, b: V) -> V::Truth;
}

/// What is done for a formula of two elements.
pub trait VisitPair {
    /// What comes of it.
    type Out;
    /// For one of numbers.
    fn numbers<F: PairFormula>(self) -> Self::Out;
    /// For one of bits.
    fn bits<F: BitFormula>(self) -> Self::Out;
    /// For a comparison.
    fn test<F: PairTest>(self) -> Self::Out;
}

type WritePair = for<'s> fn(Sym<'s>, Sym<'s>) -> Sym<'s>;

/// How a function of two elements is computed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Numbers, in chains too.
    Fused(WritePair),
    /// Numbers, in nodes of their own.
    Alone,
    /// Integers as bits.
    Bits,
    /// A comparison.
    Test,
}

/// A row of the table of functions of two elements.
#[derive(Clone, Copy, Debug)]
pub struct BinaryRow {
    /// The function.
    pub function: BinaryFunction,
    /// The name of the operator, or of the one that it is a form of.
    pub name: &'static str,
    /// The operator, where it has one of its own.
    pub operator: Option<OperatorName>,
    /// How it takes part in graphs of `float16`.
    pub half: HalfRule,
    /// The element types.
    pub types: Types,
    pub(super) kind: Kind,
}

/// A row of the table of questions.
#[derive(Clone, Copy, Debug)]
pub struct TestRow {
    /// The name of the operator.
    pub name: &'static str,
    /// The first version of ONNX's operator set that has it.
    pub since: i64,
    /// Its parameters, at most two.
    pub parameters: &'static [Parameter],
    write: Write,
    loops: TestLoops,
}

functions! {
    Abs(x) [6], NUMBERS => x.abs();
    Acos(x) [7], FLOATS => x.acos();
    Acosh(x) [9], FLOATS => x.acosh();
    Affine(x, alpha = 1.0, beta = 0.0) [], FLOATS => x * alpha + beta;
    AffineHardSwish(x, alpha = 1.0, beta = 0.0) [], FLOATS
        => x * (x * (1.0 / 6.0) + 0.5).clip(0.0, 1.0) * alpha + beta;
    AffineRelu(x, alpha = 1.0, beta = 0.0) [], FLOATS => x.at_least(0.0) * alpha + beta;
    Asin(x) [7], FLOATS => x.asin();
    Asinh(x) [9], FLOATS => x.asinh();
    Atan(x) [7], FLOATS => x.atan();
    Atanh(x) [9], FLOATS => x.atanh();
    Binarizer(x, threshold = 0.0) ["ai.onnx.ml" 1], NUMBERS => x.if_greater(threshold, 1.0, 0.0);
    BitwiseNot(x) [18], INTEGERS => -x - 1.0;
    Ceil(x) [6], FLOATS => x.ceil();
    Celu(x, alpha = 1.0) [12], FLOATS => x.if_greater(0.0, x, (x / alpha).expm1() * alpha);
    Clip(x, min = f32::MIN, max = f32::MAX) [], NUMBERS => x.clip(min, max);
    Cos(x) [7], FLOATS => x.cos();
    Cosh(x) [9], FLOATS => x.cosh();
    Elu(x, alpha = 1.0) [6], FLOATS => x.if_less(0.0, x.expm1() * alpha, x);
    Erf(x) [9], FLOATS => x.erf();
    Exp(x) [6] full, FLOATS => x.exp();
    Floor(x) [6], FLOATS => x.floor();
    Gelu(x) [], FLOATS => x * x.normal_cdf();
    GeluTanh = "Gelu" (x) [], FLOATS
        => x * 0.5 * (((x * x * x * 0.044715 + x) * 0.797_884_560_802_865_4).tanh() + 1.0);
    HardSigmoid(x, alpha = 0.2, beta = 0.5) [6], FLOATS => (x * alpha + beta).clip(0.0, 1.0);
    HardSwish(x) [14], FLOATS => x * (x * (1.0 / 6.0) + 0.5).clip(0.0, 1.0);
    LeakyRelu(x, alpha = 0.01) [6], FLOATS => x.if_less(0.0, x * alpha, x);
    Log(x) [6] full, FLOATS => x.log();
    Mish(x) [18], FLOATS => x * tanh_of_softplus(x);
    Neg(x) [6], SIGNED => -x;
    Not(x) [1], BOOL => x.if_equal(0.0, 1.0, 0.0);
    ParametricSoftplus(x, alpha = 1.0, beta = 1.0) [1], FLOATS => (x * beta).softplus() * alpha;
    Reciprocal(x) [6] full, FLOATS => x.reciprocal();
    Relu(x) [6], SIGNED => x.at_least(0.0);
    Round(x) [11], FLOATS => x.round();
    ScaledTanh(x, alpha = 1.0, beta = 1.0) [], FLOATS => (x * beta).tanh() * alpha;
    Selu(x, alpha = 1.673_263_2, gamma = 1.050_701) [6], FLOATS
        => x.if_greater(0.0, x * gamma, x.expm1() * (alpha * gamma));
    Shrink(x, lambd = 0.5, bias = 0.0) [9], NUMBERS
        => x.if_less(-lambd, x + bias, x.if_greater(lambd, x - bias, x.if_nan(x, 0.0)));
    Sigmoid(x) [6], FLOATS => x.sigmoid();
    Sign(x) [9], NUMBERS => x.if_greater(0.0, 1.0, x.if_less(0.0, -x.number(1.0), x));
    Sin(x) [7], FLOATS => x.sin();
    Sinh(x) [9], FLOATS => x.sinh();
    Softplus(x) [1], FLOATS => x.softplus();
    Softsign(x) [1], FLOATS => x / (x.abs() + 1.0);
    Sqrt(x) [6] full, FLOATS => x.sqrt();
    Swish(x, alpha = 1.0) [24], FLOATS => x * (x * alpha).sigmoid();
    Tan(x) [7], FLOATS => x.tan();
    Tanh(x) [6], FLOATS => x.tanh();
    ThresholdedRelu(x, alpha = 1.0) [10], FLOATS => x.if_at_most(alpha, 0.0, x);
    // The one of recurrent layers, which keeps alpha itself.
    ThresholdedReluGate = "ThresholdedRelu" (x, alpha = 1.0) [], FLOATS => x.if_less(alpha, 0.0, x);
}

functions_of_two! {
    Add(a, b) [1] mask, NUMBERS fused => a + b;
    And(a, b) [1], BOOL bits => a.and(b);
    BitwiseAnd(a, b) [18], INTEGERS bits => a.and(b);
    BitwiseOr(a, b) [18], INTEGERS bits => a.or(b);
    BitwiseXor(a, b) [18], INTEGERS bits => a.xor(b);
    Div(a, b) [1], NUMBERS fused => a.divide(b);
    Equal(a, b) [1], ANY test => a.is_equal(b);
    Fmod = "Mod" (a, b) [], NUMBERS alone => a.remainder(b);
    Greater(a, b) [1], NUMBERS test => a.is_greater(b);
    GreaterOrEqual(a, b) [12], NUMBERS test => a.is_at_least(b);
    Less(a, b) [1], NUMBERS test => a.is_less(b);
    LessOrEqual(a, b) [12], NUMBERS test => a.is_at_most(b);
    Max(a, b) [], NUMBERS fused => a.greater(b);
    Min(a, b) [], NUMBERS fused => a.lesser(b);
    Mod(a, b) [], NUMBERS alone => a.modulo(b);
    Mul(a, b) [1] mask, NUMBERS fused => a * b;
    Or(a, b) [1], BOOL bits => a.or(b);
    // The slope broadcasts to the element, not the other way.
    PRelu(x, slope) [1], NUMBERS fused => x.if_less(0.0, x * slope, x);
    Pow(a, b) [1] full, NUMBERS alone => a.power(b);
    ShiftLeft = "BitShift" (a, b) [], INTEGERS bits => a.shift_left(b);
    ShiftRight = "BitShift" (a, b) [], INTEGERS bits => a.shift_right(b);
    Sub(a, b) [1] mask, NUMBERS fused => a - b;
    Xor(a, b) [1], BOOL bits => a.xor(b);
}

tests_of_one! {
    IsInf(x, detect_positive = 1.0, detect_negative = 1.0) [10]
        => x.if_equal(f64::INFINITY, detect_positive, x.if_equal(f64::NEG_INFINITY, detect_negative, 0.0)).is_greater(x.number(0.0));
    IsNaN(x) [9] => x.is_nan();
}

/// An operator that is a function of the table with other parameters, or in another domain.
#[derive(Clone, Copy, Debug)]
pub struct Alias {
    /// The name of the operator.
    pub name: &'static str,
    /// Its domain and first version.
    pub operator: OperatorName,
    /// The function.
    pub function: Function,
    /// Its parameters where none are given.
    pub params: [f32; 2],
}

/// Every such operator.
pub const ALIASES: &[Alias] = &[
    Alias { name: "Gelu", operator: CONTRIBUTED, function: Function::Gelu, params: [0.0; 2] },
    Alias { name: "QuickGelu", operator: CONTRIBUTED, function: Function::Swish, params: [1.702, 0.0] },
];

const CONTRIBUTED: OperatorName = OperatorName { domain: "com.microsoft", since: 1 };

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

    /// Whether kernels of other operators can apply it to the floats that they store. Logarithms, angles and hyperbolas are
    /// not: their code would double each of those kernels. Recurrent layers have them as well.
    pub fn is_epilogue(self) -> bool {
        let mut desc = PointwiseDesc::new([Indexing::Full; 3]);
        let inputs = [0, 1, 2].map(|input| desc.add(Expr::Input(input)));
        self.build_with(&mut desc, inputs[0], [inputs[1], inputs[2]]);
        let is_large = |expr: &Expr| matches!(expr, Expr::Unary(op, _) if op.is_large_on_devices());
        self.is_of_floats() && !desc.exprs().iter().any(is_large)
    }

    /// Whether it takes floats.
    pub(super) fn is_of_floats(self) -> bool {
        !matches!(self.row().types, Types::Integers | Types::Bool)
    }

    /// The loops of the CPU.
    pub fn loops(self) -> &'static Loops {
        &self.row().loops
    }
}

impl BinaryFunction {
    /// Its row.
    pub const fn row(self) -> &'static BinaryRow {
        &PAIRS[self as usize]
    }

    /// The name of the operator, or of the one that it is a form of.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Whether it is a comparison, whose values are `bool` for any element type.
    pub fn is_comparison(self) -> bool {
        matches!(self.row().kind, Kind::Test)
    }

    /// Whether chains leave it to a node of its own though it is one of numbers.
    pub fn is_alone(self) -> bool {
        matches!(self.row().kind, Kind::Alone)
    }

    /// Adds it to `desc`, of values `a` and `b`; `None` where chains do not have it.
    ///
    /// # Errors
    /// `a` or `b` is not there.
    pub fn build(
        self,
        desc: &mut PointwiseDesc,
        a: ExprId,
        b: ExprId,
    ) -> Result<Option<ExprId>, PointwiseError> {
        let Kind::Fused(write) = self.row().kind else { return Ok(None) };
        desc.check(a)?;
        desc.check(b)?;
        Ok(Some(Sym::write(desc, [a, b], |[a, b]| write(a, b))))
    }
}

impl ElementTest {
    /// Its row.
    pub const fn row(self) -> &'static TestRow {
        &TESTS[self as usize]
    }

    /// Its expression: 1 where it holds for an input of as many elements as the output, with parameters `params`, else 0.
    ///
    /// # Errors
    /// None today; as [`PointwiseDesc::push`].
    pub fn desc(self, params: [f32; 2]) -> Result<PointwiseDesc, PointwiseError> {
        let mut desc = PointwiseDesc::new([Indexing::Full]);
        let x = desc.input(0)?;
        let [a, b] = params.map(|p| desc.add(Expr::Const(p)));
        let y = Sym::write(&mut desc, [x, a, b], |[x, a, b]| (self.row().write)(x, [a, b]));
        desc.output(y)?;
        Ok(desc)
    }

    /// The loops of the CPU.
    pub fn loops(self) -> &'static TestLoops {
        &self.row().loops
    }
}
