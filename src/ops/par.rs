//! Loops of native functions cut into parts for the thread pool.

use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::sync::{into_inner, lock};

/// Elements of one part.
const PART: usize = 16 << 10;
/// Below this many elements one thread is faster.
const PARALLEL: usize = 2 * PART;

/// Duration for which a finished thread polls for the others: sleeping and waking take longer than most parts.
const POLLED: Duration = Duration::from_micros(500);
/// Calls `f` with every item, in no order; each thread of the pool takes one more when it is free, so that a
/// thread that comes late or is slow does less. The calling thread begins in front and another one at the
/// end, as in the loop before: what a thread wrote there is in its cache.
pub(crate) fn share<I>(items: I, f: impl Fn(I::Item) + Sync)
where
    I: DoubleEndedIterator + Send,
    I::Item: Send,
{
    let done: Result<(), Infallible> = try_share(items, |item| {
        f(item);
        Ok(())
    });
    match done {
        Ok(()) => {}
        Err(never) => match never {},
    }
}

/// As [`share`], for functions that may fail: items that no one has taken yet are left then.
///
/// # Errors
/// One of those that `f` returned.
pub(crate) fn try_share<I, E>(items: I, f: impl Fn(I::Item) -> Result<(), E> + Sync) -> Result<(), E>
where
    I: DoubleEndedIterator + Send,
    I::Item: Send,
    E: Send,
{
    let threads = rayon::current_num_threads().min(items.size_hint().1.unwrap_or(usize::MAX));
    if threads <= 1 {
        return { items }.try_for_each(f);
    }
    struct Shared<I, E> {
        items: Option<I>,
        failed: Option<E>,
    }
    let shared = Mutex::new(Shared { items: Some(items), failed: None });
    let running = AtomicUsize::new(0);
    let work = |from_end: bool| {
        loop {
            let mut next = lock(&shared);
            let take = |items: &mut I| if from_end { items.next_back() } else { items.next() };
            let Some(item) = next.items.as_mut().and_then(take) else {
                next.items = None;
                return;
            };
            running.fetch_add(1, Ordering::Relaxed);
            drop(next);
            if let Err(error) = f(item) {
                let mut shared = lock(&shared);
                shared.items = None;
                shared.failed.get_or_insert(error);
            }
            running.fetch_sub(1, Ordering::Release);
        }
    };
    on_all_threads(threads, &work, &running);
    into_inner(shared).failed.map_or(Ok(()), Err)
}

/// Runs `work` on this and on `threads - 1` threads of the pool, told whether to begin at the end, and polls for a while
/// until `running` is zero. Not generic, so that the pool's code is compiled once.
fn on_all_threads(threads: usize, work: &(dyn Fn(bool) + Sync), running: &AtomicUsize) {
    rayon::in_place_scope(|scope| {
        (1..threads).for_each(|thread| scope.spawn(move |_| work(thread % 2 == 1)));
        work(false);
        let mut polls = 0u32;
        let mut start = None;
        while running.load(Ordering::Acquire) > 0 {
            std::hint::spin_loop();
            polls += 1;
            if polls.is_multiple_of(64) && start.get_or_insert_with(Instant::now).elapsed() > POLLED {
                break;
            }
        }
    });
}

/// Calls `f(start, part)` for consecutive parts of `out`, in parallel where it is long.
pub(crate) fn parts<T: Send>(out: &mut [T], f: impl Fn(usize, &mut [T]) + Send + Sync) {
    // One copy of the pool's code for each element type is enough.
    parts_of(out, &f);
}

fn parts_of<T: Send>(out: &mut [T], f: &(dyn Fn(usize, &mut [T]) + Send + Sync)) {
    if out.len() <= PARALLEL {
        f(0, out);
    } else {
        share(out.chunks_mut(PART).enumerate(), |(i, part)| f(i * PART, part));
    }
}

/// As [`parts`], of a function that may fail.
///
/// # Errors
/// One of those that `f` returned.
pub(crate) fn try_parts<T: Send, E: Send>(
    out: &mut [T],
    f: impl Fn(usize, &mut [T]) -> Result<(), E> + Send + Sync,
) -> Result<(), E> {
    if out.len() <= PARALLEL {
        return f(0, out);
    }
    try_share(out.chunks_mut(PART).enumerate(), |(i, part)| f(i * PART, part))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_item_is_taken_once_and_errors_come_back() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
        let mut out = vec![0u32; 999];
        pool.install(|| super::share(out.iter_mut(), |v| *v += 1));
        assert!(out.iter().all(|v| *v == 1));
        let failed = pool.install(|| super::try_share(0..100, |i| if i == 70 { Err(i) } else { Ok(()) }));
        assert_eq!(failed, Err(70));
        assert_eq!(super::try_share(0..0, |i: i32| Err(i)), Ok(()));
    }

    /// Threads take the loops of others, which begin loops of their own, and the pool ends.
    #[test]
    fn loops_of_several_threads_meet_in_one_pool() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for i in 0..200 {
                        pool.install(|| {
                            super::share(0..4, |_| {
                                super::share(0..3, |_| {
                                    done.fetch_add(1, Ordering::Relaxed);
                                });
                            });
                        });
                        if i % 50 == 0 {
                            std::thread::sleep(std::time::Duration::from_micros(400));
                        }
                    }
                });
            }
        });
        assert_eq!(done.into_inner(), 3 * 200 * 12);
    }

    #[test]
    fn a_panic_of_a_part_reaches_the_caller() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let run = || pool.install(|| super::share(0..50, |i| assert!(i != 33, "part 33")));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    }

    #[test]
    fn every_element_is_in_one_part_at_its_place() {
        for n in [0, 1, super::PARALLEL, super::PARALLEL + 1, 5 * super::PART + 3] {
            let mut out = vec![0usize; n];
            super::parts(&mut out, |start, part| {
                part.iter_mut().enumerate().for_each(|(i, v)| *v += start + i + 1);
            });
            assert!(out.iter().enumerate().all(|(i, v)| *v == i + 1), "{n} elements");
        }
    }
}
