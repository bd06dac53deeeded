//! Segments in pieces: submissions that a display that shares the device need not wait for long.
//!
//! A recording is cut between commands, first by what they are estimated to take, then by what earlier runs took. One
//! command that takes longer than the limit is a piece of its own: kernels have no base of their work-groups, so one
//! dispatch cannot become several.

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::backend::{DeviceInfo, DeviceKind};
use crate::plan::place::Roofline;
use crate::plan::{NodeReport, Plan};
use crate::recording::{BufferRange, Command, Recording};

/// What [`SubmissionLimit::Auto`] allows where a device may drive a display, and how far apart runs that may be ended
/// early look whether they are to end. A tenth of a second is where people notice.
const LIMIT: Duration = Duration::from_millis(100);

/// Estimates are no measurements: pieces are planned for this part of the limit.
const PART: (u64, u64) = (3, 4);

/// Bytes below which a copy stays whole, whatever it is estimated to take.
const LEAST_COPY: u64 = 16 << 20;

/// A piece whose time is known, and too long, is cut anew at most so often: times of a busy machine say little.
const MOST_CUTS: u32 = 24;

/// Runs after a cut whose times are looked at, unless one seems too long.
const CALM: u32 = 8;

/// Speeds where nothing was measured: slow ones, so that nothing runs for longer than thought.
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
    /// This on every device. One command that takes longer is a submission of its own.
    AtMost(Duration),
}

/// The environment variable that says, as [`SubmissionLimit`] is written, how long a submission may be where a program
/// does not.
pub const LIMIT_VARIABLE: &str = "ONEPOOL_SUBMISSION_LIMIT";

/// No text of a [`SubmissionLimit`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no limit of a submission: expected `auto`, `off` or a number of milliseconds up to 3600000"
)]
pub struct NoLimit {
    /// The text.
    pub text: String,
}

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
    /// What the environment says, else [`SubmissionLimit::Auto`].
    ///
    /// # Errors
    /// The variable [`LIMIT_VARIABLE`] is no limit.
    pub(in crate::session) fn of_environment() -> Result<Self, NoLimit> {
        match std::env::var(LIMIT_VARIABLE) {
            Ok(text) => text.trim().parse(),
            Err(_) => Ok(SubmissionLimit::Auto),
        }
    }

    /// The limit on a device, in nanoseconds. Runs that may be ended early have one on every device, because they end
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

/// The speeds of entry `device` of the table: as placement measured them, or slow ones.
pub(in crate::session) fn speeds(plan: &Plan, device: u32, info: &DeviceInfo) -> Roofline {
    let measured = plan.report.placement.as_ref().and_then(|placed| placed.devices.get(device as usize));
    let assumed = if info.native || info.kind == DeviceKind::Cpu { PROCESSOR } else { GPU };
    measured.copied().filter(Roofline::is_sound).unwrap_or(assumed)
}

/// What the segments of a plan were found to take, shared by all bindings of the plan.
#[derive(Debug, Default)]
pub(in crate::session) struct Schedule {
    /// Grows where recordings should be cut anew.
    version: AtomicU64,
    /// Runs since then whose times changed nothing.
    calm: AtomicU32,
    segments: Mutex<Vec<Known>>,
}

/// One segment.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Nanoseconds of each dispatch; none before it was cut for the first time.
    dispatches: Vec<u64>,
    /// Pieces take the device's time at both ends.
    timed: bool,
    cuts: u32,
}

/// A recording with the node that each command belongs to, `u32::MAX` for none.
#[derive(Clone, Debug, Default)]
pub(in crate::session) struct Script {
    pub(in crate::session) recording: Recording,
    pub(in crate::session) nodes: Vec<u32>,
}

/// How a segment was cut.
#[derive(Clone, Debug, Default)]
pub(in crate::session) struct Cut {
    /// The first command of each piece but the first.
    pub(in crate::session) starts: Vec<usize>,
    pub(in crate::session) pieces: Vec<Piece>,
    segment: usize,
    /// Nanoseconds that a piece may take.
    limit: u64,
    pub(in crate::session) version: u64,
    /// Each piece ends with the second of two timestamps.
    pub(in crate::session) timed: bool,
}

/// One piece.
#[derive(Clone, Debug, Default)]
pub(in crate::session) struct Piece {
    /// The dispatches in it, counted in the segment.
    dispatches: std::ops::Range<usize>,
    /// Commands that do something.
    commands: usize,
    /// What its copies and fills are estimated to take, in nanoseconds.
    copies: u64,
    /// Nodes that are over with it, since the segment's start.
    pub(in crate::session) nodes_done: usize,
}

