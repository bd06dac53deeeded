//! The memory of the keys and values that a decoder keeps between tokens.

use std::ops::Range;
use std::sync::Arc;

use super::error::GenerateError;
use crate::backend::{BufferDesc, DeviceInfo};
use crate::device::{Buffer, Context};
use crate::graph::TensorInfo;
use crate::memory::host::{HostRegion, SharedRegion};
use crate::memory::model::Placement;
use crate::memory::range::ByteRange;
use crate::session::{BindingBuilder, Memory, Session};
use crate::shape::Shape;

/// One tensor of a cache: an input, and the output that the next run reads as that input.
#[derive(Clone, Debug)]
pub(super) struct CacheTensor {
    pub(super) past: String,
    pub(super) present: String,
    /// Of one sequence: [1, heads, rows, elements].
    pub(super) info: TensorInfo,
    /// The device that alone touches it.
    pub(super) device: Option<u32>,
}

impl CacheTensor {
    /// Type and shape for `sequences` of them with `rows` tokens each.
    pub(super) fn sized(&self, sequences: usize, rows: usize) -> Result<TensorInfo, GenerateError> {
        let shape = Shape::new([sequences, self.heads(), rows, self.info.shape[3]])?;
        Ok(TensorInfo::new(self.info.dtype, shape))
    }

    pub(super) fn heads(&self) -> usize {
        self.info.shape[1]
    }

    /// Bytes of one token of one head.
    pub(super) fn row_bytes(&self) -> usize {
        self.info.shape[3] * self.info.dtype.bytes()
    }

    /// Bytes of `rows` tokens of all heads.
    pub(super) fn bytes(&self, rows: usize) -> usize {
        self.heads() * rows * self.row_bytes()
    }

    /// The device behind a bus that has the tensor in its own memory.
    fn context<'s>(&self, session: &'s Session) -> Option<&'s Context> {
        let own = |info: &DeviceInfo| !info.native && !info.memory.shares_host_memory();
        let context = self.device.and_then(|d| session.context(d as usize));
        context.filter(|context| own(context.info()))
    }
}

/// The memory of one tensor of a cache.
#[derive(Clone, Debug)]
enum Place {
    /// Pages of the process, where device and host share memory or several devices read them; and the first byte.
    Region(Arc<SharedRegion>, usize),
    /// Memory of a device of its own, which is this context's.
    Buffer(Context, Buffer),
}

/// Memory of one tensor for several sequences.
#[derive(Clone, Debug)]
pub(super) struct CacheMemory {
    place: Place,
    /// Tokens that each head has room for.
    pub(super) rows: usize,
}

/// Rows of one sequence in a memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'a> {
    pub(super) memory: &'a CacheMemory,
    pub(super) sequence: usize,
    /// The first of them.
    pub(super) at: usize,
}

impl CacheMemory {
    /// Zeros for `sequences` of `rows` tokens.
    pub(super) fn new(
        session: &Session,
        tensor: &CacheTensor,
        sequences: usize,
        rows: usize,
    ) -> Result<Self, GenerateError> {
        let bytes = tensor.sized(sequences, rows)?.bytes().max(16);
        let memory =
            CacheMemory::made(tensor.context(session), bytes, (Placement::Device, "keys and values"))?;
        let memory = CacheMemory { rows, ..memory };
        memory.fill(tensor, sequences, 0)?;
        Ok(memory)
    }

    /// At least so many bytes in the context's memory, else in the process's.
    fn made(
        context: Option<&Context>,
        bytes: usize,
        (placement, label): (Placement, &'static str),
    ) -> Result<Self, GenerateError> {
        let place = match context {
            Some(context) => {
                let bytes = (bytes as u64).next_multiple_of(16);
                let buffer = context.create_buffer(&BufferDesc { bytes, placement, label })?;
                Place::Buffer(context.clone(), buffer)
            }
            None => Place::Region(HostRegion::new(bytes)?.into_shared(), 0),
        };
        Ok(CacheMemory { place, rows: 0 })
    }

    /// As [`CacheMemory::new`], in the application's memory from byte `first` on, which has so many.
    pub(super) fn in_region(
        region: &Arc<SharedRegion>,
        first: usize,
        bytes: usize,
        rows: usize,
    ) -> Result<Self, GenerateError> {
        region.write()?[first..first + bytes].fill(0);
        Ok(CacheMemory { place: Place::Region(Arc::clone(region), first), rows })
    }

    /// Fills all of it, of so many sequences, with a byte.
    pub(super) fn fill(&self, tensor: &CacheTensor, sequences: usize, byte: u8) -> Result<(), GenerateError> {
        match &self.place {
            Place::Region(region, first) => {
                let bytes = sequences * tensor.bytes(self.rows);
                region.write()?[*first..first + bytes].fill(byte);
            }
            Place::Buffer(context, buffer) => {
                context.queue()?.enqueue_fill(buffer, u32::from_ne_bytes([byte; 4]))?.wait()?;
            }
        }
        Ok(())
    }

    /// The part of `sequences`, to be bound.
    pub(super) fn part(
        &self,
        tensor: &CacheTensor,
        sequences: &Range<usize>,
    ) -> Result<Memory<'static>, GenerateError> {
        let each = tensor.bytes(self.rows);
        let memory = self.bytes(sequences.start * each..sequences.end * each)?;
        Ok(memory.shape(tensor.sized(sequences.len(), self.rows)?.shape))
    }

