//! Logits that stay on their device: a node of the graph finds what a token is chosen from.

use std::collections::HashSet;
use std::sync::Arc;

use super::error::GenerateError;
use crate::dtype::DType;
use crate::graph::{Graph, Node, NodeId, Origin, StorageScope, Tensor, TensorDecl, TensorId, free_name};
use crate::memory::model::DeviceKind;
use crate::ops::tokens::logits::sum_of_weights;
use crate::ops::tokens::{Candidates, Found, TokenCandidates, Wanted, mark_words};
use crate::session::{Binding, BindingBuilder, Memory, Session};
use crate::shape::{Dim, Shape, SymShape};

/// Where tokens are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SampleOn {
    /// On a GPU where the vocabulary is large, else on the host.
    #[default]
    Auto,
    /// On the host, which gets all logits of a token.
    Host,
    /// On the device of the logits, which gives the host the likely tokens alone. Where they do not decide, as at high
    /// temperatures, the host gets all logits.
    Device,
}

/// The smallest vocabulary for which devices are asked by themselves.
const LARGE: usize = 1 << 14;

/// What is asked of the next logits of a text.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Its line is not known yet.
    pub(super) wanted: Wanted,
    /// The share of the weights that candidates need, where they are not told by their number or their own weight.
    pub(super) share: Option<f64>,
    /// Tokens so far, ascending.
    pub(super) seen: Vec<u32>,
    /// A bit for each token that may come.
    pub(super) allowed: Option<Vec<u32>>,
}

impl Request {
    /// Whether a token can be chosen from what was found.
    pub(super) fn suffices(&self, found: &Found) -> bool {
        let Ok((_, most)) = found.most else { return true };
        if !most.is_finite() || self.wanted.candidates == Candidates::None {
            return true;
        }
        let Some(share) = self.share else { return found.is_whole };
        let logits: Vec<f32> = found.candidates.iter().map(|(_, v)| *v).collect();
        // Sums are rounded otherwise.
        let weight = sum_of_weights(&logits, most, self.wanted.temperature);
        found.is_whole && weight >= share * found.sum * (1.0 + 1e-4)
    }
}

/// What the next token is chosen from.
#[derive(Clone, Debug)]
pub(super) enum Row {
    /// All logits.
    Logits(Vec<f32>),
    /// What the device found in them, as settings and a grammar change them.
    Found(Found),
}

impl Row {
    /// The logits; none where they were not asked for.
    pub(super) fn into_logits(self) -> Vec<f32> {
        match self {
            Row::Logits(logits) => logits,
            Row::Found(_) => Vec::new(),
        }
    }
}

/// What the node that was added to a graph is given and gives.
#[derive(Clone, Debug)]
pub(super) struct ScanIo {
    settings: String,
    marks: String,
    results: String,
    vocabulary: usize,
}

impl ScanIo {
    /// The session with the node added that reads `logits`, where tokens are to be chosen on a device.
    pub(super) fn added(
        session: &Session,
        logits: &str,
        on: SampleOn,
    ) -> Result<Option<(Session, ScanIo)>, GenerateError> {
        let declared = session.outputs().into_iter().find(|output| output.name == logits);
        let shape = declared.as_ref().and_then(|output| output.shape.as_ref());
        let vocabulary = match shape.and_then(|shape| shape.0.last()) {
            Some(Dim::Known(n)) => Some(*n),
            _ => None,
        };
        let dtype = declared.as_ref().and_then(|output| output.dtype);
        let is_read = matches!(dtype, None | Some(DType::F32 | DType::F16));
        let vocabulary = vocabulary.filter(|n| *n > 0 && is_read);
        let Some(vocabulary) = vocabulary.filter(|n| on == SampleOn::Device || *n >= LARGE) else {
            return match on {
                SampleOn::Device => Err(GenerateError::Unsupported(format!(
                    "choosing tokens on the device by {:?}, which does not declare float32 or float16 and a vocabulary",
                    logits
                ))),
                SampleOn::Auto | SampleOn::Host => Ok(None),
            };
        };
        let is_gpu = session.devices().next().is_some_and(|d| !d.native && d.kind != DeviceKind::Cpu);
        if on == SampleOn::Host || on == SampleOn::Auto && !is_gpu {
            return Ok(None);
        }
        let Some((graph, io)) = ScanIo::graph(session.graph(), logits, vocabulary) else {
            return Ok(None);
        };
        Ok(Some((session.with_graph(graph), io)))
    }

