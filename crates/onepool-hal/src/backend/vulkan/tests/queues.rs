//! Submission, waiting, replay, times, loss.

use std::time::Duration;

use super::*;

/// Work that takes a while on any device, the longer the more `fills` it has.
fn slow(fixture: &Fixture, fills: u32) -> Recording {
    let bytes = 64 << 20;
    let buffer = fixture.buffer(bytes, Placement::Device);
    let fill = |value| Command::Fill { dst: part(buffer, 0, bytes), value };
    let order = barrier(Access::TRANSFER_WRITE, Access::TRANSFER_WRITE);
    recording((0..fills).flat_map(|value| [fill(value), order.clone()]).collect())
}

/// What is seen of work before it is done, or of more work where this thread was held up until it was.
pub(super) fn unfinished<R>(fixture: &Fixture, mut look: impl FnMut(&Recording) -> Option<R>) -> R {
    (0..8).find_map(|doubled| look(&slow(fixture, 24 << doubled))).unwrap()
}

/// Adds 1 to every element in place, `times` times, and shows it to the host; safe to replay back to back.
fn counting(fixture: &Fixture, buffer: BufferId, times: usize) -> Recording {
    let kernel = fixture.kernel(id::AXPB_F32);
    let range = all(fixture, buffer);
    let half = range.bytes / 2;
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
    commands.push(barrier(WRITE, Access::HOST_READ));
    recording(commands)
}

fn replays(without: Without, wait: WaitPolicy) {
    let fixture = Fixture::with(&ContextDesc { wait, ..Default::default() }, without);
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

#[test]
fn a_prepared_recording_runs_again_and_again() {
    replays(Without::default(), WaitPolicy::default());
}

#[test]
fn waiting_by_sleeping_or_by_polling_is_the_same() {
    replays(Without::default(), WaitPolicy::Block);
    replays(Without::default(), WaitPolicy::Spin);
    replays(Without::default(), WaitPolicy::SpinThenBlock { micros: 50 });
}

/// The validation layer sees a command buffer or a fence that is used again too early.
#[test]
fn the_bare_submission_can_be_repeated() {
    let fixture = Fixture::new();
    let mut bare = super::super::Bare::new(fixture.context.clone().unwrap()).unwrap();
    for _ in 0..5 {
        bare.run().unwrap();
    }
    drop(bare);
    assert_eq!(fixture.take_messages(), [""; 0]);
}

#[test]
fn fences_stand_in_for_timeline_semaphores() {
    let without = Without { timeline: true, ..Default::default() };
    replays(without, WaitPolicy::default());
    replays(without, WaitPolicy::Block);
}

#[test]
fn old_barriers_stand_in_for_synchronization2() {
    replays(Without { synchronization2: true, ..Default::default() }, WaitPolicy::default());
    replays(Without { synchronization2: true, timeline: true }, WaitPolicy::Spin);
}

#[test]
fn a_wait_ends_with_its_timeout_and_again_with_the_work() {
    for timeline in [false, true] {
        let fixture = Fixture::with(&ContextDesc::default(), Without { timeline, ..Default::default() });
        let queue = fixture.queue();
        let (point, early) = unfinished(&fixture, |work| {
            let point = queue.submit(work).unwrap();
            let early = queue.wait(point, Some(Duration::from_millis(1)));
            (queue.completed().unwrap() < point).then_some((point, early))
        });
        assert_eq!(early, Err(DeviceError::Timeout { millis: 1 }));
        queue.wait(point, Some(Duration::from_secs(60))).unwrap();
        assert_eq!(queue.completed().unwrap(), point);
        assert_eq!(queue.wait(Timepoint(point.0 + 1), None), Err(DeviceError::Stale { object: "timepoint" }));
    }
}

#[test]
fn an_unfinished_recording_is_submitted_again_only_behind_a_barrier() {
    let fixture = Fixture::new();
    let queue = fixture.queue();
    let (prepared, error) = unfinished(&fixture, |work| {
        let prepared = queue.prepare(work).unwrap();
        queue.submit_prepared(prepared).unwrap();
        Some((prepared, queue.submit_prepared(prepared).err()?))
    });
    assert!(matches!(&error, DeviceError::Unsupported { what } if what.contains("barrier")), "{error}");
    // Waits by itself.
    queue.release_prepared(prepared);
}

#[test]
fn a_queue_that_goes_waits_for_its_work() {
    let fixture = Fixture::new();
    let last = fixture.upload(&[0u32; 16]);
    let queue = unfinished(&fixture, |work| {
        let queue = fixture.queue();
        let mut work = work.clone();
        work.commands.extend([Command::Fill { dst: all(&fixture, last), value: 7 }, to_host()]);
        let point = queue.submit(&work).unwrap();
        (queue.completed().unwrap() < point).then_some(queue)
    });
    drop(queue);
    assert_eq!(fixture.download::<u32>(last), [7; 16]);
}

#[test]
fn an_empty_recording_reaches_its_point() {
    let fixture = Fixture::new();
    let queue = fixture.queue();
    let point = fixture.run(&queue, &Recording::default());
    assert_eq!((point, queue.timestamps(point).unwrap()), (Timepoint(1), vec![]));
}

#[test]
fn times_rise_and_belong_to_their_submission() {
    let fixture = Fixture::new();
    assert!(fixture.context().info().timestamp_ns > 0.0);
    let queue = fixture.queue();
    let buffer = fixture.upload(&[0.0f32; 512]);
    let mut timed = counting(&fixture, buffer, 3);
    let last = timed.commands.len();
    timed.commands.insert(last, Command::Timestamp { slot: 1 });
    timed.commands.insert(0, Command::Timestamp { slot: 0 });
    timed.timestamps = 2;
    let prepared = queue.prepare(&timed).unwrap();
    let mut before = 0;
    for _ in 0..3 {
        let point = queue.submit_prepared(prepared).unwrap();
        queue.wait(point, None).unwrap();
        let times = queue.timestamps(point).unwrap();
        assert!(times.len() == 2 && times[0] < times[1] && times[0] > before, "{times:?}");
        before = times[1];
    }
    let first = fixture.run(&queue, &timed);
    let second = fixture.run(&queue, &timed);
    let (first, second) = (queue.timestamps(first).unwrap(), queue.timestamps(second).unwrap());
    assert!(before < first[0] && first[1] < second[0], "{before} {first:?} {second:?}");
    // The prepared recording ran again since, so these are gone.
    assert!(queue.timestamps(Timepoint(1)).unwrap().is_empty());
    // Many one-shot runs recycle their pools.
    for _ in 0..12 {
        let point = fixture.run(&queue, &timed);
        assert_eq!(queue.timestamps(point).unwrap().len(), 2);
    }
    timed.timestamps = 1;
    let error = queue.submit(&timed).unwrap_err();
    assert_eq!(error, DeviceError::Limit { what: "a timestamp slot", asked: 1, limit: 1 });
}

#[test]
fn queues_of_one_context_work_side_by_side() {
    let fixture = Fixture::new();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let queue = fixture.queue();
                let buffer = fixture.upload(&[0.0f32; 128]);
                let run = counting(&fixture, buffer, 1);
                for _ in 0..5 {
                    fixture.run(&queue, &run);
                }
                assert_eq!(fixture.download::<f32>(buffer)[..64], [5.0; 64]);
            });
        }
    });
}

