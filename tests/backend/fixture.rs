//! An opened target and short ways to its buffers, kernels and queues.

#![allow(unsafe_code, reason = "mapped memory is reached by its address")]

use std::sync::{Arc, Mutex};

use onepool::backend::{
    BufferDesc, BufferInfo, ContextBackend, ContextDesc, DeviceError, HostAddress, KernelDesc, Placement,
    QueueBackend, Timepoint,
};
use onepool::kernel::{KernelSource, NativeKernel, grid_1d, id, params};
use onepool::memory::coherency::{Access, Barrier};
use onepool::memory::host::HostRegion;
use onepool::recording::{Arg, BufferId, BufferRange, Command, DeviceKernelId, Dispatch, Recording};

use crate::foreign;
use crate::targets::{Code, Opened, Target};

pub(crate) const READ: Access = Access::KERNEL_READ;
pub(crate) const WRITE: Access = Access::KERNEL_WRITE;

/// y = a * x + b, as someone writes it who has only OpenCL: `params::Axpb` by value.
const AXPB: &str = "
typedef struct { uint n; float a; float b; } Params;
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void axpb(__global const float *x, __global float *y, Params p) {
    const size_t step = get_global_size(0) * get_global_size(1) * get_global_size(2);
    size_t at = get_global_id(0) + get_global_size(0) * (get_global_id(1) + get_global_size(1) * get_global_id(2));
    for (; at < p.n; at += step) { y[at] = p.a * x[at] + p.b; }
}
";

/// A context whose validation messages are looked at when it is gone.
pub(crate) struct Fixture {
    pub(crate) target: &'static Target,
    context: Option<Arc<dyn ContextBackend>>,
    messages: Option<Arc<Mutex<Vec<String>>>>,
}

impl Fixture {
    pub(crate) fn new(target: &'static Target) -> Self {
        Fixture::with(target, &ContextDesc::default())
    }

    pub(crate) fn with(target: &'static Target, desc: &ContextDesc) -> Self {
        let Opened { context, messages } = target.open(desc).unwrap();
        Fixture { target, context: Some(context), messages }
    }

    pub(crate) fn context(&self) -> &dyn ContextBackend {
        &**self.context.as_ref().unwrap()
    }

    pub(crate) fn queue(&self) -> Arc<dyn QueueBackend> {
        self.context().create_queue().unwrap()
    }

    pub(crate) fn buffer(&self, bytes: u64, placement: Placement) -> BufferId {
        self.context().create_buffer(&BufferDesc { bytes, placement, label: "test" }).unwrap()
    }

    pub(crate) fn info(&self, buffer: BufferId) -> BufferInfo {
        self.context().buffer_info(buffer).unwrap()
    }

    pub(crate) fn all(&self, buffer: BufferId) -> BufferRange {
        part(buffer, 0, self.info(buffer).bytes)
    }

    /// Shows the device what the host wrote.
    pub(crate) fn flush(&self, buffer: BufferId) {
        self.context().flush(&[self.all(buffer)]).unwrap();
    }

    /// Shows the host what the device wrote.
    pub(crate) fn invalidate(&self, buffer: BufferId) {
        self.context().invalidate(&[self.all(buffer)]).unwrap();
    }

