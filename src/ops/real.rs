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
use super::{OpCx, OpError};
use crate::dtype::{DType, Element};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::simd;

/// The floating-point types.
pub(crate) const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::F64];

/// The floating-point types of at most 32 bits.
pub(crate) const FLOATS_TO_32: &[DType] = &[DType::F32, DType::F16, DType::BF16];

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
}

macro_rules! real {
    ($t:ty, $exp:path) => {
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
        }
    };
}

real!(f32, simd::exp);
real!(f64, f64::exp);

/// A native function over any floating-point type.
pub(crate) trait RealKernel: Send + Sync + 'static {
    /// Inputs that are not widened where they are `float16`: those of [`RealInputs::half`].
    const HALF: &'static [usize] = &[];

    /// Whether it finds earlier elements in output `output` and keeps those that it does not write: [`RealIo::output_and_updated`].
    fn updates(&self, output: usize) -> bool {
        let _ = output;
        false
    }

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
    /// An argument whose type is no float.
    Bytes(&'a mut [u8]),
    Direct(&'a mut [T]),
    F32(Vec<T>, &'a mut [f32]),
    F16(Vec<T>, &'a mut [f16]),
    Bf16(Vec<T>, &'a mut [bf16]),
    /// One that is updated, of 16 bits.
    Updated(Halves<'a>),
}

/// Elements of 16 bits, as they lie in memory.
pub(crate) enum Halves<'a> {
    F16(&'a mut [f16]),
    Bf16(&'a mut [bf16]),
}

impl Halves<'_> {
    fn again(&mut self) -> Halves<'_> {
        match self {
            Halves::F16(s) => Halves::F16(s),
            Halves::Bf16(s) => Halves::Bf16(s),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Halves::F16(s) => s.len(),
            Halves::Bf16(s) => s.len(),
        }
    }

    /// Rounds `from` to the elements from `at` on. Returns whether there are so many.
    pub(crate) fn store<T: Real>(&mut self, at: usize, from: &[T]) -> bool {
        let range = at..at.saturating_add(from.len());
        match self {
            Halves::F16(s) => s.get_mut(range).map(|to| round(from, to, f16::from_f64)).is_some(),
            Halves::Bf16(s) => s.get_mut(range).map(|to| round(from, to, bf16::from_f64)).is_some(),
        }
    }

    /// Widens the elements from `at` on to `to`. Returns whether there are so many.
    pub(crate) fn load<T: Real>(&self, at: usize, to: &mut [T]) -> bool {
        let range = at..at.saturating_add(to.len());
        match self {
            Halves::F16(s) => s.get(range).map(|from| widen(from, to)).is_some(),
            Halves::Bf16(s) => s.get(range).map(|from| widen(from, to)).is_some(),
        }
    }
}

/// An output that a kernel updates.
pub(crate) enum Updated<'a, T> {
    /// In the type that is computed in.
    Whole(&'a mut [T]),
    Halves(Halves<'a>),
}

impl<'a, T: Real> RealIo<'a, T> {
    /// Reads the arguments of a call: inputs `halves` stay `float16` where they are, and outputs for which `updates` holds
    /// keep what they have. Compiled for two types, not for each kernel.
    #[inline(never)]
    fn of(
        args: &mut NativeArgs<'a, '_>,
        inputs: &[Option<DType>],
        outputs: &[DType],
        halves: &[usize],
        updates: &dyn Fn(usize) -> bool,
    ) -> Result<Self, KernelError> {
        let mut io = RealIo {
            inputs: Vec::with_capacity(inputs.len()),
            halves: Vec::new(),
            others: Vec::new(),
            outputs: Vec::new(),
        };
        for (i, dtype) in inputs.iter().enumerate() {
            let mut given = dtype.filter(|_| args.has(i));
            if given == Some(DType::F16) && T::DTYPE == DType::F32 && halves.contains(&i) {
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
            } else if !dtype.is_float() {
                Output::Bytes(args.take_write::<u8>(index)?)
            } else if dtype == DType::F16 && updates(o) {
                Output::Updated(Halves::F16(args.take_write::<f16>(index)?))
            } else if dtype == DType::BF16 && updates(o) {
                Output::Updated(Halves::Bf16(args.take_write::<bf16>(index)?))
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
        Ok(io)
    }

    /// Rounds what was computed to the types of the outputs.
    #[inline(never)]
    fn finish(self) {
        for output in self.outputs {
            match output {
                Output::F32(values, raw) => {
                    raw.iter_mut().zip(values).for_each(|(r, v)| *r = v.to_f64() as f32);
                }
                Output::F16(values, raw) => round(&values, raw, f16::from_f64),
                Output::Bf16(values, raw) => round(&values, raw, bf16::from_f64),
                Output::Absent | Output::Bytes(_) | Output::Direct(_) | Output::Updated(_) => {}
            }
        }
    }
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

    /// Gives the kernel other elements as input `index`.
    pub(crate) fn replace_input(&mut self, index: usize, elements: Vec<T>) {
        if let Some(input) = self.inputs.get_mut(index) {
            *input = Some(Cow::Owned(elements));
        }
    }

    /// The inputs.
    pub(crate) fn inputs(&self) -> RealInputs<'_, T> {
        RealInputs { floats: &self.inputs, halves: &self.halves, others: &self.others }
    }

    /// The first output, the bytes of the next two, whose types are no floats, and the inputs.
    pub(crate) fn output_and_bytes(
        &mut self,
    ) -> (Option<&mut [T]>, [Option<&mut [u8]>; 2], RealInputs<'_, T>) {
        let mut outputs = self.outputs.iter_mut();
        let first = outputs.next().and_then(Output::slice);
        let bytes = std::array::from_fn(|_| match outputs.next() {
            Some(Output::Bytes(bytes)) => Some(&mut **bytes),
            _ => None,
        });
        (first, bytes, RealInputs { floats: &self.inputs, halves: &self.halves, others: &self.others })
    }

    /// The first output, the two after it, which are updated, and the inputs.
    pub(crate) fn output_and_updated(
        &mut self,
    ) -> (Option<&mut [T]>, [Option<Updated<'_, T>>; 2], RealInputs<'_, T>) {
        let mut outputs = self.outputs.iter_mut();
        let first = outputs.next().and_then(Output::slice);
        let updated = std::array::from_fn(|_| match outputs.next() {
            Some(Output::Updated(halves)) => Some(Updated::Halves(halves.again())),
            other => other.and_then(Output::slice).map(Updated::Whole),
        });
        (first, updated, RealInputs { floats: &self.inputs, halves: &self.halves, others: &self.others })
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

    /// As [`RealInputs::get`], also where the input stays `float16`.
    pub(crate) fn widened(&self, index: usize, len: usize) -> Result<Cow<'c, [T]>, KernelError> {
        match self.half(index, len)? {
            Some(halves) => Ok(widened(halves)),
            None => self.get(index, len).map(Cow::Borrowed),
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
            Output::Absent | Output::Bytes(_) | Output::Updated(_) => None,
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
pub(crate) fn real_kernel<K: RealKernel>(
    name: &'static str,
    cx: &OpCx,
    kernel: K,
) -> Result<NativeKernel, OpError> {
    let kernel = Arc::new(kernel);
    real_kernel_with(name, cx, move |_| Ok(kernel.clone()))
}

/// As [`real_kernel`], for a kernel that every call makes of the arguments that are no floats (indices).
pub(crate) fn real_kernel_with<K: RealKernel>(
    name: &'static str,
    cx: &OpCx,
    make: impl Fn(&NativeArgs<'_, '_>) -> Result<Arc<K>, KernelError> + Send + Sync + 'static,
) -> Result<NativeKernel, OpError> {
    if let Some(d) = cx.outputs().iter().map(|o| o.dtype).find(|d| !d.is_float()) {
        return Err(OpError::unsupported(format!("{name} of {d}")));
    }
    Ok(mixed(name, cx, make))
}

/// As [`real_kernel`], for a kernel that has outputs of types that are no floats too.
pub(crate) fn mixed_kernel<K: RealKernel>(name: &'static str, cx: &OpCx, kernel: K) -> NativeKernel {
    let kernel = Arc::new(kernel);
    mixed(name, cx, move |_| Ok(kernel.clone()))
}

fn mixed<K: RealKernel>(
    name: &'static str,
    cx: &OpCx,
    make: impl Fn(&NativeArgs<'_, '_>) -> Result<Arc<K>, KernelError> + Send + Sync + 'static,
) -> NativeKernel {
    let inputs: Vec<Option<DType>> =
        (0..cx.input_count()).map(|i| cx.input_opt(i).map(|t| t.dtype).filter(|d| d.is_float())).collect();
    let outputs: Vec<DType> = cx.outputs().iter().map(|o| o.dtype).collect();
    let wide = inputs.iter().flatten().chain(&outputs).any(|d| *d == DType::F64);
    NativeKernel::new(name, move |args| {
        let kernel = make(args)?;
        let updates = |output| kernel.updates(output);
        if wide {
            let mut io = RealIo::<f64>::of(args, &inputs, &outputs, K::HALF, &updates)?;
            kernel.run(&mut io)?;
            io.finish();
        } else {
            let mut io = RealIo::<f32>::of(args, &inputs, &outputs, K::HALF, &updates)?;
            kernel.run(&mut io)?;
            io.finish();
        }
        Ok(())
    })
}

/// All of `from` as the type that is computed in.
pub(crate) fn widened<'a, T: Real, H: Half>(from: &[H]) -> Cow<'a, [T]> {
    let mut to = vec![T::ZERO; from.len()];
    widen(from, &mut to);
    Cow::Owned(to)
}

fn widen<T: Real, H: Half>(from: &[H], to: &mut [T]) {
    match as_f32s_mut(to) {
        Some(to) => halves::widen(from, to),
        None => to.iter_mut().zip(from).for_each(|(to, from)| *to = T::from_f64(from.widen().into())),
    }
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

/// Elements of `f32` as those that are computed with, to write, where they are the same.
pub(crate) fn of_f32s_mut<T: Element>(values: &mut [f32]) -> Result<&mut [T], KernelError> {
    let same = (T::DTYPE == DType::F32).then(|| bytemuck::try_cast_slice_mut(values).ok()).flatten();
    same.ok_or_else(|| KernelError::Value { what: format!("elements of f32 are none of {}", T::DTYPE) })
}

/// The elements as what they are, where they are `f64`, to write.
pub(crate) fn as_f64s_mut<T: Element>(values: &mut [T]) -> Option<&mut [f64]> {
    (T::DTYPE == DType::F64).then(|| bytemuck::try_cast_slice_mut(values).ok()).flatten()
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
