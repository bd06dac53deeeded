//! Caches in `float32` of graphs that compute with them in `float16`.
//!
//! What converts a model to `float16` and keeps its inputs and outputs converts the whole cache twice in each run. Keys
//! and values are the same numbers where the cache is `float16` itself.

use super::cache_type::CacheType;
use super::graph_cache::GraphCache;
use super::settings::Config;
use crate::dtype::DType;
use crate::graph::{Graph, Node, TensorId};
use crate::ops::cast;
use crate::ops::pointwise::Cast;
use crate::ops::shape_ops::{ShapeOf, SizeOf};
use crate::session::Session;

/// The type that caches get.
const NARROW: DType = DType::F16;

/// The session of the same model with the caches of its decoder narrow; nothing where that changes nothing.
pub(super) fn narrowed(session: &Session, config: &Config) -> Option<Session> {
    narrowed_all(&[session], config, config.cache_names()).pop().flatten()
}

/// As [`narrowed`] for several graphs that hand on caches `names`, each an input and the output that is it after a run.
/// Those that some graph reads or makes otherwise stay as they are.
pub(super) fn narrowed_all(
    sessions: &[&Session],
    config: &Config,
    names: impl Iterator<Item = [String; 2]>,
) -> Vec<Option<Session>> {
    let mut changes: Vec<Change> = sessions.iter().map(|session| Change::new(session.graph())).collect();
    // Who asks for float32 gets what the graph declares.
    let names = names.filter(|_| config.cache_type != Some(CacheType::F32));
    for names in names {
        let caches: Vec<Places> = changes.iter().map(|change| change.places(&names)).collect();
        let is_whole = caches.iter().any(|(past, _)| past.is_some())
            && caches.iter().any(|(_, present)| present.is_some());
        if is_whole && changes.iter().zip(&caches).all(|(change, places)| change.fits(places)) {
            changes.iter_mut().zip(caches).for_each(|(change, places)| change.narrow(places));
        }
    }
    let changed = changes.into_iter().zip(sessions);
    changed.map(|(change, session)| Some(session.with_graph(change.finish()?))).collect()
}

/// Where a graph has a cache: an input and an output.
type Places = (Option<TensorId>, Option<TensorId>);

/// A graph in the making.
struct Change {
    graph: Graph,
    is_changed: bool,
    /// Conversions of caches, which nothing reads any more.
    unread: Vec<TensorId>,
}

impl Change {
    fn new(graph: &Graph) -> Self {
        Change { graph: graph.clone(), is_changed: false, unread: Vec::new() }
    }

    fn places(&self, [past, present]: &[String; 2]) -> Places {
        let output = self.graph.output(present);
        (self.graph.input(past), output.map(|at| self.graph.outputs()[at].1))
    }

    /// Whether a cache can be narrow here.
    fn fits(&self, (past, present): &Places) -> bool {
        past.is_none_or(|past| is_narrowed(&self.graph, past))
            && present.is_none_or(|present| is_widened(&self.graph, present))
    }

    fn narrow(&mut self, (past, present): Places) {
        past.into_iter().for_each(|past| self.read_narrow(past));
        present.into_iter().for_each(|present| give_narrow(&mut self.graph, present));
        if let Some((past, present)) = past.zip(present) {
            GraphCache { past, present }.give_directly(&mut self.graph);
        }
        self.is_changed |= past.is_some() || present.is_some();
    }

    /// Makes an input narrow; what read it converted reads it.
    fn read_narrow(&mut self, past: TensorId) {
        self.graph.tensors[past.index()].dtype = Some(NARROW);
        let casts = readers(&self.graph, past).filter(|node| converts_to(node).is_some());
        let converted: Vec<TensorId> =
            casts.flat_map(|node| node.outputs.iter().flatten().copied()).collect();
        let inputs = self.graph.nodes.iter_mut().flat_map(|node| node.inputs.iter_mut());
        let converted_inputs = inputs.filter(|input| input.is_some_and(|id| converted.contains(&id)));
        converted_inputs.for_each(|input| *input = Some(past));
        self.unread.extend(converted);
    }

