//! Every format, matrix and range on every device, against the formulas.

use onepool::frame::{Channels, ColorMatrix, ColorRange, Filter, FrameSpec, PixelFormat, TensorLayout};
use onepool::{DType, Tensor};

use crate::common::{bytes, check_messages, contexts, identity, session};
use crate::reference::{Frame, taps};

/// How far numbers may be from the formulas', in units of 8 bits.
const NEAR: f64 = 0.05;

/// Every format with every matrix and range.
fn kinds() -> impl Iterator<Item = (PixelFormat, ColorMatrix, ColorRange)> {
    PixelFormat::ALL.into_iter().flat_map(|format| {
        ColorMatrix::ALL.into_iter().flat_map(move |matrix| {
            [ColorRange::Limited, ColorRange::Full].map(|range| (format, matrix, range))
        })
    })
}

fn frame(format: PixelFormat, size: (usize, usize), padding: usize, seed: u64) -> Frame {
    let fill = |n| bytes(n, seed);
    Frame::new(format, size, padding, ColorMatrix::Bt709, ColorRange::Full, fill)
}

fn describe(frame: &Frame) -> FrameSpec {
    let all = |list: &[usize]| list.iter().map(|v| *v as u64).collect::<Vec<_>>();
    FrameSpec::new(frame.format, frame.width as u32, frame.height as u32)
        .strides(all(&frame.strides))
        .offsets(all(&frame.offsets))
        .matrix(frame.matrix)
        .range(frame.range)
}

/// What a session is given of a frame: the bytes to its last pixel.
fn held(frame: &Frame, spec: &FrameSpec) -> Tensor {
    let n = spec.memory_bytes().unwrap()[0] as usize;
    Tensor::new([n], &frame.bytes[..n]).unwrap()
}

/// The tensor of a frame on every device, which are equal to the last bit.
fn tensors(frame: &Frame, spec: &FrameSpec, dtype: DType, dims: &[usize]) -> Tensor {
    let mut first: Option<Tensor> = None;
    for (device, context) in contexts() {
        let mut session = session(identity(dtype, dims), context, Some(spec.clone()), None);
        session.set_input("image", &held(frame, spec)).unwrap();
        session.run().unwrap();
        let got = session.get_output("result").unwrap();
        check_messages(context);
        match &first {
            Some(first) => assert_eq!(first.bytes(), got.bytes(), "{device}: {spec:?} as {dtype}"),
            None => first = Some(got),
        }
    }
    first.unwrap()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype() {
        DType::U8 => tensor.bytes().iter().map(|v| f32::from(*v)).collect(),
        _ => tensor.to_f32s().unwrap(),
    }
}

/// Compares a tensor of floats in `[0, 255]` or bytes, in NCHW, with the reference.
fn compare(frame: &Frame, got: &Tensor, rect: [usize; 4], size: [usize; 2], linear: bool) {
    let is_byte = got.dtype() == DType::U8;
    let got = floats(got);
    let pixels = size[0] * size[1];
    for (i, v) in got.iter().enumerate() {
        let (channel, x, y) = (i / pixels, i % size[0], i % pixels / size[0]);
        let want = frame.rgba(rect, size, [x, y], linear)[channel];
        let near = if is_byte { 0.5 + NEAR } else { NEAR };
        let error = (f64::from(*v) - want).abs();
        let kind = (frame.format, frame.matrix, frame.range);
        assert!(error <= near, "{kind:?}: channel {channel} at {x}, {y} is {v}, expected {want}");
    }
}

#[test]
fn frames_become_tensors_by_the_standards_formulas() {
    let mut count = 0;
    for (format, matrix, range) in kinds() {
        let (width, height) = (22, 12);
        let frame = Frame { matrix, range, ..frame(format, (width, height), 5, count + 1) };
        let spec = describe(&frame);
        let size = [width, height];
        let whole = [0, 0, width, height];
        let got = tensors(&frame, &spec.clone().scale(1.0), DType::F32, &[1, 3, height, width]);
        compare(&frame, &got, whole, size, true);
        let got = tensors(&frame, &spec, DType::U8, &[1, 3, height, width]);
        compare(&frame, &got, whole, size, true);
        count += 1;
    }
    assert_eq!(count, 11 * 3 * 2);
}

