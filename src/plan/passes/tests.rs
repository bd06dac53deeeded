//! The pipeline as a whole, and the passes whose files have no tests of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use super::*;
use crate::backend::DeviceInfo;
use crate::dot::Unit;
use crate::dtype::{DType, Overflow};
use crate::graph::{GraphBuilder, StorageScope, Tensor, TensorId, TensorInfo};
use crate::kernel::Requires;
use crate::ops::attention::{Codes, Gate, MatMulNBits, SkipNorm};
use crate::ops::conv::Conv;
use crate::ops::linalg::MatMul;
use crate::ops::movement::Transpose;
use crate::ops::norm::{BatchNormalization, Softmax, SoftmaxKind};
use crate::ops::quant::{DequantizeLinear, QuantizeLinear};
use crate::ops::test_util::{attrs, read_op, tensor, values};
use crate::ops::{
    self, Activation, AttrReader, AttrValue, FAMILIES, Fact, Function, HalfRule, OpCx, Operator,
};
use crate::plan::{Assignment, PlanCache, specialize};
use crate::registry::Registry;
use crate::session::Session;

fn device(name: &str) -> DeviceInfo {
    Registry::with_defaults().find(name).unwrap()
}

fn op(g: &mut GraphBuilder, op: impl Operator, inputs: &[TensorId]) -> TensorId {
    g.op(Arc::new(op) as Arc<dyn Operator>, inputs)
}

/// The flow of a graph whose inputs have fixed shapes.
fn flow(graph: &Graph) -> Flow {
    let info = |id: &TensorId| {
        let t = graph.tensor(*id);
        TensorInfo::new(t.dtype.unwrap(), t.shape.as_ref().unwrap().concrete().unwrap())
    };
    let infos: Vec<TensorInfo> = graph.inputs().iter().map(info).collect();
    specialize(graph, &infos, &BTreeMap::new()).unwrap().plan().unwrap()
}

