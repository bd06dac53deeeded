//! Which nodes the provider takes: those that the library plans for the session's devices, in groups that onnxruntime can
//! make one node of each.

use std::collections::{BTreeMap, HashMap, HashSet};

use onepool::backend::DeviceInfo;
use onepool::device::Context;
use onepool::graph::GraphError;
use onepool::operator::OpError;
use onepool::plan::{Assignment, Compiler, PlanCache, PlanError, PlanOptions, PlanRequest};
use onepool::{Dim, Graph as Loaded, Shape, SymShape, TensorInfo};

use crate::context;
use crate::failure::Failure;
use crate::host::{Graph, Node, ValueType};
use crate::model::{Weights, Writer};
use crate::types;

/// A size in place of one that only a run tells.
const SAMPLE: usize = 4;

/// Where nodes would run.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) devices: Vec<Context>,
    pub(crate) options: PlanOptions,
    /// Whether onnxruntime hands a part of a single node what the graphs of that node read: 1.24 does not.
    pub(crate) captures: bool,
}

/// What became of a node.
#[derive(Debug)]
pub(crate) struct Declined {
    pub(crate) node: String,
    pub(crate) why: String,
}

impl Target {
    /// Whether the library runs a node, by planning it alone.
    fn supports(&self, node: &Node<'_>, opsets: &[(String, i64)]) -> Result<(), Failure> {
        let graph = Writer::new(Weights::Taken).node(node, opsets)?.load()?;
        let Some((infos, sampled)) = signature(&graph) else { return Ok(()) };
        let devices: Vec<&DeviceInfo> = self.devices.iter().map(Context::info).collect();
        let (options, assignment, cache) = (&self.options, Assignment::default(), &PlanCache::default());
        let compiler = Compiler { devices: &devices, options, assignment, cache };
        match compiler.compile(&PlanRequest::new(&graph, &infos)) {
            Ok(_) => Ok(()),
            // Sizes that were made up need not fit one another.
            Err(error) if sampled && !is_final(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Types and shapes of the inputs, and whether sizes among them were made up; `None` where even a rank or type is unknown.
fn signature(graph: &Loaded) -> Option<(Vec<TensorInfo>, bool)> {
    let mut sampled = false;
    let mut infos = Vec::new();
    for &id in graph.inputs() {
        let declared = graph.tensor(id);
        let SymShape(dims) = declared.shape.as_ref()?;
        let sizes = dims.iter().map(|dim| match dim {
            Dim::Known(n) => *n,
            Dim::Symbol(_) | Dim::Unknown => {
                sampled = true;
                SAMPLE
            }
        });
        infos.push(TensorInfo::new(declared.dtype?, Shape::new(sizes.collect::<Vec<_>>()).ok()?));
    }
    Some((infos, sampled))
}

/// Whether other sizes would make no difference.
fn is_final(error: &PlanError) -> bool {
    match error {
        PlanError::Graph(GraphError::Node { source, .. }) => matches!(
            source,
            OpError::DType { .. }
                | OpError::Attr(_)
                | OpError::Count { .. }
                | OpError::MissingInput { .. }
                | OpError::Unsupported { .. }
        ),
        PlanError::NoKernel { .. } | PlanError::NoHalf { .. } => true,
        _ => false,
    }
}

/// Groups of nodes to take, by position in `nodes`, and what was left.
pub(crate) fn claim(
    graph: &Graph<'_>,
    nodes: &[Node<'_>],
    target: &Target,
) -> Result<(Vec<Vec<usize>>, Vec<Declined>), Failure> {
    let opsets = graph.opsets()?;
    let mut declined = Vec::new();
    let (mut supported, mut compiled) = (Vec::new(), Vec::new());
    for node in nodes {
        compiled.push(context::is_own(node)?);
        let verdict = match compiled.last() {
            Some(true) => Ok(()),
            _ => target.supports(node, &opsets),
        };
        supported.push(verdict.is_ok());
        if let Err(failure) = verdict {
            declined.push(Declined { node: label(node)?, why: failure.message });
        }
    }
    let edges = Edges::read(graph, nodes)?;
    let mut groups;
    loop {
        groups = clusters(&edges.producers, &supported);
        let lost = edges.crossing(&groups);
        if lost.is_empty() {
            break;
        }
        for node in lost {
            supported[node] = false;
            let of = &nodes[node];
            let why = "a sequence, a text or packed elements would cross the border of the part".to_owned();
            declined.push(Declined { node: label(of)?, why });
        }
    }
    // What was compiled before stays as it was.
    let mut apart = Vec::new();
    for group in &mut groups {
        apart.extend(group.iter().filter(|&&node| compiled[node]).map(|&node| vec![node]));
        group.retain(|&node| !compiled[node]);
    }
    groups.retain(|group| !group.is_empty());
    groups.extend(apart);
    if !target.captures {
        let mut kept = Vec::new();
        for group in groups {
            match &group[..] {
                [node] if reads_only_inside(&nodes[*node])? => {
                    let why = "this onnxruntime does not hand over what its graphs read".to_owned();
                    declined.push(Declined { node: label(&nodes[*node])?, why });
                }
                _ => kept.push(group),
            }
        }
        groups = kept;
    }
    Ok((groups, declined))
}

/// Operator and name of a node, for messages.
fn label(node: &Node<'_>) -> Result<String, Failure> {
    Ok(format!("{} {:?}", node.operator()?, node.name()?))
}

/// Whether graphs of a node read a value that the node itself does not.
fn reads_only_inside(node: &Node<'_>) -> Result<bool, Failure> {
    let mut own = HashSet::new();
    for value in node.inputs()?.into_iter().flatten() {
        own.insert(value.name()?);
    }
    for value in node.implicit_inputs()? {
        if !value.is_constant()? && !own.contains(&value.name()?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Who makes and reads which values.
#[derive(Debug, Default)]
struct Edges {
    /// Nodes that each node reads from.
    producers: Vec<Vec<usize>>,
    reads: Vec<Vec<String>>,
    writes: Vec<Vec<String>>,
    results: HashSet<String>,
    /// Values that cannot be handed over between the library and onnxruntime.
    inner: HashSet<String>,
}

impl Edges {
    fn read(graph: &Graph<'_>, nodes: &[Node<'_>]) -> Result<Self, Failure> {
        let mut edges = Edges::default();
        let mut makers: HashMap<String, usize> = HashMap::new();
        for value in graph.outputs()? {
            edges.results.insert(value.name()?);
        }
        for (i, node) in nodes.iter().enumerate() {
            let mut names = [Vec::new(), Vec::new()];
            let reads = node.inputs()?.into_iter().flatten().chain(node.implicit_inputs()?);
            let sides = [reads.collect::<Vec<_>>(), node.outputs()?.into_iter().flatten().collect()];
            for (side, values) in sides.iter().enumerate() {
                for value in values {
                    let name = value.name()?;
                    if !name.is_empty() {
                        if !edges.inner.contains(&name) && !value.is_constant()? && !is_shared(&value.kind()?)
                        {
                            edges.inner.insert(name.clone());
                        }
                        names[side].push(name);
                    }
                }
            }
            let [reads, writes] = names;
            makers.extend(writes.iter().map(|name| (name.clone(), i)));
            edges.reads.push(reads);
            edges.writes.push(writes);
        }
        let made = |names: &Vec<String>| names.iter().filter_map(|name| makers.get(name).copied()).collect();
        edges.producers = edges.reads.iter().map(made).collect();
        Ok(edges)
    }

    /// Nodes that would hand over what cannot be handed over.
    fn crossing(&self, groups: &[Vec<usize>]) -> Vec<usize> {
        if self.inner.is_empty() {
            return Vec::new();
        }
        let mut group_of = vec![None; self.reads.len()];
        for (g, group) in groups.iter().enumerate() {
            group.iter().for_each(|&node| group_of[node] = Some(g));
        }
        let mut makers: HashMap<&str, usize> = HashMap::new();
        for (node, names) in self.writes.iter().enumerate() {
            makers.extend(names.iter().map(|name| (name.as_str(), node)));
        }
        let mut lost = HashSet::new();
        for (node, names) in self.reads.iter().enumerate() {
            for name in names.iter().filter(|name| self.inner.contains(*name)) {
                let maker = makers.get(name.as_str()).copied();
                let from = maker.and_then(|maker| group_of[maker]);
                if from != group_of[node] || maker.is_none() {
                    lost.extend(group_of[node].map(|_| node));
                    lost.extend(from.and(maker));
                }
            }
        }
        for name in self.results.iter().filter(|name| self.inner.contains(*name)) {
            lost.extend(makers.get(name.as_str()).copied().filter(|&maker| group_of[maker].is_some()));
        }
        let mut lost: Vec<usize> = lost.into_iter().collect();
        lost.sort_unstable();
        lost
    }
}

fn is_shared(kind: &ValueType) -> bool {
    matches!(kind, ValueType::Tensor(tensor) if types::is_shared(tensor.element))
}

/// Groups of supported nodes such that no way from one node of a group to another leaves it, and no circle of groups is.
///
/// A node's level counts how often support changes on the ways to it; nodes of one level are one group. A way that leaves
/// a group by a node that is not supported comes to higher levels only.
fn clusters(producers: &[Vec<usize>], supported: &[bool]) -> Vec<Vec<usize>> {
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); producers.len()];
    let mut missing: Vec<usize> = vec![0; producers.len()];
    for (node, reads) in producers.iter().enumerate() {
        missing[node] = reads.len();
        reads.iter().for_each(|&maker| users[maker].push(node));
    }
    let mut level: Vec<usize> = supported.iter().map(|s| usize::from(!s)).collect();
    let mut ready: Vec<usize> = (0..producers.len()).filter(|&node| missing[node] == 0).collect();
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    while let Some(node) = ready.pop() {
        if supported[node] {
            groups.entry(level[node]).or_default().push(node);
        }
        for &user in &users[node] {
            let least = level[node] + usize::from(supported[node] != supported[user]);
            level[user] = level[user].max(least);
            missing[user] -= 1;
            if missing[user] == 0 {
                ready.push(user);
            }
        }
    }
    groups
        .into_values()
        .map(|mut group| {
            group.sort_unstable();
            group
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_convex() {
        // 0 -> 1 -> 2, where 1 is not supported, and 0 -> 2.
        let diamond = [vec![], vec![0], vec![0, 1]];
        assert_eq!(clusters(&diamond, &[true, false, true]), [vec![0], vec![2]]);
        assert_eq!(clusters(&diamond, &[true, true, true]), [vec![0, 1, 2]]);
        // A branch of its own joins later; nothing else is in the way.
        let branches = [vec![], vec![], vec![0, 1], vec![2]];
        assert_eq!(clusters(&branches, &[true, false, true, true]), [vec![0], vec![2, 3]]);
        assert!(clusters(&branches, &[false; 4]).is_empty());
    }

    #[test]
    fn no_way_between_two_nodes_of_a_group_leaves_it() {
        // Graphs of eight nodes, by a generator of numbers.
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 33
        };
        for _ in 0..300 {
            let producers: Vec<Vec<usize>> =
                (0..8usize).map(|n| (0..n).filter(|_| next().is_multiple_of(3)).collect()).collect();
            let supported: Vec<bool> = (0..8).map(|_| !next().is_multiple_of(3)).collect();
            let groups = clusters(&producers, &supported);
            let reach = |from: usize| {
                let mut seen = [false; 8];
                for node in from + 1..8 {
                    seen[node] = producers[node].iter().any(|&p| p == from || seen[p]);
                }
                seen
            };
            assert_eq!(groups.iter().flatten().count(), supported.iter().filter(|s| **s).count());
            for group in &groups {
                for &first in group {
                    let after = reach(first);
                    for between in (0..8).filter(|&n| after[n] && !group.contains(&n)) {
                        let beyond = reach(between);
                        assert!(group.iter().all(|&n| !beyond[n]), "{producers:?} {supported:?} {groups:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_handed_over_stays_inside() {
        let names = |all: &[&str]| all.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let mut edges = Edges {
            producers: vec![vec![], vec![0], vec![1]],
            reads: vec![names(&["x"]), names(&["s"]), names(&["t"])],
            writes: vec![names(&["s"]), names(&["t"]), names(&["y"])],
            results: HashSet::from(["y".to_owned()]),
            inner: HashSet::from(["s".to_owned()]),
        };
        assert!(edges.crossing(&[vec![0, 1, 2]]).is_empty());
        assert_eq!(edges.crossing(&[vec![0], vec![2]]), [0]);
        edges.results.insert("s".to_owned());
        assert_eq!(edges.crossing(&[vec![0, 1, 2]]), [0]);
        edges.inner = HashSet::from(["x".to_owned()]);
        assert_eq!(edges.crossing(&[vec![0, 1, 2]]), [0]);
    }
}
