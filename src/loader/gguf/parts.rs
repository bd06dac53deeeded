//! The files of a model: one, or several parts of which each has some of the tensors.

use std::path::{Path, PathBuf};

use super::file::{GgufFile, entry_error};
use crate::loader::error::{LoadError, LoadErrorKind};
use crate::loader::options::UsedFiles;
use crate::loader::source::Source;
use crate::memory::host::Unchanging;

/// The most parts, all of which are open at once.
const MAX_PARTS: u64 = 512;

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// The data of all parts, in order.
pub(super) struct Parts<'a>(Vec<(Option<PathBuf>, Source<'a>)>);

/// Which part a file is, from 0 on, and of how many.
fn number(file: &GgufFile) -> Result<(u64, u64), LoadError> {
    let (no, count) = (file.unsigned(NUMBER)?.unwrap_or(0), file.unsigned(COUNT)?.unwrap_or(1).max(1));
    if count > MAX_PARTS {
        let kind = LoadErrorKind::TooMany { what: "parts of a model", found: count, limit: MAX_PARTS };
        return Err(entry_error(COUNT, kind));
    }
    if no >= count {
        let kind = LoadErrorKind::unexpected(format!("a number below {count}"), no.to_string());
        return Err(entry_error(NUMBER, kind));
    }
    Ok((no, count))
}

/// What the name of part `no` of `count` ends with.
fn ending(no: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", no.saturating_add(1))
}

/// A part in words.
fn words((no, count): (u64, u64)) -> String {
    format!("part {} of {count}", no.saturating_add(1))
}

/// Reads the header of the file `path`, and which part it is.
fn read(path: &Path) -> Result<(GgufFile, (u64, u64), Source<'static>), LoadError> {
    let mut source = Source::open(path)?;
    let read = |source: &mut Source<'_>| {
        let file = GgufFile::read(source)?;
        let number = number(&file)?;
        Ok((file, number))
    };
    let (file, number) = read(&mut source).map_err(|e: LoadError| e.in_file(path))?;
    Ok((file, number, source))
}

impl Parts<'static> {
    /// Opens the model that `path` is, or is a part of.
    pub(super) fn open(path: &Path) -> Result<(GgufFile, Self), LoadError> {
        let (first, (no, count), source) = read(path)?;
        if count == 1 {
            return Ok((first, Parts(vec![(Some(path.to_owned()), source)])));
        }
        let end = ending(no, count);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(stem) = name.strip_suffix(&end) else {
            let expected = format!("a file named NAME{end}, as it is {} of a model", words((no, count)));
            return Err(
                LoadError::from(LoadErrorKind::unexpected(expected, format!("{name:?}"))).in_file(path)
            );
        };
        let mut first = Some((first, (no, count), source));
        let (mut whole, mut parts) = (GgufFile::default(), Vec::new());
        for part in 0..count {
            let path = path.with_file_name(format!("{stem}{}", ending(part, count)));
            let (file, found, source) = match first.take_if(|_| part == no) {
                Some(first) => first,
                None => read(&path)?,
            };
            let joined = match found == (part, count) {
                true => whole.join(file, parts.len(), NUMBER),
                false => {
                    let kind = LoadErrorKind::unexpected(words((part, count)), words(found));
                    Err(entry_error(NUMBER, kind))
                }
            };
            joined.map_err(|e| e.in_file(&path))?;
            parts.push((Some(path), source));
        }
        let found = whole.tensors().count() as u64;
        match whole.unsigned(TENSORS).map_err(|e| e.in_file(path))? {
            Some(expected) if expected != found => {
                let kind =
                    LoadErrorKind::unexpected(format!("{expected} tensors in all parts"), found.to_string());
                Err(entry_error(TENSORS, kind).in_file(path))
            }
            _ => Ok((whole, Parts(parts))),
        }
    }

    /// Lets large tensors stay in the files, where `map` says so, and notes which files they are.
    pub(super) fn heed(&mut self, map: Option<Unchanging>, used: Option<&UsedFiles>) {
        for (path, source) in &mut self.0 {
            source.map = map;
            if let (Some(used), Some(path)) = (used, path) {
                used.note(path.clone(), source.identity());
            }
        }
    }
}

impl<'a> Parts<'a> {
    /// The model that the bytes of one file are.
    pub(super) fn of(bytes: &'a [u8]) -> Result<(GgufFile, Self), LoadError> {
        let mut source = Source::of(bytes);
        let file = GgufFile::read(&mut source)?;
        let (no, count) = number(&file)?;
        if count > 1 {
            let what = format!(
                "the bytes of {} of a model: open its file, which has the others beside it",
                words((no, count))
            );
            return Err(entry_error(COUNT, LoadErrorKind::unsupported(what)));
        }
        Ok((file, Parts(vec![(None, source)])))
    }

    /// The data of part `part`.
    pub(super) fn get(&self, part: usize) -> Option<&Source<'a>> {
        self.0.get(part).map(|(_, source)| source)
    }

    /// Fills `to` from byte `at` of part `part` on.
    pub(super) fn read(&mut self, part: usize, at: u64, to: &mut [u8]) -> Result<(), LoadError> {
        let Some((path, source)) = self.0.get_mut(part) else {
            return Err(LoadErrorKind::missing(format!("part {part}")).into());
        };
        let read = source.seek(at).and_then(|()| source.read("the data", to));
        read.map_err(|e| match path {
            Some(path) => e.in_file(path),
            None => e,
        })
    }
}
