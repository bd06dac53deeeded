//! Sessions: a graph made ready on a table of devices, bound to memory, run many times.
//!
//! A [`Session`] owns a graph, opened devices and a bounded cache of plans, one for each distinct set of
//! input shapes. [`Session::bind`] ties memory to inputs and outputs: what can be imported is, and
//! [`Binding::verdicts`] says of every tensor what was done and why. [`Session::set_input`],
//! [`Session::run`] and [`Session::get_output`] are the by-value way: they copy.

mod arena;
mod bind;
mod binding;
mod cancel;
mod compiled;
mod control;
mod device;
mod error;
mod flight;
mod launch;
mod options;
mod overrides;
mod params;
mod pieces;
mod placement;
mod profile;
mod rebind;
mod recover;
mod route;
mod slot;
mod sources;
mod stage;
mod traffic;
pub mod tvm;
mod unify;
mod visibility;

pub use arena::{ArenaUsage, SharedArena};
pub use bind::{BindingBuilder, Memory, SessionScope};
pub use binding::{Binding, HostView};
pub use cancel::{CancelToken, Progress, RunOptions};
pub use error::{Error, SessionError};
pub use launch::Pending;
pub use options::SessionBuilder;
pub use params::{ParamStore, ParamUsage};
pub use pieces::{LIMIT_VARIABLE, NoLimit, SubmissionLimit};
pub use placement::{Placement, PlacementCache};
pub use profile::{NodeTime, Profile, SegmentTime};
pub use unify::Unified;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use self::binding::check_info;
use self::compiled::Compiled;
use self::device::Device;
use self::options::Options;
use self::placement::Copied;
use self::recover::Origins;
use self::sources::Sources;
use self::stage::Stage;
use self::traffic::Traffic;
use crate::backend::DeviceInfo;
use crate::dtype::DType;
use crate::graph::{Graph, Tensor, TensorDecl, TensorInfo};
use crate::plan::{self, Assignment, Compiler, Plan, PlanOutcome, Signature};
use crate::shape::{Shape, SymShape};
use crate::sync::lock;

/// How many plans a session keeps; the one unused for longest goes first.
const CACHED_PLANS: usize = 16;

/// An input or output as the model declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoInfo {
    /// Its name.
    pub name: String,
    /// Its element type, where the model declares one.
    pub dtype: Option<DType>,
    /// Its sizes, where the model declares any.
    pub shape: Option<SymShape>,
}

impl From<&TensorDecl> for IoInfo {
    fn from(t: &TensorDecl) -> Self {
        IoInfo { name: t.name.clone(), dtype: t.dtype, shape: t.shape.clone() }
    }
}

#[derive(Debug)]
struct Inner {
    graph: Arc<Graph>,
    devices: Vec<Device>,
    options: Options,
    params: Arc<ParamStore>,
    sources: Arc<Sources>,
    plans: Mutex<Vec<(Signature, Copied, Arc<Compiled>)>>,
    traffic: Arc<Traffic>,
}

/// A graph made ready on devices.
///
/// ```
/// use onepool::{DType, GraphBuilder, Session, Tensor, ops};
/// let mut g = GraphBuilder::new("double");
/// let x = g.input("x", DType::F32, ["n".into()]);
/// let y = g.op(ops::add(), &[x, x]);
/// g.output("y", y);
/// let mut session = Session::builder().graph(g.build()?).device("cpu").build()?;
/// session.set_input("x", &Tensor::new([3], &[1.0f32, 2.0, 3.0])?)?;
/// session.run()?;
/// assert_eq!(session.get_output("y")?.as_slice::<f32>()?, [2.0, 4.0, 6.0]);
/// # Ok::<(), onepool::Error>(())
/// ```
#[derive(Debug)]
pub struct Session {
    inner: Arc<Inner>,
    values: BTreeMap<usize, Tensor>,
    /// The binding of `run` and the inputs whose values it does not hold yet.
    current: Option<(Binding<'static>, Vec<usize>)>,
    /// How its devices were opened.
    origins: Origins,
}

impl Session {
    /// Begins a session: a model or graph, devices, options.
    pub fn builder() -> SessionBuilder {
        SessionBuilder::default()
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.inner.graph
    }

    /// The devices, in the order of the table.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceInfo> {
        self.inner.devices.iter().map(|d| d.context.info())
    }

