//! Single hazards and edges, with exact barriers and ranges.

use super::*;

#[test]
fn access_sets_name_themselves() {
    assert_eq!(format!("{:?}", KR | TW), "KERNEL_READ | TRANSFER_WRITE");
    assert_eq!(format!("{:?}", Access::NONE), "NONE");
    assert_eq!(KW.of_stages(), KR | KW);
    assert_eq!((TR | Access::HOST_WRITE).of_stages(), TR | TW | Access::HOST);
    assert_eq!(!Access::DEVICE, Access::HOST);
    assert_eq!(Access::DEVICE.kinds().count(), 4);
    assert!(KR.conflicts(TW) && KW.conflicts(TW) && !KR.conflicts(TR) && !KW.conflicts(Access::NONE));
}

#[test]
fn each_hazard_needs_one_barrier_and_reads_none() {
    for stage_reads in [KR, TR] {
        for stage_writes in [KW, TW] {
            let (read, write) = (touch(A, stage_reads), touch(A, stage_writes));
            assert_eq!(barriers(&[&[write], &[read]]), [1], "read after write");
            assert_eq!(barriers(&[&[read], &[write]]), [1], "write after read");
            assert_eq!(barriers(&[&[write], &[write]]), [1], "write after write");
            assert_eq!(barriers(&[&[read], &[read], &[read]]), [0; 0], "read after read");
        }
    }
}

#[test]
fn masks_name_what_is_waited_for() {
    let mut tracker = Tracker::new();
    assert_eq!(tracker.command(&[touch(A, KW)]), None);
    assert_eq!(tracker.command(&[touch(A, TR)]), Some(Barrier { src: KW, dst: Access::DEVICE }));
    // Only reads are outstanding: nothing has to be made visible to readers.
    assert_eq!(tracker.command(&[touch(A, KW)]), Some(Barrier { src: TR, dst: Access::DEVICE_WRITE }));
    assert_eq!(tracker.command(&[touch(B, TW)]), None);
    assert_eq!(tracker.command(&[touch(A, KR)]), Some(Barrier { src: KW | TW, dst: Access::DEVICE }));
}

#[test]
fn disjoint_ranges_and_resources_are_independent() {
    let low = Touch::new(A, r(0, 32), KW);
    let high = Touch::new(A, r(32, 64), KW);
    let other = touch(B, KW);
    assert_eq!(barriers(&[&[low], &[high], &[other]]), [0; 0]);
    assert_eq!(barriers(&[&[low], &[Touch::new(A, r(31, 33), KR)]]), [1]);
    assert_eq!(barriers(&[&[low], &[Touch::new(A, r(8, 8), KW)]]), [0; 0]);
}

#[test]
fn in_place_commands_do_not_race_with_themselves() {
    let in_place = [touch(A, KR), touch(A, KW), touch(A, KR | KW)];
    assert_eq!(barriers(&[&in_place]), [0; 0]);
    assert_eq!(barriers(&[&in_place, &in_place]), [1]);
}

#[test]
fn one_barrier_settles_older_hazards_of_other_ranges() {
    // Two producers, then two consumers: the first consumer's barrier serves the second.
    let diamond: [&[Touch]; 5] = [
        &[touch(A, KW)],
        &[touch(B, TW)],
        &[touch(A, KR), touch(C, KW)],
        &[touch(B, KR)],
        &[touch(B, TR), touch(C, KR)],
    ];
    assert_eq!(barriers(&diamond), [2, 4]);
}

#[test]
fn a_chain_needs_one_barrier_per_link() {
    let a = [touch(A, KR), touch(B, KW)];
    let b = [touch(B, KR), touch(A, KW)];
    assert_eq!(barriers(&[&a, &b, &a, &b]), [1, 2, 3]);
}

#[test]
fn host_kinds_in_a_command_are_ignored() {
    assert_eq!(barriers(&[&[touch(A, Access::HOST)], &[touch(A, Access::HOST)]]), [0; 0]);
}

