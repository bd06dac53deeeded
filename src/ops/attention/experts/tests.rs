//! Experts against their definition, computed in `f64` without any of the functions above.

use super::*;
use crate::graph::Tensor;
use crate::ops::ggml::tests::scaled_rows;
use crate::ops::test_util::{assert_near, attrs, facts, run_cpu, tensor, values};
use crate::ops::{AttrValue, find};

/// A product's decoded weights, and the inputs that encode them.
struct Made {
    weights: Vec<f64>,
    bias: Option<Vec<f32>>,
    /// Weights, scales, zero points.
    inputs: [Option<Tensor>; 3],
    sizes: [usize; 3],
}

fn packed(rows: &[Vec<u8>], bits: usize) -> Vec<u8> {
    let pack = |row: &Vec<u8>| -> Vec<u8> {
        let per = 8 / bits;
        row.chunks(per).map(|c| c.iter().enumerate().fold(0, |b, (i, c)| b | c << (i * bits))).collect()
    };
    rows.iter().flat_map(pack).collect()
}

fn plain(sizes: [usize; 3], seed: u64, biased: bool) -> Made {
    let t = tensor(&sizes, seed);
    let weights = t.to_f32s().unwrap().iter().map(|v| (*v).into()).collect();
    let bias = biased.then(|| values(sizes[0] * sizes[1], seed + 1));
    Made { weights, bias, inputs: [Some(t), None, None], sizes }
}

fn coded(sizes: [usize; 3], seed: u64, bits: usize, block: Option<usize>, zeros: bool, biased: bool) -> Made {
    let [experts, n, k] = sizes;
    let len = block.unwrap_or(k);
    let blocks = k / len;
    let whole = |count: usize, seed: u64| -> Vec<u8> {
        values(count, seed).iter().map(|v| ((v + 1.0) * (1u32 << (bits - 1)) as f32) as u8).collect()
    };
    let codes = whole(experts * n * k, seed);
    let points = match zeros {
        true => whole(experts * n * blocks, seed + 2),
        false => vec![1 << (bits - 1); experts * n * blocks],
    };
    let scales: Vec<f32> =
        values(experts * n * blocks, seed + 3).iter().map(|v| v / codes[0].max(1) as f32).collect();
    let weights = (0..experts * n * k)
        .map(|i| {
            let at = i / k * blocks + i % k / len;
            (f64::from(codes[i]) - f64::from(points[at])) * f64::from(scales[at])
        })
        .collect();
    let rows = |v: &[u8], row: usize| packed(&v.chunks(row).map(<[u8]>::to_vec).collect::<Vec<_>>(), bits);
    let scale_shape: &[usize] = if block.is_some() { &[experts, n, blocks] } else { &[experts, n] };
    let point_row = if block.is_some() { blocks } else { n };
    let points = rows(&points, point_row);
    let inputs = [
        Some(Tensor::new([experts, n, k * bits / 8], &rows(&codes, k)).unwrap()),
        Some(Tensor::new(scale_shape, &scales).unwrap()),
        zeros.then(|| Tensor::new([experts, points.len() / experts], &points).unwrap()),
    ];
    let bias = biased.then(|| values(experts * n, seed + 1));
    Made { weights, bias, inputs, sizes }
}

/// Rows of blocks whose numbers are up to about 1/4, or a few.
fn in_blocks(sizes: [usize; 3], seed: u64, blocks: BlockType, biased: bool) -> Made {
    use BlockType::*;
    let [experts, n, k] = sizes;
    let scale = match blocks {
        F32 | F16 | Bf16 | Q40 | Q41 | Q50 | Q51 | Mxfp4 => 1.0 / 64.0,
        Q2K => 1.0 / 256.0,
        Q80 | Q3K | Iq4Nl => 1.0 / 1024.0,
        Q4K | Q5K => 1.0 / 8192.0,
        Q6K | Iq4Xs => 1.0 / 16384.0,
    };
    let (bytes, numbers) = scaled_rows(Rows { blocks, rows: experts * n, k }, scale);
    let weights = numbers.into_iter().map(f64::from).collect();
    let bias = biased.then(|| values(experts * n, seed));
    Made { weights, bias, inputs: [Some(bytes), None, None], sizes }
}

