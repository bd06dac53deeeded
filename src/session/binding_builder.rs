//! Builders of bindings.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::device::Scope;
use crate::dtype::DType;
use crate::frame::FrameError;
use crate::graph::{Tensor, TensorInfo};
use crate::memory::range::ByteRange;
use crate::plan::Plan;
use crate::session::bind::binding::Binding;
use crate::session::bind::memory::{Memory, Source};
use crate::session::core::options::CopiedPerRun;
use crate::session::core::{SessionCore, chosen_shape};
use crate::session::error::{Error, SessionError};
use crate::session::stages::continuation::bind;

/// A scope in which borrowed memory can be bound; made by [`crate::session::Session::scope`].
#[derive(Clone, Debug)]
pub struct SessionScope<'s, 'env> {
    core: Arc<SessionCore>,
    scope: &'s Scope<'s, 'env>,
}

impl<'s, 'env> SessionScope<'s, 'env> {
    pub(in crate::session) fn new(core: &Arc<SessionCore>, scope: &'s Scope<'s, 'env>) -> Self {
        SessionScope { core: Arc::clone(core), scope }
    }

    /// Returns a builder that binds memory to inputs and outputs.
    pub fn bind(&self) -> BindingBuilder<'s> {
        BindingBuilder::new(&self.core)
    }

    /// A borrowed slice to read from.
    pub fn input<T: bytemuck::Pod>(&self, slice: &'env [T]) -> Memory<'s> {
        let bytes = size_of_val(slice) as u64;
        Memory::placed(Source::Lent(Arc::new(self.scope.lend(slice)), ByteRange::up_to(bytes)))
    }

    /// A borrowed slice to write to. The results are visible after the scope, or inside it through
    /// [`Binding::host_view`].
    pub fn output<T: bytemuck::Pod>(&self, slice: &'env mut [T]) -> Memory<'s> {
        let bytes = size_of_val(slice) as u64;
        Memory::placed(Source::Lent(Arc::new(self.scope.lend_mut(slice)), ByteRange::up_to(bytes)))
    }
}

/// The largest input value, in bytes, that can be part of a plan's key.
const MAX_DECIDING_BYTES: usize = 64 << 10;

/// The values that may decide shapes and become part of a plan. Larger ones take effect in the run.
pub(in crate::session) fn deciding(values: &BTreeMap<usize, Tensor>) -> BTreeMap<usize, Tensor> {
    let small = values.iter().filter(|(_, t)| t.bytes().len() <= MAX_DECIDING_BYTES);
    small.map(|(i, t)| (*i, t.clone())).collect()
}

/// Ties memory to a session's inputs and outputs. Those that are not named get the session's own memory.
#[derive(Debug)]
pub struct BindingBuilder<'e> {
    core: Arc<SessionCore>,
    inputs: BTreeMap<String, Memory<'e>>,
    outputs: BTreeMap<String, Memory<'e>>,
    /// Inputs and outputs that must be one memory.
    updates: Vec<(String, String)>,
    strict: Option<bool>,
    runs: Option<u32>,
    /// The first wrong call.
    wrong: Option<SessionError>,
}

impl<'e> BindingBuilder<'e> {
    pub(in crate::session) fn new(core: &Arc<SessionCore>) -> Self {
        BindingBuilder {
            core: Arc::clone(core),
            inputs: BTreeMap::new(),
            outputs: BTreeMap::new(),
            updates: Vec::new(),
            strict: None,
            runs: None,
            wrong: None,
        }
    }

    /// Binds input `name`, which the graph reads and never writes.
    pub fn input(mut self, name: impl Into<String>, memory: Memory<'e>) -> Self {
        self.inputs.insert(name.into(), memory);
        self
    }

    /// Binds output `name`.
    pub fn output(mut self, name: impl Into<String>, memory: Memory<'e>) -> Self {
        self.outputs.insert(name.into(), memory);
        self
    }

    /// Binds the memories of input `name`, which is described as a frame, in the order of their numbers.
    pub fn input_memories(
        mut self,
        name: impl Into<String>,
        memories: impl IntoIterator<Item = Memory<'e>>,
    ) -> Self {
        let core = Arc::clone(&self.core);
        let named = self.named(&core.options.frames.inputs, name.into(), memories);
        self.inputs.extend(named);
        self
    }

