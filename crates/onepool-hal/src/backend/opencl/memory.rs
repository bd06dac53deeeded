//! Buffers and their memory.

use std::ptr::NonNull;
use std::sync::Mutex;

use super::device::Device;
use super::handle::{Backing, ImageCall, Mem, RawMem, Shape};
use super::image::{Line, plane_call};
use crate::backend::kept::{Kept, Lease};
use crate::backend::{BufferDesc, BufferInfo, DeviceError, HostAddress, Placement};
use crate::recording::BufferRange;
use onepool_core::memory::image::ImageDesc;
use onepool_core::memory::model::TypeFlags;
use onepool_core::sync::lock;
use onepool_spirv::opencl_c::TexelFormat;

/// A buffer of the context.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) info: BufferInfo,
    host: Host,
    // Parts by (offset, bytes), none of which overlap, and images over them with the lease of the part; released
    // before the buffer.
    images: Mutex<Kept<(usize, usize, ImageCall), (Mem, Option<Lease>)>>,
    parts: Mutex<Kept<(usize, usize), Mem>>,
    // What stands for ranges that overlap parts.
    copies: Mutex<Kept<(usize, usize), Mem>>,
    memory: Mem,
}

/// A range of a buffer as a memory object.
#[derive(Debug)]
pub(super) enum Part {
    /// The whole buffer.
    Whole(RawMem),
    /// A sub-buffer.
    Sub(RawMem, Lease),
    /// Memory of its own, to be filled before the kernel runs and copied back after it: the range overlaps a
    /// sub-buffer that is in use.
    Copy(RawMem, Lease),
}

/// How the host reaches it.
#[derive(Debug)]
enum Host {
    /// Not at all.
    Unmapped,
    /// The device's memory, mapped as long as it lives.
    Mapped(HostAddress),
    /// Host memory of the driver's next to the device's, copied by flush and invalidate. No kernel uses it.
    Separate(Mem, HostAddress),
    /// The caller's pages.
    Imported,
}

impl Buffer {
    /// Allocates.
    pub(super) fn new(device: &Device, desc: &BufferDesc) -> Result<Buffer, DeviceError> {
        let limit = device.info.limits.max_buffer_bytes;
        if desc.bytes > limit {
            return Err(DeviceError::Limit { what: "a buffer", asked: desc.bytes, limit });
        }
        if desc.bytes == 0 {
            return Err(DeviceError::Unsupported { what: "a buffer of 0 bytes".into() });
        }
        let bytes =
            usize::try_from(desc.bytes).map_err(|_| DeviceError::OutOfHostMemory { bytes: desc.bytes })?;
        let context = &device.shared.context;
        let queue = &device.transfers;
        let model = &device.info.memory;
        let near = model.best(Placement::Device).unwrap_or_default();
        let mapped = model.flags(near).has(TypeFlags::HOST_VISIBLE);
        let backing = if mapped { Backing::Host } else { Backing::Device };
        // SAFETY: memory of the driver's.
        let memory = unsafe { context.buffer(backing, bytes)? };
        let host = if mapped {
            Host::Mapped(HostAddress(queue.map(&memory, bytes)?))
        } else if desc.placement == Placement::Device {
            Host::Unmapped
        } else {
            // SAFETY: memory of the driver's.
            let separate = unsafe { context.buffer(Backing::Host, bytes)? };
            let address = HostAddress(queue.map(&separate, bytes)?);
            Host::Separate(separate, address)
        };
        let info = BufferInfo {
            bytes: desc.bytes,
            host: match &host {
                Host::Mapped(address) | Host::Separate(_, address) => Some(*address),
                Host::Unmapped | Host::Imported => None,
            },
            coherent: !matches!(host, Host::Separate(..)),
            cached: true,
            device_local: true,
            heap: model.heap_of(near).unwrap_or_default(),
            imported: false,
        };
        Ok(Buffer::with(info, host, memory))
    }

    fn with(info: BufferInfo, host: Host, memory: Mem) -> Buffer {
        let (images, parts, copies) = (Mutex::default(), Mutex::default(), Mutex::default());
        Buffer { info, host, images, parts, copies, memory }
    }

