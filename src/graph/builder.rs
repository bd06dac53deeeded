//! Makes graphs, for loaders and for callers in Rust.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Graph, GraphError, Node, NodeId, Origin, StorageScope, Tensor, TensorDecl, TensorId};
use crate::dtype::DType;
use crate::limits;
use crate::operator::Operator;
use crate::shape::{Dim, SymShape};

/// Makes a [`Graph`]. Nodes may be added in any order; [`GraphBuilder::build`] sorts them.
///
/// ```
/// use onepool::{DType, GraphBuilder, ops};
/// let mut g = GraphBuilder::new("double");
/// let x = g.input("x", DType::F32, ["n".into(), 4.into()]);
/// let y = g.op(ops::add(), &[x, x]);
/// g.output("y", y);
/// let graph = g.build()?;
/// assert_eq!(graph.nodes().len(), 1);
/// # Ok::<(), onepool::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        GraphBuilder { graph: Graph { name: name.into(), ..Graph::default() } }
    }

    fn push(&mut self, decl: TensorDecl) -> TensorId {
        let id = TensorId(self.graph.tensors.len() as u32);
        self.graph.tensors.push(decl);
        id
    }

    /// Adds an input of known type whose sizes may be symbols.
    pub fn input(
        &mut self,
        name: impl Into<String>,
        dtype: DType,
        dims: impl IntoIterator<Item = Dim>,
    ) -> TensorId {
        self.declare_input(name, Some(dtype), Some(SymShape(dims.into_iter().collect())))
    }

    /// Adds an input of which type or sizes may be unknown.
    pub fn declare_input(
        &mut self,
        name: impl Into<String>,
        dtype: Option<DType>,
        shape: Option<SymShape>,
    ) -> TensorId {
        let scope = StorageScope::Buffer;
        let id = self.push(TensorDecl { name: name.into(), dtype, shape, origin: Origin::Input, scope });
        self.graph.inputs.push(id);
        id
    }

    /// An input for which no memory exists until the caller binds some.
    pub fn lazy_input(
        &mut self,
        name: impl Into<String>,
        dtype: DType,
        dims: impl IntoIterator<Item = Dim>,
    ) -> TensorId {
        let id = self.input(name, dtype, dims);
        self.graph.lazy_inputs.insert(id);
        id
    }

    /// Adds an input that stands for a tensor of the graph around this one ([`Graph::captured`]). No other
    /// input may be added afterwards.
    pub fn captured_input(&mut self, name: impl Into<String>) -> TensorId {
        self.graph.captured += 1;
        self.declare_input(name, None, None)
    }

    /// Adds a constant.
    pub fn constant(&mut self, name: impl Into<String>, value: Tensor) -> TensorId {
        self.push(TensorDecl {
            name: name.into(),
            dtype: Some(value.dtype()),
            shape: Some(value.shape().into()),
            origin: Origin::Constant(value),
            scope: StorageScope::Buffer,
        })
    }

    /// Declares a tensor that a node added later produces ([`GraphBuilder::node_into`]).
    pub fn declare(&mut self, name: impl Into<String>) -> TensorId {
        // The producer is set when its node is added; until then the tensor dangles.
        let (origin, scope) = (Origin::Unmade, StorageScope::Buffer);
        self.push(TensorDecl { name: name.into(), dtype: None, shape: None, origin, scope })
    }

    /// Makes a tensor that was declared before ([`GraphBuilder::declare`]) a constant.
    pub fn define_constant(&mut self, id: TensorId, value: Tensor) {
        if let Some(t) = self.graph.tensors.get_mut(id.index()) {
            t.dtype = Some(value.dtype());
            t.shape = Some(value.shape().into());
            t.origin = Origin::Constant(value);
        }
    }

    /// Adds a node with one output and returns it.
    pub fn op(&mut self, op: impl Into<Arc<dyn Operator>>, inputs: &[TensorId]) -> TensorId {
        let op = op.into();
        let name = format!("{}_{}", op.name(), self.graph.nodes.len());
        let inputs: Vec<Option<TensorId>> = inputs.iter().copied().map(Some).collect();
        self.node(name, op, &inputs, 1).1[0]
    }

    /// Adds a node with `outputs` new outputs.
    pub fn node(
        &mut self,
        name: impl Into<String>,
        op: impl Into<Arc<dyn Operator>>,
        inputs: &[Option<TensorId>],
        outputs: usize,
    ) -> (NodeId, Vec<TensorId>) {
        let name = name.into();
        let made: Vec<TensorId> = (0..outputs)
            .map(|i| {
                self.declare(if outputs == 1 { format!("{name}:out") } else { format!("{name}:out{i}") })
            })
            .collect();
        let wanted: Vec<Option<TensorId>> = made.iter().copied().map(Some).collect();
        (self.node_into(name, op, inputs, &wanted), made)
    }

    /// Adds a node that writes tensors declared before.
    pub fn node_into(
        &mut self,
        name: impl Into<String>,
        op: impl Into<Arc<dyn Operator>>,
        inputs: &[Option<TensorId>],
        outputs: &[Option<TensorId>],
    ) -> NodeId {
        let node = NodeId(self.graph.nodes.len() as u32);
        for (output, id) in outputs.iter().enumerate() {
            if let Some(decl) = id.and_then(|id| self.graph.tensors.get_mut(id.index())) {
                decl.origin = Origin::Node { node, output: output as u32 };
            }
        }
        self.graph.nodes.push(Node {
            name: name.into(),
            op: op.into(),
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
            device: None,
            control_deps: Vec::new(),
        });
        node
    }

    /// Declares type and sizes of a tensor (a hint that inference checks).
    pub fn set_info(&mut self, id: TensorId, dtype: Option<DType>, shape: Option<SymShape>) {
        if let Some(t) = self.graph.tensors.get_mut(id.index()) {
            t.dtype = dtype.or(t.dtype);
            t.shape = shape.or(t.shape.take());
        }
    }

    /// Sets how a tensor is stored.
    pub fn set_scope(&mut self, id: TensorId, scope: StorageScope) {
        if let Some(t) = self.graph.tensors.get_mut(id.index()) {
            t.scope = scope;
        }
    }

    /// Renames a tensor.
    pub fn rename(&mut self, id: TensorId, name: impl Into<String>) {
        if let Some(t) = self.graph.tensors.get_mut(id.index()) {
            t.name = name.into();
        }
    }

    /// Places a node on entry `device` of the session's device table.
    pub fn place(&mut self, node: NodeId, device: u32) {
        if let Some(n) = self.graph.nodes.get_mut(node.index()) {
            n.device = Some(device);
        }
    }

    /// Makes `node` start only after `before` has finished.
    pub fn control_dep(&mut self, node: NodeId, before: NodeId) {
        if let Some(n) = self.graph.nodes.get_mut(node.index()) {
            n.control_deps.push(before);
        }
    }

    /// The node that produces `tensor`, if one does.
    pub fn producer(&self, tensor: TensorId) -> Option<NodeId> {
        match self.graph.tensors.get(tensor.index())?.origin {
            Origin::Node { node, .. } => Some(node),
            _ => None,
        }
    }

    /// Names `tensor` as the next output.
    pub fn output(&mut self, name: impl Into<String>, tensor: TensorId) {
        self.graph.outputs.push((name.into(), tensor));
    }

    /// Checks the graph and sorts its nodes so that producers come first, otherwise as they were added.
    ///
    /// # Errors
    /// [`GraphError`]: handles of another graph, a cycle, names used twice, tensors nothing produces,
    /// no output, too much of anything.
    pub fn build(self) -> Result<Graph, GraphError> {
        let mut graph = self.graph;
        let within = |what, found, limit| {
            if found > limit { Err(GraphError::Limit { what, found, limit }) } else { Ok(()) }
        };
        within("nodes", graph.nodes.len(), limits::MAX_NODES)?;
        within("tensors", graph.tensors.len(), limits::MAX_TENSORS)?;
        for node in &graph.nodes {
            within("inputs of one node", node.inputs.len(), limits::MAX_NODE_ARITY)?;
            within("outputs of one node", node.outputs.len(), limits::MAX_NODE_ARITY)?;
        }
        let mut seen = HashSet::new();
        for t in &graph.tensors {
            within("bytes in one name", t.name.len(), limits::MAX_NAME_BYTES)?;
            if !seen.insert(t.name.as_str()) {
                return Err(GraphError::Duplicate { what: "tensors", name: t.name.clone() });
            }
        }
        super::validate::check_and_sort(&mut graph)?;
        Ok(graph)
    }
}
