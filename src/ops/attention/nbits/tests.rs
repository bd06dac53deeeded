use half::f16;

use super::rounded::{self, Numbers, Weights};
use super::*;
use crate::dot::Unit;
use crate::expr::Function;
use crate::graph::Tensor;
use crate::kernel::Requires;
use crate::ops::AttrValue;
use crate::ops::linalg::joined::tests::{check_joined, device as joined_device};
use crate::ops::test_util::{assert_near, attrs, facts, run_cpu, tensor, tensor_of, values};

fn bytes(n: usize, seed: u64) -> Vec<u8> {
    values(n, seed).iter().map(|v| (v * 128.0 + 128.0) as u8).collect()
}

fn check(op: MatMulNBits, m: usize, zeros: usize, biased: bool) {
    let MatMulNBits { k, n, bits, block, .. } = op;
    let blocks = op.blocks();
    let codes = bytes(n * op.bytes(), 2);
    let packed = bytes(n * op.zero_bytes(), 4);
    let zero = match zeros {
        0 => None,
        1 => Some(Tensor::new([n * op.zero_bytes()], &packed).unwrap()),
        _ => Some(tensor(&[n * blocks], 4)),
    };
    let inputs = vec![
        Some(tensor(&[m, k], 1)),
        Some(Tensor::new([n, blocks, op.bytes() / blocks], &codes).unwrap()),
        Some(tensor(&[n, blocks], 3)),
        zero,
        None,
        biased.then(|| tensor(&[n], 5)),
    ];
    let wide = |i: usize| inputs[i].as_ref().map(|t: &Tensor| t.to_f32s().unwrap());
    let (a, scales) = (wide(0).unwrap(), wide(2).unwrap());
    let bias = wide(5);
    // Contiguous codes, the first one in the lowest bits.
    let code = |row: &[u8], i: usize| -> f64 {
        f64::from(row[i * bits / 8] >> (i * bits % 8) & (0xff >> (8 - bits)))
    };
    let zero_of = |c: usize, j: usize| match zeros {
        0 => f64::from(1 << (bits - 1)),
        1 => code(&packed[c * op.zero_bytes()..], j),
        _ => wide(3).unwrap()[c * blocks + j].into(),
    };
    let product = |a: &[f64]| -> Vec<f64> {
        let each = (0..m * n).map(|i| (i / n, i % n)).map(|(r, c)| {
            let row = &codes[c * op.bytes()..][..op.bytes()];
            let weight = |i: usize| {
                let j = i / block;
                (code(row, i) - zero_of(c, j)) * f64::from(scales[c * blocks + j])
            };
            let sum: f64 = (0..k).map(|i| a[r * k + i] * weight(i)).sum();
            sum + bias.as_ref().map_or(0.0, |b| f64::from(b[c]))
        });
        each.collect()
    };
    let exact: Vec<f64> = a.iter().map(|v| f64::from(*v)).collect();
    let want = product(&exact);
    let got = run_cpu(&op, &inputs, 1).unwrap();
    assert_near(&got[0], &want, 1e-4);
    #[cfg(feature = "vulkan")]
    crate::ops::testing::check_op(&op, &inputs, 1e-4);

    // Every block of a row as the nearest of 255 numbers.
    let mut rounded = exact.clone();
    for block in rounded.chunks_mut(k).flat_map(|row| row.chunks_mut(block)) {
        let unit = block.iter().fold(0.0, |m, v| v.abs().max(m)) / 127.0;
        block.iter_mut().for_each(|v| *v = (*v / unit).round() * unit);
    }
    let want = product(&rounded);
    // Terms are as large as codes, and sums have the digits of float32.
    let tolerance = if bits == 8 { 1.6e-3 } else { 1e-4 };
    let halves: Vec<f16> = scales.iter().map(|s| f16::from_f32(*s)).collect();
    for unit in Unit::all() {
        let sizes = Sizes { op, m, zeros: [Zeros::Middle, Zeros::Codes, Zeros::Numbers][zeros] };
        let numbers = (zeros == 2).then(|| wide(3).unwrap());
        let mut y = vec![f32::NAN; m * n];
        let mut weights = Weights {
            codes: &codes,
            scales: Numbers::F32(&scales),
            zero_codes: if zeros == 1 { &packed } else { &[] },
            zeros: numbers.as_deref().map(Numbers::F32),
        };
        rounded::multiply(&sizes, &a, &weights, bias.as_deref(), &mut y, unit);
        assert_near(&Tensor::new([m * n], &y).unwrap(), &want, tolerance);
        // Scales of 16 bits are widened alike.
        weights.scales = Numbers::F16(&halves);
        let mut half = vec![f32::NAN; m * n];
        rounded::multiply(&sizes, &a, &weights, bias.as_deref(), &mut half, unit);
        let near =
            half.iter().zip(&y).all(|(h, y)| (h - y).abs() <= 0.01 * (1.0 + y.abs()) + 0.02 * k as f32);
        assert!(near, "{op:?} {unit:?}");
    }
}

