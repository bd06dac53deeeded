//! Loops that only append to a list that is empty before: what they append becomes one more of their scan outputs, of
//! which a list is made once. SequenceMap becomes such a loop.

use super::attribute::{int_attr, ints_attr};
use super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, attribute_type as kind,
};
use super::sequence::OR_TENSOR;
use crate::ops::control::COLLECTED;

/// How many inputs of a Loop, and of its body, come before what it carries; its body has one output there.
const LEADING: usize = 2;

/// Rewrites all such loops.
pub(super) fn rewrite(model: &mut ModelProto) {
    for function in &mut model.functions {
        rewrite_nodes(&mut function.node);
    }
    if let Some(graph) = &mut model.graph {
        rewrite_nodes(&mut graph.node);
    }
}

// How deep graphs are nested is bounded by the walk that found them.
fn rewrite_nodes(nodes: &mut Vec<NodeProto>) {
    for graph in nodes.iter_mut().flat_map(|n| &mut n.attribute).filter_map(|a| a.g.as_mut()) {
        rewrite_nodes(&mut graph.node);
    }
    let is = |node: &NodeProto, op: &str| node.op_type == op && node.domain.is_empty();
    if nodes.iter().any(|n| is(n, "SequenceMap")) {
        let expand = |n| if is(&n, "SequenceMap") { mapped(n) } else { vec![n] };
        *nodes = std::mem::take(nodes).into_iter().flat_map(expand).collect();
    }
    if !nodes.iter().any(|n| is(n, "Loop")) {
        return;
    }
    let empty: Vec<String> =
        nodes.iter().filter(|n| is(n, "SequenceEmpty")).flat_map(|n| n.output.clone()).collect();
    for node in nodes.iter_mut().filter(|n| is(n, "Loop")) {
        // From the end, so that positions before stay what they are.
        for i in (LEADING..node.input.len()).rev() {
            if node.input.get(i).is_some_and(|name| empty.contains(name)) {
                collect(node, i.saturating_sub(LEADING));
            }
        }
    }
}

/// The nodes that SequenceMap `node` is: a loop over the elements of its sequences, that are found by their number.
fn mapped(mut node: NodeProto) -> Vec<NodeProto> {
    let graph = node.attribute.iter_mut().find(|a| a.name == "body").and_then(|a| a.g.take());
    let (Some(mut body), Some(first)) = (graph, node.input.first()) else { return vec![node] };
    let own = format!("{}/map", node.output.iter().find(|o| !o.is_empty()).unwrap_or(&node.name));
    let [count, turn, again, goes_on] = ["count", "turn", "again", "goes_on"].map(|s| format!("{own}/{s}"));
    let take = |(input, formal): (&String, ValueInfoProto)| {
        let attrs = vec![int_attr(OR_TENSOR, 1)];
        node_of("SequenceAt", vec![input.clone(), turn.clone()], formal.name, attrs)
    };
    let mut nodes: Vec<NodeProto> =
        node.input.iter().zip(std::mem::take(&mut body.input)).map(take).collect();
    nodes.append(&mut body.node);
    nodes.push(node_of("Identity", vec![again.clone()], goes_on.clone(), Vec::new()));
    body.node = nodes;
    let named = |name: String| ValueInfoProto { name, ..Default::default() };
    body.input = vec![named(turn), named(again)];
    body.output.insert(0, named(goes_on));
    let length = node_of("SequenceLength", vec![first.clone()], count.clone(), Vec::new());
    let all = ints_attr(COLLECTED, &(0..node.output.len() as i64).collect::<Vec<_>>());
    let body =
        AttributeProto { name: "body".into(), r#type: kind::GRAPH, g: Some(body), ..Default::default() };
    let attribute = vec![body, all];
    vec![length, NodeProto { op_type: "Loop".into(), input: vec![count, String::new()], attribute, ..node }]
}

/// Takes list `i` out of what the loop carries where its body does nothing but append to it, and lets the loop
/// collect it instead.
fn collect(node: &mut NodeProto, i: usize) -> Option<()> {
    let list = node.output.get(i)?.clone();
    let carried = node.input.len().checked_sub(LEADING)?;
    let body = node.attribute.iter_mut().find(|a| a.name == "body")?.g.as_mut()?;
    let item = appended(body, i)?;
    let inner = body.input.get(LEADING.checked_add(i)?)?.name.clone();
    let stacks = body.output.len().checked_sub(carried.checked_add(1)?)?;
    if node.output.len() < carried {
        return None;
    }
    body.input.remove(i.saturating_add(LEADING));
    body.output.remove(i.saturating_add(1));
    body.node.retain(|n| n.op_type != "SequenceInsert" || n.input.first() != Some(&inner));
    let kept = format!("{inner}/appended");
    body.node.push(node_of("Identity", vec![item], kept.clone(), Vec::new()));
    body.output.push(ValueInfoProto { name: kept, ..Default::default() });
    node.input.remove(i.saturating_add(LEADING));
    node.output.remove(i);
    // Outputs after the last one that is wanted may have been left out.
    node.output.resize(carried.saturating_sub(1).saturating_add(stacks), String::new());
    node.output.push(list);
    match node.attribute.iter_mut().find(|a| a.name == COLLECTED) {
        Some(collected) => collected.ints.push(stacks as i64),
        None => node.attribute.push(ints_attr(COLLECTED, &[stacks as i64])),
    }
    Some(())
}

fn node_of(op: &str, input: Vec<String>, output: String, attribute: Vec<AttributeProto>) -> NodeProto {
    let name = output.clone();
    NodeProto { name, op_type: op.into(), input, output: vec![output], attribute, ..Default::default() }
}

/// What the body appends to the list that it carries as number `i`, where that is all that it does with it.
fn appended(body: &GraphProto, i: usize) -> Option<String> {
    let inner = &body.input.get(i.checked_add(LEADING)?)?.name;
    let result = &body.output.get(i.checked_add(1)?)?.name;
    let insert =
        body.node.iter().find(|n| n.op_type == "SequenceInsert" && n.input.first() == Some(inner))?;
    let at_end = insert.input.len() == 2 && insert.output.first() == Some(result);
    let read = |name: &String| uses(&body.node, name);
    let given = body.output.iter().filter(|o| o.name == *result).count();
    let alone = read(inner) == 1 && read(result) == 0 && given == 1;
    (at_end && alone && body.output.iter().all(|o| o.name != *inner)).then(|| insert.input.get(1).cloned())?
}

/// How often nodes, also of graphs in them, read `name`.
fn uses(nodes: &[NodeProto], name: &String) -> usize {
    let inside = |g: &GraphProto| {
        let results = g.output.iter().filter(|o| o.name == *name).count();
        uses(&g.node, name).saturating_add(results)
    };
    let of = |n: &NodeProto| {
        let graphs = n.attribute.iter().filter_map(|a| a.g.as_deref());
        let own = n.input.iter().filter(|i| *i == name).count();
        graphs.fold(own, |sum, g| sum.saturating_add(inside(g)))
    };
    nodes.iter().fold(0, |sum, n| sum.saturating_add(of(n)))
}
