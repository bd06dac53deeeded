//! What a caller decides about loading.

use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::memory::host::Unchanging;
use crate::memory::identity::FileIdentity;

/// How a model is loaded.
#[derive(Clone, Copy, Default)]
pub struct LoadOptions<'a> {
    /// The parameters of a TVM graph, where they are not next to it.
    pub params: Option<&'a Path>,
    /// Reads large parameters where they lie in the system's cache of files, so that processes share them. Those that lie
    /// at no multiple of 16 bytes, or are not as they are in the file, are read as ever; so are all where no file is
    /// mapped (on Linux alone they are).
    pub map: Option<Unchanging>,
    /// Called as parameters are read, with the bytes read and the bytes of all of them.
    pub progress: Option<&'a dyn Fn(u64, u64)>,
}

impl fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let progress = self.progress.is_some();
        f.debug_struct("LoadOptions")
            .field("params", &self.params)
            .field("map", &self.map)
            .field("progress", &progress)
            .finish()
    }
}

/// The files that a model was loaded from; `None` of one that cannot be told from another state of it.
#[derive(Debug, Default)]
pub(crate) struct UsedFiles(RefCell<Vec<Option<(PathBuf, FileIdentity)>>>);

impl UsedFiles {
    pub(super) fn note(&self, path: PathBuf, identity: Option<FileIdentity>) {
        self.0.borrow_mut().push(identity.map(|identity| (path, identity)));
    }

    /// All of them, where each can be told from another state of it.
    pub(crate) fn all(self) -> Option<Vec<(PathBuf, FileIdentity)>> {
        let files: Option<Vec<_>> = self.0.into_inner().into_iter().collect();
        files.filter(|files| !files.is_empty())
    }
}

/// What loaders pass on: who hears of progress, whether files are mapped, and where they are noted.
pub(super) type Wishes<'a> = (Option<&'a dyn Fn(u64, u64)>, Option<Unchanging>, Option<&'a UsedFiles>);
