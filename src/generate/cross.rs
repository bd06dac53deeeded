//! What a decoder reads of its encoder. Keys and values of the cross-attention are computed once for a text, and kept.

use super::cache::{CacheMemory, CacheTensor};
use super::call::Call;
use super::cross_io::Hidden;
use super::error::GenerateError;
use super::fixed::inputs;
use super::input::floats;
use super::io::DecoderIo;
use crate::graph::Tensor;
use crate::plan::Plan;
use crate::session::{BindingBuilder, Memory, Session, SessionError};

/// Rows of an encoder's output that nothing declares, where some are needed.
const SOME_ROWS: usize = 4;

/// A number that must not be seen.
const UNSEEN: f32 = 3.0;

/// What an encoder gave for one text.
#[derive(Clone, Debug)]
pub(super) struct Encoded {
    /// Its output, where a decoder reads it.
    pub(super) hidden: Option<Tensor>,
    /// Keys and values, where the encoder gives them, or once the decoder's first run has made them.
    pub(super) kept: Option<Vec<CacheMemory>>,
    /// Rows of both.
    pub(super) rows: usize,
    /// The first of them, which are of the text. Others fill up a run.
    pub(super) real: usize,
}

/// What gives keys and values of an encoder's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maker {
    Encoder,
    /// The decoder's first run.
    Decoder,
    /// None: each run of the decoder reads the encoder's output.
    EachRun,
}

/// The part of a decoder's runs that is about its encoder.
#[derive(Debug)]
pub(super) struct CrossRuns {
    tensors: Vec<CacheTensor>,
    maker: Maker,
    /// The decoder without past, where the other one has no branch for it.
    first: Option<(Session, DecoderIo)>,
    /// Rows that an encoder's output may have.
    rows: usize,
    /// Whether some of them may be hidden: their number is open, and masks tell which there are.
    may_hide: bool,
    encoded: Vec<Option<Encoded>>,
}

/// Plans of a decoder's first run and of the next one.
#[derive(Debug)]
pub(super) struct CrossPlans {
    pub(super) first: Plan,
    pub(super) next: Plan,
}

impl CrossRuns {
    /// Plans the first run of one token and the next one; `tensors` are the cache of the decoder itself. `made` are the
    /// encoder's outputs that are keys and values, where it gives any.
    pub(super) fn new(
        session: &Session,
        io: &DecoderIo,
        first: Option<(Session, DecoderIo)>,
        tensors: &[CacheTensor],
        made: Option<&[String]>,
    ) -> Result<(Self, CrossPlans), GenerateError> {
        let (first_session, first_io) = first.as_ref().map_or((session, io), |(session, io)| (session, io));
        let (Some(cross), Some(first_cross)) = (&io.cross, &first_io.cross) else {
            return Err(GenerateError::Unsupported("a decoder that reads no encoder".to_owned()));
        };
        let mut kept = cross.tensors.clone();
        let maker = match made {
            _ if kept.is_empty() => Maker::EachRun,
            Some(made) => {
                kept.iter_mut().zip(made).for_each(|(tensor, made)| tensor.present.clone_from(made));
                Maker::Encoder
            }
            None => Maker::Decoder,
        };
        if maker != Maker::Encoder && first_cross.hidden.is_none() {
            let inputs: Vec<String> = first_session.inputs().into_iter().map(|io| io.name).collect();
            let what = format!(
                "a decoder with the inputs {inputs:?}: the encoder gives no keys and values, and no input of the decoder \
                 is named to take its output; correct the names in the settings"
            );
            return Err(GenerateError::Unsupported(what));
        }
        let declared = cross.rows().or(first_cross.rows());
        let may_hide = declared.is_none() && cross.has_mask() && first_cross.has_mask();
        let rows = declared.unwrap_or(SOME_ROWS);
        let mut runs = CrossRuns { tensors: kept, maker, first, rows, may_hide, encoded: Vec::new() };
        let sample = runs.sample(io, rows, rows)?;
        let (first_session, first_io) = runs.first_of(session, io);
        let mut builder = inputs(first_session, first_io, 1, 1, 1, false)?;
        for tensor in tensors.iter().filter(|_| first_io.reads_cache) {
            builder = builder.input(&tensor.past, Memory::own().shape(tensor.sized(1, 0)?.shape));
        }
        let builder = match runs.maker {
            Maker::Decoder => bind_first(first_io, builder, &sample)?,
            Maker::Encoder | Maker::EachRun => runs.bind_kept(first_io, builder, &sample)?,
        };
        let first = builder.plan()?;
        let mut builder = inputs(session, io, 1, 1, 2, true)?;
        for tensor in tensors {
            builder = builder.input(&tensor.past, Memory::own().shape(tensor.sized(1, 1)?.shape));
        }
        let mut sample = sample;
        if runs.maker == Maker::Decoder {
            for tensor in &runs.tensors {
                sample.rows = rows_of(&first, tensor)?;
            }
        }
        let next = runs.bind_kept(io, builder, &sample)?.plan()?;
        let plans = CrossPlans { first, next };
        let devices: Vec<Option<u32>> =
            runs.tensors.iter().map(|tensor| runs.kept_on(session, &plans, tensor)).collect();
        runs.tensors.iter_mut().zip(devices).for_each(|(tensor, device)| tensor.device = device);
        Ok((runs, plans))
    }

