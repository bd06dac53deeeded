//! Functions of two and more elements, and Where.

use super::{everywhere, near, no_attrs, precision, samples, typed, wide};
use crate::dtype::DType;
use crate::graph::Tensor;
use crate::ops::pointwise::function::{INTEGERS, NUMBERS};
use crate::ops::real::FLOATS;
use crate::ops::test_util::{attrs, facts, read_op};
use crate::ops::{AttrValue, OpError, Operator};
use crate::shape::Shape;

/// The element of `t` that broadcasts to element `i` of `shape`, by the definition.
fn at(t: &Tensor, shape: &Shape, mut i: usize) -> usize {
    let own = t.shape();
    let (mut offset, mut stride) = (0, 1);
    for d in 0..shape.rank() {
        let size = shape[shape.rank() - 1 - d];
        let c = i % size;
        i /= size;
        if d < own.rank() {
            let own_size = own[own.rank() - 1 - d];
            offset += if own_size == 1 { 0 } else { c * stride };
            stride *= own_size;
        }
    }
    offset
}

fn naive(inputs: &[&Tensor], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let shape = inputs.iter().fold(Shape::scalar(), |s, t| s.broadcast(t.shape()).unwrap());
    let values: Vec<Vec<f64>> = inputs.iter().map(|t| wide(t)).collect();
    (0..shape.elements())
        .map(|i| {
            let x: Vec<f64> = inputs.iter().zip(&values).map(|(t, v)| v[at(t, &shape, i)]).collect();
            f(&x)
        })
        .collect()
}

/// Pairs of shapes: alike (by fours and not), scalars, rows, columns, channels, ragged ones, empty ones.
const SHAPES: &[(&[usize], &[usize])] = &[
    (&[2, 3, 8], &[2, 3, 8]),
    (&[35], &[35]),
    (&[3, 7], &[]),
    (&[1], &[4, 8]),
    (&[5, 12], &[12]),
    (&[5, 12], &[5, 1]),
    (&[2, 3, 4, 5], &[3, 1, 1]),
    (&[1, 3, 1], &[2, 1, 8]),
    (&[3, 1, 4, 1, 2], &[1, 5, 1, 3, 1]),
    (&[2, 1, 3, 1, 2, 1], &[1, 2, 1, 2, 1, 2]),
    (&[0, 3], &[1, 3]),
];

fn pair(dtype: DType, a: &[usize], b: &[usize]) -> [Tensor; 2] {
    let small = |shape: &[usize], seed| {
        let n: usize = shape.iter().product();
        // Numbers that every type holds, with odd ones among floats.
        let v: Vec<f32> = samples(n + 3, seed)
            .iter()
            .skip(if dtype.is_float() { 0 } else { 3 })
            .map(|v| if dtype.is_float() { *v } else { v.clamp(-9.0, 9.0) })
            .take(n)
            .collect();
        typed(dtype, shape, &v)
    };
    [small(a, 3), small(b, 11)]
}

/// The result wrapped as integers of `dtype` wrap.
fn wrapped(dtype: DType, v: f64) -> f64 {
    if !dtype.is_int() {
        return v;
    }
    let bits = 8 * dtype.bytes() as u32;
    let (v, span) = (v as i128, 1i128 << bits);
    let low = v.rem_euclid(span);
    (if dtype.is_signed_int() && low >= span / 2 { low - span } else { low }) as f64
}

fn op_of(name: &str) -> std::sync::Arc<dyn Operator> {
    read_op(name, 24, &no_attrs()).unwrap()
}

fn check(
    name: &str,
    op: &dyn Operator,
    dtypes: &[DType],
    tolerance: f64,
    f: impl Fn(DType, f64, f64) -> f64,
) {
    for &dtype in dtypes {
        for (a, b) in SHAPES {
            // Ragged shapes once for each element size are enough.
            if a.len() > 4 && !matches!(dtype, DType::F32 | DType::I64 | DType::U8) {
                continue;
            }
            let [a, b] = pair(dtype, a, b);
            let want: Vec<f64> = naive(&[&a, &b], |x| wrapped(dtype, f(dtype, x[0], x[1])));
            let y = everywhere(op, &[Some(a), Some(b)], precision(dtype).max(tolerance));
            near(name, &y, &want, precision(dtype).max(tolerance));
        }
    }
}

