//! Says which memory a binding is made of.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::binding::Binding;
use super::error::{Error, SessionError};
use super::placement::Copied;
use super::slot::Source;
use super::{Inner, chosen_shape};
use crate::device::{Buffer, Lent, Scope};
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::memory::host::SharedRegion;
use crate::memory::range::ByteRange;
use crate::plan::Plan;
use crate::shape::Shape;

/// Memory for one input or output, with the shape of its tensor where the model leaves it open.
#[derive(Debug)]
pub struct Memory<'e> {
    source: MemorySource<'e>,
    shape: Option<Shape>,
}

#[derive(Debug)]
enum MemorySource<'e> {
    Value(Option<Tensor>),
    Placed(Source<'e>),
}

impl<'e> Memory<'e> {
    /// An owned region, from its start.
    pub fn region(region: &Arc<SharedRegion>) -> Self {
        Memory::region_range(region, region.whole())
    }

    /// Bytes of an owned region. They may start at any byte.
    pub fn region_range(region: &Arc<SharedRegion>, range: ByteRange) -> Self {
        Memory::placed(Source::Region(Arc::clone(region), range))
    }

    /// Memory of a device: a buffer of the context that the session runs on.
    pub fn buffer(buffer: &Buffer) -> Self {
        Memory::placed(Source::Buffer(buffer.clone()))
    }

    /// Memory that was lent to all devices of the session: in a scope of its own, or by a foreign caller
    /// ([`Lent::raw`]).
    pub fn lent(lent: Lent<'e>) -> Self {
        let whole = ByteRange::up_to(lent.bytes());
        Memory::placed(Source::Lent(Arc::new(lent), whole))
    }

    /// A value that is copied into memory of the session's own.
    pub fn value(value: Tensor) -> Self {
        let shape = Some(value.shape().clone());
        Memory { source: MemorySource::Value(Some(value)), shape }
    }

    /// Memory of the session's own, set and read by copy.
    pub fn own() -> Self {
        Memory { source: MemorySource::Value(None), shape: None }
    }

    /// The shape of the tensor in it.
    pub fn shape(mut self, shape: Shape) -> Self {
        self.shape = Some(shape);
        self
    }

    pub(super) fn given_shape(&self) -> Option<&Shape> {
        self.shape.as_ref()
    }

    /// The memory, and the value to write into it where it is the session's own.
    pub(super) fn into_source(self) -> (Source<'e>, Option<Tensor>) {
        match self.source {
            MemorySource::Value(value) => (Source::Value, value),
            MemorySource::Placed(source) => (source, None),
        }
    }

    pub(super) fn placed(source: Source<'e>) -> Self {
        Memory { source: MemorySource::Placed(source), shape: None }
    }
}

/// Where borrowed memory can be bound; made by [`super::Session::scope`].
#[derive(Clone, Debug)]
pub struct SessionScope<'s, 'env> {
    inner: Arc<Inner>,
    scope: &'s Scope<'s, 'env>,
}

impl<'s, 'env> SessionScope<'s, 'env> {
    pub(super) fn new(inner: &Arc<Inner>, scope: &'s Scope<'s, 'env>) -> Self {
        SessionScope { inner: Arc::clone(inner), scope }
    }

    /// Begins to bind memory to inputs and outputs.
    pub fn bind(&self) -> BindingBuilder<'s> {
        BindingBuilder::new(&self.inner)
    }

    /// A borrowed slice to read from.
    pub fn input<T: bytemuck::Pod>(&self, slice: &'env [T]) -> Memory<'s> {
        let bytes = size_of_val(slice) as u64;
        Memory::placed(Source::Lent(Arc::new(self.scope.lend(slice)), ByteRange::up_to(bytes)))
    }

    /// A borrowed slice to write to. What was written is seen once the scope has ended, or before through
    /// [`Binding::host_view`].
    pub fn output<T: bytemuck::Pod>(&self, slice: &'env mut [T]) -> Memory<'s> {
        let bytes = size_of_val(slice) as u64;
        Memory::placed(Source::Lent(Arc::new(self.scope.lend_mut(slice)), ByteRange::up_to(bytes)))
    }
}

/// The largest value of an input, in bytes, that a plan is made for.
const MAX_DECIDING_BYTES: usize = 64 << 10;

/// The values that may decide shapes and become part of a plan. Larger ones decide in the run.
pub(super) fn deciding(values: &BTreeMap<usize, Tensor>) -> BTreeMap<usize, Tensor> {
    let small = values.iter().filter(|(_, t)| t.bytes().len() <= MAX_DECIDING_BYTES);
    small.map(|(i, t)| (*i, t.clone())).collect()
}

/// Ties memory to a session's inputs and outputs. Inputs and outputs that are not named get memory of the
/// session's own.
#[derive(Debug)]
pub struct BindingBuilder<'e> {
    inner: Arc<Inner>,
    inputs: BTreeMap<String, Memory<'e>>,
    outputs: BTreeMap<String, Memory<'e>>,
    strict: Option<bool>,
}

