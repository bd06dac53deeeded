//! Segments in pieces: short submissions, so that a display on the same device stays responsive.
//!
//! A recording is cut between commands, first by estimated times, then by those of earlier runs. A copy, a fill or a
//! dispatch that takes longer than the limit becomes several ([`split`](super::split)). One that cannot be split is a
//! piece of its own.

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::backend::{DeviceInfo, DeviceKind};
use crate::plan::place::Roofline;
use crate::plan::{NodeReport, Plan};
use crate::recording::{Command, Dispatch};
use crate::session::core::split::{
    DispatchPart, LEAST_PART, LabelledRecording, copy_nanos, split_copies, split_dispatches,
};
use crate::session::error::NoLimit;
use crate::sync::lock;

/// The limit of [`SubmissionLimit::Auto`] on devices that may drive a display, and the longest time between checks of
/// runs that may end early. People notice a tenth of a second.
const LIMIT: Duration = Duration::from_millis(100);

/// Pieces are planned for this part of the limit, because estimates are inexact.
const PART: (u64, u64) = (3, 4);

/// The maximum number of cuts of a segment, because times vary on a busy machine.
const MOST_CUTS: u32 = 24;

/// Runs after a cut whose times are recorded, unless one seems too long.
const CALM: u32 = 8;

/// Speeds of an unmeasured device: low, so that estimates are too long rather than too short.
const PROCESSOR: Roofline =
    Roofline { submit_ns: 20_000.0, launch_ns: 5_000.0, flops: 10.0, bytes: 4.0, bus_ns: 0.0 };
const GPU: Roofline =
    Roofline { submit_ns: 50_000.0, launch_ns: 5_000.0, flops: 200.0, bytes: 15.0, bus_ns: 0.0 };

/// How long one submission may keep a device busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SubmissionLimit {
    /// 100 ms on devices that may drive a display: integrated, discrete and virtual GPUs. No limit on processors and
    /// on devices that run native functions.
    #[default]
    Auto,
    /// No limit.
    Off,
    /// The duration, on every device. One command that takes longer and cannot be split is a submission of its own.
    AtMost(Duration),
}

/// The environment variable with the default limit of submissions, in the syntax of [`SubmissionLimit`].
pub const LIMIT_VARIABLE: &str = "ONEPOOL_SUBMISSION_LIMIT";

impl FromStr for SubmissionLimit {
    type Err = NoLimit;

    /// `auto`, `off`, or milliseconds.
    fn from_str(text: &str) -> Result<Self, NoLimit> {
        let millis = |text: &str| text.parse::<f64>().ok().filter(|ms| (0.0..=3_600_000.0).contains(ms));
        match text {
            "auto" => Ok(SubmissionLimit::Auto),
            "off" => Ok(SubmissionLimit::Off),
            text => match millis(text) {
                Some(ms) => Ok(SubmissionLimit::AtMost(Duration::from_secs_f64(ms / 1e3))),
                None => Err(NoLimit { text: text.to_owned() }),
            },
        }
    }
}

impl SubmissionLimit {
    /// The limit of the environment variable, else [`SubmissionLimit::Auto`].
    pub(in crate::session) fn of_environment() -> Result<Self, NoLimit> {
        match std::env::var(LIMIT_VARIABLE) {
            Ok(text) => text.trim().parse(),
            Err(_) => Ok(SubmissionLimit::Auto),
        }
    }

    /// The limit on a device, in nanoseconds. Runs that may end early have one on every device, because they end
    /// between submissions.
    pub(in crate::session) fn on(self, info: &DeviceInfo, may_end: bool) -> Option<u64> {
        let limit = match self {
            SubmissionLimit::AtMost(limit) => Some(limit),
            SubmissionLimit::Auto if info.may_show() => Some(LIMIT),
            SubmissionLimit::Auto | SubmissionLimit::Off => may_end.then_some(LIMIT),
        };
        limit.map(nanos)
    }
}

