//! Buffers and the memory behind them.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Mutex;

use super::device::Device;
use super::handle::{Backing, ImageCall, Mem, RawMem, Shape};
use super::image::{Line, plane_call};
use super::lock;
use crate::backend::{BufferDesc, BufferInfo, DeviceError, DeviceKind, HostAddress, Placement};
use crate::memory::image::ImageDesc;
use crate::recording::BufferRange;
use crate::spirv::opencl_c::TexelFormat;

/// A buffer of the context.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) info: BufferInfo,
    host: Host,
    // Parts by (offset, bytes) and images over them, kept as long as the buffer; released before it.
    images: Mutex<HashMap<(usize, usize, ImageCall), Mem>>,
    parts: Mutex<HashMap<(usize, usize), Mem>>,
    memory: Mem,
}

/// How the host reaches it.
#[derive(Debug)]
enum Host {
    /// Not at all.
    Unmapped,
    /// The device's memory, mapped as long as it lives.
    Mapped(HostAddress),
    /// Host memory of the driver's beside the device's, copied by flush and invalidate. No kernel uses it.
    Beside(Mem, HostAddress),
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
        let unified = device.info.unified;
        let backing = if unified { Backing::Host } else { Backing::Device };
        // SAFETY: memory of the driver's.
        let memory = unsafe { context.buffer(backing, bytes)? };
        let host = if unified {
            Host::Mapped(HostAddress(queue.map(&memory, bytes)?))
        } else if desc.placement == Placement::Device {
            Host::Unmapped
        } else {
            // SAFETY: memory of the driver's.
            let beside = unsafe { context.buffer(Backing::Host, bytes)? };
            let address = HostAddress(queue.map(&beside, bytes)?);
            Host::Beside(beside, address)
        };
        let info = BufferInfo {
            bytes: desc.bytes,
            host: match &host {
                Host::Mapped(address) | Host::Beside(_, address) => Some(*address),
                Host::Unmapped | Host::Imported => None,
            },
            coherent: !matches!(host, Host::Beside(..)),
            cached: true,
            device_local: true,
            imported: false,
        };
        Ok(Buffer { info, host, images: Mutex::default(), parts: Mutex::default(), memory })
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
            device_local: matches!(device.info.kind, DeviceKind::Cpu | DeviceKind::Integrated),
            imported: true,
        };
        let host = Host::Imported;
        Ok(Buffer { info, host, images: Mutex::default(), parts: Mutex::default(), memory })
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

    /// A range of it as a memory object, which lives as long as the buffer. Equal ranges are one object.
    pub(super) fn part(&self, offset: usize, bytes: usize) -> Result<RawMem, DeviceError> {
        if offset == 0 && bytes as u64 == self.info.bytes {
            return Ok(self.raw());
        }
        let mut parts = lock(&self.parts);
        if let Some(part) = parts.get(&(offset, bytes)) {
            return Ok(part.raw());
        }
        let part = self.memory.part(offset, bytes)?;
        let raw = part.raw();
        parts.insert((offset, bytes), part);
        Ok(raw)
    }

    /// A range of it as a row of `format`, which lives as long as the buffer.
    pub(super) fn line(
        &self,
        device: &Device,
        offset: usize,
        bytes: usize,
        format: TexelFormat,
    ) -> Result<Line, DeviceError> {
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
        Ok(Line { image: self.image(device, offset, bytes, ImageCall { format, shape })?, first })
    }

    /// A range of it as an image, which lives as long as the buffer.
    pub(super) fn plane(
        &self,
        device: &Device,
        offset: usize,
        bytes: usize,
        image: &ImageDesc,
    ) -> Result<RawMem, DeviceError> {
        self.image(device, offset, bytes, plane_call(image))
    }

    fn image(
        &self,
        device: &Device,
        offset: usize,
        bytes: usize,
        call: ImageCall,
    ) -> Result<RawMem, DeviceError> {
        let mut images = lock(&self.images);
        if let Some(image) = images.get(&(offset, bytes, call)) {
            return Ok(image.raw());
        }
        let image = device.shared.context.image(&call, self.part(offset, bytes)?)?;
        let raw = image.raw();
        images.insert((offset, bytes, call), image);
        Ok(raw)
    }

    /// Gives the device what the host wrote.
    pub(super) fn flush(&self, device: &Device, range: &BufferRange) -> Result<(), DeviceError> {
        match self.beside(range)? {
            // SAFETY: both are as long as the buffer; that no unfinished command uses the bytes, and nobody
            // writes them meanwhile, is the duty of whoever flushes.
            Some((address, offset, bytes)) => unsafe {
                device.transfers.write(&self.memory, offset, address, bytes)
            },
            None => Ok(()),
        }
    }

    /// Gives the host what the device wrote.
    pub(super) fn invalidate(&self, device: &Device, range: &BufferRange) -> Result<(), DeviceError> {
        match self.beside(range)? {
            // SAFETY: as in `flush`.
            Some((address, offset, bytes)) => unsafe {
                device.transfers.read(&self.memory, offset, address, bytes)
            },
            None => Ok(()),
        }
    }

    /// The host's side of a range, where it is memory of its own: address, offset, length.
    fn beside(&self, range: &BufferRange) -> Result<Option<(NonNull<u8>, usize, usize)>, DeviceError> {
        let (offset, bytes) = self.check(range)?;
        match &self.host {
            Host::Beside(_, address) if bytes > 0 => {
                // SAFETY: `offset` is inside the mapping, which is as long as the buffer.
                Ok(Some((unsafe { address.0.add(offset) }, offset, bytes)))
            }
            _ => Ok(None),
        }
    }

    /// Ends the mapping and releases the memory.
    ///
    /// # Safety
    /// No unfinished command uses the buffer, and nobody uses its mapping.
    pub(super) unsafe fn destroy(self, device: &Device) {
        let Buffer { host, images, parts, memory, .. } = self;
        let (mapped, address) = match &host {
            Host::Mapped(address) => (&memory, address),
            Host::Beside(beside, address) => (beside, address),
            Host::Unmapped | Host::Imported => return drop((images, parts, memory)),
        };
        // SAFETY: as the caller promises; mapped when it was made.
        if let Err(error) = unsafe { device.transfers.unmap(mapped, address.0) } {
            tracing::warn!(target: "onepool::opencl", %error, "ending a mapping");
        }
        drop((images, parts, memory));
    }
}
