//! The graph: typed nodes over tensors, as a loader or the builder makes it and the planner reads it.

#![forbid(unsafe_code)]

mod builder;
mod dump;
mod inline;
mod metadata;
mod prune;
mod validate;

pub use crate::tensor::TensorSource;
pub use crate::tensor::{Tensor, TensorError, TensorIdentity, TensorInfo};
pub(crate) use crate::tensor::{WEIGHT_BYTES, WeakTensor, WeightStore};
pub use builder::GraphBuilder;
pub use metadata::ModelMetadata;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use crate::dtype::DType;
use crate::operator::{OpError, Operator};
use crate::shape::SymShape;

/// A tensor of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub u32);

/// A node of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl TensorId {
    /// The position in [`Graph::tensors`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    /// The position in [`Graph::nodes`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// `wanted` with as many primes as make it a name that is not in `names` yet, where it is from then on.
pub(crate) fn free_name(names: &mut HashSet<String>, mut wanted: String) -> String {
    while !names.insert(wanted.clone()) {
        wanted.push('\'');
    }
    wanted
}

/// Why a graph is not sound.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A handle of another graph or out of range.
    #[error("there is no {what} {index}")]
    Unknown {
        /// "tensor" or "node".
        what: &'static str,
        /// Its number.
        index: u32,
    },
    /// Nodes depend on one another in a circle.
    #[error("nodes form a cycle through {node:?}")]
    Cycle {
        /// One node of the cycle.
        node: String,
    },
    /// Two inputs or two outputs have one name.
    #[error("two {what} are named {name:?}")]
    Duplicate {
        /// "inputs", "outputs" or "tensors".
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A tensor that nothing produces is used.
    #[error("tensor {name:?} is used by {user:?} but nothing produces it")]
    Dangling {
        /// The tensor.
        name: String,
        /// A node, or "output".
        user: String,
    },
    /// More of something than [`crate::limits`] allows.
    #[error("the graph has {found} {what}, at most {limit} are supported")]
    Limit {
        /// The kind of object that exceeds its limit.
        what: &'static str,
        /// Their number.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The graph has no output.
    #[error("the graph has no output")]
    NoOutput,
    /// An operator refuses its inputs.
    #[error("node {node:?} ({op}): {source}")]
    Node {
        /// The node's name.
        node: String,
        /// Its operator.
        op: String,
        /// The problem.
        source: OpError,
    },
}

/// What messages call a node: its name, or where it has none the first tensor that it makes.
pub(crate) fn called(name: &str, first_output: Option<&str>) -> String {
    match (name, first_output) {
        ("", Some(output)) => format!("unnamed, makes {output}"),
        ("", None) => "unnamed".to_owned(),
        (name, _) => name.to_owned(),
    }
}

/// Where a tensor comes from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// The caller binds it.
    Input,
    /// Part of the model.
    Constant(Tensor),
    /// Output `output` of `node`.
    Node {
        /// The producer.
        node: NodeId,
        /// Which of its outputs.
        output: u32,
    },
    /// No node makes it, yet or any more, and nothing reads it.
    Unmade,
}

/// Where the builder wants a tensor to be read through a texture, and how it is laid out
/// (TVM's `storage_scope`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StorageScope {
    /// A plain buffer.
    #[default]
    Buffer,
    /// `global.texture`.
    Texture,
    /// `global.texture-weight`.
    TextureWeight,
    /// `global.texture-nhwc`.
    TextureNhwc,
    /// An image of one element to a texel: the last dimension is a row, all others together are the rows. TVM has
    /// no name for it; it is what feature maps `[n, c, h, w]` are.
    Planes,
}

/// A tensor as the graph declares it.
#[derive(Clone, Debug)]
pub struct TensorDecl {
    /// Its name; unique in a graph.
    pub name: String,
    /// Its type where it is declared; inference fills in the rest.
    pub dtype: Option<DType>,
    /// Its sizes where they are declared.
    pub shape: Option<SymShape>,
    /// Where it comes from.
    pub origin: Origin,
    /// Its storage.
    pub scope: StorageScope,
}