    /// A mapped buffer of these elements, flushed.
    pub(crate) fn upload<T: bytemuck::Pod>(&self, data: &[T]) -> BufferId {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let buffer = self.buffer(bytes.len() as u64, Placement::Shared);
        let host = self.info(buffer).host.unwrap();
        // SAFETY: mapped, as long as `bytes`, and not in use by the device.
        unsafe { host.0.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.flush(buffer);
        buffer
    }

    /// The elements of a mapped buffer, invalidated.
    pub(crate) fn download<T: bytemuck::Pod>(&self, buffer: BufferId) -> Vec<T> {
        self.invalidate(buffer);
        mapped(&self.info(buffer))
    }

    /// Imports the first `bytes` bytes of a region, which lives until the fixture is gone.
    pub(crate) fn import(&self, region: &HostRegion, bytes: u64) -> Result<BufferId, DeviceError> {
        self.import_at(HostAddress(region.as_ptr()), bytes)
    }

    /// Imports memory that lives until the fixture is gone, or that is refused.
    pub(crate) fn import_at(&self, address: HostAddress, bytes: u64) -> Result<BufferId, DeviceError> {
        // SAFETY: every case keeps its region until its fixture is gone, and imports each page once.
        unsafe { self.context().import_host(address, bytes) }
    }

    /// y = a * x + b in the form that the target runs.
    pub(crate) fn axpb(&self) -> DeviceKernelId {
        self.create(&self.axpb_source(), &[]).unwrap()
    }

    pub(crate) fn axpb_source(&self) -> KernelSource {
        match self.target.code {
            Code::OpenClC => foreign::with_opencl_c(KernelSource::from_native(native()), AXPB),
            Code::Spirv | Code::Native => {
                let words = id::AXPB_F32.info().spirv().to_vec();
                foreign::spirv("axpb", words).unwrap().with_native(native())
            }
        }
    }

    pub(crate) fn create(
        &self,
        source: &KernelSource,
        spec: &[(u32, u32)],
    ) -> Result<DeviceKernelId, DeviceError> {
        self.context().create_kernel(&KernelDesc { source, spec })
    }

    pub(crate) fn run(&self, queue: &Arc<dyn QueueBackend>, recording: &Recording) -> Timepoint {
        let point = queue.submit(recording).unwrap();
        queue.wait(point, None).unwrap();
        point
    }

    /// Closes the context, of which queues may be left.
    pub(crate) fn close(&mut self) {
        self.context = None;
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let said = self.context.take().map(|context| context.validation_messages()).unwrap_or_default();
        if !std::thread::panicking() {
            assert_eq!(said, [""; 0]);
            if let Some(messages) = &self.messages {
                assert_eq!(*messages.lock().unwrap(), [""; 0]);
            }
        }
    }
}

/// The elements of mapped memory.
pub(crate) fn mapped<T: bytemuck::Pod>(info: &BufferInfo) -> Vec<T> {
    // SAFETY: mapped, of that size, and the device is done with it.
    let bytes = unsafe { std::slice::from_raw_parts(info.host.unwrap().0.as_ptr(), info.bytes as usize) };
    bytemuck::pod_collect_to_vec(bytes)
}

fn native() -> NativeKernel {
    NativeKernel::new("axpb", |args| {
        let params::Axpb { n, a, b } = bytemuck::pod_read_unaligned(args.params());
        let x = args.read::<f32>(0)?;
        let y = args.take_write::<f32>(1)?;
        y.iter_mut().zip(x).take(n as usize).for_each(|(y, x)| *y = a * x + b);
        Ok(())
    })
}

pub(crate) fn part(buffer: BufferId, offset: u64, bytes: u64) -> BufferRange {
    BufferRange { buffer, offset, bytes }
}

pub(crate) fn barrier(src: Access, dst: Access) -> Command {
    Command::Barrier(Barrier { src, dst })
}

/// Shows the host what was written.
pub(crate) fn to_host() -> Command {
    barrier(WRITE | Access::TRANSFER_WRITE, Access::HOST_READ)
}

pub(crate) fn recording(commands: Vec<Command>) -> Recording {
    Recording { commands, ..Default::default() }
}

/// y = a * x + b over `n` elements.
pub(crate) fn axpb(
    kernel: DeviceKernelId,
    x: BufferRange,
    y: BufferRange,
    n: u32,
    a: f32,
    b: f32,
) -> Command {
    Command::Dispatch(Dispatch::new(
        kernel,
        vec![Arg::Buffer(x, READ), Arg::Buffer(y, WRITE)],
        bytemuck::bytes_of(&params::Axpb { n, a, b }).to_vec(),
        grid_1d(n.into(), 64, 65535),
    ))
}

/// The error of a call that must not work.
pub(crate) fn stale(object: &'static str) -> DeviceError {
    DeviceError::Stale { object }
}
