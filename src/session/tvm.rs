//! A session with the names of TVM's graph executor.
//!
//! [`GraphModule`] has `set_input`, `set_input_zero_copy`, `share_params` and the others with their meaning there. It
//! differs where TVM does not check: type, shape, strides and length of foreign memory are checked; an unknown name
//! is an error; memory is kept as long as the module uses it; `set_input` after `set_input_zero_copy` gives the input
//! its own memory again and leaves the caller's unchanged; an output that is an input, or a reshape of one, is
//! written like any other.
//!
//! Memory comes with its `Arc`: a region of the process ([`SharedRegion`]) or a device's [`Buffer`]. The two directions
//! between addresses are [`Context::device_ptr_from_host`] and [`Context::host_ptr_from_device`].

mod bench;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use self::bench::{Benchmark, BenchmarkDesc};

use crate::device::{Buffer, Context};
use crate::dtype::DType;
use crate::graph::{Graph, Tensor, TensorInfo};
use crate::loader::params::read_params;
use crate::loader::tvm::device_type;
use crate::loader::{FunctionTable, load_tvm_bytes};
use crate::memory::host::SharedRegion;
use crate::memory::import::Verdict;
use crate::memory::range::ByteRange;
use crate::session::bind::binding::{Binding, HostView, check_info};
use crate::session::bind::memory::{Memory, Source, StageValue};
use crate::session::binding_builder::BindingBuilder;
use crate::session::core::arena::SharedArena;
use crate::session::core::params::ParamStore;
use crate::session::error::{Error, SessionError};
use crate::session::run::pending::Pending;
use crate::session::{IoInfo, Session};
use crate::shape::Shape;

/// An input or output, by its name or by its number in [`GraphModule::inputs`] or [`GraphModule::outputs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    /// By number.
    Index(usize),
    /// By name.
    Name(&'a str),
}

impl From<usize> for Key<'_> {
    fn from(index: usize) -> Self {
        Key::Index(index)
    }
}

impl<'a> From<&'a str> for Key<'a> {
    fn from(name: &'a str) -> Self {
        Key::Name(name)
    }
}

/// A tensor in the caller's memory, as a `DLTensor` describes one.
#[derive(Clone, Debug)]
pub struct ExternalTensor {
    memory: External,
    info: TensorInfo,
    strides: Option<Vec<i64>>,
    byte_offset: u64,
}

#[derive(Clone, Debug)]
enum External {
    Region(Arc<SharedRegion>),
    Buffer(Buffer),
}

impl ExternalTensor {
    /// A tensor at the start of a region of the process.
    pub fn in_region(region: &Arc<SharedRegion>, dtype: DType, shape: Shape) -> Self {
        ExternalTensor::new(External::Region(Arc::clone(region)), dtype, shape)
    }

    /// A tensor at the start of a buffer of the context that the module runs on.
    pub fn in_buffer(buffer: &Buffer, dtype: DType, shape: Shape) -> Self {
        ExternalTensor::new(External::Buffer(buffer.clone()), dtype, shape)
    }

    fn new(memory: External, dtype: DType, shape: Shape) -> Self {
        ExternalTensor { memory, info: TensorInfo::new(dtype, shape), strides: None, byte_offset: 0 }
    }

    /// Strides in elements. Only those of a compact row-major tensor are accepted by a module.
    pub fn strides(mut self, strides: impl Into<Vec<i64>>) -> Self {
        self.strides = Some(strides.into());
        self
    }

    /// The start of the tensor in the memory, in bytes.
    pub fn byte_offset(mut self, bytes: u64) -> Self {
        self.byte_offset = bytes;
        self
    }

    /// Type and shape.
    pub fn info(&self) -> &TensorInfo {
        &self.info
    }

