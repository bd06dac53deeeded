//! Linear images that alias a buffer's memory.
//!
//! A linear image in `VK_IMAGE_LAYOUT_GENERAL` and a buffer are both host-accessible, so that they interpret the
//! memory that they share alike, and what is written through one is read through the other after an ordinary
//! memory barrier (Vulkan specification, "Memory Aliasing"). Images of imported memory would have to begin as
//! UNDEFINED after their contents are there, so there are none.

use ash::vk;

use super::device::Device;
use super::image_rules::{format, image_info, measure, usage};
use crate::backend::DeviceError;
use onepool_core::memory::image::ImageDesc;

const WHOLE: vk::ImageSubresourceRange = vk::ImageSubresourceRange {
    aspect_mask: vk::ImageAspectFlags::COLOR,
    base_mip_level: 0,
    level_count: 1,
    base_array_layer: 0,
    layer_count: 1,
};

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
