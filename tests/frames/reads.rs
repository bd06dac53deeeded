//! The end of a run's reads is told once, however the run ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use onepool::frame::{FrameSpec, PixelFormat};
use onepool::graph::TensorInfo;
use onepool::kernel::NativeKernel;
use onepool::ops::{OpCx, OpError, Operator};
use onepool::session::{CancelToken, RunOptions, SessionError};
use onepool::{Binding, DType, Error, GraphBuilder, HostRegion, Memory, Session, SharedRegion};

use crate::common::{contexts, identity, open, session};

const SIDE: usize = 128;

fn spec() -> FrameSpec {
    FrameSpec::new(PixelFormat::Rgb8, SIDE as u32, SIDE as u32)
}

fn region() -> Arc<SharedRegion> {
    HostRegion::new(SIDE * SIDE * 3).unwrap().into_shared()
}

fn bind(session: &Session, memory: &Arc<SharedRegion>) -> Binding<'static> {
    session.bind().input("image", Memory::region(memory)).build().unwrap()
}

/// Counts calls.
#[derive(Clone, Default)]
struct Calls(Arc<AtomicUsize>);

impl Calls {
    fn options(&self) -> RunOptions {
        let calls = Arc::clone(&self.0);
        RunOptions::new().after_read("image", move || {
            calls.fetch_add(1, Ordering::SeqCst);
        })
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Waits for a call on another thread.
    fn wait(&self) -> usize {
        let start = Instant::now();
        while self.count() == 0 && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        self.count()
    }
}

#[test]
fn a_run_that_is_over_has_called() {
    for (device, context) in contexts() {
        for copy_threshold in [0, u64::MAX] {
            let builder = Session::builder().graph(identity(DType::F32, &[1, 3, SIDE, SIDE]));
            let builder = builder.context(context.clone()).copy_threshold(copy_threshold);
            let session = builder.frame_input("image", spec()).build().unwrap();
            let memory = region();
            let mut binding = bind(&session, &memory);
            for _ in 0..3 {
                let calls = Calls::default();
                let options = calls.options();
                binding.run_with(&options).unwrap();
                assert_eq!(calls.count(), 1, "{device}");
                // The callback was of the first run.
                binding.run_with(&options).unwrap();
                drop(options);
                assert_eq!(calls.count(), 1, "{device}");
                let calls = Calls::default();
                binding.submit_with(&calls.options()).unwrap().wait().unwrap();
                assert_eq!(calls.count(), 1, "{device}");
            }
            // No one waits.
            let calls = Calls::default();
            drop(binding.submit_with(&calls.options()).unwrap());
            assert_eq!(calls.wait(), 1, "{device}");
        }
    }
}

#[test]
fn the_memory_is_free_when_it_is_told() {
    for device in ["cpu", "sim", "vulkan", "opencl"] {
        let Some((_, context)) = contexts().iter().find(|(name, _)| *name == device) else { continue };
        let session = session(identity(DType::F32, &[1, 3, SIDE, SIDE]), context, Some(spec()), None);
        let memory = region();
        let mut binding = bind(&session, &memory);
        for wait in [true, false] {
            let (own, free) = (Arc::clone(&memory), Arc::new(AtomicUsize::new(0)));
            let seen = Arc::clone(&free);
            // A camera fills its buffer again.
            let fill = move || {
                if let Ok(mut bytes) = own.write() {
                    bytes.fill(7);
                    seen.store(1, Ordering::SeqCst);
                } else {
                    seen.store(2, Ordering::SeqCst);
                }
            };
            let options = RunOptions::new().after_read("image", fill);
            let pending = binding.submit_with(&options).unwrap();
            if wait {
                pending.wait().unwrap();
            } else {
                drop(pending);
            }
            let start = Instant::now();
            while free.load(Ordering::SeqCst) == 0 && start.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(free.load(Ordering::SeqCst), 1, "{device}: the memory is still in use");
        }
    }
}

#[test]
fn runs_that_fail_call_too() {
    for (device, context) in contexts() {
        let session = session(identity(DType::F32, &[1, 3, SIDE, SIDE]), context, Some(spec()), None);
        let memory = region();
        let mut binding = bind(&session, &memory);
        let guard = memory.write().unwrap();
        let calls = Calls::default();
        assert!(binding.run_with(&calls.options()).is_err(), "{device}: the host holds the memory");
        assert_eq!(calls.count(), 1, "{device}");
        let calls = Calls::default();
        // A run of several submissions fails while it is waited for.
        if let Ok(pending) = binding.submit_with(&calls.options()) {
            assert!(pending.wait().is_err(), "{device}");
        }
        assert_eq!(calls.wait(), 1, "{device}");
        drop(guard);
        // Cancelled before it begins.
        let token = CancelToken::new();
        token.cancel();
        let calls = Calls::default();
        let error = binding.run_with(&calls.options().cancel(&token)).unwrap_err();
        assert!(matches!(error, Error::Session(SessionError::Cancelled { .. })), "{device}: {error}");
        assert_eq!(calls.count(), 1, "{device}");
        // Cancelled on its way, or not: it may be over.
        let calls = Calls::default();
        let pending = binding.submit_with(&calls.options()).unwrap();
        pending.cancel();
        let _ = pending.wait();
        assert_eq!(calls.wait(), 1, "{device}");
        let calls = Calls::default();
        let late = binding.run_with(&calls.options().time_limit(Duration::ZERO));
        assert!(matches!(late, Err(Error::Session(SessionError::TimeLimit { .. }))), "{device}");
        assert_eq!(calls.count(), 1, "{device}");
        binding.run().unwrap();
    }
}

#[test]
fn what_is_no_input_and_what_is_never_run_call_too() {
    let session = session(identity(DType::F32, &[1, 3, SIDE, SIDE]), &open("cpu"), Some(spec()), None);
    let memory = region();
    let mut binding = bind(&session, &memory);
    let calls = Calls::default();
    let options = calls.options().after_read("picture", || {});
    let error = binding.run_with(&options).unwrap_err().to_string();
    assert!(error.contains("there is no input \"picture\"") && error.contains("\"image\""), "{error}");
    assert_eq!(calls.count(), 1);
    let calls = Calls::default();
    drop((calls.options(), calls.options().clone()));
    assert_eq!(calls.count(), 2);
    let calls = Calls::default();
    let built =
        Session::builder().graph(identity(DType::F32, &[1, 3, 2, 2])).run_options(calls.options()).build();
    assert!(matches!(built, Err(Error::Session(SessionError::ReadsOfSession))));
    assert_eq!(calls.count(), 1);
}

/// Notes whether the callback was called before it runs.
#[derive(Clone, Debug)]
struct Probe {
    called: Arc<AtomicBool>,
    seen: Arc<AtomicBool>,
}

impl Operator for Probe {
    fn name(&self) -> &'static str {
        "Probe"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        Ok(vec![cx.input(0)?.clone()])
    }

