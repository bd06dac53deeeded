//! Resize and Upsample: nearest, linear and cubic resampling along any axes.

use std::sync::Arc;

use super::resample;
use super::table::{AxisDesc, AxisTable};
use crate::backend::DeviceInfo;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::memory::image::ImageDesc;
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator};
use crate::shape::Shape;

/// The rounding of a position between elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NearestMode {
    /// To the nearest, halves down.
    #[default]
    RoundPreferFloor,
    /// To the nearest, halves up.
    RoundPreferCeil,
    /// Down.
    Floor,
    /// Up.
    Ceil,
    /// Down along axes that grow, up along those that shrink: Resize of opset 10, by the cases that ONNX had for it.
    FloorOrCeil,
}

/// The interpolation of neighbouring elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Interpolation {
    /// One of them.
    Nearest(NearestMode),
    /// A line between two.
    Linear,
    /// Keys' cubic through four.
    Cubic {
        /// Its coefficient.
        a: f32,
    },
}

/// The mapping of positions in the output to positions in the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CoordinateMode {
    /// Centres of elements on centres.
    #[default]
    HalfPixel,
    /// As `HalfPixel`, with what a rounded size lost split to both sides.
    HalfPixelSymmetric,
    /// As `HalfPixel`, but 0 for an output of one element.
    PytorchHalfPixel,
    /// First and last element on first and last.
    AlignCorners,
    /// First element on first.
    Asymmetric,
    /// As `HalfPixel`, but where an element begins instead of its centre: TensorFlow's for the nearest element.
    TfHalfPixelForNearest,
    /// A region of interest; what lies outside the input gets the extrapolation value.
    TfCropAndResize,
}

/// The meaning of sizes where the aspect ratio is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AspectPolicy {
    /// They are the output's.
    #[default]
    Stretch,
    /// The output fits into them.
    NotLarger,
    /// The output covers them.
    NotSmaller,
}

/// Which inputs hold the sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResizeInputs {
    /// Region of interest, scales, sizes.
    #[default]
    RoiScalesSizes,
    /// Scales.
    Scales,
    /// None: the attribute has the scales.
    Attribute,
}

/// The attributes of a resampling.
#[derive(Clone, Debug)]
pub struct ResizeDesc {
    /// The interpolation of neighbouring elements.
    pub mode: Interpolation,
    /// The mapping of positions in the output to positions in the input.
    pub coordinates: CoordinateMode,
    /// The meaning of sizes.
    pub policy: AspectPolicy,
    /// Whether a smaller output averages over all that it covers.
    pub antialias: bool,
    /// Whether elements beyond the edge have no weight instead of the edge's value.
    pub exclude_outside: bool,
    /// The value of elements outside the input.
    pub extrapolation: f32,
    /// The axes that sizes, scales and the region of interest are about; `None` for all.
    pub axes: Option<Vec<i64>>,
    /// Which inputs hold the sizes.
    pub inputs: ResizeInputs,
    /// The scales where no input has them.
    pub scales: Vec<f32>,
}

impl Default for ResizeDesc {
    fn default() -> Self {
        ResizeDesc {
            mode: Interpolation::Nearest(NearestMode::default()),
            coordinates: CoordinateMode::default(),
            policy: AspectPolicy::default(),
            antialias: false,
            exclude_outside: false,
            extrapolation: 0.0,
            axes: None,
            inputs: ResizeInputs::default(),
            scales: Vec::new(),
        }
    }
}

