//! Operators of one input that map each element by itself.

use std::any::Any;
use std::sync::Arc;

use super::{fuse, unary_cpu};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{id, params, spec};
use crate::kernel::{KernelId, NativeKernel};
use crate::ops::real::FLOATS;
use crate::ops::{Activation, AttrReader, HalfRule, Lowering, OpCx, OpError, Operand, Operator};
use crate::spirv::{ExprId, PointwiseDesc};

/// Which function of one element.
///
/// The order is that of `OP` in `shaders/pointwise/unary.comp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum UnaryOp {
    /// The magnitude.
    Abs,
    /// The opposite.
    Neg,
    /// -1, 0 or 1.
    Sign,
    /// `max(x, 0)`.
    Relu,
    /// `x < 0 ? alpha * x : x`.
    LeakyRelu,
    /// `min(max(x, a), b)`; [`super::Clip`] is the operator.
    Clip,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `max(0, min(1, alpha * x + beta))`.
    HardSigmoid,
    /// `x * max(0, min(1, x / 6 + 1 / 2))`.
    HardSwish,
    /// Hyperbolic tangent.
    Tanh,
    /// `e^x`.
    Exp,
    /// Natural logarithm.
    Log,
    /// Square root.
    Sqrt,
    /// `1 / x`.
    Reciprocal,
    /// The error function.
    Erf,
    /// The whole number below.
    Floor,
    /// The whole number above.
    Ceil,
    /// The nearest whole number, halves to the even one.
    Round,
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
    /// Inverse hyperbolic sine.
    Asinh,
    /// Inverse hyperbolic cosine.
    Acosh,
    /// Inverse hyperbolic tangent.
    Atanh,
    /// `ln(1 + e^x)`.
    Softplus,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `x < 0 ? alpha * (e^x - 1) : x`.
    Elu,
    /// `gamma * (x > 0 ? x : alpha * (e^x - 1))`.
    Selu,
    /// `max(0, x) + min(0, alpha * (e^(x / alpha) - 1))`.
    Celu,
    /// `x / 2 * (1 + erf(x / sqrt(2)))`.
    Gelu,
    /// Gelu by its approximation through tanh.
    GeluTanh,
    /// `x * tanh(softplus(x))`.
    Mish,
    /// `x > alpha ? x : 0`.
    ThresholdedRelu,
    /// `x < -lambd ? x + bias : x > lambd ? x - bias : 0`.
    Shrink,
    /// `x * sigmoid(alpha * x)`.
    Swish,
    /// Every bit the other way.
    BitwiseNot,
    /// False for true and true for false.
    Not,
}

pub(super) const NUMBERS: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
];
const SIGNED: &[DType] =
    &[DType::F32, DType::F16, DType::BF16, DType::F64, DType::I8, DType::I16, DType::I32, DType::I64];
pub(super) const INTEGERS: &[DType] =
    &[DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64];

