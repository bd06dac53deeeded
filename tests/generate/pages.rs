//! Caches in pages: shared, in the application's memory, saved and restored.

use std::ops::ControlFlow;

use onepool::Session;
use onepool::device::Context;
use onepool::generate::{
    BatchOptions, Batcher, CachedPage, Eviction, GenerateError, GenerateOptions, Generated, Generator,
    ModelFolder, PageOptions, PagePool, Pages, Prompt,
};
use onepool::memory::host::HostRegion;

use super::batcher::{all, options, quiet};
use super::devices::devices;
use super::protobuf::{field, int};
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
    batcher.add(Prompt::Tokens(&longer), exactly(6), quiet).unwrap();
    for (id, made) in all(&mut batcher) {
        assert_eq!(made.tokens, case.tokens[12..18], "{id:?}");
    }
    assert_eq!(batcher.counts().reused_tokens, kept as u64);
    drop(batcher);
    let mut fixed = open(&folder("fixed"), &cpu(), None).unwrap();
    let mut batcher = Batcher::new(&mut fixed, BatchOptions::default()).unwrap();
    assert!(matches!(batcher.restore(&file), Err(GenerateError::Pages(_))));
}

/// Another generator on a pool.
fn on(pool: &PagePool) -> (Generator, PagePool) {
    let (folder, session) = session(&cpu());
    (Generator::with_pages(folder, session, None, pool).unwrap(), pool.clone())
}

#[test]
fn a_page_of_two_sessions_is_copied_before_one_writes_it() {
    for context in devices() {
        let name = &context.info().name;
        let (folder, one) = session(&context);
        let options = PageOptions { rows: Some(4), ..PageOptions::new(64) };
        let pool = PagePool::new(&folder, &one, &options).unwrap();
        let mut one = Generator::with_pages(folder, one, None, &pool).unwrap();
        let (folder, two) = session(&context);
        let mut two = Generator::with_pages(folder, two, None, &pool).unwrap();
        let case = &expected("fixed")[1];
        let reuse = GenerateOptions { reuse: true, ..exactly(4) };
        go_on(&mut one, &case.prompt_tokens, &reuse);
        go_on(&mut two, &case.prompt_tokens, &reuse);
        // Amid a page that both have.
        let at = case.prompt_tokens.len() / 8 * 4 + 2;
        let other: Vec<u32> = case.prompt_tokens[..at].iter().copied().chain([9, 8, 7]).collect();
        let copied = pool.counts().copied;
        let made = go_on(&mut two, &other, &reuse);
        assert_eq!((made.reused_tokens, pool.counts().copied), (at, copied + 1), "{name}");
        let mut alone = open(&super::folder("paged"), &context, None).unwrap();
        assert_eq!(made.tokens, go_on(&mut alone, &other, &exactly(4)).tokens, "{name}");
        // The other has what it had.
        let longer: Vec<u32> = case.prompt_tokens.iter().chain(&case.tokens[..4]).copied().collect();
        let made = go_on(&mut one, &longer, &reuse);
        assert_eq!((made.reused_tokens, &made.tokens[..]), (longer.len() - 1, &case.tokens[4..8]), "{name}");
    }
}

/// On a device with memory of its own too the pages are those of the region.
#[test]
fn conversations_are_saved_and_restored_in_the_applications_memory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat");
    let case = &expected("fixed")[0];
    let longer: Vec<u32> = case.prompt_tokens.iter().chain(&case.tokens[..12]).copied().collect();
    for context in devices() {
        let name = &context.info().name;
        let in_region = || {
            let (folder, session) = session(&context);
            let mut options = PageOptions { rows: Some(4), ..PageOptions::new(16) };
            let bytes = PagePool::region_bytes(&folder, &session, &options).unwrap();
            options.region = Some(HostRegion::new(bytes).unwrap().into_shared());
            let pool = PagePool::new(&folder, &session, &options).unwrap();
            Generator::with_pages(folder, session, Some(64), &pool).unwrap()
        };
        let mut one = in_region();
        go_on(&mut one, &case.prompt_tokens, &exactly(12));
        one.save(&file).unwrap();
        let mut two = in_region();
        assert_eq!(two.restore(&file).unwrap(), longer.len() - 1, "{name}");
        let made = go_on(&mut two, &longer, &GenerateOptions { reuse: true, ..exactly(6) });
        assert_eq!(
            (made.reused_tokens, &made.tokens[..]),
            (longer.len() - 1, &case.tokens[12..18]),
            "{name}"
        );
    }
}

