//! The file format: metadata, and where tensors are.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use super::value::{Value, Values};
use crate::graph::ModelMetadata;
use crate::limits;
use crate::loader::error::{ErrorLocation, LoadError, LoadErrorKind, nearest};
use crate::loader::source::Source;
use crate::ops::ggml::BlockType;

/// What a file begins with.
pub(in crate::loader) const MAGIC: &[u8; 4] = b"GGUF";

/// The most entries of metadata.
const MAX_ENTRIES: u64 = 1 << 16;

/// The most elements of all arrays of the metadata: a few times the largest vocabularies with their merges.
const MAX_ELEMENTS: u64 = 1 << 24;

/// The most dimensions of a tensor.
const MAX_DIMENSIONS: u32 = 4;

/// Tensors begin at multiples of so many bytes where the metadata does not say.
const ALIGNMENT: u64 = 32;

/// A GGUF file's metadata and the places of its tensors.
#[derive(Clone, Debug, Default)]
pub struct GgufFile {
    pub(super) version: u32,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, GgufTensor>,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GgufTensor {
    /// Sizes as ggml orders them: neighbouring elements first.
    pub(super) dims: Vec<usize>,
    /// ggml's number of the element type.
    pub(super) kind: u32,
    /// The part of the model that has it, from 0 on, and the byte of that file where it begins.
    pub(super) part: usize,
    pub(super) at: u64,
    /// Its bytes, where the type is one that is read.
    pub(super) bytes: Option<u64>,
}

impl GgufTensor {
    pub(super) fn blocks(&self) -> Option<BlockType> {
        BlockType::ALL.into_iter().find(|blocks| *blocks as u32 == self.kind)
    }

    /// Elements of a row, and rows.
    pub(super) fn rows(&self) -> (usize, usize) {
        let (k, rest) = self.dims.split_first().map_or((1, &[][..]), |(k, rest)| (*k, rest));
        (k, rest.iter().product())
    }
}

impl GgufFile {
    /// Whether the file `path` begins as GGUF files do. A file that cannot be read does not.
    pub fn is_one(path: &Path) -> bool {
        let start = Source::open(path).and_then(|mut source| source.take("the file", 4));
        start.is_ok_and(|start| start == MAGIC)
    }

    pub(super) fn read(source: &mut Source<'_>) -> Result<Self, LoadError> {
        let magic = source.take("the start of a GGUF file", 4)?;
        if magic != MAGIC {
            return Err(
                LoadErrorKind::unexpected("a GGUF file", format!("a file that begins {magic:x?}")).into()
            );
        }
        let version = source.u32("the version")?;
        match version {
            2 | 3 => {}
            1 => {
                return Err(
                    source.error(LoadErrorKind::unsupported("version 1 of GGUF: convert the model again"))
                );
            }
            v if matches!(v.swap_bytes(), 1..=3) => {
                let what = "a big-endian GGUF file: convert the model again for little-endian machines";
                return Err(source.error(LoadErrorKind::unsupported(what)));
            }
            v => {
                let found = format!("version {v}");
                return Err(source.error(LoadErrorKind::unexpected("version 2 or 3 of GGUF", found)));
            }
        }
        let (tensors, entries) = (source.u64("the number of tensors")?, source.u64("the number of entries")?);
        let within = |source: &Source<'_>, what, found, limit| match found > limit {
            true => Err(source.error(LoadErrorKind::TooMany { what, found, limit })),
            false => Ok(()),
        };
        within(source, "tensors", tensors, limits::MAX_TENSORS as u64)?;
        within(source, "entries of metadata", entries, MAX_ENTRIES)?;
        let mut file = GgufFile { version, ..GgufFile::default() };
        let mut elements = 0;
        for _ in 0..entries {
            let name = name(source)?;
            let value = Value::read(source, &mut |source, more| {
                elements = more.saturating_add(elements);
                within(source, "elements of arrays", elements, MAX_ELEMENTS)
            })?;
            match file.metadata.entry(name) {
                Entry::Vacant(place) => place.insert(value),
                Entry::Occupied(known) => {
                    let name = known.key().clone();
                    return Err(source.error(LoadErrorKind::Duplicate { what: "entries", name }));
                }
            };
        }
        let mut relative = Vec::new();
        for _ in 0..tensors {
            let name = name(source)?;
            let tensor = tensor(source).map_err(|kind| kind.at(ErrorLocation::Tensor(name.clone())))?;
            relative.push((name, tensor));
        }
        let alignment = file.unsigned("general.alignment")?.unwrap_or(ALIGNMENT);
        if !alignment.is_power_of_two() || alignment > u64::from(u32::MAX) {
            let found = alignment.to_string();
            return Err(entry_error("general.alignment", LoadErrorKind::unexpected("a power of two", found)));
        }
        // A file without data may end after its last tensor's place.
        let start = source.at().checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        file.place(relative, start, alignment, source.len())?;
        Ok(file)
    }

