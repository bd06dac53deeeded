//! TensorScatter: a cache with an update laid over it, each element of the batch at its own place.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel, Unit, VECTOR_BYTES};
use crate::ops::real::check_len;
use crate::ops::word::word;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator};

/// Inputs: the cache, the update, and optionally where the update begins in each element of the batch.
#[derive(Clone, Debug)]
pub struct TensorScatter {
    /// The axis of the sequence, negative ones counted from the end; not the first.
    pub axis: i64,
    /// Whether places wrap around at the end of the axis.
    pub circular: bool,
    /// The cache, where it is updated in place: it is the output and no input.
    pub updates: Option<Arc<TensorInfo>>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let modes = [("linear", false), ("circular", true)];
    Ok(Arc::new(TensorScatter {
        axis: attrs.int("axis", -2)?,
        circular: attrs.choice("mode", false, &modes)?,
        updates: None,
    }))
}

/// Sizes: batch, axes between it and the sequence, the sequence in the cache and in the update, the rest.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    prefixes: usize,
    size: usize,
    len: usize,
    inner: usize,
}

impl TensorScatter {
    fn cache<'a>(&'a self, cx: &'a OpCx) -> Result<&'a TensorInfo, OpError> {
        self.updates.as_deref().map_or_else(|| cx.input(0), Ok)
    }

    fn sizes(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        let (cache, update) = (&self.cache(cx)?.shape, cx.shape(1)?);
        let axis = cache.axis(self.axis)?;
        if axis == 0 {
            return Err(OpError::unsupported("TensorScatter along the batch"));
        }
        let same = update.rank() == cache.rank()
            && (0..cache.rank())
                .all(|d| if d == axis { update[d] <= cache[d] } else { update[d] == cache[d] });
        if !same {
            return Err(cx.shape_error(1, format!("{cache}, but shorter along axis {axis}")));
        }
        Ok(Sizes {
            batch: cache[0],
            prefixes: cache[1..axis].iter().product(),
            size: cache[axis],
            len: update[axis],
            inner: cache[axis + 1..].iter().product(),
        })
    }
}

