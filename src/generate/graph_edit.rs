//! Changes of a graph when a model is opened: more inputs and nodes, and what no one reads any more is left out.

use std::collections::HashSet;
use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::{
    Graph, GraphError, Node, NodeId, Origin, StorageScope, Tensor, TensorDecl, TensorId, free_name,
};
use crate::operator::Operator;
use crate::shape::{Dim, SymShape};

/// Nodes that the values of `tensors` depend on.
pub(super) fn ancestors(graph: &Graph, tensors: impl Iterator<Item = TensorId>) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes().len()];
    let mut left: Vec<TensorId> = tensors.collect();
    while let Some(id) = left.pop() {
        if let Origin::Node { node, .. } = graph.tensor(id).origin
            && !std::mem::replace(&mut needed[node.index()], true)
        {
            left.extend(graph.node(node).inputs.iter().flatten());
        }
    }
    needed
}

/// A copy of a graph that changes. Tensors keep their numbers until [`GraphEdit::finish`].
#[derive(Debug)]
pub(super) struct GraphEdit {
    pub(super) graph: Graph,
    names: HashSet<String>,
}

impl GraphEdit {
    pub(super) fn new(graph: &Graph) -> Self {
        let names = graph.tensors().iter().map(|tensor| tensor.name.clone()).collect();
        GraphEdit { graph: graph.clone(), names }
    }

    fn tensor(
        &mut self,
        name: String,
        (dtype, shape): (Option<DType>, Option<SymShape>),
        origin: Origin,
    ) -> TensorId {
        let name = free_name(&mut self.names, name);
        let id = TensorId(self.graph.tensors.len() as u32);
        self.graph.tensors.push(TensorDecl { name, dtype, shape, origin, scope: StorageScope::Buffer });
        id
    }

    /// Adds an input of exactly this name; a tensor that has it gets another one.
    pub(super) fn input(&mut self, name: &str, dtype: DType, dims: Vec<Dim>) -> TensorId {
        if let Some(at) = self.graph.tensors.iter().position(|tensor| tensor.name == name) {
            let other = free_name(&mut self.names, format!("{name} in the graph"));
            self.graph.tensors[at].name = other;
            self.names.remove(name);
        }
        self.free_input(name, dtype, dims)
    }

    /// Adds an input of this name, or of one like it where a tensor has that.
    pub(super) fn free_input(&mut self, name: &str, dtype: DType, dims: Vec<Dim>) -> TensorId {
        let id = self.tensor(name.to_owned(), (Some(dtype), Some(SymShape(dims))), Origin::Input);
        self.graph.inputs.push(id);
        id
    }

    pub(super) fn constant(&mut self, name: &str, value: Tensor) -> TensorId {
        let info = (Some(value.dtype()), Some(value.shape().into()));
        self.tensor(name.to_owned(), info, Origin::Constant(value))
    }

    /// Adds a node of one output.
    pub(super) fn node(
        &mut self,
        name: &str,
        op: Arc<dyn Operator>,
        inputs: Vec<Option<TensorId>>,
        device: Option<u32>,
    ) -> TensorId {
        let id = self.tensor(name.to_owned(), (None, None), Origin::Unmade);
        self.make(id, op, inputs, device);
        id
    }

    /// Makes a tensor that there is, and that nothing makes any more, the output of a new node.
    pub(super) fn make(
        &mut self,
        id: TensorId,
        op: Arc<dyn Operator>,
        inputs: Vec<Option<TensorId>>,
        device: Option<u32>,
    ) {
        let node = NodeId(self.graph.nodes.len() as u32);
        let decl = &mut self.graph.tensors[id.index()];
        decl.origin = Origin::Node { node, output: 0 };
        let (name, outputs, control_deps) = (decl.name.clone(), vec![Some(id)], Vec::new());
        self.graph.nodes.push(Node { name, op, inputs, outputs, device, control_deps });
    }

    /// Makes output `output` of a node a new tensor; the one before is made by nothing until [`GraphEdit::make`].
    pub(super) fn replace_output(&mut self, node: NodeId, output: usize, name: &str) -> TensorId {
        let origin = Origin::Node { node, output: output as u32 };
        let id = self.tensor(name.to_owned(), (None, None), origin);
        let place = &mut self.graph.nodes[node.index()].outputs[output];
        if let Some(before) = place.replace(id) {
            self.graph.tensors[before.index()].origin = Origin::Unmade;
        }
        id
    }

    /// Nodes that outputs depend on.
    pub(super) fn live(&self) -> Vec<bool> {
        ancestors(&self.graph, self.graph.outputs().iter().map(|(_, id)| *id))
    }

    /// Brings nodes into order.
    pub(super) fn sort(&mut self) -> Result<(), GraphError> {
        self.graph = std::mem::take(&mut self.graph).sorted()?;
        Ok(())
    }

    /// The graph without the nodes that no output depends on, and without the inputs and tensors that no one reads.
    pub(super) fn finish(mut self) -> Result<Graph, GraphError> {
        self.sort()?;
        let live = self.live();
        let mut unread = vec![true; self.graph.tensors.len()];
        let nodes = self.graph.nodes.iter().zip(&live).filter(|(_, live)| **live);
        let read = nodes.flat_map(|(node, _)| node.inputs.iter().chain(&node.outputs).flatten());
        for id in read.chain(self.graph.outputs.iter().map(|(_, id)| id)) {
            unread[id.index()] = false;
        }
        let gone: Vec<bool> = live.iter().map(|live| !live).collect();
        self.graph.prune(&gone, &unread);
        Ok(self.graph)
    }
}
