//! ConstantOfShape, EyeLike and Range: tensors made from a rule.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::ops::movement::moves;
use crate::ops::movement::region::{self, Block, Piece, Source};
use crate::ops::pointwise::number::{Number, with_number};
use crate::ops::{AttrReader, Cost, HalfRule, Lowering, OpCx, OpError, Operand, Operator, PackKey, par};
use crate::shape::Shape;

/// `value` as an element of `dtype`.
fn element(dtype: DType, value: f64) -> Tensor {
    with_number!(dtype, T => Tensor::scalar(T::from_f64(value)), else truth(value))
}

fn truth(value: f64) -> Tensor {
    let info = TensorInfo::new(DType::Bool, Shape::scalar());
    Tensor::from_bytes(info, &[u8::from(value != 0.0)]).unwrap_or_else(|_| Tensor::scalar(0u8))
}

/// One element repeated to the shape that input 0 holds.
#[derive(Clone, Debug)]
pub struct ConstantOfShape {
    /// The element; its shape does not matter.
    pub value: Tensor,
}

pub(super) fn read_constant(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let value = match attrs.tensor_opt("value")? {
        None => Tensor::scalar(0f32),
        // Copied: the attribute's tensor may lie among the parameters, whose memory it would keep.
        Some(t) if t.info().elements() == 1 => {
            Tensor::from_bytes(TensorInfo::new(t.dtype(), Shape::scalar()), t.bytes())?
        }
        Some(t) => {
            return Err(attrs
                .error("value", format!("has {} elements, expected one", t.info().elements()))
                .into());
        }
    };
    Ok(Arc::new(ConstantOfShape { value }))
}

impl ConstantOfShape {
    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        Ok(region::fill(self.value.clone(), 0, &cx.output(0)?.shape).into_iter().collect())
    }
}

impl Operator for ConstantOfShape {
    fn name(&self) -> &'static str {
        "ConstantOfShape"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[0]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let shape = Shape::from_i64(&cx.need_i64s(0)?)?;
        Ok(vec![TensorInfo::new(self.value.dtype(), shape)])
    }

    moves!();
}

/// A matrix like the input with ones on one diagonal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EyeLike {
    /// The output's type; `None` takes the input's.
    pub dtype: Option<DType>,
    /// Which diagonal: columns right of the main one.
    pub k: i64,
}

pub(super) fn read_eye(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(EyeLike { dtype: attrs.dtype_opt("dtype")?, k: attrs.int("k", 0)? }))
}

impl EyeLike {
    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let y = cx.output(0)?;
        let (rows, columns) = (y.shape[0] as i64, y.shape[1] as i64);
        let mut pieces: Vec<Piece> = region::fill(element(y.dtype, 0.0), 0, &y.shape).into_iter().collect();
        let first = (self.k.saturating_neg().max(0), self.k.max(0));
        let len = (rows - first.0).min(columns - first.1);
        if let Ok(len) = usize::try_from(len)
            && len > 0
        {
            let block = Block {
                dims: vec![len],
                src_strides: vec![0],
                dst_strides: vec![columns as isize + 1],
                src_offset: 0,
                dst_offset: (first.0 * columns + first.1) as usize,
            };
            pieces.extend(block.piece(Source::Element(element(y.dtype, 1.0)), 0));
        }
        Ok(pieces)
    }
}

impl Operator for EyeLike {
    fn name(&self) -> &'static str {
        "EyeLike"
    }

    fn shape_only(&self) -> bool {
        true
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let x = cx.input(0)?;
        if x.shape.rank() != 2 {
            return Err(cx.shape_error(0, "two dimensions"));
        }
        let dtype = self.dtype.unwrap_or(x.dtype);
        if dtype.is_narrow() {
            return Err(OpError::unsupported(format!("EyeLike of {dtype}")));
        }
        Ok(vec![TensorInfo::new(dtype, x.shape.clone())])
    }

    moves!();
}

/// Types of Range.
pub(super) const RANGE_TYPES: &[DType] =
    &[DType::F32, DType::F64, DType::I16, DType::I32, DType::I64, DType::F16, DType::BF16];

/// `start, start + delta, ..` to before `limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range;

