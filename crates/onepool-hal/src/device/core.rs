//! What everything of one context shares: the backend, the tables, and one lock.
//!
//! Lock order: `imports`, then `state`, then `dma_bufs` or the host view of a memory. Nothing that may
//! destroy an object (a lease, a memory, a kernel, a prepared recording) is dropped under `state`, because
//! its destruction takes the lock.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::buffer::{Lease, Memory};
use super::claims::{Claim, Span};
use super::costs::CostReport;
use super::error::{Problem, UsageError, busy};
use super::kernel::{KernelInner, KernelKey};
use super::queue::{PreparedInner, QueueInner};
use super::traffic::Counters;
use crate::backend::{
    ContextBackend, ContextDesc, DeviceError, DeviceInfo, DeviceKind, QueueBackend, Timepoint,
};
use crate::recording::{BufferId, BufferRange, DeviceKernelId, Recording};
use onepool_core::memory::budget::{
    Budget, BudgetExceeded, BudgetKind, BudgetLimits, HeapBudget, KernelMemory, Pool, Reservation,
};
use onepool_core::memory::coherency::{Access, Left, ResourceId, Touch};
use onepool_core::memory::dma_buf::{DmaBuf, Turn};
use onepool_core::memory::host::{DeviceLease, SharedRegion};
use onepool_core::memory::import::{CostSource, ImportMap};
use onepool_core::memory::model::Heap;
use onepool_core::memory::os::{OsError, physical_memory};
use onepool_core::memory::range::ByteRange;
use onepool_core::sync::{lock, wait_while};

/// The shared part of a context.
pub(super) struct Core {
    pub(super) backend: Arc<dyn ContextBackend>,
    pub(super) info: DeviceInfo,
    pub(super) budget: Budget,
    pub(super) cost_source: CostSource,
    pub(super) cache_dir: Option<PathBuf>,
    pub(super) costs: OnceLock<CostReport>,
    /// What driver and kernel said last of memory, and when.
    said: Mutex<Option<(Instant, Arc<Said>)>>,
    /// The device was lost, as a call has told.
    lost: AtomicBool,
    pub(super) imports: Mutex<ImportMap<Arc<Memory>>>,
    pub(super) kernels: Mutex<HashMap<KernelKey, Weak<KernelInner>>>,
    pub(super) dma_bufs: Mutex<HashMap<BufferId, Arc<DmaBuf>>>,
    /// What the host wrote and could not be flushed: before the next submission it must be.
    unflushed: Mutex<Vec<BufferRange>>,
    pub(super) traffic: Counters,
    state: Mutex<State>,
    /// Told whenever a reservation ends.
    released: Condvar,
}

/// What driver and kernel say of memory that is in use.
#[derive(Debug)]
struct Said {
    heaps: Vec<HeapBudget>,
    kernel: Option<KernelMemory>,
}

/// Everything that changes with submissions.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) memories: HashMap<BufferId, Weak<Memory>>,
    /// By address in the process.
    pub(super) mapped: BTreeMap<(usize, BufferId), Weak<Memory>>,
    pub(super) kernels: HashMap<DeviceKernelId, Weak<KernelInner>>,
    pub(super) queues: Vec<Option<Lane>>,
    pub(super) reserved: Vec<Reserved>,
    pub(super) holds: Vec<HostHold>,
    /// Recordings in command buffers of the application's, by number: whether they run only it knows.
    pub(super) inlays: Vec<(u64, Arc<Work>)>,
    /// Of holds, reservations and inlays.
    pub(super) next_hold: u64,
    /// Submissions so far, of all queues.
    pub(super) submissions: u64,
}

/// A recording of which some pieces are not submitted yet: to everyone but the thread that submits them it is a
/// submission that is not over.
#[derive(Debug)]
pub(super) struct Reserved {
    pub(super) id: u64,
    pub(super) queue: usize,
    /// Who submits it, once that began: no one waits for oneself.
    pub(super) thread: Option<ThreadId>,
    /// Its point is never reached.
    pub(super) flight: Flight,
}

/// One queue's submissions that may be unfinished, oldest first.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) backend: Arc<dyn QueueBackend>,
    pub(super) queue: Weak<QueueInner>,
    pub(super) flights: VecDeque<Flight>,
}

