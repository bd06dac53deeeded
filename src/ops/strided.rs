//! Operands of different strides visited together: the loop nest of broadcasts, transposes, slices.

use std::ops::Range;

use crate::kernel::codes::broadcast::Kind;
use crate::shape::{Shape, ShapeError};

/// A loop nest over several operands with as few dimensions as their strides allow.
///
/// Dimensions are outermost first; elements are visited in row-major order of the original sizes, so
/// the position in that order is the offset in any operand that is dense. There is always at least one
/// dimension; a nest without elements has the single size 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nest {
    sizes: Vec<usize>,
    strides: Vec<Vec<isize>>,
}

impl Nest {
    /// The nest over `sizes` where operand k moves by `strides[k][d]` elements along dimension d.
    ///
    /// Missing strides count as 0. Dimensions of size 1 are dropped, and neighbours that every operand
    /// walks as one are merged.
    pub fn new(sizes: &[usize], strides: &[Vec<isize>]) -> Self {
        let at = |k: &Vec<isize>, d: usize| k.get(d).copied().unwrap_or(0);
        if sizes.contains(&0) {
            return Nest { sizes: vec![0], strides: vec![vec![0]; strides.len()] };
        }
        let mut nest = Nest { sizes: Vec::new(), strides: vec![Vec::new(); strides.len()] };
        for (d, &size) in sizes.iter().enumerate().filter(|(_, size)| **size != 1) {
            let merges = nest.strides.iter().zip(strides).all(|(done, all)| {
                done.last().is_some_and(|outer| Some(*outer) == at(all, d).checked_mul(size as isize))
            });
            if merges && let Some(outer) = nest.sizes.last_mut() {
                *outer *= size;
            } else {
                nest.sizes.push(size);
                nest.strides.iter_mut().for_each(|s| s.push(0));
            }
            for (done, all) in nest.strides.iter_mut().zip(strides) {
                if let Some(last) = done.last_mut() {
                    *last = at(all, d);
                }
            }
        }
        if nest.sizes.is_empty() {
            nest.sizes.push(1);
            nest.strides.iter_mut().for_each(|s| s.push(1));
        }
        nest
    }

    /// The nest that reads dense tensors of the shapes `inputs` as `out`, by NumPy's rule.
    ///
    /// # Errors
    /// [`ShapeError::Broadcast`] where a shape does not broadcast to `out`.
    pub fn broadcast(out: &Shape, inputs: &[&Shape]) -> Result<Self, ShapeError> {
        let strides: Result<Vec<Vec<isize>>, ShapeError> = inputs
            .iter()
            .map(|s| Ok(s.broadcast_strides(out)?.into_iter().map(|n| n as isize).collect()))
            .collect();
        Ok(Nest::new(out.dims(), &strides?))
    }

