//! Pointwise operators as expressions, from which the planner makes one kernel of a chain.
//!
//! All in `f32`; those whose definition would lose digits in its terms are not fused.

use super::binary::{Binary, BinaryOp};
use super::nary::{Nary, NaryOp};
use crate::dtype::DType;
use crate::expr::{BinaryOp as Two, CompareOp, ExprId, PointwiseDesc, UnaryOp as One};
use crate::ops::OpCx;

/// Whether input `i` is there and `f32`.
pub(super) fn is_f32_at(cx: &OpCx, i: usize) -> bool {
    cx.input_opt(i).is_some_and(|x| x.dtype == DType::F32)
}

/// Whether all inputs and the output are `f32`.
pub(super) fn is_f32(cx: &OpCx) -> bool {
    (0..cx.input_count()).all(|i| is_f32_at(cx, i)) && cx.outputs().iter().all(|y| y.dtype == DType::F32)
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