#[test]
fn arithmetic_broadcasts_and_wraps() {
    check("Add", op_of("Add").as_ref(), NUMBERS, 0.0, |_, a, b| a + b);
    check("Sub", op_of("Sub").as_ref(), NUMBERS, 0.0, |_, a, b| a - b);
    check("Mul", op_of("Mul").as_ref(), NUMBERS, 0.0, |_, a, b| a * b);
    check("Div", op_of("Div").as_ref(), NUMBERS, 0.0, |dtype, a, b| match dtype.is_int() {
        true if b == 0.0 => 0.0,
        true => (a / b).trunc(),
        false => a / b,
    });
}

#[test]
fn remainders_take_the_sign_that_they_should() {
    let fmod = read_op("Mod", 13, &attrs(&[("fmod", AttrValue::Int(1))])).unwrap();
    let no_zero = |dtype: DType, b: f64, r: f64| if dtype.is_int() && b == 0.0 { 0.0 } else { r };
    // Quotients of half and single floats are rounded on devices.
    check("Mod", fmod.as_ref(), INTEGERS, 0.0, |dtype, a, b| no_zero(dtype, b, a % b));
    check("Mod", op_of("Mod").as_ref(), INTEGERS, 0.0, |dtype, a, b| {
        no_zero(dtype, b, a - b * (a / b).floor())
    });
    for &dtype in FLOATS {
        let a = typed(dtype, &[8], &[-4.3, 7.2, 5.0, 4.3, -7.2, 8.0, f32::NAN, 3.0]);
        let b = typed(dtype, &[8], &[2.1, -3.4, 8.0, -2.1, 3.4, 5.0, 1.0, f32::INFINITY]);
        let tolerance = 4.0 * precision(dtype);
        let want = naive(&[&a, &b], |x| x[0] % x[1]);
        near(
            "Mod",
            &everywhere(fmod.as_ref(), &[Some(a.clone()), Some(b.clone())], tolerance),
            &want,
            tolerance,
        );
        let want = naive(&[&a, &b], |x| {
            let r = x[0] % x[1];
            if r != 0.0 && (r < 0.0) != (x[1] < 0.0) { r + x[1] } else { r }
        });
        near("Mod", &everywhere(op_of("Mod").as_ref(), &[Some(a), Some(b)], tolerance), &want, tolerance);
    }
}

