//! What operators moved and computed against what their device does at most.

use std::collections::BTreeMap;

use serde::Serialize;

use super::data::{Device, Peak, Times};
use super::scale::{Colours, Tick, percent};
use crate::table::{bytes, si, time};

/// Width and height of the chart.
const SIZE: (f64, f64) = (900.0, 340.0);

/// Where the chart's axes cross and end: left, top, right, bottom.
const FRAME: (f64, f64, f64, f64) = (64.0, 12.0, 888.0, 296.0);

/// The section.
#[derive(Debug, Serialize)]
pub(super) struct Roofline {
    pub(super) rows: Vec<Row>,
    pub(super) sources: Vec<Source>,
    /// Nothing where no peak is known or no operator computes.
    pub(super) chart: Option<Chart>,
}

/// Where a device's figures come from.
#[derive(Debug, Serialize)]
pub(super) struct Source {
    pub(super) device: String,
    pub(super) figures: String,
    pub(super) sentence: String,
}

/// An operator on a device.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) op: String,
    pub(super) device: String,
    pub(super) colour: usize,
    pub(super) nodes: usize,
    pub(super) nanos: u64,
    pub(super) time: String,
    pub(super) share: f64,
    pub(super) share_label: String,
    pub(super) moved: u64,
    pub(super) moved_label: String,
    pub(super) moved_rate: f64,
    pub(super) moved_rate_label: String,
    pub(super) flops: u64,
    pub(super) flops_label: String,
    pub(super) flops_rate: f64,
    pub(super) flops_rate_label: String,
    /// Percent of the peak, and whether memory or arithmetic limits it.
    pub(super) of_peak: Option<f64>,
    pub(super) of_peak_label: String,
    pub(super) limit: &'static str,
}

/// Operations in a second over operations for each byte, both logarithmic.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    pub(super) roofs: Vec<Roof>,
    pub(super) dots: Vec<Dot>,
    pub(super) columns: Vec<Tick>,
    pub(super) rows: Vec<Tick>,
}

/// A device's peak.
#[derive(Debug, Serialize)]
pub(super) struct Roof {
    pub(super) device: String,
    pub(super) points: String,
    pub(super) label_x: f64,
    pub(super) label_y: f64,
}

/// An operator.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Dot {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) radius: f64,
    pub(super) colour: usize,
    pub(super) title: String,
    /// Empty where there is no room for it.
    pub(super) label: String,
    pub(super) left: bool,
}

impl Roofline {
    /// The section of a run; nothing where no operator was timed.
    pub(super) fn new(times: &Times, devices: &[Device], peaks: &[Peak]) -> Option<Self> {
        let rows = rows(times, devices, peaks);
        if rows.is_empty() {
            return None;
        }
        let told = devices.iter().zip(peaks).filter(|(_, peak)| !peak.source.is_empty());
        let sources = told.map(|(device, peak)| Source {
            device: device.selector.clone(),
            figures: if peak.is_known() {
                format!("{} and {}", rate(peak.bytes_per_s, "B/s"), rate(peak.flops_per_s, "FLOP/s"))
            } else {
                String::new()
            },
            sentence: peak.source.clone(),
        });
        let used: Vec<(&Device, &Peak)> = devices
            .iter()
            .zip(peaks)
            .filter(|(d, p)| p.is_known() && rows.iter().any(|r| r.device == d.selector))
            .collect();
        Some(Roofline { chart: chart(&rows, &used), sources: sources.collect(), rows })
    }
}

fn rows(times: &Times, devices: &[Device], peaks: &[Peak]) -> Vec<Row> {
    let mut sums: BTreeMap<(&str, u32), (usize, u64, u64, u64)> = BTreeMap::new();
    for n in &times.nodes {
        let sum = sums.entry((&n.op, n.device)).or_default();
        sum.0 += 1;
        sum.1 = sum.1.saturating_add(n.nanos);
        sum.2 = sum.2.saturating_add(n.bytes);
        sum.3 = sum.3.saturating_add(n.flops);
    }
    let colours = Colours::new(times);
    let all: u64 = sums.values().map(|s| s.1).fold(0, u64::saturating_add);
    let mut rows: Vec<Row> = sums
        .into_iter()
        .map(|((op, device), (nodes, nanos, moved, flops))| {
            let seconds = nanos.max(1) as f64 / 1e9;
            let (moved_rate, flops_rate) = (moved as f64 / seconds, flops as f64 / seconds);
            let peak = peaks.get(device as usize).filter(|peak| peak.is_known());
            let of = peak.map(|p| (moved_rate / p.bytes_per_s * 100.0, flops_rate / p.flops_per_s * 100.0));
            let of_peak = of.map(|(moved, computed)| moved.max(computed));
            let share = percent(nanos as f64, all as f64);
            Row {
                op: op.to_owned(),
                device: devices
                    .get(device as usize)
                    .map_or_else(|| device.to_string(), |d| d.selector.clone()),
                colour: colours.of(op),
                nodes,
                nanos,
                time: time(nanos),
                share,
                share_label: format!("{share:.1} %"),
                moved,
                moved_label: bytes(moved),
                moved_rate,
                moved_rate_label: format!("{:.2}", moved_rate / 1e9),
                flops,
                flops_label: si(flops),
                flops_rate,
                flops_rate_label: format!("{:.2}", flops_rate / 1e9),
                of_peak,
                of_peak_label: of_peak.map_or_else(|| "-".to_owned(), |of| format!("{of:.1} %")),
                limit: match of {
                    Some((moved, computed)) if computed > moved => "arithmetic",
                    Some(_) => "memory",
                    None => "-",
                },
            }
        })
        .collect();
    rows.sort_by(|a, b| b.nanos.cmp(&a.nanos).then_with(|| a.op.cmp(&b.op)));
    rows
}

