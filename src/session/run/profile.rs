//! Profiles: the times of single operators on their devices.

use std::collections::BTreeMap;
use std::time::Instant;

use super::reads::Reads;
use super::segments::run_segments;
use crate::kernel;
use crate::ops::Cost;
use crate::plan::Plan;
use crate::session::bind::binding::Binding;
use crate::session::bind::launch::Started;
use crate::session::core::cancel::{CancelToken, Watch};
use crate::session::core::pieces::time_nodes;
use crate::session::error::Error;

/// The time of one operator in one run.
#[derive(Clone, Debug, serde::Serialize)]
pub struct NodeTime {
    /// Name of the node.
    pub name: String,
    /// Name of the operator.
    pub op: &'static str,
    /// Entry of the device table that ran it.
    pub device: u32,
    /// When it began, in nanoseconds from the run's start. Exact among the operators of one segment; the host's
    /// clock places the segments.
    pub begin_nanos: u64,
    /// Device time in nanoseconds.
    pub nanos: u64,
    /// Cost of the operator.
    pub cost: Cost,
}

/// When one segment of the plan ran, by the host's clock in nanoseconds from the run's start.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct SegmentTime {
    /// Entry of the device table.
    pub device: u32,
    /// When it was submitted.
    pub begin_nanos: u64,
    /// When the host saw its end.
    pub end_nanos: u64,
}

impl SegmentTime {
    /// Whether the two ran in parallel for some time.
    pub fn overlaps(&self, other: &SegmentTime) -> bool {
        self.begin_nanos < other.end_nanos && other.begin_nanos < self.end_nanos
    }
}

/// The times of one run, operator by operator.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Profile {
    /// Operators in the order of the plan, where their device has a clock.
    pub nodes: Vec<NodeTime>,
    /// The segments of the plan, in order.
    pub segments: Vec<SegmentTime>,
    /// From the first command's start to the last one's end, summed over segments, in nanoseconds.
    pub device_nanos: u64,
    /// From submission to the end of the wait, in nanoseconds.
    pub host_nanos: u64,
    /// Bytes of inputs, outputs and tensors between devices that are copied in each run.
    pub bytes_moved: u64,
    /// Bytes of such tensors that are accessed in place.
    pub bytes_not_moved: u64,
}

impl Profile {
    /// Time by operator name, longest first: (operator, how many, nanoseconds).
    pub fn by_op(&self) -> Vec<(&'static str, usize, u64)> {
        let mut sums: BTreeMap<&'static str, (usize, u64)> = Default::default();
        for n in &self.nodes {
            let sum = sums.entry(n.op).or_default();
            sum.0 += 1;
            sum.1 += n.nanos;
        }
        let mut rows: Vec<_> = sums.into_iter().map(|(op, (n, t))| (op, n, t)).collect();
        rows.sort_by_key(|r| (std::cmp::Reverse(r.2), r.0));
        rows
    }

    /// Adds the segments of `plan` and their nodes.
    fn add_segments(&mut self, plan: &Plan, measured: &[MeasuredSegment]) {
        // Offset from each device's clock to the host's: no work ends after the host sees its end.
        let mut ahead: BTreeMap<u32, i128> = BTreeMap::new();
        for (segment, measured) in plan.segments.iter().zip(measured) {
            let Some(last) = measured.ticks.last() else { continue };
            let by = i128::from(measured.end) - i128::from(*last);
            ahead.entry(segment.device).and_modify(|least| *least = by.min(*least)).or_insert(by);
        }
        for (segment, measured) in plan.segments.iter().zip(measured) {
            let (device, begin_nanos, ticks) = (segment.device, measured.begin, &measured.ticks);
            self.segments.push(SegmentTime { device, begin_nanos, end_nanos: measured.end });
            let Some((&first, &last)) = ticks.first().zip(ticks.last()) else { continue };
            self.device_nanos += last.saturating_sub(first);
            let by = ahead.get(&device).copied().unwrap_or(0);
            // The segment may have waited in the queue.
            let began = u64::try_from(i128::from(first) + by).unwrap_or(0).max(begin_nanos);
            let mut last_node = None;
            for (pair, node) in ticks.windows(2).zip(&measured.nodes) {
                let Some(report) = node.and_then(|node| plan.report.nodes.get(node as usize)) else {
                    continue;
                };
                let nanos = pair[1].saturating_sub(pair[0]);
                // A node that continues in the next piece.
                if let Some(time) = self.nodes.last_mut().filter(|_| last_node == Some(*node)) {
                    time.nanos += nanos;
                    continue;
                }
                last_node = Some(*node);
                self.nodes.push(NodeTime {
                    name: report.name.clone(),
                    op: report.op,
                    device,
                    begin_nanos: began + pair[0].saturating_sub(first),
                    nanos,
                    cost: report.cost,
                });
            }
        }
    }
}

