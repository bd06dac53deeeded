//! Native functions of [`super::Unary`].

use half::{bf16, f16};

use super::apply::{input, map, output};
use super::number::{Number, with_number};
use super::unary::{Unary, UnaryOp};
use crate::dtype::DType;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::halves::Half;
use crate::ops::{OpError, par};
use crate::spirv::wide::wide;
use crate::spirv::{math, trig};

/// Elements that are widened to `f32` at once.
const WIDENED: usize = 512;

/// The native function of `unary` over `n` elements of `dtype`, to argument `result`.
///
/// # Errors
/// [`OpError::Unsupported`] where the type has none.
pub(super) fn kernel(unary: Unary, dtype: DType, n: usize, result: usize) -> Result<NativeKernel, OpError> {
    let name = unary.op.name();
    let run: fn(Unary, [usize; 2], &mut NativeArgs<'_, '_>) -> Result<(), KernelError> = match dtype {
        DType::F32 => floats,
        DType::F16 => halves::<f16>,
        DType::BF16 => halves::<bf16>,
        DType::F64 => doubles,
        DType::Bool => bools,
        _ => with_number!(dtype, T => integers::<T>, else bools),
    };
    Ok(NativeKernel::new(name, move |args| run(unary, [n, result], args)))
}

fn floats(u: Unary, [n, result]: [usize; 2], args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
    let x = input::<f32>(args, 0, n)?;
    par::parts(output(args, result, n)?, |start, part| row(u, &x[start..start + part.len()], part));
    Ok(())
}

fn halves<T: Half>(
    u: Unary,
    [n, result]: [usize; 2],
    args: &mut NativeArgs<'_, '_>,
) -> Result<(), KernelError> {
    let x = input::<T>(args, 0, n)?;
    par::parts(output::<T>(args, result, n)?, |start, part| {
        let (mut wide, mut out) = ([0.0; WIDENED], [0.0; WIDENED]);
        for (x, y) in x[start..].chunks(WIDENED).zip(part.chunks_mut(WIDENED)) {
            let len = y.len();
            T::widen_all(&x[..len], &mut wide[..len]);
            row(u, &wide[..len], &mut out[..len]);
            T::round_all(&out[..len], y);
        }
    });
    Ok(())
}

fn doubles(u: Unary, [n, result]: [usize; 2], args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
    let x = input::<f64>(args, 0, n)?;
    map(x, output(args, result, n)?, |v| double(u, v));
    Ok(())
}

fn integers<T: Number>(
    u: Unary,
    [n, result]: [usize; 2],
    args: &mut NativeArgs<'_, '_>,
) -> Result<(), KernelError> {
    let x = input::<T>(args, 0, n)?;
    let y = output::<T>(args, result, n)?;
    let one = T::from_f64(1.0);
    match u.op {
        UnaryOp::Abs => map(x, y, T::abs),
        UnaryOp::Neg => map(x, y, T::neg),
        UnaryOp::Relu => map(x, y, |v| T::greatest(v, T::ZERO)),
        // The complement, for signed and unsigned types alike: -1 - x wraps.
        UnaryOp::BitwiseNot => map(x, y, |v| T::ZERO.sub(one).sub(v)),
        UnaryOp::Sign => map(x, y, |v| {
            if v > T::ZERO {
                one
            } else if v < T::ZERO {
                one.neg()
            } else {
                v
            }
        }),
        _ => map(x, y, |v| T::from_f64(double(u, v.to_f64()))),
    }
    Ok(())
}

fn bools(_: Unary, [n, result]: [usize; 2], args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
    let x = input::<u8>(args, 0, n)?;
    map(x, output(args, result, n)?, |v| u8::from(v == 0));
    Ok(())
}

/// One loop for each function, so that each can be vectorized.
#[inline(always)]
fn each(u: Unary, x: &[f32], y: &mut [f32], f: impl Fn(f32, f32, f32) -> f32) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = f(*x, u.a, u.b);
    }
}

/// Keeps NaN, other than `f32::max` and `f32::min`.
#[inline(always)]
fn clip(x: f32, low: f32, high: f32) -> f32 {
    let y = if x < low { low } else { x };
    if y > high { high } else { y }
}

fn row(u: Unary, x: &[f32], y: &mut [f32]) {
    let turns = matches!(u.op, UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tan);
    let far = wide(
        #[inline(always)]
        || {
            row_in(u, x, y);
            turns
                && x.iter().fold(0.0, |most: f32, x| if x.abs() > most { x.abs() } else { most }) > trig::MOST
        },
    );
    if far {
        for (y, x) in y.iter_mut().zip(x).filter(|(_, x)| x.abs() > trig::MOST) {
            *y = double(u, (*x).into()) as f32;
        }
    }
}

