use super::{BlockType, GatedBlocks, GatherBlocks, MatMulBlocks, Rows, rounded};
use crate::dot::Unit;
use crate::expr::Function;
use crate::graph::Tensor;
use crate::ops::linalg::joined::tests::check_joined;
use crate::ops::test_util::{assert_near, facts, run_cpu, tensor, tensor_of, values};
use crate::ops::{Activation, Operator};

/// Rows of random codes with scales near 1/64, and their numbers.
fn rows(b: Rows) -> (Tensor, Vec<f32>) {
    scaled_rows(b, 1.0 / 64.0)
}

/// Rows of random codes with scales near `scale`, and their numbers.
pub(in crate::ops) fn scaled_rows(b: Rows, scale: f32) -> (Tensor, Vec<f32>) {
    let info = b.info().unwrap();
    let mut bytes: Vec<u8> = values(info.bytes(), 7).iter().map(|v| (v * 128.0 + 128.0) as u8).collect();
    let (size, scale_bits) = (b.blocks.bytes(), scale.to_bits());
    let scale = half::f16::from_f32(scale).to_le_bytes();
    for (i, block) in bytes.chunks_exact_mut(size).enumerate() {
        let at = match b.blocks {
            BlockType::F32 => {
                block.copy_from_slice(&values(1, i as u64 + 1)[0].to_le_bytes());
                continue;
            }
            BlockType::F16 | BlockType::Bf16 => {
                // The bits of numbers from 1 to 2 in either type.
                block[1] = if b.blocks == BlockType::F16 { 0x3c } else { 0x3f };
                block[0] |= 0x80;
                continue;
            }
            BlockType::Mxfp4 => {
                // The power of two below `scale`.
                block[0] = (scale_bits >> 23) as u8;
                continue;
            }
            BlockType::Q6K => 208..210,
            BlockType::Q3K => 108..110,
            BlockType::Q2K => {
                block[82..84].copy_from_slice(&scale);
                80..82
            }
            BlockType::Q41 | BlockType::Q51 | BlockType::Q4K | BlockType::Q5K => {
                block[2..4].copy_from_slice(&scale);
                0..2
            }
            _ => 0..2,
        };
        block[at].copy_from_slice(&scale);
    }
    let mut numbers = vec![0f32; b.rows * b.k];
    for (row, to) in numbers.chunks_mut(b.k).enumerate() {
        b.blocks.decode(&bytes[row * b.row_bytes()..][..b.row_bytes()], to);
    }
    (Tensor::from_bytes(info, &bytes).unwrap(), numbers)
}

fn check(b: Rows, m: usize, biased: bool) {
    let (weights, numbers) = rows(b);
    let (a, bias) = (tensor(&[m, b.k], 1), tensor(&[b.rows], 2));
    let (left, added) = (a.to_f32s().unwrap(), bias.to_f32s().unwrap());
    let want: Vec<f64> = (0..m * b.rows)
        .map(|i| {
            let (r, c) = (i / b.rows, i % b.rows);
            let terms = left[r * b.k..][..b.k].iter().zip(&numbers[c * b.k..][..b.k]);
            let sum: f64 = terms.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            sum + if biased { f64::from(added[c]) } else { 0.0 }
        })
        .collect();
    let op = MatMulBlocks { b, rounds: false };
    let mut inputs = vec![Some(a), Some(weights)];
    inputs.extend(biased.then_some(Some(bias)));
    assert_near(&run_cpu(&op, &inputs, 1).unwrap()[0], &want, 1e-3);
    #[cfg(feature = "vulkan")]
    crate::ops::testing::check_op(&op, &inputs, 1e-3);
}

/// A gate and what it gates in one operator are what the products give.
#[test]
fn gated_products_are_products_that_meet() {
    for (case, blocks) in BlockType::ALL.into_iter().enumerate() {
        // One in three has many columns, and the first of those long ones.
        let k = if case == 1 { 4352 } else { [4352, 512, 256][case % 3] };
        let b = Rows { blocks, rows: [7, 2051, 6][case % 3], k };
        let m = [1, 3, 4][case % 3];
        let (first, numbers) = rows(b);
        // Sums stay near 1, and so does what is lost where they cancel.
        let squares: f64 = numbers.iter().map(|v| f64::from(*v).powi(2)).sum();
        let large = (squares / b.rows as f64).sqrt() as f32;
        let a: Vec<f32> = values(m * b.k, 1).into_iter().map(|v| v / large).collect();
        let a = Tensor::new([m, b.k], &a).unwrap();
        // The second matrix has the rows of the first in the other direction. Their bytes are filled up to whole words.
        let all = b.rows * b.row_bytes();
        let mut turned: Vec<u8> = first.bytes()[..all].rchunks(b.row_bytes()).flatten().copied().collect();
        turned.resize(first.bytes().len(), 0);
        let second = Tensor::from_bytes(first.info().clone(), &turned).unwrap();
        let plain = |weights: &Tensor| -> Vec<f32> {
            let inputs = [Some(a.clone()), Some(weights.clone())];
            run_cpu(&MatMulBlocks { b, rounds: false }, &inputs, 1).unwrap()[0].to_f32s().unwrap()
        };
        let want: Vec<f64> = plain(&first)
            .iter()
            .zip(plain(&second))
            .map(|(g, u)| f64::from(*g).max(0.0) * f64::from(u))
            .collect();
        let product = MatMulBlocks { b, rounds: false };
        let op = GatedBlocks { product, activation: Activation::of(Function::Relu) };
        let inputs = [a.clone(), first, second].map(Some);
        assert!(want.iter().fold(0f64, |most, v| most.max(v.abs())) > 0.01);
        assert_near(&run_cpu(&op, &inputs, 1).unwrap()[0], &want, 1e-4);
        #[cfg(feature = "vulkan")]
        crate::ops::testing::check_op(&op, &inputs, 1e-4);
    }
}

