//! MatMulInteger and QLinearMatMul: products of matrices of bytes.

use std::sync::Arc;

use super::absorbed::{absorbed, absorbed_scales};
use super::device_product;
use super::product::{Inputs, Numbers, Places, Repeated, Requantize, SumsBecome, flip};
use super::scaling::range_of;
use crate::backend::DeviceInfo;
use crate::dot::Unit;
use crate::dtype::{DType, Element};
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::linalg::bytes::{Around, FLIP, Packing, Panels, Product, row_sums, with_scratch};
use crate::ops::linalg::matmul::Dims;
use crate::ops::linalg::product::Threads;
use crate::ops::real::check_len;
use crate::ops::{
    Absorbed, Activation, AttrReader, Cost, HalfRule, Lowering, Native, OpCx, OpError, Operator, PackKey,
    Packed, par,
};
use crate::shape::Shape;
use crate::simd::wide;

/// A product of matrices of bytes less their zero points.
///
/// As MatMulInteger (inputs A, B, zero points of A and B) it gives 32-bit sums, or numbers where it has absorbed what makes
/// these of the sums; as QLinearMatMul (inputs A, its scale and zero point, the same of B, the same of the output) it
/// gives bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuantizedMatMul {
    /// What is made of the sums.
    pub sums: SumsBecome,
    /// Whether QLinearMatMul has a ninth input: what is added to the sums of each column, `int32`.
    pub biased: bool,
}

pub(super) fn read_linear(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let _ = attrs;
    let sums = SumsBecome::Bytes { clamp: None };
    Ok(Arc::new(QuantizedMatMul { sums, biased: false }))
}

impl QuantizedMatMul {
    fn places(&self) -> Places {
        Places::of(&self.sums)
    }

    fn dims(&self, cx: &OpCx) -> Result<Dims, OpError> {
        let p = self.places();
        Dims::of(cx, p.a, p.b)
    }

    fn call(&self, cx: &OpCx, packed: Option<usize>) -> Result<NativeKernel, OpError> {
        let (places, dims) = (self.places(), self.dims(cx)?);
        let packing = Packing::new([dims.k, dims.n], Unit::best());
        let call = Call {
            places,
            dims,
            inputs: Inputs::of(cx),
            sums: self.sums,
            to: cx.output(0)?.dtype,
            packing,
            packed,
        };
        Ok(NativeKernel::new(self.name(), move |args| call.run(args)))
    }

    /// A constant B as the function reads it: all its matrices packed.
    fn pack_right(&self, cx: &OpCx) -> Result<Option<Packed>, OpError> {
        let (b, dims) = (self.places().b, self.dims(cx)?);
        let Some(source) = cx.packable(b) else { return Ok(None) };
        let flip = flip(source.dtype(), FLIP);
        let packing = Packing::new([dims.k, dims.n], Unit::best());
        let (size, each) = (dims.k * dims.n, packing.bytes());
        let Some([k, n, tile]) = packing.numbers() else { return Ok(None) };
        let Some(bytes) = (source.info().bytes() / size.max(1)).checked_mul(each) else { return Ok(None) };
        let pack = move |source: &Tensor, to: &mut [u8]| {
            let matrices = source.bytes().chunks(size.max(1)).zip(to.chunks_mut(each.max(1)));
            par::share(matrices, |(rows, to)| packing.pack(rows, flip, to));
            Ok(())
        };
        let unpack = move |packed: &[u8], to: &mut [u8]| {
            let matrices = to.chunks_mut(size.max(1)).zip(packed.chunks(each.max(1)));
            par::share(matrices, |(to, packed)| packing.unpack(packed, flip, to));
        };
        Ok(Some(Packed {
            source: source.clone(),
            key: PackKey { layout: "panels of bytes", numbers: [k, n, tile, flip.into()] },
            bytes,
            pack: Arc::new(pack),
            optional: false,
            lines: None,
            in_place: None,
            unpack: Some(Arc::new(unpack)),
        }))
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
        if matches!(self.sums, SumsBecome::Bytes { .. }) { "QLinearMatMul" } else { "MatMulInteger" }
    }

