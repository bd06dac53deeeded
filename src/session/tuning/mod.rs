//! Choice of kernels by measurement: what was measured on a device is kept, and later plans take it.

#![forbid(unsafe_code)]

mod decide;
mod file;
mod measure;
mod report;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use self::report::{TunedChoice, TuningReport};

use self::decide::{Clock, Decision, Outcome, decide};
use self::file::{Kept, Measured, TuningFile, device_key};
use self::measure::{Bench, Measurable, runnable};
use crate::backend::DeviceInfo;
use crate::files::hash::Digest;
use crate::ops::{Asked, ChoiceKey, Choices};
use crate::plan::{Assignment, PlanOptions, PlanOutcome, PlanRequest, TunableNode};
use crate::session::core::SessionCore;
use crate::session::core::cancel::RunOptions;
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
    /// By the device itself: a session that recovers may have another one at the same entry of its table.
    devices: Mutex<HashMap<Digest, Known>>,
    report: Mutex<TuningReport>,
}

/// What is known of one device.
#[derive(Debug)]
struct Known {
    file: Option<TuningFile>,
    kept: Kept,
    /// What `kept` chooses.
    choices: Arc<Choices>,
    /// What is not measured any more.
    given_up: BTreeSet<ChoiceKey>,
}

impl Known {
    fn new(file: Option<TuningFile>) -> Known {
        let kept = file.as_ref().map(TuningFile::load).unwrap_or_default();
        Known { file, choices: Arc::new(kept.choices()), kept, given_up: BTreeSet::new() }
    }

    fn set(&mut self, key: ChoiceKey, measured: Measured) {
        self.kept.set(key, measured);
        self.choices = Arc::new(self.kept.choices());
    }

    /// Whether a lowering that asked this asks nothing that is to be found out.
    fn settles(&self, asked: &[Asked]) -> bool {
        let taken = |a: &Asked| self.choices.get(&a.key).unwrap_or(a.default_name()) == a.name();
        asked.iter().all(|a| self.has(&a.key) && taken(a))
    }

    /// Whether nothing is to be found out about `key`.
    fn has(&self, key: &ChoiceKey) -> bool {
        self.kept.get(key).is_some() || self.given_up.contains(key)
    }
}

/// The time since something began. Once the session's runs are cancelled, no time is left.
struct Since<'a> {
    began: Instant,
    run: &'a RunOptions,
}

impl Clock for Since<'_> {
    fn now(&self) -> Duration {
        if self.run.is_cancelled() { Duration::MAX } else { self.began.elapsed() }
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
        let choices = devices.iter().map(|info| {
            if info.native {
                return Arc::default();
            }
            let key = device_key(info);
            let file = || self.folder.as_deref().map(|folder| TuningFile::new(folder, key));
            Arc::clone(&known.entry(key).or_insert_with(|| Known::new(file())).choices)
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
        let Some(known) = known.get_mut(&device_key(info)) else { return Ok(()) };
        let clock = Since { began: Instant::now(), run: &core.options.run };
        let mut report = lock(&self.report);
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
        if let Some(file) = work.known.file.as_ref().filter(|_| work.new != Kept::default())
            && !file.add(&work.new)
        {
            work.report.not_kept += work.new.len();
        }
        let took = work.clock.began.elapsed();
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
    clock: Since<'a>,
    end: Duration,
}

impl<'a> Work<'a> {
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

    /// Measures the candidates of a node's choice, then those of choices that follow from it.
    fn node(&mut self, node: &TunableNode, nodes: u64) -> Result<(), Error> {
        if self.known.settles(&node.asked) {
            return Ok(());
        }
        let (mut bench, mut follows) = (None, false);
        loop {
            let choices = Arc::clone(&self.known.choices);
            let lowered = node.lower(self.info, self.options, Some(&choices)).map_err(Error::from);
            let Some(lowered) = runnable(lowered, &node.name)?.flatten() else { return Ok(()) };
            let Some(asked) = lowered.asked.into_iter().find(|asked| !self.known.has(&asked.key)) else {
                return Ok(());
            };
            // What a device was lost at is not tried again. Where there is no room to keep it, neither.
            self.known.given_up.insert(asked.key.clone());
            match self.decision(node, &mut bench, &choices, &asked) {
                Ok(Decision::Chosen(outcome)) => {
                    let Some((key, measured, choice)) = result(self.device, node, nodes, asked, outcome)
                    else {
                        return Ok(());
                    };
                    self.report.out_of_time.remove(&key);
                    self.known.set(key.clone(), measured.clone());
                    self.new.set(key, measured);
                    self.report.measured.push(TunedChoice { follows, ..choice });
                    follows = true;
                }
                Ok(Decision::NotMeasurable) => {
                    self.report.not_measured.insert(asked.key);
                }
                Ok(Decision::OutOfTime) => {
                    self.known.given_up.remove(&asked.key);
                    self.report.out_of_time.insert(asked.key);
                    return Ok(());
                }
                Err(error) => {
                    // Other processes would lose it as well.
                    self.new.set(asked.key.clone(), Measured::unmeasured(asked.default_name()));
                    self.report.not_measured.insert(asked.key);
                    return Err(error);
                }
            }
        }
    }

    /// Which candidate of `asked` is the fastest.
    fn decision<'n>(
        &self,
        node: &'n TunableNode,
        bench: &mut Option<Bench<'n>>,
        choices: &Choices,
        asked: &Asked,
    ) -> Result<Decision, Error>
    where
        'a: 'n,
    {
        if self.clock.now() >= self.end {
            return Ok(Decision::OutOfTime);
        }
        if bench.is_none() {
            let limit = self.core.options.limit.on(self.info, false);
            let made = Bench::new(self.entry, &self.core.sources, node, limit);
            *bench = runnable(made, &node.name)?.flatten();
        }
        let Some(bench) = bench else { return Ok(Decision::NotMeasurable) };
        let now = self.clock.now();
        let soft = now.saturating_add(self.end.saturating_sub(now) / SHARE);
        let wanted = (&asked.key, &asked.candidates[..]);
        let is_over = || self.clock.now() >= self.end;
        match bench.candidates(self.info, self.options, choices, wanted, is_over)? {
            Measurable::Yes(mut candidates) => decide(&mut candidates, &self.clock, (soft, self.end)),
            Measurable::No => Ok(Decision::NotMeasurable),
            Measurable::OutOfTime => Ok(Decision::OutOfTime),
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
        follows: false,
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
    fn choices(&self, core: &SessionCore, request: &PlanRequest<'_>) -> Vec<Arc<Choices>> {
        let usable = core.sources.usable(&core.devices);
        let devices: Vec<&DeviceInfo> = usable.iter().map(|d| &**d).collect();
        for (d, info) in devices.iter().enumerate().filter(|(_, info)| !info.native) {
            if lock(&self.left).is_zero() {
                break;
            }
            let options = PlanOptions { choices: self.known(&devices), ..core.options.plan.clone() };
            let tunable = core.with_compiler(&options, Assignment::All(d as u32), |c| c.tunable(request));
            // What cannot be planned is the plan's to say.
            let Ok(PlanOutcome::Plan(mut nodes)) = tunable else { continue };
            nodes.retain(|node| node.device as usize == d);
            if let Err(error) = self.tune(core, (d, info), &options, nodes) {
                tracing::warn!(target: "onepool::tuning", device = %info.name, %error, "kernels are not measured");
            }
        }
        self.known(&devices)
    }
}

#[cfg(test)]
pub(in crate::session) mod tests;
