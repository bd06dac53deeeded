//! Parts of language models: gates, norms with a gate, attention of one query and of packed sequences, and products
//! with weights of few bits.

use super::super::attribute::{float_attr, int_attr, ints_attr, text_attr};
use super::Parts;
use crate::loader::error::LoadErrorKind;
use crate::loader::onnx::proto::data_type;
use crate::ops::attention::CODES;

/// X, Y and the factor of Y, or what is projected to it by weights.
pub(super) fn gated_add(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let [x, y, mut gate] = [0, 1, 2].map(|i| parts.input(i));
    if parts.given(3) {
        gate = parts.add("MatMul", vec![gate, parts.input(3)], Vec::new());
        gate = parts.add("Sigmoid", vec![gate], Vec::new());
    }
    let y = parts.add("Mul", vec![y, gate], Vec::new());
    parts.finish("Add", vec![x, y], Vec::new());
    Ok(())
}

/// X of rows of groups, the scale of a group, and the gate. All is computed in `float32`.
pub(super) fn gated_norm(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let sigmoid = match parts.text("activation")?.as_deref() {
        None | Some("silu" | "swish") => false,
        Some("sigmoid") => true,
        Some(other) => return Err(LoadErrorKind::unsupported(format!("a gate of activation {other:?}"))),
    };
    let [x, scale, gate] = [0, 1, 2].map(|i| parts.input(i));
    let [wide_x, wide_scale, wide_gate] = [&x, &scale, &gate].map(|v| to_float(parts, v));
    let shape = parts.add("Shape", vec![x.clone()], Vec::new());
    let groups = joined_sizes(parts, &scale, &[-1]);
    let rows = parts.add("Reshape", vec![wide_x, groups], Vec::new());
    let epsilon = parts.node.attribute.iter().filter(|a| a.name == "epsilon").cloned();
    let attributes = epsilon.chain([int_attr("axis", -1)]).collect();
    let normed = parts.add("SimplifiedLayerNormalization", vec![rows, wide_scale], attributes);
    if let Some(node) = parts.nodes.last_mut() {
        node.domain = parts.node.domain.clone();
    }
    let normed = parts.add("Reshape", vec![normed, shape], Vec::new());
    let mut factor = parts.add("Sigmoid", vec![wide_gate.clone()], Vec::new());
    if !sigmoid {
        factor = parts.add("Mul", vec![wide_gate, factor], Vec::new());
    }
    let y = parts.add("Mul", vec![normed, factor], Vec::new());
    parts.finish("CastLike", vec![y, x], Vec::new());
    Ok(())
}

/// The projection of the decay, its bias and factor, the projection of the rate.
pub(super) fn linear_gate(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let [a, bias, factor, b] = [0, 1, 2, 3].map(|i| parts.input(i));
    let [decay, beta] = [0, 1].map(|i| parts.output(i));
    if !beta.is_empty() {
        if b.is_empty() {
            return Err(LoadErrorKind::unexpected(
                "input b, of which output beta is made",
                "an absent input",
            ));
        }
        parts.push("Sigmoid", vec![b], vec![beta], Vec::new());
    }
    let wide = to_float(parts, &a);
    let sum = parts.add("Add", vec![wide, bias], Vec::new());
    let soft = parts.add("Softplus", vec![sum], Vec::new());
    let y = parts.add("Mul", vec![soft, factor], Vec::new());
    parts.push("CastLike", vec![y, a], vec![decay], Vec::new());
    Ok(())
}