impl Made {
    fn bias(&self) -> Option<Tensor> {
        self.bias.as_ref().map(|b| Tensor::new(&self.sizes[..2], b).unwrap())
    }

    fn run(&self, expert: usize, x: &[f64]) -> Vec<f64> {
        let [_, n, k] = self.sizes;
        let row = |r: usize| {
            let w = &self.weights[(expert * n + r) * k..][..k];
            let bias = self.bias.as_ref().map_or(0.0, |b| f64::from(b[expert * n + r]));
            bias + w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>()
        };
        (0..n).map(row).collect()
    }
}

fn activated(op: &MixtureOfExperts, a: f64, b: f64) -> f64 {
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    match op.activation {
        ExpertActivation::Relu => a.max(0.0) * b,
        ExpertActivation::Gelu => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            0.5 * a * (1.0 + (root * (a + 0.044715 * a.powi(3))).tanh()) * b
        }
        ExpertActivation::Silu => a * sigmoid(a) * b,
        ExpertActivation::Identity => a * b,
        ExpertActivation::SwiGlu { alpha, beta, limit } => {
            let (a, b) = (a.min(limit.into()), b.clamp(-f64::from(limit), limit.into()));
            a * sigmoid(f64::from(alpha) * a) * (b + f64::from(beta))
        }
    }
}

fn answer(
    op: &MixtureOfExperts,
    router: &[f64],
    given: Option<&[f64]>,
    x: &[f64],
    made: &[Made],
) -> Vec<f64> {
    let mut order: Vec<usize> = (0..router.len()).collect();
    order.sort_by(|a, b| router[*b].total_cmp(&router[*a]));
    let number = |e: usize| given.map_or_else(|| router[e].exp(), |g| g[e]);
    // QMoE normalizes what is not given, as onnxruntime's CPU kernel does.
    let normalized = op.normalize || op.codes.is_some() && given.is_none();
    let all = match (normalized, given) {
        (true, _) => order[..op.top].iter().map(|e| number(*e)).sum(),
        (false, None) => (0..router.len()).map(number).sum(),
        (false, Some(_)) => 1.0,
    };
    let mut y = vec![0.0; x.len()];
    for (s, e) in order[..op.top].iter().enumerate() {
        let near = |o: &&usize| (router[*e] - router[**o]) / router[**o].abs().max(router[*e]) <= 0.02;
        let factor = match op.sparse {
            true => router[*e].exp() / order[s..].iter().filter(near).map(|o| router[*o].exp()).sum::<f64>(),
            false => number(*e) / all,
        };
        let a = made[0].run(*e, x);
        let half = a.len() / 2;
        let inner: Vec<f64> = match (op.gated, made.get(2)) {
            (Gated::Interleaved, _) => a.chunks(2).map(|c| activated(op, c[0], c[1])).collect(),
            (Gated::Halves, _) => (0..half).map(|i| activated(op, a[i], a[half + i])).collect(),
            (_, Some(third)) => a.iter().zip(third.run(*e, x)).map(|(a, b)| activated(op, *a, b)).collect(),
            (_, None) => a.iter().map(|a| activated(op, *a, 1.0)).collect(),
        };
        let part = made[1].run(*e, &inner);
        y.iter_mut().zip(part).for_each(|(y, v)| *y += factor * v);
    }
    y
}

const RELU: MixtureOfExperts = MixtureOfExperts {
    top: 2,
    activation: ExpertActivation::Relu,
    gated: Gated::No,
    normalize: false,
    sparse: false,
    codes: None,
    blocks: None,
};

