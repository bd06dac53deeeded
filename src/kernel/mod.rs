//! Compute kernels: the table of those that ship, and what a backend gets to create one from.

mod own;
mod select;
pub mod table;
#[cfg(test)]
mod translate_tests;

use std::borrow::Cow;
use std::sync::OnceLock;

use rspirv::spirv::Capability;

pub use onepool_hal::kernel::{
    KernelError, KernelSource, NativeArg, NativeArgs, NativeFn, NativeKernel, native, touch,
};
pub use onepool_spirv::Requires;

pub(crate) use self::own::{generated, prepare, record_into};
#[cfg(test)]
pub(crate) use self::own::{submit, submit_unordered};
pub use self::select::{NoKernel, Unit};
pub use self::table::{codes, id, params, spec, variants};
use crate::spirv::{BindingInfo, ParamInfo, Reflection, SpecInfo};

/// Bytes of the widest element that kernels read or write at once: a texel of `float32`, or four words.
pub(crate) const VECTOR_BYTES: usize = 16;

/// A shipped kernel; the constants are in [`id`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelId(u16);

impl KernelId {
    /// The reflection of the kernel.
    pub fn info(self) -> &'static KernelInfo {
        &table::KERNELS[usize::from(self.0)]
    }

    /// The kernel called `name`; for tools, everything else uses the constants of [`id`].
    pub fn by_name(name: &str) -> Option<Self> {
        let at = table::KERNELS.binary_search_by(|info| info.name.cmp(name)).ok()?;
        u16::try_from(at).ok().map(Self)
    }

    /// Every kernel, sorted by name.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        (0..table::KERNELS.len() as u16).map(Self)
    }
}

/// A shipped kernel, as reflected when the crate was built.
#[derive(Debug)]
pub struct KernelInfo {
    /// Its name, `<file>[_<variant>]`; unique.
    pub name: &'static str,
    /// The folder of its source under `shaders/`.
    pub family: &'static str,
    /// Path of its source in the repository.
    pub source: &'static str,
    /// SPIR-V version, (major, minor).
    pub version: (u8, u8),
    /// Work-group size; a component that can be specialized has its default here.
    pub local_size: [u32; 3],
    /// The specialization constants of the work-group size.
    pub local_size_spec: [Option<u32>; 3],
    /// Bindings of set 0, numbered from 0 without gaps.
    pub bindings: &'static [BindingInfo],
    /// Members of the push-constant block.
    pub params: &'static [ParamInfo],
    /// Bytes of the push-constant block, at most 128.
    pub params_bytes: u32,
    /// Specialization constants by id.
    pub spec: &'static [SpecInfo],
    /// Bytes of workgroup memory with every specialization constant at its default.
    pub shared_bytes: u32,
    /// Whether it has atomic operations.
    pub atomics: bool,
    /// The device features that it requires.
    pub requires: Requires,
    /// Whether the work-group size is given by `OpExecutionModeId LocalSizeId`.
    pub local_size_id: bool,
    /// The capabilities the module declares.
    pub capabilities: &'static [Capability],
    /// First byte and bytes of its SPIR-V, deflated, in the table's blob.
    packed: (usize, usize),
    /// The words, once they were asked for.
    unpacked: OnceLock<Vec<u32>>,
}

impl KernelInfo {
    /// The kernel's SPIR-V. The first call inflates it.
    pub fn spirv(&self) -> &[u32] {
        self.unpacked.get_or_init(|| table::words(self.packed))
    }

    /// The same facts as the reflection of a user's module gives.
    pub fn reflection(&self) -> Reflection {
        Reflection {
            version: self.version,
            entry_point: Cow::Borrowed("main"),
            bindings: self.bindings.to_vec(),
            params: self.params.to_vec(),
            params_bytes: self.params_bytes,
            spec: self.spec.to_vec(),
            local_size: self.local_size,
            local_size_spec: self.local_size_spec,
            local_size_id: self.local_size_id,
            shared_bytes: self.shared_bytes,
            atomics: self.atomics,
            capabilities: self.capabilities.to_vec(),
        }
    }
}

/// The work-groups that cover `n` invocations of work-groups of `local`, folded over y where a device takes
/// no more than `max_groups_x` along x. The counterpart of `linear_id()` in `shaders/include/grid.glsl`.
///
/// At least one work-group is returned, so that a dispatch of it is valid; `local` and `max_groups_x` of
/// zero count as one.
pub fn grid_1d(n: u64, local: u32, max_groups_x: u32) -> [u32; 3] {
    let groups = n.div_ceil(u64::from(local.max(1))).max(1);
    let rows = groups.div_ceil(u64::from(max_groups_x.max(1)));
    // Rows of equal length waste less than one work-group per row.
    let columns = groups.div_ceil(rows);
    [columns as u32, u32::try_from(rows).unwrap_or(u32::MAX), 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spirv::{BindingAccess, BindingKind, SpirvErrorKind};

    #[test]
    fn ids_and_names_are_the_same() {
        for id in KernelId::all() {
            assert_eq!(KernelId::by_name(id.info().name), Some(id));
        }
        assert_eq!(id::FILL.info().name, "fill");
        assert_eq!(KernelId::by_name("no_such_kernel"), None);
    }

    #[test]
    fn params_and_specialization_constants_are_those_of_the_shader() {
        let axpb = params::Axpb { n: 3, a: 2.0, b: 1.0 };
        let bytes = bytemuck::bytes_of(&axpb);
        let info = id::AXPB_F32.info();
        assert_eq!(bytes.len(), info.params_bytes as usize);
        let a = info.params.iter().find(|param| param.name == "a").unwrap();
        assert_eq!(bytes[a.offset_bytes as usize..][..4], 2.0f32.to_ne_bytes());
        assert_eq!(info.local_size_spec[0], Some(spec::axpb::LOCAL_SIZE_X));
        let bindings: Vec<_> = info.bindings.iter().map(|b| (b.kind, b.access)).collect();
        let buffer = BindingKind::StorageBuffer;
        assert_eq!(bindings, [(buffer, BindingAccess::Read), (buffer, BindingAccess::Write)]);
    }

    #[test]
    fn grids_cover_the_problem() {
        for (n, local, max, expected) in [
            (0, 64, 65535, [1, 1, 1]),
            (1, 64, 65535, [1, 1, 1]),
            (64, 64, 65535, [1, 1, 1]),
            (65, 64, 65535, [2, 1, 1]),
            (64 * 65535, 64, 65535, [65535, 1, 1]),
            (64 * 65535 + 1, 64, 65535, [32768, 2, 1]),
            (7, 1, 3, [3, 3, 1]),
            (5, 0, 0, [1, 5, 1]),
        ] {
            assert_eq!(grid_1d(n, local, max), expected, "{n} by {local}, at most {max}");
        }
        for n in [1u64 << 20, (1 << 32) - 1, 1 << 40] {
            let [x, y, z] = grid_1d(n, 64, 65535).map(u64::from);
            assert!(x <= 65535 && x * y * z * 64 >= n && x * y * z * 64 < n + 64 * (y + 1), "{n}");
        }
    }

    #[test]
    fn a_users_module_is_checked() {
        let info = id::FILL.info();
        let source = generated("mine".to_owned(), info.spirv().to_vec()).unwrap();
        assert_eq!(source.spirv().unwrap().1, id::FILL.source().spirv().unwrap().1);
        assert_eq!(source.requires(), Requires::NONE);
        let error = generated("mine".to_owned(), vec![1, 2, 3]).unwrap_err();
        assert_eq!(error.kind, SpirvErrorKind::HeaderIncomplete { words: 3 });
    }
}
