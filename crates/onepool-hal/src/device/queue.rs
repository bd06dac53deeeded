//! Queues: submissions in order, and recordings in command buffers of the application's.

#![allow(
    unsafe_code,
    reason = "signatures: recordings with kernels that take from their parameters what they touch, and command buffers of the application's"
)]

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::batch::Batch;
use super::buffer::Buffer;
use super::check::Checker;
use super::claims::Claim;
use super::core::{Core, Flight, Lane, Payload, State, Work};
use super::error::{Error, Problem, UsageError};
use super::event::Event;
use super::pieces::{self, Submission};
use super::semaphore::{Exchange, Semaphore, submit_between};
use crate::backend::{DeviceError, ForeignCommands, QueueBackend, Timepoint};
use crate::recording::{Command, PreparedId, Recording};
use onepool_core::memory::coherency::{Access, Origin, Tracker};
use onepool_core::memory::host::DeviceLease;
use onepool_core::sync::lock;

/// Flights beyond which a submission looks for finished ones to let go of.
const CROWDED: usize = 16;

/// An in-order queue. A clone is another handle of it; the last one to go waits for the device.
#[derive(Clone)]
pub struct Queue {
    pub(super) inner: Arc<QueueInner>,
}

pub(super) struct QueueInner {
    pub(super) core: Arc<Core>,
    pub(super) backend: Arc<dyn QueueBackend>,
    pub(super) index: usize,
    pub(super) batch: Mutex<Batch>,
}

/// A recording translated once for many submissions. A clone is another handle of it.
#[derive(Clone)]
pub struct Prepared {
    pub(super) inner: Arc<PreparedInner>,
    pub(super) queue: Arc<QueueInner>,
}

/// A recording in a command buffer of the application's ([`Queue::record_own_into`]). Dropping it says that all
/// submissions of the command buffer have finished, and that none will come. Until then the host gets no guards of what it
/// uses.
#[must_use = "dropping it says that the command buffer is not in use any more"]
pub struct Inlay {
    prepared: PreparedInner,
    // Outlives what was prepared on it.
    queue: Arc<QueueInner>,
    id: u64,
    _regions: Vec<DeviceLease>,
    _claim: Claim,
}

impl Drop for Inlay {
    fn drop(&mut self) {
        let mut state = self.queue.core.state();
        let at = state.inlays.iter().position(|(id, _)| *id == self.id);
        let ended = at.map(|at| state.inlays.swap_remove(at));
        state.submissions += 1;
        let by = Origin { queue: self.queue.index, submission: state.submissions };
        // Under the lock: whoever no longer sees the recording must see its bytes.
        for (memory, left) in &self.prepared.work.left {
            lock(&memory.host).submitted(left, by);
        }
        drop(state);
        drop(ended);
    }
}

impl fmt::Debug for Inlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inlay").field("queue", &self.queue).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct PreparedInner {
    pub(super) work: Arc<Work>,
    /// Its pieces in order, at least one.
    pub(super) pieces: Vec<PreparedId>,
    backend: Arc<dyn QueueBackend>,
}

impl Drop for PreparedInner {
    fn drop(&mut self) {
        self.pieces.iter().for_each(|piece| self.backend.release_prepared(*piece));
    }
}

impl Queue {
    pub(super) fn create(core: &Arc<Core>) -> Result<Queue, DeviceError> {
        let backend = core.backend.create_queue()?;
        let inner = Arc::new_cyclic(|queue| {
            let lane =
                Lane { backend: Arc::clone(&backend), queue: queue.clone(), flights: Default::default() };
            let mut state = core.state();
            let free = state.queues.iter().position(Option::is_none);
            let index = free.unwrap_or(state.queues.len());
            match state.queues.get_mut(index) {
                Some(slot) => *slot = Some(lane),
                None => state.queues.push(Some(lane)),
            }
            drop(state);
            QueueInner { core: Arc::clone(core), backend, index, batch: Mutex::default() }
        });
        Ok(Queue { inner })
    }

    /// Whether both are handles of one queue.
    pub fn is_same(&self, other: &Queue) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Checks a recording and translates it for many submissions. Buffers and kernels it names live as
    /// long as it does.
    ///
    /// The barriers between the commands, the host barrier at the end and the ranges to flush and to
    /// invalidate are the recording's own; a barrier that orders it after earlier submissions is put
    /// before it unless it begins with one, or touches nothing, or the device runs its commands in order.
    ///
    /// # Errors
    /// [`UsageError`] for a command that breaks a rule, and the device's.
    pub fn prepare(&self, recording: Recording) -> Result<Prepared, Error> {
        self.prepare_checked(recording, &[], false)
    }

