//! Positions in onnxruntime's tables against its own headers, where they are installed (Debian: `libonnxruntime-dev`) or
//! `ONNXRUNTIME_INCLUDE` names their folder. Without them the test says so and checks the order alone.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use std::mem::{offset_of, size_of};

use onepool_ort::abi::{
    OrtApi, OrtEp, OrtEpApi, OrtEpFactory, OrtEpProfilerImpl, OrtExternalMemoryDescriptor,
    OrtExternalMemoryHandle, OrtExternalResourceImporterImpl, OrtExternalTensorDescriptor, OrtModelEditorApi,
    OrtNodeComputeInfo, OrtNodeFusionOptions,
};

/// Functions that the oldest header with the interface, 1.23's, does not have, and since when others have them.
const NEWER: &[(&str, u32)] = &[
    ("TensorTypeAndShape_HasShape", 24),
    ("CreateProfilingEvent", 25),
    ("ReleaseProfilingEvent", 25),
    ("ProfilingEventsContainer_AddEvents", 25),
];

/// What 1.23 has of the structures that grew.
const BEFORE_24: &[&str] = &[
    "ort_version_supported",
    "GetName",
    "GetCapability",
    "Compile",
    "ReleaseNodeComputeInfos",
    "GetVendor",
    "GetSupportedDevices",
    "CreateEp",
    "ReleaseEp",
    "GetVendorId",
    "IsStreamAware",
    "CreateDataTransfer",
];

/// Fields of a structure, and where they are.
type Fields = &'static [(&'static str, usize)];

macro_rules! structures {
    ($($name:ident $since:literal [$($field:ident)*])*) => {
        [$((stringify!($name), $since, size_of::<$name>(), {
            const FIELDS: Fields = &[$((stringify!($field), offset_of!($name, $field))),*];
            FIELDS
        })),*]
    };
}

/// Every structure that both sides see: name, the version that it is of, bytes, fields.
fn structures() -> [(&'static str, u32, usize, Fields); 9] {
    structures! {
        OrtEp 28 [ort_version_supported GetName GetCapability Compile ReleaseNodeComputeInfos GetPreferredDataLayout
            ShouldConvertDataLayoutForOp SetDynamicOptions OnRunStart OnRunEnd CreateAllocator
            CreateSyncStreamForDevice GetCompiledModelCompatibilityInfo GetKernelRegistry IsConcurrentRunSupported Sync
            CreateProfiler IsGraphCaptureEnabled IsGraphCaptured ReplayGraph GetGraphCaptureNodeAssignmentPolicy
            GetAvailableResource OnSessionInitializationEnd GetDefaultMemoryDevice ReleaseCapturedGraph]
        OrtEpFactory 28 [ort_version_supported GetName GetVendor GetSupportedDevices CreateEp ReleaseEp GetVendorId
            GetVersion ValidateCompiledModelCompatibilityInfo CreateAllocator ReleaseAllocator CreateDataTransfer
            IsStreamAware CreateSyncStreamForDevice GetHardwareDeviceIncompatibilityDetails
            CreateExternalResourceImporterForDevice GetNumCustomOpDomains GetCustomOpDomains InitGraphicsInterop
            DeinitGraphicsInterop SelectBestModelCandidate]
        OrtNodeComputeInfo 23 [ort_version_supported CreateState Compute ReleaseState]
        OrtNodeFusionOptions 23 [ort_version_supported drop_constant_initializers]
        OrtExternalMemoryDescriptor 24 [version handle_type native_handle size_bytes offset_bytes]
        OrtExternalTensorDescriptor 24 [version element_type shape rank offset_bytes]
        OrtExternalMemoryHandle 24 [version ep_device descriptor Release]
        OrtExternalResourceImporterImpl 24 [ort_version_supported CanImportMemory ImportMemory ReleaseMemory
            CreateTensorFromMemory CanImportSemaphore ImportSemaphore ReleaseSemaphore WaitSemaphore SignalSemaphore
            Release]
        OrtEpProfilerImpl 25 [ort_version_supported Release StartProfiling StartEvent StopEvent EndProfiling]
    }
}

/// A pointer, or the version before it, takes eight bytes; two numbers of 32 bits share them.
#[test]
#[cfg(target_pointer_width = "64")]
fn structures_have_no_gaps() {
    for (of, _, bytes, fields) in structures() {
        let shared =
            |name: &str| matches!(name, "handle_type" | "element_type" | "drop_constant_initializers");
        let mut at = 0;
        for (name, offset) in fields {
            let expected = if shared(name) { 4 } else { at };
            assert_eq!(*offset, expected, "{of}.{name}");
            at = match *name {
                "descriptor" => at + size_of::<OrtExternalMemoryDescriptor>(),
                name if shared(name) => at,
                _ => at + 8,
            };
        }
        assert_eq!(at, bytes, "{of} has other bytes than its fields");
    }
}

fn headers() -> Option<PathBuf> {
    let told = std::env::var_os("ONNXRUNTIME_INCLUDE").map(PathBuf::from);
    let usual = ["/usr/include/onnxruntime", "/usr/local/include/onnxruntime"].map(PathBuf::from);
    told.into_iter().chain(usual).find(|dir| dir.join("onnxruntime_ep_c_api.h").is_file())
}

#[test]
fn positions_are_those_of_the_headers() {
    let tables = [
        ("OrtApi", OrtApi::SLOTS),
        ("OrtEpApi", OrtEpApi::SLOTS),
        ("OrtModelEditorApi", OrtModelEditorApi::SLOTS),
    ];
    for (table, slots) in tables {
        assert!(slots.windows(2).all(|pair| pair[0].1 < pair[1].1), "{table}");
    }
    let Some(headers) = headers() else {
        println!("onnxruntime's headers are not here: set ONNXRUNTIME_INCLUDE to compare with them");
        return;
    };
    let mut source = String::from("#include <stddef.h>\n#include <onnxruntime_c_api.h>\n");
    for (table, slots) in tables {
        for (name, slot) in slots {
            let since = NEWER.iter().find(|(newer, _)| newer == name).map_or(23, |(_, since)| *since);
            let at = format!("offsetof({table}, {name}) == {slot} * sizeof(void *)");
            writeln!(
                source,
                "#if ORT_API_VERSION >= {since}\n_Static_assert({at}, \"{table}.{name}\");\n#endif"
            )
            .unwrap();
        }
    }
    // Fields come at the end: what an older header has of a structure lies where it does.
    for (of, since, _, fields) in structures() {
        let known = if matches!(of, "OrtEp" | "OrtEpFactory") { 23 } else { since };
        writeln!(source, "#if ORT_API_VERSION >= {known}").unwrap();
        for (name, offset) in fields {
            // What 1.23's structures end with.
            let old = known == since || BEFORE_24.contains(name);
            let from = if old { known } else { since };
            let at = format!("offsetof({of}, {name}) == {offset}");
            writeln!(source, "#if ORT_API_VERSION >= {from}\n_Static_assert({at}, \"{of}.{name}\");\n#endif")
                .unwrap();
        }
        writeln!(source, "#endif").unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("layout.c");
    std::fs::write(&file, source).unwrap();
    let compiled =
        Command::new("gcc").arg("-fsyntax-only").arg("-I").arg(headers).arg(file).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}
