//! Tells callers when a run has read an input for the last time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::device::Event;
use crate::plan::{Space, StageInput};
use crate::session::bind::binding::Binding;
use crate::session::core::cancel::RunOptions;
use crate::session::core::read_end::ReadEnd;
use crate::session::error::SessionError;
use crate::sync::lock;

/// Callbacks of one run. Those that were not called are when the last share of this is dropped.
#[derive(Debug, Default)]
pub(in crate::session) struct Reads(Vec<Read>);

/// The reads of one input, or of the memories of one frame.
#[derive(Debug)]
struct Read {
    end: Arc<ReadEnd>,
    /// Launches that read it and are not over.
    launches: Mutex<BTreeSet<usize>>,
    /// When the last read is over.
    last: LastRead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastRead {
    /// Once the CPU has copied it, before the first launch.
    Copy,
    /// With the last launch that reads it.
    Launch,
    Run,
}

impl Reads {
    /// The callbacks of a run of `binding`.
    pub(in crate::session) fn new(
        binding: &Binding<'_>,
        options: &RunOptions,
    ) -> Result<Arc<Self>, SessionError> {
        let frames = &binding.core.options.frames.inputs;
        let mut reads = Vec::with_capacity(options.reads().len());
        for end in options.reads() {
            let names = frames.get(&end.name).map_or(std::slice::from_ref(&end.name), Vec::as_slice);
            let inputs = names.iter().map(|name| binding.core.input_position(name));
            match inputs.collect::<Result<Vec<usize>, SessionError>>() {
                Ok(inputs) => reads.push(binding.reads_of(end, &inputs)),
                Err(unknown) => {
                    options.reads().iter().for_each(|end| end.call());
                    return Err(unknown);
                }
            }
        }
        Ok(Arc::new(Reads(reads)))
    }

    pub(in crate::session) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The CPU has copied what it copies, and will not do so again.
    pub(in crate::session) fn copied(&self) {
        let copied = self.0.iter().filter(|read| read.last == LastRead::Copy);
        copied.for_each(|read| read.end.call());
    }

    /// Launch `s` is over.
    pub(in crate::session) fn launch_over(&self, s: usize) {
        for read in self.0.iter().filter(|read| read.last == LastRead::Launch) {
            let mut open = lock(&read.launches);
            if open.remove(&s) && open.is_empty() {
                drop(open);
                read.end.call();
            }
        }
    }

    /// The run is over, and no device uses its memory.
    pub(in crate::session) fn run_over(&self) {
        self.0.iter().for_each(|read| read.end.call());
    }

    /// Calls the callbacks on a new thread once the submission of `event` is over.
    pub(in crate::session) fn call_after(self: &Arc<Self>, event: &Event) {
        let (reads, event) = (Arc::clone(self), event.clone());
        let shared = Arc::new(Mutex::new(Some((reads, event))));
        let own = Arc::clone(&shared);
        let wait = move || {
            if let Some((reads, event)) = lock(&own).take() {
                wait_until_over(&event);
                reads.run_over();
            }
        };
        let spawned = std::thread::Builder::new().name("onepool-reads".to_owned()).spawn(wait);
        if spawned.is_err()
            && let Some((reads, event)) = lock(&shared).take()
        {
            wait_until_over(&event);
            reads.run_over();
        }
    }
}

/// Waits until no device works on a submission: a lost one does not either.
fn wait_until_over(event: &Event) {
    const LOOK: Duration = Duration::from_millis(5);
    // A wait that runs out of time leaves the submission under way.
    while event.wait().is_err() && matches!(event.is_done(), Ok(false)) {
        std::thread::sleep(LOOK);
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        self.run_over();
    }
}

impl Binding<'_> {
    fn reads_of(&self, end: &Arc<ReadEnd>, inputs: &[usize]) -> Read {
        let plan = &self.compiled.plan;
        let mut launches = BTreeSet::new();
        for (s, segment) in plan.segments.iter().enumerate() {
            for command in &segment.commands {
                command.work.for_each_touch(&mut |location, _| {
                    if matches!(location.space, Space::Input(i) if inputs.contains(&(i as usize))) {
                        launches.insert(s);
                    }
                });
            }
        }
        let stage = self.compiled.stage.as_ref();
        let is_later =
            |i: usize| stage.is_some_and(|s| s.stage_inputs().any(|input| input == StageInput::Input(i)));
        let is_written = |i: usize| plan.inputs.get(i).is_some_and(|io| io.updated.is_some());
        let last = if inputs.iter().any(|i| is_later(*i) || is_written(*i)) {
            LastRead::Run
        } else if inputs.iter().all(|i| self.inputs.get(*i).is_some_and(|slot| slot.is_copied_in())) {
            LastRead::Copy
        } else {
            LastRead::Launch
        };
        Read { end: Arc::clone(end), launches: Mutex::new(launches), last }
    }
}
