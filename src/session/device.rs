//! A device of a session's table: its context, its queue, and byte transfers with it.

use crate::backend::{BufferDesc, DeviceKind, Placement};
use crate::device::{Buffer, Context, Error, Queue};
use crate::memory::import::{DeviceKind as MemoryKind, DevicePolicy};
use crate::recording::BufferRange;

/// One entry of the device table.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) context: Context,
    pub(super) queue: Queue,
}

impl Device {
    pub(super) fn new(context: Context) -> Result<Self, Error> {
        let queue = context.create_queue()?;
        Ok(Device { context, queue })
    }

    /// Whether the host can use memory that the device is fast with.
    pub(super) fn is_unified(&self) -> bool {
        let info = self.context.info();
        info.native || info.unified
    }

    /// How memory of the application is best given to the device.
    pub(super) fn policy(&self, copy_threshold: u64, strict: bool) -> DevicePolicy {
        let info = self.context.info();
        // Where a pointer needs no pages, the device works on pointers themselves.
        let on_pointers = info.import.as_ref().is_some_and(|rules| rules.alignment <= 1);
        if on_pointers {
            return DevicePolicy { strict, ..DevicePolicy::host() };
        }
        let kind = match info.kind {
            DeviceKind::Cpu => MemoryKind::Software,
            _ if info.unified => MemoryKind::Integrated,
            _ => MemoryKind::Discrete,
        };
        let policy = match &info.import {
            Some(rules) => DevicePolicy::importing(kind, rules),
            None => DevicePolicy { kind, import_supported: false, ..DevicePolicy::host() },
        };
        DevicePolicy {
            dma_buf_supported: self.context.imports_dma_bufs(),
            copy_threshold,
            strict,
            storage_offset_alignment: info.limits.argument_alignment,
            max_range: info.limits.max_argument_bytes,
            ..policy
        }
    }

    pub(super) fn buffer(
        &self,
        bytes: u64,
        placement: Placement,
        label: &'static str,
    ) -> Result<Buffer, Error> {
        // A buffer is never empty, and a texel view or a fill may round its end up.
        let bytes = bytes.max(16).next_multiple_of(16);
        self.context.create_buffer(&BufferDesc { bytes, placement, label })
    }

    /// Writes `bytes` to the start of `buffer`, by way of an upload buffer where it is not mapped.
    pub(super) fn write(&self, buffer: &Buffer, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        let len = bytes.len() as u64;
        if buffer.host_address().is_some() {
            let part = buffer.sub_buffer(0, len)?;
            part.map_write()?.copy_from_slice(bytes);
            return Ok(());
        }
        let upload = self.buffer(len, Placement::Upload, "upload")?;
        let from = upload.sub_buffer(0, len)?;
        from.map_write()?.copy_from_slice(bytes);
        self.queue.enqueue_copy(&from, &buffer.sub_buffer(0, len)?)?.wait()
    }

    /// Reads the start of `buffer` into `bytes`.
    pub(super) fn read(&self, buffer: &Buffer, bytes: &mut [u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        let len = bytes.len() as u64;
        if buffer.info().host.is_some() && buffer.info().cached {
            let part = buffer.sub_buffer(0, len)?;
            bytes.copy_from_slice(&part.map_read()?);
            return Ok(());
        }
        let readback = self.buffer(len, Placement::Readback, "readback")?;
        let to = readback.sub_buffer(0, len)?;
        self.queue.enqueue_copy(&buffer.sub_buffer(0, len)?, &to)?.wait()?;
        bytes.copy_from_slice(&to.map_read()?);
        Ok(())
    }
}

/// The first `bytes` of a buffer as a recording names them.
pub(super) fn part(buffer: &Buffer, bytes: u64) -> BufferRange {
    BufferRange { bytes, ..buffer.range() }
}
