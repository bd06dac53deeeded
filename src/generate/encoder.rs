//! Runs of an encoder: a prompt or features in, what its decoder reads out.

use super::cache::{CacheMemory, CacheTensor};
use super::cross::Encoded;
use super::cross_io::first_of;
use super::error::GenerateError;
use super::input::IntInput;
use super::logits::near;
use super::settings::{Config, EncoderConfig, layer_name};
use crate::graph::Tensor;
use crate::plan::PlannedIo;
use crate::session::{BindingBuilder, IoInfo, Memory, RunOptions, Session};
use crate::shape::{Dim, SymShape};

/// Tokens of the smallest run that is filled up.
const SMALLEST_RUN: usize = 16;

/// What a text of an encoder-decoder is made from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Tokens(Vec<u32>),
    Features(Tensor),
}

/// What the decoder wants of its encoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// Its output.
    pub(super) hidden: bool,
    /// Keys and values that it gives, where the decoder's session has them.
    pub(super) tensors: &'a [CacheTensor],
    pub(super) decoder: &'a Session,
}

/// An encoder on a session.
#[derive(Debug)]
pub(super) struct Encoder {
    session: Session,
    input: Input,
    /// The output that the decoder reads.
    hidden: Option<String>,
    /// Tokens that it takes.
    context: usize,
    /// Whether a run is filled up, so that one plan serves several lengths.
    fills_up: bool,
}

#[derive(Debug)]
enum Input {
    Tokens { ids: IntInput, mask: Option<IntInput> },
    Features(IoInfo),
}

impl Encoder {
    /// Finds the inputs and the output of an encoder.
    pub(super) fn new(session: Session, config: &EncoderConfig) -> Result<Self, GenerateError> {
        let (file, names) = (config.graph.display(), &config.names);
        let inputs = session.inputs();
        let outputs = session.outputs();
        let has = |name: &String| outputs.iter().any(|io| io.name == *name);
        let hidden = names.encoded.iter().find(|name| has(name)).cloned();
        if hidden.is_none() && names.by_encoder.is_none() {
            let what = format!("{file} has no output {:?}: export the model with optimum", names.encoded[0]);
            return Err(GenerateError::Unsupported(what));
        }
        let (ids, mask) = (IntInput::find(&inputs, &names.ids)?, IntInput::find(&inputs, &names.mask)?);
        let is_float = |io: &IoInfo| io.dtype.is_some_and(|dtype| dtype.is_float());
        let input = match (ids, &inputs[..]) {
            (Some(ids), all) if all.len() == 1 + usize::from(mask.is_some()) => Input::Tokens { ids, mask },
            (None, [features])
                if is_float(features)
                    && names.features.as_ref().is_none_or(|name| features.name == *name) =>
            {
                Input::Features(features.clone())
            }
            _ => {
                let found: Vec<&String> = inputs.iter().map(|io| &io.name).collect();
                let features = names
                    .features
                    .as_ref()
                    .map_or("features".to_owned(), |name| format!("features, {name:?}"));
                let what = format!(
                    "{file} has the inputs {found:?}: an encoder takes {:?} with {:?}, or one tensor of {features}",
                    names.ids, names.mask
                );
                return Err(GenerateError::Unsupported(what));
            }
        };
        Ok(Encoder { session, input, hidden, context: config.context, fills_up: false })
    }

    /// Outputs that are keys and values, for each layer; none where the decoder makes them.
    pub(super) fn made(&self, config: &Config) -> Result<Option<Vec<String>>, GenerateError> {
        let Some(names) = config.encoder.as_ref().map(|encoder| &encoder.names) else { return Ok(None) };
        let (Some(by_encoder), Some(_)) = (&names.by_encoder, &names.past) else { return Ok(None) };
        let outputs = self.session.outputs();
        let layers = (0..config.layers).flat_map(|i| by_encoder.iter().map(move |name| layer_name(name, i)));
        let layers: Vec<String> = layers.collect();
        match layers.iter().find(|name| !outputs.iter().any(|io| io.name == **name)) {
            None => Ok(Some(layers)),
            Some(_) if names.by_decoder.is_some() => Ok(None),
            Some(name) => Err(GenerateError::no_such_name("output", name, &outputs)),
        }
    }

