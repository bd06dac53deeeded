//! Graphs whose sizes are known only in the run: results of one plan determine the next one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::control;
use super::control::LoopBody;
use crate::graph::{GraphError, TensorInfo};
use crate::ops::{Fact, OpCx, OpError};
use crate::plan::{PlanError, StageInput, StageStep, StepInput};
use crate::session::bind::binding::{Binding, BoundSources, Continue};
use crate::session::bind::memory::{Source, StageValue, owned};
use crate::session::bind::slot::Side;
use crate::session::core::SessionCore;
use crate::session::core::cancel::Watch;
use crate::session::core::compiled::Compiled;
use crate::session::core::device::Device;
use crate::session::core::options::{BindPolicy, CopiedPerRun};
use crate::session::core::staged::LaterStages;
use crate::session::error::{Error, Progress};

/// Binds the memory `inputs` and `outputs` to the inputs and outputs of the graph of `core`, in order, with a
/// continuation where the graph is split.
pub(in crate::session) fn bind<'e>(
    core: &Arc<SessionCore>,
    compiled: Arc<Compiled>,
    mut inputs: Vec<Source<'e>>,
    outputs: Vec<Source<'e>>,
    policy: BindPolicy,
) -> Result<Binding<'e>, Error> {
    let plan = &compiled.plan;
    let names = core.graph.outputs().iter().map(|(name, _)| name.clone());
    let mut by_name: BTreeMap<String, Source<'e>> = names.zip(outputs).collect();
    let outputs = plan.outputs.iter().map(|io| by_name.remove(&io.name).unwrap_or(Source::OWN)).collect();
    inputs.resize(plan.inputs.len(), Source::OWN);
    let mut sources = BoundSources { inputs, outputs, ..BoundSources::default() };
    let mut continuation: Option<Box<dyn Continue<'e> + 'e>> = None;
    if let Some(stage) = &compiled.stage {
        let mut values = BTreeMap::new();
        for input in stage.stage_inputs() {
            let (side, at) = match input {
                StageInput::Input(i) => (Side::Input, i),
                StageInput::Head(o) => (Side::Output, o),
                StageInput::Step { .. } => continue,
            };
            let (source, io) = match side {
                Side::Input => (sources.inputs.get_mut(at), plan.inputs.get(at)),
                Side::Output => (sources.outputs.get_mut(at), plan.outputs.get(at)),
            };
            let (Some(source), Some(io)) = (source, io) else { continue };
            if source.is_own() {
                let (region, placed) = owned(&io.info)?;
                *source = placed;
                sources.allocated.push((side, at));
                if side == Side::Input {
                    sources.stage_inputs.insert(at, region);
                }
            }
            values.insert(input, StageValue { info: io.info.clone(), source: source.clone() });
        }
        continuation = Some(Box::new(Continuation::new(stage, values, by_name, policy)));
    }
    Binding::assemble(core, compiled, sources, policy, continuation)
}

/// The steps and the tail of a split graph.
#[derive(Debug)]
pub(in crate::session) struct Continuation<'e> {
    stage: Arc<LaterStages>,
    /// Inputs of the whole graph and outputs of the head that steps or the tail read.
    stage_inputs: BTreeMap<StageInput, StageValue<'e>>,
    /// Memory that the caller bound to outputs of the tail, by name.
    outputs: BTreeMap<String, Source<'e>>,
    policy: BindPolicy,
    bodies: BTreeMap<usize, LoopBody<'e>>,
    child: Option<Box<Binding<'e>>>,
}

impl<'e> Continuation<'e> {
    pub(in crate::session) fn new(
        stage: &Arc<LaterStages>,
        stage_inputs: BTreeMap<StageInput, StageValue<'e>>,
        outputs: BTreeMap<String, Source<'e>>,
        policy: BindPolicy,
    ) -> Self {
        let stage = Arc::clone(stage);
        Continuation { stage, stage_inputs, outputs, policy, bodies: BTreeMap::new(), child: None }
    }

    /// The value that `node` reads.
    fn stage_value(
        &self,
        node: &str,
        input: StageInput,
        results: &[Vec<StageValue<'e>>],
    ) -> Result<StageValue<'e>, Error> {
        let value = match input {
            StageInput::Step { step, output } => results.get(step).and_then(|r| r.get(output)),
            input => self.stage_inputs.get(&input),
        };
        value.cloned().ok_or_else(|| {
            let (name, user) = (format!("{input:?}"), node.to_owned());
            PlanError::Graph(GraphError::Dangling { name, user }).into()
        })
    }

