//! Which of several candidates is the fastest, by interleaved times.

use std::time::Duration;

/// The candidates that are timed: the first is the one that stays where none is faster.
pub(super) trait Trial {
    /// What ends a trial.
    type Error;

    /// Number of candidates.
    fn count(&self) -> usize;

    /// Nanoseconds of one more run of candidate `at`; `None` where it cannot run.
    ///
    /// # Errors
    /// What makes further runs pointless.
    fn time(&mut self, at: usize) -> Result<Option<u64>, Self::Error>;

    /// Whether candidate `at` computes what the first one does; `None` where one of them cannot run.
    ///
    /// # Errors
    /// As [`Trial::time`].
    fn agrees(&mut self, at: usize) -> Result<Option<bool>, Self::Error>;
}

/// The time since some moment.
pub(super) trait Clock {
    /// That time.
    fn now(&self) -> Duration;
}

/// What came of a trial.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outcome {
    /// The candidate to take.
    pub(super) winner: usize,
    /// The median of each candidate's times in nanoseconds, where it was timed in the last rounds.
    pub(super) medians: Vec<Option<u64>>,
    /// Candidates that computed something else.
    pub(super) wrong: Vec<usize>,
}

/// What is known after a trial.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decision {
    /// One of the candidates is the one to take.
    Chosen(Outcome),
    /// Nothing, also with more time.
    NotMeasurable,
    /// Nothing, as the time was over.
    OutOfTime,
}

/// Rounds in which each candidate runs once, after one that does not count.
const MAX_ROUNDS: usize = 9;
const MIN_ROUNDS: usize = 3;
/// A candidate that takes this much longer than the fastest one is not timed again, after the first round and later.
const HOPELESS: f64 = 2.5;
const SLOW: f64 = 1.25;
/// The least gain that is worth another kernel, as a share of the first candidate's time: clocks of devices vary by about
/// as much from run to run.
const LEAST_GAIN: f64 = 0.04;

/// Times all candidates in turn and chooses one. After `soft` no round is begun that is not needed, after `hard` nothing
/// runs: without enough rounds nothing is known.
pub(super) fn decide<T: Trial>(
    trial: &mut T,
    clock: &impl Clock,
    (soft, hard): (Duration, Duration),
) -> Result<Decision, T::Error> {
    let mut times: Vec<Option<Vec<u64>>> = vec![Some(Vec::new()); trial.count()];
    'rounds: for round in 0..=MAX_ROUNDS {
        if clock.now() >= hard || round > MIN_ROUNDS && clock.now() >= soft {
            break;
        }
        for (at, taken) in times.iter_mut().enumerate() {
            let Some(list) = taken else { continue };
            if clock.now() >= hard {
                break 'rounds;
            }
            match trial.time(at)? {
                // Drivers compile in the first run.
                Some(_) if round == 0 => {}
                Some(nanos) => list.push(nanos.max(1)),
                None => *taken = None,
            }
        }
        // Where the one that is to stay cannot run, nothing can be compared with it.
        if times.first().is_none_or(Option::is_none) {
            return Ok(Decision::NotMeasurable);
        }
        if round > 0 {
            drop_slow(&mut times, if round < MIN_ROUNDS { HOPELESS } else { SLOW });
        }
    }
    // Where the time was over within a round, some have one time less.
    let enough = |list: &&[u64]| list.len() >= MIN_ROUNDS;
    let spans = times.iter().map(|list| list.as_deref().filter(enough).and_then(Span::of));
    let spans: Vec<Option<Span>> = spans.collect();
    let Some(Some(default)) = spans.first().copied() else { return Ok(Decision::OutOfTime) };
    let mut faster: Vec<(u64, usize)> = spans
        .iter()
        .enumerate()
        .filter_map(|(at, span)| span.filter(|span| span.beats(&default)).map(|span| (span.median, at)))
        .collect();
    faster.sort_unstable();
    let (mut winner, mut wrong) = (0, Vec::new());
    for (_, at) in faster {
        match trial.agrees(at)? {
            Some(true) => {
                winner = at;
                break;
            }
            Some(false) => wrong.push(at),
            None => {}
        }
    }
    let medians = spans.iter().map(|span| span.map(|span| span.median)).collect();
    Ok(Decision::Chosen(Outcome { winner, medians, wrong }))
}

