//! GGUF files: decoders of text as graphs of our operators, with weights as they lie in the file.
//!
//! The graph has the inputs and outputs of onnxruntime-genai's exports: `input_ids`, `attention_mask`,
//! `past_key_values.N.key` and `.value`, `logits`, `present.N.key` and `.value`.

mod decoder;
mod file;
mod rope;
mod settings;
mod summary;
mod value;
mod weights;

pub use file::GgufFile;
pub(super) use file::MAGIC;
pub use settings::DecoderSizes;
pub(super) use summary::summarize_gguf;

use std::path::Path;

use super::error::{ErrorLocation, LoadError};
use super::options::Wishes;
use super::source::Source;
use crate::graph::Graph;

/// Loads the decoder in the GGUF file `path`.
///
/// # Errors
/// [`LoadError`] with the byte, entry or tensor that is wrong; [`LoadError::is_unsupported`] for architectures, element
/// types and settings that are not read.
pub fn load_gguf(path: &Path) -> Result<Graph, LoadError> {
    load_gguf_with(path, (None, None, None))
}

/// As [`load_gguf`]; with wishes as in [`super::LoadOptions`].
pub(super) fn load_gguf_with(path: &Path, (progress, map, used): Wishes<'_>) -> Result<Graph, LoadError> {
    let mut source = Source::open(path)?;
    source.map = map;
    if let Some(used) = used {
        used.note(path.to_owned(), source.identity());
    }
    load(source, progress).map_err(|e| e.in_file(path))
}

/// As [`load_gguf`], of a file's bytes.
///
/// # Errors
/// As there.
pub fn load_gguf_bytes(bytes: &[u8]) -> Result<Graph, LoadError> {
    load(Source::of(bytes), None)
}

fn load(mut source: Source<'_>, progress: Option<&dyn Fn(u64, u64)>) -> Result<Graph, LoadError> {
    let file = GgufFile::read(&mut source)?;
    decoder::graph(&file, &mut source, progress)
}
