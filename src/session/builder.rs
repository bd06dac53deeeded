//! Builders of sessions.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{ContextDesc, DeviceInfo};
use crate::device::Context;
use crate::frame::FrameSpec;
use crate::graph::Graph;
use crate::loader::{self, LoadOptions, UsedFiles};
use crate::memory::host::Unchanging;
use crate::memory::import::ImportCosts;
use crate::plan::passes::{GraphCx, prepare, prepare_and_share};
use crate::plan::{Activations, Integers, PassSelection, PlanOptions, Precision};
use crate::registry::{Registry, default_selector};
use crate::session::core::SessionCore;
use crate::session::core::arena::SharedArena;
use crate::session::core::cancel::RunOptions;
use crate::session::core::device::Device;
use crate::session::core::frames::Frames;
use crate::session::core::options::{BindPolicy, KernelChooser, NodePlacer, Options};
use crate::session::core::params::ParamStore;
use crate::session::core::pieces::SubmissionLimit;
use crate::session::error::{Error, SessionError};
use crate::session::frames::FrameSpecs;
use crate::session::models::{Model, ModelKey};
use crate::session::placement::{BUDGET, NodePlacement, PlacementCache, Placer};
use crate::session::recover::Origins;
use crate::session::shared_devices::SharedDevices;
use crate::session::tuning::{KernelTuner, Tuning};
use crate::session::{Session, overrides};

#[derive(Debug)]
enum Choice {
    Named(String),
    Opened(Context),
}

/// Builds a [`Session`].
#[derive(Debug)]
pub struct SessionBuilder {
    graph: Option<Graph>,
    path: Option<PathBuf>,
    params_file: Option<PathBuf>,
    any_device: bool,
    devices: Vec<Choice>,
    desc: ContextDesc,
    plan: PlanOptions,
    foreign: BTreeSet<String>,
    frames: FrameSpecs,
    bind: BindPolicy,
    params: Option<Arc<ParamStore>>,
    map: Option<Unchanging>,
    arena: Option<Arc<SharedArena>>,
    shared: Arc<SharedDevices>,
    placement: NodePlacement,
    placement_cache: Option<Arc<PlacementCache>>,
    placement_budget: Duration,
    tuning: Tuning,
    tuning_folder: Option<PathBuf>,
    limit: Option<SubmissionLimit>,
    run: RunOptions,
}

impl Default for SessionBuilder {
    fn default() -> Self {
        SessionBuilder {
            graph: None,
            path: None,
            params_file: None,
            any_device: false,
            devices: Vec::new(),
            desc: ContextDesc::default(),
            plan: PlanOptions::default(),
            foreign: BTreeSet::new(),
            frames: FrameSpecs::default(),
            bind: BindPolicy { strict: false, copy_threshold: None, copies: false, runs: ImportCosts::RUNS },
            params: None,
            map: None,
            arena: None,
            shared: SharedDevices::new(),
            placement: NodePlacement::Manual,
            placement_cache: None,
            placement_budget: BUDGET,
            tuning: Tuning::Off,
            tuning_folder: None,
            limit: None,
            run: RunOptions::new(),
        }
    }
}

impl SessionBuilder {
    /// The model file: ONNX, GGUF, or the graph JSON of TVM's graph executor next to its `.params`. The nodes of a graph
    /// JSON run where its column `device_index` says ([`crate::loader::tvm::TvmGraph::place`]).
    pub fn model(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// The parameters of a graph JSON, where they are not next to it.
    pub fn params_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.params_file = Some(path.into());
        self
    }

    /// Whether nodes of a graph JSON whose device is not in the table run on entry 0, which the plan's report then
    /// states, instead of being an error.
    pub fn any_device(mut self, any: bool) -> Self {
        self.any_device = any;
        self
    }

    /// Names of nodes that run on entry 0 because their device is not in the table ([`crate::loader::load_on`]), for
    /// the plan's report.
    pub fn foreign_nodes(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.foreign.extend(names);
        self
    }

    /// A graph, instead of a file.
    pub fn graph(mut self, graph: Graph) -> Self {
        self.graph = Some(graph);
        self
    }

    /// Input `name` of the model is a frame: the caller binds the memory that it lies in, and the first kernel of a run
    /// makes the tensor of it, in place. The node is named `name frame`.
    ///
    /// The memory is an input of bytes with the same name. Where the frame lies in several, each is an input, named
    /// `image:0`, `image:1` and so on ([`BindingBuilder::input_memories`](crate::session::BindingBuilder::input_memories)).
    /// The bytes go to the end of the last row; those between rows are never read.
    pub fn frame_input(mut self, name: impl Into<String>, frame: FrameSpec) -> Self {
        self.frames.inputs.push((name.into(), frame));
        self
    }