    fn half_rule(&self) -> HalfRule {
        if matches!(self.sums, SumsBecome::Bytes { .. }) { HalfRule::default() } else { HalfRule::Full }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let p = self.places();
        let all = 8 + usize::from(self.biased);
        let counts = match self.sums {
            SumsBecome::Sums => 2..=4,
            SumsBecome::Bytes { .. } => all..=all,
            SumsBecome::Numbers { .. } => 2..=7,
        };
        cx.expect_counts(counts, 1..=1)?;
        let dtype = p.check_types(cx, &self.sums)?;
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
        if let Some(bias) = p.bias.filter(|i| cx.has(*i))
            && cx.input(bias)?.elements() != dims.n
        {
            return Err(cx.shape_error(bias, format!("{} elements", dims.n)));
        }
        Ok(vec![TensorInfo::new(dtype, dims.output)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.dims(cx).map_or(0, |d| d.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        self.call(cx, None)
    }

    fn cpu_on(&self, cx: &OpCx, _: &DeviceInfo) -> Result<Native, OpError> {
        let packed = self.pack_right(cx)?;
        let kernel = self.call(cx, packed.as_ref().map(|b| b.bytes))?;
        Ok(Native { kernel, packed: packed.map(|b| (self.places().b, b)).into_iter().collect() })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        device_product::matmul(cx, &self.places(), &self.dims(cx)?, &self.sums, lower)
    }

    fn with_activation(&self, activation: &Activation) -> Option<Arc<dyn Operator>> {
        let sums = self.sums.with_activation(activation)?;
        Some(Arc::new(QuantizedMatMul { sums, ..*self }))
    }

    fn absorb(&self, cx: &OpCx, next: &dyn Operator, next_cx: &OpCx, at: usize) -> Option<Absorbed> {
        let dims = self.dims(cx).ok()?;
        // A vector as B leaves no axis of columns.
        let columns = if cx.shape(self.places().b).ok()?.rank() < 2 { 1 } else { dims.n };
        let of_columns = |shape: &Shape| shape.elements() == columns && shape.last() == Some(&columns);
        let (sums, inputs) = absorbed(&self.sums, cx, (next, next_cx, at), of_columns)?;
        Some(Absorbed { op: Arc::new(QuantizedMatMul { sums, ..*self }), inputs })
    }

    fn absorb_before(
        &self,
        cx: &OpCx,
        at: usize,
        before: &dyn Operator,
        before_cx: &OpCx,
    ) -> Option<Absorbed> {
        let inputs = absorbed_scales(&self.places(), cx, at, before, before_cx)?;
        Some(Absorbed { op: Arc::new(*self), inputs })
    }
}

struct Call {
    places: Places,
    dims: Dims,
    inputs: Inputs,
    sums: SumsBecome,
    /// The output's type.
    to: DType,
    packing: Packing,
    /// Bytes of B, where it is given packed.
    packed: Option<usize>,
}

/// One of the products.
struct Pair<'a> {
    /// The numbers of the matrices.
    at: (usize, usize),
    left: &'a [u8],
    panels: Panels<'a>,
    threads: Threads,
}

/// The operands of a call.
struct Operands<'c, 'a> {
    call: &'c Call,
    a: &'a [u8],
    a_flip: u8,
    /// B as it is, or its panels.
    b: &'a [u8],
    panels: &'a [i32],
    b_flip: u8,
    zeros: Zeros<'c>,
}

impl<'c, 'a> Operands<'c, 'a> {
    fn read(call: &'c Call, args: &NativeArgs<'a, '_>) -> Result<Self, KernelError> {
        let (p, inputs) = (call.places, &call.inputs);
        let (a, a_flip) = inputs.bytes(args, p.a, 0)?;
        let b_flip = inputs.flip(p.b, FLIP)?;
        let (b, panels): (&[u8], &[i32]) = match call.packed {
            Some(_) => (&[], args.read::<i32>(p.b)?),
            None => (inputs.bytes(args, p.b, FLIP)?.0, &[]),
        };
        check_len(p.b, size_of_val(panels), call.packed.unwrap_or(0))?;
        let zeros = Zeros {
            dims: &call.dims,
            a: inputs.zeros(args, p.a_zero)?.whole(i32::from(a_flip)),
            b: inputs.zeros(args, p.b_zero)?.whole(-i32::from(b_flip)),
        };
        Ok(Operands { call, a, a_flip, b, panels, b_flip, zeros })
    }

    /// Makes the elements of every product by `finisher(its matrices)(row, column, sums, elements)`.
    fn finish<T, F>(&self, y: &mut [T], finisher: impl Fn((usize, usize)) -> F + Sync)
    where
        T: Copy + Default + Send,
        F: Fn(usize, usize, &mut [i32], &mut [T]) + Sync,
    {
        let &Dims { m, n, k, .. } = &self.call.dims;
        let (unit, packing, row) = (Unit::best(), &self.call.packing, k.next_multiple_of(4));
        let words = packing.bytes() / 4;
        // Rows of whole groups of unsigned bytes are read where they lie.
        let copied = self.a_flip != 0 || row != k;
        with_scratch(if copied { self.a.len() / k.max(1) * row } else { 0 }, |scratch| {
            if copied && k > 0 {
                pad_rows(self.a, k, self.a_flip, scratch);
            }
            let left = if copied { &*scratch } else { self.a };
            self.call.share(y, |at, y, threads| {
                let left = left.get(at.0 * m * row..).and_then(|l| l.get(..m * row)).unwrap_or(&[]);
                let made: Vec<i32>;
                let packed = match self.call.packed {
                    Some(_) => self.panels.get(at.1 * words..).unwrap_or(&[]),
                    None => {
                        made = pack_rows(packing, self.b.get(at.1 * k * n..).unwrap_or(&[]), self.b_flip);
                        &made
                    }
                };
                let pair = Pair { at, left, panels: Panels::new(packing, packed), threads };
                self.zeros.product(&pair, unit, y, finisher(at));
            });
        });
    }
}

/// The factors of one product's sums: one for all, one for each column, or other ones for each row.
struct Factors<'a> {
    rows: &'a Repeated,
    columns: &'a [f32],
    /// The first row's number in all matrices.
    first: usize,
    /// What all factors are divided by.
    by: f32,
    same: Option<Vec<f32>>,
}

impl<'a> Factors<'a> {
    fn new(rows: &'a Repeated, columns: &'a [f32], first: usize, by: f32) -> Self {
        let mut factors = Factors { rows, columns, first, by, same: None };
        factors.same = rows.is_one().then(|| factors.of(0));
        factors
    }

