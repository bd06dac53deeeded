//! Memory goes from buffers to images and back within a run.

use std::sync::Arc;

use onepool::graph::StorageScope;
use onepool::ops::pool::{Pool, PoolKind};
use onepool::ops::{self, Function, Operator, WindowAttrs};
use onepool::plan::Space;
use onepool::session::SharedArena;
use onepool::{DType, Graph, GraphBuilder, Session};

use crate::common::{check_messages, devices, open, run, session, spirv_devices, tensor};

/// Pools of alternating kinds, each after an `Abs`; those of the positions in `images` read images.
fn chain(dims: [usize; 4], stages: usize, images: bool) -> Graph {
    let mut g = GraphBuilder::new("chain");
    let mut at = g.input("x", DType::F32, dims.map(Into::into));
    for i in 0..stages {
        at = g.op(ops::unary(if i % 2 == 0 { Function::Abs } else { Function::Sigmoid }), &[at]);
        if images && i % 2 == 0 {
            g.set_scope(at, StorageScope::Planes);
        }
        let kind = if i % 3 == 0 {
            PoolKind::Average { include_pad: true }
        } else {
            PoolKind::Max { column_major: false }
        };
        let window = WindowAttrs { kernel: vec![3, 3], pads: vec![1; 4], ..WindowAttrs::default() };
        at = g.op(Arc::new(Pool { kind, window }) as Arc<dyn Operator>, &[at]);
    }
    g.output("y", at);
    g.build().unwrap()
}

#[test]
fn one_pool_serves_buffers_and_images_in_turn() {
    for device in devices() {
        let context = open(device);
        // Rows that are an image's as they are on every device, and rows that are not.
        for dims in [[1, 2, 16, 64], [2, 3, 11, 13]] {
            let x = tensor(DType::F32, &dims, 1);
            let mut plain = session(chain(dims, 6, false), &context);
            let mut mixed = session(chain(dims, 6, true), &context);
            let want = run(&mut plain, &x);
            for _ in 0..3 {
                assert_eq!(run(&mut mixed, &x), want, "{device}");
            }
            let plan = mixed.plan(&[x.info().clone()]).unwrap();
            assert_eq!((plan.images.len(), plan.arenas.len()), (3, 1), "{device}");
            // Every image lies where something else lies at another time, and all in one arena.
            let arena = &plan.arenas[0];
            let images: u64 = plan.images.iter().map(|i| i.loc.bytes).sum();
            assert!(plan.images.iter().all(|i| i.loc.space == Space::Arena(0)));
            assert!(arena.bytes < images.min(arena.naive_bytes / 2), "{device}: {arena:?}");
            assert!(arena.bytes <= arena.tvm_bytes, "{device}: {arena:?}");
            check_messages(&context);
        }
    }
}

#[test]
fn images_lie_in_a_shared_arena_too() {
    for device in ["cpu", "sim"].into_iter().chain(spirv_devices()) {
        let context = open(device);
        let arena = SharedArena::new();
        let sizes = [[1, 2, 9, 21], [1, 2, 16, 64], [1, 3, 5, 7]];
        let mut sessions: Vec<Session> = sizes
            .iter()
            .map(|dims| {
                let builder = Session::builder().graph(chain(*dims, 4, true)).context(context.clone());
                builder.fuse(false).fallback(false).shared_arena(Arc::clone(&arena)).build().unwrap()
            })
            .collect();
        let want: Vec<_> = sizes
            .iter()
            .map(|dims| run(&mut session(chain(*dims, 4, false), &context), &tensor(DType::F32, dims, 2)))
            .collect();
        for _ in 0..2 {
            for ((session, dims), want) in sessions.iter_mut().zip(&sizes).zip(&want) {
                assert_eq!(&run(session, &tensor(DType::F32, dims, 2)), want, "{device}");
            }
        }
        check_messages(&context);
    }
}

#[test]
fn a_graph_input_and_an_output_may_be_wanted_in_images() {
    for device in devices() {
        let context = open(device);
        let of = |scope: StorageScope| {
            let mut g = GraphBuilder::new("ends");
            let x = g.input("x", DType::F32, [1, 1, 5, 6].map(Into::into));
            g.set_scope(x, scope);
            let window = WindowAttrs { kernel: vec![2, 2], ..WindowAttrs::default() };
            let pool = Pool { kind: PoolKind::Max { column_major: false }, window };
            let y = g.op(Arc::new(pool) as Arc<dyn Operator>, &[x]);
            g.set_scope(y, scope);
            g.output("y", y);
            g.build().unwrap()
        };
        let x = tensor(DType::F32, &[1, 1, 5, 6], 3);
        let want = run(&mut session(of(StorageScope::Buffer), &context), &x);
        let mut session = session(of(StorageScope::Planes), &context);
        assert_eq!(run(&mut session, &x), want, "{device}");
        let plan = session.plan(&[x.info().clone()]).unwrap();
        // The caller's memory is no image: one copy in front of the pool. No one reads the output.
        let said: Vec<_> = plan.report.images.iter().map(|i| (i.image.is_some(), i.copied)).collect();
        assert_eq!(said, [(true, true), (false, false)], "{device}");
        assert!(plan.report.images[1].reason.as_deref().is_some_and(|r| r.contains("no operator reads it")));
        check_messages(&context);
    }
}

#[test]
fn an_image_beyond_the_device_stays_a_buffer() {
    let context = open("sim");
    let most = context.info().images.as_ref().unwrap().max_height as usize;
    let dims = [1, most / 2 + 1, 2, 3];
    let x = tensor(DType::F32, &dims, 4);
    let mut mixed = session(chain(dims, 2, true), &context);
    assert_eq!(run(&mut mixed, &x), run(&mut session(chain(dims, 2, false), &context), &x));
    let plan = mixed.plan(&[x.info().clone()]).unwrap();
    assert!(plan.images.is_empty());
    assert!(
        plan.report.images[0].reason.as_deref().is_some_and(|r| r.contains("beyond the device's images"))
    );
}