    /// Plans made so far.
    pub(super) fn plans_made(&self) -> u64 {
        self.session.plans_made()
    }

    /// Checks that the encoder takes `source`.
    pub(super) fn check(&self, source: &Source) -> Result<(), GenerateError> {
        match (&self.input, source) {
            (Input::Tokens { .. }, Source::Tokens(tokens)) if tokens.is_empty() => {
                Err(GenerateError::EmptyPrompt)
            }
            (Input::Tokens { .. }, Source::Tokens(tokens)) if tokens.len() > self.context => {
                Err(GenerateError::SourceTooLong { tokens: tokens.len(), limit: self.context })
            }
            (Input::Tokens { .. }, Source::Tokens(_)) => Ok(()),
            (Input::Features(declared), Source::Features(features)) => fits(declared, features),
            (Input::Tokens { ids, .. }, Source::Features(_)) => {
                Err(GenerateError::Source { input: ids.name.clone(), expected: "text or tokens" })
            }
            (Input::Features(declared), Source::Tokens(_)) => {
                Err(GenerateError::Source { input: declared.name.clone(), expected: "features" })
            }
        }
    }

    /// Whether runs may be filled up, with rows that a mask hides.
    pub(super) fn may_fill_up(&self) -> bool {
        matches!(self.input, Input::Tokens { mask: Some(_), .. }) && self.context >= SMALLEST_RUN
    }

    /// Fills runs up from now on where the encoder heeds its mask: rows that it hides change no other row.
    pub(super) fn fill_up(&mut self, wanted: &Wanted<'_>) {
        let rows = |encoder: &Encoder| {
            let encoded = encoder.run(&Source::Tokens(vec![1, 0]), wanted, None)?;
            first_rows(&encoded, wanted)
        };
        let exact = rows(self);
        self.fills_up = true;
        // What fails here fails in a run too, which says why.
        self.fills_up = matches!((exact, rows(self)), (Ok(exact), Ok(filled)) if near(&exact, &filled));
    }

    /// Checks that the encoder gives what the decoder reads.
    pub(super) fn check_gives(
        &self,
        wanted: &Wanted<'_>,
        config: &EncoderConfig,
    ) -> Result<(), GenerateError> {
        if !wanted.hidden || self.hidden.is_some() {
            return Ok(());
        }
        Err(GenerateError::no_such_name("output", &config.names.encoded[0], &self.session.outputs()))
    }

    /// Runs the encoder; gives what its decoder reads.
    pub(super) fn run(
        &self,
        source: &Source,
        wanted: &Wanted<'_>,
        options: Option<&RunOptions>,
    ) -> Result<Encoded, GenerateError> {
        self.check(source)?;
        let mut builder = self.session.bind();
        let mut tokens = None;
        match (&self.input, source) {
            (Input::Tokens { ids, mask }, Source::Tokens(given)) => {
                let (real, size) = (given.len(), self.size(given.len()));
                let mut values: Vec<i64> = given.iter().map(|token| i64::from(*token)).collect();
                values.resize(size, 0);
                builder = builder.input(&ids.name, Memory::value(ids.tensor(&[1, size], &values)?));
                if let Some(mask) = mask {
                    builder = builder.input(&mask.name, Memory::value(first_of(mask, size, real)?));
                }
                tokens = Some((size, real));
            }
            (Input::Features(declared), Source::Features(features)) => {
                builder = builder.input(&declared.name, Memory::value(features.clone()));
            }
            _ => {}
        }
        let (builder, kept) = self.bind_kept(builder, wanted)?;
        let mut binding = builder.build()?;
        match options {
            Some(options) => binding.run_with(options)?,
            None => binding.run()?,
        }
        let hidden = match &self.hidden {
            Some(name) if wanted.hidden => Some(binding.get_output(name)?),
            _ => None,
        };
        let rows = match (&hidden, kept.as_ref().and_then(|kept| kept.first())) {
            (Some(hidden), _) => hidden.shape().dims().get(1).copied().unwrap_or(0),
            (None, Some(memory)) => memory.rows,
            (None, None) => 0,
        };
        // An encoder of text gives a row for each token, else all of its rows are the text's.
        let real = tokens.filter(|(size, _)| *size == rows).map_or(rows, |(_, real)| real);
        Ok(Encoded { hidden, kept, rows, real })
    }

