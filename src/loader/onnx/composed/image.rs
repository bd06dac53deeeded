//! What the optimizer of onnxruntime makes of the image models of diffusion: groups, convolutions and gates of
//! tensors whose channels come last. Their nodes are of [`super::NEWER`].

use super::super::attribute::{int_attr, ints_attr};
use super::Parts;
use crate::loader::error::LoadErrorKind;

/// Channels first, and last again.
const FIRST: [i64; 4] = [0, 3, 1, 2];
const LAST: [i64; 4] = [0, 2, 3, 1];

fn turned(parts: &mut Parts<'_>, x: String, order: [i64; 4]) -> String {
    parts.add("Transpose", vec![x], vec![ints_attr("perm", &order)])
}

/// X, scale and bias of every channel, which may be of another type than X.
pub(super) fn group_norm(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let x = parts.input(0);
    normalized(parts, x)
}

/// As [`group_norm`], of X and input 3, which may be one for each image and channel, and a bias; the second output
/// is their sum.
pub(super) fn skip_group_norm(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let x = parts.input(0);
    let shape = parts.add("Shape", vec![x.clone()], Vec::new());
    // Rows of channels, of which an image may have a single one to be added to all.
    let ends = |parts: &mut Parts<'_>, at: i64| {
        let at = parts.numbers(&[at]);
        parts.add("Gather", vec![shape.clone(), at], Vec::new())
    };
    let rows = vec![ends(parts, 0), parts.numbers(&[-1]), ends(parts, 3)];
    let rows = parts.add("Concat", rows, vec![int_attr("axis", 0)]);
    let x = parts.add("Reshape", vec![x, rows.clone()], Vec::new());
    let skip = parts.add("Reshape", vec![parts.input(3), rows], Vec::new());
    let mut sum = parts.add("Add", vec![x, skip], Vec::new());
    if parts.given(4) {
        sum = parts.add("Add", vec![sum, parts.input(4)], Vec::new());
    }
    let sum = parts.add("Reshape", vec![sum, shape], Vec::new());
    let wanted = parts.output(1);
    if !wanted.is_empty() {
        parts.push("Identity", vec![sum.clone()], vec![wanted], Vec::new());
    }
    normalized(parts, sum)
}

fn normalized(parts: &mut Parts<'_>, x: String) -> Result<(), LoadErrorKind> {
    if parts.int("channels_last", 1)? == 0 {
        return Err(LoadErrorKind::unsupported("a norm of groups whose channels do not come last"));
    }
    let groups = parts.int("groups", 0)?;
    let swish = match parts.int("activation", 0)? {
        0 => false,
        1 => true,
        other => return Err(LoadErrorKind::unsupported(format!("activation {other}"))),
    };
    let mut inputs = vec![turned(parts, x.clone(), FIRST)];
    for i in [1, 2] {
        inputs.push(parts.add("CastLike", vec![parts.input(i), x.clone()], Vec::new()));
    }
    let mut attributes = parts.attributes(&["groups", "activation", "channels_last"]);
    attributes.push(int_attr("num_groups", groups));
    let y = parts.add("GroupNormalization", inputs, attributes);
    let y = turned(parts, y, LAST);
    let out = vec![parts.output(0)];
    if swish {
        let gate = parts.add("Sigmoid", vec![y.clone()], Vec::new());
        parts.push("Mul", vec![y, gate], out, Vec::new());
    } else {
        parts.push("Identity", vec![y], out, Vec::new());
    }
    Ok(())
}

/// X, weights and a bias; channels of X and of the weights come last.
pub(super) fn conv(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let mut inputs: Vec<String> = [0, 1].map(|i| parts.input(i)).map(|x| turned(parts, x, FIRST)).to_vec();
    if parts.given(2) {
        inputs.push(parts.input(2));
    }
    let y = parts.add("Conv", inputs, parts.attributes(&[]));
    parts.finish("Transpose", vec![y], vec![ints_attr("perm", &LAST)]);
    Ok(())
}

/// X and a bias: of their sum the first half times Gelu of the second.
pub(super) fn bias_split_gelu(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let sum = parts.add("Add", vec![parts.input(0), parts.input(1)], Vec::new());
    let halves = ["left", "right"].map(|what| parts.fresh(what));
    let attributes = vec![int_attr("axis", -1), int_attr("num_outputs", 2)];
    parts.push("Split", vec![sum], halves.to_vec(), attributes);
    let [left, right] = halves;
    let gate = parts.add("Gelu", vec![right], Vec::new());
    parts.finish("Mul", vec![left, gate], Vec::new());
    Ok(())
}