/// The numbers of one Range.
#[derive(Clone, Copy, Debug)]
enum Steps {
    Int { start: i64, delta: i64 },
    Float { start: f64, delta: f64 },
}

impl Range {
    fn steps(&self, cx: &OpCx) -> Result<(Steps, usize), OpError> {
        let zero = |i| OpError::Value { input: i, problem: "a step of 0 never reaches the limit".to_owned() };
        let long =
            || OpError::Value { input: 1, problem: "the range has no end that could be reached".to_owned() };
        if cx.dtype(0)?.is_int() {
            let one = |i| {
                let values = cx.need_i64s(i)?;
                values.first().copied().ok_or_else(|| cx.shape_error(i, "a scalar"))
            };
            let (start, limit, delta) = (one(0)?, one(1)?, one(2)?);
            let span = i128::from(limit) - i128::from(start);
            let (whole, part) = match i128::from(delta) {
                0 => return Err(zero(2)),
                d => (span / d, span % d),
            };
            let len = whole + i128::from(part != 0 && (span < 0) == (delta < 0));
            let len = usize::try_from(len.max(0)).map_err(|_| long())?;
            return Ok((Steps::Int { start, delta }, len));
        }
        let one = |i| {
            let t = cx.need_value(i)?;
            let values: Vec<f64> = match t.dtype() {
                DType::F64 => t.as_slice::<f64>()?.to_vec(),
                _ => t.to_f32s()?.into_iter().map(f64::from).collect(),
            };
            values.first().copied().ok_or_else(|| cx.shape_error(i, "a scalar"))
        };
        let (start, limit, delta) = (one(0)?, one(1)?, one(2)?);
        if delta == 0.0 {
            return Err(zero(2));
        }
        let len = ((limit - start) / delta).ceil();
        if !len.is_finite() || len > isize::MAX as f64 {
            return Err(long());
        }
        // A negative number of steps is none.
        Ok((Steps::Float { start, delta }, len as usize))
    }

    fn values<T: Number>(steps: Steps, out: &mut [T]) {
        par::parts(out, |first, part| {
            for (i, v) in part.iter_mut().enumerate() {
                let i = (first + i) as i64;
                *v = match steps {
                    Steps::Int { start, delta } => T::from_i64(start.wrapping_add(i.wrapping_mul(delta))),
                    Steps::Float { start, delta } => T::from_f64(start + i as f64 * delta),
                };
            }
        });
    }
}

impl Operator for Range {
    fn name(&self) -> &'static str {
        "Range"
    }

    fn half_rule(&self) -> HalfRule {
        HalfRule::Full
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[0, 1, 2]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=3, 1..=1)?;
        let dtype = cx.dtype_of(0, RANGE_TYPES)?;
        for i in 0..3 {
            cx.expect_dtype(i, dtype)?;
            if cx.input(i)?.elements() != 1 {
                return Err(cx.shape_error(i, "a scalar"));
            }
        }
        Ok(vec![TensorInfo::new(dtype, Shape::new([self.steps(cx)?.1])?)])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let dtype = cx.output(0)?.dtype;
        let (steps, _) = self.steps(cx)?;
        with_number!(dtype, T => Ok(NativeKernel::new("Range", move |args| {
            Range::values::<T>(steps, args.take_write(3)?);
            Ok(())
        })), else Err(OpError::unsupported("Range of bool")))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (y, (steps, n)) = (cx.output(0)?, self.steps(cx)?);
        let limit = lower.device().limits.max_argument_bytes;
        if y.bytes() as u64 > limit {
            return Err(OpError::unsupported(format!("Range of {y} on a device that takes {limit} bytes")));
        }
        // The numbers are known: they are written by the host once.
        let numbers = with_number!(y.dtype, T => {
            let mut values = vec![T::ZERO; n];
            Range::values(steps, &mut values);
            Tensor::new(vec![n], &values)?
        }, else return Err(OpError::unsupported("Range of bool")));
        let key = PackKey { layout: "range", numbers: [0; 4] };
        let packed = lower.packed(&numbers, key, y.bytes(), |t, out| {
            out.iter_mut().zip(t.bytes()).for_each(|(o, b)| *o = *b);
            Ok(())
        });
        lower.copy((packed, 0), (Operand::Output(0), 0), y.bytes() as u64);
        Ok(())
    }
}
