//! Linear images that alias a buffer's memory.
//!
//! A linear image in `VK_IMAGE_LAYOUT_GENERAL` and a buffer are both host-accessible, so that they interpret the
//! memory that they share alike, and what is written through one is read through the other after an ordinary
//! memory barrier (Vulkan specification, "Memory Aliasing"). Images of imported memory would have to begin as
//! UNDEFINED after their contents are there, so there are none.

use ash::vk;

use super::device::Device;
use super::types::BUFFER_USAGE;
use crate::backend::{DeviceError, DeviceInfo};
use onepool_core::memory::image::{Grain, ImageDesc, ImageRules, Texel, TexelSet};

/// Sizes whose rows and bytes are asked of the driver to learn its rules.
const SIZES: [(u32, u32); 10] =
    [(1, 1), (3, 2), (5, 3), (7, 5), (16, 4), (33, 9), (67, 5), (100, 10), (257, 31), (1000, 17)];

const WHOLE: vk::ImageSubresourceRange = vk::ImageSubresourceRange {
    aspect_mask: vk::ImageAspectFlags::COLOR,
    base_mip_level: 0,
    level_count: 1,
    base_array_layer: 0,
    layer_count: 1,
};

fn format(texel: Texel) -> vk::Format {
    match texel {
        Texel::R16F => vk::Format::R16_SFLOAT,
        Texel::R32F => vk::Format::R32_SFLOAT,
        Texel::Rgba16F => vk::Format::R16G16B16A16_SFLOAT,
        Texel::Rgba32F => vk::Format::R32G32B32A32_SFLOAT,
    }
}

fn image_info(
    texel: Texel,
    width: u32,
    height: u32,
    usage: vk::ImageUsageFlags,
) -> vk::ImageCreateInfo<'static> {
    vk::ImageCreateInfo::default()
        .image_type(vk::ImageType::TYPE_2D)
        .format(format(texel))
        .extent(vk::Extent3D { width, height, depth: 1 })
        .mip_levels(1)
        .array_layers(1)
        .samples(vk::SampleCountFlags::TYPE_1)
        .tiling(vk::ImageTiling::LINEAR)
        .usage(usage)
        .sharing_mode(vk::SharingMode::EXCLUSIVE)
        .initial_layout(vk::ImageLayout::UNDEFINED)
}

fn usage(rules: &ImageRules, texel: Texel) -> vk::ImageUsageFlags {
    let sampled = rules.sampled.contains(texel).then_some(vk::ImageUsageFlags::SAMPLED);
    let stored = rules.stored.contains(texel).then_some(vk::ImageUsageFlags::STORAGE);
    sampled.unwrap_or_default() | stored.unwrap_or_default()
}

/// An image over part of a buffer's memory, and the whole of it as kernels see it.
pub(super) struct Image {
    raw: vk::Image,
    view: vk::ImageView,
}

impl Image {
    /// The image whose first texel is at `offset` of `memory`; the buffer that it aliases ends at `end`.
    pub(super) fn new(
        device: &Device,
        memory: vk::DeviceMemory,
        offset: u64,
        end: u64,
        image: &ImageDesc,
    ) -> Result<Image, DeviceError> {
        let refuse = |what: &str| DeviceError::Unsupported { what: format!("{what} of {image:?}") };
        let rules = device.info.images.as_ref().ok_or_else(|| refuse("an image in a buffer"))?;
        if image.width > rules.max_width || image.height > rules.max_height {
            return Err(refuse("the size"));
        }
        let usage = usage(rules, image.texel);
        if usage.is_empty() {
            return Err(refuse("the format"));
        }
        let info = image_info(image.texel, image.width, image.height, usage);
        // SAFETY: format, usage and size were reported as possible with linear tiling
        // (VUID-VkImageCreateInfo-imageCreateMaxMipLevels-02251, -extent-02252, -extent-02253).
        let raw = unsafe { device.raw().create_image(&info, None) }
            .map_err(|code| device.error("vkCreateImage", code, image.bytes()))?;
        let mut made = Image { raw, view: vk::ImageView::null() };
        let result = made.bind(device, memory, offset, end, image);
        if let Err(error) = result {
            // SAFETY: nothing uses the parts that were made.
            unsafe { made.destroy(device) };
            return Err(error);
        }
        Ok(made)
    }

