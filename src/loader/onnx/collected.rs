//! Loops that carry lists. Where one only appends a tensor in every iteration, what it appends becomes one more of
//! its scan outputs; a list that its body reads too becomes a tensor of all elements, which must be of one shape
//! then. SplitToSequence makes lists of both again.

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
    if !nodes.iter().any(|n| is(n, "Loop")) {
        return;
    }
    let made_by = |ops: &[&str]| -> Vec<String> {
        let makes = |n: &&NodeProto| ops.iter().any(|op| is(n, op));
        nodes.iter().filter(makes).flat_map(|n| n.output.clone()).collect()
    };
    let empty = made_by(&["SequenceEmpty"]);
    let filled = made_by(&["SequenceConstruct", "SequenceInsert", "SequenceErase", "SplitToSequence"]);
    let mut all = Vec::with_capacity(nodes.len());
    for mut node in std::mem::take(nodes) {
        let mut lists = Vec::new();
        if is(&node, "Loop") {
            // From behind, so that positions before stay what they are.
            for i in (LEADING..node.input.len()).rev() {
                let carried = i.saturating_sub(LEADING);
                if node.input.get(i).is_some_and(|name| empty.contains(name)) {
                    lists.extend(collect(&mut node, carried));
                } else if node.input.get(i).is_some_and(|name| filled.contains(name))
                    && let Some((before, after)) = stack(&mut node, carried)
                {
                    all.push(before);
                    lists.push(after);
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
    let wanted = !list.is_empty();
    wanted.then(|| list_of(stacked, list))
}

fn node_of(op: &str, input: Vec<String>, output: String, attribute: Vec<AttributeProto>) -> NodeProto {
    let name = output.clone();
    NodeProto { name, op_type: op.into(), input, output: vec![output], attribute, ..Default::default() }
}

fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: kind::INT, i: Some(value), ..Default::default() }
}

/// The list of the elements of tensor `stacked` along its first axis.
fn list_of(stacked: String, list: String) -> NodeProto {
    node_of("SplitToSequence", vec![stacked], list, vec![int("axis", 0), int("keepdims", 0)])
}

/// Makes list `i` of what the loop carries a tensor where its body does nothing with it but append to it, take
/// elements and count them: the node that makes the first tensor, and that which makes the last one a list.
fn stack(node: &mut NodeProto, i: usize) -> Option<(NodeProto, NodeProto)> {
    let at = i.checked_add(LEADING)?;
    let given = node.input.get(at)?.clone();
    let result = node.output.get(i).filter(|name| !name.is_empty())?.clone();
    let body = node.attribute.iter_mut().find(|a| a.name == "body")?.g.as_mut()?;
    let inner = body.input.get(at)?.name.clone();
    let last = body.output.get(i.checked_add(1)?)?.name.clone();
    let mut names = vec![inner];
    for n in body.node.iter().filter(|n| n.domain.is_empty()) {
        let appends = n.op_type == "SequenceInsert" && n.input.len() == 2;
        if (appends || n.op_type == "Identity") && n.input.first().is_some_and(|l| names.contains(l)) {
            names.extend(n.output.iter().cloned());
        }
    }
    let reads = |n: &NodeProto| {
        let known = match n.op_type.as_str() {
            "SequenceInsert" => n.input.len() == 2,
            op => matches!(op, "SequenceAt" | "SequenceLength" | "Identity"),
        };
        known && n.input.first().is_some_and(|l| names.contains(l))
    };
    let seen = |name: &String| body.node.iter().filter(|n| reads(n) && n.input.first() == Some(name)).count();
    let alone = names.iter().all(|name| uses(&body.node, name) == seen(name));
    let given_back = body.output.iter().filter(|o| names.contains(&o.name)).count();
    if !alone || !names.contains(&last) || given_back != 1 {
        return None;
    }
    let mut nodes = Vec::with_capacity(body.node.len());
    for mut n in std::mem::take(&mut body.node) {
        if reads(&n) {
            let to = n.output.first().cloned().unwrap_or_default();
            match (n.op_type.as_str(), n.input.as_slice()) {
                ("SequenceInsert", [list, item]) => {
                    let (one, row) = (format!("{to}/one"), format!("{to}/row"));
                    nodes.push(node_of("SequenceConstruct", vec![item.clone()], one.clone(), Vec::new()));
                    let attrs = vec![int("axis", 0), int("new_axis", 1)];
                    nodes.push(node_of("ConcatFromSequence", vec![one], row.clone(), attrs));
                    n = node_of("Concat", vec![list.clone(), row], to, vec![int("axis", 0)]);
                }
                ("SequenceLength", [list]) => {
                    let cut = format!("{to}/list");
                    nodes.push(list_of(list.clone(), cut.clone()));
                    n = node_of("SequenceLength", vec![cut], to, Vec::new());
                }
                ("SequenceAt", [list, position]) => {
                    n = node_of("Gather", vec![list.clone(), position.clone()], to, vec![int("axis", 0)]);
                }
                _ => {}
            }
        }
        nodes.push(n);
    }
    body.node = nodes;
    if let Some(input) = body.input.get_mut(at) {
        input.r#type = None;
    }
    if let Some(output) = body.output.get_mut(i.saturating_add(1)) {
        output.r#type = None;
    }
    let (first, stacked) = (format!("{result}/first_{i}"), format!("{result}/stacked_{i}"));
    node.input.get_mut(at)?.clone_from(&first);
    node.output.get_mut(i)?.clone_from(&stacked);
    let attrs = vec![int("axis", 0), int("new_axis", 1)];
    Some((node_of("ConcatFromSequence", vec![given], first, attrs), list_of(stacked, result)))
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