#[test]
fn products_match_their_definition() {
    let op = |k, n, bits, block| MatMulNBits { k, n, bits, block, rounds: false, codes: Codes::Whole };
    for m in [1, 3, 70] {
        check(op(70, 67, 4, 16), m, 0, true);
        check(op(96, 9, 4, 32), m, 1, false);
    }
    check(op(100, 5, 8, 32), 2, 1, true);
    check(op(33, 5, 8, 16), 6, 2, false);
    check(op(64, 5, 4, 16), 5, 2, true);
    // Panels of many columns, of one length and of two or three.
    check(op(1120, 37, 4, 32), 13, 1, true);
    check(op(2080, 35, 2, 32), 12, 0, false);
    // Codes of two bits; blocks that are a part of a vector of codes, a vector, and several.
    for m in [1, 6] {
        check(op(70, 9, 2, 16), m, 1, true);
        check(op(256, 6, 2, 64), m, 0, false);
        check(op(600, 5, 4, 256), m, 1, true);
        check(op(520, 7, 8, 256), m, 0, true);
        check(op(384, 3, 4, 128), m, 2, false);
    }
    // Whole units of 16 bytes, one, two and four columns for each team, and teams that share them.
    for m in [1, 4] {
        check(op(160, 7, 4, 32), m, 1, true);
        check(op(128, 5, 8, 64), m, 2, false);
        check(op(32, 2050, 4, 32), m, 0, true);
        check(op(32, 16_387, 4, 32), m, 1, false);
        check(op(4160, 6, 4, 32), m, 1, true);
        check(op(8192, 3, 4, 128), m, 0, false);
    }
}

/// The inputs of a matrix; of zero points there are none, packed ones (1), or numbers (2).
fn matrix(op: &MatMulNBits, scales: Tensor, zeros: usize, biased: bool, seed: u64) -> Vec<Option<Tensor>> {
    let (n, blocks) = (op.n, op.blocks());
    let codes = bytes(n * op.bytes(), seed);
    let packed = bytes(n * op.zero_bytes(), seed + 3);
    vec![
        Some(Tensor::new([n, blocks, op.bytes() / blocks], &codes).unwrap()),
        Some(scales),
        match zeros {
            0 => None,
            1 => Some(Tensor::new([n * op.zero_bytes()], &packed).unwrap()),
            _ => Some(tensor(&[n * blocks], seed + 2)),
        },
        None,
        biased.then(|| tensor(&[n], seed + 4)),
    ]
}

/// A gate and what it gates in one operator are what the products give.
#[test]
fn gated_products_are_products_that_meet() {
    let cases = [(160, 7, 4, 32), (128, 6, 8, 64), (256, 5, 2, 64), (64, 2051, 4, 32), (4160, 3, 4, 32)];
    for (case, (k, n, bits, block)) in cases.into_iter().enumerate() {
        for (m, zeros, biased) in [(1, case % 3, true), (3, (case + 1) % 3, false)] {
            let product = MatMulNBits { k, n, bits, block, rounds: false, codes: Codes::Whole };
            let matrix = |seed: u64| {
                let scales = tensor(&[n, product.blocks()], seed + 1);
                matrix(&product, scales, zeros, biased, seed)
            };
            let a = [Some(tensor(&[1, m, k], 1))];
            let [first, second] = [matrix(10), matrix(20)];
            let plain = |matrix: &[Option<Tensor>]| -> Vec<f32> {
                run_cpu(&product, &[&a[..], matrix].concat(), 1).unwrap()[0].to_f32s().unwrap()
            };
            let want: Vec<f64> = plain(&first)
                .iter()
                .zip(plain(&second))
                .map(|(g, u)| f64::from(*g) / (1.0 + (-f64::from(*g)).exp()) * f64::from(u))
                .collect();
            let op = GatedNBits { product, activation: Activation::of(Function::Swish) };
            let inputs = [&a[..], &first, &second].concat();
            assert_near(&run_cpu(&op, &inputs, 1).unwrap()[0], &want, 1e-4);
            #[cfg(feature = "vulkan")]
            {
                crate::ops::testing::check_op(&op, &inputs, 1e-3);
                let half = |t: &Option<Tensor>| {
                    let t = t.as_ref()?;
                    let shape = t.shape().dims().to_vec();
                    Some(match t.dtype() {
                        DType::U8 => t.clone(),
                        _ => tensor_of(&shape, &t.to_f32s().unwrap(), f16::from_f32),
                    })
                };
                let inputs: Vec<Option<Tensor>> = inputs.iter().map(half).collect();
                crate::ops::testing::check_op(&op, &inputs, 4e-3);
            }
        }
    }
}

