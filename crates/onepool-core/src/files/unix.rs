//! Cache folders of Unix: by descriptor, so that what was checked is what is used.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, open, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::entry::{CacheError, DRAFT_ENDING, Entry};

/// No link is followed, nothing is waited for, no child process inherits it.
const FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);
/// Drafts of one process that may be left over from another one of the same number.
const TRIES: usize = 64;

/// A folder that was found to be this user's alone.
pub(super) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// `None` where there is none.
    pub(super) fn open(path: &Path) -> Result<Option<Folder>, CacheError> {
        let fd = match open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR) => return Err(CacheError::NoFolder { path: path.to_owned() }),
            Err(errno) => return Err(failed("open the cache folder", path, errno.into())),
        };
        let found = fstat(&fd).map_err(|errno| failed("look at the cache folder", path, errno.into()))?;
        owned(path, &found)?;
        Ok(Some(Folder { fd, path: path.to_owned() }))
    }

    /// Makes it where there is none: all that is made on the way is for this user alone.
    pub(super) fn make(path: &Path) -> Result<Folder, CacheError> {
        if let Some(folder) = Folder::open(path)? {
            return Ok(folder);
        }
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|source| failed("make the cache folder", path, source))?;
        match Folder::open(path)? {
            Some(folder) => Ok(folder),
            None => Err(failed("open the cache folder", path, Errno::NOENT.into())),
        }
    }

    /// The bytes of a file, `limit` at most; `None` where there is none.
    pub(super) fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, CacheError> {
        let path = self.path.join(name);
        let failed = |errno: Errno| failed("read the file", &path, errno.into());
        // Asked before it is opened: to open a device may do something.
        match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => regular(&path, &found)?,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        }
        let file = match openat(&self.fd, name, OFlags::RDONLY | FLAGS, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        let found = fstat(&file).map_err(failed)?;
        regular(&path, &found)?;
        owned(&path, &found)?;
        let bytes = u64::try_from(found.st_size).unwrap_or(u64::MAX);
        let too_large = |bytes| CacheError::TooLarge { path: path.clone(), bytes, limit };
        if bytes > limit {
            return Err(too_large(bytes));
        }
        let mut data = Vec::new();
        let read = data.try_reserve_exact(bytes as usize).map_err(io::Error::from);
        // It may grow while it is read.
        let read = read.and_then(|()| file.take(limit.saturating_add(1)).read_to_end(&mut data));
        read.map_err(|source| super::unix::failed("read the file", &path, source))?;
        if data.len() as u64 > limit {
            return Err(too_large(data.len() as u64));
        }
        Ok(Some(data))
    }

    /// Puts a file in the place of one of that name, whole.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), CacheError> {
        let path = self.path.join(name);
        let failed = |source| failed("write the file", &path, source);
        let (draft, mut file) = self.draft().map_err(failed)?;
        let written = file.write_all(bytes).and_then(|()| {
            // A folder in its place is not replaced by this.
            renameat(&self.fd, &draft, &self.fd, name).map_err(io::Error::from)
        });
        written.map_err(|source| {
            self.remove(&draft);
            failed(source)
        })
    }

    /// A new file that no one else writes to: other contexts, here and in other processes, may write theirs now.
    fn draft(&self) -> io::Result<(String, File)> {
        static DRAFTS: AtomicU32 = AtomicU32::new(0);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | FLAGS;
        let mut last = Errno::EXIST;
        for _ in 0..TRIES {
            let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}-{number}{DRAFT_ENDING}", std::process::id());
            match openat(&self.fd, name.as_str(), flags, Mode::RUSR | Mode::WUSR) {
                Ok(fd) => return Ok((name, File::from(fd))),
                Err(Errno::EXIST) => {}
                Err(errno) => {
                    last = errno;
                    break;
                }
            }
        }
        Err(last.into())
    }

    pub(super) fn lock_file(&self, name: &str) -> io::Result<File> {
        let fd = openat(&self.fd, name, OFlags::RDWR | OFlags::CREATE | FLAGS, Mode::RUSR | Mode::WUSR)?;
        Ok(File::from(fd))
    }

    /// The regular files that are there.
    pub(super) fn list(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        let Ok(dir) = Dir::read_from(&self.fd) else { return entries };
        for entry in dir.flatten() {
            let Ok(found) = statat(&self.fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let Ok(name) = entry.file_name().to_str() else { continue };
            if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
                // The fields' types differ between systems.
                let seconds = u64::try_from(i128::from(found.st_mtime)).unwrap_or(0);
                let nanos = u32::try_from(i128::from(found.st_mtime_nsec)).unwrap_or(0);
                let since = Duration::new(seconds, nanos.min(999_999_999));
                let modified = SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH);
                let bytes = u64::try_from(found.st_size).unwrap_or(0);
                entries.push(Entry { name: name.to_owned(), bytes, modified });
            }
        }
        entries
    }

    /// Removes a file; another process may have done so.
    pub(super) fn remove(&self, name: &str) {
        let _ = unlinkat(&self.fd, name, AtFlags::empty());
    }
}

fn failed(action: &'static str, path: &Path, cause: io::Error) -> CacheError {
    CacheError::Io { action, path: path.to_owned(), cause }
}

/// Whether it is this user's, and no one else may write to it.
fn owned(path: &Path, found: &Stat) -> Result<(), CacheError> {
    let (user, mode) = (rustix::process::geteuid().as_raw(), u64::from(found.st_mode) & 0o777);
    if found.st_uid != user {
        return Err(CacheError::Foreign { path: path.to_owned(), owner: found.st_uid, user });
    }
    if mode & 0o022 != 0 {
        return Err(CacheError::Writable { path: path.to_owned(), mode });
    }
    Ok(())
}

fn regular(path: &Path, found: &Stat) -> Result<(), CacheError> {
    let found = match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "a folder",
        FileType::Symlink => "a link",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "a device",
    };
    Err(CacheError::NotRegular { path: path.to_owned(), found })
}
