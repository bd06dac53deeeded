//! Contexts, buffers and kernels of the tests.

#[path = "../support/disguise.rs"]
mod disguise;
#[path = "../support/foreign.rs"]
mod foreign;

use std::sync::Arc;

use onepool::backend::sim::{SimConfig, SimDriver};
use onepool::backend::{BufferDesc, ContextDesc, Placement};
use onepool::device::{Buffer, Context, Error, Kernel, Problem, UsageError};
use onepool::kernel::{KernelSource, NativeKernel};
use onepool::memory::coherency::{Access, Barrier};
use onepool::recording::{Arg, BufferRange, Command, Dispatch};
use onepool::registry::Registry;

use self::disguise::behind_a_bus;

pub(crate) fn sim(config: SimConfig) -> Context {
    let mut registry = Registry::empty();
    registry.register(Box::new(SimDriver::with(vec![config])));
    registry.open("sim:0", &ContextDesc::default()).unwrap()
}

/// The CPU, the simulated devices, the CPU with memory of its own, and OpenCL.
pub(crate) fn contexts() -> Vec<Context> {
    let own = [cpu(), sim(SimConfig::coherent()), sim(SimConfig::noncoherent()), sim(SimConfig::discrete())];
    let real =
        Registry::with_defaults().open_backend("cpu", &ContextDesc { threads: 2, ..ContextDesc::default() });
    own.into_iter().chain([behind_a_bus(real.unwrap())]).chain(opencl()).collect()
}

/// A device of OpenCL; without one the test fails where `REQUIRE_BACKENDS` names it.
pub(crate) fn opencl() -> Option<Context> {
    let opened = Registry::with_defaults().open("opencl", &ContextDesc::default());
    let required = std::env::var("REQUIRE_BACKENDS").is_ok_and(|names| names.contains("opencl"));
    match opened {
        Ok(context) => Some(context),
        Err(error) => {
            assert!(!required, "{error}");
            eprintln!("not tested on OpenCL: {error}");
            None
        }
    }
}

pub(crate) fn cpu() -> Context {
    Registry::with_defaults().open("cpu", &ContextDesc { threads: 2, ..ContextDesc::default() }).unwrap()
}

pub(crate) fn buffer(context: &Context, bytes: u64) -> Buffer {
    context.create_buffer(&BufferDesc { bytes, placement: Placement::Shared, label: "test" }).unwrap()
}

/// Adds a constant from the parameters to every f32: a native function, and a work-item for each element.
pub(crate) fn add_on(context: &Context) -> Kernel {
    const TEXT: &str = "__kernel void add(__global const float *x, __global float *y, float by) {
        y[get_global_id(0)] = x[get_global_id(0)] + by;
    }";
    create(context, foreign::with_opencl_c(KernelSource::from_native(add()), TEXT))
}

/// Adds 1 to every f32 of one argument.
pub(crate) fn increment_on(context: &Context) -> Kernel {
    const TEXT: &str = "__kernel void in_place(__global float *x) { x[get_global_id(0)] += 1.0f; }";
    let native = NativeKernel::new("in_place", |args| {
        args.take_write::<f32>(0)?.iter_mut().for_each(|x| *x += 1.0);
        Ok(())
    });
    create(context, foreign::with_opencl_c(KernelSource::from_native(native), TEXT))
}

fn create(context: &Context, source: KernelSource) -> Kernel {
    context.create_kernel(&Arc::new(source), &[]).unwrap()
}

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

/// A dispatch of a kernel that reads `x` and writes `y`, a work-item for each element.
pub(crate) fn unary(kernel: &Kernel, x: BufferRange, y: BufferRange, params: &[u8]) -> Command {
    let args = vec![Arg::Buffer(x, Access::KERNEL_READ), Arg::Buffer(y, Access::KERNEL_WRITE)];
    let groups = [(y.bytes / 4) as u32, 1, 1];
    Command::Dispatch(Dispatch { kernel: kernel.id(), args, params: params.to_vec(), groups })
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
