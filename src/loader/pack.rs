//! Places the parameters of a model in memory that a device can import.

use std::fs::File;
use std::sync::Arc;

use super::error::{LoadError, LoadErrorKind};
use super::parallel::{Piece, read_all};
use crate::graph::{Tensor, TensorInfo, TensorSource, WEIGHT_BYTES};
use crate::memory::host::{HostError, HostRegion, Unchanging};
use crate::memory::os;

/// Offsets of tensors are multiples of this: the most that a device may ask of a storage buffer's offset.
const ALIGNMENT: usize = 256;
/// Offsets of tensors that stay in a file are multiples of this: what an element and most devices ask.
const MAPPED: u64 = 16;
/// Less than this is not worth pages of its own.
const MIN_BYTES: usize = 4096;

/// A tensor to be placed.
pub(crate) struct Item {
    pub(crate) info: TensorInfo,
    /// Where its bytes come from: who has loaded them shares them.
    pub(crate) source: Option<TensorSource>,
    /// Its first bytes, where they are read from a file as they are: where each piece begins, and its bytes.
    pub(crate) reads: Option<(Arc<File>, Vec<(u64, u64)>)>,
    /// Whether it may stay in the file.
    pub(crate) map: Option<Unchanging>,
}

impl Item {
    /// A tensor that `fill` of [`pack`] writes.
    pub(crate) fn filled(info: TensorInfo) -> Item {
        Item { info, source: None, reads: None, map: None }
    }

    /// The tensor in the pages that the system caches of the file, where it may stay and suits them. Only who gave the
    /// promise shares one that is mapped.
    fn mapped(&self) -> Option<Tensor> {
        let map = self.map.filter(|_| self.is_large())?;
        let source = self.source.clone().map(|source| TensorSource { form: "mapped", ..source });
        if let Some(known) = source.as_ref().and_then(|source| source.known(&self.info)) {
            return Some(known);
        }
        let (file, pieces) = self.reads.as_ref()?;
        let [(at, bytes)] = *pieces.as_slice() else { return None };
        let suits = at.is_multiple_of(MAPPED) && bytes == self.info.bytes() as u64;
        // A texel view may round the end up.
        let bytes = bytes.checked_next_multiple_of(MAPPED).filter(|_| suits)?;
        let region = HostRegion::map_file(file, at, bytes, map);
        let region = region.inspect_err(|error| tracing::debug!(%error, "a tensor is read instead")).ok()?;
        let tensor = Tensor::in_region(self.info.clone(), Arc::new(region), 0).ok()?;
        Some(match source {
            Some(source) => source.remember(tensor),
            None => tensor,
        })
    }

    fn is_large(&self) -> bool {
        self.info.bytes() >= WEIGHT_BYTES
    }

    /// Large ones are read by several threads.
    fn is_read(&self) -> bool {
        self.is_large() && self.reads.is_some()
    }
}

/// Makes a tensor of each of `items`; `fill` writes the bytes of the one it is given the position of, or completes those
/// that were read, as its last argument says. Large ones get pages of their own, which are given back with them; the
/// others lie in one region. A large one that is in memory already is that one. `progress` hears of every one that is done.
///
/// The caller has checked the sum of the sizes against the size of the file they come from.
pub(crate) fn pack(
    items: &[Item],
    progress: Option<&dyn Fn(u64, u64)>,
    fill: impl FnMut(usize, &mut [u8], bool) -> Result<(), LoadError>,
) -> Result<Vec<Tensor>, LoadError> {
    let source = |item: &Item| item.source.clone().filter(|_| item.is_large());
    let known: Vec<Option<Tensor>> = (items.iter())
        .map(|item| {
            let read = source(item).and_then(|source| source.known(&item.info));
            read.or_else(|| item.mapped())
        })
        .collect();
    let missing = || known.iter().enumerate().filter(|(_, known)| known.is_none()).map(|(i, _)| i);
    let new: Vec<(usize, &Item)> = missing().filter_map(|i| Some((i, items.get(i)?))).collect();
    let mut made = place(&new, progress, fill)?.into_iter();
    let tensor = |(item, known): (&Item, Option<Tensor>)| match known {
        Some(tensor) => Some(tensor),
        None => made.next().map(|tensor| match source(item) {
            Some(source) => source.remember(tensor),
            None => tensor,
        }),
    };
    Ok(items.iter().zip(known).filter_map(tensor).collect())
}