/// A submission and what it keeps alive.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) point: Timepoint,
    pub(super) payload: Payload,
    pub(super) regions: Vec<DeviceLease>,
    pub(super) claim: Option<Claim>,
    /// Whether what the recording wrote arrives at the host with it: it is all of the recording, or its last piece.
    pub(super) ends: bool,
    /// When the host gives up waiting for it: it waits for semaphores that others signal.
    pub(super) deadline: Option<Instant>,
}

#[derive(Clone, Debug)]
pub(super) enum Payload {
    Prepared(Arc<PreparedInner>),
    Once(Arc<Work>),
}

impl Payload {
    pub(super) fn work(&self) -> &Work {
        match self {
            Payload::Prepared(prepared) => &prepared.work,
            Payload::Once(work) => work,
        }
    }
}

impl Flight {
    pub(super) fn work(&self) -> &Work {
        self.payload.work()
    }

    /// Whether it stands for a reservation, not for a submission.
    pub(super) fn is_reserved(&self) -> bool {
        self.point == Timepoint(u64::MAX)
    }
}

/// A checked recording: what it touches and what it needs.
#[derive(Debug, Default)]
pub(super) struct Work {
    #[allow(dead_code, reason = "keeps the memory alive")]
    pub(super) leases: Vec<Arc<Lease>>,
    #[allow(dead_code, reason = "keeps the kernels alive")]
    pub(super) kernels: Vec<Arc<KernelInner>>,
    /// Disjoint per resource.
    pub(super) touches: Vec<Touch>,
    /// Leases that a scope may revoke.
    pub(super) scoped: Vec<Arc<Lease>>,
    /// Owned regions it touches, with the bytes and whether they are written.
    pub(super) regions: Vec<(Arc<SharedRegion>, ByteRange, bool)>,
    /// Addresses of imported memory it touches.
    pub(super) claims: Vec<Span>,
    /// What it leaves for the host to do, by memory.
    pub(super) left: Vec<(Arc<Memory>, Left)>,
    pub(super) flush: Vec<BufferRange>,
    pub(super) invalidate: Vec<BufferRange>,
    /// Bytes that its commands copy.
    pub(super) copied: u64,
    /// What it does not write of images that are written whole, in words.
    pub(super) clears: Vec<BufferRange>,
}

/// Bytes that a host guard holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostHold {
    pub(super) id: u64,
    pub(super) resource: ResourceId,
    pub(super) range: ByteRange,
    pub(super) write: bool,
}

/// The name under which the trackers know a buffer: unique among the live ones.
pub(super) fn resource_of(buffer: BufferId) -> ResourceId {
    ResourceId(buffer.index)
}

impl Work {
    /// Has the first recording of the work take over memory of the application's.
    pub(super) fn acquire(&self, first: &mut Recording) {
        first.enters = self.externals();
        first.clears.clone_from(&self.clears);
    }

    /// Has the last recording of the work give it back.
    pub(super) fn release(&self, last: &mut Recording) {
        last.leaves = self.externals();
    }

    /// Buffers that stand for memory of the application's.
    fn externals(&self) -> Vec<BufferId> {
        let memories = self.leases.iter().map(|lease| &lease.memory);
        let mut externals: Vec<_> =
            memories.filter(|m| m.acquisition.is_some()).map(|memory| memory.id).collect();
        externals.sort_unstable();
        externals.dedup();
        externals
    }
}

impl Core {
    pub(super) fn new(backend: Arc<dyn ContextBackend>, desc: &ContextDesc) -> Core {
        let info = backend.info().clone();
        let budget = budget_of(&*backend, &info);
        Core {
            backend,
            info,
            budget,
            cost_source: desc.costs.clone(),
            cache_dir: desc.cache_dir.clone(),
            costs: OnceLock::new(),
            said: Mutex::default(),
            lost: AtomicBool::new(false),
            imports: Mutex::default(),
            kernels: Mutex::default(),
            dma_bufs: Mutex::default(),
            unflushed: Mutex::default(),
            traffic: Counters::default(),
            state: Mutex::default(),
            released: Condvar::new(),
        }
    }