    fn of(&self, row: usize) -> Vec<f32> {
        let row = self.rows.at(self.first + row);
        self.columns.iter().map(|column| row * column / self.by).collect()
    }

    /// Calls `f` with those of row `row` from column `first` on.
    #[inline(always)]
    fn with(&self, row: usize, first: usize, f: impl FnOnce(&[f32])) {
        let from = |all: &[f32]| if all.len() == 1 { 0 } else { first };
        match &self.same {
            Some(all) => f(all.get(from(all)..).unwrap_or(&[])),
            None => {
                let all = self.of(row);
                f(all.get(from(&all)..).unwrap_or(&[]));
            }
        }
    }
}

impl Call {
    fn run(&self, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
        let operands = Operands::read(self, args)?;
        match self.sums {
            SumsBecome::Sums => self.sums(&operands, args),
            SumsBecome::Bytes { clamp } => self.bytes(&operands, clamp, args),
            SumsBecome::Numbers { activation } => self.numbers(&operands, Numbers { activation }, args),
        }
    }

    /// The output.
    fn output<'a, T: Element>(&self, args: &mut NativeArgs<'a, '_>) -> Result<&'a mut [T], KernelError> {
        let (at, elements) = (self.inputs.count(), self.dims.pairs.len() * self.dims.m * self.dims.n);
        let y = args.take_write::<T>(at)?;
        check_len(at, y.len(), elements)?;
        Ok(y)
    }

    /// The bias, empty where there is none.
    fn bias<'a, T: Element>(&self, args: &NativeArgs<'a, '_>) -> Result<&'a [T], KernelError> {
        self.places.bias.filter(|b| self.inputs.has(*b)).map_or(Ok(&[]), |i| args.read::<T>(i))
    }

    fn sums(&self, operands: &Operands<'_, '_>, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
        let y = self.output::<i32>(args)?;
        operands.finish(y, |_| {
            #[inline(always)]
            |_, _, sums, y| y.iter_mut().zip(sums).for_each(|(y, sum)| *y = *sum)
        });
        Ok(())
    }

