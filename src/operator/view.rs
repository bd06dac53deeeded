//! Tensors that lie in another one, element by element: what reshapes, transposes and slices make of it without a copy.
//!
//! An axis of a [`View`] is a product of factors with a stride each, so that a reshape that joins axes which do not
//! lie next to one another is a view too. A reader takes it where every axis has one stride ([`View::strided`]).

use std::ops::Range;

use super::{OpCx, OpError};
use crate::shape::Shape;

/// What an output is of an input, where it is elements of that input, none twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewStep {
    /// All elements in their order, in another shape.
    Reshape,
    /// Axis `i` is axis `order[i]` of the input.
    Transpose(Vec<usize>),
    /// Of each axis of the input the places of a range, in the output's shape.
    Part(Vec<Range<usize>>),
    /// Of one axis every `step`th place.
    Every {
        /// The axis.
        axis: usize,
        /// Its first place.
        start: usize,
        /// Places from one to the next.
        step: usize,
    },
}

/// So many places of an axis, and how many elements of the root are from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Factor {
    size: usize,
    stride: usize,
}

/// A tensor whose elements lie in another one, its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    root: Shape,
    offset: usize,
    /// By axis, the outer factor first; none is of size 1.
    axes: Vec<Vec<Factor>>,
}

/// A tensor that lies in another one with one stride for each axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strided {
    /// The shape of the tensor that it lies in.
    pub root: Shape,
    /// The element of the root that is its first.
    pub offset: usize,
    /// Its own shape.
    pub shape: Shape,
    /// Elements of the root from one place of each axis to the next; 0 for axes of size 1.
    pub strides: Vec<usize>,
}

impl View {
    /// All of a tensor of shape `root`; `None` where it is empty.
    pub fn whole(root: &Shape) -> Option<View> {
        (root.elements() > 0).then_some(())?;
        let factor = |(&size, stride)| Factor { size, stride };
        let axes = root.iter().zip(root.strides()).map(factor);
        let axes = axes.map(|f| if f.size == 1 { Vec::new() } else { vec![f] }).collect();
        Some(View { root: root.clone(), offset: 0, axes })
    }

    /// The output of `step` with this as its input; `to` is the output's shape. `None` where that is no view of the root.
    pub fn then(&self, step: &ViewStep, to: &Shape) -> Option<View> {
        match step {
            ViewStep::Reshape => self.reshaped(to),
            ViewStep::Transpose(order) => self.transposed(order),
            ViewStep::Part(ranges) => self.part(ranges)?.reshaped(to),
            &ViewStep::Every { axis, start, step } => self.every(axis, (start, step), *to.dims().get(axis)?),
        }
    }

    /// The input of `step` with this as its output; `from` is the input's shape. `None` where the output lacks elements
    /// of it, or it is no view of the root.
    pub fn before(&self, step: &ViewStep, from: &Shape) -> Option<View> {
        match step {
            ViewStep::Reshape => self.reshaped(from),
            ViewStep::Transpose(order) => {
                let back = (0..order.len()).map(|axis| order.iter().position(|o| *o == axis));
                self.transposed(&back.collect::<Option<Vec<_>>>()?)
            }
            ViewStep::Part(_) | ViewStep::Every { .. } => None,
        }
    }

    /// The view with one stride for each axis, where it is one.
    pub fn strided(&self) -> Option<Strided> {
        let axis = |factors: &Vec<Factor>| match factors[..] {
            [] => Some(Factor { size: 1, stride: 0 }),
            [one] => Some(one),
            _ => None,
        };
        let axes: Vec<Factor> = self.axes.iter().map(axis).collect::<Option<_>>()?;
        let shape = Shape::new(axes.iter().map(|f| f.size).collect::<Vec<_>>()).ok()?;
        let strides = axes.iter().map(|f| f.stride).collect();
        Some(Strided { root: self.root.clone(), offset: self.offset, shape, strides })
    }

    fn transposed(&self, order: &[usize]) -> Option<View> {
        (order.len() == self.axes.len()).then_some(())?;
        let axes = order.iter().map(|&axis| self.axes.get(axis).cloned()).collect::<Option<_>>()?;
        Some(View { axes, ..self.clone() })
    }

    fn part(&self, ranges: &[Range<usize>]) -> Option<View> {
        let mut view = self.clone();
        (ranges.len() == view.axes.len()).then_some(())?;
        for (axis, range) in view.axes.iter_mut().zip(ranges) {
            view.offset += cut(axis, range.clone())?;
        }
        Some(view)
    }