    /// As [`Queue::prepare`], in pieces that are submissions of their own: one begins at each command of `cuts`, in
    /// ascending order, and one at the start. What comes later is ordered after whole pieces; timestamp slots are
    /// counted in each piece.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_cut(&self, recording: Recording, cuts: &[usize]) -> Result<Prepared, Error> {
        self.prepare_checked(recording, cuts, false)
    }

    /// As [`Queue::prepare_cut`], for a recording that may hold kernels of
    /// [`KernelSource::own`](crate::kernel::KernelSource::own).
    ///
    /// # Safety
    /// With their parameters, specialization constants and grids those kernels do in this recording what
    /// [`KernelSource::from_spirv`](crate::kernel::KernelSource::from_spirv) asks of kernels.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn prepare_own(&self, recording: Recording, cuts: &[usize]) -> Result<Prepared, Error> {
        self.prepare_checked(recording, cuts, true)
    }

    pub(super) fn prepare_checked(
        &self,
        recording: Recording,
        cuts: &[usize],
        own: bool,
    ) -> Result<Prepared, Error> {
        let work = Arc::new(Checker::recording(&self.inner.core, "prepare", &recording, own)?);
        let backend = Arc::clone(&self.inner.backend);
        // Given back where a later one fails.
        let mut prepared = PreparedInner { work, pieces: Vec::with_capacity(cuts.len() + 1), backend };
        let mut cut = pieces::cut(recording, cuts);
        if let Some(first) = cut.first_mut() {
            prepared.work.acquire(first);
        }
        if let Some(last) = cut.last_mut() {
            prepared.work.release(last);
        }
        for mut piece in cut {
            self.inner.open(&mut piece, &prepared.work);
            let id = prepared.backend.prepare(&piece)?;
            prepared.pieces.push(id);
        }
        Ok(Prepared { inner: Arc::new(prepared), queue: Arc::clone(&self.inner) })
    }

    /// Begins to submit a prepared recording piece by piece, after everything submitted before. Until its last piece is
    /// submitted, or the result is dropped, everyone else finds what it touches in use; one thread submits all pieces.
    ///
    /// # Errors
    /// As [`Queue::submit_prepared`].
    pub fn begin(&self, prepared: &Prepared) -> Result<Submission, Error> {
        self.check_own("begin", prepared)?;
        self.inner.flush();
        Submission::begin(prepared)
    }

    /// Records into a command buffer of the application's, which submits it. What the recording uses is kept, and
    /// the application's owned regions are kept from the host, as long as the result lives.
    ///
    /// # Safety
    /// As [`Queue::prepare_own`] and [`QueueBackend::record_into`]; the result lives until all submissions of
    /// the command buffer have finished and none will come. They are on the device's queue in the order of
    /// the queue's other submissions, or nothing else uses what the recording uses.
    ///
    /// # Errors
    /// [`UsageError`]: a command that breaks a rule; timestamps; memory that is borrowed for a scope, and memory with a
    /// pointer of the application's that the host must flush or invalidate for each submission. The device's.
    pub unsafe fn record_own_into(
        &self,
        mut recording: Recording,
        commands: &ForeignCommands,
    ) -> Result<Inlay, Error> {
        const CONTEXT: &str = "record_into";
        self.inner.flush();
        let core = &self.inner.core;
        // Whose pool of queries would be reset in between submissions is not known.
        if recording.timestamps > 0 {
            let (what, found) = (
                "the number of timestamps in a command buffer of the application's",
                u64::from(recording.timestamps),
            );
            return Err(UsageError::new(CONTEXT, Problem::Limit { what, found, limit: 0 }).into());
        }
        let work = Arc::new(Checker::recording(core, CONTEXT, &recording, true)?);
        let refuse = |what: &str| UsageError::new(CONTEXT, Problem::Busy { what: what.to_owned() });
        if !work.scoped.is_empty() {
            return Err(refuse(
                "memory borrowed for a scope is bound, whose end cannot wait for the application's submission; bind a HostRegion or a buffer",
            )
            .into());
        }
        if !work.flush.is_empty() || !work.invalidate.is_empty() {
            return Err(refuse(
                "memory that is not coherent is bound, which the host flushes before each run; bind a buffer of the device",
            )
            .into());
        }
        work.acquire(&mut recording);
        work.release(&mut recording);
        let mut state = core.state();
        state.check_holds(CONTEXT, &work.touches)?;
        let regions = work.lease_regions(CONTEXT)?;
        let claim = work.claim(CONTEXT, core)?;
        core.flush_kept()?;
        state.next_hold += 1;
        let id = state.next_hold;
        state.inlays.push((id, Arc::clone(&work)));
        drop(state);
        // Whatever fails from here on, dropping it takes it back.
        let (queue, backend) = (Arc::clone(&self.inner), Arc::clone(&self.inner.backend));
        let prepared = PreparedInner { work, pieces: Vec::new(), backend };
        let mut inlay = Inlay { prepared, queue, id, _regions: regions, _claim: claim };
        // SAFETY: as the caller promises.
        let piece = unsafe { self.inner.backend.record_into(&recording, commands)? };
        inlay.prepared.pieces.push(piece);
        Ok(inlay)
    }

    /// Copies what a buffer that stands for an image holds now, without taking the image over: the copy is the device's own
    /// of what the last recording left there. As [`Queue::enqueue_copy`] else.
    ///
    /// # Errors
    /// As there, and [`Problem::HandedOver`] for memory that another queue family owns between recordings.
    pub fn copy_in_place(&self, src: &Buffer, dst: &Buffer) -> Result<Event, Error> {
        const CONTEXT: &str = "copy_in_place";
        let handed_over =
            |buffer: &Buffer| buffer.acquisition().is_some_and(|acquisition| acquisition.image_bytes == 0);
        if handed_over(src) || handed_over(dst) {
            return Err(UsageError::new(CONTEXT, Problem::HandedOver).into());
        }
        let inner = &self.inner;
        inner.flush();
        let copy = Command::Copy { src: src.range(), dst: dst.range() };
        let mut recording = Recording { commands: vec![copy], ..Recording::default() };
        let mut work = Checker::recording(&inner.core, CONTEXT, &recording, false)?;
        // Of the copies around it there are none.
        work.copied = src.bytes();
        inner.open(&mut recording, &work);
        let payload = Payload::Once(Arc::new(work));
        let point = inner.launch(CONTEXT, &payload, || inner.backend.submit(&recording))?;
        Ok(Event::submitted(inner, point))
    }

    fn check_own(&self, context: &'static str, prepared: &Prepared) -> Result<(), UsageError> {
        match Arc::ptr_eq(&self.inner, &prepared.queue) {
            true => Ok(()),
            false => Err(UsageError::new(context, Problem::Foreign { object: "prepared recording" })),
        }
    }

    /// Submits a prepared recording after everything submitted before.
    ///
    /// # Errors
    /// [`UsageError`] where the host holds its bytes or its memory was given back, and the device's;
    /// after an error nothing of it runs.
    pub fn submit_prepared(&self, prepared: &Prepared) -> Result<Event, Error> {
        const CONTEXT: &str = "submit_prepared";
        self.check_own(CONTEXT, prepared)?;
        let inner = &self.inner;
        inner.flush();
        let [piece] = prepared.inner.pieces[..] else {
            let mut submission = Submission::begin(prepared)?;
            let mut last = submission.submit_next()?;
            while !submission.is_whole() {
                last = submission.submit_next()?;
            }
            return Ok(last);
        };
        let payload = Payload::Prepared(Arc::clone(&prepared.inner));
        let point = inner.launch(CONTEXT, &payload, || inner.backend.submit_prepared(piece))?;
        Ok(Event::submitted(inner, point))
    }

    /// Submits a recording once; otherwise as [`Queue::prepare`] and [`Queue::submit_prepared`].
    ///
    /// # Errors
    /// As there.
    pub fn submit(&self, recording: Recording) -> Result<Event, Error> {
        self.submit_checked(recording, false)
    }

    /// As [`Queue::submit`], for a recording that may hold kernels of
    /// [`KernelSource::own`](crate::kernel::KernelSource::own).
    ///
    /// # Safety
    /// As [`Queue::prepare_own`].
    ///
    /// # Errors
    /// As [`Queue::submit`].
    pub unsafe fn submit_own(&self, recording: Recording) -> Result<Event, Error> {
        self.submit_checked(recording, true)
    }

    pub(super) fn submit_checked(&self, mut recording: Recording, own: bool) -> Result<Event, Error> {
        self.inner.flush();
        let work = Checker::recording(&self.inner.core, "submit", &recording, own)?;
        self.inner.open(&mut recording, &work);
        work.acquire(&mut recording);
        work.release(&mut recording);
        let payload = Payload::Once(Arc::new(work));
        let point = self.inner.launch("submit", &payload, || self.inner.backend.submit(&recording))?;
        Ok(Event::submitted(&self.inner, point))
    }

    /// As [`Queue::submit_own`], with no barrier before the recording.
    ///
    /// # Safety
    /// As [`Queue::prepare_own`].
    ///
    /// # Errors
    /// As [`Queue::submit`].
    #[cfg(any(test, feature = "testing"))]
    pub unsafe fn submit_unordered(&self, mut recording: Recording) -> Result<Event, Error> {
        let work = Checker::recording(&self.inner.core, "submit", &recording, true)?;
        work.acquire(&mut recording);
        work.release(&mut recording);
        let payload = Payload::Once(Arc::new(work));
        let point = self.inner.launch("submit", &payload, || self.inner.backend.submit(&recording))?;
        Ok(Event::submitted(&self.inner, point))
    }

    /// Submits the commands enqueued so far.
    ///
    /// # Errors
    /// As [`Queue::submit`]; the events of the commands tell the same.
    pub fn flush(&self) -> Result<(), Error> {
        self.inner.flush().map_or(Ok(()), |fate| fate.map(drop))
    }

    /// Submits waits and signals of semaphores alone: what is submitted later begins after `waits`; `signals` follow all
    /// that was submitted before. The host waits for the event for at most `limit`, where there are waits.
    ///
    /// # Errors
    /// [`UsageError`] for a semaphore of another context, and the device's.
    pub fn exchange(
        &self,
        waits: &[Semaphore],
        signals: &[Semaphore],
        limit: Duration,
    ) -> Result<Event, Error> {
        const CONTEXT: &str = "exchange";
        let inner = &self.inner;
        inner.flush();
        let exchange = Exchange::new(&inner.core, CONTEXT, waits, signals, limit)?;
        let payload = Payload::Once(Arc::default());
        let point = inner.launch_between(CONTEXT, &payload, Some(&exchange), || {
            submit_between(&*inner.backend, None, exchange.of_piece(true, true))
        })?;
        Ok(Event::submitted(inner, point))
    }

    /// Submits the commands enqueued so far and waits until everything submitted has finished.
    ///
    /// # Errors
    /// The device's, and those of kernels that failed and of commands that could not be submitted.
    pub fn finish(&self) -> Result<(), Error> {
        let flushed = self.inner.flush();
        let core = &self.inner.core;
        core.settle_reserved(self.inner.index);
        if let Some(point) = core.last(self.inner.index) {
            core.wait(self.inner.index, &*self.inner.backend, point, None)?;
        }
        flushed.map_or(Ok(()), |fate| fate.map(drop))
    }
}

