//! Scatter, ScatterElements and ScatterND: a copy of a tensor with elements replaced or reduced by updates.

use std::sync::Arc;

use super::gather_elements::check_lines;
use super::positions::{INDEX_TYPES, Tuples, index_words, mapped, position};
use super::scatter_device;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::movement::region::signed_strides;
use crate::ops::pointwise::number::{Number, with_number};
use crate::ops::strided::Nest;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, par};

/// The effect of an update on its element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Replaces it; of several updates of one element the last one stays on the CPU, any one on a device.
    #[default]
    None,
    /// Is added.
    Add,
    /// Is multiplied with it.
    Mul,
    /// The smaller one stays.
    Min,
    /// The larger one stays.
    Max,
}

const REDUCTIONS: &[(&str, Reduction)] = &[
    ("none", Reduction::None),
    ("add", Reduction::Add),
    ("mul", Reduction::Mul),
    ("min", Reduction::Min),
    ("max", Reduction::Max),
];

/// How indices name elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Each index one of its own line along this axis.
    Elements(i64),
    /// Each tuple along the last axis a slice.
    Tuples,
}

/// Input 0 with the updates of input 2 at the places that input 1 names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scatter {
    /// How input 1 names places.
    pub naming: Naming,
    /// The effect of updates.
    pub reduction: Reduction,
}

pub(super) fn read_elements(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let naming = Naming::Elements(attrs.int("axis", 0)?);
    Ok(Arc::new(Scatter { naming, reduction: reduction(attrs, opset)? }))
}

pub(super) fn read_nd(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Scatter { naming: Naming::Tuples, reduction: reduction(attrs, opset)? }))
}

fn reduction(attrs: &AttrReader<'_>, opset: i64) -> Result<Reduction, OpError> {
    if opset < 16 {
        return Ok(Reduction::None);
    }
    Ok(attrs.choice("reduction", Reduction::None, REDUCTIONS)?)
}

/// Lines of the data and the updates of each.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    /// Where lines begin in the data, the indices and the updates.
    pub(super) nest: Nest,
    /// Updates of each line.
    pub(super) updates: usize,
    /// Positions on each line.
    pub(super) size: usize,
    /// From one position, index and update of a line to the next.
    pub(super) steps: [usize; 3],
}

impl Scatter {
    fn tuples(cx: &OpCx) -> Result<Tuples, OpError> {
        let x = cx.shape(0)?;
        Tuples::new(x, cx.shape(1)?, 0)
            .ok_or_else(|| cx.shape_error(1, format!("tuples of at most {} indices", x.rank())))
    }

    fn lines(&self, cx: &OpCx) -> Result<Lines, OpError> {
        match self.naming {
            Naming::Elements(axis) => {
                let (x, i) = (cx.shape(0)?, cx.shape(1)?);
                let axis = x.axis(axis)?;
                let (mut data, mut own) = (signed_strides(x), signed_strides(i));
                let mut dims = i.to_vec();
                let updates = dims.remove(axis);
                let steps = [data.remove(axis), own.remove(axis)].map(isize::unsigned_abs);
                let nest = Nest::new(&dims, &[data, own.clone(), own]);
                Ok(Lines { nest, updates, size: x[axis], steps: [steps[0], steps[1], steps[1]] })
            }
            Naming::Tuples => {
                let tuples = Self::tuples(cx)?;
                let nest = Nest::new(&[tuples.inner], &[vec![1], vec![0], vec![1]]);
                let steps = [tuples.inner, 1, tuples.inner];
                Ok(Lines { nest, updates: tuples.count, size: tuples.batch_slices, steps })
            }
        }
    }
}

impl Lines {
    /// Calls `f` with the offsets of every update in the data and in the updates, those of one element in
    /// their order.
    fn each(&self, at: &[usize], mut f: impl FnMut(usize, usize)) {
        let inner = self.nest.inner_strides::<3>();
        let mut one = |begin: &[isize], line: isize, u: usize| {
            let start = |k: usize| (begin[k] + inner[k] * line).unsigned_abs();
            if let Some(&p) = at.get(start(1) + u * self.steps[1]) {
                f(start(0) + p * self.steps[0], start(2) + u * self.steps[2]);
            }
        };
        let lines = self.nest.elements();
        if self.steps[2] == 1 {
            self.nest.runs(0..lines, |_, len, begin| {
                (0..len as isize).for_each(|line| (0..self.updates).for_each(|u| one(begin, line, u)));
            });
        } else {
            for u in 0..self.updates {
                self.nest.runs(0..lines, |_, len, begin| {
                    (0..len as isize).for_each(|line| one(begin, line, u));
                });
            }
        }
    }