    /// The opened device of entry `index`.
    pub fn context(&self, index: usize) -> Option<&crate::device::Context> {
        self.inner.devices.get(index).map(|d| &d.context)
    }

    /// The parameters that the session reads.
    pub fn params(&self) -> &Arc<ParamStore> {
        &self.inner.params
    }

    /// The inputs that the caller gives.
    pub fn inputs(&self) -> Vec<IoInfo> {
        let graph = &self.inner.graph;
        graph.inputs().iter().map(|&id| graph.tensor(id).into()).collect()
    }

    /// The outputs.
    pub fn outputs(&self) -> Vec<IoInfo> {
        let graph = &self.inner.graph;
        let named = |(name, id): &(String, _)| IoInfo { name: name.clone(), ..graph.tensor(*id).into() };
        graph.outputs().iter().map(named).collect()
    }

    /// The plan of [`Session::run`] for inputs of these types and shapes, in the order of [`Session::inputs`].
    ///
    /// # Errors
    /// [`Error::Plan`].
    pub fn plan(&self, infos: &[TensorInfo]) -> Result<Plan, Error> {
        Ok(self.inner.compiled(infos, &BTreeMap::new(), Copied::ALL)?.plan.clone())
    }

    /// Begins to bind memory to inputs and outputs.
    pub fn bind(&self) -> BindingBuilder<'static> {
        BindingBuilder::new(&self.inner)
    }

    /// Calls `f` with a scope in which borrowed memory can be bound. Returns once every device has finished
    /// with it, also when `f` panics.
    pub fn scope<'env, R>(&self, f: impl for<'s> FnOnce(SessionScope<'s, 'env>) -> R) -> R {
        let contexts: Vec<crate::device::Context> =
            self.inner.devices.iter().map(|d| d.context.clone()).collect();
        crate::device::scope(&contexts, |scope| f(SessionScope::new(&self.inner, scope)))
    }

    /// Gives input `name` a value, by copy.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::DType`], [`SessionError::Shape`].
    pub fn set_input(&mut self, name: &str, value: &Tensor) -> Result<(), Error> {
        let i = self.inner.input_position(name)?;
        self.inner.check_declared(i, value.info())?;
        // A value that decides shapes is part of the plan, so another one may need another plan.
        let fits = self.current.as_ref().is_some_and(|(binding, _)| {
            check_info(&binding.plan().inputs[i], value.info()).is_ok() && binding.takes_value(i)
        });
        if fits && let Some((binding, missing)) = &mut self.current {
            // Until all of it is written.
            missing.push(i);
            binding.set_input(name, value)?;
            missing.retain(|m| *m != i);
        } else {
            self.current = None;
        }
        self.values.insert(i, value.clone());
        Ok(())
    }

    /// Runs on the values given to the inputs and waits.
    ///
    /// # Errors
    /// [`SessionError::Unbound`] names the inputs without a value; [`Error::Plan`], [`Error::Device`].
    pub fn run(&mut self) -> Result<(), Error> {
        self.run_with(&self.inner.options.run.clone())
    }

    /// As [`Session::run`], with other options than the session's.
    ///
    /// # Errors
    /// As there, [`SessionError::Cancelled`], [`SessionError::TimeLimit`].
    pub fn run_with(&mut self, options: &RunOptions) -> Result<(), Error> {
        if self.current.is_none() {
            let binding = self.bind_values()?;
            self.current = Some((binding, (0..self.inner.graph.inputs().len()).collect()));
        }
        let Some((binding, missing)) = &mut self.current else { return Err(SessionError::NotRun.into()) };
        while let Some(&i) = missing.last() {
            if let Some(value) = self.values.get(&i) {
                binding.write_input(i, value.bytes())?;
            }
            missing.pop();
        }
        binding.run_with(options)
    }

    /// Copies output `name` of the last run out.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::NotRun`], [`Error::Device`].
    pub fn get_output(&self, name: &str) -> Result<Tensor, Error> {
        match &self.current {
            Some((binding, _)) => binding.get_output(name),
            None => Err(SessionError::NotRun.into()),
        }
    }

    /// The binding of the last [`Session::run`], for its verdicts, plan and views.
    pub fn binding(&self) -> Option<&Binding<'static>> {
        self.current.as_ref().map(|(binding, _)| binding)
    }

    fn bind_values(&self) -> Result<Binding<'static>, Error> {
        let graph = &self.inner.graph;
        let missing: Vec<String> = (graph.inputs().iter().enumerate())
            .filter(|(i, _)| !self.values.contains_key(i))
            .map(|(_, &id)| graph.tensor(id).name.clone())
            .collect();
        if !missing.is_empty() {
            return Err(SessionError::Unbound { names: missing }.into());
        }
        let mut builder = self.bind();
        for (i, value) in &self.values {
            let name = &graph.tensor(graph.inputs()[*i]).name;
            builder = builder.input(name, Memory::value(value.clone()));
        }
        builder.build()
    }
}

