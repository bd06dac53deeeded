//! Cast and CastLike.

use half::f16;

use super::{everywhere, no_attrs, typed};
use crate::dtype::DType;
use crate::graph::Tensor;
use crate::ops::test_util::{attrs, facts, read_op, run_cpu};
use crate::ops::{AttrValue, OpError, cast};

/// Types that devices convert to and from one another; `float64` only with some.
const ON_DEVICE: &[DType] =
    &[DType::F32, DType::F16, DType::I8, DType::I32, DType::I64, DType::U8, DType::U32, DType::Bool];

#[test]
fn numbers_that_both_types_hold_survive_every_conversion() {
    // Whole, so that integers hold them; not negative, so that unsigned ones do.
    let values = [0.0, 1.0, 2.0, 3.0, 100.0, 127.0, 64.0];
    for from in DType::ALL {
        for to in DType::ALL {
            let op = cast(to);
            let x = typed(from, &[7], &values);
            let want = typed(to, &[7], &values);
            let by_device = ON_DEVICE.contains(&from) && ON_DEVICE.contains(&to);
            let want = if from == DType::Bool {
                typed(to, &[7], &[0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
            } else {
                want
            };
            let y = if by_device {
                everywhere(op.as_ref(), &[Some(x)], 0.0)
            } else {
                run_cpu(op.as_ref(), &[Some(x)], 1).unwrap().remove(0)
            };
            assert_eq!(y.bytes(), want.bytes(), "{from} to {to}");
        }
    }
}

#[test]
fn doubles_convert_on_devices_that_have_them() {
    let x = Tensor::new([4], &[1.5f64, -2.75, 1e300, 3e9]).unwrap();
    let y = everywhere(cast(DType::F32).as_ref(), &[Some(x.clone())], 0.0);
    assert_eq!(y.as_slice::<f32>().unwrap(), [1.5, -2.75, f32::INFINITY, 3e9]);
    let y = everywhere(cast(DType::I64).as_ref(), &[Some(x)], 0.0);
    assert_eq!(y.as_slice::<i64>().unwrap(), [1, -2, i64::MAX, 3_000_000_000]);
}

#[test]
fn floats_are_cut_off_and_kept_within_range() {
    let x = Tensor::new([8], &[1.9f32, -1.9, 300.0, -300.0, 1e20, -1e20, f32::NAN, f32::INFINITY]).unwrap();
    let to = |dtype| everywhere(cast(dtype).as_ref(), &[Some(x.clone())], 0.0);
    assert_eq!(to(DType::I8).as_slice::<i8>().unwrap(), [1, -1, 127, -128, 127, -128, 0, 127]);
    assert_eq!(to(DType::U8).as_slice::<u8>().unwrap(), [1, 0, 255, 0, 255, 0, 0, 255]);
    let (low, high) = (i32::MIN, i32::MAX);
    assert_eq!(to(DType::I32).as_slice::<i32>().unwrap(), [1, -1, 300, -300, high, low, 0, high]);
    assert_eq!(to(DType::U32).as_slice::<u32>().unwrap(), [1, 0, 300, 0, u32::MAX, 0, 0, u32::MAX]);
    let (low, high) = (i64::MIN, i64::MAX);
    assert_eq!(to(DType::I64).as_slice::<i64>().unwrap(), [1, -1, 300, -300, high, low, 0, high]);
    assert_eq!(to(DType::Bool).bytes(), [1; 8]);
    let zeros = Tensor::new([3], &[0.0f32, -0.0, 1e-40]).unwrap();
    let y = run_cpu(cast(DType::Bool).as_ref(), &[Some(zeros)], 1).unwrap().remove(0);
    assert_eq!(y.bytes(), [0, 0, 1]);
}

#[test]
fn integers_keep_their_low_bits() {
    let x = Tensor::new([4], &[-1i64, 300, 1 << 40, i64::MIN + 5]).unwrap();
    let to = |dtype| everywhere(cast(dtype).as_ref(), &[Some(x.clone())], 0.0);
    assert_eq!(to(DType::U8).as_slice::<u8>().unwrap(), [255, 44, 0, 5]);
    assert_eq!(to(DType::I32).as_slice::<i32>().unwrap(), [-1, 300, 0, 5]);
    assert_eq!(to(DType::Bool).bytes(), [1, 1, 1, 1]);
}

#[test]
fn floats_become_the_nearest_half() {
    // Ties to even, subnormals, overflow, NaN; and everything that is a half already.
    let mut values =
        vec![65504.0, 65519.0, 65520.0, 1e9, -1e9, f32::NAN, 2049.0, 2051.0, 5.96e-8, 2.9e-8, 3e-8, -0.0];
    values.extend((0..=u16::MAX).step_by(37).map(|b| f16::from_bits(b).to_f32() * 1.000_3));
    let x = Tensor::new([values.len()], &values).unwrap();
    let y = everywhere(cast(DType::F16).as_ref(), &[Some(x)], 0.0);
    for (v, y) in values.iter().zip(y.as_slice::<f16>().unwrap()) {
        let want = f16::from_f32(*v);
        assert!(*y == want || (y.is_nan() && v.is_nan()), "{v} becomes {y}, expected {want}");
    }
}

#[test]
fn the_type_comes_from_the_attribute_or_the_second_input() {
    let op = read_op("Cast", 13, &attrs(&[("to", AttrValue::Int(7))])).unwrap();
    let x = Tensor::new([2], &[1.5f32, -2.0]).unwrap();
    assert_eq!(run_cpu(op.as_ref(), &[Some(x.clone())], 1).unwrap()[0].as_slice::<i64>().unwrap(), [1, -2]);
    let like = read_op("CastLike", 15, &no_attrs()).unwrap();
    let y = everywhere(like.as_ref(), &[Some(x.clone()), Some(Tensor::scalar(0i32))], 0.0);
    assert_eq!(y.as_slice::<i32>().unwrap(), [1, -2]);
    let same = cast(DType::F32);
    assert_eq!(same.alias(&facts(same.as_ref(), &[Some(x)], 1).unwrap()), Some(0));
    assert!(matches!(read_op("Cast", 13, &no_attrs()), Err(OpError::Attr(_))));
    let text = read_op("Cast", 13, &attrs(&[("to", AttrValue::Int(8))]));
    assert!(matches!(text, Err(OpError::Attr(e)) if e.to_string().contains("element type 8")));
}
