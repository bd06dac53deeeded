//! Directed cases with exact counts, and random programs against naive models of a device.
//!
//! The models are written from the specification's rules, byte by byte and pair by pair, and share no
//! code with the tracker.

use proptest::prelude::*;

use super::*;

const A: ResourceId = ResourceId(1);
const B: ResourceId = ResourceId(2);
const C: ResourceId = ResourceId(3);

const KR: Access = Access::KERNEL_READ;
const KW: Access = Access::KERNEL_WRITE;
const TR: Access = Access::TRANSFER_READ;
const TW: Access = Access::TRANSFER_WRITE;

fn r(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end)
}

fn touch(resource: ResourceId, access: Access) -> Touch {
    Touch::new(resource, r(0, 64), access)
}

/// Counts the barriers of commands recorded in order.
fn barriers(commands: &[&[Touch]]) -> Vec<usize> {
    let mut tracker = Tracker::new();
    commands.iter().enumerate().filter_map(|(at, touches)| tracker.command(touches).map(|_| at)).collect()
}

mod directed {
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
}

/// Device commands against a model that knows only pairs of accesses to one byte.
mod ordering {
    use super::*;

    const BYTES: u64 = 12;
    const RESOURCES: u32 = 3;

    #[derive(Clone, Debug)]
    enum Item {
        Command(Vec<Touch>),
        Barrier(Barrier),
    }

    /// What one earlier access to a byte still owes to later ones.
    #[derive(Clone)]
    struct Past {
        kind: Access,
        /// Kinds of later accesses that are ordered behind it, and see it if it is a write.
        safe_for: Access,
    }

    /// Whether the stage of one kind is among the stages of others; written out, not computed.
    fn stage_in(kind: Access, mask: Access) -> bool {
        [(KR, KW), (TR, TW)].iter().any(|(read, write)| {
            (kind == *read || kind == *write) && (mask.contains(*read) || mask.contains(*write))
        })
    }

    /// Whether every pair of conflicting accesses is ordered; bytes are `resource * BYTES + offset`.
    fn is_sound(items: &[Item]) -> bool {
        let mut past: Vec<Vec<Past>> = vec![Vec::new(); (BYTES * u64::from(RESOURCES)) as usize];
        for item in items {
            match item {
                Item::Barrier(barrier) => {
                    for access in past.iter_mut().flatten() {
                        let writes = access.kind == KW || access.kind == TW;
                        if writes && barrier.src.contains(access.kind) {
                            access.safe_for |= barrier.dst;
                        }
                        if !writes && stage_in(access.kind, barrier.src) {
                            for later in [KR, KW, TR, TW] {
                                if stage_in(later, barrier.dst) {
                                    access.safe_for |= later;
                                }
                            }
                        }
                    }
                }
                Item::Command(touches) => {
                    for (byte, kind) in bytes_of(touches) {
                        let writes = kind == KW || kind == TW;
                        let races = past[byte].iter().any(|earlier| {
                            let conflict = writes || earlier.kind == KW || earlier.kind == TW;
                            conflict && !earlier.safe_for.contains(kind)
                        });
                        if races {
                            return false;
                        }
                    }
                    for (byte, kind) in bytes_of(touches) {
                        past[byte].push(Past { kind, safe_for: Access::NONE });
                    }
                }
            }
        }
        true
    }

    fn bytes_of(touches: &[Touch]) -> Vec<(usize, Access)> {
        let mut found = Vec::new();
        for touch in touches {
            for byte in touch.range.start..touch.range.end {
                for kind in [KR, KW, TR, TW] {
                    if touch.access.contains(kind) {
                        found.push(((u64::from(touch.resource.0) * BYTES + byte) as usize, kind));
                    }
                }
            }
        }
        found
    }

    /// The fewest barriers that separate every conflicting pair, by trying all last positions.
    fn fewest_barriers(commands: &[Vec<Touch>]) -> usize {
        let conflict = |a: &[Touch], b: &[Touch]| {
            let (a, b) = (bytes_of(a), bytes_of(b));
            a.iter().any(|(byte, kind)| {
                b.iter().any(|(other, later)| {
                    byte == other && [kind, later].iter().any(|kind| **kind == KW || **kind == TW)
                })
            })
        };
        // best[n]: barriers needed in front of commands 0..n, the last group ending at n.
        let mut best = vec![0; commands.len() + 1];
        for end in 1..=commands.len() {
            best[end] = (0..end)
                .filter(|start| {
                    (*start..end).all(|i| (i + 1..end).all(|j| !conflict(&commands[i], &commands[j])))
                })
                .map(|start| best[start] + usize::from(start > 0))
                .min()
                .unwrap_or(usize::MAX);
        }
        best[commands.len()]
    }

    fn record(commands: &[Vec<Touch>]) -> Vec<Item> {
        let mut tracker = Tracker::new();
        let mut items = Vec::new();
        for touches in commands {
            items.extend(tracker.command(touches).map(Item::Barrier));
            items.push(Item::Command(touches.clone()));
        }
        items
    }

