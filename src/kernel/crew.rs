//! How many threads of its pool a native kernel shares its loops with.
//!
//! Where another program's threads keep a core, a thread of ours is stopped there in the middle of its part, for whole
//! time slices, and all others wait for that part. One thread less is then faster. The thread that runs kernels
//! notes here what its loops took and what they waited for; where that was a large part, one thread less takes
//! part for a while, and longer each time the next try fails soon.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long a thread is left out at first, and at most.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);
/// After loops of this length together it is judged what was lost.
const JUDGED: Duration = Duration::from_millis(5);
/// The part of them that may be lost: one in this many.
const TOLERATED: u32 = 4;

#[derive(Clone, Copy, Debug)]
struct Crew {
    left_out: usize,
    /// When they were last left out, and for how long.
    since: Option<(Instant, Duration)>,
    /// What loops took since the last judgement, and what of it was lost.
    looped: Duration,
    lost: Duration,
}

impl Crew {
    const ALL: Crew = Crew { left_out: 0, since: None, looped: Duration::ZERO, lost: Duration::ZERO };

    fn looped(self, now: Instant, pool: usize, took: Duration, lost: Duration) -> Crew {
        let (looped, lost) = (self.looped + took, self.lost + lost);
        if looped < JUDGED {
            return Crew { looped, lost, ..self };
        }
        let judged = Crew { looped: Duration::ZERO, lost: Duration::ZERO, ..self };
        if lost * TOLERATED < looped {
            return judged;
        }
        let hold = match self.since {
            Some((since, hold)) if now.duration_since(since) < 2 * hold => (2 * hold).min(LONGEST),
            _ => SHORTEST,
        };
        let left_out = (self.left_out + 1).min(pool.saturating_sub(1));
        Crew { left_out, since: Some((now, hold)), ..judged }
    }

    fn at(self, now: Instant) -> Crew {
        match self.since {
            Some((since, hold)) if now.duration_since(since) > hold => Crew { left_out: 0, ..self },
            _ => self,
        }
    }
}

thread_local! {
    static CREW: Cell<Crew> = const { Cell::new(Crew::ALL) };
}

/// The threads that take part in the loops of this thread, of its pool's or of all: 1 or more.
pub(crate) fn threads() -> usize {
    let mut crew = CREW.get();
    if crew.left_out > 0 {
        crew = crew.at(Instant::now());
        CREW.set(crew);
    }
    rayon::current_num_threads().saturating_sub(crew.left_out).max(1)
}

/// Notes what a loop of several threads took, and how long it waited for one that did not go on.
pub(crate) fn looped(took: Duration, lost: Duration) {
    CREW.set(CREW.get().looped(Instant::now(), rayon::current_num_threads(), took, lost));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn threads_that_stall_again_are_left_out_for_longer() {
        let stalled = |crew: Crew, now| crew.looped(now, 4, JUDGED, JUDGED / 2);
        let start = Instant::now();
        let first = stalled(Crew::ALL, start);
        assert_eq!(first.left_out, 1);
        assert_eq!(first.at(start + SHORTEST).left_out, 1);
        let again = first.at(start + SHORTEST + MILLI);
        assert_eq!(again.left_out, 0);
        let second = stalled(again, start + SHORTEST + MILLI);
        assert_eq!(second.left_out, 1);
        assert_eq!(second.at(start + 2 * SHORTEST).left_out, 1);
        assert_eq!(second.at(start + 4 * SHORTEST).left_out, 0);
        let late = stalled(second.at(start + LONGEST), start + LONGEST);
        assert_eq!(late.since, Some((start + LONGEST, SHORTEST)));
        let all = (0..9).fold(late, |crew, _| stalled(crew, start + LONGEST));
        assert_eq!(all.left_out, 3);
    }

    #[test]
    fn a_small_loss_is_tolerated() {
        let start = Instant::now();
        let crew = (0..100).fold(Crew::ALL, |crew, _| crew.looped(start, 4, MILLI, MILLI / 5));
        assert_eq!(crew.left_out, 0);
        let crew = (0..5).fold(Crew::ALL, |crew, _| crew.looped(start, 4, MILLI, MILLI / 3));
        assert_eq!(crew.left_out, 1);
    }

    #[test]
    fn one_thread_is_always_left() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        pool.install(|| {
            assert_eq!(threads(), 2);
            (0..3).for_each(|_| looped(JUDGED, JUDGED));
            assert_eq!(threads(), 1);
        });
    }
}
