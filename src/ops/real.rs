//! Native functions over every floating-point type, written once.
//!
//! A [`RealKernel`] computes in `f32` or `f64`; arguments of the half types are widened to `f32` before
//! and rounded after it.

use std::borrow::Cow;
use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};
use std::sync::Arc;

use half::{bf16, f16};

use super::halves::{self, Half};
use super::{Activation, OpCx, OpError};
use crate::dtype::{DType, Element};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::spirv::math;
use crate::spirv::wide::wide;

/// The floating-point types.
pub(crate) const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::F64];

/// `f32` and `f64`.
pub(crate) trait Real:
    Element
    + PartialOrd
    + Default
    + Debug
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
    + Sum
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// The smallest value, negative infinity.
    const LOWEST: Self;
    /// The nearest value.
    fn from_f64(v: f64) -> Self;
    /// Exactly this value.
    fn to_f64(self) -> f64;
    /// `e^x`.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// The absolute value.
    fn abs(self) -> Self;
    /// `x^e`.
    fn powf(self, e: Self) -> Self;
    /// The value that `activation` maps this one to.
    fn activate(self, activation: &Activation) -> Self;
}

macro_rules! real {
    ($t:ty, $exp:path, |$x:ident, $a:ident| $activate:expr) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = <$t>::NEG_INFINITY;
            #[inline(always)]
            fn from_f64(v: f64) -> Self {
                v as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self.into()
            }
            #[inline(always)]
            fn exp(self) -> Self {
                $exp(self)
            }
            fn ln(self) -> Self {
                <$t>::ln(self)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
            #[inline(always)]
            fn abs(self) -> Self {
                <$t>::abs(self)
            }
            fn powf(self, e: Self) -> Self {
                <$t>::powf(self, e)
            }
            #[inline(always)]
            fn activate(self, $a: &Activation) -> Self {
                let $x = self;
                $activate
            }
        }
    };
}

real!(f32, exp_f32, |x, a| a.apply(x));
real!(f64, f64::exp, |x, a| activate_f64(a, x));

/// `e^x` to two units in the last place, without a branch or a call, so that loops over it vectorize.
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let bounded = x.clamp(-87.33, 88.72);
    let rounded = bounded * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    // ln 2 in two parts, so that the product with the first is exact.
    let r = (bounded - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut p = 1.987_569_2e-4_f32;
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + c;
    }
    let y = p * r * r + r + 1.0;
    // Two factors, because 2^128 is none.
    let half = rounded.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let (a, b) = (half >> 1, half - (half >> 1));
    let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    let scaled = y * power(a) * power(b);
    let low = if x < -87.33 { 0.0 } else { scaled };
    if x > 88.72 { f32::INFINITY } else { low }
}

fn activate_f64(activation: &Activation, x: f64) -> f64 {
    let floor = |x: f64, low: f64| if x < low { low } else { x };
    let ceil = |x: f64, high: f64| if x > high { high } else { x };
    match *activation {
        Activation::None => x,
        Activation::Relu => floor(x, 0.0),
        Activation::LeakyRelu { slope } => {
            if x < 0.0 {
                f64::from(slope) * x
            } else {
                x
            }
        }
        Activation::Clip { low, high } => ceil(floor(x, low.into()), high.into()),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
        Activation::HardSigmoid { alpha, beta } => (f64::from(alpha) * x + f64::from(beta)).clamp(0.0, 1.0),
        Activation::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + math::erf_f64(x * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            let slope = (2.0 / std::f64::consts::PI).sqrt();
            0.5 * x * (1.0 + (slope * (x + 0.044715 * x * x * x)).tanh())
        }
    }
}

/// Applies `activation` to every element.
pub(crate) fn activate_all<T: Real>(activation: &Activation, values: &mut [T]) {
    if *activation != Activation::None {
        wide(
            #[inline(always)]
            || activate_in(activation, values),
        );
    }
}

