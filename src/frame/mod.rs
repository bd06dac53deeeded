//! Frames: pictures as cameras, decoders and desktops hold them, described so that they can be inputs and outputs.
//!
//! A [`FrameSpec`] says where the planes of a frame lie, what their bytes mean, and which tensor they become. Given to
//! [`SessionBuilder::frame_input`](crate::session::SessionBuilder::frame_input) or
//! [`frame_output`](crate::session::SessionBuilder::frame_output), the conversion is the first or last kernel of a run,
//! on the frame's own memory.
//!
//! # Arithmetic
//!
//! Integers alone, equal on every device. A sample is interpolated with weights of 14 bits; the colour matrix has
//! coefficients of 15 bits and more after the binary point. Results are within 0.05 units of 8 bits of the exact ones
//! before they are rounded. Tensors of floats get them unrounded, as `(value * scale - mean) / std`: one multiplication
//! and one addition in `float32`.

#![forbid(unsafe_code)]

mod color;
mod error;
mod format;
mod tensor;

pub(crate) use color::{Affine, ENCODED_FRACTION, POINT, fraction};
pub use color::{ColorMatrix, ColorRange};
pub use error::FrameError;

pub use format::PixelFormat;
pub(crate) use tensor::Pixels;

/// The longest side of a frame or of its tensor, in pixels.
pub const MAX_SIDE: u32 = 1 << 14;

/// The most bytes of a memory of a frame.
pub const MAX_BYTES: u64 = (1 << 31) - 1;

/// How a rectangle of another size becomes the tensor's, or the tensor the rectangle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Filter {
    /// The pixel at the place.
    Nearest,
    /// The four pixels around the place, with pixels' centres at halves and edges repeated: OpenCV's `INTER_LINEAR`.
    /// Pixels between them have no part in a much smaller tensor.
    #[default]
    Bilinear,
}

/// The order of a tensor's dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorLayout {
    /// Channels, height, width.
    Nchw,
    /// Height, width, channels.
    Nhwc,
}

/// The channels of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channels {
    /// Luma.
    Gray,
    /// Red, green, blue.
    Rgb,
    /// Blue, green, red.
    Bgr,
    /// Red, green, blue, alpha; a frame without alpha is opaque.
    Rgba,
    /// Blue, green, red, alpha.
    Bgra,
}

impl Channels {
    /// Their number.
    pub fn count(self) -> usize {
        match self {
            Channels::Gray => 1,
            Channels::Rgb | Channels::Bgr => 3,
            Channels::Rgba | Channels::Bgra => 4,
        }
    }

    /// The channels of red, green and blue.
    pub(crate) fn order(self) -> [usize; 3] {
        match self {
            Channels::Gray => [0; 3],
            Channels::Rgb | Channels::Rgba => [0, 1, 2],
            Channels::Bgr | Channels::Bgra => [2, 1, 0],
        }
    }
}

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rect {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// Where a plane lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plane {
    pub(crate) memory: usize,
    pub(crate) offset: u64,
    pub(crate) stride: u64,
    pub(crate) row_bytes: u64,
    pub(crate) rows: u64,
}

impl Plane {
    /// The first byte after its last pixel, if that is a number of 64 bits.
    fn end(&self) -> Option<u64> {
        let last = self.stride.checked_mul(self.rows.saturating_sub(1))?;
        self.offset.checked_add(last)?.checked_add(self.row_bytes)
    }
}

/// A frame: its format, its planes in memory, and the tensor that it becomes or comes from.
///
/// ```
/// use onepool::frame::{ColorMatrix, FrameSpec, PixelFormat};
///
/// // What a decoder gives: two planes in one buffer, rows padded to 2048 bytes.
/// let frame = FrameSpec::new(PixelFormat::Nv12, 1920, 1080)
///     .strides([2048, 2048])
///     .offsets([0, 2048 * 1088])
///     .matrix(ColorMatrix::Bt709)
///     .crop(420, 0, 1080, 1080)
///     .normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
/// frame.check()?;
/// # Ok::<(), onepool::frame::FrameError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FrameSpec {
    format: PixelFormat,
    width: u32,
    height: u32,
    strides: Option<Vec<u64>>,
    offsets: Option<Vec<u64>>,
    memories: Option<Vec<usize>>,
    matrix: ColorMatrix,
    range: Option<ColorRange>,
    crop: Option<Rect>,
    filter: Filter,
    size: Option<[u32; 2]>,
    layout: Option<TensorLayout>,
    channels: Option<Channels>,
    scale: Option<f32>,
    mean: Option<Vec<f32>>,
    std: Option<Vec<f32>>,
}

