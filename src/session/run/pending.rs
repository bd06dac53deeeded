//! Runs of a binding: submitted, cancelled, waited for.

use std::sync::Arc;

use super::pending_run::PendingRun;
use super::reads::Reads;
use crate::backend::DeviceError;
use crate::device::{self, Event, Queue, Semaphore};
use crate::plan::{Plan, PlannedIo};
use crate::session::bind::binding::Binding;
use crate::session::bind::launch::{LaunchWork, SegmentLaunch, SegmentTrace, Started};
use crate::session::bind::slot::{Side, Slot};
use crate::session::core::arena::{ArenaTurn, Arenas};
use crate::session::core::cancel::{CancelToken, Exchange, RunOptions, Watch};
use crate::session::core::in_flight::{InFlight, LastRun};
use crate::session::core::options::BindPolicy;
use crate::session::core::pieces::nanos;
use crate::session::error::{Error, Progress, SessionError};

/// A submitted run. The host must not access bound memory before [`Pending::wait`] has returned: borrowed memory is
/// out of reach, an owned region refuses guards while a device uses it, and a guard held during the run is an error
/// of the run.
#[derive(Debug)]
#[must_use = "results are complete only after `wait`"]
pub struct Pending<'b, 'e> {
    binding: &'b mut Binding<'e>,
    in_flight: Option<InFlight>,
    watch: Watch,
    reads: Arc<Reads>,
    /// Signals semaphores once the run is over, where the device does not.
    signals: Option<Queue>,
}

/// The semaphores of a run that is one submission.
type Between<'a> = Option<&'a RunOptions>;

impl<'e> Binding<'e> {
    /// Runs once and waits until the results are in the bound memory.
    ///
    /// # Errors
    /// [`Error::Device`]: memory that the host holds through a guard, a kernel that failed, a lost device.
    pub fn run(&mut self) -> Result<(), Error> {
        self.run_with(&self.core.options.run.clone())
    }

    /// As [`Binding::run`], with other options than the session's.
    ///
    /// # Errors
    /// As there, [`SessionError::Cancelled`],
    /// [`SessionError::TimeLimit`].
    pub fn run_with(&mut self, options: &RunOptions) -> Result<(), Error> {
        let watch = self.watch(options);
        self.start(false, watch, options)?.wait()
    }

    /// Runs once as part of a run with the limits of `watch`.
    pub(in crate::session) fn run_within(&mut self, watch: &Watch) -> Result<(), Error> {
        self.start(false, watch.clone(), &RunOptions::new())?.wait()
    }

    /// Submits a run.
    ///
    /// Before it returns, it waits for the previous run of this binding, where that has several submissions; for the
    /// previous run in a shared arena; and for the run itself, where sizes are known only in the run.
    ///
    /// A run has several submissions over several devices, or where one would be too long. Its own thread makes each
    /// of them after those it depends on, and after those of earlier runs of the session on the same memory;
    /// [`Pending::wait`] returns its errors. A run without a wait finishes before the next one of its binding begins,
    /// and before its binding is dropped.
    ///
    /// # Errors
    /// As [`Binding::run`].
    pub fn submit(&mut self) -> Result<Pending<'_, 'e>, Error> {
        self.submit_with(&self.core.options.run.clone())
    }

    /// As [`Binding::submit`], with other options than the session's.
    ///
    /// # Errors
    /// As [`Binding::run_with`].
    pub fn submit_with(&mut self, options: &RunOptions) -> Result<Pending<'_, 'e>, Error> {
        let watch = self.watch(options);
        self.start(self.continuation.is_none(), watch, options)
    }

    fn watch(&mut self, options: &RunOptions) -> Watch {
        self.cancel = self.cancel.next();
        Watch::new(options.clone(), self.cancel.clone())
    }

