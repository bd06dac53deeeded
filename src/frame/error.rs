//! What is wrong with a description of a frame.

use super::PixelFormat;
use crate::dtype::DType;

/// Why a frame cannot be an input or output.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A side is 0 or too long.
    #[error("size: {width} x {height} pixels; give 1 to {limit} for each side")]
    Size {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// The largest side.
        limit: u32,
    },
    /// A list has another length than the format has planes.
    #[error("{argument}: {got} of them, but {format} has {expected} planes; give one for each plane")]
    PlaneCount {
        /// "strides", "offsets" or "memories".
        argument: &'static str,
        /// The format.
        format: PixelFormat,
        /// Planes of the format.
        expected: usize,
        /// Entries given.
        got: usize,
    },
    /// Rows of a plane overlap.
    #[error("strides: {stride} bytes for plane {plane}, whose rows have {row} bytes; give {row} or more")]
    Stride {
        /// The plane.
        plane: usize,
        /// Bytes from row to row.
        stride: u64,
        /// Bytes of a row's pixels.
        row: u64,
    },
    /// Two planes lie on the same bytes.
    #[error(
        "offsets: planes {first} and {second} overlap in memory {memory}; plane {first} ends at byte {end}, plane \
         {second} begins at {start}: move one, or give each a memory of its own"
    )]
    Overlap {
        /// The plane that begins first.
        first: usize,
        /// The other one.
        second: usize,
        /// Their memory.
        memory: usize,
        /// The first byte after the first plane.
        end: u64,
        /// The first byte of the second plane.
        start: u64,
    },
    /// The numbers of the planes' memories have gaps.
    #[error("memories: {given:?}; number them from 0 on without a gap")]
    Memories {
        /// The numbers.
        given: Vec<usize>,
    },
    /// A memory has too many bytes for a frame.
    #[error(
        "offsets and strides: plane {plane} ends at byte {end}, beyond {limit}; bind a part of the memory"
    )]
    TooLarge {
        /// The plane.
        plane: usize,
        /// Its end in bytes; the largest number where it is beyond 64 bits.
        end: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The rectangle is empty or leaves the frame.
    #[error(
        "crop: {width} x {height} pixels at {x}, {y} do not lie in a frame of {frame_width} x {frame_height}; give a \
         rectangle inside it"
    )]
    Crop {
        /// Left edge in pixels.
        x: u32,
        /// Upper edge in pixels.
        y: u32,
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// Width of the frame.
        frame_width: u32,
        /// Height of the frame.
        frame_height: u32,
    },
    /// The rectangle of an output cuts through chroma samples.
    #[error(
        "crop: {value} in {argument} cuts through chroma samples of {format}, which are written whole; give a multiple of {of}, or \
         end at the frame's edge"
    )]
    CropOdd {
        /// "x", "y", "width" or "height".
        argument: &'static str,
        /// Its value in pixels.
        value: u32,
        /// The format.
        format: PixelFormat,
        /// Pixels for one sample of chroma.
        of: u32,
    },
    /// A number of the normalization is no usable one.
    #[error("{argument}: {value}; give a finite number{}", if *.argument == "mean" { "" } else { " that is not 0" })]
    Number {
        /// "scale", "mean" or "std".
        argument: &'static str,
        /// The number.
        value: f32,
    },
    /// A list of the normalization has another length than the tensor has channels.
    #[error("{argument}: {got} numbers for {channels} channels; give 1 or {channels}")]
    NumberCount {
        /// "mean" or "std".
        argument: &'static str,
        /// Numbers given.
        got: usize,
        /// Channels of the tensor.
        channels: usize,
    },
    /// A tensor of bytes is normalized.
    #[error("scale, mean, std: the tensor is uint8 and takes the bytes as they are; leave them out")]
    BytesNormalized,
    /// The tensor has a type that is no picture's.
    #[error("the tensor holds {got}; a frame becomes float32, float16 or uint8: convert it in the model")]
    TensorType {
        /// The type.
        got: DType,
    },
    /// The tensor has a shape that is no picture's.
    #[error(
        "the tensor has shape {got}; expected [1, channels, height, width] or [1, height, width, channels] with 1, 3 or 4 \
         channels, the same without the 1, or [height, width]"
    )]
    TensorShape {
        /// Its declared shape.
        got: String,
    },
    /// The description and the tensor disagree about a size.
    #[error(
        "{argument}: {expected} is described, the tensor of shape {shape} has {got}; make them equal or leave it out"
    )]
    Mismatch {
        /// "channels", "width" or "height".
        argument: &'static str,
        /// The described number.
        expected: usize,
        /// The tensor's.
        got: usize,
        /// The tensor's shape.
        shape: String,
    },
    /// Another number of memories is bound than the frame lies in.
    #[error(
        "{got} memories are bound, the frame lies in {expected}: give one for each, in the order of their numbers"
    )]
    Bound {
        /// Memories of the description.
        expected: usize,
        /// Memories given.
        got: usize,
    },
}
