//! Quantized operators on devices: which kernels, and what they are told.

use super::elements::integers;
use super::grain::Grain;
use super::product::Places;
use super::scaling::range_of;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::codes::byte_product::Biased;
use crate::kernel::codes::row_terms::Output;
use crate::kernel::table::{id, params, spec, variants};
use crate::ops::conv::dims::ConvDims;
use crate::ops::linalg::matmul::Dims;
use crate::ops::window::AxisNumbers;
use crate::ops::word::word;
use crate::ops::{Lowering, OpCx, OpError, Operand, PackKey, WindowAxis, reaches_all};

/// Bytes of a row that are one load.
const BLOCK: usize = 16;
/// The most work-groups that look for the extremes of one tensor.
const MAX_SHARES: usize = 64;

/// A small integer of a type's range.
fn whole(v: f32) -> i32 {
    v as i32
}

/// Emits QuantizeLinear to `to`.
pub(super) fn quantize(cx: &OpCx, grain: &Grain, to: DType, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let zero = if cx.has(2) { Some(Operand::Input(2)) } else { None };
    let x = (cx.dtype(0)?, cx.input(0)?.elements(), Operand::Input(0));
    emit_quantize(lower, x, grain, (Operand::Input(1), zero), (to, Operand::Output(0)))
}

fn emit_quantize(
    lower: &mut Lowering<'_>,
    (from, n, x): (DType, usize, Operand),
    grain: &Grain,
    (scale, zero): (Operand, Option<Operand>),
    (to, y): (DType, Operand),
) -> Result<(), OpError> {
    let fail = || OpError::unsupported(format!("QuantizeLinear from {from} to {to} on the device"));
    let kernel = variants::Quantize { t: from, d: to }.id()?;
    let [low, high] = integers(to).ok_or_else(fail)?.map(whole);
    let along = grain.along;
    let params = params::Quantize {
        n: word(n)?,
        len: along.len.max(1) as u32,
        inner: along.inner.max(1) as u32,
        block: u32::try_from(grain.block).unwrap_or(u32::MAX),
        steps: grain.steps.map(|s| s as u32),
        low,
        high,
    };
    let constants = [(spec::quantize::ZERO, u32::from(zero.is_some()))];
    let zero = zero.unwrap_or(Operand::Unused);
    lower.dispatch_1d(kernel, &constants, &[x, scale, zero, y], &params, n)
}

/// Emits DequantizeLinear.
pub(super) fn dequantize(cx: &OpCx, grain: &Grain, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let (from, scale, to) = (cx.dtype(0)?, cx.dtype(1)?, cx.output(0)?.dtype);
    if scale != to {
        return Err(OpError::unsupported(format!("no device kernel for {to} from {from} by {scale}")));
    }
    let kernel = variants::Dequantize { s: from, t: to }.id()?;
    let n = cx.output(0)?.elements();
    let params = params::Dequantize {
        n: word(n)?,
        len: grain.along.len.max(1) as u32,
        inner: grain.along.inner.max(1) as u32,
        block: u32::try_from(grain.block).unwrap_or(u32::MAX),
        steps: grain.steps.map(|s| s as u32),
    };
    let constants = [(spec::dequantize::ZERO, u32::from(cx.has(2)))];
    let zero = if cx.has(2) { Operand::Input(2) } else { Operand::Unused };
    let args = [Operand::Input(0), Operand::Input(1), zero, Operand::Output(0)];
    lower.dispatch_1d(kernel, &constants, &args, &params, n)
}

