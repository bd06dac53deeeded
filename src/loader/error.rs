//! What can be wrong with a file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::graph::{GraphError, TensorError};
use crate::memory::host::HostError;
use crate::ops::OpError;
use crate::shape::ShapeError;

/// Where in a file something is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorLocation {
    /// The file as a whole.
    #[default]
    File,
    /// A byte of it.
    ByteOffset(u64),
    /// A value of a JSON document, as RFC 6901 writes it; empty for the whole document.
    JsonPointer(String),
    /// A node.
    Node {
        /// Its name; where it has none, its number from 0 and its first output, in words.
        name: String,
        /// Its operator or function.
        op: String,
    },
    /// A constant, an input or an output.
    Tensor(String),
    /// An entry of a GGUF file's metadata.
    Entry(String),
}

impl ErrorLocation {
    pub(crate) fn node(name: &str, op: &str) -> Self {
        ErrorLocation::Node { name: name.to_owned(), op: op.to_owned() }
    }
}

impl fmt::Display for ErrorLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorLocation::File => Ok(()),
            ErrorLocation::ByteOffset(at) => write!(f, "at byte {at}: "),
            ErrorLocation::JsonPointer(at) if at.is_empty() => write!(f, "at the top level: "),
            ErrorLocation::JsonPointer(at) => write!(f, "at {at}: "),
            ErrorLocation::Node { name, op } => write!(f, "node {name:?} ({op}): "),
            ErrorLocation::Tensor(name) => write!(f, "tensor {name:?}: "),
            ErrorLocation::Entry(key) => write!(f, "entry {key:?}: "),
        }
    }
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadErrorKind {
    /// The file cannot be read.
    #[error("cannot {action}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The file is no protocol buffer of the expected kind.
    #[error("the bytes are no {what}: {problem}")]
    Decode {
        /// What was expected.
        what: &'static str,
        /// What does not fit.
        problem: String,
    },
    /// The text is no JSON.
    #[error("the text is no JSON")]
    Json(#[source] serde_json::Error),
    /// The file ends too early.
    #[error("the file is cut short or damaged: {what} needs {needed} bytes, {left} are left")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// How many bytes it has.
        needed: u64,
        /// How many there are.
        left: u64,
    },
    /// There is more than there should be.
    #[error("{bytes} bytes follow the end of {what}")]
    TrailingBytes {
        /// What has ended.
        what: &'static str,
        /// How many follow.
        bytes: u64,
    },
    /// A number that marks the kind of file is another one.
    #[error("{what} starts with {expected:#018x}, found {found:#018x}")]
    Magic {
        /// What should start here.
        what: &'static str,
        /// How it starts.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// Something is missing.
    #[error("{0} is missing")]
    Missing(String),
    /// Something has another form than it should have.
    #[error("expected {expected}, found {found}")]
    Unexpected {
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// An index is beyond what it counts.
    #[error("{what} {index} is out of range, there are {count}")]
    OutOfRange {
        /// What is numbered.
        what: &'static str,
        /// The number.
        index: i64,
        /// How many there are.
        count: u64,
    },
    /// Two things that must agree in number do not.
    #[error("{what}: expected {expected}, found {found}")]
    Count {
        /// What is counted.
        what: String,
        /// How many there should be.
        expected: u64,
        /// How many there are.
        found: u64,
    },
    /// Two things have one name.
    #[error("two {what} are named {name:?}")]
    Duplicate {
        /// Which things.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// More of something than [`crate::limits`] allows.
    #[error("there are {found} {what}, at most {limit} are supported")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many.
        found: u64,
        /// How many are allowed.
        limit: u64,
    },
    /// Graphs or functions are nested too deeply, or a function calls itself.
    #[error("{what} are nested more than {limit} deep")]
    TooDeep {
        /// What is nested.
        what: &'static str,
        /// [`crate::limits::MAX_DEPTH`].
        limit: usize,
    },
    /// Sizes are impossible.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Data does not make a tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An external file is not one that the model may use.
    #[error("external data in {location:?}: {problem}")]
    External {
        /// The file as the model names it.
        location: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The model uses an operator that is not known.
    #[error("there is no operator {op:?} of domain {domain:?} at opset {opset}{}", suggestion(candidates))]
    UnknownOperator {
        /// Its name.
        op: String,
        /// Its domain; "" is ONNX's own.
        domain: String,
        /// The opset that the model imports.
        opset: i64,
        /// Names that are nearly the same.
        candidates: Vec<String>,
    },
    /// A graph calls a function that no one supplied.
    #[error("function {name:?} is not known: {problem}{}", suggestion(candidates))]
    UnknownFunction {
        /// Its name.
        name: String,
        /// Why its name alone does not tell what it computes.
        problem: String,
        /// Names that are nearly the same.
        candidates: Vec<String>,
    },
    /// There is no memory for the model's data.
    #[error(transparent)]
    Memory(HostError),
    /// Something that is allowed in such files but not supported.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// An operator refuses its attributes or inputs.
    #[error(transparent)]
    Op(Box<OpError>),
    /// The nodes make no sound graph.
    #[error(transparent)]
    Graph(Box<GraphError>),
}

fn suggestion(candidates: &[String]) -> String {
    if candidates.is_empty() {
        return String::new();
    }
    format!(" (did you mean {}?)", candidates.join(", "))
}

impl LoadErrorKind {
    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        LoadErrorKind::Unsupported(what.into())
    }

    pub(crate) fn missing(what: impl Into<String>) -> Self {
        LoadErrorKind::Missing(what.into())
    }

    pub(crate) fn unexpected(expected: impl Into<String>, found: impl Into<String>) -> Self {
        LoadErrorKind::Unexpected { expected: expected.into(), found: found.into() }
    }

    pub(crate) fn at(self, at: ErrorLocation) -> LoadError {
        LoadError { inner: Box::new(Inner { file: None, at, kind: self }) }
    }
}

impl From<OpError> for LoadErrorKind {
    fn from(e: OpError) -> Self {
        LoadErrorKind::Op(Box::new(e))
    }
}

impl From<GraphError> for LoadErrorKind {
    fn from(e: GraphError) -> Self {
        LoadErrorKind::Graph(Box::new(e))
    }
}

/// A file that cannot be loaded: which, where in it, and what is wrong.
#[derive(Debug)]
pub struct LoadError {
    inner: Box<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: Option<PathBuf>,
    at: ErrorLocation,
    kind: LoadErrorKind,
}

impl LoadError {
    /// The file, where it was loaded from one.
    pub fn file(&self) -> Option<&Path> {
        self.inner.file.as_deref()
    }

    /// Where in the file.
    pub fn at(&self) -> &ErrorLocation {
        &self.inner.at
    }

    /// What is wrong.
    pub fn kind(&self) -> &LoadErrorKind {
        &self.inner.kind
    }

    /// Whether the file is sound but uses what this library does not have (another runtime might run it).
    pub fn is_unsupported(&self) -> bool {
        let op_unsupported = |e: &OpError| matches!(e, OpError::Unsupported { .. });
        match self.kind() {
            LoadErrorKind::UnknownOperator { .. }
            | LoadErrorKind::UnknownFunction { .. }
            | LoadErrorKind::Unsupported(_) => true,
            LoadErrorKind::Op(e) => op_unsupported(e),
            LoadErrorKind::Graph(e) => {
                matches!(&**e, GraphError::Node { source, .. } if op_unsupported(source))
            }
            _ => false,
        }
    }

    /// What is wrong, without where.
    pub(crate) fn into_kind(self) -> LoadErrorKind {
        self.inner.kind
    }

    /// Names the tensor in place of a byte of the file.
    pub(crate) fn at_tensor(mut self, name: &str) -> Self {
        self.inner.at = ErrorLocation::Tensor(name.to_owned());
        self
    }

    /// Names the file, unless an inner file is named already.
    pub(crate) fn in_file(mut self, file: &Path) -> Self {
        self.inner.file.get_or_insert_with(|| file.to_owned());
        self
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.inner.file {
            write!(f, "{}: ", file.display())?;
        }
        write!(f, "{}{}", self.inner.at, self.inner.kind)
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.inner.kind)
    }
}

impl From<LoadErrorKind> for LoadError {
    fn from(kind: LoadErrorKind) -> Self {
        kind.at(ErrorLocation::File)
    }
}

impl From<GraphError> for LoadError {
    fn from(e: GraphError) -> Self {
        LoadErrorKind::from(e).into()
    }
}

/// The up to three of `known` that are nearest to `name`, for suggestions.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let limit = (name.len() / 3).max(1);
    // A long name is no typing error, and comparing it with every known one costs time.
    if name.len() > 256 {
        return Vec::new();
    }
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        .filter(|k| k.len().abs_diff(name.len()) <= limit)
        .map(|k| (distance(name, k), k))
        .filter(|(d, _)| *d <= limit)
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().take(3).map(|(_, k)| k.to_owned()).collect()
}

