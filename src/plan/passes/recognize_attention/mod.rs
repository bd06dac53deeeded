//! Attention that a graph decomposes (product, scale, mask, softmax, product) becomes one operator. Keys and values that are
//! repeated for the heads of queries that share them are read once.
//!
//! Exporters guard the softmax: probabilities that are not numbers become zeros, which the operator gives where a mask hides
//! all keys. Scores that are not numbers for another reason stay so in the operator.

use std::sync::Arc;

use half::f16;

use crate::dtype::DType;
use crate::graph::Tensor;
use crate::operator::{Operator, Structure};
use crate::ops;
use crate::ops::movement::Transpose;
use crate::ops::shape_ops::Reshape;
use crate::plan::flow::{Flow, FlowNode, Value, ValueId};
use crate::shape::Shape;
use crate::tensor::TensorInfo;

mod scores;
mod search;
#[cfg(test)]
mod tests;

use scores::Term;
use search::{KeyTranspose, Match, Search};

/// Replaces decomposed attention; returns how many.
pub(super) fn recognize_attention(flow: &mut Flow) -> usize {
    // Most graphs have no softmax, and the search ends here.
    if !flow.nodes.iter().any(|n| matches!(n.op.structure(), Some(Structure::Softmax { .. }))) {
        return 0;
    }
    let mut search = Search::new(flow);
    let mut found = Vec::new();
    for last in 0..flow.nodes.len() {
        if let Some(attention) = search.attention(last) {
            // A product that became attention is no longer a product.
            search.taken[last] = true;
            found.push(attention);
        }
    }
    let count = found.len();
    found.into_iter().for_each(|attention| put(flow, attention));
    if count > 0 {
        flow.sort();
        flow.drop_dead();
    }
    count
}

/// Puts attention where its last product was.
fn put(flow: &mut Flow, Match { last, operands: [q, k, v], mask, op, turn }: Match) {
    let mut added = Added { last, flow };
    let k = match turn {
        None => k,
        Some(KeyTranspose { perm, shape }) => {
            let op = Transpose { perm: Some(perm.iter().map(|&axis| axis as i64).collect()) };
            added.node(Arc::new(op), &[k], shape)
        }
    };
    let mask = added.mask(&mask).map(|mask| match op.heads {
        Some(_) => added.with_heads(mask),
        None => mask,
    });
    let node = &mut flow.nodes[last];
    node.op = Arc::new(op);
    node.inputs = [q, k, v].into_iter().chain(mask).map(Some).collect();
}

/// Nodes beside node `last` of a flow, on its device.
struct Added<'a> {
    last: usize,
    flow: &'a mut Flow,
}

impl Added<'_> {
    /// Adds a node whose output has the type of its last input.
    fn node(&mut self, op: Arc<dyn Operator>, inputs: &[ValueId], shape: Shape) -> ValueId {
        let last = &self.flow.nodes[self.last];
        let (device, name) = (last.device, format!("{}:{}", last.name, op.name()));
        let dtype = inputs.last().map_or(DType::F32, |&v| self.flow.values[v].info.dtype);
        let info = TensorInfo::new(dtype, shape);
        self.flow.values.push(Value { name: name.clone(), info, constant: None, scope: Default::default() });
        let output = self.flow.values.len() - 1;
        let inputs = inputs.iter().copied().map(Some).collect();
        self.flow.nodes.push(FlowNode {
            name,
            op,
            inputs,
            outputs: vec![output],
            device,
            control_deps: Vec::new(),
        });
        output
    }

    fn shape(&self, v: ValueId) -> Shape {
        self.flow.values[v].info.shape.clone()
    }

    /// A constant of one element of the type of `like`, which is `float32` or `float16`.
    fn number(&mut self, number: f32, like: ValueId) -> ValueId {
        let constant = match self.flow.values[like].info.dtype {
            DType::F16 => Tensor::scalar(f16::from_f32(number)),
            _ => Tensor::scalar(number),
        };
        let name = format!("{}:{number}", self.flow.nodes[self.last].name);
        self.flow.add_constant(name, constant)
    }

    /// The sum of `terms`, the small ones first.
    fn mask(&mut self, terms: &[Term]) -> Option<ValueId> {
        let mut masks: Vec<ValueId> = terms.iter().map(|term| self.term(term)).collect();
        masks.sort_by_key(|&v| self.flow.values[v].info.elements());
        masks.into_iter().reduce(|a, b| {
            // The search has checked that they broadcast.
            let shape = self.shape(a).broadcast(&self.shape(b)).unwrap_or_default();
            self.node(ops::add(), &[a, b], shape)
        })
    }

    /// A mask of `[batch, queries, keys]` with an axis of one head.
    fn with_heads(&mut self, mask: ValueId) -> ValueId {
        let &[batch, queries, keys] = self.shape(mask).dims() else { return mask };
        let dims = [batch, 1, queries, keys];
        let fixed = Some(dims.map(|size| size as i64).to_vec());
        let shape = Shape::new(dims).unwrap_or_default();
        self.node(Arc::new(Reshape { allow_zero: false, fixed }), &[mask], shape)
    }

    fn term(&mut self, term: &Term) -> ValueId {
        match *term {
            Term::Added { mask, factor: 1.0 } => mask,
            Term::Added { mask, factor } => {
                let factor = self.number(factor, mask);
                let shape = self.shape(mask);
                self.node(ops::mul(), &[factor, mask], shape)
            }
            Term::Hidden { condition, when, number, like } => {
                let (zero, low) = (self.number(0.0, like), self.number(number, like));
                let [a, b] = if when { [low, zero] } else { [zero, low] };
                let shape = self.shape(condition);
                self.node(ops::pointwise::select_where(), &[condition, a, b], shape)
            }
        }
    }
}