    fn bind(
        &mut self,
        device: &Device,
        memory: vk::DeviceMemory,
        offset: u64,
        end: u64,
        image: &ImageDesc,
    ) -> Result<(), DeviceError> {
        let (needs, layout) = measure(&device.raw(), self.raw);
        let fits = offset.is_multiple_of(needs.alignment) && offset.saturating_add(needs.size) <= end;
        if !fits || layout.offset != 0 || layout.row_pitch != image.row_pitch {
            let what = format!(
                "an image at byte {offset} of memory that ends at {end}, with rows of {} bytes: the driver needs {} \
                 bytes aligned to {}, and rows of {}",
                image.row_pitch, needs.size, needs.alignment, layout.row_pitch
            );
            return Err(DeviceError::Unsupported { what });
        }
        // SAFETY: a fresh image; memory of a type that `probe` found fit for images wherever buffers lie, an
        // offset and a size that were checked (VUID-vkBindImageMemory-memory-01047, -memoryOffset-01048, -size-01049).
        unsafe { device.raw().bind_image_memory(self.raw, memory, offset) }
            .map_err(|code| device.error("vkBindImageMemory", code, needs.size))?;
        let info = vk::ImageViewCreateInfo::default()
            .image(self.raw)
            .view_type(vk::ImageViewType::TYPE_2D)
            .format(format(image.texel))
            .subresource_range(WHOLE);
        // SAFETY: the image is bound (VUID-VkImageViewCreateInfo-image-01020) and has a usage that views need.
        self.view = unsafe { device.raw().create_image_view(&info, None) }
            .map_err(|code| device.error("vkCreateImageView", code, 0))?;
        Ok(())
    }

    /// The image itself.
    pub(super) fn raw(&self) -> vk::Image {
        self.raw
    }

    /// What a descriptor holds.
    pub(super) fn descriptor(&self, sampler: vk::Sampler) -> vk::DescriptorImageInfo {
        vk::DescriptorImageInfo { sampler, image_view: self.view, image_layout: vk::ImageLayout::GENERAL }
    }

    /// Destroys the image; its memory is the buffer's.
    ///
    /// # Safety
    /// No unfinished submission uses it, and it is not used again.
    pub(super) unsafe fn destroy(&self, device: &Device) {
        // SAFETY: as the caller promises (VUID-vkDestroyImageView-imageView-01026, VUID-vkDestroyImage-image-01000);
        // null handles are ignored.
        unsafe {
            device.raw().destroy_image_view(self.view, None);
            device.raw().destroy_image(self.raw, None);
        }
    }
}

fn measure(device: &ash::Device, image: vk::Image) -> (vk::MemoryRequirements, vk::SubresourceLayout) {
    let first =
        vk::ImageSubresource { aspect_mask: vk::ImageAspectFlags::COLOR, mip_level: 0, array_layer: 0 };
    // SAFETY: a live image of this device with linear tiling (VUID-vkGetImageSubresourceLayout-image-07790).
    unsafe {
        (device.get_image_memory_requirements(image), device.get_image_subresource_layout(image, first))
    }
}

