//! A recording as a command buffer.

use ash::vk::{self, Handle as _};

use super::cache::PipelineCache;
use super::device::Device;
use super::external::Around;
use super::kernel::{Binding, Kernel};
use super::memory::Buffer;
use super::shared::Shared;
use crate::backend::kept::Lease;
use crate::backend::slots::SlotTable;
use crate::backend::{DeviceError, ForeignCommands};
use crate::recording::{Arg, BufferId, BufferRange, Command, DeviceKernelId, Dispatch, Recording};
use onepool_core::memory::coherency::{Access, Barrier};
use onepool_core::sync::read;
use onepool_spirv::PART_BYTES;

/// Some drivers leave the tail of larger copies undone.
const MAX_COPY: u64 = 256 << 20;

/// Parameters are padded to words in a buffer of this size; devices that take more get no more.
const MAX_PARAMS: usize = 256;

/// A command buffer with the pools it lives from.
pub(super) struct Recorded {
    pub(super) command: vk::CommandBuffer,
    /// Whether it may be submitted again before it has finished.
    pub(super) overlaps: bool,
    /// Timestamp slots.
    pub(super) slots: u32,
    /// The buffers and kernels it uses.
    pub(super) buffers: Vec<BufferId>,
    pub(super) kernels: Vec<DeviceKernelId>,
    /// Whether it writes the application's pages and the device's loss does not tell that it ended.
    pub(super) is_marked: bool,
    /// Of the views and images it names.
    leases: Vec<Lease>,
    pool: vk::CommandPool,
    sets: vk::DescriptorPool,
    room: Room,
    queries: vk::QueryPool,
    query_room: u32,
}

/// What a descriptor pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    sets: u32,
    // By position in TYPES.
    descriptors: [u32; TYPES.len()],
}

const TYPES: [vk::DescriptorType; 6] = [
    vk::DescriptorType::STORAGE_BUFFER,
    vk::DescriptorType::UNIFORM_BUFFER,
    vk::DescriptorType::UNIFORM_TEXEL_BUFFER,
    vk::DescriptorType::STORAGE_TEXEL_BUFFER,
    vk::DescriptorType::COMBINED_IMAGE_SAMPLER,
    vk::DescriptorType::STORAGE_IMAGE,
];

impl Room {
    fn add(&mut self, kernel: &Kernel) {
        if kernel.bindings.is_empty() {
            return;
        }
        self.sets += 1;
        for binding in &kernel.bindings {
            if let Some(at) = TYPES.iter().position(|ty| *ty == binding.ty) {
                self.descriptors[at] += 1;
            }
        }
    }

    fn holds(&self, other: &Room) -> bool {
        self.sets >= other.sets && self.descriptors.iter().zip(other.descriptors).all(|(a, b)| *a >= b)
    }
}

impl Recorded {
    /// Pools without commands; they grow as recordings need.
    pub(super) fn new(device: &Device) -> Result<Self, DeviceError> {
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(device.family);
        // SAFETY: the family the device was made with, VUID-vkCreateCommandPool-queueFamilyIndex-01937.
        let pool = unsafe { device.raw().create_command_pool(&info, None) }
            .map_err(|code| device.error("vkCreateCommandPool", code, 0))?;
        let mut recorded = Recorded {
            command: vk::CommandBuffer::null(),
            overlaps: false,
            slots: 0,
            buffers: Vec::new(),
            kernels: Vec::new(),
            is_marked: false,
            leases: Vec::new(),
            pool,
            sets: vk::DescriptorPool::null(),
            room: Room::default(),
            queries: vk::QueryPool::null(),
            query_room: 0,
        };
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool is fresh.
        match unsafe { device.raw().allocate_command_buffers(&info) } {
            Ok(commands) => recorded.command = commands.into_iter().next().unwrap_or_default(),
            Err(code) => {
                // SAFETY: nothing was recorded.
                unsafe { recorded.destroy(device) };
                return Err(device.error("vkAllocateCommandBuffers", code, 0));
            }
        }
        Ok(recorded)
    }

