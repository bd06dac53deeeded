//! `onepool_batch`: texts that come and go.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use onepool::generate::{
    BatchCounts, BatchOptions, BatchThread, Batcher, GenerateError, Generated, Sampling, TextId,
};
use onepool_core::sync::lock;

use crate::arg::{In, Out, Room, Structure, Text, null};
use crate::generate::{GeneratorObject, failed};
use crate::handle::{Handle, Object, free, publish};
use crate::status::{Failure, Status, guard};
use crate::text::{GeneratedC, Request, TextCallback, TextOptions, teller};

/// `onepool_batch_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BatchOptionsC {
    /// Size of the structure.
    pub struct_size: usize,
    /// The most texts that run at once; 0 for 8.
    pub texts: usize,
    /// The most tokens of a step; 0 for 256.
    pub step_tokens: usize,
}

// SAFETY: `repr(C)`, begins with its size, holds numbers.
unsafe impl Structure for BatchOptionsC {}

/// `onepool_batch_counts`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BatchCountsC {
    /// Size of the structure.
    pub struct_size: usize,
    /// Steps that ran.
    pub steps: u64,
    /// Tokens that ran in them.
    pub tokens: u64,
    /// Tokens of prompts that were in pages already.
    pub reused_tokens: u64,
    /// The most texts of one step.
    pub most_texts: usize,
    /// How often a text was set aside for want of pages.
    pub preempted: u64,
}

// SAFETY: as above.
unsafe impl Structure for BatchCountsC {}

/// What an `onepool_batch` stands for.
#[derive(Debug)]
struct BatchObject {
    thread: BatchThread,
    sampling: Sampling,
    /// Texts that have ended and are not told yet.
    ended: Mutex<VecDeque<(TextId, Generated)>>,
}

impl Object for BatchObject {
    const KIND: &'static str = "onepool_batch";
}

impl BatchObject {
    /// What the batch's thread gives for `work`.
    fn ask<R: Send + 'static>(
        &self,
        work: impl for<'a> FnOnce(&mut Batcher<'a>) -> R + Send + 'static,
    ) -> Result<R, Failure> {
        let stopped =
            || Failure::new(Status::Panic, "a defect of the library: the thread of the batch stopped");
        self.thread.ask(work).recv().map_err(|_| stopped())
    }
}

/// The batch of a handle, for who is not called by its own thread.
fn batch_of(batch: Handle) -> Result<Arc<BatchObject>, Failure> {
    let object = batch.get::<BatchObject>("batch")?;
    match object.thread.is_current() {
        true => Err(Failure::new(Status::Busy, "argument `batch` is in use: a step calls this callback")),
        false => Ok(object),
    }
}

/// Opens a batch, which has the generator until it is freed.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_batch_open(
    generator: Handle,
    opts: In<BatchOptionsC>,
    batch: Out<Handle>,
) -> Status {
    guard(|| {
        let place = batch.place("batch")?;
        let object = generator.get::<GeneratorObject>("generator")?;
        let mut options = BatchOptions::default();
        if let Some(given) = opts.optional("options")? {
            for (to, given) in
                [(&mut options.texts, given.texts), (&mut options.step_tokens, given.step_tokens)]
            {
                *to = if given > 0 { given } else { *to };
            }
        }
        let thread = BatchThread::start(Arc::clone(&object.generator), options);
        let thread = thread.map_err(|error| match error {
            GenerateError::Busy => failed(error).of("generator"),
            error => failed(error),
        })?;
        publish(BatchObject { thread, sampling: object.sampling, ended: Mutex::default() }, place);
        Ok(())
    })
}

/// Frees a batch, after the step that runs. Texts that have not ended are dropped.
#[unsafe(no_mangle)] // SAFETY: no other library has names that begin with `onepool_`.
pub extern "C" fn onepool_batch_free(batch: Handle) -> Status {
    free::<BatchObject>(batch, "batch")
}