impl Inner {
    /// Copies from or to memory that the caller bound. Where runs of the session that are in flight still use it, they
    /// are waited for.
    fn past_runs(&self, copy: impl Fn(&[Device]) -> Result<(), Error>) -> Result<(), Error> {
        match copy(&self.devices) {
            Err(error) if error.is_busy() => {
                self.traffic.settle();
                // What goes wrong in a run is for whoever waits for it.
                self.devices.iter().for_each(|device| drop(device.queue.finish()));
                copy(&self.devices)
            }
            result => result,
        }
    }

    /// Gives back what nobody uses now: plans without a binding, with their kernels and parameters.
    fn relieve(&self) {
        let mut plans = lock(&self.plans);
        let (used, idle) = std::mem::take(&mut *plans)
            .into_iter()
            .partition(|(_, _, compiled)| Arc::strong_count(compiled) > 1);
        *plans = used;
        drop(plans);
        let idle: Vec<(Signature, Copied, Arc<Compiled>)> = idle;
        tracing::info!(target: "onepool::session", plans = idle.len(), "memory ran out: idle plans are given back");
    }

    fn input_position(&self, name: &str) -> Result<usize, SessionError> {
        let names = || self.graph.inputs().iter().map(|&id| &self.graph.tensor(id).name);
        names().position(|n| n == name).ok_or_else(|| SessionError::Unknown {
            what: "input",
            name: name.to_owned(),
            known: names().cloned().collect(),
        })
    }

    fn output_position(&self, name: &str) -> Result<usize, SessionError> {
        self.graph.output(name).ok_or_else(|| SessionError::Unknown {
            what: "output",
            name: name.to_owned(),
            known: self.graph.outputs().iter().map(|(n, _)| n.clone()).collect(),
        })
    }

    /// Checks type and shape of an input against the model's declaration.
    fn check_declared(&self, i: usize, got: &TensorInfo) -> Result<(), SessionError> {
        check_declared(self.graph.tensor(self.graph.inputs()[i]), got)
    }

    /// Checks all inputs together: symbols have one size.
    fn check_symbols(&self, infos: &[TensorInfo]) -> Result<(), SessionError> {
        let mut symbols = BTreeMap::new();
        for (&id, info) in self.graph.inputs().iter().zip(infos) {
            let t = self.graph.tensor(id);
            if let Some(declared) = &t.shape {
                declared
                    .unify(&info.shape, &mut symbols)
                    .map_err(|source| SessionError::Shape { name: t.name.clone(), source })?;
            }
        }
        Ok(())
    }

    /// The type and shape of input `i`, where the model fixes them.
    fn fixed_info(&self, i: usize) -> Option<TensorInfo> {
        let t = self.graph.tensor(self.graph.inputs()[i]);
        Some(TensorInfo::new(t.dtype?, t.shape.as_ref()?.concrete()?))
    }

