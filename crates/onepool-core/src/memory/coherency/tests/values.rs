//! Host and devices against models of values: what each of them has in its own view.

use proptest::prelude::*;

use super::*;

const BYTES: usize = 24;
const ATOM: u64 = 8;

fn span(range: ByteRange) -> std::ops::Range<usize> {
    range.start as usize..range.end as usize
}

fn ranges() -> impl Strategy<Value = ByteRange> {
    (0..BYTES as u64, 1..10u64).prop_map(|(start, len)| r(start, (start + len).min(BYTES as u64)))
}

/// One memory that host and two devices have a view of each.
struct Views {
    host: [u32; BYTES],
    device: [[u32; BYTES]; 2],
    truth: [u32; BYTES],
    stamp: u32,
}

/// What one party does in one submission: the host or a native function is no view.
type Segment = (Option<u32>, Vec<(ByteRange, bool)>);

impl Views {
    fn new() -> Views {
        Views { host: [0; BYTES], device: [[0; BYTES]; 2], truth: [0; BYTES], stamp: 0 }
    }

    fn segment(&mut self, (view, accesses): &Segment, sight: &mut Sight<ResourceId>) {
        let mut all = Exchanged::new();
        for (range, writes) in accesses {
            let kinds = if *writes { KW } else { KR };
            all.add(A, atoms(*range, ATOM, BYTES as u64), sight.access(A, *view, *range, kinds));
        }
        if view.is_none() {
            assert_eq!(all.flush().chain(all.invalidate()).count(), 0);
        }
        for (_, range) in all.flush() {
            let device = &mut self.device[view.unwrap() as usize];
            device[span(range)].copy_from_slice(&self.host[span(range)]);
        }
        for (range, writes) in accesses {
            let bytes = match view {
                Some(view) => &mut self.device[*view as usize],
                None => &mut self.host,
            };
            if *writes {
                self.stamp += 1;
                bytes[span(*range)].fill(self.stamp);
                self.truth[span(*range)].fill(self.stamp);
            } else {
                assert_eq!(bytes[span(*range)], self.truth[span(*range)], "read through {view:?}");
            }
        }
        for (_, range) in all.invalidate() {
            let device = &self.device[view.unwrap() as usize];
            self.host[span(range)].copy_from_slice(&device[span(range)]);
        }
    }
}

fn segments() -> impl Strategy<Value = Vec<Segment>> {
    let access = (ranges(), any::<bool>());
    let view = prop::sample::select(vec![None, Some(0), Some(0), Some(1)]);
    prop::collection::vec((view, prop::collection::vec(access, 0..4)), 1..12)
}

/// What happens to one mapped memory.
#[derive(Clone, Debug)]
enum Op {
    /// A submission on a queue: its writes, after how many of them a barrier shows the host, and whether it ends by
    /// invalidating what it wrote.
    Submit(usize, Vec<ByteRange>, Option<usize>, bool),
    HostRead(ByteRange),
    HostWrite(ByteRange),
}

/// One memory of which the host has a view, and what was made available of it.
struct Mapped {
    view: HostTracker,
    coherent: bool,
    device: [u32; BYTES],
    /// The queue that wrote last.
    by: [usize; BYTES],
    shown: [u32; BYTES],
    host: [u32; BYTES],
    stamp: u32,
    submissions: u64,
}

const SHOW: Barrier = Barrier { src: Access::DEVICE_WRITE, dst: Access::HOST_READ };

impl Mapped {
    fn new(coherent: bool) -> Mapped {
        let view = HostTracker::new(coherent, ATOM, BYTES as u64);
        let zero = [0; BYTES];
        let by = [0; BYTES];
        Mapped { view, coherent, device: zero, by, shown: zero, host: zero, stamp: 0, submissions: 0 }
    }

    /// A barrier on `queue` makes its writes visible to the host's side of the memory.
    fn show(&mut self, queue: usize) {
        for at in (0..BYTES).filter(|at| self.by[*at] == queue) {
            self.shown[at] = self.device[at];
            if self.coherent {
                self.host[at] = self.shown[at];
            }
        }
    }

