//! Places the parameters of a model in memory that a device can import.

use std::sync::Arc;

use super::error::{LoadError, LoadErrorKind};
use crate::graph::{Tensor, TensorInfo, WEIGHT_BYTES};
use crate::memory::host::{HostError, HostRegion};
use crate::memory::os;

/// Offsets of tensors are multiples of this: the most that a device may ask of a storage buffer's offset.
const ALIGNMENT: usize = 256;
/// Less than this is not worth pages of its own.
const MIN_BYTES: usize = 4096;

/// Makes a tensor of each of `infos`; `fill` writes the bytes of the one it is given the position of. Large ones get pages
/// of their own, which are given back with them; the others lie in one region. `progress` hears of every one that is done.
///
/// The caller has checked the sum of the sizes against the size of the file they come from.
pub(crate) fn pack(
    infos: &[TensorInfo],
    progress: Option<&dyn Fn(u64, u64)>,
    mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), LoadError>,
) -> Result<Vec<Tensor>, LoadError> {
    let places = Places::of(infos).ok_or(LoadErrorKind::Memory(HostError::TooLarge { bytes: u64::MAX }))?;
    let total = places.total;
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
    let mut done = 0;
    for (i, (info, offset)) in infos.iter().zip(&places.offsets).enumerate() {
        let end = offset.saturating_add(info.bytes());
        if let Some(bytes) = region.as_mut_slice().get_mut(*offset..end) {
            fill(i, bytes)?;
        }
        done = info.bytes().saturating_add(done);
        report(done);
    }
    report(total);
    let mut parts: Vec<Option<HostRegion>> =
        region.split(&places.cuts).map_err(LoadErrorKind::Memory)?.into_iter().map(Some).collect();
    let shared = parts.first_mut().filter(|_| places.has_small).and_then(Option::take).map(Arc::new);
    let tensor = |(info, offset): (&TensorInfo, usize)| -> Result<Tensor, LoadError> {
        if let Some(shared) = shared.as_ref().filter(|_| info.bytes() < WEIGHT_BYTES) {
            let tensor = Tensor::in_region(info.clone(), Arc::clone(shared), offset);
            return Ok(tensor.map_err(LoadErrorKind::Tensor)?);
        }
        if info.bytes() == 0 {
            return Tensor::build(info.clone(), |_| Ok(()));
        }
        let part = places.cuts.partition_point(|cut| *cut <= offset);
        let part = parts.get_mut(part).and_then(Option::take);
        let part = part.ok_or_else(|| LoadErrorKind::missing("the pages of a tensor"))?;
        Ok(Tensor::weight(info.clone(), part).map_err(LoadErrorKind::Tensor)?)
    };
    infos.iter().zip(places.offsets.iter().copied()).map(tensor).collect()
}
/// Where tensors lie in one piece of memory: small ones first, then large ones in pages of their own.
struct Places {
    offsets: Vec<usize>,
    /// Where the pages of large ones begin, but for one at the beginning.
    cuts: Vec<usize>,
    has_small: bool,
    total: usize,
}

impl Places {
    /// `None` where no address space is as large.
    fn of(infos: &[TensorInfo]) -> Option<Places> {
        let mut places =
            Places { offsets: vec![0; infos.len()], cuts: Vec::new(), has_small: false, total: 0 };
        let is_large = |info: &TensorInfo| info.bytes() >= WEIGHT_BYTES;
        for large in [false, true] {
            let alignment = if large { os::page_size() } else { ALIGNMENT };
            for (info, offset) in infos.iter().zip(&mut places.offsets).filter(|(i, _)| is_large(i) == large)
            {
                let start = places.total.checked_next_multiple_of(alignment)?;
                if large && start > 0 {
                    places.cuts.push(start);
                }
                *offset = start;
                places.total = start.checked_add(info.bytes())?.checked_next_multiple_of(alignment)?;
            }
            places.has_small |= !large && places.total > 0;
        }
        Some(places)
    }
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
            [(6000, 10496), (6000, 10496), (6010, 10496), (10010, 10496), (10496, 10496)]
        );
        let first = tensors[0].region().unwrap().0;
        for (i, (t, info)) in tensors.iter().zip(&infos).enumerate() {
            let (region, offset) = t.region().unwrap();
            assert!(Arc::ptr_eq(&region, &first));
            assert_eq!((offset % ALIGNMENT, t.info()), (0, info));
            assert!(t.bytes().iter().all(|b| *b == i as u8 + 1));
        }
        assert!(pack(&infos[2..3], None, |_, _| Ok(())).unwrap()[0].region().is_none());
    }

    #[test]
    fn large_tensors_have_pages_of_their_own() {
        let sizes = [WEIGHT_BYTES + 1, 0, 5, 3 * WEIGHT_BYTES, 7000];
        for skip in [0, 1, 3] {
            let infos: Vec<TensorInfo> = (sizes.iter().enumerate())
                .filter(|(i, n)| {
                    skip == 0 || (skip == 1 && **n >= WEIGHT_BYTES) || (skip == 3 && *i != 2 && *i != 4)
                })
                .map(|(_, n)| TensorInfo::new(DType::U8, Shape::new([*n]).unwrap()))
                .collect();
            let fill = |i: usize, bytes: &mut [u8]| {
                bytes.fill(i as u8 + 1);
                Ok(())
            };
            let tensors = pack(&infos, None, fill).unwrap();
            for (i, (t, info)) in tensors.iter().zip(&infos).enumerate() {
                assert_eq!((t.info(), t.is_weight()), (info, info.bytes() >= WEIGHT_BYTES));
                assert_eq!(t.bytes(), vec![i as u8 + 1; info.bytes()]);
                if let Some((region, offset)) = t.region().filter(|_| t.is_weight()) {
                    let page = os::page_size();
                    assert_eq!(
                        (offset, region.bytes() % page, region.as_ptr().addr().get() % page),
                        (0, 0, 0)
                    );
                    assert!(region.bytes() < info.bytes() + page);
                }
            }
        }
    }
}
