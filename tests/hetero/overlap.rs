//! Segments that do not need one another run at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use onepool::device::Context;
use onepool::graph::NodeId;
use onepool::kernel::{KernelError, NativeKernel};
use onepool::ops::custom::{CustomKernel, KernelCall};
use onepool::ops::{self, Operator};
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

/// The GPU works between the beginning and the end of a native function: what comes before its work waits until the function has
/// begun, and the function waits for what comes after.
#[test]
fn a_native_function_runs_in_parallel_with_vulkan() {
    const SIDE: usize = 64;
    let contexts: Vec<Context> = open_all(&["vulkan", "cpu", "cpu"]);
    let mut g = GraphBuilder::new("parallel");
    let x = g.input("x", DType::F32, [SIDE.into(), SIDE.into()]);
    let turn: Vec<f32> = (0..SIDE * SIDE).map(|i| f32::from(u8::from(i / SIDE == (i + 1) % SIDE))).collect();
    let w = g.constant("w", tensor(&[SIDE, SIDE], &turn));
    let [begun, arrived] = [0, 1].map(|_| Arc::<Gate>::default());
    // Opens one gate, then waits for the other.
    let waits = |name: &'static str, open: Option<&Arc<Gate>>, wait: Option<&Arc<Gate>>| {
        let (open, wait) = (open.cloned(), wait.cloned());
        let kernel = NativeKernel::new(name, move |args| {
            open.iter().for_each(|gate| gate.set(true));
            wait.iter().try_for_each(|gate| gate.wait())?;
            let x = args.read::<f32>(0)?;
            args.take_write::<f32>(1)?.copy_from_slice(x);
            Ok(())
        });
        let kernel = CustomKernel::fixed(name, KernelCall::native(kernel), vec![info(&[SIDE, SIDE])]);
        Arc::new(kernel) as Arc<dyn Operator>
    };
    let mut gpu = g.op(waits("before", None, Some(&begun)), &[x]);
    for _ in 0..4 {
        gpu = g.op(op("MatMul"), &[gpu, w]);
    }
    let after = g.op(waits("after", Some(&arrived), None), &[gpu]);
    let parallel = g.op(waits("parallel", Some(&begun), Some(&arrived)), &[x]);
    let y = g.op(ops::add(), &[after, parallel]);
    g.output("y", y);
    let mut graph = g.build().unwrap();
    for (n, device) in [2, 0, 0, 0, 0, 2, 1, 1].into_iter().enumerate() {
        graph.place(NodeId(n as u32), Some(device));
    }
    let session = session(graph, &contexts);
    let (x, y) = (region(&numbers(SIDE * SIDE, 1)), region(&vec![0.0; SIDE * SIDE]));
    let mut binding =
        session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y)).build().unwrap();
    let x = floats(&x);
    let want: Vec<f32> = (0..SIDE * SIDE).map(|i| x[i] + x[i / SIDE * SIDE + (i + 4) % SIDE]).collect();
    for profiled in [false, true] {
        for gate in [&begun, &arrived] {
            gate.set(false);
        }
        if profiled {
            let profile = binding.profile().unwrap();
            assert!(!in_place(&contexts) || profile.bytes_moved == 0);
        } else {
            binding.run().unwrap();
        }
        assert_eq!(floats(&y), want);
    }
    check_messages(&contexts);
}

/// Kernels that go on once the gate is open.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn kernel(self: &Arc<Self>, by: f32) -> Arc<dyn Operator> {
        let gate = Arc::clone(self);
        let kernel = NativeKernel::new("gated", move |args| {
            gate.wait()?;
            let x = args.read::<f32>(0)?;
            args.take_write::<f32>(1)?.iter_mut().zip(x).for_each(|(y, x)| *y = by * x);
            Ok(())
        });
        Arc::new(CustomKernel::fixed("gated", KernelCall::native(kernel), vec![info(&[N])]))
    }

    fn wait(&self) -> Result<(), KernelError> {
        let open = self.open.lock().unwrap();
        let (_open, waited) = self.opened.wait_timeout_while(open, PATIENCE, |open| !*open).unwrap();
        if waited.timed_out() {
            return Err(KernelError::Value { what: "the gate stayed shut".to_owned() });
        }
        Ok(())
    }

    fn set(&self, open: bool) {
        *self.open.lock().unwrap() = open;
        self.opened.notify_all();
    }
}

