//! Bytes that are read in order or by position, with every length checked against what is left.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use super::error::{ErrorLocation, LoadError, LoadErrorKind};
use super::pack::Item;
use crate::files::open;
use crate::graph::{TensorInfo, TensorSource};
use crate::memory::host::Unchanging;
use crate::memory::identity::FileIdentity;
use crate::memory::os;

/// The form of numbers that are not as wide in the file.
pub(super) const WIDENED: &str = "widened";

/// What a [`Source`] reads.
pub(super) trait Bytes: Read + Seek {}
impl<T: Read + Seek> Bytes for T {}

/// A file with a position of its own: reads elsewhere in it do not move it.
struct FileAt {
    file: Arc<File>,
    at: u64,
}

impl Read for FileAt {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = os::read_at(&self.file, to, self.at)?;
        self.at = self.at.saturating_add(read as u64);
        Ok(read)
    }
}

impl Seek for FileAt {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.file.metadata()?.len().checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// A file or a slice of known length with a position.
pub(super) struct Source<'a> {
    bytes: Box<dyn Bytes + 'a>,
    at: u64,
    len: u64,
    /// The file, and which state of it.
    file: Option<(Arc<File>, Option<FileIdentity>)>,
    /// Whether large tensors are mapped.
    pub(super) map: Option<Unchanging>,
}

impl<'a> Source<'a> {
    /// Reads `bytes`.
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Source { len: bytes.len() as u64, bytes: Box::new(Cursor::new(bytes)), at: 0, file: None, map: None }
    }

    /// Reads the regular file `path`.
    pub(super) fn open(path: &Path) -> Result<Source<'static>, LoadError> {
        let io = |action, source| LoadError::from(LoadErrorKind::Io { action, source }).in_file(path);
        let found = std::fs::metadata(path).map_err(|e| io("open the file", e))?;
        if !found.is_file() {
            let found = if found.is_dir() { "a folder" } else { "a device or pipe" };
            return Err(LoadError::from(LoadErrorKind::unexpected("a file", found)).in_file(path));
        }
        let (file, found) = open::regular(path).map_err(|e| io("open the file", e))?;
        Ok(Source::of_file(file, found.len()))
    }

    /// Reads the first `len` bytes of `file`.
    pub(super) fn of_file(file: File, len: u64) -> Source<'static> {
        let identity = FileIdentity::of(&file).filter(|found| found.bytes() == len);
        let file = Arc::new(file);
        let bytes = Box::new(BufReader::with_capacity(1 << 16, FileAt { file: Arc::clone(&file), at: 0 }));
        Source { bytes, at: 0, len, file: Some((file, identity)), map: None }
    }

    /// The file that it reads, if it is one.
    pub(super) fn file(&self) -> Option<&Arc<File>> {
        self.file.as_ref().map(|(file, _)| file)
    }

    /// Which file it is, once nothing has written it for a while.
    pub(super) fn identity(&self) -> Option<FileIdentity> {
        self.file.as_ref().and_then(|(_, identity)| *identity)
    }

    /// A tensor of so many bytes of the file from each of `pieces` on, as they lie there where `form` is empty.
    pub(super) fn item(&self, info: TensorInfo, pieces: Vec<(u64, u64)>, form: &'static str) -> Item {
        let (dtype, bytes) = (info.dtype, info.bytes() as u64);
        let source =
            self.identity().map(|file| TensorSource { file, pieces: pieces.clone(), dtype, bytes, form });
        let reads = self.file().filter(|_| form != WIDENED).map(|file| (Arc::clone(file), pieces));
        let map = self.map.filter(|_| form.is_empty());
        Item { info, source, reads, map }
    }

    /// The position, in bytes.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// All bytes there are.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes after the position.
    pub(super) fn left(&self) -> u64 {
        self.len.saturating_sub(self.at)
    }

    /// An error at the position.
    pub(super) fn error(&self, kind: LoadErrorKind) -> LoadError {
        kind.at(ErrorLocation::ByteOffset(self.at))
    }

    /// Checks that `bytes` more are there.
    pub(super) fn need(&self, what: &'static str, bytes: u64) -> Result<(), LoadError> {
        let left = self.left();
        if bytes <= left {
            return Ok(());
        }
        Err(self.error(LoadErrorKind::Truncated { what, needed: bytes, left }))
    }

    /// Fills `to`.
    pub(super) fn read(&mut self, what: &'static str, to: &mut [u8]) -> Result<(), LoadError> {
        let bytes = to.len() as u64;
        self.need(what, bytes)?;
        let read = self.bytes.read_exact(to);
        read.map_err(|source| self.error(LoadErrorKind::Io { action: "read the file", source }))?;
        self.at = self.at.saturating_add(bytes);
        Ok(())
    }

    /// The next `bytes` bytes.
    pub(super) fn take(&mut self, what: &'static str, bytes: u64) -> Result<Vec<u8>, LoadError> {
        self.need(what, bytes)?;
        let Ok(len) = usize::try_from(bytes) else {
            return Err(self.error(LoadErrorKind::Truncated { what, needed: bytes, left: self.left() }));
        };
        let mut out = vec![0; len];
        self.read(what, &mut out)?;
        Ok(out)
    }

    /// Passes over `bytes` bytes.
    pub(super) fn skip(&mut self, what: &'static str, bytes: u64) -> Result<(), LoadError> {
        self.need(what, bytes)?;
        self.seek(self.at.saturating_add(bytes))
    }

    /// Moves to byte `at`.
    pub(super) fn seek(&mut self, at: u64) -> Result<(), LoadError> {
        let io =
            |source| LoadErrorKind::Io { action: "read the file", source }.at(ErrorLocation::ByteOffset(at));
        // A relative move keeps what is buffered.
        match i64::try_from(i128::from(at).saturating_sub(i128::from(self.at))) {
            Ok(by) => self.bytes.seek_relative(by).map_err(io)?,
            Err(_) => self.bytes.seek(SeekFrom::Start(at)).map(|_| ()).map_err(io)?,
        }
        self.at = at;
        Ok(())
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, LoadError> {
        self.array::<1>(what).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, LoadError> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, LoadError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn i32(&mut self, what: &'static str) -> Result<i32, LoadError> {
        self.array(what).map(i32::from_le_bytes)
    }

    pub(super) fn i64(&mut self, what: &'static str) -> Result<i64, LoadError> {
        self.array(what).map(i64::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, LoadError> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], LoadError> {
        let mut out = [0; N];
        self.read(what, &mut out)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_checked_against_what_is_left() {
        let mut s = Source::of(&[1, 0, 0, 0, 9]);
        assert_eq!(s.i32("number").unwrap(), 1);
        let e = s.take("text", u64::MAX).unwrap_err();
        assert!(matches!(e.kind(), LoadErrorKind::Truncated { needed: u64::MAX, left: 1, .. }));
        assert_eq!(*e.at(), ErrorLocation::ByteOffset(4));
        s.skip("byte", 1).unwrap();
        assert!(s.u8("byte").is_err());
        s.seek(4).unwrap();
        assert_eq!(s.u8("byte").unwrap(), 9);
    }

    #[test]
    fn a_folder_is_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let e = Source::open(dir.path()).err().unwrap();
        assert!(e.to_string().contains("expected a file, found a folder"), "{e}");
        assert!(matches!(
            Source::open(&dir.path().join("none")).err().unwrap().kind(),
            LoadErrorKind::Io { .. }
        ));
    }
}
