//! What a kernel asks of a device, as a set that a backend compares with what its device has.

use std::fmt;

use rspirv::spirv::Capability;

/// A set of device features.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Requires(u64);

/// Every feature with its name, in the order of the bits.
const NAMES: &[(Requires, &str)] = &[
    (Requires::FLOAT16, "float16"),
    (Requires::FLOAT64, "float64"),
    (Requires::INT8, "int8"),
    (Requires::INT16, "int16"),
    (Requires::INT64, "int64"),
    (Requires::BFLOAT16, "bfloat16"),
    (Requires::STORAGE_8, "8-bit storage"),
    (Requires::STORAGE_16, "16-bit storage"),
    (Requires::PUSH_CONSTANT_8, "8-bit push constants"),
    (Requires::PUSH_CONSTANT_16, "16-bit push constants"),
    (Requires::SUBGROUP_BASIC, "subgroups"),
    (Requires::SUBGROUP_VOTE, "subgroup vote"),
    (Requires::SUBGROUP_ARITHMETIC, "subgroup arithmetic"),
    (Requires::SUBGROUP_BALLOT, "subgroup ballot"),
    (Requires::SUBGROUP_SHUFFLE, "subgroup shuffle"),
    (Requires::SUBGROUP_SHUFFLE_RELATIVE, "subgroup relative shuffle"),
    (Requires::SUBGROUP_CLUSTERED, "subgroup clustered"),
    (Requires::SUBGROUP_QUAD, "subgroup quad"),
    (Requires::COOPERATIVE_MATRIX, "cooperative matrix"),
    (Requires::COOPERATIVE_MATRIX_2, "cooperative matrix 2"),
    (Requires::ATOMIC_INT64, "64-bit integer atomics"),
    (Requires::ATOMIC_FLOAT, "32-bit float atomics"),
    (Requires::ATOMIC_FLOAT_MIN_MAX, "32-bit float atomic min and max"),
    (Requires::DOT_PRODUCT, "integer dot product"),
    (Requires::VULKAN_MEMORY_MODEL, "vulkan memory model"),
    (Requires::VARIABLE_POINTERS, "variable pointers"),
    (Requires::LOCAL_SIZE_ID, "work-group size by id"),
    (Requires::WORKGROUP_LAYOUT, "explicit workgroup memory layout"),
    (Requires::IMAGE_1D, "one-dimensional images"),
    (Requires::IMAGE_FORMATS, "extended storage image formats"),
    (Requires::IMAGE_WITHOUT_FORMAT, "storage images without format"),
    (Requires::FLOAT_CONTROLS, "float controls"),
    (Requires::SPIRV_1_4, "spir-v 1.4"),
    (Requires::SPIRV_1_5, "spir-v 1.5"),
    (Requires::SPIRV_1_6, "spir-v 1.6"),
    (Requires::MATRIX_F16, "16x16x16 cooperative matrices of float16"),
    (Requires::UNKNOWN, "a feature unknown to this runtime"),
];

