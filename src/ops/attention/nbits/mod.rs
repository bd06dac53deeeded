//! com.microsoft's MatMulNBits: a product with weights of 2, 4 or 8 bits in blocks that share a scale.

mod book;
mod by_book;
mod native;
mod raise;
mod rounded;
#[cfg(test)]
mod tests;

pub use book::Codes;
pub use by_book::CodedMatMul;
pub(super) use by_book::read_bnb4;

use std::sync::Arc;

use super::{FLOATS_TO_32, count};
use crate::backend::{DeviceInfo, DeviceKind};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::codes::nbits::Zeros;
use crate::kernel::codes::square_tile::TILE;
use crate::kernel::codes::{few_rows, nbits_vector, nbits_wide};
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelId, NativeKernel, VECTOR_BYTES, grid_1d};
use crate::ops::linalg::coded::{self, Matrices};
use crate::ops::linalg::gated::{Gate, Gated, few_rows};
use crate::ops::linalg::joined::{Beside, FewRows};
use crate::ops::real::real_kernel;
use crate::ops::window::bad;
use crate::ops::word::word;
use crate::ops::{
    Absorbed, AbsorbedInput, Activation, AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator,
    Structure, absorb,
};
use crate::shape::Shape;

// Positions of the inputs.
const A: usize = 0;
const B: usize = 1;
const SCALES: usize = 2;
const ZEROS: usize = 3;
const INDEX: usize = 4;
const BIAS: usize = 5;

/// Codes that kernels of cooperative matrices decode at a time.
const RUN: usize = 16;
/// Bytes that they read at a time.
const WORD_PAIR: usize = 8;

/// Inputs: A, the codes (`[n, blocks, bytes]`, the first code in the lowest bits), scales, zero points (packed
/// as the codes are, or numbers), none, and a bias. A code stands for `(code - zero point) * scale`.
#[derive(Clone, Copy, Debug)]
pub struct MatMulNBits {
    /// Columns of A.
    pub k: usize,
    /// Columns of the result.
    pub n: usize,
    /// Bits of a code: 2, 4 or 8.
    pub bits: usize,
    /// Codes that share a scale.
    pub block: usize,
    /// Whether elements of A may be rounded to 8 bits, with a scale for each block of a row: `accuracy_level` 4. The
    /// native function does so where its integers are faster. Devices with cooperative matrices round many rows to
    /// `float16`, with a factor for each row.
    pub rounds: bool,
    /// The numbers that codes stand for.
    pub codes: Codes,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    if let Some(op) = by_book::read(attrs)? {
        return Ok(op);
    }
    let bits = attrs.int("bits", 4)?;
    if ![2, 4, 8].contains(&bits) {
        return Err(OpError::unsupported(format!("MatMulNBits of {bits} bits; 2, 4 and 8 are read")));
    }
    if attrs.int("weight_prepacked", 0)? != 0 {
        return Err(OpError::unsupported(
            "MatMulNBits of weights in another device's layout: export the model without weight_prepacked",
        ));
    }
    let rounds = match attrs.int("accuracy_level", 0)? {
        0..=3 => false,
        4 => true,
        n => return Err(bad("accuracy_level", format!("is {n}, expected 0 to 4"))),
    };
    let block = count(attrs, "block_size", 16)?;
    if !block.is_power_of_two() {
        return Err(bad("block_size", format!("is {block}, expected a power of two")));
    }
    Ok(Arc::new(MatMulNBits {
        k: count(attrs, "K", 1)?,
        n: count(attrs, "N", 1)?,
        bits: bits as usize,
        block,
        rounds,
        codes: Codes::Whole,
    }))
}

/// Two products of one A.
pub type GatedNBits = Gated<MatMulNBits>;

/// A [`MatMulNBits`] for given inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    op: MatMulNBits,
    m: usize,
    zeros: Zeros,
}

impl MatMulNBits {
    fn blocks(&self) -> usize {
        self.k.div_ceil(self.block)
    }