    /// Checks that tensors lie in the file and do not overlap.
    fn place(
        &mut self,
        tensors: Vec<(String, GgufTensor)>,
        start: u64,
        alignment: u64,
        len: u64,
    ) -> Result<(), LoadError> {
        let mut ranges = Vec::new();
        for (name, mut tensor) in tensors {
            let at = |kind: LoadErrorKind| kind.at(ErrorLocation::Tensor(name.clone()));
            if !tensor.at.is_multiple_of(alignment) {
                let expected = format!("an offset that is a multiple of {alignment}");
                return Err(at(LoadErrorKind::unexpected(expected, tensor.at.to_string())));
            }
            tensor.at = start.saturating_add(tensor.at);
            let bytes = tensor.bytes.unwrap_or(0);
            let left = len.saturating_sub(tensor.at);
            if bytes > left {
                return Err(at(LoadErrorKind::Truncated { what: "the data", needed: bytes, left }));
            }
            ranges.push((tensor.at, bytes));
            match self.tensors.entry(name) {
                Entry::Vacant(place) => place.insert(tensor),
                Entry::Occupied(known) => {
                    let name = known.key().clone();
                    return Err(LoadErrorKind::Duplicate { what: "tensors", name }.into());
                }
            };
        }
        ranges.retain(|(_, bytes)| *bytes > 0);
        ranges.sort_unstable();
        let ends = ranges.iter().map(|(at, bytes)| at.saturating_add(*bytes));
        if let Some(((at, _), end)) = ranges.iter().skip(1).zip(ends).find(|((at, _), end)| at < end) {
            let found = format!("one that begins at byte {at}, before byte {end}");
            return Err(LoadErrorKind::unexpected("tensors that do not overlap", found).into());
        }
        Ok(())
    }

    /// Adds the tensors of part `part` of the model, and the entries of the first part. Those that others have too are equal
    /// but for `number`.
    pub(super) fn join(&mut self, other: GgufFile, part: usize, number: &str) -> Result<(), LoadError> {
        if part == 0 {
            *self = other;
            return Ok(());
        }
        for (key, value) in other.metadata.iter().filter(|(key, _)| *key != number) {
            if let Some(known) = self.metadata.get(key).filter(|known| *known != value) {
                let expected = format!("{}, as in the first part of the model", known.describe());
                return Err(entry_error(key, LoadErrorKind::unexpected(expected, value.describe())));
            }
        }
        for (name, tensor) in other.tensors {
            match self.tensors.entry(name) {
                Entry::Vacant(place) => place.insert(GgufTensor { part, ..tensor }),
                Entry::Occupied(known) => {
                    let name = known.key().clone();
                    return Err(LoadErrorKind::Duplicate { what: "tensors", name }.into());
                }
            };
        }
        let (found, limit) = (self.tensors.len() as u64, limits::MAX_TENSORS as u64);
        match found > limit {
            true => Err(LoadErrorKind::TooMany { what: "tensors", found, limit }.into()),
            false => Ok(()),
        }
    }

    /// Names and tensors, by name.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (&str, &GgufTensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Tensor `name`.
    pub(super) fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.tensors.get(name)
    }

    /// Tensor `name` with its name.
    pub(super) fn entry(&self, name: &str) -> Option<(&str, &GgufTensor)> {
        self.tensors.get_key_value(name).map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The error for a tensor that is not there.
    pub(super) fn lacks(&self, name: &str) -> LoadError {
        let near = nearest(name, self.tensors.keys().map(String::as_str));
        let near = if near.is_empty() { String::new() } else { format!(" (there is {})", near.join(", ")) };
        LoadErrorKind::missing(format!("tensor {name:?}{near}")).into()
    }

    /// What the file says of itself.
    pub(super) fn metadata(&self) -> ModelMetadata {
        let text = |key| self.text(key).ok().flatten().unwrap_or_default().to_owned();
        ModelMetadata {
            format: "GGUF",
            ir_version: self.version.into(),
            description: text("general.description"),
            properties: self.metadata.iter().map(|(key, value)| (key.clone(), value.property())).collect(),
            ..ModelMetadata::default()
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        let found = || entry_error(key, LoadErrorKind::unexpected(expected, value.describe()));
        read(value).map(Some).ok_or_else(found)
    }

    /// A whole number of at least 0.
    ///
    /// # Errors
    /// [`LoadError`] where the entry is another kind of value.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, LoadError> {
        self.typed(key, "a whole number", Value::unsigned)
    }

    /// A number.
    ///
    /// # Errors
    /// As [`GgufFile::unsigned`].
    pub fn float(&self, key: &str) -> Result<Option<f64>, LoadError> {
        self.typed(key, "a number", Value::float)
    }

    /// A truth value.
    ///
    /// # Errors
    /// As [`GgufFile::unsigned`].
    pub fn flag(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.typed(key, "true or false", |value| if let Value::Bool(is) = value { Some(*is) } else { None })
    }

    /// A text.
    ///
    /// # Errors
    /// As [`GgufFile::unsigned`].
    pub fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        self.typed(
            key,
            "a text",
            |value| if let Value::Text(text) = value { Some(text.as_str()) } else { None },
        )
    }

    /// Texts.
    ///
    /// # Errors
    /// As [`GgufFile::unsigned`].
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>, LoadError> {
        self.typed(key, "an array of texts", |value| match value {
            Value::Array(Values::Texts(texts)) => Some(texts.as_slice()),
            _ => None,
        })
    }

    /// Whole numbers.
    ///
    /// # Errors
    /// As [`GgufFile::unsigned`].
    pub fn integers(&self, key: &str) -> Result<Option<&[i64]>, LoadError> {
        self.typed(key, "an array of whole numbers", |value| match value {
            Value::Array(Values::Integers(numbers)) => Some(numbers.as_slice()),
            _ => None,
        })
    }

    /// Truth values.
    ///
    /// # Errors
    /// As [`GgufFile::unsigned`].
    pub fn flags(&self, key: &str) -> Result<Option<&[bool]>, LoadError> {
        self.typed(key, "an array of truth values", |value| match value {
            Value::Array(Values::Bools(flags)) => Some(flags.as_slice()),
            _ => None,
        })
    }

    /// Numbers of 32 bits.
    ///
    /// # Errors
    /// As [`GgufFile::unsigned`].
    pub fn floats(&self, key: &str) -> Result<Option<&[f32]>, LoadError> {
        self.typed(key, "an array of numbers", |value| match value {
            Value::Array(Values::Floats(numbers)) => Some(numbers.as_slice()),
            _ => None,
        })
    }
}

