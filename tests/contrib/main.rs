//! Nodes of com.microsoft's operators of language models give what `make.py` wrote next to them, on every device and
//! without another device in its place. Where a device has no kernel, the session says so.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/devices.rs"]
mod devices;

use devices::devices;
use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::loader::onnx::load_onnx_bytes;
use onepool::registry::Registry;
use onepool::{DType, Session, Tensor, TensorInfo};
use serde_json::Value;

fn read() -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contrib/cases.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).unwrap() as u8;
    hex.as_str().unwrap().as_bytes().chunks(2).map(|c| digit(c[0]) << 4 | digit(c[1])).collect()
}

/// The tensor that the numbers of `v` are; those of 8 bits are its bytes.
fn tensor(v: &Value) -> Tensor {
    let dims: Vec<usize> =
        v["dims"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap() as usize).collect();
    let all = v["values"].as_array().unwrap();
    let float = |v: &Value| v.as_f64().unwrap() as f32;
    let int = |v: &Value| v.as_i64().unwrap();
    match v["dtype"].as_str().unwrap() {
        "float32" => Tensor::new(dims, &all.iter().map(float).collect::<Vec<_>>()),
        "float16" => {
            Tensor::new(dims, &all.iter().map(|v| half::f16::from_f32(float(v))).collect::<Vec<_>>())
        }
        "bfloat16" => {
            Tensor::new(dims, &all.iter().map(|v| half::bf16::from_f32(float(v))).collect::<Vec<_>>())
        }
        "int32" => Tensor::new(dims, &all.iter().map(|v| int(v) as i32).collect::<Vec<_>>()),
        "int64" => Tensor::new(dims, &all.iter().map(int).collect::<Vec<_>>()),
        "uint8" => Tensor::new(dims, &all.iter().map(|v| int(v) as u8).collect::<Vec<_>>()),
        "float8_e4m3fn" => {
            let info = TensorInfo::new(DType::F8E4M3Fn, onepool::Shape::new(dims).unwrap());
            Tensor::from_bytes(info, &all.iter().map(|v| int(v) as u8).collect::<Vec<_>>())
        }
        other => panic!("numbers of {other}"),
    }
    .unwrap()
}

/// A session of the node of `case` on `context`, and nowhere else.
fn session(case: &Value, context: &Context) -> Result<Session, String> {
    let graph = load_onnx_bytes(&bytes(&case["model"]), None).map_err(|e| e.to_string())?;
    let builder = Session::builder().graph(graph).context(context.clone()).fallback(false);
    let mut session = builder.build().map_err(|e| e.to_string())?;
    for (name, value) in case["inputs"].as_object().unwrap() {
        // A node may ignore an input.
        if let Err(e) = session.set_input(name, &tensor(value)) {
            return Err(e.to_string());
        }
    }
    session.run().map_err(|e| e.to_string())?;
    Ok(session)
}

/// Whether devices but the CPU have no kernels for a case: those of `bfloat16`, and of conversions to `float8`.
fn is_of_the_cpu(name: &str) -> bool {
    name == "gated_add_projected" || name.starts_with("float8_weights_and_rows")
}

#[test]
fn nodes_give_what_is_expected_on_every_device() {
    let all = read();
    let mut failures = Vec::new();
    for context in devices() {
        let info = context.info();
        for case in all["cases"].as_array().unwrap() {
            let name = case["name"].as_str().unwrap();
            let session = match session(case, &context) {
                Err(e) if is_of_the_cpu(name) && !info.native => {
                    assert!(e.contains("kernel"), "{name} on {}: {e}", info.name);
                    continue;
                }
                Err(e) => {
                    failures.push(format!("{name} on {}: {e}", info.name));
                    continue;
                }
                Ok(session) => session,
            };
            let tolerance = case["tolerance"].as_f64().unwrap();
            for (output, want) in case["outputs"].as_object().unwrap() {
                let (got, want) = (session.get_output(output).unwrap(), tensor(want));
                if got.info() != want.info() {
                    failures.push(format!(
                        "{name} on {}: {output} is {}, not {}",
                        info.name,
                        got.info(),
                        want.info()
                    ));
                    continue;
                }
                let pairs = got.to_f32s().unwrap().into_iter().zip(want.to_f32s().unwrap());
                let far = |(g, w): &(f32, f32)| {
                    let near = f64::from((g - w).abs()) <= tolerance * f64::from(w.abs().max(1.0));
                    !near
                };
                if let Some((i, (g, w))) = pairs.enumerate().find(|(_, pair)| far(pair)) {
                    failures.push(format!("{name} on {}: {output}[{i}] is {g}, expected {w}", info.name));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} wrong:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn nodes_that_cannot_be_computed_are_refused_with_a_reason() {
    let context = Registry::with_defaults().open("cpu", &ContextDesc::default()).unwrap();
    for case in read()["refusals"].as_array().unwrap() {
        let says = case["says"].as_str().unwrap();
        match session(case, &context) {
            Ok(_) => panic!("not refused: {says}"),
            Err(e) => assert!(e.contains(says), "{e:?} does not say {says:?}"),
        }
    }
}
