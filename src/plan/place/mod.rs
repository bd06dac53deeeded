//! Which device each node runs on: the cheapest placement for given times of nodes and costs of boundaries. Pure.

mod cut;
mod roofline;

pub use self::roofline::Roofline;

use self::cut::{NEVER, Network};

/// The largest time or cost, in nanoseconds (a quarter of an hour); longer ones count as this.
const LONGEST: u64 = 1_000_000_000_000;

/// Nodes that access one tensor, or wait for one another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Net {
    /// The nodes, by position, without duplicates.
    pub nodes: Vec<usize>,
    /// For each device its cost in nanoseconds where any of the nodes runs on it.
    pub costs: Vec<u64>,
    /// Whether a device pays even where all of the nodes run on it: the tensor lies elsewhere.
    pub always: bool,
}

/// Nodes with their times on each device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// Number of devices.
    pub devices: usize,
    /// For each node its nanoseconds on each device; `None` where it must not run.
    pub times: Vec<Vec<Option<u64>>>,
    /// What boundaries cost.
    pub nets: Vec<Net>,
}

impl Problem {
    /// Nanoseconds of a placement; `None` where a node must not run on its device.
    pub fn total(&self, places: &[u32]) -> Option<u64> {
        let mut sum = 0u64;
        for (times, place) in self.times.iter().zip(places) {
            sum = sum.saturating_add(times.get(*place as usize).copied()??.min(LONGEST));
        }
        for net in &self.nets {
            let paid = |d: &usize| net.nodes.iter().any(|&n| places.get(n) == Some(&(*d as u32)));
            let touched: Vec<usize> = (0..self.devices).filter(paid).collect();
            if net.always || touched.len() > 1 {
                sum = touched.iter().fold(sum, |sum, d| sum.saturating_add(net.cost(*d)));
            }
        }
        Some(sum)
    }

    /// All nodes on `device` where they may run there, the others where they are fastest.
    pub fn uniform(&self, device: u32) -> Vec<u32> {
        let place = |times: &Vec<Option<u64>>| {
            let there = times.get(device as usize).copied().flatten().map(|_| device);
            let fastest = times.iter().enumerate().filter_map(|(d, t)| Some((((*t)?), d as u32))).min();
            there.or(fastest.map(|(_, d)| d)).unwrap_or(0)
        };
        self.times.iter().map(place).collect()
    }

    /// A placement that is optimal for two devices. For more it costs no more than any of [`Problem::uniform`], and
    /// no exchange of nodes between two devices improves it.
    ///
    /// Swap moves, each an exact minimum cut: Boykov, Veksler, Zabih, "Fast approximate energy minimization via
    /// graph cuts", 2001, section 3. A net is a clique potential that a cut can express: Kohli, Kumar, Torr,
    /// "P3 & beyond", 2007, section 4.
    pub fn solve(&self) -> Vec<u32> {
        let starts = (0..self.devices as u32).map(|d| self.uniform(d));
        let solved = starts.map(|start| self.improve(start));
        // The first of equals, so that nothing moves without need.
        let best = solved.min_by_key(|places| self.total(places).unwrap_or(u64::MAX));
        best.unwrap_or_default()
    }

    fn improve(&self, mut places: Vec<u32>) -> Vec<u32> {
        let mut total = self.total(&places).unwrap_or(u64::MAX);
        loop {
            let before = total;
            for a in 0..self.devices as u32 {
                for b in a + 1..self.devices as u32 {
                    let swapped = self.swap(&places, a, b);
                    if let Some(t) = self.total(&swapped).filter(|t| *t < total) {
                        (places, total) = (swapped, t);
                    }
                }
            }
            if total == before {
                return places;
            }
        }
    }

    /// The cheapest placement that differs only in which of the nodes on `a` and `b` are on which of both.
    fn swap(&self, places: &[u32], a: u32, b: u32) -> Vec<u32> {
        let (source, sink) = (0, 1);
        let active: Vec<usize> = (0..places.len()).filter(|&n| places[n] == a || places[n] == b).collect();
        let mut vertex = vec![None; places.len()];
        let mut network = Network::new(2);
        for &n in &active {
            let v = network.vertex();
            vertex[n] = Some(v);
            let time =
                |d: u32| self.times[n].get(d as usize).copied().flatten().map_or(NEVER, |t| t.min(LONGEST));
            // The side of the source is `a`; a cut pays for the other.
            network.arc(source, v, time(b), 0);
            network.arc(v, sink, time(a), 0);
        }
        for net in &self.nets {
            let inside: Vec<usize> =
                net.nodes.iter().filter_map(|&n| vertex.get(n).copied().flatten()).collect();
            if inside.is_empty() {
                continue;
            }
            let (on_a, on_b) = (net.cost(a as usize), net.cost(b as usize));
            let (if_any_a, if_any_b) = if net.always || inside.len() < net.nodes.len() {
                (on_a, on_b)
            } else {
                // Both sides pay where both have nodes; the one side that has them pays otherwise, which no cut
                // changes.
                (on_a + on_b, on_a + on_b)
            };
            let any_a = network.vertex();
            network.arc(any_a, sink, if_any_a, 0);
            let any_b = network.vertex();
            network.arc(source, any_b, if_any_b, 0);
            for v in inside {
                network.arc(v, any_a, NEVER, 0);
                network.arc(any_b, v, NEVER, 0);
            }
        }
        let side = network.source_side(source, sink);
        let mut swapped = places.to_vec();
        for n in active {
            let at_source = vertex[n].is_some_and(|v| side[v]);
            swapped[n] = if at_source { a } else { b };
        }
        swapped
    }
}