/// Adds a text; `text` gets its number, which counts from 0. Nothing runs before a step.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_batch_add(
    batch: Handle,
    opts: In<TextOptions>,
    callback: Option<TextCallback>,
    user: *mut c_void,
    text: Out<u64>,
) -> Status {
    guard(|| {
        let place = text.place("text")?;
        let callback = callback.ok_or_else(|| null("callback"))?;
        let object = batch_of(batch)?;
        let Request { prompt, options } = Request::of(opts, object.sampling)?;
        let told = teller(callback, user);
        let added = object.ask(move |batcher| batcher.add(prompt.prompt(), options, told))?;
        place.set(added.map_err(failed)?.0);
        Ok(())
    })
}

/// Adds a text that goes on from where text `of` is now.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_batch_fork(
    batch: Handle,
    of: u64,
    opts: In<TextOptions>,
    callback: Option<TextCallback>,
    user: *mut c_void,
    text: Out<u64>,
) -> Status {
    guard(|| {
        let place = text.place("text")?;
        let callback = callback.ok_or_else(|| null("callback"))?;
        let object = batch_of(batch)?;
        let options = Request::fork(opts, object.sampling)?;
        let told = teller(callback, user);
        let added = object.ask(move |batcher| batcher.fork(TextId(of), options, told))?;
        place.set(added.map_err(failed)?.0);
        Ok(())
    })
}

/// Writes the tokens of a text that are in the cache, with their keys and values, to a file.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_batch_save(batch: Handle, text: u64, path: Text) -> Status {
    guard(|| {
        let path = path.required("path")?;
        let object = batch_of(batch)?;
        object.ask(move |batcher| batcher.save(TextId(text), path))?.map_err(failed)
    })
}

/// Reads a file of a conversation into pages, where prompts that begin with its tokens find them.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_batch_restore(batch: Handle, path: Text, tokens: Out<usize>) -> Status {
    guard(|| {
        let place = tokens.place("tokens")?;
        let path = path.required("path")?;
        let object = batch_of(batch)?;
        place.set(object.ask(move |batcher| batcher.restore(path))?.map_err(failed)?);
        Ok(())
    })
}

/// Gives each text that runs its next token and runs a part of the prompts of those that begin.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_batch_step(
    batch: Handle,
    texts: Room<u64>,
    generated: Out<GeneratedC>,
    room: usize,
    count: Out<usize>,
) -> Status {
    guard(|| {
        let place = count.place("count")?;
        if room == 0 {
            return Err(Failure::argument("room", "is 0: there is no place for a text that ends"));
        }
        texts.check(room, "texts")?;
        let places = match generated.optional() {
            Some(_) => Some(generated.room("generated")?),
            None => None,
        };
        let object = batch_of(batch)?;
        let mut ended = lock(&object.ended);
        if ended.is_empty() {
            ended.extend(object.ask(|batcher| batcher.step())?.map_err(failed)?);
        }
        let told = room.min(ended.len());
        let (ids, made): (Vec<u64>, Vec<Generated>) =
            ended.drain(..told).map(|(id, made)| (id.0, made)).unzip();
        texts.fill(&ids, room);
        if let Some((first, size)) = places {
            for (i, made) in made.iter().enumerate() {
                first.nth(i, size).set(GeneratedC::new(made, size));
            }
        }
        place.set(told);
        Ok(())
    })
}

/// Whether no text runs or waits, and none that has ended is still to be told of: 1, else 0.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_batch_is_idle(batch: Handle, idle: Out<u32>) -> Status {
    guard(|| {
        let place = idle.place("idle")?;
        let object = batch_of(batch)?;
        let is_told = lock(&object.ended).is_empty();
        place.set((object.ask(|batcher| batcher.is_idle())? && is_told).into());
        Ok(())
    })
}

/// What a batch did so far.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_batch_get_counts(batch: Handle, counts: Out<BatchCountsC>) -> Status {
    guard(|| {
        let (place, struct_size) = counts.room("counts")?;
        let BatchCounts { steps, tokens, reused_tokens, most_texts, preempted } =
            batch_of(batch)?.ask(|batcher| batcher.counts())?;
        place.set(BatchCountsC { struct_size, steps, tokens, reused_tokens, most_texts, preempted });
        Ok(())
    })
}
