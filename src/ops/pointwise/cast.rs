//! Cast: elements in another type.
//!
//! Numbers become integers by cutting off and keep within the type's range (NaN becomes 0), those of less
//! than 8 bits get the low bits of that; integers become narrower ones by their low bits; whatever is not 0
//! becomes true; floats round to the nearest, ties to even. What narrow floats do with numbers beyond their
//! range is in ONNX's operator description of Cast, its two tables of float 8 types and that of FLOAT8E8M0.

use std::sync::Arc;

use half::{bf16, f16};

use super::apply::{input, map, output};
use crate::dtype::{DType, Element, Format, Overflow, Rounding};
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::halves::{self, Half};
use crate::ops::{AttrReader, HalfRule, Lowering, OpCx, OpError, Operand, Operator, Structure, par};
use crate::simd::wide;

/// The behaviour of narrow floats that others lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NarrowRules {
    /// Numbers beyond the largest one.
    pub overflow: Overflow,
    /// Numbers between two powers of two, where these are all there is.
    pub rounding: Rounding,
}

impl Default for NarrowRules {
    fn default() -> Self {
        NarrowRules { overflow: Overflow::Saturate, rounding: Rounding::Up }
    }
}

impl NarrowRules {
    /// The rules that a Cast says.
    fn read(attrs: &AttrReader<'_>) -> Result<Self, OpError> {
        let overflow = if attrs.int("saturate", 1)? != 0 { Overflow::Saturate } else { Overflow::Special };
        let words = [("up", Rounding::Up), ("down", Rounding::Down), ("nearest", Rounding::Nearest)];
        Ok(NarrowRules { overflow, rounding: attrs.choice("round_mode", Rounding::Up, &words)? })
    }
}

/// Elements of the input in another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// The output's type; `None` takes that of input 1 (CastLike).
    pub to: Option<DType>,
    /// The behaviour of narrow floats.
    pub rules: NarrowRules,
    /// Whether finite `float32` numbers beyond the range of `float16` become ones well inside it, with their signs.
    pub bounded: bool,
}

/// The largest `float16`.
pub(crate) const LARGEST: f32 = 65504.0;
/// What takes the place of what is beyond it: sums of two, or of one and a score, are still in the range, where the
/// softmax of nothing but infinities would be no number.
const BEYOND: f32 = 32768.0;

/// `v`, or a number with its sign that stands for what `float16` has no number for.
pub(crate) fn within(v: f32) -> f32 {
    if v.is_finite() && v.abs() > LARGEST { BEYOND.copysign(v) } else { v }
}

/// A conversion from `float32` to `float16` by which masks of -1e9 stay finite.
pub(crate) fn cast_within() -> Arc<dyn Operator> {
    Arc::new(Cast { to: Some(DType::F16), rules: NarrowRules::default(), bounded: true })
}

pub(super) fn read(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let rules = NarrowRules::read(attrs)?;
    // Operator set 1 has the type by its name.
    let named = if opset < 6 { attrs.str_opt("to")? } else { None };
    let to =
        match named {
            Some(name) => Some(first_named(name).ok_or_else(|| {
                attrs.error("to", format!("is element type {name:?}, which is not supported"))
            })?),
            None => attrs.dtype_opt("to")?,
        };
    let to = to.ok_or_else(|| attrs.error("to", "is missing"))?;
    Ok(Arc::new(Cast { to: Some(to), rules, bounded: false }))
}

pub(super) fn read_like(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Cast { to: None, rules: NarrowRules::read(attrs)?, bounded: false }))
}

/// The types that operator set 1 knows, by their names there.
fn first_named(name: &str) -> Option<DType> {
    Some(match name {
        "FLOAT" => DType::F32,
        "DOUBLE" => DType::F64,
        _ => DType::COMPUTE.into_iter().find(|d| *d != DType::BF16 && d.name().eq_ignore_ascii_case(name))?,
    })
}

