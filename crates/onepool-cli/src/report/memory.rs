//! The map of the memory between nodes: steps from left to right, offsets from below.

use std::fmt::Write as _;

use serde::Serialize;

use super::data::{Arena, Device, Planned, Range};
use super::scale::{Tick, fits, percent, ticks};
use crate::table::{bytes, count};

/// Most rectangles of one map; the largest are drawn.
const MOST: usize = 4000;

/// Pixels of the drawing from top to bottom, as the style sheet has it.
const HEIGHT: f64 = 300.0;

/// One arena's drawing.
#[derive(Debug, Serialize)]
pub(super) struct Map {
    /// Who accesses it.
    pub(super) name: String,
    pub(super) rects: Vec<Rect>,
    pub(super) columns: Vec<Tick>,
    pub(super) rows: Vec<Tick>,
    pub(super) peak: Marker,
    /// The bytes in use at each step, as a path in a box of `steps` by 100.
    pub(super) live: String,
    pub(super) steps: usize,
    pub(super) sentence: String,
    /// How many tensors are not drawn.
    pub(super) left_out: usize,
    pub(super) largest: Vec<Row>,
}

/// A tensor.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) shade: usize,
    pub(super) label: String,
    pub(super) fits: bool,
    pub(super) title: String,
}

/// The step with most bytes in use.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Marker {
    pub(super) x: f64,
    pub(super) width: f64,
    pub(super) label: String,
    /// The label is on the left of it.
    pub(super) left: bool,
}

/// A row of the table of the largest tensors.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) bytes: String,
    pub(super) offset: String,
    pub(super) steps: String,
}

/// The maps of a plan's arenas; empty ones have none.
pub(super) fn maps(plan: &Planned, devices: &[Device]) -> Vec<Map> {
    let drawn = plan.arenas.iter().filter(|arena| arena.bytes > 0 && !arena.ranges.is_empty());
    drawn.map(|arena| map(arena, plan, devices)).collect()
}

fn map(arena: &Arena, plan: &Planned, devices: &[Device]) -> Map {
    let last = arena.ranges.iter().map(|r| r.last as usize + 1).max().unwrap_or(0);
    let steps = plan.nodes.len().max(last);
    let node = |step: usize| match plan.nodes.get(step) {
        Some(n) if n.name.is_empty() => format!("step {step}, {}", n.op),
        Some(n) => format!("step {step}, {} ({})", n.name, n.op),
        None => format!("step {step}"),
    };
    let mut ranges: Vec<&Range> = arena.ranges.iter().collect();
    ranges.sort_by_key(|r| (std::cmp::Reverse(r.bytes), r.first, r.offset));
    let largest = ranges.iter().take(10).map(|r| Row {
        name: r.name.clone(),
        bytes: bytes(r.bytes),
        offset: bytes(r.offset),
        steps: if r.first == r.last { r.first.to_string() } else { format!("{} to {}", r.first, r.last) },
    });
    let largest = largest.collect();
    let left_out = ranges.len().saturating_sub(MOST);
    ranges.truncate(MOST);
    ranges.sort_by_key(|r| (r.first, r.offset));
    let rects = ranges.iter().enumerate().map(|(i, r)| rect(r, i, steps, arena.bytes, &node)).collect();
    let live = live(arena, steps);
    let most = live.iter().copied().max().unwrap_or(0);
    let at = live.iter().position(|bytes| *bytes == most).unwrap_or(0);
    let x = percent(at as f64, steps as f64);
    let name = match arena.device {
        Some(d) => devices.get(d as usize).map_or_else(|| format!("device {d}"), |d| d.selector.clone()),
        None => "host memory, shared by the devices".to_owned(),
    };
    let saved = arena.naive_bytes.saturating_sub(arena.bytes);
    Map {
        sentence: format!(
            "{} lie in {}, which is {} less than all of them apart. Most is in use at {}: {}.",
            count(arena.ranges.len(), "tensor"),
            bytes(arena.bytes),
            bytes(saved),
            node(at),
            bytes(most)
        ),
        name,
        rects,
        // A step is whole.
        columns: ticks(steps as f64, steps.min(10) as f64, |v| format!("{v:.0}")),
        rows: [0.0, 0.25, 0.5, 0.75, 1.0]
            .map(|share| Tick {
                at: 100.0 - share * 100.0,
                label: bytes((arena.bytes as f64 * share) as u64),
            })
            .to_vec(),
        peak: Marker {
            x,
            width: percent(1.0, steps as f64),
            label: format!("peak: {} in use at step {at}", bytes(most)),
            left: x > 50.0,
        },
        live: path(&live, arena.bytes),
        steps,
        left_out,
        largest,
    }
}

