//! Products of bytes whose sums become numbers, against their definition on every device.

use super::tests::{bytes, convolved, everywhere, ints, sums};
use super::{QuantizedConv, QuantizedMatMul, SumsBecome};
use crate::dtype::DType;
use crate::expr::Function;
use crate::graph::Tensor;
use crate::ops::test_util::values;
use crate::ops::{Activation, Operator, WindowAttrs};

/// The inputs after the zero points: the scale of A, the scales of B, the bias.
struct Given {
    a_scale: Option<f32>,
    b_scales: usize,
    bias: bool,
}

const GIVEN: [Given; 4] = [
    Given { a_scale: Some(0.013), b_scales: 1, bias: true },
    Given { a_scale: Some(0.013), b_scales: 2, bias: false },
    Given { a_scale: None, b_scales: 2, bias: true },
    Given { a_scale: None, b_scales: 0, bias: false },
];

impl Given {
    /// The inputs for `lines` lines of weights, and the number that a sum of a line stands for.
    fn inputs(&self, lines: usize) -> ([Option<Tensor>; 3], impl Fn(i64, usize) -> f32 + use<>) {
        let count = [0, 1, lines][self.b_scales];
        let scales: Vec<f32> = values(count, 4).iter().map(|v| v.abs() * 0.1 + 0.01).collect();
        let bias: Vec<f32> = if self.bias { values(lines, 5) } else { Vec::new() };
        let tensor = |v: &[f32]| (!v.is_empty()).then(|| Tensor::new([v.len()], v).unwrap());
        let inputs = [self.a_scale.map(Tensor::scalar), tensor(&scales), tensor(&bias)];
        let a_scale = self.a_scale.unwrap_or(1.0);
        let number = move |sum: i64, line: usize| {
            let scale = if scales.is_empty() { 1.0 } else { scales[line % scales.len()] };
            sum as f32 * (a_scale * scale) + bias.get(line).copied().unwrap_or(0.0)
        };
        (inputs, number)
    }
}

/// The results everywhere, with and without constant weights.
#[track_caller]
fn all(op: &dyn Operator, inputs: &[Option<Tensor>], tolerance: f64) -> Vec<f32> {
    let y =
        if tolerance == 0.0 { everywhere(op, inputs, 1).remove(0) } else { checked(op, inputs, tolerance) };
    #[cfg(feature = "vulkan")]
    {
        use crate::ops::testing::Check;
        Check::new(op, inputs).constants(&[1]).tolerance(tolerance).run();
        Check::new(op, inputs).constants(&[1, 3]).tolerance(tolerance).run();
        let no_dot = |info: &mut crate::backend::DeviceInfo| {
            info.features = info.features.missing(crate::kernel::Requires::DOT_PRODUCT);
        };
        Check::new(op, inputs).constants(&[1, 3]).tolerance(tolerance).pretend(no_dot).run();
    }
    y.to_f32s().unwrap()
}

#[track_caller]
fn checked(op: &dyn Operator, inputs: &[Option<Tensor>], tolerance: f64) -> Tensor {
    #[cfg(feature = "vulkan")]
    return crate::ops::testing::Check::new(op, inputs).tolerance(tolerance).run().remove(0);
    #[cfg(not(feature = "vulkan"))]
    {
        let _ = tolerance;
        everywhere(op, inputs, 1).remove(0)
    }
}

