//! Choice of kernels by measurement: what was measured on a device is kept, and later plans take it.

mod decide;
mod file;
mod measure;
mod report;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use self::report::{TunedChoice, TuningReport};

use self::decide::{Clock, Outcome, decide};
use self::file::{Kept, Measured, TuningFile};
use self::measure::{Bench, Measurable};
use crate::backend::DeviceInfo;
use crate::graph::{Graph, Tensor, TensorInfo};
use crate::ops::{Asked, ChoiceKey, Choices};
use crate::plan::{Assignment, Compiler, PlanOptions, PlanOutcome, TunableNode};
use crate::session::core::SessionCore;
use crate::session::core::device::Device;
use crate::session::core::options::KernelChooser;
use crate::session::error::Error;
use crate::sync::lock;

/// Whether kernels are chosen by measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tuning {
    /// Kernels are chosen by a model of the device.
    #[default]
    Off,
    /// What was measured earlier on this device is taken.
    Kept,
    /// The same; what is not known is measured when a plan is made, for this long at most in all plans of the session.
    Within(Duration),
}

/// The share of the time that is left which one choice may take, where the rounds that are needed take less.
const SHARE: u32 = 8;

/// Operations that take about as long as a byte: which nodes are measured first depends on it.
const FLOPS_OF_BYTE: u64 = 8;

/// The choices of a session's devices.
#[derive(Debug)]
pub(super) struct KernelTuner {
    folder: Option<PathBuf>,
    left: Mutex<Duration>,
    devices: Mutex<BTreeMap<usize, Known>>,
    report: Mutex<TuningReport>,
}

/// What is known of one device.
#[derive(Debug)]
struct Known {
    file: Option<TuningFile>,
    kept: Kept,
    /// What cannot be measured.
    given_up: BTreeSet<ChoiceKey>,
}

impl Known {
    /// Whether nothing is to be found out about `key`.
    fn has(&self, key: &ChoiceKey) -> bool {
        self.kept.get(key).is_some() || self.given_up.contains(key)
    }
}

/// The time since something began.
struct Since(Instant);

impl Clock for Since {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

impl KernelTuner {
    /// What is kept in `folder`, measured for `budget` at most.
    pub(super) fn new(folder: Option<PathBuf>, budget: Duration) -> Self {
        let (devices, report) = (Mutex::default(), Mutex::default());
        KernelTuner { folder, left: Mutex::new(budget), devices, report }
    }

    /// What was measured so far.
    pub(super) fn report(&self) -> TuningReport {
        lock(&self.report).clone()
    }

    /// What is known of each device; of native ones nothing.
    fn known(&self, devices: &[&DeviceInfo]) -> Vec<Arc<Choices>> {
        let mut known = lock(&self.devices);
        let choices = devices.iter().enumerate().map(|(d, info)| {
            if info.native {
                return Arc::default();
            }
            let known = known.entry(d).or_insert_with(|| {
                let file = self.folder.as_deref().map(|folder| TuningFile::new(folder, info));
                let kept = file.as_ref().map(TuningFile::load).unwrap_or_default();
                Known { file, kept, given_up: BTreeSet::new() }
            });
            Arc::new(known.kept.choices())
        });
        choices.collect()
    }

    /// Measures what `nodes`, which run on entry `device` of the table, choose between and is not known yet, and keeps it.
    fn tune(
        &self,
        core: &SessionCore,
        (device, info): (usize, &DeviceInfo),
        options: &PlanOptions,
        nodes: Vec<TunableNode>,
    ) -> Result<(), Error> {
        let Some(entry) = core.devices.get(device) else { return Ok(()) };
        let mut known = lock(&self.devices);
        let Some(known) = known.get_mut(&device) else { return Ok(()) };
        let (mut report, clock) = (lock(&self.report), Since(Instant::now()));
        let mut left = lock(&self.left);
        let mut work = Work {
            entry,
            device,
            info,
            options,
            core,
            known,
            new: Kept::default(),
            report: &mut report,
            clock,
            end: *left,
        };
        let result = work.measure(nodes);
        // What was measured before a failure is true all the same.
        if let Some(file) = work.known.file.as_ref().filter(|_| work.new != Kept::default()) {
            file.add(&work.new);
        }
        let took = work.clock.now();
        work.report.seconds += took.as_secs_f64();
        *left = left.saturating_sub(took);
        result
    }
}

/// What is being measured on one device.
struct Work<'a> {
    entry: &'a Device,
    device: usize,
    info: &'a DeviceInfo,
    options: &'a PlanOptions,
    core: &'a SessionCore,
    known: &'a mut Known,
    /// What was measured now.
    new: Kept,
    report: &'a mut TuningReport,
    clock: Since,
    end: Duration,
}

