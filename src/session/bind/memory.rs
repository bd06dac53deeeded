//! The memory of a tensor.

use std::sync::Arc;

use crate::device::{Buffer, Lent};
use crate::graph::{Tensor, TensorInfo};
use crate::memory::host::SharedRegion;
use crate::memory::range::ByteRange;
use crate::recording::BufferRange;
use crate::session::core::device::Device;
use crate::session::core::host_memory::shared;
use crate::session::error::Error;
use crate::shape::Shape;

/// The memory of a tensor.
#[derive(Clone, Debug)]
pub(in crate::session) enum Source<'e> {
    /// The session's own memory, which `set_input` and `get_output` copy to and from, with the value to write to it.
    Own(Option<Tensor>),
    /// Part of an owned region.
    Region(Arc<SharedRegion>, ByteRange),
    /// Borrowed memory.
    Lent(Arc<Lent<'e>>, ByteRange),
    /// Memory of a device.
    Buffer(Buffer),
}

/// Identifies the live memory of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) enum SourceKey {
    /// Bytes of the process: address and length.
    Host(u64, u64),
    /// Bytes of a device.
    Device(BufferRange),
}

impl<'e> Source<'e> {
    /// The session's own memory, without a value.
    pub(in crate::session) const OWN: Self = Source::Own(None);

    pub(in crate::session) fn is_own(&self) -> bool {
        matches!(self, Source::Own(_))
    }

    /// The memory to bind, and the value to write to it.
    pub(in crate::session) fn split(self) -> (Self, Option<Tensor>) {
        match self {
            Source::Own(value) => (Source::OWN, value),
            source => (source, None),
        }
    }

    /// The memory, unless it is the session's own.
    pub(in crate::session) fn key(&self) -> Option<SourceKey> {
        match self {
            Source::Own(_) => None,
            Source::Region(region, range) => {
                let base = region.as_ptr().as_ptr().addr() as u64;
                Some(SourceKey::Host(base + range.start, range.bytes()))
            }
            Source::Lent(lent, range) => Some(SourceKey::Host(lent.address() + range.start, range.bytes())),
            Source::Buffer(buffer) => Some(SourceKey::Device(buffer.range())),
        }
    }
}

/// Memory for one input or output, with the shape of its tensor where the model leaves it open.
#[derive(Debug)]
pub struct Memory<'e> {
    source: Source<'e>,
    shape: Option<Shape>,
}

impl<'e> Memory<'e> {
    /// An owned region, from its start.
    pub fn region(region: &Arc<SharedRegion>) -> Self {
        Memory::region_range(region, region.whole())
    }

    /// Bytes of an owned region. They may start at any byte.
    pub fn region_range(region: &Arc<SharedRegion>, range: ByteRange) -> Self {
        Memory::placed(Source::Region(Arc::clone(region), range))
    }

    /// Device memory: a buffer of the context that the session runs on.
    pub fn buffer(buffer: &Buffer) -> Self {
        Memory::placed(Source::Buffer(buffer.clone()))
    }

    /// Memory lent to all devices of the session: in a scope, or by a foreign caller ([`Lent::raw`]).
    pub fn lent(lent: Lent<'e>) -> Self {
        let whole = ByteRange::up_to(lent.bytes());
        Memory::placed(Source::Lent(Arc::new(lent), whole))
    }

    /// A value, copied into the session's own memory.
    pub fn value(value: Tensor) -> Self {
        let shape = Some(value.shape().clone());
        Memory { source: Source::Own(Some(value)), shape }
    }

    /// The session's own memory, set and read by copy.
    pub fn own() -> Self {
        Memory { source: Source::Own(None), shape: None }
    }

    /// Sets the shape of the tensor.
    pub fn shape(mut self, shape: Shape) -> Self {
        self.shape = Some(shape);
        self
    }

    /// The same memory, for another name.
    pub(in crate::session) fn again(&self) -> Self {
        Memory { source: self.source.clone(), shape: self.shape.clone() }
    }

    pub(in crate::session) fn given_shape(&self) -> Option<&Shape> {
        self.shape.as_ref()
    }

    pub(in crate::session) fn source(&self) -> &Source<'e> {
        &self.source
    }

    pub(in crate::session) fn into_source(self) -> Source<'e> {
        self.source
    }

    pub(in crate::session) fn placed(source: Source<'e>) -> Self {
        Memory { source, shape: None }
    }
}

/// A tensor between stages.
#[derive(Clone, Debug)]
pub(in crate::session) struct StageValue<'e> {
    pub(in crate::session) info: TensorInfo,
    pub(in crate::session) source: Source<'e>,
}

impl<'e> StageValue<'e> {
    pub(in crate::session) fn value(tensor: Tensor) -> Self {
        StageValue { info: tensor.info().clone(), source: Source::Own(Some(tensor)) }
    }

    /// Its elements on the host: the value, or a copy.
    pub(in crate::session) fn tensor(&self, devices: &[Device]) -> Result<Tensor, Error> {
        let bytes = self.info.bytes() as u64;
        if let Source::Own(Some(tensor)) = &self.source {
            return Ok(tensor.clone());
        }
        Tensor::build(self.info.clone(), |out| match &self.source {
            Source::Own(_) => Ok(()),
            Source::Region(region, range) => {
                let range = ByteRange::new(range.start, range.start.saturating_add(bytes));
                out.copy_from_slice(&region.read_range(range)?);
                Ok(())
            }
            Source::Lent(lent, range) => Ok::<(), Error>(lent.read_into(range.start, out)?),
            Source::Buffer(buffer) => {
                let context = buffer.context_id();
                let device = devices.iter().find(|d| d.context.id() == context);
                Ok(device.map_or(Ok(()), |d| d.read(buffer, out))?)
            }
        })
    }
}

/// Memory for a tensor that later stages read.
pub(in crate::session) fn owned<'e>(info: &TensorInfo) -> Result<(Arc<SharedRegion>, Source<'e>), Error> {
    let region = shared((info.bytes() as u64).max(16), &[])?;
    let range = ByteRange::up_to(info.bytes() as u64);
    Ok((Arc::clone(&region), Source::Region(region, range)))
}
