//! Kernels and their arguments.

use std::fmt;
use std::sync::{Arc, Weak};

use super::buffer::Buffer;
use super::core::Core;
use super::error::{Error, Problem, UsageError};
use crate::backend::{ContextBackend, DeviceError, DeviceInfo, KernelDesc, Limits};
use crate::kernel::{KernelSource, NativeKernel, touch};
use crate::recording::{Arg, DeviceKernelId};
use onepool_core::memory::coherency::Access;
use onepool_core::memory::image::Texel;
use onepool_core::sync::lock;
use onepool_spirv::{BindingInfo, BindingKind, Element, PART_BYTES, PartForm, Reflection, ScalarType};

/// Bytes of one texel of a view: four floats.
const TEXEL_BYTES: u64 = 16;

/// What a context knows a kernel by: the address of its source, which the kernel keeps (it names the source while the
/// kernel lives), and its specialization constants.
pub(super) type KernelKey = (usize, Box<[(u32, u32)]>);

pub(super) struct KernelInner {
    backend: Arc<dyn ContextBackend>,
    core: Weak<Core>,
    pub(super) id: DeviceKernelId,
    pub(super) source: Arc<KernelSource>,
    /// What calls are held against; native functions have none.
    interface: Option<Interface>,
}

struct Interface {
    bindings: Vec<BindingInfo>,
    params_bytes: u32,
    local_size: [u32; 3],
    shared_bytes: u32,
}

impl Interface {
    fn new(reflection: &Reflection, spec: &[(u32, u32)]) -> Interface {
        let mut local_size = reflection.local_size;
        for (size, id) in local_size.iter_mut().zip(reflection.local_size_spec) {
            if let Some((_, value)) = spec.iter().find(|(given, _)| Some(*given) == id) {
                *size = *value;
            }
        }
        let mut bindings = reflection.bindings.clone();
        bindings.sort_by_key(|binding| (binding.set, binding.binding));
        let (params_bytes, shared_bytes) = (reflection.params_bytes, reflection.shared_bytes);
        Interface { bindings, params_bytes, local_size, shared_bytes }
    }

    /// Holds the kernel against the device: a driver need not.
    fn check(&self, limits: &Limits) -> Result<(), UsageError> {
        let [x, y, z] = self.local_size.map(u64::from);
        let [most_x, most_y, most_z] = limits.max_group_size.map(u64::from);
        let items = x.saturating_mul(y).saturating_mul(z);
        let checks = [
            ("work-items along x", x, most_x, "VUID-RuntimeSpirv-x-06429"),
            ("work-items along y", y, most_y, "VUID-RuntimeSpirv-y-06430"),
            ("work-items along z", z, most_z, "VUID-RuntimeSpirv-z-06431"),
            (
                "work-items of a work-group",
                items,
                u64::from(limits.max_group_items),
                "VUID-RuntimeSpirv-x-06432",
            ),
            (
                "bytes of local memory",
                u64::from(self.shared_bytes),
                u64::from(limits.max_local_bytes),
                "VUID-RuntimeSpirv-Workgroup-06530",
            ),
            (
                "parameter bytes",
                u64::from(self.params_bytes),
                u64::from(limits.max_params_bytes),
                "VUID-VkPushConstantRange-size-00298",
            ),
            (
                "arguments",
                self.bindings.len() as u64,
                u64::from(limits.max_arguments),
                "VUID-VkPipelineLayoutCreateInfo-descriptorType-06940",
            ),
        ];
        if items == 0 {
            return Err(UsageError::new("create_kernel", Problem::Empty));
        }
        match checks.into_iter().find(|(_, found, limit, _)| found > limit) {
            Some((what, found, limit, vuid)) => {
                Err(UsageError::new("create_kernel", Problem::Limit { what, found, limit }).with_vuid(vuid))
            }
            None => Ok(()),
        }
    }
}

impl fmt::Debug for KernelInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.source.name())
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Drop for KernelInner {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.state().kernels.remove(&self.id);
        }
        self.backend.destroy_kernel(self.id);
    }
}

/// A kernel on one context. A clone is another handle of it.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(super) inner: Arc<KernelInner>,
}

impl Kernel {
    pub(super) fn of(
        core: &Arc<Core>,
        source: &Arc<KernelSource>,
        spec: &[(u32, u32)],
    ) -> Result<Kernel, Error> {
        let key: KernelKey = (Arc::as_ptr(source).addr(), spec.into());
        if let Some(inner) = lock(&core.kernels).get(&key).and_then(Weak::upgrade) {
            return Ok(Kernel { inner });
        }
        let missing = source.requires().missing(core.info.features.union(core.info.emulated));
        if !core.info.native && !missing.is_empty() {
            let what = format!("{missing}, which kernel {} needs", source.name());
            return Err(DeviceError::Unsupported { what }.into());
        }
        let reflection = source.spirv().map(|(_, reflection)| reflection).filter(|_| !core.info.native);
        let interface = reflection.map(|reflection| Interface::new(reflection, spec));
        if let Some(interface) = &interface {
            interface.check(&core.info.limits)?;
        }
        // Compiled outside the lock: two threads may build the same kernel, and the later one is kept.
        let id = core.backend.create_kernel(&KernelDesc { source, spec })?;
        let inner = Arc::new(KernelInner {
            backend: Arc::clone(&core.backend),
            core: Arc::downgrade(core),
            id,
            interface,
            source: Arc::clone(source),
        });
        core.state().kernels.insert(id, Arc::downgrade(&inner));
        let mut cache = lock(&core.kernels);
        if cache.len() >= 64 && cache.len().is_power_of_two() {
            cache.retain(|_, kernel| kernel.strong_count() > 0);
        }
        cache.insert(key, Arc::downgrade(&inner));
        Ok(Kernel { inner })
    }