    fn scatter<T: bytemuck::Pod + Send + Sync>(
        &self,
        args: &mut NativeArgs<'_, '_>,
        at: &[usize],
        f: impl Fn(T, T) -> T,
    ) -> Result<(), KernelError> {
        let (x, updates) = (args.read::<T>(0)?, args.read::<T>(2)?);
        let y = args.take_write::<T>(3)?;
        if x.len() != y.len() {
            let what = format!("{} elements for an output of {}", x.len(), y.len());
            return Err(KernelError::Value { what });
        }
        par::parts(y, |start, part| {
            if let Some(x) = x.get(start..start + part.len()) {
                part.copy_from_slice(x);
            }
        });
        let slice = self.nest.elements();
        let steps = self.nest.inner_strides::<3>();
        if slice > 1 && self.nest.rank() == 1 && steps == [1, 0, 1] && self.steps[2] == slice {
            // Whole slices, one update after the other.
            for (&at, updates) in at.iter().zip(updates.chunks_exact(slice)) {
                if let Some(y) = y.get_mut(at * self.steps[0]..).and_then(|y| y.get_mut(..slice)) {
                    y.iter_mut().zip(updates).for_each(|(y, u)| *y = f(*y, *u));
                }
            }
            return Ok(());
        }
        self.each(at, |to, from| {
            if let (Some(y), Some(&u)) = (y.get_mut(to), updates.get(from)) {
                *y = f(*y, u);
            }
        });
        Ok(())
    }

    fn reduce<T: Number>(
        &self,
        args: &mut NativeArgs<'_, '_>,
        at: &[usize],
        reduction: Reduction,
    ) -> Result<(), KernelError> {
        match reduction {
            Reduction::None => self.scatter::<T>(args, at, |_, u| u),
            Reduction::Add => self.scatter(args, at, T::add),
            Reduction::Mul => self.scatter(args, at, T::mul),
            Reduction::Min => self.scatter(args, at, T::least),
            Reduction::Max => self.scatter(args, at, T::greatest),
        }
    }
}

impl Operator for Scatter {
    fn name(&self) -> &'static str {
        match self.naming {
            Naming::Elements(_) => "ScatterElements",
            Naming::Tuples => "ScatterND",
        }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=3, 1..=1)?;
        cx.dtype_of(1, INDEX_TYPES)?;
        let x = cx.input(0)?;
        cx.expect_dtype(2, x.dtype)?;
        let updates = match self.naming {
            Naming::Elements(axis) => {
                check_lines(cx, 1, axis)?;
                cx.shape(1)?.to_vec()
            }
            Naming::Tuples => {
                let tuples = Self::tuples(cx)?;
                let i = cx.shape(1)?;
                [&i[..i.rank() - 1], &x.shape[tuples.sizes.len()..]].concat()
            }
        };
        if cx.shape(2)?.dims() != updates {
            return Err(cx.shape_error(2, format!("{updates:?}")));
        }
        if self.reduction != Reduction::None {
            cx.dtype_of(0, DType::NUMBERS)?;
        }
        Ok(vec![x.clone()])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let updates = cx.input_opt(2).map_or(0, |u| u.elements() as u64);
        Cost { flops: updates, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (lines, reduction, index_type) = (self.lines(cx)?, self.reduction, cx.dtype(1)?);
        let tuples = match self.naming {
            Naming::Elements(_) => None,
            Naming::Tuples => Some(Self::tuples(cx)?),
        };
        let positions = move |args: &NativeArgs<'_, '_>| match &tuples {
            None => mapped(args, 1, index_type, |i| position(i, lines.size)),
            Some(tuples) => tuples.positions(args, 1, index_type),
        };
        let lines = self.lines(cx)?;
        with_number!(cx.dtype(0)?, T => Ok(NativeKernel::new(self.name(), move |args| {
            lines.reduce::<T>(args, &positions(args)?, reduction)
        })), else Ok(NativeKernel::new(self.name(), move |args| {
            lines.scatter::<u8>(args, &positions(args)?, |_, u| u)
        })))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let x = cx.input(0)?;
        lower.copy((Operand::Input(0), 0), (Operand::Output(0), 0), x.bytes() as u64);
        if cx.input(2)?.elements() == 0 || x.elements() == 0 {
            return Ok(());
        }
        let lines = self.lines(cx)?;
        let (at, words) = match self.naming {
            Naming::Elements(_) => (Operand::Input(1), index_words(cx.dtype(1)?)),
            Naming::Tuples => (Self::tuples(cx)?.lower(lower, Operand::Input(1), cx.dtype(1)?)?, 1),
        };
        let args = [at, Operand::Input(2), Operand::Output(0)];
        scatter_device::lower(lower, &lines, self.reduction, x.dtype, args, words)
    }
}
