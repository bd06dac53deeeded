//! The memory of pages of keys and values: one pool for the sequences of one or several sessions on a model.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use super::ModelFolder;
use super::cache::{CacheMemory, CacheTensor, finish};
use super::error::GenerateError;
use super::io::DecoderIo;
use super::page_plan::{paged_info, plan_one};
use super::paged_graph::{in_pages, not_in_pages};
use super::pages::{Eviction, PageCopy, PageCounts, PageTable, PagedSequence};
use crate::memory::host::SharedRegion;
use crate::session::{Memory, Session};
use crate::sync::lock;

/// Tokens of a page where nothing else is asked for.
const ROWS: usize = 16;

/// Between the parts of tensors in a region.
const PART: usize = 4096;

/// How a pool is made.
#[derive(Clone, Debug)]
pub struct PageOptions {
    /// Pages.
    pub pages: usize,
    /// Tokens of a page. Without it as many as the graph declares, else 16.
    pub rows: Option<usize>,
    /// The application's memory, of at least [`PagePool::region_bytes`]; it is filled with zeros first.
    /// Without it the pool makes memory where the model's device reads it best. Sessions on other devices can
    /// share a region alone.
    pub region: Option<Arc<SharedRegion>>,
}

impl PageOptions {
    /// So many pages.
    pub fn new(pages: usize) -> Self {
        PageOptions { pages, rows: None, region: None }
    }
}

/// The pages of a generator.
#[derive(Clone, Debug)]
pub enum Pages {
    /// A pool that is made for it, and does not grow.
    New(PageOptions),
    /// Those that others have too.
    Of(PagePool),
}

/// Pages of keys and values for all layers of a model. Each clone is the same pool.
///
/// Sequences that begin alike have full pages in common, those of other sessions on the same model too. A
/// page that several sequences have is copied before one of them writes it. Full pages of ended sequences are
/// kept for prompts that begin with their tokens until the memory is needed ([`Eviction`]).
#[derive(Clone, Debug)]
pub struct PagePool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    table: Mutex<PageTable>,
    /// Held during a run: sessions that share the memory take turns.
    turn: Mutex<()>,
    tensors: Vec<CacheTensor>,
    /// Another one where the pool has grown.
    memory: Mutex<Arc<PageMemory>>,
    rows: usize,
    model: String,
}

/// The memory of all pages, by tensor.
#[derive(Debug)]
pub(super) struct PageMemory {
    pages: usize,
    tensors: Vec<CacheMemory>,
}

impl PagePool {
    /// Pages for the model of `folder`, which `session` runs.
    ///
    /// # Errors
    /// [`GenerateError::Pages`] for sizes that make no pool and a region that is too small,
    /// [`GenerateError::Unsupported`] for a graph that can have no pages, which says why, and what the session says.
    pub fn new(
        folder: &ModelFolder,
        session: &Session,
        options: &PageOptions,
    ) -> Result<Self, GenerateError> {
        let paged = in_pages(session, &folder.config)?;
        let session = paged.as_ref().unwrap_or(session);
        let (io, mut tensors, rows) = found(folder, session, options)?;
        let plan = plan_one(session, &io, &tensors, options.pages, rows)?;
        // A region stays in the process's memory, whatever device reads it.
        for tensor in tensors.iter_mut().filter(|_| options.region.is_none()) {
            tensor.device = super::fixed::only_device(&plan, tensor);
        }
        let memory = match &options.region {
            None => {
                let all = tensors.iter().map(|t| CacheMemory::new(session, t, options.pages, rows));
                all.collect::<Result<Vec<_>, _>>()?
            }
            Some(region) => {
                let (needed, found) = (parts_of(&tensors, options.pages * rows).1, region.read()?.len());
                if needed > found {
                    let problem = format!(
                        "{} pages of {rows} tokens take {needed} bytes, and the region has {found}",
                        options.pages
                    );
                    return Err(GenerateError::Pages(problem));
                }
                let parts = parts_of(&tensors, options.pages * rows).0;
                let all =
                    parts.iter().map(|part| CacheMemory::in_region(region, part.start, part.len(), rows));
                all.collect::<Result<Vec<_>, _>>()?
            }
        };
        let table = Mutex::new(PageTable::new(options.pages, rows));
        let (turn, model) = (Mutex::new(()), folder.fingerprint()?);
        let memory = Mutex::new(Arc::new(PageMemory { pages: options.pages, tensors: memory }));
        let shared = Shared { table, turn, tensors, memory, rows, model };
        Ok(PagePool { shared: Arc::new(shared) })
    }

