//! Platforms and their devices, each tried once in the process.

use std::sync::Mutex;

use cl3::types::cl_platform_id;
use cl3::{device, error_codes, platform};

use super::handle::DeviceId;
use super::info::Facts;
use super::probe::probe;
use super::{NAME, error};
use crate::backend::choice::rank;
use crate::backend::install::{Missing, remedy};
use crate::backend::{DeviceError, DeviceInfo};
use onepool_core::sync::lock;

/// A device with what opening it needs.
#[derive(Clone, Debug)]
pub(super) struct OpenableDevice {
    pub(super) device: DeviceId,
    pub(super) facts: Facts,
    pub(super) info: DeviceInfo,
}

/// What trying the devices of this process gave: it takes a context and a compilation each.
static TRIED: Mutex<Vec<OpenableDevice>> = Mutex::new(Vec::new());

/// Every device of every platform, the usable first, then as [`rank`] has them.
pub(super) fn devices() -> Result<Vec<OpenableDevice>, DeviceError> {
    // Held meanwhile: no device is tried twice, and drivers that are asked for the first time by two threads
    // at once may say that they have none (PoCL 3.1 does).
    let mut known = lock(&TRIED);
    let platforms = platform::get_platform_ids().map_err(unavailable)?;
    if platforms.is_empty() {
        return Err(unavailable(error_codes::CL_PLATFORM_NOT_FOUND_KHR));
    }
    let mut found = Vec::new();
    for id in platforms {
        let listed = match device::get_device_ids(id, device::CL_DEVICE_TYPE_ALL) {
            Ok(listed) => listed,
            // A platform may have no devices.
            Err(code) => {
                tracing::debug!(target: "onepool::opencl", code, "a platform has no devices");
                continue;
            }
        };
        for raw in listed {
            found.push(tried(&mut known, id, DeviceId(raw))?);
        }
    }
    if found.is_empty() {
        return Err(DeviceError::Unavailable {
            api: NAME,
            reason: "its drivers have no device; is the device's node readable?".to_owned(),
        });
    }
    // Stable: devices of one rank stay in the loader's order.
    found.sort_by_key(|found| (found.info.unusable.is_some(), rank(&found.info)));
    for (index, found) in found.iter_mut().enumerate() {
        found.info.index = index;
    }
    Ok(found)
}

fn tried(
    tried: &mut Vec<OpenableDevice>,
    id: cl_platform_id,
    device: DeviceId,
) -> Result<OpenableDevice, DeviceError> {
    if let Some(known) = tried.iter().find(|known| known.device == device) {
        return Ok(known.clone());
    }
    let facts = Facts::query(id, device)?;
    // A device that cannot run kernels is not asked to.
    let findings = match facts.unusable() {
        None => probe(device),
        Some(reason) => Err(DeviceError::Unsupported { what: reason }),
    };
    let info = facts.describe(&findings);
    tracing::debug!(target: "onepool::opencl", device = info.name, ?findings, "tried");
    let found = OpenableDevice { device, facts, info };
    tried.push(found.clone());
    Ok(found)
}

/// The name of the loader's library here.
const LIBRARY: &str = match std::env::consts::OS.as_bytes() {
    b"windows" => "OpenCL.dll",
    b"macos" => "OpenCL.framework",
    _ => "libOpenCL.so.1",
};

/// Why there are no platforms, and what to do about it.
fn unavailable(code: i32) -> DeviceError {
    let reason = match code {
        error_codes::DLOPEN_RUNTIME_LOAD_FAILED => {
            let remedy = remedy(Missing::OpenClLoader);
            format!("{LIBRARY} was not found; {remedy}, or name the library in OPENCL_DYLIB_PATH")
        }
        error_codes::DLOPEN_FUNCTION_NOT_AVAILABLE => {
            format!("the library that OPENCL_DYLIB_PATH names, or {LIBRARY}, is no OpenCL library")
        }
        error_codes::CL_PLATFORM_NOT_FOUND_KHR => {
            format!("there is no platform: {}", remedy(Missing::OpenClDriver))
        }
        code => return error("clGetPlatformIDs", code, 0),
    };
    DeviceError::Unavailable { api: NAME, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_have_no_platform_says_what_to_do() {
        for (code, word) in [
            (error_codes::DLOPEN_RUNTIME_LOAD_FAILED, LIBRARY),
            (error_codes::DLOPEN_FUNCTION_NOT_AVAILABLE, "OPENCL_DYLIB_PATH"),
            (error_codes::CL_PLATFORM_NOT_FOUND_KHR, "no driver is registered"),
        ] {
            let said = unavailable(code).to_string();
            assert!(said.starts_with("opencl is not available: ") && said.contains(word), "{said}");
        }
        assert_eq!(unavailable(-6), DeviceError::OutOfHostMemory { bytes: 0 });
    }
}
