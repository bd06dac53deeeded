//! Resize, pools and Conv through images against the same through buffers.

use std::sync::Arc;

use onepool::graph::StorageScope;
use onepool::memory::image::Texel;
use onepool::ops::conv::Conv;
use onepool::ops::pool::{CoordinateMode, Interpolation, NearestMode, Pool, PoolKind, Resize, ResizeDesc};
use onepool::ops::{Activation, Function, Operator, WindowAttrs};
use onepool::plan::{KernelCode, Plan};
use onepool::{DType, Session, Tensor};

use crate::common::{check_messages, contexts, distance, graph, open, run, session, tensor};

/// Whether some command reads an image, and the names of the device kernels.
fn images_of(plan: &Plan) -> (bool, Vec<String>) {
    let commands = plan.segments.iter().flat_map(|s| &s.commands);
    let mut through = false;
    for command in commands {
        if let onepool::plan::Work::Dispatch { images, .. } = &command.work {
            through |= !images.is_empty();
        }
    }
    let names = plan.kernels.iter().filter_map(|k| match &k.code {
        KernelCode::Device(onepool::ops::StepKernel::Table(id)) => Some(id.info().name.to_owned()),
        _ => None,
    });
    (through, names.collect())
}

/// Runs `op` with its input in a buffer and in an image, on every device, and compares; gives the names of
/// kernels on Vulkan.
fn check(op: Arc<dyn Operator>, x: &Tensor, constants: &[Option<Tensor>], tolerance: f32) -> Vec<String> {
    let mut kernels = Vec::new();
    for (device, context) in contexts() {
        let mut results = Vec::new();
        for scope in [StorageScope::Buffer, StorageScope::Planes] {
            let mut session = session(graph(x, op.clone(), constants, scope), context);
            // Twice: what the first run left in the memory must not matter.
            let first = run(&mut session, x);
            assert_eq!(run(&mut session, x), first, "{device}");
            results.push(first);
            let plan = session.plan(&[x.info().clone()]).unwrap();
            let (through, names) = images_of(&plan);
            let wanted = scope == StorageScope::Planes;
            let rules = context.info().images.as_ref();
            let texel = Texel::of(x.dtype(), 1).unwrap();
            // A device that reads no such texels: a buffer, and the report says so.
            let has = rules.is_some_and(|rules| rules.sampled.contains(texel));
            assert!(has || (*device == "opencl" && texel == Texel::R16F), "{device} {texel:?}");
            assert_eq!(through, wanted && has, "{device} {:?} {:?}", x.info(), plan.report.images);
            if wanted && !has {
                let report = &plan.report.images[0];
                assert!(report.image.is_none() && report.reason.is_some(), "{device} {report:?}");
            } else if wanted {
                let report = &plan.report.images[0];
                let image = report.image.unwrap();
                assert_eq!((report.name.as_str(), report.reason.as_ref()), ("t", None));
                assert_eq!(report.copied, !image.is_dense(), "{device}");
                if *device == "vulkan" {
                    kernels = names;
                }
            }
        }
        let far = distance(&results[0], &results[1]);
        assert!(far <= tolerance, "{device}: {far} for {}", x.info());
        check_messages(context);
    }
    kernels
}

const SHAPES: [[usize; 4]; 4] = [[1, 1, 1, 1], [2, 3, 5, 7], [1, 2, 9, 64], [1, 4, 13, 33]];

fn resize(mode: Interpolation, coordinates: CoordinateMode) -> Resize {
    Resize { desc: ResizeDesc { mode, coordinates, ..ResizeDesc::default() } }
}

fn sizes(sizes: [i64; 4]) -> [Option<Tensor>; 3] {
    [None, None, Some(Tensor::from_i64s(&sizes))]
}

#[test]
fn resize_reads_the_same_through_an_image() {
    let nearest = Interpolation::Nearest(NearestMode::RoundPreferFloor);
    let cubic = Interpolation::Cubic { a: -0.75 };
    for [n, c, h, w] in SHAPES {
        for (mode, coordinates) in [
            (nearest, CoordinateMode::HalfPixel),
            (nearest, CoordinateMode::Asymmetric),
            (Interpolation::Linear, CoordinateMode::HalfPixel),
            (Interpolation::Linear, CoordinateMode::AlignCorners),
            (cubic, CoordinateMode::HalfPixel),
        ] {
            let x = tensor(DType::F32, &[n, c, h, w], 1);
            // A third as large, and 1.5 times.
            let to = [n, c, h.div_ceil(3), w * 3 / 2 + 1].map(|d| d as i64);
            check(Arc::new(resize(mode, coordinates)), &x, &sizes(to), 2e-6);
        }
    }
    let halves = tensor(DType::F16, &[1, 2, 9, 15], 2);
    check(
        Arc::new(resize(Interpolation::Linear, CoordinateMode::HalfPixel)),
        &halves,
        &sizes([1, 2, 5, 31]),
        2e-3,
    );
}

