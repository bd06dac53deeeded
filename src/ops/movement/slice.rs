//! Slice: every step-th element between two bounds of each axis.

use std::sync::Arc;

use super::moves;
use super::region::{self, Block, Piece, Source, signed_strides};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator, ViewStep};
use crate::shape::{Shape, normalize_axis};

/// Takes a part of its input. Bounds are attributes before opset 10 and inputs 1 to 4 from then on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Starts, ends and axes, where they are attributes.
    pub bounds: Option<(Vec<i64>, Vec<i64>, Option<Vec<i64>>)>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    if opset >= 10 {
        return Ok(Arc::new(Slice::default()));
    }
    let starts = attrs.ints_opt("starts")?.ok_or_else(|| attrs.error("starts", "is missing"))?;
    let ends = attrs.ints_opt("ends")?.ok_or_else(|| attrs.error("ends", "is missing"))?;
    Ok(Arc::new(Slice { bounds: Some((starts, ends, attrs.ints_opt("axes")?)) }))
}

/// One axis of a slice: the first element, the step, how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    start: usize,
    step: isize,
    len: usize,
}

/// ONNX's rule: bounds beyond the axis are clamped, negative ones count from the end.
fn axis(size: usize, start: i64, end: i64, step: i64) -> Axis {
    let n = size as i64;
    let from_end = |v: i64| if v < 0 { v.saturating_add(n) } else { v };
    let (start, end) = if step > 0 {
        (from_end(start).clamp(0, n), from_end(end).clamp(0, n))
    } else {
        (from_end(start).clamp(-1, n - 1), from_end(end).clamp(-1, n - 1))
    };
    let distance = if step > 0 { end - start } else { start - end };
    let len = if distance <= 0 { 0 } else { (distance as u64).div_ceil(step.unsigned_abs()) as usize };
    Axis {
        start: start.max(0) as usize,
        step: step.clamp(isize::MIN as i64, isize::MAX as i64) as isize,
        len,
    }
}

impl Slice {
    fn axes(&self, cx: &OpCx) -> Result<Vec<Axis>, OpError> {
        let x = cx.shape(0)?;
        let (starts, ends, axes) = match &self.bounds {
            Some(bounds) => bounds.clone(),
            None => (cx.need_i64s(1)?, cx.need_i64s(2)?, cx.need_i64s_opt(3)?),
        };
        let steps = cx.need_i64s_opt(4)?.unwrap_or_else(|| vec![1; starts.len()]);
        let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
        if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
            let problem = format!(
                "{} starts, {} ends, {} axes and {} steps must be equally many",
                starts.len(),
                ends.len(),
                axes.len(),
                steps.len()
            );
            return Err(OpError::Value { input: 1, problem });
        }
        let mut out: Vec<Axis> = x.iter().map(|&len| Axis { start: 0, step: 1, len }).collect();
        let mut seen = vec![false; x.rank()];
        for (k, &a) in axes.iter().enumerate() {
            let a = normalize_axis(a, x.rank())?;
            if std::mem::replace(&mut seen[a], true) {
                return Err(OpError::Value { input: 3, problem: format!("axis {a} is given twice") });
            }
            if steps[k] == 0 {
                return Err(OpError::Value { input: 4, problem: "a step of 0".to_owned() });
            }
            out[a] = axis(x[a], starts[k], ends[k], steps[k]);
        }
        Ok(out)
    }

    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let (x, y) = (cx.shape(0)?, &cx.output(0)?.shape);
        let axes = self.axes(cx)?;
        let strides = signed_strides(x);
        let block = Block {
            dims: y.to_vec(),
            src_strides: axes.iter().zip(&strides).map(|(a, s)| a.step.saturating_mul(*s)).collect(),
            dst_strides: signed_strides(y),
            src_offset: axes.iter().zip(&strides).map(|(a, s)| a.start * s.unsigned_abs()).sum(),
            dst_offset: 0,
        };
        Ok(block.piece(Source::Input(0), 0).into_iter().collect())
    }
}

impl Operator for Slice {
    fn name(&self) -> &'static str {
        "Slice"
    }

    fn view_step(&self, cx: &OpCx, _: usize) -> Option<ViewStep> {
        let axes = self.axes(cx).ok()?;
        // A step of one place is none.
        let forward = axes.iter().all(|a| a.step == 1 || a.len == 1);
        if forward {
            return Some(ViewStep::Part(axes.iter().map(|a| a.start..a.start + a.len).collect()));
        }
        let x = cx.shape(0).ok()?;
        let is_whole = |(a, &len): (&Axis, &usize)| *a == Axis { start: 0, step: 1, len };
        let mut parts = axes.iter().zip(x.iter()).enumerate().filter(|(_, axis)| !is_whole(*axis));
        let (Some((axis, (a, _))), None) = (parts.next(), parts.next()) else { return None };
        let step = usize::try_from(a.step).ok()?;
        Some(ViewStep::Every { axis, start: a.start, step })
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1, 2, 3, 4]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=5, 1..=1)?;
        let dims: Vec<usize> = self.axes(cx)?.iter().map(|a| a.len).collect();
        Ok(vec![TensorInfo::new(cx.dtype(0)?, Shape::new(dims)?)])
    }

    fn alias(&self, cx: &OpCx) -> Option<usize> {
        let x = cx.shape(0).ok()?;
        let whole = self
            .axes(cx)
            .ok()?
            .iter()
            .zip(x.iter())
            .all(|(a, &n)| *a == Axis { start: 0, step: 1, len: n } || (n == 1 && a.len == 1));
        whole.then_some(0)
    }

    moves!(alike);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_follow_numpy() {
        assert_eq!(axis(10, 1, 9, 3), Axis { start: 1, step: 3, len: 3 });
        assert_eq!(axis(10, -3, i64::MAX, 1), Axis { start: 7, step: 1, len: 3 });
        assert_eq!(axis(10, i64::MAX, i64::MIN, -1), Axis { start: 9, step: -1, len: 10 });
        assert_eq!(axis(10, 8, 2, -4), Axis { start: 8, step: -4, len: 2 });
        assert_eq!(axis(10, 5, 5, 1).len, 0);
        assert_eq!(axis(0, 0, 1, 1).len, 0);
        assert_eq!(axis(0, -1, 0, -1).len, 0);
        assert_eq!(axis(3, 0, 3, i64::MAX).len, 1);
    }
}
