//! Graphs that are changed to have pages: texts in one run have the logits of each alone, and what cannot be says why.

use std::sync::Arc;

use super::cache_type::CacheType;
use super::decoder::{Decoder, Growth};
use super::error::GenerateError;
use super::input::LOGIT_ROWS;
use super::logit_rows::with_rows;
use super::paged_graph::{in_pages, paged};
use super::scan::SampleOn;
use super::settings::Config;
use crate::backend::ContextDesc;
use crate::dtype::DType;
use crate::graph::{Graph, GraphBuilder, Tensor, TensorId};
use crate::operator::Operator;
use crate::ops::attention::{CacheKind, GroupQueryAttention};
use crate::ops::control::If;
use crate::ops::index::Gather;
use crate::ops::linalg::{Gemm, MatMul};
use crate::ops::reduce::{Reduce, ReduceKind};
use crate::ops::shape_ops::{Range, Reshape, ShapeOf};
use crate::ops::{add, cast, mul, sub};
use crate::registry::Registry;
use crate::session::Session;
use crate::shape::SymShape;

/// What a decoder of one layer does besides.
#[derive(Clone, Copy, Debug, PartialEq)]
enum With {
    Nothing,
    /// A score of 0 takes part in each softmax.
    Smooth,
    /// Positions that are computed of the mask.
    Positions,
    /// A factor by the length of the mask.
    Length,
    /// A branch by it.
    Branch,
    /// A factor by the largest of the positions.
    Largest,
    /// A bias of the scores.
    Bias,
    Codes,
}

const WIDTH: usize = 8;

fn sum() -> Arc<dyn Operator> {
    let (kind, axes) = (ReduceKind::Sum, Some(vec![1]));
    Arc::new(Reduce { kind, axes, keep_dims: false, noop_with_empty_axes: false })
}

fn table(g: &mut GraphBuilder, name: &str, rows: usize, factor: f32) -> TensorId {
    let values: Vec<f32> = (0..rows * WIDTH).map(|at| (at as f32 * factor).sin()).collect();
    g.constant(name, Tensor::new([rows, WIDTH], &values).unwrap())
}

/// Numbers from the positions of the tokens of `ids`, after those that `mask` has more.
fn places(g: &mut GraphBuilder, [ids, mask]: [TensorId; 2]) -> TensorId {
    let (zero, one) = (Tensor::scalar(0i64), Tensor::new([1], &[1i64]).unwrap());
    let (zero, one) = (g.constant("zero", zero), g.constant("one of one", one));
    let tokens = g.op(Arc::new(ShapeOf { start: 1, end: Some(2) }) as Arc<dyn Operator>, &[ids]);
    let valid = g.op(sum(), &[mask]);
    let before = g.op(sub(), &[valid, tokens]);
    let column = Arc::new(Reshape { allow_zero: false, fixed: Some(vec![1, 1]) }) as Arc<dyn Operator>;
    let before = g.op(column, &[before]);
    let steps = g.op(Arc::new(Range) as Arc<dyn Operator>, &[zero, tokens, one]);
    g.op(add(), &[before, steps])
}

fn branch(name: &str) -> Arc<Graph> {
    let mut g = GraphBuilder::new(name);
    let y = g.constant(name, Tensor::new([1], &[name.len() as f32]).unwrap());
    g.output("y", y);
    Arc::new(g.build().unwrap())
}

