//! Calls that fail because a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::world::{World, lost};
use crate::backend::DeviceError;

/// Failures to inject, each at the n-th call since the context was opened; the first is 1.
#[derive(Clone, Debug, Default)]
pub struct SimFaults {
    /// The submission that loses the device.
    pub lose_at_submit: Option<u64>,
    /// The submission that loses the device, and for how long work of earlier ones goes on. What no one waited for then
    /// arrives as poison.
    pub lose_early_at_submit: Option<(u64, Duration)>,
    /// The allocation that finds no memory.
    pub exhaust_at_allocation: Option<u64>,
    /// The import that the driver refuses.
    pub refuse_at_import: Option<u64>,
    /// Bytes of imports beyond which submissions find no memory, and are told so.
    pub imports_at_submit: Option<u64>,
    /// Bytes of imports beyond which a submission loses the device, as RADV reports a kernel that cannot map them.
    pub lose_by_imports: Option<u64>,
    /// The call that fails, of whatever kind, and how. Calls are counted in [`SimFaults::calls`].
    pub at_call: Option<(u64, SimFault)>,
    /// Counts the calls that may fail, of all contexts that were opened with a clone of this.
    pub calls: Arc<AtomicU64>,
}

impl PartialEq for SimFaults {
    /// What fails is the same; what was counted does not matter.
    fn eq(&self, other: &SimFaults) -> bool {
        let lost = |f: &SimFaults| (f.lose_at_submit, f.lose_early_at_submit);
        let calls = |f: &SimFaults| (f.exhaust_at_allocation, f.refuse_at_import, f.at_call);
        let imports = |f: &SimFaults| (f.imports_at_submit, f.lose_by_imports);
        lost(self) == lost(other) && calls(self) == calls(other) && imports(self) == imports(other)
    }
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimFault {
    /// The device is lost, and stays so.
    Lost,
    /// The host has no memory.
    OutOfHostMemory,
    /// The device has no memory.
    OutOfDeviceMemory,
}

impl World {
    /// Every call that may fail begins with this.
    pub(super) fn alive(&mut self) -> Result<(), DeviceError> {
        if self.lost {
            return Err(lost("it was lost before"));
        }
        let call = self.config.faults.calls.fetch_add(1, Ordering::Relaxed) + 1;
        match self.config.faults.at_call {
            Some((at, fault)) if at == call => Err(match fault {
                SimFault::Lost => {
                    self.lost = true;
                    lost("injected at this call")
                }
                SimFault::OutOfHostMemory => DeviceError::OutOfHostMemory { bytes: 0 },
                SimFault::OutOfDeviceMemory => DeviceError::OutOfDeviceMemory { bytes: 0 },
            }),
            _ => Ok(()),
        }
    }

    /// The device is lost, while what no one waited for goes on.
    pub(super) fn lose_early(&mut self, time: Duration) -> DeviceError {
        let until = Instant::now() + time;
        for queue in self.queues.iter_mut().filter(|queue| queue.waited < queue.submitted) {
            queue.lingers = Some(until);
        }
        self.lose("injected at this submission, before earlier ones were over")
    }

    /// Until when work of a queue goes on after the loss.
    pub(super) fn lingers(&self, queue: u32) -> Option<Instant> {
        self.queues.get(queue as usize)?.lingers
    }

    /// The end of what goes on after the loss: the host finds poison in what it writes.
    pub(super) fn end_lingering(&mut self, queue: u32) {
        let Some(state) = self.queues.get_mut(queue as usize) else { return };
        if state.lingers.take().is_none() {
            return;
        }
        state.waited = state.submitted;
        for body in self.bodies.values_mut() {
            let Some(host) = &mut body.host else { continue };
            body.device.unwaited(queue).for_each(|range| host.poison(range));
        }
    }
}
