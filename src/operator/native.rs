//! An operator's function for a native device, and the constants that it reads in layouts of its own.

use super::Packed;
use crate::kernel::NativeKernel;

/// A native function, and what is passed to it in a packed layout.
#[derive(Clone, Debug)]
pub struct Native {
    /// The function.
    pub kernel: NativeKernel,
    /// Inputs that are constants, and the layout of each that is passed instead of its bytes.
    pub packed: Vec<(usize, Packed)>,
}

impl Native {
    /// The argument in place of input `input`.
    pub(crate) fn packed(&self, input: usize) -> Option<&Packed> {
        self.packed.iter().find(|(i, _)| *i == input).map(|(_, packed)| packed)
    }
}

impl From<NativeKernel> for Native {
    /// A function that reads all its inputs as they are.
    fn from(kernel: NativeKernel) -> Self {
        Native { kernel, packed: Vec::new() }
    }
}
