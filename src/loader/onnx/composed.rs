//! Operators of com.microsoft that the quantizer and the optimizer of onnxruntime write and that are others in a
//! row: nodes of those take their place before a graph is made, so that they run where those do.

mod attention;
mod decoder;
mod image;
mod sparse;

use super::attribute::{float_attr, int_attr, ints_attr};
use super::proto::{AttributeProto, FunctionProto, ModelProto, NodeProto, OperatorSetIdProto, data_type};
use crate::loader::error::{ErrorLocation, LoadError, LoadErrorKind};

type Compose = fn(&mut Parts<'_>) -> Result<(), LoadErrorKind>;

/// The operators, sorted by name.
const OPERATORS: &[(&str, Compose)] = &[
    ("Attention", attention::attention),
    ("BiasAdd", image::bias_add),
    ("BiasSplitGelu", image::bias_split_gelu),
    ("DecoderMaskedMultiHeadAttention", decoder::one_query),
    ("DynamicQuantizeLSTM", lstm),
    ("DynamicQuantizeMatMul", dynamic_product),
    ("EmbedLayerNormalization", attention::embeddings),
    ("GatedAdd", decoder::gated_add),
    ("GatedRMSNorm", decoder::gated_norm),
    ("GroupNorm", image::group_norm),
    ("LinearAttentionGate", decoder::linear_gate),
    ("MatMulBlockQuantizedFp4Weight", decoder::float4_product),
    ("MatMulBlockQuantizedFp8Weight", decoder::float8_product),
    ("MatMulIntegerToFloat", integer_product),
    ("NhwcConv", image::conv),
    ("PackedMultiHeadAttention", decoder::packed_rows),
    ("QAttention", attention::quantized_attention),
    ("QEmbedLayerNormalization", attention::quantized_embeddings),
    ("QGemm", gemm),
    ("QLinearAdd", |p| binary(p, "Add")),
    ("QLinearAveragePool", average_pool),
    ("QLinearConcat", concat),
    ("QLinearGlobalAveragePool", |p| unary(p, "GlobalAveragePool")),
    ("QLinearLeakyRelu", |p| unary(p, "LeakyRelu")),
    ("QLinearMul", |p| binary(p, "Mul")),
    ("QLinearSigmoid", |p| unary(p, "Sigmoid")),
    ("QLinearSoftmax", |p| unary(p, "Softmax")),
    ("QLinearWhere", select),
    ("SkipGroupNorm", image::skip_group_norm),
    ("SparseAttention", sparse::sparse),
];

/// Those whose nodes are of opset [`NEWER`], whatever the model's is.
const OF_NEWER: &[&str] = &[
    "BiasSplitGelu",
    "CausalConvWithState",
    "DecoderMaskedMultiHeadAttention",
    "GatedAdd",
    "GatedRMSNorm",
    "GroupNorm",
    "LinearAttentionGate",
    "MatMulBlockQuantizedFp4Weight",
    "MatMulBlockQuantizedFp8Weight",
    "PackedMultiHeadAttention",
    "SkipGroupNorm",
    "SparseAttention",
];
const NEWER: i64 = 26;

fn find(domain: &str, op: &str) -> Option<Compose> {
    let found = OPERATORS.iter().find(|(name, _)| *name == op)?;
    (domain == "com.microsoft").then_some(found.1)
}

/// What takes the place of `node`.
fn compose_of(node: &NodeProto) -> Option<Compose> {
    let set = |name: &str| node.attribute.iter().any(|a| a.name == name && a.i.is_some_and(|i| i != 0));
    match (node.domain.as_str(), node.op_type.as_str()) {
        ("com.microsoft", "FusedConv") if node.input.len() > 3 => Some(summed_conv),
        ("com.microsoft", "CausalConvWithState") if set("channels_last") => Some(decoder::channels_last),
        (domain, op) => find(domain, op),
    }
}

/// Whether an operator is put together from others here.
pub(super) fn is_composed(domain: &str, op: &str) -> bool {
    find(domain, op).is_some()
}

/// Their names.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    OPERATORS.iter().map(|(name, _)| *name)
}