/// Calls `f` with the context of passes for `devices`.
fn with_cx<R>(
    devices: &[DeviceInfo],
    options: PlanOptions,
    assignment: Assignment,
    f: impl FnOnce(&PlanCx<'_>) -> R,
) -> R {
    let (devices, cache): (Vec<&DeviceInfo>, _) = (devices.iter().collect(), PlanCache::default());
    f(&PlanCx { devices: &devices, options: &options, assignment: &assignment, cache: &cache, updates: &[] })
}

fn names(flow: &Flow) -> Vec<&str> {
    flow.nodes.iter().map(|n| n.op.name()).collect()
}

/// `y = exp(relu(x))`, with a name for each node.
fn two() -> Graph {
    let mut g = GraphBuilder::new("two");
    let x = g.input("x", DType::F32, [2.into(), 4.into()]);
    let (_, r) = g.node("first", ops::unary(Function::Relu), &[Some(x)], 1);
    let (_, y) = g.node("second", ops::unary(Function::Exp), &[Some(r[0])], 1);
    g.output("y", y[0]);
    g.build().unwrap()
}

fn quantized(g: &mut GraphBuilder, x: TensorId, name: &str) -> TensorId {
    let scale = g.constant(format!("{name}:scale"), Tensor::scalar(0.02f32));
    let zero = g.constant(format!("{name}:zero"), Tensor::scalar(128u8));
    let to =
        QuantizeLinear { axis: 1, block_size: 0, overflow: Overflow::Saturate, dtype: None, precision: None };
    let bytes = op(g, to, &[x, scale, zero]);
    op(g, DequantizeLinear { axis: 1, block_size: 0, dtype: None }, &[bytes, scale, zero])
}

/// A graph with work for every pass: attention with transposed heads, a Swish and a chain, a normalized convolution
/// of large weights, a transposed weight, sums of bytes.
fn everything() -> Graph {
    let mut g = GraphBuilder::new("everything");
    let image = g.input("image", DType::F32, [1.into(), 64.into(), 4.into(), 4.into()]);
    let w = g.constant("w", tensor(&[64, 64, 1, 1], 1));
    let conv = op(&mut g, Conv::default(), &[image, w]);
    let parameters: Vec<TensorId> = (0..4)
        .map(|k| {
            let v: Vec<f32> = values(64, 10 + k).iter().map(|v| v.abs() + 0.5).collect();
            g.constant(format!("p{k}"), Tensor::new([64], &v).unwrap())
        })
        .collect();
    let norm = BatchNormalization { epsilon: 1e-3, activation: Activation::None, by_element: false };
    let normed = op(&mut g, norm, &[&[conv], &parameters[..]].concat());
    let normed = g.op(ops::unary(Function::Relu), &[normed]);
    g.output("normed", normed);
    let heads: Vec<TensorId> = ["q", "k", "v"]
        .into_iter()
        .map(|name| {
            let x = g.input(name, DType::F32, [1.into(), 5.into(), 2.into(), 8.into()]);
            let perm = if name == "k" { vec![0, 2, 3, 1] } else { vec![0, 2, 1, 3] };
            op(&mut g, Transpose { perm: Some(perm) }, &[x])
        })
        .collect();
    let scores = op(&mut g, MatMul::default(), &[heads[0], heads[1]]);
    let soft = op(&mut g, Softmax { kind: SoftmaxKind::Soft, axis: -1, flatten: false }, &[scores]);
    let y = op(&mut g, MatMul::default(), &[soft, heads[2]]);
    let y = op(&mut g, Transpose { perm: Some(vec![0, 2, 1, 3]) }, &[y]);
    g.output("attention", y);
    let r = g.input("r", DType::F32, [3.into(), 100.into()]);
    let turned = g.constant("turned", tensor(&[160, 100], 2));
    let turned = op(&mut g, Transpose { perm: Some(vec![1, 0]) }, &[turned]);
    let p = op(&mut g, MatMul::default(), &[r, turned]);
    let bias = g.constant("bias", tensor(&[160], 3));
    let p = g.op(ops::add(), &[p, bias]);
    let gate = g.op(ops::unary(Function::Sigmoid), &[p]);
    let swish = g.op(ops::mul(), &[p, gate]);
    let t = g.op(ops::unary(Function::Tanh), &[swish]);
    let chain = g.op(ops::sub(), &[t, p]);
    g.output("chain", chain);
    let a = quantized(&mut g, chain, "a");
    let b = g.op(ops::add(), &[a, a]);
    let b = quantized(&mut g, b, "b");
    g.output("bytes", b);
    g.build().unwrap()
}

/// The outputs of `graph`, and the reports of its passes.
fn run(graph: &Graph, precision: Precision, passes: PassSelection) -> (Vec<Vec<f32>>, Vec<PassReport>) {
    let builder = Session::builder().graph(graph.clone()).device("cpu").passes(passes).precision(precision);
    let mut session = builder.integers(Integers::Always).build().unwrap();
    for (i, io) in session.inputs().iter().enumerate() {
        let shape = io.shape.as_ref().unwrap().concrete().unwrap();
        session.set_input(&io.name, &tensor(shape.dims(), i as u64)).unwrap();
    }
    session.run().unwrap();
    let value = |(name, _): &(String, _)| session.get_output(name).unwrap().to_f32s().unwrap();
    let outputs = graph.outputs().iter().map(value).collect();
    (outputs, session.binding().unwrap().plan().report.passes.clone())
}

#[test]
fn results_are_equal_without_any_pass_that_may_be_left_out() {
    let graph = everything();
    // Quantized values may differ by one unit of 0.02, and by two after a sum.
    for (precision, off) in [(Precision::F32, 1e-4), (Precision::F16, 1e-2)] {
        let (want, reports) = run(&graph, precision, PassSelection::default());
        let ran: BTreeSet<&str> = reports.iter().filter(|r| r.changes > 0).map(|r| r.name).collect();
        let mut left_out = 0;
        let stopped = |name| PassSelection::default().stop_after(name).unwrap();
        let mut selections = vec![("all", stopped("specialize")), ("all", stopped("share_parameters"))];
        for pass in PIPELINE.iter().filter(|p| p.needed.is_none()) {
            selections.push((pass.name, PassSelection::default().without(pass.name).unwrap()));
        }
        for (name, selection) in selections {
            let (got, reports) = run(&graph, precision, selection);
            let status = reports.iter().find(|r| r.name == name).map(|r| r.status);
            let unasked =
                matches!(name, "all" | "share_parameters" | "share_new_parameters" | "exact_activations")
                    || (precision == Precision::F32 && matches!(name, "weights_to_f16" | "mixed_precision"));
            assert!(unasked || status == Some(PassStatus::LeftOut), "{name}: {status:?}");
            left_out += usize::from(ran.contains(name));
            for (output, (got, want)) in got.iter().zip(&want).enumerate() {
                let off = if output == 3 { off + 0.041 } else { off };
                assert_eq!(got.len(), want.len());
                for (g, w) in got.iter().zip(want) {
                    assert!((g - w).abs() <= off * w.abs().max(1.0), "{name}, output {output}: {g} for {w}");
                }
            }
        }
        // All passes but those of images, bound memory, other graphs and devices that compute natively have work here.
        assert_eq!(left_out, if precision == Precision::F16 { 10 } else { 8 }, "{ran:?}");
    }
}

#[test]
fn the_pipeline_is_in_order_and_every_pass_is_told_apart() {
    let names: BTreeSet<&str> = PIPELINE.iter().map(|p| p.name).collect();
    assert_eq!(names.len(), PIPELINE.len());
    assert!(PIPELINE.iter().all(|p| p.does.ends_with('.') && p.does.len() < 110));
    let rank = |run: &PassFn| match run {
        PassFn::Graph(_) | PassFn::Share => 0,
        PassFn::Specialize => 1,
        PassFn::Flow(_) => 2,
        PassFn::Placed(_) => 3,
        PassFn::Lower => 4,
        PassFn::Lowered(_) => 5,
    };
    assert!(PIPELINE.is_sorted_by_key(|p| rank(&p.run)));
    for once in [1, 4] {
        assert_eq!(PIPELINE.iter().filter(|p| rank(&p.run) == once).count(), 1);
    }
}

#[test]
fn passes_are_left_out_by_name() {
    let unknown = PassSelection::default().without("absorbs").unwrap_err().to_string();
    assert!(unknown.contains("no pass \"absorbs\"") && unknown.contains("fold_weights, "), "{unknown}");
    let needed = PassSelection::default().without("lower").unwrap_err().to_string();
    assert!(needed.contains("cannot be left out") && needed.contains("absorb"), "{needed}");
    assert!(!needed.contains("specialize"), "{needed}");
    assert!(PassSelection::default().stop_after("nothing").is_err());
    let selection = PassSelection::default().stop_after("absorb").unwrap().without("fold_weights").unwrap();
    let left: Vec<&str> = PIPELINE.iter().filter(|p| !selection.includes(p)).map(|p| p.name).collect();
    assert_eq!(
        left,
        [
            "fold_weights",
            "mixed_precision",
            "join_norms",
            "norms_in_products",
            "fuse_chains",
            "update_in_place",
            "place_in_images"
        ]
    );
}

#[test]
fn what_passes_did_is_reported() {
    let (_, reports) = run(&everything(), Precision::F32, PassSelection::default());
    assert_eq!(
        reports.iter().map(|r| r.name).collect::<Vec<_>>(),
        PIPELINE.iter().map(|p| p.name).collect::<Vec<_>>()
    );
    let of = |name: &str| reports.iter().find(|r| r.name == name).unwrap();
    for pair in reports.windows(2) {
        assert_eq!(pair[0].nodes_after, pair[1].nodes_before, "{pair:?}");
    }
    let changed = |names: &[&'static str]| names.iter().map(|n| of(n).changes).collect::<Vec<_>>();
    assert_eq!(changed(&["fold_weights", "fold_normalizations", "recognize_activations"]), [1, 1, 1]);
    assert_eq!(changed(&["recognize_attention", "fold_head_transposes", "fuse_chains"]), [1, 4, 2]);
    assert_eq!(of("weights_to_f16").status, PassStatus::NotAskedFor);
    let log = PassLog { passes: reports.clone() };
    assert_eq!((log.halved(), log.quantized()), (0, of("quantize").changes));
    assert!(log.quantized() >= 1 && log.fused() >= 8, "{log:#?}");
}

#[test]
fn share_is_asked_before_and_after_the_graph_changes() {
    let mut graph = everything();
    let before = graph.nodes().len();
    let options = PlanOptions::default();
    let cx = GraphCx { options: &options, devices: &[], free: false };
    let seen = std::cell::RefCell::new(Vec::new());
    let share = |graph: &mut Graph| -> Result<usize, Infallible> {
        seen.borrow_mut().push(graph.nodes().len());
        Ok(7)
    };
    let log = prepare_and_share(&mut graph, &cx, Some(&share)).unwrap();
    assert_eq!(*seen.borrow(), [before, before - 2]);
    let shared: Vec<usize> =
        log.passes.iter().filter(|p| p.name.starts_with("share")).map(|p| p.changes).collect();
    assert_eq!((shared, log.removed()), (vec![7, 7], 2));
    let refused = prepare_and_share(&mut graph, &cx, Some(&|_: &mut Graph| Err("full")));
    assert_eq!(refused.unwrap_err(), "full");
}

#[test]
fn exact_activations_take_the_rounding_from_products() {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [1.into(), 64.into()]);
    let codes = g.constant("codes", Tensor::new([3, 2, 16], &[0x99u8; 96]).unwrap());
    let scales = g.constant("scales", Tensor::new([3, 2], &[0.25f32; 6]).unwrap());
    let product = MatMulNBits { k: 64, n: 3, bits: 4, block: 32, rounds: true, codes: Codes::Whole };
    let y = op(&mut g, product, &[x, codes, scales]);
    g.output("y", y);
    let graph = g.build().unwrap();
    // Eight bits have no place for the small elements.
    let mut small = [0.4f32; 64];
    small[0] = 127.0;
    for (activations, changes) in [(Activations::Allowed, 0), (Activations::Exact, 1)] {
        let mut session =
            Session::builder().graph(graph.clone()).device("cpu").activations(activations).build().unwrap();
        let rounds = |node: &crate::graph::Node| node.op.with_exact_activations().is_some();
        assert_eq!(session.graph().nodes().iter().any(rounds), activations == Activations::Allowed);
        session.set_input("x", &Tensor::new([1, 64], &small).unwrap()).unwrap();
        session.run().unwrap();
        let y = session.get_output("y").unwrap().to_f32s().unwrap();
        let rounded = activations == Activations::Allowed && Unit::best().multiplies_many();
        let want = if rounded { (127.0 + 32.0 * 0.4) * 0.25 } else { (127.0 + 63.0 * 0.4) * 0.25 };
        assert!(y.iter().all(|y| (y - want).abs() < 1e-3), "{activations:?}: {y:?}");
        let reports = &session.binding().unwrap().plan().report.passes;
        assert_eq!(reports.iter().find(|r| r.name == "exact_activations").unwrap().changes, changes);
    }
}

#[test]
fn quantize_puts_operators_of_bytes_between_quantizations() {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [2.into(), 4.into()]);
    let a = quantized(&mut g, x, "a");
    let sum = g.op(ops::add(), &[a, a]);
    let b = quantized(&mut g, sum, "b");
    g.output("y", b);
    let graph = g.build().unwrap();
    let cpu = device("cpu");
    for (integers, made) in [(Integers::Always, 1), (Integers::Auto, 0)] {
        let options = PlanOptions { integers, ..PlanOptions::default() };
        // `sim` is no CPU whose vectors multiply bytes.
        let other = DeviceInfo { native: false, ..cpu.clone() };
        let mut rewritten = graph.clone();
        let cx = GraphCx { options: &options, devices: &[&other], free: false };
        assert_eq!(quantize::quantize(&mut rewritten, &cx), made);
        let names: Vec<&str> = rewritten.nodes().iter().map(|n| n.op.name()).collect();
        assert_eq!(names.contains(&"Add"), made == 0, "{names:?}");
    }
}

