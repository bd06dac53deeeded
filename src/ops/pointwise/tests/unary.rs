//! Functions of one element, Clip, IsNaN and IsInf, Identity and Dropout.

use super::{erf, everywhere, near, no_attrs, precision, samples, typed, wide};
use crate::dtype::DType;
use crate::expr::Function;
use crate::graph::Tensor;
use crate::ops::pointwise::function::{INTEGERS, NUMBERS};
use crate::ops::real::FLOATS;
use crate::ops::test_util::{attrs, facts, read_op, run_cpu, values};
use crate::ops::{Activation, AttrMap, AttrValue, Fact, OpCx, OpError};

fn float(v: f32) -> AttrValue {
    AttrValue::Float(v)
}

pub(super) type Definition = fn(f64) -> f64;

fn softplus(x: f64) -> f64 {
    if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() }
}

fn keep(x: f64, f: impl Fn(f64) -> f64) -> f64 {
    if x.is_nan() { x } else { f(x) }
}

/// Name, attributes and definition of functions of floats.
pub(super) fn float_functions() -> Vec<(&'static str, AttrMap, Definition)> {
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
        ("Erf", erf),
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
        ("Gelu", |x| 0.5 * x * (1.0 + erf(x / 2f64.sqrt()))),
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
    with("ParametricSoftplus", &[("alpha", float(1.5)), ("beta", float(0.5))], |x| 1.5 * softplus(0.5 * x));
    with("Swish", &[("alpha", float(0.5))], |x| x / (1.0 + (-0.5 * x).exp()));
    with("Gelu", &[("approximate", AttrValue::Str(b"tanh".to_vec()))], |x| {
        0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
    });
    all
}

#[test]
fn acosh_has_no_value_below_one() {
    let x = Tensor::new([4], &[-3e38f32, -2.0, 0.5, f32::NEG_INFINITY]).unwrap();
    let y = everywhere(read_op("Acosh", 9, &no_attrs()).unwrap().as_ref(), &[Some(x)], 1e-5);
    assert!(y.to_f32s().unwrap().iter().all(|v| v.is_nan()));
}