/// Puts others in the place of all such nodes; `opset` is the model's of the default domain.
pub(super) fn expand(model: &mut ModelProto, opset: i64) -> Result<(), LoadError> {
    let mut newer = Vec::new();
    for function in &mut model.functions {
        expand_nodes(&mut function.node, opset, &mut newer)?;
    }
    model.graph.as_mut().map_or(Ok(()), |graph| expand_nodes(&mut graph.node, opset, &mut newer))?;
    model.functions.append(&mut newer);
    Ok(())
}

// How deep graphs are nested is bounded by the walk that found them.
fn expand_nodes(
    nodes: &mut Vec<NodeProto>,
    opset: i64,
    newer: &mut Vec<FunctionProto>,
) -> Result<(), LoadError> {
    for graph in nodes.iter_mut().flat_map(|n| &mut n.attribute).filter_map(|a| a.g.as_mut()) {
        expand_nodes(&mut graph.node, opset, newer)?;
    }
    if !nodes.iter().any(|n| compose_of(n).is_some()) {
        return Ok(());
    }
    let mut all = Vec::with_capacity(nodes.len());
    for node in std::mem::take(nodes) {
        let Some(compose) = compose_of(&node) else {
            all.push(node);
            continue;
        };
        let is_newer = OF_NEWER.contains(&node.op_type.as_str());
        let mut parts = Parts { node: &node, opset: if is_newer { NEWER } else { opset }, nodes: Vec::new() };
        compose(&mut parts).map_err(|kind| kind.at(ErrorLocation::node(&node.called(), &node.op_type)))?;
        if is_newer {
            let (call, function) = function_of(&node, parts.nodes, newer.len());
            all.push(call);
            newer.push(function);
        } else {
            all.append(&mut parts.nodes);
        }
    }
    *nodes = all;
    Ok(())
}

/// A function of the nodes that stand for `node`, which has an opset of its own, and the call of it.
fn function_of(node: &NodeProto, nodes: Vec<NodeProto>, n: usize) -> (NodeProto, FunctionProto) {
    let names = |list: &[String]| {
        let mut names: Vec<String> = list.iter().filter(|name| !name.is_empty()).cloned().collect();
        names.sort();
        names.dedup();
        names
    };
    let (input, output, name) = (names(&node.input), names(&node.output), format!("{}/{n}", node.op_type));
    let call = NodeProto {
        name: node.name.clone(),
        number: node.number,
        op_type: name.clone(),
        domain: node.domain.clone(),
        input: input.clone(),
        output: output.clone(),
        ..Default::default()
    };
    let opset_import = [("", NEWER), (&node.domain, 1)]
        .map(|(domain, version)| OperatorSetIdProto { domain: domain.to_owned(), version })
        .to_vec();
    let domain = node.domain.clone();
    (call, FunctionProto { name, domain, input, output, node: nodes, opset_import, ..Default::default() })
}

/// The nodes that stand for one.
struct Parts<'n> {
    node: &'n NodeProto,
    opset: i64,
    nodes: Vec<NodeProto>,
}

