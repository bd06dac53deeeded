//! Pointwise expressions: one value of each output from one value of each input.
//!
//! A fused chain of operators is a [`PointwiseDesc`], and so is a single function of the table. `spirv` makes a kernel
//! of it, `eval` runs it on the CPU, `glsl` prints it.

use std::collections::HashMap;
use std::fmt;

/// Broadcast terms that one kernel may have: specialization constants, three for each.
const MAX_TERMS: usize = 64;

/// An expression of one [`PointwiseDesc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExprId(u32);

impl ExprId {
    /// Its position among [`PointwiseDesc::exprs`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One step of the arithmetic: in 32-bit floats, but for kernels of integers (`onepool_spirv::KernelLayout`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expr {
    /// The value of an input.
    Input(usize),
    /// A constant.
    Const(f32),
    /// A function of one value.
    Unary(UnaryOp, ExprId),
    /// A function of two values.
    Binary(BinaryOp, ExprId, ExprId),
    /// `then` where the comparison of `a` with `b` holds, else `otherwise`.
    Select {
        /// The comparison.
        test: CompareOp,
        /// Its left side.
        a: ExprId,
        /// Its right side.
        b: ExprId,
        /// The value where it holds.
        then: ExprId,
        /// The value where it does not.
        otherwise: ExprId,
    },
}

impl Expr {
    /// The expressions it needs.
    pub fn operands(self) -> impl Iterator<Item = ExprId> {
        let operands = match self {
            Self::Input(_) | Self::Const(_) => [None; 4],
            Self::Unary(_, a) => [Some(a), None, None, None],
            Self::Binary(_, a, b) => [Some(a), Some(b), None, None],
            Self::Select { a, b, then, otherwise, .. } => [Some(a), Some(b), Some(then), Some(otherwise)],
        };
        operands.into_iter().flatten()
    }
}

/// Functions of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// `-x`
    Neg,
    /// `|x|`
    Abs,
    /// Largest integer not above.
    Floor,
    /// Smallest integer not below.
    Ceil,
    /// Nearest integer, halves to the even one.
    Round,
    /// Square root.
    Sqrt,
    /// `e^x`
    Exp,
    /// Natural logarithm.
    Log,
    /// `e^x - 1`
    Expm1,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// `ln(1 + e^x)`
    Softplus,
    /// Error function, to 5e-7 absolute.
    Erf,
    /// Distribution function of the standard normal distribution, to 2e-7 absolute.
    NormalCdf,
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// Tangent.
    Tan,
    /// Arc sine.
    Asin,
    /// Arc cosine.
    Acos,
    /// Arc tangent.
    Atan,
    /// Hyperbolic sine.
    Sinh,
    /// Hyperbolic cosine.
    Cosh,
    /// Hyperbolic tangent.
    Tanh,
    /// Inverse hyperbolic sine.
    Asinh,
    /// Inverse hyperbolic cosine.
    Acosh,
    /// Inverse hyperbolic tangent.
    Atanh,
}

impl UnaryOp {
    /// Whether its code on devices is large: a logarithm, an angle, a hyperbola but the tangent.
    pub(super) fn is_large_on_devices(self) -> bool {
        use UnaryOp::{Acos, Acosh, Asin, Asinh, Atan, Atanh, Cos, Cosh, Log, Sin, Sinh, Tan};
        matches!(self, Log | Sin | Cos | Tan | Asin | Acos | Atan | Sinh | Cosh | Asinh | Acosh | Atanh)
    }