#[test]
fn absorb_takes_in_an_activation_that_alone_reads() {
    let graph = |shown: bool| {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [2.into(), 3.into()]);
        let w = g.constant("w", tensor(&[3, 3], 1));
        let p = op(&mut g, MatMul::default(), &[x, w]);
        let y = g.op(ops::unary(Function::Relu), &[p]);
        g.output("y", y);
        if shown {
            g.output("p", p);
        }
        g.build().unwrap()
    };
    let mut one = flow(&graph(false));
    assert_eq!((absorb::absorb(&mut one, Precision::F32).unwrap(), names(&one)), (1, vec!["MatMul"]));
    let mut apart = flow(&graph(true));
    assert_eq!(
        (absorb::absorb(&mut apart, Precision::F32).unwrap(), names(&apart)),
        (0, vec!["MatMul", "Relu"])
    );
}

#[test]
fn absorb_gives_products_of_codes_a_bias() {
    let absorbed = |columns: usize| {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [2.into(), 32.into()]);
        let codes = g.constant("codes", Tensor::new([3, 1, 16], &[0x79u8; 48]).unwrap());
        let scales = g.constant("scales", tensor(&[3, 1], 1));
        let product = MatMulNBits { k: 32, n: 3, bits: 4, block: 32, rounds: false, codes: Codes::Whole };
        let y = op(&mut g, product, &[x, codes, scales]);
        let bias = g.constant("bias", tensor(&[columns], 2));
        let y = g.op(ops::add(), &[bias, y]);
        g.output("y", y);
        let mut flow = flow(&g.build().unwrap());
        let gone = absorb::absorb(&mut flow, Precision::F32).unwrap();
        let bias = flow.nodes[0].inputs.get(5).copied().flatten();
        (gone, names(&flow).join(" "), bias.and_then(|v| flow.values[v].constant.clone()))
    };
    let (gone, left, bias) = absorbed(3);
    assert_eq!((gone, left.as_str()), (1, "MatMulNBits"));
    assert_eq!(bias.unwrap().to_f32s().unwrap(), tensor(&[3], 2).to_f32s().unwrap());
    assert_eq!((absorbed(1).0, absorbed(1).1.as_str()), (0, "MatMulNBits Add"));
}

