//! com.microsoft's GatherBlockQuantized: slices of a table of codes as the numbers they stand for.

use std::sync::Arc;

use half::{bf16, f16};

use super::NUMBERS;
use super::elements::Numbers;
use super::grain::Grain;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::index::positions::{INDEX_TYPES, index_words, mapped, position};
use crate::ops::norm::Along;
use crate::ops::pointwise::cast::numbers;
use crate::ops::real::check_len;
use crate::ops::window::bad;
use crate::ops::word::word;
use crate::ops::{AttrReader, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::Shape;

/// The types of codes.
pub(super) const CODES: &[DType] = &[DType::U4, DType::I4, DType::U8];

// Positions of the inputs.
const DATA: usize = 0;
const INDICES: usize = 1;
const SCALES: usize = 2;
const ZEROS: usize = 3;

/// Scales that are read at a time.
const CHUNK: usize = 256;

/// Inputs: codes, indices, scales and zero points. Slices of the codes along one axis, each code as `(code - zero
/// point) * scale`; blocks along another axis have one scale. Codes in `uint8` are packed along the last axis, the
/// first one in the lowest bits, and so are their zero points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherBlockQuantized {
    /// The axis that indices are of.
    pub gather_axis: i64,
    /// The axis of blocks.
    pub quantize_axis: i64,
    /// Codes that share a scale.
    pub block: usize,
    /// Bits of a code in `uint8`: 2, 4 or 8.
    pub bits: usize,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let bits = attrs.int("bits", 4)?;
    let block = attrs.int("block_size", 128)?;
    Ok(Arc::new(GatherBlockQuantized {
        gather_axis: attrs.int("gather_axis", 0)?,
        quantize_axis: attrs.int("quantize_axis", 1)?,
        block: usize::try_from(block)
            .ok()
            .filter(|b| *b > 0)
            .ok_or_else(|| bad("block_size", format!("is {block}, expected at least 1")))?,
        bits: match bits {
            2 | 4 | 8 => bits as usize,
            _ => return Err(bad("bits", format!("is {bits}, expected 2, 4 or 8"))),
        },
    }))
}

/// The sizes of a call.
#[derive(Clone, Debug)]
struct Sizes {
    /// Slices before the axis of indices, its elements, and codes of a slice.
    outer: usize,
    size: usize,
    inner: usize,
    indices: usize,
    grain: Grain,
    /// Codes of a byte, and their bits.
    per: usize,
    bits: usize,
    /// Bytes of the codes and of the zero points.
    bytes: [usize; 2],
    /// Scales along the last axis.
    last: usize,
    /// The zero point where none is given.
    zero: f32,
    result: Shape,
}

impl GatherBlockQuantized {
    fn resolve(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        let data = cx.input(DATA)?;
        let axis = data.shape.axis(self.gather_axis)?;
        let packed = data.dtype == DType::U8;
        let (per, bits) = if packed { (8 / self.bits, self.bits) } else { (1, 8) };
        let mut dims = data.shape.to_vec();
        if let Some(last) = dims.last_mut() {
            *last *= per;
        }
        let q = data.shape.axis(self.quantize_axis)?;
        if axis == q || (packed && axis != 0) {
            return Err(bad("gather_axis", format!("is {axis}, blocks are along axis {q}")));
        }
        let along = Along::axes(&dims, q, q + 1);
        let blocks = along.len.div_ceil(self.block);
        let mut scales = dims.clone();
        scales[q] = blocks;
        if cx.shape(SCALES)?.dims() != scales {
            return Err(cx.shape_error(SCALES, format!("{scales:?}")));
        }
        let steps = [blocks * along.inner, along.inner, 1];
        let count: usize = scales.iter().product();
        let last = scales.last().copied().unwrap_or(1);
        let rows: usize = scales.iter().rev().skip(1).product();
        let zeros = rows * last.div_ceil(per);
        if cx.has(ZEROS) && cx.shape(ZEROS)?.elements() != zeros {
            return Err(cx.shape_error(ZEROS, format!("{zeros} elements")));
        }
        let mut result = dims[..axis].to_vec();
        result.extend_from_slice(cx.shape(INDICES)?);
        result.extend_from_slice(&dims[axis + 1..]);
        let result = Shape::new(result)?;
        if dims[axis] == 0 && result.elements() > 0 {
            return Err(cx.shape_error(DATA, "at least one element along the axis"));
        }
        Ok(Sizes {
            outer: dims[..axis].iter().product(),
            size: dims[axis],
            inner: dims[axis + 1..].iter().product(),
            indices: cx.shape(INDICES)?.elements(),
            grain: Grain { along, block: self.block, steps, scales: count },
            per,
            bits,
            bytes: [data.shape.elements(), zeros],
            last,
            zero: if packed { (1u32 << (bits - 1)) as f32 } else { 0.0 },
            result,
        })
    }
}

