//! ReverseSequence: the first elements of each sequence of a batch in reverse order.

use std::sync::Arc;

use super::positions::{INDEX_TYPES, index_words, mapped};
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel, Unit};
use crate::ops::word::word;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator};

/// Input 0 with the first `lens[b]` elements along the time axis reversed, for every `b` along the batch axis;
/// these are its first two axes, in either order. Input 1 holds the lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReverseSequence {
    /// Whether the batch axis is the first one.
    pub batch_first: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    match (attrs.int("batch_axis", 1)?, attrs.int("time_axis", 0)?) {
        (0, 1) => Ok(Arc::new(ReverseSequence { batch_first: true })),
        (1, 0) => Ok(Arc::new(ReverseSequence { batch_first: false })),
        (_, time) => {
            Err(attrs.error("time_axis", format!("is {time}; it and batch_axis must be 0 and 1")).into())
        }
    }
}

/// Sizes of one call, strides in slices of `inner` elements.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    times: usize,
    inner: usize,
}

impl ReverseSequence {
    fn sizes(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        let [a, b, rest @ ..] = cx.shape(0)?.dims() else {
            return Err(cx.shape_error(0, "at least two dimensions"));
        };
        let (batch, times) = if self.batch_first { (*a, *b) } else { (*b, *a) };
        Ok(Sizes { batch, times, inner: rest.iter().product() })
    }
}

impl Operator for ReverseSequence {
    fn name(&self) -> &'static str {
        "ReverseSequence"
    }

    fn quantized_move(&self, _: &OpCx) -> bool {
        true
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        cx.dtype_of(1, INDEX_TYPES)?;
        let batch = self.sizes(cx)?.batch;
        if cx.shape(1)?.dims() != [batch] {
            return Err(cx.shape_error(1, format!("[{batch}]")));
        }
        Ok(vec![cx.input(0)?.clone()])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 0, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (Sizes { batch, times, inner }, len_type) = (self.sizes(cx)?, cx.dtype(1)?);
        let (row, batch_first) = (inner * cx.dtype(0)?.bytes(), self.batch_first);
        Ok(NativeKernel::new("ReverseSequence", move |args| {
            let lens = mapped(args, 1, len_type, |n| {
                usize::try_from(n).ok().filter(|n| *n <= times).ok_or_else(|| KernelError::Value {
                    what: format!("a sequence of {n} elements in an axis of {times}"),
                })
            })?;
            let x = args.read::<u8>(0)?;
            let y = args.take_write::<u8>(2)?;
            if row == 0 {
                return Ok(());
            }
            for (i, y) in y.chunks_exact_mut(row).enumerate() {
                let (b, t) = if batch_first { (i / times, i % times) } else { (i % batch, i / batch) };
                let len = lens.get(b).copied().unwrap_or(0);
                let t = if t < len { len - 1 - t } else { t };
                let from = row * if batch_first { b * times + t } else { t * batch + b };
                if let Some(x) = x.get(from..from + row) {
                    y.copy_from_slice(x);
                }
            }
            Ok(())
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Sizes { batch, times, mut inner } = self.sizes(cx)?;
        let mut bytes = cx.dtype(0)?.bytes();
        while bytes < 16 && inner > 0 && inner.is_multiple_of(2) {
            inner /= 2;
            bytes *= 2;
        }
        let kernel = variants::ReverseSequence { t: Unit::Bytes(bytes) }.id()?;
        let n = batch * times * inner;
        let (batch_step, time_step) = if self.batch_first { (times, 1) } else { (1, batch) };
        let p = params::ReverseSequence {
            n: word(n)?,
            inner: word(inner)?,
            batch: word(batch)?,
            times: word(times)?,
            batch_step: word(batch_step)?,
            time_step: word(time_step)?,
        };
        let words = [(spec::reverse_sequence::INDEX_WORDS, index_words(cx.dtype(1)?))];
        let args = [Operand::Input(0), Operand::Input(1), Operand::Output(0)];
        lower.dispatch_1d(kernel, &words, &args, &p, n)
    }
}
