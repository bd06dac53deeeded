//! Recorded drivers that the suites run on, of those in `crates/onepool-hal/src/backend/sim/profiles`.

/// An APU under RADV, the same with one unified heap, one under Windows; Intel with and without a cache in common;
/// types that are cached and not coherent; a card with a small mapped window.
pub(crate) const RECORDED: [&str; 7] = [
    "sim:radv-phoenix-780m",
    "sim:radv-apu-unified-heap",
    "sim:amd-windows-apu-2g",
    "sim:anv-xe-llc",
    "sim:anv-i915-no-llc",
    "sim:turnip-a6xx",
    "sim:nvidia-rtx3070-linux-small-bar",
];