/// Emits DynamicQuantizeLinear.
pub(super) fn dynamic(cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let n = cx.input(0)?.elements();
    let elements = word(n)?;
    let mut output = |i: usize, bytes| {
        if i < cx.outputs().len() { Operand::Output(i) } else { lower.scratch(bytes) }
    };
    let (scale, zero) = (output(1, 4), output(2, 4));
    let shares = n.div_ceil(1024).clamp(1, MAX_SHARES);
    let ranges = lower.scratch(8 * shares);
    let params = params::Extremes { n: elements };
    lower.dispatch(id::EXTREMES, &[], &[Operand::Input(0), ranges], &params, [shares as u32, 1, 1])?;
    let params = params::DynamicScale { n: shares as u32 };
    lower.dispatch(id::DYNAMIC_SCALE_U8, &[], &[ranges, scale, zero], &params, [1, 1, 1])?;
    let along = crate::ops::norm::Along { outer: 1, len: n, inner: 1 };
    let grain = Grain { along, block: usize::MAX, steps: [0; 3], scales: 1 };
    let x = (DType::F32, n, Operand::Input(0));
    emit_quantize(lower, x, &grain, (scale, Some(zero)), (DType::U8, Operand::Output(0)))
}

/// Rows of bytes of one operand of a product.
struct Rows<'c> {
    dtype: DType,
    /// Matrices, their rows, bytes of a row.
    sizes: [usize; 3],
    /// Strides of rows and of the bytes of a row.
    steps: [usize; 2],
    operand: Operand,
    value: Option<&'c Tensor>,
}

impl Rows<'_> {
    fn blocks(&self) -> usize {
        self.sizes[2].div_ceil(BLOCK)
    }

    fn bytes(&self) -> usize {
        self.sizes[0] * self.sizes[1] * self.blocks() * BLOCK
    }

    /// The rows as the product reads them: made at load where the value is known, else by a kernel.
    fn emit(&self, lower: &mut Lowering<'_>) -> Result<Operand, OpError> {
        let ([matrices, rows, depth], [row_step, byte_step]) = (self.sizes, self.steps);
        let (blocks, flip) = (self.blocks(), flip(self.dtype));
        let matrix = rows * depth;
        if let Some(value) = self.value {
            let key = PackKey {
                layout: if byte_step == 1 { "bytes of rows" } else { "bytes of columns" },
                numbers: [matrices as u32, rows as u32, depth as u32, flip],
            };
            let packed = lower.packed(value, key, self.bytes().max(BLOCK), move |t, out| {
                let source = t.bytes();
                for (i, out) in out.chunks_mut(BLOCK).enumerate() {
                    let (row, rest) = (i % rows.max(1), i / rows.max(1));
                    let (block, m) = (rest % blocks.max(1), rest / blocks.max(1));
                    for (j, out) in out.iter_mut().enumerate() {
                        let k = block * BLOCK + j;
                        let at = m * matrix + row * row_step + k * byte_step;
                        let byte = source.get(at).filter(|_| k < depth);
                        *out = byte.map_or(0, |b| b ^ flip as u8);
                    }
                }
                Ok(())
            });
            let steps = [(matrices, matrix as i64), (rows, row_step as i64), (depth, byte_step as i64)];
            if reaches_all(&steps, value.info().bytes()) {
                lower.unpacked_by(move |packed, out| {
                    for (i, packed) in packed.chunks(BLOCK).enumerate() {
                        let (row, rest) = (i % rows.max(1), i / rows.max(1));
                        let (block, m) = (rest % blocks.max(1), rest / blocks.max(1));
                        for (j, from) in packed.iter().enumerate().take(depth.saturating_sub(block * BLOCK)) {
                            let k = block * BLOCK + j;
                            if let Some(to) = out.get_mut(m * matrix + row * row_step + k * byte_step) {
                                *to = from ^ flip as u8;
                            }
                        }
                    }
                });
            }
            return Ok(packed);
        }
        let packed = lower.scratch(self.bytes());
        let n = self.bytes() / 4;
        let params = params::PackBytes {
            n: word(n)?,
            rows: rows as u32,
            blocks: blocks as u32,
            depth: depth as u32,
            matrix: matrix as u32,
            row_step: row_step as u32,
            byte_step: byte_step as u32,
        };
        let constants = [(spec::pack_bytes::FLIP, flip)];
        lower.dispatch_1d(id::PACK_BYTES_B8, &constants, &[self.operand, packed], &params, n)?;
        Ok(packed)
    }
}

