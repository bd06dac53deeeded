//! Arrays tied to the inputs and outputs of a session.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use onepool::plan::Plan;
use onepool::session::{IoInfo, SessionError};
use onepool::{DType, HostRegion, TensorInfo};
use onepool_core::sync::get_mut;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::array::{Array, Packed, Side};
use crate::errors::{Class, raised, raised_of};
use crate::log::detached;
use crate::run::{Cancel, Limits, Verdicts};
use crate::shared::{Shared, Views};
use crate::tensor::Tensor;

/// An output of a binding.
#[derive(Debug)]
struct Output {
    name: String,
    /// The array that is written in place; none where the size is known only in the run.
    array: Option<Py<PyAny>>,
    /// What the array is, where that is to be compared with what a run makes.
    unchecked: Option<TensorInfo>,
}

/// A binding, and what it needs of the interpreter.
#[derive(Debug)]
pub(crate) struct Lending {
    binding: onepool::Binding<'static>,
    packed: Vec<Packed>,
    views: Views,
    /// Inputs and the outputs that are the same array.
    updates: Vec<(String, String)>,
    outputs: Vec<Output>,
}

/// The inputs of a binding as they are lent.
#[derive(Default)]
struct Inputs {
    memories: Memories,
    packed: Vec<Packed>,
    views: Views,
}

