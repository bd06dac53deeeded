//! What a finished recording does to the outside, in a form that costs little per replay.

use super::ledger::Ledger;
use super::{Access, Barrier, Touch};

/// One step of a recording, as far as coherency is concerned.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// A dispatch, copy or fill.
    Command(&'a [Touch]),
    /// A barrier recorded between commands.
    Barrier(Barrier),
}

/// The accesses of a recording as seen from before it and from behind it.
///
/// Built once when a recording is prepared; [`Tracker::replay`](super::Tracker::replay) then accounts
/// for a whole replay without walking its commands.
#[derive(Clone, Debug, Default)]
pub struct Footprint {
    /// For each kind of earlier access, what the recording does before one of its own barriers settles
    /// that kind. Indexed like `EARLIER`.
    exposed: [Ledger; 4],
    tail: Ledger,
    touched: Ledger,
    unseen: Ledger,
    settled: Access,
    shown: Access,
}

const EARLIER: [Access; 4] =
    [Access::KERNEL_READ, Access::KERNEL_WRITE, Access::TRANSFER_READ, Access::TRANSFER_WRITE];

impl Footprint {
    /// Reads a recording from its first step to its last.
    pub fn of(steps: &[Step<'_>]) -> Footprint {
        let mut footprint = Footprint::default();
        for step in steps {
            match step {
                Step::Command(touches) => touches.iter().for_each(|touch| footprint.command(*touch)),
                Step::Barrier(barrier) => footprint.barrier(*barrier),
            }
        }
        footprint
    }

    /// The barrier that must head the recording if it is replayed back to back with no wait between:
    /// it orders the first commands of a replay behind the whole replay before it.
    pub fn seam(&self) -> Option<Barrier> {
        self.races_with(&self.tail).then(|| Barrier::settling(self.tail.kinds()))
    }

    fn command(&mut self, touch: Touch) {
        let access = touch.access & Access::DEVICE;
        for (earlier, exposed) in EARLIER.into_iter().zip(&mut self.exposed) {
            if !self.settled.contains(earlier) {
                exposed.add(touch.resource, touch.range, access);
            }
        }
        self.tail.add(touch.resource, touch.range, access);
        self.touched.add(touch.resource, touch.range, access);
        self.unseen.add(touch.resource, touch.range, access.writes());
    }

    fn barrier(&mut self, barrier: Barrier) {
        let settled = barrier.settles();
        self.settled |= settled;
        self.tail.settle(settled);
        let shown = barrier.shows_host();
        self.shown |= shown;
        self.unseen.settle(shown);
    }

    /// Whether an earlier access still conflicts with what the recording exposes.
    pub(super) fn races_with(&self, earlier: &Ledger) -> bool {
        earlier.iter().any(|(resource, range, access)| {
            EARLIER.iter().zip(&self.exposed).any(|(kind, exposed)| {
                access.contains(*kind)
                    && exposed.kinds().conflicts(*kind)
                    && exposed.found(resource, range).conflicts(*kind)
            })
        })
    }

    /// Accesses that nothing in the recording settles.
    pub(super) fn tail(&self) -> &Ledger {
        &self.tail
    }

    /// Every access of the recording.
    pub(super) fn touched(&self) -> &Ledger {
        &self.touched
    }

    /// Writes that no host barrier of the recording follows.
    pub(super) fn unseen(&self) -> &Ledger {
        &self.unseen
    }

    /// The kinds of earlier accesses that the recording's own barriers settle.
    pub(super) fn settled(&self) -> Access {
        self.settled
    }

    /// The write kinds that the recording's own barriers show to the host.
    pub(super) fn shown(&self) -> Access {
        self.shown
    }
}

/// The barrier needed at the head of these steps when they are replayed back to back without the host
/// waiting in between; `None` when replays need no order or the steps already bring it about.
pub fn opening_barrier(steps: &[Step<'_>]) -> Option<Barrier> {
    Footprint::of(steps).seam()
}
