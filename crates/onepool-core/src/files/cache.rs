//! Folders of caches: what a driver compiled and what was measured, kept between processes.
//!
//! What is read from a cache becomes code of the process (a driver takes its own binaries on trust), so a
//! folder counts only if its files can come from no one else: it belongs to this process's user, and no one
//! else may write to it. Each file says what it is of and carries a hash of its contents; one that is not
//! whole, or of something else, is passed over and replaced. A reader sees an old file or a new one, whole,
//! whoever writes meanwhile.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

pub use super::entry::CacheError;
use super::entry::{DRAFT_ENDING, Entry};
use super::hash::Digest;
use super::system;
use crate::sync::lock;

/// The most that one file may hold, in bytes.
pub const MAX_FILE_BYTES: u64 = 256 << 20;
/// What the files of a folder may add up to, in bytes, and how many there may be; the oldest go first.
const MAX_FOLDER_BYTES: u64 = 512 << 20;
const MAX_FILES: usize = 4096;
/// Drafts that a writer left behind go after this time.
const STALE: Duration = Duration::from_secs(3600);
/// How long a writer waits for another one of the same file.
const MAX_WAIT: Duration = Duration::from_millis(500);

const ENDING: &str = ".onepool";
const LOCK_ENDING: &str = ".onepool-lock";
/// The magic bytes of a file, before the hashes of its key and of its content.
const FORMAT: &str = "onepool cache 1";

/// Bounds of a folder.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    bytes: u64,
    files: usize,
}

/// What is known of a folder's contents; others may have added to it since.
#[derive(Clone, Copy, Debug)]
struct Contents {
    bytes: u64,
    files: usize,
}

/// A folder of caches. Any number of these, in any number of processes, may be of one folder.
#[derive(Debug)]
pub struct CacheFolder {
    path: PathBuf,
    bounds: Bounds,
    contents: Mutex<Option<Contents>>,
    /// Set once the folder was refused: one warning is enough.
    refused: AtomicBool,
}

impl CacheFolder {
    /// The folder `path`, which is made once there is something to keep.
    pub fn new(path: &Path) -> Self {
        CacheFolder {
            path: path.to_owned(),
            bounds: Bounds { bytes: MAX_FOLDER_BYTES, files: MAX_FILES },
            contents: Mutex::default(),
            refused: AtomicBool::new(false),
        }
    }

    /// Makes the folder if it is not there, and says whether it may be used.
    ///
    /// # Errors
    /// [`CacheError`] of the folder.
    pub fn check(&self) -> Result<(), CacheError> {
        system::Folder::make(&self.path).map(|_| ())
    }