impl Operator for GatherBlockQuantized {
    fn name(&self) -> &'static str {
        "GatherBlockQuantized"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=4, 1..=1)?;
        let dtype = cx.dtype_of(DATA, CODES)?;
        cx.dtype_of(INDICES, INDEX_TYPES)?;
        if cx.has(ZEROS) {
            cx.expect_dtype(ZEROS, dtype)?;
        }
        Ok(vec![TensorInfo::new(cx.dtype_of(SCALES, NUMBERS)?, self.resolve(cx)?.result)])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let to = cx.dtype(SCALES)?;
        let (codes, indices, result) = (cx.dtype(DATA)?, cx.dtype(INDICES)?, cx.input_count());
        let call =
            Call { sizes: self.resolve(cx)?, codes, indices, scales: to, zeros: cx.has(ZEROS), result };
        Ok(NativeKernel::new(self.name(), move |args| match to {
            DType::F16 => call.run(args, f16::from_f32),
            DType::BF16 => call.run(args, bf16::from_f32),
            _ => call.run(args, |v| v),
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let s = self.resolve(cx)?;
        let kernel = variants::GatherBlock { t: cx.dtype(SCALES)? }.id()?;
        let n = s.result.elements();
        word(s.outer * s.size * s.inner)?;
        let constants = [
            (spec::gather_block::INDEX_WORDS, index_words(cx.dtype(INDICES)?)),
            (spec::gather_block::BITS, s.bits as u32),
            (spec::gather_block::SIGNED, u32::from(cx.dtype(DATA)? == DType::I4)),
            (spec::gather_block::ZERO, u32::from(cx.has(ZEROS))),
        ];
        let along = s.grain.along;
        let p = params::GatherBlock {
            n: word(n)?,
            inner: word(s.inner)?,
            indices: word(s.indices)?,
            size: word(s.size)?,
            q_len: word(along.len)?,
            q_inner: word(along.inner)?,
            q_block: word(s.grain.block)?,
            blocks: word(along.len.div_ceil(s.grain.block))?,
            last: word(s.last)?,
            zero: s.zero,
        };
        let zeros = if cx.has(ZEROS) { Operand::Input(ZEROS) } else { Operand::Unused };
        let [data, indices, scales] = [DATA, INDICES, SCALES].map(Operand::Input);
        lower.dispatch_1d(kernel, &constants, &[data, indices, scales, zeros, Operand::Output(0)], &p, n)
    }
}

struct Call {
    sizes: Sizes,
    codes: DType,
    indices: DType,
    scales: DType,
    zeros: bool,
    result: usize,
}

impl Call {
    fn run<D: bytemuck::Pod + Send>(
        &self,
        args: &mut NativeArgs<'_, '_>,
        to: impl Fn(f32) -> D + Sync,
    ) -> Result<(), KernelError> {
        let s = &self.sizes;
        let x = args.read::<u8>(DATA)?;
        check_len(DATA, x.len(), s.bytes[0])?;
        let at = mapped(args, INDICES, self.indices, |i| position(i, s.size))?;
        let scales = Numbers::read(args, SCALES, self.scales, s.grain.scales)?;
        let zeros = if self.zeros { Some(args.read::<u8>(ZEROS)?) } else { None };
        check_len(ZEROS, zeros.map_or(s.bytes[1], <[u8]>::len), s.bytes[1])?;
        let y = args.take_write::<D>(self.result)?;
        check_len(self.result, y.len(), s.result.elements())?;
        if y.is_empty() {
            return Ok(());
        }
        let table = numbers(self.codes);
        // The number of place `i` of a row of codes whose bytes begin at `first`.
        let number = |bytes: &[u8], first: usize, i: usize| {
            let byte = bytes.get(first + i / s.per).copied().unwrap_or(0);
            match s.per {
                1 => table[usize::from(byte)],
                per => f32::from(byte >> (i % per * s.bits) & ((1 << s.bits) - 1)),
            }
        };
        // A number is unpacked, moved and scaled.
        let work = 4 * y.len();
        par::rows(y, s.inner, work, |row, y| {
            let first = (row / at.len() * s.size + at[row % at.len()]) * s.inner;
            let mut buffer = [0f32; CHUNK];
            let mut done = 0;
            while done < y.len() {
                let run = s.grain.run(first + done);
                let len = run.len.min(y.len() - done).min(CHUNK);
                scales.load(run.scale, &mut buffer[..if run.step == 0 { 1 } else { len }]);
                for (i, y) in y[done..done + len].iter_mut().enumerate() {
                    let scale = run.scale + i * run.step;
                    let zero = zeros.map_or(s.zero, |z| {
                        number(z, scale / s.last * s.last.div_ceil(s.per), scale % s.last)
                    });
                    *y = to((number(x, 0, first + done + i) - zero) * buffer[i * run.step]);
                }
                done += len;
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, facts, run_cpu, tensor, tensor_of, values};

    fn check(op: GatherBlockQuantized, inputs: [Option<Tensor>; 4], want: &[f64]) {
        let given = &inputs[..if inputs[ZEROS].is_some() { 4 } else { 3 }];
        assert_near(&run_cpu(&op, given, 1).unwrap()[0], want, 1e-6);
        #[cfg(feature = "vulkan")]
        crate::ops::testing::check_op(&op, &inputs, 1e-6);
    }

    #[test]
    fn packed_codes_are_gathered_and_scaled() {
        // Five rows of 40 codes in blocks of 16: three scales a row, the last block is short.
        let (rows, width, block) = (5usize, 40usize, 16usize);
        let blocks = width.div_ceil(block);
        let picked = [3i64, -5, 1, 3];
        for (bits, zeros) in [(4, true), (4, false), (8, true), (2, false), (2, true)] {
            let per = 8 / bits;
            let bytes = |n: usize, seed| -> Vec<u8> {
                values(n, seed).iter().map(|v| (v * 127.0 + 128.0) as u8).collect()
            };
            let codes = bytes(rows * width / per, 1);
            let packed = bytes(rows * blocks.div_ceil(per), 2);
            let scales = tensor(&[rows, blocks], 3);
            let code = |bytes: &[u8], i: usize| -> f64 {
                f64::from(u32::from(bytes[i / per]) >> (i % per * bits) & ((1 << bits) - 1))
            };
            let s = scales.to_f32s().unwrap();
            let mut want = Vec::new();
            for (r, c) in picked.iter().flat_map(|r| (0..width).map(move |c| (*r, c))) {
                let r = r.rem_euclid(rows as i64) as usize;
                let zero = match zeros {
                    true => code(&packed[r * blocks.div_ceil(per)..], c / block),
                    false => f64::from(1 << (bits - 1)),
                };
                want.push((code(&codes, r * width + c) - zero) * f64::from(s[r * blocks + c / block]));
            }
            let inputs = [
                Some(Tensor::new([rows, width / per], &codes).unwrap()),
                Some(Tensor::new([2, 2], &picked).unwrap()),
                Some(scales),
                zeros.then(|| Tensor::new([rows, blocks.div_ceil(per)], &packed).unwrap()),
            ];
            check(GatherBlockQuantized { gather_axis: 0, quantize_axis: 1, block, bits }, inputs, &want);
        }
    }

    #[test]
    fn blocks_may_lie_along_any_other_axis() {
        // [2, 20, 3] gathered along the last axis, in blocks along the middle one.
        let codes: Vec<i8> = (0..120).map(|i| (i * 7 % 16) as i8 - 8).collect();
        let info = TensorInfo::new(DType::I4, Shape::new([2, 20, 3]).unwrap());
        let data = Tensor::from_bytes(info, bytemuck::cast_slice(&codes)).unwrap();
        let scales = tensor_of(&[2, 2, 3], &values(12, 4), |v| v);
        let s = scales.to_f32s().unwrap();
        let mut want = Vec::new();
        for (o, q, k) in (0..80).map(|n| (n / 40, n / 2 % 20, [2, 0][n % 2])) {
            let scale = s[(o * 2 + q / 16) * 3 + k];
            want.push(f64::from(codes[(o * 20 + q) * 3 + k]) * f64::from(scale));
        }
        let inputs = [Some(data), Some(Tensor::new([2], &[2i32, 0]).unwrap()), Some(scales), None];
        let op = GatherBlockQuantized { gather_axis: -1, quantize_axis: 1, block: 16, bits: 4 };
        check(op, inputs.clone(), &want);
        let along = GatherBlockQuantized { gather_axis: 1, ..op };
        assert!(facts(&along, &inputs, 1).is_err());
    }
}