impl Schedule {
    pub(in crate::session) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether times of another run may tell something; `longest` is how long the host waited for one of its pieces.
    pub(in crate::session) fn is_curious(&self, cut: &Cut, longest: u64) -> bool {
        longest > cut.limit || self.calm.fetch_add(1, Ordering::Relaxed) < CALM
    }

    fn changed(&self) {
        self.calm.store(0, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts segment `segment` of a plan with these nodes so that no piece takes longer than `limit` nanoseconds, as far as is known, on a
    /// device of these speeds; `clock`: it tells the time.
    pub(in crate::session) fn cut(
        &self,
        script: &mut Script,
        nodes: &[NodeReport],
        segment: usize,
        limit: u64,
        speeds: &Roofline,
        clock: bool,
    ) -> Cut {
        let version = self.version();
        split_copies(script, limit, speeds);
        let mut segments = self.lock();
        if segments.len() <= segment {
            segments.resize(segment + 1, Known::default());
        }
        let known = &mut segments[segment];
        if known.dispatches.is_empty() {
            known.dispatches = estimates(script, nodes, speeds);
        }
        let (starts, pieces) = pieces(script, &known.dispatches, limit / PART.1 * PART.0, speeds);
        known.timed = clock && (known.timed || pieces.len() > 1);
        Cut { starts, pieces, segment, limit, version, timed: known.timed }
    }

    /// Takes in how long the pieces of one run took, in nanoseconds, as far as is known.
    pub(in crate::session) fn took(&self, cut: &Cut, times: &[Option<u64>]) {
        let mut segments = self.lock();
        let Some(known) = segments.get_mut(cut.segment).filter(|_| cut.version == self.version()) else {
            return;
        };
        let mut too_long = false;
        let mut sum = 0u64;
        for (piece, time) in cut.pieces.iter().zip(times) {
            let Some(time) = *time else { return };
            sum = sum.saturating_add(time);
            too_long |= time > cut.limit && piece.commands > 1;
        }
        // Half as many would do.
        let wasteful = sum.div_ceil((cut.limit / PART.1 * PART.0).max(1)) as usize * 2 <= cut.pieces.len()
            && cut.pieces.len() > 1;
        if !(too_long || wasteful) || known.cuts >= MOST_CUTS {
            return;
        }
        for (piece, time) in cut.pieces.iter().zip(times) {
            let Some(dispatches) = known.dispatches.get_mut(piece.dispatches.clone()) else { continue };
            let time = time.unwrap_or(0).saturating_sub(piece.copies);
            let thought: u64 = dispatches.iter().sum();
            let factor = time as f64 / thought.max(1) as f64;
            dispatches.iter_mut().for_each(|nanos| *nanos = ((*nanos as f64 * factor) as u64).max(1));
        }
        known.cuts += 1;
        self.changed();
    }

    /// Takes in how long a whole segment seems to have taken, waits for others included: where that is too long, the
    /// device is asked.
    pub(in crate::session) fn seemed(&self, cut: &Cut, time: Duration, clock: bool) {
        let [piece] = &cut.pieces[..] else { return };
        if nanos(time) <= cut.limit || piece.commands <= 1 || cut.timed {
            return;
        }
        if !clock {
            return self.took(cut, &[Some(nanos(time))]);
        }
        let mut segments = self.lock();
        if let Some(known) = segments.get_mut(cut.segment).filter(|known| !known.timed) {
            known.timed = true;
            self.changed();
        }
    }
}

/// What the dispatches take by the costs of their nodes, which the node's dispatches have in equal parts.
fn estimates(script: &Script, nodes: &[NodeReport], speeds: &Roofline) -> Vec<u64> {
    let of = |node: u32| nodes.get(node as usize);
    let dispatches = script.recording.commands.iter().zip(&script.nodes);
    let dispatches = dispatches.filter(|(command, _)| matches!(command, Command::Dispatch(_)));
    let nanos = |node: u32| {
        of(node).map_or(0, |n| speeds.estimate(n.cost, n.commands) / u64::from(n.commands.max(1))).max(1)
    };
    dispatches.map(|(_, node)| nanos(*node)).collect()
}

fn copy_nanos(bytes: u64, speeds: &Roofline) -> u64 {
    // Read here and written there; over a bus where one side is the host's.
    (speeds.launch_ns + bytes as f64 * (2.0 / speeds.bytes + speeds.bus_ns)) as u64
}

/// Makes copies and fills that are too long several.
fn split_copies(script: &mut Script, limit: u64, speeds: &Roofline) {
    let room = ((limit / 2) as f64 / (copy_nanos(1 << 20, speeds).max(1)) as f64) as u64;
    let most = room.saturating_mul(1 << 20).max(LEAST_COPY).next_multiple_of(16);
    let long = |command: &Command| match command {
        Command::Copy { src, .. } => src.bytes > most,
        Command::Fill { dst, .. } => dst.bytes > most,
        _ => false,
    };
    if !script.recording.commands.iter().any(long) {
        return;
    }
    let commands = std::mem::take(&mut script.recording.commands);
    let nodes = std::mem::take(&mut script.nodes);
    for (command, node) in commands.into_iter().zip(nodes) {
        let parts: Vec<Command> = match &command {
            Command::Copy { src, dst } if src.bytes > most => {
                parts(src, most).zip(parts(dst, most)).map(|(src, dst)| Command::Copy { src, dst }).collect()
            }
            Command::Fill { dst, value } if dst.bytes > most => {
                parts(dst, most).map(|dst| Command::Fill { dst, value: *value }).collect()
            }
            _ => vec![command],
        };
        script.nodes.extend(std::iter::repeat_n(node, parts.len()));
        script.recording.commands.extend(parts);
    }
}

fn parts(range: &BufferRange, most: u64) -> impl Iterator<Item = BufferRange> + use<> {
    let range = *range;
    let starts = (0..range.bytes.div_ceil(most)).map(move |k| k * most);
    starts.map(move |start| BufferRange {
        offset: range.offset + start,
        bytes: most.min(range.bytes - start),
        ..range
    })
}

/// As many commands in each piece as fit in `most` nanoseconds, one at least.
fn pieces(script: &Script, dispatches: &[u64], most: u64, speeds: &Roofline) -> (Vec<usize>, Vec<Piece>) {
    let commands = &script.recording.commands;
    let (mut starts, mut pieces) = (Vec::new(), Vec::new());
    let (mut piece, mut nanos, mut dispatch) = (Piece::default(), 0u64, 0);
    let (mut node, mut nodes) = (u32::MAX, 0);
    for (at, command) in commands.iter().enumerate() {
        let (time, copies) = match command {
            Command::Dispatch(_) => (dispatches.get(dispatch).copied().unwrap_or(1), 0),
            Command::Copy { src, .. } => (copy_nanos(src.bytes, speeds), copy_nanos(src.bytes, speeds)),
            Command::Fill { dst, .. } => (copy_nanos(dst.bytes, speeds), copy_nanos(dst.bytes, speeds)),
            Command::Barrier(_) | Command::Timestamp { .. } => continue,
        };
        if piece.commands > 0 && nanos.saturating_add(time) > most {
            // With the barriers before it.
            let before = commands[..at].iter().rev();
            let barriers = before.take_while(|command| matches!(command, Command::Barrier(_))).count();
            starts.push(at - barriers);
            // The node that goes on in the next piece is not over.
            let over =
                nodes - usize::from(script.nodes.get(at).is_some_and(|next| *next == node && nodes > 0));
            piece.nodes_done = over;
            let first = piece.dispatches.end;
            pieces.push(std::mem::take(&mut piece));
            piece.dispatches = first..first;
            nanos = 0;
        }
        if let Some(&of) = script.nodes.get(at).filter(|of| **of != node && **of != u32::MAX) {
            (node, nodes) = (of, nodes + 1);
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

/// A script that is written anew with timestamps in it.
struct Timed {
    script: Script,
    starts: Vec<usize>,
    /// The node that each timestamp is before.
    slots: Vec<u32>,
}

impl Timed {
    fn stamp(&mut self, node: u32) {
        self.script.recording.commands.push(Command::Timestamp { slot: self.slots.len() as u32 });
        self.script.nodes.push(u32::MAX);
        self.slots.push(node);
    }

    /// Writes `script` anew: `next` comes before each command, with its node and whether it begins a piece, `end` after
    /// the last one of each piece.
    fn write(
        script: &mut Script,
        cut: &mut Cut,
        mut next: impl FnMut(&mut Timed, u32, bool),
        mut end: impl FnMut(&mut Timed),
    ) -> Vec<u32> {
        let Script { mut recording, nodes } = std::mem::take(script);
        let commands = std::mem::take(&mut recording.commands);
        let script_of = Script { recording, nodes: Vec::with_capacity(nodes.len()) };
        let mut timed = Timed { script: script_of, starts: Vec::new(), slots: Vec::new() };
        let count = commands.len();
        for (at, (command, node)) in commands.into_iter().zip(nodes).enumerate() {
            let starts = cut.starts.binary_search(&at).is_ok();
            if starts {
                timed.starts.push(timed.script.recording.commands.len());
            }
            next(&mut timed, node, starts || at == 0);
            timed.script.recording.commands.push(command);
            timed.script.nodes.push(node);
            if at + 1 == count || cut.starts.binary_search(&(at + 1)).is_ok() {
                end(&mut timed);
            }
        }
        timed.script.recording.timestamps = timed.slots.len() as u32;
        (*script, cut.starts) = (timed.script, timed.starts);
        timed.slots
    }
}

/// Puts a timestamp at both ends of each piece.
pub(in crate::session) fn time_pieces(script: &mut Script, cut: &mut Cut) {
    let first = |timed: &mut Timed, _: u32, starts: bool| {
        if starts {
            timed.stamp(u32::MAX);
        }
    };
    Timed::write(script, cut, first, |timed| timed.stamp(u32::MAX));
}

/// Puts a timestamp before every node and after the last of each piece; gives the node that each is before,
/// `u32::MAX` for none.
pub(in crate::session) fn time_nodes(script: &mut Script, cut: &mut Cut) -> Vec<u32> {
    let open = std::cell::Cell::new(u32::MAX);
    let next = |timed: &mut Timed, node: u32, _: bool| {
        if open.replace(node) != node {
            timed.stamp(node);
        }
    };
    let end = |timed: &mut Timed| {
        if open.replace(u32::MAX) != u32::MAX {
            timed.stamp(u32::MAX);
        }
    };
    Timed::write(script, cut, next, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::coherency::{Access, Barrier};
    use crate::recording::{BufferId, DeviceKernelId, Dispatch};

    const BARRIER: Command = Command::Barrier(Barrier { src: Access::DEVICE_WRITE, dst: Access::DEVICE });

    fn dispatch() -> Command {
        let kernel = DeviceKernelId { index: 0, generation: 0 };
        Command::Dispatch(Dispatch { kernel, args: Vec::new(), params: Vec::new(), groups: [1; 3] })
    }

    fn copy(bytes: u64) -> Command {
        let range = |index| BufferRange { buffer: BufferId { index, generation: 0 }, offset: 64, bytes };
        Command::Copy { src: range(0), dst: range(1) }
    }

    fn script(commands: Vec<(Command, u32)>) -> Script {
        let (commands, nodes) = commands.into_iter().unzip();
        Script { recording: Recording { commands, ..Recording::default() }, nodes }
    }

    /// Four dispatches of three nodes with barriers between them.
    fn four() -> Script {
        script(vec![
            (dispatch(), 0),
            (BARRIER, 1),
            (dispatch(), 1),
            (dispatch(), 1),
            (BARRIER, 2),
            (dispatch(), 2),
            (BARRIER, u32::MAX),
        ])
    }

    fn cut(starts: Vec<usize>, pieces: Vec<Piece>, limit: u64) -> Cut {
        Cut { starts, pieces, limit, ..Cut::default() }
    }

    #[test]
    fn pieces_begin_with_their_barriers_and_hold_what_fits() {
        let (starts, pieces) = pieces(&four(), &[10, 10, 10, 10], 20, &GPU);
        assert_eq!(starts, [3]);
        let done: Vec<_> = pieces.iter().map(|p| (p.dispatches.clone(), p.commands, p.nodes_done)).collect();
        assert_eq!(done, [(0..2, 2, 1), (2..4, 2, 3)]);
        let (starts, single) = super::pieces(&four(), &[10, 10, 10, 10], 0, &GPU);
        assert_eq!(starts, [1, 3, 4]);
        assert_eq!(single.iter().map(|p| p.nodes_done).collect::<Vec<_>>(), [1, 1, 2, 3]);
        let (starts, whole) = super::pieces(&four(), &[10, 10, 10, 10], 40, &GPU);
        assert_eq!((starts.len(), whole.len(), whole[0].commands), (0, 1, 4));
    }

    #[test]
    fn nodes_are_timed_in_every_piece() {
        let mut whole = four();
        let slots = time_nodes(&mut whole, &mut Cut::default());
        assert_eq!(slots, [0, 1, 2, u32::MAX]);
        let mut script = four();
        let mut cut = cut(vec![3], Vec::new(), 0);
        let slots = time_nodes(&mut script, &mut cut);
        assert_eq!(slots, [0, 1, u32::MAX, 1, 2, u32::MAX]);
        let at = |k: usize| matches!(script.recording.commands[k], Command::Timestamp { .. });
        assert!(at(0) && at(cut.starts[0]) && at(cut.starts[0] - 1), "{script:?}");
        let mut script = four();
        cut.starts = vec![3];
        time_pieces(&mut script, &mut cut);
        assert_eq!(script.recording.timestamps, 4);
        assert!(matches!(script.recording.commands.last(), Some(Command::Timestamp { slot: 3 })));
    }

    #[test]
    fn long_copies_become_several_that_cover_the_same_bytes() {
        let bytes = (100 << 20) + 48;
        let mut script = script(vec![(copy(bytes), 7), (BARRIER, 7)]);
        split_copies(&mut script, 1, &GPU);
        assert_eq!(script.nodes.len(), script.recording.commands.len());
        let mut end = 64;
        for command in &script.recording.commands {
            if let Command::Copy { src, dst } = command {
                assert_eq!((src.offset, src.bytes), (dst.offset, dst.bytes));
                assert_eq!(src.offset, end);
                assert!(src.bytes <= LEAST_COPY);
                end += src.bytes;
            }
        }
        assert_eq!(end, 64 + bytes);
    }

    /// As a session does: cut, run, learn.
    fn turns(schedule: &Schedule, truth: &[u64], limit: u64) -> Vec<usize> {
        let mut counts = Vec::new();
        for _ in 0..MOST_CUTS {
            let cut = schedule.cut(&mut four(), &[], 0, limit, &GPU, true);
            counts.push(cut.pieces.len());
            let time = |p: &Piece| Some(truth[p.dispatches.clone()].iter().sum());
            schedule.took(&cut, &cut.pieces.iter().map(time).collect::<Vec<_>>());
            if schedule.version() == cut.version {
                break;
            }
        }
        counts
    }

    #[test]
    fn what_takes_longer_than_thought_is_cut_until_it_fits() {
        // Nothing is known of the nodes, so everything is thought to be short.
        let schedule = Schedule::default();
        let counts = turns(&schedule, &[10, 10, 5000, 10], 100);
        assert_eq!(counts.first(), Some(&1));
        let cut = schedule.cut(&mut four(), &[], 0, 100, &GPU, true);
        // The long one is alone: it cannot be cut.
        assert!(cut.pieces.iter().any(|p| p.dispatches == (2..3)), "{cut:?} {counts:?}");
        assert!(cut.pieces.len() < 4 || counts.len() < 6, "{counts:?}");
    }

    #[test]
    fn pieces_that_are_far_too_short_become_fewer() {
        let schedule = Schedule::default();
        schedule.lock().push(Known { dispatches: vec![90; 4], ..Known::default() });
        assert_eq!(turns(&schedule, &[1, 1, 1, 1], 100), [4, 1]);
    }

    #[test]
    fn a_segment_that_seems_long_is_timed_before_it_is_cut() {
        let schedule = Schedule::default();
        let cut = schedule.cut(&mut four(), &[], 0, 1000, &GPU, true);
        assert!(!cut.timed && cut.pieces.len() == 1);
        schedule.seemed(&cut, Duration::from_nanos(999), true);
        assert_eq!(schedule.version(), cut.version);
        schedule.seemed(&cut, Duration::from_micros(9), true);
        let cut = schedule.cut(&mut four(), &[], 0, 1000, &GPU, true);
        assert!(cut.timed && cut.pieces.len() == 1);
        // The device says that it waited for others.
        schedule.took(&cut, &[Some(400)]);
        assert_eq!(schedule.version(), cut.version);
        // Without a clock the host's has to do.
        let schedule = Schedule::default();
        let cut = schedule.cut(&mut four(), &[], 0, 1000, &GPU, false);
        schedule.seemed(&cut, Duration::from_micros(4), false);
        let cut = schedule.cut(&mut four(), &[], 0, 1000, &GPU, false);
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