/// A conversion to `to`.
pub fn cast(to: DType) -> Arc<dyn Operator> {
    Arc::new(Cast { to: Some(to), rules: NarrowRules::default(), bounded: false })
}

impl Operator for Cast {
    fn name(&self) -> &'static str {
        if self.to.is_some() { "Cast" } else { "CastLike" }
    }

    fn structure(&self) -> Option<Structure<'_>> {
        (!self.bounded).then_some(Structure::Cast)
    }

    fn half_rule(&self) -> HalfRule {
        HalfRule::Full
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let inputs = if self.to.is_some() { 1 } else { 2 };
        cx.expect_counts(inputs..=inputs, 1..=1)?;
        let to = self.to.map_or_else(|| cx.dtype(1), Ok)?;
        Ok(vec![TensorInfo::new(to, cx.shape(0)?.clone())])
    }

    fn alias(&self, cx: &OpCx) -> Option<usize> {
        let to = cx.outputs().first()?.dtype;
        (cx.dtype(0).ok()? == to).then_some(0)
    }

    fn in_place(&self, cx: &OpCx) -> Option<usize> {
        let to = cx.outputs().first()?.dtype;
        (cx.dtype(0).ok()?.bytes() == to.bytes()).then_some(0)
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (from, to, n) = (cx.dtype(0)?, cx.output(0)?.dtype, cx.output(0)?.elements());
        let result = cx.input_count();
        let convert = match (self.bounded, from, to) {
            (true, DType::F32, DType::F16) => convert::<f32, f16>(|v| Half::nearest(within(v))),
            _ => conversion(from, to, self.rules),
        };
        Ok(NativeKernel::new(self.name(), move |args| convert(args, result, n)))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (x, y) = (cx.input(0)?, cx.output(0)?);
        let args = [Operand::Input(0), Operand::Output(0)];
        dispatch_as(lower, [x.dtype, y.dtype], x.elements(), args, self.bounded)
    }
}

/// Emits the conversion of `n` elements.
pub(crate) fn dispatch(
    lower: &mut Lowering<'_>,
    from: DType,
    to: DType,
    n: usize,
    x: Operand,
    y: Operand,
) -> Result<(), OpError> {
    dispatch_as(lower, [from, to], n, [x, y], false)
}

fn dispatch_as(
    lower: &mut Lowering<'_>,
    [from, to]: [DType; 2],
    n: usize,
    [x, y]: [Operand; 2],
    bounded: bool,
) -> Result<(), OpError> {
    if from == to {
        lower.copy((x, 0), (y, 0), (n * from.bytes()) as u64);
        return Ok(());
    }
    let fail = || OpError::unsupported(format!("Cast from {from} to {to} on the device"));
    let kernel = variants::Cast { s: from, d: to }.id()?;
    let params = params::Cast { n: u32::try_from(n).map_err(|_| fail())? };
    let constants = [(spec::cast::BOUNDED, u32::from(bounded))];
    lower.dispatch_1d(kernel, &constants, &[x, y], &params, n)?;
    lower.writes_in_order(to.bytes());
    Ok(())
}

type Convert = Box<dyn Fn(&mut NativeArgs<'_, '_>, usize, usize) -> Result<(), KernelError> + Send + Sync>;

fn convert<S: Element, D: Element>(f: impl Fn(S) -> D + Send + Sync + 'static) -> Convert {
    Box::new(move |args, result, n| {
        let x = input::<S>(args, 0, n)?;
        map(x, output(args, result, n)?, &f);
        Ok(())
    })
}

/// As [`convert`] to integers of no more than 32 bits within `range`, by the widest vectors of the CPU.
fn convert_to_i32<D: Element>(
    range: std::ops::RangeInclusive<i32>,
    narrow: impl Fn(i32) -> D + Send + Sync + 'static,
) -> Convert {
    let (low, high) = range.into_inner();
    Box::new(move |args, result, n| {
        let x = input::<f32>(args, 0, n)?;
        par::parts(output(args, result, n)?, |start, part| {
            let x = x.get(start..).unwrap_or(&[]);
            wide(
                #[inline(always)]
                || {
                    for (y, x) in part.iter_mut().zip(x) {
                        *y = narrow(cut_off(*x).max(low).min(high));
                    }
                },
            );
        });
        Ok(())
    })
}

