//! Rotations of queries and keys (RoFormer, arXiv 2104.09864) that a graph spells out become one operator each:
//! `x * cos + turned(x) * sin`, where pairs of elements `(a, b)` turn into `(-b, a)`.
//!
//! A pair is an element of each half of a vector, or two neighbours. The operator's tables have one number for each pair,
//! those of the graph two, which the search proves to be equal.

use std::collections::HashMap;
use std::sync::Arc;

use crate::operator::{Operator, Structure};
use crate::ops::attention::RotaryEmbedding;
use crate::ops::movement::Slice;
use crate::ops::shape_ops::Reshape;
use crate::plan::PlanError;
use crate::plan::flow::{Flow, FlowNode, Value, ValueId};
use crate::shape::Shape;
use crate::tensor::TensorInfo;

mod search;
mod tables;
#[cfg(test)]
mod tests;

use search::{Match, Search};

/// Replaces rotations of vectors; returns how many.
pub(super) fn recognize_rotations(flow: &mut Flow) -> Result<usize, PlanError> {
    // Most graphs join nothing, and the search ends here.
    if !flow.nodes.iter().any(|n| n.op.structure() == Some(Structure::Concat)) {
        return Ok(0);
    }
    let search = Search::new(flow);
    let found: Vec<Match> = (0..flow.nodes.len()).filter_map(|n| search.rotation(n)).collect();
    let count = found.len();
    let mut tables = Tables::default();
    for rotation in found {
        let (cos, sin) =
            (tables.of(flow, rotation.cos, &rotation)?, tables.of(flow, rotation.sin, &rotation)?);
        put(flow, &rotation, [cos, sin]);
    }
    if count > 0 {
        flow.sort();
        flow.drop_dead();
    }
    Ok(count)
}

/// Puts the operator where the last node of a rotation was.
fn put(flow: &mut Flow, rotation: &Match, [cos, sin]: [ValueId; 2]) {
    let &Match { last, x, interleaved, rotated, .. } = rotation;
    let op = RotaryEmbedding { interleaved, rotated, heads: None, contrib: false };
    let node = &mut flow.nodes[last];
    node.op = Arc::new(op);
    node.inputs = [x, cos, sin].map(Some).to_vec();
}

/// Tables of one number for each pair, by the device that reads them, the graph's table and the form of the pairs.
#[derive(Debug, Default)]
struct Tables {
    made: HashMap<(Option<u32>, ValueId, bool), ValueId>,
}

impl Tables {
    /// `[batch, rows, pairs]` of a table of `[..., rows, 2 * pairs]`, which has a batch of `rotation.batch`.
    fn of(&mut self, flow: &mut Flow, table: ValueId, rotation: &Match) -> Result<ValueId, PlanError> {
        let device = flow.nodes[rotation.last].device;
        let key = (device, table, rotation.interleaved);
        if let Some(&made) = self.made.get(&key) {
            return Ok(made);
        }
        let mut last = flow.values[table].info.shape.iter().rev().copied();
        let (pairs, rows) = (last.next().unwrap_or(0) / 2, last.next().unwrap_or(1));
        let (axis, split) = if rotation.interleaved { (3, [pairs, 2]) } else { (2, [2, pairs]) };
        let mut dims = vec![rotation.batch, rows, split[0], split[1]];
        let mut made = node(flow, device, reshape(&dims), table, dims.clone())?;
        dims[axis] = 1;
        let bounds = Some((vec![0], vec![1], Some(vec![axis as i64])));
        made = node(flow, device, Arc::new(Slice { bounds }), made, dims)?;
        let dims = vec![rotation.batch, rows, pairs];
        made = node(flow, device, reshape(&dims), made, dims)?;
        self.made.insert(key, made);
        Ok(made)
    }
}

fn reshape(dims: &[usize]) -> Arc<dyn Operator> {
    Arc::new(Reshape { allow_zero: false, fixed: Some(dims.iter().map(|&size| size as i64).collect()) })
}

/// Adds a node of one input, whose output has its type, and computes it where that is known.
fn node(
    flow: &mut Flow,
    device: Option<u32>,
    op: Arc<dyn Operator>,
    input: ValueId,
    dims: Vec<usize>,
) -> Result<ValueId, PlanError> {
    let name = format!("{}:{}", flow.values[input].name, op.name());
    let info = TensorInfo::new(flow.values[input].info.dtype, Shape::new(dims).unwrap_or_default());
    flow.values.push(Value { name: name.clone(), info, constant: None, scope: Default::default() });
    let output = flow.values.len() - 1;
    flow.nodes.push(FlowNode {
        name,
        op,
        inputs: vec![Some(input)],
        outputs: vec![output],
        device,
        control_deps: Vec::new(),
    });
    flow.fold(flow.nodes.len() - 1)?;
    Ok(output)
}
