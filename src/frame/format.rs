//! Pixel formats: planes, samples and their sizes.

use std::fmt;

/// The arrangement of a frame's samples in bytes. Names are those of GStreamer and V4L2 without bit depths that all
/// formats share; FFmpeg's are in the table of each variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PixelFormat {
    /// One byte for each pixel (FFmpeg `gray`).
    Gray8,
    /// Red, green, blue (FFmpeg `rgb24`).
    Rgb8,
    /// Blue, green, red: OpenCV's pictures (FFmpeg `bgr24`).
    Bgr8,
    /// Red, green, blue, alpha (FFmpeg `rgba`).
    Rgba8,
    /// Blue, green, red, alpha: captured desktops (FFmpeg `bgra`).
    Bgra8,
    /// 4:2:2 in one plane: Y, U, Y, V (FFmpeg `yuyv422`, V4L2 `YUYV`, GStreamer `YUY2`).
    Yuyv,
    /// 4:2:2 in one plane: U, Y, V, Y (FFmpeg `uyvy422`).
    Uyvy,
    /// 4:2:0 in two planes: Y; U and V in turns (FFmpeg `nv12`).
    Nv12,
    /// As NV12 with V before U (FFmpeg `nv21`).
    Nv21,
    /// 4:2:0 in three planes: Y, U, V (FFmpeg `yuv420p`).
    I420,
    /// As NV12 with 10 bits in the upper bits of little-endian 16-bit words (FFmpeg `p010le`).
    P010,
}

/// Where the samples of one component lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Component {
    pub(crate) plane: usize,
    /// Bytes from one sample to the next.
    pub(crate) step: u32,
    /// Bytes from the start of a row to the first sample.
    pub(crate) byte: u32,
}

const fn at(plane: usize, step: u32, byte: u32) -> Component {
    Component { plane, step, byte }
}

impl PixelFormat {
    /// Every format.
    pub const ALL: [PixelFormat; 11] = [
        PixelFormat::Gray8,
        PixelFormat::Rgb8,
        PixelFormat::Bgr8,
        PixelFormat::Rgba8,
        PixelFormat::Bgra8,
        PixelFormat::Yuyv,
        PixelFormat::Uyvy,
        PixelFormat::Nv12,
        PixelFormat::Nv21,
        PixelFormat::I420,
        PixelFormat::P010,
    ];

    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            PixelFormat::Gray8 => "gray8",
            PixelFormat::Rgb8 => "rgb8",
            PixelFormat::Bgr8 => "bgr8",
            PixelFormat::Rgba8 => "rgba8",
            PixelFormat::Bgra8 => "bgra8",
            PixelFormat::Yuyv => "yuyv",
            PixelFormat::Uyvy => "uyvy",
            PixelFormat::Nv12 => "nv12",
            PixelFormat::Nv21 => "nv21",
            PixelFormat::I420 => "i420",
            PixelFormat::P010 => "p010",
        }
    }

    /// The format of this [`PixelFormat::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        PixelFormat::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Number of planes.
    pub fn planes(self) -> usize {
        self.components().iter().map(|c| c.plane + 1).max().unwrap_or(1)
    }

    /// Whether its components are luma and chroma, so that a colour matrix belongs to it.
    pub fn is_yuv(self) -> bool {
        use PixelFormat as F;
        matches!(self, F::Yuyv | F::Uyvy | F::Nv12 | F::Nv21 | F::I420 | F::P010)
    }

    /// Red, green, blue; or Y, U, V; or one component.
    pub(crate) fn components(self) -> &'static [Component] {
        match self {
            PixelFormat::Gray8 => const { &[at(0, 1, 0)] },
            PixelFormat::Rgb8 => const { &[at(0, 3, 0), at(0, 3, 1), at(0, 3, 2)] },
            PixelFormat::Bgr8 => const { &[at(0, 3, 2), at(0, 3, 1), at(0, 3, 0)] },
            PixelFormat::Rgba8 => const { &[at(0, 4, 0), at(0, 4, 1), at(0, 4, 2)] },
            PixelFormat::Bgra8 => const { &[at(0, 4, 2), at(0, 4, 1), at(0, 4, 0)] },
            PixelFormat::Yuyv => const { &[at(0, 2, 0), at(0, 4, 1), at(0, 4, 3)] },
            PixelFormat::Uyvy => const { &[at(0, 2, 1), at(0, 4, 0), at(0, 4, 2)] },
            PixelFormat::Nv12 => const { &[at(0, 1, 0), at(1, 2, 0), at(1, 2, 1)] },
            PixelFormat::Nv21 => const { &[at(0, 1, 0), at(1, 2, 1), at(1, 2, 0)] },
            PixelFormat::I420 => const { &[at(0, 1, 0), at(1, 1, 0), at(2, 1, 0)] },
            PixelFormat::P010 => const { &[at(0, 2, 0), at(1, 4, 0), at(1, 4, 2)] },
        }
    }

    /// The byte of alpha in a pixel of plane 0.
    pub(crate) fn alpha(self) -> Option<u32> {
        matches!(self, PixelFormat::Rgba8 | PixelFormat::Bgra8).then_some(3)
    }

    /// Pixels for one sample of chroma, as powers of two: across, down.
    pub(crate) fn chroma_shifts(self) -> [u32; 2] {
        use PixelFormat as F;
        match self {
            F::Nv12 | F::Nv21 | F::I420 | F::P010 => [1, 1],
            F::Yuyv | F::Uyvy => [1, 0],
            F::Gray8 | F::Rgb8 | F::Bgr8 | F::Rgba8 | F::Bgra8 => [0, 0],
        }
    }

    /// Significant bits of a sample: 8, or 10 in the upper bits of two bytes.
    pub(crate) fn bits(self) -> u32 {
        if self == PixelFormat::P010 { 10 } else { 8 }
    }

    /// Whether rows of `width` pixels end with a sample of luma that belongs to no pixel.
    pub(crate) fn has_luma_beyond(self, width: u32) -> bool {
        matches!(self, PixelFormat::Yuyv | PixelFormat::Uyvy) && width % 2 == 1
    }

    /// Bytes of the samples of one row of `plane`, and the number of rows, in a frame of `size`. Chroma is rounded up.
    pub(crate) fn plane_size(self, plane: usize, size: [u32; 2]) -> [u64; 2] {
        let shifts = self.chroma_shifts();
        let of_plane = self.components().iter().enumerate().find(|(_, c)| c.plane == plane);
        let Some((index, component)) = of_plane else { return [0, 0] };
        let [mut width, mut height] = size;
        if index > 0 {
            [width, height] = [0, 1].map(|i| size[i].div_ceil(1 << shifts[i]));
        }
        width += u32::from(self.has_luma_beyond(width));
        [u64::from(width) * u64::from(component.step), u64::from(height)]
    }
}