    /// Records, over what was recorded before; for one submission where `once`.
    ///
    /// # Safety
    /// No submission of what was recorded before is unfinished.
    pub(super) unsafe fn record(
        &mut self,
        shared: &Shared,
        recording: &Recording,
        once: bool,
    ) -> Result<(), DeviceError> {
        let device = &shared.device;
        self.slots = if device.timestamp_bits == 0 { 0 } else { recording.timestamps };
        self.overlaps = !once && matches!(recording.commands.first(), Some(Command::Barrier(_)));
        let flags = if once {
            vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT
        } else if self.overlaps {
            vk::CommandBufferUsageFlags::SIMULTANEOUS_USE
        } else {
            vk::CommandBufferUsageFlags::empty()
        };
        let info = vk::CommandBufferBeginInfo::default().flags(flags);
        // SAFETY: nothing of this is in use, as the caller promises; the pool is reset, so the buffer is in its initial
        // state, VUID-vkBeginCommandBuffer-commandBuffer-00049.
        unsafe {
            device
                .raw()
                .reset_command_pool(self.pool, vk::CommandPoolResetFlags::empty())
                .map_err(|code| device.error("vkResetCommandPool", code, 0))?;
            device
                .raw()
                .begin_command_buffer(self.command, &info)
                .map_err(|code| device.error("vkBeginCommandBuffer", code, 0))?;
            self.encode(shared, recording, self.command, Around::default())?;
        }
        // SAFETY: the buffer is recording.
        unsafe { device.raw().end_command_buffer(self.command) }
            .map_err(|code| device.error("vkEndCommandBuffer", code, 0))
    }

    /// Records into a command buffer of the application's.
    ///
    /// # Safety
    /// As [`QueueBackend::record_into`](crate::backend::QueueBackend::record_into); nothing was recorded before.
    pub(super) unsafe fn record_into(
        &mut self,
        shared: &Shared,
        recording: &Recording,
        commands: &ForeignCommands,
    ) -> Result<(), DeviceError> {
        let around = Around { before: commands.before, after: commands.after };
        // SAFETY: as the caller promises.
        unsafe { self.encode(shared, recording, vk::CommandBuffer::from_raw(commands.handle), around) }
    }

    /// # Safety
    /// `command` is recording, outside of render passes; no submission of what was recorded before is unfinished.
    unsafe fn encode(
        &mut self,
        shared: &Shared,
        recording: &Recording,
        command: vk::CommandBuffer,
        around: Around,
    ) -> Result<(), DeviceError> {
        let device = &shared.device;
        let buffers = read(&shared.buffers);
        let kernels = read(&shared.kernels);
        let mut room = Room::default();
        for command in &recording.commands {
            if let Command::Dispatch(dispatch) = command {
                room.add(kernels.get(dispatch.kernel)?);
            }
        }
        // SAFETY: nothing of this is in use, as the caller promises.
        unsafe {
            self.make_room(device, room)?;
            self.make_queries(device)?;
        }
        self.leases.clear();
        let sets = self.descriptor_sets(device, recording, &buffers, &kernels)?;
        let mut encoder = Encoder {
            device,
            command,
            buffers: &buffers,
            kernels: &kernels,
            cache: &shared.cache,
            bound: vk::Pipeline::null(),
        };
        if self.slots > 0 {
            // SAFETY: recording outside a render pass; the pool has that many queries.
            unsafe { device.raw().cmd_reset_query_pool(command, self.queries, 0, self.slots) };
        }
        encoder.enter(recording, around)?;
        encoder.begin_images(recording, &mut self.leases)?;
        let mut sets = sets.into_iter();
        for each in &recording.commands {
            match each {
                Command::Dispatch(dispatch) => encoder.dispatch(dispatch, &mut sets)?,
                Command::Copy { src, dst } => encoder.copy(src, dst)?,
                Command::Fill { dst, value } => encoder.fill(dst, *value)?,
                Command::Barrier(barrier) => encoder.barrier(*barrier),
                Command::Timestamp { slot } if device.timestamp_bits > 0 => {
                    if *slot >= self.slots {
                        let (asked, limit) = (u64::from(*slot), u64::from(self.slots));
                        return Err(DeviceError::Limit { what: "a timestamp slot", asked, limit });
                    }
                    // SAFETY: a query of the pool, reset above, VUID-vkCmdWriteTimestamp-queryPool-00828.
                    unsafe {
                        let stage = vk::PipelineStageFlags::BOTTOM_OF_PIPE;
                        device.raw().cmd_write_timestamp(command, stage, self.queries, *slot);
                    }
                }
                Command::Timestamp { .. } => {}
            }
        }
        encoder.leave(recording, around)?;
        self.is_marked = device.loses_early && writes_pages(recording, &buffers);
        self.remember(recording);
        Ok(())
    }

