//! Host and device against a model of values: a device domain, memory, and a host cache of atoms.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const BYTES: usize = 24;
const ATOM: u64 = 8;

#[derive(Clone, Copy, Debug)]
enum Op {
    DeviceWrite(usize, ByteRange),
    DeviceRead(usize, ByteRange),
    /// A recording that writes, and perhaps shows the host what there is.
    Replay(usize, ByteRange, bool),
    Submit,
    Finish(usize, ByteRange),
    /// Waits for the oldest submission; the device may have run ahead with the younger ones.
    WaitOne(bool),
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

/// One submission: what the device does, and what the host does once it is complete.
#[derive(Default)]
struct Work {
    queued: Vec<Queued>,
    invalidates: Vec<(ResourceId, ByteRange)>,
}

struct Machine {
    tracker: Tracker,
    resources: Vec<Copies>,
    recorded: Work,
    running: VecDeque<Work>,
    done: u64,
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
        Machine { tracker, resources, recorded: Work::default(), running: VecDeque::new(), done: 0, stamp: 0 }
    }

    fn invalidate(&mut self, resource: usize, range: ByteRange) {
        assert!(range.end as usize <= BYTES && range.start.is_multiple_of(ATOM));
        let copies = &mut self.resources[resource];
        copies.host[span(range)].copy_from_slice(&copies.memory[span(range)]);
    }

    /// Completes the oldest submission, then does its invalidates the way the contract asks.
    fn wait_one(&mut self, run_ahead: bool) {
        self.run(0);
        for younger in 1..if run_ahead { self.running.len() } else { 0 } {
            self.run(younger);
        }
        let Some(work) = self.running.pop_front() else { return };
        for (id, range) in work.invalidates {
            self.invalidate(id.0 as usize, range);
        }
        self.done += 1;
        self.tracker.completed(self.done);
    }

    fn run(&mut self, submission: usize) {
        let Some(work) = self.running.get_mut(submission) else { return };
        for queued in std::mem::take(&mut work.queued) {
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
    }

    fn wait(&mut self) {
        while !self.running.is_empty() {
            self.wait_one(false);
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
        self.running.push_back(std::mem::take(&mut self.recorded));
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::DeviceWrite(id, range) => {
                self.stamp += 1;
                self.tracker.command(&[Touch::new(ResourceId(id as u32), range, KW)]);
                self.recorded.queued.push(Queued::Write(id, range, self.stamp));
            }
            Op::DeviceRead(id, range) => {
                self.tracker.command(&[Touch::new(ResourceId(id as u32), range, KR)]);
                self.recorded.queued.push(Queued::Read(id, range));
            }
            Op::Replay(id, range, shows) => {
                self.stamp += 1;
                let touches = [Touch::new(ResourceId(id as u32), range, KW)];
                let show = Step::Barrier(Barrier { src: KW, dst: Access::HOST_READ });
                let steps = [Step::Command(&touches), show];
                self.tracker.replay(&Footprint::of(&steps[..1 + usize::from(shows)]));
                self.recorded.queued.push(Queued::Write(id, range, self.stamp));
                self.recorded.queued.extend(shows.then_some(Queued::ShowHost));
            }
            Op::Submit => self.submit(),
            Op::Finish(id, range) => {
                let finish = self.tracker.finish(&[(ResourceId(id as u32), range)]);
                self.recorded.queued.extend(finish.barrier.map(|_| Queued::ShowHost));
                self.recorded.invalidates.extend(finish.invalidate);
            }
            Op::WaitOne(run_ahead) => self.wait_one(run_ahead),
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
    (0..12u8, 0..2usize, range, any::<bool>()).prop_map(|(kind, id, range, flag)| match kind {
        0 => Op::DeviceWrite(id, range),
        1 => Op::DeviceRead(id, range),
        2 => Op::Submit,
        3 => Op::Finish(id, range),
        4 => Op::Wait,
        5 | 6 => Op::HostWrite(id, range),
        7 => Op::Replay(id, range, flag),
        8 | 9 => Op::WaitOne(flag),
        _ => Op::HostRead(id, range),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 3000 }))]

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
