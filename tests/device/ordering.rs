//! Queues: order within one, order between two, what is kept alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onepool::device::{Error, KernelArg, Problem};
use onepool::kernel::NativeKernel;
use onepool::recording::Recording;

use crate::common::{KERNELS, SHOWN, add, add_on, buffer, contexts, cpu, floats, gate, problem, unary};

#[test]
fn two_recordings_in_flight_share_scratch_memory() {
    for context in contexts() {
        let queue = context.queue().unwrap();
        let kernel = add_on(&context);
        let scratch = buffer(&context, 256);
        let pairs: Vec<_> = (0..2).map(|_| (buffer(&context, 256), buffer(&context, 256))).collect();
        let prepared: Vec<_> = pairs
            .iter()
            .map(|(x, y)| {
                let commands = vec![
                    unary(&kernel, x.range(), scratch.range(), &1.0f32.to_ne_bytes()),
                    onepool::recording::Command::Barrier(KERNELS),
                    unary(&kernel, scratch.range(), y.range(), &1.0f32.to_ne_bytes()),
                    onepool::recording::Command::Barrier(SHOWN),
                ];
                let lists = |range| if x.info().coherent { vec![] } else { vec![range] };
                let (flush, invalidate) = (lists(x.range()), lists(y.range()));
                queue.prepare(Recording { commands, flush, invalidate, ..Recording::default() }).unwrap()
            })
            .collect();
        for round in 0..10 {
            let values = [round as f32, round as f32 * 100.0];
            for ((x, _), value) in pairs.iter().zip(values) {
                x.map_write().unwrap().as_mut_slice_of::<f32>().unwrap().fill(value);
            }
            let events: Vec<_> =
                prepared.iter().map(|prepared| queue.submit_prepared(prepared).unwrap()).collect();
            events.iter().rev().for_each(|event| event.wait().unwrap());
            for ((_, y), value) in pairs.iter().zip(values) {
                assert_eq!(floats(y), vec![value + 2.0; 64]);
            }
        }
        assert_eq!(context.validation_messages(), Vec::<String>::new());
    }
}

#[test]
fn queues_that_touch_the_same_bytes_wait_for_each_other() {
    let context = cpu();
    let (first, second) = (context.create_queue().unwrap(), context.create_queue().unwrap());
    let (x, y) = (buffer(&context, 256), buffer(&context, 256));
    let flag = Arc::new(AtomicBool::new(false));
    let slow = context.create_native_kernel(gate(&flag)).unwrap();
    first.enqueue_nd_range(&slow, [1; 3], None, &[KernelArg::Write(&x)], &[]).unwrap();
    first.flush().unwrap();
    // Other bytes do not wait.
    second.enqueue_fill(&y, 3).unwrap().wait().unwrap();
    let opener = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        flag.store(true, Ordering::Release);
    });
    second.enqueue_copy(&x, &y).unwrap().wait().unwrap();
    assert!(y.map_read().unwrap().iter().all(|byte| *byte == 1));
    opener.join().unwrap();
}

#[test]
fn many_submissions_without_a_wait_do_not_pile_up() {
    let context = cpu();
    let queue = context.create_queue().unwrap();
    let x = buffer(&context, 256);
    let counted = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = Arc::clone(&counted);
    let kernel = NativeKernel::new("count", move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let kernel = context.create_native_kernel(kernel).unwrap();
    let commands = vec![unary(
        &kernel,
        x.sub_buffer(0, 64).unwrap().range(),
        x.sub_buffer(64, 64).unwrap().range(),
        &[],
    )];
    let prepared = queue.prepare(Recording { commands, ..Recording::default() }).unwrap();
    drop((kernel, x));
    let mut last = queue.submit_prepared(&prepared).unwrap();
    for _ in 1..5000 {
        last = queue.submit_prepared(&prepared).unwrap();
    }
    last.wait().unwrap();
    assert_eq!(counted.load(Ordering::Relaxed), 5000);
    drop((prepared, last));
    queue.finish().unwrap();
    assert_eq!(context.usage().allocated, 0);
}

#[test]
fn threads_share_a_queue() {
    let context = cpu();
    let queue = context.queue().unwrap();
    let kernel = context.create_native_kernel(add()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (context, kernel) = (&context, &kernel);
            scope.spawn(move || {
                let (x, y) = (buffer(context, 256), buffer(context, 256));
                for round in 0..50 {
                    let value = (thread * 1000 + round) as f32;
                    x.map_write().unwrap().as_mut_slice_of::<f32>().unwrap().fill(value);
                    let args = [KernelArg::Read(&x), KernelArg::Write(&y)];
                    queue.enqueue_nd_range(kernel, [64, 1, 1], None, &args, &1.0f32.to_ne_bytes()).unwrap();
                    assert_eq!(floats(&y), vec![value + 1.0; 64]);
                }
            });
        }
    });
}

#[test]
fn what_was_enqueued_runs_when_its_queue_is_dropped() {
    let context = cpu();
    let x = buffer(&context, 256);
    let queue = context.create_queue().unwrap();
    queue.enqueue_fill(&x, 6).unwrap();
    drop(queue);
    assert_eq!(x.map_read().unwrap().as_slice_of::<u32>().unwrap(), [6; 64]);
}

#[test]
fn a_recording_prepared_for_another_queue_is_refused() {
    let context = cpu();
    let (first, second) = (context.create_queue().unwrap(), context.create_queue().unwrap());
    let prepared = first.prepare(Recording::default()).unwrap();
    first.submit_prepared(&prepared).unwrap().wait().unwrap();
    let refused: Error = second.submit_prepared(&prepared).unwrap_err();
    assert!(matches!(problem(refused), Problem::Foreign { object: "prepared recording" }));
}
