//! Memory of the application's that a recording takes over at its beginning and gives back at its end: images, and what
//! another queue family owns.
//!
//! An image is copied to a buffer of the context's and back (module `acquire`). The halves of transfers of ownership keep
//! the layout; the application's halves do the same.

use ash::vk::{self, Handle as _};

use super::device::Device;
use crate::backend::{Acquisition, DeviceError, ForeignImage, StageScope};

const WHOLE: vk::ImageSubresourceRange = vk::ImageSubresourceRange {
    aspect_mask: vk::ImageAspectFlags::COLOR,
    base_mip_level: 0,
    level_count: 1,
    base_array_layer: 0,
    layer_count: 1,
};

/// What there is to do about a buffer before the first command and after the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct External {
    pub(super) image: Option<ExternalImage>,
    /// The other queue family that owns it between recordings.
    pub(super) owner: Option<u32>,
    /// Image and memory that were made for it, and go with the buffer.
    pub(super) made: Option<(vk::Image, vk::DeviceMemory)>,
}

/// An image of the application's that a buffer is copied from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExternalImage {
    pub(super) raw: vk::Image,
    width: u32,
    height: u32,
    pub(super) bytes: u64,
    pub(super) layout: vk::ImageLayout,
    pub(super) leave: vk::ImageLayout,
    pub(super) reads: bool,
    pub(super) writes: bool,
}

impl External {
    /// Destroys what was made for it.
    ///
    /// # Safety
    /// No unfinished submission uses it, and it is not used again.
    pub(super) unsafe fn destroy(&self, device: &Device) {
        let Some((image, memory)) = self.made else { return };
        // SAFETY: as the caller promises (VUID-vkDestroyImage-image-01000, VUID-vkFreeMemory-memory-00677).
        unsafe {
            device.raw().destroy_image(image, None);
            device.raw().free_memory(memory, None);
        }
    }

    pub(super) fn acquisition(&self) -> Acquisition {
        let image = self.image.as_ref();
        let copies = image.map_or(0, |image| u64::from(image.reads) + u64::from(image.writes));
        let stays = image
            .is_none_or(|image| image.layout == image.leave || image.layout == vk::ImageLayout::UNDEFINED);
        Acquisition {
            image_bytes: image.map_or(0, |image| image.bytes),
            copied: image.map_or(0, |image| image.bytes).saturating_mul(copies),
            once: self.owner.is_some() || !stays,
        }
    }
}

impl ExternalImage {
    /// The same of another image.
    pub(super) fn of(self, raw: vk::Image) -> ExternalImage {
        ExternalImage { raw, ..self }
    }

    /// The layout in which it is copied from.
    pub(super) fn source(&self) -> vk::ImageLayout {
        match self.layout {
            vk::ImageLayout::GENERAL => self.layout,
            _ => vk::ImageLayout::TRANSFER_SRC_OPTIMAL,
        }
    }

    /// The layout in which it is copied to.
    pub(super) fn target(&self) -> vk::ImageLayout {
        match self.leave {
            vk::ImageLayout::GENERAL => self.leave,
            _ => vk::ImageLayout::TRANSFER_DST_OPTIMAL,
        }
    }

    /// The layout between the first command and the last one.
    pub(super) fn within(&self) -> vk::ImageLayout {
        if self.reads { self.source() } else { self.layout }
    }

    pub(super) fn region(&self) -> vk::BufferImageCopy {
        vk::BufferImageCopy::default()
            .image_subresource(vk::ImageSubresourceLayers {
                aspect_mask: vk::ImageAspectFlags::COLOR,
                layer_count: 1,
                ..Default::default()
            })
            .image_extent(vk::Extent3D { width: self.width, height: self.height, depth: 1 })
    }

    pub(super) fn barrier(
        &self,
        old: vk::ImageLayout,
        new: vk::ImageLayout,
    ) -> vk::ImageMemoryBarrier<'static> {
        vk::ImageMemoryBarrier::default()
            .image(self.raw)
            .subresource_range(WHOLE)
            .old_layout(old)
            .new_layout(new)
            .src_queue_family_index(vk::QUEUE_FAMILY_IGNORED)
            .dst_queue_family_index(vk::QUEUE_FAMILY_IGNORED)
    }
}