impl FrameSpec {
    /// A frame of `width` x `height` pixels; where a sample of chroma covers two of them and a side is odd, the last one
    /// covers one. Planes one after the other in one memory, rows without padding, BT.709,
    /// limited range for luma and chroma and full range else, the whole frame, bilinear.
    pub fn new(format: PixelFormat, width: u32, height: u32) -> Self {
        FrameSpec {
            format,
            width,
            height,
            strides: None,
            offsets: None,
            memories: None,
            matrix: ColorMatrix::default(),
            range: None,
            crop: None,
            filter: Filter::default(),
            size: None,
            layout: None,
            channels: None,
            scale: None,
            mean: None,
            std: None,
        }
    }

    /// Bytes from one row to the next, for each plane: FFmpeg's `linesize`, V4L2's `bytesperline`. Without
    /// [`FrameSpec::offsets`], a plane of the same memory begins where the rows of the one before it end.
    pub fn strides(mut self, strides: impl Into<Vec<u64>>) -> Self {
        self.strides = Some(strides.into());
        self
    }

    /// Bytes from the start of its memory to the first pixel, for each plane.
    pub fn offsets(mut self, offsets: impl Into<Vec<u64>>) -> Self {
        self.offsets = Some(offsets.into());
        self
    }

    /// The memory that each plane lies in, numbered from 0 on. Each is bound on its own.
    pub fn memories(mut self, memories: impl Into<Vec<usize>>) -> Self {
        self.memories = Some(memories.into());
        self
    }

    /// Each plane has a memory of its own, as FFmpeg's `data[]`.
    pub fn separate(self) -> Self {
        let memories: Vec<usize> = (0..self.format.planes()).collect();
        self.memories(memories)
    }

    /// The colour matrix; also how red, green and blue become gray.
    pub fn matrix(mut self, matrix: ColorMatrix) -> Self {
        self.matrix = matrix;
        self
    }

    /// The range of the frame's numbers.
    pub fn range(mut self, range: ColorRange) -> Self {
        self.range = Some(range);
        self
    }

    /// The rectangle that becomes the tensor or that the tensor is written to, in pixels. Pixels around it stay.
    pub fn crop(mut self, x: u32, y: u32, width: u32, height: u32) -> Self {
        self.crop = Some(Rect { x, y, width, height });
        self
    }

    /// How the rectangle is scaled to the tensor's size, or the other way round.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Width and height of the tensor where the model leaves them open; by default those of the rectangle.
    pub fn size(mut self, width: u32, height: u32) -> Self {
        self.size = Some([width, height]);
        self
    }

