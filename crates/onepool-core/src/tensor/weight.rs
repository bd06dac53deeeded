//! Large constants: on the host with their bytes as they are, or only in a layout that devices read.
//!
//! A device that shares the host's memory reads a packed layout where it was packed, and often no one reads the
//! bytes as they are any more. Where the layout has every element, the bytes follow from it: they are given back, and
//! made again for whoever asks. Nothing here needs the file that they came from.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use crc32fast::Hasher;

use super::packed::{PackInPlaceFn, PackKey, PackLines, UnpackFn};
use crate::memory::host::{HostError, HostRegion};
use crate::sync::lock;

/// Constants of at least so many bytes are moved to a packed layout part by part.
const MOVED: usize = 4 * PART;
/// Bytes that are moved at a time: a huge page.
const PART: usize = 2 << 20;

/// The bytes of one constant, in pages of their own.
pub(crate) struct Weight {
    bytes: usize,
    /// Bytes that were lent as a slice stay for as long as the constant.
    lent: OnceLock<Arc<HostRegion>>,
    forms: Mutex<Forms>,
    /// What a device held was found to be gone.
    lost: AtomicBool,
}

struct Forms {
    /// All others follow from it.
    kept: Kept,
    /// Forms that another owner may still hold.
    plain: Weak<HostRegion>,
    packed: Vec<(PackKey, Weak<HostRegion>)>,
}

enum Kept {
    Plain(Arc<HostRegion>),
    Packed(Arc<HostRegion>, Arc<UnpackFn>),
    /// Outside the host's own pages, as they are or in a layout of so many bytes; with the checksum of all bytes, because
    /// a device that is lost may leave anything there.
    Stored(Arc<dyn WeightStore>, Option<(usize, Arc<UnpackFn>)>, u32),
}

/// Memory of a device that it shares with the host and that holds a constant's bytes.
pub trait WeightStore: Send + Sync {
    /// Copies its first bytes.
    ///
    /// # Errors
    /// [`HostError::Unreadable`].
    fn read(&self, to: &mut [u8]) -> Result<(), HostError>;

    /// Whether the device is still there; what its memory holds, a checksum tells.
    fn is_there(&self) -> bool;
}

/// How a layout is made of bytes that are given back meanwhile.
pub(crate) enum Way<'a> {
    /// Lines at a time.
    Lines(&'a PackLines),
    /// Where the bytes lie.
    InPlace(&'a PackInPlaceFn),
}

/// The layout that bytes are moved to: how, and what turns it back.
pub(crate) struct MovedLayout<'a> {
    /// Its size in bytes.
    pub bytes: usize,
    /// How it is made.
    pub way: Way<'a>,
    /// What turns it into all bytes.
    pub unpack: &'a Arc<UnpackFn>,
}

impl Weight {
    /// The first `bytes` of a region.
    pub(super) fn new(region: HostRegion, bytes: usize) -> Weight {
        let region = Arc::new(region);
        let plain = Arc::downgrade(&region);
        let forms = Forms { kept: Kept::Plain(region), plain, packed: Vec::new() };
        Weight { bytes, lent: OnceLock::new(), forms: Mutex::new(forms), lost: AtomicBool::new(false) }
    }

    /// The bytes, which stay from now on.
    pub(super) fn bytes(&self) -> &[u8] {
        let lent = self.lent.get_or_init(|| {
            let mut forms = self.lock();
            let region = forms.plain(self.bytes).unwrap_or_else(|_| no_memory(self.bytes));
            forms.kept = Kept::Plain(Arc::clone(&region));
            region
        });
        lent.as_slice().get(..self.bytes).unwrap_or_default()
    }

    /// The bytes as they are, for as long as the caller holds them.
    pub(super) fn plain(&self) -> Result<Arc<HostRegion>, HostError> {
        let plain = self.lock().plain(self.bytes);
        if matches!(plain, Err(HostError::Unreadable { .. })) {
            self.lost.store(true, Ordering::Relaxed);
        }
        plain
    }

