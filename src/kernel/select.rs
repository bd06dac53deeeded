//! Arguments and results of the choice among the variants of a kernel's file.

use std::fmt;

use crate::dtype::DType;

/// One element of a kernel: bytes that it moves, or a number that it computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Its number of bytes.
    Bytes(usize),
    /// A number of this type.
    Of(DType),
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unit::Bytes(bytes) => write!(f, "elements of {bytes} bytes"),
            Unit::Of(dtype) => dtype.fmt(f),
        }
    }
}

/// There is no variant of a kernel for these types and flags.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no device kernel {kernel} for {asked}")]
pub struct NoKernel {
    /// The file of the kernel.
    pub kernel: &'static str,
    /// The types, and the flags that are set.
    pub asked: String,
}

impl NoKernel {
    pub(super) fn new(kernel: &'static str, types: &[&dyn fmt::Display], flags: &[(&str, bool)]) -> NoKernel {
        let set = flags.iter().filter(|(_, set)| *set).map(|(name, _)| (*name).to_owned());
        let words: Vec<String> = types.iter().map(ToString::to_string).chain(set).collect();
        NoKernel { kernel, asked: words.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{id, variants};

    #[test]
    fn variants_are_chosen_by_type_and_flag() {
        let tile = variants::ConvTile { t: DType::F16, out4: true, small: false };
        assert_eq!(tile.id(), Ok(id::CONV_TILE_F16X4));
        let error = variants::ConvTile { t: DType::F64, ..tile }.id().unwrap_err();
        assert_eq!(error.to_string(), "no device kernel conv_tile for float64, OUT4");
        assert_eq!(variants::Scatter { t: Unit::Bytes(16) }.id(), Ok(id::SCATTER_B128));
        assert_eq!(variants::Scatter { t: Unit::Of(DType::I64) }.id(), Ok(id::SCATTER_I64));
        let error = variants::Gather { t: Unit::Bytes(3) }.id().unwrap_err();
        assert_eq!(error.to_string(), "no device kernel gather for elements of 3 bytes");
    }
}