impl Requires {
    /// Nothing beyond a device of Vulkan 1.1's minimum.
    pub const NONE: Self = Self(0);
    /// 16-bit float arithmetic.
    pub const FLOAT16: Self = Self(1 << 0);
    /// 64-bit float arithmetic.
    pub const FLOAT64: Self = Self(1 << 1);
    /// 8-bit integer arithmetic.
    pub const INT8: Self = Self(1 << 2);
    /// 16-bit integer arithmetic.
    pub const INT16: Self = Self(1 << 3);
    /// 64-bit integer arithmetic.
    pub const INT64: Self = Self(1 << 4);
    /// bfloat16 as a type.
    pub const BFLOAT16: Self = Self(1 << 5);
    /// 8-bit elements in buffers.
    pub const STORAGE_8: Self = Self(1 << 6);
    /// 16-bit elements in buffers.
    pub const STORAGE_16: Self = Self(1 << 7);
    /// 8-bit push constants.
    pub const PUSH_CONSTANT_8: Self = Self(1 << 8);
    /// 16-bit push constants.
    pub const PUSH_CONSTANT_16: Self = Self(1 << 9);
    /// Subgroup size, id and election.
    pub const SUBGROUP_BASIC: Self = Self(1 << 10);
    /// Subgroup any, all, equal.
    pub const SUBGROUP_VOTE: Self = Self(1 << 11);
    /// Subgroup reductions and scans.
    pub const SUBGROUP_ARITHMETIC: Self = Self(1 << 12);
    /// Subgroup ballot and broadcast.
    pub const SUBGROUP_BALLOT: Self = Self(1 << 13);
    /// Subgroup shuffle and xor shuffle.
    pub const SUBGROUP_SHUFFLE: Self = Self(1 << 14);
    /// Subgroup shuffle up and down.
    pub const SUBGROUP_SHUFFLE_RELATIVE: Self = Self(1 << 15);
    /// Subgroup reductions over clusters.
    pub const SUBGROUP_CLUSTERED: Self = Self(1 << 16);
    /// Subgroup quad operations.
    pub const SUBGROUP_QUAD: Self = Self(1 << 17);
    /// `GL_KHR_cooperative_matrix`.
    pub const COOPERATIVE_MATRIX: Self = Self(1 << 18);
    /// Any part of `GL_NV_cooperative_matrix2`.
    pub const COOPERATIVE_MATRIX_2: Self = Self(1 << 19);
    /// Atomics on 64-bit integers.
    pub const ATOMIC_INT64: Self = Self(1 << 20);
    /// Atomic add on 32-bit floats.
    pub const ATOMIC_FLOAT: Self = Self(1 << 21);
    /// Atomic min and max on 32-bit floats.
    pub const ATOMIC_FLOAT_MIN_MAX: Self = Self(1 << 22);
    /// Integer dot products.
    pub const DOT_PRODUCT: Self = Self(1 << 23);
    /// The Vulkan memory model.
    pub const VULKAN_MEMORY_MODEL: Self = Self(1 << 24);
    /// Variable pointers.
    pub const VARIABLE_POINTERS: Self = Self(1 << 25);
    /// `LocalSizeId` as an execution mode (Vulkan 1.3's maintenance4).
    pub const LOCAL_SIZE_ID: Self = Self(1 << 26);
    /// Explicit layout of workgroup memory.
    pub const WORKGROUP_LAYOUT: Self = Self(1 << 27);
    /// One-dimensional images.
    pub const IMAGE_1D: Self = Self(1 << 28);
    /// Storage image formats beyond the basic ones.
    pub const IMAGE_FORMATS: Self = Self(1 << 29);
    /// Storage images that are read or written without a declared format.
    pub const IMAGE_WITHOUT_FORMAT: Self = Self(1 << 30);
    /// Control over rounding, denormals and special values.
    pub const FLOAT_CONTROLS: Self = Self(1 << 31);
    /// SPIR-V 1.4 (Vulkan 1.2).
    pub const SPIRV_1_4: Self = Self(1 << 32);
    /// SPIR-V 1.5 (Vulkan 1.2).
    pub const SPIRV_1_5: Self = Self(1 << 33);
    /// SPIR-V 1.6 (Vulkan 1.3).
    pub const SPIRV_1_6: Self = Self(1 << 34);
    /// Cooperative matrices of 16 x 16 x 16, of `float16` summed in `float32`, by a subgroup. No capability of a module
    /// stands for a shape: whoever chooses such a kernel asks for it.
    pub const MATRIX_F16: Self = Self(1 << 35);
    /// A capability that none of the others stands for; no device has it.
    pub const UNKNOWN: Self = Self(1 << 63);

    /// What a module of this SPIR-V version with these capabilities asks for.
    pub const fn of(version: (u8, u8), local_size_id: bool, capabilities: &[Capability]) -> Self {
        let version = match version {
            (1, 0..=3) => Self::NONE,
            (1, 4) => Self::SPIRV_1_4,
            (1, 5) => Self::SPIRV_1_4.union(Self::SPIRV_1_5),
            _ => Self::SPIRV_1_4.union(Self::SPIRV_1_5).union(Self::SPIRV_1_6),
        };
        let size = if local_size_id { Self::LOCAL_SIZE_ID } else { Self::NONE };
        Self::from_capabilities(capabilities).union(version).union(size)
    }

    /// What a module with these capabilities asks for, its version aside.
    pub const fn from_capabilities(capabilities: &[Capability]) -> Self {
        let mut all = Self::NONE;
        let mut at = 0;
        while at < capabilities.len() {
            all = all.union(Self::from_capability(capabilities[at]));
            at += 1;
        }
        all
    }

    /// Both sets together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every feature of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The features of this set that a device with the features `device` lacks.
    #[must_use]
    pub const fn missing(self, device: Self) -> Self {
        Self(self.0 & !device.0)
    }

