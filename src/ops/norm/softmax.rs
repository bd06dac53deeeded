//! Softmax, LogSoftmax and Hardmax along one axis (or, before opset 13, over all axes from one on).

use std::sync::Arc;

use super::Along;
use super::exponentials::{exponentials_of, top};
use crate::graph::TensorInfo;
use crate::kernel::codes::softmax::Kind;
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::linalg::product::sum_of;
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, as_f32s, as_f32s_mut, real_kernel};
use crate::ops::reduce::arg::place_of_largest;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, Structure, par};
use crate::shape::normalize_axis;
use crate::simd::wide;

/// Elements that one task has at least.
const PART: usize = 8 << 10;
/// Elements from which on rows are vectors.
const VECTOR: usize = 16;

/// Which function of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftmaxKind {
    /// `exp(x) / sum(exp(x))`.
    Soft,
    /// The logarithm of it.
    Log,
    /// 1 for the first of the largest elements, else 0.
    Hard,
}

/// A function of vectors along an axis.
#[derive(Clone, Debug)]
pub struct Softmax {
    /// Which function.
    pub kind: SoftmaxKind,
    /// The axis.
    pub axis: i64,
    /// Whether the axes from `axis` on are one vector.
    pub flatten: bool,
}

pub(super) fn softmax(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(attrs, opset, SoftmaxKind::Soft)
}

pub(super) fn log_softmax(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(attrs, opset, SoftmaxKind::Log)
}

pub(super) fn hardmax(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(attrs, opset, SoftmaxKind::Hard)
}

fn read(attrs: &AttrReader<'_>, opset: i64, kind: SoftmaxKind) -> Result<Arc<dyn Operator>, OpError> {
    let flatten = opset < 13;
    Ok(Arc::new(Softmax { kind, axis: attrs.int("axis", if flatten { 1 } else { -1 })?, flatten }))
}

impl Softmax {
    pub(crate) fn resolve(&self, cx: &OpCx) -> Result<Along, OpError> {
        let shape = cx.shape(0)?;
        if self.flatten {
            // The axis may be the rank: then vectors have one element each.
            let axis = if self.axis == shape.rank() as i64 {
                shape.rank()
            } else {
                normalize_axis(self.axis, shape.rank())?
            };
            return Ok(Along::axes(shape, axis, shape.rank()));
        }
        if shape.rank() == 0 {
            return Ok(Along { outer: 1, len: 1, inner: 1 });
        }
        let axis = shape.axis(self.axis)?;
        Ok(Along::axes(shape, axis, axis + 1))
    }
}

impl Operator for Softmax {
    fn name(&self) -> &'static str {
        match self.kind {
            SoftmaxKind::Soft => "Softmax",
            SoftmaxKind::Log => "LogSoftmax",
            SoftmaxKind::Hard => "Hardmax",
        }
    }

    fn structure(&self) -> Option<Structure<'_>> {
        let &Softmax { kind, axis, flatten } = self;
        matches!(kind, SoftmaxKind::Soft).then_some(Structure::Softmax { axis, flatten })
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        self.resolve(cx)?;
        Ok(vec![TensorInfo::new(dtype, cx.shape(0)?.clone())])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 10 * cx.input_opt(0).map_or(0, |i| i.elements() as u64), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel(self.name(), cx, Run { along: self.resolve(cx)?, kind: self.kind })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let kind = match self.kind {
            SoftmaxKind::Soft => Kind::Soft,
            SoftmaxKind::Log => Kind::Log,
            SoftmaxKind::Hard => Kind::Hard,
        };
        super::device::vectors(cx, self.resolve(cx)?, kind, Operand::Output(0), lower)
    }
}

