//! What the device knows of one buffer's bytes, and who may see which of them: pure bookkeeping.

use onepool_core::memory::coherency::{Access, Barrier};
use onepool_core::memory::range::{ByteRange, RangeMap};

/// What unwritten and torn bytes hold: NaN in every float format.
pub(super) const POISON: u8 = 0xFF;

/// A submission: its queue and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) queue: u32,
    pub(super) submission: u64,
}

/// Two accesses with no order between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HazardKind {
    ReadAfterWrite,
    WriteAfterWrite,
    WriteAfterRead,
}

/// A hazard and the bytes it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hazard {
    pub(super) kind: HazardKind,
    pub(super) range: ByteRange,
    pub(super) earlier: Access,
}

/// The device's copy of a buffer.
#[derive(Debug)]
pub(super) struct DeviceBytes {
    /// What an access sees that the latest write is not visible to.
    old: Vec<u8>,
    /// The latest writes; meaningful where `writes` has an entry.
    fresh: Vec<u8>,
    writes: RangeMap<Write>,
    reads: RangeMap<Reads>,
}

/// A write that someone cannot see yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Write {
    kind: Access,
    by: Origin,
    /// The host waited for it: everything submitted since is ordered after it.
    waited: bool,
    available: bool,
    visible: Access,
    /// Stages with an execution dependency on it.
    dependent: Access,
    /// The submission whose barrier showed it to the host.
    shown_by: Option<Origin>,
    /// What the host side was told.
    host: Told,
}

/// What the host finds in bytes that the device wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// What was there before: the submission may still run.
    Nothing,
    /// Poison: the submission is over and the write not visible.
    Poison,
    /// The bytes.
    All,
}

/// Reads that a write must be ordered after.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reads {
    by: Origin,
    kinds: Access,
    after_kernel: Access,
    after_transfer: Access,
}

impl Reads {
    /// The kinds of reads that a write of `stage` is not ordered after.
    fn unordered(&self, stage: Access, now: Origin) -> Access {
        let other_queue = self.by.queue != now.queue;
        let pending = |kind: Access, after: Access| {
            if self.kinds.contains(kind) && (other_queue || !after.intersects(stage)) {
                kind
            } else {
                Access::NONE
            }
        };
        pending(Access::KERNEL_READ, self.after_kernel) | pending(Access::TRANSFER_READ, self.after_transfer)
    }
}

impl Write {
    fn seen_by(&self, access: Access, now: Origin) -> bool {
        self.waited || (self.by.queue == now.queue && self.visible.contains(access))
    }

    fn barrier(&mut self, barrier: Barrier, now: Origin) {
        if self.by.queue != now.queue && !self.waited {
            return;
        }
        let covered = barrier.src.of_stages().intersects(self.kind.of_stages() | self.dependent);
        if !covered {
            return;
        }
        self.dependent |= barrier.dst.of_stages();
        self.available |= barrier.src.contains(self.kind);
        if self.available {
            self.visible |= barrier.dst;
            if barrier.dst.contains(Access::HOST_READ) && self.shown_by.is_none() {
                self.shown_by = Some(now);
            }
        }
    }
}

