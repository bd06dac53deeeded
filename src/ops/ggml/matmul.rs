//! A product with rows of ggml's blocks.

use rayon::prelude::*;

use super::blocks::Rows;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::codes::block_tile::TILE;
use crate::kernel::codes::block_vector;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel, grid_1d};
use crate::ops::linalg::product::{Mat, Threads, product};
use crate::ops::movement::region::word;
use crate::ops::real::{Real, RealIo, RealKernel, real_kernel};
use crate::ops::{Cost, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::Shape;
use crate::simd::wide;

/// Columns of the result that a task of the native function makes at once.
const COLUMNS: usize = 32;
/// Up to this many rows of A the native function decodes a block at a time.
const FEW_ROWS: usize = 4;
/// Sums side by side.
const LANES: usize = 16;
/// Elements that are decoded at a time; every block divides it.
const PART: usize = 256;

// Positions of the inputs.
const A: usize = 0;
const B: usize = 1;
const BIAS: usize = 2;

/// The types of A.
const FLOATS_TO_32: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// Inputs: A, rows of blocks in bytes ([`Rows::info`]), and a bias. Each row of blocks is a column of the result.
#[derive(Clone, Copy, Debug)]
pub struct MatMulBlocks {
    /// The rows of blocks.
    pub b: Rows,
}

/// A [`MatMulBlocks`] for given inputs.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    b: Rows,
    m: usize,
}

impl MatMulBlocks {
    fn resolve(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        self.b.check(cx.input(B)?)?;
        let Some((_, outer)) = cx.shape(A)?.split_last().filter(|(k, _)| **k == self.b.k) else {
            return Err(cx.shape_error(A, format!("a last axis of {}", self.b.k)));
        };
        if cx.has(BIAS) && cx.shape(BIAS)?.elements() != self.b.rows {
            return Err(cx.shape_error(BIAS, format!("{} elements", self.b.rows)));
        }
        Ok(Sizes { b: self.b, m: outer.iter().product() })
    }

    /// Columns of a team of the kernel for few rows, and teams that share columns: enough teams to keep a large device busy.
    fn teams(&self) -> (usize, usize) {
        const MIN_TEAMS: usize = 1024;
        let n = self.b.rows;
        let cols = [4, 2].into_iter().find(|cols| n / cols >= MIN_TEAMS).unwrap_or(1);
        let units = self.b.k / block_vector::UNIT;
        let split = [4, 2].into_iter().find(|split| units >= split * 64 && n / cols < 2 * MIN_TEAMS);
        (cols, split.unwrap_or(1))
    }
}

