//! An entry of the device table: context, queue and byte transfers.

use crate::backend::{BufferDesc, Placement};
use crate::device::{Buffer, Context, Error, Event, Queue};
use crate::memory::import::{DevicePolicy, ImportRules};
use crate::memory::model::TypeFlags;
use crate::recording::BufferRange;

/// Memory through which large constants go to a device whose memory the host does not map.
const UPLOAD_BYTES: u64 = 32 << 20;

/// One entry of the device table.
#[derive(Clone, Debug)]
pub(in crate::session) struct Device {
    pub(in crate::session) context: Context,
    pub(in crate::session) queue: Queue,
}

impl Device {
    pub(in crate::session) fn new(context: Context) -> Result<Self, Error> {
        let queue = context.create_queue()?;
        Ok(Device { context, queue })
    }

    /// Whether host and device share one memory.
    pub(in crate::session) fn shares_host_memory(&self) -> bool {
        self.context.info().memory.shares_host_memory()
    }

    /// Whether kernels read parameters in the host's pages.
    pub(in crate::session) fn reads_parameters_in_place(&self) -> bool {
        let info = self.context.info();
        let model = &info.memory;
        let coherent = model.import_type().is_some_and(|ty| model.flags(ty).has(TypeFlags::HOST_COHERENT));
        info.import.is_some()
            && coherent
            && model.shares_host_memory()
            && self.context.import_costs().parameters_in_place
    }

    /// How the device accesses memory of the application in bindings that last `runs` runs.
    pub(in crate::session) fn policy(
        &self,
        copy_threshold: Option<u64>,
        strict: bool,
        runs: u32,
    ) -> DevicePolicy {
        let info = self.context.info();
        // Without an alignment rule the device uses the pointer itself.
        let on_pointers = info.import.as_ref().is_some_and(|rules| rules.alignment <= 1);
        if on_pointers {
            return DevicePolicy { strict, ..DevicePolicy::host() };
        }
        let rules = info.import.unwrap_or(ImportRules::strict());
        let costs = self.context.import_costs_of_runs(runs);
        DevicePolicy {
            import_refusal: info.import_refusal(),
            dma_buf_supported: self.context.imports_dma_bufs(),
            copy_threshold: copy_threshold.unwrap_or(costs.copy_threshold),
            direct_reads: costs.direct_reads,
            strict,
            storage_offset_alignment: info.limits.argument_alignment,
            max_range: info.limits.max_argument_bytes,
            ..DevicePolicy::importing(self.shares_host_memory(), &rules)
        }
    }

    pub(in crate::session) fn buffer(
        &self,
        bytes: u64,
        placement: Placement,
        label: &'static str,
    ) -> Result<Buffer, Error> {
        // A buffer has at least 16 bytes, and a texel view or a fill may round its end up.
        let bytes = bytes.max(16).next_multiple_of(16);
        self.context.create_buffer(&BufferDesc { bytes, placement, label })
    }

    /// Writes `bytes` to the start of `buffer`, through an upload buffer where it is not mapped.
    pub(in crate::session) fn write(&self, buffer: &Buffer, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        let len = bytes.len() as u64;
        buffer.check_idle("write", true)?;
        if buffer.host_address().is_some() {
            let part = buffer.sub_buffer(0, len)?;
            part.map_write()?.copy_from_slice(bytes);
            return Ok(());
        }
        // While the device copies one half, the host fills the other.
        let half = len.min(UPLOAD_BYTES / 2);
        let halves = if len > half { 2 } else { 1 };
        let upload = self.buffer(half * halves, Placement::Upload, "upload")?;
        let mut copies = [None, None];
        for (i, piece) in bytes.chunks(half as usize).enumerate() {
            let which = i % 2;
            if let Some(copied) = copies[which].take() {
                Event::wait(&copied)?;
            }
            let (at, size) = (i as u64 * half, piece.len() as u64);
            let from = upload.sub_buffer(which as u64 * half, size)?;
            from.map_write()?.copy_from_slice(piece);
            copies[which] = Some(self.queue.enqueue_copy(&from, &buffer.sub_buffer(at, size)?)?);
        }
        copies.iter().flatten().try_for_each(Event::wait)
    }

    /// Fills `buffer` with zeros.
    pub(in crate::session) fn clear(&self, buffer: &Buffer) -> Result<(), Error> {
        self.queue.enqueue_fill(buffer, 0)?.wait()
    }

    /// Reads the start of `buffer` into `bytes`; of an image, what the last run left in the buffer that stands for it.
    pub(in crate::session) fn read(&self, buffer: &Buffer, bytes: &mut [u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        let len = bytes.len() as u64;
        buffer.check_idle("read", false)?;
        // A readback buffer helps only where the host's reads of it are cached.
        let cached =
            buffer.info().cached || self.context.info().memory.reads_past_caches(Placement::Readback);
        if buffer.info().host.is_some() && cached {
            return Ok(buffer.sub_buffer(0, len)?.map_read()?.copy_to(bytes)?);
        }
        let readback = self.buffer(len, Placement::Readback, "readback")?;
        let to = readback.sub_buffer(0, len)?;
        let from = buffer.sub_buffer(0, len)?;
        match buffer.acquisition() {
            None => self.queue.enqueue_copy(&from, &to)?.wait()?,
            Some(_) => self.queue.copy_in_place(&from, &to)?.wait()?,
        }
        Ok(to.map_read()?.copy_to(bytes)?)
    }
}

/// The first `bytes` of a buffer as a recording names them.
pub(in crate::session) fn part(buffer: &Buffer, bytes: u64) -> BufferRange {
    BufferRange { bytes, ..buffer.range() }
}
