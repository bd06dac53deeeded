//! The attributes that TreeEnsembleClassifier and TreeEnsembleRegressor share: nodes named by tree and number.

use std::collections::HashMap;

use super::doubles;
use super::forest::{Child, Compare, Forest, ForestNode};
use crate::ops::window::bad;
use crate::ops::{AttrReader, OpError};

/// The numbers of attribute `name`, or of the tensor that newer models have instead.
pub(super) fn numbers(attrs: &AttrReader<'_>, name: &str) -> Result<Vec<f64>, OpError> {
    if let Some(t) = attrs.tensor_opt(&format!("{name}_as_tensor"))? {
        return Ok(doubles(t)?);
    }
    super::numbers(attrs, name)
}

fn ints(attrs: &AttrReader<'_>, name: &str, len: Option<usize>) -> Result<Vec<i64>, OpError> {
    let list = attrs.ints_opt(name)?.ok_or_else(|| attrs.error(name, "is missing"))?;
    match len {
        Some(len) if len != list.len() => {
            Err(bad(name, format!("has {} elements, expected {len}", list.len())))
        }
        _ => Ok(list),
    }
}

/// The forest whose leaves' weights are attributes that begin with `prefix` ("class" or "target").
pub(super) fn forest(attrs: &AttrReader<'_>, prefix: &str, targets: usize) -> Result<Forest, OpError> {
    attrs.value("nodes_hitrates");
    attrs.value("nodes_hitrates_as_tensor");
    let trees = ints(attrs, "nodes_treeids", None)?;
    let n = Some(trees.len());
    let ids = ints(attrs, "nodes_nodeids", n)?;
    let feature = ints(attrs, "nodes_featureids", n)?;
    let (yes, no) = (ints(attrs, "nodes_truenodeids", n)?, ints(attrs, "nodes_falsenodeids", n)?);
    let modes = attrs.strs_opt("nodes_modes")?.unwrap_or_default();
    let values = numbers(attrs, "nodes_values")?;
    for (name, len) in [("nodes_modes", modes.len()), ("nodes_values", values.len())] {
        if len != trees.len() {
            return Err(bad(name, format!("has {len} elements for {} nodes", trees.len())));
        }
    }
    let missing = match attrs.ints_opt("nodes_missing_value_tracks_true")? {
        Some(list) if !list.is_empty() => ints(attrs, "nodes_missing_value_tracks_true", n)?,
        _ => vec![0; trees.len()],
    };

    // Where every node is in the forest's lists.
    let mut places: HashMap<(i64, i64), Child> = HashMap::new();
    let (mut nodes, mut leaves) = (0, 0);
    for (i, mode) in modes.iter().enumerate() {
        let (count, child): (&mut usize, fn(usize) -> Child) =
            if *mode == "LEAF" { (&mut leaves, Child::Leaf) } else { (&mut nodes, Child::Node) };
        if places.insert((trees[i], ids[i]), child(*count)).is_some() {
            return Err(bad("nodes_nodeids", format!("has node {} of tree {} twice", ids[i], trees[i])));
        }
        *count += 1;
    }
    let place = |tree: i64, id: i64| {
        places
            .get(&(tree, id))
            .copied()
            .ok_or_else(|| bad("nodes_nodeids", format!("has no node {id} of tree {tree}")))
    };

    let mut forest = Forest { targets, leaves: vec![Vec::new(); leaves], ..Forest::default() };
    let mut inner = std::collections::HashSet::new();
    for (i, mode) in modes.iter().enumerate() {
        let v = values[i];
        let compare = match *mode {
            "LEAF" => continue,
            "BRANCH_LEQ" => Compare::LessEqual(v),
            "BRANCH_LT" => Compare::Less(v),
            "BRANCH_GTE" => Compare::GreaterEqual(v),
            "BRANCH_GT" => Compare::Greater(v),
            "BRANCH_EQ" => Compare::Equal(v),
            "BRANCH_NEQ" => Compare::NotEqual(v),
            other => return Err(bad("nodes_modes", format!("has {other:?}"))),
        };
        inner.extend([(trees[i], yes[i]), (trees[i], no[i])]);
        forest.nodes.push(ForestNode {
            feature: usize::try_from(feature[i])
                .map_err(|_| bad("nodes_featureids", format!("has {}", feature[i])))?,
            compare,
            missing: missing[i] != 0,
            yes: place(trees[i], yes[i])?,
            no: place(trees[i], no[i])?,
        });
    }
    // Trees begin where nothing leads to.
    for (tree, id) in trees.iter().zip(&ids) {
        if !inner.contains(&(*tree, *id)) {
            forest.roots.push(place(*tree, *id)?);
        }
    }

    let leaf_trees = ints(attrs, &format!("{prefix}_treeids"), None)?;
    let n = Some(leaf_trees.len());
    let leaf_ids = ints(attrs, &format!("{prefix}_nodeids"), n)?;
    let of = ints(attrs, &format!("{prefix}_ids"), n)?;
    let weights = numbers(attrs, &format!("{prefix}_weights"))?;
    if weights.len() != leaf_trees.len() {
        let name = format!("{prefix}_weights");
        return Err(bad(&name, format!("has {} elements for {} leaves", weights.len(), leaf_trees.len())));
    }
    for i in 0..weights.len() {
        let target =
            usize::try_from(of[i]).map_err(|_| bad(&format!("{prefix}_ids"), format!("has {}", of[i])))?;
        // Weights of nodes that decide are never reached.
        if let Child::Leaf(leaf) = place(leaf_trees[i], leaf_ids[i])? {
            forest.leaves[leaf].push((target, weights[i]));
        }
    }
    forest.checked()
}
