//! Quantized operators: against their definition, and devices against native functions.

use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::ops::test_util::{attrs, read_op, run_cpu, tensor, values};
use crate::ops::{AttrMap, AttrValue, OpError, Operator};
use crate::shape::Shape;

/// Runs on every device and compares with the native function, whose output is returned.
#[track_caller]
pub(super) fn everywhere(op: &dyn Operator, inputs: &[Option<Tensor>], outputs: usize) -> Vec<Tensor> {
    #[cfg(feature = "vulkan")]
    return crate::ops::testing::Check::new(op, inputs).outputs(outputs).run();
    #[cfg(not(feature = "vulkan"))]
    run_cpu(op, inputs, outputs).unwrap()
}

/// Bytes of all kinds as elements of `dtype`.
pub(super) fn bytes(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    let info = TensorInfo::new(dtype, Shape::new(shape).unwrap());
    let data: Vec<u8> = values(info.elements(), seed).iter().map(|v| (v * 127.5 + 128.0) as u8).collect();
    Tensor::from_bytes(info, &data).unwrap()
}

pub(super) fn ints(t: &Tensor) -> Vec<i64> {
    t.to_i64s().unwrap()
}

fn op(name: &str, list: &[(&str, AttrValue)]) -> std::sync::Arc<dyn Operator> {
    read_op(name, 25, &attrs(list)).unwrap()
}

#[test]
fn numbers_are_quantized_by_tensor_axis_and_block() {
    let x = Tensor::new([2, 5, 3], &values(30, 1).iter().map(|v| v * 300.0).collect::<Vec<f32>>()).unwrap();
    let scales = |shape: &[usize]| {
        let n = shape.iter().product();
        Tensor::new(shape, &values(n, 2).iter().map(|v| v.abs() + 0.5).collect::<Vec<f32>>()).unwrap()
    };
    for dtype in [DType::I8, DType::U8] {
        let cases: [(&[usize], i64, i64); 5] =
            [(&[], 1, 0), (&[5], 1, 0), (&[3], -1, 0), (&[2, 3, 3], 1, 2), (&[2, 5, 2], 2, 2)];
        for (shape, axis, block) in cases {
            let given = [("axis", AttrValue::Int(axis)), ("block_size", AttrValue::Int(block))];
            let (s, z) = (scales(shape), bytes(dtype, shape, 3));
            let q = op("QuantizeLinear", &given);
            let y = everywhere(q.as_ref(), &[Some(x.clone()), Some(s.clone()), Some(z.clone())], 1).remove(0);
            assert_eq!(y.dtype(), dtype);
            let d = op("DequantizeLinear", &given);
            everywhere(d.as_ref(), &[Some(y.clone()), Some(s.clone()), Some(z.clone())], 1);
            // By the definition, of each element.
            let (range, zs) = (if dtype == DType::I8 { (-128, 127) } else { (0, 255) }, ints(&z));
            for (i, (v, q)) in x.to_f32s().unwrap().iter().zip(ints(&y)).enumerate() {
                let (a, b, c) = (i / 15, i / 3 % 5, i % 3);
                let at = match (shape.len(), axis, block) {
                    (0, ..) => 0,
                    (_, 1, 0) => b,
                    (_, -1, 0) => c,
                    (_, 1, _) => a * 9 + b / 2 * 3 + c,
                    _ => a * 10 + b * 2 + c / 2,
                };
                let s = s.to_f32s().unwrap()[at];
                let want = ((v / s).round_ties_even() as i64 + zs[at]).clamp(range.0, range.1);
                assert_eq!(q, want, "{shape:?} {i}");
            }
        }
    }
}

#[test]
fn quotients_in_the_middle_go_to_the_even_one() {
    let x: Vec<f32> = (-40..40).map(|i| i as f32 * 0.35).collect();
    let x = Tensor::new([80], &x).unwrap();
    let q = op("QuantizeLinear", &[]);
    let given = [Some(x), Some(Tensor::scalar(0.7f32)), Some(Tensor::scalar(0i8))];
    let y = everywhere(q.as_ref(), &given, 1).remove(0);
    let want: Vec<i64> =
        (-40..40).map(|i| (f64::from(i as f32 * 0.35 / 0.7f32)).round_ties_even() as i64).collect();
    assert_eq!(ints(&y), want);
    let halves = Tensor::new([4], &[1.5f32, 2.5, f32::NAN, 1e30].map(half::f16::from_f32)).unwrap();
    let scale = Tensor::scalar(half::f16::ONE);
    let y = everywhere(q.as_ref(), &[Some(halves), Some(scale), Some(Tensor::scalar(3u8))], 1).remove(0);
    assert_eq!(y.bytes(), [5, 5, 0, 255]);
}