/// Resampling of a tensor along any of its axes.
#[derive(Clone, Debug)]
pub struct Resize {
    /// Its attributes.
    pub desc: ResizeDesc,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    use CoordinateMode as C;
    let modes = &[("nearest", 0), ("linear", 1), ("cubic", 2)];
    let mode = attrs.choice("mode", 0, if opset < 11 { &modes[..2] } else { modes })?;
    if opset < 11 {
        return Ok(simple(mode, ResizeInputs::Scales, Vec::new()));
    }
    let nearest = attrs.choice(
        "nearest_mode",
        NearestMode::RoundPreferFloor,
        &[
            ("round_prefer_floor", NearestMode::RoundPreferFloor),
            ("round_prefer_ceil", NearestMode::RoundPreferCeil),
            ("floor", NearestMode::Floor),
            ("ceil", NearestMode::Ceil),
        ],
    )?;
    let a = attrs.float("cubic_coeff_a", -0.75)?;
    let coordinates = attrs.choice(
        "coordinate_transformation_mode",
        C::HalfPixel,
        &[
            ("half_pixel", C::HalfPixel),
            ("half_pixel_symmetric", C::HalfPixelSymmetric),
            ("pytorch_half_pixel", C::PytorchHalfPixel),
            ("align_corners", C::AlignCorners),
            ("asymmetric", C::Asymmetric),
            // Defined only in opset 11, but exporters write it in all.
            ("tf_half_pixel_for_nn", C::TfHalfPixelForNearest),
            ("tf_crop_and_resize", C::TfCropAndResize),
        ],
    )?;
    let policies = &[
        ("stretch", AspectPolicy::Stretch),
        ("not_larger", AspectPolicy::NotLarger),
        ("not_smaller", AspectPolicy::NotSmaller),
    ];
    Ok(Arc::new(Resize {
        desc: ResizeDesc {
            mode: match mode {
                0 => Interpolation::Nearest(nearest),
                1 => Interpolation::Linear,
                _ => Interpolation::Cubic { a },
            },
            coordinates,
            policy: attrs.choice("keep_aspect_ratio_policy", AspectPolicy::Stretch, policies)?,
            antialias: attrs.flag("antialias", false)?,
            exclude_outside: attrs.flag("exclude_outside", false)?,
            extrapolation: attrs.float("extrapolation_value", 0.0)?,
            axes: attrs.ints_opt("axes")?,
            ..ResizeDesc::default()
        },
    }))
}

pub(super) fn upsample(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let mode = attrs.choice("mode", 0, &[("nearest", 0), ("linear", 1), ("bilinear", 1)])?;
    if opset >= 9 {
        return Ok(simple(mode, ResizeInputs::Scales, Vec::new()));
    }
    let need = |name: &str, v: Option<f32>| v.ok_or_else(|| attrs.error(name, "is missing"));
    let scales = if opset < 7 {
        let [h, w] = ["height_scale", "width_scale"].map(|name| need(name, attrs.float_opt(name)?));
        vec![1.0, 1.0, h?, w?]
    } else {
        attrs.floats_opt("scales")?.ok_or_else(|| attrs.error("scales", "is missing"))?
    };
    Ok(simple(mode, ResizeInputs::Attribute, scales))
}

/// The operators from before there were coordinate modes.
fn simple(mode: i32, inputs: ResizeInputs, scales: Vec<f32>) -> Arc<dyn Operator> {
    let mode = match mode {
        0 => Interpolation::Nearest(NearestMode::FloorOrCeil),
        _ => Interpolation::Linear,
    };
    let coordinates = CoordinateMode::Asymmetric;
    Arc::new(Resize { desc: ResizeDesc { mode, coordinates, inputs, scales, ..ResizeDesc::default() } })
}

