//! Segments that do not need one another run at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use onepool::device::Context;
use onepool::graph::NodeId;
use onepool::kernel::{KernelError, NativeKernel};
use onepool::ops::custom::{CustomKernel, KernelCall};
use onepool::ops::{self, Operator};
use onepool::session::Profile;
use onepool::{DType, Graph, GraphBuilder, Memory};

use crate::common::{
    check_messages, floats, in_place, info, native, numbers, op, open_all, region, session, tensor,
};

const N: usize = 4096;
/// More than any machine takes to begin the other kernel.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two kernels that each go on only when the other has begun.
#[derive(Default)]
struct Meeting {
    there: Mutex<usize>,
    changed: Condvar,
}

impl Meeting {
    fn kernel(self: &Arc<Self>, name: &'static str, factor: f32) -> Arc<dyn Operator> {
        let meeting = Arc::clone(self);
        let kernel = NativeKernel::new(name, move |args| {
            let mut there = meeting.there.lock().unwrap();
            *there += 1;
            meeting.changed.notify_all();
            let (there, waited) =
                meeting.changed.wait_timeout_while(there, PATIENCE, |there| *there % 2 != 0).unwrap();
            drop(there);
            if waited.timed_out() {
                return Err(KernelError::Value { what: "the other kernel did not begin".to_owned() });
            }
            let x = args.read::<f32>(0)?;
            args.take_write::<f32>(1)?.iter_mut().zip(x).for_each(|(y, x)| *y = factor * x);
            Ok(())
        });
        Arc::new(CustomKernel::fixed(name, KernelCall::native(kernel), vec![info(&[N])]))
    }
}

/// `y = a(x) + b(x)`, with a on entry 0, b on entry 1 and the sum on entry 0.
fn two_branches(a: Arc<dyn Operator>, b: Arc<dyn Operator>) -> Graph {
    let mut g = GraphBuilder::new("two branches");
    let x = g.input("x", DType::F32, [N.into()]);
    let a = g.op(a, &[x]);
    let b = g.op(b, &[x]);
    let y = g.op(ops::add(), &[a, b]);
    g.output("y", y);
    let mut graph = g.build().unwrap();
    for (n, device) in [0, 1, 0].into_iter().enumerate() {
        graph.place(NodeId(n as u32), Some(device));
    }
    graph
}

#[test]
fn kernels_on_two_devices_run_at_the_same_time() {
    // A simulated device runs what it is given at once, so it comes second.
    for table in [["cpu", "cpu"], ["cpu", "sim:coherent"], ["cpu", "sim:noncoherent"]] {
        let contexts = open_all(&table);
        let meeting = Arc::<Meeting>::default();
        let graph = two_branches(meeting.kernel("left", 2.0), meeting.kernel("right", 3.0));
        let session = session(graph, &contexts);
        let (x, y) = (region(&numbers(N, 1)), region(&vec![0.0; N]));
        let mut binding =
            session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y)).build().unwrap();
        for _ in 0..3 {
            binding.run().unwrap();
            let want: Vec<f32> = floats(&x).iter().map(|x| 5.0 * x).collect();
            assert_eq!(floats(&y), want, "{table:?}");
        }
        let waits: Vec<&[u32]> = binding.plan().segments.iter().map(|s| &s.waits[..]).collect();
        assert_eq!(waits, [&[][..], &[], &[1]], "{table:?}");
        // The trace shows it too.
        let times = binding.profile().unwrap().segments;
        assert!(times[0].overlaps(&times[1]), "{table:?}: {times:?}");
        assert!(times[2].begin_nanos >= times[0].end_nanos.min(times[1].end_nanos), "{table:?}: {times:?}");
        check_messages(&contexts);
    }
}