/// The mask that makes a byte signed.
fn flip(dtype: DType) -> u32 {
    if dtype == DType::I8 { 0 } else { 0x80 }
}

/// A parameter: where it is and how many elements it has.
#[derive(Clone, Copy)]
struct Parameter {
    operand: Operand,
    len: usize,
}

impl Parameter {
    const NONE: Parameter = Parameter { operand: Operand::Unused, len: 0 };

    fn of(cx: &OpCx, i: Option<usize>) -> Parameter {
        let info = i.and_then(|i| cx.input_opt(i).map(|t| (i, t.elements())));
        info.map_or(Parameter::NONE, |(i, len)| Parameter { operand: Operand::Input(i), len })
    }
}

/// The output's scale or zero point, which comes with one of the operands.
#[derive(Clone, Copy)]
enum Of {
    Nothing,
    Scale(Operand),
    Zero(Operand, DType),
}

impl Of {
    /// The arguments that belong to the rows, and those of the columns, of an output of type `to`.
    fn output(p: &Places, to: DType) -> [Of; 2] {
        match (p.y_scale, p.y_zero) {
            (Some(scale), Some(zero)) => {
                [Of::Scale(Operand::Input(scale)), Of::Zero(Operand::Input(zero), to)]
            }
            _ => [Of::Nothing, Of::Nothing],
        }
    }
}

/// Emits what is known of each row of an operand.
fn row_terms(
    lower: &mut Lowering<'_>,
    packed: Operand,
    dtype: DType,
    [matrices, rows, depth]: [usize; 3],
    [zero, scale]: [Parameter; 2],
    output: Of,
) -> Result<Operand, OpError> {
    let n = matrices * rows;
    let terms = lower.scratch(16 * n);
    let (kind, out_scale, out_zero) = match output {
        Of::Nothing => (Output::None, Operand::Unused, Operand::Unused),
        Of::Scale(scale) => (Output::Scale, scale, Operand::Unused),
        Of::Zero(zero, DType::I8) => (Output::SignedZero, Operand::Unused, zero),
        Of::Zero(zero, _) => (Output::UnsignedZero, Operand::Unused, zero),
    };
    let constants = [
        (spec::row_terms::SIGNED, u32::from(dtype == DType::I8)),
        (spec::row_terms::ZEROS, zero.len as u32),
        (spec::row_terms::SCALES, scale.len as u32),
        (spec::row_terms::OUTPUT, kind as u32),
    ];
    let params = params::RowTerms { n: word(n)?, rows: rows as u32, blocks: depth.div_ceil(BLOCK) as u32 };
    let args = [packed, zero.operand, scale.operand, out_scale, out_zero, terms];
    lower.dispatch_1d(id::ROW_TERMS_B8, &constants, &args, &params, n)?;
    Ok(terms)
}

/// Operands, terms and matrices of a product.
struct Product {
    rows: usize,
    cols: usize,
    depth: usize,
    count: usize,
    a: [Operand; 2],
    b: [Operand; 2],
    /// Product i reads matrix `i / .0 % .1`.
    a_matrix: (usize, usize),
    b_matrix: (usize, usize),
    bias: Bias,
    to: DType,
    clamp: Option<[i32; 2]>,
}

/// The summand of sums.
#[derive(Clone, Copy)]
enum Bias {
    Nothing,
    OfRows(Operand),
    OfColumns(Operand),
}

