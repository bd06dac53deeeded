//! Attention reads queries, keys and values, and writes its result, where they lie: it absorbs the reshapes, transposes
//! and slices around it that make a view.

use std::sync::Arc;

use super::links::{Link, MOST_STEPS, link};
use crate::operator::{Fact, OpCx, Operator, Port, View, ViewStep};
use crate::plan::flow::{Flow, ValueId};
use crate::plan::index::FlowIndex;
use crate::shape::Shape;

/// Lets attention read and write heads where they lie; returns how many nodes were removed.
pub(super) fn fold_head_transposes(flow: &mut Flow) -> usize {
    let before = flow.nodes.len();
    let index = FlowIndex::new(flow);
    let mut changed = false;
    for n in 0..flow.nodes.len() {
        for i in 0..flow.nodes[n].inputs.len() {
            if let Some((root, op)) = source(flow, &index, n, i) {
                flow.nodes[n].inputs[i] = Some(root);
                flow.nodes[n].op = op;
                changed = true;
            }
        }
    }
    if changed {
        flow.drop_dead();
    }
    let index = FlowIndex::new(flow);
    for n in 0..flow.nodes.len() {
        if let Some((last, op)) = target(flow, &index, n) {
            // Nothing reads what the last node of the chain writes now.
            let y = flow.nodes[n].outputs[0];
            flow.nodes[n].outputs[0] = std::mem::replace(&mut flow.nodes[last].outputs[0], y);
            flow.nodes[n].op = op;
        }
    }
    flow.drop_dead();
    before - flow.nodes.len()
}

/// Whether the operator of node `n` takes a view at `port`.
fn takes_views(flow: &Flow, n: usize, port: Port, v: ValueId) -> bool {
    let whole = View::whole(shape(flow, v)).and_then(|view| view.strided());
    whole.is_some_and(|view| flow.nodes[n].op.with_view(port, &view).is_some())
}

fn shape(flow: &Flow, v: ValueId) -> &Shape {
    &flow.values[v].info.shape
}

/// The value in which input `i` of node `n` lies, before the most nodes that move elements, and the operator that reads it
/// there.
fn source(flow: &Flow, index: &FlowIndex, n: usize, i: usize) -> Option<(ValueId, Arc<dyn Operator>)> {
    let (node, port) = (&flow.nodes[n], Port::Input(i));
    let v = node.inputs[i].filter(|&v| takes_views(flow, n, port, v))?;
    let (mut at, mut best) = (v, None);
    let mut steps = Vec::new();
    while let Some(Link { source, step }) =
        link(flow, index, flow.nodes[n].device, at).filter(|_| steps.len() < MOST_STEPS)
    {
        let moves = step != ViewStep::Reshape;
        steps.push((step, shape(flow, at)));
        at = source;
        let whole = View::whole(shape(flow, at)).filter(|_| moves);
        let view = whole
            .and_then(|whole| steps.iter().rev().try_fold(whole, |view, (step, to)| view.then(step, to)))
            .and_then(|view| view.strided());
        let op = view.and_then(|view| node.op.with_view(port, &view));
        if let Some(op) = op.filter(|op| fits(flow, n, op.as_ref(), (port, at))) {
            best = Some((at, op));
        }
    }
    best
}

/// The last node of a chain that alone reads output 0 of node `n`, up to the last one that moves elements, and the operator
/// that writes there what that node writes.
fn target(flow: &Flow, index: &FlowIndex, n: usize) -> Option<(usize, Arc<dyn Operator>)> {
    let (node, port) = (&flow.nodes[n], Port::Output(0));
    let y = *node.outputs.first().filter(|&&y| takes_views(flow, n, port, y))?;
    let (mut at, mut best) = (y, None);
    let mut steps = Vec::new();
    while let Some(t) = index.only_user(at).filter(|_| steps.len() < MOST_STEPS) {
        let [to] = flow.nodes[t].outputs[..] else { break };
        let own = link(flow, index, flow.nodes[n].device, to)
            .filter(|link| link.source == at && !index.is_ordered(t));
        let Some(Link { step, .. }) = own else { break };
        let moves = step != ViewStep::Reshape;
        steps.push((step, shape(flow, at)));
        at = to;
        let whole = View::whole(shape(flow, at)).filter(|_| moves);
        let view = whole
            .and_then(|whole| {
                steps.iter().rev().try_fold(whole, |view, (step, from)| view.before(step, from))
            })
            .and_then(|view| view.strided());
        let op = view.and_then(|view| node.op.with_view(port, &view));
        if let Some(op) = op.filter(|op| fits(flow, n, op.as_ref(), (port, at))) {
            best = Some((t, op));
        }
    }
    best
}

