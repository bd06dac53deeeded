//! Frames by the formulas of the standards, in `f64`, one pixel at a time.
//!
//! Luma weights: ITU-R BT.601-7 2.5.1, BT.709-6 3.2, BT.2020-2 table 4. Chroma: the differences divided by twice one
//! minus a weight, as there. Quantization: ITU-T H.273 8.3, equations of `VideoFullRangeFlag` 0 and 1.

use onepool::frame::{ColorMatrix, ColorRange, PixelFormat};

/// A frame with padded rows.
#[derive(Clone)]
pub(crate) struct Frame {
    pub(crate) format: PixelFormat,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) strides: Vec<usize>,
    pub(crate) offsets: Vec<usize>,
    pub(crate) matrix: ColorMatrix,
    pub(crate) range: ColorRange,
    pub(crate) bytes: Vec<u8>,
}

/// Bytes of a row of each plane, and rows.
pub(crate) fn planes(format: PixelFormat, width: usize, height: usize) -> Vec<[usize; 2]> {
    let (half_width, half_height) = (width.div_ceil(2), height.div_ceil(2));
    match format {
        PixelFormat::Gray8 => vec![[width, height]],
        PixelFormat::Rgb8 | PixelFormat::Bgr8 => vec![[3 * width, height]],
        PixelFormat::Rgba8 | PixelFormat::Bgra8 => vec![[4 * width, height]],
        PixelFormat::Yuyv | PixelFormat::Uyvy => vec![[4 * half_width, height]],
        PixelFormat::Nv12 | PixelFormat::Nv21 => vec![[width, height], [2 * half_width, half_height]],
        PixelFormat::I420 => vec![[width, height], [half_width, half_height], [half_width, half_height]],
        PixelFormat::P010 => vec![[2 * width, height], [4 * half_width, half_height]],
        _ => panic!("{format} has no reference"),
    }
}

impl Frame {
    /// A frame of `bytes`, with `padding` bytes after each row and before each plane.
    pub(crate) fn new(
        format: PixelFormat,
        (width, height): (usize, usize),
        padding: usize,
        matrix: ColorMatrix,
        range: ColorRange,
        bytes: impl FnOnce(usize) -> Vec<u8>,
    ) -> Frame {
        let (mut strides, mut offsets, mut end) = (Vec::new(), Vec::new(), 0);
        for [row, rows] in planes(format, width, height) {
            offsets.push(end + padding);
            strides.push(row + padding);
            end += padding + (row + padding) * rows;
        }
        Frame { format, width, height, strides, offsets, matrix, range, bytes: bytes(end) }
    }

    /// The bytes of the components and of alpha of a pixel, in the order of the format's name or Y, U, V.
    pub(crate) fn places(&self, x: usize, y: usize) -> Vec<usize> {
        let at =
            |plane: usize, row: usize, byte: usize| self.offsets[plane] + row * self.strides[plane] + byte;
        let pair = x / 2 * 4;
        match self.format {
            PixelFormat::Gray8 => vec![at(0, y, x)],
            PixelFormat::Rgb8 => [0, 1, 2].map(|c| at(0, y, 3 * x + c)).into(),
            PixelFormat::Bgr8 => [2, 1, 0].map(|c| at(0, y, 3 * x + c)).into(),
            PixelFormat::Rgba8 => [0, 1, 2, 3].map(|c| at(0, y, 4 * x + c)).into(),
            PixelFormat::Bgra8 => [2, 1, 0, 3].map(|c| at(0, y, 4 * x + c)).into(),
            PixelFormat::Yuyv => vec![at(0, y, 2 * x), at(0, y, pair + 1), at(0, y, pair + 3)],
            PixelFormat::Uyvy => vec![at(0, y, 2 * x + 1), at(0, y, pair), at(0, y, pair + 2)],
            PixelFormat::Nv12 => vec![at(0, y, x), at(1, y / 2, x / 2 * 2), at(1, y / 2, x / 2 * 2 + 1)],
            PixelFormat::Nv21 => vec![at(0, y, x), at(1, y / 2, x / 2 * 2 + 1), at(1, y / 2, x / 2 * 2)],
            PixelFormat::I420 => vec![at(0, y, x), at(1, y / 2, x / 2), at(2, y / 2, x / 2)],
            PixelFormat::P010 => vec![at(0, y, 2 * x), at(1, y / 2, pair), at(1, y / 2, pair + 2)],
            _ => panic!("{} has no reference", self.format),
        }
    }