/// The other family that owns a buffer between recordings; `None` where there is nothing to hand over.
///
/// # Errors
/// [`DeviceError::Unsupported`] for a family that the device does not have.
pub(super) fn other_owner(
    owner: Option<u32>,
    own: u32,
    families: u32,
    has_foreign: bool,
) -> Result<Option<u32>, DeviceError> {
    let Some(owner) = owner.filter(|owner| *owner != own) else { return Ok(None) };
    match owner {
        vk::QUEUE_FAMILY_EXTERNAL => Ok(Some(owner)),
        vk::QUEUE_FAMILY_FOREIGN_EXT if has_foreign => Ok(Some(owner)),
        vk::QUEUE_FAMILY_FOREIGN_EXT => Err(DeviceError::Unsupported {
            what: "owner VK_QUEUE_FAMILY_FOREIGN_EXT: make it with VK_EXT_queue_family_foreign".to_owned(),
        }),
        owner if owner < families => Ok(Some(owner)),
        owner => Err(DeviceError::Unsupported {
            what: format!("owner {owner}: it has {families} queue families, and no queue family {owner}"),
        }),
    }
}

/// Who else than the device owns memory that buffers of the context's own are made on: its families hand over single
/// buffers and images, of which the application has no handle here.
///
/// # Errors
/// [`DeviceError::Unsupported`] for a queue family of the device, or one that is none.
pub(super) fn outside_owner(
    owner: Option<u32>,
    own: u32,
    has_foreign: bool,
) -> Result<Option<u32>, DeviceError> {
    match other_owner(owner, own, u32::MAX - 3, has_foreign)? {
        None => Ok(None),
        Some(owner @ (vk::QUEUE_FAMILY_EXTERNAL | vk::QUEUE_FAMILY_FOREIGN_EXT)) => Ok(Some(owner)),
        Some(owner) => Err(DeviceError::Unsupported {
            what: format!(
                "queue family {owner} as the owner of memory: families hand over single buffers and images, \
                 which `import_buffer` and `import_image` take"
            ),
        }),
    }
}

/// As [`other_owner`], on this device.
pub(super) fn owner_on(device: &Device, owner: Option<u32>) -> Result<Option<u32>, DeviceError> {
    // SAFETY: a physical device of the instance.
    let families = unsafe {
        device.instance.functions().get_physical_device_queue_family_properties(device.physical).len()
    };
    let families = u32::try_from(families).unwrap_or(u32::MAX);
    other_owner(owner, device.family, families, device.has_foreign_family)
}

/// What was said of an image, checked as far as that alone tells.
pub(super) fn describe(
    image: &ForeignImage,
    (reads, writes): (bool, bool),
) -> Result<ExternalImage, DeviceError> {
    use vk::ImageUsageFlags as Usage;
    let refuse = |what: String| Err(DeviceError::Unsupported { what });
    let format = vk::Format::from_raw(image.format);
    let Some(texel) = texel_bytes(format) else {
        return refuse(format!(
            "images of format {format:?}: R8, R8G8, R8G8B8A8, B8G8R8A8 and float formats of 16 and 32 bits are taken; \
             copy others to a buffer"
        ));
    };
    let (width, height) = (image.width, image.height);
    if width == 0 || height == 0 {
        return refuse(format!("width {width} and height {height} of an image: give those it was made with"));
    }
    let bytes = u64::from(width).saturating_mul(u64::from(height)).saturating_mul(texel);
    let usage = Usage::from_raw(image.usage);
    for (needed, flag, does) in
        [(reads, Usage::TRANSFER_SRC, "read"), (writes, Usage::TRANSFER_DST, "written")]
    {
        if needed && !usage.contains(flag) {
            return refuse(format!(
                "an image to be {does} that was made without usage {flag:?}: add it to the image's usage"
            ));
        }
    }
    let (layout, leave) = (vk::ImageLayout::from_raw(image.layout), vk::ImageLayout::from_raw(image.leave));
    for (name, layout) in [("layout", layout), ("leave", leave)] {
        let undefined = layout == vk::ImageLayout::UNDEFINED;
        if undefined && (name == "leave" || reads) {
            return refuse(format!(
                "{name} UNDEFINED of an image: name the layout it is in{}",
                if name == "layout" { ", or import it for writing alone" } else { " after a run" }
            ));
        }
        let Some(needs) = usage_of(layout) else {
            return refuse(format!("{name} {layout:?} of an image of colours"));
        };
        if !needs.is_empty() && !usage.intersects(needs) {
            return refuse(format!("{name} {layout:?} of an image that was made without usage {needs:?}"));
        }
    }
    Ok(ExternalImage {
        raw: vk::Image::from_raw(image.handle),
        width,
        height,
        bytes,
        layout,
        leave,
        reads,
        writes,
    })
}

