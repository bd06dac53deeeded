//! GatherElements: every index picks one element of its own line along an axis.

use std::sync::Arc;

use super::positions::{INDEX_TYPES, Indices, index_words};
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeArgs, NativeKernel, Unit};
use crate::ops::movement::region::signed_strides;
use crate::ops::strided::Nest;
use crate::ops::word::word;
use crate::ops::{AttrReader, Lowering, OpCx, OpError, Operand, Operator, par};

/// `y[i][j] = x[indices[i][j]][j]` for axis 0, and so on: input 0 picked by input 1, which has its rank and
/// is not longer along the other axes. The output has the shape of the indices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatherElements {
    /// The axis, negative ones counted from the end.
    pub axis: i64,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(GatherElements { axis: attrs.int("axis", 0)? }))
}

/// Checks that input `indices` has the rank of input 0 and is not longer but along the axis, which is given.
pub(super) fn check_lines(cx: &OpCx, indices: usize, axis: i64) -> Result<usize, OpError> {
    let (x, i) = (cx.shape(0)?, cx.shape(indices)?);
    let axis = x.axis(axis)?;
    let fits = x.rank() == i.rank() && (0..x.rank()).all(|d| d == axis || i[d] <= x[d]);
    if !fits {
        return Err(
            cx.shape_error(indices, format!("the rank of {x} and no larger sizes but along axis {axis}"))
        );
    }
    Ok(axis)
}

/// The line of the data that each index picks from.
struct Lines {
    /// Operand 0 walks the beginnings of the lines.
    nest: Nest,
    size: usize,
    step: usize,
}

impl GatherElements {
    fn lines(&self, cx: &OpCx) -> Result<Lines, OpError> {
        let x = cx.shape(0)?;
        let axis = x.axis(self.axis)?;
        let mut strides = signed_strides(x);
        let step = std::mem::replace(&mut strides[axis], 0).unsigned_abs();
        Ok(Lines { nest: Nest::new(cx.shape(1)?, &[strides]), size: x[axis], step })
    }
}

fn run<W: bytemuck::Pod + Send + Sync>(
    args: &mut NativeArgs<'_, '_>,
    indices: Indices<'_>,
    lines: &Lines,
) -> Result<(), KernelError> {
    /// Indices that become positions before their elements are picked.
    const AT_ONCE: usize = 256;
    let x = args.read::<W>(0)?;
    let inner = lines.nest.inner_stride(0);
    par::try_parts(args.take_write::<W>(2)?, |first, part| {
        let mut places = [0; AT_ONCE];
        let mut done = Ok(());
        lines.nest.runs(first..first + part.len(), |start, len, base| {
            let run = part.get_mut(start - first..).and_then(|rest| rest.get_mut(..len)).unwrap_or_default();
            for (k, to) in run.chunks_mut(AT_ONCE).enumerate() {
                let Some(places) = places.get_mut(..to.len()) else { return };
                if done.is_ok() {
                    done = indices.positions(start + k * AT_ONCE, lines.size, places);
                }
                if done.is_err() {
                    return;
                }
                let line = base[0] + inner * (k * AT_ONCE) as isize;
                for (i, (y, at)) in to.iter_mut().zip(places).enumerate() {
                    if let Some(v) = x.get((line + inner * i as isize).unsigned_abs() + *at * lines.step) {
                        *y = *v;
                    }
                }
            }
        });
        done
    })
}

impl Operator for GatherElements {
    fn name(&self) -> &'static str {
        "GatherElements"
    }

    fn quantized_move(&self, _: &OpCx) -> bool {
        true
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        cx.dtype_of(1, INDEX_TYPES)?;
        let axis = check_lines(cx, 1, self.axis)?;
        if cx.shape(0)?[axis] == 0 && cx.input(1)?.elements() > 0 {
            return Err(cx.shape_error(0, "at least one element along the axis"));
        }
        Ok(vec![TensorInfo::new(cx.dtype(0)?, cx.shape(1)?.clone())])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (lines, bytes, index_type) = (self.lines(cx)?, cx.dtype(0)?.bytes(), cx.dtype(1)?);
        Ok(NativeKernel::new("GatherElements", move |args| {
            let indices = Indices::read(args, 1, index_type)?;
            match bytes {
                1 => run::<u8>(args, indices, &lines),
                2 => run::<u16>(args, indices, &lines),
                4 => run::<u32>(args, indices, &lines),
                _ => run::<u64>(args, indices, &lines),
            }
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let kernel = variants::GatherElements { t: Unit::Bytes(cx.dtype(0)?.bytes()) }.id()?;
        let Lines { nest, size, step } = self.lines(cx)?;
        let n = nest.elements();
        if n == 0 {
            return Ok(());
        }
        let many = || OpError::unsupported("a gather of more than 6 dimensions or 2^32 elements");
        let p = params::GatherElements {
            sizes: nest.kernel_sizes().ok_or_else(many)?,
            strides: nest.kernel_strides(0).ok_or_else(many)?,
            n: word(n)?,
            size: word(size)?,
            step: word(step)?,
        };
        let constants = [
            (spec::gather_elements::RANK, nest.rank() as u32),
            (spec::gather_elements::INDEX_WORDS, index_words(cx.dtype(1)?)),
        ];
        let args = [Operand::Input(0), Operand::Input(1), Operand::Output(0)];
        lower.dispatch_1d(kernel, &constants, &args, &p, n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::kernel::NativeArg;
    use crate::ops::test_util::{facts, run_cpu};

    fn picked(x: &[i32], indices: &[i64]) -> Result<(), KernelError> {
        let op = GatherElements { axis: 0 };
        let all = [Tensor::new([x.len()], x).unwrap(), Tensor::new([indices.len()], indices).unwrap()];
        let cx = facts(&op, &all.clone().map(Some), 1).unwrap();
        let mut y = vec![0i32; indices.len()];
        let [x, indices] = all.each_ref().map(|tensor| NativeArg::Read(tensor.bytes()));
        let mut args = [x, indices, NativeArg::Write(bytemuck::cast_slice_mut(&mut y))];
        op.cpu(&cx).unwrap().call(&mut NativeArgs::new(&mut args, &[]))
    }

    /// Of both types, counted from both ends, and one that is out of range in any part of a line.
    #[test]
    fn lines_of_any_length_are_picked_from() {
        for len in [1, 255, 256, 257, 1000] {
            let x: Vec<i32> = (0..7).map(|i| i * 11).collect();
            let long: Vec<i64> = (0..len).map(|i| i * 5 % 14 - 7).collect();
            let short: Vec<i32> = long.iter().map(|i| *i as i32).collect();
            let want: Vec<i64> = long.iter().map(|i| i.rem_euclid(7) * 11).collect();
            let run = |indices: Tensor| {
                run_cpu(&GatherElements { axis: 0 }, &[Some(Tensor::new([7], &x).unwrap()), Some(indices)], 1)
            };
            let n = len as usize;
            for indices in [Tensor::new([n], &long).unwrap(), Tensor::new([n], &short).unwrap()] {
                assert_eq!(run(indices).unwrap()[0].to_i64s().unwrap(), want, "{len}");
            }
            let mut wrong = long;
            wrong[n - 1] = 7;
            let error = picked(&x, &wrong).unwrap_err();
            assert!(
                matches!(&error, KernelError::Value { what } if what.starts_with("index 7 is out of range"))
            );
        }
    }
}
