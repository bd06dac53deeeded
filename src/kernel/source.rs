//! What a backend gets to create a kernel from.
//!
//! An island of `unsafe` for two signatures: code that a device runs as it is told to can reach beyond its arguments, and
//! no one but who brings it can know whether it does.

#![allow(unsafe_code, reason = "code of the caller's enters by unsafe functions")]

use std::borrow::Cow;
use std::sync::Arc;

use super::native::NativeKernel;
use super::{KernelId, Requires};
use crate::memory::coherency::Access;
use crate::spirv::{self, Reflection, SpirvError, check_module};

/// A kernel's code in one or several forms; a backend takes the one it runs.
#[derive(Clone, Debug)]
pub struct KernelSource {
    name: Cow<'static, str>,
    spirv: Option<Arc<SpirvForm>>,
    opencl_c: Option<Cow<'static, str>>,
    native: Option<NativeKernel>,
    /// Whose word it is that it stays inside its arguments.
    origin: Origin,
}

/// Where the code for devices comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// From this crate: it stays inside with the parameters that this crate gives it.
    Own,
    /// From the caller, or there is none.
    Caller,
}

#[derive(Debug)]
struct SpirvForm {
    words: Cow<'static, [u32]>,
    reflection: Reflection,
}

impl KernelSource {
    /// One of the kernels that ship. What they may touch they take from their parameters, so only this crate calls them.
    pub(crate) fn shipped(id: KernelId) -> Self {
        let info = id.info();
        let form = SpirvForm { words: Cow::Borrowed(info.spirv()), reflection: info.reflection() };
        KernelSource {
            name: Cow::Borrowed(info.name),
            spirv: Some(Arc::new(form)),
            opencl_c: None,
            native: None,
            origin: Origin::Own,
        }
    }

    /// A SPIR-V module that this crate built.
    ///
    /// # Errors
    /// As [`KernelSource::from_spirv`].
    pub(crate) fn generated(name: impl Into<Cow<'static, str>>, words: Vec<u32>) -> Result<Self, SpirvError> {
        KernelSource::module(name.into(), words, Origin::Own)
    }

    /// A SPIR-V module of the caller's.
    ///
    /// # Safety
    /// The module is valid SPIR-V by Vulkan's rules (`spirv-val --target-env vulkan1.1` finds no fault). In every dispatch of the kernel, whatever its arguments, parameters, specialization constants and grid are that the program
    /// gives it, no invocation
    /// - reads or writes a buffer or image outside of what is bound as that argument, or an array of its own outside of that array,
    /// - writes an argument that is bound for reading,
    /// - reads a value that no one wrote, where what it then does depends on the value,
    /// - writes what another invocation reads or writes, but by atomic operations or across barriers,
    /// - runs without an end, or breaks another rule that Vulkan sets for shaders.
    ///
    /// What this crate relies on is checked (structure, interface, sizes, types where it reads them); that is less than a validator does,
    /// and what a module computes is not checked. A kernel that breaks the first rule may change memory of
    /// the process near what it was given. [`crate::backend::Robustness`] tells what devices do against that; it does not
    /// lift this duty.
    ///
    /// # Errors
    /// [`SpirvError`] where the words are no module that may be handed to a driver.
    pub unsafe fn from_spirv(
        name: impl Into<Cow<'static, str>>,
        words: Vec<u32>,
    ) -> Result<Self, SpirvError> {
        KernelSource::module(name.into(), words, Origin::Caller)
    }

    fn module(name: Cow<'static, str>, words: Vec<u32>, origin: Origin) -> Result<Self, SpirvError> {
        let reflection = check_module(&words)?;
        let spirv = Some(Arc::new(SpirvForm { words: Cow::Owned(words), reflection }));
        Ok(KernelSource { name, spirv, opencl_c: None, native: None, origin })
    }

    /// A native function.
    pub fn from_native(kernel: NativeKernel) -> Self {
        let name = Cow::Owned(kernel.name().to_owned());
        KernelSource { name, spirv: None, opencl_c: None, native: Some(kernel), origin: Origin::Caller }
    }

    /// The same kernel with a native function in addition to its other forms, for devices that run those.
    pub fn with_native(mut self, kernel: NativeKernel) -> Self {
        self.native = Some(kernel);
        self
    }

    /// The same kernel with OpenCL C in addition to its other forms.
    ///
    /// # Safety
    /// What [`KernelSource::from_spirv`] asks of a module holds for the text: it is handed to the driver as it is. Its arguments are
    /// those that the program gives it, in the order and of the types that the text declares.
    pub unsafe fn with_opencl_c(mut self, source: impl Into<Cow<'static, str>>) -> Self {
        self.opencl_c = Some(source.into());
        self
    }

    /// Whether the code for devices is the caller's.
    pub fn is_callers(&self) -> bool {
        self.origin == Origin::Caller
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its SPIR-V and what reflection says of it.
    pub fn spirv(&self) -> Option<(&[u32], &Reflection)> {
        self.spirv.as_ref().map(|f| (f.words.as_ref(), &f.reflection))
    }

    /// Its OpenCL C.
    pub fn opencl_c(&self) -> Option<&str> {
        self.opencl_c.as_deref()
    }

    /// Its native function.
    pub fn native(&self) -> Option<&NativeKernel> {
        self.native.as_ref()
    }

    /// What the SPIR-V form needs of a device.
    pub fn requires(&self) -> Requires {
        self.spirv.as_ref().map_or(Requires::NONE, |f| {
            let r = &f.reflection;
            Requires::of(r.version, r.local_size_id, &r.capabilities)
        })
    }

    /// How the kernel touches each of its arguments, in binding order; empty for native functions.
    pub fn accesses(&self) -> Vec<Access> {
        match &self.spirv {
            Some(form) => form.reflection.bindings.iter().map(|b| touch(b.access)).collect(),
            None => Vec::new(),
        }
    }
}

/// A reflected access as the coherency tracker names it.
pub fn touch(access: spirv::Access) -> Access {
    match access {
        spirv::Access::Read => Access::KERNEL_READ,
        spirv::Access::Write => Access::KERNEL_WRITE,
        spirv::Access::ReadWrite => Access::KERNEL_READ | Access::KERNEL_WRITE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::id;

    #[test]
    fn whose_code_it_is_is_known() {
        let words = id::FILL.info().spirv().to_vec();
        assert!(!KernelSource::shipped(id::FILL).is_callers());
        assert!(!KernelSource::generated("own", words.clone()).unwrap().is_callers());
        // SAFETY: nothing is dispatched.
        let theirs = unsafe { KernelSource::from_spirv("theirs", words) }.unwrap();
        assert!(theirs.is_callers());
        // SAFETY: as above.
        let text = unsafe { theirs.with_opencl_c("kernel void main_() {}") };
        assert!(text.is_callers() && text.opencl_c() == Some("kernel void main_() {}"));
    }
}