#[test]
fn waits_and_semaphores_settle_without_barriers() {
    let mut tracker = Tracker::new();
    tracker.command(&[touch(A, KW)]);
    tracker.submit();
    assert!(tracker.clone().command(&[touch(A, KR)]).is_some(), "submission order is no dependency");
    let mut waited = tracker.clone();
    waited.waited();
    assert_eq!(waited.command(&[touch(A, KR)]), None);
    tracker.ordered_on_device();
    assert_eq!(tracker.command(&[touch(A, KR)]), None);
}

#[test]
fn completion_settles_only_what_is_complete() {
    let mut tracker = Tracker::new();
    tracker.command(&[touch(A, KW)]);
    tracker.submit();
    tracker.command(&[touch(B, KW)]);
    tracker.submit();
    tracker.completed(1);
    assert_eq!(tracker.command(&[touch(A, KR)]), None);
    assert_eq!(tracker.command(&[touch(B, KR)]), Some(Barrier { src: KR | KW, dst: Access::DEVICE }));
    tracker.completed(99);
    assert_eq!(tracker.submitted(), 2);
}

#[test]
fn the_host_reads_behind_one_barrier() {
    let mut tracker = Tracker::new();
    tracker.declare(A, HostMemory::coherent(64));
    tracker.declare(B, HostMemory::coherent(64));
    tracker.command(&[touch(A, KW)]);
    tracker.command(&[touch(B, TW)]);
    let finish = tracker.finish(&[(A, r(0, 64))]);
    assert_eq!(finish.barrier, Some(Barrier { src: KW | TW, dst: Access::HOST_READ }));
    assert!(finish.invalidate.is_empty());
    assert_eq!(tracker.finish(&[(A, r(0, 64)), (B, r(0, 64))]).barrier, None);
    tracker.submit();
    assert!(matches!(tracker.host_read(A, r(0, 1)), Err(HazardError::InFlight { submission: 1, .. })));
    tracker.waited();
    assert_eq!(tracker.host_read(A, r(0, 64)), Ok(vec![]));
    assert_eq!(tracker.finish(&[(A, r(0, 64))]), Finish::default());
}

#[test]
fn a_wait_alone_shows_the_host_nothing() {
    let mut tracker = Tracker::new();
    tracker.declare(A, HostMemory::coherent(64));
    tracker.command(&[Touch::new(A, r(0, 32), KW)]);
    assert_eq!(tracker.finish(&[(A, r(32, 64))]).barrier, None, "nothing was written there");
    tracker.submit();
    tracker.waited();
    assert!(matches!(tracker.host_read(A, r(0, 1)), Err(HazardError::NotVisible { .. })));
    assert!(matches!(tracker.host_write(A, r(31, 33)), Err(HazardError::NotVisible { .. })));
    assert_eq!(tracker.host_read(A, r(32, 64)), Ok(vec![]));
    let late = tracker.finish(&[(A, r(0, 64))]);
    assert_eq!(late.barrier, Some(Barrier { src: KW, dst: Access::HOST_READ }));
    tracker.submit();
    assert!(matches!(tracker.host_read(A, r(0, 1)), Err(HazardError::NotVisible { .. })));
    tracker.waited();
    assert_eq!(tracker.host_read(A, r(0, 64)), Ok(vec![]));
}

#[test]
fn writes_behind_a_finish_stay_hidden() {
    let mut tracker = Tracker::new();
    tracker.declare(A, HostMemory { coherent: false, atom: 16, bytes: 64 });
    tracker.command(&[Touch::new(A, r(0, 16), KW)]);
    tracker.finish(&[(A, r(0, 64))]);
    tracker.command(&[Touch::new(A, r(16, 32), KW)]);
    tracker.submit();
    tracker.waited();
    assert_eq!(tracker.host_read(A, r(0, 16)), Ok(vec![]));
    assert!(matches!(tracker.host_read(A, r(16, 32)), Err(HazardError::NotVisible { .. })));
}