    /// Bytes that [`PageOptions::region`] needs.
    ///
    /// # Errors
    /// As [`PagePool::new`].
    pub fn region_bytes(
        folder: &ModelFolder,
        session: &Session,
        options: &PageOptions,
    ) -> Result<usize, GenerateError> {
        let paged = in_pages(session, &folder.config)?;
        let (_, tensors, rows) = found(folder, paged.as_ref().unwrap_or(session), options)?;
        Ok(parts_of(&tensors, options.pages * rows).1)
    }

    /// Tokens of a page.
    pub fn page_tokens(&self) -> usize {
        self.shared.rows
    }

    /// Bytes that a region for as many pages needs, as [`PagePool::region_bytes`].
    pub fn bytes_in_region(&self) -> usize {
        parts_of(&self.shared.tensors, self.pages() * self.shared.rows).1
    }

    /// Bytes of all pages.
    pub fn bytes(&self) -> u64 {
        let rows = self.pages() * self.shared.rows;
        self.shared.tensors.iter().map(|tensor| tensor.bytes(rows) as u64).sum()
    }

    /// How the pages are used.
    pub fn counts(&self) -> PageCounts {
        self.table().counts()
    }

    /// Lets `rule` choose the cached page that is given up where a sequence needs one; without it
    /// [`LeastRecentlyUsed`](super::LeastRecentlyUsed) does. The rule must not call the pool.
    pub fn evict_by(&self, rule: impl Eviction + 'static) {
        self.table().set_eviction(Box::new(rule));
    }

    /// Gives up all cached pages.
    pub fn clear_cached(&self) {
        self.table().forget();
    }

    /// Whether the pages are for the model of `folder`.
    pub(super) fn check(&self, folder: &ModelFolder) -> Result<(), GenerateError> {
        if folder.fingerprint()? == self.shared.model {
            return Ok(());
        }
        Err(GenerateError::Pages("its pages are of another model: make a pool for this one".to_owned()))
    }

    /// Makes the pool have at least so many pages, in memory of its own, with all that is in it. Runs that
    /// are bound to the memory before are to be bound anew.
    pub(super) fn grow(&self, session: &Session, pages: usize) -> Result<(), GenerateError> {
        let _turn = self.turn();
        let (old, rows) = (self.memory(), self.shared.rows);
        if pages <= old.pages {
            return Ok(());
        }
        check_size(pages, rows)?;
        let mut grown = Vec::new();
        for (tensor, memory) in self.shared.tensors.iter().zip(&old.tensors) {
            let new = CacheMemory::new(session, tensor, pages, rows)?;
            let kept = 0..tensor.bytes(old.pages * rows);
            memory.copy_to(&new, [(kept.clone(), kept)])?;
            grown.push(new);
        }
        finish(&grown)?;
        self.table().grow(pages);
        *lock(&self.shared.memory) = Arc::new(PageMemory { pages, tensors: grown });
        Ok(())
    }

    /// What is bound now.
    pub(super) fn memory(&self) -> Arc<PageMemory> {
        Arc::clone(&lock(&self.shared.memory))
    }