/// Times of one segment: begin and end by the host's clock, in nanoseconds from the start of the run.
struct MeasuredSegment {
    begin: u64,
    end: u64,
    /// Timestamps of the device in nanoseconds; empty where it has no clock.
    ticks: Vec<u64>,
    /// The node after each timestamp.
    nodes: Vec<Option<u32>>,
}

impl Binding<'_> {
    /// Runs once with a timestamp around every operator. A timestamp waits for earlier commands, so operators of one
    /// device run in sequence; devices run in parallel as in any run.
    ///
    /// # Errors
    /// As [`Binding::run`].
    pub fn profile(&mut self) -> Result<Profile, Error> {
        // The caller's memory gets the results of an ordinary run.
        self.run()?;
        let shared = self.core.options.arena.clone();
        let turn = shared.as_deref().map(|arena| arena.turn());
        let _turn = turn.map(|turn| self.enter_arena(turn)).transpose()?;
        let mut profile = Profile::default();
        (profile.bytes_moved, profile.bytes_not_moved) = self.bytes_moved();
        let plan = self.ordered_plan()?;
        let host = self.host_ranges(&plan);
        let mut nodes: Vec<Vec<Option<u32>>> = vec![Vec::new(); plan.segments.len()];
        let devices = &self.core.devices;
        let mut recordings = Vec::new();
        for (s, segment) in plan.segments.iter().enumerate() {
            if segment.by_session {
                recordings.push(None);
                continue;
            }
            let mut labelled = self.record(&plan, s, &host[s])?;
            let mut cut = self.cut(&mut labelled, &plan, s).unwrap_or_default();
            nodes[s] = time_nodes(&mut labelled, &mut cut);
            let queue = &devices[segment.device as usize].queue;
            recordings.push(Some(kernel::prepare(queue, labelled.recording, &cut.starts)?));
        }
        let start = Instant::now();
        let ticket = self.core.queue.enqueue(self.segments.iter().map(|launch| &launch.footprint));
        let watch = Watch::new(self.core.options.run.clone(), CancelToken::new());
        let traces = run_segments(
            &self.segments,
            &ticket,
            (&watch, &Reads::default()),
            &|| self.core.drop_idle_plans(),
            |s| match &recordings[s] {
                Some(recording) => {
                    Ok(Started::Pieces(devices[plan.segments[s].device as usize].queue.begin(recording)?))
                }
                None => self.segments[s].begin(devices),
            },
        )?;
        profile.host_nanos = start.elapsed().as_nanos() as u64;
        let since = |at: Instant| at.saturating_duration_since(start).as_nanos() as u64;
        let times: Vec<(u64, u64)> = (traces.iter())
            .map(|trace| trace.times.map_or((0, 0), |(begin, end)| (since(begin), since(end))))
            .collect();
        // The timestamps of all pieces in order; empty where the device has no clock.
        let mut ticks: Vec<Vec<u64>> = Vec::with_capacity(traces.len());
        for trace in &traces {
            let mut all = Vec::new();
            for event in &trace.events {
                all.extend(event.timestamps()?);
            }
            ticks.push(all);
        }
        let measured = times.into_iter().zip(ticks).zip(nodes);
        let measured: Vec<MeasuredSegment> = measured
            .map(|(((begin, end), ticks), nodes)| MeasuredSegment { begin, end, ticks, nodes })
            .collect();
        profile.add_segments(&plan, &measured);
        Ok(profile)
    }

    /// Bytes of inputs, outputs and tensors between devices: those that each run copies, and those accessed in place.
    pub fn bytes_moved(&self) -> (u64, u64) {
        let verdicts = self.verdicts().map(|v| {
            let copies = v.path.copies_on_cpu() || v.copies_on_device();
            (if copies { v.bytes } else { 0 }, v.bytes)
        });
        let crossings = self.plan().report.crossings.iter().map(|c| (c.copied(), c.bytes));
        verdicts.chain(crossings).fold((0, 0), |(moved, kept), (copied, bytes)| {
            (moved + copied, kept + bytes.saturating_sub(copied))
        })
    }
}