    /// As [`BindingBuilder::input_memories`], for output `name`.
    pub fn output_memories(
        mut self,
        name: impl Into<String>,
        memories: impl IntoIterator<Item = Memory<'e>>,
    ) -> Self {
        let core = Arc::clone(&self.core);
        let named = self.named(&core.options.frames.outputs, name.into(), memories);
        self.outputs.extend(named);
        self
    }

    /// The memories of frame `name` with their names; one of several memories must have as many.
    fn named(
        &mut self,
        frames: &BTreeMap<String, Vec<String>>,
        name: String,
        memories: impl IntoIterator<Item = Memory<'e>>,
    ) -> Vec<(String, Memory<'e>)> {
        let memories: Vec<Memory<'e>> = memories.into_iter().collect();
        let names = frames.get(&name).cloned().unwrap_or_else(|| vec![name.clone()]);
        if names.len() != memories.len() {
            let source = FrameError::Bound { expected: names.len(), got: memories.len() };
            self.wrong.get_or_insert(SessionError::Frame { name, source });
            return Vec::new();
        }
        names.into_iter().zip(memories).collect()
    }

    /// Binds one memory to input `input` and output `output`: the graph writes the elements that change where they lie,
    /// and moves nothing else. So a decoder extends a cache of keys and values of fixed length, as
    /// GroupQueryAttention and TensorScatter do. [`Memory::own`] is the session's own memory: it begins as zeros, keeps
    /// its elements between runs, and is set by the name of the input.
    ///
    /// Binding equal memory to both by [`BindingBuilder::input`] and [`BindingBuilder::output`] does the same where the
    /// graph allows it.
    pub fn update(mut self, input: impl Into<String>, output: impl Into<String>, memory: Memory<'e>) -> Self {
        let (input, output) = (input.into(), output.into());
        self.inputs.insert(input.clone(), memory.again());
        self.outputs.insert(output.clone(), memory);
        self.updates.push((input, output));
        self
    }

