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

/// A cache of a fixed length: a run reads one set of memory and writes the other.
#[derive(Debug)]
pub(super) struct KeyValueCache {
    tensors: Vec<CacheTensor>,
    sets: [Vec<CacheMemory>; SETS],
    /// The set that the next run reads.
    current: usize,
}

/// Sets of memory, and so ways to bind a run.
pub(super) const SETS: usize = 2;

impl KeyValueCache {
    /// # Errors
    /// Memory ran out.
    pub(super) fn new(session: &Session, tensors: Vec<CacheTensor>) -> Result<Self, GenerateError> {
        let set = || tensors.iter().map(|t| CacheMemory::new(session, t)).collect::<Result<Vec<_>, _>>();
        let sets = [set()?, set()?];
        Ok(KeyValueCache { tensors, sets, current: 0 })
    }

    /// Bytes of all sets.
    pub(super) fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.info.bytes() as u64).sum::<u64>() * SETS as u64
    }

    /// The way of the next run.
    pub(super) fn way(&self) -> usize {
        self.current
    }

    /// After a run: what it wrote is what the next one reads.
    pub(super) fn advance(&mut self) {
        self.current = (self.current + 1) % SETS;
    }

    /// Binds the cache to a run of `way`.
    pub(super) fn bind(&self, builder: BindingBuilder<'static>, way: usize) -> BindingBuilder<'static> {
        let (past, present) = (&self.sets[way], &self.sets[(way + 1) % SETS]);
        self.tensors.iter().zip(past.iter().zip(present)).fold(builder, |b, (tensor, (past, present))| {
            let shape = tensor.info.shape.clone();
            b.input(&tensor.past, past.memory().shape(shape)).output(&tensor.present, present.memory())
        })
    }
}
