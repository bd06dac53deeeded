//! Which file it is and which state of it: equal identities have equal bytes.

use std::fs::File;
use std::time::{Duration, SystemTime};

use super::os;
use crate::files;

/// A file that changed less than this long ago may change once more without another time: file systems count in
/// steps of up to two seconds.
const SETTLED: Duration = Duration::from_secs(2);

/// A file as it was when it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Number of the volume, and of the file on it.
    file: (u64, u128),
    bytes: u64,
    modified: SystemTime,
    /// When its name, owner or contents changed, in seconds since 1970 and nanoseconds, where the file
    /// system tells.
    changed: (i64, i64),
}

impl FileIdentity {
    /// The identity of an open file. `None` where the system tells too little, or where the file changed so lately that
    /// another change could go unseen.
    pub fn of(file: &File) -> Option<FileIdentity> {
        FileIdentity::at(file, SystemTime::now())
    }

    /// The identity of what is at `path` now, as [`FileIdentity::of`].
    pub fn of_path(path: &std::path::Path) -> Option<FileIdentity> {
        let (file, _) = files::open::regular(path).ok()?;
        FileIdentity::of(&file)
    }

    fn at(file: &File, now: SystemTime) -> Option<FileIdentity> {
        let metadata = file.metadata().ok()?;
        let (modified, changed) = (metadata.modified().ok()?, os::file_changed(file)?);
        let since =
            u64::try_from(changed.0).ok().map(|s| SystemTime::UNIX_EPOCH + Duration::from_secs(s + 1));
        let latest = since.map_or(modified, |since| since.max(modified));
        // A time to come is no time to go by.
        let settled = now.duration_since(latest).is_ok_and(|age| age >= SETTLED);
        let file = os::file_number(file)?;
        settled.then_some(FileIdentity { file, bytes: metadata.len(), modified, changed })
    }

    /// As [`FileIdentity::of`], of a file that no one changes any more.
    #[cfg(test)]
    pub(crate) fn settled(file: &File) -> FileIdentity {
        let later = SystemTime::now() + Duration::from_secs(60);
        FileIdentity::at(file, later).unwrap()
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Other bytes of the same length, and the time of the last write put back.
    #[test]
    fn a_write_whose_time_is_put_back_is_another_state() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"weights").unwrap();
        let (before, modified) = (FileIdentity::settled(file.as_file()), file.as_file().metadata().unwrap());
        std::thread::sleep(Duration::from_millis(50));
        std::fs::write(file.path(), b"WEIGHTS").unwrap();
        file.as_file().set_modified(modified.modified().unwrap()).unwrap();
        let after = FileIdentity::settled(file.as_file());
        assert_eq!((after.modified, after.bytes), (before.modified, before.bytes));
        assert_ne!(after, before);
    }

    #[test]
    fn a_file_has_an_identity_once_it_has_settled() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"weights").unwrap();
        assert_eq!(FileIdentity::of(file.as_file()), None);
        let at =
            |file: &File, seconds| FileIdentity::at(file, SystemTime::now() + Duration::from_secs(seconds));
        assert_eq!(at(file.as_file(), 0), None);
        let later = at(file.as_file(), 60).unwrap();
        assert_eq!((later.bytes(), Some(later)), (7, at(file.as_file(), 90)));
        file.write_all(b"!").unwrap();
        assert_ne!(at(file.as_file(), 60), Some(later));
        assert_eq!(FileIdentity::of_path(std::path::Path::new("/nothing/is/here")), None);
    }
}