    /// Bytes of the codes of one column; where codes stand for numbers of a book the last block may be short.
    fn bytes(&self) -> usize {
        match self.codes {
            Codes::Whole => self.blocks() * (self.block * self.bits / 8),
            _ => (self.k * self.bits).div_ceil(8),
        }
    }

    /// Bytes of the packed zero points of one column.
    fn zero_bytes(&self) -> usize {
        (self.blocks() * self.bits).div_ceil(8)
    }

    /// Codes in a byte.
    fn parts(&self) -> usize {
        8 / self.bits
    }

    /// Codes in a vector.
    fn unit(&self) -> usize {
        8 * VECTOR_BYTES / self.bits
    }

    /// The constant for `m` rows in local memory, where `device` is a card and they have room there: it reads codes too fast
    /// for each team to read a gain.
    fn staged(&self, m: usize, kernel: KernelId, device: &DeviceInfo) -> Option<(u32, u32)> {
        let groups = m * (self.k / self.unit()) * (self.unit() / 4 + 1);
        let bytes = kernel.info().shared_bytes as usize + VECTOR_BYTES * groups;
        let fits = groups <= nbits_wide::STAGED_MOST && bytes <= device.limits.max_local_bytes as usize;
        (fits && device.kind == DeviceKind::Discrete).then_some((spec::nbits_wide::STAGED, groups as u32))
    }

    /// Whether every block is whole units of 16 bytes, and every column whole blocks.
    fn is_whole(&self) -> bool {
        self.block.is_multiple_of(self.unit()) && self.k.is_multiple_of(self.block)
    }

    /// The kernel for `m` rows, which are few, of whole units, where the device runs it.
    fn wide(&self, cx: &OpCx, m: usize, beside: &Beside, lower: &Lowering<'_>) -> Option<KernelId> {
        let kernel = variants::NbitsWide { t: cx.dtype(A).ok()?, gated: beside.gate.is_some() }.id().ok()?;
        (m <= few_rows::ROWS && self.is_whole() && lower.can_run(kernel)).then_some(kernel)
    }

    /// The constants of all kernels.
    fn constants(&self, zeros: Zeros, biased: bool, book: Option<Operand>) -> Vec<(u32, u32)> {
        vec![
            (spec::nbits::BITS, self.bits as u32),
            (spec::nbits::ZEROS, zeros as u32),
            (spec::nbits::BIASED, biased.into()),
            (spec::nbits::BOOK, book.is_some().into()),
            (spec::nbits::SWAP, self.codes.swaps().into()),
        ]
    }

    /// The parameters of all kernels, for `m` rows.
    fn params(&self, m: usize) -> Result<params::Nbits, OpError> {
        word(m.saturating_mul(self.k.max(self.n)))?;
        word(self.n * self.bytes())?;
        Ok(params::Nbits {
            m: m as u32,
            n: self.n as u32,
            k: self.k as u32,
            block: self.block as u32,
            blocks: self.blocks() as u32,
            words: (self.bytes() / 4) as u32,
            zero_bytes: self.zero_bytes() as u32,
        })
    }

    /// Whether kernels of cooperative matrices can read 16 codes of a block at a time.
    fn has_runs(&self) -> bool {
        let whole = match self.codes {
            Codes::Whole => self.k.is_multiple_of(coded::MATRIX_STEP),
            _ => self.k.is_multiple_of(RUN),
        };
        whole
            && self.block >= RUN
            && self.block.is_power_of_two()
            && (self.n * self.bytes()).is_multiple_of(WORD_PAIR)
    }

