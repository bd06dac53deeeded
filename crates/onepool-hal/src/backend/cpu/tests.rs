//! What only this backend has: its own refusals, its polling, its order.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::backend::{BufferDesc, HostAddress, KernelDesc, Placement, QueueBackend, Timepoint, WaitPolicy};
use crate::kernel::{KernelSource, NativeKernel};
use crate::recording::{Arg, BufferId, BufferRange, Command, DeviceKernelId, Dispatch, Recording};
use crate::team;
use onepool_core::memory::coherency::Access;

struct Fixture {
    context: Arc<dyn ContextBackend>,
    queue: Arc<dyn QueueBackend>,
}

impl Fixture {
    fn new(threads: usize, wait: WaitPolicy) -> Fixture {
        let context = CpuDriver.open(0, &ContextDesc { threads, wait, ..ContextDesc::default() }).unwrap();
        let queue = context.create_queue().unwrap();
        Fixture { context, queue }
    }

    /// What reads the number in a buffer, and where it puts that.
    fn reader(&self, buffer: BufferId) -> (Recording, Arc<AtomicUsize>) {
        let seen = Arc::new(AtomicUsize::new(0));
        let found = Arc::clone(&seen);
        let kernel = self.kernel(NativeKernel::new("read", move |args| {
            found.store(args.read::<u64>(0)?[0] as usize, Ordering::SeqCst);
            Ok(())
        }));
        (dispatch(kernel, vec![Arg::Buffer(at(buffer, 0, 8), Access::KERNEL_READ)]), seen)
    }

    fn buffer(&self, bytes: u64) -> BufferId {
        self.context.create_buffer(&BufferDesc { bytes, placement: Placement::Shared, label: "" }).unwrap()
    }

    fn kernel(&self, kernel: NativeKernel) -> DeviceKernelId {
        let source = KernelSource::from_native(kernel);
        self.context.create_kernel(&KernelDesc { source: &source, spec: &[] }).unwrap()
    }
}

fn dispatch(kernel: DeviceKernelId, args: Vec<Arg>) -> Recording {
    let dispatch = Dispatch::new(kernel, args, Vec::new(), [1; 3]);
    Recording { commands: vec![Command::Dispatch(dispatch)], ..Recording::default() }
}

fn at(buffer: BufferId, offset: u64, bytes: u64) -> BufferRange {
    BufferRange { buffer, offset, bytes }
}

#[test]
fn every_policy_and_team_runs_everything_in_order() {
    let policies = [WaitPolicy::Block, WaitPolicy::Spin, WaitPolicy::SpinThenBlock { micros: 50 }];
    for (threads, wait) in [1, 2, 3].into_iter().flat_map(|threads| policies.map(|policy| (threads, policy)))
    {
        let fixture = Fixture::new(threads, wait);
        let counter = fixture.buffer(8);
        let kernel = fixture.kernel(NativeKernel::new("count", |args| {
            // The other threads of the team take part, however few there are.
            let more = AtomicUsize::new(0);
            team::share(0..64usize, |x| _ = more.fetch_add(x % 2, Ordering::Relaxed));
            args.take_write::<u64>(0)?[0] += more.into_inner() as u64;
            Ok(())
        }));
        let arg = Arg::Buffer(at(counter, 0, 8), Access::KERNEL_READ | Access::KERNEL_WRITE);
        let prepared = fixture.queue.prepare(&dispatch(kernel, vec![arg])).unwrap();
        let points: Vec<_> = (0..50).map(|_| fixture.queue.submit_prepared(prepared).unwrap()).collect();
        assert!(points.is_sorted());
        fixture.queue.wait(points[49], Some(Duration::from_secs(60))).unwrap();
        assert_eq!(fixture.queue.completed().unwrap(), points[49]);
        let (read, seen) = fixture.reader(counter);
        let point = fixture.queue.submit(&read).unwrap();
        fixture.queue.wait(point, None).unwrap();
        assert_eq!(seen.load(Ordering::SeqCst), 50 * 32);
    }
}

/// The worker may come first, but not each time, as it sleeps.
#[test]
fn who_waits_computes_what_no_one_has_begun() {
    for (wait, timeout, computes) in [
        (WaitPolicy::Adaptive, None, true),
        (WaitPolicy::Spin, None, true),
        (WaitPolicy::Block, None, false),
        (WaitPolicy::Adaptive, Some(Duration::from_secs(60)), false),
    ] {
        let fixture = Fixture::new(2, wait);
        let (all, here) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (ran, mine, caller) = (Arc::clone(&all), Arc::clone(&here), std::thread::current().id());
        let kernel = fixture.kernel(NativeKernel::new("where", move |_| {
            mine.fetch_add(usize::from(std::thread::current().id() == caller), Ordering::SeqCst);
            ran.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }));
        let prepared = fixture.queue.prepare(&dispatch(kernel, vec![])).unwrap();
        let mut runs = 0;
        while runs < 20 || (computes && runs < 100_000 && here.load(Ordering::SeqCst) == 0) {
            let points = [(); 3].map(|()| fixture.queue.submit_prepared(prepared).unwrap());
            fixture.queue.wait(points[1], timeout).unwrap();
            assert!(all.load(Ordering::SeqCst) >= 3 * runs + 2);
            fixture.queue.wait(points[2], timeout).unwrap();
            runs += 1;
            assert_eq!(all.load(Ordering::SeqCst), 3 * runs);
        }
        assert_eq!(here.load(Ordering::SeqCst) > 0, computes, "{wait:?}, {timeout:?}");
    }
}