    /// Every one.
    pub const ALL: [UnaryOp; 25] = [
        UnaryOp::Neg,
        UnaryOp::Abs,
        UnaryOp::Floor,
        UnaryOp::Ceil,
        UnaryOp::Round,
        UnaryOp::Sqrt,
        UnaryOp::Exp,
        UnaryOp::Log,
        UnaryOp::Expm1,
        UnaryOp::Sigmoid,
        UnaryOp::Softplus,
        UnaryOp::Erf,
        UnaryOp::NormalCdf,
        UnaryOp::Sin,
        UnaryOp::Cos,
        UnaryOp::Tan,
        UnaryOp::Asin,
        UnaryOp::Acos,
        UnaryOp::Atan,
        UnaryOp::Sinh,
        UnaryOp::Cosh,
        UnaryOp::Tanh,
        UnaryOp::Asinh,
        UnaryOp::Acosh,
        UnaryOp::Atanh,
    ];
}

/// Functions of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`
    Div,
    /// The smaller value; NaN if either is.
    Min,
    /// The larger value; NaN if either is.
    Max,
    /// `a`, but not below `b`, which is a number; NaN if `a` is.
    AtLeast,
    /// `a`, but not above `b`, which is a number; NaN if `a` is.
    AtMost,
    /// `a^b`; a negative `a` takes integral `b` only.
    Pow,
}

impl BinaryOp {
    /// Every one.
    pub const ALL: [BinaryOp; 9] = [
        BinaryOp::Add,
        BinaryOp::Sub,
        BinaryOp::Mul,
        BinaryOp::Div,
        BinaryOp::Min,
        BinaryOp::Max,
        BinaryOp::AtLeast,
        BinaryOp::AtMost,
        BinaryOp::Pow,
    ];
}

/// Comparisons; with a NaN only `NotEqual` and `Unordered` hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompareOp {
    /// `a < b`
    Less,
    /// `a <= b`
    LessEqual,
    /// `a > b`
    Greater,
    /// `a >= b`
    GreaterEqual,
    /// `a == b`
    Equal,
    /// `a != b`
    NotEqual,
    /// `a` or `b` is NaN.
    Unordered,
}

impl CompareOp {
    /// Every one.
    pub const ALL: [CompareOp; 7] = [
        CompareOp::Less,
        CompareOp::LessEqual,
        CompareOp::Greater,
        CompareOp::GreaterEqual,
        CompareOp::Equal,
        CompareOp::NotEqual,
        CompareOp::Unordered,
    ];
}

/// How the element of an input follows from the element of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Indexing {
    /// Element `i` for element `i`.
    Full,
    /// The sum of this many [`Term`]s; none is a scalar.
    Broadcast {
        /// How many.
        terms: usize,
    },
}

/// One part of a broadcast input's index: `(i / div) % modulo * stride`, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    /// Outputs that share one step.
    pub div: u32,
    /// Steps before it wraps.
    pub modulo: u32,
    /// Elements per step.
    pub stride: u32,
}

/// The terms by which an input of shape `input` is read while walking an output of shape `output`, both
/// contiguous, innermost dimension last; `None` if the shapes do not broadcast. Dimensions that walk together
/// are one term.
pub fn broadcast_terms(output: &[u32], input: &[u32]) -> Option<Vec<Term>> {
    if input.len() > output.len() {
        return None;
    }
    let mut terms: Vec<Term> = Vec::new();
    let (mut div, mut stride) = (1u32, 1u32);
    let mut joined = false;
    for (at, &extent) in output.iter().rev().enumerate() {
        let own = input.len().checked_sub(at + 1).and_then(|at| input.get(at)).copied().unwrap_or(1);
        if own != extent && own != 1 {
            return None;
        }
        if extent != 1 {
            match terms.last_mut() {
                Some(term) if joined && own != 1 => term.modulo = term.modulo.checked_mul(extent)?,
                _ if own != 1 => terms.push(Term { div, modulo: extent, stride }),
                _ => {}
            }
            joined = own != 1;
        }
        div = div.checked_mul(extent)?;
        stride = stride.checked_mul(own)?;
    }
    Some(terms)
}

