//! Listing and opening.

use super::*;
use crate::backend::install::{Missing, remedy};

#[test]
fn pocl_shares_memory_and_is_found_to() {
    let devices = OpenClDriver.devices().unwrap();
    let info = devices.iter().find(|info| info.driver.contains("PoCL")).unwrap();
    assert_eq!(
        (info.kind, info.memory.shares_host_memory(), info.unusable.as_ref()),
        (DeviceKind::Cpu, true, None)
    );
    let rules = info.import.unwrap();
    assert_eq!((rules.alignment, rules.size_multiple), (4096, 4096));
    assert!(rules.max_bytes <= info.limits.max_buffer_bytes);
    assert!(info.advice.iter().any(|words| words.contains("in place")), "{:?}", info.advice);
}

#[test]
#[ignore = "run by the tests below, in a process of its own under another environment"]
fn listing_and_opening_answer_whatever_is_installed() {
    let listed = OpenClDriver.devices();
    let opened = Driver::open(&OpenClDriver, 0, &ContextDesc::default());
    println!("listed: {:?}", listed.map(|devices| devices.len()).map_err(|error| error.to_string()));
    println!(
        "opened: {:?}",
        opened.map(|context| context.info().name.clone()).map_err(|error| error.to_string())
    );
}

fn listing_under(name: &str, value: &str) -> String {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--ignored",
            "--nocapture",
            "backend::opencl::tests::driver::listing_and_opening_answer_whatever_is_installed",
        ])
        .env(name, value)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("listed: "), "{text}");
    text
}

#[test]
fn without_a_platform_the_error_says_what_to_do() {
    let text = listing_under("OCL_ICD_VENDORS", "/nonexistent/");
    assert!(text.contains("listed: Err(\"opencl is not available: there is no platform"), "{text}");
    assert!(text.contains("opened: Err(\"opencl is not available"), "{text}");
    assert!(text.contains(remedy(Missing::OpenClDriver)), "{text}");
}

#[test]
fn a_library_that_is_not_opencl_is_an_error_and_a_missing_one_is_passed_over() {
    let other = if cfg!(windows) { "kernel32.dll" } else { "libm.so.6" };
    let text = listing_under("OPENCL_DYLIB_PATH", other);
    assert!(text.contains("listed: Err(\"opencl is not available: the library"), "{text}");
    // The library's usual name is tried after it.
    let text = listing_under("OPENCL_DYLIB_PATH", "/nonexistent.so");
    assert!(text.contains("listed: Ok("), "{text}");
}