    fn steps(items: &[Item]) -> Vec<Step<'_>> {
        items
            .iter()
            .map(|item| match item {
                Item::Command(touches) => Step::Command(touches),
                Item::Barrier(barrier) => Step::Barrier(*barrier),
            })
            .collect()
    }

    fn commands(most: usize) -> impl Strategy<Value = Vec<Vec<Touch>>> {
        let access = prop::sample::select(vec![KR, KW, TR, TW, KR | KW]);
        let touch = (0..RESOURCES, 0..BYTES, 0..BYTES, access)
            .prop_map(|(id, start, end, access)| Touch::new(ResourceId(id), r(start, end), access));
        prop::collection::vec(prop::collection::vec(touch, 0..4), 0..most)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 8000 }))]

        #[test]
        fn every_hazard_is_covered_with_the_fewest_barriers(commands in commands(14)) {
            let items = record(&commands);
            prop_assert!(is_sound(&items));
            let positions: Vec<_> =
                items.iter().enumerate().filter(|(_, i)| matches!(i, Item::Barrier(_))).map(|(at, _)| at).collect();
            for at in &positions {
                let mut without = items.clone();
                without.remove(*at);
                prop_assert!(!is_sound(&without), "the barrier at {} is not needed", at);
            }
            prop_assert_eq!(positions.len(), fewest_barriers(&commands));
        }

        #[test]
        fn replays_are_ordered_by_the_seam_and_only_where_needed(commands in commands(8)) {
            let items = record(&commands);
            let seam = opening_barrier(&steps(&items));
            let repeated = |head: Option<Barrier>| {
                let one = head.map(Item::Barrier).into_iter().chain(items.iter().cloned()).collect::<Vec<_>>();
                [one.clone(), one.clone(), one].concat()
            };
            prop_assert!(is_sound(&repeated(seam)));
            prop_assert_eq!(seam.is_some(), !is_sound(&repeated(None)));
        }

        #[test]
        fn recordings_one_behind_another_are_ordered(programs in prop::collection::vec(commands(5), 1..5)) {
            let mut tracker = Tracker::new();
            let mut all: Vec<Item> = Vec::new();
            for commands in &programs {
                let items = record(commands);
                let barrier = tracker.replay(&Footprint::of(&steps(&items)));
                let mut without = all.clone();
                without.extend(items.iter().cloned());
                prop_assert_eq!(barrier.is_some(), !is_sound(&without));
                all.extend(barrier.map(Item::Barrier));
                all.extend(items);
                tracker.submit();
            }
            prop_assert!(is_sound(&all));
        }
    }
}

/// Host and device against a model of values: a device domain, memory, and a host cache of atoms.
mod values {
    use super::*;

