//! Wrong descriptions are errors that name the argument; no description makes a run touch other bytes.

use onepool::frame::{Channels, Filter, FrameError, FrameSpec, PixelFormat, TensorLayout};
use onepool::session::SessionError;
use onepool::{DType, Error, HostRegion, Memory, Session, Tensor};
use proptest::prelude::*;

use crate::common::{identity, open};

fn build(spec: FrameSpec, dtype: DType, dims: &[usize], output: bool) -> Result<Session, Error> {
    let builder = Session::builder().graph(identity(dtype, dims)).device("cpu");
    match output {
        false => builder.frame_input("image", spec).build(),
        true => builder.frame_output("result", spec).build(),
    }
}

fn refused(spec: FrameSpec, dtype: DType, dims: &[usize], output: bool) -> FrameError {
    match build(spec, dtype, dims, output) {
        Err(Error::Session(SessionError::Frame { name, source })) => {
            assert_eq!(name, if output { "result" } else { "image" });
            source
        }
        other => panic!("no error about a frame: {other:?}"),
    }
}

#[test]
fn wrong_descriptions_name_the_argument() {
    use PixelFormat as F;
    let new = |format| FrameSpec::new(format, 16, 8);
    let picture = [1, 3, 8, 16];
    let cases: Vec<(FrameSpec, &str)> = vec![
        (FrameSpec::new(F::Rgb8, 0, 4), "size: 0 x 4 pixels; give 1 to 16384"),
        (FrameSpec::new(F::Rgb8, 4, 16_385), "size: 4 x 16385"),
        (
            FrameSpec::new(F::Nv12, 15, 8).strides([15, 15]),
            "strides: 15 bytes for plane 1, whose rows have 16",
        ),
        (FrameSpec::new(F::Yuyv, 15, 7).strides([30]), "strides: 30 bytes for plane 0, whose rows have 32"),
        (new(F::Nv12).strides([16]), "strides: 1 of them, but nv12 has 2 planes"),
        (new(F::Rgb8).offsets([0, 1]), "offsets: 2 of them, but rgb8 has 1 planes"),
        (new(F::I420).memories([0, 1]), "memories: 2 of them, but i420 has 3 planes"),
        (new(F::Rgb8).strides([47]), "strides: 47 bytes for plane 0, whose rows have 48 bytes"),
        (new(F::P010).strides([32, 31]), "strides: 31 bytes for plane 1, whose rows have 32 bytes"),
        (new(F::Nv12).offsets([0, 127]), "offsets: planes 0 and 1 overlap in memory 0"),
        (new(F::I420).offsets([64, 40, 300]), "offsets: planes 1 and 0 overlap"),
        (new(F::Nv12).memories([0, 2]), "memories: [0, 2]"),
        (new(F::Nv12).memories([1, 1]), "memories: [1, 1]"),
        (new(F::Nv12).memories([0, usize::MAX]), "memories: [0, 18446744073709551615]"),
        (new(F::Rgb8).strides([u64::MAX]), "offsets and strides: plane 0 ends at byte"),
        (new(F::Rgb8).offsets([u64::MAX - 3]), "offsets and strides: plane 0 ends at byte"),
        (new(F::Rgb8).offsets([1 << 31]), "beyond 2147483647"),
        (new(F::Rgb8).crop(0, 0, 0, 1), "crop: 0 x 1 pixels at 0, 0"),
        (new(F::Rgb8).crop(9, 0, 8, 8), "do not lie in a frame of 16 x 8"),
        (new(F::Rgb8).crop(u32::MAX, 1, 2, 2), "crop: 2 x 2 pixels at 4294967295, 1"),
        (new(F::Rgb8).scale(0.0), "scale: 0; give a finite number that is not 0"),
        (new(F::Rgb8).scale(f32::NAN), "scale: NaN"),
        (new(F::Rgb8).normalize([f32::INFINITY], [1.0]), "mean: inf; give a finite number"),
        (new(F::Rgb8).normalize([0.0], [1.0, 0.0, 1.0]), "std: 0"),
        (new(F::Rgb8).normalize([0.0; 2], [1.0]), "mean: 2 numbers for 3 channels; give 1 or 3"),
        (new(F::Rgb8).normalize([1e30], [1e-30]), "scale: "),
        (new(F::Rgb8).size(0, 3), "size: 0 x 3"),
        (new(F::Rgb8).size(16, 9), "height: 9 is described, the tensor of shape [1, 3, 8, 16] has 8"),
        (new(F::Rgb8).channels(Channels::Gray), "channels: 1 is described"),
    ];
    for (spec, text) in cases {
        let error = refused(spec.clone(), DType::F32, &picture, false);
        assert!(error.to_string().contains(text), "{spec:?}: {error}");
    }
}

