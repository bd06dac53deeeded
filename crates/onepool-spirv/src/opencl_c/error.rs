//! Why a module has no OpenCL C.

use std::borrow::Cow;

use crate::Requires;
use crate::{SpirvError, SpirvErrorKind};

/// Why a module was not translated to OpenCL C.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenClError {
    /// The words are no module that this runtime takes.
    #[error("{0}")]
    Module(#[from] SpirvError),
    /// The module holds a construct that has no counterpart here; another variant of the kernel, or OpenCL C
    /// of the caller's own, is needed.
    #[error("spir-v word {word}{}: {what} has no translation to OpenCL C", id_text(*.id))]
    Unsupported {
        /// Index of the word at which the instruction starts.
        word: usize,
        /// The id that it defines.
        id: Option<u32>,
        /// The construct.
        what: Cow<'static, str>,
    },
    /// The device lacks what the module needs.
    #[error("the kernel needs {missing}, which the device does not have")]
    Requires {
        /// The missing features.
        missing: Requires,
    },
    /// The module's entry point has another name.
    #[error("the module has no entry point `{wanted}`, only `{found}`")]
    EntryPoint {
        /// The name asked for.
        wanted: String,
        /// The name it has.
        found: String,
    },
    /// The branches of a function are not nested as the merge instructions say.
    #[error("spir-v word {word}: block {block} is not reached through structured control flow")]
    Unstructured {
        /// Index of the word at which the branch starts.
        word: usize,
        /// The block's label.
        block: u32,
    },
    /// The translation would be larger than is accepted.
    #[error("{what}: more than {limit}")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// The largest count accepted.
        limit: usize,
    },
}

fn id_text(id: Option<u32>) -> String {
    id.map_or(String::new(), |id| format!(" (id {id})"))
}

impl OpenClError {
    /// A rule that the module as a whole breaks.
    pub(super) fn invalid(rule: impl Into<Cow<'static, str>>) -> Self {
        Self::Module(SpirvError { word: 0, kind: SpirvErrorKind::Invalid { rule: rule.into() } })
    }
}