    fn run_tail(&mut self, inputs: &[StageValue<'e>], watch: &Watch) -> Result<(), Error> {
        let tail = &self.stage.tail;
        let infos: Vec<TensorInfo> = inputs.iter().map(|value| value.info.clone()).collect();
        let mut values = BTreeMap::new();
        for &i in &self.stage.needed {
            if let Some(value) = inputs.get(i) {
                values.insert(i, value.tensor(&tail.devices)?);
            }
        }
        let updates = tail.options.frames.before_in(&tail.graph);
        let compiled = tail.compiled(&infos, &values, &updates, CopiedPerRun::default())?;
        match &mut self.child {
            Some(child) if Arc::ptr_eq(&child.compiled, &compiled) => {
                child.rebind_values(inputs, &[])?;
            }
            child => {
                let sources = inputs.iter().map(|value| value.source.clone().split().0).collect();
                let names = tail.graph.outputs().iter().map(|(name, _)| name);
                let outputs = names.map(|n| self.outputs.get(n).cloned().unwrap_or(Source::OWN)).collect();
                let binding = bind(tail, compiled, sources, outputs, self.policy)?;
                binding.write_values(inputs)?;
                *child = Some(Box::new(binding));
            }
        }
        match &mut self.child {
            Some(child) => child.run_within(watch),
            None => Ok(()),
        }
    }
}

impl<'e> Continue<'e> for Continuation<'e> {
    fn run(&mut self, watch: &Watch) -> Result<(), Error> {
        let stage = Arc::clone(&self.stage);
        let mut results: Vec<Vec<StageValue<'e>>> = Vec::with_capacity(stage.steps.len());
        for (s, (step, body)) in stage.steps.iter().enumerate() {
            watch.check(|| Progress { done: s, of: stage.steps.len(), ..Progress::default() })?;
            let inputs = step
                .inputs
                .iter()
                .map(|input| match input {
                    None => Ok(None),
                    Some(StepInput::Constant(value)) => Ok(Some(StageValue::value(value.clone()))),
                    Some(StepInput::Stage(input)) => self.stage_value(&step.name, *input, &results).map(Some),
                })
                .collect::<Result<Vec<_>, _>>()?;
            results.push(match (step.op.control(), body) {
                (Some(flow), Some(body)) => {
                    let body = self.bodies.entry(s).or_insert_with(|| LoopBody::new(body, self.policy));
                    control::run(flow, step, &inputs, body, watch)?
                }
                _ => host(step, &inputs, &stage.tail.devices)?,
            });
        }
        let inputs = stage.tail_inputs.iter().map(|input| self.stage_value("", *input, &results));
        self.run_tail(&inputs.collect::<Result<Vec<_>, _>>()?, watch)
    }

    fn next_stage(&self) -> Option<&Binding<'e>> {
        self.child.as_deref()
    }

    fn set_stage_input(&mut self, input: StageInput, source: &Source<'e>) {
        if let Some(value) = self.stage_inputs.get_mut(&input) {
            value.source = source.clone();
        }
    }

    fn rebind_output(&mut self, name: &str, source: Source<'e>) -> bool {
        if self.stage.tail.graph.output(name).is_none() {
            return false;
        }
        for (before, output) in &self.stage.tail.options.frames.before_names {
            let inputs = self.stage.tail.graph.inputs();
            let at = inputs.iter().position(|id| self.stage.tail.graph.tensor(*id).name == *before);
            let input = at.filter(|_| output == name).and_then(|at| self.stage.tail_inputs.get(at));
            if let Some(value) = input.and_then(|input| self.stage_inputs.get_mut(input)) {
                value.source = source.clone();
            }
        }
        self.outputs.insert(name.to_owned(), source);
        self.child = None;
        true
    }
}

/// Runs an operator on the host.
fn host<'e>(
    step: &StageStep,
    inputs: &[Option<StageValue<'e>>],
    devices: &[Device],
) -> Result<Vec<StageValue<'e>>, Error> {
    let facts = inputs
        .iter()
        .map(|value| value.as_ref().map(|h| h.tensor(devices).map(Fact::known)).transpose())
        .collect::<Result<Vec<_>, Error>>()?;
    let unknown = || Err(OpError::unsupported("it has no function for the host"));
    let results = step.op.host(&OpCx::for_infer(facts, step.outputs)).unwrap_or_else(unknown);
    let results = results.map_err(|source| node_error(step, source))?;
    Ok(results.into_iter().map(StageValue::value).collect())
}

/// An error about a step.
pub(in crate::session) fn node_error(step: &StageStep, source: OpError) -> Error {
    let (node, op) = (step.name.clone(), step.op.name().to_owned());
    PlanError::Graph(GraphError::Node { node, op, source }).into()
}
