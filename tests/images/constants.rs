//! A constant that the graph wants in an image is placed there once, not copied in every run.

use std::sync::Arc;

use onepool::graph::StorageScope;
use onepool::ops::conv::Conv;
use onepool::ops::custom::{CustomKernel, Grid, KernelCall};
use onepool::ops::{self, Function, Operator, WindowAttrs};
use onepool::plan::{Plan, Space, Work};
use onepool::session::ParamStore;
use onepool::{DType, Graph, GraphBuilder, Session, Tensor, TensorInfo};

use crate::common::{check_messages, contexts, kernel, numbers, spirv_devices, tensor};

/// Copies and commands of a plan, and whether image arguments lie in constants.
fn counted(plan: &Plan) -> (usize, usize, usize) {
    let all = || plan.segments.iter().flat_map(|s| &s.commands);
    let copies = plan.report.nodes.iter().filter(|n| n.op == "ImageCopy").count()
        + all().filter(|c| matches!(c.work, Work::Copy { .. } | Work::Move { .. })).count();
    let in_constants = all().filter(|c| match &c.work {
        Work::Dispatch { args, images, .. } => images.iter().any(|(at, _)| {
            let loc = args.get(*at as usize).and_then(|arg| arg.as_ref());
            loc.is_some_and(|(loc, _)| matches!(loc.space, Space::Constant(_)))
        }),
        _ => false,
    });
    (copies, all().count(), in_constants.count())
}

/// `y = 2 w + x`, with `w` a texture that the kernel of the caller samples.
fn weighted(w: &Tensor, scope: StorageScope, width: usize) -> Graph {
    let glsl = format!(
        "#version 450\nlayout(local_size_x = 1) in;
         layout(binding = 0) uniform sampler2D w;
         layout(binding = 1, std430) readonly buffer X {{ vec4 x[]; }};
         layout(binding = 2, std430) writeonly buffer Y {{ vec4 y[]; }};
         void main() {{ int i = int(gl_GlobalInvocationID.x);
             y[i] = 2.0 * texelFetch(w, ivec2(i % {width}, i / {width}), 0) + x[i]; }}"
    );
    let texels = w.info().elements() as u32 / 4;
    let call = KernelCall::new(kernel("weighted", &glsl), Grid::Groups([texels, 1, 1]));
    let info = TensorInfo::new(DType::F32, w.shape().clone());
    let op: Arc<dyn Operator> = Arc::new(CustomKernel::fixed("weighted", call, vec![info]));
    let mut g = GraphBuilder::new("weighted");
    let dims: Vec<_> = w.shape().dims().iter().map(|d| (*d).into()).collect();
    let x = g.input("x", DType::F32, dims);
    let w = g.constant("w", w.clone());
    g.set_scope(w, scope);
    let y = g.op(op, &[w, x]);
    g.output("y", y);
    g.build().unwrap()
}

#[test]
fn a_texture_of_weights_is_filled_when_it_is_loaded() {
    // Rows of 400 texels need no padding, those of 7 and of 35 do.
    for (dims, width, scope) in [
        (&[1, 22, 20, 20, 4][..], 400, StorageScope::TextureNhwc),
        (&[3, 5, 7, 4], 7, StorageScope::Texture),
        (&[3, 5, 7, 4], 35, StorageScope::TextureWeight),
    ] {
        let n: usize = dims.iter().product();
        let (w, x) = (tensor(DType::F32, dims, 1), tensor(DType::F32, dims, 2));
        let pairs = numbers(n, 1).into_iter().zip(numbers(n, 2));
        let want: Vec<f32> = pairs.map(|(w, x)| 2.0 * w + x).collect();
        for (device, context) in contexts().iter().filter(|(d, _)| spirv_devices().any(|s| s == *d)) {
            let store = ParamStore::new();
            let mut sessions = [(); 2].map(|()| {
                let builder = Session::builder().graph(weighted(&w, scope, width)).fallback(false);
                builder.context(context.clone()).params(Arc::clone(&store)).build().unwrap()
            });
            for session in &mut sessions {
                for _ in 0..3 {
                    assert_eq!(crate::common::run(session, &x), want, "{device} {dims:?}");
                }
            }
            let plan = sessions[0].plan(&[x.info().clone()]).unwrap();
            assert_eq!(counted(&plan), (0, 1, 1), "{device} {dims:?}");
            assert!(plan.images.is_empty() && !plan.report.images[0].copied, "{:?}", plan.report.images);
            // Once for both sessions, in the rows of the image.
            let held = store.usage();
            let bytes = plan.report.images[0].bytes;
            assert_eq!((held.count, held.bytes), (1, bytes.next_multiple_of(16)), "{device}");
            assert!(bytes >= w.info().bytes() as u64);
            check_messages(context);
        }
    }
}

#[test]
fn a_constant_lies_in_an_image_on_every_device() {
    let window = WindowAttrs { kernel: vec![3, 3], pads: vec![1; 4], ..WindowAttrs::default() };
    let graph = |scope: StorageScope| {
        let mut g = GraphBuilder::new("constant");
        let w = g.input("x", DType::F32, [2, 3, 3, 3].map(Into::into));
        let c = g.constant("c", tensor(DType::F32, &[1, 3, 5, 7], 1));
        g.set_scope(c, scope);
        let conv = Conv { window: window.clone(), ..Conv::default() };
        let y = g.op(Arc::new(conv) as Arc<dyn Operator>, &[c, w]);
        let y = g.op(ops::unary(Function::Abs), &[y]);
        g.output("y", y);
        g.build().unwrap()
    };
    let w = tensor(DType::F32, &[2, 3, 3, 3], 2);
    for (device, context) in contexts() {
        let mut plain = crate::common::session(graph(StorageScope::Buffer), context);
        let mut mixed = crate::common::session(graph(StorageScope::Planes), context);
        let want = crate::common::run(&mut plain, &w);
        for _ in 0..2 {
            let far = crate::common::distance(&crate::common::run(&mut mixed, &w), &want);
            assert!(far <= 1e-4, "{device}: {far}");
        }
        let plan = mixed.plan(&[w.info().clone()]).unwrap();
        let (copies, _, in_constants) = counted(&plan);
        let image = &plan.report.images[0];
        assert_eq!(copies, 0, "{device}");
        // Native functions get the rows of all images as they are.
        let all = if context.info().native { 1 } else { in_constants };
        assert!(all == 1 && image.image.is_some() && !image.copied, "{device}: {image:?}");
        check_messages(context);
    }
}
