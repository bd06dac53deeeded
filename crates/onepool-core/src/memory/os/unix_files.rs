//! Files on systems of the Unix family.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Number of the volume, and of the file on it; `None` where the system does not tell.
pub fn file_number(file: &File) -> Option<(u64, u128)> {
    let found = file.metadata().ok()?;
    Some((found.dev(), found.ino().into()))
}

/// When anything of a file changed, in seconds since 1970 and nanoseconds.
pub fn file_changed(file: &File) -> Option<(i64, i64)> {
    let found = file.metadata().ok()?;
    Some((found.ctime(), found.ctime_nsec()))
}

/// Reads at an offset; may be short.
pub fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    file.read_at(buffer, offset)
}