/// Several threads submit and wait, so that runs on the caller's thread alternate with runs on the worker.
#[test]
fn submissions_of_several_threads_are_all_computed_in_order() {
    let fixture = Fixture::new(2, WaitPolicy::default());
    let counter = fixture.buffer(8);
    let kernel = fixture.kernel(NativeKernel::new("count", |args| {
        args.take_write::<u64>(0)?[0] += 1;
        Ok(())
    }));
    let arg = Arg::Buffer(at(counter, 0, 8), Access::KERNEL_READ | Access::KERNEL_WRITE);
    let prepared = fixture.queue.prepare(&dispatch(kernel, vec![arg])).unwrap();
    std::thread::scope(|scope| {
        for waits in [1, 2, 7] {
            let queue = &fixture.queue;
            scope.spawn(move || {
                for i in 0..700 {
                    let point = queue.submit_prepared(prepared).unwrap();
                    if i % waits == 0 {
                        queue.wait(point, None).unwrap();
                    }
                }
            });
        }
    });
    let (read, seen) = fixture.reader(counter);
    let last = fixture.queue.submit(&read).unwrap();
    assert_eq!(last.0, 3 * 700 + 1);
    // Without anyone who waits, too.
    while fixture.queue.completed().unwrap() < last {
        std::thread::yield_now();
    }
    assert_eq!(seen.load(Ordering::SeqCst), 3 * 700);
}

#[test]
fn kernels_stay_inside_their_team() {
    let fixture = Fixture::new(3, WaitPolicy::default());
    let seen = Arc::new(AtomicUsize::new(0));
    let found = Arc::clone(&seen);
    let kernel = fixture.kernel(NativeKernel::new("threads", move |_| {
        found.store(team::threads(), Ordering::SeqCst);
        Ok(())
    }));
    let point = fixture.queue.submit(&dispatch(kernel, vec![])).unwrap();
    fixture.queue.wait(point, None).unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), 3);
}

#[test]
fn an_error_is_told_once_to_others_and_always_to_its_own() {
    let fixture = Fixture::new(1, WaitPolicy::Block);
    let kernel = fixture.kernel(NativeKernel::new("bad", |_| panic!("{}", "on purpose")));
    let bad = dispatch(kernel, vec![]);
    let good = Recording::default();
    let (failed, next, last) = (
        fixture.queue.submit(&bad).unwrap(),
        fixture.queue.submit(&good).unwrap(),
        fixture.queue.submit(&good).unwrap(),
    );
    assert!(matches!(fixture.queue.wait(last, None), Err(DeviceError::Kernel { .. })));
    assert_eq!(fixture.queue.wait(next, None), Ok(()));
    assert!(matches!(fixture.queue.wait(failed, None), Err(DeviceError::Kernel { .. })));
    assert_eq!(fixture.queue.wait(last, None), Ok(()));
    let stale = Err(DeviceError::Stale { object: "timepoint" });
    assert_eq!(fixture.queue.wait(Timepoint(last.0 + 1), None), stale);
}

#[test]
fn stale_handles_and_ranges_outside_are_errors() {
    let fixture = Fixture::new(1, WaitPolicy::Block);
    let buffer = fixture.buffer(64);
    let kernel = fixture.kernel(NativeKernel::new("none", |_| Ok(())));
    for (offset, bytes) in [(0, 65), (64, 1), (u64::MAX, 2)] {
        let args = vec![Arg::Buffer(at(buffer, offset, bytes), Access::KERNEL_READ)];
        assert!(matches!(fixture.queue.prepare(&dispatch(kernel, args)), Err(DeviceError::Limit { .. })));
    }
    let args = vec![Arg::Buffer(at(buffer, 0, 64), Access::KERNEL_READ)];
    let prepared = fixture.queue.prepare(&dispatch(kernel, args.clone())).unwrap();
    fixture.context.destroy_buffer(buffer);
    fixture.context.destroy_kernel(kernel);
    assert_eq!(fixture.context.usage().allocated, 0);
    let stale = |object| Err(DeviceError::Stale { object });
    assert_eq!(fixture.queue.prepare(&dispatch(kernel, args)), stale("kernel"));
    // What was prepared keeps what it needs.
    let point = fixture.queue.submit_prepared(prepared).unwrap();
    fixture.queue.wait(point, None).unwrap();
    fixture.queue.release_prepared(prepared);
    assert_eq!(fixture.queue.submit_prepared(prepared).map(|_| prepared), stale("prepared recording"));
}

