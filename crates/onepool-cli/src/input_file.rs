//! Files that a user names: regular ones, read whole.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::CliError;
use onepool_core::files;

/// Reads a whole file. A pipe or a device, which may never end, is refused.
pub(super) fn read_bytes(path: &Path) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes).map_err(|e| CliError::file("read", path, e))?;
    Ok(bytes)
}

/// Reads a JSON file.
pub(super) fn read_json<T: for<'de> serde::Deserialize<'de>>(path: &Path) -> Result<T, CliError> {
    let text = read_bytes(path)?;
    serde_json::from_slice(&text).map_err(|e| CliError::content(path, e.to_string()))
}

/// Opens a regular file.
pub(super) fn open(path: &Path) -> Result<File, CliError> {
    match files::open::regular(path) {
        Ok((file, _)) => Ok(file),
        Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => {
            Err(CliError::content(path, "this is no regular file"))
        }
        Err(e) => Err(CliError::file("read", path, e)),
    }
}
