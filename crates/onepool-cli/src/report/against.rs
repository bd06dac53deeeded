//! How a report differs from an earlier one.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::data::{Copied, Report};
use crate::bench::measure::median;
use crate::table::{bytes, time};

/// A smaller change of a time is not called one, in percent, and neither is one that the spread of the runs covers.
const SMALL: f64 = 5.0;

/// The section.
#[derive(Debug, Serialize)]
pub(super) struct Against {
    /// The file that was compared with, and when it was made.
    pub(super) of: String,
    /// What else differs, so that the figures say less.
    pub(super) warnings: Vec<String>,
    pub(super) totals: Vec<Change>,
    pub(super) operators: Vec<Change>,
}

/// A figure then and now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Change {
    pub(super) name: String,
    pub(super) before: String,
    pub(super) now: String,
    pub(super) change: String,
    /// `better`, `worse` or `same`.
    pub(super) verdict: &'static str,
    /// The length of the change's bar in percent of the widest.
    pub(super) bar: f64,
    /// For sorting.
    pub(super) difference: f64,
}

/// Compares `now` with `before`, which was in the file `of`.
pub(super) fn compare(now: &Report, before: &Report, of: &str) -> Against {
    let mut warnings = Vec::new();
    let mut differs = |what: &str, before: &str, now: &str| {
        if before != now {
            warnings.push(format!("{what}: {before} then, {now} now"));
        }
    };
    differs("The command differs", &before.command, &now.command);
    differs("The model differs", &before.model, &now.model);
    differs("The version differs", &before.version, &now.version);
    let devices = |report: &Report| {
        let each = report.devices.iter().map(|d| format!("{} {} ({})", d.selector, d.name, d.driver));
        each.collect::<Vec<_>>().join(", ")
    };
    differs("The devices differ", &devices(before), &devices(now));
    let nodes = |report: &Report| report.plan.as_ref().map_or(0, |p| p.nodes.len()).to_string();
    differs("The number of planned nodes differs", &nodes(before), &nodes(now));
    Against {
        of: format!("{of}, made {}", before.created),
        warnings,
        totals: totals(now, before),
        operators: operators(now, before),
    }
}

/// A time in nanoseconds, and between what it was in several runs.
#[derive(Clone, Copy)]
struct Took {
    nanos: f64,
    least: f64,
    most: f64,
}

impl Took {
    fn new(nanos: u64, [least, most]: [u64; 2]) -> Self {
        Took { nanos: nanos as f64, least: least as f64, most: most as f64 }
    }
}

/// A change of a time, where both are known. One that the runs' spread covers is none.
fn of_time(name: &str, before: Option<Took>, now: Option<Took>) -> Option<Change> {
    let (then, since) = (before?, now?);
    let covered = then.least <= since.most && since.least <= then.most;
    let (before, now) = (then.nanos, since.nanos);
    let change = if before > 0.0 { (now - before) / before * 100.0 } else { 0.0 };
    let verdict = match change {
        c if c.abs() < SMALL || covered => "same",
        c if c < 0.0 => "better",
        _ => "worse",
    };
    Some(Change {
        name: name.to_owned(),
        before: time(before as u64),
        now: time(now as u64),
        change: format!("{change:+.1} %"),
        verdict,
        bar: 0.0,
        difference: now - before,
    })
}

fn of_bytes(name: &str, before: Option<u64>, now: Option<u64>) -> Option<Change> {
    let (before, now) = (before?, now?);
    let (sign, by, verdict) = match now.cmp(&before) {
        std::cmp::Ordering::Less => ("-", before - now, "better"),
        std::cmp::Ordering::Equal => ("", 0, "same"),
        std::cmp::Ordering::Greater => ("+", now - before, "worse"),
    };
    Some(Change {
        name: name.to_owned(),
        before: bytes(before),
        now: bytes(now),
        change: format!("{sign}{}", bytes(by)),
        verdict,
        bar: 0.0,
        difference: 0.0,
    })
}

/// The sum of what a file says, which may be anything.
fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

