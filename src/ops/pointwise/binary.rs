//! Operators of two inputs that broadcast: arithmetic, bits, logic and comparison.

use std::sync::Arc;

use super::function::is_f32;
use super::function::{INTEGERS, NUMBERS};
use super::{binary_cpu, binary_gpu};
use crate::dtype::DType;
use crate::expr::{self, CompareOp, ExprId, PointwiseDesc, UnaryOp};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::quant::QuantizedBinary;
use crate::ops::{
    AttrReader, Elementwise, HalfRule, Lowering, OpCx, OpError, Operand, Operator, Quantized, Structure,
};

/// Which function of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient; of integers cut off toward zero, 0 where the divisor is 0.
    Div,
    /// Power, of the first input's type.
    Pow,
    /// Remainder with the sign of the dividend.
    Fmod,
    /// Remainder with the sign of the divisor.
    Mod,
    /// `x < 0 ? slope * x : x`; the slope broadcasts to `x`, not the other way.
    PRelu,
    /// Bits that are in both.
    BitwiseAnd,
    /// Bits that are in either.
    BitwiseOr,
    /// Bits that are in one.
    BitwiseXor,
    /// Bits moved up; nothing is left beyond the width or by a negative number.
    ShiftLeft,
    /// Bits moved down, signed numbers with copies of their sign; nothing else is left beyond the width.
    ShiftRight,
    /// Whether both are true.
    And,
    /// Whether one is true.
    Or,
    /// Whether they differ.
    Xor,
    /// `a == b`
    Equal,
    /// `a < b`
    Less,
    /// `a <= b`
    LessOrEqual,
    /// `a > b`
    Greater,
    /// `a >= b`
    GreaterOrEqual,
}

const ANY: &[DType] = &DType::COMPUTE;
const BOOL: &[DType] = &[DType::Bool];

impl BinaryOp {
    /// ONNX's name.
    pub fn name(self) -> &'static str {
        match self {
            BinaryOp::Add => "Add",
            BinaryOp::Sub => "Sub",
            BinaryOp::Mul => "Mul",
            BinaryOp::Div => "Div",
            BinaryOp::Pow => "Pow",
            BinaryOp::Fmod | BinaryOp::Mod => "Mod",
            BinaryOp::PRelu => "PRelu",
            BinaryOp::BitwiseAnd => "BitwiseAnd",
            BinaryOp::BitwiseOr => "BitwiseOr",
            BinaryOp::BitwiseXor => "BitwiseXor",
            BinaryOp::ShiftLeft | BinaryOp::ShiftRight => "BitShift",
            BinaryOp::And => "And",
            BinaryOp::Or => "Or",
            BinaryOp::Xor => "Xor",
            BinaryOp::Equal => "Equal",
            BinaryOp::Less => "Less",
            BinaryOp::LessOrEqual => "LessOrEqual",
            BinaryOp::Greater => "Greater",
            BinaryOp::GreaterOrEqual => "GreaterOrEqual",
        }
    }

    /// Whether the output is `bool` for any input type.
    pub fn is_comparison(self) -> bool {
        matches!(
            self,
            BinaryOp::Equal
                | BinaryOp::Less
                | BinaryOp::LessOrEqual
                | BinaryOp::Greater
                | BinaryOp::GreaterOrEqual
        )
    }

    /// The element types it takes.
    pub fn types(self) -> &'static [DType] {
        match self {
            BinaryOp::BitwiseAnd
            | BinaryOp::BitwiseOr
            | BinaryOp::BitwiseXor
            | BinaryOp::ShiftLeft
            | BinaryOp::ShiftRight => INTEGERS,
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => BOOL,
            BinaryOp::Equal => ANY,
            _ => NUMBERS,
        }
    }
}

/// A [`BinaryOp`] as an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binary {
    /// The function.
    pub op: BinaryOp,
}

pub(super) fn read_mod(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(binary(if attrs.flag("fmod", false)? { BinaryOp::Fmod } else { BinaryOp::Mod }))
}

pub(super) fn read_shift(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let words = [("LEFT", BinaryOp::ShiftLeft), ("RIGHT", BinaryOp::ShiftRight)];
    if !attrs.has("direction") {
        return Err(attrs.error("direction", "is missing").into());
    }
    Ok(binary(attrs.choice("direction", BinaryOp::ShiftLeft, &words)?))
}