/// How many letters must be changed, added or dropped, case aside.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().flat_map(char::to_lowercase).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().flat_map(char::to_lowercase).enumerate() {
        let mut diagonal = i;
        let mut left = i.saturating_add(1);
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (slot, y) in row.iter_mut().skip(1).zip(&b) {
            let above = *slot;
            let change = diagonal.saturating_add(usize::from(x != *y));
            left = change.min(above.saturating_add(1)).min(left.saturating_add(1));
            *slot = left;
            diagonal = above;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_file_place_and_problem() {
        let e = LoadErrorKind::UnknownOperator {
            op: "Rellu".into(),
            domain: String::new(),
            opset: 13,
            candidates: nearest("Rellu", ["Relu", "PRelu", "Conv"]),
        };
        let e =
            e.at(ErrorLocation::node("n1", "Rellu")).in_file(Path::new("m.onnx")).in_file(Path::new("other"));
        let text = e.to_string();
        assert_eq!(
            text,
            "m.onnx: node \"n1\" (Rellu): there is no operator \"Rellu\" of domain \"\" at opset 13 \
             (did you mean Relu?)"
        );
        assert!(e.is_unsupported());
        assert!(!LoadError::from(LoadErrorKind::missing("x")).is_unsupported());
    }

    #[test]
    fn distances_count_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("Relu", "relu"), 0);
        assert!(nearest("Xyz", ["Conv", "Add"]).is_empty());
    }
}
