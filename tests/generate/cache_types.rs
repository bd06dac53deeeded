//! Caches that hold keys and values in another type than the graph's.

use onepool::generate::{CacheType, PageOptions, Pages};
use onepool::plan::Precision;

use super::conversation::go_on;
use super::*;

fn generator(path: &Path, context: &Context, folder: impl FnOnce(ModelFolder) -> ModelFolder) -> Generator {
    let folder = folder(ModelFolder::open(path).unwrap());
    let session = Session::builder().model(folder.graph()).context(context.clone()).build().unwrap();
    Generator::new(folder, session, Some(128)).unwrap()
}

fn gguf(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("models/tiny_gguf/{name}.gguf"))
}

/// Tokens of a text, a prompt that is several chunks, and several texts at once.
fn tokens(generator: &mut Generator) -> Vec<Vec<u32>> {
    let prompt: Vec<u32> = (0..37).map(|i| 3 + i * 5 % 90).collect();
    let mut made = vec![go_on(generator, &prompt, &exactly(12)).tokens];
    made.push(go_on(generator, &[5], &exactly(12)).tokens);
    let prompts = [7u32, 11].map(|token| vec![token; 3]);
    let (options, mut told) = (exactly(6), [(); 2].map(|()| |_: &str| ControlFlow::Continue(())));
    let requests = prompts.iter().zip(&mut told).map(|(prompt, told)| TextRequest {
        prompt: Prompt::Tokens(prompt),
        options: &options,
        told,
    });
    let together = generator.generate_all(requests.collect()).unwrap();
    made.extend(together.into_iter().map(|made| made.tokens));
    made
}

/// Models, and how many of the first tokens of a text are the same everywhere: some are near to others.
const MODELS: [(&str, usize); 2] = [("models/tiny_llm/fixed", 12), ("models/tiny_gguf/gpt_oss.gguf", 3)];

fn begin_alike(got: Vec<Vec<u32>>, want: &[Vec<u32>], same: usize, case: &str) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert_eq!(got.len(), want.len());
        let same = same.min(got.len());
        assert_eq!(got[..same], want[..same], "{case}: {got:?}, not {want:?}");
    }
}

#[test]
fn every_type_of_cache_gives_the_same_tokens_on_all_devices() {
    for (path, same) in MODELS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let plain = generator(&path, &cpu(), |folder| folder);
        let all = plain.cache_bytes().unwrap();
        drop(plain);
        // Where 16 codes stand for all numbers, a difference in the last digit becomes one of an eighth.
        let types = if same < 12 { 2 } else { 3 };
        for (cache_type, [least, most]) in
            [(CacheType::F16, [0.5, 0.5]), (CacheType::Q8, [0.26, 0.38]), (CacheType::Q4, [0.14, 0.25])]
                .into_iter()
                .take(types)
        {
            let made = |context: &Context| {
                let mut generator = generator(&path, context, |folder| folder.cache_type(cache_type));
                let share = generator.cache_bytes().unwrap() as f64 / all as f64;
                assert!((least..=most).contains(&share), "{} {cache_type}: {share}", path.display());
                assert!(generator.remarks().is_empty(), "{:?}", generator.remarks());
                tokens(&mut generator)
            };
            let want = made(&cpu());
            for context in devices() {
                let name = format!("{} {cache_type} {}", path.display(), context.info().name);
                begin_alike(made(&context), &want, same, &name);
            }
        }
    }
}

/// In half precision the cache is too, unless it is asked for otherwise. Devices that compute in `float32` read it all the same.
#[test]
fn a_cache_is_as_precise_as_the_rest_unless_it_is_told_otherwise() {
    let bytes = |precision, cache_type: Option<CacheType>| {
        let folder = ModelFolder::open(gguf("llama")).unwrap().cache_type(cache_type);
        let session =
            Session::builder().model(folder.graph()).context(cpu()).precision(precision).build().unwrap();
        let mut generator = Generator::new(folder, session, Some(64)).unwrap();
        assert_eq!(go_on(&mut generator, &[5, 6, 7], &exactly(4)).tokens.len(), 4);
        generator.cache_bytes().unwrap()
    };
    let full = bytes(Precision::F32, None);
    assert_eq!(bytes(Precision::F32, Some(CacheType::F32)), full);
    assert_eq!(bytes(Precision::F16, None), full / 2);
    assert_eq!(bytes(Precision::F16, Some(CacheType::F32)), full);
}

#[test]
fn pages_hold_halves_and_no_codes() {
    let pages = || Pages::New(PageOptions { rows: Some(4), ..PageOptions::new(64) });
    for (path, same) in MODELS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let mut whole = generator(&path, &cpu(), |folder| folder.cache_type(CacheType::F16));
        let want = tokens(&mut whole);
        for context in devices() {
            let typed = |folder: ModelFolder| folder.cache_type(CacheType::F16).in_pages(pages());
            let mut paged = generator(&path, &context, typed);
            let pool = paged.pages().unwrap().clone();
            let name = format!("{} {}", path.display(), context.info().name);
            begin_alike(tokens(&mut paged), &want, same, &name);
            let plain = generator(&path, &context, |folder| folder.in_pages(pages()));
            assert_eq!(2 * pool.bytes_in_region(), plain.pages().unwrap().bytes_in_region());
        }
    }
    let e = refused(&folder("fixed"), |folder| folder.cache_type(CacheType::Q8).in_pages(pages()));
    assert!(e.contains("has a cache of codes"), "{e}");
}

fn refused(path: &Path, folder: impl FnOnce(ModelFolder) -> ModelFolder) -> String {
    let folder = folder(ModelFolder::open(path).unwrap());
    let session = Session::builder().model(folder.graph()).context(cpu()).build().unwrap();
    Generator::new(folder, session, Some(64)).unwrap_err().to_string()
}

#[test]
fn other_graphs_and_names_are_refused() {
    for model in ["appending", "growing", "paged"] {
        let e = refused(&folder(model), |folder| folder.cache_type(CacheType::Q4));
        assert!(e.contains("no GroupQueryAttention"), "{model}: {e}");
    }
    let e = "q5".parse::<CacheType>().unwrap_err().to_string();
    assert!(e.contains("expected one of f32, f16, q8, q4"), "{e}");
    for cache_type in CacheType::ALL {
        assert_eq!(cache_type.to_string().parse::<CacheType>().unwrap(), cache_type);
    }
}

#[test]
fn conversations_are_of_one_type_of_cache() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat");
    let open = |cache_type| generator(&gguf("qwen2"), &cpu(), |folder| folder.cache_type(cache_type));
    let mut first = open(CacheType::Q8);
    let text = go_on(&mut first, &[3, 4, 5], &exactly(8)).tokens;
    first.save(&file).unwrap();
    let mut second = open(CacheType::Q8);
    assert_eq!(second.restore(&file).unwrap(), 3 + 8 - 1);
    let longer: Vec<u32> = [3, 4, 5].into_iter().chain(text).collect();
    let again = GenerateOptions { reuse: true, ..exactly(4) };
    let made = go_on(&mut second, &longer, &again);
    assert!(made.reused_tokens > 0);
    assert_eq!(made.tokens, go_on(&mut first, &longer, &again).tokens);
    let e = open(CacheType::F16).restore(&file).unwrap_err().to_string();
    assert!(e.contains("a cache of another type"), "{e}");
}