/// A kernel that keeps the GPU busy, and a native function beside it.
#[test]
fn a_native_function_runs_beside_vulkan() {
    const SIDE: usize = 256;
    let contexts: Vec<Context> = open_all(&["vulkan", "cpu"]);
    let mut g = GraphBuilder::new("beside");
    let x = g.input("x", DType::F32, [SIDE.into(), SIDE.into()]);
    let eye: Vec<f32> = (0..SIDE * SIDE).map(|i| f32::from(u8::from(i / SIDE == (i + 1) % SIDE))).collect();
    let w = g.constant("w", tensor(&[SIDE, SIDE], &eye));
    let mut gpu = x;
    for _ in 0..4 {
        gpu = g.op(op("MatMul"), &[gpu, w]);
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let kernel = crate::common::function("slow", move |x, y| {
        std::thread::sleep(Duration::from_millis(30));
        counted.fetch_add(1, Ordering::Relaxed);
        y.copy_from_slice(x[0]);
    });
    let slow = CustomKernel::fixed("slow", KernelCall::native(kernel), vec![info(&[SIDE, SIDE])]);
    let cpu = g.op(Arc::new(slow) as Arc<dyn Operator>, &[x]);
    let y = g.op(ops::add(), &[gpu, cpu]);
    g.output("y", y);
    let mut graph = g.build().unwrap();
    for (n, device) in [0, 0, 0, 0, 1, 0].into_iter().enumerate() {
        graph.place(NodeId(n as u32), Some(device));
    }
    let session = session(graph, &contexts);
    let (x, y) = (region(&numbers(SIDE * SIDE, 1)), region(&vec![0.0; SIDE * SIDE]));
    let mut binding =
        session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y)).build().unwrap();
    let mut profile = binding.profile().unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    // Its operators lie in the trace where their segments were, so those of two devices lie beside each other. When a busy
    // machine lets either begin is not ours to say, but runs one after the other never overlap.
    let beside = |profile: &Profile| {
        let nodes = profile.nodes.iter().filter(|n| n.device == 0);
        let first = nodes.map(|n| n.begin_nanos).min().unwrap_or(u64::MAX);
        profile.segments[0].overlaps(&profile.segments[1]) && first < profile.segments[1].end_nanos
    };
    for _ in 0..50 {
        if beside(&profile) {
            break;
        }
        profile = binding.profile().unwrap();
    }
    assert!(beside(&profile), "{profile:?}");
    assert!(!in_place(&contexts) || profile.bytes_moved == 0);
    check_messages(&contexts);
}

/// What another device waits for is not held up by work that it does not need.
#[test]
fn a_segment_ends_where_another_device_waits_for_it() {
    let big = 1 << 21;
    let mut g = GraphBuilder::new("early");
    let x = g.input("x", DType::F32, [big.into()]);
    let unneeded = g.op(crate::common::abs(), &[x]);
    let first = g.op(op("Neg"), &[x]);
    let own = g.op(op("Relu"), &[first]);
    let own = g.op(ops::add(), &[own, unneeded]);
    let other = g.op(native("other", big, |x, y| y.copy_from_slice(x[0])), &[first]);
    let y = g.op(ops::sub(), &[own, other]);
    g.output("y", y);
    let mut graph = g.build().unwrap();
    for (n, device) in [0, 0, 0, 0, 1, 0].into_iter().enumerate() {
        graph.place(NodeId(n as u32), Some(device));
    }
    let contexts = open_all(&["sim:coherent", "cpu"]);
    let session = session(graph, &contexts);
    let plan = session.plan(&[info(&[big])]).unwrap();
    let shape: Vec<(u32, usize, &[u32])> =
        plan.segments.iter().map(|s| (s.device, s.commands.len(), &s.waits[..])).collect();
    assert_eq!(shape, [(0, 1, &[][..]), (0, 3, &[]), (1, 1, &[0]), (0, 1, &[2])]);
    let again = session.plan(&[info(&[big])]).unwrap();
    assert_eq!(format!("{:?}", plan.segments), format!("{:?}", again.segments));
}
