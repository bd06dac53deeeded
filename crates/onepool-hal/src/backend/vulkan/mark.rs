//! Marks: words by which the device itself tells how far it is, for drivers that tell a loss before the work is over.
//!
//! Mesa's drivers call a device lost once a submission fails in the kernel, also for want of memory, or once they see a
//! reset. What was submitted before goes on, or begins again after the reset, and each wait returns at once. Work
//! that writes the application's pages is therefore followed by a mark, in the same submission: commands that wait for all
//! before them and write a word in memory of the device's own. The queue runs in order, so a mark stands for all that
//! was submitted before it. After a loss the pages stay the device's until the last mark is there.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ash::vk;

use super::device::Device;
use super::timeline::Timeline;
use crate::backend::{DeviceError, HostAddress, Placement};
use onepool_core::memory::model::TypeFlags;
use onepool_core::sync::lock;

/// Marks in one page; more are made where as many are unfinished.
pub(super) const SLOTS: usize = 64;
/// What a word holds once the device is there.
const THERE: u32 = 1;
/// Between two looks at a word.
const LOOK: Duration = Duration::from_millis(1);

/// The marks of one queue.
#[derive(Default)]
pub(super) struct Marks {
    ring: Mutex<Ring>,
    /// The point up to which nothing is waited for any more after a loss. Held while someone waits, so that everyone
    /// who asks does.
    quiet: Mutex<u64>,
}

#[derive(Default)]
struct Ring {
    pages: Vec<Page>,
    spare: Vec<Slot>,
    /// With the points of their submissions.
    pending: VecDeque<(u64, Slot)>,
}

/// Commands that write a word, and the word.
#[derive(Clone, Copy)]
struct Slot {
    commands: vk::CommandBuffer,
    word: HostAddress,
}

/// Where slots live.
#[derive(Default)]
struct Page {
    pool: vk::CommandPool,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
}

impl Marks {
    /// Submits by `submit`, which gets the commands to put after its own and gives the point.
    ///
    /// # Errors
    /// Those of `submit`, and of making a page.
    pub(super) fn follow(
        &self,
        device: &Device,
        timeline: &Timeline,
        submit: impl FnOnce(vk::CommandBuffer) -> Result<u64, DeviceError>,
    ) -> Result<u64, DeviceError> {
        let slot = self.take(device, timeline)?;
        // The submission shows it to the device.
        slot.word().store(0, Ordering::Relaxed);
        let submitted = submit(slot.commands);
        let mut ring = lock(&self.ring);
        match &submitted {
            Ok(point) => ring.pending.push_back((*point, slot)),
            Err(_) => ring.spare.push(slot),
        }
        submitted
    }

    /// A slot that the device is done with.
    fn take(&self, device: &Device, timeline: &Timeline) -> Result<Slot, DeviceError> {
        let mut ring = lock(&self.ring);
        ring.reclaim(timeline);
        if ring.spare.is_empty() && !ring.pending.is_empty() {
            timeline.poll(device)?;
            ring.reclaim(timeline);
        }
        if let Some(slot) = ring.spare.pop() {
            return Ok(slot);
        }
        let mut page = Page::default();
        let mut slots = page.make(device).inspect_err(|_| {
            // SAFETY: nothing was submitted.
            unsafe { page.destroy(device) };
        })?;
        ring.pages.push(page);
        let slot = slots.pop().ok_or(DeviceError::Stale { object: "mark" })?;
        ring.spare.append(&mut slots);
        Ok(slot)
    }

