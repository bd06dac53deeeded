//! Runs that append to the cache: each is planned anew.

use super::cache::{CacheMemory, CacheTensor};
use super::error::GenerateError;
use super::io::{DecoderIo, of_length};
use crate::graph::TensorInfo;
use crate::memory::host::HostRegion;
use crate::session::{BindingBuilder, Memory, RunOptions, Session};

/// Each run gives a longer cache.
#[derive(Debug)]
pub(super) struct GrowingRuns {
    tensors: Vec<CacheTensor>,
    largest_chunk: usize,
    /// The cache, once there is a token in it.
    memory: Option<Vec<CacheMemory>>,
}

impl GrowingRuns {
    pub(super) fn new(tensors: Vec<CacheTensor>, largest_chunk: usize) -> Self {
        GrowingRuns { tensors, largest_chunk, memory: None }
    }

    /// Forgets all tokens.
    pub(super) fn clear(&mut self) {
        self.memory = None;
    }

    pub(super) fn limit_chunk(&mut self, largest: usize) {
        self.largest_chunk = largest.max(1);
    }

    /// Inputs of `tokens` after `len` tokens in the cache.
    ///
    /// # Errors
    /// What the session says.
    pub(super) fn inputs(
        &self,
        session: &Session,
        io: &DecoderIo,
        tokens: &[u32],
        len: usize,
    ) -> Result<BindingBuilder<'static>, GenerateError> {
        let ids: Vec<i64> = tokens.iter().map(|t| i64::from(*t)).collect();
        let mut builder = session.bind().input(&io.ids.name, Memory::value(io.ids.tensor(&ids)?));
        if let Some(positions) = &io.positions {
            let values: Vec<i64> = (len..len + tokens.len()).map(|p| p as i64).collect();
            builder = builder.input(&positions.name, Memory::value(positions.tensor(&values)?));
        }
        if let Some(mask) = &io.mask {
            let values = vec![1; len + tokens.len()];
            builder = builder.input(&mask.name, Memory::value(mask.tensor(&values)?));
        }
        for (i, tensor) in self.tensors.iter().enumerate() {
            let memory = self.memory.as_ref().and_then(|all| all.get(i));
            let memory = memory.map_or_else(Memory::own, CacheMemory::memory);
            builder = builder.input(&tensor.past, memory.shape(of_length(&tensor.info, len)?));
        }
        Ok(builder)
    }

    /// Runs the first of `tokens` after `len` tokens in the cache; gives how many, and the logits of the last one where
    /// that is the last of `tokens`.
    ///
    /// # Errors
    /// What the session says; the cache has `len` tokens then.
    pub(super) fn run(
        &mut self,
        session: &Session,
        io: &DecoderIo,
        tokens: &[u32],
        len: usize,
        options: Option<&RunOptions>,
    ) -> Result<(usize, Option<Vec<f32>>), GenerateError> {
        let real = tokens.len().min(self.largest_chunk);
        let mut builder = self.inputs(session, io, &tokens[..real], len)?;
        let mut grown = Vec::new();
        for tensor in &self.tensors {
            let info = TensorInfo::new(tensor.info.dtype, of_length(&tensor.info, len + real)?);
            let region = HostRegion::new(info.bytes().max(16))?.into_shared();
            builder = builder.output(&tensor.present, Memory::region(&region));
            grown.push(CacheMemory::Region(region));
        }
        let mut binding = builder.build()?;
        match options {
            Some(options) => binding.run_with(options)?,
            None => binding.run()?,
        }
        let row = if real == tokens.len() {
            let all = binding.output_info(&io.logits)?.clone();
            Some(io.row(&all, real - 1, |start, bytes| io.copy_logits(&binding, start, bytes))?)
        } else {
            None
        };
        self.memory = Some(grown);
        Ok((real, row))
    }
}
