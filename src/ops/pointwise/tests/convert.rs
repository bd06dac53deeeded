//! Cast and CastLike.

use half::{bf16, f16};

use super::{everywhere, no_attrs, typed};
use crate::dtype::DType;
use crate::graph::Tensor;
use crate::ops::test_util::{attrs, facts, read_op, run_cpu};
use crate::ops::{AttrValue, OpError, cast};

/// Types that devices convert to and from one another; `float64` where they have it.
const ON_DEVICE: &[DType] = {
    use DType::*;
    &[F32, F16, BF16, I8, I32, I64, U8, U32, Bool]
};

#[test]
fn numbers_that_both_types_hold_survive_every_conversion() {
    // Whole, so that integers hold them; not negative, so that unsigned ones do.
    let values = [0.0, 1.0, 2.0, 3.0, 100.0, 127.0, 64.0];
    for from in DType::COMPUTE {
        for to in DType::COMPUTE {
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
fn narrow_types_hold_what_fits() {
    let values = [0.0, 1.0];
    for from in DType::ALL {
        for to in DType::ALL {
            let nothing = |d| d == DType::F8E8M0;
            let values = if nothing(from) || nothing(to) { [1.0, 1.0] } else { values };
            let y = run_cpu(cast(to).as_ref(), &[Some(typed(from, &[2], &values))], 1).unwrap().remove(0);
            let want = typed(to, &[2], &values);
            assert_eq!((y.info(), y.bytes()), (want.info(), want.bytes()), "{from} to {to}");
        }
    }
    let x = Tensor::new([6], &[-9.0f32, 7.9, 8.0, -1.5, f32::NAN, 15.0]).unwrap();
    let to = |dtype| run_cpu(cast(dtype).as_ref(), &[Some(x.clone())], 1).unwrap().remove(0);
    assert_eq!(to(DType::I4).as_slice::<i8>().unwrap(), [7, 7, -8, -1, 0, -1]);
    assert_eq!(to(DType::U4).bytes(), [7, 7, 8, 15, 0, 15]);
    assert_eq!(to(DType::I2).as_slice::<i8>().unwrap(), [-1, -1, 0, -1, 0, -1]);
    assert_eq!(to(DType::F4E2M1).bytes(), [15, 7, 7, 11, 8, 7]);
    assert_eq!(to(DType::F8E4M3Fn).bytes(), [0xD1, 0x50, 0x50, 0xBC, 0x7F, 0x57]);
    let back = run_cpu(cast(DType::U8).as_ref(), &[Some(to(DType::I4))], 1).unwrap().remove(0);
    assert_eq!(back.bytes(), [7, 7, 248, 255, 0, 255]);
}

#[test]
fn casts_say_what_narrow_floats_do() {
    let large = Tensor::new([3], &[1e9f32, f32::NEG_INFINITY, 1.5]).unwrap();
    let run = |to: i64, saturate: i64, round: &str| {
        let round = AttrValue::Str(round.as_bytes().to_vec());
        let given =
            [("to", AttrValue::Int(to)), ("saturate", AttrValue::Int(saturate)), ("round_mode", round)];
        let op = read_op("Cast", 25, &attrs(&given)).unwrap();
        run_cpu(op.as_ref(), &[Some(large.clone())], 1).unwrap().remove(0).bytes().to_vec()
    };
    assert_eq!(run(17, 1, "up"), [0x7E, 0xFE, 0x3C]);
    assert_eq!(run(17, 0, "up"), [0x7F, 0xFF, 0x3C]);
    assert_eq!(run(19, 0, "up"), [0x7C, 0xFC, 0x3E]);
    assert_eq!(run(24, 1, "up")[2], 128);
    assert_eq!(run(24, 1, "down")[2], 127);
    let wrong = attrs(&[("to", AttrValue::Int(24)), ("round_mode", AttrValue::Str(b"odd".to_vec()))]);
    assert!(matches!(read_op("Cast", 25, &wrong), Err(OpError::Attr(_))));
    let named = attrs(&[("to", AttrValue::Str(b"DOUBLE".to_vec()))]);
    let op = read_op("Cast", 1, &named).unwrap();
    assert_eq!(run_cpu(op.as_ref(), &[Some(large)], 1).unwrap()[0].dtype(), DType::F64);
}

#[test]
fn what_is_wide_is_rounded_once() {
    let tie = 1.0 + 2f64.powi(-11);
    let x = Tensor::new([6], &[tie, tie + 2f64.powi(-40), -tie - 2f64.powi(-40), 1e300, 65519.9, f64::NAN])
        .unwrap();
    let y = everywhere(cast(DType::F16).as_ref(), &[Some(x.clone())], 0.0);
    let bits: Vec<u16> = y.as_slice::<f16>().unwrap().iter().map(|v| v.to_bits()).collect();
    assert_eq!(bits[..5], [0x3C00, 0x3C01, 0xBC01, 0x7C00, 0x7BFF]);
    let tie = 1i64 << 30 | 1 << 22;
    let x = Tensor::new([5], &[tie, tie + 1, -tie - 1, tie - 1, 3 * tie]).unwrap();
    for dtype in [DType::I32, DType::I64, DType::F64] {
        let x = run_cpu(cast(dtype).as_ref(), &[Some(x.clone())], 1).unwrap().remove(0);
        let y = everywhere(cast(DType::BF16).as_ref(), &[Some(x)], 0.0);
        let bits: Vec<u16> = y.as_slice::<bf16>().unwrap().iter().map(|v| v.to_bits()).collect();
        assert_eq!(bits[..4], [0x4E80, 0x4E81, 0xCE81, 0x4E80], "{dtype}");
    }
}

#[test]
fn bits_are_kept_under_another_type() {
    let op = |to: i64| read_op("BitCast", 26, &attrs(&[("to", AttrValue::Int(to))])).unwrap();
    let x = Tensor::new([2], &[1.0f32, -2.0]).unwrap();
    let y = run_cpu(op(6).as_ref(), &[Some(x.clone())], 1).unwrap().remove(0);
    assert_eq!(y.as_slice::<i32>().unwrap(), [0x3F80_0000, 0xC000_0000u32 as i32]);
    assert_eq!(op(6).alias(&facts(op(6).as_ref(), &[Some(x.clone())], 1).unwrap()), Some(0));
    assert!(matches!(run_cpu(op(7).as_ref(), &[Some(x)], 1), Err(OpError::DType { .. })));
    let fours = typed(DType::U4, &[3], &[7.0, 8.0, 15.0]);
    let y = run_cpu(op(22).as_ref(), &[Some(fours.clone())], 1).unwrap().remove(0);
    assert_eq!(y.as_slice::<i8>().unwrap(), [7, -8, -1]);
    let y = run_cpu(op(21).as_ref(), &[Some(y)], 1).unwrap().remove(0);
    assert_eq!(y.bytes(), fours.bytes());
    let bytes = Tensor::new([3], &[0u8, 1, 200]).unwrap();
    assert_eq!(run_cpu(op(9).as_ref(), &[Some(bytes)], 1).unwrap()[0].bytes(), [0, 1, 1]);
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

#[test]
fn numbers_beyond_halves_may_become_ones_inside() {
    let x = [-3.4e38f32, -65505.0, -65504.0, 1.5, 65504.0, 65519.0, 1e9, f32::INFINITY, f32::NEG_INFINITY];
    let inputs = [Some(Tensor::new([9], &x).unwrap())];
    let op = crate::ops::pointwise::cast::cast_within();
    let got = run_cpu(op.as_ref(), &inputs, 1).unwrap().remove(0).to_f32s().unwrap();
    let far = 32768.0;
    assert_eq!(got, [-far, -far, -65504.0, 1.5, 65504.0, far, far, f32::INFINITY, f32::NEG_INFINITY]);
    #[cfg(feature = "vulkan")]
    crate::ops::testing::check_op(op.as_ref(), &inputs, 0.0);
}
