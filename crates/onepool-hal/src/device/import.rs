//! The application's memory as buffers.

#![allow(unsafe_code, reason = "import_host's contract is upheld here")]

use std::ptr::NonNull;
use std::sync::{Arc, MutexGuard};

use super::buffer::{Buffer, Lease, Memory, Pin};
use super::core::Core;
use super::error::Error;
use crate::backend::{DeviceError, HostAddress};
use onepool_core::memory::dma_buf::DmaBuf;
use onepool_core::memory::host::SharedRegion;
use onepool_core::memory::import::window::enclosing;
use onepool_core::memory::import::{AcquireError, ImportKey, ImportMap, PageWindow, ReadWrite, Refusal};
use onepool_core::memory::os::page_size;
use onepool_core::memory::range::ByteRange;
use onepool_core::memory::window_of;
use onepool_core::sync::lock;

/// Memory to import and who answers for it.
pub(super) struct Source {
    pub(super) address: NonNull<u8>,
    pub(super) bytes: u64,
    pub(super) access: ReadWrite,
    /// The scope that ends the import, or `None` for memory that is kept.
    pub(super) scope: Option<u64>,
    pub(super) region: Option<Arc<SharedRegion>>,
    pub(super) pin: Option<Pin>,
    /// The whole region as a dma-buf, to be imported as such.
    pub(super) dma_buf: Option<Arc<DmaBuf>>,
}

impl Source {
    /// Memory that no one answers for yet.
    pub(super) fn new(address: NonNull<u8>, bytes: u64, access: ReadWrite) -> Source {
        Source { address, bytes, access, scope: None, region: None, pin: None, dma_buf: None }
    }

    /// All of a region.
    pub(super) fn region(region: &Arc<SharedRegion>) -> Source {
        let bytes = region.bytes() as u64;
        let source = Source::new(region.as_ptr(), bytes, ReadWrite::ReadWrite);
        Source { region: Some(Arc::clone(region)), ..source }
    }
}

/// Imports the pages around `source`, or takes a share of an import that holds them.
///
/// The caller vouches that the bytes stay valid until the buffer's lease has ended and, for
/// memory that is not of a scope, until the pin was released. After an error the pin is still in `source`.
pub(super) fn import(core: &Arc<Core>, source: &mut Source) -> Result<Buffer, Error> {
    let Share { memory, key, offset } = acquire(core, source)?;
    let range = ByteRange::new(offset, offset + source.bytes);
    Ok(Buffer::whole(memory.lease(range, source.access, key, source.pin.take())))
}

/// As [`import`], but opens none of the bytes to commands.
pub(super) fn hold(core: &Arc<Core>, source: &mut Source) -> Result<Arc<Lease>, Error> {
    let Share { memory, key, .. } = acquire(core, source)?;
    Ok(memory.lease(ByteRange::default(), ReadWrite::Read, key, source.pin.take()))
}

/// A share of an import: the key that gives it back, and where the source starts in it.
struct Share {
    memory: Arc<Memory>,
    key: Option<ImportKey>,
    offset: u64,
}

fn acquire(core: &Arc<Core>, source: &Source) -> Result<Share, Error> {
    if source.bytes == 0 {
        return Err(Refusal::Empty.into());
    }
    let addr = source.address.as_ptr().addr() as u64;
    ByteRange::from_offset(addr, source.bytes).ok_or(Refusal::NotMapped { addr: u64::MAX })?;
    let whole = source.region.as_ref().filter(|_| source.dma_buf.is_some()).map(|region| region.window());
    if let Some(window) = whole {
        return share(core, source, lock(&core.imports), window);
    }
    let Some(rules) = &core.info.import else {
        return Err(core.info.import_refusal().unwrap_or(Refusal::NotSupported).into());
    };
    if rules.alignment <= 1 {
        // The device is the process: a pointer needs no pages of its own, and sharing them is no matter.
        let window = PageWindow { addr, bytes: source.bytes, offset: 0 };
        let memory = create(core, source, window)?;
        return Ok(Share { memory, key: None, offset: 0 });
    }
    let pages = enclosing(addr, source.bytes, rules, page_size() as u64)?;
    let imports = lock(&core.imports);
    let window = if imports.holds(pages) {
        // Checked when it was imported; reading the process's map again would cost more than the import.
        PageWindow { addr: pages.start, bytes: pages.bytes(), offset: addr - pages.start }
    } else {
        window_of(addr, source.bytes, source.access, rules, source.region.as_deref())?
    };
    share(core, source, imports, window)
}

/// Takes a share of the import that holds the window, or makes it.
fn share(
    core: &Arc<Core>,
    source: &Source,
    mut imports: MutexGuard<'_, ImportMap<Arc<Memory>>>,
    window: PageWindow,
) -> Result<Share, Error> {
    let pages = window.range();
    let acquired = imports.acquire(window, |window| create(core, source, window));
    let (key, offset) = match acquired {
        Ok(acquired) => acquired,
        Err(AcquireError::Conflict(conflict)) => return Err(Refusal::from(conflict).into()),
        Err(AcquireError::Create(error)) => return Err(error),
    };
    let Some(memory) = imports.get(&key).cloned() else { return Err(Refusal::NotSupported.into()) };
    if memory.scope != source.scope {
        // A share outlives neither its scope nor the memory that another one gives back.
        let live = ByteRange::new(pages.start, pages.end);
        let last = imports.release(key);
        drop(imports);
        drop((last, memory));
        return Err(Refusal::PageInUse { wanted: pages, live }.into());
    }
    drop(imports);
    Ok(Share { memory, key: Some(key), offset })
}

/// One import of whole pages.
fn create(core: &Arc<Core>, source: &Source, window: PageWindow) -> Result<Arc<Memory>, Error> {
    // A device that works on pointers holds nothing of what is imported.
    let on_pointers = core.info.import.as_ref().is_some_and(|rules| rules.alignment <= 1);
    let held = if on_pointers { 0 } else { window.bytes };
    let reservation = core.reserve_import(held).map_err(Refusal::from)?;
    let start = source.address.as_ptr().wrapping_sub(window.offset as usize);
    let Some(start) = NonNull::new(start) else { return Err(Refusal::NotMapped { addr: 0 }.into()) };
    // SAFETY: the pages were found mapped and accessible, or are a region's own; whoever made `source` vouches that
    // they stay so until the import is destroyed, and `imports` holds no other import of them (a device without
    // pages has no such rule).
    let imported = unsafe {
        match &source.dma_buf {
            Some(pages) => core.backend.import_dma_buf(pages, HostAddress(start)),
            None => core.backend.import_host(HostAddress(start), window.bytes),
        }
    };
    let id = imported.map_err(|error| match error {
        DeviceError::ImportRefused { code } => Error::from(Refusal::DriverRefused { code }),
        other => Error::Device(other),
    })?;
    let checked = core.backend.buffer_info(id).map_err(Error::from).and_then(|info| {
        // A region owns its pages to the last byte.
        let own = source.region.as_ref().map_or(source.bytes, |region| region.window().bytes);
        if let Some(rules) = &core.info.import {
            window.accepts_granted(info.coherent, own, rules)?;
        }
        Ok(info)
    });
    match checked {
        Ok(info) => {
            let memory = Memory::new(core, id, info, source.scope, reservation, source.region.clone());
            if let Some(pages) = &source.dma_buf {
                memory.keep_dma_buf(pages);
            }
            Ok(memory)
        }
        Err(error) => {
            core.backend.destroy_buffer(id);
            Err(error)
        }
    }
}