    /// Submits a run: several submissions on a new thread if `on_thread`, else before it returns.
    fn start(
        &mut self,
        on_thread: bool,
        watch: Watch,
        options: &RunOptions,
    ) -> Result<Pending<'_, 'e>, Error> {
        let reads = Reads::new(self, options)?;
        self.last = None;
        watch.check(|| Progress {
            of: self.segments.iter().map(|launch| launch.nodes).sum(),
            ..Progress::default()
        })?;
        let shared = self.core.options.arena.clone();
        let turn = shared.as_deref().map(|arena| arena.turn());
        let turn = turn.map(|turn| self.enter_arena(turn)).transpose()?;
        self.cut_again(&watch)?;
        let single = matches!(&self.segments[..], [launch] if launch.is_single());
        let exchanging = self.exchanging(options)?;
        let between = exchanging.as_ref().filter(|queue| single && self.is_alone_on(queue)).map(|_| options);
        let around = exchanging.filter(|_| between.is_none());
        if let Some(queue) = around.as_ref().filter(|_| !options.exchange().waits.is_empty()) {
            let waited = queue.exchange(&options.exchange().waits, &[], options.waits_at_most())?;
            waited.wait().map_err(|e| self.late(e.into(), options))?;
        }
        let plan = &self.compiled.plan;
        for (slot, io) in staged_in(&self.inputs, &self.outputs, plan) {
            self.core.after_runs(|devices| slot.stage_in(devices, io.info.bytes()))?;
        }
        let mut pending_run = None;
        let in_flight = match single {
            _ if self.segments.is_empty() => None,
            true => self.submit_one(between)?.map(InFlight::One),
            false => {
                let run = PendingRun::new(&self.core, &self.compiled, &self.segments, (&watch, &reads))?;
                Some(InFlight::Several(Arc::clone(pending_run.insert(run).state())))
            }
        };
        reads.copied();
        if let (Some(InFlight::One(event)), true, false) = (&in_flight, on_thread, reads.is_empty()) {
            reads.call_after(event);
        }
        if let Some(turn) = turn {
            turn.leave(in_flight.clone());
        }
        if let Some(run) = pending_run {
            self.last = Some(LastRun(Arc::clone(run.state())));
            if on_thread {
                run.spawn()?;
            } else {
                run.run();
            }
        }
        self.has_run = true;
        let signals = around.filter(|_| !options.exchange().signals.is_empty());
        let mut pending = Pending { binding: self, in_flight, watch, reads, signals };
        if pending.binding.continuation.is_some() {
            let signals = pending.signals.take();
            pending.finish()?;
            if let Some(continuation) = &mut pending.binding.continuation {
                continuation.run(&pending.watch)?;
            }
            pending.reads.run_over();
            pending.signal(signals)?;
        }
        Ok(pending)
    }

    /// The queue of the device that the semaphores of a run are of; `None` without semaphores.
    fn exchanging(&self, options: &RunOptions) -> Result<Option<Queue>, Error> {
        let exchange = options.exchange();
        let mut contexts = exchange.waits.iter().chain(&exchange.signals).map(Semaphore::context_id);
        let Some(context) = contexts.next() else { return Ok(None) };
        let device = self.core.devices.iter().find(|device| device.context.id() == context);
        match device.filter(|_| contexts.all(|other| other == context)) {
            Some(device) => Ok(Some(device.queue.clone())),
            None => Err(SessionError::ForeignSemaphore.into()),
        }
    }

    /// Whether a run is one submission to `queue`, before and after which the host has nothing to do.
    fn is_alone_on(&self, queue: &Queue) -> bool {
        let host_waits = self.inputs.iter().chain(&self.outputs).any(Slot::is_for_host_waits);
        let [launch] = &self.segments[..] else { return false };
        let on_queue = matches!(launch.work, LaunchWork::Commands(_))
            && self.core.devices[launch.device() as usize].queue.is_same(queue);
        on_queue && !host_waits && self.continuation.is_none()
    }

    /// A wait that ran out of time, as the end of the run.
    fn late(&self, error: Error, options: &RunOptions) -> Error {
        match error {
            Error::Device(device::Error::Device(DeviceError::Timeout { .. }))
                if !options.exchange().waits.is_empty() =>
            {
                let of = self.segments.iter().map(|launch| launch.nodes).sum();
                let (limit, at) = (options.waits_at_most(), Progress { of, ..Progress::default() });
                SessionError::TimeLimit { limit, at }.into()
            }
            error => error,
        }
    }

