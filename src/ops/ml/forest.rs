//! Ensembles of decision trees.

use std::collections::VecDeque;

use crate::ops::OpError;
use crate::ops::window::bad;

/// The comparison of a feature with the threshold of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Compare {
    /// `<=`.
    LessEqual(f64),
    /// `<`.
    Less(f64),
    /// `>=`.
    GreaterEqual(f64),
    /// `>`.
    Greater(f64),
    /// `==`.
    Equal(f64),
    /// `!=`.
    NotEqual(f64),
    /// Whether it is one of these.
    Member(Vec<f64>),
}

/// Where a branch leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    /// To a node.
    Node(usize),
    /// To a leaf.
    Leaf(usize),
}

/// A node that decides.
#[derive(Clone, Debug, PartialEq)]
pub struct ForestNode {
    /// Which feature.
    pub feature: usize,
    /// The comparison.
    pub compare: Compare,
    /// Whether a feature that is no number counts as true.
    pub missing: bool,
    /// Where true leads.
    pub yes: Child,
    /// Where false leads.
    pub no: Child,
}

impl ForestNode {
    fn decide(&self, x: f64) -> Child {
        let holds = match &self.compare {
            Compare::LessEqual(v) => x <= *v,
            Compare::Less(v) => x < *v,
            Compare::GreaterEqual(v) => x >= *v,
            Compare::Greater(v) => x > *v,
            Compare::Equal(v) => x == *v,
            Compare::NotEqual(v) => x != *v,
            Compare::Member(all) => all.contains(&x),
        };
        if holds || (self.missing && x.is_nan()) { self.yes } else { self.no }
    }
}

/// The aggregation of the leaves' weights for one target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aggregate {
    /// The mean over all trees.
    Average,
    /// The sum.
    #[default]
    Sum,
    /// The smallest.
    Min,
    /// The largest.
    Max,
}

/// Trees that share their nodes' and leaves' lists. A checked one has no cycle and no index beyond its lists.
#[derive(Clone, Debug, Default)]
pub struct Forest {
    /// All nodes.
    pub nodes: Vec<ForestNode>,
    /// The targets and weights of every leaf.
    pub leaves: Vec<Vec<(usize, f64)>>,
    /// Where the trees begin.
    pub roots: Vec<Child>,
    /// Number of targets.
    pub targets: usize,
}

impl Forest {
    /// Checks that every index exists and that every path ends in a leaf.
    ///
    /// # Errors
    /// [`OpError::Attr`], naming attributes by what they hold.
    pub fn checked(self) -> Result<Forest, OpError> {
        let fits = |c: &Child| match *c {
            Child::Node(i) => i < self.nodes.len(),
            Child::Leaf(i) => i < self.leaves.len(),
        };
        if let Some(c) =
            self.roots.iter().chain(self.nodes.iter().flat_map(|n| [&n.yes, &n.no])).find(|c| !fits(c))
        {
            return Err(bad("nodes", format!("name {c:?}, which there is not")));
        }
        let targets = self.targets;
        if let Some((t, _)) = self.leaves.iter().flatten().find(|(t, _)| *t >= targets) {
            return Err(bad("leaves", format!("name target {t} of {targets}")));
        }
        // Nodes are taken away once nothing leads to them; those of cycles remain.
        let next = |n: &ForestNode| {
            let node = |c: Child| if let Child::Node(i) = c { Some(i) } else { None };
            [node(n.yes), node(n.no)].into_iter().flatten()
        };
        let mut parents = vec![0usize; self.nodes.len()];
        self.nodes.iter().flat_map(next).for_each(|i| parents[i] += 1);
        let mut free: VecDeque<usize> = (0..parents.len()).filter(|i| parents[*i] == 0).collect();
        let mut gone = 0;
        while let Some(i) = free.pop_front() {
            gone += 1;
            for child in next(&self.nodes[i]) {
                parents[child] -= 1;
                if parents[child] == 0 {
                    free.push_back(child);
                }
            }
        }
        if gone < self.nodes.len() {
            return Err(bad("nodes", "lead back to themselves".to_owned()));
        }
        Ok(self)
    }

