//! Models of the transformers library as both exporters of PyTorch write them, of `models/exports`, some converted to
//! `float16` and codes after it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use onepool::generate::Prompt;
use onepool::{Session, Tensor, TensorInfo};
use serde::Deserialize;

use super::devices::devices;
use super::{cpu, exactly, open};

/// What `make.py` noted: a shape and the elements of each tensor.
#[derive(Deserialize)]
struct Io {
    inputs: BTreeMap<String, (Vec<usize>, Vec<f64>)>,
    outputs: BTreeMap<String, (Vec<usize>, Vec<f64>)>,
    #[serde(default)]
    prompt: Vec<u32>,
    #[serde(default)]
    tokens: Vec<u32>,
}

/// A model, and how much attention, how many rotations and how many normalizations it spells out.
struct Export {
    name: &'static str,
    attention: usize,
    rotations: usize,
    norms: usize,
    text: bool,
}

const fn export(name: &'static str, [attention, rotations, norms]: [usize; 3], text: bool) -> Export {
    Export { name, attention, rotations, norms, text }
}

const EXPORTS: [Export; 13] = [
    export("llama-ts", [2, 4, 5], true),
    export("llama-dy", [2, 4, 5], true),
    export("qwen3-ts", [2, 4, 9], true),
    export("gemma3_text-dy", [2, 4, 13], true),
    export("phi-ts", [2, 4, 0], true),
    export("gpt2-ts", [2, 0, 0], true),
    export("cohere-dy", [2, 4, 3], true),
    export("gemma3_text-dy-fp16", [2, 4, 13], true),
    export("phi-ts-fp16", [2, 4, 0], true),
    export("llama-ts-q4f16", [2, 4, 5], true),
    export("bert-dy", [2, 0, 0], false),
    export("siglip_vision_model-dy", [3, 0, 0], false),
    export("whisper-dy", [2, 0, 0], false),
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/exports").join(name)
}

fn io(name: &str) -> Io {
    serde_json::from_str(&std::fs::read_to_string(folder(name).join("io.json")).unwrap()).unwrap()
}

fn session(name: &str, context: &onepool::device::Context) -> Session {
    Session::builder().model(folder(name).join("model.onnx")).context(context.clone()).build().unwrap()
}

/// The inputs of a session, in its order.
fn inputs(session: &Session, io: &Io) -> Vec<(String, Tensor)> {
    let given = session.inputs().into_iter().map(|input| {
        let (dims, values) = &io.inputs[&input.name];
        let tensor = match input.dtype.is_some_and(|dtype| dtype.is_float()) {
            true => Tensor::new(dims.clone(), &values.iter().map(|x| *x as f32).collect::<Vec<_>>()),
            false => Tensor::new(dims.clone(), &values.iter().map(|x| *x as i64).collect::<Vec<_>>()),
        };
        (input.name, tensor.unwrap())
    });
    given.collect()
}

#[test]
fn what_exporters_spell_out_is_found() {
    for Export { name, attention, rotations, norms, .. } in EXPORTS {
        let session = session(name, &cpu());
        let infos: Vec<TensorInfo> =
            inputs(&session, &io(name)).iter().map(|(_, tensor)| tensor.info().clone()).collect();
        let plan = session.plan(&infos).unwrap();
        let changes = |pass: &str| plan.report.passes.iter().find(|p| p.name == pass).unwrap().changes;
        let found = ["recognize_attention", "recognize_rotations", "recognize_norms"].map(changes);
        assert_eq!(found, [attention, rotations, norms], "{name}");
        assert!(plan.report.nodes.iter().all(|node| node.op != "Softmax"), "{name}");
    }
}

#[test]
fn outputs_are_those_of_their_makers_on_every_device() {
    for context in devices() {
        for Export { name, .. } in EXPORTS {
            let (mut session, io) = (session(name, &context), io(name));
            for (input, tensor) in inputs(&session, &io) {
                session.set_input(&input, &tensor).unwrap();
            }
            session.run().unwrap();
            for (output, (dims, expected)) in &io.outputs {
                let got = session.get_output(output).unwrap();
                assert_eq!(got.shape().dims(), &dims[..], "{name}: {output}");
                let most = expected.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
                let got = got.to_f32s().unwrap();
                let far =
                    got.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
                let part = if name.ends_with("16") { 1e-2 } else { 2e-4 };
                assert!(
                    far <= part * most,
                    "{name} on {}: {output} differs by {far} of {most}",
                    context.info().name
                );
            }
        }
    }
}

#[test]
fn texts_are_those_of_onnxruntime_and_caches_are_updated_in_place() {
    for context in devices() {
        let device = &context.info().name;
        for Export { name, text, .. } in EXPORTS {
            if !text {
                continue;
            }
            let io = io(name);
            let mut generator = open(&folder(name), &context, None).unwrap();
            assert!(generator.remarks().is_empty(), "{name} on {device}: {:?}", generator.remarks());
            let options = exactly(io.tokens.len());
            let made =
                generator.generate(Prompt::Tokens(&io.prompt), &options, |_| ControlFlow::Continue(()));
            assert_eq!(made.unwrap().tokens, io.tokens, "{name} on {device}");
        }
    }
}
