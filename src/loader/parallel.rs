//! Pieces of files, read by several threads straight to where they stay.

use std::fs::File;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::error::{ErrorLocation, LoadError, LoadErrorKind};
use crate::memory::os;
use crate::sync::{into_inner, lock};

/// Bytes of one read: enough for a disk, few enough for threads to end together.
const STEP: usize = 4 << 20;
/// Fewer bytes are not worth threads.
const FEW: usize = 2 * STEP;
/// More threads than this wait for memory or the disk.
const MOST_THREADS: usize = 8;

/// Bytes of a file from `at` on, and where they go.
pub(super) struct Piece<'a> {
    pub(super) file: &'a Arc<File>,
    pub(super) at: u64,
    pub(super) to: &'a mut [u8],
}

/// Reads all pieces; `report` hears on the caller's thread how many bytes are there, which are returned.
pub(super) fn read_all(pieces: Vec<Piece<'_>>, report: &dyn Fn(u64)) -> Result<u64, LoadError> {
    let total = pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.to.len()));
    let mut steps = Vec::new();
    for piece in pieces {
        let mut at = piece.at;
        for to in piece.to.chunks_mut(STEP) {
            let bytes = to.len() as u64;
            steps.push(Piece { file: piece.file, at, to });
            at = at.saturating_add(bytes);
        }
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = if total < FEW { 1 } else { cores.min(MOST_THREADS).min(steps.len()) };
    let (steps, failed) = (Mutex::new(steps.into_iter()), Mutex::new(None));
    let done = AtomicU64::new(0);
    let work = |report: &dyn Fn(u64)| {
        loop {
            // The lock goes before the read begins.
            let step = lock(&steps).next();
            let Some(step) = step.filter(|_| lock(&failed).is_none()) else { return };
            let bytes = step.to.len() as u64;
            match fill(step) {
                Ok(()) => report(done.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes)),
                Err(error) => *lock(&failed) = Some(error),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // A thread that cannot be had leaves its share to the others.
            let _ = thread::Builder::new().spawn_scoped(scope, || work(&|_| {}));
        }
        work(report);
    });
    match into_inner(failed) {
        Some(error) => Err(error),
        None => Ok(total as u64),
    }
}

fn fill(step: Piece<'_>) -> Result<(), LoadError> {
    let Piece { file, mut at, mut to } = step;
    while !to.is_empty() {
        match os::read_at(file, to, at) {
            Ok(0) => {
                let (what, needed) = ("tensor data", to.len() as u64);
                return Err(
                    LoadErrorKind::Truncated { what, needed, left: 0 }.at(ErrorLocation::ByteOffset(at))
                );
            }
            Ok(read) => {
                to = to.get_mut(read..).unwrap_or_default();
                at = at.saturating_add(read as u64);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(source) => {
                let kind = LoadErrorKind::Io { action: "read the file", source };
                return Err(kind.at(ErrorLocation::ByteOffset(at)));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::Write;

    use super::*;

    #[test]
    fn pieces_are_read_to_where_they_go_and_a_file_that_ends_is_an_error() {
        let bytes: Vec<u8> = (0..5 * STEP + 77).map(|i| (i % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let file = Arc::new(file);
        let (mut first, mut second) = (vec![0; 3 * STEP + 5], vec![0; 100]);
        let heard = RefCell::new(Vec::new());
        let pieces = vec![
            Piece { file: &file, at: 2 * STEP as u64, to: &mut first },
            Piece { file: &file, at: 7, to: &mut second },
        ];
        let read = read_all(pieces, &|done| heard.borrow_mut().push(done)).unwrap();
        assert_eq!((first.as_slice(), second.as_slice()), (&bytes[2 * STEP..5 * STEP + 5], &bytes[7..107]));
        assert_eq!(read, 3 * STEP as u64 + 105);
        assert!(heard.borrow().is_sorted() && heard.borrow().iter().all(|done| *done <= read));
        let piece = Piece { file: &file, at: 4 * STEP as u64, to: &mut first };
        let error = read_all(vec![piece], &|_| {}).unwrap_err();
        assert!(matches!(error.kind(), LoadErrorKind::Truncated { .. }), "{error}");
        assert_eq!(*error.at(), ErrorLocation::ByteOffset(bytes.len() as u64));
    }
}
