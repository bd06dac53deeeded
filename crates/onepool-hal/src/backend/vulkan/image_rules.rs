//! The rules of linear images in buffers, learned from what the driver says of some.

use ash::vk;

use super::types::BUFFER_USAGE;
use crate::backend::DeviceInfo;
use onepool_core::memory::image::{Grain, ImageRules, Texel, TexelSet};

/// Sizes whose rows and bytes are asked of the driver to learn its rules.
const SIZES: [(u32, u32); 10] =
    [(1, 1), (3, 2), (5, 3), (7, 5), (16, 4), (33, 9), (67, 5), (100, 10), (257, 31), (1000, 17)];

pub(super) fn format(texel: Texel) -> vk::Format {
    match texel {
        Texel::R16F => vk::Format::R16_SFLOAT,
        Texel::R32F => vk::Format::R32_SFLOAT,
        Texel::Rgba16F => vk::Format::R16G16B16A16_SFLOAT,
        Texel::Rgba32F => vk::Format::R32G32B32A32_SFLOAT,
    }
}

pub(super) fn image_info(
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

pub(super) fn usage(rules: &ImageRules, texel: Texel) -> vk::ImageUsageFlags {
    let sampled = rules.sampled.contains(texel).then_some(vk::ImageUsageFlags::SAMPLED);
    let stored = rules.stored.contains(texel).then_some(vk::ImageUsageFlags::STORAGE);
    sampled.unwrap_or_default() | stored.unwrap_or_default()
}

pub(super) fn measure(
    device: &ash::Device,
    image: vk::Image,
) -> (vk::MemoryRequirements, vk::SubresourceLayout) {
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
