//! Tables of cosines and sines.

use std::f64::consts::TAU;

use super::settings::{RopeSettings, Scaling};
use crate::DType;
use crate::graph::Tensor;
use crate::loader::error::{LoadError, LoadErrorKind};
use crate::shape::Shape;
use crate::tensor::{TensorError, TensorInfo};

/// The tensor whose elements divide the angles' speeds.
pub(super) const FACTORS: &str = "rope_freqs.weight";
/// As [`FACTORS`], up to the context that the model was trained on.
pub(super) const SHORT: &str = "rope_factors_short.weight";
/// As [`FACTORS`], beyond that.
pub(super) const LONG: &str = "rope_factors_long.weight";

/// The speeds of the pairs of elements, in radians for a position, and what cosines and sines are multiplied by.
pub(super) fn speeds(rope: &RopeSettings, rotated: usize, factors: Option<&[f32]>) -> (Vec<f64>, f64) {
    let size = rotated as f64;
    let pairs = (0..rotated.checked_div(2).unwrap_or(0)).map(|pair| pair as f64);
    let plain = pairs.map(|pair| rope.base.powf(-2.0 * pair / size));
    let mut speeds: Vec<f64> = match factors {
        Some(factors) => plain.zip(factors).map(|(speed, factor)| speed / f64::from(*factor)).collect(),
        None => plain.collect(),
    };
    let magnitude = match rope.scaling {
        Scaling::None => 1.0,
        Scaling::Linear { factor } => {
            speeds.iter_mut().for_each(|speed| *speed /= factor);
            1.0
        }
        Scaling::Yarn { factor, context, fast, slow, magnitude } => {
            // The pair that turns so many times in the context.
            let pair = |turns: f64| size * (context / (turns * TAU)).ln() / (2.0 * rope.base.ln());
            let (low, high) = (pair(fast).floor().max(0.0), pair(slow).ceil().min(size - 1.0));
            for (pair, speed) in speeds.iter_mut().enumerate() {
                let divided = ((pair as f64 - low) / (high - low).max(1e-3)).clamp(0.0, 1.0);
                *speed = *speed / factor * divided + *speed * (1.0 - divided);
            }
            magnitude * (1.0 + 0.1 * factor.ln())
        }
        Scaling::Long { magnitude, .. } => magnitude,
    };
    (speeds, magnitude)
}

/// Cosines and sines of `rows` positions.
pub(super) fn tables((speeds, magnitude): &(Vec<f64>, f64), rows: usize) -> Result<[Tensor; 2], LoadError> {
    let shape = Shape::new([rows, speeds.len()]).map_err(LoadErrorKind::Shape)?;
    let table = |f: fn(f64) -> f64| {
        let made = Tensor::build_weight(TensorInfo::new(DType::F32, shape.clone()), |bytes| {
            let values = bytes.as_chunks_mut::<4>().0;
            for (position, row) in values.chunks_mut(speeds.len().max(1)).enumerate() {
                for (to, speed) in row.iter_mut().zip(speeds) {
                    let value = f(position as f64 * speed) * magnitude;
                    *to = (value as f32).to_ne_bytes();
                }
            }
            Ok::<(), TensorError>(())
        });
        made.map_err(|e| LoadError::from(LoadErrorKind::Tensor(e)))
    };
    Ok([table(f64::cos)?, table(f64::sin)?])
}