#[test]
fn a_queue_may_outlive_its_context() {
    let mut fixture = Fixture::new();
    let queue = fixture.queue();
    let buffer = fixture.upload(&[0f32; 128]);
    let info = fixture.context().buffer_info(buffer).unwrap();
    let kernel = fixture.kernel(id::AXPB_F32);
    let add = axpb(kernel, part(buffer, 0, 256), part(buffer, 256, 256), 64, 1.0, 2.0);
    fixture.context = None;
    queue.wait(queue.submit(&recording(vec![add, to_host()])).unwrap(), None).unwrap();
    // No one is left to invalidate what is not coherent.
    if info.coherent {
        // SAFETY: mapped, of 512 bytes, and the device is done with it.
        let seen = unsafe { info.host.unwrap().0.cast::<[f32; 128]>().read() };
        assert_eq!(seen[64..], [2.0; 64]);
    }
}

#[test]
fn a_lost_device_stays_lost_and_goes_quietly() {
    let fixture = Fixture::new();
    let queue = fixture.queue();
    let buffer = fixture.upload(&[1u32; 16]);
    let fill = recording(vec![Command::Fill { dst: part(buffer, 0, 64), value: 9 }, to_host()]);
    let prepared = queue.prepare(&fill).unwrap();
    let point = fixture.run(&queue, &fill);
    let lost = fixture.context().shared.device.lose();
    assert!(matches!(lost, DeviceError::Lost { .. }));
    assert_eq!(queue.submit(&fill).unwrap_err(), lost);
    assert_eq!(queue.prepare(&fill).unwrap_err(), lost);
    assert_eq!(queue.submit_prepared(prepared).unwrap_err(), lost);
    assert_eq!(queue.completed().unwrap_err(), lost);
    assert_eq!(queue.timestamps(point).unwrap_err(), lost);
    assert_eq!(queue.wait(Timepoint(point.0 + 1), None).unwrap_err(), lost);
    let context = fixture.context();
    let desc = BufferDesc { bytes: 64, placement: Placement::Device, label: "late" };
    assert_eq!(context.create_buffer(&desc).unwrap_err(), lost);
    assert_eq!(context.create_queue().unwrap_err(), lost);
    assert_eq!(context.flush(&[]).unwrap_err(), lost);
    // What the host has is still there.
    let host = context.buffer_info(buffer).unwrap().host.unwrap();
    // SAFETY: mapped and not in use.
    assert_eq!(unsafe { host.0.cast::<u32>().read() }, 9);
}
