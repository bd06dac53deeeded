//! The state machine itself.

use std::collections::BTreeMap;

use super::ledger::{Ledger, Log};
use super::{Access, Barrier, Footprint, ResourceId, Touch};
use crate::memory::range::{ByteRange, RangeSet};

/// What the host shares of one resource, from the memory flags that were *granted*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Host and device see each other's bytes without flush and invalidate.
    pub coherent: bool,
    /// Unit of flush and invalidate (`nonCoherentAtomSize`); 0 counts as 1.
    pub atom: u64,
    /// Size of the mapping; flush and invalidate never leave it.
    pub bytes: u64,
}

impl HostMemory {
    /// Memory that needs neither flush nor invalidate.
    pub const fn coherent(bytes: u64) -> Self {
        HostMemory { coherent: true, atom: 1, bytes }
    }

    /// The range as a flush or invalidate must name it.
    fn rounded(&self, range: ByteRange) -> ByteRange {
        if self.coherent {
            return range;
        }
        let grown = range.align_out(self.atom);
        ByteRange::new(grown.start, grown.end.min(self.bytes))
    }
}

/// A host access that would race with the device, or that could not see its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HazardError {
    /// The device still works on the bytes.
    #[error("bytes {range} of resource {} are in use by submission {submission}; wait for it first", resource.0)]
    InFlight {
        /// The memory.
        resource: ResourceId,
        /// The bytes the host asked for (grown to the atom of non-coherent memory).
        range: ByteRange,
        /// The submission to wait for.
        submission: u64,
    },
    /// The device wrote the bytes and nothing made them visible to the host.
    #[error("bytes {range} of resource {} were written by the device and not made visible to the host; end the recording with `finish`", resource.0)]
    NotVisible {
        /// The memory.
        resource: ResourceId,
        /// The bytes the host asked for (grown to the atom of non-coherent memory).
        range: ByteRange,
    },
    /// The host cannot reach this resource.
    #[error("resource {} is not host memory", resource.0)]
    DeviceOnly {
        /// The memory.
        resource: ResourceId,
    },
    /// The range leaves the resource.
    #[error("bytes {range} lie outside resource {} of {bytes} bytes", resource.0)]
    OutOfBounds {
        /// The memory.
        resource: ResourceId,
        /// The bytes the host asked for.
        range: ByteRange,
        /// The size of the resource.
        bytes: u64,
    },
}

/// What stands between the recorded commands and the host's reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finish {
    /// The barrier to record last.
    pub barrier: Option<Barrier>,
    /// Ranges to invalidate once the submission is complete and before the host touches anything.
    pub invalidate: Vec<(ResourceId, ByteRange)>,
}

/// What completing a submission brings about.
#[derive(Clone, Copy, Debug)]
enum Promise {
    /// Its last barrier shows the host the writes of these kinds.
    Shown(Access),
    /// The caller invalidates these bytes.
    Invalidated(ResourceId, ByteRange),
}

/// Follows one queue: what was recorded, submitted and completed, and who sees what.
///
/// Two clocks run in it. Barriers follow the order of *recording*; what the host may touch follows
/// *completion*. Submissions count from 1; what is recorded now belongs to the next one.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    host: BTreeMap<ResourceId, HostMemory>,
    submitted: u64,
    completed: u64,
    /// Device accesses that no barrier, semaphore or wait stands behind yet.
    pending: Log,
    /// Device writes with no host barrier recorded behind them.
    unseen: Ledger,
    /// Device accesses of submissions that are not complete.
    flight: Log,
    /// Device writes with no host barrier executed behind them.
    hidden: Log,
    /// Device writes to non-coherent memory that the host has not invalidated.
    stale: Log,
    /// Host writes to non-coherent memory that are not flushed.
    dirty: BTreeMap<ResourceId, RangeSet>,
    promises: Vec<(u64, Promise)>,
}

impl Tracker {
    /// An idle queue with nothing recorded.
    pub fn new() -> Self {
        Tracker::default()
    }

    /// Declares a resource that the host can reach. A resource never declared is device-only.
    pub fn declare(&mut self, resource: ResourceId, memory: HostMemory) {
        self.host.insert(resource, memory);
    }