    /// Checks strides, length and context.
    fn check(&self, name: &str, contexts: &[Context]) -> Result<(), SessionError> {
        if let External::Buffer(buffer) = &self.memory
            && contexts.iter().all(|c| c.id() != buffer.context_id())
        {
            let device = contexts.first().map_or_else(|| "any".to_owned(), |c| c.info().name.clone());
            return Err(SessionError::OtherContext { name: name.to_owned(), device });
        }
        if let Some(strides) = &self.strides {
            let dims = self.info.shape.to_vec();
            let mut compact = vec![1i64; dims.len()];
            for i in (1..dims.len()).rev() {
                let dim = i64::try_from(dims[i]).unwrap_or(i64::MAX);
                compact[i - 1] = compact[i].saturating_mul(dim);
            }
            let same = |((stride, want), dim): ((&i64, &i64), &usize)| stride == want || *dim == 1;
            let fits = strides.len() == dims.len() && strides.iter().zip(&compact).zip(&dims).all(same);
            if !fits && self.info.bytes() > 0 {
                let (name, got) = (name.to_owned(), strides.clone());
                return Err(SessionError::Strides { name, expected: compact, got });
            }
        }
        let there = match &self.memory {
            External::Region(region) => region.bytes() as u64,
            External::Buffer(buffer) => buffer.bytes(),
        };
        let (needed, got) = (self.info.bytes() as u64, there.saturating_sub(self.byte_offset));
        if self.byte_offset > there || got < needed {
            return Err(SessionError::Capacity { name: name.to_owned(), needed, got });
        }
        Ok(())
    }

    fn source(&self) -> Result<Source<'static>, Error> {
        let bytes = self.info.bytes() as u64;
        Ok(match &self.memory {
            External::Region(region) => {
                let range = ByteRange::new(self.byte_offset, self.byte_offset.saturating_add(bytes));
                Source::Region(Arc::clone(region), range)
            }
            // The memory of an empty tensor is never accessed.
            External::Buffer(buffer) if bytes == 0 => Source::Buffer(buffer.clone()),
            External::Buffer(buffer) => Source::Buffer(buffer.sub_buffer(self.byte_offset, bytes)?),
        })
    }

    fn memory(&self) -> Result<Memory<'static>, Error> {
        Ok(Memory::placed(self.source()?).shape(self.info.shape.clone()))
    }
}

/// The value or memory of an input.
#[derive(Clone, Debug)]
enum Given {
    Value(Tensor),
    Placed(ExternalTensor),
}

/// A graph on devices, used as TVM's `GraphModule` is.
///
/// ```
/// use onepool::tvm::{ExternalTensor, GraphModule};
/// use onepool::{DType, GraphBuilder, HostRegion, Shape, ops, registry::Registry};
/// let mut g = GraphBuilder::new("double");
/// let x = g.input("x", DType::F32, [1024.into()]);
/// let y = g.op(ops::add(), &[x, x]);
/// g.output("y", y);
/// let cpu = Registry::with_defaults().open("cpu", &Default::default())?;
/// let mut module = GraphModule::new(g.build()?, &[cpu]);
/// let memory = HostRegion::from_bytes(bytemuck::cast_slice(&[1.5f32; 1024]))?.into_shared();
/// let shape = Shape::new([1024])?;
/// module.set_input_zero_copy("x", &ExternalTensor::in_region(&memory, DType::F32, shape))?;
/// module.run()?;
/// assert_eq!(module.get_output(0)?.as_slice::<f32>()?, [3.0; 1024]);
/// # Ok::<(), onepool::Error>(())
/// ```
#[derive(Debug)]
pub struct GraphModule {
    graph: Graph,
    contexts: Vec<Context>,
    store: Arc<ParamStore>,
    arena: Option<Arc<SharedArena>>,
    strict: bool,
    copy_threshold: Option<u64>,
    /// Inputs that are parameters: part of the session's graph.
    params: BTreeMap<String, Tensor>,
    inputs: BTreeMap<String, Given>,
    outputs: BTreeMap<String, ExternalTensor>,
    session: Option<Session>,
    binding: Option<Binding<'static>>,
}

