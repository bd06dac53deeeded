//! `onepool_frame`: inputs and outputs that are frames.

use onepool::frame::{Channels, ColorMatrix, ColorRange, Filter, FrameSpec, PixelFormat, TensorLayout};
use onepool::session::SessionBuilder;

use crate::arg::{In, Structure, Text, flag, unknown};
use crate::status::Failure;

/// The most frames of a session.
const MOST: usize = 256;

/// More planes than any format has.
const MOST_PLANES: usize = 16;

/// Pixel formats, their numbers and names in the header.
pub const FORMATS: [(u32, &str, PixelFormat); 11] = [
    (1, "ONEPOOL_FORMAT_GRAY8", PixelFormat::Gray8),
    (2, "ONEPOOL_FORMAT_RGB8", PixelFormat::Rgb8),
    (3, "ONEPOOL_FORMAT_BGR8", PixelFormat::Bgr8),
    (4, "ONEPOOL_FORMAT_RGBA8", PixelFormat::Rgba8),
    (5, "ONEPOOL_FORMAT_BGRA8", PixelFormat::Bgra8),
    (6, "ONEPOOL_FORMAT_YUYV", PixelFormat::Yuyv),
    (7, "ONEPOOL_FORMAT_UYVY", PixelFormat::Uyvy),
    (8, "ONEPOOL_FORMAT_NV12", PixelFormat::Nv12),
    (9, "ONEPOOL_FORMAT_NV21", PixelFormat::Nv21),
    (10, "ONEPOOL_FORMAT_I420", PixelFormat::I420),
    (11, "ONEPOOL_FORMAT_P010", PixelFormat::P010),
];

/// Colour matrices, as above.
pub const MATRICES: [(u32, &str, ColorMatrix); 3] = [
    (0, "ONEPOOL_MATRIX_BT709", ColorMatrix::Bt709),
    (1, "ONEPOOL_MATRIX_BT601", ColorMatrix::Bt601),
    (2, "ONEPOOL_MATRIX_BT2020", ColorMatrix::Bt2020),
];

/// Ranges of a frame's numbers, as above.
pub const RANGES: [(u32, &str, Option<ColorRange>); 3] = [
    (0, "ONEPOOL_RANGE_USUAL", None),
    (1, "ONEPOOL_RANGE_LIMITED", Some(ColorRange::Limited)),
    (2, "ONEPOOL_RANGE_FULL", Some(ColorRange::Full)),
];

/// Filters, as above.
pub const FILTERS: [(u32, &str, Filter); 2] =
    [(0, "ONEPOOL_FILTER_BILINEAR", Filter::Bilinear), (1, "ONEPOOL_FILTER_NEAREST", Filter::Nearest)];

/// Orders of a tensor's dimensions, as above.
pub const LAYOUTS: [(u32, &str, Option<TensorLayout>); 3] = [
    (0, "ONEPOOL_LAYOUT_OF_MODEL", None),
    (1, "ONEPOOL_LAYOUT_NCHW", Some(TensorLayout::Nchw)),
    (2, "ONEPOOL_LAYOUT_NHWC", Some(TensorLayout::Nhwc)),
];

/// Channels of a tensor, as above.
pub const CHANNELS: [(u32, &str, Option<Channels>); 6] = [
    (0, "ONEPOOL_CHANNELS_OF_MODEL", None),
    (1, "ONEPOOL_CHANNELS_GRAY", Some(Channels::Gray)),
    (2, "ONEPOOL_CHANNELS_RGB", Some(Channels::Rgb)),
    (3, "ONEPOOL_CHANNELS_BGR", Some(Channels::Bgr)),
    (4, "ONEPOOL_CHANNELS_RGBA", Some(Channels::Rgba)),
    (5, "ONEPOOL_CHANNELS_BGRA", Some(Channels::Bgra)),
];

