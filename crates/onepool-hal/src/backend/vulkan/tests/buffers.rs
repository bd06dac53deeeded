//! Buffers, copies, fills, handles.

use super::*;

#[test]
fn bytes_go_up_through_the_device_and_come_back() {
    let fixture = Fixture::new();
    let data: Vec<u8> = (0..10_007u32).map(|at| (at * 31 % 251) as u8).collect();
    let up = fixture.upload(&data);
    let device = fixture.buffer(10_007, Placement::Device);
    let down = fixture.buffer(10_007, Placement::Readback);
    let queue = fixture.queue();
    fixture.run(
        &queue,
        &recording(vec![
            Command::Fill { dst: part(device, 0, 10_004), value: 0xffff_ffff },
            barrier(Access::TRANSFER_WRITE, Access::TRANSFER_WRITE),
            // Odd offsets and lengths.
            Command::Copy { src: part(up, 3, 10_001), dst: part(device, 5, 10_001) },
            barrier(Access::TRANSFER_WRITE, Access::TRANSFER_READ),
            Command::Copy { src: part(device, 0, 10_006), dst: part(down, 1, 10_006) },
            Command::Copy { src: part(device, 0, 0), dst: part(down, 10_007, 0) },
            to_host(),
        ]),
    );
    let got: Vec<u8> = fixture.download(down);
    assert_eq!(got[1..6], [0xff; 5]);
    assert_eq!(got[6..10_007], data[3..10_004]);
}

#[test]
fn what_is_granted_is_reported() {
    let fixture = Fixture::new();
    let unified = fixture.context().info().memory.shares_host_memory();
    for placement in [Placement::Device, Placement::Upload, Placement::Readback, Placement::Shared] {
        let info = fixture.context().buffer_info(fixture.buffer(1000, placement)).unwrap();
        assert_eq!((info.bytes, info.imported), (1000, false));
        match placement {
            Placement::Device => {
                assert!(info.device_local && (!unified || (info.host.is_some() && info.cached)))
            }
            Placement::Upload => assert!(info.host.is_some()),
            Placement::Readback | Placement::Shared => assert!(info.host.is_some() && info.cached),
        }
    }
}

#[test]
fn a_buffer_above_the_limit_is_refused_and_counts_nothing() {
    let fixture = Fixture::new();
    let limit = fixture.context().info().limits.max_buffer_bytes;
    let desc = |bytes| BufferDesc { bytes, placement: Placement::Device, label: "huge" };
    let error = fixture.context().create_buffer(&desc(limit + 1)).unwrap_err();
    assert_eq!(error, DeviceError::Limit { what: "a buffer", asked: limit + 1, limit });
    assert!(matches!(fixture.context().create_buffer(&desc(0)), Err(DeviceError::Unsupported { .. })));
    assert_eq!(fixture.context().usage(), MemoryUsage::default());
}

#[test]
fn usage_counts_what_lives_and_what_was_made() {
    let fixture = Fixture::new();
    let small = fixture.buffer(1 << 10, Placement::Device);
    // Larger than a block, so it gets memory of its own.
    let large = fixture.buffer(300 << 20, Placement::Device);
    fixture.context().destroy_buffer(small);
    let usage = MemoryUsage { allocated: 300 << 20, allocations: 2, ..Default::default() };
    assert_eq!(fixture.context().usage(), usage);
    fixture.context().destroy_buffer(large);
    assert_eq!(fixture.context().usage(), MemoryUsage { allocations: 2, ..Default::default() });
}

