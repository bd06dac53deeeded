//! FlexAttention: attention whose scores and probabilities graphs may change. Without graphs it is
//! [`Attention`]; with them the loader puts the graphs between its parts ([`flex_parts`]).

use std::sync::Arc;

use super::Attention;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeKernel};
use crate::operator::AttentionPorts;
use crate::ops::linalg::device::{Product, Source};
use crate::ops::linalg::product::{Mat, Threads, product};
use crate::ops::norm::{Softmax, SoftmaxKind};
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, real_kernel};
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, Structure, par};
use crate::shape::Shape;

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    if attrs.has("score_mod") || attrs.has("prob_mod") {
        return Err(OpError::unsupported(
            "FlexAttention with graphs in a place where they are not put apart",
        ));
    }
    // Softmax is computed in 32 bits, or in 64 for inputs of 64 bits, whatever the attribute.
    attrs.dtype_opt("softmax_precision")?;
    Ok(Arc::new(Attention { scale: attrs.float_opt("scale")?, ..Attention::default() }))
}

/// The operators that make the scores of queries and keys, their probabilities, and the result of those and
/// the values.
///
/// # Errors
/// [`OpError::Attr`] for attributes of other types.
pub fn flex_parts(attrs: &mut AttrReader<'_>) -> Result<[Arc<dyn Operator>; 3], OpError> {
    let scores = HeadProduct::Scores {
        scale: attrs.float_opt("scale")?,
        dtype: attrs.dtype_opt("softmax_precision")?,
    };
    let softmax = Softmax { kind: SoftmaxKind::Soft, axis: -1, flatten: false };
    Ok([Arc::new(scores), Arc::new(softmax), Arc::new(HeadProduct::Result)])
}

/// Products of every head of `[batch, heads, rows, columns]`; neighbouring heads of the first operand share
/// one of the second.
#[derive(Clone, Copy, Debug)]
pub enum HeadProduct {
    /// Of queries and keys.
    Scores {
        /// Factor; one over the root of the size of a head where there is none.
        scale: Option<f32>,
        /// Type of the scores; where there is none that of the queries, but of 32 bits at least.
        dtype: Option<DType>,
    },
    /// Of probabilities and values.
    Result,
}

/// A [`HeadProduct`] for given inputs.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    heads: usize,
    share: usize,
    m: usize,
    n: usize,
    k: usize,
    alpha: f32,
    /// Whether the second operand's rows are columns of the product.
    transposed: bool,
    dtype: DType,
}

impl HeadProduct {
    fn resolve(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        let dims = |i: usize| match cx.shape(i)?.dims() {
            &[b, h, l, d] => Ok([b, h, l, d]),
            _ => Err(cx.shape_error(i, "four dimensions")),
        };
        let ([batch, heads, m, k], [other, shared, x, y]) = (dims(0)?, dims(1)?);
        let transposed = matches!(self, HeadProduct::Scores { .. });
        let (n, sum) = if transposed { (x, y) } else { (y, x) };
        if other != batch || sum != k || shared == 0 || !heads.is_multiple_of(shared) {
            return Err(cx.shape_error(1, format!("batch {batch}, heads that divide {heads}, sums of {k}")));
        }
        let own = cx.dtype(0)?;
        let (alpha, dtype) = match *self {
            HeadProduct::Scores { scale, dtype } => {
                let wide = if own == DType::F64 { DType::F64 } else { DType::F32 };
                (scale.unwrap_or(1.0 / (k.max(1) as f32).sqrt()), dtype.unwrap_or(wide))
            }
            HeadProduct::Result => (1.0, cx.dtype(1)?),
        };
        Ok(Sizes { batch, heads, share: heads / shared, m, n, k, alpha, transposed, dtype })
    }
}