/// A rate with a decimal prefix.
fn rate(per_second: f64, unit: &str) -> String {
    let (value, prefix) = match per_second {
        v if v >= 1e12 => (v / 1e12, "T"),
        v if v >= 1e9 => (v / 1e9, "G"),
        v => (v / 1e6, "M"),
    };
    format!("{value:.1} {prefix}{unit}")
}

/// A logarithmic axis over whole decades.
struct Axis {
    first: f64,
    last: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let logs: Vec<f64> = values.filter(|v| v.is_finite() && *v > 0.0).map(f64::log10).collect();
        let first = logs.iter().copied().reduce(f64::min)?.floor();
        let last = logs.iter().copied().reduce(f64::max)?.ceil().max(first + 1.0);
        Some(Axis { first, last, from, to })
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.max(f64::MIN_POSITIVE).log10() - self.first) / (self.last - self.first);
        let at = self.from + share.clamp(0.0, 1.0) * (self.to - self.from);
        (at * 10.0).round() / 10.0
    }

    fn ticks(&self, label: impl Fn(f64) -> String) -> Vec<Tick> {
        let decades = (self.last - self.first) as i32;
        let step = (decades / 8 + 1).max(1);
        (0..=decades)
            .step_by(step as usize)
            .map(|d| 10f64.powf(self.first + f64::from(d)))
            .map(|v| Tick { at: self.at(v), label: label(v) })
            .collect()
    }
}

fn chart(rows: &[Row], peaks: &[(&Device, &Peak)]) -> Option<Chart> {
    let computing: Vec<&Row> = rows.iter().filter(|r| r.flops > 0 && r.moved > 0 && r.nanos > 0).collect();
    if computing.is_empty() || peaks.is_empty() {
        return None;
    }
    let (left, top, right, bottom) = FRAME;
    let intensity = |r: &Row| r.flops as f64 / r.moved as f64;
    let ridges = peaks.iter().map(|(_, p)| p.flops_per_s / p.bytes_per_s);
    let x = Axis::new(computing.iter().map(|r| intensity(r)).chain(ridges), left, right)?;
    let tops = peaks.iter().map(|(_, p)| p.flops_per_s);
    let y = Axis::new(computing.iter().map(|r| r.flops_rate).chain(tops), bottom, top)?;
    let roofs = peaks.iter().map(|(device, peak)| {
        let roof = |at: f64| (at * peak.bytes_per_s).min(peak.flops_per_s);
        let (first, last) = (10f64.powf(x.first), 10f64.powf(x.last));
        // Where the slope enters the chart: at its left edge, or at its lower one.
        let lowest = 10f64.powf(y.first) / peak.bytes_per_s;
        let ridge = peak.flops_per_s / peak.bytes_per_s;
        let points = [first.max(lowest), ridge, last].map(|at| format!("{},{}", x.at(at), y.at(roof(at))));
        Roof {
            device: device.selector.clone(),
            points: points.join(" "),
            label_x: right - 4.0,
            label_y: (y.at(peak.flops_per_s) - 6.0).max(top + 10.0),
        }
    });
    let roofs: Vec<Roof> = roofs.collect();
    let mut taken: Vec<(f64, f64, f64)> =
        roofs.iter().map(|r| (r.label_x - 7.0 * r.device.len() as f64, r.label_x, r.label_y)).collect();
    let mut dots: Vec<Dot> = Vec::new();
    let places: Vec<(f64, f64, f64)> = computing
        .iter()
        .map(|r| (x.at(intensity(r)), y.at(r.flops_rate), 4.0 + 10.0 * (r.share / 100.0).sqrt()))
        .collect();
    for (r, &(cx, cy, radius)) in computing.iter().zip(&places) {
        let length = 7.0 * r.op.chars().count() as f64;
        let right_of = (cx + radius + 3.0, cx + radius + 3.0 + length, cy + 4.0);
        let left_of = (cx - radius - 3.0 - length, cx - radius - 3.0, cy + 4.0);
        let is_free = |&(from, to, at): &(f64, f64, f64)| {
            let dots = places.iter().any(|&(px, py, pr)| {
                (px, py) != (cx, cy) && px + pr > from && px - pr < to && (py - at + 4.0).abs() < pr + 7.0
            });
            from > left
                && to < right
                && !dots
                && !taken.iter().any(|t| t.0 < to && from < t.1 && (t.2 - at).abs() < 13.0)
        };
        let place = [(right_of, false), (left_of, true)].into_iter().find(|(place, _)| is_free(place));
        taken.extend(place.map(|(place, _)| place));
        dots.push(Dot {
            x: cx,
            y: cy,
            radius,
            colour: r.colour,
            title: format!(
                "{} on {}\n{} of {} nodes\n{} GFLOP/s, {} GB/s\n{} of the measured peak, limited by {}",
                r.op,
                r.device,
                r.time,
                r.nodes,
                r.flops_rate_label,
                r.moved_rate_label,
                r.of_peak_label,
                r.limit
            ),
            label: if place.is_some() { r.op.clone() } else { String::new() },
            left: place.is_some_and(|(_, left)| left),
        });
    }
    let plain = |v: f64| if v >= 1.0 { format!("{v:.0}") } else { format!("{v}") };
    Some(Chart { columns: x.ticks(plain), rows: y.ticks(|v| plain(v / 1e9)), roofs, dots })
}