/// Checks `op` for so many tokens with these products.
fn check(op: MixtureOfExperts, tokens: usize, made: &[Made], given: bool) {
    check_within(op, tokens, made, given, 2e-5);
}

/// As [`check`], of `float32` within `tolerance`.
fn check_within(op: MixtureOfExperts, tokens: usize, made: &[Made], given: bool, tolerance: f64) {
    let [experts, _, width] = made[0].sizes;
    let x = tensor(&[tokens, width], 70);
    let router = tensor(&[tokens, experts], 71);
    let factors = given.then(|| {
        let v: Vec<f32> = values(tokens * experts, 72).iter().map(|v| v.abs()).collect();
        Tensor::new([tokens, experts], &v).unwrap()
    });
    let mut inputs = vec![Some(x.clone()), Some(router.clone())];
    let coded = op.codes.is_some();
    inputs.resize(if coded { 15 } else { 8 }, None);
    for (i, made) in made.iter().enumerate() {
        let [weights, scales, bias, zeros] = op.places(i);
        inputs[weights] = made.inputs[0].clone();
        inputs[bias] = made.bias();
        if coded {
            (inputs[scales], inputs[zeros]) = (made.inputs[1].clone(), made.inputs[2].clone());
        }
    }
    if coded {
        inputs[FACTORS] = factors.clone();
    }
    while inputs.len() > 5 && inputs.last().is_some_and(Option::is_none) {
        inputs.pop();
    }
    let wide = |t: &Tensor| -> Vec<f64> { t.to_f32s().unwrap().iter().map(|v| (*v).into()).collect() };
    let (xs, rs, fs) = (wide(&x), wide(&router), factors.as_ref().map(wide));
    let want: Vec<f64> = (0..tokens)
        .flat_map(|t| {
            let given = fs.as_ref().map(|f| &f[t * experts..][..experts]);
            answer(&op, &rs[t * experts..][..experts], given, &xs[t * width..][..width], made)
        })
        .collect();
    assert_near(&run_cpu(&op, &inputs, 1).unwrap()[0], &want, tolerance);
    #[cfg(feature = "vulkan")]
    {
        crate::ops::testing::check_op(&op, &inputs, tolerance);
        let half = |t: &Tensor| {
            crate::ops::test_util::tensor_of(t.shape().dims(), &t.to_f32s().unwrap(), half::f16::from_f32)
        };
        let halves: Vec<Option<Tensor>> = inputs
            .iter()
            .map(|t| t.as_ref().map(|t| if t.dtype() == DType::F32 { half(t) } else { t.clone() }))
            .collect();
        crate::ops::testing::check_op(&op, &halves, 4e-3);
    }
}

#[test]
fn plain_experts_match_their_definition() {
    use ExpertActivation::{Gelu, Identity, Relu, Silu};
    for (activation, tokens, normalize) in
        [(Relu, 5, false), (Gelu, 1, true), (Silu, 70, false), (Identity, 9, true)]
    {
        let op = MixtureOfExperts { activation, normalize, ..RELU };
        let made = [plain([4, 13, 21], 1, true), plain([4, 21, 13], 5, false)];
        check(op, tokens, &made, false);
        let three = [plain([4, 13, 21], 1, true), plain([4, 21, 13], 5, true), plain([4, 13, 21], 9, true)];
        check(MixtureOfExperts { gated: Gated::Third, ..op }, tokens, &three, false);
    }
    // Of many experts, some are nearly as large as the chosen ones.
    let sparse = MixtureOfExperts { sparse: true, ..RELU };
    check(sparse, 60, &[plain([40, 5, 8], 1, true), plain([40, 8, 5], 5, false)], false);
    let all = MixtureOfExperts { top: 3, ..RELU };
    check(all, 40, &[plain([3, 67, 40], 1, false), plain([3, 40, 67], 5, false)], false);
}

