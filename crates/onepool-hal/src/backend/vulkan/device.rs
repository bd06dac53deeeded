//! The logical device.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use ash::vk;

use super::features::{Extensions, Features};
use super::importable::{import_types, takes_dma_bufs, takes_opaque_fds};
use super::instance::Instance;
use super::kernel_memory::KernelCounts;
use super::layer::{self, Calls, Turn};
use super::loss::Loss;
use super::probe::{CacheKey, Probe};
use super::share::Share;
use super::subgroups::Control;
use super::{Without, error, image_rules};
use crate::backend::pace::Waiters;
use crate::backend::{ContextDesc, DeviceError, DeviceInfo, DeviceKind, QueuePriority};
use onepool_core::memory::budget::HeapBudget;
use onepool_core::memory::image::Filter;
use onepool_core::sync::lock;

/// A `VkDevice` with its queues and the functions beyond Vulkan 1.1 that it has.
pub(super) struct Device {
    raw: ash::Device,
    pub(super) physical: vk::PhysicalDevice,
    pub(super) info: DeviceInfo,
    pub(super) cache: CacheKey,
    /// What kernels may ask of their subgroups.
    pub(super) subgroups: Control,
    pub(super) family: u32,
    pub(super) timestamp_bits: u32,
    pub(super) timeline: Option<TimelineFunctions>,
    pub(super) barrier2: Option<vk::PFN_vkCmdPipelineBarrier2>,
    pub(super) host_memory: Option<ash::ext::external_memory_host::Device>,
    /// Functions for dma-bufs, where buffers of ours can be made of them.
    pub(super) dma_bufs: Option<ash::khr::external_memory_fd::Device>,
    /// Functions for descriptors of memory, where buffers of ours can be made of opaque ones.
    pub(super) memory_fds: Option<ash::khr::external_memory_fd::Device>,
    /// Whether memory may be handed over to other drivers.
    pub(super) has_foreign_family: bool,
    /// Whether images may be laid out as DRM format modifiers say.
    pub(super) has_modifiers: bool,
    has_budgets: bool,
    /// Where the device works in the host's memory and the kernel counts that.
    pub(super) kernel_counts: Option<KernelCounts>,
    /// How pipelines of the caller's kernels are kept inside their arguments.
    pub(super) guard: Option<vk::PipelineRobustnessBufferBehaviorEXT>,
    // Nearest and linear, where there are images.
    samplers: Option<[vk::Sampler; 2]>,
    queues: Vec<Mutex<vk::Queue>>,
    next_queue: AtomicUsize,
    lost: OnceLock<Loss>,
    /// Whether a loss may be told of before the work is over.
    pub(super) loses_early: bool,
    pub(super) waiters: Waiters,
    /// The device is an application's.
    share: Option<Share>,
    // Outlives the device.
    pub(super) instance: Arc<Instance>,
}

/// Functions of timeline semaphores, from the core or the extension.
#[derive(Clone, Copy)]
pub(super) struct TimelineFunctions {
    pub(super) wait: vk::PFN_vkWaitSemaphores,
    pub(super) counter: vk::PFN_vkGetSemaphoreCounterValue,
}