    fn bytes(
        &self,
        operands: &Operands<'_, '_>,
        clamp: Option<[i32; 2]>,
        args: &mut NativeArgs<'_, '_>,
    ) -> Result<(), KernelError> {
        let (p, inputs, &Dims { m, n, .. }) = (self.places, &self.inputs, &self.dims);
        let (a_scale, b_scale) = (inputs.scales(args, p.a_scale)?, inputs.scales(args, p.b_scale)?);
        let y_scale = inputs.scales(args, p.y_scale)?.at(0);
        let zero = p.y_zero.map_or(Ok(0.0), |i| inputs.zeros(args, i).map(|z| z.at(0)))?;
        let to = Requantize { zero, range: range_of(self.to, clamp).unwrap_or_default() };
        let (bias, y) = (self.bias::<i32>(args)?, self.output::<u8>(args)?);
        operands.finish(y, |at| {
            let factors = Factors::new(&a_scale, b_scale.line(at.1 * n, n), at.0 * m, y_scale);
            #[inline(always)]
            move |r, first, sums, y| {
                let added = bias.get(first..).unwrap_or(&[]);
                sums.iter_mut().zip(added).for_each(|(sum, b)| *sum = sum.wrapping_add(*b));
                factors.with(r, first, |factors| to.bytes(sums, factors, y));
            }
        });
        Ok(())
    }

    fn numbers(
        &self,
        operands: &Operands<'_, '_>,
        to: Numbers,
        args: &mut NativeArgs<'_, '_>,
    ) -> Result<(), KernelError> {
        let (p, inputs, &Dims { m, n, .. }) = (self.places, &self.inputs, &self.dims);
        let (a_scale, b_scale) = (inputs.scales(args, p.a_scale)?, inputs.scales(args, p.b_scale)?);
        let (bias, y) = (self.bias::<f32>(args)?, self.output::<f32>(args)?);
        operands.finish(y, |at| {
            let factors = Factors::new(&a_scale, b_scale.line(at.1 * n, n), at.0 * m, 1.0);
            #[inline(always)]
            move |r, first, sums, y| {
                let bias = bias.get(first..).unwrap_or(&[]);
                factors.with(r, first, |factors| to.of(sums, factors, bias, y));
            }
        });
        Ok(())
    }

    /// Calls `f` for every product, several at a time where there are enough.
    fn share<T: Send>(&self, y: &mut [T], f: impl Fn((usize, usize), &mut [T], Threads) + Sync) {
        let (count, size) = (self.dims.pairs.len(), (self.dims.m * self.dims.n).max(1));
        let alone = count < par::threads();
        let threads = if alone { Threads::All } else { Threads::One };
        let one = |(i, y): (usize, &mut [T])| {
            f(self.dims.pairs.at(i), y, threads);
        };
        if alone {
            y.chunks_mut(size).enumerate().for_each(one);
        } else {
            par::share(y.chunks_mut(size).enumerate(), one);
        }
    }
}

/// The zero points of bytes as they are multiplied.
struct Zeros<'a> {
    dims: &'a Dims,
    a: Repeated<i32>,
    b: Repeated<i32>,
}

impl Zeros<'_> {
    /// The sums of one product.
    fn product<T: Copy + Default + Send>(
        &self,
        pair: &Pair<'_>,
        unit: Unit,
        y: &mut [T],
        finish: impl Fn(usize, usize, &mut [i32], &mut [T]) + Sync,
    ) {
        let &Dims { m, n, k, .. } = self.dims;
        let rows = if self.a.is_one() { 1 } else { m };
        let left_zeros: Vec<i32> = (0..rows).map(|r| self.a.at(pair.at.0 * m + r)).collect();
        let columns = self.b.line(pair.at.1 * n, n);
        let same = columns.first().copied().filter(|zero| columns.iter().all(|other| other == zero));
        let factors: Vec<i32> = if columns.iter().all(|zero| *zero == 0) {
            Vec::new()
        } else {
            let zero = |r: usize| left_zeros.get(if rows == 1 { 0 } else { r }).copied().unwrap_or(0);
            let sums = row_sums::<false>(pair.left, 4 * pair.panels.groups());
            let factor = |(r, sum)| (k as i32).wrapping_mul(zero(r)).wrapping_sub(sum);
            sums.into_iter().enumerate().map(factor).collect()
        };
        let starts: Vec<i32> = match same {
            Some(zero) => factors.iter().map(|factor| zero.wrapping_mul(*factor)).collect(),
            None => Vec::new(),
        };
        let right_zeros = if same.is_none() { Some((columns, factors.as_slice())) } else { None };
        let around = Around { rows: &starts, left_zeros: &left_zeros, right_zeros };
        let (left, groups) = (pair.left, pair.panels.groups());
        let product = Product { left, groups, right: &pair.panels, around, unit };
        product.run([m, n], y, n, pair.threads, finish);
    }
}

