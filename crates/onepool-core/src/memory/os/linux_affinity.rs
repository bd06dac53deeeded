//! The processors that a helping thread runs on.
//!
//! A thread that wakes a helper goes on computing, so the helper belongs on another processor. Linux chooses one where it
//! sees an idle one. In a virtual machine it takes those that the host has halted for busy (`vcpu_is_preempted` in
//! `select_idle_sibling`, kernel/sched/fair.c), and wakes the helper in the place of the thread that wakes it.

use std::sync::Mutex;

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::sync::lock;

/// A thread of this process, and the processors that it was given when it began.
#[derive(Debug)]
pub struct ThreadAffinity {
    thread: Pid,
    given: CpuSet,
    /// What the thread has if no one else has chosen.
    own: Mutex<CpuSet>,
}

impl ThreadAffinity {
    /// The calling thread's. `None` where threads are kept off no processor: on other systems than Linux, and
    /// on machines with more processors than its calls have room for.
    pub fn current() -> Option<ThreadAffinity> {
        let given = sched_getaffinity(None).ok()?;
        Some(ThreadAffinity { thread: gettid(), given, own: Mutex::new(given) })
    }

    /// Lets the thread run on all processors that it was given but `processor`. Nothing changes where those are none, and
    /// where someone else has chosen processors for it since.
    pub fn avoid(&self, processor: usize) {
        let mut wanted = self.given;
        if processor < CpuSet::MAX_CPU {
            wanted.unset(processor);
        }
        let mut own = lock(&self.own);
        let may = wanted.count() > 0 && sched_getaffinity(Some(self.thread)) == Ok(*own);
        if wanted != *own && may && sched_setaffinity(Some(self.thread), &wanted).is_ok() {
            *own = wanted;
        }
    }
}

/// The number of the processor that the calling thread runs on, where others can be kept off it.
pub fn processor() -> Option<usize> {
    Some(sched_getcpu())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;

    fn of(processors: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        processors.iter().for_each(|i| set.set(*i));
        set
    }

    #[test]
    fn a_thread_avoids_one_processor_at_a_time() {
        let (given, affinity) = (sched_getaffinity(None).unwrap(), ThreadAffinity::current().unwrap());
        let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|i| given.is_set(*i)).collect();
        let but = |i: usize| of(&all.iter().copied().filter(|other| *other != i).collect::<Vec<_>>());
        let now = || sched_getaffinity(None).unwrap();
        for i in [all[0], all[all.len() - 1]] {
            affinity.avoid(i);
            assert_eq!(now(), if all.len() > 1 { but(i) } else { given });
            assert!(all.len() == 1 || processor() != Some(i));
        }
        affinity.avoid(usize::MAX);
        assert_eq!(now(), given);
    }

    #[test]
    fn what_others_have_chosen_stays() {
        let affinity = ThreadAffinity::current().unwrap();
        let first = of(&[processor().unwrap()]);
        sched_setaffinity(None, &first).unwrap();
        affinity.avoid(0);
        affinity.avoid(1);
        assert_eq!(sched_getaffinity(None).unwrap(), first);
        // A thread on one processor alone has nowhere to go.
        let alone = ThreadAffinity::current().unwrap();
        alone.avoid(processor().unwrap());
        assert_eq!(sched_getaffinity(None).unwrap(), first);
    }

    #[test]
    fn a_sleeping_thread_wakes_elsewhere() {
        let (tell, told) = channel();
        let (wake, woken) = channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(ThreadAffinity::current().unwrap()).unwrap();
            woken.recv().unwrap();
            processor()
        });
        let affinity = told.recv().unwrap();
        let here = processor().unwrap();
        affinity.avoid(here);
        wake.send(()).unwrap();
        let there = thread.join().unwrap();
        assert!(crate::memory::os::cores() == 1 || there != Some(here), "{there:?}");
    }
}
