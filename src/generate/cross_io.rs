//! Inputs of a decoder that tell of its encoder.

use super::cache::CacheTensor;
use super::error::GenerateError;
use super::input::{IntInput, cache_info};
use super::settings::{Config, EncoderConfig};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::session::{BindingBuilder, IoInfo, Memory};
use crate::shape::{Dim, Shape};

/// The inputs that an encoder's output goes to, as optimum names them.
pub(super) const HIDDEN: &str = "encoder_hidden_states";
const MASK: &str = "encoder_attention_mask";

/// Inputs of a decoder that tell of its encoder.
#[derive(Debug)]
pub(super) struct CrossIo {
    /// Type and shape of what the encoder gives, [1, rows, elements], where the graph has an input for it.
    pub(super) hidden: Option<TensorInfo>,
    mask: Option<IntInput>,
    /// Keys and values that the graph reads.
    pub(super) tensors: Vec<CacheTensor>,
}

impl CrossIo {
    /// Finds them among a decoder's inputs.
    ///
    /// # Errors
    /// [`GenerateError`] for types and shapes that are not a decoder's.
    pub(super) fn find(
        inputs: &[IoInfo],
        config: &Config,
        encoder: &EncoderConfig,
    ) -> Result<Self, GenerateError> {
        let hidden = inputs.iter().find(|io| io.name == HIDDEN);
        let mut tensors = Vec::new();
        for layer in 0..config.layers {
            for part in ["key", "value"] {
                let past = format!("past_key_values.{layer}.encoder.{part}");
                if let Some(io) = inputs.iter().find(|io| io.name == past) {
                    let (present, info) =
                        (format!("present.{layer}.encoder.{part}"), cache_info(io, config, false)?);
                    tensors.push(CacheTensor { past, present, info, device: None });
                }
            }
        }
        let hidden = hidden.map(|io| hidden_info(io, encoder)).transpose()?;
        Ok(CrossIo { hidden, mask: IntInput::find(inputs, MASK)?, tensors })
    }

    /// Whether it has the input `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        (self.hidden.is_some() && name == HIDDEN)
            || self.mask.as_ref().is_some_and(|mask| mask.name == name)
            || self.tensors.iter().any(|tensor| tensor.past == name)
    }

    /// Binds what does not change in a text: which of the encoder's rows there are.
    ///
    /// # Errors
    /// Sizes that make no shape.
    pub(super) fn bind_mask(
        &self,
        builder: BindingBuilder<'static>,
        rows: usize,
    ) -> Result<BindingBuilder<'static>, GenerateError> {
        let Some(mask) = &self.mask else { return Ok(builder) };
        Ok(builder.input(&mask.name, Memory::value(mask.tensor(&[1, rows], &vec![1; rows])?)))
    }
}

/// Type and shape of what the encoder gives, with one row where their number is open.
fn hidden_info(io: &IoInfo, encoder: &EncoderConfig) -> Result<TensorInfo, GenerateError> {
    let name = io.name.clone();
    let declared = io.shape.as_ref();
    let wrong = || GenerateError::Shape {
        name: name.clone(),
        expected: "[batch, rows, elements], with elements known there or in config.json (d_model)",
        got: declared.map_or("unknown".to_owned(), ToString::to_string),
    };
    let dims = declared.map_or(&[][..], |shape| &shape.0[..]);
    let known = |at: usize| match dims.get(at) {
        Some(Dim::Known(n)) => Some(*n),
        _ => None,
    };
    if declared.is_some() && dims.len() != 3 {
        return Err(wrong());
    }
    let elements = known(2).or(encoder.hidden).ok_or_else(wrong)?;
    let dtype = io.dtype.unwrap_or(DType::F32);
    if !dtype.is_float() {
        return Err(GenerateError::DType { name, expected: "floating point numbers", got: dtype });
    }
    Ok(TensorInfo::new(dtype, Shape::new([1, known(1).unwrap_or(1), elements])?))
}
