//! Runs candidate placements and picks the fastest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::measure::{bound, measuring, once_with_copies};
use super::{MAX_MEASURED_BYTES, PlacementTask, is_callers};
use crate::plan::{Assignment, CandidateReport, UnplacedPlan};
use crate::session::bind::binding::Binding;
use crate::session::core::SessionCore;
use crate::session::core::compiled::Compiled;
use crate::session::error::Error;

/// Number of runs of each candidate, and of short candidates.
const ROUNDS: usize = 7;
const SHORT_ROUNDS: usize = 60;
/// Total duration of the further runs of a short candidate.
const SHORT: Duration = Duration::from_millis(30);
/// The minimum gain of a placement over several devices, as a fraction of a run on one device: runs of the same
/// commands vary by as much.
const NOISE: u64 = 30;
/// The minimum gain where neither was run.
const DOUBT: u64 = 5;
/// A candidate that is slower than the best one by this factor is not run again.
const BEATEN: u64 = 2;

/// A candidate placement.
pub(super) struct Candidate {
    pub(super) assignment: Assignment,
    /// The device of each node of the draft.
    pub(super) places: Vec<u32>,
    pub(super) report: CandidateReport,
    /// Its plan with device objects, once it was run.
    pub(super) compiled: Option<Arc<Compiled>>,
    /// Planning or allocation failed.
    pub(super) failed: bool,
}

impl PlacementTask<'_> {
    /// Runs the candidates in turn on inputs of zeros, with the caller's copies, within the session's time; the
    /// fastest by estimate first.
    pub(super) fn race(&self, draft: &UnplacedPlan, candidates: &mut [Candidate]) {
        let began = Instant::now();
        let left = || self.placer.left().saturating_sub(began.elapsed());
        if candidates.len() < 2 || (0..draft.nodes.len()).any(|n| is_callers(draft, n)) {
            return;
        }
        let ends = draft.flow.inputs.iter().chain(draft.flow.outputs.iter().map(|(_, v)| v));
        let bytes: u64 = ends.map(|&v| draft.flow.values[v].info.bytes() as u64).sum();
        if bytes > MAX_MEASURED_BYTES {
            return;
        }
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|&c| candidates[c].report.estimate_ns);
        let core = self.racing();
        let largest = draft.flow.inputs.iter().map(|&v| draft.flow.values[v].info.bytes()).max();
        let zeros = vec![0; if self.copied.inputs { largest.unwrap_or(0) } else { 0 }];
        let mut running: Vec<(usize, Binding<'static>)> = Vec::new();
        for c in order {
            // A warm-up run and a measured run.
            let expected = Duration::from_nanos(candidates[c].report.estimate_ns).saturating_mul(2);
            if expected > left() {
                continue;
            }
            match self.start(&core, &mut candidates[c]) {
                Ok(Some(binding)) => running.push((c, binding)),
                Ok(None) => {}
                Err(cause) => {
                    candidates[c].failed = true;
                    tracing::debug!(target: "onepool::placement", %cause, "a placement is passed over");
                }
            }
        }
        let started = Instant::now();
        for round in 0..SHORT_ROUNDS {
            if round >= ROUNDS && started.elapsed() >= SHORT {
                break;
            }
            for (c, binding) in &mut running {
                let best = candidates.iter().filter_map(|c| c.report.measured_ns).min();
                let report = &mut candidates[*c].report;
                let beaten = match (report.measured_ns, best) {
                    (Some(time), Some(best)) => time > best.saturating_mul(BEATEN),
                    _ => false,
                };
                if beaten || (round > 0 && left().is_zero()) {
                    continue;
                }
                if let Ok(time) = once_with_copies(binding, self.copied, &zeros) {
                    report.measured_ns = Some(report.measured_ns.map_or(time, |t| t.min(time)));
                }
            }
        }
        drop(running);
        self.placer.spend(began.elapsed());
    }

    /// The session's devices and parameters, for measurement runs.
    fn racing(&self) -> Arc<SessionCore> {
        let options = &self.core.options;
        let (params, sources) = (Arc::clone(&self.core.params), Arc::clone(&self.core.sources));
        let (graph, devices) = (Arc::new(self.request.graph.clone()), self.core.devices.clone());
        Arc::new(SessionCore::new(graph, devices, measuring(options.plan.clone(), options), params, sources))
    }

    /// Compiles a candidate and runs it once; `None` where an operator rejects zeros.
    fn start(
        &self,
        core: &Arc<SessionCore>,
        candidate: &mut Candidate,
    ) -> Result<Option<Binding<'static>>, Error> {
        let compiled = Arc::new(self.ready(&candidate.assignment)?);
        candidate.compiled = Some(Arc::clone(&compiled));
        let mut binding = bound(core, compiled, self.copied)?;
        Ok(binding.run().is_ok().then_some(binding))
    }
}

/// The fastest candidate: by runs where two were run, else by estimates.
pub(super) fn choose(candidates: &[Candidate]) -> usize {
    let reports: Vec<(usize, &CandidateReport)> =
        candidates.iter().enumerate().filter(|(_, c)| !c.failed).map(|(i, c)| (i, &c.report)).collect();
    let measured = reports.iter().filter(|(_, r)| r.measured_ns.is_some()).count() > 1;
    let time = |r: &CandidateReport| match (measured, r.measured_ns) {
        (false, _) => Some(r.estimate_ns),
        (true, time) => time,
    };
    let fastest = |mixed: bool| {
        let of = reports.iter().filter(|(_, r)| r.device.is_none() == mixed);
        of.filter_map(|(i, r)| Some((time(r)?, *i))).min()
    };
    let margin = if measured { NOISE } else { DOUBT };
    match (fastest(false), fastest(true)) {
        (Some((one, at)), Some((several, other))) => {
            if several.saturating_add(one / margin) < one {
                other
            } else {
                at
            }
        }
        (Some((_, at)), None) | (None, Some((_, at))) => at,
        (None, None) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(device: Option<u32>, estimate_ns: u64, measured_ns: Option<u64>) -> Candidate {
        Candidate {
            assignment: Assignment::default(),
            places: Vec::new(),
            report: CandidateReport { device, estimate_ns, measured_ns },
            compiled: None,
            failed: false,
        }
    }

    #[test]
    fn runs_count_more_than_estimates() {
        let (cpu, gpu) = (candidate(Some(0), 900, Some(500)), candidate(Some(1), 100, Some(600)));
        let mixed = |time| candidate(None, 50, time);
        assert_eq!(choose(&[cpu, gpu, mixed(None)]), 0);
        let all = |c, g, m| [candidate(Some(0), 9, c), candidate(Some(1), 8, g), mixed(m)];
        assert_eq!(choose(&all(Some(500), Some(900), Some(499))), 0);
        assert_eq!(choose(&all(Some(500), Some(900), Some(400))), 2);
        assert_eq!(choose(&all(Some(500), None, Some(400))), 2);
        // A single measured candidate tells nothing about the others.
        assert_eq!(choose(&all(None, None, Some(1))), 1);
    }

    #[test]
    fn estimates_must_promise_more() {
        let all = |mixed| {
            [candidate(Some(0), 1000, None), candidate(Some(1), 1100, None), candidate(None, mixed, None)]
        };
        assert_eq!(choose(&all(900)), 0);
        assert_eq!(choose(&all(700)), 2);
        let mut candidates = all(700);
        candidates[2].failed = true;
        candidates[0].failed = true;
        assert_eq!(choose(&candidates), 1);
        candidates[1].failed = true;
        assert_eq!(choose(&candidates), 0);
    }
}
