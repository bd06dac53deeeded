//! Sums over cases: by family of operators, against what is expected, as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::case::{Fallback, Outcome, Status, count};
use super::suite::Case;
use onepool::loader::onnx::is_sequence_operator;
use onepool::ops;

/// How many cases ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    /// Right.
    pub(super) passed: usize,
    /// Wrong, or an error.
    pub(super) failed: usize,
    /// Not supported.
    pub(super) unsupported: usize,
    /// Those right of which some operator ran on the CPU for want of a device kernel.
    pub(super) with_fallback: usize,
    /// The nodes of those that did.
    pub(super) fallback_nodes: usize,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        match &outcome.status {
            Status::Passed => {
                self.passed += 1;
                self.with_fallback += usize::from(!outcome.fallbacks.is_empty());
                self.fallback_nodes += count(&outcome.fallbacks);
            }
            Status::Failed(_) => self.failed += 1,
            Status::Unsupported(_) => self.unsupported += 1,
        }
    }
}

/// Everything about one run over cases.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The API of the device, as expectations name it.
    pub(super) api: &'static str,
    pub(super) device: String,
    /// Wall time.
    pub(super) seconds: f64,
    /// All cases.
    pub(super) totals: Counts,
    /// By family of the operator under test.
    pub(super) families: BTreeMap<String, Counts>,
    /// By operator, what ran on the CPU for want of a device kernel, in cases that are right.
    pub(super) fallbacks: BTreeMap<&'static str, FallbackRow>,
    /// What was expected and is not so.
    pub(super) unmet: Vec<String>,
    /// Case by case.
    pub(super) cases: Vec<Row>,
}

/// One operator that ran on the CPU.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct FallbackRow {
    /// In how many cases.
    pub(super) cases: usize,
    /// How many nodes.
    pub(super) nodes: usize,
    /// Why the first of them did.
    pub(super) reason: String,
}

/// One case of a report.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    name: String,
    kind: String,
    op: String,
    family: String,
    status: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    seconds: f64,
    fallbacks: BTreeMap<&'static str, Fallback>,
    /// Its inputs and outputs have types that every device should have.
    core: bool,
    /// It tests one operator over types that every device should have.
    #[serde(skip)]
    basic: bool,
}

impl Report {
    /// The sums of `outcomes`.
    pub(super) fn new(api: &'static str, device: String, seconds: f64, cases: &[(Case, Outcome)]) -> Self {
        let mut report = Report {
            api,
            device,
            seconds,
            totals: Counts::default(),
            families: BTreeMap::new(),
            fallbacks: BTreeMap::new(),
            unmet: Vec::new(),
            cases: Vec::new(),
        };
        for (case, outcome) in cases {
            let family = family_of(&case.meta.op);
            report.totals.add(outcome);
            report.families.entry(family.to_owned()).or_default().add(outcome);
            let passed = outcome.status == Status::Passed;
            for (op, fallback) in outcome.fallbacks.iter().filter(|_| passed) {
                let row = report.fallbacks.entry(op).or_default();
                if row.cases == 0 {
                    row.reason.clone_from(&fallback.reason);
                }
                row.cases += 1;
                row.nodes += fallback.nodes;
            }
            let (status, message) = match &outcome.status {
                Status::Passed => ("passed", ""),
                Status::Failed(m) => ("failed", m.as_str()),
                Status::Unsupported(m) => ("unsupported", m.as_str()),
            };
            report.cases.push(Row {
                name: case.meta.name.clone(),
                kind: case.meta.kind.clone(),
                op: case.meta.op.clone(),
                family: family.to_owned(),
                status,
                message: message.to_owned(),
                seconds: outcome.seconds,
                fallbacks: outcome.fallbacks.clone(),
                core: case.is_core(),
                basic: case.is_core() && matches!(case.meta.kind.as_str(), "" | "node"),
            });
        }
        report
    }
}

fn family_of(op: &str) -> &'static str {
    let has = |f: &&ops::Family| f.ops.iter().any(|d| d.name == op);
    match ops::FAMILIES.iter().find(has) {
        Some(family) => family.name,
        None if op.is_empty() => "models",
        None if is_sequence_operator(op) => "sequence",
        None => "no such operator",
    }
}

/// What a run over cases must reach, as a file says it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Expect {
    /// Operators whose cases must all pass, as far as they are cases of single operators over the common
    /// element types.
    require_ops: Vec<String>,
    /// The fewest cases that must pass, by API.
    min_passed: BTreeMap<String, usize>,
    /// Cases that may be wrong.
    allow_wrong: Vec<String>,
}