    /// Reserves bytes of a heap for an import, which a driver counts without a word and fails only at a submission.
    pub(super) fn reserve_import(&self, bytes: u64) -> Result<Reservation, BudgetExceeded> {
        let heap = self.info.memory.import_heap().unwrap_or_default();
        let reservation = self.budget.reserve(BudgetKind::Import, heap, bytes)?;
        let said = self.said();
        // Where the kernel tells, what the driver says is of heaps that it made up.
        let (pool, said) = match (said.kernel, said.heaps.get(heap as usize)) {
            (Some(kernel), _) => (Pool::Imports, kernel.mapped),
            (None, Some(said)) => (Pool::Heap(heap), *said),
            (None, None) => return Ok(reservation),
        };
        if bytes > said.available() {
            return Err(BudgetExceeded { pool, asked: bytes, live: said.usage, limit: said.budget });
        }
        Ok(reservation)
    }

    /// Whether an allocation fits in one of `heaps` together with what lives. A driver may hand out more than there is,
    /// and lose the device at the next submission.
    pub(super) fn has_room(&self, heaps: &[u32], bytes: u64) -> bool {
        let in_heap = |heap: &u32| self.budget.available(*heap) >= bytes;
        heaps.iter().any(in_heap) && self.said().kernel.is_none_or(|kernel| kernel.available() >= bytes)
    }

    /// What driver and kernel say, asked now and then: asking is a call into the system.
    fn said(&self) -> Arc<Said> {
        const FRESH: Duration = Duration::from_millis(20);
        let mut last = lock(&self.said);
        let is_fresh = |(when, said): &&(Instant, Arc<Said>)| {
            said.heaps.is_empty() && said.kernel.is_none() || when.elapsed() < FRESH
        };
        if let Some((_, said)) = last.as_ref().filter(is_fresh) {
            return Arc::clone(said);
        }
        let (heaps, kernel) = (self.backend.heap_budgets(), self.backend.kernel_memory());
        let said = Arc::new(Said { heaps, kernel });
        *last = Some((Instant::now(), Arc::clone(&said)));
        said
    }

    /// Notes that the device is lost. Where a submission tells it first, imports may have been too many.
    pub(super) fn note_loss(&self, error: &DeviceError, at_submit: bool) {
        if !matches!(error, DeviceError::Lost { .. }) || self.lost.swap(true, Ordering::Relaxed) || !at_submit
        {
            return;
        }
        // A software device maps nothing.
        if self.info.kind != DeviceKind::Cpu
            && let Some(most) = self.budget.lost_at_submit()
        {
            tracing::warn!(
                "{} was lost at a submission with imports: from now on it imports at most {most} bytes at once",
                self.info.name
            );
        }
    }

    /// Makes what the host wrote visible to later submissions.
    pub(super) fn flush(&self, ranges: &[BufferRange]) -> Result<(), DeviceError> {
        self.backend.flush(ranges)?;
        self.sync_dma_bufs(ranges, Turn::Ends)
    }

    /// As [`Core::flush`], where no one can be told of an error: the next submission is.
    pub(super) fn flush_or_keep(&self, range: BufferRange) {
        if self.flush(&[range]).is_err() {
            lock(&self.unflushed).push(range);
        }
    }

