//! Which page has which tokens: allocation, sharing by reference count, copies on write, a cache of prefixes and its
//! eviction. Nothing here touches memory.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use onepool_core::files::hash::{Digest, Hash};

/// A page that no sequence has, kept because a prompt may begin with its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedPage {
    /// Its number.
    pub page: u32,
    /// Tokens of the prefix that ends with this page.
    pub prefix_tokens: usize,
    /// When a sequence last had it: larger is later.
    pub last_used: u64,
}

/// Decides which cached page is given up where a sequence needs one.
pub trait Eviction: Send {
    /// The place in `cached`, which is not empty, of the page to give up; `None` to keep them all: who needs
    /// a page then gets an error.
    fn choose(&mut self, cached: &[CachedPage]) -> Option<usize>;
}

/// Gives up the page that was used longest ago; of one prefix the last first.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastRecentlyUsed;

impl Eviction for LeastRecentlyUsed {
    fn choose(&mut self, cached: &[CachedPage]) -> Option<usize> {
        let order = |(_, page): &(usize, &CachedPage)| (page.last_used, usize::MAX - page.prefix_tokens);
        cached.iter().enumerate().min_by_key(order).map(|(at, _)| at)
    }
}

/// How the pages of a pool are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Pages that there are.
    pub pages: usize,
    /// Pages with nothing in them.
    pub free: usize,
    /// Pages of sequences.
    pub used: usize,
    /// Those of them that several sequences have.
    pub shared: usize,
    /// Pages kept for prompts that begin alike.
    pub cached: usize,
    /// Pages that were copied before a write, since the pool was made.
    pub copied: u64,
    /// Cached pages that were given up, since the pool was made.
    pub evicted: u64,
}

/// A sequence of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PagedSequence(pub(super) u64);

/// A page is to be copied before the other is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageCopy {
    pub(super) from: u32,
    pub(super) to: u32,
}

/// A sequence needs more pages than can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) sequence: u64,
    pub(super) missing: usize,
    pub(super) pages: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// Sequences that have it.
    holders: u32,
    /// What its tokens and all before them are known by, once it is full, with their number.
    prefix: Option<(Digest, usize)>,
    last_used: u64,
}

#[derive(Clone, Debug, Default)]
struct Sequence {
    pages: Vec<u32>,
    tokens: Vec<u32>,
    /// Of each full page, what it and those before are known by.
    prefixes: Vec<Digest>,
}

/// The pages of a pool and the sequences that have them.
pub(super) struct PageTable {
    /// Tokens of a page.
    rows: usize,
    pages: Vec<Page>,
    free: Vec<u32>,
    prefixes: HashMap<Digest, u32>,
    sequences: BTreeMap<u64, Sequence>,
    next: u64,
    clock: u64,
    copied: u64,
    evicted: u64,
    eviction: Box<dyn Eviction>,
}

impl fmt::Debug for PageTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageTable").field("rows", &self.rows).field("counts", &self.counts()).finish()
    }
}

impl PageTable {
    /// `pages` pages of `rows` tokens, at least one each.
    pub(super) fn new(pages: usize, rows: usize) -> Self {
        let count = u32::try_from(pages.max(1)).unwrap_or(u32::MAX);
        PageTable {
            rows: rows.max(1),
            pages: vec![Page::default(); count as usize],
            free: (0..count).rev().collect(),
            prefixes: HashMap::new(),
            sequences: BTreeMap::new(),
            next: 0,
            clock: 0,
            copied: 0,
            evicted: 0,
            eviction: Box::new(LeastRecentlyUsed),
        }
    }

    /// Makes it have so many pages, where it has fewer.
    pub(super) fn grow(&mut self, pages: usize) {
        let from = self.pages.len() as u32;
        let to = u32::try_from(pages).unwrap_or(u32::MAX).max(from);
        self.pages.resize(to as usize, Page::default());
        drop(self.free.splice(0..0, (from..to).rev()));
    }

    pub(super) fn set_eviction(&mut self, rule: Box<dyn Eviction>) {
        self.eviction = rule;
    }

    pub(super) fn counts(&self) -> PageCounts {
        let held = |least: u32| self.pages.iter().filter(|page| page.holders >= least).count();
        PageCounts {
            pages: self.pages.len(),
            free: self.free.len(),
            used: held(1),
            shared: held(2),
            cached: self.pages.len() - self.free.len() - held(1),
            copied: self.copied,
            evicted: self.evicted,
        }
    }

