//! What a decoder reads of its encoder. Keys and values of the cross-attention are computed once for a text, and kept.

use super::cache::{CacheMemory, CacheTensor};
use super::call::Call;
use super::cross_io::HIDDEN;
use super::error::GenerateError;
use super::fixed::inputs;
use super::io::DecoderIo;
use crate::graph::Tensor;
use crate::plan::Plan;
use crate::session::{BindingBuilder, IoInfo, Memory, Session, SessionError};

/// What an encoder gave for one text.
#[derive(Clone, Debug)]
struct Encoded {
    hidden: Tensor,
    /// Keys and values, once the first run has made them.
    kept: Option<Vec<CacheMemory>>,
}

/// The part of a decoder's runs that is about its encoder.
#[derive(Debug)]
pub(super) struct CrossRuns {
    tensors: Vec<CacheTensor>,
    /// The decoder without past, where the other one has no branch for it.
    first: Option<(Session, DecoderIo)>,
    encoded: Vec<Option<Encoded>>,
}

/// Plans of a decoder's first run and of the next one.
#[derive(Debug)]
pub(super) struct CrossPlans {
    pub(super) first: Plan,
    pub(super) next: Plan,
}

impl CrossRuns {
    /// Plans the first run of one token and the next one; `tensors` are the cache of the decoder itself.
    ///
    /// # Errors
    /// [`GenerateError`] for a graph that is no such decoder, and what the session says.
    pub(super) fn new(
        session: &Session,
        io: &DecoderIo,
        first: Option<(Session, DecoderIo)>,
        tensors: &[CacheTensor],
    ) -> Result<(Self, CrossPlans), GenerateError> {
        let (first_session, first_io) = first.as_ref().map_or((session, io), |(session, io)| (session, io));
        let (Some(cross), Some(first_cross)) = (&io.cross, &first_io.cross) else {
            return Err(GenerateError::Unsupported("a decoder that reads no encoder".to_owned()));
        };
        let not_found = |name: &str, known: &[IoInfo]| GenerateError::NoSuchName {
            what: "input",
            name: name.to_owned(),
            known: known.iter().map(|io| io.name.clone()).collect(),
        };
        let Some(hidden) = first_cross.hidden.clone() else {
            return Err(not_found(HIDDEN, &first_session.inputs()));
        };
        if cross.tensors.is_empty() {
            return Err(not_found("past_key_values.0.encoder.key", &session.inputs()));
        }
        let hidden = Tensor::build(hidden, |_| Ok::<_, GenerateError>(()))?;
        let mut runs = CrossRuns { tensors: cross.tensors.clone(), first, encoded: Vec::new() };
        let (first_session, first_io) = runs.first_of(session, io);
        let mut builder = inputs(first_session, first_io, 1, 1, 1, false)?;
        for tensor in tensors.iter().filter(|_| first_io.reads_cache) {
            builder = builder.input(&tensor.past, Memory::own().shape(tensor.sized(1, 0)?.shape));
        }
        let first = bind_first(first_io, builder, &hidden)?.plan()?;
        let mut builder = inputs(session, io, 1, 1, 2, true)?;
        for tensor in tensors {
            builder = builder.input(&tensor.past, Memory::own().shape(tensor.sized(1, 1)?.shape));
        }
        for tensor in &runs.tensors {
            let rows = rows_of(&first, tensor)?;
            builder = builder.input(&tensor.past, Memory::own().shape(tensor.sized(1, rows)?.shape));
        }
        let next = bind_next(io, builder, &hidden)?.plan()?;
        let plans = CrossPlans { first, next };
        let devices: Vec<Option<u32>> =
            runs.tensors.iter().map(|tensor| runs.device(session, &plans, tensor)).collect();
        runs.tensors.iter_mut().zip(devices).for_each(|(tensor, device)| tensor.device = device);
        Ok((runs, plans))
    }

    /// The device that alone touches a tensor of a cache, in both runs.
    pub(super) fn device(&self, session: &Session, plans: &CrossPlans, tensor: &CacheTensor) -> Option<u32> {
        let made = plans.first.outputs.iter().find(|io| io.name == tensor.present)?;
        let read = plans.next.inputs.iter().find(|io| io.name == tensor.past)?;
        let next = plans.next.outputs.iter().find(|io| io.name == tensor.present);
        // What has no element has no place.
        let next = next.filter(|io| io.info.elements() > 0);
        let mut devices: Vec<u32> =
            [Some(read), next].into_iter().flatten().flat_map(|io| io.devices.clone()).collect();
        devices.dedup();
        let ([made], [device]) = (&made.devices[..], &devices[..]) else { return None };
        let first = self.first.as_ref().map_or(session, |(session, _)| session);
        let id =
            |session: &Session, device: u32| session.context(device as usize).map(|context| context.id());
        (id(first, *made) == id(session, *device)).then_some(*device)
    }

