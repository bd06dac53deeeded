//! What a backend gets to create a kernel from.

pub mod native;
pub(crate) mod source;

pub use self::native::{KernelError, NativeArg, NativeArgs, NativeFn, NativeKernel};
#[cfg(test)]
pub(crate) use self::source::shipped;
pub use self::source::{KernelSource, touch};