impl Expect {
    /// What is not reached, in words.
    pub(super) fn unmet(&self, report: &Report) -> Vec<String> {
        let mut unmet = Vec::new();
        for case in &report.cases {
            let allowed = self.allow_wrong.contains(&case.name);
            if case.status == "failed" && !allowed {
                unmet.push(format!("{} is wrong", case.name));
            } else if case.status != "passed" && case.basic && self.require_ops.contains(&case.op) && !allowed
            {
                unmet.push(format!("{} does not pass, and {} is required", case.name, case.op));
            }
        }
        let seen = |op: &String| report.cases.iter().any(|c| c.basic && c.op == *op);
        let unseen = self.require_ops.iter().filter(|op| !seen(op));
        unmet.extend(unseen.map(|op| format!("no case of {op} was run, which is required")));
        if let Some(&least) = self.min_passed.get(report.api)
            && report.totals.passed < least
        {
            unmet.push(format!("{} cases passed on {}, expected {least}", report.totals.passed, report.api));
        }
        unmet
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn report(ends: &[(&str, &str, Status)]) -> Report {
        let cases: Vec<(Case, Outcome)> = ends
            .iter()
            .map(|(name, op, status)| {
                let text = format!(r#"{{"name": "{name}", "op": "{op}"}}"#);
                let case =
                    Case { dir: PathBuf::new(), meta: serde_json::from_str(&text).unwrap(), params: None };
                let fallbacks =
                    BTreeMap::from([("TopK", Fallback { nodes: 2, reason: "no kernel".to_owned() })]);
                (case, Outcome { status: status.clone(), seconds: 0.5, fallbacks })
            })
            .collect();
        Report::new("cpu", "a cpu".to_owned(), 1.0, &cases)
    }

    #[test]
    fn cases_are_summed_by_family() {
        let r = report(&[
            ("a", "Conv", Status::Passed),
            ("b", "Conv", Status::Failed("x".into())),
            ("c", "NoSuch", Status::Unsupported("y".into())),
        ]);
        assert_eq!(
            r.totals,
            Counts { passed: 1, failed: 1, unsupported: 1, with_fallback: 1, fallback_nodes: 2 }
        );
        assert_eq!(
            r.families["conv"],
            Counts { passed: 1, failed: 1, unsupported: 0, with_fallback: 1, fallback_nodes: 2 }
        );
        assert_eq!(r.families["no such operator"].unsupported, 1);
        let json = serde_json::to_value(&r).unwrap();
        assert_eq!(json["cases"][1]["message"], "x");
        assert_eq!(json["cases"][1]["fallbacks"]["TopK"]["nodes"], 2);
        assert_eq!(
            json["fallbacks"]["TopK"],
            serde_json::json!({"cases": 1, "nodes": 2, "reason": "no kernel"})
        );
    }

    #[test]
    fn expectations_find_what_is_missing() {
        let r = report(&[
            ("a", "Conv", Status::Passed),
            ("b", "Relu", Status::Unsupported("y".into())),
            ("c", "Add", Status::Failed("z".into())),
        ]);
        let unmet = |text: &str| serde_json::from_str::<Expect>(text).unwrap().unmet(&r);
        assert_eq!(unmet(r#"{"allow_wrong": ["c"]}"#), Vec::<String>::new());
        assert_eq!(unmet("{}"), ["c is wrong"]);
        let required = unmet(r#"{"require_ops": ["Conv", "Relu", "Gemm"], "allow_wrong": ["c"]}"#);
        assert_eq!(
            required,
            ["b does not pass, and Relu is required", "no case of Gemm was run, which is required"]
        );
        let few = unmet(r#"{"min_passed": {"cpu": 2, "vulkan": 9}, "allow_wrong": ["c"]}"#);
        assert_eq!(few, ["1 cases passed on cpu, expected 2"]);
        assert!(serde_json::from_str::<Expect>(r#"{"reqire_ops": []}"#).is_err());
    }

    #[test]
    fn other_kinds_and_types_are_not_required() {
        let case = |text: &str| Case {
            dir: PathBuf::new(),
            meta: serde_json::from_str(text).unwrap(),
            params: None,
        };
        let unsupported =
            || Outcome { status: Status::Unsupported("x".into()), seconds: 0.0, fallbacks: BTreeMap::new() };
        let passed = || Outcome { status: Status::Passed, seconds: 0.0, fallbacks: BTreeMap::new() };
        let cases = [
            (case(r#"{"name": "a", "op": "Add", "kind": "node", "dtypes": ["float32"]}"#), passed()),
            (case(r#"{"name": "b", "op": "Add", "kind": "node", "dtypes": ["float16"]}"#), unsupported()),
            (case(r#"{"name": "c", "op": "Add", "kind": "simple", "dtypes": ["float32"]}"#), unsupported()),
        ];
        let r = Report::new("cpu", String::new(), 0.0, &cases);
        let expect: Expect = serde_json::from_str(r#"{"require_ops": ["Add"]}"#).unwrap();
        assert_eq!(expect.unmet(&r), Vec::<String>::new());
    }
}