    /// Sizes of the dimensions, outermost first.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// How many dimensions are left.
    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// How many elements are visited.
    pub fn elements(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Strides of operand `k` in elements, outermost first; empty where there is no such operand.
    pub fn strides(&self, k: usize) -> &[isize] {
        self.strides.get(k).map_or(&[], Vec::as_slice)
    }

    /// The stride of operand `k` along the innermost dimension.
    pub fn inner_stride(&self, k: usize) -> isize {
        self.strides(k).last().copied().unwrap_or(0)
    }

    /// The strides of the first `N` operands along the innermost dimension.
    pub fn inner_strides<const N: usize>(&self) -> [isize; N] {
        std::array::from_fn(|k| self.inner_stride(k))
    }

    /// Whether operand `k` is visited element after element, from its first.
    pub fn is_dense(&self, k: usize) -> bool {
        let mut run = 1;
        self.elements() <= 1
            || self.strides(k).iter().zip(&self.sizes).rev().all(|(&stride, &size)| {
                let next = stride == run;
                run *= size as isize;
                next
            })
    }

    /// Whether operand `k` is one element throughout.
    pub fn is_scalar(&self, k: usize) -> bool {
        self.elements() <= 1 || self.strides(k).iter().all(|&s| s == 0)
    }

    /// How kernels read operand `k`.
    pub(crate) fn kind(&self, k: usize) -> Kind {
        match (self.is_scalar(k), self.is_dense(k)) {
            (true, _) => Kind::Scalar,
            (false, true) => Kind::Dense,
            (false, false) => Kind::Strided,
        }
    }

    /// Calls `f(start, len, offsets)` for each run of elements `start .. start + len` of `range` that lies
    /// in one row of the innermost dimension; operand k begins the run at `offsets[k]` and moves by
    /// [`Nest::inner_stride`].
    pub fn runs(&self, range: Range<usize>, mut f: impl FnMut(usize, usize, &[isize])) {
        self.walk(range, &mut f);
    }

    fn walk(&self, range: Range<usize>, f: &mut dyn FnMut(usize, usize, &[isize])) {
        let end = range.end.min(self.elements());
        if range.start >= end {
            return;
        }
        let inner = self.sizes.len() - 1;
        let mut index = vec![0usize; self.sizes.len()];
        let mut left = range.start;
        for (i, &size) in index.iter_mut().zip(&self.sizes).rev() {
            *i = left % size;
            left /= size;
        }
        let mut offsets: Vec<isize> = self
            .strides
            .iter()
            .map(|s| s.iter().zip(&index).map(|(&stride, &i)| stride * i as isize).sum())
            .collect();
        let mut start = range.start;
        loop {
            let len = (self.sizes[inner] - index[inner]).min(end - start);
            f(start, len, &offsets);
            start += len;
            if start >= end {
                return;
            }
            // The run ended with its row: step the outer dimensions like an odometer.
            self.step(&mut offsets, inner, index[inner], 0);
            index[inner] = 0;
            for d in (0..inner).rev() {
                let from = index[d];
                index[d] = if from + 1 == self.sizes[d] { 0 } else { from + 1 };
                self.step(&mut offsets, d, from, index[d]);
                if index[d] != 0 {
                    break;
                }
            }
        }
    }

    fn step(&self, offsets: &mut [isize], d: usize, from: usize, to: usize) {
        for (offset, strides) in offsets.iter_mut().zip(&self.strides) {
            *offset += strides[d] * (to as isize - from as isize);
        }
    }

    /// Sizes for a kernel's parameters, filled up in front with 1; `None` where there are more than `R`
    /// dimensions or the elements exceed `u32`.
    pub fn kernel_sizes<const R: usize>(&self) -> Option<[u32; R]> {
        u32::try_from(self.elements()).ok()?;
        let lead = R.checked_sub(self.rank())?;
        let mut out = [1; R];
        for (to, &size) in out[lead..].iter_mut().zip(&self.sizes) {
            *to = u32::try_from(size).ok()?;
        }
        Some(out)
    }

    /// Strides of operand `k` for a kernel's parameters, filled up in front with 0; `None` where they
    /// do not fit.
    pub fn kernel_strides<const R: usize>(&self, k: usize) -> Option<[i32; R]> {
        let lead = R.checked_sub(self.rank())?;
        let mut out = [0; R];
        for (to, &stride) in out[lead..].iter_mut().zip(self.strides(k)) {
            *to = i32::try_from(stride).ok()?;
        }
        Some(out)
    }
}

/// Whether sums of `count` steps of each stride, from 0 steps on, reach each of `elements` places once.
pub(crate) fn reaches_all(steps: &[(usize, i64)], elements: usize) -> bool {
    let mut steps: Vec<(i64, usize)> = steps.iter().map(|&(count, distance)| (distance, count)).collect();
    steps.retain(|(_, count)| *count != 1);
    steps.sort_unstable();
    let mut next = 1usize;
    for (distance, count) in steps {
        if usize::try_from(distance) != Ok(next) {
            return false;
        }
        next = next.saturating_mul(count);
    }
    next == elements
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shape(d: &[usize]) -> Shape {
        Shape::new(d).unwrap()
    }

    /// Offsets of every element by the definition, without merging.
    fn naive(sizes: &[usize], strides: &[isize]) -> Vec<isize> {
        let n: usize = sizes.iter().product();
        (0..n)
            .map(|mut i| {
                let mut offset = 0;
                for d in (0..sizes.len()).rev() {
                    offset += strides[d] * (i % sizes[d]) as isize;
                    i /= sizes[d];
                }
                offset
            })
            .collect()
    }

    fn visited(nest: &Nest, k: usize, range: Range<usize>) -> Vec<isize> {
        let (mut out, mut next) = (Vec::new(), range.start);
        nest.runs(range, |start, len, offsets| {
            assert_eq!(start, next);
            assert!(len > 0);
            next += len;
            out.extend((0..len as isize).map(|i| offsets[k] + i * nest.inner_stride(k)));
        });
        out
    }

    #[test]
    fn dimensions_merge_where_all_operands_allow() {
        let same = shape(&[2, 3, 4]);
        let nest = Nest::broadcast(&same, &[&same, &same]).unwrap();
        assert_eq!((nest.sizes(), nest.is_dense(0), nest.is_dense(1)), (&[24][..], true, true));
        let channels = Nest::broadcast(&shape(&[2, 3, 4, 5]), &[&shape(&[2, 3, 4, 5]), &shape(&[3, 1, 1])]);
        let channels = channels.unwrap();
        assert_eq!(channels.sizes(), [2, 3, 20]);
        assert_eq!((channels.strides(0), channels.strides(1)), (&[60, 20, 1][..], &[0, 1, 0][..]));
        assert!(channels.is_dense(0) && !channels.is_dense(1));
        let scalar = Nest::broadcast(&shape(&[2, 3]), &[&shape(&[]), &shape(&[2, 3])]).unwrap();
        assert_eq!(scalar.sizes(), [6]);
        assert!(scalar.is_scalar(0) && !scalar.is_scalar(1) && scalar.is_dense(1));
        let point = Nest::broadcast(&shape(&[1, 1]), &[&shape(&[])]).unwrap();
        assert_eq!((point.sizes(), point.is_dense(0), point.is_scalar(0)), (&[1][..], true, true));
        assert_eq!(Nest::broadcast(&shape(&[3, 0]), &[&shape(&[1, 0])]).unwrap().elements(), 0);
        assert!(Nest::broadcast(&shape(&[3]), &[&shape(&[2])]).is_err());
    }

    #[test]
    fn kernel_parameters_are_padded_in_front_or_refused() {
        let nest = Nest::new(&[4, 5], &[vec![1, 4], vec![-5, 1]]);
        assert_eq!(nest.kernel_sizes::<4>(), Some([1, 1, 4, 5]));
        assert_eq!(nest.kernel_strides::<4>(1), Some([0, 0, -5, 1]));
        assert_eq!(nest.kernel_sizes::<1>(), None);
        assert_eq!(nest.kernel_strides::<1>(0), None);
        assert_eq!(Nest::new(&[1 << 40], &[vec![1]]).kernel_sizes::<2>(), None);
        assert_eq!(Nest::new(&[3, 2], &[vec![1 << 40, 1]]).kernel_strides::<2>(0), None);
    }

    proptest! {
        #[test]
        fn runs_visit_what_the_definition_says(
            sizes in prop::collection::vec(0usize..4, 0..5),
            a in prop::collection::vec(-6isize..7, 5),
            dense in prop::collection::vec(any::<bool>(), 5),
            from in 0usize..40,
            len in 0usize..80,
        ) {
            let own: Vec<isize> = shape(&sizes).strides().iter().map(|&s| s as isize).collect();
            // Mixes dense and arbitrary strides, so that some dimensions merge.
            let strides = [
                a[..sizes.len()].to_vec(),
                own.iter().zip(&dense).map(|(&s, &keep)| if keep { s } else { 0 }).collect(),
                own.clone(),
            ];
            let nest = Nest::new(&sizes, &strides);
            let n: usize = sizes.iter().product();
            prop_assert_eq!(nest.elements(), n);
            let range = from.min(n)..(from + len).min(n);
            for (k, s) in strides.iter().enumerate() {
                prop_assert_eq!(visited(&nest, k, range.clone()), &naive(&sizes, s)[range.clone()]);
            }
        }
    }
}
