//! The operators that ask something about each element: IsInf and IsNaN.

use std::sync::Arc;

use half::{bf16, f16};

use super::apply::{input, output};
use super::program::{Dispatch, element, unsupported};
use crate::dtype::{DType, Element};
use crate::expr::ElementTest;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::operator::Structure;
use crate::ops::halves::Half;
use crate::ops::real::FLOATS;
use crate::ops::{AttrReader, Lowering, OpCx, OpError, Operand, Operator, par};

/// A question about each element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Classify {
    /// The question.
    pub test: ElementTest,
    /// Its parameters, in the order of its row; those that it does not have are 0.
    pub params: [f32; 2],
}

/// Reads `test`; its parameters are flags.
pub(super) fn read(test: ElementTest, attrs: &AttrReader<'_>) -> Result<Arc<dyn Operator>, OpError> {
    let mut params = [0.0; 2];
    for (param, row) in params.iter_mut().zip(test.row().parameters) {
        *param = f32::from(u8::from(attrs.flag(row.name, row.default != 0.0)?));
    }
    Ok(Arc::new(Classify { test, params }))
}

impl Operator for Classify {
    fn name(&self) -> &'static str {
        self.test.row().name
    }

    fn structure(&self) -> Option<Structure<'_>> {
        (self.test == ElementTest::IsNaN).then_some(Structure::IsNan)
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        cx.dtype_of(0, FLOATS)?;
        Ok(vec![TensorInfo::new(DType::Bool, cx.shape(0)?.clone())])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (dtype, n, params) = (cx.dtype(0)?, cx.input(0)?.elements(), self.params);
        let loops = self.test.loops();
        Ok(NativeKernel::new(self.name(), move |args| match dtype {
            DType::F32 => each::<f32>(n, args, |x, y| (loops.f32)(x, y, params)),
            DType::F16 => each::<f16>(n, args, |x, y| halves(x, y, |x, y| (loops.f32)(x, y, params))),
            DType::BF16 => each::<bf16>(n, args, |x, y| halves(x, y, |x, y| (loops.f32)(x, y, params))),
            _ => each::<f64>(n, args, |x, y| (loops.f64)(x, y, params)),
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (dtype, len) = (cx.dtype(0)?, cx.input(0)?.elements());
        let desc = self.test.desc(self.params).map_err(unsupported)?;
        let fail = || OpError::unsupported(format!("{} of {dtype} on the device", self.name()));
        let element = element(dtype).ok_or_else(fail)?;
        let dispatch = Dispatch { desc: &desc, element, len, terms: &[Vec::new()], tests: true };
        dispatch.emit(self.name(), &[Operand::Input(0), Operand::Output(0)], lower)
    }
}

/// Asks of all `n` elements, on all threads where they are many.
fn each<T: Element + Send + Sync>(
    n: usize,
    args: &mut NativeArgs<'_, '_>,
    f: impl Fn(&[T], &mut [u8]) + Send + Sync,
) -> Result<(), KernelError> {
    let x = input::<T>(args, 0, n)?;
    par::parts(output::<u8>(args, 1, n)?, |start, part| f(&x[start..start + part.len()], part));
    Ok(())
}

/// Asks of elements that are widened, many at once.
fn halves<T: Half>(x: &[T], y: &mut [u8], f: impl Fn(&[f32], &mut [u8])) {
    let mut wide = [0.0; 512];
    for (x, y) in x.chunks(wide.len()).zip(y.chunks_mut(512)) {
        T::widen_all(x, &mut wide[..x.len()]);
        f(&wide[..x.len()], y);
    }
}
