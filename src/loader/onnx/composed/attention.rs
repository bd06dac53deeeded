//! What the transformer optimizer of onnxruntime writes: embeddings with their norm, and attention with its
//! projection, also of quantized weights.

use super::super::attribute::{float_attr, int_attr, ints_attr};
use super::Parts;
use crate::loader::error::LoadErrorKind;
use crate::loader::onnx::proto::data_type;

/// Where the operands of an attention are among a node's inputs.
struct Places {
    bias: usize,
    mask: usize,
    past: usize,
    added: Option<usize>,
}

/// X, weights of queries, keys and values, their bias, the mask, past keys and values, what is added to scores.
pub(super) fn attention(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    if parts.given(6) {
        return Err(LoadErrorKind::unsupported("Attention with a cache that past and present share"));
    }
    let y = parts.add("MatMul", vec![parts.input(0), parts.input(1)], Vec::new());
    attend(parts, y, &Places { bias: 2, mask: 3, past: 4, added: Some(5) })
}

/// X, weights, bias, scales of X and of the weights, the mask, zero points of X and of the weights, the past.
pub(super) fn quantized_attention(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let [a, b, sa, sb, za, zb] = [0, 1, 3, 4, 6, 7].map(|i| parts.input(i));
    let y = parts.add("MatMulInteger", vec![a, b, za, zb], Vec::new());
    let y = parts.add("Cast", vec![y], vec![int_attr("to", data_type::FLOAT.into())]);
    let y = parts.add("Mul", vec![y, sa], Vec::new());
    let y = parts.add("Mul", vec![y, sb], Vec::new());
    attend(parts, y, &Places { bias: 2, mask: 5, past: 8, added: None })
}

/// Ends with the attention of `y`, which holds queries, keys and values side by side.
fn attend(parts: &mut Parts<'_>, mut y: String, at: &Places) -> Result<(), LoadErrorKind> {
    if parts.int("do_rotary", 0)? != 0 {
        return Err(LoadErrorKind::unsupported("attention that projects and rotates"));
    }
    if parts.int("past_present_share_buffer", 0)? != 0 {
        return Err(LoadErrorKind::unsupported("attention with a cache that past and present share"));
    }
    if parts.given(at.bias) {
        y = parts.add("Add", vec![y, parts.input(at.bias)], Vec::new());
    }
    let operands = ["query", "key", "value"].map(|what| parts.fresh(what));
    let sizes = parts.attribute("qkv_hidden_sizes")?.map(|a| a.ints.clone()).unwrap_or_default();
    let (mut inputs, mut attributes) = (vec![y], vec![int_attr("axis", -1)]);
    if sizes.is_empty() && parts.opset >= 18 {
        attributes.push(int_attr("num_outputs", 3));
    } else if !sizes.is_empty() && parts.opset >= 13 {
        inputs.push(parts.numbers(&sizes));
    } else if !sizes.is_empty() {
        attributes.push(ints_attr("split", &sizes));
    }
    parts.push("Split", inputs, operands.to_vec(), attributes);

    let mut inputs = operands.to_vec();
    inputs.extend([String::new(), parts.input(at.mask)]);
    inputs.push(at.added.map(|i| parts.input(i)).unwrap_or_default());
    if parts.given(at.past) {
        for n in [0, 1] {
            let which = parts.add("Constant", Vec::new(), vec![int_attr("value_int", n)]);
            let from = vec![parts.input(at.past), which];
            inputs.push(parts.add("Gather", from, vec![int_attr("axis", 0)]));
        }
    }
    let kept = ["num_heads", "unidirectional", "mask_filter_value", "scale"];
    let attributes =
        parts.node.attribute.iter().filter(|a| kept.contains(&a.name.as_str())).cloned().collect();
    let mut outputs = vec![parts.output(0)];
    let present = parts.output(1);
    if present.is_empty() {
        parts.push_contrib("MultiHeadAttention", inputs, outputs, attributes);
        return Ok(());
    }
    let caches = ["present_key", "present_value"].map(|what| parts.fresh(what));
    outputs.extend(caches.clone());
    parts.push_contrib("MultiHeadAttention", inputs, outputs, attributes);
    let caches = caches.map(|cache| parts.with_axes("Unsqueeze", cache, &[0], Vec::new()));
    parts.push("Concat", caches.to_vec(), vec![present], vec![int_attr("axis", 0)]);
    Ok(())
}