/// The gated product of a decoder: two products of one input, of which one goes through a function.
#[test]
fn join_gates_makes_one_node_of_products_that_meet() {
    let graph = |rows: usize, shown: bool, spelled: bool| {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F16, [rows.into(), 32.into()]);
        let half = |seed| {
            Tensor::new(
                [32, 64],
                &values(2048, seed).into_iter().map(half::f16::from_f32).collect::<Vec<_>>(),
            )
            .unwrap()
        };
        let [gate, up] = ["gate", "up"].map(|name| {
            let w = g.constant(name, half(name.len() as u64));
            op(&mut g, MatMul::default(), &[x, w])
        });
        let y = if spelled {
            let active = g.op(ops::unary(Function::Sigmoid), &[gate]);
            let active = g.op(ops::mul(), &[gate, active]);
            g.op(ops::mul(), &[active, up])
        } else {
            op(&mut g, Gate::SwiGlu { alpha: 1.0 }, &[gate, up])
        };
        g.output("y", y);
        if shown {
            g.output("up", up);
        }
        g.build().unwrap()
    };
    let joined = |rows: usize, shown: bool, spelled: bool, name: &str| {
        let mut flow = flow(&graph(rows, shown, spelled));
        recognize_activations(&mut flow);
        let assignment = if name == "open" { Assignment::Open } else { Assignment::default() };
        let mut device = device(if name == "cpu" { "cpu" } else { "sim" });
        if name != "cpu" {
            (device.native, device.features) = (false, Requires::STORAGE_16.union(Requires::FLOAT16));
        }
        device.prefers_texels = false;
        let before = flow.nodes.len();
        let gone = with_cx(&[device], PlanOptions::default(), assignment, |cx| {
            join_gates::join_gates(&mut flow, cx)
        });
        assert_eq!(before - flow.nodes.len(), gone);
        names(&flow).join(" ")
    };
    assert_eq!(joined(1, false, true, "sim"), "GatedMatMul");
    assert_eq!(joined(4, false, false, "sim"), "GatedMatMul");
    // What else reads a product, or many rows, or a native function, leave it alone.
    assert_eq!(joined(1, true, true, "sim"), "MatMul MatMul Swish Mul");
    assert_eq!(joined(5, false, false, "sim"), "MatMul MatMul SwiGLU");
    assert_eq!(joined(1, false, false, "cpu"), "MatMul MatMul SwiGLU");
    assert_eq!(joined(1, false, false, "open"), "MatMul MatMul SwiGLU");
}

