//! The queue: a recording runs when it is submitted; the host learns of it when it waits.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::world::World;
use crate::backend::slots::SlotTable;
use crate::backend::{DeviceError, QueueBackend, Timepoint};
use crate::recording::{PreparedId, Recording};
use onepool_core::sync::lock;

/// An in-order queue of a simulated device.
#[derive(Debug)]
pub(super) struct SimQueue {
    world: Arc<Mutex<World>>,
    index: u32,
    prepared: Mutex<SlotTable<PreparedId, Arc<Recording>>>,
    /// What the host was last told of: it learns of a completion one call late.
    announced: Mutex<u64>,
}

impl SimQueue {
    pub(super) fn new(world: Arc<Mutex<World>>, index: u32) -> SimQueue {
        SimQueue { world, index, prepared: Mutex::default(), announced: Mutex::default() }
    }

    fn prepared(&self) -> std::sync::MutexGuard<'_, SlotTable<PreparedId, Arc<Recording>>> {
        lock(&self.prepared)
    }
}

impl QueueBackend for SimQueue {
    fn submit(&self, recording: &Recording) -> Result<Timepoint, DeviceError> {
        lock(&self.world).submit(self.index, recording).map(Timepoint)
    }

    fn prepare(&self, recording: &Recording) -> Result<PreparedId, DeviceError> {
        lock(&self.world).alive()?;
        Ok(self.prepared().insert(Arc::new(recording.clone())))
    }

    fn submit_prepared(&self, prepared: PreparedId) -> Result<Timepoint, DeviceError> {
        let recording = Arc::clone(self.prepared().get(prepared)?);
        self.submit(&recording)
    }

    fn release_prepared(&self, prepared: PreparedId) {
        // A stale handle names nothing that could be released.
        let removed = self.prepared().remove(prepared);
        drop(removed);
    }

    fn wait(&self, point: Timepoint, _: Option<Duration>) -> Result<(), DeviceError> {
        let mut world = lock(&self.world);
        world.alive()?;
        let stale = DeviceError::Stale { object: "timepoint" };
        if world.queues.get(self.index as usize).is_none_or(|queue| queue.submitted < point.0) {
            return Err(stale);
        }
        world.waited(self.index, point.0);
        let Some(queue) = world.queues.get_mut(self.index as usize) else { return Err(stale) };
        let failures = &mut queue.failures;
        let own = failures.iter().position(|(at, _, _)| *at == point.0);
        let found = own.or_else(|| failures.iter().position(|(at, _, told)| *at < point.0 && !told));
        match found.and_then(|at| failures.get_mut(at)) {
            Some((_, error, told)) => {
                *told = true;
                Err(error.clone())
            }
            None => Ok(()),
        }
    }

    fn quiesce(&self) {
        let until = lock(&self.world).lingers(self.index);
        if let Some(until) = until {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            lock(&self.world).end_lingering(self.index);
        }
    }

    fn completed(&self) -> Result<Timepoint, DeviceError> {
        let mut announced = lock(&self.announced);
        let mut world = lock(&self.world);
        world.alive()?;
        let Some(queue) = world.queues.get(self.index as usize) else { return Ok(Timepoint(0)) };
        let now = (*announced).max(queue.waited);
        *announced = queue.submitted;
        // To be told of a completion is to have waited for it.
        world.waited(self.index, now);
        Ok(Timepoint(now))
    }

    fn timestamps(&self, point: Timepoint) -> Result<Vec<u64>, DeviceError> {
        let world = lock(&self.world);
        let queue = world.queues.get(self.index as usize);
        let times = queue.and_then(|queue| queue.times.iter().find(|(at, _)| *at == point.0));
        Ok(times.map(|(_, times)| times.clone()).unwrap_or_default())
    }
}
