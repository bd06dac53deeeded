//! Products of bytes on devices: which kernels, and what they are told.

use super::product::{Places, SumsBecome};
use super::scaling::range_of;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::codes::byte_product::Count;
use crate::kernel::table::{id, params, spec, variants};
use crate::ops::conv::dims::ConvDims;
use crate::ops::linalg::matmul::Dims;
use crate::ops::window::AxisNumbers;
use crate::ops::word::word;
use crate::ops::{Activation, Lowering, OpCx, OpError, Operand, PackKey, WindowAxis, reaches_all};

/// Bytes of a row that are one load.
const BLOCK: usize = 16;

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

/// Rows as a product reads them.
#[derive(Clone, Copy)]
struct Laid {
    operand: Operand,
    /// Strides of a row's blocks: from row to row, and along a row.
    steps: [usize; 2],
    /// What makes the bytes signed ones.
    flip: u32,
}

/// The sums of rows' bytes: where they are, and the first one's place.
#[derive(Clone, Copy)]
struct RowSums {
    operand: Operand,
    at: usize,
}

impl Rows<'_> {
    fn blocks(&self) -> usize {
        self.sizes[2].div_ceil(BLOCK)
    }

    fn bytes(&self) -> usize {
        self.sizes[0] * self.sizes[1] * self.blocks() * BLOCK
    }

    /// Rows of all matrices.
    fn count(&self) -> usize {
        self.sizes[0] * self.sizes[1]
    }

    /// Rows in blocks, those of one place of all rows together.
    fn packed(&self, operand: Operand) -> Laid {
        Laid { operand, steps: [1, self.sizes[1]], flip: 0 }
    }

    /// The rows for a product that needs no sums of them: where they lie, where those are whole blocks.
    fn emit(&self, lower: &mut Lowering<'_>) -> Result<Laid, OpError> {
        if self.steps == [self.sizes[2], 1] && self.sizes[2].is_multiple_of(BLOCK) {
            let flip = flip(self.dtype) * 0x0101_0101;
            return Ok(Laid { operand: self.operand, steps: [self.blocks(), 1], flip });
        }
        self.pack(lower).map(|packed| self.packed(packed))
    }

    /// The rows and their sums: made at load where the value is known, else by kernels.
    fn emit_summed(&self, lower: &mut Lowering<'_>) -> Result<(Laid, RowSums), OpError> {
        if let Some(value) = self.value {
            let packed = self.pack_known(value, lower);
            return Ok((self.packed(packed), RowSums { operand: packed, at: self.bytes() / 4 }));
        }
        let packed = self.pack(lower)?;
        let sums = lower.scratch(4 * self.count());
        let params = params::RowSums {
            n: word(self.count())?,
            rows: self.sizes[1] as u32,
            blocks: self.blocks() as u32,
        };
        lower.dispatch_1d(id::ROW_SUMS, &[], &[packed, sums], &params, self.count())?;
        Ok((self.packed(packed), RowSums { operand: sums, at: 0 }))
    }

    /// Constant rows, and after them their sums as 32-bit integers.
    fn pack_known(&self, value: &Tensor, lower: &mut Lowering<'_>) -> Operand {
        let ([matrices, rows, depth], [row_step, byte_step]) = (self.sizes, self.steps);
        let (blocks, flip, bytes) = (self.blocks(), flip(self.dtype), self.bytes());
        let matrix = rows * depth;
        let key = PackKey {
            layout: if byte_step == 1 { "bytes of rows, sums" } else { "bytes of columns, sums" },
            numbers: [matrices as u32, rows as u32, depth as u32, flip],
        };
        // The matrix, row and block of a piece.
        let place = move |i: usize| {
            let (row, rest) = (i % rows.max(1), i / rows.max(1));
            (rest / blocks.max(1), row, rest % blocks.max(1))
        };
        let packed = lower.packed(value, key, bytes + 4 * self.count(), move |t, out| {
            let source = t.bytes();
            let Some((packed, sums)) = out.split_at_mut_checked(bytes) else { return Ok(()) };
            let mut of_rows = vec![0i32; matrices * rows];
            for (i, out) in packed.chunks_mut(BLOCK).enumerate() {
                let (m, row, block) = place(i);
                let mut sum = 0;
                for (j, out) in out.iter_mut().enumerate() {
                    let k = block * BLOCK + j;
                    let at = m * matrix + row * row_step + k * byte_step;
                    let byte = source.get(at).filter(|_| k < depth);
                    *out = byte.map_or(0, |b| b ^ flip as u8);
                    sum += i32::from(*out as i8);
                }
                if let Some(of_row) = of_rows.get_mut(m * rows + row) {
                    *of_row = of_row.wrapping_add(sum);
                }
            }
            let words = sums.as_chunks_mut::<4>().0;
            words.iter_mut().zip(of_rows).for_each(|(to, sum)| *to = sum.to_ne_bytes());
            Ok(())
        });
        let steps = [(matrices, matrix as i64), (rows, row_step as i64), (depth, byte_step as i64)];
        if reaches_all(&steps, value.info().bytes()) {
            lower.unpacked_by(move |packed, out| {
                for (i, packed) in packed.get(..bytes).unwrap_or(&[]).chunks(BLOCK).enumerate() {
                    let (m, row, block) = place(i);
                    for (j, from) in packed.iter().enumerate().take(depth.saturating_sub(block * BLOCK)) {
                        let k = block * BLOCK + j;
                        if let Some(to) = out.get_mut(m * matrix + row * row_step + k * byte_step) {
                            *to = from ^ flip as u8;
                        }
                    }
                }
            });
        }
        packed
    }

    /// The rows packed by a kernel.
    fn pack(&self, lower: &mut Lowering<'_>) -> Result<Operand, OpError> {
        let ([_, rows, depth], [row_step, byte_step]) = (self.sizes, self.steps);
        let packed = lower.scratch(self.bytes());
        let n = self.bytes() / 4;
        let params = params::PackBytes {
            n: word(n)?,
            rows: rows as u32,
            blocks: self.blocks() as u32,
            depth: depth as u32,
            matrix: (rows * depth) as u32,
            row_step: row_step as u32,
            byte_step: byte_step as u32,
        };
        let constants = [(spec::pack_bytes::FLIP, flip(self.dtype))];
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
    fn of(cx: &OpCx, i: Option<usize>) -> Parameter {
        match i.and_then(|i| cx.input_opt(i).map(|t| (i, t.elements()))) {
            Some((i, len)) => Parameter { operand: Operand::Input(i), len },
            None => Parameter { operand: Operand::Unused, len: 0 },
        }
    }

    fn count(&self) -> u32 {
        let count = match self.len {
            0 => Count::None,
            1 => Count::One,
            _ => Count::Many,
        };
        count as u32
    }
}