/// Products with the normalization before them and a sum after them.
#[test]
fn products_are_joined_with_norms_and_sums() {
    // Columns that one team does, that several share, and more than one team has.
    for (m, k, n, bits, block, zeros, biased) in [
        (1, 160, 7, 4, 32, 0, true),
        (2, 128, 6, 8, 64, 1, false),
        (3, 256, 5, 2, 64, 2, true),
        (4, 64, 2051, 4, 32, 1, false),
        (1, 4160, 3, 4, 32, 2, false),
        (2, 8192, 9, 4, 128, 1, true),
    ] {
        let product = MatMulNBits { k, n, bits, block, rounds: false, codes: Codes::Whole };
        let blocks = product.blocks();
        let matrix = |seed: u64| {
            // Sums stay near 1, and so does what is lost where they cancel.
            let large = 2f32.powi(bits as i32 - 2) * (k as f32).sqrt();
            let scales: Vec<f32> = values(n * blocks, seed + 1).iter().map(|v| v / large).collect();
            matrix(&product, Tensor::new([n, blocks], &scales).unwrap(), zeros, biased, seed)
        };
        let a = [Some(tensor(&[1, m, k], 1))];
        let [first, second] = [matrix(10), matrix(20)];
        check_joined(&product, &[&a[..], &first].concat(), 1.0, 2e-4);
        let gated = GatedNBits { product, activation: Activation::of(Function::Swish) };
        check_joined(&gated, &[&a[..], &first, &second].concat(), 1.0, 2e-4);
    }
    let device = joined_device();
    let joins = |m: usize, block: usize| {
        let op = MatMulNBits { k: 64, n: 9, bits: 4, block, rounds: false, codes: Codes::Whole };
        let codes = Tensor::new([9, op.blocks(), block / 2], &bytes(9 * op.bytes(), 2)).unwrap();
        let inputs = [Some(tensor(&[m, 64], 1)), Some(codes), Some(tensor(&[9, op.blocks()], 3))];
        let cx = facts(&op, &inputs, 1).unwrap();
        let normed = op.with_normalized_rows(&cx, 1e-5, &device).is_some();
        assert_eq!(normed, op.with_summand(&cx, &device).is_some());
        normed
    };
    // Many rows, and blocks that are no whole units of 16 bytes.
    assert!(joins(1, 32) && joins(4, 32) && !joins(5, 32) && !joins(1, 16));
}

/// Products of two forms, of many rows, or that a device's kernels do not do at once stay two.
#[test]
fn products_that_are_no_gate_stay_apart() {
    let mut device = crate::registry::Registry::with_defaults().find("sim").unwrap();
    device.features = Requires::STORAGE_8.union(Requires::INT8);
    let op = |k, n, block| MatMulNBits { k, n, bits: 4, block, rounds: false, codes: Codes::Whole };
    let cx = |op: &MatMulNBits, m: usize| {
        let codes = Tensor::new([op.n, op.blocks(), op.block / 2], &bytes(op.n * op.bytes(), 2)).unwrap();
        let inputs = [Some(tensor(&[m, op.k], 1)), Some(codes), Some(tensor(&[op.n, op.blocks()], 3))];
        facts(op, &inputs, 1).unwrap()
    };
    let joins = |m: usize, own: MatMulNBits, other: MatMulNBits| {
        let (own_cx, other_cx) = (cx(&own, m), cx(&other, m));
        own.gate(&own_cx, (&other, &other_cx), &Activation::of(Function::Gelu), &device).is_some()
    };
    assert!(joins(1, op(64, 9, 32), op(64, 9, 32)) && joins(4, op(64, 9, 32), op(64, 9, 32)));
    assert!(!joins(5, op(64, 9, 32), op(64, 9, 32)));
    assert!(!joins(1, op(64, 9, 32), op(64, 8, 32)));
    assert!(!joins(1, op(64, 9, 32), op(64, 9, 64)));
    // Blocks that are no whole units of 16 bytes.
    assert!(!joins(1, op(64, 9, 16), op(64, 9, 16)));
    let (own, other) = (op(64, 9, 32), crate::ops::linalg::MatMul::default());
    assert!(own.gate(&cx(&own, 1), (&other, &cx(&own, 1)), &Activation::None, &device).is_none());
}