    /// A buffer that is `[address, address + bytes)`.
    ///
    /// # Safety
    /// The pages stay mapped and accessible until the buffer is destroyed.
    pub(super) unsafe fn import(
        device: &Device,
        address: HostAddress,
        bytes: u64,
    ) -> Result<Buffer, DeviceError> {
        let refused = |code: i32| DeviceError::ImportRefused { code };
        let rules = device.info.import.as_ref().ok_or(refused(cl3::error_codes::CL_INVALID_OPERATION))?;
        let invalid = refused(cl3::error_codes::CL_INVALID_HOST_PTR);
        let aligned = (address.0.addr().get() as u64).is_multiple_of(rules.alignment)
            && bytes.is_multiple_of(rules.size_multiple)
            && bytes > 0;
        if !aligned || bytes > rules.max_bytes {
            return Err(invalid);
        }
        let len = usize::try_from(bytes).map_err(|_| invalid)?;
        // SAFETY: as the caller promises.
        let memory = unsafe { device.shared.context.buffer(Backing::Use(address.0), len) };
        let memory = memory.map_err(|error| match error {
            DeviceError::Backend { code, .. } => refused(code),
            error => error,
        })?;
        let info = BufferInfo {
            bytes,
            host: Some(address),
            // Found by trying: without that there are no rules.
            coherent: true,
            cached: true,
            device_local: device.info.memory.shares_host_memory(),
            heap: device.info.memory.import_heap().unwrap_or_default(),
            imported: true,
        };
        Ok(Buffer::with(info, Host::Imported, memory))
    }

    /// Whether the range lies in the buffer; its offset and length as the API counts.
    pub(super) fn check(&self, range: &BufferRange) -> Result<(usize, usize), DeviceError> {
        let end = range.offset.saturating_add(range.bytes);
        if end > self.info.bytes {
            return Err(DeviceError::Limit { what: "a range's end", asked: end, limit: self.info.bytes });
        }
        // Not above the buffer's own length, which is a usize.
        Ok((range.offset as usize, range.bytes as usize))
    }

    /// The whole buffer.
    pub(super) fn raw(&self) -> RawMem {
        self.memory.raw()
    }

    /// A range of it as a memory object, which lives at least as long as its lease. Equal ranges are one object.
    ///
    /// No two sub-buffers overlap: there are drivers that crash when such ones are released (NVIDIA's 580).
    pub(super) fn part(&self, device: &Device, offset: usize, bytes: usize) -> Result<Part, DeviceError> {
        let overlap = |(at, len, _): &(usize, usize, ImageCall)| self.clash((*at, *len), (offset, bytes));
        lock(&self.images).retain_used(overlap, drop);
        self.sub_buffer(device, offset, bytes)
    }

    /// The sub-buffers that there are, and how many stand-ins.
    #[cfg(test)]
    pub(super) fn objects(&self) -> (Vec<(usize, usize)>, usize) {
        (lock(&self.parts).keys().copied().collect(), lock(&self.copies).keys().count())
    }

    fn is_whole(&self, (offset, bytes): (usize, usize)) -> bool {
        offset == 0 && bytes as u64 == self.info.bytes
    }

    /// Whether two ranges are sub-buffers that overlap.
    fn clash(&self, a: (usize, usize), b: (usize, usize)) -> bool {
        a != b && !self.is_whole(a) && !self.is_whole(b) && a.0 < b.0 + b.1 && b.0 < a.0 + a.1
    }

    fn sub_buffer(&self, device: &Device, offset: usize, bytes: usize) -> Result<Part, DeviceError> {
        let wanted = (offset, bytes);
        if self.is_whole(wanted) {
            return Ok(Part::Whole(self.raw()));
        }
        let overlap = |part: &(usize, usize)| self.clash(*part, wanted);
        let mut parts = lock(&self.parts);
        parts.retain_used(overlap, drop);
        if parts.keys().any(overlap) {
            // SAFETY: memory of the driver's.
            let make = || unsafe { device.shared.context.buffer(Backing::Device, bytes) };
            let mut copies = lock(&self.copies);
            let (copy, lease) = copies.get(wanted, make, drop)?;
            return Ok(Part::Copy(copy.raw(), lease));
        }
        let (part, lease) = parts.get(wanted, || self.memory.part(offset, bytes), drop)?;
        Ok(Part::Sub(part.raw(), lease))
    }

