//! GGUF files: decoders of text as graphs of our operators, with weights as they lie in the file.
//!
//! The graph has the inputs and outputs of onnxruntime-genai's exports: `input_ids`, `attention_mask`,
//! `past_key_values.N.key` and `.value`, `logits`, `present.N.key` and `.value`.

mod decoder;
mod file;
mod parts;
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
use std::sync::Arc;

use parts::Parts;

use super::error::{ErrorLocation, LoadError};
use super::options::Wishes;
use crate::graph::Graph;

impl GgufFile {
    /// Reads the file `path`, but for the data of its tensors. Of a model in several parts all are read, whichever `path` is.
    ///
    /// # Errors
    /// [`LoadError`] with the file and the byte, entry or tensor that is wrong.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        Parts::open(path).map(|(file, _)| file)
    }
}

/// Loads the decoder in the GGUF file `path`, or in all the parts of which it is one.
///
/// # Errors
/// [`LoadError`] with the byte, entry or tensor that is wrong; [`LoadError::is_unsupported`] for architectures, element
/// types and settings that are not read.
pub fn load_gguf(path: &Path) -> Result<Graph, LoadError> {
    load_gguf_with(path, (None, None, None))
}

/// As [`load_gguf`]; with wishes as in [`super::LoadOptions`].
pub(super) fn load_gguf_with(path: &Path, (progress, map, used): Wishes<'_>) -> Result<Graph, LoadError> {
    let (file, mut parts) = Parts::open(path)?;
    parts.heed(map, used);
    load(&file, &mut parts, progress).map_err(|e| e.in_file(path))
}

/// As [`load_gguf`], of a file's bytes.
///
/// # Errors
/// As there.
pub fn load_gguf_bytes(bytes: &[u8]) -> Result<Graph, LoadError> {
    let (file, mut parts) = Parts::of(bytes)?;
    load(&file, &mut parts, None)
}

fn load(
    file: &GgufFile,
    parts: &mut Parts<'_>,
    progress: Option<&dyn Fn(u64, u64)>,
) -> Result<Graph, LoadError> {
    let mut graph = decoder::graph(file, parts, progress)?;
    graph.metadata = Arc::new(file.metadata());
    Ok(graph)
}