/// Whether bytes of `dtype`, made signed ones, have no zero point but 0.
fn centred(cx: &OpCx, zero: usize, dtype: DType) -> bool {
    let own = flip(dtype) as u8;
    match cx.input_opt(zero) {
        None => own == 0,
        Some(_) => cx.value(zero).is_some_and(|t| t.bytes().iter().all(|zero| *zero == own)),
    }
}

/// A product of X, the operand of one scale and zero point as a rule, and of W, the weights.
struct Product<'c> {
    cx: &'c OpCx,
    places: &'c Places,
    sums: &'c SumsBecome,
    rows: usize,
    cols: usize,
    depth: usize,
    count: usize,
    /// Whether the rows are W's, the input `places.b` (of convolutions), and the columns X's.
    w_rows: bool,
    a: Laid,
    b: Laid,
    w_sums: RowSums,
    /// Product i reads matrix `i / .0 % .1`.
    a_matrix: (usize, usize),
    b_matrix: (usize, usize),
}

impl Product<'_> {
    fn emit(&self, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (cx, p, to) = (self.cx, self.places, self.cx.output(0)?.dtype);
        let (clamp, activation) = match self.sums {
            SumsBecome::Bytes { clamp } => (*clamp, Activation::None),
            SumsBecome::Numbers { activation } => (None, *activation),
            SumsBecome::Sums => (None, Activation::None),
        };
        let [low, high] = range_of(to, clamp).unwrap_or_default().map(|v| v as i32);
        let rows = if self.rows > 1 { 4 } else { 1 };
        let t = if p.y_zero.is_some() { DType::U8 } else { to };
        let plain = variants::ByteProduct { t, rows, dot: false };
        let dot = variants::ByteProduct { dot: true, ..plain }.id()?;
        let kernel = if lower.can_run(dot) { dot } else { plain.id()? };
        let n = self.count * self.rows.div_ceil(rows as usize) * self.cols.div_ceil(4);
        word(self.count * self.rows * self.cols)?;
        let [x_zeros, w_zeros, x_scales, w_scales, bias] =
            [Some(p.a_zero), Some(p.b_zero), p.a_scale, p.b_scale, p.bias].map(|i| Parameter::of(cx, i));
        let (code, [act_a, act_b]) = activation.code();
        let params = params::ByteProduct {
            n: word(n)?,
            rows: self.rows as u32,
            cols: self.cols as u32,
            depth: self.depth as u32,
            blocks: self.depth.div_ceil(BLOCK) as u32,
            a_row: self.a.steps[0] as u32,
            a_block: self.a.steps[1] as u32,
            a_div: self.a_matrix.0 as u32,
            a_mod: self.a_matrix.1 as u32,
            b_div: self.b_matrix.0 as u32,
            b_mod: self.b_matrix.1 as u32,
            w_sums_at: word(self.w_sums.at)?,
            x_zeros: x_zeros.len as u32,
            w_zeros: w_zeros.len as u32,
            x_scales: x_scales.len as u32,
            w_scales: w_scales.len as u32,
            low,
            high,
            act_a,
            act_b,
        };
        let (x, w) = (cx.dtype(p.a)?, cx.dtype(p.b)?);
        let is_signed = |dtype: DType| u32::from(dtype == DType::I8);
        let mut constants = vec![
            (spec::byte_product::W_ROWS, u32::from(self.w_rows)),
            (spec::byte_product::A_FLIP, self.a.flip),
            (spec::byte_product::X_SIGNED, is_signed(x)),
            (spec::byte_product::W_SIGNED, is_signed(w)),
            (spec::byte_product::X_ZEROS, x_zeros.count()),
            (spec::byte_product::W_ZEROS, w_zeros.count()),
            (spec::byte_product::SUMMED, u32::from(!centred(cx, p.b_zero, w))),
        ];
        let mut args =
            vec![self.a.operand, self.b.operand, self.w_sums.operand, x_zeros.operand, w_zeros.operand];
        if to != DType::I32 {
            constants.extend([
                (spec::byte_product::X_SCALES, x_scales.count()),
                (spec::byte_product::W_SCALES, w_scales.count()),
                (spec::byte_product::BIASED, u32::from(bias.len > 0)),
            ]);
            args.extend([x_scales.operand, w_scales.operand, bias.operand]);
        }
        match (p.y_scale, p.y_zero) {
            (Some(scale), Some(zero)) => {
                constants.push((spec::byte_product::Y_SIGNED, is_signed(to)));
                args.extend([Operand::Input(scale), Operand::Input(zero)]);
            }
            _ if to == DType::F32 => constants.push((spec::byte_product::ACTIVATION, code)),
            _ => {}
        }
        args.push(Operand::Output(0));
        lower.dispatch_1d(kernel, &constants, &args, &params, n)
    }
}

