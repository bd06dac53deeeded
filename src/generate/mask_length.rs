//! What a graph decides by the length of its mask, as which of two tables of rotations it reads.
//!
//! A cache of a fixed length has a mask that is longer than the text. Such a graph would decide for the longer one. The
//! values that it decides by are computed on the host, so that the mask has a length with the decision of the text's.

use std::collections::BTreeMap;

use super::graph_edit::ancestors;
use super::input::IntInput;
use super::masked_graph::{MOST_KNOWN, depending, node_facts, sizes, value};
use crate::dtype::DType;
use crate::graph::{Graph, Origin, TensorId, TensorInfo};
use crate::operator::{Fact, Structure};
use crate::shape::Shape;

/// Lengths that are compared besides the whole: what differs between them depends on the length.
const LENS: [usize; 2] = [5, 8];

/// The most lengths whose decisions are kept.
const MOST_KEPT: usize = 1 << 12;

/// The values that a graph decides by.
#[derive(Debug)]
pub(super) struct MaskLength {
    mask: TensorId,
    dtype: DType,
    read: Vec<TensorId>,
    /// Nodes that they depend on.
    needed: Vec<bool>,
    /// Whether one of them chooses a branch.
    chooses: bool,
    /// What is decided, by length.
    decided: BTreeMap<usize, Vec<u8>>,
    /// A length of the mask for what is decided.
    lengths: BTreeMap<Vec<u8>, usize>,
}

impl MaskLength {
    /// Nothing where no value of `graph` that numbers are computed with depends on the length of `mask`.
    pub(super) fn new(graph: &Graph, mask: &IntInput) -> Option<Self> {
        let (mask, dtype) = (graph.input(&mask.name)?, mask.dtype());
        let [a, b] = LENS.map(|len| facts(graph, (mask, dtype, len), None));
        let tainted = depending(graph, &a, &b);
        let (mut read, mut chooses) = (Vec::new(), false);
        for node in graph.nodes() {
            let mut made = node.outputs.iter().flatten();
            let is_control = node.op.control().is_some();
            let is_known = made.all(|id| value(&a, *id).is_some() && value(&b, *id).is_some());
            if !is_control && (is_known || node.op.shape_only()) {
                continue;
            }
            let total = match node.op.structure() {
                Some(Structure::Attention(ports)) => ports.total,
                _ => None,
            };
            let is_size = |i: usize| node.op.value_inputs().contains(&i) && !is_control;
            for (i, id) in node.inputs.iter().enumerate() {
                let Some(id) = id.filter(|id| tainted[id.index()] && total != Some(i) && !is_size(i)) else {
                    continue;
                };
                // What grows with the mask belongs to its rows, which it hides.
                if is_control || sizes(&a, id) == sizes(&b, id) {
                    read.push(id);
                    chooses |= is_control;
                }
            }
        }
        if read.is_empty() {
            return None;
        }
        let needed = ancestors(graph, read.iter().copied());
        let (decided, lengths) = (BTreeMap::new(), BTreeMap::new());
        Some(MaskLength { mask, dtype, read, needed, chooses, decided, lengths })
    }

    /// Whether a branch is chosen by the length.
    pub(super) fn chooses(&self) -> bool {
        self.chooses
    }

    /// The length of the mask of a run that ends at `end` tokens and has room for `least`, of at most `capacity`: one with
    /// the decisions of `end`, the same one for as many runs as may be; nothing where `least` tokens decide otherwise.
    pub(super) fn of(&mut self, graph: &Graph, end: usize, least: usize, capacity: usize) -> Option<usize> {
        let wanted = self.decide(graph, end);
        if let Some(known) = self.lengths.get(&wanted).filter(|known| **known >= least.max(end)) {
            return Some(*known);
        }
        let (mut same, mut other) = (least.max(end), capacity);
        if self.decide(graph, same) != wanted {
            return None;
        }
        if self.decide(graph, capacity) == wanted {
            same = capacity;
        }
        while same + 1 < other {
            let middle = same + (other - same) / 2;
            match self.decide(graph, middle) == wanted {
                true => same = middle,
                false => other = middle,
            }
        }
        if self.lengths.len() >= MOST_KEPT {
            self.lengths.clear();
        }
        self.lengths.insert(wanted, same);
        Some(same)
    }

    /// What the graph decides for a mask of `len`.
    fn decide(&mut self, graph: &Graph, len: usize) -> Vec<u8> {
        if let Some(known) = self.decided.get(&len) {
            return known.clone();
        }
        let facts = facts(graph, (self.mask, self.dtype, len), Some(&self.needed));
        let mut all = Vec::new();
        for id in &self.read {
            match value(&facts, *id) {
                Some(value) => all.extend(value.bytes()),
                // Lengths of which nothing is known are like no other.
                None => all.extend(len.to_le_bytes()),
            }
        }
        if self.decided.len() >= MOST_KEPT {
            self.decided.clear();
        }
        self.decided.insert(len, all.clone());
        all
    }
}