impl Indexing {
    /// The indexing of an input with these terms below an output of `len` elements.
    pub fn of(terms: &[Term], len: u32) -> Self {
        match terms {
            [Term { div: 1, modulo, stride: 1 }] if *modulo == len => Self::Full,
            terms => Self::Broadcast { terms: terms.len() },
        }
    }

    /// How many terms its parameters hold.
    pub fn terms(self) -> usize {
        match self {
            Self::Full => 0,
            Self::Broadcast { terms } => terms,
        }
    }
}

/// Why a pointwise kernel cannot be made or run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PointwiseError {
    /// An expression names an input that is not there.
    NoSuchInput {
        /// The input.
        input: usize,
        /// Inputs there are.
        inputs: usize,
    },
    /// An expression names one that is not there yet.
    NoSuchExpr {
        /// The expression.
        expr: usize,
        /// Expressions there are.
        exprs: usize,
    },
    /// There is no output.
    NoOutputs,
    /// More broadcast terms than a kernel may have.
    TooManyTerms {
        /// How many.
        terms: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The number of inputs, outputs or terms given is not that of the description.
    WrongCount {
        /// Of what.
        what: &'static str,
        /// The number given.
        found: usize,
        /// The number needed.
        expected: usize,
    },
    /// An input holds fewer elements than are read.
    ShortInput {
        /// The input.
        input: usize,
        /// Elements it has.
        len: usize,
        /// Elements that are read.
        needed: usize,
    },
    /// Devices have no such function of the kernel's elements.
    NoFunction {
        /// The function.
        op: String,
    },
    /// A term with a divisor or modulus of zero.
    ZeroTerm {
        /// The input.
        input: usize,
    },
}

impl fmt::Display for PointwiseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchInput { input, inputs } => write!(f, "input {input} of {inputs}"),
            Self::NoSuchExpr { expr, exprs } => write!(f, "expression {expr} of {exprs}"),
            Self::NoOutputs => write!(f, "the expression has no output"),
            Self::TooManyTerms { terms, limit } => {
                write!(f, "the broadcasts have {terms} terms, at most {limit} are possible")
            }
            Self::WrongCount { what, found, expected } => {
                write!(f, "{found} {what} given, {expected} needed")
            }
            Self::ShortInput { input, len, needed } => {
                write!(f, "input {input} has {len} elements, {needed} are read")
            }
            Self::NoFunction { op } => write!(f, "devices have no {op} for elements of this type"),
            Self::ZeroTerm { input } => write!(f, "a term of input {input} divides by zero"),
        }
    }
}

impl std::error::Error for PointwiseError {}

/// A fused chain of pointwise operators. Equal expressions are kept once.
#[derive(Clone, Debug, Default)]
pub struct PointwiseDesc {
    inputs: Vec<Indexing>,
    exprs: Vec<Expr>,
    outputs: Vec<ExprId>,
    known: HashMap<Key, ExprId>,
}

/// An expression in a form that can be compared exactly; constants by their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Input(usize),
    Const(u32),
    Unary(UnaryOp, ExprId),
    Binary(BinaryOp, ExprId, ExprId),
    Select(CompareOp, [ExprId; 4]),
}

impl Key {
    fn of(expr: Expr) -> Self {
        match expr {
            Expr::Input(input) => Key::Input(input),
            Expr::Const(value) => Key::Const(value.to_bits()),
            Expr::Unary(op, a) => Key::Unary(op, a),
            Expr::Binary(op, a, b) => Key::Binary(op, a, b),
            Expr::Select { test, a, b, then, otherwise } => Key::Select(test, [a, b, then, otherwise]),
        }
    }
}

/// A [`PointwiseDesc`] in a form that can be compared and hashed ([`PointwiseDesc::key`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PointwiseKey {
    inputs: Vec<Indexing>,
    exprs: Vec<Key>,
    outputs: Vec<ExprId>,
}

impl PointwiseDesc {
    /// A description without expressions.
    pub fn new(inputs: impl Into<Vec<Indexing>>) -> Self {
        Self { inputs: inputs.into(), ..Self::default() }
    }

