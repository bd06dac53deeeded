//! Attention over parts of a cache: of blocks that a mask names, and of pages that a table names.

use super::decoder::to_float;
use super::{Parts, float_attr, int_attr, ints_attr};
use crate::loader::error::LoadErrorKind;
use crate::loader::onnx::proto::data_type;

/// Query, key, value, past keys and values, the rows and columns of blocks that are seen, the largest number of keys,
/// that of each sequence, cosines and sines. Attention of groups of heads with a mask of the blocks.
pub(super) fn sparse(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let block = parts.int("sparse_block_size", 0)?;
    let heads = parts.int("num_heads", 0)?;
    for (name, value) in [("sparse_block_size", block), ("num_heads", heads)] {
        if !(1..=i64::from(i32::MAX)).contains(&value) {
            let expected = format!("attribute {name} of at least 1");
            return Err(LoadErrorKind::unexpected(expected, value.to_string()));
        }
    }
    let [zero, first, all, far] = [0, 1, -1, i64::MAX].map(|n| parts.numbers(&[n]));
    let [start, step, size] = [0, 1, block].map(|n| scalar(parts, n));
    // The blocks of each layout as a matrix of rows and columns: how often a row names a column.
    let [starts, columns, total, lens] = [5, 6, 7, 8].map(|i| parts.input(i)).map(|x| wide(parts, x));
    let ends = parts.add("Slice", vec![starts.clone(), first.clone(), far, first.clone()], Vec::new());
    let rows = size_of(parts, &ends, 1);
    let begins =
        parts.add("Slice", vec![starts.clone(), zero.clone(), all.clone(), first.clone()], Vec::new());
    let [begins, ends, columns] =
        [begins, ends, columns.clone()].map(|x| parts.add("Unsqueeze", vec![x, all.clone()], Vec::new()));
    let named = size_of(parts, &columns, 1);
    let named = range(parts, named);
    let after = parts.add("GreaterOrEqual", vec![named.clone(), begins], Vec::new());
    let before = parts.add("Less", vec![named, ends], Vec::new());
    let own = parts.add("And", vec![after, before], Vec::new());
    let every = range(parts, rows.clone());
    let equal = parts.add("Equal", vec![columns, every], Vec::new());
    let [own, equal] = [own, equal].map(|x| to_float(parts, &x));
    let blocks = parts.add("MatMul", vec![own, equal], Vec::new());
    // Queries end at the last key of their sequence; those of a prompt begin at the first.
    let query = parts.input(0);
    let len = size_of(parts, &query, 1);
    let prompt = parts.add("Equal", vec![total, len.clone()], Vec::new());
    let places = parts.add("Sub", vec![lens, len.clone()], Vec::new());
    let places = parts.add("Where", vec![prompt, start.clone(), places], Vec::new());
    let places = parts.add("Unsqueeze", vec![places, first.clone()], Vec::new());
    let queries = range(parts, len);
    let queries = parts.add("Add", vec![places, queries], Vec::new());
    let cache = parts.input(3);
    let keys = size_of(parts, &cache, 2);
    let keys = range(parts, keys);
    let last = parts.add("Sub", vec![rows, step.clone()], Vec::new());
    let [queries, keys] = [queries, keys].map(|x| {
        let block = parts.add("Div", vec![x, size.clone()], Vec::new());
        parts.add("Clip", vec![block, start.clone(), last.clone()], Vec::new())
    });
    let seen = parts.add("Gather", vec![blocks, queries], vec![int_attr("axis", 1)]);
    let seen = parts.add("Gather", vec![seen, keys], vec![int_attr("axis", 3)]);
    let seen = parts.add("Transpose", vec![seen], vec![ints_attr("perm", &[1, 0, 2, 3])]);
    // Layouts take turns over the heads.
    let layouts = parts.add("Shape", vec![starts], Vec::new());
    let layouts = parts.add("Slice", vec![layouts, zero, first.clone()], Vec::new());
    let heads = parts.numbers(&[heads]);
    let repeats = parts.add("Div", vec![heads, layouts], Vec::new());
    let repeats = vec![first.clone(), repeats, first.clone(), first];
    let repeats = parts.add("Concat", repeats, vec![int_attr("axis", 0)]);
    let seen = parts.add("Tile", vec![seen, repeats], Vec::new());
    let none = parts.add("Constant", Vec::new(), vec![float_attr("value_float", 0.0)]);
    let hidden = parts.add("Constant", Vec::new(), vec![float_attr("value_float", f32::NEG_INFINITY)]);
    let seen = parts.add("Greater", vec![seen, none.clone()], Vec::new());
    let mask = parts.add("Where", vec![seen, none, hidden], Vec::new());
    let mask = parts.add("CastLike", vec![mask, query], Vec::new());
    let one = parts.add("Cast", vec![step], vec![int_attr("to", data_type::INT32.into())]);
    let newest = parts.add("Sub", vec![parts.input(8), one], Vec::new());
    let mut inputs: Vec<String> = (0..5).map(|i| parts.input(i)).collect();
    inputs.extend([newest, parts.input(7), parts.input(9), parts.input(10), String::new(), mask]);
    let attributes = parts.attributes(&["sparse_block_size"]);
    parts.push_contrib("GroupQueryAttention", inputs, parts.node.output.clone(), attributes);
    Ok(())
}

