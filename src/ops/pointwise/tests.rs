//! Every function against its definition in `f64`, and every device against the native functions.

use half::{bf16, f16};

use super::math::erf_f64;
use crate::dtype::{DType, Element};
use crate::graph::{Tensor, TensorInfo};
use crate::ops::test_util::{attrs, facts, read_op, run_cpu, values};
use crate::ops::{AttrMap, AttrValue, OpError, Operator};
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

/// How far results of `dtype` may be from the definition.
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
        run_cpu(op, inputs, 1).unwrap()
    };
    outputs.into_iter().next().unwrap()
}

fn float(v: f32) -> AttrValue {
    AttrValue::Float(v)
}

fn no_attrs() -> AttrMap {
    AttrMap::new()
}

type Definition = fn(f64) -> f64;

fn softplus(x: f64) -> f64 {
    if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() }
}

fn keep(x: f64, f: impl Fn(f64) -> f64) -> f64 {
    if x.is_nan() { x } else { f(x) }
}

/// Name, attributes and definition of functions of floats.
fn float_functions() -> Vec<(&'static str, AttrMap, Definition)> {
    let plain: [(&'static str, Definition); 36] = [
        ("Abs", f64::abs),
        ("Neg", |x| -x),
        ("Sign", |x| keep(x, |x| if x == 0.0 { 0.0 } else { x.signum() })),
        ("Relu", |x| keep(x, |x| x.max(0.0))),
        ("LeakyRelu", |x| if x < 0.0 { f64::from(0.01f32) * x } else { x }),
        ("Sigmoid", |x| 1.0 / (1.0 + (-x).exp())),
        ("HardSigmoid", |x| keep(x, |x| (f64::from(0.2f32) * x + 0.5).clamp(0.0, 1.0))),
        ("HardSwish", |x| x * keep(x, |x| (x / 6.0 + 0.5).clamp(0.0, 1.0))),
        ("Tanh", f64::tanh),
        ("Exp", f64::exp),
        ("Log", f64::ln),
        ("Sqrt", f64::sqrt),
        ("Reciprocal", |x| 1.0 / x),
        ("Erf", erf_f64),
        ("Floor", f64::floor),
        ("Ceil", f64::ceil),
        ("Round", f64::round_ties_even),
        ("Asin", f64::asin),
        ("Acos", f64::acos),
        ("Atan", f64::atan),
        ("Sinh", f64::sinh),
        ("Cosh", f64::cosh),
        ("Asinh", f64::asinh),
        ("Acosh", f64::acosh),
        ("Atanh", f64::atanh),
        ("Softplus", softplus),
        ("Softsign", |x| x / (1.0 + x.abs())),
        ("Elu", |x| if x < 0.0 { x.exp_m1() } else { x }),
        ("Selu", |x| {
            let (alpha, gamma) = (f64::from(1.673_263_2f32), f64::from(1.050_701f32));
            gamma * if x > 0.0 { x } else { alpha * x.exp_m1() }
        }),
        ("Celu", |x| if x > 0.0 { x } else { x.exp_m1() }),
        ("Gelu", |x| 0.5 * x * (1.0 + erf_f64(x / 2f64.sqrt()))),
        ("Mish", |x| x * softplus(x).tanh()),
        ("ThresholdedRelu", |x| keep(x, |x| if x > 1.0 { x } else { 0.0 })),
        ("Shrink", |x| keep(x, |x| if x.abs() > 0.5 { x } else { 0.0 })),
        ("Swish", |x| x / (1.0 + (-x).exp())),
        ("Identity", |x| x),
    ];
    let mut all: Vec<_> = plain.into_iter().map(|(name, f)| (name, no_attrs(), f)).collect();
    let mut with = |name, list: &[(&str, AttrValue)], f: Definition| all.push((name, attrs(list), f));
    with("LeakyRelu", &[("alpha", float(0.25))], |x| if x < 0.0 { 0.25 * x } else { x });
    with("HardSigmoid", &[("alpha", float(0.5)), ("beta", float(0.75))], |x| {
        keep(x, |x| (0.5 * x + 0.75).clamp(0.0, 1.0))
    });
    with("Elu", &[("alpha", float(2.0))], |x| if x < 0.0 { 2.0 * x.exp_m1() } else { x });
    with("Selu", &[("alpha", float(2.0)), ("gamma", float(3.0))], |x| {
        3.0 * if x > 0.0 { x } else { 2.0 * x.exp_m1() }
    });
    with("Celu", &[("alpha", float(2.0))], |x| if x > 0.0 { x } else { 2.0 * (x / 2.0).exp_m1() });
    with("ThresholdedRelu", &[("alpha", float(2.0))], |x| keep(x, |x| if x > 2.0 { x } else { 0.0 }));
    with("Shrink", &[("lambd", float(1.5)), ("bias", float(0.5))], |x| {
        keep(x, |x| {
            if x < -1.5 {
                x + 0.5
            } else if x > 1.5 {
                x - 0.5
            } else {
                0.0
            }
        })
    });
    with("Swish", &[("alpha", float(0.5))], |x| x / (1.0 + (-0.5 * x).exp()));
    with("Gelu", &[("approximate", AttrValue::Str(b"tanh".to_vec()))], |x| {
        0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
    });
    all
}

const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

#[test]
fn functions_of_floats_follow_their_definitions() {
    for (name, attrs, f) in float_functions() {
        let op = read_op(name, 24, &attrs).unwrap();
        for dtype in FLOATS {
            // 63 and 64 elements take the scalar and the vector kernel.
            for n in [63, 64] {
                let x = typed(dtype, &[n], &samples(n, 7));
                let want: Vec<f64> = wide(&x).into_iter().map(f).collect();
                let y = everywhere(op.as_ref(), &[Some(x)], precision(dtype).max(1e-5));
                near(name, &y, &want, precision(dtype));
            }
        }
    }
}

#[test]
fn sine_cosine_and_tangent_follow_their_definitions() {
    let functions: [(&str, Definition); 3] = [("Sin", f64::sin), ("Cos", f64::cos), ("Tan", f64::tan)];
    for (name, f) in functions {
        let op = read_op(name, 7, &no_attrs()).unwrap();
        let x = typed(DType::F32, &[301], &values(301, 3).iter().map(|v| v * 1.4).collect::<Vec<f32>>());
        let want: Vec<f64> = wide(&x).into_iter().map(f).collect();
        // Devices compute these with an absolute error; a tangent of 1.4 magnifies it.
        near(name, &everywhere(op.as_ref(), &[Some(x)], 2e-5), &want, 1e-6);
    }
}
