//! A batcher on a thread of its own.

use std::sync::{Arc, Mutex};

use onepool::generate::{BatchThread, GenerateError, Generator, Prompt};
use onepool_core::sync::lock;

use super::batcher::{options, quiet};
use super::{exactly, expected, fixed, generate};

fn shared() -> Arc<Mutex<Generator>> {
    Arc::new(Mutex::new(fixed()))
}

#[test]
fn a_thread_makes_the_texts_and_gives_the_generator_back() {
    let generator = shared();
    let batch = BatchThread::start(Arc::clone(&generator), options(2, 12)).unwrap();
    assert!(generator.try_lock().is_err());
    let cases = expected("fixed");
    let ids: Vec<_> = cases
        .iter()
        .map(|case| {
            let prompt = case.prompt.clone();
            let add = batch.ask(move |batcher| batcher.add(Prompt::Text(&prompt), exactly(9), quiet));
            add.recv().unwrap().unwrap()
        })
        .collect();
    let mut made = Vec::new();
    while !batch.ask(|batcher| batcher.is_idle()).recv().unwrap() {
        made.extend(batch.ask(|batcher| batcher.step()).recv().unwrap().unwrap());
    }
    made.sort_by_key(|(id, _)| *id);
    assert_eq!(made.len(), cases.len());
    for (case, (id, (made, text))) in cases.iter().zip(ids.iter().zip(made)) {
        assert_eq!((*id, &text.tokens[..]), (made, &case.tokens[..9]), "after {:?}", case.prompt);
    }
    drop(batch);
    let mut generator = generator.try_lock().unwrap();
    assert_eq!(generate(&mut generator, &cases[0].prompt, &exactly(9)).tokens, cases[0].tokens[..9]);
}

#[test]
fn a_thread_that_cannot_begin_says_why_and_leaves_the_generator_free() {
    let generator = shared();
    let e = BatchThread::start(Arc::clone(&generator), options(0, 1)).unwrap_err();
    assert!(matches!(e, GenerateError::Setting { name: "texts", .. }), "{e}");
    let turn = generator.try_lock().unwrap();
    let e = BatchThread::start(Arc::clone(&generator), options(1, 1)).unwrap_err();
    assert!(matches!(e, GenerateError::Busy), "{e}");
    drop(turn);
    BatchThread::start(generator, options(1, 1)).unwrap();
}

#[test]
fn a_thread_that_its_own_work_drops_ends_after_it() {
    let generator = shared();
    let batch =
        Arc::new(Mutex::new(Some(BatchThread::start(Arc::clone(&generator), options(1, 8)).unwrap())));
    let own = Arc::clone(&batch);
    let answer = lock(&batch).as_ref().unwrap().ask(move |batcher| {
        drop(lock(&own).take());
        batcher.is_idle()
    });
    assert!(answer.recv().unwrap());
    assert!(lock(&batch).is_none());
    // The generator is free once the thread has ended.
    drop(generator.lock().unwrap());
}

#[test]
fn work_that_panics_ends_the_thread_and_no_more() {
    let generator = shared();
    let batch = BatchThread::start(Arc::clone(&generator), options(1, 8)).unwrap();
    assert!(batch.ask(|_| panic!("in the work")).recv().is_err());
    assert!(batch.ask(|batcher| batcher.is_idle()).recv().is_err());
    drop(batch);
    assert!(BatchThread::start(generator, options(1, 8)).is_ok());
}