#[test]
fn tensors_that_are_no_pictures_are_refused() {
    let spec = || FrameSpec::new(PixelFormat::Rgb8, 16, 8);
    for dims in [&[2, 3, 8, 16][..], &[1, 2, 8, 16], &[1, 8, 16, 5], &[16], &[1, 1, 3, 8, 16], &[1, 3, 0, 16]]
    {
        let error = refused(spec(), DType::F32, dims, false);
        assert!(matches!(error, FrameError::TensorShape { .. }), "{dims:?}: {error}");
        assert!(error.to_string().contains("expected [1, channels, height, width]"), "{error}");
        assert!(matches!(refused(spec(), DType::F32, dims, true), FrameError::TensorShape { .. }));
    }
    for output in [false, true] {
        let error = refused(spec(), DType::I32, &[1, 3, 8, 16], output);
        assert!(error.to_string().contains("the tensor holds int32; a frame becomes float32"), "{error}");
        let error = refused(spec().scale(1.0), DType::U8, &[1, 3, 8, 16], output);
        assert_eq!(error, FrameError::BytesNormalized);
    }
    let error = refused(spec().layout(TensorLayout::Nhwc), DType::F32, &[1, 3, 8, 16], false);
    assert!(matches!(error, FrameError::TensorShape { .. }), "{error}");
}

/// Where the model does not tell the shape of an output, it is known once memory is bound.
#[test]
fn tensors_of_unknown_shape_are_checked_when_they_are_planned() {
    let mut g = onepool::GraphBuilder::new("open");
    let x = g.input("image", DType::F32, [1.into(), 3.into(), "rows".into(), 16.into()]);
    let y = g.op(onepool::ops::add(), &[x, x]);
    g.output("result", y);
    let spec = FrameSpec::new(PixelFormat::Rgb8, 16, 8);
    let builder = Session::builder().graph(g.build().unwrap()).device("cpu");
    let session = builder.frame_output("result", spec.channels(Channels::Gray)).build().unwrap();
    let value = Tensor::new([1, 3, 8, 16], &[0.0f32; 384]).unwrap();
    let error = session.bind().input("image", Memory::value(value)).build().unwrap_err().to_string();
    assert!(error.starts_with("node \"result frame\" (TensorToFrame): channels: 1 is described"), "{error}");
}

#[test]
fn an_output_is_written_by_whole_samples_of_chroma() {
    let spec = |x, y, w, h| FrameSpec::new(PixelFormat::Nv12, 16, 8).crop(x, y, w, h);
    let cases = [
        (1, 0, 2, 2, "1 in x"),
        (0, 3, 2, 2, "3 in y"),
        (0, 0, 5, 2, "5 in width"),
        (0, 0, 2, 1, "1 in height"),
    ];
    for (x, y, w, h, text) in cases {
        let error = refused(spec(x, y, w, h), DType::F32, &[1, 3, 8, 16], true).to_string();
        assert!(error.contains(text) && error.contains("give a multiple of 2"), "{error}");
        assert!(build(spec(x, y, w, h), DType::F32, &[1, 3, 8, 16], false).is_ok(), "an input may");
    }
    // Of a frame of odd sides, the last samples are.
    let spec = |w, h| FrameSpec::new(PixelFormat::Nv12, 15, 7).crop(2, 2, w, h);
    let error = refused(spec(11, 5), DType::F32, &[1, 3, 8, 16], true).to_string();
    assert!(error.contains("11 in width") && error.contains("or end at the frame's edge"), "{error}");
    assert!(build(spec(13, 5), DType::F32, &[1, 3, 8, 16], true).is_ok(), "it ends with the frame");
}

#[test]
fn names_and_memories_that_do_not_fit_are_refused() {
    let spec = FrameSpec::new(PixelFormat::Nv12, 16, 8);
    let graph = || identity(DType::F32, &[1, 3, 8, 16]);
    let unknown = Session::builder().graph(graph()).device("cpu").frame_input("frame", spec.clone()).build();
    let error = unknown.unwrap_err().to_string();
    assert_eq!(error, "there is no input \"frame\"; the inputs are \"image\"");
    let unknown = Session::builder().graph(graph()).device("cpu").frame_output("image", spec.clone()).build();
    assert_eq!(unknown.unwrap_err().to_string(), "there is no output \"image\"; the outputs are \"result\"");
    let twice = Session::builder().graph(graph()).device("cpu").frame_input("image", spec.clone());
    // The input is bytes now.
    let error = twice.frame_input("image", spec.clone()).build().unwrap_err();
    assert!(matches!(error, Error::Session(SessionError::Frame { .. })), "{error}");
    let session = build(spec.clone(), DType::F32, &[1, 3, 8, 16], false).unwrap();
    let small = HostRegion::new(64).unwrap().into_shared();
    let range = onepool::memory::range::ByteRange::new(0, 191);
    let large = HostRegion::new(4096).unwrap().into_shared();
    let error = session.bind().input("image", Memory::region_range(&large, range)).build().unwrap_err();
    assert_eq!(error.to_string(), "\"image\" needs 192 bytes, its memory has 191");
    let two = [Memory::region(&small), Memory::region(&large)];
    let error = session.bind().input_memories("image", two).build().unwrap_err().to_string();
    assert!(error.contains("2 memories are bound, the frame lies in 1"), "{error}");
    let apart = build(spec.separate(), DType::F32, &[1, 3, 8, 16], true).unwrap();
    let bound = apart.bind().output_memories("result", [Memory::region(&large)]);
    let error = bound.plan().unwrap_err().to_string();
    assert!(error.contains("1 memories are bound, the frame lies in 2"), "{error}");
}

fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..80, 0u64..3000, any::<u64>(), Just((1 << 31) - 1), Just(1 << 31), Just(u64::MAX)]
}

fn any_spec() -> impl Strategy<Value = FrameSpec> {
    let side =
        || prop_oneof![1u32..24, 1u32..24, 1u32..24, any::<u32>(), Just(0), Just(16_384), Just(16_385)];
    let list = || proptest::option::of(proptest::collection::vec(any_number(), 0..4));
    let memories =
        proptest::option::of(proptest::collection::vec(prop_oneof![0usize..3, any::<usize>()], 0..4));
    let crop = proptest::option::of((side(), side(), side(), side()));
    let float = || prop_oneof![Just(1.0f32), any::<f32>()];
    let numbers = proptest::option::of((float(), proptest::collection::vec(float(), 0..5)));
    let options = (0usize..6, any::<bool>(), proptest::option::of((side(), side())));
    let kind = (0..PixelFormat::ALL.len(), side(), side());
    (kind, list(), list(), memories, crop, numbers, options).prop_map(
        |((format, width, height), strides, offsets, memories, crop, numbers, (channels, nearest, size))| {
            let mut spec = FrameSpec::new(PixelFormat::ALL[format], width, height);
            if let Some(strides) = strides {
                spec = spec.strides(strides);
            }
            if let Some(offsets) = offsets {
                spec = spec.offsets(offsets);
            }
            if let Some(memories) = memories {
                spec = spec.memories(memories);
            }
            if let Some((x, y, w, h)) = crop {
                spec = spec.crop(x, y, w, h);
            }
            if let Some((scale, list)) = numbers {
                spec = spec.scale(scale).normalize(list.clone(), list);
            }
            if let Some((width, height)) = size {
                spec = spec.size(width, height);
            }
            let all = [Channels::Gray, Channels::Rgb, Channels::Bgr, Channels::Rgba, Channels::Bgra];
            if let Some(channels) = all.get(channels) {
                spec = spec.channels(*channels);
            }
            if nearest { spec.filter(Filter::Nearest) } else { spec }
        },
    )
}

/// The largest memory that a run of the test takes.
const LARGEST: u64 = 1 << 20;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    /// Each description is refused, or runs on memory of exactly its size and changes none outside.
    #[test]
    fn any_description_is_refused_or_runs(
        spec in any_spec(),
        dims in proptest::collection::vec(prop_oneof![Just(1usize), Just(3), Just(4), 0usize..20], 1..5),
        dtype in prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::U8), Just(DType::I64)],
        output in any::<bool>(),
    ) {
        let bytes = match spec.memory_bytes() {
            Ok(bytes) if bytes.iter().all(|b| *b <= LARGEST) => bytes,
            _ => {
                if spec.memory_bytes().is_err() {
                    prop_assert!(spec.check().is_err());
                    prop_assert!(build(spec, dtype, &dims, output).is_err());
                }
                return Ok(());
            }
        };
        let context = open("cpu");
        let builder = Session::builder().graph(identity(dtype, &dims)).context(context);
        let built = match output {
            false => builder.frame_input("image", spec.clone()).build(),
            true => builder.frame_output("result", spec.clone()).build(),
        };
        let Ok(session) = built else { return Ok(()) };
        let regions: Vec<_> = bytes.iter().map(|bytes| {
            let mut region = HostRegion::new(*bytes as usize + 64).unwrap();
            region.as_mut_slice().fill(0xA5);
            region.into_shared()
        }).collect();
        let memories = regions.iter().zip(&bytes).map(|(region, bytes)| {
            Memory::region_range(region, onepool::memory::range::ByteRange::new(32, 32 + bytes))
        });
        let bound = session.bind();
        let bound = match output {
            false => bound.input_memories("image", memories),
            true => {
                let n = dims.iter().product::<usize>() * dtype.bytes();
                let info = onepool::TensorInfo::new(dtype, onepool::Shape::new(dims.clone()).unwrap());
                let value = Tensor::from_bytes(info, &vec![0x3C; n]).unwrap();
                bound.input("image", Memory::value(value)).output_memories("result", memories)
            }
        };
        let mut binding = bound.build().unwrap();
        binding.run().unwrap();
        for (region, bytes) in regions.iter().zip(&bytes) {
            let held = region.read().unwrap();
            let (before, rest) = held.split_at(32);
            let (frame, after) = rest.split_at(*bytes as usize);
            prop_assert!(before.iter().chain(after).all(|byte| *byte == 0xA5));
            prop_assert!(output || frame.iter().all(|byte| *byte == 0xA5));
        }
    }
}