#[test]
fn misfits_are_errors() {
    let op = MatMulNBits { k: 32, n: 3, bits: 4, block: 16, rounds: false, codes: Codes::Whole };
    let infers = |a: usize, b: usize, s: usize| {
        let codes = Tensor::new([3, 2, b], &vec![0u8; 6 * b]).unwrap();
        facts(&op, &[Some(tensor(&[2, a], 1)), Some(codes), Some(tensor(&[3, s], 2))], 1).is_ok()
    };
    assert!(infers(32, 8, 2));
    assert!(!infers(31, 8, 2));
    assert!(!infers(32, 7, 2));
    assert!(!infers(32, 8, 1));
}

/// What rows of 0.5, and a last row with `odd` in it, give with rounding.
fn rounded_rows(odd: f32) -> Vec<f32> {
    let op = MatMulNBits { k: 64, n: 3, bits: 4, block: 32, rounds: true, codes: Codes::Whole };
    let mut a = vec![0.5f32; 3 * 64];
    a[2 * 64 + 40] = odd;
    let inputs = [
        Some(Tensor::new([3, 64], &a).unwrap()),
        Some(Tensor::new([3, 2, 16], &[0x99u8; 96]).unwrap()),
        Some(Tensor::new([3, 2], &[0.25f32; 6]).unwrap()),
    ];
    run_cpu(&op, &inputs, 1).unwrap()[0].to_f32s().unwrap()
}

#[test]
fn what_is_no_number_is_seen_in_its_own_row_alone() {
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let y = rounded_rows(odd);
        assert!(y[..6].iter().all(|y| (y - 8.0).abs() < 1e-3), "{y:?}");
        assert!(y[6..].iter().all(|y| !y.is_finite()), "{y:?}");
    }
    assert!(rounded_rows(0.0)[6..].iter().all(|y| (y - 7.875).abs() < 1e-3));
    // Zeros and the smallest numbers have no scale to be divided by.
    assert!(rounded_rows(f32::MIN_POSITIVE / 4.0)[6..].iter().all(|y| (y - 7.875).abs() < 1e-3));
}

#[test]
fn rounding_is_for_accuracy_level_four_alone() {
    let read = |level: Option<i64>| {
        let mut list: Vec<(&str, AttrValue)> =
            [("K", 32), ("N", 3), ("block_size", 16)].map(|(name, n)| (name, AttrValue::Int(n))).to_vec();
        list.extend(level.map(|level| ("accuracy_level", AttrValue::Int(level))));
        let map = attrs(&list);
        super::read(&mut AttrReader::new(&map, 3, 1), 1)
    };
    let rounds = |level| {
        let op = read(level).unwrap();
        (&*op as &dyn std::any::Any).downcast_ref::<MatMulNBits>().unwrap().rounds
    };
    assert!(rounds(Some(4)));
    assert!(!rounds(None) && !rounds(Some(0)) && !rounds(Some(1)));
    assert!(read(Some(5)).is_err() && read(Some(-1)).is_err());
}