    fn cpu(&self, _: &OpCx) -> Result<NativeKernel, OpError> {
        let own = self.clone();
        Ok(NativeKernel::new("Probe", move |args| {
            own.seen.store(own.called.load(Ordering::SeqCst), Ordering::SeqCst);
            let x = args.read::<u8>(0)?;
            args.take_write::<u8>(1)?.copy_from_slice(x);
            Ok(())
        }))
    }
}

/// Once the submission with the conversion is over, a decoder has its buffer while the model still runs.
#[test]
fn a_frame_is_free_while_later_submissions_run() {
    for device in ["sim", "vulkan"] {
        for waits in [true, false] {
            let (called, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let mut g = GraphBuilder::new("probe");
            let x = g.input("image", DType::F32, [1, 3, SIDE, SIDE].map(Into::into));
            let probe = Probe { called: Arc::clone(&called), seen: Arc::clone(&seen) };
            let y = g.op(Arc::new(probe) as Arc<dyn Operator>, &[x]);
            g.output("y", y);
            let builder = Session::builder().graph(g.build().unwrap()).frame_input("image", spec());
            let builder = builder.context(open(device)).context(open("cpu")).place_op("Probe", 1);
            let session = builder.copy_threshold(0).build().unwrap();
            let memory = region();
            let mut binding = bind(&session, &memory);
            let tell = Arc::clone(&called);
            let options = RunOptions::new().after_read("image", move || tell.store(true, Ordering::SeqCst));
            if waits {
                binding.run_with(&options).unwrap();
            } else {
                binding.submit_with(&options).unwrap().wait().unwrap();
            }
            assert!(seen.load(Ordering::SeqCst), "{device}: the frame was still held when the model ran");
        }
    }
}
