//! Cache folders of systems that are not Unix: regular files of bounded size, replaced whole. Who owns a
//! folder and who else may write to it is not asked: on Windows a folder in the user's profile is that user's
//! by its inherited access list.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use super::entry::{CacheError, DRAFT_ENDING, Entry};

/// Drafts of one process that may be left over from another one of the same number.
const TRIES: usize = 64;

pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// `None` where there is none.
    pub(super) fn open(path: &Path) -> Result<Option<Folder>, CacheError> {
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => Ok(Some(Folder { path: path.to_owned() })),
            Ok(_) => Err(CacheError::NoFolder { path: path.to_owned() }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(failed("open the cache folder", path, source)),
        }
    }

    /// Makes it where there is none.
    pub(super) fn make(path: &Path) -> Result<Folder, CacheError> {
        if let Some(folder) = Folder::open(path)? {
            return Ok(folder);
        }
        fs::create_dir_all(path).map_err(|source| failed("make the cache folder", path, source))?;
        Ok(Folder { path: path.to_owned() })
    }

    /// The bytes of a file, `limit` at most; `None` where there is none.
    pub(super) fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, CacheError> {
        let path = self.path.join(name);
        let failed = |source| failed("read the file", &path, source);
        let found = match fs::symlink_metadata(&path) {
            Ok(found) => found,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(failed(source)),
        };
        if !found.is_file() {
            let found = if found.is_dir() { "a folder" } else { "a link or device" };
            return Err(CacheError::NotRegular { path, found });
        }
        if found.len() > limit {
            return Err(CacheError::TooLarge { path, bytes: found.len(), limit });
        }
        let mut data = Vec::new();
        let read =
            File::open(&path).and_then(|file| file.take(limit.saturating_add(1)).read_to_end(&mut data));
        read.map_err(failed)?;
        if data.len() as u64 > limit {
            return Err(CacheError::TooLarge { path, bytes: data.len() as u64, limit });
        }
        Ok(Some(data))
    }

    /// Puts a file in the place of one of that name, whole.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), CacheError> {
        let path = self.path.join(name);
        let failed = |source| failed("write the file", &path, source);
        let (draft, mut file) = self.draft().map_err(failed)?;
        let written = file.write_all(bytes);
        // What is open may not be renamed everywhere.
        drop(file);
        written.and_then(|()| fs::rename(self.path.join(&draft), &path)).map_err(|source| {
            self.remove(&draft);
            failed(source)
        })
    }

    fn draft(&self) -> io::Result<(String, File)> {
        static DRAFTS: AtomicU32 = AtomicU32::new(0);
        let mut tries = 0;
        loop {
            let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}-{number}{DRAFT_ENDING}", std::process::id());
            match OpenOptions::new().write(true).create_new(true).open(self.path.join(&name)) {
                Ok(file) => return Ok((name, file)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && tries < TRIES => tries += 1,
                Err(e) => return Err(e),
            }
        }
    }

    pub(super) fn lock_file(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(self.path.join(name))
    }

    /// The regular files that are there.
    pub(super) fn list(&self) -> Vec<Entry> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let entry = |entry: fs::DirEntry| {
            let found = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            let modified = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            Some(Entry { name: entry.file_name().into_string().ok()?, bytes: found.len(), modified })
        };
        entries.filter_map(entry).collect()
    }

    /// Removes a file; another process may have done so.
    pub(super) fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.path.join(name));
    }
}

fn failed(action: &'static str, path: &Path, cause: io::Error) -> CacheError {
    CacheError::Io { action, path: path.to_owned(), cause }
}