    /// The components of a pixel, alpha as the fourth.
    fn components(&self, x: usize, y: usize) -> [f64; 4] {
        let mut found = [0.0, 0.0, 0.0, 255.0];
        for (to, at) in found.iter_mut().zip(self.places(x, y)) {
            *to = match self.format {
                PixelFormat::P010 => f64::from(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]) >> 6),
                _ => f64::from(self.bytes[at]),
            };
        }
        found
    }

    pub(crate) fn bits(&self) -> i32 {
        if self.format == PixelFormat::P010 { 10 } else { 8 }
    }

    /// Red, green, blue and alpha from 0 to 255, of the rectangle from `x, y` on of `w` x `h` pixels, sampled for pixel
    /// `o` of a picture of `size`.
    pub(crate) fn rgba(&self, rect: [usize; 4], size: [usize; 2], o: [usize; 2], linear: bool) -> [f64; 4] {
        let [x, y, w, h] = rect;
        let [tx, ty] = [taps(o[0], size[0], w, linear), taps(o[1], size[1], h, linear)];
        let mut mixed = [0.0; 4];
        for (i, wx) in tx {
            for &(j, wy) in &ty {
                let components = self.components(x + i, y + j);
                mixed.iter_mut().zip(components).for_each(|(to, v)| *to += wx * wy * v);
            }
        }
        let [r, g, b] = self.rgb([mixed[0], mixed[1], mixed[2]]);
        [r, g, b, mixed[3]].map(|v| v.clamp(0.0, 255.0))
    }

    pub(crate) fn luma(&self) -> [f64; 3] {
        match self.matrix {
            ColorMatrix::Bt601 => [0.299, 0.587, 0.114],
            ColorMatrix::Bt709 => [0.2126, 0.7152, 0.0722],
            ColorMatrix::Bt2020 => [0.2627, 0.6780, 0.0593],
        }
    }

    fn rgb(&self, [a, b, c]: [f64; 3]) -> [f64; 3] {
        let unit = 2f64.powi(self.bits() - 8);
        let most = 2f64.powi(self.bits()) - 1.0;
        let luma = |v: f64| match self.range {
            ColorRange::Limited => (v / unit - 16.0) / 219.0,
            ColorRange::Full => v / most,
        };
        let chroma = |v: f64| match self.range {
            ColorRange::Limited => (v / unit - 128.0) / 224.0,
            ColorRange::Full => (v - 128.0 * unit) / most,
        };
        if self.format == PixelFormat::Gray8 {
            return [255.0 * luma(a); 3];
        }
        if !self.format.is_yuv() {
            return [a, b, c].map(|v| 255.0 * luma(v));
        }
        let [kr, kg, kb] = self.luma();
        let (y, pb, pr) = (luma(a), chroma(b), chroma(c));
        let (r, b) = (y + 2.0 * (1.0 - kr) * pr, y + 2.0 * (1.0 - kb) * pb);
        [r, (y - kr * r - kb * b) / kg, b].map(|v| 255.0 * v)
    }

    /// Components of a colour from 0 to 255, unrounded.
    pub(crate) fn encoded(&self, [r, g, b]: [f64; 3]) -> [f64; 3] {
        let unit = 2f64.powi(self.bits() - 8);
        let most = 2f64.powi(self.bits()) - 1.0;
        let luma = |v: f64| match self.range {
            ColorRange::Limited => unit * (16.0 + 219.0 * v / 255.0),
            ColorRange::Full => most * v / 255.0,
        };
        let chroma = |v: f64| match self.range {
            ColorRange::Limited => unit * (128.0 + 224.0 * v / 255.0),
            ColorRange::Full => 128.0 * unit + most * v / 255.0,
        };
        let [kr, kg, kb] = self.luma();
        let y = kr * r + kg * g + kb * b;
        if self.format == PixelFormat::Gray8 {
            return [luma(y), 0.0, 0.0];
        }
        if !self.format.is_yuv() {
            return [r, g, b].map(luma);
        }
        [luma(y), chroma((b - y) / (2.0 * (1.0 - kb))), chroma((r - y) / (2.0 * (1.0 - kr)))]
    }
}

/// The pixels of `len` around the place of pixel `o` of `size`, with their weights.
pub(crate) fn taps(o: usize, size: usize, len: usize, linear: bool) -> Vec<(usize, f64)> {
    let place = (o as f64 + 0.5) * len as f64 / size as f64;
    if !linear {
        return vec![(place.floor() as usize, 1.0)];
    }
    let place = (place - 0.5).clamp(0.0, (len - 1) as f64);
    let first = (place.floor() as usize).min(len - 1);
    let part = place - first as f64;
    vec![(first, 1.0 - part), ((first + 1).min(len - 1), part)]
}
