//! Function names of TVM's compiler to operators.
//!
//! `tvmgen_default_fused_nn_conv2d_add_nn_relu_3` names a chain of Relay operators. A name is not a
//! program: it tells neither which argument goes where nor what the attributes are. So only those chains
//! are read of which one reading fits the shapes, with attributes from the node or from the shapes;
//! for every other the caller must register a kernel.

use serde_json::Value;

use super::attrs::{NodeAttrs, value_of};
use crate::graph::TensorInfo;
use crate::ops::{AttrMap, AttrValue};
use crate::shape::Shape;

/// How many tensors an operator takes, and whether it may come later in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One tensor to one tensor.
    Unary,
    /// Two tensors, elementwise with broadcasting; `true` where their order does not matter.
    Binary(bool),
    /// Two tensors; only at the start of a chain.
    Pair,
    /// Any number of tensors; only at the start of a chain.
    Many,
}

/// What a Relay operator is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Relay {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// The operator of ONNX's domain; "" for a reshape.
    pub(super) op: &'static str,
    /// The opset as which its attributes are read.
    pub(super) opset: i64,
}

const fn relay(name: &'static str, kind: Kind, op: &'static str) -> Relay {
    Relay { name, kind, op, opset: 13 }
}

const COMMUTES: Kind = Kind::Binary(true);
const ORDERED: Kind = Kind::Binary(false);

/// The operators that are known; a name with an empty operator and kind `Pair` is known to be another one.
static KNOWN: &[Relay] = &[
    relay("abs", Kind::Unary, "Abs"),
    relay("add", COMMUTES, "Add"),
    relay("ceil", Kind::Unary, "Ceil"),
    // Bounds are attributes before opset 11.
    Relay { name: "clip", kind: Kind::Unary, op: "Clip", opset: 6 },
    relay("concatenate", Kind::Many, "Concat"),
    relay("copy", Kind::Unary, "Identity"),
    relay("divide", ORDERED, "Div"),
    relay("elemwise_add", COMMUTES, "Add"),
    relay("elemwise_div", ORDERED, "Div"),
    relay("elemwise_mul", COMMUTES, "Mul"),
    relay("elemwise_sub", ORDERED, "Sub"),
    relay("erf", Kind::Unary, "Erf"),
    relay("exp", Kind::Unary, "Exp"),
    relay("expand_dims", Kind::Unary, ""),
    relay("floor", Kind::Unary, "Floor"),
    relay("log", Kind::Unary, "Log"),
    relay("maximum", COMMUTES, "Max"),
    relay("minimum", COMMUTES, "Min"),
    relay("multiply", COMMUTES, "Mul"),
    relay("negative", Kind::Unary, "Neg"),
    relay("nn_avg_pool2d", Kind::Unary, "AveragePool"),
    relay("nn_batch_flatten", Kind::Unary, ""),
    relay("nn_bias_add", Kind::Binary(false), "Add"),
    relay("nn_conv2d", Kind::Pair, "Conv"),
    relay("nn_dense", Kind::Pair, "Gemm"),
    relay("nn_dropout", Kind::Unary, "Identity"),
    relay("nn_global_avg_pool2d", Kind::Unary, "GlobalAveragePool"),
    relay("nn_global_max_pool2d", Kind::Unary, "GlobalMaxPool"),
    relay("nn_leaky_relu", Kind::Unary, "LeakyRelu"),
    relay("nn_max_pool2d", Kind::Unary, "MaxPool"),
    relay("nn_relu", Kind::Unary, "Relu"),
    relay("nn_softmax", Kind::Unary, "Softmax"),
    relay("power", ORDERED, "Pow"),
    relay("reshape", Kind::Unary, ""),
    relay("sigmoid", Kind::Unary, "Sigmoid"),
    relay("sqrt", Kind::Unary, "Sqrt"),
    relay("squeeze", Kind::Unary, ""),
    relay("subtract", ORDERED, "Sub"),
    relay("tanh", Kind::Unary, "Tanh"),
    relay("transpose", Kind::Unary, "Transpose"),
];

/// Relay operators whose names begin like known ones.
const OTHERS: [&str; 3] = ["floor_divide", "floor_mod", "nn_conv2d_transpose"];

/// The names of all operators that are known.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|r| r.name)
}

