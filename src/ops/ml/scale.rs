//! Scaler and Normalizer: features brought to comparable sizes.

use std::sync::Arc;

use super::{FEATURES, features, rows};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::window::bad;
use crate::ops::{AttrReader, OpCx, OpError, Operator};

/// `(x - offset) * scale`, with parameters for each feature or for all.
#[derive(Clone, Debug)]
pub struct Scaler {
    /// The subtrahend: a number for every feature, or one.
    pub offset: Vec<f32>,
    /// Factors: one for every feature, or one.
    pub scale: Vec<f32>,
}

pub(super) fn read_scaler(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let list = |name: &str, default: f32| -> Result<Vec<f32>, OpError> {
        Ok(attrs.floats_opt(name)?.filter(|l| !l.is_empty()).unwrap_or_else(|| vec![default]))
    };
    Ok(Arc::new(Scaler { offset: list("offset", 0.0)?, scale: list("scale", 1.0)? }))
}

impl Operator for Scaler {
    fn name(&self) -> &'static str {
        "Scaler"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        cx.dtype_of(0, FEATURES)?;
        let [_, len] = rows(cx)?;
        for (name, list) in [("offset", &self.offset), ("scale", &self.scale)] {
            if list.len() != 1 && list.len() != len {
                return Err(bad(name, format!("has {} elements for {len} features", list.len())));
            }
        }
        Ok(vec![TensorInfo::new(DType::F32, cx.shape(0)?.clone())])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let ([n, len], dtype, op) = (rows(cx)?, cx.dtype(0)?, self.clone());
        Ok(NativeKernel::new("Scaler", move |args| {
            let x = features(args, dtype, n * len)?;
            let at =
                |list: &[f32], i: usize| f64::from(if list.len() == 1 { list[0] } else { list[i % len] });
            let y = args.take_write::<f32>(1)?;
            y.iter_mut().zip(x).enumerate().for_each(|(i, (y, x))| {
                *y = ((x - at(&op.offset, i)) * at(&op.scale, i)) as f32;
            });
            Ok(())
        }))
    }
}

/// The divisor of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Norm {
    /// Its largest element, which may be negative: as ONNX defines it and onnxruntime computes it. scikit-learn, whose
    /// Normalizer is exported as this, divides by the largest magnitude.
    #[default]
    Max,
    /// The sum of its magnitudes.
    L1,
    /// Its length.
    L2,
}

/// Rows divided by their norm; a row of zeros stays.
#[derive(Clone, Copy, Debug)]
pub struct Normalizer {
    /// Which norm.
    pub norm: Norm,
}

pub(super) fn read_normalizer(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let words = &[("MAX", Norm::Max), ("L1", Norm::L1), ("L2", Norm::L2)];
    Ok(Arc::new(Normalizer { norm: attrs.choice("norm", Norm::Max, words)? }))
}

impl Operator for Normalizer {
    fn name(&self) -> &'static str {
        "Normalizer"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        cx.dtype_of(0, FEATURES)?;
        rows(cx)?;
        Ok(vec![TensorInfo::new(DType::F32, cx.shape(0)?.clone())])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let ([n, len], dtype, norm) = (rows(cx)?, cx.dtype(0)?, self.norm);
        Ok(NativeKernel::new("Normalizer", move |args| {
            let x = features(args, dtype, n * len)?;
            let y = args.take_write::<f32>(1)?;
            for (y, x) in y.chunks_mut(len.max(1)).zip(x.chunks(len.max(1))) {
                let size = match norm {
                    Norm::Max => x.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                    Norm::L1 => x.iter().map(|v| v.abs()).sum(),
                    Norm::L2 => x.iter().map(|v| v * v).sum::<f64>().sqrt(),
                };
                let size = if size == 0.0 { 1.0 } else { size };
                y.iter_mut().zip(x).for_each(|(y, x)| *y = (x / size) as f32);
            }
            Ok(())
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, facts, run_f32};

    #[test]
    fn features_are_shifted_scaled_and_divided() {
        let x = || Some(Tensor::new([2, 3], &[1i64, -2, 3, 0, 0, 0]).unwrap());
        let op = Scaler { offset: vec![1.0], scale: vec![1.0, 2.0, -0.5] };
        assert_near(&run_f32(&op, &[x()]).unwrap(), &[0.0, -6.0, -1.0, -1.0, -2.0, 0.5], 1e-6);
        assert!(facts(&Scaler { offset: vec![1.0; 2], scale: vec![1.0] }, &[x()], 1).is_err());
        let run = |norm| run_f32(&Normalizer { norm }, &[x()]).unwrap();
        let root = 14f64.sqrt();
        assert_near(&run(Norm::L2), &[1.0 / root, -2.0 / root, 3.0 / root, 0.0, 0.0, 0.0], 1e-6);
        assert_near(&run(Norm::L1), &[1.0 / 6.0, -2.0 / 6.0, 0.5, 0.0, 0.0, 0.0], 1e-6);
        assert_near(&run(Norm::Max), &[1.0 / 3.0, -2.0 / 3.0, 1.0, 0.0, 0.0, 0.0], 1e-6);
        let x = Some(Tensor::new([3], &[-2.0f64, -1.0, -4.0]).unwrap());
        let op = Normalizer { norm: Norm::Max };
        assert_near(&run_f32(&op, &[x]).unwrap(), &[2.0, 1.0, 4.0], 1e-6);
    }
}