    pub(super) fn table(&self) -> MutexGuard<'_, PageTable> {
        lock(&self.shared.table)
    }

    /// Keeps other sessions from running on the pages.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.shared.turn)
    }

    pub(super) fn tensors(&self) -> &[CacheTensor] {
        &self.shared.tensors
    }

    pub(super) fn pages(&self) -> usize {
        self.memory().pages
    }

    /// `memory`, of each tensor, to be bound.
    pub(super) fn bind(
        &self,
        memory: &PageMemory,
    ) -> Result<Vec<(&CacheTensor, Memory<'static>)>, GenerateError> {
        let Shared { tensors, rows, .. } = &*self.shared;
        let all = tensors.iter().zip(&memory.tensors).map(|(tensor, part)| {
            let info = paged_info(tensor, memory.pages, *rows)?;
            Ok((tensor, part.bytes(0..info.bytes())?.shape(info.shape)))
        });
        all.collect()
    }

    /// Makes room for `more` tokens of a sequence, and copies what is shared.
    pub(super) fn reserve(&self, sequence: PagedSequence, more: usize) -> Result<(), GenerateError> {
        // Until the copies are made no one else writes the pages that this sequence has let go.
        let _turn = self.turn();
        let copies = self.table().reserve(sequence, more);
        let copies = copies.map_err(|full| GenerateError::PagesFull {
            text: full.sequence,
            missing: full.missing,
            pages: full.pages,
        })?;
        if copies.is_empty() {
            return Ok(());
        }
        let memory = self.memory();
        for (tensor, memory) in self.shared.tensors.iter().zip(&memory.tensors) {
            let each = tensor.bytes(self.shared.rows);
            let page = |page: u32| page as usize * each..(page as usize + 1) * each;
            let parts = copies.iter().map(|PageCopy { from, to }| (page(*from), page(*to)));
            memory.copy_to(memory, parts)?;
        }
        finish(&memory.tensors)
    }

    /// The memory of each tensor, and where in it the first `count` tokens of a sequence lie.
    pub(super) fn places(
        &self,
        sequence: PagedSequence,
        count: usize,
    ) -> Vec<(CacheMemory, Vec<Range<usize>>)> {
        let (table, memory, rows) = (self.table(), self.memory(), self.shared.rows);
        let pages = table.pages(sequence);
        let places = self.shared.tensors.iter().zip(&memory.tensors).map(|(tensor, memory)| {
            let parts = pages.iter().enumerate().take(count.div_ceil(rows)).map(|(at, page)| {
                let first = tensor.bytes(*page as usize * rows);
                first..first + tensor.bytes(rows.min(count - at * rows))
            });
            (memory.clone(), parts.collect())
        });
        places.collect()
    }
}

/// What the graph has, and tokens of a page.
fn found(
    folder: &ModelFolder,
    session: &Session,
    options: &PageOptions,
) -> Result<(DecoderIo, Vec<CacheTensor>, usize), GenerateError> {
    let (io, tensors) = DecoderIo::find(session, &folder.config)?;
    let Some(pages) = &io.pages else {
        return Err(not_in_pages());
    };
    let rows = options.rows.or(pages.rows).unwrap_or(ROWS);
    if let Some(declared) = pages.rows.filter(|declared| *declared != rows) {
        let problem = format!("pages of {rows} tokens are asked for, and the graph declares {declared}");
        return Err(GenerateError::Pages(problem));
    }
    check_size(options.pages, rows)?;
    for tensor in &tensors {
        paged_info(tensor, options.pages, rows)?;
    }
    Ok((io, tensors, rows))
}

fn check_size(pages: usize, rows: usize) -> Result<(), GenerateError> {
    let most = i32::MAX as usize;
    match pages.checked_mul(rows).is_some_and(|all| (1..=most).contains(&all)) {
        true => Ok(()),
        false => {
            let problem = format!("{pages} pages of {rows} tokens: expected 1 to {most} tokens");
            Err(GenerateError::Pages(problem))
        }
    }
}

/// Where the tensors lie in a region, and its bytes.
fn parts_of(tensors: &[CacheTensor], rows: usize) -> (Vec<Range<usize>>, usize) {
    let mut end = 0usize;
    let parts = tensors.iter().map(|tensor| {
        let start = end.next_multiple_of(PART);
        end = start + tensor.bytes(rows);
        start..end
    });
    (parts.collect(), end)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::*;

    /// Between them the source may be given up and written by another session.
    #[test]
    fn a_page_is_let_go_and_copied_in_one_turn() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny_llm/paged");
        let folder = ModelFolder::open(folder).unwrap();
        let session = Session::builder().model(folder.graph()).device("cpu").build().unwrap();
        let options = PageOptions { rows: Some(4), ..PageOptions::new(4) };
        let pool = PagePool::new(&folder, &session, &options).unwrap();
        let one = pool.table().begin(&[], false).0;
        pool.reserve(one, 2).unwrap();
        pool.table().append(one, &[7, 8]);
        let two = pool.table().fork(one);
        let page = pool.table().pages(one)[0];
        let turn = pool.turn();
        std::thread::scope(|scope| {
            let reserving = scope.spawn(|| pool.reserve(two, 1));
            let until = Instant::now() + Duration::from_millis(300);
            while Instant::now() < until {
                assert_eq!(pool.table().pages(two), [page], "another session has the turn");
                std::thread::yield_now();
            }
            drop(turn);
            reserving.join().unwrap().unwrap();
        });
        assert_ne!(pool.table().pages(two), [page]);
        assert_eq!(pool.counts().copied, 1);
    }
}