    /// Submits the only segment. Where memory runs out, frees caches and tries again, then replaces imports by
    /// copies.
    fn submit_one(&mut self, between: Between<'_>) -> Result<Option<Event>, Error> {
        let submit = |binding: &Self| match binding.segments.first() {
            None => Ok(None),
            Some(launch) => match launch.begin(&binding.core.devices)? {
                Started::Done => Ok(None),
                Started::Pieces(mut submission) => {
                    if let Some(options) = between {
                        let Exchange { waits, signals, .. } = options.exchange();
                        submission = submission.between(waits, signals, options.waits_at_most())?;
                    }
                    Ok(Some(submission.submit_next()?))
                }
            },
        };
        let is_short = |result: &Result<_, Error>| matches!(result, Err(e) if e.is_out_of_memory());
        let mut result = submit(self);
        if is_short(&result) {
            self.spare.clear();
            self.recorded.clear();
            self.core.drop_idle_plans();
            result = submit(self);
        }
        if is_short(&result) && self.copy_instead()? {
            result = submit(self);
        }
        result
    }

    /// Replaces imports by copies. Returns whether there are any.
    fn copy_instead(&mut self) -> Result<bool, Error> {
        let policy = BindPolicy { copies: true, ..self.policy };
        let could = |slots: &[Slot<'_>]| slots.iter().any(Slot::could_copy);
        if policy.strict || !(could(&self.inputs) || could(&self.outputs)) {
            return Ok(false);
        }
        let (compiled, core) = (Arc::clone(&self.compiled), Arc::clone(&self.core));
        let copied = |slots: &[Slot<'e>], ios: &[PlannedIo], side| -> Result<Vec<(usize, Slot<'e>)>, Error> {
            let could = slots.iter().zip(ios).enumerate().filter(|(_, (slot, _))| slot.could_copy());
            could
                .map(|(at, (slot, io))| {
                    Ok((at, Slot::new(slot.source.clone(), io, side, &core.devices, policy)?))
                })
                .collect()
        };
        let mut inputs = copied(&self.inputs, &compiled.plan.inputs, Side::Input)?;
        let mut outputs = copied(&self.outputs, &compiled.plan.outputs, Side::Output)?;
        let mut exchange = |binding: &mut Self| {
            inputs.iter_mut().for_each(|(at, slot)| std::mem::swap(&mut binding.inputs[*at], slot));
            outputs.iter_mut().for_each(|(at, slot)| std::mem::swap(&mut binding.outputs[*at], slot));
        };
        exchange(self);
        match self.prepare() {
            Ok(segments) => self.segments = segments,
            Err(e) => {
                exchange(self);
                return Err(e);
            }
        }
        self.policy = policy;
        for (slot, io) in staged_in(&self.inputs, &self.outputs, &compiled.plan) {
            core.after_runs(|devices| slot.stage_in(devices, io.info.bytes()))?;
        }
        Ok(true)
    }

    /// Records again where the times of earlier runs require other pieces, or where this is the first run that may
    /// end early.
    fn cut_again(&mut self, watch: &Watch) -> Result<(), Error> {
        let ends_now = watch.may_end() && !self.may_end;
        let version = self.compiled.schedule.version();
        let stale = |launch: &SegmentLaunch| launch.cut.as_ref().is_some_and(|cut| cut.version != version);
        if !ends_now && !self.segments.iter().any(stale) {
            return Ok(());
        }
        self.may_end |= ends_now;
        self.recorded.clear();
        self.segments = self.prepare()?;
        Ok(())
    }

    /// Records again where a shared arena has new memory.
    pub(in crate::session) fn enter_arena<'a>(
        &mut self,
        mut turn: ArenaTurn<'a>,
    ) -> Result<ArenaTurn<'a>, Error> {
        if !turn.is_current(&self.arenas) {
            self.recorded.clear();
            self.segments = Arc::default();
            self.arenas = Arenas::default();
            self.arenas = turn.fit(&self.compiled.plan, &self.core.devices)?;
            self.segments = self.prepare()?;
        }
        Ok(turn)
    }
}

