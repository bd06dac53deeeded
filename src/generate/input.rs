//! Inputs of graphs: those that hold integers, and those of a cache.

use half::{bf16, f16};

use super::error::GenerateError;
use super::settings::Config;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::session::{Binding, IoInfo};
use crate::shape::{Dim, Shape};

/// The input that has the tokens of a run whose logits are wanted, `[rows]`, where a graph gives those of some.
pub(super) const LOGIT_ROWS: &str = "rows of the logits";

/// An input that holds integers.
#[derive(Clone, Debug)]
pub(super) struct IntInput {
    pub(super) name: String,
    dtype: DType,
}

impl IntInput {
    pub(super) fn find(inputs: &[IoInfo], name: &str) -> Result<Option<Self>, GenerateError> {
        let Some(input) = inputs.iter().find(|io| io.name == name) else { return Ok(None) };
        let (name, dtype) = (name.to_owned(), input.dtype.unwrap_or(DType::I64));
        match dtype {
            DType::I64 | DType::I32 => Ok(Some(IntInput { name, dtype })),
            got => Err(GenerateError::DType { name, expected: "int64 or int32", got }),
        }
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// A tensor of the input's type.
    pub(super) fn tensor(&self, shape: &[usize], values: &[i64]) -> Result<Tensor, GenerateError> {
        Ok(match self.dtype {
            DType::I32 => Tensor::new(shape, &values.iter().map(|v| *v as i32).collect::<Vec<_>>())?,
            _ => Tensor::new(shape, values)?,
        })
    }

    /// Writes all elements to memory of the session's own.
    pub(super) fn write_all(
        &self,
        binding: &mut Binding<'static>,
        shape: &[usize],
        values: &[i64],
    ) -> Result<(), GenerateError> {
        self.write_part(binding, |_| shape.to_vec(), 0, values, || values.to_vec())
    }

    /// Writes elements from `at` on to memory of the session's own for several sequences; `all` gives every element.
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

/// A tensor of floating point numbers; `value` gives that of each element.
pub(super) fn floats(info: &TensorInfo, value: impl Fn(usize) -> f32) -> Result<Tensor, GenerateError> {
    let values = (0..info.elements()).map(value);
    let dims = info.shape.dims();
    Ok(match info.dtype {
        DType::F32 => Tensor::new(dims, &values.collect::<Vec<f32>>())?,
        DType::F16 => Tensor::new(dims, &values.map(f16::from_f32).collect::<Vec<_>>())?,
        DType::BF16 => Tensor::new(dims, &values.map(bf16::from_f32).collect::<Vec<_>>())?,
        other => {
            let what = format!("{other} between an encoder and its decoder: export it in float32 or float16");
            return Err(GenerateError::Unsupported(what));
        }
    })
}

/// Type and shape of a cache of no token; heads come after rows where it is in pages.
pub(super) fn cache_info(io: &IoInfo, config: &Config, paged: bool) -> Result<TensorInfo, GenerateError> {
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
    if !dtype.is_float() && (paged || !matches!(dtype, DType::I8 | DType::U8)) {
        let (name, expected) = (io.name.clone(), "floating point numbers, or codes of GroupQueryAttention");
        return Err(GenerateError::DType { name, expected, got: dtype });
    }
    Ok(TensorInfo::new(dtype, shape))
}
