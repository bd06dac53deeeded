//! Kernels that are native Rust functions.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Why a native kernel did not do its work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// An argument that the kernel needs was not given.
    #[error("argument {index} is absent")]
    Absent {
        /// The argument's position.
        index: usize,
    },
    /// An argument that the kernel writes was given for reading only.
    #[error("argument {index} is read-only")]
    ReadOnly {
        /// The argument's position.
        index: usize,
    },
    /// The bytes of an argument are no whole, aligned elements.
    #[error("argument {index} of {bytes} bytes cannot be viewed as {element_bytes}-byte elements: {problem}")]
    View {
        /// The argument's position.
        index: usize,
        /// Its length in bytes.
        bytes: usize,
        /// The size of one element.
        element_bytes: usize,
        /// What does not fit.
        problem: String,
    },
    /// A value read at run time is one the operator does not allow (an index out of range, say).
    #[error("{what}")]
    Value {
        /// What was found and what is allowed.
        what: String,
    },
}

/// One argument of a native kernel's call.
#[derive(Debug)]
pub enum NativeArg<'a> {
    /// An optional argument that was not given, or one that was taken.
    Absent,
    /// Bytes the kernel reads.
    Read(&'a [u8]),
    /// Bytes the kernel writes, and may read before.
    Write(&'a mut [u8]),
}

/// The arguments of one call, in the kernel's binding order (for an operator: its inputs, then its outputs).
#[derive(Debug)]
pub struct NativeArgs<'a, 'c> {
    args: &'c mut [NativeArg<'a>],
    params: &'c [u8],
}

impl<'a, 'c> NativeArgs<'a, 'c> {
    /// Arguments and parameter bytes of a call.
    pub fn new(args: &'c mut [NativeArg<'a>], params: &'c [u8]) -> Self {
        NativeArgs { args, params }
    }

    /// How many arguments there are, absent ones counted.
    pub fn len(&self) -> usize {
        self.args.len()
    }

    /// Whether there is no argument.
    pub fn is_empty(&self) -> bool {
        self.args.is_empty()
    }

    /// The parameter bytes of the dispatch.
    pub fn params(&self) -> &'c [u8] {
        self.params
    }

    /// The same arguments with other parameter bytes.
    pub fn with_params<'b>(&'b mut self, params: &'b [u8]) -> NativeArgs<'a, 'b> {
        NativeArgs { args: self.args, params }
    }

    /// Whether argument `index` was given.
    pub fn has(&self, index: usize) -> bool {
        !matches!(self.args.get(index), None | Some(NativeArg::Absent))
    }

    /// Argument `index` to read, for as long as the call lasts: several may be held, and next to
    /// taken outputs.
    ///
    /// # Errors
    /// [`KernelError::Absent`], [`KernelError::View`]; a writable argument cannot be read this way.
    pub fn read<T: bytemuck::Pod>(&self, index: usize) -> Result<&'a [T], KernelError> {
        match self.args.get(index) {
            // Nothing lies anywhere, so its address fits no type.
            Some(NativeArg::Read([])) => Ok(&[]),
            Some(NativeArg::Read(bytes)) => {
                let bytes: &'a [u8] = bytes;
                bytemuck::try_cast_slice(bytes).map_err(|e| view_error::<T>(index, bytes.len(), &e))
            }
            _ => Err(KernelError::Absent { index }),
        }
    }

    /// Argument `index` to read, or `None` where it was not given.
    ///
    /// # Errors
    /// [`KernelError::View`].
    pub fn read_opt<T: bytemuck::Pod>(&self, index: usize) -> Result<Option<&'a [T]>, KernelError> {
        if self.has(index) { self.read(index).map(Some) } else { Ok(None) }
    }

    /// Takes argument `index` to write; it is absent afterwards.
    ///
    /// # Errors
    /// [`KernelError::Absent`], [`KernelError::ReadOnly`], [`KernelError::View`].
    pub fn take_write<T: bytemuck::Pod>(&mut self, index: usize) -> Result<&'a mut [T], KernelError> {
        match self.args.get_mut(index) {
            None | Some(NativeArg::Absent) => Err(KernelError::Absent { index }),
            Some(NativeArg::Read(_)) => Err(KernelError::ReadOnly { index }),
            Some(slot @ NativeArg::Write(_)) => match std::mem::replace(slot, NativeArg::Absent) {
                NativeArg::Write([]) => Ok(&mut []),
                NativeArg::Write(bytes) => {
                    let len = bytes.len();
                    bytemuck::try_cast_slice_mut(bytes).map_err(|e| view_error::<T>(index, len, &e))
                }
                _ => Err(KernelError::Absent { index }),
            },
        }
    }
}