    /// Adds an expression, or finds it if it is there.
    ///
    /// # Errors
    /// It names an input or an expression that is not there.
    pub fn push(&mut self, expr: Expr) -> Result<ExprId, PointwiseError> {
        if let Expr::Input(input) = expr
            && input >= self.inputs.len()
        {
            return Err(PointwiseError::NoSuchInput { input, inputs: self.inputs.len() });
        }
        expr.operands().try_for_each(|operand| self.check(operand))?;
        Ok(self.add(expr))
    }

    /// As [`Self::push`], for an expression of this description's own.
    pub(super) fn add(&mut self, expr: Expr) -> ExprId {
        let next = ExprId(self.exprs.len() as u32);
        let id = *self.known.entry(Key::of(expr)).or_insert(next);
        if id == next {
            self.exprs.push(expr);
        }
        id
    }

    /// The value of input `at`.
    ///
    /// # Errors
    /// There is no such input.
    pub fn input(&mut self, at: usize) -> Result<ExprId, PointwiseError> {
        self.push(Expr::Input(at))
    }

    /// A constant.
    ///
    /// # Errors
    /// None today; as [`Self::push`].
    pub fn constant(&mut self, value: f32) -> Result<ExprId, PointwiseError> {
        self.push(Expr::Const(value))
    }

    /// A function of one value.
    ///
    /// # Errors
    /// The expression is not there.
    pub fn unary(&mut self, op: UnaryOp, x: ExprId) -> Result<ExprId, PointwiseError> {
        self.push(Expr::Unary(op, x))
    }

    /// A function of two values. A constant power that is a product, a quotient or a root becomes that
    /// ([`Self::power`]); a product with 1 is the value. Products with a constant zero and quotients by it
    /// keep their infinities and NaN, which compilers of drivers leave out where they see the constant; the
    /// sign of a zero that comes out is lost where the value is a zero.
    ///
    /// # Errors
    /// An expression is not there.
    pub fn binary(&mut self, op: BinaryOp, a: ExprId, b: ExprId) -> Result<ExprId, PointwiseError> {
        self.check(a)?;
        self.check(b)?;
        Ok(self.add_binary(op, a, b))
    }

    /// As [`Self::binary`], of expressions of this description's own.
    pub(super) fn add_binary(&mut self, op: BinaryOp, a: ExprId, b: ExprId) -> ExprId {
        let constant = |id: ExprId| match self.exprs.get(id.index()) {
            Some(Expr::Const(value)) => Some(*value),
            _ => None,
        };
        match (op, constant(a), constant(b)) {
            (BinaryOp::Pow, _, Some(e)) => {
                self.add_power(a, e).unwrap_or_else(|| self.add(Expr::Binary(op, a, b)))
            }
            (BinaryOp::Div, None, Some(zero)) if zero == 0.0 => {
                let endless = self.add(Expr::Const(f32::INFINITY.copysign(zero)));
                self.add(Expr::Binary(BinaryOp::Mul, a, endless))
            }
            (BinaryOp::Mul, _, Some(1.0)) => a,
            (BinaryOp::Mul, Some(1.0), _) => b,
            (BinaryOp::Mul, None, Some(zero)) if zero == 0.0 => self.nothing_of(a, zero),
            (BinaryOp::Mul, Some(zero), None) if zero == 0.0 => self.nothing_of(b, zero),
            _ => self.add(Expr::Binary(op, a, b)),
        }
    }

    /// `x` to the constant power `e`, where that is the value, a product, a quotient or a root; else `None`.
    ///
    /// # Errors
    /// The expression is not there.
    pub fn power(&mut self, x: ExprId, e: f32) -> Result<Option<ExprId>, PointwiseError> {
        self.check(x)?;
        Ok(self.add_power(x, e))
    }

