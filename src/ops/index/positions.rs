//! Positions along axes from the indices that tensors hold, on the host and on devices.

use crate::dtype::DType;
use crate::kernel::table::{id, params, spec};
use crate::kernel::{KernelError, NativeArgs};
use crate::ops::word::word;
use crate::ops::{Lowering, OpError, Operand};

/// Types of indices.
pub(crate) const INDEX_TYPES: &[DType] = &[DType::I64, DType::I32];
/// Indices of one tuple that the device kernel combines.
const MAX_KERNEL_TUPLE: usize = 8;

/// The position that index `i` means on an axis of `size`; negative ones count from the end.
pub(crate) fn position(i: i64, size: usize) -> Result<usize, KernelError> {
    let n = size as i64;
    let at = if i < 0 { i.saturating_add(n) } else { i };
    if (0..n).contains(&at) {
        return Ok(at as usize);
    }
    Err(KernelError::Value { what: format!("index {i} is out of range for an axis of {size} elements") })
}

/// The integers of argument `arg`, of type `dtype`, each mapped by `f`.
pub(crate) fn mapped<T>(
    args: &NativeArgs<'_, '_>,
    arg: usize,
    dtype: DType,
    f: impl Fn(i64) -> Result<T, KernelError>,
) -> Result<Vec<T>, KernelError> {
    Ok(match Indices::read(args, arg, dtype)? {
        Indices::Long(all) => each_mapped(all, |i| f(*i))?,
        Indices::Short(all) => each_mapped(all, |i| f((*i).into()))?,
    })
}

/// Every one of `all` mapped by `f`. Room for all is made first: `collect` does not know how many come before an error.
fn each_mapped<I, T>(all: &[I], f: impl Fn(&I) -> Result<T, KernelError>) -> Result<Vec<T>, KernelError> {
    let mut mapped = Vec::with_capacity(all.len());
    for i in all {
        mapped.push(f(i)?);
    }
    Ok(mapped)
}

/// The integers of an argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Indices<'a> {
    /// Of 64 bits.
    Long(&'a [i64]),
    /// Of 32 bits.
    Short(&'a [i32]),
}

impl<'a> Indices<'a> {
    /// Those of argument `arg`, of type `dtype`.
    pub(crate) fn read(args: &NativeArgs<'a, '_>, arg: usize, dtype: DType) -> Result<Self, KernelError> {
        Ok(if dtype == DType::I64 { Indices::Long(args.read(arg)?) } else { Indices::Short(args.read(arg)?) })
    }

    /// Writes to `to` the positions on an axis of `size` that the indices from number `first` on mean.
    pub(crate) fn positions(&self, first: usize, size: usize, to: &mut [usize]) -> Result<(), KernelError> {
        fn all<I: Copy + Into<i64>>(
            from: Option<&[I]>,
            size: usize,
            to: &mut [usize],
        ) -> Result<(), KernelError> {
            let from = from.filter(|from| from.len() == to.len());
            let from =
                from.ok_or_else(|| KernelError::Value { what: "fewer indices than elements".to_owned() })?;
            for (to, i) in to.iter_mut().zip(from) {
                *to = position((*i).into(), size)?;
            }
            Ok(())
        }
        let range = first..first.saturating_add(to.len());
        match self {
            Indices::Long(from) => all(from.get(range), size, to),
            Indices::Short(from) => all(from.get(range), size, to),
        }
    }
}

/// Words of one index of `dtype` in the kernels, which read the lower one.
pub(crate) fn index_words(dtype: DType) -> u32 {
    if dtype == DType::I64 { 2 } else { 1 }
}

/// Tuples of indices, each of which names a slice of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tuples {
    /// Their number.
    pub count: usize,
    /// Number of tuples that share one element of the batch.
    pub per_batch: usize,
    /// Slices of one element of the batch.
    pub batch_slices: usize,
    /// Sizes of the axes that a tuple indexes.
    pub sizes: Vec<usize>,
    /// Elements of one slice.
    pub inner: usize,
}