/// Width and height of the chart, for the template.
pub(super) fn size() -> (f64, f64) {
    SIZE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::data::NodeTime;

    fn node(op: &str, nanos: u64, bytes: u64, flops: u64) -> NodeTime {
        NodeTime { op: op.to_owned(), nanos, bytes, flops, ..NodeTime::default() }
    }

    fn device() -> Device {
        Device { selector: "cpu:0".to_owned(), ..Device::default() }
    }

    #[test]
    fn operators_are_held_against_the_slower_of_memory_and_arithmetic() {
        let nodes =
            vec![node("Conv", 500, 100, 5_000), node("Conv", 500, 100, 5_000), node("Concat", 100, 100, 0)];
        let times = Times { nodes, ..Times::default() };
        let peak = Peak { bytes_per_s: 2e9, flops_per_s: 2e10, source: "measured".to_owned() };
        let section = Roofline::new(&times, &[device()], &[peak]).unwrap();
        let [conv, concat] = &section.rows[..] else { panic!("{:?}", section.rows) };
        // 10 operations in a nanosecond of 20, and 0.2 bytes of 2.
        assert_eq!((conv.nodes, conv.of_peak_label.as_str(), conv.limit), (2, "50.0 %", "arithmetic"));
        assert_eq!((concat.of_peak_label.as_str(), concat.limit), ("50.0 %", "memory"));
        let chart = section.chart.unwrap();
        // What computes nothing has no place on a logarithmic axis.
        assert_eq!((chart.dots.len(), chart.dots[0].label.as_str()), (1, "Conv"));
        assert!(section.sources[0].figures.contains("2.0 GB/s and 20.0 GFLOP/s"), "{:?}", section.sources);
    }

    #[test]
    fn without_a_peak_there_are_rates_and_no_chart() {
        let times = Times { nodes: vec![node("Conv", 500, 100, 5_000)], ..Times::default() };
        let section = Roofline::new(&times, &[device()], &[Peak::default()]).unwrap();
        assert!(section.chart.is_none() && section.rows[0].of_peak.is_none());
        assert_eq!(section.rows[0].flops_rate_label, "10.00");
        assert!(Roofline::new(&Times::default(), &[device()], &[]).is_none());
    }

    #[test]
    fn labels_and_dots_are_in_the_chart_and_apart() {
        let spread =
            |i: u64| node(&format!("Operator{i}"), 1 << (3 * i % 17), 1 << (i % 11), 1 << (7 * i % 23));
        let nodes = (0..40).map(spread).collect();
        let times = Times { nodes, ..Times::default() };
        let peak = Peak { bytes_per_s: 1e9, flops_per_s: 1e12, source: String::new() };
        let chart = Roofline::new(&times, &[device()], &[peak]).unwrap().chart.unwrap();
        let (left, top, right, bottom) = FRAME;
        let mut boxes: Vec<(f64, f64, f64)> = Vec::new();
        for dot in &chart.dots {
            assert!((left..=right).contains(&dot.x) && (top..=bottom).contains(&dot.y), "{dot:?}");
            if dot.label.is_empty() {
                continue;
            }
            let (gap, length) = (dot.radius + 3.0, 7.0 * dot.label.len() as f64);
            let from = if dot.left { dot.x - gap - length } else { dot.x + gap };
            let clash =
                boxes.iter().find(|b| b.0 < from + length && from < b.1 && (b.2 - dot.y).abs() < 13.0);
            assert!(clash.is_none(), "{dot:?} {clash:?}");
            boxes.push((from, from + length, dot.y));
        }
        assert!(boxes.len() > 3);
        for tick in &chart.columns {
            assert!((left..=right).contains(&tick.at));
        }
    }
}