#[test]
fn host_accesses_wait_for_the_device() {
    let mut tracker = Tracker::new();
    tracker.declare(A, HostMemory::coherent(64));
    tracker.declare(B, HostMemory::coherent(64));
    tracker.command(&[touch(A, KR), touch(B, KW)]);
    // Recorded is not submitted: the host may still prepare the input.
    assert_eq!(tracker.host_write(A, r(0, 64)), Ok(vec![]));
    assert!(tracker.submit().is_empty(), "coherent memory is never flushed");
    assert_eq!(tracker.host_read(A, r(0, 64)), Ok(vec![]), "both only read");
    let busy = HazardError::InFlight { resource: A, range: r(0, 4), submission: 1 };
    assert_eq!(tracker.host_write(A, r(0, 4)), Err(busy));
    assert!(matches!(tracker.host_read(B, r(0, 4)), Err(HazardError::InFlight { .. })));
    tracker.waited();
    assert_eq!(tracker.host_write(A, r(0, 4)), Ok(vec![]));
}

#[test]
fn what_the_host_cannot_reach_is_said() {
    let mut tracker = Tracker::new();
    tracker.declare(A, HostMemory::coherent(64));
    assert_eq!(tracker.host_read(B, r(0, 1)), Err(HazardError::DeviceOnly { resource: B }));
    assert_eq!(tracker.host_write(B, r(0, 1)), Err(HazardError::DeviceOnly { resource: B }));
    let outside = HazardError::OutOfBounds { resource: A, range: r(60, 65), bytes: 64 };
    assert_eq!(tracker.host_write(A, r(60, 65)), Err(outside));
    assert!(outside.to_string().contains("0x3c..0x41"));
    tracker.forget(A);
    assert_eq!(tracker.host_read(A, r(0, 1)), Err(HazardError::DeviceOnly { resource: A }));
}

#[test]
fn flush_and_invalidate_are_rounded_within_the_mapping() {
    let mut tracker = Tracker::new();
    tracker.declare(A, HostMemory { coherent: false, atom: 64, bytes: 100 });
    tracker.host_write(A, r(70, 80)).unwrap();
    tracker.host_write(A, r(10, 20)).unwrap();
    assert_eq!(tracker.submit(), [(A, r(0, 100))]);
    assert!(tracker.submit().is_empty(), "flushed once");
    tracker.command(&[Touch::new(A, r(90, 95), KW)]);
    let finish = tracker.finish(&[(A, r(0, 100))]);
    assert_eq!(finish.invalidate, [(A, r(64, 100))], "only what the device wrote");
    tracker.submit();
    tracker.waited();
    assert_eq!(tracker.host_read(A, r(0, 100)), Ok(vec![]));
}

#[test]
fn neighbours_in_an_atom_are_not_lost() {
    let mut tracker = Tracker::new();
    tracker.declare(A, HostMemory { coherent: false, atom: 64, bytes: 128 });
    tracker.command(&[Touch::new(A, r(32, 64), KW)]);
    tracker.submit();
    // Another byte of the atom that the device is writing.
    assert!(matches!(tracker.host_write(A, r(0, 8)), Err(HazardError::InFlight { .. })));
    assert_eq!(tracker.host_write(A, r(64, 72)), Ok(vec![]));
    tracker.waited();
    tracker.finish(&[]);
    assert!(matches!(tracker.host_write(A, r(0, 8)), Err(HazardError::NotVisible { .. })));
    tracker.command(&[Touch::new(A, r(32, 33), KR)]);
    tracker.finish(&[(A, r(40, 41))]);
    tracker.submit();
    tracker.waited();
    assert_eq!(tracker.host_write(A, r(0, 8)), Ok(vec![]));
}

