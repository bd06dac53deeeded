//! How sessions are opened: options that sessions, generators and embedders have in common.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use onepool::backend::{ContextDesc, QueuePriority, Robustness, WaitPolicy};
use onepool::memory::host::Unchanging;
use onepool::plan::{Activations, Integers, Precision};
use onepool::session::{NodePlacement, SessionBuilder, SubmissionLimit, Tuning};
use pyo3::prelude::*;

use crate::errors::Class;
use crate::text::setting;
use onepool_core::files::cache::CacheFolder;

/// The longest time that is one, in seconds.
const MOST_SECONDS: f64 = 86_400.0;

/// What Python gave, checked.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    devices: Vec<String>,
    desc: ContextDesc,
    precision: Precision,
    activations: Activations,
    integers: Integers,
    coarse_filter: bool,
    fuse: bool,
    placement: NodePlacement,
    placement_time: Option<Duration>,
    nodes: BTreeMap<String, u32>,
    operators: BTreeMap<String, u32>,
    rest: Option<u32>,
    tuning: Tuning,
    tuning_dir: Option<PathBuf>,
    submission_limit: Option<SubmissionLimit>,
    strict: bool,
    fallback: bool,
    copy_threshold: Option<u64>,
    params: Option<PathBuf>,
    any_device: bool,
    map: Option<Unchanging>,
}

/// One of the words that an option may be.
fn word<T: Copy>(given: &Bound<'_, PyAny>, name: &str, known: &[(&str, T)]) -> PyResult<T> {
    let text: String = setting(given, name)?;
    let found = known.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let words: Vec<String> = known.iter().map(|(word, _)| format!("{word:?}")).collect();
        Class::Argument.says(given.py(), format!("{name}: {text:?} is none of {}", words.join(", ")))
    })
}

/// A number of seconds.
fn time(given: &Bound<'_, PyAny>, name: &str, seconds: f64) -> PyResult<Duration> {
    if (0.0..=MOST_SECONDS).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    let message = format!("{name}: {seconds} is no number of seconds from 0 to {MOST_SECONDS}");
    Err(Class::Argument.says(given.py(), message))
}

