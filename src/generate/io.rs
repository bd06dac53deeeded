//! Inputs and outputs of a decoder.

use super::cache::CacheTensor;
use super::config::Config;
use super::error::GenerateError;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::session::{Binding, IoInfo, Session};
use crate::shape::{Dim, Shape};

/// What a decoder is given and gives, but for its cache.
#[derive(Debug)]
pub(super) struct DecoderIo {
    pub(super) ids: IntInput,
    pub(super) mask: Option<IntInput>,
    pub(super) positions: Option<IntInput>,
    pub(super) logits: String,
    /// Number of logits of a token.
    pub(super) vocabulary: usize,
    /// What tells the pages of a cache in pages.
    pub(super) pages: Option<PagesIo>,
}

/// Inputs of a graph with a cache in pages, whose tokens have one dimension.
#[derive(Clone, Debug)]
pub(super) struct PagesIo {
    pub(super) ends: IntInput,
    pub(super) past: IntInput,
    pub(super) table: IntInput,
    /// Tokens of a page, where the graph declares them.
    pub(super) rows: Option<usize>,
}

impl DecoderIo {
    /// Finds what `config` names in the graph of `session`, and its cache. The vocabulary is not known yet.
    ///
    /// # Errors
    /// [`GenerateError`] for names, types and shapes that are not a decoder's.
    pub(super) fn find(
        session: &Session,
        config: &Config,
    ) -> Result<(Self, Vec<CacheTensor>), GenerateError> {
        let names = &config.names;
        let (inputs, outputs) = (session.inputs(), session.outputs());
        let no_name = |what, name: &str, known: &[IoInfo]| {
            let known = known.iter().map(|io| io.name.clone()).collect();
            GenerateError::NoSuchName { what, name: name.to_owned(), known }
        };
        let find = |name: &str| IntInput::find(&inputs, name);
        let ids = find(&names.ids)?.ok_or_else(|| no_name("input", &names.ids, &inputs))?;
        let (mask, positions) = (find(&names.mask)?, find(&names.positions)?);
        if !outputs.iter().any(|io| io.name == names.logits) {
            return Err(no_name("output", &names.logits, &outputs));
        }
        let [ends, past, table] = [0, 1, 2].map(|i| find(&names.pages[i]));
        let mut pages = match (ends?, past?, table?) {
            (Some(ends), Some(past), Some(table)) => Some(PagesIo { ends, past, table, rows: None }),
            _ => None,
        };
        let mut tensors = Vec::new();
        for layer in 0..config.layers {
            for (past, present) in names.past.iter().zip(&names.present) {
                let name = |pattern: &String| pattern.replacen("%d", &layer.to_string(), 1);
                let (past, present) = (name(past), name(present));
                let io = inputs.iter().find(|io| io.name == past);
                let io = io.ok_or_else(|| no_name("input", &past, &inputs))?;
                if !outputs.iter().any(|io| io.name == present) {
                    return Err(no_name("output", &present, &outputs));
                }
                let info = cache_info(io, config, pages.is_some())?;
                if let (Some(pages), Some(Dim::Known(rows))) =
                    (&mut pages, io.shape.as_ref().and_then(|shape| shape.0.get(1)))
                {
                    pages.rows = Some(*rows);
                }
                tensors.push(CacheTensor { past, present, info, device: None });
            }
        }
        let logits = names.logits.clone();
        let io = DecoderIo { ids, mask, positions, logits, vocabulary: 0, pages };
        let given = |name: &str| {
            let pages = io.pages.as_ref();
            let integers = [
                Some(&io.ids),
                io.mask.as_ref(),
                io.positions.as_ref(),
                pages.map(|p| &p.ends),
                pages.map(|p| &p.past),
                pages.map(|p| &p.table),
            ];
            integers.into_iter().flatten().any(|io| io.name == name) || tensors.iter().any(|t| t.past == name)
        };
        match inputs.iter().find(|io| !given(&io.name)) {
            Some(io) => Err(GenerateError::UnknownInput { name: io.name.clone() }),
            None => Ok((io, tensors)),
        }
    }

    /// Copies logits of a run from byte `start` on.
    ///
    /// # Errors
    /// What the session says.
    pub(super) fn copy_logits(
        &self,
        binding: &Binding<'static>,
        start: usize,
        bytes: &mut [u8],
    ) -> Result<(), GenerateError> {
        if binding.output_info(&self.logits)?.bytes() == bytes.len() {
            return Ok(binding.read_output(&self.logits, bytes)?);
        }
        let part = start..start + bytes.len();
        if let Ok(view) = binding.host_view(&self.logits)
            && let Some(row) = view.read()?.get(part.clone())
        {
            bytes.copy_from_slice(row);
            return Ok(());
        }
        if let Some(row) = binding.get_output(&self.logits)?.bytes().get(part) {
            bytes.copy_from_slice(row);
        }
        Ok(())
    }
}

