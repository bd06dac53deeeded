//! Runs of a binding: begun, ended early, waited for.

use std::sync::Arc;

use super::segments::{Begun, Course, Leg};
use crate::device::Event;
use crate::plan::PlannedIo;
use crate::session::bind::binding::Binding;
use crate::session::bind::slot::{BindPolicy, Side, Slot};
use crate::session::core::arena::{Arenas, Turn};
use crate::session::core::cancel::{CancelToken, Progress, RunOptions, Watch};
use crate::session::core::in_flight::{Departure, LastRun, Underway};
use crate::session::core::pieces::nanos;
use crate::session::error::Error;

/// A run that was submitted. The host must not touch bound memory before [`Pending::wait`] returned: borrowed memory
/// is out of reach, an owned region refuses guards while a device uses it, and a device that finds a guard in
/// its way is an error of the run.
#[derive(Debug)]
#[must_use = "results are complete only after `wait`"]
pub struct Pending<'b, 'e> {
    binding: &'b mut Binding<'e>,
    underway: Option<Underway>,
    watch: Watch,
}

impl<'e> Binding<'e> {
    /// Runs once and waits until the results are where they were bound.
    ///
    /// # Errors
    /// [`Error::Device`]; memory that the host holds through a guard, a kernel that failed, a lost device.
    pub fn run(&mut self) -> Result<(), Error> {
        self.run_with(&self.inner.options.run.clone())
    }

    /// As [`Binding::run`], with other options than the session's.
    ///
    /// # Errors
    /// As there, [`SessionError::Cancelled`](crate::session::SessionError::Cancelled),
    /// [`SessionError::TimeLimit`](crate::session::SessionError::TimeLimit).
    pub fn run_with(&mut self, options: &RunOptions) -> Result<(), Error> {
        let watch = self.watch(options);
        self.start(false, watch)?.wait()
    }

    /// Runs once as part of a run that `watch` watches.
    pub(in crate::session) fn run_within(&mut self, watch: &Watch) -> Result<(), Error> {
        self.start(false, watch.clone())?.wait()
    }

    /// Submits a run.
    ///
    /// What it waits for, before it returns: the run before of this binding, where it had several submissions; the run
    /// before in a shared arena; and the run itself, where sizes are known only in the run. A run of several submissions,
    /// over several devices or because one would be too long, is submitted by a thread of its own, each once those that it
    /// waits for are over, after those of earlier runs of the session that touch the same memory; an error in that is
    /// [`Pending::wait`]'s. A run that no one waits for is over before the next one of its binding begins, and before
    /// the binding is gone.
    ///
    /// # Errors
    /// As [`Binding::run`].
    pub fn submit(&mut self) -> Result<Pending<'_, 'e>, Error> {
        self.submit_with(&self.inner.options.run.clone())
    }

    /// As [`Binding::submit`], with other options than the session's.
    ///
    /// # Errors
    /// As [`Binding::run_with`].
    pub fn submit_with(&mut self, options: &RunOptions) -> Result<Pending<'_, 'e>, Error> {
        let watch = self.watch(options);
        self.start(self.rest.is_none(), watch)
    }

    fn watch(&mut self, options: &RunOptions) -> Watch {
        self.cancel = self.cancel.next();
        Watch::new(options.clone(), self.cancel.clone())
    }

    /// Submits a run, several submissions by a thread `aside` or before it returns.
    fn start(&mut self, aside: bool, watch: Watch) -> Result<Pending<'_, 'e>, Error> {
        self.last = None;
        watch.check(|| Progress {
            of: self.segments.iter().map(|leg| leg.nodes).sum(),
            ..Progress::default()
        })?;
        let shared = self.inner.options.arena.clone();
        let turn = shared.as_deref().map(|arena| arena.turn());
        let turn = turn.map(|turn| self.enter(turn)).transpose()?;
        self.cut_anew(&watch)?;
        let plan = &self.compiled.plan;
        for (slot, io) in self.inputs.iter().zip(&plan.inputs) {
            self.inner.past_runs(|devices| slot.stage_in(devices, io.info.bytes()))?;
        }
        let mut departure = None;
        let single = matches!(&self.segments[..], [leg] if leg.is_single());
        let underway = match single {
            _ if self.segments.is_empty() => None,
            true => self.submit_one()?.map(Underway::One),
            false => {
                let made = Departure::new(&self.inner, &self.compiled, &self.segments, &watch)?;
                let made = departure.insert(made);
                Some(Underway::Several(Arc::clone(made.flight())))
            }
        };
        if let Some(turn) = turn {
            turn.leave(underway.clone());
        }
        if let Some(departure) = departure {
            self.last = Some(LastRun(Arc::clone(departure.flight())));
            if aside {
                departure.aside()?;
            } else {
                departure.here();
            }
        }
        self.has_run = true;
        let mut pending = Pending { binding: self, underway, watch };
        if pending.binding.rest.is_some() {
            pending.finish()?;
            if let Some(rest) = &mut pending.binding.rest {
                rest.run(&pending.watch)?;
            }
        }
        Ok(pending)
    }