/// Two sessions that save and restore while the other runs.
#[test]
fn a_conversation_is_saved_while_another_session_runs() {
    let dir = tempfile::tempdir().unwrap();
    let case = &expected("fixed")[0];
    let (folder, one) = session(&cpu());
    let mut options = PageOptions { rows: Some(4), ..PageOptions::new(128) };
    let bytes = PagePool::region_bytes(&folder, &one, &options).unwrap();
    options.region = Some(HostRegion::new(bytes).unwrap().into_shared());
    let pool = PagePool::new(&folder, &one, &options).unwrap();
    let mut one = Generator::with_pages(folder, one, Some(200), &pool).unwrap();
    let (mut two, _) = on(&pool);
    go_on(&mut one, &case.prompt_tokens, &exactly(20));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(go_on(&mut two, &case.prompt_tokens, &exactly(150)).tokens, case.tokens[..150])
        });
        let file = dir.path().join("chat");
        for _ in 0..50 {
            one.save(&file).unwrap();
            one.restore(&file).unwrap();
        }
    });
    let longer: Vec<u32> = case.prompt_tokens.iter().chain(&case.tokens[..20]).copied().collect();
    let made = go_on(&mut one, &longer, &GenerateOptions { reuse: true, ..exactly(4) });
    assert_eq!(made.tokens, case.tokens[20..24]);
}

/// Gives up the first page and counts.
struct Counted(std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl Eviction for Counted {
    fn choose(&mut self, _: &[CachedPage]) -> Option<usize> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Some(0)
    }
}

#[test]
fn a_pool_that_grows_is_the_pool_that_it_was() {
    let cases = expected("fixed");
    for context in devices() {
        let name = &context.info().name;
        let mut generator = open(&folder("paged"), &context, Some(100)).unwrap();
        let pool = generator.pages().unwrap().clone();
        let asked = std::sync::Arc::default();
        pool.evict_by(Counted(std::sync::Arc::clone(&asked)));
        // A generator of another session has pages of it, before and after.
        let (folder, other) = session(&context);
        let mut other = Generator::with_pages(folder, other, Some(40), &pool).unwrap();
        go_on(&mut other, &cases[0].prompt_tokens, &exactly(8));
        let before = pool.counts();
        let mut batcher = Batcher::new(&mut generator, options(3, 64)).unwrap();
        assert!(pool.counts().pages >= 3 * before.pages && pool.counts().used == before.used, "{name}");
        let ids: Vec<_> = cases
            .iter()
            .map(|case| batcher.add(Prompt::Tokens(&case.prompt_tokens), exactly(20), quiet).unwrap())
            .collect();
        let made = all(&mut batcher);
        for (id, case) in ids.iter().zip(&cases) {
            assert_eq!(made[id].tokens, case.tokens[..20], "{name}");
        }
        drop(batcher);
        assert_eq!(generator.pages().unwrap().counts(), pool.counts());
        let longer: Vec<u32> = cases[0].prompt_tokens.iter().chain(&cases[0].tokens[..8]).copied().collect();
        let made = go_on(&mut other, &longer, &GenerateOptions { reuse: true, ..exactly(4) });
        assert_eq!(
            (made.reused_tokens, &made.tokens[..]),
            (longer.len() - 1, &cases[0].tokens[8..12]),
            "{name}"
        );
        // The rule of the application is asked still.
        let count = || asked.load(std::sync::atomic::Ordering::Relaxed);
        for first in 3..60 {
            if count() == 0 {
                go_on(&mut generator, &[first; 90], &exactly(1));
            }
        }
        assert!(count() > 0 && pool.counts().evicted > 0, "{name}");
    }
}

/// A copy of `paged` with a tensor, which nothing reads, in a file of its own.
fn with_data(byte: u8) -> tempfile::TempDir {
    let dir = copy("paged");
    let entry =
        |key: &str, value: &str| field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat());
    let (place, count) = (entry("location", "weights/w.data"), 100_000);
    let tensor = [int(1, count), int(2, 1), field(8, b"spare"), place, int(14, 1)].concat();
    let path = dir.path().join("model.onnx");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend(field(7, &field(5, &tensor)));
    std::fs::write(&path, bytes).unwrap();
    std::fs::create_dir(dir.path().join("weights")).unwrap();
    std::fs::write(dir.path().join("weights/w.data"), vec![byte; 4 * count as usize]).unwrap();
    dir
}