impl QueueInner {
    /// Submits the open batch, if there is one, and gives its fate.
    pub(super) fn flush(self: &Arc<Self>) -> Option<Result<Timepoint, Error>> {
        let mut batch = lock(&self.batch);
        if batch.is_empty() {
            return None;
        }
        let taken = std::mem::take(&mut *batch);
        // Submitted under the batch's lock: a later batch must not overtake it.
        Some(taken.submit(self))
    }

    /// Puts the barrier before a recording that orders it after whatever was submitted before.
    fn open(&self, recording: &mut Recording, work: &Work) {
        let opens = matches!(recording.commands.first(),
            Some(Command::Barrier(barrier)) if barrier.settles().contains(Access::DEVICE));
        if !opens && !self.core.info.in_order {
            let barrier = Tracker::after_others().command(&work.touches);
            recording.commands.splice(0..0, barrier.map(Command::Barrier));
        }
    }

    /// Submits work once all that stands in its way is over, and keeps what it needs.
    pub(super) fn launch(
        self: &Arc<Self>,
        context: &'static str,
        payload: &Payload,
        submit: impl FnOnce() -> Result<Timepoint, DeviceError>,
    ) -> Result<Timepoint, Error> {
        self.launch_between(context, payload, None, submit)
    }

    /// As [`QueueInner::launch`], of what waits for semaphores, where `exchange` says so.
    pub(super) fn launch_between(
        self: &Arc<Self>,
        context: &'static str,
        payload: &Payload,
        exchange: Option<&Exchange>,
        submit: impl FnOnce() -> Result<Timepoint, DeviceError>,
    ) -> Result<Timepoint, Error> {
        let (core, work) = (&self.core, payload.work());
        let other = |index: usize, flight: &Flight| is_before(self.index, work, index, flight);
        let launched = core.when_free(other, |state| -> Result<_, Error> {
            // Under the lock, as revoking is: a scope that ends waits for every submission before it.
            if work.scoped.iter().any(|lease| lease.is_revoked()) {
                return Err(UsageError::new(context, Problem::Revoked).into());
            }
            state.check_holds(context, &work.touches)?;
            let regions = work.lease_regions(context)?;
            let claim = Some(work.claim(context, core)?);
            core.flush_kept()?;
            if !work.flush.is_empty() {
                core.flush(&work.flush)?;
            }
            let payload = payload.clone();
            let deadline = exchange.and_then(Exchange::deadline);
            let flight = Flight { point: Timepoint(0), payload, regions, claim, ends: true, deadline };
            self.take_off(state, flight, submit)
        });
        let (point, flights) = launched??;
        self.thin_out(flights)?;
        Ok(point)
    }

