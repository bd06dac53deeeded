//! Texts that come and go: a thread has the batcher, and the interpreter asks it.

use std::collections::BTreeMap;
use std::mem::take;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onepool::generate::{BatchThread, Batcher, GenerateError, Generated, OwnedPrompt, Sampling, TextId};
use onepool::session::CancelToken;
use onepool_core::sync::lock;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple, PyType};

use crate::errors::Class;
use crate::log::detached;
use crate::text::{Settings, failed, prompt_of, row};

/// How often a wait for a step looks for signals, such as Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// What a step gives.
type Ended = Result<Vec<(TextId, Generated)>, GenerateError>;

/// A text of a batch.
#[derive(Debug)]
struct Text {
    token: CancelToken,
    /// What is not told yet.
    piece: Arc<Mutex<String>>,
    /// Who is told.
    on_piece: Option<Py<PyAny>>,
}

/// Texts that are added at any time.
#[pyclass(frozen, module = "onepool._onepool")]
#[derive(Debug)]
pub(crate) struct Batch {
    /// None once it is closed.
    thread: Mutex<Option<Arc<BatchThread>>>,
    sampling: Sampling,
    /// Its generator is in use until this is cancelled.
    token: CancelToken,
    texts: Arc<Mutex<BTreeMap<u64, Text>>>,
    /// Of a step whose wait a signal ended.
    late: Mutex<Option<Ended>>,
}

impl Batch {
    pub(crate) fn new(thread: BatchThread, sampling: Sampling, token: CancelToken) -> Self {
        Batch {
            thread: Mutex::new(Some(Arc::new(thread))),
            sampling,
            token,
            texts: Arc::default(),
            late: Mutex::default(),
        }
    }

    fn thread(&self, py: Python<'_>) -> PyResult<Arc<BatchThread>> {
        lock(&self.thread).clone().ok_or_else(|| Class::Closed.says(py, "the batch is closed"))
    }

    /// What the batch's thread gives for `work`.
    fn ask<R: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl for<'a> FnOnce(&mut Batcher<'a>) -> R + Send + 'static,
    ) -> PyResult<R> {
        let thread = self.thread(py)?;
        let answer = thread.ask(work);
        // Who lets go of the thread last waits for it, without the interpreter.
        let received = detached(py, move || {
            let received = answer.recv();
            drop(thread);
            received
        });
        received.map_err(|_| stopped(py))
    }

    /// Waits for a step. What a handler of a signal raises is raised after it, and the next step gives its results.
    fn wait(&self, py: Python<'_>, answer: Receiver<Ended>) -> PyResult<Ended> {
        let mut answer = answer;
        loop {
            // A receiver is for one thread at a time, and this one has it.
            let (back, received) = detached(py, move || {
                let received = answer.recv_timeout(SIGNALS_EVERY);
                (answer, received)
            });
            answer = back;
            match received {
                Ok(ended) => return Ok(ended),
                Err(RecvTimeoutError::Disconnected) => return Err(stopped(py)),
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(raised) = py.check_signals() {
                        *lock(&self.late) = detached(py, move || answer.recv()).ok();
                        return Err(raised);
                    }
                }
            }
        }
    }
}

/// What a text goes on from.
enum Begin {
    Prompt(OwnedPrompt),
    Text(TextId),
}

impl Batch {
    fn added(
        &self,
        py: Python<'_>,
        from: Begin,
        on_piece: Option<Py<PyAny>>,
        settings: Settings,
    ) -> PyResult<u64> {
        let text = Text { token: CancelToken::new(), piece: Arc::default(), on_piece };
        let options = settings.options(py, self.sampling, text.token.clone())?;
        let (piece, texts) = (Arc::clone(&text.piece), Arc::clone(&self.texts));
        let told = move |part: &str| {
            lock(&piece).push_str(part);
            ControlFlow::Continue(())
        };
        let added = self.ask(py, move |batcher| {
            let id = match from {
                Begin::Prompt(prompt) => batcher.add(prompt.prompt(), options, told)?.0,
                Begin::Text(of) => batcher.fork(of, options, told)?.0,
            };
            // It is there before a step of another thread.
            lock(&texts).insert(id, text);
            Ok::<_, GenerateError>(id)
        });
        added?.map_err(|e| failed(py, e))
    }
}