    fn add_power(&mut self, x: ExprId, e: f32) -> Option<ExprId> {
        let square = Expr::Binary(BinaryOp::Mul, x, x);
        Some(match e {
            1.0 => x,
            2.0 => self.add(square),
            3.0 => {
                let square = self.add(square);
                self.add(Expr::Binary(BinaryOp::Mul, square, x))
            }
            -1.0 => {
                let one = self.add(Expr::Const(1.0));
                self.add(Expr::Binary(BinaryOp::Div, one, x))
            }
            // IEEE 754, 9.2.1: of a negative infinity and zero, a power is positive and a root is not.
            0.5 => {
                let [zero, endless, least] =
                    [0.0, f32::INFINITY, f32::NEG_INFINITY].map(|value| self.add(Expr::Const(value)));
                let root = self.add(Expr::Unary(UnaryOp::Sqrt, x));
                let root = self.add(Expr::Binary(BinaryOp::Add, root, zero));
                let test = CompareOp::Equal;
                self.add(Expr::Select { test, a: x, b: least, then: endless, otherwise: root })
            }
            _ => return None,
        })
    }

    /// `x * zero`.
    fn nothing_of(&mut self, x: ExprId, zero: f32) -> ExprId {
        let [plus, minus, nan, endless, nothing] =
            [zero, -zero, f32::NAN, f32::INFINITY, 0.0].map(|value| self.add(Expr::Const(value)));
        let signed = Expr::Select { test: CompareOp::Less, a: x, b: nothing, then: minus, otherwise: plus };
        let signed = self.add(signed);
        let size = self.add(Expr::Unary(UnaryOp::Abs, x));
        self.add(Expr::Select { test: CompareOp::Less, a: size, b: endless, then: signed, otherwise: nan })
    }

    /// `then` where the comparison of `a` with `b` holds, else `otherwise`.
    ///
    /// # Errors
    /// An expression is not there.
    pub fn select(
        &mut self,
        (a, test, b): (ExprId, CompareOp, ExprId),
        then: ExprId,
        otherwise: ExprId,
    ) -> Result<ExprId, PointwiseError> {
        self.push(Expr::Select { test, a, b, then, otherwise })
    }

    /// 1 where the comparison holds, else 0.
    ///
    /// # Errors
    /// An expression is not there.
    pub fn compare(&mut self, test: CompareOp, a: ExprId, b: ExprId) -> Result<ExprId, PointwiseError> {
        let (one, zero) = (self.constant(1.0)?, self.constant(0.0)?);
        self.select((a, test, b), one, zero)
    }

    /// Makes `x` the next output.
    ///
    /// # Errors
    /// The expression is not there.
    pub fn output(&mut self, x: ExprId) -> Result<(), PointwiseError> {
        self.check(x)?;
        self.add_output(x);
        Ok(())
    }

    /// As [`Self::output`], of an expression of this description's own.
    pub(super) fn add_output(&mut self, x: ExprId) {
        self.outputs.push(x);
    }

    /// How each input is indexed.
    pub fn inputs(&self) -> &[Indexing] {
        &self.inputs
    }

    /// The expressions; each uses only earlier ones.
    pub fn exprs(&self) -> &[Expr] {
        &self.exprs
    }

    /// The outputs.
    pub fn outputs(&self) -> &[ExprId] {
        &self.outputs
    }

    /// What makes this description equal to another: same inputs, expressions and outputs, constants by their bits.
    pub fn key(&self) -> PointwiseKey {
        let exprs = self.exprs.iter().map(|expr| Key::of(*expr)).collect();
        PointwiseKey { inputs: self.inputs.clone(), exprs, outputs: self.outputs.clone() }
    }

