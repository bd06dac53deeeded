//! Operators on one thread of the CPU, as shares of what its units and its memory reach.
//!
//! `cargo bench --bench roofline`; `ONEPOOL_CPU_VECTORS` keeps it to AVX2. Both peaks are measured in the same run: multiply-adds in
//! registers, and reads of memory beyond any cache. Results are checked first.
//! Operations are those of the definition: transformed convolutions need fewer, and may pass the peak.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use onepool::backend::ContextDesc;
use onepool::ops::conv::Conv;
use onepool::ops::linalg::MatMul;
use onepool::ops::{Operator, WindowAttrs};
use onepool::registry::Registry;
use onepool::{DType, GraphBuilder, HostRegion, Memory, Session, Tensor};
use onepool_expr::simd::arch;
use pulp::{Simd, WithSimd};

/// Times of each case; the median counts.
const RUNS: usize = 25;

fn median_seconds(mut run: impl FnMut()) -> f64 {
    run();
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}

/// Multiply-adds that wait for none of the others; the result is how many operations they are.
struct MultiplyAdds;

impl WithSimd for MultiplyAdds {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> usize {
        const SUMS: usize = 12;
        const STEPS: usize = 1 << 16;
        let [x, y] = [1.0, 1e-7].map(|v| simd.splat_f32s(black_box(v)));
        let mut sums = [simd.splat_f32s(0.0); SUMS];
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = simd.mul_add_e_f32s(x, y, *sum);
            }
        }
        black_box(sums.map(|sum| simd.reduce_sum_f32s(sum)));
        2 * SUMS * STEPS * S::F32_LANES
    }
}

/// The sum of a slice in as many parts as reads need to overlap.
struct Sum<'a>(&'a [f32]);

impl WithSimd for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let mut sums = [simd.splat_f32s(0.0); 8];
        for vectors in S::as_simd_f32s(self.0).0.chunks_exact(8) {
            for (sum, x) in sums.iter_mut().zip(vectors) {
                *sum = simd.add_f32s(*sum, *x);
            }
        }
        sums.map(|sum| simd.reduce_sum_f32s(sum)).iter().sum()
    }
}

/// An operator of one input and constant weights.
struct Case {
    name: &'static str,
    op: Arc<dyn Operator>,
    x: Vec<usize>,
    w: Vec<usize>,
    /// Elements of the output that one multiply-add is needed for as often as `depth` says.
    depth: usize,
    /// Whether it reads more than it computes.
    by_reads: bool,
}

fn product(name: &'static str, [m, k, n]: [usize; 3], by_reads: bool) -> Case {
    Case { name, op: Arc::new(MatMul::default()), x: vec![m, k], w: vec![k, n], depth: k, by_reads }
}

fn convolution(name: &'static str, [ic, oc, side, kernel]: [usize; 4]) -> Case {
    let window = WindowAttrs { pads: vec![kernel as i64 / 2; 4], ..WindowAttrs::default() };
    let op = Arc::new(Conv { window, ..Conv::default() });
    let (x, w) = (vec![1, ic, side, side], vec![oc, ic, kernel, kernel]);
    Case { name, op, x, w, depth: ic * kernel * kernel, by_reads: false }
}

/// Small numbers that are not all alike.
fn numbers(n: usize, step: usize) -> Vec<f32> {
    (0..n).map(|i| (i * step % 17) as f32 / 16.0 - 0.5).collect()
}

/// Element `at` of the output by the definition.
fn expected(case: &Case, x: &[f32], w: &[f32], at: usize) -> f64 {
    let multiplied = |x: f32, w: f32| f64::from(x) * f64::from(w);
    match (&case.x[..], &case.w[..]) {
        ([_, k], [_, n]) => (0..*k).map(|i| multiplied(x[at / n * k + i], w[i * n + at % n])).sum(),
        ([_, ic, h, side], [_, _, _, kernel]) => {
            let (o, row, column) = (at / (h * side), at / side % h, at % side);
            let pad = kernel / 2;
            let mut sum = 0.0;
            for (c, v, u) in
                (0..ic * kernel * kernel).map(|i| (i / (kernel * kernel), i / kernel % kernel, i % kernel))
            {
                let (y, x_at) = ((row + v).wrapping_sub(pad), (column + u).wrapping_sub(pad));
                if y < *h && x_at < *side {
                    sum +=
                        multiplied(x[(c * h + y) * side + x_at], w[((o * ic + c) * kernel + v) * kernel + u]);
                }
            }
            sum
        }
        _ => unreachable!("matrices and images"),
    }
}