    /// `len` places of an axis, where it has one stride.
    fn every(&self, axis: usize, (start, step): (usize, usize), len: usize) -> Option<View> {
        let mut view = self.clone();
        let factors = view.axes.get_mut(axis)?;
        let &[Factor { size, stride }] = &factors[..] else { return None };
        let last = start.checked_add(len.checked_sub(1)?.checked_mul(step)?)?;
        (last < size).then_some(())?;
        view.offset += start * stride;
        *factors = if len == 1 { Vec::new() } else { vec![Factor { size: len, stride: stride * step }] };
        Some(view)
    }

    fn reshaped(&self, to: &Shape) -> Option<View> {
        let mut left: Vec<Factor> = self.axes.iter().flatten().copied().collect();
        let elements: usize = left.iter().map(|f| f.size).product();
        (to.elements() == elements).then_some(())?;
        join(&mut left);
        let mut axes = Vec::with_capacity(to.rank());
        for &size in to.iter().rev() {
            axes.push(split_off(&mut left, size)?);
        }
        axes.reverse();
        Some(View { axes, ..self.clone() })
    }
}

/// Keeps the places of `range` of an axis; returns how many elements later it begins.
fn cut(axis: &mut Vec<Factor>, range: Range<usize>) -> Option<usize> {
    let size: usize = axis.iter().map(|f| f.size).product();
    (range.start < range.end && range.end <= size).then_some(())?;
    if range.len() == size {
        return Some(0);
    }
    let Factor { size: outer, stride } = *axis.first()?;
    let inner = size / outer;
    let (first, last) = (range.start / inner, (range.end - 1) / inner);
    if first == last {
        // All of it lies at one place of the outer factor.
        axis.remove(0);
        let rest = cut(axis, range.start - first * inner..range.end - first * inner)?;
        return Some(first * stride + rest);
    }
    let whole = range.start.is_multiple_of(inner) && range.end.is_multiple_of(inner);
    whole.then_some(())?;
    axis[0].size = last + 1 - first;
    Some(first * stride)
}

/// Makes one factor of neighbours of which the inner one goes on where the outer one does.
fn join(factors: &mut Vec<Factor>) {
    let mut joined: Vec<Factor> = Vec::with_capacity(factors.len());
    for &inner in factors.iter() {
        match joined.last_mut() {
            Some(outer) if outer.stride == inner.size * inner.stride => {
                *outer = Factor { size: outer.size * inner.size, stride: inner.stride };
            }
            _ => joined.push(inner),
        }
    }
    *factors = joined;
}

/// Takes the innermost `size` places off `factors`; `None` where a factor would end between two axes.
fn split_off(factors: &mut Vec<Factor>, size: usize) -> Option<Vec<Factor>> {
    let (mut axis, mut need) = (Vec::new(), size);
    while need > 1 {
        let last = factors.last_mut()?;
        let Factor { size, stride } = *last;
        if need.is_multiple_of(size) {
            need /= size;
            factors.pop();
            axis.push(Factor { size, stride });
        } else {
            size.is_multiple_of(need).then_some(())?;
            *last = Factor { size: size / need, stride: stride * need };
            axis.push(Factor { size: need, stride });
            need = 1;
        }
    }
    axis.reverse();
    Some(axis)
}

impl Strided {
    /// The number of elements of the root up to its last one, where a machine can count them.
    pub fn end(&self) -> Option<usize> {
        let axes = self.shape.iter().zip(&self.strides);
        let last = axes.map(|(size, stride)| size.checked_sub(1)?.checked_mul(*stride));
        last.chain([Some(1)]).try_fold(self.offset, |end, last| end.checked_add(last?))
    }

    /// Whether every element of the root is one element of it.
    pub fn is_all(&self) -> bool {
        let axes = self.shape.iter().zip(&self.strides).filter(|(size, _)| **size != 1);
        let mut axes: Vec<(usize, usize)> = axes.map(|(size, stride)| (*stride, *size)).collect();
        axes.sort_unstable();
        let runs = axes.iter().try_fold(
            1usize,
            |run, &(stride, size)| {
                if stride == run { run.checked_mul(size) } else { None }
            },
        );
        self.offset == 0 && self.strides.len() == self.shape.rank() && runs == Some(self.root.elements())
    }