    /// The same arithmetic without the expressions and inputs that no output needs, and which inputs are left.
    ///
    /// # Errors
    /// None today; as [`Self::push`].
    pub fn compact(&self) -> Result<(Self, Vec<usize>), PointwiseError> {
        let live = self.live();
        let mut kept: Vec<usize> = Vec::new();
        for (expr, _) in self.exprs.iter().zip(&live).filter(|(_, live)| **live) {
            if let Expr::Input(input) = expr {
                kept.push(*input);
            }
        }
        kept.sort_unstable();
        let indexing: Vec<Indexing> = kept.iter().map(|&input| self.inputs[input]).collect();
        let mut compact = Self::new(indexing);
        let mut moved = vec![ExprId(0); self.exprs.len()];
        for (at, expr) in self.exprs.iter().enumerate().filter(|(at, _)| live[*at]) {
            let of = |id: ExprId| moved[id.index()];
            let expr = match *expr {
                Expr::Input(input) => Expr::Input(kept.partition_point(|k| *k < input)),
                Expr::Const(value) => Expr::Const(value),
                Expr::Unary(op, a) => Expr::Unary(op, of(a)),
                Expr::Binary(op, a, b) => Expr::Binary(op, of(a), of(b)),
                Expr::Select { test, a, b, then, otherwise } => {
                    Expr::Select { test, a: of(a), b: of(b), then: of(then), otherwise: of(otherwise) }
                }
            };
            moved[at] = compact.push(expr)?;
        }
        compact.outputs = self.outputs.iter().map(|output| moved[output.index()]).collect();
        Ok((compact, kept))
    }

    /// Checks what cannot be checked while expressions are added.
    ///
    /// # Errors
    /// There is no output, or there are too many broadcast terms.
    pub fn validate(&self) -> Result<(), PointwiseError> {
        if self.outputs.is_empty() {
            return Err(PointwiseError::NoOutputs);
        }
        let terms: usize = self.inputs.iter().map(|input| input.terms()).sum();
        if terms > MAX_TERMS {
            return Err(PointwiseError::TooManyTerms { terms, limit: MAX_TERMS });
        }
        Ok(())
    }

    /// Which expressions an output needs.
    pub fn live(&self) -> Vec<bool> {
        let mut live = vec![false; self.exprs.len()];
        for output in &self.outputs {
            live[output.index()] = true;
        }
        // An expression uses only earlier ones, so its users have all been seen when its turn comes.
        for at in (0..live.len()).rev() {
            if live[at] {
                self.exprs[at].operands().for_each(|operand| live[operand.index()] = true);
            }
        }
        live
    }