    /// Whether the bytes can be had, as far as is known without reading them.
    pub(super) fn is_there(&self) -> bool {
        let stored = match &self.lock().kept {
            Kept::Stored(store, ..) => Some(Arc::clone(store)),
            Kept::Plain(_) | Kept::Packed(..) => None,
        };
        !self.lost.load(Ordering::Relaxed) && stored.is_none_or(|store| store.is_there())
    }

    /// What is kept in the host's own pages, in whatever form.
    pub(super) fn kept(&self) -> Option<Arc<HostRegion>> {
        match &self.lock().kept {
            Kept::Plain(region) | Kept::Packed(region, _) => Some(Arc::clone(region)),
            Kept::Stored(..) => None,
        }
    }

    /// The layout `key`, where it is held.
    pub(super) fn packed(&self, key: &PackKey) -> Option<Arc<HostRegion>> {
        let forms = self.lock();
        forms.packed.iter().find(|(found, _)| found == key).and_then(|(_, region)| region.upgrade())
    }

    /// Keeps the bytes as they are, which `region` holds and which are read, unless a packed layout is read too.
    pub(super) fn keep_plain(&self, region: &Arc<HostRegion>) {
        let mut forms = self.lock();
        match &forms.kept {
            Kept::Packed(packed, _) if Arc::strong_count(packed) > 1 => {}
            _ => forms.kept = Kept::Plain(Arc::clone(region)),
        }
        forms.plain = Arc::downgrade(region);
    }

    /// Keeps the bytes only in the layout `key`, which `region` holds and `unpack` turns into the bytes. What was
    /// lent stays too.
    pub(super) fn keep_packed(&self, key: PackKey, region: &Arc<HostRegion>, unpack: &Arc<UnpackFn>) {
        let mut forms = self.lock();
        forms.packed.retain(|(other, held)| *other != key && held.strong_count() > 0);
        forms.packed.push((key, Arc::downgrade(region)));
        if self.lent.get().is_none() {
            forms.kept = Kept::Packed(Arc::clone(region), Arc::clone(unpack));
        }
    }

    /// Moves the bytes into the layout `key` of `packed` bytes, lines at a time: what has moved is given back. Nothing
    /// where the bytes are held, or where they are few.
    pub(super) fn move_packed(
        &self,
        key: PackKey,
        packed: usize,
        lines: &PackLines,
        unpack: &Arc<UnpackFn>,
    ) -> Result<Option<Arc<HostRegion>>, HostError> {
        if self.bytes < MOVED || lines.bytes == 0 || !self.bytes.is_multiple_of(lines.bytes) {
            return Ok(None);
        }
        let mut to = HostRegion::new(packed)?;
        let mut forms = self.lock();
        let Some(own) = forms.take()? else { return Ok(None) };
        drain(own, self.bytes, lines.bytes, |range, from| (lines.pack)(range, from, to.as_mut_slice()));
        let to = Arc::new(to);
        forms.kept = Kept::Packed(Arc::clone(&to), Arc::clone(unpack));
        forms.packed.retain(|(other, held)| *other != key && held.strong_count() > 0);
        forms.packed.push((key, Arc::downgrade(&to)));
        Ok(Some(to))
    }

    /// Makes the layout `key` where the bytes lie, in a region of at least `packed` bytes. Nothing where the
    /// bytes are held, or the region is smaller.
    pub(super) fn pack_in_place(
        &self,
        key: PackKey,
        packed: usize,
        pack: &PackInPlaceFn,
        unpack: &Arc<UnpackFn>,
    ) -> Result<Option<Arc<HostRegion>>, HostError> {
        let mut forms = self.lock();
        let Some(mut own) = forms.take()? else { return Ok(None) };
        if own.bytes() < packed {
            forms.kept = Kept::Plain(Arc::new(own));
            return Ok(None);
        }
        pack(own.as_mut_slice().get_mut(..self.bytes).unwrap_or_default());
        let to = Arc::new(own);
        forms.kept = Kept::Packed(Arc::clone(&to), Arc::clone(unpack));
        // No one holds the bytes as they were.
        forms.plain = Weak::new();
        forms.packed.retain(|(other, held)| *other != key && held.strong_count() > 0);
        forms.packed.push((key, Arc::downgrade(&to)));
        Ok(Some(to))
    }