struct Run {
    along: Along,
    kind: SoftmaxKind,
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let Along { len, inner, .. } = self.along;
        let (y, inputs) = io.output(0, self.along.elements())?;
        let x = inputs.get(0, self.along.elements())?;
        if y.is_empty() {
            return Ok(());
        }
        let one = |(y, x): (&mut [T], &[T])| match self.kind {
            SoftmaxKind::Hard => wide(
                #[inline(always)]
                || hard(inner, x, y),
            ),
            _ if inner == 1 => match (as_f32s(x), as_f32s_mut(y)) {
                (Some(x), Some(y)) if len >= VECTOR => row_of_vectors(self.kind, x, y),
                _ => wide(
                    #[inline(always)]
                    || row(self.kind, x, y),
                ),
            },
            _ => wide(
                #[inline(always)]
                || block(self.kind, inner, x, y),
            ),
        };
        let least = (PART / (len * inner)).max(1);
        let (part, size) = (least * len * inner, len * inner);
        par::share(y.chunks_mut(part).zip(x.chunks(part)), |(y, x)| {
            y.chunks_mut(size).zip(x.chunks(size)).for_each(one);
        });
        Ok(())
    }
}

/// The larger one; a NaN stays.
#[inline(always)]
fn larger<T: Real>(a: T, b: T) -> T {
    if b > a || b.partial_cmp(&b).is_none() { b } else { a }
}

/// The largest element, several at a time; a NaN where there is one.
#[inline(always)]
pub(crate) fn largest<T: Real>(x: &[T]) -> T {
    let mut tops = [T::LOWEST; 16];
    let chunks = x.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (top, v) in tops.iter_mut().zip(chunk) {
            *top = larger(*top, *v);
        }
    }
    tops.iter().chain(rest).fold(T::LOWEST, |m, v| larger(m, *v))
}

/// As [`row`], of whole vectors.
fn row_of_vectors(kind: SoftmaxKind, x: &[f32], y: &mut [f32]) {
    let top = top(x);
    let total = exponentials_of(x, y, top);
    wide(
        #[inline(always)]
        || {
            if kind == SoftmaxKind::Log {
                let log = total.ln();
                y.iter_mut().zip(x).for_each(|(y, x)| *y = *x - top - log);
            } else {
                let factor = 1.0 / total;
                y.iter_mut().for_each(|y| *y *= factor);
            }
        },
    );
}

#[inline(always)]
fn row<T: Real>(kind: SoftmaxKind, x: &[T], y: &mut [T]) {
    let top = largest(x);
    if kind == SoftmaxKind::Log {
        let total = sum_of(
            x,
            #[inline(always)]
            |v| (v - top).exp(),
        );
        let log = total.ln();
        y.iter_mut().zip(x).for_each(|(y, x)| *y = *x - top - log);
        return;
    }
    for (y, x) in y.iter_mut().zip(x) {
        *y = (*x - top).exp();
    }
    let total = sum_of(
        y,
        #[inline(always)]
        |v| v,
    );
    let factor = T::ONE / total;
    y.iter_mut().for_each(|y| *y *= factor);
}

/// The same for `inner` vectors side by side.
#[inline(always)]
fn block<T: Real>(kind: SoftmaxKind, inner: usize, x: &[T], y: &mut [T]) {
    // From one to the other: in place, elements that stay would not be stored, and AVX2 has no fast vectors for a condition
    // of each store.
    let (mut top, mut next) = (vec![T::LOWEST; inner], vec![T::LOWEST; inner]);
    for x in x.chunks(inner) {
        for ((next, top), v) in next.iter_mut().zip(&top).zip(x) {
            *next = larger(*top, *v);
        }
        std::mem::swap(&mut top, &mut next);
    }
    let mut total = vec![T::ZERO; inner];
    for (y, x) in y.chunks_mut(inner).zip(x.chunks(inner)) {
        for (((y, x), m), s) in y.iter_mut().zip(x).zip(&top).zip(&mut total) {
            *y = (*x - *m).exp();
            *s += *y;
        }
    }
    if kind == SoftmaxKind::Log {
        total.iter_mut().for_each(|s| *s = s.ln());
    }
    for (y, x) in y.chunks_mut(inner).zip(x.chunks(inner)) {
        for (((y, x), m), s) in y.iter_mut().zip(x).zip(&top).zip(&total) {
            *y = if kind == SoftmaxKind::Log { *x - *m - *s } else { *y / *s };
        }
    }
}