    pub(super) fn check(&self, expr: ExprId) -> Result<(), PointwiseError> {
        match expr.index() < self.exprs.len() {
            true => Ok(()),
            false => Err(PointwiseError::NoSuchExpr { expr: expr.index(), exprs: self.exprs.len() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_expressions_are_one() {
        let mut desc = PointwiseDesc::new([Indexing::Full]);
        let x = desc.input(0).unwrap();
        let (a, b) = (desc.unary(UnaryOp::Exp, x).unwrap(), desc.unary(UnaryOp::Exp, x).unwrap());
        assert_eq!(a, b);
        let nan = desc.constant(f32::NAN).unwrap();
        assert_eq!(nan, desc.constant(f32::NAN).unwrap());
        assert_ne!(desc.constant(0.0).unwrap(), desc.constant(-0.0).unwrap());
        assert_eq!(desc.exprs().len(), 5);
    }

    #[test]
    fn simple_powers_are_exact() {
        let mut desc = PointwiseDesc::new([Indexing::Full]);
        let x = desc.input(0).unwrap();
        let two = desc.constant(2.0).unwrap();
        let square = desc.binary(BinaryOp::Pow, x, two).unwrap();
        assert_eq!(desc.exprs()[square.index()], Expr::Binary(BinaryOp::Mul, x, x));
    }

    #[test]
    fn a_constant_zero_hides_no_infinity() {
        let mut desc = PointwiseDesc::new([Indexing::Full]);
        let x = desc.input(0).unwrap();
        let zero = desc.constant(-0.0).unwrap();
        let quotient = desc.binary(BinaryOp::Div, x, zero).unwrap();
        let endless = desc.constant(f32::NEG_INFINITY).unwrap();
        assert_eq!(desc.exprs()[quotient.index()], Expr::Binary(BinaryOp::Mul, x, endless));
        for product in
            [desc.binary(BinaryOp::Mul, x, zero).unwrap(), desc.binary(BinaryOp::Mul, zero, x).unwrap()]
        {
            assert!(matches!(desc.exprs()[product.index()], Expr::Select { .. }));
        }
    }

    #[test]
    fn what_is_not_there_cannot_be_named() {
        let mut desc = PointwiseDesc::new([Indexing::Full]);
        assert_eq!(desc.input(1), Err(PointwiseError::NoSuchInput { input: 1, inputs: 1 }));
        let mut other = PointwiseDesc::new([Indexing::Full]);
        let x = other.input(0).unwrap();
        let expected = PointwiseError::NoSuchExpr { expr: 0, exprs: 0 };
        assert_eq!(desc.unary(UnaryOp::Abs, x), Err(expected.clone()));
        assert_eq!(desc.output(x), Err(expected));
    }

    #[test]
    fn only_what_an_output_needs_is_live() {
        let mut desc = PointwiseDesc::new([Indexing::Full]);
        let x = desc.input(0).unwrap();
        desc.unary(UnaryOp::Exp, x).unwrap();
        let y = desc.unary(UnaryOp::Abs, x).unwrap();
        let z = desc.unary(UnaryOp::Neg, y).unwrap();
        desc.output(z).unwrap();
        assert_eq!(desc.live(), [true, false, true, true]);
    }

    #[test]
    fn dimensions_that_walk_together_are_one_term() {
        let term = |div, modulo, stride| Term { div, modulo, stride };
        assert_eq!(broadcast_terms(&[2, 3, 4], &[2, 3, 4]), Some(vec![term(1, 24, 1)]));
        assert_eq!(broadcast_terms(&[2, 3, 4], &[3, 1]), Some(vec![term(4, 3, 1)]));
        assert_eq!(broadcast_terms(&[2, 3, 4], &[2, 1, 4]), Some(vec![term(1, 4, 1), term(12, 2, 4)]));
        assert_eq!(broadcast_terms(&[2, 1, 4], &[2, 1, 4]), Some(vec![term(1, 8, 1)]));
        assert_eq!(broadcast_terms(&[2, 3], &[]), Some(vec![]));
        assert_eq!(broadcast_terms(&[2, 3], &[1, 1, 3]), None);
        assert_eq!(broadcast_terms(&[2, 3], &[2]), None);
        assert_eq!(broadcast_terms(&[u32::MAX, 2], &[2]), None);
        assert_eq!(Indexing::of(&[term(1, 24, 1)], 24), Indexing::Full);
        assert_eq!(Indexing::of(&[term(1, 24, 1)], 48), Indexing::Broadcast { terms: 1 });
    }

    #[test]
    fn compacting_keeps_what_outputs_need() {
        let mut desc = PointwiseDesc::new([Indexing::Full, Indexing::Full, Indexing::Broadcast { terms: 0 }]);
        let [a, b, c] = [0, 1, 2].map(|at| desc.input(at).unwrap());
        desc.binary(BinaryOp::Sub, a, b).unwrap();
        let sum = desc.binary(BinaryOp::Add, c, a).unwrap();
        desc.output(sum).unwrap();
        let (compact, kept) = desc.compact().unwrap();
        assert_eq!(kept, [0, 2]);
        assert_eq!(compact.inputs(), [Indexing::Full, Indexing::Broadcast { terms: 0 }]);
        assert_eq!(compact.exprs().len(), 3);
        assert_ne!(compact.key(), desc.key());
        assert_eq!(compact.key(), compact.compact().unwrap().0.key());
    }
}