/// One operator applied to tensors.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name, for messages; may be empty, need not be unique.
    pub name: String,
    /// Its operator.
    pub op: Arc<dyn Operator>,
    /// Its inputs; `None` for an omitted optional input.
    pub inputs: Vec<Option<TensorId>>,
    /// Its outputs; `None` for an unused output.
    pub outputs: Vec<Option<TensorId>>,
    /// The entry of the session's device table it is placed on; `None` leaves it to placement.
    pub device: Option<u32>,
    /// Nodes that must have finished before it starts, in addition to the producers of its inputs.
    pub control_deps: Vec<NodeId>,
}

/// A graph. Its nodes are in an order in which every producer comes before its users.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(crate) name: String,
    pub(crate) metadata: Arc<ModelMetadata>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) tensors: Vec<TensorDecl>,
    pub(crate) inputs: Vec<TensorId>,
    pub(crate) outputs: Vec<(String, TensorId)>,
    pub(crate) lazy_inputs: BTreeSet<TensorId>,
    pub(crate) captured: usize,
}

impl Graph {
    /// The graph with its nodes in order, after some were added.
    pub(crate) fn sorted(mut self) -> Result<Self, GraphError> {
        validate::check_and_sort(&mut self)?;
        Ok(self)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its file says of itself.
    pub fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    /// Its nodes, producers first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Its tensors.
    pub fn tensors(&self) -> &[TensorDecl] {
        &self.tensors
    }

    /// The inputs that the caller binds, in order.
    pub fn inputs(&self) -> &[TensorId] {
        &self.inputs
    }

    /// How many of the last inputs are tensors of the graph around this one, which is then an attribute
    /// of a node: that node's last inputs are the same tensors in the same order.
    pub fn captured(&self) -> usize {
        self.captured
    }

    /// The outputs, in order. One tensor may be several outputs, and an input may be one.
    pub fn outputs(&self) -> &[(String, TensorId)] {
        &self.outputs
    }

    /// The declaration of `id`.
    ///
    /// # Panics
    /// For a handle of another graph.
    pub fn tensor(&self, id: TensorId) -> &TensorDecl {
        &self.tensors[id.index()]
    }

    /// The node `id`.
    ///
    /// # Panics
    /// For a handle of another graph.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// What messages call `node`: its name, or what it makes where it has none.
    pub(crate) fn called(&self, node: &Node) -> String {
        let made = node.outputs.iter().flatten().next();
        called(&node.name, made.and_then(|id| self.tensors.get(id.index())).map(|t| t.name.as_str()))
    }

    /// The input named `name`.
    pub fn input(&self, name: &str) -> Option<TensorId> {
        self.inputs.iter().copied().find(|&i| self.tensor(i).name == name)
    }

    /// Position of the output named `name`.
    pub fn output(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|(n, _)| n == name)
    }

    /// Whether no memory exists for input `id` until the caller binds some.
    pub fn is_lazy(&self, id: TensorId) -> bool {
        self.lazy_inputs.contains(&id)
    }

    /// The constants, with their names.
    pub fn constants(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().filter_map(|t| match &t.origin {
            Origin::Constant(c) => Some((t.name.as_str(), c)),
            _ => None,
        })
    }

    /// Bytes of all constants.
    pub fn constant_bytes(&self) -> u64 {
        self.constants().map(|(_, t)| t.info().bytes() as u64).sum()
    }

    /// Places node `id` on entry `device` of the session's device table; `None` leaves it to placement.
    pub fn place(&mut self, id: NodeId, device: Option<u32>) {
        if let Some(node) = self.nodes.get_mut(id.index()) {
            node.device = device;
        }
    }

    /// Replaces the value of a constant, or turns an input into one (TVM's parameters are inputs).
    ///
    /// # Errors
    /// [`GraphError::Unknown`] where `id` is no input or constant of the graph, [`GraphError::Node`] never.
    pub fn set_constant(&mut self, id: TensorId, value: Tensor) -> Result<(), GraphError> {
        let unknown = GraphError::Unknown { what: "tensor", index: id.0 };
        let Some(decl) = self.tensors.get_mut(id.index()) else { return Err(unknown) };
        if matches!(decl.origin, Origin::Node { .. } | Origin::Unmade) {
            return Err(unknown);
        }
        decl.dtype = Some(value.dtype());
        decl.shape = Some(value.shape().into());
        decl.origin = Origin::Constant(value);
        self.inputs.retain(|i| *i != id);
        self.lazy_inputs.remove(&id);
        Ok(())
    }
}