    /// What was kept under `name` for `key`; `None` where that is nothing, or nothing that can be used, with a warning.
    pub fn load(&self, name: &str, key: Digest) -> Option<Vec<u8>> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        match self.try_load(name, key) {
            Ok(found) => found,
            Err(cause) => {
                self.warn(&cause);
                None
            }
        }
    }

    /// As [`CacheFolder::load`].
    ///
    /// # Errors
    /// [`CacheError`] of the folder or of the file.
    pub fn try_load(&self, name: &str, key: Digest) -> Result<Option<Vec<u8>>, CacheError> {
        let Some(folder) = system::Folder::open(&self.path)? else { return Ok(None) };
        let name = format!("{name}{ENDING}");
        let Some(mut bytes) = folder.read(&name, MAX_FILE_BYTES)? else { return Ok(None) };
        let data = unseal(&bytes, key).map(<[u8]>::len);
        let Some(data) = data else { return Err(CacheError::Damaged { path: self.path.join(name) }) };
        bytes.drain(..bytes.len().saturating_sub(data));
        Ok(Some(bytes))
    }

    /// Keeps `data` under `name` for `key`. That it cannot be kept is a warning.
    pub fn save(&self, name: &str, key: Digest, data: &[u8]) {
        if !self.refused.load(Ordering::Relaxed)
            && let Err(cause) = self.try_save(name, key, data)
        {
            self.warn(&cause);
        }
    }

    /// As [`CacheFolder::save`].
    ///
    /// # Errors
    /// [`CacheError`] of the folder or of the file.
    pub fn try_save(&self, name: &str, key: Digest, data: &[u8]) -> Result<(), CacheError> {
        let file = format!("{name}{ENDING}");
        let sealed = seal(data, key);
        let (bytes, limit) = (sealed.len() as u64, MAX_FILE_BYTES.min(self.bounds.bytes));
        if bytes > limit {
            return Err(CacheError::TooLarge { path: self.path.join(file), bytes, limit });
        }
        let folder = system::Folder::make(&self.path)?;
        folder.write(&file, &sealed)?;
        self.bound(&folder, bytes);
        Ok(())
    }

    /// Whether another writer of `name` is kept away while the answer lives; without one after a short wait, it is not.
    pub fn lock(&self, name: &str) -> Option<File> {
        let folder = system::Folder::make(&self.path).ok()?;
        let file = folder.lock_file(&format!("{name}{LOCK_ENDING}")).ok()?;
        let began = Instant::now();
        // Waiting without an end would let any process stop this one.
        while file.try_lock().is_err() {
            if began.elapsed() > MAX_WAIT {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(file)
    }

    /// Removes the oldest files where there are too many, after one of `added` bytes was written.
    fn bound(&self, folder: &system::Folder, added: u64) {
        let mut contents = lock(&self.contents);
        let now = contents.map(|c| Contents { bytes: c.bytes.saturating_add(added), files: c.files + 1 });
        let fits = |c: &Contents| c.bytes <= self.bounds.bytes && c.files <= self.bounds.files;
        *contents = Some(match now.filter(fits) {
            Some(now) => now,
            None => evict(folder, self.bounds),
        });
    }

    fn warn(&self, cause: &CacheError) {
        let of_folder = match cause {
            CacheError::Io { path, .. }
            | CacheError::Foreign { path, .. }
            | CacheError::Writable { path, .. } => *path == self.path,
            CacheError::NoFolder { .. } => true,
            _ => false,
        };
        if !of_folder || !self.refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(target: "onepool::cache", "cache: {cause}");
        }
    }
}

/// Removes drafts that were left behind and, where there is more than the bounds allow, the files that were
/// written first, an eighth more than must go; gives what stays.
fn evict(folder: &system::Folder, bounds: Bounds) -> Contents {
    let now = SystemTime::now();
    let mut files = Vec::new();
    for entry in folder.list() {
        let age = now.duration_since(entry.modified).unwrap_or_default();
        if entry.name.ends_with(DRAFT_ENDING) && age > STALE {
            folder.remove(&entry.name);
        } else if entry.name.ends_with(ENDING) {
            files.push(entry);
        }
    }
    let sum = |files: &[Entry]| files.iter().fold(0u64, |sum, file| sum.saturating_add(file.bytes));
    let mut left = Contents { bytes: sum(&files), files: files.len() };
    if left.bytes > bounds.bytes || left.files > bounds.files {
        files.sort_by(|a, b| (a.modified, &a.name).cmp(&(b.modified, &b.name)));
        // The last one was written just now.
        for file in files.iter().take(files.len().saturating_sub(1)) {
            if left.bytes <= bounds.bytes - bounds.bytes / 8 && left.files <= bounds.files - bounds.files / 8
            {
                break;
            }
            folder.remove(&file.name);
            left = Contents { bytes: left.bytes.saturating_sub(file.bytes), files: left.files - 1 };
        }
    }
    left
}

fn head(data: &[u8], key: Digest) -> String {
    format!("{FORMAT} {} {}\n", key.hex(), Digest::of(data).hex())
}

fn seal(data: &[u8], key: Digest) -> Vec<u8> {
    let mut sealed = head(data, key).into_bytes();
    sealed.extend_from_slice(data);
    sealed
}

fn unseal(sealed: &[u8], key: Digest) -> Option<&[u8]> {
    let end = sealed.iter().take(FORMAT.len() + 2 * 65 + 1).position(|byte| *byte == b'\n')?;
    let (found, data) = sealed.split_at_checked(end + 1)?;
    (found == head(data, key).as_bytes()).then_some(data)
}

/// For tests.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use std::sync::mpsc;
    use std::time::Duration;

    /// Runs `test` in a thread and fails where it takes longer: what hangs is found.
    pub fn within_seconds(seconds: u64, test: impl FnOnce() + Send + 'static) {
        let (done, over) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            test();
            let _ = done.send(());
        });
        match over.recv_timeout(Duration::from_secs(seconds)) {
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("still running after {seconds} s"),
            // Its panic, where it had one, is this test's.
            _ => thread.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause)),
        }
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests;