    fn remember(&mut self, recording: &Recording) {
        self.buffers.clear();
        self.kernels.clear();
        self.buffers.extend(recording.images.iter().map(|(range, _)| range.buffer));
        self.buffers.extend(recording.enters.iter().chain(&recording.leaves));
        for command in &recording.commands {
            match command {
                Command::Dispatch(dispatch) => {
                    self.kernels.push(dispatch.kernel);
                    self.buffers.extend(dispatch.args.iter().filter_map(|arg| Some(arg.range()?.0.buffer)));
                }
                Command::Copy { src, dst } => self.buffers.extend([src.buffer, dst.buffer]),
                Command::Fill { dst, .. } => self.buffers.push(dst.buffer),
                Command::Barrier(_) | Command::Timestamp { .. } => {}
            }
        }
        self.buffers.sort_unstable();
        self.buffers.dedup();
        self.kernels.sort_unstable();
        self.kernels.dedup();
    }

    /// # Safety
    /// No set of the pool is in use.
    unsafe fn make_room(&mut self, device: &Device, room: Room) -> Result<(), DeviceError> {
        if self.room.holds(&room) {
            if self.room.sets > 0 {
                // SAFETY: as the caller promises, VUID-vkResetDescriptorPool-descriptorPool-00313.
                unsafe {
                    device.raw().reset_descriptor_pool(self.sets, vk::DescriptorPoolResetFlags::empty())
                }
                .map_err(|code| device.error("vkResetDescriptorPool", code, 0))?;
            }
            return Ok(());
        }
        let sizes: Vec<_> = TYPES
            .iter()
            .zip(room.descriptors)
            .filter(|(_, count)| *count > 0)
            .map(|(ty, count)| vk::DescriptorPoolSize { ty: *ty, descriptor_count: count })
            .collect();
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(room.sets).pool_sizes(&sizes);
        // SAFETY: at least one set and one size, VUID-VkDescriptorPoolCreateInfo-descriptorPoolOverallocation-09227.
        let pool = unsafe { device.raw().create_descriptor_pool(&info, None) }
            .map_err(|code| device.error("vkCreateDescriptorPool", code, 0))?;
        // SAFETY: as the caller promises; a null handle is ignored.
        unsafe { device.raw().destroy_descriptor_pool(self.sets, None) };
        self.sets = pool;
        self.room = room;
        Ok(())
    }

    /// # Safety
    /// No query of the pool is in use.
    unsafe fn make_queries(&mut self, device: &Device) -> Result<(), DeviceError> {
        if self.query_room >= self.slots {
            return Ok(());
        }
        let info =
            vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(self.slots);
        // SAFETY: the count is not 0, VUID-VkQueryPoolCreateInfo-queryCount-02763.
        let pool = unsafe { device.raw().create_query_pool(&info, None) }
            .map_err(|code| device.error("vkCreateQueryPool", code, 0))?;
        // SAFETY: as the caller promises; a null handle is ignored.
        unsafe { device.raw().destroy_query_pool(self.queries, None) };
        self.queries = pool;
        self.query_room = self.slots;
        Ok(())
    }