impl Parts<'_> {
    /// Input `i` by name; empty where it is absent.
    fn input(&self, i: usize) -> String {
        self.node.input.get(i).cloned().unwrap_or_default()
    }

    fn given(&self, i: usize) -> bool {
        self.node.input.get(i).is_some_and(|name| !name.is_empty())
    }

    /// Output `i` by name; empty where no one wants it.
    fn output(&self, i: usize) -> String {
        self.node.output.get(i).cloned().unwrap_or_default()
    }

    fn push(&mut self, op: &str, inputs: Vec<String>, outputs: Vec<String>, attribute: Vec<AttributeProto>) {
        let name = format!("{}/{op}_{}", self.node.name, self.nodes.len());
        let op_type = op.to_owned();
        self.nodes.push(NodeProto {
            name,
            op_type,
            input: inputs,
            output: outputs,
            attribute,
            ..Default::default()
        });
    }

    /// As [`Parts::push`], of an operator of com.microsoft.
    fn push_contrib(
        &mut self,
        op: &str,
        inputs: Vec<String>,
        outputs: Vec<String>,
        attributes: Vec<AttributeProto>,
    ) {
        self.push(op, inputs, outputs, attributes);
        if let Some(node) = self.nodes.last_mut() {
            node.domain = self.node.domain.clone();
        }
    }

    /// A constant vector.
    fn numbers(&mut self, values: &[i64]) -> String {
        self.add("Constant", Vec::new(), vec![ints_attr("value_ints", values)])
    }

    /// A node whose axes are an input since opset 13.
    fn with_axes(
        &mut self,
        op: &str,
        x: String,
        axes: &[i64],
        mut attributes: Vec<AttributeProto>,
    ) -> String {
        let mut inputs = vec![x];
        if self.opset >= 13 {
            inputs.push(self.numbers(axes));
        } else {
            attributes.push(ints_attr("axes", axes));
        }
        self.add(op, inputs, attributes)
    }

    /// A tensor's name that is derived from the output's, which no other node has.
    fn fresh(&self, what: &str) -> String {
        let output = self.node.output.iter().find(|name| !name.is_empty());
        format!("{}/{what}_{}", output.map_or("", String::as_str), self.nodes.len())
    }

    /// One more node; its output's name.
    fn add(&mut self, op: &str, inputs: Vec<String>, attributes: Vec<AttributeProto>) -> String {
        let output = self.fresh(op);
        self.push(op, inputs, vec![output.clone()], attributes);
        output
    }

    /// The last node: its outputs are those of the node that is replaced.
    fn finish(&mut self, op: &str, inputs: Vec<String>, attributes: Vec<AttributeProto>) {
        self.push(op, inputs, self.node.output.clone(), attributes);
    }

    /// The number that input `i` stands for; its scale and zero point are the inputs after it.
    fn dequantized(&mut self, i: usize) -> String {
        let inputs = (0..3).map(|k| self.input(i.saturating_add(k))).collect();
        self.add("DequantizeLinear", inputs, Vec::new())
    }

    /// Ends with `x` in integers; input `i` is the scale, the one after it the zero point, whose type counts.
    fn quantize(&mut self, x: String, i: usize) -> Result<(), LoadErrorKind> {
        let zero = i.saturating_add(1);
        if !self.given(i) || !self.given(zero) {
            return Err(LoadErrorKind::unsupported("a quantized output without a scale or a zero point"));
        }
        let inputs = vec![x, self.input(i), self.input(zero)];
        self.finish("QuantizeLinear", inputs, Vec::new());
        Ok(())
    }

    fn attribute(&self, name: &str) -> Result<Option<&AttributeProto>, LoadErrorKind> {
        let found = self.node.attribute.iter().find(|a| a.name == name);
        match found.filter(|a| !a.ref_attr_name.is_empty()) {
            Some(_) => {
                Err(LoadErrorKind::unsupported(format!("attribute {name:?} given by the call of a function")))
            }
            None => Ok(found),
        }
    }

    fn int(&self, name: &str, default: i64) -> Result<i64, LoadErrorKind> {
        Ok(self.attribute(name)?.map_or(default, |a| a.i.unwrap_or(0)))
    }

    fn text(&self, name: &str) -> Result<Option<String>, LoadErrorKind> {
        let found = self.attribute(name)?.and_then(|a| a.s.as_deref());
        Ok(found.map(|s| String::from_utf8_lossy(s).into_owned()))
    }

    /// The attributes but those named.
    fn attributes(&self, without: &[&str]) -> Vec<AttributeProto> {
        self.node.attribute.iter().filter(|a| !without.contains(&a.name.as_str())).cloned().collect()
    }
}

