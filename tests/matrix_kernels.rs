//! Kernels of cooperative matrices on a device without them: a disguise promises matrices and builds the same kernels with
//! plain arithmetic in their place. All numbers are exact in `float16` and their sums in `float32`, so that only a bias and
//! results of `float16` are rounded.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![cfg(feature = "vulkan")]

#[path = "support/disguise.rs"]
mod disguise;
#[path = "support/foreign.rs"]
mod foreign;
#[path = "support/glsl.rs"]
mod glsl;

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use half::f16;
use onepool::backend::vulkan::VulkanDriver;
use onepool::backend::{ContextDesc, DeviceInfo, Driver};
use onepool::device::Context;
use onepool::kernel::KernelSource;
use onepool::ops::attention::{Attention, Codes, MatMulNBits};
use onepool::ops::conv::Conv;
use onepool::ops::ggml::{BlockType, MatMulBlocks, Rows};
use onepool::ops::linalg::Gemm;
use onepool::ops::pointwise::Function;
use onepool::ops::{Activation, Operator, WindowAttrs};
use onepool::{DType, GraphBuilder, Session, Shape, Tensor, TensorInfo};

use self::disguise::Disguised;

/// The text of `name` of the shaders with what it includes, each file once.
fn expand(name: &str, done: &mut HashSet<String>) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
    let folders =
        ["attention", "conv", "ggml", "include", "linalg"].map(|folder| root.join(folder).join(name));
    let read = match folders.iter().find(|path| path.exists()) {
        Some(path) => std::fs::read_to_string(path).unwrap(),
        // The build makes it.
        None if name == "functions.glsl" => onepool_expr::glsl::include_file().unwrap(),
        None => panic!("there is no {name}"),
    };
    let mut text = String::new();
    for line in read.lines() {
        match line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
            Some(included) if done.insert(included.to_owned()) => text += &expand(included, done),
            Some(_) => {}
            None => text += line,
        }
        text.push('\n');
    }
    text
}

/// Kernel `name` of `file` with plain matrices.
fn plain(file: &str, name: &str) -> KernelSource {
    let text = expand(&format!("{file}.comp"), &mut HashSet::new());
    let variant = name.strip_prefix(file).unwrap().trim_start_matches('_');
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = words.into_iter().find(|words| words.starts_with(&["//", "variant:", variant]));
    let mut defines = "#define PLAIN_MATRICES 1\n".to_owned();
    for define in &found.expect("the kernel is a variant of the file")[3..] {
        let (key, value) = define.split_once('=').unwrap_or((define, "1"));
        let value = match value {
            "f16" => "float16_t",
            "f32" => "float",
            value => value,
        };
        defines += &format!("#define {key} {value}\n");
    }
    let text = text.replacen("#version 450\n", &format!("#version 450\n{defines}"), 1);
    foreign::spirv(name.to_owned(), glsl::compile(&text)).unwrap()
}

/// The first device, with matrices; and the names of the kernels that plain ones took the place of.
fn with_matrices() -> Option<(Context, Arc<Mutex<HashSet<String>>>)> {
    with_matrices_as(|info| info.processors = Some(16))
}

/// The same, as `change` has it.
fn with_matrices_as(change: impl FnOnce(&mut DeviceInfo)) -> Option<(Context, Arc<Mutex<HashSet<String>>>)> {
    let driver = VulkanDriver::default();
    let real = match driver.open(0, &ContextDesc { validation: true, ..ContextDesc::default() }) {
        Ok(real) => real,
        Err(error) => {
            let required = std::env::var("REQUIRE_BACKENDS").is_ok_and(|v| v.contains("vulkan"));
            assert!(!required, "there is no device: {error}");
            eprintln!("not tested: {error}");
            return None;
        }
    };
    let disguised = Disguised::with_matrices(real, change);
    let seen: Arc<Mutex<HashSet<String>>> = Arc::default();
    let names = Arc::clone(&seen);
    let disguised = disguised.replacing(move |name| {
        let files = [
            "nbits_matrix",
            "block_matrix",
            "gemm_matrix",
            "conv_matrix",
            "conv_patch",
            "attention_matrix",
            "attention_streak",
        ];
        let file = files.into_iter().find(|file| name.starts_with(file))?;
        names.lock().unwrap().insert(name.to_owned());
        Some(plain(file, name))
    });
    Some((Context::new(Arc::new(disguised)), seen))
}

