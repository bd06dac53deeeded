//! Filling owned memory from files and readers, with no copy in between.

use std::fs::File;
use std::io;
use std::path::Path;

use super::host_error::HostError;
use super::os::{self, DIRECT_BLOCK};
use crate::files;

/// Below this many bytes a read past the page cache costs more than it saves.
const DIRECT_MIN: usize = 1 << 20;
/// One read call asks for no more; the kernel stops at 2 GiB anyway.
const READ_CHUNK: usize = 64 << 20;

/// Opens a regular file and gives its size.
pub(super) fn open(path: &Path) -> Result<(File, u64), HostError> {
    match files::open::regular(path) {
        Ok((file, metadata)) => Ok((file, metadata.len())),
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
            Err(HostError::NotAFile { path: path.to_owned() })
        }
        Err(source) => Err(HostError::Io { path: Some(path.to_owned()), source }),
    }
}

/// Fills the buffer with the bytes of a file from `offset` on, past the page cache as far as possible.
pub(super) fn from_file(buffer: &mut [u8], file: &File, path: &Path, offset: u64) -> Result<(), HostError> {
    let done = read_direct(file, buffer, offset);
    fill(buffer, done, Some(path), |part, at| os::read_at(file, part, offset + at))
}

/// Reads what can be read past the page cache; the caller reads the rest.
fn read_direct(file: &File, buffer: &mut [u8], offset: u64) -> usize {
    if buffer.len() < DIRECT_MIN || !offset.is_multiple_of(DIRECT_BLOCK as u64) {
        return 0;
    }
    let Some(direct) = os::open_direct(file) else { return 0 };
    let whole_blocks = buffer.len() - buffer.len() % DIRECT_BLOCK;
    let mut done = 0;
    // An unaligned remainder cannot be continued past the cache.
    while done < whole_blocks && done.is_multiple_of(DIRECT_BLOCK) {
        let end = whole_blocks.min(done + READ_CHUNK);
        match os::read_at(&direct, &mut buffer[done..end], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    done
}

/// Fills the buffer from `done` on; `read` gets the part to fill and its offset in the buffer.
pub(super) fn fill(
    buffer: &mut [u8],
    mut done: usize,
    path: Option<&Path>,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> Result<(), HostError> {
    while done < buffer.len() {
        let end = buffer.len().min(done + READ_CHUNK);
        match read(&mut buffer[done..end], done as u64) {
            Ok(0) => return Err(HostError::Truncated { expected: buffer.len() as u64, got: done as u64 }),
            // A reader that claims more than it was given room for must not be believed.
            Ok(count) => done += count.min(end - done),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(HostError::Io { path: path.map(Path::to_owned), source }),
        }
    }
    Ok(())
}
