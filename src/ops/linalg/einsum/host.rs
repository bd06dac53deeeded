//! Contractions on the CPU.

use std::borrow::Cow;

use super::contraction::{Contraction, Layout, Matrices, Origin, Step};
use crate::kernel::{KernelError, NativeArgs};
use crate::ops::linalg::product::{Mat, Threads, product};
use crate::ops::par;
use crate::ops::pointwise::number::Number;
use crate::ops::real::{Real, RealIo, RealKernel};
use crate::ops::strided::Nest;

/// The steps of one call.
pub(super) struct Run {
    pub(super) steps: Vec<Step>,
    pub(super) lens: Vec<usize>,
    pub(super) output: usize,
}

/// Arithmetic that a contraction needs.
struct Arithmetic<T> {
    zero: T,
    add: fn(T, T) -> T,
    mul: fn(T, T) -> T,
}

/// Every element of the result by itself.
fn contract<T: bytemuck::Pod + Send + Sync>(
    c: &Contraction,
    [a, b]: [&[T]; 2],
    out: &mut [T],
    with: &Arithmetic<T>,
) {
    let [kept, summed] = c.nests();
    let sums = summed.elements();
    let steps = [summed.inner_stride(0), summed.inner_stride(1)];
    let at = |x: &[T], i: isize| usize::try_from(i).ok().and_then(|i| x.get(i)).copied().unwrap_or(with.zero);
    let one = |from: [isize; 2]| {
        let mut acc = with.zero;
        summed.runs(0..sums, |_, len, row| {
            for k in 0..len as isize {
                let x = at(a, from[0] + row[0] + steps[0] * k);
                let term = if c.binary { (with.mul)(x, at(b, from[1] + row[1] + steps[1] * k)) } else { x };
                acc = (with.add)(acc, term);
            }
        });
        acc
    };
    let steps = [kept.inner_stride(0), kept.inner_stride(1)];
    par::parts(out, |first, part| {
        kept.runs(first..first + part.len(), |start, len, row| {
            for (k, y) in part.iter_mut().skip(start - first).take(len).enumerate() {
                *y = one([0, 1].map(|x| row[x] + steps[x] * k as isize));
            }
        });
    });
}

/// The elements of `x` in the order of `nest`.
fn packed<T: Copy>(x: &[T], nest: &Nest) -> Vec<T> {
    let mut out = Vec::with_capacity(nest.elements());
    let step = nest.inner_stride(0);
    nest.runs(0..nest.elements(), |_, len, at| {
        let element = |k: usize| x.get((at[0] + step * k as isize).unsigned_abs());
        out.extend((0..len).map_while(element).copied());
    });
    out
}

fn multiply<T: Real>(m: &Matrices, [a, b]: [&[T]; 2], out: &mut [T]) -> Result<(), KernelError> {
    let [batch, rows, cols, k] = m.sizes();
    let place = |x, layout: Layout, row: usize| match layout.direct {
        Some(distances) => (Cow::Borrowed(x), distances),
        None => (Cow::Owned(packed(x, &layout.nest)), [row, 1]),
    };
    let (a, a_distances) = place(a, m.layout(0), k);
    let (b, b_distances) = place(b, m.layout(1), cols);
    let part = |x, i: usize, len: usize, [row, col]: [usize; 2]| -> Mat<'_, T> {
        let x: &[T] = x;
        Mat { data: x.get(i * len..(i + 1) * len).unwrap_or(&[]), row, col }
    };
    let result = m.result();
    let mut own = Vec::new();
    let direct = result.is_dense(0);
    let c: &mut [T] = if direct {
        out
    } else {
        own.resize(result.elements(), T::ZERO);
        &mut own
    };
    for (i, c) in c.chunks_mut((rows * cols).max(1)).enumerate().take(batch) {
        let (a, b) = (part(&a, i, rows * k, a_distances), part(&b, i, k * cols, b_distances));
        product([rows, cols, k], a, b, c, cols, false, Threads::All)?;
    }
    if !direct {
        let step = result.inner_stride(0);
        result.runs(0..own.len(), |start, len, at| {
            for k in 0..len {
                let to = (at[0] + step * k as isize).unsigned_abs();
                if let (Some(y), Some(v)) = (out.get_mut(to), own.get(start + k)) {
                    *y = *v;
                }
            }
        });
    }
    Ok(())
}

impl Run {
    fn run<T: bytemuck::Pod>(
        &self,
        inputs: &[&[T]],
        out: &mut [T],
        mut contract: impl FnMut(&Contraction, [&[T]; 2], &mut [T]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let mut before: Vec<T> = Vec::new();
        for (i, step) in self.steps.iter().enumerate() {
            let operand = |origin: Origin| match origin {
                Origin::Input(i) => inputs.get(i).copied().unwrap_or(&[]),
                Origin::Before => before.as_slice(),
            };
            let operands = [operand(step.a), step.b.map_or(&[][..], operand)];
            if i + 1 == self.steps.len() {
                contract(&step.contraction, operands, out)?;
            } else {
                let mut next = vec![T::zeroed(); step.contraction.elements()];
                contract(&step.contraction, operands, &mut next)?;
                before = next;
            }
        }
        Ok(())
    }

    /// The call over numbers without matrix products.
    pub(super) fn numbers<T: Number>(&self, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
        let inputs: Result<Vec<&[T]>, KernelError> =
            (0..self.lens.len()).map(|i| args.read::<T>(i)).collect();
        let out = args.take_write::<T>(self.lens.len())?;
        let with = Arithmetic { zero: T::ZERO, add: T::add, mul: T::mul };
        self.run(&inputs?, out, |c, operands, out| {
            contract(c, operands, out, &with);
            Ok(())
        })
    }
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let (out, inputs) = io.output(0, self.output)?;
        let inputs: Result<Vec<&[T]>, KernelError> =
            self.lens.iter().enumerate().map(|(i, len)| inputs.get(i, *len)).collect();
        let with = Arithmetic { zero: T::ZERO, add: |a, b| a + b, mul: |a, b| a * b };
        Run::run(self, &inputs?, out, |c, operands, out| match c.matrices() {
            Some(m) => multiply(&m, operands, out),
            None => {
                contract(c, operands, out, &with);
                Ok(())
            }
        })
    }
}