#[test]
fn mixed_precision_converts_around_what_must_stay() {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [32.into(), 256.into()]);
    let w = g.constant("w", tensor(&[256, 256], 1));
    let p = op(&mut g, MatMul::default(), &[x, w]);
    let e = g.op(ops::unary(Function::Exp), &[p]);
    let w = g.constant("v", tensor(&[256, 256], 2));
    let y = op(&mut g, MatMul::default(), &[e, w]);
    g.output("y", y);
    let mut flow = flow(&g.build().unwrap());
    let half = || PlanOptions { precision: Precision::F16, ..PlanOptions::default() };
    let changed = with_cx(&[device("cpu")], half(), Assignment::default(), |cx| {
        mixed_precision::mixed_precision(&mut flow, cx)
    });
    assert_eq!(changed, Ok(2));
    assert_eq!(names(&flow), ["Cast", "MatMul", "Cast", "Exp", "Cast", "MatMul", "Cast"]);
    assert_eq!(flow.values[flow.outputs[0].1].info.dtype, DType::F32);
}

/// Statistics are `float32` whatever a normalization is of.
#[test]
fn mixed_precision_leaves_statistics_as_they_are() {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [32.into(), 64.into()]);
    let [w, v] = ["w", "v"].map(|name| g.constant(name, tensor(&[64, 64], u64::from(name == "v") + 1)));
    let scale = g.constant("scale", tensor(&[64], 3));
    let p = op(&mut g, MatMul::default(), &[x, w]);
    let norm = Arc::new(SkipNorm { epsilon: 1e-3, center: true }) as Arc<dyn Operator>;
    let (_, normed) = g.node("norm", norm, &[Some(x), Some(p), Some(scale)], 4);
    let z = op(&mut g, MatMul::default(), &[normed[0], v]);
    let y = g.op(ops::add(), &[z, normed[3]]);
    g.output("y", y);
    g.output("mean", normed[1]);
    let mut flow = flow(&g.build().unwrap());
    let half = PlanOptions { precision: Precision::F16, ..PlanOptions::default() };
    let changed = with_cx(&[device("cpu")], half, Assignment::default(), |cx| {
        mixed_precision::mixed_precision(&mut flow, cx)
    });
    assert_eq!(changed, Ok(4));
    assert_eq!(names(&flow), ["Cast", "MatMul", "SkipLayerNormalization", "MatMul", "Add", "Cast"]);
    let norm = &flow.nodes[2];
    let types = norm.outputs.iter().map(|v| flow.values[*v].info.dtype);
    assert_eq!(types.collect::<Vec<_>>(), [DType::F16, DType::F32, DType::F32, DType::F16]);
    assert!(flow.outputs.iter().all(|(_, v)| flow.values[*v].info.dtype == DType::F32));
}

