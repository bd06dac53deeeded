//! Buffers, copies, fills, handles; on shared memory and on memory next to the device's.

use super::*;

fn each(test: impl Fn(&Fixture)) {
    test(&Fixture::new());
    test(&Fixture::discrete());
}

#[test]
fn bytes_go_up_through_the_device_and_come_back() {
    each(|fixture| {
        let data: Vec<u8> = (0..10_007u32).map(|at| (at * 31 % 251) as u8).collect();
        let up = fixture.upload(&data);
        let device = fixture.buffer(10_007, Placement::Device);
        let down = fixture.buffer(10_007, Placement::Readback);
        let queue = fixture.queue();
        let run = recording(vec![
            Command::Fill { dst: part(device, 0, 10_004), value: 0xffff_ffff },
            // Odd offsets and lengths.
            Command::Copy { src: part(up, 3, 10_001), dst: part(device, 5, 10_001) },
            Command::Copy { src: part(device, 0, 10_006), dst: part(down, 1, 10_006) },
            Command::Copy { src: part(device, 0, 0), dst: part(down, 10_007, 0) },
        ]);
        fixture.run(&queue, &run);
        let got: Vec<u8> = fixture.download(down);
        assert_eq!(got[1..6], [0xff; 5]);
        assert_eq!(got[6..10_007], data[3..10_004]);
    });
}

#[test]
fn what_is_granted_is_reported() {
    for placement in [Placement::Device, Placement::Upload, Placement::Readback, Placement::Shared] {
        let discrete = Fixture::discrete();
        let info = discrete.context.buffer_info(discrete.buffer(1000, placement)).unwrap();
        assert_eq!(info.host.is_some(), placement != Placement::Device);
        assert_eq!((info.bytes, info.coherent), (1000, placement == Placement::Device));
    }
    let fixture = Fixture::new();
    if fixture.context.info().memory.shares_host_memory() {
        let info = fixture.context.buffer_info(fixture.buffer(1000, Placement::Device)).unwrap();
        assert!(info.host.is_some() && info.coherent && info.cached && !info.imported);
    }
}

#[test]
fn memory_beside_the_devices_follows_flush_and_invalidate_only() {
    let fixture = Fixture::discrete();
    let buffer = fixture.upload(&[1u32; 64]);
    let host = fixture.context.buffer_info(buffer).unwrap().host.unwrap().0.cast::<u32>();
    // SAFETY: mapped memory of 64 words that no unfinished command uses, here and below.
    let word = |at: usize| unsafe { host.add(at) };
    fixture.run(&fixture.queue(), &recording(vec![Command::Fill { dst: part(buffer, 0, 128), value: 7 }]));
    // SAFETY: as above.
    unsafe {
        assert_eq!(word(0).read_volatile(), 1);
        fixture.context.invalidate(&[part(buffer, 4, 4)]).unwrap();
        assert_eq!([word(0), word(1), word(2)].map(|word| word.read_volatile()), [1, 7, 1]);
        word(40).write_volatile(5);
        word(41).write_volatile(6);
        fixture.context.flush(&[part(buffer, 160, 4)]).unwrap();
        word(40).write_volatile(0);
        word(41).write_volatile(0);
    }
    assert_eq!(fixture.download::<u32>(buffer)[38..44], [1, 1, 5, 1, 1, 1]);
}

#[test]
fn a_buffer_above_the_limit_is_refused_and_counts_nothing() {
    let fixture = Fixture::new();
    let limit = fixture.context.info().limits.max_buffer_bytes;
    let desc = |bytes| BufferDesc { bytes, placement: Placement::Device, label: "huge" };
    let error = fixture.context.create_buffer(&desc(limit + 1)).unwrap_err();
    assert_eq!(error, DeviceError::Limit { what: "a buffer", asked: limit + 1, limit });
    assert!(matches!(fixture.context.create_buffer(&desc(0)), Err(DeviceError::Unsupported { .. })));
    assert_eq!(fixture.context.usage(), MemoryUsage::default());
}

