//! Calls that fail because a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::world::{World, lost};
use crate::backend::DeviceError;

/// Failures to inject, each at the n-th call since the context was opened; the first is 1.
#[derive(Clone, Debug, Default)]
pub struct SimFaults {
    /// The submission that loses the device.
    pub lose_at_submit: Option<u64>,
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
        let calls =
            |f: &SimFaults| (f.lose_at_submit, f.exhaust_at_allocation, f.refuse_at_import, f.at_call);
        let imports = |f: &SimFaults| (f.imports_at_submit, f.lose_by_imports);
        calls(self) == calls(other) && imports(self) == imports(other)
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
    ///
    /// # Errors
    /// The device was lost, or this call is to fail.
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
}
