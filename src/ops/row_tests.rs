//! Rows claim what their operators do: every row's example call is inferred and lowered with each element type.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::{AttrMap, AttrReader, AttrValue, FAMILIES, Fact, Lowering, OpCx, OpDef, Operator, cast};
use crate::backend::DeviceInfo;
use crate::dtype::DType;
use crate::graph::{Graph, GraphBuilder, Tensor, TensorInfo};
use crate::kernel::KernelId;
use crate::loader::onnx::NEWEST_OPSET;
use crate::plan::evaluate;
use crate::registry::Registry;
use crate::shape::Shape;

/// An example call: inputs separated by spaces, then a semicolon and attributes. An input is `-` where it is left out, or
/// a type, sizes and, where it is known before the run, its elements; `T` is each type in turn.
struct Example<'a> {
    inputs: Vec<&'a str>,
    attrs: Vec<(&'a str, &'a str)>,
    outputs: usize,
}

impl<'a> Example<'a> {
    fn read(text: &'a str) -> Self {
        let (inputs, rest) = text.split_once(';').unwrap_or((text, ""));
        let (mut attrs, mut outputs) = (Vec::new(), 1);
        for word in rest.split_whitespace() {
            match (word.strip_prefix("->"), word.split_once('=')) {
                (Some(count), _) => outputs = count.parse().unwrap(),
                (None, attr) => attrs.push(attr.unwrap()),
            }
        }
        Example { inputs: inputs.split_whitespace().collect(), attrs, outputs }
    }

    fn attrs(&self, t: DType) -> AttrMap {
        let value = |text: &str| {
            let list = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
            let words = || list.unwrap_or(text).split(',').filter(|word| !word.is_empty());
            let text_of = |word: &str| Some(word.strip_prefix('\'')?.strip_suffix('\'')?.as_bytes().to_vec());
            if let Some(counts) = text.strip_prefix("graph") {
                let counts: Vec<usize> = counts.split('/').map(|n| n.parse().unwrap()).collect();
                AttrValue::Graph(Box::new(body(counts[0], counts[1])))
            } else if let Some(tensor) = text.strip_prefix('@') {
                AttrValue::Tensor(fact(tensor, t).unwrap().value.unwrap())
            } else if text == "T" {
                AttrValue::Int(number_of(t))
            } else if list.is_some() && text.contains('\'') {
                AttrValue::Strs(words().map(|word| text_of(word).unwrap()).collect())
            } else if let Some(text) = text_of(text) {
                AttrValue::Str(text)
            } else if list.is_some() && text.contains('.') {
                AttrValue::Floats(words().map(|word| word.parse().unwrap()).collect())
            } else if list.is_some() {
                AttrValue::Ints(words().map(|word| word.parse().unwrap()).collect())
            } else if text.contains('.') {
                AttrValue::Float(text.parse().unwrap())
            } else {
                AttrValue::Int(text.parse().unwrap())
            }
        };
        self.attrs.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect()
    }
}

/// ONNX's number of `t`; 0 is none.
fn number_of(t: DType) -> i64 {
    let is_t = |n: &i64| {
        let attrs: AttrMap = [("to".to_owned(), AttrValue::Int(*n))].into();
        AttrReader::new(&attrs, 1, 1).dtype_opt("to") == Ok(Some(t))
    };
    (1..64).find(is_t).unwrap_or(0)
}

/// A graph of so many inputs, whose outputs are its first input or else a constant.
fn body(inputs: usize, outputs: usize) -> Graph {
    let mut g = GraphBuilder::new("body");
    let ids: Vec<_> = (0..inputs).map(|i| g.declare_input(format!("i{i}"), None, None)).collect();
    let one = g.constant("one", Tensor::scalar(1f32));
    (0..outputs).for_each(|o| g.output(format!("o{o}"), ids.first().copied().unwrap_or(one)));
    g.build().unwrap()
}

