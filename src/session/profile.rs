//! Times of single operators on their devices.

use super::binding::Binding;
use super::error::Error;
use crate::ops::Cost;

/// The time of one operator in one run.
#[derive(Clone, Debug, serde::Serialize)]
pub struct NodeTime {
    /// The node's name.
    pub name: String,
    /// Its operator.
    pub op: &'static str,
    /// The device it ran on.
    pub device: u32,
    /// Device time in nanoseconds.
    pub nanos: u64,
    /// What it costs.
    pub cost: Cost,
}

/// The times of one run, operator by operator.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Profile {
    /// Operators in the order they ran.
    pub nodes: Vec<NodeTime>,
    /// From the first command's start to the last one's end, summed over segments, in nanoseconds.
    pub device_nanos: u64,
    /// From submission to the end of the wait, in nanoseconds.
    pub host_nanos: u64,
}

impl Profile {
    /// Time by operator name, longest first: (operator, how many, nanoseconds).
    pub fn by_op(&self) -> Vec<(&'static str, usize, u64)> {
        let mut sums: std::collections::BTreeMap<&'static str, (usize, u64)> = Default::default();
        for n in &self.nodes {
            let sum = sums.entry(n.op).or_default();
            sum.0 += 1;
            sum.1 += n.nanos;
        }
        let mut rows: Vec<_> = sums.into_iter().map(|(op, (n, t))| (op, n, t)).collect();
        rows.sort_by_key(|r| (std::cmp::Reverse(r.2), r.0));
        rows
    }
}

impl Binding<'_> {
    /// Runs once with a timestamp around every operator. Timestamps wait for what came before, so operators
    /// that would overlap run one after the other.
    ///
    /// # Errors
    /// As [`Binding::run`].
    pub fn profile(&mut self) -> Result<Profile, Error> {
        // What the run leaves in the caller's memory is that of an ordinary run.
        self.run()?;
        let shared = self.inner.options.arena.clone();
        let turn = shared.as_deref().map(|arena| arena.turn());
        let _turn = turn.map(|turn| self.enter(turn)).transpose()?;
        let mut profile = Profile::default();
        let plan = self.compiled.plan.clone();
        for (s, segment) in plan.segments.iter().enumerate() {
            let mut nodes = Vec::new();
            let recording = self.record(&plan, s, Some(&mut nodes))?;
            let queue = &self.inner.devices[segment.device as usize].queue;
            let start = std::time::Instant::now();
            let event = queue.submit(recording)?;
            event.wait()?;
            profile.host_nanos += start.elapsed().as_nanos() as u64;
            let times = event.timestamps()?;
            let Some((first, last)) = times.first().zip(times.last()) else { continue };
            profile.device_nanos += last.saturating_sub(*first);
            for (pair, node) in times.windows(2).zip(&nodes) {
                let Some(report) = plan.report.nodes.get(*node as usize) else { continue };
                profile.nodes.push(NodeTime {
                    name: report.name.clone(),
                    op: report.op,
                    device: segment.device,
                    nanos: pair[1].saturating_sub(pair[0]),
                    cost: report.cost,
                });
            }
        }
        Ok(profile)
    }
}