/// An error about an entry of the metadata.
pub(super) fn entry_error(key: &str, kind: LoadErrorKind) -> LoadError {
    kind.at(ErrorLocation::Entry(key.to_owned()))
}

/// The name of an entry or a tensor.
fn name(source: &mut Source<'_>) -> Result<String, LoadError> {
    let len = source.u64("the length of a name")?;
    let limit = limits::MAX_NAME_BYTES as u64;
    if len > limit {
        return Err(source.error(LoadErrorKind::TooMany { what: "bytes in a name", found: len, limit }));
    }
    super::value::text(source, len)
}

/// A tensor's place, its offset relative to the data.
fn tensor(source: &mut Source<'_>) -> Result<GgufTensor, LoadErrorKind> {
    let inner = |e: LoadError| e.into_kind();
    let rank = source.u32("the number of dimensions").map_err(inner)?;
    if rank > MAX_DIMENSIONS {
        let (found, limit) = (rank.into(), MAX_DIMENSIONS.into());
        return Err(LoadErrorKind::TooMany { what: "dimensions", found, limit });
    }
    let mut dims = Vec::new();
    for _ in 0..rank {
        dims.push(source.u64("a dimension").map_err(inner)?);
    }
    let kind = source.u32("the element type").map_err(inner)?;
    let at = source.u64("the offset").map_err(inner)?;
    let overflow = || LoadErrorKind::unexpected("sizes that memory can have", format!("{dims:?}"));
    let elements = dims.iter().try_fold(1u64, |all, n| all.checked_mul(*n)).ok_or_else(overflow)?;
    let sizes: Option<Vec<usize>> = dims.iter().map(|n| usize::try_from(*n).ok()).collect();
    let mut tensor = GgufTensor { dims: sizes.ok_or_else(overflow)?, kind, part: 0, at, bytes: None };
    if let Some(blocks) = tensor.blocks() {
        let (per, bytes) = (blocks.elements() as u64, blocks.bytes() as u64);
        if !dims.first().copied().unwrap_or(1).is_multiple_of(per) {
            let expected = format!("rows of a multiple of {per} elements of {}", blocks.name());
            return Err(LoadErrorKind::unexpected(expected, format!("{dims:?}")));
        }
        tensor.bytes =
            Some(elements.checked_div(per).and_then(|n| n.checked_mul(bytes)).ok_or_else(overflow)?);
    }
    Ok(tensor)
}

/// ggml's names of element types that are not read, for errors.
pub(super) fn kind_name(kind: u32) -> String {
    if let Some(blocks) = BlockType::ALL.into_iter().find(|blocks| *blocks as u32 == kind) {
        return blocks.name().to_owned();
    }
    let known = [
        (9, "Q8_1"),
        (15, "Q8_K"),
        (16, "IQ2_XXS"),
        (17, "IQ2_XS"),
        (18, "IQ3_XXS"),
        (19, "IQ1_S"),
        (21, "IQ3_S"),
        (22, "IQ2_S"),
        (24, "I8"),
        (25, "I16"),
        (26, "I32"),
        (27, "I64"),
        (28, "F64"),
        (29, "IQ1_M"),
        (34, "TQ1_0"),
        (35, "TQ2_0"),
        (40, "NVFP4"),
    ];
    match known.iter().find(|(number, _)| *number == kind) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("type {kind}"),
    }
}