    /// A part of it, to be bound.
    pub(super) fn bytes(&self, range: Range<usize>) -> Result<Memory<'static>, GenerateError> {
        let (start, end) = (range.start as u64, range.end as u64);
        Ok(match &self.place {
            Place::Region(region, first) => {
                let first = *first as u64;
                Memory::region_range(region, ByteRange::new(first + start, first + end))
            }
            Place::Buffer(_, buffer) => Memory::buffer(&buffer.sub_buffer(start, end - start)?),
        })
    }

    /// Copies parts of it to parts of another memory of the same tensor. A device copies in its own time: [`finish`] waits.
    pub(super) fn copy_to(
        &self,
        to: &CacheMemory,
        parts: impl IntoIterator<Item = (Range<usize>, Range<usize>)>,
    ) -> Result<(), GenerateError> {
        match (&self.place, &to.place) {
            (Place::Region(from, first), Place::Region(to, to_first)) => {
                if Arc::ptr_eq(from, to) {
                    let mut bytes = from.write()?;
                    for (from, to) in parts {
                        bytes.copy_within(first + from.start..first + from.end, to_first + to.start);
                    }
                    return Ok(());
                }
                let (from_bytes, mut to_bytes) = (from.read()?, to.write()?);
                for (from, to) in parts {
                    let from = from_bytes.get(first + from.start..first + from.end);
                    let to = to_bytes.get_mut(to_first + to.start..to_first + to.end);
                    if let (Some(from), Some(to)) = (from, to) {
                        to.copy_from_slice(from);
                    }
                }
            }
            (Place::Buffer(context, from_buffer), Place::Buffer(_, to_buffer)) => {
                let queue = context.queue()?;
                for (from, to) in parts {
                    let part = |buffer: &Buffer, range: Range<usize>| {
                        buffer.sub_buffer(range.start as u64, range.len() as u64)
                    };
                    queue.enqueue_copy(&part(from_buffer, from)?, &part(to_buffer, to)?)?;
                }
            }
            // All memory of a tensor is of one kind.
            _ => return Err(GenerateError::Unsupported("a cache on two kinds of memory".to_owned())),
        }
        Ok(())
    }
}

impl Rows<'_> {
    /// Where `count` rows of `head` lie.
    fn range(&self, tensor: &CacheTensor, head: usize, count: usize) -> Range<usize> {
        let first = (self.sequence * tensor.heads() + head) * self.memory.rows + self.at;
        first * tensor.row_bytes()..(first + count) * tensor.row_bytes()
    }

    /// Copies `count` rows of all heads to another memory of the same tensor. A device copies in its own time:
    /// [`finish`] waits.
    pub(super) fn copy_to(
        &self,
        to: &Rows<'_>,
        tensor: &CacheTensor,
        count: usize,
    ) -> Result<(), GenerateError> {
        if count == 0 {
            return Ok(());
        }
        let parts = (0..tensor.heads())
            .map(|head| (self.range(tensor, head, count), to.range(tensor, head, count)))
            .collect::<Vec<_>>();
        self.memory.copy_to(to.memory, parts)
    }
}

/// Each of `parts` with where it lies when all are put one after another.
fn joined(parts: &[Range<usize>]) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let starts = parts.iter().scan(0, |end, part| {
        let start = *end;
        *end += part.len();
        Some(start..*end)
    });
    parts.iter().cloned().zip(starts)
}

impl CacheMemory {
    /// Where the first `count` rows of each head of a sequence lie.
    pub(super) fn rows_of(&self, tensor: &CacheTensor, sequence: usize, count: usize) -> Vec<Range<usize>> {
        let rows = Rows { memory: self, sequence, at: 0 };
        (0..tensor.heads()).map(|head| rows.range(tensor, head, count)).collect()
    }

    /// Mapped memory of so many bytes, of the kind that copies to and from this one take.
    fn staging(&self, bytes: usize, placement: Placement) -> Result<CacheMemory, GenerateError> {
        let context = match &self.place {
            Place::Region(..) => None,
            Place::Buffer(context, _) => Some(context),
        };
        CacheMemory::made(context, bytes.max(16), (placement, "keys and values of a file"))
    }

