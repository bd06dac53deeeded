//! A file of a cache folder, and why one is not used.

use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

/// How the name of a file ends that is not whole yet.
pub(super) const DRAFT_ENDING: &str = ".onepool-draft";

/// Why a cache is not used, or one of its files is not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The system refused.
    #[error("{}: cannot {action}: {cause}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// Something else is there under the folder's name.
    #[error("{}: this is no folder; name one for caches, or one that does not exist yet", path.display())]
    NoFolder {
        /// The name.
        path: PathBuf,
    },
    /// A folder or file that another user owns.
    #[error("{}: user {owner} owns it, this process runs as user {user}, and caches hold code; name a folder of your own", path.display())]
    #[cfg_attr(not(unix), expect(dead_code, reason = "owners and modes are those of Unix systems"))]
    Foreign {
        /// Its name.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// Who asks.
        user: u32,
    },
    /// A folder or file that others may write to.
    #[error("{}: others may write to it (mode {mode:03o}), and caches hold code; `chmod go-w` it, or name another folder", path.display())]
    #[cfg_attr(not(unix), expect(dead_code, reason = "owners and modes are those of Unix systems"))]
    Writable {
        /// Its name.
        path: PathBuf,
        /// Its permission bits.
        mode: u64,
    },
    /// No regular file under a file's name.
    #[error("{}: {found}, not a regular file; remove it", path.display())]
    NotRegular {
        /// The name.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// A file of more bytes than any that is written.
    #[error("{}: {bytes} bytes, and no file here has more than {limit}; remove it", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        bytes: u64,
        /// The most there may be.
        limit: u64,
    },
    /// A file whose contents are not those that were written, or are of something else.
    #[error("{}: damaged, or made by another version or for something else; it is passed over and will be replaced", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

/// A file of a cache folder.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) modified: SystemTime,
}