    /// What stands for an encoder's output of `rows`, of which the first `real` ones are numbers that do not depend on how
    /// many there are, and the others are large. Keys and values of the encoder's are not there yet.
    pub(super) fn sample(&self, io: &DecoderIo, rows: usize, real: usize) -> Result<Encoded, GenerateError> {
        let cross = self.first.as_ref().map_or(&io.cross, |(_, io)| &io.cross);
        let hidden = cross.as_ref().and_then(|cross| cross.hidden.as_ref());
        let hidden = hidden.map(|hidden| numbers(hidden, rows, real)).transpose()?;
        Ok(Encoded { hidden, kept: None, rows, real })
    }

    /// The device that alone touches keys and values of the encoder's output.
    fn kept_on(&self, session: &Session, plans: &CrossPlans, tensor: &CacheTensor) -> Option<u32> {
        match self.maker {
            Maker::Decoder => self.device(session, plans, tensor),
            Maker::EachRun => None,
            Maker::Encoder => {
                let plans = [&plans.first, &plans.next].into_iter();
                let ios = plans.filter_map(|plan| plan.inputs.iter().find(|io| io.name == tensor.past));
                let mut devices: Vec<u32> = ios.flat_map(|io| io.devices.clone()).collect();
                devices.sort_unstable();
                devices.dedup();
                if let [device] = devices[..] { Some(device) } else { None }
            }
        }
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

    /// Keys and values of the encoder's output.
    pub(super) fn tensors(&self) -> &[CacheTensor] {
        &self.tensors
    }

    /// Rows that an encoder's output may have.
    pub(super) fn some_rows(&self) -> usize {
        self.rows
    }

    /// Whether some of its rows may be hidden.
    pub(super) fn may_hide(&self) -> bool {
        self.may_hide
    }

    /// What gives them.
    pub(super) fn maker(&self) -> Maker {
        self.maker
    }

    /// Whether the decoder reads the encoder's output itself.
    pub(super) fn reads_hidden(&self, io: &DecoderIo) -> bool {
        let first = self.first.as_ref().map_or(io, |(_, io)| io);
        first.cross.as_ref().is_some_and(|cross| cross.hidden.is_some())
    }

    /// Plans of the decoder without past, where it is a graph of its own.
    pub(super) fn plans_made(&self) -> u64 {
        self.first.as_ref().map_or(0, |(session, _)| session.plans_made())
    }

    /// Makes room for `sequences`, of which none has an encoder's output then.
    pub(super) fn resize(&mut self, sequences: usize) {
        self.encoded = vec![None; sequences];
    }

    /// Begins a text of `sequence` with what the encoder gave.
    pub(super) fn begin(&mut self, sequence: usize, encoded: Encoded) -> Result<(), GenerateError> {
        if let Some(hidden) = encoded.hidden.as_ref().filter(|hidden| hidden.shape().rank() != 3) {
            return Err(GenerateError::Shape {
                name: "the encoder's output".to_owned(),
                expected: "[batch, rows, elements]",
                got: hidden.shape().to_string(),
            });
        }
        self.encoded[sequence] = Some(encoded);
        Ok(())
    }

    /// What the encoder gave for the text of `sequence`.
    pub(super) fn encoded(&self, sequence: usize) -> Result<&Encoded, GenerateError> {
        let encoded = self.encoded.get(sequence).and_then(Option::as_ref);
        Ok(encoded.ok_or(SessionError::NotRun)?)
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
    pub(super) fn bind(
        &self,
        call: &Call<'_>,
        builder: BindingBuilder<'static>,
    ) -> Result<(BindingBuilder<'static>, Option<Vec<CacheMemory>>), GenerateError> {
        let encoded = self.encoded(call.sequences.start)?;
        if encoded.kept.is_some() || self.maker == Maker::EachRun {
            return Ok((self.bind_kept(call.io, builder, encoded)?, None));
        }
        let mut builder = bind_first(call.io, builder, encoded)?;
        let plan = builder.plan()?;
        let mut made = Vec::new();
        for tensor in &self.tensors {
            let memory = CacheMemory::new(call.session, tensor, 1, rows_of(&plan, tensor)?)?;
            builder = builder.output(&tensor.present, memory.part(tensor, &(0..1))?);
            made.push(memory);
        }
        Ok((builder, Some(made)))
    }

    /// Binds to a run that reads keys and values, or the encoder's output, what it is given.
    pub(super) fn bind_kept(
        &self,
        io: &DecoderIo,
        mut builder: BindingBuilder<'static>,
        encoded: &Encoded,
    ) -> Result<BindingBuilder<'static>, GenerateError> {
        let Some(cross) = &io.cross else { return Ok(builder) };
        for (i, tensor) in self.tensors.iter().enumerate() {
            let memory = match encoded.kept.as_ref().and_then(|kept| kept.get(i)) {
                Some(memory) => memory.part(tensor, &(0..1))?,
                None => Memory::own().shape(tensor.sized(1, encoded.rows)?.shape),
            };
            builder = builder.input(&tensor.past, memory);
        }
        if let Some(hidden) = &cross.hidden {
            let memory = match &encoded.hidden {
                // The branch that reads it is not run.
                Some(value) if io.branch.is_none() => Memory::value(value.clone()),
                _ => Memory::own().shape(hidden.info(encoded.rows)?.shape),
            };
            builder = builder.input(&hidden.name, memory);
        }
        cross.bind_mask(builder, encoded.rows, encoded.real)
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
    encoded: &Encoded,
) -> Result<BindingBuilder<'static>, GenerateError> {
    let (Some(cross), Some(value)) = (&io.cross, &encoded.hidden) else { return Ok(builder) };
    // A branch that is not run reads them.
    for tensor in &cross.tensors {
        builder = builder.input(&tensor.past, Memory::own().shape(tensor.sized(1, encoded.rows)?.shape));
    }
    if let Some(hidden) = &cross.hidden {
        builder = builder.input(&hidden.name, Memory::value(value.clone()));
    }
    cross.bind_mask(builder, encoded.rows, encoded.real)
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

/// An encoder's output: numbers from -1 to 1 in the first `real` rows, and large ones in the others.
fn numbers(hidden: &Hidden, rows: usize, real: usize) -> Result<Tensor, GenerateError> {
    let info = hidden.info(rows)?;
    let elements = info.shape[2];
    floats(&info, |at| match at / elements.max(1) < real {
        true => ((at * 37 + 11) % 101) as f32 / 50.0 - 1.0,
        false => UNSEEN,
    })
}