impl Product {
    fn emit(&self, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let bytes = range_of(self.to, self.clamp);
        let tall = self.rows > 1;
        let rows = if tall { 4 } else { 1 };
        let t = if bytes.is_some() { DType::U8 } else { DType::I32 };
        let plain = variants::ByteProduct { t, rows, dot: false };
        let dot = variants::ByteProduct { dot: true, ..plain }.id()?;
        let kernel = if lower.can_run(dot) { dot } else { plain.id()? };
        let [low, high] = bytes.unwrap_or_default().map(whole);
        let n = self.count * self.rows.div_ceil(rows as usize) * self.cols.div_ceil(4);
        word(self.count * self.rows * self.cols)?;
        let params = params::ByteProduct {
            n: word(n)?,
            rows: self.rows as u32,
            cols: self.cols as u32,
            depth: self.depth as u32,
            blocks: self.depth.div_ceil(BLOCK) as u32,
            a_div: self.a_matrix.0 as u32,
            a_mod: self.a_matrix.1 as u32,
            b_div: self.b_matrix.0 as u32,
            b_mod: self.b_matrix.1 as u32,
            low,
            high,
        };
        let (biased, bias) = match self.bias {
            Bias::Nothing => (Biased::Nothing, Operand::Unused),
            Bias::OfRows(bias) => (Biased::Rows, bias),
            Bias::OfColumns(bias) => (Biased::Columns, bias),
        };
        let constants = [(spec::byte_product::BIASED, biased as u32)];
        let args = [self.a[0], self.b[0], self.a[1], self.b[1], bias, Operand::Output(0)];
        lower.dispatch_1d(kernel, &constants, &args, &params, n)
    }
}

/// The `(d, m)` for which `list[i]` is `i / d % m`.
fn period(list: &[usize]) -> Option<(usize, usize)> {
    let d = list.iter().position(|v| *v != 0).unwrap_or(list.len()).max(1);
    let m = list.iter().max().map_or(1, |v| v + 1);
    list.iter().enumerate().all(|(i, v)| i / d % m == *v).then_some((d, m))
}

/// Scales that kernels read.
fn check_scales(cx: &OpCx, scales: [Option<usize>; 3]) -> Result<(), OpError> {
    for i in scales.into_iter().flatten() {
        if cx.dtype(i)? != DType::F32 {
            return Err(OpError::unsupported(
                "quantized products with scales other than float32 on the device",
            ));
        }
    }
    Ok(())
}

/// Emits MatMulInteger or QLinearMatMul.
pub(super) fn matmul(
    cx: &OpCx,
    p: &Places,
    dims: &Dims,
    clamp: Option<[i32; 2]>,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let y = cx.output(0)?;
    if y.elements() == 0 {
        return Ok(());
    }
    check_scales(cx, [p.a_scale, p.b_scale, p.y_scale])?;
    let (m, n, k) = (dims.m, dims.n, dims.k);
    let (of_a, of_b): (Vec<usize>, Vec<usize>) = dims.pairs.listed()?.into_iter().unzip();
    let irregular = || OpError::unsupported("a product of such batches on the device");
    let (a_matrix, b_matrix) = (period(&of_a).ok_or_else(irregular)?, period(&of_b).ok_or_else(irregular)?);
    let operand = |i: usize, sizes, steps| -> Result<Rows<'_>, OpError> {
        word(cx.input(i)?.elements())?;
        Ok(Rows { dtype: cx.dtype(i)?, sizes, steps, operand: Operand::Input(i), value: cx.value(i) })
    };
    let a = operand(p.a, [a_matrix.1, m, k], [k, 1])?;
    let b = operand(p.b, [b_matrix.1, n, k], [1, n])?;
    let (a_packed, b_packed) = (a.emit(lower)?, b.emit(lower)?);
    let [of_rows, of_cols] = Of::output(p, y.dtype);
    let parameters = |zero, scale| [Parameter::of(cx, Some(zero)), Parameter::of(cx, scale)];
    let a_terms = row_terms(lower, a_packed, a.dtype, a.sizes, parameters(p.a_zero, p.a_scale), of_rows)?;
    let b_terms = row_terms(lower, b_packed, b.dtype, b.sizes, parameters(p.b_zero, p.b_scale), of_cols)?;
    Product {
        rows: m,
        cols: n,
        depth: k,
        count: dims.pairs.len(),
        a: [a_packed, a_terms],
        b: [b_packed, b_terms],
        a_matrix,
        b_matrix,
        bias: p.bias.filter(|b| cx.has(*b)).map_or(Bias::Nothing, |b| Bias::OfColumns(Operand::Input(b))),
        to: y.dtype,
        clamp,
    }
    .emit(lower)
}

