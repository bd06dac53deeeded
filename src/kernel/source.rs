//! What a backend gets to create a kernel from.

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
}

#[derive(Debug)]
struct SpirvForm {
    words: Cow<'static, [u32]>,
    reflection: Reflection,
}

impl KernelSource {
    /// One of the kernels that ship.
    pub fn shipped(id: KernelId) -> Self {
        let info = id.info();
        let form = SpirvForm { words: Cow::Borrowed(info.spirv()), reflection: info.reflection() };
        KernelSource {
            name: Cow::Borrowed(info.name),
            spirv: Some(Arc::new(form)),
            opencl_c: None,
            native: None,
        }
    }

    /// A SPIR-V module of the caller's or one built at run time.
    ///
    /// # Errors
    /// [`SpirvError`] where the words are no module that may be handed to a driver.
    pub fn from_spirv(name: impl Into<Cow<'static, str>>, words: Vec<u32>) -> Result<Self, SpirvError> {
        let reflection = check_module(&words)?;
        let form = SpirvForm { words: Cow::Owned(words), reflection };
        Ok(KernelSource { name: name.into(), spirv: Some(Arc::new(form)), opencl_c: None, native: None })
    }

    /// A native function.
    pub fn from_native(kernel: NativeKernel) -> Self {
        let name = Cow::Owned(kernel.name().to_owned());
        KernelSource { name, spirv: None, opencl_c: None, native: Some(kernel) }
    }

    /// The same kernel with a native function beside its other forms, for devices that run those.
    pub fn with_native(mut self, kernel: NativeKernel) -> Self {
        self.native = Some(kernel);
        self
    }

    /// The same kernel with OpenCL C beside its other forms.
    pub fn with_opencl_c(mut self, source: impl Into<Cow<'static, str>>) -> Self {
        self.opencl_c = Some(source.into());
        self
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
