//! TopK: the largest or smallest elements along an axis and their positions.

use std::cmp::Ordering;
use std::sync::Arc;

use rayon::prelude::*;

use super::top_k_device;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::norm::Along;
use crate::ops::pointwise::number::{Number, with_number};
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator};

/// The first `k` elements of each line along an axis in descending (or ascending) order, and their positions as
/// int64. Of equal elements those at lower positions come first; NaNs are above all numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK {
    /// How many, where it is an attribute; else input 1 holds it.
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
        let nan = |v: &T| v.partial_cmp(v).is_none();
        let ascending = |a: &T, b: &T| a.partial_cmp(b).unwrap_or_else(|| nan(a).cmp(&nan(b)));
        let order = |a: &(T, u32), b: &(T, u32)| -> Ordering {
            let values = if self.largest { ascending(&b.0, &a.0) } else { ascending(&a.0, &b.0) };
            values.then(a.1.cmp(&b.1))
        };
        let block = |o: usize, values: &mut [T], places: &mut [i64]| {
            let mut line: Vec<(T, u32)> = Vec::with_capacity(len);
            for i in 0..inner {
                line.clear();
                let of = x.iter().skip(o * len * inner + i).step_by(inner).take(len);
                line.extend(of.zip(0u32..).map(|(v, at)| (*v, at)));
                if k < len && k > 0 {
                    line.select_nth_unstable_by(k - 1, order);
                }
                let first = line.get_mut(..k).unwrap_or(&mut []);
                first.sort_unstable_by(order);
                for (j, (v, at)) in first.iter().enumerate() {
                    if let (Some(value), Some(place)) =
                        (values.get_mut(j * inner + i), places.get_mut(j * inner + i))
                    {
                        (*value, *place) = (*v, i64::from(*at));
                    }
                }
            }
        };
        values
            .par_chunks_mut(k * inner)
            .zip(places.par_chunks_mut(k * inner))
            .enumerate()
            .with_min_len((4096 / (len * inner).max(1)).max(1))
            .for_each(|(o, (values, places))| block(o, values, places));
        Ok(())
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
        let dtype = cx.dtype_of(0, super::NUMBERS)?;
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

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
