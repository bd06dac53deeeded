//! What can go wrong with a generation.

use std::io;
use std::path::PathBuf;

use crate::dtype::DType;
use crate::session::{Error, ErrorClass, IoInfo};

/// Why a model folder cannot be read, or a text cannot be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// A file of the folder could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the folder is larger than any sound one.
    #[error("{} has {bytes} bytes, and {limit} are read at most", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A file does not hold what it should.
    #[error("{}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// The folder lacks a file.
    #[error("{} has none of {}: a model folder has a graph, its settings and tokenizer.json", folder.display(), expected.join(", "))]
    NoFile {
        /// The folder.
        folder: PathBuf,
        /// Files of which it needs one.
        expected: Vec<String>,
    },
    /// The folder's model is of a kind that is not supported.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The settings name an input or output that the graph does not have.
    #[error(
        "the settings name the {what} {name:?}, but the graph has {known:?}: correct the names in genai_config.json"
    )]
    NoSuchName {
        /// "input" or "output".
        what: &'static str,
        /// The name.
        name: String,
        /// Names there are.
        known: Vec<String>,
    },
    /// The graph has an input that a decoder of text is not given.
    #[error(
        "nothing is known to give to the graph's input {name:?}: a decoder takes token numbers, a mask, positions, its cache and what its encoder gives; name these inputs in the settings"
    )]
    UnknownInput {
        /// The name.
        name: String,
    },
    /// An input or output has a type that it cannot have here.
    #[error("{name:?} holds {got}: expected {expected}")]
    DType {
        /// The input or output.
        name: String,
        /// Types it may have.
        expected: &'static str,
        /// The declared one.
        got: DType,
    },
    /// An input or output has another shape than a decoder's.
    #[error("{name:?} is declared as {got}: expected {expected}")]
    Shape {
        /// The input or output.
        name: String,
        /// The shape it should have.
        expected: &'static str,
        /// The declared one.
        got: String,
    },
    /// There is no chat template.
    #[error(
        "the model has no chat template (chat_template.jinja, chat_template in tokenizer_config.json, or tokenizer.chat_template in a GGUF file): give the whole prompt as text"
    )]
    NoTemplate,
    /// The chat template could not be read or run.
    #[error("the chat template: {0}")]
    Template(String),
    /// The tokenizer refused a text or tokens.
    #[error("the tokenizer: {0}")]
    Tokenizer(String),
    /// A grammar could not be read, or reached a limit of time or memory.
    #[error("the grammar: {0}")]
    Grammar(String),
    /// The draft model has other tokens.
    #[error(
        "the draft model has another tokenizer: it must have the tokens of the model that it guesses for"
    )]
    Draft,
    /// A file of a conversation is damaged, or belongs to another model.
    #[error("{}: {problem}", path.display())]
    Conversation {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A text needs more pages than the pool can give.
    #[error(
        "text {text} lacks {missing} pages, and the pool of {pages} has no more to give: end a text, let cached pages go, or make the pool larger"
    )]
    PagesFull {
        /// The number of the text, or of the sequence in the pool where it has none.
        text: u64,
        /// How many more it needs.
        missing: usize,
        /// Pages of the pool.
        pages: usize,
    },
    /// No such text runs.
    #[error("text {0} does not run: it has ended, or waits")]
    NoText(
        /// Its number.
        u64,
    ),
    /// Something else uses the generator.
    #[error("the generator is in use: another text or a batch is made with it")]
    Busy,
    /// The thread of a batch is not there.
    #[error("the thread of a batch {0}")]
    Thread(String),
    /// A pool of pages cannot be made so, or belongs to another model.
    #[error("the pool of pages: {0}")]
    Pages(String),
    /// A file could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The prompt has no token.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// The prompt does not leave room for a token in the cache.
    #[error(
        "the prompt has {tokens} tokens and the cache has room for {capacity}, one of them for the first new token: shorten it, or ask for a longer context (the model takes {context})"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that the cache holds.
        capacity: usize,
        /// Tokens that the model takes.
        context: usize,
    },
    /// The prompt is longer than the encoder takes.
    #[error("the prompt has {tokens} tokens and the encoder takes {limit}: shorten it")]
    SourceTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that the encoder takes.
        limit: usize,
    },
    /// The encoder takes another kind of prompt.
    #[error("the model's encoder takes {expected} (its input {input:?}): give the prompt as such")]
    Source {
        /// The encoder's input.
        input: String,
        /// "text or tokens" or "features".
        expected: &'static str,
    },
    /// Features have another type or shape than the encoder takes.
    #[error(
        "the features are {got}, and the encoder's input {name:?} takes {declared} for one text: compute them as preprocessor_config.json of the model says"
    )]
    Features {
        /// The encoder's input.
        name: String,
        /// What it takes.
        declared: String,
        /// What was given.
        got: String,
    },
    /// More tokens of context are asked for than the model takes, or too few.
    #[error("a context of {asked} tokens: the model takes 2 to {context}")]
    Context {
        /// Asked for.
        asked: usize,
        /// The model's limit.
        context: usize,
    },
    /// A token that the model does not have.
    #[error("token {token} is not among the model's {vocabulary}: tokenizer.json belongs to another model")]
    UnknownToken {
        /// The token.
        token: u32,
        /// How many there are.
        vocabulary: usize,
    },
    /// The model computed no usable number.
    #[error(
        "the logits after {position} tokens have {what}: the weights are damaged, or the precision is too low for them"
    )]
    NotFinite {
        /// Tokens before it.
        position: usize,
        /// What they hold.
        what: &'static str,
    },
    /// A setting of sampling is out of its range.
    #[error("{name} is {value}: expected {expected}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// The value.
        value: String,
        /// The range.
        expected: &'static str,
    },
    /// The session refused or failed.
    #[error(transparent)]
    Session(#[from] Error),
}