/// Emits ConvInteger or QLinearConv.
pub(super) fn conv(
    cx: &OpCx,
    p: &Places,
    dims: &ConvDims,
    clamp: Option<[i32; 2]>,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let y = cx.output(0)?;
    if y.elements() == 0 {
        return Ok(());
    }
    check_scales(cx, [p.a_scale, p.b_scale, p.y_scale])?;
    for t in [cx.input(p.a)?, cx.input(p.b)?] {
        word(TensorInfo::elements(t))?;
    }
    let (depth, plane) = (dims.ic * dims.taps(), dims.out_plane());
    let weights = Rows {
        dtype: cx.dtype(p.b)?,
        sizes: [dims.group, dims.oc, depth],
        steps: [depth, 1],
        operand: Operand::Input(p.b),
        value: cx.value(p.b),
    };
    let x = Rows {
        dtype: cx.dtype(p.a)?,
        sizes: [dims.batch * dims.group, plane, depth],
        steps: [0, 0],
        operand: Operand::Input(p.a),
        value: None,
    };
    let w_packed = weights.emit(lower)?;
    let x_packed = columns(cx, p, dims, &x, lower)?;
    let [of_rows, of_cols] = Of::output(p, y.dtype);
    let parameters = |zero, scale| [Parameter::of(cx, Some(zero)), Parameter::of(cx, scale)];
    let w_terms =
        row_terms(lower, w_packed, weights.dtype, weights.sizes, parameters(p.b_zero, p.b_scale), of_rows)?;
    let x_terms = row_terms(lower, x_packed, x.dtype, x.sizes, parameters(p.a_zero, p.a_scale), of_cols)?;
    Product {
        rows: dims.oc,
        cols: plane,
        depth,
        count: dims.batch * dims.group,
        a: [w_packed, w_terms],
        b: [x_packed, x_terms],
        a_matrix: (1, dims.group),
        b_matrix: (1, dims.batch * dims.group),
        bias: p.bias.filter(|b| cx.has(*b)).map_or(Bias::Nothing, |b| Bias::OfRows(Operand::Input(b))),
        to: y.dtype,
        clamp,
    }
    .emit(lower)
}

/// Emits what the window sees at each place of the output.
fn columns(
    cx: &OpCx,
    p: &Places,
    dims: &ConvDims,
    x: &Rows<'_>,
    lower: &mut Lowering<'_>,
) -> Result<Operand, OpError> {
    let packed = lower.scratch(x.bytes());
    let n = x.bytes() / 4;
    let axes = dims.axes;
    let reach = |a: &WindowAxis| {
        (a.kernel * a.dilation).max(a.output * a.stride).max(a.pads[0].unsigned_abs() as usize)
    };
    if axes.iter().any(|a| reach(a) >= 1 << 30) {
        return Err(OpError::unsupported("a convolution so far beyond the image on the device"));
    }
    let numbers = AxisNumbers::new(axes)?;
    let params = params::PackColumns {
        n: word(n)?,
        rows: x.sizes[1] as u32,
        blocks: x.blocks() as u32,
        depth: x.sizes[2] as u32,
        matrix: (dims.ic * dims.in_plane()) as u32,
        window: numbers.into(),
        output: numbers.into(),
    };
    let zero = Parameter::of(cx, Some(p.a_zero));
    let constants =
        [(spec::pack_columns::FLIP, flip(x.dtype)), (spec::pack_columns::ZERO, u32::from(zero.len > 0))];
    let args = [x.operand, zero.operand, packed];
    lower.dispatch_1d(id::PACK_COLUMNS_B8, &constants, &args, &params, n)?;
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_that_are_read_in_turn_are_found() {
        assert_eq!(period(&[0]), Some((1, 1)));
        assert_eq!(period(&[0, 1, 2]), Some((1, 3)));
        assert_eq!(period(&[0, 0, 1, 1, 0, 0, 1, 1]), Some((2, 2)));
        assert_eq!(period(&[0, 0, 0]), Some((3, 1)));
        assert_eq!(period(&[0, 1, 0, 2]), None);
    }
}