    /// Checks that input `input` is the root, and has all elements.
    ///
    /// # Errors
    /// [`OpError::InputShape`].
    pub fn check(&self, cx: &OpCx, input: usize) -> Result<(), OpError> {
        if *cx.shape(input)? != self.root {
            return Err(cx.shape_error(input, format!("{}, as its view has", self.root)));
        }
        let fits = self.strides.len() == self.shape.rank()
            && self.end().is_some_and(|end| end <= self.root.elements());
        let what = || format!("elements for a view of {} from {} on", self.shape, self.offset);
        if fits { Ok(()) } else { Err(cx.shape_error(input, what())) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::operator::Fact;
    use crate::tensor::TensorInfo;

    fn shape(dims: &[usize]) -> Shape {
        Shape::new(dims).unwrap()
    }

    /// Numbers for a tensor, in order, and its shape.
    type Numbers = (Vec<usize>, Shape);

    fn places(shape: &Shape) -> impl Iterator<Item = Vec<usize>> + '_ {
        let strides = shape.strides();
        let place = move |i: usize| shape.iter().zip(&strides).map(|(d, s)| i / s % d).collect();
        (0..shape.elements()).map(place)
    }

    /// What `step` makes of numbers that lie in order.
    fn moved((x, from): &Numbers, step: &ViewStep, to: &Shape) -> Numbers {
        let strides = from.strides();
        let y = match step {
            ViewStep::Reshape => x.clone(),
            ViewStep::Transpose(order) => {
                let at = |place: Vec<usize>| {
                    order.iter().zip(&place).map(|(axis, p)| p * strides[*axis]).sum::<usize>()
                };
                places(to).map(|place| x[at(place)]).collect()
            }
            &ViewStep::Every { axis, start, step } => {
                let at = |place: Vec<usize>| {
                    let place = place.iter().enumerate();
                    let from =
                        place.map(|(i, p)| (if i == axis { start + p * step } else { *p }) * strides[i]);
                    from.sum::<usize>()
                };
                places(to).map(|place| x[at(place)]).collect()
            }
            ViewStep::Part(ranges) => {
                let within = |place: &Vec<usize>| ranges.iter().zip(place).all(|(r, p)| r.contains(p));
                places(from).zip(x).filter(|(place, _)| within(place)).map(|(_, x)| *x).collect()
            }
        };
        (y, to.clone())
    }

    /// The elements of the root that a strided view has, in order.
    fn elements(view: &Strided) -> Vec<usize> {
        let at = |place: Vec<usize>| place.iter().zip(&view.strides).map(|(p, s)| p * s).sum::<usize>();
        places(&view.shape).map(|place| view.offset + at(place)).collect()
    }

    /// A step that fits a tensor of shape `from`, by random numbers, and the output's shape.
    fn step(from: &Shape, kind: usize, seed: usize) -> (ViewStep, Shape) {
        let dims = from.to_vec();
        match if dims.is_empty() { 0 } else { kind % 4 } {
            3 => {
                let (axis, step) = (seed % dims.len(), 2 + (seed >> 4) % 2);
                let start = (seed >> 6) % dims[axis].min(step);
                let mut to = dims.clone();
                to[axis] = (dims[axis] - start).div_ceil(step);
                (ViewStep::Every { axis, start, step }, shape(&to))
            }
            0 => {
                // Prime factors of all sizes, joined anew.
                let mut to = vec![1];
                for (i, &d) in dims.iter().enumerate() {
                    let mut left = d;
                    for p in [2, 3, 5, 7] {
                        while left.is_multiple_of(p) {
                            left /= p;
                            if seed >> ((i + p + to.len()) % 16) & 1 == 1 && to.len() < 6 {
                                to.push(p);
                            } else {
                                *to.last_mut().unwrap() *= p;
                            }
                        }
                    }
                }
                (ViewStep::Reshape, shape(&to))
            }
            1 => {
                let mut order: Vec<usize> = (0..dims.len()).collect();
                for i in (1..order.len()).rev() {
                    order.swap(i, (seed >> i) % (i + 1));
                }
                let to: Vec<usize> = order.iter().map(|&axis| dims[axis]).collect();
                (ViewStep::Transpose(order), shape(&to))
            }
            _ => {
                let part = |(i, &d): (usize, &usize)| {
                    let begin = (seed >> i) % d;
                    if (seed >> (i + 5)) & 1 == 1 { 0..d } else { begin..d.min(begin + 1 + (seed >> 7) % d) }
                };
                let ranges: Vec<Range<usize>> = dims.iter().enumerate().map(part).collect();
                let to: Vec<usize> = ranges.iter().map(Range::len).filter(|n| *n != 1).collect();
                (ViewStep::Part(ranges), shape(&to))
            }
        }
    }

    proptest! {
        #[test]
        fn a_view_has_the_elements_that_the_moves_give(
            dims in prop::collection::vec(prop::sample::select(vec![1usize, 2, 3, 4, 6, 10]), 1..5),
            steps in prop::collection::vec((0usize..4, any::<u16>()), 0..7),
        ) {
            let root = shape(&dims);
            let mut numbers: Numbers = ((0..root.elements()).collect(), root.clone());
            let mut view = View::whole(&root);
            let mut done = Vec::new();
            for (kind, seed) in steps {
                let (step, to) = step(&numbers.1, kind, usize::from(seed));
                let from = numbers.1.clone();
                numbers = moved(&numbers, &step, &to);
                view = view.and_then(|view| view.then(&step, &to));
                done.push((step, from));
                let Some(strided) = view.as_ref().and_then(View::strided) else { continue };
                prop_assert_eq!(&strided.shape, &numbers.1);
                prop_assert_eq!(elements(&strided), numbers.0.clone());
                prop_assert_eq!(strided.end(), numbers.0.iter().max().map(|last| last + 1));
                prop_assert_eq!(strided.is_all(), numbers.0.len() == root.elements());
            }
            // The first tensor as it lies in the last one.
            let last = numbers.1.clone();
            let whole = View::whole(&last).unwrap();
            let back = done.iter().rev().try_fold(whole, |view, (step, from)| view.before(step, from));
            if let Some(strided) = back.and_then(|view| view.strided()) {
                let from: Vec<usize> = elements(&strided).into_iter().map(|at| numbers.0[at]).collect();
                prop_assert_eq!(from, (0..root.elements()).collect::<Vec<_>>());
                prop_assert!(strided.is_all());
            }
        }
    }

    /// PyTorch joins batch and heads to one axis, which has no single stride until it is split again.
    #[test]
    fn axes_that_were_joined_and_split_again_are_a_view() {
        let packed = View::whole(&shape(&[197, 2, 576])).unwrap();
        let steps = [
            (ViewStep::Reshape, shape(&[197, 2, 3, 192])),
            (ViewStep::Reshape, shape(&[1, 197, 2, 3, 192])),
            (ViewStep::Transpose(vec![3, 1, 2, 0, 4]), shape(&[3, 197, 2, 1, 192])),
            (ViewStep::Reshape, shape(&[3, 197, 2, 192])),
            (ViewStep::Part(vec![1..2, 0..197, 0..2, 0..192]), shape(&[197, 2, 192])),
            (ViewStep::Reshape, shape(&[197, 6, 64])),
        ];
        let joined = steps.iter().try_fold(packed, |view, (step, to)| view.then(step, to)).unwrap();
        assert_eq!(joined.strided(), None);
        let turned = joined.then(&ViewStep::Transpose(vec![1, 0, 2]), &shape(&[6, 197, 64])).unwrap();
        let keys = turned.then(&ViewStep::Reshape, &shape(&[2, 3, 197, 64])).unwrap().strided().unwrap();
        assert_eq!((keys.offset, &keys.strides[..]), (192, &[576, 64, 1152, 1][..]));
    }

    #[test]
    fn what_no_strides_describe_is_no_view() {
        let turned = View::whole(&shape(&[4, 6])).unwrap();
        let turned = turned.then(&ViewStep::Transpose(vec![1, 0]), &shape(&[6, 4])).unwrap();
        assert_eq!(turned.then(&ViewStep::Reshape, &shape(&[24])).unwrap().strided(), None);
        assert_eq!(turned.then(&ViewStep::Reshape, &shape(&[3, 8])).unwrap().strided(), None);
        // An axis would end within one of the four places.
        assert_eq!(turned.then(&ViewStep::Reshape, &shape(&[8, 3])), None);
        let halves = turned.then(&ViewStep::Reshape, &shape(&[2, 3, 4])).unwrap().strided().unwrap();
        assert_eq!((&halves.strides[..], halves.end()), (&[3, 1, 6][..], Some(24)));
        assert_eq!(View::whole(&shape(&[3, 0])), None);
        let part = ViewStep::Part(vec![0..2, 0..4]);
        assert_eq!(turned.then(&part, &shape(&[2, 4])).unwrap().before(&part, &shape(&[6, 4])), None);
    }

    #[test]
    fn views_beyond_their_root_are_errors() {
        let info = TensorInfo::new(crate::dtype::DType::F32, shape(&[4, 6]));
        let cx = OpCx::for_infer(vec![Some(Fact::of(info))], 1);
        let good = Strided { root: shape(&[4, 6]), offset: 2, shape: shape(&[4, 4]), strides: vec![6, 1] };
        assert_eq!((good.check(&cx, 0), good.end(), good.is_all()), (Ok(()), Some(24), false));
        let wrong = [
            Strided { offset: 3, ..good.clone() },
            Strided { strides: vec![7, 1], ..good.clone() },
            Strided { strides: vec![usize::MAX, 1], ..good.clone() },
            Strided { strides: vec![1], ..good.clone() },
            Strided { root: shape(&[6, 4]), ..good.clone() },
        ];
        for view in wrong {
            assert!(matches!(view.check(&cx, 0), Err(OpError::InputShape { input: 0, .. })), "{view:?}");
        }
    }
}