/// Bytes of a pixel, of formats whose pixels are copied as they are.
fn texel_bytes(format: vk::Format) -> Option<u64> {
    use vk::Format as F;
    Some(match format {
        F::R8_UNORM | F::R8_UINT | F::R8_SRGB => 1,
        F::R8G8_UNORM | F::R8G8_UINT | F::R16_SFLOAT => 2,
        F::R8G8B8A8_UNORM | F::R8G8B8A8_SRGB | F::R8G8B8A8_UINT => 4,
        F::B8G8R8A8_UNORM | F::B8G8R8A8_SRGB => 4,
        F::R16G16_SFLOAT | F::R32_SFLOAT => 4,
        F::R16G16B16A16_SFLOAT | F::R32G32_SFLOAT => 8,
        F::R32G32B32A32_SFLOAT => 16,
        _ => return None,
    })
}

/// The usages of which an image in a layout has one; none for layouts that any image may be in, and `None` for layouts that
/// images of colours are not in.
fn usage_of(layout: vk::ImageLayout) -> Option<vk::ImageUsageFlags> {
    use vk::{ImageLayout as L, ImageUsageFlags as U};
    Some(match layout {
        L::UNDEFINED | L::GENERAL | L::PRESENT_SRC_KHR => U::empty(),
        L::TRANSFER_SRC_OPTIMAL => U::TRANSFER_SRC,
        L::TRANSFER_DST_OPTIMAL => U::TRANSFER_DST,
        L::SHADER_READ_ONLY_OPTIMAL => U::SAMPLED | U::INPUT_ATTACHMENT,
        L::COLOR_ATTACHMENT_OPTIMAL => U::COLOR_ATTACHMENT,
        _ => return None,
    })
}

/// What the application does around a recording; `None` for all that it may do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Around {
    pub(super) before: Option<StageScope>,
    pub(super) after: Option<StageScope>,
}

pub(super) fn between_families(
    barrier: vk::ImageMemoryBarrier<'static>,
    from: u32,
    to: u32,
) -> vk::ImageMemoryBarrier<'static> {
    barrier.src_queue_family_index(from).dst_queue_family_index(to)
}