impl DeviceBytes {
    /// Bytes that no one wrote.
    pub(super) fn new(bytes: usize) -> DeviceBytes {
        DeviceBytes {
            old: vec![POISON; bytes],
            fresh: vec![POISON; bytes],
            writes: RangeMap::new(),
            reads: RangeMap::new(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.old.len() as u64
    }

    /// What an access of this kind sees, with the hazards it runs into.
    pub(super) fn view(&self, range: ByteRange, access: Access, now: Origin, out: &mut [u8]) -> Vec<Hazard> {
        let mut hazards = Vec::new();
        out.copy_from_slice(part(&self.old, range));
        for (piece, write) in self.writes.overlapping(range) {
            if write.seen_by(access, now) {
                let at = ByteRange::new(piece.start - range.start, piece.end - range.start);
                part_mut(out, at).copy_from_slice(part(&self.fresh, piece));
            } else {
                hazards.push(Hazard { kind: HazardKind::ReadAfterWrite, range: piece, earlier: write.kind });
            }
        }
        hazards
    }

    /// Notes a read for the writes after it; after the writes of its own command.
    pub(super) fn note_read(&mut self, range: ByteRange, access: Access, now: Origin) {
        self.reads.update(range, |known| {
            let mut reads = known.filter(|reads| reads.by.queue == now.queue).cloned().unwrap_or(Reads {
                by: now,
                kinds: Access::NONE,
                after_kernel: Access::NONE,
                after_transfer: Access::NONE,
            });
            reads.by = now;
            reads.kinds |= access;
            if access.contains(Access::KERNEL_READ) {
                reads.after_kernel = Access::NONE;
            }
            if access.contains(Access::TRANSFER_READ) {
                reads.after_transfer = Access::NONE;
            }
            Some(reads)
        });
    }

    /// The latest bytes, seen or not: what a write that leaves bytes alone leaves there.
    pub(super) fn latest(&self, range: ByteRange, out: &mut [u8]) {
        out.copy_from_slice(part(&self.old, range));
        for (piece, _) in self.writes.overlapping(range) {
            let at = ByteRange::new(piece.start - range.start, piece.end - range.start);
            part_mut(out, at).copy_from_slice(part(&self.fresh, piece));
        }
    }

    /// A device write, with the hazards it runs into.
    pub(super) fn write(&mut self, range: ByteRange, bytes: &[u8], kind: Access, now: Origin) -> Vec<Hazard> {
        let mut hazards = Vec::new();
        let stage = kind.of_stages();
        for (piece, reads) in self.reads.overlapping(range) {
            let earlier = reads.unordered(stage, now);
            if !earlier.is_empty() {
                hazards.push(Hazard { kind: HazardKind::WriteAfterRead, range: piece, earlier });
            }
        }
        let mut torn = Vec::new();
        let pieces: Vec<_> =
            self.writes.overlapping(range).map(|(piece, write)| (piece, write.clone())).collect();
        for (piece, write) in pieces {
            if write.seen_by(kind, now) {
                // What an unordered reader of the new write sees is the write before.
                part_mut(&mut self.old, piece).copy_from_slice(part(&self.fresh, piece));
            } else {
                torn.push(piece);
                hazards.push(Hazard { kind: HazardKind::WriteAfterWrite, range: piece, earlier: write.kind });
            }
        }
        part_mut(&mut self.fresh, range).copy_from_slice(bytes);
        for piece in torn {
            part_mut(&mut self.fresh, piece).fill(POISON);
            part_mut(&mut self.old, piece).fill(POISON);
        }
        self.reads.remove(range);
        let write = Write {
            kind,
            by: now,
            waited: false,
            available: false,
            visible: Access::NONE,
            dependent: Access::NONE,
            shown_by: None,
            host: Told::Nothing,
        };
        self.writes.set(range, write);
        hazards
    }

    /// A barrier that a queue executes.
    pub(super) fn barrier(&mut self, barrier: Barrier, now: Origin, has_host: bool) {
        self.writes.update_all(|write| {
            let mut write = write.clone();
            write.barrier(barrier, now);
            Some(write)
        });
        let (stages, after) = (barrier.src.of_stages(), barrier.dst.of_stages());
        self.reads.update_all(|reads| {
            let mut reads = reads.clone();
            if reads.by.queue == now.queue {
                if stages.intersects(Access::KERNEL_READ | reads.after_kernel) {
                    reads.after_kernel |= after;
                }
                if stages.intersects(Access::TRANSFER_READ | reads.after_transfer) {
                    reads.after_transfer |= after;
                }
            }
            let left =
                reads.unordered(Access::KERNEL_WRITE, now) | reads.unordered(Access::TRANSFER_WRITE, now);
            (!left.is_empty()).then_some(reads)
        });
        self.settle(has_host);
    }

    /// The host waited for the submissions of `now.queue` up to `now.submission`.
    pub(super) fn waited(&mut self, now: Origin, has_host: bool) {
        let over = |by: Origin| by.queue == now.queue && by.submission <= now.submission;
        self.writes.update_all(|write| {
            let waited = write.waited || over(write.by);
            Some(Write { waited, ..write.clone() })
        });
        self.reads.update_all(|reads| (!over(reads.by)).then(|| reads.clone()));
        self.settle(has_host);
    }

    /// What submissions of a queue wrote that no one waited for.
    pub(super) fn unwaited(&self, queue: u32) -> impl Iterator<Item = ByteRange> {
        let open = self.writes.iter().filter(move |(_, write)| !write.waited && write.by.queue == queue);
        open.map(|(range, _)| range)
    }

    /// The host's write of these bytes reaches the device; gives what unfinished device work it races with.
    pub(super) fn host_wrote(&mut self, range: ByteRange, bytes: &[u8]) -> Vec<Hazard> {
        let mut hazards = Vec::new();
        for (piece, write) in self.writes.overlapping(range) {
            if !write.waited {
                hazards.push(Hazard { kind: HazardKind::WriteAfterWrite, range: piece, earlier: write.kind });
            }
        }
        for (piece, reads) in self.reads.overlapping(range) {
            hazards.push(Hazard { kind: HazardKind::WriteAfterRead, range: piece, earlier: reads.kinds });
        }
        self.writes.remove(range);
        part_mut(&mut self.old, range).copy_from_slice(bytes);
        hazards
    }

    /// Tells the host what it may see, now that it has waited for `now`: `tell` gets the bytes of a range,
    /// or `None` where it must find poison. Coherent memory shows what was made visible at once; else
    /// [`DeviceBytes::invalidate`] does.
    pub(super) fn tell_host(
        &mut self,
        now: Origin,
        coherent: bool,
        mut tell: impl FnMut(ByteRange, Option<&[u8]>),
    ) {
        let over = |by: Origin| by.queue == now.queue && by.submission <= now.submission;
        let mut told = Vec::new();
        for (piece, write) in self.writes.iter() {
            let shown = coherent && write.shown_by.is_some_and(over);
            if shown && write.host != Told::All {
                tell(piece, Some(part(&self.fresh, piece)));
                told.push((piece, Told::All));
            } else if !shown && write.host == Told::Nothing && over(write.by) {
                tell(piece, None);
                told.push((piece, Told::Poison));
            }
        }
        self.note_told(told);
    }

    /// The host invalidates a range of non-coherent memory: `tell` gets the bytes that arrive. `waited`
    /// tells whether the host has waited for a submission.
    pub(super) fn invalidate(
        &mut self,
        range: ByteRange,
        waited: impl Fn(Origin) -> bool,
        mut tell: impl FnMut(ByteRange, &[u8]),
    ) {
        let mut told = Vec::new();
        for (piece, write) in self.writes.overlapping(range) {
            if write.shown_by.is_some_and(&waited) && write.host != Told::All {
                tell(piece, part(&self.fresh, piece));
                told.push((piece, Told::All));
            }
        }
        self.note_told(told);
    }

    fn note_told(&mut self, told: Vec<(ByteRange, Told)>) {
        for (piece, host) in told {
            self.writes.update(piece, |write| write.map(|write| Write { host, ..write.clone() }));
        }
        self.settle(true);
    }

    /// Forgets writes that everyone sees.
    fn settle(&mut self, has_host: bool) {
        let mut seen = Vec::new();
        for (piece, write) in self.writes.iter() {
            // A write that no host waited for still concerns the other queues.
            if write.waited && (!has_host || write.host == Told::All) {
                seen.push(piece);
            }
        }
        for piece in seen {
            part_mut(&mut self.old, piece).copy_from_slice(part(&self.fresh, piece));
            self.writes.remove(piece);
        }
    }
}

fn part(bytes: &[u8], range: ByteRange) -> &[u8] {
    bytes.get(range.start as usize..range.end as usize).unwrap_or_default()
}

fn part_mut(bytes: &mut [u8], range: ByteRange) -> &mut [u8] {
    bytes.get_mut(range.start as usize..range.end as usize).unwrap_or_default()
}
