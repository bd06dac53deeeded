//! Images in dma-bufs, laid out as a DRM format modifier says.
//!
//! Drivers of other devices own them between recordings (`VK_QUEUE_FAMILY_FOREIGN_EXT`), in layout `GENERAL`.

use ash::vk;

use super::device::Device;
use super::external::{External, describe};
use super::external_image::stand_in;
use super::fd::{fd_types, own};
use super::import::refuse;
use super::importable::DMA_BUF;
use super::memory::{Buffer, Pool};
use crate::backend::{DeviceError, ForeignDmaBufImage, ForeignImage};
use onepool_core::memory::os::Descriptor;

/// Rows one after the other.
const LINEAR: u64 = 0;

fn unsupported<T>(what: String) -> Result<T, DeviceError> {
    Err(DeviceError::Unsupported { what })
}

/// What was said of the image as that of an application's own image, with usage to be copied.
fn as_image(image: &ForeignDmaBufImage, (reads, writes): (bool, bool)) -> ForeignImage {
    let mut usage = vk::ImageUsageFlags::empty();
    if reads {
        usage |= vk::ImageUsageFlags::TRANSFER_SRC;
    }
    if writes {
        usage |= vk::ImageUsageFlags::TRANSFER_DST;
    }
    let general = vk::ImageLayout::GENERAL.as_raw();
    ForeignImage {
        handle: 0,
        format: image.format,
        width: image.width,
        height: image.height,
        usage: usage.as_raw(),
        layout: general,
        leave: general,
        owner: Some(vk::QUEUE_FAMILY_FOREIGN_EXT),
    }
}

/// Checks the planes as far as numbers tell; `bytes` are those of all pixels.
fn check_planes(image: &ForeignDmaBufImage, bytes: u64) -> Result<(), DeviceError> {
    let count = image.plane_count;
    let Some(planes) = image.planes.get(..count).filter(|planes| !planes.is_empty()) else {
        return unsupported(format!("plane_count {count} of an image: a modifier has 1 to 4 memory planes"));
    };
    for (at, plane) in planes.iter().enumerate() {
        if plane.row_pitch == 0 || plane.offset >= image.allocation_bytes {
            return unsupported(format!(
                "plane {at} at byte {} with rows of {} bytes, in a dma-buf of {}",
                plane.offset, plane.row_pitch, image.allocation_bytes
            ));
        }
    }
    if image.modifier != LINEAR {
        return Ok(());
    }
    let (rows, row) = (u64::from(image.height), bytes / u64::from(image.height.max(1)));
    let pitch = planes[0].row_pitch;
    if count != 1 || pitch < row {
        return unsupported(format!(
            "{count} planes with rows of {pitch} bytes under modifier LINEAR: one plane, whose rows have at least {row} bytes"
        ));
    }
    let end =
        rows.saturating_sub(1).saturating_mul(pitch).saturating_add(row).saturating_add(planes[0].offset);
    match end <= image.allocation_bytes {
        true => Ok(()),
        false => Err(DeviceError::Limit {
            what: "the end of an image in a dma-buf",
            asked: end,
            limit: image.allocation_bytes,
        }),
    }
}

