//! The devices under test, each with its checks on.

use std::ops::Deref;

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::registry::Registry;

/// A device that must have had nothing to complain of when a test is done with it: Vulkan's validation layer checks its
/// calls and their synchronization.
pub(crate) struct Checked(Context);

impl Deref for Checked {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.0
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.0.validation_messages(), Vec::<String>::new());
        }
    }
}

/// The devices under test. One that `REQUIRE_BACKENDS` names must be there.
pub(crate) fn devices() -> Vec<Checked> {
    let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
    let desc = ContextDesc { validation: true, ..ContextDesc::default() };
    let mut opened = Vec::new();
    for device in ["cpu", "sim", "sim:discrete", "vulkan", "opencl"] {
        match Registry::with_defaults().open(device, &desc) {
            Ok(context) => opened.push(Checked(context)),
            Err(e) => assert!(!required.contains(device), "{device}: {e}"),
        }
    }
    opened
}
