//! Makes a `float32` flow compute in `float16` where its devices can.
//!
//! Activations and constants take half the bytes; kernels still accumulate in `float32`. A node stays in `float32`
//! where its device has no kernel for `float16`, where its values tend to exceed the range of `float16`, or where
//! nothing is gained, and where it writes into memory of the caller or reads it after that: all of it would be converted
//! in each run. Conversions are inserted between the two.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use crate::backend::DeviceInfo;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorIdentity, TensorInfo};
use crate::kernel::Requires;
use crate::ops::pointwise::cast::{LARGEST, cast_within, within};
use crate::ops::{Fact, HalfRule, OpCx, Operator, cast};
use crate::plan::PlanError;
use crate::plan::flow::{Flow, FlowNode, Value, ValueId};
use crate::plan::lowering::PlanCx;
use crate::plan::passes::update_in_place::{Pair, updating};
use crate::sync::lock;

/// What a `float32` model computes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// `float32`, as the model declares.
    #[default]
    F32,
    /// `float16`, with sums in `float32`, where the devices have kernels for it.
    F16,
}

/// The smallest number with all bits of `float16`'s mantissa.
const SMALLEST_NORMAL: f32 = 6.103_515_6e-5;
/// Largest number of elements of a constant that is checked for tiny values, such as epsilons.
const FEW: usize = 16;
/// Operations per output element above which conversions of a node's inputs pay.
const WORTHWHILE: u64 = 16;
/// How many times as many elements as a node gives are too many to be converted for it, where it computes little with each.
const MUCH_MORE: usize = 4;
/// Operations of all nodes together per converted element. A conversion moves 6 bytes, in the time of some
/// hundred operations on an integrated GPU; on an H100 a plan with 36 took half as long again as in
/// `float32`.
const ALL_WORTHWHILE: u64 = 128;
const NOT_HALVED: &str = "no node is in half precision: conversions would take longer than it saves";

/// Constants in `float16`, converted once for all plans of a session. Large constants of the graph are in `float16`
/// before any plan is made; these are the others.
#[derive(Debug, Default)]
pub struct HalfConstants(Mutex<HashMap<(TensorIdentity, bool), (Tensor, Tensor)>>);

impl HalfConstants {
    /// `t` in `float16`. Values beyond its range become its largest number, or stay infinite where `t` is only a mask
    /// ([`within`]).
    fn get(&self, t: &Tensor, masks: bool) -> Option<Tensor> {
        if let Some(half) = t.narrowed() {
            return Some(half);
        }
        let mut made = lock(&self.0);
        if let Some((_, half)) = made.get(&(t.identity(), masks)) {
            return half.reshaped(t.shape().clone()).ok();
        }
        let source = t.unkept().ok()?;
        let values = source.as_slice::<f32>().ok()?;
        let narrow = |v: &f32| {
            let bounded = if v.is_finite() { v.clamp(-LARGEST, LARGEST) } else { *v };
            half::f16::from_f32(if masks { within(*v) } else { bounded })
        };
        let half = Tensor::build_weight(TensorInfo::new(DType::F16, t.shape().clone()), |bytes| {
            let to = bytemuck::try_cast_slice_mut::<u8, half::f16>(bytes)?;
            to.iter_mut().zip(values).for_each(|(to, v)| *to = narrow(v));
            Ok::<(), bytemuck::PodCastError>(())
        });
        let half = half.ok()?;
        // The map holds the source, so its identity stays unique.
        made.insert((t.identity(), masks), (t.clone(), half.clone()));
        Some(half)
    }
}

/// Lets nodes of `flow` compute in `float16` where their devices can; returns how many do.
pub(super) fn mixed_precision(flow: &mut Flow, cx: &PlanCx<'_>) -> Result<usize, PlanError> {
    let lacks = |d: &&&DeviceInfo| !d.native && !d.features.contains(Requires::STORAGE_16);
    if let Some(device) = cx.devices.iter().find(lacks) {
        return Err(PlanError::NoHalf { device: device.name.clone() });
    }
    let lowers = |node: &FlowNode, facts: &OpCx| {
        node.op.alias(facts).is_some() || cx.commands_on(node, facts, cx.wanted_device(node)).is_ok()
    };
    let full = flow.clone();
    let made = convert(flow, &cx.cache.halves, &lowers, cx.updates);
    if made.is_loss() {
        *flow = full;
        flow.remarks.push(NOT_HALVED.to_owned());
        return Ok(0);
    }
    flow.drop_dead();
    Ok(made.nodes)
}

