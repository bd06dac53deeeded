//! The fuzz targets' invariants over a few thousand mutations of small seeds, the same in every run.
//!
//! No input panics, none needs more than a bounded amount of memory, and what is read can be written
//! and read again. For longer runs `ONEPOOL_FUZZ_ROUNDS` is the number of mutations, `ONEPOOL_FUZZ_SEED` another
//! beginning of the numbers, and `ONEPOOL_FUZZ_MODELS` a folder of further ONNX models to begin with.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use onepool::graph::{Graph, TensorInfo};
use onepool::kernel::KernelId;
use onepool::loader::gguf::{load_gguf, load_gguf_bytes};
use onepool::loader::onnx::{load_onnx_bytes, read_tensor_pb, write_tensor_pb};
use onepool::loader::params::{read_factory, read_params, write_params};
use onepool::loader::tvm::{FunctionTable, GraphJson, TvmGraph};
use onepool::shape::{Dim, Shape};
use onepool::spirv::check::check_module;
use onepool::spirv::opencl_c::{OpenClImages, OpenClOptions, Planes, TexelFormats, translate};
use onepool::spirv::reflect::reflect;
use onepool::{DType, Session, Tensor};

/// What an environment variable says, or what holds without it.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a whole number"))
}

fn rounds() -> u64 {
    setting("ONEPOOL_FUZZ_ROUNDS", 3000)
}

/// Numbers that look random (xorshift).
struct Numbers(u64);