#[test]
fn a_partial_write_invalidates_first() {
    let mut tracker = Tracker::new();
    tracker.declare(A, HostMemory { coherent: false, atom: 64, bytes: 128 });
    tracker.declare(B, HostMemory::coherent(8));
    tracker.command(&[Touch::new(A, r(0, 64), KW), Touch::new(B, r(0, 8), KW)]);
    // The barrier is global, so it shows the host A's bytes as well; A is not invalidated.
    assert!(tracker.finish(&[(B, r(0, 8))]).invalidate.is_empty());
    tracker.submit();
    tracker.waited();
    assert_eq!(tracker.host_write(A, r(0, 8)), Ok(vec![r(0, 64)]));
    assert_eq!(tracker.host_read(A, r(0, 64)), Ok(vec![]));
}

#[test]
fn a_late_invalidate_spares_what_the_host_wrote() {
    let mut tracker = Tracker::new();
    tracker.declare(A, HostMemory { coherent: false, atom: 8, bytes: 64 });
    tracker.command(&[Touch::new(A, r(10, 14), KW), Touch::new(A, r(40, 41), KW)]);
    tracker.command(&[touch(B, KW)]);
    // The host asks for B alone, and the barrier shows it A too.
    tracker.finish(&[(B, r(0, 64))]);
    tracker.submit();
    tracker.waited();
    assert_eq!(tracker.host_write(A, r(16, 17)), Ok(vec![]));
    assert_eq!(tracker.host_read(A, r(0, 64)), Ok(vec![r(8, 16), r(40, 48)]));
}

#[test]
fn half_shown_atoms_stay_stale_where_they_are_hidden() {
    let mut tracker = Tracker::new();
    tracker.declare(A, HostMemory { coherent: false, atom: 16, bytes: 64 });
    tracker.declare(B, HostMemory::coherent(64));
    tracker.command(&[Touch::new(A, r(0, 4), KW), touch(B, KW)]);
    tracker.finish(&[(B, r(0, 64))]);
    tracker.command(&[Touch::new(A, r(4, 8), KW)]);
    tracker.submit();
    tracker.waited();
    assert_eq!(tracker.host_read(A, r(0, 4)), Ok(vec![r(0, 16)]));
    assert!(tracker.host_read(A, r(4, 8)).is_err());
    let finish = tracker.finish(&[(A, r(4, 5))]);
    assert_eq!(finish.invalidate, [(A, r(0, 16))]);
    assert!(finish.barrier.is_some());
}

#[test]
fn an_invalidate_to_come_keeps_host_writes_away() {
    let mut tracker = Tracker::new();
    tracker.declare(A, HostMemory { coherent: false, atom: 8, bytes: 64 });
    tracker.command(&[Touch::new(A, r(0, 4), KW)]);
    tracker.submit();
    tracker.waited();
    assert_eq!(tracker.finish(&[(A, r(0, 8))]).invalidate, [(A, r(0, 8))]);
    tracker.submit();
    let busy = HazardError::InFlight { resource: A, range: r(0, 8), submission: 2 };
    assert_eq!(tracker.host_write(A, r(6, 7)), Err(busy));
    tracker.waited();
    assert_eq!(tracker.host_write(A, r(6, 7)), Ok(vec![]));
}

#[test]
fn replays_are_ordered_by_an_opening_barrier() {
    let in_place = [touch(A, KR | KW)];
    let steps = [Step::Command(&in_place)];
    assert_eq!(opening_barrier(&steps), Some(Barrier { src: KR | KW, dst: Access::DEVICE }));
    let only_reads = [touch(A, KR)];
    assert_eq!(opening_barrier(&[Step::Command(&only_reads)]), None);
    // Write, barrier, read: the next replay's write comes behind a read that nothing waits for.
    let (write, read) = ([touch(A, KW)], [touch(A, KR)]);
    let inner = Barrier { src: KW, dst: Access::DEVICE };
    let steps = [Step::Command(&write), Step::Barrier(inner), Step::Command(&read)];
    assert_eq!(opening_barrier(&steps), Some(Barrier { src: KR, dst: Access::DEVICE_WRITE }));
    // A barrier at the end serves the next replay.
    let closed =
        [steps[0], steps[1], steps[2], Step::Barrier(Barrier { src: KR, dst: Access::DEVICE_WRITE })];
    assert_eq!(opening_barrier(&closed), None);
}