/// Whole numbers from 0 to `below`, in no order.
fn numbers(n: usize, below: u32, seed: u32) -> impl Iterator<Item = u32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9) | 1;
    (0..n).map(move |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) % below
    })
}

fn floats(shape: &[usize], half: bool, values: impl Iterator<Item = f32>) -> Tensor {
    match half {
        true => Tensor::new(shape, &values.map(f16::from_f32).collect::<Vec<_>>()).unwrap(),
        false => Tensor::new(shape, &values.collect::<Vec<_>>()).unwrap(),
    }
}

/// Rows of quarters from -2 to 2; those of `float32` are of very different sizes.
fn rows(m: usize, k: usize, half: bool) -> Tensor {
    let factor = move |i: usize| if half { 1.0 } else { [1.0, 1_048_576.0, 1.0 / 1_048_576.0][i / k % 3] };
    floats(
        &[m, k],
        half,
        numbers(m * k, 17, 1).enumerate().map(move |(i, v)| (v as f32 - 8.0) / 4.0 * factor(i)),
    )
}

/// The output of `op` of `inputs` on a device; all but the first are constants.
fn run(op: Arc<dyn Operator>, inputs: &[Option<Tensor>], context: Option<&Context>) -> Vec<f32> {
    let mut g = GraphBuilder::new("product");
    let values: Vec<_> = inputs
        .iter()
        .enumerate()
        .map(|(i, tensor)| {
            let tensor = tensor.as_ref()?;
            Some(match i {
                0 => g.input("a", tensor.dtype(), tensor.shape().dims().iter().map(|d| (*d).into())),
                _ => g.constant(format!("c{i}"), tensor.clone()),
            })
        })
        .collect();
    let y = g.node("product", op, &values, 1).1[0];
    g.output("y", y);
    let builder = Session::builder().graph(g.build().unwrap());
    let mut session = match context {
        Some(context) => builder.context(context.clone()),
        None => builder.device("cpu"),
    }
    .build()
    .unwrap();
    session.set_input("a", inputs[0].as_ref().unwrap()).unwrap();
    session.run().unwrap();
    session.get_output("y").unwrap().to_f32s().unwrap()
}

/// Whether the two are equal but for a sum with a bias below 8, and for a result of `float16`.
fn near(got: f32, want: f32, half: bool, biased: bool) -> bool {
    let relative = if half { 1.0 / 1024.0 } else { f32::EPSILON };
    let size = if biased { want.abs().max(8.0) } else { want.abs() };
    got == want || (half || biased) && (got - want).abs() <= relative * size
}

/// A form of MatMulNBits.
#[derive(Clone, Copy, Debug)]
struct Form {
    sizes: [usize; 3],
    bits: usize,
    block: usize,
    codes: Codes,
    /// 0 without zero points, 1 with codes of them, 2 with numbers.
    zeros: usize,
    biased: bool,
    half: bool,
    /// Scales are multiplied by 2 to this power, those of each third column by 2 to the second.
    scales: [i32; 2],
}

impl Form {
    fn op(&self, rounds: bool) -> Arc<dyn Operator> {
        let [_, n, k] = self.sizes;
        Arc::new(MatMulNBits { k, n, bits: self.bits, block: self.block, rounds, codes: self.codes })
    }