impl Operator for TensorScatter {
    fn name(&self) -> &'static str {
        "TensorScatter"
    }

    fn updating(&self, pairs: &[(usize, usize)], cx: &OpCx) -> Option<Arc<dyn Operator>> {
        let cache = Arc::new(cx.input_opt(0)?.clone());
        (*pairs == [(0, 0)]).then(|| Arc::new(TensorScatter { updates: Some(cache), ..self.clone() }) as _)
    }

    fn updates(&self, _: usize) -> bool {
        self.updates.is_some()
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=3, 1..=1)?;
        let cache = self.cache(cx)?;
        cx.expect_dtype(1, cache.dtype)?;
        let sizes = self.sizes(cx)?;
        if cx.has(2) {
            cx.expect_dtype(2, DType::I64)?;
            if cx.shape(2)?.dims() != [sizes.batch] {
                return Err(cx.shape_error(2, format!("[{}]", sizes.batch)));
            }
        }
        Ok(vec![cache.clone()])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 0, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let Sizes { batch, prefixes, size, len, inner } = self.sizes(cx)?;
        let row = inner * self.cache(cx)?.dtype.bytes();
        let (circular, out, in_place) = (self.circular, cx.input_count(), self.updates.is_some());
        Ok(NativeKernel::new("TensorScatter", move |args| {
            let (past, update) = (args.read_opt::<u8>(0)?, args.read::<u8>(1)?);
            let at = if out > 2 { args.read_opt::<i64>(2)? } else { None };
            let y = args.take_write::<u8>(out)?;
            if !in_place {
                let past = past.ok_or(KernelError::Absent { index: 0 })?;
                check_len(0, past.len(), y.len())?;
                y.copy_from_slice(past);
            }
            check_len(1, update.len(), batch * prefixes * len * row)?;
            if update.is_empty() {
                return Ok(());
            }
            for (n, rows) in update.chunks(len * row).enumerate() {
                let first = at.and_then(|at| at.get(n / prefixes)).copied().unwrap_or(0);
                let places = place(first, size, len, circular)?;
                for (row_at, update) in places.zip(rows.chunks(row)) {
                    let to = (n * size + row_at) * row;
                    if let Some(y) = y.get_mut(to..to + row) {
                        y.copy_from_slice(update);
                    }
                }
            }
            Ok(())
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Sizes { batch, prefixes, size, len, mut inner } = self.sizes(cx)?;
        let mut bytes = self.cache(cx)?.dtype.bytes();
        while bytes < VECTOR_BYTES && inner % 2 == 0 {
            inner /= 2;
            bytes *= 2;
        }
        let kernel = variants::TensorScatter { t: Unit::Bytes(bytes) }.id()?;
        let in_place = self.updates.is_some();
        let n = batch * prefixes * if in_place { len } else { size } * inner;
        if n == 0 {
            return Ok(());
        }
        let params = params::TensorScatter {
            n: word(n)?,
            prefixes: word(prefixes)?,
            size: word(size)?,
            len: word(len)?,
            inner: word(inner)?,
        };
        let at = if cx.has(2) { Operand::Input(2) } else { Operand::Unused };
        let past = if in_place { Operand::Unused } else { Operand::Input(0) };
        let args = [past, Operand::Input(1), at, Operand::Output(0)];
        let spec = [
            (spec::tensor_scatter::GIVEN, u32::from(cx.has(2))),
            (spec::tensor_scatter::CIRCULAR, u32::from(self.circular)),
            (spec::tensor_scatter::IN_PLACE, u32::from(in_place)),
        ];
        lower.dispatch_1d(kernel, &spec, &args, &params, n)
    }
}

/// Where the `len` rows of an update go on an axis of `size`.
fn place(
    first: i64,
    size: usize,
    len: usize,
    circular: bool,
) -> Result<impl Iterator<Item = usize>, KernelError> {
    let start = if circular { first.rem_euclid(size.max(1) as i64) } else { first };
    match usize::try_from(start) {
        Ok(start) if circular || start.saturating_add(len) <= size => {
            Ok((0..len).map(move |i| (start + i) % size.max(1)))
        }
        _ => Err(KernelError::Value {
            what: format!("an update of {len} rows at {first} is out of range for an axis of {size}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{facts, run_cpu, tensor};

    #[test]
    fn updates_lie_at_their_places() {
        for (circular, inner, at) in
            [(false, 3, Some([1i64, 3])), (true, 4, Some([4, -2])), (false, 5, None), (true, 1, Some([7, 0]))]
        {
            let op = TensorScatter { axis: -2, circular, updates: None };
            let (cache, update) = (tensor(&[2, 2, 5, inner], 1), tensor(&[2, 2, 2, inner], 2));
            let mut want = cache.to_f32s().unwrap();
            for (n, v) in update.to_f32s().unwrap().into_iter().enumerate() {
                let (i, row, prefix) = (n % inner, n / inner % 2, n / inner / 2);
                let place = (at.map_or(0, |at| at[prefix / 2]) + row as i64).rem_euclid(5) as usize;
                want[(prefix * 5 + place) * inner + i] = v;
            }
            let inputs = [Some(cache), Some(update), at.map(|at| Tensor::from_i64s(&at))];
            assert_eq!(run_cpu(&op, &inputs, 1).unwrap()[0].to_f32s().unwrap(), want);
            #[cfg(feature = "vulkan")]
            crate::ops::testing::check_op(&op, &inputs, 0.0);
        }
    }

    #[test]
    fn without_a_third_input_the_update_begins_at_0() {
        let op = TensorScatter { axis: 1, circular: false, updates: None };
        let inputs = [Some(tensor(&[1, 2, 1], 1)), Some(tensor(&[1, 1, 1], 2))];
        let y = run_cpu(&op, &inputs, 1).unwrap();
        let value = |i: usize, at: usize| inputs[i].as_ref().unwrap().to_f32s().unwrap()[at];
        assert_eq!(y[0].to_f32s().unwrap(), [value(1, 0), value(0, 1)]);
        #[cfg(feature = "vulkan")]
        crate::ops::testing::check_op(&op, &inputs, 0.0);
    }

    #[test]
    fn places_out_of_range_and_misfits_are_errors() {
        assert!(place(4, 5, 2, false).is_err());
        assert!(place(-1, 5, 2, false).is_err());
        assert!(place(i64::MIN, 5, 2, true).is_ok());
        let op = |axis| TensorScatter { axis, circular: false, updates: None };
        let infers = |axis, update: &[usize]| {
            facts(&op(axis), &[Some(tensor(&[2, 5, 3], 1)), Some(tensor(update, 2))], 1).is_ok()
        };
        assert!(infers(1, &[2, 5, 3]));
        assert!(!infers(0, &[2, 5, 3]));
        assert!(!infers(1, &[2, 6, 3]));
        assert!(!infers(1, &[1, 5, 3]));
    }

    /// A device skips rows that are out of range.
    #[cfg(feature = "vulkan")]
    #[test]
    fn devices_write_nothing_out_of_range() {
        use crate::ops::testing::{Check, devices};
        let op = TensorScatter { axis: 1, circular: false, updates: None };
        let cache = tensor(&[2, 3, 2], 1);
        let inputs = [
            Some(cache.clone()),
            Some(tensor(&[2, 1, 2], 2)),
            Some(Tensor::from_i64s(&[i64::from(i32::MIN), 3])),
        ];
        for context in devices() {
            let got = Check::new(&op, &inputs).run_on(context).unwrap();
            assert_eq!(got[0].to_f32s().unwrap(), cache.to_f32s().unwrap());
        }
    }
}