impl UnaryOp {
    /// ONNX's name.
    pub fn name(self) -> &'static str {
        match self {
            UnaryOp::Abs => "Abs",
            UnaryOp::Neg => "Neg",
            UnaryOp::Sign => "Sign",
            UnaryOp::Relu => "Relu",
            UnaryOp::LeakyRelu => "LeakyRelu",
            UnaryOp::Clip => "Clip",
            UnaryOp::Sigmoid => "Sigmoid",
            UnaryOp::HardSigmoid => "HardSigmoid",
            UnaryOp::HardSwish => "HardSwish",
            UnaryOp::Tanh => "Tanh",
            UnaryOp::Exp => "Exp",
            UnaryOp::Log => "Log",
            UnaryOp::Sqrt => "Sqrt",
            UnaryOp::Reciprocal => "Reciprocal",
            UnaryOp::Erf => "Erf",
            UnaryOp::Floor => "Floor",
            UnaryOp::Ceil => "Ceil",
            UnaryOp::Round => "Round",
            UnaryOp::Sin => "Sin",
            UnaryOp::Cos => "Cos",
            UnaryOp::Tan => "Tan",
            UnaryOp::Asin => "Asin",
            UnaryOp::Acos => "Acos",
            UnaryOp::Atan => "Atan",
            UnaryOp::Sinh => "Sinh",
            UnaryOp::Cosh => "Cosh",
            UnaryOp::Asinh => "Asinh",
            UnaryOp::Acosh => "Acosh",
            UnaryOp::Atanh => "Atanh",
            UnaryOp::Softplus => "Softplus",
            UnaryOp::Softsign => "Softsign",
            UnaryOp::Elu => "Elu",
            UnaryOp::Selu => "Selu",
            UnaryOp::Celu => "Celu",
            UnaryOp::Gelu | UnaryOp::GeluTanh => "Gelu",
            UnaryOp::Mish => "Mish",
            UnaryOp::ThresholdedRelu => "ThresholdedRelu",
            UnaryOp::Shrink => "Shrink",
            UnaryOp::Swish => "Swish",
            UnaryOp::BitwiseNot => "BitwiseNot",
            UnaryOp::Not => "Not",
        }
    }

    /// The element types it takes.
    pub fn types(self) -> &'static [DType] {
        match self {
            UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Shrink | UnaryOp::Clip => NUMBERS,
            UnaryOp::Neg | UnaryOp::Relu => SIGNED,
            UnaryOp::BitwiseNot => INTEGERS,
            UnaryOp::Not => &[DType::Bool],
            _ => FLOATS,
        }
    }

    /// ONNX's default parameters: alpha or lambd first; beta, gamma or bias second.
    fn defaults(self) -> (f32, f32) {
        match self {
            UnaryOp::LeakyRelu => (0.01, 0.0),
            UnaryOp::HardSigmoid => (0.2, 0.5),
            UnaryOp::Selu => (1.673_263_2, 1.050_701),
            UnaryOp::Shrink => (0.5, 0.0),
            UnaryOp::Elu | UnaryOp::Celu | UnaryOp::ThresholdedRelu | UnaryOp::Swish => (1.0, 0.0),
            _ => (0.0, 0.0),
        }
    }
}

/// A [`UnaryOp`] with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unary {
    /// The function.
    pub op: UnaryOp,
    /// Its first parameter: alpha, or lambd of Shrink.
    pub a: f32,
    /// Its second parameter: beta, gamma or bias.
    pub b: f32,
}

impl Unary {
    /// `op` with the parameters that ONNX gives it by default.
    pub fn new(op: UnaryOp) -> Self {
        let (a, b) = op.defaults();
        Unary { op, a, b }
    }

    /// Reads the parameters by the names they have in `op`.
    pub(super) fn read(op: UnaryOp, attrs: &AttrReader<'_>) -> Result<Self, OpError> {
        let (a, b) = op.defaults();
        let names = match op {
            UnaryOp::HardSigmoid => ["alpha", "beta"],
            UnaryOp::Selu => ["alpha", "gamma"],
            UnaryOp::Shrink => ["lambd", "bias"],
            _ => ["alpha", ""],
        };
        let takes_a = a != 0.0;
        let takes_b = !names[1].is_empty();
        Ok(Unary {
            op,
            a: if takes_a { attrs.float(names[0], a)? } else { a },
            b: if takes_b { attrs.float(names[1], b)? } else { b },
        })
    }

    /// Gelu with its attribute.
    pub(super) fn read_gelu(attrs: &AttrReader<'_>) -> Result<Self, OpError> {
        let words = [("none", UnaryOp::Gelu), ("tanh", UnaryOp::GeluTanh)];
        Ok(Unary::new(attrs.choice("approximate", UnaryOp::Gelu, &words)?))
    }
}