    /// Moves the bytes to memory that `store` reads from then on and that `write` lends for writing, as they are or in a
    /// layout: what has moved is given back meanwhile. `false`, and nothing done, where the bytes are held.
    pub(super) fn move_to<E: From<HostError>>(
        &self,
        layout: Option<MovedLayout<'_>>,
        store: Arc<dyn WeightStore>,
        write: impl FnOnce(&mut dyn FnMut(&mut [u8])) -> Result<(), E>,
    ) -> Result<bool, E> {
        let line = match &layout {
            Some(MovedLayout { way: Way::Lines(lines), .. }) => lines.bytes,
            _ => 1,
        };
        if line == 0 || !self.bytes.is_multiple_of(line) {
            return Ok(false);
        }
        let mut forms = self.lock();
        let mut own = match forms.take()? {
            Some(own) => Some(own),
            None => return Ok(false),
        };
        let mut sum = Hasher::new();
        let written = write(&mut |to| {
            let Some(mut own) = own.take() else { return };
            let in_place = match &layout {
                Some(MovedLayout { way: Way::InPlace(pack), .. }) => Some(pack),
                _ => None,
            };
            // The checksum is of the bytes as they are.
            if let Some(pack) = in_place {
                let bytes = own.as_mut_slice().get_mut(..self.bytes).unwrap_or_default();
                sum.update(bytes);
                pack(bytes);
            }
            drain(own, self.bytes, line, |range, from| {
                if in_place.is_none() {
                    sum.update(from);
                }
                match &layout {
                    Some(MovedLayout { way: Way::Lines(lines), .. }) => (lines.pack)(range, from, to),
                    _ => to.get_mut(range).into_iter().for_each(|to| to.copy_from_slice(from)),
                }
            });
        });
        if let Some(own) = own {
            forms.kept = Kept::Plain(Arc::new(own));
            return written.map(|()| false);
        }
        let layout = layout.map(|layout| (layout.bytes, Arc::clone(layout.unpack)));
        forms.kept = Kept::Stored(store, layout, sum.finalize());
        written.map(|()| true)
    }

    /// Keeps the bytes only in `store`, which holds them as they are or in a layout. What was lent stays too.
    pub(super) fn keep_stored(&self, store: Arc<dyn WeightStore>, layout: Option<(usize, Arc<UnpackFn>)>) {
        let mut forms = self.lock();
        // Where the bytes cannot be read now, they stay as they are kept.
        if self.lent.get().is_none()
            && let Ok(plain) = forms.plain(self.bytes)
        {
            let sum = crc32fast::hash(plain.as_slice().get(..self.bytes).unwrap_or_default());
            forms.kept = Kept::Stored(store, layout, sum);
        }
    }

