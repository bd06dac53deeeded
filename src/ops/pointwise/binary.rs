//! Operators of two inputs that broadcast: arithmetic, bits, logic and comparison.

use std::sync::Arc;

use super::function::{NUMBERS, dtypes, has_chain_type};
use super::{binary_cpu, binary_gpu};
use crate::dtype::DType;
use crate::expr::{BinaryFunction, ExprId, Function, HalfRule, PointwiseDesc};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::quant::QuantizedBinary;
use crate::ops::real::FLOATS_TO_32;
use crate::ops::{
    Activation, AttrReader, Elementwise, Lowering, OpCx, OpError, Operand, Operator, Quantized, Structure,
};

/// A [`BinaryFunction`] as an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binary {
    /// The function.
    pub op: BinaryFunction,
}

pub(super) fn read_mod(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(binary(if attrs.flag("fmod", false)? { BinaryFunction::Fmod } else { BinaryFunction::Mod }))
}

pub(super) fn read_shift(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let words = [("LEFT", BinaryFunction::ShiftLeft), ("RIGHT", BinaryFunction::ShiftRight)];
    if !attrs.has("direction") {
        return Err(attrs.error("direction", "is missing").into());
    }
    Ok(binary(attrs.choice("direction", BinaryFunction::ShiftLeft, &words)?))
}

impl Operator for Binary {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::Elementwise(match self.op {
            BinaryFunction::Add => Elementwise::Add,
            BinaryFunction::Mul => Elementwise::Mul,
            BinaryFunction::Div => Elementwise::Div,
            BinaryFunction::PRelu => Elementwise::PRelu,
            _ => Elementwise::Other,
        }))
    }

    fn quantized(&self, to: &Quantized<'_>) -> Option<Arc<dyn Operator>> {
        let product = match self.op {
            BinaryFunction::Add => false,
            BinaryFunction::Mul => true,
            _ => return None,
        };
        let &[a, b] = to.inputs else { return None };
        Some(Arc::new(QuantizedBinary { product, scalings: [a, b, to.output], clamp: to.clamp }))
    }

    fn half_rule(&self) -> HalfRule {
        self.op.row().half
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        let dtype = cx.dtype_of(0, dtypes(self.op.row().types))?;
        if self.op == BinaryFunction::Pow {
            cx.dtype_of(1, NUMBERS)?;
        } else {
            cx.expect_dtype(1, dtype)?;
        }
        let (a, b) = (cx.shape(0)?, cx.shape(1)?);
        let shape = a.broadcast(b)?;
        if self.op == BinaryFunction::PRelu && shape != *a {
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
            binary_gpu::arithmetic(lower, self.op, a.dtype, io, None)
        }
    }

    /// A product with a constant number, or one slope for all elements. Sums are none: as a bias they leave room for an
    /// activation.
    fn as_activation(&self, cx: &OpCx) -> Option<Activation> {
        let is_number = |i: &usize| cx.value(*i).is_some_and(|t| t.shape().elements() == 1);
        let is_slope = self.op == BinaryFunction::PRelu;
        let number = [0, 1].into_iter().skip(usize::from(is_slope)).find(is_number)?;
        let [factor] = cx.value(number)?.to_f32s().ok()?[..] else { return None };
        let keeps_shape = cx.shape(1 - number).ok()? == &cx.outputs().first()?.shape;
        // The factor of float64 may not be one of float32.
        let applies = keeps_shape && FLOATS_TO_32.contains(&cx.dtype(0).ok()?);
        match self.op {
            // A negative zero changes no product, not even another one.
            BinaryFunction::Mul if applies => Some(Activation::with(Function::Affine, [factor, -0.0])),
            BinaryFunction::PRelu if applies => Some(Activation::with(Function::LeakyRelu, [factor, 0.0])),
            _ => None,
        }
    }

    fn pointwise_expr(&self, cx: &OpCx, desc: &mut PointwiseDesc, args: &[ExprId]) -> Option<ExprId> {
        if !has_chain_type(cx) {
            return None;
        }
        if self.op == BinaryFunction::Pow {
            let one = cx.value(1).filter(|t| t.shape().elements() == 1)?;
            let [exponent] = one.to_f32s().ok()?[..] else { return None };
            // An exponent of more dimensions would make the output larger.
            let same = cx.shape(0).ok()? == &cx.outputs().first()?.shape;
            return if same { desc.power(*args.first()?, exponent).ok()? } else { None };
        }
        let &[a, b] = args else { return None };
        self.op.build(desc, a, b).ok()?
    }
}

/// `op` as an operator.
pub fn binary(op: BinaryFunction) -> Arc<dyn Operator> {
    Arc::new(Binary { op })
}

/// The sum of two tensors.
pub fn add() -> Arc<dyn Operator> {
    binary(BinaryFunction::Add)
}

/// The difference of two tensors.
pub fn sub() -> Arc<dyn Operator> {
    binary(BinaryFunction::Sub)
}

/// The product of two tensors, element by element.
pub fn mul() -> Arc<dyn Operator> {
    binary(BinaryFunction::Mul)
}

/// The quotient of two tensors.
pub fn div() -> Arc<dyn Operator> {
    binary(BinaryFunction::Div)
}