impl Net {
    fn cost(&self, device: usize) -> u64 {
        self.costs.get(device).copied().unwrap_or(0).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn brute(problem: &Problem) -> Option<u64> {
        let n = problem.times.len() as u32;
        let count = (problem.devices as u32).pow(n);
        let places = |mut code: u32| -> Vec<u32> {
            let mut digit = || {
                let d = code % problem.devices as u32;
                code /= problem.devices as u32;
                d
            };
            (0..n).map(|_| digit()).collect()
        };
        (0..count).filter_map(|code| problem.total(&places(code))).min()
    }

    fn problem(devices: usize, most: usize) -> impl Strategy<Value = Problem> {
        let time = prop_oneof![8 => (0u64..100).prop_map(Some), 1 => Just(None)];
        let times = prop::collection::vec(time, devices).prop_map(|mut times: Vec<Option<u64>>| {
            // A node runs somewhere.
            if times.iter().all(Option::is_none) {
                times[0] = Some(1);
            }
            times
        });
        prop::collection::vec(times, 1..=most).prop_flat_map(move |times| {
            let n = times.len();
            let net = (
                prop::collection::btree_set(0..n, 1..=n.min(4)),
                prop::collection::vec(0u64..60, devices),
                any::<bool>(),
            );
            let net = net.prop_map(|(nodes, costs, always)| Net {
                nodes: nodes.into_iter().collect(),
                costs,
                always,
            });
            prop::collection::vec(net, 0..8).prop_map(move |nets| Problem {
                devices,
                times: times.clone(),
                nets,
            })
        })
    }

    proptest! {
        #[test]
        fn for_two_devices_nothing_is_cheaper(p in problem(2, 9)) {
            prop_assert_eq!(p.total(&p.solve()), brute(&p));
        }

        #[test]
        fn for_three_devices_it_is_as_good_as_any_uniform_one_and_cannot_be_improved_by_one_node(
            p in problem(3, 7),
        ) {
            let places = p.solve();
            let total = p.total(&places).unwrap();
            prop_assert!(total >= brute(&p).unwrap());
            for d in 0..3 {
                prop_assert!(total <= p.total(&p.uniform(d)).unwrap());
                for n in 0..places.len() {
                    let mut moved = places.clone();
                    moved[n] = d;
                    prop_assert!(p.total(&moved).is_none_or(|t| t >= total));
                }
            }
        }
    }

    fn chain(times: &[[u64; 2]], boundary: u64) -> Problem {
        Problem {
            devices: 2,
            times: times.iter().map(|t| t.map(Some).to_vec()).collect(),
            nets: (1..times.len())
                .map(|n| Net { nodes: vec![n - 1, n], costs: vec![boundary / 2; 2], always: false })
                .collect(),
        }
    }

    #[test]
    fn a_node_moves_only_where_that_pays_for_both_boundaries() {
        let times = [[10, 90], [70, 10], [10, 90]];
        assert_eq!(chain(&times, 20).solve(), [0, 1, 0]);
        assert_eq!(chain(&times, 40).solve(), [0, 0, 0]);
    }

    #[test]
    fn a_tensor_with_many_readers_crosses_once() {
        let mut p = chain(&[[0, 200], [60, 10], [60, 10], [60, 10]], 0);
        p.nets = vec![Net { nodes: vec![0, 1, 2, 3], costs: vec![50, 50], always: false }];
        assert_eq!(p.solve(), [0, 1, 1, 1]);
        assert_eq!(p.total(&[0, 1, 1, 1]), Some(130));
    }

    #[test]
    fn a_node_runs_where_it_may() {
        let mut p = chain(&[[1, 9], [1, 9], [1, 9]], 1000);
        p.times[1][0] = None;
        assert_eq!(p.solve(), [1, 1, 1]);
        assert_eq!(p.uniform(0), [0, 1, 0]);
        assert_eq!(p.total(&[0, 0, 0]), None);
    }

    #[test]
    fn a_long_chain_is_solved() {
        let times: Vec<[u64; 2]> = (0..20_000).map(|n| if n % 100 < 50 { [1, 9] } else { [9, 1] }).collect();
        let places = chain(&times, 10).solve();
        assert!(places.iter().enumerate().all(|(n, d)| *d == u32::from(n % 100 >= 50)));
    }

    #[test]
    fn nothing_has_a_placement() {
        assert!(Problem { devices: 2, ..Problem::default() }.solve().is_empty());
        assert!(Problem::default().solve().is_empty());
    }
}
