//! Contexts, buffers and kernels of the tests.

#[path = "../support/disguise.rs"]
mod disguise;
#[path = "../support/foreign.rs"]
mod foreign;
#[cfg(not(without_glslang))]
#[path = "../support/glsl.rs"]
mod glsl;

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

/// The CPU, the simulated devices, the CPU with memory of its own, OpenCL, and Vulkan with its validation layer.
pub(crate) fn contexts() -> Vec<Context> {
    let own = [cpu(), sim(SimConfig::coherent()), sim(SimConfig::noncoherent()), sim(SimConfig::discrete())];
    let real =
        Registry::with_defaults().open_backend("cpu", &ContextDesc { threads: 2, ..ContextDesc::default() });
    own.into_iter().chain([behind_a_bus(real.unwrap())]).chain(opencl()).chain(vulkan()).collect()
}

pub(crate) fn opencl() -> Option<Context> {
    installed("opencl", &ContextDesc::default())
}

/// The layer checks synchronization too. Kernels are compiled from GLSL, so a build without that has none.
fn vulkan() -> Option<Context> {
    if cfg!(without_glslang) {
        return None;
    }
    installed("vulkan", &ContextDesc { validation: true, ..ContextDesc::default() })
}

/// A device of an interface; without one the test fails where `REQUIRE_BACKENDS` names it.
fn installed(api: &str, desc: &ContextDesc) -> Option<Context> {
    let opened = Registry::with_defaults().open(api, desc);
    let required = std::env::var("REQUIRE_BACKENDS").is_ok_and(|names| names.contains(api));
    match opened {
        Ok(context) => Some(context),
        Err(error) => {
            assert!(!required, "{error}");
            eprintln!("not tested on {api}: {error}");
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

/// A kernel in each form that a device may take, a work-item for each element.
struct Forms {
    native: NativeKernel,
    opencl_c: &'static str,
    glsl: &'static str,
}

impl Forms {
    fn create(self, context: &Context) -> Kernel {
        let source = match context.info().api {
            "vulkan" => compiled(self.native.name(), self.glsl),
            _ => foreign::with_opencl_c(KernelSource::from_native(self.native), self.opencl_c),
        };
        context.create_kernel(&Arc::new(source), &[]).unwrap()
    }
}

#[cfg(not(without_glslang))]
fn compiled(name: &str, glsl: &str) -> KernelSource {
    foreign::spirv(name.to_owned(), glsl::compile(glsl)).unwrap()
}

#[cfg(without_glslang)]
fn compiled(name: &str, _: &str) -> KernelSource {
    unreachable!("no device takes kernel {name} of GLSL in this build")
}

/// Adds a constant from the parameters to every f32.
pub(crate) fn add_on(context: &Context) -> Kernel {
    let opencl_c = "__kernel void add(__global const float *x, __global float *y, float by) {
        y[get_global_id(0)] = x[get_global_id(0)] + by;
    }";
    let glsl = "#version 450
        layout(local_size_x = 1) in;
        layout(set = 0, binding = 0, std430) readonly buffer X { float x[]; };
        layout(set = 0, binding = 1, std430) writeonly buffer Y { float y[]; };
        layout(push_constant) uniform P { float by; };
        void main() { y[gl_GlobalInvocationID.x] = x[gl_GlobalInvocationID.x] + by; }";
    Forms { native: add(), opencl_c, glsl }.create(context)
}

/// Adds 1 to every f32 of one argument.
pub(crate) fn increment_on(context: &Context) -> Kernel {
    let native = NativeKernel::new("in_place", |args| {
        args.take_write::<f32>(0)?.iter_mut().for_each(|x| *x += 1.0);
        Ok(())
    });
    let opencl_c = "__kernel void in_place(__global float *x) { x[get_global_id(0)] += 1.0f; }";
    let glsl = "#version 450
        layout(local_size_x = 1) in;
        layout(set = 0, binding = 0, std430) buffer X { float x[]; };
        void main() { x[gl_GlobalInvocationID.x] += 1.0; }";
    Forms { native, opencl_c, glsl }.create(context)
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
    Command::Dispatch(Dispatch::new(kernel.id(), args, params.to_vec(), groups))
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