#[test]
fn stale_and_foreign_handles_are_errors_everywhere() {
    let stale = |object| DeviceError::Stale { object };
    let fixture = Fixture::new();
    let other = Fixture::new();
    let (buffer, foreign) = (fixture.buffer(64, Placement::Shared), other.buffer(64, Placement::Shared));
    assert_eq!(fixture.context().buffer_info(foreign).unwrap_err(), stale("buffer"));
    fixture.context().destroy_buffer(buffer);
    fixture.context().destroy_buffer(buffer);
    let again = fixture.buffer(64, Placement::Shared);
    assert_eq!(fixture.context().buffer_info(buffer).unwrap_err(), stale("buffer"));
    assert_eq!(fixture.context().flush(&[part(buffer, 0, 64)]), Err(stale("buffer")));
    assert_eq!(fixture.context().invalidate(&[part(buffer, 0, 64)]), Err(stale("buffer")));
    let queue = fixture.queue();
    let fill = |buffer| recording(vec![Command::Fill { dst: part(buffer, 0, 64), value: 0 }]);
    assert_eq!(queue.submit(&fill(buffer)).unwrap_err(), stale("buffer"));
    assert_eq!(queue.prepare(&fill(foreign)).unwrap_err(), stale("buffer"));

    let kernel = fixture.kernel(id::AXPB_F32);
    fixture.context().destroy_kernel(kernel);
    fixture.context().destroy_kernel(kernel);
    let dispatch = recording(vec![axpb(kernel, part(again, 0, 4), part(again, 32, 4), 1, 1.0, 0.0)]);
    assert_eq!(queue.submit(&dispatch).unwrap_err(), stale("kernel"));

    let prepared = queue.prepare(&fill(again)).unwrap();
    assert_eq!(fixture.queue().submit_prepared(prepared).unwrap_err(), stale("prepared recording"));
    queue.wait(queue.submit_prepared(prepared).unwrap(), None).unwrap();
    fixture.context().destroy_buffer(again);
    assert_eq!(queue.submit_prepared(prepared).unwrap_err(), stale("buffer"));
    queue.release_prepared(prepared);
    queue.release_prepared(prepared);
    assert_eq!(queue.submit_prepared(prepared).unwrap_err(), stale("prepared recording"));
}

#[test]
fn destroying_something_else_leaves_a_prepared_recording_alive() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.buffer(64, Placement::Shared), fixture.buffer(64, Placement::Shared));
    let queue = fixture.queue();
    let prepared = queue
        .prepare(&recording(vec![Command::Fill { dst: part(one, 0, 64), value: 7 }, to_host()]))
        .unwrap();
    fixture.context().destroy_buffer(two);
    queue.wait(queue.submit_prepared(prepared).unwrap(), None).unwrap();
    assert_eq!(fixture.download::<u32>(one), [7; 16]);
}

#[test]
fn ranges_outside_a_buffer_never_reach_the_driver() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.buffer(64, Placement::Shared), fixture.buffer(64, Placement::Shared));
    let queue = fixture.queue();
    let refused = |command| queue.submit(&recording(vec![command])).unwrap_err();
    let limit = |asked| DeviceError::Limit { what: "a range's end", asked, limit: 64 };
    assert_eq!(refused(Command::Fill { dst: part(one, 32, 36), value: 0 }), limit(68));
    assert_eq!(refused(Command::Fill { dst: part(one, u64::MAX - 3, 8), value: 0 }), limit(u64::MAX));
    assert_eq!(refused(Command::Copy { src: part(one, 0, 64), dst: part(two, 4, 64) }), limit(68));
    let uneven = Command::Copy { src: part(one, 0, 64), dst: part(two, 0, 32) };
    assert!(matches!(refused(uneven), DeviceError::Limit { asked: 64, limit: 32, .. }));
    assert!(matches!(
        refused(Command::Fill { dst: part(one, 2, 4), value: 0 }),
        DeviceError::Unsupported { .. }
    ));
    assert!(matches!(
        refused(Command::Fill { dst: part(one, 0, 6), value: 0 }),
        DeviceError::Unsupported { .. }
    ));
    assert_eq!(fixture.context().flush(&[part(one, 60, 5)]), Err(limit(65)));
    // The queue still works.
    fixture.run(&queue, &recording(vec![Command::Fill { dst: part(one, 0, 64), value: 3 }, to_host()]));
    assert_eq!(fixture.download::<u32>(one), [3; 16]);
}