fn stopped(py: Python<'_>) -> PyErr {
    Class::Error.says(py, "the thread of the batch stopped without a result")
}

#[pymethods]
impl Batch {
    /// Adds a text; gives its number.
    fn add(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        on_piece: Option<Py<PyAny>>,
        settings: Settings,
    ) -> PyResult<u64> {
        self.added(py, Begin::Prompt(prompt_of(prompt)?), on_piece, settings)
    }

    /// Adds a text that goes on from where another is now; gives its number.
    fn fork(
        &self,
        py: Python<'_>,
        text: u64,
        on_piece: Option<Py<PyAny>>,
        settings: Settings,
    ) -> PyResult<u64> {
        self.added(py, Begin::Text(TextId(text)), on_piece, settings)
    }

    /// Writes what the cache has of a text to a file.
    fn save(&self, py: Python<'_>, text: u64, path: PathBuf) -> PyResult<()> {
        self.ask(py, move |batcher| batcher.save(TextId(text), path))?.map_err(|e| failed(py, e))
    }

    /// Reads such a file into pages; gives the number of its tokens that these have.
    fn restore(&self, py: Python<'_>, path: PathBuf) -> PyResult<usize> {
        self.ask(py, move |batcher| batcher.restore(path))?.map_err(|e| failed(py, e))
    }

    /// Runs a step. Adds to `pieces` who is to be told what, and to `ended` the texts that have ended as a `kind` of
    /// named tuple: what a signal's handler raises once this returns finds them there.
    fn step(
        &self,
        py: Python<'_>,
        pieces: &Bound<'_, PyList>,
        ended: &Bound<'_, PyList>,
        kind: &Bound<'_, PyType>,
    ) -> PyResult<()> {
        let thread = self.thread(py)?;
        let late = lock(&self.late).take();
        let made = match late {
            Some(made) => made,
            None => self.wait(py, thread.ask(|batcher| batcher.step()))?,
        };
        detached(py, move || drop(thread));
        let made = made.map_err(|e| failed(py, e))?;
        let mut texts = lock(&self.texts);
        for text in texts.values() {
            let piece = take(&mut *lock(&text.piece));
            if let Some(on_piece) = text.on_piece.as_ref().filter(|_| !piece.is_empty()) {
                pieces.append((on_piece, piece))?;
            }
        }
        // The tuple's own constructor runs no code of Python, which a signal could end.
        let tuple = py.get_type::<PyTuple>();
        for (id, made) in &made {
            ended.append((id.0, tuple.call_method1("__new__", (kind, row(made)))?))?;
        }
        let over: Vec<_> = made.iter().map(|(id, _)| texts.remove(&id.0)).collect();
        // What goes may run code of the program's.
        drop(texts);
        drop(over);
        Ok(())
    }

    /// Ends a text in the next step.
    fn cancel(&self, py: Python<'_>, text: u64) -> PyResult<()> {
        self.thread(py)?;
        match lock(&self.texts).get(&text) {
            Some(text) => text.token.cancel(),
            None => return Err(failed(py, GenerateError::NoText(text))),
        }
        Ok(())
    }

    /// Whether no text runs or waits, and none that has ended is still to be given.
    fn idle(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.ask(py, |batcher| batcher.is_idle())? && lock(&self.late).is_none())
    }

    /// Steps, their tokens, tokens of prompts that were in pages, the most texts of a step, texts that were set aside.
    fn counts(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, usize, u64)> {
        let counts = self.ask(py, |batcher| batcher.counts())?;
        Ok((counts.steps, counts.tokens, counts.reused_tokens, counts.most_texts, counts.preempted))
    }

    #[getter]
    fn closed(&self) -> bool {
        lock(&self.thread).is_none()
    }

    /// Drops the texts; the generator is free then.
    fn close(&self, py: Python<'_>) {
        let thread = lock(&self.thread).take();
        detached(py, move || drop(thread));
        self.token.cancel();
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.token.cancel();
    }
}