impl Operator for HeadProduct {
    fn name(&self) -> &'static str {
        "FlexAttention"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::Attention(AttentionPorts::new(1)))
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        let first = cx.dtype_of(0, FLOATS)?;
        match self {
            HeadProduct::Scores { .. } => cx.expect_dtype(1, first)?,
            HeadProduct::Result => drop(cx.dtype_of(1, FLOATS)?),
        }
        let s = self.resolve(cx)?;
        if !s.dtype.is_float() {
            return Err(OpError::unsupported(format!("scores of {}", s.dtype)));
        }
        Ok(vec![TensorInfo::new(s.dtype, Shape::new([s.batch, s.heads, s.m, s.n])?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let product = |s: Sizes| Cost::product(&[2, s.batch, s.heads, s.m, s.n, s.k]);
        let flops = self.resolve(cx).map_or(0, product);
        Cost { flops, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel("FlexAttention", cx, self.resolve(cx)?)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let s = self.resolve(cx)?;
        if cx.output(0)?.elements() == 0 {
            return Ok(());
        }
        let dtype = cx.dtype(0)?;
        if s.dtype != dtype || cx.dtype(1)? != dtype {
            return Err(OpError::unsupported(format!("no device kernel for {dtype} to {}", s.dtype)));
        }
        let product = Product {
            alpha: s.alpha,
            beta: 0.0,
            ..Product::new(
                [s.m, s.n, s.k],
                (0..s.batch * s.heads).map(|i| (i, i / s.share)).collect(),
                [Source::input(cx, 0, s.m, s.k, false)?, Source::input(cx, 1, s.k, s.n, s.transposed)?],
                dtype,
                Operand::Output(0),
            )
        };
        product.lower(lower)
    }
}

impl RealKernel for Sizes {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let Sizes { m, n, k, share, .. } = *self;
        let heads = self.batch * self.heads;
        let (y, inputs) = io.output(0, heads * m * n)?;
        let (a, b) = (inputs.get(0, heads * m * k)?, inputs.get(1, heads / share * n * k)?);
        if y.is_empty() {
            return Ok(());
        }
        let alpha = T::from_f64(self.alpha.into());
        // Multiplications of a product are done several at a time.
        let work = y.len().saturating_mul(k) / 4;
        par::try_rows(y, m * n, work, |i, y| {
            let other = &b[i / share * n * k..];
            let other = if self.transposed { Mat::transposed(other, k) } else { Mat::rows(other, n) };
            product([m, n, k], Mat::rows(&a[i * m * k..], k), other, y, n, false, Threads::One)?;
            y.iter_mut().for_each(|y| *y *= alpha);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_util::{assert_near, attrs, facts, run_cpu, tensor};

    #[test]
    fn its_parts_are_attention() {
        let inputs = [(4, 5, 8), (2, 7, 8), (2, 7, 6)].map(|(h, l, d)| tensor(&[2, h, l, d], (l + d) as u64));
        let want = run_cpu(&Attention::default(), &inputs.clone().map(Some), 1).unwrap().remove(0);
        let map = attrs(&[]);
        let [scores, softmax, result] = flex_parts(&mut AttrReader::new(&map, 3, 1)).unwrap();
        let [q, k, v] = inputs.map(Some);
        let step = |op: &dyn Operator, inputs: &[Option<crate::graph::Tensor>]| {
            #[cfg(feature = "vulkan")]
            crate::ops::testing::check_op(op, inputs, 1e-5);
            Some(run_cpu(op, inputs, 1).unwrap().remove(0))
        };
        let s = step(&*scores, &[q.clone(), k]);
        let p = step(&*softmax, &[s]);
        let y = step(&*result, &[p, v]).unwrap();
        let want: Vec<f64> = want.to_f32s().unwrap().into_iter().map(f64::from).collect();
        assert_near(&y, &want, 1e-5);
        assert!(facts(&*scores, &[q.clone(), Some(tensor(&[2, 3, 7, 8], 1))], 1).is_err());
        assert!(facts(&*scores, &[q, Some(tensor(&[2, 2, 7, 6], 1))], 1).is_err());
    }
}
