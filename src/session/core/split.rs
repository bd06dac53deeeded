//! Commands that take longer than a submission may, as several that do the same.

use crate::plan::place::Roofline;
use crate::recording::{BufferRange, Command, Dispatch, GridPart, Recording};

/// A recording with the plan's node of each command, where it belongs to one.
#[derive(Clone, Debug, Default)]
pub(in crate::session) struct LabelledRecording {
    pub(in crate::session) recording: Recording,
    pub(in crate::session) nodes: Vec<Option<u32>>,
}

/// Copies of fewer bytes are not split, whatever their estimate.
const LEAST_COPY: u64 = 16 << 20;

/// The shortest time that parts of a dispatch are planned for, in nanoseconds, because each is a submission.
pub(super) const LEAST_PART: u64 = 1_000_000;

/// The maximum number of parts of a dispatch.
const MOST_PARTS: u32 = 256;

/// A dispatch of a recording: one of the plan's, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DispatchPart {
    /// Index of the plan's dispatch in the segment.
    pub(super) dispatch: usize,
    /// Its estimated nanoseconds.
    pub(super) nanos: u64,
    /// Whether its dispatch can have more parts.
    pub(super) splits: bool,
}

/// Splits dispatches that take longer than `most` nanoseconds, those of `nanos`, where `has_parts` allows.
/// Parts of one dispatch follow one another with no barrier between them: none of its work-groups waits for another.
pub(super) fn split_dispatches(
    labelled: &mut LabelledRecording,
    nanos: &[u64],
    most: u64,
    has_parts: impl Fn(&Dispatch) -> bool,
) -> Vec<DispatchPart> {
    let mut parts = Vec::with_capacity(nanos.len());
    let mut commands = Vec::with_capacity(labelled.recording.commands.len());
    let mut nodes = Vec::with_capacity(labelled.nodes.len());
    let whole = std::mem::take(&mut labelled.recording.commands).into_iter();
    let mut dispatches = 0;
    for (command, node) in whole.zip(std::mem::take(&mut labelled.nodes)) {
        let Command::Dispatch(dispatch) = command else {
            commands.push(command);
            nodes.push(node);
            continue;
        };
        let (index, time) = (dispatches, nanos.get(dispatches).copied().unwrap_or(1));
        dispatches += 1;
        // Most are short, and what is asked for the others takes a search.
        let division = match time > most.max(LEAST_PART) && has_parts(&dispatch) {
            true => Division::of(dispatch.groups, time, most),
            false => Division::WHOLE,
        };
        for part in 0..division.parts {
            let (first, groups) = division.part(part, dispatch.groups);
            let whole = dispatch.groups[division.axis];
            let part = (division.parts > 1).then_some(GridPart { axis: division.axis, first, whole });
            parts.push(DispatchPart {
                dispatch: index,
                nanos: division.share(groups, dispatch.groups, time),
                splits: division.parts < division.most,
            });
            commands.push(Command::Dispatch(Dispatch { part, groups, ..dispatch.clone() }));
            nodes.push(node);
        }
    }
    (labelled.recording.commands, labelled.nodes) = (commands, nodes);
    parts
}

/// How a grid is divided into parts of neighbouring work-groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Division {
    axis: usize,
    /// At least one.
    parts: u32,
    /// How many there could be.
    most: u32,
}

impl Division {
    const WHOLE: Division = Division { axis: 0, parts: 1, most: 1 };

    /// The division of a grid of `groups` that takes `nanos` into parts of at most `most` nanoseconds, where its size
    /// along an axis suffices, else into as many as there can be.
    fn of(grid: [u32; 3], nanos: u64, most: u64) -> Division {
        let most = most.max(LEAST_PART);
        let wanted = nanos.div_ceil(most);
        let fits = |axis: &usize| u64::from(grid[*axis]) >= wanted;
        // Neighbours along x have most in common, so the outermost axis is best.
        let longest = (0..3).max_by_key(|axis| grid[*axis]).unwrap_or(0);
        let axis = (0..3).rev().find(fits).unwrap_or(longest);
        let groups = grid[axis];
        let fitting = u128::from(groups) * u128::from(most) / u128::from(nanos.max(1));
        let fitting = u32::try_from(fitting).unwrap_or(u32::MAX).clamp(1, groups.max(1));
        let parts = groups.div_ceil(fitting.max(groups.div_ceil(MOST_PARTS)).max(1)).max(1);
        Division { axis, parts, most: grid[longest].min(MOST_PARTS) }
    }