#[inline(always)]
fn hard<T: Real>(inner: usize, x: &[T], y: &mut [T]) {
    y.fill(T::ZERO);
    if inner == 1 {
        y[place_of_largest(x)] = T::ONE;
        return;
    }
    let is_nan = |v: T| v.partial_cmp(&v).is_none();
    let mut best = x[..inner].to_vec();
    let mut place = vec![0; inner];
    for (k, x) in x.chunks(inner).enumerate() {
        for ((best, place), v) in best.iter_mut().zip(&mut place).zip(x) {
            // The first of what is no number is above all numbers.
            let wins = *v > *best || (is_nan(*v) && !is_nan(*best));
            *best = if wins { *v } else { *best };
            *place = if wins { k } else { *place };
        }
    }
    place.iter().enumerate().for_each(|(i, k)| y[k * inner + i] = T::ONE);
}

#[cfg(test)]
mod tests {
    use super::SoftmaxKind;
    use crate::graph::Tensor;
    use crate::ops::AttrValue;
    use crate::ops::test_util::{assert_near, attrs, facts, read_op, run_f32, tensor};

    fn reference(kind: SoftmaxKind, v: &[f64], len: usize, inner: usize) -> Vec<f64> {
        (0..v.len())
            .map(|i| {
                let base = i / (len * inner) * len * inner + i % inner;
                let all: Vec<f64> = (0..len).map(|k| v[base + k * inner]).collect();
                let top = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = all.iter().map(|a| (a - top).exp()).sum();
                match kind {
                    SoftmaxKind::Soft => (v[i] - top).exp() / total,
                    SoftmaxKind::Log => v[i] - top - total.ln(),
                    SoftmaxKind::Hard => {
                        let first = all.iter().position(|a| *a == top).unwrap();
                        f64::from((base + first * inner == i) as u8)
                    }
                }
            })
            .collect()
    }

    #[test]
    fn softmax_matches_along_any_axis_in_both_forms() {
        let shape = [3usize, 4, 5];
        let x = tensor(&shape, 1);
        let v: Vec<f64> = x.to_f32s().unwrap().into_iter().map(f64::from).collect();
        let names = [
            ("Softmax", SoftmaxKind::Soft),
            ("LogSoftmax", SoftmaxKind::Log),
            ("Hardmax", SoftmaxKind::Hard),
        ];
        for (name, kind) in names {
            for axis in -3i64..3 {
                let at = if axis < 0 { axis + 3 } else { axis } as usize;
                let map = attrs(&[("axis", AttrValue::Int(axis))]);
                let inner: usize = shape[at + 1..].iter().product();
                let op = read_op(name, 13, &map).unwrap();
                let want = reference(kind, &v, shape[at], inner);
                assert_near(&run_f32(&*op, &[Some(x.clone())]).unwrap(), &want, 1e-6);
                let op = read_op(name, 11, &map).unwrap();
                let want = reference(kind, &v, shape[at] * inner, 1);
                assert_near(&run_f32(&*op, &[Some(x.clone())]).unwrap(), &want, 1e-6);
            }
        }
    }

    #[test]
    fn large_values_do_not_overflow_and_ties_go_to_the_first() {
        let x = Tensor::new([1, 3], &[1e30f32, 1e30, -1e30]).unwrap();
        let op = |name| read_op(name, 13, &attrs(&[])).unwrap();
        assert_near(&run_f32(&*op("Softmax"), &[Some(x.clone())]).unwrap(), &[0.5, 0.5, 0.0], 1e-6);
        assert_near(&run_f32(&*op("Hardmax"), &[Some(x)]).unwrap(), &[1.0, 0.0, 0.0], 0.0);
        let op = read_op("Softmax", 13, &attrs(&[("axis", AttrValue::Int(2))])).unwrap();
        assert!(facts(&*op, &[Some(tensor(&[2, 3], 1))], 1).is_err());
    }
}