impl Device {
    /// Opens the device that `probe` found usable.
    pub(super) fn open(
        instance: Arc<Instance>,
        probe: Probe,
        desc: &ContextDesc,
        without: Without,
    ) -> Result<Self, DeviceError> {
        let Probe { physical, ref info, ref extensions, mut features, family, queues, .. } = probe;
        let priorities = vec![1.0; queues as usize];
        let names: Vec<_> = extensions.to_enable().map(|name| name.as_ptr()).collect();
        let guard = features.guard(desc.robustness);
        let mut chain = features.chain(extensions);
        let _alone = layer::alone();
        let calls = instance.functions();
        let mut create = |low: bool| {
            let mut global = vk::DeviceQueueGlobalPriorityCreateInfoKHR::default()
                .global_priority(vk::QueueGlobalPriorityKHR::LOW);
            let queue =
                vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&priorities);
            let queue_infos = [if low { queue.push_next(&mut global) } else { queue }];
            // The chain is the same at every call, and pushed onto nothing.
            let device_info = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queue_infos)
                .enabled_extension_names(&names);
            let device_info = vk::DeviceCreateInfo { p_next: (&raw mut chain).cast(), ..device_info };
            // SAFETY: the family has that many queues; every extension and feature was reported by this
            // device (VUID-vkCreateDevice-ppEnabledExtensionNames-01387, VUID-VkDeviceCreateInfo-pNext-00373).
            unsafe { calls.create_device(physical, &device_info, None) }
        };
        let low = desc.priority == QueuePriority::Auto && info.may_show() && has_priorities(extensions);
        let mut created = create(low);
        // A system may keep priorities for whom it trusts; a driver may have no low one.
        if let (true, Err(code)) = (low, &created)
            && matches!(*code, vk::Result::ERROR_NOT_PERMITTED_KHR | vk::Result::ERROR_INITIALIZATION_FAILED)
        {
            tracing::debug!(target: "onepool::vulkan", %code, "queues of low priority were refused");
            created = create(false);
        }
        let raw = created.map_err(|code| error("vkCreateDevice", code, 0))?;
        let queues = (0..queues)
            // SAFETY: a queue that was created with the device, VUID-vkGetDeviceQueue-queueIndex-00385.
            .map(|index| unsafe { raw.get_device_queue(family, index) })
            .collect();
        let probe = Probe { features, ..probe };
        Ok(Device::made(instance.clone(), probe, (raw, queues), guard, without, None))
    }

    /// The device that an application made.
    ///
    /// # Safety
    /// As [`ApplicationDevice::open`](super::ApplicationDevice::open).
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for a robustness that it was not made with.
    pub(super) unsafe fn of_application(
        instance: Arc<Instance>,
        probe: Probe,
        (raw, queue, share): (ash::Device, vk::Queue, Share),
        desc: &ContextDesc,
        without: Without,
    ) -> Result<Self, DeviceError> {
        let all = Features::query(instance.functions(), probe.physical, &probe.extensions);
        let second = all.robustness2.robust_buffer_access2 == vk::TRUE;
        let guard = probe.features.guard_as_made(desc.robustness, second)?;
        Ok(Device::made(instance, probe, (raw, vec![queue]), guard, without, Some(share)))
    }

    /// What all devices have, however they were made.
    fn made(
        instance: Arc<Instance>,
        probe: Probe,
        (raw, queues): (ash::Device, Vec<vk::Queue>),
        guard: Option<vk::PipelineRobustnessBufferBehaviorEXT>,
        without: Without,
        share: Option<Share>,
    ) -> Self {
        let Probe { physical, mut info, extensions, features, family, timestamp_bits, .. } = probe;
        let Probe { cache, subgroups, loses_early, .. } = probe;
        let has_timeline = features.has_timeline() && !without.timeline;
        let has_barrier2 = features.has_synchronization2() && !without.synchronization2;
        let calls = instance.functions();
        let host_memory =
            info.import.is_some().then(|| ash::ext::external_memory_host::Device::new(calls, &raw));
        if let (Some(functions), Some(rules)) = (&host_memory, &info.import) {
            info.memory = info.memory.importing(import_types(functions, &raw, rules.alignment));
            if let Some(refusal) = info.memory.import_refusal() {
                info.import = None;
                info.advice.push(refusal.to_string());
            }
        }
        let dma_bufs = takes_dma_bufs(calls, physical, &extensions)
            .then(|| ash::khr::external_memory_fd::Device::new(calls, &raw));
        let memory_fds = takes_opaque_fds(calls, physical, &extensions)
            .then(|| ash::khr::external_memory_fd::Device::new(calls, &raw));
        let shared = info.memory.shares_host_memory() && !only_compiles(&info);
        // SAFETY: the device that was made is of this instance, and one that is opened speaks 1.1.
        let kernel_counts = shared.then(|| unsafe { KernelCounts::of(calls, physical) }).flatten();
        // Drivers that only compile were seen to crash on an image.
        let samplers =
            if only_compiles(&info) { None } else { image_rules::probe(calls, physical, &raw, &mut info) };
        Device {
            physical,
            dma_bufs,
            memory_fds,
            has_foreign_family: extensions.has(ash::ext::queue_family_foreign::NAME),
            has_modifiers: extensions.has(ash::ext::image_drm_format_modifier::NAME),
            has_budgets: extensions.has(ash::ext::memory_budget::NAME),
            kernel_counts,
            guard,
            cache,
            subgroups,
            family,
            timestamp_bits,
            timeline: has_timeline.then(|| timeline_functions(calls, &raw, &extensions)),
            barrier2: has_barrier2.then(|| barrier2_function(calls, &raw, &extensions)),
            host_memory,
            samplers,
            queues: queues.into_iter().map(Mutex::new).collect(),
            share,
            next_queue: AtomicUsize::new(0),
            lost: OnceLock::new(),
            loses_early,
            waiters: Waiters::new(info.kind == DeviceKind::Cpu),
            info,
            raw,
            instance,
        }
    }

    /// The device's functions, with a turn at the validation layer.
    pub(super) fn raw(&self) -> Calls<'_, ash::Device> {
        Calls::new(&self.raw, self.instance.layer())
    }

    /// A turn at the validation layer, for functions that are not in [`Device::raw`].
    pub(super) fn turn(&self) -> Turn {
        self.instance.layer().turn()
    }

    /// The sampler that filters so.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device has no images.
    pub(super) fn sampler(&self, filter: Filter) -> Result<vk::Sampler, DeviceError> {
        match (self.samplers, filter) {
            (Some([nearest, _]), Filter::Nearest) => Ok(nearest),
            (Some([_, linear]), Filter::Linear) => Ok(linear),
            (None, _) => Err(DeviceError::Unsupported { what: "images in buffers".into() }),
        }
    }

    /// The queue that the next [`super::queue::Queue`] submits to, as an index.
    pub(super) fn assign_queue(&self) -> usize {
        self.next_queue.fetch_add(1, Ordering::Relaxed) % self.queues.len().max(1)
    }

    /// Runs `call` with a queue to itself: VkQueue is externally synchronized.
    pub(super) fn with_queue<R>(
        &self,
        index: usize,
        call: impl FnOnce(vk::Queue) -> Result<R, DeviceError>,
    ) -> Result<R, DeviceError> {
        let Some(queue) = self.queues.get(index) else {
            return Err(DeviceError::Stale { object: "queue" });
        };
        let queue = lock(queue);
        let Some(held) = self.share.as_ref().and_then(|share| share.lock.as_ref()) else {
            return call(*queue);
        };
        let (mut call, mut result) = (Some(call), None);
        held(&mut || {
            if let Some(call) = call.take() {
                result = Some(call(*queue));
            }
        });
        result.unwrap_or_else(|| {
            let what = "a lock of the queue that does not call what it is given".to_owned();
            Err(DeviceError::Unsupported { what })
        })
    }

    /// Budget and usage of each heap, where the driver tells.
    pub(super) fn heap_budgets(&self) -> Vec<HeapBudget> {
        if !self.has_budgets {
            return Vec::new();
        }
        let mut budgets = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut memory = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budgets);
        let calls = self.instance.functions();
        // SAFETY: the device is of this instance and has the extension; the chain lives until the call returns.
        unsafe { calls.get_physical_device_memory_properties2(self.physical, &mut memory) };
        let heaps = self.info.memory.heaps().len();
        let both = budgets.heap_budget.into_iter().zip(budgets.heap_usage).take(heaps);
        both.map(|(budget, usage)| HeapBudget { budget, usage }).collect()
    }

    /// A failed call as an error; a lost device stays lost.
    pub(super) fn error(&self, call: &'static str, code: vk::Result, bytes: u64) -> DeviceError {
        let error = error(call, code, bytes);
        if let DeviceError::Lost { detail } = &error {
            let shared = self.is_shared();
            self.lost.get_or_init(|| Loss::new(detail.clone(), call, shared)).told_again(call, shared);
        }
        error
    }

    /// Whether the device still works, as far as is known.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] with what was said first.
    pub(super) fn alive(&self) -> Result<(), DeviceError> {
        match self.lost.get() {
            None => Ok(()),
            Some(loss) => Err(DeviceError::Lost { detail: loss.detail.clone() }),
        }
    }

    /// The device's loss; `None` where it still works, as far as is known.
    pub(super) fn loss(&self) -> Option<&Loss> {
        self.lost.get()
    }

    /// Marks the device lost, as a call that returns `VK_ERROR_DEVICE_LOST` does.
    #[cfg(test)]
    pub(super) fn lose(&self) -> DeviceError {
        self.error("test", vk::Result::ERROR_DEVICE_LOST, 0)
    }

    /// Whether it is an application's.
    pub(super) fn is_shared(&self) -> bool {
        self.share.is_some()
    }

    /// Waits until every queue is idle; a lost device is. An application's device is left alone: it has queues of others,
    /// and each queue of ours has waited for its own work.
    pub(super) fn wait_idle(&self) {
        if self.is_shared() {
            return;
        }
        // Nothing was submitted to such a device, and drivers were seen to crash.
        if only_compiles(&self.info) {
            return;
        }
        let _queues: Vec<_> = self.queues.iter().map(lock).collect();
        // SAFETY: every queue is locked, VUID-vkDeviceWaitIdle-None (host access to all queues).
        if let Err(code) = unsafe { self.raw().device_wait_idle() } {
            let error = self.error("vkDeviceWaitIdle", code, 0);
            tracing::warn!(target: "onepool::vulkan", %error, "tearing down");
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.wait_idle();
        let _alone = layer::alone();
        // SAFETY: whoever made an object of the device holds the device and is gone, so its objects are
        // destroyed (VUID-vkDestroyDevice-device-05137); destroyed once.
        unsafe {
            for sampler in self.samplers.into_iter().flatten() {
                self.raw.destroy_sampler(sampler, None);
            }
            if !self.is_shared() {
                self.raw.destroy_device(None);
            }
        }
    }
}

