//! Buffers, kernels, queues, events and guards on the CPU backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use onepool::backend::DeviceError;
use onepool::device::{Error, KernelArg, Problem};
use onepool::kernel::{KernelError, NativeKernel};
use onepool::memory::coherency::Access;
use onepool::memory::host::HostRegion;
use onepool::memory::import::ReadWrite;
use onepool::recording::{Arg, Command, Dispatch, Recording};

use crate::common::{add, buffer, cpu, floats, problem};

#[test]
fn enqueued_commands_run_in_order() {
    let context = cpu();
    let queue = context.queue().unwrap();
    let (a, b, c) = (buffer(&context, 4096), buffer(&context, 4096), buffer(&context, 4096));
    let add = context.create_native_kernel(add()).unwrap();
    queue.enqueue_fill(&a, 1.0f32.to_bits()).unwrap();
    let args = [KernelArg::Read(&a), KernelArg::Write(&b)];
    queue.enqueue_nd_range(&add, [1024, 1, 1], None, &args, &2.0f32.to_ne_bytes()).unwrap();
    let event = queue.enqueue_copy(&b, &c).unwrap();
    event.wait().unwrap();
    assert!(event.is_done().unwrap());
    assert_eq!(floats(&c), vec![3.0; 1024]);
}

#[test]
fn a_prepared_recording_is_replayed_on_changing_input() {
    let context = cpu();
    let queue = context.queue().unwrap();
    let (a, b) = (buffer(&context, 64), buffer(&context, 64));
    let add = context.create_native_kernel(add()).unwrap();
    let dispatch = Dispatch::new(
        add.id(),
        vec![Arg::Buffer(a.range(), Access::KERNEL_READ), Arg::Buffer(b.range(), Access::KERNEL_WRITE)],
        1.0f32.to_ne_bytes().to_vec(),
        [1; 3],
    );
    let commands =
        vec![Command::Timestamp { slot: 0 }, Command::Dispatch(dispatch), Command::Timestamp { slot: 1 }];
    let prepared = queue.prepare(Recording { commands, timestamps: 2, ..Recording::default() }).unwrap();
    drop(add);
    for step in 0..100 {
        a.map_write().unwrap().as_mut_slice_of::<f32>().unwrap().fill(step as f32);
        let event = queue.submit_prepared(&prepared).unwrap();
        event.wait().unwrap();
        assert_eq!(floats(&b), vec![step as f32 + 1.0; 16]);
        let times = event.timestamps().unwrap();
        assert!(times[0] <= times[1]);
    }
}

#[test]
fn a_kernel_that_fails_or_panics_is_an_error_and_the_queue_goes_on() {
    let context = cpu();
    let queue = context.queue().unwrap();
    let a = buffer(&context, 64);
    for (kernel, text) in [
        (NativeKernel::new("bad", |_| panic!("no such luck")), "no such luck"),
        (NativeKernel::new("bad", |_| Err(KernelError::Value { what: "index 9".to_owned() })), "index 9"),
    ] {
        let kernel = context.create_native_kernel(kernel).unwrap();
        let event = queue.enqueue_nd_range(&kernel, [1; 3], None, &[KernelArg::Write(&a)], &[]).unwrap();
        let Err(Error::Device(DeviceError::Kernel { kernel, source })) = event.wait() else { panic!() };
        assert_eq!(kernel, "bad");
        assert!(source.to_string().contains(text), "{source}");
        queue.enqueue_fill(&a, 7).unwrap().wait().unwrap();
        assert_eq!(a.map_read().unwrap().as_slice_of::<u32>().unwrap(), [7; 16]);
        // The error is not forgotten by its own event.
        assert!(event.wait().is_err());
    }
}

#[test]
fn submission_returns_before_the_kernel_has_run() {
    let context = cpu();
    let queue = context.queue().unwrap();
    let a = buffer(&context, 64);
    let gate = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&gate);
    let kernel = NativeKernel::new("gate", move |_| {
        while !held.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        Ok(())
    });
    let kernel = context.create_native_kernel(kernel).unwrap();
    let event = queue.enqueue_nd_range(&kernel, [1; 3], None, &[KernelArg::Write(&a)], &[]).unwrap();
    queue.flush().unwrap();
    assert!(!event.is_done().unwrap());
    let timeout = event.wait_timeout(std::time::Duration::from_millis(2));
    assert_eq!(timeout, Err(Error::Device(DeviceError::Timeout { millis: 2 })));
    gate.store(true, Ordering::Release);
    event.wait().unwrap();
}

#[test]
fn what_a_submission_uses_lives_until_it_has_finished() {
    let context = cpu();
    let queue = context.create_queue().unwrap();
    let gate = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&gate);
    let kernel = NativeKernel::new("gate", move |args| {
        while !held.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        args.take_write::<u8>(0)?.fill(1);
        Ok(())
    });
    let released = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&released);
    let mut bytes = vec![0u8; 4096];
    let release = Box::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let address = std::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap();
    #[allow(unsafe_code, reason = "the vector outlives the import, which the test waits for")]
    // SAFETY: `bytes` is not touched before `release` was called.
    let import = unsafe { context.import_raw(address, 4096, ReadWrite::ReadWrite, release) }.unwrap();
    assert_eq!(context.usage().imported, 4096);
    let kernel = context.create_native_kernel(kernel).unwrap();
    let event = queue.enqueue_nd_range(&kernel, [1; 3], None, &[KernelArg::Write(&import)], &[]).unwrap();
    queue.flush().unwrap();
    drop((import, kernel));
    assert_eq!((released.load(Ordering::SeqCst), context.usage().imported), (0, 4096));
    gate.store(true, Ordering::Release);
    event.wait().unwrap();
    assert_eq!((released.load(Ordering::SeqCst), context.usage().imported), (1, 0));
    assert_eq!(bytes, vec![1; 4096]);
}

#[test]
fn regions_are_imported_in_place() {
    let context = cpu();
    let queue = context.queue().unwrap();
    let region = HostRegion::new(8192).unwrap().into_shared();
    let whole = context.import(&region).unwrap();
    let (low, high) = (whole.sub_buffer(0, 4096).unwrap(), whole.sub_buffer(4096, 4096).unwrap());
    assert_eq!(low.host_address().unwrap().0, region.as_ptr());
    region.write().unwrap().fill(3);
    let event = queue.enqueue_copy(&low, &high).unwrap();
    queue.enqueue_fill(&low, 0).unwrap();
    queue.finish().unwrap();
    event.wait().unwrap();
    let bytes = region.read().unwrap();
    assert!(bytes[..4096].iter().all(|byte| *byte == 0) && bytes[4096..].iter().all(|byte| *byte == 3));
    // The guard keeps submissions away, and says so.
    queue.enqueue_fill(&high, 1).unwrap();
    let refused = queue.finish().unwrap_err();
    assert!(matches!(problem(refused), Problem::Busy { .. }));
    drop(bytes);
    queue.enqueue_fill(&high, 1).unwrap();
    queue.finish().unwrap();
    assert_eq!(region.read().unwrap()[4096], 1);
    drop((whole, low, high));
    assert!(region.is_idle());
    assert_eq!(context.usage().imported, 0);
}
