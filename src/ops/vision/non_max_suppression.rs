//! NonMaxSuppression: the best boxes of every class that do not overlap better ones.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, OpCx, OpError, Operator, par};

/// Boxes `[n, boxes, 4]`, scores `[n, classes, boxes]`, then optionally how many boxes of a class are taken at
/// most, how much (intersection over union) they may overlap, and the score they must exceed; the output is
/// `[taken, 3]` of image, class and box, best ones of each class first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NonMaxSuppression {
    /// Whether a box is its centre and its size; else it is two opposite corners (y, x).
    pub center_point_box: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(NonMaxSuppression { center_point_box: attrs.flag("center_point_box", false)? }))
}

/// A box by its bounds.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    low: [f32; 2],
    high: [f32; 2],
}

impl Bounds {
    fn new(v: &[f32], center: bool) -> Bounds {
        if center {
            let (x, y, w, h) = (v[0], v[1], v[2] / 2.0, v[3] / 2.0);
            return Bounds { low: [x - w, y - h], high: [x + w, y + h] };
        }
        Bounds { low: [v[0].min(v[2]), v[1].min(v[3])], high: [v[0].max(v[2]), v[1].max(v[3])] }
    }

    fn area(&self) -> f32 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// Whether intersection over union is above `limit`.
    fn overlaps(&self, o: &Bounds, limit: f32) -> bool {
        let side = |d: usize| self.high[d].min(o.high[d]) - self.low[d].max(o.low[d]);
        let (a, b) = (side(0), side(1));
        if !(a > 0.0 && b > 0.0) {
            return false;
        }
        let (both, own, other) = (a * b, self.area(), o.area());
        let union = own + other - both;
        own > 0.0 && other > 0.0 && union > 0.0 && both / union > limit
    }
}

/// What is taken of a class.
#[derive(Clone, Copy, Debug)]
struct Limits {
    boxes: usize,
    overlap: f32,
    score: Option<f32>,
}

/// The boxes of one class that are taken, best ones first.
fn select(boxes: &[Bounds], scores: &[f32], limits: &Limits) -> Vec<usize> {
    let fits = |i: &usize| limits.score.is_none_or(|s| scores[*i] > s);
    let mut order: Vec<usize> = (0..boxes.len()).filter(fits).collect();
    // Stable: of equal scores the first box.
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let mut taken: Vec<usize> = Vec::new();
    for i in order {
        if taken.len() >= limits.boxes {
            break;
        }
        if !taken.iter().any(|t| boxes[i].overlaps(&boxes[*t], limits.overlap)) {
            taken.push(i);
        }
    }
    taken
}

impl NonMaxSuppression {
    fn compute(&self, cx: &OpCx) -> Result<Tensor, OpError> {
        cx.expect_counts(2..=5, 1..=1)?;
        cx.expect_dtype(0, DType::F32)?;
        cx.expect_dtype(1, DType::F32)?;
        let &[batch, count, 4] = cx.shape(0)?.dims() else {
            return Err(cx.shape_error(0, "[batch, boxes, 4]"));
        };
        let classes = match *cx.shape(1)?.dims() {
            [n, classes, m] if n == batch && m == count => classes,
            _ => return Err(cx.shape_error(1, format!("[{batch}, classes, {count}]"))),
        };
        let one = |i: usize| -> Result<Option<f32>, OpError> {
            if !cx.has(i) {
                return Ok(None);
            }
            Ok(cx.need_value(i)?.to_f32s()?.first().copied())
        };
        let most = cx.need_i64s_opt(2)?.and_then(|v| v.first().copied()).unwrap_or(0);
        let limits = Limits {
            boxes: usize::try_from(most).unwrap_or(0),
            overlap: one(3)?.unwrap_or(0.0),
            score: one(4)?,
        };
        let boxes: Vec<Bounds> = cx
            .need_value(0)?
            .as_slice::<f32>()?
            .chunks(4)
            .map(|v| Bounds::new(v, self.center_point_box))
            .collect();
        let scores = cx.need_value(1)?.as_slice::<f32>()?;
        let mut taken: Vec<Vec<i64>> = vec![Vec::new(); batch * classes];
        // Every box is sorted, then compared with all that are taken.
        let work = scores.len().saturating_mul(16 + limits.boxes.min(count));
        par::each(&mut taken, work, |k| {
            let image = k / classes;
            let boxes = &boxes[image * count..][..count];
            let taken = select(boxes, &scores[k * count..][..count], &limits);
            let row = |i| [image as i64, (k % classes) as i64, i as i64];
            taken.into_iter().flat_map(row).collect()
        });
        let all = taken.concat();
        Ok(Tensor::new([all.len() / 3, 3], &all)?)
    }
}