impl Lending {
    /// Lends arrays to a session. Outputs without an array get one, where their size is known.
    pub(crate) fn new(
        py: Python<'_>,
        shared: &Shared,
        inputs: &Bound<'_, PyDict>,
        out: Option<&Bound<'_, PyDict>>,
        updates: Option<&Bound<'_, PyDict>>,
        strict: Option<bool>,
    ) -> PyResult<Self> {
        let must = strict.unwrap_or(shared.strict);
        check_names(shared, inputs, "inputs")?;
        updates.map(|updates| check_names(shared, updates, "updates")).transpose()?;
        let mut lent = Inputs::default();
        for (name, object) in inputs {
            let name = text(&name, "inputs")?;
            match shared.frames[0].lend(&name, &object, Side::Input)? {
                Some(memories) => lent.memories.extend(memories),
                None => lent.add(shared, &object, name, must)?,
            }
        }
        let updated = |name: &str| updates.is_some_and(|updates| updates.contains(name).unwrap_or(false));
        let given = |name: &str| {
            let name = shared.frames[0].of_memory(name).unwrap_or(name);
            inputs.contains(name).unwrap_or(false) || updated(name)
        };
        let missing = shared.inputs.iter().map(|io| &io.name).filter(|name| !given(name));
        let names: Vec<String> = missing.cloned().collect();
        if !names.is_empty() {
            return Err(raised(py, SessionError::Unbound { names }));
        }
        let Inputs { memories, packed, views } = lent;
        let mut builder = match views.is_empty() {
            true => shared.session.bind(),
            false => detached(py, || shared.viewing(&views)).map_err(|e| raised(py, e))?.bind(),
        };
        for (name, memory) in memories {
            builder = builder.input(name, memory);
        }
        if let Some(strict) = strict {
            builder = builder.strict(strict);
        }
        let mut outputs = Vec::with_capacity(shared.outputs.len());
        if let Some(out) = out {
            for (name, object) in out {
                let name = text(&name, "out")?;
                if let Some(memories) = shared.frames[1].lend(&name, &object, Side::Output)? {
                    for (name, memory) in memories {
                        builder = builder.output(name, memory);
                    }
                    outputs.push(Output { name, array: Some(object.unbind()), unchecked: None });
                    continue;
                }
                let argument = Side::Output.argument(&name);
                let array = Array::of(&object, &argument)?;
                if let Some(dtype) = shared.outputs.iter().find(|io| io.name == name).and_then(|io| io.dtype)
                {
                    array.check_dtype(py, &name, Side::Output, dtype)?;
                }
                let unchecked = Some(array.info.clone());
                builder = builder.output(name.clone(), array.lend(py, &name, Side::Output)?);
                outputs.push(Output { name, array: Some(object.unbind()), unchecked });
            }
        }
        let mut updated = Vec::new();
        for (input, pair) in updates.into_iter().flatten() {
            let input = text(&input, "updates")?;
            let argument = Side::Update.argument(&input);
            let (output, object): (String, Bound<'_, PyAny>) = pair.extract().map_err(|_| {
                let message =
                    format!("{argument}: expected the name of an output and an array, got {pair:?}");
                Class::ArrayType.says(py, message)
            })?;
            let array = Array::of(&object, &argument)?;
            if let Some(io) = shared.inputs.iter().find(|io| io.name == input) {
                array.check_dtype(py, &input, Side::Update, io.dtype.unwrap_or(DType::F32))?;
            }
            let unchecked = Some(array.info.clone());
            builder = builder.update(input.clone(), output.clone(), array.lend(py, &input, Side::Update)?);
            outputs.push(Output { name: output.clone(), array: Some(object.unbind()), unchecked });
            updated.push((input, output));
        }
        let plan = detached(py, || builder.plan()).map_err(|e| raised(py, e))?;
        for output in &mut outputs {
            if let Some(planned) = planned(&plan, &output.name) {
                check(py, output, planned)?;
                output.unchecked = None;
            }
        }
        for io in &shared.outputs {
            let frame = shared.frames[1].of_memory(&io.name);
            if outputs.iter().any(|output| output.name == frame.unwrap_or(&io.name)) {
                continue;
            }
            let name = io.name.clone();
            let mut array = None;
            if let Some(info) = planned(&plan, &name) {
                let tensor = Tensor::zeros(py, &Side::Output.argument(&name), info.clone())?;
                builder =
                    builder.output(name.clone(), Array::of_tensor(&tensor).lend(py, &name, Side::Output)?);
                array = Some(tensor.array(py)?.unbind());
            }
            outputs.push(Output { name, array, unchecked: None });
        }
        let binding = detached(py, || builder.build()).map_err(|e| raised(py, e))?;
        Ok(Lending { binding, packed, views, updates: updated, outputs })
    }

    /// Runs once.
    pub(crate) fn run<'py>(&mut self, py: Python<'py>, limits: &Limits) -> PyResult<Bound<'py, PyDict>> {
        for packed in &self.packed {
            packed.pack(py)?;
        }
        limits.run(py, &mut self.binding)?;
        let results = PyDict::new(py);
        for output in &self.outputs {
            match &output.array {
                Some(array) => {
                    if output.unchecked.is_some() {
                        let info = self.binding.output_info(&output.name).map_err(|e| raised(py, e))?;
                        check(py, output, info)?;
                    }
                    results.set_item(&output.name, array)?;
                }
                None => results.set_item(&output.name, self.copied(py, &output.name)?)?,
            }
        }
        Ok(results)
    }

    /// A copy of an output whose size was known only in the run.
    fn copied<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let made = detached(py, || {
            let info = self.binding.output_info(name)?.clone();
            let mut region = HostRegion::new(info.bytes())?;
            let bytes = info.bytes();
            self.binding.read_output(name, &mut region.as_mut_slice()[..bytes])?;
            Ok::<_, onepool::Error>(Tensor::over(region, info))
        });
        made.map_err(|e| raised_of(py, &Side::Output.argument(name), e))?.array(py)
    }

    pub(crate) fn verdicts(&self) -> Verdicts {
        Verdicts::new(&self.binding, &self.packed)
    }

    /// Lets go of the arrays. What waits for devices does so without the interpreter.
    pub(crate) fn close(self, py: Python<'_>) {
        let Lending { binding, .. } = self;
        detached(py, || drop(binding));
    }
}

/// Checks that the model has the inputs that a dictionary names.
fn check_names(shared: &Shared, given: &Bound<'_, PyDict>, argument: &str) -> PyResult<()> {
    let name_of = |io: &IoInfo| shared.frames[0].of_memory(&io.name).unwrap_or(&io.name).to_owned();
    for (name, _) in given {
        let name = text(&name, argument)?;
        if !shared.inputs.iter().any(|io| name_of(io) == name) {
            let mut known: Vec<String> = shared.inputs.iter().map(name_of).collect();
            known.dedup();
            return Err(raised(given.py(), SessionError::Unknown { what: "input", name, known }));
        }
    }
    Ok(())
}

/// A name of a dictionary.
fn text(name: &Bound<'_, PyAny>, argument: &str) -> PyResult<String> {
    let text = name.cast::<PyString>().map_err(|_| {
        Class::ArrayType.says(name.py(), format!("{argument}: names are texts, got {name:?}"))
    })?;
    Ok(text.to_cow()?.into_owned())
}

/// Arrays of fewer bytes that are not C-contiguous are copied before a run, unless that is forbidden: a plan for their
/// strides costs more.
const SMALL: usize = 64 << 10;