#[test]
fn crops_are_scaled_by_both_filters() {
    for (n, format) in PixelFormat::ALL.into_iter().enumerate() {
        let frame = frame(format, (30, 22), 3, n as u64 + 3);
        for (rect, size) in [([3, 1, 17, 19], [9, 26]), ([5, 3, 1, 1], [4, 3]), ([0, 0, 30, 22], [7, 5])] {
            let [x, y, w, h] = rect.map(|v| v as u32);
            for filter in [Filter::Bilinear, Filter::Nearest] {
                let spec = describe(&frame).crop(x, y, w, h).filter(filter);
                let linear = filter == Filter::Bilinear;
                let dims = [1, 3, size[1], size[0]];
                let got = tensors(&frame, &spec.clone().scale(1.0), DType::F32, &dims);
                compare(&frame, &got, rect, size, linear);
                let got = tensors(&frame, &spec, DType::U8, &dims);
                compare(&frame, &got, rect, size, linear);
            }
        }
    }
}

#[test]
fn layouts_channels_types_and_normalization_are_the_models() {
    let (mean, std) = ([0.485f32, 0.456, 0.406], [0.229f32, 0.224, 0.225]);
    for format in [PixelFormat::Bgra8, PixelFormat::Nv12, PixelFormat::P010, PixelFormat::Gray8] {
        let frame = frame(format, (12, 8), 4, 9);
        let rgba = |x: usize, y: usize| frame.rgba([0, 0, 12, 8], [12, 8], [x, y], false);
        for dtype in [DType::F32, DType::F16] {
            // ImageNet's numbers, channels last, blue first.
            let spec = describe(&frame).channels(Channels::Bgr).normalize(mean, std);
            let got = tensors(&frame, &spec, dtype, &[1, 8, 12, 3]).to_f32s().unwrap();
            for (i, v) in got.iter().enumerate() {
                let (c, x, y) = (i % 3, i / 3 % 12, i / 36);
                let want = (rgba(x, y)[2 - c] / 255.0 - f64::from(mean[c])) / f64::from(std[c]);
                let near = if dtype == DType::F16 { 3e-3 } else { 1.5e-3 };
                assert!((f64::from(*v) - want).abs() < near, "{format} {dtype}: {v}, expected {want}");
            }
        }
        // Alpha, in both orders of channels, without the first dimension.
        for (channels, order) in [(Channels::Rgba, [0, 1, 2, 3]), (Channels::Bgra, [2, 1, 0, 3])] {
            let spec = describe(&frame).channels(channels).layout(TensorLayout::Nhwc);
            let got = floats(&tensors(&frame, &spec, DType::U8, &[8, 12, 4]));
            for (i, v) in got.iter().enumerate() {
                let want = rgba(i / 4 % 12, i / 48)[order[i % 4]];
                assert!((f64::from(*v) - want).abs() <= 0.5 + NEAR, "{format}: {v}, expected {want}");
            }
        }
        // Luma alone.
        for dims in [&[8, 12][..], &[1, 8, 12], &[1, 1, 8, 12], &[1, 8, 12, 1]] {
            let got = tensors(&frame, &describe(&frame).scale(1.0), DType::F32, dims).to_f32s().unwrap();
            for (i, v) in got.iter().enumerate() {
                let [x, y] = [i % 12, i / 12];
                let want = gray(&frame, x, y);
                assert!((f64::from(*v) - want).abs() <= NEAR, "{format}: {v}, expected {want}");
            }
        }
    }
}