    /// One written set for every dispatch that takes arguments, in order.
    fn descriptor_sets(
        &mut self,
        device: &Device,
        recording: &Recording,
        buffers: &SlotTable<BufferId, Buffer>,
        kernels: &SlotTable<DeviceKernelId, Kernel>,
    ) -> Result<Vec<vk::DescriptorSet>, DeviceError> {
        let mut layouts = Vec::new();
        let mut arguments = Vec::new();
        for command in &recording.commands {
            let Command::Dispatch(dispatch) = command else { continue };
            let kernel = kernels.get(dispatch.kernel)?;
            if kernel.bindings.len() != dispatch.args.len() {
                let (takes, given) = (kernel.bindings.len(), dispatch.args.len());
                let log = format!("it takes {takes} arguments and was given {given}");
                return Err(DeviceError::Program { kernel: kernel.name.clone(), log });
            }
            if kernel.bindings.is_empty() {
                continue;
            }
            for (binding, arg) in kernel.bindings.iter().zip(&dispatch.args) {
                let argument = Argument::new(device, kernel, binding, arg, buffers, &mut self.leases)?;
                arguments.push((layouts.len(), *binding, argument));
            }
            layouts.push(kernel.set_layout);
        }
        if layouts.is_empty() {
            return Ok(Vec::new());
        }
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(self.sets).set_layouts(&layouts);
        // SAFETY: the pool was made or reset with room for these, VUID-VkDescriptorSetAllocateInfo-apiVersion-07895.
        let sets = unsafe { device.raw().allocate_descriptor_sets(&info) }
            .map_err(|code| device.error("vkAllocateDescriptorSets", code, 0))?;
        let writes: Vec<_> = arguments
            .iter()
            .filter_map(|(set, binding, argument)| {
                let write = vk::WriteDescriptorSet::default()
                    .dst_set(*sets.get(*set)?)
                    .dst_binding(binding.number)
                    .descriptor_type(binding.ty);
                Some(match argument {
                    Argument::Range(range) => write.buffer_info(std::slice::from_ref(range)),
                    Argument::View(view) => write.texel_buffer_view(std::slice::from_ref(view)),
                    Argument::Image(image) => write.image_info(std::slice::from_ref(image)),
                })
            })
            .collect();
        // SAFETY: fresh sets; ranges were checked against buffers and limits (VUID-VkWriteDescriptorSet-descriptorType-00328,
        // -00332, -00333, VUID-VkDescriptorBufferInfo-offset-00340, -range-00342).
        unsafe { device.raw().update_descriptor_sets(&writes, &[]) };
        Ok(sets)
    }

    /// The ticks of the timestamp slots, or `None` where some are not written.
    ///
    /// # Safety
    /// The commands were submitted.
    pub(super) unsafe fn ticks(&self, device: &Device) -> Result<Option<Vec<u64>>, DeviceError> {
        let mut ticks = vec![0u64; self.slots as usize];
        if ticks.is_empty() {
            return Ok(Some(ticks));
        }
        // SAFETY: within the pool, and each was reset by the commands, VUID-vkGetQueryPoolResults-None-09401.
        let result = unsafe {
            device.raw().get_query_pool_results(self.queries, 0, &mut ticks, vk::QueryResultFlags::TYPE_64)
        };
        match result {
            Ok(()) => Ok(Some(ticks)),
            Err(vk::Result::NOT_READY) => Ok(None),
            Err(code) => Err(device.error("vkGetQueryPoolResults", code, 0)),
        }
    }

    /// Destroys the pools and what came from them.
    ///
    /// # Safety
    /// No submission of the commands is unfinished; called once.
    pub(super) unsafe fn destroy(&self, device: &Device) {
        // SAFETY: as the caller promises; null handles are ignored (VUID-vkDestroyCommandPool-commandPool-00041,
        // VUID-vkDestroyDescriptorPool-descriptorPool-00303, VUID-vkDestroyQueryPool-queryPool-00793).
        unsafe {
            device.raw().destroy_command_pool(self.pool, None);
            device.raw().destroy_descriptor_pool(self.sets, None);
            device.raw().destroy_query_pool(self.queries, None);
        }
    }
}

/// Whether a recording writes pages of the application's.
fn writes_pages(recording: &Recording, buffers: &SlotTable<BufferId, Buffer>) -> bool {
    let is_pages = |range: &BufferRange| {
        buffers.get(range.buffer).is_ok_and(|buffer| buffer.info.imported && buffer.info.host.is_some())
    };
    recording.commands.iter().any(|command| match command {
        Command::Dispatch(dispatch) => {
            let mut ranges = dispatch.args.iter().filter_map(Arg::range);
            ranges.any(|(range, access)| !access.writes().is_empty() && is_pages(range))
        }
        Command::Copy { dst, .. } | Command::Fill { dst, .. } => is_pages(dst),
        Command::Barrier(_) | Command::Timestamp { .. } => false,
    })
}