/// Whether `op` is right in the place of node `n` with value `v` at `port`.
fn fits(flow: &Flow, n: usize, op: &dyn Operator, (port, v): (Port, ValueId)) -> bool {
    let node = &flow.nodes[n];
    let at = |own: Port, value: ValueId| if own == port { v } else { value };
    let fact = |(i, input): (usize, &Option<ValueId>)| {
        let value = input.map(|input| &flow.values[at(Port::Input(i), input)])?;
        Some(Fact { info: value.info.clone(), value: value.constant.clone() })
    };
    let facts = node.inputs.iter().enumerate().map(fact).collect();
    let Ok(infos) = op.infer(&OpCx::for_infer(facts, node.outputs.len())) else { return false };
    let mut outputs = node.outputs.iter().enumerate();
    infos.len() >= node.outputs.len()
        && outputs.all(|(o, &y)| infos[o] == flow.values[at(Port::Output(o), y)].info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ContextDesc;
    use crate::dtype::DType;
    use crate::graph::{Graph, GraphBuilder, Tensor, TensorId, TensorInfo};
    use crate::ops::attention::Attention;
    use crate::ops::movement::Transpose;
    use crate::ops::test_util::{attrs, read_op, tensor};
    use crate::ops::{AttrValue, Function};
    use crate::plan::passes::PassSelection;
    use crate::plan::passes::recognize_attention::recognize_attention;
    use crate::plan::specialize;
    use crate::registry::Registry;
    use crate::session::Session;

    const SHAPES: [[usize; 4]; 3] = [[2, 5, 3, 8], [2, 7, 3, 8], [2, 7, 3, 6]];

    fn turn() -> Arc<dyn Operator> {
        Arc::new(Transpose { perm: Some(vec![0, 2, 1, 3]) })
    }

    /// Attention of transposed heads; with `shown` the value before the last transpose is an output too.
    fn flow(shown: bool) -> Flow {
        let mut g = GraphBuilder::new("g");
        let inputs = ["q", "k", "v"].into_iter().zip(SHAPES);
        let ids: Vec<_> = inputs.map(|(n, s)| g.input(n, DType::F32, s.map(Into::into))).collect();
        let heads: Vec<_> = ids.iter().map(|&v| g.op(turn(), &[v])).collect();
        let a = g.op(Arc::new(Attention::default()) as Arc<dyn Operator>, &heads);
        let y = g.op(turn(), &[a]);
        g.output("y", y);
        if shown {
            g.output("a", a);
        }
        let infos = SHAPES.map(|s| TensorInfo::new(DType::F32, Shape::new(s).unwrap()));
        specialize(&g.build().unwrap(), &infos, &Default::default()).unwrap().plan().unwrap()
    }

    fn run(mut flow: Flow) -> Vec<f32> {
        for (v, shape) in flow.inputs.clone().into_iter().zip(SHAPES) {
            let values =
                (0..shape.iter().product::<usize>()).map(|i| ((i * 37 + 11) % 29) as f32 * 0.1 - 1.4);
            flow.values[v].constant = Some(Tensor::new(shape, &values.collect::<Vec<_>>()).unwrap());
        }
        (0..flow.nodes.len()).for_each(|n| assert!(flow.fold(n).unwrap()));
        flow.values[flow.outputs[0].1].constant.as_ref().unwrap().to_f32s().unwrap()
    }

    #[test]
    fn transposes_of_heads_go_into_attention() {
        let apart = flow(false);
        let mut one = apart.clone();
        assert_eq!(fold_head_transposes(&mut one), 4);
        let op = one.nodes[0].op.downcast_ref::<Attention>().unwrap();
        assert!(op.views.iter().all(Option::is_some));
        assert_eq!(one.values[one.outputs[0].1].info.shape.dims(), [2, 5, 3, 6]);
        assert_eq!(run(one), run(apart));
    }

    #[test]
    fn what_others_read_stays() {
        let apart = flow(true);
        let mut less = apart.clone();
        assert_eq!(fold_head_transposes(&mut less), 3);
        let names: Vec<&str> = less.nodes.iter().map(|n| n.op.name()).collect();
        assert_eq!(names, ["Attention", "Transpose"]);
        assert_eq!(run(less), run(apart));
        let mut again = flow(false);
        assert_eq!((fold_head_transposes(&mut again), fold_head_transposes(&mut again)), (4, 0));
    }

    /// Where queries, keys and values of a layer come from.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Packing {
        /// `nn.MultiheadAttention` as PyTorch exports it: moved in front, and gathered.
        Gathered,
        /// Parts of the last axis.
        Split,
        /// The same one by one.
        Sliced,
    }

    const ROWS: usize = 5;
    const HEADS: usize = 3;
    const SIZE: usize = 8;
    const WIDTH: usize = HEADS * SIZE;

    fn named(name: &str, attributes: &[(&str, AttrValue)]) -> Arc<dyn Operator> {
        read_op(name, 17, &attrs(attributes)).unwrap()
    }

    fn order(perm: &[i64]) -> Arc<dyn Operator> {
        Arc::new(Transpose { perm: Some(perm.to_vec()) })
    }

    /// Adds nodes to a graph, with constants for lists of numbers.
    struct Nodes(GraphBuilder, usize);

    impl Nodes {
        fn list(&mut self, list: &[i64]) -> TensorId {
            self.1 += 1;
            self.0.constant(format!("list{}", self.1), Tensor::from_i64s(list))
        }

        fn weight(&mut self, dims: &[usize], seed: u64) -> TensorId {
            self.1 += 1;
            self.0.constant(format!("weight{}", self.1), tensor(dims, seed))
        }

        fn with(&mut self, op: Arc<dyn Operator>, x: TensorId, list: &[i64]) -> TensorId {
            let list = self.list(list);
            self.0.op(op, &[x, list])
        }

        fn reshaped(&mut self, x: TensorId, dims: &[usize]) -> TensorId {
            let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
            self.with(named("Reshape", &[]), x, &dims)
        }

        /// Attention, spelled out, of values of `[batch, heads, rows, size]`.
        fn attention(&mut self, [q, k, v]: [TensorId; 3]) -> TensorId {
            let g = &mut self.0;
            let root = g.constant("root", Tensor::scalar((SIZE as f32).powf(-0.25)));
            let q = g.op(crate::ops::mul(), &[q, root]);
            let k = g.op(order(&[0, 1, 3, 2]), &[k]);
            let k = g.op(crate::ops::mul(), &[k, root]);
            let scores = g.op(named("MatMul", &[]), &[q, k]);
            let soft = g.op(named("Softmax", &[("axis", AttrValue::Int(-1))]), &[scores]);
            g.op(named("MatMul", &[]), &[soft, v])
        }
    }

    /// The attention of a vision transformer of `batch` pictures; rows come first where PyTorch gathers.
    fn layer(batch: usize, packing: Packing) -> Graph {
        let mut n = Nodes(GraphBuilder::new("layer"), 0);
        let rows_first = packing == Packing::Gathered;
        let dims = [batch, ROWS, WIDTH];
        let x = n.0.input("x", DType::F32, dims.map(Into::into));
        let x = if rows_first { n.0.op(order(&[1, 0, 2]), &[x]) } else { x };
        let (w, bias) = (n.weight(&[WIDTH, 3 * WIDTH], 2), n.weight(&[3 * WIDTH], 3));
        let product = n.0.op(named("MatMul", &[]), &[x, w]);
        let packed = n.0.op(crate::ops::add(), &[product, bias]);
        let parts: [TensorId; 3] = match packing {
            Packing::Gathered => {
                let x = n.reshaped(packed, &[ROWS, batch, 3, WIDTH]);
                let x = n.with(named("Unsqueeze", &[]), x, &[0]);
                let x = n.0.op(order(&[3, 1, 2, 0, 4]), &[x]);
                let x = n.with(named("Squeeze", &[]), x, &[3]);
                [0i64, 1, 2].map(|part| {
                    let place = n.0.constant(format!("place{part}"), Tensor::scalar(part));
                    let part = n.0.op(named("Gather", &[("axis", AttrValue::Int(0))]), &[x, place]);
                    let part = n.reshaped(part, &[ROWS, batch * HEADS, SIZE]);
                    let part = n.0.op(order(&[1, 0, 2]), &[part]);
                    n.reshaped(part, &[batch, HEADS, ROWS, SIZE])
                })
            }
            Packing::Split | Packing::Sliced => {
                let width = WIDTH as i64;
                let parts: [TensorId; 3] = if packing == Packing::Split {
                    let sizes = n.list(&[width; 3]);
                    let split = named("Split", &[("axis", AttrValue::Int(-1))]);
                    let (_, parts) = n.0.node("split", split, &[Some(packed), Some(sizes)], 3);
                    parts.try_into().unwrap()
                } else {
                    [0, 1, 2].map(|part| {
                        let bounds = [&[part * width], &[(part + 1) * width], &[-1i64]].map(|b| n.list(b));
                        n.0.op(named("Slice", &[]), &[packed, bounds[0], bounds[1], bounds[2]])
                    })
                };
                parts.map(|part| {
                    let part = n.reshaped(part, &[batch, ROWS, HEADS, SIZE]);
                    n.0.op(order(&[0, 2, 1, 3]), &[part])
                })
            }
        };
        let y = n.attention(parts);
        let perm = if rows_first { [2, 0, 1, 3] } else { [0, 2, 1, 3] };
        let y = n.0.op(order(&perm), &[y]);
        let y = n.reshaped(y, &[batch * ROWS, WIDTH]);
        let w = n.weight(&[WIDTH, WIDTH], 4);
        let y = n.0.op(named("Gemm", &[]), &[y, w]);
        let first = if rows_first { [ROWS, batch] } else { [batch, ROWS] };
        let y = n.reshaped(y, &[first[0], first[1], WIDTH]);
        let y = if rows_first { n.0.op(order(&[1, 0, 2]), &[y]) } else { y };
        n.0.output("y", y);
        n.0.build().unwrap()
    }

    const LAYERS: [(usize, Packing); 5] = [
        (1, Packing::Gathered),
        (2, Packing::Gathered),
        (2, Packing::Split),
        (2, Packing::Sliced),
        (1, Packing::Split),
    ];

    #[test]
    fn layers_of_transformers_have_no_moves_before_and_after_attention() {
        for (batch, packing) in LAYERS {
            let graph = layer(batch, packing);
            let x = tensor(&[batch, ROWS, WIDTH], 1);
            let flow = |values| {
                let infos = [x.info().clone()];
                specialize(&graph, &infos, &values).unwrap().plan().unwrap()
            };
            let mut apart = flow(Default::default());
            assert_eq!(recognize_attention(&mut apart), 1);
            let mut one = apart.clone();
            assert!(fold_head_transposes(&mut one) > 0);
            let moves = |flow: &Flow| {
                let is_move = |n: &usize| {
                    let op = &flow.nodes[*n].op;
                    op.alias(&flow.cx(*n)).is_none() && op.view_step(&flow.cx(*n), 0).is_some()
                };
                (0..flow.nodes.len()).filter(is_move).count()
            };
            // PyTorch moves rows before batch and back where there are several pictures.
            let outer = if packing == Packing::Gathered && batch > 1 { 2 } else { 0 };
            let inner = [8, 5, 7][packing as usize];
            assert_eq!((moves(&apart), moves(&one)), (outer + inner, outer), "{batch} {packing:?}");
            let run = |flow: &Flow| {
                let mut flow = flow.clone();
                let input = flow.inputs[0];
                flow.values[input].constant = Some(x.clone());
                (0..flow.nodes.len()).for_each(|n| assert!(flow.fold(n).unwrap()));
                flow.values[flow.outputs[0].1].constant.as_ref().unwrap().bytes().to_vec()
            };
            assert_eq!(run(&one), run(&apart), "{batch} {packing:?}");
        }
    }

    /// Commands of a plan on `device` with and without the pass, whose results are equal to the last bit.
    fn commands(device: &str, batch: usize, packing: Packing) -> Option<[usize; 2]> {
        let desc = ContextDesc { validation: true, ..ContextDesc::default() };
        let context = match Registry::with_defaults().open(device, &desc) {
            Ok(context) => context,
            Err(error) => {
                let required = std::env::var("REQUIRE_BACKENDS").is_ok_and(|v| v.contains(device));
                assert!(!required, "{device}: {error}");
                return None;
            }
        };
        let without = PassSelection::default().without("fold_head_transposes").unwrap();
        let runs = [PassSelection::default(), without].map(|passes| {
            let builder = Session::builder().graph(layer(batch, packing)).context(context.clone());
            let mut session = builder.passes(passes).build().unwrap();
            session.set_input("x", &tensor(&[batch, ROWS, WIDTH], 1)).unwrap();
            session.run().unwrap();
            let y = session.get_output("y").unwrap().bytes().to_vec();
            let nodes = session.binding().unwrap().plan().report.nodes.clone();
            (y, nodes.iter().map(|n| n.commands as usize).sum::<usize>())
        });
        assert!(runs[0].0 == runs[1].0, "{device} {batch} {packing:?}");
        assert_eq!(context.validation_messages(), Vec::<String>::new());
        Some([runs[0].1, runs[1].1])
    }

    /// A product, an attention and a product; of several pictures that PyTorch exports two transposes too.
    #[test]
    fn layers_of_transformers_take_a_command_for_each_product_and_one_for_attention() {
        for (batch, packing) in LAYERS {
            let least = if packing == Packing::Gathered && batch > 1 { 5 } else { 3 };
            for device in ["cpu", "vulkan"] {
                let Some([with, without]) = commands(device, batch, packing) else { continue };
                assert_eq!(with, least, "{device} {batch} {packing:?}");
                // Slices that lie contiguous have no command of their own.
                assert!(without >= least + 4, "{device} {batch} {packing:?}: {without}");
            }
        }
    }

    /// Heads that begin within a vector, a step, and rows that end within a column.
    #[test]
    fn chains_that_are_no_views_stay() {
        let flow = |chain: &dyn Fn(&mut Nodes, TensorId) -> TensorId, dims: &[usize]| {
            let mut n = Nodes(GraphBuilder::new("g"), 0);
            let x = n.0.input("x", DType::F32, dims.iter().map(|d| (*d).into()).collect::<Vec<_>>());
            let heads = ["k", "v"].map(|name| n.0.input(name, DType::F32, [2usize, 3, 5, 8].map(Into::into)));
            let q = chain(&mut n, x);
            let a = n.0.op(Arc::new(Attention::default()) as Arc<dyn Operator>, &[q, heads[0], heads[1]]);
            n.0.output("a", a);
            let mut infos = vec![tensor(dims, 1).info().clone()];
            infos.resize(3, tensor(&[2, 3, 5, 8], 1).info().clone());
            specialize(&n.0.build().unwrap(), &infos, &Default::default()).unwrap().plan().unwrap()
        };
        let columns = |n: &mut Nodes, x: TensorId| {
            let x = n.0.op(order(&[1, 0]), &[x]);
            n.reshaped(x, &[2, 3, 5, 8])
        };
        let across = |n: &mut Nodes, x: TensorId| n.0.op(order(&[0, 1, 3, 2]), &[x]);
        let slice = |n: &mut Nodes, x: TensorId, list: [i64; 4]| {
            let bounds = list.map(|b| n.list(&[b]));
            n.0.op(named("Slice", &[]), &[&[x], &bounds[..]].concat())
        };
        let stepped = |n: &mut Nodes, x: TensorId| slice(n, x, [0, 10, 2, 2]);
        let odd = |n: &mut Nodes, x: TensorId| slice(n, x, [1, 9, 3, 1]);
        let kept = |mut flow: Flow| {
            let names: Vec<&str> = flow.nodes.iter().map(|n| n.op.name()).collect();
            let names = names.join(" ");
            let none = fold_head_transposes(&mut flow) == 0;
            (none && names == flow.nodes.iter().map(|n| n.op.name()).collect::<Vec<_>>().join(" "), names)
        };
        assert_eq!(kept(flow(&columns, &[12, 20])), (true, "Transpose Reshape Attention".to_owned()));
        assert_eq!(kept(flow(&across, &[2, 3, 8, 5])), (true, "Transpose Attention".to_owned()));
        assert_eq!(kept(flow(&odd, &[2, 3, 5, 10])), (true, "Slice Attention".to_owned()));
        // Every second row of ten is a view.
        assert_eq!(fold_head_transposes(&mut flow(&stepped, &[2, 3, 10, 8])), 1);
        let whole = |n: &mut Nodes, x: TensorId| slice(n, x, [4, 9, 2, 1]);
        assert_eq!(fold_head_transposes(&mut flow(&whole, &[2, 3, 10, 8])), 1);
    }

    /// Transposes of axes of size 1 have no command.
    #[test]
    fn what_moves_only_axes_of_size_1_is_a_reshape() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [1usize, 5, 8].map(Into::into));
        let (a, b) = (g.op(order(&[1, 0, 2]), &[x]), g.op(crate::ops::add(), &[x, x]));
        let b = g.op(order(&[1, 2, 0]), &[b]);
        let b = g.op(crate::ops::unary(Function::Relu), &[b]);
        let b = g.op(order(&[2, 0, 1]), &[b]);
        g.output("a", a);
        g.output("b", b);
        let graph = g.build().unwrap();
        for device in ["cpu", "vulkan"] {
            let Ok(context) = Registry::with_defaults().open(device, &ContextDesc::default()) else {
                continue;
            };
            let without = PassSelection::default().without("fuse_chains").unwrap();
            let builder = Session::builder().graph(graph.clone()).context(context).passes(without);
            let mut session = builder.build().unwrap();
            session.set_input("x", &tensor(&[1, 5, 8], 1)).unwrap();
            session.run().unwrap();
            let nodes = session.binding().unwrap().plan().report.nodes.clone();
            let moved: u32 = nodes.iter().filter(|n| n.op == "Transpose").map(|n| n.commands).sum();
            assert_eq!(moved, 0, "{device}");
        }
    }
}
