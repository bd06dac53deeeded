//! The tensor of a frame: type, dimensions, channels and numbers.

use super::{Channels, Filter, FrameError, FrameSpec, MAX_SIDE, TensorLayout};
use crate::dtype::DType;
use crate::shape::{Dim, Shape, SymShape};
use crate::tensor::TensorInfo;

/// A tensor of pixels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pixels {
    pub(crate) info: TensorInfo,
    pub(crate) layout: TensorLayout,
    pub(crate) channels: Channels,
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Nearest where nothing is scaled.
    pub(crate) filter: Filter,
    /// Of each channel: scale, mean, standard deviation.
    pub(crate) numbers: [[f32; 3]; 4],
}

fn known(dim: &Dim) -> Option<usize> {
    if let Dim::Known(n) = dim { Some(*n) } else { None }
}

impl FrameSpec {
    /// The tensor of the frame, which the model declares as `dtype` and `shape`, as far as it does.
    pub(crate) fn pixels(
        &self,
        dtype: Option<DType>,
        shape: Option<&SymShape>,
    ) -> Result<Pixels, FrameError> {
        let dtype = dtype.unwrap_or(DType::F32);
        if !matches!(dtype, DType::F32 | DType::F16 | DType::U8) {
            return Err(FrameError::TensorType { got: dtype });
        }
        if dtype == DType::U8 && (self.scale.is_some() || self.mean.is_some()) {
            return Err(FrameError::BytesNormalized);
        }
        let open = SymShape(vec![Dim::Unknown; 4]);
        let shape = shape.unwrap_or(&open);
        let wrong = || FrameError::TensorShape { got: shape.to_string() };
        let rank = shape.0.len();
        if !(2..=4).contains(&rank) || (rank == 4 && known(&shape.0[0]).is_some_and(|n| n != 1)) {
            return Err(wrong());
        }
        let (layout, channel_at) = self.channel_dim(shape).ok_or_else(wrong)?;
        let given = match channel_at {
            Some(at) => known(&shape.0[at]),
            None => Some(1),
        };
        let channels = match (self.channels, given) {
            (Some(channels), Some(got)) if channels.count() != got => {
                let (expected, shape) = (channels.count(), shape.to_string());
                return Err(FrameError::Mismatch { argument: "channels", expected, got, shape });
            }
            (Some(channels), _) => channels,
            (None, Some(1)) => Channels::Gray,
            (None, Some(3) | None) => Channels::Rgb,
            (None, Some(4)) => Channels::Rgba,
            (None, Some(_)) => return Err(wrong()),
        };
        let height_at = match (channel_at, layout) {
            (Some(_), TensorLayout::Nhwc) => rank - 3,
            _ => rank - 2,
        };
        let rect = self.rect();
        let default = self.size.unwrap_or([rect.width, rect.height]);
        let side = |argument, at: usize, default: u32| match known(&shape.0[at]) {
            Some(got) if self.size.is_some() && got != default as usize => {
                let (expected, shape) = (default as usize, shape.to_string());
                Err(FrameError::Mismatch { argument, expected, got, shape })
            }
            Some(got) => match u32::try_from(got) {
                Ok(got) if (1..=MAX_SIDE).contains(&got) => Ok(got),
                _ => Err(wrong()),
            },
            None => Ok(default),
        };
        let height = side("height", height_at, default[1])?;
        let width = side("width", height_at + 1, default[0])?;
        let mut dims = vec![1; rank];
        if let Some(at) = channel_at {
            dims[at] = channels.count();
        }
        (dims[height_at], dims[height_at + 1]) = (height as usize, width as usize);
        let scaled = [width, height] != [rect.width, rect.height];
        let pixels = Pixels {
            info: TensorInfo::new(dtype, Shape::new(dims).map_err(|_| wrong())?),
            layout,
            channels,
            width,
            height,
            filter: if scaled { self.filter } else { Filter::Nearest },
            numbers: self.numbers(Some((dtype, channels.count())))?,
        };
        let factors = [pixels.normalizing(0), pixels.denormalizing()];
        match factors.as_flattened().as_flattened().iter().all(|factor| factor.is_finite()) {
            true => Ok(pixels),
            false => Err(FrameError::Number { argument: "scale", value: pixels.numbers[0][0] }),
        }
    }

    /// The layout, and the position of the channels' dimension if there is one; `None` where no dimension can be theirs.
    fn channel_dim(&self, shape: &SymShape) -> Option<(TensorLayout, Option<usize>)> {
        let rank = shape.0.len();
        if rank == 2 {
            return Some((self.layout.unwrap_or(TensorLayout::Nchw), None));
        }
        let (before, after) = (rank - 3, rank - 1);
        let could = |at: usize| known(&shape.0[at]).map(|n| matches!(n, 1 | 3 | 4));
        let layout = self.layout.or(match (could(before), could(after)) {
            (Some(true), _) | (None, None | Some(false)) => Some(TensorLayout::Nchw),
            (_, Some(true)) | (Some(false), None) => Some(TensorLayout::Nhwc),
            (Some(false), Some(false)) => None,
        })?;
        Some((layout, Some(if layout == TensorLayout::Nchw { before } else { after })))
    }

    /// Scale, mean and standard deviation of each channel of a tensor; without one only the numbers are checked.
    pub(super) fn numbers(&self, tensor: Option<(DType, usize)>) -> Result<[[f32; 3]; 4], FrameError> {
        let scale = self.scale.unwrap_or(1.0 / 255.0);
        let mut numbers = [[scale, 0.0, 1.0]; 4];
        let finite = |argument, value: f32, zero: bool| match value.is_finite() && (zero || value != 0.0) {
            true => Ok(()),
            false => Err(FrameError::Number { argument, value }),
        };
        finite("scale", scale, false)?;
        let lists = [("mean", &self.mean, 1), ("std", &self.std, 2)];
        for (argument, list, at) in lists {
            let Some(list) = list else { continue };
            list.iter().try_for_each(|v| finite(argument, *v, at == 1))?;
            let Some((_, channels)) = tensor else { continue };
            if list.len() != 1 && list.len() != channels {
                return Err(FrameError::NumberCount { argument, got: list.len(), channels });
            }
            for (c, to) in numbers.iter_mut().enumerate() {
                to[at] = list.get(c).or(list.first()).copied().unwrap_or(to[at]);
            }
        }
        if matches!(tensor, Some((DType::U8, _))) {
            numbers = [[1.0, 0.0, 1.0]; 4];
        }
        Ok(numbers)
    }
}

impl Pixels {
    /// Factor and term of each channel, from a value of 8 bits with `places` after the binary point to the tensor's number.
    pub(crate) fn normalizing(&self, places: u32) -> [[f32; 2]; 4] {
        let unit = f64::from(1u32 << places);
        self.numbers.map(|numbers| {
            let [scale, mean, std] = numbers.map(f64::from);
            [(scale / std / unit) as f32, (-mean / std) as f32]
        })
    }

    /// The inverse of [`Pixels::normalizing`], without places.
    pub(crate) fn denormalizing(&self) -> [[f32; 2]; 4] {
        self.numbers.map(|numbers| {
            let [scale, mean, std] = numbers.map(f64::from);
            [(std / scale) as f32, (mean / scale) as f32]
        })
    }

    /// Elements between the channels and between the pixels of a row.
    pub(crate) fn steps(&self) -> [u32; 2] {
        let channels = self.channels.count() as u32;
        match self.layout {
            TensorLayout::Nchw => [self.width * self.height, 1],
            TensorLayout::Nhwc => [1, channels],
        }
    }
}