/// Codes of 4 bits that stand for numbers, the first of two in the higher bits; rows that are vectors and tiles.
#[test]
fn bnb4_matches_its_definition() {
    for (quant_type, codes) in [(0, Codes::Fp4), (1, Codes::Nf4)] {
        for (m, n, k, block) in [(1, 9, 64, 16), (3, 7, 128, 64), (9, 70, 64, 32), (2, 5, 256, 128)] {
            let int = |n: usize| AttrValue::Int(n as i64);
            let map = attrs(&[
                ("K", int(k)),
                ("N", int(n)),
                ("block_size", int(block)),
                ("quant_type", int(quant_type)),
            ]);
            let op = read_bnb4(&mut AttrReader::new(&map, 3, 1), 1).unwrap();
            let all = bytes(n * k / 2, 2);
            let inputs = [
                Some(tensor(&[m, k], 1)),
                Some(Tensor::new([n * k / 2], &all).unwrap()),
                Some(tensor(&[n * k / block], 3)),
            ];
            let (a, scales) = (
                inputs[0].as_ref().unwrap().to_f32s().unwrap(),
                inputs[2].as_ref().unwrap().to_f32s().unwrap(),
            );
            let book = codes.numbers().unwrap();
            let weight = |i: usize| {
                let code = if i.is_multiple_of(2) { all[i / 2] >> 4 } else { all[i / 2] & 15 };
                f64::from(book[usize::from(code)]) * f64::from(scales[i / block])
            };
            let sum = |r: usize, c: usize| -> f64 {
                (0..k).map(|i| f64::from(a[r * k + i]) * weight(c * k + i)).sum()
            };
            let want: Vec<f64> = (0..m * n).map(|i| sum(i / n, i % n)).collect();
            let got = run_cpu(&*op, &inputs, 1).unwrap();
            assert_eq!(got[0].shape().dims(), [m, n]);
            assert_near(&got[0], &want, 1e-5);
            #[cfg(feature = "vulkan")]
            crate::ops::testing::check_op(&*op, &inputs, 1e-4);
        }
    }
}

#[test]
fn bnb4_of_other_forms_is_refused() {
    let of = |list: &[(&str, i64)]| {
        let list: Vec<(&str, AttrValue)> = list.iter().map(|(name, v)| (*name, AttrValue::Int(*v))).collect();
        let map = attrs(&list);
        read_bnb4(&mut AttrReader::new(&map, 3, 1), 1).map(|_| ()).map_err(|e| e.to_string())
    };
    let good = [("K", 64), ("N", 4), ("block_size", 16), ("quant_type", 1)];
    assert_eq!(of(&good), Ok(()));
    let with = |name, v| {
        [&good[..], &[]]
            .concat()
            .into_iter()
            .map(|(n, old)| (n, if n == name { v } else { old }))
            .collect::<Vec<_>>()
    };
    assert!(of(&with("quant_type", 2)).is_err_and(|e| e.contains("quant_type")));
    assert!(of(&with("block_size", 24)).is_err_and(|e| e.contains("block_size")));
    assert!(of(&with("K", 40)).is_err_and(|e| e.contains("blocks")));
    assert!(of(&good[..3]).is_err_and(|e| e.contains("quant_type")));
    assert!(of(&[&good[..], &[("transB", 0)]].concat()).is_err_and(|e| e.contains("transposed")));
    let map = attrs(&good.map(|(name, v)| (name, AttrValue::Int(v))));
    let op = read_bnb4(&mut AttrReader::new(&map, 3, 1), 1).unwrap();
    let infers = |a: usize, b: usize, scales: usize| {
        let inputs = [
            Some(tensor(&[2, a], 1)),
            Some(Tensor::new([b], &vec![0u8; b]).unwrap()),
            Some(tensor(&[scales], 3)),
        ];
        facts(&*op, &inputs, 1).is_ok()
    };
    assert!(infers(64, 128, 16) && !infers(60, 128, 16) && !infers(64, 127, 16) && !infers(64, 128, 15));
}

