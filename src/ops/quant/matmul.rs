//! MatMulInteger and QLinearMatMul: products of matrices of bytes.

use std::any::Any;

use super::elements::{all, integers};
use super::product::{Repeated, Requantize, centered, exact_product, zero_points};
use super::{BYTES, device};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::linalg::matmul::Dims;
use crate::ops::linalg::product::{Mat, Threads};
use crate::ops::real::check_len;
use crate::ops::{Cost, Lowering, OpCx, OpError, Operator};

/// A product of matrices of bytes less their zero points.
///
/// As MatMulInteger (inputs A, B, zero points of A and B) it gives 32-bit sums; as QLinearMatMul (inputs A,
/// its scale and zero point, the same of B, the same of the output) it gives bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedMatMul {
    /// Whether it is QLinearMatMul.
    pub linear: bool,
}

/// Where the inputs are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub a: usize,
    pub a_scale: Option<usize>,
    pub a_zero: usize,
    pub b: usize,
    pub b_scale: Option<usize>,
    pub b_zero: usize,
    pub y_scale: Option<usize>,
    pub y_zero: Option<usize>,
}

impl QuantizedMatMul {
    pub(super) fn places(&self) -> Places {
        if self.linear {
            let (a_scale, b_scale, y_scale) = (Some(1), Some(4), Some(6));
            return Places { a: 0, a_scale, a_zero: 2, b: 3, b_scale, b_zero: 5, y_scale, y_zero: Some(7) };
        }
        Places { a: 0, a_scale: None, a_zero: 2, b: 1, b_scale: None, b_zero: 3, y_scale: None, y_zero: None }
    }

    pub(super) fn dims(&self, cx: &OpCx) -> Result<Dims, OpError> {
        let p = self.places();
        Dims::of(cx, p.a, p.b)
    }

    /// Checks that parameter `i` is one number, or has one for each of `rows` or of all `total` of them.
    fn check_parameter(cx: &OpCx, i: usize, rows: usize, total: usize) -> Result<(), OpError> {
        let Some(parameter) = cx.input_opt(i) else { return Ok(()) };
        let n = parameter.elements();
        if n == 1 || n == rows || n == total {
            return Ok(());
        }
        Err(cx.shape_error(i, format!("one element or {rows}")))
    }
}