    /// Flushes what could not be flushed before, as far as its memory is still there.
    pub(super) fn flush_kept(&self) -> Result<(), DeviceError> {
        let mut kept = lock(&self.unflushed);
        while let Some(range) = kept.last() {
            match self.flush(&[*range]) {
                Ok(()) | Err(DeviceError::Stale { .. }) => kept.pop(),
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    /// Makes what finished submissions wrote visible to the host.
    pub(super) fn invalidate(&self, ranges: &[BufferRange]) -> Result<(), DeviceError> {
        self.sync_dma_bufs(ranges, Turn::Begins)?;
        self.backend.invalidate(ranges)
    }

    /// Begins or ends accesses of the CPU to the dma-bufs among these, each once.
    fn sync_dma_bufs(&self, ranges: &[BufferRange], turn: Turn) -> Result<(), DeviceError> {
        let buffers = lock(&self.dma_bufs);
        if buffers.is_empty() {
            return Ok(());
        }
        let mut ids: Vec<BufferId> = ranges.iter().map(|range| range.buffer).collect();
        ids.sort_unstable();
        ids.dedup();
        let named: Vec<Arc<DmaBuf>> = ids.iter().filter_map(|id| buffers.get(id).cloned()).collect();
        drop(buffers);
        let failed = |error: OsError| match error {
            OsError::Call { call, code } => DeviceError::Backend { api: "system", call, code },
            other => DeviceError::Unsupported { what: other.to_string() },
        };
        named.iter().try_for_each(|pages| pages.sync(turn)).map_err(failed)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The latest submission of a queue that may be unfinished.
    pub(super) fn last(&self, queue: usize) -> Option<Timepoint> {
        let state = self.state();
        let lane = state.queues.get(queue).and_then(Option::as_ref);
        lane.and_then(|lane| lane.flights.back()).map(|flight| flight.point)
    }

    /// Lets go of the submissions of a queue up to `point`, which the host knows to be finished.
    pub(super) fn retire(&self, queue: usize, point: Timepoint) -> Result<(), DeviceError> {
        let mut result = Ok(());
        loop {
            let mut state = self.state();
            let Some(lane) = state.queues.get_mut(queue).and_then(Option::as_mut) else { return result };
            if lane.flights.front().is_none_or(|flight| flight.point > point) {
                return result;
            }
            let flight = lane.flights.pop_front();
            if let Some(mut flight) = flight {
                // Under the lock: whoever no longer sees the flight must see its bytes.
                let invalidate = &flight.work().invalidate;
                if flight.ends && !invalidate.is_empty() {
                    result = result.and(self.invalidate(invalidate));
                }
                flight.regions.clear();
                flight.claim = None;
                drop(state);
                drop(flight);
            }
        }
    }

    /// Submits what is enqueued on any queue.
    pub(super) fn flush_queues(&self) {
        let state = self.state();
        let queues: Vec<_> = state.queues.iter().flatten().filter_map(|lane| lane.queue.upgrade()).collect();
        drop(state);
        for queue in queues {
            // The events of the commands tell what went wrong.
            let _ = queue.flush();
        }
    }

    /// Waits for a submission and lets go of what is finished, kernels' errors included in the answer.
    pub(super) fn wait(
        &self,
        queue: usize,
        backend: &dyn QueueBackend,
        point: Timepoint,
        timeout: Option<std::time::Duration>,
    ) -> Result<(), DeviceError> {
        let timeout = timeout.or_else(|| self.patience());
        let waited = backend.wait(point, timeout);
        let retired = match &waited {
            Ok(()) | Err(DeviceError::Kernel { .. }) => self.retire(queue, point),
            Err(error @ DeviceError::Lost { .. }) => {
                self.note_loss(error, false);
                // What is submitted meanwhile is not waited for, and stays.
                let last = self.last(queue).unwrap_or(point);
                backend.quiesce();
                self.retire(queue, last)
            }
            Err(_) => Ok(()),
        };
        waited.and(retired)
    }

    /// How long the host waits where unfinished submissions wait for semaphores that others signal: queues may share
    /// one of the device, so each may stand behind these.
    fn patience(&self) -> Option<Duration> {
        let state = self.state();
        let limited = state.queues.iter().flatten().filter_map(|lane| {
            let is_open = |flight: &&Flight| {
                flight.deadline.is_some() && lane.backend.completed().is_ok_and(|now| now < flight.point)
            };
            lane.flights.iter().filter(is_open).filter_map(|flight| flight.deadline).max()
        });
        limited.max().map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// The state once no other thread has a reservation in the way.
    fn past_reserved(&self, conflict: impl Fn(usize, &Flight) -> bool) -> MutexGuard<'_, State> {
        let own = thread::current().id();
        let in_the_way = |state: &mut State| {
            state.reserved.iter().any(|r| r.thread != Some(own) && conflict(r.queue, &r.flight))
        };
        wait_while(&self.released, self.state(), in_the_way)
    }

    /// Waits until all pieces of what others submit to a queue are submitted.
    pub(super) fn settle_reserved(&self, queue: usize) {
        drop(self.past_reserved(|of, _| of == queue));
    }

    /// Ends a reservation.
    pub(super) fn release(&self, id: u64) -> Option<Flight> {
        let mut state = self.state();
        let at = state.reserved.iter().position(|reserved| reserved.id == id);
        let released = at.map(|at| state.reserved.swap_remove(at).flight);
        drop(state);
        self.released.notify_all();
        released
    }

    /// Waits until no submission touches what `conflict` names, then runs `then` under the same lock.
    pub(super) fn when_free<R>(
        &self,
        conflict: impl Fn(usize, &Flight) -> bool,
        then: impl FnOnce(&mut State) -> R,
    ) -> Result<R, DeviceError> {
        loop {
            let mut state = self.past_reserved(&conflict);
            let rival = state.queues.iter().enumerate().find_map(|(index, lane)| {
                let lane = lane.as_ref()?;
                let flight = lane.flights.iter().rev().find(|flight| conflict(index, flight))?;
                Some((index, Arc::clone(&lane.backend), flight.point))
            });
            let Some((index, backend, point)) = rival else { return Ok(then(&mut state)) };
            drop(state);
            match self.wait(index, &*backend, point, None) {
                // A kernel's error belongs to whoever waits for its event; here it only has to be over.
                Ok(()) | Err(DeviceError::Kernel { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// A limit for each heap; what lies in the host's memory is not more than that.
fn budget_of(backend: &dyn ContextBackend, info: &DeviceInfo) -> Budget {
    let host = physical_memory().unwrap_or(u64::MAX);
    let (shared, heaps) = (info.memory.shares_host_memory(), info.memory.heaps());
    let limit = |heap: &Heap| if shared || !heap.device_local { heap.bytes.min(host) } else { heap.bytes };
    let limits = match backend.kernel_memory() {
        Some(kernel) => BudgetLimits::of_kernel(&kernel, heaps.len(), host),
        None => BudgetLimits::of_heaps(heaps.iter().map(limit).collect()),
    };
    match backend.shared_device() {
        Some(identity) => Budget::of_device(identity, &limits),
        None => Budget::new(&limits),
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("device", &self.info.name).finish_non_exhaustive()
    }
}

impl State {
    /// Refuses an access by the host to bytes that a command buffer of the application's may be using.
    pub(super) fn check_inlays(
        &self,
        context: &'static str,
        resource: ResourceId,
        range: ByteRange,
        access: Access,
    ) -> Result<(), UsageError> {
        match self.inlays.iter().any(|(_, work)| work.conflicts(resource, range, access)) {
            false => Ok(()),
            true => {
                let what = format!(
                    "bytes {range} are in use by a run in a command buffer of the application's; drop its result first, \
                     once the command buffer is over"
                );
                Err(UsageError::new(context, Problem::Busy { what }))
            }
        }
    }

    /// Refuses accesses to bytes that a host guard holds.
    pub(super) fn check_holds(&self, context: &'static str, touches: &[Touch]) -> Result<(), UsageError> {
        for hold in &self.holds {
            let rival = touches.iter().find(|touch| {
                touch.resource == hold.resource
                    && touch.range.overlaps(hold.range)
                    && (hold.write || !touch.access.writes().is_empty())
            });
            if let Some(touch) = rival {
                let what = format!(
                    "bytes {} are mapped for {} by the host; drop the guard first",
                    touch.range,
                    if hold.write { "writing" } else { "reading" }
                );
                return Err(UsageError::new(context, Problem::Busy { what }));
            }
        }
        Ok(())
    }
}

impl Work {
    /// Whether this work and accesses to the same bytes need an order.
    pub(super) fn conflicts(&self, resource: ResourceId, range: ByteRange, access: Access) -> bool {
        self.touches.iter().any(|touch| {
            touch.resource == resource && touch.range.overlaps(range) && touch.access.conflicts(access)
        })
    }

    pub(super) fn conflicts_with(&self, other: &Work) -> bool {
        other.touches.iter().any(|touch| self.conflicts(touch.resource, touch.range, touch.access))
    }

    /// Keeps other contexts away from the application's memory while the submission runs.
    pub(super) fn claim(&self, context: &'static str, core: &Arc<Core>) -> Result<Claim, UsageError> {
        Claim::take(Arc::as_ptr(core).addr(), &self.claims).map_err(|held| {
            let what = format!(
                "bytes at {held} are in use by a submission on another context; wait for its event first"
            );
            UsageError::new(context, Problem::Busy { what })
        })
    }

    /// Keeps the host away from the regions while the submission runs.
    pub(super) fn lease_regions(&self, context: &'static str) -> Result<Vec<DeviceLease>, UsageError> {
        self.regions
            .iter()
            .map(|(region, range, write)| region.lease_device(*range, *write).map_err(|e| busy(context, &e)))
            .collect()
    }
}
