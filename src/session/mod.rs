//! Sessions: a graph compiled for a table of devices, bound to memory, run many times.
//!
//! A [`Session`] owns a graph, opened devices and a bounded cache of plans, one for each distinct set of input
//! shapes. [`Session::bind`] ties memory to inputs and outputs: it imports what it can, and [`Binding::verdicts`]
//! tells how every tensor reaches the devices and why. [`Session::set_input`], [`Session::run`] and
//! [`Session::get_output`] work by value: they copy.

mod bind;
mod binding_builder;
mod builder;
mod core;
mod error;
mod error_class;
mod frames;
mod models;
mod overrides;
mod placement;
mod recover;
mod run;
mod shared_devices;
mod stages;
mod tuning;
pub mod tvm;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use self::bind::binding::check_info;
pub use self::bind::binding::{Binding, HostView};
pub use self::bind::memory::Memory;
pub use self::binding_builder::{BindingBuilder, SessionScope};
pub use self::builder::SessionBuilder;
use self::core::SessionCore;
pub use self::core::arena::{ArenaUsage, SharedArena};
pub use self::core::cancel::{CancelToken, RunOptions};
pub use self::core::params::{ParamStore, ParamUsage};
pub use self::core::pieces::{LIMIT_VARIABLE, SubmissionLimit};
pub use self::core::unify::Unified;
pub use self::error::{Error, NoLimit, Progress, SessionError};
pub use self::error_class::ErrorClass;
pub use self::placement::{NodePlacement, PlacementCache};
use self::recover::Origins;
pub use self::run::pending::Pending;
pub use self::run::profile::{NodeTime, Profile, SegmentTime};
pub use self::shared_devices::SharedDevices;
use self::tuning::KernelTuner;
pub use self::tuning::{TunedChoice, Tuning, TuningReport};
use crate::backend::DeviceInfo;
use crate::dtype::DType;
use crate::graph::{Graph, ModelMetadata, Tensor, TensorDecl, TensorInfo};
use crate::ops::movement::StridedView;
use crate::plan::Plan;
use crate::shape::SymShape;

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

/// A graph compiled for devices.
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
    core: Arc<SessionCore>,
    values: BTreeMap<usize, Tensor>,
    /// The binding of `run` and the inputs whose values it does not hold yet.
    current: Option<(Binding<'static>, Vec<usize>)>,
    /// How its devices were opened.
    origins: Origins,
    /// What measures its kernels.
    tuner: Option<Arc<KernelTuner>>,
}

impl Session {
    /// Returns a builder of a session: a model or graph, devices, options.
    pub fn builder() -> SessionBuilder {
        SessionBuilder::default()
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.core.graph
    }

    /// What the model's file says of itself.
    pub fn metadata(&self) -> &ModelMetadata {
        self.core.graph.metadata()
    }