#[test]
fn powers_of_every_pair_of_types() {
    let pow = op_of("Pow");
    let a = [2.0, -2.0, 3.0, 1.0, -1.0, 0.0, 5.0, 0.0, -3.0, 7.0];
    let e = [3.0, 3.0, 2.0, 7.0, 5.0, 0.0, 1.0, 2.0, 0.0, 2.0];
    for &base in NUMBERS {
        for &exponent in NUMBERS {
            let (a, e) = (typed(base, &[10], &a), typed(exponent, &[10], &e));
            let want = naive(&[&a, &e], |x| wrapped(base, x[0].powf(x[1])));
            let inputs = [Some(a), Some(e)];
            let tolerance = precision(base).max(1e-5);
            // Integers to the power of another type run on the host, and exponents that devices do not convert.
            let converted = !matches!(exponent, DType::I16 | DType::U16 | DType::U64);
            let host = base != exponent && (base.is_int() || !converted);
            let y = if host {
                crate::ops::test_util::run_cpu(pow.as_ref(), &inputs, 1).unwrap().remove(0)
            } else {
                everywhere(pow.as_ref(), &inputs, tolerance)
            };
            near("Pow", &y, &want, tolerance);
        }
    }
    let base = [0.0, -0.0, 2.0, -8.0, 0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0, 4.0, 0.25, 2.5];
    let exponents = [0.0f32, 1.0, 2.0, 3.0, -1.0, 0.5, -2.0, 2.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for e in exponents {
        let (a, e) = (typed(DType::F32, &[12], &base), Tensor::scalar(e));
        let want = naive(&[&a, &e], |x| x[0].powf(x[1]));
        near("Pow", &everywhere(pow.as_ref(), &[Some(a), Some(e)], 1e-5), &want, 1e-6);
    }
    let (a, e) =
        (Tensor::new([4], &[2i32, 1, -1, 0]).unwrap(), Tensor::new([4], &[-1i32, -5, -3, -1]).unwrap());
    let y = everywhere(pow.as_ref(), &[Some(a), Some(e)], 0.0);
    assert_eq!(y.as_slice::<i32>().unwrap(), [0, 1, -1, 0]);
}

#[test]
fn prelu_broadcasts_the_slope_only() {
    let op = op_of("PRelu");
    for &dtype in NUMBERS {
        for (x, slope) in [(&[2, 3, 4][..], &[3, 1][..]), (&[5, 7], &[5, 7]), (&[6], &[1])] {
            let [x, slope] = pair(dtype, x, slope);
            let want = naive(&[&x, &slope], |x| wrapped(dtype, if x[0] < 0.0 { x[0] * x[1] } else { x[0] }));
            let y = everywhere(op.as_ref(), &[Some(x), Some(slope)], precision(dtype));
            near("PRelu", &y, &want, precision(dtype));
        }
    }
    let [x, slope] = pair(DType::F32, &[3], &[2, 3]);
    assert!(matches!(facts(op.as_ref(), &[Some(x), Some(slope)], 1), Err(OpError::InputShape { .. })));
}

type Test = fn(f64, f64) -> bool;

#[test]
fn comparisons_of_every_type() {
    let all: [(&str, Test); 5] = [
        ("Equal", |a, b| a == b),
        ("Less", |a, b| a < b),
        ("LessOrEqual", |a, b| a <= b),
        ("Greater", |a, b| a > b),
        ("GreaterOrEqual", |a, b| a >= b),
    ];
    for (name, f) in all {
        check(name, op_of(name).as_ref(), NUMBERS, 0.0, |_, a, b| f64::from(u8::from(f(a, b))));
    }
    let equal = op_of("Equal");
    check("Equal", equal.as_ref(), &[DType::Bool], 0.0, |_, a, b| f64::from(u8::from(a == b)));
    assert!(matches!(
        facts(op_of("Less").as_ref(), &pair(DType::Bool, &[1], &[1]).map(Some), 1),
        Err(OpError::DType { .. })
    ));
    // Beyond the precision of floats.
    let a = Tensor::new([2], &[i64::MAX, i64::MIN]).unwrap();
    let b = Tensor::new([2], &[i64::MAX - 1, i64::MIN]).unwrap();
    assert_eq!(everywhere(equal.as_ref(), &[Some(a), Some(b)], 0.0).bytes(), [0, 1]);
}

type OfBits = fn(u64, u64) -> u64;
type OfNumbers = fn(f64, f64) -> f64;

#[test]
fn logic_and_bits() {
    let logic: [(&str, OfBits); 3] = [("And", |a, b| a & b), ("Or", |a, b| a | b), ("Xor", |a, b| a ^ b)];
    for (name, f) in logic {
        let by_bits = |_, a: f64, b: f64| f(a as i64 as u64, b as i64 as u64) as i64 as f64;
        check(name, op_of(name).as_ref(), &[DType::Bool], 0.0, by_bits);
        let name = format!("Bitwise{name}");
        check(&name, op_of(&name).as_ref(), INTEGERS, 0.0, by_bits);
    }
    let shifts: [(&str, OfNumbers); 2] =
        [("LEFT", |a, b| a * 2f64.powf(b)), ("RIGHT", |a, b| (a / 2f64.powf(b)).floor())];
    for (direction, f) in shifts {
        let op = read_op("BitShift", 11, &attrs(&[("direction", AttrValue::Str(direction.into()))])).unwrap();
        check("BitShift", op.as_ref(), &[DType::U8, DType::U16, DType::U32, DType::U64], 0.0, |_, a, b| {
            f(a, b)
        });
        let far =
            [Some(Tensor::new([2], &[255u8, 255]).unwrap()), Some(Tensor::new([2], &[8u8, 200]).unwrap())];
        assert_eq!(everywhere(op.as_ref(), &far, 0.0).bytes(), [0, 0]);
    }
    assert!(read_op("BitShift", 11, &no_attrs()).is_err());
}

#[test]
fn signed_shifts_copy_the_sign() {
    let shift = |direction: &str| {
        read_op("BitShift", 28, &attrs(&[("direction", AttrValue::Str(direction.into()))])).unwrap()
    };
    for dtype in [DType::I8, DType::I16, DType::I32, DType::I64] {
        let width = 8.0 * dtype.bytes() as f32;
        let x = typed(dtype, &[7], &[-8.0, -1.0, 4.0, 64.0, -64.0, -8.0, 4.0]);
        let n = typed(dtype, &[7], &[1.0, 2.0, 1.0, 1.0, width, -1.0, width + 1.0]);
        let inputs = [Some(x), Some(n)];
        assert_eq!(
            wide(&everywhere(shift("RIGHT").as_ref(), &inputs, 0.0)),
            [-4.0, -1.0, 2.0, 32.0, -1.0, -1.0, 0.0]
        );
        let up = wrapped(dtype, 128.0);
        assert_eq!(
            wide(&everywhere(shift("LEFT").as_ref(), &inputs, 0.0)),
            [-16.0, -4.0, 8.0, up, 0.0, 0.0, 0.0]
        );
    }
}

#[test]
fn before_opset_7_the_second_input_stands_at_an_axis() {
    let old = |name: &str, list: &[(&str, AttrValue)]| read_op(name, 6, &attrs(list)).unwrap();
    let [a, b] = pair(DType::F32, &[2, 3, 4], &[3]);
    let at_axis = [("broadcast", AttrValue::Int(1)), ("axis", AttrValue::Int(1))];
    let aligned = b.reshaped(Shape::new([3, 1]).unwrap()).unwrap();
    let want = naive(&[&a, &aligned], |x| x[0] * x[1]);
    let y = everywhere(old("Mul", &at_axis).as_ref(), &[Some(a.clone()), Some(b.clone())], 0.0);
    near("Mul", &y, &want, 1e-6);
    let want = naive(&[&a, &aligned], |x| if x[0] < 0.0 { x[0] * x[1] } else { x[0] });
    let y = everywhere(old("PRelu", &[]).as_ref(), &[Some(a.clone()), Some(b)], 0.0);
    near("PRelu", &y, &want, 1e-6);
    let slope = Tensor::new([1], &[0.5f32]).unwrap();
    let want = naive(&[&a, &slope], |x| if x[0] < 0.0 { x[0] * x[1] } else { x[0] });
    near("PRelu", &everywhere(old("PRelu", &[]).as_ref(), &[Some(a.clone()), Some(slope)], 0.0), &want, 1e-6);
    let [_, row] = pair(DType::F32, &[], &[4]);
    let want = naive(&[&a, &row], |x| x[0] + x[1]);
    let last = [("broadcast", AttrValue::Int(1))];
    near("Add", &everywhere(old("Add", &last).as_ref(), &[Some(a.clone()), Some(row)], 0.0), &want, 1e-6);
    let [_, long] = pair(DType::F32, &[], &[3, 4, 2]);
    let refused = facts(old("Mul", &at_axis).as_ref(), &[Some(a), Some(long)], 1);
    assert!(matches!(refused, Err(OpError::InputShape { input: 1, .. })));
}

#[test]
fn any_number_of_inputs() {
    let nan_or = |f: fn(f64, f64) -> f64| {
        move |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { f(a, b) }
    };
    type Fold = Box<dyn Fn(f64, f64) -> f64>;
    let all: [(&str, &[DType], Fold); 4] = [
        ("Sum", NUMBERS, Box::new(|a, b| a + b)),
        ("Mean", FLOATS, Box::new(|a, b| a + b)),
        ("Min", NUMBERS, Box::new(nan_or(f64::min))),
        ("Max", NUMBERS, Box::new(nan_or(f64::max))),
    ];
    for (name, dtypes, f) in all {
        let op = op_of(name);
        for &dtype in dtypes {
            let [a, b] = pair(dtype, &[2, 1, 4], &[3, 1]);
            let [c, d] = pair(dtype, &[2, 3, 4], &[]);
            for inputs in [vec![&a], vec![&a, &b], vec![&c, &d], vec![&a, &b, &c, &d], vec![&b, &b, &b]] {
                let want = naive(&inputs, |x| {
                    let all = x[1..].iter().fold(x[0], |a, b| f(a, *b));
                    if name == "Mean" { all / x.len() as f64 } else { wrapped(dtype, all) }
                });
                let tensors: Vec<Option<Tensor>> = inputs.iter().map(|t| Some((*t).clone())).collect();
                // Halves are rounded after every step.
                let tolerance = 3.0 * precision(dtype);
                near(name, &everywhere(op.as_ref(), &tensors, tolerance), &want, tolerance);
            }
        }
        assert!(matches!(facts(op.as_ref(), &[], 1), Err(OpError::Count { .. })));
    }
}

#[test]
fn where_chooses_among_broadcast_tensors() {
    let op = op_of("Where");
    let shapes: [[&[usize]; 3]; 8] = [
        [&[3, 4], &[3, 4], &[3, 4]],
        [&[3, 4], &[3, 4], &[]],
        [&[3, 4], &[3, 1], &[3, 4]],
        [&[3, 1], &[3, 4], &[]],
        [&[3, 1], &[], &[3, 4]],
        [&[3, 1], &[], &[4]],
        [&[], &[5], &[2, 1]],
        [&[4, 1, 2], &[3, 1], &[1]],
    ];
    for dtype in DType::COMPUTE {
        for [c, a, b] in shapes {
            let condition = pair(DType::Bool, c, &[]).into_iter().next().unwrap();
            let [a, b] = pair(dtype, a, b);
            let want = naive(&[&condition, &a, &b], |x| if x[0] != 0.0 { x[1] } else { x[2] });
            let y = everywhere(op.as_ref(), &[Some(condition), Some(a), Some(b)], 0.0);
            near("Where", &y, &want, 0.0);
        }
    }
}

#[cfg(feature = "vulkan")]
#[test]
fn broadcasts_of_too_many_dimensions_are_left_to_the_host() {
    let inputs = pair(DType::F32, &[2, 1, 3, 1, 2, 1, 3], &[1, 2, 1, 2, 1, 2, 1]).map(Some);
    let op = op_of("Add");
    let want = naive(&inputs.each_ref().map(|t| t.as_ref().unwrap()), |x| x[0] + x[1]);
    let check = crate::ops::testing::Check::new(op.as_ref(), &inputs).optional();
    near("Add", &check.run()[0], &want, 1e-6);
    for device in crate::ops::testing::devices() {
        assert!(matches!(check.run_on(device), Err(OpError::Unsupported { .. })));
    }
}

#[test]
fn long_tensors_are_cut_into_parts_where_rows_are_not() {
    // Rows of 1,000 do not divide the parts that threads take.
    let (a, b) =
        (typed(DType::F32, &[90, 1000], &samples(90_000, 1)), typed(DType::F32, &[90, 1], &samples(90, 2)));
    let want = naive(&[&a, &b], |x| x[0] + x[1]);
    let y = everywhere(op_of("Add").as_ref(), &[Some(a), Some(b)], 1e-6);
    near("Add", &y, &want, 1e-6);
}

#[test]
fn the_output_takes_the_place_of_an_input_of_its_kind_only() {
    let op = op_of("Add");
    let place = |a: &[usize], b: &[usize]| {
        op.in_place(&facts(op.as_ref(), &pair(DType::F32, a, b).map(Some), 1).unwrap())
    };
    assert_eq!(
        (place(&[2, 3], &[3]), place(&[3], &[2, 3]), place(&[2, 1], &[1, 3])),
        (Some(0), Some(1), None)
    );
    let less = op_of("Less");
    assert_eq!(
        less.in_place(&facts(less.as_ref(), &pair(DType::F32, &[2], &[2]).map(Some), 1).unwrap()),
        None
    );
    let [a, b] = [Tensor::scalar(1f32), Tensor::scalar(1i32)];
    assert!(matches!(facts(op.as_ref(), &[Some(a), Some(b)], 1), Err(OpError::DType { input: 1, .. })));
}
