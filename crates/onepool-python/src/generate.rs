//! Text from language models: a thread generates, and the interpreter takes the pieces.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onepool::generate::{
    BatchOptions, BatchThread, CacheType, GenerateError, GenerateOptions, Generated, ModelFolder,
    OwnedPrompt, PageCounts, PageOptions, PagePool, Pages, SampleOn, Sampling, TemplateArgs,
};
use onepool::session::{CancelToken, Session, SessionBuilder};
use onepool_core::error::chain;
use onepool_core::sync::lock;
use pyo3::prelude::*;

use crate::batch::Batch;
use crate::errors::Class;
use crate::log::detached;
use crate::options::Options;
use crate::session::{Metadata, metadata};
use crate::tensor::Tensor;
use crate::text::{Row, Settings, failed, prompt_of, row};

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
    metadata: Metadata,
    pages: Option<PagePool>,
}

/// Pages that are asked for, their tokens and their memory, and the generator whose pages they are.
type GivenPages<'py> =
    (Option<usize>, Option<usize>, Option<Bound<'py, Tensor>>, Option<Bound<'py, Generator>>);

/// How the pages of a cache are used: tokens of a page; pages, free, used, shared and cached ones; copied and evicted ones
/// so far; the bytes of their memory.
type PageRow = (usize, usize, usize, usize, usize, usize, u64, u64, usize);

#[pymethods]
impl Generator {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "they are keywords of one call")]
    #[pyo3(signature = (path, variant, template_args, context, draft, sample_on, pages, cache_type, options))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        variant: Option<String>,
        template_args: BTreeMap<String, String>,
        context: Option<usize>,
        draft: Option<(PathBuf, usize)>,
        sample_on: &str,
        pages: GivenPages<'_>,
        cache_type: Option<&str>,
        options: Options,
    ) -> PyResult<Self> {
        let sample_on = sampled_on(py, sample_on)?;
        let pages = pages_of(py, pages)?;
        let cache_type = cache_type.map(|name| cached_as(py, name)).transpose()?;
        let mut args = TemplateArgs::default();
        for (name, json) in template_args {
            args.set(name, &json)
                .map_err(|e| Class::Argument.says(py, format!("template_args: {}", chain(&e))))?;
        }
        let session = |builder, _: &Path| built(builder, &options);
        let open_all = || {
            let folder = match variant {
                Some(variant) => ModelFolder::open_variant(path, &variant)?,
                None => ModelFolder::open(path)?,
            };
            let mut folder = folder.cache_type(cache_type).sample_on(sample_on).template_args(args);
            if let Some(pages) = pages {
                folder = folder.in_pages(pages);
            }
            let sampling = folder.sampling();
            let generator = onepool::generate::Generator::open(folder, context, session)?;
            let Some((draft, most)) = draft else { return Ok((generator, sampling)) };
            Ok((
                generator.open_draft(ModelFolder::open(draft)?.cache_type(cache_type), most, session)?,
                sampling,
            ))
        };
        let (generator, sampling) = detached(py, open_all).map_err(|e| failed(py, e))?;
        Ok(Generator {
            sampling,
            active: Mutex::default(),
            context: generator.context(),
            cache_bytes: generator.cache_bytes(),
            remarks: generator.remarks(),
            pages: generator.pages().cloned(),
            metadata: metadata(generator.session()),
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

    fn metadata(&self) -> Metadata {
        self.metadata.clone()
    }

    fn page_counts(&self) -> Option<PageRow> {
        let pool = self.pages.as_ref()?;
        let PageCounts { pages, free, used, shared, cached, copied, evicted } = pool.counts();
        let bytes = pool.bytes_in_region();
        Some((pool.page_tokens(), pages, free, used, shared, cached, copied, evicted, bytes))
    }

    /// Gives up all cached pages.
    fn clear_pages(&self, py: Python<'_>) -> PyResult<()> {
        let pool = self.pages.as_ref().ok_or_else(|| no_pages(py, ""))?;
        pool.clear_cached();
        Ok(())
    }

    /// The tokens of a prompt.
    fn tokens(&self, py: Python<'_>, prompt: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let given = prompt_of(prompt)?;
        self.with(py, |generator| generator.folder().tokens(given.prompt()))
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |generator| generator.save(path))
    }

    fn restore(&self, py: Python<'_>, path: PathBuf) -> PyResult<usize> {
        self.with(py, |generator| generator.restore(path))
    }

    /// Begins a text.
    fn start(&self, py: Python<'_>, prompt: &Bound<'_, PyAny>, settings: Settings) -> PyResult<Stream> {
        let given = prompt_of(prompt)?;
        let token = CancelToken::new();
        let options = settings.options(py, self.sampling, token.clone())?;
        self.idle(py)?;
        let generator = Arc::clone(&self.generator);
        let (pieces, taken) = sync_channel(AHEAD);
        let work = move || tell(&generator, &given, &options, &pieces);
        let spawned = std::thread::Builder::new().name("onepool-text".to_owned()).spawn(work);
        spawned.map_err(|e| Class::Error.says(py, format!("no thread can be started: {e}")))?;
        *lock(&self.active) = Some(token.clone());
        let made = Mutex::new(Making { taken: Some(taken), made: None });
        Ok(Stream { token, over: Mutex::default(), made })
    }

    /// Begins a batch, which has the generator until it is closed.
    fn batch(&self, py: Python<'_>, texts: usize, step_tokens: usize) -> PyResult<Batch> {
        // A text that was given up ends first.
        self.with(py, |_| Ok(()))?;
        let generator = Arc::clone(&self.generator);
        let started = detached(py, || BatchThread::start(generator, BatchOptions { texts, step_tokens }));
        let thread = started.map_err(|e| failed(py, e))?;
        let token = CancelToken::new();
        *lock(&self.active) = Some(token.clone());
        Ok(Batch::new(thread, self.sampling, token))
    }
}

impl Generator {
    /// Checks that no text is being made. One that was given up may take a moment to end.
    fn idle(&self, py: Python<'_>) -> PyResult<()> {
        let active = lock(&self.active).clone();
        if active.is_none_or(|token| token.is_cancelled()) || self.generator.try_lock().is_ok() {
            return Ok(());
        }
        Err(Class::Busy
            .says(py, "the generator makes another text or a batch: take that to its end, or close it"))
    }

    /// Uses the generator while it makes no text.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut onepool::generate::Generator) -> Result<R, GenerateError> + Send,
    ) -> PyResult<R> {
        self.idle(py)?;
        detached(py, || work(&mut lock(&self.generator))).map_err(|e| failed(py, e))
    }
}

