//! Buffers, copies, fills, handles.

use onepool::backend::{BufferDesc, DeviceError, MemoryUsage, Placement};
use onepool::memory::coherency::Access;
use onepool::recording::{BufferId, Command, Recording};

use crate::fixture::{Fixture, axpb, barrier, part, recording, stale, to_host};
use crate::targets::Target;

crate::cases![
    bytes_go_up_through_the_device_and_come_back,
    what_is_granted_is_reported,
    a_buffer_above_the_limit_is_refused_and_counts_nothing,
    a_buffer_of_no_bytes_is_refused,
    usage_counts_what_lives_and_what_was_made,
    stale_and_foreign_buffers_are_errors,
    stale_buffers_are_neither_flushed_nor_invalidated,
    ranges_outside_a_buffer_are_neither_flushed_nor_invalidated,
    a_kernel_that_is_gone_is_an_error,
    a_prepared_recording_belongs_to_its_queue_until_it_is_released,
    a_prepared_recording_over_a_kernel_that_is_gone_is_an_error,
    a_prepared_recording_over_a_buffer_that_is_gone_is_an_error,
    destroying_something_else_leaves_a_prepared_recording_alive,
    ranges_outside_a_buffer_never_reach_the_driver,
    a_copy_between_different_lengths_is_refused,
    a_copy_between_ranges_that_overlap_is_refused,
    a_fill_of_parts_of_words_is_refused,
];