/// `onepool_frame`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Size of the structure.
    pub struct_size: usize,
    /// The input or output.
    pub name: Text,
    /// Whether it is an output.
    pub is_output: u32,
    /// Its format.
    pub format: u32,
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Bytes from row to row of each plane.
    pub strides: In<u64>,
    /// Bytes to the first pixel of each plane.
    pub offsets: In<u64>,
    /// The memory of each plane.
    pub memories: In<u32>,
    /// Entries of those lists.
    pub plane_count: usize,
    /// The colour matrix.
    pub matrix: u32,
    /// The range of its numbers.
    pub range: u32,
    /// The rectangle: x, y, width, height.
    pub crop: [u32; 4],
    /// Width and height of the tensor.
    pub size: [u32; 2],
    /// How it is scaled.
    pub filter: u32,
    /// The order of the tensor's dimensions.
    pub layout: u32,
    /// The tensor's channels.
    pub channels: u32,
    /// Zero.
    pub reserved: u32,
    /// The factor of numbers.
    pub scale: In<f32>,
    /// Means of the channels.
    pub mean: In<f32>,
    /// Standard deviations of the channels.
    pub std_dev: In<f32>,
    /// Entries of those lists.
    pub mean_count: usize,
}

// SAFETY: `repr(C)`, begins with its size, holds numbers and pointers that may be anything.
unsafe impl Structure for Frame {}

fn choice<T: Copy>(table: &[(u32, &str, T)], number: u32, argument: &str) -> Result<T, Failure> {
    let found = table.iter().find(|(known, ..)| *known == number);
    found.map(|(.., value)| *value).ok_or_else(|| unknown(argument, number))
}

/// The builder with the frames of a session's options.
pub(crate) fn with_frames(
    mut builder: SessionBuilder,
    frames: In<Frame>,
    count: usize,
) -> Result<SessionBuilder, Failure> {
    for (i, frame) in frames.list(count, MOST, "options.frames")?.iter().enumerate() {
        let argument = format!("options.frames[{i}]");
        let name = frame.name.required(&format!("{argument}.name"))?;
        let spec = spec(frame, &argument)?;
        builder = match flag(frame.is_output, &format!("{argument}.is_output"))? {
            false => builder.frame_input(name, spec),
            true => builder.frame_output(name, spec),
        };
    }
    Ok(builder)
}

fn spec(frame: &Frame, argument: &str) -> Result<FrameSpec, Failure> {
    let field = |name: &str| format!("{argument}.{name}");
    let format = choice(&FORMATS, frame.format, &field("format"))?;
    let mut spec = FrameSpec::new(format, frame.width, frame.height);
    let planes = frame.plane_count;
    if !frame.strides.is_null() {
        spec = spec.strides(frame.strides.values(planes, MOST_PLANES, &field("strides"))?);
    }
    if !frame.offsets.is_null() {
        spec = spec.offsets(frame.offsets.values(planes, MOST_PLANES, &field("offsets"))?);
    }
    if !frame.memories.is_null() {
        let memories = frame.memories.values(planes, MOST_PLANES, &field("memories"))?;
        spec = spec.memories(memories.into_iter().map(|memory| memory as usize).collect::<Vec<_>>());
    }
    spec = spec.matrix(choice(&MATRICES, frame.matrix, &field("matrix"))?);
    spec = spec.filter(choice(&FILTERS, frame.filter, &field("filter"))?);
    if let Some(range) = choice(&RANGES, frame.range, &field("range"))? {
        spec = spec.range(range);
    }
    if let Some(layout) = choice(&LAYOUTS, frame.layout, &field("layout"))? {
        spec = spec.layout(layout);
    }
    if let Some(channels) = choice(&CHANNELS, frame.channels, &field("channels"))? {
        spec = spec.channels(channels);
    }
    if frame.reserved != 0 {
        return Err(unknown(&field("reserved"), frame.reserved));
    }
    let [x, y, width, height] = frame.crop;
    if frame.crop != [0; 4] {
        spec = spec.crop(x, y, width, height);
    }
    if frame.size != [0; 2] {
        spec = spec.size(frame.size[0], frame.size[1]);
    }
    if let Some(scale) = frame.scale.value(&field("scale"))? {
        spec = spec.scale(scale);
    }
    let list = |list: In<f32>, name: &str, alone: f32| match list.is_null() {
        true => Ok(vec![alone]),
        false => list.values(frame.mean_count, MOST_PLANES, &field(name)),
    };
    if !frame.mean.is_null() || !frame.std_dev.is_null() {
        spec = spec.normalize(list(frame.mean, "mean", 0.0)?, list(frame.std_dev, "std_dev", 1.0)?);
    }
    Ok(spec)
}