/// X, W, bias, and a summand in front of the activation.
fn summed_conv(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let conv = (0..3).map(|i| parts.input(i)).collect();
    let sum = parts.add("Conv", conv, parts.attributes(&["activation", "activation_params"]));
    let given = |i: usize| -> Result<Option<f32>, LoadErrorKind> {
        Ok(parts.attribute("activation_params")?.and_then(|a| a.floats.get(i).copied()))
    };
    let (first, second) = (given(0)?, given(1)?);
    let named = parts.attribute("activation")?.and_then(|a| a.s.as_deref()).unwrap_or_default();
    let activation = String::from_utf8_lossy(named).into_owned();
    let attribute = |name: &str, value: Option<f32>| value.map(|value| float_attr(name, value));
    let attributes = match activation.as_str() {
        "" => {
            parts.finish("Add", vec![sum, parts.input(3)], Vec::new());
            return Ok(());
        }
        "Relu" | "Tanh" | "Sigmoid" | "HardSwish" => Vec::new(),
        "LeakyRelu" => attribute("alpha", first).into_iter().collect(),
        "HardSigmoid" => attribute("alpha", first).into_iter().chain(attribute("beta", second)).collect(),
        "Clip" => attribute("min", first).into_iter().chain(attribute("max", second)).collect(),
        other => return Err(LoadErrorKind::unsupported(format!("the fused activation {other:?}"))),
    };
    let mut inputs = vec![parts.add("Add", vec![sum, parts.input(3)], Vec::new())];
    // From opset 11 on the bounds are inputs.
    if activation != "Clip" || parts.opset < 11 {
        parts.finish(&activation, inputs, attributes);
        return Ok(());
    }
    for bound in [first, second] {
        inputs.push(match bound {
            Some(bound) => parts.add("Constant", Vec::new(), vec![float_attr("value_float", bound)]),
            None => String::new(),
        });
    }
    parts.finish("Clip", inputs, Vec::new());
    Ok(())
}

/// X, scale, zero point, scale of the output, zero point of the output.
fn unary(parts: &mut Parts<'_>, op: &str) -> Result<(), LoadErrorKind> {
    if parts.int("channels_last", 0)? != 0 {
        return Err(LoadErrorKind::unsupported("channels in the last dimension"));
    }
    // Softmax of older opsets is one over all dimensions from the axis on.
    let meant = parts.int("opset", parts.opset)?;
    if (meant < 13) != (parts.opset < 13) {
        let what = format!("{op} of opset {meant} in a model of opset {}", parts.opset);
        return Err(LoadErrorKind::unsupported(what));
    }
    let x = parts.dequantized(0);
    let y = parts.add(op, vec![x], parts.attributes(&["channels_last", "opset"]));
    parts.quantize(y, 3)
}

/// As [`unary`], but rounded with the zero point added, as onnxruntime does it here and nowhere else: halves go to the
/// other side where the zero point is odd.
fn average_pool(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    // Round is of opset 11.
    if parts.opset < 11 || !parts.given(3) || !parts.given(4) || parts.int("channels_last", 0)? != 0 {
        return unary(parts, "AveragePool");
    }
    let x = parts.dequantized(0);
    let y = parts.add("AveragePool", vec![x], parts.attributes(&["channels_last"]));
    let zero = parts.add("Cast", vec![parts.input(4)], vec![int_attr("to", data_type::FLOAT.into())]);
    let y = parts.add("Div", vec![y, parts.input(3)], Vec::new());
    let y = parts.add("Add", vec![y, zero.clone()], Vec::new());
    let y = parts.add("Round", vec![y], Vec::new());
    let y = parts.add("Sub", vec![y, zero], Vec::new());
    let one = parts.add("Constant", Vec::new(), vec![float_attr("value_float", 1.0)]);
    parts.finish("QuantizeLinear", vec![y, one, parts.input(4)], Vec::new());
    Ok(())
}

/// A, scale, zero point, B, scale, zero point, scale of the output, zero point of the output.
fn binary(parts: &mut Parts<'_>, op: &str) -> Result<(), LoadErrorKind> {
    let inputs = vec![parts.dequantized(0), parts.dequantized(3)];
    let y = parts.add(op, inputs, Vec::new());
    parts.quantize(y, 6)
}

/// The condition, then as a binary operator.
fn select(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let inputs = vec![parts.input(0), parts.dequantized(1), parts.dequantized(4)];
    let y = parts.add("Where", inputs, Vec::new());
    parts.quantize(y, 7)
}