fn bytes_go_up_through_the_device_and_come_back(target: &'static Target) {
    let fixture = Fixture::new(target);
    let data: Vec<u8> = (0..10_007u32).map(|at| (at * 31 % 251) as u8).collect();
    let up = fixture.upload(&data);
    let device = fixture.buffer(10_007, Placement::Device);
    let down = fixture.upload(&[0u8; 10_007]);
    let run = recording(vec![
        Command::Fill { dst: part(device, 0, 10_004), value: 0xffff_ffff },
        barrier(Access::TRANSFER_WRITE, Access::TRANSFER_WRITE),
        // Odd offsets and lengths.
        Command::Copy { src: part(up, 3, 10_001), dst: part(device, 5, 10_001) },
        barrier(Access::TRANSFER_WRITE, Access::TRANSFER_READ),
        Command::Copy { src: part(device, 0, 10_006), dst: part(down, 1, 10_006) },
        Command::Copy { src: part(device, 0, 0), dst: part(down, 10_007, 0) },
        to_host(),
    ]);
    fixture.run(&fixture.queue(), &run);
    let got: Vec<u8> = fixture.download(down);
    assert_eq!(got[..6], [0, 0xff, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(got[6..], data[3..10_004]);
}

fn what_is_granted_is_reported(target: &'static Target) {
    let fixture = Fixture::new(target);
    let memory = &fixture.context().info().memory;
    let unified = memory.shares_host_memory();
    for placement in [Placement::Device, Placement::Upload, Placement::Readback, Placement::Shared] {
        let info = fixture.info(fixture.buffer(1000, placement));
        assert_eq!((info.bytes, info.imported), (1000, false));
        assert!((info.heap as usize) < memory.heaps().len(), "{placement:?}: {info:?}");
        match placement {
            Placement::Device => {
                assert!(info.device_local && (!unified || (info.host.is_some() && info.cached)), "{info:?}");
            }
            Placement::Upload => assert!(info.host.is_some(), "{info:?}"),
            Placement::Readback | Placement::Shared => {
                assert!(info.host.is_some() && info.cached, "{placement:?}: {info:?}");
            }
        }
    }
}

fn huge(bytes: u64) -> BufferDesc {
    BufferDesc { bytes, placement: Placement::Device, label: "huge" }
}

fn a_buffer_above_the_limit_is_refused_and_counts_nothing(target: &'static Target) {
    let fixture = Fixture::new(target);
    let limit = fixture.context().info().limits.max_buffer_bytes;
    let error = fixture.context().create_buffer(&huge(limit + 1)).unwrap_err();
    assert_eq!(error, DeviceError::Limit { what: "a buffer", asked: limit + 1, limit });
    assert_eq!(fixture.context().usage(), MemoryUsage::default());
}

fn a_buffer_of_no_bytes_is_refused(target: &'static Target) {
    let fixture = Fixture::new(target);
    assert!(matches!(fixture.context().create_buffer(&huge(0)), Err(DeviceError::Unsupported { .. })));
    assert_eq!(fixture.context().usage(), MemoryUsage::default());
}

fn usage_counts_what_lives_and_what_was_made(target: &'static Target) {
    // Of Vulkan's, larger than a block, so that it gets memory of its own.
    let bytes = if target.api == "vulkan" { 300 << 20 } else { 3 << 20 };
    for placement in [Placement::Device, Placement::Upload] {
        let fixture = Fixture::new(target);
        let small = fixture.buffer(1 << 10, Placement::Device);
        let large = fixture.buffer(bytes, placement);
        fixture.context().destroy_buffer(small);
        let usage = MemoryUsage { allocated: bytes, allocations: 2, ..Default::default() };
        assert_eq!(fixture.context().usage(), usage);
        fixture.context().destroy_buffer(large);
        assert_eq!(fixture.context().usage(), MemoryUsage { allocations: 2, ..Default::default() });
    }
}

fn fill(buffer: BufferId) -> Recording {
    recording(vec![Command::Fill { dst: part(buffer, 0, 64), value: 7 }, to_host()])
}

fn stale_and_foreign_buffers_are_errors(target: &'static Target) {
    let (fixture, other) = (Fixture::new(target), Fixture::new(target));
    let (buffer, foreign) = (fixture.buffer(64, Placement::Shared), other.buffer(64, Placement::Shared));
    let context = fixture.context();
    assert_eq!(context.buffer_info(foreign).unwrap_err(), stale("buffer"));
    context.destroy_buffer(buffer);
    context.destroy_buffer(buffer);
    let again = fixture.buffer(64, Placement::Shared);
    assert_eq!(context.buffer_info(buffer).unwrap_err(), stale("buffer"));
    let queue = fixture.queue();
    assert_eq!(queue.submit(&fill(buffer)).unwrap_err(), stale("buffer"));
    assert_eq!(queue.submit(&fill(foreign)).unwrap_err(), stale("buffer"));
    // Some look at the objects when they translate, some when they submit.
    for gone in [buffer, foreign] {
        let prepared = queue.prepare(&fill(gone)).and_then(|prepared| queue.submit_prepared(prepared));
        assert_eq!(prepared.unwrap_err(), stale("buffer"));
    }
    // What took its place is another one.
    fixture.run(&queue, &fill(again));
    assert_eq!(fixture.download::<u32>(again), [7; 16]);
}

fn stale_buffers_are_neither_flushed_nor_invalidated(target: &'static Target) {
    let fixture = Fixture::new(target);
    let buffer = fixture.buffer(64, Placement::Shared);
    let context = fixture.context();
    context.destroy_buffer(buffer);
    assert_eq!(context.flush(&[part(buffer, 0, 64)]), Err(stale("buffer")));
    assert_eq!(context.invalidate(&[part(buffer, 0, 64)]), Err(stale("buffer")));
}

fn ranges_outside_a_buffer_are_neither_flushed_nor_invalidated(target: &'static Target) {
    let fixture = Fixture::new(target);
    let buffer = fixture.buffer(64, Placement::Shared);
    assert_eq!(fixture.context().flush(&[part(buffer, 60, 5)]), Err(outside(65)));
    assert_eq!(fixture.context().invalidate(&[part(buffer, 60, 5)]), Err(outside(65)));
}

/// A range that ends there in a buffer of 64 bytes.
fn outside(end: u64) -> DeviceError {
    DeviceError::Limit { what: "a range's end", asked: end, limit: 64 }
}

/// A dispatch over one element of each half of a buffer of 1 KiB.
fn dispatch(fixture: &Fixture) -> (onepool::recording::DeviceKernelId, Recording) {
    let (kernel, buffer) = (fixture.axpb(), fixture.upload(&[0.0f32; 256]));
    let run = axpb(kernel, part(buffer, 0, 4), part(buffer, 512, 4), 1, 1.0, 0.0);
    (kernel, recording(vec![run, to_host()]))
}

fn a_kernel_that_is_gone_is_an_error(target: &'static Target) {
    let fixture = Fixture::new(target);
    let (kernel, dispatch) = dispatch(&fixture);
    fixture.context().destroy_kernel(kernel);
    fixture.context().destroy_kernel(kernel);
    assert_eq!(fixture.queue().submit(&dispatch).unwrap_err(), stale("kernel"));
    let queue = fixture.queue();
    let prepared = queue.prepare(&dispatch).and_then(|prepared| queue.submit_prepared(prepared));
    assert_eq!(prepared.unwrap_err(), stale("kernel"));
}

fn a_prepared_recording_belongs_to_its_queue_until_it_is_released(target: &'static Target) {
    let fixture = Fixture::new(target);
    let (queue, buffer) = (fixture.queue(), fixture.buffer(64, Placement::Shared));
    let prepared = queue.prepare(&fill(buffer)).unwrap();
    assert_eq!(fixture.queue().submit_prepared(prepared).unwrap_err(), stale("prepared recording"));
    queue.wait(queue.submit_prepared(prepared).unwrap(), None).unwrap();
    assert_eq!(fixture.download::<u32>(buffer), [7; 16]);
    queue.release_prepared(prepared);
    queue.release_prepared(prepared);
    assert_eq!(queue.submit_prepared(prepared).unwrap_err(), stale("prepared recording"));
}

fn a_prepared_recording_over_a_kernel_that_is_gone_is_an_error(target: &'static Target) {
    let fixture = Fixture::new(target);
    let (kernel, dispatch) = dispatch(&fixture);
    let queue = fixture.queue();
    let prepared = queue.prepare(&dispatch).unwrap();
    fixture.context().destroy_kernel(kernel);
    assert_eq!(queue.submit_prepared(prepared).unwrap_err(), stale("kernel"));
}

fn a_prepared_recording_over_a_buffer_that_is_gone_is_an_error(target: &'static Target) {
    let fixture = Fixture::new(target);
    let (queue, buffer) = (fixture.queue(), fixture.buffer(64, Placement::Shared));
    let prepared = queue.prepare(&fill(buffer)).unwrap();
    fixture.context().destroy_buffer(buffer);
    assert_eq!(queue.submit_prepared(prepared).unwrap_err(), stale("buffer"));
}

fn destroying_something_else_leaves_a_prepared_recording_alive(target: &'static Target) {
    let fixture = Fixture::new(target);
    let (one, two) = (fixture.buffer(64, Placement::Shared), fixture.buffer(64, Placement::Shared));
    let queue = fixture.queue();
    let prepared = queue.prepare(&fill(one)).unwrap();
    fixture.context().destroy_buffer(two);
    queue.wait(queue.submit_prepared(prepared).unwrap(), None).unwrap();
    assert_eq!(fixture.download::<u32>(one), [7; 16]);
}

fn ranges_outside_a_buffer_never_reach_the_driver(target: &'static Target) {
    let fixture = Fixture::new(target);
    let (one, two) = (fixture.buffer(64, Placement::Shared), fixture.buffer(64, Placement::Shared));
    let queue = fixture.queue();
    let refused = |command| queue.submit(&recording(vec![command])).unwrap_err();
    assert_eq!(refused(Command::Fill { dst: part(one, 32, 36), value: 0 }), outside(68));
    assert_eq!(refused(Command::Fill { dst: part(one, u64::MAX - 3, 8), value: 0 }), outside(u64::MAX));
    assert_eq!(refused(Command::Copy { src: part(one, 0, 64), dst: part(two, 4, 64) }), outside(68));
    // The queue still works.
    fixture.run(&queue, &fill(one));
    assert_eq!(fixture.download::<u32>(one), [7; 16]);
}

/// Submits a command over two buffers of 64 bytes, which must not work, and looks whether the queue does afterwards.
fn refused(target: &'static Target, command: impl Fn(BufferId, BufferId) -> Command) -> DeviceError {
    let fixture = Fixture::new(target);
    let (one, two) = (fixture.buffer(64, Placement::Shared), fixture.buffer(64, Placement::Shared));
    let queue = fixture.queue();
    let error = queue.submit(&recording(vec![command(one, two)])).unwrap_err();
    fixture.run(&queue, &fill(one));
    assert_eq!(fixture.download::<u32>(one), [7; 16]);
    error
}

fn a_copy_between_different_lengths_is_refused(target: &'static Target) {
    let error = refused(target, |one, two| Command::Copy { src: part(one, 0, 64), dst: part(two, 0, 32) });
    let is_told = match error {
        DeviceError::Unsupported { .. } => target.api == "cpu",
        _ => matches!(error, DeviceError::Limit { asked: 64, limit: 32, .. }),
    };
    assert!(is_told, "{error}");
}

fn a_copy_between_ranges_that_overlap_is_refused(target: &'static Target) {
    let error = refused(target, |one, _| Command::Copy { src: part(one, 0, 32), dst: part(one, 31, 32) });
    assert!(matches!(error, DeviceError::Unsupported { .. }), "{error}");
}

fn a_fill_of_parts_of_words_is_refused(target: &'static Target) {
    for (offset, bytes) in [(2, 4), (0, 6)] {
        let error = refused(target, |one, _| Command::Fill { dst: part(one, offset, bytes), value: 0 });
        assert!(matches!(error, DeviceError::Unsupported { .. }), "{error}");
    }
}