/// What a node may not have here, as attributes of text and as inputs.
const PLAIN: [(&str, &[&str]); 5] = [
    ("kv_cache_layout", &["", "SEPARATE"]),
    ("k_cache_dtype", &["", "float16", "bfloat16"]),
    ("v_cache_dtype", &["", "float16", "bfloat16"]),
    ("k_quant_type", &["", "NONE"]),
    ("v_quant_type", &["", "NONE"]),
];
const ABSENT: [(usize, &str); 5] = [
    (11, "sinks"),
    (12, "a norm of queries"),
    (13, "a norm of keys"),
    (14, "a cache of codes"),
    (15, "a cache of codes"),
];

/// Rows without padding and a cache in pages: query, key, value, the caches, the ends of sequences, how many keys each
/// has already, its pages, cosines and sines, the places of new keys.
pub(super) fn paged(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let refused = |what: String| Err(LoadErrorKind::unsupported(format!("PagedAttention with {what}")));
    for (name, allowed) in PLAIN {
        let found = parts.text(name)?.unwrap_or_default();
        if !allowed.contains(&found.as_str()) {
            return refused(format!("{name} {found}"));
        }
    }
    for name in ["rotary_offset", "v_head_size"] {
        let found = parts.int(name, 0)?;
        if found != 0 {
            return refused(format!("{name} {found}"));
        }
    }
    if let Some((_, what)) = ABSENT.iter().find(|(i, _)| parts.given(*i)) {
        return refused((*what).to_owned());
    }
    let (heads, kv_heads) = (parts.int("num_heads", 0)?, parts.int("kv_num_heads", 0)?);
    let [zero, first, all, far] = [0, 1, -1, i64::MAX].map(|n| parts.numbers(&[n]));
    let [start, step] = [0, 1].map(|n| scalar(parts, n));
    let axis = |n: i64| vec![int_attr("axis", n)];
    let caches = [3, 4].map(|i| parts.input(i));
    let mut operands = [0, 1, 2].map(|i| parts.input(i));
    if operands[1].is_empty() {
        let size = size_of(parts, &caches[0], 3);
        let each = parts.numbers(&[heads, kv_heads, kv_heads]);
        let sizes = parts.add("Mul", vec![each, size], Vec::new());
        let pieces = ["query", "key", "value"].map(|what| parts.fresh(what));
        parts.push("Split", vec![operands[0].clone(), sizes], pieces.to_vec(), axis(1));
        operands = pieces;
    }
    // The sequence of each token, its place there, and its position with the keys before.
    let [ends, past, table] = [5, 6, 7].map(|i| parts.input(i)).map(|x| wide(parts, x));
    let begins = parts.add("Slice", vec![ends.clone(), zero.clone(), all.clone()], Vec::new());
    let ends = parts.add("Slice", vec![ends, first.clone(), far.clone()], Vec::new());
    let lens = parts.add("Sub", vec![ends.clone(), begins.clone()], Vec::new());
    let count = size_of(parts, &operands[0], 0);
    let tokens = parts.add("Range", vec![start.clone(), count.clone(), step.clone()], Vec::new());
    let column = parts.add("Unsqueeze", vec![tokens.clone(), first.clone()], Vec::new());
    let over = parts.add("GreaterOrEqual", vec![column, ends], Vec::new());
    let over = wide(parts, over);
    let sequence = parts.add("ReduceSum", vec![over, first.clone()], vec![int_attr("keepdims", 0)]);
    let last = size_of(parts, &past, 0);
    let last = parts.add("Sub", vec![last, step.clone()], Vec::new());
    let sequence = parts.add("Min", vec![sequence, last], Vec::new());
    let of = |parts: &mut Parts<'_>, x: &str| {
        parts.add("Gather", vec![x.to_owned(), sequence.clone()], vec![int_attr("axis", 0)])
    };
    let begin = of(parts, &begins);
    let place = parts.add("Sub", vec![tokens, begin], Vec::new());
    let before = of(parts, &past);
    let position = parts.add("Add", vec![before, place.clone()], Vec::new());
    if parts.int("do_rotary", 0)? != 0 {
        let places = parts.add("Unsqueeze", vec![position.clone(), zero.clone()], Vec::new());
        for (x, heads) in operands.iter_mut().zip([heads, kv_heads]) {
            let one = parts.add("Unsqueeze", vec![x.clone(), zero.clone()], Vec::new());
            let inputs = vec![one, parts.input(8), parts.input(9), places.clone()];
            let pairs = parts.int("rotary_interleaved", 0)?;
            let attributes = vec![int_attr("num_heads", heads), int_attr("interleaved", pairs)];
            let turned = parts.add("RotaryEmbedding", inputs, attributes);
            *x = parts.add("Squeeze", vec![turned, zero.clone()], Vec::new());
        }
    }
    let slot = if parts.given(10) {
        wide(parts, parts.input(10))
    } else {
        let size = size_of(parts, &caches[0], 1);
        let page = parts.add("Div", vec![position.clone(), size.clone()], Vec::new());
        let page = parts.add("Unsqueeze", vec![page, first.clone()], Vec::new());
        let pages = of(parts, &table);
        let page = parts.add("GatherElements", vec![pages, page], axis(1));
        let page = parts.add("Squeeze", vec![page, first.clone()], Vec::new());
        let whole = parts.add("Mul", vec![page.clone(), size.clone()], Vec::new());
        let rest = parts.add("Mod", vec![position, size], Vec::new());
        let slot = parts.add("Add", vec![whole, rest], Vec::new());
        let mapped = parts.add("GreaterOrEqual", vec![page, start.clone()], Vec::new());
        parts.add("Where", vec![mapped, slot, all.clone()], Vec::new())
    };
    let valid = parts.add("GreaterOrEqual", vec![slot.clone(), start.clone()], Vec::new());
    let order = to_float(parts, &valid);
    let one = parts.add("ArgMax", vec![order], vec![int_attr("axis", 0), int_attr("keepdims", 1)]);
    // Tokens that are not written repeat one that is; if none is, the first row stays as it is.
    let any = parts.add("Gather", vec![valid.clone(), one.clone()], axis(0));
    let other = parts.add("Gather", vec![slot.clone(), one.clone()], axis(0));
    let other = parts.add("Where", vec![any.clone(), other, start.clone()], Vec::new());
    let slot = parts.add("Where", vec![valid.clone(), slot, other], Vec::new());
    let [slot, valid, any] =
        [slot, valid, any].map(|x| parts.add("Unsqueeze", vec![x, first.clone()], Vec::new()));
    let pages = parts.add("Max", vec![table.clone(), start.clone()], Vec::new());
    let batch = sizes_of(parts, &table, [0, 1]);
    let mut read = Vec::with_capacity(2);
    let [query, new_keys, new_values] = operands;
    let [key_cache, value_cache] = caches;
    for (cache, x, output, what) in [(key_cache, new_keys, 1, "keys"), (value_cache, new_values, 2, "values")]
    {
        let width = sizes_of(parts, &x, [1, 2]);
        let rows = parts.add("Concat", vec![all.clone(), width.clone()], axis(0));
        let rows = parts.add("Reshape", vec![cache.clone(), rows], Vec::new());
        let row = parts.add("Slice", vec![rows.clone(), zero.clone(), first.clone()], Vec::new());
        let other = parts.add("Gather", vec![x.clone(), one.clone()], axis(0));
        let other = parts.add("Where", vec![any.clone(), other, row], Vec::new());
        let x = parts.add("Where", vec![valid.clone(), x, other], Vec::new());
        let rows = parts.add("ScatterND", vec![rows, slot.clone(), x], Vec::new());
        let present = match parts.output(output) {
            name if name.is_empty() => parts.fresh(what),
            name => name,
        };
        let sizes = parts.add("Shape", vec![cache], Vec::new());
        parts.push("Reshape", vec![rows, sizes], vec![present.clone()], Vec::new());
        let own = parts.add("Gather", vec![present, pages.clone()], axis(0));
        let sizes = parts.add("Concat", vec![batch.clone(), all.clone(), width], axis(0));
        read.push(parts.add("Reshape", vec![own, sizes], Vec::new()));
    }
    // Keys of pages that are not there are hidden.
    let mapped = parts.add("GreaterOrEqual", vec![table.clone(), start], Vec::new());
    let mapped = parts.add("Unsqueeze", vec![mapped, all.clone()], Vec::new());
    let each = sizes_of(parts, &parts.input(3), [1, 2]);
    let sizes = parts.add("Shape", vec![table], Vec::new());
    let sizes = parts.add("Concat", vec![sizes, each], axis(0));
    let mapped = parts.add("Expand", vec![mapped, sizes], Vec::new());
    let ones = parts.numbers(&[1, 1, -1]);
    let sizes = parts.add("Concat", vec![batch.clone(), ones], axis(0));
    let mask = parts.add("Reshape", vec![mapped, sizes], Vec::new());
    // Queries of a sequence are its last rows of as many as there are tokens.
    let len = of(parts, &lens);
    let at = parts.add("Mul", vec![sequence, count.clone()], Vec::new());
    let at = parts.add("Add", vec![at, count.clone()], Vec::new());
    let at = parts.add("Sub", vec![at, len], Vec::new());
    let at = parts.add("Add", vec![at, place], Vec::new());
    let column = parts.add("Unsqueeze", vec![at.clone(), first.clone()], Vec::new());
    let width = sizes_of(parts, &query, [1, 2]);
    let rows = parts.add("Mul", vec![batch.clone(), count.clone()], Vec::new());
    let rows = parts.add("Concat", vec![rows, width.clone()], axis(0));
    let empty = parts.add("ConstantOfShape", vec![rows.clone()], Vec::new());
    let empty = parts.add("CastLike", vec![empty, query.clone()], Vec::new());
    let spread = parts.add("ScatterND", vec![empty, column, query], Vec::new());
    let count = parts.add("Unsqueeze", vec![count, zero], Vec::new());
    let sizes = parts.add("Concat", vec![batch, count, width], axis(0));
    let spread = parts.add("Reshape", vec![spread, sizes], Vec::new());
    let lens = parts.add("Add", vec![past, lens], Vec::new());
    let causal = parts.int("is_causal", 1)?;
    let mut attributes = vec![
        int_attr("q_num_heads", heads),
        int_attr("kv_num_heads", kv_heads),
        int_attr("is_causal", causal),
    ];
    let window = parts.int("local_window_size", -1)?;
    if window > 0 {
        attributes.push(int_attr("left_window_size", window.saturating_sub(1)));
    }
    let own = parts.node.attribute.iter().filter(|a| matches!(a.name.as_str(), "scale" | "softcap"));
    attributes.extend(own.cloned());
    let values = read.pop().unwrap_or_default();
    let keys = read.pop().unwrap_or_default();
    let inputs = vec![spread, keys, values, mask, String::new(), String::new(), lens];
    let y = parts.add("Attention", inputs, attributes);
    let y = parts.add("Reshape", vec![y, rows], Vec::new());
    parts.push("Gather", vec![y, at], vec![parts.output(0)], axis(0));
    Ok(())
}

fn wide(parts: &mut Parts<'_>, x: String) -> String {
    parts.add("Cast", vec![x], vec![int_attr("to", data_type::INT64.into())])
}

fn scalar(parts: &mut Parts<'_>, n: i64) -> String {
    parts.add("Constant", Vec::new(), vec![int_attr("value_int", n)])
}

/// Sizes `from` to before `to` of `x`.
fn sizes_of(parts: &mut Parts<'_>, x: &str, [from, to]: [i64; 2]) -> String {
    let sizes = parts.add("Shape", vec![x.to_owned()], Vec::new());
    let [from, to] = [from, to].map(|n| parts.numbers(&[n]));
    parts.add("Slice", vec![sizes, from, to], Vec::new())
}

/// Size `axis` of `x` as one number.
fn size_of(parts: &mut Parts<'_>, x: &str, axis: i64) -> String {
    let one = sizes_of(parts, x, [axis, axis.saturating_add(1)]);
    parts.add("Squeeze", vec![one], Vec::new())
}

fn range(parts: &mut Parts<'_>, count: String) -> String {
    let [start, step] = [0, 1].map(|n| scalar(parts, n));
    parts.add("Range", vec![start, count, step], Vec::new())
}