/// Learns the device's rules for images in buffers, by asking for the layout of some, and makes the samplers;
/// nothing where there is no rule that explains every answer.
pub(super) fn probe(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    device: &ash::Device,
    info: &mut DeviceInfo,
) -> Option<[vk::Sampler; 2]> {
    let features = |texel: Texel| {
        // SAFETY: the device was enumerated by this instance.
        unsafe { instance.get_physical_device_format_properties(physical, format(texel)) }
            .linear_tiling_features
    };
    let with = |flags: vk::FormatFeatureFlags| -> TexelSet {
        Texel::ALL.into_iter().filter(|texel| features(*texel).contains(flags)).collect()
    };
    // SAFETY: as above.
    let limits = unsafe { instance.get_physical_device_properties(physical) }.limits;
    let mut rules = ImageRules {
        pitch: Grain::Bytes(1),
        base: Grain::Bytes(1),
        rows: 1,
        max_width: limits.max_image_dimension2_d,
        max_height: limits.max_image_dimension2_d,
        max_texels: u64::MAX,
        sampled: with(vk::FormatFeatureFlags::SAMPLED_IMAGE),
        stored: with(vk::FormatFeatureFlags::STORAGE_IMAGE),
        filtered: with(vk::FormatFeatureFlags::SAMPLED_IMAGE_FILTER_LINEAR),
        filter_bits: limits.sub_texel_precision_bits,
        over_imports: false,
    };
    let buffer_types = buffer_types(device)?;
    let mut answers = Vec::new();
    for texel in Texel::ALL {
        let usage = usage(&rules, texel);
        if usage.is_empty() {
            continue;
        }
        // SAFETY: as above.
        let answer = unsafe {
            instance.get_physical_device_image_format_properties(
                physical,
                format(texel),
                vk::ImageType::TYPE_2D,
                vk::ImageTiling::LINEAR,
                usage,
                vk::ImageCreateFlags::empty(),
            )
        };
        let Ok(vk::ImageFormatProperties { max_extent: most, .. }) = answer else {
            for set in [&mut rules.sampled, &mut rules.stored, &mut rules.filtered] {
                *set = set.without(texel);
            }
            continue;
        };
        rules.max_width = rules.max_width.min(most.width);
        rules.max_height = rules.max_height.min(most.height);
        for (width, height) in SIZES.into_iter().filter(|s| s.0 <= most.width && s.1 <= most.height) {
            // SAFETY: as in `Image::new`.
            let image =
                unsafe { device.create_image(&image_info(texel, width, height, usage), None) }.ok()?;
            let (needs, layout) = measure(device, image);
            // SAFETY: it was made here and nothing uses it.
            unsafe { device.destroy_image(image, None) };
            // Wherever a buffer may lie an image must be able to.
            if layout.offset != 0 || buffer_types & !needs.memory_type_bits != 0 {
                return None;
            }
            answers.push(Answer { texel, width, height, pitch: layout.row_pitch, needs });
        }
    }
    fit(&mut rules, &answers)?;
    let samplers = [vk::Filter::NEAREST, vk::Filter::LINEAR].map(|filter| sampler(device, filter));
    let [Ok(nearest), Ok(linear)] = samplers else {
        for sampler in samplers.into_iter().flatten() {
            // SAFETY: it was made here and nothing uses it.
            unsafe { device.destroy_sampler(sampler, None) };
        }
        return None;
    };
    info.images = Some(rules);
    Some([nearest, linear])
}

/// The memory types that a buffer may lie in.
fn buffer_types(device: &ash::Device) -> Option<u32> {
    let info = vk::BufferCreateInfo::default().size(4096).usage(BUFFER_USAGE);
    // SAFETY: the size is not 0, VUID-VkBufferCreateInfo-size-00912.
    let buffer = unsafe { device.create_buffer(&info, None) }.ok()?;
    // SAFETY: it was made here, and nothing uses it.
    unsafe {
        let types = device.get_buffer_memory_requirements(buffer).memory_type_bits;
        device.destroy_buffer(buffer, None);
        Some(types)
    }
}

