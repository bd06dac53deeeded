//! Threads that help with loops.
//!
//! The thread that begins a loop computes it itself; others of its team join when they are free. It waits for those alone
//! that have joined: a helper that still sleeps, or whose processor is busy with other programs, holds no loop up.
//!
//! An island of `unsafe`: a loop borrows what its thread owns, and helpers reach it by a pointer without a lifetime. What
//! makes that sound is that `Open` leaves no loop before every helper that joined it has left.
//!
//! ```
//! use onepool_hal::team::{Team, share};
//!
//! let team = Team::new(4, "loops", std::time::Duration::ZERO)?;
//! let mut squares = vec![0; 1000];
//! team.lead(|| share(squares.iter_mut().enumerate(), |(i, square)| *square = i * i));
//! assert_eq!(squares[999], 998_001);
//! # Ok::<(), std::io::Error>(())
//! ```

#![allow(unsafe_code, reason = "loops are reached by pointer, under the rule above")]

use std::any::Any;
use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use onepool_core::memory::os::{ThreadAffinity, cores, processor};
use onepool_core::sync::{into_inner, lock, wait_while};

/// Duration for which a finished thread polls for the others: sleeping and waking take longer than most parts.
const POLLED: Duration = Duration::from_micros(500);
/// How long a helper polls for the next loop without a break while a team is called: most operators between two loops
/// take less.
const ALERT: Duration = Duration::from_micros(200);
/// After this long without a loop a helper of a called team looks for one from time to time only.
const HELPFUL: Duration = Duration::from_millis(1);
/// How often it looks then.
const GLANCE: Duration = Duration::from_micros(200);