impl Resize {
    /// The resampling of every axis, outermost first.
    pub(super) fn axes(&self, cx: &OpCx) -> Result<Vec<AxisDesc>, OpError> {
        let desc = &self.desc;
        let shape = cx.shape(0)?;
        let axes: Vec<usize> = match &desc.axes {
            None => (0..shape.rank()).collect(),
            Some(list) => list.iter().map(|a| shape.axis(*a)).collect::<Result<_, _>>()?,
        };
        if (1..axes.len()).any(|i| axes[..i].contains(&axes[i])) {
            return Err(bad("axes", format!("{axes:?} names one axis twice")));
        }
        let input: Vec<usize> = axes.iter().map(|a| shape[*a]).collect();
        let (scales, sizes) = self.wanted(cx, &input)?;
        let roi = self.roi(cx, axes.len())?;
        let mut all: Vec<AxisDesc> = shape
            .iter()
            .map(|&n| AxisDesc {
                input: n,
                output: n,
                scale: 1.0,
                roi: [0.0, 1.0],
                coordinates: desc.coordinates,
                mode: desc.mode,
                antialias: desc.antialias,
                exclude_outside: desc.exclude_outside,
            })
            .collect();
        for (i, &axis) in axes.iter().enumerate() {
            if input[i] == 0 && sizes[i] != 0 {
                return Err(cx.shape_error(0, format!("elements along axis {axis}")));
            }
            if sizes[i] > i32::MAX as usize || input[i] > i32::MAX as usize {
                return Err(OpError::unsupported(format!("{} elements along axis {axis}", sizes[i])));
            }
            let mode = match desc.mode {
                Interpolation::Nearest(NearestMode::FloorOrCeil) if scales[i] < 1.0 => {
                    Interpolation::Nearest(NearestMode::Ceil)
                }
                mode => mode,
            };
            all[axis] = AxisDesc { output: sizes[i], scale: scales[i], roi: roi[i], mode, ..all[axis] };
        }
        Ok(all)
    }

    /// Scales and sizes of the resized axes.
    fn wanted(&self, cx: &OpCx, input: &[usize]) -> Result<(Vec<f64>, Vec<usize>), OpError> {
        let value_error = |i: usize, problem: String| OpError::Value { input: i, problem };
        let at = match self.desc.inputs {
            ResizeInputs::Attribute => None,
            ResizeInputs::Scales => Some(1),
            ResizeInputs::RoiScalesSizes => Some(2),
        };
        let scales = match at {
            None => self.desc.scales.clone(),
            Some(i) if cx.has(i) => cx.need_value(i)?.to_f32s()?,
            Some(_) => Vec::new(),
        };
        let sizes = if self.desc.inputs == ResizeInputs::RoiScalesSizes {
            cx.need_i64s_opt(3)?.unwrap_or_default()
        } else {
            Vec::new()
        };
        if !sizes.is_empty() {
            if !scales.is_empty() {
                return Err(value_error(3, "both sizes and scales are given".into()));
            }
            if sizes.len() != input.len() {
                return Err(value_error(3, format!("{} sizes for {} axes", sizes.len(), input.len())));
            }
            let sizes: Vec<usize> = sizes
                .iter()
                .map(|s| usize::try_from(*s).map_err(|_| value_error(3, format!("size {s}"))))
                .collect::<Result<_, _>>()?;
            return Ok(self.by_policy(input, sizes));
        }
        let i = at.unwrap_or(0);
        if scales.len() != input.len() {
            return Err(value_error(i, format!("{} scales for {} axes", scales.len(), input.len())));
        }
        if let Some(s) = scales.iter().find(|s| !(s.is_finite() && **s > 0.0)) {
            return Err(value_error(i, format!("scale {s}, expected a positive number")));
        }
        // In f32, as other runtimes round: 0.7 of 10 elements are 7.
        let sizes = scales.iter().zip(input).map(|(s, n)| (*n as f32 * s).floor() as usize).collect();
        Ok((scales.iter().map(|s| f64::from(*s)).collect(), sizes))
    }

    fn by_policy(&self, input: &[usize], sizes: Vec<usize>) -> (Vec<f64>, Vec<usize>) {
        let ratios: Vec<f64> = sizes.iter().zip(input).map(|(s, n)| *s as f64 / (*n).max(1) as f64).collect();
        let common = match self.desc.policy {
            AspectPolicy::Stretch => return (ratios, sizes),
            AspectPolicy::NotLarger => ratios.iter().copied().fold(f64::INFINITY, f64::min),
            AspectPolicy::NotSmaller => ratios.iter().copied().fold(0.0, f64::max),
        };
        let sizes = input.iter().map(|n| (*n as f64 * common + 0.5).floor() as usize).collect();
        (vec![common; input.len()], sizes)
    }

