//! Sum, Mean, Min and Max of any number of inputs that broadcast.

use std::sync::Arc;

use super::apply::{fold, input, output};
use super::binary_gpu;
use super::function::{NUMBERS, has_chain_type};
use super::number::{Number, with_number};
use crate::expr::{BinaryFunction, ExprId, PointwiseDesc, pairs};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::strided::Nest;
use crate::ops::{Cost, Elementwise, Lowering, OpCx, OpError, Operand, Operator, Structure};
use crate::shape::Shape;

/// The reduction of the elements at one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NaryOp {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The smallest; NaN where one is.
    Min,
    /// The largest; NaN where one is.
    Max,
}

/// A [`NaryOp`] as an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nary {
    /// The function.
    pub op: NaryOp,
}

impl NaryOp {
    /// The function that takes in one input after the other.
    fn fold(self) -> BinaryFunction {
        match self {
            NaryOp::Sum | NaryOp::Mean => BinaryFunction::Add,
            NaryOp::Min => BinaryFunction::Min,
            NaryOp::Max => BinaryFunction::Max,
        }
    }
}

/// `op` as an operator of one or more inputs.
pub fn nary(op: NaryOp) -> Arc<dyn Operator> {
    Arc::new(Nary { op })
}

impl Operator for Nary {
    fn name(&self) -> &'static str {
        match self.op {
            NaryOp::Sum => "Sum",
            NaryOp::Mean => "Mean",
            NaryOp::Min => "Min",
            NaryOp::Max => "Max",
        }
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::Elementwise(Elementwise::Other))
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=usize::MAX, 1..=1)?;
        let dtype = cx.dtype_of(0, NUMBERS)?;
        if self.op == NaryOp::Mean && !dtype.is_float() {
            return Err(OpError::DType { input: 0, got: dtype, expected: "a float type".to_owned() });
        }
        let mut shape = cx.shape(0)?.clone();
        for i in 1..cx.input_count() {
            cx.expect_dtype(i, dtype)?;
            shape = shape.broadcast(cx.shape(i)?)?;
        }
        Ok(vec![TensorInfo::new(dtype, shape)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let elements: usize = cx.outputs().iter().map(TensorInfo::elements).sum();
        Cost { flops: elements as u64 * cx.input_count() as u64, bytes: cx.bytes_touched() }
    }

    fn in_place(&self, cx: &OpCx) -> Option<usize> {
        // The device adds the first two inputs first: only of these may the output take the place.
        let out = cx.outputs().first()?;
        (0..cx.input_count().min(2)).find(|&i| cx.input_opt(i).is_some_and(|x| x == out))
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let y = cx.output(0)?;
        let shapes: Vec<&Shape> = (0..cx.input_count()).map(|i| cx.shape(i)).collect::<Result<_, _>>()?;
        let nest = Nest::broadcast(&y.shape, &shapes)?;
        let lens: Vec<usize> = shapes.iter().map(|s| s.elements()).collect();
        let (op, name, n) = (self.op, self.name(), y.elements());
        with_number!(y.dtype, T => Ok(native::<T>(op, name, nest, lens, n)), else {
            Err(OpError::unsupported(format!("{name} of bool")))
        })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (y, count) = (cx.output(0)?, cx.input_count());
        if count == 1 {
            lower.copy((Operand::Input(0), 0), (Operand::Output(0), 0), y.bytes() as u64);
        }
        for i in 1..count {
            let first =
                if i == 1 { (Operand::Input(0), cx.shape(0)?) } else { (Operand::Output(0), &y.shape) };
            let last = self.op == NaryOp::Mean && i + 1 == count;
            let io = [first, (Operand::Input(i), cx.shape(i)?), (Operand::Output(0), &y.shape)];
            binary_gpu::arithmetic(lower, self.op.fold(), y.dtype, io, last.then_some(count))?;
        }
        Ok(())
    }

    fn pointwise_expr(&self, cx: &OpCx, desc: &mut PointwiseDesc, args: &[ExprId]) -> Option<ExprId> {
        if has_chain_type(cx) { expression(self.op, desc, args) } else { None }
    }
}

/// The function of `args`.
fn expression(op: NaryOp, desc: &mut PointwiseDesc, args: &[ExprId]) -> Option<ExprId> {
    let (&first, rest) = args.split_first()?;
    let all = rest.iter().try_fold(first, |all, &x| op.fold().build(desc, all, x).ok()?)?;
    if op != NaryOp::Mean {
        return Some(all);
    }
    let count = desc.constant(args.len() as f32).ok()?;
    BinaryFunction::Div.build(desc, all, count).ok()?
}

fn native<T: Number>(op: NaryOp, name: &'static str, nest: Nest, lens: Vec<usize>, n: usize) -> NativeKernel {
    NativeKernel::new(name, move |args| {
        let xs: Vec<&[T]> =
            lens.iter().enumerate().map(|(i, &len)| input(args, i, len)).collect::<Result<_, _>>()?;
        let y = output::<T>(args, lens.len(), n)?;
        match op {
            NaryOp::Sum => fold(&nest, &xs, y, T::add, |v| v),
            NaryOp::Mean => {
                let count = T::from_f64(lens.len() as f64);
                fold(&nest, &xs, y, T::add, move |v| v.pair::<pairs::Div>(count));
            }
            NaryOp::Min => fold(&nest, &xs, y, T::least, |v| v),
            NaryOp::Max => fold(&nest, &xs, y, T::greatest, |v| v),
        }
        Ok(())
    })
}