impl Operator for NonMaxSuppression {
    fn name(&self) -> &'static str {
        "NonMaxSuppression"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        Ok(vec![self.compute(cx)?.info().clone()])
    }

    fn cpu(&self, _cx: &OpCx) -> Result<NativeKernel, OpError> {
        Err(OpError::unsupported("NonMaxSuppression as a kernel: it is computed before the run"))
    }

    fn host(&self, cx: &OpCx) -> Option<Result<Vec<Tensor>, OpError>> {
        Some(self.compute(cx).map(|t| vec![t]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Fact;

    fn run(center: bool, inputs: &[Option<Tensor>]) -> Result<Vec<i64>, OpError> {
        let op = NonMaxSuppression { center_point_box: center };
        let cx = OpCx::for_infer(inputs.iter().map(|t| t.clone().map(Fact::known)).collect(), 1);
        let out = op.host(&cx).unwrap()?.remove(0);
        assert_eq!(op.infer(&cx)?, [out.info().clone()]);
        Ok(out.to_i64s()?)
    }

    fn boxes() -> Tensor {
        let corners =
            [[0.0f32, 0.0, 1.0, 1.0], [1.0, 1.1, 0.0, 0.1], [0.0, 5.0, 1.0, 6.0], [0.0, 0.0, 0.0, 0.0]];
        Tensor::new([1, 4, 4], corners.as_flattened()).unwrap()
    }

    #[test]
    fn better_boxes_suppress_those_they_overlap() {
        let scores = Tensor::new([1, 2, 4], &[0.5f32, 0.9, 0.5, 0.1, 0.3, 0.3, 0.2, f32::NAN]).unwrap();
        let all = |overlap: f32, most: i64, score: Option<f32>| {
            let inputs = [
                Some(boxes()),
                Some(scores.clone()),
                Some(Tensor::from_i64s(&[most])),
                Some(Tensor::scalar(overlap)),
                score.map(Tensor::scalar),
            ];
            run(false, &inputs).unwrap()
        };
        assert_eq!(all(0.5, 9, Some(0.15)), [0, 0, 1, 0, 0, 2, 0, 1, 0, 0, 1, 2]);
        assert_eq!(all(0.9, 2, Some(0.15)), [0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 1, 1]);
        assert_eq!(all(0.5, 1, Some(0.4)), [0, 0, 1]);
        assert_eq!(all(0.5, 0, None), [0i64; 0]);
        assert_eq!(all(0.5, -4, None), [0i64; 0]);
        assert_eq!(all(0.5, i64::MAX, None).len(), 18);
    }

    #[test]
    fn centres_and_sizes_are_boxes_too() {
        let centres = [[0.5f32, 0.5, 1.0, 1.0], [0.6, 0.5, 1.0, 1.0], [9.0, 0.5, 1.0, 1.0]];
        let inputs = [
            Some(Tensor::new([1, 3, 4], centres.as_flattened()).unwrap()),
            Some(Tensor::new([1, 1, 3], &[0.1f32, 0.2, 0.3]).unwrap()),
            Some(Tensor::from_i64s(&[3])),
            Some(Tensor::scalar(0.5f32)),
        ];
        assert_eq!(run(true, &inputs).unwrap(), [0, 0, 2, 0, 0, 1]);
    }

    #[test]
    fn values_are_needed_and_shapes_checked() {
        let op = NonMaxSuppression::default();
        let scores = Tensor::new([1, 1, 4], &[0.0f32; 4]).unwrap();
        let known = Some(Fact::known(scores.clone()));
        let cx = OpCx::for_infer(vec![Some(Fact::of(boxes().info().clone())), known], 1);
        assert!(matches!(op.infer(&cx), Err(OpError::NeedsValue { input: 0 })));
        assert!(
            run(
                false,
                &[
                    Some(boxes()),
                    Some(scores.reshaped(crate::shape::Shape::new([1, 2, 2]).unwrap()).unwrap())
                ]
            )
            .is_err()
        );
        assert!(run(false, &[Some(boxes())]).is_err());
    }
}
