//! The memory of one input or output of a binding, on every device that touches it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::memory::Source;
use crate::backend::Placement;
use crate::device::{self, Buffer};
use crate::memory::dma_buf::DmaBuf;
use crate::memory::import::{
    Choice, DevicePolicy, ImportError, PageWindow, Path, ReadWrite, Reason, Refusal, Request, Verdict, choose,
};
use crate::memory::range::ByteRange;
use crate::memory::window_of;
use crate::plan::PlannedIo;
use crate::recording::{BufferId, BufferRange, Command};
use crate::session::core::device::{Device, part};
use crate::session::core::host_memory::{import_shared, shared};
use crate::session::core::options::BindPolicy;
use crate::session::error::{Error, SessionError};

/// The memory of one input or output.
#[derive(Debug)]
pub(in crate::session) struct Slot<'e> {
    pub(in crate::session) source: Source<'e>,
    /// Memory that kernels of each device access.
    compute: BTreeMap<u32, Buffer>,
    /// Host-visible memory that a device copies from before a run, or to after it.
    transfer: BTreeMap<u32, Buffer>,
    /// Memory that the CPU copies to before a run, or from after it.
    stage: Option<(u32, Buffer)>,
    pub(in crate::session) verdicts: Vec<Verdict>,
}

/// Whether a slot is an input or an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) enum Side {
    Input,
    Output,
}

impl<'e> Slot<'e> {
    pub(in crate::session) fn new(
        source: Source<'e>,
        io: &PlannedIo,
        side: Side,
        devices: &[Device],
        policy: BindPolicy,
    ) -> Result<Self, Error> {
        let mut slot = Slot {
            source,
            compute: BTreeMap::new(),
            transfer: BTreeMap::new(),
            stage: None,
            verdicts: Vec::new(),
        };
        if let (Side::Input, Some(_)) = (side, io.updated) {
            // The slot of the output is the memory.
            let choice = Choice { path: Path::Direct, reason: Reason::Updated, window: None };
            let bytes = io.info.bytes() as u64;
            let request = Request::new(0, bytes, ReadWrite::ReadWrite, Err(Refusal::NotSupported));
            slot.verdicts.push(choice.verdict(&io.name, &request));
            return Ok(slot);
        }
        if io.info.bytes() == 0 || io.devices.is_empty() {
            return Ok(slot);
        }
        if slot.source.is_own() && io.devices.len() > 1 {
            // Several devices share the session's own host memory.
            let region = shared(io.info.bytes() as u64, devices)?;
            for &d in &io.devices {
                slot.compute.insert(d, import_shared(&devices[d as usize], &region)?);
            }
            let d = io.devices[0];
            slot.stage = slot.compute.get(&d).map(|b| (d, b.clone()));
            return Ok(slot);
        }
        if io.devices.len() > 1 && slot.meet_in_host_memory(io, side, devices, policy)? {
            return Ok(slot);
        }
        for &d in &io.devices {
            slot.place(d, &devices[d as usize], io, side, policy)?;
        }
        // Devices that share a tensor must see the same bytes.
        if io.devices.len() > 1 && (slot.stage.is_some() || !slot.transfer.is_empty()) {
            let device = devices[io.devices[0] as usize].context.info().name.clone();
            return Err(SessionError::NoSharing { device }.into());
        }
        Ok(slot)
    }

    /// Where one of several devices cannot access the caller's memory in place, all devices share the session's own
    /// host memory, which the CPU copies from or to. Returns whether they do.
    fn meet_in_host_memory(
        &mut self,
        io: &PlannedIo,
        side: Side,
        devices: &[Device],
        policy: BindPolicy,
    ) -> Result<bool, Error> {
        let Some((address, given)) = self.host_bytes() else { return Ok(false) };
        check_capacity(io, given)?;
        for &d in &io.devices {
            let device = &devices[d as usize];
            let ladder = policy.on(device);
            let request = request(device, io, &self.source, address, access(io, side));
            let mut choice = decide(io, &request, &ladder)?;
            if matches!(choice.path, Path::Imported | Path::Host) {
                continue;
            }
            if policy.strict {
                return Err(
                    SessionError::Strict { verdict: choice.verdict(&io.name, &request).to_string() }.into()
                );
            }
            choice.path = Path::Staged;
            self.verdicts.push(choice.verdict(&io.name, &request));
            let region = shared(io.info.bytes() as u64, devices)?;
            for &d in &io.devices {
                self.compute.insert(d, import_shared(&devices[d as usize], &region)?);
            }
            self.stage = self.compute.get(&d).map(|b| (d, b.clone()));
            return Ok(true);
        }
        Ok(false)
    }