impl Operator for QuantizedMatMul {
    fn name(&self) -> &'static str {
        if self.linear { "QLinearMatMul" } else { "MatMulInteger" }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let p = self.places();
        cx.expect_counts(if self.linear { 8..=8 } else { 2..=4 }, 1..=1)?;
        for (data, zero) in [(p.a, p.a_zero), (p.b, p.b_zero)] {
            let dtype = cx.dtype_of(data, BYTES)?;
            if cx.has(zero) || self.linear {
                cx.expect_dtype(zero, dtype)?;
            }
        }
        let dims = self.dims(cx)?;
        // Batches that were made rows of one product still have the rows of one matrix.
        let rows = match cx.shape(p.a)?.dims() {
            [.., m, _] => *m,
            _ => 1,
        };
        let count = dims.pairs.len().max(1);
        for i in [Some(p.a_zero), p.a_scale].into_iter().flatten() {
            Self::check_parameter(cx, i, rows, count * dims.m)?;
        }
        for i in [Some(p.b_zero), p.b_scale].into_iter().flatten() {
            Self::check_parameter(cx, i, dims.n, count * dims.n)?;
        }
        let mut dtype = DType::I32;
        if let (Some(scale), Some(zero)) = (p.y_scale, p.y_zero) {
            for i in [Some(scale), p.a_scale, p.b_scale].into_iter().flatten() {
                cx.dtype_of(i, super::NUMBERS)?;
            }
            if cx.input(scale)?.elements() != 1 || cx.input(zero)?.elements() != 1 {
                return Err(OpError::unsupported("QLinearMatMul with several scales of the output"));
            }
            dtype = cx.dtype_of(zero, BYTES)?;
        }
        Ok(vec![TensorInfo::new(dtype, dims.output)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.dims(cx).map_or(0, |d| d.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let call = Call {
            places: self.places(),
            dims: self.dims(cx)?,
            inputs: (0..cx.input_count()).map(|i| cx.input_opt(i).cloned()).collect(),
            to: cx.output(0)?.dtype,
        };
        Ok(NativeKernel::new(self.name(), move |args| call.run(args)))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        device::matmul(cx, &self.places(), &self.dims(cx)?, lower)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct Call {
    places: Places,
    dims: Dims,
    inputs: Vec<Option<TensorInfo>>,
    to: DType,
}

impl Call {
    fn info(&self, i: usize) -> (Option<DType>, usize) {
        let info = self.inputs.get(i).and_then(Option::as_ref);
        (info.map(|t| t.dtype), info.map_or(1, TensorInfo::elements))
    }

    fn scales(&self, args: &NativeArgs<'_, '_>, i: Option<usize>) -> Result<Repeated<f32>, KernelError> {
        let Some(i) = i else { return Ok(Repeated(vec![1.0])) };
        let (dtype, len) = self.info(i);
        Ok(Repeated(all(args, i, dtype, len)?))
    }

    fn zeros(&self, args: &NativeArgs<'_, '_>, i: usize) -> Result<Repeated<f32>, KernelError> {
        let (dtype, len) = self.info(i);
        zero_points(args, i, dtype, len)
    }

    fn run(&self, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
        let (p, &Dims { m, n, k, .. }) = (self.places, &self.dims);
        let (a_zero, b_zero) = (self.zeros(args, p.a_zero)?, self.zeros(args, p.b_zero)?);
        let ((a_type, a_len), (b_type, b_len)) = (self.info(p.a), self.info(p.b));
        let (k1, n1) = (k.max(1), n.max(1));
        let a = centered(args, p.a, a_type.unwrap_or(DType::U8), a_len, |i| a_zero.at(i / k1))?;
        let b = centered(args, p.b, b_type.unwrap_or(DType::U8), b_len, |i| {
            b_zero.at(i / (k1 * n1) * n1 + i % n1)
        })?;
        let scales = [p.a_scale, p.b_scale, p.y_scale].map(|i| self.scales(args, i));
        let [a_scale, b_scale, y_scale] = scales;
        let (a_scale, b_scale, y_scale) = (a_scale?, b_scale?, y_scale?.at(0));
        let zero = p.y_zero.map_or(Ok(0.0), |i| self.zeros(args, i).map(|z| z.at(0)))?;
        let result = self.inputs.len();
        let (mut part, mut sums) = (vec![0f32; m * n], vec![0i32; m * n]);
        let mut product = |pair: (usize, usize), sums: &mut [i32]| {
            let a = Mat::rows(a.get(pair.0 * m * k..).unwrap_or(&[]), k);
            let b = Mat::rows(b.get(pair.1 * k * n..).unwrap_or(&[]), n);
            exact_product([m, n, k], a, b, &mut part, sums, Threads::All)
        };
        let Some(range) = integers(self.to) else {
            let y = args.take_write::<i32>(result)?;
            check_len(result, y.len(), self.dims.pairs.len() * m * n)?;
            for (pair, y) in self.dims.pairs.iter().zip(y.chunks_mut((m * n).max(1))) {
                product(*pair, y)?;
            }
            return Ok(());
        };
        let y = args.take_write::<u8>(result)?;
        check_len(result, y.len(), self.dims.pairs.len() * m * n)?;
        let to = Requantize { zero, range };
        for (pair, y) in self.dims.pairs.iter().zip(y.chunks_mut((m * n).max(1))) {
            product(*pair, &mut sums)?;
            for (r, (y, sums)) in y.chunks_mut(n1).zip(sums.chunks(n1)).enumerate() {
                let row = a_scale.at(pair.0 * m + r);
                for (c, (y, sum)) in y.iter_mut().zip(sums).enumerate() {
                    *y = to.byte(*sum, row * b_scale.at(pair.1 * n + c) / y_scale);
                }
            }
        }
        Ok(())
    }
}
