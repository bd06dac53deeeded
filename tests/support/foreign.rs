//! Kernels of the tests' own, as a caller brings them.

#![allow(unsafe_code, reason = "code of the caller's enters by unsafe functions")]
#![allow(dead_code, reason = "not every suite has both forms")]

use std::borrow::Cow;

use onepool::kernel::KernelSource;
use onepool::spirv::SpirvError;

/// A module of the tests' own.
pub(crate) fn spirv(name: impl Into<Cow<'static, str>>, words: Vec<u32>) -> Result<KernelSource, SpirvError> {
    // SAFETY: the tests bind what their kernels touch, and where one reaches beyond on purpose, its device was opened to stop it.
    unsafe { KernelSource::from_spirv(name, words) }
}

/// The same kernel with OpenCL C of the tests' own.
pub(crate) fn with_opencl_c(source: KernelSource, text: &'static str) -> KernelSource {
    // SAFETY: as above.
    unsafe { source.with_opencl_c(text) }
}