    /// After a loss, returns once the device wrote the marks of what was submitted before, or can be taken to write no
    /// more: where no mark came for as long as one job may take.
    pub(super) fn quiesce(&self, device: &Device, timeline: &Timeline) {
        let Some(loss) = device.loss() else { return };
        let mut quiet = lock(&self.quiet);
        let mut pending: Vec<_> = lock(&self.ring).pending.iter().copied().collect();
        pending.sort_unstable_by_key(|(point, _)| *point);
        pending.retain(|(point, _)| *point > *quiet && !timeline.is_known(*point));
        let Some((last, _)) = pending.last() else { return };
        *quiet = *last;
        let mut since = loss.at;
        for (point, slot) in &pending {
            let mut waited = false;
            while !slot.is_there() {
                if since.elapsed() >= loss.grace() {
                    tracing::error!(
                        target: "onepool::vulkan", point, last,
                        "the device was lost and did not get through its work; memory that it may write is given back"
                    );
                    return;
                }
                sleep(LOOK);
                waited = true;
            }
            // The next job has the kernel's limit to itself.
            if waited {
                since = Instant::now();
            }
        }
    }

    /// How many pages there are.
    #[cfg(test)]
    pub(super) fn pages(&self) -> usize {
        lock(&self.ring).pages.len()
    }

    /// Whether the latest mark is there; `None` without one that may be unfinished.
    #[cfg(test)]
    pub(super) fn is_there(&self) -> Option<bool> {
        lock(&self.ring).pending.back().map(|(_, slot)| slot.is_there())
    }

    /// Destroys the pages.
    ///
    /// # Safety
    /// Everything submitted has finished, or the device is lost; no one uses the marks.
    pub(super) unsafe fn destroy(&self, device: &Device) {
        for page in std::mem::take(&mut *lock(&self.ring)).pages {
            // SAFETY: as the caller promises.
            unsafe { page.destroy(device) };
        }
    }
}

impl Ring {
    /// Takes back the slots whose submissions are known to be finished.
    fn reclaim(&mut self, timeline: &Timeline) {
        while let Some((point, slot)) = self.pending.front().copied()
            && timeline.is_known(point)
        {
            self.pending.pop_front();
            self.spare.push(slot);
        }
    }
}

impl Slot {
    fn word(&self) -> &AtomicU32 {
        // SAFETY: an aligned word of a page that is mapped as long as its slots are in the ring; the host reaches it by
        // atomic accesses alone, and the device writes it between the submission of its commands and their end.
        unsafe { AtomicU32::from_ptr(self.word.0.as_ptr().cast()) }
    }

    fn is_there(&self) -> bool {
        self.word().load(Ordering::Acquire) == THERE
    }
}

impl Page {
    /// Makes all of it, recorded; what there is where a call fails is the caller's to destroy.
    fn make(&mut self, device: &Device) -> Result<Vec<Slot>, DeviceError> {
        let start = self.back(device)?;
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(device.family);
        // SAFETY: the family the device was made with, VUID-vkCreateCommandPool-queueFamilyIndex-01937.
        self.pool = unsafe { device.raw().create_command_pool(&info, None) }
            .map_err(|code| device.error("vkCreateCommandPool", code, 0))?;
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(SLOTS as u32);
        // SAFETY: the pool is fresh.
        let commands = unsafe { device.raw().allocate_command_buffers(&info) }
            .map_err(|code| device.error("vkAllocateCommandBuffers", code, 0))?;
        let mut slots = Vec::with_capacity(SLOTS);
        for (commands, at) in commands.into_iter().zip((0..).step_by(size_of::<u32>())) {
            // SAFETY: a fresh command buffer, and a word of the buffer.
            unsafe { self.record(device, commands, at)? };
            // SAFETY: the mapping has a word for each slot.
            let word = HostAddress(unsafe { start.add(at as usize) });
            slots.push(Slot { commands, word });
        }
        Ok(slots)
    }

