//! Graphs whose sizes are known only in the run: a plan's results decide what is planned next.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::control;
use super::control::Repeat;
use crate::graph::{GraphError, Tensor, TensorInfo};
use crate::memory::host::SharedRegion;
use crate::memory::range::ByteRange;
use crate::ops::control::Control;
use crate::ops::{Fact, OpCx, OpError};
use crate::plan::{Feed, HostStep, PlanError, Split, StepInput};
use crate::session::bind::binding::Binding;
use crate::session::bind::slot::{BindPolicy, Source};
use crate::session::core::SessionCore;
use crate::session::core::cancel::{Progress, Watch};
use crate::session::core::compiled::shared;
use crate::session::core::device::Device;
use crate::session::error::Error;
use crate::session::placement::Copied;

/// What comes after the plan of a head.
#[derive(Debug)]
pub(in crate::session) struct Stage {
    steps: Vec<(HostStep, Option<Arc<SessionCore>>)>,
    feeds: Vec<Feed>,
    needed: Vec<usize>,
    tail: Arc<SessionCore>,
}

impl Stage {
    pub(in crate::session) fn new(inner: &SessionCore, split: Split) -> Self {
        let body = |step: &HostStep| match step.op.control() {
            Some(Control::Loop(l)) => Some(inner.body(&l.body)),
            Some(Control::Scan(s)) => Some(inner.body(&s.body)),
            Some(Control::If { .. }) | None => None,
        };
        Stage {
            steps: split.steps.into_iter().map(|s| (body(&s), s)).map(|(b, s)| (s, b)).collect(),
            feeds: split.feeds,
            needed: split.needed,
            tail: inner.child(Arc::new(split.tail)),
        }
    }

    /// Everything that is read after the head.
    pub(in crate::session) fn feeds(&self) -> impl Iterator<Item = Feed> {
        let read = self.steps.iter().flat_map(|(step, _)| step.inputs.iter().flatten());
        let read = read.filter_map(|input| match input {
            StepInput::Feed(feed) => Some(*feed),
            StepInput::Constant(_) => None,
        });
        self.feeds.iter().copied().chain(read)
    }
}

/// A tensor between stages.
#[derive(Clone, Debug)]
pub(in crate::session) struct Held<'e> {
    pub(in crate::session) info: TensorInfo,
    pub(in crate::session) memory: HeldMemory<'e>,
}

#[derive(Clone, Debug)]
pub(in crate::session) enum HeldMemory<'e> {
    /// A value on the host.
    Value(Tensor),
    /// Memory that a device may have.
    Placed(Source<'e>),
}

impl<'e> Held<'e> {
    pub(in crate::session) fn value(tensor: Tensor) -> Self {
        Held { info: tensor.info().clone(), memory: HeldMemory::Value(tensor) }
    }

    /// Its elements on the host: the value, or a copy.
    pub(in crate::session) fn tensor(&self, devices: &[Device]) -> Result<Tensor, Error> {
        let source = match &self.memory {
            HeldMemory::Value(tensor) => return Ok(tensor.clone()),
            HeldMemory::Placed(source) => source,
        };
        let bytes = self.info.bytes() as u64;
        Tensor::build(self.info.clone(), |out| match source {
            Source::Value => Ok(()),
            Source::Region(region, range) => {
                let range = ByteRange::new(range.start, range.start.saturating_add(bytes));
                out.copy_from_slice(&region.read_range(range)?);
                Ok(())
            }
            Source::Lent(lent, range) => Ok::<(), Error>(lent.read_into(range.start, out)?),
            Source::Buffer(buffer) => {
                let context = buffer.context_id();
                let device = devices.iter().find(|d| d.context.id() == context);
                Ok(device.map_or(Ok(()), |d| d.read(buffer, out))?)
            }
        })
    }

    /// Memory to bind, and the value that has to be written to it.
    pub(in crate::session) fn source(&self) -> (Source<'e>, Option<&Tensor>) {
        match &self.memory {
            HeldMemory::Value(tensor) => (Source::Value, Some(tensor)),
            HeldMemory::Placed(source) => (source.clone(), None),
        }
    }
}

/// What a binding runs after the commands of its plan.
#[derive(Debug)]
pub(in crate::session) struct Rest<'e> {
    stage: Arc<Stage>,
    /// Memory of the whole graph's inputs and of the head's outputs that are read later.
    fed: BTreeMap<Feed, Held<'e>>,
    /// Memory that the caller bound to outputs of the tail, by name.
    outputs: BTreeMap<String, Source<'e>>,
    policy: BindPolicy,
    repeats: BTreeMap<usize, Repeat<'e>>,
    child: Option<Box<Binding<'e>>>,
}

impl<'e> Rest<'e> {
    pub(in crate::session) fn new(
        stage: &Arc<Stage>,
        fed: BTreeMap<Feed, Held<'e>>,
        outputs: BTreeMap<String, Source<'e>>,
        policy: BindPolicy,
    ) -> Self {
        let stage = Arc::clone(stage);
        Rest { stage, fed, outputs, policy, repeats: BTreeMap::new(), child: None }
    }

