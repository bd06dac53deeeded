//! Frames are read and written where they lie.

use std::sync::Arc;

use onepool::frame::{FrameSpec, PixelFormat};
use onepool::memory::import::{Path, Verdict};
use onepool::memory::range::ByteRange;
use onepool::{DType, HostRegion, Memory, Session, SharedRegion, Tensor};

use crate::common::{bytes, check_messages, contexts, identity, open, session};

const WIDTH: usize = 320;
const HEIGHT: usize = 200;
const STRIDE: usize = 512;
/// Where the second plane begins: rows of the first one that are no part of the picture lie before it.
const CHROMA: usize = STRIDE * 208;
const BYTES: usize = CHROMA + STRIDE * (HEIGHT / 2 - 1) + WIDTH;

/// What a decoder gives.
fn nv12() -> FrameSpec {
    FrameSpec::new(PixelFormat::Nv12, WIDTH as u32, HEIGHT as u32)
        .strides([STRIDE as u64; 2])
        .offsets([0, CHROMA as u64])
}

fn region(bytes: &[u8]) -> Arc<SharedRegion> {
    let mut region = HostRegion::new(bytes.len()).unwrap();
    region.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    region.into_shared()
}

fn held(region: &SharedRegion, n: usize) -> Vec<u8> {
    region.read().unwrap()[..n].to_vec()
}

fn path<'v>(mut verdicts: impl Iterator<Item = &'v Verdict>, name: &str) -> Path {
    verdicts.find(|v| v.tensor == name).unwrap().path
}

/// The frame that comes out of a session that passes the tensor of an NV12 frame on, computed by value on the CPU.
fn expected(input: &[u8], before: &[u8]) -> Vec<u8> {
    let mut session =
        session(identity(DType::U8, &[1, 3, HEIGHT, WIDTH]), &open("cpu"), Some(nv12()), Some(nv12()));
    let value = |bytes: &[u8]| Tensor::new([BYTES], bytes).unwrap();
    session.set_input("image", &value(input)).unwrap();
    session.run().unwrap();
    let frame = session.get_output("result").unwrap();
    let mut wanted = before.to_vec();
    for (offset, rows) in [(0, HEIGHT), (CHROMA, HEIGHT / 2)] {
        for row in 0..rows {
            let at = offset + row * STRIDE;
            wanted[at..at + WIDTH].copy_from_slice(&frame.bytes()[at..at + WIDTH]);
        }
    }
    wanted
}

#[test]
fn padded_planes_are_imported_and_nothing_is_copied() {
    let (input, before) = (bytes(BYTES, 1), bytes(BYTES, 2));
    let want = expected(&input, &before);
    let shared = ["sim", "sim:radv-phoenix-780m", "sim:anv-xe-llc", "vulkan"];
    for device in shared.into_iter().chain(["cpu"]) {
        let context = open(device);
        let graph = identity(DType::U8, &[1, 3, HEIGHT, WIDTH]);
        let session = session(graph, &context, Some(nv12()), Some(nv12()));
        let (from, to) = (region(&input), region(&before));
        let copied = context.traffic().copied;
        let bound = session.bind().strict(true).input("image", Memory::region(&from));
        let mut binding = bound.output("result", Memory::region(&to)).build().unwrap();
        for _ in 0..3 {
            binding.run().unwrap();
        }
        let wanted = if device == "cpu" { Path::Host } else { Path::Imported };
        assert_eq!(path(binding.verdicts(), "image"), wanted, "{device}");
        assert_eq!(path(binding.verdicts(), "result"), wanted, "{device}");
        assert_eq!(context.traffic().copied, copied, "{device}: bytes were copied");
        assert_eq!(held(&to, BYTES), want, "{device}");
        assert_eq!(held(&from, BYTES), input, "{device}: the input was written");
        check_messages(&context);
    }
}

#[test]
fn copied_frames_leave_the_bytes_around_them_too() {
    let (input, before) = (bytes(BYTES, 3), bytes(BYTES, 4));
    let want = expected(&input, &before);
    for (device, context) in contexts() {
        let builder = Session::builder().graph(identity(DType::U8, &[1, 3, HEIGHT, WIDTH]));
        let builder = builder.context(context.clone()).fallback(false).copy_threshold(u64::MAX);
        let session = builder.frame_input("image", nv12()).frame_output("result", nv12()).build().unwrap();
        let (from, to) = (region(&input), region(&before));
        let bound = session.bind().input("image", Memory::region(&from));
        let mut binding = bound.output("result", Memory::region(&to)).build().unwrap();
        for _ in 0..2 {
            binding.run().unwrap();
        }
        assert_eq!(held(&to, BYTES), want, "{device}");
        check_messages(context);
    }
}