/// `v as i32`, in operations that compilers make vectors of, which they do not of that.
#[inline(always)]
fn cut_off(v: f32) -> i32 {
    let bits = v.to_bits();
    let exponent = bits >> 23 & 0xff;
    let mantissa = bits & 0x7f_ffff | 0x80_0000;
    // A number is its mantissa times 2^(exponent - 150); no more than one of both shifts moves it.
    let right = 150u32.saturating_sub(exponent).min(31);
    let left = exponent.saturating_sub(150).min(31);
    let magnitude = (mantissa >> right << left) as i32;
    let sign = bits as i32 >> 31;
    let beyond = if v.is_nan() { 0 } else { i32::MAX ^ sign };
    // From 2^31 on.
    if exponent >= 158 { beyond } else { (magnitude ^ sign).wrapping_sub(sign) }
}

/// The encoding of a narrow type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Code {
    /// A float.
    Float(Format, Overflow),
    /// A power of two.
    Power(NarrowRules),
    /// An integer of so many bits.
    Signed(u32),
    /// An integer of so many bits.
    Unsigned(u32),
}

impl Code {
    /// The code of `to`'s elements, if it is narrow.
    pub(crate) fn of(to: DType, rules: NarrowRules) -> Option<Code> {
        let bits = to.bits() as u32;
        Some(match (to, to.format()) {
            (DType::F8E8M0, _) => Code::Power(rules),
            (_, Some(format)) => Code::Float(format, rules.overflow),
            (DType::I4 | DType::I2, _) => Code::Signed(bits),
            (DType::U4 | DType::U2, _) => Code::Unsigned(bits),
            _ => return None,
        })
    }

    /// The byte that holds the number `v`, which cut off is `whole`.
    pub(crate) fn byte(self, v: f64, whole: i64) -> u8 {
        match self {
            Code::Float(format, overflow) => format.encode(v, overflow) as u8,
            Code::Power(rules) => Format::power(v as f32, rules.overflow, rules.rounding),
            Code::Signed(bits) => sign_extended(whole as u8, bits),
            Code::Unsigned(bits) => (whole as u8) & (0xFF >> (8 - bits)),
        }
    }
}

/// The lowest `bits` bits, the upper ones made equal to the highest of them.
fn sign_extended(byte: u8, bits: u32) -> u8 {
    ((byte << (8 - bits)) as i8 >> (8 - bits)) as u8
}

/// The numbers that the bytes of elements of a narrow type stand for.
pub(crate) fn numbers(from: DType) -> [f32; 256] {
    let signed = matches!(from, DType::I4 | DType::I2);
    std::array::from_fn(|byte| match from.format() {
        Some(format) => format.decode(byte as u16),
        None if signed => f32::from(sign_extended(byte as u8, from.bits() as u32) as i8),
        None => f32::from(byte as u8 & (0xFF >> (8 - from.bits()))),
    })
}

/// Conversions of one source type, whose elements `$load` turns into a primitive number.
macro_rules! from_type {
    ($s:ty, $to:expr, $rules:expr, |$v:ident| $load:expr) => {
        match $to {
            DType::F32 => convert::<$s, f32>(move |$v| $load as f32),
            DType::F16 => convert::<$s, f16>(move |$v| f16::from_f64($load as f64)),
            DType::BF16 => convert::<$s, bf16>(move |$v| to_bf16($load as f64)),
            DType::F64 => convert::<$s, f64>(move |$v| $load as f64),
            DType::I8 => convert::<$s, i8>(move |$v| $load as i8),
            DType::I16 => convert::<$s, i16>(move |$v| $load as i16),
            DType::I32 => convert::<$s, i32>(move |$v| $load as i32),
            DType::I64 => convert::<$s, i64>(move |$v| $load as i64),
            DType::U8 => convert::<$s, u8>(move |$v| $load as u8),
            DType::U16 => convert::<$s, u16>(move |$v| $load as u16),
            DType::U32 => convert::<$s, u32>(move |$v| $load as u32),
            DType::U64 => convert::<$s, u64>(move |$v| $load as u64),
            to => match Code::of(to, $rules) {
                Some(code) => convert::<$s, u8>(move |$v| {
                    let number = $load;
                    code.byte(number as f64, number as i64)
                }),
                None => convert::<$s, u8>(move |$v| u8::from($load as f64 != 0.0)),
            },
        }
    };
}