impl<'e> BindingBuilder<'e> {
    pub(super) fn new(inner: &Arc<Inner>) -> Self {
        BindingBuilder {
            inner: Arc::clone(inner),
            inputs: BTreeMap::new(),
            outputs: BTreeMap::new(),
            strict: None,
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

    /// Makes every copy by the CPU of a bound tensor an error, or not, for this binding.
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = Some(strict);
        self
    }

    /// What would be planned for the shapes given, with nothing imported and nothing allocated for them: tells
    /// the types and shapes of the outputs before there is memory for them.
    ///
    /// # Errors
    /// As [`BindingBuilder::build`], those about memory excepted.
    pub fn plan(&self) -> Result<Plan, Error> {
        let (infos, values) = self.signature()?;
        Ok(self.inner.compiled(&infos, &deciding(&values), self.copied())?.plan.clone())
    }

    /// Plans for the shapes given, imports the memory, records the commands.
    ///
    /// # Errors
    /// [`SessionError`] for names, shapes, capacity, shared memory and strict mode; [`Error::Plan`];
    /// [`Error::Device`].
    pub fn build(mut self) -> Result<Binding<'e>, Error> {
        let inner = Arc::clone(&self.inner);
        let (infos, values) = self.signature()?;
        let compiled = inner.compiled(&infos, &deciding(&values), self.copied())?;
        let mut policy = inner.options.bind;
        policy.strict = self.strict.unwrap_or(policy.strict);
        let sources = |names: Vec<&String>, map: &mut BTreeMap<String, Memory<'e>>| -> Vec<Source<'e>> {
            names.into_iter().map(|n| map.remove(n).map_or(Source::Value, |m| m.into_source().0)).collect()
        };
        let graph = &inner.graph;
        let names = graph.inputs().iter().map(|&id| &graph.tensor(id).name).collect();
        let inputs: Vec<Source<'e>> = sources(names, &mut self.inputs);
        let outputs: Vec<Source<'e>> =
            sources(graph.outputs().iter().map(|(name, _)| name).collect(), &mut self.outputs);
        let assembled =
            Binding::assemble(&inner, Arc::clone(&compiled), inputs.clone(), outputs.clone(), policy);
        let binding = match assembled {
            Err(e) if e.is_out_of_memory() => {
                inner.relieve();
                Binding::assemble(&inner, compiled, inputs, outputs, policy)?
            }
            assembled => assembled?,
        };
        for (i, value) in &values {
            binding.write_input(*i, value.bytes())?;
        }
        Ok(binding)
    }

    /// What each run will copy: all inputs, or outputs, unless memory is given for one of them.
    fn copied(&self) -> Copied {
        let own = |memory: &BTreeMap<String, Memory<'e>>| {
            memory.values().all(|m| matches!(m.source, MemorySource::Value(_)))
        };
        Copied { inputs: own(&self.inputs), outputs: own(&self.outputs) }
    }

    /// Types and shapes of all inputs, and the values of those that were given by value.
    fn signature(&self) -> Result<(Vec<TensorInfo>, BTreeMap<usize, Tensor>), Error> {
        let inner = &self.inner;
        for name in self.inputs.keys() {
            inner.input_position(name)?;
        }
        for name in self.outputs.keys() {
            inner.output_position(name)?;
        }
        let mut infos = Vec::new();
        let mut values = BTreeMap::new();
        let mut open = Vec::new();
        for (i, &id) in inner.graph.inputs().iter().enumerate() {
            let decl = inner.graph.tensor(id);
            let memory = self.inputs.get(&decl.name);
            let fixed = inner.fixed_info(i);
            if memory.is_none() && inner.graph.is_lazy(id) {
                open.push(decl.name.clone());
                continue;
            }
            let value = match memory.map(|m| &m.source) {
                Some(MemorySource::Value(Some(value))) => Some(value.clone()),
                _ => None,
            };
            let dtype = value.as_ref().map(Tensor::dtype).or(decl.dtype).unwrap_or(DType::F32);
            let shape = chosen_shape(memory.and_then(|m| m.shape.as_ref()), fixed.as_ref());
            let shape = shape.ok_or_else(|| SessionError::OpenShape {
                name: decl.name.clone(),
                declared: decl.shape.as_ref().map_or("unknown".to_owned(), ToString::to_string),
            })?;
            let info = TensorInfo::new(dtype, shape);
            inner.check_declared(i, &info)?;
            infos.push(info);
            values.extend(value.map(|v| (i, v)));
        }
        if !open.is_empty() {
            return Err(SessionError::Unbound { names: open }.into());
        }
        inner.check_symbols(&infos)?;
        Ok((infos, values))
    }
}