fn totals(now: &Report, before: &Report) -> Vec<Change> {
    let run = |report: &Report| {
        let mut runs = report.runs_ms.clone();
        let nanos = median(&mut runs) * 1e6;
        // Between the quartiles.
        let quartile = |of: usize| runs.get(of * (runs.len() - 1) / 4).map_or(nanos, |ms| ms * 1e6);
        (!runs.is_empty()).then(|| Took { nanos, least: quartile(1), most: quartile(3) })
    };
    let host = |r: &Report| r.profile.as_ref().map(|p| Took::new(p.host_nanos, p.spread.host));
    let device = |r: &Report| r.profile.as_ref().map(|p| Took::new(p.device_nanos, p.spread.device));
    let arena = |r: &Report| Some(sum(r.plan.as_ref()?.arenas.iter().map(|a| a.bytes)));
    let constants = |r: &Report| Some(r.plan.as_ref()?.constant_bytes);
    let copied = |r: &Report| {
        let bound = r.tensors.iter().filter(|t| t.copied != Copied::No).map(|t| t.bytes);
        (!r.tensors.is_empty()).then(|| sum(bound.chain(r.crossings.iter().map(|c| c.copied))))
    };
    let rows = [
        of_time("median of the runs", run(before), run(now)),
        of_time("profiled run, until the host knew", host(before), host(now)),
        of_time("profiled run, on the devices", device(before), device(now)),
        of_bytes("memory between nodes", arena(before), arena(now)),
        of_bytes("constants", constants(before), constants(now)),
        of_bytes("copied in each run", copied(before), copied(now)),
    ];
    rows.into_iter().flatten().collect()
}