    fn inputs(&self) -> Vec<Option<Tensor>> {
        let Form { sizes: [m, n, k], bits, block, half, .. } = *self;
        let blocks = k.div_ceil(block);
        let bytes = |n: usize, seed: u32| numbers(n, 256, seed).map(|v| v as u8).collect::<Vec<u8>>();
        let (columns, points) = (n * blocks * block * bits / 8, n * (blocks * bits).div_ceil(8));
        let power = |i: usize| 2f32.powi(self.scales[usize::from(i / blocks % 3 == 2)]);
        let scales = numbers(n * blocks, 3, 3).enumerate();
        let scales = scales.map(|(i, v)| [0.25, 0.5, 1.0][v as usize] * power(i));
        let halves = numbers(n * blocks, 31, 4).map(|v| v as f32 / 2.0);
        vec![
            Some(rows(m, k, half)),
            Some(Tensor::new([columns], &bytes(columns, 2)).unwrap()),
            Some(floats(&[n * blocks], half, scales)),
            match self.zeros {
                0 => None,
                1 => Some(Tensor::new([points], &bytes(points, 5)).unwrap()),
                _ => Some(floats(&[n * blocks], half, halves)),
            },
            None,
            self.biased.then(|| floats(&[n], half, numbers(n, 9, 6).map(|v| v as f32 - 4.0))),
        ]
    }
}

#[test]
fn rows_times_codes_are_those_of_the_native_function() {
    let Some((context, seen)) = with_matrices() else { return };
    let form = Form {
        sizes: [0; 3],
        bits: 4,
        block: 16,
        codes: Codes::Whole,
        zeros: 0,
        biased: false,
        half: true,
        scales: [0, 0],
    };
    let sizes = |m, n, k| [m, n, k];
    let mut forms = vec![
        // Edges in every direction, blocks that end beyond k, and k of half a run.
        Form { sizes: sizes(5, 7, 72), biased: true, ..form },
        Form { sizes: sizes(65, 66, 136), block: 64, zeros: 1, ..form },
        Form { sizes: sizes(70, 130, 256), block: 256, zeros: 2, biased: true, ..form },
        Form { sizes: sizes(6, 64, 8), zeros: 1, ..form },
        Form { sizes: sizes(9, 10, 80), bits: 8, zeros: 1, biased: true, ..form },
        Form { sizes: sizes(9, 10, 80), bits: 8, block: 32, zeros: 2, ..form },
        Form { sizes: sizes(9, 10, 96), bits: 2, block: 32, zeros: 1, ..form },
        Form { sizes: sizes(9, 10, 96), bits: 2, biased: true, ..form },
        Form { sizes: sizes(9, 10, 96), block: 32, codes: Codes::E2m1, ..form },
    ];
    forms.extend(forms.clone().into_iter().map(|form| Form { half: false, ..form }));
    // Enough columns for larger tiles.
    forms.push(Form { sizes: sizes(65, 250, 72), zeros: 1, ..form });
    forms.push(Form { sizes: sizes(65, 250, 72), biased: true, half: false, ..form });
    // The largest take 36 KiB.
    let large = context.info().limits.max_local_bytes >= 36 << 10;
    if large {
        forms.push(Form { sizes: sizes(130, 1500, 72), zeros: 1, ..form });
    }
    for form in forms {
        let inputs = form.inputs();
        let want = run(form.op(false), &inputs, None);
        let got = run(form.op(true), &inputs, Some(&context));
        let n = form.sizes[1];
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!(
                near(*got, *want, form.half, form.biased),
                "{form:?} [{}, {}]: {got}, not {want}",
                i / n,
                i % n
            );
        }
        assert_eq!(got.len(), want.len());
    }
    let seen = seen.lock().unwrap();
    for (name, runs) in [
        ("nbits_matrix_f16_32", true),
        ("nbits_matrix_f32_32", true),
        ("nbits_matrix_f16_64", true),
        ("nbits_matrix_f32_64", true),
        ("nbits_matrix_f16_128", large),
    ] {
        assert_eq!(seen.contains(name), runs, "{name} of {seen:?}");
    }
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