    /// Submits, with nothing in the way, and keeps what the flight needs. Gives the point and how many flights there are.
    pub(super) fn take_off(
        &self,
        state: &mut State,
        flight: Flight,
        submit: impl FnOnce() -> Result<Timepoint, DeviceError>,
    ) -> Result<(Timepoint, usize), Error> {
        let lane = state.queues.get_mut(self.index).and_then(Option::as_mut);
        let lane = lane.ok_or(DeviceError::Stale { object: "queue" })?;
        let point = submit().inspect_err(|error| self.core.note_loss(error, true))?;
        if flight.ends {
            self.core.traffic.copied(flight.work().copied);
        }
        state.submissions += 1;
        let by = Origin { queue: self.index, submission: state.submissions };
        for (memory, left) in flight.work().left.iter().filter(|_| flight.ends) {
            lock(&memory.host).submitted(left, by);
        }
        lane.flights.push_back(Flight { point, ..flight });
        Ok((point, lane.flights.len()))
    }

    /// Lets go of finished flights where there are many.
    pub(super) fn thin_out(&self, flights: usize) -> Result<(), DeviceError> {
        match flights > CROWDED {
            true => self.core.retire(self.index, self.backend.completed()?),
            false => Ok(()),
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // What was enqueued and not submitted yet is not lost; whose event no one kept has no one to tell.
        let _ = self.inner.flush();
    }
}

impl Drop for QueueInner {
    fn drop(&mut self) {
        if let Some(point) = self.core.last(self.index) {
            // An error of a kernel has no one to go to; any other leaves flights, seen below.
            let _ = self.core.wait(self.index, &*self.backend, point, None);
        }
        let mut state = self.core.state();
        let lane = state.queues.get_mut(self.index).and_then(Option::take);
        drop(state);
        if let Some(lane) = lane.filter(|lane| !lane.flights.is_empty()) {
            // The device may still work on them: leaked memory is safe, freed memory is not. The queue, which
            // would wait for them, is leaked too.
            std::mem::forget(lane);
        }
    }
}

impl fmt::Debug for QueueInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.core.info.name;
        f.debug_struct("Queue").field("device", device).field("index", &self.index).finish_non_exhaustive()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("pieces", &self.inner.pieces).field("queue", &self.queue).finish()
    }
}

/// Whether `work`, submitted to queue `own`, waits for a flight of queue `of`: one queue runs in order by itself, also
/// after a recording of which some pieces are not submitted yet.
pub(super) fn is_before(own: usize, work: &Work, of: usize, flight: &Flight) -> bool {
    // The end of a scope waits without limit, so borrowed memory is not used after what may never end.
    if flight.deadline.is_some() && !work.scoped.is_empty() {
        return true;
    }
    match of == own {
        true => flight.is_reserved(),
        false => flight.work().conflicts_with(work),
    }
}