/// `y = -first(x)`, with `first` on entry 0 and the rest on entry 1.
fn two_steps(first: Arc<dyn Operator>) -> Graph {
    let mut g = GraphBuilder::new("two steps");
    let x = g.input("x", DType::F32, [N.into()]);
    let a = g.op(first, &[x]);
    let y = g.op(op("Neg"), &[a]);
    g.output("y", y);
    let mut graph = g.build().unwrap();
    graph.place(NodeId(0), Some(0));
    graph.place(NodeId(1), Some(1));
    graph
}

const TABLES: [[&str; 2]; 4] =
    [["cpu", "cpu"], ["cpu", "sim:noncoherent"], ["cpu", "alone"], ["cpu", "vulkan"]];

#[test]
fn a_submission_returns_before_what_other_devices_wait_for_has_run() {
    for table in TABLES {
        let contexts = open_all(&table);
        let gate = Arc::<Gate>::default();
        let session = session(two_steps(gate.kernel(2.0)), &contexts);
        let (x, y) = (region(&numbers(N, 1)), region(&vec![0.0; N]));
        let bind = || session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y));
        let mut binding = bind().build().unwrap();
        let want: Vec<f32> = numbers(N, 1).iter().map(|x| -2.0 * x).collect();
        let run = binding.submit().unwrap();
        assert!(!run.is_done().unwrap(), "{table:?}");
        gate.set(true);
        run.wait().unwrap();
        assert_eq!(floats(&y), want, "{table:?}");
        // No one waits for these: results and views do, and so does the end of the binding.
        for _ in 0..2 {
            gate.set(false);
            y.write().unwrap().fill(0);
            drop(binding.submit().unwrap());
            gate.set(true);
            assert_eq!(binding.get_output("y").unwrap().as_slice::<f32>().unwrap(), want, "{table:?}");
        }
        gate.set(false);
        drop(binding.submit().unwrap());
        gate.set(true);
        drop(binding);
        if table[1] != "alone" {
            assert_eq!(floats(&y), want, "{table:?}");
        }
        check_messages(&contexts);
    }
}

#[test]
fn runs_submitted_before_others_write_first() {
    for table in [["cpu", "cpu"], ["cpu", "sim:noncoherent"], ["cpu", "vulkan"]] {
        let contexts = open_all(&table);
        let gate = Arc::<Gate>::default();
        let session = session(two_steps(gate.kernel(2.0)), &contexts);
        // The result of one is what the other one reads.
        let [x, between, y] = [numbers(N, 1), vec![0.0; N], vec![0.0; N]].map(|v| region(&v));
        let bind = |x, y| session.bind().input("x", Memory::region(x)).output("y", Memory::region(y));
        let (mut one, mut two) = (bind(&x, &between).build().unwrap(), bind(&between, &y).build().unwrap());
        for round in 0..3 {
            gate.set(false);
            let first = one.submit().unwrap();
            let second = two.submit().unwrap();
            assert!(!first.is_done().unwrap() && !second.is_done().unwrap(), "{table:?}");
            gate.set(true);
            if round == 1 {
                first.wait().unwrap();
                second.wait().unwrap();
            } else {
                second.wait().unwrap();
                first.wait().unwrap();
            }
            let want: Vec<f32> = numbers(N, 1).iter().map(|x| 4.0 * x).collect();
            assert_eq!(floats(&y), want, "{table:?}");
            y.write().unwrap().fill(0);
        }
        check_messages(&contexts);
    }
}