#[test]
fn narrow_types_are_quantized_on_the_host() {
    let x = Tensor::new([4], &[1.4f32, -3.0, 100.0, 0.25]).unwrap();
    let run = |dtype: i64| {
        let q = op("QuantizeLinear", &[("output_dtype", AttrValue::Int(dtype))]);
        run_cpu(q.as_ref(), &[Some(x.clone()), Some(Tensor::scalar(0.5f32))], 1).unwrap().remove(0)
    };
    assert_eq!(ints(&run(5)), [3, -6, 200, 0]);
    assert_eq!(run(22).as_slice::<i8>().unwrap(), [3, -6, 7, 0]);
    assert_eq!(run(21).bytes(), [3, 0, 15, 0]);
    assert_eq!(run(23).bytes(), [5, 15, 7, 1]);
    let d = op("DequantizeLinear", &[]);
    let back = run_cpu(d.as_ref(), &[Some(run(17)), Some(Tensor::scalar(0.5f32))], 1).unwrap().remove(0);
    assert_eq!(back.as_slice::<f32>().unwrap(), [1.375, -3.0, 96.0, 0.25]);
    let wrong = op("QuantizeLinear", &[("output_dtype", AttrValue::Int(3))]);
    let inputs = [Some(x.clone()), Some(Tensor::scalar(0.5f32)), Some(Tensor::scalar(0u8))];
    assert!(matches!(run_cpu(wrong.as_ref(), &inputs, 1), Err(OpError::DType { input: 2, .. })));
    let scales = Tensor::new([3], &[1f32; 3]).unwrap();
    let shapes = run_cpu(op("QuantizeLinear", &[]).as_ref(), &[Some(x), Some(scales)], 1);
    assert!(shapes.is_err());
}

#[test]
fn numbers_ask_for_their_own_scale() {
    let q = op("DynamicQuantizeLinear", &[]);
    for (n, seed) in [(6, 1), (1, 2), (1000, 3), (70_001, 4)] {
        let x = tensor(&[n], seed);
        let y = everywhere(q.as_ref(), &[Some(x.clone())], 3);
        let (scale, zero) = (y[1].to_f32s().unwrap()[0], ints(&y[2])[0]);
        for (v, q) in x.to_f32s().unwrap().iter().zip(ints(&y[0])) {
            assert!(((q - zero) as f32 * scale - v).abs() <= scale * 0.51, "{v} of {n} became {q}");
        }
        everywhere(q.as_ref(), &[Some(x)], 1);
    }
    let y = everywhere(q.as_ref(), &[Some(Tensor::new([3], &[0f32; 3]).unwrap())], 3);
    assert_eq!((y[0].bytes(), y[1].to_f32s().unwrap()), (&[0u8; 3][..], vec![1.0]));
}

/// The sums by the definition: A of `[.., m, k]`, B of `[.., k, n]`, of as many matrices.
pub(super) fn sums(a: &Tensor, b: &Tensor, za: &[i64], zb: &[i64]) -> Vec<i64> {
    let (m, k) = (a.shape()[a.shape().rank() - 2], a.shape()[a.shape().rank() - 1]);
    let n = b.shape()[b.shape().rank() - 1];
    let (a, b) = (ints(a), ints(b));
    let count = (a.len() / (m * k)).max(b.len() / (k * n));
    let mut y = Vec::new();
    for p in 0..count {
        for r in 0..m {
            for c in 0..n {
                y.push(
                    (0..k)
                        .map(|i| {
                            let left = a[(p * m * k + r * k + i) % a.len()] - za[r % za.len()];
                            left * (b[(p * k * n + i * n + c) % b.len()] - zb[c % zb.len()])
                        })
                        .sum(),
                );
            }
        }
    }
    y
}