fn main() {
    let mut operations = 0;
    let seconds = median_seconds(|| operations = arch().dispatch(MultiplyAdds));
    let flops = operations as f64 / seconds;
    let memory = vec![1.0f32; 64 << 20];
    let reads = 4.0 * memory.len() as f64 / median_seconds(|| _ = black_box(arch().dispatch(Sum(&memory))));
    drop(memory);
    println!("one thread: multiply-adds reach {:.1} GFLOP/s, reads {:.1} GB/s", flops / 1e9, reads / 1e9);

    let desc = ContextDesc { threads: 1, ..ContextDesc::default() };
    let context = Registry::with_defaults().open("cpu", &desc).unwrap();
    let cases = [
        product("product of 256x1024 by 1024x1024", [256, 1024, 1024], false),
        product("product of 128x384 by 384x1536", [128, 384, 1536], false),
        product("product of 64x512 by 512x512", [64, 512, 512], false),
        product("product of 16x768 by 768x3072", [16, 768, 3072], false),
        product("product of 1x768 by 768x3072", [1, 768, 3072], true),
        product("product of 1x4096 by 4096x4096", [1, 4096, 4096], true),
        convolution("convolution of 64 to 64 channels, 3x3 of 56x56", [64, 64, 56, 3]),
        convolution("convolution of 256 to 256 channels, 3x3 of 14x14", [256, 256, 14, 3]),
        convolution("convolution of 256 to 64 channels, 1x1 of 56x56", [256, 64, 56, 1]),
        convolution("convolution of 512 to 512 channels, 1x1 of 7x7", [512, 512, 7, 1]),
        convolution("convolution of 3 to 32 channels, 3x3 of 224x224", [3, 32, 224, 3]),
    ];
    for case in cases {
        let [x, w] = [(&case.x, 5), (&case.w, 7)].map(|(sizes, step)| numbers(sizes.iter().product(), step));
        let mut graph = GraphBuilder::new("case");
        let input = graph.input("x", DType::F32, case.x.iter().map(|size| (*size).into()));
        let weights = graph.constant("w", Tensor::new(case.w.clone(), &w).unwrap());
        let y = graph.op(Arc::clone(&case.op), &[input, weights]);
        graph.output("y", y);
        let session =
            Session::builder().graph(graph.build().unwrap()).context(context.clone()).build().unwrap();
        let outputs: usize = match case.x[..] {
            [m, _] => m * case.w[1],
            _ => case.w[0] * case.x[2] * case.x[3],
        };
        let given = HostRegion::from_bytes(bytemuck::cast_slice(&x)).unwrap().into_shared();
        let result = HostRegion::new(4 * outputs).unwrap().into_shared();
        let binding = session.bind().input("x", Memory::region(&given)).output("y", Memory::region(&result));
        let mut binding = binding.build().unwrap();
        binding.run().unwrap();
        let y = result.read().unwrap().as_slice_of::<f32>().unwrap().to_vec();
        for at in (0..outputs).step_by(outputs / 97 + 1) {
            let (got, want) = (f64::from(y[at]), expected(&case, &x, &w, at));
            assert!((got - want).abs() < 1e-2, "{}: element {at} is {got}, not {want}", case.name);
        }
        let seconds = median_seconds(|| binding.run().unwrap());
        let (rate, unit, peak) = match case.by_reads {
            true => (4.0 * w.len() as f64 / seconds / 1e9, "GB/s", reads / 1e9),
            false => (2.0 * (outputs * case.depth) as f64 / seconds / 1e9, "GFLOP/s", flops / 1e9),
        };
        println!(
            "{:52} {:8.3} ms {rate:7.1} {unit:7} {:4.2} of the peak",
            case.name,
            seconds * 1e3,
            rate / peak
        );
    }
}
