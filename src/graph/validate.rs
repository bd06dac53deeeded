//! Soundness of a graph: every handle exists, every tensor is produced, no cycle.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use super::{Graph, GraphError, NodeId, Origin, TensorId};

/// Checks `graph` and brings its nodes into an order in which producers come first; ties keep the
/// order of addition.
pub(super) fn check_and_sort(graph: &mut Graph) -> Result<(), GraphError> {
    check_handles(graph)?;
    let order = topological_order(graph)?;
    apply_order(graph, &order);
    Ok(())
}

fn check_handles(graph: &Graph) -> Result<(), GraphError> {
    let tensor_ok = |id: TensorId| {
        if id.index() < graph.tensors.len() {
            Ok(())
        } else {
            Err(GraphError::Unknown { what: "tensor", index: id.0 })
        }
    };
    let produced = |id: TensorId, user: &dyn Fn() -> String| {
        tensor_ok(id)?;
        match graph.tensor(id).origin {
            Origin::Node { node, .. } if node.index() >= graph.nodes.len() => {
                Err(GraphError::Dangling { name: graph.tensor(id).name.clone(), user: user() })
            }
            Origin::Unmade => Err(GraphError::Dangling { name: graph.tensor(id).name.clone(), user: user() }),
            _ => Ok(()),
        }
    };
    for node in &graph.nodes {
        for &id in node.inputs.iter().flatten() {
            produced(id, &|| graph.called(node))?;
        }
        for &id in node.outputs.iter().flatten() {
            tensor_ok(id)?;
        }
        for dep in &node.control_deps {
            if dep.index() >= graph.nodes.len() {
                return Err(GraphError::Unknown { what: "node", index: dep.0 });
            }
        }
    }
    // A tensor written by two nodes keeps the later origin: the earlier node's claim then disagrees.
    for (n, node) in graph.nodes.iter().enumerate() {
        for (o, id) in node.outputs.iter().enumerate() {
            let Some(id) = id else { continue };
            let claim = Origin::Node { node: NodeId(n as u32), output: o as u32 };
            let agrees = matches!((&graph.tensor(*id).origin, &claim),
                (Origin::Node { node: a, output: b }, Origin::Node { node: c, output: d }) if a == c && b == d);
            if !agrees {
                return Err(GraphError::Duplicate {
                    what: "producers",
                    name: graph.tensor(*id).name.clone(),
                });
            }
        }
    }
    if graph.outputs.is_empty() {
        return Err(GraphError::NoOutput);
    }
    let mut names = HashSet::new();
    for (name, id) in &graph.outputs {
        produced(*id, &|| "output".to_owned())?;
        if !names.insert(name) {
            return Err(GraphError::Duplicate { what: "outputs", name: name.clone() });
        }
    }
    Ok(())
}

fn topological_order(graph: &Graph) -> Result<Vec<NodeId>, GraphError> {
    let n = graph.nodes.len();
    let mut users: Vec<Vec<u32>> = vec![Vec::new(); n];
    let mut waits = vec![0u32; n];
    for (i, node) in graph.nodes.iter().enumerate() {
        let mut before: Vec<NodeId> = node.control_deps.clone();
        for &id in node.inputs.iter().flatten() {
            if let Origin::Node { node, .. } = graph.tensor(id).origin {
                before.push(node);
            }
        }
        before.sort_unstable();
        before.dedup();
        for b in before {
            users[b.index()].push(i as u32);
            waits[i] += 1;
        }
    }
    let mut ready: BinaryHeap<Reverse<u32>> =
        (0..n as u32).filter(|&i| waits[i as usize] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(n);
    while let Some(Reverse(i)) = ready.pop() {
        order.push(NodeId(i));
        for &u in &users[i as usize] {
            waits[u as usize] -= 1;
            if waits[u as usize] == 0 {
                ready.push(Reverse(u));
            }
        }
    }
    match waits.iter().position(|&w| w > 0) {
        Some(stuck) => Err(GraphError::Cycle { node: graph.called(&graph.nodes[stuck]) }),
        None => Ok(order),
    }
}

fn apply_order(graph: &mut Graph, order: &[NodeId]) {
    let mut position = vec![NodeId(0); order.len()];
    for (new, old) in order.iter().enumerate() {
        position[old.index()] = NodeId(new as u32);
    }
    let mut old: Vec<Option<super::Node>> = std::mem::take(&mut graph.nodes).into_iter().map(Some).collect();
    graph.nodes = order.iter().filter_map(|id| old[id.index()].take()).collect();
    for node in &mut graph.nodes {
        for dep in &mut node.control_deps {
            *dep = position[dep.index()];
        }
    }
    for t in &mut graph.tensors {
        if let Origin::Node { node, .. } = &mut t.origin
            && node.index() < position.len()
        {
            *node = position[node.index()];
        }
    }
}