/// Gives up the candidates that take more than `factor` times as long as the fastest; the first one stays.
fn drop_slow(times: &mut [Option<Vec<u64>>], factor: f64) {
    let least = |list: &Vec<u64>| list.iter().min().copied();
    let Some(best) = times.iter().flatten().filter_map(least).min() else { return };
    for list in times.iter_mut().skip(1) {
        if list.as_ref().and_then(least).is_some_and(|own| own as f64 > factor * best as f64) {
            *list = None;
        }
    }
}

/// The middle of some times.
#[derive(Clone, Copy, Debug)]
struct Span {
    low: u64,
    median: u64,
    high: u64,
}

impl Span {
    fn of(times: &[u64]) -> Option<Span> {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let at = |quarter: usize| sorted.get((sorted.len().checked_sub(1)? * quarter + 2) / 4).copied();
        Some(Span { low: at(1)?, median: at(2)?, high: at(3)? })
    }

    /// Whether three quarters of its times are below three quarters of the other's, and by enough.
    fn beats(&self, other: &Span) -> bool {
        self.high < other.low && (self.median as f64) < (1.0 - LEAST_GAIN) * other.median as f64
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    /// Candidates of known times on a clock that they move.
    struct Fake {
        nanos: Vec<u64>,
        /// Added to run `n` of any candidate.
        noise: Vec<u64>,
        runs: Vec<usize>,
        wrong: Vec<usize>,
        broken: Vec<usize>,
        /// Those whose results are not to be had.
        mute: Vec<usize>,
        now: Cell<u64>,
    }

    impl Fake {
        fn new(nanos: &[u64]) -> Self {
            let (nanos, runs) = (nanos.to_vec(), vec![0; nanos.len()]);
            let (wrong, broken, mute) = Default::default();
            Fake { nanos, noise: vec![0], runs, wrong, broken, mute, now: Cell::new(0) }
        }
    }

    /// The clock of a [`Fake`], in nanoseconds of its runs.
    struct FakeClock(std::rc::Rc<Cell<u64>>);

    impl Clock for FakeClock {
        fn now(&self) -> Duration {
            Duration::from_nanos(self.0.get())
        }
    }

    struct OnClock<'f>(&'f mut Fake, std::rc::Rc<Cell<u64>>);

    impl Trial for OnClock<'_> {
        type Error = ();

        fn count(&self) -> usize {
            self.0.nanos.len()
        }

        fn time(&mut self, at: usize) -> Result<Option<u64>, ()> {
            let fake = &mut *self.0;
            if fake.broken.contains(&at) {
                return Ok(None);
            }
            let total: usize = fake.runs.iter().sum();
            fake.runs[at] += 1;
            // The first run compiles.
            let first = if fake.runs[at] == 1 { 1_000_000 } else { 0 };
            let nanos = fake.nanos[at] + fake.noise[total % fake.noise.len()] + first;
            fake.now.set(fake.now.get() + nanos);
            self.1.set(self.1.get() + nanos);
            Ok(Some(nanos))
        }

