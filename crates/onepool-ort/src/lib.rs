//! The onnxruntime plug-in execution provider of `onepool`; `docs/ORT.md` shows its use.
//!
//! onnxruntime loads the library and calls [`CreateEpFactories`]. The provider takes the nodes that the
//! library plans for the session's devices, compiles each connected part to a session, and runs it on the
//! memory that onnxruntime hands over.
//!
//! | module | what it is |
//! |---|---|
//! | `abi` | positions of functions and structures of the C interface |
//! | `host` | onnxruntime's objects as values |
//! | `model` | nodes as a model that the loader reads |
//! | `claim` | which nodes are taken |
//! | `part` | runs |
//! | `context` | models of `EPContext` nodes |
//! | `external` | memory of the application that stays imported |
//! | `profile` | events of onnxruntime's profile |
//! | `ep` | the provider of one session |

#![allow(unsafe_code, reason = "onnxruntime calls exported functions, with pointers")]

pub mod abi;
mod claim;
mod context;
mod ep;
mod external;
mod failure;
mod host;
mod model;
mod options;
mod part;
mod profile;
pub mod stats;
mod types;
mod wire;

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

use abi::{
    OrtApi, OrtApiBase, OrtEp, OrtEpApi, OrtEpDevice, OrtEpFactory, OrtExternalResourceImporterImpl,
    OrtHardwareDevice, OrtKeyValuePairs, OrtLogger, OrtModelEditorApi, OrtSessionOptions, StatusPtr,
};
use ep::Ep;
use failure::Failure;
use host::{Host, status};
use options::{EP_NAME, Options};
use stats::OnepoolOrtStats;

/// The oldest version of the interface that has what is used, and the newest whose structures are declared here.
const VERSIONS: std::ops::RangeInclusive<u32> = 24..=28;

/// The kind of a hardware device that is the CPU.
const CPU: u32 = 0;

/// Makes providers. onnxruntime sees its first field.
#[repr(C)]
#[derive(Debug)]
struct Factory {
    table: OrtEpFactory,
    host: Host,
}

/// The version of the interface that both sides know: `text` is onnxruntime's own version, "1.X.Y".
fn version(text: &str) -> Option<u32> {
    let minor: u32 = text.strip_prefix("1.")?.split('.').next()?.parse().ok()?;
    Some(minor.min(*VERSIONS.end()))
}

/// Called by onnxruntime once it has loaded the library.
///
/// # Safety
/// The arguments are as onnxruntime's header says of `CreateEpApiFactoriesFn`.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn CreateEpFactories(
    _registered_name: *const c_char,
    base: *const OrtApiBase,
    _logger: *const OrtLogger,
    factories: *mut *mut OrtEpFactory,
    most: usize,
    count: *mut usize,
) -> StatusPtr {
    // SAFETY: onnxruntime gives its base, whose functions may be called.
    let (text, get_api) = unsafe { (CStr::from_ptr(((*base).GetVersionString)()), (*base).GetApi) };
    let text = text.to_string_lossy();
    let known = version(&text);
    // SAFETY: any version may be asked for; the first functions of the table are those of every version.
    let Some(api) = (unsafe { OrtApi::new(get_api(known.unwrap_or(1))) }) else { return null_mut() };
    let fail = |message: &str| {
        let message = host::c_text(message);
        // SAFETY: the text ends with a zero; it is copied.
        unsafe { api.CreateStatus(abi::FAIL, message.as_ptr()) }
    };
    let Some(version) = known.filter(|version| VERSIONS.contains(version)) else {
        let least = VERSIONS.start();
        return fail(&format!("onepool needs onnxruntime 1.{least} or newer, and this is {text}"));
    };
    if most == 0 {
        return fail("onepool makes one factory, and there is room for none");
    }
    // SAFETY: tables of the version asked for.
    let (ep, editor) =
        unsafe { (OrtEpApi::new(api.GetEpApi()), OrtModelEditorApi::new(api.GetModelEditorApi())) };
    let (Some(ep), Some(editor)) = (ep, editor) else {
        return fail("this onnxruntime was built without plug-in providers");
    };
    let host = Host { api, ep, editor, version };
    let table = OrtEpFactory {
        ort_version_supported: version,
        GetName: factory_name,
        GetVendor: vendor,
        GetSupportedDevices: supported_devices,
        CreateEp: create_ep,
        ReleaseEp: release_ep,
        GetVendorId: vendor_id,
        GetVersion: factory_version,
        ValidateCompiledModelCompatibilityInfo: None,
        CreateAllocator: no_allocator,
        ReleaseAllocator: release_allocator,
        CreateDataTransfer: no_data_transfer,
        IsStreamAware: is_stream_aware,
        CreateSyncStreamForDevice: None,
        GetHardwareDeviceIncompatibilityDetails: None,
        CreateExternalResourceImporterForDevice: create_importer,
        GetNumCustomOpDomains: None,
        GetCustomOpDomains: None,
        InitGraphicsInterop: None,
        DeinitGraphicsInterop: None,
        SelectBestModelCandidate: None,
    };
    // SAFETY: onnxruntime's places, of which there is at least one.
    unsafe {
        *factories = Box::into_raw(Box::new(Factory { table, host })).cast();
        *count = 1;
    }
    null_mut()
}