/// The luma of a pixel: its own where the frame has it, without the colours that it cannot show.
fn gray(frame: &Frame, x: usize, y: usize) -> f64 {
    if frame.format.is_yuv() {
        let at = frame.places(x, y)[0];
        let value = match frame.bits() {
            10 => f64::from(u16::from_le_bytes([frame.bytes[at], frame.bytes[at + 1]]) >> 6) / 1023.0,
            _ => f64::from(frame.bytes[at]) / 255.0,
        };
        return 255.0 * value;
    }
    let rgba = frame.rgba([0, 0, frame.width, frame.height], [frame.width, frame.height], [x, y], false);
    frame.luma().iter().zip(rgba).map(|(k, v)| k * v).sum()
}

/// A frame that a tensor was written to, on every device; bytes around the rectangle hold `0xA5`.
fn frames(tensor: &Tensor, spec: &FrameSpec) -> Vec<u8> {
    let n = spec.memory_bytes().unwrap()[0] as usize;
    let mut first: Option<Vec<u8>> = None;
    for (device, context) in contexts() {
        let dims = tensor.shape().dims();
        let graph = identity(tensor.dtype(), dims);
        let session = session(graph, context, None, Some(spec.clone()));
        let mut region = onepool::HostRegion::new(n).unwrap();
        region.as_mut_slice().fill(0xA5);
        let region = region.into_shared();
        let bound = session.bind().input("image", onepool::Memory::value(tensor.clone()));
        let range = onepool::memory::range::ByteRange::new(0, n as u64);
        let memory = onepool::Memory::region_range(&region, range);
        let mut binding = bound.output("result", memory).build().unwrap();
        binding.run().unwrap();
        let got = region.read().unwrap()[..n].to_vec();
        check_messages(context);
        match &first {
            Some(first) => assert_eq!(*first, got, "{device}: {spec:?}"),
            None => first = Some(got),
        }
    }
    first.unwrap()
}

/// Compares a frame with the formulas for the tensor `color`, sampled for its rectangle; other bytes are as before.
fn compare_frame(
    frame: &Frame,
    rect: [usize; 4],
    size: [usize; 2],
    linear: bool,
    color: impl Fn(usize, usize) -> [f64; 4],
) {
    let [x0, y0, w, h] = rect;
    let mut touched = vec![false; frame.bytes.len()];
    let subsampled = frame.format.is_yuv();
    let down = if matches!(frame.format, PixelFormat::Yuyv | PixelFormat::Uyvy) { 1 } else { 2 };
    let sampled = |x: usize, y: usize| {
        let mut mixed = [0.0; 4];
        for (i, wx) in taps(x - x0, w, size[0], linear) {
            for (j, wy) in taps(y - y0, h, size[1], linear) {
                mixed.iter_mut().zip(color(i, j)).for_each(|(to, v)| *to += wx * wy * v.clamp(0.0, 255.0));
            }
        }
        mixed
    };
    for (x, y) in (y0..y0 + h).flat_map(|y| (x0..x0 + w).map(move |x| (x, y))) {
        let own = sampled(x, y);
        let mut block = [0.0; 3];
        if subsampled {
            let (left, top) = (x / 2 * 2, y / down * down);
            for (dx, dy) in (0..down).flat_map(|dy| [0, 1].map(|dx| (dx, dy))) {
                let v = sampled((left + dx).min(x0 + w - 1), (top + dy).min(y0 + h - 1));
                block.iter_mut().zip(v).for_each(|(to, v)| *to += v / (2 * down) as f64);
            }
        }
        let rgb = [own[0], own[1], own[2]];
        let mut want = frame.encoded(rgb);
        if subsampled {
            let chroma = frame.encoded(block);
            (want[1], want[2]) = (chroma[1], chroma[2]);
        }
        let want = [want[0], want[1], want[2], own[3]];
        for (c, at) in frame.places(x, y).into_iter().enumerate() {
            let wide = frame.bits() == 10;
            let most = if wide { 1023.0 } else { 255.0 };
            let got = match wide {
                true => f64::from(u16::from_le_bytes([frame.bytes[at], frame.bytes[at + 1]]) >> 6),
                false => f64::from(frame.bytes[at]),
            };
            let want = want[c].clamp(0.0, most);
            let near = 0.5 + NEAR * (most + 1.0) / 256.0;
            let kind = (frame.format, frame.matrix, frame.range);
            assert!(
                (got - want).abs() <= near,
                "{kind:?}: component {c} at {x}, {y} is {got}, expected {want}"
            );
            touched[at..at + if wide { 2 } else { 1 }].fill(true);
        }
    }
    let others = frame.bytes.iter().zip(touched).filter(|(_, touched)| !touched);
    assert!(others.into_iter().all(|(byte, _)| *byte == 0xA5), "{}: other bytes changed", frame.format);
}