#[test]
fn functions_of_floats_follow_their_definitions() {
    for (name, attrs, f) in float_functions() {
        let op = read_op(name, 24, &attrs).unwrap();
        for &dtype in FLOATS {
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
        // Angles as positions of long sequences make them; a tangent magnifies what is left of their error.
        for (most, far) in [(1.4, 1e-6), (100.0, 1e-6), (3e4, 2e-6)] {
            let far = if name == "Tan" { far * 50.0 } else { far };
            let x = values(301, 3).iter().map(|v| v * most).collect::<Vec<f32>>();
            let x = typed(DType::F32, &[301], &x);
            let want: Vec<f64> = wide(&x).into_iter().map(f).collect();
            near(name, &everywhere(op.as_ref(), &[Some(x)], far), &want, 1e-6);
        }
    }
}

#[test]
fn functions_of_integers_follow_their_definitions() {
    let functions: [(&str, Definition); 4] = [
        ("Abs", f64::abs),
        ("Sign", |x| if x == 0.0 { 0.0 } else { x.signum() }),
        ("Neg", |x| -x),
        ("Relu", |x| x.max(0.0)),
    ];
    for (name, f) in functions {
        let op = read_op(name, 24, &no_attrs()).unwrap();
        for &dtype in INTEGERS {
            if !dtype.is_signed_int() && matches!(name, "Neg" | "Relu") {
                assert!(matches!(
                    facts(op.as_ref(), &[Some(typed(dtype, &[1], &[1.0]))], 1),
                    Err(OpError::DType { .. })
                ));
                continue;
            }
            let x = typed(
                dtype,
                &[37],
                &samples(40, 5)[3..].iter().map(|v| v.clamp(-99.0, 120.0) * 1.01).collect::<Vec<_>>(),
            );
            let want: Vec<f64> = wide(&x).into_iter().map(f).collect();
            near(name, &everywhere(op.as_ref(), &[Some(x)], 0.0), &want, 0.0);
        }
    }
    let not = read_op("BitwiseNot", 18, &no_attrs()).unwrap();
    for &dtype in INTEGERS {
        let x = typed(dtype, &[5], &[0.0, 1.0, 2.0, 77.0, 127.0]);
        let y = everywhere(not.as_ref(), &[Some(x.clone())], 0.0);
        assert!(x.bytes().iter().zip(y.bytes()).all(|(x, y)| *y == !*x), "{dtype}");
    }
    let x = typed(DType::Bool, &[5], &[1.0, 0.0, 1.0, 1.0, 0.0]);
    let y = everywhere(read_op("Not", 1, &no_attrs()).unwrap().as_ref(), &[Some(x)], 0.0);
    assert_eq!(y.bytes(), [0, 1, 0, 0, 1]);
}

#[test]
fn clip_takes_bounds_from_attributes_or_inputs() {
    let clip = |x: f64, low: f64, high: f64| if x.is_nan() { x } else { x.max(low).min(high) };
    let x = typed(DType::F32, &[64], &samples(64, 2));
    let old = read_op("Clip", 6, &attrs(&[("min", float(-0.5)), ("max", float(2.0))])).unwrap();
    let want: Vec<f64> = wide(&x).into_iter().map(|v| clip(v, -0.5, 2.0)).collect();
    near("Clip", &everywhere(old.as_ref(), &[Some(x)], 0.0), &want, 0.0);

    // Bounds that are not given are the largest finite numbers to opset 10, none from then on.
    let x = Some(Tensor::new([2], &[f32::INFINITY, f32::NEG_INFINITY]).unwrap());
    for (opset, most) in [(6, f64::from(f32::MAX)), (11, f64::INFINITY)] {
        let op = read_op("Clip", opset, &no_attrs()).unwrap();
        near("Clip", &everywhere(op.as_ref(), std::slice::from_ref(&x), 0.0), &[most, -most], 0.0);
    }

    let op = read_op("Clip", 13, &no_attrs()).unwrap();
    for &dtype in NUMBERS {
        let x = typed(dtype, &[45], &samples(45, 2));
        let bound = |v: f32| Some(typed(dtype, &[], &[v]));
        for (low, high) in
            [(bound(1.0), bound(3.0)), (None, bound(2.0)), (bound(2.0), None), (bound(4.0), bound(1.0))]
        {
            let (l, h) = (low.as_ref().map(|t| wide(t)[0]), high.as_ref().map(|t| wide(t)[0]));
            let want: Vec<f64> = wide(&x)
                .into_iter()
                .map(|v| clip(v, l.unwrap_or(f64::NEG_INFINITY), h.unwrap_or(f64::INFINITY)))
                .collect();
            let inputs = [Some(x.clone()), low, high];
            near("Clip", &everywhere(op.as_ref(), &inputs, 0.0), &want, 0.0);
            #[cfg(feature = "vulkan")]
            if dtype != DType::BF16 {
                let known = crate::ops::testing::Check::new(op.as_ref(), &inputs).constants(&[1, 2]).run();
                near("Clip", &known[0], &want, 0.0);
            }
        }
    }
    let two = Tensor::new([2], &[0f32, 1.0]).unwrap();
    let x = Tensor::new([1], &[0f32]).unwrap();
    assert!(matches!(
        facts(op.as_ref(), &[Some(x.clone()), Some(two)], 1),
        Err(OpError::InputShape { input: 1, .. })
    ));
    assert!(matches!(
        facts(op.as_ref(), &[Some(x), Some(Tensor::scalar(0i64))], 1),
        Err(OpError::DType { input: 1, .. })
    ));
}

#[test]
fn activations_are_known_where_their_parameters_are() {
    let x = Tensor::new([1], &[0f32]).unwrap();
    let activation = |name: &str, list: &[(&str, AttrValue)], inputs: &[Option<Tensor>]| {
        let op = read_op(name, 11, &attrs(list)).unwrap();
        op.as_activation(&facts(op.as_ref(), inputs, 1).unwrap())
    };
    let plain = [Some(x.clone())];
    assert_eq!(activation("Relu", &[], &plain), Some(Activation::of(Function::Relu)));
    assert_eq!(activation("Exp", &[], &plain), Some(Activation::of(Function::Exp)));
    assert_eq!(activation("Sin", &[], &plain), None);
    let slope = Activation::with(Function::LeakyRelu, [0.5, 0.0]);
    assert_eq!(activation("LeakyRelu", &[("alpha", float(0.5))], &plain), Some(slope));
    let slopes = |slopes: &[f32]| {
        [Some(Tensor::new([2], &[1f32; 2]).unwrap()), Some(Tensor::new([slopes.len()], slopes).unwrap())]
    };
    assert_eq!(activation("PRelu", &[], &slopes(&[0.5])), Some(slope));
    assert_eq!(activation("PRelu", &[], &slopes(&[0.5, 0.25])), None);
    let six = [Some(x.clone()), Some(Tensor::scalar(0f32)), Some(Tensor::scalar(6f32))];
    assert_eq!(activation("Clip", &[], &six), Some(Activation::with(Function::Clip, [0.0, 6.0])));
    let unknown = [Some(Fact::known(x.clone())), Some(Fact::of(Tensor::scalar(0f32).info().clone()))];
    let op = read_op("Clip", 11, &no_attrs()).unwrap();
    assert_eq!(op.as_activation(&OpCx::for_infer(unknown.to_vec(), 1)), None);
    assert_eq!(activation("Relu", &[], &[Some(Tensor::scalar(0i32))]), None);
}

#[test]
fn nan_and_infinities_are_told_apart() {
    let v = [0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0];
    let inf = |positive: i64, negative: i64| {
        let list =
            [("detect_positive", AttrValue::Int(positive)), ("detect_negative", AttrValue::Int(negative))];
        read_op("IsInf", 20, &attrs(&list)).unwrap()
    };
    for &dtype in FLOATS {
        let x = [Some(typed(dtype, &[5], &v))];
        let nan = read_op("IsNaN", 13, &no_attrs()).unwrap();
        assert_eq!(everywhere(nan.as_ref(), &x, 0.0).bytes(), [0, 1, 0, 0, 0]);
        for (positive, negative) in [(1, 1), (0, 1), (1, 0), (0, 0)] {
            let want = [0, 0, positive as u8, negative as u8, 0];
            assert_eq!(everywhere(inf(positive, negative).as_ref(), &x, 0.0).bytes(), want);
        }
    }
}

#[test]
fn dropout_of_inference_keeps_everything() {
    let x = typed(DType::F32, &[3, 7], &samples(21, 1));
    let op = read_op("Dropout", 13, &no_attrs()).unwrap();
    assert_eq!(op.alias(&facts(op.as_ref(), &[Some(x.clone())], 1).unwrap()), Some(0));
    let inputs = [Some(x.clone()), Some(Tensor::scalar(0.5f32)), None];
    #[cfg(feature = "vulkan")]
    let outputs = crate::ops::testing::Check::new(op.as_ref(), &inputs).outputs(2).run();
    #[cfg(not(feature = "vulkan"))]
    let outputs = run_cpu(op.as_ref(), &inputs, 2).unwrap();
    assert_eq!(outputs[0].bytes(), x.bytes());
    assert_eq!((outputs[1].dtype(), outputs[1].bytes()), (DType::Bool, &[1u8; 21][..]));
    let old = read_op("Dropout", 7, &no_attrs()).unwrap();
    let mask = run_cpu(old.as_ref(), &[Some(x.clone())], 2).unwrap().remove(1);
    assert_eq!(mask.as_slice::<f32>().unwrap(), [1.0; 21]);
    let truth = typed(DType::Bool, &[], &[1.0]);
    let training = |ratio: f32| {
        facts(op.as_ref(), &[Some(x.clone()), Some(Tensor::scalar(ratio)), Some(truth.clone())], 1)
    };
    assert!(matches!(training(1.0), Err(OpError::Value { input: 1, .. })));
    assert_eq!(op.alias(&training(0.0).unwrap()), Some(0));
    assert_eq!(op.alias(&training(0.5).unwrap()), None);
}
