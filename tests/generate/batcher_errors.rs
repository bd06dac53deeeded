//! Batchers whose runs fail, are cancelled, or lack pages.

use std::sync::mpsc::channel;
use std::time::Duration;

use onepool::generate::{Batcher, Finish, GenerateError, GenerateOptions, Prompt, TextRequest};
use onepool::session::CancelToken;

use super::batcher::{all, options, pages, quiet};
use super::{copy, cpu, exactly, expected, fixed, folder, open};

/// A token that no case has.
const BAD: u32 = 250;

/// A copy of a model whose vector of [`BAD`] is no number.
fn with_nan(model: &str, hidden: usize) -> tempfile::TempDir {
    let dir = copy(model);
    let path = dir.path().join("model.onnx");
    let mut bytes = std::fs::read(&path).unwrap();
    let name = b"embedding";
    let at = bytes.windows(name.len()).rposition(|w| w == name).unwrap();
    // A tag and a length of three bytes, then the rows.
    let start = at + name.len() + 4 + BAD as usize * hidden * 4;
    for value in bytes[start..start + hidden * 4].chunks_exact_mut(4) {
        assert!(f32::from_le_bytes(value.try_into().unwrap()).abs() < 10.0);
        value.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    dir
}

fn with(cancel: &CancelToken, tokens: usize) -> GenerateOptions {
    GenerateOptions { cancel: Some(cancel.clone()), ..exactly(tokens) }
}

/// The prompt runs in pieces, between which the run asks whether it is to end.
#[test]
fn a_text_that_is_cancelled_in_its_run_ends_alone() {
    let case = &expected("fixed")[0];
    let mut generator = open(&folder("fixed"), &cpu(), Some(401)).unwrap();
    let mut amid = 0;
    for wait in 0..20 {
        let mut batcher = Batcher::new(&mut generator, options(1, 1000)).unwrap();
        let cancel = CancelToken::new();
        let first = batcher.add(Prompt::Tokens(&[7; 400]), with(&cancel, 1), quiet).unwrap();
        let second = batcher.add(Prompt::Tokens(&case.prompt_tokens), exactly(3), quiet).unwrap();
        let (begin, begun) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                begun.recv().unwrap();
                std::thread::sleep(Duration::from_millis(wait));
                cancel.cancel();
            });
            begin.send(()).unwrap();
            let mut made = std::collections::BTreeMap::from_iter(batcher.step().unwrap());
            // No step was whole: the run was ended.
            amid += usize::from(batcher.counts().steps == 0 && made.contains_key(&first));
            made.extend(all(&mut batcher));
            assert_eq!(
                (&made[&second].finish, &made[&second].tokens[..]),
                (&Finish::Length, &case.tokens[..3])
            );
        });
    }
    assert!(amid > 0, "no run was cancelled amid");
}

#[test]
fn a_text_that_has_ended_is_given_after_an_error() {
    let dir = with_nan("paged", 64);
    let case = &expected("fixed")[0];
    let mut generator = open(dir.path(), &cpu(), None).unwrap();
    let mut batcher = Batcher::new(&mut generator, options(2, 64)).unwrap();
    let (cancel, late) = (CancelToken::new(), CancelToken::new());
    let first = batcher.add(Prompt::Tokens(&case.prompt_tokens), with(&cancel, 30), quiet).unwrap();
    assert!(batcher.step().unwrap().is_empty());
    batcher.add(Prompt::Tokens(&[9, BAD]), exactly(3), quiet).unwrap();
    let waits = batcher.add(Prompt::Tokens(&[9, 8]), with(&late, 3), quiet).unwrap();
    let stays = batcher.add(Prompt::Tokens(&case.prompt_tokens), exactly(5), quiet).unwrap();
    cancel.cancel();
    late.cancel();
    assert!(matches!(batcher.step().unwrap_err(), GenerateError::NotFinite { .. }));
    assert!(!batcher.is_idle());
    let made = all(&mut batcher);
    assert_eq!(made.len(), 3);
    assert_eq!((&made[&first].tokens[..], &made[&first].finish), (&case.tokens[..1], &Finish::Cancelled));
    assert_eq!(made[&waits].finish, Finish::Cancelled);
    assert_eq!(made[&stays].tokens, case.tokens[..5]);
}

/// Its rows are hidden, and what is hidden must be a number too.
#[test]
fn a_text_whose_logits_fail_leaves_nothing_to_the_next_in_its_place() {
    for (model, name, hidden) in
        [("appending", "appending", 32), ("fixed", "fixed", 64), ("paged", "fixed", 64)]
    {
        let dir = with_nan(model, hidden);
        let case = &expected(name)[0];
        let mut generator = open(dir.path(), &cpu(), None).unwrap();
        let mut batcher = Batcher::new(&mut generator, options(1, 64)).unwrap();
        let bad: Vec<u32> = [9; 20].into_iter().chain([BAD]).collect();
        batcher.add(Prompt::Tokens(&bad), exactly(3), quiet).unwrap();
        let next = batcher.add(Prompt::Tokens(&case.prompt_tokens), exactly(9), quiet).unwrap();
        assert!(matches!(batcher.step().unwrap_err(), GenerateError::NotFinite { .. }), "{model}");
        assert_eq!(all(&mut batcher)[&next].tokens, case.tokens[..9], "{model}");
    }
}