#[test]
fn what_goes_wrong_later_is_told_by_the_wait() {
    let contexts = open_all(&["cpu", "cpu"]);
    let wrong = Arc::new(AtomicUsize::new(1));
    let told = Arc::clone(&wrong);
    let kernel = NativeKernel::new("moody", move |args| {
        if told.load(Ordering::Relaxed) > 0 {
            return Err(KernelError::Value { what: "not today".to_owned() });
        }
        let x = args.read::<f32>(0)?;
        args.take_write::<f32>(1)?.copy_from_slice(x);
        Ok(())
    });
    let moody = CustomKernel::fixed("moody", KernelCall::native(kernel), vec![info(&[N])]);
    let session = session(two_steps(Arc::new(moody)), &contexts);
    let (x, y) = (region(&numbers(N, 1)), region(&vec![0.0; N]));
    let mut binding =
        session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y)).build().unwrap();
    let e = binding.submit().unwrap().wait().unwrap_err();
    assert!(e.to_string().contains("not today"), "{e}");
    let e = binding.run().unwrap_err();
    assert!(e.to_string().contains("not today"), "{e}");
    // One that no one asks is no matter for the next.
    drop(binding.submit().unwrap());
    wrong.store(0, Ordering::Relaxed);
    binding.submit().unwrap().wait().unwrap();
    let want: Vec<f32> = numbers(N, 1).iter().map(|x| -x).collect();
    assert_eq!(floats(&y), want);
}

#[test]
fn a_scope_ends_with_the_runs_in_it() {
    for table in [["cpu", "cpu"], ["cpu", "vulkan"]] {
        let contexts = open_all(&table);
        let gate = Arc::<Gate>::default();
        let session = session(two_steps(gate.kernel(2.0)), &contexts);
        let (x, mut y) = (numbers(N, 1), vec![0.0f32; N]);
        session.scope(|s| {
            let mut binding = s.bind().input("x", s.input(&x)).output("y", s.output(&mut y)).build().unwrap();
            drop(binding.submit().unwrap());
            gate.set(true);
        });
        if in_place(&contexts) {
            let want: Vec<f32> = x.iter().map(|x| -2.0 * x).collect();
            assert_eq!(y, want, "{table:?}");
        }
        // One that is forgotten may be cut off, and touches nothing afterwards.
        let mut z = vec![0.0f32; N];
        gate.set(false);
        session.scope(|s| {
            let mut binding = s.bind().input("x", s.input(&x)).output("y", s.output(&mut z)).build().unwrap();
            drop(binding.submit().unwrap());
            std::mem::forget(binding);
            gate.set(true);
        });
        // The run of another binding comes after whatever that one has submitted.
        z.fill(9.0);
        let (other, result) = (region(&x), region(&vec![0.0; N]));
        let bind = session.bind().input("x", Memory::region(&other)).output("y", Memory::region(&result));
        bind.build().unwrap().run().unwrap();
        assert_eq!(floats(&result), x.iter().map(|x| -2.0 * x).collect::<Vec<_>>(), "{table:?}");
        assert_eq!(z, [9.0; N], "{table:?}");
        check_messages(&contexts);
    }
}

/// More of them than are followed through one another.
#[test]
fn a_graph_of_very_many_segments_runs() {
    const STEPS: usize = 8200;
    let contexts = open_all(&["cpu", "cpu"]);
    let mut g = GraphBuilder::new("to and fro");
    let x = g.input("x", DType::F32, [4.into()]);
    let y = (0..STEPS).fold(x, |y, _| g.op(op("Neg"), &[y]));
    let y = g.op(ops::add(), &[y, x]);
    g.output("y", y);
    let mut graph = g.build().unwrap();
    for n in 0..=STEPS {
        graph.place(NodeId(n as u32), Some(n as u32 % 2));
    }
    let session = session(graph, &contexts);
    let (x, y) = (region(&numbers(4, 1)), region(&[0.0; 4]));
    let mut binding =
        session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y)).build().unwrap();
    let segments = &binding.plan().segments;
    assert_eq!(segments.len(), STEPS + 1);
    assert!((1..=STEPS).all(|s| segments[s].waits == [s as u32 - 1]));
    binding.run().unwrap();
    assert_eq!(floats(&y), numbers(4, 1).iter().map(|x| 2.0 * x).collect::<Vec<_>>());
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
