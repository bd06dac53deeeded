//! Which file it is and which state of it: equal identities have equal bytes.

use std::fs::{File, Metadata};
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
    /// When its name, owner or contents changed, in seconds and nanoseconds, where the system tells.
    changed: (i64, i64),
}

impl FileIdentity {
    /// The identity of an open file. `None` where the system tells too little, or where the file changed so lately that
    /// another change could go unseen.
    pub fn of(file: &File) -> Option<FileIdentity> {
        let metadata = file.metadata().ok()?;
        FileIdentity::at(&metadata, os::file_number(file)?, SystemTime::now())
    }

    /// The identity of what is at `path` now, as [`FileIdentity::of`].
    pub fn of_path(path: &std::path::Path) -> Option<FileIdentity> {
        let (file, _) = files::open::regular(path).ok()?;
        FileIdentity::of(&file)
    }

    fn at(metadata: &Metadata, file: (u64, u128), now: SystemTime) -> Option<FileIdentity> {
        let modified = metadata.modified().ok()?;
        let changed = changed(metadata);
        let since =
            u64::try_from(changed.0).ok().map(|s| SystemTime::UNIX_EPOCH + Duration::from_secs(s + 1));
        let latest = since.map_or(modified, |since| since.max(modified));
        // A time to come is no time to go by.
        let settled = now.duration_since(latest).is_ok_and(|age| age >= SETTLED);
        settled.then_some(FileIdentity { file, bytes: metadata.len(), modified, changed })
    }

    /// As [`FileIdentity::of`], of a file that no one changes any more.
    #[cfg(test)]
    pub(crate) fn settled(file: &File) -> FileIdentity {
        let later = SystemTime::now() + Duration::from_secs(60);
        FileIdentity::at(&file.metadata().unwrap(), os::file_number(file).unwrap(), later).unwrap()
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(unix)]
fn changed(metadata: &Metadata) -> (i64, i64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.ctime(), metadata.ctime_nsec())
}

#[cfg(not(unix))]
fn changed(_: &Metadata) -> (i64, i64) {
    (0, 0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_has_an_identity_once_it_has_settled() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"weights").unwrap();
        assert_eq!(FileIdentity::of(file.as_file()), None);
        let metadata = file.as_file().metadata().unwrap();
        let at =
            |seconds| FileIdentity::at(&metadata, (1, 2), SystemTime::now() + Duration::from_secs(seconds));
        assert_eq!(at(0), None);
        let later = at(60).unwrap();
        assert_eq!((later.bytes(), Some(later)), (7, at(90)));
        file.write_all(b"!").unwrap();
        let changed = FileIdentity::at(
            &file.as_file().metadata().unwrap(),
            (1, 2),
            SystemTime::now() + Duration::from_secs(60),
        );
        assert_ne!(changed, Some(later));
        assert_eq!(FileIdentity::of_path(std::path::Path::new("/nothing/is/here")), None);
    }
}