/// One text chooses the token for which the cache has no room; another's logits fail in the same step.
#[test]
fn a_text_at_the_end_of_the_cache_ends_after_the_error_of_another() {
    for (model, hidden) in [("fixed", 64), ("paged", 64)] {
        let dir = with_nan(model, hidden);
        let case = &expected("fixed")[0];
        let context = case.prompt_tokens.len() + 4;
        let mut generator = open(dir.path(), &cpu(), Some(context)).unwrap();
        let mut batcher = Batcher::new(&mut generator, options(2, 64)).unwrap();
        let full = batcher.add(Prompt::Tokens(&case.prompt_tokens), exactly(100), quiet).unwrap();
        for _ in 0..4 {
            assert!(batcher.step().unwrap().is_empty());
        }
        batcher.add(Prompt::Tokens(&[9, BAD]), exactly(3), quiet).unwrap();
        assert!(matches!(batcher.step().unwrap_err(), GenerateError::NotFinite { .. }), "{model}");
        let made = &all(&mut batcher)[&full];
        assert_eq!((&made.tokens[..], &made.finish), (&case.tokens[..5], &Finish::Context), "{model}");
    }
}

/// Its prompt has pages for all its tokens, which the fork has too until one of them writes.
#[test]
fn a_fork_amid_a_prompt_waits_for_pages() {
    let case = &expected("fixed")[0];
    assert_eq!(case.prompt_tokens.len(), 6);
    let prompt: Vec<u32> = case.prompt_tokens.iter().chain(&case.tokens[..4]).copied().collect();
    for count in [4, 8] {
        let (mut generator, pool) = pages(count, None);
        let mut batcher = Batcher::new(&mut generator, options(2, 6)).unwrap();
        let first = batcher.add(Prompt::Tokens(&prompt), exactly(3), quiet).unwrap();
        assert!(batcher.step().unwrap().is_empty());
        let fork = batcher.fork(first, exactly(3), quiet).unwrap();
        assert_eq!(batcher.running().len(), 2);
        let made = all(&mut batcher);
        for id in [first, fork] {
            assert_eq!(made[&id].tokens, case.tokens[4..7], "{count} pages");
        }
        assert!(count > 4 || batcher.counts().preempted > 0);
        drop(batcher);
        assert_eq!(pool.counts().used, 0);
    }
}

/// More pages than a pool may have.
#[test]
fn a_batcher_that_cannot_be_made_leaves_the_generator_as_it_was() {
    let dir = copy("paged");
    let path = dir.path().join("genai_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"context_length\": 512", "\"context_length\": 40000")).unwrap();
    let mut generator = open(dir.path(), &cpu(), Some(40000)).unwrap();
    let e = Batcher::new(&mut generator, options(65536, 1)).unwrap_err();
    assert!(matches!(e, GenerateError::Pages(_)), "{e}");
    let case = &expected("fixed")[0];
    let option = exactly(3);
    let (mut one, mut two) = (quiet, quiet);
    let requests = vec![
        TextRequest { prompt: Prompt::Text(&case.prompt), options: &option, told: &mut one },
        TextRequest { prompt: Prompt::Text(&case.prompt), options: &option, told: &mut two },
    ];
    for made in generator.generate_all(requests).unwrap() {
        assert_eq!(made.tokens, case.tokens[..3]);
    }
}

/// A run without a text's own token is ended by the session, and so are all texts.
#[test]
fn a_session_that_is_cancelled_ends_all_texts() {
    let folder_ = onepool::generate::ModelFolder::open(folder("fixed")).unwrap();
    let cancel = CancelToken::new();
    let run = onepool::session::RunOptions::new().cancel(&cancel);
    let session = onepool::Session::builder().model(folder_.graph()).context(cpu()).run_options(run);
    let mut generator = onepool::generate::Generator::new(folder_, session.build().unwrap(), None).unwrap();
    let mut batcher = Batcher::new(&mut generator, options(1, 64)).unwrap();
    for _ in 0..2 {
        batcher.add(Prompt::Text("Hello"), exactly(30), quiet).unwrap();
    }
    assert!(batcher.step().unwrap().is_empty());
    cancel.cancel();
    let made = batcher.step().unwrap();
    assert_eq!(
        made.iter().map(|(_, made)| made.finish.clone()).collect::<Vec<_>>(),
        vec![Finish::Cancelled; 2]
    );
    assert!(batcher.is_idle());
    drop(batcher);
    assert_eq!(fixed().context(), generator.context());
}
