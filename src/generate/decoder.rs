//! Runs of a decoder: token numbers in, logits of the last one out, keys and values kept between.

use std::collections::BTreeMap;

use super::cache::{CacheMemory, CacheTensor, KeyValueCache};
use super::config::{Config, Names};
use super::error::GenerateError;
use crate::backend::BufferDesc;
use crate::device::Buffer;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::memory::host::HostRegion;
use crate::memory::model::Placement;
use crate::plan::{Plan, PlannedIo};
use crate::session::{Binding, BindingBuilder, IoInfo, Memory, RunOptions, Session};
use crate::shape::{Dim, Shape};

/// The most tokens of one run.
const LARGEST_CHUNK: usize = 512;

/// Fewer tokens of a prompt than this are filled up to it.
const SMALLEST_CHUNK: usize = 8;

/// Bytes that the logits of one run may have.
const MAX_LOGITS_BYTES: usize = 512 << 20;

/// Tokens of a cache where nothing else is asked for, if the model takes so many.
const DEFAULT_CONTEXT: usize = 4096;

/// An input that holds integers.
#[derive(Clone, Debug)]
struct IntInput {
    name: String,
    dtype: DType,
}

impl IntInput {
    fn find(inputs: &[IoInfo], name: &str) -> Result<Option<Self>, GenerateError> {
        let Some(input) = inputs.iter().find(|io| io.name == name) else { return Ok(None) };
        let (name, dtype) = (name.to_owned(), input.dtype.unwrap_or(DType::I64));
        match dtype {
            DType::I64 | DType::I32 => Ok(Some(IntInput { name, dtype })),
            got => Err(GenerateError::DType { name, expected: "int64 or int32", got }),
        }
    }

    fn tensor(&self, values: &[i64]) -> Result<Tensor, GenerateError> {
        let shape = [1, values.len()];
        Ok(match self.dtype {
            DType::I32 => Tensor::new(shape, &values.iter().map(|v| *v as i32).collect::<Vec<_>>())?,
            _ => Tensor::new(shape, values)?,
        })
    }

    /// Writes elements from `at` on to memory of the session's own, which has `len` of them; `all` gives every element.
    fn write(
        &self,
        binding: &mut Binding<'static>,
        at: usize,
        values: &[i64],
        all: impl FnOnce() -> Vec<i64>,
    ) -> Result<(), GenerateError> {
        // An input that no command reads, or that the host does not see, is given whole.
        let Ok(view) = binding.host_view_input(&self.name) else {
            return Ok(binding.set_input(&self.name, &self.tensor(&all())?)?);
        };
        let mut bytes = view.write()?;
        match self.dtype {
            DType::I32 => put(&mut bytes, at, values.iter().map(|v| (*v as i32).to_ne_bytes())),
            _ => put(&mut bytes, at, values.iter().map(|v| v.to_ne_bytes())),
        }
        Ok(())
    }
}

/// Writes elements from element `at` on.
fn put<const N: usize>(bytes: &mut [u8], at: usize, values: impl Iterator<Item = [u8; N]>) {
    let places = bytes.as_chunks_mut::<N>().0.iter_mut().skip(at);
    places.zip(values).for_each(|(place, value)| *place = value);
}

/// A decoder with its cache.
#[derive(Debug)]
pub(super) struct Decoder {
    session: Session,
    ids: IntInput,
    mask: Option<IntInput>,
    positions: Option<IntInput>,
    logits: String,
    form: Form,
    /// Tokens that the cache has room for.
    capacity: usize,
    /// Tokens in the cache.
    len: usize,
    vocabulary: usize,
    largest_chunk: usize,
    /// Whether a run gives logits of all its tokens, so that it may be filled up.
    fills_up: bool,
    last: Vec<f32>,
}

/// How the cache grows.
#[derive(Debug)]
enum Form {
    /// Rows are written to a cache of a fixed length; the mask tells how many are valid.
    Fixed { cache: KeyValueCache, steps: BTreeMap<(usize, usize), Step> },
    /// Each run gives a longer cache.
    Growing { tensors: Vec<CacheTensor>, memory: Option<Vec<CacheMemory>> },
}

/// A run of so many tokens, bound once.
#[derive(Debug)]
struct Step {
    binding: Binding<'static>,
    /// Ones that its mask has, once it was written.
    valid: Option<usize>,
    logits: TensorInfo,
    /// Where the logits stay on their device, and what copies one row to the host.
    rows: Option<Rows>,
}