impl Operator for MatMulBlocks {
    fn name(&self) -> &'static str {
        "MatMulBlocks"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=3, 1..=1)?;
        let dtype = cx.dtype_of(A, FLOATS_TO_32)?;
        cx.expect_dtype(B, DType::U8)?;
        if cx.has(BIAS) {
            cx.expect_dtype(BIAS, dtype)?;
        }
        self.resolve(cx)?;
        let mut dims = cx.shape(A)?.to_vec();
        if let Some(last) = dims.last_mut() {
            *last = self.b.rows;
        }
        Ok(vec![TensorInfo::new(dtype, Shape::new(dims)?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let m = self.resolve(cx).map_or(0, |s| s.m);
        Cost { flops: Cost::product(&[2, m, self.b.rows, self.b.k]), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel(self.name(), cx, self.resolve(cx)?)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Sizes { m, b } = self.resolve(cx)?;
        let t = cx.dtype(A)?;
        let bias = cx.has(BIAS);
        word(m.saturating_mul(b.k.max(b.rows)))?;
        word(cx.input(B)?.bytes())?;
        let params = params::BlockTile {
            m: word(m)?,
            n: word(b.rows)?,
            k: word(b.k)?,
            row_bytes: word(b.row_bytes())?,
        };
        let args = [
            Operand::Input(A),
            Operand::Input(B),
            if bias { Operand::Input(BIAS) } else { Operand::Unused },
            Operand::Output(0),
        ];
        let spec = [(spec::blocks::TYPE, b.blocks as u32)];
        if m == 0 {
            return Ok(());
        }
        if m <= block_vector::ROWS {
            let (cols, split) = self.teams();
            let spec = [
                spec[0],
                (spec::block_vector::BIASED, bias.into()),
                (spec::block_vector::COLS, cols as u32),
                (spec::block_vector::SPLIT, split as u32),
            ];
            let params::BlockTile { m, n, k, row_bytes } = params;
            let params = params::BlockVector { m, n, k, row_bytes };
            let groups = b.rows.div_ceil(cols * block_vector::TEAMS / split) as u64;
            let grid = grid_1d(groups, 1, lower.device().limits.max_groups[0]);
            return lower.dispatch(variants::BlockVector { t }.id()?, &spec, &args, &params, grid);
        }
        let spec = [spec[0], (spec::block_tile::BIASED, bias.into())];
        let groups = [params.n.div_ceil(TILE as u32), params.m.div_ceil(TILE as u32), 1];
        lower.dispatch(variants::BlockTile { t }.id()?, &spec, &args, &params, groups)
    }
}

impl Sizes {
    /// The products of row `bytes` of blocks and each of the rows of `a`.
    fn dots(&self, bytes: &[u8], a: &[f32], to: &mut [f32]) {
        let Rows { blocks, k, .. } = self.b;
        let part = PART.min(k);
        let part_bytes = part / blocks.elements() * blocks.bytes();
        wide(
            #[inline(always)]
            || {
                let mut lanes = [[0f32; LANES]; FEW_ROWS];
                let mut decoded = [0f32; PART];
                for (i, bytes) in bytes.chunks(part_bytes).enumerate() {
                    let decoded = &mut decoded[..part.min(k - i * part)];
                    blocks.decode(bytes, decoded);
                    for (a, lanes) in a.chunks(k).zip(&mut lanes) {
                        let a = a[i * part..].as_chunks::<LANES>().0;
                        for (a, b) in a.iter().zip(decoded.as_chunks::<LANES>().0) {
                            lanes.iter_mut().zip(a).zip(b).for_each(|((sum, a), b)| *sum += a * b);
                        }
                    }
                }
                to.iter_mut().zip(&lanes).for_each(|(to, lanes)| *to = lanes.iter().sum());
            },
        );
    }
}

impl RealKernel for Sizes {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let Sizes { b, m } = *self;
        let Rows { blocks, rows: n, k } = b;
        let bytes = b.info().map_or(0, |info| info.bytes());
        let (y, inputs) = io.output(0, m * n)?;
        let a = inputs.get(A, m * k)?;
        let codes = inputs.raw_opt::<u8>(B, bytes)?.ok_or(KernelError::Absent { index: B })?;
        let bias = inputs.get_opt(BIAS, n)?;
        if y.is_empty() {
            return Ok(());
        }
        let row = |column: usize| &codes[column * b.row_bytes()..][..b.row_bytes()];
        if m <= FEW_ROWS {
            let a: Vec<f32> = a.iter().map(|v| v.to_f64() as f32).collect();
            let mut sums = vec![0f32; m * n];
            // Element `[column, row]`, so that a thread's columns are its own.
            par::share(sums.chunks_mut(COLUMNS * m).enumerate(), |(part, sums)| {
                let each = sums.chunks_mut(m).enumerate();
                each.for_each(|(c, sums)| self.dots(row(part * COLUMNS + c), &a, sums));
            });
            for (i, y) in y.iter_mut().enumerate() {
                let bias = bias.and_then(|b| b.get(i % n)).copied().unwrap_or(T::ZERO);
                *y = T::from_f64(sums[i % n * m + i / n].into()) + bias;
            }
            return Ok(());
        }
        // Some columns at once, as rows of a transposed operand; their results are columns of the output.
        let parts = (0..n.div_ceil(COLUMNS)).into_par_iter().map(|part| {
            let first = part * COLUMNS;
            let count = COLUMNS.min(n - first);
            let mut decoded = vec![0f32; count * k];
            wide(
                #[inline(always)]
                || {
                    let each = decoded.chunks_mut(k).enumerate();
                    each.for_each(|(c, to)| blocks.decode(row(first + c), to));
                },
            );
            let made: Vec<T> = decoded.iter().map(|v| T::from_f64(f64::from(*v))).collect();
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
