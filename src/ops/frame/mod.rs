//! Frames: tensors of the pixels in cameras', decoders' and desktops' memory ([`crate::frame`]).
//!
//! Sessions put these operators before and after a model; no file names them.

mod device;
mod sampling;
mod to_frame;
mod to_tensor;

pub use to_frame::TensorToFrame;
pub use to_tensor::FrameToTensor;

use crate::frame::{FrameError, FrameSpec, PixelFormat, Plane};

/// Places after the binary point of the values that floats are made of.
const FLOAT_POINT: u32 = 16;

/// Where the samples of one component lie.
#[derive(Clone, Copy, Debug, Default)]
struct Samples {
    memory: usize,
    /// The byte of the first sample.
    base: u32,
    /// Bytes from row to row, and from sample to sample.
    stride: u32,
    step: u32,
    /// Pixels for one sample, as powers of two: across, down.
    shifts: [u32; 2],
}

/// Where a frame lies.
#[derive(Clone, Debug)]
struct Layout {
    format: PixelFormat,
    planes: Vec<Plane>,
    components: Vec<Samples>,
    /// Bytes from component 0 to alpha.
    alpha: Option<u32>,
}

impl Layout {
    fn new(spec: &FrameSpec) -> Result<Self, FrameError> {
        let (format, planes) = (spec.format(), spec.planes()?);
        let components = format.components().iter().enumerate().map(|(c, component)| {
            let plane = &planes[component.plane];
            Samples {
                memory: plane.memory,
                // A checked plane ends below 2^31; strides of one row may be longer and are not used.
                base: plane.offset as u32 + component.byte,
                stride: if plane.rows > 1 { plane.stride as u32 } else { 0 },
                step: component.step,
                shifts: if c == 0 { [0, 0] } else { format.chroma_shifts() },
            }
        });
        let components: Vec<Samples> = components.collect();
        let first = format.components().first().map_or(0, |c| c.byte);
        let alpha = format.alpha().map(|byte| byte - first);
        Ok(Layout { format, components, planes, alpha })
    }

    fn is_wide(&self) -> bool {
        self.format.bits() > 8
    }
}
