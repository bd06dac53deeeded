//! The memory of pages of keys and values: one pool for the sequences of one or several sessions on a model.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use super::ModelFolder;
use super::cache::{CacheMemory, CacheTensor, finish};
use super::error::GenerateError;
use super::io::DecoderIo;
use super::page_plan::{paged_info, plan_one};
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
    /// The application's memory, of at least [`PagePool::region_bytes`]; it is filled with zeros first. Without it the pool makes memory where the model's
    /// device reads it best. Sessions on other devices can share a region alone.
    pub region: Option<Arc<SharedRegion>>,
}

impl PageOptions {
    /// So many pages.
    pub fn new(pages: usize) -> Self {
        PageOptions { pages, rows: None, region: None }
    }
}

/// Pages of keys and values for all layers of a model. Each clone is the same pool.
///
/// Sequences that begin alike have full pages in common, those of other sessions on the same model too. A page that several
/// sequences have is copied before one of them writes it. Full pages of ended sequences are kept for prompts that begin with
/// their tokens until the memory is needed ([`Eviction`]).
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
    memory: Vec<CacheMemory>,
    pages: usize,
    rows: usize,
    model: String,
}

impl PagePool {
    /// Pages for the model of `folder`, which `session` runs.
    ///
    /// # Errors
    /// [`GenerateError::Pages`] for sizes that make no pool and a region that is too small, [`GenerateError::Unsupported`] for
    /// a graph whose cache is not in pages, and what the session says.
    pub fn new(
        folder: &ModelFolder,
        session: &Session,
        options: &PageOptions,
    ) -> Result<Self, GenerateError> {
        let (io, mut tensors, rows) = found(folder, session, options)?;
        let plan = plan_one(session, &io, &tensors, options.pages, rows)?;
        for tensor in &mut tensors {
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
        let shared = Shared { table, turn, tensors, memory, pages: options.pages, rows, model };
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
        let (_, tensors, rows) = found(folder, session, options)?;
        Ok(parts_of(&tensors, options.pages * rows).1)
    }

    /// Tokens of a page.
    pub fn page_tokens(&self) -> usize {
        self.shared.rows
    }

    /// Bytes of all pages.
    pub fn bytes(&self) -> u64 {
        let rows = self.shared.pages * self.shared.rows;
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
    ///
    /// # Errors
    /// [`GenerateError::Pages`] where they are not.
    pub(super) fn check(&self, folder: &ModelFolder) -> Result<(), GenerateError> {
        if folder.fingerprint()? == self.shared.model {
            return Ok(());
        }
        Err(GenerateError::Pages("its pages are of another model: make a pool for this one".to_owned()))
    }

    /// A pool for the same model with other pages.
    ///
    /// # Errors
    /// Memory ran out.
    pub(super) fn again(&self, session: &Session, pages: usize) -> Result<Self, GenerateError> {
        let (tensors, rows, model) =
            (self.shared.tensors.clone(), self.shared.rows, self.shared.model.clone());
        let memory = tensors.iter().map(|t| CacheMemory::new(session, t, pages, rows));
        let memory = memory.collect::<Result<Vec<_>, _>>()?;
        let (table, turn) = (Mutex::new(PageTable::new(pages, rows)), Mutex::new(()));
        Ok(PagePool { shared: Arc::new(Shared { table, turn, tensors, memory, pages, rows, model }) })
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
        self.shared.pages
    }

    /// The memory of each tensor, to be bound.
    ///
    /// # Errors
    /// What the device says.
    pub(super) fn bind(&self) -> Result<Vec<(&CacheTensor, Memory<'static>)>, GenerateError> {
        let Shared { tensors, memory, pages, rows, .. } = &*self.shared;
        let all = tensors.iter().zip(memory).map(|(tensor, memory)| {
            let info = paged_info(tensor, *pages, *rows)?;
            Ok((tensor, memory.bytes(0..info.bytes())?.shape(info.shape)))
        });
        all.collect()
    }

    /// Makes room for `more` tokens of a sequence, and copies what is shared.
    ///
    /// # Errors
    /// [`GenerateError::PagesFull`], and what the device says.
    pub(super) fn reserve(
        &self,
        session: &Session,
        sequence: PagedSequence,
        more: usize,
    ) -> Result<(), GenerateError> {
        let copies = self.table().reserve(sequence, more);
        let copies = copies.map_err(|full| GenerateError::PagesFull {
            text: full.sequence,
            missing: full.missing,
            pages: full.pages,
        })?;
        if copies.is_empty() {
            return Ok(());
        }
        let _turn = self.turn();
        for (tensor, memory) in self.shared.tensors.iter().zip(&self.shared.memory) {
            let each = tensor.bytes(self.shared.rows);
            let page = |page: u32| page as usize * each..(page as usize + 1) * each;
            let parts = copies.iter().map(|PageCopy { from, to }| (page(*from), page(*to)));
            memory.copy_to(memory, session, tensor, parts)?;
        }
        finish(session, &self.shared.tensors)
    }

    /// The memory of each tensor, and where in it the first `count` tokens of a sequence lie.
    pub(super) fn places(
        &self,
        sequence: PagedSequence,
        count: usize,
    ) -> Vec<(&CacheMemory, Vec<Range<usize>>)> {
        let (table, rows) = (self.table(), self.shared.rows);
        let pages = table.pages(sequence);
        let places = self.shared.tensors.iter().zip(&self.shared.memory).map(|(tensor, memory)| {
            let parts = pages.iter().enumerate().take(count.div_ceil(rows)).map(|(at, page)| {
                let first = tensor.bytes(*page as usize * rows);
                first..first + tensor.bytes(rows.min(count - at * rows))
            });
            (memory, parts.collect())
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
        let what = "the graph's cache is not in pages: export it with PagedAttention".to_owned();
        return Err(GenerateError::Unsupported(what));
    };
    let rows = options.rows.or(pages.rows).unwrap_or(ROWS);
    if let Some(declared) = pages.rows.filter(|declared| *declared != rows) {
        let problem = format!("pages of {rows} tokens are asked for, and the graph declares {declared}");
        return Err(GenerateError::Pages(problem));
    }
    let most = i32::MAX as usize;
    if options.pages == 0 || rows == 0 || options.pages.checked_mul(rows).is_none_or(|all| all > most) {
        let problem = format!("{} pages of {rows} tokens: expected 1 to {most} tokens", options.pages);
        return Err(GenerateError::Pages(problem));
    }
    for tensor in &tensors {
        paged_info(tensor, options.pages, rows)?;
    }
    Ok((io, tensors, rows))
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
