//! What ends runs early, and how the tensors of one reached the devices.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use onepool::memory::import::{Path, ReadWrite, Verdict};
use onepool::session::{CancelToken, RunOptions};
use onepool_core::sync::lock;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::array::Packed;
use crate::errors::{self, Class};
use crate::log::{detached, tell};

/// Ends the runs that were given it.
#[pyclass(frozen, module = "onepool")]
#[derive(Debug, Default)]
pub(crate) struct Cancel(CancelToken);

#[pymethods]
impl Cancel {
    #[new]
    fn new() -> Self {
        Cancel::default()
    }

    fn cancel(&self) {
        self.0.cancel();
    }

    #[getter]
    fn cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// How often a run on the main thread looks for signals, such as Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// What may end one run early.
pub(crate) struct Limits {
    options: RunOptions,
    /// What a handler of a signal raised during the run.
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl Limits {
    pub(crate) fn new(
        py: Python<'_>,
        time_limit: Option<f64>,
        cancel: Option<&Bound<'_, Cancel>>,
    ) -> PyResult<Self> {
        let mut options = RunOptions::new();
        if let Some(seconds) = time_limit {
            let limit = Duration::try_from_secs_f64(seconds).map_err(|_| {
                Class::Argument
                    .says(py, format!("time_limit: {seconds} s is no time, expected seconds from 0"))
            })?;
            options = options.time_limit(limit);
        }
        if let Some(cancel) = cancel {
            options = options.cancel(&cancel.get().0);
        }
        let raised = Arc::default();
        // Handlers run on no other thread.
        if is_main_thread(py)? {
            options = options.interrupt(signals(Arc::clone(&raised)));
        }
        Ok(Limits { options, raised })
    }

    /// Runs without the interpreter. What a handler of a signal raises ends the run, and is raised here.
    pub(crate) fn run(&self, py: Python<'_>, binding: &mut onepool::Binding<'static>) -> PyResult<()> {
        let ran = detached(py, || binding.run_with(&self.options));
        if let Some(raised) = lock(&self.raised).take() {
            return Err(raised);
        }
        ran.map_err(|e| errors::raised(py, e))
    }
}

/// Whether this is the thread that handlers of signals run on.
fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    static THREADING: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let threading = THREADING.get_or_try_init(py, || py.import("threading").map(Bound::unbind))?.bind(py);
    let main = threading.call_method0(intern!(py, "main_thread"))?.getattr(intern!(py, "ident"))?;
    main.eq(threading.call_method0(intern!(py, "get_ident"))?)
}

/// Lets handlers of signals run now and then; whether one of them has raised.
fn signals(raised: Arc<Mutex<Option<PyErr>>>) -> impl Fn() -> bool + Send + Sync {
    let looked = Mutex::new(Instant::now());
    move || {
        let now = Instant::now();
        let mut looked = lock(&looked);
        if now.duration_since(*looked) >= SIGNALS_EVERY {
            *looked = now;
            let looks = |py: Python<'_>| {
                tell(py);
                py.check_signals()
            };
            if let Some(Err(error)) = Python::try_attach(looks) {
                *lock(&raised) = Some(error);
            }
        }
        lock(&raised).is_some()
    }
}

/// One row: tensor, path, access, bytes, offset, bytes copied by the CPU, bytes copied by the device, reason, fix.
type Row = (String, &'static str, &'static str, u64, u64, u64, u64, String, Option<String>);

/// How the tensors of a binding reach its devices.
#[pyclass(frozen, module = "onepool._onepool")]
#[derive(Debug)]
pub(crate) struct Verdicts {
    verdicts: Vec<Verdict>,
    /// Inputs that the package copies before a run: names and reasons.
    packed: Vec<(String, String)>,
}

impl Verdicts {
    pub(crate) fn new(binding: &onepool::Binding<'static>, packed: &[Packed]) -> Self {
        let verdicts = binding.stages().flat_map(onepool::Binding::verdicts).cloned().collect();
        Verdicts { verdicts, packed: packed.iter().map(|p| (p.name.clone(), p.reason.clone())).collect() }
    }
}

#[pymethods]
impl Verdicts {
    fn rows(&self) -> Vec<Row> {
        self.verdicts.iter().map(|verdict| self.row(verdict)).collect()
    }
}

impl Verdicts {
    fn row(&self, verdict: &Verdict) -> Row {
        let Verdict { tensor, bytes, offset, reason, .. } = verdict;
        let access = match verdict.access {
            ReadWrite::Read => "read",
            ReadWrite::Write => "write",
            ReadWrite::ReadWrite => "read_write",
        };
        let by = |copies: bool| if copies { *bytes } else { 0 };
        let on_device = by(verdict.copies_on_device());
        if let Some((_, why)) = self.packed.iter().find(|(name, _)| name == tensor) {
            let fix = "give a C-contiguous array".to_owned();
            return (
                tensor.clone(),
                "staged",
                access,
                *bytes,
                *offset,
                *bytes,
                on_device,
                why.clone(),
                Some(fix),
            );
        }
        let path = match verdict.path {
            Path::Host => "host",
            Path::Direct => "direct",
            Path::Imported => "imported",
            Path::ImportedDma => "imported_dma",
            Path::DmaBuf => "dma_buf",
            Path::Staged => "staged",
        };
        let on_cpu = by(verdict.path.copies_on_cpu());
        let (reason, fix) = (reason.sentence().into_owned(), reason.fix().map(str::to_owned));
        (tensor.clone(), path, access, *bytes, *offset, on_cpu, on_device, reason, fix)
    }
}