enum Argument {
    Range(vk::DescriptorBufferInfo),
    View(vk::BufferView),
    Image(vk::DescriptorImageInfo),
}

impl Argument {
    fn new(
        device: &Device,
        kernel: &Kernel,
        binding: &Binding,
        arg: &Arg,
        buffers: &SlotTable<BufferId, Buffer>,
        leases: &mut Vec<Lease>,
    ) -> Result<Self, DeviceError> {
        let refuse = |log: String| DeviceError::Program { kernel: kernel.name.clone(), log };
        let limits = &device.info.limits;
        let Some((range, _)) = arg.range() else {
            return Err(refuse(format!(
                "argument {} is absent, which only native kernels take",
                binding.number
            )));
        };
        let buffer = buffers.get(range.buffer)?;
        buffer.check(range)?;
        let is_image = matches!(
            binding.ty,
            vk::DescriptorType::COMBINED_IMAGE_SAMPLER | vk::DescriptorType::STORAGE_IMAGE
        );
        match arg {
            Arg::Image(_, view, _) if is_image => {
                let (image, lease) = buffer.image(device, range.offset, view)?;
                leases.push(lease);
                return Ok(Argument::Image(image));
            }
            _ if is_image => return Err(refuse(format!("argument {} is no image", binding.number))),
            _ => {}
        }
        buffer.check_usage(usage_of(binding.ty))?;
        let (alignment, limit) = match binding.texel {
            None => (limits.argument_alignment, limits.max_argument_bytes),
            Some((_, texel)) => (limits.texel_alignment, limits.max_texels.saturating_mul(texel)),
        };
        if !range.offset.is_multiple_of(alignment) {
            let (number, offset) = (binding.number, range.offset);
            return Err(refuse(format!(
                "argument {number} starts at byte {offset}, no multiple of {alignment}"
            )));
        }
        // A descriptor cannot be empty; the kernel sees from its parameters that there is nothing.
        let (offset, bytes) = match range.bytes {
            0 => (0, buffer.info.bytes.min(16)),
            bytes => (range.offset, bytes),
        };
        if bytes > limit {
            return Err(DeviceError::Limit { what: "a kernel argument", asked: bytes, limit });
        }
        match binding.texel {
            None => {
                Ok(Argument::Range(vk::DescriptorBufferInfo { buffer: buffer.raw, offset, range: bytes }))
            }
            Some((format, texel)) => {
                // Whole texels; the last one may reach into the bytes after the argument.
                let whole = bytes.next_multiple_of(texel);
                if offset + whole > buffer.info.bytes {
                    let number = binding.number;
                    return Err(refuse(format!(
                        "argument {number} ends in part of a texel of {texel} bytes"
                    )));
                }
                let (view, lease) = buffer.texel_view(device, format, offset, whole)?;
                leases.push(lease);
                Ok(Argument::View(view))
            }
        }
    }
}

/// What a buffer must have been made for.
fn usage_of(ty: vk::DescriptorType) -> vk::BufferUsageFlags {
    match ty {
        vk::DescriptorType::UNIFORM_BUFFER => vk::BufferUsageFlags::UNIFORM_BUFFER,
        vk::DescriptorType::UNIFORM_TEXEL_BUFFER => vk::BufferUsageFlags::UNIFORM_TEXEL_BUFFER,
        vk::DescriptorType::STORAGE_TEXEL_BUFFER => vk::BufferUsageFlags::STORAGE_TEXEL_BUFFER,
        _ => vk::BufferUsageFlags::STORAGE_BUFFER,
    }
}

pub(super) struct Encoder<'a> {
    pub(super) device: &'a Device,
    pub(super) command: vk::CommandBuffer,
    pub(super) buffers: &'a SlotTable<BufferId, Buffer>,
    kernels: &'a SlotTable<DeviceKernelId, Kernel>,
    cache: &'a PipelineCache,
    bound: vk::Pipeline,
}

