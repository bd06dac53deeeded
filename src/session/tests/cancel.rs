//! Runs that end early, and the state after them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::Context;
use crate::graph::{Graph, GraphBuilder};
use crate::kernel::NativeKernel;
use crate::memory::host::{HostRegion, SharedRegion};
use crate::ops::control::Loop;
use crate::ops::custom::{CustomKernel, KernelCall};
use crate::ops::{self, Operator};
use crate::registry::Registry;
use crate::session::tests::{check_messages, desc};
use crate::session::*;
use crate::shape::Shape;

const N: usize = 4096;
const DEVICES: [&str; 5] = ["cpu", "sim:coherent", "sim:noncoherent", "sim:discrete", "vulkan"];
const CHAIN: usize = 12;

fn open(device: &str) -> Context {
    Registry::with_defaults().open(device, &desc()).unwrap()
}

fn region(value: f32) -> Arc<SharedRegion> {
    HostRegion::from_bytes(bytemuck::cast_slice(&[value; N])).unwrap().into_shared()
}

fn values(region: &SharedRegion) -> Vec<f32> {
    region.read().unwrap().as_slice_of::<f32>().unwrap()[..N].to_vec()
}

/// Copies its input and calls `f`.
fn telling(f: impl Fn() + Send + Sync + 'static) -> Arc<dyn Operator> {
    let kernel = NativeKernel::new("telling", move |args| {
        f();
        let x = args.read::<f32>(0)?.to_vec();
        args.take_write::<f32>(1)?.copy_from_slice(&x);
        Ok(())
    });
    let info = TensorInfo::new(DType::F32, Shape::new([N]).unwrap());
    Arc::new(CustomKernel::fixed("telling", KernelCall::native(kernel), vec![info]))
}

/// `y = x + k + ... + k`, with an operator in the middle that calls `f`.
fn chain(f: impl Fn() + Send + Sync + 'static) -> Graph {
    let mut g = GraphBuilder::new("chain");
    let mut v = g.input("x", DType::F32, [N.into()]);
    let k = g.constant("k", Tensor::new([1], &[1.0f32]).unwrap());
    let telling = telling(f);
    for i in 0..CHAIN {
        v = if i == CHAIN / 2 { g.op(Arc::clone(&telling), &[v]) } else { g.op(ops::add(), &[v, k]) };
    }
    g.output("y", v);
    g.build().unwrap()
}

/// A session on `device`; one native operator runs on a CPU as well, unless the device is native itself.
fn session(device: &str, graph: Graph, limit: SubmissionLimit) -> Session {
    let builder = Session::builder().graph(graph).context(open(device)).fuse(false).copy_threshold(0);
    builder.submission_limit(limit).build().unwrap()
}

const TINY: SubmissionLimit = SubmissionLimit::AtMost(Duration::ZERO);
const SUM: f32 = CHAIN as f32 - 1.0;

fn progress(error: &Error) -> Progress {
    match error {
        Error::Session(SessionError::Cancelled { at } | SessionError::TimeLimit { at, .. }) => at.clone(),
        other => panic!("{other}"),
    }
}

#[test]
fn a_cancelled_run_ends_between_submissions_and_the_session_goes_on() {
    for device in DEVICES {
        let (token, always) = (CancelToken::new(), CancelToken::new());
        let cancelled = token.clone();
        let session = session(device, chain(move || cancelled.cancel()), TINY);
        let (x, y) = (region(3.0), region(0.0));
        let mut binding =
            session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y)).build().unwrap();
        let error = binding.run_with(&RunOptions::new().cancel(&token)).unwrap_err();
        let at = progress(&error);
        assert!(matches!(error, Error::Session(SessionError::Cancelled { .. })), "{device}: {error}");
        // The device was given one piece more than those known to be finished.
        assert!((CHAIN / 2..CHAIN).contains(&at.done) && at.of == CHAIN, "{device}: {at}");
        assert_eq!(values(&x), [3.0; N], "{device}");
        // A cancelled run does not begin.
        let at = progress(&binding.run_with(&RunOptions::new().cancel(&token)).unwrap_err());
        assert_eq!((at.done, at.of), (0, CHAIN), "{device}");
        for _ in 0..2 {
            binding.run_with(&RunOptions::new().cancel(&always)).unwrap();
            assert_eq!(values(&y), [3.0 + SUM; N], "{device}");
        }
        binding.run().unwrap();
        assert_eq!(values(&y), [3.0 + SUM; N], "{device}");
        drop(binding);
        check_messages(&session);
    }
}

