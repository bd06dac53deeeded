//! Automatic placement: measures devices and operators, chooses a device for each node, and compares the choice in
//! runs with the placements on one device.

#![forbid(unsafe_code)]

mod cache;
mod key;
mod measure;
mod race;

use crate::sync::lock;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use cache::PlacementCache;

use self::cache::Choice;
use self::race::{Candidate, choose};
use crate::plan::place::{Problem, Roofline};
use crate::plan::{
    Assignment, CandidateReport, NodeEstimate, PlacementReport, Plan, PlanError, PlanOptions, PlanOutcome,
    PlanRequest, UnplacedPlan,
};
use crate::session::core::SessionCore;
use crate::session::core::compiled::Compiled;
use crate::session::core::options::{CopiedPerRun, NodePlacer};
use crate::session::error::Error;

/// The placement of nodes that neither the caller nor the graph places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodePlacement {
    /// Entry 0 of the device table.
    #[default]
    Manual,
    /// The fastest placement by measurements, boundaries between devices included.
    ///
    /// The plan is made with runs on inputs of zeros, by value or on bound memory like those of the caller, unless it
    /// holds a kernel of the caller's ([`crate::ops::custom::CustomKernel`]). All nodes on one device is always a
    /// candidate, so no choice is slower than that, as far as runs within
    /// [`crate::session::SessionBuilder::placement_budget`] can tell; after that time estimates decide.
    Auto,
}

/// The default time for measurements of a session. Measuring the speeds of a device, once for all sessions, is not
/// counted.
pub(super) const BUDGET: Duration = Duration::from_secs(2);

/// Operators below this fraction of a run are estimated, not timed.
const LIGHT: u64 = 50;
/// Maximum time for runs of one operator on one device, after the first run.
const OPERATOR_LIMIT: Duration = Duration::from_millis(20);
/// Bytes of an operator's tensors, or of a graph's inputs and outputs, above which it is not run for a measurement.
const MAX_MEASURED_BYTES: u64 = 1 << 30;

/// Places the nodes of a session and of its stages.
#[derive(Debug)]
pub(super) struct Placer {
    cache: Arc<PlacementCache>,
    left: Mutex<Duration>,
}

impl Placer {
    pub(super) fn new(cache: Arc<PlacementCache>, budget: Duration) -> Self {
        Placer { cache, left: Mutex::new(budget) }
    }

    /// Places the nodes of `draft` and plans them.
    fn place(
        &self,
        work: &PlacementTask<'_>,
        draft: UnplacedPlan,
        began: Instant,
    ) -> Result<Compiled, Error> {
        if !draft.is_open() {
            let only = |n: &crate::plan::UnplacedNode| {
                n.commands.iter().position(Option::is_some).unwrap_or_default() as u32
            };
            return work.ready(&Assignment::Each(draft.nodes.iter().map(only).collect()));
        }
        let copied = work.copied;
        let graph_key = key::graph(&draft, &work.tuned, copied);
        let _turn = self.cache.turn();
        let rooflines = work.rooflines()?;
        let known = work.known(&draft, &rooflines, Duration::ZERO);
        let kept = self.cache.choice(&graph_key).and_then(|c| Some((work.kept(&known.problem, &c)?, c)));
        if let Some((compiled, choice)) = kept {
            let report = report(choice.candidates, choice.chosen, rooflines, copied, true);
            self.cache.save();
            return Ok(explained(compiled, &draft, &known, report, began));
        }
        let known = work.known(&draft, &rooflines, self.left() / 2);
        let mut candidates = work.candidates(&known.problem, &rooflines);
        work.race(&draft, &mut candidates);
        let chosen = choose(&candidates);
        let reports: Vec<CandidateReport> = candidates.iter().map(|c| c.report.clone()).collect();
        let mixed = candidates.iter().find(|c| c.report.device.is_none());
        let places = Choice::runs(mixed.map_or(&[], |c| &c.places));
        self.cache.set_choice(&graph_key, Choice { candidates: reports.clone(), chosen, places });
        self.cache.save();
        // Frees the memory of the other candidates before the next allocation.
        let winner = candidates.swap_remove(chosen);
        drop(candidates);
        let compiled = match winner.compiled.and_then(Arc::into_inner) {
            Some(compiled) => compiled,
            None => work.ready(&winner.assignment)?,
        };
        Ok(explained(compiled, &draft, &known, report(reports, chosen, rooflines, copied, false), began))
    }

    fn left(&self) -> Duration {
        *lock(&self.left)
    }

    fn spend(&self, time: Duration) {
        let mut left = lock(&self.left);
        *left = left.saturating_sub(time);
    }
}

impl NodePlacer for Placer {
    fn compile(
        &self,
        core: &SessionCore,
        request: &PlanRequest<'_>,
        copied: CopiedPerRun,
    ) -> Result<PlanOutcome<Compiled>, Error> {
        let began = Instant::now();
        let devices: Vec<String> = core.devices.iter().map(|d| key::device(d.context.info())).collect();
        let options = core.plan_options(request);
        let tuned = devices.iter().enumerate();
        let tuned = tuned.map(|(d, name)| key::tuned(name, options.choices.get(d).map(|c| &**c))).collect();
        let work = PlacementTask { placer: self, core, options, request, devices, tuned, copied };
        work.draft()?.try_map(|draft| self.place(&work, draft, began))
    }
}