/// [`pack`] of items with their positions, none of which is in memory.
fn place(
    items: &[(usize, &Item)],
    progress: Option<&dyn Fn(u64, u64)>,
    mut fill: impl FnMut(usize, &mut [u8], bool) -> Result<(), LoadError>,
) -> Result<Vec<Tensor>, LoadError> {
    let infos: Vec<&TensorInfo> = items.iter().map(|(_, item)| &item.info).collect();
    let places = Places::of(&infos).ok_or(LoadErrorKind::Memory(HostError::TooLarge { bytes: u64::MAX }))?;
    let total = places.total;
    if total < MIN_BYTES {
        let one =
            |(i, item): &(usize, &Item)| Tensor::build(item.info.clone(), |bytes| fill(*i, bytes, false));
        return items.iter().map(one).collect();
    }
    let mut region = HostRegion::new(total).map_err(LoadErrorKind::Memory)?;
    let report = |done: u64| {
        if let Some(progress) = progress {
            progress(done, total as u64);
        }
    };
    let mut done = read(items, &places, &mut region, &report)?;
    for ((i, item), offset) in items.iter().zip(&places.offsets) {
        let end = offset.saturating_add(item.info.bytes());
        if let Some(bytes) = region.as_mut_slice().get_mut(*offset..end) {
            fill(*i, bytes, item.is_read())?;
        }
        if !item.is_read() {
            done = done.saturating_add(item.info.bytes() as u64);
            report(done);
        }
    }
    report(total as u64);
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
    infos.into_iter().zip(places.offsets.iter().copied()).map(tensor).collect()
}

/// Reads those of `items` that are read from files; returns the bytes.
fn read(
    items: &[(usize, &Item)],
    places: &Places,
    region: &mut HostRegion,
    report: &dyn Fn(u64),
) -> Result<u64, LoadError> {
    let mut pieces: Vec<Piece<'_>> = Vec::new();
    // Large ones lie in the order of the items.
    let (mut rest, mut start) = (region.as_mut_slice(), 0usize);
    for ((_, item), offset) in items.iter().zip(&places.offsets).filter(|((_, item), _)| item.is_read()) {
        let Some((file, reads)) = &item.reads else { continue };
        let (_, after) =
            std::mem::take(&mut rest).split_at_mut_checked(offset.saturating_sub(start)).unwrap_or_default();
        let (mut to, after) = after.split_at_mut_checked(item.info.bytes()).unwrap_or_default();
        (rest, start) = (after, offset.saturating_add(item.info.bytes()));
        for &(at, bytes) in reads {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(to.len());
            let (piece, after) = std::mem::take(&mut to).split_at_mut_checked(bytes).unwrap_or_default();
            pieces.push(Piece { file, at, to: piece });
            to = after;
        }
    }
    read_all(pieces, report)
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
    fn of(infos: &[&TensorInfo]) -> Option<Places> {
        let mut places =
            Places { offsets: vec![0; infos.len()], cuts: Vec::new(), has_small: false, total: 0 };
        let is_large = |info: &&TensorInfo| info.bytes() >= WEIGHT_BYTES;
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
        let items: Vec<Item> = infos.iter().cloned().map(Item::filled).collect();
        let heard = std::cell::RefCell::new(Vec::new());
        let tensors = pack(&items, Some(&|done, all| heard.borrow_mut().push((done, all))), |i, bytes, _| {
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
        assert!(pack(&items[2..3], None, |_, _, _| Ok(())).unwrap()[0].region().is_none());
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
            let items: Vec<Item> = infos.iter().cloned().map(Item::filled).collect();
            let fill = |i: usize, bytes: &mut [u8], _| {
                bytes.fill(i as u8 + 1);
                Ok(())
            };
            let tensors = pack(&items, None, fill).unwrap();
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
