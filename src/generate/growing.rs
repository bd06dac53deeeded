//! Runs that append to the cache: each is planned anew.

use super::cache::{CacheMemory, CacheTensor, Rows, finish};
use super::call::{Call, Ran, chunk_size};
use super::cross::CrossRuns;
use super::error::GenerateError;
use super::fixed::{inputs, only_device};
use super::io::DecoderIo;
use super::logits::Logits;
use crate::plan::Plan;
use crate::session::{BindingBuilder, Memory, Session};

/// Each run gives a longer cache.
#[derive(Debug)]
pub(super) struct GrowingRuns {
    tensors: Vec<CacheTensor>,
    largest_chunk: usize,
    /// Whether the first run of a text is filled up, so that one plan serves several numbers of tokens.
    fills_up: bool,
    /// The cache of each sequence, once there is a token in it.
    memory: Vec<Option<Vec<CacheMemory>>>,
    /// What is read of an encoder.
    cross: Option<Box<CrossRuns>>,
}

impl GrowingRuns {
    /// Plans the first run of one token too.
    pub(super) fn new(
        session: &Session,
        io: &DecoderIo,
        mut tensors: Vec<CacheTensor>,
    ) -> Result<(Self, Plan), GenerateError> {
        let mut builder = inputs(session, io, 1, 1, 1, false)?;
        for tensor in &tensors {
            builder = builder.input(&tensor.past, Memory::own().shape(tensor.sized(1, 0)?.shape));
        }
        let plan = builder.plan()?;
        for tensor in &mut tensors {
            tensor.device = only_device(&plan, tensor);
        }
        Ok((
            GrowingRuns { tensors, largest_chunk: 1, fills_up: false, memory: vec![None], cross: None },
            plan,
        ))
    }

    /// As [`GrowingRuns::new`] for a decoder that reads an encoder; `first` is the decoder without past,
    /// where the other one has no branch for it. `made` are the encoder's outputs that are keys and values,
    /// where it gives any.
    pub(super) fn crossed(
        session: &Session,
        io: &DecoderIo,
        first: Option<(Session, DecoderIo)>,
        mut tensors: Vec<CacheTensor>,
        made: Option<&[String]>,
    ) -> Result<(Self, Plan), GenerateError> {
        let (mut cross, plans) = CrossRuns::new(session, io, first, &tensors, made)?;
        for tensor in &mut tensors {
            tensor.device = cross.device(session, &plans, tensor);
        }
        cross.resize(1);
        let (memory, cross) = (vec![None], Some(Box::new(cross)));
        let runs = GrowingRuns { tensors, largest_chunk: 1, fills_up: false, memory, cross };
        Ok((runs, plans.first))
    }

    /// What is read of an encoder.
    pub(super) fn cross_mut(&mut self) -> Option<&mut CrossRuns> {
        self.cross.as_deref_mut()
    }

    pub(super) fn cross(&self) -> Option<&CrossRuns> {
        self.cross.as_deref()
    }

    /// Fills up the first run of a text from now on, or does not. What fills it up is in the cache after it.
    pub(super) fn fill_up(&mut self, fills_up: bool) {
        self.fills_up = fills_up;
    }

    /// The cache of a sequence, which is empty then.
    pub(super) fn take(&mut self, sequence: usize) -> Vec<CacheMemory> {
        self.memory[sequence].take().unwrap_or_default()
    }

    pub(super) fn limit_chunk(&mut self, largest: usize) {
        self.largest_chunk = largest.max(1);
    }

    pub(super) fn tensors(&self) -> &[CacheTensor] {
        &self.tensors
    }

    /// Makes room for `sequences`; their caches are empty then.
    pub(super) fn resize(&mut self, sequences: usize) {
        self.memory = vec![None; sequences];
        if let Some(cross) = &mut self.cross {
            cross.resize(sequences);
        }
    }

    /// The cache of a sequence, once there is a token in it.
    pub(super) fn memory(&self, sequence: usize) -> &[CacheMemory] {
        self.memory[sequence].as_deref().unwrap_or_default()
    }

    /// Makes room for exactly `len` tokens in the cache of a sequence, and keeps those before.
    pub(super) fn reserve(
        &mut self,
        session: &Session,
        sequence: usize,
        len: usize,
    ) -> Result<(), GenerateError> {
        if len == 0 {
            self.memory[sequence] = None;
            return Ok(());
        }
        let new = self.tensors.iter().map(|tensor| CacheMemory::new(session, tensor, 1, len));
        let new = new.collect::<Result<Vec<_>, _>>()?;
        for ((tensor, old), new) in self.tensors.iter().zip(self.memory(sequence)).zip(&new) {
            let of = |memory| Rows { memory, sequence: 0, at: 0 };
            of(old).copy_to(&of(new), tensor, len.min(old.rows))?;
        }
        finish(&new)?;
        self.memory[sequence] = Some(new);
        Ok(())
    }

    /// Begins the cache of a sequence with the first `len` rows of `rows`.
    pub(super) fn put(
        &mut self,
        session: &Session,
        sequence: usize,
        len: usize,
        rows: &[CacheMemory],
    ) -> Result<(), GenerateError> {
        self.memory[sequence] = Some(rows.to_vec());
        self.reserve(session, sequence, len)
    }

    /// Runs the first tokens of a call, which is of one sequence.
    pub(super) fn run(&mut self, call: &Call<'_>) -> Result<Ran, GenerateError> {
        let (sequence, len) = (call.sequences.start, call.lens()[0]);
        let has_past = self.memory[sequence].is_some();
        let (session, io) = match &self.cross {
            Some(cross) if !has_past => cross.first_of(call.session, call.io),
            _ => (call.session, call.io),
        };
        let call = &Call { session, io, ..call.clone() };
        // Decoders with past of an encoder are exported for one token.
        let largest = if has_past && self.cross.is_some() { 1 } else { self.largest_chunk };
        let size = match self.fills_up && !has_past {
            true => chunk_size(call.tokens.len(), call.positions, largest, true),
            false => call.tokens.len().min(largest),
        };
        let mut builder: BindingBuilder<'static> = inputs(session, io, 1, size, len + size, has_past)?;
        let mut grown = Vec::new();
        for (i, tensor) in self.tensors.iter().enumerate() {
            let past = match self.memory(sequence).get(i) {
                Some(memory) => memory.part(tensor, &(0..1))?,
                None => Memory::own().shape(tensor.sized(1, 0)?.shape),
            };
            let present = CacheMemory::new(session, tensor, 1, len + size)?;
            if io.reads_cache {
                builder = builder.input(&tensor.past, past);
            }
            builder = builder.output(&tensor.present, present.part(tensor, &(0..1))?);
            grown.push(present);
        }
        let mut made = None;
        if let Some(cross) = &self.cross {
            (builder, made) = cross.bind(call, builder)?;
        }
        let (logits, builder) = Logits::bind(session, io, builder)?;
        let mut binding = builder.build()?;
        call.write_tokens(&mut binding, size)?;
        call.ask(&mut binding, &logits, size)?;
        if let Some(mask) = &io.mask {
            let values = vec![1; len + size];
            mask.write(&mut binding, 1, 0, &values, || values.clone())?;
        }
        call.run(&mut binding)?;
        let ran = call.ran(size, &logits, &binding)?;
        self.memory[sequence] = Some(grown);
        if let Some(cross) = &mut self.cross {
            cross.keep(sequence, made);
        }
        Ok(ran)
    }
}