fn view_error<T>(index: usize, bytes: usize, e: &bytemuck::PodCastError) -> KernelError {
    KernelError::View { index, bytes, element_bytes: size_of::<T>(), problem: e.to_string() }
}

/// The function of a native kernel. Loops that it shares by [`crate::team`] run on the device's threads.
pub type NativeFn = dyn Fn(&mut NativeArgs<'_, '_>) -> Result<(), KernelError> + Send + Sync;

/// A kernel that is a native Rust function.
#[derive(Clone)]
pub struct NativeKernel {
    name: Arc<str>,
    run: Arc<NativeFn>,
}

impl NativeKernel {
    /// A kernel `name` that calls `run`.
    pub fn new(
        name: impl Into<Arc<str>>,
        run: impl Fn(&mut NativeArgs<'_, '_>) -> Result<(), KernelError> + Send + Sync + 'static,
    ) -> Self {
        NativeKernel { name: name.into(), run: Arc::new(run) }
    }

    /// A kernel `name` that copies argument 0 to argument 1, as many bytes as both have.
    pub fn copy(name: impl Into<Arc<str>>) -> Self {
        NativeKernel::new(name, |args| {
            let from = args.read::<u8>(0)?;
            let to = args.take_write::<u8>(1)?;
            let bytes = from.len().min(to.len());
            to[..bytes].copy_from_slice(&from[..bytes]);
            Ok(())
        })
    }

    /// The kernel's name, for messages and profiles.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Calls the function.
    ///
    /// # Errors
    /// What the function returns.
    pub fn call(&self, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
        (self.run)(args)
    }

    /// Calls the function; a panic is an error too.
    pub(crate) fn call_caught(&self, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
        catch_unwind(AssertUnwindSafe(|| self.call(args))).unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<&str>().copied();
            let said = said.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
            Err(KernelError::Value { what: format!("panicked: {said}") })
        })
    }
}

impl fmt::Debug for NativeKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeKernel").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_next_to_a_taken_output() {
        let x = [1.0f32, 2.0];
        let mut y = [0.0f32; 2];
        let mut args = [
            NativeArg::Read(bytemuck::cast_slice(&x)),
            NativeArg::Absent,
            NativeArg::Write(bytemuck::cast_slice_mut(&mut y)),
        ];
        let mut call = NativeArgs::new(&mut args, &[]);
        let x = call.read::<f32>(0).unwrap();
        assert!(call.read_opt::<f32>(1).unwrap().is_none());
        assert!(matches!(call.take_write::<f32>(0), Err(KernelError::ReadOnly { index: 0 })));
        call.take_write::<f32>(2).unwrap().copy_from_slice(x);
        assert!(matches!(call.take_write::<f32>(2), Err(KernelError::Absent { index: 2 })));
        assert!(matches!(call.read::<f32>(9), Err(KernelError::Absent { index: 9 })));
        assert_eq!(y, [1.0, 2.0]);
    }

    #[test]
    fn a_ragged_or_misaligned_argument_is_an_error() {
        let words = [0u64; 2];
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        let mut args = [NativeArg::Read(&bytes[..7]), NativeArg::Read(&bytes[1..9])];
        let call = NativeArgs::new(&mut args, &[]);
        assert!(matches!(call.read::<f32>(0), Err(KernelError::View { index: 0, .. })));
        assert!(matches!(call.read::<f32>(1), Err(KernelError::View { index: 1, .. })));
    }
}
