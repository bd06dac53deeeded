//! The cache of a conversation in a file.
//!
//! A mark, the length of a description and the description in JSON; then the rows of each tensor of the cache, head by
//! head (of a cache in pages token by token); last a hash of all before.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use onepool_core::files::hash::Digest;
use serde::{Deserialize, Serialize};

use super::cache::CacheTensor;
use super::decoder::Decoder;
use super::error::GenerateError;
use crate::files::open::regular;

/// The begin of each file, with the version of what comes after it.
const MARK: &[u8; 16] = b"onepool-chat\0\0\0\x01";

/// The end of a model's name where a graph without pages was changed to have them.
const IN_PAGES: &str = " in pages";

/// The longest description.
const MAX_DESCRIPTION: usize = 64 << 20;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Description {
    /// A hash of the model's settings and of parts of its graph.
    model: String,
    tokens: Vec<u32>,
    tensors: Vec<Layout>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Layout {
    name: String,
    dtype: String,
    heads: usize,
    elements: usize,
}

impl Layout {
    fn of(tensor: &CacheTensor) -> Self {
        Layout {
            name: tensor.past.clone(),
            dtype: tensor.info.dtype.to_string(),
            heads: tensor.info.shape[1],
            elements: tensor.info.shape[3],
        }
    }
}

/// The model of a file, where pages of the same graph have rows in another order.
fn model_of(decoder: &Decoder, model: &str) -> String {
    format!("{model}{}", if decoder.is_changed_to_pages() { IN_PAGES } else { "" })
}

/// Writes what a sequence of `decoder` has, which are `tokens`.
pub(super) fn save(
    decoder: &Decoder,
    sequence: usize,
    tokens: &[u32],
    model: &str,
    path: &Path,
) -> Result<(), GenerateError> {
    let (model, layouts) = (model_of(decoder, model), decoder.tensors().iter().map(Layout::of).collect());
    let description = Description { model, tokens: tokens.to_vec(), tensors: layouts };
    let failed = |source| GenerateError::Write { path: path.to_owned(), source };
    let text = serde_json::to_vec(&description).map_err(|e| failed(e.into()))?;
    let mut bytes = MARK.to_vec();
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text);
    decoder.read(sequence, tokens.len(), &mut bytes)?;
    bytes.extend(Digest::of(&bytes).hex().as_bytes());
    // Whole or not at all: a file of the same name is kept until the new one is there.
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = folder.join(format!(".{name}.{}.part", std::process::id()));
    let written = File::create(&part)
        .and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&part, path));
    written.map_err(|e| {
        // The part is of no use, and may not be there.
        let _ = std::fs::remove_file(&part);
        failed(e)
    })
}

/// Fills a sequence of `decoder` from a file; gives its tokens.
pub(super) fn restore(
    decoder: &mut Decoder,
    sequence: usize,
    context: usize,
    model: &str,
    path: &Path,
) -> Result<Vec<u32>, GenerateError> {
    let wrong =
        |problem: &str| GenerateError::Conversation { path: path.to_owned(), problem: problem.to_owned() };
    let damaged = || wrong("the file is damaged or no conversation: delete it");
    let bytes = read(decoder, path)?;
    let rest = bytes.strip_prefix(MARK).ok_or_else(damaged)?;
    let (len, rest) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
    let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| damaged())?;
    let (text, rest) = rest.split_at_checked(len).filter(|_| len <= MAX_DESCRIPTION).ok_or_else(damaged)?;
    let (whole, hash) = bytes.split_last_chunk::<64>().ok_or_else(damaged)?;
    if Digest::of(whole).hex().as_bytes() != hash {
        return Err(damaged());
    }
    let description: Description = serde_json::from_slice(text).map_err(|_| damaged())?;
    let tensors = decoder.tensors();
    let layouts: Vec<Layout> = tensors.iter().map(Layout::of).collect();
    let own = model_of(decoder, model);
    let kept = description.model.strip_suffix(IN_PAGES).unwrap_or(&description.model);
    if description.model != own && kept == model {
        return Err(wrong(
            "the conversation was saved from a cache of another kind: in pages, or of a fixed length",
        ));
    }
    if description.model != own {
        return Err(wrong("the conversation is of another model"));
    }
    if description.tensors != layouts {
        return Err(wrong("the conversation was saved from a cache of another type"));
    }
    let (tokens, capacity) = (description.tokens, decoder.capacity());
    if tokens.len() > capacity {
        return Err(GenerateError::PromptTooLong { tokens: tokens.len(), capacity, context });
    }
    let sizes: usize = tensors.iter().map(|tensor| tensor.bytes(tokens.len())).sum();
    let (rows, _) = rest.split_at_checked(sizes).filter(|(_, hash)| hash.len() == 64).ok_or_else(damaged)?;
    decoder.refill(sequence, &tokens, rows)?;
    Ok(tokens)
}

/// The bytes of a file that is no larger than a conversation of `decoder` may be.
fn read(decoder: &Decoder, path: &Path) -> Result<Vec<u8>, GenerateError> {
    use std::io::Read as _;
    let failed = |source| GenerateError::Read { path: path.to_owned(), source };
    let rows: usize = decoder.tensors().iter().map(|tensor| tensor.bytes(decoder.capacity())).sum();
    let limit = (rows + MAX_DESCRIPTION + 128) as u64;
    let (file, found) = regular(path).map_err(failed)?;
    if found.len() > limit {
        return Err(GenerateError::TooLarge { path: path.to_owned(), bytes: found.len(), limit });
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
