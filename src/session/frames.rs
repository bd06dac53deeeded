//! Puts the conversions of frames before and after a graph, and the views of strided inputs before it.

use std::collections::HashSet;
use std::sync::Arc;

use crate::dtype::DType;
use crate::frame::{FrameError, FrameSpec};
use crate::graph::{Graph, Node, NodeId, Origin, StorageScope, TensorDecl, TensorId, free_name};
use crate::ops::Operator;
use crate::ops::frame::{FrameToTensor, TensorToFrame};
use crate::ops::movement::StridedView;
use crate::session::core::frames::Frames;
use crate::session::error::{Error, SessionError};
use crate::shape::{Dim, SymShape};
use crate::tensor::TensorInfo;

/// Inputs and outputs that a caller describes as frames.
#[derive(Clone, Debug, Default)]
pub(super) struct FrameSpecs {
    pub(super) inputs: Vec<(String, FrameSpec)>,
    pub(super) outputs: Vec<(String, FrameSpec)>,
}

impl FrameSpecs {
    pub(super) fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.outputs.is_empty()
    }

    /// Replaces the described inputs and outputs of `graph` by the bytes of their frames' memories.
    pub(super) fn put_into(self, graph: Graph) -> Result<(Graph, Frames), Error> {
        if self.is_empty() {
            return Ok((graph, Frames::default()));
        }
        let names = graph.tensors().iter().map(|t| t.name.clone()).collect();
        let mut rewriter = Rewriter { graph, names, frames: Frames::default(), before: Vec::new() };
        for (name, spec) in self.inputs {
            rewriter.input(&name, spec)?;
        }
        for (name, spec) in self.outputs {
            rewriter.output(&name, spec)?;
        }
        rewriter.finish()
    }
}

/// Replaces inputs of `graph` by the memories that their elements lie in. The other inputs keep their positions.
pub(super) fn put_views(graph: Graph, views: Vec<(String, StridedView)>) -> Result<Graph, Error> {
    let names = graph.tensors().iter().map(|t| t.name.clone()).collect();
    let mut rewriter = Rewriter { graph, names, frames: Frames::default(), before: Vec::new() };
    for (name, view) in views {
        rewriter.view(&name, view)?;
    }
    Ok(rewriter.graph.sorted()?)
}

struct Rewriter {
    graph: Graph,
    /// Names of tensors.
    names: HashSet<String>,
    frames: Frames,
    /// The memory of outputs before the run: the input, and the name of the output.
    before: Vec<(TensorId, String)>,
}

fn wrong(name: &str) -> impl Fn(FrameError) -> SessionError {
    move |source| SessionError::Frame { name: name.to_owned(), source }
}

/// The names of a frame's memories.
fn memory_names(name: &str, memories: usize) -> Vec<String> {
    match memories {
        1 => vec![name.to_owned()],
        _ => (0..memories).map(|m| format!("{name}:{m}")).collect(),
    }
}

impl Rewriter {
    /// The position of input `name`.
    fn position(&self, name: &str) -> Result<usize, SessionError> {
        let graph = &self.graph;
        let at = graph.inputs.iter().position(|id| graph.tensor(*id).name == name);
        at.ok_or_else(|| SessionError::Unknown {
            what: "input",
            name: name.to_owned(),
            known: graph.inputs.iter().map(|id| graph.tensor(*id).name.clone()).collect(),
        })
    }

    fn view(&mut self, name: &str, view: StridedView) -> Result<(), Error> {
        let at = self.position(name)?;
        let id = self.graph.inputs[at];
        let decl = self.graph.tensor(id);
        if let Some(declared) = &decl.shape {
            let fits = declared.unify(view.shape(), &mut Default::default());
            fits.map_err(|source| SessionError::Shape { name: name.to_owned(), source })?;
        }
        let info = TensorInfo::new(decl.dtype.unwrap_or(DType::F32), view.shape().clone());
        self.rename(id);
        let memory = self.memory(name, (info.dtype, view.memory_elements()), Origin::Input);
        let node = self.node(&format!("{name} view"), Arc::new(view), vec![Some(memory)], vec![Some(id)]);
        self.made_by(id, node, &info);
        if self.graph.lazy_inputs.remove(&id) {
            self.graph.lazy_inputs.insert(memory);
        }
        self.graph.inputs[at] = memory;
        Ok(())
    }

    /// Tensor `id`, once an input, is what `node` makes.
    fn made_by(&mut self, id: TensorId, node: NodeId, info: &TensorInfo) {
        let decl = &mut self.graph.tensors[id.index()];
        (decl.dtype, decl.shape) = (Some(info.dtype), Some((&info.shape).into()));
        decl.origin = Origin::Node { node, output: 0 };
    }

