//! Operators on bytes against the operators between DequantizeLinear and QuantizeLinear that they replace, on every

use proptest::prelude::*;

use super::tests::{bytes, convolved, everywhere, ints, sums};
use super::{ByteTable, QuantizedBinary, QuantizedConv, QuantizedMatMul, Scaling, SumsBecome};
use crate::dtype::DType;
use crate::graph::Tensor;
use crate::ops::test_util::run_cpu;
use crate::ops::{OpError, WindowAttrs};

fn scaling(signed: bool, scale: f32, zero: i32) -> Scaling {
    let dtype = if signed { DType::I8 } else { DType::U8 };
    Scaling { dtype, scale, zero: if signed { zero - 128 } else { zero } }
}

/// Operands, by shape, and what NumPy's rule makes of them.
const SHAPES: [[&[usize]; 3]; 7] = [
    [&[3, 5, 7], &[3, 5, 7], &[3, 5, 7]],
    [&[2, 3, 4, 5], &[2, 3, 1, 1], &[2, 3, 4, 5]],
    [&[1, 1], &[4, 33], &[4, 33]],
    [&[5, 1], &[1, 6], &[5, 6]],
    [&[2, 70, 3], &[3], &[2, 70, 3]],
    [&[1], &[], &[1]],
    [&[0, 3], &[3], &[0, 3]],
];

#[test]
fn sums_and_products_of_bytes_are_those_of_their_numbers() {
    for (i, [a, b, y]) in SHAPES.into_iter().enumerate() {
        for (product, signed) in [(false, [false, true, false]), (true, [true, false, true])] {
            let [of_a, of_b, of_y] =
                [scaling(signed[0], 0.05, 100), scaling(signed[1], 0.031, 7), scaling(signed[2], 0.11, 120)];
            for clamp in [None, Some([-20, 60])] {
                let op = QuantizedBinary { product, scalings: [of_a, of_b, of_y], clamp };
                let x = bytes(of_a.dtype, a, i as u64 + 1);
                let w = bytes(of_b.dtype, b, i as u64 + 8);
                let got = everywhere(&op, &[Some(x.clone()), Some(w.clone())], 1).remove(0);
                assert_eq!((got.dtype(), got.shape().dims()), (of_y.dtype, y));
                let number = |t: &Tensor, s: Scaling| {
                    let each = ints(t).into_iter().map(|v| (v - i64::from(s.zero)) as f32 * s.scale);
                    Tensor::new(t.shape().to_vec(), &each.collect::<Vec<f32>>()).unwrap()
                };
                let plain = if product { crate::ops::mul() } else { crate::ops::add() };
                let inputs = [Some(number(&x, of_a)), Some(number(&w, of_b))];
                let want = run_cpu(plain.as_ref(), &inputs, 1).unwrap().remove(0);
                let [low, high] = clamp.unwrap_or(of_y.range()).map(i64::from);
                for (got, v) in ints(&got).into_iter().zip(want.to_f32s().unwrap()) {
                    let exact = f64::from(v) / f64::from(of_y.scale) + f64::from(of_y.zero);
                    let kept = exact
                        .clamp(low as f64, high as f64)
                        .clamp(f64::from(of_y.range()[0]), f64::from(of_y.range()[1]));
                    assert!((got as f64 - kept).abs() <= 0.501, "{got} for {exact}");
                }
            }
        }
    }
}

#[test]
fn tables_map_bits_and_lift_ranks() {
    let table = bytes(DType::I8, &[256], 5);
    for (dtype, n) in [(DType::U8, 1), (DType::I8, 1003), (DType::U8, 0)] {
        let x = bytes(dtype, &[n], 3);
        let got = everywhere(&ByteTable { rank: 3 }, &[Some(x.clone()), Some(table.clone())], 1).remove(0);
        assert_eq!((got.dtype(), got.shape().dims()), (DType::I8, &[1, 1, n][..]));
        let want: Vec<u8> = x.bytes().iter().map(|b| table.bytes()[usize::from(*b)]).collect();
        assert_eq!(got.bytes(), want);
    }
    let short = bytes(DType::U8, &[255], 5);
    let wrong = run_cpu(&ByteTable { rank: 0 }, &[Some(table), Some(short)], 1);
    assert!(matches!(wrong, Err(OpError::InputShape { input: 1, .. })), "{wrong:?}");
}