    pub(super) fn native(core: &Arc<Core>, native: NativeKernel) -> Result<Kernel, Error> {
        Kernel::of(core, &Arc::new(KernelSource::from_native(native)), &[])
    }

    /// The kernel as a recording names it.
    pub fn id(&self) -> DeviceKernelId {
        self.inner.id
    }

    /// Whether a dispatch can be given in parts ([`Dispatch::part`](crate::recording::Dispatch::part)), one after the
    /// other, without a difference to its results.
    pub fn has_parts(&self) -> bool {
        self.inner.core.upgrade().is_some_and(|core| self.inner.has_parts(&core.info))
    }

    /// Where it came from.
    pub fn source(&self) -> &Arc<KernelSource> {
        &self.inner.source
    }
}

impl KernelInner {
    pub(super) fn has_parts(&self, info: &DeviceInfo) -> bool {
        let fits = |form: &PartForm| form.offset_bytes + PART_BYTES <= info.limits.max_params_bytes;
        info.splits_grids && self.source.part_form(0).is_some_and(fits)
    }

    /// Checks a call against the reflected interface; a native function checks its arguments itself.
    pub(super) fn check_call(
        &self,
        context: &'static str,
        args: &[Arg],
        params: &[u8],
        limits: &Limits,
    ) -> Result<(), UsageError> {
        let Some(interface) = &self.interface else { return Ok(()) };
        let check = |holds: bool, problem: Problem| {
            if holds { Ok(()) } else { Err(UsageError::new(context, problem)) }
        };
        let (found, expected) = (args.len() as u64, interface.bindings.len() as u64);
        check(found == expected, Problem::Mismatch { what: "the number of arguments", found, expected })?;
        let (found, expected) = (params.len() as u64, u64::from(interface.params_bytes));
        check(
            found == expected,
            Problem::Mismatch { what: "the number of parameter bytes", found, expected },
        )?;
        for (argument, (arg, binding)) in args.iter().zip(&interface.bindings).enumerate() {
            let Some((range, given)) = arg.range() else {
                return Err(UsageError::new(context, Problem::Absent { argument }));
            };
            check_kind(binding, arg)
                .map_err(|wanted| UsageError::new(context, Problem::Kind { argument, wanted }))?;
            // What the module does decides: a write that the recording does not tell of would race.
            let needs = touch(binding.access);
            let problem = Problem::Access { argument, wanted: words(needs), given: words(given) };
            check(given.contains(needs), problem)?;
            if matches!(binding.kind, BindingKind::UniformTexelBuffer | BindingKind::StorageTexelBuffer) {
                let (found, alignment) = (range.offset, limits.texel_alignment.max(1));
                let what = "the offset of a texel view";
                let problem = Problem::Misaligned { what, found, alignment };
                check(found.is_multiple_of(alignment), problem)?;
                let (found, limit) = (range.bytes / TEXEL_BYTES, limits.max_texels);
                check(found <= limit, Problem::Limit { what: "the number of texels", found, limit })?;
            }
        }
        Ok(())
    }

    /// The work-group size, where the kernel has one.
    pub(super) fn local_size(&self) -> Option<[u32; 3]> {
        self.interface.as_ref().map(|interface| interface.local_size)
    }
}

/// Checks that an argument is of the kind that the kernel declares; the error names that kind.
fn check_kind(binding: &BindingInfo, arg: &Arg) -> Result<(), &'static str> {
    let image = matches!(binding.kind, BindingKind::SampledImage | BindingKind::StorageImage);
    let Arg::Image(_, view, _) = arg else {
        return if image { Err("image") } else { Ok(()) };
    };
    let texel = view.image.texel;
    let scalar = match texel {
        Texel::R16F | Texel::Rgba16F => ScalarType::F16,
        Texel::R32F | Texel::Rgba32F => ScalarType::F32,
    };
    // A storage image without a declared format counts as four floats, and fits every texel.
    let fits = |e: &Element| {
        let found = (e.scalar, e.components);
        found == (Some(scalar), texel.channels()) || found == (Some(ScalarType::F32), 4)
    };
    match (image, binding.kind, &binding.element) {
        (false, ..) => Err("buffer"),
        (_, BindingKind::StorageImage, Some(element)) if !fits(element) => Err("image of such texels"),
        _ => Ok(()),
    }
}

fn words(access: Access) -> &'static str {
    match (access.contains(Access::KERNEL_READ), access.contains(Access::KERNEL_WRITE)) {
        (true, true) => "read and written",
        (false, true) => "written",
        _ => "read",
    }
}

/// One argument of an enqueued kernel.
#[derive(Clone, Copy, Debug)]
pub enum KernelArg<'a> {
    /// An optional argument that is not given (native kernels only).
    Absent,
    /// The kernel reads it.
    Read(&'a Buffer),
    /// The kernel writes it.
    Write(&'a Buffer),
    /// The kernel reads and writes it.
    ReadWrite(&'a Buffer),
}

impl KernelArg<'_> {
    pub(super) fn to_arg(self) -> Arg {
        match self {
            KernelArg::Absent => Arg::Absent,
            KernelArg::Read(buffer) => Arg::Buffer(buffer.range(), Access::KERNEL_READ),
            KernelArg::Write(buffer) => Arg::Buffer(buffer.range(), Access::KERNEL_WRITE),
            KernelArg::ReadWrite(buffer) => {
                Arg::Buffer(buffer.range(), Access::KERNEL_READ | Access::KERNEL_WRITE)
            }
        }
    }
}