#[test]
fn a_submitted_run_is_cancelled_by_its_handle_and_no_other_is() {
    for device in DEVICES {
        // Waits until the test has cancelled the run.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        let first = std::sync::Once::new();
        let graph = chain(move || first.call_once(|| wait.lock().unwrap().recv().unwrap()));
        let session = session(device, graph, TINY);
        let (x, y) = (region(1.0), region(0.0));
        let mut binding =
            session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y)).build().unwrap();
        let pending = binding.submit().unwrap();
        let canceller = pending.canceller();
        pending.cancel();
        assert!(canceller.is_cancelled());
        go.send(()).unwrap();
        let error = pending.wait().unwrap_err();
        assert!(progress(&error).done < CHAIN, "{device}: {error}");
        // A handle of the previous run cancels nothing any more.
        let pending = binding.submit().unwrap();
        canceller.cancel();
        pending.wait().unwrap();
        assert_eq!(values(&y), [1.0 + SUM; N], "{device}");
        drop(binding);
        check_messages(&session);
    }
}

#[test]
fn a_run_has_a_time_limit() {
    for device in DEVICES {
        let slow = std::sync::atomic::AtomicBool::new(true);
        let graph = chain(move || {
            if slow.swap(false, std::sync::atomic::Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(120));
            }
        });
        let session = session(device, graph, TINY);
        let mut binding = session.bind().input("x", Memory::region(&region(1.0))).build().unwrap();
        let limit = Duration::from_millis(100);
        let began = Instant::now();
        let error = binding.run_with(&RunOptions::new().time_limit(limit)).unwrap_err();
        assert!(began.elapsed() >= limit);
        let SessionError::TimeLimit { limit: told, at } = (match error {
            Error::Session(error) => error,
            other => panic!("{other}"),
        }) else {
            panic!("{device}")
        };
        assert!(told == limit && at.done < CHAIN, "{device}: {at}");
        binding.run_with(&RunOptions::new().time_limit(Duration::from_secs(600))).unwrap();
        check_messages(&session);
    }
}

/// Without a limit of submissions, a run that may end early is still submitted in pieces.
#[test]
fn every_device_obeys_where_a_run_may_be_ended() {
    for device in DEVICES {
        let session = session(device, chain(|| {}), SubmissionLimit::Off);
        let mut binding = session.bind().input("x", Memory::region(&region(1.0))).build().unwrap();
        assert!(binding.segments.iter().all(|launch| launch.cut.is_none()));
        binding.run_with(&RunOptions::new().cancel(&CancelToken::new())).unwrap();
        let commands = |launch: &&crate::session::bind::launch::SegmentLaunch| {
            matches!(launch.work, crate::session::bind::launch::LaunchWork::Commands(_))
        };
        assert!(binding.segments.iter().filter(commands).all(|launch| launch.cut.is_some()), "{device}");
    }
}

/// A body that adds 1 to its state and continues; it calls `f` in each iteration.
fn endless(f: impl Fn() + Send + Sync + 'static) -> Graph {
    let mut g = GraphBuilder::new("body");
    let _turn = g.input("turn", DType::I64, []);
    let condition = g.input("condition", DType::Bool, []);
    let state = g.input("state", DType::F32, [N.into()]);
    let k = g.constant("k", Tensor::new([1], &[1.0f32]).unwrap());
    let told = g.op(telling(f), &[state]);
    let next = g.op(ops::add(), &[told, k]);
    g.output("condition", condition);
    g.output("state", next);
    let body = Arc::new(g.build().unwrap());
    let mut g = GraphBuilder::new("endless");
    let x = g.input("x", DType::F32, [N.into()]);
    let go =
        g.constant("go", Tensor::from_bytes(TensorInfo::new(DType::Bool, Shape::scalar()), &[1]).unwrap());
    let op: Arc<dyn Operator> = Arc::new(Loop { body, states: 1, lists: Vec::new() });
    let (_, out) = g.node("forever", op, &[None, Some(go), Some(x)], 1);
    g.output("y", out[0]);
    g.build().unwrap()
}

#[test]
fn loops_obey_between_turns() {
    for device in DEVICES {
        let token = CancelToken::new();
        let (cancelled, iterations) = (token.clone(), std::sync::atomic::AtomicU64::new(0));
        let graph = endless(move || {
            if iterations.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 5 {
                cancelled.cancel();
            }
        });
        let session = session(device, graph, SubmissionLimit::Auto);
        let x = region(2.0);
        let mut binding = session.bind().input("x", Memory::region(&x)).build().unwrap();
        let at = progress(&binding.run_with(&RunOptions::new().cancel(&token)).unwrap_err());
        assert!(matches!(&at.iterations[..], [(node, 5 | 6)] if node == "forever"), "{device}: {at}");
        let at = progress(
            // Long enough that the loop begins on a busy machine.
            &binding.run_with(&RunOptions::new().time_limit(Duration::from_secs(1))).unwrap_err(),
        );
        assert!(!at.iterations.is_empty(), "{device}: {at}");
        assert_eq!(values(&x), [2.0; N], "{device}");
        check_messages(&session);
    }
}