    /// The binding of the tail, once it has run.
    pub(in crate::session) fn child(&self) -> Option<&Binding<'e>> {
        self.child.as_deref()
    }

    /// Other memory for an input of the whole graph or an output of the head.
    pub(in crate::session) fn refeed(&mut self, feed: Feed, source: &Source<'e>) {
        if let Some(held) = self.fed.get_mut(&feed) {
            held.memory = HeldMemory::Placed(source.clone());
        }
    }

    /// Other memory for an output of the tail. Says whether there is such an output.
    pub(in crate::session) fn rebind_output(&mut self, name: &str, source: Source<'e>) -> bool {
        if self.stage.tail.graph.output(name).is_none() {
            return false;
        }
        self.outputs.insert(name.to_owned(), source);
        self.child = None;
        true
    }

    /// Runs the steps and the tail. The head has run.
    pub(in crate::session) fn run(&mut self, watch: &Watch) -> Result<(), Error> {
        let stage = Arc::clone(&self.stage);
        let mut results: Vec<Vec<Held<'e>>> = Vec::with_capacity(stage.steps.len());
        for (s, (step, body)) in stage.steps.iter().enumerate() {
            watch.check(|| Progress { done: s, of: stage.steps.len(), ..Progress::default() })?;
            let inputs = step
                .inputs
                .iter()
                .map(|input| match input {
                    None => Ok(None),
                    Some(StepInput::Constant(value)) => Ok(Some(Held::value(value.clone()))),
                    Some(StepInput::Feed(feed)) => self.fed(&step.name, *feed, &results).map(Some),
                })
                .collect::<Result<Vec<_>, _>>()?;
            results.push(match (step.op.control(), body) {
                (Some(flow), Some(body)) => {
                    let repeat = self.repeats.entry(s).or_insert_with(|| Repeat::new(body, self.policy));
                    control::run(flow, step, &inputs, repeat, watch)?
                }
                _ => host(step, &inputs, &stage.tail.devices)?,
            });
        }
        let fed =
            (stage.feeds.iter()).map(|feed| self.fed("", *feed, &results)).collect::<Result<Vec<_>, _>>()?;
        self.tail(&fed, watch)
    }

    fn fed(&self, node: &str, feed: Feed, results: &[Vec<Held<'e>>]) -> Result<Held<'e>, Error> {
        let found = match feed {
            Feed::Step { step, output } => results.get(step).and_then(|r| r.get(output)),
            feed => self.fed.get(&feed),
        };
        found.cloned().ok_or_else(|| {
            let (name, user) = (format!("{feed:?}"), node.to_owned());
            PlanError::Graph(GraphError::Dangling { name, user }).into()
        })
    }

    fn tail(&mut self, fed: &[Held<'e>], watch: &Watch) -> Result<(), Error> {
        let tail = &self.stage.tail;
        let infos: Vec<TensorInfo> = fed.iter().map(|h| h.info.clone()).collect();
        let mut values = BTreeMap::new();
        for &i in &self.stage.needed {
            if let Some(held) = fed.get(i) {
                values.insert(i, held.tensor(&tail.devices)?);
            }
        }
        let compiled = tail.compiled(&infos, &values, Copied::default())?;
        match &mut self.child {
            Some(child) if Arc::ptr_eq(&child.compiled, &compiled) => {
                child.refill(fed, &[])?;
            }
            child => {
                let inputs = fed.iter().map(|h| h.source().0).collect();
                let names = tail.graph.outputs().iter().map(|(name, _)| name);
                let outputs = names.map(|n| self.outputs.get(n).cloned().unwrap_or(Source::Value)).collect();
                let made = Binding::assemble(tail, compiled, inputs, outputs, self.policy)?;
                made.fill(fed)?;
                *child = Some(Box::new(made));
            }
        }
        match &mut self.child {
            Some(child) => child.run_within(watch),
            None => Ok(()),
        }
    }
}

/// Runs an operator on the host.
fn host<'e>(
    step: &HostStep,
    inputs: &[Option<Held<'e>>],
    devices: &[Device],
) -> Result<Vec<Held<'e>>, Error> {
    let facts = inputs
        .iter()
        .map(|held| held.as_ref().map(|h| h.tensor(devices).map(Fact::known)).transpose())
        .collect::<Result<Vec<_>, Error>>()?;
    let unknown = || Err(OpError::unsupported("it has no function for the host"));
    let results = step.op.host(&OpCx::for_infer(facts, step.outputs)).unwrap_or_else(unknown);
    let results = results.map_err(|source| node_error(step, source))?;
    Ok(results.into_iter().map(Held::value).collect())
}

/// An error about a step.
pub(in crate::session) fn node_error(step: &HostStep, source: OpError) -> Error {
    let (node, op) = (step.name.clone(), step.op.name().to_owned());
    PlanError::Graph(GraphError::Node { node, op, source }).into()
}

/// Memory for a tensor that later stages read.
pub(in crate::session) fn owned<'e>(info: &TensorInfo) -> Result<(Arc<SharedRegion>, Source<'e>), Error> {
    let region = shared((info.bytes() as u64).max(16), &[])?;
    let range = ByteRange::up_to(info.bytes() as u64);
    Ok((Arc::clone(&region), Source::Region(region, range)))
}