    /// The names of the features in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.iter().filter(move |(feature, _)| self.contains(*feature)).map(|(_, name)| *name)
    }

    const fn from_capability(capability: Capability) -> Self {
        use Capability as C;
        match capability {
            C::Shader | C::Matrix | C::SampledBuffer | C::ImageBuffer | C::ImageQuery => Self::NONE,
            C::Float16 => Self::FLOAT16,
            C::Float64 => Self::FLOAT64,
            C::Int8 => Self::INT8,
            C::Int16 => Self::INT16,
            C::Int64 => Self::INT64,
            C::BFloat16TypeKHR => Self::BFLOAT16,
            C::BFloat16CooperativeMatrixKHR => Self::BFLOAT16.union(Self::COOPERATIVE_MATRIX),
            C::StorageBuffer8BitAccess | C::UniformAndStorageBuffer8BitAccess => Self::STORAGE_8,
            C::StorageBuffer16BitAccess | C::UniformAndStorageBuffer16BitAccess => Self::STORAGE_16,
            C::StoragePushConstant8 => Self::PUSH_CONSTANT_8,
            C::StoragePushConstant16 => Self::PUSH_CONSTANT_16,
            C::GroupNonUniform => Self::SUBGROUP_BASIC,
            C::GroupNonUniformVote => Self::SUBGROUP_VOTE,
            C::GroupNonUniformArithmetic => Self::SUBGROUP_ARITHMETIC,
            C::GroupNonUniformBallot => Self::SUBGROUP_BALLOT,
            C::GroupNonUniformShuffle => Self::SUBGROUP_SHUFFLE,
            C::GroupNonUniformShuffleRelative => Self::SUBGROUP_SHUFFLE_RELATIVE,
            C::GroupNonUniformClustered => Self::SUBGROUP_CLUSTERED,
            C::GroupNonUniformQuad => Self::SUBGROUP_QUAD,
            C::CooperativeMatrixKHR => Self::COOPERATIVE_MATRIX,
            C::CooperativeMatrixReductionsNV
            | C::CooperativeMatrixConversionsNV
            | C::CooperativeMatrixPerElementOperationsNV
            | C::CooperativeMatrixTensorAddressingNV
            | C::CooperativeMatrixBlockLoadsNV
            | C::TensorAddressingNV => Self::COOPERATIVE_MATRIX_2,
            C::Int64Atomics => Self::ATOMIC_INT64,
            C::AtomicFloat32AddEXT => Self::ATOMIC_FLOAT,
            C::AtomicFloat32MinMaxEXT => Self::ATOMIC_FLOAT_MIN_MAX,
            C::DotProduct
            | C::DotProductInputAll
            | C::DotProductInput4x8Bit
            | C::DotProductInput4x8BitPacked => Self::DOT_PRODUCT,
            C::VulkanMemoryModel | C::VulkanMemoryModelDeviceScope => Self::VULKAN_MEMORY_MODEL,
            C::VariablePointers | C::VariablePointersStorageBuffer => Self::VARIABLE_POINTERS,
            C::WorkgroupMemoryExplicitLayoutKHR
            | C::WorkgroupMemoryExplicitLayout8BitAccessKHR
            | C::WorkgroupMemoryExplicitLayout16BitAccessKHR => Self::WORKGROUP_LAYOUT,
            C::Image1D | C::Sampled1D => Self::IMAGE_1D,
            C::StorageImageExtendedFormats => Self::IMAGE_FORMATS,
            C::StorageImageReadWithoutFormat | C::StorageImageWriteWithoutFormat => {
                Self::IMAGE_WITHOUT_FORMAT
            }
            C::DenormPreserve
            | C::DenormFlushToZero
            | C::SignedZeroInfNanPreserve
            | C::RoundingModeRTE
            | C::RoundingModeRTZ => Self::FLOAT_CONTROLS,
            _ => Self::UNKNOWN,
        }
    }
}

impl fmt::Display for Requires {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, name) in self.names().enumerate() {
            f.write_str(if at == 0 { "" } else { ", " })?;
            f.write_str(name)?;
        }
        if self.is_empty() { f.write_str("nothing") } else { Ok(()) }
    }
}

impl fmt::Debug for Requires {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Requires({self})")
    }
}

impl serde::Serialize for Requires {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(NAMES.iter().filter(|(bit, _)| self.contains(*bit)).map(|(_, name)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_has_one_bit_and_one_name() {
        for (at, (feature, name)) in NAMES.iter().enumerate() {
            assert_eq!(feature.0.count_ones(), 1, "{name}");
            assert!(NAMES[at + 1..].iter().all(|(other, text)| feature != other && name != text), "{name}");
        }
        let all = NAMES.iter().fold(Requires::NONE, |all, (feature, _)| all.union(*feature));
        assert_eq!(all.0.count_ones() as usize, NAMES.len());
    }

    #[test]
    fn sets() {
        let kernel = Requires::FLOAT16.union(Requires::STORAGE_16);
        let device = Requires::STORAGE_16.union(Requires::INT64);
        assert!(kernel.contains(Requires::FLOAT16) && !device.contains(kernel));
        assert_eq!(kernel.missing(device), Requires::FLOAT16);
        assert!(kernel.missing(kernel).is_empty());
        assert_eq!(kernel.to_string(), "float16, 16-bit storage");
        assert_eq!(format!("{:?}", Requires::NONE), "Requires(nothing)");
    }

    #[test]
    fn versions() {
        let of = |minor| Requires::of((1, minor), false, &[Capability::Shader]);
        assert_eq!(of(3), Requires::NONE);
        assert!(of(6).contains(of(5)) && of(5).contains(of(4)) && !of(4).contains(of(5)));
        assert_eq!(Requires::of((1, 0), true, &[]), Requires::LOCAL_SIZE_ID);
        assert_eq!(Requires::of((1, 0), false, &[Capability::Kernel]), Requires::UNKNOWN);
    }
}
