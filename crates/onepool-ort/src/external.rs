//! Allocations of the application that onnxruntime's interface for external resources imports.
//!
//! Until its handle is released, an allocation stays mapped, which an address alone does not tell. So each device that
//! imports pages has one import of the whole, tensors of a run share it, and bindings to it outlive their run.
//! Semaphores are not imported: runs end before onnxruntime goes on.

#![allow(unsafe_code, reason = "onnxruntime calls functions of a table, with pointers")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt::Debug;
use std::ptr::{NonNull, null_mut};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, Weak};
use std::time::Duration;

use onepool::device::{Buffer, Context};
use onepool::memory::import::{ImportRules, ReadWrite};
use onepool_core::memory::os::page_size;
use onepool_core::memory::window_of;
use onepool_core::sync::lock;

use crate::abi::{
    self, OrtEpDevice, OrtExternalMemoryDescriptor, OrtExternalMemoryHandle, OrtExternalResourceImporterImpl,
    OrtExternalSemaphoreDescriptor, OrtExternalSemaphoreHandle, OrtExternalTensorDescriptor, OrtSyncStream,
    OrtValue, StatusPtr,
};
use crate::failure::{Failure, caught};
use crate::host::{Host, status};
use crate::{stats, types};

/// How long a release waits for devices that still run on the memory, which onnxruntime's header forbids.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a tensor lies: address and length.
pub(crate) type At = (usize, usize);

/// What has bindings that may lie in an allocation.
pub(crate) trait Holder: Debug + Send + Sync {
    /// Lets go of those that do.
    fn forget(&self, id: u64);
}

/// An allocation of the application's.
#[derive(Debug)]
struct Region {
    start: usize,
    bytes: usize,
    /// Imports of the whole, by device; `None` where a device refused it.
    held: BTreeMap<usize, Option<Held>>,
}

/// The import of an allocation on one device, and where the device tells that it let go.
#[derive(Debug)]
struct Held {
    buffer: Buffer,
    over: Receiver<()>,
}

/// Allocations by number, and the bindings that may lie in them.
#[derive(Debug)]
struct Regions {
    next: u64,
    all: BTreeMap<u64, Region>,
    parts: Vec<Weak<dyn Holder>>,
}

static REGIONS: Mutex<Regions> = Mutex::new(Regions { next: 1, all: BTreeMap::new(), parts: Vec::new() });

/// Counts what a device has until the device let go of it.
#[derive(Debug)]
struct Count {
    bytes: u64,
    over: Sender<()>,
}

impl Drop for Count {
    fn drop(&mut self) {
        stats::let_go(self.bytes);
        // No one listens where the library is unloaded.
        let _ = self.over.send(());
    }
}

/// Bindings of a part are let go with the memory that they lie in.
pub(crate) fn watch(idle: Weak<dyn Holder>) {
    let mut regions = lock(&REGIONS);
    regions.parts.retain(|part| part.strong_count() > 0);
    regions.parts.push(idle);
}

/// Numbers of the allocations that hold the bytes at these places, each once, and whether all places lie in one.
pub(crate) fn holding<'a>(places: impl IntoIterator<Item = &'a At>) -> (Vec<u64>, bool) {
    let regions = lock(&REGIONS);
    let (mut found, mut whole) = (Vec::new(), true);
    for (start, bytes) in places {
        let holds = |region: &Region| {
            let offset = start.checked_sub(region.start);
            offset.and_then(|offset| region.bytes.checked_sub(offset)).is_some_and(|room| *bytes <= room)
        };
        match regions.all.iter().find(|(_, region)| holds(region)) {
            Some((id, _)) if found.contains(id) => {}
            Some((id, _)) => found.push(*id),
            None => whole = false,
        }
    }
    (found, whole)
}

/// Whether no handle of these was released.
pub(crate) fn live(ids: &[u64]) -> bool {
    let regions = lock(&REGIONS);
    ids.iter().all(|id| regions.all.contains_key(id))
}