/// What was rewritten.
#[derive(Default)]
struct Rewritten {
    /// Nodes that compute in `float16`.
    nodes: usize,
    /// Their operations.
    flops: u64,
    /// Elements that are converted in each run.
    converted: u64,
    /// Whether one of the nodes reads a constant that lies in `float16`.
    narrowed: bool,
}

impl Rewritten {
    /// Whether the conversions take longer than `float16` saves.
    fn is_loss(&self) -> bool {
        !self.narrowed && self.flops < ALL_WORTHWHILE.saturating_mul(self.converted)
    }
}

/// Rewrites `flow`; `lowers` says whether the device of a node has a kernel for given facts, `updates` which inputs and outputs
/// are the same memory.
fn convert(
    flow: &mut Flow,
    constants: &HalfConstants,
    lowers: &dyn Fn(&FlowNode, &OpCx) -> bool,
    updates: &[(usize, usize)],
) -> Rewritten {
    // Memory of the caller in another type stays as it is.
    let is_full = |v: Option<usize>| v.is_some_and(|v| flow.values[v].info.dtype == DType::F32);
    let is_converted = |n: usize, pairs: &[Pair]| {
        pairs.iter().any(|[(input, _), _]| is_full(flow.nodes[n].inputs.get(*input).copied().flatten()))
    };
    let mut updating = updating(flow, updates);
    updating.retain(|(n, _, pairs)| is_converted(*n, pairs));
    // What is in that memory after it, and what only moves it.
    let updated = updating.iter().flat_map(|(n, _, pairs)| pairs.iter().map(|[(_, o), _]| (*n, *o)));
    let mut lasting: HashSet<ValueId> =
        updated.filter_map(|(n, o)| flow.nodes[n].outputs.get(o).copied()).collect();
    let updating: HashSet<usize> = updating.into_iter().map(|(n, ..)| n).collect();
    let nodes = std::mem::take(&mut flow.nodes);
    let mut masks = vec![true; flow.values.len()];
    for node in nodes.iter().filter(|n| n.op.half_rule() != HalfRule::Mask) {
        node.inputs.iter().flatten().for_each(|v| masks[*v] = false);
    }
    let mut made = vec![true; flow.values.len()];
    for node in &nodes {
        node.outputs.iter().for_each(|v| made[*v] = flow.values[*v].constant.is_some());
    }
    let mut half = HalfRewriter {
        flow,
        constants,
        masks,
        full: made,
        half: HashMap::new(),
        nodes: Vec::new(),
        done: Rewritten::default(),
    };
    let mut position = Vec::with_capacity(nodes.len());
    for (n, mut node) in nodes.into_iter().enumerate() {
        node.control_deps.iter_mut().for_each(|d| *d = position.get(*d).copied().unwrap_or(0));
        let reads_lasting = node.inputs.iter().flatten().any(|v| lasting.contains(v));
        if reads_lasting && half.moves(&node) {
            lasting.extend(node.outputs.iter().copied());
        }
        let stays = updating.contains(&n) || reads_lasting;
        let candidates = if stays { Vec::new() } else { half.candidates(&node) };
        let changed = candidates.into_iter().find_map(|cx| {
            let outputs = half.accepts(&node, &cx)?;
            let cx = cx.with_outputs(outputs.clone());
            lowers(&node, &cx).then_some((cx, outputs))
        });
        match changed {
            Some((cx, outputs)) => {
                half.take(node, &cx, outputs);
            }
            None => half.keep(node),
        }
        position.push(half.nodes.len().saturating_sub(1));
    }
    for (_, v) in half.flow.outputs.clone() {
        half.full_of(v, None);
    }
    let HalfRewriter { nodes, done, .. } = half;
    flow.nodes = nodes;
    done
}

/// Rewrites a flow.
struct HalfRewriter<'a> {
    flow: &'a mut Flow,
    constants: &'a HalfConstants,
    /// Whether a value is used only as a mask.
    masks: Vec<bool>,
    /// Whether a value exists in its original type.
    full: Vec<bool>,
    /// The `float16` copies of values.
    half: HashMap<ValueId, ValueId>,
    nodes: Vec<FlowNode>,
    done: Rewritten,
}