impl Tuples {
    /// Tuples along the last axis of a tensor of shape `indices` into one of shape `data`, of which the
    /// first `batch` axes are common; `None` where the shapes do not fit.
    pub(crate) fn new(data: &[usize], indices: &[usize], batch: usize) -> Option<Tuples> {
        let (&k, outer) = indices.split_last()?;
        if batch > outer.len() || batch + k > data.len() || data[..batch] != outer[..batch] {
            return None;
        }
        let sizes = data[batch..batch + k].to_vec();
        Some(Tuples {
            count: outer.iter().product(),
            per_batch: outer[batch..].iter().product(),
            batch_slices: sizes.iter().product(),
            sizes,
            inner: data[batch + k..].iter().product(),
        })
    }

    /// Slices of the data that can be named.
    pub(crate) fn slices(&self) -> usize {
        let batches = self.count.checked_div(self.per_batch).unwrap_or(0);
        self.batch_slices * batches
    }

    /// The number of the slice that each tuple of argument `arg` names.
    pub(crate) fn positions(
        &self,
        args: &NativeArgs<'_, '_>,
        arg: usize,
        dtype: DType,
    ) -> Result<Vec<usize>, KernelError> {
        let indices = mapped(args, arg, dtype, Ok)?;
        let k = self.sizes.len();
        (0..self.count)
            .map(|t| {
                let tuple = indices.get(t * k..(t + 1) * k).unwrap_or(&[]);
                let within = tuple
                    .iter()
                    .zip(&self.sizes)
                    .try_fold(0, |at, (&i, &size)| position(i, size).map(|p| at * size + p))?;
                Ok(t / self.per_batch.max(1) * self.batch_slices + within)
            })
            .collect()
    }

    /// Emits the kernel that writes the slices' numbers as `int` to a scratch range, which is returned.
    /// A tuple out of range gives the lowest integer.
    pub(crate) fn lower(
        &self,
        lower: &mut Lowering<'_>,
        indices: Operand,
        dtype: DType,
    ) -> Result<Operand, OpError> {
        if self.sizes.len() > MAX_KERNEL_TUPLE || self.slices() > i32::MAX as usize {
            return Err(OpError::unsupported(format!(
                "tuples of {} indices of {} slices, the kernel combines {MAX_KERNEL_TUPLE} of {}",
                self.sizes.len(),
                self.slices(),
                i32::MAX
            )));
        }
        let out = lower.scratch(4 * self.count);
        let mut p = params::IndexTuples {
            sizes: [1; 8],
            n: word(self.count)?,
            per_batch: word(self.per_batch)?,
            batch_slices: word(self.batch_slices)?,
        };
        for (to, &size) in p.sizes.iter_mut().zip(&self.sizes) {
            *to = word(size)?;
        }
        let constants = [
            (spec::index_tuples::INDEX_WORDS, index_words(dtype)),
            (spec::index_tuples::TUPLE, self.sizes.len() as u32),
        ];
        lower.dispatch_1d(id::INDEX_TUPLES, &constants, &[indices, out], &p, self.count)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_count_from_both_ends_and_are_bounded() {
        assert_eq!(position(-1, 3).unwrap(), 2);
        assert_eq!(position(0, 3).unwrap(), 0);
        assert!(position(3, 3).is_err());
        assert!(position(-4, 3).is_err());
        assert!(position(i64::MIN, 3).is_err());
    }

    #[test]
    fn tuples_fit_the_axes_behind_the_batch() {
        let t = Tuples::new(&[2, 3, 4, 5], &[2, 7, 2], 1).unwrap();
        assert_eq!((t.count, t.per_batch, t.batch_slices, t.inner), (14, 7, 12, 5));
        assert_eq!((t.sizes.as_slice(), t.slices()), (&[3, 4][..], 24));
        assert!(Tuples::new(&[2, 3], &[3, 1], 1).is_none());
        assert!(Tuples::new(&[2, 3], &[2, 3], 0).is_none());
        assert!(Tuples::new(&[2, 3], &[], 0).is_none());
    }
}