    /// Minimum number of features of a row.
    pub fn features(&self) -> usize {
        self.nodes.iter().map(|n| n.feature.saturating_add(1)).max().unwrap_or(0)
    }

    /// The scores of all targets for the row `x` of at least [`Forest::features`] features; 0 for a target that no
    /// leaf speaks of. Which targets leaves speak of.
    pub fn scores(&self, x: &[f64], aggregate: Aggregate, scores: &mut [f64]) -> Vec<bool> {
        let mut found = vec![false; scores.len()];
        scores.fill(0.0);
        for root in &self.roots {
            let mut at = *root;
            let leaf = loop {
                match at {
                    Child::Leaf(leaf) => break leaf,
                    Child::Node(i) => at = self.nodes[i].decide(x[self.nodes[i].feature]),
                }
            };
            for (target, weight) in &self.leaves[leaf] {
                let s = &mut scores[*target];
                *s = match aggregate {
                    Aggregate::Sum | Aggregate::Average => *s + weight,
                    _ if !found[*target] => *weight,
                    Aggregate::Min => s.min(*weight),
                    Aggregate::Max => s.max(*weight),
                };
                found[*target] = true;
            }
        }
        if aggregate == Aggregate::Average {
            scores.iter_mut().for_each(|s| *s /= self.roots.len().max(1) as f64);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(feature: usize, compare: Compare, yes: Child, no: Child) -> ForestNode {
        ForestNode { feature, compare, missing: false, yes, no }
    }

    fn forest() -> Forest {
        Forest {
            nodes: vec![
                node(0, Compare::LessEqual(1.0), Child::Leaf(0), Child::Node(1)),
                node(1, Compare::Member(vec![2.0, 4.0]), Child::Leaf(1), Child::Leaf(2)),
            ],
            leaves: vec![vec![(0, 1.0)], vec![(1, 2.0)], vec![(0, -4.0), (1, 8.0)]],
            roots: vec![Child::Node(0), Child::Leaf(2)],
            targets: 2,
        }
    }

    #[test]
    fn every_tree_speaks_and_targets_gather() {
        let f = forest().checked().unwrap();
        assert_eq!(f.features(), 2);
        let run = |x: [f64; 2], aggregate| {
            let mut s = [9.0; 2];
            f.scores(&x, aggregate, &mut s);
            s
        };
        assert_eq!(run([1.0, 0.0], Aggregate::Sum), [-3.0, 8.0]);
        assert_eq!(run([2.0, 4.0], Aggregate::Sum), [-4.0, 10.0]);
        assert_eq!(run([2.0, 3.0], Aggregate::Average), [-4.0, 8.0]);
        assert_eq!(run([1.0, 0.0], Aggregate::Max), [1.0, 8.0]);
        assert_eq!(run([2.0, 4.0], Aggregate::Min), [-4.0, 2.0]);
        assert_eq!(run([f64::NAN, 4.0], Aggregate::Sum), [-4.0, 10.0]);
        let mut missing = forest();
        missing.nodes[0].missing = true;
        let mut s = [0.0; 2];
        missing.scores(&[f64::NAN, 4.0], Aggregate::Sum, &mut s);
        assert_eq!(s, [-3.0, 8.0]);
    }

    #[test]
    fn cycles_and_wrong_indices_are_refused() {
        let mut f = forest();
        f.nodes[1].no = Child::Node(0);
        assert!(f.checked().is_err());
        let mut f = forest();
        f.nodes[1].no = Child::Leaf(3);
        assert!(f.checked().is_err());
        let mut f = forest();
        f.roots.push(Child::Node(2));
        assert!(f.checked().is_err());
        assert!(Forest { targets: 1, ..forest() }.checked().is_err());
    }
}