#[derive(Debug)]
struct Rows {
    device: u32,
    all: Buffer,
    row: Buffer,
}

impl Decoder {
    /// Makes `session`, which has the graph that `config` is about, ready for a cache of `context` tokens.
    ///
    /// # Errors
    /// [`GenerateError`] for a graph that is no such decoder, and what the session says.
    pub(super) fn new(
        session: Session,
        config: &Config,
        context: Option<usize>,
    ) -> Result<Self, GenerateError> {
        let capacity = context.unwrap_or(config.max_length.min(DEFAULT_CONTEXT));
        if !(2..=config.context).contains(&capacity) {
            return Err(GenerateError::Context { asked: capacity, context: config.context });
        }
        let names = &config.names;
        let inputs = session.inputs();
        let no_name = |what, name: &str, known: &[IoInfo]| {
            let known = known.iter().map(|io| io.name.clone()).collect();
            GenerateError::NoSuchName { what, name: name.to_owned(), known }
        };
        let find = |name: &str| IntInput::find(&inputs, name);
        let ids = find(&names.ids)?.ok_or_else(|| no_name("input", &names.ids, &inputs))?;
        let (mask, positions) = (find(&names.mask)?, find(&names.positions)?);
        let outputs = session.outputs();
        if !outputs.iter().any(|io| io.name == names.logits) {
            return Err(no_name("output", &names.logits, &outputs));
        }
        let mut tensors = Vec::new();
        for layer in 0..config.layers {
            for (past, present) in names.past.iter().zip(&names.present) {
                let name = |pattern: &String| pattern.replacen("%d", &layer.to_string(), 1);
                let (past, present) = (name(past), name(present));
                let io = inputs.iter().find(|io| io.name == past);
                let io = io.ok_or_else(|| no_name("input", &past, &inputs))?;
                if !outputs.iter().any(|io| io.name == present) {
                    return Err(no_name("output", &present, &outputs));
                }
                let info = cache_info(io, config)?;
                tensors.push(CacheTensor { past, present, info, device: None });
            }
        }
        let given = |name: &str| {
            [Some(&ids), mask.as_ref(), positions.as_ref()].into_iter().flatten().any(|io| io.name == name)
                || tensors.iter().any(|t| t.past == name)
        };
        if let Some(io) = inputs.iter().find(|io| !given(&io.name)) {
            return Err(GenerateError::UnknownInput { name: io.name.clone() });
        }
        let form = Form::Growing { tensors, memory: None };
        let mut decoder = Decoder {
            session,
            ids,
            mask,
            positions,
            logits: names.logits.clone(),
            form,
            capacity,
            len: 0,
            vocabulary: 0,
            largest_chunk: LARGEST_CHUNK,
            fills_up: true,
            last: Vec::new(),
        };
        decoder.choose_form(names)?;
        Ok(decoder)
    }

    /// Plans one token to see whether the cache keeps its length.
    fn choose_form(&mut self, names: &Names) -> Result<(), GenerateError> {
        let Form::Growing { tensors, .. } = &mut self.form else { return Ok(()) };
        let mut tensors = std::mem::take(tensors);
        let fixed = if self.mask.is_some() { self.fixed_plan(&mut tensors).ok() } else { None };
        let plan = match fixed {
            Some(Some((plan, in_place))) => {
                let cache = KeyValueCache::new(&self.session, tensors, in_place)?;
                self.form = Form::Fixed { cache, steps: BTreeMap::new() };
                plan
            }
            _ => {
                let builder = self.growing_inputs(&tensors, None, &[0], 0)?;
                let plan = builder.plan()?;
                self.form = Form::Growing { tensors, memory: None };
                plan
            }
        };
        let Some(io) = plan.outputs.iter().find(|io| io.name == names.logits) else {
            return Err(GenerateError::Unsupported(format!(
                "the size of {:?} is known only in the run",
                names.logits
            )));
        };
        let shape = &io.info.shape;
        let [1, 1, vocabulary] = shape[..] else {
            let (name, got) = (io.name.clone(), shape.to_string());
            return Err(GenerateError::Shape { name, expected: "[batch, tokens, vocabulary]", got });
        };
        if !io.info.dtype.is_float() {
            let (name, got) = (io.name.clone(), io.info.dtype);
            return Err(GenerateError::DType { name, expected: "floating point numbers", got });
        }
        self.vocabulary = vocabulary;
        let row = io.info.bytes().max(1);
        while self.largest_chunk > SMALLEST_CHUNK && self.largest_chunk.saturating_mul(row) > MAX_LOGITS_BYTES
        {
            self.largest_chunk /= 2;
        }
        let ways = if let Form::Fixed { cache, .. } = &self.form { cache.ways() } else { 0 };
        (0..ways).try_for_each(|way| self.step(1, way).map(drop))
    }

