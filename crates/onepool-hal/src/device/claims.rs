//! Application memory that several contexts have imported: one of them at a time writes it.
//!
//! A context orders its own submissions. Two contexts know nothing of each other, and on native devices an
//! unordered access of both would be a data race; so every submission claims the addresses of imported
//! memory that it touches, in one table of the process, until it is known to be over.

use std::sync::Mutex;

use onepool_core::memory::range::ByteRange;
use onepool_core::sync::lock;

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
    /// From the first byte to the last.
    hull: ByteRange,
    /// By address.
    spans: Vec<Span>,
}

impl Held {
    /// The bytes that it holds and that `spans`, which are by address too, need.
    fn clash(&self, spans: &[Span]) -> Option<ByteRange> {
        let mut own = self.spans.iter().peekable();
        for (range, write) in spans {
            while own.next_if(|(held, _)| held.end <= range.start).is_some() {}
            let here = own.clone().take_while(|(held, _)| held.start < range.end);
            let mut rivals = here.filter(|(held, writes)| (*write || *writes) && held.overlaps(*range));
            if let Some((held, _)) = rivals.next() {
                return Some(*held);
            }
        }
        None
    }
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
        let mut spans = spans.to_vec();
        spans.sort_unstable_by_key(|(range, _)| (range.start, range.end));
        let hull = spans.iter().fold(spans[0].0, |hull, (range, _)| hull.union_hull(*range));
        let mut table = lock(&TABLE);
        let others = table.held.iter().filter(|held| held.context != context && held.hull.overlaps(hull));
        if let Some(range) = others.filter_map(|held| held.clash(&spans)).next() {
            return Err(range);
        }
        let claim = table.next;
        table.next += 1;
        table.held.push(Held { claim, context, hull, spans });
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

    #[test]
    fn pieces_between_the_pieces_of_another_are_free() {
        let at = |from: u64, to: u64| ByteRange::new(from + (1 << 61), to + (1 << 61));
        let even: Vec<Span> = (0..64).map(|i| (at(20 * i, 20 * i + 10), true)).collect();
        let odd: Vec<Span> = (0..64).rev().map(|i| (at(20 * i + 10, 20 * i + 20), true)).collect();
        let held = Claim::take(1, &even).unwrap();
        drop(Claim::take(2, &odd).unwrap());
        assert_eq!(
            Claim::take(2, &[(at(0, 0), true), (at(1011, 1012), true), (at(1001, 1002), false)]).unwrap_err(),
            at(1000, 1010)
        );
        drop(held);
        drop(Claim::take(2, &even).unwrap());
    }
}
