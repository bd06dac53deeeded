//! Unique: the different elements, or slices along an axis, of a tensor.

use std::cmp::Ordering;
use std::sync::Arc;

use super::order::Sortable;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::ops::norm::Along;
use crate::ops::pointwise::number::with_number;
use crate::ops::{AttrReader, OpCx, OpError, Operator};

/// Outputs: the different slices; for each the position of its first occurrence; for each slice of the input
/// the position of its equal in output 0; how often each occurs. All but the first are int64.
/// Their number depends on the elements, so the host computes them. NaNs are equal here, and
/// above all numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unique {
    /// The axis, negative ones counted from the end; without one the data is taken as a vector.
    pub axis: Option<i64>,
    /// Whether the result is in ascending order (of slices: in that of their first difference), rather than
    /// in the order of first occurrences.
    pub sorted: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Unique { axis: attrs.int_opt("axis")?, sorted: attrs.flag("sorted", true)? }))
}

/// Equal slices of a tensor.
struct Groups {
    /// The slice of each first occurrence, in the order of the result.
    first: Vec<usize>,
    /// For each slice its group.
    of: Vec<usize>,
    /// Slices of each group.
    counts: Vec<i64>,
}

impl Unique {
    fn along(&self, x: &Tensor) -> Result<Along, OpError> {
        let shape = x.shape();
        let Some(axis) = self.axis else {
            return Ok(Along { outer: 1, len: shape.elements(), inner: 1 });
        };
        let axis = shape.axis(axis)?;
        Ok(Along::axes(shape, axis, axis + 1))
    }

    fn groups_of<T: Sortable>(&self, x: &Tensor, along: Along) -> Result<Groups, OpError> {
        let words: Vec<_> = x.as_slice::<T>()?.iter().map(|v| v.word()).collect();
        Ok(self.groups(&words, along))
    }

    /// Groups of the slices of elements that order as `words` do. Compiled for two types of words, not for each of elements.
    fn groups<W: Ord>(&self, words: &[W], Along { outer, len, inner }: Along) -> Groups {
        let row = |o: usize, s: usize| words.get((o * len + s) * inner..(o * len + s + 1) * inner);
        let compare = |a: usize, b: usize| {
            let mut rows = (0..outer).map(|o| row(o, a).cmp(&row(o, b)));
            rows.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        };
        let mut order: Vec<usize> = (0..len).collect();
        // Stable, so that the first of equal slices is the first in the input.
        if outer * inner == 1 {
            order.sort_by_key(|&s| words.get(s));
        } else {
            order.sort_by(|&a, &b| compare(a, b));
        }
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for s in order {
            match groups.last_mut() {
                Some(group) if compare(group[0], s).is_eq() => group.push(s),
                _ => groups.push(vec![s]),
            }
        }
        if !self.sorted {
            groups.sort_by_key(|g| g[0]);
        }
        let mut of = vec![0; len];
        for (g, group) in groups.iter().enumerate() {
            group.iter().for_each(|&s| of[s] = g);
        }
        Groups {
            first: groups.iter().map(|g| g[0]).collect(),
            of,
            counts: groups.iter().map(|g| g.len() as i64).collect(),
        }
    }

    fn outputs(&self, x: &Tensor, along: Along, groups: Groups) -> Result<Vec<Tensor>, OpError> {
        let slice = along.inner * x.dtype().bytes();
        let mut picked = Vec::with_capacity(along.outer * groups.first.len() * slice);
        for o in 0..along.outer {
            for s in &groups.first {
                let from = (o * along.len + s) * slice;
                picked.extend_from_slice(x.bytes().get(from..from + slice).unwrap_or(&[]));
            }
        }
        let mut dims = x.shape().to_vec();
        match self.axis {
            None => dims = vec![groups.first.len()],
            Some(axis) => dims[x.shape().axis(axis)?] = groups.first.len(),
        }
        let info = TensorInfo::new(x.dtype(), crate::shape::Shape::new(dims)?);
        let longs = |v: &[usize]| Tensor::from_i64s(&v.iter().map(|&i| i as i64).collect::<Vec<i64>>());
        Ok(vec![
            Tensor::from_bytes(info, &picked)?,
            longs(&groups.first),
            longs(&groups.of),
            Tensor::from_i64s(&groups.counts),
        ])
    }

    fn compute(&self, cx: &OpCx) -> Result<Vec<Tensor>, OpError> {
        cx.expect_counts(1..=1, 1..=4)?;
        cx.dtype_of(0, &DType::COMPUTE)?;
        let x = cx.need_value(0)?;
        let along = self.along(x)?;
        let groups = with_number!(x.dtype(), T => self.groups_of::<T>(x, along)?, else self.groups_of::<u8>(x, along)?);
        let mut outputs = self.outputs(x, along, groups)?;
        outputs.truncate(cx.output_count());
        Ok(outputs)
    }
}

impl Operator for Unique {
    fn name(&self) -> &'static str {
        "Unique"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        Ok(self.compute(cx)?.iter().map(|t| t.info().clone()).collect())
    }

    fn host(&self, cx: &OpCx) -> Option<Result<Vec<Tensor>, OpError>> {
        Some(self.compute(cx))
    }

    fn cpu(&self, _: &OpCx) -> Result<NativeKernel, OpError> {
        Err(OpError::unsupported("Unique in a recorded run: its outputs' sizes depend on elements"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Fact;

    fn run(op: Unique, x: Tensor) -> Vec<Vec<i64>> {
        let cx = OpCx::for_infer(vec![Some(Fact::known(x))], 4);
        op.host(&cx).unwrap().unwrap().iter().map(|t| t.to_i64s().unwrap()).collect()
    }

    #[test]
    fn elements_in_either_order() {
        let x = || Tensor::new([6], &[2i32, 1, 1, 3, 4, 3]).unwrap();
        let sorted = run(Unique { axis: None, sorted: true }, x());
        assert_eq!(sorted, [vec![1, 2, 3, 4], vec![1, 0, 3, 4], vec![1, 0, 0, 2, 3, 2], vec![2, 1, 2, 1]]);
        let found = run(Unique { axis: None, sorted: false }, x());
        assert_eq!(found, [vec![2, 1, 3, 4], vec![0, 1, 3, 4], vec![0, 1, 1, 2, 3, 2], vec![1, 2, 2, 1]]);
    }

    #[test]
    fn slices_along_an_axis_and_nothing_at_all() {
        let x = Tensor::new([2, 3], &[1i64, 0, 1, 5, 2, 5]).unwrap();
        let columns = run(Unique { axis: Some(-1), sorted: true }, x);
        assert_eq!(columns, [vec![0, 1, 2, 5], vec![1, 0], vec![1, 0, 1], vec![1, 2]]);
        let none = run(Unique { axis: None, sorted: true }, Tensor::new([0], &[0i64; 0]).unwrap());
        assert!(none.iter().all(Vec::is_empty));
    }

    #[test]
    fn nans_are_one_element() {
        let x = Tensor::new([4], &[f32::NAN, 1.0, f32::NAN, -1.0]).unwrap();
        let cx = OpCx::for_infer(vec![Some(Fact::known(x))], 4);
        let y = Unique { axis: None, sorted: true }.host(&cx).unwrap().unwrap();
        assert_eq!(y[3].to_i64s().unwrap(), [1, 1, 2]);
    }
}
