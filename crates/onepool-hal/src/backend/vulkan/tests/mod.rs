//! The backend on the best device there is (lavapipe where there is no GPU), under the validation layer with
//! synchronization checks; a message fails the test. Only where the user says that Wine runs the tests, which shows no
//! layers (`wine`), do they run without one.

mod cache;
mod driver;
mod kernels;
mod lost;
mod queues;
mod validation;

use std::sync::Arc;

use ash::vk;

use super::context::Context;
use super::debug::Messages;
use super::kernel::{Compiling, Kernel};
use super::{VulkanDriver, Without, wine};
use crate::backend::*;
use crate::kernel::shipped;
use crate::recording::*;
use onepool::kernel::{KernelId, grid_1d, id, params};
use onepool_core::memory::coherency::{Access, Barrier};
use onepool_core::sync::{lock, read};

const READ: Access = Access::KERNEL_READ;
const WRITE: Access = Access::KERNEL_WRITE;

/// A context whose validation messages are looked at when it is gone.
struct Fixture {
    context: Option<Arc<Context>>,
    /// `None` under Wine alone.
    messages: Option<Messages>,
}

impl Fixture {
    fn new() -> Self {
        Fixture::with(&ContextDesc::default(), Without::default())
    }

    fn with(desc: &ContextDesc, without: Without) -> Self {
        let desc = ContextDesc { validation: true, ..desc.clone() };
        let context = VulkanDriver::new().open_without(0, &desc, without).unwrap();
        let messages = context.shared.device.instance.messages().cloned();
        assert!(messages.is_some() || wine::is_said(), "the validation layer is off");
        Fixture { context: Some(context), messages }
    }

    fn context(&self) -> &Context {
        self.context.as_ref().unwrap()
    }

    /// Makes a kernel in a way of its own, and destroys it.
    fn compile(&self, desc: &KernelDesc<'_>, compiling: Compiling) -> Result<(), DeviceError> {
        let device = &self.context().shared.device;
        let kernel = Kernel::compiled(device, vk::PipelineCache::null(), desc, compiling)?;
        // SAFETY: nothing was submitted.
        unsafe { kernel.destroy(device) };
        Ok(())
    }

    fn queue(&self) -> Arc<dyn QueueBackend> {
        self.context().create_queue().unwrap()
    }

    fn buffer(&self, bytes: u64, placement: Placement) -> BufferId {
        self.context().create_buffer(&BufferDesc { bytes, placement, label: "test" }).unwrap()
    }

    /// How many views and images of a buffer there are.
    fn views(&self, buffer: BufferId) -> usize {
        read(&self.context().shared.buffers).get(buffer).unwrap().objects()
    }

    /// A mapped buffer of these elements, flushed.
    fn upload<T: bytemuck::Pod>(&self, data: &[T]) -> BufferId {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let buffer = self.buffer(bytes.len() as u64, Placement::Shared);
        let host = self.context().buffer_info(buffer).unwrap().host.unwrap();
        // SAFETY: mapped, as long as `bytes`, and not in use by the device.
        unsafe { host.0.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.context().flush(&[all(self, buffer)]).unwrap();
        buffer
    }

    /// The elements of a mapped buffer, invalidated.
    fn download<T: bytemuck::Pod>(&self, buffer: BufferId) -> Vec<T> {
        let range = all(self, buffer);
        self.context().invalidate(&[range]).unwrap();
        let host = self.context().buffer_info(buffer).unwrap().host.unwrap();
        // SAFETY: mapped, of that size, and the device is done with it.
        let bytes = unsafe { std::slice::from_raw_parts(host.0.as_ptr(), range.bytes as usize) };
        bytemuck::pod_collect_to_vec(bytes)
    }

    fn kernel(&self, id: KernelId) -> DeviceKernelId {
        self.kernel_with(id, &[])
    }

    fn kernel_with(&self, id: KernelId, spec: &[(u32, u32)]) -> DeviceKernelId {
        self.context().create_kernel(&KernelDesc { source: &shipped(id), spec }).unwrap()
    }

    fn run(&self, queue: &Arc<dyn QueueBackend>, recording: &Recording) -> Timepoint {
        let point = queue.submit(recording).unwrap();
        queue.wait(point, None).unwrap();
        point
    }

    fn take_messages(&self) -> Vec<String> {
        self.context().validation_messages()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.context = None;
        if let Some(messages) = self.messages.as_ref().filter(|_| !std::thread::panicking()) {
            let messages = lock(messages);
            assert!(messages.is_empty(), "{messages:#?}");
        }
    }
}

fn all(fixture: &Fixture, buffer: BufferId) -> BufferRange {
    let bytes = fixture.context().buffer_info(buffer).unwrap().bytes;
    BufferRange { buffer, offset: 0, bytes }
}

fn part(buffer: BufferId, offset: u64, bytes: u64) -> BufferRange {
    BufferRange { buffer, offset, bytes }
}

fn barrier(src: Access, dst: Access) -> Command {
    Command::Barrier(Barrier { src, dst })
}

fn to_host() -> Command {
    barrier(WRITE | Access::TRANSFER_WRITE, Access::HOST_READ)
}

fn recording(commands: Vec<Command>) -> Recording {
    Recording { commands, ..Default::default() }
}

/// y = a * x + b over `n` elements of the kernel's type.
fn axpb(kernel: DeviceKernelId, x: BufferRange, y: BufferRange, n: u32, a: f32, b: f32) -> Command {
    Command::Dispatch(Dispatch::new(
        kernel,
        vec![Arg::Buffer(x, READ), Arg::Buffer(y, WRITE)],
        bytemuck::bytes_of(&params::Axpb { n, a, b }).to_vec(),
        grid_1d(n.into(), 64, 65535),
    ))
}
