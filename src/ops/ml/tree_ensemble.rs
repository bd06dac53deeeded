//! TreeEnsemble: the form of ONNX-ML 5, in which nodes and leaves are numbered.

use std::sync::Arc;

use super::forest::{Aggregate, Child, Compare, Forest, ForestNode};
use super::post::PostTransform;
use super::{cost_of_rows, doubles, regress, rows};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::pointwise::number::with_number;
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, OpCx, OpError, Operator};
use crate::shape::Shape;

/// The scores `[n, targets]` of rows `[n, features]`.
#[derive(Clone, Debug)]
pub struct TreeEnsemble {
    /// The trees.
    pub forest: Arc<Forest>,
    /// The aggregation of their weights.
    pub aggregate: Aggregate,
    /// The transformation of the scores of a row.
    pub post: PostTransform,
}

/// Numbers of an attribute as indices.
fn indices(name: &str, list: &[i64]) -> Result<Vec<usize>, OpError> {
    let all: Option<Vec<usize>> = list.iter().map(|v| usize::try_from(*v).ok()).collect();
    all.ok_or_else(|| bad(name, "has negative numbers".to_owned()))
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    attrs.value("nodes_hitrates");
    let ints = |name: &str| attrs.ints_opt(name)?.ok_or_else(|| attrs.error(name, "is missing"));
    let tensor = |name: &str| attrs.tensor_opt(name)?.ok_or_else(|| attrs.error(name, "is missing"));
    let modes = tensor("nodes_modes")?.to_i64s()?;
    let n = modes.len();
    let nodes = |name: &'static str| -> Result<Vec<usize>, OpError> {
        let list = ints(name)?;
        if list.len() != n {
            return Err(bad(name, format!("has {} elements for {n} nodes", list.len())));
        }
        indices(name, &list)
    };
    let splits = doubles(tensor("nodes_splits")?)?;
    let feature = nodes("nodes_featureids")?;
    let (yes, no) = (nodes("nodes_truenodeids")?, nodes("nodes_falsenodeids")?);
    let (yes_leaf, no_leaf) = (nodes("nodes_trueleafs")?, nodes("nodes_falseleafs")?);
    let missing = match attrs.ints_opt("nodes_missing_value_tracks_true")? {
        Some(list) if !list.is_empty() => nodes("nodes_missing_value_tracks_true")?,
        _ => vec![0; n],
    };
    if splits.len() != n {
        return Err(bad("nodes_splits", format!("has {} elements for {n} nodes", splits.len())));
    }
    let members = attrs.tensor_opt("membership_values")?.map(doubles).transpose()?.unwrap_or_default();
    let mut sets = Vec::new();
    let mut rest = members.as_slice();
    while let Some(end) = rest.iter().position(|v| v.is_nan()) {
        sets.push(rest[..end].to_vec());
        rest = &rest[end + 1..];
    }
    let mut sets = sets.into_iter();
    let child = |leaf: usize, i: usize| if leaf != 0 { Child::Leaf(i) } else { Child::Node(i) };
    let compare = |mode: i64, v: f64, sets: &mut std::vec::IntoIter<Vec<f64>>| -> Result<Compare, OpError> {
        Ok(match mode {
            0 => Compare::LessEqual(v),
            1 => Compare::Less(v),
            2 => Compare::GreaterEqual(v),
            3 => Compare::Greater(v),
            4 => Compare::Equal(v),
            5 => Compare::NotEqual(v),
            6 => Compare::Member(
                sets.next().ok_or_else(|| bad("membership_values", "has too few sets".to_owned()))?,
            ),
            other => return Err(bad("nodes_modes", format!("has {other}, expected 0 to 6"))),
        })
    };
    let mut all = Vec::with_capacity(n);
    for i in 0..n {
        all.push(ForestNode {
            feature: feature[i],
            compare: compare(modes[i], splits[i], &mut sets)?,
            missing: missing[i] != 0,
            yes: child(yes_leaf[i], yes[i]),
            no: child(no_leaf[i], no[i]),
        });
    }
    let targets = indices("leaf_targetids", &ints("leaf_targetids")?)?;
    let weights = doubles(tensor("leaf_weights")?)?;
    if weights.len() != targets.len() {
        return Err(bad(
            "leaf_weights",
            format!("has {} elements for {} leaves", weights.len(), targets.len()),
        ));
    }
    let number = attrs.int("aggregate_function", 1)?;
    let aggregate = match number {
        0 => Aggregate::Average,
        1 => Aggregate::Sum,
        2 => Aggregate::Min,
        3 => Aggregate::Max,
        _ => return Err(bad("aggregate_function", format!("is {number}, expected 0 to 3"))),
    };
    let number = attrs.int("post_transform", 0)?;
    let post = PostTransform::from_number(number)
        .ok_or_else(|| bad("post_transform", format!("is {number}, expected 0 to 4")))?;
    let given = attrs.int_opt("n_targets")?;
    let last = targets.iter().max().map_or(0, |t| t.saturating_add(1));
    let count = match given {
        Some(count) => usize::try_from(count).unwrap_or(0),
        None => last,
    };
    let forest = Forest {
        nodes: all,
        leaves: targets.into_iter().zip(weights).map(|leaf| vec![leaf]).collect(),
        roots: indices("tree_roots", &ints("tree_roots")?)?.into_iter().map(Child::Node).collect(),
        targets: count,
    };
    Ok(Arc::new(TreeEnsemble { forest: Arc::new(forest.checked()?), aggregate, post }))
}

/// Checks that rows have the features the trees ask for.
pub(super) fn check_features(cx: &OpCx, forest: &Forest) -> Result<[usize; 2], OpError> {
    let [n, len] = rows(cx)?;
    if len < forest.features() {
        return Err(cx.shape_error(0, format!("at least {} features", forest.features())));
    }
    Ok([n, len])
}

impl Operator for TreeEnsemble {
    fn name(&self) -> &'static str {
        "TreeEnsemble"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let dtype = cx.dtype_of(0, &[DType::F32, DType::F64, DType::F16])?;
        let [n, _] = check_features(cx, &self.forest)?;
        Ok(vec![TensorInfo::new(dtype, Shape::new([n, self.forest.targets])?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        cost_of_rows(cx, 8 * self.forest.roots.len())
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let op = self.clone();
        let row = move |x: &[f64], scores: &mut [f64]| {
            op.forest.scores(x, op.aggregate, scores);
            op.post.apply(scores);
        };
        with_number!(cx.dtype(0)?, T => regress::<T>("TreeEnsemble", cx, self.forest.targets, self.cost(cx), row),
            else Err(OpError::unsupported("trees over bool")))
    }
}
