//! Application memory that several contexts have imported: one of them at a time writes it.
//!
//! A context orders its own submissions. Two contexts know nothing of each other, and on native devices an
//! unordered access of both would be a data race; so every submission claims the addresses of imported
//! memory that it touches, in one table of the process, until it is known to be over.

use std::sync::Mutex;

use super::core::lock;
use crate::memory::range::ByteRange;

/// Addresses in the process, and whether they are written.
pub(super) type Span = (ByteRange, bool);

static TABLE: Mutex<Table> = Mutex::new(Table { next: 0, held: Vec::new() });

#[derive(Debug)]
struct Table {
    next: u64,
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    claim: u64,
    context: usize,
    span: Span,
}

/// The claims of one submission; dropping it gives them back.
#[derive(Debug)]
pub(super) struct Claim(Option<u64>);

impl Claim {
    /// Claims the spans for a context, or gives the addresses that another context holds.
    pub(super) fn take(context: usize, spans: &[Span]) -> Result<Claim, ByteRange> {
        if spans.is_empty() {
            return Ok(Claim(None));
        }
        let mut table = lock(&TABLE);
        let rival = spans.iter().find_map(|(range, write)| {
            let clashes = |held: &&Held| {
                held.context != context && (*write || held.span.1) && held.span.0.overlaps(*range)
            };
            table.held.iter().find(clashes).map(|held| held.span.0)
        });
        if let Some(range) = rival {
            return Err(range);
        }
        let claim = table.next;
        table.next += 1;
        table.held.extend(spans.iter().map(|span| Held { claim, context, span: *span }));
        Ok(Claim(Some(claim)))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(claim) = self.0 {
            lock(&TABLE).held.retain(|held| held.claim != claim);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_exclude_each_other_where_one_writes() {
        // Addresses that no test imports.
        let at = |from: u64, to: u64| ByteRange::new(from + (1 << 60), to + (1 << 60));
        let read = Claim::take(1, &[(at(0, 10), false)]).unwrap();
        let both = Claim::take(2, &[(at(5, 15), false), (at(20, 30), true)]).unwrap();
        assert_eq!(Claim::take(2, &[(at(9, 12), true)]).unwrap_err(), at(0, 10));
        assert_eq!(Claim::take(3, &[(at(40, 50), true), (at(29, 31), false)]).unwrap_err(), at(20, 30));
        // Nothing was taken by what was refused; one's own claims are no matter; an empty list takes none.
        drop(Claim::take(1, &[(at(40, 50), true)]).unwrap());
        drop(Claim::take(2, &[(at(20, 30), true)]).unwrap());
        drop(Claim::take(3, &[]).unwrap());
        drop(read);
        drop(Claim::take(2, &[(at(9, 12), true)]).unwrap());
        assert!(Claim::take(3, &[(at(5, 6), true)]).is_err());
        drop(both);
        drop(Claim::take(3, &[(at(5, 6), true)]).unwrap());
    }
}