// SAFETY of the commands below: the command buffer is recording, outside any render pass, on a queue family
// with compute and transfer; its handles are held by the tables, which are locked.
impl Encoder<'_> {
    /// Brings images into the layout that they keep. What their memory held before is lost, and it has no
    /// user left: the transition waits for everything before it.
    fn begin_images(&self, recording: &Recording, leases: &mut Vec<Lease>) -> Result<(), DeviceError> {
        if recording.images.is_empty() {
            return Ok(());
        }
        let range = vk::ImageSubresourceRange {
            aspect_mask: vk::ImageAspectFlags::COLOR,
            level_count: 1,
            layer_count: 1,
            ..Default::default()
        };
        let Barrier { src, dst } = Barrier::FULL;
        let ((src_stages, src_access), (dst_stages, dst_access)) = (scope(src), scope(dst));
        let mut barriers = Vec::with_capacity(recording.images.len());
        for (at, image) in &recording.images {
            let buffer = self.buffers.get(at.buffer)?;
            buffer.check(at)?;
            let (raw, lease) = buffer.raw_image(self.device, at.offset, image)?;
            leases.push(lease);
            barriers.push(
                vk::ImageMemoryBarrier::default()
                    .image(raw)
                    .subresource_range(range)
                    .old_layout(vk::ImageLayout::UNDEFINED)
                    .new_layout(vk::ImageLayout::GENERAL)
                    .src_queue_family_index(vk::QUEUE_FAMILY_IGNORED)
                    .dst_queue_family_index(vk::QUEUE_FAMILY_IGNORED)
                    .src_access_mask(src_access)
                    .dst_access_mask(dst_access),
            );
        }
        // SAFETY: as above; images of this device, whose buffers are held by the table.
        unsafe {
            let none = vk::DependencyFlags::empty();
            let raw = self.device.raw();
            raw.cmd_pipeline_barrier(self.command, src_stages, dst_stages, none, &[], &[], &barriers);
        }
        Ok(())
    }

    fn dispatch(
        &mut self,
        dispatch: &Dispatch,
        sets: &mut impl Iterator<Item = vk::DescriptorSet>,
    ) -> Result<(), DeviceError> {
        let kernel = self.kernels.get(dispatch.kernel)?;
        let limits = &self.device.info.limits;
        for (groups, limit) in dispatch.groups.iter().zip(limits.max_groups) {
            let (asked, limit) = (u64::from(*groups), u64::from(limit));
            if asked > limit {
                return Err(DeviceError::Limit { what: "the number of work-groups", asked, limit });
            }
        }
        let (given, takes) = (dispatch.params.len(), kernel.params_bytes as usize);
        let mut params = [0; MAX_PARAMS];
        if given != takes || takes > params.len() {
            let log = format!("it takes {takes} bytes of parameters and was given {given}");
            return Err(DeviceError::Program { kernel: kernel.name.clone(), log });
        }
        params[..given].copy_from_slice(&dispatch.params);
        let (mut pipeline, mut layout, mut pushed) =
            (kernel.pipeline, kernel.layout, takes.next_multiple_of(4));
        if let Some(part) = &dispatch.part {
            let of_part = kernel.part_pipeline(self.device, self.cache, part.axis)?;
            (pipeline, layout) = (of_part.pipeline, of_part.layout);
            pushed = of_part.offset_bytes + PART_BYTES as usize;
            let words = [part.first, part.whole].into_iter().flat_map(u32::to_ne_bytes);
            params[of_part.offset_bytes..pushed].iter_mut().zip(words).for_each(|(byte, word)| *byte = word);
        }
        let raw = self.device.raw();
        // SAFETY: as above; set and parameters fit the kernel's layout (VUID-vkCmdBindDescriptorSets-pDescriptorSets-00358,
        // VUID-vkCmdPushConstants-offset-01795, VUID-vkCmdDispatch-groupCountX-00386).
        unsafe {
            if self.bound != pipeline {
                raw.cmd_bind_pipeline(self.command, vk::PipelineBindPoint::COMPUTE, pipeline);
                self.bound = pipeline;
            }
            if !kernel.bindings.is_empty()
                && let Some(set) = sets.next()
            {
                let point = vk::PipelineBindPoint::COMPUTE;
                raw.cmd_bind_descriptor_sets(self.command, point, layout, 0, &[set], &[]);
            }
            if pushed > 0 {
                let stage = vk::ShaderStageFlags::COMPUTE;
                raw.cmd_push_constants(self.command, layout, stage, 0, &params[..pushed]);
            }
            let [x, y, z] = dispatch.groups;
            raw.cmd_dispatch(self.command, x, y, z);
        }
        Ok(())
    }

    fn copy(&self, src: &BufferRange, dst: &BufferRange) -> Result<(), DeviceError> {
        let (from, to) = (self.buffers.get(src.buffer)?, self.buffers.get(dst.buffer)?);
        from.check(src)?;
        to.check(dst)?;
        from.check_usage(vk::BufferUsageFlags::TRANSFER_SRC)?;
        to.check_usage(vk::BufferUsageFlags::TRANSFER_DST)?;
        if src.bytes != dst.bytes {
            return Err(DeviceError::Limit { what: "a copy's source", asked: src.bytes, limit: dst.bytes });
        }
        let mut done = 0;
        while done < src.bytes {
            let region = vk::BufferCopy {
                src_offset: src.offset + done,
                dst_offset: dst.offset + done,
                size: (src.bytes - done).min(MAX_COPY),
            };
            done += region.size;
            // SAFETY: as above; in range and not empty (VUID-vkCmdCopyBuffer-srcOffset-00113, -size-00115,
            // VUID-VkBufferCopy-size-01988); that the ranges do not overlap is the recording's contract.
            unsafe { self.device.raw().cmd_copy_buffer(self.command, from.raw, to.raw, &[region]) };
        }
        Ok(())
    }

    fn fill(&self, dst: &BufferRange, value: u32) -> Result<(), DeviceError> {
        let to = self.buffers.get(dst.buffer)?;
        to.check(dst)?;
        to.check_usage(vk::BufferUsageFlags::TRANSFER_DST)?;
        if !dst.offset.is_multiple_of(4) || !dst.bytes.is_multiple_of(4) {
            return Err(DeviceError::Unsupported {
                what: format!(
                    "a fill of {} bytes at byte {}: both must be multiples of 4",
                    dst.bytes, dst.offset
                ),
            });
        }
        if dst.bytes > 0 {
            // SAFETY: as above; words in range (VUID-vkCmdFillBuffer-dstOffset-00024, -00025, -size-00026, -00028).
            unsafe { self.device.raw().cmd_fill_buffer(self.command, to.raw, dst.offset, dst.bytes, value) };
        }
        Ok(())
    }

    fn barrier(&self, barrier: Barrier) {
        let raw = self.device.raw();
        if let Some(barrier2) = self.device.barrier2 {
            let ((src_stage, _), (dst_stage, dst_access)) = (scope2(barrier.src), scope2(barrier.dst));
            // Only writes are made available.
            let (_, src_access) = scope2(barrier.src.writes());
            let memory = [vk::MemoryBarrier2::default()
                .src_stage_mask(src_stage)
                .src_access_mask(src_access)
                .dst_stage_mask(dst_stage)
                .dst_access_mask(dst_access)];
            let info = vk::DependencyInfo::default().memory_barriers(&memory);
            // SAFETY: as above; synchronization2 is on, VUID-vkCmdPipelineBarrier2-synchronization2-03848.
            unsafe { barrier2(self.command, &info) };
            return;
        }
        let ((src_stage, _), (dst_stage, dst_access)) = (scope(barrier.src), scope(barrier.dst));
        let (_, src_access) = scope(barrier.src.writes());
        let memory = [vk::MemoryBarrier::default().src_access_mask(src_access).dst_access_mask(dst_access)];
        // Without synchronization2 a stage mask may not be empty, VUID-vkCmdPipelineBarrier-srcStageMask-03937.
        let or = |stage: vk::PipelineStageFlags, none| if stage.is_empty() { none } else { stage };
        let src_stage = or(src_stage, vk::PipelineStageFlags::TOP_OF_PIPE);
        let dst_stage = or(dst_stage, vk::PipelineStageFlags::BOTTOM_OF_PIPE);
        // SAFETY: as above.
        unsafe {
            let flags = vk::DependencyFlags::empty();
            raw.cmd_pipeline_barrier(self.command, src_stage, dst_stage, flags, &memory, &[], &[]);
        }
    }
}