impl GraphModule {
    /// A module of the graph JSON of TVM's graph executor, with all its inputs open; `contexts` is the device
    /// table that its column `device_index` is about ([`crate::loader::tvm::TvmGraph::place`]); without that column
    /// all nodes run on the first one.
    ///
    /// # Errors
    /// [`Error::Load`], also for a device that is not in the table.
    pub fn create(json: &str, functions: &FunctionTable, contexts: &[Context]) -> Result<Self, Error> {
        let mut graph = load_tvm_bytes(json.as_bytes(), None, functions)?;
        let mut table: Vec<i32> = contexts.iter().map(|c| device_type::of_api(c.info().api)).collect();
        if !contexts.iter().any(|c| c.info().native) {
            // The session adds one.
            table.push(device_type::CPU);
        }
        graph.place(&table, false)?;
        Ok(GraphModule::new(graph.into_graph(), contexts))
    }

    /// A module of any graph.
    pub fn new(graph: Graph, contexts: &[Context]) -> Self {
        GraphModule {
            graph,
            contexts: contexts.to_vec(),
            store: ParamStore::new(),
            arena: None,
            strict: false,
            copy_threshold: None,
            params: BTreeMap::new(),
            inputs: BTreeMap::new(),
            outputs: BTreeMap::new(),
            session: None,
            binding: None,
        }
    }

    /// Holds parameters in `store`, which other modules and sessions use too.
    pub fn with_store(mut self, store: &Arc<ParamStore>) -> Self {
        self.store = Arc::clone(store);
        self.rebuild();
        self
    }