pub(in crate::session) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The speeds of entry `device` of the table: measured by placement, or slow defaults.
pub(in crate::session) fn speeds(plan: &Plan, device: u32, info: &DeviceInfo) -> Roofline {
    let measured = plan.report.placement.as_ref().and_then(|placed| placed.devices.get(device as usize));
    let assumed = if info.native || info.kind == DeviceKind::Cpu { PROCESSOR } else { GPU };
    measured.copied().filter(Roofline::is_sound).unwrap_or(assumed)
}

/// Measured times of the segments of a plan, shared by all its bindings.
#[derive(Debug, Default)]
pub(in crate::session) struct PieceSchedule {
    /// Increases when recordings must be cut again.
    version: AtomicU64,
    /// Runs since the last change.
    calm: AtomicU32,
    segments: Mutex<Vec<SegmentTimes>>,
}

#[derive(Clone, Debug, Default)]
struct SegmentTimes {
    /// Nanoseconds of each whole dispatch; empty before the first cut.
    dispatches: Vec<u64>,
    /// Pieces have timestamps at both ends.
    timed: bool,
    cuts: u32,
}

/// The pieces of a segment.
#[derive(Clone, Debug, Default)]
pub(in crate::session) struct PieceCuts {
    /// The first command of each piece but the first.
    pub(in crate::session) starts: Vec<usize>,
    pub(in crate::session) pieces: Vec<Piece>,
    /// What its dispatches are of the plan's.
    parts: Vec<DispatchPart>,
    segment: usize,
    /// Nanoseconds that a piece may take.
    limit: u64,
    pub(in crate::session) version: u64,
    /// Pieces have timestamps at both ends.
    pub(in crate::session) timed: bool,
}

/// What is cut for.
#[derive(Clone, Copy, Debug)]
pub(in crate::session) struct CutTerms<'a> {
    /// Nanoseconds that a piece may take.
    pub(in crate::session) limit: u64,
    pub(in crate::session) speeds: &'a Roofline,
    /// Whether the device has timestamps.
    pub(in crate::session) clock: bool,
}

#[derive(Clone, Debug, Default)]
pub(in crate::session) struct Piece {
    /// Indices of its dispatches in the segment, parts counted each for itself.
    dispatches: std::ops::Range<usize>,
    /// Dispatches, copies and fills.
    commands: usize,
    /// Estimated nanoseconds of its copies and fills.
    copies: u64,
    /// Nodes finished at its end, counted from the start of the segment.
    pub(in crate::session) nodes_done: usize,
}

impl PieceSchedule {
    pub(in crate::session) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether to record the times of another run; `longest` is the longest wait for one of its pieces, in nanoseconds.
    pub(in crate::session) fn wants_times(&self, cut: &PieceCuts, longest: u64) -> bool {
        longest > cut.limit || self.calm.fetch_add(1, Ordering::Relaxed) < CALM
    }

    /// Takes `nanos` for the time of every dispatch from now on.
    #[cfg(test)]
    pub(in crate::session) fn assume(&self, nanos: u64) {
        let times =
            SegmentTimes { dispatches: vec![nanos; 1 << 10], cuts: MOST_CUTS, ..SegmentTimes::default() };
        *self.lock() = vec![times; 16];
        self.changed();
    }