    fn roi(&self, cx: &OpCx, axes: usize) -> Result<Vec<[f64; 2]>, OpError> {
        if self.desc.coordinates != CoordinateMode::TfCropAndResize {
            return Ok(vec![[0.0, 1.0]; axes]);
        }
        let roi = cx.need_value(1)?.to_f32s()?;
        if roi.len() != 2 * axes || roi.iter().any(|v| !v.is_finite()) {
            let problem = format!("{} numbers as region of interest of {axes} axes", roi.len());
            return Err(OpError::Value { input: 1, problem });
        }
        Ok((0..axes).map(|i| [roi[i].into(), roi[axes + i].into()]).collect())
    }

    /// The tables of all axes.
    pub(super) fn tables(&self, cx: &OpCx) -> Result<Vec<AxisTable>, OpError> {
        Ok(self.axes(cx)?.iter().map(AxisTable::new).collect())
    }
}

/// Taps of the tables of all axes: twelve bytes for each.
const MOST_TAPS: f64 = 1e8;

impl Operator for Resize {
    fn name(&self) -> &'static str {
        if self.desc.inputs == ResizeInputs::Attribute { "Upsample" } else { "Resize" }
    }

    fn quantized_move(&self, _: &OpCx) -> bool {
        let outside = self.desc.coordinates == CoordinateMode::TfCropAndResize;
        matches!(self.desc.mode, Interpolation::Nearest(_)) && !outside
    }

    fn value_inputs(&self) -> &'static [usize] {
        match self.desc.inputs {
            ResizeInputs::RoiScalesSizes => &[1, 2, 3],
            ResizeInputs::Scales => &[1],
            ResizeInputs::Attribute => &[],
        }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let inputs = match self.desc.inputs {
            ResizeInputs::RoiScalesSizes => 1..=4,
            ResizeInputs::Scales => 2..=2,
            ResizeInputs::Attribute => 1..=1,
        };
        cx.expect_counts(inputs, 1..=1)?;
        let dtype = cx.dtype(0)?;
        if dtype == DType::Bool && !matches!(self.desc.mode, Interpolation::Nearest(_)) {
            return Err(OpError::unsupported("interpolation of bool"));
        }
        let axes = self.axes(cx)?;
        // Antialiasing to a small part of a large axis needs as many taps as that axis has elements. An axis may be
        // long where the output has no elements at all.
        let wide = |a: &AxisDesc| if self.desc.antialias { 4.0 / a.scale.min(1.0) } else { 0.0 };
        let taps = axes.iter().map(|a| a.output as f64 * (wide(a) + 4.0)).sum::<f64>();
        if taps.is_nan() || taps > MOST_TAPS {
            return Err(OpError::unsupported(format!("resizing by {taps} taps, more than {MOST_TAPS}")));
        }
        Ok(vec![TensorInfo::new(dtype, Shape::new(axes.iter().map(|a| a.output).collect::<Vec<_>>())?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let taps: u64 = match self.desc.mode {
            Interpolation::Nearest(_) => 1,
            Interpolation::Linear => 4,
            Interpolation::Cubic { .. } => 16,
        };
        let flops = taps * cx.outputs().iter().map(|o| o.elements() as u64).sum::<u64>();
        Cost { flops, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let tables = self.tables(cx)?;
        match self.desc.mode {
            Interpolation::Nearest(_) => Ok(resample::nearest(tables, cx.dtype(0)?, self.desc.extrapolation)),
            _ => resample::weighted(tables, cx, self.desc.extrapolation),
        }
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        if cx.image(0).is_some() {
            return super::image::resize(self, cx, lower);
        }
        super::resize_device::resize(self, cx, lower)
    }

    fn reads_image(&self, cx: &OpCx, input: usize, image: &ImageDesc, device: &DeviceInfo) -> bool {
        input == 0 && super::image::resize_reads(self, cx, image, device)
    }
}
