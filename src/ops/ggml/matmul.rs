//! A product with rows of ggml's blocks.

use std::sync::Arc;

use super::blocks::Rows;
use super::gated::GatedBlocks;
use super::layout::Part;
use super::rounded;
use crate::backend::{DeviceInfo, DeviceKind};
use crate::dot::Unit;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::codes::block_tile::TILE;
use crate::kernel::codes::block_vector;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel, grid_1d};
use crate::ops::linalg::coded::{self, FEW_ROWS, Matrices};
use crate::ops::linalg::joined::{self, Beside, FewRows};
use crate::ops::movement::region::word;
use crate::ops::real::{
    FLOATS_TO_32, Real, RealInputs, RealIo, RealKernel, as_f32s, as_f32s_mut, real_kernel,
};
use crate::ops::{Absorbed, Activation, Cost, Lowering, OpCx, OpError, Operand, Operator};
use crate::simd::wide;

/// Sums in parallel.
const LANES: usize = 16;

// Positions of the inputs.
pub(super) const A: usize = 0;
pub(super) const B: usize = 1;
const BIAS: usize = 2;

/// Inputs: A, rows of blocks in bytes ([`Rows::info`]), and a bias. Each row of blocks is a column of the result.
#[derive(Clone, Copy, Debug)]
pub struct MatMulBlocks {
    /// The rows of blocks.
    pub b: Rows,
    /// Whether elements of A may be rounded to 8 bits, with a scale for every 32 of a row. The native function does so where
    /// its integers are faster.
    pub rounds: bool,
}

/// A [`MatMulBlocks`] for given inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(super) b: Rows,
    rounds: bool,
    pub(super) m: usize,
}

impl MatMulBlocks {
    pub(super) fn resolve(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        self.b.check(cx.input(B)?)?;
        let Some((_, outer)) = cx.shape(A)?.split_last().filter(|(k, _)| **k == self.b.k) else {
            return Err(cx.shape_error(A, format!("a last axis of {}", self.b.k)));
        };
        if cx.has(BIAS) && cx.shape(BIAS)?.elements() != self.b.rows {
            return Err(cx.shape_error(BIAS, format!("{} elements", self.b.rows)));
        }
        Ok(Sizes { b: self.b, rounds: self.rounds, m: outer.iter().product() })
    }
}

impl FewRows for MatMulBlocks {
    type Native = Sizes;

