use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::registry::Registry;

/// The devices under test. One that `REQUIRE_BACKENDS` names must be there.
pub(crate) fn devices() -> Vec<Context> {
    let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
    let mut opened = Vec::new();
    for device in ["cpu", "sim", "sim:discrete", "vulkan", "opencl"] {
        match Registry::with_defaults().open(device, &ContextDesc::default()) {
            Ok(context) => opened.push(context),
            Err(e) => assert!(!required.contains(device), "{device}: {e}"),
        }
    }
    opened
}
