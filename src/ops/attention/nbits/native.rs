//! The native functions of MatMulNBits: rows in full precision, by codes where there are few of them.

use super::rounded::{self, Numbers, Weights};
use super::{A, B, BIAS, MatMulNBits, SCALES, Sizes, ZEROS};
use crate::dot::Unit;
use crate::kernel::KernelError;
use crate::kernel::codes::nbits::Zeros;
use crate::ops::linalg::coded::{self, FEW_ROWS};
use crate::ops::linalg::gated::{Gate, GateKernel};
use crate::ops::real::{Real, RealInputs, RealIo, RealKernel, as_f32s, as_f32s_mut};
use crate::simd::wide;

/// Sums in parallel.
const LANES: usize = 8;

impl Sizes {
    /// Code `i` of a packed row.
    fn code(&self, row: &[u8], i: usize) -> u8 {
        let i = i ^ usize::from(self.op.codes.swaps());
        match self.op.bits {
            8 => row[i],
            bits => row[i * bits / 8] >> (i * bits % 8) & (0xff >> (8 - bits)),
        }
    }

    /// The numbers of the codes of a block, which are no numbers of a book.
    #[inline(always)]
    fn decode(&self, codes: &[u8], (scale, zero): (f32, f32), out: &mut [f32]) {
        let number = |code: u8| (f32::from(code) - zero) * scale;
        match self.op.bits {
            4 => {
                let (pairs, rest) = out.as_chunks_mut::<2>();
                for (pair, code) in pairs.iter_mut().zip(codes) {
                    *pair = [number(code & 15), number(code >> 4)];
                }
                rest.iter_mut()
                    .zip(codes.iter().skip(pairs.len()))
                    .for_each(|(v, code)| *v = number(code & 15));
            }
            8 => out.iter_mut().zip(codes).for_each(|(v, code)| *v = number(*code)),
            _ => out.iter_mut().enumerate().for_each(|(i, v)| *v = number(self.code(codes, i))),
        }
    }
}

impl RealKernel for Sizes {
    const HALF: &'static [usize] = &[SCALES];

    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let (y, inputs) = io.output(0, self.m * self.op.n)?;
        self.product(&inputs, 0, y)
    }
}

impl GateKernel for Sizes {
    const HALVES: &'static [usize] = &[SCALES, MatMulNBits::EACH + SCALES];

    fn elements(&self) -> usize {
        self.m * self.op.n
    }