    /// The changed graph; nothing where it is as it was.
    fn finish(self) -> Option<Graph> {
        let mut graph = self.is_changed.then_some(self.graph)?;
        let mut unread = vec![false; graph.tensors().len()];
        self.unread.iter().for_each(|id| unread[id.index()] = true);
        let makes = |node: &Node| node.outputs.iter().flatten().any(|id| unread[id.index()]);
        let gone: Vec<bool> = graph.nodes().iter().map(makes).collect();
        graph.prune(&gone, &unread);
        graph.sorted().ok()
    }
}

/// The type that a node converts its input to.
fn converts_to(node: &Node) -> Option<DType> {
    node.op.downcast_ref::<Cast>().and_then(|cast| cast.to).filter(|_| node.inputs.len() == 1)
}

fn is_output(graph: &Graph, id: TensorId) -> bool {
    graph.outputs().iter().any(|(_, output)| *output == id)
}

fn readers(graph: &Graph, id: TensorId) -> impl Iterator<Item = &Node> {
    graph.nodes().iter().filter(move |node| node.inputs.contains(&Some(id)))
}

/// Whether all that is read of an input is its shape and its numbers in the narrow type.
fn is_narrowed(graph: &Graph, past: TensorId) -> bool {
    let is_shape = |node: &Node| {
        node.op.downcast_ref::<ShapeOf>().is_some() || node.op.downcast_ref::<SizeOf>().is_some()
    };
    let is_cast = |node: &Node| {
        converts_to(node) == Some(NARROW) && !node.outputs.iter().flatten().any(|&id| is_output(graph, id))
    };
    graph.tensor(past).dtype == Some(DType::F32)
        && !is_output(graph, past)
        && readers(graph, past).all(|node| is_shape(node) || is_cast(node))
        && readers(graph, past).any(is_cast)
}

/// Whether an output is only a conversion, which nothing in the graph reads and no other output is.
fn is_widened(graph: &Graph, present: TensorId) -> bool {
    let maker = graph.nodes().iter().find(|node| node.outputs[..] == [Some(present)]);
    let names = graph.outputs().iter().filter(|(_, output)| *output == present).count();
    maker.is_some_and(|node| converts_to(node) == Some(DType::F32))
        && names == 1
        && readers(graph, present).next().is_none()
}

