//! Host memory that a session allocates, and its imports.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::device::Device;
use crate::device::Buffer;
use crate::memory::coherency::atoms;
use crate::memory::host::{HostRegion, SharedRegion};
use crate::memory::range::ByteRange;
use crate::recording::BufferRange;
use crate::session::error::{Error, SessionError};

/// Host memory with the size and alignment that all importing devices of the table accept.
pub(in crate::session) fn shared(bytes: u64, devices: &[Device]) -> Result<Arc<SharedRegion>, Error> {
    let bytes = usize::try_from(bytes.next_multiple_of(16)).unwrap_or(usize::MAX);
    let rules = devices.iter().filter_map(|device| device.context.info().import.as_ref());
    let unit = rules.map(|rules| rules.alignment.max(rules.size_multiple)).max().unwrap_or(1);
    Ok(HostRegion::in_units(bytes, usize::try_from(unit).unwrap_or(usize::MAX))?.into_shared())
}

/// The import of `region` on each device that can import.
pub(in crate::session) fn import_where_possible(
    devices: &[Device],
    region: &Arc<SharedRegion>,
) -> Result<BTreeMap<u32, Buffer>, Error> {
    let can = devices.iter().enumerate().filter(|(_, device)| device.context.info().import.is_some());
    can.map(|(d, device)| Ok((d as u32, import_shared(device, region)?))).collect()
}

pub(in crate::session) fn import_shared(
    device: &Device,
    region: &Arc<SharedRegion>,
) -> Result<Buffer, Error> {
    device.context.import(region).map_err(|e| match e {
        crate::device::Error::Import(_) => {
            SessionError::NoSharing { device: device.context.info().name.clone() }.into()
        }
        e => e.into(),
    })
}

/// All of `buffer` in whole atoms of `atom` bytes; empty for coherent memory.
pub(in crate::session) fn all_of(buffer: &Buffer, atom: u64) -> Vec<BufferRange> {
    if !buffer.info().is_split() {
        return Vec::new();
    }
    let whole = within(buffer, ByteRange::up_to(buffer.bytes()), atom);
    vec![BufferRange { buffer: buffer.range().buffer, offset: whole.start, bytes: whole.bytes() }]
}

/// Bytes of `view` as whole atoms of its memory.
pub(in crate::session) fn within(view: &Buffer, bytes: ByteRange, atom: u64) -> ByteRange {
    let start = view.range().offset.saturating_add(bytes.start);
    atoms(ByteRange::new(start, start.saturating_add(bytes.bytes())), atom, view.info().bytes)
}