impl fmt::Display for PixelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_have_the_sizes_of_the_formats_documents() {
        let of = |format: PixelFormat, plane| format.plane_size(plane, [6, 4]);
        assert_eq!(of(PixelFormat::Gray8, 0), [6, 4]);
        assert_eq!(of(PixelFormat::Bgr8, 0), [18, 4]);
        assert_eq!(of(PixelFormat::Rgba8, 0), [24, 4]);
        assert_eq!(of(PixelFormat::Yuyv, 0), [12, 4]);
        assert_eq!([of(PixelFormat::Nv12, 0), of(PixelFormat::Nv12, 1)], [[6, 4], [6, 2]]);
        assert_eq!([0, 1, 2].map(|p| of(PixelFormat::I420, p)), [[6, 4], [3, 2], [3, 2]]);
        assert_eq!([of(PixelFormat::P010, 0), of(PixelFormat::P010, 1)], [[12, 4], [12, 2]]);
        let odd = |format: PixelFormat, plane| format.plane_size(plane, [5, 3]);
        assert_eq!([odd(PixelFormat::Nv12, 0), odd(PixelFormat::Nv12, 1)], [[5, 3], [6, 2]]);
        assert_eq!([0, 1, 2].map(|p| odd(PixelFormat::I420, p)), [[5, 3], [3, 2], [3, 2]]);
        assert_eq!([odd(PixelFormat::P010, 0), odd(PixelFormat::P010, 1)], [[10, 3], [12, 2]]);
        assert_eq!([odd(PixelFormat::Yuyv, 0), odd(PixelFormat::Uyvy, 0)], [[12, 3]; 2]);
        for format in PixelFormat::ALL {
            assert_eq!(PixelFormat::from_name(format.name()), Some(format));
            assert!((0..format.planes()).all(|p| of(format, p)[0] > 0), "{format}");
        }
    }
}