#[test]
fn swiglu_takes_its_operands_from_where_they_are() {
    let activation = ExpertActivation::SwiGlu { alpha: 1.7, beta: 1.0, limit: 0.4 };
    for gated in [Gated::Interleaved, Gated::Halves, Gated::Third] {
        let op = MixtureOfExperts { activation, gated, normalize: true, ..RELU };
        let n = if gated == Gated::Third { 11 } else { 22 };
        let mut made = vec![plain([5, n, 16], 1, true), plain([5, 16, 11], 5, true)];
        if gated == Gated::Third {
            made.push(plain([5, 11, 16], 9, true));
        }
        for tokens in [2, 33] {
            check(op, tokens, &made, false);
        }
    }
}

#[test]
fn codes_stand_for_numbers() {
    for (bits, block, zeros) in [
        (4, None, false),
        (4, Some(16), true),
        (8, None, true),
        (8, Some(32), false),
        (2, Some(16), true),
        (2, None, true),
    ] {
        let codes = Some(ExpertCodes { bits: [bits; 3], block });
        let op = MixtureOfExperts { codes, activation: ExpertActivation::Silu, normalize: true, ..RELU };
        let made = [
            coded([3, 64, 32], 1, bits, block, zeros, true),
            coded([3, 32, 64], 9, bits, block, zeros, false),
        ];
        for (tokens, given) in [(1, false), (30, true)] {
            check(op, tokens, &made, given);
            check(MixtureOfExperts { normalize: false, ..op }, tokens, &made, given);
        }
    }
    let codes = Some(ExpertCodes { bits: [4, 8, 2], block: Some(16) });
    let op = MixtureOfExperts { codes, gated: Gated::Third, ..RELU };
    let made = [
        coded([3, 48, 32], 1, 4, Some(16), true, true),
        coded([3, 32, 48], 9, 8, Some(16), false, false),
        coded([3, 48, 32], 19, 2, Some(16), true, true),
    ];
    check(op, 4, &made, false);
}

/// Every type of blocks, for one token and for as many as are sorted by their experts.
#[test]
fn blocks_stand_for_numbers() {
    for (i, blocks) in BlockType::ALL.into_iter().enumerate() {
        let second = BlockType::ALL[(i + 4) % BlockType::ALL.len()];
        let wide = |blocks: BlockType| if blocks.elements() > 32 { 256 } else { 96 };
        let (width, inner) = (wide(blocks), wide(second));
        let blocks = ExpertBlocks { types: [blocks, second, blocks], inner, rounds: false };
        let (blocks, normalize, biased) = (Some(blocks), i % 2 == 0, i % 3 == 0);
        let op = MixtureOfExperts { blocks, activation: ExpertActivation::Silu, normalize, ..RELU };
        let op = MixtureOfExperts { gated: Gated::Third, ..op };
        let made = [
            in_blocks([3, inner, width], 1, blocks.unwrap().types[0], biased),
            in_blocks([3, width, inner], 2, second, biased),
            in_blocks([3, inner, width], 3, blocks.unwrap().types[2], biased),
        ];
        // Of products of sums, some of which cancel.
        check_within(op, 1, &made, false, 2e-3);
        check_within(op, if i == 0 { 70 } else { 9 }, &made, false, 2e-3);
    }
}