    fn changed(&self) {
        self.calm.store(0, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SegmentTimes>> {
        lock(&self.segments)
    }

    /// Cuts segment `segment` of a plan with `nodes` into pieces by measured times, or by estimates. `has_parts`: whether
    /// a dispatch can be split.
    pub(in crate::session) fn cut(
        &self,
        labelled: &mut LabelledRecording,
        nodes: &[NodeReport],
        segment: usize,
        terms: CutTerms<'_>,
        has_parts: impl Fn(&Dispatch) -> bool,
    ) -> PieceCuts {
        let CutTerms { limit, speeds, clock } = terms;
        let version = self.version();
        split_copies(labelled, limit, speeds);
        let mut segments = self.lock();
        if segments.len() <= segment {
            segments.resize(segment + 1, SegmentTimes::default());
        }
        let known = &mut segments[segment];
        if known.dispatches.is_empty() {
            known.dispatches = estimates(labelled, nodes, speeds);
        }
        let most = limit / PART.1 * PART.0;
        let parts = split_dispatches(labelled, &known.dispatches, most, has_parts);
        let (starts, pieces) = pieces(labelled, &parts, most, speeds);
        known.timed = clock && (known.timed || pieces.len() > 1);
        if pieces.len() > 1 {
            let (submissions, dispatches) = (pieces.len(), known.dispatches.len());
            tracing::debug!(target: "onepool::session", segment, dispatches, parts = parts.len(), submissions, "cut");
        }
        PieceCuts { starts, pieces, parts, segment, limit, version, timed: known.timed }
    }

    /// Records the nanoseconds of the pieces of one run, where they are known.
    pub(in crate::session) fn record_times(&self, cut: &PieceCuts, times: &[Option<u64>]) {
        let mut segments = self.lock();
        let Some(known) = segments.get_mut(cut.segment).filter(|_| cut.version == self.version()) else {
            return;
        };
        let mut too_long = false;
        let mut sum = 0u64;
        for (piece, time) in cut.pieces.iter().zip(times) {
            let Some(time) = *time else { return };
            sum = sum.saturating_add(time);
            too_long |= cut.may_shorten(piece, time);
        }
        // Half as many pieces suffice.
        let wasteful = sum.div_ceil((cut.limit / PART.1 * PART.0).max(1)) as usize * 2 <= cut.pieces.len()
            && cut.pieces.len() > 1;
        if !(too_long || wasteful) || known.cuts >= MOST_CUTS {
            return;
        }
        // The slowest part of a dispatch tells how long the whole one takes, so that each fits.
        let mut found = vec![0; known.dispatches.len()];
        for (piece, time) in cut.pieces.iter().zip(times) {
            let parts = cut.parts_of(piece);
            let time = time.unwrap_or(0).saturating_sub(piece.copies);
            let thought = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.nanos));
            let factor = time as f64 / thought.max(1) as f64;
            for DispatchPart { dispatch, .. } in parts {
                if let (Some(found), Some(nanos)) =
                    (found.get_mut(*dispatch), known.dispatches.get(*dispatch))
                {
                    *found = ((*nanos as f64 * factor) as u64).max(1).max(*found);
                }
            }
        }
        known.dispatches = found;
        known.cuts += 1;
        self.changed();
    }

    /// Records the host's time of an uncut segment, waits included. If it is too long, later runs get timestamps.
    pub(in crate::session) fn record_wall_time(&self, cut: &PieceCuts, time: Duration, clock: bool) {
        let [piece] = &cut.pieces[..] else { return };
        if !cut.may_shorten(piece, nanos(time)) || cut.timed {
            return;
        }
        if !clock {
            return self.record_times(cut, &[Some(nanos(time))]);
        }
        let mut segments = self.lock();
        if let Some(known) = segments.get_mut(cut.segment).filter(|known| !known.timed) {
            known.timed = true;
            self.changed();
        }
    }
}

impl PieceCuts {
    fn parts_of(&self, piece: &Piece) -> &[DispatchPart] {
        self.parts.get(piece.dispatches.clone()).unwrap_or_default()
    }

    /// Whether `piece`, which took `time` nanoseconds, is too long and can be cut or split further.
    fn may_shorten(&self, piece: &Piece, time: u64) -> bool {
        let splits = || self.parts_of(piece).iter().any(|part| part.splits) && time >= LEAST_PART * 2;
        time > self.limit && (piece.commands > 1 || splits())
    }
}

/// Estimated nanoseconds of each dispatch: the dispatches of a node share its cost equally.
fn estimates(labelled: &LabelledRecording, nodes: &[NodeReport], speeds: &Roofline) -> Vec<u64> {
    let report = |node: Option<u32>| nodes.get(node? as usize);
    let dispatches = labelled.recording.commands.iter().zip(&labelled.nodes);
    let dispatches = dispatches.filter(|(command, _)| matches!(command, Command::Dispatch(_)));
    let nanos = |node: Option<u32>| {
        report(node).map_or(0, |n| speeds.estimate(n.cost, n.commands) / u64::from(n.commands.max(1))).max(1)
    };
    dispatches.map(|(_, node)| nanos(*node)).collect()
}

