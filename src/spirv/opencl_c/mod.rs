//! Stand-in.
use crate::kernel::Requires;
pub const BUILD_OPTIONS: &str = "-cl-std=CL1.2";
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenClOptions<'a> {
    pub entry: Option<&'a str>,
    pub spec: &'a [(u32, u32)],
    pub fp16: bool,
    pub fp64: bool,
}
pub struct OpenClKernel {
    pub source: String,
    pub name: &'static str,
    pub local_size: [u32; 3],
    pub args: Vec<OpenClArg>,
    pub params_bytes: u32,
    pub requires: Requires,
}
pub struct OpenClArg {
    pub bytes_follow: bool,
}
pub fn translate(_: &[u32], _: &OpenClOptions<'_>) -> Result<OpenClKernel, String> {
    Err("later".into())
}
