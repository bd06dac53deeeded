//! Text from language models: a thread generates, and the interpreter takes the pieces.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onepool::backend::ContextDesc;
use onepool::generate::{
    Finish, GenerateError, GenerateOptions, Generated, Message, ModelFolder, Prompt, Sampling,
};
use onepool::session::{CancelToken, Session, SessionBuilder};
use onepool_core::error::chain;
use onepool_core::sync::lock;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::array::Array;
use crate::errors::{Class, raised};

/// How often a wait for a piece looks for signals, such as Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Pieces that may wait to be taken; then the generation waits.
const AHEAD: usize = 64;

/// A decoder on devices, with its cache.
#[pyclass(frozen, module = "onepool._onepool")]
#[derive(Debug)]
pub(crate) struct Generator {
    generator: Arc<Mutex<onepool::generate::Generator>>,
    /// The text that is being made.
    active: Mutex<Option<CancelToken>>,
    sampling: Sampling,
    context: usize,
    cache_bytes: Option<u64>,
    remarks: Vec<String>,
    devices: Vec<String>,
}

/// A prompt of the caller's.
enum Given {
    Text(String),
    Chat(Vec<Message>),
    Tokens(Vec<u32>),
    /// With tokens for the decoder.
    Features(onepool::Tensor, Vec<u32>),
}

impl Given {
    fn of(prompt: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(text) = prompt.cast::<PyString>() {
            return Ok(Given::Text(text.to_cow()?.into_owned()));
        }
        if let Ok(pair) = prompt.cast::<PyTuple>() {
            let (features, tokens) = pair.extract::<(Bound<'_, PyAny>, Vec<u32>)>()?;
            let features = Array::of(&features, "features")?.copied(prompt.py(), "features")?;
            return Ok(Given::Features(features, tokens));
        }
        if let Ok(tokens) = prompt.extract::<Vec<u32>>() {
            return Ok(Given::Tokens(tokens));
        }
        let messages = prompt.extract::<Vec<(String, String)>>().map_err(|_| {
            Class::ArrayType
                .says(prompt.py(), "prompt: expected a text, messages, or numbers of tokens from 0")
        })?;
        Ok(Given::Chat(messages.into_iter().map(|(role, content)| Message::new(role, content)).collect()))
    }

    fn prompt(&self) -> Prompt<'_> {
        match self {
            Given::Text(text) => Prompt::Text(text),
            Given::Chat(messages) => Prompt::Chat(messages),
            Given::Tokens(tokens) => Prompt::Tokens(tokens),
            Given::Features(features, tokens) => Prompt::Features { features, tokens },
        }
    }
}

/// Settings of sampling; those that are not given are the model's.
type Chosen = (Option<f32>, Option<usize>, Option<f32>, Option<f32>, Option<f32>, u64);

fn over(model: Sampling, chosen: Chosen) -> Sampling {
    let (temperature, top_k, top_p, min_p, repetition_penalty, seed) = chosen;
    let samples = top_k.is_some() || top_p.is_some() || min_p.is_some();
    let warm = if samples && model.temperature == 0.0 { 1.0 } else { model.temperature };
    Sampling {
        temperature: temperature.unwrap_or(warm),
        top_k: top_k.unwrap_or(model.top_k),
        top_p: top_p.unwrap_or(model.top_p),
        min_p: min_p.unwrap_or(model.min_p),
        repetition_penalty: repetition_penalty.unwrap_or(model.repetition_penalty),
        seed,
    }
}

#[pymethods]
impl Generator {
    #[new]
    #[pyo3(signature = (path, devices, context, threads, cache_dir))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        devices: Vec<String>,
        context: Option<usize>,
        threads: usize,
        cache_dir: Option<PathBuf>,
    ) -> PyResult<Self> {
        let open = || {
            let folder = ModelFolder::open(path)?;
            let sampling = folder.sampling();
            let desc = ContextDesc { threads, cache_dir, ..ContextDesc::default() };
            let session = |builder, _: &Path| built(builder, &devices, &desc);
            Ok((onepool::generate::Generator::open(folder, context, session)?, sampling))
        };
        let (generator, sampling) = py.detach(open).map_err(|e| failed(py, e))?;
        Ok(Generator {
            sampling,
            active: Mutex::default(),
            context: generator.context(),
            cache_bytes: generator.cache_bytes(),
            remarks: generator.remarks(),
            devices: generator.session().devices().map(|info| info.name.clone()).collect(),
            generator: Arc::new(Mutex::new(generator)),
        })
    }

    #[getter]
    fn context(&self) -> usize {
        self.context
    }

    #[getter]
    fn cache_bytes(&self) -> Option<u64> {
        self.cache_bytes
    }

    #[getter]
    fn remarks(&self) -> Vec<String> {
        self.remarks.clone()
    }

    #[getter]
    fn devices(&self) -> Vec<String> {
        self.devices.clone()
    }

    /// The tokens of a prompt.
    fn tokens(&self, py: Python<'_>, prompt: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let given = Given::of(prompt)?;
        self.idle(py)?;
        let tokens = py.detach(|| lock(&self.generator).folder().tokens(given.prompt()));
        tokens.map_err(|e| failed(py, e))
    }

    /// Begins a text.
    fn start(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        max_tokens: Option<usize>,
        chosen: Chosen,
        stop: Vec<String>,
        ignore_end: bool,
    ) -> PyResult<Stream> {
        let given = Given::of(prompt)?;
        let sampling = over(self.sampling, chosen);
        sampling.check().map_err(|e| failed(py, e))?;
        self.idle(py)?;
        let token = CancelToken::new();
        let cancel = Some(token.clone());
        let options =
            GenerateOptions { max_tokens, sampling, stop, ignore_end, cancel, ..GenerateOptions::default() };
        let generator = Arc::clone(&self.generator);
        let (pieces, taken) = sync_channel(AHEAD);
        let work = move || tell(&generator, &given, &options, &pieces);
        let spawned = std::thread::Builder::new().name("onepool-text".to_owned()).spawn(work);
        spawned.map_err(|e| Class::Error.says(py, format!("no thread can be started: {e}")))?;
        *lock(&self.active) = Some(token.clone());
        let made = Mutex::new(Making { taken: Some(taken), made: None });
        Ok(Stream { token, over: Mutex::default(), made })
    }
}

