//! Folds what follows a convolution into its weights and bias.

use crate::graph::{Tensor, TensorInfo};
use crate::ops::OpError;
use crate::shape::Shape;

/// The parameters of an inference BatchNormalization, one number for each channel.
#[derive(Clone, Debug)]
pub struct BatchNorm<'a> {
    /// Factor.
    pub scale: &'a Tensor,
    /// Summand.
    pub bias: &'a Tensor,
    /// Mean of the training data.
    pub mean: &'a Tensor,
    /// Variance of the training data.
    pub var: &'a Tensor,
    /// Added to the variance.
    pub epsilon: f32,
}

/// Which axes of the weights are the output channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightLayout {
    /// `[oc, ic / group, ...]`, as Conv has them.
    Conv,
    /// `[ic, oc / group, ...]`, as ConvTranspose has them.
    Transposed {
        /// Number of groups of channels.
        group: usize,
    },
}

fn misfit() -> OpError {
    OpError::unsupported("factors and summands of channels that are not the convolution's")
}

fn numbers(t: &Tensor) -> Result<Vec<f64>, OpError> {
    Ok(t.as_slice::<f32>()?.iter().map(|v| (*v).into()).collect())
}

/// The weights and the bias with which a convolution alone computes itself followed by `norm`.
///
/// # Errors
/// [`OpError::Tensor`] where a tensor is not `float32`, [`OpError::Unsupported`] where sizes do not fit.
pub fn fold_batch_norm(
    w: &Tensor,
    b: Option<&Tensor>,
    norm: &BatchNorm<'_>,
    layout: WeightLayout,
) -> Result<(Tensor, Tensor), OpError> {
    let [scale, shift, mean, var] = [norm.scale, norm.bias, norm.mean, norm.var].map(numbers);
    let (scale, shift, mean, var) = (scale?, shift?, mean?, var?);
    if [&shift, &mean, &var].iter().any(|numbers| numbers.len() != scale.len()) {
        return Err(misfit());
    }
    let factors: Vec<f64> =
        scale.iter().zip(&var).map(|(s, v)| s / (v + f64::from(norm.epsilon)).sqrt()).collect();
    let terms: Vec<f64> =
        shift.iter().zip(&mean).zip(&factors).map(|((shift, mean), factor)| shift - mean * factor).collect();
    fold_affine(w, b, (&factors, &terms), layout)
}

/// The weights and the bias with which a convolution alone computes itself times a constant `[oc]`.
///
/// # Errors
/// As [`fold_batch_norm`].
pub fn fold_factors(
    w: &Tensor,
    b: Option<&Tensor>,
    factors: &Tensor,
    layout: WeightLayout,
) -> Result<(Tensor, Tensor), OpError> {
    let factors = numbers(factors)?;
    fold_affine(w, b, (&factors, &vec![0.0; factors.len()]), layout)
}

/// The weights and the bias with which a convolution alone computes itself, times a factor of each channel, plus a term.
fn fold_affine(
    w: &Tensor,
    b: Option<&Tensor>,
    (factors, terms): (&[f64], &[f64]),
    layout: WeightLayout,
) -> Result<(Tensor, Tensor), OpError> {
    let dims = w.shape().dims();
    let &[first, second, ..] = dims else { return Err(misfit()) };
    let (channels, group) = match layout {
        WeightLayout::Conv => (first, 1),
        WeightLayout::Transposed { group } => (second.checked_mul(group).ok_or_else(misfit)?, group),
    };
    let inner: usize = dims[2..].iter().product();
    let bias = b.map(numbers).transpose()?;
    let fits = |numbers: &[f64]| numbers.len() == channels;
    if group == 0
        || first % group != 0
        || !fits(factors)
        || !fits(terms)
        || bias.as_deref().is_some_and(|b| !fits(b))
    {
        return Err(misfit());
    }
    let folded_bias: Vec<f32> =
        (0..channels).map(|c| (bias.as_ref().map_or(0.0, |b| b[c]) * factors[c] + terms[c]) as f32).collect();
    let whole = w.unkept().map_err(|error| OpError::unsupported(error.to_string()))?;
    let source = whole.as_slice::<f32>()?;
    let weights = Tensor::build_weight(TensorInfo::new(w.dtype(), w.shape().clone()), |bytes| {
        let out: &mut [f32] = bytemuck::try_cast_slice_mut(bytes).map_err(|_| misfit())?;
        for (i, (o, v)) in out.iter_mut().zip(source).enumerate() {
            let channel = match layout {
                WeightLayout::Conv => i / (second * inner),
                WeightLayout::Transposed { .. } => {
                    let (row, column) = (i / (second * inner), i / inner % second);
                    row / (first / group) * second + column
                }
            };
            *o = (f64::from(*v) * factors[channel]) as f32;
        }
        Ok::<(), OpError>(())
    })?;
    Ok((weights, Tensor::new([channels], &folded_bias)?))
}