/// A folder for caches.
fn folder(given: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<PathBuf>> {
    let folder: Option<PathBuf> = setting(given, name)?;
    if let Some(folder) = &folder {
        let usable = CacheFolder::new(folder).check();
        usable.map_err(|e| Class::Argument.says(given.py(), format!("{name}: {e}")))?;
    }
    Ok(folder)
}

/// Either a word or a number.
#[derive(FromPyObject)]
enum WordOrNumber {
    Word(String),
    Number(f64),
}

fn tuning(given: &Bound<'_, PyAny>) -> PyResult<Tuning> {
    match setting(given, "tuning")? {
        WordOrNumber::Word(word) if word == "off" => Ok(Tuning::Off),
        WordOrNumber::Word(word) if word == "kept" => Ok(Tuning::Kept),
        WordOrNumber::Word(word) => {
            let message = format!("tuning: {word:?} is neither \"off\" nor \"kept\" nor a number of seconds");
            Err(Class::Argument.says(given.py(), message))
        }
        WordOrNumber::Number(seconds) => time(given, "tuning", seconds).map(Tuning::Within),
    }
}

fn submission_limit(given: &Bound<'_, PyAny>) -> PyResult<Option<SubmissionLimit>> {
    Ok(Some(match setting::<Option<WordOrNumber>>(given, "submission_limit")? {
        None => return Ok(None),
        Some(WordOrNumber::Word(word)) if word == "auto" => SubmissionLimit::Auto,
        Some(WordOrNumber::Word(word)) if word == "off" => SubmissionLimit::Off,
        Some(WordOrNumber::Word(word)) => {
            let message =
                format!("submission_limit: {word:?} is neither \"auto\" nor \"off\" nor a number of seconds");
            return Err(Class::Argument.says(given.py(), message));
        }
        Some(WordOrNumber::Number(seconds)) => {
            SubmissionLimit::AtMost(time(given, "submission_limit", seconds)?)
        }
    }))
}

/// Whether files of weights are mapped.
#[allow(unsafe_code, reason = "the program promises that the files stay as they are")]
fn mapped(given: &Bound<'_, PyAny>) -> PyResult<Option<Unchanging>> {
    let is_mapped: bool = setting(given, "map_weights")?;
    // SAFETY: who sets the option promises it, as its documentation says.
    Ok(is_mapped.then(|| unsafe { Unchanging::promise() }))
}

impl FromPyObject<'_, '_> for Options {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let given = &*given;
        let placement_seconds: Option<f64> = setting(given, "placement_seconds")?;
        let waits =
            [("adaptive", WaitPolicy::Adaptive), ("block", WaitPolicy::Block), ("spin", WaitPolicy::Spin)];
        let guarded = [("callers", Robustness::Callers), ("all", Robustness::All), ("off", Robustness::Off)];
        let integers = [("auto", Integers::Auto), ("always", Integers::Always), ("never", Integers::Never)];
        Ok(Options {
            devices: setting(given, "device")?,
            desc: ContextDesc {
                validation: setting(given, "validation")?,
                threads: setting(given, "threads")?,
                cache_dir: folder(given, "cache_dir")?,
                wait: word(given, "wait", &waits)?,
                priority: word(
                    given,
                    "priority",
                    &[("auto", QueuePriority::Auto), ("normal", QueuePriority::Normal)],
                )?,
                robustness: word(given, "robustness", &guarded)?,
                ..ContextDesc::default()
            },
            precision: word(given, "precision", &[("f32", Precision::F32), ("f16", Precision::F16)])?,
            activations: word(
                given,
                "activations",
                &[("allowed", Activations::Allowed), ("exact", Activations::Exact)],
            )?,
            integers: word(given, "integers", &integers)?,
            coarse_filter: setting(given, "coarse_filter")?,
            fuse: setting(given, "fuse")?,
            placement: word(
                given,
                "placement",
                &[("manual", NodePlacement::Manual), ("auto", NodePlacement::Auto)],
            )?,
            placement_time: placement_seconds.map(|s| time(given, "placement_seconds", s)).transpose()?,
            nodes: setting(given, "place_nodes")?,
            operators: setting(given, "place_operators")?,
            rest: setting(given, "place_rest")?,
            tuning: tuning(given)?,
            tuning_dir: folder(given, "tuning_dir")?,
            submission_limit: submission_limit(given)?,
            strict: setting(given, "strict")?,
            fallback: setting(given, "fallback")?,
            copy_threshold: setting(given, "copy_threshold")?,
            params: setting(given, "params")?,
            any_device: setting(given, "any_device")?,
            map: mapped(given)?,
        })
    }
}

impl Options {
    /// Whether copies by the CPU are errors.
    pub(crate) fn strict(&self) -> bool {
        self.strict
    }

    /// Asks the builder of a session for them.
    pub(crate) fn apply(&self, builder: SessionBuilder) -> SessionBuilder {
        let mut builder = builder
            .context_desc(self.desc.clone())
            .precision(self.precision)
            .activations(self.activations)
            .integers(self.integers)
            .coarse_filter(self.coarse_filter)
            .fuse(self.fuse)
            .placement(self.placement)
            .tuning(self.tuning)
            .strict(self.strict)
            .fallback(self.fallback)
            .any_device(self.any_device);
        builder = self.devices.iter().fold(builder, |builder, device| builder.device(device));
        builder = self.nodes.iter().fold(builder, |builder, (name, at)| builder.place_node(name, *at));
        builder = self.operators.iter().fold(builder, |builder, (op, at)| builder.place_op(op, *at));
        if let Some(device) = self.rest {
            builder = builder.place_rest(device);
        }
        if let Some(time) = self.placement_time {
            builder = builder.placement_budget(time);
        }
        if let Some(folder) = &self.tuning_dir {
            builder = builder.tuning_folder(folder);
        }
        if let Some(limit) = self.submission_limit {
            builder = builder.submission_limit(limit);
        }
        if let Some(bytes) = self.copy_threshold {
            builder = builder.copy_threshold(bytes);
        }
        if let Some(files) = self.map {
            builder = builder.map_weights(files);
        }
        match &self.params {
            Some(params) => builder.params_file(params),
            None => builder,
        }
    }
}