#[test]
fn an_inner_barrier_may_serve_the_seam() {
    let inner = Barrier { src: KW, dst: Access::DEVICE };
    let (first, second) = ([touch(A, KW)], [touch(A, KR), touch(B, KW)]);
    let steps = [Step::Command(&first), Step::Barrier(inner), Step::Command(&second)];
    let seam = Barrier { src: KR | KW, dst: Access::DEVICE };
    assert_eq!(opening_barrier(&steps), Some(seam), "A is written in front of the inner barrier");
    let (first, second) = ([touch(A, KR)], [touch(C, KR), touch(B, KW)]);
    let steps = [Step::Command(&first), Step::Barrier(inner), Step::Command(&second)];
    assert_eq!(opening_barrier(&steps), None, "the inner barrier stands between B and B");
}

#[test]
fn a_replay_counts_like_its_commands() {
    let (write, read) = ([touch(A, KW)], [touch(A, KR), touch(B, KW)]);
    let inner = Barrier { src: KW, dst: Access::DEVICE };
    let shown = Barrier { src: KW, dst: Access::HOST_READ };
    let steps = [Step::Command(&write), Step::Barrier(inner), Step::Command(&read), Step::Barrier(shown)];
    let footprint = Footprint::of(&steps);
    let mut tracker = Tracker::new();
    tracker.declare(B, HostMemory { coherent: false, atom: 16, bytes: 64 });
    assert_eq!(tracker.replay(&footprint), None);
    let finish = tracker.finish(&[(B, r(0, 64))]);
    assert_eq!(finish, Finish { barrier: None, invalidate: vec![(B, r(0, 64))] });
    tracker.submit();
    assert_eq!(tracker.replay(&footprint), footprint.seam());
    assert!(matches!(tracker.host_read(B, r(0, 1)), Err(HazardError::InFlight { submission: 1, .. })));
    tracker.finish(&[(B, r(0, 64))]);
    tracker.submit();
    tracker.waited();
    assert_eq!(tracker.host_read(B, r(0, 64)), Ok(vec![]));
    assert_eq!(tracker.replay(&footprint), None);
}

#[test]
fn an_invalidated_atom_is_shown_as_a_whole() {
    let mut tracker = Tracker::new();
    tracker.declare(A, HostMemory { coherent: false, atom: 16, bytes: 64 });
    tracker.declare(B, HostMemory::coherent(64));
    tracker.command(&[Touch::new(A, r(0, 4), KW), touch(B, KW)]);
    tracker.finish(&[(B, r(0, 64))]);
    tracker.command(&[Touch::new(A, r(4, 8), TW)]);
    // Bytes 0..4 are shown already, but their atom holds bytes that are not.
    let finish = tracker.finish(&[(A, r(0, 1))]);
    assert_eq!(finish.barrier, Some(Barrier { src: TW, dst: Access::HOST_READ }));
    assert_eq!(finish.invalidate, [(A, r(0, 16))]);
    tracker.submit();
    tracker.waited();
    assert_eq!(tracker.host_read(A, r(0, 8)), Ok(vec![]));
}

#[test]
fn the_host_barrier_of_a_replay_shows_older_writes() {
    let written = [touch(B, KW)];
    let shown = Barrier { src: KW, dst: Access::HOST_READ };
    let footprint = Footprint::of(&[Step::Command(&written), Step::Barrier(shown)]);
    let mut tracker = Tracker::new();
    tracker.declare(A, HostMemory::coherent(64));
    tracker.declare(C, HostMemory::coherent(64));
    tracker.command(&[touch(A, KW), touch(C, TW)]);
    tracker.submit();
    tracker.replay(&footprint);
    assert_eq!(tracker.finish(&[(A, r(0, 64))]).barrier, None);
    tracker.submit();
    tracker.waited();
    assert_eq!(tracker.host_read(A, r(0, 64)), Ok(vec![]));
    assert!(tracker.host_read(C, r(0, 64)).is_err(), "the barrier names no transfers");
}