/// Scale and zero point of the output, then each tensor with its own.
fn concat(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let count = parts.node.input.len();
    if count < 5 || count % 3 != 2 {
        let found = format!("{count} inputs");
        return Err(LoadErrorKind::unexpected("two inputs and three for every tensor", found));
    }
    let inputs = (2..count).step_by(3).map(|i| parts.dequantized(i)).collect();
    let y = parts.add("Concat", inputs, parts.attributes(&[]));
    parts.quantize(y, 0)
}

/// A, scale, zero point, B, scale, zero point, C of the product's unit, scale and zero point of the output.
fn gemm(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let alpha = parts.attribute("alpha")?.map_or(1.0, |a| a.f.unwrap_or(0.0));
    let (trans_a, trans_b) = (parts.int("transA", 0)?, parts.int("transB", 0)?);
    let a = parts.dequantized(0);
    // Of several scales of B there is one for every column of the product.
    let columns = if trans_b != 0 { vec![int_attr("axis", 0)] } else { Vec::new() };
    let b = vec![parts.input(3), parts.input(4), parts.input(5)];
    let mut inputs = vec![a, parts.add("DequantizeLinear", b, columns)];
    if parts.given(6) {
        let c = parts.add("Cast", vec![parts.input(6)], vec![int_attr("to", data_type::FLOAT.into())]);
        let c = parts.add("Mul", vec![c, parts.input(1)], Vec::new());
        inputs.push(parts.add("Mul", vec![c, parts.input(4)], Vec::new()));
    }
    let attributes = vec![
        float_attr("alpha", alpha),
        float_attr("beta", alpha),
        int_attr("transA", trans_a),
        int_attr("transB", trans_b),
    ];
    if !parts.given(7) {
        parts.finish("Gemm", inputs, attributes);
        return Ok(());
    }
    let y = parts.add("Gemm", inputs, attributes);
    parts.quantize(y, 7)
}

/// A, B, their scales, their zero points, what is added.
fn integer_product(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let [a, b, sa, sb, za, zb] = [0, 1, 2, 3, 4, 5].map(|i| parts.input(i));
    scaled_product(parts, [a, b, za, zb], [sa, sb], 6);
    Ok(())
}

/// A in floats, B, its scale, its zero point, what is added.
fn dynamic_product(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let [a, scale, zero] = ["quantized", "scale", "zero_point"].map(|what| parts.fresh(what));
    let outputs = vec![a.clone(), scale.clone(), zero.clone()];
    parts.push("DynamicQuantizeLinear", vec![parts.input(0)], outputs, Vec::new());
    let [b, sb, zb] = [1, 2, 3].map(|i| parts.input(i));
    scaled_product(parts, [a, b, zero, zb], [scale, sb], 4);
    Ok(())
}

/// The product of integers times both scales, and input `bias` where it is given.
fn scaled_product(parts: &mut Parts<'_>, integers: [String; 4], scales: [String; 2], bias: usize) {
    let y = parts.add("MatMulInteger", integers.to_vec(), Vec::new());
    let y = parts.add("Cast", vec![y], vec![int_attr("to", data_type::FLOAT.into())]);
    let [first, second] = scales;
    let y = parts.add("Mul", vec![y, first], Vec::new());
    if parts.given(bias) {
        let y = parts.add("Mul", vec![y, second], Vec::new());
        parts.finish("Add", vec![y, parts.input(bias)], Vec::new());
    } else {
        parts.finish("Mul", vec![y, second], Vec::new());
    }
}