#[test]
fn tensors_become_frames_by_the_standards_formulas() {
    for (n, (format, matrix, range)) in kinds().enumerate() {
        for (rect, size) in [([0, 0, 18, 10], [18, 10]), ([4, 2, 10, 6], [7, 11])] {
            let empty = Frame { matrix, range, ..frame(format, (18, 10), 5, 1) };
            let [x, y, w, h] = rect.map(|v| v as u32);
            let spec = describe(&empty).crop(x, y, w, h);
            let pixels = size[0] * size[1];
            let values = bytes(3 * pixels, n as u64 + 5);
            let color = |i: usize, j: usize| {
                let at = |c: usize| f64::from(values[c * pixels + j * size[0] + i]);
                [at(0), at(1), at(2), 255.0]
            };
            let dims = [1, 3, size[1], size[0]];
            let tensor = Tensor::new(dims, &values).unwrap();
            let got = Frame { bytes: frames(&tensor, &spec), ..empty.clone() };
            compare_frame(&got, rect, size, true, color);
            // Floats beyond the range and what is no number are black or white.
            let mut floats: Vec<f32> = values.iter().map(|v| f32::from(*v) / 255.0).collect();
            (floats[0], floats[1], floats[2]) = (f32::NAN, 1e30, -7.0);
            let color = |i: usize, j: usize| {
                let at = |c: usize| match c * pixels + j * size[0] + i {
                    0 | 2 => 0.0,
                    1 => 255.0,
                    other => f64::from(values[other]),
                };
                [at(0), at(1), at(2), 255.0]
            };
            let tensor = Tensor::new(dims, &floats).unwrap();
            let got = Frame { bytes: frames(&tensor, &spec), ..empty };
            compare_frame(&got, rect, size, true, color);
        }
    }
}

#[test]
fn gray_alpha_and_halves_become_frames() {
    for format in PixelFormat::ALL {
        let empty = frame(format, (12, 8), 3, 1);
        let values = bytes(12 * 8 * 4, 77);
        let luma = Tensor::new([8, 12], &values[..96]).unwrap();
        let got = Frame { bytes: frames(&luma, &describe(&empty)), ..empty.clone() };
        let whole = [0, 0, 12, 8];
        let gray = |i: usize, j: usize| [[f64::from(values[j * 12 + i]); 3].as_slice(), &[255.0]].concat();
        compare_frame(&got, whole, [12, 8], false, |i, j| gray(i, j).try_into().unwrap());
        let rgba = |i: usize, j: usize| [2, 1, 0, 3].map(|c| f64::from(values[(j * 12 + i) * 4 + c]));
        let spec = describe(&empty).channels(Channels::Bgra);
        let tensor = Tensor::new([1, 8, 12, 4], &values).unwrap();
        let got = Frame { bytes: frames(&tensor, &spec), ..empty.clone() };
        compare_frame(&got, whole, [12, 8], false, rgba);
        // Halves hold whole numbers to 2048.
        let halves: Vec<half::f16> =
            values.iter().map(|v| half::f16::from_f32(f32::from(*v) - 100.0)).collect();
        let tensor = Tensor::new([1, 8, 12, 4], &halves).unwrap();
        let spec = spec.scale(1.0).normalize([100.0], [1.0]);
        let got = Frame { bytes: frames(&tensor, &spec), ..empty };
        compare_frame(&got, whole, [12, 8], false, rgba);
    }
}

