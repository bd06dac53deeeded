//! Texts that come and go.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;

use onepool::Session;
use onepool::generate::{
    BatchOptions, Batcher, Finish, GenerateError, GenerateOptions, Generated, Generator, ModelFolder,
    PageOptions, PagePool, Prompt, Sampling, TextId,
};
use onepool::session::CancelToken;

use super::devices::devices;
use super::{cpu, exactly, expected, folder, generate, open};

pub(crate) fn quiet(_: &str) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

pub(crate) fn options(texts: usize, step_tokens: usize) -> BatchOptions {
    BatchOptions { texts, step_tokens }
}

/// Steps until no text is left. A text that is stuck is a failure.
pub(crate) fn all(batcher: &mut Batcher<'_>) -> BTreeMap<TextId, Generated> {
    let mut made = BTreeMap::new();
    for _ in 0..5000 {
        if batcher.is_idle() {
            return made;
        }
        made.extend(batcher.step().unwrap());
    }
    panic!("texts never end: {batcher:?}")
}

/// A generator on pages of 4 tokens.
pub(crate) fn pages(pages: usize, context: Option<usize>) -> (Generator, PagePool) {
    let folder = ModelFolder::open(folder("paged")).unwrap();
    let session = Session::builder().model(folder.graph()).context(cpu()).build().unwrap();
    let wanted = PageOptions { rows: Some(4), ..PageOptions::new(pages) };
    let pool = PagePool::new(&folder, &session, &wanted).unwrap();
    (Generator::with_pages(folder, session, context, &pool).unwrap(), pool)
}

#[test]
fn texts_that_come_and_go_have_the_tokens_of_texts_made_one_by_one() {
    for context in devices() {
        for (model, name) in
            [("paged", "fixed"), ("fixed", "fixed"), ("appending", "appending"), ("growing", "growing")]
        {
            let cases = expected(name);
            let mut generator = open(&folder(model), &context, None).unwrap();
            let mut batcher = Batcher::new(&mut generator, options(2, 12)).unwrap();
            let (mut made, mut asked) = (BTreeMap::new(), BTreeMap::new());
            let told = Rc::new(RefCell::new(BTreeMap::<usize, String>::new()));
            // One more text every few steps; two run at once.
            for (n, tokens) in [9, 17, 4, 12].into_iter().enumerate() {
                let case = &cases[n % cases.len()];
                let pieces = Rc::clone(&told);
                let tell = move |piece: &str| {
                    pieces.borrow_mut().entry(n).or_default().push_str(piece);
                    ControlFlow::Continue(())
                };
                let id = batcher.add(Prompt::Text(&case.prompt), exactly(tokens), tell).unwrap();
                asked.insert(id, (n, tokens));
                for _ in 0..3 {
                    made.extend(batcher.step().unwrap());
                    assert!(batcher.running().len() <= 2);
                }
            }
            made.extend(all(&mut batcher));
            let counts = batcher.counts();
            assert_eq!((counts.most_texts, counts.preempted), (2, 0));
            for (id, (n, tokens)) in asked {
                let (case, made) = (&cases[n % cases.len()], &made[&id]);
                let which = format!("{model} on {}, text {n}", context.info().name);
                assert_eq!(made.tokens, case.tokens[..tokens], "{which}");
                assert_eq!((&made.finish, &made.text), (&Finish::Length, &told.borrow()[&n]), "{which}");
            }
            drop(batcher);
            // The generator is as before.
            let alone = generate(&mut generator, &cases[1].prompt, &exactly(4));
            assert_eq!(alone.tokens, cases[1].tokens[..4]);
        }
    }
}

/// A piece of one token chooses nothing unless it is the last.
#[test]
fn prompts_in_pieces_of_a_token_or_two_give_the_tokens_of_whole_ones() {
    for (model, name) in
        [("fixed", "fixed"), ("paged", "fixed"), ("appending", "appending"), ("growing", "growing")]
    {
        let cases = expected(name);
        for (texts, step_tokens) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 3)] {
            let mut generator = open(&folder(model), &cpu(), None).unwrap();
            let mut batcher = Batcher::new(&mut generator, options(texts, step_tokens)).unwrap();
            let asked: Vec<_> = (0..texts)
                .map(|n| batcher.add(Prompt::Tokens(&cases[n].prompt_tokens), exactly(6), quiet).unwrap())
                .collect();
            let made = all(&mut batcher);
            for (id, case) in asked.iter().zip(&cases) {
                let which = format!("{model}, {texts} texts, {step_tokens} tokens");
                assert_eq!(made[id].tokens, case.tokens[..6], "{which}");
            }
        }
    }
}

