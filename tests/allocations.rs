//! A bound run allocates nothing of a tensor's size, neither in the process nor on the device.
//!
//! One test in a process of its own: its allocator watches every thread.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use onepool::backend::ContextDesc;
use onepool::ops::pointwise::{Function, Pointwise};
use onepool::ops::reduce::{Reduce, ReduceKind};
use onepool::ops::{self, Operator};
use onepool::registry::Registry;
use onepool::{DType, GraphBuilder, HostRegion, Memory, Session};

/// Remembers the largest request since it was last asked.
struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watching {
    // SAFETY: as the trait demands of the caller.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as the trait demands of the caller.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    // SAFETY: as the trait demands of the caller.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        LARGEST.fetch_max(bytes, Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.realloc(at, layout, bytes) }
    }

    // SAFETY: as the trait demands of the caller.
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// Bytes of the input and the output.
const TENSOR: usize = 8 << 20;
/// More than any bookkeeping of a run, far less than a tensor.
const SMALL: usize = 64 << 10;

/// A chain, a reduction and another chain: kernels of several kinds, values in an arena.
fn session(device: &str) -> Session {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [512.into(), (TENSOR / 4 / 512).into()]);
    let op = |op| Arc::new(Pointwise::new(op)) as Arc<dyn Operator>;
    let a = g.op(op(Function::Abs), &[x]);
    let a = g.op(op(Function::Relu), &[a]);
    let max =
        Reduce { kind: ReduceKind::Max, axes: Some(vec![1]), keep_dims: true, noop_with_empty_axes: false };
    let m = g.op(Arc::new(max) as Arc<dyn Operator>, &[a]);
    let b = g.op(ops::sub(), &[m, a]);
    let y = g.op(ops::add(), &[b, x]);
    g.output("y", y);
    let context = Registry::with_defaults().open(device, &ContextDesc::default()).unwrap();
    Session::builder().graph(g.build().unwrap()).context(context).build().unwrap()
}

fn nothing_large_is_allocated(device: &str) {
    let session = session(device);
    let context = session.context(0).unwrap();
    let region = |value: f32| {
        let mut region = HostRegion::new(TENSOR).unwrap();
        region.as_mut_slice_of::<f32>().unwrap().fill(value);
        region.into_shared()
    };
    let (x, y) = (region(2.5), region(0.0));
    let bind = session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y));
    let mut binding = bind.build().unwrap();
    assert!(binding.verdicts().all(|v| !v.path.copies_on_cpu()), "{device}");
    // Whatever is made at the first run, for all that follow.
    binding.run().unwrap();
    let before = context.usage();
    LARGEST.store(0, Ordering::Relaxed);
    for _ in 0..3 {
        binding.run().unwrap();
        binding.submit().unwrap().wait().unwrap();
    }
    let largest = LARGEST.swap(0, Ordering::Relaxed);
    // A simulated device has its own memory in this process; its use is what the context counts.
    let simulated = device.starts_with("sim");
    assert!(simulated || largest < SMALL, "{device}: {largest} bytes were allocated at once during a run");
    assert_eq!(context.usage(), before, "{device}: the device allocated or imported during a run");
    // The allocator does watch.
    drop(std::hint::black_box(vec![1u8; TENSOR]));
    assert!(LARGEST.load(Ordering::Relaxed) >= TENSOR);
    assert!(y.read().unwrap().as_slice_of::<f32>().unwrap().iter().all(|v| *v == 2.5), "{device}");
}

#[test]
fn a_bound_run_allocates_nothing_of_a_tensors_size() {
    let mut devices = vec!["cpu", "sim:0", "sim:1", "sim:2"];
    if cfg!(feature = "vulkan") {
        devices.push("vulkan");
    }
    for device in devices {
        nothing_large_is_allocated(device);
    }
}