    /// Forgets a resource, so that its id may name other memory. The device must be done with it.
    pub fn forget(&mut self, resource: ResourceId) {
        self.host.remove(&resource);
        self.dirty.remove(&resource);
        self.unseen.forget(resource);
        for log in [&mut self.pending, &mut self.flight, &mut self.hidden, &mut self.stale] {
            log.forget(resource);
        }
        self.promises
            .retain(|(_, promise)| !matches!(promise, Promise::Invalidated(id, _) if *id == resource));
    }

    /// Records one device command and gives the barrier that must be recorded before it, if any.
    ///
    /// Accesses of one command do not race with each other: in-place commands are legal.
    pub fn command(&mut self, touches: &[Touch]) -> Option<Barrier> {
        let hazard = touches.iter().any(|touch| self.is_hazard(*touch));
        let barrier = hazard.then(|| self.settle_pending());
        for touch in touches {
            self.note(touch.resource, touch.range, touch.access & Access::DEVICE);
        }
        barrier
    }

    /// Records a whole recording that carries its own barriers; gives the barrier that must go before
    /// it. Its host barriers count; the invalidates of a run come from [`Tracker::finish`] behind it.
    pub fn replay(&mut self, footprint: &Footprint) -> Option<Barrier> {
        let hazard = self.pending.all().any(|earlier| footprint.races_with(earlier));
        let barrier = hazard.then(|| self.settle_pending());
        self.pending.settle(footprint.settled());
        self.unseen.settle(footprint.shown());
        let next = self.next();
        self.pending.at(next).add_all(footprint.tail(), Access::DEVICE);
        self.unseen.add_all(footprint.unseen(), Access::DEVICE_WRITE);
        for (resource, range, access) in footprint.touched().iter() {
            self.note_run(resource, range, access);
        }
        self.show_host(footprint.shown());
        for (resource, range, access) in footprint.unseen().iter() {
            self.note_hidden(resource, range, access);
        }
        barrier
    }

    /// Closes what was recorded so far for host reads of these ranges: the one barrier to record last
    /// and the ranges to invalidate after completion. Undeclared resources count as coherent here.
    pub fn finish(&mut self, reads: &[(ResourceId, ByteRange)]) -> Finish {
        let next = self.next();
        let mut ranges: BTreeMap<ResourceId, RangeSet> = BTreeMap::new();
        for (resource, range) in reads {
            let Some(memory) = self.host.get(resource).filter(|memory| !memory.coherent) else { continue };
            let stale = self.stale.all().flat_map(|ledger| ledger.pieces(*resource, *range, Access::DEVICE));
            ranges.entry(*resource).or_default().extend(stale.map(|piece| memory.rounded(piece)));
        }
        let invalidate = flatten(&ranges);
        // An atom is invalidated as a whole, so all of it must have been shown by then.
        let unseen = reads
            .iter()
            .chain(&invalidate)
            .any(|(resource, range)| !self.unseen.found(*resource, *range).is_empty());
        let barrier = unseen.then(|| {
            let src = self.unseen.kinds();
            self.unseen.clear();
            self.show_host(src);
            Barrier { src, dst: Access::HOST_READ }
        });
        for (resource, range) in &invalidate {
            self.stale.at(next).remove(*resource, *range);
            self.promises.push((next, Promise::Invalidated(*resource, *range)));
        }
        Finish { barrier, invalidate }
    }

    /// The host is about to read these bytes now. Gives the ranges to invalidate first.
    ///
    /// # Errors
    /// The device still writes them, or no host barrier was executed behind its writes.
    pub fn host_read(
        &mut self,
        resource: ResourceId,
        range: ByteRange,
    ) -> Result<Vec<ByteRange>, HazardError> {
        let memory = self.reachable(resource, range)?;
        let rounded = memory.rounded(range);
        // Invalidating takes the whole atom, which must not be torn from under a device write.
        self.not_in_flight(resource, rounded, Access::DEVICE_WRITE)?;
        self.not_hidden(resource, range)?;
        Ok(self.invalidate_now(resource, range, memory))
    }

