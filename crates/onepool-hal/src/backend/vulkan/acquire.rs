//! The commands by which a recording takes over memory of the application's and gives it back.

use ash::vk;

use super::command::Encoder;
use super::external::{Around, External, between_families, buffer_between_families};
use super::memory::Buffer;
use crate::backend::{DeviceError, StageScope};
use crate::recording::{BufferId, Recording};

/// Stages and accesses of recordings themselves.
const OWN: (vk::PipelineStageFlags, vk::AccessFlags) = (
    vk::PipelineStageFlags::from_raw(
        vk::PipelineStageFlags::COMPUTE_SHADER.as_raw() | vk::PipelineStageFlags::TRANSFER.as_raw(),
    ),
    vk::AccessFlags::from_raw(
        vk::AccessFlags::SHADER_WRITE.as_raw() | vk::AccessFlags::TRANSFER_WRITE.as_raw(),
    ),
);
const OWN_USES: vk::AccessFlags = vk::AccessFlags::from_raw(
    OWN.1.as_raw()
        | vk::AccessFlags::SHADER_READ.as_raw()
        | vk::AccessFlags::UNIFORM_READ.as_raw()
        | vk::AccessFlags::TRANSFER_READ.as_raw(),
);
const ALL: vk::PipelineStageFlags = vk::PipelineStageFlags::ALL_COMMANDS;
const ANY: vk::AccessFlags =
    vk::AccessFlags::from_raw(vk::AccessFlags::MEMORY_READ.as_raw() | vk::AccessFlags::MEMORY_WRITE.as_raw());

/// No stage accesses anything, and a stage mask that is empty allows no access.
fn stages(scope: StageScope) -> (vk::PipelineStageFlags, vk::AccessFlags) {
    let stages = vk::PipelineStageFlags::from_raw(scope.stages);
    let access = vk::AccessFlags::from_raw(scope.access);
    (stages, if stages.is_empty() { vk::AccessFlags::empty() } else { access })
}

