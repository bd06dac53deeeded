//! com.microsoft's MatMulNBits: a product with weights of 4 or 8 bits in blocks that share a scale.

use std::sync::Arc;

use rayon::prelude::*;

use super::{FLOATS_TO_32, count};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::codes::nbits::Zeros;
use crate::kernel::codes::nbits_tile::TILE;
use crate::kernel::codes::{nbits_vector, nbits_wide};
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel, grid_1d};
use crate::ops::linalg::product::{Mat, Threads, product};
use crate::ops::movement::region::word;
use crate::ops::real::{Real, RealIo, RealKernel, real_kernel};
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::Shape;
use crate::simd::wide;

/// Columns that a task of the native function makes at once.
const COLUMNS: usize = 32;
/// Up to this many rows the native function multiplies by codes directly, instead of decoding columns.
const FEW_ROWS: usize = 4;
/// Sums side by side; the shortest blocks have 8 bytes.
const LANES: usize = 8;

// Positions of the inputs.
const A: usize = 0;
const B: usize = 1;
const SCALES: usize = 2;
const ZEROS: usize = 3;
const INDEX: usize = 4;
const BIAS: usize = 5;

/// Inputs: A, the codes (`[n, blocks, bytes]`, the first code in the lowest bits), scales, zero points (packed
/// as the codes are, or numbers), none, and a bias. A code stands for `(code - zero point) * scale`.
#[derive(Clone, Copy, Debug)]
pub struct MatMulNBits {
    /// Columns of A.
    pub k: usize,
    /// Columns of the result.
    pub n: usize,
    /// Bits of a code, 4 or 8.
    pub bits: usize,
    /// Codes that share a scale.
    pub block: usize,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let bits = attrs.int("bits", 4)?;
    if bits != 4 && bits != 8 {
        return Err(OpError::unsupported(format!("MatMulNBits of {bits} bits")));
    }
    if attrs.int("weight_prepacked", 0)? != 0 {
        return Err(OpError::unsupported("MatMulNBits of weights in another device's layout"));
    }
    // A is never rounded, whatever accuracy is asked for at least.
    attrs.int_opt("accuracy_level")?;
    let block = count(attrs, "block_size", 16)?;
    if !block.is_power_of_two() {
        return Err(bad("block_size", format!("is {block}, expected a power of two")));
    }
    Ok(Arc::new(MatMulNBits {
        k: count(attrs, "K", 1)?,
        n: count(attrs, "N", 1)?,
        bits: bits as usize,
        block,
    }))
}

/// A [`MatMulNBits`] for given inputs.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    op: MatMulNBits,
    m: usize,
    zeros: Zeros,
}

impl MatMulNBits {
    fn blocks(&self) -> usize {
        self.k.div_ceil(self.block)
    }

    /// Bytes of the codes of one column.
    fn bytes(&self) -> usize {
        self.blocks() * (self.block * self.bits / 8)
    }

    /// Bytes of the packed zero points of one column.
    fn zero_bytes(&self) -> usize {
        (self.blocks() * self.bits).div_ceil(8)
    }

    /// Codes in 16 bytes.
    fn unit(&self) -> usize {
        128 / self.bits
    }

    /// Whether every block is whole units of 16 bytes, and every column whole blocks.
    fn is_whole(&self) -> bool {
        self.block.is_multiple_of(self.unit()) && self.k.is_multiple_of(self.block)
    }

    /// Columns of a team of the wide kernel, and teams that share columns: enough teams to keep a large device busy.
    fn teams(&self) -> (usize, usize) {
        const MIN_TEAMS: usize = 1024;
        let cols = [4, 2].into_iter().find(|cols| self.n / cols >= MIN_TEAMS).unwrap_or(1);
        let units = self.k / self.unit();
        let split = [4, 2].into_iter().find(|split| units >= split * 64 && self.n / cols < 2 * MIN_TEAMS);
        (cols, split.unwrap_or(1))
    }