/// Makes an output narrow.
fn give_narrow(graph: &mut Graph, present: TensorId) {
    graph.tensors[present.index()].dtype = Some(NARROW);
    if let Some(node) = graph.nodes.iter_mut().find(|node| node.outputs[..] == [Some(present)]) {
        node.op = cast(NARROW);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use half::f16;

    use super::*;
    use crate::backend::ContextDesc;
    use crate::graph::{GraphBuilder, Tensor};
    use crate::operator::Operator;
    use crate::ops::movement::Concat;
    use crate::ops::{Function, add, unary};
    use crate::registry::Registry;
    use crate::session::Memory;

    const NAMES: [&str; 2] = ["past_key_values.0.key", "present.0.key"];

    /// What a graph does with its cache.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Form {
        /// Converts it, appends to it and converts it back.
        Appends,
        /// Reads its `float32` numbers too.
        ReadsBoth,
        /// Reads what it gives.
        ReadsGiven,
        /// Only makes the cache, of what it reads in its place.
        Makes,
        /// Only reads the cache.
        Reads,
    }

    fn session(form: Form) -> Session {
        let mut g = GraphBuilder::new("g");
        let dims = |rows: &str| [1.into(), 2.into(), rows.into(), 4.into()];
        let x = g.input("x", DType::F16, dims("r"));
        let op = |g: &mut GraphBuilder, op: Arc<dyn Operator>, inputs: &[TensorId]| g.op(op, inputs);
        let mut made = g.op(unary(Function::Tanh), &[x]);
        if form != Form::Makes {
            let past = g.input(NAMES[0], DType::F32, dims("p"));
            let narrow = g.op(cast(DType::F16), &[past]);
            made = op(&mut g, Arc::new(Concat { axis: 2 }), &[narrow, made]);
            let shape = op(&mut g, Arc::new(ShapeOf { start: 2, end: Some(3) }), &[past]);
            g.output("rows", shape);
            if form == Form::ReadsBoth {
                let sum = g.op(add(), &[past, past]);
                g.output("sum", sum);
            }
        }
        let y = g.op(add(), &[made, made]);
        g.output("y", y);
        if form != Form::Reads {
            let present = g.op(cast(DType::F32), &[made]);
            g.output(NAMES[1], present);
            if form == Form::ReadsGiven {
                let sum = g.op(add(), &[present, present]);
                g.output("sum", sum);
            }
        }
        let cpu = Registry::with_defaults().open("cpu", &ContextDesc::default()).unwrap();
        Session::builder().graph(g.build().unwrap()).context(cpu).build().unwrap()
    }

    fn run(session: &Session, past: Tensor) -> [Tensor; 3] {
        let x: Vec<f16> = (0..16).map(|i| f16::from_f32(i as f32 * 0.3 - 2.0)).collect();
        let x = Memory::value(Tensor::new([1, 2, 2, 4], &x).unwrap());
        let mut binding = session.bind().input("x", x).input(NAMES[0], Memory::value(past)).build().unwrap();
        binding.run().unwrap();
        ["y", "rows", NAMES[1]].map(|name| binding.get_output(name).unwrap().clone())
    }

    fn all(sessions: &[&Session], config: &Config) -> Vec<Option<DType>> {
        let changed = narrowed_all(sessions, config, config.cache_names());
        let dtype = |session: Session| {
            let graph = session.graph();
            let id =
                graph.input(NAMES[0]).unwrap_or_else(|| graph.outputs()[graph.output(NAMES[1]).unwrap()].1);
            graph.tensor(id).dtype.unwrap()
        };
        changed.into_iter().map(|session| session.map(dtype)).collect()
    }

    #[test]
    fn a_narrow_cache_has_the_same_numbers() {
        let session = session(Form::Appends);
        let narrow = narrowed(&session, &Config::of_one_layer()).unwrap();
        let values: Vec<f16> = (0..24).map(|i| f16::from_f32((i as f32 * 1.7).sin())).collect();
        let wide: Vec<f32> = values.iter().map(|v| v.to_f32()).collect();
        let wanted = run(&session, Tensor::new([1, 2, 3, 4], &wide).unwrap());
        let got = run(&narrow, Tensor::new([1, 2, 3, 4], &values).unwrap());
        assert_eq!((wanted[2].dtype(), got[2].dtype()), (DType::F32, DType::F16));
        assert_eq!(wanted[2].to_f32s().unwrap(), got[2].to_f32s().unwrap());
        assert_eq!(wanted[0].to_f32s().unwrap(), got[0].to_f32s().unwrap());
        assert_eq!(wanted[1].as_slice::<i64>().unwrap(), got[1].as_slice::<i64>().unwrap());
        // The node that appends gives the output itself.
        let graph = narrow.graph();
        let at = graph.output(NAMES[1]).unwrap();
        let crate::graph::Origin::Node { node, .. } = graph.tensor(graph.outputs()[at].1).origin else {
            panic!()
        };
        assert_eq!(graph.node(node).op.name(), "Concat");
    }

    #[test]
    fn what_reads_its_cache_otherwise_keeps_its_type() {
        let config = Config::of_one_layer();
        for form in [Form::ReadsBoth, Form::ReadsGiven, Form::Makes, Form::Reads] {
            assert!(narrowed(&session(form), &config).is_none(), "{form:?}");
        }
        let asked = Config { cache_type: Some(CacheType::F32), ..Config::of_one_layer() };
        assert!(narrowed(&session(Form::Appends), &asked).is_none());
    }

    #[test]
    fn graphs_that_hand_on_a_cache_agree() {
        let config = Config::of_one_layer();
        let forms = |forms: [Form; 2]| forms.map(session);
        let [makes, reads] = forms([Form::Makes, Form::Reads]);
        assert_eq!(all(&[&reads, &makes], &config), [Some(DType::F16), Some(DType::F16)]);
        let [makes, other] = forms([Form::Makes, Form::ReadsBoth]);
        assert_eq!(all(&[&other, &makes], &config), [None, None]);
    }
}
