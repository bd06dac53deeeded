//! Tests that measure their process: in one of its own, whose allocator gives freed memory back to the system at once.

use std::process::Command;

/// Runs test `name` of this program in a process of its own, where the environment has `variable` as `value`.
///
/// # Panics
/// The test fails there.
pub(crate) fn alone(name: &str, variable: &str, value: &str) {
    let measured = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(variable, value)
        // glibc: by itself it keeps freed memory, the more the larger the blocks were, and for each thread.
        .env("MALLOC_MMAP_THRESHOLD_", "65536")
        .env("MALLOC_TRIM_THRESHOLD_", "65536")
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let said = [measured.stdout, measured.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    println!("{}", said.concat());
    assert!(measured.status.success() && said[0].contains("1 passed"), "{name} failed for {value}");
}