impl Operator for Binary {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::Elementwise(match self.op {
            BinaryOp::Add => Elementwise::Add,
            BinaryOp::Mul => Elementwise::Mul,
            BinaryOp::Div => Elementwise::Div,
            _ => Elementwise::Other,
        }))
    }

    fn quantized(&self, to: &Quantized<'_>) -> Option<Arc<dyn Operator>> {
        let product = match self.op {
            BinaryOp::Add => false,
            BinaryOp::Mul => true,
            _ => return None,
        };
        let &[a, b] = to.inputs else { return None };
        Some(Arc::new(QuantizedBinary { product, scalings: [a, b, to.output], clamp: to.clamp }))
    }

    fn half_rule(&self) -> HalfRule {
        match self.op {
            BinaryOp::Pow => HalfRule::Full,
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul => HalfRule::Mask,
            _ => HalfRule::Half,
        }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        let dtype = cx.dtype_of(0, self.op.types())?;
        if self.op == BinaryOp::Pow {
            cx.dtype_of(1, NUMBERS)?;
        } else {
            cx.expect_dtype(1, dtype)?;
        }
        let (a, b) = (cx.shape(0)?, cx.shape(1)?);
        let shape = a.broadcast(b)?;
        if self.op == BinaryOp::PRelu && shape != *a {
            return Err(cx.shape_error(1, format!("one that broadcasts to {a}")));
        }
        let dtype = if self.op.is_comparison() { DType::Bool } else { dtype };
        Ok(vec![TensorInfo::new(dtype, shape)])
    }

    fn in_place(&self, cx: &OpCx) -> Option<usize> {
        let out = cx.outputs().first()?;
        (0..2).find(|&i| cx.input_opt(i).is_some_and(|x| x == out))
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        binary_cpu::kernel(self.op, cx)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (a, b) = (cx.input(0)?, cx.input(1)?);
        let mut right = Operand::Input(1);
        if a.dtype != b.dtype {
            // Pow of two types: a float base takes the exponent in its own type.
            if !a.dtype.is_float() {
                return Err(OpError::unsupported(format!("Pow of {} to {} on the device", a.dtype, b.dtype)));
            }
            right = lower.scratch(b.elements() * a.dtype.bytes());
            super::cast::dispatch(lower, b.dtype, a.dtype, b.elements(), Operand::Input(1), right)?;
        }
        let y = &cx.output(0)?.shape;
        let io = [(Operand::Input(0), &a.shape), (right, &b.shape), (Operand::Output(0), y)];
        if self.op.is_comparison() {
            binary_gpu::compare(lower, self.op, a.dtype, io)
        } else {
            binary_gpu::arithmetic(lower, binary_gpu::Code::of(self.op), a.dtype, io, 1.0)
        }
    }

    fn pointwise_expr(&self, cx: &OpCx, desc: &mut PointwiseDesc, args: &[ExprId]) -> Option<ExprId> {
        if !is_f32(cx) {
            return None;
        }
        if self.op == BinaryOp::Pow {
            let [exponent] = cx.value(1)?.as_slice::<f32>().ok()? else { return None };
            // An exponent of more dimensions would make the output larger.
            let same = cx.shape(0).ok()? == &cx.outputs().first()?.shape;
            return if same { power(desc, *args.first()?, *exponent) } else { None };
        }
        expression(self.op, desc, args)
    }
}

/// The function of `args`; `None` where there is no expression for it.
fn expression(op: BinaryOp, desc: &mut PointwiseDesc, args: &[ExprId]) -> Option<ExprId> {
    let &[a, b] = args else { return None };
    let op = match op {
        BinaryOp::Add => expr::BinaryOp::Add,
        BinaryOp::Sub => expr::BinaryOp::Sub,
        BinaryOp::Mul => expr::BinaryOp::Mul,
        BinaryOp::Div => expr::BinaryOp::Div,
        BinaryOp::PRelu => {
            let zero = desc.constant(0.0).ok()?;
            let scaled = desc.binary(expr::BinaryOp::Mul, a, b).ok()?;
            return desc.select((a, CompareOp::Less, zero), scaled, a).ok();
        }
        _ => return None,
    };
    desc.binary(op, a, b).ok()
}

/// `x` to the constant power `e`, for the exponents that models have.
fn power(desc: &mut PointwiseDesc, x: ExprId, e: f32) -> Option<ExprId> {
    match e {
        1.0 => Some(x),
        2.0 => desc.binary(expr::BinaryOp::Mul, x, x).ok(),
        3.0 => {
            let square = desc.binary(expr::BinaryOp::Mul, x, x).ok()?;
            desc.binary(expr::BinaryOp::Mul, square, x).ok()
        }
        0.5 => desc.unary(UnaryOp::Sqrt, x).ok(),
        -1.0 => {
            let one = desc.constant(1.0).ok()?;
            desc.binary(expr::BinaryOp::Div, one, x).ok()
        }
        _ => None,
    }
}

/// `op` as an operator.
pub fn binary(op: BinaryOp) -> Arc<dyn Operator> {
    Arc::new(Binary { op })
}

/// The sum of two tensors.
pub fn add() -> Arc<dyn Operator> {
    binary(BinaryOp::Add)
}

/// The difference of two tensors.
pub fn sub() -> Arc<dyn Operator> {
    binary(BinaryOp::Sub)
}

/// The product of two tensors, element by element.
pub fn mul() -> Arc<dyn Operator> {
    binary(BinaryOp::Mul)
}

/// The quotient of two tensors.
pub fn div() -> Arc<dyn Operator> {
    binary(BinaryOp::Div)
}
