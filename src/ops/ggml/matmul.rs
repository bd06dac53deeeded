//! A product with rows of ggml's blocks.

use std::sync::Arc;

use super::FAMILY;
use super::blocks::Rows;
use super::layout::Part;
use super::rounded;
use crate::backend::{DeviceInfo, DeviceKind};
use crate::dot::Unit;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::codes::square_tile::TILE;
use crate::kernel::codes::{block_vector, few_rows};
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, KernelId, NativeKernel};
use crate::ops::linalg::coded::{self, FEW_ROWS, Matrices};
use crate::ops::linalg::gated::{Gate, GateKernel, Gated, few_rows};
use crate::ops::linalg::joined::{Beside, FewRows};
use crate::ops::real::{
    FLOATS_TO_32, Real, RealInputs, RealIo, RealKernel, as_f32s, as_f32s_mut, real_kernel,
};
use crate::ops::word::word;
use crate::ops::{Absorbed, Activation, Cost, Lowering, OpCx, OpError, Operand, Operator, Structure};
use crate::simd::wide;

/// Sums in parallel.
const LANES: usize = 16;

// Positions of the inputs.
const A: usize = 0;
const B: usize = 1;
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

/// Two products of one A.
pub type GatedBlocks = Gated<MatMulBlocks>;

/// A [`MatMulBlocks`] for given inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    b: Rows,
    rounds: bool,
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
        Ok(Sizes { b: self.b, rounds: self.rounds, m: outer.iter().product() })
    }

    /// The parameters of all kernels, for `m` rows.
    fn params(&self, cx: &OpCx, m: usize) -> Result<params::BlockTile, OpError> {
        word(m.saturating_mul(self.b.k.max(self.b.rows)))?;
        word(cx.input(B)?.bytes())?;
        Ok(params::BlockTile {
            m: word(m)?,
            n: word(self.b.rows)?,
            k: word(self.b.k)?,
            row_bytes: word(self.b.row_bytes())?,
        })
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

    fn is_few(&self, cx: &OpCx, beside: &Beside, device: &DeviceInfo) -> bool {
        let kernel = kernel(cx, beside).is_ok_and(|kernel| Lowering::new(device).can_run(kernel));
        kernel && self.resolve(cx).is_ok_and(|sizes| coded::are_few(sizes.m))
    }

    /// A card reads codes too fast for each team to read a gain: 7 to 10 percent of a token on an H100.
    fn is_worth_a_gain(&self, _cx: &OpCx, _beside: &Beside, device: &DeviceInfo) -> bool {
        device.kind != DeviceKind::Discrete
    }

    fn lower_beside(&self, cx: &OpCx, beside: &Beside, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Sizes { m, b, .. } = self.resolve(cx)?;
        let params::BlockTile { m: rows, n, k, row_bytes } = self.params(cx, m)?;
        if m > few_rows::ROWS {
            return Err(beside.unsupported(m));
        }
        if m == 0 {
            return Ok(());
        }
        let [a, codes, other] = [A, B, Self::EACH + B].map(Operand::Input);
        let last = match beside.gate {
            Some(_) => [other, beside.gain()],
            None => [beside.gain(), beside.summand()],
        };
        let args = [a, codes, bias(cx), Operand::Output(0), last[0], last[1]];
        let constants =
            vec![(spec::blocks::TYPE, b.blocks as u32), (spec::block_vector::BIASED, cx.has(BIAS).into())];
        let params = params::BlockVector { m: rows, n, k, row_bytes };
        let sizes = [m, b.rows, b.k / block_vector::UNIT];
        coded::lower_few_rows(lower, kernel(cx, beside)?, sizes, beside, (constants, &args, &params))
    }
}

/// The kernel for few rows.
fn kernel(cx: &OpCx, beside: &Beside) -> Result<KernelId, OpError> {
    Ok(variants::BlockVector { t: cx.dtype(A)?, gated: beside.gate.is_some() }.id()?)
}

fn bias(cx: &OpCx) -> Operand {
    if cx.has(BIAS) { Operand::Input(BIAS) } else { Operand::Unused }
}