    /// Makes room for `sequences`, of which none has an encoder's output then.
    pub(super) fn resize(&mut self, sequences: usize) {
        self.encoded = vec![None; sequences];
    }

    /// Begins a text of `sequence` with what the encoder gave.
    ///
    /// # Errors
    /// [`GenerateError::Shape`] for what is no such output.
    pub(super) fn begin(&mut self, sequence: usize, hidden: Tensor) -> Result<(), GenerateError> {
        if hidden.shape().dims().len() != 3 {
            return Err(GenerateError::Shape {
                name: HIDDEN.to_owned(),
                expected: "[batch, rows, elements]",
                got: hidden.shape().to_string(),
            });
        }
        self.encoded[sequence] = Some(Encoded { hidden, kept: None });
        Ok(())
    }

    /// The session of the first run of a text.
    pub(super) fn first_of<'s>(
        &'s self,
        session: &'s Session,
        io: &'s DecoderIo,
    ) -> (&'s Session, &'s DecoderIo) {
        self.first.as_ref().map_or((session, io), |(session, io)| (session, io))
    }

    /// What the decoder without past is given and gives, where it is a graph of its own.
    pub(super) fn first_io_mut(&mut self) -> Option<&mut DecoderIo> {
        self.first.as_mut().map(|(_, io)| io)
    }

    /// Binds what `call` reads of the encoder; gives the keys and values that a first run makes.
    ///
    /// # Errors
    /// What the session says.
    pub(super) fn bind(
        &self,
        call: &Call<'_>,
        builder: BindingBuilder<'static>,
    ) -> Result<(BindingBuilder<'static>, Option<Vec<CacheMemory>>), GenerateError> {
        let encoded = self.encoded.get(call.sequences.start).and_then(Option::as_ref);
        let encoded = encoded.ok_or(SessionError::NotRun)?;
        if let Some(kept) = &encoded.kept {
            let mut builder = bind_next(call.io, builder, &encoded.hidden)?;
            for (tensor, memory) in self.tensors.iter().zip(kept) {
                builder = builder.input(&tensor.past, memory.part(tensor, &(0..1))?);
            }
            return Ok((builder, None));
        }
        let mut builder = bind_first(call.io, builder, &encoded.hidden)?;
        let plan = builder.plan()?;
        let mut made = Vec::new();
        for tensor in &self.tensors {
            let memory = CacheMemory::new(call.session, tensor, 1, rows_of(&plan, tensor)?)?;
            builder = builder.output(&tensor.present, memory.part(tensor, &(0..1))?);
            made.push(memory);
        }
        Ok((builder, Some(made)))
    }

    /// Keeps what the first run of `sequence` made.
    pub(super) fn keep(&mut self, sequence: usize, made: Option<Vec<CacheMemory>>) {
        if let (Some(encoded), Some(made)) = (&mut self.encoded[sequence], made) {
            encoded.kept = Some(made);
        }
    }
}

/// Binds the encoder's output to a run that makes keys and values of it.
fn bind_first(
    io: &DecoderIo,
    mut builder: BindingBuilder<'static>,
    hidden: &Tensor,
) -> Result<BindingBuilder<'static>, GenerateError> {
    let Some(cross) = &io.cross else { return Ok(builder) };
    let rows = hidden.shape()[1];
    // A branch that is not run reads them.
    for tensor in &cross.tensors {
        builder = builder.input(&tensor.past, Memory::own().shape(tensor.sized(1, rows)?.shape));
    }
    cross.bind_mask(builder.input(HIDDEN, Memory::value(hidden.clone())), rows)
}

/// Binds to a run that reads keys and values what else it is given.
fn bind_next(
    io: &DecoderIo,
    mut builder: BindingBuilder<'static>,
    hidden: &Tensor,
) -> Result<BindingBuilder<'static>, GenerateError> {
    let Some(cross) = &io.cross else { return Ok(builder) };
    if cross.hidden.is_some() {
        builder = builder.input(HIDDEN, Memory::own().shape(hidden.shape().clone()));
    }
    cross.bind_mask(builder, hidden.shape()[1])
}

/// Rows of keys and values that a first run makes.
fn rows_of(plan: &Plan, tensor: &CacheTensor) -> Result<usize, GenerateError> {
    let made = plan.outputs.iter().find(|io| io.name == tensor.present);
    let rows = made.and_then(|io| io.info.shape.dims().get(2).copied()).unwrap_or(0);
    match made {
        Some(io) if io.info == tensor.sized(1, rows)? => Ok(rows),
        made => Err(GenerateError::Shape {
            name: tensor.present.clone(),
            expected: "[1, heads, rows, elements] of the input that reads it",
            got: made.map_or("no output".to_owned(), |io| io.info.shape.to_string()),
        }),
    }
}
