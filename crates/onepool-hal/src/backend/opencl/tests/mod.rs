//! The backend on the best device there is: PoCL where there is no GPU.

mod buffers;
mod cache;
mod driver;
#[cfg(not(without_glslang))]
mod images;
mod kernels;
mod mapping;
mod queues;

use std::sync::Arc;

use super::OpenClDriver;
use super::context::Context;
use crate::backend::*;
use crate::kernel::{KernelSource, NativeKernel};
use crate::recording::*;
use onepool::kernel::{grid_1d, params};
use onepool_core::memory::coherency::Access;

const READ: Access = Access::KERNEL_READ;
const WRITE: Access = Access::KERNEL_WRITE;

/// y = a * x + b, as someone writes it who has only OpenCL: `params::Axpb` by value.
const OWN: &str = "
typedef struct { uint n; float a; float b; } Params;
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void own(__global const float *x, __global float *y, Params p) {
    const size_t step = get_global_size(0) * get_global_size(1) * get_global_size(2);
    size_t at = get_global_id(0) + get_global_size(0) * (get_global_id(1) + get_global_size(1) * get_global_id(2));
    for (; at < p.n; at += step) { y[at] = p.a * x[at] + p.b; }
}
";

struct Fixture {
    context: Arc<Context>,
}

impl Fixture {
    fn new() -> Self {
        Fixture::with(&ContextDesc::default())
    }

    fn with(desc: &ContextDesc) -> Self {
        Fixture { context: OpenClDriver::open(OpenClDriver, 0, desc).unwrap() }
    }

    /// A context that believes its device shares no memory with the host.
    fn discrete() -> Self {
        let context = OpenClDriver.open_apart(0, &ContextDesc::default());
        Fixture { context: context.unwrap() }
    }

    fn queue(&self) -> Arc<dyn QueueBackend> {
        self.context.create_queue().unwrap()
    }

    fn buffer(&self, bytes: u64, placement: Placement) -> BufferId {
        self.context.create_buffer(&BufferDesc { bytes, placement, label: "test" }).unwrap()
    }

    /// A mapped buffer of these elements, flushed.
    fn upload<T: bytemuck::Pod>(&self, data: &[T]) -> BufferId {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let buffer = self.buffer(bytes.len() as u64, Placement::Shared);
        let host = self.context.buffer_info(buffer).unwrap().host.unwrap();
        // SAFETY: mapped, as long as `bytes`, and not in use by the device.
        unsafe { host.0.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.context.flush(&[self.all(buffer)]).unwrap();
        buffer
    }

    /// The elements of a mapped buffer, invalidated.
    fn download<T: bytemuck::Pod>(&self, buffer: BufferId) -> Vec<T> {
        let range = self.all(buffer);
        self.context.invalidate(&[range]).unwrap();
        let host = self.context.buffer_info(buffer).unwrap().host.unwrap();
        // SAFETY: mapped, of that size, and the device is done with it.
        let bytes = unsafe { std::slice::from_raw_parts(host.0.as_ptr(), range.bytes as usize) };
        bytemuck::pod_collect_to_vec(bytes)
    }

    fn own(&self) -> DeviceKernelId {
        self.create(&own_source(OWN), &[]).unwrap()
    }

    fn create(&self, source: &KernelSource, spec: &[(u32, u32)]) -> Result<DeviceKernelId, DeviceError> {
        self.context.create_kernel(&KernelDesc { source, spec })
    }

    fn run(&self, queue: &Arc<dyn QueueBackend>, recording: &Recording) -> Timepoint {
        let point = queue.submit(recording).unwrap();
        queue.wait(point, None).unwrap();
        point
    }

    fn all(&self, buffer: BufferId) -> BufferRange {
        let bytes = self.context.buffer_info(buffer).unwrap().bytes;
        BufferRange { buffer, offset: 0, bytes }
    }
}

/// A kernel of OpenCL C next to a native function.
fn own_source(text: &'static str) -> KernelSource {
    // SAFETY: the tests bind what their kernels touch.
    unsafe { KernelSource::from_native(NativeKernel::new("own", |_| Ok(()))).with_opencl_c(text) }
}

fn part(buffer: BufferId, offset: u64, bytes: u64) -> BufferRange {
    BufferRange { buffer, offset, bytes }
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
