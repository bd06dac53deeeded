//! Kernels: from SPIR-V and its reflection to a pipeline.

use std::sync::Mutex;

use ash::vk;

use super::cache::PipelineCache;
use super::device::Device;
use super::subgroups::{Asked, relies_on_lanes};
use crate::backend::{DeviceError, KernelDesc, Limits};
use crate::kernel::KernelSource;
use onepool_core::sync::lock;
use onepool_spirv::{BindingInfo, BindingKind, PART_BYTES, Reflection, ScalarType};

/// A compute pipeline with what binding its arguments needs.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) pipeline: vk::Pipeline,
    pub(super) layout: vk::PipelineLayout,
    pub(super) set_layout: vk::DescriptorSetLayout,
    /// In argument order.
    pub(super) bindings: Vec<Binding>,
    pub(super) params_bytes: u32,
    /// For parts of grids along each axis. Made when it is first needed.
    parts: Mutex<[Option<PartPipeline>; 3]>,
    source: KernelSource,
    spec: Vec<(u32, u32)>,
}

/// A kernel's pipeline for parts of its grid.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartPipeline {
    pub(super) pipeline: vk::Pipeline,
    pub(super) layout: vk::PipelineLayout,
    /// Where the parameters of the part begin ([`PART_BYTES`]).
    pub(super) offset_bytes: usize,
}

/// How a pipeline is made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Compiling {
    pub(super) flags: vk::PipelineCreateFlags,
    /// The lanes of a subgroup that are asked for: a power of two within the device's range. Without it those that the kernel
    /// relies on.
    pub(super) subgroup: Option<u32>,
}

/// One argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) number: u32,
    pub(super) ty: vk::DescriptorType,
    /// The texel format and its bytes, for a texel view.
    pub(super) texel: Option<(vk::Format, u64)>,
}

impl Kernel {
    /// Creates a kernel; may run on several threads at once.
    pub(super) fn new(
        device: &Device,
        cache: &PipelineCache,
        desc: &KernelDesc<'_>,
    ) -> Result<Self, DeviceError> {
        Kernel::compiled(device, cache.raw, desc, Compiling::default())
    }

    /// Creates a kernel in a way of its own.
    pub(super) fn compiled(
        device: &Device,
        cache: vk::PipelineCache,
        desc: &KernelDesc<'_>,
        compiling: Compiling,
    ) -> Result<Self, DeviceError> {
        let source = desc.source;
        let refuse = |log: String| DeviceError::Program { kernel: source.name().to_owned(), log };
        let missing = source.requires().missing(device.info.features);
        if !missing.is_empty() {
            return Err(DeviceError::Unsupported {
                what: format!("{missing}, which kernel {} needs", source.name()),
            });
        }
        let (_, reflection) = source.spirv().ok_or_else(|| refuse("it has no SPIR-V form".to_owned()))?;
        let size = group_size(reflection, desc.spec);
        check_limits(reflection, size, &device.info.limits).map_err(refuse)?;
        let bindings =
            reflection.bindings.iter().map(binding).collect::<Result<Vec<_>, _>>().map_err(refuse)?;
        let mut kernel = Kernel {
            name: source.name().to_owned(),
            pipeline: vk::Pipeline::null(),
            layout: vk::PipelineLayout::null(),
            set_layout: vk::DescriptorSetLayout::null(),
            bindings,
            params_bytes: reflection.params_bytes,
            parts: Mutex::default(),
            source: source.clone(),
            spec: desc.spec.to_vec(),
        };
        match kernel.build(device, cache, compiling) {
            Ok(()) => Ok(kernel),
            Err(error) => {
                // SAFETY: nothing uses the parts that were made.
                unsafe { kernel.destroy(device) };
                Err(error)
            }
        }
    }

