//! Puts a graph in the place of a node.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Graph, GraphError, Node, NodeId, Origin, TensorDecl, TensorId, validate};
use crate::limits;
use crate::operator::Operator;

impl Graph {
    /// This graph with the nodes of `body` in place of node `at`: `inputs` are the tensors that stand for the
    /// inputs of `body`, and its outputs become the node's. `identity` passes on what no node of `body` makes.
    ///
    /// # Errors
    /// [`GraphError::Unknown`] for a node that does not exist, [`GraphError::Limit`]; [`GraphError::Dangling`]
    /// where `body` has fewer outputs than the node.
    pub fn inlined(
        &self,
        at: NodeId,
        body: &Graph,
        inputs: &[Option<TensorId>],
        identity: &Arc<dyn Operator>,
    ) -> Result<Graph, GraphError> {
        let mut graph = self.clone();
        let node = self.nodes.get(at.index()).ok_or(GraphError::Unknown { what: "node", index: at.0 })?;
        let total = graph.tensors.len().saturating_add(body.tensors.len());
        if total > limits::MAX_TENSORS {
            return Err(GraphError::Limit { what: "tensors", found: total, limit: limits::MAX_TENSORS });
        }
        let (mut map, passed) = self.outer_tensors(node, body, inputs)?;
        let mut names: HashSet<String> = graph.tensors.iter().map(|t| t.name.clone()).collect();
        let first = graph.nodes.len() as u32;
        for (t, decl) in body.tensors.iter().enumerate() {
            let absent_input = matches!(decl.origin, Origin::Input);
            if map[t].is_none() && !absent_input {
                let id = TensorId(graph.tensors.len() as u32);
                let name = unique(&mut names, &node.name, &decl.name);
                graph.tensors.push(TensorDecl { name, ..decl.clone() });
                map[t] = Some(id);
            }
        }
        let mapped = |ids: &[Option<TensorId>]| -> Vec<Option<TensorId>> {
            ids.iter().map(|id| id.and_then(|id| map[id.index()])).collect()
        };
        for inner in &body.nodes {
            let id = NodeId(graph.nodes.len() as u32);
            let outputs = mapped(&inner.outputs);
            for (o, output) in outputs.iter().enumerate() {
                if let Some(decl) = output.and_then(|t| graph.tensors.get_mut(t.index())) {
                    decl.origin = Origin::Node { node: id, output: o as u32 };
                }
            }
            let deps = inner.control_deps.iter().map(|d| NodeId(first + d.0));
            graph.nodes.push(Node {
                name: if node.name.is_empty() {
                    inner.name.clone()
                } else {
                    format!("{}/{}", node.name, inner.name)
                },
                inputs: mapped(&inner.inputs),
                outputs,
                control_deps: deps.chain(node.control_deps.iter().copied()).collect(),
                device: inner.device.or(node.device),
                op: inner.op.clone(),
            });
        }
        for (inner, id) in passed {
            let from = map[inner.index()];
            let made = NodeId(graph.nodes.len() as u32);
            graph.tensors[id.index()].origin = Origin::Node { node: made, output: 0 };
            graph.nodes.push(Node {
                name: format!("{}/identity", node.name),
                op: identity.clone(),
                inputs: vec![from],
                outputs: vec![Some(id)],
                device: node.device,
                control_deps: node.control_deps.clone(),
            });
        }
        let made: Vec<NodeId> = (first..graph.nodes.len() as u32).map(NodeId).collect();
        for waiting in graph.nodes.iter_mut().filter(|n| n.control_deps.contains(&at)) {
            waiting.control_deps.extend(&made);
        }
        graph.remove_node(at);
        validate::check_and_sort(&mut graph)?;
        Ok(graph)
    }

    /// For each tensor of `body` the one of this graph that it is, and the tensors of `body` that are passed on to outputs
    /// of `node`.
    fn outer_tensors(
        &self,
        node: &Node,
        body: &Graph,
        inputs: &[Option<TensorId>],
    ) -> Result<(Vec<Option<TensorId>>, Vec<(TensorId, TensorId)>), GraphError> {
        let mut map: Vec<Option<TensorId>> = vec![None; body.tensors.len()];
        for (i, id) in body.inputs.iter().enumerate() {
            map[id.index()] = inputs.get(i).copied().flatten();
        }
        // An output that a node of the body makes is made in place; others are passed through.
        let mut passed = Vec::new();
        for (o, id) in node.outputs.iter().enumerate() {
            let Some(id) = *id else { continue };
            let Some((_, inner)) = body.outputs.get(o) else {
                let name = self.tensor(id).name.clone();
                return Err(GraphError::Dangling { name, user: format!("output {o} of a branch") });
            };
            let by_node = matches!(body.tensor(*inner).origin, Origin::Node { .. });
            match &mut map[inner.index()] {
                slot @ None if by_node => *slot = Some(id),
                _ => passed.push((*inner, id)),
            }
        }
        Ok((map, passed))
    }

    /// Removes node `at`, which no one reads any more.
    fn remove_node(&mut self, at: NodeId) {
        let moved = |id: NodeId| if id > at { NodeId(id.0 - 1) } else { id };
        self.nodes.remove(at.index());
        for node in &mut self.nodes {
            node.control_deps.retain(|d| *d != at);
            node.control_deps.iter_mut().for_each(|d| *d = moved(*d));
        }
        for t in &mut self.tensors {
            if let Origin::Node { node, .. } = &mut t.origin {
                *node = moved(*node);
            }
        }
    }
}

fn unique(names: &mut HashSet<String>, prefix: &str, name: &str) -> String {
    let base = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
    let mut wanted = base.clone();
    let mut n = 0u64;
    while !names.insert(wanted.clone()) {
        n += 1;
        wanted = format!("{base}~{n}");
    }
    wanted
}