#[test]
fn planes_may_lie_in_memories_of_their_own_at_any_byte() {
    let size = (64u32, 32u32);
    let tight = FrameSpec::new(PixelFormat::I420, size.0, size.1);
    let frame = bytes(64 * 32 * 3 / 2, 5);
    let parts = [&frame[..2048], &frame[2048..2560], &frame[2560..]];
    for (device, context) in contexts() {
        let graph = || identity(DType::F32, &[1, 3, 32, 64]);
        let mut whole = session(graph(), context, Some(tight.clone()), None);
        whole.set_input("image", &Tensor::new([frame.len()], &frame).unwrap()).unwrap();
        whole.run().unwrap();
        let want = whole.get_output("result").unwrap();
        let apart = tight.clone().separate();
        let session = session(graph(), context, Some(apart.clone()), Some(apart));
        let names: Vec<String> = session.inputs().into_iter().map(|io| io.name).collect();
        assert_eq!(names, ["image:0", "image:1", "image:2"]);
        for at in [0usize, 3, 64] {
            let regions = parts.map(|part| region(&[&bytes(at, 8)[..], part].concat()));
            let memories = regions.iter().zip(parts).map(|(region, part)| {
                Memory::region_range(region, ByteRange::new(at as u64, (at + part.len()) as u64))
            });
            let outputs = parts.map(|part| region(&vec![0; part.len()]));
            let bound = session.bind().input_memories("image", memories);
            let bound = bound.output_memories("result", outputs.iter().map(Memory::region));
            let mut binding = bound.build().unwrap();
            binding.run().unwrap();
            let got: Vec<u8> = outputs.iter().zip(parts).flat_map(|(o, p)| held(o, p.len())).collect();
            // The way back, of the same tensor.
            let mut back = crate::common::session(graph(), context, None, Some(tight.clone()));
            back.set_input("image", &want).unwrap();
            back.run().unwrap();
            assert_eq!(got, back.get_output("result").unwrap().bytes(), "{device} at {at}");
            check_messages(context);
        }
    }
}

#[test]
fn borrowed_slices_are_frames() {
    let spec = FrameSpec::new(PixelFormat::Bgra8, 64, 64).strides([320]);
    let n = spec.memory_bytes().unwrap()[0] as usize;
    let (frame, before) = (bytes(n, 6), bytes(n, 7));
    for (device, context) in contexts() {
        let session =
            session(identity(DType::U8, &[1, 4, 64, 64]), context, Some(spec.clone()), Some(spec.clone()));
        let mut out = before.clone();
        session
            .scope(|s| {
                let bound = s.bind().input("image", s.input(&frame)).output("result", s.output(&mut out));
                bound.build()?.run()
            })
            .unwrap();
        let is_pixel = |at: usize| at % 320 < 256;
        let want: Vec<u8> = (0..n).map(|at| if is_pixel(at) { frame[at] } else { before[at] }).collect();
        assert_eq!(out, want, "{device}");
        check_messages(context);
    }
}

/// A camera fills a few buffers in turns: each is imported once.
#[test]
fn buffers_in_turns_are_imported_once() {
    for device in ["sim", "vulkan"] {
        let context = open(device);
        let session = session(identity(DType::U8, &[1, 3, HEIGHT, WIDTH]), &context, Some(nv12()), None);
        let frames: Vec<Vec<u8>> = (0..4).map(|n| bytes(BYTES, 10 + n)).collect();
        let buffers: Vec<_> = frames.iter().map(|frame| region(frame)).collect();
        let mut binding =
            session.bind().strict(true).input("image", Memory::region(&buffers[0])).build().unwrap();
        let mut seen: Vec<Tensor> = Vec::new();
        let mut imports = 0;
        for turn in 0..12 {
            if turn == 4 {
                imports = context.usage().imports;
            }
            binding.rebind_input("image", Memory::region(&buffers[turn % 4])).unwrap();
            binding.run().unwrap();
            let got = binding.get_output("result").unwrap();
            match turn {
                0..4 => seen.push(got),
                _ => assert_eq!(got.bytes(), seen[turn % 4].bytes(), "{device}"),
            }
        }
        assert!(seen.windows(2).all(|pair| pair[0].bytes() != pair[1].bytes()));
        assert_eq!(context.usage().imports, imports, "{device}");
        check_messages(&context);
    }
}