/// A convolution of `[batch, length, channels..]`.
pub(super) fn channels_last(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let x = parts.input(0);
    let shape = parts.add("Shape", vec![x.clone()], Vec::new());
    let [flat, zero, one, two, far] =
        [&[0, 0, -1][..], &[0], &[1], &[2], &[i64::MAX]].map(|values| parts.numbers(values));
    let first = |parts: &mut Parts<'_>, x: String| {
        let rows = parts.add("Reshape", vec![x, flat.clone()], Vec::new());
        parts.add("Transpose", vec![rows], vec![ints_attr("perm", &[0, 2, 1])])
    };
    let mut inputs = vec![first(parts, x), parts.input(1), parts.input(2)];
    if parts.given(3) {
        let past = parts.input(3);
        inputs.push(first(parts, past));
    }
    let made = ["conv", "state"].map(|what| parts.fresh(what));
    let attributes = parts.attributes(&["channels_last"]);
    parts.push_contrib("CausalConvWithState", inputs, made.to_vec(), attributes);
    let batch = parts.add("Slice", vec![shape.clone(), zero, one], Vec::new());
    let channels = parts.add("Slice", vec![shape.clone(), two, far], Vec::new());
    let [y, state] = made;
    let last = |parts: &mut Parts<'_>, x: String, shape: String, to: String| {
        let rows = parts.add("Transpose", vec![x], vec![ints_attr("perm", &[0, 2, 1])]);
        parts.push("Reshape", vec![rows, shape], vec![to], Vec::new());
    };
    if !parts.output(1).is_empty() {
        let all = parts.add("Shape", vec![state.clone()], Vec::new());
        let (from, to) = (parts.numbers(&[2]), parts.numbers(&[3]));
        let kept = parts.add("Slice", vec![all, from, to], Vec::new());
        let sizes = parts.add("Concat", vec![batch, kept, channels], vec![int_attr("axis", 0)]);
        last(parts, state, sizes, parts.output(1));
    }
    last(parts, y, shape, parts.output(0));
    Ok(())
}

/// One query of each sequence: query, key, value, mask, what is added to scores, past keys and values, how many of
/// them there are, the number of beams, the beam of each key, the bias of the projections.
pub(super) fn one_query(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    if parts.int("output_qk", 0)? != 0 || !parts.output(3).is_empty() {
        return Err(LoadErrorKind::unsupported("DecoderMaskedMultiHeadAttention that shows its scores"));
    }
    let heads = parts.int("num_heads", 0)?;
    if !(1..=i64::from(i32::MAX)).contains(&heads) {
        return Err(LoadErrorKind::unexpected("attribute num_heads of at least 1", heads.to_string()));
    }
    let mut bias = parts.input(10);
    let mut operands = [0, 1, 2].map(|i| parts.input(i));
    if operands[1].is_empty() {
        // Queries, keys and values side by side, all of one size.
        if !bias.is_empty() {
            operands[0] = parts.add("Add", vec![operands[0].clone(), std::mem::take(&mut bias)], Vec::new());
        }
        let pieces = ["query", "key", "value"].map(|what| parts.fresh(what));
        let attributes = vec![int_attr("axis", -1), int_attr("num_outputs", 3)];
        parts.push("Split", vec![operands[0].clone()], pieces.to_vec(), attributes);
        operands = pieces;
    }
    let grown = parts.int("past_present_share_buffer", 0)? == 0 || !parts.given(5);
    if grown {
        if parts.given(9) {
            return Err(LoadErrorKind::unsupported("beams over a cache that grows"));
        }
        let [mask, added, past_k, past_v] = [3, 4, 5, 6].map(|i| parts.input(i));
        let [q, k, v] = operands;
        let inputs = vec![q, k, v, bias, mask, added, past_k, past_v];
        let attributes = parts.attributes(&["past_present_share_buffer", "output_qk"]);
        let outputs = [0, 1, 2].map(|i| parts.output(i)).to_vec();
        parts.push_contrib("MultiHeadAttention", inputs, outputs, attributes);
        return Ok(());
    }
    fixed_cache(parts, operands, bias, heads)
}