/// Fills each piece with commands for at most `most` nanoseconds, at least one command.
fn pieces(
    labelled: &LabelledRecording,
    parts: &[DispatchPart],
    most: u64,
    speeds: &Roofline,
) -> (Vec<usize>, Vec<Piece>) {
    let commands = &labelled.recording.commands;
    let (mut starts, mut pieces) = (Vec::new(), Vec::new());
    let (mut piece, mut nanos, mut dispatch) = (Piece::default(), 0u64, 0);
    let (mut node, mut nodes) = (None, 0);
    for (at, command) in commands.iter().enumerate() {
        let (time, copies) = match command {
            Command::Dispatch(_) => (parts.get(dispatch).map_or(1, |part| part.nanos), 0),
            Command::Copy { src, .. } => (copy_nanos(src.bytes, speeds), copy_nanos(src.bytes, speeds)),
            Command::Fill { dst, .. } => (copy_nanos(dst.bytes, speeds), copy_nanos(dst.bytes, speeds)),
            Command::Barrier(_) | Command::Timestamp { .. } => continue,
        };
        // Parts of one dispatch write the same buffers, so to a driver's checks they need the barrier that a
        // piece begins with.
        let whole = |part: usize| parts.get(part).map(|part| part.dispatch);
        let continues = matches!(command, Command::Dispatch(_))
            && dispatch.checked_sub(1).is_some_and(|before| whole(before) == whole(dispatch));
        if piece.commands > 0 && (continues || nanos.saturating_add(time) > most) {
            // Its barriers move with it.
            let before = commands[..at].iter().rev();
            let barriers = before.take_while(|command| matches!(command, Command::Barrier(_))).count();
            starts.push(at - barriers);
            // A node that continues in the next piece is unfinished.
            let over =
                nodes - usize::from(labelled.nodes.get(at).is_some_and(|next| *next == node && nodes > 0));
            piece.nodes_done = over;
            let first = piece.dispatches.end;
            pieces.push(std::mem::take(&mut piece));
            piece.dispatches = first..first;
            nanos = 0;
        }
        if let Some(&next @ Some(_)) = labelled.nodes.get(at).filter(|next| **next != node) {
            (node, nodes) = (next, nodes + 1);
        }
        dispatch += usize::from(matches!(command, Command::Dispatch(_)));
        piece.dispatches.end = dispatch;
        piece.commands += 1;
        piece.copies = piece.copies.saturating_add(copies);
        nanos = nanos.saturating_add(time);
    }
    piece.nodes_done = nodes;
    pieces.push(piece);
    (starts, pieces)
}

/// Writes a recording again with timestamps.
struct TimestampWriter {
    labelled: LabelledRecording,
    starts: Vec<usize>,
    /// The node after each timestamp.
    slots: Vec<Option<u32>>,
}

impl TimestampWriter {
    fn stamp(&mut self, node: Option<u32>) {
        self.labelled.recording.commands.push(Command::Timestamp { slot: self.slots.len() as u32 });
        self.labelled.nodes.push(None);
        self.slots.push(node);
    }

    /// Writes `labelled` again: `next` runs before each command, with its node and whether it begins a piece, `end`
    /// after the last command of each piece.
    fn write(
        labelled: &mut LabelledRecording,
        cut: &mut PieceCuts,
        mut next: impl FnMut(&mut TimestampWriter, Option<u32>, bool),
        mut end: impl FnMut(&mut TimestampWriter),
    ) -> Vec<Option<u32>> {
        let LabelledRecording { mut recording, nodes } = std::mem::take(labelled);
        let commands = std::mem::take(&mut recording.commands);
        let empty = LabelledRecording { recording, nodes: Vec::with_capacity(nodes.len()) };
        let mut timed = TimestampWriter { labelled: empty, starts: Vec::new(), slots: Vec::new() };
        let count = commands.len();
        for (at, (command, node)) in commands.into_iter().zip(nodes).enumerate() {
            let starts = cut.starts.binary_search(&at).is_ok();
            if starts {
                timed.starts.push(timed.labelled.recording.commands.len());
            }
            next(&mut timed, node, starts || at == 0);
            timed.labelled.recording.commands.push(command);
            timed.labelled.nodes.push(node);
            if at + 1 == count || cut.starts.binary_search(&(at + 1)).is_ok() {
                end(&mut timed);
            }
        }
        timed.labelled.recording.timestamps = timed.slots.len() as u32;
        (*labelled, cut.starts) = (timed.labelled, timed.starts);
        timed.slots
    }
}

