//! MaxPool, AveragePool and LpPool over one to three spatial dimensions.

use std::sync::Arc;

use half::{bf16, f16};

use super::rows;
use crate::backend::DeviceInfo;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::memory::image::ImageDesc;
use crate::ops::real::{FLOATS, real_kernel};
use crate::ops::window::{bad, three};
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator, WindowAttrs, WindowAxis};
use crate::shape::Shape;

/// The reduction of the elements of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// The largest; with a second output, where it lies in the input.
    Max {
        /// Whether places count columns first.
        column_major: bool,
    },
    /// The mean.
    Average {
        /// Whether padding counts as elements of value 0.
        include_pad: bool,
    },
    /// The p-th root of the sum of the p-th powers of absolute values.
    Lp {
        /// The power.
        p: u32,
    },
}

/// A pool over windows of the input `[n, c, ...]`.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The reduction of a window.
    pub kind: PoolKind,
    /// Kernel, strides, dilations and padding.
    pub window: WindowAttrs,
}

pub(super) fn max(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let column_major = attrs.flag("storage_order", false)?;
    Ok(Arc::new(Pool { kind: PoolKind::Max { column_major }, window: WindowAttrs::read(attrs)? }))
}

pub(super) fn average(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let include_pad = attrs.flag("count_include_pad", false)?;
    Ok(Arc::new(Pool { kind: PoolKind::Average { include_pad }, window: WindowAttrs::read(attrs)? }))
}

pub(super) fn lp(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Pool { kind: PoolKind::Lp { p: read_p(attrs, opset)? }, window: WindowAttrs::read(attrs)? }))
}

/// The attribute `p`, a number before opset 2.
pub(super) fn read_p(attrs: &AttrReader<'_>, opset: i64) -> Result<u32, OpError> {
    let p = if opset < 2 { f64::from(attrs.float("p", 2.0)?) } else { attrs.int("p", 2)? as f64 };
    if p.fract() == 0.0 && (1.0..=1024.0).contains(&p) {
        Ok(p as u32)
    } else {
        Err(bad("p", format!("is {p}, expected a whole number of 1 to 1024")))
    }
}

/// A pool resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolDims {
    /// Images times channels.
    pub planes: usize,
    /// Depth, height and width, missing ones of one element.
    pub axes: [WindowAxis; 3],
}

impl PoolDims {
    /// Elements of one channel of the input.
    pub(crate) fn in_plane(&self) -> usize {
        self.axes.iter().map(|a| a.input).product()
    }

    /// Elements of one channel of the output.
    pub(crate) fn out_plane(&self) -> usize {
        self.axes.iter().map(|a| a.output).product()
    }
}

impl Pool {
    pub(crate) fn resolve(&self, cx: &OpCx) -> Result<(PoolDims, Shape), OpError> {
        let [batch, channels, spatial @ ..] = cx.shape(0)?.dims() else {
            return Err(cx.shape_error(0, "[batch, channels, ...]"));
        };
        if spatial.is_empty() {
            return Err(cx.shape_error(0, "[batch, channels, ...] with at least one more dimension"));
        }
        let kernel = self.window.kernel_sizes(spatial.len(), None)?;
        let axes = self.window.axes(spatial, &kernel)?;
        let output = Shape::new(
            [*batch, *channels].into_iter().chain(axes.iter().map(|a| a.output)).collect::<Vec<_>>(),
        )?;
        Ok((PoolDims { planes: batch * channels, axes: three(self.name(), &axes)? }, output))
    }
}

impl Operator for Pool {
    fn name(&self) -> &'static str {
        match self.kind {
            PoolKind::Max { .. } => "MaxPool",
            PoolKind::Average { .. } => "AveragePool",
            PoolKind::Lp { .. } => "LpPool",
        }
    }

    fn quantized_move(&self, cx: &OpCx) -> bool {
        // Places are asked of the elements themselves.
        matches!(self.kind, PoolKind::Max { .. }) && cx.output_count() == 1
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let is_max = matches!(self.kind, PoolKind::Max { .. });
        cx.expect_counts(1..=1, 1..=if is_max { 2 } else { 1 })?;
        let dtype = cx.dtype_of(0, if is_max { super::MAX_TYPES } else { FLOATS })?;
        let shape = self.resolve(cx)?.1;
        let mut outputs = vec![TensorInfo::new(dtype, shape.clone())];
        if cx.output_count() == 2 {
            outputs.push(TensorInfo::new(DType::I64, shape));
        }
        Ok(outputs)
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let flops = self.resolve(cx).map_or(0, |(d, shape)| {
            let [kd, kh, kw] = d.axes.map(|a| a.kernel);
            Cost::product(&[shape.elements(), kd, kh, kw])
        });
        Cost { flops, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let dims = self.resolve(cx)?.0;
        let PoolKind::Max { column_major } = self.kind else {
            return real_kernel(self.name(), cx, rows::Sums { dims, kind: self.kind });
        };
        let indices = (cx.outputs().len() == 2).then_some(column_major);
        Ok(match cx.dtype(0)? {
            DType::F32 => rows::max::<f32>(dims, indices),
            DType::F64 => rows::max::<f64>(dims, indices),
            DType::F16 => rows::max::<f16>(dims, indices),
            DType::BF16 => rows::max::<bf16>(dims, indices),
            DType::I8 => rows::max::<i8>(dims, indices),
            DType::U8 => rows::max::<u8>(dims, indices),
            other => return Err(OpError::unsupported(format!("MaxPool of {other}"))),
        })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let dims = self.resolve(cx)?.0;
        if cx.image(0).is_some() {
            return super::image::pool(cx, &dims, self.kind, lower);
        }
        super::device::pool(cx, &dims, self.kind, lower)
    }

    fn reads_image(&self, cx: &OpCx, input: usize, image: &ImageDesc, device: &DeviceInfo) -> bool {
        let dims = self.resolve(cx).ok().filter(|_| input == 0);
        dims.is_some_and(|(dims, _)| super::image::pool_reads(cx, &dims, self.kind, image, device))
    }
}
