//! Single hazards and edges, with exact barriers and ranges.

use super::*;

#[test]
fn access_sets_name_themselves() {
    assert_eq!(format!("{:?}", KR | TW), "KERNEL_READ | TRANSFER_WRITE");
    assert_eq!(format!("{:?}", Access::NONE), "NONE");
    assert_eq!(KW.of_stages(), KR | KW);
    assert_eq!((TR | Access::HOST_WRITE).of_stages(), TR | TW | Access::HOST);
    assert_eq!(!Access::DEVICE, Access::HOST);
    assert_eq!(KR.and(TW), KR | TW);
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
fn the_first_touch_after_unknown_work_waits_for_all_of_it() {
    let mut tracker = Tracker::after_others();
    assert_eq!(tracker.command(&[]), None, "nothing is touched");
    assert_eq!(tracker.command(&[Touch::new(A, r(8, 8), KW)]), None, "nor here");
    assert_eq!(tracker.command(&[touch(A, KR)]), Some(Barrier::FULL));
    assert_eq!(tracker.command(&[touch(B, KW)]), None, "one barrier settled everything");
    assert_eq!(tracker.command(&[touch(A, KW)]), Some(Barrier { src: KR | KW, dst: Access::DEVICE }));
}

#[test]
fn a_command_after_all_settles_what_it_does_not_touch() {
    let mut tracker = Tracker::new();
    tracker.command(&[touch(A, KW)]);
    assert_eq!(tracker.command_after_all(&[touch(B, KW)]), Barrier::FULL);
    assert_eq!(tracker.command(&[touch(A, KR)]), None);
    assert!(tracker.command(&[touch(B, KR)]).is_some());
}

#[test]
fn the_host_reads_after_one_barrier() {
    let mut tracker = Tracker::new();
    tracker.command(&[Touch::new(A, r(0, 32), KW)]);
    tracker.command(&[touch(B, TW)]);
    assert_eq!(tracker.finish(&[(A, r(32, 64)), (C, r(0, 64))]), None, "nothing was written there");
    assert_eq!(tracker.finish(&[(A, r(0, 1))]), Some(Barrier { src: KW | TW, dst: Access::HOST_READ }));
    assert_eq!(tracker.finish(&[(A, r(0, 64)), (B, r(0, 64))]), None, "the barrier is global");
    tracker.command(&[touch(C, KW)]);
    assert_eq!(tracker.finish(&[(C, r(0, 1))]), Some(Barrier { src: KW, dst: Access::HOST_READ }));
}

#[test]
fn a_barrier_shows_the_kinds_that_it_names_and_no_other() {
    let mut unseen = Unseen::default();
    unseen.command(&[Touch::new(A, r(0, 8), KW), Touch::new(A, r(4, 16), TW | KR)]);
    unseen.barrier(Barrier { src: KW, dst: Access::DEVICE });
    assert_eq!(unseen.of(A).map(|(range, _)| range.bytes()).sum::<u64>(), 16, "the host is not named");
    unseen.barrier(Barrier { src: KW, dst: Access::HOST_READ });
    assert_eq!(unseen.of(A).collect::<Vec<_>>(), [(r(4, 16), TW)]);
    unseen.barrier(Barrier { src: Access::DEVICE_WRITE, dst: Access::HOST_READ });
    assert_eq!(unseen.of(A).next(), None);
    assert_eq!(unseen.of(B).next(), None);
}

#[test]
fn atoms_stay_within_the_mapping() {
    assert_eq!(atoms(r(70, 80), 64, 100), r(64, 100));
    assert_eq!(atoms(r(10, 20), 64, 100), r(0, 64));
    assert_eq!(atoms(r(10, 20), 0, 100), r(10, 20), "no atom is an atom of one byte");
}

const ONE: Origin = Origin { queue: 0, submission: 1 };
const TWO: Origin = Origin { queue: 1, submission: 2 };

fn left(hidden: &[(ByteRange, Access)], stale: &[ByteRange]) -> Left {
    Left { hidden: hidden.to_vec(), stale: stale.iter().copied().collect() }
}

fn go(invalidate: &[ByteRange]) -> HostStep {
    HostStep::Go { invalidate: invalidate.to_vec() }
}

#[test]
fn what_is_left_is_what_was_not_shown_or_not_invalidated() {
    let writes = [r(0, 8), r(16, 24)];
    let after = |hidden: &[(ByteRange, Access)], invalidated: &[ByteRange], coherent| {
        Left::after(writes.into_iter(), hidden.to_vec(), invalidated.iter().copied(), coherent)
    };
    assert!(after(&[], &[], true).is_empty(), "shown and coherent");
    assert!(after(&[], &[r(0, 64)], false).is_empty(), "shown and invalidated");
    assert_eq!(after(&[], &[r(0, 8)], false), left(&[], &[r(16, 24)]));
    let hidden = [(r(16, 24), KW)];
    assert_eq!(after(&hidden, &[r(0, 64)], false), left(&hidden, &[r(16, 24)]), "invalidated too early");
    assert_eq!(after(&hidden, &[], true), left(&hidden, &[]));
}

#[test]
fn the_host_is_shown_what_a_submission_hid() {
    let mut view = HostTracker::new(true, 64, 64);
    assert_eq!(view.access(r(0, 64)), go(&[]));
    view.submitted(&left(&[(r(0, 8), KW), (r(8, 16), TW)], &[]), ONE);
    assert_eq!(view.access(r(16, 64)), go(&[]), "nothing is hidden there");
    let shows = |by, src| HostStep::Show { by, barrier: Barrier { src, dst: Access::HOST_READ } };
    assert_eq!(view.access(r(7, 8)), shows(ONE, KW | TW), "one barrier for all of the queue's");
    // Another queue writes before the barrier is over.
    view.submitted(&left(&[(r(4, 6), KW)], &[]), TWO);
    view.shown(ONE);
    assert_eq!(view.access(r(0, 4)), go(&[]));
    assert_eq!(view.access(r(0, 64)), shows(TWO, KW));
    view.shown(TWO);
    assert_eq!(view.access(r(0, 64)), go(&[]));
}

#[test]
fn a_barrier_shows_nothing_that_came_after_it() {
    let mut view = HostTracker::new(true, 1, 64);
    view.submitted(&left(&[(r(0, 8), KW)], &[]), ONE);
    view.submitted(&left(&[(r(0, 4), KW)], &[]), Origin { submission: 3, ..ONE });
    view.shown(ONE);
    assert!(matches!(view.access(r(0, 4)), HostStep::Show { by: Origin { queue: 0, submission: 3 }, .. }));
    assert_eq!(view.access(r(4, 8)), go(&[]));
}

#[test]
fn only_atoms_that_a_device_wrote_are_invalidated_and_once() {
    let mut view = HostTracker::new(false, 16, 100);
    view.submitted(&left(&[], &[r(4, 8), r(12, 13), r(97, 99)]), ONE);
    assert_eq!(view.access(r(20, 30)), go(&[]));
    assert_eq!(view.access(r(0, 100)), go(&[r(0, 16), r(96, 100)]));
    view.refreshed(&[r(0, 16)]);
    assert_eq!(view.access(r(0, 100)), go(&[r(96, 100)]));
    // A byte next to it concerns its atom.
    assert_eq!(view.access(r(99, 100)), go(&[r(96, 100)]));
    assert_eq!(view.written(r(20, 30)), Some(r(16, 32)));
    assert_eq!(HostTracker::new(true, 16, 100).written(r(20, 30)), None);
}

fn exchange(flush: bool, invalidate: bool) -> Exchange {
    Exchange { flush, invalidate }
}

#[test]
fn a_view_is_flushed_what_others_wrote_and_invalidated_what_its_device_wrote() {
    let mut sight = Sight::new(1);
    assert_eq!(sight.access(A, Some(0), r(0, 64), KR), exchange(true, false));
    assert_eq!(sight.access(A, Some(0), r(0, 64), KR), exchange(false, false), "shown already");
    assert_eq!(sight.access(A, Some(0), r(0, 32), KW), exchange(false, true));
    assert_eq!(sight.access(A, Some(1), r(0, 32), KR), exchange(true, false), "each has its own view");
    assert_eq!(sight.access(B, Some(0), r(0, 64), KW), exchange(true, true), "written bytes are flushed too");
    // The host writes.
    assert_eq!(sight.access(A, None, r(8, 9), Access::HOST_WRITE), exchange(false, false));
    assert_eq!(sight.access(A, Some(0), r(9, 32), KR), exchange(false, false));
    assert_eq!(sight.access(A, Some(0), r(0, 32), KR), exchange(true, false));
    assert_eq!(sight.access(A, Some(0), r(8, 8), KW), exchange(false, false), "nothing is touched");
    sight.keep(|memory| *memory == B);
    assert_eq!(sight.access(B, Some(0), r(0, 64), KR), exchange(false, false));
    assert_eq!(sight.access(A, Some(0), r(0, 64), KR), exchange(true, false));
}

#[test]
fn neighbours_in_an_atom_are_not_lost() {
    let mut sight = Sight::new(16);
    sight.access(A, Some(0), r(0, 4), KW);
    sight.access(A, None, r(4, 8), Access::HOST_WRITE);
    // The invalidate to come would bring back what the host had there before.
    assert_eq!(sight.access(A, Some(0), r(0, 4), KW), exchange(true, true));
}

#[test]
fn ranges_are_listed_once() {
    let mut all = Exchanged::new();
    all.add(A, r(0, 16), exchange(true, true));
    all.add(A, r(16, 32), exchange(true, false));
    all.add(A, r(0, 16), exchange(true, true));
    all.add(B, r(0, 16), exchange(false, true));
    all.add(B, r(32, 48), exchange(false, false));
    assert_eq!(all.flush().collect::<Vec<_>>(), [(A, r(0, 32))]);
    assert_eq!(all.invalidate().collect::<Vec<_>>(), [(A, r(0, 16)), (B, r(0, 16))]);
}
