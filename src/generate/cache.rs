//! The memory of the keys and values that a decoder keeps between tokens.

use std::sync::Arc;

use super::error::GenerateError;
use crate::backend::{BufferDesc, DeviceInfo};
use crate::device::Buffer;
use crate::graph::TensorInfo;
use crate::memory::host::{HostRegion, SharedRegion};
use crate::memory::model::Placement;
use crate::session::{BindingBuilder, Memory, Session};

/// One tensor of a cache: an input, and the output that the next run reads as that input.
#[derive(Clone, Debug)]
pub(super) struct CacheTensor {
    pub(super) past: String,
    pub(super) present: String,
    pub(super) info: TensorInfo,
    /// The device that alone touches it.
    pub(super) device: Option<u32>,
}

/// The memory of one tensor of a cache.
#[derive(Clone, Debug)]
pub(super) enum CacheMemory {
    /// Pages of the process, where device and host share memory or several devices read them.
    Region(Arc<SharedRegion>),
    /// Memory of a device of its own.
    Buffer(Buffer),
}

impl CacheMemory {
    /// Zeros for `tensor`.
    ///
    /// # Errors
    /// Memory ran out.
    fn new(session: &Session, tensor: &CacheTensor) -> Result<Self, GenerateError> {
        let bytes = tensor.info.bytes().max(16);
        let context = tensor.device.and_then(|d| session.context(d as usize));
        let own = |info: &DeviceInfo| !info.native && !info.memory.shares_host_memory();
        match context.filter(|context| own(context.info())) {
            Some(context) => {
                let bytes = (bytes as u64).next_multiple_of(16);
                let desc = BufferDesc { bytes, placement: Placement::Device, label: "keys and values" };
                let buffer = context.create_buffer(&desc)?;
                context.queue()?.enqueue_fill(&buffer, 0)?.wait()?;
                Ok(CacheMemory::Buffer(buffer))
            }
            None => Ok(CacheMemory::Region(HostRegion::new(bytes)?.into_shared())),
        }
    }

    pub(super) fn memory(&self) -> Memory<'static> {
        match self {
            CacheMemory::Region(region) => Memory::region(region),
            CacheMemory::Buffer(buffer) => Memory::buffer(buffer),
        }
    }
}

/// A cache of a fixed length.
#[derive(Debug)]
pub(super) struct KeyValueCache {
    tensors: Vec<CacheTensor>,
    /// One set of memory that runs update, or two of which a run reads one and writes the other.
    sets: Vec<Vec<CacheMemory>>,
    /// The set that the next run reads.
    current: usize,
}

impl KeyValueCache {
    /// A cache that runs update `in_place`, or copy from one memory to another.
    ///
    /// # Errors
    /// Memory ran out.
    pub(super) fn new(
        session: &Session,
        tensors: Vec<CacheTensor>,
        in_place: bool,
    ) -> Result<Self, GenerateError> {
        let set = |_| tensors.iter().map(|t| CacheMemory::new(session, t)).collect::<Result<Vec<_>, _>>();
        let sets = (0..if in_place { 1 } else { 2 }).map(set).collect::<Result<Vec<_>, _>>()?;
        Ok(KeyValueCache { tensors, sets, current: 0 })
    }

    /// Whether runs write rows where they belong and move nothing else.
    pub(super) fn is_in_place(&self) -> bool {
        self.sets.len() == 1
    }

    /// Bytes of all sets.
    pub(super) fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.info.bytes() as u64).sum::<u64>() * self.sets.len() as u64
    }

    /// Ways to bind a run.
    pub(super) fn ways(&self) -> usize {
        self.sets.len()
    }

    /// The way of the next run.
    pub(super) fn way(&self) -> usize {
        self.current
    }

    /// The way of the run after, or before, one of `way`.
    pub(super) fn other(&self, way: usize) -> usize {
        (way + 1) % self.sets.len()
    }

    /// After a run: what it wrote is what the next one reads.
    pub(super) fn advance(&mut self) {
        self.current = self.other(self.current);
    }

    /// Binds the cache to a run of `way`.
    pub(super) fn bind(&self, builder: BindingBuilder<'static>, way: usize) -> BindingBuilder<'static> {
        let (past, present) = (&self.sets[way], &self.sets[self.other(way)]);
        self.tensors.iter().zip(past.iter().zip(present)).fold(builder, |b, (tensor, (past, present))| {
            let read = past.memory().shape(tensor.info.shape.clone());
            if self.is_in_place() {
                b.update(&tensor.past, &tensor.present, read)
            } else {
                b.input(&tensor.past, read).output(&tensor.present, present.memory())
            }
        })
    }
}
