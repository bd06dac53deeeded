//! A sum of two tensors and the layer normalization of it become one operator, which reads both once: the
//! residual sums of a transformer.

use std::sync::Arc;

use super::super::lowering::PlanCx;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::operator::{Elementwise, Structure};
use crate::ops::attention::SkipNorm;
use crate::plan::flow::{Flow, Value, ValueId};
use crate::plan::index::FlowIndex;
use crate::shape::{Shape, normalize_axis};

/// Joins normalizations with the sums that they read; returns how many operators are gone.
pub(super) fn join_norms(flow: &mut Flow, cx: &PlanCx<'_>) -> usize {
    let index = FlowIndex::new(flow);
    let mut keep = vec![true; flow.nodes.len()];
    for (n, keep) in keep.iter_mut().enumerate() {
        if let Some(joined) = joined(flow, &index, n, cx) {
            *keep = false;
            join(flow, &index, n, joined);
        }
    }
    flow.retain(&keep)
}

/// What a normalization becomes with its sum.
struct Joined {
    /// The node of the sum.
    sum: usize,
    op: SkipNorm,
    scale: ValueId,
    shift: Option<ValueId>,
}

/// What node `n`, a normalization over the last axis, becomes with the sum that it reads.
fn joined(flow: &Flow, index: &FlowIndex, n: usize, cx: &PlanCx<'_>) -> Option<Joined> {
    let node = &flow.nodes[n];
    let Some(Structure::LayerNormalization { axis, epsilon, center }) = node.op.structure() else {
        return None;
    };
    let (&[Some(read), Some(scale), ref rest @ ..], &[out]) = (&node.inputs[..], &node.outputs[..]) else {
        return None;
    };
    let shift = rest.first().copied().flatten();
    let sum = index.producer(read)?;
    let add = &flow.nodes[sum];
    let (&[Some(a), Some(b)], Some(Structure::Elementwise(Elementwise::Add))) =
        (&add.inputs[..], add.op.structure())
    else {
        return None;
    };
    let device = cx.device_of(node)?;
    let info = &flow.values[read].info;
    let last = info.shape.rank().checked_sub(1)?;
    let len = *info.shape.dims().last()?;
    let all = [a, b, read, out];
    let same =
        all.iter().all(|v| flow.values[*v].info == *info && flow.values[*v].scope == Default::default());
    // The node takes the place of the sum, before which what it reads besides must be there.
    let vector = |v: ValueId| {
        let value = &flow.values[v];
        value.info == TensorInfo { dtype: info.dtype, shape: Shape::new([len]).unwrap_or_default() }
            && index.producer(v).is_none()
    };
    let fits = !device.native
        && add.device == node.device
        && !index.is_ordered(n)
        && !index.is_ordered(sum)
        && normalize_axis(axis, info.shape.rank()).ok() == Some(last)
        && same
        && (center || shift.is_none())
        && [Some(scale), shift].into_iter().flatten().all(vector);
    fits.then_some(Joined { sum, op: SkipNorm { epsilon, center }, scale, shift })
}

