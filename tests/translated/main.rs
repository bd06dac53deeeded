//! Kernels of a user's own on every device that runs SPIR-V, natively or translated to OpenCL C, against Rust.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agree;
mod bounds;
mod cases;
#[path = "../support/foreign.rs"]
mod foreign;
#[path = "../support/glsl.rs"]
mod glsl;
mod images;

use std::sync::{Arc, OnceLock};

use onepool::backend::{BufferDesc, ContextDesc, Placement};
use onepool::device::{Buffer, Context};
use onepool::kernel::{KernelSource, touch};
use onepool::memory::coherency::{Access, Barrier};
use onepool::recording::{Arg, Command, Dispatch, Recording};
use onepool::registry::Registry;
use onepool::spirv::opencl_c::{OpenClOptions, translate};

use self::glsl::compile;

/// A kernel, what it is given, and what it must leave.
struct Case<'a> {
    glsl: &'a str,
    spec: &'a [(u32, u32)],
    params: Vec<u8>,
    groups: u32,
    /// Bytes of each binding before.
    before: Vec<Vec<u8>>,
    /// Bytes of each binding after.
    after: Vec<Vec<u8>>,
}

/// The devices under test. One that `REQUIRE_BACKENDS` names must be there.
fn contexts() -> &'static [Context] {
    static CONTEXTS: OnceLock<Vec<Context>> = OnceLock::new();
    CONTEXTS.get_or_init(|| {
        let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
        let mut contexts = Vec::new();
        for backend in ["vulkan", "opencl"] {
            let desc = ContextDesc { validation: backend == "vulkan", ..ContextDesc::default() };
            match Registry::with_defaults().open(backend, &desc) {
                Ok(context) => contexts.push(context),
                Err(error) if required.contains(backend) => panic!("{backend}: {error}"),
                Err(error) => eprintln!("not tested: {error}"),
            }
        }
        contexts
    })
}

fn run(context: &Context, source: &Arc<KernelSource>, case: &Case<'_>) -> Vec<Vec<u8>> {
    let kernel = context.create_kernel(source, case.spec).unwrap();
    let buffer = |bytes: &Vec<u8>| {
        let desc = BufferDesc { bytes: bytes.len() as u64, placement: Placement::Shared, label: "case" };
        let buffer = context.create_buffer(&desc).unwrap();
        buffer.map_write().unwrap().copy_from_slice(bytes);
        buffer
    };
    let buffers: Vec<Buffer> = case.before.iter().map(buffer).collect();
    let (_, reflection) = source.spirv().unwrap();
    let args = buffers
        .iter()
        .zip(&reflection.bindings)
        .map(|(buffer, binding)| Arg::Buffer(buffer.range(), touch(binding.access)));
    let dispatch = Dispatch::new(kernel.id(), args.collect(), case.params.clone(), [case.groups, 1, 1]);
    let shown = Barrier { src: Access::DEVICE_WRITE, dst: Access::HOST_READ };
    let recording = Recording {
        commands: vec![Command::Dispatch(dispatch), Command::Barrier(shown)],
        ..Recording::default()
    };
    context.queue().unwrap().submit(recording).unwrap().wait().unwrap();
    let after = buffers.iter().map(|buffer| buffer.map_read().unwrap().to_vec()).collect();
    assert_eq!(context.validation_messages(), Vec::<String>::new());
    after
}

fn check(case: &Case<'_>) {
    let words = compile(case.glsl);
    for fp16 in [false, true] {
        let options = OpenClOptions { spec: case.spec, fp16, fp64: true, ..OpenClOptions::default() };
        let kernel = translate(&words, &options).unwrap();
        assert_eq!(kernel.args.len(), case.before.len());
        assert_eq!(kernel.params_bytes as usize, case.params.len());
    }
    let source = Arc::new(foreign::spirv("case", words).unwrap());
    for context in contexts() {
        let info = context.info();
        let missing = source.requires().missing(info.features.union(info.emulated));
        if !missing.is_empty() {
            eprintln!("{}: not tested: no {missing}", context.info().name);
            continue;
        }
        let found = run(context, &source, case);
        for (binding, (found, expected)) in found.iter().zip(&case.after).enumerate() {
            let at = found.iter().zip(expected).position(|(a, b)| a != b);
            assert_eq!(at, None, "{}: first wrong byte of binding {binding}", context.info().name);
        }
    }
}