/// Times of the nodes of an unplaced plan.
struct NodeTimes {
    problem: Problem,
    timed: Vec<bool>,
    /// Operators timed by this call.
    count: usize,
}

/// One graph being placed.
struct PlacementTask<'a> {
    placer: &'a Placer,
    core: &'a SessionCore,
    options: Cow<'a, PlanOptions>,
    request: &'a PlanRequest<'a>,
    /// Names of the devices in the cache.
    devices: Vec<String>,
    /// The same with their choices of kernels, as times of operators have them.
    tuned: Vec<String>,
    copied: CopiedPerRun,
}

impl PlacementTask<'_> {
    fn draft(&self) -> Result<PlanOutcome<UnplacedPlan>, PlanError> {
        self.core.with_compiler(&self.options, Assignment::Open, |c| c.unplaced(self.request))
    }

    fn plan(&self, assignment: &Assignment) -> Result<Plan, PlanError> {
        self.core.with_compiler(&self.options, assignment.clone(), |c| c.compile(self.request))?.plan()
    }

    fn ready(&self, assignment: &Assignment) -> Result<Compiled, Error> {
        self.core.ready(self.plan(assignment)?)
    }

    /// Puts all nodes on `device` that can run there.
    fn uniform(&self, problem: &Problem, device: u32) -> Assignment {
        if self.core.options.plan.fallback {
            return Assignment::All(device);
        }
        // A node without a kernel there stays elsewhere.
        Assignment::Each(problem.uniform(device).into())
    }

    fn rooflines(&self) -> Result<Vec<Roofline>, Error> {
        let cache = &self.placer.cache;
        let mut rooflines = Vec::with_capacity(self.devices.len());
        for (key, device) in self.devices.iter().zip(&self.core.devices) {
            rooflines.push(match cache.roofline(key) {
                Some(known) => known,
                None => {
                    let measured = measure::roofline(self.core, device)?;
                    cache.set_roofline(key, measured);
                    measured
                }
            });
        }
        Ok(rooflines)
    }

    /// The plan of a cached choice, where it is still valid.
    fn kept(&self, problem: &Problem, choice: &Choice) -> Option<Compiled> {
        let assignment = match choice.candidates.get(choice.chosen)?.device {
            Some(device) => self.uniform(problem, device),
            None => Assignment::Each(choice.places(problem.times.len())?.into()),
        };
        self.ready(&assignment).ok()
    }

    /// Times of all nodes: cached ones, those measured now within `budget`, estimates for the others.
    fn known(&self, draft: &UnplacedPlan, rooflines: &[Roofline], budget: Duration) -> NodeTimes {
        let estimate = |node: &crate::plan::UnplacedNode| -> Vec<Option<u64>> {
            let on = |(r, commands): (&Roofline, &Option<u32>)| commands.map(|c| r.estimate(node.cost, c));
            rooflines.iter().zip(&node.commands).map(on).collect()
        };
        let mut times: Vec<Vec<Option<u64>>> = draft.nodes.iter().map(estimate).collect();
        let mut alike: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for n in (0..draft.nodes.len()).filter(|n| !draft.nodes[*n].alias) {
            alike.entry(key::operator(&draft.flow, n, false)).or_default().push(n);
        }
        let run: u64 = times.iter().map(|t| t.iter().flatten().min().copied().unwrap_or(0)).sum();
        let weight = |nodes: &[usize]| {
            let slowest = nodes.first().and_then(|&n| times[n].iter().flatten().max().copied());
            slowest.unwrap_or(0).saturating_mul(nodes.len() as u64)
        };
        let mut order: Vec<(u64, u64)> = alike.iter().map(|(key, nodes)| (weight(nodes), *key)).collect();
        order.sort_unstable_by(|a, b| b.cmp(a));
        let mut timed = vec![false; draft.nodes.len()];
        let (began, mut count) = (Instant::now(), 0);
        for (weight, key) in order {
            let Some((nodes, &n)) = alike.get(&key).and_then(|nodes| Some((nodes, nodes.first()?))) else {
                continue;
            };
            let before = self.times_before(key, &times[n]);
            let worth = weight.saturating_mul(LIGHT) >= run;
            let found = match before {
                Some(before) => Some(before),
                None if worth && draft.nodes[n].commands.iter().flatten().count() > 1 => {
                    let left = budget.saturating_sub(began.elapsed());
                    let measured = self.times_now(draft, n, key, &times[n], rooflines, left);
                    count += usize::from(measured.is_some());
                    measured
                }
                None => None,
            };
            for &n in nodes.iter().filter(|_| found.is_some()) {
                timed[n] = true;
                for (time, found) in times[n].iter_mut().zip(found.iter().flatten()) {
                    *time = time.and(*found);
                }
            }
        }
        // If a driver compiles for longer than the budget, the time for whole runs is unaffected.
        self.placer.spend(began.elapsed().min(budget));
        let boundaries: Vec<_> = rooflines.iter().map(Roofline::boundary).collect();
        NodeTimes { problem: draft.problem(times, &boundaries), timed, count }
    }

    /// The cached times of an operator on all devices where it may run, if all are known.
    fn times_before(&self, key: u64, allowed: &[Option<u64>]) -> Option<Vec<Option<u64>>> {
        let on = |(device, allowed): (&String, &Option<u64>)| match allowed {
            Some(_) => self.placer.cache.time(device, key).map(Some),
            None => Some(None),
        };
        self.tuned.iter().zip(allowed).map(on).collect()
    }

    /// Measures node `n` on all devices where it may run, if the time `left` suffices.
    fn times_now(
        &self,
        draft: &UnplacedPlan,
        n: usize,
        key: u64,
        expected: &[Option<u64>],
        rooflines: &[Roofline],
        left: Duration,
    ) -> Option<Vec<Option<u64>>> {
        let longest = Duration::from_nanos(expected.iter().flatten().max().copied()?);
        let runnable = draft.flow.cx(n).bytes_touched() <= MAX_MEASURED_BYTES && !is_callers(draft, n);
        if left.is_zero() || longest.saturating_mul(2) > left || !runnable {
            return None;
        }
        let mut found = Vec::with_capacity(expected.len());
        for (d, device) in self.core.devices.iter().enumerate() {
            if expected.get(d).copied().flatten().is_none() {
                found.push(None);
                continue;
            }
            let submit = rooflines.get(d)?.submit_ns;
            let limit = OPERATOR_LIMIT.min(left);
            // An operator may reject zeros, which is no failure of the session.
            let on = (device, self.options.choices.get(d).cloned().unwrap_or_default());
            let nanos = measure::operator(self.core, on, (&draft.flow, n), submit, limit).ok()?;
            self.placer.cache.set_time(self.tuned.get(d)?, key, nanos);
            found.push(Some(nanos));
        }
        Some(found)
    }

    /// All nodes on each of the devices, and the cheapest placement if it is none of these.
    fn candidates(&self, problem: &Problem, rooflines: &[Roofline]) -> Vec<Candidate> {
        // Every placement submits the last segment and waits for it.
        let estimate = |places: &[u32]| {
            let last = places.last().and_then(|d| rooflines.get(*d as usize)).map_or(0.0, |r| r.submit_ns);
            problem.total(places).unwrap_or(u64::MAX).saturating_add(last as u64)
        };
        let candidate = |device: Option<u32>, places: Vec<u32>, assignment: Assignment| {
            let report = CandidateReport { device, estimate_ns: estimate(&places), measured_ns: None };
            Candidate { assignment, places, report, compiled: None, failed: false }
        };
        let mut all: Vec<Candidate> = Vec::new();
        for d in 0..self.devices.len() as u32 {
            all.push(candidate(Some(d), problem.uniform(d), self.uniform(problem, d)));
        }
        let best = problem.solve();
        if all.iter().all(|c| c.places != best) {
            all.push(candidate(None, best.clone(), Assignment::Each(best.into())));
        }
        all
    }
}

