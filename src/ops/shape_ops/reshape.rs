//! Reshape, Flatten, Squeeze and Unsqueeze: the same elements under another shape.

use std::sync::Arc;

use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::movement::moves;
use crate::ops::movement::region::{self, Piece};
use crate::ops::pointwise::identity::copy_of;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator};
use crate::shape::{Shape, normalize_axis};

/// The parts of an operator whose output is input 0 under another shape.
macro_rules! reshapes {
    ($name:literal) => {
        fn name(&self) -> &'static str {
            $name
        }

        fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
            let inputs = 1 + self.value_inputs().len();
            cx.expect_counts(1..=inputs, 1..=1)?;
            Ok(vec![TensorInfo::new(cx.dtype(0)?, self.shape(cx)?)])
        }

        fn quantized_move(&self, _: &OpCx) -> bool {
            true
        }

        fn alias(&self, _: &OpCx) -> Option<usize> {
            Some(0)
        }

        moves!();
    };
}

macro_rules! copies {
    ($($op:ty)*) => {$(
        impl $op {
            fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
                copy_of(cx, 0, 0)
            }
        }
    )*};
}

copies!(Reshape Flatten Squeeze Unsqueeze);

/// The shape that input 1 holds: 0 keeps the input's size there, -1 (once) takes what is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reshape {
    /// 0 means a size of 0.
    pub allow_zero: bool,
    /// The shape, where it is an attribute (to opset 4).
    pub fixed: Option<Vec<i64>>,
}

pub(super) fn read_reshape(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let allow_zero = opset >= 14 && attrs.flag("allowzero", false)?;
    let fixed = if opset < 5 { attrs.ints_opt("shape")? } else { None };
    Ok(Arc::new(Reshape { allow_zero, fixed }))
}

impl Reshape {
    fn shape(&self, cx: &OpCx) -> Result<Shape, OpError> {
        let x = cx.shape(0)?;
        let wanted = match &self.fixed {
            Some(shape) => shape.clone(),
            None => cx.need_i64s(1)?,
        };
        let fail = |problem: String| OpError::Value { input: 1, problem };
        let mut dims = Vec::with_capacity(wanted.len());
        let mut rest = None;
        for (i, &size) in wanted.iter().enumerate() {
            dims.push(match size {
                -1 if rest.replace(i).is_some() => {
                    return Err(fail(format!("shape {wanted:?} has more than one -1")));
                }
                -1 => 1,
                0 if !self.allow_zero => *x.get(i).ok_or_else(|| {
                    fail(format!(
                        "shape {wanted:?} keeps dimension {i} of a tensor of {} dimensions",
                        x.rank()
                    ))
                })?,
                size => usize::try_from(size)
                    .map_err(|_| fail(format!("shape {wanted:?} has the impossible size {size}")))?,
            });
        }
        let partial = Shape::new(dims.clone())?;
        if let Some(i) = rest {
            // With another size of 0, -1 could be any number; it becomes 0.
            let known = partial.elements();
            let left = x.elements().checked_div(known).unwrap_or(0);
            if left.checked_mul(known) != Some(x.elements()) {
                return Err(fail(format!("shape {wanted:?} does not divide the {} elements", x.elements())));
            }
            dims[i] = left;
        }
        let shape = Shape::new(dims)?;
        if shape.elements() != x.elements() {
            let problem =
                format!("shape {shape} has {} elements, the tensor {}", shape.elements(), x.elements());
            return Err(fail(problem));
        }
        Ok(shape)
    }
}

impl Operator for Reshape {
    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    reshapes!("Reshape");
}

/// Two dimensions: those before `axis` and those from it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flatten {
    /// The first dimension of the second part; negative ones are counted from the end.
    pub axis: i64,
}

pub(super) fn read_flatten(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Flatten { axis: attrs.int("axis", 1)? }))
}

impl Flatten {
    fn shape(&self, cx: &OpCx) -> Result<Shape, OpError> {
        let x = cx.shape(0)?;
        // The rank itself is an axis here: it leaves 1 for the second part.
        let axis = if self.axis == x.rank() as i64 { x.rank() } else { normalize_axis(self.axis, x.rank())? };
        let (outer, inner) = x.split_at(axis);
        Ok(Shape::new([outer.iter().product::<usize>(), inner.iter().product()])?)
    }
}

impl Operator for Flatten {
    reshapes!("Flatten");
}

/// Where the axes of Squeeze and Unsqueeze come from.
fn axes(own: &Option<Vec<i64>>, cx: &OpCx) -> Result<Option<Vec<i64>>, OpError> {
    match own {
        Some(axes) => Ok(Some(axes.clone())),
        None => cx.need_i64s_opt(1),
    }
}

/// Without the dimensions of size 1 that are named, or without any of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Squeeze {
    /// Axes, where they are an attribute; else they are input 1.
    pub axes: Option<Vec<i64>>,
}

pub(super) fn read_squeeze(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Squeeze { axes: if opset < 13 { attrs.ints_opt("axes")? } else { None } }))
}

impl Squeeze {
    fn shape(&self, cx: &OpCx) -> Result<Shape, OpError> {
        let x = cx.shape(0)?;
        let Some(axes) = axes(&self.axes, cx)? else {
            return Ok(Shape::new(x.iter().copied().filter(|d| *d != 1).collect::<Vec<_>>())?);
        };
        let axes: Vec<usize> = axes.iter().map(|&a| x.axis(a)).collect::<Result<_, _>>()?;
        if let Some(axis) = axes.iter().find(|a| x[**a] != 1) {
            return Err(cx.shape_error(0, format!("size 1 along axis {axis}")));
        }
        let kept = x.iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, d)| *d);
        Ok(Shape::new(kept.collect::<Vec<_>>())?)
    }
}

impl Operator for Squeeze {
    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    reshapes!("Squeeze");
}

/// With new dimensions of size 1 at the places that are named in the output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unsqueeze {
    /// Axes, where they are an attribute; else they are input 1.
    pub axes: Option<Vec<i64>>,
}

pub(super) fn read_unsqueeze(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    if opset >= 13 {
        return Ok(Arc::new(Unsqueeze::default()));
    }
    let axes = attrs.ints_opt("axes")?.ok_or_else(|| attrs.error("axes", "is missing"))?;
    Ok(Arc::new(Unsqueeze { axes: Some(axes) }))
}

impl Unsqueeze {
    fn shape(&self, cx: &OpCx) -> Result<Shape, OpError> {
        let x = cx.shape(0)?;
        let axes = axes(&self.axes, cx)?.ok_or(OpError::MissingInput { input: 1 })?;
        let rank = x.rank() + axes.len();
        if rank > crate::limits::MAX_RANK {
            return Err(crate::shape::ShapeError::Rank { rank, limit: crate::limits::MAX_RANK }.into());
        }
        let mut new = vec![false; rank];
        for &axis in &axes {
            if std::mem::replace(&mut new[normalize_axis(axis, rank)?], true) {
                return Err(OpError::Value {
                    input: 1,
                    problem: format!("axes {axes:?} name a place twice"),
                });
            }
        }
        let mut old = x.iter().copied();
        let dims: Vec<usize> = new.iter().map(|new| if *new { 1 } else { old.next().unwrap_or(1) }).collect();
        Ok(Shape::new(dims)?)
    }
}

impl Operator for Unsqueeze {
    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    reshapes!("Unsqueeze");
}
