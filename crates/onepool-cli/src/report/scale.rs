//! Positions in percent, ticks of axes, and colours of operators.

use std::collections::BTreeMap;

use serde::Serialize;

use super::data::Times;

/// Operators with a colour of their own; the others have one together.
pub(super) const COLOURS: usize = 7;

/// Pixels of a drawing on paper and on a small screen, by which labels are left out where no script measures.
const PIXELS: f64 = 760.0;

/// Pixels of one character of a label, generously.
const CHARACTER: f64 = 6.6;

/// `part` of `whole` in percent, within 0 and 100.
pub(super) fn percent(part: f64, whole: f64) -> f64 {
    let share = if whole > 0.0 { part / whole * 100.0 } else { 0.0 };
    // Four digits are a thousandth of a pixel, and keep the page small.
    (share.clamp(0.0, 100.0) * 1e4).round() / 1e4
}

/// Whether a label of this many characters fits `width` percent of a drawing.
pub(super) fn fits(label: &str, width: f64) -> bool {
    !label.is_empty() && label.chars().count() as f64 * CHARACTER + 8.0 <= width / 100.0 * PIXELS
}

/// A line of an axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Tick {
    /// Where, in percent.
    pub(super) at: f64,
    /// What it says.
    pub(super) label: String,
}

/// At most `most` + 1 multiples of a round step from 0 to `end`.
pub(super) fn ticks(end: f64, most: f64, label: impl Fn(f64) -> String) -> Vec<Tick> {
    if !(end.is_finite() && end > 0.0) {
        return Vec::new();
    }
    let least = end / most;
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= least).unwrap_or(least);
    // The sum of roundings must not lose the last one.
    let count = (end / step + 1e-9).floor() as usize;
    (0..=count).map(|n| n as f64 * step).map(|v| Tick { at: percent(v, end), label: label(v) }).collect()
}

/// The colours of operators: those that take most time have their own.
#[derive(Debug, Default)]
pub(super) struct Colours(BTreeMap<String, usize>);

/// An entry of the legend.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Key {
    pub(super) colour: usize,
    pub(super) op: String,
}

impl Colours {
    /// The colours for the operators of a run.
    pub(super) fn new(times: &Times) -> Self {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for node in &times.nodes {
            *sums.entry(&node.op).or_default() += node.nanos;
        }
        let mut order: Vec<(&str, u64)> = sums.into_iter().collect();
        order.sort_by_key(|(op, nanos)| (std::cmp::Reverse(*nanos), *op));
        Colours(order.into_iter().take(COLOURS).enumerate().map(|(i, (op, _))| (op.to_owned(), i)).collect())
    }

    /// The number of an operator's colour.
    pub(super) fn of(&self, op: &str) -> usize {
        self.0.get(op).copied().unwrap_or(COLOURS)
    }

    /// The legend; `others` where an operator has no colour of its own.
    pub(super) fn keys(&self, others: bool) -> Vec<Key> {
        let mut keys: Vec<Key> = self.0.iter().map(|(op, &colour)| Key { colour, op: op.clone() }).collect();
        keys.sort_by_key(|key| key.colour);
        keys.extend(others.then(|| Key { colour: COLOURS, op: "others".to_owned() }));
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::data::NodeTime;

    #[test]
    fn ticks_are_round_and_reach_the_end() {
        let at = |end, most| ticks(end, most, |v| format!("{v}"));
        let labels = |t: &[Tick]| t.iter().map(|t| t.label.clone()).collect::<Vec<_>>();
        assert_eq!(labels(&at(10.0, 5.0)), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(at(10.0, 5.0).last().map(|t| t.at), Some(100.0));
        assert_eq!(labels(&at(7.0, 5.0)), ["0", "2", "4", "6"]);
        assert_eq!(labels(&at(0.3, 3.0)).len(), 4);
        for end in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(at(end, 5.0), []);
        }
        for end in [1e-9, 3.0, 12345.6, 1e18] {
            assert!((2..=9).contains(&at(end, 8.0).len()), "{end}");
        }
    }

    #[test]
    fn shares_are_within_the_drawing() {
        assert_eq!(percent(1.0, 4.0), 25.0);
        assert_eq!((percent(5.0, 4.0), percent(-1.0, 4.0), percent(1.0, 0.0)), (100.0, 0.0, 0.0));
        assert!(fits("Conv", 10.0) && !fits("Conv", 1.0) && !fits("", 50.0));
    }

    #[test]
    fn operators_that_take_longest_have_colours() {
        let node = |op: String, nanos| NodeTime { op, nanos, ..NodeTime::default() };
        let nodes = (0..10).map(|i| node(format!("Op{i}"), i)).collect();
        let colours = Colours::new(&Times { nodes, ..Times::default() });
        assert_eq!((colours.of("Op9"), colours.of("Op3"), colours.of("Op2")), (0, 6, COLOURS));
        let keys = colours.keys(true);
        assert_eq!((keys.len(), keys[0].op.as_str(), keys[7].op.as_str()), (8, "Op9", "others"));
    }
}
