//! MatMulInteger and QLinearMatMul: products of matrices of bytes.

use std::any::Any;

use rayon::prelude::*;

use super::device;
use super::elements::integers;
use super::product::{Inputs, Places, Requantize, exact_product};
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

impl QuantizedMatMul {
    fn places(&self) -> Places {
        Places::of(self.linear)
    }

    fn dims(&self, cx: &OpCx) -> Result<Dims, OpError> {
        let p = self.places();
        Dims::of(cx, p.a, p.b)
    }

    /// Checks that parameter `i` is one number, or has one for each of `lines` or of the `total` of all matrices.
    fn check_parameter(cx: &OpCx, i: usize, lines: usize, total: usize) -> Result<(), OpError> {
        let Some(parameter) = cx.input_opt(i) else { return Ok(()) };
        let n = parameter.elements();
        if n == 1 || n == lines || n == total {
            return Ok(());
        }
        Err(cx.shape_error(i, format!("one element, {lines} or {total}")))
    }
}

impl Operator for QuantizedMatMul {
    fn name(&self) -> &'static str {
        if self.linear { "QLinearMatMul" } else { "MatMulInteger" }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let p = self.places();
        cx.expect_counts(if self.linear { 8..=8 } else { 2..=4 }, 1..=1)?;
        let dtype = p.check_types(cx)?;
        let dims = self.dims(cx)?;
        // Batches that were made rows of one product still have the rows of one matrix.
        let rows = match cx.shape(p.a)?.dims() {
            [.., m, _] => *m,
            _ => 1,
        };
        let matrices = |i: usize| Ok::<usize, OpError>(cx.shape(i)?.iter().rev().skip(2).product());
        for i in [Some(p.a_zero), p.a_scale].into_iter().flatten() {
            Self::check_parameter(cx, i, rows, rows * matrices(p.a)?)?;
        }
        for i in [Some(p.b_zero), p.b_scale].into_iter().flatten() {
            Self::check_parameter(cx, i, dims.n, dims.n * matrices(p.b)?)?;
        }
        for i in [p.y_scale, p.y_zero].into_iter().flatten() {
            if cx.input(i)?.elements() != 1 {
                return Err(OpError::unsupported("QLinearMatMul with several scales of the output"));
            }
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
            inputs: Inputs::of(cx),
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
    inputs: Inputs,
    to: DType,
}

impl Call {
    fn run(&self, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
        let (p, &Dims { m, n, k, .. }, inputs) = (self.places, &self.dims, &self.inputs);
        let (a_zero, b_zero) = (inputs.zeros(args, p.a_zero)?, inputs.zeros(args, p.b_zero)?);
        let (k1, n1) = (k.max(1), n.max(1));
        let a = inputs.centered(args, p.a, k1, |row| a_zero.line(row, 1))?;
        let b = inputs.centered(args, p.b, n1, |row| b_zero.line(row / k1 * n1, n))?;
        let (a_scale, b_scale) = (inputs.scales(args, p.a_scale)?, inputs.scales(args, p.b_scale)?);
        let y_scale = inputs.scales(args, p.y_scale)?.at(0);
        let zero = p.y_zero.map_or(Ok(0.0), |i| inputs.zeros(args, i).map(|z| z.at(0)))?;
        let result = inputs.count();
        let mut part = vec![0f32; m * n];
        let mut product = |pair: (usize, usize), sums: &mut [i32]| {
            let a = Mat::rows(a.get(pair.0 * m * k..).unwrap_or(&[]), k);
            let b = Mat::rows(b.get(pair.1 * k * n..).unwrap_or(&[]), n);
            exact_product([m, n, k], a, b, &mut part, sums, Threads::All)
        };
        let Some(range) = integers(self.to) else {
            let y = args.take_write::<i32>(result)?;
            check_len(result, y.len(), self.dims.pairs.len() * m * n)?;
            for (pair, y) in self.dims.pairs.iter().zip(y.chunks_mut((m * n).max(1))) {
                product(pair, y)?;
            }
            return Ok(());
        };
        let y = args.take_write::<u8>(result)?;
        check_len(result, y.len(), self.dims.pairs.len() * m * n)?;
        let to = Requantize { zero, range };
        let mut sums = vec![0i32; m * n];
        for (pair, y) in self.dims.pairs.iter().zip(y.chunks_mut((m * n).max(1))) {
            product(pair, &mut sums)?;
            let columns = b_scale.line(pair.1 * n, n);
            y.par_chunks_mut(n1).zip(sums.par_chunks(n1)).enumerate().for_each(|(r, (y, sums))| {
                let row = a_scale.at(pair.0 * m + r);
                let multipliers: Vec<f32> = columns.iter().map(|column| row * column / y_scale).collect();
                to.bytes(sums, &multipliers, y);
            });
        }
        Ok(())
    }
}