/// Experts that no token has are not read: their weights are no numbers.
#[test]
fn experts_that_are_not_chosen_are_not_read() {
    let rows = |n: usize, k: usize| Rows { blocks: BlockType::F32, rows: 4 * n, k };
    let weights = |n: usize, k: usize| {
        let v: Vec<u8> = (0..4 * n * k)
            .flat_map(|i| if i / n / k == 2 { 0.01f32 } else { f32::NAN }.to_le_bytes())
            .collect();
        Tensor::from_bytes(rows(n, k).info().unwrap(), &v).unwrap()
    };
    for tokens in [1, 20] {
        let router: Vec<f32> = (0..4 * tokens).map(|i| if i % 4 == 2 { 3.0 } else { -1.0 }).collect();
        let inputs = [
            Some(tensor(&[1, tokens, 32], 1)),
            Some(Tensor::new([1, tokens, 4], &router).unwrap()),
            Some(weights(64, 32)),
            None,
            Some(weights(32, 64)),
            None,
            Some(weights(64, 32)),
        ];
        let types = [BlockType::F32; 3];
        let blocks = Some(ExpertBlocks { types, inner: 64, rounds: true });
        let op = MixtureOfExperts { top: 1, blocks, activation: ExpertActivation::Silu, ..RELU };
        let y = run_cpu(&op, &inputs, 1).unwrap().remove(0).to_f32s().unwrap();
        assert!(y.iter().all(|v| v.is_finite()), "{y:?}");
        #[cfg(feature = "vulkan")]
        crate::ops::testing::check_op(&op, &inputs, 2e-5);
        assert!(op.with_exact_activations().is_some());
        // Bytes of fewer experts.
        let mut fewer = inputs.clone();
        fewer[2] = Some(Tensor::new([16], &[0u8; 16]).unwrap());
        assert!(facts(&op, &fewer, 1).is_err() && facts(&op, &inputs, 1).is_ok());
    }
}

/// Numbers of a router that are equal, or none, choose the first experts.
#[test]
fn odd_numbers_of_a_router_choose_experts_all_the_same() {
    let odd = [f32::NAN, 0.5, 0.5, f32::NEG_INFINITY, 0.5, f32::INFINITY, f32::NAN, f32::NAN, f32::NAN];
    let inputs = [
        Some(tensor(&[3, 4], 1)),
        Some(Tensor::new([3, 3], &odd).unwrap()),
        Some(tensor(&[3, 5, 4], 2)),
        None,
        Some(tensor(&[3, 4, 5], 3)),
    ];
    let y = run_cpu(&RELU, &inputs, 1).unwrap().remove(0).to_f32s().unwrap();
    assert!(y.iter().all(|v| v.is_finite()), "{y:?}");
    #[cfg(feature = "vulkan")]
    crate::ops::testing::check_op(&RELU, &inputs, 2e-5);
}

