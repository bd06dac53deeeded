//! `onepool_region`, and `onepool_view`: bytes that are lent to C.

use std::ffi::c_void;
use std::sync::Arc;

use onepool::device::{HostRead, HostWrite};
use onepool::memory::host::{ReadGuard, WriteGuard};
use onepool::memory::range::ByteRange;
use onepool::session::HostView;
use onepool::{HostRegion, SharedRegion};

use crate::arg::{Out, unknown};
use crate::caller::Foreign;
use crate::handle::{Handle, Object, free, publish};
use crate::status::{Failure, Status, guard};

/// What an `onepool_region` stands for.
#[derive(Debug)]
pub(crate) struct RegionObject {
    pub(crate) region: Arc<SharedRegion>,
}

impl Object for RegionObject {
    const KIND: &'static str = "onepool_region";
}

/// What keeps others away from the bytes of a view; dropped before what it borrows from.
#[expect(dead_code, reason = "guards are kept for what dropping them does")]
enum Guard {
    Read(ReadGuard<'static>),
    Write(WriteGuard<'static>),
    HostRead(HostRead<'static>),
    HostWrite(HostWrite<'static>),
}

/// What an `onepool_view` stands for. Its fields are dropped in this order.
pub(crate) struct View {
    _guard: Guard,
    _region: Option<Arc<SharedRegion>>,
    _view: Option<Arc<HostView>>,
    start: Foreign<u8>,
    bytes: usize,
}

impl Object for View {
    const KIND: &'static str = "onepool_view";
}

impl View {
    /// Bytes of a region.
    fn of_region(region: &Arc<SharedRegion>, range: ByteRange, write: bool) -> Result<Self, Failure> {
        // SAFETY: the view keeps the region by `Arc` and drops the guard first; what an `Arc` holds does not move.
        let borrowed: &'static SharedRegion = unsafe { &*Arc::as_ptr(region) };
        let (guard, start, bytes) = if write {
            let mut guard = borrowed.write_range(range)?;
            let (start, bytes) = (guard.as_mut_ptr(), guard.len());
            (Guard::Write(guard), start, bytes)
        } else {
            let guard = borrowed.read_range(range)?;
            let (start, bytes) = (guard.as_ptr().cast_mut(), guard.len());
            (Guard::Read(guard), start, bytes)
        };
        let _region = Some(Arc::clone(region));
        Ok(View { _guard: guard, _region, _view: None, start: Foreign(start), bytes })
    }

    /// A tensor of a binding.
    pub(crate) fn of_tensor(view: HostView, write: bool) -> Result<Self, Failure> {
        let bytes = view.info().bytes();
        let view = Arc::new(view);
        // SAFETY: as in `of_region`, of the `HostView`.
        let borrowed: &'static HostView = unsafe { &*Arc::as_ptr(&view) };
        let (guard, start, len) = if write {
            let mut guard = borrowed.write()?;
            let (start, len) = (guard.as_mut_ptr(), guard.len());
            (Guard::HostWrite(guard), start, len)
        } else {
            let guard = borrowed.read()?;
            let (start, len) = (guard.as_ptr().cast_mut(), guard.len());
            (Guard::HostRead(guard), start, len)
        };
        let bytes = bytes.min(len);
        Ok(View { _guard: guard, _region: None, _view: Some(view), start: Foreign(start), bytes })
    }

    /// The first byte.
    pub(crate) fn start(&self) -> *mut c_void {
        self.start.pointer().cast()
    }
}

/// Makes a region of `bytes` bytes, which are zero.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_region_create(bytes: usize, region: Out<Handle>) -> Status {
    guard(|| {
        let place = region.place("region")?;
        publish(RegionObject { region: HostRegion::new(bytes)?.into_shared() }, place);
        Ok(())
    })
}

/// Frees a region. Its pages stay until bindings and views of it are freed too.
#[unsafe(no_mangle)] // SAFETY: no other library has names that begin with `onepool_`.
pub extern "C" fn onepool_region_free(region: Handle) -> Status {
    free::<RegionObject>(region, "region")
}

/// The size of a region, in bytes.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_region_bytes(region: Handle, bytes: Out<usize>) -> Status {
    guard(|| {
        let place = bytes.place("bytes")?;
        place.set(region.get::<RegionObject>("region")?.region.bytes());
        Ok(())
    })
}

/// Lends `bytes` bytes of a region from byte `offset` on, to be read or written.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_region_map(
    region: Handle,
    offset: usize,
    bytes: usize,
    access: u32,
    view: Out<Handle>,
) -> Status {
    guard(|| {
        let place = view.place("view")?;
        let region = region.get::<RegionObject>("region")?;
        let write = match access {
            0 => false,
            2 => true,
            other => return Err(unknown("access", other)),
        };
        let range = ByteRange::from_offset(offset as u64, bytes as u64);
        let range = range.ok_or_else(|| Failure::argument("bytes", "are more than memory can have"))?;
        publish(View::of_region(&region.region, range, write)?, place);
        Ok(())
    })
}

/// The address and size, in bytes, of what a view lends; valid until the view is freed.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_view_data(
    view: Handle,
    data: Out<*mut c_void>,
    bytes: Out<usize>,
) -> Status {
    guard(|| {
        let (data, bytes) = (data.place("data")?, bytes.place("bytes")?);
        let view = view.get::<View>("view")?;
        data.set(view.start());
        bytes.set(view.bytes);
        Ok(())
    })
}

/// Ends a view: what was written is seen by the next run.
#[unsafe(no_mangle)] // SAFETY: no other library has names that begin with `onepool_`.
pub extern "C" fn onepool_view_free(view: Handle) -> Status {
    free::<View>(view, "view")
}