    /// The kernel of cooperative matrices for `m` rows of `t`, where there is one, and the exponent of what
    /// it multiplies scales by. It rounds weights to `float16`, and rows of `float32` where the model allows
    /// that; scales of `float32` must be known for that.
    fn matrices(&self, cx: &OpCx, lower: &mut Lowering<'_>, t: DType, m: usize) -> Option<(Matrices, i32)> {
        let fits = m > nbits_vector::ROWS && (t == DType::F16 || self.rounds) && self.has_runs();
        let kernel = |side| variants::NbitsMatrix { t, side }.id().ok();
        let matrices = fits.then(|| Matrices::of(lower, t, [m, self.n, self.k], kernel)).flatten()?;
        let exponent = match t {
            DType::F16 => 0,
            _ => raise::exponent(cx.value(SCALES)?.as_slice().ok()?, self.blocks(), self.bits)?,
        };
        Some((matrices, exponent))
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

/// The arguments that all kernels have.
fn args_of(cx: &OpCx, zeros: Zeros, book: Option<Operand>) -> Vec<Operand> {
    let mut args = vec![Operand::Input(A)];
    args.extend(matrix_of(cx, zeros, 0));
    args.extend([Operand::Output(0), book.unwrap_or(Operand::Unused)]);
    args
}

/// Those of a matrix after `before` inputs of another one, which has the same of them.
fn matrix_of(cx: &OpCx, zeros: Zeros, before: usize) -> [Operand; 5] {
    let pick = |given: bool, i: usize| if given { Operand::Input(before + i) } else { Operand::Unused };
    [
        pick(true, B),
        pick(true, SCALES),
        pick(zeros == Zeros::Codes, ZEROS),
        pick(zeros == Zeros::Numbers, ZEROS),
        pick(cx.has(BIAS), BIAS),
    ]
}

impl FewRows for MatMulNBits {
    type Native = Sizes;

    const NORMED: &'static str = "NormedNBits";
    const SUMMED: Option<[&'static str; 2]> = Some(["SummedNBits", "NormedSummedNBits"]);

    fn inputs(&self) -> usize {
        BIAS + 1
    }

    fn native(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        self.resolve(cx)
    }

    fn is_few(&self, cx: &OpCx, beside: &Beside, device: &DeviceInfo) -> bool {
        let m = self.resolve(cx).map_or(0, |sizes| sizes.m);
        m > 0 && self.wide(cx, m, beside, &Lowering::new(device)).is_some()
    }

    fn is_worth_a_gain(&self, cx: &OpCx, beside: &Beside, device: &DeviceInfo) -> bool {
        let m = self.resolve(cx).map_or(0, |sizes| sizes.m);
        let kernel = self.wide(cx, m, beside, &Lowering::new(device));
        device.kind != DeviceKind::Discrete
            || kernel.and_then(|kernel| self.staged(m, kernel, device)).is_some()
    }

    fn lower_beside(&self, cx: &OpCx, beside: &Beside, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Sizes { m, zeros, .. } = self.resolve(cx)?;
        let kernel = self.wide(cx, m, beside, lower).ok_or_else(|| beside.unsupported(m))?;
        let params = self.params(m)?;
        if m == 0 {
            return Ok(());
        }
        let book = self.codes.packed(lower)?;
        let mut args = args_of(cx, zeros, book);
        match beside.gate {
            Some(_) => args.extend(matrix_of(cx, zeros, Self::EACH).into_iter().chain([beside.gain()])),
            None => args.extend([beside.gain(), beside.summand()]),
        }
        let mut constants = self.constants(zeros, cx.has(BIAS), book);
        constants.extend(beside.norm.and_then(|_| self.staged(m, kernel, lower.device())));
        let sizes = [m, self.n, self.k / self.unit()];
        coded::lower_few_rows(lower, kernel, sizes, beside, (constants, &args, &params))
    }
}

impl Gate for MatMulNBits {
    const GATED: [&'static str; 2] = ["GatedNBits", "NormedGatedNBits"];
    const EACH: usize = BIAS;

    fn is_form_of(&self, other: &MatMulNBits) -> bool {
        let form = |op: &MatMulNBits| (op.k, op.n, op.bits, op.block, op.rounds);
        let plain = [self, other].iter().all(|op| matches!(op.codes, Codes::Whole));
        plain && form(self) == form(other)
    }

    fn check_both(&self, [own, other]: [&OpCx; 2]) -> Result<(), OpError> {
        let alike = self.resolve(own)?.zeros == self.resolve(other)?.zeros;
        if !alike || own.has(BIAS) != other.has(BIAS) {
            return Err(OpError::unsupported("a gate of products of different forms"));
        }
        Ok(())
    }
}

impl Operator for MatMulNBits {
    fn name(&self) -> &'static str {
        "MatMulNBits"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::CodedMatMul)
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=6, 1..=1)?;
        let dtype = cx.dtype_of(A, FLOATS_TO_32)?;
        cx.expect_dtype(B, self.codes.dtype())?;
        cx.expect_dtype(SCALES, dtype)?;
        if cx.has(ZEROS) {
            cx.dtype_of(ZEROS, &[DType::U8, dtype])?;
        }
        if cx.has(INDEX) {
            return Err(OpError::unsupported(
                "MatMulNBits with indices of groups: export the model without g_idx",
            ));
        }
        if cx.has(BIAS) {
            cx.expect_dtype(BIAS, dtype)?;
        }
        self.resolve(cx)?;
        coded::infer(cx, A, dtype, self.n)
    }

    fn with_exact_activations(&self) -> Option<Arc<dyn Operator>> {
        self.rounds.then(|| Arc::new(MatMulNBits { rounds: false, ..*self }) as Arc<dyn Operator>)
    }

    fn absorb(&self, cx: &OpCx, next: &dyn Operator, next_cx: &OpCx, at: usize) -> Option<Absorbed> {
        let added = absorb::added(next, next_cx, at)?;
        let one_row = added.shape().elements() == self.n && added.shape().last() == Some(&self.n);
        if !one_row || cx.has(BIAS) || added.dtype() != cx.dtype(A).ok()? {
            return None;
        }
        let bias = added.reshaped(Shape::new([self.n]).ok()?).ok()?;
        let own = (A..BIAS).map(|i| if cx.has(i) { AbsorbedInput::Own(i) } else { AbsorbedInput::Absent });
        let inputs = own.chain([AbsorbedInput::New(bias)]).collect();
        Some(Absorbed { op: Arc::new(*self), inputs })
    }

    few_rows!();

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
        let alone = Beside::default();
        if self.wide(cx, m, &alone, lower).is_some() {
            return self.lower_beside(cx, &alone, lower);
        }
        let kernel =
            if vector { variants::NbitsVector { t }.id()? } else { variants::NbitsTile { t }.id()? };
        let params = self.params(m)?;
        if !self.bytes().is_multiple_of(4) {
            return Err(OpError::unsupported(format!("columns of {} bytes on a device", self.bytes())));
        }
        let book = self.codes.packed(lower)?;
        let mut args = args_of(cx, zeros, book);
        let matrices = self.matrices(cx, lower, t, m);
        if m == 0 {
            return Ok(());
        }
        let mut spec = self.constants(zeros, cx.has(BIAS), book);
        if let Some((matrices, exponent)) = matrices {
            if t == DType::F32 {
                let [rows, factors] = coded::rounded_rows(lower, args[A], [m, self.k])?;
                args[A] = rows;
                args.push(factors);
            }
            if exponent != 0 {
                spec.push((spec::nbits_matrix::RAISED, (127 + exponent) as u32));
            }
            spec.push((spec::nbits_matrix::LOCAL_SIZE_X, matrices.threads));
            return lower.dispatch(
                matrices.kernel,
                &spec,
                &args,
                &params,
                matrices.groups([params.m, params.n]),
            );
        }
        if vector {
            let groups = self.n.div_ceil(nbits_vector::COLS) as u64;
            let grid = grid_1d(groups, 1, lower.device().limits.max_groups[0]);
            return lower.dispatch(kernel, &spec, &args, &params, grid);
        }
        let groups = [params.n.div_ceil(TILE as u32), params.m.div_ceil(TILE as u32), 1];
        lower.dispatch(kernel, &spec, &args, &params, groups)
    }
}
