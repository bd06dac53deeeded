//! Places the parameters of a model in memory that a device can import.

use std::sync::Arc;

use super::error::{LoadError, LoadErrorKind};
use crate::graph::{Tensor, TensorInfo};
use crate::memory::host::{HostError, HostRegion};

/// Offsets of tensors are multiples of this: the most that a device may ask of a storage buffer's offset.
const ALIGNMENT: usize = 256;
/// Less than this is not worth pages of its own.
const MIN_BYTES: usize = 4096;

/// Makes a tensor of each of `infos`, all in one region; `fill` writes the bytes of the one it is given
/// the position of. `progress` hears of every one that is done.
///
/// The caller has checked the sum of the sizes against the size of the file they come from.
pub(crate) fn pack(
    infos: &[TensorInfo],
    progress: Option<&dyn Fn(u64, u64)>,
    mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), LoadError>,
) -> Result<Vec<Tensor>, LoadError> {
    let mut offsets = Vec::with_capacity(infos.len());
    let mut total = 0usize;
    for info in infos {
        let next = total.checked_add(info.bytes()).and_then(|n| n.checked_next_multiple_of(ALIGNMENT));
        offsets.push(total);
        total = next.ok_or(LoadErrorKind::Memory(HostError::TooLarge { bytes: u64::MAX }))?;
    }
    if total < MIN_BYTES {
        let one = |(i, info): (usize, &TensorInfo)| Tensor::build(info.clone(), |bytes| fill(i, bytes));
        return infos.iter().enumerate().map(one).collect();
    }
    let mut region = HostRegion::new(total).map_err(LoadErrorKind::Memory)?;
    let report = |done: usize| {
        if let Some(progress) = progress {
            progress(done as u64, total as u64);
        }
    };
    for (i, (info, offset)) in infos.iter().zip(&offsets).enumerate() {
        let end = offset.saturating_add(info.bytes());
        if let Some(bytes) = region.as_mut_slice().get_mut(*offset..end) {
            fill(i, bytes)?;
        }
        report(end);
    }
    report(total);
    let region = Arc::new(region);
    let tensor = |(info, offset): (&TensorInfo, usize)| {
        Ok(Tensor::in_region(info.clone(), region.clone(), offset).map_err(LoadErrorKind::Tensor)?)
    };
    infos.iter().zip(offsets).map(tensor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Shape};

    #[test]
    fn tensors_share_one_aligned_region() {
        let infos: Vec<TensorInfo> = [3000usize, 0, 5, 2000]
            .into_iter()
            .map(|n| TensorInfo::new(DType::I16, Shape::new([n]).unwrap()))
            .collect();
        let heard = std::cell::RefCell::new(Vec::new());
        let tensors = pack(&infos, Some(&|done, all| heard.borrow_mut().push((done, all))), |i, bytes| {
            bytes.fill(i as u8 + 1);
            Ok(())
        })
        .unwrap();
        assert_eq!(
            heard.into_inner(),
            [(6000, 10496), (6144, 10496), (6154, 10496), (10400, 10496), (10496, 10496)]
        );
        let first = tensors[0].region().unwrap().0;
        for (i, (t, info)) in tensors.iter().zip(&infos).enumerate() {
            let (region, offset) = t.region().unwrap();
            assert!(Arc::ptr_eq(region, first));
            assert_eq!((offset % ALIGNMENT, t.info()), (0, info));
            assert!(t.bytes().iter().all(|b| *b == i as u8 + 1));
        }
        assert!(pack(&infos[2..3], None, |_, _| Ok(())).unwrap()[0].region().is_none());
    }
}
