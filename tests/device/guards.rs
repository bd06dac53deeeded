//! Host guards: what they keep away and what keeps them away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onepool::backend::sim::SimConfig;
use onepool::backend::{BufferDesc, Placement};
use onepool::device::{KernelArg, Problem};

use crate::common::{buffer, contexts, cpu, gate, problem, sim};

#[test]
fn guards_exclude_each_other_as_references_do() {
    for context in contexts() {
        let whole = buffer(&context, 1024);
        let (low, high) = (whole.sub_buffer(0, 512).unwrap(), whole.sub_buffer(512, 512).unwrap());
        let read = low.map_read().unwrap();
        assert!(low.map_read().is_ok() && high.map_write().is_ok());
        assert!(matches!(problem(whole.map_write().unwrap_err()), Problem::Busy { .. }));
        drop(read);
        let write = low.map_write().unwrap();
        assert!(matches!(problem(whole.map_read().unwrap_err()), Problem::Busy { .. }));
        assert!(high.map_read().is_ok());
        drop(write);
        assert!(whole.map_write().is_ok());
    }
}

#[test]
fn neighbours_in_one_atom_wait_for_each_other() {
    let context = sim(SimConfig::noncoherent());
    let whole = buffer(&context, 1024);
    let (low, next) = (whole.sub_buffer(0, 100).unwrap(), whole.sub_buffer(100, 100).unwrap());
    let guard = low.map_write().unwrap();
    assert!(matches!(problem(next.map_write().unwrap_err()), Problem::Busy { .. }));
    drop(guard);
    assert!(next.map_write().is_ok());
}

#[test]
fn a_guard_keeps_submissions_away() {
    for context in contexts() {
        let queue = context.queue().unwrap();
        let (x, y) = (buffer(&context, 256), buffer(&context, 256));
        let guard = x.map_read().unwrap();
        // Reading in parallel with a reader is fine, writing is not.
        queue.enqueue_copy(&x, &y).unwrap();
        queue.flush().unwrap();
        let event = queue.enqueue_copy(&y, &x).unwrap();
        assert!(matches!(problem(event.wait().unwrap_err()), Problem::Busy { .. }));
        drop(guard);
        let guard = x.map_write().unwrap();
        let event = queue.enqueue_copy(&x, &y).unwrap();
        assert!(matches!(problem(event.wait().unwrap_err()), Problem::Busy { .. }));
        drop(guard);
        queue.enqueue_copy(&x, &y).unwrap().wait().unwrap();
        assert_eq!(context.validation_messages(), Vec::<String>::new());
    }
}

#[test]
fn a_leaked_guard_keeps_its_bytes_for_good() {
    let context = cpu();
    let x = buffer(&context, 256);
    std::mem::forget(x.map_write().unwrap());
    assert!(x.map_read().is_err());
    assert!(context.queue().unwrap().enqueue_fill(&x, 1).unwrap().wait().is_err());
}

#[test]
fn a_guard_waits_for_the_device() {
    let context = cpu();
    let queue = context.queue().unwrap();
    let x = buffer(&context, 256);
    let flag = Arc::new(AtomicBool::new(false));
    let kernel = context.create_native_kernel(gate(&flag)).unwrap();
    // Enqueued only: the guard submits it.
    queue.enqueue_nd_range(&kernel, [1; 3], None, &[KernelArg::Write(&x)], &[]).unwrap();
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        flag.store(true, Ordering::Release);
    });
    assert!(x.map_read().unwrap().iter().all(|byte| *byte == 1));
    opener.join().unwrap();
}

#[test]
fn memory_out_of_reach_says_what_to_do() {
    let context = sim(SimConfig::discrete());
    let desc = BufferDesc { bytes: 256, placement: Placement::Device, label: "far" };
    let far = context.create_buffer(&desc).unwrap();
    assert_eq!(problem(far.map_read().unwrap_err()), Problem::NotMapped);
    assert!(far.host_address().is_none() && context.host_ptr_from_device(&far).is_none());
    let near = buffer(&context, 256);
    let queue = context.queue().unwrap();
    queue.enqueue_fill(&far, 9).unwrap();
    queue.enqueue_copy(&far, &near).unwrap();
    assert_eq!(near.map_read().unwrap().as_slice_of::<u32>().unwrap(), [9; 64]);
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

#[test]
fn elements_must_fit() {
    let context = cpu();
    let x = buffer(&context, 256);
    let odd = x.sub_buffer(1, 7).unwrap();
    let guard = odd.map_read().unwrap();
    assert!(matches!(
        guard.as_slice_of::<f32>().unwrap_err().problem,
        Problem::Elements { element_bytes: 4, .. }
    ));
    assert_eq!(guard.as_slice_of::<u8>().unwrap().len(), 7);
}