    /// Brings the bytes back to pages of the host's, where a device's memory alone has them.
    pub(super) fn recall(&self) -> Result<(), HostError> {
        let mut forms = self.lock();
        if matches!(forms.kept, Kept::Stored(..)) {
            forms.kept = Kept::Plain(forms.plain(self.bytes)?);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Forms> {
        lock(&self.forms)
    }
}

/// Gives lines of `line` bytes to `pack`, some at a time and in order, and gives back what it has had.
fn drain(mut rest: HostRegion, bytes: usize, line: usize, mut pack: impl FnMut(Range<usize>, &[u8])) {
    // Where `rest` begins.
    let mut start = 0;
    let (count, step) = (bytes / line, (PART / line).max(1));
    for first in (0..count).step_by(step) {
        let last = (first + step).min(count);
        let range = first * line - start..last * line - start;
        pack(first..last, rest.as_slice().get(range.clone()).unwrap_or_default());
        let done = range.end / PART * PART;
        if done > 0 {
            rest = match rest.without_front(done) {
                Ok(rest) => {
                    start += done;
                    rest
                }
                Err(rest) => rest,
            };
        }
    }
}

impl Forms {
    /// The bytes as they are, where they are kept so and no one else holds them.
    fn take(&mut self) -> Result<Option<HostRegion>, HostError> {
        let Kept::Plain(region) = &mut self.kept else { return Ok(None) };
        let nothing = Arc::new(HostRegion::new(0)?);
        match Arc::try_unwrap(std::mem::replace(region, nothing)) {
            Ok(own) => Ok(Some(own)),
            Err(held) => {
                *region = held;
                Ok(None)
            }
        }
    }

    fn plain(&mut self, bytes: usize) -> Result<Arc<HostRegion>, HostError> {
        if let Some(region) = self.plain.upgrade() {
            return Ok(region);
        }
        let region = match &self.kept {
            Kept::Plain(region) => Arc::clone(region),
            Kept::Packed(packed, unpack) => {
                // A texel view may round the end up.
                let mut region = HostRegion::new(bytes.next_multiple_of(16))?;
                unpack(packed.as_slice(), region.as_mut_slice().get_mut(..bytes).unwrap_or_default());
                Arc::new(region)
            }
            Kept::Stored(store, layout, sum) => {
                let mut region = HostRegion::new(bytes.next_multiple_of(16))?;
                let plain = region.as_mut_slice().get_mut(..bytes).unwrap_or_default();
                match layout {
                    None => store.read(plain)?,
                    Some((packed_bytes, unpack)) => {
                        let mut packed = HostRegion::new(*packed_bytes)?;
                        store.read(packed.as_mut_slice().get_mut(..*packed_bytes).unwrap_or_default())?;
                        unpack(packed.as_slice(), plain);
                    }
                }
                if crc32fast::hash(plain) != *sum {
                    let cause = "the device's memory no longer holds them".to_owned();
                    return Err(HostError::Unreadable { cause });
                }
                Arc::new(region)
            }
        };
        self.plain = Arc::downgrade(&region);
        Ok(region)
    }
}

/// What an allocation does that cannot fail.
pub(super) fn no_memory(bytes: usize) -> ! {
    match std::alloc::Layout::from_size_align(bytes, 1) {
        Ok(layout) => std::alloc::handle_alloc_error(layout),
        Err(_) => std::process::abort(),
    }
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Weight({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: PackKey = PackKey { layout: "backwards", numbers: [0; 4] };
    const BYTES: [u8; 4] = [1, 2, 3, 4];

    fn unpack() -> Arc<UnpackFn> {
        Arc::new(|packed, plain| plain.iter_mut().zip(packed.iter().rev()).for_each(|(to, from)| *to = *from))
    }

    fn weight() -> Weight {
        Weight::new(HostRegion::from_bytes(&BYTES).unwrap(), BYTES.len())
    }

    fn pack(weight: &Weight) -> Arc<HostRegion> {
        let region = Arc::new(HostRegion::from_bytes(&[4, 3, 2, 1]).unwrap());
        weight.keep_packed(KEY, &region, &unpack());
        region
    }

    #[test]
    fn packed_bytes_are_the_only_ones_until_asked_for() {
        let weight = weight();
        let before = Arc::downgrade(&weight.plain().unwrap());
        let packed = pack(&weight);
        assert!(before.upgrade().is_none());
        assert!(
            Arc::ptr_eq(&weight.kept().unwrap(), &packed)
                && Arc::ptr_eq(&weight.packed(&KEY).unwrap(), &packed)
        );
        let plain = weight.plain().unwrap();
        assert_eq!(plain.as_slice()[..4], BYTES);
        assert!(Arc::ptr_eq(&plain, &weight.plain().unwrap()));
        let again = Arc::downgrade(&plain);
        drop(plain);
        assert!(again.upgrade().is_none());
        // A slice lasts.
        assert_eq!(weight.bytes(), BYTES);
        drop(packed);
        assert!(weight.packed(&KEY).is_none());
        let packed = Arc::downgrade(&pack(&weight));
        assert!(packed.upgrade().is_none());
        assert_eq!((weight.bytes(), &weight.kept().unwrap().as_slice()[..4]), (&BYTES[..], &BYTES[..]));
    }

    #[test]
    fn large_bytes_are_moved_part_by_part_where_they_are_not_held() {
        // Lines of a number that does not divide a part.
        let (line, count) = (3 * 4096 + 8, 900);
        let bytes: Vec<u8> = (0..line * count).map(|i| (i % 251) as u8).collect();
        let weight = Weight::new(HostRegion::from_bytes(&bytes).unwrap(), bytes.len());
        let turn = |byte: &u8| !byte;
        let pack = move |lines: std::ops::Range<usize>, from: &[u8], to: &mut [u8]| {
            let to = &mut to[lines.start * line..lines.end * line];
            to.iter_mut().zip(from).for_each(|(to, from)| *to = turn(from));
        };
        let lines = PackLines { bytes: line, pack: Arc::new(pack) };
        let unpack: Arc<UnpackFn> = Arc::new(move |packed, plain| {
            plain.iter_mut().zip(packed).for_each(|(to, from)| *to = turn(from))
        });
        let moved = |weight: &Weight| weight.move_packed(KEY, bytes.len(), &lines, &unpack).unwrap();
        let held = weight.plain().unwrap();
        assert!(moved(&weight).is_none());
        assert_eq!(held.as_slice(), bytes);
        drop(held);
        let packed = moved(&weight).unwrap();
        assert!(packed.as_slice().iter().zip(&bytes).all(|(packed, byte)| *packed == turn(byte)));
        assert!(
            Arc::ptr_eq(&weight.kept().unwrap(), &packed)
                && Arc::ptr_eq(&weight.packed(&KEY).unwrap(), &packed)
        );
        // They are in another layout now.
        assert!(moved(&weight).is_none());
        assert_eq!(weight.bytes(), bytes);
        let few = Weight::new(HostRegion::from_bytes(&bytes[..line]).unwrap(), line);
        assert!(moved(&few).is_none());
    }

    #[test]
    fn a_layout_that_has_the_same_bytes_is_made_where_they_lie() {
        let turn: &PackInPlaceFn = &|bytes| bytes.reverse();
        let in_place = |weight: &Weight| weight.pack_in_place(KEY, 4, turn, &unpack()).unwrap();
        let weight = weight();
        let held = weight.plain().unwrap();
        assert!(in_place(&weight).is_none() && held.as_slice()[..4] == BYTES);
        drop(held);
        let at = weight.kept().unwrap().as_ptr();
        let packed = in_place(&weight).unwrap();
        assert_eq!((packed.as_ptr(), &packed.as_slice()[..4]), (at, &[4, 3, 2, 1][..]));
        assert!(Arc::ptr_eq(&weight.packed(&KEY).unwrap(), &packed) && in_place(&weight).is_none());
        assert_eq!(weight.plain().unwrap().as_slice()[..4], BYTES);
        assert_eq!(weight.bytes(), BYTES);
        // To a device, whose layout is undone by the bytes' own checksum.
        let moved = self::weight();
        let layout = MovedLayout { bytes: 4, way: Way::InPlace(turn), unpack: &unpack() };
        let (done, store) = move_to(&moved, Some(layout), 4);
        assert!(done && *store.0.lock().unwrap() == [4, 3, 2, 1]);
        assert_eq!(moved.plain().unwrap().as_slice()[..4], BYTES);
    }

    #[test]
    fn readers_of_either_form_keep_theirs() {
        let weight = weight();
        let plain = weight.plain().unwrap();
        let packed = pack(&weight);
        // The packed form is read, so the other is its reader's alone.
        weight.keep_plain(&plain);
        let gone = Arc::downgrade(&plain);
        drop(plain);
        assert!(gone.upgrade().is_none());
        // Now no one reads the packed form.
        let held = Arc::downgrade(&packed);
        drop(packed);
        weight.keep_plain(&weight.plain().unwrap());
        assert!(held.upgrade().is_none());
        assert_eq!(weight.kept().unwrap().as_slice()[..4], BYTES);
    }

    /// Memory of a device that holds what was written.
    #[derive(Default)]
    struct Store(Mutex<Vec<u8>>);

    impl WeightStore for Store {
        fn read(&self, to: &mut [u8]) -> Result<(), HostError> {
            let held = self.0.lock().unwrap();
            let from = held.get(..to.len()).ok_or(HostError::Unreadable { cause: "gone".to_owned() })?;
            to.copy_from_slice(from);
            Ok(())
        }

        fn is_there(&self) -> bool {
            !self.0.lock().unwrap().is_empty()
        }
    }

    fn move_to(weight: &Weight, layout: Option<MovedLayout<'_>>, bytes: usize) -> (bool, Arc<Store>) {
        let store = Arc::new(Store::default());
        let moved = weight.move_to(layout, Arc::clone(&store) as Arc<dyn WeightStore>, |fill| {
            let mut held = store.0.lock().unwrap();
            held.resize(bytes, 0);
            fill(&mut held);
            Ok::<(), HostError>(())
        });
        (moved.unwrap(), store)
    }

    #[test]
    fn bytes_that_moved_to_a_device_are_read_back_from_there() {
        let bytes: Vec<u8> = (0..2 * PART + 4096).map(|i| (i % 253) as u8).collect();
        let weight = || Weight::new(HostRegion::from_bytes(&bytes).unwrap(), bytes.len());
        let plain = weight();
        let (moved, store) = move_to(&plain, None, bytes.len());
        assert!(moved && plain.kept().is_none() && *store.0.lock().unwrap() == bytes);
        assert_eq!(plain.plain().unwrap().as_slice()[..bytes.len()], bytes);
        // In a layout, which is turned back.
        let packed = weight();
        let pack = |lines: Range<usize>, from: &[u8], to: &mut [u8]| {
            to[lines].iter_mut().zip(from).for_each(|(to, from)| *to = !from);
        };
        let lines = PackLines { bytes: 1, pack: Arc::new(pack) };
        let unpack: Arc<UnpackFn> =
            Arc::new(|packed, plain| plain.iter_mut().zip(packed).for_each(|(to, from)| *to = !from));
        let layout = MovedLayout { bytes: bytes.len(), way: Way::Lines(&lines), unpack: &unpack };
        let (moved, store) = move_to(&packed, Some(layout), bytes.len());
        assert!(moved && store.0.lock().unwrap().iter().zip(&bytes).all(|(held, byte)| *held == !byte));
        assert_eq!(packed.plain().unwrap().as_slice()[..bytes.len()], bytes);
        // Lost with the device.
        store.0.lock().unwrap().clear();
        assert!(packed.is_there() != packed.plain().is_err());
        store.0.lock().unwrap().resize(bytes.len(), 0);
        // Another device's memory in its place is no better.
        assert!(packed.plain().is_err() && !packed.is_there());
    }

    #[test]
    fn bytes_that_are_held_or_that_cannot_be_written_stay() {
        let weight = weight();
        let held = weight.plain().unwrap();
        assert!(!move_to(&weight, None, BYTES.len()).0);
        drop(held);
        let store: Arc<dyn WeightStore> = Arc::new(Store::default());
        let refused = weight.move_to(None, store, |_| Err(HostError::TooLarge { bytes: 1 }));
        assert!(matches!(refused, Err(HostError::TooLarge { .. })));
        assert_eq!(weight.plain().unwrap().as_slice()[..4], BYTES);
    }
}
