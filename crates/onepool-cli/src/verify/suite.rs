//! Test cases: folders with a model and its data, and indexes of many.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};

use crate::error::CliError;
use crate::input_file::read_json;

/// Element types that every device should have; a case over others may be unsupported.
const CORE: [&str; 6] = ["float32", "int32", "int64", "uint8", "int8", "bool"];

/// What `meta.json` or an index says of a case. Everything may be missing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Meta {
    /// The case's name.
    pub(super) name: String,
    /// "node", "simple", "light", ...
    pub(super) kind: String,
    /// Its folder, relative to the index.
    dir: String,
    /// The operator under test.
    pub(super) op: String,
    /// The operator as the nodes of its function.
    pub(super) expanded: bool,
    /// Types of the graph's inputs and outputs.
    pub(super) dtypes: Vec<String>,
    /// Every operator.
    #[serde(deserialize_with = "names")]
    pub(super) ops: Vec<String>,
    /// Relative tolerance.
    pub(super) rtol: Option<f64>,
    /// Absolute tolerance.
    pub(super) atol: Option<f64>,
    /// The values are random, only type and shape can be compared.
    #[serde(alias = "nondeterministic")]
    pub(super) random: bool,
}

/// A list of names, or a table whose keys are the names.
fn names<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    Ok(match serde_json::Value::deserialize(d)? {
        serde_json::Value::Array(items) => {
            items.iter().filter_map(|i| i.as_str()).map(str::to_owned).collect()
        }
        serde_json::Value::Object(map) => map.into_iter().map(|(name, _)| name).collect(),
        _ => Vec::new(),
    })
}

/// A case to verify.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// Its folder.
    pub(super) dir: PathBuf,
    /// What is known of it.
    pub(super) meta: Meta,
    /// The parameters of its model, where they are not next to it.
    pub(super) params: Option<PathBuf>,
}

impl Case {
    /// The case in a folder, with what its `meta.json` says, if there is one.
    pub(super) fn of_dir(dir: &Path) -> Result<Case, CliError> {
        if !dir.is_dir() {
            return Err(CliError::usage(format!("{} is no folder of a test case", dir.display())));
        }
        let path = dir.join("meta.json");
        let mut meta = if path.exists() { read_json(&path)? } else { Meta::default() };
        if meta.name.is_empty() {
            meta.name = dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy().into_owned();
        }
        Ok(Case { dir: dir.to_owned(), meta, params: None })
    }

    /// Whether every input and output has one of the types that every device should have.
    pub(super) fn is_core(&self) -> bool {
        self.meta.dtypes.iter().all(|d| CORE.contains(&d.as_str()))
    }
}

/// The cases of `dir/index.json`.
pub(super) fn of_index(dir: &Path) -> Result<Vec<Case>, CliError> {
    #[derive(Deserialize)]
    struct Index {
        cases: Vec<Meta>,
    }
    let index: Index = read_json(&dir.join("index.json"))?;
    let case = |meta: Meta| Case {
        dir: dir.join(if meta.dir.is_empty() { &meta.name } else { &meta.dir }),
        meta,
        params: None,
    };
    Ok(index.cases.into_iter().map(case).collect())
}

/// Which cases of an index are verified.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Which cases of --suite")]
pub(super) struct Filter {
    /// Only cases of these operators.
    #[arg(long, value_delimiter = ',')]
    ops: Vec<String>,
    /// Only cases of these kinds: node, simple, pytorch-converted, pytorch-operator, light.
    #[arg(long, value_delimiter = ',')]
    kind: Vec<String>,
    /// Only cases whose name contains this text; several for any of them.
    #[arg(long)]
    filter: Vec<String>,
    /// No cases whose name contains this text.
    #[arg(long)]
    exclude: Vec<String>,
    /// Only cases whose inputs and outputs are float32, int32, int64, uint8, int8 or bool.
    #[arg(long)]
    core: bool,
    /// No cases that are an operator's function written out.
    #[arg(long)]
    no_expanded: bool,
}

impl Filter {
    /// Whether a case is wanted.
    pub(super) fn takes(&self, case: &Case) -> bool {
        let meta = &case.meta;
        let listed = |list: &[String], name: &str| list.is_empty() || list.iter().any(|l| l == name);
        listed(&self.ops, &meta.op)
            && listed(&self.kind, &meta.kind)
            && (self.filter.is_empty() || self.filter.iter().any(|f| meta.name.contains(f)))
            && !self.exclude.iter().any(|f| meta.name.contains(f))
            && (!self.core || case.is_core())
            && !(self.no_expanded && meta.expanded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(text: &str) -> Case {
        Case { dir: PathBuf::new(), meta: serde_json::from_str(text).unwrap(), params: None }
    }

    #[test]
    fn both_forms_of_an_index_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"onnx": "1", "cases": [
            {"name": "a", "kind": "node", "dir": "node/a", "op": "Abs", "ops": ["Abs"], "rtol": 0.001,
             "atol": 1e-7, "random": false, "dtypes": ["float32"]},
            {"name": "b", "op": "Add", "ops": {"Add": 2, "Mul": 1}, "nondeterministic": true, "family": "x"}]}"#;
        std::fs::write(dir.path().join("index.json"), text).unwrap();
        let cases = of_index(dir.path()).unwrap();
        assert_eq!(cases[0].dir, dir.path().join("node/a"));
        assert_eq!((cases[0].meta.random, cases[1].meta.random), (false, true));
        assert_eq!(cases[1].meta.ops, ["Add", "Mul"]);
        assert_eq!(cases[1].dir, dir.path().join("b"));
        std::fs::write(dir.path().join("index.json"), "{").unwrap();
        assert!(of_index(dir.path()).is_err());
    }

    #[test]
    fn filters_choose() {
        let abs = case(r#"{"name": "test_abs", "kind": "node", "op": "Abs", "dtypes": ["float32"]}"#);
        let half = case(
            r#"{"name": "test_half", "kind": "light", "op": "Add", "dtypes": ["float16"], "expanded": true}"#,
        );
        let pick = |filter: Filter| (filter.takes(&abs), filter.takes(&half));
        assert_eq!(pick(Filter::default()), (true, true));
        assert_eq!(pick(Filter { ops: vec!["Abs".into()], ..Default::default() }), (true, false));
        assert_eq!(pick(Filter { kind: vec!["light".into()], ..Default::default() }), (false, true));
        assert_eq!(
            pick(Filter { filter: vec!["_ab".into(), "zz".into()], ..Default::default() }),
            (true, false)
        );
        assert_eq!(pick(Filter { exclude: vec!["half".into()], ..Default::default() }), (true, false));
        assert_eq!(pick(Filter { core: true, ..Default::default() }), (true, false));
        assert_eq!(pick(Filter { no_expanded: true, ..Default::default() }), (true, false));
    }
}
