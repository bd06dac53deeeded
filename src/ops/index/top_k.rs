//! TopK: the largest or smallest elements along an axis and their positions.

use std::cmp::Ordering;
use std::sync::Arc;

use super::top_k_device;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::norm::Along;
use crate::ops::pointwise::number::{Number, with_number};
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

    fn run<T: Number>(
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
        let write = |found: &[(T, u32)], values: &mut [T], places: &mut [i64], i: usize| {
            for (j, (v, at)) in found.iter().enumerate() {
                if let (Some(value), Some(place)) =
                    (values.get_mut(j * inner + i), places.get_mut(j * inner + i))
                {
                    (*value, *place) = (*v, i64::from(*at));
                }
            }
        };
        if inner == 1 && x.len() == len && len > 2 * PART && k < PART / 4 {
            // One long line: the first ones of each part are candidates.
            let part_len = len.div_ceil(par::threads()).max(PART);
            let mut parts: Vec<Vec<(T, u32)>> = vec![Vec::new(); len.div_ceil(part_len)];
            par::each(&mut parts, len, |part| {
                let from = part * part_len;
                let mut first = First::new(self.largest, k);
                first.line(&x[from..len.min(from + part_len)], from as u32);
                first.found
            });
            let mut found = parts.concat();
            found.sort_unstable_by(|a, b| order(self.largest, a, b));
            found.truncate(k);
            write(&found, values, places, 0);
            return Ok(());
        }
        let block = |o: usize, values: &mut [T], places: &mut [i64]| {
            let mut first = First::new(self.largest, k);
            let x = x.get(o * len * inner..).unwrap_or(&[]);
            let mut line: Vec<T> = Vec::with_capacity(if inner == 1 { 0 } else { len });
            for i in 0..inner {
                if inner == 1 {
                    first.line(x.get(..len).unwrap_or(&[]), 0);
                } else {
                    line.clear();
                    line.extend(x.iter().skip(i).step_by(inner).take(len));
                    first.line(&line, 0);
                }
                write(&first.found, values, places, i);
            }
        };
        // An element is compared with those found so far, or sorted among them.
        par::rows_of_two((values, k * inner), (places, k * inner), 4 * x.len(), block);
        Ok(())
    }
}

/// Which of two elements and their positions comes first.
fn order<T: Number>(largest: bool, a: &(T, u32), b: &(T, u32)) -> Ordering {
    let nan = |v: &T| v.partial_cmp(v).is_none();
    let ascending = |a: &T, b: &T| a.partial_cmp(b).unwrap_or_else(|| nan(a).cmp(&nan(b)));
    let values = if largest { ascending(&b.0, &a.0) } else { ascending(&a.0, &b.0) };
    values.then(a.1.cmp(&b.1))
}

/// The first `k` elements of a line.
struct First<T> {
    largest: bool,
    k: usize,
    found: Vec<(T, u32)>,
}

impl<T: Number> First<T> {
    fn new(largest: bool, k: usize) -> First<T> {
        First { largest, k, found: Vec::new() }
    }

    /// Keeps the first `k`, in any order, the last of them at the end.
    fn cut(&mut self) {
        if self.found.len() > self.k && self.k > 0 {
            let largest = self.largest;
            self.found.select_nth_unstable_by(self.k - 1, |a, b| order(largest, a, b));
        }
        self.found.truncate(self.k);
    }

    /// Finds those of `line`, whose elements are numbered from `from` on, in their order.
    fn line(&mut self, line: &[T], from: u32) {
        self.found.clear();
        if self.k == 0 {
            return;
        }
        // Elements collected before all but the first `k` are dropped; then only elements before the last of those
        // count.
        let room = self.k + (self.k / 2).max(16);
        let (begin, rest) = line.split_at(room.min(line.len()));
        self.found.extend(begin.iter().copied().zip(from..));
        self.cut();
        wide(
            #[inline(always)]
            || self.rest(rest, from.saturating_add(begin.len() as u32), room),
        );
        self.cut();
        let largest = self.largest;
        self.found.sort_unstable_by(|a, b| order(largest, a, b));
    }

    #[inline(always)]
    #[allow(clippy::neg_cmp_op_on_partial_ord, reason = "NaN is neither")]
    fn rest(&mut self, rest: &[T], mut at: u32, room: usize) {
        for block in rest.chunks(BLOCK) {
            let Some(&(last, _)) = self.found.get(self.k - 1) else { return };
            // NaN is above all numbers, also where it is the last one.
            let any = match self.largest {
                true => block.iter().fold(0u32, |any, v| any | u32::from(!(*v <= last))),
                false => block.iter().fold(0u32, |any, v| any | u32::from(!(*v >= last))),
            };
            if any != 0 {
                // Equal elements keep their order.
                let bound = (last, at);
                let before = |v: &(T, u32)| order(self.largest, v, &bound) == Ordering::Less;
                self.found.extend(block.iter().copied().zip(at..).filter(before));
                if self.found.len() >= room {
                    self.cut();
                }
            }
            at = at.saturating_add(block.len() as u32);
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