fn decoder(with: With) -> Graph {
    let mut g = GraphBuilder::new("decoder");
    let ids = g.input("input_ids", DType::I64, ["b".into(), "t".into()]);
    let mask = g.input("attention_mask", DType::I64, ["b".into(), "all".into()]);
    let dims = || ["b".into(), 1.into(), "p".into(), 4.into()];
    let cache = if with == With::Codes { CacheKind::Scaled { bits: 8 } } else { CacheKind::Same };
    let past = ["key", "value"].map(|part| {
        let name = format!("past_key_values.0.{part}");
        g.input(name, cache.dtype(DType::F32), dims())
    });
    let embedding = table(&mut g, "embedding", 16, 0.7);
    let mut x = g.op(Arc::new(Gather { axis: 0 }) as Arc<dyn Operator>, &[embedding, ids]);
    let one = g.constant("one", Tensor::scalar(1i64));
    let valid = g.op(sum(), &[mask]);
    let last = g.op(sub(), &[valid, one]);
    let lens = g.op(cast(DType::I32), &[last]);
    let size = g.op(Arc::new(ShapeOf { start: 1, end: Some(2) }) as Arc<dyn Operator>, &[mask]);
    let total = g.op(cast(DType::I32), &[size]);
    match with {
        With::Positions | With::Largest => {
            let positions = places(&mut g, [ids, mask]);
            let factors = table(&mut g, "factors", 64, 1.1);
            if with == With::Largest {
                let (kind, axes) = (ReduceKind::Max, Some(vec![1]));
                let op = Reduce { kind, axes, keep_dims: true, noop_with_empty_axes: false };
                let most = g.op(Arc::new(op) as Arc<dyn Operator>, &[positions]);
                let most = g.op(cast(DType::F32), &[most]);
                x = g.op(mul(), &[x, most]);
            } else {
                let by = g.op(Arc::new(Gather { axis: 0 }) as Arc<dyn Operator>, &[factors, positions]);
                x = g.op(mul(), &[x, by]);
            }
        }
        With::Length => {
            let length = g.op(cast(DType::F32), &[size]);
            x = g.op(mul(), &[x, length]);
        }
        With::Branch => {
            let is_long = g.op(cast(DType::Bool), &[last]);
            let bodies = If { then: branch("longer"), other: branch("short") };
            let by = g.op(Arc::new(bodies) as Arc<dyn Operator>, &[is_long]);
            x = g.op(mul(), &[x, by]);
        }
        _ => {}
    }
    let op = GroupQueryAttention {
        heads: 2,
        kv_heads: 1,
        scale: None,
        softcap: 0.0,
        window: None,
        rotary: None,
        causal: true,
        smooth: with == With::Smooth,
        cache,
        updates: None,
    };
    let half = Tensor::new([WIDTH, 4], &(0..WIDTH * 4).map(|at| (at as f32).cos()).collect::<Vec<_>>());
    let half = g.constant("half", half.unwrap());
    let narrow = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[x, half]);
    let mut read =
        vec![Some(x), Some(narrow), Some(narrow), Some(past[0]), Some(past[1]), Some(lens), Some(total)];
    if with == With::Bias {
        let bias = g.constant("bias", Tensor::new([1, 1, 1, 1], &[0.5f32]).unwrap());
        read.extend([None, None, None, Some(bias)]);
    }
    if with == With::Codes {
        let scale = g.constant("scale", Tensor::new([1], &[1.0f32 / 64.0]).unwrap());
        read.resize(12, None);
        read.extend([Some(scale); 2]);
    }
    let (_, made) = g.node("attention", Arc::new(op) as Arc<dyn Operator>, &read, 3);
    let head = Tensor::new([WIDTH, 16], &(0..WIDTH * 16).map(|at| (at as f32).sin()).collect::<Vec<_>>());
    let head = g.constant("head", head.unwrap());
    let logits = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[made[0], head]);
    g.set_info(logits, Some(DType::F32), Some(SymShape(vec!["b".into(), "t".into(), 16.into()])));
    g.output("logits", logits);
    g.output("present.0.key", made[1]);
    g.output("present.0.value", made[2]);
    g.build().unwrap()
}

fn session(graph: Graph) -> Session {
    let cpu = Registry::with_defaults().open("cpu", &ContextDesc::default()).unwrap();
    Session::builder().graph(graph).context(cpu).build().unwrap()
}

fn put(session: &mut Session, name: &str, shape: &[usize], values: &[i64]) {
    let io = session.inputs().into_iter().find(|io| io.name == name).unwrap();
    let tensor = match io.dtype {
        Some(DType::I32) => Tensor::new(shape, &values.iter().map(|v| *v as i32).collect::<Vec<_>>()),
        _ => Tensor::new(shape, values),
    };
    session.set_input(name, &tensor.unwrap()).unwrap();
}

/// The logits of all tokens of a text.
fn alone(graph: &Graph, tokens: &[i64]) -> Vec<f32> {
    let mut session = session(graph.clone());
    let count = tokens.len();
    put(&mut session, "input_ids", &[1, count], tokens);
    put(&mut session, "attention_mask", &[1, count], &vec![1; count]);
    for part in ["key", "value"] {
        let empty = Tensor::new([1, 1, 0, 4], &[] as &[f32]).unwrap();
        session.set_input(&format!("past_key_values.0.{part}"), &empty).unwrap();
    }
    session.run().unwrap();
    session.get_output("logits").unwrap().to_f32s().unwrap()
}

