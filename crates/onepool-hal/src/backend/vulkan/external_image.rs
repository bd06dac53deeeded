//! Buffers of the context's that stand for images of the application's.

use ash::vk::{self, Handle as _};

use super::device::Device;
use super::external::{External, describe, owner_on};
use super::memory::{Buffer, Pool};
use super::null;
use crate::backend::{BufferDesc, BufferInfo, DeviceError, ForeignImage, Placement};

/// A buffer that stands for an image.
///
/// # Safety
/// As [`ContextBackend::import_buffer`](crate::backend::ContextBackend::import_buffer).
pub(super) unsafe fn adopt(
    device: &Device,
    pool: &Pool,
    image: &ForeignImage,
    (reads, writes): (bool, bool),
    known: impl Fn(vk::Image) -> bool,
) -> Result<Buffer, DeviceError> {
    let refuse = |what: String| Err(DeviceError::Unsupported { what });
    let raw = vk::Image::from_raw(image.handle);
    if raw == vk::Image::null() {
        return Err(null("image"));
    }
    if !device.is_shared() {
        return refuse("an image of an application on a device that is not the application's".to_owned());
    }
    let described = describe(image, (reads, writes))?;
    if known(raw) {
        return refuse("importing an image a second time: use the first import".to_owned());
    }
    let owner = owner_on(device, image.owner)?;
    // SAFETY: as the caller promises.
    let needs = unsafe { device.raw().get_image_memory_requirements(raw) };
    if described.bytes > needs.size {
        let (asked, limit) = (described.bytes, needs.size);
        return Err(DeviceError::Limit {
            what: "the size given by width, height and format for an image of the application's",
            asked,
            limit,
        });
    }
    stand_in(device, pool, described.bytes, External { image: Some(described), owner, made: None })
}

/// A buffer of the context's that stands for an image.
pub(super) fn stand_in(
    device: &Device,
    pool: &Pool,
    bytes: u64,
    mut external: External,
) -> Result<Buffer, DeviceError> {
    if let (Some(image), Some(_)) = (&mut external.image, external.owner)
        && !image.reads
    {
        // What is not taken over has no contents to keep.
        image.layout = vk::ImageLayout::UNDEFINED;
    }
    // Whole words, so that it can be filled.
    let words = bytes.next_multiple_of(4);
    let desc = BufferDesc { bytes: words, placement: Placement::Device, label: "an image's pixels" };
    let mut buffer = pool.create(device, &desc)?;
    // What the host would see there is the last run's.
    buffer.info = BufferInfo { host: None, coherent: true, imported: true, ..buffer.info };
    buffer.external = Some(external);
    Ok(buffer)
}
