//! The layout of DLPack 1, by which libraries hand each other tensors. Data alone: who reads a pointer answers for it.

use std::ffi::c_void;

use crate::dtype::DType;

/// The major version of the layout.
pub const MAJOR: u32 = 1;
/// The device type of the process's memory.
pub const CPU: i32 = 1;
/// The consumer must not write.
pub const READ_ONLY: u64 = 1;
/// The producer made a copy.
pub const COPIED: u64 = 2;
/// Elements of less than a byte have a byte each.
pub const PADDED: u64 = 4;

/// `DLPackVersion`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// Another one is another layout.
    pub major: u32,
    /// Others are understood.
    pub minor: u32,
}

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// What kind.
    pub device_type: i32,
    /// Which.
    pub device_id: i32,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataType {
    /// What kind.
    pub code: u8,
    /// Of how many bits.
    pub bits: u8,
    /// Of how many values.
    pub lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DlTensor {
    /// Memory.
    pub data: *mut c_void,
    /// Where it is.
    pub device: Device,
    /// How many dimensions.
    pub ndim: i32,
    /// The element type.
    pub dtype: DataType,
    /// Sizes.
    pub shape: *mut i64,
    /// Strides in elements, or null for a compact tensor.
    pub strides: *mut i64,
    /// Where in the memory the tensor begins.
    pub byte_offset: u64,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ManagedTensor {
    /// The layout of what follows.
    pub version: Version,
    /// The producer's.
    pub manager_ctx: *mut c_void,
    /// The consumer calls it at the end.
    pub deleter: Option<extern "C" fn(*mut ManagedTensor)>,
    /// Bits.
    pub flags: u64,
    /// The tensor.
    pub tensor: DlTensor,
}

/// `DLManagedTensor`, which libraries of before DLPack 1 hand out.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LegacyTensor {
    /// The tensor.
    pub tensor: DlTensor,
    /// The producer's.
    pub manager_ctx: *mut c_void,
    /// The consumer calls it at the end.
    pub deleter: Option<extern "C" fn(*mut LegacyTensor)>,
}

/// Codes and bits of element types.
const TYPES: [(u8, u8, DType); 23] = [
    (2, 32, DType::F32),
    (2, 16, DType::F16),
    (4, 16, DType::BF16),
    (2, 64, DType::F64),
    (0, 8, DType::I8),
    (0, 16, DType::I16),
    (0, 32, DType::I32),
    (0, 64, DType::I64),
    (1, 8, DType::U8),
    (1, 16, DType::U16),
    (1, 32, DType::U32),
    (1, 64, DType::U64),
    (6, 8, DType::Bool),
    (10, 8, DType::F8E4M3Fn),
    (11, 8, DType::F8E4M3FnUz),
    (12, 8, DType::F8E5M2),
    (13, 8, DType::F8E5M2FnUz),
    (14, 8, DType::F8E8M0),
    (17, 4, DType::F4E2M1),
    (0, 4, DType::I4),
    (1, 4, DType::U4),
    (0, 2, DType::I2),
    (1, 2, DType::U2),
];

impl DataType {
    /// That of an element type.
    pub fn of(dtype: DType) -> Self {
        let known = TYPES.iter().find(|(.., known)| *known == dtype);
        let (code, bits) = known.map_or((3, 0), |(code, bits, _)| (*code, *bits));
        DataType { code, bits, lanes: 1 }
    }

    /// The element type, where there is one like it.
    pub fn element(self) -> Option<DType> {
        let known =
            TYPES.iter().find(|(code, bits, _)| (*code, *bits, 1) == (self.code, self.bits, self.lanes));
        known.map(|(.., dtype)| *dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_type_has_its_code() {
        for dtype in DType::ALL {
            let code = DataType::of(dtype);
            assert_eq!((code.element(), usize::from(code.bits)), (Some(dtype), bits(dtype)));
        }
        assert_eq!(DataType { code: 2, bits: 32, lanes: 4 }.element(), None);
    }

    fn bits(dtype: DType) -> usize {
        if dtype == DType::Bool { 8 } else { dtype.bits() }
    }
}