/// A buffer that stands for the image, which is made of the dma-buf.
///
/// # Safety
/// As [`ContextBackend::import_buffer`](crate::backend::ContextBackend::import_buffer).
pub(super) unsafe fn import(
    device: &Device,
    pool: &Pool,
    given: &ForeignDmaBufImage,
    access: (bool, bool),
) -> Result<Buffer, DeviceError> {
    let image = as_image(given, access);
    let described = describe(&image, access)?;
    check_planes(given, described.bytes)?;
    if device.dma_bufs.is_none() || !device.has_modifiers || !device.has_foreign_family {
        return unsupported(
            "images in dma-bufs: it needs VK_EXT_image_drm_format_modifier, VK_EXT_external_memory_dma_buf and \
             VK_EXT_queue_family_foreign"
                .to_owned(),
        );
    }
    // SAFETY: as the caller promises.
    let fd = unsafe { own(given.fd)? };
    check_modifier(&modifiers(device, image.format), given)?;
    check_format(device, given, &image)?;
    let planes = given
        .planes
        .map(|plane| vk::SubresourceLayout::default().offset(plane.offset).row_pitch(plane.row_pitch));
    let mut layout = vk::ImageDrmFormatModifierExplicitCreateInfoEXT::default()
        .drm_format_modifier(given.modifier)
        .plane_layouts(&planes[..given.plane_count]);
    let mut external = vk::ExternalMemoryImageCreateInfo::default().handle_types(DMA_BUF);
    let info = vk::ImageCreateInfo::default()
        .image_type(vk::ImageType::TYPE_2D)
        .format(vk::Format::from_raw(image.format))
        .extent(vk::Extent3D { width: image.width, height: image.height, depth: 1 })
        .mip_levels(1)
        .array_layers(1)
        .samples(vk::SampleCountFlags::TYPE_1)
        .tiling(vk::ImageTiling::DRM_FORMAT_MODIFIER_EXT)
        .usage(vk::ImageUsageFlags::from_raw(image.usage))
        .push_next(&mut layout)
        .push_next(&mut external);
    // SAFETY: the extension is enabled, and format, usage and modifier were reported as importable
    // (VUID-VkImageCreateInfo-tiling-02353, VUID-VkImageDrmFormatModifierExplicitCreateInfoEXT-drmFormatModifier-02264).
    let raw = unsafe { device.raw().create_image(&info, None) }
        .map_err(|code| refuse(device, "vkCreateImage", code))?;
    let mut external = External {
        image: Some(described.of(raw)),
        owner: image.owner,
        made: Some((raw, vk::DeviceMemory::null())),
    };
    // SAFETY: as the caller promises; a fresh image.
    let made = unsafe { bind(device, given, raw, fd) }.and_then(|memory| {
        external.made = Some((raw, memory));
        stand_in(device, pool, described.bytes, external)
    });
    made.inspect_err(|_| {
        // SAFETY: nothing uses the image.
        unsafe { external.destroy(device) };
    })
}

/// The modifiers that the driver has for a format.
fn modifiers(device: &Device, format: i32) -> Vec<vk::DrmFormatModifierPropertiesEXT> {
    let (functions, format) = (device.instance.functions(), vk::Format::from_raw(format));
    let mut list = vk::DrmFormatModifierPropertiesListEXT::default();
    let mut found = vk::FormatProperties2::default().push_next(&mut list);
    // SAFETY: a physical device of the instance with the extension of the structure; first the count alone.
    unsafe { functions.get_physical_device_format_properties2(device.physical, format, &mut found) };
    let mut all =
        vec![vk::DrmFormatModifierPropertiesEXT::default(); list.drm_format_modifier_count as usize];
    let mut list = vk::DrmFormatModifierPropertiesListEXT::default().drm_format_modifier_properties(&mut all);
    let mut found = vk::FormatProperties2::default().push_next(&mut list);
    // SAFETY: as above, with room for as many as there are.
    unsafe { functions.get_physical_device_format_properties2(device.physical, format, &mut found) };
    let count = list.drm_format_modifier_count as usize;
    all.truncate(count);
    all
}

/// Whether the driver has the modifier with as many memory planes
/// (VUID-VkImageDrmFormatModifierExplicitCreateInfoEXT-drmFormatModifierPlaneCount-02265).
fn check_modifier(
    all: &[vk::DrmFormatModifierPropertiesEXT],
    given: &ForeignDmaBufImage,
) -> Result<(), DeviceError> {
    let (modifier, count) = (given.modifier, given.plane_count);
    let Some(found) = all.iter().find(|each| each.drm_format_modifier == modifier) else {
        return unsupported(format!(
            "modifier {modifier:#x} for images of format {:?}: ask its driver for the modifiers that it has",
            vk::Format::from_raw(given.format)
        ));
    };
    match found.drm_format_modifier_plane_count as usize == count {
        true => Ok(()),
        false => unsupported(format!(
            "{count} memory planes of an image with modifier {modifier:#x}, which has {}",
            found.drm_format_modifier_plane_count
        )),
    }
}