#[test]
fn usage_counts_what_lives_and_what_was_made() {
    each(|fixture| {
        let small = fixture.buffer(1 << 10, Placement::Device);
        let large = fixture.buffer(3 << 20, Placement::Upload);
        fixture.context.destroy_buffer(small);
        let usage = MemoryUsage { allocated: 3 << 20, allocations: 2, ..Default::default() };
        assert_eq!(fixture.context.usage(), usage);
        fixture.context.destroy_buffer(large);
        assert_eq!(fixture.context.usage(), MemoryUsage { allocations: 2, ..Default::default() });
    });
}

#[test]
fn stale_and_foreign_handles_are_errors_everywhere() {
    let stale = |object| DeviceError::Stale { object };
    let fixture = Fixture::new();
    let other = Fixture::new();
    let (buffer, foreign) = (fixture.buffer(64, Placement::Shared), other.buffer(64, Placement::Shared));
    assert_eq!(fixture.context.buffer_info(foreign).unwrap_err(), stale("buffer"));
    fixture.context.destroy_buffer(buffer);
    fixture.context.destroy_buffer(buffer);
    let again = fixture.buffer(1024, Placement::Shared);
    assert_eq!(fixture.context.buffer_info(buffer).unwrap_err(), stale("buffer"));
    assert_eq!(fixture.context.flush(&[part(buffer, 0, 64)]), Err(stale("buffer")));
    assert_eq!(fixture.context.invalidate(&[part(buffer, 0, 64)]), Err(stale("buffer")));
    let queue = fixture.queue();
    let fill = |buffer| recording(vec![Command::Fill { dst: part(buffer, 0, 64), value: 0 }]);
    assert_eq!(queue.submit(&fill(buffer)).unwrap_err(), stale("buffer"));
    assert_eq!(queue.prepare(&fill(foreign)).unwrap_err(), stale("buffer"));

    let kernel = fixture.own();
    let dispatch = recording(vec![axpb(kernel, part(again, 0, 4), part(again, 512, 4), 1, 1.0, 0.0)]);
    let prepared = queue.prepare(&dispatch).unwrap();
    fixture.context.destroy_kernel(kernel);
    fixture.context.destroy_kernel(kernel);
    assert_eq!(queue.submit(&dispatch).unwrap_err(), stale("kernel"));
    assert_eq!(queue.submit_prepared(prepared).unwrap_err(), stale("kernel"));

    let prepared = queue.prepare(&fill(again)).unwrap();
    assert_eq!(fixture.queue().submit_prepared(prepared).unwrap_err(), stale("prepared recording"));
    // Another buffer's end leaves it alone.
    fixture.context.destroy_buffer(fixture.buffer(64, Placement::Shared));
    queue.wait(queue.submit_prepared(prepared).unwrap(), None).unwrap();
    fixture.context.destroy_buffer(again);
    assert_eq!(queue.submit_prepared(prepared).unwrap_err(), stale("buffer"));
    queue.release_prepared(prepared);
    queue.release_prepared(prepared);
    assert_eq!(queue.submit_prepared(prepared).unwrap_err(), stale("prepared recording"));
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
    for command in [
        Command::Fill { dst: part(one, 2, 4), value: 0 },
        Command::Fill { dst: part(one, 0, 6), value: 0 },
        Command::Copy { src: part(one, 0, 32), dst: part(one, 31, 32) },
    ] {
        assert!(matches!(refused(command), DeviceError::Unsupported { .. }));
    }
    assert_eq!(fixture.context.flush(&[part(one, 60, 5)]), Err(limit(65)));
    // The queue still works.
    fixture.run(&queue, &recording(vec![Command::Fill { dst: part(one, 0, 64), value: 3 }]));
    assert_eq!(fixture.download::<u32>(one), [3; 16]);
}