#[test]
fn products_of_bytes_are_exact() {
    let shapes: [(&[usize], &[usize]); 6] = [
        (&[1, 1], &[1, 1]),
        (&[3, 5], &[5, 2]),
        (&[7, 300], &[300, 9]),
        (&[1, 33], &[33, 6]),
        (&[2, 4, 17], &[2, 17, 5]),
        (&[3, 2, 16], &[16, 4]),
    ];
    let product = op("MatMulInteger", &[]);
    for (i, (a, b)) in shapes.into_iter().enumerate() {
        for (at, bt) in [(DType::U8, DType::U8), (DType::U8, DType::I8), (DType::I8, DType::I8)] {
            let (m, n) = (a[a.len() - 2], b[b.len() - 1]);
            let (x, w) = (bytes(at, a, i as u64 + 1), bytes(bt, b, i as u64 + 9));
            let zeros = [(bytes(at, &[], 5), bytes(bt, &[], 6)), (bytes(at, &[m], 7), bytes(bt, &[n], 8))];
            for (za, zb) in zeros {
                let inputs = [&x, &w, &za, &zb].map(|t| Some(t.clone()));
                let want = sums(&x, &w, &ints(&za), &ints(&zb));
                assert_eq!(ints(&everywhere(product.as_ref(), &inputs, 1)[0]), want, "{a:?} {b:?}");
                #[cfg(feature = "vulkan")]
                crate::ops::testing::Check::new(product.as_ref(), &inputs).constants(&[1, 3]).run();
                #[cfg(feature = "vulkan")]
                crate::ops::testing::Check::new(product.as_ref(), &inputs).pretend(no_dot).run();
            }
            let plain = [Some(x.clone()), Some(w.clone())];
            assert_eq!(ints(&everywhere(product.as_ref(), &plain, 1)[0]), sums(&x, &w, &[0], &[0]));
        }
    }
}

/// The device without a dot product of bytes.
#[cfg(feature = "vulkan")]
fn no_dot(info: &mut crate::backend::DeviceInfo) {
    info.features = info.features.missing(crate::kernel::Requires::DOT_PRODUCT);
}

#[test]
fn products_are_quantized_again() {
    let product = op("QLinearMatMul", &[]);
    let f = |v: &[f32]| Some(Tensor::new([v.len()], v).unwrap());
    for (at, bt, yt) in [(DType::U8, DType::I8, DType::U8), (DType::I8, DType::I8, DType::I8)] {
        let (a, b) = (bytes(at, &[3, 40], 1), bytes(bt, &[40, 5], 2));
        let (za, zb, zy) = (bytes(at, &[1], 3), bytes(bt, &[5], 4), bytes(yt, &[1], 5));
        let sb = [0.01, 0.02, 0.03, 0.015, 0.4];
        let inputs = [
            Some(a.clone()),
            f(&[0.05]),
            Some(za.clone()),
            Some(b.clone()),
            f(&sb),
            Some(zb.clone()),
            f(&[0.7]),
            Some(zy.clone()),
        ];
        let y = everywhere(product.as_ref(), &inputs, 1).remove(0);
        let range = if yt == DType::I8 { (-128, 127) } else { (0, 255) };
        let want = sums(&a, &b, &ints(&za), &ints(&zb)).into_iter().enumerate().map(|(i, s)| {
            let v = (s as f32 * (0.05f32 * sb[i % 5] / 0.7)).round_ties_even() as i64;
            (v + ints(&zy)[0]).clamp(range.0, range.1)
        });
        assert_eq!(ints(&y), want.collect::<Vec<_>>());
    }
}

/// A convolution by its definition, of two spatial axes.
pub(super) fn convolved(
    x: &Tensor,
    w: &Tensor,
    zx: i64,
    zw: &[i64],
    group: usize,
    pad: i64,
    stride: i64,
) -> Vec<i64> {
    let ([b, c, h, wd], [oc, ic, kh, kw]) = (x.shape().dims(), w.shape().dims()) else { panic!() };
    let (xs, ws) = (ints(x), ints(w));
    let places = |n: &usize, k: &usize| (*n as i64 + 2 * pad - *k as i64) / stride + 1;
    let mut y = Vec::new();
    for (image, o) in (0..*b).flat_map(|i| (0..*oc).map(move |o| (i, o))) {
        for (r, col) in (0..places(h, kh)).flat_map(|r| (0..places(wd, kw)).map(move |c| (r, c))) {
            let mut sum = 0;
            for i in 0..ic * kh * kw {
                let (ch, u, v) = (i / (kh * kw), i / kw % kh, i % kw);
                let (at_h, at_w) = (r * stride - pad + u as i64, col * stride - pad + v as i64);
                if (0..*h as i64).contains(&at_h) && (0..*wd as i64).contains(&at_w) {
                    let channel = o / (oc / group) * ic + ch;
                    let at = ((image * c + channel) * h + at_h as usize) * wd + at_w as usize;
                    sum += (xs[at] - zx) * (ws[o * ic * kh * kw + i] - zw[o % zw.len()]);
                }
            }
            y.push(sum);
        }
    }
    y
}