    /// The bytes of `parts`, one after another.
    pub(super) fn read(&self, parts: &[Range<usize>]) -> Result<Vec<u8>, GenerateError> {
        let len = parts.iter().map(Range::len).sum();
        let staged = self.staging(len, Placement::Readback)?;
        self.copy_to(&staged, joined(parts))?;
        finish([self])?;
        let mut bytes = vec![0; len];
        match &staged.place {
            Place::Region(region, _) => bytes.copy_from_slice(&region.read()?[..len]),
            Place::Buffer(_, buffer) => buffer.map_read()?.copy_to(&mut bytes)?,
        }
        Ok(bytes)
    }

    /// Writes `parts`, whose bytes are one after another in `bytes`.
    pub(super) fn write(&self, parts: &[Range<usize>], bytes: &[u8]) -> Result<(), GenerateError> {
        let staged = self.staging(bytes.len(), Placement::Upload)?;
        match &staged.place {
            Place::Region(region, _) => region.write()?[..bytes.len()].copy_from_slice(bytes),
            Place::Buffer(_, buffer) => buffer.map_write()?[..bytes.len()].copy_from_slice(bytes),
        }
        staged.copy_to(self, joined(parts).map(|(own, staged)| (staged, own)))?;
        finish([self])
    }
}

/// Waits for the copies to and from all `memories`.
pub(super) fn finish<'m>(memories: impl IntoIterator<Item = &'m CacheMemory>) -> Result<(), GenerateError> {
    let mut done = Vec::new();
    for memory in memories {
        if let Place::Buffer(context, _) = &memory.place
            && !done.contains(&context.id())
        {
            context.queue()?.finish()?;
            done.push(context.id());
        }
    }
    Ok(())
}

/// A cache of a fixed length, for several sequences.
#[derive(Debug)]
pub(super) struct KeyValueCache {
    tensors: Vec<CacheTensor>,
    /// One set of memory that runs update, or two of which a run reads one and writes the other.
    sets: Vec<Vec<CacheMemory>>,
    /// The set that the next run of each sequence reads.
    current: Vec<usize>,
}

impl KeyValueCache {
    /// A cache of `rows` tokens that runs update `in_place`, or copy from one memory to another.
    pub(super) fn new(
        session: &Session,
        tensors: Vec<CacheTensor>,
        in_place: bool,
        sequences: usize,
        rows: usize,
    ) -> Result<Self, GenerateError> {
        let set = |_| {
            let all = tensors.iter().map(|t| CacheMemory::new(session, t, sequences, rows));
            all.collect::<Result<Vec<_>, _>>()
        };
        let sets = (0..if in_place { 1 } else { 2 }).map(set).collect::<Result<Vec<_>, _>>()?;
        Ok(KeyValueCache { tensors, sets, current: vec![0; sequences] })
    }

    /// Whether runs write rows where they belong and move nothing else.
    pub(super) fn is_in_place(&self) -> bool {
        self.sets.len() == 1
    }

    pub(super) fn sequences(&self) -> usize {
        self.current.len()
    }

    pub(super) fn tensors(&self) -> &[CacheTensor] {
        &self.tensors
    }

    /// Bytes of all sets.
    pub(super) fn bytes(&self) -> u64 {
        let sets = self.sets.iter().flat_map(|set| set.iter().zip(&self.tensors));
        let each: u64 = sets.map(|(memory, tensor)| tensor.bytes(memory.rows) as u64).sum();
        each * self.sequences() as u64
    }

    /// Ways to bind a run.
    pub(super) fn ways(&self) -> usize {
        self.sets.len()
    }

    /// The way of the next run of a sequence.
    pub(super) fn way(&self, sequence: usize) -> usize {
        self.current[sequence]
    }

    /// The way of the run after, or before, one of `way`.
    pub(super) fn other(&self, way: usize) -> usize {
        (way + 1) % self.sets.len()
    }

    /// After a run: what it wrote is what the next one reads.
    pub(super) fn advance(&mut self, sequences: &Range<usize>) {
        for sequence in sequences.clone() {
            self.current[sequence] = self.other(self.current[sequence]);
        }
    }

    /// What the next run of a sequence reads.
    pub(super) fn memory(&self, sequence: usize) -> &[CacheMemory] {
        &self.sets[self.current[sequence]]
    }

    /// Binds the cache of `sequences` to a run of `way`.
    pub(super) fn bind(
        &self,
        mut builder: BindingBuilder<'static>,
        sequences: &Range<usize>,
        way: usize,
    ) -> Result<BindingBuilder<'static>, GenerateError> {
        let (past, present) = (&self.sets[way], &self.sets[self.other(way)]);
        for (tensor, (past, present)) in self.tensors.iter().zip(past.iter().zip(present)) {
            let read = past.part(tensor, sequences)?;
            builder = if self.is_in_place() {
                builder.update(&tensor.past, &tensor.present, read)
            } else {
                builder.input(&tensor.past, read).output(&tensor.present, present.part(tensor, sequences)?)
            };
        }
        Ok(builder)
    }
}
