//! Builds of one model for several batch sizes with one pool for their intermediate tensors.

use std::sync::Arc;

use onepool::device::Context;
use onepool::session::{ParamStore, SharedArena};
use onepool::{DType, Graph, GraphBuilder, Memory, Session, Tensor, TensorInfo};

use crate::common::{check_messages, devices, numbers, op, open, shape, tensor};

const WIDTH: usize = 64;
const BATCHES: [usize; 3] = [1, 4, 16];

/// Four products with a matrix of 0 and 1, transposed between them: there is something to keep in between.
fn build(batch: usize, w: &Tensor) -> Graph {
    let mut g = GraphBuilder::new("net");
    let mut y = g.input("x", DType::F32, [batch.into(), WIDTH.into(), WIDTH.into()]);
    let w = g.constant("w", w.clone());
    for _ in 0..4 {
        y = g.op(op("MatMul"), &[y, w]);
        let t = onepool::ops::movement::Transpose { perm: Some(vec![0, 2, 1]) };
        let t: Arc<dyn onepool::ops::Operator> = Arc::new(t);
        y = g.op(t, &[y]);
    }
    g.output("y", y);
    g.build().unwrap()
}

/// A matrix that moves every column to the next place.
fn weights() -> Tensor {
    let at = |i: usize| f32::from(u8::from((i % WIDTH) == (i / WIDTH + 1) % WIDTH));
    tensor(&[WIDTH, WIDTH], &(0..WIDTH * WIDTH).map(at).collect::<Vec<_>>())
}

/// What [`build`] computes: each of four turns moves the columns by one and transposes.
fn expected(x: &[f32]) -> Vec<f32> {
    let mut y = x.to_vec();
    for image in y.chunks_mut(WIDTH * WIDTH) {
        for _ in 0..4 {
            let before = image.to_vec();
            for (i, v) in image.iter_mut().enumerate() {
                let (row, column) = (i % WIDTH, i / WIDTH);
                *v = before[row * WIDTH + (column + WIDTH - 1) % WIDTH];
            }
        }
    }
    y
}

fn sessions(context: &Context, arena: Option<&Arc<SharedArena>>) -> Vec<Session> {
    let (w, store) = (weights(), ParamStore::new());
    let build = |&batch: &usize| {
        let mut builder =
            Session::builder().graph(build(batch, &w)).context(context.clone()).params(Arc::clone(&store));
        if let Some(arena) = arena {
            builder = builder.shared_arena(Arc::clone(arena));
        }
        builder.build().unwrap()
    };
    BATCHES.iter().map(build).collect()
}

fn input(batch: usize, seed: usize) -> Tensor {
    tensor(&[batch, WIDTH, WIDTH], &numbers(batch * WIDTH * WIDTH, seed))
}

fn run_and_check(session: &mut Session, batch: usize, seed: usize) {
    let x = input(batch, seed);
    session.set_input("x", &x).unwrap();
    session.run().unwrap();
    let y = session.get_output("y").unwrap();
    assert_eq!(y.as_slice::<f32>().unwrap(), expected(x.as_slice().unwrap()), "batch {batch}");
}

fn info(batch: usize) -> TensorInfo {
    TensorInfo::new(DType::F32, shape(&[batch, WIDTH, WIDTH]))
}

fn arena_bytes(session: &Session, batch: usize) -> u64 {
    session.plan(&[info(batch)]).unwrap().arenas.iter().map(|a| a.bytes).sum()
}

/// Allocated bytes with an arena of each session's own, and with one for all; the largest is first if `reserve`.
fn allocated(device: &str, arena: Option<&Arc<SharedArena>>, reserve: bool) -> (u64, Vec<u64>) {
    let context = open(device);
    let mut sessions = sessions(&context, arena);
    let needs: Vec<u64> = sessions.iter().zip(BATCHES).map(|(s, batch)| arena_bytes(s, batch)).collect();
    if let (Some(arena), true) = (arena, reserve) {
        arena.reserve(&sessions[2], &[info(16)]).unwrap();
    }
    for seed in 0..2 {
        for (session, batch) in sessions.iter_mut().zip(BATCHES) {
            run_and_check(session, batch, seed);
        }
    }
    check_messages(&context);
    (context.usage().allocated, needs)
}

#[test]
fn batch_1_4_and_16_share_one_pool_sized_for_16() {
    for device in devices() {
        let (separate, needs) = allocated(device, None, false);
        for reserve in [true, false] {
            let arena = SharedArena::new();
            let (shared, same) = allocated(device, Some(&arena), reserve);
            assert_eq!(needs, same);
            // Two images of each batch are alive at once.
            assert!(needs[0] >= 2 * 4 * (WIDTH * WIDTH) as u64 && needs[2] == 16 * needs[0], "{needs:?}");
            assert_eq!(arena.usage().bytes, needs[2], "{device}");
            assert_eq!(separate - shared, needs[0] + needs[1], "{device}: of {separate}, {shared} are left");
        }
    }
}

