//! The OpenCL backend: any device of any installable driver of OpenCL 1.2 and up, through `cl3`, which loads
//! the library at run time.
//!
//! * `handle`: the API's objects, released when they go, and the calls on them; `answer`: reading what they say.
//! * `platform`: what there is; `info`: what a device says of itself; `probe`: what is found by trying it.
//! * `share`: what all contexts of a device share; `device`: a device opened, and the memory of its loss.
//! * `context`: what callers hold; `tables`: what it has in common with its queues.
//! * `memory`: buffers, parts of them, mapped memory and its copies; `image`: images over them.
//! * `program`: OpenCL C, compiled once in the process; `cache`: binaries on disk; `kernel`: kernels.
//! * `command`: a recording as calls; `queue`: submission; `timeline`: waiting and times.
//!
//! docs/OPENCL_MAPPING.md has the table of objects and calls.
//!
//! Invariants: whether memory is shared is found by trying, never believed; a kernel object's arguments are
//! set by whoever took it; a command's buffers are in the table, which is locked while it is enqueued.

#![allow(unsafe_code, reason = "calls of a C interface; each block names what makes it valid")]

mod answer;
mod cache;
mod command;
mod context;
mod device;
mod handle;
mod image;
mod info;
mod kernel;
mod memory;
mod platform;
mod probe;
mod program;
mod queue;
mod share;
mod tables;
mod timeline;

#[cfg(any(test, feature = "testing"))]
pub mod shim;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use cl3::error_codes as codes;

use self::context::Context;
use self::device::Device;
#[cfg(any(test, feature = "testing"))]
use super::DeviceKind;
use super::{ContextBackend, ContextDesc, DeviceError, DeviceInfo, Driver};
#[cfg(any(test, feature = "testing"))]
use onepool_core::memory::model::{ImportTypes, MemoryModel};

const NAME: &str = "opencl";

/// Lists and opens OpenCL devices.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenClDriver;

impl OpenClDriver {
    /// A driver that opens nothing before it is asked to.
    pub const fn new() -> Self {
        OpenClDriver
    }

    fn open(self, index: usize, desc: &ContextDesc) -> Result<Arc<Context>, DeviceError> {
        self.open_with(index, desc, |_| ())
    }

    /// Opens a device as `change` has it.
    fn open_with(
        self,
        index: usize,
        desc: &ContextDesc,
        change: impl FnOnce(&mut DeviceInfo),
    ) -> Result<Arc<Context>, DeviceError> {
        let mut found = platform::devices()?.into_iter().nth(index).ok_or_else(|| {
            DeviceError::Unsupported { what: format!("index {index}: there is no such OpenCL device") }
        })?;
        if let Some(reason) = found.info.unusable {
            return Err(DeviceError::Unsupported { what: format!("compute here: {reason}") });
        }
        change(&mut found.info);
        Ok(Arc::new(Context::new(Device::open(found)?, desc)))
    }

    /// Opens a device as one that shares no memory with the host and imports nothing, so that tests run what is done there.
    #[cfg(any(test, feature = "testing"))]
    fn open_apart(self, index: usize, desc: &ContextDesc) -> Result<Arc<Context>, DeviceError> {
        self.open_with(index, desc, |info| {
            let apart = MemoryModel::two_pools(DeviceKind::Discrete, 1 << 30, 1 << 30);
            (info.memory, info.import) = (apart.importing(ImportTypes::None), None);
        })
    }

    /// Opens a device as one that shares no memory with the host and imports nothing.
    ///
    /// # Errors
    /// As [`Driver::open`].
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn open_as_discrete(
        self,
        index: usize,
        desc: &ContextDesc,
    ) -> Result<Arc<dyn ContextBackend>, DeviceError> {
        Ok(self.open_apart(index, desc)?)
    }
}

impl Driver for OpenClDriver {
    fn api(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, DeviceError> {
        Ok(platform::devices()?.into_iter().map(|found| found.info).collect())
    }

    fn open(&self, index: usize, desc: &ContextDesc) -> Result<Arc<dyn ContextBackend>, DeviceError> {
        Ok(OpenClDriver::open(*self, index, desc)?)
    }
}

/// A failed call as the error that a caller can tell apart; `bytes` is what an allocation asked for.
fn error(call: &'static str, code: i32, bytes: u64) -> DeviceError {
    let lost = || DeviceError::Lost { detail: format!("{call}: {}", codes::ClError(code)) };
    match code {
        codes::CL_DEVICE_NOT_AVAILABLE | codes::CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST => lost(),
        // What NVIDIA's driver says of a kernel that touched memory it has not.
        -9999 => lost(),
        codes::CL_MEM_OBJECT_ALLOCATION_FAILURE => DeviceError::OutOfDeviceMemory { bytes },
        codes::CL_OUT_OF_RESOURCES if bytes > 0 => DeviceError::OutOfDeviceMemory { bytes },
        codes::CL_OUT_OF_HOST_MEMORY => DeviceError::OutOfHostMemory { bytes },
        code => DeviceError::Backend { api: "OpenCL", call, code },
    }
}