    /// Output `name` of the model is a frame, as in [`SessionBuilder::frame_input`]: the last kernel of a run writes its
    /// pixels. Bytes between rows and pixels outside the rectangle stay. Where memory is copied, they are copied out
    /// before the run and back after it.
    pub fn frame_output(mut self, name: impl Into<String>, frame: FrameSpec) -> Self {
        self.frames.outputs.push((name.into(), frame));
        self
    }

    /// Adds a device by name ("auto", "cpu", "vulkan", "vulkan:1", "sim", ...; see [`Registry::open`]). The first one
    /// is entry 0: the device of nodes that nothing else places. Without any, the environment variable
    /// `ONEPOOL_DEVICE` names the device, else it is "auto".
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.devices.push(Choice::Named(name.into()));
        self
    }

    /// Adds an open device; sessions on one context share its memory and kernels.
    pub fn context(mut self, context: Context) -> Self {
        self.devices.push(Choice::Opened(context));
        self
    }

    /// How devices named by [`SessionBuilder::device`] are opened.
    pub fn context_desc(mut self, desc: ContextDesc) -> Self {
        self.desc = desc;
        self
    }

    /// Whether every copy of a bound tensor by the CPU is an error, however small.
    pub fn strict(mut self, strict: bool) -> Self {
        self.bind.strict = strict;
        self
    }

    /// Bytes below which a bound tensor is copied instead of imported; by default the measurement of the device
    /// ([`Context::import_costs`]).
    pub fn copy_threshold(mut self, bytes: u64) -> Self {
        self.bind.copy_threshold = Some(bytes);
        self
    }

    /// Whether operators absorb their bias, normalization and activation, and chains of pointwise operators are
    /// fused.
    pub fn fuse(mut self, fuse: bool) -> Self {
        self.plan.fuse = fuse;
        self
    }

    /// The precision of a `float32` model. Its inputs and outputs keep their types; a device without 16-bit storage
    /// refuses half precision when the plan is made. With [`Precision::F16`] large weights are kept only in
    /// `float16`; an operator without a `float16` kernel reads them widened.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.plan.precision = precision;
        self
    }

    /// Whether products with packed weights may round their activations where the model allows it (MatMulNBits of
    /// `accuracy_level` 4, weights of a GGUF file). By default they may, which is faster on CPUs and with cooperative
    /// matrices; [`Activations::Exact`] is for comparisons with exact results.
    pub fn activations(mut self, activations: Activations) -> Self {
        self.plan.activations = activations;
        self
    }

    /// Whether operators between DequantizeLinear and QuantizeLinear compute on the bytes themselves, as
    /// onnxruntime's do, instead of in `float32`; each result differs by one unit at most. By default those do that
    /// run on a CPU whose vectors multiply bytes; with [`NodePlacement::Auto`], where every device of the table is
    /// such a CPU.
    pub fn integers(mut self, integers: Integers) -> Self {
        self.plan.integers = integers;
        self
    }

    /// Whether a Resize that reads an image may leave interpolation to the hardware even where its weights have only
    /// some 8 bits, so that results differ by up to 1/256 of the difference of neighbours. By default the hardware
    /// interpolates where its weights are exact.
    pub fn coarse_filter(mut self, coarse_filter: bool) -> Self {
        self.plan.coarse_filter = coarse_filter;
        self
    }

    /// Whether chains of pointwise operators are fused, where operators are fused at all.
    pub fn chains(mut self, chains: bool) -> Self {
        self.plan.chains = chains;
        self
    }

    /// Leaves out passes between the graph and its plans, to find the one that causes a difference.
    pub fn passes(mut self, passes: PassSelection) -> Self {
        self.plan.passes = passes;
        self
    }

    /// Whether an operator without a kernel on its device may run on the CPU. A CPU is then added to the table if
    /// there is none.
    pub fn fallback(mut self, fallback: bool) -> Self {
        self.plan.fallback = fallback;
        self
    }

    /// How nodes get their devices that neither the graph nor [`SessionBuilder::place_node`],
    /// [`SessionBuilder::place_op`] or [`SessionBuilder::place_rest`] places.
    pub fn placement(mut self, placement: NodePlacement) -> Self {
        self.placement = placement;
        self
    }

    /// The cache of automatic placement. By default it is in the folder of [`ContextDesc::cache_dir`], or in memory
    /// for this session alone.
    pub fn placement_cache(mut self, cache: Arc<PlacementCache>) -> Self {
        self.placement_cache = Some(cache);
        self
    }

    /// The maximum time that automatic placement spends on measurements, for all plans of the session together; 2 s
    /// by default. Measuring the speeds of a device, once for all sessions with one cache, is not counted. With no
    /// time, estimates decide.
    pub fn placement_budget(mut self, budget: Duration) -> Self {
        self.placement_budget = budget;
        self
    }

    /// Whether kernels are chosen by measurement. What was measured is kept in [`SessionBuilder::tuning_folder`] by
    /// device, driver and kernels, and holds for all models. Another kernel's results may differ in their last bits.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// The folder that keeps what [`SessionBuilder::tuning`] measures. By default it is [`ContextDesc::cache_dir`]; without
    /// either nothing is kept.
    pub fn tuning_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.tuning_folder = Some(folder.into());
        self
    }

    /// Maximum duration of one submission, for which a display on the same device has to wait. By default the
    /// environment variable `ONEPOOL_SUBMISSION_LIMIT`, else [`SubmissionLimit::Auto`].
    pub fn submission_limit(mut self, limit: SubmissionLimit) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Default options of runs: what may end them early. Semaphores belong to single runs.
    pub fn run_options(mut self, run: RunOptions) -> Self {
        self.run = run;
        self
    }

    /// Whether devices access tensors between them in place where they can, the default; otherwise the session copies
    /// them, so that the cost can be measured.
    pub fn share_memory(mut self, share: bool) -> Self {
        self.plan.share = share;
        self
    }

    /// Places every node named `name` on entry `device` of the table.
    pub fn place_node(mut self, name: impl Into<String>, device: u32) -> Self {
        self.plan.place_nodes.insert(name.into(), device);
        self
    }

    /// Places every node of operator `op` on entry `device` of the table.
    pub fn place_op(mut self, op: impl Into<String>, device: u32) -> Self {
        self.plan.place_ops.insert(op.into(), device);
        self
    }

    /// Places every node on entry `device` of the table that neither the graph nor [`SessionBuilder::place_node`] nor
    /// [`SessionBuilder::place_op`] places. Overrides [`NodePlacement::Auto`].
    pub fn place_rest(mut self, device: u32) -> Self {
        self.plan.place_rest = Some(device);
        self
    }

    /// Parameters shared with other sessions: those of equal bytes are held once, whatever they were loaded from
    /// ([`ParamStore::unify`]). On the CPU products read such matrices as they lie, which is slower for few rows than packed.
    pub fn params(mut self, params: Arc<ParamStore>) -> Self {
        self.params = Some(params);
        self.plan.shared_parameters = true;
        self
    }

    /// Reads large parameters of the model's files where they lie in the system's cache of files, so that processes share
    /// them ([`LoadOptions::map`]).
    pub fn map_weights(mut self, files: Unchanging) -> Self {
        self.map = Some(files);
        self
    }

    /// Puts intermediate tensors in a pool that other sessions use too, one at a time. Only sessions on one context
    /// ([`SessionBuilder::context`], [`SessionBuilder::shared_devices`]) share device memory.
    pub fn shared_arena(mut self, arena: Arc<SharedArena>) -> Self {
        self.arena = Some(arena);
        self
    }

    /// Opens devices that are given by name only where no other session with `devices` has.
    pub fn shared_devices(mut self, devices: Arc<SharedDevices>) -> Self {
        self.shared = devices;
        self
    }

    /// Loads the model, opens the devices.
    ///
    /// # Errors
    /// [`Error::Load`], [`Error::Registry`], [`Error::Device`]; [`SessionError::SemaphoresOfSession`];
    /// [`SessionError::ReadsOfSession`]; [`SessionError::ParamsOfGraph`];
    /// [`SessionError::Unknown`] and [`SessionError::Frame`] for frames; [`SessionError::UnknownPlace`] and
    /// [`SessionError::NoEntry`] for invalid arguments of [`SessionBuilder::place_node`],
    /// [`SessionBuilder::place_op`] and [`SessionBuilder::place_rest`].
    pub fn build(mut self) -> Result<Session, Error> {
        if self.graph.is_none() && self.path.is_none() {
            return Err(SessionError::NoModel.into());
        }
        if !self.run.exchange().is_empty() {
            return Err(SessionError::SemaphoresOfSession.into());
        }
        if !self.run.reads().is_empty() {
            return Err(SessionError::ReadsOfSession.into());
        }
        let limit = match self.limit {
            Some(limit) => limit,
            None => SubmissionLimit::of_environment().map_err(SessionError::from)?,
        };
        let (devices, origins) = self.opened()?;
        let infos: Vec<&DeviceInfo> = devices.iter().map(|d| d.context.info()).collect();
        let (Model { graph, prepared, foreign }, frames) = self.prepared_model(&infos)?;
        self.foreign.extend(foreign);
        let placer = (self.placement == NodePlacement::Auto).then(|| {
            let folder = || self.desc.cache_dir.as_deref().map(PlacementCache::in_folder);
            let cache = self.placement_cache.or_else(folder).unwrap_or_default();
            Arc::new(Placer::new(cache, self.placement_budget)) as Arc<dyn NodePlacer>
        });
        let budget = match self.tuning {
            Tuning::Off => None,
            Tuning::Kept => Some(Duration::ZERO),
            Tuning::Within(budget) => Some(budget),
        };
        let folder = self.tuning_folder.or(self.desc.cache_dir);
        let tuner = budget.map(|budget| Arc::new(KernelTuner::new(folder, budget)));
        let chooser = tuner.clone().map(|tuner| tuner as Arc<dyn KernelChooser>);
        let options = Options {
            plan: self.plan,
            prepared,
            foreign: self.foreign.into_iter().collect(),
            bind: self.bind,
            arena: self.arena,
            placer,
            chooser,
            limit,
            frames: Arc::new(frames),
            run: self.run,
        };
        let params = self.params.unwrap_or_default();
        let core = SessionCore::new(graph, devices, options, params, Arc::default());
        Ok(Session { core: Arc::new(core), values: Default::default(), current: None, origins, tuner })
    }

    /// The device table, and how each entry is opened again.
    fn opened(&mut self) -> Result<(Vec<Device>, Origins), Error> {
        let registry = Registry::with_defaults();
        let mut chosen = std::mem::take(&mut self.devices);
        if chosen.is_empty() {
            chosen.push(Choice::Named(default_selector()));
        }
        let mut devices = Vec::with_capacity(chosen.len() + 1);
        let mut selectors = Vec::with_capacity(chosen.len() + 1);
        let open = |name: &str, selectors: &[Option<String>]| {
            let number = selectors.iter().flatten().filter(|other| *other == name).count();
            self.shared.open(&registry, (name, number), &self.desc)
        };
        for choice in chosen {
            let (context, selector) = match choice {
                Choice::Opened(context) => (context, None),
                Choice::Named(name) => (open(&name, &selectors)?, Some(name)),
            };
            devices.push(Device::new(context)?);
            selectors.push(selector);
        }
        if self.plan.fallback && !devices.iter().any(|d| d.context.info().native) {
            devices.push(Device::new(open("cpu", &selectors)?)?);
            selectors.push(Some("cpu".to_owned()));
        }
        Ok((devices, Origins { selectors, desc: self.desc.clone() }))
    }

    /// The graph after its passes: one that the process keeps, or loaded now.
    fn prepared_model(&mut self, devices: &[&DeviceInfo]) -> Result<(Model, Frames), Error> {
        let free = self.placement == NodePlacement::Auto && self.plan.place_rest.is_none();
        // The application's own graphs, stores and frames make a graph of this session's alone.
        let path = self.path.as_deref().filter(|_| self.graph.is_none());
        let shared = path.filter(|_| self.params.is_none() && self.frames.is_empty());
        let loading = (self.any_device, self.map.is_some(), free);
        let key = shared.and_then(|path| ModelKey::new(path, loading, &self.plan, devices));
        // Its key has the placements and the devices, which were checked before passes made other nodes.
        if let Some(model) = key.as_ref().and_then(ModelKey::known) {
            return Ok((model, Frames::default()));
        }
        let used = UsedFiles::default();
        let (graph, foreign) = match (self.graph.take(), &self.path) {
            (Some(_), _) if self.params_file.is_some() => return Err(SessionError::ParamsOfGraph.into()),
            (Some(graph), _) => (graph, Vec::new()),
            (None, Some(path)) => {
                let table: Vec<&str> = devices.iter().map(|info| info.api).collect();
                let (map, params) = (self.map.take(), self.params_file.as_deref());
                let options = LoadOptions { map, params, ..LoadOptions::default() };
                loader::load_noting(path, &options, &table, self.any_device, &used)?
            }
            (None, None) => return Err(SessionError::NoModel.into()),
        };
        let (mut graph, frames) = std::mem::take(&mut self.frames).put_into(graph)?;
        overrides::check(&self.plan, &graph, devices.len())?;
        let cx = GraphCx { options: &self.plan, devices, free };
        let unify = |store: &ParamStore, graph: &mut Graph| Ok::<_, Error>(store.unify(graph)?.tensors);
        let prepared = match &self.params {
            Some(store) => prepare_and_share(&mut graph, &cx, Some(&|graph| unify(store, graph)))?,
            None => prepare(&mut graph, &cx),
        };
        let model = Model { graph: Arc::new(graph), prepared: Arc::new(prepared), foreign };
        if let (Some(key), Some(files)) = (key, used.all()) {
            key.remember(&model, files);
        }
        Ok((model, frames))
    }
}