/// Places are counted in texels, and beyond the edge is the edge's texel.
fn sampler(device: &ash::Device, filter: vk::Filter) -> Result<vk::Sampler, vk::Result> {
    let edge = vk::SamplerAddressMode::CLAMP_TO_EDGE;
    let info = vk::SamplerCreateInfo::default()
        .mag_filter(filter)
        .min_filter(filter)
        .mipmap_mode(vk::SamplerMipmapMode::NEAREST)
        .address_mode_u(edge)
        .address_mode_v(edge)
        .address_mode_w(edge)
        .unnormalized_coordinates(true);
    // SAFETY: what unnormalized coordinates ask for: one filter, no level, no comparison, no anisotropy
    // (VUID-VkSamplerCreateInfo-unnormalizedCoordinates-01072 to -01077).
    unsafe { device.create_sampler(&info, None) }
}

/// What the driver says of an image.
#[derive(Clone, Copy, Debug)]
struct Answer {
    texel: Texel,
    width: u32,
    height: u32,
    pitch: u64,
    needs: vk::MemoryRequirements,
}

/// The smallest alignment of rows, and number of rows and alignment of memory, that explain all answers.
fn fit(rules: &mut ImageRules, answers: &[Answer]) -> Option<()> {
    if answers.is_empty() {
        return None;
    }
    let describe =
        |rules: &ImageRules, a: &Answer| rules.describe(a.texel, a.width.into(), a.height.into()).ok();
    let pitch = (0..=13).map(|shift| Grain::Bytes(1 << shift)).find(|grain| {
        let rules = ImageRules { pitch: *grain, ..rules.clone() };
        answers.iter().all(|a| describe(&rules, a).is_some_and(|image| image.row_pitch == a.pitch))
    })?;
    rules.pitch = pitch;
    rules.rows = [1, 2, 4, 8, 16, 32].into_iter().find(|rows| {
        let rules = ImageRules { rows: *rows, ..rules.clone() };
        answers
            .iter()
            .all(|a| describe(&rules, a).is_some_and(|image| rules.memory_bytes(&image) >= a.needs.size))
    })?;
    rules.base = Grain::Bytes(answers.iter().map(|a| a.needs.alignment).max().unwrap_or(1));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(pitch: u64, rows: u64, slack: u64) -> Vec<Answer> {
        let sizes = Texel::ALL.into_iter().flat_map(|t| SIZES.map(|s| (t, s)));
        let answer = |(texel, (width, height)): (Texel, (u32, u32))| {
            let pitch = (u64::from(width) * texel.bytes()).next_multiple_of(pitch);
            let size = pitch * u64::from(height).next_multiple_of(rows) + slack;
            let needs = vk::MemoryRequirements { size, alignment: 64, memory_type_bits: 1 };
            Answer { texel, width, height, pitch, needs }
        };
        sizes.map(answer).collect()
    }

    fn blank() -> ImageRules {
        ImageRules {
            pitch: Grain::Bytes(1),
            base: Grain::Bytes(1),
            rows: 1,
            max_width: 4096,
            max_height: 4096,
            max_texels: u64::MAX,
            sampled: TexelSet::ALL,
            stored: TexelSet::ALL,
            filtered: TexelSet::ALL,
            filter_bits: 8,
            over_imports: false,
        }
    }

    #[test]
    fn rules_are_learned_from_layouts() {
        for (pitch, rows) in [(64, 4), (256, 1), (16, 2)] {
            let mut rules = blank();
            fit(&mut rules, &answers(pitch, rows, 0)).unwrap();
            let found = (rules.pitch.bytes(Texel::R16F), u64::from(rules.rows), rules.base);
            assert_eq!(found, (pitch, rows, Grain::Bytes(64)));
        }
    }

    #[test]
    fn an_answer_that_no_rule_explains_means_no_images() {
        assert_eq!(fit(&mut blank(), &answers(48, 1, 0)), None);
        assert_eq!(fit(&mut blank(), &answers(64, 1, 1 << 20)), None);
        assert_eq!(fit(&mut blank(), &[]), None);
    }
}