#[test]
fn an_arena_tells_what_it_holds_and_what_it_saves() {
    let (context, arena) = (open("cpu"), SharedArena::new());
    let mut sessions = sessions(&context, Some(&arena));
    assert_eq!(arena.usage(), Default::default());
    for (session, batch) in sessions.iter_mut().zip(BATCHES) {
        run_and_check(session, batch, 7);
    }
    let usage = arena.usage();
    let needs: Vec<u64> = sessions.iter().zip(BATCHES).map(|(s, batch)| arena_bytes(s, batch)).collect();
    assert_eq!((usage.bytes, usage.separate_bytes, usage.bindings), (needs[2], needs.iter().sum(), 3));
    drop(sessions);
    assert_eq!((arena.usage().separate_bytes, arena.usage().bindings), (0, 0));
}

#[test]
fn memory_that_was_outgrown_is_given_back_at_the_next_run() {
    for device in devices() {
        let (context, arena) = (open(device), SharedArena::new());
        let mut sessions = sessions(&context, Some(&arena));
        run_and_check(&mut sessions[0], 1, 1);
        run_and_check(&mut sessions[2], 16, 2);
        let before = context.usage().allocated;
        run_and_check(&mut sessions[0], 1, 3);
        assert_eq!(before - context.usage().allocated, arena_bytes(&sessions[0], 1), "{device}");
        run_and_check(&mut sessions[2], 16, 4);
        check_messages(&context);
    }
}

#[test]
fn a_run_waits_for_the_run_before_it_in_one_arena() {
    for device in devices() {
        let (context, arena) = (open(device), SharedArena::new());
        let sessions = sessions(&context, Some(&arena));
        let bind = |i: usize, seed: usize| {
            sessions[i].bind().input("x", Memory::value(input(BATCHES[i], seed))).build().unwrap()
        };
        let (mut large, mut small) = (bind(2, 5), bind(0, 6));
        for _ in 0..10 {
            let first = large.submit().unwrap();
            let second = small.submit().unwrap();
            assert!(first.is_done().unwrap(), "{device}");
            first.wait().unwrap();
            second.wait().unwrap();
            for (binding, batch, seed) in [(&large, 16, 5), (&small, 1, 6)] {
                let y = binding.get_output("y").unwrap();
                let x = input(batch, seed);
                assert_eq!(y.as_slice::<f32>().unwrap(), expected(x.as_slice().unwrap()), "{device}");
            }
        }
        // A run that no one waits for holds no one up either.
        drop(large.submit().unwrap());
        small.run().unwrap();
        check_messages(&context);
    }
}

#[test]
fn sessions_of_one_arena_run_from_several_threads() {
    for device in devices() {
        let (context, arena) = (open(device), SharedArena::new());
        let mut sessions = sessions(&context, Some(&arena));
        std::thread::scope(|s| {
            for (session, batch) in sessions.iter_mut().zip(BATCHES) {
                s.spawn(move || (0..8).for_each(|round| run_and_check(session, batch, round + batch)));
            }
        });
        check_messages(&context);
    }
}

#[test]
fn a_profile_takes_its_turn() {
    let (context, arena) = (open("vulkan"), SharedArena::new());
    let mut sessions = sessions(&context, Some(&arena));
    let mut binding = sessions[0].bind().input("x", Memory::value(input(1, 3))).build().unwrap();
    let mut other = sessions[2].bind().input("x", Memory::value(input(16, 2))).build().unwrap();
    for _ in 0..5 {
        // One that no one has waited for is in the same memory.
        let run = other.submit().unwrap();
        assert!(!binding.profile().unwrap().nodes.is_empty());
        run.wait().unwrap();
        let want = expected(input(16, 2).as_slice().unwrap());
        assert_eq!(other.get_output("y").unwrap().as_slice::<f32>().unwrap(), want);
    }
    drop(other);
    assert_eq!(
        binding.get_output("y").unwrap().as_slice::<f32>().unwrap(),
        expected(input(1, 3).as_slice().unwrap())
    );
    run_and_check(&mut sessions[2], 16, 9);
    check_messages(&context);
}

/// Two devices meet in host memory, which is in the pool too.
#[test]
fn sessions_over_two_devices_share_host_memory_too() {
    let (cpu, vulkan, arena) = (open("cpu"), open("vulkan"), SharedArena::new());
    let mut sessions: Vec<Session> = BATCHES
        .iter()
        .map(|&batch| {
            Session::builder()
                .graph(build(batch, &weights()))
                .context(vulkan.clone())
                .context(cpu.clone())
                .place_op("Transpose", 1)
                .shared_arena(Arc::clone(&arena))
                .build()
                .unwrap()
        })
        .collect();
    for seed in 0..2 {
        for (session, batch) in sessions.iter_mut().zip(BATCHES) {
            run_and_check(session, batch, seed);
        }
    }
    let most = arena_bytes(&sessions[2], 16);
    assert!(arena.usage().bytes <= most.next_multiple_of(1 << 21), "{:?}", arena.usage());
    check_messages(&vulkan);
}