/// Whether kernels can be compiled for the device and nothing can run on it.
fn only_compiles(info: &DeviceInfo) -> bool {
    info.unusable.is_some()
}

/// Whether priorities of queues may hold between programs.
fn has_priorities(extensions: &Extensions) -> bool {
    extensions.has(ash::khr::global_priority::NAME) || extensions.has(ash::ext::global_priority::NAME)
}

fn timeline_functions(
    instance: &ash::Instance,
    device: &ash::Device,
    extensions: &Extensions,
) -> TimelineFunctions {
    if extensions.is_core(ash::khr::timeline_semaphore::NAME) {
        let core = device.fp_v1_2();
        return TimelineFunctions { wait: core.wait_semaphores, counter: core.get_semaphore_counter_value };
    }
    let khr = ash::khr::timeline_semaphore::Device::new(instance, device);
    TimelineFunctions {
        wait: khr.fp().wait_semaphores_khr,
        counter: khr.fp().get_semaphore_counter_value_khr,
    }
}

fn barrier2_function(
    instance: &ash::Instance,
    device: &ash::Device,
    extensions: &Extensions,
) -> vk::PFN_vkCmdPipelineBarrier2 {
    if extensions.is_core(ash::khr::synchronization2::NAME) {
        return device.fp_v1_3().cmd_pipeline_barrier2;
    }
    ash::khr::synchronization2::Device::new(instance, device).fp().cmd_pipeline_barrier2_khr
}
