//! Runs of an encoder: a prompt or features in, what its decoder reads out.

use super::error::GenerateError;
use super::input::IntInput;
use super::settings::EncoderConfig;
use crate::graph::Tensor;
use crate::session::{IoInfo, Memory, RunOptions, Session};
use crate::shape::{Dim, SymShape};

/// The output that decoders read.
const HIDDEN: &str = "last_hidden_state";

/// What a text of an encoder-decoder is made from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Tokens(Vec<u32>),
    Features(Tensor),
}

/// An encoder on a session.
#[derive(Debug)]
pub(super) struct Encoder {
    session: Session,
    input: Input,
    /// Tokens that it takes.
    context: usize,
}

#[derive(Debug)]
enum Input {
    Tokens { ids: IntInput, mask: Option<IntInput> },
    Features(IoInfo),
}

impl Encoder {
    /// Finds the inputs and the output of an encoder.
    ///
    /// # Errors
    /// [`GenerateError::Unsupported`] for a graph that is none.
    pub(super) fn new(session: Session, config: &EncoderConfig) -> Result<Self, GenerateError> {
        let name = config.graph.display();
        let inputs = session.inputs();
        if !session.outputs().iter().any(|io| io.name == HIDDEN) {
            let what = format!("{name} has no output {HIDDEN:?}: export the model with optimum");
            return Err(GenerateError::Unsupported(what));
        }
        let (ids, mask) = (IntInput::find(&inputs, "input_ids")?, IntInput::find(&inputs, "attention_mask")?);
        let is_float = |io: &IoInfo| io.dtype.is_some_and(|dtype| dtype.is_float());
        let input = match (ids, &inputs[..]) {
            (Some(ids), all) if all.len() == 1 + usize::from(mask.is_some()) => Input::Tokens { ids, mask },
            (None, [features]) if is_float(features) => Input::Features(features.clone()),
            _ => {
                let names: Vec<&String> = inputs.iter().map(|io| &io.name).collect();
                let what = format!(
                    "{name} has the inputs {names:?}: an encoder takes input_ids with attention_mask, or one tensor of \
                     features"
                );
                return Err(GenerateError::Unsupported(what));
            }
        };
        Ok(Encoder { session, input, context: config.context })
    }

    /// Checks that the encoder takes `source`.
    ///
    /// # Errors
    /// [`GenerateError::EmptyPrompt`], [`GenerateError::SourceTooLong`], [`GenerateError::Source`],
    /// [`GenerateError::Features`].
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

    /// Runs the encoder; gives what its decoder reads: [1, rows, elements].
    ///
    /// # Errors
    /// As [`Encoder::check`], and what the session says.
    pub(super) fn run(&self, source: &Source, options: Option<&RunOptions>) -> Result<Tensor, GenerateError> {
        self.check(source)?;
        let mut builder = self.session.bind();
        match (&self.input, source) {
            (Input::Tokens { ids, mask }, Source::Tokens(tokens)) => {
                let values: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
                let shape = [1, values.len()];
                builder = builder.input(&ids.name, Memory::value(ids.tensor(&shape, &values)?));
                if let Some(mask) = mask {
                    let ones = mask.tensor(&shape, &vec![1; values.len()])?;
                    builder = builder.input(&mask.name, Memory::value(ones));
                }
            }
            (Input::Features(declared), Source::Features(features)) => {
                builder = builder.input(&declared.name, Memory::value(features.clone()));
            }
            _ => {}
        }
        let mut binding = builder.build()?;
        match options {
            Some(options) => binding.run_with(options)?,
            None => binding.run()?,
        }
        Ok(binding.get_output(HIDDEN)?)
    }
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