impl Numbers {
    fn begin() -> Self {
        Numbers(0x9E37_79B9_7F4A_7C15 ^ setting("ONEPOOL_FUZZ_SEED", 0))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// One to four changes of `seed`.
fn mutate(seed: &[u8], r: &mut Numbers) -> Vec<u8> {
    const NUMBERS: [&[u8]; 8] = [
        &[0xff; 8],
        &[0; 8],
        &[0x7f, 0xff, 0xff, 0xff],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
        b"-1",
        b"18446744073709551616",
        b"[[",
        b"\"",
    ];
    let mut bytes = seed.to_vec();
    for _ in 0..1 + r.below(4) {
        let at = r.below(bytes.len());
        match r.below(6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << r.below(8),
            1 if !bytes.is_empty() => bytes[at] = r.next() as u8,
            2 => bytes.truncate(at),
            3 => {
                let end = (at + r.below(16)).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let end = (at + r.below(64)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let to = r.below(bytes.len());
                bytes.splice(to..to, part);
            }
            _ => {
                let number = NUMBERS[r.below(NUMBERS.len())];
                let end = (at + r.below(number.len() + 1)).min(bytes.len());
                bytes.splice(at..end, number.iter().copied());
            }
        }
    }
    bytes
}

fn each_mutation(seeds: &[Vec<u8>], mut check: impl FnMut(&[u8])) {
    bound_memory();
    let mut r = Numbers::begin();
    for seed in seeds {
        check(seed);
    }
    for round in 0..rounds() {
        let seed = &seeds[(round % seeds.len() as u64) as usize];
        check(&mutate(seed, &mut r));
    }
}

/// An input that makes a reader ask for memory without bound ends the test.
#[cfg(target_os = "linux")]
fn bound_memory() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Some(8 << 30);
    setrlimit(Resource::As, Rlimit { current: limit, maximum: limit }).expect("a limit can be lowered");
}

#[cfg(not(target_os = "linux"))]
fn bound_memory() {}

/// A protocol buffer field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut len = bytes.len();
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend(bytes);
    out
}

/// A protocol buffer field of a small number.
fn number(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

fn node(op: &str, inputs: &[&str], output: &str, attribute: &[u8]) -> Vec<u8> {
    let mut node: Vec<u8> = inputs.iter().flat_map(|i| field(1, i.as_bytes())).collect();
    node.extend(field(2, output.as_bytes()));
    node.extend(field(4, op.as_bytes()));
    if !attribute.is_empty() {
        node.extend(field(5, attribute));
    }
    field(1, &node)
}

/// A model with inputs, a small and a large initializer, a constant and two operators; with a third one that has
/// a branch, but lacks the other.
fn onnx_seed(branched: bool) -> Vec<u8> {
    let value = |name: &str| {
        let dim = field(1, &number(1, 2));
        let tensor = [number(1, 1), field(2, &dim)].concat();
        [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
    };
    let small = Tensor::new([2], &[1.0f32, 2.0]).expect("it fits");
    let large = Tensor::new([400], &[0.5f32; 400]).expect("it fits");
    let branch = [node("Transpose", &["x"], "t", &[]), field(12, &field(1, b"t"))].concat();
    let then_branch = [field(1, b"then_branch"), field(6, &branch), vec![0xa0, 1, 5]].concat();
    let axis = [field(1, b"axis"), number(3, 0), vec![0xa0, 1, 2]].concat();
    let one = [field(1, b"value_int"), number(3, 1), vec![0xa0, 1, 2]].concat();
    let graph = [
        node("Concat", &["x", "w", "v"], "y", &axis),
        node("Constant", &[], "c", &one),
        node("Transpose", &["y"], "z", &[]),
        if branched { node("If", &["c"], "u", &then_branch) } else { Vec::new() },
        field(2, b"g"),
        field(5, &write_tensor_pb("w", &small)),
        field(5, &write_tensor_pb("v", &large)),
        field(11, &value("x")),
        field(12, &value("z")),
    ]
    .concat();
    [number(1, 8), field(7, &graph), field(8, &number(2, 13))].concat()
}

#[test]
fn onnx_models() {
    let tensor = write_tensor_pb("t", &Tensor::new([2, 2], &[1i64, 2, 3, 4]).expect("it fits"));
    let (mut loaded, mut read) = (0, 0);
    each_mutation(&[onnx_seed(true), onnx_seed(false), tensor], |bytes| {
        if let Ok(graph) = load_onnx_bytes(bytes, None) {
            loaded += 1;
            assert!(!graph.outputs().is_empty());
            let names: std::collections::BTreeSet<_> = graph.outputs().iter().map(|(name, _)| name).collect();
            assert_eq!(names.len(), graph.outputs().len());
        }
        if let Ok((name, tensor)) = read_tensor_pb(bytes) {
            read += 1;
            let (again, back) = read_tensor_pb(&write_tensor_pb(&name, &tensor)).expect("it was written so");
            assert_eq!((&name, tensor.info(), tensor.bytes()), (&again, back.info(), back.bytes()));
        }
    });
    assert!(loaded > 10 && read > 10, "{loaded} models and {read} tensors were read");
}

/// Outputs of `graph` on zeros, where it takes few of them; what a changed model asks for may be refused.
fn run(graph: Graph, fuse: bool) -> Result<Vec<Tensor>, onepool::Error> {
    let mut session = Session::builder().graph(graph).device("cpu").fuse(fuse).chains(fuse).build()?;
    for io in session.inputs() {
        let dims = io.shape.map_or(Vec::new(), |s| s.0.to_vec());
        let dims: Vec<usize> = dims.iter().map(|d| if let Dim::Known(n) = d { *n } else { 2 }).collect();
        let info = TensorInfo::new(io.dtype.unwrap_or(DType::F32), Shape::new(dims)?);
        if info.bytes() > 1 << 20 {
            return Ok(Vec::new());
        }
        let zeros = vec![0; info.bytes()];
        session.set_input(&io.name, &Tensor::from_bytes(info, &zeros)?)?;
    }
    session.run()?;
    session.outputs().iter().map(|io| session.get_output(&io.name)).collect()
}

#[test]
fn onnx_models_that_run() {
    let mut seeds = vec![onnx_seed(false)];
    let seed = load_onnx_bytes(&seeds[0], None).expect("the seed is sound");
    let found = run(seed, true).expect("the seed runs");
    let [z] = &found[..] else { panic!("{found:?}") };
    let want: Vec<f32> = [0.0, 0.0, 1.0, 2.0].into_iter().chain([0.5; 400]).collect();
    assert_eq!(z.as_slice::<f32>().expect("it is f32"), want);
    if let Ok(folder) = std::env::var("ONEPOOL_FUZZ_MODELS") {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            seeds.push(std::fs::read(entry.expect("an entry").path()).expect("a file"));
        }
    }
    let (mut ran, mut refused) = (0, 0);
    each_mutation(&seeds, |bytes| {
        if let Ok(graph) = load_onnx_bytes(bytes, None) {
            match (run(graph.clone(), true), run(graph, false)) {
                (Ok(fused), Ok(apart)) => {
                    ran += 1;
                    // These operators only move bytes, so that there is one right result.
                    let bytes =
                        |all: &[Tensor]| -> Vec<Vec<u8>> { all.iter().map(|t| t.bytes().to_vec()).collect() };
                    assert_eq!(bytes(&fused), bytes(&apart));
                }
                (Err(e), Err(_)) => refused += usize::from(!e.to_string().is_empty()),
                (one, other) => panic!("fused {one:?}, apart {other:?}"),
            }
        }
    });
    assert!(ran > 10, "{ran} ran, {refused} were refused");
}

fn params_seed() -> Vec<u8> {
    let a = Tensor::new([2, 3], &[1.0f32; 6]).expect("it fits");
    let b = Tensor::new([5], &[1u8; 5]).expect("it fits");
    let mut bytes = Vec::new();
    write_params(&mut bytes, [("weight", &a), ("b", &b)]).expect("memory takes it");
    bytes
}

/// A factory record with the parameters of [`params_seed`]: their names come before and the arrays after.
fn factory_seed() -> Vec<u8> {
    let list = params_seed();
    let word = |w: u64| w.to_le_bytes().to_vec();
    let texts = |texts: &[&str]| -> Vec<u8> {
        texts.iter().flat_map(|t| [word(t.len() as u64), t.as_bytes().to_vec()].concat()).collect()
    };
    let names = [word(2), texts(&["weight", "b"])].concat();
    let arrays = list[16 + names.len() + 8..].to_vec();
    [texts(&["{}"]), word(2), names, arrays, texts(&["default"])].concat()
}

#[test]
fn factories() {
    let seed = read_factory(&factory_seed()).expect("the seed is sound");
    assert_eq!(
        (seed.graph_json.as_str(), seed.module_name.as_str(), seed.params.len()),
        ("{}", "default", 2)
    );
    let mut read = 0;
    each_mutation(&[factory_seed()], |bytes| {
        if let Ok(factory) = read_factory(bytes) {
            read += 1;
            let names: std::collections::BTreeSet<_> = factory.params.iter().map(|(name, _)| name).collect();
            assert_eq!(names.len(), factory.params.len());
            assert!(factory.params.iter().all(|(_, t)| t.bytes().len() <= bytes.len()));
        }
    });
    assert!(read > 10, "mutations of data alone are read");
}

#[test]
fn params() {
    assert_eq!(read_params(&params_seed()).expect("the seed is sound").len(), 2);
    let mut read = 0;
    each_mutation(&[params_seed()], |bytes| {
        if let Ok(params) = read_params(bytes) {
            read += 1;
            let mut written = Vec::new();
            write_params(&mut written, params.iter().map(|(n, t)| (n.as_str(), t))).expect("memory takes it");
            let back = read_params(&written).expect("it was written so");
            for ((n, t), (m, u)) in params.iter().zip(&back) {
                assert_eq!((n, t.info(), t.bytes()), (m, u.info(), u.bytes()));
            }
        }
    });
    assert!(read > 10, "mutations of data alone are read");
}

const JSON: &str = r#"{"nodes":[{"op":"null","name":"x","inputs":[]},{"op":"null","name":"w","inputs":[]},
{"op":"tvm_op","name":"r","attrs":{"func_name":"__nop","flatten_data":"0","num_inputs":"1","num_outputs":"1"},"inputs":[[0,0,0]]},
{"op":"tvm_op","name":"c","attrs":{"func_name":"__copy","flatten_data":"1"},"inputs":[[2,0]],"control_deps":[1,2]},
{"op":"tvm_op","name":"k","attrs":{"func_name":"fused_reshape_3"},"inputs":[[3,0,0]]}],
"arg_nodes":[0,1],"heads":[[4,0,0],[2,0,0],[0,0,0]],"node_row_ptr":[0,1,2,3,4,5],"metadata":{"v":[1,"a"]},
"attrs":{"shape":["list_shape",[[2,2],[2],[4],[4],[4,1]]],"dltype":["list_str",["float32","int8","float32","float32","float32"]],
"storage_id":["list_int",[0,1,0,2,2]],"device_index":["list_int",[7,7,7,1,1]],
"storage_scope":["list_str",["","global","global.texture","",""]],"lazy_init_input":["list_str",["x"]]}}"#;

