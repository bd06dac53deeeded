//! Random graphs on random devices compute what one device computes.

use onepool::device::Context;
use onepool::graph::NodeId;
use onepool::session::SessionBuilder;
use onepool::{DType, Graph, GraphBuilder, Memory, Session, ops};
use proptest::prelude::*;

use crate::common::{abs, check_messages, floats, numbers, op, open_all, region};

pub(crate) const N: usize = 600;

/// A node: what it computes, which values it reads, where it runs, and a node that it waits for.
pub(crate) type Drawn = (u8, usize, usize, u32, usize);

/// A graph over one input; each node reads values before it, every third value is an output.
pub(crate) fn graph(nodes: &[Drawn]) -> Graph {
    let mut g = GraphBuilder::new("random");
    let x = g.input("x", DType::F32, [N.into()]);
    let mut values = vec![x];
    let mut ids = Vec::new();
    for (i, (kind, a, b, _, before)) in nodes.iter().enumerate() {
        let (a, b) = (values[a % values.len()], values[b % values.len()]);
        let (op, inputs) = match kind % 5 {
            0 => (op("Neg"), vec![Some(a)]),
            1 => (abs(), vec![Some(a)]),
            2 => (op("Relu"), vec![Some(a)]),
            3 => (ops::add(), vec![Some(a), Some(b)]),
            _ => (ops::sub(), vec![Some(a), Some(b)]),
        };
        let (id, made) = g.node(format!("n{i}"), op, &inputs, 1);
        if kind % 7 == 0 && i > 0 {
            g.control_dep(id, ids[before % i]);
        }
        ids.push(id);
        values.push(made[0]);
        if i % 3 == 2 || i + 1 == nodes.len() {
            g.output(format!("y{i}"), made[0]);
        }
    }
    g.build().unwrap()
}

pub(crate) fn place(graph: &Graph, on: impl Fn(usize) -> u32) -> Graph {
    let mut placed = graph.clone();
    for (n, node) in graph.nodes().iter().enumerate() {
        placed.place(NodeId(n as u32), Some(on(node.name[1..].parse().unwrap())));
    }
    placed
}

fn results(graph: Graph, contexts: &[Context], fuse: bool) -> Vec<Vec<f32>> {
    results_of(Session::builder().fuse(fuse), graph, contexts)
}

pub(crate) fn results_of(builder: SessionBuilder, graph: Graph, contexts: &[Context]) -> Vec<Vec<f32>> {
    let mut builder = builder.graph(graph).copy_threshold(0);
    for context in contexts {
        builder = builder.context(context.clone());
    }
    let session = builder.build().unwrap();
    let x = region(&numbers(N, 1));
    let memory: Vec<_> = session.outputs().iter().map(|_| region(&vec![f32::NAN; N])).collect();
    let bind = session.bind().input("x", Memory::region(&x));
    let names = session.outputs();
    let bind = names.iter().zip(&memory).fold(bind, |b, (o, m)| b.output(&o.name, Memory::region(m)));
    let mut binding = bind.build().unwrap();
    binding.run().unwrap();
    let first: Vec<Vec<f32>> = memory.iter().map(|m| floats(m)).collect();
    binding.run().unwrap();
    let names: Vec<_> = contexts.iter().map(|c| &c.info().name).collect();
    assert_eq!(memory.iter().map(|m| floats(m)).collect::<Vec<_>>(), first, "{names:?}");
    first
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_give_the_same_on_any_devices(
        nodes in prop::collection::vec((any::<u8>(), any::<usize>(), any::<usize>(), 0u32..3, any::<usize>()), 2..14),
        fuse in any::<bool>(),
    ) {
        let graph = graph(&nodes);
        for table in [["cpu", "sim:noncoherent", "alone"], ["sim:coherent", "cpu", "cpu"], ["cpu", "bus", "alone"]] {
            let contexts = open_all(&table);
            let whole = results(place(&graph, |_| 0), &contexts, fuse);
            let split = results(place(&graph, |n| nodes[n].3), &contexts, fuse);
            prop_assert_eq!(whole, split, "{:?}", table);
            check_messages(&contexts);
        }
    }
}

/// A device that reads again what it wrote into memory that the host may have a stale view of.
#[test]
fn a_device_keeps_what_it_wrote_into_memory_that_it_reads_again() {
    let nodes = [(0, 0, 0, 2, 0), (140, 0, 0, 2, 0), (225, 0, 0, 1, 0), (198, 3, 1, 1, 0)];
    let contexts = open_all(&["cpu", "sim:noncoherent", "alone"]);
    let graph = graph(&nodes);
    let whole = results(place(&graph, |_| 0), &contexts, false);
    assert_eq!(whole, results(place(&graph, |n| nodes[n].3), &contexts, false));
    check_messages(&contexts);
}