    fn build(
        &mut self,
        device: &Device,
        cache: vk::PipelineCache,
        compiling: Compiling,
    ) -> Result<(), DeviceError> {
        let raw = device.raw();
        let layout_bindings: Vec<_> = self
            .bindings
            .iter()
            .map(|binding| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding.number)
                    .descriptor_type(binding.ty)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&layout_bindings);
        // SAFETY: the reflection merges variables of one number, so numbers are distinct
        // (VUID-VkDescriptorSetLayoutCreateInfo-binding-00279).
        self.set_layout = unsafe { raw.create_descriptor_set_layout(&info, None) }
            .map_err(|code| device.error("vkCreateDescriptorSetLayout", code, 0))?;
        self.layout = self.create_layout(device, self.params_bytes)?;
        let (words, _) = self.source.spirv().ok_or_else(|| self.refuse("it has no SPIR-V form"))?;
        self.pipeline = self.compile(device, cache, words, self.layout, compiling)?;
        Ok(())
    }

    fn refuse(&self, why: &str) -> DeviceError {
        DeviceError::Program { kernel: self.name.clone(), log: why.to_owned() }
    }

    /// A layout of the kernel's arguments and `params_bytes` of parameters.
    fn create_layout(&self, device: &Device, params_bytes: u32) -> Result<vk::PipelineLayout, DeviceError> {
        let set_layouts = [self.set_layout];
        let ranges = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(params_bytes.next_multiple_of(4))];
        let used = if params_bytes == 0 { &[][..] } else { &ranges[..] };
        let info =
            vk::PipelineLayoutCreateInfo::default().set_layouts(&set_layouts).push_constant_ranges(used);
        // SAFETY: the range's size is above 0, a multiple of 4 and within the device's limit
        // (VUID-VkPushConstantRange-size-00296, -00297, -00298).
        unsafe { device.raw().create_pipeline_layout(&info, None) }
            .map_err(|code| device.error("vkCreatePipelineLayout", code, 0))
    }

    /// The pipeline for parts of a grid along `axis`.
    ///
    /// # Errors
    /// The kernel has no such form, or its parameters leave no room; the driver cannot make it.
    pub(super) fn part_pipeline(
        &self,
        device: &Device,
        cache: &PipelineCache,
        axis: usize,
    ) -> Result<PartPipeline, DeviceError> {
        let mut parts = lock(&self.parts);
        if let Some(found) = parts.get(axis).copied().flatten() {
            return Ok(found);
        }
        let form =
            self.source.part_form(axis).ok_or_else(|| self.refuse("it has no form for parts of its grid"))?;
        let (asked, limit) = (form.offset_bytes + PART_BYTES, device.info.limits.max_params_bytes);
        if asked > limit {
            let (asked, limit) = (u64::from(asked), u64::from(limit));
            return Err(DeviceError::Limit { what: "parameter bytes of a part", asked, limit });
        }
        let layout = self.create_layout(device, asked)?;
        let made = self.compile(device, cache.raw, &form.words, layout, Compiling::default());
        let pipeline = made.inspect_err(|_| {
            // SAFETY: nothing uses the layout.
            unsafe { device.raw().destroy_pipeline_layout(layout, None) };
        })?;
        let made = PartPipeline { pipeline, layout, offset_bytes: form.offset_bytes as usize };
        parts[axis] = Some(made);
        Ok(made)
    }

    #[cfg(test)]
    pub(super) fn ran_in_parts(&self) -> bool {
        lock(&self.parts).iter().any(Option::is_some)
    }

    /// A pipeline of `words`, a form of the kernel, with `layout`.
    fn compile(
        &self,
        device: &Device,
        cache: vk::PipelineCache,
        words: &[u32],
        layout: vk::PipelineLayout,
        compiling: Compiling,
    ) -> Result<vk::Pipeline, DeviceError> {
        let refuse = |log: String| DeviceError::Program { kernel: self.name.clone(), log };
        let (_, reflection) = self.source.spirv().ok_or_else(|| self.refuse("it has no SPIR-V form"))?;
        let (entries, values) = specialize(reflection, &self.spec).map_err(refuse)?;
        let guard = device.guard.filter(|_| self.source.is_callers());
        let mut asked = Asked::default();
        if relies_on_lanes(self.source.requires()) {
            let size = group_size(reflection, &self.spec);
            asked = device.subgroups.ask(compiling.subgroup.unwrap_or(device.info.subgroup), size);
        }
        asked.lanes = compiling.subgroup.or(asked.lanes);
        let raw = device.raw();
        let info = vk::ShaderModuleCreateInfo::default().code(words);
        // SAFETY: a KernelSource holds SPIR-V that was checked, and needs only features that are on
        // (VUID-VkShaderModuleCreateInfo-pCode-08737, -08740).
        let module = unsafe { raw.create_shader_module(&info, None) }
            .map_err(|code| device.error("vkCreateShaderModule", code, 0))?;
        let entry_point =
            std::ffi::CString::new(reflection.entry_point.as_bytes()).unwrap_or_else(|_| c"main".to_owned());
        let specialization = vk::SpecializationInfo::default().map_entries(&entries).data(&values);
        let mut required = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default();
        let full = match asked.full {
            true => vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS,
            false => vk::PipelineShaderStageCreateFlags::empty(),
        };
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .flags(full)
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(&entry_point)
            .specialization_info(&specialization);
        if let Some(lanes) = asked.lanes {
            required = required.required_subgroup_size(lanes);
            stage = stage.push_next(&mut required);
        }
        let behavior = guard.unwrap_or(vk::PipelineRobustnessBufferBehaviorEXT::DEVICE_DEFAULT);
        let mut robustness = vk::PipelineRobustnessCreateInfoEXT::default()
            .storage_buffers(behavior)
            .uniform_buffers(behavior)
            .vertex_inputs(vk::PipelineRobustnessBufferBehaviorEXT::DEVICE_DEFAULT)
            .images(vk::PipelineRobustnessImageBehaviorEXT::DEVICE_DEFAULT);
        let mut info =
            vk::ComputePipelineCreateInfo::default().flags(compiling.flags).stage(stage).layout(layout);
        if guard.is_some() {
            info = info.push_next(&mut robustness);
        }
        let info = [info];
        // SAFETY: the layout holds every binding the module has (VUID-VkComputePipelineCreateInfo-layout-07988);
        // a guard is there only with its feature (VUID-VkPipelineRobustnessCreateInfo-pipelineRobustness-06926); a size
        // of subgroups is one that the device offers and the feature is on
        // (VUID-VkPipelineShaderStageCreateInfo-pNext-02754, -02755), and full ones are of work-groups that have whole ones
        // (VUID-VkPipelineShaderStageCreateInfo-flags-02785, -pNext-02757); the cache is internally synchronized.
        let made = unsafe { raw.create_compute_pipelines(cache, &info, None) };
        // SAFETY: a pipeline does not need its module after it was made.
        unsafe { raw.destroy_shader_module(module, None) };
        let pipelines =
            made.map_err(|(_, code)| match device.error("vkCreateComputePipelines", code, 0) {
                DeviceError::Backend { code, .. } => DeviceError::Program {
                    kernel: self.name.clone(),
                    log: format!("the driver could not compile it (code {code})"),
                },
                error => error,
            })?;
        Ok(pipelines.into_iter().next().unwrap_or(vk::Pipeline::null()))
    }

    /// Destroys the kernel.
    ///
    /// # Safety
    /// No unfinished submission uses it, and it is not used again.
    pub(super) unsafe fn destroy(&self, device: &Device) {
        // SAFETY: as the caller promises (VUID-vkDestroyPipeline-pipeline-00765); null handles are ignored.
        unsafe {
            device.raw().destroy_pipeline(self.pipeline, None);
            for part in std::mem::take(&mut *lock(&self.parts)).into_iter().flatten() {
                device.raw().destroy_pipeline(part.pipeline, None);
                device.raw().destroy_pipeline_layout(part.layout, None);
            }
            device.raw().destroy_pipeline_layout(self.layout, None);
            device.raw().destroy_descriptor_set_layout(self.set_layout, None);
        }
    }
}