impl GenerateError {
    /// That there is no `name` among the inputs or outputs `known`.
    pub(super) fn no_such_name(what: &'static str, name: impl Into<String>, known: &[IoInfo]) -> Self {
        let known = known.iter().map(|io| io.name.clone()).collect();
        GenerateError::NoSuchName { what, name: name.into(), known }
    }

    /// Its class.
    pub fn class(&self) -> ErrorClass {
        match self {
            GenerateError::Session(error) => error.class(),
            GenerateError::Unsupported(_) => ErrorClass::Unsupported,
            GenerateError::Busy => ErrorClass::Busy,
            GenerateError::Thread(_) => ErrorClass::Other,
            GenerateError::Read { source, .. } => ErrorClass::of_read(source),
            GenerateError::NoFile { .. } => ErrorClass::ModelNotFound,
            error if error.is_argument() => ErrorClass::InvalidArgument,
            _ => ErrorClass::Model,
        }
    }

    /// Whether what is wrong is what the caller asked for: the prompt, a setting, a grammar, the file of a conversation.
    /// Else it is the model's folder, a device or the system.
    pub fn is_argument(&self) -> bool {
        use GenerateError as E;
        matches!(
            self,
            E::NoTemplate
                | E::Template(_)
                | E::Grammar(_)
                | E::Draft
                | E::Conversation { .. }
                | E::PagesFull { .. }
                | E::NoText(_)
                | E::Pages(_)
                | E::EmptyPrompt
                | E::PromptTooLong { .. }
                | E::SourceTooLong { .. }
                | E::Source { .. }
                | E::Features { .. }
                | E::Context { .. }
                | E::UnknownToken { .. }
                | E::Setting { .. }
        )
    }
}

macro_rules! from_session {
    ($($kind:ty),*) => {$(
        impl From<$kind> for GenerateError {
            fn from(e: $kind) -> Self {
                GenerateError::Session(e.into())
            }
        }
    )*};
}

from_session!(
    crate::device::Error,
    crate::device::UsageError,
    crate::loader::LoadError,
    crate::memory::host::HostError,
    crate::session::SessionError,
    crate::shape::ShapeError,
    crate::tensor::TensorError
);
