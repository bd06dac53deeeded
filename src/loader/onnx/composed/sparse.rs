//! Attention over parts of a cache: of blocks that a mask names.

use super::super::attribute::{float_attr, int_attr, ints_attr};
use super::Parts;
use super::decoder::to_float;
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
