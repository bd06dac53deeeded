//! Functions of single elements become lookup tables over all bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{View, Walk, output};
use crate::dtype::DType;
use crate::expr::{Indexing, PointwiseDesc};
use crate::graph::{Tensor, TensorId, TensorInfo};
use crate::operator::{Fact, OpCx, Operator, Scaling, Structure};
use crate::ops::quant::ByteTable;
use crate::plan::evaluate;
use crate::shape::Shape;

/// Operators of the longest function that becomes a table.
const LONGEST: usize = 16;

/// A function of one tensor's elements.
struct Function {
    /// Its argument.
    x: TensorId,
    /// Its nodes, producers first.
    nodes: BTreeSet<usize>,
    /// Constants that it reads.
    constants: BTreeMap<TensorId, f32>,
    /// The highest rank of its constants.
    rank: usize,
}

impl Walk<'_> {
    /// Replaces node `n`, which quantizes `y` to `to`, by a table, where `y` is a function of one view.
    pub(super) fn table(&mut self, n: usize, y: TensorId, to: &View) -> Option<()> {
        let function = self.function(y)?;
        let from = self.views.get(&function.x).copied()?;
        let table = self.evaluated(&function, y, &from.scaling, &to.scaling)?;
        let bytes = self.bytes_of(function.x, from)?;
        let result = output(&self.old[n])?;
        let like = function.nodes.last().copied().unwrap_or(n);
        let name = self.old[like].name.clone();
        let table = self.add_constant(&name, table);
        self.position.push(super::NodeId(self.nodes.len() as u32));
        let op = ByteTable { rank: function.rank };
        self.emit_like(like, Arc::new(op), vec![Some(bytes), Some(table)], result);
        Some(())
    }

    /// The table that converts elements of `from` to those of `to`.
    pub(super) fn conversion(&self, from: &Scaling, to: &Scaling) -> Option<Tensor> {
        quantize(&numbers(from), to)
    }

    /// `y` as a function of one view, where every operator on the way maps elements.
    fn function(&self, y: TensorId) -> Option<Function> {
        let mut found = Function { x: y, nodes: BTreeSet::new(), constants: BTreeMap::new(), rank: 0 };
        let mut x = None;
        let mut open = vec![y];
        while let Some(id) = open.pop() {
            if let Some(number) = self.single(id) {
                found.constants.insert(id, number);
                continue;
            }
            if self.views.contains_key(&id) {
                if *x.get_or_insert(id) != id {
                    return None;
                }
                continue;
            }
            let n = self.index.producer(id.index())?;
            let node = &self.old[n];
            if !self.is_inner(id) || !self.is_free(n) || output(node).is_none() || node.op.varies() {
                return None;
            }
            found.nodes.insert(n);
            if found.nodes.len() > LONGEST {
                return None;
            }
            // Constants of other operators are parameters.
            if let Some(Structure::Elementwise(_)) = node.op.structure() {
                let constants = node.inputs.iter().flatten().filter_map(|id| self.constant(*id));
                found.rank = constants.map(|t| t.shape().rank()).fold(found.rank, usize::max);
            }
            open.extend(node.inputs.iter().flatten());
        }
        found.x = x?;
        Some(found)
    }

    /// The value of constant `id` of one element, which may be quantized.
    fn single(&self, id: TensorId) -> Option<f32> {
        let one = |t: &&Tensor| t.shape().elements() == 1;
        if let Some(t) = self.constant(id) {
            return Some(t).filter(one).filter(|t| t.dtype() == DType::F32)?.to_f32s().ok()?.first().copied();
        }
        let View { bytes: super::Bytes::In(bytes), scaling, .. } = self.views.get(&id)? else { return None };
        let element = self.constant(*bytes).filter(one)?.to_i64s().ok()?.first().copied()?;
        Some((element - i64::from(scaling.zero)) as f32 * scaling.scale)
    }

    /// The values of `function` for all bytes of `from`, as bytes of `to`.
    fn evaluated(&self, function: &Function, y: TensorId, from: &Scaling, to: &Scaling) -> Option<Tensor> {
        let x = Tensor::new([256], &numbers(from)).ok()?;
        let mut values: BTreeMap<TensorId, Tensor> =
            function.constants.iter().map(|(id, v)| (*id, Tensor::scalar(*v))).collect();
        values.insert(function.x, x.clone());
        for &n in &function.nodes {
            let node = &self.old[n];
            let value = |id: &Option<TensorId>| id.map(|id| values.get(&id).ok_or(())).transpose();
            let inputs: Vec<Option<&Tensor>> =
                node.inputs.iter().map(value).collect::<Result<_, _>>().ok()?;
            if !maps_elements(node.op.as_ref(), &inputs) {
                return None;
            }
            let facts = inputs.into_iter().map(|t| t.cloned().map(Fact::known)).collect();
            let cx = OpCx::for_infer(facts, node.outputs.len());
            let infos = node.op.infer(&cx).ok()?;
            if infos.first() != Some(x.info()) {
                return None;
            }
            let cx = cx.with_outputs(infos);
            let result = evaluate(node.op.as_ref(), &cx, &node.op.cpu(&cx).ok()?).ok()?.into_iter().next()?;
            values.insert(output(node)?, result);
        }
        quantize(values.get(&y)?.as_slice::<f32>().ok()?, to)
    }
}

/// Whether each output element of `op` depends only on the input elements at its position.
fn maps_elements(op: &dyn Operator, inputs: &[Option<&Tensor>]) -> bool {
    let mut desc = PointwiseDesc::new([Indexing::Full]);
    let mut expr = |t: &Option<&Tensor>| match t {
        Some(t) if t.shape().elements() != 1 => desc.input(0).ok(),
        Some(t) => desc.constant(*t.as_slice::<f32>().ok()?.first()?).ok(),
        None => desc.constant(0.0).ok(),
    };
    let Some(args) = inputs.iter().map(&mut expr).collect::<Option<Vec<_>>>() else { return false };
    let fact = |t: &Tensor| match t.shape().elements() {
        1 => Fact::known(t.clone()),
        _ => Fact::of(t.info().clone()),
    };
    let cx = OpCx::for_infer(inputs.iter().map(|t| t.map(fact)).collect(), 1);
    let cx = match op.infer(&cx) {
        Ok(infos) => cx.with_outputs(infos),
        Err(_) => return false,
    };
    op.pointwise_expr(&cx, &mut desc, &args).is_some()
}

/// The value of each byte of `from`.
fn numbers(from: &Scaling) -> Vec<f32> {
    let element = |byte: u8| if from.dtype == DType::I8 { i32::from(byte as i8) } else { i32::from(byte) };
    (0..=u8::MAX).map(|byte| (element(byte) - from.zero) as f32 * from.scale).collect()
}

fn quantize(numbers: &[f32], to: &Scaling) -> Option<Tensor> {
    let bytes: Vec<u8> = numbers.iter().map(|v| to.element(*v) as u8).collect();
    Tensor::from_bytes(TensorInfo::new(to.dtype, Shape::new([bytes.len()]).ok()?), &bytes).ok()
}
