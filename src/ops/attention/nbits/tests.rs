use half::f16;

use super::rounded::{self, Numbers, Weights};
use super::*;
use crate::dot::Unit;
use crate::graph::Tensor;
use crate::ops::AttrValue;
use crate::ops::test_util::{assert_near, attrs, facts, run_cpu, tensor, values};

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
        check(op(64, 4099, 8, 16), m, 1, false);
        check(op(4160, 6, 4, 32), m, 1, true);
        check(op(8192, 3, 4, 128), m, 0, false);
    }
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