impl Work<'_> {
    /// Measures the nodes that take longest first; of equal ones that with the lesser key, so that the order is always
    /// the same.
    fn measure(&mut self, mut nodes: Vec<TunableNode>) -> Result<(), Error> {
        let counts = count(&nodes);
        nodes.sort_by_cached_key(|node| {
            let cost = node.op.cost(&node.cx);
            let each = cost.flops.saturating_add(cost.bytes.saturating_mul(FLOPS_OF_BYTE));
            (Reverse(each.saturating_mul(count_of(&counts, node))), keys(&node.asked))
        });
        nodes.iter().try_for_each(|node| self.node(node, count_of(&counts, node)))
    }

    /// Measures what a node chooses between, and then what that leads to.
    fn node(&mut self, node: &TunableNode, nodes: u64) -> Result<(), Error> {
        let mut bench = None;
        loop {
            let choices = self.known.kept.choices();
            let Some(lowered) = node.lower(self.info, self.options, Some(&choices))? else { return Ok(()) };
            let Some(asked) = lowered.asked.into_iter().find(|asked| !self.known.has(&asked.key)) else {
                return Ok(());
            };
            if self.clock.now() >= self.end {
                self.report.out_of_time.insert(asked.key);
                return Ok(());
            }
            if bench.is_none() {
                bench = Bench::new(self.entry, &self.core.sources, node)?;
            }
            let soft = self.clock.now() + self.end.saturating_sub(self.clock.now()) / SHARE;
            let wanted = (&asked.key, &asked.candidates[..]);
            let is_over = || self.clock.now() >= self.end;
            let measurable = match &bench {
                Some(bench) => bench.candidates(self.info, self.options, &choices, wanted, is_over)?,
                None => Measurable::No,
            };
            let mut candidates = match measurable {
                Measurable::Yes(candidates) => candidates,
                Measurable::No => {
                    self.report.not_measured.insert(asked.key.clone());
                    self.known.given_up.insert(asked.key);
                    continue;
                }
                Measurable::OutOfTime => {
                    self.report.out_of_time.insert(asked.key);
                    return Ok(());
                }
            };
            let Some(outcome) = decide(&mut candidates, &self.clock, (soft, self.end))? else {
                self.report.out_of_time.insert(asked.key);
                return Ok(());
            };
            let Some((key, measured, choice)) = result(self.device, node, nodes, asked, outcome) else {
                return Ok(());
            };
            self.report.out_of_time.remove(&key);
            self.known.kept.set(key.clone(), measured.clone());
            // Where there is no room for more, it is not measured again and again.
            self.known.given_up.insert(key.clone());
            self.new.set(key, measured);
            self.report.measured.push(choice);
        }
    }
}

/// How many nodes ask for the same things.
fn count(nodes: &[TunableNode]) -> BTreeMap<Vec<ChoiceKey>, u64> {
    let mut counts = BTreeMap::new();
    for node in nodes {
        *counts.entry(keys(&node.asked)).or_default() += 1;
    }
    counts
}

fn count_of(counts: &BTreeMap<Vec<ChoiceKey>, u64>, node: &TunableNode) -> u64 {
    counts.get(&keys(&node.asked)).copied().unwrap_or(1)
}

fn keys(asked: &[Asked]) -> Vec<ChoiceKey> {
    asked.iter().map(|a| a.key.clone()).collect()
}

/// What an outcome means, to keep and to report.
fn result(
    device: usize,
    node: &TunableNode,
    nodes: u64,
    asked: Asked,
    outcome: Outcome,
) -> Option<(ChoiceKey, Measured, TunedChoice)> {
    let default_ns = outcome.medians.first().copied().flatten()?;
    let chosen_ns = outcome.medians.get(outcome.winner).copied().flatten()?;
    let named = |at: &usize| asked.candidates.get(*at).cloned();
    let (default, chosen) = (named(&0)?, named(&outcome.winner)?);
    let wrong: Vec<String> = outcome.wrong.iter().filter_map(named).collect();
    for name in &wrong {
        tracing::warn!(target: "onepool::tuning", %name, key = %asked.key, "a faster kernel computes something else");
    }
    let times = asked.candidates.iter().cloned().zip(outcome.medians).collect();
    let choice = TunedChoice {
        device: device as u32,
        key: asked.key.clone(),
        op: node.op.name(),
        node: node.name.clone(),
        nodes,
        default: default.clone(),
        chosen: chosen.clone(),
        default_ns,
        chosen_ns,
        times,
        wrong,
    };
    Some((asked.key, Measured { default, chosen, default_ns, chosen_ns }, choice))
}

impl KernelChooser for KernelTuner {
    fn choices(
        &self,
        core: &SessionCore,
        graph: &Graph,
        infos: &[TensorInfo],
        values: &BTreeMap<usize, Tensor>,
        updates: &[(usize, usize)],
    ) -> Vec<Arc<Choices>> {
        let usable = core.sources.usable(&core.devices);
        let devices: Vec<&DeviceInfo> = usable.iter().map(|d| &**d).collect();
        for (d, info) in devices.iter().enumerate().filter(|(_, info)| !info.native) {
            let options = PlanOptions { choices: self.known(&devices), ..core.options.plan.clone() };
            if lock(&self.left).is_zero() {
                break;
            }
            let cache = core.sources.cache(&core.devices);
            let assignment = Assignment::All(d as u32);
            let compiler =
                Compiler { graph, devices: &devices, options: &options, assignment, cache, updates };
            // What cannot be planned is the plan's to say.
            let Ok(PlanOutcome::Plan(mut nodes)) = compiler.tunable(infos, values) else { continue };
            nodes.retain(|node| node.device as usize == d);
            if let Err(error) = self.tune(core, (d, info), &options, nodes) {
                tracing::warn!(target: "onepool::tuning", device = %info.name, %error, "kernels are not measured");
            }
        }
        self.known(&devices)
    }
}

#[cfg(test)]
mod tests;
