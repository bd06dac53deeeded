//! com.microsoft's RelativePositionBias: what T5 adds to a score for the distance of query and key.

use std::sync::Arc;

use super::count;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::{KernelError, NativeKernel};
use crate::limits;
use crate::ops::index::gather;
use crate::ops::real::check_len;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, PackKey};
use crate::shape::Shape;

/// The types that it takes.
pub(super) const TYPES: &[DType] = &[DType::F32, DType::F16];

// Positions of the arguments.
const TABLE: usize = 0;
const QUERIES: usize = 1;
const KEYS: usize = 2;
const Y: usize = 3;

/// Inputs: a table of shape `[buckets, heads]` whose elements lie as those of `[heads, buckets]`, the number of queries
/// and that of keys, which are equal. Output: `[1, heads, queries, keys]`.
#[derive(Clone, Copy, Debug)]
pub struct RelativePositionBias {
    /// Whether keys after a query have buckets of their own; else those at one distance on both sides share one.
    pub bidirectional: bool,
    /// The distance from which on all are in the last bucket.
    pub max_distance: usize,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(RelativePositionBias {
        bidirectional: attrs.flag("is_bidirectional", false)?,
        max_distance: count(attrs, "max_distance", 1)?,
    }))
}

/// A [`RelativePositionBias`] for given inputs.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    op: RelativePositionBias,
    buckets: usize,
    heads: usize,
    len: usize,
}

impl RelativePositionBias {
    fn resolve(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        let &[buckets, heads] = cx.shape(TABLE)?.dims() else {
            return Err(cx.shape_error(TABLE, "[buckets, heads]"));
        };
        let length = |input: usize| {
            let values = cx.value(input).ok_or(OpError::NeedsValue { input })?;
            match values.to_i64s()?[..] {
                [n] if n >= 0 => Ok(n as usize),
                _ => Err(cx.shape_error(input, "one number that is not negative")),
            }
        };
        let (len, keys) = (length(QUERIES)?, length(KEYS)?);
        if len != keys {
            let problem = format!("is {keys}, expected the number of queries, {len}");
            return Err(OpError::Value { input: KEYS, problem });
        }
        let side = if self.bidirectional { buckets / 2 } else { buckets };
        if side < 2 || self.max_distance <= side / 2 {
            let expected = format!("buckets for distances up to {}", self.max_distance);
            return Err(cx.shape_error(TABLE, expected));
        }
        Ok(Sizes { op: *self, buckets, heads, len })
    }
}

impl Sizes {
    /// The bucket of a key `distance` after the query.
    fn bucket(&self, distance: i64) -> usize {
        let (mut first, mut side) = (0, self.buckets);
        if self.op.bidirectional {
            side /= 2;
            first = if distance > 0 { side } else { 0 };
        }
        let (distance, exact) = (distance.unsigned_abs() as usize, side / 2);
        if distance < exact {
            return first + distance;
        }
        let part = |n: usize| (n as f32 / exact as f32).ln();
        let large = part(distance) / part(self.op.max_distance) * (side - exact) as f32;
        first + (exact + large as usize).min(side - 1)
    }

    /// The buckets of all distances, from that of the first key and the last query on.
    fn distances(&self) -> Vec<usize> {
        let last = self.len as i64 - 1;
        (-last..=last).map(|distance| self.bucket(distance)).collect()
    }
}