/// What an input is known to be, where type `t` has such elements.
fn fact(text: &str, t: DType) -> Option<Fact> {
    let (info, values) = text.split_once('=').map_or((text, None), |(info, values)| (info, Some(values)));
    let (name, sizes) = info.strip_suffix(']').unwrap().split_once('[').unwrap();
    let dtype = match name {
        "T" => t,
        name => *DType::ALL.iter().find(|d| d.name() == name).unwrap(),
    };
    let dims: Vec<usize> = sizes.split(',').filter(|s| !s.is_empty()).map(|s| s.parse().unwrap()).collect();
    let Some(values) = values else {
        return Some(Fact::of(TensorInfo::new(dtype, Shape::new(dims).unwrap())));
    };
    let values: Vec<f32> = values.split(',').map(|v| v.parse().unwrap()).collect();
    let n: usize = dims.iter().product();
    let values: Vec<f32> = values.iter().copied().cycle().take(n).collect();
    let value = Tensor::new(dims, &values).unwrap();
    if dtype == DType::F32 {
        return Some(Fact::known(value));
    }
    let op = cast(dtype);
    let cx = OpCx::for_infer(vec![Some(Fact::known(value))], 1);
    let infos = op.infer(&cx).ok()?;
    let cx = cx.with_outputs(infos);
    Some(Fact::known(evaluate(op.as_ref(), &cx, &op.cpu(&cx).ok()?).ok()?.pop()?))
}

/// A device that has what any kernel needs.
fn able() -> DeviceInfo {
    let mut info = Registry::with_defaults().find("sim").unwrap();
    info.features = KernelId::all().fold(info.features, |all, id| all.union(id.info().requires));
    info
}

/// The types that `def` takes in its example, whether devices have kernels for one, and what is wrong where it takes none.
fn measured(def: &OpDef, example: &Example<'_>, device: &DeviceInfo) -> (Vec<DType>, bool, String) {
    let (mut types, mut gpu, mut wrong) = (Vec::new(), false, String::new());
    for t in DType::ALL {
        let attrs = example.attrs(t);
        let mut reader = AttrReader::new(&attrs, example.inputs.len(), example.outputs);
        let op: Arc<dyn Operator> = match (def.read)(&mut reader, NEWEST_OPSET) {
            Ok(op) => op,
            Err(e) => {
                wrong = e.to_string();
                continue;
            }
        };
        if op.control().is_some() {
            types.push(t);
            continue;
        }
        let facts: Option<Vec<Option<Fact>>> = example
            .inputs
            .iter()
            .map(|text| if *text == "-" { Some(None) } else { fact(text, t).map(Some) })
            .collect();
        let Some(facts) = facts else { continue };
        let cx = OpCx::for_infer(facts, example.outputs);
        let found = op.infer(&cx).and_then(|infos| {
            let cx = cx.with_outputs(infos);
            if op.host(&cx).is_some() {
                return Ok(());
            }
            op.cpu(&cx)?;
            gpu |= op.gpu(&cx, &mut Lowering::new(device)).is_ok();
            Ok(())
        });
        match found {
            Ok(()) => types.push(t),
            Err(e) if t == DType::F32 || wrong.is_empty() => wrong = e.to_string(),
            Err(_) => {}
        }
    }
    (types, gpu, wrong)
}

#[test]
fn rows_claim_what_their_operators_do() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops/examples.txt");
    let text = fs::read_to_string(path).unwrap();
    let mut examples: BTreeMap<&str, &str> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (names, call) = line.split_once(':').unwrap();
        for name in names.split_whitespace() {
            assert!(examples.insert(name, call).is_none(), "{name} has two examples");
        }
    }
    let (device, mut wrong) = (able(), Vec::new());
    for def in FAMILIES.iter().flat_map(|family| family.ops) {
        let name = match def.domain {
            "" => def.name.to_owned(),
            domain => format!("{domain}/{}", def.name),
        };
        let (mut types, mut gpu, mut why) = (Vec::new(), false, String::new());
        for call in examples.remove(name.as_str()).unwrap_or("T[2,3]").split('|') {
            let (more, on_device, refused) = measured(def, &Example::read(call), &device);
            types.extend(more);
            gpu |= on_device;
            why = refused;
        }
        let names = |types: &[DType]| types.iter().map(|d| d.name()).collect::<Vec<_>>().join(" ");
        if types.is_empty() {
            wrong.push(format!("{name}: its example is refused: {why}"));
            continue;
        }
        let more: Vec<DType> = types.iter().copied().filter(|t| !def.types.contains(t)).collect();
        let less: Vec<DType> = def.types.iter().copied().filter(|t| !types.contains(t)).collect();
        if !more.is_empty() || !less.is_empty() {
            wrong.push(format!("{name}: takes also [{}], not [{}]; {why}", names(&more), names(&less)));
        }
        if gpu != def.gpu {
            wrong.push(format!("{name}: has device kernels: {gpu}"));
        }
    }
    wrong.extend(examples.keys().map(|name| format!("{name}: there is an example and no row")));
    assert!(wrong.is_empty(), "{} claims are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