    /// The plan of one token with caches of the whole length, if they keep it, and whether it updates them in place.
    fn fixed_plan(&self, tensors: &mut [CacheTensor]) -> Result<Option<(Plan, bool)>, GenerateError> {
        for tensor in tensors.iter_mut() {
            tensor.info.shape = of_length(&tensor.info, self.capacity)?;
        }
        let builder = tensors.iter().fold(self.fixed_inputs(1)?, |b, tensor| {
            let memory = Memory::own().shape(tensor.info.shape.clone());
            b.update(&tensor.past, &tensor.present, memory)
        });
        let plan = builder.plan()?;
        let mut in_place = true;
        let planned = |ios: &[PlannedIo], name: &str| ios.iter().find(|io| io.name == name).cloned();
        for tensor in tensors.iter_mut() {
            let past = planned(&plan.inputs, &tensor.past);
            let Some(present) = planned(&plan.outputs, &tensor.present) else { return Ok(None) };
            if present.info != tensor.info {
                return Ok(None);
            }
            in_place &= present.updated.is_some();
            let mut devices: Vec<u32> = past.map_or(Vec::new(), |io| io.devices);
            devices.extend(present.devices);
            devices.dedup();
            tensor.device = if let [device] = devices[..] { Some(device) } else { None };
        }
        Ok(Some((plan, in_place)))
    }