#[test]
fn place_nodes_takes_the_caller_before_the_graph() {
    let mut graph = two();
    graph.place(crate::graph::NodeId(0), Some(1));
    graph.place(crate::graph::NodeId(1), Some(1));
    let table = [device("cpu"), device("sim")];
    let placed = |options: PlanOptions| {
        let mut flow = flow(&graph);
        let count =
            with_cx(&table, options, Assignment::All(0), |cx| place_nodes::place_nodes(&mut flow, cx));
        count.map(|n| (n, flow.nodes.iter().map(|n| n.device).collect::<Vec<_>>()))
    };
    let by_name = BTreeMap::from([("first".to_owned(), 0)]);
    let options = PlanOptions { place_nodes: by_name, ..PlanOptions::default() };
    assert_eq!(placed(options), Ok((2, vec![Some(0), Some(1)])));
    let by_op = BTreeMap::from([("Exp".to_owned(), 7)]);
    let e = placed(PlanOptions { place_ops: by_op, ..PlanOptions::default() }).unwrap_err();
    assert!(matches!(e, PlanError::UnknownDevice { device: 7, devices: 2, .. }), "{e}");
}

#[test]
fn assign_devices_fills_in_what_nothing_placed() {
    let table = [device("cpu"), device("sim")];
    let assigned = |devices: &[u32]| {
        let mut flow = flow(&two());
        flow.nodes[0].device = Some(1);
        let each = Assignment::Each(devices.into());
        let count =
            with_cx(&table, PlanOptions::default(), each, |cx| place_nodes::assign_devices(&mut flow, cx));
        count.map(|n| (n, flow.nodes.iter().map(|n| n.device).collect::<Vec<_>>()))
    };
    assert_eq!(assigned(&[0, 0]), Ok((1, vec![Some(1), Some(0)])));
    assert_eq!(assigned(&[0]), Err(PlanError::Assignment { assigned: 1, nodes: 2 }));
    assert!(matches!(assigned(&[0, 3]), Err(PlanError::UnknownDevice { device: 3, .. })));
}