    const BYTES: usize = 24;
    const ATOM: u64 = 8;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        DeviceWrite(usize, ByteRange),
        DeviceRead(usize, ByteRange),
        Submit,
        Finish(usize, ByteRange),
        Wait,
        HostWrite(usize, ByteRange),
        HostRead(usize, ByteRange),
    }

    #[derive(Clone, Copy, Debug)]
    enum Queued {
        Write(usize, ByteRange, u32),
        Read(usize, ByteRange),
        ShowHost,
    }

    /// One resource: what the device, the memory and the host hold, and what is true.
    #[derive(Clone)]
    struct Copies {
        coherent: bool,
        device: [u32; BYTES],
        memory: [u32; BYTES],
        host: [u32; BYTES],
        truth: [u32; BYTES],
    }

    fn span(range: ByteRange) -> std::ops::Range<usize> {
        range.start as usize..range.end as usize
    }

    struct Machine {
        tracker: Tracker,
        resources: Vec<Copies>,
        recorded: Vec<Queued>,
        running: Vec<Queued>,
        invalidates: Vec<(ResourceId, ByteRange)>,
        running_invalidates: Vec<(ResourceId, ByteRange)>,
        stamp: u32,
    }

    impl Machine {
        fn new() -> Machine {
            let mut tracker = Tracker::new();
            let mut resources = Vec::new();
            for (id, coherent) in [(0, false), (1, true)] {
                tracker.declare(ResourceId(id), HostMemory { coherent, atom: ATOM, bytes: BYTES as u64 });
                let zero = [0; BYTES];
                resources.push(Copies { coherent, device: zero, memory: zero, host: zero, truth: zero });
            }
            Machine {
                tracker,
                resources,
                recorded: Vec::new(),
                running: Vec::new(),
                invalidates: Vec::new(),
                running_invalidates: Vec::new(),
                stamp: 0,
            }
        }

        fn invalidate(&mut self, resource: usize, range: ByteRange) {
            assert!(range.end as usize <= BYTES && range.start.is_multiple_of(ATOM));
            let copies = &mut self.resources[resource];
            copies.host[span(range)].copy_from_slice(&copies.memory[span(range)]);
        }

        /// Runs what was submitted, then does the invalidates the way the contract asks.
        fn wait(&mut self) {
            for queued in std::mem::take(&mut self.running) {
                match queued {
                    Queued::Write(id, range, stamp) => {
                        self.resources[id].device[span(range)].fill(stamp);
                        self.resources[id].truth[span(range)].fill(stamp);
                    }
                    Queued::Read(id, range) => {
                        let copies = &self.resources[id];
                        assert_eq!(copies.device[span(range)], copies.truth[span(range)], "device read");
                    }
                    Queued::ShowHost => {
                        for copies in &mut self.resources {
                            copies.memory = copies.device;
                            if copies.coherent {
                                copies.host = copies.memory;
                            }
                        }
                    }
                }
            }
            for (id, range) in std::mem::take(&mut self.running_invalidates) {
                self.invalidate(id.0 as usize, range);
            }
            self.tracker.waited();
        }

        /// Host bytes reach the device at a submit: everything coherent, and what is flushed.
        fn submit(&mut self) {
            let flushes = self.tracker.submit();
            for (id, range) in flushes {
                let copies = &mut self.resources[id.0 as usize];
                assert!(!copies.coherent && range.start.is_multiple_of(ATOM));
                let bytes = copies.host;
                copies.memory[span(range)].copy_from_slice(&bytes[span(range)]);
                copies.device[span(range)].copy_from_slice(&bytes[span(range)]);
            }
            self.running.append(&mut self.recorded);
            self.running_invalidates.append(&mut self.invalidates);
        }

        fn step(&mut self, op: Op) {
            match op {
                Op::DeviceWrite(id, range) => {
                    self.stamp += 1;
                    self.tracker.command(&[Touch::new(ResourceId(id as u32), range, KW)]);
                    self.recorded.push(Queued::Write(id, range, self.stamp));
                }
                Op::DeviceRead(id, range) => {
                    self.tracker.command(&[Touch::new(ResourceId(id as u32), range, KR)]);
                    self.recorded.push(Queued::Read(id, range));
                }
                Op::Submit => self.submit(),
                Op::Finish(id, range) => {
                    let finish = self.tracker.finish(&[(ResourceId(id as u32), range)]);
                    self.recorded.extend(finish.barrier.map(|_| Queued::ShowHost));
                    self.invalidates.extend(finish.invalidate);
                }
                Op::Wait => self.wait(),
                Op::HostWrite(id, range) => {
                    let Ok(invalidate) = self.tracker.host_write(ResourceId(id as u32), range) else {
                        return;
                    };
                    invalidate.into_iter().for_each(|range| self.invalidate(id, range));
                    self.stamp += 1;
                    let stamp = self.stamp;
                    let copies = &mut self.resources[id];
                    copies.host[span(range)].fill(stamp);
                    copies.truth[span(range)].fill(stamp);
                    if copies.coherent {
                        copies.memory[span(range)].fill(stamp);
                        copies.device[span(range)].fill(stamp);
                    }
                }
                Op::HostRead(id, range) => {
                    let Ok(invalidate) = self.tracker.host_read(ResourceId(id as u32), range) else { return };
                    invalidate.into_iter().for_each(|range| self.invalidate(id, range));
                    let copies = &self.resources[id];
                    assert_eq!(copies.host[span(range)], copies.truth[span(range)], "host read");
                }
            }
        }
    }

    fn op() -> impl Strategy<Value = Op> {
        let range =
            (0..BYTES as u64, 1..10u64).prop_map(|(start, len)| r(start, (start + len).min(BYTES as u64)));
        (0..9u8, 0..2usize, range).prop_map(|(kind, id, range)| match kind {
            0 => Op::DeviceWrite(id, range),
            1 => Op::DeviceRead(id, range),
            2 => Op::Submit,
            3 => Op::Finish(id, range),
            4 => Op::Wait,
            5 | 6 => Op::HostWrite(id, range),
            _ => Op::HostRead(id, range),
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 60000 }))]

        /// Whatever the host is allowed to do, every read gives the latest value: no flush, invalidate,
        /// barrier or refusal is missing, and no rounding destroys a neighbour.
        #[test]
        fn every_read_gives_the_latest_bytes(ops in prop::collection::vec(op(), 1..60)) {
            let mut machine = Machine::new();
            ops.into_iter().for_each(|op| machine.step(op));
        }

        /// After record, finish, submit and wait the host may read and write everything it named.
        #[test]
        fn the_straight_way_is_never_refused(runs in prop::collection::vec((0..BYTES as u64, 1..10u64), 1..6)) {
            let mut machine = Machine::new();
            for (start, len) in runs {
                let range = r(start, (start + len).min(BYTES as u64));
                for id in 0..2 {
                    machine.tracker.host_write(ResourceId(id), range).unwrap();
                    machine.step(Op::DeviceRead(id as usize, range));
                    machine.step(Op::DeviceWrite(id as usize, range));
                    machine.step(Op::Finish(id as usize, range));
                }
                machine.step(Op::Submit);
                machine.step(Op::Wait);
                for id in 0..2 {
                    prop_assert_eq!(machine.tracker.host_read(ResourceId(id), range), Ok(vec![]));
                }
            }
        }
    }
}
