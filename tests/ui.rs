//! What the compiler must refuse: borrows that end before the device is done with them.

#[test]
fn unsound_uses_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
