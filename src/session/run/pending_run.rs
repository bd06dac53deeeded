//! Runs of several submissions.

use std::sync::Arc;

use super::reads::Reads;
use super::segments::run_segments;
use crate::backend::DeviceError;
use crate::session::bind::launch::{SegmentLaunch, Started};
use crate::session::core::SessionCore;
use crate::session::core::cancel::Watch;
use crate::session::core::compiled::Compiled;
use crate::session::core::in_flight::{CompletionGuard, RunState};
use crate::session::core::queue::Ticket;
use crate::session::error::Error;

/// A run that is in the queue of its session and has not started.
#[derive(Debug)]
pub(in crate::session) struct PendingRun {
    core: Arc<SessionCore>,
    compiled: Arc<Compiled>,
    launches: Arc<[SegmentLaunch]>,
    ticket: Ticket,
    watch: Watch,
    reads: Arc<Reads>,
    /// The only launch, already begun.
    begun: Option<Started>,
    completion: CompletionGuard,
}

impl PendingRun {
    /// Enqueues a run of `launches` after all earlier ones.
    pub(in crate::session) fn new(
        core: &Arc<SessionCore>,
        compiled: &Arc<Compiled>,
        launches: &Arc<[SegmentLaunch]>,
        (watch, reads): (&Watch, &Arc<Reads>),
    ) -> Result<Self, Error> {
        let (core, compiled, launches) = (Arc::clone(core), Arc::clone(compiled), Arc::clone(launches));
        let (watch, reads, completion) = (watch.clone(), Arc::clone(reads), CompletionGuard::default());
        let ticket = core.queue.enqueue(launches.iter().map(|launch| &launch.footprint));
        // A single launch claims its memory now, as a single submission does.
        let begun = match &launches[..] {
            [launch] => Some(launch.begin(&core.devices)?),
            _ => None,
        };
        Ok(PendingRun { core, compiled, launches, ticket, watch, reads, begun, completion })
    }

    pub(in crate::session) fn state(&self) -> &Arc<RunState> {
        self.completion.run()
    }

    /// Runs on this thread.
    pub(in crate::session) fn run(self) {
        let PendingRun { core, compiled, launches, ticket, watch, reads, mut begun, completion } = self;
        let result = run_segments(&launches, &ticket, (&watch, &reads), &|| core.drop_idle_plans(), |s| {
            match begun.take() {
                Some(begun) => Ok(begun),
                None => launches[s].begin(&core.devices),
            }
        });
        let result = result.map(|traces| {
            let each = launches.iter().zip(&traces);
            each.for_each(|(launch, trace)| launch.record_times(trace, &compiled.schedule, &core.devices));
        });
        reads.run_over();
        // The next action of a waiter may be to release memory and devices.
        drop((ticket, launches, compiled, core));
        completion.complete(result.err());
    }

    /// Runs on a new thread.
    pub(in crate::session) fn spawn(self) -> Result<(), Error> {
        let spawned = std::thread::Builder::new().name("onepool-run".to_owned()).spawn(move || self.run());
        let failed = |e: std::io::Error| {
            let code = e.raw_os_error().unwrap_or(0);
            DeviceError::Backend { api: "system", call: "start a thread", code }
        };
        spawned.map(drop).map_err(|e| failed(e).into())
    }
}