/// The chain of operators that `name` names, if all of it is known.
pub(super) fn chain(name: &str) -> Option<Vec<&'static Relay>> {
    let parts: Vec<&str> = name.split('_').collect();
    let parts = match parts.iter().position(|p| *p == "fused") {
        Some(fused) => parts.get(fused.saturating_add(1)..)?,
        None => &parts,
    };
    // A small number at the end tells functions of one name apart. A long one is the hash of a name that
    // was too long and has lost its end; that is followed by an underscore, so an empty part.
    let counter = |p: &&&str| (1..=6).contains(&p.len()) && p.bytes().all(|b| b.is_ascii_digit());
    let extra = parts.iter().rev().take_while(counter).count();
    let mut rest = parts.get(..parts.len().saturating_sub(extra))?;
    let mut chain = Vec::new();
    while !rest.is_empty() {
        let longest = (1..=rest.len().min(4)).rev().find_map(|n| {
            let text = rest.get(..n)?.join("_");
            if OTHERS.contains(&text.as_str()) {
                return Some((n, None));
            }
            KNOWN.iter().find(|r| r.name == text).map(|r| (n, Some(r)))
        });
        let (n, relay) = longest?;
        chain.push(relay?);
        rest = rest.get(n..)?;
    }
    (!chain.is_empty()).then_some(chain)
}

/// Why the arguments of `chain` cannot be told from its name, if they cannot.
pub(super) fn ambiguity(chain: &[&Relay]) -> Option<&'static str> {
    let later = chain.get(1..).unwrap_or(&[]);
    if later.iter().any(|r| matches!(r.kind, Kind::Pair | Kind::Many)) {
        return Some("an operator that does not continue a chain comes later");
    }
    let is_binary = |r: &&Relay| matches!(r.kind, Kind::Binary(_));
    let last = later.iter().rposition(is_binary)?;
    let before = later.get(..last).unwrap_or(&[]);
    if before.iter().any(|r| r.kind == Kind::Unary)
        || chain.first().is_some_and(|r| r.kind == Kind::Unary && !r.op.is_empty() && !is_reduction(r))
    {
        return Some("an operator of one argument could apply to either side of a later one");
    }
    let count = later.iter().filter(|r| is_binary(r)).count();
    if count > 1 && later.iter().filter(|r| is_binary(r)).any(|r| r.op != "Add") {
        return Some("several operators of two arguments could be joined in several ways");
    }
    None
}

/// Whether the operator makes its input smaller, so that shapes tell where it applies.
fn is_reduction(r: &Relay) -> bool {
    r.name.contains("pool2d")
}

/// The orders in which a node's arguments may go to the operators of `chain`, which takes `count` of them:
/// for each operator with another argument than the one before gives, whether that is on the left.
///
/// TVM numbers the arguments as it meets them, so an operator's left argument comes before all those of
/// the chain so far, and its right one after them.
pub(super) fn orders(chain: &[&Relay], count: usize) -> Vec<Vec<bool>> {
    let binary = chain.iter().skip(1).filter(|r| matches!(r.kind, Kind::Binary(_))).count();
    let first = match chain.first().map(|r| r.kind) {
        Some(Kind::Unary) => 1,
        Some(Kind::Many) => count.saturating_sub(binary).max(1),
        _ => 2,
    };
    if count != binary.saturating_add(first) || binary > 8 {
        return Vec::new();
    }
    (0..1u32 << binary).map(|bits| (0..binary).map(|b| bits >> b & 1 == 1).collect()).collect()
}

/// Whether every order of the arguments gives the same result.
pub(super) fn order_is_free(chain: &[&Relay]) -> bool {
    let mut binary = chain.iter().filter(|r| r.kind != Kind::Unary);
    let Some(first) = binary.next() else { return true };
    first.kind == COMMUTES && ["Add", "Mul"].contains(&first.op) && binary.all(|r| r.op == first.op)
}

/// Why an operator cannot be made from what the graph tells.
pub(super) type Problem = String;