/// Tokens, their segments, the three tables, scale and bias of the norm, the mask, positions.
pub(super) fn embeddings(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let tables = [2, 3, 4].map(|i| parts.given(i).then(|| (parts.input(i), None)));
    let [gamma, beta] = [5, 6].map(|i| parts.input(i));
    embed(parts, tables, [gamma, beta], parts.input(8))
}

/// As [`embeddings`], but tables and the norm are integers with scales and zero points after the mask.
pub(super) fn quantized_embeddings(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let grain = |parts: &Parts<'_>, i: usize| [6, 11].map(|n| parts.input(i.saturating_add(n)));
    let tables = [2, 3, 4].map(|i| parts.given(i).then(|| (parts.input(i), Some(grain(parts, i)))));
    let norm = [5, 6].map(|i| {
        let [scale, zero] = grain(parts, i);
        parts.add("DequantizeLinear", vec![parts.input(i), scale, zero], Vec::new())
    });
    embed(parts, tables, norm, String::new())
}

/// A table, and scale and zero point of one of integers.
type Table = Option<(String, Option<[String; 2]>)>;

fn embed(
    parts: &mut Parts<'_>,
    tables: [Table; 3],
    [gamma, beta]: [String; 2],
    positions: String,
) -> Result<(), LoadErrorKind> {
    let ids = parts.input(0);
    let [words, places, segments] = tables;
    let (Some((words, word_grain)), Some((places, place_grain))) = (words, places) else {
        return Err(LoadErrorKind::unexpected("tables of words and of positions", "an absent input"));
    };
    let rows = |parts: &mut Parts<'_>, table: String, which: String, grain: Option<[String; 2]>| {
        let rows = parts.add("Gather", vec![table, which], vec![int_attr("axis", 0)]);
        dequantized(parts, rows, grain)
    };
    let words = rows(parts, words, ids.clone(), word_grain);
    let places = if positions.is_empty() {
        let [zero, one, two] = [0, 1, 2].map(|n| parts.numbers(&[n]));
        let shape = parts.add("Shape", vec![ids.clone()], Vec::new());
        let len = parts.add("Slice", vec![shape, one, two, zero.clone()], Vec::new());
        let first = parts.add("Slice", vec![places, zero.clone(), len, zero], Vec::new());
        dequantized(parts, first, place_grain)
    } else {
        rows(parts, places, positions, place_grain)
    };
    let mut sum = parts.add("Add", vec![words, places], Vec::new());
    if let Some((table, grain)) = segments.filter(|_| parts.given(1)) {
        let which = parts.input(1);
        let more = rows(parts, table, which, grain);
        sum = parts.add("Add", vec![sum, more], Vec::new());
    }
    let total = parts.output(2);
    if !total.is_empty() {
        parts.push("Identity", vec![sum.clone()], vec![total], Vec::new());
    }
    // How many tokens of each sequence count; none of a sequence without a mask.
    let count = parts.output(1);
    if !count.is_empty() {
        let mask = if parts.given(7) {
            parts.input(7)
        } else {
            parts.add("Sub", vec![ids.clone(), ids], Vec::new())
        };
        let n = parts.with_axes("ReduceSum", mask, &[1], vec![int_attr("keepdims", 0)]);
        parts.push("Cast", vec![n], vec![count], vec![int_attr("to", data_type::INT32.into())]);
    }
    let epsilon = parts.attribute("epsilon")?.map_or(1e-12, |a| a.f.unwrap_or(0.0));
    let attributes = vec![int_attr("axis", -1), float_attr("epsilon", epsilon)];
    let y = parts.output(0);
    parts.push("LayerNormalization", vec![sum, gamma, beta], vec![y], attributes);
    Ok(())
}