#[test]
fn place_in_images_takes_tensors_whose_readers_read_images() {
    let mut g = GraphBuilder::new("g");
    let pool = || {
        let two = || AttrValue::Ints(vec![2, 2]);
        read_op("MaxPool", 11, &attrs(&[("kernel_shape", two()), ("strides", two())])).unwrap()
    };
    let [x, z] = ["x", "z"].map(|name| g.input(name, DType::F32, [1.into(), 2.into(), 4.into(), 4.into()]));
    let y = g.op(pool(), &[x]);
    let e = g.op(ops::unary(Function::Exp), &[z]);
    [x, z].into_iter().for_each(|id| g.set_scope(id, StorageScope::Planes));
    g.output("y", y);
    g.output("e", e);
    let mut flow = flow(&g.build().unwrap());
    // Row strides are known only for an open device.
    let open = Registry::with_defaults().open("sim", &Default::default()).unwrap();
    let count = with_cx(&[open.info().clone()], PlanOptions::default(), Assignment::default(), |cx| {
        place_in_images::place_in_images(&mut flow, cx)
    });
    assert_eq!((count, names(&flow)), (Ok(1), vec!["ImageCopy", "MaxPool", "Exp"]));
    assert!(flow.images.contains_key(&flow.nodes[0].outputs[0]));
    let [of_x, of_z] = &flow.image_reports[..] else { panic!("{:?}", flow.image_reports) };
    assert_eq!(
        (of_x.image.is_some(), of_x.copied, of_z.image, of_z.reason.is_some()),
        (true, true, None, true)
    );
}