#[test]
fn products_are_numbers_by_their_scales() {
    let shapes: [(&[usize], &[usize]); 5] = [
        (&[1, 32], &[32, 6]),
        (&[7, 300], &[300, 9]),
        (&[2, 4, 16], &[2, 16, 5]),
        (&[3, 2, 48], &[48, 4]),
        (&[5, 17], &[17, 1]),
    ];
    let op = QuantizedMatMul { sums: SumsBecome::Numbers { activation: Activation::None }, biased: false };
    for (i, (a, b)) in shapes.into_iter().enumerate() {
        for (at, bt) in [(DType::U8, DType::I8), (DType::U8, DType::U8), (DType::I8, DType::I8)] {
            let n = b[b.len() - 1];
            let (x, w) = (bytes(at, a, i as u64 + 1), bytes(bt, b, i as u64 + 9));
            let centre = Tensor::from_bytes(
                crate::graph::TensorInfo::new(bt, crate::shape::Shape::scalar()),
                &[if bt == DType::I8 { 0 } else { 128 }],
            );
            let zeros = [centre.unwrap(), bytes(bt, &[], 6), bytes(bt, &[n], 8)];
            for (zb, given) in zeros.into_iter().zip(&GIVEN) {
                let za = bytes(at, &[], 5);
                let (rest, number) = given.inputs(n);
                let inputs: Vec<Option<Tensor>> =
                    [&x, &w, &za, &zb].map(|t| Some(t.clone())).into_iter().chain(rest).collect();
                let want = sums(&x, &w, &ints(&za), &ints(&zb)).into_iter().enumerate();
                let want: Vec<f32> = want.map(|(i, sum)| number(sum, i % n)).collect();
                assert_eq!(all(&op, &inputs, 0.0), want, "{a:?} {b:?}");
            }
            let (rest, number) = GIVEN[3].inputs(n);
            let plain: Vec<Option<Tensor>> =
                [Some(x.clone()), Some(w.clone()), None, None].into_iter().chain(rest).collect();
            let want = sums(&x, &w, &[0], &[0]).into_iter();
            assert_eq!(all(&op, &plain, 0.0), want.map(|sum| number(sum, 0)).collect::<Vec<_>>());
        }
    }
}

#[test]
fn products_have_an_activation() {
    let activation = Activation::of(Function::Gelu);
    let op = QuantizedMatMul { sums: SumsBecome::Numbers { activation }, biased: false };
    let (x, w, zero) =
        (bytes(DType::U8, &[5, 64], 1), bytes(DType::I8, &[64, 9], 2), bytes(DType::U8, &[], 3));
    let (rest, number) = Given { a_scale: Some(0.001), b_scales: 2, bias: true }.inputs(9);
    let inputs: Vec<Option<Tensor>> =
        [Some(x.clone()), Some(w.clone()), Some(zero.clone()), None].into_iter().chain(rest).collect();
    let y = all(&op, &inputs, 1e-6);
    let mut want: Vec<f32> =
        sums(&x, &w, &ints(&zero), &[0]).into_iter().enumerate().map(|(i, s)| number(s, i % 9)).collect();
    activation.apply(&mut want);
    assert_eq!(y, want);
}

#[test]
fn convolutions_are_numbers_by_their_scales() {
    let cases: [(&[usize], &[usize], usize); 3] = [
        (&[1, 16, 5, 4], &[6, 16, 1, 1], 1),
        (&[2, 4, 6, 5], &[6, 2, 3, 3], 2),
        (&[1, 3, 7, 9], &[3, 1, 3, 3], 3),
    ];
    for (xs, ws, group) in cases {
        for (xt, wt) in [(DType::U8, DType::I8), (DType::U8, DType::U8)] {
            let (x, w, zx) = (bytes(xt, xs, 1), bytes(wt, ws, 2), bytes(xt, &[], 3));
            for (zeros, given) in [1, ws[0], 1].into_iter().zip(&GIVEN) {
                let zw = bytes(wt, &[zeros], 4);
                let window = WindowAttrs { pads: vec![1; 4], ..WindowAttrs::default() };
                let sums = SumsBecome::Numbers { activation: Activation::None };
                let op = QuantizedConv { window, group, sums };
                let (rest, number) = given.inputs(ws[0]);
                let inputs: Vec<Option<Tensor>> =
                    [&x, &w, &zx, &zw].map(|t| Some(t.clone())).into_iter().chain(rest).collect();
                let want = convolved(&x, &w, ints(&zx)[0], &ints(&zw), group, 1, 1);
                let plane = want.len() / xs[0] / ws[0];
                let want = want.into_iter().enumerate().map(|(i, sum)| number(sum, i / plane % ws[0]));
                assert_eq!(all(&op, &inputs, 0.0), want.collect::<Vec<_>>());
            }
        }
    }
}