/// Whether the image fits into the dma-buf.
fn check_size(needed: u64, given: &ForeignDmaBufImage) -> Result<(), DeviceError> {
    match needed <= given.allocation_bytes {
        true => Ok(()),
        false => Err(DeviceError::Limit {
            what: "the size of an image in a dma-buf",
            asked: needed,
            limit: given.allocation_bytes,
        }),
    }
}

/// Whether the driver makes such an image of a dma-buf.
fn check_format(
    device: &Device,
    given: &ForeignDmaBufImage,
    image: &ForeignImage,
) -> Result<(), DeviceError> {
    let mut modifier = vk::PhysicalDeviceImageDrmFormatModifierInfoEXT::default()
        .drm_format_modifier(given.modifier)
        .sharing_mode(vk::SharingMode::EXCLUSIVE);
    let mut external = vk::PhysicalDeviceExternalImageFormatInfo::default().handle_type(DMA_BUF);
    let info = vk::PhysicalDeviceImageFormatInfo2::default()
        .format(vk::Format::from_raw(image.format))
        .ty(vk::ImageType::TYPE_2D)
        .tiling(vk::ImageTiling::DRM_FORMAT_MODIFIER_EXT)
        .usage(vk::ImageUsageFlags::from_raw(image.usage))
        .push_next(&mut modifier)
        .push_next(&mut external);
    let mut found_external = vk::ExternalImageFormatProperties::default();
    let mut found = vk::ImageFormatProperties2::default().push_next(&mut found_external);
    let functions = device.instance.functions();
    // SAFETY: a physical device of the instance with the extensions of the structures.
    let asked =
        unsafe { functions.get_physical_device_image_format_properties2(device.physical, &info, &mut found) };
    let most = found.image_format_properties.max_extent;
    let features = found_external.external_memory_properties.external_memory_features;
    let fits = image.width <= most.width && image.height <= most.height;
    match asked.is_ok() && fits && features.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE) {
        true => Ok(()),
        false => unsupported(format!(
            "images of format {:?}, {} x {}, with modifier {:#x} in dma-bufs: ask its driver for the modifiers that it has",
            vk::Format::from_raw(image.format),
            image.width,
            image.height,
            given.modifier
        )),
    }
}

