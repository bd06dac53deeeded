//! What the compiler must refuse: borrows that end before the device is done with them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[test]
fn unsound_uses_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
