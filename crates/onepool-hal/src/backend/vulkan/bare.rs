//! `vkQueueSubmit` of an empty command buffer and the wait for its fence, as a program without this crate writes it:
//! the measure of what a submission costs on top.

use std::sync::Arc;

use ash::vk;

use super::context::Context;
use super::device::Device;
use crate::backend::DeviceError;

/// The objects of the bare submission.
pub(super) struct Bare {
    pool: vk::CommandPool,
    command: vk::CommandBuffer,
    fence: vk::Fence,
    // Outlives the objects.
    context: Arc<Context>,
}

impl Bare {
    pub(super) fn new(context: Arc<Context>) -> Result<Self, DeviceError> {
        // Dropped with what was made so far where a call fails.
        let mut bare = Bare {
            pool: vk::CommandPool::null(),
            command: vk::CommandBuffer::null(),
            fence: vk::Fence::null(),
            context,
        };
        let device = &bare.context.shared.device;
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(device.family);
        // SAFETY: the family the device was made with, VUID-vkCreateCommandPool-queueFamilyIndex-01937.
        bare.pool = unsafe { device.raw().create_command_pool(&info, None) }
            .map_err(|code| device.error("vkCreateCommandPool", code, 0))?;
        let info = vk::CommandBufferAllocateInfo::default().command_pool(bare.pool).command_buffer_count(1);
        // SAFETY: the pool is fresh.
        let commands = unsafe { device.raw().allocate_command_buffers(&info) }
            .map_err(|code| device.error("vkAllocateCommandBuffers", code, 0))?;
        bare.command = commands.into_iter().next().unwrap_or_default();
        let begin = vk::CommandBufferBeginInfo::default();
        // SAFETY: a fresh command buffer, VUID-vkBeginCommandBuffer-commandBuffer-00049.
        unsafe { device.raw().begin_command_buffer(bare.command, &begin) }
            .map_err(|code| device.error("vkBeginCommandBuffer", code, 0))?;
        // SAFETY: begun above, VUID-vkEndCommandBuffer-commandBuffer-00059.
        unsafe { device.raw().end_command_buffer(bare.command) }
            .map_err(|code| device.error("vkEndCommandBuffer", code, 0))?;
        // SAFETY: no precondition.
        bare.fence = unsafe { device.raw().create_fence(&vk::FenceCreateInfo::default(), None) }
            .map_err(|code| device.error("vkCreateFence", code, 0))?;
        Ok(bare)
    }

    fn device(&self) -> &Device {
        &self.context.shared.device
    }

    /// Submits and waits.
    pub(super) fn run(&mut self) -> Result<(), DeviceError> {
        let device = self.device();
        let commands = [self.command];
        let info = vk::SubmitInfo::default().command_buffers(&commands);
        device.with_queue(0, |queue| {
            // SAFETY: the queue is locked; the commands are recorded and not pending
            // (VUID-vkQueueSubmit-pCommandBuffers-00071); the fence is unsignaled and not in use.
            unsafe { device.raw().queue_submit(queue, &[info], self.fence) }
                .map_err(|code| device.error("vkQueueSubmit", code, 0))
        })?;
        // SAFETY: a fence of this device that was submitted.
        unsafe { device.raw().wait_for_fences(&[self.fence], true, u64::MAX) }
            .map_err(|code| device.error("vkWaitForFences", code, 0))?;
        // SAFETY: signaled, so not in use, VUID-vkResetFences-pFences-01123.
        unsafe { device.raw().reset_fences(&[self.fence]) }
            .map_err(|code| device.error("vkResetFences", code, 0))
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let device = self.device();
        // A wait that failed leaves the submission pending.
        device.wait_idle();
        // SAFETY: nothing is pending; null handles are ignored; the commands go with their pool.
        unsafe {
            device.raw().destroy_fence(self.fence, None);
            device.raw().destroy_command_pool(self.pool, None);
        }
    }
}