fn operators(now: &Report, before: &Report) -> Vec<Change> {
    let sums = |report: &Report| {
        let mut sums: BTreeMap<String, (usize, u64)> = BTreeMap::new();
        for n in report.profile.iter().flat_map(|p| &p.nodes) {
            let sum = sums.entry(n.op.clone()).or_default();
            sum.0 += 1;
            sum.1 = sum.1.saturating_add(n.nanos);
        }
        let spread = report.profile.as_ref().map(|p| &p.spread.operators);
        let took = |(op, (count, nanos)): (String, (usize, u64))| {
            let range = spread.and_then(|s| s.get(&op)).copied().unwrap_or([nanos; 2]);
            (op, (count, Took::new(nanos, range)))
        };
        sums.into_iter().map(took).collect::<BTreeMap<_, _>>()
    };
    let (then, now) = (sums(before), sums(now));
    let names: BTreeSet<&String> = then.keys().chain(now.keys()).collect();
    let mut changes: Vec<Change> = names
        .into_iter()
        .filter_map(|op| {
            let (a, b) = (then.get(op).copied(), now.get(op).copied());
            let none = Took { nanos: 0.0, least: 0.0, most: 0.0 };
            let took = |sum: Option<(usize, Took)>| Some(sum.map_or(none, |(_, took)| took));
            let mut change = of_time(op, took(a), took(b))?;
            match (a, b) {
                (None, _) => {
                    (change.before, change.change, change.verdict) =
                        ("-".to_owned(), "new".to_owned(), "worse");
                }
                (_, None) => {
                    (change.now, change.change, change.verdict) =
                        ("-".to_owned(), "gone".to_owned(), "better");
                }
                (Some(a), Some(b)) if a.0 != b.0 => change.name = format!("{op} ({} then, {} now)", a.0, b.0),
                _ => {}
            }
            Some(change)
        })
        .collect();
    changes
        .sort_by(|a, b| b.difference.abs().total_cmp(&a.difference.abs()).then_with(|| a.name.cmp(&b.name)));
    let most = changes.iter().map(|c| c.difference.abs()).fold(0.0, f64::max);
    for change in &mut changes {
        change.bar = super::scale::percent(change.difference.abs(), most);
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::data::{Arena, NodeTime, Planned, Spread, Tensor, Times};

    fn report(runs: &[f64], ops: &[(&str, u64)]) -> Report {
        let nodes: Vec<NodeTime> = ops
            .iter()
            .map(|(op, nanos)| NodeTime { op: (*op).to_owned(), nanos: *nanos, ..NodeTime::default() })
            .collect();
        let device_nanos = sum(ops.iter().map(|(_, n)| *n));
        let operators = ops.iter().map(|(op, n)| ((*op).to_owned(), [*n, *n])).collect();
        let spread = Spread { runs: 1, operators, device: [device_nanos; 2], host: [device_nanos; 2] };
        Report {
            runs_ms: runs.to_vec(),
            profile: Some(Times {
                nodes,
                device_nanos,
                host_nanos: device_nanos,
                spread,
                ..Times::default()
            }),
            plan: Some(Planned {
                arenas: vec![Arena { bytes: 1 << 20, ..Arena::default() }],
                ..Planned::default()
            }),
            tensors: vec![Tensor { bytes: 64, copied: Copied::ByCpu, ..Tensor::default() }],
            ..Report::new("run", "m.onnx")
        }
    }

    #[test]
    fn changes_are_told_by_operator_and_in_total() {
        let before = report(&[10.0; 5], &[("Conv", 8_000_000), ("Add", 1_000_000), ("Old", 5)]);
        let mut now = report(&[8.0; 5], &[("Conv", 6_000_000), ("Add", 1_010_000), ("New", 7)]);
        now.tensors[0].copied = Copied::No;
        let found = compare(&now, &before, "old.html");
        let row = |rows: &[Change], name: &str| {
            let row = rows.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no {name}")).clone();
            (row.before, row.now, row.change, row.verdict)
        };
        let told = |a: &str, b: &str, c: &str, d| (a.to_owned(), b.to_owned(), c.to_owned(), d);
        assert_eq!(
            row(&found.totals, "median of the runs"),
            told("10.00 ms", "8.00 ms", "-20.0 %", "better")
        );
        assert_eq!(row(&found.totals, "copied in each run"), told("64 B", "0 B", "-64 B", "better"));
        assert_eq!(row(&found.totals, "memory between nodes"), told("1.0 MiB", "1.0 MiB", "0 B", "same"));
        assert_eq!(row(&found.operators, "Conv"), told("8.00 ms", "6.00 ms", "-25.0 %", "better"));
        assert_eq!(row(&found.operators, "Add"), told("1.00 ms", "1.01 ms", "+1.0 %", "same"));
        assert_eq!(row(&found.operators, "New"), told("-", "7 ns", "new", "worse"));
        assert_eq!(row(&found.operators, "Old"), told("5 ns", "-", "gone", "better"));
        assert_eq!((found.operators[0].name.as_str(), found.operators[0].bar), ("Conv", 100.0));
        assert_eq!(found.warnings, [""; 0]);
    }

    #[test]
    fn a_change_within_the_spread_of_the_runs_is_none() {
        let before = report(&[10.0, 8.0, 12.0, 9.0, 13.0], &[]);
        let now = report(&[9.0, 11.0, 12.5, 8.0, 13.0], &[]);
        let found = compare(&now, &before, "old.html");
        assert_eq!(found.totals[0].verdict, "same", "{:?}", found.totals[0]);
        // The same of an operator: a tenth less, in runs that spread by a fifth.
        let [before, mut now] = [10_000_000, 9_000_000].map(|nanos| report(&[1.0], &[("Conv", nanos)]));
        assert_eq!(compare(&now, &before, "old.html").operators[0].verdict, "better");
        let spread = &mut now.profile.as_mut().unwrap().spread;
        spread.operators.insert("Conv".to_owned(), [9_000_000, 11_000_000]);
        assert_eq!(compare(&now, &before, "old.html").operators[0].verdict, "same");
    }

    #[test]
    fn a_file_may_say_anything() {
        let mut before =
            report(&[f64::MAX, -1.0, 0.0], &[("Conv", u64::MAX), ("Conv", u64::MAX), ("Add", 0)]);
        let arena = Arena { bytes: u64::MAX, ..Arena::default() };
        before.plan = Some(Planned {
            arenas: vec![arena.clone(), arena],
            constant_bytes: u64::MAX,
            ..Planned::default()
        });
        before.tensors = vec![Tensor { bytes: u64::MAX, copied: Copied::ByCpu, ..Tensor::default() }; 3];
        let now = report(&[1.0, 2.0], &[("Conv", 1), ("Add", 2)]);
        for (a, b) in [(&now, &before), (&before, &now), (&before, &before)] {
            let found = compare(a, b, "old.html");
            assert_eq!((found.operators.len(), found.totals.len()), (2, 6));
        }
    }

    #[test]
    fn what_makes_reports_incomparable_is_said() {
        let before = report(&[1.0], &[]);
        let mut now = Report { model: "other.onnx".to_owned(), ..before.clone() };
        now.devices.push(super::super::data::Device::default());
        let found = compare(&now, &before, "old.html");
        assert!(found.warnings[0].contains("m.onnx then, other.onnx now"), "{:?}", found.warnings);
        assert_eq!(found.warnings.len(), 2);
    }
}
