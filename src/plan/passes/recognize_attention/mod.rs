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
use crate::ops::shape_ops::{Expand, Reshape};
use crate::plan::flow::{Flow, FlowNode, Value, ValueId};
use crate::shape::Shape;
use crate::tensor::TensorInfo;

mod scores;
mod search;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vision_tests;

use scores::{Term, Windows};
use search::{Match, Search, Turn};

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
fn put(flow: &mut Flow, Match { last, operands: [q, k, v], mask, op, factor, turns, flipped }: Match) {
    let mut added = Added { last, flow };
    let [turn, v_turn] = turns;
    let (k, v) = (added.turned(k, turn), added.turned(v, v_turn));
    let q = match factor {
        None => q,
        Some(factor) => {
            let shape = added.shape(q);
            added.node(ops::mul(), &[factor, q], shape)
        }
    };
    let mask = added.mask(&mask).map(|mask| match op.heads {
        Some(_) => added.with_heads(mask),
        None => mask,
    });
    let output = flow.nodes[last].outputs[0];
    let rank = flow.values[output].info.shape.rank();
    let inputs: Vec<ValueId> = [q, k, v].into_iter().chain(mask).collect();
    let (op, inputs): (Arc<dyn Operator>, _) = if flipped {
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 2, rank - 1);
        let dims: Vec<usize> = perm.iter().map(|&axis| flow.values[output].info.shape[axis]).collect();
        let info = TensorInfo::new(flow.values[output].info.dtype, Shape::new(dims).unwrap_or_default());
        let rows = Added { last, flow }.node_of(Arc::new(op), &inputs, info);
        (transpose(&perm), vec![rows])
    } else {
        (Arc::new(op), inputs)
    };
    let node = &mut flow.nodes[last];
    node.op = op;
    node.inputs = inputs.into_iter().map(Some).collect();
}

fn transpose(perm: &[usize]) -> Arc<dyn Operator> {
    Arc::new(Transpose { perm: Some(perm.iter().map(|&axis| axis as i64).collect()) })
}

/// Nodes beside node `last` of a flow, on its device.
struct Added<'a> {
    last: usize,
    flow: &'a mut Flow,
}

impl Added<'_> {
    /// Adds a node whose output has the type of its last input.
    fn node(&mut self, op: Arc<dyn Operator>, inputs: &[ValueId], shape: Shape) -> ValueId {
        let dtype = inputs.last().map_or(DType::F32, |&v| self.flow.values[v].info.dtype);
        self.node_of(op, inputs, TensorInfo::new(dtype, shape))
    }

    fn node_of(&mut self, op: Arc<dyn Operator>, inputs: &[ValueId], info: TensorInfo) -> ValueId {
        let last = &self.flow.nodes[self.last];
        let (device, name) = (last.device, format!("{}:{}", last.name, op.name()));
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

    /// `v` transposed, where it must be.
    fn turned(&mut self, v: ValueId, turn: Option<Turn>) -> ValueId {
        turn.map_or(v, |Turn { perm, shape }| self.node(transpose(&perm), &[v], shape))
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

    fn scaled(&mut self, mask: ValueId, factor: f32) -> ValueId {
        if factor == 1.0 {
            return mask;
        }
        let (factor, shape) = (self.number(factor, mask), self.shape(mask));
        self.node(ops::mul(), &[factor, mask], shape)
    }

    /// A mask of images and windows with one axis of both.
    fn for_windows(&mut self, mask: ValueId, windows: Windows) -> Option<ValueId> {
        let shape = self.shape(mask);
        let (apart, joined) = (windows.expanded(shape.dims())?, windows.joined(shape.dims())?);
        let mask = if apart == shape.dims() {
            mask
        } else {
            let sizes = Tensor::new([apart.len()], &apart.map(|size| size as i64)).ok()?;
            let sizes = self.flow.add_constant(format!("{}:windows", self.flow.nodes[self.last].name), sizes);
            let info = TensorInfo::new(self.flow.values[mask].info.dtype, Shape::new(apart).ok()?);
            self.node_of(Arc::new(Expand), &[mask, sizes], info)
        };
        let fixed = Some(joined.iter().map(|&size| size as i64).collect());
        Some(self.node(Arc::new(Reshape { allow_zero: false, fixed }), &[mask], joined))
    }

    fn term(&mut self, term: &Term) -> ValueId {
        match *term {
            Term::Added { mask, factor } => self.scaled(mask, factor),
            Term::OfWindows { mask, factor, windows } => {
                let mask = self.scaled(mask, factor);
                self.for_windows(mask, windows).unwrap_or(mask)
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
