//! The GGUF files of `models/tiny_gguf` against what llama.cpp says of them, on every device.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/devices.rs"]
mod devices;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use devices::devices;
use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::generate::{
    BatchOptions, Batcher, GenerateOptions, Generator, Message, ModelFolder, PageOptions, Pages, Prompt,
};
use onepool::loader::gguf::{GgufFile, load_gguf_bytes};
use onepool::plan::Activations;
use onepool::registry::Registry;
use onepool::{DType, Session, Shape, Tensor, TensorInfo};

const MODELS: [&str; 18] = [
    "llama",
    "llama_k",
    "llama_low",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_period",
    "phi3",
    "phi4",
    "mistral3",
    "smollm3",
    "qwen3moe",
    "mixtral",
    "olmoe",
    "qwen2moe",
    "gpt_oss",
];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny_gguf").join(format!("{name}.gguf"))
}

fn expected(model: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(path("llama").with_file_name("expected.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).unwrap()[model].take()
}

fn tokens(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect()
}

fn session(name: &str, context: &Context, activations: Activations) -> Session {
    let builder = Session::builder().model(path(name)).context(context.clone());
    builder.activations(activations).build().unwrap()
}

/// The logits after `prompt`, with a cache that is empty before.
fn logits(session: &mut Session, prompt: &[u32]) -> Vec<f32> {
    let ids: Vec<i64> = prompt.iter().map(|t| i64::from(*t)).collect();
    session.set_input("input_ids", &Tensor::new([1, ids.len()], &ids).unwrap()).unwrap();
    session
        .set_input("attention_mask", &Tensor::new([1, ids.len()], &vec![1i64; ids.len()]).unwrap())
        .unwrap();
    let caches: Vec<_> = session.inputs().iter().filter(|io| io.name.starts_with("past")).cloned().collect();
    for io in caches {
        let dims = &io.shape.unwrap().0;
        let size = |at: usize| match dims[at] {
            onepool::Dim::Known(n) => n,
            _ => panic!("{} has a size that is not known", io.name),
        };
        let info = TensorInfo::new(DType::F32, Shape::new([1, size(1), 0, size(3)]).unwrap());
        session.set_input(&io.name, &Tensor::from_bytes(info, &[]).unwrap()).unwrap();
    }
    session.run().unwrap();
    let all = session.get_output("logits").unwrap().to_f32s().unwrap();
    all[all.len() / prompt.len() * (prompt.len() - 1)..].to_vec()
}

/// The largest difference of the logits of `session` to those of llama.cpp, over the largest of these.
fn off(session: &mut Session, want: &serde_json::Value) -> f64 {
    let got = logits(session, &tokens(&want["prompt_tokens"]));
    let want: Vec<f64> = want["logits"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(1.0f64, |most, v| most.max(v.abs()));
    got.iter().zip(&want).fold(0.0f64, |most, (g, w)| most.max((f64::from(*g) - w).abs())) / largest
}

#[test]
fn logits_are_those_of_llama_cpp() {
    for context in devices() {
        for model in MODELS {
            let off = off(&mut session(model, &context, Activations::Exact), &expected(model));
            // Gemma's activation is read from a table of float16 in llama.cpp.
            let within = if model.starts_with("gemma") { 4e-3 } else { 2e-4 };
            println!("{model} on {}: {off:.1e}", context.info().name);
            assert!(off <= within, "{model} on {}: {off}", context.info().name);
        }
    }
}

/// Rows that are rounded to 8 bits leave the logits near those of llama.cpp, which were made without.
#[test]
fn logits_of_rounded_rows_are_near() {
    let context = Registry::with_defaults().open("cpu", &ContextDesc::default()).unwrap();
    for model in MODELS {
        let off = off(&mut session(model, &context, Activations::Allowed), &expected(model));
        println!("{model}: {off:.1e}");
        assert!(off <= 5e-2, "{model}: {off}");
    }
}

#[test]
fn greedy_tokens_are_those_of_llama_cpp() {
    for context in devices() {
        for model in MODELS {
            let want = expected(model);
            let folder = ModelFolder::open(path(model)).unwrap();
            let mut generator =
                Generator::new(folder, session(model, &context, Activations::Exact), None).unwrap();
            assert!(generator.remarks().is_empty(), "{:?}", generator.remarks());
            let prompt = want["prompt"].as_str().unwrap();
            assert_eq!(
                generator.folder().tokens(Prompt::Text(prompt)).unwrap(),
                tokens(&want["prompt_tokens"])
            );
            let want = tokens(&want["tokens"]);
            let options = GenerateOptions {
                max_tokens: Some(want.len()),
                ignore_end: true,
                ..GenerateOptions::default()
            };
            let made =
                generator.generate(Prompt::Text(prompt), &options, |_| ControlFlow::Continue(())).unwrap();
            assert_eq!(made.tokens, want, "{model} on {}", context.info().name);
            assert!(generator.session().plans_made() <= 3);
        }
    }
}

/// A generator with `pages` pages of 4 tokens.
fn in_pages(model: &str, context: &Context, pages: usize) -> Generator {
    let options = PageOptions { rows: Some(4), ..PageOptions::new(pages) };
    let folder = ModelFolder::open(path(model)).unwrap().in_pages(Pages::New(options));
    Generator::new(folder, session(model, context, Activations::Exact), None).unwrap()
}

fn exactly(tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(tokens), ignore_end: true, ..GenerateOptions::default() }
}

/// Models that differ in their attention.
const ATTENTIONS: [&str; 8] = ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "mistral3", "smollm3"];

#[test]
fn greedy_tokens_in_pages_are_those_of_llama_cpp() {
    for context in devices() {
        for model in ATTENTIONS {
            let want = expected(model);
            let mut generator = in_pages(model, &context, 32);
            assert!(generator.remarks().is_empty() && generator.pages().is_some());
            let (prompt, want) = (tokens(&want["prompt_tokens"]), tokens(&want["tokens"]));
            let options = exactly(want.len());
            let made =
                generator.generate(Prompt::Tokens(&prompt), &options, |_| ControlFlow::Continue(())).unwrap();
            assert_eq!(made.tokens, want, "{model} on {}", context.info().name);
            // One for a prompt, and one for single tokens.
            assert!(generator.plans_made() <= 4, "{}", generator.plans_made());
        }
    }
}

/// Prompts that begin alike: their full pages are there once, and each text is that of a cache of its own.
#[test]
fn texts_that_begin_alike_share_pages() {
    for context in devices() {
        for model in ["llama", "gemma2", "phi3", "mistral3"] {
            let prefix = tokens(&expected(model)["prompt_tokens"]);
            let prefix: Vec<u32> = prefix.iter().cycle().take(13).copied().collect();
            let prompts: Vec<Vec<u32>> = (0..3)
                .map(|n| prefix.iter().copied().chain((0..=n).map(|at| 5 + 3 * at + n)).collect())
                .collect();
            let mut alone = Generator::new(
                ModelFolder::open(path(model)).unwrap(),
                session(model, &context, Activations::Exact),
                None,
            )
            .unwrap();
            let mut generator = in_pages(model, &context, 64);
            let pool = generator.pages().unwrap().clone();
            let mut batcher = Batcher::new(&mut generator, BatchOptions::default()).unwrap();
            let (mut made, mut shared) = (Vec::new(), 0);
            // The first one's pages are there when the others begin.
            batcher.add(Prompt::Tokens(&prompts[0]), exactly(12), |_| ControlFlow::Continue(())).unwrap();
            made.extend(batcher.step().unwrap());
            for prompt in &prompts[1..] {
                batcher.add(Prompt::Tokens(prompt), exactly(12), |_| ControlFlow::Continue(())).unwrap();
            }
            while !batcher.is_idle() {
                made.extend(batcher.step().unwrap());
                shared = shared.max(pool.counts().shared);
            }
            made.sort_by_key(|(id, _)| *id);
            let name = format!("{model} on {}", context.info().name);
            assert_eq!((shared, batcher.counts().reused_tokens), (3, 24), "{name}");
            for (prompt, (_, made)) in prompts.iter().zip(&made) {
                let own = alone
                    .generate(Prompt::Tokens(prompt), &exactly(12), |_| ControlFlow::Continue(()))
                    .unwrap();
                assert_eq!(made.tokens, own.tokens, "{name}");
            }
        }
    }
}

#[test]
fn texts_have_the_tokens_of_llama_cpp() {
    for model in MODELS {
        let folder = ModelFolder::open(path(model)).unwrap();
        for case in expected(model)["texts"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            assert_eq!(
                folder.tokens(Prompt::Text(text)).unwrap(),
                tokens(&case["tokens"]),
                "{model}: {text:?}"
            );
        }
        let chat = folder.tokens(Prompt::Chat(&[Message::new("user", "Hello")])).unwrap();
        assert!(chat.len() > 3, "{model}: {chat:?}");
    }
}

/// Each pre-tokenizer makes its own pieces of a text, of a vocabulary whose tokens go across most of their ends.
#[test]
fn texts_are_split_as_llama_cpp_splits_them() {
    let want = expected("splits");
    let text = want["text"].as_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    for (name, want) in want["tokens"].as_object().unwrap() {
        let to = [&(name.len() as u64).to_le_bytes()[..], name.as_bytes()].concat();
        std::fs::write(&file, moved("phi4", b"\x06\0\0\0\0\0\0\0gpt-4o", &to)).unwrap();
        let folder = ModelFolder::open(&file).unwrap();
        assert_eq!(folder.tokens(Prompt::Text(text)).unwrap(), tokens(want), "{name}");
    }
}

/// Layers have windows where a file lists them, as where it has their period.
#[test]
fn windows_are_listed_or_periodic() {
    let context = Registry::with_defaults().open("cpu", &ContextDesc::default()).unwrap();
    let want = expected("gemma3_period");
    let key = b"gemma3.attention.sliding_window_pattern";
    let kind = |number: u32| number.to_le_bytes();
    let period = [&key[..], &kind(4), &2u32.to_le_bytes()].concat();
    let listed = |layers: &[u8]| {
        let count = (layers.len() as u64).to_le_bytes();
        let list = [&key[..], &kind(9), &kind(7), &count, layers].concat();
        moved("gemma3_period", &period, &list)
    };
    let open = |bytes: &[u8]| {
        let graph = load_gguf_bytes(bytes)?;
        let builder = Session::builder().graph(graph).context(context.clone());
        Ok::<_, onepool::loader::LoadError>(builder.activations(Activations::Exact).build().unwrap())
    };
    let same = off(&mut open(&listed(&[1, 0, 1, 0])).unwrap(), &want);
    assert!(same <= 4e-3, "{same}");
    let other = off(&mut open(&listed(&[1, 1, 1, 0])).unwrap(), &want);
    assert!(other > 4e-3, "{other}");
    let e = open(&listed(&[1, 0, 1])).unwrap_err().to_string();
    assert!(e.contains("sliding_window_pattern") && e.contains("4 values"), "{e}");
}

/// A file of a text, with one part replaced.
fn changed(name: &str, from: &[u8], to: &[u8]) -> Vec<u8> {
    let bytes = std::fs::read(path(name)).unwrap();
    let at = bytes.windows(from.len()).position(|part| part == from).unwrap();
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}

/// As [`changed`], with a longer name of the model, so that data begin at a multiple of 32 bytes as before.
fn moved(name: &str, from: &[u8], to: &[u8]) -> Vec<u8> {
    let (bytes, title) = (changed(name, from, to), b"\x04\0\0\0\0\0\0\0tiny");
    let at = bytes.windows(title.len()).position(|part| part == title).unwrap();
    let len = 4 + (from.len() + 31 * to.len()) % 32;
    let longer = [&(len as u64).to_le_bytes()[..], &vec![b'x'; len]].concat();
    [&bytes[..at], &longer, &bytes[at + title.len()..]].concat()
}

#[test]
fn what_is_not_read_is_named() {
    let said = |bytes: &[u8]| {
        let e = load_gguf_bytes(bytes).unwrap_err();
        (e.is_unsupported(), e.to_string())
    };
    // An architecture's name and its length come in one entry.
    let (unsupported, e) = said(&changed("qwen3", b"\x05\0\0\0\0\0\0\0qwen3", b"\x05\0\0\0\0\0\0\0mamba"));
    assert!(unsupported && e.contains("\"mamba\"") && e.contains("qwen2, qwen3"), "{e}");
    // Four dimensions come before an element type: 32 x 32, Q4_0 becomes IQ3_S.
    let whole = std::fs::read(path("gemma3")).unwrap();
    let name = b"blk.0.attn_q.weight";
    let at = whole.windows(name.len()).position(|part| part == name).unwrap() + name.len() + 4 + 16;
    let mut other = whole.clone();
    other[at..at + 4].copy_from_slice(&21u32.to_le_bytes());
    let (unsupported, e) = said(&other);
    assert!(unsupported && e.contains("IQ3_S") && e.contains("blk.0.attn_q.weight"), "{e}");
    let (unsupported, e) = said(&changed("gemma3", b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"));
    assert!(!unsupported && e.contains("blk.0.attn_q.weight"), "{e}");
    let (unsupported, e) = said(&changed("qwen2", b"yarn", b"yarm"));
    assert!(unsupported && e.contains("\"yarm\"") && e.contains("qwen2.rope.scaling.type"), "{e}");
    for end in (0..whole.len()).step_by(997) {
        assert!(load_gguf_bytes(&whole[..end]).is_err());
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    let open = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        ModelFolder::open(&file).unwrap_err().to_string()
    };
    let e = open(&changed("qwen3", b"\x04\0\0\0\0\0\0\0gpt2", b"\x04\0\0\0\0\0\0\0rwkv"));
    assert!(e.contains("the tokenizer \"rwkv\""), "{e}");
    let e = open(&changed("qwen3", b"\x05\0\0\0\0\0\0\0qwen2", b"\x05\0\0\0\0\0\0\0other"));
    assert!(e.contains("the pre-tokenizer \"other\""), "{e}");
    assert!(GgufFile::open(&file).is_ok() && !GgufFile::is_one(&dir.path().join("none")));
}

/// The parts of a model: `parts` has those of `qwen2`.
const PARTS: u32 = 5;

fn part(no: u32) -> String {
    format!("parts-{no:05}-of-{PARTS:05}")
}

/// Any part stands for the model. Products of tensors that lie in several parts are as those of one file.
#[test]
fn a_model_in_parts_is_that_model() {
    let want = expected("qwen2");
    for context in devices() {
        for no in [1, PARTS] {
            let off = off(&mut session(&part(no), &context, Activations::Exact), &want);
            assert!(off <= 2e-4, "part {no} on {}: {off}", context.info().name);
        }
    }
    let folder = ModelFolder::open(path(&part(3))).unwrap();
    let prompt = Prompt::Text(want["prompt"].as_str().unwrap());
    assert_eq!(folder.tokens(prompt).unwrap(), tokens(&want["prompt_tokens"]));
    let summary = onepool::loader::summarize(&path(&part(2)), None).unwrap();
    let one = onepool::loader::summarize(&path("qwen2"), None).unwrap();
    assert_eq!(format!("{:?}", summary.parameters), format!("{:?}", one.parameters));
}

#[test]
fn parts_that_are_wrong_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = |no: u32| dir.path().join(format!("{}.gguf", part(no)));
    let whole = |no: u32| std::fs::read(path(&part(no))).unwrap();
    let restore = || (1..=PARTS).for_each(|no| std::fs::write(at(no), whole(no)).unwrap());
    let said = |opened: u32| {
        let e = GgufFile::open(&at(opened)).unwrap_err().to_string();
        assert!(ModelFolder::open(at(opened)).unwrap_err().to_string().contains(&e), "{e}");
        e
    };
    // A value of 16 bits after an entry's name and type.
    let entry = |no: u32, name: &str, value: u16| {
        let mut bytes = whole(no);
        let at = bytes.windows(name.len()).position(|part| part == name.as_bytes()).unwrap() + name.len() + 4;
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    restore();
    std::fs::remove_file(at(4)).unwrap();
    for opened in [1, 5] {
        let e = said(opened);
        assert!(e.contains(&part(4)) && e.contains("open the file"), "{e}");
    }
    std::fs::write(at(4), whole(2)).unwrap();
    let e = said(1);
    assert!(e.contains(&part(4)) && e.contains("expected part 4 of 5, found part 2 of 5"), "{e}");
    std::fs::write(at(4), &whole(4)[..11000]).unwrap();
    let e = said(1);
    assert!(e.contains(&part(4)) && e.contains("blk."), "{e}");
    // The second part again, with another number.
    std::fs::write(at(4), entry(2, "split.no", 3)).unwrap();
    let e = said(2);
    assert!(e.contains(&part(4)) && e.contains("tensors"), "{e}");
    restore();
    std::fs::write(at(3), entry(3, "split.tensors.count", 25)).unwrap();
    let e = said(1);
    assert!(e.contains(&part(3)) && e.contains("as in the first part"), "{e}");
    restore();
    (1..=PARTS).for_each(|no| std::fs::write(at(no), entry(no, "split.tensors.count", 25)).unwrap());
    let e = said(1);
    assert!(e.contains("25 tensors in all parts"), "{e}");
    restore();
    std::fs::write(at(2), entry(2, "split.count", 6)).unwrap();
    assert!(said(1).contains(&part(2)));
    std::fs::write(at(2), entry(2, "split.no", 7)).unwrap();
    let e = said(2);
    assert!(e.contains(&part(2)) && e.contains("a number below 5"), "{e}");
    std::fs::write(at(2), entry(2, "split.count", 9999)).unwrap();
    assert!(said(2).contains("9999"));
    let other = dir.path().join("m.gguf");
    std::fs::write(&other, whole(1)).unwrap();
    let e = GgufFile::open(&other).unwrap_err().to_string();
    assert!(e.contains("NAME-00001-of-00005.gguf") && e.contains("m.gguf"), "{e}");
    let e = load_gguf_bytes(&whole(1)).unwrap_err();
    assert!(e.is_unsupported() && e.to_string().contains("part 1 of 5 of a model"), "{e}");
}

/// Of a decoder with sinks and biases, each of them is needed.
#[test]
fn sinks_and_biases_that_are_wrong_are_named() {
    let said = |bytes: &[u8]| load_gguf_bytes(bytes).unwrap_err().to_string();
    for part in [
        "attn_sinks.weight",
        "attn_q.bias",
        "attn_v.bias",
        "attn_output.bias",
        "ffn_gate_inp.bias",
        "ffn_up_exps.bias",
    ] {
        let name = format!("blk.1.{part}");
        let other = name.replace("blk.1", "blk.7");
        let e = said(&changed("gpt_oss", name.as_bytes(), other.as_bytes()));
        assert!(e.contains(&name), "{part}: {e}");
    }
    // Sizes come after a name and the number of dimensions.
    let sized = |name: &str, at: usize, size: u64| {
        let mut bytes = std::fs::read(path("gpt_oss")).unwrap();
        let at = bytes.windows(name.len()).position(|part| part == name.as_bytes()).unwrap()
            + name.len()
            + 4
            + 8 * at;
        bytes[at..at + 8].copy_from_slice(&size.to_le_bytes());
        said(&bytes)
    };
    let e = sized("blk.0.attn_sinks.weight", 0, 3);
    assert!(e.contains("attn_sinks") && e.contains("4 elements"), "{e}");
    let e = sized("blk.0.ffn_down_exps.bias", 1, 3);
    assert!(e.contains("ffn_down_exps.bias") && e.contains("96 elements for each of 4 experts"), "{e}");
    // A window of another type: the number after a name and its type.
    let name = "gpt-oss.attention.sliding_window";
    let mut bytes = std::fs::read(path("gpt_oss")).unwrap();
    let at = bytes.windows(name.len()).position(|part| part == name.as_bytes()).unwrap() + name.len();
    bytes[at..at + 8].copy_from_slice(&[5u32.to_le_bytes(), (-8i32).to_le_bytes()].concat());
    let e = said(&bytes);
    assert!(e.contains(name) && e.contains("whole number"), "{e}");
    let e = said(&changed("gpt_oss", b"sliding_window", b"sliding_winner"));
    assert!(e.contains(name), "{e}");
}

/// What a mixture's settings say is checked against what its tensors are.
#[test]
fn experts_that_are_wrong_are_named() {
    let said = |name: &str, value: u32| {
        let mut bytes = std::fs::read(path("qwen3moe")).unwrap();
        let at = bytes.windows(name.len()).position(|part| part == name.as_bytes()).unwrap() + name.len() + 4;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        load_gguf_bytes(&bytes).unwrap_err().to_string()
    };
    let e = said("qwen3moe.expert_count", 0);
    assert!(e.contains("expert_count") && e.contains("a number of experts"), "{e}");
    let e = said("qwen3moe.expert_count", 7);
    assert!(e.contains("blk.0.ffn_gate_inp.weight") && e.contains("7 rows of 64"), "{e}");
    let e = said("qwen3moe.expert_used_count", 9);
    assert!(e.contains("1 to 8"), "{e}");
    let e = said("qwen3moe.expert_feed_forward_length", 64);
    assert!(e.contains("blk.0.ffn_gate_exps.weight") && e.contains("8 experts of 64 rows of 64"), "{e}");
}