/// The nearest bfloat16, rounded once.
fn to_bf16(v: f64) -> bf16 {
    bf16::from_bits(Format::BFLOAT16.encode(v, Overflow::Special))
}

fn conversion(from: DType, to: DType, rules: NarrowRules) -> Convert {
    match (from, to) {
        // The conversions of half-precision models, by the processor's instructions where it has them.
        (DType::F16, DType::F32) => Box::new(|args, result, n| {
            halves::widen(input::<f16>(args, 0, n)?, output(args, result, n)?);
            Ok(())
        }),
        (DType::F32, DType::F16) => Box::new(|args, result, n| {
            halves::round(input::<f32>(args, 0, n)?, output::<f16>(args, result, n)?);
            Ok(())
        }),
        // Rounded once, which the processor's conversion by way of binary32 is not.
        (DType::F64, DType::F16) => {
            convert::<f64, f16>(|v| f16::from_bits(Format::BINARY16.encode(v, Overflow::Special)))
        }
        (DType::F32, DType::BF16) => convert::<f32, bf16>(bf16::from_f32),
        (DType::F32, DType::I32) => convert_to_i32(i32::MIN..=i32::MAX, |v| v),
        (DType::F32, DType::U8) => convert_to_i32(0..=255, |v| v as u8),
        (DType::F32, DType::I8) => convert_to_i32(-128..=127, |v| v as i8),
        (DType::F32, to) => from_type!(f32, to, rules, |v| v),
        (DType::F16, to) => from_type!(f16, to, rules, |v| v.to_f32()),
        (DType::BF16, to) => from_type!(bf16, to, rules, |v| v.to_f32()),
        (DType::F64, to) => from_type!(f64, to, rules, |v| v),
        (DType::I8, to) => from_type!(i8, to, rules, |v| v),
        (DType::I16, to) => from_type!(i16, to, rules, |v| v),
        (DType::I32, to) => from_type!(i32, to, rules, |v| v),
        (DType::I64, to) => from_type!(i64, to, rules, |v| v),
        (DType::U8 | DType::Bool, to) => from_type!(u8, to, rules, |v| v),
        (DType::U16, to) => from_type!(u16, to, rules, |v| v),
        (DType::U32, to) => from_type!(u32, to, rules, |v| v),
        (DType::U64, to) => from_type!(u64, to, rules, |v| v),
        (DType::I4 | DType::I2, to) => {
            let bits = from.bits() as u32;
            from_type!(u8, to, rules, |v| sign_extended(v, bits) as i8)
        }
        (DType::U4 | DType::U2, to) => {
            let mask = 0xFFu8 >> (8 - from.bits());
            from_type!(u8, to, rules, |v| v & mask)
        }
        (narrow, to) => {
            let table = numbers(narrow);
            from_type!(u8, to, rules, |v| table[usize::from(v)])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::cut_off;

    /// All exponents with the ends of their mantissas, both signs, and what is no number.
    #[test]
    fn numbers_are_cut_off_as_the_language_does() {
        for exponent in 0..=255u32 {
            for mantissa in [0, 1, 0x40_0000, 0x7f_ff00, 0x7f_ffff, 0x2a_aaaa] {
                for sign in [0, 1 << 31] {
                    let v = f32::from_bits(sign | exponent << 23 | mantissa);
                    assert_eq!(cut_off(v), v as i32, "{v:e}");
                }
            }
        }
    }
}