fn no_pages(py: Python<'_>, name: &str) -> PyErr {
    let message = format!(
        "{name}the generator's cache is not in pages: none were asked for, and its graph has no PagedAttention"
    );
    Class::Argument.says(py, message)
}

/// The pages that are asked for.
fn pages_of(py: Python<'_>, (pages, rows, memory, of): GivenPages<'_>) -> PyResult<Option<Pages>> {
    if let Some(of) = of {
        if pages.is_some() || rows.is_some() || memory.is_some() {
            let message = "pages_of: pages, page_tokens and page_memory are the other generator's";
            return Err(Class::Argument.says(py, message));
        }
        let pool = of.get().pages.clone().ok_or_else(|| no_pages(py, "pages_of: "))?;
        return Ok(Some(Pages::Of(pool)));
    }
    let Some(pages) = pages else {
        let alone = [("page_tokens", rows.is_some()), ("page_memory", memory.is_some())];
        let alone = alone.into_iter().find(|(_, given)| *given);
        return alone
            .map_or(Ok(None), |(name, _)| Err(Class::Argument.says(py, format!("{name}: it needs pages"))));
    };
    let region = memory.map(|tensor| Arc::clone(tensor.get().region()));
    Ok(Some(Pages::New(PageOptions { pages, rows, region })))
}

/// What caches are asked to hold, by its name.
fn cached_as(py: Python<'_>, name: &str) -> PyResult<CacheType> {
    name.parse().map_err(|_| {
        let known = CacheType::names();
        Class::Argument.says(py, format!("cache_type: {name:?}, expected one of {known}"))
    })
}

/// Where tokens are chosen, by its name.
fn sampled_on(py: Python<'_>, name: &str) -> PyResult<SampleOn> {
    match name {
        "auto" => Ok(SampleOn::Auto),
        "host" => Ok(SampleOn::Host),
        "device" => Ok(SampleOn::Device),
        _ => {
            let message = format!("sample_on: {name:?}, expected \"auto\", \"host\" or \"device\"");
            Err(Class::Argument.says(py, message))
        }
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
    given: &OwnedPrompt,
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
            let (back, told) = detached(py, move || {
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
                        detached(py, move || taken.into_iter().for_each(drop));
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
        lock(&self.made).made.as_ref().map(row)
    }

    /// Ends the text early and waits for that.
    fn close(&self, py: Python<'_>) {
        self.token.cancel();
        let taken = lock(&self.made).taken.take();
        if let Some(taken) = taken {
            detached(py, move || {
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

/// A session with the caller's options.
pub(crate) fn built(builder: SessionBuilder, options: &Options) -> Result<Session, GenerateError> {
    Ok(options.apply(builder).build()?)
}