/// A group of threads for loops. Its helpers sleep unless it was called ([`Team::call`]) or a loop is open;
/// they end with it.
#[derive(Debug)]
pub struct Team {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

/// While it lives, the team's helpers stay awake.
#[derive(Debug)]
pub struct Call(Arc<Shared>);

/// What a helper of a called team does each time it finds no loop.
pub(crate) struct Watch(pub(crate) Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

#[derive(Debug)]
struct Shared {
    /// The thread that computes a loop among them.
    threads: usize,
    watch: Option<Watch>,
    /// How long helpers poll after the last call.
    linger: Duration,
    loops: Mutex<Vec<Posted>>,
    /// How many loops have room for a helper.
    open: AtomicUsize,
    calls: AtomicUsize,
    /// How many calls there were.
    called: AtomicU64,
    closed: AtomicBool,
    /// Helpers that sleep, counted under the lock of `loops`.
    asleep: AtomicUsize,
    affinity: Mutex<HelperThreads>,
    help: Condvar,
    /// Threads that sleep until helpers have left their loops.
    waiting: AtomicUsize,
    left: Condvar,
}

/// Where helpers run.
#[derive(Debug, Default)]
struct HelperThreads {
    helpers: Vec<ThreadAffinity>,
    /// The processor that they are kept off.
    avoided: Option<usize>,
}

/// A loop that helpers may join.
#[derive(Debug)]
struct Posted {
    body: Body,
    room: usize,
    /// The number of the next helper.
    next: usize,
}

/// What all threads of a loop share.
struct Loop<'a> {
    work: &'a (dyn Fn(usize) + Sync),
    /// Helpers that are inside.
    joined: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Points to a loop as long as it is posted or joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Body(NonNull<Loop<'static>>);

// SAFETY: what a loop holds may be used by several threads: `work` is `Sync`, the rest atomic or locked. The pointer is
// followed under the rule of the module alone.
unsafe impl Send for Body {}

thread_local! {
    /// The team whose loops this thread computes.
    static HERE: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

/// Puts back what was in [`HERE`].
struct Here(Option<Arc<Shared>>);

impl Here {
    fn set(shared: &Arc<Shared>) -> Here {
        Here(HERE.replace(Some(Arc::clone(shared))))
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        HERE.set(self.0.take());
    }
}

/// The team of loops that begin on this thread: the one it leads or helps, else one of the process with a
/// thread for each core.
fn current() -> Arc<Shared> {
    static PROCESS: OnceLock<Team> = OnceLock::new();
    HERE.with_borrow(Option::clone).unwrap_or_else(|| {
        // Where no thread can be started, each loop has the one that begins it.
        let new = || Team::new(cores(), "onepool-loops", Duration::ZERO).unwrap_or_else(|_| Team::alone());
        Arc::clone(&PROCESS.get_or_init(new).shared)
    })
}

/// Calls `f` on a team of so many threads, which is made for it; of one where the system starts no more. For tests.
#[doc(hidden)]
pub fn of_threads<R>(threads: usize, f: impl FnOnce() -> R) -> R {
    Team::new(threads, "onepool-test", Duration::ZERO).unwrap_or_else(|_| Team::alone()).lead(f)
}

/// How many threads share a loop that begins on this one.
pub fn threads() -> usize {
    current().threads
}

/// Calls `work(0)` on this thread and, meanwhile, `work(n)` with other numbers below `most` on helpers that
/// are free: on none where all are busy. Returns when `work(0)` and those calls have returned, so each call
/// takes what is left of the work until nothing is. A panic in one of them reaches the caller. Inside `work`
/// further loops may begin.
pub fn run(most: usize, work: &(dyn Fn(usize) + Sync)) {
    let room = most.saturating_sub(1);
    if room == 0 {
        return work(0);
    }
    current().run(room, work);
}

/// Calls `f` with every item, in no order; each thread of the team takes one more when it is free, so that a
/// thread that comes late or is slow does less. The calling thread begins in front and another one at the
/// end, as in the loop before: what a thread wrote there is in its cache.
pub fn share<I>(items: I, f: impl Fn(I::Item) + Sync)
where
    I: DoubleEndedIterator + Send,
    I::Item: Send,
{
    let Ok(()) = try_share_of::<I, Infallible>(items, &|item| {
        f(item);
        Ok(())
    });
}

/// As [`share`], for functions that may fail: items that no one has taken yet are left then.
///
/// # Errors
/// One of those that `f` returned.
pub fn try_share<I, E>(items: I, f: impl Fn(I::Item) -> Result<(), E> + Sync) -> Result<(), E>
where
    I: DoubleEndedIterator + Send,
    I::Item: Send,
    E: Send,
{
    try_share_of(items, &f)
}

/// Called by pointer, so that its code is compiled once for each type of items.
fn try_share_of<I, E>(items: I, f: &(dyn Fn(I::Item) -> Result<(), E> + Sync)) -> Result<(), E>
where
    I: DoubleEndedIterator + Send,
    I::Item: Send,
    E: Send,
{
    let threads = threads().min(items.size_hint().1.unwrap_or(usize::MAX));
    if threads <= 1 {
        return { items }.try_for_each(f);
    }
    struct Shared<I, E> {
        items: Option<I>,
        failed: Option<E>,
    }
    let shared = Mutex::new(Shared { items: Some(items), failed: None });
    run(threads, &|number| {
        loop {
            let mut next = lock(&shared);
            let take = |items: &mut I| if number % 2 == 1 { items.next_back() } else { items.next() };
            let Some(item) = next.items.as_mut().and_then(take) else {
                next.items = None;
                return;
            };
            drop(next);
            if let Err(error) = f(item) {
                let mut shared = lock(&shared);
                shared.items = None;
                shared.failed.get_or_insert(error);
            }
        }
    });
    into_inner(shared).failed.map_or(Ok(()), Err)
}

impl Team {
    /// Starts `threads - 1` helpers, named `name-1` and so on: the thread that leads is the first. After a
    /// call or a loop they poll for `linger` before they sleep.
    ///
    /// # Errors
    /// The system's, where it starts no more threads.
    pub fn new(threads: usize, name: &str, linger: Duration) -> io::Result<Team> {
        Team::watching(threads, name, linger, None)
    }

    pub(crate) fn watching(
        threads: usize,
        name: &str,
        linger: Duration,
        watch: Option<Watch>,
    ) -> io::Result<Team> {
        let mut team = Team::sized(threads.max(1), linger, watch);
        for number in 1..threads {
            let shared = Arc::clone(&team.shared);
            let help = move || {
                let _here = Here::set(&shared);
                shared.help();
            };
            team.helpers.push(std::thread::Builder::new().name(format!("{name}-{number}")).spawn(help)?);
        }
        Ok(team)
    }

    /// One thread: the one that begins a loop.
    fn alone() -> Team {
        Team::sized(1, Duration::ZERO, None)
    }

    fn sized(threads: usize, linger: Duration, watch: Option<Watch>) -> Team {
        let shared = Shared {
            threads,
            watch,
            linger,
            loops: Mutex::new(Vec::with_capacity(2 * threads)),
            open: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            called: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            asleep: AtomicUsize::new(0),
            affinity: Mutex::default(),
            help: Condvar::new(),
            waiting: AtomicUsize::new(0),
            left: Condvar::new(),
        };
        Team { shared: Arc::new(shared), helpers: Vec::new() }
    }

    /// Whether there are helpers.
    pub(crate) fn has_helpers(&self) -> bool {
        !self.helpers.is_empty()
    }

    /// Wakes the helpers, which stay awake until the result is dropped, on other processors than the calling thread's.
    pub fn call(&self) -> Call {
        let shared = &self.shared;
        shared.calls.fetch_add(1, Ordering::SeqCst);
        shared.called.fetch_add(1, Ordering::Relaxed);
        // A helper that was counted but does not wait yet holds the lock.
        if shared.asleep.load(Ordering::SeqCst) > 0 {
            drop(lock(&shared.loops));
            shared.make_room();
            shared.help.notify_all();
        }
        Call(Arc::clone(shared))
    }

    /// Calls `f` on this thread: its loops are shared with the team's helpers.
    pub fn lead<R>(&self, f: impl FnOnce() -> R) -> R {
        let _call = self.call();
        self.enter(f)
    }

    /// As [`lead`](Team::lead), of a team that was called.
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        let _here = Here::set(&self.shared);
        f()
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.loops));
        self.shared.help.notify_all();
        let this = std::thread::current().id();
        for helper in self.helpers.drain(..).filter(|helper| helper.thread().id() != this) {
            // A helper catches what its loops panic with.
            let _ = helper.join();
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    fn run(&self, room: usize, work: &(dyn Fn(usize) + Sync)) {
        let room = room.min(self.threads - 1);
        if room == 0 {
            return work(0);
        }
        let body = Loop { work, joined: AtomicUsize::new(0), panic: Mutex::default() };
        let open = Open::new(self, &body, room);
        work(0);
        drop(open);
        if let Some(panic) = into_inner(body.panic) {
            resume_unwind(panic);
        }
    }

    /// Keeps helpers off the processor of the calling thread, before it wakes them.
    fn make_room(&self) {
        let mut affinity = lock(&self.affinity);
        let here = processor();
        if here != affinity.avoided {
            affinity.avoided = here;
            here.iter().for_each(|here| affinity.helpers.iter().for_each(|helper| helper.avoid(*here)));
        }
    }

    /// A helper: takes part in loops until the team is closed.
    fn help(&self) {
        let mut affinity = lock(&self.affinity);
        affinity.helpers.extend(ThreadAffinity::current());
        affinity.avoided = None;
        drop(affinity);
        while self.sleep() {
            let (mut worked, mut called) = (Instant::now(), self.called.load(Ordering::Relaxed));
            while !self.closed.load(Ordering::SeqCst) {
                let calls = self.called.load(Ordering::Relaxed);
                if self.join() || calls != called {
                    (worked, called) = (Instant::now(), calls);
                    continue;
                }
                let (idle, wanted) = (worked.elapsed(), self.calls.load(Ordering::SeqCst) > 0);
                if !wanted && idle >= self.linger {
                    break;
                }
                if let Some(Watch(watch)) = self.watch.as_ref().filter(|_| wanted) {
                    watch();
                }
                if idle > HELPFUL {
                    std::thread::sleep(GLANCE);
                    continue;
                }
                (0..16).for_each(|_| std::hint::spin_loop());
                if !wanted || idle > ALERT {
                    // Who waits for the result may need this very core.
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Sleeps until there is a call or a loop; whether there is, and not the team's end.
    fn sleep(&self) -> bool {
        let loops = lock(&self.loops);
        // Counted before the conditions are read again: whoever calls either sees a sleeper or was seen.
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let awake = || {
            [&self.open, &self.calls].iter().any(|n| n.load(Ordering::SeqCst) > 0)
                || self.closed.load(Ordering::SeqCst)
        };
        drop(wait_while(&self.help, loops, |_| !awake()));
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        !self.closed.load(Ordering::SeqCst)
    }

    /// Takes part in the loop that was opened last, if one has room.
    fn join(&self) -> bool {
        if self.open.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut loops = lock(&self.loops);
        let Some(posted) = loops.iter_mut().rfind(|posted| posted.room > 0) else {
            return false;
        };
        posted.room -= 1;
        if posted.room == 0 {
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
        let number = posted.next;
        posted.next += 1;
        // SAFETY: it is posted, and the lock is held: its thread is before the end of `Open::drop`, which waits until
        // those that are counted in `joined` have left.
        let body = unsafe { posted.body.0.as_ref() };
        body.joined.fetch_add(1, Ordering::SeqCst);
        drop(loops);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (body.work)(number))) {
            lock(&body.panic).get_or_insert(panic);
        }
        // The loop may be gone from here on.
        body.joined.fetch_sub(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            // A thread that was counted but does not wait yet holds the lock.
            drop(lock(&self.loops));
            self.left.notify_all();
        }
        true
    }
}

/// A loop that helpers may join, until it is dropped.
struct Open<'a> {
    team: &'a Shared,
    body: &'a Loop<'a>,
}

impl<'a> Open<'a> {
    fn new(team: &'a Shared, body: &'a Loop<'a>, room: usize) -> Open<'a> {
        let open = Open { team, body };
        let mut loops = lock(&team.loops);
        loops.push(Posted { body: open.pointer(), room, next: 1 });
        team.open.fetch_add(1, Ordering::SeqCst);
        let asleep = team.asleep.load(Ordering::SeqCst);
        drop(loops);
        if asleep > 0 {
            team.make_room();
        }
        for _ in 0..asleep.min(room) {
            team.help.notify_one();
        }
        open
    }

    fn pointer(&self) -> Body {
        Body(NonNull::from(self.body).cast())
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let (team, joined) = (self.team, || self.body.joined.load(Ordering::SeqCst) > 0);
        let mut loops = lock(&team.loops);
        if let Some(at) = loops.iter().rposition(|posted| posted.body == self.pointer())
            && loops.swap_remove(at).room > 0
        {
            team.open.fetch_sub(1, Ordering::SeqCst);
        }
        drop(loops);
        let mut start = None;
        while joined() {
            (0..64).for_each(|_| std::hint::spin_loop());
            if start.get_or_insert_with(Instant::now).elapsed() > POLLED {
                let loops = lock(&team.loops);
                // Counted before the helpers are: the last one either sees it or was seen.
                team.waiting.fetch_add(1, Ordering::SeqCst);
                drop(wait_while(&team.left, loops, |_| joined()));
                team.waiting.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::channel;

    use super::*;

    fn team(threads: usize) -> Team {
        Team::new(threads, "test", Duration::from_micros(20)).unwrap()
    }

    #[test]
    fn every_item_is_taken_once_by_any_team_and_by_none() {
        let sum = AtomicUsize::new(0);
        let add = || share(0..100, |at| _ = sum.fetch_add(at, Ordering::Relaxed));
        for threads in [0, 1, 2, 5] {
            team(threads).lead(|| {
                assert_eq!(super::threads(), threads.max(1));
                add();
            });
        }
        Team::alone().lead(add);
        assert_eq!(threads(), cores());
        add();
        assert_eq!(sum.into_inner(), 6 * 4950);
    }

    #[test]
    fn an_error_of_an_item_comes_back() {
        for threads in [1, 4] {
            let fail = |i| if i == 70 { Err(i) } else { Ok(()) };
            team(threads).lead(|| assert_eq!(try_share(0..100, fail), Err(70)));
        }
        assert_eq!(try_share(0..0, |i: i32| Err(i)), Ok(()));
    }

    /// Each waits for the others, so all must have come.
    #[test]
    fn helpers_join_with_numbers_of_their_own() {
        let team = team(3);
        for _ in 0..50 {
            let (all, seen) = (std::sync::Barrier::new(3), Mutex::new(Vec::new()));
            team.lead(|| {
                run(3, &|number| {
                    lock(&seen).push((number, threads(), std::thread::current().name().map(str::to_owned)));
                    all.wait();
                });
            });
            let mut seen = into_inner(seen);
            seen.sort();
            assert_eq!(seen.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [0, 1, 2]);
            assert!(seen.iter().all(|(_, threads, _)| *threads == 3));
            let names = seen[1..].iter().filter_map(|(.., name)| name.as_deref());
            assert!(names.clone().all(|name| name.starts_with("test-")) && names.count() == 2);
        }
    }

    #[test]
    fn a_loop_waits_for_no_one_who_has_not_joined() {
        let team = team(2);
        let (begun, begins) = channel();
        let (end, ends) = channel::<()>();
        let ends = Mutex::new(ends);
        std::thread::scope(|scope| {
            // Its one helper is held by a loop of another thread.
            scope.spawn(|| {
                team.lead(|| {
                    run(2, &|number| {
                        begun.send(number).unwrap();
                        let _ = lock(&ends).recv();
                    });
                });
            });
            let mut held = [begins.recv().unwrap(), begins.recv().unwrap()];
            held.sort_unstable();
            assert_eq!(held, [0, 1]);
            let numbers = Mutex::new(Vec::new());
            team.lead(|| run(2, &|number| lock(&numbers).push(number)));
            assert_eq!(into_inner(numbers), [0]);
            drop(end);
        });
    }

    #[test]
    fn loops_inside_loops_of_several_threads_meet_in_one_team() {
        let (team, done) = (team(3), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for i in 0..200 {
                        team.lead(|| {
                            share(0..4, |_| share(0..3, |_| _ = done.fetch_add(1, Ordering::Relaxed)))
                        });
                        if i % 50 == 0 {
                            std::thread::sleep(2 * GLANCE);
                        }
                    }
                });
            }
        });
        assert_eq!(done.into_inner(), 3 * 200 * 12);
        assert!(lock(&team.shared.loops).is_empty());
        assert_eq!([&team.shared.open, &team.shared.calls].map(|n| n.load(Ordering::SeqCst)), [0; 2]);
    }

    /// Whoever panics, the others end first: what the loop borrows is not used afterwards.
    #[test]
    fn a_panic_of_any_thread_reaches_the_one_that_began() {
        let team = team(3);
        for panics in [0, 1, 2] {
            let (all, left) = (std::sync::Barrier::new(3), AtomicUsize::new(0));
            let run = || {
                team.lead(|| {
                    run(3, &|number| {
                        all.wait();
                        assert!(number != panics, "thread {number}");
                        std::thread::sleep(Duration::from_millis(2));
                        left.fetch_add(1, Ordering::SeqCst);
                    });
                });
            };
            let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            assert_eq!(panic.downcast_ref::<String>(), Some(&format!("thread {panics}")));
            assert_eq!(left.load(Ordering::SeqCst), 2);
            assert!(HERE.with_borrow(Option::is_none));
        }
        team.lead(|| share(0..10, |_| ()));
    }

    #[test]
    fn a_helper_that_is_long_is_waited_for_asleep() {
        let (all, done) = (std::sync::Barrier::new(2), AtomicBool::new(false));
        team(2).lead(|| {
            run(2, &|number| {
                all.wait();
                if number == 1 {
                    std::thread::sleep(4 * POLLED);
                    done.store(true, Ordering::SeqCst);
                }
            });
        });
        assert!(done.into_inner());
    }

    /// Waits until so many helpers sleep.
    fn sleepers(shared: &Shared, count: usize) {
        let start = Instant::now();
        while shared.asleep.load(Ordering::SeqCst) != count {
            assert!(start.elapsed() < Duration::from_secs(60), "not {count} helpers sleep");
            std::thread::yield_now();
        }
    }

    /// A thread that moves meanwhile calls again.
    #[test]
    fn helpers_wake_on_other_processors_than_their_caller() {
        let several = std::thread::available_parallelism().unwrap().get() > 1;
        let team = team(3);
        loop {
            sleepers(&team.shared, 2);
            let before = processor();
            let (all, seen) = (std::sync::Barrier::new(3), Mutex::new(Vec::new()));
            team.lead(|| {
                run(3, &|number| {
                    if number > 0 {
                        lock(&seen).push(processor());
                    }
                    all.wait();
                });
            });
            let avoided = lock(&team.shared.affinity).avoided;
            if before == processor() && avoided == before {
                let apart = |helper: &Option<usize>| helper.is_none() || *helper != before;
                assert!(!several || into_inner(seen).iter().all(apart), "{before:?}");
                break;
            }
        }
    }

    #[test]
    fn helpers_sleep_when_no_one_calls_and_end_with_their_team() {
        let team = team(4);
        let shared = Arc::clone(&team.shared);
        let asleep = |count| sleepers(&shared, count);
        asleep(3);
        let calls = [team.call(), team.call()];
        asleep(0);
        drop(calls);
        asleep(3);
        let call = team.call();
        drop(team);
        drop(call);
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}