    /// Address and length of the caller's memory, where it is mapped in the process.
    fn host_bytes(&self) -> Option<(u64, u64)> {
        host_bytes(&self.source)
    }

    fn place(
        &mut self,
        d: u32,
        device: &Device,
        io: &PlannedIo,
        side: Side,
        policy: BindPolicy,
    ) -> Result<(), Error> {
        let bytes = io.info.bytes() as u64;
        let access = access(io, side);
        match &self.source {
            Source::Own(_) if io.updated.is_some() => {
                let own = device.buffer(bytes, Placement::Device, "updated tensor")?;
                device.clear(&own)?;
                self.compute.insert(d, own);
                return Ok(());
            }
            Source::Own(_) => return self.stage(d, device, bytes, side),
            Source::Buffer(buffer) => {
                let (part, verdict) = resident(buffer, device, io, access)?;
                self.verdicts.push(verdict);
                self.compute.insert(d, part);
                return Ok(());
            }
            Source::Region(..) | Source::Lent(..) => {}
        }
        let Some((address, given)) = self.host_bytes() else { return Ok(()) };
        check_capacity(io, given)?;
        let mut request = request(device, io, &self.source, address, access);
        let (choice, imported) = self.import_as_allowed(device, io, &mut request, &policy.on(device))?;
        self.verdicts.push(choice.verdict(&io.name, &request));
        match (choice.copies_on_device(), imported) {
            (true, Some(buffer)) => {
                let own = device.buffer(bytes, Placement::Device, "device copy of a bound tensor")?;
                self.transfer.insert(d, buffer.sub_buffer(0, bytes)?);
                self.compute.insert(d, own);
            }
            (_, Some(buffer)) => {
                self.compute.insert(d, buffer.sub_buffer(0, bytes)?);
            }
            (_, None) => self.stage(d, device, bytes, side)?,
        }
        Ok(())
    }

