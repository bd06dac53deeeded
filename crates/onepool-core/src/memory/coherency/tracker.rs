//! Barriers between the commands of a recording, and the one that shows the host its results.

use super::ledger::Ledger;
use super::{Access, Barrier, ResourceId, Touch};
use crate::memory::range::ByteRange;

/// Decides the barriers of one recording as its commands pass by.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    /// Kinds of accesses before the recording, to bytes that no one lists.
    earlier: Access,
    /// Device accesses that no barrier follows yet.
    pending: Ledger,
    unseen: Unseen,
}

impl Tracker {
    /// A recording with nothing before it.
    pub fn new() -> Self {
        Tracker::default()
    }

    /// A recording after others on its queue, of which nothing is known: the first of its commands that touches
    /// anything gets [`Barrier::FULL`].
    pub fn after_others() -> Self {
        Tracker { earlier: Access::DEVICE, ..Tracker::default() }
    }

    /// Takes the next command and gives the barrier that must be recorded before it, if any.
    ///
    /// Accesses of one command do not race with each other: in-place commands are legal.
    pub fn command(&mut self, touches: &[Touch]) -> Option<Barrier> {
        let hazard = touches.iter().any(|touch| self.is_hazard(*touch));
        let barrier = hazard.then(|| self.settle());
        self.note(touches);
        barrier
    }

    /// Takes a command that waits for everything before it, whatever that touches, and gives the barrier before it.
    pub fn command_after_all(&mut self, touches: &[Touch]) -> Barrier {
        self.settle();
        self.note(touches);
        Barrier::FULL
    }

    /// Ends the recording and gives the barrier that shows the host these ranges, if the recording wrote in them.
    pub fn finish(&mut self, reads: &[(ResourceId, ByteRange)]) -> Option<Barrier> {
        let unseen = reads.iter().any(|(resource, range)| !self.unseen.0.found(*resource, *range).is_empty());
        let barrier = unseen.then(|| Barrier { src: self.unseen.0.kinds(), dst: Access::HOST_READ })?;
        self.unseen.barrier(barrier);
        Some(barrier)
    }

    fn is_hazard(&self, touch: Touch) -> bool {
        let access = touch.access & Access::DEVICE;
        if touch.range.is_empty() {
            return false;
        }
        // The kinds of the whole ledger rule most commands out before any search.
        self.earlier.conflicts(access)
            || self.pending.kinds().conflicts(access)
                && self.pending.found(touch.resource, touch.range).conflicts(access)
    }

    /// The barrier that settles all that is outstanding, which is then outstanding no more.
    fn settle(&mut self) -> Barrier {
        let barrier = Barrier::settling(self.earlier | self.pending.kinds());
        self.earlier = Access::NONE;
        self.pending.clear();
        barrier
    }

    fn note(&mut self, touches: &[Touch]) {
        for touch in touches {
            self.pending.add(touch.resource, touch.range, touch.access & Access::DEVICE);
        }
        self.unseen.command(touches);
    }
}

/// What the commands of a recording wrote and none of its barriers has shown to the host.
#[derive(Clone, Debug, Default)]
pub struct Unseen(Ledger);

impl Unseen {
    /// A command was recorded.
    pub fn command(&mut self, touches: &[Touch]) {
        for touch in touches {
            self.0.add(touch.resource, touch.range, touch.access & Access::DEVICE_WRITE);
        }
    }

    /// A barrier was recorded.
    pub fn barrier(&mut self, barrier: Barrier) {
        self.0.settle(barrier.shows_host());
    }

    /// The bytes of a resource that are not shown, with the kinds of the writes.
    pub fn of(&self, resource: ResourceId) -> impl Iterator<Item = (ByteRange, Access)> {
        self.0.of(resource)
    }
}
