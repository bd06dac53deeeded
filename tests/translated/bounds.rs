//! Kernels that reach beyond what is bound to them, and names of kernels that were made up.

use std::sync::Arc;

use onepool::backend::{BufferDesc, ContextDesc, Placement, Robustness};
use onepool::device::{Buffer, Context, Error, Problem};
use onepool::kernel::touch;
use onepool::memory::coherency::{Access, Barrier};
use onepool::recording::{Arg, Command, DeviceKernelId, Dispatch, Recording};
use onepool::registry::Registry;
use onepool::{DType, GraphBuilder, HostRegion, Session, Tensor, ops};

use super::{compile, foreign};

/// Words of the memory, of the part of it that is bound, and of the result.
const WHOLE: usize = 1024;
const PART: std::ops::Range<usize> = 256..512;
const RESULT: usize = 64;

/// Reads and then writes 64 words from word `first` of what is bound, which may be before its beginning.
const GLSL: &str = "#version 450
    layout(local_size_x = 64) in;
    layout(binding = 0) buffer X { uint x[]; };
    layout(binding = 1) buffer Y { uint y[]; };
    layout(push_constant) uniform P { uint first; };
    void main() {
        uint i = gl_GlobalInvocationID.x;
        y[i] = x[first + i];
        x[first + i] = 9;
    }";

fn vulkan(robustness: Robustness) -> Option<Context> {
    open("vulkan", &ContextDesc { validation: true, robustness, ..ContextDesc::default() })
}

fn opencl() -> Option<Context> {
    open("opencl", &ContextDesc::default())
}

fn open(backend: &str, desc: &ContextDesc) -> Option<Context> {
    let required = std::env::var("REQUIRE_BACKENDS").is_ok_and(|names| names.contains(backend));
    match Registry::with_defaults().open(backend, desc) {
        Ok(context) => Some(context),
        Err(error) if required => panic!("{error}"),
        Err(error) => {
            eprintln!("not tested: {error}");
            None
        }
    }
}

fn words(buffer: &Buffer) -> Vec<u32> {
    buffer.map_read().unwrap().as_slice_of::<u32>().unwrap().to_vec()
}

/// Fills `whole` with sevens, runs the kernel on the part from word `first` on, and checks all of it.
fn reach(context: &Context, whole: &Buffer, first: u32) {
    let source = Arc::new(foreign::spirv("reach", compile(GLSL)).unwrap());
    let kernel = context.create_kernel(&source, &[]).unwrap();
    let desc = BufferDesc { bytes: 4 * RESULT as u64, placement: Placement::Shared, label: "result" };
    let result = context.create_buffer(&desc).unwrap();
    whole.map_write().unwrap().as_mut_slice_of::<u32>().unwrap().fill(7);
    result.map_write().unwrap().as_mut_slice_of::<u32>().unwrap().fill(5);
    let part = whole.sub_buffer(4 * PART.start as u64, 4 * PART.len() as u64).unwrap();
    let (_, reflection) = source.spirv().unwrap();
    let args = reflection.bindings.iter().zip([&part, &result]);
    let args = args.map(|(b, buffer)| Arg::Buffer(buffer.range(), touch(b.access))).collect();
    let params = first.to_le_bytes().to_vec();
    let dispatch = Dispatch::new(kernel.id(), args, params, [1, 1, 1]);
    let shown = Barrier { src: Access::DEVICE_WRITE, dst: Access::HOST_READ };
    let commands = vec![Command::Dispatch(dispatch), Command::Barrier(shown)];
    let recording = Recording { commands, ..Recording::default() };
    context.queue().unwrap().submit(recording).unwrap().wait().unwrap();
    let inside = |at: u32| (at as usize) < PART.len();
    let read: Vec<u32> =
        (0..RESULT as u32).map(|i| if inside(first.wrapping_add(i)) { 7 } else { 0 }).collect();
    assert_eq!(words(&result), read, "from word {first}");
    let touched = |at: usize| {
        let at = (at as u32).wrapping_sub(PART.start as u32);
        inside(at) && at.wrapping_sub(first) < RESULT as u32
    };
    let left: Vec<u32> = (0..WHOLE).map(|at| if touched(at) { 9 } else { 7 }).collect();
    assert_eq!(words(whole), left, "from word {first}");
}

/// What lies next to the argument is neither read nor written: neither in a buffer nor in imported pages.
#[test]
fn a_kernel_that_reaches_beyond_reads_zeros_and_writes_nothing() {
    for robustness in [Robustness::All, Robustness::Callers] {
        let Some(context) = vulkan(robustness) else { continue };
        let bytes = 4 * WHOLE as u64;
        let desc = BufferDesc { bytes, placement: Placement::Shared, label: "whole" };
        let mut memories = vec![context.create_buffer(&desc).unwrap()];
        if context.info().import.is_some() {
            memories.push(context.import(&HostRegion::new(4 * WHOLE).unwrap().into_shared()).unwrap());
        }
        for whole in &memories {
            // Inside, over the end, right after it, far after, right before the beginning.
            let end = PART.len() as u32;
            for first in [0, end - 6, end, end + 100, 1 << 20, 1 << 29, 0u32.wrapping_sub(64), u32::MAX - 9] {
                reach(&context, whole, first);
            }
        }
        drop(memories);
        let messages = context.validation_messages();
        assert!(messages.is_empty(), "{messages:#?}");
    }
}

/// Kernels that ship take their bounds from their parameters, so no one else may call those of a session.
#[test]
fn a_kernel_of_a_session_cannot_be_called_by_a_name_that_was_made_up() {
    for context in [vulkan(Robustness::default()), opencl()].into_iter().flatten() {
        let mut graph = GraphBuilder::new("double");
        let x = graph.input("x", DType::F32, [1000.into()]);
        let y = graph.op(ops::add(), &[x, x]);
        graph.output("y", y);
        let session = Session::builder().graph(graph.build().unwrap()).context(context.clone());
        let mut session = session.fallback(false).build().unwrap();
        session.set_input("x", &Tensor::new([1000], &[1.5f32; 1000]).unwrap()).unwrap();
        session.run().unwrap();
        let call = |kernel: DeviceKernelId| {
            let dispatch = Dispatch::new(kernel, vec![], vec![], [1, 1, 1]);
            let recording = Recording { commands: vec![Command::Dispatch(dispatch)], ..Recording::default() };
            let queue = context.queue().unwrap();
            [queue.prepare(recording.clone()).map(drop).unwrap_err(), queue.submit(recording).unwrap_err()]
        };
        let problem = |e: Error| match e {
            Error::Usage(usage) => usage.problem,
            other => panic!("{other}"),
        };
        // A kernel of one's own is known by its name, and wants arguments. Names count up in a new context.
        let source = Arc::new(foreign::spirv("own", compile(GLSL)).unwrap());
        let own = context.create_kernel(&source, &[]).unwrap();
        for e in call(own.id()) {
            assert!(matches!(problem(e), Problem::Mismatch { .. }));
        }
        let DeviceKernelId { index, generation } = own.id();
        assert!(index > 0);
        for index in 0..index {
            for e in call(DeviceKernelId { index, generation }) {
                assert!(matches!(problem(e), Problem::Foreign { object: "kernel" }));
            }
        }
    }
}
