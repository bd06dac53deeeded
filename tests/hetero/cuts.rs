//! Models split at every possible cut between two devices.

use std::path::Path;
use std::sync::Arc;

use onepool::device::Context;
use onepool::graph::NodeId;
use onepool::{DType, Graph, GraphBuilder, Memory, Session, ops};

use crate::common::{
    abs, all_share, check_messages, check_nothing_copied, floats, in_place, numbers, op, open_all, recorded,
    region, shape, tensor,
};

/// Tables whose cuts copy nothing.
const TABLES: &[[&str; 2]] =
    &[["cpu", "vulkan"], ["cpu", "sim:coherent"], ["cpu", "sim:noncoherent"], ["vulkan", "vulkan"]];

/// Three branches of one input that meet twice, with values that several nodes read.
fn branching() -> Graph {
    let mut g = GraphBuilder::new("branching");
    let x = g.input("x", DType::F32, [8.into(), 40.into()]);
    let w = g.constant("w", tensor(&[40, 40], &numbers(1600, 5)));
    let a = g.op(abs(), &[x]);
    let b = g.op(op("Neg"), &[x]);
    let c = g.op(op("MatMul"), &[a, w]);
    let d = g.op(ops::add(), &[b, c]);
    let e = g.op(op("Relu"), &[d]);
    let f = g.op(ops::mul(), &[a, e]);
    let h = g.op(ops::sub(), &[f, b]);
    g.output("e", e);
    g.output("h", h);
    g.build().unwrap()
}

fn denoise() -> Graph {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/denoise.onnx");
    onepool::loader::load(&path).unwrap()
}

struct Run {
    outputs: Vec<Vec<f32>>,
    segments: usize,
}

/// Runs `graph` with everything bound in the caller's memory, twice, and checks that nothing is copied.
fn run(graph: &Graph, contexts: &[Context], dims: &[usize], x: &[f32], what: &str) -> Run {
    let mut builder = Session::builder().graph(graph.clone()).copy_threshold(0).strict(in_place(contexts));
    for context in contexts {
        builder = builder.context(context.clone());
    }
    let session = builder.build().unwrap();
    let (input, name) = (region(x), session.inputs()[0].name.clone());
    let bind = || session.bind().input(&name, Memory::region(&input).shape(shape(dims)));
    let outputs: Vec<_> = bind().plan().unwrap().outputs;
    let memory: Vec<_> =
        outputs.iter().map(|o| region(&vec![f32::NAN; o.info.elements()])).collect::<Vec<Arc<_>>>();
    let bound = outputs.iter().zip(&memory).fold(bind(), |b, (o, m)| b.output(&o.name, Memory::region(m)));
    let mut binding = bound.build().unwrap();
    binding.run().unwrap();
    let first: Vec<Vec<f32>> = memory.iter().map(|m| floats(m)).collect();
    memory.iter().for_each(|m| m.write().unwrap().fill(0xff));
    binding.run().unwrap();
    assert_eq!(memory.iter().map(|m| floats(m)).collect::<Vec<_>>(), first, "{what}: the second run");
    check_nothing_copied(binding.plan(), what);
    assert!(!in_place(contexts) || binding.bytes_moved().0 == 0, "{what}");
    Run { outputs: first, segments: binding.plan().segments.len() }
}

/// Nodes before `cut` on entry `first`, the others on the other one.
fn cut_at(graph: &Graph, cut: usize, first: u32) -> Graph {
    let mut graph = graph.clone();
    for n in 0..graph.nodes().len() {
        graph.place(NodeId(n as u32), Some(if n < cut { first } else { 1 - first }));
    }
    graph
}

fn every_cut(graph: &Graph, dims: &[usize], table: &[&str], tolerance: f32) {
    let contexts = open_all(table);
    let x = numbers(dims.iter().product(), 1);
    let count = graph.nodes().len();
    let whole = run(&cut_at(graph, count, 0), &contexts, dims, &x, "whole").outputs;
    for first in [0, 1] {
        let mut most = 0;
        for cut in 0..=count {
            let what = format!("{table:?}: the first {cut} nodes on {first}");
            let run = run(&cut_at(graph, cut, first), &contexts, dims, &x, &what);
            most = most.max(run.segments);
            for (got, want) in run.outputs.iter().zip(&whole) {
                for (i, (got, want)) in got.iter().zip(want).enumerate() {
                    let close = (got - want).abs() <= tolerance * want.abs().max(1.0);
                    assert!(close, "{what}: element {i} is {got}, expected {want}");
                }
            }
        }
        assert!(most >= 2, "{table:?}: no cut made two segments");
    }
    check_messages(&contexts);
}

#[test]
fn a_branching_graph_gives_the_same_at_every_cut() {
    let recorded: Vec<_> = recorded().filter(|table| all_share(&open_all(table))).collect();
    assert!(recorded.len() >= 4, "{recorded:?}");
    for table in TABLES.iter().copied().chain(recorded) {
        every_cut(&branching(), &[8, 40], &table, 0.0);
    }
}

#[test]
fn a_model_gives_the_same_at_every_cut_between_cpu_and_vulkan() {
    every_cut(&denoise(), &[1, 3, 16, 16], &["cpu", "vulkan"], 1e-4);
}

#[test]
fn a_model_gives_the_same_at_every_cut_between_cpu_and_sim() {
    every_cut(&denoise(), &[1, 3, 8, 8], &["cpu", "sim:noncoherent"], 1e-4);
}

/// Where bytes must be copied, the result is the same all the same.
#[test]
fn a_branching_graph_gives_the_same_where_devices_share_nothing() {
    let alone = recorded().filter(|table| !all_share(&open_all(table)));
    for table in [["cpu", "alone"], ["alone", "vulkan"], ["cpu", "sim:discrete"]].into_iter().chain(alone) {
        let (graph, contexts) = (branching(), open_all(&table));
        let x = tensor(&[8, 40], &numbers(320, 1));
        let result = |graph: Graph| {
            let mut builder = Session::builder().graph(graph);
            for context in &contexts {
                builder = builder.context(context.clone());
            }
            let mut session = builder.build().unwrap();
            session.set_input("x", &x).unwrap();
            session.run().unwrap();
            ["e", "h"].map(|name| session.get_output(name).unwrap().as_slice::<f32>().unwrap().to_vec())
        };
        let count = graph.nodes().len();
        let whole = result(cut_at(&graph, count, 0));
        for first in [0, 1] {
            for cut in 0..=count {
                assert_eq!(result(cut_at(&graph, cut, first)), whole, "{table:?}: {cut} nodes on {first}");
            }
        }
        check_messages(&contexts);
    }
}