    /// The order of the tensor's dimensions, where its shape does not tell.
    pub fn layout(mut self, layout: TensorLayout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// The tensor's channels; by default gray, RGB or RGBA by their number.
    pub fn channels(mut self, channels: Channels) -> Self {
        self.channels = Some(channels);
        self
    }

    /// Each number of a tensor of floats is `(value * scale - mean) / std` of a value from 0 to 255; 1 / 255 by default.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Mean and standard deviation, as in [`FrameSpec::scale`]: one for all channels, or one for each in their order.
    pub fn normalize(mut self, mean: impl Into<Vec<f32>>, std: impl Into<Vec<f32>>) -> Self {
        (self.mean, self.std) = (Some(mean.into()), Some(std.into()));
        self
    }

    /// Its format.
    pub fn format(&self) -> PixelFormat {
        self.format
    }

    /// Checks all that does not depend on the tensor.
    ///
    /// # Errors
    /// [`FrameError`] names the argument.
    pub fn check(&self) -> Result<(), FrameError> {
        self.planes()?;
        self.numbers(None)?;
        Ok(())
    }

    /// Bytes of each memory, to the last pixel in it.
    ///
    /// # Errors
    /// As [`FrameSpec::check`].
    pub fn memory_bytes(&self) -> Result<Vec<u64>, FrameError> {
        let mut bytes = Vec::new();
        for plane in self.planes()? {
            let needed = plane.memory + 1;
            bytes.resize(needed.max(bytes.len()), 0);
            bytes[plane.memory] = plane.end().unwrap_or(u64::MAX).max(bytes[plane.memory]);
        }
        Ok(bytes)
    }

    /// For each plane, the number of its memory and the bytes from one row to the next.
    ///
    /// # Errors
    /// As [`FrameSpec::check`].
    pub fn row_strides(&self) -> Result<Vec<(usize, u64)>, FrameError> {
        Ok(self.planes()?.iter().map(|plane| (plane.memory, plane.stride)).collect())
    }

    pub(crate) fn color_range(&self) -> ColorRange {
        let usual = if self.format.is_yuv() { ColorRange::Limited } else { ColorRange::Full };
        self.range.unwrap_or(usual)
    }

    pub(crate) fn color_matrix(&self) -> ColorMatrix {
        self.matrix
    }

    /// The rectangle, which is in the frame once [`FrameSpec::check`] is well.
    pub(crate) fn rect(&self) -> Rect {
        self.crop.unwrap_or(Rect { x: 0, y: 0, width: self.width, height: self.height })
    }

    /// Checks that the rectangle can be written.
    pub(crate) fn check_written(&self) -> Result<(), FrameError> {
        let (rect, [across, down]) = (self.rect(), self.format.chroma_shifts());
        let at_edge = [rect.x + rect.width == self.width, rect.y + rect.height == self.height];
        // The last samples of a frame may cover pixels beyond it.
        let sides = [
            ("x", rect.x, across, false),
            ("width", rect.width, across, at_edge[0]),
            ("y", rect.y, down, false),
            ("height", rect.height, down, at_edge[1]),
        ];
        match sides.into_iter().find(|(_, value, shift, fine)| !fine && value % (1 << shift) != 0) {
            Some((argument, value, shift, _)) => {
                Err(FrameError::CropOdd { argument, value, format: self.format, of: 1 << shift })
            }
            None => Ok(()),
        }
    }

    /// Of each memory, whether a frame that is written leaves bytes of it as they are.
    pub(crate) fn keeps_bytes(&self) -> Result<Vec<bool>, FrameError> {
        let rect = self.rect();
        let whole = rect == Rect { x: 0, y: 0, width: self.width, height: self.height }
            && !self.format.has_luma_beyond(self.width);
        let mut written = self.memory_bytes()?;
        for plane in self.planes()? {
            // Planes do not overlap.
            written[plane.memory] -= plane.row_bytes * plane.rows;
        }
        Ok(written.into_iter().map(|left| left > 0 || !whole).collect())
    }

    /// The planes, checked.
    pub(crate) fn planes(&self) -> Result<Vec<Plane>, FrameError> {
        self.check_sides()?;
        let (format, count) = (self.format, self.format.planes());
        let counted = |argument, got: Option<usize>| match got {
            Some(got) if got != count => {
                Err(FrameError::PlaneCount { argument, format, expected: count, got })
            }
            _ => Ok(()),
        };
        counted("strides", self.strides.as_ref().map(Vec::len))?;
        counted("offsets", self.offsets.as_ref().map(Vec::len))?;
        counted("memories", self.memories.as_ref().map(Vec::len))?;
        let mut planes: Vec<Plane> = Vec::with_capacity(count);
        for p in 0..count {
            let [row_bytes, rows] = format.plane_size(p, [self.width, self.height]);
            let stride = self.strides.as_ref().map_or(row_bytes, |strides| strides[p]);
            if stride < row_bytes {
                return Err(FrameError::Stride { plane: p, stride, row: row_bytes });
            }
            let memory = self.memories.as_ref().map_or(0, |memories| memories[p]);
            let before = planes.iter().rev().find(|plane| plane.memory == memory);
            let next = |plane: &Plane| plane.stride.saturating_mul(plane.rows).saturating_add(plane.offset);
            let offset = match &self.offsets {
                Some(offsets) => offsets[p],
                None => before.map_or(0, next),
            };
            let plane = Plane { memory, offset, stride, row_bytes, rows };
            match plane.end() {
                Some(end) if end <= MAX_BYTES => planes.push(plane),
                end => {
                    let end = end.unwrap_or(u64::MAX);
                    return Err(FrameError::TooLarge { plane: p, end, limit: MAX_BYTES });
                }
            }
        }
        self.check_apart(&planes)?;
        Ok(planes)
    }

    fn check_sides(&self) -> Result<(), FrameError> {
        let (width, height) = (self.width, self.height);
        let is_side = |pixels: u32| (1..=MAX_SIDE).contains(&pixels);
        if !is_side(width) || !is_side(height) {
            return Err(FrameError::Size { width, height, limit: MAX_SIDE });
        }
        if let Some([width, height]) = self.size
            && (!is_side(width) || !is_side(height))
        {
            return Err(FrameError::Size { width, height, limit: MAX_SIDE });
        }
        let Rect { x, y, width: crop_width, height: crop_height } = self.rect();
        let inside =
            |start: u32, len: u32, all: u32| len > 0 && start.checked_add(len).is_some_and(|end| end <= all);
        if !inside(x, crop_width, width) || !inside(y, crop_height, height) {
            let (frame_width, frame_height) = (width, height);
            return Err(FrameError::Crop {
                x,
                y,
                width: crop_width,
                height: crop_height,
                frame_width,
                frame_height,
            });
        }
        Ok(())
    }

    fn check_apart(&self, planes: &[Plane]) -> Result<(), FrameError> {
        let memories = planes.iter().map(|plane| plane.memory);
        let last = memories.clone().max().unwrap_or(0);
        if !(0..=last.min(planes.len())).all(|memory| memories.clone().any(|given| given == memory)) {
            return Err(FrameError::Memories { given: memories.collect() });
        }
        let mut order: Vec<usize> = (0..planes.len()).collect();
        order.sort_by_key(|p| (planes[*p].memory, planes[*p].offset));
        for pair in order.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            let (a, b) = (&planes[first], &planes[second]);
            let end = a.end().unwrap_or(u64::MAX);
            if a.memory == b.memory && end > b.offset {
                return Err(FrameError::Overlap { first, second, memory: a.memory, end, start: b.offset });
            }
        }
        Ok(())
    }
}