/// The conversion on one device, the model on another one.
#[test]
fn the_conversion_may_run_on_another_device_than_the_model() {
    let frame = bytes(BYTES, 12);
    let want = expected(&frame, &vec![0; BYTES]);
    for device in ["sim", "vulkan", "opencl"] {
        let Some((_, context)) = contexts().iter().find(|(name, _)| *name == device) else { continue };
        let builder = Session::builder().graph(identity(DType::U8, &[1, 3, HEIGHT, WIDTH]));
        let builder = builder.context(context.clone()).context(open("cpu")).place_op("Identity", 1);
        let builder = builder.frame_input("image", nv12()).frame_output("result", nv12());
        let session = builder.place_node("result frame", 1).build().unwrap();
        let (from, to) = (region(&frame), region(&vec![0; BYTES]));
        let bound = session.bind().input("image", Memory::region(&from));
        let mut binding = bound.output("result", Memory::region(&to)).build().unwrap();
        binding.run().unwrap();
        assert_eq!(held(&to, BYTES), want, "{device}");
        let on = |name: &str| {
            let nodes = &binding.plan().report.nodes;
            nodes.iter().find(|node| node.name == name).map(|node| node.device)
        };
        assert_eq!((on("image frame"), on("result frame")), (Some(0), Some(1)), "{device}");
        check_messages(context);
    }
}

/// Own memory of the session: the bytes around the frame begin as zeros.
#[test]
fn frames_by_value_are_bytes() {
    for (device, context) in contexts() {
        let spec = FrameSpec::new(PixelFormat::Rgb8, 3, 2).strides([12]).crop(1, 0, 1, 2);
        let mut session = session(identity(DType::U8, &[1, 3, 2, 1]), context, None, Some(spec));
        assert_eq!(session.inputs().len(), 1, "the memory before the run is no input of the caller's");
        session.set_input("image", &Tensor::new([1, 3, 2, 1], &[1u8, 2, 3, 4, 5, 6]).unwrap()).unwrap();
        session.run().unwrap();
        let got = session.get_output("result").unwrap();
        let want = [0, 0, 0, 1, 3, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 4, 6, 0, 0, 0];
        assert_eq!(got.bytes(), want, "{device}");
        let info = onepool::TensorInfo::new(DType::U8, onepool::Shape::new([1, 3, 2, 1]).unwrap());
        assert!(session.plan(&[info]).is_ok());
        check_messages(context);
    }
}

/// `result` is the picture, plus nothing that is known only in the run.
fn known_in_the_run() -> onepool::Graph {
    let mut g = onepool::GraphBuilder::new("split");
    let x = g.input("image", DType::F32, [1, 3, 4, 6].map(Into::into));
    let places = g.op(crate::common::operator("NonZero"), &[x]);
    let shape = g.op(crate::common::operator("Shape"), &[places]);
    let count = g.op(onepool::ops::cast(DType::F32), &[shape]);
    let nothing = g.op(onepool::ops::sub(), &[count, count]);
    let nothing = g.op(crate::common::operator("ReduceMax"), &[nothing]);
    let y = g.op(onepool::ops::add(), &[x, nothing]);
    g.output("result", y);
    g.build().unwrap()
}

#[test]
fn frames_of_graphs_whose_sizes_are_known_in_the_run() {
    let value: Vec<f32> = (0..72).map(|v| v as f32 / 255.0).collect();
    let value = Tensor::new([1, 3, 4, 6], &value).unwrap();
    for (stride, copy_threshold) in [(18, 0), (20, 0), (20, u64::MAX)] {
        for (device, context) in contexts() {
            let spec = FrameSpec::new(PixelFormat::Rgb8, 6, 4).strides([stride]);
            let n = spec.memory_bytes().unwrap()[0] as usize;
            let builder = Session::builder().graph(known_in_the_run()).context(context.clone());
            let builder = builder.copy_threshold(copy_threshold).frame_output("result", spec);
            let session = builder.build().unwrap();
            let outputs = [1, 2].map(|_| region(&vec![0xA5; n]));
            let bound = session.bind().input("image", Memory::value(value.clone()));
            let mut binding = bound.output("result", Memory::region(&outputs[0])).build().unwrap();
            for output in &outputs {
                binding.rebind_output("result", Memory::region(output)).unwrap();
                binding.run().unwrap();
                let want = |at: usize| match (at % stride as usize, at / stride as usize) {
                    (column, row) if column < 18 => (column % 3 * 24 + row * 6 + column / 3) as u8,
                    _ => 0xA5,
                };
                assert_eq!(held(output, n), (0..n).map(want).collect::<Vec<_>>(), "{device} {stride}");
            }
            check_messages(context);
        }
    }
}
