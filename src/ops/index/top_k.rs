//! TopK: the largest or smallest elements along an axis and their positions.

use std::ops::Range;
use std::sync::Arc;

use super::order::{Key, Sortable};
use super::top_k_device;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::norm::Along;
use crate::ops::pointwise::number::with_number;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator, par};
use crate::simd::wide;

/// Elements that are compared with the last one of those found so far at a time.
const BLOCK: usize = 64;
/// Elements of one part of a long line, at least.
const PART: usize = 32 << 10;

/// The first `k` elements of each line along an axis in descending (or ascending) order, and their positions as
/// int64. Of equal elements those at lower positions come first; NaNs are above all numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK {
    /// Number of elements, where it is an attribute; else input 1 holds it.
    pub k: Option<usize>,
    /// The axis, negative ones counted from the end.
    pub axis: i64,
    /// Whether the largest elements are wanted, rather than the smallest.
    pub largest: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let k = if opset < 10 {
        let k = attrs.int_opt("k")?.ok_or_else(|| attrs.error("k", "is missing"))?;
        Some(usize::try_from(k).map_err(|_| attrs.error("k", format!("is {k}, below 0")))?)
    } else {
        None
    };
    let largest = opset < 11 || attrs.flag("largest", true)?;
    if opset >= 11 {
        // Any order is allowed without it, so also the sorted one.
        attrs.flag("sorted", true)?;
    }
    Ok(Arc::new(TopK { k, axis: attrs.int("axis", -1)?, largest }))
}

impl TopK {
    pub(super) fn along(&self, cx: &OpCx) -> Result<Along, OpError> {
        let x = cx.shape(0)?;
        let axis = x.axis(self.axis)?;
        Ok(Along::axes(x, axis, axis + 1))
    }

    pub(super) fn count(&self, cx: &OpCx) -> Result<usize, OpError> {
        let len = self.along(cx)?.len;
        let k = match self.k {
            Some(k) => k,
            None => {
                let k = cx.need_i64s(1)?;
                let k = k.first().copied().and_then(|k| usize::try_from(k).ok());
                k.ok_or_else(|| OpError::Value { input: 1, problem: "is no number of elements".to_owned() })?
            }
        };
        if k > len {
            let problem = format!("asks for {k} elements of an axis of {len}");
            return Err(OpError::Value { input: 1, problem });
        }
        Ok(k)
    }

    fn run<T: Sortable>(
        self,
        args: &mut NativeArgs<'_, '_>,
        inputs: usize,
        Along { len, inner, .. }: Along,
        k: usize,
    ) -> Result<(), KernelError> {
        let x = args.read::<T>(0)?;
        let (values, places) = (args.take_write::<T>(inputs)?, args.take_write::<i64>(inputs + 1)?);
        if values.is_empty() {
            return Ok(());
        }
        let write = |found: &[T::Key], line: &[T], values: &mut [T], places: &mut [i64], i: usize| {
            for (j, key) in found.iter().enumerate() {
                let to = (values.get_mut(j * inner + i), places.get_mut(j * inner + i));
                if let ((Some(value), Some(place)), Some(v)) = (to, line.get(key.place() as usize)) {
                    (*value, *place) = (*v, i64::from(key.place()));
                }
            }
        };
        if inner == 1 && x.len() == len && len > 2 * PART && k < PART / 4 {
            // One long line: the first ones of each part are candidates.
            let part_len = len.div_ceil(par::threads()).max(PART);
            let mut parts: Vec<Vec<T::Key>> = vec![Vec::new(); len.div_ceil(part_len)];
            par::each(&mut parts, len, |part| {
                let from = part * part_len;
                let mut first = First::new(self.largest, k);
                first.line(x, from..len.min(from + part_len));
                first.found
            });
            let mut found = parts.concat();
            found.sort_unstable();
            found.truncate(k);
            write(&found, x, values, places, 0);
            return Ok(());
        }
        let block = |o: usize, values: &mut [T], places: &mut [i64]| {
            let mut first = First::new(self.largest, k);
            let x = x.get(o * len * inner..(o + 1) * len * inner).unwrap_or(&[]);
            let mut strided: Vec<T> = Vec::with_capacity(if inner == 1 { 0 } else { len });
            for i in 0..inner {
                let line = if inner == 1 {
                    x
                } else {
                    strided.clear();
                    strided.extend(x.iter().skip(i).step_by(inner));
                    &strided
                };
                first.line(line, 0..line.len());
                write(&first.found, line, values, places, i);
            }
        };
        // An element is compared with those found so far, or sorted among them.
        par::rows_of_two((values, k * inner), (places, k * inner), 4 * x.len(), block);
        Ok(())
    }
}

