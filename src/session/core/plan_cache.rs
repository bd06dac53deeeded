//! The plans of a session: one for each distinct set of input types, shapes and deciding values.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SessionCore;
use super::compiled::Compiled;
use super::options::CopiedPerRun;
use super::staged::LaterStages;
use crate::backend::DeviceInfo;
use crate::graph::{Tensor, TensorInfo};
use crate::plan::{self, Assignment, Compiler, Plan, PlanOptions, PlanOutcome, PlanRequest, Signature};
use crate::session::error::Error;
use crate::sync::lock;

/// Plans that a session keeps; the least recently used one is dropped first.
const CACHED_PLANS: usize = 16;

impl SessionCore {
    /// The plan of a signature with its device objects, from the cache or made now.
    ///
    /// `values` are inputs that the caller knows; those that decide shapes become part of the plan. The copies of
    /// each run, `copied`, matter for automatic placement. `updates` are inputs and outputs that are one memory.
    pub(in crate::session) fn compiled(
        &self,
        infos: &[TensorInfo],
        values: &BTreeMap<usize, Tensor>,
        updates: &[(usize, usize)],
        copied: CopiedPerRun,
    ) -> Result<Arc<Compiled>, Error> {
        let copied = if self.options.placer.is_some() { copied } else { CopiedPerRun::default() };
        let inputs = infos.iter().map(|i| (i.dtype, i.shape.to_vec())).collect::<Vec<_>>();
        let mut signature = Signature { inputs, values: BTreeMap::new(), updates: updates.to_vec() };
        let mut known: BTreeMap<usize, Tensor> = BTreeMap::new();
        let mut graph = Arc::clone(&self.graph);
        loop {
            // A cached plan for these shapes tells which values it depends on.
            if let Some(found) = self.cached(&signature, copied) {
                return Ok(found);
            }
            let remarks = self.sources.remarks().len();
            // At most once for each device, because later plans avoid rejected features.
            let refused = || self.sources.remarks().len() > remarks;
            let outcome =
                match self.compile(&PlanRequest { graph: &graph, infos, values: &known, updates }, copied) {
                    Err(_) if refused() => continue,
                    outcome => outcome?,
                };
            let compiled = match outcome {
                PlanOutcome::Plan(compiled) => compiled,
                PlanOutcome::Choose { node, then } => {
                    graph = Arc::new(plan::choose(&graph, node, then)?);
                    continue;
                }
                PlanOutcome::NeedsValues { inputs, .. }
                    if inputs.iter().all(|i| values.contains_key(i))
                        && inputs.iter().any(|i| !known.contains_key(i)) =>
                {
                    for i in inputs {
                        let Some(value) = values.get(&i) else { continue };
                        signature.values.insert(i, value.bytes().to_vec());
                        known.insert(i, value.clone());
                    }
                    continue;
                }
                PlanOutcome::NeedsValues { .. } | PlanOutcome::Dynamic { .. } => {
                    let split = match plan::split(&graph, infos, &known)? {
                        PlanOutcome::Choose { node, then } => {
                            graph = Arc::new(plan::choose(&graph, node, then)?);
                            continue;
                        }
                        split => split.plan()?,
                    };
                    // Outputs of the head stay on their device.
                    let copied = CopiedPerRun { outputs: false, ..copied };
                    let request = PlanRequest { values: &known, ..PlanRequest::new(&split.head, infos) };
                    let head = match self.compile(&request, copied) {
                        Err(_) if refused() => continue,
                        head => head?.plan()?,
                    };
                    Compiled { stage: Some(Arc::new(LaterStages::new(self, split))), ..head }
                }
            };
            return Ok(self.keep(signature, copied, compiled));
        }
    }

    /// The plan of `request` with its device objects.
    fn compile(
        &self,
        request: &PlanRequest<'_>,
        copied: CopiedPerRun,
    ) -> Result<PlanOutcome<Compiled>, Error> {
        if let Some(placer) = &self.options.placer {
            return placer.compile(self, request, copied);
        }
        let options = self.plan_options(request);
        let planned = self.with_compiler(&options, Assignment::default(), |c| c.compile(request));
        planned?.try_map(|plan| self.ready(plan))
    }

    /// Calls `f` with the compiler of plans for the session's devices.
    pub(in crate::session) fn with_compiler<R>(
        &self,
        options: &PlanOptions,
        assignment: Assignment,
        f: impl FnOnce(&Compiler<'_>) -> R,
    ) -> R {
        let usable = self.sources.usable(&self.devices);
        let devices: Vec<&DeviceInfo> = usable.iter().map(|d| &**d).collect();
        f(&Compiler { devices: &devices, options, assignment, cache: self.sources.cache(&self.devices) })
    }

    /// The options of a plan of `request`, with the kernels that were measured to be faster.
    pub(in crate::session) fn plan_options(&self, request: &PlanRequest<'_>) -> Cow<'_, PlanOptions> {
        match &self.options.chooser {
            None => Cow::Borrowed(&self.options.plan),
            Some(chooser) => {
                let choices = chooser.choices(self, request);
                Cow::Owned(PlanOptions { choices, ..self.options.plan.clone() })
            }
        }
    }

    /// A plan with its device objects; the session completes its report.
    pub(in crate::session) fn ready(&self, mut plan: Plan) -> Result<Compiled, Error> {
        plan.report.remarks.extend(self.sources.remarks());
        plan.report.foreign = self.options.foreign.to_vec();
        plan.report.add_prepared(&self.options.prepared);
        Compiled::new(plan, &self.devices, &self.params, &self.sources)
    }

    /// Caches a plan, in place of the least recently used one if the cache is full.
    pub(in crate::session) fn keep(
        &self,
        signature: Signature,
        copied: CopiedPerRun,
        compiled: Compiled,
    ) -> Arc<Compiled> {
        let compiled = Arc::new(compiled);
        self.plans_made.fetch_add(1, Ordering::Relaxed);
        let mut plans = lock(&self.plans);
        if plans.len() >= CACHED_PLANS {
            plans.remove(0);
        }
        plans.push((signature, copied, Arc::clone(&compiled)));
        compiled
    }

    pub(in crate::session) fn cached(
        &self,
        signature: &Signature,
        copied: CopiedPerRun,
    ) -> Option<Arc<Compiled>> {
        let mut plans = lock(&self.plans);
        let at = plans.iter().position(|(s, c, _)| s == signature && *c == copied)?;
        let found = plans.remove(at);
        let compiled = Arc::clone(&found.2);
        plans.push(found);
        Some(compiled)
    }

    /// Drops plans without a binding, with their kernels and parameters.
    pub(in crate::session) fn drop_idle_plans(&self) {
        let mut plans = lock(&self.plans);
        let (used, idle) = std::mem::take(&mut *plans)
            .into_iter()
            .partition(|(_, _, compiled)| Arc::strong_count(compiled) > 1);
        *plans = used;
        drop(plans);
        let idle: Vec<(Signature, CopiedPerRun, Arc<Compiled>)> = idle;
        tracing::info!(target: "onepool::session", plans = idle.len(), "memory ran out: idle plans are given back");
    }
}