/// An input that holds integers.
#[derive(Clone, Debug)]
pub(super) struct IntInput {
    pub(super) name: String,
    dtype: DType,
}

impl IntInput {
    fn find(inputs: &[IoInfo], name: &str) -> Result<Option<Self>, GenerateError> {
        let Some(input) = inputs.iter().find(|io| io.name == name) else { return Ok(None) };
        let (name, dtype) = (name.to_owned(), input.dtype.unwrap_or(DType::I64));
        match dtype {
            DType::I64 | DType::I32 => Ok(Some(IntInput { name, dtype })),
            got => Err(GenerateError::DType { name, expected: "int64 or int32", got }),
        }
    }

    fn tensor(&self, shape: &[usize], values: &[i64]) -> Result<Tensor, GenerateError> {
        Ok(match self.dtype {
            DType::I32 => Tensor::new(shape, &values.iter().map(|v| *v as i32).collect::<Vec<_>>())?,
            _ => Tensor::new(shape, values)?,
        })
    }

    /// Writes all elements to memory of the session's own.
    ///
    /// # Errors
    /// What the session says.
    pub(super) fn write_all(
        &self,
        binding: &mut Binding<'static>,
        shape: &[usize],
        values: &[i64],
    ) -> Result<(), GenerateError> {
        self.write_part(binding, |_| shape.to_vec(), 0, values, || values.to_vec())
    }

    /// Writes elements from `at` on to memory of the session's own for several sequences; `all` gives every element.
    ///
    /// # Errors
    /// What the session says.
    pub(super) fn write(
        &self,
        binding: &mut Binding<'static>,
        sequences: usize,
        at: usize,
        values: &[i64],
        all: impl FnOnce() -> Vec<i64>,
    ) -> Result<(), GenerateError> {
        self.write_part(binding, |len| vec![sequences, len / sequences.max(1)], at, values, all)
    }

    fn write_part(
        &self,
        binding: &mut Binding<'static>,
        shape: impl FnOnce(usize) -> Vec<usize>,
        at: usize,
        values: &[i64],
        all: impl FnOnce() -> Vec<i64>,
    ) -> Result<(), GenerateError> {
        // An input that no command reads, or that the host does not see, is given whole.
        let Ok(view) = binding.host_view_input(&self.name) else {
            let all = all();
            return Ok(binding.set_input(&self.name, &self.tensor(&shape(all.len()), &all)?)?);
        };
        let mut bytes = view.write()?;
        match self.dtype {
            DType::I32 => put(&mut bytes, at, values.iter().map(|v| (*v as i32).to_ne_bytes())),
            _ => put(&mut bytes, at, values.iter().map(|v| v.to_ne_bytes())),
        }
        Ok(())
    }
}

/// Writes elements from element `at` on.
fn put<const N: usize>(bytes: &mut [u8], at: usize, values: impl Iterator<Item = [u8; N]>) {
    let places = bytes.as_chunks_mut::<N>().0.iter_mut().skip(at);
    places.zip(values).for_each(|(place, value)| *place = value);
}

/// Type and shape of a cache of no token; heads come after rows where it is in pages.
fn cache_info(io: &IoInfo, config: &Config, paged: bool) -> Result<TensorInfo, GenerateError> {
    let declared = io.shape.as_ref();
    let wrong = || GenerateError::Shape {
        name: io.name.clone(),
        expected: if paged {
            "[pages, rows, heads, elements], with heads and elements known there or in the settings"
        } else {
            "[batch, heads, past tokens, elements], with heads and elements known there or in the settings"
        },
        got: declared.map_or("unknown".to_owned(), ToString::to_string),
    };
    let dims = match declared {
        Some(shape) if shape.0.len() != 4 => return Err(wrong()),
        Some(shape) => &shape.0[..],
        None => &[],
    };
    let size = |at: usize, told: Option<usize>| match dims.get(at) {
        Some(Dim::Known(n)) => Ok(*n),
        _ => told.ok_or_else(wrong),
    };
    let [heads, elements] = config.heads;
    let shape = Shape::new([1, size(if paged { 2 } else { 1 }, heads)?, 0, size(3, elements)?])?;
    let dtype = io.dtype.unwrap_or(DType::F32);
    if !dtype.is_float() {
        let (name, expected) = (io.name.clone(), "floating point numbers");
        return Err(GenerateError::DType { name, expected, got: dtype });
    }
    Ok(TensorInfo::new(dtype, shape))
}