/// Stages and accesses of a set of kinds. Texel views are read as sampled, everything else as storage.
fn scope2(access: Access) -> (vk::PipelineStageFlags2, vk::AccessFlags2) {
    use vk::{AccessFlags2 as A, PipelineStageFlags2 as S};
    let kinds = [
        (
            Access::KERNEL_READ,
            S::COMPUTE_SHADER,
            A::SHADER_STORAGE_READ | A::SHADER_SAMPLED_READ | A::UNIFORM_READ,
        ),
        (Access::KERNEL_WRITE, S::COMPUTE_SHADER, A::SHADER_STORAGE_WRITE),
        (Access::TRANSFER_READ, S::ALL_TRANSFER, A::TRANSFER_READ),
        (Access::TRANSFER_WRITE, S::ALL_TRANSFER, A::TRANSFER_WRITE),
        (Access::HOST_READ, S::HOST, A::HOST_READ),
        (Access::HOST_WRITE, S::HOST, A::HOST_WRITE),
    ];
    let named = kinds.into_iter().filter(|(kind, ..)| access.contains(*kind));
    named.fold((S::NONE, A::NONE), |(stages, accesses), (_, stage, bits)| (stages | stage, accesses | bits))
}

fn scope(access: Access) -> (vk::PipelineStageFlags, vk::AccessFlags) {
    use vk::{AccessFlags as A, PipelineStageFlags as S};
    let kinds = [
        (Access::KERNEL_READ, S::COMPUTE_SHADER, A::SHADER_READ | A::UNIFORM_READ),
        (Access::KERNEL_WRITE, S::COMPUTE_SHADER, A::SHADER_WRITE),
        (Access::TRANSFER_READ, S::TRANSFER, A::TRANSFER_READ),
        (Access::TRANSFER_WRITE, S::TRANSFER, A::TRANSFER_WRITE),
        (Access::HOST_READ, S::HOST, A::HOST_READ),
        (Access::HOST_WRITE, S::HOST, A::HOST_WRITE),
    ];
    let named = kinds.into_iter().filter(|(kind, ..)| access.contains(*kind));
    named.fold((S::empty(), A::empty()), |(stages, accesses), (_, stage, bits)| {
        (stages | stage, accesses | bits)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_names_the_stages_of_its_kinds_and_no_other() {
        let (stages, access) = scope2(Access::KERNEL_WRITE | Access::TRANSFER_WRITE);
        assert_eq!(stages, vk::PipelineStageFlags2::COMPUTE_SHADER | vk::PipelineStageFlags2::ALL_TRANSFER);
        assert_eq!(access, vk::AccessFlags2::SHADER_STORAGE_WRITE | vk::AccessFlags2::TRANSFER_WRITE);
        assert_eq!(scope2(Access::HOST_READ), (vk::PipelineStageFlags2::HOST, vk::AccessFlags2::HOST_READ));
        assert_eq!(scope2(Access::NONE), (vk::PipelineStageFlags2::NONE, vk::AccessFlags2::NONE));
        let (stages, access) = scope(Access::HOST_WRITE | Access::KERNEL_READ);
        assert_eq!(stages, vk::PipelineStageFlags::HOST | vk::PipelineStageFlags::COMPUTE_SHADER);
        assert!(
            access.contains(vk::AccessFlags::HOST_WRITE) && !access.contains(vk::AccessFlags::SHADER_WRITE)
        );
    }

    #[test]
    fn a_pool_holds_what_fits_in_every_kind() {
        let small = Room { sets: 2, descriptors: [4, 0, 0, 0, 0, 0] };
        assert!(small.holds(&Room { sets: 1, descriptors: [4, 0, 0, 0, 0, 0] }));
        assert!(!small.holds(&Room { sets: 3, descriptors: [1, 0, 0, 0, 0, 0] }));
        assert!(!small.holds(&Room { sets: 1, descriptors: [1, 0, 1, 0, 0, 0] }));
    }
}
