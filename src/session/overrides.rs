//! Checks of the caller's placements.

use std::collections::BTreeSet;

use crate::graph::Graph;
use crate::ops::control::Control;
use crate::plan::PlanOptions;
use crate::session::error::SessionError;

/// Names that an error quotes.
const QUOTED: usize = 8;

/// Checks the placements by name in `options` against the model and the number of devices.
pub(super) fn check(options: &PlanOptions, graph: &Graph, devices: usize) -> Result<(), SessionError> {
    if let Some(device) = options.place_rest.filter(|d| *d as usize >= devices) {
        return Err(SessionError::NoEntry { what: "graph", name: graph.name().to_owned(), device, devices });
    }
    if options.place_nodes.is_empty() && options.place_ops.is_empty() {
        return Ok(());
    }
    let (mut nodes, mut operators) = (BTreeSet::new(), BTreeSet::new());
    collect(graph, &mut nodes, &mut operators);
    let asked = options.place_nodes.iter().map(|p| ("node", p, &nodes));
    for (what, (name, &device), known) in
        asked.chain(options.place_ops.iter().map(|p| ("operator", p, &operators)))
    {
        if !known.contains(name.as_str()) {
            let (name, known) = (name.clone(), alike(name, known));
            return Err(SessionError::UnknownPlace { what, name, device, known });
        }
        if device as usize >= devices {
            return Err(SessionError::NoEntry { what, name: name.clone(), device, devices });
        }
    }
    Ok(())
}

/// Names of nodes and operators, those of the graphs inside nodes too.
fn collect<'g>(graph: &'g Graph, nodes: &mut BTreeSet<&'g str>, operators: &mut BTreeSet<&'g str>) {
    for node in graph.nodes() {
        nodes.insert(&node.name);
        operators.insert(node.op.name());
        match node.op.control() {
            Some(Control::If { then, other }) => {
                collect(then, nodes, operators);
                collect(other, nodes, operators);
            }
            Some(Control::Loop(l)) => collect(&l.body, nodes, operators),
            Some(Control::Scan(s)) => collect(&s.body, nodes, operators),
            None => {}
        }
    }
}

/// The names with the longest common prefixes with `name`.
fn alike(name: &str, known: &BTreeSet<&str>) -> Vec<String> {
    let lower = |c: char| c.to_ascii_lowercase();
    let common = |other: &str| {
        name.chars().map(lower).zip(other.chars().map(lower)).take_while(|(a, b)| a == b).count()
    };
    let mut names: Vec<&str> = known.iter().copied().filter(|n| !n.is_empty()).collect();
    names.sort_by_key(|n| std::cmp::Reverse(common(n)));
    names.truncate(QUOTED);
    names.into_iter().map(str::to_owned).collect()
}
