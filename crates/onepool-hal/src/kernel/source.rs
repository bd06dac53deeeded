//! What a backend gets to create a kernel from.
//!
//! An island of `unsafe` for two signatures: code that a device runs as it is told to can reach beyond its arguments, and
//! no one but who brings it can know whether it does.

#![allow(unsafe_code, reason = "code of the caller's enters by unsafe functions")]

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use super::native::NativeKernel;
use onepool_core::memory::coherency::Access;
use onepool_expr::{Indexing, PointwiseDesc, PointwiseError, UnaryOp};
use onepool_spirv::{
    Fetch, KernelLayout, PartForm, Reflection, Requires, ScalarType, SpirvError, build_pointwise,
    check_module,
};

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
    /// From the crate that also gives it its parameters, with which it stays inside.
    Own,
    /// From the caller, or there is none.
    Caller,
}

#[derive(Debug)]
struct SpirvForm {
    words: Cow<'static, [u32]>,
    reflection: Reflection,
    parts: [OnceLock<Option<PartForm>>; 3],
}

impl SpirvForm {
    fn new(words: Cow<'static, [u32]>, reflection: Reflection) -> Arc<SpirvForm> {
        Arc::new(SpirvForm { words, reflection, parts: Default::default() })
    }
}

impl KernelSource {
    /// A module of the crate that calls this, which takes from its parameters what it may touch. Recordings that hold it
    /// go through [`Queue::prepare_own`](crate::device::Queue::prepare_own) and
    /// [`Queue::submit_own`](crate::device::Queue::submit_own); all others are refused.
    ///
    /// # Safety
    /// The words are valid SPIR-V by Vulkan's rules, and `reflection` is what
    /// [`reflect`](fn@onepool_spirv::reflect) says of them.
    pub unsafe fn own(
        name: impl Into<Cow<'static, str>>,
        words: Cow<'static, [u32]>,
        reflection: Reflection,
    ) -> Self {
        KernelSource {
            name: name.into(),
            spirv: Some(SpirvForm::new(words, reflection)),
            opencl_c: None,
            native: None,
            origin: Origin::Own,
        }
    }

    /// A SPIR-V module of the caller's.
    ///
    /// # Safety
    /// The module is valid SPIR-V by Vulkan's rules (`spirv-val --target-env vulkan1.1` finds no fault). In
    /// every dispatch of the kernel, whatever its arguments, parameters, specialization constants and grid
    /// are that the program gives it, no invocation
    /// - reads or writes a buffer or image outside of what is bound as that argument, or an array of its own
    ///   outside of that array,
    /// - writes an argument that is bound for reading,
    /// - reads a value that no one wrote, where what it then does depends on the value,
    /// - writes what another invocation reads or writes, but by atomic operations or across barriers,
    /// - runs without an end, or breaks another rule that Vulkan sets for shaders.
    ///
    /// What this crate relies on is checked (structure, interface, sizes, types where it reads them); that is
    /// less than a validator does, and what a module computes is not checked. A kernel that breaks the first
    /// rule may change memory of the process near what it was given. [`crate::backend::Robustness`] tells
    /// what devices do against that; it does not lift this duty.
    ///
    /// # Errors
    /// [`SpirvError`] where the words are no module that may be handed to a driver.
    pub unsafe fn from_spirv(
        name: impl Into<Cow<'static, str>>,
        words: Vec<u32>,
    ) -> Result<Self, SpirvError> {
        let reflection = check_module(&words)?;
        let spirv = Some(SpirvForm::new(Cow::Owned(words), reflection));
        Ok(KernelSource { name: name.into(), spirv, opencl_c: None, native: None, origin: Origin::Caller })
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
    /// What [`KernelSource::from_spirv`] asks of a module holds for the text: it is handed to the driver as
    /// it is. Its arguments are those that the program gives it, in the order and of the types that the text
    /// declares.
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

    /// Its form for parts of a grid along `axis`, if there is one. Work-groups of a caller's kernel may tell each other
    /// something by atomic operations, so that such a kernel has none.
    pub fn part_form(&self, axis: usize) -> Option<&PartForm> {
        let form = self.spirv.as_ref().filter(|form| !(form.reflection.atomics && self.is_callers()))?;
        let make = || PartForm::new(&form.words, form.reflection.params_bytes, axis as u32);
        form.parts.get(axis)?.get_or_init(make).as_ref()
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
pub fn touch(access: onepool_spirv::BindingAccess) -> Access {
    match access {
        onepool_spirv::BindingAccess::Read => Access::KERNEL_READ,
        onepool_spirv::BindingAccess::Write => Access::KERNEL_WRITE,
        onepool_spirv::BindingAccess::ReadWrite => Access::KERNEL_READ | Access::KERNEL_WRITE,
    }
}

/// Writes the opposite of what it reads: four numbers of `f32` for each invocation, of which its parameter is the count.
pub(crate) fn negation() -> Result<KernelSource, String> {
    let build = || -> Result<_, PointwiseError> {
        let mut desc = PointwiseDesc::new([Indexing::Full]);
        let x = desc.input(0)?;
        let y = desc.unary(UnaryOp::Neg, x)?;
        desc.output(y)?;
        let inputs = vec![Fetch::Full];
        build_pointwise(
            &desc,
            &KernelLayout { element: ScalarType::F32, lanes: 4, texels: false, tests: false, inputs },
        )
    };
    let words = build().map_err(|e| e.to_string())?;
    let reflection = check_module(&words).map_err(|e| e.to_string())?;
    // SAFETY: the words are what the builder made, and the reflection is theirs.
    Ok(unsafe { KernelSource::own("negation", words.into(), reflection) })
}

/// A kernel of the table, for tests.
#[cfg(test)]
pub(crate) fn shipped(id: onepool::kernel::KernelId) -> KernelSource {
    let info = id.info();
    // SAFETY: as in `negation`: the words are of the build of shaders.
    unsafe { KernelSource::own(info.name, info.spirv().into(), info.reflection()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onepool::kernel::id;

    #[test]
    fn whose_code_it_is_is_known() {
        let words = id::FILL.info().spirv().to_vec();
        assert!(!shipped(id::FILL).is_callers() && !negation().unwrap().is_callers());
        // SAFETY: nothing is dispatched.
        let theirs = unsafe { KernelSource::from_spirv("theirs", words) }.unwrap();
        assert!(theirs.is_callers());
        // Work-groups of a caller's kernel may wait for one another by atomic operations.
        assert!(theirs.part_form(0).is_some() && shipped(id::TOKEN_COLLECT_F32).part_form(0).is_some());
        let words = id::TOKEN_COLLECT_F32.info().spirv().to_vec();
        // SAFETY: as above.
        assert!(unsafe { KernelSource::from_spirv("counts", words) }.unwrap().part_form(0).is_none());
        // SAFETY: as above.
        let text = unsafe { theirs.with_opencl_c("kernel void main_() {}") };
        assert!(text.is_callers() && text.opencl_c() == Some("kernel void main_() {}"));
    }
}
