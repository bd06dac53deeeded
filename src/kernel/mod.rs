//! L2 stand-in, replaced by the kernel table.
#![allow(missing_docs, reason = "replaced")]
pub mod native;
pub use native::{KernelError, NativeArg, NativeArgs, NativeFn, NativeKernel};
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Requires(pub u32);
impl Requires {
    pub fn contains(self, o: Requires) -> bool {
        self.0 & o.0 == o.0
    }
}
#[derive(Clone, Debug, Default)]
pub struct KernelSource {
    pub native: Option<NativeKernel>,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelId(pub u16);
#[derive(Debug)]
pub struct BindingInfo;
#[derive(Debug)]
pub struct KernelInfo {
    pub name: &'static str,
    pub local_size: [u32; 3],
    pub bindings: &'static [BindingInfo],
    pub params_bytes: u32,
    pub requires: Requires,
}
static NONE: KernelInfo =
    KernelInfo { name: "", local_size: [1; 3], bindings: &[], params_bytes: 0, requires: Requires(0) };
impl KernelId {
    pub fn info(self) -> &'static KernelInfo {
        &NONE
    }
}
pub fn grid_1d(n: u64, local: u32, max_x: u32) -> [u32; 3] {
    let g = n.div_ceil(local as u64).max(1) as u32;
    let x = g.min(max_x);
    [x, g.div_ceil(x), 1]
}