#[inline(always)]
fn row_in(u: Unary, x: &[f32], y: &mut [f32]) {
    match u.op {
        UnaryOp::Abs => each(u, x, y, |x, _, _| x.abs()),
        UnaryOp::Neg => each(u, x, y, |x, _, _| -x),
        UnaryOp::Sign => each(u, x, y, |x, _, _| {
            let y = if x > 0.0 { 1.0 } else { x };
            if x < 0.0 { -1.0 } else { y }
        }),
        UnaryOp::Relu => each(u, x, y, |x, _, _| if x < 0.0 { 0.0 } else { x }),
        UnaryOp::LeakyRelu => each(u, x, y, |x, a, _| if x < 0.0 { a * x } else { x }),
        UnaryOp::Clip => each(u, x, y, clip),
        UnaryOp::Sigmoid => each(u, x, y, math::sigmoid),
        UnaryOp::HardSigmoid => each(u, x, y, |x, a, b| clip(a * x + b, 0.0, 1.0)),
        UnaryOp::HardSwish => each(u, x, y, |x, _, _| x * clip(x * (1.0 / 6.0) + 0.5, 0.0, 1.0)),
        UnaryOp::Tanh => each(u, x, y, math::tanh),
        UnaryOp::Exp => each(u, x, y, math::exp),
        UnaryOp::Log => each(u, x, y, math::log),
        UnaryOp::Sqrt => each(u, x, y, |x, _, _| x.sqrt()),
        UnaryOp::Reciprocal => each(u, x, y, |x, _, _| 1.0 / x),
        UnaryOp::Erf => each(u, x, y, math::erf),
        UnaryOp::Floor => each(u, x, y, |x, _, _| x.floor()),
        UnaryOp::Ceil => each(u, x, y, |x, _, _| x.ceil()),
        UnaryOp::Round => each(u, x, y, |x, _, _| x.round_ties_even()),
        UnaryOp::Softplus => each(u, x, y, math::softplus),
        UnaryOp::Softsign => each(u, x, y, |x, _, _| x / (1.0 + x.abs())),
        UnaryOp::Elu => each(u, x, y, math::elu),
        UnaryOp::Selu => each(u, x, y, math::selu),
        UnaryOp::Celu => each(u, x, y, math::celu),
        UnaryOp::Gelu => each(u, x, y, math::gelu),
        UnaryOp::GeluTanh => each(u, x, y, math::gelu_tanh),
        UnaryOp::Mish => each(u, x, y, math::mish),
        UnaryOp::Swish => each(u, x, y, math::swish),
        UnaryOp::ThresholdedRelu => each(u, x, y, |x, a, _| if x <= a { 0.0 } else { x }),
        UnaryOp::Sin => each(u, x, y, trig::sin),
        UnaryOp::Cos => each(u, x, y, trig::cos),
        UnaryOp::Tan => each(u, x, y, trig::tan),
        UnaryOp::Asin => each(u, x, y, trig::asin),
        UnaryOp::Acos => each(u, x, y, trig::acos),
        UnaryOp::Atan => each(u, x, y, trig::atan),
        // Rare ones: the standard library's scalar functions, in double precision where it has no better.
        _ => each(u, x, y, |x, _, _| double(u, x.into()) as f32),
    }
}

fn double(u: Unary, x: f64) -> f64 {
    let (a, b) = (f64::from(u.a), f64::from(u.b));
    let clip = |x: f64, low: f64, high: f64| {
        let y = if x < low { low } else { x };
        if y > high { high } else { y }
    };
    // Written so that NaN stays NaN.
    let softplus = |x: f64| if x > 0.0 { x } else { 0.0 } + (-x.abs()).exp().ln_1p();
    match u.op {
        UnaryOp::Abs => x.abs(),
        UnaryOp::Neg => -x,
        UnaryOp::Sign => {
            if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                x
            }
        }
        UnaryOp::Relu => clip(x, 0.0, f64::INFINITY),
        UnaryOp::LeakyRelu => {
            if x < 0.0 {
                a * x
            } else {
                x
            }
        }
        UnaryOp::Clip => clip(x, a, b),
        UnaryOp::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        UnaryOp::HardSigmoid => clip(a * x + b, 0.0, 1.0),
        UnaryOp::HardSwish => x * clip(x / 6.0 + 0.5, 0.0, 1.0),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Reciprocal => 1.0 / x,
        UnaryOp::Erf => math::erf_f64(x),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round_ties_even(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Tan => x.tan(),
        UnaryOp::Asin => x.asin(),
        UnaryOp::Acos => x.acos(),
        UnaryOp::Atan => x.atan(),
        UnaryOp::Sinh => x.sinh(),
        UnaryOp::Cosh => x.cosh(),
        UnaryOp::Asinh => x.asinh(),
        UnaryOp::Acosh => x.acosh(),
        UnaryOp::Atanh => x.atanh(),
        UnaryOp::Softplus => softplus(x),
        UnaryOp::Softsign => x / (1.0 + x.abs()),
        UnaryOp::Elu => {
            if x < 0.0 {
                a * x.exp_m1()
            } else {
                x
            }
        }
        UnaryOp::Selu => {
            if x > 0.0 {
                b * x
            } else {
                a * b * x.exp_m1()
            }
        }
        UnaryOp::Celu => {
            if x > 0.0 {
                x
            } else {
                a * (x / a).exp_m1()
            }
        }
        UnaryOp::Gelu => 0.5 * x * (1.0 + math::erf_f64(x * std::f64::consts::FRAC_1_SQRT_2)),
        UnaryOp::GeluTanh => {
            let slope = (2.0 / std::f64::consts::PI).sqrt();
            0.5 * x * (1.0 + (slope * (x + 0.044715 * x * x * x)).tanh())
        }
        UnaryOp::Mish => x * softplus(x).tanh(),
        UnaryOp::ThresholdedRelu => {
            if x > a || x.is_nan() {
                x
            } else {
                0.0
            }
        }
        UnaryOp::Shrink => {
            if x < -a {
                x + b
            } else if x > a {
                x - b
            } else if x.is_nan() {
                x
            } else {
                0.0
            }
        }
        UnaryOp::Swish => x / (1.0 + (-a * x).exp()),
        UnaryOp::BitwiseNot | UnaryOp::Not => x,
    }
}