    /// Makes the buffer in memory of its own, and gives where the host has it.
    fn back(&mut self, device: &Device) -> Result<NonNull<u8>, DeviceError> {
        let bytes = (SLOTS * size_of::<u32>()) as u64;
        let info = vk::BufferCreateInfo::default()
            .size(bytes)
            .usage(vk::BufferUsageFlags::TRANSFER_DST)
            .sharing_mode(vk::SharingMode::EXCLUSIVE);
        // SAFETY: the size is not 0, VUID-VkBufferCreateInfo-size-00912.
        self.buffer = unsafe { device.raw().create_buffer(&info, None) }
            .map_err(|code| device.error("vkCreateBuffer", code, bytes))?;
        // SAFETY: the buffer was made on this device.
        let needs = unsafe { device.raw().get_buffer_memory_requirements(self.buffer) };
        let model = &device.info.memory;
        let candidates = model.candidates(Placement::Readback, needs.memory_type_bits);
        // Each device has such a type for buffers (Vulkan, Device Memory).
        let mut coherent = candidates.into_iter().filter(|at| model.flags(*at).has(TypeFlags::HOST_COHERENT));
        let index = coherent
            .next()
            .ok_or_else(|| DeviceError::Unsupported { what: "mapped memory that is coherent".to_owned() })?;
        let info = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(index);
        // SAFETY: the type is one of the device's, VUID-vkAllocateMemory-pAllocateInfo-01714.
        self.memory = unsafe { device.raw().allocate_memory(&info, None) }
            .map_err(|code| device.error("vkAllocateMemory", code, needs.size))?;
        // SAFETY: fresh buffer, memory of a type it allows and of its size (VUID-vkBindBufferMemory-memory-01035,
        // -size-01037).
        unsafe { device.raw().bind_buffer_memory(self.buffer, self.memory, 0) }
            .map_err(|code| device.error("vkBindBufferMemory", code, 0))?;
        // SAFETY: host-visible and not mapped yet, VUID-vkMapMemory-memory-00678 and -00682.
        let start =
            unsafe { device.raw().map_memory(self.memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) }
                .map_err(|code| device.error("vkMapMemory", code, 0))?;
        NonNull::new(start.cast()).ok_or(DeviceError::OutOfHostMemory { bytes })
    }

    /// Records the commands that write the word at byte `at`.
    ///
    /// # Safety
    /// `commands` is a fresh command buffer of the page's pool, and `at` a multiple of 4 in the buffer.
    unsafe fn record(
        &self,
        device: &Device,
        commands: vk::CommandBuffer,
        at: vk::DeviceSize,
    ) -> Result<(), DeviceError> {
        use vk::{AccessFlags as A, PipelineStageFlags as S};
        let raw = device.raw();
        let order = |(src, wrote): (S, A), (dst, uses): (S, A)| {
            let memory = [vk::MemoryBarrier::default().src_access_mask(wrote).dst_access_mask(uses)];
            let none = vk::DependencyFlags::empty();
            // SAFETY: recording outside of render passes, on a family with transfers.
            unsafe { raw.cmd_pipeline_barrier(commands, src, dst, none, &memory, &[], &[]) };
        };
        // SAFETY: fresh (VUID-vkBeginCommandBuffer-commandBuffer-00049); a word in range (VUID-vkCmdFillBuffer-dstOffset-00024,
        // -00025, -size-00026, -00028).
        unsafe {
            raw.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default())
                .map_err(|code| device.error("vkBeginCommandBuffer", code, 0))?;
            // What was written is the host's to see before the word is, so that no cache holds it back until later.
            let host = (S::TRANSFER | S::HOST, A::TRANSFER_WRITE | A::HOST_READ);
            order((S::ALL_COMMANDS, A::MEMORY_WRITE), host);
            raw.cmd_fill_buffer(commands, self.buffer, at, size_of::<u32>() as u64, THERE);
            order((S::TRANSFER, A::TRANSFER_WRITE), (S::HOST, A::HOST_READ));
            raw.end_command_buffer(commands).map_err(|code| device.error("vkEndCommandBuffer", code, 0))
        }
    }

    /// # Safety
    /// No submission of its commands is unfinished, or the device is lost; called once.
    unsafe fn destroy(&self, device: &Device) {
        // SAFETY: as the caller promises; null handles are ignored (VUID-vkDestroyCommandPool-commandPool-00041,
        // VUID-vkDestroyBuffer-buffer-00922, VUID-vkFreeMemory-memory-00677). Freeing the memory ends its mapping.
        unsafe {
            device.raw().destroy_command_pool(self.pool, None);
            device.raw().destroy_buffer(self.buffer, None);
            device.raw().free_memory(self.memory, None);
        }
    }
}