#[test]
fn the_last_sample_of_chroma_of_an_odd_side_is_that_of_one_pixel() {
    let subsampled = PixelFormat::ALL.into_iter().filter(|format| format.is_yuv());
    for (n, format) in subsampled.enumerate() {
        for (width, height) in [(5, 3), (6, 5), (9, 4), (1, 1), (3, 1)] {
            let picture = frame(format, (width, height), 3, n as u64 + 11);
            let (spec, dims) = (describe(&picture), [1, 3, height, width]);
            let whole = [0, 0, width, height];
            let got = tensors(&picture, &spec, DType::U8, &dims);
            compare(&picture, &got, whole, [width, height], false);
            let got = tensors(&picture, &spec.clone().scale(1.0), DType::F32, &[1, 3, 7, 4]);
            compare(&picture, &got, whole, [4, 7], true);

            // Written whole, by a tensor of its size and of another, and from pixel 2 on to both edges.
            let edge = [2, 2, width.saturating_sub(2), height.saturating_sub(2)];
            for (rect, size) in [(whole, [width, height]), (whole, [4, 7]), (edge, [3, 3])] {
                if rect[2] == 0 || rect[3] == 0 {
                    continue;
                }
                let [x, y, w, h] = rect.map(|v| v as u32);
                let spec = spec.clone().crop(x, y, w, h);
                let values = bytes(3 * size[0] * size[1], n as u64 + 31);
                let tensor = Tensor::new([1, 3, size[1], size[0]], &values).unwrap();
                let color = |i: usize, j: usize| {
                    let at = |c: usize| f64::from(values[(c * size[1] + j) * size[0] + i]);
                    [at(0), at(1), at(2), 255.0]
                };
                let got = Frame { bytes: frames(&tensor, &spec), ..picture.clone() };
                compare_frame(&got, rect, size, true, color);
            }
        }
    }
}

/// A colour that red, green and blue can show comes back as it was, from a tensor of floats.
#[test]
fn a_frame_comes_back_from_its_tensor() {
    for (format, matrix, range) in kinds() {
        let (width, height) = (16, 8);
        let blank = Frame { matrix, range, ..frame(format, (width, height), 4, 1) };
        let colors = bytes(3 * width * height / 4, 21);
        let blocks = Frame { bytes: vec![0xA5; blank.bytes.len()], ..blank };
        let mut given = blocks.clone();
        for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (x, y))) {
            let block = 3 * (y / 2 * width / 2 + x / 2);
            let rgb = [0, 1, 2].map(|c| 24.0 + f64::from(colors[block + c]) * 0.8);
            let encoded = given.encoded(rgb);
            for (c, at) in given.places(x, y).into_iter().enumerate() {
                let value = if c == 3 { 200.0 } else { encoded[c].round() };
                match given.bits() {
                    10 => given.bytes[at..at + 2].copy_from_slice(&((value as u16) << 6).to_le_bytes()),
                    _ => given.bytes[at] = value as u8,
                }
            }
        }
        let spec = describe(&given);
        let channels = if format == PixelFormat::Gray8 { 1 } else { 4 };
        let input = held(&given, &spec);
        for (device, context) in contexts() {
            let graph = identity(DType::F32, &[1, channels, height, width]);
            let session = session(graph, context, Some(spec.clone()), Some(spec.clone()));
            let n = input.bytes().len();
            let mut region = onepool::HostRegion::new(n).unwrap();
            region.as_mut_slice().fill(0xA5);
            let region = region.into_shared();
            let bound = session.bind().input("image", onepool::Memory::value(input.clone()));
            let mut binding = bound.output("result", onepool::Memory::region(&region)).build().unwrap();
            binding.run().unwrap();
            check_messages(context);
            assert_eq!(
                region.read().unwrap()[..n],
                given.bytes[..n],
                "{device}: {format} {matrix:?} {range:?}"
            );
        }
    }
}
