//! Images on the simulated device: what was declared, and whether a kernel's view is of that.

use super::model::{Origin, POISON};
use super::world::{World, span};
use crate::backend::DeviceError;
use crate::recording::{BufferRange, Recording};
use onepool_core::memory::coherency::{Access, Barrier};
use onepool_core::memory::image::{Filter, ImageDesc, ImageView};

/// The barrier of a layout transition.
const TRANSITION: Barrier = Barrier { src: Access::DEVICE, dst: Access::DEVICE };

impl World {
    /// Images come into being: their bytes are lost.
    pub(super) fn begin_images(&mut self, recording: &Recording, now: Origin) -> Result<(), DeviceError> {
        if recording.images.is_empty() {
            return Ok(());
        }
        self.barrier(TRANSITION, now);
        for (range, image) in &recording.images {
            self.check_image(range, image)?;
            let body = self.body(range.buffer)?;
            if body.imported {
                self.say(format!("an image in imported buffer {}", range.buffer.index));
                continue;
            }
            let bytes = vec![POISON; range.bytes as usize];
            body.device.write(span(range), &bytes, Access::TRANSFER_WRITE, now);
            let (offset, image) = (range.offset, *image);
            body.images.retain(|known| *known != (offset, image));
            body.images.push((offset, image));
        }
        self.barrier(TRANSITION, now);
        Ok(())
    }

    /// An argument is one of the images that came into being.
    pub(super) fn check_view(&mut self, range: &BufferRange, view: &ImageView) -> Result<(), DeviceError> {
        self.check_image(range, &view.image)?;
        let known = self.body(range.buffer)?.images.contains(&(range.offset, view.image));
        if !known {
            let (offset, index) = (range.offset, range.buffer.index);
            self.say(format!("a view of an image at {offset} of buffer {index} that never came into being"));
        }
        if view.filter == Filter::Linear {
            self.say("a linear filter on a device without one".to_owned());
        }
        Ok(())
    }

    fn check_image(&mut self, range: &BufferRange, image: &ImageDesc) -> Result<(), DeviceError> {
        let rules = self.config.image_rules();
        let wanted = rules.describe(image.texel, image.width.into(), image.height.into());
        if wanted.as_ref() != Ok(image) {
            self.say(format!("{image:?} where the device makes {wanted:?}"));
        }
        let (alignment, needs) = (rules.alignment(image), rules.memory_bytes(image));
        if !range.offset.is_multiple_of(alignment) || range.bytes < needs {
            let BufferRange { offset, bytes, .. } = range;
            self.say(format!(
                "{bytes} bytes at {offset} for an image of {needs} bytes, aligned to {alignment}"
            ));
        }
        let size = self.body(range.buffer)?.device.bytes();
        match range.offset.checked_add(range.bytes).filter(|end| *end <= size) {
            Some(_) => Ok(()),
            None => {
                let asked = range.offset.saturating_add(range.bytes);
                Err(DeviceError::Limit { what: "the end of an image", asked, limit: size })
            }
        }
    }
}