/// Products of rows on devices, against their definition in `float64`. Devices with matrices round factors to `float16`.
#[cfg(feature = "vulkan")]
fn check_rows(op: MatMulNBits, m: usize, zeros: usize, biased: bool, half: bool) {
    use crate::ops::testing::{Check, devices};

    let MatMulNBits { k, n, bits, block, .. } = op;
    let blocks = op.blocks();
    let packed = bytes(n * op.zero_bytes(), 4);
    let floats = |shape: &[usize], seed: u64, factor: f32| {
        let values: Vec<f32> = values(shape.iter().product(), seed).iter().map(|v| v * factor).collect();
        if half { tensor_of(shape, &values, f16::from_f32) } else { Tensor::new(shape, &values).unwrap() }
    };
    // Rows of very different sizes; the last one is zeros.
    let mut a: Vec<f32> = values(m * k, 1);
    for (r, row) in a.chunks_mut(k).enumerate() {
        let factor = if half { 1.0 } else { [1.0, 3e7, 1e-9][r % 3] };
        row.iter_mut().for_each(|v| *v *= if r + 1 == m { 0.0 } else { factor });
    }
    let a = if half { tensor_of(&[m, k], &a, f16::from_f32) } else { Tensor::new([m, k], &a).unwrap() };
    let mut codes = bytes(n * op.bytes(), 2);
    if op.codes == Codes::E4m3 {
        // None that is no number.
        codes.iter_mut().for_each(|code| *code &= 0xbf);
    }
    let info = TensorInfo::new(op.codes.dtype(), crate::shape::Shape::new([n * op.bytes()]).unwrap());
    let inputs = vec![
        Some(a),
        Some(Tensor::from_bytes(info, &codes).unwrap()),
        Some(floats(&[n * blocks], 3, 0.1)),
        match zeros {
            0 => None,
            1 => Some(Tensor::new([n * op.zero_bytes()], &packed).unwrap()),
            _ => Some(floats(&[n * blocks], 4, 8.0)),
        },
        None,
        biased.then(|| floats(&[n], 5, 1.0)),
    ];
    let wide = |i: usize| inputs[i].as_ref().map(|t: &Tensor| t.to_f32s().unwrap());
    let (a, scales, bias) = (wide(A).unwrap(), wide(SCALES).unwrap(), wide(BIAS));
    let numbers = (zeros == 2).then(|| wide(ZEROS).unwrap());
    let book = op.codes.numbers();
    let code = |row: &[u8], i: usize| row[i * bits / 8] >> (i * bits % 8) & (0xff >> (8 - bits));
    let weight = |c: usize, i: usize| {
        let j = i / block;
        let row = &codes[c * op.bytes()..][..op.bytes()];
        let number = match &book {
            Some(book) => f64::from(book[usize::from(code(row, if op.codes.swaps() { i ^ 1 } else { i }))]),
            None => f64::from(code(row, i)),
        };
        let zero = match zeros {
            0 if book.is_some() => 0.0,
            0 => f64::from(1 << (bits - 1)),
            1 => code(&packed[c * op.zero_bytes()..], j).into(),
            _ => numbers.as_ref().unwrap()[c * blocks + j].into(),
        };
        (number - zero) * f64::from(scales[c * blocks + j])
    };
    let weights: Vec<f64> = (0..n * k).map(|i| weight(i / k, i % k)).collect();
    for context in devices() {
        let got = Check::new(&op, &inputs).run_on(context).unwrap()[0].to_f32s().unwrap();
        for (i, got) in got.iter().enumerate() {
            let (r, c) = (i / n, i % n);
            let terms = a[r * k..][..k].iter().zip(&weights[c * k..][..k]).map(|(a, w)| f64::from(*a) * w);
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size): (f64, f64), t| (sum + t, size + t.abs()));
            let want = sum + bias.as_ref().map_or(0.0, |b| f64::from(b[c]));
            // Three roundings to 11 bits, of the sum where it is of float16 too.
            let near = size * 3.0 / 2048.0 + want.abs() / if half { 1024.0 } else { 1e6 } + 1e-30;
            let off = (f64::from(*got) - want).abs();
            assert!(off <= near, "{op:?} {zeros} {half} [{r}, {c}] is {got}, not {want}");
        }
    }
}

#[cfg(feature = "vulkan")]
#[test]
fn rows_of_every_form_are_multiplied_on_devices() {
    let op = |k, n, bits, block| MatMulNBits { k, n, bits, block, rounds: true, codes: Codes::Whole };
    for half in [true, false] {
        // Edges of tiles in every direction; blocks that end beyond k.
        for (m, n, k, block) in [
            (5, 7, 72, 16),
            (64, 64, 64, 32),
            (65, 130, 136, 64),
            (129, 66, 256, 128),
            (33, 65, 512, 256),
            (40, 96, 8, 16),
        ] {
            for (zeros, biased) in [(0, true), (1, false), (2, true)] {
                check_rows(op(k, n, 4, block), m, zeros, biased, half);
            }
        }
        for zeros in [0, 1, 2] {
            check_rows(op(80, 72, 8, 16), 70, zeros, true, half);
            check_rows(op(96, 72, 2, 32), 70, zeros, false, half);
        }
        // What no matrix kernel reads: a short row, and an odd number of words.
        check_rows(op(70, 9, 4, 16), 6, 1, true, half);
        check_rows(op(80, 3, 2, 16), 6, 1, true, half);
        for (codes, bits) in [(Codes::Fp4, 4), (Codes::Nf4, 4), (Codes::E2m1, 4), (Codes::E4m3, 8)] {
            let op = MatMulNBits { k: 96, n: 70, bits, block: 32, rounds: true, codes };
            check_rows(op, 67, 0, half, half);
        }
    }
}