/// [`one_query`] with a cache of fixed length, in which each sequence has so many keys.
fn fixed_cache(
    parts: &mut Parts<'_>,
    [q, k, v]: [String; 3],
    bias: String,
    heads: i64,
) -> Result<(), LoadErrorKind> {
    if !parts.given(7) {
        return Err(LoadErrorKind::unexpected("past_sequence_length, as the cache has one length", "none"));
    }
    let biased = biased(parts, [q, k, v], bias);
    let one = parts.numbers(&[0, heads, 1, -1]);
    let [q, k, v] = biased.map(|x| parts.add("Reshape", vec![x, one.clone()], Vec::new()));
    let [zero, first, second] = [0, 1, 2].map(|n| parts.numbers(&[n]));
    let sizes = parts.add("Shape", vec![parts.input(5)], Vec::new());
    let batch = parts.add("Slice", vec![sizes.clone(), zero.clone(), first.clone()], Vec::new());
    let past = parts.add("Cast", vec![parts.input(7)], vec![int_attr("to", data_type::INT64.into())]);
    let past = parts.add("Reshape", vec![past, first.clone()], Vec::new());
    let places = parts.add("Expand", vec![past.clone(), batch.clone()], Vec::new());
    let lens = parts.add("Add", vec![places.clone(), first.clone()], Vec::new());
    let mut caches = Vec::with_capacity(2);
    for (cache, new, output, what) in [(5, k, 1, "keys"), (6, v, 2, "values")] {
        let present = match parts.output(output) {
            name if name.is_empty() => parts.fresh(what),
            name => name,
        };
        let inputs = vec![parts.input(cache), new, places.clone()];
        parts.push("TensorScatter", inputs, vec![present.clone()], vec![int_attr("axis", 2)]);
        caches.push(present);
    }
    if parts.given(9) {
        // Key t of row r is that of row `r / beams * beams + indirection[r, t]`, the newest its own.
        let third = parts.numbers(&[3]);
        let length = parts.add("Slice", vec![sizes, second, third], Vec::new());
        let wide = |parts: &mut Parts<'_>, x: String| {
            parts.add("Cast", vec![x], vec![int_attr("to", data_type::INT64.into())])
        };
        let none = parts.add("Constant", Vec::new(), vec![int_attr("value_int", 0)]);
        let step = parts.add("Constant", Vec::new(), vec![int_attr("value_int", 1)]);
        let range = |parts: &mut Parts<'_>, count: &str, axes: &str| {
            let count = parts.add("Squeeze", vec![count.to_owned()], Vec::new());
            let all = parts.add("Range", vec![none.clone(), count, step.clone()], Vec::new());
            parts.add("Unsqueeze", vec![all, axes.to_owned()], Vec::new())
        };
        let own = range(parts, &batch, &first);
        let times = range(parts, &length, &zero);
        let beams = if parts.given(8) { wide(parts, parts.input(8)) } else { first.clone() };
        let group = parts.add("Div", vec![own.clone(), beams.clone()], Vec::new());
        let group = parts.add("Mul", vec![group, beams], Vec::new());
        let table = wide(parts, parts.input(9));
        let flat = parts.numbers(&[-1]);
        let width = parts.add("Shape", vec![table.clone()], Vec::new());
        let (from, to) = (parts.numbers(&[2]), parts.numbers(&[3]));
        let width = parts.add("Slice", vec![width, from, to], Vec::new());
        let rows = parts.add("Concat", vec![flat, width], vec![int_attr("axis", 0)]);
        let table = parts.add("Reshape", vec![table, rows], Vec::new());
        let table = parts.add("Slice", vec![table, zero.clone(), length, first.clone()], Vec::new());
        let from = parts.add("Add", vec![group, table], Vec::new());
        let old = parts.add("Less", vec![times, past], Vec::new());
        let from = parts.add("Where", vec![old, from, own], Vec::new());
        let axes = parts.numbers(&[1, 3]);
        let from = parts.add("Unsqueeze", vec![from, axes], Vec::new());
        for cache in &mut caches {
            let sizes = parts.add("Shape", vec![cache.clone()], Vec::new());
            let from = parts.add("Expand", vec![from.clone(), sizes], Vec::new());
            *cache = parts.add("GatherElements", vec![cache.clone(), from], vec![int_attr("axis", 0)]);
        }
    }
    let mask = joined_mask(parts);
    let [k, v] = [caches.swap_remove(0), caches.swap_remove(0)];
    let attributes = parts.node.attribute.iter().filter(|a| a.name == "scale").cloned().collect();
    let y = parts.add("Attention", vec![q, k, v, mask, String::new(), String::new(), lens], attributes);
    let rows = parts.numbers(&[0, 1, -1]);
    parts.push("Reshape", vec![y, rows], vec![parts.output(0)], Vec::new());
    Ok(())
}