/// The logits of the tokens of several texts, each with its tokens before, its own and its pages of 2 tokens.
fn together(
    session: &mut Session,
    caches: &mut [Tensor; 2],
    parts: &[(usize, &[i64], [i64; 3])],
) -> Vec<f32> {
    let ids: Vec<i64> = parts.iter().flat_map(|(_, tokens, _)| tokens.iter().copied()).collect();
    let places = parts.iter().flat_map(|(past, tokens, _)| *past..past + tokens.len());
    let places: Vec<i64> = places.map(|place| place as i64).collect();
    let mut ends = vec![0];
    parts.iter().for_each(|(_, tokens, _)| ends.push(ends[ends.len() - 1] + tokens.len() as i64));
    let past: Vec<i64> = parts.iter().map(|(past, ..)| *past as i64).collect();
    let table: Vec<i64> = parts.iter().flat_map(|(.., pages)| *pages).collect();
    put(session, "input_ids", &[ids.len()], &ids);
    if session.inputs().iter().any(|io| io.name == "position_ids") {
        put(session, "position_ids", &[ids.len()], &places);
    }
    put(session, "cumulative_sequence_lengths", &[ends.len()], &ends);
    put(session, "past_sequence_lengths", &[past.len()], &past);
    put(session, "block_table", &[past.len(), 3], &table);
    for (part, cache) in ["key", "value"].iter().zip(caches.iter()) {
        session.set_input(&format!("past_key_values.0.{part}"), cache).unwrap();
    }
    session.run().unwrap();
    for (part, cache) in ["key", "value"].iter().zip(caches) {
        *cache = session.get_output(&format!("present.0.{part}")).unwrap();
    }
    session.get_output("logits").unwrap().to_f32s().unwrap()
}

#[test]
fn texts_in_one_run_have_the_logits_of_each_alone() {
    for with in [With::Nothing, With::Smooth, With::Positions] {
        let graph = decoder(with);
        let mut changed = in_pages(&session(graph.clone()), &Config::of_one_layer()).unwrap().unwrap();
        let names: Vec<String> = changed.inputs().into_iter().map(|io| io.name).collect();
        assert!(!names.contains(&"attention_mask".to_owned()), "{names:?}");
        assert_eq!(names.contains(&"position_ids".to_owned()), with == With::Positions, "{names:?}");
        let (one, two) = ([1, 2, 3, 4, 5], [9, 8, 7, 6]);
        let wanted = [alone(&graph, &one), alone(&graph, &two)];
        let empty = Tensor::new([6, 2, 1, 4], &[0f32; 48]).unwrap();
        let mut caches = [empty.clone(), empty];
        let (first, second) = ([4, 1, 0], [2, 5, -1]);
        let parts = [(0, &one[..2], first), (0, &two[..3], second)];
        let mut found = [together(&mut changed, &mut caches, &parts), Vec::new()];
        found[1] = together(&mut changed, &mut caches, &[(2, &one[2..], first), (3, &two[3..], second)]);
        let row = |run: &[f32], at: usize| run[at * 16..(at + 1) * 16].to_vec();
        let places =
            [[(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)].to_vec(), [(0, 2), (0, 3), (0, 4), (1, 3)].to_vec()];
        for (wanted, places) in wanted.iter().zip(places) {
            for (at, (run, line)) in places.into_iter().enumerate() {
                let (wanted, found) = (row(wanted, at), row(&found[run], line));
                let near = wanted.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-4);
                assert!(near, "{with:?} token {at}: {wanted:?} {found:?}");
            }
        }
        assert!(in_pages(&changed, &Config::of_one_layer()).unwrap().is_none());
    }
}

#[test]
fn a_score_of_zero_changes_the_logits_that_it_is_tested_with() {
    let [plain, smooth] = [With::Nothing, With::Smooth].map(|with| alone(&decoder(with), &[1, 2, 3]));
    assert!(plain.iter().zip(&smooth).any(|(a, b)| (a - b).abs() > 1e-2));
}

