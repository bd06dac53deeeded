//! Submission, waiting, replay, times.

use std::time::Duration;

use onepool::backend::{ContextDesc, DeviceError, Placement, Timepoint, WaitPolicy};
use onepool::memory::coherency::Access;
use onepool::recording::{BufferId, Command, Recording};

use crate::fixture::{Fixture, READ, WRITE, axpb, barrier, mapped, part, recording, stale, to_host};
use crate::targets::Target;

crate::cases![
    a_prepared_recording_runs_again_and_again,
    waiting_by_sleeping_or_by_polling_is_the_same,
    a_wait_ends_with_its_timeout_and_again_with_the_work,
    a_point_that_was_never_submitted_is_an_error,
    a_queue_that_goes_waits_for_its_work,
    an_empty_recording_is_done_when_what_came_before_is,
    times_rise_and_belong_to_their_submission,
    a_timestamp_slot_beyond_those_of_the_recording_is_an_error,
    queues_of_one_context_work_side_by_side,
    a_queue_may_outlive_its_context,
];

/// Work that takes a while on any device, the longer the more `fills` it has.
fn slow(fixture: &Fixture, fills: u32) -> Recording {
    let bytes = fixture.target.slow_bytes;
    let buffer = fixture.buffer(bytes, Placement::Device);
    let fill = |value| Command::Fill { dst: part(buffer, 0, bytes), value };
    let order = barrier(Access::TRANSFER_WRITE, Access::TRANSFER_WRITE);
    recording((0..fills).flat_map(|value| [fill(value), order.clone()]).collect())
}

/// What is seen of work before it is done, or of more work where this thread was held up until it was.
fn unfinished<R>(fixture: &Fixture, mut look: impl FnMut(&Recording) -> Option<R>) -> R {
    (0..8).find_map(|doubled| look(&slow(fixture, 24 << doubled))).unwrap()
}

/// Adds 1 to every element of the first half by way of the second, `times` times, and shows it to the host; safe to
/// replay back to back.
fn counting(fixture: &Fixture, buffer: BufferId, times: usize) -> Recording {
    let kernel = fixture.axpb();
    let half = fixture.info(buffer).bytes / 2;
    let (low, high) = (part(buffer, 0, half), part(buffer, half, half));
    let n = (half / 4) as u32;
    let order = barrier(READ | WRITE, READ | WRITE);
    let mut commands = vec![order.clone()];
    for _ in 0..times {
        commands.extend([
            axpb(kernel, low, high, n, 1.0, 1.0),
            order.clone(),
            axpb(kernel, high, low, n, 1.0, 0.0),
            order.clone(),
        ]);
    }
    commands.push(to_host());
    recording(commands)
}

fn replays(target: &'static Target, wait: WaitPolicy) {
    let fixture = Fixture::with(target, &ContextDesc { wait, ..Default::default() });
    let buffer = fixture.upload(&[0.0f32; 512]);
    let queue = fixture.queue();
    let prepared = queue.prepare(&counting(&fixture, buffer, 2)).unwrap();
    let mut last = Timepoint(0);
    for _ in 0..10 {
        let point = queue.submit_prepared(prepared).unwrap();
        assert!(point > last);
        last = point;
    }
    queue.wait(last, None).unwrap();
    assert_eq!(queue.completed().unwrap(), last);
    // A point that was passed needs no waiting.
    queue.wait(Timepoint(last.0 - 3), Some(Duration::ZERO)).unwrap();
    assert_eq!(fixture.download::<f32>(buffer)[..256], [20.0; 256]);
    for round in 1..=8 {
        let point = fixture.run(&queue, &counting(&fixture, buffer, 1));
        assert_eq!(queue.completed().unwrap(), point);
        assert_eq!(fixture.download::<f32>(buffer)[0], 20.0 + round as f32);
    }
    queue.release_prepared(prepared);
}

fn a_prepared_recording_runs_again_and_again(target: &'static Target) {
    replays(target, WaitPolicy::default());
}

fn waiting_by_sleeping_or_by_polling_is_the_same(target: &'static Target) {
    replays(target, WaitPolicy::Block);
    replays(target, WaitPolicy::Spin);
    replays(target, WaitPolicy::SpinThenBlock { micros: 50 });
}

fn a_wait_ends_with_its_timeout_and_again_with_the_work(target: &'static Target) {
    let fixture = Fixture::new(target);
    let queue = fixture.queue();
    let (point, early) = unfinished(&fixture, |work| {
        let point = queue.submit(work).unwrap();
        let early = queue.wait(point, Some(Duration::from_millis(1)));
        (queue.completed().unwrap() < point).then_some((point, early))
    });
    assert_eq!(early, Err(DeviceError::Timeout { millis: 1 }));
    queue.wait(point, Some(Duration::from_secs(60))).unwrap();
    assert_eq!(queue.completed().unwrap(), point);
}

fn a_point_that_was_never_submitted_is_an_error(target: &'static Target) {
    let fixture = Fixture::new(target);
    let queue = fixture.queue();
    assert_eq!(queue.wait(Timepoint(1), None), Err(stale("timepoint")));
    let point = fixture.run(&queue, &Recording::default());
    assert_eq!(queue.wait(Timepoint(point.0 + 1), None), Err(stale("timepoint")));
}