/// Those that go on are as many as a step has tokens.
#[test]
fn a_prompt_goes_on_beside_texts_that_take_all_tokens_of_a_step() {
    let case = &expected("fixed")[0];
    let mut generator = open(&folder("paged"), &cpu(), None).unwrap();
    let mut batcher = Batcher::new(&mut generator, options(3, 2)).unwrap();
    for _ in 0..2 {
        batcher.add(Prompt::Tokens(&case.prompt_tokens), exactly(100), quiet).unwrap();
    }
    while batcher.running().iter().any(|text| text.tokens == case.prompt_tokens.len())
        || batcher.waiting() > 0
    {
        assert!(batcher.step().unwrap().is_empty());
    }
    // Another first token, so that no page is there already.
    let prompt: Vec<u32> = std::iter::once(9).chain(case.prompt_tokens.iter().copied()).collect();
    let late = batcher.add(Prompt::Tokens(&prompt), exactly(3), quiet).unwrap();
    for step in 1..prompt.len() {
        batcher.step().unwrap();
        let running = batcher.running();
        let text = running.iter().find(|text| text.id == late).unwrap();
        assert_eq!(text.computed, step);
    }
    assert_eq!(all(&mut batcher).len(), 3);
}

/// More tokens of a step than one run may have.
#[test]
fn steps_of_many_tokens_are_several_runs() {
    let mut generator = open(&folder("paged"), &cpu(), None).unwrap();
    let prompts = [3, 4].map(|first| -> Vec<u32> { (0..330).map(|i| first + i % 90).collect() });
    let alone = prompts
        .each_ref()
        .map(|prompt| generator.generate(Prompt::Tokens(prompt), &exactly(4), quiet).unwrap().tokens);
    let mut batcher = Batcher::new(&mut generator, options(2, 4096)).unwrap();
    let asked = prompts.each_ref().map(|p| batcher.add(Prompt::Tokens(p), exactly(4), quiet).unwrap());
    let made = all(&mut batcher);
    assert_eq!(asked.map(|id| made[&id].tokens.clone()), alone);
}

#[test]
fn texts_share_the_pages_of_equal_prompts() {
    let (mut generator, pool) = pages(64, None);
    let case = &expected("fixed")[1];
    let mut batcher = Batcher::new(&mut generator, options(4, 256)).unwrap();
    batcher.add(Prompt::Tokens(&case.prompt_tokens), exactly(16), quiet).unwrap();
    assert!(batcher.step().unwrap().is_empty());
    for _ in 0..3 {
        batcher.add(Prompt::Tokens(&case.prompt_tokens), exactly(16), quiet).unwrap();
    }
    batcher.step().unwrap();
    let whole = (case.prompt_tokens.len() - 1) / 4;
    assert_eq!(pool.counts().shared, whole);
    for (_, made) in all(&mut batcher) {
        assert_eq!(made.tokens, case.tokens[..16]);
    }
    assert_eq!(batcher.counts().reused_tokens, 3 * 4 * whole as u64);
    drop(batcher);
    assert_eq!(pool.counts().used, 0);
}

/// More texts than pages: some wait, some are set aside and computed again, and none is another text for it.
#[test]
fn texts_without_pages_wait_or_are_computed_again() {
    let cases = expected("fixed");
    let (mut generator, pool) = pages(20, None);
    let mut batcher = Batcher::new(&mut generator, options(8, 16)).unwrap();
    let mut asked = BTreeMap::new();
    for n in 0..6 {
        let case = &cases[[0, 2, 0, 2, 0, 2][n]];
        let options = match n {
            // The random numbers of a text go on where they were.
            0 => GenerateOptions {
                sampling: Sampling { temperature: 1.0, seed: 3, ..Sampling::GREEDY },
                ..exactly(24)
            },
            _ => exactly(24),
        };
        asked.insert(
            batcher.add(Prompt::Text(&case.prompt), options.clone(), quiet).unwrap(),
            (case, options),
        );
    }
    let made = all(&mut batcher);
    assert!(batcher.counts().preempted > 0, "{:?}", batcher.counts());
    drop(batcher);
    assert_eq!(pool.counts().used, 0);
    let mut alone = open(&folder("paged"), &cpu(), None).unwrap();
    for (id, (case, options)) in &asked {
        assert_eq!(made[id].tokens, generate(&mut alone, &case.prompt, options).tokens, "{id:?}");
    }
    // By a rule: the one with the fewest tokens to compute again.
    let mut batcher = Batcher::new(&mut generator, options(8, 16)).unwrap();
    let asked_rule = Rc::new(Cell::new(0));
    let count = Rc::clone(&asked_rule);
    batcher.preempt_by(move |texts| {
        count.set(count.get() + 1);
        let fewest = texts.iter().enumerate().min_by_key(|(_, text)| text.computed);
        fewest.map_or(0, |(at, _)| at)
    });
    for _ in 0..4 {
        batcher.add(Prompt::Text("Hello"), exactly(24), quiet).unwrap();
    }
    for (_, made) in all(&mut batcher) {
        assert_eq!(made.tokens, cases[0].tokens[..24]);
    }
    assert!(asked_rule.get() > 0);
}

