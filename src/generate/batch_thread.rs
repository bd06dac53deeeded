//! A batcher on a thread of its own.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::{Builder, JoinHandle};

use super::batcher::{BatchOptions, Batcher};
use super::error::GenerateError;
use super::generator::Generator;

/// What the thread does with its batcher.
type Work = Box<dyn for<'a> FnOnce(&mut Batcher<'a>) + Send>;

/// A [`Batcher`] on a thread of its own, for who cannot lend it a generator for as long as texts come and go. The thread
/// has the generator until this is dropped, which waits for the work that runs. Dropped by such work, it ends after it.
///
/// ```no_run
/// use std::ops::ControlFlow;
/// use std::sync::{Arc, Mutex};
///
/// use onepool::generate::{BatchOptions, BatchThread, GenerateOptions, Generator, Prompt};
///
/// # fn batch(generator: Generator) -> Result<(), Box<dyn std::error::Error>> {
/// let batch = BatchThread::start(Arc::new(Mutex::new(generator)), BatchOptions::default())?;
/// let quiet = |_: &str| ControlFlow::Continue(());
/// batch.ask(move |batcher| batcher.add(Prompt::Text("Hello"), GenerateOptions::default(), quiet)).recv()??;
/// for (id, made) in batch.ask(|batcher| batcher.step()).recv()?? {
///     println!("{id:?}: {}", made.text);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BatchThread {
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl BatchThread {
    /// Starts the thread. It does not wait for a generator that is in use.
    ///
    /// # Errors
    /// [`GenerateError::Busy`] for such a one, [`GenerateError::Thread`], and those of [`Batcher::new`].
    pub fn start(generator: Arc<Mutex<Generator>>, options: BatchOptions) -> Result<Self, GenerateError> {
        let ((work, asked), (begun, begins)) = (channel(), channel());
        let run = move || {
            if let Err(e) = serve(&generator, options, &asked, &begun) {
                let _ = begun.send(Err(e));
            }
        };
        let thread = Builder::new().name("onepool-batch".to_owned()).spawn(run);
        let thread = thread.map_err(|e| GenerateError::Thread(format!("cannot be started: {e}")))?;
        // Where it failed, dropping waits until the generator is free.
        let started = BatchThread { work: Some(work), thread: Some(thread) };
        begins.recv().unwrap_or_else(|_| Err(GenerateError::Thread("has stopped".to_owned())))?;
        Ok(started)
    }

    /// Whether the caller runs on it, as who is told a piece of a text does, and would wait for itself.
    pub fn is_current(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| thread.thread().id() == std::thread::current().id())
    }

    /// Lets the thread do something with the batcher, in the order in which this is called. The receiver gets what it
    /// gives, or an error where the thread has stopped because something panicked.
    pub fn ask<R: Send + 'static>(
        &self,
        work: impl for<'a> FnOnce(&mut Batcher<'a>) -> R + Send + 'static,
    ) -> Receiver<R> {
        let (reply, answer) = channel();
        if let Some(thread) = &self.work {
            let _ = thread.send(Box::new(move |batcher| {
                let _ = reply.send(work(batcher));
            }));
        }
        answer
    }
}

impl Drop for BatchThread {
    fn drop(&mut self) {
        // Work that drops it ends first: a thread cannot wait for itself.
        let own = self.is_current();
        self.work = None;
        if let Some(thread) = self.thread.take().filter(|_| !own) {
            let _ = thread.join();
        }
    }
}

/// Does the work that is asked for, once `begun` is told.
fn serve(
    generator: &Mutex<Generator>,
    options: BatchOptions,
    asked: &Receiver<Work>,
    begun: &Sender<Result<(), GenerateError>>,
) -> Result<(), GenerateError> {
    let mut generator = match generator.try_lock() {
        Ok(generator) => generator,
        // A batcher begins anew.
        Err(TryLockError::Poisoned(generator)) => generator.into_inner(),
        Err(TryLockError::WouldBlock) => return Err(GenerateError::Busy),
    };
    let mut batcher = Batcher::new(&mut generator, options)?;
    let _ = begun.send(Ok(()));
    asked.iter().for_each(|work| work(&mut batcher));
    Ok(())
}