    const NORMED: &'static str = "NormedBlocks";
    const SUMMED: Option<[&'static str; 2]> = Some(["SummedBlocks", "NormedSummedBlocks"]);

    fn inputs(&self) -> usize {
        BIAS + 1
    }

    fn native(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        self.resolve(cx)
    }

    fn is_few(&self, cx: &OpCx, _summed: bool, device: &DeviceInfo) -> bool {
        let m = self.resolve(cx).map_or(0, |sizes| sizes.m);
        let kernel = cx.dtype(A).ok().and_then(|t| variants::BlockVector { t, gated: false }.id().ok());
        let runs = kernel.is_some_and(|kernel| Lowering::new(device).can_run(kernel));
        runs && (1..=block_vector::ROWS).contains(&m)
    }

    /// A card reads codes too fast for each team to read a gain: 7 to 10 percent of a token on an H100.
    fn is_worth_a_gain(&self, _cx: &OpCx, device: &DeviceInfo) -> bool {
        device.kind != DeviceKind::Discrete
    }

    fn lower_beside(&self, cx: &OpCx, beside: &Beside, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Sizes { m, b, .. } = self.resolve(cx)?;
        word(m.saturating_mul(b.k.max(b.rows)))?;
        word(cx.input(B)?.bytes())?;
        if m > block_vector::ROWS {
            return Err(OpError::unsupported(format!("a product of {m} rows on a device")));
        }
        if m == 0 {
            return Ok(());
        }
        let bias = if cx.has(BIAS) { Operand::Input(BIAS) } else { Operand::Unused };
        let [a, codes] = [A, B].map(Operand::Input);
        let args = [a, codes, bias, Operand::Output(0), beside.gain(), beside.summand()];
        let (cols, split) = coded::teams(b.rows, b.k / block_vector::UNIT);
        let mut spec = vec![
            (spec::blocks::TYPE, b.blocks as u32),
            (spec::block_vector::BIASED, cx.has(BIAS).into()),
            (spec::block_vector::COLS, cols as u32),
            (spec::block_vector::SPLIT, split as u32),
            (spec::block_vector::HELD, m.next_power_of_two() as u32),
        ];
        spec.extend(beside.constants());
        let params = params::BlockVector {
            m: word(m)?,
            n: word(b.rows)?,
            k: word(b.k)?,
            row_bytes: word(b.row_bytes())?,
        };
        let groups = b.rows.div_ceil(cols * block_vector::TEAMS / split) as u64;
        let grid = grid_1d(groups, 1, lower.device().limits.max_groups[0]);
        let kernel = variants::BlockVector { t: cx.dtype(A)?, gated: false }.id()?;
        lower.dispatch(kernel, &spec, &args, &params, grid)
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
        coded::infer(cx, A, dtype, self.b.rows)
    }

    fn with_exact_activations(&self) -> Option<Arc<dyn Operator>> {
        self.rounds.then(|| Arc::new(MatMulBlocks { rounds: false, ..*self }) as Arc<dyn Operator>)
    }

    fn gate(
        &self,
        cx: &OpCx,
        (other, other_cx): (&dyn Operator, &OpCx),
        activation: &Activation,
        device: &DeviceInfo,
    ) -> Option<Absorbed> {
        GatedBlocks::of((self, cx), (other.downcast_ref()?, other_cx), activation, device)
    }

    fn with_normalized_rows(&self, cx: &OpCx, epsilon: f32, device: &DeviceInfo) -> Option<Absorbed> {
        joined::with_normalized_rows(self, cx, epsilon, device)
    }

    fn with_summand(&self, cx: &OpCx, device: &DeviceInfo) -> Option<Absorbed> {
        joined::with_summand(self, cx, device)
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let m = self.resolve(cx).map_or(0, |s| s.m);
        Cost { flops: Cost::product(&[2, m, self.b.rows, self.b.k]), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel(self.name(), cx, self.resolve(cx)?)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Sizes { m, b, .. } = self.resolve(cx)?;
        let t = cx.dtype(A)?;
        let bias = cx.has(BIAS);
        if m <= block_vector::ROWS {
            return self.lower_beside(cx, &Beside::default(), lower);
        }
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
        // Rows of float16 alone: this kernel does not round rows.
        let kernel = |side| variants::BlockMatrix { t, side }.id().ok();
        if let Some(matrices) = Matrices::of(lower, [m, b.rows], kernel) {
            let spec = [
                spec[0],
                (spec::block_matrix::BIASED, bias.into()),
                (spec::block_matrix::LOCAL_SIZE_X, matrices.threads),
            ];
            let params::BlockTile { m, n, k, row_bytes } = params;
            let params = params::BlockMatrix { m, n, k, row_bytes };
            return lower.dispatch(matrices.kernel, &spec, &args, &params, matrices.groups([m, n]));
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
        let part = Part::ELEMENTS.min(k);
        let part_bytes = part / blocks.elements() * blocks.bytes();
        wide(
            #[inline(always)]
            || {
                let mut lanes = [[0f32; LANES]; FEW_ROWS];
                let mut decoded = [0f32; Part::ELEMENTS];
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
        let (y, inputs) = io.output(0, self.m * self.b.rows)?;
        let bias = inputs.get_opt(BIAS, self.b.rows)?;
        self.multiply(&inputs, B, bias, y)
    }
}

impl Sizes {
    /// The product with the rows of blocks of input `index`.
    pub(super) fn multiply<T: Real>(
        &self,
        inputs: &RealInputs<'_, T>,
        index: usize,
        bias: Option<&[T]>,
        y: &mut [T],
    ) -> Result<(), KernelError> {
        let Sizes { b, m, rounds } = *self;
        let Rows { blocks, rows: n, k } = b;
        let bytes = b.info().map_or(0, |info| info.bytes());
        let a = inputs.get(A, m * k)?;
        let codes = inputs.raw_opt::<u8>(index, bytes)?.ok_or(KernelError::Absent { index })?;
        if y.is_empty() {
            return Ok(());
        }
        let unit = Unit::best();
        if rounds
            && blocks.has_codes()
            && unit.multiplies_many()
            && let (Some(a), Some(y)) = (as_f32s(a), as_f32s_mut(y))
        {
            rounded::multiply(b, m, a, codes, bias.and_then(as_f32s), y, unit);
            return Ok(());
        }
        let row = |column: usize| &codes[column * b.row_bytes()..][..b.row_bytes()];
        if m <= FEW_ROWS {
            let a: Vec<f32> = a.iter().map(|v| v.to_f64() as f32).collect();
            coded::few_rows([m, n], bias, y, |column, sums| self.dots(row(column), &a, sums));
            return Ok(());
        }
        coded::many_rows([m, n, k], a, bias, y, |first, to| {
            let mut decoded = vec![0f32; to.len()];
            wide(
                #[inline(always)]
                || {
                    for (c, to) in decoded.chunks_mut(k).enumerate() {
                        blocks.decode(row(first + c), to);
                    }
                },
            );
            to.iter_mut().zip(&decoded).for_each(|(to, v)| *to = T::from_f64(f64::from(*v)));
        })
    }
}