/// A matrix that is not constant, packed.
fn pack_rows(packing: &Packing, rows: &[u8], flip: u8) -> Vec<i32> {
    let mut words = vec![0; packing.bytes() / 4];
    packing.pack(rows, flip, bytemuck::cast_slice_mut(&mut words));
    words
}

/// Copies rows of `k` bytes, changed by `flip`, to rows of whole groups of four.
fn pad_rows(rows: &[u8], k: usize, flip: u8, to: &mut [u8]) {
    let row = k.next_multiple_of(4);
    let many = (1 << 16) / row + 1;
    par::share(rows.chunks(k * many).zip(to.chunks_mut(row * many)), |(from, to)| {
        wide(
            #[inline(always)]
            || {
                for (from, to) in from.chunks(k).zip(to.chunks_mut(row)) {
                    let (bytes, after) = to.split_at_mut(k);
                    bytes.iter_mut().zip(from).for_each(|(to, byte)| *to = byte ^ flip);
                    after.fill(0);
                }
            },
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::kernel::NativeArg;
    use crate::ops::test_util::facts;
    use crate::shape::Shape;

    fn bytes(dtype: DType, shape: &[usize], seed: usize) -> Tensor {
        let info = TensorInfo::new(dtype, Shape::new(shape).unwrap());
        let data: Vec<u8> = (0..info.elements()).map(|i| ((i * 7919 + seed) % 251) as u8).collect();
        Tensor::from_bytes(info, &data).unwrap()
    }

    fn run(kernel: &NativeKernel, inputs: &[&[u8]], sums: usize) -> Vec<i32> {
        let mut y = vec![i32::MIN; sums];
        let mut args: Vec<NativeArg<'_>> = inputs.iter().map(|bytes| NativeArg::Read(bytes)).collect();
        args.push(NativeArg::Write(bytemuck::cast_slice_mut(&mut y)));
        kernel.call(&mut NativeArgs::new(&mut args, &[])).unwrap();
        y
    }

    #[test]
    fn a_constant_is_packed_without_loss_and_read_so() {
        let op = QuantizedMatMul::default();
        let shapes: [(&[usize], &[usize]); 5] = [
            (&[5, 7], &[7, 49]),
            (&[1, 64], &[64, 16]),
            (&[3, 2, 9], &[3, 9, 33]),
            (&[2, 2, 9], &[9, 130]),
            (&[2, 1, 4, 5], &[3, 5, 1]),
        ];
        for (a, b) in shapes {
            for (dtype, seed) in [(DType::I8, 1), (DType::U8, 2)] {
                let (a, b) = (bytes(DType::U8, a, seed), bytes(dtype, b, seed + 5));
                let cx = facts(&op, &[Some(a.clone()), Some(b.clone())], 1).unwrap();
                let packed = op.pack_right(&cx).unwrap().unwrap();
                let mut words = vec![-1i32; packed.bytes / 4];
                (packed.pack)(&b, bytemuck::cast_slice_mut(&mut words)).unwrap();
                let mut back = vec![0; b.info().bytes()];
                packed.unpack.as_ref().unwrap()(bytemuck::cast_slice(&words), &mut back);
                assert_eq!(back, b.bytes());
                let sums = cx.outputs()[0].elements();
                let plain = run(&op.call(&cx, None).unwrap(), &[a.bytes(), b.bytes()], sums);
                let read = [a.bytes(), bytemuck::cast_slice(&words)];
                assert_eq!(run(&op.call(&cx, Some(packed.bytes)).unwrap(), &read, sums), plain);
            }
        }
        // Unknown or empty matrices are read unpacked.
        let unknown = [&[2usize, 3][..], &[3, 4]]
            .map(|shape| Some(crate::ops::Fact::of(TensorInfo::new(DType::U8, Shape::new(shape).unwrap()))));
        assert!(op.pack_right(&OpCx::for_infer(unknown.to_vec(), 1)).unwrap().is_none());
        let empty = facts(&op, &[Some(bytes(DType::U8, &[2, 0], 1)), Some(bytes(DType::U8, &[0, 3], 1))], 1);
        assert!(op.pack_right(&empty.unwrap()).unwrap().is_none());
    }
}