    /// Submits the only segment. Where memory runs out, what can be freed is, and imports become copies.
    fn submit_one(&mut self) -> Result<Option<Event>, Error> {
        let submit = |binding: &Self| match binding.segments.first() {
            None => Ok(None),
            Some(leg) => match leg.begin(&binding.inner.devices)? {
                Begun::Over => Ok(None),
                Begun::Pieces(mut submission) => Ok(Some(submission.submit_next()?)),
            },
        };
        let is_short = |result: &Result<_, Error>| matches!(result, Err(e) if e.is_out_of_memory());
        let mut result = submit(self);
        if is_short(&result) {
            self.spare.clear();
            self.recorded.clear();
            self.inner.relieve();
            result = submit(self);
        }
        if is_short(&result) && self.copy_instead()? {
            result = submit(self);
        }
        result
    }

    /// Gives devices copies of what they import. Says whether there was anything.
    fn copy_instead(&mut self) -> Result<bool, Error> {
        let policy = BindPolicy { copies: true, ..self.policy };
        let could = |slots: &[Slot<'_>]| slots.iter().any(Slot::could_copy);
        if policy.strict || !(could(&self.inputs) || could(&self.outputs)) {
            return Ok(false);
        }
        let (compiled, inner) = (Arc::clone(&self.compiled), Arc::clone(&self.inner));
        let copied = |slots: &[Slot<'e>], ios: &[PlannedIo], side| -> Result<Vec<(usize, Slot<'e>)>, Error> {
            let could = slots.iter().zip(ios).enumerate().filter(|(_, (slot, _))| slot.could_copy());
            could
                .map(|(at, (slot, io))| {
                    Ok((at, Slot::new(slot.source.clone(), io, side, &inner.devices, policy)?))
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
        for (slot, io) in self.inputs.iter().zip(&compiled.plan.inputs) {
            inner.past_runs(|devices| slot.stage_in(devices, io.info.bytes()))?;
        }
        Ok(true)
    }

    /// Records again where earlier runs told that submissions are too long or too short, or where this is the first run
    /// that may be ended early.
    fn cut_anew(&mut self, watch: &Watch) -> Result<(), Error> {
        let ends_now = watch.may_end() && !self.may_end;
        let version = self.compiled.schedule.version();
        let stale = |leg: &Leg| leg.cut.as_ref().is_some_and(|cut| cut.version != version);
        if !ends_now && !self.segments.iter().any(stale) {
            return Ok(());
        }
        self.may_end |= ends_now;
        self.recorded.clear();
        self.segments = self.prepare()?;
        Ok(())
    }

    /// Waits for a run that no one waited for, where its devices may not have been given all of it.
    pub(in crate::session) fn settle(&self) {
        if let Some(last) = &self.last {
            last.settle();
        }
    }

    /// Makes sure that the commands name the memory that a shared arena has now.
    pub(in crate::session) fn enter<'a>(&mut self, mut turn: Turn<'a>) -> Result<Turn<'a>, Error> {
        if !turn.is_current(&self.arenas) {
            self.recorded.clear();
            self.segments = Arc::default();
            self.arenas = Arenas::default();
            self.arenas = turn.fit(&self.compiled.plan, &self.inner.devices)?;
            self.segments = self.prepare()?;
        }
        Ok(turn)
    }
}

impl Pending<'_, '_> {
    /// Waits until the results are where they were bound.
    ///
    /// # Errors
    /// As [`Binding::run`].
    pub fn wait(mut self) -> Result<(), Error> {
        match self.binding.rest {
            Some(_) => Ok(()),
            None => self.finish(),
        }
    }

    /// Ends the run before its next submission to a device; what was submitted goes on. [`Pending::wait`] waits for that
    /// and returns [`SessionError::Cancelled`](crate::session::SessionError::Cancelled), unless all was submitted. Outputs are undefined then.
    ///
    /// Devices that may drive a display are given submissions of about 100 ms
    /// ([`SubmissionLimit`](crate::session::SubmissionLimit)), others all of a segment unless the run has a [`CancelToken`] or a
    /// time limit from the start ([`RunOptions`]).
    pub fn cancel(&self) {
        self.watch.token().cancel();
    }

    /// [`Pending::cancel`] for another thread.
    pub fn canceller(&self) -> CancelToken {
        self.watch.token().clone()
    }

    /// Waits for the one submission there was, and takes in how long it took.
    fn wait_for_one(&self, event: &Event) -> Result<(), Error> {
        let binding = &*self.binding;
        let Some(leg) = binding.segments.first().filter(|leg| leg.cut.is_some()) else {
            return Ok(event.wait()?);
        };
        // How long ago it ended is not known where it is over.
        let was_over = event.is_done()?;
        event.wait()?;
        let wall = if was_over { 0 } else { nanos(self.watch.elapsed()) };
        let course = Course { events: vec![event.clone()], walls: vec![wall], times: None };
        leg.learn(&course, &binding.compiled.schedule, &binding.inner.devices);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        match self.underway.take() {
            Some(Underway::One(event)) => self.wait_for_one(&event)?,
            Some(several) => several.wait()?,
            None => {}
        }
        let plan = &self.binding.compiled.plan;
        for (slot, io) in self.binding.outputs.iter().zip(&plan.outputs) {
            self.binding.inner.past_runs(|devices| slot.stage_out(devices, io.info.bytes()))?;
        }
        Ok(())
    }

    /// Whether the devices have finished.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn is_done(&self) -> Result<bool, Error> {
        self.underway.as_ref().map_or(Ok(true), Underway::is_done)
    }
}
