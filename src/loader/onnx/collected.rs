//! Loops that append a tensor to a list in every iteration: what they append becomes one more of their scan
//! outputs, which SplitToSequence makes a list again.

use super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, attribute_type as kind,
};

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
    if !nodes.iter().any(|n| is(n, "SequenceEmpty")) || !nodes.iter().any(|n| is(n, "Loop")) {
        return;
    }
    let empty: Vec<String> =
        nodes.iter().filter(|n| is(n, "SequenceEmpty")).flat_map(|n| n.output.clone()).collect();
    let mut all = Vec::with_capacity(nodes.len());
    for mut node in std::mem::take(nodes) {
        let mut lists = Vec::new();
        if is(&node, "Loop") {
            // From behind, so that positions before stay what they are.
            for i in (LEADING..node.input.len()).rev() {
                if node.input.get(i).is_some_and(|name| empty.contains(name)) {
                    lists.extend(collect(&mut node, i.saturating_sub(LEADING)));
                }
            }
        }
        all.push(node);
        all.append(&mut lists);
    }
    *nodes = all;
}

/// Takes list `i` out of what the loop carries where its body does nothing but append to it; the node that makes
/// the list from the new output.
fn collect(node: &mut NodeProto, i: usize) -> Option<NodeProto> {
    let list = node.output.get(i)?.clone();
    let carried = node.input.len().checked_sub(LEADING)?;
    let body = node.attribute.iter_mut().find(|a| a.name == "body")?.g.as_mut()?;
    let item = appended(body, i)?;
    let inner = body.input.get(LEADING.checked_add(i)?)?.name.clone();
    if carried.checked_add(1)? > body.output.len() || node.output.len() < carried {
        return None;
    }
    body.input.remove(i.saturating_add(LEADING));
    body.output.remove(i.saturating_add(1));
    body.node.retain(|n| n.op_type != "SequenceInsert" || n.input.first() != Some(&inner));
    let kept = format!("{inner}/appended");
    body.node.push(NodeProto {
        name: kept.clone(),
        op_type: "Identity".into(),
        input: vec![item],
        output: vec![kept.clone()],
        ..Default::default()
    });
    body.output.push(ValueInfoProto { name: kept, ..Default::default() });
    let outputs = body.output.len().saturating_sub(1);
    node.input.remove(i.saturating_add(LEADING));
    node.output.remove(i);
    // Outputs behind the last one that is wanted may have been left out.
    node.output.resize(outputs.saturating_sub(1), String::new());
    let stacked = format!("{}/appended_{i}", if list.is_empty() { &node.name } else { &list });
    node.output.push(stacked.clone());
    let int = |name: &str| AttributeProto {
        name: name.into(),
        r#type: kind::INT,
        i: Some(0),
        ..Default::default()
    };
    let wanted = !list.is_empty();
    wanted.then(|| NodeProto {
        name: stacked.clone(),
        op_type: "SplitToSequence".into(),
        input: vec![stacked],
        output: vec![list],
        attribute: vec![int("axis"), int("keepdims")],
        ..Default::default()
    })
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
