//! Attention as models of pictures write it.

use std::sync::Arc;

use super::recognize_attention;
use super::tests::{numbers, product, run, softmax, transpose};
use crate::dtype::DType;
use crate::graph::{GraphBuilder, Tensor, TensorId};
use crate::operator::Operator;
use crate::ops;
use crate::ops::shape_ops::Reshape;
use crate::plan::flow::Flow;
use crate::plan::specialize;
use crate::shape::Shape;
use crate::tensor::TensorInfo;

const COLUMNS: [i64; 4] = [0, 1, 3, 2];

/// The flow of what `write` makes of inputs of these shapes.
fn flow(shapes: &[&[usize]], write: impl Fn(&mut GraphBuilder, &[TensorId]) -> TensorId) -> Flow {
    let mut g = GraphBuilder::new("g");
    let ids: Vec<TensorId> = shapes
        .iter()
        .enumerate()
        .map(|(i, s)| g.input(format!("x{i}"), DType::F32, s.iter().map(|d| (*d).into())))
        .collect();
    let y = write(&mut g, &ids);
    g.output("y", y);
    let infos: Vec<_> =
        shapes.iter().map(|s| TensorInfo::new(DType::F32, Shape::new(s.to_vec()).unwrap())).collect();
    specialize(&g.build().unwrap(), &infos, &Default::default()).unwrap().plan().unwrap()
}

/// Checks that attention is found as often as `count` says and computes the same; returns the names of what is left.
fn compared(apart: &Flow, count: usize) -> Vec<&'static str> {
    let mut one = apart.clone();
    assert_eq!(recognize_attention(&mut one), count);
    let inputs: Vec<Tensor> =
        apart.inputs.iter().map(|v| numbers(apart.values[*v].info.shape.dims())).collect();
    let (a, b) = (run(apart, &inputs), run(&one, &inputs));
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{a:?}, {b:?}");
    one.nodes.iter().map(|n| n.op.name()).collect()
}

/// Queries, keys and values lie in columns, as a convolution of one pixel leaves them, and so does the result.
fn in_columns(queries: usize) -> Flow {
    let shapes: [&[usize]; 3] = [&[2, 3, 8, queries], &[2, 3, 8, 7], &[2, 3, 6, 7]];
    flow(&shapes, |g, ids| {
        let rows = g.op(transpose(COLUMNS), &[ids[0]]);
        let scores = g.op(product(), &[rows, ids[1]]);
        let half = g.constant("half", Tensor::scalar(0.5f32));
        let scaled = g.op(ops::mul(), &[scores, half]);
        let soft = g.op(softmax(), &[scaled]);
        let turned = g.op(transpose(COLUMNS), &[soft]);
        g.op(product(), &[ids[2], turned])
    })
}

#[test]
fn pixels_in_columns_attend() {
    let left = compared(&in_columns(5), 1);
    assert_eq!(left.iter().filter(|name| **name == "Attention").count(), 1);
    assert_eq!(left.iter().filter(|name| **name == "Transpose").count(), 4);
    assert_eq!(left.len(), 5);
}

/// Keys are not transposed for few queries: that is as much work as the products.
#[test]
fn few_queries_leave_keys_in_columns() {
    compared(&in_columns(3), 0);
}

/// Attention in windows of `images` pictures of two windows each, with a bias for all and a mask for each window.
fn in_windows(images: usize, mask: &[usize]) -> Flow {
    let all = 2 * images;
    let shapes: [&[usize]; 5] = [&[all, 3, 4, 8], &[all, 3, 4, 8], &[all, 3, 4, 6], &[3, 4, 4], mask];
    flow(&shapes, |g, ids| {
        let shaped = |g: &mut GraphBuilder, x, dims: &[usize]| {
            let fixed = Some(dims.iter().map(|&d| d as i64).collect());
            g.op(Arc::new(Reshape { allow_zero: false, fixed }) as Arc<dyn Operator>, &[x])
        };
        let columns = g.op(transpose(COLUMNS), &[ids[1]]);
        let scores = g.op(product(), &[ids[0], columns]);
        let biased = g.op(ops::add(), &[scores, ids[3]]);
        let apart = shaped(g, biased, &[images, 2, 3, 4, 4]);
        let masked = g.op(ops::add(), &[apart, ids[4]]);
        let joined = shaped(g, masked, &[all, 3, 4, 4]);
        let soft = g.op(softmax(), &[joined]);
        g.op(product(), &[soft, ids[2]])
    })
}

#[test]
fn a_mask_of_windows_is_one_of_the_batch() {
    let of_one: [&[usize]; 2] = [&[1, 2, 1, 4, 4], &[1, 1, 3, 4, 4]];
    for mask in of_one {
        assert_eq!(compared(&in_windows(1, mask), 1), ["Reshape", "Add", "Attention"]);
    }
    for mask in [[1, 2, 1, 4, 4], [1, 1, 1, 4, 4], [3, 2, 3, 1, 4]] {
        let left = compared(&in_windows(3, &mask), 1);
        let expands = left.iter().filter(|name| **name == "Expand").count();
        assert_eq!(expands, usize::from(mask[..2] == [1, 2]), "{mask:?}");
    }
}

/// Scores times `factor`, whose rows have `row` elements.
fn with_factor(factor: &[usize], row: usize) -> Flow {
    let q = [2, 3, 5, row];
    let shapes: [&[usize]; 4] = [&q, &[2, 3, 7, row], &[2, 3, 7, 6], factor];
    flow(&shapes, |g, ids| {
        let columns = g.op(transpose(COLUMNS), &[ids[1]]);
        let scores = g.op(product(), &[ids[0], columns]);
        let scaled = g.op(ops::mul(), &[scores, ids[3]]);
        let soft = g.op(softmax(), &[scaled]);
        g.op(product(), &[soft, ids[2]])
    })
}

#[test]
fn queries_take_a_factor_of_each_head() {
    for factor in [&[3, 1, 1][..], &[1, 3, 1, 1], &[2, 1, 1, 1]] {
        assert_eq!(compared(&with_factor(factor, 8), 1), ["Mul", "Attention"]);
    }
    // A factor of each key, and channels in place of heads.
    compared(&with_factor(&[3, 1, 7], 8), 0);
    compared(&with_factor(&[3, 1, 1], 600), 0);
}