/// What is known of each tensor where the mask alone has a length, of the `needed` nodes.
fn facts(
    graph: &Graph,
    (mask, dtype, len): (TensorId, DType, usize),
    needed: Option<&[bool]>,
) -> Vec<Option<Fact>> {
    let mut facts: Vec<Option<Fact>> = vec![None; graph.tensors().len()];
    for (decl, fact) in graph.tensors().iter().zip(&mut facts) {
        if let Origin::Constant(value) = &decl.origin {
            *fact = Some(Fact::known(value.clone()));
        }
    }
    if let Ok(shape) = Shape::new([1, len]) {
        facts[mask.index()] = Some(Fact::of(TensorInfo::new(dtype, shape)));
    }
    for (n, node) in graph.nodes().iter().enumerate() {
        if needed.is_some_and(|needed| !needed.get(n).copied().unwrap_or(false)) {
            continue;
        }
        for (id, fact) in node.outputs.iter().zip(node_facts(node, &facts, MOST_KNOWN).unwrap_or_default()) {
            if let Some(id) = id {
                facts[id.index()] = Some(fact);
            }
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::backend::ContextDesc;
    use crate::generate::call::{Call, Ran};
    use crate::generate::error::GenerateError;
    use crate::generate::fixed::{FixedPlan, FixedRuns};
    use crate::generate::graph_file::GraphFile;
    use crate::generate::growing::GrowingRuns;
    use crate::generate::io::DecoderIo;
    use crate::generate::padded::PaddedPlan;
    use crate::generate::settings::Config;
    use crate::graph::{GraphBuilder, Node, NodeId, StorageScope, Tensor, TensorDecl};
    use crate::operator::Operator;
    use crate::ops::control::If;
    use crate::ops::shape_ops::ShapeOf;
    use crate::ops::{Function, cast, mul, unary};
    use crate::registry::Registry;
    use crate::session::{IoInfo, Session};

    fn shape_of() -> Arc<dyn Operator> {
        Arc::new(ShapeOf { start: 1, end: Some(2) })
    }

    /// Numbers times the dozens of the mask's length.
    fn dozens() -> (Graph, IntInput) {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, ["n".into()]);
        let mask = g.input("attention_mask", DType::I64, [1.into(), "t".into()]);
        let size = g.op(shape_of(), &[mask]);
        let size = g.op(cast(DType::F32), &[size]);
        let part = g.constant("part", Tensor::new([1], &[1f32 / 12.0]).unwrap());
        let parts = g.op(mul(), &[size, part]);
        let parts = g.op(unary(Function::Floor), &[parts]);
        let y = g.op(mul(), &[x, parts]);
        g.output("y", y);
        let graph = g.build().unwrap();
        let inputs = [IoInfo::from(graph.tensor(graph.input("attention_mask").unwrap()))];
        (graph, IntInput::find(&inputs, "attention_mask").unwrap().unwrap())
    }

    #[test]
    fn lengths_that_decide_alike_share_the_longest() {
        let (graph, mask) = dozens();
        let mut length = MaskLength::new(&graph, &mask).unwrap();
        assert!(!length.chooses());
        assert_eq!(length.of(&graph, 3, 3, 100), Some(11));
        assert_eq!(length.of(&graph, 7, 7, 100), Some(11));
        assert_eq!(length.of(&graph, 10, 16, 100), None, "what fills up the run decides otherwise");
        assert_eq!(length.of(&graph, 12, 12, 100), Some(23));
        assert_eq!(length.of(&graph, 99, 99, 100), Some(100));
        assert_eq!(length.of(&graph, 85, 85, 93), Some(93));
    }

    /// The tiny model, which reads other rotations where its mask is longer than 100, and its settings.
    fn long_rope() -> (Session, Config) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny_llm/fixed");
        let config = Config::read(&folder, &GraphFile::Any).unwrap();
        let cpu = Registry::with_defaults().open("cpu", &ContextDesc::default()).unwrap();
        let session = Session::builder().model(folder.join("model.onnx")).context(cpu).build().unwrap();
        let mask = IntInput::find(&session.inputs(), "attention_mask").unwrap().unwrap();
        assert!(MaskLength::new(session.graph(), &mask).is_none());
        let mut graph = session.graph().clone();
        let named = |graph: &Graph, name: &str| {
            TensorId(graph.tensors().iter().position(|tensor| tensor.name == name).unwrap() as u32)
        };
        let tables = ["cos", "sin"].map(|name| named(&graph, name));
        let values = tables.map(|id| match &graph.tensor(id).origin {
            Origin::Constant(value) => value.clone(),
            _ => panic!("no constant"),
        });
        let branch = |values: [Tensor; 2]| {
            let mut g = GraphBuilder::new("branch");
            for (at, value) in values.into_iter().enumerate() {
                let id = g.constant(format!("table {at}"), value);
                g.output(format!("out {at}"), id);
            }
            Arc::new(g.build().unwrap())
        };
        let slower = |value: &Tensor, f: fn(f32) -> f32| {
            let angles: Vec<f32> = (0..value.shape()[0] * value.shape()[1])
                .map(|at| (at / value.shape()[1]) as f32 / (3 + at % value.shape()[1]) as f32)
                .collect();
            Tensor::new(value.shape().to_vec(), &angles.into_iter().map(f).collect::<Vec<_>>()).unwrap()
        };
        let then = branch([slower(&values[0], f32::cos), slower(&values[1], f32::sin)]);
        let other = branch(values);
        let part = TensorId(graph.tensors.len() as u32);
        graph.tensors.push(TensorDecl {
            name: "part".to_owned(),
            dtype: Some(DType::F32),
            shape: None,
            origin: Origin::Constant(Tensor::new([1], &[1f32 / 101.0]).unwrap()),
            scope: StorageScope::Buffer,
        });
        let mut add = |op: Arc<dyn Operator>, inputs: &[TensorId], outputs: usize| {
            let node = NodeId(graph.nodes.len() as u32);
            let made: Vec<TensorId> = (0..outputs)
                .map(|output| {
                    let id = TensorId(graph.tensors.len() as u32);
                    let origin = Origin::Node { node, output: output as u32 };
                    let (name, scope) = (format!("made {}", id.0), StorageScope::Buffer);
                    graph.tensors.push(TensorDecl { name, dtype: None, shape: None, origin, scope });
                    id
                })
                .collect();
            graph.nodes.push(Node {
                name: format!("added {}", node.0),
                op,
                inputs: inputs.iter().copied().map(Some).collect(),
                outputs: made.iter().copied().map(Some).collect(),
                device: None,
                control_deps: Vec::new(),
            });
            made
        };
        let mask = session.graph().input("attention_mask").unwrap();
        let size = add(shape_of(), &[mask], 1)[0];
        // Whole parts of 101 tokens.
        let size = add(cast(DType::F32), &[size], 1)[0];
        let parts = add(mul(), &[size, part], 1)[0];
        let parts = add(unary(Function::Floor), &[parts], 1)[0];
        let is_long = add(cast(DType::Bool), &[parts], 1)[0];
        let chosen = add(Arc::new(If { then, other }), &[is_long], 2);
        for node in &mut graph.nodes {
            if node.op.name() == "GroupQueryAttention" {
                (node.inputs[7], node.inputs[8]) = (Some(chosen[0]), Some(chosen[1]));
            }
        }
        (session.with_graph(graph.sorted().unwrap()), config)
    }

    /// Greedy tokens, by `run`.
    fn tokens(
        (session, io, prompt, count): (&Session, &DecoderIo, &[u32], usize),
        mut run: impl FnMut(&Call<'_>) -> Result<Ran, GenerateError>,
    ) -> Vec<u32> {
        let (mut rest, mut len, mut made) = (prompt.to_vec(), 0, Vec::new());
        while made.len() < count {
            let (all_lens, from) = ([len], rest.len() - 1);
            let ran = run(&Call {
                session,
                io,
                options: None,
                sequences: 0..1,
                tokens: &rest,
                all_lens: &all_lens,
                from,
                ahead: 0,
                positions: 512,
                asked: &[],
            });
            let ran = ran.unwrap();
            (len, rest) = (len + ran.taken, rest.split_off(ran.taken));
            if rest.is_empty() {
                let logits = ran.rows.into_iter().next_back().unwrap().into_logits();
                let most = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
                made.push(most as u32);
                rest = vec![most as u32];
            }
        }
        made
    }

    #[test]
    fn a_fixed_cache_decides_as_the_text_does() {
        let (session, config) = long_rope();
        let (mut io, tensors) = DecoderIo::find(&session, &config).unwrap();
        io.vocabulary = 320;
        assert!(PaddedPlan::new(&session, &io, &tensors, 256).unwrap().is_none());
        let short: Vec<u32> = (3..20).collect();
        let long: Vec<u32> = (0..150).map(|at| 3 + at * 7 % 200).collect();
        for (prompt, count, capacity) in [(&short, 110, 256), (&short, 40, 64), (&long, 20, 256)] {
            let given = (&session, &io, &prompt[..], count);
            let mut growing = GrowingRuns::new(&session, &io, tensors.clone()).unwrap().0;
            growing.limit_chunk(512);
            let wanted = tokens(given, |call| growing.run(call));
            let plan = FixedPlan::new(&session, &io, &tensors, capacity).unwrap().unwrap();
            let mut fixed = FixedRuns::new(&session, &io, plan, capacity, 512).unwrap();
            assert!(!fixed.shares_runs());
            let before = session.plans_made();
            let found = tokens(given, |call| fixed.run(call));
            assert_eq!(found, wanted, "{} tokens, a cache of {capacity}", prompt.len());
            assert!(session.plans_made() - before <= 8, "{} plans", session.plans_made() - before);
        }
    }
}
