//! Every function against its definition in `f64`, and every device against the native functions.

mod binary;
mod convert;
mod fuse;
mod unary;

use half::{bf16, f16};

use crate::dtype::{DType, Element, Overflow};
use crate::graph::{Tensor, TensorInfo};
use crate::ops::test_util::values;
use crate::ops::{AttrMap, Operator};
use crate::shape::Shape;

/// Numbers of all sizes and the odd ones, then others up to `n`.
fn samples(n: usize, seed: u64) -> Vec<f32> {
    let odd = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-4, -1e-4, 3.0, 88.0, -90.0, 1e4];
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let rest = values(n, seed);
    special.into_iter().chain(odd).chain(rest.into_iter().map(|v| v * 6.0)).take(n).collect()
}

fn tensor<T: Element>(shape: &[usize], values: &[f32], to: impl Fn(f32) -> T) -> Tensor {
    Tensor::new(shape, &values.iter().map(|v| to(*v)).collect::<Vec<T>>()).unwrap()
}

/// The error function by its Taylor series for small arguments, and by the continued fraction for large ones.
fn erf(x: f64) -> f64 {
    if x.is_nan() || x.is_infinite() {
        return x.clamp(-1.0, 1.0);
    }
    if x.abs() < 2.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..100 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let fraction = (1..200).rev().fold(0.0, |f, n| f64::from(n) / 2.0 / (x.abs() + f));
    let tail = (-x * x).exp() / ((x.abs() + fraction) * std::f64::consts::PI.sqrt());
    x.signum() * (1.0 - tail)
}

/// A tensor of `dtype` with the numbers `values`, as Rust converts them.
fn typed(dtype: DType, shape: &[usize], values: &[f32]) -> Tensor {
    match dtype {
        DType::F32 => tensor(shape, values, |v| v),
        DType::F16 => tensor(shape, values, f16::from_f32),
        DType::BF16 => tensor(shape, values, bf16::from_f32),
        DType::F64 => tensor(shape, values, f64::from),
        DType::I8 => tensor(shape, values, |v| v as i8),
        DType::I16 => tensor(shape, values, |v| v as i16),
        DType::I32 => tensor(shape, values, |v| v as i32),
        DType::I64 => tensor(shape, values, |v| v as i64),
        DType::U8 => tensor(shape, values, |v| v as u8),
        DType::U16 => tensor(shape, values, |v| v as u16),
        DType::U32 => tensor(shape, values, |v| v as u32),
        DType::U64 => tensor(shape, values, |v| v as u64),
        DType::Bool => {
            let bytes: Vec<u8> = values.iter().map(|v| u8::from(*v > 0.0)).collect();
            Tensor::from_bytes(TensorInfo::new(DType::Bool, Shape::new(shape).unwrap()), &bytes).unwrap()
        }
        _ => {
            let byte = |v: &f32| match dtype.format() {
                Some(format) => format.encode((*v).into(), Overflow::Saturate) as u8,
                None => *v as i8 as u8,
            };
            let bytes: Vec<u8> = values.iter().map(byte).collect();
            Tensor::from_bytes(TensorInfo::new(dtype, Shape::new(shape).unwrap()), &bytes).unwrap()
        }
    }
}

fn wide(t: &Tensor) -> Vec<f64> {
    match t.dtype() {
        DType::F64 => t.as_slice::<f64>().unwrap().to_vec(),
        DType::U64 => t.as_slice::<u64>().unwrap().iter().map(|v| *v as f64).collect(),
        d if d.is_float() => t.to_f32s().unwrap().into_iter().map(f64::from).collect(),
        _ => t.to_i64s().unwrap().into_iter().map(|v| v as f64).collect(),
    }
}

/// Tolerance for results of `dtype`.
fn precision(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 2e-6,
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        DType::F64 => 1e-12,
        _ => 0.0,
    }
}

#[track_caller]
fn near(name: &str, got: &Tensor, want: &[f64], tolerance: f64) {
    let limit = match got.dtype() {
        DType::F16 => 65504.0,
        DType::F32 | DType::BF16 => f64::from(f32::MAX),
        _ => f64::MAX,
    };
    for (i, (g, w)) in wide(got).into_iter().zip(want).enumerate() {
        let overflows = w.abs() > limit && g.is_infinite() && g.signum() == w.signum();
        let close = (g - w).abs() <= tolerance * w.abs().max(1.0);
        let ok = close || g == *w || (g.is_nan() && w.is_nan()) || overflows;
        assert!(ok, "{name} of {}: element {i} is {g}, expected {w}", got.info());
    }
    assert_eq!(got.info().elements(), want.len());
}

/// Runs on every device, too, where Vulkan is built in.
#[track_caller]
fn everywhere(op: &dyn Operator, inputs: &[Option<Tensor>], tolerance: f64) -> Tensor {
    #[cfg(feature = "vulkan")]
    let outputs = {
        // bfloat16 has no kernels, and float64 only for arithmetic.
        let check = crate::ops::testing::Check::new(op, inputs).tolerance(tolerance);
        let lacks = |t: &Tensor| matches!(t.dtype(), DType::BF16 | DType::F64);
        if inputs.iter().flatten().any(lacks) { check.optional().run() } else { check.run() }
    };
    #[cfg(not(feature = "vulkan"))]
    let outputs = {
        let _ = tolerance;
        crate::ops::test_util::run_cpu(op, inputs, 1).unwrap()
    };
    outputs.into_iter().next().unwrap()
}

fn no_attrs() -> AttrMap {
    AttrMap::new()
}