/// X, a bias and a tensor like X.
pub(super) fn bias_add(parts: &mut Parts<'_>) -> Result<(), LoadErrorKind> {
    let sum = parts.add("Add", vec![parts.input(0), parts.input(1)], Vec::new());
    parts.finish("Add", vec![sum, parts.input(2)], Vec::new());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::attention::tests::{contrib, floats, run, wide};
    use crate::loader::onnx::attribute::{float_attr, int_attr, ints_attr};
    use crate::loader::onnx::proto::TensorProto;
    use crate::loader::onnx::tests::{node, with};
    use crate::ops::test_util::assert_near;

    fn numbers(name: &str, values: &[i64]) -> TensorProto {
        TensorProto {
            name: name.into(),
            data_type: crate::loader::onnx::proto::data_type::INT64,
            dims: vec![values.len() as i64],
            int64_data: values.to_vec(),
            ..Default::default()
        }
    }

    /// Two images of 3 by 2 places and 4 channels in two groups.
    fn constants() -> Vec<TensorProto> {
        vec![
            floats("x", &[2, 3, 2, 4], 1),
            floats("skip", &[2, 1, 1, 4], 2),
            floats("flat", &[2, 4], 2),
            floats("g", &[4], 3),
            floats("b", &[4], 4),
            floats("w", &[5, 2, 2, 4], 5),
            floats("five", &[5], 6),
            floats("like", &[2, 3, 2, 4], 7),
            numbers("halves", &[2, 2]),
        ]
    }

    #[test]
    fn groups_are_normalized_with_channels_last() {
        let attrs = |activation| {
            vec![int_attr("groups", 2), int_attr("activation", activation), float_attr("epsilon", 1e-3)]
        };
        let perm = |order: &[i64]| [ints_attr("perm", order)];
        let plain = vec![int_attr("num_groups", 2), float_attr("epsilon", 1e-3)];
        let nodes = vec![
            node("Add", &["x", "skip"], &["xs"]),
            node("Add", &["xs", "b"], &["sum"]),
            with(node("Transpose", &["sum"], &["first"]), perm(&[0, 3, 1, 2])),
            with(node("GroupNormalization", &["first", "g", "b"], &["n"]), plain),
            with(node("Transpose", &["n"], &["y"]), perm(&[0, 2, 3, 1])),
            node("Sigmoid", &["y"], &["s"]),
            node("Mul", &["y", "s"], &["z"]),
        ];
        let want = run(nodes, &constants(), &["sum", "y", "z"], 21);
        for skip in ["skip", "flat"] {
            let inputs = ["x", "g", "b", skip, "b"];
            let nodes = vec![
                contrib("SkipGroupNorm", &inputs, &["y", "sum"], attrs(0)),
                contrib("GroupNorm", &["sum", "g", "b"], &["z"], attrs(1)),
            ];
            let got = run(nodes, &constants(), &["sum", "y", "z"], 14);
            got.iter().zip(&want).for_each(|(got, want)| assert_near(got, &wide(want), 1e-5));
        }
    }

    #[test]
    fn convolutions_and_gates_are_put_together() {
        let nodes = vec![
            with(node("Transpose", &["x"], &["xf"]), [ints_attr("perm", &[0, 3, 1, 2])]),
            with(node("Transpose", &["w"], &["wf"]), [ints_attr("perm", &[0, 3, 1, 2])]),
            node("Conv", &["xf", "wf", "five"], &["cf"]),
            with(node("Transpose", &["cf"], &["c"]), [ints_attr("perm", &[0, 2, 3, 1])]),
            node("Add", &["x", "b"], &["xb"]),
            node("Add", &["xb", "like"], &["a"]),
            with(node("Split", &["xb", "halves"], &["l", "r"]), [int_attr("axis", 3)]),
            node("Gelu", &["r"], &["e"]),
            node("Mul", &["l", "e"], &["s"]),
        ];
        let want = run(nodes, &constants(), &["c", "a", "s"], 20);
        let nodes = vec![
            contrib("NhwcConv", &["x", "w", "five"], &["c"], Vec::new()),
            contrib("BiasAdd", &["x", "b", "like"], &["a"], Vec::new()),
            contrib("BiasSplitGelu", &["x", "b"], &["s"], Vec::new()),
        ];
        let got = run(nodes, &constants(), &["c", "a", "s"], 13);
        got.iter().zip(&want).for_each(|(got, want)| assert_near(got, &wide(want), 1e-5));
    }
}