// SAFETY of the commands below: the command buffer is recording, outside any render pass, on a queue family with compute
// and transfer; buffers are held by the table, which is locked, and images live as long as the buffers that stand for them.
impl Encoder<'_> {
    /// On an application's device, orders what was submitted before against what is after, whatever stages of the
    /// application's that is: it may submit to the queue too. Takes over what `recording` enters.
    pub(super) fn enter(&self, recording: &Recording, around: Around) -> Result<(), DeviceError> {
        if !self.device.is_shared() && recording.enters.is_empty() {
            return Ok(());
        }
        let (src, dst) = match around.before {
            None => ((ALL, vk::AccessFlags::MEMORY_WRITE), (ALL, ANY)),
            Some(scope) => {
                let (stages, access) = stages(scope);
                ((stages | OWN.0, access | OWN.1), (OWN.0, OWN_USES))
            }
        };
        let externals = self.externals(&recording.enters)?;
        let (mut buffers, mut images, mut later) = (Vec::new(), Vec::new(), Vec::new());
        let to = self.device.family;
        for (buffer, external) in &externals {
            let handed = external.owner.filter(|_| external.image.is_none_or(|image| image.reads));
            match (&external.image, handed) {
                (Some(image), None) if image.reads && image.source() != image.layout => {
                    let barrier = image.barrier(image.layout, image.source());
                    let barrier = barrier.src_access_mask(src.1);
                    images.push(barrier.dst_access_mask(vk::AccessFlags::TRANSFER_READ));
                }
                (Some(image), Some(from)) => {
                    let barrier = image.barrier(image.layout, image.layout);
                    images.push(between_families(barrier, from, to).dst_access_mask(ANY));
                    if image.source() != image.layout {
                        let barrier = image.barrier(image.layout, image.source());
                        later.push(barrier.dst_access_mask(vk::AccessFlags::TRANSFER_READ));
                    }
                }
                (None, Some(from)) => {
                    buffers.push(buffer_between_families(buffer.raw, from, to).dst_access_mask(OWN_USES));
                }
                _ => {}
            }
        }
        self.order(src, dst, &buffers, &images);
        if !later.is_empty() {
            self.images(&later);
        }
        let mut filled = false;
        for range in &recording.clears {
            let buffer = self.buffers.get(range.buffer)?;
            buffer.check(range)?;
            // SAFETY: as above; words inside a buffer of the context's own, which is no one's meanwhile
            // (VUID-vkCmdFillBuffer-dstOffset-00024, -00025, -size-00026, -00028).
            unsafe {
                let raw = self.device.raw();
                raw.cmd_fill_buffer(self.command, buffer.raw, range.offset, range.bytes, 0);
            }
            filled = true;
        }
        for (buffer, image) in externals
            .iter()
            .filter_map(|(buffer, external)| Some((buffer, external.image.filter(|i| i.reads)?)))
        {
            // SAFETY: as above; the image has the usage and the layout, the buffer has room for rows without padding
            // (VUID-vkCmdCopyImageToBuffer-srcImage-00186, -srcImageLayout-00189, -pRegions-00183).
            unsafe {
                let raw = self.device.raw();
                let region = [image.region()];
                raw.cmd_copy_image_to_buffer(self.command, image.raw, image.source(), buffer.raw, &region);
            }
            filled = true;
        }
        if filled {
            self.order(
                (vk::PipelineStageFlags::TRANSFER, vk::AccessFlags::TRANSFER_WRITE),
                (OWN.0, OWN_USES),
                &[],
                &[],
            );
        }
        Ok(())
    }

    /// Gives back what `recording` leaves, and orders all of it against what the application does after.
    pub(super) fn leave(&self, recording: &Recording, around: Around) -> Result<(), DeviceError> {
        if !self.device.is_shared() && recording.leaves.is_empty() {
            return Ok(());
        }
        let externals = self.externals(&recording.leaves)?;
        let written: Vec<_> = externals
            .iter()
            .filter_map(|(buffer, external)| Some((buffer, external.image.filter(|image| image.writes)?)))
            .collect();
        if !written.is_empty() {
            let moved = written.iter().filter(|(_, image)| image.within() != image.target());
            let images: Vec<_> = moved
                .map(|(_, image)| {
                    let barrier = image.barrier(image.within(), image.target());
                    barrier.src_access_mask(OWN.1).dst_access_mask(vk::AccessFlags::TRANSFER_WRITE)
                })
                .collect();
            let uses = vk::AccessFlags::TRANSFER_READ | vk::AccessFlags::TRANSFER_WRITE;
            self.order(OWN, (vk::PipelineStageFlags::TRANSFER, uses), &[], &images);
        }
        for (buffer, image) in &written {
            // SAFETY: as in `enter` (VUID-vkCmdCopyBufferToImage-dstImage-00177, -dstImageLayout-00180, -pRegions-00171).
            unsafe {
                let raw = self.device.raw();
                let region = [image.region()];
                raw.cmd_copy_buffer_to_image(self.command, buffer.raw, image.raw, image.target(), &region);
            }
        }
        let (dst_stages, dst_access) = around.after.map_or((ALL, ANY), stages);
        let (mut buffers, mut images, mut handed) = (Vec::new(), Vec::new(), Vec::new());
        let from = self.device.family;
        for (buffer, external) in &externals {
            if let Some(image) = &external.image {
                let last = if image.writes { image.target() } else { image.within() };
                if last != image.leave {
                    let barrier = image.barrier(last, image.leave).src_access_mask(OWN.1);
                    images.push(barrier.dst_access_mask(dst_access));
                }
                if let Some(to) = external.owner {
                    let barrier = image.barrier(image.leave, image.leave);
                    handed.push(
                        between_families(barrier, from, to).src_access_mask(vk::AccessFlags::MEMORY_WRITE),
                    );
                }
            } else if let Some(to) = external.owner {
                buffers.push(buffer_between_families(buffer.raw, from, to).src_access_mask(OWN.1));
            }
        }
        let src = match around.after {
            None => (ALL, vk::AccessFlags::MEMORY_WRITE),
            Some(_) => OWN,
        };
        self.order(src, (dst_stages, dst_access), &buffers, &images);
        if !handed.is_empty() {
            self.images(&handed);
        }
        Ok(())
    }

    fn externals(&self, ids: &[BufferId]) -> Result<Vec<(&Buffer, External)>, DeviceError> {
        let mut externals = Vec::with_capacity(ids.len());
        for id in ids {
            let buffer = self.buffers.get(*id)?;
            externals.extend(buffer.external.map(|external| (buffer, external)));
        }
        Ok(externals)
    }

    /// Image barriers between whatever comes before and whatever comes after.
    fn images(&self, images: &[vk::ImageMemoryBarrier<'_>]) {
        let flags = vk::DependencyFlags::empty();
        // SAFETY: as above.
        unsafe { self.device.raw().cmd_pipeline_barrier(self.command, ALL, ALL, flags, &[], &[], images) };
    }

    fn order(
        &self,
        (src_stages, src_access): (vk::PipelineStageFlags, vk::AccessFlags),
        (dst_stages, dst_access): (vk::PipelineStageFlags, vk::AccessFlags),
        buffers: &[vk::BufferMemoryBarrier<'_>],
        images: &[vk::ImageMemoryBarrier<'_>],
    ) {
        let memory = [vk::MemoryBarrier::default().src_access_mask(src_access).dst_access_mask(dst_access)];
        let flags = vk::DependencyFlags::empty();
        // Without synchronization2 a stage mask may not be empty, VUID-vkCmdPipelineBarrier-srcStageMask-03937, -dstStageMask-03937.
        let or = |stage: vk::PipelineStageFlags, none| if stage.is_empty() { none } else { stage };
        let src_stages = or(src_stages, vk::PipelineStageFlags::TOP_OF_PIPE);
        let dst_stages = or(dst_stages, vk::PipelineStageFlags::BOTTOM_OF_PIPE);
        // SAFETY: as above.
        unsafe {
            let raw = self.device.raw();
            raw.cmd_pipeline_barrier(self.command, src_stages, dst_stages, flags, &memory, buffers, images);
        }
    }
}