/// Whether a node runs a function of the caller's, which measurements must not call.
fn is_callers(draft: &UnplacedPlan, n: usize) -> bool {
    draft.flow.nodes[n].op.structure() == Some(crate::operator::Structure::Custom)
}

fn report(
    candidates: Vec<CandidateReport>,
    chosen: usize,
    devices: Vec<Roofline>,
    copied: CopiedPerRun,
    cached: bool,
) -> PlacementReport {
    let (copied_in, copied_out) = (copied.inputs, copied.outputs);
    PlacementReport {
        candidates,
        chosen,
        cached,
        copied_in,
        copied_out,
        devices,
        ..PlacementReport::default()
    }
}

/// Adds the choice to the plan's report.
fn explained(
    mut compiled: Compiled,
    draft: &UnplacedPlan,
    known: &NodeTimes,
    mut report: PlacementReport,
    began: Instant,
) -> Compiled {
    // Nodes are in another order, and names need not be unique.
    let mut named: HashMap<&str, VecDeque<usize>> = HashMap::new();
    for (n, node) in draft.flow.nodes.iter().enumerate() {
        named.entry(&node.name).or_default().push_back(n);
    }
    let nodes = compiled.plan.report.nodes.iter().map(|node| {
        let n = named.get_mut(node.name.as_str()).and_then(VecDeque::pop_front);
        n.map_or_else(NodeEstimate::default, |n| NodeEstimate {
            nanos: known.problem.times[n].clone(),
            timed: known.timed[n],
            fixed: draft.nodes[n].fixed,
        })
    });
    report.nodes = nodes.collect();
    report.timed = known.count;
    report.nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    compiled.plan.report.placement = Some(report);
    compiled
}

#[cfg(test)]
mod tests;
