//! Where a graph has its caches: inputs with keys or values before a run, and the outputs that have them after it.

use super::settings::Config;
use crate::graph::{Graph, Node, NodeId, Origin, TensorId};
use crate::operator::Structure;
use crate::ops::pointwise::{Cast, Identity};
use crate::shape::Dim;

/// The inputs of GroupQueryAttention that are its caches, keys first, and the outputs that have them after a run.
pub(super) const PAST: [usize; 2] = [3, 4];
const PRESENT: [usize; 2] = [1, 2];

/// The keys or values of one layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct GraphCache {
    pub(super) past: TensorId,
    pub(super) present: TensorId,
}

impl GraphCache {
    /// The cache of which `past` and `present` are the names.
    pub(super) fn find(graph: &Graph, past: &str, present: &str) -> Option<Self> {
        let (past, output) = graph.input(past).zip(graph.output(present))?;
        Some(GraphCache { past, present: graph.outputs()[output].1 })
    }

    /// Those of all layers that `config` names; names of which the graph lacks one are an error.
    pub(super) fn all(graph: &Graph, config: &Config) -> impl Iterator<Item = Result<Self, [String; 2]>> {
        let found = |names: [String; 2]| GraphCache::find(graph, &names[0], &names[1]).ok_or(names);
        config.cache_names().map(found)
    }

    /// The keys and the values, both among `caches`, that a node of GroupQueryAttention reads and gives.
    pub(super) fn of_attention(caches: &[GraphCache], node: &Node) -> Option<[GraphCache; 2]> {
        let [keys, values] = [0, 1].map(|part| {
            let is_own =
                |cache: &&GraphCache| cache.is_read(node, PAST[part]) && cache.is_given(node, PRESENT[part]);
            caches.iter().find(is_own).copied()
        });
        keys.zip(values).map(Into::into)
    }

    /// Whether a node reads it as input `input`.
    pub(super) fn is_read(self, node: &Node, input: usize) -> bool {
        node.inputs.get(input) == Some(&Some(self.past))
    }

    /// Where a node only copies what another one makes of it to its output, the other one writes the output, and the node
    /// copies that. Nodes may be out of order then.
    pub(super) fn give_directly(self, graph: &mut Graph) {
        let dtype = graph.tensor(self.past).dtype;
        let Some(copy) = graph.nodes.iter().position(|node| node.outputs[..] == [Some(self.present)]) else {
            return;
        };
        let node = &graph.nodes[copy];
        let is_cast =
            node.op.downcast_ref::<Cast>().is_some_and(|cast| cast.to.is_some() && cast.to == dtype);
        let &[Some(made)] = &node.inputs[..] else { return };
        let Origin::Node { node: maker, output } = graph.tensor(made).origin else { return };
        let reads = graph.node(maker).inputs.contains(&Some(self.past)) && appends(graph.node(maker));
        if !(reads && (is_cast || is_copy(node))) {
            return;
        }
        graph.nodes[maker.index()].outputs[output as usize] = Some(self.present);
        graph.nodes[copy].outputs = vec![Some(made)];
        graph.nodes[copy].inputs = vec![Some(self.present)];
        graph.tensors[self.present.index()].origin = Origin::Node { node: maker, output };
        graph.tensors[made.index()].origin = Origin::Node { node: NodeId(copy as u32), output: 0 };
    }

    /// Whether output `output` of a node is it after a run.
    pub(super) fn is_given(self, node: &Node, output: usize) -> bool {
        node.outputs.get(output) == Some(&Some(self.present))
    }
}

/// Heads of a cache and elements of each, as it declares them, else as `config` tells them.
pub(super) fn heads(graph: &Graph, cache: TensorId, config: &Config) -> [Option<usize>; 2] {
    let declared = |axis: usize| match graph.tensor(cache).shape.as_ref()?.0.get(axis)? {
        Dim::Known(n) => Some(*n),
        _ => None,
    };
    let [heads, elements] = config.heads;
    [declared(1).or(heads), declared(3).or(elements)]
}

/// Whether a node gives its only input.
pub(super) fn is_copy(node: &Node) -> bool {
    let op = node.op.as_ref();
    node.inputs.len() == 1
        && (op.downcast_ref::<Identity>().is_some() || op.structure() == Some(Structure::Concat))
}

/// Whether a node gives the caches that it reads, with more rows.
fn appends(node: &Node) -> bool {
    match node.op.structure() {
        Some(Structure::Attention(ports)) => ports.extends,
        structure => structure == Some(Structure::Concat),
    }
}