/// The attributes of `relay` over `inputs`, from the node's attributes `given` or from shapes;
/// `output` is what the operator gives, where that is known.
pub(super) fn attributes(
    relay: &Relay,
    given: &NodeAttrs<'_>,
    inputs: &[&TensorInfo],
    output: Option<&TensorInfo>,
) -> Result<AttrMap, Problem> {
    let mut attrs = AttrMap::new();
    let mut put = |name: &str, value: AttrValue| attrs.insert(name.to_owned(), value);
    match relay.name {
        "nn_conv2d" => {
            given.expect_text("data_layout", "NCHW")?;
            given.expect_text("kernel_layout", "OIHW")?;
            put("strides", AttrValue::Ints(given.pair("strides")?));
            put("pads", AttrValue::Ints(given.padding()?));
            if given.has("dilation") {
                put("dilations", AttrValue::Ints(given.pair("dilation")?));
            }
            if given.has("groups") {
                put("group", AttrValue::Int(given.int("groups")?));
            }
        }
        "nn_dense" => {
            put("transB", AttrValue::Int(1));
        }
        "nn_max_pool2d" | "nn_avg_pool2d" => {
            given.expect_text("layout", "NCHW")?;
            put("kernel_shape", AttrValue::Ints(given.pair("pool_size")?));
            put("strides", AttrValue::Ints(given.pair("strides")?));
            put("pads", AttrValue::Ints(given.padding()?));
            put("ceil_mode", AttrValue::Int(given.flag("ceil_mode")?));
            if relay.op == "AveragePool" {
                put("count_include_pad", AttrValue::Int(given.flag("count_include_pad")?));
            }
        }
        "nn_global_avg_pool2d" | "nn_global_max_pool2d" => given.expect_text("layout", "NCHW")?,
        "nn_leaky_relu" => {
            put("alpha", AttrValue::Float(given.float("alpha")?));
        }
        "clip" => {
            put("min", AttrValue::Float(given.float("a_min")?));
            put("max", AttrValue::Float(given.float("a_max")?));
        }
        "transpose" => {
            put("perm", AttrValue::Ints(given.ints("axes")?));
        }
        "nn_softmax" => {
            let axis = if given.has("axis") { given.int("axis")? } else { only_axis(inputs)? };
            put("axis", AttrValue::Int(axis));
        }
        "concatenate" => {
            let axis = if given.has("axis") { given.int("axis")? } else { joined_axis(inputs, output)? };
            put("axis", AttrValue::Int(axis));
        }
        _ => {}
    }
    Ok(attrs)
}

/// The only axis that is longer than 1: over any other a softmax would be 1 everywhere.
fn only_axis(inputs: &[&TensorInfo]) -> Result<i64, Problem> {
    let missing = || "attribute axis is missing".to_owned();
    let shape = &inputs.first().ok_or_else(missing)?.shape;
    let mut long = shape.iter().enumerate().filter(|(_, size)| **size != 1);
    match (long.next(), long.next()) {
        (Some((axis, _)), None) => i64::try_from(axis).map_err(|_| missing()),
        _ => Err(missing()),
    }
}

/// The axis along which the sizes of `inputs` add up to that of `output`.
fn joined_axis(inputs: &[&TensorInfo], output: Option<&TensorInfo>) -> Result<i64, Problem> {
    let missing = || "attribute axis is missing, and the shapes do not tell it".to_owned();
    let output = &output.ok_or_else(missing)?.shape;
    let fits = |axis: &usize| {
        let sum = inputs.iter().try_fold(0usize, |sum, i| sum.checked_add(*i.shape.get(*axis)?));
        let same = |i: &&TensorInfo| {
            i.shape.rank() == output.rank()
                && i.shape.iter().zip(output.iter()).enumerate().all(|(d, (a, b))| d == *axis || a == b)
        };
        sum == output.get(*axis).copied() && inputs.iter().all(same)
    };
    let mut axes = (0..output.rank()).filter(fits);
    match (axes.next(), axes.next()) {
        (Some(axis), None) => i64::try_from(axis).map_err(|_| missing()),
        _ => Err(missing()),
    }
}

/// The shape under which the bias of a `nn.bias_add` to `data` broadcasts.
pub(super) fn bias_shape(
    given: &NodeAttrs<'_>,
    data: &TensorInfo,
    bias: &TensorInfo,
) -> Result<Shape, Problem> {
    let [size] = bias.shape.dims() else { return Err(format!("a bias of shape {}", bias.shape)) };
    let rank = data.shape.rank();
    let axis = if given.has("axis") {
        data.shape.axis(given.int("axis")?).map_err(|e| e.to_string())?
    } else {
        let mut axes = (0..rank).filter(|a| data.shape.get(*a) == Some(size));
        match (axes.next(), axes.next()) {
            (Some(axis), None) => axis,
            _ => return Err("attribute axis is missing, and the shapes do not tell it".to_owned()),
        }
    };
    let dims: Vec<usize> = (axis..rank).map(|a| if a == axis { *size } else { 1 }).collect();
    Shape::new(dims).map_err(|e| e.to_string())
}