/// One loop for each kind, without a branch on it, for the vectorizer.
#[inline(always)]
pub(crate) fn activate_in<T: Real>(activation: &Activation, values: &mut [T]) {
    match *activation {
        Activation::None => {}
        Activation::Relu => each(values, Activation::Relu),
        Activation::LeakyRelu { slope } => each(values, Activation::LeakyRelu { slope }),
        Activation::Clip { low, high } => each(values, Activation::Clip { low, high }),
        Activation::Sigmoid => each(values, Activation::Sigmoid),
        Activation::Tanh => each(values, Activation::Tanh),
        Activation::HardSigmoid { alpha, beta } => each(values, Activation::HardSigmoid { alpha, beta }),
        Activation::HardSwish => each(values, Activation::HardSwish),
        Activation::Silu => each(values, Activation::Silu),
        Activation::Gelu => each(values, Activation::Gelu),
        Activation::GeluTanh => each(values, Activation::GeluTanh),
    }
}

#[inline(always)]
fn each<T: Real>(values: &mut [T], activation: Activation) {
    for v in values {
        *v = v.activate(&activation);
    }
}

/// A native function over any floating-point type.
pub(crate) trait RealKernel: Send + Sync + 'static {
    /// Inputs that are not widened where they are `float16`: those of [`RealInputs::half`].
    const HALF: &'static [usize] = &[];

    /// Computes the outputs from the inputs.
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError>;
}

/// The arguments of one call as slices of the type that is computed in.
pub(crate) struct RealIo<'a, T: Real> {
    inputs: Vec<Option<Cow<'a, [T]>>>,
    /// Inputs that stay as they are.
    halves: Vec<(usize, &'a [f16])>,
    /// Inputs of other than float types.
    others: Vec<Option<&'a [u8]>>,
    outputs: Vec<Output<'a, T>>,
}

enum Output<'a, T> {
    Absent,
    Direct(&'a mut [T]),
    F32(Vec<T>, &'a mut [f32]),
    F16(Vec<T>, &'a mut [f16]),
    Bf16(Vec<T>, &'a mut [bf16]),
}

impl<T: Real> RealIo<'_, T> {
    /// Output `index` of `len` elements, with the inputs; for kernels of one output.
    pub(crate) fn output(
        &mut self,
        index: usize,
        len: usize,
    ) -> Result<(&mut [T], RealInputs<'_, T>), KernelError> {
        let (inputs, outputs) = (&self.inputs, &mut self.outputs);
        let out = outputs.get_mut(index).and_then(Output::slice);
        let out = out.ok_or(KernelError::Absent { index: inputs.len() + index })?;
        check_len(inputs.len() + index, out.len(), len)?;
        Ok((out, RealInputs { floats: inputs, halves: &self.halves, others: &self.others }))
    }

    /// The first `N` outputs, absent ones `None`, with the inputs.
    pub(crate) fn outputs<const N: usize>(&mut self) -> ([Option<&mut [T]>; N], RealInputs<'_, T>) {
        let mut outputs = self.outputs.iter_mut();
        let outputs = std::array::from_fn(|_| outputs.next().and_then(Output::slice));
        (outputs, RealInputs { floats: &self.inputs, halves: &self.halves, others: &self.others })
    }
}

/// The inputs of one call.
pub(crate) struct RealInputs<'c, T: Real> {
    floats: &'c [Option<Cow<'c, [T]>>],
    halves: &'c [(usize, &'c [f16])],
    others: &'c [Option<&'c [u8]>],
}

