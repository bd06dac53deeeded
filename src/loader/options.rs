//! What a caller decides about loading.

use std::fmt;
use std::path::Path;

/// How a model is loaded.
#[derive(Clone, Copy, Default)]
pub struct LoadOptions<'a> {
    /// The parameters of a TVM graph, where they are not next to it.
    pub params: Option<&'a Path>,
    /// Called as parameters are read, with the bytes read and the bytes of all of them.
    pub progress: Option<&'a dyn Fn(u64, u64)>,
}

impl fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let progress = self.progress.is_some();
        f.debug_struct("LoadOptions").field("params", &self.params).field("progress", &progress).finish()
    }
}