impl Inputs {
    /// Lends an array: at its strides where they are whole elements, else by a copy before each run.
    fn add(
        &mut self,
        shared: &Shared,
        object: &Bound<'_, PyAny>,
        name: String,
        strict: bool,
    ) -> PyResult<()> {
        let array = checked(shared, object, &name)?;
        let view = array.view().filter(|_| strict || array.info.bytes() >= SMALL);
        let memory = match view {
            Some(view) => {
                let memory = array.lend_view(&view)?;
                self.views.push((name.clone(), view));
                memory
            }
            None => compact(object, array, &name, strict, &mut self.packed)?,
        };
        self.memories.push((name, memory));
        Ok(())
    }
}

/// The array for an input that the model declares so.
fn checked(shared: &Shared, object: &Bound<'_, PyAny>, name: &str) -> PyResult<Array> {
    let py = object.py();
    let array = Array::of(object, &Side::Input.argument(name))?;
    if let Some(io) = shared.inputs.iter().find(|io| io.name == name) {
        array.check_dtype(py, name, Side::Input, io.dtype.unwrap_or(DType::F32))?;
        // Before anything of the array's size is allocated.
        if let Some(declared) = &io.shape {
            let fits = declared.unify(&array.info.shape, &mut Default::default());
            let name = name.to_owned();
            fits.map_err(|source| raised(py, SessionError::Shape { name, source }))?;
        }
    }
    Ok(array)
}

/// Memory for a compact input, which is copied before each run where it is not C-contiguous and that is allowed.
fn compact(
    object: &Bound<'_, PyAny>,
    array: Array,
    name: &str,
    strict: bool,
    packed: &mut Vec<Packed>,
) -> PyResult<onepool::Memory<'static>> {
    let py = object.py();
    let Some(strides) = array.strided() else { return array.lend(py, name, Side::Input) };
    if strict {
        let expected = array.info.shape.strides();
        let message = format!(
            "input {name:?}: strict mode: an array with strides of {strides:?} elements would be copied; give a C-contiguous one, with {expected:?}"
        );
        return Err(Class::Strict.says(py, message));
    }
    let (made, memory) = Packed::new(object, &array, name)?;
    packed.push(made);
    Ok(memory)
}

fn planned<'p>(plan: &'p Plan, name: &str) -> Option<&'p TensorInfo> {
    plan.outputs.iter().find(|io| io.name == name).map(|io| &io.info)
}

/// Compares the caller's array for an output with what a run writes.
fn check(py: Python<'_>, output: &Output, info: &TensorInfo) -> PyResult<()> {
    let Some(array) = &output.unchecked else { return Ok(()) };
    let (name, argument) = (output.name.clone(), Side::Output.argument(&output.name));
    if array.dtype != info.dtype {
        let error = SessionError::DType { name, expected: info.dtype, got: array.dtype };
        return Err(raised_of(py, &argument, error));
    }
    if array.shape != info.shape {
        let message = format!("{argument}: has the shape {}, got an array of {}", info.shape, array.shape);
        return Err(Class::Shape.says(py, message));
    }
    Ok(())
}

type Memories = Vec<(String, onepool::Memory<'static>)>;

/// Binds the memories of frames anew: those of inputs, and those of outputs.
fn rebind_frame(
    py: Python<'_>,
    bound: &mut Lending,
    (inputs, outputs): (Memories, Memories),
) -> PyResult<()> {
    let names = |memories: &Memories| memories.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let (input_names, output_names) = (names(&inputs), names(&outputs));
    let inputs = input_names.iter().map(String::as_str).zip(inputs.into_iter().map(|(_, memory)| memory));
    let outputs = output_names.iter().map(String::as_str).zip(outputs.into_iter().map(|(_, memory)| memory));
    detached(py, || bound.binding.rebind_all(inputs, outputs)).map_err(|e| raised(py, e))
}

/// Arrays bound to a session.
#[pyclass(frozen, module = "onepool._onepool")]
#[derive(Debug)]
pub(crate) struct Binding {
    shared: Arc<Shared>,
    state: Mutex<Option<Lending>>,
}

impl Binding {
    pub(crate) fn new(shared: Arc<Shared>, bound: Lending) -> Self {
        Binding { shared, state: Mutex::new(Some(bound)) }
    }

    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Option<Lending>>> {
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(state)) => Ok(state.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Class::Busy.says(py, "the binding is in use: another thread runs it now"))
            }
        }
    }

    fn with<R>(&self, py: Python<'_>, work: impl FnOnce(&mut Lending) -> PyResult<R>) -> PyResult<R> {
        let mut state = self.lock(py)?;
        work(state.as_mut().ok_or_else(|| Class::Closed.says(py, "the binding is closed"))?)
    }

    fn json(&self, py: Python<'_>, value: serde_json::Result<String>) -> PyResult<String> {
        value.map_err(|e| Class::Error.says(py, e))
    }
}