#[test]
fn tvm_graphs() {
    let make = |json| TvmGraph::new(json, Vec::new(), &FunctionTable::new());
    make(GraphJson::parse(JSON.as_bytes()).expect("the seed is sound")).expect("the seed is a graph");
    let mut read = 0;
    each_mutation(&[JSON.as_bytes().to_vec()], |bytes| {
        if let Ok(json) = GraphJson::parse(bytes) {
            read += 1;
            assert_eq!(GraphJson::parse(json.to_json().as_bytes()).expect("it was written so"), json);
            if let Ok(graph) = make(json) {
                assert!(!graph.graph().outputs().is_empty());
            }
        }
    });
    assert!(read > 10, "mutations of names alone are read");
}

/// Changes that keep a module's instructions apart: words, and copies of whole instructions.
fn mutate_words(seed: &[u32], r: &mut Numbers) -> Vec<u32> {
    let mut words = seed.to_vec();
    let starts: Vec<usize> = std::iter::successors(Some(5), |at| {
        let next = at + (seed.get(*at)? >> 16) as usize;
        (next < seed.len()).then_some(next)
    })
    .collect();
    for _ in 0..1 + r.below(4) {
        let start = starts[r.below(starts.len())];
        let count = (seed[start] >> 16) as usize;
        let at = start + r.below(count);
        match r.below(4) {
            // An operand: another id, or a small number.
            0 | 1 if at > start => words[at] = r.below(seed[3] as usize) as u32,
            2 => {
                // The same instruction in another place.
                let to = starts[r.below(starts.len())];
                let part: Vec<u32> = seed[start..start + count].to_vec();
                let room = (seed[to] >> 16) as usize;
                if room == part.len() {
                    words[to..to + room].copy_from_slice(&part);
                }
            }
            // Another operation of as many words.
            3 => words[start] = (words[start] & 0xffff_0000) | (r.below(400) as u32),
            _ => words[at] ^= 1 << r.below(32),
        }
    }
    words
}