/// A constant that is added to a convolution's output `output`, as a bias `[oc]`: only where it is
/// one number for each channel, or one for all.
///
/// # Errors
/// [`OpError::Tensor`] where the data cannot be read.
pub fn channel_bias(added: &Tensor, output: &Shape) -> Result<Option<Tensor>, OpError> {
    let Some(&channels) = output.get(1) else { return Ok(None) };
    let dims = added.shape().dims();
    if dims.len() > output.rank() {
        return Ok(None);
    }
    // Aligned at the last axis, as broadcasting is.
    let axis_of_channels = output.rank() - 2;
    let per_channel =
        dims.iter().rev().enumerate().all(|(i, d)| *d == 1 || (i == axis_of_channels && *d == channels));
    if !per_channel {
        return Ok(None);
    }
    let bytes = added.bytes();
    let info = TensorInfo::new(added.dtype(), Shape::new([channels])?);
    if bytes.len() == info.bytes() {
        return Ok(Some(Tensor::from_bytes(info, bytes)?));
    }
    Ok(Some(Tensor::from_bytes(info, &bytes.repeat(channels))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::conv::{Conv, ConvTranspose};
    use crate::ops::test_util::{assert_near, run_f32, tensor, values};
    use crate::ops::{Operator, WindowAttrs};

    fn check(op: &dyn Operator, x: &Tensor, w: &Tensor, channels: usize, layout: WeightLayout) {
        let var: Vec<f32> = values(channels, 9).iter().map(|v| v.abs() + 0.1).collect();
        let var = Tensor::new([channels], &var).unwrap();
        let [b, scale, bias, mean] = [5, 6, 7, 8].map(|s| tensor(&[channels], s));
        let norm = BatchNorm { scale: &scale, bias: &bias, mean: &mean, var: &var, epsilon: 1e-3 };
        let plain = run_f32(op, &[Some(x.clone()), Some(w.clone()), Some(b.clone())]).unwrap();
        let plane: usize = plain.shape()[2..].iter().product();
        let at = |t: &Tensor, c: usize| f64::from(t.to_f32s().unwrap()[c]);
        let want: Vec<f64> = plain
            .to_f32s()
            .unwrap()
            .iter()
            .enumerate()
            .map(|(i, v)| {
                let c = i / plane % channels;
                (f64::from(*v) - at(&mean, c)) / (at(&var, c) + 1e-3).sqrt() * at(&scale, c) + at(&bias, c)
            })
            .collect();
        let (w, b) = fold_batch_norm(w, Some(&b), &norm, layout).unwrap();
        let got = run_f32(op, &[Some(x.clone()), Some(w), Some(b)]).unwrap();
        assert_near(&got, &want, 1e-5);
    }

    #[test]
    fn a_folded_normalization_equals_a_separate_one() {
        let (x, w) = (tensor(&[2, 4, 5, 6], 1), tensor(&[6, 2, 3, 3], 2));
        check(&Conv { group: 2, ..Conv::default() }, &x, &w, 6, WeightLayout::Conv);
        let w = tensor(&[4, 3, 3, 3], 2);
        let op = ConvTranspose { group: 2, window: WindowAttrs::default(), ..ConvTranspose::default() };
        check(&op, &x, &w, 6, WeightLayout::Transposed { group: 2 });
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        let (w, c) = (tensor(&[6, 2, 3, 3], 2), tensor(&[5], 1));
        let norm = BatchNorm { scale: &c, bias: &c, mean: &c, var: &c, epsilon: 0.0 };
        assert!(fold_batch_norm(&w, None, &norm, WeightLayout::Conv).is_err());
        assert!(fold_batch_norm(&c, None, &norm, WeightLayout::Conv).is_err());
        assert!(fold_batch_norm(&w, None, &norm, WeightLayout::Transposed { group: 0 }).is_err());
    }

    #[test]
    fn only_sums_per_channel_become_a_bias() {
        let out = Shape::new([2, 3, 4, 5]).unwrap();
        let bias = |dims: &[usize]| channel_bias(&tensor(dims, 1), &out).unwrap();
        assert_eq!(bias(&[3, 1, 1]).unwrap().shape().dims(), [3]);
        assert_eq!(bias(&[1, 3, 1, 1]).unwrap().to_f32s().unwrap(), values(3, 1));
        assert_eq!(bias(&[]).unwrap().to_f32s().unwrap(), [values(1, 1)[0]; 3]);
        assert!(bias(&[5]).is_none());
        assert!(bias(&[3]).is_none());
        assert!(bias(&[2, 1, 1, 1]).is_none());
        assert!(bias(&[3, 4, 1]).is_none());
        assert!(bias(&[1, 1, 3, 1, 1]).is_none());
    }
}