#[test]
fn products_match_their_definition() {
    for blocks in BlockType::ALL {
        let k = 64.max(blocks.elements() * 2);
        for (m, n, biased) in [(1, 5, true), (4, 3, false), (70, 67, true)] {
            check(Rows { blocks, rows: n, k }, m, biased);
        }
    }
    // Two and four columns for each team, and teams that share them.
    for (k, n, m) in [(32, 2050, 1), (32, 16_387, 3), (4160, 6, 2), (8192, 3, 4)] {
        check(Rows { blocks: BlockType::Q40, rows: n, k }, m, true);
    }
}

/// `a` with every 32 elements of a row made whole numbers up to 127, times their scale.
fn rounded_rows(a: &[f32], k: usize) -> Vec<f32> {
    let mut rounded = a.to_vec();
    for block in rounded.chunks_mut(k).flat_map(|row| row.chunks_mut(32)) {
        let scale = block.iter().fold(0f32, |most, v| most.max(v.abs())) / 127.0;
        block
            .iter_mut()
            .for_each(|v| *v = if scale > 0.0 { (*v / scale).round_ties_even() * scale } else { 0.0 });
    }
    rounded
}

#[test]
fn rows_are_rounded_to_bytes_where_that_is_allowed() {
    for blocks in BlockType::ALL.into_iter().filter(|blocks| blocks.has_codes()) {
        // Rows of less than a part, of a part and of more; panels that are whole and not, of one length and of two.
        for (k, n, m) in [
            (32usize, 5, 1),
            (96, 3, 5),
            (256, 9, 2),
            (352, 6, 33),
            (768, 131, 3),
            (1024, 700, 1),
            (1312, 37, 13),
        ] {
            let b = Rows { blocks, rows: n, k: k.next_multiple_of(blocks.elements()) };
            let (weights, numbers) = rows(b);
            let mut a = values(m * b.k, 5);
            a[..16].fill(0.0);
            let bias = values(n, 2);
            let left = rounded_rows(&a, b.k);
            let want: Vec<f64> = (0..m * n)
                .map(|i| {
                    let terms = left[i / n * b.k..][..b.k].iter().zip(&numbers[i % n * b.k..][..b.k]);
                    terms.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() + f64::from(bias[i % n])
                })
                .collect();
            let bytes = &weights.bytes()[..n * b.row_bytes()];
            for unit in Unit::all() {
                let mut y = vec![f32::NAN; m * n];
                rounded::multiply(b, m, &a, bytes, Some(&bias), &mut y, unit);
                for (i, (y, want)) in y.iter().zip(&want).enumerate() {
                    assert!(
                        (f64::from(*y) - want).abs() <= 2e-3 * (1.0 + want.abs()),
                        "{unit:?} {b:?} {i}: {y}, {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_no_number_stays_in_its_row() {
    let b = Rows { blocks: BlockType::Q4K, rows: 4, k: 512 };
    let weights = rows(b).0;
    for m in [3, 6] {
        let mut a = values(m * b.k, 5);
        (a[600], a[512 + 511]) = (f32::NAN, f32::INFINITY);
        for unit in Unit::all() {
            let mut y = vec![0.0; 4 * m];
            rounded::multiply(b, m, &a, &weights.bytes()[..4 * b.row_bytes()], None, &mut y, unit);
            assert!(y.iter().enumerate().all(|(i, y)| y.is_nan() == (4..8).contains(&i)), "{unit:?}: {y:?}");
        }
    }
}

#[test]
fn products_round_as_they_are_told() {
    let b = Rows { blocks: BlockType::Q40, rows: 8, k: 64 };
    let (a, weights) = (tensor(&[2, 64], 1), rows(b).0);
    let of = |rounds: bool| {
        let op = MatMulBlocks { b, rounds };
        assert_eq!(op.with_exact_activations().is_some(), rounds);
        run_cpu(&op, &[Some(a.clone()), Some(weights.clone())], 1).unwrap()[0].to_f32s().unwrap()
    };
    let (exact, rounded) = (of(false), of(true));
    assert_eq!(exact != rounded, Unit::best().multiplies_many());
    assert!(exact.iter().zip(&rounded).all(|(a, b)| (a - b).abs() < 0.05), "{exact:?} {rounded:?}");
}

#[test]
fn half_operands_are_multiplied_too() {
    for m in [2, 9] {
        let b = Rows { blocks: BlockType::Q80, rows: 7, k: 96 };
        let a = tensor_of(&[m, b.k], &values(m * b.k, 3), half::f16::from_f32);
        let inputs = [Some(a), Some(rows(b).0)];
        run_cpu(&MatMulBlocks { b, rounds: false }, &inputs, 1).unwrap();
        #[cfg(feature = "vulkan")]
        crate::ops::testing::check_op(&MatMulBlocks { b, rounds: false }, &inputs, 4e-3);
    }
}

/// Columns of a team, and teams that share them.
#[cfg(feature = "vulkan")]
#[test]
fn few_rows_are_multiplied_by_every_candidate() {
    use crate::ops::testing::Check;
    let b = Rows { blocks: BlockType::Q40, rows: 70, k: 544 };
    let inputs = [Some(tensor(&[2, b.k], 3)), Some(rows(b).0)];
    let ran = Check::new(&MatMulBlocks { b, rounds: false }, &inputs).tolerance(1e-3).run_candidates();
    assert_eq!(ran.iter().filter(|name| name.starts_with("few_rows/")).count(), 9, "{ran:?}");
}

#[test]
fn rows_are_gathered_as_numbers() {
    for blocks in BlockType::ALL {
        let b = Rows { blocks, rows: 9, k: 32.max(blocks.elements()) };
        let (data, numbers) = rows(b);
        let picked = [3i64, -1, 0, 3];
        let row = |i: &i64| &numbers[i.rem_euclid(9) as usize * b.k..][..b.k];
        let want: Vec<f64> = picked.iter().flat_map(|i| row(i).iter().map(|v| f64::from(*v))).collect();
        let inputs = [Some(Tensor::new([2, 2], &picked).unwrap()), Some(data)];
        assert_near(&run_cpu(&GatherBlocks { b }, &inputs, 1).unwrap()[0], &want, 0.0);
        #[cfg(feature = "vulkan")]
        crate::ops::testing::check_op(&GatherBlocks { b }, &inputs, 1e-6);
    }
}

#[test]
fn misfits_are_errors() {
    let infers = |k: usize, width: usize, bytes: usize, blocks| {
        let op = MatMulBlocks { b: Rows { blocks, rows: 3, k }, rounds: false };
        let weights = Tensor::new([bytes], &vec![0u8; bytes]).unwrap();
        facts(&op, &[Some(tensor(&[2, width], 1)), Some(weights)], 1).is_ok()
    };
    assert!(infers(64, 64, 112, BlockType::Q40));
    assert!(!infers(64, 32, 112, BlockType::Q40));
    assert!(!infers(64, 64, 108, BlockType::Q40));
    assert!(!infers(48, 48, 96, BlockType::Q40));
    assert!(!infers(64, 64, 432, BlockType::Q4K));
    assert!(!infers(0, 0, 0, BlockType::F32));
}

/// Products with the normalization before them and a sum after them.
#[test]
fn products_are_joined_with_norms_and_sums() {
    for (m, n, k, blocks) in [
        (1, 7, 4352, BlockType::Q80),
        (2, 2051, 512, BlockType::Q4K),
        (3, 6, 288, BlockType::Q51),
        (4, 5, 256, BlockType::F16),
    ] {
        let b = Rows { blocks, rows: n, k };
        let (weights, numbers) = rows(b);
        // Sums stay near 1, and so does what is lost where they cancel.
        let squares: f64 = numbers.iter().map(|v| f64::from(*v).powi(2)).sum();
        let large = (squares / b.rows as f64).sqrt() as f32;
        let a: Vec<f32> = values(m * b.k, 1).into_iter().map(|v| v / large).collect();
        let a = Tensor::new([1, m, b.k], &a).unwrap();
        let plain = MatMulBlocks { b, rounds: false };
        let mut inputs = vec![Some(a), Some(weights.clone())];
        check_joined(&plain, &inputs, large, 2e-4);
        inputs.push(Some(weights));
        let gated = GatedBlocks { product: plain, activation: Activation::of(Function::Relu) };
        check_joined(&gated, &inputs, large, 2e-4);
    }
}