/// Imports allocations as a whole on devices that have not got them. What a device says that refuses one.
pub(crate) fn hold(ids: &[u64], contexts: &[Context]) -> Vec<String> {
    let mut refused = Vec::new();
    let mut regions = lock(&REGIONS);
    for context in contexts.iter().filter(|context| imports_pages(context)) {
        for id in ids {
            let Some(region) = regions.all.get_mut(id) else { continue };
            if region.held.contains_key(&context.id()) {
                continue;
            }
            let made = import(region, context);
            let why = made.as_ref().err().map(|e| format!("{}: {e}", context.info().name));
            region.held.insert(context.id(), made.ok());
            refused.extend(why);
        }
    }
    refused
}

/// Other devices work on pointers, or import nothing.
fn imports_pages(context: &Context) -> bool {
    context.info().import.as_ref().is_some_and(|rules| rules.alignment > 1)
}

fn import(region: &Region, context: &Context) -> Result<Held, onepool::session::Error> {
    let start =
        NonNull::new(std::ptr::with_exposed_provenance_mut(region.start)).unwrap_or(NonNull::dangling());
    let (told, over) = channel();
    let bytes = region.bytes as u64;
    stats::holds(bytes);
    let count = Count { bytes, over: told };
    let release = Box::new(move || drop(count));
    // SAFETY: the application keeps the allocation until it releases the handle, which waits for `release`; runs read
    // and write it as onnxruntime orders them.
    let buffer = unsafe { context.import_raw(start, bytes, ReadWrite::ReadWrite, release) }?;
    Ok(Held { buffer, over })
}

/// Takes an allocation; its number.
fn add(start: usize, bytes: usize) -> u64 {
    let mut regions = lock(&REGIONS);
    let id = regions.next;
    regions.next += 1;
    regions.all.insert(id, Region { start, bytes, held: BTreeMap::new() });
    id
}

/// Lets go of an allocation: of bindings to it, and then of the imports.
fn remove(id: u64) {
    let mut regions = lock(&REGIONS);
    let region = regions.all.remove(&id);
    let parts: Vec<_> = regions.parts.iter().filter_map(Weak::upgrade).collect();
    drop(regions);
    parts.iter().for_each(|part| part.forget(id));
    for held in region.into_iter().flat_map(|region| region.held.into_values()).flatten() {
        drop(held.buffer);
        // After that the memory is the application's, who was told to finish its runs first.
        let _ = held.over.recv_timeout(PATIENCE);
    }
}

/// Lets go of all allocations, before the library is unloaded.
pub(crate) fn release_all() {
    let ids: Vec<u64> = lock(&REGIONS).all.keys().copied().collect();
    ids.into_iter().for_each(remove);
}

/// An importer. onnxruntime sees its first field.
#[repr(C)]
#[derive(Debug)]
struct Importer {
    table: OrtExternalResourceImporterImpl,
    host: Host,
    device: *const OrtEpDevice,
}

/// A handle. onnxruntime sees its first field.
#[repr(C)]
#[derive(Debug)]
struct Handle {
    base: OrtExternalMemoryHandle,
    id: u64,
}