    fn product<T: Real>(
        &self,
        inputs: &RealInputs<'_, T>,
        before: usize,
        y: &mut [T],
    ) -> Result<(), KernelError> {
        let MatMulNBits { k, n, bits, block, .. } = self.op;
        let (m, blocks) = (self.m, self.op.blocks());
        let [index, scales_at, zeros_at, bias_at] = [B, SCALES, ZEROS, BIAS].map(|i| before + i);
        let a = inputs.get(A, m * k)?;
        let codes = inputs.raw_opt::<u8>(index, n * self.op.bytes())?.ok_or(KernelError::Absent { index })?;
        let half_scales = inputs.half(scales_at, n * blocks)?;
        let packed = inputs.raw_opt::<u8>(zeros_at, n * self.op.zero_bytes())?;
        let numbers = match self.zeros {
            Zeros::Numbers => inputs.get_opt(zeros_at, n * blocks)?,
            _ => None,
        };
        let bias = inputs.get_opt(bias_at, n)?;
        if y.is_empty() {
            return Ok(());
        }
        let unit = Unit::best();
        if self.op.rounds
            && unit.multiplies_many()
            && let (Some(a), Some(y)) = (as_f32s(a), as_f32s_mut(y))
        {
            // Other inputs have the type of A.
            let scales = match half_scales {
                Some(scales) => Numbers::F16(scales),
                None => Numbers::F32(as_f32s(inputs.get(scales_at, n * blocks)?).unwrap_or_default()),
            };
            let zeros = numbers.and_then(as_f32s).map(Numbers::F32);
            let weights = Weights { codes, scales, zero_codes: packed.unwrap_or(&[]), zeros };
            rounded::multiply(self, a, &weights, bias.and_then(as_f32s), y, unit);
            return Ok(());
        }
        let scales = inputs.widened(scales_at, n * blocks)?;
        let book = self.op.codes.numbers();
        let zero = |column: usize, j: usize| match (packed, numbers) {
            (Some(z), _) => f32::from(self.code(&z[column * self.op.zero_bytes()..], j)),
            (None, Some(z)) => z[column * blocks + j].to_f64() as f32,
            (None, None) => (1u32 << (bits - 1)) as f32,
        };
        let scale = |column: usize, j: usize| scales[column * blocks + j].to_f64() as f32;
        if m <= FEW_ROWS && book.is_none() {
            let vectors = Vectors::of(self.op, a);
            coded::few_rows([m, n], bias, y, |column, sums| {
                let row = &codes[column * self.op.bytes()..][..self.op.bytes()];
                let grain = |j: usize| (scale(column, j), zero(column, j));
                sums.iter_mut().enumerate().for_each(|(r, y)| *y = vectors.dot(r, row, grain));
            });
            return Ok(());
        }
        let weights = |column: usize, out: &mut [f32]| {
            let row = &codes[column * self.op.bytes()..][..self.op.bytes()];
            for (j, out) in out.chunks_mut(block).enumerate() {
                match &book {
                    Some(book) => {
                        for (i, out) in out.iter_mut().enumerate() {
                            *out = book[usize::from(self.code(row, j * block + i))] * scale(column, j);
                        }
                    }
                    None => {
                        self.decode(&row[j * block * bits / 8..], (scale(column, j), zero(column, j)), out)
                    }
                }
            }
        };
        coded::many_rows([m, n, k], a, bias, y, |first, to| {
            wide(
                #[inline(always)]
                || to.chunks_mut(k).enumerate().for_each(|(c, to)| weights(first + c, to)),
            );
        })
    }
}

/// Rows of A, ordered as the codes are, with the sum of the elements of each block.
struct Vectors {
    op: MatMulNBits,
    /// For each row and block the elements of a block: those of the first codes of bytes, of the second and so on.
    values: Vec<f32>,
    sums: Vec<f32>,
}

impl Vectors {
    fn of<T: Real>(op: MatMulNBits, a: &[T]) -> Vectors {
        let (block, parts, width) = (op.block, op.parts(), op.blocks() * op.block);
        let mut values = vec![0f32; a.len() / op.k.max(1) * width];
        for (a, values) in a.chunks(op.k.max(1)).zip(values.chunks_mut(width.max(1))) {
            for (a, values) in a.chunks(block).zip(values.chunks_mut(block)) {
                for (i, a) in a.iter().enumerate() {
                    values[i % parts * (block / parts) + i / parts] = a.to_f64() as f32;
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
                    let part = block * bits / 8;
                    match bits {
                        2 => {
                            for (i, values) in values.chunks(part).enumerate() {
                                add_products(&mut dot, codes, values, |c| c >> (2 * i) & 3);
                            }
                        }
                        4 => {
                            let (even, odd) = values.split_at(part);
                            add_products(&mut dot, codes, even, |c| c & 15);
                            add_products(&mut dot, codes, odd, |c| c >> 4);
                        }
                        _ => add_products(&mut dot, codes, values, |c| c),
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

/// Adds values times what `code` takes from their bytes.
#[inline(always)]
fn add_products(to: &mut [f32; LANES], codes: &[u8], values: &[f32], code: impl Fn(u8) -> u8) {
    let ((codes, codes_rest), (values, values_rest)) =
        (codes.as_chunks::<LANES>(), values.as_chunks::<LANES>());
    for (codes, values) in codes.iter().zip(values) {
        for ((sum, c), v) in to.iter_mut().zip(codes).zip(values) {
            *sum += f32::from(code(*c)) * v;
        }
    }
    // Blocks of 16 codes of two bits have four bytes.
    for ((sum, c), v) in to.iter_mut().zip(codes_rest).zip(values_rest) {
        *sum += f32::from(code(*c)) * v;
    }
}