fn binding(info: &BindingInfo) -> Result<Binding, String> {
    if info.set != 0 {
        return Err(format!("binding {} is in set {}; only set 0 is used", info.binding, info.set));
    }
    let ty = match info.kind {
        BindingKind::StorageBuffer => vk::DescriptorType::STORAGE_BUFFER,
        BindingKind::UniformBuffer => vk::DescriptorType::UNIFORM_BUFFER,
        BindingKind::UniformTexelBuffer => vk::DescriptorType::UNIFORM_TEXEL_BUFFER,
        BindingKind::StorageTexelBuffer => vk::DescriptorType::STORAGE_TEXEL_BUFFER,
        BindingKind::SampledImage => vk::DescriptorType::COMBINED_IMAGE_SAMPLER,
        BindingKind::StorageImage => vk::DescriptorType::STORAGE_IMAGE,
    };
    let is_texel = matches!(info.kind, BindingKind::UniformTexelBuffer | BindingKind::StorageTexelBuffer);
    let texel = is_texel.then(|| texel_format(info)).transpose()?;
    Ok(Binding { number: info.binding, ty, texel })
}

/// Formats that every device has for both kinds of texel buffer.
fn texel_format(info: &BindingInfo) -> Result<(vk::Format, u64), String> {
    let element = info.element.and_then(|element| Some((element.scalar?, element.components)));
    match element {
        Some((ScalarType::F32, 4)) => Ok((vk::Format::R32G32B32A32_SFLOAT, 16)),
        Some((ScalarType::U32, 4)) => Ok((vk::Format::R32G32B32A32_UINT, 16)),
        Some((ScalarType::I32, 4)) => Ok((vk::Format::R32G32B32A32_SINT, 16)),
        Some((ScalarType::F16, 4)) => Ok((vk::Format::R16G16B16A16_SFLOAT, 8)),
        Some((ScalarType::F32, 1)) => Ok((vk::Format::R32_SFLOAT, 4)),
        Some((ScalarType::U32, 1)) => Ok((vk::Format::R32_UINT, 4)),
        Some((ScalarType::I32, 1)) => Ok((vk::Format::R32_SINT, 4)),
        other => Err(format!(
            "binding {} has texels of a format that not every device has: {other:?}",
            info.binding
        )),
    }
}