    fn invalidate(&mut self, range: ByteRange) {
        assert!(!self.coherent && range.start.is_multiple_of(ATOM));
        self.host[span(range)].copy_from_slice(&self.shown[span(range)]);
    }

    fn submit(&mut self, queue: usize, writes: &[ByteRange], shows: Option<usize>, invalidates: bool) {
        self.submissions += 1;
        let mut unseen = Unseen::default();
        for (i, range) in writes.iter().enumerate() {
            if shows == Some(i) {
                unseen.barrier(SHOW);
                self.show(queue);
            }
            unseen.command(&[Touch::new(A, *range, KW)]);
            self.stamp += 1;
            self.device[span(*range)].fill(self.stamp);
            self.by[span(*range)].fill(queue);
        }
        let named = writes.iter().map(|range| atoms(*range, ATOM, BYTES as u64));
        let invalidated: Vec<_> = named.filter(|_| invalidates && !self.coherent).collect();
        invalidated.iter().for_each(|range| self.invalidate(*range));
        let left = Left::after(
            writes.iter().copied(),
            unseen.of(A).collect(),
            invalidated.into_iter(),
            self.coherent,
        );
        self.view.submitted(&left, Origin { queue, submission: self.submissions });
    }

    /// What the host does before it touches `range`.
    fn access(&mut self, range: ByteRange) {
        loop {
            match self.view.access(range) {
                HostStep::Show { by, barrier } => {
                    assert!(barrier.src.contains(KW) && barrier.dst == Access::HOST_READ);
                    self.show(by.queue);
                    self.view.shown(by);
                }
                HostStep::Go { invalidate } => {
                    invalidate.iter().for_each(|range| self.invalidate(*range));
                    self.view.refreshed(&invalidate);
                    return;
                }
            }
        }
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Submit(queue, writes, shows, invalidates) => {
                self.submit(*queue, writes, *shows, *invalidates);
            }
            Op::HostRead(range) => {
                self.access(*range);
                assert_eq!(self.host[span(*range)], self.device[span(*range)], "host read");
            }
            Op::HostWrite(range) => {
                self.access(*range);
                self.stamp += 1;
                self.host[span(*range)].fill(self.stamp);
                let flushed = self.view.written(*range).unwrap_or(*range);
                for bytes in [&mut self.shown, &mut self.device] {
                    bytes[span(flushed)].copy_from_slice(&self.host[span(flushed)]);
                }
            }
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    let submit =
        (0..2usize, prop::collection::vec(ranges(), 0..4), prop::option::of(0..4usize), any::<bool>());
    prop_oneof![
        2 => submit.prop_map(|(queue, writes, shows, ends)| Op::Submit(queue, writes, shows, ends)),
        1 => ranges().prop_map(Op::HostRead),
        1 => ranges().prop_map(Op::HostWrite),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 3000 }))]

    /// Whoever reads, through whichever view, reads the latest bytes, run after run: no flush and no invalidate is
    /// missing, and none destroys a neighbour.
    #[test]
    fn every_view_shows_the_latest_bytes(
        segments in segments(),
        private in any::<bool>(),
        between in prop::collection::vec(ranges(), 0..3),
    ) {
        let mut views = Views::new();
        let mut sight = Sight::new(ATOM);
        for _ in 0..3 {
            for segment in &segments {
                views.segment(segment, &mut sight);
                prop_assert_eq!(views.host, views.truth, "the host, after a segment");
            }
            if !private {
                for range in &between {
                    views.stamp += 1;
                    views.host[span(*range)].fill(views.stamp);
                    views.truth[span(*range)].fill(views.stamp);
                }
            }
            sight.keep(|_| private);
        }
    }

    /// Whatever submissions did not show or did not invalidate, the host's guards make up for.
    #[test]
    fn the_host_reads_the_latest_bytes(ops in prop::collection::vec(op(), 1..30), coherent in any::<bool>()) {
        let mut mapped = Mapped::new(coherent);
        ops.iter().for_each(|op| mapped.step(op));
    }
}
