//! Commands enqueued one by one: collected into a recording, with barriers where they are needed.

use std::sync::Arc;

use super::buffer::Buffer;
use super::check::Checker;
use super::core::Payload;
use super::error::{Error, Problem, UsageError};
use super::event::{Event, Ticket};
use super::kernel::{Kernel, KernelArg};
use super::queue::{Queue, QueueInner};
use crate::backend::Timepoint;
use crate::recording::{Command, Dispatch, Recording};
use onepool_core::memory::coherency::Tracker;
use onepool_core::sync::lock;

/// Commands after which a batch is submitted unasked, so that none grows without bound.
const MAX_COMMANDS: usize = 1024;

/// The commands enqueued since the last submission.
#[derive(Debug, Default)]
pub(super) struct Batch {
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    checker: Checker,
    recording: Recording,
    tracker: Tracker,
    /// Whether the device needs no barrier.
    in_order: bool,
    ticket: Arc<Ticket>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_none()
    }

    /// Submits the commands and tells their events.
    pub(super) fn submit(self, queue: &Arc<QueueInner>) -> Result<Timepoint, Error> {
        let Some(open) = self.open else { return Ok(Timepoint(0)) };
        let ticket = Arc::clone(&open.ticket);
        let fate = open.submit(queue);
        ticket.settle(fate.clone());
        fate
    }
}

impl Open {
    fn new(queue: &Arc<QueueInner>) -> Open {
        Open {
            checker: Checker::new(&queue.core, "enqueue", 0),
            recording: Recording::default(),
            tracker: Tracker::after_others(),
            in_order: queue.core.info.in_order,
            ticket: Arc::default(),
        }
    }

    fn push(&mut self, context: &'static str, command: Command) -> Result<(), UsageError> {
        self.checker.set_context(context);
        let touches = self.checker.command(&command)?;
        let barrier = self.tracker.command(&touches).filter(|_| !self.in_order);
        self.recording.commands.extend(barrier.map(Command::Barrier));
        self.recording.commands.push(command);
        Ok(())
    }

    fn submit(mut self, queue: &Arc<QueueInner>) -> Result<Timepoint, Error> {
        let closing = self.tracker.finish(&self.checker.written()).filter(|_| !self.in_order);
        if let Some(closing) = closing {
            // The checker sees it too: it is what shows the host the batch's writes.
            self.checker.command(&Command::Barrier(closing))?;
            self.recording.commands.push(Command::Barrier(closing));
        }
        (self.recording.flush, self.recording.invalidate) = self.checker.host_ranges();
        let work = self.checker.finish(&self.recording)?;
        work.acquire(&mut self.recording);
        work.release(&mut self.recording);
        let payload = Payload::Once(Arc::new(work));
        queue.launch("flush", &payload, || queue.backend.submit(&self.recording))
    }
}

impl Queue {
    /// Enqueues a kernel over `global` work-items; `local` must be the kernel's own work-group size where
    /// it is given. The last work-group of an axis may reach beyond `global`. Native kernels ignore both.
    ///
    /// # Errors
    /// [`UsageError`] for an argument that breaks a rule; the kernel is not enqueued then.
    pub fn enqueue_nd_range(
        &self,
        kernel: &Kernel,
        global: [u64; 3],
        local: Option<[u32; 3]>,
        args: &[KernelArg<'_>],
        params: &[u8],
    ) -> Result<Event, Error> {
        const CONTEXT: &str = "enqueue_nd_range";
        let own = kernel.inner.local_size();
        if let (Some(own), Some(asked)) = (own, local)
            && let Some((expected, found)) = own.iter().zip(asked).find(|(own, asked)| **own != *asked)
        {
            let (found, expected) = (u64::from(found), u64::from(*expected));
            let problem = Problem::Mismatch { what: "the work-group size", found, expected };
            return Err(UsageError::new(CONTEXT, problem).into());
        }
        let mut groups = [1u32; 3];
        for ((groups, global), local) in groups.iter_mut().zip(global).zip(own.or(local).unwrap_or([1; 3])) {
            let limit = u64::from(u32::MAX);
            let found = global.div_ceil(u64::from(local.max(1)));
            let problem = Problem::Limit { what: "the number of work-groups", found, limit };
            *groups = u32::try_from(found).map_err(|_| UsageError::new(CONTEXT, problem))?;
        }
        let args = args.iter().map(|arg| arg.to_arg()).collect();
        let dispatch = Dispatch::new(kernel.id(), args, params.to_vec(), groups);
        self.enqueue(CONTEXT, Command::Dispatch(dispatch))
    }

    /// Enqueues a copy between two buffers of one size that share no byte.
    ///
    /// # Errors
    /// [`UsageError`]; nothing is enqueued then.
    pub fn enqueue_copy(&self, src: &Buffer, dst: &Buffer) -> Result<Event, Error> {
        self.enqueue("enqueue_copy", Command::Copy { src: src.range(), dst: dst.range() })
    }

    /// Enqueues filling a buffer with a repeated word; its offset and size are multiples of four.
    ///
    /// # Errors
    /// [`UsageError`]; nothing is enqueued then.
    pub fn enqueue_fill(&self, dst: &Buffer, value: u32) -> Result<Event, Error> {
        self.enqueue("enqueue_fill", Command::Fill { dst: dst.range(), value })
    }

    fn enqueue(&self, context: &'static str, command: Command) -> Result<Event, Error> {
        let mut batch = lock(&self.inner.batch);
        let open = batch.open.get_or_insert_with(|| Open::new(&self.inner));
        let pushed = open.push(context, command);
        let (ticket, commands) = (Arc::clone(&open.ticket), open.recording.commands.len());
        drop(batch);
        pushed?;
        if commands >= MAX_COMMANDS {
            // The events of the commands tell what went wrong.
            let _ = self.inner.flush();
        }
        Ok(Event::batched(&self.inner, ticket))
    }
}