    fn resolve(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        let a = cx.shape(A)?;
        let Some((_, outer)) = a.split_last().filter(|(k, _)| **k == self.k) else {
            return Err(cx.shape_error(A, format!("a last axis of {}", self.k)));
        };
        let elements = |i: usize, wanted: usize| match cx.shape(i)?.elements() == wanted {
            true => Ok(()),
            false => Err(cx.shape_error(i, format!("{wanted} elements"))),
        };
        elements(B, self.n * self.bytes())?;
        elements(SCALES, self.n * self.blocks())?;
        let zeros = match cx.has(ZEROS).then(|| cx.dtype(ZEROS)).transpose()? {
            None => Zeros::Middle,
            Some(DType::U8) => {
                elements(ZEROS, self.n * self.zero_bytes())?;
                Zeros::Codes
            }
            Some(_) => {
                elements(ZEROS, self.n * self.blocks())?;
                Zeros::Numbers
            }
        };
        if cx.has(BIAS) {
            elements(BIAS, self.n)?;
        }
        Ok(Sizes { op: *self, m: outer.iter().product(), zeros })
    }
}

impl Operator for MatMulNBits {
    fn name(&self) -> &'static str {
        "MatMulNBits"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=6, 1..=1)?;
        let dtype = cx.dtype_of(A, FLOATS_TO_32)?;
        cx.expect_dtype(B, DType::U8)?;
        cx.expect_dtype(SCALES, dtype)?;
        if cx.has(ZEROS) {
            cx.dtype_of(ZEROS, &[DType::U8, dtype])?;
        }
        if cx.has(INDEX) {
            return Err(OpError::unsupported("MatMulNBits with indices of groups"));
        }
        if cx.has(BIAS) {
            cx.expect_dtype(BIAS, dtype)?;
        }
        self.resolve(cx)?;
        let mut dims = cx.shape(A)?.to_vec();
        if let Some(last) = dims.last_mut() {
            *last = self.n;
        }
        Ok(vec![TensorInfo::new(dtype, Shape::new(dims)?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let m = self.resolve(cx).map_or(0, |s| s.m);
        Cost { flops: Cost::product(&[2, m, self.n, self.k]), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel("MatMulNBits", cx, self.resolve(cx)?)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Sizes { m, zeros, .. } = self.resolve(cx)?;
        let vector = m <= nbits_vector::ROWS;
        let t = cx.dtype(A)?;
        let wide = variants::NbitsWide { t }
            .id()
            .ok()
            .filter(|kernel| vector && self.is_whole() && lower.can_run(*kernel));
        let kernel = match wide {
            Some(kernel) => kernel,
            None if vector => variants::NbitsVector { t }.id()?,
            None => variants::NbitsTile { t }.id()?,
        };
        word(m.saturating_mul(self.k.max(self.n)))?;
        word(self.n * self.bytes())?;
        let bias = u32::from(cx.has(BIAS));
        let pick = |given: bool, i: usize| if given { Operand::Input(i) } else { Operand::Unused };
        let args = [
            Operand::Input(A),
            Operand::Input(B),
            Operand::Input(SCALES),
            pick(zeros == Zeros::Codes, ZEROS),
            pick(zeros == Zeros::Numbers, ZEROS),
            pick(cx.has(BIAS), BIAS),
            Operand::Output(0),
        ];
        let [m, n, k] = [m, self.n, self.k].map(|d| d as u32);
        let (block, blocks) = (self.block as u32, self.blocks() as u32);
        let (words, zero_bytes) = ((self.bytes() / 4) as u32, self.zero_bytes() as u32);
        if m == 0 {
            return Ok(());
        }
        let mut spec = vec![
            (spec::nbits::BITS, self.bits as u32),
            (spec::nbits::ZEROS, zeros as u32),
            (spec::nbits::BIASED, bias),
        ];
        let params = params::Nbits { m, n, k, block, blocks, words, zero_bytes };
        if wide.is_some() {
            let (cols, split) = self.teams();
            spec.extend([(spec::nbits_wide::COLS, cols as u32), (spec::nbits_wide::SPLIT, split as u32)]);
            let groups = self.n.div_ceil(cols * nbits_wide::TEAMS / split) as u64;
            let grid = grid_1d(groups, 1, lower.device().limits.max_groups[0]);
            return lower.dispatch(kernel, &spec, &args, &params, grid);
        }
        if vector {
            let groups = self.n.div_ceil(nbits_vector::COLS) as u64;
            let grid = grid_1d(groups, 1, lower.device().limits.max_groups[0]);
            return lower.dispatch(kernel, &spec, &args, &params, grid);
        }
        let groups = [n.div_ceil(TILE as u32), m.div_ceil(TILE as u32), 1];
        lower.dispatch(kernel, &spec, &args, &params, groups)
    }
}

impl Sizes {
    /// Code `i` of a packed row.
    fn code(&self, row: &[u8], i: usize) -> u8 {
        match self.op.bits {
            4 => row[i / 2] >> (4 * (i % 2)) & 15,
            _ => row[i],
        }
    }
}

impl RealKernel for Sizes {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let MatMulNBits { k, n, bits, block } = self.op;
        let (m, blocks) = (self.m, self.op.blocks());
        let (y, inputs) = io.output(0, m * n)?;
        let a = inputs.get(A, m * k)?;
        let codes = inputs.raw_opt::<u8>(B, n * self.op.bytes())?.ok_or(KernelError::Absent { index: B })?;
        let scales = inputs.get(SCALES, n * blocks)?;
        let packed = inputs.raw_opt::<u8>(ZEROS, n * self.op.zero_bytes())?;
        let numbers = match self.zeros {
            Zeros::Numbers => inputs.get_opt(ZEROS, n * blocks)?,
            _ => None,
        };
        let bias = inputs.get_opt(BIAS, n)?;
        if y.is_empty() {
            return Ok(());
        }
        let middle = T::from_f64((1u32 << (bits - 1)).into());
        if m <= FEW_ROWS {
            let zero = |column: usize, j: usize| match (packed, numbers) {
                (Some(z), _) => f32::from(self.code(&z[column * self.op.zero_bytes()..], j)),
                (None, Some(z)) => z[column * blocks + j].to_f64() as f32,
                (None, None) => middle.to_f64() as f32,
            };
            let scale = |column: usize, j: usize| scales[column * blocks + j].to_f64() as f32;
            let vectors = Vectors::of(self.op, a);
            let mut sums = vec![0f32; m * n];
            // Element `[column, row]`, so that a thread's columns are its own.
            par::share(sums.chunks_mut(COLUMNS * m).enumerate(), |(part, sums)| {
                for (c, sums) in sums.chunks_mut(m).enumerate() {
                    let column = part * COLUMNS + c;
                    let row = &codes[column * self.op.bytes()..][..self.op.bytes()];
                    let grain = |j: usize| (scale(column, j), zero(column, j));
                    sums.iter_mut().enumerate().for_each(|(r, y)| *y = vectors.dot(r, row, grain));
                }
            });
            for (i, y) in y.iter_mut().enumerate() {
                let bias = bias.and_then(|b| b.get(i % n)).copied().unwrap_or(T::ZERO);
                *y = T::from_f64(sums[i % n * m + i / n].into()) + bias;
            }
            return Ok(());
        }
        let weights = |column: usize, out: &mut [T]| {
            let row = &codes[column * self.op.bytes()..][..self.op.bytes()];
            for (j, out) in out.chunks_mut(block).enumerate() {
                let zero = match (packed, numbers) {
                    (Some(z), _) => {
                        let z = &z[column * self.op.zero_bytes()..][..self.op.zero_bytes()];
                        T::from_f64(self.code(z, j).into())
                    }
                    (None, Some(z)) => z[column * blocks + j],
                    (None, None) => middle,
                };
                let scale = scales[column * blocks + j];
                for (i, out) in out.iter_mut().enumerate() {
                    *out = (T::from_f64(self.code(row, j * block + i).into()) - zero) * scale;
                }
            }
        };
        // Some columns at once, as rows of a transposed operand; their results are columns of the output.
        let parts = (0..n.div_ceil(COLUMNS)).into_par_iter().map(|part| {
            let first = part * COLUMNS;
            let count = COLUMNS.min(n - first);
            let mut made = vec![T::ZERO; count * k];
            made.chunks_mut(k).enumerate().for_each(|(c, out)| weights(first + c, out));
            let mut out = vec![T::ZERO; m * count];
            let sizes = [m, count, k];
            product(sizes, Mat::rows(a, k), Mat::transposed(&made, k), &mut out, count, false, Threads::One)?;
            Ok(out)
        });
        let parts: Vec<Vec<T>> = parts.collect::<Result<_, KernelError>>()?;
        y.par_chunks_mut(n).enumerate().for_each(|(r, y)| {
            for (y, part) in y.chunks_mut(COLUMNS).zip(&parts) {
                y.copy_from_slice(&part[r * y.len()..][..y.len()]);
            }
            if let Some(bias) = bias {
                y.iter_mut().zip(bias).for_each(|(y, b)| *y += *b);
            }
        });
        Ok(())
    }
}

/// Rows of A, ordered as the codes are, with the sum of the elements of each block.
struct Vectors {
    op: MatMulNBits,
    /// For each row and block the elements of a block: with codes of 4 bits the even ones before the odd ones.
    values: Vec<f32>,
    sums: Vec<f32>,
}

impl Vectors {
    fn of<T: Real>(op: MatMulNBits, a: &[T]) -> Vectors {
        let (block, width) = (op.block, op.blocks() * op.block);
        let mut values = vec![0f32; a.len() / op.k.max(1) * width];
        for (a, values) in a.chunks(op.k.max(1)).zip(values.chunks_mut(width.max(1))) {
            for (a, values) in a.chunks(block).zip(values.chunks_mut(block)) {
                for (i, a) in a.iter().enumerate() {
                    let at = if op.bits == 4 { i % 2 * (block / 2) + i / 2 } else { i };
                    values[at] = a.to_f64() as f32;
                }
            }
        }
        let sums = values.chunks(block).map(|b| b.iter().sum()).collect();
        Vectors { op, values, sums }
    }

    /// The product of row `r` and a column of packed codes; `grain` tells scale and zero point of a block.
    fn dot(&self, r: usize, codes: &[u8], grain: impl Fn(usize) -> (f32, f32)) -> f32 {
        let MatMulNBits { bits, block, .. } = self.op;
        let blocks = self.op.blocks();
        let values = &self.values[r * blocks * block..][..blocks * block];
        let sums = &self.sums[r * blocks..][..blocks];
        let each = codes.chunks(block * bits / 8).zip(values.chunks(block)).zip(sums);
        wide(
            #[inline(always)]
            || {
                let (mut lanes, mut total) = ([0f32; LANES], 0f32);
                for (j, ((codes, values), sum)) in each.enumerate() {
                    let mut dot = [0f32; LANES];
                    if bits == 4 {
                        let (even, odd) = values.split_at(block / 2);
                        add_products(&mut dot, codes, even, |c| c & 15);
                        add_products(&mut dot, codes, odd, |c| c >> 4);
                    } else {
                        add_products(&mut dot, codes, values, |c| c);
                    }
                    let (scale, zero) = grain(j);
                    lanes.iter_mut().zip(&dot).for_each(|(l, d)| *l += scale * d);
                    total -= scale * zero * sum;
                }
                total + lanes.iter().sum::<f32>()
            },
        )
    }
}

/// Adds values times what `code` takes from their bytes; blocks are whole lanes.
#[inline(always)]
fn add_products(to: &mut [f32; LANES], codes: &[u8], values: &[f32], code: impl Fn(u8) -> u8) {
    for (codes, values) in codes.as_chunks::<LANES>().0.iter().zip(values.as_chunks::<LANES>().0) {
        for ((sum, c), v) in to.iter_mut().zip(codes).zip(values) {
            *sum += f32::from(code(*c)) * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, facts, run_cpu, tensor, values};

    fn bytes(n: usize, seed: u64) -> Vec<u8> {
        values(n, seed).iter().map(|v| (v * 128.0 + 128.0) as u8).collect()
    }

    fn check(op: MatMulNBits, m: usize, zeros: usize, biased: bool) {
        let MatMulNBits { k, n, bits, block } = op;
        let blocks = op.blocks();
        let codes = bytes(n * op.bytes(), 2);
        let packed = bytes(n * op.zero_bytes(), 4);
        let zero = match zeros {
            0 => None,
            1 => Some(Tensor::new([n * op.zero_bytes()], &packed).unwrap()),
            _ => Some(tensor(&[n * blocks], 4)),
        };
        let inputs = vec![
            Some(tensor(&[m, k], 1)),
            Some(Tensor::new([n, blocks, op.bytes() / blocks], &codes).unwrap()),
            Some(tensor(&[n, blocks], 3)),
            zero,
            None,
            biased.then(|| tensor(&[n], 5)),
        ];
        let wide = |i: usize| inputs[i].as_ref().map(|t: &Tensor| t.to_f32s().unwrap());
        let (a, scales) = (wide(0).unwrap(), wide(2).unwrap());
        let bias = wide(5);
        // Contiguous codes, the first one in the lowest bits.
        let code = |row: &[u8], i: usize| -> f64 {
            f64::from(if bits == 8 { row[i] } else { (row[i / 2] >> (i % 2 * 4)) & 15 })
        };
        let mut want = Vec::new();
        for (r, c) in (0..m * n).map(|i| (i / n, i % n)) {
            let row = &codes[c * op.bytes()..][..op.bytes()];
            let sum: f64 = (0..k)
                .map(|i| {
                    let at = c * blocks + i / block;
                    let zero = match zeros {
                        0 => f64::from(1 << (bits - 1)),
                        1 => code(&packed[c * op.zero_bytes()..], i / block),
                        _ => wide(3).unwrap()[at].into(),
                    };
                    f64::from(a[r * k + i]) * (code(row, i) - zero) * f64::from(scales[at])
                })
                .sum();
            want.push(sum + bias.as_ref().map_or(0.0, |b| f64::from(b[c])));
        }
        let got = run_cpu(&op, &inputs, 1).unwrap();
        assert_near(&got[0], &want, 1e-4);
        #[cfg(feature = "vulkan")]
        crate::ops::testing::check_op(&op, &inputs, 1e-4);
    }

    #[test]
    fn products_match_their_definition() {
        let op = |k, n, bits, block| MatMulNBits { k, n, bits, block };
        for m in [1, 3, 70] {
            check(op(70, 67, 4, 16), m, 0, true);
            check(op(96, 9, 4, 32), m, 1, false);
        }
        check(op(100, 5, 8, 32), 2, 1, true);
        check(op(33, 5, 8, 16), 6, 2, false);
        check(op(64, 5, 4, 16), 5, 2, true);
        // Whole units of 16 bytes, one, two and four columns for each team, and teams that share them.
        for m in [1, 4] {
            check(op(160, 7, 4, 32), m, 1, true);
            check(op(128, 5, 8, 64), m, 2, false);
            check(op(32, 2050, 4, 32), m, 0, true);
            check(op(64, 4099, 8, 16), m, 1, false);
            check(op(4160, 6, 4, 32), m, 1, true);
            check(op(8192, 3, 4, 128), m, 0, false);
        }
    }

    #[test]
    fn misfits_are_errors() {
        let op = MatMulNBits { k: 32, n: 3, bits: 4, block: 16 };
        let infers = |a: usize, b: usize, s: usize| {
            let codes = Tensor::new([3, 2, b], &vec![0u8; 6 * b]).unwrap();
            facts(&op, &[Some(tensor(&[2, a], 1)), Some(codes), Some(tensor(&[3, s], 2))], 1).is_ok()
        };
        assert!(infers(32, 8, 2));
        assert!(!infers(31, 8, 2));
        assert!(!infers(32, 7, 2));
        assert!(!infers(32, 8, 1));
    }
}
