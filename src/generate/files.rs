//! Small files of a model's folder, read with a limit.

use std::io::{self, Read as _};
use std::path::Path;

use super::error::GenerateError;
use crate::files::open::regular;

/// The largest settings, template or tokenizer that is read.
const MAX_BYTES: u64 = 256 << 20;

/// The text of the file `path`.
pub(super) fn read_text(path: &Path) -> Result<String, GenerateError> {
    let failed = |source| GenerateError::Read { path: path.to_owned(), source };
    let (file, found) = regular(path).map_err(failed)?;
    if found.len() > MAX_BYTES {
        let (bytes, limit) = (found.len(), MAX_BYTES);
        return Err(GenerateError::TooLarge { path: path.to_owned(), bytes, limit });
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Checks that a model's folder is not one of its files.
pub(super) fn check_folder(path: &Path) -> Result<(), GenerateError> {
    if !path.is_file() {
        return Ok(());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let problem = format!("this is a file of a model's folder: give the folder {}", folder.display());
    Err(GenerateError::Content { path: path.to_owned(), problem })
}

/// As [`read_text`]; nothing where there is no such file.
pub(super) fn read_optional(path: &Path) -> Result<Option<String>, GenerateError> {
    match read_text(path) {
        Err(GenerateError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
