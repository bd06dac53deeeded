//! Inputs of a decoder that tell of its encoder.

use super::cache::CacheTensor;
use super::error::GenerateError;
use super::input::{IntInput, cache_info};
use super::settings::{Config, EncoderConfig, layer_name};
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::session::{BindingBuilder, IoInfo, Memory};
use crate::shape::{Dim, Shape};

/// Inputs of a decoder that tell of its encoder.
#[derive(Debug)]
pub(super) struct CrossIo {
    /// What the encoder gives, where the graph has an input for it.
    pub(super) hidden: Option<Hidden>,
    mask: Option<IntInput>,
    /// Keys and values that the graph reads.
    pub(super) tensors: Vec<CacheTensor>,
    /// Rows of the encoder's output, where the graph declares them.
    rows: Option<usize>,
}

/// An input that takes the encoder's output.
#[derive(Clone, Debug)]
pub(super) struct Hidden {
    pub(super) name: String,
    dtype: DType,
    elements: usize,
}

impl Hidden {
    /// Type and shape for so many rows.
    pub(super) fn info(&self, rows: usize) -> Result<TensorInfo, GenerateError> {
        Ok(TensorInfo::new(self.dtype, Shape::new([1, rows, self.elements])?))
    }
}

impl CrossIo {
    /// Finds them among the inputs of a decoder, which reads keys and values of its encoder or only makes them.
    pub(super) fn find(
        inputs: &[IoInfo],
        config: &Config,
        encoder: &EncoderConfig,
        reads_cache: bool,
    ) -> Result<Self, GenerateError> {
        let names = &encoder.names;
        let (mut tensors, mut rows) = (Vec::new(), None);
        for layer in 0..config.layers {
            for part in 0..2 {
                let of = |patterns: &Option<[String; 2]>| {
                    patterns.as_ref().map(|patterns| layer_name(&patterns[part], layer))
                };
                let Some(past) = of(&names.past).filter(|_| reads_cache) else { continue };
                let Some(io) = inputs.iter().find(|io| io.name == past) else {
                    return Err(GenerateError::no_such_name("input", past, inputs));
                };
                rows = rows.or_else(|| known(io, 2));
                let info = cache_info(io, config, false)?;
                // What gives it is known once the encoder is.
                let present = of(&names.by_decoder).unwrap_or_default();
                tensors.push(CacheTensor { past, present, info, device: None });
            }
        }
        let hidden = inputs.iter().find(|io| io.name == names.hidden);
        let rows = rows.or_else(|| hidden.and_then(|io| known(io, 1)));
        let hidden = hidden.map(|io| hidden_of(io, encoder)).transpose()?;
        Ok(CrossIo { hidden, mask: IntInput::find(inputs, &names.shown)?, tensors, rows })
    }

    /// Whether it has the input `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.hidden.as_ref().is_some_and(|hidden| hidden.name == name)
            || self.mask.as_ref().is_some_and(|mask| mask.name == name)
            || self.tensors.iter().any(|tensor| tensor.past == name)
    }

    /// Rows of the encoder's output, where the graph declares them.
    pub(super) fn rows(&self) -> Option<usize> {
        self.rows
    }

    /// Type and sizes of the input `name`, and which of them is that of the encoder's rows.
    pub(super) fn row_axis(&self, name: &str) -> Option<(DType, Vec<usize>, usize)> {
        if let Some(hidden) = self.hidden.as_ref().filter(|hidden| hidden.name == name) {
            return Some((hidden.dtype, vec![1, 0, hidden.elements], 1));
        }
        if let Some(mask) = self.mask.as_ref().filter(|mask| mask.name == name) {
            return Some((mask.dtype(), vec![1, 0], 1));
        }
        let tensor = self.tensors.iter().find(|tensor| tensor.past == name)?;
        Some((tensor.info.dtype, vec![1, tensor.heads(), 0, tensor.info.shape[3]], 2))
    }

    /// Whether a mask tells which rows of the encoder's output there are.
    pub(super) fn has_mask(&self) -> bool {
        self.mask.is_some()
    }

    /// Binds what does not change in a text: of `rows` of the encoder the first `real` ones are there.
    pub(super) fn bind_mask(
        &self,
        builder: BindingBuilder<'static>,
        rows: usize,
        real: usize,
    ) -> Result<BindingBuilder<'static>, GenerateError> {
        let Some(mask) = &self.mask else { return Ok(builder) };
        Ok(builder.input(&mask.name, Memory::value(first_of(mask, rows, real)?)))
    }
}

/// A mask of `rows`, of which the first `real` ones are there.
pub(super) fn first_of(mask: &IntInput, rows: usize, real: usize) -> Result<Tensor, GenerateError> {
    let values: Vec<i64> = (0..rows).map(|row| i64::from(row < real)).collect();
    mask.tensor(&[1, rows], &values)
}

/// Size `at` of an input, where it is declared.
fn known(io: &IoInfo, at: usize) -> Option<usize> {
    match io.shape.as_ref().and_then(|shape| shape.0.get(at)) {
        Some(Dim::Known(n)) => Some(*n),
        _ => None,
    }
}

/// What is known of an input that takes the encoder's output.
fn hidden_of(io: &IoInfo, encoder: &EncoderConfig) -> Result<Hidden, GenerateError> {
    let name = io.name.clone();
    let wrong = || GenerateError::Shape {
        name: name.clone(),
        expected: "[batch, rows, elements], with elements known there or in the settings (d_model, hidden_size)",
        got: io.shape.as_ref().map_or("unknown".to_owned(), ToString::to_string),
    };
    if io.shape.as_ref().is_some_and(|shape| shape.0.len() != 3) {
        return Err(wrong());
    }
    let elements = known(io, 2).or(encoder.hidden).ok_or_else(wrong)?;
    let dtype = io.dtype.unwrap_or(DType::F32);
    if !dtype.is_float() {
        return Err(GenerateError::DType { name, expected: "floating point numbers", got: dtype });
    }
    Ok(Hidden { name, dtype, elements })
}