/// Puts a timestamp at both ends of each piece.
pub(in crate::session) fn time_pieces(labelled: &mut LabelledRecording, cut: &mut PieceCuts) {
    let first = |timed: &mut TimestampWriter, _: Option<u32>, starts: bool| {
        if starts {
            timed.stamp(None);
        }
    };
    TimestampWriter::write(labelled, cut, first, |timed| timed.stamp(None));
}

/// Puts a timestamp before every node and after the last command of each piece. Returns the node after each
/// timestamp; there is none after the end of a piece.
pub(in crate::session) fn time_nodes(
    labelled: &mut LabelledRecording,
    cut: &mut PieceCuts,
) -> Vec<Option<u32>> {
    let open = std::cell::Cell::new(None);
    let next = |timed: &mut TimestampWriter, node: Option<u32>, _: bool| {
        if open.replace(node) != node {
            timed.stamp(node);
        }
    };
    let end = |timed: &mut TimestampWriter| {
        if open.take().is_some() {
            timed.stamp(None);
        }
    };
    TimestampWriter::write(labelled, cut, next, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::coherency::{Access, Barrier};
    use crate::recording::{DeviceKernelId, Recording};

    const BARRIER: Command = Command::Barrier(Barrier { src: Access::DEVICE_WRITE, dst: Access::DEVICE });

    fn dispatch() -> Command {
        let kernel = DeviceKernelId { index: 0, generation: 0 };
        Command::Dispatch(Dispatch::new(kernel, Vec::new(), Vec::new(), [1; 3]))
    }

    fn labelled(commands: Vec<(Command, Option<u32>)>) -> LabelledRecording {
        let (commands, nodes) = commands.into_iter().unzip();
        LabelledRecording { recording: Recording { commands, ..Recording::default() }, nodes }
    }

    /// Four dispatches of three nodes with barriers between them.
    fn four() -> LabelledRecording {
        labelled(vec![
            (dispatch(), Some(0)),
            (BARRIER, Some(1)),
            (dispatch(), Some(1)),
            (dispatch(), Some(1)),
            (BARRIER, Some(2)),
            (dispatch(), Some(2)),
            (BARRIER, None),
        ])
    }

    /// Ten nanoseconds for each of them.
    fn tens() -> Vec<DispatchPart> {
        (0..4).map(|dispatch| DispatchPart { dispatch, nanos: 10, splits: false }).collect()
    }

    fn terms(limit: u64, clock: bool) -> CutTerms<'static> {
        CutTerms { limit, speeds: &GPU, clock }
    }

    fn whole(_: &Dispatch) -> bool {
        false
    }

    fn cut(starts: Vec<usize>, pieces: Vec<Piece>, limit: u64) -> PieceCuts {
        PieceCuts { starts, pieces, limit, ..PieceCuts::default() }
    }

    #[test]
    fn pieces_begin_with_their_barriers_and_hold_what_fits() {
        let (starts, pieces) = pieces(&four(), &tens(), 20, &GPU);
        assert_eq!(starts, [3]);
        let done: Vec<_> = pieces.iter().map(|p| (p.dispatches.clone(), p.commands, p.nodes_done)).collect();
        assert_eq!(done, [(0..2, 2, 1), (2..4, 2, 3)]);
        let (starts, single) = super::pieces(&four(), &tens(), 0, &GPU);
        assert_eq!(starts, [1, 3, 4]);
        assert_eq!(single.iter().map(|p| p.nodes_done).collect::<Vec<_>>(), [1, 1, 2, 3]);
        let (starts, whole) = super::pieces(&four(), &tens(), 40, &GPU);
        assert_eq!((starts.len(), whole.len(), whole[0].commands), (0, 1, 4));
    }

    #[test]
    fn nodes_are_timed_in_every_piece() {
        let mut whole = four();
        let slots = time_nodes(&mut whole, &mut PieceCuts::default());
        assert_eq!(slots, [Some(0), Some(1), Some(2), None]);
        let mut labelled = four();
        let mut cut = cut(vec![3], Vec::new(), 0);
        let slots = time_nodes(&mut labelled, &mut cut);
        assert_eq!(slots, [Some(0), Some(1), None, Some(1), Some(2), None]);
        let at = |k: usize| matches!(labelled.recording.commands[k], Command::Timestamp { .. });
        assert!(at(0) && at(cut.starts[0]) && at(cut.starts[0] - 1), "{labelled:?}");
        let mut labelled = four();
        cut.starts = vec![3];
        time_pieces(&mut labelled, &mut cut);
        assert_eq!(labelled.recording.timestamps, 4);
        assert!(matches!(labelled.recording.commands.last(), Some(Command::Timestamp { slot: 3 })));
    }

    /// The loop of a session: cut, run, record times.
    fn turns(schedule: &PieceSchedule, truth: &[u64], limit: u64) -> Vec<usize> {
        let mut counts = Vec::new();
        for _ in 0..MOST_CUTS {
            let cut = schedule.cut(&mut four(), &[], 0, terms(limit, true), whole);
            counts.push(cut.pieces.len());
            let time = |p: &Piece| Some(truth[p.dispatches.clone()].iter().sum());
            schedule.record_times(&cut, &cut.pieces.iter().map(time).collect::<Vec<_>>());
            if schedule.version() == cut.version {
                break;
            }
        }
        counts
    }

    #[test]
    fn what_takes_longer_than_thought_is_cut_until_it_fits() {
        // Without node costs every dispatch counts as short.
        let schedule = PieceSchedule::default();
        let counts = turns(&schedule, &[10, 10, 5000, 10], 100);
        assert_eq!(counts.first(), Some(&1));
        let cut = schedule.cut(&mut four(), &[], 0, terms(100, true), whole);
        // The long command is alone: it cannot be split.
        assert!(cut.pieces.iter().any(|p| p.dispatches == (2..3)), "{cut:?} {counts:?}");
        assert!(cut.pieces.len() < 4 || counts.len() < 6, "{counts:?}");
    }

    /// One dispatch along y, and one after it.
    fn two() -> LabelledRecording {
        let mut long = dispatch();
        if let Command::Dispatch(dispatch) = &mut long {
            dispatch.groups = [3, 100, 1];
        }
        labelled(vec![(long, Some(0)), (BARRIER, Some(1)), (dispatch(), Some(1)), (BARRIER, None)])
    }

    #[test]
    fn a_dispatch_that_takes_longer_than_thought_is_split_until_it_fits() {
        const MS: u64 = 1_000_000;
        let schedule = PieceSchedule::default();
        let cut = |labelled: &mut LabelledRecording| {
            schedule.cut(labelled, &[], 0, terms(100 * MS, true), |_| true)
        };
        let whole = cut(&mut two());
        assert_eq!(whole.pieces.len(), 1);
        schedule.record_wall_time(&whole, Duration::from_secs(3), true);
        assert_ne!(schedule.version(), whole.version);
        schedule.record_times(&cut(&mut two()), &[Some(3000 * MS)]);
        // The second dispatch was as long as the first, as far as anyone knew, and it cannot be split.
        let mut labelled = two();
        let parts = cut(&mut labelled);
        assert_eq!(parts.pieces.len(), 21);
        assert!(parts.timed);
        let commands: Vec<usize> = parts.pieces.iter().map(|piece| piece.commands).collect();
        assert_eq!(commands, [1; 21]);
        let done: Vec<usize> = parts.pieces.iter().map(|piece| piece.nodes_done).collect();
        assert_eq!((&done[..20], done[20]), (&[[0; 19].as_slice(), &[1]].concat()[..], 2));
        time_nodes(&mut labelled, &mut parts.clone());
        // Groups in the middle take longest: that decides.
        let times: Vec<_> = (0..20).map(|part| Some(if part == 9 { 300 * MS } else { 75 * MS })).collect();
        schedule.record_times(&parts, &[times, vec![Some(MS)]].concat());
        let mut labelled = two();
        let last = cut(&mut labelled);
        // The second dispatch fits into the piece of the last part.
        assert_eq!((last.pieces.len(), last.pieces[99].commands), (100, 2));
        let groups = labelled.recording.commands.iter().filter_map(|command| match command {
            Command::Dispatch(dispatch) if dispatch.groups[0] == 3 => Some(dispatch.groups[1]),
            _ => None,
        });
        assert_eq!(groups.sum::<u32>(), 100);
        // At one work-group each there is nothing more to split.
        let times: Vec<_> = (0..100).map(|part| Some(if part == 99 { MS } else { 300 * MS })).collect();
        schedule.record_times(&last, &times);
        assert_eq!(schedule.version(), last.version);
    }

    #[test]
    fn pieces_that_are_far_too_short_become_fewer() {
        let schedule = PieceSchedule::default();
        schedule.lock().push(SegmentTimes { dispatches: vec![90; 4], ..SegmentTimes::default() });
        assert_eq!(turns(&schedule, &[1, 1, 1, 1], 100), [4, 1]);
    }

    #[test]
    fn a_segment_that_seems_long_is_timed_before_it_is_cut() {
        let schedule = PieceSchedule::default();
        let cut = schedule.cut(&mut four(), &[], 0, terms(1000, true), whole);
        assert!(!cut.timed && cut.pieces.len() == 1);
        schedule.record_wall_time(&cut, Duration::from_nanos(999), true);
        assert_eq!(schedule.version(), cut.version);
        schedule.record_wall_time(&cut, Duration::from_micros(9), true);
        let cut = schedule.cut(&mut four(), &[], 0, terms(1000, true), whole);
        assert!(cut.timed && cut.pieces.len() == 1);
        // The device waited for others.
        schedule.record_times(&cut, &[Some(400)]);
        assert_eq!(schedule.version(), cut.version);
        // Without a device clock, the host's is used.
        let schedule = PieceSchedule::default();
        let cut = schedule.cut(&mut four(), &[], 0, terms(1000, false), whole);
        schedule.record_wall_time(&cut, Duration::from_micros(4), false);
        let cut = schedule.cut(&mut four(), &[], 0, terms(1000, false), whole);
        assert!(cut.pieces.len() > 1 && !cut.timed);
    }

    #[test]
    fn limits_are_written_in_milliseconds() {
        assert_eq!("auto".parse(), Ok(SubmissionLimit::Auto));
        assert_eq!("off".parse(), Ok(SubmissionLimit::Off));
        assert_eq!("2.5".parse(), Ok(SubmissionLimit::AtMost(Duration::from_micros(2500))));
        assert_eq!("0".parse(), Ok(SubmissionLimit::AtMost(Duration::ZERO)));
        for bad in ["", "-1", "fast", "NaN", "inf", "1e99"] {
            let said = bad.parse::<SubmissionLimit>().unwrap_err().to_string();
            assert!(said.contains(bad) && said.contains("milliseconds"), "{said}");
        }
    }

    #[test]
    fn devices_that_may_drive_a_display_have_a_limit() {
        use crate::backend::Driver;
        use crate::backend::sim::SimDriver;
        let mut info = SimDriver::default().devices().unwrap().remove(0);
        assert_eq!(SubmissionLimit::Auto.on(&info, false), None);
        assert_eq!(SubmissionLimit::Auto.on(&info, true), Some(100_000_000));
        info.native = false;
        for (kind, limit) in [
            (DeviceKind::Integrated, Some(100_000_000)),
            (DeviceKind::Discrete, Some(100_000_000)),
            (DeviceKind::Virtual, Some(100_000_000)),
            (DeviceKind::Cpu, None),
            (DeviceKind::Other, None),
        ] {
            info.kind = kind;
            assert_eq!(SubmissionLimit::Auto.on(&info, false), limit, "{kind:?}");
            assert_eq!(SubmissionLimit::Off.on(&info, false), None);
            assert_eq!(SubmissionLimit::AtMost(Duration::from_nanos(3)).on(&info, false), Some(3));
        }
    }
}