/// Queries, keys and values with their parts of `bias`, which has those of queries and keys of the sizes of these.
fn biased(parts: &mut Parts<'_>, operands: [String; 3], bias: String) -> [String; 3] {
    if bias.is_empty() {
        return operands;
    }
    let sizes = operands.clone().map(|x| {
        let shape = parts.add("Shape", vec![x], Vec::new());
        let (from, to) = (parts.numbers(&[2]), parts.numbers(&[3]));
        parts.add("Slice", vec![shape, from, to], Vec::new())
    });
    let sizes = parts.add("Concat", sizes.to_vec(), vec![int_attr("axis", 0)]);
    let pieces = ["query_bias", "key_bias", "value_bias"].map(|what| parts.fresh(what));
    parts.push("Split", vec![bias, sizes], pieces.to_vec(), vec![int_attr("axis", 0)]);
    let mut pieces = pieces.into_iter();
    operands.map(|x| match pieces.next() {
        Some(bias) => parts.add("Add", vec![x, bias], Vec::new()),
        None => x,
    })
}

/// The mask of `[batch, keys]` in input 3 and what input 4 adds to scores, as one mask of four dimensions.
fn joined_mask(parts: &mut Parts<'_>) -> String {
    let added = parts.input(4);
    if !parts.given(3) {
        return added;
    }
    let kept = parts.add("Cast", vec![parts.input(3)], vec![int_attr("to", data_type::BOOL.into())]);
    let axes = parts.numbers(&[1, 2]);
    let kept = parts.add("Unsqueeze", vec![kept, axes], Vec::new());
    if added.is_empty() {
        return kept;
    }
    let hidden = parts.add("Constant", Vec::new(), vec![float_attr("value_float", f32::NEG_INFINITY)]);
    let hidden = parts.add("CastLike", vec![hidden, added.clone()], Vec::new());
    parts.add("Where", vec![kept, added, hidden], Vec::new())
}

/// Rows without padding: query, key, value, bias, the places of rows with padding, the ends of sequences, what is
/// added to scores.
pub(super) fn packed_rows(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let mut operands = [0, 1, 2].map(|i| parts.input(i));
    let mut bias = parts.input(3);
    let [offsets, ends, added] = [4, 5, 6].map(|i| parts.input(i));
    let [zero, one, far, all] = [0, 1, i64::MAX, -1].map(|n| parts.numbers(&[n]));
    let rows = parts.add("Shape", vec![operands[0].clone()], Vec::new());
    let rows = parts.add("Slice", vec![rows, zero.clone(), one.clone()], Vec::new());
    let padded = parts.add("Shape", vec![offsets.clone()], Vec::new());
    let flat = parts.add("Reshape", vec![offsets, all.clone()], Vec::new());
    let count = parts.add("Shape", vec![flat.clone()], Vec::new());
    let flat = parts.add("Cast", vec![flat], vec![int_attr("to", data_type::INT64.into())]);
    let places = parts.add("Slice", vec![flat, zero.clone(), rows], Vec::new());
    let columns = parts.add("Unsqueeze", vec![places.clone(), one.clone()], Vec::new());
    if operands[1].is_empty() && !bias.is_empty() {
        // Of `[heads, 3, size]` where the bias is `[3, heads, size]`.
        let heads = parts.int("num_heads", 0)?;
        let shape = parts.numbers(&[3, heads, -1]);
        let own = parts.add("Reshape", vec![std::mem::take(&mut bias), shape], Vec::new());
        let own = parts.add("Transpose", vec![own], vec![ints_attr("perm", &[1, 0, 2])]);
        operands[0] = parts.add("Add", vec![operands[0].clone(), own], Vec::new());
    }
    for x in operands.iter_mut().filter(|x| !x.is_empty()) {
        let sizes = parts.add("Shape", vec![x.clone()], Vec::new());
        let row = parts.add("Slice", vec![sizes, one.clone(), far.clone()], Vec::new());
        let whole = parts.add("Concat", vec![count.clone(), row.clone()], vec![int_attr("axis", 0)]);
        let empty = parts.add("ConstantOfShape", vec![whole], Vec::new());
        let empty = parts.add("CastLike", vec![empty, x.clone()], Vec::new());
        let spread = parts.add("ScatterND", vec![empty, columns.clone(), x.clone()], Vec::new());
        let sizes = parts.add("Concat", vec![padded.clone(), row], vec![int_attr("axis", 0)]);
        *x = parts.add("Reshape", vec![spread, sizes], Vec::new());
    }
    let later = parts.add("Slice", vec![ends.clone(), one.clone(), far.clone()], Vec::new());
    let earlier = parts.add("Slice", vec![ends, zero, all.clone()], Vec::new());
    let lens = parts.add("Sub", vec![later, earlier], Vec::new());
    let [q, k, v] = operands;
    let y = parts.fresh("padded");
    let inputs = vec![q, k, v, bias, lens, added];
    parts.push_contrib("MultiHeadAttention", inputs, vec![y.clone()], parts.attributes(&[]));
    let two = parts.numbers(&[2]);
    let last = parts.add("Shape", vec![y.clone()], Vec::new());
    let last = parts.add("Slice", vec![last, two, far], Vec::new());
    let sizes = parts.add("Concat", vec![all, last], vec![int_attr("axis", 0)]);
    let y = parts.add("Reshape", vec![y, sizes], Vec::new());
    parts.finish("Gather", vec![y, places], vec![int_attr("axis", 0)]);
    Ok(())
}