/// The first `k` elements of a line.
struct First<T: Sortable> {
    largest: bool,
    k: usize,
    found: Vec<T::Key>,
}

impl<T: Sortable> First<T> {
    fn new(largest: bool, k: usize) -> First<T> {
        First { largest, k, found: Vec::new() }
    }

    #[inline(always)]
    fn key(&self, v: T, place: u32) -> T::Key {
        T::Key::new(if self.largest { !v.word() } else { v.word() }, place)
    }

    /// Keeps the first `k`, in any order, the last of them at the end.
    fn cut(&mut self) {
        if self.found.len() > self.k && self.k > 0 {
            self.found.select_nth_unstable(self.k - 1);
        }
        self.found.truncate(self.k);
    }

    /// Finds those of the elements `range` of `line`, in their order.
    fn line(&mut self, line: &[T], range: Range<usize>) {
        self.found.clear();
        if self.k == 0 {
            return;
        }
        // Elements collected before all but the first `k` are dropped; then only elements before the last of those
        // count.
        let room = self.k + (self.k / 2).max(16);
        let rest = range.start.saturating_add(room).min(range.end);
        for (v, place) in line[range.start..rest].iter().zip(range.start as u32..) {
            self.found.push(self.key(*v, place));
        }
        self.cut();
        wide(
            #[inline(always)]
            || self.rest(line, rest..range.end, room),
        );
        self.cut();
        self.found.sort_unstable();
    }

    #[inline(always)]
    fn rest(&mut self, line: &[T], range: Range<usize>, room: usize) {
        for start in range.clone().step_by(BLOCK) {
            let block = &line[start..range.end.min(start + BLOCK)];
            let Some(&bound) = self.found.get(self.k - 1) else { return };
            let last = line[bound.place() as usize];
            match self.largest {
                true => self.block(block, start, bound, room, |v| v <= last),
                false => self.block(block, start, bound, room, |v| v >= last),
            }
        }
    }

    /// Adds the elements of a block that come before `bound`; those that are `after` it do not.
    #[inline(always)]
    fn block(&mut self, block: &[T], start: usize, bound: T::Key, room: usize, after: impl Fn(T) -> bool) {
        // NaN is above all numbers, also where it is the last one: no comparison holds.
        if block.iter().fold(0u32, |any, v| any | u32::from(!after(*v))) == 0 {
            return;
        }
        for (i, v) in block.iter().enumerate().filter(|(_, v)| !after(**v)) {
            let key = self.key(*v, (start + i) as u32);
            if key < bound {
                self.found.push(key);
            }
        }
        if self.found.len() >= room {
            self.cut();
        }
    }
}

impl Operator for TopK {
    fn name(&self) -> &'static str {
        "TopK"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let inputs = if self.k.is_some() { 1 } else { 2 };
        cx.expect_counts(inputs..=inputs, 1..=2)?;
        let dtype = cx.dtype_of(0, DType::NUMBERS)?;
        let x = cx.shape(0)?;
        let axis = x.axis(self.axis)?;
        if u32::try_from(x[axis]).is_err() {
            return Err(cx.shape_error(0, "at most 2^32 elements along the axis"));
        }
        let mut dims = x.to_vec();
        dims[axis] = self.count(cx)?;
        let shape = crate::shape::Shape::new(dims)?;
        Ok(vec![TensorInfo::new(dtype, shape.clone()), TensorInfo::new(DType::I64, shape)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let n = cx.input_opt(0).map_or(0, TensorInfo::elements);
        let passes = self.count(cx).map_or(1, |k| k.max(2).ilog2() as usize + 2);
        Cost { flops: Cost::product(&[n, passes]), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (op, inputs, along, k) = (*self, cx.input_count(), self.along(cx)?, self.count(cx)?);
        with_number!(cx.dtype(0)?, T => Ok(NativeKernel::new("TopK", move |args| {
            op.run::<T>(args, inputs, along, k)
        })), else Err(OpError::unsupported("TopK of bool")))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        top_k_device::lower(self, cx, lower)
    }
}