#[test]
fn products_have_a_bias_for_each_column_and_keep_within_bounds() {
    let parameters = [(&[7usize, 9][..], 6), (&[1, 40], 33), (&[2, 3, 16], 5)];
    for (shape, n) in parameters {
        let k = shape[shape.len() - 1];
        let (a, b) = (bytes(DType::U8, shape, 1), bytes(DType::I8, &[k, n], 2));
        let bias: Vec<i32> = (0..n as i32).map(|i| 700 * i - 2000).collect();
        let scales: Vec<f32> = (0..n).map(|i| 0.01 + 0.001 * i as f32).collect();
        let inputs = [
            Some(a.clone()),
            Some(Tensor::scalar(0.05f32)),
            Some(Tensor::scalar(11u8)),
            Some(b.clone()),
            Some(Tensor::new([n], &scales).unwrap()),
            Some(Tensor::scalar(0i8)),
            Some(Tensor::scalar(0.2f32)),
            Some(Tensor::scalar(-3i8)),
            Some(Tensor::new([n], &bias).unwrap()),
        ];
        let clamp = Some([-3, 90]);
        let op = QuantizedMatMul { sums: SumsBecome::Bytes { clamp }, biased: true };
        let y = everywhere(&op, &inputs, 1).remove(0);
        let want = sums(&a, &b, &[11], &[0]).into_iter().enumerate().map(|(i, s)| {
            let multiplier = 0.05f32 * scales[i % n] / 0.2;
            let v = ((s + i64::from(bias[i % n])) as f32 * multiplier).round_ties_even() as i64;
            (v - 3).clamp(-3, 90)
        });
        assert_eq!(ints(&y), want.collect::<Vec<_>>());
        let mut wrong = inputs.clone();
        wrong[8] = Some(Tensor::new([n + 1], &vec![0i32; n + 1]).unwrap());
        assert!(matches!(run_cpu(&op, &wrong, 1), Err(OpError::InputShape { input: 8, .. })));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn depthwise_convolutions_are_exact(
        (batch, group, many) in (1usize..3, 1usize..40, 1usize..3),
        (h, w, kernel, pad, stride) in (1usize..20, 1usize..40, 1usize..6, 0i64..3, 1i64..3),
        signed in any::<[bool; 2]>(), seed in any::<u64>(), bounded in any::<bool>(),
    ) {
        prop_assume!(h as i64 + 2 * pad >= kernel as i64 && w as i64 + 2 * pad >= kernel as i64);
        let [xt, wt] = signed.map(|signed| if signed { DType::I8 } else { DType::U8 });
        let x = bytes(xt, &[batch, group, h, w], seed);
        let taps = bytes(wt, &[group * many, 1, kernel, kernel], seed ^ 3);
        let (zx, zw) = (bytes(xt, &[], seed ^ 5), bytes(wt, &[group * many], seed ^ 7));
        let window = WindowAttrs { strides: vec![stride; 2], pads: vec![pad; 4], ..WindowAttrs::default() };
        let clamp = bounded.then_some([5, 77]);
        let op = QuantizedConv { window, group, sums: SumsBecome::Bytes { clamp } };
        let bias: Vec<i32> = (0..(group * many) as i32).map(|i| i.wrapping_mul(300_000_001)).collect();
        let inputs = [
            Some(x.clone()),
            Some(Tensor::scalar(0.5f32)),
            Some(zx.clone()),
            Some(taps.clone()),
            Some(Tensor::scalar(0.5f32)),
            Some(zw.clone()),
            Some(Tensor::scalar(70.0f32)),
            Some(Tensor::scalar(9u8)),
            Some(Tensor::new([group * many], &bias).unwrap()),
        ];
        let y = run_cpu(&op, &inputs, 1).unwrap().remove(0);
        let sums = convolved(&x, &taps, ints(&zx)[0], &ints(&zw), group, pad, stride);
        let plane = sums.len() / batch / group / many;
        let [low, high] = clamp.unwrap_or([0, 255]).map(i64::from);
        let want = sums.iter().enumerate().map(|(i, s)| {
            let sum = (*s as i32).wrapping_add(bias[i / plane % (group * many)]);
            ((sum as f32 * (0.5f32 * 0.5 / 70.0)).round_ties_even() as i64 + 9).clamp(low, high)
        });
        prop_assert_eq!(ints(&y), want.collect::<Vec<_>>());
    }
}