/// The `(d, m)` for which `list[i]` is `i / d % m`.
fn period(list: &[usize]) -> Option<(usize, usize)> {
    let d = list.iter().position(|v| *v != 0).unwrap_or(list.len()).max(1);
    let m = list.iter().max().map_or(1, |v| v + 1);
    list.iter().enumerate().all(|(i, v)| i / d % m == *v).then_some((d, m))
}

/// Checks that kernels can read the scales.
fn check_scales(cx: &OpCx, p: &Places) -> Result<(), OpError> {
    for i in [p.a_scale, p.b_scale, p.y_scale].into_iter().flatten().filter(|i| cx.has(*i)) {
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
    places: &Places,
    dims: &Dims,
    sums: &SumsBecome,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    if cx.output(0)?.elements() == 0 {
        return Ok(());
    }
    check_scales(cx, places)?;
    let (m, n, k) = (dims.m, dims.n, dims.k);
    let (of_a, of_b): (Vec<usize>, Vec<usize>) = dims.pairs.listed()?.into_iter().unzip();
    let irregular = || OpError::unsupported("a product of such batches on the device");
    let (a_matrix, b_matrix) = (period(&of_a).ok_or_else(irregular)?, period(&of_b).ok_or_else(irregular)?);
    let operand = |i: usize, sizes, steps| -> Result<Rows<'_>, OpError> {
        word(cx.input(i)?.elements())?;
        Ok(Rows { dtype: cx.dtype(i)?, sizes, steps, operand: Operand::Input(i), value: cx.value(i) })
    };
    let x = operand(places.a, [a_matrix.1, m, k], [k, 1])?;
    let w = operand(places.b, [b_matrix.1, n, k], [1, n])?;
    let a = x.emit(lower)?;
    let (b, w_sums) = w.emit_summed(lower)?;
    Product {
        cx,
        places,
        sums,
        rows: m,
        cols: n,
        depth: k,
        count: dims.pairs.len(),
        w_rows: false,
        a,
        b,
        w_sums,
        a_matrix,
        b_matrix,
    }
    .emit(lower)
}

/// Emits ConvInteger or QLinearConv.
pub(super) fn conv(
    cx: &OpCx,
    places: &Places,
    dims: &ConvDims,
    sums: &SumsBecome,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    if cx.output(0)?.elements() == 0 {
        return Ok(());
    }
    check_scales(cx, places)?;
    for t in [cx.input(places.a)?, cx.input(places.b)?] {
        word(TensorInfo::elements(t))?;
    }
    let (depth, plane) = (dims.ic * dims.taps(), dims.out_plane());
    let weights = Rows {
        dtype: cx.dtype(places.b)?,
        sizes: [dims.group, dims.oc, depth],
        steps: [depth, 1],
        operand: Operand::Input(places.b),
        value: cx.value(places.b),
    };
    let x = Rows {
        dtype: cx.dtype(places.a)?,
        sizes: [dims.batch * dims.group, plane, depth],
        steps: [0, 0],
        operand: Operand::Input(places.a),
        value: None,
    };
    let (a, w_sums) = weights.emit_summed(lower)?;
    let b = x.packed(columns(cx, places, dims, &x, lower)?);
    Product {
        cx,
        places,
        sums,
        rows: dims.oc,
        cols: plane,
        depth,
        count: dims.batch * dims.group,
        w_rows: true,
        a,
        b,
        w_sums,
        a_matrix: (1, dims.group),
        b_matrix: (1, dims.batch * dims.group),
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