    /// A range of it as a row of `format`, which lives at least as long as the lease.
    pub(super) fn line(
        &self,
        device: &Device,
        offset: usize,
        bytes: usize,
        format: TexelFormat,
    ) -> Result<(Line, Lease), DeviceError> {
        let images = device.images();
        let (texels, limit) = (|bytes: usize| bytes as u64 / format.bytes(), images.max_texels);
        let (first, end) = match images.parts {
            true => (0, texels(bytes)),
            false => (texels(offset), texels(offset) + texels(bytes)),
        };
        if end > limit {
            return Err(DeviceError::Limit { what: "the end of a row of texels", asked: end, limit });
        }
        // One image over the whole serves all rows of a format.
        let (offset, bytes) = if images.parts { (offset, bytes) } else { (0, self.info.bytes as usize) };
        let width = texels(bytes);
        let shape = Shape::Line { width: width.min(limit) as usize };
        let (image, lease) = self.image(device, offset, bytes, ImageCall { format, shape })?;
        Ok((Line { image, first }, lease))
    }

    /// A range of it as an image, which lives at least as long as the lease.
    pub(super) fn plane(
        &self,
        device: &Device,
        offset: usize,
        bytes: usize,
        image: &ImageDesc,
    ) -> Result<(RawMem, Lease), DeviceError> {
        self.image(device, offset, bytes, plane_call(image))
    }

    fn image(
        &self,
        device: &Device,
        offset: usize,
        bytes: usize,
        call: ImageCall,
    ) -> Result<(RawMem, Lease), DeviceError> {
        let make = || {
            let (part, lease) = match self.sub_buffer(device, offset, bytes)? {
                Part::Whole(whole) => (whole, None),
                Part::Sub(part, lease) => (part, Some(lease)),
                Part::Copy(..) => {
                    let what = format!(
                        "an image over bytes {offset} to {} of a buffer, which overlap what other recordings use",
                        offset + bytes
                    );
                    return Err(DeviceError::Unsupported { what });
                }
            };
            Ok((device.shared.context.image(&call, part)?, lease))
        };
        let overlap = |(at, len, _): &(usize, usize, ImageCall)| self.clash((*at, *len), (offset, bytes));
        let mut images = lock(&self.images);
        images.retain_used(overlap, drop);
        let ((image, _), lease) = images.get((offset, bytes, call), make, drop)?;
        Ok((image.raw(), lease))
    }

    /// Gives the device what the host wrote.
    pub(super) fn flush(&self, device: &Device, range: &BufferRange) -> Result<(), DeviceError> {
        match self.separate(range)? {
            // SAFETY: both are as long as the buffer; that no unfinished command uses the bytes, and no one
            // writes them meanwhile, is the duty of whoever flushes.
            Some((address, offset, bytes)) => unsafe {
                device.transfers.write(&self.memory, offset, address, bytes)
            },
            None => Ok(()),
        }
    }

    /// Gives the host what the device wrote.
    pub(super) fn invalidate(&self, device: &Device, range: &BufferRange) -> Result<(), DeviceError> {
        match self.separate(range)? {
            // SAFETY: as in `flush`.
            Some((address, offset, bytes)) => unsafe {
                device.transfers.read(&self.memory, offset, address, bytes)
            },
            None => Ok(()),
        }
    }

    /// The host's side of a range, where it is memory of its own: address, offset, length.
    fn separate(&self, range: &BufferRange) -> Result<Option<(NonNull<u8>, usize, usize)>, DeviceError> {
        let (offset, bytes) = self.check(range)?;
        match &self.host {
            Host::Separate(_, address) if bytes > 0 => {
                // SAFETY: `offset` is inside the mapping, which is as long as the buffer.
                Ok(Some((unsafe { address.0.add(offset) }, offset, bytes)))
            }
            _ => Ok(None),
        }
    }

    /// Ends the mapping and releases the memory.
    ///
    /// # Safety
    /// No unfinished command uses the buffer, and no one uses its mapping.
    pub(super) unsafe fn destroy(self, device: &Device) {
        let Buffer { host, images, parts, copies, memory, .. } = self;
        // In this order.
        let objects = (images, parts, copies);
        let (mapped, address) = match &host {
            Host::Mapped(address) => (&memory, address),
            Host::Separate(separate, address) => (separate, address),
            Host::Unmapped | Host::Imported => return drop((objects, memory)),
        };
        // SAFETY: as the caller promises; mapped when it was made.
        if let Err(error) = unsafe { device.transfers.unmap(mapped, address.0) } {
            tracing::warn!(target: "onepool::opencl", %error, "ending a mapping");
        }
        drop((objects, memory));
    }
}
