//! Native functions of [`super::Pointwise`].

use std::sync::Arc;

use half::{bf16, f16};

use super::apply::{input, output};
use super::function::Pointwise;
use super::program::unsupported;
use crate::dtype::DType;
use crate::expr::eval::{Evaluator, InputData, Scratch};
use crate::expr::{Expr, UnaryOp};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::halves::Half;
use crate::ops::{OpError, par};

/// Elements that are widened at once.
const WIDENED: usize = 512;

/// The implementation of a function over `f32`.
#[derive(Clone)]
enum Floats {
    /// By its own loop.
    Loop(Pointwise),
    /// Step by step: some step looks at all elements, as functions of angles do.
    Steps(Arc<Evaluator>),
}

impl Floats {
    fn of(f: Pointwise) -> Result<Self, OpError> {
        let desc = f.desc().map_err(unsupported)?;
        let is_of_angles = |e: &Expr| matches!(e, Expr::Unary(UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tan, _));
        Ok(match desc.exprs().iter().any(is_of_angles) {
            true => Floats::Steps(Arc::new(Evaluator::new(desc).map_err(unsupported)?)),
            false => Floats::Loop(f),
        })
    }

    /// `y[i] = f(x[i])`
    fn run(&self, x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        match self {
            Floats::Loop(f) => (f.function.loops().f32)(x, y, f.params),
            Floats::Steps(evaluator) => {
                let (chunk, mut scratch) = (evaluator.chunk(), Scratch::default());
                for (x, y) in x.chunks(chunk).zip(y.chunks_mut(chunk)) {
                    evaluator
                        .eval_chunk(0, &[InputData { data: x, terms: &[] }], &mut [y], &mut scratch)
                        .map_err(|e| KernelError::Value { what: e.to_string() })?;
                }
            }
        }
        Ok(())
    }
}

/// The native function of `f` over `n` elements of `dtype`, from argument 0 to argument `result`.
pub(super) fn kernel(f: Pointwise, dtype: DType, n: usize, result: usize) -> Result<NativeKernel, OpError> {
    let name = f.function.name();
    let at = [n, result];
    let loops = f.function.loops();
    let no_loops = || OpError::unsupported(format!("{name} of {dtype}"));
    macro_rules! integers {
        ($t:ident) => {{
            let integers = loops.integers.ok_or_else(no_loops)?;
            NativeKernel::new(name, move |args| each::<$t>(at, args, |x, y| (integers.$t)(x, y, f.params)))
        }};
    }
    Ok(match dtype {
        DType::F32 => {
            let floats = Floats::of(f)?;
            NativeKernel::new(name, move |args| try_each::<f32>(at, args, |x, y| floats.run(x, y)))
        }
        DType::F16 => halves::<f16>(f, at)?,
        DType::BF16 => halves::<bf16>(f, at)?,
        DType::F64 => {
            NativeKernel::new(name, move |args| each::<f64>(at, args, |x, y| (loops.f64)(x, y, f.params)))
        }
        DType::I8 => integers!(i8),
        DType::I16 => integers!(i16),
        DType::I32 => integers!(i32),
        DType::I64 => integers!(i64),
        DType::U8 | DType::Bool => integers!(u8),
        DType::U16 => integers!(u16),
        DType::U32 => integers!(u32),
        DType::U64 => integers!(u64),
        _ => return Err(no_loops()),
    })
}

fn halves<T: Half>(f: Pointwise, at: [usize; 2]) -> Result<NativeKernel, OpError> {
    let floats = Floats::of(f)?;
    Ok(NativeKernel::new(f.function.name(), move |args| {
        try_each::<T>(at, args, |x, y| {
            let (mut wide, mut out) = ([0.0; WIDENED], [0.0; WIDENED]);
            for (x, y) in x.chunks(WIDENED).zip(y.chunks_mut(WIDENED)) {
                let len = y.len();
                T::widen_all(&x[..len], &mut wide[..len]);
                floats.run(&wide[..len], &mut out[..len])?;
                T::round_all(&out[..len], y);
            }
            Ok(())
        })
    }))
}

/// Runs `f` over parts of the elements, on all threads where they are many.
fn each<T: crate::dtype::Element + Send + Sync>(
    at: [usize; 2],
    args: &mut NativeArgs<'_, '_>,
    f: impl Fn(&[T], &mut [T]) + Send + Sync,
) -> Result<(), KernelError> {
    try_each(at, args, |x, y| {
        f(x, y);
        Ok(())
    })
}

/// As [`each`], of a function that may fail.
fn try_each<T: crate::dtype::Element + Send + Sync>(
    [n, result]: [usize; 2],
    args: &mut NativeArgs<'_, '_>,
    f: impl Fn(&[T], &mut [T]) -> Result<(), KernelError> + Send + Sync,
) -> Result<(), KernelError> {
    let x = input::<T>(args, 0, n)?;
    par::try_parts(output::<T>(args, result, n)?, |start, part| f(&x[start..start + part.len()], part))
}