#[test]
fn graphs_that_can_have_no_pages_say_which_node_and_why() {
    for (with, node, why) in [
        (With::Length, "(Mul)", "how many tokens"),
        (With::Branch, "(If)", "chooses by the text"),
        (With::Largest, "(ReduceMax)", "joins the positions"),
        (With::Bias, "\"attention\" (GroupQueryAttention)", "bias"),
        (With::Codes, "\"attention\" (GroupQueryAttention)", "cache of codes"),
    ] {
        let e = paged(&decoder(with), &Config::of_one_layer()).unwrap_err();
        assert!(matches!(e, GenerateError::Unsupported(_)), "{e:?}");
        let e = e.to_string();
        assert!(e.contains(node) && e.contains(why), "{with:?}: {e}");
    }
    let layers = Config { layers: 2, ..Config::of_one_layer() };
    let e = paged(&decoder(With::Nothing), &layers).unwrap_err().to_string();
    assert!(e.contains("past_key_values.1.key"), "{e}");
}

#[test]
fn the_last_product_gets_the_wanted_rows_alone() {
    let graph = decoder(With::Nothing);
    let changed = paged(&graph, &Config::of_one_layer()).unwrap();
    let mut few = session(with_rows(&changed, "logits", 1).unwrap());
    put(&mut few, LOGIT_ROWS, &[2], &[2, 0]);
    let empty = Tensor::new([6, 2, 1, 4], &[0f32; 48]).unwrap();
    let found = together(&mut few, &mut [empty.clone(), empty], &[(0, &[1, 2, 3], [3, 2, -1])]);
    let wanted = alone(&graph, &[1, 2, 3]);
    let wanted: Vec<f32> = wanted[32..48].iter().chain(&wanted[..16]).copied().collect();
    let near = wanted.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-4);
    assert!(near && found.len() == 32, "{wanted:?} {found:?}");
    // What is no product with constants stays as it is.
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, ["n".into(), "n".into()]);
    let y = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[x, x]);
    g.output("logits", y);
    assert!(with_rows(&g.build().unwrap(), "logits", 0).is_none());
}

/// A weight that is computed of constants by many sums, each of which reads the one before twice.
#[test]
fn wanted_rows_are_found_before_long_chains_of_constants() {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [1.into(), "t".into(), WIDTH.into()]);
    let mut w = g.constant("w", Tensor::new([WIDTH, 16], &[0f32; WIDTH * 16]).unwrap());
    for _ in 0..50_000 {
        w = g.op(add(), &[w, w]);
    }
    let y = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[x, w]);
    g.output("logits", y);
    let rows = with_rows(&g.build().unwrap(), "logits", 1).unwrap();
    assert!(rows.input(LOGIT_ROWS).is_some());
}

/// A sum has a matrix that may have the rows too, and columns are no rows.
#[test]
fn wanted_rows_are_those_of_a_product_alone() {
    let takes_rows = |trans_a: bool, inputs: usize| {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, ["t".into(), "t".into()]);
        let w = g.constant("w", Tensor::new([4, 4], &[0f32; 16]).unwrap());
        let op = Gemm { trans_a, ..Gemm::default() };
        let y = g.op(Arc::new(op) as Arc<dyn Operator>, &[x, w, w][..inputs]);
        g.output("logits", y);
        with_rows(&g.build().unwrap(), "logits", 0).is_some()
    };
    assert_eq!([takes_rows(false, 2), takes_rows(true, 2), takes_rows(false, 3)], [true, false, false]);
}

#[test]
fn a_cache_of_codes_that_a_graph_declares_is_updated_in_place() {
    let session = session(decoder(With::Codes));
    let decoder = Decoder::new(session, &Config::of_one_layer(), Some(16), SampleOn::Host).unwrap();
    assert!(matches!(decoder.growth(), Growth::InPlace));
    // Two tensors of a head of four codes of a byte.
    assert_eq!(decoder.cache().unwrap().bytes(), 2 * 16 * 4);
    let typed = Config { cache_type: Some(CacheType::F16), ..Config::of_one_layer() };
    let session = self::session(self::decoder(With::Codes));
    let e = Decoder::new(session, &typed, Some(16), SampleOn::Host).unwrap_err().to_string();
    assert!(e.contains("has a cache of another type than its keys already"), "{e}");
}