impl Gate for MatMulBlocks {
    const GATED: [&'static str; 2] = ["GatedBlocks", "NormedGatedBlocks"];
    const EACH: usize = B;

    fn is_form_of(&self, other: &MatMulBlocks) -> bool {
        self.b == other.b && self.rounds == other.rounds
    }

    fn check_both(&self, _facts: [&OpCx; 2]) -> Result<(), OpError> {
        Ok(())
    }
}

impl Operator for MatMulBlocks {
    fn name(&self) -> &'static str {
        "MatMulBlocks"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::CodedMatMul)
    }

    fn family(&self) -> Option<&'static str> {
        Some(FAMILY)
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

    few_rows!();

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
        if m <= few_rows::ROWS {
            return self.lower_beside(cx, &Beside::default(), lower);
        }
        let params = self.params(cx, m)?;
        let biased = u32::from(cx.has(BIAS));
        let args = [Operand::Input(A), Operand::Input(B), bias(cx), Operand::Output(0)];
        let spec = [(spec::blocks::TYPE, b.blocks as u32)];
        // Rows of float16 alone: this kernel does not round rows.
        let kernel = |side| variants::BlockMatrix { t, side }.id().ok();
        if let Some(matrices) = Matrices::of(lower, t, [m, b.rows, b.k], kernel) {
            let spec = [
                spec[0],
                (spec::block_matrix::BIASED, biased),
                (spec::block_matrix::LOCAL_SIZE_X, matrices.threads),
            ];
            let params::BlockTile { m, n, k, row_bytes } = params;
            let params = params::BlockMatrix { m, n, k, row_bytes };
            return lower.dispatch(matrices.kernel, &spec, &args, &params, matrices.groups([m, n]));
        }
        let spec = [spec[0], (spec::block_tile::BIASED, biased)];
        let groups = [params.n.div_ceil(TILE as u32), params.m.div_ceil(TILE as u32), 1];
        lower.dispatch(variants::BlockTile { t }.id()?, &spec, &args, &params, groups)
    }
}

/// The products of row `bytes` of the blocks of `b` and each of the rows of `a`.
fn dots(b: Rows, bytes: &[u8], a: &[f32], to: &mut [f32]) {
    let Rows { blocks, k, .. } = b;
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

impl RealKernel for Sizes {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let (y, inputs) = io.output(0, self.m * self.b.rows)?;
        let bias = inputs.get_opt(BIAS, self.b.rows)?;
        self.multiply(&inputs, B, bias, y)
    }
}

impl GateKernel for Sizes {
    const HALVES: &'static [usize] = &[];

    fn elements(&self) -> usize {
        self.m * self.b.rows
    }

    fn product<T: Real>(
        &self,
        inputs: &RealInputs<'_, T>,
        before: usize,
        y: &mut [T],
    ) -> Result<(), KernelError> {
        self.multiply(inputs, B + before, None, y)
    }
}

impl Sizes {
    /// The product with the rows of blocks of input `index`.
    fn multiply<T: Real>(
        &self,
        inputs: &RealInputs<'_, T>,
        index: usize,
        bias: Option<&[T]>,
        y: &mut [T],
    ) -> Result<(), KernelError> {
        let bytes = self.b.info().map_or(0, |info| info.bytes());
        let a = inputs.get(A, self.m * self.b.k)?;
        let codes = inputs.raw_opt::<u8>(index, bytes)?.ok_or(KernelError::Absent { index })?;
        multiply(self.b, self.rounds, a, codes, bias, y)
    }
}

/// The product of whole rows `a` with the rows of blocks `b`, which `codes` begin with; `rounds` as in [`MatMulBlocks`].
pub(crate) fn multiply<T: Real>(
    b: Rows,
    rounds: bool,
    a: &[T],
    codes: &[u8],
    bias: Option<&[T]>,
    y: &mut [T],
) -> Result<(), KernelError> {
    let Rows { blocks, rows: n, k } = b;
    let m = a.len() / k.max(1);
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
        coded::few_rows([m, n], bias, y, |column, sums| dots(b, row(column), &a, sums));
        return Ok(());
    }
    coded::many_rows([m, n, k], a, bias, y, |first, to| {
        wide(
            #[inline(always)]
            || to.chunks_mut(k).enumerate().for_each(|(c, to)| blocks.decode(row(first + c), to)),
        );
    })
}