#[pymethods]
impl Binding {
    #[pyo3(signature = (time_limit = None, cancel = None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        time_limit: Option<f64>,
        cancel: Option<&Bound<'py, Cancel>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let limits = Limits::new(py, time_limit, cancel)?;
        self.with(py, |bound| bound.run(py, &limits))
    }

    fn rebind_input(&self, py: Python<'_>, name: &str, array: &Bound<'_, PyAny>) -> PyResult<()> {
        self.with(py, |bound| {
            if let Some(memories) = self.shared.frames[0].lend(name, array, Side::Input)? {
                return rebind_frame(py, bound, (memories, Vec::new()));
            }
            let mut packed = Vec::new();
            let given = checked(&self.shared, array, name)?;
            let bound_view = bound.views.iter().find(|(known, _)| known == name).map(|(_, view)| view);
            let updated = bound.updates.iter().find(|(input, _)| input == name).map(|(_, output)| output);
            let memory = match bound_view {
                _ if updated.is_some() => given.lend(py, name, Side::Update)?,
                Some(view) if given.view().as_ref() == Some(view) => given.lend_view(view)?,
                Some(_) => {
                    let message = format!(
                        "input {name:?}: was bound to an array with other strides or sizes; give one with the same, or make another binding"
                    );
                    return Err(Class::Shape.says(py, message));
                }
                None => compact(array, given, name, self.shared.strict, &mut packed)?,
            };
            detached(py, || bound.binding.rebind_input(name, memory)).map_err(|e| raised(py, e))?;
            if let Some(output) = bound.outputs.iter_mut().find(|output| Some(&output.name) == updated) {
                output.array = Some(array.clone().unbind());
            }
            bound.packed.retain(|old| old.name != name);
            bound.packed.extend(packed);
            Ok(())
        })
    }

    fn rebind_output(&self, py: Python<'_>, name: &str, array: &Bound<'_, PyAny>) -> PyResult<()> {
        self.with(py, |bound| {
            if let Some(memories) = self.shared.frames[1].lend(name, array, Side::Output)? {
                rebind_frame(py, bound, (Vec::new(), memories))?;
                if let Some(place) = bound.outputs.iter_mut().find(|old| old.name == name) {
                    place.array = Some(array.clone().unbind());
                }
                return Ok(());
            }
            let given = Array::of(array, &Side::Output.argument(name))?;
            let unchecked = Some(given.info.clone());
            let mut output = Output { name: name.to_owned(), array: Some(array.clone().unbind()), unchecked };
            if let Some(info) = planned(bound.binding.plan(), name) {
                check(py, &output, info)?;
                output.unchecked = None;
            }
            let memory = given.lend(py, name, Side::Output)?;
            detached(py, || bound.binding.rebind_output(name, memory)).map_err(|e| raised(py, e))?;
            if let Some(place) = bound.outputs.iter_mut().find(|old| old.name == name) {
                *place = output;
            }
            Ok(())
        })
    }

    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.with(py, |bound| {
            let arrays = PyDict::new(py);
            for output in &bound.outputs {
                if let Some(array) = &output.array {
                    arrays.set_item(&output.name, array)?;
                }
            }
            Ok(arrays)
        })
    }

    fn verdicts(&self, py: Python<'_>) -> PyResult<Verdicts> {
        self.with(py, |bound| Ok(bound.verdicts()))
    }

    fn plan(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |bound| self.json(py, serde_json::to_string(&bound.binding.plan().report)))
    }

    fn profile(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |bound| {
            for packed in &bound.packed {
                packed.pack(py)?;
            }
            let profile = detached(py, || bound.binding.profile()).map_err(|e| raised(py, e))?;
            self.json(py, serde_json::to_string(&profile))
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let bound = self.lock(py)?.take();
        if let Some(bound) = bound {
            bound.close(py);
        }
        Ok(())
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        let state = get_mut(&mut self.state);
        if let Some(bound) = state.take() {
            // After the end of the interpreter its objects are no one's.
            let mut last = Some(bound);
            if Python::try_attach(|py| last.take().map(|bound| bound.close(py))).is_none() {
                std::mem::forget(last);
            }
        }
    }
}
