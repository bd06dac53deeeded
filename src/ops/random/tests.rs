use super::philox::{Philox, Seed};
use super::*;
use crate::dtype::DType;
use crate::graph::Tensor;
use crate::ops::Operator;
use crate::ops::test_util::{run_cpu, tensor};

#[test]
fn the_generator_gives_its_authors_numbers() {
    // The known answers of the paper's library for a key and a counter of zeros.
    let words = Philox { key: [0, 0] }.block(0);
    assert_eq!(words, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
}

#[test]
fn numbers_have_the_moments_of_their_distribution() {
    let draw = |distribution| {
        let op = RandomFill::new(distribution, Some(vec![200, 50]), Some(DType::F32), Some(3.5));
        run_cpu(&op, &[], 1).unwrap()[0].to_f32s().unwrap()
    };
    let moments = |v: &[f32]| {
        let n = v.len() as f64;
        let mean = v.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        (mean, v.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n)
    };
    let uniform = draw(Distribution::Uniform { low: -1.0, high: 3.0 });
    assert!(uniform.iter().all(|v| (-1.0..3.0).contains(v)));
    let (mean, variance) = moments(&uniform);
    assert!((mean - 1.0).abs() < 0.05 && (variance - 16.0 / 12.0).abs() < 0.05, "{mean} {variance}");
    let (mean, variance) = moments(&draw(Distribution::Normal { mean: 2.0, scale: 0.5 }));
    assert!((mean - 2.0).abs() < 0.02 && (variance - 0.25).abs() < 0.02, "{mean} {variance}");
}

#[test]
fn without_a_seed_every_run_differs_and_nothing_is_folded() {
    let distribution = Distribution::Uniform { low: 0.0, high: 1.0 };
    let op = RandomFill::new(distribution, Some(vec![8]), Some(DType::F32), None);
    let run = || run_cpu(&op, &[], 1).unwrap()[0].to_f32s().unwrap();
    assert_ne!(run(), run());
    assert!(op.varies() && !RandomFill::new(distribution, None, None, Some(0.0)).varies());
    assert_eq!(Seed::of(Some(1.0)).philox(), Seed::of(Some(1.0)).philox());
    let old = crate::ops::test_util::read_op("Dropout", 10, &crate::ops::AttrMap::new()).unwrap();
    assert!(!old.varies());
}

#[test]
fn dropped_elements_are_those_of_the_mask() {
    let x = tensor(&[40, 50], 1);
    let truth =
        Tensor::from_bytes(crate::graph::TensorInfo::new(DType::Bool, crate::shape::Shape::scalar()), &[1]);
    let inputs = [Some(x.clone()), Some(Tensor::scalar(0.25f32)), Some(truth.unwrap())];
    let y = run_cpu(&Dropout::new(false, Some(7)), &inputs, 2).unwrap();
    let (values, mask) = (y[0].to_f32s().unwrap(), y[1].as_slice::<u8>().unwrap());
    for ((y, x), m) in values.iter().zip(x.to_f32s().unwrap()).zip(mask) {
        assert!((y - if *m == 1 { x / 0.75 } else { 0.0 }).abs() < 1e-6);
    }
    let kept = mask.iter().filter(|m| **m == 1).count();
    assert!((1400..1600).contains(&kept), "{kept} of 2000 elements stay");
}

#[cfg(feature = "vulkan")]
#[test]
fn devices_draw_the_same_numbers() {
    use crate::ops::test_util::tensor_of;
    use crate::ops::testing::Check;
    use half::f16;
    for dtype in [DType::F32, DType::F16] {
        for distribution in
            [Distribution::Uniform { low: -2.0, high: 5.0 }, Distribution::Normal { mean: 1.0, scale: 2.0 }]
        {
            let op = RandomFill::new(distribution, Some(vec![37, 11]), Some(dtype), Some(0.25));
            Check::new(&op, &[]).tolerance(2e-3).run();
        }
    }
    let p = tensor_of(&[333], &crate::ops::test_util::values(333, 2), |v| 0.5 + 0.5 * v);
    Check::new(&Bernoulli::new(None, Some(4.0)), &[Some(p)]).run();
    let truth = crate::graph::TensorInfo::new(DType::Bool, crate::shape::Shape::scalar());
    let truth = || Some(Tensor::from_bytes(truth.clone(), &[1]).unwrap());
    for (outputs, x) in [
        (1, tensor(&[7, 9], 3)),
        (2, tensor(&[5, 13], 3)),
        (2, tensor_of(&[67], &crate::ops::test_util::values(67, 4), f16::from_f32)),
    ] {
        let inputs = [Some(x), Some(Tensor::scalar(0.375f32)), truth()];
        Check::new(&Dropout::new(false, Some(-3)), &inputs).outputs(outputs).tolerance(1e-3).run();
    }
    // Far from the bounds between classes, so that rounding picks no other one.
    let logs = Tensor::new([2, 3], &[0f32, f32::NEG_INFINITY, f32::NEG_INFINITY, -60.0, 3.0, -60.0]).unwrap();
    for wide in [false, true] {
        let op = Multinomial::new(37, wide, Some(1.0));
        Check::new(&op, &[Some(logs.clone())]).run();
        let half = tensor_of(&[2, 3], &[9.0, -9.0, -9.0, -9.0, -9.0, 9.0], f16::from_f32);
        Check::new(&op, &[Some(half)]).run();
    }
}

#[test]
fn classes_are_drawn_as_often_as_they_are_likely() {
    let logs = Tensor::new([1, 3], &[1f32.ln(), 2f32.ln(), 5f32.ln()]).unwrap();
    let y = run_cpu(&Multinomial::new(8000, true, Some(2.0)), &[Some(logs)], 1).unwrap();
    let drawn = y[0].to_i64s().unwrap();
    for (class, want) in [(0, 1000), (1, 2000), (2, 5000)] {
        let n = drawn.iter().filter(|c| **c == class).count() as i64;
        assert!((n - want).abs() < 150, "class {class} {n} times");
    }
}