/// An importer for a device of the provider's.
pub(crate) fn importer(host: Host, device: *const OrtEpDevice) -> *mut OrtExternalResourceImporterImpl {
    let table = OrtExternalResourceImporterImpl {
        ort_version_supported: host.version,
        CanImportMemory: can_import_memory,
        ImportMemory: import_memory,
        ReleaseMemory: release_memory,
        CreateTensorFromMemory: create_tensor,
        CanImportSemaphore: can_import_semaphore,
        ImportSemaphore: import_semaphore,
        ReleaseSemaphore: release_semaphore,
        WaitSemaphore: use_semaphore,
        SignalSemaphore: use_semaphore,
        Release: release_importer,
    };
    Box::into_raw(Box::new(Importer { table, host, device })).cast()
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn can_import_memory(_: *const OrtExternalResourceImporterImpl, kind: u32) -> bool {
    kind == abi::HOST_ALLOCATION
}

/// An allocation's description, checked.
fn described(of: &OrtExternalMemoryDescriptor) -> Result<(usize, usize), Failure> {
    if of.handle_type != abi::HOST_ALLOCATION {
        return Err(Failure::new(
            abi::NOT_IMPLEMENTED,
            format!("memory of type {} is not imported, host allocations (4) are", of.handle_type),
        ));
    }
    if of.version == 0 {
        return Err(Failure::argument("the memory's description has version 0"));
    }
    let (start, page) = (of.native_handle.expose_provenance(), page_size());
    if start == 0 || !start.is_multiple_of(page) {
        return Err(Failure::argument(format!(
            "native_handle is {start:#x}, expected the address of a page of {page}"
        )));
    }
    if of.offset_bytes >= of.size_bytes {
        let (offset, bytes) = (of.offset_bytes, of.size_bytes);
        return Err(Failure::argument(format!("offset_bytes is {offset} in an allocation of {bytes} bytes")));
    }
    if start.checked_add(of.size_bytes).is_none() {
        return Err(Failure::argument(format!("size_bytes is {}, beyond all addresses", of.size_bytes)));
    }
    // The mildest rules: what a device asks for beyond them is for its own import to say.
    let rules = ImportRules {
        max_bytes: u64::MAX,
        max_range: u64::MAX,
        anonymous_only: false,
        private_only: false,
        memfd_importable: true,
        read_only_importable: true,
        must_be_coherent: false,
        ..ImportRules::strict()
    };
    window_of(start as u64, of.size_bytes as u64, ReadWrite::Read, &rules, None)
        .map_err(|refusal| Failure::argument(format!("native_handle: {}", refusal.sentence())))?;
    Ok((start, of.size_bytes))
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn import_memory(
    this: *mut OrtExternalResourceImporterImpl,
    descriptor: *const OrtExternalMemoryDescriptor,
    out: *mut *mut OrtExternalMemoryHandle,
) -> StatusPtr {
    // SAFETY: onnxruntime gives back the pointer that `importer` made.
    let importer = unsafe { &*this.cast::<Importer>() };
    status(importer.host, || {
        if descriptor.is_null() || out.is_null() {
            return Err(Failure::argument("ImportMemory without a description or a place for the handle"));
        }
        // SAFETY: it is the caller's for this call.
        let descriptor = unsafe { *descriptor };
        let (start, bytes) = described(&descriptor)?;
        let version = importer.host.version;
        let base = OrtExternalMemoryHandle {
            version,
            ep_device: importer.device,
            descriptor,
            Release: release_handle,
        };
        let handle = Handle { base, id: add(start, bytes) };
        // SAFETY: onnxruntime's place for the result.
        unsafe { *out = Box::into_raw(Box::new(handle)).cast() };
        Ok(())
    })
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn release_memory(
    _: *mut OrtExternalResourceImporterImpl,
    handle: *mut OrtExternalMemoryHandle,
) {
    // SAFETY: the caller's promise.
    unsafe { release_handle(handle) };
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn release_handle(handle: *mut OrtExternalMemoryHandle) {
    if !handle.is_null() {
        // SAFETY: made by `import_memory`, and released once.
        let handle = unsafe { Box::from_raw(handle.cast::<Handle>()) };
        drop(caught(|| {
            remove(handle.id);
            Ok(())
        }));
    }
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn create_tensor(
    this: *mut OrtExternalResourceImporterImpl,
    handle: *const OrtExternalMemoryHandle,
    descriptor: *const OrtExternalTensorDescriptor,
    out: *mut *mut OrtValue,
) -> StatusPtr {
    // SAFETY: as in `import_memory`.
    let host = unsafe { (*this.cast::<Importer>()).host };
    status(host, || {
        if handle.is_null() || descriptor.is_null() || out.is_null() {
            return Err(Failure::argument(
                "CreateTensorFromMemory without a handle, a description or a place",
            ));
        }
        // SAFETY: the handle was made by `import_memory`; both are the caller's for this call.
        let (memory, tensor) = unsafe { ((*handle).descriptor, *descriptor) };
        if tensor.rank > 0 && tensor.shape.is_null() {
            return Err(Failure::argument(format!("a tensor of rank {} without a shape", tensor.rank)));
        }
        if tensor.rank > 64 {
            return Err(Failure::argument(format!("a tensor of rank {}, expected 64 at most", tensor.rank)));
        }
        let dims: Vec<i64> = match tensor.rank {
            0 => Vec::new(),
            // SAFETY: the shape has that length.
            rank => unsafe { std::slice::from_raw_parts(tensor.shape, rank) }.to_vec(),
        };
        let element = tensor.element_type;
        let known = types::is_shared(element).then(|| types::stored_bytes(element, &dims)).flatten();
        let bytes = known.ok_or_else(|| {
            Failure::argument(format!("no tensor has elements of type {element} and sizes {dims:?}"))
        })?;
        let offset = memory.offset_bytes.checked_add(tensor.offset_bytes);
        let end = offset.and_then(|offset| offset.checked_add(bytes)).filter(|end| *end <= memory.size_bytes);
        let (Some(offset), Some(_)) = (offset, end) else {
            let (at, all) = (tensor.offset_bytes, memory.size_bytes - memory.offset_bytes);
            return Err(Failure::argument(format!(
                "{bytes} bytes at offset_bytes {at} do not fit into {all} bytes"
            )));
        };
        let width = types::dtype(element).map_or(1, |dtype| dtype.bits() / 8);
        if !offset.is_multiple_of(width) {
            return Err(Failure::argument(format!(
                "offset {offset} is no multiple of the {width} bytes of an element"
            )));
        }
        let data = memory.native_handle.wrapping_byte_add(offset);
        let mut info = null_mut();
        // SAFETY: the description is released once, after the tensor took what it says.
        unsafe {
            host.check(host.api.CreateCpuMemoryInfo(abi::DEVICE_ALLOCATOR, abi::DEFAULT_MEMORY, &mut info))?;
            let (api, at) = (host.api, data.cast::<c_void>());
            let made =
                api.CreateTensorWithDataAsOrtValue(info, at, bytes, dims.as_ptr(), dims.len(), element, out);
            let made = host.check(made);
            api.ReleaseMemoryInfo(info);
            made
        }
    })
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn can_import_semaphore(_: *const OrtExternalResourceImporterImpl, _: u32) -> bool {
    false
}

fn no_semaphores() -> Failure {
    let why = "semaphores are not imported: a run is over when it returns, so the CPU can wait and signal";
    Failure::new(abi::NOT_IMPLEMENTED, why)
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn import_semaphore(
    this: *mut OrtExternalResourceImporterImpl,
    _: *const OrtExternalSemaphoreDescriptor,
    _: *mut *mut OrtExternalSemaphoreHandle,
) -> StatusPtr {
    // SAFETY: as in `import_memory`.
    status(unsafe { (*this.cast::<Importer>()).host }, || Err(no_semaphores()))
}

/// None was made.
// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn release_semaphore(
    _: *mut OrtExternalResourceImporterImpl,
    _: *mut OrtExternalSemaphoreHandle,
) {
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn use_semaphore(
    this: *mut OrtExternalResourceImporterImpl,
    _: *mut OrtExternalSemaphoreHandle,
    _: *mut OrtSyncStream,
    _: u64,
) -> StatusPtr {
    // SAFETY: as in `import_memory`.
    status(unsafe { (*this.cast::<Importer>()).host }, || Err(no_semaphores()))
}

/// Handles outlive their importer.
// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn release_importer(this: *mut OrtExternalResourceImporterImpl) {
    if !this.is_null() {
        // SAFETY: made by `create_importer`, and released once.
        drop(unsafe { Box::from_raw(this.cast::<Importer>()) });
    }
}