    /// The host is about to write these bytes now; the next [`Tracker::submit`] shows them to the
    /// device. Gives the ranges to invalidate first: on non-coherent memory a write next to bytes
    /// the device wrote would otherwise flush stale neighbours over them.
    ///
    /// # Errors
    /// The device still uses the bytes (or, non-coherent, still writes their atom or is yet to be followed
    /// by an invalidate of it), or no host barrier was executed behind its writes.
    pub fn host_write(
        &mut self,
        resource: ResourceId,
        range: ByteRange,
    ) -> Result<Vec<ByteRange>, HazardError> {
        let memory = self.reachable(resource, range)?;
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let rounded = memory.rounded(range);
        self.not_in_flight(resource, range, Access::DEVICE)?;
        self.not_in_flight(resource, rounded, Access::DEVICE_WRITE)?;
        self.not_promised(resource, rounded)?;
        self.not_hidden(resource, rounded)?;
        let invalidate = self.invalidate_now(resource, rounded, memory);
        if !memory.coherent {
            self.dirty.entry(resource).or_default().insert(range);
        }
        Ok(invalidate)
    }

    /// What was recorded goes to the queue. Gives the ranges to flush before, rounded and merged; host
    /// writes so far are visible to the submission with no barrier (host write ordering guarantee).
    pub fn submit(&mut self) -> Vec<(ResourceId, ByteRange)> {
        self.submitted += 1;
        let mut ranges: BTreeMap<ResourceId, RangeSet> = BTreeMap::new();
        for (resource, dirty) in std::mem::take(&mut self.dirty) {
            let Some(memory) = self.host.get(&resource) else { continue };
            ranges.entry(resource).or_default().extend(dirty.iter().map(|range| memory.rounded(range)));
        }
        flatten(&ranges)
    }

    /// The number of the latest submission; 0 before the first.
    pub fn submitted(&self) -> u64 {
        self.submitted
    }

    /// The host waited for this submission (and so, on an in-order queue, for all before it) and did the
    /// invalidates that `finish` named for it.
    pub fn completed(&mut self, submission: u64) {
        let done = submission.min(self.submitted);
        if done <= self.completed {
            return;
        }
        self.completed = done;
        self.pending.drop_until(done);
        self.flight.drop_until(done);
        for (number, promise) in std::mem::take(&mut self.promises) {
            // The promising submission settled its own entry when it was recorded; accesses that it
            // recorded behind the promise must stay.
            let before = number - 1;
            match promise {
                _ if number > done => self.promises.push((number, promise)),
                Promise::Shown(kinds) => {
                    self.hidden.until_mut(before).for_each(|ledger| ledger.settle(kinds))
                }
                Promise::Invalidated(resource, range) => {
                    self.stale.until_mut(before).for_each(|ledger| ledger.remove(resource, range));
                }
            }
        }
        self.hidden.fold_until(done);
        self.stale.fold_until(done);
    }

    /// The host waited for everything submitted: the device is idle.
    pub fn waited(&mut self) {
        self.completed(self.submitted);
    }

    /// A semaphore orders all that was recorded so far before all that follows, memory included: no
    /// later command needs a barrier against it. The host still waits as before.
    pub fn ordered_on_device(&mut self) {
        self.pending.clear();
    }

    fn next(&self) -> u64 {
        self.submitted + 1
    }

    fn is_hazard(&self, touch: Touch) -> bool {
        let access = touch.access & Access::DEVICE;
        self.pending.all().any(|ledger| {
            // The kinds of the whole ledger rule most commands out before any search.
            ledger.kinds().conflicts(access) && ledger.found(touch.resource, touch.range).conflicts(access)
        })
    }

    /// The barrier that settles all that is pending, which is then pending no more.
    fn settle_pending(&mut self) -> Barrier {
        let barrier = Barrier::settling(self.pending.kinds());
        self.pending.clear();
        barrier
    }

    fn note(&mut self, resource: ResourceId, range: ByteRange, access: Access) {
        if access.is_empty() || range.is_empty() {
            return;
        }
        let next = self.next();
        self.pending.at(next).add(resource, range, access);
        self.unseen.add(resource, range, access.writes());
        self.note_run(resource, range, access);
        self.note_hidden(resource, range, access.writes());
    }