    /// A sequence with the longest prefix of `tokens`, in whole pages and without the last token, that there is where
    /// `shares`; gives the number of its tokens too.
    pub(super) fn begin(&mut self, tokens: &[u32], shares: bool) -> (PagedSequence, usize) {
        let mut sequence = Sequence::default();
        let most = if shares { tokens.len().saturating_sub(1) / self.rows } else { 0 };
        let mut before = None;
        for own in tokens.chunks(self.rows).take(most) {
            let prefix = prefix_of(before, own);
            let Some(&page) = self.prefixes.get(&prefix) else { break };
            self.pages[page as usize].holders += 1;
            sequence.pages.push(page);
            sequence.prefixes.push(prefix);
            sequence.tokens.extend(own);
            before = Some(prefix);
        }
        let (id, len) = (self.next, sequence.tokens.len());
        self.next += 1;
        self.sequences.insert(id, sequence);
        self.touch(PagedSequence(id));
        (PagedSequence(id), len)
    }

    /// Another sequence with the tokens of this one, on the same pages.
    pub(super) fn fork(&mut self, of: PagedSequence) -> PagedSequence {
        let sequence = self.sequences.get(&of.0).cloned().unwrap_or_default();
        for page in &sequence.pages {
            self.pages[*page as usize].holders += 1;
        }
        let id = self.next;
        self.next += 1;
        self.sequences.insert(id, sequence);
        PagedSequence(id)
    }

    /// Tokens of a sequence.
    #[cfg(test)]
    pub(super) fn len(&self, of: PagedSequence) -> usize {
        self.sequences.get(&of.0).map_or(0, |s| s.tokens.len())
    }

    /// Pages of a sequence, in the order of its tokens.
    pub(super) fn pages(&self, of: PagedSequence) -> &[u32] {
        self.sequences.get(&of.0).map_or(&[], |s| &s.pages)
    }

    /// Makes a sequence have pages for `more` tokens after its own that no other sequence has; what is to be copied before
    /// they are written.
    pub(super) fn reserve(&mut self, of: PagedSequence, more: usize) -> Result<Vec<PageCopy>, Full> {
        let Some(sequence) = self.sequences.get(&of.0) else { return Ok(Vec::new()) };
        let len = sequence.tokens.len();
        let wanted = (len + more).div_ceil(self.rows);
        // The pages that will be written and are there: the last one with tokens, where it is not full.
        let first = len / self.rows;
        let written: Vec<u32> =
            sequence.pages.iter().skip(first).take(wanted - first.min(wanted)).copied().collect();
        let copies: Vec<usize> =
            (0..written.len()).filter(|i| more > 0 && self.pages[written[*i] as usize].holders > 1).collect();
        let added = wanted.saturating_sub(sequence.pages.len());
        let needed = added + copies.len();
        let victims = self.victims(needed.saturating_sub(self.free.len()));
        let victims = victims.map_err(|missing| Full { sequence: of.0, missing, pages: self.pages.len() })?;
        let mut taken: Vec<u32> = (victims.len()..needed).filter_map(|_| self.free.pop()).collect();
        for page in victims {
            self.unname(page);
            self.evicted += 1;
            taken.push(page);
        }
        for page in &taken {
            self.pages[*page as usize].holders = 1;
        }
        let mut done = Vec::new();
        let mut taken = taken.into_iter();
        let Some(sequence) = self.sequences.get_mut(&of.0) else { return Ok(Vec::new()) };
        for (i, to) in copies.into_iter().zip(taken.by_ref()) {
            let from = std::mem::replace(&mut sequence.pages[first + i], to);
            self.pages[from as usize].holders -= 1;
            done.push(PageCopy { from, to });
        }
        sequence.pages.extend(taken);
        // A page that is written is no longer what it was known by.
        let written: Vec<u32> = sequence.pages.get(first..).unwrap_or_default().to_vec();
        if more > 0 {
            written.into_iter().for_each(|page| self.unname(page));
        }
        // The rows of a page begin with tokens where the sequence has some in it.
        done.retain(|_| len % self.rows != 0);
        self.copied += done.len() as u64;
        Ok(done)
    }

    /// Notes that `tokens` were written after those of a sequence, which has pages for them.
    pub(super) fn append(&mut self, of: PagedSequence, tokens: &[u32]) {
        let rows = self.rows;
        let Some(sequence) = self.sequences.get_mut(&of.0) else { return };
        sequence.tokens.extend(tokens);
        let mut named = Vec::new();
        while (sequence.prefixes.len() + 1) * rows <= sequence.tokens.len() {
            let at = sequence.prefixes.len();
            let own = &sequence.tokens[at * rows..(at + 1) * rows];
            let prefix = prefix_of(sequence.prefixes.last().copied(), own);
            sequence.prefixes.push(prefix);
            named.extend(sequence.pages.get(at).map(|page| (*page, prefix, (at + 1) * rows)));
        }
        for (page, prefix, tokens) in named {
            // Of equal pages the first is known.
            if let Entry::Vacant(place) = self.prefixes.entry(prefix) {
                place.insert(page);
                self.pages[page as usize].prefix = Some((prefix, tokens));
            }
        }
        self.touch(of);
    }