    /// The first work-group of part `part` along the axis, and the work-groups that it has, of a grid of `groups`.
    fn part(self, part: u32, mut groups: [u32; 3]) -> (u32, [u32; 3]) {
        let all = u64::from(groups[self.axis]);
        let start = |part: u32| (all * u64::from(part) / u64::from(self.parts)) as u32;
        groups[self.axis] = start(part + 1) - start(part);
        (start(part), groups)
    }

    /// The nanoseconds of a part of a grid of `all` work-groups that takes `nanos`.
    fn share(self, part: [u32; 3], all: [u32; 3], nanos: u64) -> u64 {
        let (part, all) = (u128::from(part[self.axis]), u128::from(all[self.axis].max(1)));
        u64::try_from(u128::from(nanos) * part / all).unwrap_or(u64::MAX).max(1)
    }
}

/// Nanoseconds of a copy of `bytes`.
pub(super) fn copy_nanos(bytes: u64, speeds: &Roofline) -> u64 {
    // A copy reads and writes; a bus between host and device adds its time.
    (speeds.launch_ns + bytes as f64 * (2.0 / speeds.bytes + speeds.bus_ns)) as u64
}

/// Splits copies and fills that are too long.
pub(super) fn split_copies(labelled: &mut LabelledRecording, limit: u64, speeds: &Roofline) {
    let room = ((limit / 2) as f64 / (copy_nanos(1 << 20, speeds).max(1)) as f64) as u64;
    let most = room.saturating_mul(1 << 20).max(LEAST_COPY).next_multiple_of(16);
    let long = |command: &Command| match command {
        Command::Copy { src, .. } => src.bytes > most,
        Command::Fill { dst, .. } => dst.bytes > most,
        _ => false,
    };
    if !labelled.recording.commands.iter().any(long) {
        return;
    }
    let commands = std::mem::take(&mut labelled.recording.commands);
    let nodes = std::mem::take(&mut labelled.nodes);
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
        labelled.nodes.extend(std::iter::repeat_n(node, parts.len()));
        labelled.recording.commands.extend(parts);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::coherency::{Access, Barrier};
    use crate::recording::{BufferId, DeviceKernelId, Recording};

    const BARRIER: Command = Command::Barrier(Barrier { src: Access::DEVICE_WRITE, dst: Access::DEVICE });
    const GPU: Roofline =
        Roofline { submit_ns: 50_000.0, launch_ns: 5_000.0, flops: 200.0, bytes: 15.0, bus_ns: 0.0 };
    const MS: u64 = 1_000_000;

    fn copy(bytes: u64) -> Command {
        let range = |index| BufferRange { buffer: BufferId { index, generation: 0 }, offset: 64, bytes };
        Command::Copy { src: range(0), dst: range(1) }
    }

    fn dispatch(groups: [u32; 3]) -> Command {
        let kernel = DeviceKernelId { index: 0, generation: 0 };
        let (args, params) = (Vec::new(), Vec::new());
        Command::Dispatch(Dispatch { kernel, args, params, part: None, groups })
    }

    fn labelled(commands: Vec<(Command, Option<u32>)>) -> LabelledRecording {
        let (commands, nodes) = commands.into_iter().unzip();
        LabelledRecording { recording: Recording { commands, ..Recording::default() }, nodes }
    }

    fn grids(labelled: &LabelledRecording) -> Vec<(Option<GridPart>, [u32; 3])> {
        let grid = |command: &Command| match command {
            Command::Dispatch(dispatch) => Some((dispatch.part, dispatch.groups)),
            _ => None,
        };
        labelled.recording.commands.iter().filter_map(grid).collect()
    }

    #[test]
    fn a_dispatch_of_three_seconds_becomes_parts_that_fit() {
        let mut one = labelled(vec![
            (dispatch([9, 1, 1]), Some(3)),
            (BARRIER, Some(4)),
            (dispatch([7, 500, 3]), Some(4)),
            (BARRIER, None),
        ]);
        let parts = split_dispatches(&mut one, &[2, 3000 * MS], 75 * MS, |_| true);
        assert_eq!(one.nodes.len(), one.recording.commands.len());
        assert_eq!(parts[0], DispatchPart { dispatch: 0, nanos: 2, splits: false });
        let (grids, parts) = (&grids(&one)[1..], &parts[1..]);
        assert_eq!(grids.len(), parts.len());
        assert!((40..=50).contains(&parts.len()), "{}", parts.len());
        assert!(parts.iter().all(|part| part.dispatch == 1 && part.nanos <= 75 * MS && part.splits));
        // Each work-group once, in order.
        let mut next = 0;
        for (part, groups) in grids {
            let expected = GridPart { axis: 1, first: next, whole: 500 };
            assert_eq!((*part, [groups[0], groups[2]]), (Some(expected), [7, 3]));
            next += groups[1];
        }
        assert_eq!(next, 500);
        // One barrier before all of them and none between them.
        let is_barrier = |command: &Command| matches!(command, Command::Barrier(_));
        let commands = &one.recording.commands;
        let barriers: Vec<usize> = (0..commands.len()).filter(|at| is_barrier(&commands[*at])).collect();
        assert_eq!(barriers, [1, commands.len() - 1]);
        assert_eq!(one.nodes.iter().filter(|node| **node == Some(4)).count(), parts.len() + 1);
    }

    #[test]
    fn nothing_below_the_limit_and_no_kernel_without_parts_is_split() {
        let whole = |nanos: u64, most: u64, has_parts: bool| {
            let mut one = labelled(vec![(dispatch([64, 64, 64]), None)]);
            let parts = split_dispatches(&mut one, &[nanos], most, |_| has_parts);
            (grids(&one) == [(None, [64; 3])]).then_some(parts[0])
        };
        let part = Some(DispatchPart { dispatch: 0, nanos: 75 * MS, splits: false });
        assert_eq!(whole(75 * MS, 75 * MS, true), part);
        assert_eq!(whole(3000 * MS, 75 * MS, false).map(|part| part.splits), Some(false));
        // Parts would be shorter than a submission is worth.
        assert!(whole(MS, 0, true).is_some() && whole(2 * MS, 0, true).is_none());
        let of = |grid| Division::of(grid, 20 * MS, 5 * MS);
        assert_eq!(of([64, 16, 4]), Division { axis: 2, parts: 4, most: 64 });
        assert_eq!(of([64, 16, 3]), Division { axis: 1, parts: 4, most: 64 });
        assert_eq!(of([64, 2, 3]), Division { axis: 0, parts: 4, most: 64 });
        // Too small along every axis.
        assert_eq!(Division::of([2, 5, 1], 80 * MS, 5 * MS), Division { axis: 1, parts: 5, most: 5 });
    }

    #[test]
    fn parts_cover_grids_of_every_size() {
        for size in [1, 2, 3, 7, 255, 256, 257, 1000, 65535, u32::MAX] {
            for nanos in [1, MS, 3 * MS, 7 * MS, 999 * MS, u64::MAX] {
                let division = Division::of([1, 1, size], nanos, MS);
                assert!((1..=MOST_PARTS.min(size)).contains(&division.parts), "{size} {nanos} {division:?}");
                let mut next = 0;
                for part in 0..division.parts {
                    let (first, groups) = division.part(part, [1, 1, size]);
                    assert!(first == next && groups[2] > 0, "{size} {nanos} {division:?}");
                    let share = division.share(groups, [1, 1, size], nanos);
                    assert!(
                        share <= MS || groups[2] == 1 || division.parts > MOST_PARTS / 2,
                        "{size} {nanos}"
                    );
                    next += groups[2];
                }
                assert_eq!(next, size, "{nanos}");
            }
        }
    }

    #[test]
    fn long_copies_become_several_that_cover_the_same_bytes() {
        let bytes = (100 << 20) + 48;
        let mut labelled = labelled(vec![(copy(bytes), Some(7)), (BARRIER, Some(7))]);
        split_copies(&mut labelled, 1, &GPU);
        assert_eq!(labelled.nodes.len(), labelled.recording.commands.len());
        let mut end = 64;
        for command in &labelled.recording.commands {
            if let Command::Copy { src, dst } = command {
                assert_eq!((src.offset, src.bytes), (dst.offset, dst.bytes));
                assert_eq!(src.offset, end);
                assert!(src.bytes <= LEAST_COPY);
                end += src.bytes;
            }
        }
        assert_eq!(end, 64 + bytes);
    }
}