#[test]
fn the_hardware_filters_where_it_is_exact() {
    let linear = || Arc::new(resize(Interpolation::Linear, CoordinateMode::HalfPixel));
    for [n, c, h, w] in SHAPES {
        let x = tensor(DType::F32, &[n, c, h, w], 3);
        // Quarters of texels.
        let kernels = check(linear(), &x, &sizes([n, c, 2 * h, 2 * w].map(|d| d as i64)), 1e-5);
        let context = open("vulkan");
        let rules = context.info().images.as_ref().unwrap();
        let filters = rules.filtered.contains(onepool::memory::image::Texel::R32F);
        assert_eq!(kernels.iter().any(|k| k == "resize_filtered_f32"), filters, "{kernels:?}");
    }
    // Thirds are not exact in 8 bits.
    let x = tensor(DType::F32, &[1, 1, 4, 4], 4);
    let kernels = check(linear(), &x, &sizes([1, 1, 12, 12]), 2e-6);
    assert!(kernels.iter().any(|k| k == "resize_image_f32"), "{kernels:?}");
}

#[test]
fn a_coarse_filter_is_near_where_the_caller_asks_for_it() {
    let context = open("vulkan");
    let x = tensor(DType::F32, &[1, 2, 7, 9], 5);
    let op = || Arc::new(resize(Interpolation::Linear, CoordinateMode::HalfPixel));
    let of = |scope| graph(&x, op(), &sizes([1, 2, 23, 25]), scope);
    let want = run(&mut session(of(StorageScope::Buffer), &context), &x);
    let coarse = Session::builder().graph(of(StorageScope::Planes)).context(context.clone());
    let mut coarse = coarse.fuse(false).fallback(false).coarse_filter(true).build().unwrap();
    let got = run(&mut coarse, &x);
    let (_, kernels) = images_of(&coarse.plan(&[x.info().clone()]).unwrap());
    let rules = context.info().images.as_ref().unwrap();
    let filters = rules.filtered.contains(onepool::memory::image::Texel::R32F);
    assert_eq!(kernels.iter().any(|k| k == "resize_filtered_f32"), filters, "{kernels:?}");
    let bits = rules.filter_bits;
    // Along each axis a weight is off by one step at most, times the largest difference of neighbours, 1.
    let bound = 2.0 * 0.5f32.powi(bits as i32) + 1e-5;
    assert!(distance(&want, &got) <= bound, "{} above {bound}", distance(&want, &got));
    check_messages(&context);
}

fn window(
    kernel: [i64; 2],
    strides: [i64; 2],
    pads: [i64; 4],
    dilations: [i64; 2],
    ceil_mode: bool,
) -> WindowAttrs {
    let (kernel, strides, pads) = (kernel.to_vec(), strides.to_vec(), pads.to_vec());
    WindowAttrs { kernel, strides, pads, dilations: dilations.to_vec(), ceil_mode, ..WindowAttrs::default() }
}

#[test]
fn pools_read_the_same_through_an_image() {
    let kinds = [
        PoolKind::Max { column_major: false },
        PoolKind::Average { include_pad: false },
        PoolKind::Average { include_pad: true },
    ];
    let windows = [
        window([3, 3], [2, 2], [1, 1, 1, 1], [1, 1], false),
        window([3, 2], [2, 3], [0, 1, 1, 0], [1, 1], true),
        window([2, 2], [1, 1], [1, 1, 1, 1], [2, 3], false),
    ];
    for kind in kinds {
        for window in &windows {
            for shape in [[2, 3, 5, 7], [1, 2, 9, 64], [1, 1, 12, 13]] {
                let op = Pool { kind, window: window.clone() };
                let names = check(Arc::new(op), &tensor(DType::F32, &shape, 1), &[], 1e-6);
                assert!(names.iter().any(|k| k == "pool_image_f32"), "{names:?}");
            }
        }
        let op = Pool { kind, window: windows[0].clone() };
        check(Arc::new(op), &tensor(DType::F16, &[1, 2, 7, 9], 1), &[], 2e-3);
    }
}

#[test]
fn convolutions_read_the_same_through_an_image() {
    let relu = Activation::with(Function::LeakyRelu, [0.1, 0.0]);
    let cases = [
        (window([3, 3], [1, 1], [1, 1, 1, 1], [1, 1], false), 1, [2usize, 3, 5, 7], 5, Activation::None),
        (window([3, 2], [2, 2], [0, 1, 1, 0], [1, 2], false), 2, [1, 4, 9, 64], 6, relu),
        (window([1, 1], [1, 1], [0; 4], [1, 1], false), 1, [1, 7, 4, 13], 9, Activation::None),
        (window([5, 5], [1, 3], [2, 2, 2, 2], [1, 1], false), 3, [1, 3, 11, 17], 3, Activation::None),
    ];
    for (window, group, shape, oc, activation) in cases {
        let weights = [oc, shape[1] / group, window.kernel[0] as usize, window.kernel[1] as usize];
        for dtype in [DType::F32, DType::F16] {
            let tolerance = if dtype == DType::F32 { 1e-4 } else { 3e-2 };
            for sloped in [false, true] {
                let activation = if sloped { Activation::None } else { activation };
                let op = Conv { window: window.clone(), group, activation, sloped, ..Conv::default() };
                let of_channels = if sloped { 2 * oc } else { oc };
                let constants = [Some(tensor(dtype, &weights, 2)), Some(tensor(dtype, &[of_channels], 3))];
                let names = check(Arc::new(op), &tensor(dtype, &shape, 1), &constants, tolerance);
                assert!(names.iter().any(|k| k.starts_with("conv_image_")), "{names:?}");
            }
        }
    }
}