    /// Whether every copy of a bound tensor by the CPU is an error, for this binding.
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = Some(strict);
        self
    }

    /// How many runs the binding lasts, where that is known to be few: an import is paid once, a copy in each run. What
    /// both take was measured on the device, so memory that is imported for many runs may be copied for few. Without it
    /// [`ImportCosts::RUNS`](crate::memory::import::ImportCosts::RUNS).
    pub fn runs(mut self, runs: u32) -> Self {
        self.runs = Some(runs);
        self
    }

    /// The plan for the given shapes, without imports or allocations: types and shapes of the outputs before they
    /// have memory.
    ///
    /// # Errors
    /// As [`BindingBuilder::build`], except those about memory.
    pub fn plan(&self) -> Result<Plan, Error> {
        let (infos, values) = self.signature()?;
        let updates = self.updates()?;
        Ok(self.core.compiled(&infos, &deciding(&values), &updates, self.copied())?.plan.clone())
    }

    /// Plans for the given shapes, imports the memory, records the commands.
    ///
    /// # Errors
    /// [`SessionError`] for names, shapes, capacity, shared memory and strict mode; [`Error::Plan`];
    /// [`Error::Device`].
    pub fn build(mut self) -> Result<Binding<'e>, Error> {
        let core = Arc::clone(&self.core);
        let (infos, values) = self.signature()?;
        let updates = self.updates()?;
        let compiled = core.compiled(&infos, &deciding(&values), &updates, self.copied())?;
        self.check_updated(&compiled.plan)?;
        self.bind_before();
        let mut policy = core.options.bind;
        policy.strict = self.strict.unwrap_or(policy.strict);
        policy.runs = self.runs.unwrap_or(policy.runs);
        let sources = |names: Vec<&String>, map: &mut BTreeMap<String, Memory<'e>>| -> Vec<Source<'e>> {
            names
                .into_iter()
                .map(|n| map.remove(n).map_or(Source::OWN, |m| m.into_source().split().0))
                .collect()
        };
        let graph = &core.graph;
        let names = graph.inputs().iter().map(|&id| &graph.tensor(id).name).collect();
        let inputs: Vec<Source<'e>> = sources(names, &mut self.inputs);
        let outputs: Vec<Source<'e>> =
            sources(graph.outputs().iter().map(|(name, _)| name).collect(), &mut self.outputs);
        let assembled = bind(&core, Arc::clone(&compiled), inputs.clone(), outputs.clone(), policy);
        let binding = match assembled {
            Err(e) if e.is_out_of_memory() => {
                core.drop_idle_plans();
                bind(&core, compiled, inputs, outputs, policy)?
            }
            assembled => assembled?,
        };
        for (i, value) in &values {
            binding.write_input(*i, value.bytes())?;
        }
        Ok(binding)
    }

    /// Binds the memory of frames to what it is before the run.
    fn bind_before(&mut self) {
        let graph = &self.core.graph;
        for &(i, o) in &self.core.options.frames.before {
            if let Some(memory) = self.outputs.get(&graph.outputs()[o].0) {
                self.inputs.insert(graph.tensor(graph.inputs()[i]).name.clone(), memory.again());
            }
        }
    }

    /// Inputs and outputs, by position, that are one memory.
    fn updates(&self) -> Result<Vec<(usize, usize)>, SessionError> {
        let mut updates = self.core.options.frames.before.clone();
        for (input, output) in &self.updates {
            updates.push((self.core.input_position(input)?, self.core.output_position(output)?));
        }
        for (output, memory) in &self.outputs {
            let Some(key) = memory.source().key() else { continue };
            let same = self.inputs.iter().find(|(_, input)| input.source().key() == Some(key));
            if let Some((input, _)) = same {
                updates.push((self.core.input_position(input)?, self.core.output_position(output)?));
            }
        }
        updates.sort_unstable();
        updates.dedup();
        Ok(updates)
    }

    /// Checks that `plan` updates what [`BindingBuilder::update`] asked for.
    fn check_updated(&self, plan: &Plan) -> Result<(), SessionError> {
        let updated = |(input, output): &&(String, String)| {
            let io = plan.outputs.iter().find(|io| io.name == *output);
            let by = io.and_then(|io| plan.inputs.get(io.updated? as usize));
            by.is_some_and(|io| io.name == *input)
        };
        match self.updates.iter().find(|pair| !updated(pair)) {
            Some((input, output)) => {
                Err(SessionError::NotUpdated { input: input.clone(), output: output.clone() })
            }
            None => Ok(()),
        }
    }

    /// The copies of each run: all inputs, or outputs, unless memory is bound to one of them.
    fn copied(&self) -> CopiedPerRun {
        let own = |memory: &BTreeMap<String, Memory<'e>>| memory.values().all(|m| m.source().is_own());
        CopiedPerRun { inputs: own(&self.inputs), outputs: own(&self.outputs) }
    }

    /// Types and shapes of all inputs, and the values of those that were given by value.
    fn signature(&self) -> Result<(Vec<TensorInfo>, BTreeMap<usize, Tensor>), Error> {
        let core = &self.core;
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone().into());
        }
        for name in self.inputs.keys() {
            core.input_position(name)?;
        }
        for name in self.outputs.keys() {
            core.output_position(name)?;
        }
        let mut infos = Vec::new();
        let mut values = BTreeMap::new();
        let mut open = Vec::new();
        for (i, &id) in core.graph.inputs().iter().enumerate() {
            let decl = core.graph.tensor(id);
            let memory = self.inputs.get(&decl.name);
            let fixed = core.fixed_info(i);
            if memory.is_none() && core.graph.is_lazy(id) {
                open.push(decl.name.clone());
                continue;
            }
            let value = match memory.map(Memory::source) {
                Some(Source::Own(Some(value))) => Some(value.clone()),
                _ => None,
            };
            let dtype = value.as_ref().map(Tensor::dtype).or(decl.dtype).unwrap_or(DType::F32);
            let shape = chosen_shape(memory.and_then(Memory::given_shape), fixed.as_ref());
            let shape = shape.ok_or_else(|| SessionError::OpenShape {
                name: decl.name.clone(),
                declared: decl.shape.as_ref().map_or("unknown".to_owned(), ToString::to_string),
            })?;
            let info = TensorInfo::new(dtype, shape);
            core.check_declared(i, &info)?;
            infos.push(info);
            values.extend(value.map(|v| (i, v)));
        }
        if !open.is_empty() {
            return Err(SessionError::Unbound { names: open }.into());
        }
        core.check_symbols(&infos)?;
        Ok((infos, values))
    }
}