#[test]
fn a_pool_that_is_full_ends_a_text_or_refuses_it() {
    let (mut generator, pool) = pages(4, None);
    let mut batcher = Batcher::new(&mut generator, options(2, 64)).unwrap();
    let e = batcher.add(Prompt::Tokens(&[7; 17]), exactly(4), quiet).unwrap_err();
    assert!(matches!(e, GenerateError::PagesFull { missing: 1, pages: 4, .. }), "{e}");
    let case = &expected("fixed")[0];
    batcher.add(Prompt::Tokens(&case.prompt_tokens), exactly(40), quiet).unwrap();
    let made = all(&mut batcher).into_values().next().unwrap();
    assert_eq!((made.tokens.len(), &made.finish), (16 - case.prompt_tokens.len() + 1, &Finish::Context));
    assert_eq!(made.tokens, case.tokens[..made.tokens.len()]);
    drop(batcher);
    // Pages of someone else: the text waits, and the error says what to do.
    let folder_ = ModelFolder::open(folder("paged")).unwrap();
    let session = Session::builder().model(folder_.graph()).context(cpu()).build().unwrap();
    let mut other = Generator::with_pages(folder_, session, None, &pool).unwrap();
    other.generate(Prompt::Tokens(&[9; 10]), &exactly(2), quiet).unwrap();
    let mut batcher = Batcher::new(&mut generator, options(2, 64)).unwrap();
    let id = batcher.add(Prompt::Tokens(&case.prompt_tokens), exactly(4), quiet).unwrap();
    let e = batcher.step().unwrap_err();
    assert!(matches!(e, GenerateError::PagesFull { text, missing: 1, pages: 4 } if text == id.0), "{e}");
    assert_eq!(batcher.waiting(), 1);
    drop(other);
    assert_eq!(all(&mut batcher)[&id].tokens, case.tokens[..4]);
}

#[test]
fn texts_are_cancelled_and_forked() {
    let case = &expected("fixed")[0];
    let (mut generator, pool) = pages(64, None);
    let mut batcher = Batcher::new(&mut generator, options(3, 64)).unwrap();
    let cancel = CancelToken::new();
    let with = |cancel: &CancelToken| GenerateOptions { cancel: Some(cancel.clone()), ..exactly(50) };
    let first = batcher.add(Prompt::Text("Hello"), exactly(30), quiet).unwrap();
    let second = batcher.add(Prompt::Text("Hello"), with(&cancel), quiet).unwrap();
    let mut made = BTreeMap::new();
    for _ in 0..8 {
        made.extend(batcher.step().unwrap());
    }
    let fork = batcher.fork(first, exactly(10), quiet).unwrap();
    assert!(pool.counts().shared > 0);
    let missing = batcher.fork(TextId(99), exactly(1), quiet).unwrap_err();
    assert!(matches!(missing, GenerateError::NoText(99)));
    cancel.cancel();
    let late = batcher.add(Prompt::Text("Hello"), with(&cancel), quiet).unwrap();
    made.extend(all(&mut batcher));
    assert!(pool.counts().copied > 0);
    assert_eq!((&made[&second].finish, &made[&late].finish), (&Finish::Cancelled, &Finish::Cancelled));
    assert!(
        made[&late].tokens.is_empty() && made[&second].tokens == case.tokens[..made[&second].tokens.len()]
    );
    assert_eq!(made[&first].tokens, case.tokens[..30]);
    // It goes on after the tokens of the other.
    let from = made[&fork].prompt_tokens - case.prompt_tokens.len();
    assert_eq!(made[&fork].tokens, case.tokens[from..from + 10]);
    // A batcher that is dropped amid its texts leaves the pool whole.
    batcher.add(Prompt::Text("Hello"), exactly(30), quiet).unwrap();
    batcher.step().unwrap();
    drop(batcher);
    let counts = pool.counts();
    assert_eq!((counts.used, counts.free + counts.cached), (0, counts.pages));
    let mut batcher = Batcher::new(&mut generator, options(1, 64)).unwrap();
    for (prompt, wanted) in [(&[][..], "empty"), (&[320], "token 320"), (&[7; 600], "600 tokens")] {
        let e = batcher.add(Prompt::Tokens(prompt), exactly(1), quiet).unwrap_err().to_string();
        assert!(e.contains(wanted), "{e}");
    }
    assert!(batcher.is_idle() && batcher.step().unwrap().is_empty());
    drop(batcher);
    let e = Batcher::new(&mut generator, options(0, 1)).unwrap_err().to_string();
    assert!(e.contains("texts is 0"), "{e}");
    for texts in [65537, usize::MAX] {
        let e = Batcher::new(&mut generator, options(texts, 1)).unwrap_err();
        assert!(matches!(e, GenerateError::Setting { name: "texts", .. }), "{e}");
    }
}