    /// Whether every copy of zero-copy memory by the CPU is an error of [`GraphModule::run`].
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self.rebuild();
        self
    }

    /// Bytes below which even zero-copy memory is copied, because that is faster.
    pub fn copy_threshold(mut self, bytes: u64) -> Self {
        self.copy_threshold = Some(bytes);
        self.rebuild();
        self
    }

    /// The graph's inputs, parameters included.
    pub fn inputs(&self) -> Vec<IoInfo> {
        self.graph.inputs().iter().map(|&id| self.graph.tensor(id).into()).collect()
    }

    /// Names of the outputs.
    pub fn outputs(&self) -> Vec<&str> {
        self.graph.outputs().iter().map(|(name, _)| name.as_str()).collect()
    }

    /// The inputs that are not parameters.
    pub fn get_input_info(&self) -> Vec<IoInfo> {
        self.inputs().into_iter().filter(|io| !self.params.contains_key(&io.name)).collect()
    }

    /// The outputs as planned for the inputs that are set; those whose sizes are known only in the run are left out.
    ///
    /// # Errors
    /// [`SessionError::Unbound`], [`Error::Plan`].
    pub fn get_output_info(&mut self) -> Result<Vec<IoInfo>, Error> {
        let plan = self.builder()?.plan()?;
        let info = |io: crate::plan::PlannedIo| IoInfo {
            name: io.name,
            dtype: Some(io.info.dtype),
            shape: Some((&io.info.shape).into()),
        };
        Ok(plan.outputs.into_iter().map(info).collect())
    }

    /// Number of inputs, parameters included.
    pub fn get_num_inputs(&self) -> usize {
        self.graph.inputs().len()
    }

    /// Number of outputs.
    pub fn get_num_outputs(&self) -> usize {
        self.graph.outputs().len()
    }

    /// The number of the input named `name`.
    pub fn get_input_index(&self, name: &str) -> Option<usize> {
        self.graph.inputs().iter().position(|&id| self.graph.tensor(id).name == name)
    }

    /// The number of the output named `name`.
    pub fn get_output_index(&self, name: &str) -> Option<usize> {
        self.graph.output(name)
    }

    /// Sets the value of an input, by copy. Memory set before is released and unchanged. A parameter becomes an input
    /// again.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::DType`], [`SessionError::Shape`].
    pub fn set_input<'k>(&mut self, key: impl Into<Key<'k>>, value: &Tensor) -> Result<(), Error> {
        self.give(key.into(), Given::Value(value.clone()))
    }

    /// Makes an input read the caller's memory in every run, in place where the device can ([`GraphModule::verdicts`]
    /// tells). The memory is kept until [`GraphModule::set_input`] sets the input, and stays imported together with
    /// the next memory, so that alternating between two buffers costs no import.
    ///
    /// # Errors
    /// As [`GraphModule::set_input`], and [`SessionError::Strides`], [`SessionError::Capacity`],
    /// [`SessionError::OtherContext`].
    pub fn set_input_zero_copy<'k>(
        &mut self,
        key: impl Into<Key<'k>>,
        tensor: &ExternalTensor,
    ) -> Result<(), Error> {
        self.give(key.into(), Given::Placed(tensor.clone()))
    }

    /// Makes an output write the caller's memory in every run, in place where the device can. Its type and shape are
    /// known once all inputs are set or have fixed shapes; before that, the run checks it.
    ///
    /// # Errors
    /// As [`GraphModule::set_input_zero_copy`].
    pub fn set_output_zero_copy<'k>(
        &mut self,
        key: impl Into<Key<'k>>,
        tensor: &ExternalTensor,
    ) -> Result<(), Error> {
        let name = self.output_name(key.into())?;
        tensor.check(&name, &self.contexts)?;
        match self.builder() {
            Ok(builder) => check_output(&builder, &name, tensor)?,
            // The shapes are not known yet.
            Err(Error::Session(SessionError::Unbound { .. } | SessionError::OpenShape { .. })) => {}
            Err(e) => return Err(e),
        }
        let rebound = self.binding.as_mut().map(|b| b.rebind_output(&name, tensor.memory()?));
        if rebound.is_some_and(|r| r.is_err()) {
            self.binding = None;
        }
        self.outputs.insert(name, tensor.clone());
        Ok(())
    }

    /// Gives an output the module's own memory again.
    ///
    /// # Errors
    /// [`SessionError::Unknown`].
    pub fn reset_output<'k>(&mut self, key: impl Into<Key<'k>>) -> Result<(), Error> {
        let name = self.output_name(key.into())?;
        if self.outputs.remove(&name).is_some() {
            self.binding = None;
        }
        Ok(())
    }

    /// Makes an input a parameter: the tensor itself, without a copy on the host, and on each device once for all
    /// modules of one [`ParamStore`].
    ///
    /// # Errors
    /// As [`GraphModule::set_input`].
    pub fn set_shared_input<'k>(&mut self, key: impl Into<Key<'k>>, tensor: &Tensor) -> Result<(), Error> {
        let name = self.input_name(key.into())?;
        self.check_declared(&name, tensor.info())?;
        self.inputs.remove(&name);
        self.params.insert(name, tensor.clone());
        self.rebuild();
        Ok(())
    }

    /// Makes parameters of the inputs that a `.params` blob names, and returns how many there are. Other names are
    /// skipped.
    ///
    /// # Errors
    /// [`Error::Load`] for a damaged blob; as [`GraphModule::set_input`], with nothing changed.
    pub fn load_params(&mut self, blob: &[u8]) -> Result<usize, Error> {
        let params = read_params(blob)?;
        let found: Vec<(String, Tensor)> = (params.into_iter())
            .map(|(name, tensor)| (name.to_string(), tensor))
            .filter(|(name, _)| self.get_input_index(name).is_some())
            .collect();
        self.adopt(found)
    }

    /// Makes the parameters of `other` the parameters of this module's inputs of the same names, and returns how many
    /// there are. Both modules share them from then on, in the store of `other`.
    ///
    /// # Errors
    /// [`SessionError::OtherDevices`] for modules on other contexts, which have no memory in common; as
    /// [`GraphModule::set_input`], with nothing changed.
    pub fn share_params(&mut self, other: &GraphModule) -> Result<usize, Error> {
        let ids = |m: &GraphModule| m.contexts.iter().map(Context::id).collect::<Vec<_>>();
        if ids(self) != ids(other) {
            return Err(SessionError::OtherDevices.into());
        }
        let found = (other.params.iter())
            .filter(|(name, _)| self.get_input_index(name).is_some())
            .map(|(name, tensor)| (name.clone(), tensor.clone()))
            .collect();
        let adopted = self.adopt(found)?;
        self.store = Arc::clone(&other.store);
        Ok(adopted)
    }

    /// Puts the intermediate tensors of `modules` in one pool, as large as the largest of them needs; they run one at
    /// a time. Inputs whose shapes the graph leaves open must be set first.
    ///
    /// # Errors
    /// [`SessionError::Unbound`], [`SessionError::OpenShape`], [`Error::Plan`], [`Error::Device`].
    pub fn setup_shared_storage<'m>(
        modules: impl IntoIterator<Item = &'m mut GraphModule>,
    ) -> Result<Arc<SharedArena>, Error> {
        let arena = SharedArena::new();
        for module in modules {
            module.arena = Some(Arc::clone(&arena));
            module.rebuild();
            let mut infos = Vec::new();
            let core = Arc::clone(&module.ready()?.core);
            for (i, &id) in core.graph.inputs().iter().enumerate() {
                let decl = core.graph.tensor(id);
                let given = module.inputs.get(&decl.name).map(|given| given.info().clone());
                let info = given.or_else(|| core.fixed_info(i));
                infos.push(info.ok_or_else(|| SessionError::OpenShape {
                    name: decl.name.clone(),
                    declared: decl.shape.as_ref().map_or("unknown".to_owned(), ToString::to_string),
                })?);
            }
            arena.reserve(module.ready()?, &infos)?;
        }
        Ok(arena)
    }

    /// Runs and waits.
    ///
    /// # Errors
    /// [`SessionError::Unbound`] names the inputs without a value; [`SessionError::Overlap`] where one memory is an
    /// input and an output and the graph writes it before it has read it; [`Error::Plan`], [`Error::Device`].
    pub fn run(&mut self) -> Result<(), Error> {
        self.submit()?.wait()
    }

    /// Submits a run.
    ///
    /// # Errors
    /// As [`GraphModule::run`].
    pub fn submit(&mut self) -> Result<Pending<'_, 'static>, Error> {
        self.bind()?.submit()
    }

    /// The current binding, made where there is none.
    fn bind(&mut self) -> Result<&mut Binding<'static>, Error> {
        if self.binding.is_none() {
            let mut builder = self.builder()?;
            for (name, tensor) in &self.outputs {
                check_output(&builder, name, tensor)?;
                builder = builder.output(name, tensor.memory()?);
            }
            self.binding = Some(builder.build()?);
        }
        self.binding.as_mut().ok_or_else(|| SessionError::NotRun.into())
    }

    /// The inputs that were given by value.
    fn values(&self) -> Vec<(String, Tensor)> {
        let value = |given: &Given| match given {
            Given::Value(value) => Some(value.clone()),
            Given::Placed(_) => None,
        };
        self.inputs.iter().filter_map(|(name, given)| Some((name.clone(), value(given)?))).collect()
    }

    /// Copies an output of the last run out, even from the caller's memory.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::NotRun`], [`Error::Device`].
    pub fn get_output<'k>(&self, key: impl Into<Key<'k>>) -> Result<Tensor, Error> {
        let name = self.output_name(key.into())?;
        self.bound()?.get_output(&name)
    }

    /// Copies the value of an input, even from the caller's memory.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::Unbound`], [`Error::Device`].
    pub fn get_input<'k>(&mut self, key: impl Into<Key<'k>>) -> Result<Tensor, Error> {
        let name = self.input_name(key.into())?;
        if let Some(tensor) = self.params.get(&name) {
            return Ok(tensor.clone());
        }
        match self.inputs.get(&name).cloned() {
            None => Err(SessionError::Unbound { names: vec![name] }.into()),
            Some(Given::Value(value)) => Ok(value),
            Some(Given::Placed(tensor)) => {
                let source = tensor.source()?;
                StageValue { info: tensor.info, source }.tensor(&self.ready()?.core.devices)
            }
        }
    }

    /// Copies an output of the last run to `bytes`, which has exactly its length.
    ///
    /// # Errors
    /// As [`GraphModule::get_output`], and [`SessionError::Capacity`].
    pub fn get_output_into<'k>(&self, key: impl Into<Key<'k>>, bytes: &mut [u8]) -> Result<(), Error> {
        let name = self.output_name(key.into())?;
        self.bound()?.read_output(&name, bytes)
    }

    /// A view of an output in place, where the host can access its memory ([`Binding::host_view`]).
    ///
    /// # Errors
    /// As there, and [`SessionError::NotRun`].
    pub fn host_view<'k>(&self, key: impl Into<Key<'k>>) -> Result<HostView, Error> {
        let name = self.output_name(key.into())?;
        self.bound()?.host_view(&name)
    }

    /// A view of an input in place, to write it ([`Binding::host_view_input`]). It exists after the first run.
    ///
    /// # Errors
    /// As there, and [`SessionError::NotRun`].
    pub fn host_view_input<'k>(&self, key: impl Into<Key<'k>>) -> Result<HostView, Error> {
        let name = self.input_name(key.into())?;
        self.bound()?.host_view_input(&name)
    }

    /// How each tensor in the caller's memory reaches the devices, as of the last run.
    pub fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.binding.iter().flat_map(Binding::verdicts)
    }

    /// The parameters: shared with the sessions of the same store.
    pub fn store(&self) -> &Arc<ParamStore> {
        &self.store
    }

    /// The opened device of entry `index` of the table.
    pub fn context(&self, index: usize) -> Option<&Context> {
        self.contexts.get(index)
    }

    fn adopt(&mut self, params: Vec<(String, Tensor)>) -> Result<usize, Error> {
        for (name, tensor) in &params {
            self.check_declared(name, tensor.info())?;
        }
        let adopted = params.len();
        for (name, tensor) in params {
            self.inputs.remove(&name);
            self.params.insert(name, tensor);
        }
        self.rebuild();
        Ok(adopted)
    }

    fn give(&mut self, key: Key<'_>, given: Given) -> Result<(), Error> {
        let name = self.input_name(key)?;
        self.check_declared(&name, given.info())?;
        if let Given::Placed(tensor) = &given {
            tensor.check(&name, &self.contexts)?;
        }
        if self.params.remove(&name).is_some() {
            self.rebuild();
        }
        if !self.rebind(&name, &given) {
            self.binding = None;
        }
        self.inputs.insert(name, given);
        Ok(())
    }

    /// Gives the current binding other memory or another value. Where that fails, the next run makes a new binding
    /// and returns the error.
    fn rebind(&mut self, name: &str, given: &Given) -> bool {
        let Some(binding) = &mut self.binding else { return false };
        // A value that decides shapes is part of the plan.
        if binding.input_info(name) != Some((given.info(), true)) {
            return false;
        }
        match (self.inputs.get(name), given) {
            (Some(Given::Value(_)), Given::Value(value)) => binding.set_input(name, value).is_ok(),
            // A new binding releases all memory that was bound before.
            (_, Given::Value(_)) => false,
            (_, Given::Placed(tensor)) => {
                tensor.memory().and_then(|memory| binding.rebind_input(name, memory)).is_ok()
            }
        }
    }

    /// A builder with the inputs.
    fn builder(&mut self) -> Result<BindingBuilder<'static>, Error> {
        let session = self.ready()?;
        let mut builder = session.bind();
        let names: Vec<String> = session.inputs().into_iter().map(|io| io.name).collect();
        let unset: Vec<String> = names.iter().filter(|n| !self.inputs.contains_key(*n)).cloned().collect();
        if !unset.is_empty() {
            return Err(SessionError::Unbound { names: unset }.into());
        }
        for (name, given) in &self.inputs {
            let memory = match given {
                Given::Value(value) => Memory::value(value.clone()),
                Given::Placed(tensor) => tensor.memory()?,
            };
            builder = builder.input(name, memory);
        }
        Ok(builder)
    }

    fn ready(&mut self) -> Result<&Session, Error> {
        if self.session.is_none() {
            self.session = Some(self.session()?);
        }
        self.session.as_ref().ok_or_else(|| SessionError::NotRun.into())
    }

    fn session(&mut self) -> Result<Session, Error> {
        let mut graph = self.graph.clone();
        for (name, tensor) in &self.params {
            if let Some(id) = graph.input(name) {
                graph.set_constant(id, tensor.clone())?;
            }
        }
        // Tensors that the store already holds are kept only there.
        let names: Vec<String> = std::mem::take(&mut self.params).into_keys().collect();
        let unified = self.store.unify(&mut graph);
        for (name, tensor) in graph.constants().filter(|(name, _)| names.iter().any(|n| n == name)) {
            self.params.insert(name.to_owned(), tensor.clone());
        }
        unified?;
        let mut builder = Session::builder().graph(graph).params(Arc::clone(&self.store)).strict(self.strict);
        for context in &self.contexts {
            builder = builder.context(context.clone());
        }
        if let Some(bytes) = self.copy_threshold {
            builder = builder.copy_threshold(bytes);
        }
        if let Some(arena) = &self.arena {
            builder = builder.shared_arena(Arc::clone(arena));
        }
        builder.build()
    }

    fn rebuild(&mut self) {
        (self.session, self.binding) = (None, None);
    }

    fn bound(&self) -> Result<&Binding<'static>, Error> {
        self.binding.as_ref().ok_or_else(|| SessionError::NotRun.into())
    }

    fn input_name(&self, key: Key<'_>) -> Result<String, SessionError> {
        let names: Vec<&str> =
            self.graph.inputs().iter().map(|&id| self.graph.tensor(id).name.as_str()).collect();
        find("input", key, &names)
    }

    /// TVM's `set_output_zero_copy` names an output "node:number"; both that and the name alone are accepted.
    fn output_name(&self, key: Key<'_>) -> Result<String, SessionError> {
        let names = self.outputs();
        find("output", key, &names).or_else(|e| match key {
            Key::Name(full) => (full.rsplit_once(':'))
                .and_then(|(name, number)| Some((name, names.get(number.parse::<usize>().ok()?)?)))
                .filter(|(name, at)| name == *at)
                .map(|(name, _)| name.to_owned())
                .ok_or(e),
            Key::Index(_) => Err(e),
        })
    }

    fn check_declared(&self, name: &str, got: &TensorInfo) -> Result<(), SessionError> {
        let Some(id) = self.graph.input(name) else { return Ok(()) };
        crate::session::core::check_declared(self.graph.tensor(id), got)
    }
}

impl Given {
    fn info(&self) -> &TensorInfo {
        match self {
            Given::Value(value) => value.info(),
            Given::Placed(tensor) => &tensor.info,
        }
    }
}

fn find(what: &'static str, key: Key<'_>, names: &[&str]) -> Result<String, SessionError> {
    let found = match key {
        Key::Index(i) => names.get(i).copied(),
        Key::Name(name) => names.iter().copied().find(|n| *n == name),
    };
    found.map(str::to_owned).ok_or_else(|| SessionError::Unknown {
        what,
        name: match key {
            Key::Index(i) => i.to_string(),
            Key::Name(name) => name.to_owned(),
        },
        known: names.iter().map(|n| (*n).to_owned()).collect(),
    })
}

/// Checks memory for an output against the plan; outputs whose sizes are known only in the run are checked there.
fn check_output(builder: &BindingBuilder<'_>, name: &str, tensor: &ExternalTensor) -> Result<(), Error> {
    let plan = builder.plan()?;
    match plan.outputs.iter().find(|io| io.name == name) {
        Some(io) => Ok(check_info(io, &tensor.info)?),
        None => Ok(()),
    }
}
