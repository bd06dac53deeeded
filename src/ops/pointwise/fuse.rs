//! Pointwise operators as expressions, from which the planner makes one kernel of a chain.
//!
//! All in `f32`; functions that [`crate::spirv`] has no expression for, and those whose definition would
//! lose digits in its terms, are not fused.

use super::binary::{Binary, BinaryOp};
use super::nary::{Nary, NaryOp};
use super::unary::{Unary, UnaryOp};
use crate::dtype::DType;
use crate::ops::OpCx;
use crate::spirv::{BinaryOp as Two, CompareOp, ExprId, PointwiseDesc, PointwiseError, UnaryOp as One};

/// Whether input `i` is there and `f32`.
pub(super) fn is_f32_at(cx: &OpCx, i: usize) -> bool {
    cx.input_opt(i).is_some_and(|x| x.dtype == DType::F32)
}

/// Whether all inputs and the output are `f32`.
pub(super) fn is_f32(cx: &OpCx) -> bool {
    (0..cx.input_count()).all(|i| is_f32_at(cx, i)) && cx.outputs().iter().all(|y| y.dtype == DType::F32)
}

/// `unary` of `x`; `None` where there is no expression for it.
pub(super) fn unary(unary: &Unary, desc: &mut PointwiseDesc, x: ExprId) -> Option<ExprId> {
    build_unary(unary, desc, x).ok().flatten()
}

fn build_unary(unary: &Unary, desc: &mut PointwiseDesc, x: ExprId) -> Result<Option<ExprId>, PointwiseError> {
    let (a, b) = (unary.a, unary.b);
    let one = |desc: &mut PointwiseDesc, op| desc.unary(op, x).map(Some);
    match unary.op {
        UnaryOp::Abs => one(desc, One::Abs),
        UnaryOp::Neg => one(desc, One::Neg),
        UnaryOp::Exp => one(desc, One::Exp),
        UnaryOp::Log => one(desc, One::Log),
        UnaryOp::Sqrt => one(desc, One::Sqrt),
        UnaryOp::Sigmoid => one(desc, One::Sigmoid),
        UnaryOp::Tanh => one(desc, One::Tanh),
        UnaryOp::Erf => one(desc, One::Erf),
        UnaryOp::Floor => one(desc, One::Floor),
        UnaryOp::Ceil => one(desc, One::Ceil),
        UnaryOp::Relu => desc.relu(x).map(Some),
        UnaryOp::LeakyRelu => desc.leaky_relu(x, a).map(Some),
        UnaryOp::Clip => desc.clip(x, a, b).map(Some),
        UnaryOp::HardSigmoid => desc.hard_sigmoid(x, a, b).map(Some),
        UnaryOp::HardSwish => {
            let gate = desc.hard_sigmoid(x, 1.0 / 6.0, 0.5)?;
            desc.binary(Two::Mul, x, gate).map(Some)
        }
        UnaryOp::Swish => {
            let alpha = desc.constant(a)?;
            let scaled = if a == 1.0 { x } else { desc.binary(Two::Mul, alpha, x)? };
            let gate = desc.unary(One::Sigmoid, scaled)?;
            desc.binary(Two::Mul, x, gate).map(Some)
        }
        UnaryOp::Reciprocal => {
            let one = desc.constant(1.0)?;
            desc.binary(Two::Div, one, x).map(Some)
        }
        UnaryOp::Softsign => {
            let (one, size) = (desc.constant(1.0)?, desc.unary(One::Abs, x)?);
            let below = desc.binary(Two::Add, one, size)?;
            desc.binary(Two::Div, x, below).map(Some)
        }
        UnaryOp::Gelu => {
            let (one, half) = (desc.constant(1.0)?, desc.constant(0.5)?);
            let slope = desc.constant(std::f32::consts::FRAC_1_SQRT_2)?;
            let scaled = desc.binary(Two::Mul, x, slope)?;
            let erf = desc.unary(One::Erf, scaled)?;
            let gate = desc.binary(Two::Add, one, erf)?;
            let half = desc.binary(Two::Mul, half, x)?;
            desc.binary(Two::Mul, half, gate).map(Some)
        }
        UnaryOp::GeluTanh => {
            let (one, half) = (desc.constant(1.0)?, desc.constant(0.5)?);
            let (cubic, slope) = (desc.constant(0.044_715)?, desc.constant(0.797_884_6)?);
            let square = desc.binary(Two::Mul, x, x)?;
            let cube = desc.binary(Two::Mul, square, x)?;
            let cube = desc.binary(Two::Mul, cubic, cube)?;
            let inner = desc.binary(Two::Add, x, cube)?;
            let inner = desc.binary(Two::Mul, slope, inner)?;
            let tanh = desc.unary(One::Tanh, inner)?;
            let gate = desc.binary(Two::Add, one, tanh)?;
            let half = desc.binary(Two::Mul, half, x)?;
            desc.binary(Two::Mul, half, gate).map(Some)
        }
        UnaryOp::ThresholdedRelu => {
            let (zero, alpha) = (desc.constant(0.0)?, desc.constant(a)?);
            // Asked the other way round, so that NaN stays NaN.
            desc.select((x, CompareOp::LessEqual, alpha), zero, x).map(Some)
        }
        _ => Ok(None),
    }
}

/// `binary` of `args`; `None` where there is no expression for it.
pub(super) fn binary(binary: &Binary, desc: &mut PointwiseDesc, args: &[ExprId]) -> Option<ExprId> {
    let &[a, b] = args else { return None };
    let op = match binary.op {
        BinaryOp::Add => Two::Add,
        BinaryOp::Sub => Two::Sub,
        BinaryOp::Mul => Two::Mul,
        BinaryOp::Div => Two::Div,
        BinaryOp::PRelu => {
            let zero = desc.constant(0.0).ok()?;
            let scaled = desc.binary(Two::Mul, a, b).ok()?;
            return desc.select((a, CompareOp::Less, zero), scaled, a).ok();
        }
        _ => return None,
    };
    desc.binary(op, a, b).ok()
}

/// `x` to the constant power `e`, for the exponents that models have.
pub(super) fn power(desc: &mut PointwiseDesc, x: ExprId, e: f32) -> Option<ExprId> {
    match e {
        1.0 => Some(x),
        2.0 => desc.binary(Two::Mul, x, x).ok(),
        3.0 => {
            let square = desc.binary(Two::Mul, x, x).ok()?;
            desc.binary(Two::Mul, square, x).ok()
        }
        0.5 => desc.unary(One::Sqrt, x).ok(),
        -1.0 => {
            let one = desc.constant(1.0).ok()?;
            desc.binary(Two::Div, one, x).ok()
        }
        _ => None,
    }
}

/// `nary` of `args`.
pub(super) fn nary(nary: &Nary, desc: &mut PointwiseDesc, args: &[ExprId]) -> Option<ExprId> {
    let op = match nary.op {
        NaryOp::Sum | NaryOp::Mean => Two::Add,
        NaryOp::Min => Two::Min,
        NaryOp::Max => Two::Max,
    };
    let (&first, rest) = args.split_first()?;
    let all = rest.iter().try_fold(first, |all, &x| desc.binary(op, all, x).ok())?;
    if nary.op != NaryOp::Mean {
        return Some(all);
    }
    let count = desc.constant(args.len() as f32).ok()?;
    desc.binary(Two::Div, all, count).ok()
}