        fn agrees(&mut self, at: usize) -> Result<Option<bool>, ()> {
            Ok((!self.0.mute.contains(&at)).then(|| !self.0.wrong.contains(&at)))
        }
    }

    const LONG: Duration = Duration::from_secs(3600);

    fn decision(fake: &mut Fake, soft: Duration, hard: Duration) -> Decision {
        let clock = std::rc::Rc::new(Cell::new(0));
        decide(&mut OnClock(fake, std::rc::Rc::clone(&clock)), &FakeClock(clock), (soft, hard)).unwrap()
    }

    fn run(fake: &mut Fake, soft: Duration, hard: Duration) -> Outcome {
        match decision(fake, soft, hard) {
            Decision::Chosen(outcome) => outcome,
            nothing => panic!("{nothing:?}"),
        }
    }

    fn winner(nanos: &[u64]) -> usize {
        run(&mut Fake::new(nanos), LONG, LONG).winner
    }

    #[test]
    fn the_fastest_one_is_taken() {
        assert_eq!(winner(&[1000, 900, 500, 700]), 2);
        assert_eq!(winner(&[500, 900, 1000]), 0);
        assert_eq!(winner(&[500]), 0);
    }

    #[test]
    fn the_default_stays_within_the_noise() {
        assert_eq!(winner(&[1000, 980]), 0, "too small a gain");
        // A gain of a tenth that the noise hides, and one that it does not.
        let mut noisy = Fake { noise: vec![0, 350, 120, 400, 30, 300, 250], ..Fake::new(&[1000, 900]) };
        assert_eq!(run(&mut noisy, LONG, LONG).winner, 0);
        let mut noisy = Fake { noise: noisy.noise, ..Fake::new(&[2000, 900]) };
        assert_eq!(run(&mut noisy, LONG, LONG).winner, 1);
    }

    #[test]
    fn wrong_results_never_win() {
        let mut fake = Fake { wrong: vec![2], ..Fake::new(&[1000, 800, 500]) };
        let outcome = run(&mut fake, LONG, LONG);
        assert_eq!((outcome.winner, outcome.wrong), (0, vec![2]), "the second one was dropped as too slow");
        let mut fake = Fake { wrong: vec![2], ..Fake::new(&[1000, 600, 550]) };
        assert_eq!(run(&mut fake, LONG, LONG).winner, 1);
    }

    #[test]
    fn what_cannot_be_compared_is_neither_taken_nor_wrong() {
        let mut fake = Fake { mute: vec![2], ..Fake::new(&[1000, 600, 550]) };
        let outcome = run(&mut fake, LONG, LONG);
        assert_eq!((outcome.winner, outcome.wrong), (1, vec![]));
    }

    #[test]
    fn what_cannot_run_is_left_out() {
        let mut fake = Fake { broken: vec![1], ..Fake::new(&[1000, 1, 500]) };
        let outcome = run(&mut fake, LONG, LONG);
        assert_eq!((outcome.winner, outcome.medians), (2, vec![Some(1000), None, Some(500)]));
        let mut fake = Fake { broken: vec![0], ..Fake::new(&[1000, 1]) };
        assert_eq!(decision(&mut fake, LONG, LONG), Decision::NotMeasurable, "no more time helps");
    }

    #[test]
    fn slow_candidates_are_not_timed_again() {
        let mut fake = Fake::new(&[1000, 100_000, 1300]);
        run(&mut fake, LONG, LONG);
        assert_eq!(fake.runs, [1 + MAX_ROUNDS, 2, 1 + MIN_ROUNDS]);
    }

    #[test]
    fn the_time_is_kept() {
        let ms = Duration::from_millis;
        // The round that does not count takes 2 ms.
        assert_eq!(decision(&mut Fake::new(&[1000, 10]), LONG, ms(1)), Decision::OutOfTime);
        let mut fake = Fake::new(&[1000, 10]);
        assert_eq!(run(&mut fake, Duration::ZERO, LONG).winner, 1);
        assert_eq!(fake.runs[0], 1 + MIN_ROUNDS, "only the rounds that are needed");
        let mut fake = Fake::new(&[10_000_000, 10]);
        assert_eq!(decision(&mut fake, LONG, ms(25)), Decision::OutOfTime, "two rounds tell nothing");
        assert!(fake.now.get() < 35_000_000);
    }

    proptest! {
        #[test]
        fn what_is_taken_was_faster(
            nanos in proptest::collection::vec(1u64..10_000, 1..8),
            noise in proptest::collection::vec(0u64..2000, 1..20),
        ) {
            let mut fake = Fake { noise, ..Fake::new(&nanos) };
            let outcome = run(&mut fake, LONG, LONG);
            let median = |at: usize| outcome.medians[at].unwrap();
            prop_assert!(outcome.winner == 0 || median(outcome.winner) < median(0));
        }
    }
}
