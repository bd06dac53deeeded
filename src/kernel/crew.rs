//! How many threads of its pool a native kernel shares its loops with.
//!
//! Where another program's threads keep a core, a thread of ours is stopped there in the middle of its part, for whole
//! time slices, and all others wait for that part. One thread less is then faster. What a loop waited is
//! noted here by the thread that runs kernels; that many fewer threads take part for a while, and longer each time
//! the next try fails soon.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long a thread is left out at first, and at most.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, Default)]
struct Crew {
    left_out: usize,
    /// When they were last left out, and for how long.
    since: Option<(Instant, Duration)>,
}

impl Crew {
    fn stalled(self, now: Instant, pool: usize) -> Crew {
        let hold = match self.since {
            Some((since, hold)) if now.duration_since(since) < 2 * hold => (2 * hold).min(LONGEST),
            _ => SHORTEST,
        };
        let left_out = (self.left_out + 1).min(pool.saturating_sub(1));
        Crew { left_out, since: Some((now, hold)) }
    }

    fn at(self, now: Instant) -> Crew {
        match self.since {
            Some((since, hold)) if now.duration_since(since) > hold => Crew { left_out: 0, ..self },
            _ => self,
        }
    }
}

thread_local! {
    static CREW: Cell<Crew> = const { Cell::new(Crew { left_out: 0, since: None }) };
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

/// Says that a loop had to wait for a thread that did not go on.
pub(crate) fn stalled() {
    CREW.set(CREW.get().stalled(Instant::now(), rayon::current_num_threads()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_stall_again_are_left_out_for_longer() {
        let start = Instant::now();
        let first = Crew::default().stalled(start, 4);
        assert_eq!(first.left_out, 1);
        assert_eq!(first.at(start + SHORTEST).left_out, 1);
        let again = first.at(start + SHORTEST + Duration::from_millis(1));
        assert_eq!(again.left_out, 0);
        let second = again.stalled(start + SHORTEST + Duration::from_millis(1), 4);
        assert_eq!(second.left_out, 1);
        assert_eq!(second.at(start + 2 * SHORTEST).left_out, 1);
        assert_eq!(second.at(start + 4 * SHORTEST).left_out, 0);
        let late = second.at(start + LONGEST).stalled(start + LONGEST, 4);
        assert_eq!(late.since, Some((start + LONGEST, SHORTEST)));
        let all = (0..9).fold(late, |crew, _| crew.stalled(start + LONGEST, 4));
        assert_eq!(all.left_out, 3);
    }

    #[test]
    fn one_thread_is_always_left() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        pool.install(|| {
            assert_eq!(threads(), 2);
            (0..3).for_each(|_| stalled());
            assert_eq!(threads(), 1);
        });
    }
}