/// Puts what node `n` becomes where its sum was.
fn join(flow: &mut Flow, index: &FlowIndex, n: usize, joined: Joined) {
    let Joined { sum, op, scale, shift } = joined;
    let (read, out) = (flow.nodes[sum].outputs[0], flow.nodes[n].outputs[0]);
    let mut outputs = vec![out];
    if index.only_user(read).is_none() {
        // Between the result and the sum stand the statistics.
        let mut dims = flow.values[read].info.shape.to_vec();
        if let Some(last) = dims.last_mut() {
            *last = 1;
        }
        for what in ["mean", "inverse"] {
            let name = format!("{}:{what}", flow.values[out].name);
            let info = TensorInfo { dtype: DType::F32, shape: Shape::new(dims.clone()).unwrap_or_default() };
            flow.values.push(Value { name, info, constant: None, scope: Default::default() });
            outputs.push(flow.values.len() - 1);
        }
        outputs.push(read);
    }
    let name = flow.nodes[n].name.clone();
    let node = &mut flow.nodes[sum];
    node.inputs.extend([Some(scale)]);
    if shift.is_some() {
        node.inputs.push(shift);
    }
    (node.op, node.outputs, node.name) = (Arc::new(op), outputs, name);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::graph::{Graph, GraphBuilder};
    use crate::ops::norm::LayerNormalization;
    use crate::ops::test_util::tensor;
    use crate::ops::{self, Function};
    use crate::plan::{Assignment, PlanCache, PlanOptions, specialize};
    use crate::registry::Registry;
    use crate::session::Session;

    /// A layer's end: the sum, its normalization, and a function of the sum or of the result.
    struct Case {
        axis: i64,
        center: bool,
        shift: bool,
        /// Sizes of the second summand.
        other: &'static [usize],
        sum_is_read: bool,
    }

    const CASE: Case = Case { axis: -1, center: true, shift: true, other: &[2, 3, 8], sum_is_read: true };

    impl Case {
        fn graph(&self) -> Graph {
            let mut g = GraphBuilder::new("g");
            let x = g.input("x", DType::F32, [2.into(), 3.into(), 8.into()]);
            let other = g.input("other", DType::F32, self.other.iter().map(|d| (*d).into()));
            let sum = g.op(ops::add(), &[x, other]);
            let sizes = &[2, 3, 8][self.axis.rem_euclid(3) as usize..];
            let mut inputs = vec![sum, g.constant("scale", tensor(sizes, 3))];
            if self.shift {
                inputs.push(g.constant("shift", tensor(sizes, 4)));
            }
            let op =
                LayerNormalization { axis: self.axis, epsilon: 1e-3, center: self.center, stash: DType::F32 };
            let y = g.op(Arc::new(op) as Arc<dyn crate::ops::Operator>, &inputs);
            let z = if self.sum_is_read {
                g.op(ops::add(), &[y, sum])
            } else {
                g.op(ops::unary(Function::Relu), &[y])
            };
            g.output("z", z);
            g.build().unwrap()
        }

        /// The operators after the pass, on a device that computes natively or not.
        fn joined(&self, native: bool) -> String {
            let infos = [[2, 3, 8].as_slice(), self.other]
                .map(|dims| TensorInfo { dtype: DType::F32, shape: Shape::new(dims.to_vec()).unwrap() });
            let mut flow = specialize(&self.graph(), &infos, &BTreeMap::new()).unwrap().plan().unwrap();
            let mut device = Registry::with_defaults().find("sim").unwrap();
            device.native = native;
            let (devices, options, cache) = ([&device], PlanOptions::default(), PlanCache::default());
            let assignment = Assignment::default();
            let cx = PlanCx {
                devices: &devices,
                options: &options,
                assignment: &assignment,
                cache: &cache,
                updates: &[],
            };
            let before = flow.nodes.len();
            let gone = join_norms(&mut flow, &cx);
            assert_eq!(before - flow.nodes.len(), gone);
            flow.nodes.iter().map(|n| n.op.name()).collect::<Vec<_>>().join(" ")
        }
    }

    #[test]
    fn sums_and_their_normalizations_become_one() {
        assert_eq!(CASE.joined(false), "SkipLayerNormalization Add");
        assert_eq!(Case { sum_is_read: false, ..CASE }.joined(false), "SkipLayerNormalization Relu");
        let rms = Case { center: false, shift: false, ..CASE };
        assert_eq!(rms.joined(false), "SkipSimplifiedLayerNormalization Add");
        // A native function gains nothing, and these are no rows of two equal tensors.
        assert_eq!(CASE.joined(true), "Add LayerNormalization Add");
        assert_eq!(Case { axis: 1, ..CASE }.joined(false), "Add LayerNormalization Add");
        assert_eq!(Case { other: &[3, 8], ..CASE }.joined(false), "Add LayerNormalization Add");
    }

    #[test]
    fn joined_nodes_give_what_they_gave_apart() {
        for sum_is_read in [false, true] {
            for (center, shift) in [(true, true), (true, false), (false, false)] {
                let case = Case { center, shift, sum_is_read, ..CASE };
                let [own, apart] = ["sim", "cpu"].map(|device| {
                    let mut session = Session::builder().graph(case.graph()).device(device).build().unwrap();
                    session.set_input("x", &tensor(&[2, 3, 8], 1)).unwrap();
                    session.set_input("other", &tensor(&[2, 3, 8], 2)).unwrap();
                    session.run().unwrap();
                    session.get_output("z").unwrap().to_f32s().unwrap()
                });
                assert!(own.iter().zip(&apart).all(|(a, b)| (a - b).abs() < 1e-5), "{own:?}, not {apart:?}");
            }
        }
    }
}