    fn fixed_inputs(&self, tokens: usize) -> Result<BindingBuilder<'static>, GenerateError> {
        let own = |sizes: [usize; 2]| Ok::<_, GenerateError>(Memory::own().shape(Shape::new(sizes)?));
        let mut builder = self.session.bind().input(&self.ids.name, own([1, tokens])?);
        if let Some(positions) = &self.positions {
            builder = builder.input(&positions.name, own([1, tokens])?);
        }
        if let Some(mask) = &self.mask {
            builder = builder.input(&mask.name, own([1, self.capacity])?);
        }
        Ok(builder)
    }

    fn growing_inputs(
        &self,
        tensors: &[CacheTensor],
        memory: Option<&[CacheMemory]>,
        tokens: &[u32],
        past: usize,
    ) -> Result<BindingBuilder<'static>, GenerateError> {
        let ids: Vec<i64> = tokens.iter().map(|t| i64::from(*t)).collect();
        let mut builder = self.session.bind().input(&self.ids.name, Memory::value(self.ids.tensor(&ids)?));
        if let Some(positions) = &self.positions {
            let values: Vec<i64> = (past..past + tokens.len()).map(|p| p as i64).collect();
            builder = builder.input(&positions.name, Memory::value(positions.tensor(&values)?));
        }
        if let Some(mask) = &self.mask {
            let values = vec![1; past + tokens.len()];
            builder = builder.input(&mask.name, Memory::value(mask.tensor(&values)?));
        }
        for (i, tensor) in tensors.iter().enumerate() {
            let given = memory.and_then(|all| all.get(i)).map_or_else(Memory::own, CacheMemory::memory);
            builder = builder.input(&tensor.past, given.shape(of_length(&tensor.info, past)?));
        }
        Ok(builder)
    }

    /// Tokens that the cache has room for.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Tokens in the cache.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// The cache, where it has a fixed length.
    pub(super) fn cache(&self) -> Option<&KeyValueCache> {
        match &self.form {
            Form::Fixed { cache, .. } => Some(cache),
            Form::Growing { .. } => None,
        }
    }

    /// The logits of the last token.
    pub(super) fn logits(&mut self) -> &mut [f32] {
        &mut self.last
    }

    /// Forgets all tokens.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        if let Form::Growing { memory, .. } = &mut self.form {
            *memory = None;
        }
    }

    /// Binds what a run of `tokens` tokens after those in the cache needs.
    ///
    /// # Errors
    /// What the session says.
    pub(super) fn prepare(&mut self, tokens: usize) -> Result<(), GenerateError> {
        let Form::Fixed { cache, .. } = &self.form else { return Ok(()) };
        let mut way = cache.way();
        let (mut rest, mut len) = (tokens, self.len);
        while rest > 0 && len < self.capacity {
            let size = self.chunk(rest, len, way)?;
            let real = size.min(rest);
            (rest, len) = (rest - real, len + real);
            way = self.cache().map_or(way, |cache| cache.other(way));
        }
        Ok(())
    }

    /// Adds `tokens` to the cache; then [`Decoder::logits`] has those of the last one. After an error the cache has the
    /// tokens of the runs before it, whole.
    ///
    /// # Errors
    /// [`GenerateError::UnknownToken`], [`GenerateError::PromptTooLong`], and what the session says.
    pub(super) fn forward(
        &mut self,
        tokens: &[u32],
        options: Option<&RunOptions>,
    ) -> Result<(), GenerateError> {
        let vocabulary = self.vocabulary;
        if let Some(&token) = tokens.iter().find(|t| **t as usize >= vocabulary) {
            return Err(GenerateError::UnknownToken { token, vocabulary });
        }
        let mut rest = tokens;
        while !rest.is_empty() {
            let (real, is_last);
            match &self.form {
                Form::Fixed { cache, .. } => {
                    let way = cache.way();
                    let size = self.chunk(rest.len(), self.len, way)?;
                    real = size.min(rest.len());
                    is_last = real == rest.len();
                    self.run_fixed(size, &rest[..real], is_last, options)?;
                }
                Form::Growing { .. } => {
                    real = rest.len().min(self.largest_chunk);
                    is_last = real == rest.len();
                    self.run_growing(&rest[..real], is_last, options)?;
                }
            }
            self.len += real;
            rest = &rest[real..];
        }
        Ok(())
    }

    /// The size of the next run, which is bound then: `rest` tokens after `len`.
    fn chunk(&mut self, rest: usize, len: usize, way: usize) -> Result<usize, GenerateError> {
        let size = chunk_size(rest, self.capacity - len, self.largest_chunk, self.fills_up);
        let rows = self.step(size, way)?.logits.shape[1];
        if size > rest && rows != size {
            // The logits are those of the last token alone, so it must be a token of the prompt.
            self.fills_up = false;
            return self.chunk(rest, len, way);
        }
        Ok(size)
    }

    /// The bound run of `size` tokens.
    fn step(&mut self, size: usize, way: usize) -> Result<&mut Step, GenerateError> {
        let missing = match &self.form {
            Form::Fixed { steps, .. } => !steps.contains_key(&(size, way)),
            Form::Growing { .. } => false,
        };
        let made = if missing { Some(self.bind_step(size, way)?) } else { None };
        let Form::Fixed { steps, .. } = &mut self.form else {
            return Err(GenerateError::Unsupported("this cache has no fixed length".to_owned()));
        };
        if let Some(step) = made {
            steps.insert((size, way), step);
        }
        let missing = || GenerateError::Unsupported(format!("a run of {size} tokens was not bound"));
        steps.get_mut(&(size, way)).ok_or_else(missing)
    }

    fn bind_step(&self, size: usize, way: usize) -> Result<Step, GenerateError> {
        let Form::Fixed { cache, .. } = &self.form else {
            return Err(GenerateError::Unsupported("this cache has no fixed length".to_owned()));
        };
        let builder = cache.bind(self.fixed_inputs(size)?, way);
        let plan = builder.plan()?;
        let logits = plan.outputs.iter().find(|io| io.name == self.logits);
        let io = logits.ok_or(crate::session::SessionError::NotRun)?;
        let rows = if size > 1 { self.rows_on_device(io)? } else { None };
        let builder = match &rows {
            Some(rows) => builder.output(&self.logits, Memory::buffer(&rows.all)),
            None => builder,
        };
        Ok(Step { binding: builder.build()?, valid: None, logits: io.info.clone(), rows })
    }

    /// Memory for logits that a bus separates from the host.
    fn rows_on_device(&self, io: &PlannedIo) -> Result<Option<Rows>, GenerateError> {
        let [device] = io.devices[..] else { return Ok(None) };
        let Some(context) = self.session.context(device as usize) else { return Ok(None) };
        if context.info().native || context.info().memory.shares_host_memory() {
            return Ok(None);
        }
        let buffer = |bytes: usize, placement, label| {
            let bytes = (bytes as u64).max(16).next_multiple_of(16);
            context.create_buffer(&BufferDesc { bytes, placement, label })
        };
        let all = buffer(io.info.bytes(), Placement::Device, "logits")?;
        let row =
            buffer(io.info.dtype.bytes() * self.vocabulary, Placement::Readback, "logits of one token")?;
        Ok(Some(Rows { device, all, row }))
    }

    fn run_fixed(
        &mut self,
        size: usize,
        tokens: &[u32],
        is_last: bool,
        options: Option<&RunOptions>,
    ) -> Result<(), GenerateError> {
        let (len, capacity) = (self.len, self.capacity);
        let (ids, mask, positions) = (self.ids.clone(), self.mask.clone(), self.positions.clone());
        let Form::Fixed { cache, .. } = &self.form else { return Ok(()) };
        let step = self.step(size, cache.way())?;
        let mut values: Vec<i64> = tokens.iter().map(|t| i64::from(*t)).collect();
        values.resize(size, 0);
        ids.write(&mut step.binding, 0, &values, || values.clone())?;
        if let Some(positions) = positions {
            let values: Vec<i64> = (len..len + size).map(|p| p as i64).collect();
            positions.write(&mut step.binding, 0, &values, || values.clone())?;
        }
        if let Some(mask) = mask {
            // Only what changed; tokens that fill up a run are valid in it, so that positions are right.
            let valid = len + size;
            let all = || (0..capacity).map(|p| i64::from(p < valid)).collect::<Vec<_>>();
            let (from, changed) = match step.valid.take() {
                Some(before) => (before.min(valid), vec![i64::from(valid > before); before.abs_diff(valid)]),
                None => (0, all()),
            };
            mask.write(&mut step.binding, from, &changed, all)?;
            step.valid = Some(valid);
        }
        match options {
            Some(options) => step.binding.run_with(options)?,
            None => step.binding.run()?,
        }
        if let Form::Fixed { cache, .. } = &mut self.form {
            cache.advance();
        }
        if is_last { self.read_row(size, tokens.len() - 1) } else { Ok(()) }
    }

    /// Reads the logits of token `row` of the run before.
    fn read_row(&mut self, size: usize, row: usize) -> Result<(), GenerateError> {
        let Form::Fixed { cache, steps } = &self.form else { return Ok(()) };
        let Some(step) = steps.get(&(size, cache.other(cache.way()))) else { return Ok(()) };
        let info = TensorInfo::new(step.logits.dtype, Shape::new([self.vocabulary])?);
        let start = row.min(step.logits.shape[1] - 1) * info.bytes();
        let row = Tensor::build(info.clone(), |bytes| match &step.rows {
            Some(rows) => {
                let Some(context) = self.session.context(rows.device as usize) else { return Ok(()) };
                let len = bytes.len() as u64;
                let (from, to) = (rows.all.sub_buffer(start as u64, len)?, rows.row.sub_buffer(0, len)?);
                context.queue()?.enqueue_copy(&from, &to)?.wait()?;
                to.map_read()?.copy_to(bytes)?;
                Ok(())
            }
            None => copy_row(&step.binding, &self.logits, start, bytes),
        })?;
        self.last = row.to_f32s()?;
        Ok(())
    }

    fn run_growing(
        &mut self,
        tokens: &[u32],
        is_last: bool,
        options: Option<&RunOptions>,
    ) -> Result<(), GenerateError> {
        let Form::Growing { tensors, memory } = &self.form else { return Ok(()) };
        let mut builder = self.growing_inputs(tensors, memory.as_deref(), tokens, self.len)?;
        let mut grown = Vec::new();
        for tensor in tensors {
            let bytes =
                TensorInfo::new(tensor.info.dtype, of_length(&tensor.info, self.len + tokens.len())?).bytes();
            let region = HostRegion::new(bytes.max(16))?.into_shared();
            builder = builder.output(&tensor.present, Memory::region(&region));
            grown.push(CacheMemory::Region(region));
        }
        let mut binding = builder.build()?;
        match options {
            Some(options) => binding.run_with(options)?,
            None => binding.run()?,
        }
        if is_last {
            let info = binding.output_info(&self.logits)?.clone();
            let row = TensorInfo::new(info.dtype, Shape::new([self.vocabulary])?);
            let start = info.bytes().saturating_sub(row.bytes());
            self.last =
                Tensor::build(row, |bytes| copy_row(&binding, &self.logits, start, bytes))?.to_f32s()?;
        }
        if let Form::Growing { memory, .. } = &mut self.form {
            *memory = Some(grown);
        }
        Ok(())
    }
}

