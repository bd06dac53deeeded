//! Segments ready to be submitted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{Buffer, Event, Prepared, Submission};
use crate::session::core::device::Device;
use crate::session::core::pieces::{PieceCuts, PieceSchedule};
use crate::session::core::queue::Footprint;
use crate::session::error::Error;

/// One segment, ready to be submitted.
#[derive(Clone, Debug)]
pub(in crate::session) struct SegmentLaunch {
    /// Launches of other lanes that must finish before it.
    pub(in crate::session) waits: Vec<u32>,
    pub(in crate::session) work: LaunchWork,
    pub(in crate::session) footprint: Footprint,
    /// Number of nodes.
    pub(in crate::session) nodes: usize,
    /// Its pieces, where submissions of its device have a limit.
    pub(in crate::session) cut: Option<Arc<PieceCuts>>,
}

#[derive(Clone, Debug)]
pub(in crate::session) enum LaunchWork {
    /// Commands on the device's queue.
    Commands(Prepared),
    /// Copies by the session.
    Moves(Vec<Move>),
}

/// A begun launch.
#[derive(Debug)]
pub(in crate::session) enum Started {
    /// Finished: it has nothing to submit.
    Done,
    /// Pieces to submit.
    Pieces(Submission),
}

/// A copy between two devices that cannot use each other's memory in place.
#[derive(Clone, Debug)]
pub(in crate::session) struct Move {
    pub(in crate::session) from: u32,
    pub(in crate::session) src: Buffer,
    pub(in crate::session) to: u32,
    pub(in crate::session) dst: Buffer,
}

impl Move {
    fn copy(&self, devices: &[Device]) -> Result<(), Error> {
        let (from, to) = (&devices[self.from as usize], &devices[self.to as usize]);
        if self.src.host_address().is_some() && self.src.info().cached {
            let bytes = self.src.map_read()?;
            return Ok(to.write(&self.dst, &bytes)?);
        }
        let mut bytes = vec![0u8; usize::try_from(self.src.bytes()).unwrap_or(usize::MAX)];
        from.read(&self.src, &mut bytes)?;
        Ok(to.write(&self.dst, &bytes)?)
    }
}

impl SegmentLaunch {
    pub(in crate::session) fn device(&self) -> u32 {
        self.footprint.device
    }

    /// Launches of one lane run in order: the queue of a device, or the session's copies to it.
    pub(in crate::session) fn lane(&self) -> (bool, u32) {
        (matches!(self.work, LaunchWork::Commands(_)), self.device())
    }

    /// Whether it makes at most one submission.
    pub(in crate::session) fn is_single(&self) -> bool {
        self.cut.as_ref().is_none_or(|cut| cut.pieces.len() <= 1)
    }

    /// Begins the launch; copies by the session are finished on return.
    pub(in crate::session) fn begin(&self, devices: &[Device]) -> Result<Started, Error> {
        match &self.work {
            LaunchWork::Commands(prepared) => {
                Ok(Started::Pieces(devices[self.device() as usize].queue.begin(prepared)?))
            }
            LaunchWork::Moves(moves) => {
                moves.iter().try_for_each(|m| m.copy(devices))?;
                Ok(Started::Done)
            }
        }
    }

    /// Nodes finished after the first `pieces` pieces.
    pub(in crate::session) fn nodes_done(&self, pieces: usize) -> usize {
        let cut = self.cut.as_ref().map_or(&[][..], |cut| &cut.pieces);
        pieces.checked_sub(1).and_then(|last| cut.get(last)).map_or(0, |piece| piece.nodes_done)
    }

    /// Records its times, which later cuts use.
    pub(in crate::session) fn record_times(
        &self,
        trace: &SegmentTrace,
        schedule: &PieceSchedule,
        devices: &[Device],
    ) {
        let Some(cut) = self.cut.as_deref() else { return };
        let longest = trace.walls.iter().copied().max().unwrap_or(0);
        if trace.events.len() != cut.pieces.len() || !schedule.wants_times(cut, longest) {
            return;
        }
        let clock = devices[self.device() as usize].context.info().timestamp_ns > 0.0;
        if self.is_single() && !cut.timed {
            return schedule.record_wall_time(cut, Duration::from_nanos(longest), clock);
        }
        let by_clock = |event: &Event| {
            // Missing times do not fail a run.
            let ticks = event.timestamps().ok()?;
            Some(ticks.last()?.saturating_sub(*ticks.first()?))
        };
        let times = trace.events.iter().zip(&trace.walls).map(|(event, wall)| match cut.timed {
            true => by_clock(event).or(Some(*wall)),
            false => Some(*wall),
        });
        schedule.record_times(cut, &times.collect::<Vec<_>>());
    }
}

/// Times of one launch of a run.
#[derive(Clone, Debug, Default)]
pub(in crate::session) struct SegmentTrace {
    /// When it began, and when the host saw its end.
    pub(in crate::session) times: Option<(Instant, Instant)>,
    /// One event for each piece.
    pub(in crate::session) events: Vec<Event>,
    /// Nanoseconds of each piece by the host's clock, from the end of the previous piece or its own submission.
    pub(in crate::session) walls: Vec<u64>,
}