/// The shape that a reshaping operator gives; `output` is that of the chain, `last` whether every
/// operator after this one keeps shapes.
pub(super) fn reshaped(
    relay: &Relay,
    input: &TensorInfo,
    output: &TensorInfo,
    last: bool,
) -> Result<Shape, Problem> {
    if relay.name == "nn_batch_flatten" {
        let batch = input.shape.first().copied().unwrap_or(1);
        let rest = input.shape.iter().skip(1).try_fold(1usize, |n, d| n.checked_mul(*d));
        return Shape::new([batch, rest.unwrap_or(usize::MAX)]).map_err(|e| e.to_string());
    }
    if last { Ok(output.shape.clone()) } else { Err(format!("the new shape of {} is not told", relay.name)) }
}

/// Whether `relay` gives a tensor of its input's shape.
pub(super) fn keeps_shape(relay: &Relay) -> bool {
    relay.kind == Kind::Unary
        && !relay.op.is_empty()
        && !relay.name.contains("pool2d")
        && relay.name != "transpose"
}

/// The attributes of a node that names one of this library's operators: all but those that only TVM reads.
pub(super) fn plain_attributes(given: &NodeAttrs<'_>) -> Result<AttrMap, Problem> {
    const IGNORED: [&str; 4] = ["Compiler", "hash", "opset", "out_layout"];
    let mut attrs = AttrMap::new();
    for (name, value) in given.iter().filter(|(name, _)| !IGNORED.contains(&name.as_str())) {
        if *value != Value::Null {
            attrs.insert(
                name.clone(),
                value_of(value).ok_or_else(|| format!("attribute {name} is no value"))?,
            );
        }
    }
    Ok(attrs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_of(name: &str) -> Option<Vec<&'static str>> {
        Some(chain(name)?.into_iter().map(|r| r.name).collect())
    }

    #[test]
    fn names_are_split_into_operators() {
        assert_eq!(
            names_of("tvmgen_default_fused_nn_conv2d_add_nn_relu_3").unwrap(),
            ["nn_conv2d", "add", "nn_relu"]
        );
        assert_eq!(names_of("fused_nn_softmax").unwrap(), ["nn_softmax"]);
        for cut_short in ["fused_add_0123456789abcdef_", "fused_add_17431829474329874_", "fused_add_1_"] {
            assert_eq!(names_of(cut_short), None, "{cut_short}");
        }
        assert_eq!(names_of("elemwise_add").unwrap(), ["elemwise_add"]);
        assert_eq!(names_of("fused_expand_dims_exp").unwrap(), ["expand_dims", "exp"]);
        for other in
            ["fused_floor_divide", "fused_nn_conv2d_transpose", "fused_logical_and", "fused_", "fused", ""]
        {
            assert_eq!(names_of(other), None, "{other}");
        }
        for pair in KNOWN.windows(2) {
            assert!(pair[0].name < pair[1].name, "{:?}", pair[1].name);
        }
    }

    #[test]
    fn names_that_fit_several_programs_are_refused() {
        let ok = |n: &str| ambiguity(&chain(n).unwrap()).is_none();
        assert!(ok("fused_nn_conv2d_add_nn_relu"));
        assert!(ok("fused_nn_conv2d_add_add_nn_relu"));
        assert!(ok("fused_exp_tanh"));
        assert!(ok("fused_subtract"));
        assert!(ok("fused_nn_max_pool2d_add"));
        // exp(a) * b or a * exp(b).
        assert!(!ok("fused_exp_multiply"));
        // conv * s + b or conv + s * b.
        assert!(!ok("fused_nn_conv2d_multiply_add"));
        // relu(conv + b) + r or conv + b + relu(r).
        assert!(!ok("fused_nn_conv2d_add_nn_relu_add"));
        assert!(!ok("fused_nn_relu_nn_conv2d"));
    }

    #[test]
    fn arguments_are_ordered_as_tvm_meets_them() {
        let orders = |n: &str, count| orders(&chain(n).unwrap(), count).len();
        assert_eq!(orders("fused_nn_conv2d_add_nn_relu", 3), 2);
        assert_eq!(orders("fused_nn_conv2d_add_nn_relu", 2), 0);
        assert_eq!(orders("fused_exp", 1), 1);
        assert_eq!(orders("fused_concatenate", 5), 1);
        assert!(order_is_free(&chain("fused_add_add").unwrap()));
        assert!(!order_is_free(&chain("fused_multiply_add").unwrap()));
        assert!(!order_is_free(&chain("fused_subtract").unwrap()));
    }
}