/// A, weights in `float8`, their scales, the scale to which A is rounded, the bias.
pub(super) fn float8_product(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let block = parts.int("block_size", 128)?;
    let mut a = to_float(parts, &parts.input(0));
    if parts.given(3) {
        let scale = parts.input(3);
        let part = parts.add("Div", vec![a, scale.clone()], Vec::new());
        let to = int_attr("to", data_type::FLOAT8E4M3FN.into());
        let part = parts.add("Cast", vec![part], vec![to]);
        let part = to_float(parts, &part);
        a = parts.add("Mul", vec![part, scale], Vec::new());
    }
    let [b, scales, bias] = [1, 2, 4].map(|i| parts.input(i));
    coded_product(parts, [a, b, scales, bias], "e4m3", block)
}

/// A, weights in `float4`, two in a byte, their scales in `float8`, the scale of these, that of A, the bias.
pub(super) fn float4_product(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let block = parts.int("block_size", 16)?;
    let a = to_float(parts, &parts.input(0));
    let [b, scales, scale, bias] = [1, 2, 3, 5].map(|i| parts.input(i));
    let to = int_attr("to", data_type::FLOAT8E4M3FN.into());
    let scales = parts.add("BitCast", vec![scales], vec![to]);
    let scales = to_float(parts, &scales);
    let scales = parts.add("Mul", vec![scales, scale], Vec::new());
    coded_product(parts, [a, b, scales, bias], "e2m1", block)
}

/// Ends with the product of `a` and codes; the result has the type of input 0.
fn coded_product(
    parts: &mut Parts<'_>,
    [a, b, scales, bias]: [String; 4],
    codes: &str,
    block: i64,
) -> Result<(), LoadErrorKind> {
    let bias = if bias.is_empty() { bias } else { to_float(parts, &bias) };
    let attributes = vec![int_attr("block_size", block), text_attr(CODES, codes)];
    let y = parts.fresh("product");
    let inputs = vec![a, b, scales, String::new(), String::new(), bias];
    parts.push_contrib("MatMulNBits", inputs, vec![y.clone()], attributes);
    parts.finish("CastLike", vec![y, parts.input(0)], Vec::new());
    Ok(())
}

pub(super) fn to_float(parts: &mut Parts<'_>, x: &str) -> String {
    parts.add("Cast", vec![x.to_owned()], vec![int_attr("to", data_type::FLOAT.into())])
}

/// The sizes `first` followed by those of `x`.
fn joined_sizes(parts: &mut Parts<'_>, x: &str, first: &[i64]) -> String {
    let sizes = parts.add("Shape", vec![x.to_owned()], Vec::new());
    let first = parts.numbers(first);
    parts.add("Concat", vec![first, sizes], vec![int_attr("axis", 0)])
}
