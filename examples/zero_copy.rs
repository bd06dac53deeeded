//! Runs a graph on memory of the application's own, into two frames in turn.
//!
//! `cargo run --example zero_copy -- vulkan`; without an argument the best device is taken.

use onepool::{DType, Error, GraphBuilder, HostRegion, Memory, Session, ops};

/// Elements of a frame: 4 MiB, enough that every device imports it.
const LEN: usize = 1 << 20;
const BYTES: usize = LEN * 4;

fn main() -> Result<(), Error> {
    let device = std::env::args().nth(1).unwrap_or_else(|| "auto".to_owned());
    let mut graph = GraphBuilder::new("double");
    let x = graph.input("x", DType::F32, [LEN.into()]);
    let y = graph.op(ops::add(), &[x, x]);
    graph.output("y", y);
    let session = Session::builder().graph(graph.build()?).device(device).build()?;

    let input = HostRegion::new(BYTES)?.into_shared();
    let frames = [HostRegion::new(BYTES)?.into_shared(), HostRegion::new(BYTES)?.into_shared()];
    let mut binding =
        session.bind().input("x", Memory::region(&input)).output("y", Memory::region(&frames[0])).build()?;
    for info in session.devices() {
        println!("device: {} ({})", info.name, info.api);
    }
    for verdict in binding.verdicts() {
        println!("{verdict}");
    }

    for round in 0..6u8 {
        let (current, last) = (usize::from(round % 2), usize::from(1 - round % 2));
        // No call tells the library of new values: the kernels read these very bytes.
        input.write()?.as_mut_slice_of::<f32>()?.fill(f32::from(round));
        // Both frames stay imported and their commands recorded, so changing over costs next to nothing.
        binding.rebind_output("y", Memory::region(&frames[current]))?;
        let run = binding.submit()?;
        // While the device fills one frame, the other one is free to be read.
        if round > 0 {
            let sum: f64 = frames[last].read()?.as_slice_of::<f32>()?.iter().map(|&v| f64::from(v)).sum();
            println!("run {}: mean {}", round - 1, sum / LEN as f64);
        }
        run.wait()?;
    }
    Ok(())
}