/// What onnxruntime 1.31.1 on CPUs says of two tokens: the first three elements of each. Its QMoE normalizes the factors
/// that it makes itself, whatever is asked for.
#[test]
fn factors_are_those_of_onnxruntime() {
    const SIZE: usize = 16;
    let number = |t: usize, c: usize| (((3 * t + 5 * c) % 8) as f32 - 3.5) / 4.0;
    let x: Vec<f32> = (0..2 * SIZE).map(|i| number(i / SIZE, i % SIZE)).collect();
    let code = |i: usize| {
        let (e, r, c) = (i / SIZE / SIZE, i / SIZE % SIZE, i % SIZE);
        ((5 * e + 3 * r + 7 * c + r * c) % 16) as u8
    };
    let codes = packed(&[(0..3 * SIZE * SIZE).map(code).collect()], 4);
    let weights = Tensor::new([3, SIZE, SIZE / 2], &codes).unwrap();
    let scales = |scale: f32| Tensor::new([3, SIZE], &[scale; 3 * SIZE]).unwrap();
    let router = Tensor::new([2, 3], &[0.5f32, -0.25, 1.0, -1.5, 0.75, 0.25]).unwrap();
    let factors = Tensor::new([2, 3], &[0.5f32, 0.125, 0.25, 1.0, 0.375, 0.5]).unwrap();
    let x = Tensor::new([2, SIZE], &x).unwrap();
    for (top, normalize, given, want) in [
        (1, false, false, [-0.168, -0.168, -0.216, -0.36, -0.288, -0.12]),
        (1, false, true, [-0.042, -0.042, -0.054, -0.135, -0.108, -0.045]),
        (1, true, true, [-0.168, -0.168, -0.216, -0.36, -0.288, -0.12]),
        (2, false, false, [-0.11363, -0.2133, -0.01666, -0.25127, -0.02523, -0.08376]),
        (2, false, true, [-0.054, -0.186, 0.102, -0.171, 0.096, -0.057]),
        (2, true, false, [-0.11363, -0.2133, -0.01666, -0.25127, -0.02523, -0.08376]),
        (2, true, true, [-0.072, -0.248, 0.136, -0.19543, 0.10971, -0.06514]),
        (3, false, false, [-0.10007, -0.25367, 0.00402, -0.24319, 0.00883, -0.08303]),
    ] {
        let codes = Some(ExpertCodes { bits: [4; 3], block: None });
        let activation = ExpertActivation::Identity;
        let op = MixtureOfExperts { top, activation, normalize, codes, ..RELU };
        let mut inputs = [x.clone(), router.clone(), weights.clone(), scales(0.03)].map(Some).to_vec();
        inputs.extend([None, Some(weights.clone()), Some(scales(0.05))]);
        if given {
            inputs.resize(FACTORS, None);
            inputs.push(Some(factors.clone()));
        }
        let near = |y: &[f32]| {
            let got = [&y[..3], &y[SIZE..SIZE + 3]].concat();
            got.iter().zip(&want).all(|(y, want): (&f32, &f32)| (y - want).abs() < 2e-5)
        };
        let y = run_cpu(&op, &inputs, 1).unwrap().remove(0).to_f32s().unwrap();
        assert!(near(&y), "{top} {normalize} {given}: {y:?}");
        #[cfg(feature = "vulkan")]
        crate::ops::testing::check_op(&op, &inputs, 2e-5);
    }
}

#[test]
fn attributes_and_shapes_are_checked() {
    let read = |name: &str, list: &[(&str, AttrValue)]| {
        let map = attrs(list);
        let mut reader = AttrReader::new(&map, 5, 1);
        (find("com.microsoft", name).unwrap().read)(&mut reader, 1)
    };
    let int = |name, n| [(name, AttrValue::Int(n))];
    let text = |name, s: &str| [(name, AttrValue::Str(s.as_bytes().to_vec()))];
    assert!(read("MoE", &[]).is_ok() && read("QMoE", &[]).is_ok());
    assert!(read("MoE", &int("k", 0)).is_err());
    // The sparse mixer chooses two experts.
    assert!(read("MoE", &int("use_sparse_mixer", 1)).is_err());
    let two = [("use_sparse_mixer", AttrValue::Int(1)), ("k", AttrValue::Int(2))];
    assert!(read("MoE", &two).is_ok());
    assert!(read("MoE", &text("activation_type", "tanh")).is_err());
    assert!(read("QMoE", &text("quant_type", "fp4")).is_err());
    assert!(read("QMoE", &int("expert_weight_bits", 3)).is_err());
    assert!(read("QMoE", &int("block_size", 24)).is_err());
    assert!(read("QMoE", &int("weights_prepacked", 1)).is_err());
    let infers = |router: &[usize], first: &[usize], second: &[usize]| {
        let inputs = [
            Some(tensor(&[2, 3, 4], 1)),
            Some(tensor(router, 2)),
            Some(tensor(first, 3)),
            None,
            Some(tensor(second, 4)),
        ];
        facts(&RELU, &inputs, 1).is_ok()
    };
    assert!(infers(&[6, 3], &[3, 5, 4], &[3, 4, 5]));
    assert!(!infers(&[6, 1], &[1, 5, 4], &[1, 4, 5]), "fewer experts than a token has");
    assert!(!infers(&[5, 3], &[3, 5, 4], &[3, 4, 5]));
    assert!(!infers(&[6, 3], &[3, 5, 3], &[3, 4, 5]));
    assert!(!infers(&[6, 3], &[3, 5, 4], &[3, 4, 6]));
}