/// The memory of the dma-buf, bound to the image.
///
/// # Safety
/// As [`import`]; `raw` is a fresh image made for it.
unsafe fn bind(
    device: &Device,
    given: &ForeignDmaBufImage,
    raw: vk::Image,
    fd: Descriptor,
) -> Result<vk::DeviceMemory, DeviceError> {
    // SAFETY: the image was made on this device.
    let needs = unsafe { device.raw().get_image_memory_requirements(raw) };
    check_size(needs.size, given)?;
    let bits = needs.memory_type_bits & fd_types(device, &fd)?;
    if bits == 0 {
        return unsupported("a memory type for both the image and the dma-buf".to_owned());
    }
    let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().image(raw);
    let mut import = vk::ImportMemoryFdInfoKHR::default().handle_type(DMA_BUF).fd(fd.number());
    let info = vk::MemoryAllocateInfo::default()
        .allocation_size(needs.size)
        .memory_type_index(bits.trailing_zeros())
        .push_next(&mut dedicated)
        .push_next(&mut import);
    // SAFETY: a dma-buf, as the caller promises, of a type that it and the image allow
    // (VUID-VkImportMemoryFdInfoKHR-handleType-00667, VUID-VkMemoryDedicatedAllocateInfo-image-01878).
    let memory = unsafe { device.raw().allocate_memory(&info, None) }
        .map_err(|code| refuse(device, "vkAllocateMemory", code))?;
    // The driver's now.
    let _ = fd.into_number();
    // SAFETY: fresh image and memory, of its size (VUID-vkBindImageMemory-memory-02989).
    if let Err(code) = unsafe { device.raw().bind_image_memory(raw, memory, 0) } {
        // SAFETY: nothing uses the memory.
        unsafe { device.raw().free_memory(memory, None) };
        return Err(refuse(device, "vkBindImageMemory", code));
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::DmaBufPlane;

    const GOOD: ForeignDmaBufImage = ForeignDmaBufImage {
        fd: 5,
        allocation_bytes: 4 * 64 * 8,
        format: vk::Format::B8G8R8A8_UNORM.as_raw(),
        width: 16,
        height: 8,
        modifier: LINEAR,
        planes: [DmaBufPlane { offset: 0, row_pitch: 256 }; 4],
        plane_count: 1,
    };

    #[test]
    fn planes_that_cannot_be_are_refused() {
        let bytes = 16 * 8 * 4;
        check_planes(&GOOD, bytes).unwrap();
        let plane = |offset, row_pitch| [DmaBufPlane { offset, row_pitch }; 4];
        for (image, text) in [
            (ForeignDmaBufImage { plane_count: 0, ..GOOD }, "plane_count 0"),
            (ForeignDmaBufImage { plane_count: 5, ..GOOD }, "plane_count 5"),
            (ForeignDmaBufImage { plane_count: 2, ..GOOD }, "2 planes"),
            (ForeignDmaBufImage { planes: plane(0, 0), ..GOOD }, "rows of 0 bytes"),
            (ForeignDmaBufImage { planes: plane(0, 60), ..GOOD }, "at least 64 bytes"),
            (ForeignDmaBufImage { planes: plane(4096, 256), ..GOOD }, "at byte 4096"),
            (ForeignDmaBufImage { planes: plane(1024, 256), ..GOOD }, "the end of an image"),
        ] {
            let error = check_planes(&image, bytes).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        // What a tiling makes of pitches is the driver's.
        check_planes(&ForeignDmaBufImage { modifier: 1, plane_count: 2, planes: plane(0, 8), ..GOOD }, bytes)
            .unwrap();
    }

    #[test]
    fn a_modifier_has_the_planes_that_the_driver_says() {
        let has = |modifier, planes| vk::DrmFormatModifierPropertiesEXT {
            drm_format_modifier: modifier,
            drm_format_modifier_plane_count: planes,
            ..Default::default()
        };
        let all = [has(LINEAR, 1), has(9, 2)];
        check_modifier(&all, &GOOD).unwrap();
        let nine = ForeignDmaBufImage { modifier: 9, plane_count: 2, ..GOOD };
        check_modifier(&all, &nine).unwrap();
        for (image, text) in [
            (
                ForeignDmaBufImage { plane_count: 1, ..nine },
                "1 memory planes of an image with modifier 0x9, which has 2",
            ),
            (ForeignDmaBufImage { modifier: 7, ..GOOD }, "modifier 0x7 for images of format B8G8R8A8_UNORM"),
        ] {
            let error = check_modifier(&all, &image).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn an_image_is_no_larger_than_its_dma_buf() {
        check_size(GOOD.allocation_bytes, &GOOD).unwrap();
        let error = check_size(GOOD.allocation_bytes + 1, &GOOD).unwrap_err();
        assert!(matches!(error, DeviceError::Limit { limit: 2048, .. }), "{error}");
    }

    #[test]
    fn the_image_is_a_foreign_drivers_between_runs() {
        let image = as_image(&GOOD, (true, false));
        assert_eq!(image.owner, Some(vk::QUEUE_FAMILY_FOREIGN_EXT));
        assert_eq!(image.usage, vk::ImageUsageFlags::TRANSFER_SRC.as_raw());
        assert!(describe(&image, (true, false)).is_ok());
        let depth = ForeignDmaBufImage { format: vk::Format::D16_UNORM.as_raw(), ..GOOD };
        assert!(describe(&as_image(&depth, (true, false)), (true, false)).is_err());
    }
}
