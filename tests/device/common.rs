//! Contexts, buffers and kernels of the tests.

use std::sync::Arc;

use onepool::backend::sim::{SimConfig, SimDriver};
use onepool::backend::{BufferDesc, ContextDesc, Placement};
use onepool::device::{Buffer, Context, Error, Problem, UsageError};
use onepool::kernel::NativeKernel;
use onepool::memory::coherency::{Access, Barrier};
use onepool::recording::{Arg, BufferRange, Command, Dispatch};
use onepool::registry::Registry;

pub(crate) fn sim(config: SimConfig) -> Context {
    let mut registry = Registry::empty();
    registry.register(Box::new(SimDriver::with(vec![config])));
    registry.open("sim:0", &ContextDesc::default()).unwrap()
}

/// The simulated devices and the CPU.
pub(crate) fn contexts() -> Vec<Context> {
    vec![cpu(), sim(SimConfig::coherent()), sim(SimConfig::noncoherent()), sim(SimConfig::discrete())]
}

pub(crate) fn cpu() -> Context {
    Registry::with_defaults().open("cpu", &ContextDesc { threads: 2, ..ContextDesc::default() }).unwrap()
}

pub(crate) fn buffer(context: &Context, bytes: u64) -> Buffer {
    context.create_buffer(&BufferDesc { bytes, placement: Placement::Shared, label: "test" }).unwrap()
}

/// Adds a constant from the parameters to every f32.
pub(crate) fn add() -> NativeKernel {
    NativeKernel::new("add", |args| {
        let by: f32 = bytemuck::pod_read_unaligned(args.params());
        let x = args.read::<f32>(0)?;
        let y = args.take_write::<f32>(1)?;
        y.iter_mut().zip(x).for_each(|(y, x)| *y = x + by);
        Ok(())
    })
}

pub(crate) fn floats(buffer: &Buffer) -> Vec<f32> {
    buffer.map_read().unwrap().as_slice_of::<f32>().unwrap().to_vec()
}

pub(crate) fn problem(error: Error) -> Problem {
    match error {
        Error::Usage(UsageError { problem, .. }) => problem,
        other => panic!("no usage error: {other}"),
    }
}

/// A dispatch of a kernel that reads `x` and writes `y`.
pub(crate) fn unary(
    kernel: &onepool::device::Kernel,
    x: BufferRange,
    y: BufferRange,
    params: &[u8],
) -> Command {
    let args = vec![Arg::Buffer(x, Access::KERNEL_READ), Arg::Buffer(y, Access::KERNEL_WRITE)];
    Command::Dispatch(Dispatch { kernel: kernel.id(), args, params: params.to_vec(), groups: [1; 3] })
}

pub(crate) const KERNELS: Barrier = Barrier { src: Access::KERNEL_WRITE, dst: Access::DEVICE };
pub(crate) const SHOWN: Barrier = Barrier { src: Access::DEVICE_WRITE, dst: Access::HOST_READ };

/// A kernel that runs until the flag is set, then fills its argument with ones.
pub(crate) fn gate(flag: &Arc<std::sync::atomic::AtomicBool>) -> NativeKernel {
    let flag = Arc::clone(flag);
    NativeKernel::new("gate", move |args| {
        while !flag.load(std::sync::atomic::Ordering::Acquire) {
            std::thread::yield_now();
        }
        args.take_write::<u8>(0)?.fill(1);
        Ok(())
    })
}
