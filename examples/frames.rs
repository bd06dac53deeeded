//! A camera's frames go through a model into a part of a screen, all where they lie.
//!
//! `cargo run --example frames -- vulkan`; without an argument the best device is taken.

use std::sync::mpsc;

use onepool::frame::{ColorMatrix, FrameSpec, PixelFormat};
use onepool::session::RunOptions;
use onepool::{DType, Error, Graph, GraphBuilder, HostRegion, Memory, Session, Tensor, ops};

fn main() -> Result<(), Error> {
    let device = std::env::args().nth(1).unwrap_or_else(|| "auto".to_owned());
    let pixel = film(&device)?;
    println!("the first pixel is {pixel:?}");
    Ok(())
}

/// Three buffers of a camera in turns, into a picture of 320 x 180 in the corner of a screen. Returns its first pixel.
pub(crate) fn film(device: &str) -> Result<[u8; 4], Error> {
    // Planes in one buffer, rows padded, as a driver lays them out; luma 16 to 235.
    let (stride, chroma) = (1536u64, 1536 * 736);
    let camera = FrameSpec::new(PixelFormat::Nv12, 1280, 720)
        .strides([stride, stride])
        .offsets([0, chroma])
        .matrix(ColorMatrix::Bt709);
    // Pixels outside the rectangle stay.
    let screen = FrameSpec::new(PixelFormat::Bgra8, 1920, 1080).crop(1600, 900, 320, 180);
    let bytes = camera.memory_bytes()?[0] as usize;
    let builder = Session::builder().graph(negative()?).device(device);
    let session = builder.frame_input("image", camera).frame_output("result", screen).build()?;

    let buffers = (0..3).map(|_| HostRegion::new(bytes).map(HostRegion::into_shared));
    let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
    let pixels = HostRegion::new(1920 * 1080 * 4)?.into_shared();
    let bound = session.bind().input("image", Memory::region(&buffers[0]));
    let mut binding = bound.output("result", Memory::region(&pixels)).build()?;
    for verdict in binding.verdicts() {
        println!("{verdict}");
    }

    // The camera fills the buffers that it has.
    let (give_back, free) = mpsc::channel();
    (0..buffers.len()).for_each(|n| give_back.send(n).unwrap_or_default());
    for (shot, buffer) in free.iter().take(9).enumerate() {
        let luma = 16 + 20 * shot as u8;
        let mut frame = buffers[buffer].write()?;
        frame[..chroma as usize].fill(luma);
        frame[chroma as usize..].fill(128);
        drop(frame);
        binding.rebind_input("image", Memory::region(&buffers[buffer]))?;
        let camera = give_back.clone();
        let options = RunOptions::new().after_read("image", move || camera.send(buffer).unwrap_or_default());
        binding.run_with(&options)?;
    }
    let at = (900 * 1920 + 1600) * 4;
    let held = pixels.read()?;
    Ok([held[at], held[at + 1], held[at + 2], held[at + 3]])
}

/// A model of pictures of 320 x 180.
fn negative() -> Result<Graph, Error> {
    let mut graph = GraphBuilder::new("negative");
    let shape = || [1, 3, 180, 320].map(Into::into);
    let image = graph.input("image", DType::F32, shape());
    let white = graph.constant("white", Tensor::scalar(1.0f32));
    let result = graph.op(ops::sub(), &[white, image]);
    graph.output("result", result);
    Ok(graph.build()?)
}