#[test]
fn lower_and_copy_between_devices_give_every_node_its_work() {
    let cpu = device("cpu");
    let apart = DeviceInfo { import: None, ..device("sim") };
    let mut options = PlanOptions::default();
    options.place_nodes.insert("second".to_owned(), 1);
    let lowered = with_cx(&[cpu.clone(), apart], options, Assignment::default(), |cx| {
        let mut flow = flow(&two());
        place_nodes::place_nodes(&mut flow, cx).unwrap();
        let mut lowered = LoweredFlow { flow, ..LoweredFlow::default() };
        assert_eq!(lowered.lower(cx), Ok(2));
        let copies = copy_between_devices::copy_between_devices(&mut lowered, cx);
        (copies, lowered)
    });
    let (copies, lowered) = lowered;
    assert_eq!((copies, names(&lowered.flow)), (Ok(1), vec!["Relu", "Exp", "Copy"]));
    assert_eq!(lowered.nodes.iter().map(|n| n.device).collect::<Vec<_>>(), [0, 1, 1]);
    assert_eq!(lowered.crossings.len(), 1);
    assert_eq!(lowered.crossings[0].path, Crossing::Staged);
    assert_eq!(
        lowered.flow.nodes[1].inputs,
        lowered.flow.nodes[2].outputs.iter().map(|v| Some(*v)).collect::<Vec<_>>()
    );
}

/// All operators that need no attributes, by name.
fn plain_operators() -> Vec<(&'static str, Arc<dyn Operator>)> {
    let made = FAMILIES.iter().flat_map(|f| f.ops).filter(|d| d.domain.is_empty());
    let made = made.filter_map(|d| {
        let none = attrs(&[]);
        let op = (d.read)(&mut AttrReader::new(&none, 1, 1), d.since.max(24)).ok()?;
        Some((op.name(), op))
    });
    made.collect()
}

#[test]
fn operators_say_how_they_take_part_in_half_precision() {
    let all = plain_operators();
    assert!(all.len() > 120, "{}", all.len());
    let full = [
        "CastLike",
        "ConvInteger",
        "CumSum",
        "DFT",
        "Det",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "Exp",
        "Log",
        "MatMulInteger",
        "Pow",
        "QuantizeLinear",
        "Range",
        "Reciprocal",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMean",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "STFT",
        "Sqrt",
    ];
    let named = |rule: HalfRule| -> BTreeSet<&str> {
        all.iter().filter(|(_, op)| op.half_rule() == rule).map(|(name, _)| *name).collect()
    };
    assert_eq!(named(HalfRule::Full), BTreeSet::from(full));
    assert_eq!(named(HalfRule::Mask), BTreeSet::from(["Add", "Expand", "Mul", "Sub", "Where"]));
    for (name, needed) in [("Cast", "to"), ("BitCast", "to")] {
        let op = read_op(name, 27, &attrs(&[(needed, AttrValue::Int(1))])).unwrap();
        assert_eq!(op.half_rule(), HalfRule::Full, "{name}");
    }
}

#[test]
fn operators_say_whether_they_move_bytes_as_numbers() {
    let moves: BTreeSet<&str> = plain_operators()
        .into_iter()
        .filter(|(_, op)| op.quantized_move(&OpCx::default()))
        .map(|(name, _)| name)
        .collect();
    let want = [
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Pad",
        "Reshape",
        "Resize",
        "ReverseSequence",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    ];
    assert_eq!(moves, BTreeSet::from(want));
    let two = || attrs(&[("blocksize", AttrValue::Int(2))]);
    for name in ["DepthToSpace", "SpaceToDepth"] {
        assert!(read_op(name, 13, &two()).unwrap().quantized_move(&OpCx::default()), "{name}");
    }
    // Padding must have a byte, and positions are those of the values themselves.
    let pad = read_op("Pad", 13, &attrs(&[])).unwrap();
    let with = |value: f32| vec![None, None, Some(Fact::known(Tensor::scalar(value)))];
    assert!(pad.quantized_move(&OpCx::for_infer(with(0.0), 1)));
    assert!(!pad.quantized_move(&OpCx::for_infer(with(1.0), 1)));
    let kernel = ("kernel_shape", AttrValue::Ints(vec![2, 2]));
    let pool = |name| read_op(name, 12, &attrs(std::slice::from_ref(&kernel))).unwrap();
    let moved = |op: &dyn Operator, outputs| op.quantized_move(&OpCx::for_infer(Vec::new(), outputs));
    assert!(moved(pool("MaxPool").as_ref(), 1) && !moved(pool("MaxPool").as_ref(), 2));
    assert!(!moved(pool("AveragePool").as_ref(), 1));
}
