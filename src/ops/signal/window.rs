//! HannWindow, HammingWindow and BlackmanWindow.

use std::f64::consts::PI;
use std::sync::Arc;

use super::constant;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, Lowering, OpCx, OpError, Operator};
use crate::shape::Shape;

/// Which sum of cosines a window is (Harris 1978).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowShape {
    /// `1/2 - 1/2 cos`.
    Hann,
    /// `25/46 - 21/46 cos`.
    Hamming,
    /// `0.42 - 0.5 cos + 0.08 cos` of the doubled angle.
    Blackman,
}

/// The window of as many elements as input 0 says.
#[derive(Clone, Copy, Debug)]
pub struct WindowFunction {
    /// Which window.
    pub shape: WindowShape,
    /// Whether one more element would be the first again; else the last one equals the first.
    pub periodic: bool,
    /// The element type.
    pub dtype: DType,
}

fn read(shape: WindowShape, attrs: &AttrReader<'_>) -> Result<Arc<dyn Operator>, OpError> {
    let dtype = attrs.dtype_opt("output_datatype")?.unwrap_or(DType::F32);
    if !DType::NUMBERS.contains(&dtype) {
        return Err(OpError::unsupported(format!("a window of {dtype}")));
    }
    Ok(Arc::new(WindowFunction { shape, periodic: attrs.flag("periodic", true)?, dtype }))
}

pub(super) fn hann(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(WindowShape::Hann, attrs)
}

pub(super) fn hamming(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(WindowShape::Hamming, attrs)
}

pub(super) fn blackman(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(WindowShape::Blackman, attrs)
}

impl WindowFunction {
    fn values(&self, n: usize) -> Vec<f64> {
        let period = if self.periodic { n } else { n.saturating_sub(1) };
        (0..n)
            .map(|i| {
                if period == 0 {
                    return 1.0;
                }
                let angle = 2.0 * PI * i as f64 / period as f64;
                match self.shape {
                    // The square keeps digits near zero.
                    WindowShape::Hann => (angle / 2.0).sin().powi(2),
                    WindowShape::Hamming => (25.0 - 21.0 * angle.cos()) / 46.0,
                    // Ordered so that the ends are exactly 0 and the middle is exactly 1.
                    WindowShape::Blackman => 0.5 * (1.0 - angle.cos()) - 0.08 * (1.0 - (2.0 * angle).cos()),
                }
            })
            .collect()
    }
}

impl Operator for WindowFunction {
    fn name(&self) -> &'static str {
        match self.shape {
            WindowShape::Hann => "HannWindow",
            WindowShape::Hamming => "HammingWindow",
            WindowShape::Blackman => "BlackmanWindow",
        }
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[0]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        match cx.need_i64s(0)?.as_slice() {
            [n] => Ok(vec![TensorInfo::new(self.dtype, Shape::from_i64(&[*n])?)]),
            _ => Err(cx.shape_error(0, "one element")),
        }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (op, n) = (*self, cx.output(0)?.elements());
        constant::cpu(self.name(), cx, move || op.values(n))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let n = cx.output(0)?.elements();
        constant::gpu("window", cx, || self.values(n), lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::AttrValue;
    use crate::ops::test_util::{assert_near, attrs, facts, read_op, run_cpu, run_f32};

    fn window(name: &str, n: i64, periodic: bool) -> Tensor {
        let op = read_op(name, 17, &attrs(&[("periodic", AttrValue::Int(periodic.into()))])).unwrap();
        run_f32(&*op, &[Some(Tensor::scalar(n))]).unwrap()
    }

    #[test]
    fn windows_rise_and_fall() {
        assert_near(&window("HannWindow", 4, true), &[0.0, 0.5, 1.0, 0.5], 1e-6);
        assert_near(&window("HannWindow", 5, false), &[0.0, 0.5, 1.0, 0.5, 0.0], 1e-6);
        let low = 4.0 / 46.0;
        assert_near(&window("HammingWindow", 4, true), &[low, 25.0 / 46.0, 1.0, 25.0 / 46.0], 1e-6);
        assert_near(&window("BlackmanWindow", 4, true), &[0.0, 0.34, 1.0, 0.34], 1e-6);
        let whole = attrs(&[("output_datatype", AttrValue::Int(7))]);
        let op = read_op("BlackmanWindow", 17, &whole).unwrap();
        let y = run_cpu(&*op, &[Some(Tensor::scalar(2i64))], 1).unwrap();
        assert_eq!(y[0].to_i64s().unwrap(), [0, 1]);
        assert_near(&window("HannWindow", 1, false), &[1.0], 0.0);
        assert_near(&window("HannWindow", 0, false), &[], 0.0);
    }

    #[test]
    fn other_types_round_and_sizes_are_checked() {
        let op = read_op("HannWindow", 17, &attrs(&[("output_datatype", AttrValue::Int(11))])).unwrap();
        let y = run_cpu(&*op, &[Some(Tensor::scalar(6i32))], 1).unwrap();
        assert!((y[0].as_slice::<f64>().unwrap()[1] - 0.25).abs() < 1e-15);
        assert!(facts(&*op, &[Some(Tensor::scalar(-1i32))], 1).is_err());
        assert!(facts(&*op, &[Some(Tensor::from_i64s(&[1, 2]))], 1).is_err());
        assert!(read_op("HannWindow", 17, &attrs(&[("output_datatype", AttrValue::Int(9))])).is_err());
    }

    #[cfg(feature = "vulkan")]
    #[test]
    fn devices_get_the_same() {
        for dtype in [DType::F32, DType::F64, DType::I8] {
            let op = WindowFunction { shape: WindowShape::Blackman, periodic: true, dtype };
            crate::ops::testing::check_op(&op, &[Some(Tensor::scalar(44i64))], 0.0);
        }
    }
}