impl HalfRewriter<'_> {
    fn is_f32(&self, v: ValueId) -> bool {
        self.flow.values[v].info.dtype == DType::F32
    }

    /// Whether a node computes nothing.
    fn moves(&self, node: &FlowNode) -> bool {
        let value = |v: ValueId| &self.flow.values[v];
        let fact = |v: &Option<ValueId>| {
            v.map(|v| Fact { info: value(v).info.clone(), value: value(v).constant.clone() })
        };
        let cx = OpCx::for_infer(node.inputs.iter().map(fact).collect(), node.outputs.len());
        let outputs = node.outputs.iter().map(|v| value(*v).info.clone()).collect();
        node.op.cost(&cx.with_outputs(outputs)).flops == 0
    }

    fn half_constant(&self, v: ValueId) -> Option<Tensor> {
        let masks = self.masks.get(v).copied().unwrap_or(false);
        self.flow.values[v].constant.as_ref().and_then(|t| self.constants.get(t, masks))
    }

    /// The facts with which `node` might compute in `float16`, the preferred ones first.
    fn candidates(&self, node: &FlowNode) -> Vec<OpCx> {
        if node.op.half_rule() == HalfRule::Full || node.op.shape_only() {
            return Vec::new();
        }
        let values = || node.inputs.iter().flatten().copied();
        let plain = |v: ValueId| self.flow.values[v].scope == Default::default();
        let variable = |v: &ValueId| self.is_f32(*v) && self.flow.values[*v].constant.is_none();
        let tiny = |v: ValueId| {
            let constant = self.flow.values[v].constant.as_ref();
            let few = constant.filter(|t| t.shape().elements() <= FEW).and_then(|t| t.as_slice::<f32>().ok());
            few.is_some_and(|s| s.iter().any(|x| *x != 0.0 && x.abs() < SMALLEST_NORMAL))
        };
        let all_plain = values().chain(node.outputs.iter().copied()).all(plain);
        let narrowed =
            |v: ValueId| self.flow.values[v].constant.as_ref().is_some_and(|t| t.narrowed().is_some());
        let is_half = |v: ValueId| narrowed(v) || variable(&v) && self.half.contains_key(&v);
        let reads = values().any(|v| variable(&v) || narrowed(v));
        if !all_plain || values().any(tiny) || !reads {
            return Vec::new();
        }
        // Converting every input costs more than a cheap operator saves.
        let has_half = values().any(is_half);
        let elements: usize = node.outputs.iter().map(|&v| self.flow.values[v].info.elements()).sum();
        let facts = |in_half: &dyn Fn(usize) -> bool| {
            let inputs = node.inputs.iter().enumerate().map(|(i, v)| {
                let v = (*v)?;
                let value = &self.flow.values[v];
                let mut fact = Fact { info: value.info.clone(), value: value.constant.clone() };
                if self.is_f32(v) && in_half(i) {
                    fact.info.dtype = DType::F16;
                    fact.value = self.half_constant(v);
                }
                Some(fact)
            });
            OpCx::for_infer(inputs.collect(), node.outputs.len())
        };
        let outputs = node.outputs.iter().map(|&v| self.flow.values[v].info.clone()).collect();
        let cost = node.op.cost(&facts(&|_| false).with_outputs(outputs)).flops;
        if !has_half && cost < WORTHWHILE * elements as u64 {
            return Vec::new();
        }
        // One query reads all keys of a cache once: converted, they would be moved three times.
        let to_convert = values().filter(|v| variable(v) && !self.half.contains_key(v));
        let converted: usize = to_convert.map(|v| self.flow.values[v].info.elements()).sum();
        if converted > MUCH_MORE * elements && cost < WORTHWHILE * converted as u64 {
            return Vec::new();
        }
        let by_value = node.op.value_inputs();
        let mut found = vec![facts(&|_| true)];
        if !by_value.is_empty() {
            // Scales of Resize, for example, are always `float32`.
            found.push(facts(&|i| !by_value.contains(&i)));
        }
        found
    }

    /// The outputs' infos, where `node` accepts the facts and its `float32` outputs become `float16`; those after the first
    /// may stay, as statistics do.
    fn accepts(&self, node: &FlowNode, cx: &OpCx) -> Option<Vec<TensorInfo>> {
        let outputs = node.op.infer(cx).ok()?;
        let fits = |(i, (v, info)): (usize, (&ValueId, &TensorInfo))| {
            let old = &self.flow.values[*v].info;
            let dtype = if old.dtype == DType::F32 { DType::F16 } else { old.dtype };
            info.shape == old.shape && (info.dtype == dtype || i > 0 && info.dtype == old.dtype)
        };
        let mut each = node.outputs.iter().zip(&outputs).enumerate();
        let all = outputs.len() == node.outputs.len() && each.all(fits);
        all.then_some(outputs)
    }

    /// Adds `node` with its facts `cx` and outputs in `float16`.
    fn take(&mut self, mut node: FlowNode, cx: &OpCx, outputs: Vec<TensorInfo>) {
        let constant = |v: &ValueId| self.flow.values[*v].constant.as_ref();
        let mut constants = node.inputs.iter().flatten().filter_map(constant);
        self.done.narrowed |= constants.any(|t| t.narrowed().is_some());
        self.done.flops = self.done.flops.saturating_add(node.op.cost(cx).flops);
        self.done.nodes += 1;
        for (i, input) in node.inputs.iter_mut().enumerate() {
            let Some(v) = *input else { continue };
            let in_half = self.is_f32(v) && cx.input_opt(i).is_some_and(|t| t.dtype == DType::F16);
            *input = Some(if in_half { self.half_of(v, node.device) } else { self.full_of(v, node.device) });
        }
        for (v, info) in node.outputs.iter_mut().zip(outputs) {
            if self.is_f32(*v) && info.dtype == DType::F16 {
                let twin = self.twin(*v, info, None);
                self.half.insert(*v, twin);
                *v = twin;
            } else {
                self.full[*v] = true;
            }
        }
        self.nodes.push(node);
    }

    /// Adds `node` unchanged.
    fn keep(&mut self, node: FlowNode) {
        for &v in node.inputs.iter().flatten() {
            self.full_of(v, node.device);
        }
        node.outputs.iter().for_each(|v| self.full[*v] = true);
        self.nodes.push(node);
    }

    fn twin(&mut self, v: ValueId, info: TensorInfo, constant: Option<Tensor>) -> ValueId {
        let value = &self.flow.values[v];
        let (name, scope) = (format!("{}:half", value.name), value.scope);
        self.flow.values.push(Value { name, info, constant, scope });
        self.full.push(true);
        self.flow.values.len() - 1
    }

    /// The `float16` copy of `v`, converted at the first use.
    fn half_of(&mut self, v: ValueId, device: Option<u32>) -> ValueId {
        if let Some(twin) = self.half.get(&v) {
            return *twin;
        }
        let info = TensorInfo::new(DType::F16, self.flow.values[v].info.shape.clone());
        let constant = self.half_constant(v);
        let known = constant.is_some();
        let twin = self.twin(v, info, constant);
        self.half.insert(v, twin);
        if !known {
            self.convert(v, twin, DType::F16, device);
        }
        twin
    }

    /// `v` itself, converted back where only its `float16` copy exists.
    fn full_of(&mut self, v: ValueId, device: Option<u32>) -> ValueId {
        if !self.full[v]
            && let Some(twin) = self.half.get(&v).copied()
        {
            self.convert(twin, v, DType::F32, device);
            self.full[v] = true;
        }
        v
    }

    fn convert(&mut self, from: ValueId, to: ValueId, dtype: DType, device: Option<u32>) {
        let value = &self.flow.values[from];
        let name = format!("{}:{dtype}", value.name);
        self.done.converted = self.done.converted.saturating_add(value.info.elements() as u64);
        // The conversion keeps a `float32` mask a mask.
        let conversion = if dtype == DType::F16 { cast_within() } else { cast(dtype) };
        let (op, control_deps): (Arc<dyn Operator>, _) = (conversion, Vec::new());
        let (inputs, outputs) = (vec![Some(from)], vec![to]);
        self.nodes.push(FlowNode { name, op, inputs, outputs, device, control_deps });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::GraphBuilder;
    use crate::ops::attention::{Attention, TensorScatter};
    use crate::ops::conv::Conv;
    use crate::ops::linalg::MatMul;
    use crate::ops::movement::Transpose;
    use crate::plan::specialize;
    use crate::shape::Shape;

    #[test]
    fn constants_beyond_the_range_become_its_ends() {
        let store = HalfConstants::default();
        let t = Tensor::new([3], &[-1e9f32, 0.5, f32::INFINITY]).unwrap();
        let half = store.get(&t, false).unwrap();
        assert_eq!(half.to_f32s().unwrap(), [-65504.0, 0.5, f32::INFINITY]);
        assert_eq!(store.get(&t, false).unwrap().identity(), half.identity());
        assert_eq!(store.get(&t, true).unwrap().to_f32s().unwrap(), [-32768.0, 0.5, f32::INFINITY]);
        assert!(store.get(&Tensor::scalar(1i64), false).is_none());
    }

    /// Attention over a cache that is updated in place, whose keys are turned first.
    #[test]
    fn what_reads_memory_that_is_updated_in_place_is_not_converted() {
        let mut g = GraphBuilder::new("g");
        let row = |rows: usize| [1.into(), 4.into(), rows.into(), 64.into()];
        let [q, new] = [("q", 48), ("new", 1)].map(|(name, rows)| g.input(name, DType::F32, row(rows)));
        let past = g.input("past", DType::F32, [1.into(), 4.into(), 32.into(), 64.into()]);
        let scatter = TensorScatter { axis: 2, circular: false, updates: None };
        let present = g.op(Arc::new(scatter) as Arc<dyn Operator>, &[past, new]);
        let turned = Transpose { perm: Some(vec![0, 1, 3, 2]) };
        let turned = g.op(Arc::new(turned) as Arc<dyn Operator>, &[present]);
        let scores = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[q, turned]);
        let w = g.constant("w", Tensor::new([32, 512], &vec![0.5f32; 32 * 512]).unwrap());
        let y = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[scores, w]);
        g.output("y", y);
        g.output("present", present);
        let graph = g.build().unwrap();
        let info = |rows| TensorInfo::new(DType::F32, Shape::new([1, 4, rows, 64]).unwrap());
        let infos = [info(48), info(1), info(32)];
        // Two products, of which one reads the cache: as values all are in half precision.
        for (updates, halves) in [(&[][..], 2), (&[(2, 1)], 1)] {
            let mut flow = specialize(&graph, &infos, &Default::default()).unwrap().plan().unwrap();
            convert(&mut flow, &HalfConstants::default(), &|_, _| true, updates);
            let products = flow.nodes.iter().filter(|node| node.op.name() == "MatMul");
            let is_half = |node: &&FlowNode| flow.values[node.outputs[0]].info.dtype == DType::F16;
            assert_eq!(products.filter(is_half).count(), halves, "{updates:?}");
            let is_cache = |v: &Value| v.info.dtype == DType::F16 && v.info.elements() == 4 * 32 * 64;
            assert_eq!(flow.values.iter().any(is_cache), updates.is_empty());
        }
    }

    /// Attention over keys and values that an encoder gave: each is read by every query.
    #[test]
    fn large_inputs_that_are_read_once_are_not_converted() {
        for (queries, is_half) in [(1, false), (64, true)] {
            let mut g = GraphBuilder::new("g");
            let x = g.input("x", DType::F32, [1.into(), queries.into(), 64.into()]);
            let past = ["k", "v"].map(|name| g.input(name, DType::F32, [1.into(), 300.into(), 64.into()]));
            let w = g.constant("w", Tensor::new([64, 64], &vec![0.5f32; 64 * 64]).unwrap());
            let q = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[x, w]);
            let op = Attention { heads: Some((4, 4)), ..Attention::default() };
            let y = g.op(Arc::new(op) as Arc<dyn Operator>, &[q, past[0], past[1]]);
            g.output("y", y);
            let infos = [queries, 300, 300]
                .map(|rows| TensorInfo::new(DType::F32, Shape::new([1, rows, 64]).unwrap()));
            let mut flow =
                specialize(&g.build().unwrap(), &infos, &Default::default()).unwrap().plan().unwrap();
            convert(&mut flow, &HalfConstants::default(), &|_, _| true, &[]);
            let attention = flow.nodes.iter().find(|node| node.op.name() == "Attention").unwrap();
            let dtype = flow.values[attention.outputs[0]].info.dtype;
            assert_eq!(dtype == DType::F16, is_half, "{queries} queries");
        }
    }

    /// One channel's window reads and writes as many elements as its conversions, which all channels' windows are worth.
    #[test]
    fn conversions_that_cost_more_than_they_save_are_not_made() {
        for (group, is_loss) in [(32, true), (1, false)] {
            let mut g = GraphBuilder::new("g");
            let x = g.input("x", DType::F32, [1.into(), 32.into(), 9.into(), 9.into()]);
            let w = vec![0.5f32; 32 * 32 / group * 9];
            let w = g.constant("w", Tensor::new([32, 32 / group, 3, 3], &w).unwrap());
            let y = g.op(Arc::new(Conv { group, ..Conv::default() }) as Arc<dyn Operator>, &[x, w]);
            g.output("y", y);
            let info = TensorInfo::new(DType::F32, Shape::new([1, 32, 9, 9]).unwrap());
            let graph = g.build().unwrap();
            let mut flow = specialize(&graph, &[info], &Default::default()).unwrap().plan().unwrap();
            let made = convert(&mut flow, &HalfConstants::default(), &|_, _| true, &[]);
            assert_eq!((made.nodes, made.is_loss()), (1, is_loss), "{group} groups");
        }
        let made = |flops, narrowed| Rewritten { nodes: 1, flops, converted: 10, narrowed };
        assert_eq!([1279, 1280].map(|flops| made(flops, false).is_loss()), [true, false]);
        assert!(!made(0, true).is_loss());
    }
}