    /// Keeps the first `len` tokens of a sequence, and the pages that have them.
    pub(super) fn truncate(&mut self, of: PagedSequence, len: usize) {
        let rows = self.rows;
        let Some(sequence) = self.sequences.get_mut(&of.0) else { return };
        let len = len.min(sequence.tokens.len());
        sequence.tokens.truncate(len);
        sequence.prefixes.truncate(len / rows);
        let kept = len.div_ceil(rows).min(sequence.pages.len());
        let left = sequence.pages.split_off(kept);
        left.into_iter().for_each(|page| self.leave(page));
    }

    /// Ends a sequence. Its full pages are kept until they are needed.
    pub(super) fn end(&mut self, of: PagedSequence) {
        let Some(sequence) = self.sequences.remove(&of.0) else { return };
        sequence.pages.into_iter().for_each(|page| self.leave(page));
    }

    /// Gives up all cached pages.
    pub(super) fn forget(&mut self) {
        for page in 0..self.pages.len() as u32 {
            if self.pages[page as usize].holders == 0 {
                self.drop_cached(page);
            }
        }
    }

    fn touch(&mut self, of: PagedSequence) {
        self.clock += 1;
        for page in self.sequences.get(&of.0).map_or(&[][..], |s| &s.pages) {
            self.pages[*page as usize].last_used = self.clock;
        }
    }

    fn leave(&mut self, page: u32) {
        let own = &mut self.pages[page as usize];
        own.holders -= 1;
        if own.holders == 0 && own.prefix.is_none() {
            self.free.push(page);
        }
    }

    fn unname(&mut self, page: u32) {
        if let Some((prefix, _)) = self.pages[page as usize].prefix.take() {
            self.prefixes.remove(&prefix);
        }
    }

    fn drop_cached(&mut self, page: u32) {
        if self.pages[page as usize].prefix.is_some() {
            self.unname(page);
            self.free.push(page);
        }
    }

    /// So many cached pages to give up, or how many are missing. Nothing moves before all are chosen: a rule
    /// may keep them, or panic.
    fn victims(&mut self, count: usize) -> Result<Vec<u32>, usize> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut cached: Vec<CachedPage> = (0u32..)
            .zip(&self.pages)
            .filter(|(_, page)| page.holders == 0)
            .filter_map(|(at, page)| {
                let (_, prefix_tokens) = page.prefix?;
                Some(CachedPage { page: at, prefix_tokens, last_used: page.last_used })
            })
            .collect();
        if count > cached.len() {
            return Err(count - cached.len());
        }
        let mut chosen = Vec::new();
        while chosen.len() < count {
            let at = self.eviction.choose(&cached).filter(|at| *at < cached.len());
            let at = at.ok_or(count - chosen.len())?;
            chosen.push(cached.remove(at).page);
        }
        Ok(chosen)
    }
}

