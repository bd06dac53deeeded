//! Positions in onnxruntime's tables against its own headers, where they are installed (Debian: `libonnxruntime-dev`) or
//! `ONNXRUNTIME_INCLUDE` names their folder. Without them the test says so and checks the order alone.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use onepool_ort::abi::{OrtApi, OrtEpApi, OrtModelEditorApi};

/// Functions that the oldest header with the interface, 1.23's, does not have.
const NEWER: &[&str] = &["TensorTypeAndShape_HasShape"];

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
        for (name, slot) in slots.iter().filter(|(name, _)| !NEWER.contains(name)) {
            let at = format!("offsetof({table}, {name}) == {slot} * sizeof(void *)");
            writeln!(source, "_Static_assert({at}, \"{table}.{name}\");").unwrap();
        }
    }
    // The structures begin with the version; the functions follow in order.
    for (of, names) in [
        ("OrtEp", &["GetName", "GetCapability", "Compile", "ReleaseNodeComputeInfos"][..]),
        (
            "OrtEpFactory",
            &["GetName", "GetVendor", "GetSupportedDevices", "CreateEp", "ReleaseEp", "GetVendorId"],
        ),
        ("OrtNodeComputeInfo", &["CreateState", "Compute", "ReleaseState"]),
    ] {
        for (i, name) in names.iter().enumerate() {
            let at = format!("offsetof({of}, {name}) == {} * sizeof(void *)", i + 1);
            writeln!(source, "_Static_assert({at}, \"{of}.{name}\");").unwrap();
        }
    }
    for (i, name) in [(9, "CreateAllocator"), (11, "CreateDataTransfer"), (12, "IsStreamAware")] {
        let at = format!("offsetof(OrtEpFactory, {name}) == {i} * sizeof(void *)");
        writeln!(source, "_Static_assert({at}, \"OrtEpFactory.{name}\");").unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("layout.c");
    std::fs::write(&file, source).unwrap();
    let compiled =
        Command::new("gcc").arg("-fsyntax-only").arg("-I").arg(headers).arg(file).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}