/// The slots whose bytes a run reads: inputs, and outputs that are inputs too.
fn staged_in<'s, 'e>(
    inputs: &'s [Slot<'e>],
    outputs: &'s [Slot<'e>],
    plan: &'s Plan,
) -> impl Iterator<Item = (&'s Slot<'e>, &'s PlannedIo)> {
    let updated = outputs.iter().zip(&plan.outputs).filter(|(_, io)| io.updated.is_some());
    inputs.iter().zip(&plan.inputs).chain(updated)
}

impl Pending<'_, '_> {
    /// Waits until the results are in the bound memory.
    ///
    /// # Errors
    /// As [`Binding::run`].
    pub fn wait(mut self) -> Result<(), Error> {
        let signals = self.signals.take();
        if self.binding.continuation.is_none() {
            self.finish()?;
        }
        self.signal(signals)
    }

    /// Ends the run before its next submission to a device; submitted work continues. [`Pending::wait`] waits for
    /// that and returns [`SessionError::Cancelled`], unless everything was
    /// submitted. The outputs are then undefined.
    ///
    /// Devices that may drive a display get submissions of about 100 ms
    /// ([`SubmissionLimit`](crate::session::SubmissionLimit)), others whole segments unless the run has a
    /// [`CancelToken`] or a time limit from the start ([`RunOptions`]).
    pub fn cancel(&self) {
        self.watch.token().cancel();
    }

    /// [`Pending::cancel`] for another thread.
    pub fn canceller(&self) -> CancelToken {
        self.watch.token().clone()
    }

    /// Waits for the only submission and records its time.
    fn wait_for_one(&self, event: &Event) -> Result<(), Error> {
        let binding = &*self.binding;
        let Some(launch) = binding.segments.first().filter(|launch| launch.cut.is_some()) else {
            return Ok(event.wait()?);
        };
        // If it is already over, the time of its end is unknown.
        let was_over = event.is_done()?;
        event.wait()?;
        let wall = if was_over { 0 } else { nanos(self.watch.elapsed()) };
        let trace = SegmentTrace { events: vec![event.clone()], walls: vec![wall], times: None };
        launch.record_times(&trace, &binding.compiled.schedule, &binding.core.devices);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        match self.in_flight.take() {
            Some(InFlight::One(event)) => {
                let waited = self.wait_for_one(&event);
                if waited.is_err() && !self.reads.is_empty() && matches!(event.is_done(), Ok(false)) {
                    self.reads.call_after(&event);
                }
                waited.map_err(|e| self.binding.late(e, self.watch.options()))?;
            }
            Some(several) => several.wait()?,
            None => {}
        }
        if self.binding.continuation.is_none() {
            self.reads.run_over();
        }
        let plan = &self.binding.compiled.plan;
        for (slot, io) in self.binding.outputs.iter().zip(&plan.outputs) {
            self.binding.core.after_runs(|devices| slot.stage_out(devices, io.info.bytes()))?;
        }
        Ok(())
    }

    /// Signals the semaphores that the device did not, of a run that is over.
    fn signal(&self, queue: Option<Queue>) -> Result<(), Error> {
        let Some(queue) = queue else { return Ok(()) };
        let options = self.watch.options();
        queue.exchange(&[], &options.exchange().signals, options.waits_at_most())?;
        Ok(())
    }

    /// Whether the devices have finished.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn is_done(&self) -> Result<bool, Error> {
        self.in_flight.as_ref().map_or(Ok(true), InFlight::is_done)
    }
}

impl Drop for Pending<'_, '_> {
    fn drop(&mut self) {
        let signals = self.signals.take();
        // No one is left to tell of an error, and what failed signals nothing.
        if signals.is_some() && self.finish().is_ok() {
            let _ = self.signal(signals);
        }
    }
}