fn dequantized(parts: &mut Parts<'_>, x: String, grain: Option<[String; 2]>) -> String {
    match grain {
        Some([scale, zero]) => parts.add("DequantizeLinear", vec![x, scale, zero], Vec::new()),
        None => x,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use prost::Message as _;

    use crate::graph::Tensor;
    use crate::loader::onnx::attribute::{int_attr, ints_attr};
    use crate::loader::onnx::load_onnx_bytes;
    use crate::loader::onnx::proto::{AttributeProto, NodeProto, OperatorSetIdProto, TensorProto, data_type};
    use crate::loader::onnx::tests::{graph, model, node, with};
    use crate::ops::test_util::{assert_near, values};
    use crate::session::Session;

    pub(in super::super) fn contrib(
        op: &str,
        inputs: &[&str],
        outputs: &[&str],
        attrs: Vec<AttributeProto>,
    ) -> NodeProto {
        NodeProto { domain: "com.microsoft".into(), ..with(node(op, inputs, outputs), attrs) }
    }

    pub(in super::super) fn floats(name: &str, dims: &[i64], seed: u64) -> TensorProto {
        let n = dims.iter().product::<i64>() as usize;
        TensorProto {
            name: name.into(),
            data_type: data_type::FLOAT,
            dims: dims.to_vec(),
            float_data: values(n, seed),
            ..Default::default()
        }
    }

    fn integers(name: &str, data_type: i32, dims: &[i64], values: &[i32]) -> TensorProto {
        TensorProto {
            name: name.into(),
            data_type,
            dims: dims.to_vec(),
            int32_data: values.to_vec(),
            ..Default::default()
        }
    }

    /// All outputs of a model of constants.
    pub(in super::super) fn run(
        nodes: Vec<NodeProto>,
        constants: &[TensorProto],
        outputs: &[&str],
        opset: i64,
    ) -> Vec<Tensor> {
        let mut g = graph(&[], nodes, outputs);
        g.initializer = constants.to_vec();
        let mut m = model(g);
        m.opset_import = [("", opset), ("com.microsoft", 1)]
            .map(|(domain, version)| OperatorSetIdProto { domain: domain.into(), version })
            .to_vec();
        let graph = load_onnx_bytes(&m.encode_to_vec(), None).unwrap();
        let mut session = Session::builder().graph(graph).device("cpu").build().unwrap();
        session.run().unwrap();
        outputs.iter().map(|name| session.get_output(name).unwrap()).collect()
    }

    pub(in super::super) fn wide(t: &Tensor) -> Vec<f64> {
        t.to_f32s().unwrap().into_iter().map(f64::from).collect()
    }

    /// Two sequences of three vectors of 6, two heads of 4 for queries and keys and of 2 for values.
    const LENGTHS: [i32; 6] = [1, 1, 0, 1, 1, 1];

    fn operands() -> Vec<TensorProto> {
        vec![
            floats("x", &[2, 3, 6], 1),
            floats("w", &[6, 20], 2),
            floats("b", &[20], 3),
            integers("mask", data_type::INT32, &[2, 3], &LENGTHS),
            integers("valid", data_type::INT32, &[2], &[2, 3]),
            TensorProto {
                name: "sizes".into(),
                data_type: data_type::INT64,
                dims: vec![3],
                int64_data: vec![8, 8, 4],
                ..Default::default()
            },
            integers("keep", data_type::BOOL, &[2, 1, 1, 3], &LENGTHS),
        ]
    }

    #[test]
    fn attention_projects_and_attends() {
        let sizes = || vec![int_attr("num_heads", 2), ints_attr("qkv_hidden_sizes", &[8, 8, 4])];
        let want = {
            let attrs = vec![int_attr("q_num_heads", 2), int_attr("kv_num_heads", 2)];
            let nodes = vec![
                node("MatMul", &["x", "w"], &["p"]),
                node("Add", &["p", "b"], &["s"]),
                with(node("Split", &["s", "sizes"], &["q", "k", "v"]), [int_attr("axis", 2)]),
                with(node("Attention", &["q", "k", "v", "keep"], &["y"]), attrs),
            ];
            run(nodes, &operands(), &["y"], 23)
        };
        for mask in ["mask", "valid"] {
            for opset in [11, 14, 18] {
                let nodes = vec![contrib("Attention", &["x", "w", "b", mask], &["y"], sizes())];
                let got = run(nodes, &operands(), &["y"], opset);
                assert_near(&got[0], &wide(&want[0]), 1e-5);
            }
        }
    }

    #[test]
    fn attention_continues_from_its_past() {
        let attrs = || vec![int_attr("num_heads", 2), int_attr("unidirectional", 1)];
        let slice =
            |from: &str, to: &str, range: [&str; 2]| node("Slice", &[from, range[0], range[1], "one"], &[to]);
        let at = |name: &str, n: i32| integers(name, data_type::INT32, &[1], &[n]);
        let constants = vec![
            floats("x", &[2, 3, 8], 1),
            floats("w", &[8, 24], 2),
            floats("b", &[24], 3),
            floats("none", &[2, 2, 2, 0, 4], 4),
            at("zero", 0),
            at("one", 1),
            at("two", 2),
            at("three", 3),
        ];
        for opset in [12, 13] {
            let nodes = vec![
                contrib("Attention", &["x", "w", "b"], &["whole"], attrs()),
                slice("x", "first", ["zero", "two"]),
                slice("x", "last", ["two", "three"]),
                contrib("Attention", &["first", "w", "b", "", "none"], &["a", "past"], attrs()),
                contrib("Attention", &["last", "w", "b", "", "past"], &["c", "present"], attrs()),
                with(node("Concat", &["a", "c"], &["y"]), [int_attr("axis", 1)]),
            ];
            let got = run(nodes, &constants, &["whole", "y", "present"], opset);
            assert_near(&got[1], &wide(&got[0]), 1e-5);
            assert_eq!(got[2].shape().dims(), [2, 2, 2, 3, 4]);
        }
    }

    #[test]
    fn quantized_attention_has_its_numbers_back() {
        // (x - 3) / 2 times (w - 1) / 4 for weights of one, and a bias.
        let bytes = |seed: i32, n: i32| (0..n).map(|i| (i * 7 + seed) % 11).collect::<Vec<_>>();
        let (x, w) = (bytes(1, 48), bytes(5, 192));
        let scaled = |v: &[i32], zero: i32, scale: f32| -> Vec<f32> {
            v.iter().map(|v| (*v - zero) as f32 * scale).collect()
        };
        let number = |name: &str, v: f32| TensorProto {
            name: name.into(),
            data_type: data_type::FLOAT,
            float_data: vec![v],
            ..Default::default()
        };
        let constants = vec![
            integers("xq", data_type::UINT8, &[2, 3, 8], &x),
            integers("wq", data_type::INT8, &[8, 24], &w),
            TensorProto { float_data: scaled(&x, 3, 0.5), ..floats("x", &[2, 3, 8], 1) },
            TensorProto { float_data: scaled(&w, 1, 0.25), ..floats("w", &[8, 24], 1) },
            floats("b", &[24], 3),
            number("half", 0.5),
            number("quarter", 0.25),
            integers("three", data_type::UINT8, &[], &[3]),
            integers("one", data_type::INT8, &[], &[1]),
        ];
        let heads = || vec![int_attr("num_heads", 2)];
        let inputs = ["xq", "wq", "b", "half", "quarter", "", "three", "one"];
        let nodes = vec![
            contrib("QAttention", &inputs, &["y"], heads()),
            contrib("Attention", &["x", "w", "b"], &["z"], heads()),
        ];
        let got = run(nodes, &constants, &["y", "z"], 14);
        assert_near(&got[0], &wide(&got[1]), 1e-4);
    }

    #[test]
    fn embeddings_are_summed_and_normalized() {
        let mut constants = vec![
            integers("ids", data_type::INT32, &[2, 3], &[4, 0, 2, 1, 1, 3]),
            integers("segments", data_type::INT32, &[2, 3], &[0, 1, 1, 0, 0, 1]),
            integers("mask", data_type::INT32, &[2, 3], &LENGTHS),
            integers("back", data_type::INT32, &[2, 3], &[2, 1, 0, 2, 1, 0]),
            integers("ahead", data_type::INT32, &[1, 3], &[0, 1, 2]),
            floats("words", &[5, 4], 1),
            floats("places", &[6, 4], 2),
            floats("kinds", &[2, 4], 3),
            floats("g", &[4], 4),
            floats("b", &[4], 5),
        ];
        let expected = |positions: &str| {
            vec![
                node("Gather", &["words", "ids"], &["w"]),
                node("Gather", &["places", positions], &["p"]),
                node("Gather", &["kinds", "segments"], &["s"]),
                node("Add", &["w", "p"], &["wp"]),
                node("Add", &["wp", "s"], &["sum"]),
                node("LayerNormalization", &["sum", "g", "b"], &["y"]),
            ]
        };
        let inputs = ["ids", "segments", "words", "places", "kinds", "g", "b", "mask"];
        let epsilon = || vec![super::float_attr("epsilon", 1e-5)];
        for (positions, opset) in [("ahead", 11), ("back", 17)] {
            let want = run(expected(positions), &constants, &["y", "sum"], 17);
            let mut inputs = inputs.to_vec();
            if positions == "back" {
                inputs.push(positions);
            }
            let nodes = vec![contrib("EmbedLayerNormalization", &inputs, &["y", "n", "sum"], epsilon())];
            let got = run(nodes, &constants, &["y", "n", "sum"], opset);
            assert_near(&got[0], &wide(&want[0]), 1e-5);
            assert_eq!(got[1].as_slice::<i32>().unwrap(), [2, 3]);
            assert_near(&got[2], &wide(&want[1]), 1e-6);
        }
        // Without segments, a mask, and tables of numbers.
        let table = |name: &str, n: i32| {
            integers(name, data_type::UINT8, &[i64::from(n), 4], &(0..4 * n).collect::<Vec<_>>())
        };
        constants.extend([
            table("wq", 5),
            table("pq", 6),
            integers("gq", data_type::UINT8, &[4], &[9, 5, 1, 3]),
            integers("zero", data_type::UINT8, &[], &[3]),
            TensorProto { dims: Vec::new(), ..floats("scale", &[1], 6) },
        ]);
        let scales = ["scale"; 5];
        let zeros = ["zero"; 5];
        let inputs = [&["ids", "", "wq", "pq", "", "gq", "gq", ""][..], &scales, &zeros].concat();
        let dequantize = |x: &str, y: &str| node("DequantizeLinear", &[x, "scale", "zero"], &[y]);
        let nodes = vec![
            contrib("QEmbedLayerNormalization", &inputs, &["y", "n"], epsilon()),
            dequantize("wq", "wf"),
            dequantize("pq", "pf"),
            dequantize("gq", "gf"),
            contrib("EmbedLayerNormalization", &["ids", "", "wf", "pf", "", "gf", "gf"], &["z"], epsilon()),
        ];
        let got = run(nodes, &constants, &["y", "n", "z"], 13);
        assert_near(&got[0], &wide(&got[2]), 1e-5);
        assert_eq!(got[1].as_slice::<i32>().unwrap(), [0, 0]);
    }
}