#[test]
fn convolutions_of_bytes_are_exact() {
    let cases: [(&[usize], &[usize], usize, i64, i64); 4] = [
        (&[1, 1, 3, 3], &[2, 1, 2, 2], 1, 1, 1),
        (&[2, 4, 6, 5], &[6, 2, 3, 3], 2, 1, 2),
        (&[1, 3, 7, 9], &[3, 1, 3, 3], 3, 0, 1),
        (&[1, 40, 5, 4], &[5, 40, 3, 3], 1, 1, 1),
    ];
    for (xs, ws, group, pad, stride) in cases {
        let given = [
            ("group", AttrValue::Int(group as i64)),
            ("pads", AttrValue::Ints(vec![pad; 4])),
            ("strides", AttrValue::Ints(vec![stride; 2])),
        ];
        for (xt, wt) in [(DType::U8, DType::U8), (DType::U8, DType::I8), (DType::I8, DType::I8)] {
            let (x, w) = (bytes(xt, xs, 1), bytes(wt, ws, 2));
            for n in [1, ws[0]] {
                let (zx, zw) = (bytes(xt, &[], 3), bytes(wt, &[n], 4));
                let want = convolved(&x, &w, ints(&zx)[0], &ints(&zw), group, pad, stride);
                let inputs = [&x, &w, &zx, &zw].map(|t| Some(t.clone()));
                let y = everywhere(op("ConvInteger", &given).as_ref(), &inputs, 1).remove(0);
                assert_eq!(ints(&y), want);

                let bias: Vec<i32> = (0..ws[0] as i32).map(|i| i * 1000 - 2000).collect();
                let sw: Vec<f32> = (0..n).map(|i| 0.01 + 0.002 * i as f32).collect();
                let zy = bytes(DType::U8, &[], 6);
                let linear = [
                    Some(x.clone()),
                    Some(Tensor::scalar(0.02f32)),
                    Some(zx.clone()),
                    Some(w.clone()),
                    Some(Tensor::new([n], &sw).unwrap()),
                    Some(zw.clone()),
                    Some(Tensor::scalar(0.3f32)),
                    Some(zy.clone()),
                    Some(Tensor::new([ws[0]], &bias).unwrap()),
                ];
                let y = everywhere(op("QLinearConv", &given).as_ref(), &linear, 1).remove(0);
                let plane = want.len() / xs[0] / ws[0];
                let want = want.iter().enumerate().map(|(i, s)| {
                    let channel = i / plane % ws[0];
                    let sum = s + i64::from(bias[channel]);
                    let v = (sum as f32 * (0.02f32 * sw[channel % n] / 0.3)).round_ties_even();
                    (v as i64 + ints(&zy)[0]).clamp(0, 255)
                });
                assert_eq!(ints(&y), want.collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn parameters_of_other_shapes_are_errors() {
    let a = bytes(DType::U8, &[2, 3], 1);
    let three = Some(bytes(DType::U8, &[3], 2));
    let product = read_op("MatMulInteger", 10, &AttrMap::new()).unwrap();
    let wrong = run_cpu(product.as_ref(), &[Some(a.clone()), Some(bytes(DType::U8, &[3, 4], 1)), three], 1);
    assert!(matches!(wrong, Err(OpError::InputShape { input: 2, .. })), "{wrong:?}");
    let other = Some(bytes(DType::I8, &[], 2));
    let wrong = run_cpu(product.as_ref(), &[Some(a.clone()), Some(bytes(DType::U8, &[3, 4], 1)), other], 1);
    assert!(matches!(wrong, Err(OpError::DType { input: 2, .. })), "{wrong:?}");
    let flat = run_cpu(op("ConvInteger", &[]).as_ref(), &[Some(a.clone()), Some(a)], 1);
    assert!(flat.is_err());
}
