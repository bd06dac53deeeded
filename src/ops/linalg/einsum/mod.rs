//! Einsum: sums of products of elements that an equation names.

mod contraction;
mod device;
mod equation;
mod host;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::pointwise::number::with_number;
use crate::ops::real::real_kernel;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator};
use crate::shape::Shape;
use contraction::Step;
use equation::Equation;

/// Sums of products by an equation such as `bij,bjk->bik` (NumPy's `einsum`). More than two operands are
/// taken from left to right, two at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Einsum {
    equation: Equation,
}

impl Einsum {
    /// The operator of an equation in NumPy's notation.
    ///
    /// # Errors
    /// [`OpError::Unsupported`] where the text is no equation.
    pub fn new(equation: &str) -> Result<Self, OpError> {
        Equation::parse(equation)
            .map(|equation| Einsum { equation })
            .map_err(|problem| OpError::unsupported(format!("the equation {equation:?}: {problem}")))
    }

    fn steps(&self, cx: &OpCx) -> Result<(Vec<Step>, Vec<usize>), OpError> {
        let shapes: Result<Vec<&Shape>, OpError> = (0..cx.input_count()).map(|i| cx.shape(i)).collect();
        let views = self.equation.resolve(&shapes?).map_err(|(input, problem)| {
            let input = input.min(cx.input_count().saturating_sub(1));
            cx.shape_error(input, problem)
        })?;
        Ok((contraction::steps(&views), views.output_sizes()))
    }
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let text = attrs.str_opt("equation")?.ok_or_else(|| attrs.error("equation", "is missing"))?;
    match Equation::parse(text) {
        Ok(equation) => Ok(Arc::new(Einsum { equation })),
        Err(problem) => Err(attrs.error("equation", format!("is {text:?}: {problem}")).into()),
    }
}

impl Operator for Einsum {
    fn name(&self) -> &'static str {
        "Einsum"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let n = self.equation.inputs();
        cx.expect_counts(n..=n, 1..=1)?;
        let dtype = cx.dtype_of(0, DType::NUMBERS)?;
        for i in 1..n {
            cx.expect_dtype(i, dtype)?;
        }
        let (steps, output) = self.steps(cx)?;
        for step in &steps {
            // Intermediate results must fit as well.
            Shape::new(step.contraction.kept_sizes())?;
        }
        Ok(vec![TensorInfo::new(dtype, Shape::new(output)?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let flops = self.steps(cx).map_or(0, |(steps, _)| steps.iter().map(|s| s.contraction.flops()).sum());
        Cost { flops, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (steps, _) = self.steps(cx)?;
        let lens: Result<Vec<usize>, OpError> =
            (0..cx.input_count()).map(|i| Ok(cx.input(i)?.elements())).collect();
        let run = host::Run { steps, lens: lens?, output: cx.output(0)?.elements() };
        let dtype = cx.dtype(0)?;
        if dtype.is_float() {
            return real_kernel("Einsum", cx, run);
        }
        with_number!(dtype, T => Ok(NativeKernel::new("Einsum", move |args| run.numbers::<T>(args))),
            else Err(OpError::unsupported("Einsum of bool")))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        device::lower(&self.steps(cx)?.0, cx, lower)
    }
}
