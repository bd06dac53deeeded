//! What a backend creates a kernel from.

use std::borrow::Cow;

use super::{KernelId, Requires};
use crate::spirv::{Reflection, SpirvError, check_module};

/// A kernel in every form that is at hand; a backend takes the one it runs.
#[derive(Clone, Debug)]
pub struct KernelSource {
    /// A name for reports and profiles.
    pub name: Cow<'static, str>,
    /// The interface, which all forms share.
    pub reflection: Reflection,
    /// SPIR-V.
    pub spirv: Option<Cow<'static, [u32]>>,
    /// OpenCL C, for an OpenCL device.
    pub opencl_c: Option<Cow<'static, str>>,
}

impl KernelSource {
    /// A user's kernel.
    ///
    /// # Errors
    /// The words are no module that may be handed to a driver.
    pub fn from_spirv(name: impl Into<Cow<'static, str>>, words: Vec<u32>) -> Result<Self, SpirvError> {
        let reflection = check_module(&words)?;
        Ok(Self { name: name.into(), reflection, spirv: Some(Cow::Owned(words)), opencl_c: None })
    }

    /// The same kernel with its translation to OpenCL C.
    #[must_use]
    pub fn with_opencl_c(self, source: impl Into<Cow<'static, str>>) -> Self {
        Self { opencl_c: Some(source.into()), ..self }
    }

    /// What a device must have to run the SPIR-V.
    pub fn requires(&self) -> Requires {
        let r = &self.reflection;
        Requires::of(r.version, r.local_size_id, &r.capabilities)
    }
}

impl From<KernelId> for KernelSource {
    fn from(id: KernelId) -> Self {
        let info = id.info();
        Self {
            name: Cow::Borrowed(info.name),
            reflection: info.reflection(),
            spirv: Some(Cow::Borrowed(info.spirv())),
            opencl_c: None,
        }
    }
}