/// Copies bytes of an output from byte `start` on.
fn copy_row(
    binding: &Binding<'static>,
    name: &str,
    start: usize,
    bytes: &mut [u8],
) -> Result<(), GenerateError> {
    let whole = binding.output_info(name)?.bytes();
    if whole == bytes.len() {
        return Ok(binding.read_output(name, bytes)?);
    }
    let part = start..start + bytes.len();
    if let Ok(view) = binding.host_view(name)
        && let Some(row) = view.read()?.get(part.clone())
    {
        bytes.copy_from_slice(row);
        return Ok(());
    }
    if let Some(row) = binding.get_output(name)?.bytes().get(part) {
        bytes.copy_from_slice(row);
    }
    Ok(())
}

/// Type and shape of a cache of no token.
fn cache_info(io: &IoInfo, config: &Config) -> Result<TensorInfo, GenerateError> {
    let declared = io.shape.as_ref();
    let wrong = || GenerateError::Shape {
        name: io.name.clone(),
        expected: "[batch, heads, past tokens, elements], with heads and elements known there or in the settings",
        got: declared.map_or("unknown".to_owned(), ToString::to_string),
    };
    let dims = match declared {
        Some(shape) if shape.0.len() != 4 => return Err(wrong()),
        Some(shape) => &shape.0[..],
        None => &[],
    };
    let size = |at: usize, told: Option<usize>| match dims.get(at) {
        Some(Dim::Known(n)) => Ok(*n),
        _ => told.ok_or_else(wrong),
    };
    let [heads, elements] = config.heads;
    let shape = Shape::new([1, size(1, heads)?, 0, size(3, elements)?])?;
    let dtype = io.dtype.unwrap_or(DType::F32);
    if !dtype.is_float() {
        let (name, expected) = (io.name.clone(), "floating point numbers");
        return Err(GenerateError::DType { name, expected, got: dtype });
    }
    Ok(TensorInfo::new(dtype, shape))
}