/// Equal graphs with other weights next to them.
#[test]
fn models_whose_weights_are_in_other_files_are_told_apart() {
    let (one, same, other) = (with_data(1), with_data(1), with_data(2));
    let file = one.path().join("chat");
    let mut generator = open(one.path(), &cpu(), None).unwrap();
    go_on(&mut generator, &[7; 8], &exactly(4));
    generator.save(&file).unwrap();
    assert_eq!(open(same.path(), &cpu(), None).unwrap().restore(&file).unwrap(), 11);
    let e = open(other.path(), &cpu(), None).unwrap().restore(&file).unwrap_err();
    assert!(matches!(e, GenerateError::Conversation { .. }), "{e}");
    let pool = generator.pages().unwrap();
    let folder = ModelFolder::open(other.path()).unwrap();
    let session = Session::builder().model(folder.graph()).context(cpu()).build().unwrap();
    let e = Generator::with_pages(folder, session, None, pool).unwrap_err();
    assert!(matches!(e, GenerateError::Pages(_)), "{e}");
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
    for model in ["appending", "growing"] {
        let other = ModelFolder::open(folder(model)).unwrap();
        let session = Session::builder().model(other.graph()).context(cpu()).build().unwrap();
        let e = PagePool::new(&other, &session, &PageOptions::new(4)).unwrap_err().to_string();
        assert!(e.contains("not in pages"), "{e}");
    }
    let dir = copy("paged");
    let path = dir.path().join("genai_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3")).unwrap();
    let other = ModelFolder::open(dir.path()).unwrap();
    let e = Generator::with_pages(other, session_, None, &pool).unwrap_err();
    assert!(matches!(e, GenerateError::Pages(_)) && e.to_string().contains("of another model"), "{e}");
}

/// A generator of a graph with GroupQueryAttention, on pages of 4 tokens.
fn changed(context: &Context, pages: usize) -> Generator {
    let options = PageOptions { rows: Some(4), ..PageOptions::new(pages) };
    let folder = ModelFolder::open(folder("fixed")).unwrap().in_pages(Pages::New(options));
    let session = Session::builder().model(folder.graph()).context(context.clone()).build().unwrap();
    Generator::new(folder, session, None).unwrap()
}

#[test]
fn a_graph_with_group_query_attention_is_changed_to_have_pages() {
    for context in devices() {
        let mut generator = changed(&context, 64);
        assert!(generator.remarks().is_empty());
        for case in expected("fixed") {
            let made = generate(&mut generator, &case.prompt, &exactly(case.tokens.len().min(40)));
            assert_eq!(made.tokens[..], case.tokens[..made.tokens.len()], "{}", context.info().name);
        }
        // Texts that come and go, on fewer pages than they need together.
        let mut generator = changed(&context, 20);
        let pool = generator.pages().unwrap().clone();
        let mut batcher = Batcher::new(&mut generator, options(4, 24)).unwrap();
        let case = &expected("fixed")[0];
        for _ in 0..3 {
            batcher.add(Prompt::Tokens(&case.prompt_tokens), exactly(24), quiet).unwrap();
        }
        for (_, made) in all(&mut batcher) {
            assert_eq!(made.tokens, case.tokens[..24], "{}", context.info().name);
        }
        assert!(batcher.counts().preempted > 0 && pool.counts().used == 0);
    }
    let mut generator = changed(&cpu(), 3);
    let e = generator.generate(Prompt::Tokens(&[7; 14]), &exactly(9), |_| ControlFlow::Continue(()));
    assert!(matches!(e, Err(GenerateError::PagesFull { missing: 1, pages: 3, .. })));
}

#[test]
fn guesses_and_sharing_work_in_pages_of_a_changed_graph() {
    let case = &expected("fixed")[0];
    let mut generator = changed(&cpu(), 64);
    let guessed = GenerateOptions { lookup: 4, ..exactly(40) };
    assert_eq!(go_on(&mut generator, &case.prompt_tokens, &guessed).tokens, case.tokens[..40]);
    let longer: Vec<u32> = case.prompt_tokens.iter().chain(&case.tokens[..20]).copied().collect();
    let made = go_on(&mut generator, &longer, &GenerateOptions { reuse: true, ..exactly(6) });
    assert_eq!(made.tokens, case.tokens[20..26]);
    assert!(made.reused_tokens > 0);
}

#[test]
fn conversations_of_pages_and_of_a_fixed_cache_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat");
    let case = &expected("fixed")[0];
    let longer: Vec<u32> = case.prompt_tokens.iter().chain(&case.tokens[..12]).copied().collect();
    let mut generator = changed(&cpu(), 32);
    go_on(&mut generator, &case.prompt_tokens, &exactly(12));
    generator.save(&file).unwrap();
    let mut other = changed(&cpu(), 32);
    assert_eq!(other.restore(&file).unwrap(), longer.len() - 1);
    let made = go_on(&mut other, &longer, &GenerateOptions { reuse: true, ..exactly(6) });
    assert_eq!((made.reused_tokens, &made.tokens[..]), (longer.len() - 1, &case.tokens[12..18]));
    let mut fixed = open(&folder("fixed"), &cpu(), None).unwrap();
    let e = fixed.restore(&file).unwrap_err().to_string();
    assert!(e.contains("of another kind"), "{e}");
    go_on(&mut fixed, &case.prompt_tokens, &exactly(12));
    fixed.save(&file).unwrap();
    let e = other.restore(&file).unwrap_err().to_string();
    assert!(e.contains("of another kind"), "{e}");
}