impl Operator for RelativePositionBias {
    fn name(&self) -> &'static str {
        "RelativePositionBias"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[QUERIES, KEYS]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=3, 1..=1)?;
        let dtype = cx.dtype_of(TABLE, TYPES)?;
        cx.expect_dtype(QUERIES, DType::I64)?;
        cx.expect_dtype(KEYS, DType::I64)?;
        let s = self.resolve(cx)?;
        Ok(vec![TensorInfo::new(dtype, Shape::new([1, s.heads, s.len, s.len])?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 0, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (s, size) = (self.resolve(cx)?, cx.dtype(TABLE)?.bytes());
        Ok(NativeKernel::new(self.name(), move |args| {
            let table = args.read::<u8>(TABLE)?;
            check_len(TABLE, table.len(), s.heads * s.buckets * size)?;
            let y = args.take_write::<u8>(Y)?;
            check_len(Y, y.len(), s.heads * s.len * s.len * size)?;
            let distances = s.distances();
            let absent = KernelError::Absent { index: TABLE };
            for (row, y) in y.chunks_mut((s.len * size).max(1)).enumerate() {
                let (head, query) = (row / s.len, row % s.len);
                let table = &table[head * s.buckets * size..][..s.buckets * size];
                let buckets = distances.get(s.len - 1 - query..).ok_or_else(|| absent.clone())?;
                for (y, bucket) in y.chunks_mut(size).zip(buckets) {
                    y.copy_from_slice(&table[bucket * size..][..size]);
                }
            }
            Ok(())
        }))
    }

    /// A gather by the buckets, which the host computes once.
    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let s = self.resolve(cx)?;
        let places = s.len.saturating_mul(s.len);
        if places.saturating_mul(4) > limits::MAX_FOLDED_BYTES {
            return Err(OpError::unsupported(format!("RelativePositionBias of {} queries", s.len)));
        }
        if places == 0 || s.heads == 0 {
            return Ok(());
        }
        let distances = s.distances();
        let rows = (0..s.len).flat_map(|query| &distances[s.len - 1 - query..][..s.len]);
        let indices: Vec<i32> = rows.map(|bucket| *bucket as i32).collect();
        let indices = Tensor::new([places], &indices)?;
        let key = PackKey { layout: "buckets", numbers: [0; 4] };
        let indices = lower.packed(&indices, key, places * 4, |t, out| {
            out.iter_mut().zip(t.bytes()).for_each(|(o, b)| *o = *b);
            Ok(())
        });
        let sizes = gather::Sizes { outer: s.heads, size: s.buckets, inner: 1, indices: places };
        let args = [Operand::Input(TABLE), indices, Operand::Output(0)];
        sizes.lower(lower, cx.dtype(TABLE)?.bytes(), args, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_util::{facts, run_cpu, tensor, tensor_of, values};

    fn length(n: i64) -> Option<Tensor> {
        Some(Tensor::from_i64s(&[n]))
    }

    /// T5's own numbers: 32 buckets, distances to 128.
    #[test]
    fn distances_have_the_buckets_of_t5() {
        let s = |bidirectional| Sizes {
            op: RelativePositionBias { bidirectional, max_distance: 128 },
            buckets: 32,
            heads: 1,
            len: 1,
        };
        let of =
            |bidirectional, all: &[i64]| all.iter().map(|d| s(bidirectional).bucket(*d)).collect::<Vec<_>>();
        assert_eq!(
            of(true, &[0, -1, -7, -8, -11, -12, -15, -90, -127, -500]),
            [0, 1, 7, 8, 8, 9, 9, 14, 15, 15]
        );
        assert_eq!(of(true, &[1, 7, 8, 12, 127, 500]), [17, 23, 24, 25, 31, 31]);
        assert_eq!(of(false, &[0, -1, 15, -15, -16, -20, 127, -128]), [0, 1, 15, 15, 16, 17, 31, 31]);
    }

    #[test]
    fn every_head_has_a_bias_for_each_distance() {
        let op = RelativePositionBias { bidirectional: true, max_distance: 20 };
        for n in [1, 5, 40] {
            let inputs = [Some(tensor(&[8, 3], 1)), length(n), length(n)];
            let got = run_cpu(&op, &inputs, 1).unwrap().remove(0);
            let n = n as usize;
            assert_eq!(got.shape().dims(), [1, 3, n, n]);
            let (table, got) = (inputs[0].as_ref().unwrap().to_f32s().unwrap(), got.to_f32s().unwrap());
            let s = Sizes { op, buckets: 8, heads: 3, len: n };
            for (i, got) in got.iter().enumerate() {
                let (head, query, key) = (i / n / n, i / n % n, i % n);
                assert_eq!(*got, table[head * 8 + s.bucket(key as i64 - query as i64)]);
            }
            #[cfg(feature = "vulkan")]
            {
                let half = tensor_of(&[8, 3], &values(24, 1), half::f16::from_f32);
                for table in [inputs[0].clone(), Some(half)] {
                    let inputs = [table, inputs[1].clone(), inputs[2].clone()];
                    crate::ops::testing::Check::new(&op, &inputs).run();
                }
            }
        }
        let infers = |table: &[usize], q: i64, k: i64| {
            facts(&op, &[Some(tensor(table, 1)), length(q), length(k)], 1).is_ok()
        };
        assert!(infers(&[8, 3], 4, 4) && !infers(&[8, 3], 4, 5) && !infers(&[8, 3], -1, -1));
        assert!(!infers(&[2, 3], 4, 4) && !infers(&[8], 4, 4) && !infers(&[80, 3], 4, 4));
    }
}