/// The shape of a cache of `tokens` tokens.
fn of_length(info: &TensorInfo, tokens: usize) -> Result<Shape, GenerateError> {
    Ok(Shape::new([info.shape[0], info.shape[1], tokens, info.shape[3]])?)
}

/// Tokens of the next run: a power of two. `rest` tokens are left, the cache has `room`; a last run that `fills_up` may
/// be larger than what is left.
fn chunk_size(rest: usize, room: usize, largest: usize, fills_up: bool) -> usize {
    let whole = |n: usize| 1 << n.max(1).ilog2();
    if rest <= 1 {
        return 1;
    }
    let padded = rest.next_power_of_two().max(SMALLEST_CHUNK).min(largest);
    if padded <= room && (fills_up || padded <= rest) { padded } else { whole(rest.min(room).min(largest)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_cut_into_few_sizes() {
        let sizes = |tokens: usize, room: usize, fills_up: bool| {
            let (mut rest, mut room, mut all) = (tokens, room, Vec::new());
            while rest > 0 {
                let size = chunk_size(rest, room, 64, fills_up);
                assert!(size <= room && size.is_power_of_two());
                all.push(size);
                let real = size.min(rest);
                (rest, room) = (rest - real, room - real);
            }
            all
        };
        assert_eq!(sizes(1, 10, true), [1]);
        assert_eq!(sizes(2, 10, true), [8]);
        assert_eq!(sizes(64, 99, true), [64]);
        assert_eq!(sizes(150, 999, true), [64, 64, 32]);
        assert_eq!(sizes(150, 151, true), [64, 64, 16, 4, 2]);
        assert_eq!(sizes(5, 5, true), [4, 1]);
        assert_eq!(sizes(150, 999, false), [64, 64, 16, 4, 2]);
    }
}