fn kernels() -> Vec<&'static [u32]> {
    let names = [
        "pool_image_f32",
        "softmax_f32",
        "top_k_merge_f16",
        "gemm_row_tex4",
        "conv_tile_f32",
        "activation_f16",
        "lstm_f32",
    ];
    let mut seeds: Vec<&[u32]> =
        names.iter().filter_map(|name| KernelId::by_name(name)).map(|id| id.info().spirv()).collect();
    seeds.extend(KernelId::all().step_by(40).map(|id| id.info().spirv()));
    assert!(seeds.len() > 6);
    seeds
}

/// Modules as an application gives them: whole instructions changed, or any of their bytes.
#[test]
fn spirv_modules() {
    bound_memory();
    let (seeds, mut r) = (kernels(), Numbers::begin());
    let (mut sound, mut reflected) = (0, 0);
    for round in 0..2 * rounds() {
        let seed = seeds[(round % seeds.len() as u64) as usize];
        let words = match round % 3 {
            0 => {
                let bytes = mutate(&seed.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>(), &mut r);
                bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            _ => mutate_words(seed, &mut r),
        };
        reflected += u64::from(reflect(&words).is_ok());
        sound += u64::from(check_module(&words).is_ok());
    }
    assert!(sound > rounds() / 30 && reflected >= sound, "{sound} of {reflected} are sound");
}

#[test]
fn spirv_to_opencl_c() {
    bound_memory();
    let seeds = kernels();
    let images = OpenClImages { texels: TexelFormats::ALL, planes: Planes::Lines };
    let options = OpenClOptions { fp64: true, images, ..OpenClOptions::default() };
    let mut r = Numbers::begin();
    let mut translated = 0;
    for round in 0..2 * rounds() {
        let seed = seeds[(round % seeds.len() as u64) as usize];
        if let Ok(kernel) = translate(&mutate_words(seed, &mut r), &options) {
            translated += 1;
            assert!(kernel.source.contains(kernel.name));
        }
    }
    assert!(translated > rounds() / 30, "{translated} changed modules are still sound");
}

/// A small decoder's file, its metadata and weights.
fn gguf_seed() -> Vec<u8> {
    include_bytes!("../models/tiny_gguf/gemma3.gguf").to_vec()
}

/// Changes are in the first bytes, where metadata and the places of tensors are.
#[test]
fn gguf_files_never_panic() {
    bound_memory();
    let mut r = Numbers::begin();
    let seed = gguf_seed();
    assert!(load_gguf_bytes(&seed).is_ok());
    let all = seed.len();
    for round in 0..rounds().min(1500) {
        let part = [600, 16000, 24000][round as usize % 3].min(all);
        let bytes = [mutate(&seed[..part], &mut r), seed[part..].to_vec()].concat();
        if let Err(e) = load_gguf_bytes(&bytes) {
            assert!(!e.to_string().is_empty());
        }
    }
}

/// As [`gguf_files_never_panic`], of a mixture of experts.
#[test]
fn mixtures_in_gguf_files_never_panic() {
    bound_memory();
    let mut r = Numbers::begin();
    let seeds = [
        &include_bytes!("../models/tiny_gguf/qwen3moe.gguf")[..],
        // With sinks, biases and windows.
        include_bytes!("../models/tiny_gguf/gpt_oss.gguf"),
    ];
    for seed in seeds {
        assert!(load_gguf_bytes(seed).is_ok());
        for round in 0..rounds().min(900) {
            let part = [900, 12000, 24000][round as usize % 3].min(seed.len());
            let bytes = [mutate(&seed[..part], &mut r), seed[part..].to_vec()].concat();
            if let Err(e) = load_gguf_bytes(&bytes) {
                assert!(!e.to_string().is_empty());
            }
        }
    }
}

/// Parts of a model, one of them changed at a time.
#[test]
fn parts_of_gguf_files_never_panic() {
    bound_memory();
    let mut r = Numbers::begin();
    let whole = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny_gguf");
    let name = |no: u64| format!("parts-{:05}-of-00005.gguf", no + 1);
    let files: Vec<Vec<u8>> = (0..5).map(|no| std::fs::read(whole.join(name(no))).unwrap()).collect();
    let folder = tempfile::tempdir().unwrap();
    let write = |no: u64, bytes: &[u8]| std::fs::write(folder.path().join(name(no)), bytes).unwrap();
    (0..5).for_each(|no| write(no, &files[no as usize]));
    for round in 0..rounds().min(600) {
        let (no, opened) = (round % 5, round / 5 % 5);
        let file = &files[no as usize];
        let part = [200, 800][round as usize % 2].min(file.len());
        write(no, &[mutate(&file[..part], &mut r), file[part..].to_vec()].concat());
        if let Err(e) = load_gguf(&folder.path().join(name(opened))) {
            assert!(!e.to_string().is_empty());
        }
        write(no, file);
    }
    assert!(load_gguf(&folder.path().join(name(2))).is_ok());
}

/// Settings, tokenizers and chat templates of a language model's folder, one of them changed at a time.
#[cfg(feature = "generate")]
#[test]
fn folders_of_language_models_never_panic() {
    use onepool::generate::{Message, ModelFolder, Prompt};

    bound_memory();
    let mut r = Numbers::begin();
    let whole = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny_llm/fixed");
    let names = ["genai_config.json", "tokenizer.json", "tokenizer_config.json"];
    let files = names.map(|name| std::fs::read(whole.join(name)).unwrap());
    let read = |folder: &std::path::Path| {
        let folder = ModelFolder::open(folder)?;
        folder.tokens(Prompt::Chat(&[Message::new("user", "hello")]))?;
        folder.tokens(Prompt::Text("hello"))
    };
    assert!(read(&whole).is_ok());
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    names.iter().zip(&files).for_each(|(name, bytes)| write(name, bytes));
    let mut refused = 0;
    for round in 0..rounds().min(900) {
        let at = round as usize % names.len();
        write(names[at], &mutate(&files[at], &mut r));
        if let Err(e) = read(folder.path()) {
            assert!(!e.to_string().is_empty());
            refused += 1;
        }
        write(names[at], &files[at]);
    }
    assert!(refused > 0);
}