/// LSTM whose weights W and R, inputs 1 and 2, are integers `[directions, inputs, 4 hidden]`, with scales and zero
/// points `[directions]` or `[directions, 4 hidden]` after LSTM's inputs. They are numbers again here, and
/// nothing else is quantized, which is nearer to what the model was before.
fn lstm(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let to_float = || vec![int_attr("to", data_type::FLOAT.into())];
    let mut inputs: Vec<String> = (0..8).map(|i| parts.input(i)).collect();
    let shape = parts.numbers(&[0, 1, -1]);
    for (weights, scale, zero) in [(1, 8, 9), (2, 10, 11)] {
        let mut w = parts.add("Cast", vec![parts.input(weights)], to_float());
        if parts.given(zero) {
            let zero = parts.add("Reshape", vec![parts.input(zero), shape.clone()], Vec::new());
            let zero = parts.add("Cast", vec![zero], to_float());
            w = parts.add("Sub", vec![w, zero], Vec::new());
        }
        let scale = parts.add("Reshape", vec![parts.input(scale), shape.clone()], Vec::new());
        let w = parts.add("Mul", vec![w, scale], Vec::new());
        let w = parts.add("Transpose", vec![w], vec![ints_attr("perm", &[0, 2, 1])]);
        if let Some(input) = inputs.get_mut(weights) {
            *input = w;
        }
    }
    let attributes = parts.attributes(&[]);
    parts.finish("LSTM", inputs, attributes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::super::load_onnx_bytes;
    use super::super::proto::{GraphProto, TensorProto, attribute_type as kind};
    use super::super::tests::{graph, model, node, with};
    use super::*;
    use crate::graph::Tensor;
    use crate::session::Session;

    fn initializer(name: &str, data_type: i32, dims: &[i64], values: &[i32]) -> TensorProto {
        let floats = values.iter().map(|v| *v as f32 / 4.0);
        TensorProto {
            name: name.into(),
            data_type,
            dims: dims.to_vec(),
            float_data: if data_type == data_type::FLOAT { floats.collect() } else { Vec::new() },
            int32_data: if data_type == data_type::FLOAT { Vec::new() } else { values.to_vec() },
            ..Default::default()
        }
    }

    /// A graph of `x`, two floats, with integers `a`, `b` and the like.
    fn proto(mut nodes: Vec<NodeProto>, output: &str) -> GraphProto {
        for node in nodes.iter_mut().filter(|n| is_composed("com.microsoft", &n.op_type)) {
            node.domain = "com.microsoft".into();
        }
        let mut g = graph(&["x"], nodes, &[output]);
        g.initializer = vec![
            initializer("a", data_type::UINT8, &[1, 2], &[10, 20]),
            initializer("b", data_type::UINT8, &[1, 2], &[8, 4]),
            initializer("w", data_type::INT8, &[2, 2], &[1, -2, 3, 4]),
            initializer("c", data_type::INT32, &[2], &[100, -40]),
            initializer("half", data_type::FLOAT, &[], &[2]),
            initializer("quarter", data_type::FLOAT, &[], &[1]),
            initializer("each", data_type::FLOAT, &[2], &[4, 2]),
            initializer("zero", data_type::UINT8, &[], &[4]),
            initializer("none", data_type::INT8, &[], &[0]),
            initializer("nones", data_type::INT8, &[2], &[0, 0]),
            initializer("halves", data_type::FLOAT, &[1, 4], &[2, 2, 2, 2]),
            initializer("ones", data_type::INT8, &[1, 4], &[1, 1, 1, 1]),
            initializer("series", data_type::FLOAT, &[2, 1, 2], &[2, -1, 3, 5]),
            initializer("w4", data_type::INT8, &[1, 2, 4], &[1, 2, 3, 4, 5, -6, 7, -8]),
            initializer("r4", data_type::INT8, &[1, 1, 4], &[1, -2, 0, 3]),
            // The same less one, in halves and turned.
            initializer("w_float", data_type::FLOAT, &[1, 4, 2], &[0, 8, 2, -14, 4, 12, 6, -18]),
            initializer("r_float", data_type::FLOAT, &[1, 4, 1], &[0, -6, -2, 4]),
        ];
        g
    }

    fn run(nodes: Vec<NodeProto>, output: &str) -> Result<Vec<f32>, String> {
        let mut m = model(proto(nodes, output));
        m.opset_import[0].version = 17;
        let graph = load_onnx_bytes(&m.encode_to_vec(), None).map_err(|e| e.to_string())?;
        let mut session = Session::builder().graph(graph).device("cpu").build().map_err(|e| e.to_string())?;
        if session.inputs().iter().any(|i| i.name == "x") {
            session.set_input("x", &Tensor::new([2], &[1.0f32, -0.5]).unwrap()).map_err(|e| e.to_string())?;
        }
        session.run().map_err(|e| e.to_string())?;
        let got = session.get_output(output).map_err(|e| e.to_string())?;
        Ok(match got.dtype() {
            crate::dtype::DType::U8 => got.as_slice::<u8>().unwrap().iter().map(|v| f32::from(*v)).collect(),
            _ => got.to_f32s().unwrap(),
        })
    }

    #[test]
    fn numbers_are_quantized_again() {
        let a = ["a", "half", "zero"];
        // (6, 16) / 2 and (4, 0) / 4 are 3, 8 and 1, 0; a quarter's steps above 4.
        let b = ["b", "quarter", "zero"];
        let out = ["quarter", "zero"];
        let two = [&a[..], &b[..], &out[..]].concat();
        assert_eq!(run(vec![node("QLinearAdd", &two, &["y"])], "y").unwrap(), [20.0, 36.0]);
        assert_eq!(run(vec![node("QLinearMul", &two, &["y"])], "y").unwrap(), [16.0, 4.0]);
        let list = [&out[..], &a[..], &b[..]].concat();
        let joined = with(node("QLinearConcat", &list, &["y"]), vec![int_attr("axis", 0)]);
        assert_eq!(run(vec![joined], "y").unwrap(), [16.0, 36.0, 8.0, 4.0]);
        let one = [&b[..], &out[..]].concat();
        assert_eq!(run(vec![node("QLinearSigmoid", &one, &["y"])], "y").unwrap(), [7.0, 6.0]);
        let softmax = |opset| {
            let node = node("QLinearSoftmax", &one, &["y"]);
            run(vec![with(node, vec![int_attr("opset", opset)])], "y")
        };
        assert_eq!(softmax(13).unwrap(), [7.0, 5.0]);
        assert!(softmax(12).unwrap_err().contains("opset 12"));
        assert!(run(vec![node("QLinearSigmoid", &b, &["y"])], "y").unwrap_err().contains("zero point"));
        assert!(run(vec![node("QLinearConcat", &list[..4], &["y"])], "y").is_err());
    }

    #[test]
    fn an_average_is_rounded_with_its_zero_point() {
        // Means of 1 and 2, and of 3 and 4, in steps of 1: halves go to even numbers above the zero point or not.
        let pool = |zero: &str| {
            let inputs = ["pixels", "one", "nothing", "one", zero];
            let mut fused = with(
                node("QLinearAveragePool", &inputs, &["y"]),
                vec![ints_attr("kernel_shape", &[1, 2]), ints_attr("strides", &[1, 2])],
            );
            fused.domain = "com.microsoft".into();
            let mut m = model(graph(&[], vec![fused], &["y"]));
            m.graph.as_mut().unwrap().initializer = vec![
                initializer("pixels", data_type::UINT8, &[1, 1, 1, 4], &[1, 2, 3, 4]),
                initializer("one", data_type::FLOAT, &[], &[4]),
                initializer("nothing", data_type::UINT8, &[], &[0]),
                initializer("odd", data_type::UINT8, &[], &[3]),
                initializer("high", data_type::UINT8, &[], &[254]),
            ];
            m.opset_import[0].version = 17;
            let graph = load_onnx_bytes(&m.encode_to_vec(), None).unwrap();
            let mut session = Session::builder().graph(graph).device("cpu").build().unwrap();
            session.run().unwrap();
            session.get_output("y").unwrap().as_slice::<u8>().unwrap().to_vec()
        };
        assert_eq!(pool("nothing"), [2, 4]);
        // 4.5 and 6.5.
        assert_eq!(pool("odd"), [4, 6]);
        assert_eq!(pool("high"), [255, 255]);
    }

    #[test]
    fn a_convolution_adds_before_its_activation() {
        // Three pixels of one channel times -2, and what is added.
        let conv = |attributes: Vec<AttributeProto>| {
            let mut fused = with(node("FusedConv", &["pixels", "by", "", "more"], &["y"]), attributes);
            fused.domain = "com.microsoft".into();
            let mut m = model(graph(&[], vec![fused], &["y"]));
            let g = m.graph.as_mut().unwrap();
            g.initializer = vec![
                initializer("pixels", data_type::FLOAT, &[1, 1, 1, 3], &[4, 8, -4]),
                initializer("by", data_type::FLOAT, &[1, 1, 1, 1], &[-8]),
                initializer("more", data_type::FLOAT, &[1, 1, 1, 3], &[12, 4, 4]),
            ];
            m.opset_import[0].version = 17;
            let graph = load_onnx_bytes(&m.encode_to_vec(), None).map_err(|e| e.to_string())?;
            let mut session = Session::builder().graph(graph).device("cpu").build().unwrap();
            session.run().map_err(|e| e.to_string())?;
            Ok::<_, String>(session.get_output("y").unwrap().to_f32s().unwrap())
        };
        let named = |name: &str, given: &[f32]| {
            let name = AttributeProto {
                name: "activation".into(),
                r#type: kind::STRING,
                s: Some(name.as_bytes().to_vec()),
                ..Default::default()
            };
            let given = AttributeProto {
                name: "activation_params".into(),
                r#type: kind::FLOATS,
                floats: given.to_vec(),
                ..Default::default()
            };
            vec![name, given]
        };
        assert_eq!(conv(Vec::new()).unwrap(), [1.0, -3.0, 3.0]);
        assert_eq!(conv(named("Relu", &[])).unwrap(), [1.0, 0.0, 3.0]);
        assert_eq!(conv(named("LeakyRelu", &[0.5])).unwrap(), [1.0, -1.5, 3.0]);
        assert_eq!(conv(named("Clip", &[-1.0, 2.0])).unwrap(), [1.0, -1.0, 2.0]);
        assert_eq!(conv(named("HardSigmoid", &[0.25, 0.5])).unwrap(), [0.75, 0.0, 1.0]);
        assert!(conv(named("Sine", &[])).unwrap_err().contains("Sine"));
    }

    #[test]
    fn products_are_scaled() {
        // (3, 8) times (1, -2; 3, 4), which is in halves, or a part of it in ones.
        let inputs = ["a", "half", "zero", "w", "half", "none", "c"];
        let y = run(vec![node("QGemm", &inputs, &["y"])], "y").unwrap();
        assert_eq!(y, [13.5 + 25.0, 13.0 - 10.0]);
        let inputs = ["a", "half", "zero", "w", "each", "nones"];
        let turned = with(node("QGemm", &inputs, &["y"]), vec![int_attr("transB", 1)]);
        assert_eq!(run(vec![turned], "y").unwrap(), [3.0 - 16.0, 0.5 * (9.0 + 32.0)]);
        let inputs = ["a", "w", "half", "each", "zero", "none", "x"];
        let y = run(vec![node("MatMulIntegerToFloat", &inputs, &["y"])], "y").unwrap();
        assert_eq!(y, [27.0 + 1.0, 13.0 - 0.5]);
        let y = run(vec![node("DynamicQuantizeMatMul", &["x", "w", "half", "none"], &["y"])], "y").unwrap();
        assert!((y[0] + 0.25).abs() < 0.02 && (y[1] + 2.0).abs() < 0.02, "{y:?}");
    }

    #[test]
    fn a_recurrence_has_its_weights_back() {
        let hidden = || int_attr("hidden_size", 1);
        let inputs = ["series", "w4", "r4", "", "", "", "", "", "halves", "ones", "halves", "ones"];
        let nodes = vec![
            with(node("DynamicQuantizeLSTM", &inputs, &["q"]), [hidden()]),
            with(node("LSTM", &["series", "w_float", "r_float"], &["f"]), [hidden()]),
            node("Sub", &["q", "f"], &["y"]),
        ];
        assert_eq!(run(nodes, "y").unwrap(), [0.0; 2]);
        let nodes = vec![with(node("DynamicQuantizeLSTM", &inputs, &["y"]), [hidden()])];
        assert!(run(nodes, "y").unwrap().iter().all(|v| v.abs() > 1e-3));
    }
}