    /// The host must keep away while the access runs, and refresh what it wrote.
    fn note_run(&mut self, resource: ResourceId, range: ByteRange, access: Access) {
        // Device-only memory has no host side to keep up to date.
        let Some(memory) = self.host.get(&resource) else { return };
        let next = self.next();
        self.flight.at(next).add(resource, range, access);
        if !memory.coherent {
            self.stale.at(next).add(resource, range, access.writes());
        }
    }

    /// The host cannot see these writes until a host barrier behind them ran.
    fn note_hidden(&mut self, resource: ResourceId, range: ByteRange, writes: Access) {
        if self.host.contains_key(&resource) {
            let next = self.next();
            self.hidden.at(next).add(resource, range, writes);
        }
    }

    /// A host barrier is recorded here. What this submission wrote before it counts as shown at once
    /// (until completion it is in flight, which is checked first); older writes once the barrier ran.
    fn show_host(&mut self, kinds: Access) {
        if !kinds.is_empty() {
            let next = self.next();
            self.hidden.at(next).settle(kinds);
            self.promises.push((next, Promise::Shown(kinds)));
        }
    }

    fn reachable(&self, resource: ResourceId, range: ByteRange) -> Result<HostMemory, HazardError> {
        let memory = *self.host.get(&resource).ok_or(HazardError::DeviceOnly { resource })?;
        if !ByteRange::up_to(memory.bytes).contains(range) {
            return Err(HazardError::OutOfBounds { resource, range, bytes: memory.bytes });
        }
        Ok(memory)
    }

    fn not_in_flight(
        &self,
        resource: ResourceId,
        range: ByteRange,
        kinds: Access,
    ) -> Result<(), HazardError> {
        let latest = self
            .flight
            .until(self.submitted)
            .filter(|(_, ledger)| ledger.found(resource, range).intersects(kinds))
            .map(|(number, _)| number)
            .max();
        match latest {
            Some(submission) => Err(HazardError::InFlight { resource, range, submission }),
            None => Ok(()),
        }
    }

    /// An invalidate that waits for a submission would take a host write along. (One that is only
    /// recorded comes behind the flush at submit.)
    fn not_promised(&self, resource: ResourceId, range: ByteRange) -> Result<(), HazardError> {
        let latest = self
            .promises
            .iter()
            .filter(|(number, promise)| {
                *number <= self.submitted
                    && matches!(promise, Promise::Invalidated(id, atoms) if *id == resource && atoms.overlaps(range))
            })
            .map(|(number, _)| *number)
            .max();
        match latest {
            Some(submission) => Err(HazardError::InFlight { resource, range, submission }),
            None => Ok(()),
        }
    }

    fn not_hidden(&self, resource: ResourceId, range: ByteRange) -> Result<(), HazardError> {
        let hidden = self
            .hidden
            .until(self.submitted)
            .any(|(_, ledger)| ledger.found(resource, range).intersects(Access::DEVICE_WRITE));
        if hidden { Err(HazardError::NotVisible { resource, range }) } else { Ok(()) }
    }

    /// The ranges to invalidate before the host touches `range`, taken as done. Atoms the device did not
    /// write stay out: they may hold host writes that are not flushed.
    fn invalidate_now(
        &mut self,
        resource: ResourceId,
        range: ByteRange,
        memory: HostMemory,
    ) -> Vec<ByteRange> {
        let stale = self.stale.until(self.submitted);
        let pieces = stale.flat_map(|(_, ledger)| ledger.pieces(resource, range, Access::DEVICE));
        let atoms: RangeSet = pieces.map(|piece| memory.rounded(piece)).collect();
        // Bytes that no barrier showed yet are as stale behind the invalidate as before it.
        let mut fresh = atoms.clone();
        for (_, ledger) in self.hidden.until(self.submitted) {
            for atom in atoms.iter() {
                ledger.pieces(resource, atom, Access::DEVICE).for_each(|piece| fresh.remove(piece));
            }
        }
        for ledger in self.stale.until_mut(self.submitted) {
            fresh.iter().for_each(|range| ledger.remove(resource, range));
        }
        atoms.iter().collect()
    }
}

fn flatten(ranges: &BTreeMap<ResourceId, RangeSet>) -> Vec<(ResourceId, ByteRange)> {
    ranges.iter().flat_map(|(resource, set)| set.iter().map(|range| (*resource, range))).collect()
}
