//! Operators that move elements: the same on bytes and on the values they represent.

use std::sync::Arc;

use super::{Bytes, View, Walk, input, known_facts};
use crate::graph::{Node, Origin, Tensor, TensorId, TensorInfo};
use crate::operator::{Operator, ZeroFill};
use crate::shape::Shape;

impl Walk<'_> {
    /// Whether node `n` moves elements of its first input. Scales are positive, so the largest value has the largest
    /// byte.
    pub(super) fn moves(&self, n: usize) -> bool {
        let node = &self.old[n];
        node.op.quantized_move(&known_facts(node, |id| self.constant(id)))
    }

    /// The bytes of `x`, whose view is `view`, in a tensor.
    pub(super) fn bytes_of(&mut self, x: TensorId, view: View) -> Option<TensorId> {
        let mut chain = Vec::new();
        let (mut at, mut bytes) = (x, view.bytes);
        let mut tensor = loop {
            match bytes {
                Bytes::In(id) => break self.real(id),
                Bytes::Moved { node } => {
                    let output = self.old[node].outputs.iter().position(|id| *id == Some(at))?;
                    if let Some(made) = self.moved.get(&node) {
                        break made.get(output).copied().flatten()?;
                    }
                    chain.push((node, output));
                    at = input(&self.old[node], 0)?;
                    bytes = self.views.get(&at)?.bytes;
                }
            }
        };
        for (n, output) in chain.into_iter().rev() {
            let node = &self.old[n];
            let mut inputs: Vec<Option<TensorId>> =
                node.inputs.iter().map(|i| i.map(|id| self.real(id))).collect();
            if let Some(first) = inputs.first_mut() {
                *first = Some(tensor);
            }
            let op = self.filled(node, &view, &mut inputs)?;
            let outputs: Vec<Option<TensorId>> =
                node.outputs.iter().map(|id| id.map(|id| self.add_result(id))).collect();
            let (name, device) = (node.name.clone(), self.targets.device(node));
            let own = outputs.clone();
            self.nodes.push(Node { name, op, inputs, outputs: own, device, control_deps: Vec::new() });
            tensor = outputs.get(output).copied().flatten()?;
            self.moved.insert(n, outputs);
        }
        Some(tensor)
    }

    /// The form of `node` on bytes: its fill value is the zero point.
    fn filled(
        &mut self,
        node: &Node,
        view: &View,
        inputs: &mut Vec<Option<TensorId>>,
    ) -> Option<Arc<dyn Operator>> {
        let fill = match node.op.zero_fill(view.scaling.zero) {
            ZeroFill::None => return Some(node.op.clone()),
            ZeroFill::By(op) => return Some(op),
            ZeroFill::Input(fill) => fill,
        };
        inputs.resize(inputs.len().max(fill + 1), None);
        let info = TensorInfo::new(view.scaling.dtype, Shape::scalar());
        let zero = Tensor::from_bytes(info, &[view.scaling.zero as u8]).ok()?;
        let info = zero.info().clone();
        inputs[fill] = Some(self.add(&node.name, Origin::Constant(zero), Some(&info)));
        Some(node.op.clone())
    }
}