    /// Tokens of a run for so many.
    fn size(&self, tokens: usize) -> usize {
        if !self.fills_up {
            return tokens;
        }
        tokens.next_power_of_two().max(SMALLEST_RUN).min(self.context).max(tokens)
    }

    /// Binds memory of the decoder's to the keys and values that the encoder gives.
    fn bind_kept(
        &self,
        mut builder: BindingBuilder<'static>,
        wanted: &Wanted<'_>,
    ) -> Result<(BindingBuilder<'static>, Option<Vec<CacheMemory>>), GenerateError> {
        if wanted.tensors.is_empty() {
            return Ok((builder, None));
        }
        let plan = builder.plan()?;
        let mut kept = Vec::new();
        for tensor in wanted.tensors {
            let made = plan.outputs.iter().find(|io| io.name == tensor.present);
            let rows = made.and_then(|io| io.info.shape.dims().get(2).copied()).unwrap_or(0);
            let Some(made) = made.filter(|io| tensor.sized(1, rows).is_ok_and(|info| info == io.info)) else {
                return Err(GenerateError::Shape {
                    name: tensor.present.clone(),
                    expected: "[1, heads, rows, elements] of the decoder's input that reads it",
                    got: made.map_or("no output".to_owned(), |io| io.info.shape.to_string()),
                });
            };
            let device = tensor.device.filter(|device| self.is_on(made, wanted.decoder, *device));
            let tensor = CacheTensor { device, ..tensor.clone() };
            let memory = CacheMemory::new(wanted.decoder, &tensor, 1, rows)?;
            builder = builder.output(&tensor.present, memory.part(&tensor, &(0..1))?);
            kept.push(memory);
        }
        Ok((builder, Some(kept)))
    }

    /// Whether an output is made on that device of the decoder's session alone.
    fn is_on(&self, made: &PlannedIo, decoder: &Session, device: u32) -> bool {
        let [own] = made.devices[..] else { return false };
        let id = |session: &Session, device: u32| session.context(device as usize).map(|c| c.id());
        id(&self.session, own) == id(decoder, device)
    }
}

/// The numbers of the text's own rows.
fn first_rows(encoded: &Encoded, wanted: &Wanted<'_>) -> Result<Vec<f32>, GenerateError> {
    let mut all = Vec::new();
    if let Some(hidden) = &encoded.hidden {
        let elements = hidden.shape().dims().last().copied().unwrap_or(0);
        all.extend(hidden.to_f32s()?.into_iter().take(encoded.real * elements));
    }
    for (tensor, memory) in wanted.tensors.iter().zip(encoded.kept.iter().flatten()) {
        let bytes = memory.read(&memory.rows_of(tensor, 0, encoded.real))?;
        all.extend(Tensor::from_bytes(tensor.sized(1, encoded.real)?, &bytes)?.to_f32s()?);
    }
    Ok(all)
}

/// Checks features of one text against what the encoder declares.
fn fits(declared: &IoInfo, features: &Tensor) -> Result<(), GenerateError> {
    let sizes = features.shape().dims();
    let fits = |shape: &SymShape| {
        let first = matches!(shape.0.first(), Some(Dim::Known(n)) if *n != 1);
        let dims = shape.0.iter().zip(sizes);
        shape.0.len() == sizes.len()
            && !first
            && dims.clone().all(|(dim, size)| !matches!(dim, Dim::Known(n) if n != size))
    };
    let is_one = sizes.first() == Some(&1) && !sizes.contains(&0);
    if is_one && declared.dtype == Some(features.dtype()) && declared.shape.as_ref().is_none_or(fits) {
        return Ok(());
    }
    let dtype = declared.dtype.map_or(String::new(), |dtype| format!("{dtype} "));
    Err(GenerateError::Features {
        name: declared.name.clone(),
        declared: declared.shape.as_ref().map_or(dtype.clone(), |shape| format!("{dtype}{shape}")),
        got: format!("{} {}", features.dtype(), features.shape()),
    })
}
