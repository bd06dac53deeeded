//! Clip: elements kept within bounds, which are attributes (to opset 10) or inputs.

use std::sync::Arc;

use super::apply::{input, map, output};
use super::function::{NUMBERS, Pointwise, is_f32_at};
use super::function_cpu;
use super::number::{Number, with_number};
use super::program::{Dispatch, element, unsupported};
use crate::dtype::DType;
use crate::expr::{BinaryOp, ExprId, Function, Indexing, PointwiseDesc, PointwiseError};
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::ops::{Activation, AttrReader, Lowering, OpCx, OpError, Operand, Operator};

/// Keeps elements within bounds; an input beats the field.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clip {
    /// The lower bound, where it is an attribute.
    pub low: Option<f32>,
    /// The upper bound, where it is an attribute.
    pub high: Option<f32>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    if opset >= 11 {
        return Ok(Arc::new(Clip::default()));
    }
    // The attributes have defaults, which infinities exceed.
    Ok(Arc::new(Clip { low: Some(attrs.float("min", f32::MIN)?), high: Some(attrs.float("max", f32::MAX)?) }))
}

impl Clip {
    /// The bounds of a float tensor, where both are known before the run.
    fn known(&self, cx: &OpCx) -> Option<Pointwise> {
        let bound = |i: usize, own: Option<f32>, none: f32| {
            if cx.has(i) { scalar(cx.value(i)?) } else { Some(own.unwrap_or(none)) }
        };
        // A wider type's bounds would be rounded.
        if !matches!(cx.dtype(0).ok()?, DType::F32 | DType::F16 | DType::BF16) {
            return None;
        }
        let params = [bound(1, self.low, f32::NEG_INFINITY)?, bound(2, self.high, f32::INFINITY)?];
        Some(Pointwise { function: Function::Clip, params })
    }

    /// The expression of an input and of the bounds that are given, and which inputs these are.
    fn desc(&self, given: [bool; 2]) -> Result<(PointwiseDesc, Vec<usize>), PointwiseError> {
        let bounds: Vec<usize> = (0..2).filter(|&i| given[i]).map(|i| i + 1).collect();
        let mut indexing = vec![Indexing::Broadcast { terms: 0 }; 1 + bounds.len()];
        indexing[0] = Indexing::Full;
        let mut desc = PointwiseDesc::new(indexing);
        let mut y = desc.input(0)?;
        for (at, bound) in bounds.iter().enumerate() {
            let op = [BinaryOp::AtLeast, BinaryOp::AtMost][bound - 1];
            let bound = desc.input(at + 1)?;
            y = desc.binary(op, y, bound)?;
        }
        desc.output(y)?;
        Ok((desc, bounds))
    }
}

fn scalar(t: &Tensor) -> Option<f32> {
    t.to_f32s().ok()?.first().copied()
}

impl Operator for Clip {
    fn name(&self) -> &'static str {
        "Clip"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=3, 1..=1)?;
        let dtype = cx.dtype_of(0, NUMBERS)?;
        for i in 1..3 {
            if let Some(bound) = cx.input_opt(i) {
                cx.expect_dtype(i, dtype)?;
                if bound.elements() != 1 {
                    return Err(cx.shape_error(i, "a scalar"));
                }
            }
        }
        Ok(vec![cx.input(0)?.clone()])
    }

    fn in_place(&self, _: &OpCx) -> Option<usize> {
        Some(0)
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (dtype, n) = (cx.dtype(0)?, cx.input(0)?.elements());
        if let Some(known) = self.known(cx) {
            return function_cpu::kernel(known, dtype, n, cx.input_count());
        }
        let given = [cx.has(1), cx.has(2)];
        let own = *self;
        let result = cx.input_count();
        with_number!(dtype, T => Ok(native::<T>(own, given, n, result)), else Err(OpError::unsupported("bool")))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (dtype, n) = (cx.dtype(0)?, cx.input(0)?.elements());
        let (x, y) = (Operand::Input(0), Operand::Output(0));
        if let Some(known) = self.known(cx) {
            return known.dispatch(lower, dtype, n, x, y);
        }
        let fail = || OpError::unsupported(format!("Clip of {dtype} on the device"));
        let element =
            element(dtype).filter(|_| self.low.is_none() && self.high.is_none()).ok_or_else(fail)?;
        let (desc, bounds) = self.desc([cx.has(1), cx.has(2)]).map_err(unsupported)?;
        let args: Vec<Operand> =
            [x].into_iter().chain(bounds.into_iter().map(Operand::Input)).chain([y]).collect();
        let terms = vec![Vec::new(); desc.inputs().len()];
        Dispatch { desc: &desc, element, len: n, terms: &terms, tests: false }.emit("Clip", &args, lower)
    }

    fn as_activation(&self, cx: &OpCx) -> Option<Activation> {
        self.known(cx).map(Activation::Of)
    }

    fn pointwise_expr(&self, cx: &OpCx, desc: &mut PointwiseDesc, args: &[ExprId]) -> Option<ExprId> {
        if !is_f32_at(cx, 0) {
            return None;
        }
        let Pointwise { function, params } = self.known(cx)?;
        function.build(desc, *args.first()?, params).ok()
    }
}

fn native<T: Number>(own: Clip, given: [bool; 2], n: usize, result: usize) -> NativeKernel {
    NativeKernel::new("Clip", move |args| {
        let x = input::<T>(args, 0, n)?;
        let bound = |i: usize, own: Option<f32>| {
            let own = own.map(|v| T::from_f64(v.into()));
            if given[i] { Ok(args.read::<T>(i + 1)?.first().copied()) } else { Ok(own) }
        };
        let low = bound(0, own.low)?.unwrap_or(T::LOWEST);
        let high = bound(1, own.high)?.unwrap_or(T::HIGHEST);
        map(x, output::<T>(args, result, n)?, |v| v.within(low, high));
        Ok(())
    })
}
