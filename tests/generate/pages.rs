//! Caches in pages: shared, in the application's memory, saved and restored.

use std::ops::ControlFlow;

use onepool::Session;
use onepool::device::Context;
use onepool::generate::{
    BatchOptions, Batcher, CachedPage, Eviction, GenerateError, GenerateOptions, Generated, Generator,
    ModelFolder, PageOptions, PagePool, Prompt,
};
use onepool::memory::host::HostRegion;

use super::devices::devices;
use super::{copy, cpu, exactly, expected, folder, generate, open};

/// The model on a session of its own.
fn session(context: &Context) -> (ModelFolder, Session) {
    let folder = ModelFolder::open(folder("paged")).unwrap();
    let session = Session::builder().model(folder.graph()).context(context.clone()).build().unwrap();
    (folder, session)
}

/// A generator on `pages` pages of 4 tokens.
fn small(pages: usize) -> Generator {
    let (folder, session) = session(&cpu());
    let options = PageOptions { rows: Some(4), ..PageOptions::new(pages) };
    let pool = PagePool::new(&folder, &session, &options).unwrap();
    Generator::with_pages(folder, session, None, &pool).unwrap()
}

fn go_on(generator: &mut Generator, prompt: &[u32], options: &GenerateOptions) -> Generated {
    generator.generate(Prompt::Tokens(prompt), options, |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn a_graph_with_pages_gives_the_tokens_of_one_with_a_fixed_cache() {
    for context in devices() {
        let mut generator = open(&folder("paged"), &context, None).unwrap();
        assert!(generator.remarks().is_empty() && generator.cache_bytes().is_some());
        for case in expected("fixed") {
            let made = generate(&mut generator, &case.prompt, &exactly(case.tokens.len().min(40)));
            assert_eq!(made.tokens[..], case.tokens[..made.tokens.len()], "{}", context.info().name);
        }
    }
}

#[test]
fn sessions_share_pages_in_the_applications_memory() {
    for context in devices() {
        let name = &context.info().name;
        let ((first, one), (second, two)) = (session(&context), session(&context));
        let mut options = PageOptions { rows: Some(4), ..PageOptions::new(32) };
        let bytes = PagePool::region_bytes(&first, &one, &options).unwrap();
        let region = HostRegion::new(bytes).unwrap().into_shared();
        options.region = Some(region.clone());
        let pool = PagePool::new(&first, &one, &options).unwrap();
        assert_eq!((pool.page_tokens(), pool.counts().free), (4, 32));
        let mut one = Generator::with_pages(first, one, Some(100), &pool).unwrap();
        let mut two = Generator::with_pages(second, two, Some(100), &pool).unwrap();
        let case = &expected("fixed")[1];
        assert_eq!(go_on(&mut one, &case.prompt_tokens, &exactly(8)).tokens, case.tokens[..8], "{name}");
        // The other session finds the whole pages of the prompt that it does not have to compute.
        let reuse = GenerateOptions { reuse: true, ..exactly(8) };
        let made = go_on(&mut two, &case.prompt_tokens, &reuse);
        let whole = (case.prompt_tokens.len() - 1) / 4 * 4;
        assert_eq!((made.reused_tokens, &made.tokens[..]), (whole, &case.tokens[..8]), "{name}");
        assert!(pool.counts().shared >= whole / 4);
        // Both go on, each on pages of its own.
        let longer: Vec<u32> = case.prompt_tokens.iter().chain(&case.tokens[..8]).copied().collect();
        for generator in [&mut one, &mut two] {
            assert_eq!(go_on(generator, &longer, &reuse).tokens, case.tokens[8..16], "{name}");
        }
        drop((one, two));
        let counts = pool.counts();
        assert_eq!((counts.used, counts.free + counts.cached), (0, 32));
        pool.clear_cached();
        assert_eq!(pool.counts().free, 32);
        assert!(region.read().unwrap().iter().any(|byte| *byte != 0));
    }
}

#[test]
fn conversations_are_saved_from_pages_and_restored_into_others() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat");
    let case = &expected("fixed")[0];
    let longer: Vec<u32> = case.prompt_tokens.iter().chain(&case.tokens[..12]).copied().collect();
    for context in devices() {
        let name = &context.info().name;
        let mut generator = open(&folder("paged"), &context, None).unwrap();
        go_on(&mut generator, &case.prompt_tokens, &exactly(12));
        generator.save(&file).unwrap();
        let mut other = open(&folder("paged"), &context, Some(64)).unwrap();
        assert_eq!(other.restore(&file).unwrap(), longer.len() - 1, "{name}");
        let reuse = GenerateOptions { reuse: true, ..exactly(6) };
        let made = go_on(&mut other, &longer, &reuse);
        assert_eq!(
            (made.reused_tokens, &made.tokens[..]),
            (longer.len() - 1, &case.tokens[12..18]),
            "{name}"
        );
    }
    // Into a pool of other pages, where each text that begins so finds them.
    let mut generator = small(16);
    let mut batcher = Batcher::new(&mut generator, BatchOptions::default()).unwrap();
    let kept = (longer.len() - 1) / 4 * 4;
    assert_eq!(batcher.restore(&file).unwrap(), kept);
    batcher.add(Prompt::Tokens(&longer), exactly(6), |_| ControlFlow::Continue(())).unwrap();
    while !batcher.is_idle() {
        for (id, made) in batcher.step().unwrap() {
            assert_eq!(made.tokens, case.tokens[12..18], "{id:?}");
        }
    }
    assert_eq!(batcher.counts().reused_tokens, kept as u64);
    drop(batcher);
    let mut fixed = open(&folder("fixed"), &cpu(), None).unwrap();
    let mut batcher = Batcher::new(&mut fixed, BatchOptions::default()).unwrap();
    assert!(matches!(batcher.restore(&file), Err(GenerateError::Pages(_))));
}

struct KeepAll;

impl Eviction for KeepAll {
    fn choose(&mut self, _: &[CachedPage]) -> Option<usize> {
        None
    }
}

#[test]
fn pools_that_are_too_small_or_of_another_model_say_so() {
    let mut generator = small(3);
    let fails = |generator: &mut Generator, tokens: usize| {
        let e =
            generator.generate(Prompt::Tokens(&vec![7; tokens]), &exactly(9), |_| ControlFlow::Continue(()));
        e.unwrap_err().to_string()
    };
    let e = fails(&mut generator, 14);
    assert!(e.contains("lacks 1 pages") && e.contains("pool of 3"), "{e}");
    // Nothing is lost after it.
    go_on(&mut generator, &[7; 8], &exactly(4));
    // The rule of the application keeps what is cached.
    let pool = generator.pages().unwrap().clone();
    drop(generator);
    assert_eq!((pool.counts().used, pool.counts().cached), (0, 2));
    pool.evict_by(KeepAll);
    let (folder_, session_) = session(&cpu());
    let mut generator = Generator::with_pages(folder_, session_, None, &pool).unwrap();
    assert!(fails(&mut generator, 6).contains("lacks 1 pages"));
    drop(generator);

    let (folder_, session_) = session(&cpu());
    let wrong = |options: PageOptions| PagePool::new(&folder_, &session_, &options).unwrap_err().to_string();
    assert!(wrong(PageOptions::new(0)).contains("0 pages"));
    assert!(wrong(PageOptions { rows: Some(0), ..PageOptions::new(4) }).contains("pages of 0 tokens"));
    assert!(wrong(PageOptions::new(usize::MAX)).contains("expected 1 to"));
    let region = Some(HostRegion::new(64).unwrap().into_shared());
    assert!(wrong(PageOptions { region, ..PageOptions::new(4) }).contains("the region has"));
    let fixed = ModelFolder::open(folder("fixed")).unwrap();
    let on_fixed = Session::builder().model(fixed.graph()).context(cpu()).build().unwrap();
    let e = PagePool::new(&fixed, &on_fixed, &PageOptions::new(4)).unwrap_err().to_string();
    assert!(e.contains("not in pages"), "{e}");
    let dir = copy("paged");
    let path = dir.path().join("genai_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3")).unwrap();
    let other = ModelFolder::open(dir.path()).unwrap();
    let e = Generator::with_pages(other, session_, None, &pool).unwrap_err();
    assert!(matches!(e, GenerateError::Pages(_)) && e.to_string().contains("of another model"), "{e}");
}
