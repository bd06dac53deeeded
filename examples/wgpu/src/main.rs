//! A renderer draws, a model works on what it drew, and the renderer goes on with the result: submissions to one queue,
//! with no copy between them.

use std::error::Error;

use onepool::{DType, GraphBuilder, Memory, Session, ops};
use wgpu_shared::Shared;

const FLOATS: usize = 64 * 64;

const DRAW: &str = "
@group(0) @binding(0) var<storage, read_write> frame: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    frame[id.x] = f32(id.x % 64u) - 31.5;
}";

const SHOW: &str = "
@group(0) @binding(0) var<storage, read> result: array<f32>;
@group(0) @binding(1) var<storage, read_write> shown: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    shown[id.x] = result[id.x] + 1.0;
}";

fn main() -> Result<(), Box<dyn Error>> {
    let shared = Shared::open(wgpu::InstanceFlags::empty())?;
    let (frame, result, shown) = (shared.buffer(4096)?, shared.buffer(4096)?, shared.buffer(4096)?);

    let mut graph = GraphBuilder::new("squared");
    let x = graph.input("frame", DType::F32, [FLOATS.into()]);
    let y = graph.op(ops::mul(), &[x, x]);
    graph.output("result", y);
    let session = Session::builder().graph(graph.build()?).context(shared.context.clone()).build()?;
    let memory = session.bind().strict(true).input("frame", Memory::buffer(&frame.onepool));
    let mut binding = memory.output("result", Memory::buffer(&result.onepool)).build()?;

    shared.dispatch(DRAW, &[&frame.wgpu], FLOATS as u32 / 64);
    let run = binding.submit()?;
    shared.dispatch(SHOW, &[&result.wgpu, &shown.wgpu], FLOATS as u32 / 64);
    run.wait()?;

    let words = shared.look(&shown.wgpu)?;
    assert!(words.iter().enumerate().all(|(i, word)| *word == ((i % 64) as f32 - 31.5).powi(2) + 1.0));
    for verdict in binding.verdicts() {
        println!("{verdict}");
    }
    println!("{} values, as the CPU computes them, on {}", words.len(), shared.context.info().name);
    Ok(())
}
