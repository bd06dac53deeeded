//! Contractions on devices: products of matrices where a step is one, else a sum for every element.

use super::contraction::{Contraction, Layout, Matrices, Origin, Step};
use crate::dtype::DType;
use crate::kernel::table::{params, spec, variants};
use crate::ops::linalg::device::{Product, Source};
use crate::ops::movement::region::{Block, copy_block};
use crate::ops::strided::Nest;
use crate::ops::word::word;
use crate::ops::{Lowering, OpCx, OpError, Operand};

/// Elements of a result that fill a device when each is left to one invocation.
const MANY_ELEMENTS: usize = 8192;

pub(super) fn lower(steps: &[Step], cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let dtype = cx.dtype(0)?;
    let mut before = Operand::Unused;
    for (i, step) in steps.iter().enumerate() {
        let operand = |origin: Origin| match origin {
            Origin::Input(i) => Operand::Input(i),
            Origin::Before => before,
        };
        let operands = [operand(step.a), step.b.map_or(Operand::Unused, operand)];
        let to = if i + 1 == steps.len() {
            Operand::Output(0)
        } else {
            lower.scratch(step.contraction.elements() * dtype.bytes())
        };
        let floats = matches!(dtype, DType::F32 | DType::F16);
        match step.contraction.matrices().filter(|_| floats) {
            Some(m) => products(&m, operands, to, dtype, lower)?,
            None => sums(&step.contraction, operands, to, dtype, lower)?,
        }
        before = to;
    }
    Ok(())
}

/// A block that copies between the order of `nest` and a dense one.
fn block(nest: &Nest, dense_to: bool) -> Block {
    let mut run = 1isize;
    let mut dense = vec![0; nest.rank()];
    for (stride, size) in dense.iter_mut().zip(nest.sizes()).rev() {
        *stride = run;
        run *= *size as isize;
    }
    let own = nest.strides(0).to_vec();
    let (src_strides, dst_strides) = if dense_to { (own, dense) } else { (dense, own) };
    Block { dims: nest.sizes().to_vec(), src_strides, dst_strides, src_offset: 0, dst_offset: 0 }
}

fn products(
    m: &Matrices,
    operands: [Operand; 2],
    to: Operand,
    dtype: DType,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    // Columns before rows in the result: transposed products need no further pass.
    let turned = m.turned();
    let (m, [a, b]) = match !m.result().is_dense(0) && turned.result().is_dense(0) {
        true => (&turned, [operands[1], operands[0]]),
        false => (m, operands),
    };
    let [batch, rows, cols, k] = m.sizes();
    let mut place = |operand, Layout { nest, direct }: Layout, row| -> Result<Source, OpError> {
        let (operand, [row, col]) = match direct {
            Some(distances) => (operand, distances),
            None => {
                let own = lower.scratch(nest.elements() * dtype.bytes());
                copy_block(lower, block(&nest, true), operand, own, dtype.bytes())?;
                (own, [row, 1])
            }
        };
        Ok(Source { operand, value: None, matrices: batch, row, col })
    };
    let (a, b) = (place(a, m.layout(0), k)?, place(b, m.layout(1), cols)?);
    let result = m.result();
    let direct = result.is_dense(0);
    let out = if direct { to } else { lower.scratch(result.elements() * dtype.bytes()) };
    let product = Product::new([rows, cols, k], (0..batch).map(|i| (i, i)).collect(), [a, b], dtype, out);
    product.lower(lower)?;
    if direct { Ok(()) } else { copy_block(lower, block(&result, false), out, to, dtype.bytes()) }
}

fn sums(
    c: &Contraction,
    [a, b]: [Operand; 2],
    to: Operand,
    dtype: DType,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let [kept, summed] = c.nests();
    let (n, sums) = (c.elements(), c.sums());
    if n == 0 {
        return Ok(());
    }
    let grouped = n < MANY_ELEMENTS && lower.grouped(sums);
    lower.row_iterations(sums, grouped)?;
    let kernel = variants::Einsum { t: dtype, grouped }.id()?;
    let many = || OpError::unsupported("Einsum over more dimensions or elements than the kernel walks");
    let p = params::Einsum {
        kept: kept.kernel_sizes().ok_or_else(many)?,
        kept_a: kept.kernel_strides(0).ok_or_else(many)?,
        kept_b: kept.kernel_strides(1).ok_or_else(many)?,
        summed: summed.kernel_sizes().ok_or_else(many)?,
        summed_a: summed.kernel_strides(0).ok_or_else(many)?,
        summed_b: summed.kernel_strides(1).ok_or_else(many)?,
        n: word(n)?,
        sums: word(sums)?,
    };
    let b = if c.binary { b } else { Operand::Unused };
    let constants = [
        (spec::einsum::KEPT, kept.rank() as u32),
        (spec::einsum::SUMMED, summed.rank() as u32),
        (spec::einsum::BINARY, u32::from(c.binary)),
    ];
    lower.dispatch_rows(kernel, &constants, &[a, b, to], &p, n, grouped)
}