fn prefix_of(before: Option<Digest>, tokens: &[u32]) -> Digest {
    let mut hash = Hash::new();
    hash.put(before);
    hash.put(tokens);
    hash.digest()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a pool does, in the order of its making.
    #[derive(Clone, Debug)]
    enum Step {
        Begin { tokens: Vec<u32>, shares: bool },
        Append { of: usize, tokens: Vec<u32> },
        Fork { of: usize },
        Truncate { of: usize, len: usize },
        End { of: usize },
        Forget,
        Grow,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Few different tokens, so that prefixes are equal.
        let tokens = || prop::collection::vec(0u32..2, 0..14);
        let step = prop_oneof![
            3 => (tokens(), any::<bool>()).prop_map(|(tokens, shares)| Step::Begin { tokens, shares }),
            6 => (0usize..8, tokens()).prop_map(|(of, tokens)| Step::Append { of, tokens }),
            2 => (0usize..8).prop_map(|of| Step::Fork { of }),
            2 => (0usize..8, 0usize..30).prop_map(|(of, len)| Step::Truncate { of, len }),
            3 => (0usize..8).prop_map(|of| Step::End { of }),
            1 => Just(Step::Forget),
            1 => Just(Step::Grow),
        ];
        prop::collection::vec(step, 1..80)
    }

    /// A pool with memory, and what each sequence has without sharing.
    struct Model {
        table: PageTable,
        memory: Vec<u32>,
        sequences: Vec<(PagedSequence, Vec<u32>)>,
    }

    impl Model {
        fn write(&mut self, at: usize, tokens: &[u32]) -> bool {
            let (id, own) = &mut self.sequences[at];
            let before = self.table.counts();
            match self.table.reserve(*id, tokens.len()) {
                Err(full) => {
                    let counts = self.table.counts();
                    assert_eq!((full.sequence, full.pages), (id.0, before.pages));
                    assert_eq!((full.missing > 0, counts), (true, before));
                    false
                }
                Ok(copies) => {
                    let rows = self.table.rows;
                    for PageCopy { from, to } in copies {
                        let from = from as usize * rows;
                        self.memory.copy_within(from..from + rows, to as usize * rows);
                    }
                    for (i, token) in tokens.iter().enumerate() {
                        let j = own.len() + i;
                        let page = self.table.pages(*id)[j / rows] as usize;
                        // What no token has is written too: a run may be filled up.
                        self.memory[page * rows + j % rows] = *token;
                    }
                    own.extend(tokens);
                    self.table.append(*id, tokens);
                    true
                }
            }
        }

        fn check(&self) {
            let (table, rows) = (&self.table, self.table.rows);
            let mut holders = vec![0; table.pages.len()];
            for (id, tokens) in &self.sequences {
                let pages = table.pages(*id);
                assert_eq!(table.len(*id), tokens.len());
                assert!(pages.len() * rows >= tokens.len());
                let read = |j: usize| self.memory[pages[j / rows] as usize * rows + j % rows];
                assert_eq!((0..tokens.len()).map(read).collect::<Vec<_>>(), *tokens);
                let distinct: std::collections::BTreeSet<_> = pages.iter().collect();
                assert_eq!(distinct.len(), pages.len(), "a page twice in a sequence");
                pages.iter().for_each(|page| holders[*page as usize] += 1);
            }
            let free: std::collections::BTreeSet<_> = table.free.iter().copied().collect();
            assert_eq!(free.len(), table.free.len(), "a page is free twice");
            for (at, (page, held)) in table.pages.iter().zip(&holders).enumerate() {
                assert_eq!(page.holders, *held, "holders of page {at}");
                let is_cached = *held == 0 && page.prefix.is_some();
                assert_eq!(free.contains(&(at as u32)), *held == 0 && !is_cached, "page {at}");
                assert!(page.prefix.is_none_or(|(prefix, _)| table.prefixes[&prefix] == at as u32));
            }
            assert!(table.prefixes.iter().all(|(k, p)| table.pages[*p as usize].prefix.unwrap().0 == *k));
            let counts = table.counts();
            assert_eq!(counts.free + counts.used + counts.cached, counts.pages);
        }
    }

    proptest! {
        #[test]
        fn no_page_is_lost_or_in_two_places(steps in steps(), pages in 1usize..14, rows in 1usize..5) {
            let table = PageTable::new(pages, rows);
            let mut model = Model { table, memory: vec![9; pages * rows], sequences: Vec::new() };
            for step in steps {
                let count = model.sequences.len();
                match step {
                    Step::Begin { tokens, shares } => {
                        let (id, reused) = model.table.begin(&tokens, shares);
                        prop_assert!(reused % rows == 0 && reused < tokens.len().max(1));
                        prop_assert!(shares || reused == 0);
                        model.sequences.push((id, tokens[..reused].to_vec()));
                        let at = model.sequences.len() - 1;
                        model.write(at, &tokens[reused..]);
                    }
                    Step::Append { of, tokens } if count > 0 => {
                        model.write(of % count, &tokens);
                    }
                    Step::Fork { of } if count > 0 => {
                        let (id, tokens) = model.sequences[of % count].clone();
                        let id = model.table.fork(id);
                        model.sequences.push((id, tokens));
                    }
                    Step::Truncate { of, len } if count > 0 => {
                        let (id, tokens) = &mut model.sequences[of % count];
                        tokens.truncate(len);
                        model.table.truncate(*id, len);
                    }
                    Step::End { of } if count > 0 => {
                        let (id, _) = model.sequences.swap_remove(of % count);
                        model.table.end(id);
                        prop_assert_eq!(model.table.len(id), 0);
                    }
                    Step::Forget => model.table.forget(),
                    Step::Grow => {
                        let pages = model.table.counts().pages + 1;
                        model.table.grow(pages);
                        model.memory.resize(pages * rows, 9);
                    }
                    _ => {}
                }
                model.check();
            }
            let all = std::mem::take(&mut model.sequences);
            all.into_iter().for_each(|(id, _)| model.table.end(id));
            model.table.forget();
            let counts = model.table.counts();
            prop_assert_eq!((counts.free, counts.pages >= pages), (counts.pages, true));
        }
    }

    fn filled(table: &mut PageTable, tokens: &[u32]) -> (PagedSequence, usize) {
        let (id, reused) = table.begin(tokens, true);
        table.reserve(id, tokens.len() - reused).unwrap();
        table.append(id, &tokens[reused..]);
        (id, reused)
    }

    #[test]
    fn equal_prefixes_share_full_pages() {
        let mut table = PageTable::new(8, 4);
        let (first, reused) = filled(&mut table, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!((reused, table.counts().used), (0, 3));
        // The last token is computed, so its page is not shared.
        let (second, reused) = filled(&mut table, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!((reused, table.counts().used, table.counts().shared), (4, 4, 1));
        // Equal tokens after others are no prefix.
        let (_, reused) = filled(&mut table, &[5, 6, 7, 8, 9]);
        assert_eq!(reused, 0);
        table.end(first);
        table.end(second);
        assert_eq!(table.counts(), PageCounts { pages: 8, free: 4, used: 2, cached: 2, ..table.counts() });
        let (third, reused) = filled(&mut table, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(reused, 8);
        // A shared page that is not full is copied by who writes it first; the other then has it alone.
        let fork = table.fork(third);
        let copy = table.reserve(third, 1).unwrap();
        assert_eq!(copy.len(), 1);
        assert_eq!(table.pages(fork)[2], copy[0].from);
        assert!(table.reserve(fork, 1).unwrap().is_empty());
    }

    /// Keeps pages of a system prompt.
    struct Keep(usize);

    impl Eviction for Keep {
        fn choose(&mut self, cached: &[CachedPage]) -> Option<usize> {
            cached.iter().position(|page| page.prefix_tokens > self.0)
        }
    }

    #[test]
    fn cached_pages_are_given_up_by_the_rule() {
        let mut table = PageTable::new(4, 2);
        let (old, _) = filled(&mut table, &[1, 2, 3, 4]);
        let (new, _) = filled(&mut table, &[7, 8]);
        table.end(old);
        table.end(new);
        // The last page of the oldest prefix goes first, after the free one.
        let (id, _) = table.begin(&[5], true);
        table.reserve(id, 4).unwrap();
        assert_eq!(table.counts().evicted, 1);
        assert_eq!(filled(&mut table, &[1, 2, 9]).1, 2);
        let mut table = PageTable::new(2, 2);
        table.set_eviction(Box::new(Keep(2)));
        let (id, _) = filled(&mut table, &[1, 2, 3, 4]);
        table.end(id);
        let (id, _) = table.begin(&[5], true);
        let full = table.reserve(id, 3).unwrap_err();
        assert_eq!(full, Full { sequence: id.0, missing: 1, pages: 2 });
        assert!(table.reserve(id, 2).unwrap().is_empty());
    }

    #[test]
    fn a_refused_reservation_keeps_what_is_cached() {
        let mut table = PageTable::new(4, 2);
        let (old, _) = filled(&mut table, &[1, 2, 3, 4]);
        let (held, _) = filled(&mut table, &[7, 8]);
        table.end(old);
        let before = table.counts();
        assert_eq!((before.free, before.cached), (1, 2));
        let (id, _) = table.begin(&[5], true);
        let full = table.reserve(id, 8).unwrap_err();
        assert_eq!((full.missing, table.counts()), (1, before));
        // What there was a moment ago is still found.
        assert_eq!(filled(&mut table, &[1, 2, 3, 4, 5]).1, 4);
        table.end(held);
    }

    /// Chooses one page and panics at the second.
    struct Panics(bool);

    impl Eviction for Panics {
        fn choose(&mut self, _: &[CachedPage]) -> Option<usize> {
            assert!(!std::mem::replace(&mut self.0, true), "the application's rule panics");
            Some(0)
        }
    }

    #[test]
    fn a_rule_that_panics_loses_no_page() {
        let mut table = PageTable::new(4, 2);
        let (old, _) = filled(&mut table, &[1, 2, 3, 4, 5, 6]);
        table.end(old);
        table.set_eviction(Box::new(Panics(false)));
        let before = table.counts();
        let (id, _) = table.begin(&[5], true);
        let reserved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| table.reserve(id, 6)));
        assert!(reserved.is_err());
        assert_eq!(table.counts(), before);
        table.set_eviction(Box::new(LeastRecentlyUsed));
        assert!(table.reserve(id, 8).unwrap().is_empty());
        assert_eq!(table.counts().used, 4);
    }
}