    fn graph(graph: &Graph, logits: &str, vocabulary: usize) -> Option<(Graph, ScanIo)> {
        let mut graph = graph.clone();
        let logits = graph.outputs.iter().find(|(name, _)| name == logits)?.1;
        let mut names: HashSet<String> = graph.tensors().iter().map(|tensor| tensor.name.clone()).collect();
        names.extend(graph.outputs().iter().map(|(name, _)| name.clone()));
        let node = NodeId(graph.nodes.len() as u32);
        let mut add = |name: &str, rest: &[Dim], origin: fn(NodeId) -> Origin| {
            let name = free_name(&mut names, name.to_owned());
            let dims = std::iter::once(Dim::Unknown).chain(rest.iter().cloned());
            let (shape, scope) = (Some(SymShape(dims.collect())), StorageScope::Buffer);
            let id = TensorId(graph.tensors.len() as u32);
            let (dtype, origin) = (Some(DType::U32), origin(node));
            graph.tensors.push(TensorDecl { name: name.clone(), dtype, shape, origin, scope });
            (name, id)
        };
        let words = Dim::Known(Wanted::nothing().len());
        let (settings, settings_id) = add("how to choose", &[words], |_| Origin::Input);
        let rows = [Dim::Known(2), Dim::Known(mark_words(vocabulary))];
        let (marks, marks_id) = add("marks of tokens", &rows, |_| Origin::Input);
        let rows = [Dim::Known(Found::words(vocabulary))];
        let (results, results_id) = add("likely tokens", &rows, |node| Origin::Node { node, output: 0 });
        graph.inputs.extend([settings_id, marks_id]);
        graph.outputs.push((results.clone(), results_id));
        graph.nodes.push(Node {
            name: results.clone(),
            op: Arc::new(TokenCandidates),
            inputs: vec![Some(logits), Some(settings_id), Some(marks_id)],
            outputs: vec![Some(results_id)],
            device: None,
            control_deps: vec![],
        });
        let graph = graph.sorted().ok()?;
        Some((graph, ScanIo { settings, marks, results, vocabulary }))
    }

    /// Inputs in memory of the session's own.
    pub(super) fn inputs(
        &self,
        builder: BindingBuilder<'static>,
        sequences: usize,
    ) -> Result<BindingBuilder<'static>, GenerateError> {
        let settings = Memory::own().shape(Shape::new([sequences, Wanted::nothing().len()])?);
        let marks = Memory::own().shape(Shape::new([sequences, 2, mark_words(self.vocabulary)])?);
        Ok(builder.input(&self.settings, settings).input(&self.marks, marks))
    }

    /// The sizes of its input `name` for one sequence.
    pub(super) fn sizes(&self, name: &str) -> Option<Vec<usize>> {
        let settings = vec![1, Wanted::nothing().len()];
        let marks = vec![1, 2, mark_words(self.vocabulary)];
        [(&self.settings, settings), (&self.marks, marks)]
            .into_iter()
            .find(|(of, _)| *of == name)
            .map(|(_, s)| s)
    }

    /// Writes what is asked of each sequence: a request, and the line that its logits are in.
    pub(super) fn write(
        &self,
        binding: &mut Binding<'static>,
        asked: &[Option<(usize, &Request)>],
    ) -> Result<(), GenerateError> {
        let words = mark_words(self.vocabulary);
        let row = |asked: &Option<(usize, &Request)>| match asked {
            Some((line, request)) => {
                let is_held = request.allowed.is_some();
                Wanted { line: *line, is_held, ..request.wanted }.words()
            }
            None => Wanted::nothing(),
        };
        let settings: Vec<u32> = asked.iter().flat_map(row).collect();
        write_words(binding, &self.settings, &[asked.len(), Wanted::nothing().len()], &settings)?;
        // Marks that no setting reads stay as they are.
        let is_marked = |request: &Request| request.wanted.penalty != 1.0 || request.allowed.is_some();
        if !asked.iter().flatten().any(|(_, request)| is_marked(request)) {
            return Ok(());
        }
        let mut marks = vec![0u32; asked.len() * 2 * words];
        for (rows, asked) in marks.chunks_mut(2 * words).zip(asked) {
            let Some((_, request)) = asked else { continue };
            let (seen, allowed) = rows.split_at_mut(words);
            for token in &request.seen {
                if let Some(word) = seen.get_mut(*token as usize / 32) {
                    *word |= 1 << (token % 32);
                }
            }
            for (to, from) in allowed.iter_mut().zip(request.allowed.iter().flatten()) {
                *to = *from;
            }
        }
        write_words(binding, &self.marks, &[asked.len(), 2, words], &marks)
    }

    /// What was found for each sequence.
    pub(super) fn read(
        &self,
        binding: &Binding<'static>,
        asked: &[Option<(usize, &Request)>],
    ) -> Result<Vec<Option<Found>>, GenerateError> {
        let row = Found::words(self.vocabulary);
        let mut words = vec![0u32; asked.len() * row];
        binding.read_output(&self.results, bytemuck::cast_slice_mut(&mut words))?;
        let found = words.chunks(row).zip(asked).map(|(words, asked)| {
            let (_, request) = asked.as_ref()?;
            let found = Found::read(words, self.vocabulary, request.wanted.temperature)?;
            request.suffices(&found).then_some(found)
        });
        Ok(found.collect())
    }
}

/// Writes an input that lies in memory of the session's own.
fn write_words(
    binding: &mut Binding<'static>,
    name: &str,
    shape: &[usize],
    words: &[u32],
) -> Result<(), GenerateError> {
    if let Ok(view) = binding.host_view_input(name) {
        view.write()?.copy_from_slice(bytemuck::cast_slice(words));
        return Ok(());
    }
    Ok(binding.set_input(name, &Tensor::new(shape, words)?)?)
}