impl<'c, T: Real> RealInputs<'c, T> {
    /// Input `index`, of `len` elements.
    pub(crate) fn get(&self, index: usize, len: usize) -> Result<&'c [T], KernelError> {
        self.get_opt(index, len)?.ok_or(KernelError::Absent { index })
    }

    /// Input `index`, of `len` elements, if it was given.
    pub(crate) fn get_opt(&self, index: usize, len: usize) -> Result<Option<&'c [T]>, KernelError> {
        match self.floats.get(index).and_then(Option::as_deref) {
            None => Ok(None),
            Some(slice) => check_len(index, slice.len(), len).map(|()| Some(slice)),
        }
    }

    /// Input `index` of `len` elements, where it is one of [`RealKernel::HALF`] and stays `float16`. What is computed
    /// in is `f32` then.
    pub(crate) fn half(&self, index: usize, len: usize) -> Result<Option<&'c [f16]>, KernelError> {
        match self.halves.iter().find(|(i, _)| *i == index) {
            None => Ok(None),
            Some((_, slice)) => check_len(index, slice.len(), len).map(|()| Some(*slice)),
        }
    }

    /// Input `index` of `len` elements of a type that is no float, if it was given.
    pub(crate) fn raw_opt<E: Element>(
        &self,
        index: usize,
        len: usize,
    ) -> Result<Option<&'c [E]>, KernelError> {
        let Some(bytes) = self.others.get(index).copied().flatten() else { return Ok(None) };
        let slice: &[E] = bytemuck::try_cast_slice(bytes).map_err(|e| KernelError::View {
            index,
            bytes: bytes.len(),
            element_bytes: size_of::<E>(),
            problem: e.to_string(),
        })?;
        check_len(index, slice.len(), len).map(|()| Some(slice))
    }
}

impl<T> Output<'_, T> {
    fn slice(&mut self) -> Option<&mut [T]> {
        match self {
            Output::Absent => None,
            Output::Direct(s) => Some(s),
            Output::F32(s, _) | Output::F16(s, _) | Output::Bf16(s, _) => Some(s),
        }
    }
}

/// Checks that an argument has the elements that inference promised.
pub(crate) fn check_len(index: usize, got: usize, expected: usize) -> Result<(), KernelError> {
    if got == expected {
        return Ok(());
    }
    Err(KernelError::Value { what: format!("argument {index} has {got} elements, expected {expected}") })
}

/// A native kernel from `kernel` for the types of `cx`. Inputs of other than float types are found through
/// [`RealInputs::raw_opt`] only.
///
/// # Errors
/// [`OpError::Unsupported`] where an output is of another type.
pub(crate) fn real_kernel<K: RealKernel>(
    name: &'static str,
    cx: &OpCx,
    kernel: K,
) -> Result<NativeKernel, OpError> {
    let kernel = Arc::new(kernel);
    real_kernel_with(name, cx, move |_| Ok(kernel.clone()))
}

/// As [`real_kernel`], for a kernel that every call makes of the arguments that are no floats (indices).
///
/// # Errors
/// As [`real_kernel`].
pub(crate) fn real_kernel_with<K: RealKernel>(
    name: &'static str,
    cx: &OpCx,
    make: impl Fn(&NativeArgs<'_, '_>) -> Result<Arc<K>, KernelError> + Send + Sync + 'static,
) -> Result<NativeKernel, OpError> {
    let inputs: Vec<Option<DType>> =
        (0..cx.input_count()).map(|i| cx.input_opt(i).map(|t| t.dtype).filter(|d| d.is_float())).collect();
    let outputs: Vec<DType> = cx.outputs().iter().map(|o| o.dtype).collect();
    if let Some(d) = outputs.iter().find(|d| !d.is_float()) {
        return Err(OpError::unsupported(format!("{name} of {d}")));
    }
    let wide = inputs.iter().flatten().chain(&outputs).any(|d| *d == DType::F64);
    Ok(NativeKernel::new(name, move |args| {
        let kernel = make(args)?;
        if wide {
            call::<f64, K>(&kernel, args, &inputs, &outputs)
        } else {
            call::<f32, K>(&kernel, args, &inputs, &outputs)
        }
    }))
}

