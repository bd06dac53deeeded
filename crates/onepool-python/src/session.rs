//! Models made ready on devices.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use onepool::session::{IoInfo, RunOptions, SessionBuilder};
use onepool::{Dim, loader};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::binding::{Binding, Lending};
use crate::errors::{Class, raised};
use crate::frame::described;
use crate::log::detached;
use crate::options::Options;
use crate::run::{Cancel, Limits, Verdicts};
use crate::shared::Shared;
use onepool_core::sync::lock;

/// A model made ready on devices.
#[pyclass(frozen, module = "onepool._onepool")]
#[derive(Debug)]
pub(crate) struct Session(Mutex<Option<Arc<Shared>>>);

impl Session {
    fn shared(&self, py: Python<'_>) -> PyResult<Arc<Shared>> {
        let shared = lock(&self.0).clone();
        shared.ok_or_else(|| Class::Closed.says(py, "the session is closed"))
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (path, model, base_dir, options, input_frames, output_frames))]
    fn new(
        py: Python<'_>,
        path: Option<PathBuf>,
        model: Option<&[u8]>,
        base_dir: Option<PathBuf>,
        options: Options,
        input_frames: Option<&Bound<'_, PyDict>>,
        output_frames: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let strict = options.strict();
        // Any run may be interrupted, so it is cut from the start.
        let run = RunOptions::new().interrupt(|| false);
        let mut builder = options.apply(onepool::Session::builder()).run_options(run);
        let (into, input_frames) = described(input_frames, "input_frames")?;
        let (out_of, output_frames) = described(output_frames, "output_frames")?;
        for (name, frame) in into {
            builder = builder.frame_input(name, frame);
        }
        for (name, frame) in out_of {
            builder = builder.frame_output(name, frame);
        }
        let build = || build(builder, path, model, base_dir.as_deref());
        let session = detached(py, build).map_err(|e| raised(py, e))?;
        let (inputs, outputs) = (session.inputs(), session.outputs());
        let frames = [input_frames, output_frames];
        let shared = Shared { session, inputs, outputs, strict, frames, views: Mutex::default() };
        Ok(Session(Mutex::new(Some(Arc::new(shared)))))
    }

    /// Name, element type and sizes of each input.
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        declared(py, &self.shared(py)?.inputs)
    }

    /// Name, element type and sizes of each output.
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        declared(py, &self.shared(py)?.outputs)
    }

    /// What the model's file says of itself: format, its version, graph, producer and its version, domain, version,
    /// descriptions of the model and of its graph, operator sets and properties.
    fn metadata(&self, py: Python<'_>) -> PyResult<Metadata> {
        Ok(metadata(&self.shared(py)?.session))
    }

    /// Names of the devices.
    fn devices(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.shared(py)?.session.devices().map(|info| info.name.clone()).collect())
    }

    fn bind(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyDict>,
        out: Option<&Bound<'_, PyDict>>,
        updates: Option<&Bound<'_, PyDict>>,
        strict: Option<bool>,
    ) -> PyResult<Binding> {
        let shared = self.shared(py)?;
        let bound = Lending::new(py, &shared, inputs, out, updates, strict)?;
        Ok(Binding::new(shared, bound))
    }

    /// Binds, runs and lets go: the results by name, and the verdicts.
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyDict>,
        out: Option<&Bound<'py, PyDict>>,
        time_limit: Option<f64>,
        cancel: Option<&Bound<'py, Cancel>>,
    ) -> PyResult<(Bound<'py, PyDict>, Verdicts)> {
        let limits = Limits::new(py, time_limit, cancel)?;
        let shared = self.shared(py)?;
        let mut bound = Lending::new(py, &shared, inputs, out, None, None)?;
        let results = bound.run(py, &limits);
        let verdicts = bound.verdicts();
        bound.close(py);
        Ok((results?, verdicts))
    }

    fn close(&self, py: Python<'_>) {
        let shared = lock(&self.0).take();
        detached(py, || drop(shared));
    }

    #[getter]
    fn closed(&self) -> bool {
        lock(&self.0).is_none()
    }
}

/// Texts and versions, in the order of `onepool.Metadata`.
pub(crate) type Metadata = (
    (&'static str, i64, String, String, String, String, i64, String, String),
    BTreeMap<String, i64>,
    BTreeMap<String, String>,
);

pub(crate) fn metadata(session: &onepool::Session) -> Metadata {
    let graph = session.graph().name().to_owned();
    let said = session.metadata().clone();
    let texts = (
        said.format,
        said.ir_version,
        graph,
        said.producer,
        said.producer_version,
        said.domain,
        said.version,
        said.description,
        said.graph_description,
    );
    (texts, said.opsets, said.properties)
}

fn build(
    builder: SessionBuilder,
    path: Option<PathBuf>,
    model: Option<&[u8]>,
    base_dir: Option<&Path>,
) -> Result<onepool::Session, onepool::Error> {
    match (path, model) {
        (Some(path), _) => builder.model(path).build(),
        (None, Some(model)) => builder.graph(loader::load_onnx_bytes(model, base_dir)?).build(),
        (None, None) => builder.build(),
    }
}

/// Name, element type (or none) and sizes (numbers, names of open ones, or none) of inputs or outputs.
fn declared<'py>(py: Python<'py>, ios: &[IoInfo]) -> PyResult<Bound<'py, PyList>> {
    let rows = PyList::empty(py);
    for io in ios {
        let size = |dim: &Dim| -> PyResult<Bound<'py, PyAny>> {
            Ok(match dim {
                Dim::Known(size) => size.into_pyobject(py)?.into_any(),
                Dim::Symbol(name) => PyString::new(py, name).into_any(),
                Dim::Unknown => py.None().into_bound(py),
            })
        };
        let shape = io.shape.as_ref().map(|shape| shape.0.iter().map(size).collect::<PyResult<Vec<_>>>());
        let shape = shape.transpose()?.map(|sizes| PyTuple::new(py, sizes)).transpose()?;
        rows.append((&io.name, io.dtype.map(onepool::DType::name), shape))?;
    }
    Ok(rows)
}