fn rect(r: &Range, nth: usize, steps: usize, whole: u64, node: &dyn Fn(usize) -> String) -> Rect {
    let x = percent(f64::from(r.first), steps as f64);
    let end = percent(f64::from(r.last) + 1.0, steps as f64);
    let top = percent(r.offset.saturating_add(r.bytes) as f64, whole as f64);
    let bottom = percent(r.offset as f64, whole as f64);
    let (width, height) = ((end - x).max(0.0), (top - bottom).max(0.0));
    let label = if r.name.is_empty() { bytes(r.bytes) } else { r.name.clone() };
    Rect {
        x,
        y: 100.0 - top,
        width,
        height,
        shade: nth % 4,
        fits: fits(&label, width) && height / 100.0 * HEIGHT >= 15.0,
        label,
        title: format!(
            "{}{}\n{} at offset {}\nfrom {}\nto {}",
            if r.name.is_empty() { "(no name)" } else { &r.name },
            if r.tensors > 1 { format!(", and in its place {} more", r.tensors - 1) } else { String::new() },
            bytes(r.bytes),
            bytes(r.offset),
            node(r.first as usize),
            node(r.last as usize)
        ),
    }
}

/// Bytes in use at each step.
fn live(arena: &Arena, steps: usize) -> Vec<u64> {
    // What begins and what ends at each step.
    let mut change = vec![(0u64, 0u64); steps + 1];
    for r in &arena.ranges {
        if let Some(at) = change.get_mut(r.first as usize) {
            at.0 = at.0.saturating_add(r.bytes);
        }
        if let Some(at) = change.get_mut(r.last as usize + 1) {
            at.1 = at.1.saturating_add(r.bytes);
        }
    }
    let mut sum = 0u64;
    let all = change.into_iter().take(steps);
    all.map(|(begins, ends)| {
        sum = sum.saturating_sub(ends).saturating_add(begins);
        sum
    })
    .collect()
}

/// A line of stairs, in a box of one for each step by 100.
fn path(live: &[u64], whole: u64) -> String {
    let mut path = String::new();
    let mut previous = None;
    for (step, &bytes) in live.iter().enumerate() {
        let y = 100.0 - percent(bytes as f64, whole as f64);
        if previous != Some(y) {
            let command = if previous.is_none() { "M" } else { "H" };
            // Writing to a string does not fail.
            let _ = match previous {
                None => write!(path, "{command}{step} {y:.3}"),
                Some(_) => write!(path, "{command}{step}V{y:.3}"),
            };
        }
        previous = Some(y);
    }
    let _ = write!(path, "H{}", live.len());
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::data::Node;

    fn range(name: &str, offset: u64, bytes: u64, first: u32, last: u32) -> Range {
        Range { name: name.to_owned(), tensors: 1, offset, bytes, first, last }
    }

    fn plan(ranges: Vec<Range>) -> Planned {
        let node = |i: usize| Node { name: format!("n{i}"), op: "Add".to_owned(), device: 0 };
        let arena = Arena { device: Some(0), bytes: 200, lower_bound: 200, naive_bytes: 260, ranges };
        Planned { nodes: (0..4).map(node).collect(), arenas: vec![arena], ..Planned::default() }
    }

    #[test]
    fn tensors_lie_where_and_when_they_are() {
        let plan = plan(vec![range("a", 0, 100, 0, 1), range("b", 100, 100, 1, 2), range("c", 0, 60, 2, 3)]);
        let device = Device { selector: "cpu:0".to_owned(), ..Device::default() };
        let [map] = &maps(&plan, &[device])[..] else { panic!("one arena") };
        let place = |n: usize| {
            let Rect { x, y, width, height, .. } = map.rects[n];
            (x, y, width, height)
        };
        assert_eq!(place(0), (0.0, 50.0, 50.0, 50.0));
        assert_eq!(place(1), (25.0, 0.0, 50.0, 50.0));
        assert_eq!(place(2), (50.0, 70.0, 50.0, 30.0));
        assert_eq!((map.peak.x, map.peak.width), (25.0, 25.0));
        assert!(map.peak.label.contains("200 B in use at step 1"), "{}", map.peak.label);
        assert!(map.sentence.contains("step 1, n1 (Add): 200 B"), "{}", map.sentence);
        assert_eq!(map.live, "M0 50.000H1V0.000H2V20.000H3V70.000H4");
        assert_eq!(map.name, "cpu:0");
        let columns: Vec<&str> = map.columns.iter().map(|tick| tick.label.as_str()).collect();
        assert_eq!(columns, ["0", "1", "2", "3", "4"]);
    }

    #[test]
    fn of_very_many_tensors_the_largest_are_drawn() {
        let ranges = (0..10_000).map(|i| range("t", 0, 1 + i, i as u32, i as u32)).collect();
        let [map] = &maps(&plan(ranges), &[])[..] else { panic!("one arena") };
        assert_eq!((map.rects.len(), map.left_out, map.steps), (MOST, 6000, 10_000));
        assert_eq!(map.largest[0].bytes, "9.8 KiB");
        assert!(map.rects.iter().all(|r| r.x + r.width <= 100.001 && r.height <= 100.0));
    }

    #[test]
    fn an_arena_without_bytes_has_no_map() {
        let mut none = plan(Vec::new());
        none.arenas[0].bytes = 0;
        assert!(maps(&none, &[]).is_empty());
    }
}