fn call<T: Real, K: RealKernel>(
    kernel: &K,
    args: &mut NativeArgs<'_, '_>,
    inputs: &[Option<DType>],
    outputs: &[DType],
) -> Result<(), KernelError> {
    let mut io = RealIo {
        inputs: Vec::with_capacity(inputs.len()),
        halves: Vec::new(),
        others: Vec::new(),
        outputs: Vec::new(),
    };
    for (i, dtype) in inputs.iter().enumerate() {
        let mut given = dtype.filter(|_| args.has(i));
        if given == Some(DType::F16) && T::DTYPE == DType::F32 && K::HALF.contains(&i) {
            io.halves.push((i, args.read::<f16>(i)?));
            given = None;
        }
        io.inputs.push(given.map(|d| read::<T>(args, i, d)).transpose()?);
        io.others.push(if dtype.is_none() { args.read_opt::<u8>(i)? } else { None });
    }
    for (o, &dtype) in outputs.iter().enumerate() {
        let index = inputs.len() + o;
        io.outputs.push(if !args.has(index) {
            Output::Absent
        } else if dtype == DType::F16 {
            let raw = args.take_write::<f16>(index)?;
            Output::F16(vec![T::ZERO; raw.len()], raw)
        } else if dtype == DType::BF16 {
            let raw = args.take_write::<bf16>(index)?;
            Output::Bf16(vec![T::ZERO; raw.len()], raw)
        } else if dtype == DType::F32 && T::DTYPE != DType::F32 {
            let raw = args.take_write::<f32>(index)?;
            Output::F32(vec![T::ZERO; raw.len()], raw)
        } else {
            Output::Direct(args.take_write::<T>(index)?)
        });
    }
    kernel.run(&mut io)?;
    for output in io.outputs {
        match output {
            Output::F32(values, raw) => {
                raw.iter_mut().zip(values).for_each(|(r, v)| *r = v.to_f64() as f32);
            }
            Output::F16(values, raw) => round(&values, raw, f16::from_f64),
            Output::Bf16(values, raw) => round(&values, raw, bf16::from_f64),
            Output::Absent | Output::Direct(_) => {}
        }
    }
    Ok(())
}

/// All of `from` as the type that is computed in.
pub(crate) fn widened<'a, T: Real, H: Half>(from: &[H]) -> Cow<'a, [T]> {
    let mut to = vec![T::ZERO; from.len()];
    match as_f32s_mut(&mut to) {
        Some(to) => halves::widen(from, to),
        None => to.iter_mut().zip(from).for_each(|(to, from)| *to = T::from_f64(from.widen().into())),
    }
    Cow::Owned(to)
}

/// Rounds once: `one` is for what is computed in `f64`.
fn round<T: Real, H: Half>(from: &[T], to: &mut [H], one: impl Fn(f64) -> H) {
    match as_f32s(from) {
        Some(from) => halves::round(from, to),
        None => to.iter_mut().zip(from).for_each(|(to, from)| *to = one(from.to_f64())),
    }
}

/// The elements as what they are, where they are `f32`.
pub(crate) fn as_f32s<T: Element>(values: &[T]) -> Option<&[f32]> {
    (T::DTYPE == DType::F32).then(|| bytemuck::try_cast_slice(values).ok()).flatten()
}

/// As [`as_f32s`], to write.
pub(crate) fn as_f32s_mut<T: Element>(values: &mut [T]) -> Option<&mut [f32]> {
    (T::DTYPE == DType::F32).then(|| bytemuck::try_cast_slice_mut(values).ok()).flatten()
}

fn read<'a, T: Real>(
    args: &NativeArgs<'a, '_>,
    index: usize,
    dtype: DType,
) -> Result<Cow<'a, [T]>, KernelError> {
    Ok(match dtype {
        d if d == T::DTYPE => Cow::Borrowed(args.read::<T>(index)?),
        DType::F16 => widened(args.read::<f16>(index)?),
        DType::BF16 => widened(args.read::<bf16>(index)?),
        DType::F32 => args.read::<f32>(index)?.iter().map(|v| T::from_f64((*v).into())).collect(),
        _ => args.read::<f64>(index)?.iter().map(|v| T::from_f64(*v)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_near_the_exact_one() {
        for i in -9000..=9000 {
            let x = i as f32 * 0.01;
            let (got, want) = (f64::from(exp_f32(x)), f64::from(x).exp());
            if (-87.3..88.7).contains(&x) {
                assert!((got / want - 1.0).abs() < 3e-7, "exp({x}) = {got}, expected {want}");
            }
        }
        assert_eq!(exp_f32(0.0), 1.0);
        assert_eq!(exp_f32(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_f32(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp_f32(100.0), f32::INFINITY);
        assert!(exp_f32(f32::NAN).is_nan());
    }
}