    /// The devices, in the order of the table.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceInfo> {
        self.core.devices.iter().map(|d| d.context.info())
    }

    /// The opened device of entry `index`.
    pub fn context(&self, index: usize) -> Option<&crate::device::Context> {
        self.core.devices.get(index).map(|d| &d.context)
    }

    /// The parameters that the session reads.
    pub fn params(&self) -> &Arc<ParamStore> {
        &self.core.params
    }

    /// The same model on the same devices, with the parameters that they hold, where elements of inputs lie at strides:
    /// the first kernel of a run reads them there. Each such input is then the memory, a tensor of one dimension from
    /// the lowest address on ([`StridedView::memory_elements`]).
    ///
    /// # Errors
    /// [`SessionError::Unknown`]; [`SessionError::Shape`] where a view has another shape than the model declares;
    /// [`Error::Graph`].
    pub fn with_views(&self, views: Vec<(String, StridedView)>) -> Result<Session, Error> {
        let SessionCore { devices, options, params, .. } = &*self.core;
        let graph = Arc::new(frames::put_views(self.graph().clone(), views)?);
        let core =
            SessionCore::new(graph, devices.clone(), options.clone(), Arc::clone(params), Arc::default());
        let (origins, tuner) = (self.origins.clone(), self.tuner.clone());
        Ok(Session { core: Arc::new(core), values: Default::default(), current: None, origins, tuner })
    }

    /// What a `float32` model computes in.
    #[cfg(feature = "generate")]
    pub(crate) fn precision(&self) -> crate::plan::Precision {
        self.core.options.plan.precision
    }

    /// A session on the same devices with the same options and parameters, for a graph that is this session's but for a
    /// few nodes.
    #[cfg(feature = "generate")]
    pub(crate) fn with_graph(&self, graph: Graph) -> Session {
        let (origins, tuner) = (self.origins.clone(), self.tuner.clone());
        let core = self.core.child(Arc::new(graph));
        Session { core, values: Default::default(), current: None, origins, tuner }
    }

    /// The inputs that the caller gives. One that is described as a frame is the bytes of its memory; where it has
    /// several memories, each is an input, named `image:0`, `image:1` and so on.
    pub fn inputs(&self) -> Vec<IoInfo> {
        let (graph, frames) = (&self.core.graph, &self.core.options.frames);
        let given = graph.inputs().iter().enumerate().filter(|(i, _)| !frames.is_before(*i));
        given.map(|(_, &id)| graph.tensor(id).into()).collect()
    }

    /// The outputs. Frames are as in [`Session::inputs`].
    pub fn outputs(&self) -> Vec<IoInfo> {
        let graph = &self.core.graph;
        let named = |(name, id): &(String, _)| IoInfo { name: name.clone(), ..graph.tensor(*id).into() };
        graph.outputs().iter().map(named).collect()
    }

    /// The plan of [`Session::run`] for inputs of these types and shapes, in the order of [`Session::inputs`].
    ///
    /// # Errors
    /// [`Error::Plan`].
    pub fn plan(&self, infos: &[TensorInfo]) -> Result<Plan, Error> {
        Ok(self.core.compiled_by_value(infos)?.plan.clone())
    }

    /// How many plans were made so far. A run that finds its plan makes none.
    pub fn plans_made(&self) -> u64 {
        self.core.plans_made.load(Ordering::Relaxed)
    }

    /// What was measured for plans made so far ([`SessionBuilder::tuning`]).
    pub fn tuning_report(&self) -> TuningReport {
        self.tuner.as_ref().map(|tuner| tuner.report()).unwrap_or_default()
    }

    /// Returns a builder that binds memory to inputs and outputs.
    pub fn bind(&self) -> BindingBuilder<'static> {
        BindingBuilder::new(&self.core)
    }

    /// Calls `f` with a scope in which borrowed memory can be bound. Returns once every device has finished with the
    /// memory, even when `f` panics.
    pub fn scope<'env, R>(&self, f: impl for<'s> FnOnce(SessionScope<'s, 'env>) -> R) -> R {
        let contexts: Vec<crate::device::Context> =
            self.core.devices.iter().map(|d| d.context.clone()).collect();
        crate::device::scope(&contexts, |scope| f(SessionScope::new(&self.core, scope)))
    }

    /// Sets the value of input `name`, by copy.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::DType`], [`SessionError::Shape`].
    pub fn set_input(&mut self, name: &str, value: &Tensor) -> Result<(), Error> {
        let i = self.core.input_position(name)?;
        self.core.check_declared(i, value.info())?;
        // A value that decides shapes is part of the plan, so another one may need another plan.
        let fits = self.current.as_ref().is_some_and(|(binding, _)| {
            check_info(&binding.plan().inputs[i], value.info()).is_ok() && binding.takes_value(i)
        });
        if fits && let Some((binding, missing)) = &mut self.current {
            // The input counts as missing until it is written.
            missing.push(i);
            binding.set_input(name, value)?;
            missing.retain(|m| *m != i);
        } else {
            self.current = None;
        }
        self.values.insert(i, value.clone());
        Ok(())
    }

    /// Runs on the values of the inputs and waits.
    ///
    /// # Errors
    /// [`SessionError::Unbound`] names the inputs without a value; [`Error::Plan`], [`Error::Device`].
    pub fn run(&mut self) -> Result<(), Error> {
        self.run_with(&self.core.options.run.clone())
    }

    /// As [`Session::run`], with other options than the session's.
    ///
    /// # Errors
    /// As there, [`SessionError::Cancelled`], [`SessionError::TimeLimit`].
    pub fn run_with(&mut self, options: &RunOptions) -> Result<(), Error> {
        if self.current.is_none() {
            let binding = self.bind_values()?;
            self.current = Some((binding, (0..self.core.graph.inputs().len()).collect()));
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
        let graph = &self.core.graph;
        let missing: Vec<String> = (graph.inputs().iter().enumerate())
            .filter(|(i, _)| !self.values.contains_key(i) && !self.core.options.frames.is_before(*i))
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

impl SharedArena {
    /// Makes the pool large enough for `session` with inputs of these types and shapes, in the order of
    /// [`Session::inputs`]. Where sizes are known only in the run, this covers only the part before them.
    ///
    /// # Errors
    /// [`Error::Plan`], [`Error::Device`].
    pub fn reserve(&self, session: &Session, infos: &[TensorInfo]) -> Result<(), Error> {
        let compiled = session.core.compiled_by_value(infos)?;
        self.grow_for(&compiled.plan, &session.core.devices)
    }
}

#[cfg(test)]
mod tests;