/// Scales of `float32` that `float16` does not have: less than its least number, less than its least normal
/// one in some columns, more than weights may be of.
#[test]
fn scales_beyond_halves_are_exact() {
    let Some((context, seen)) = with_matrices() else { return };
    let form = Form {
        sizes: [6, 9, 64],
        bits: 4,
        block: 16,
        codes: Codes::Whole,
        zeros: 1,
        biased: false,
        half: false,
        scales: [0, 0],
    };
    let powers = [[-40, -40], [-100, -100], [0, -18], [-20, -38], [16, 0], [20, 20]];
    // No power of two brings all of these columns among the numbers of float16.
    let apart = [[12, -20], [0, -60]];
    for (scales, by_matrices) in powers.map(|p| (p, true)).into_iter().chain(apart.map(|p| (p, false))) {
        for bits in [2, 4, 8] {
            let form = Form { scales, bits, block: 32, ..form };
            let inputs = form.inputs();
            let want = run(form.op(false), &inputs, None);
            let got = run(form.op(true), &inputs, Some(&context));
            assert_eq!(seen.lock().unwrap().drain().count() > 0, by_matrices, "{form:?}");
            let wrong = got.iter().zip(&want).position(|(got, want)| (got - want).abs() > 1e-6 * want.abs());
            let values = wrong.map(|at| (at, got[at], want[at]));
            assert!(got.len() == want.len() && wrong.is_none(), "{form:?}: {values:?}");
        }
    }
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

/// What a model does not allow to round, and what no kernel of matrices reads.
#[test]
fn exact_rows_and_odd_forms_are_left_to_other_kernels() {
    let Some((context, seen)) = with_matrices() else { return };
    let form = Form {
        sizes: [6, 9, 64],
        bits: 4,
        block: 16,
        codes: Codes::Whole,
        zeros: 1,
        biased: true,
        half: false,
        scales: [0, 0],
    };
    let odd = [
        (form, false),
        (Form { sizes: [6, 9, 70], ..form }, true),
        (Form { sizes: [6, 3, 80], bits: 2, ..form }, true),
        (Form { sizes: [4, 9, 64], ..form }, true),
    ];
    for (form, rounds) in odd {
        let inputs = form.inputs();
        let (got, want) = (run(form.op(rounds), &inputs, Some(&context)), run(form.op(false), &inputs, None));
        let all = got.iter().zip(&want).all(|(got, want)| near(*got, *want, false, true));
        assert!(all && got.len() == want.len(), "{form:?}");
    }
    assert!(seen.lock().unwrap().is_empty(), "{seen:?}");
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

#[test]
fn rows_times_blocks_are_those_of_the_native_function() {
    let Some((context, seen)) = with_matrices() else { return };
    for blocks in BlockType::ALL {
        let b = Rows { blocks, rows: 70, k: 64.max(blocks.elements() * 2) };
        let info = b.info().unwrap();
        let mut bytes: Vec<u8> = numbers(info.bytes(), 256, 7).map(|v| v as u8).collect();
        for block in bytes.chunks_exact_mut(blocks.bytes()) {
            // Scales of 1/4, and numbers of few digits where there are no codes.
            let quarter = [0x00, 0x34];
            match blocks {
                BlockType::F32 => block.copy_from_slice(&(f32::from(block[0]) - 128.0).to_le_bytes()),
                BlockType::F16 => {
                    let value = f16::from_f32(f32::from(block[0]) - 128.0);
                    block.copy_from_slice(&value.to_le_bytes());
                }
                BlockType::Bf16 => block.copy_from_slice(&[block[0] & 0xf0, 0x3f | block[1] & 0x80]),
                BlockType::Q6K => {
                    block[208..].copy_from_slice(&quarter);
                    block[192..208].iter_mut().for_each(|scale| *scale &= 3);
                }
                BlockType::Q2K => {
                    block[80..82].copy_from_slice(&quarter);
                    block[82..].copy_from_slice(&quarter);
                }
                BlockType::Q3K => block[108..].copy_from_slice(&quarter),
                // All 33, of which 32 is zero.
                BlockType::Iq4Xs => {
                    block[..2].copy_from_slice(&quarter);
                    block[2..4].copy_from_slice(&[0xaa; 2]);
                    block[4..8].copy_from_slice(&[0x11; 4]);
                }
                BlockType::Q4K | BlockType::Q5K => {
                    block[..2].copy_from_slice(&quarter);
                    block[2..4].copy_from_slice(&quarter);
                }
                BlockType::Q41 | BlockType::Q51 => {
                    block[..2].copy_from_slice(&quarter);
                    block[2..4].copy_from_slice(&quarter);
                }
                _ => block[..2].copy_from_slice(&quarter),
            }
        }
        for biased in [true, false] {
            let mut inputs =
                vec![Some(rows(9, b.k, true)), Some(Tensor::from_bytes(info.clone(), &bytes).unwrap())];
            inputs.extend(
                biased.then(|| Some(floats(&[b.rows], true, numbers(b.rows, 9, 6).map(|v| v as f32)))),
            );
            let op: Arc<dyn Operator> = Arc::new(MatMulBlocks { b, rounds: false });
            let want = run(op.clone(), &inputs, None);
            let got = run(op, &inputs, Some(&context));
            for (got, want) in got.iter().zip(&want) {
                assert!(near(*got, *want, true, biased), "{blocks:?}: {got}, not {want}");
            }
            assert_eq!(got.len(), want.len());
        }
    }
    assert!(seen.lock().unwrap().contains("block_matrix_f16_32"), "{seen:?}");
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

/// Whole numbers from -4 to 4, in `float16`.
fn whole(shape: &[usize], seed: u32) -> Option<Tensor> {
    Some(floats(shape, true, numbers(shape.iter().product(), 9, seed).map(|v| v as f32 - 4.0)))
}

/// Checks `op` of `inputs`, called `name`, against the native function, whose transformed tiles are not exact.
fn check(op: Arc<dyn Operator>, inputs: &[Option<Tensor>], name: &str, context: &Context) {
    let want = run(op.clone(), inputs, None);
    let got = run(op, inputs, Some(context));
    let wrong = got.iter().zip(&want).position(|(got, want)| !near(*got, *want, true, true));
    let values = wrong.map(|at| (at, got[at], want[at]));
    assert!(got.len() == want.len() && wrong.is_none(), "{name}: (element, value, expected) {values:?}");
}

/// Large tiles and small ones, eight and four elements at a time, operands of either order, and a depth that work-groups share.
#[test]
fn products_are_those_of_the_native_function() {
    let Some((context, seen)) = with_matrices() else { return };
    // Sizes that are no multiples of a tile.
    let sizes = [
        [40, 72, 40],
        [36, 68, 20],
        [136, 1032, 48],
        [20, 24, 1160],
        [132, 1028, 36],
        [248, 1000, 40],
        [252, 1004, 36],
    ];
    for [m, n, k] in sizes {
        for turned in 0..4 {
            let (trans_a, trans_b) = (turned % 2 == 1, turned / 2 == 1);
            let activation = Activation::of(Function::Relu);
            let op = Gemm { alpha: 0.5, beta: 2.0, trans_a, trans_b, activation };
            let a = if trans_a { [k, m] } else { [m, k] };
            let b = if trans_b { [n, k] } else { [k, n] };
            let inputs = [whole(&a, 1), whole(&b, 2), whole(&[n], 3)];
            check(Arc::new(op), &inputs, &format!("{m} x {n} x {k}, {turned}"), &context);
        }
    }
    let seen = seen.lock().unwrap();
    for name in ["f16x8_128", "f16x4_128", "f16x8_64", "f16x4_64", "f16x8_32", "f16x4_32"] {
        assert!(seen.contains(&format!("gemm_matrix_{name}")), "{name} of {seen:?}");
    }
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

/// Large tiles, small ones, and patches of each width; strides, groups, several images, odd sizes, and a depth that work-groups
/// share.
#[test]
fn convolutions_are_those_of_the_native_function() {
    let Some((context, seen)) = with_matrices() else { return };
    let padded = |n: i64, strides: [i64; 2]| WindowAttrs {
        pads: vec![n; 4],
        strides: strides.to_vec(),
        ..WindowAttrs::default()
    };
    let forms: [([usize; 4], [usize; 4], usize, [i64; 2]); 10] = [
        ([1, 20, 78, 62], [16, 20, 3, 3], 1, [1, 1]),
        ([1, 60, 46, 62], [24, 60, 3, 3], 1, [1, 1]),
        ([2, 17, 46, 62], [30, 17, 3, 3], 1, [1, 1]),
        ([1, 12, 47, 62], [70, 12, 3, 3], 1, [1, 1]),
        ([1, 40, 48, 64], [36, 20, 3, 3], 2, [1, 1]),
        ([1, 96, 9, 7], [40, 96, 3, 3], 1, [1, 1]),
        ([2, 35, 11, 13], [33, 35, 3, 3], 1, [2, 1]),
        ([1, 64, 10, 10], [34, 32, 5, 1], 2, [1, 2]),
        ([1, 18, 40, 41], [130, 18, 2, 2], 1, [1, 1]),
        ([1, 320, 5, 5], [20, 320, 1, 1], 1, [1, 1]),
    ];
    for (x, w, group, strides) in forms {
        let op = Conv {
            window: padded((w[2] as i64 - 1) / 2, strides),
            group,
            activation: Activation::of(Function::Relu),
            ..Conv::default()
        };
        let inputs = [whole(&x, 1), whole(&w, 2), whole(&[w[0]], 3)];
        check(Arc::new(op.clone()), &inputs, &format!("{x:?} * {w:?}"), &context);
        check(Arc::new(op.clone()), &inputs[..2], &format!("{x:?} * {w:?} without a bias"), &context);
        let output = |i: usize| (x[i + 2] + (w[2] - 1) / 2 * 2 - w[i + 2]) / strides[i] as usize + 1;
        let inputs = [&inputs[..], &[whole(&[x[0], w[0], output(0), output(1)], 4)]].concat();
        check(
            Arc::new(Conv { summed: true, ..op.clone() }),
            &inputs,
            &format!("{x:?} * {w:?} + z"),
            &context,
        );
        let slopes = Conv { activation: Activation::None, sloped: true, ..op };
        let inputs = [whole(&x, 1), whole(&w, 2), whole(&[2 * w[0]], 3)];
        check(Arc::new(slopes), &inputs, &format!("{x:?} * {w:?} with slopes"), &context);
    }
    let seen = seen.lock().unwrap();
    let patches = ["patch_f16_16", "patch_f16_32", "patch_f16_32_deep", "patch_f16_64"];
    for name in ["matrix_f16", "matrix_f16_small"].into_iter().chain(patches) {
        assert!(seen.contains(&format!("conv_{name}")), "{name} of {seen:?}");
    }
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

/// Every size of a vector, kind of mask, window, and number of valid keys, on a device of matrices.
fn check_attention(context: &Context) {
    let plain = Attention::default();
    let causal = Attention { causal: true, ..plain.clone() };
    let window = Attention { window: [Some(20), None], softcap: 2.0, ..causal.clone() };
    let shared = Attention { heads: Some((4, 2)), ..causal.clone() };
    // Batch, heads of queries and of keys, queries, keys, elements of a key and of a value.
    let none: &[usize] = &[];
    for (op, [b, hq, hk, l, s, d, dv], mask, bools, lens) in [
        (&plain, [1, 2, 2, 5, 9, 8, 16], none, false, none),
        (&plain, [1, 2, 2, 70, 150, 64, 64], none, false, none),
        (&causal, [1, 4, 2, 100, 100, 32, 24], none, false, none),
        (&causal, [2, 2, 1, 20, 140, 128, 128], &[20, 140], false, none),
        (&plain, [2, 8, 8, 70, 70, 40, 40], &[2, 1, 70, 70], true, none),
        (&plain, [1, 2, 2, 33, 70, 96, 128], &[33, 70], true, none),
        (&causal, [3, 6, 2, 17, 80, 16, 8], none, false, &[80, 30, 0]),
        (&window, [2, 8, 4, 90, 90, 64, 32], none, false, none),
        (&window, [2, 8, 4, 66, 66, 128, 120], none, false, none),
        (&shared, [1, 4, 2, 24, 24, 64, 64], none, false, none),
        (&plain, [1, 1, 1, 100, 90, 64, 40], none, false, none),
        (&plain, [1, 1, 1, 70, 75, 72, 128], none, false, none),
        (&plain, [3, 2, 1, 30, 80, 48, 64], none, false, &[80, 30, 0]),
    ] {
        // Quarters: their products are exact, and scores are not so large that one key has all the weight.
        let quarters = |shape: [usize; 4], seed: u32| {
            let n = shape.iter().product();
            Some(floats(&shape, true, numbers(n, 9, seed).map(|v| (v as f32 - 4.0) / 4.0)))
        };
        let given = match mask.iter().product::<usize>() {
            _ if mask.is_empty() => None,
            n if bools => {
                let bytes: Vec<u8> = numbers(n, 4, 7).map(|v| u8::from(v > 0)).collect();
                Some(
                    Tensor::from_bytes(TensorInfo::new(DType::Bool, Shape::new(mask).unwrap()), &bytes)
                        .unwrap(),
                )
            }
            n => Some(floats(
                mask,
                true,
                numbers(n, 9, 7).map(|v| if v == 0 { f32::NEG_INFINITY } else { v as f32 / 4.0 }),
            )),
        };
        let lens = (!lens.is_empty())
            .then(|| Tensor::new([b], &lens.iter().map(|n| *n as i64).collect::<Vec<_>>()).unwrap());
        let mut inputs =
            vec![quarters([b, hq, l, d], 1), quarters([b, hk, s, d], 2), quarters([b, hk, s, dv], 3), given];
        if lens.is_some() {
            inputs.extend([None, None, lens]);
        }
        let op: Arc<dyn Operator> = Arc::new(op.clone());
        let want = run(op.clone(), &inputs, None);
        let got = run(op, &inputs, Some(context));
        // Weights are rounded to float16 before the sums.
        let wrong = got.iter().zip(&want).position(|(got, want)| (got - want).abs() > 2e-3);
        let values = wrong.map(|at| (at, got[at], want[at]));
        let case = format!("{b} {hq} {hk} {l} {s} {d} {dv} {mask:?}");
        assert!(got.len() == want.len() && wrong.is_none(), "{case}: (element, value, expected) {values:?}");
    }
}

/// Few work-groups and many.
#[test]
fn attention_is_that_of_the_native_function() {
    let Some((context, seen)) = with_matrices() else { return };
    check_attention(&context);
    let seen = seen.lock().unwrap();
    for (name, bytes) in [
        ("32", 11 << 10),
        ("64", 15 << 10),
        ("64_bool", 15 << 10),
        ("128", 23 << 10),
        ("32_few", 16 << 10),
        ("64_few", 24 << 10),
        ("128_few", 40 << 10),
        ("128_few_bool", 40 << 10),
    ] {
        let fits = context.info().limits.max_local_bytes >= bytes;
        assert_eq!(seen.contains(&format!("attention_matrix_f16_{name}")), fits, "{name} of {seen:?}");
    }
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

/// Where there are registers for the kernels of streaks, which take what has no mask.
#[test]
fn attention_in_streaks_is_that_of_the_native_function() {
    let many_registers = |info: &mut DeviceInfo| {
        (info.processors, info.subgroup_range) = (Some(1), [32; 2]);
    };
    let Some((context, seen)) = with_matrices_as(many_registers) else { return };
    check_attention(&context);
    let seen = seen.lock().unwrap();
    for name in
        ["streak_f16_64", "streak_f16_64_two", "streak_f16_128", "matrix_f16_64", "matrix_f16_128_bool"]
    {
        assert!(seen.contains(&format!("attention_{name}")), "{name} of {seen:?}");
    }
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}