/// The kernel for `dtype`, four elements at once where `n` allows, and how many items it takes.
fn kernel(dtype: DType, n: usize) -> Option<(KernelId, usize)> {
    Some(match dtype {
        DType::F32 if n.is_multiple_of(4) => (id::UNARY_F32X4, n / 4),
        DType::F32 => (id::UNARY_F32, n),
        DType::F16 => (id::UNARY_F16, n),
        DType::I8 => (id::UNARY_I8, n),
        DType::I16 => (id::UNARY_I16, n),
        DType::I32 => (id::UNARY_I32, n),
        DType::I64 => (id::UNARY_I64, n),
        DType::U8 | DType::Bool => (id::UNARY_U8, n),
        DType::U16 => (id::UNARY_U16, n),
        DType::U32 => (id::UNARY_U32, n),
        DType::U64 => (id::UNARY_U64, n),
        _ => return None,
    })
}

/// Emits `unary` from `x` to `y`, both of `n` elements of `dtype`.
///
/// # Errors
/// [`OpError::Unsupported`] where there is no kernel for the type.
pub(super) fn dispatch(
    lower: &mut Lowering<'_>,
    unary: &Unary,
    dtype: DType,
    n: usize,
    x: Operand,
    y: Operand,
) -> Result<(), OpError> {
    let integer_only = !dtype.is_float() && unary.op == UnaryOp::Shrink;
    let fail = || OpError::unsupported(format!("{} of {dtype} on the device", unary.op.name()));
    let (kernel, items) = kernel(dtype, n).filter(|_| !integer_only).ok_or_else(fail)?;
    let n = u32::try_from(items).map_err(|_| fail())?;
    let constants = [(spec::unary::OP, unary.op as u32)];
    lower.dispatch_1d(kernel, &constants, &[x, y], &params::Unary { n, a: unary.a, b: unary.b }, items)
}

impl Operator for Unary {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn half_rule(&self) -> HalfRule {
        match self.op {
            UnaryOp::Exp | UnaryOp::Log | UnaryOp::Reciprocal | UnaryOp::Sqrt => HalfRule::Full,
            _ => HalfRule::Half,
        }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        cx.dtype_of(0, self.op.types())?;
        Ok(vec![cx.input(0)?.clone()])
    }

    fn in_place(&self, _: &OpCx) -> Option<usize> {
        Some(0)
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        unary_cpu::kernel(*self, cx.dtype(0)?, cx.input(0)?.elements(), 1)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let x = cx.input(0)?;
        dispatch(lower, self, x.dtype, x.elements(), Operand::Input(0), Operand::Output(0))
    }

    fn as_activation(&self, cx: &OpCx) -> Option<Activation> {
        if !cx.dtype(0).ok()?.is_float() {
            return None;
        }
        match self.op {
            UnaryOp::Relu => Some(Activation::Relu),
            UnaryOp::LeakyRelu => Some(Activation::LeakyRelu { slope: self.a }),
            UnaryOp::Sigmoid => Some(Activation::Sigmoid),
            UnaryOp::HardSigmoid => Some(Activation::HardSigmoid { alpha: self.a, beta: self.b }),
            UnaryOp::HardSwish => Some(Activation::HardSwish),
            UnaryOp::Tanh => Some(Activation::Tanh),
            UnaryOp::Swish if self.a == 1.0 => Some(Activation::Silu),
            UnaryOp::Gelu => Some(Activation::Gelu),
            UnaryOp::GeluTanh => Some(Activation::GeluTanh),
            _ => None,
        }
    }

    fn pointwise_expr(&self, cx: &OpCx, desc: &mut PointwiseDesc, args: &[ExprId]) -> Option<ExprId> {
        if fuse::is_f32(cx) { fuse::unary(self, desc, *args.first()?) } else { None }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// `op` with ONNX's default parameters.
pub fn unary(op: UnaryOp) -> Arc<dyn Operator> {
    Arc::new(Unary::new(op))
}