fn a_queue_that_goes_waits_for_its_work(target: &'static Target) {
    let fixture = Fixture::new(target);
    let last = fixture.upload(&[0u32; 16]);
    let queue = unfinished(&fixture, |work| {
        let queue = fixture.queue();
        let mut work = work.clone();
        work.commands.extend([Command::Fill { dst: fixture.all(last), value: 7 }, to_host()]);
        let point = queue.submit(&work).unwrap();
        (queue.completed().unwrap() < point).then_some(queue)
    });
    drop(queue);
    assert_eq!(fixture.download::<u32>(last), [7; 16]);
}

fn an_empty_recording_is_done_when_what_came_before_is(target: &'static Target) {
    let fixture = Fixture::new(target);
    let queue = fixture.queue();
    let point = fixture.run(&queue, &Recording::default());
    assert_eq!((point, queue.timestamps(point).unwrap()), (Timepoint(1), vec![]));
    let nothing = unfinished(&fixture, |work| {
        let work = queue.submit(work).unwrap();
        let nothing = queue.submit(&recording(vec![barrier(WRITE, Access::HOST_READ)])).unwrap();
        assert!(nothing > work);
        (queue.completed().unwrap() < work).then_some(nothing)
    });
    queue.wait(nothing, None).unwrap();
    assert_eq!(queue.completed().unwrap(), nothing);
}

fn times_rise_and_belong_to_their_submission(target: &'static Target) {
    let fixture = Fixture::new(target);
    assert!(fixture.context().info().timestamp_ns > 0.0);
    let queue = fixture.queue();
    let buffer = fixture.upload(&[0.0f32; 512]);
    let plain = counting(&fixture, buffer, 3);
    let mut timed = plain.clone();
    timed.commands.insert(3, Command::Timestamp { slot: 1 });
    timed.commands.push(Command::Timestamp { slot: 2 });
    timed.commands.insert(0, Command::Timestamp { slot: 0 });
    timed.timestamps = 3;
    let prepared = queue.prepare(&timed).unwrap();
    let mut before = 0;
    for _ in 0..3 {
        let point = queue.submit_prepared(prepared).unwrap();
        queue.wait(point, None).unwrap();
        let times = queue.timestamps(point).unwrap();
        assert!(times.len() == 3 && times.is_sorted() && times[0] < times[2], "{times:?}");
        let is_after = if target.api == "opencl" { times[0] >= before } else { times[0] > before };
        assert!(is_after, "{times:?} {before}");
        before = times[2];
        // Those without times run in between, in order.
        let point = fixture.run(&queue, &plain);
        assert_eq!(queue.timestamps(point).unwrap(), Vec::<u64>::new());
    }
    assert_eq!(fixture.download::<f32>(buffer)[0], 18.0);
    let first = fixture.run(&queue, &timed);
    let second = fixture.run(&queue, &timed);
    let (first, second) = (queue.timestamps(first).unwrap(), queue.timestamps(second).unwrap());
    assert!(before < first[0] && first[2] < second[0], "{before} {first:?} {second:?}");
    // Many submissions without a prepared recording, more than are kept.
    for _ in 0..12 {
        let point = fixture.run(&queue, &timed);
        assert_eq!(queue.timestamps(point).unwrap().len(), 3);
    }
    let only = Recording { timestamps: 1, ..recording(vec![Command::Timestamp { slot: 0 }]) };
    let point = fixture.run(&queue, &only);
    assert_eq!(queue.timestamps(point).unwrap().len(), 1);
}

fn a_timestamp_slot_beyond_those_of_the_recording_is_an_error(target: &'static Target) {
    let fixture = Fixture::new(target);
    let beyond = Recording { timestamps: 1, ..recording(vec![Command::Timestamp { slot: 1 }]) };
    let error = fixture.queue().submit(&beyond).unwrap_err();
    assert_eq!(error, DeviceError::Limit { what: "a timestamp slot", asked: 1, limit: 1 });
}

fn queues_of_one_context_work_side_by_side(target: &'static Target) {
    let fixture = Fixture::new(target);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let queue = fixture.queue();
                let buffer = fixture.upload(&[0.0f32; 512]);
                let run = counting(&fixture, buffer, 1);
                for _ in 0..5 {
                    fixture.run(&queue, &run);
                }
                assert_eq!(fixture.download::<f32>(buffer)[..256], [5.0; 256]);
            });
        }
    });
}

fn a_queue_may_outlive_its_context(target: &'static Target) {
    let mut fixture = Fixture::new(target);
    let queue = fixture.queue();
    let buffer = fixture.upload(&[0f32; 128]);
    let info = fixture.info(buffer);
    let add = axpb(fixture.axpb(), part(buffer, 0, 256), part(buffer, 256, 256), 64, 1.0, 2.0);
    fixture.close();
    queue.wait(queue.submit(&recording(vec![add, to_host()])).unwrap(), None).unwrap();
    // No one is left to invalidate what is not coherent.
    if info.coherent {
        assert_eq!(mapped::<f32>(&info)[64..], [2.0; 64]);
    }
}
