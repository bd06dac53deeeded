//! Minimum cuts by maximum flow.

use std::collections::VecDeque;

/// A capacity that no cut pays.
pub(super) const NEVER: u64 = 1 << 60;

/// A network of arcs with capacities.
#[derive(Debug, Default)]
pub(super) struct Network {
    /// Arcs in pairs: an arc and its reverse.
    arcs: Vec<Arc>,
    /// Arcs that leave each vertex.
    leaving: Vec<Vec<usize>>,
}

#[derive(Debug)]
struct Arc {
    to: usize,
    left: u64,
}

impl Network {
    /// A network of `vertices` without arcs.
    pub(super) fn new(vertices: usize) -> Self {
        Network { arcs: Vec::new(), leaving: vec![Vec::new(); vertices] }
    }

    /// Adds a vertex.
    pub(super) fn vertex(&mut self) -> usize {
        self.leaving.push(Vec::new());
        self.leaving.len() - 1
    }

    /// Adds an arc of `capacity`, and one of capacity `back` in the other direction.
    pub(super) fn arc(&mut self, from: usize, to: usize, capacity: u64, back: u64) {
        if capacity == 0 && back == 0 {
            return;
        }
        for (from, to, left) in [(from, to, capacity), (to, from, back)] {
            self.leaving[from].push(self.arcs.len());
            self.arcs.push(Arc { to, left });
        }
    }

    /// The vertices on the side of `source` of a minimum cut between it and `sink` (the smallest such side).
    ///
    /// Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation", 1970:
    /// flows are pushed along shortest paths, found level by level.
    pub(super) fn source_side(mut self, source: usize, sink: usize) -> Vec<bool> {
        loop {
            let level = self.levels(source);
            if level[sink].is_none() {
                return level.iter().map(Option::is_some).collect();
            }
            let mut next = vec![0; self.leaving.len()];
            while self.push(source, sink, &level, &mut next) {}
        }
    }

    /// Distances from `from` over arcs with residual capacity; `None` where no path leads.
    fn levels(&self, from: usize) -> Vec<Option<usize>> {
        let mut level = vec![None; self.leaving.len()];
        let mut queue = VecDeque::from([from]);
        level[from] = Some(0);
        while let Some(v) = queue.pop_front() {
            for arc in self.leaving[v].iter().map(|&a| &self.arcs[a]) {
                if arc.left > 0 && level[arc.to].is_none() {
                    level[arc.to] = level[v].map(|l| l + 1);
                    queue.push_back(arc.to);
                }
            }
        }
        level
    }

    /// Fills one path that goes up the levels; `next` are the arcs not yet found useless.
    fn push(&mut self, source: usize, sink: usize, level: &[Option<usize>], next: &mut [usize]) -> bool {
        let mut path: Vec<usize> = Vec::new();
        let mut at = source;
        while at != sink {
            match self.leaving[at].get(next[at]) {
                Some(&a) if self.arcs[a].left > 0 && level[self.arcs[a].to] == level[at].map(|l| l + 1) => {
                    path.push(a);
                    at = self.arcs[a].to;
                }
                Some(_) => next[at] += 1,
                None => {
                    let Some(a) = path.pop() else { return false };
                    at = self.arcs[a ^ 1].to;
                    next[at] += 1;
                }
            }
        }
        let room = path.iter().map(|&a| self.arcs[a].left).min().unwrap_or(0);
        for a in path {
            self.arcs[a].left -= room;
            self.arcs[a ^ 1].left += room;
        }
        room > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_arcs_are_cut() {
        // 0 -> {2, 3} -> 1, and 2 -> 3.
        let mut n = Network::new(4);
        n.arc(0, 2, 10, 0);
        n.arc(0, 3, 1, 0);
        n.arc(2, 3, 3, 0);
        n.arc(2, 1, 4, 0);
        n.arc(3, 1, 9, 0);
        assert_eq!(n.source_side(0, 1), [true, false, true, false]);
    }

    #[test]
    fn what_is_never_cut_stays_together() {
        let mut n = Network::new(4);
        n.arc(0, 2, 5, 0);
        n.arc(2, 3, NEVER, NEVER);
        n.arc(3, 1, 7, 0);
        assert_eq!(n.source_side(0, 1), [true, false, false, false]);
        assert_eq!(Network::new(2).source_side(0, 1), [true, false]);
    }
}