/// Work-items of a work-group along each axis, with these values of specialization constants.
fn group_size(reflection: &Reflection, spec: &[(u32, u32)]) -> [u32; 3] {
    let mut size = reflection.local_size;
    for (axis, id) in size.iter_mut().zip(reflection.local_size_spec) {
        if let Some((_, value)) = spec.iter().find(|(known, _)| Some(*known) == id) {
            *axis = *value;
        }
    }
    size
}

/// A driver may crash on a kernel beyond its limits.
fn check_limits(reflection: &Reflection, size: [u32; 3], limits: &Limits) -> Result<(), String> {
    if reflection.params_bytes > limits.max_params_bytes {
        let (bytes, limit) = (reflection.params_bytes, limits.max_params_bytes);
        return Err(format!("{bytes} bytes of parameters are above this device's {limit}"));
    }
    if reflection.bindings.len() > limits.max_arguments as usize {
        let (count, limit) = (reflection.bindings.len(), limits.max_arguments);
        return Err(format!("{count} arguments are above this device's {limit}"));
    }
    if reflection.shared_bytes > limits.max_local_bytes {
        let (bytes, limit) = (reflection.shared_bytes, limits.max_local_bytes);
        return Err(format!("{bytes} bytes of workgroup memory are above this device's {limit}"));
    }
    let items = size.iter().try_fold(1u32, |items, axis| items.checked_mul(*axis));
    let within = size.iter().zip(limits.max_group_size).all(|(axis, limit)| (1..=limit).contains(axis));
    if !within || items.is_none_or(|items| items > limits.max_group_items) {
        let (most, items) = (limits.max_group_size, limits.max_group_items);
        return Err(format!("work-groups of {size:?} are above this device's {most:?}, {items} in all"));
    }
    Ok(())
}

/// The given values in the form that a pipeline takes them.
fn specialize(
    reflection: &Reflection,
    spec: &[(u32, u32)],
) -> Result<(Vec<vk::SpecializationMapEntry>, Vec<u8>), String> {
    let mut entries: Vec<vk::SpecializationMapEntry> = Vec::with_capacity(spec.len());
    let mut values = Vec::with_capacity(spec.len() * 4);
    for (id, value) in spec {
        let Some(constant) = reflection.spec.iter().find(|constant| constant.id == *id) else {
            return Err(format!("it has no specialization constant {id}"));
        };
        if entries.iter().any(|entry| entry.constant_id == *id) {
            return Err(format!("specialization constant {id} is given twice"));
        }
        let bytes = constant.ty.bytes() as usize;
        if bytes > 4 {
            return Err(format!("specialization constant {id} is wider than 32 bits"));
        }
        entries.push(vk::SpecializationMapEntry {
            constant_id: *id,
            offset: values.len() as u32,
            // VUID-VkSpecializationMapEntry-constantID-00776: exactly the constant's size.
            size: bytes,
        });
        // The low bytes come first on every machine that Vulkan runs on, and narrow constants take those.
        values.extend_from_slice(&value.to_le_bytes()[..bytes]);
    }
    Ok((entries, values))
}