/// Called by onnxruntime before it unloads the library.
///
/// # Safety
/// `factory` is one that [`CreateEpFactories`] made, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn ReleaseEpFactory(factory: *mut OrtEpFactory) -> StatusPtr {
    if !factory.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(factory.cast::<Factory>()) });
        drop(failure::caught(|| {
            external::release_all();
            ep::close_devices();
            Ok(())
        }));
    }
    null_mut()
}

/// Writes the counters of the process to `out`, which has `bytes` bytes: as many fields as fit. Returns the size of all.
///
/// # Safety
/// `out` is null or has so many bytes to write.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn onepool_ort_stats(out: *mut OnepoolOrtStats, bytes: usize) -> usize {
    let (stats, all) = (stats::read(), size_of::<OnepoolOrtStats>());
    if !out.is_null() {
        // SAFETY: the caller's promise; no more than both have.
        unsafe { std::ptr::copy_nonoverlapping((&raw const stats).cast::<u8>(), out.cast(), bytes.min(all)) };
    }
    all
}

extern "system" fn factory_name(_: *const OrtEpFactory) -> *const c_char {
    EP_NAME.as_ptr()
}

extern "system" fn vendor(_: *const OrtEpFactory) -> *const c_char {
    c"onepool".as_ptr()
}

extern "system" fn vendor_id(_: *const OrtEpFactory) -> u32 {
    0
}

extern "system" fn factory_version(_: *const OrtEpFactory) -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

extern "system" fn is_stream_aware(_: *const OrtEpFactory) -> bool {
    false
}

/// Memory is onnxruntime's own. The header allows none of these three to be left out.
// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn no_allocator(
    _: *mut OrtEpFactory,
    _info: *const c_void,
    _options: *const OrtKeyValuePairs,
    out: *mut *mut c_void,
) -> StatusPtr {
    // SAFETY: onnxruntime's place for the result.
    unsafe { *out = null_mut() };
    null_mut()
}

extern "system" fn release_allocator(_: *mut OrtEpFactory, _: *mut c_void) {}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn no_data_transfer(_: *mut OrtEpFactory, out: *mut *mut c_void) -> StatusPtr {
    // SAFETY: onnxruntime's place for the result.
    unsafe { *out = null_mut() };
    null_mut()
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn create_importer(
    this: *mut OrtEpFactory,
    device: *const OrtEpDevice,
    out: *mut *mut OrtExternalResourceImporterImpl,
) -> StatusPtr {
    // SAFETY: as in `supported_devices`.
    let host = unsafe { (*this.cast::<Factory>()).host };
    status(host, || {
        if out.is_null() {
            return Err(Failure::argument("an importer without a place for it"));
        }
        // SAFETY: onnxruntime's place for the result.
        unsafe { *out = external::importer(host, device) };
        Ok(())
    })
}

/// The provider belongs to the CPU, which is always there: memory of its tensors is the host's, and which devices compute
/// is an option.
// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn supported_devices(
    this: *mut OrtEpFactory,
    devices: *const *const OrtHardwareDevice,
    count: usize,
    out: *mut *mut OrtEpDevice,
    most: usize,
    found: *mut usize,
) -> StatusPtr {
    // SAFETY: onnxruntime gives back the pointer that was made for it.
    let host = unsafe { (*this.cast::<Factory>()).host };
    status(host, || {
        // SAFETY: onnxruntime's place for the result.
        unsafe { *found = 0 };
        for i in 0..count {
            // SAFETY: the list has that length.
            let device = unsafe { *devices.add(i) };
            // SAFETY: the device is onnxruntime's.
            if most == 0 || unsafe { host.api.HardwareDevice_Type(device) } != CPU {
                continue;
            }
            let mut made = null_mut();
            // SAFETY: metadata and options may be left out.
            host.check(unsafe { host.ep.CreateEpDevice(this, device, null(), null(), &mut made) })?;
            // SAFETY: there is room for one.
            unsafe {
                *out = made;
                *found = 1;
            }
            break;
        }
        Ok(())
    })
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn create_ep(
    this: *mut OrtEpFactory,
    _devices: *const *const OrtHardwareDevice,
    _metadata: *const *const OrtKeyValuePairs,
    _count: usize,
    options: *const OrtSessionOptions,
    logger: *const OrtLogger,
    out: *mut *mut OrtEp,
) -> StatusPtr {
    // SAFETY: as in `supported_devices`.
    let host = unsafe { (*this.cast::<Factory>()).host };
    status(host, || {
        if options.is_null() || out.is_null() {
            return Err(Failure::argument("CreateEp without options or a place for the provider"));
        }
        // SAFETY: the options are onnxruntime's for this call; the session's log lives as long as its provider.
        let ep = unsafe { Ep::new(host, Options::read(&host.config(options)?)?, logger)? };
        // SAFETY: onnxruntime's place for the result.
        unsafe { *out = Box::into_raw(ep).cast() };
        Ok(())
    })
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn release_ep(_: *mut OrtEpFactory, ep: *mut OrtEp) {
    if !ep.is_null() {
        // SAFETY: made by `create_ep`, and released once.
        let ep = unsafe { Box::from_raw(ep.cast::<Ep>()) };
        drop(failure::caught(|| {
            drop(ep);
            Ok(())
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_of_both_versions_counts() {
        assert_eq!(version("1.24.4"), Some(24));
        assert_eq!(version("1.31.1-dev+abc"), Some(28));
        assert_eq!(version("1.9.0"), Some(9));
        assert_eq!(version("2.0.0"), None);
        assert!(!VERSIONS.contains(&9));
    }
}