    fn input(&mut self, name: &str, spec: FrameSpec) -> Result<(), Error> {
        let at = self.position(name)?;
        let graph = &self.graph;
        let id = graph.inputs[at];
        let decl = graph.tensor(id);
        let bytes = spec.memory_bytes().map_err(wrong(name))?;
        let op = FrameToTensor::new(spec, decl.dtype, decl.shape.as_ref()).map_err(wrong(name))?;
        let info = op.info().clone();
        self.rename(id);
        let memories = memory_names(name, bytes.len());
        let inputs: Vec<TensorId> =
            memories.iter().zip(bytes).map(|(name, bytes)| self.bytes(name, bytes, Origin::Input)).collect();
        let node = self.node(
            &format!("{name} frame"),
            Arc::new(op),
            inputs.iter().copied().map(Some).collect(),
            vec![Some(id)],
        );
        self.made_by(id, node, &info);
        if self.graph.lazy_inputs.remove(&id) {
            self.graph.lazy_inputs.extend(&inputs);
        }
        self.graph.inputs.splice(at..=at, inputs);
        self.frames.inputs.insert(name.to_owned(), memories);
        Ok(())
    }

    fn output(&mut self, name: &str, spec: FrameSpec) -> Result<(), Error> {
        let at = self.graph.output(name).ok_or_else(|| SessionError::Unknown {
            what: "output",
            name: name.to_owned(),
            known: self.graph.outputs.iter().map(|(name, _)| name.clone()).collect(),
        })?;
        let (_, id) = self.graph.outputs[at];
        let decl = self.graph.tensor(id);
        let shape = decl.shape.as_ref().filter(|shape| shape.0.iter().all(|d| matches!(d, Dim::Known(_))));
        if decl.dtype.is_some() && shape.is_some() {
            spec.pixels(decl.dtype, shape).map_err(wrong(name))?;
        }
        let op = TensorToFrame::new(spec).map_err(wrong(name))?;
        let bytes: Vec<(u64, bool)> = op.memories().collect();
        let memories = memory_names(name, bytes.len());
        let (mut inputs, mut outputs) = (vec![Some(id)], Vec::new());
        for (memory, (bytes, keeps)) in memories.iter().zip(bytes) {
            inputs.push(keeps.then(|| {
                let before = self.bytes(&format!("{memory} before"), bytes, Origin::Input);
                self.before.push((before, memory.clone()));
                before
            }));
            outputs.push(self.bytes(&format!("{memory} frame"), bytes, Origin::Unmade));
        }
        let node = self.node(
            &format!("{name} frame"),
            Arc::new(op),
            inputs,
            outputs.iter().copied().map(Some).collect(),
        );
        for (output, id) in outputs.iter().enumerate() {
            let output = output as u32;
            self.graph.tensors[id.index()].origin = Origin::Node { node, output };
        }
        self.graph.outputs.splice(at..=at, memories.iter().cloned().zip(outputs));
        self.frames.outputs.insert(name.to_owned(), memories);
        Ok(())
    }

    /// Leaves the name of tensor `id` to another one.
    fn rename(&mut self, id: TensorId) {
        let decl = &mut self.graph.tensors[id.index()];
        self.names.remove(&decl.name);
        let name = free_name(&mut self.names, format!("{} tensor", decl.name));
        decl.name = name;
    }

    /// A new tensor of bytes.
    fn bytes(&mut self, name: &str, bytes: u64, origin: Origin) -> TensorId {
        self.memory(name, (DType::U8, bytes as usize), origin)
    }

    /// A new tensor of elements in a row.
    fn memory(&mut self, name: &str, (dtype, elements): (DType, usize), origin: Origin) -> TensorId {
        let id = TensorId(self.graph.tensors.len() as u32);
        let name = free_name(&mut self.names, name.to_owned());
        let shape = Some(SymShape(vec![Dim::Known(elements)]));
        let (dtype, scope) = (Some(dtype), StorageScope::Buffer);
        self.graph.tensors.push(TensorDecl { name, dtype, shape, origin, scope });
        id
    }

    fn node(
        &mut self,
        name: &str,
        op: Arc<dyn Operator>,
        inputs: Vec<Option<TensorId>>,
        outputs: Vec<Option<TensorId>>,
    ) -> NodeId {
        let id = NodeId(self.graph.nodes.len() as u32);
        let (name, device, control_deps) = (name.to_owned(), None, Vec::new());
        self.graph.nodes.push(Node { name, op, inputs, outputs, device, control_deps });
        id
    }

    fn finish(mut self) -> Result<(Graph, Frames), Error> {
        for (id, output) in self.before {
            self.graph.inputs.push(id);
            self.frames.before_names.push((self.graph.tensor(id).name.clone(), output));
        }
        self.frames.before = self.frames.before_in(&self.graph);
        Ok((self.graph.sorted()?, self.frames))
    }
}