#[test]
fn a_program_over_an_import_that_is_gone_is_refused() {
    let fixture = Fixture::new(1, WaitPolicy::Block);
    let mut bytes = vec![0u8; 64];
    let address = HostAddress(std::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap());
    #[allow(unsafe_code, reason = "the vector lives until the import is destroyed")]
    // SAFETY: `bytes` is touched only between the waits below.
    let buffer = unsafe { fixture.context.import_host(address, 64) }.unwrap();
    let fill = Command::Fill { dst: at(buffer, 0, 64), value: 0x0101_0101 };
    let recording = Recording { commands: vec![fill], ..Recording::default() };
    let prepared = fixture.queue.prepare(&recording).unwrap();
    let point = fixture.queue.submit_prepared(prepared).unwrap();
    fixture.queue.wait(point, None).unwrap();
    assert_eq!(bytes, [1; 64]);
    fixture.context.destroy_buffer(buffer);
    drop(bytes);
    assert_eq!(fixture.queue.submit_prepared(prepared), Err(DeviceError::Stale { object: "buffer" }));
}

#[test]
fn large_blocks_are_copied_and_filled_by_all_threads() {
    let fixture = Fixture::new(2, WaitPolicy::default());
    let bytes = (9 << 20) + 12;
    let (a, b) = (fixture.buffer(bytes), fixture.buffer(bytes));
    let check = fixture.kernel(NativeKernel::new("check", |args| {
        let words = args.read::<u32>(0)?;
        assert!(words.iter().all(|word| *word == 0x0403_0201));
        Ok(())
    }));
    let (src, dst) = (at(a, 0, bytes), at(b, 0, bytes));
    let mut recording = dispatch(check, vec![Arg::Buffer(dst, Access::KERNEL_READ)]);
    recording.commands.insert(0, Command::Fill { dst: src, value: 0x0403_0201 });
    recording.commands.insert(1, Command::Copy { src, dst });
    let point = fixture.queue.submit(&recording).unwrap();
    fixture.queue.wait(point, None).unwrap();
}

#[test]
fn sizes_beyond_any_memory_are_errors() {
    let fixture = Fixture::new(1, WaitPolicy::Block);
    for bytes in [u64::MAX, 1 << 62, 1 << 50] {
        let desc = BufferDesc { bytes, placement: Placement::Device, label: "" };
        assert!(matches!(fixture.context.create_buffer(&desc), Err(DeviceError::OutOfDeviceMemory { .. })));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A written argument never aliases another one; everything else is accepted.
    #[test]
    fn aliasing_is_refused_exactly(args in prop::collection::vec((0u64..32, 1u64..8, any::<bool>()), 1..6)) {
        let fixture = Fixture::new(1, WaitPolicy::Block);
        let buffer = fixture.buffer(64);
        let kernel = fixture.kernel(NativeKernel::new("none", |_| Ok(())));
        let given = args.iter().map(|(offset, bytes, write)| {
            let access = if *write { Access::KERNEL_WRITE } else { Access::KERNEL_READ };
            Arg::Buffer(at(buffer, *offset, *bytes), access)
        });
        let result = fixture.queue.prepare(&dispatch(kernel, given.collect()));
        let clash = (0..args.len()).any(|b| (0..b).any(|a| {
            let ((from_a, len_a, write_a), (from_b, len_b, write_b)) = (args[a], args[b]);
            (write_a || write_b) && from_a < from_b + len_b && from_b < from_a + len_a
        }));
        prop_assert_eq!(result.is_err(), clash);
    }
}

#[test]
fn the_memory_is_the_machines_and_nothing_larger_is_allocated() {
    let context = crate::device::Context::new(CpuDriver.open(0, &ContextDesc::default()).unwrap());
    let memory = context.info().memory.capacity();
    let Some(machine) = onepool_core::memory::os::physical_memory() else {
        return assert_eq!(memory, isize::MAX as u64);
    };
    assert_eq!((memory, context.budget().limit(0)), (machine, machine));
    let create =
        |bytes| context.create_buffer(&BufferDesc { bytes, placement: Placement::Shared, label: "absurd" });
    for bytes in [machine + 1, 1 << 60, u64::MAX] {
        let error = create(bytes).unwrap_err();
        let crate::device::Error::Device(DeviceError::Limit { asked, limit, .. }) = error else {
            panic!("{error}");
        };
        assert_eq!((asked, limit), (bytes, machine));
    }
    let many = ContextDesc { threads: 100_000, ..ContextDesc::default() };
    let error = CpuDriver.open(0, &many).err().unwrap().to_string();
    assert!(error.starts_with("100000 threads are asked for, and there may be "), "{error}");
    let held = create(4096).unwrap();
    let error = create(machine).unwrap_err();
    assert!(matches!(error, crate::device::Error::Device(DeviceError::OutOfDeviceMemory { .. })), "{error}");
    drop(held);
}