impl Generator {
    /// Checks that no text is being made. One that was given up may take a moment to end.
    fn idle(&self, py: Python<'_>) -> PyResult<()> {
        let active = lock(&self.active).clone();
        if active.is_none_or(|token| token.is_cancelled()) || self.generator.try_lock().is_ok() {
            return Ok(());
        }
        Err(Class::Busy.says(py, "the generator makes another text: take that to its end, or close it"))
    }
}

/// What a generation says.
enum Told {
    Piece(String),
    Over(Box<Result<Generated, GenerateError>>),
}

/// Generates a text. Who takes it is gone where a piece cannot be sent.
fn tell(
    generator: &Mutex<onepool::generate::Generator>,
    given: &Given,
    options: &GenerateOptions,
    pieces: &SyncSender<Told>,
) {
    let mut generator = lock(generator);
    let made = generator.generate(given.prompt(), options, |piece| {
        match pieces.send(Told::Piece(piece.to_owned())) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    // The end is told after the generator is free.
    drop(generator);
    let _ = pieces.send(Told::Over(Box::new(made)));
}

#[derive(Debug)]
struct Making {
    taken: Option<Receiver<Told>>,
    made: Option<Generated>,
}

/// A text on its way.
#[pyclass(frozen, module = "onepool._onepool")]
#[derive(Debug)]
pub(crate) struct Stream {
    token: CancelToken,
    /// One thread takes pieces at a time.
    over: Mutex<()>,
    made: Mutex<Making>,
}

/// Text, tokens, tokens of the prompt, why it ended, seconds to prepare, for the prompt and for the other tokens, tokens
/// in a second of the prompt and of the text.
type Row = (String, Vec<u32>, usize, &'static str, f64, f64, f64, f64, f64);

#[pymethods]
impl Stream {
    /// The next piece; none at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let Ok(_turn) = self.over.try_lock() else {
            return Err(Class::Busy.says(py, "another thread takes this text"));
        };
        let Some(mut taken) = lock(&self.made).taken.take() else { return Ok(None) };
        loop {
            // A receiver is for one thread at a time, and this one has it.
            let (back, told) = py.detach(move || {
                let told = taken.recv_timeout(SIGNALS_EVERY);
                (taken, told)
            });
            taken = back;
            match told {
                Ok(Told::Piece(piece)) => {
                    lock(&self.made).taken = Some(taken);
                    return Ok(Some(piece));
                }
                Ok(Told::Over(made)) => {
                    lock(&self.made).made = Some(made.map_err(|e| failed(py, e))?);
                    return Ok(None);
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(raised) = py.check_signals() {
                        self.token.cancel();
                        py.detach(move || taken.into_iter().for_each(drop));
                        return Err(raised);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Class::Error.says(py, "the generation stopped without a result"));
                }
            }
        }
    }

    /// What was made, once the last piece is taken.
    fn made(&self) -> Option<Row> {
        let making = lock(&self.made);
        let made = making.made.as_ref()?;
        let finish = match made.finish {
            Finish::End(_) => "end",
            Finish::Stop(_) => "stop",
            Finish::Length => "length",
            Finish::Context => "context",
            Finish::Cancelled => "cancelled",
            Finish::Grammar => "grammar",
        };
        let [prepare, prompt, generation] =
            [made.prepare_time, made.prompt_time, made.generation_time].map(|time| time.as_secs_f64());
        let rates = [made.prompt_tokens_per_s(), made.tokens_per_s()];
        Some((
            made.text.clone(),
            made.tokens.clone(),
            made.prompt_tokens,
            finish,
            prepare,
            prompt,
            generation,
            rates[0],
            rates[1],
        ))
    }

    /// Ends the text early and waits for that.
    fn close(&self, py: Python<'_>) {
        self.token.cancel();
        let taken = lock(&self.made).taken.take();
        if let Some(taken) = taken {
            py.detach(move || {
                for told in taken {
                    if let Told::Over(made) = told {
                        lock(&self.made).made = made.ok();
                    }
                }
            });
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

/// A session on devices by their names.
pub(crate) fn built(
    builder: SessionBuilder,
    devices: &[String],
    desc: &ContextDesc,
) -> Result<Session, GenerateError> {
    let builder = builder.context_desc(desc.clone());
    Ok(devices.iter().fold(builder, |builder, device| builder.device(device.clone())).build()?)
}

pub(crate) fn failed(py: Python<'_>, error: GenerateError) -> PyErr {
    let class = match &error {
        GenerateError::Unsupported(_) => Class::Unsupported,
        error if error.is_argument() => Class::Argument,
        _ => Class::Model,
    };
    match error {
        GenerateError::Session(error) => raised(py, error),
        error => class.says(py, chain(&error)),
    }
}
