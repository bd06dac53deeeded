//! Submission, times, loss.

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
fn an_unfinished_recording_is_submitted_again_only_after_a_barrier() {
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
fn the_times_of_an_earlier_run_of_a_prepared_recording_are_gone() {
    let fixture = Fixture::new();
    let queue = fixture.queue();
    let timed = Recording { timestamps: 1, ..recording(vec![Command::Timestamp { slot: 0 }]) };
    let prepared = queue.prepare(&timed).unwrap();
    let points = [0; 2].map(|_| {
        let point = queue.submit_prepared(prepared).unwrap();
        queue.wait(point, None).unwrap();
        point
    });
    assert_eq!(points.map(|point| queue.timestamps(point).unwrap().len()), [0, 1]);
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