    /// The plan of a signature with its device objects, from the cache or made now.
    ///
    /// `values` are inputs that the caller knows; those of them that decide shapes become part of the plan. What is
    /// `copied` in every run counts where the placement is automatic.
    fn compiled(
        &self,
        infos: &[TensorInfo],
        values: &BTreeMap<usize, Tensor>,
        copied: Copied,
    ) -> Result<Arc<Compiled>, Error> {
        let copied = if self.options.placer.is_some() { copied } else { Copied::default() };
        let inputs = infos.iter().map(|i| (i.dtype, i.shape.to_vec())).collect::<Vec<_>>();
        let mut signature = Signature { inputs, values: BTreeMap::new() };
        let mut known: BTreeMap<usize, Tensor> = BTreeMap::new();
        let mut graph = Arc::clone(&self.graph);
        loop {
            // A plan made before for these shapes tells which values it depends on.
            if let Some(found) = self.cached(&signature, copied) {
                return Ok(found);
            }
            let remarks = self.sources.remarks().len();
            // At most once for every device: what it refused is not planned again.
            let refused = || self.sources.remarks().len() > remarks;
            let outcome = match self.compile(&graph, infos, &known, copied) {
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
                    // What it hands on stays where it is.
                    let copied = Copied { outputs: false, ..copied };
                    let head = match self.compile(&split.head, infos, &known, copied) {
                        Err(_) if refused() => continue,
                        head => head?.plan()?,
                    };
                    Compiled { stage: Some(Arc::new(Stage::new(self, split))), ..head }
                }
            };
            return Ok(self.keep(signature, copied, compiled));
        }
    }

    /// The plan of `graph` with its device objects.
    fn compile(
        &self,
        graph: &Graph,
        infos: &[TensorInfo],
        known: &BTreeMap<usize, Tensor>,
        copied: Copied,
    ) -> Result<PlanOutcome<Compiled>, Error> {
        if let Some(placer) = &self.options.placer {
            return placer.compile(self, graph, infos, known, copied);
        }
        let usable = self.sources.usable(&self.devices);
        let devices: Vec<&DeviceInfo> = usable.iter().map(|d| &**d).collect();
        let (options, cache) = (&self.options.plan, self.sources.cache(&self.devices));
        let compiler =
            Compiler { graph, devices: &devices, options, assignment: Assignment::default(), cache };
        compiler.compile(infos, known)?.try_map(|plan| self.ready(plan))
    }

    /// A plan with its device objects; its report has what the session knows of it.
    fn ready(&self, mut plan: Plan) -> Result<Compiled, Error> {
        plan.report.remarks = self.sources.remarks();
        plan.report.foreign = self.options.foreign.to_vec();
        plan.report.add_prepared(&self.options.prepared);
        Compiled::new(plan, &self.devices, &self.params, &self.sources)
    }

    /// Keeps a plan, in the place of the one that was not used for longest where there are many.
    fn keep(&self, signature: Signature, copied: Copied, compiled: Compiled) -> Arc<Compiled> {
        let compiled = Arc::new(compiled);
        let mut plans = lock(&self.plans);
        if plans.len() >= CACHED_PLANS {
            plans.remove(0);
        }
        plans.push((signature, copied, Arc::clone(&compiled)));
        compiled
    }

    /// The same devices, options and parameters for another graph.
    fn child(&self, graph: Arc<Graph>) -> Arc<Inner> {
        Arc::new(Inner {
            graph,
            devices: self.devices.clone(),
            options: self.options.clone(),
            params: Arc::clone(&self.params),
            sources: Arc::clone(&self.sources),
            plans: Mutex::default(),
            traffic: Arc::default(),
        })
    }

    /// As [`Inner::child`], for a graph inside a node, which no pass of this graph's own report is about.
    fn body(&self, graph: &Arc<Graph>) -> Arc<Inner> {
        let mut body = self.child(Arc::clone(graph));
        if let Some(body) = Arc::get_mut(&mut body) {
            body.options.prepared = Arc::default();
        }
        body
    }

    fn cached(&self, signature: &Signature, copied: Copied) -> Option<Arc<Compiled>> {
        let mut plans = lock(&self.plans);
        let at = plans.iter().position(|(s, c, _)| s == signature && *c == copied)?;
        let found = plans.remove(at);
        let compiled = Arc::clone(&found.2);
        plans.push(found);
        Some(compiled)
    }
}

/// Checks type and shape of an input against its declaration.
fn check_declared(t: &TensorDecl, got: &TensorInfo) -> Result<(), SessionError> {
    if let Some(expected) = t.dtype
        && expected != got.dtype
    {
        return Err(SessionError::DType { name: t.name.clone(), expected, got: got.dtype });
    }
    if let Some(declared) = &t.shape {
        declared
            .unify(&got.shape, &mut BTreeMap::new())
            .map_err(|source| SessionError::Shape { name: t.name.clone(), source })?;
    }
    Ok(())
}

/// The shape that a caller gives or the model fixes.
fn chosen_shape(given: Option<&Shape>, fixed: Option<&TensorInfo>) -> Option<Shape> {
    given.cloned().or_else(|| fixed.map(|f| f.shape.clone()))
}

#[cfg(test)]
mod cancel_tests;
#[cfg(test)]
mod recover_tests;
#[cfg(test)]
mod removal_tests;
#[cfg(test)]
mod stage_tests;
#[cfg(test)]
mod tests;