pub(super) fn buffer_between_families(
    raw: vk::Buffer,
    from: u32,
    to: u32,
) -> vk::BufferMemoryBarrier<'static> {
    vk::BufferMemoryBarrier::default()
        .buffer(raw)
        .offset(0)
        .size(vk::WHOLE_SIZE)
        .src_queue_family_index(from)
        .dst_queue_family_index(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: ForeignImage = ForeignImage {
        handle: 1,
        format: vk::Format::R8G8B8A8_UNORM.as_raw(),
        width: 4,
        height: 3,
        usage: vk::ImageUsageFlags::TRANSFER_SRC.as_raw() | vk::ImageUsageFlags::TRANSFER_DST.as_raw(),
        layout: vk::ImageLayout::GENERAL.as_raw(),
        leave: vk::ImageLayout::GENERAL.as_raw(),
        owner: None,
    };

    #[test]
    fn the_owner_is_a_family_of_the_device_or_someone_outside() {
        assert_eq!(other_owner(None, 0, 1, false), Ok(None));
        assert_eq!(other_owner(Some(0), 0, 1, false), Ok(None));
        assert_eq!(other_owner(Some(1), 0, 2, false), Ok(Some(1)));
        assert!(other_owner(Some(2), 0, 2, false).unwrap_err().to_string().contains("queue family 2"));
        let external = vk::QUEUE_FAMILY_EXTERNAL;
        assert_eq!(other_owner(Some(external), 0, 1, false), Ok(Some(external)));
        let foreign = Some(vk::QUEUE_FAMILY_FOREIGN_EXT);
        assert_eq!(other_owner(foreign, 0, 1, true), Ok(foreign));
        let refused = other_owner(foreign, 0, 1, false).unwrap_err().to_string();
        assert!(refused.contains("VK_EXT_queue_family_foreign"), "{refused}");
    }

    #[test]
    fn memory_is_owned_by_someone_outside_or_not_handed_over() {
        let external = Some(vk::QUEUE_FAMILY_EXTERNAL);
        assert_eq!(outside_owner(external, 0, false), Ok(external));
        assert_eq!((outside_owner(None, 0, false), outside_owner(Some(2), 2, false)), (Ok(None), Ok(None)));
        let foreign = Some(vk::QUEUE_FAMILY_FOREIGN_EXT);
        assert_eq!(outside_owner(foreign, 0, true), Ok(foreign));
        assert!(outside_owner(foreign, 0, false).is_err());
        let refused = outside_owner(Some(1), 0, true).unwrap_err().to_string();
        assert!(refused.contains("import_buffer"), "{refused}");
    }

    #[test]
    fn a_buffer_is_handed_over_whole_from_one_family_to_the_other() {
        let barrier = buffer_between_families(vk::Buffer::from_raw(7), 3, 1);
        assert_eq!((barrier.src_queue_family_index, barrier.dst_queue_family_index), (3, 1));
        assert_eq!((barrier.offset, barrier.size), (0, vk::WHOLE_SIZE));
        let image = describe(&GOOD, (true, true)).unwrap();
        let barrier = between_families(image.barrier(image.layout, image.layout), 3, 1);
        assert_eq!((barrier.src_queue_family_index, barrier.dst_queue_family_index), (3, 1));
        assert_eq!((barrier.old_layout, barrier.new_layout), (image.layout, image.layout));
    }

    #[test]
    fn a_layout_is_kept_where_copies_take_it() {
        let image = describe(&GOOD, (true, true)).unwrap();
        assert_eq!((image.source(), image.target()), (vk::ImageLayout::GENERAL, vk::ImageLayout::GENERAL));
        assert_eq!(
            External { image: Some(image), ..External::default() }.acquisition(),
            Acquisition { image_bytes: 48, copied: 2 * 48, once: false }
        );
        let left = ForeignImage { leave: vk::ImageLayout::TRANSFER_SRC_OPTIMAL.as_raw(), ..GOOD };
        let image = describe(&left, (true, false)).unwrap();
        assert_eq!(
            External { image: Some(image), ..External::default() }.acquisition(),
            Acquisition { image_bytes: 48, copied: 48, once: true }
        );
    }

    #[test]
    fn an_image_whose_layout_changes_is_for_one_recording() {
        let [general, source, undefined] =
            [vk::ImageLayout::GENERAL, vk::ImageLayout::TRANSFER_SRC_OPTIMAL, vk::ImageLayout::UNDEFINED];
        let once = |layout: vk::ImageLayout, leave: vk::ImageLayout| {
            let image = ForeignImage { layout: layout.as_raw(), leave: leave.as_raw(), ..GOOD };
            let image = describe(&image, (false, true)).unwrap();
            External { image: Some(image), ..External::default() }.acquisition().once
        };
        assert!(once(general, source) && !once(undefined, source) && !once(source, source));
    }

    #[test]
    fn what_is_wrong_with_an_image_is_named() {
        let undefined = vk::ImageLayout::UNDEFINED.as_raw();
        let depth = vk::ImageLayout::DEPTH_STENCIL_ATTACHMENT_OPTIMAL.as_raw();
        let sampled = vk::ImageLayout::SHADER_READ_ONLY_OPTIMAL.as_raw();
        for (image, text) in [
            (ForeignImage { format: vk::Format::D32_SFLOAT.as_raw(), ..GOOD }, "format D32_SFLOAT"),
            (ForeignImage { width: 0, ..GOOD }, "width 0"),
            (ForeignImage { usage: 0, ..GOOD }, "usage TRANSFER_SRC"),
            (ForeignImage { layout: undefined, ..GOOD }, "layout UNDEFINED"),
            (ForeignImage { leave: undefined, ..GOOD }, "leave UNDEFINED"),
            (ForeignImage { leave: depth, ..GOOD }, "leave DEPTH"),
            (ForeignImage { layout: sampled, ..GOOD }, "without usage"),
        ] {
            let error = describe(&image, (true, true)).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        let unread = ForeignImage { layout: undefined, ..GOOD };
        assert!(describe(&unread, (false, true)).is_ok());
    }
}