    /// Imports the memory by the best path that the driver does not refuse. There is no buffer where that
    /// path is none of an import.
    fn import_as_allowed(
        &self,
        device: &Device,
        io: &PlannedIo,
        request: &mut Request,
        ladder: &DevicePolicy,
    ) -> Result<(Choice, Option<Buffer>), Error> {
        // Alive until the import holds it.
        let mut _offered = self.offer_dma_buf(request, ladder);
        let mut choice = decide(io, request, ladder)?;
        while choice.path.imports() || matches!(choice.path, Path::Host | Path::DmaBuf) {
            match self.import(device, choice.path) {
                Ok(buffer) => return Ok((choice, Some(buffer))),
                Err(device::Error::Import(ImportError::Refused(refusal))) => {
                    (request.window, request.dma_buf) = (Err(refusal), None);
                    let failed = choice.path;
                    if failed != Path::DmaBuf {
                        _offered = self.offer_dma_buf(request, ladder);
                    }
                    choice = decide(io, request, ladder)?;
                    if choice.path == failed {
                        break;
                    }
                }
                Err(e) if is_out_of_memory(&e) => {
                    (request.window, request.dma_buf) = (Err(Refusal::OutOfMemory), None);
                    choice = decide(io, request, ladder)?;
                    break;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok((choice, None))
    }

    /// The dma-buf of a memory file whose pages are refused, or why there is none.
    fn offer_dma_buf(&self, request: &mut Request, ladder: &DevicePolicy) -> Option<Arc<DmaBuf>> {
        let Source::Region(region, range) = &self.source else { return None };
        let wanted = ladder.dma_buf_supported && (request.window.is_err() || ladder.import_refusal.is_some());
        match region.memory_file().filter(|_| wanted)?.dma_buf() {
            Ok(pages) => {
                request.dma_buf = Some(PageWindow { offset: range.start, ..region.window() });
                Some(pages)
            }
            Err(refusal) => {
                request.window = Err(refusal);
                None
            }
        }
    }

    fn import(&self, device: &Device, path: Path) -> Result<Buffer, device::Error> {
        match &self.source {
            Source::Region(region, range) => {
                let whole = match path {
                    Path::DmaBuf => device.context.import_dma_buf(region)?,
                    _ => device.context.import(region)?,
                };
                Ok(whole.sub_buffer(range.start, range.bytes())?)
            }
            Source::Lent(lent, range) => {
                let whole = lent.import(&device.context)?;
                Ok(whole.sub_buffer(range.start, range.bytes())?)
            }
            Source::Own(_) | Source::Buffer(_) => Err(Refusal::NotSupported.into()),
        }
    }

    /// Allocates device memory that the CPU copies to or from.
    fn stage(&mut self, d: u32, device: &Device, bytes: u64, side: Side) -> Result<(), Error> {
        if device.shares_host_memory() {
            let buffer = device.buffer(bytes, Placement::Shared, "staged tensor")?;
            self.compute.insert(d, buffer.clone());
            self.stage = Some((d, buffer));
            return Ok(());
        }
        let placement = if side == Side::Input { Placement::Upload } else { Placement::Readback };
        let host = device.buffer(bytes, placement, "staging")?;
        self.compute.insert(d, device.buffer(bytes, Placement::Device, "staged tensor")?);
        self.transfer.insert(d, host.clone());
        self.stage = Some((d, host));
        Ok(())
    }

    /// Whether a device may not wait for semaphores with the tensor in use: the CPU copies it from the caller's memory or
    /// to it, or it is borrowed, and the end of the borrow waits without limit.
    pub(in crate::session) fn is_for_host_waits(&self) -> bool {
        self.is_copied_in() || matches!(self.source, Source::Lent(..))
    }

    /// Whether the CPU copies the caller's bytes before a run, and nothing else reads them.
    pub(in crate::session) fn is_copied_in(&self) -> bool {
        self.stage.is_some() && !self.source.is_own()
    }

    /// Whether the tensor is imported and could be copied instead.
    pub(in crate::session) fn could_copy(&self) -> bool {
        let imports = |verdict: &Verdict| verdict.path.imports() || verdict.path == Path::DmaBuf;
        // The host cannot access borrowed memory once it is imported.
        matches!(self.source, Source::Region(..)) && self.verdicts.iter().any(imports)
    }

    /// Memory that kernels of device `d` access.
    pub(in crate::session) fn buffer(&self, d: u32) -> Option<&Buffer> {
        self.compute.get(&d)
    }

    /// The range that kernels of device `d` access.
    pub(in crate::session) fn range(&self, d: u32) -> Option<BufferRange> {
        self.compute.get(&d).map(Buffer::range)
    }

    /// The slot's memory, to tell whether two slots share it: bytes of the process where it is mapped (a device may
    /// import one pointer several times), else those of a buffer.
    pub(in crate::session) fn memory(&self, d: u32) -> Option<(Option<BufferId>, ByteRange)> {
        let buffer = self.transfer.get(&d).or(self.compute.get(&d))?;
        let range = buffer.range();
        let (base, start) = match buffer.host_address() {
            Some(address) => (None, address.0.as_ptr().addr() as u64),
            None => (Some(range.buffer), range.offset),
        };
        Some((base, ByteRange::new(start, start.saturating_add(range.bytes))))
    }

    /// The ranges of its buffers; equal ranges give equal recordings.
    pub(in crate::session) fn ranges(&self) -> impl Iterator<Item = BufferRange> {
        self.buffers().map(Buffer::range)
    }

    /// The copy that device `d` makes before the run of an input, or after the run of an output.
    pub(in crate::session) fn transfer_command(&self, d: u32, bytes: u64, side: Side) -> Option<Command> {
        let (host, own) = (self.transfer.get(&d)?, self.compute.get(&d)?);
        let (host, own) = (part(host, bytes), part(own, bytes));
        Some(match side {
            Side::Input => Command::Copy { src: host, dst: own },
            Side::Output => Command::Copy { src: own, dst: host },
        })
    }

    /// Host-visible memory that device `d` copies from or to.
    pub(in crate::session) fn transfer(&self, d: u32) -> Option<&Buffer> {
        self.transfer.get(&d)
    }

    /// Every buffer of the slot that commands use.
    pub(in crate::session) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.compute.values().chain(self.transfer.values())
    }

    /// Copies the caller's bytes to staging memory, if the tensor is staged.
    pub(in crate::session) fn stage_in(&self, devices: &[Device], bytes: usize) -> Result<(), Error> {
        let Some((d, buffer)) = &self.stage else { return Ok(()) };
        let device = &devices[*d as usize];
        match &self.source {
            Source::Region(region, range) => {
                let range = ByteRange::new(range.start, range.start + bytes as u64);
                Ok(device.write(buffer, &region.read_range(range)?)?)
            }
            Source::Lent(lent, range) => {
                let part = buffer.sub_buffer(0, bytes as u64)?;
                Ok(lent.read_into(range.start, &mut part.map_write()?)?)
            }
            Source::Own(_) | Source::Buffer(_) => Ok(()),
        }
    }

    /// Copies results to the caller's memory, if the tensor is staged.
    pub(in crate::session) fn stage_out(&self, devices: &[Device], bytes: usize) -> Result<(), Error> {
        let Some((d, buffer)) = &self.stage else { return Ok(()) };
        let device = &devices[*d as usize];
        match &self.source {
            Source::Region(region, range) => {
                let range = ByteRange::new(range.start, range.start + bytes as u64);
                Ok(device.read(buffer, &mut region.write_range(range)?)?)
            }
            Source::Lent(lent, range) => {
                Ok(lent.write_with(range.start, bytes, |to| device.read(buffer, to))?)
            }
            Source::Own(_) | Source::Buffer(_) => Ok(()),
        }
    }

    /// Writes a value (an input in the session's own memory).
    pub(in crate::session) fn write(&self, devices: &[Device], bytes: &[u8]) -> Result<(), Error> {
        match self.host_side().filter(|_| self.stage.is_some() || self.source.is_own()) {
            Some((d, buffer)) => Ok(devices[d as usize].write(buffer, bytes)?),
            None => Ok(()),
        }
    }

    /// Memory that the host reads and writes: the staging memory, else that of the first device.
    fn host_side(&self) -> Option<(u32, &Buffer)> {
        let staged = self.stage.as_ref().map(|(d, buffer)| (*d, buffer));
        staged.or_else(|| self.compute.first_key_value().map(|(d, buffer)| (*d, buffer)))
    }

    /// Reads the bytes of the slot.
    pub(in crate::session) fn read(&self, devices: &[Device], bytes: &mut [u8]) -> Result<(), Error> {
        match self.host_side() {
            Some((d, buffer)) => Ok(devices[d as usize].read(buffer, bytes)?),
            None => Ok(()),
        }
    }

    /// The mapped memory that holds the tensor, if the host can view it in place.
    pub(in crate::session) fn view(&self, bytes: u64) -> Option<Buffer> {
        let (_, buffer) = self.host_side()?;
        buffer.host_address()?;
        buffer.sub_buffer(0, bytes).ok()
    }
}

/// The part of the caller's buffer that the tensor takes, and its verdict.
fn resident(
    buffer: &Buffer,
    device: &Device,
    io: &PlannedIo,
    access: ReadWrite,
) -> Result<(Buffer, Verdict), Error> {
    // Buffer numbers are per context: a foreign buffer's number means another buffer here.
    if buffer.context_id() != device.context.id() {
        let (name, device) = (io.name.clone(), device.context.info().name.clone());
        return Err(SessionError::OtherContext { name, device }.into());
    }
    check_capacity(io, buffer.bytes())?;
    let (path, reason) = match buffer.acquisition().map_or(0, |own| own.copied) {
        0 => (Path::Direct, Reason::Resident),
        copied => (Path::ImportedDma, Reason::Image { copied }),
    };
    let bytes = io.info.bytes() as u64;
    let request = Request::new(0, bytes, access, Err(Refusal::NotSupported));
    let verdict = Choice { path, reason, window: None }.verdict(&io.name, &request);
    Ok((buffer.sub_buffer(0, bytes)?, verdict))
}

/// Address and length of memory that is mapped in the process.
fn host_bytes(source: &Source<'_>) -> Option<(u64, u64)> {
    match source {
        Source::Own(_) | Source::Buffer(_) => None,
        Source::Region(region, range) => {
            Some((region.as_ptr().as_ptr().addr() as u64 + range.start, range.bytes()))
        }
        Source::Lent(lent, range) => Some((lent.address() + range.start, range.bytes())),
    }
}

/// How a device would access a tensor in the process's memory; `None` where it may not be bound.
pub(in crate::session) fn decision(
    device: &Device,
    io: &PlannedIo,
    side: Side,
    source: &Source<'_>,
    policy: BindPolicy,
) -> Option<Choice> {
    let (address, given) = host_bytes(source).filter(|_| io.info.bytes() > 0)?;
    check_capacity(io, given).ok()?;
    let request = request(device, io, source, address, access(io, side));
    decide(io, &request, &policy.on(device)).ok()
}

/// The graph's access to the tensor.
fn access(io: &PlannedIo, side: Side) -> ReadWrite {
    match side {
        Side::Input => ReadWrite::Read,
        Side::Output if io.reads > 0 || io.updated.is_some() => ReadWrite::ReadWrite,
        Side::Output => ReadWrite::Write,
    }
}

fn request(device: &Device, io: &PlannedIo, source: &Source<'_>, address: u64, access: ReadWrite) -> Request {
    let bytes = io.info.bytes() as u64;
    Request {
        element_bytes: io.info.dtype.bytes() as u64,
        touches: io.reads.saturating_add(io.writes),
        scattered: io.scattered,
        ..Request::new(address, bytes, access, window(device, source, address, bytes, access))
    }
}

fn is_out_of_memory(e: &device::Error) -> bool {
    use crate::backend::DeviceError as E;
    matches!(e, device::Error::Device(E::OutOfDeviceMemory { .. } | E::OutOfHostMemory { .. }))
}

fn check_capacity(io: &PlannedIo, got: u64) -> Result<(), SessionError> {
    let needed = io.info.bytes() as u64;
    if got >= needed { Ok(()) } else { Err(SessionError::Capacity { name: io.name.clone(), needed, got }) }
}

fn decide(io: &PlannedIo, request: &Request, ladder: &DevicePolicy) -> Result<Choice, Error> {
    choose(request, ladder).map_err(|e| match e {
        ImportError::Strict { .. } => SessionError::Strict { verdict: format!("{}: {e}", io.name) }.into(),
        e => Error::Device(device::Error::Import(e)),
    })
}

/// The pages around the tensor, checked against the import rules of the device.
fn window(
    device: &Device,
    source: &Source<'_>,
    address: u64,
    bytes: u64,
    access: ReadWrite,
) -> Result<PageWindow, Refusal> {
    let info = device.context.info();
    let Some(rules) = &info.import else {
        return Err(info.import_refusal().unwrap_or(Refusal::NotSupported));
    };
    if rules.alignment <= 1 {
        return Ok(PageWindow { addr: address, bytes, offset: 0 });
    }
    let owner = if let Source::Region(region, _) = source { Some(region.as_ref()) } else { None };
    window_of(address, bytes, access, rules, owner)
}
