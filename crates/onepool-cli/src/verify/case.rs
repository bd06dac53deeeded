//! Runs one test case.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::compare::{Difference, Tolerance, compare, compare_info};
use super::suite::Case;
use crate::error::{CliError, UNSUPPORTED, chain};
use crate::input_file::read_bytes;
use crate::place::Places;
use crate::precision::PrecisionArgs;
use crate::stop::StopArgs;
use crate::table;
use crate::tensor_io::read_pb_tensor;
use onepool::device::Context;
use onepool::dtype::DType;
use onepool::graph::Tensor;
use onepool::loader::onnx::{list_names, read_list_pb};
use onepool::loader::{self, LoadOptions};
use onepool::ops::sequence;
use onepool::plan::NodeReport;
use onepool::session::{IoInfo, Session};

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// Every output of every data set is right.
    Passed,
    /// Something is wrong.
    Failed(String),
    /// An operator, a type or a form of them that is not supported.
    Unsupported(String),
}

/// A case with its end.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// How it ended.
    pub(super) status: Status,
    /// How long it took.
    pub(super) seconds: f64,
    /// Nodes that ran on the CPU because the device has no kernel for them, by operator.
    pub(super) fallbacks: BTreeMap<&'static str, Fallback>,
}

/// Nodes of one operator that ran on the CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct Fallback {
    /// How many.
    pub(super) nodes: usize,
    /// Why the first of them did.
    pub(super) reason: String,
}

/// Runs a case on opened devices. A panic is a failure of the case and of nothing else.
pub(super) fn run(
    case: &Case,
    on: (&[Context], &Places),
    fallback: bool,
    precision: PrecisionArgs,
    stop: &StopArgs,
    given: (Option<f64>, Option<f64>),
) -> Outcome {
    let start = Instant::now();
    let tolerance = Tolerance::of(given, (case.meta.rtol, case.meta.atol));
    let mut fallbacks = BTreeMap::new();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        verify(case, on, fallback, precision, stop, tolerance, &mut fallbacks)
    }));
    let status = match ended {
        Ok(Ok(None)) => Status::Passed,
        Ok(Ok(Some(wrong))) => Status::Failed(wrong),
        Ok(Err(e)) if e.exit_code() == Some(UNSUPPORTED) => Status::Unsupported(chain(&e)),
        Ok(Err(e)) => Status::Failed(chain(&e)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Status::Failed(format!("panicked: {}", text.unwrap_or("no message")))
        }
    };
    Outcome { status, seconds: start.elapsed().as_secs_f64(), fallbacks }
}

/// What is wrong with the first output that is wrong.
fn verify(
    case: &Case,
    on: (&[Context], &Places),
    fallback: bool,
    precision: PrecisionArgs,
    stop: &StopArgs,
    tolerance: Tolerance,
    fallbacks: &mut BTreeMap<&'static str, Fallback>,
) -> Result<Option<String>, CliError> {
    let (devices, places) = on;
    let (graph, moved) = {
        let options = LoadOptions { params: case.params.as_deref(), ..LoadOptions::default() };
        let table: Vec<&str> = devices.iter().map(|context| context.info().api).collect();
        loader::load_on(&model_of(&case.dir)?, &options, &table, true)?
    };
    let precision = precision.exact_by_default();
    let rounding = precision.rounding(&graph);
    let mut builder = places.apply_known(precision.apply(stop.apply(Session::builder())), &graph);
    builder = builder.graph(graph).foreign_nodes(moved).fallback(fallback);
    for device in devices {
        builder = builder.context(device.clone());
    }
    let mut session = builder.build()?;
    for data in data_sets(&case.dir)? {
        for (name, value) in inputs_of(&session.inputs(), &data)? {
            session.set_input(&name, &value)?;
        }
        session.run()?;
        // Data sets of other shapes have other plans: the one with most counts.
        let stages = session.binding().into_iter().flat_map(|b| b.stages());
        let found = fallen(stages.flat_map(|b| &b.plan().report.nodes));
        if count(&found) > count(fallbacks) {
            *fallbacks = found;
        }
        let outputs = session.outputs();
        let wanted = outputs_of(&outputs, &data)?;
        if outputs.len() != wanted.len() {
            let (outputs, files) =
                (table::count(outputs.len(), "output"), table::count(wanted.len(), "output"));
            return Err(CliError::content(
                data,
                format!("the model has {outputs}, and there is data of {files}"),
            ));
        }
        for (io, expected) in outputs.iter().zip(wanted) {
            let got = session.get_output(&io.name)?;
            let tolerance = if rounding.is_some() { tolerance.rounded(&expected) } else { tolerance };
            let same = if case.meta.random {
                compare_info(&got, &expected)
            } else {
                compare(&got, &expected, tolerance)
            };
            if let Err(difference) = same {
                let why = rounding.map_or_else(String::new, |rounding| format!("; {rounding}"));
                return Ok(Some(wrong(&data, &io.name, &difference) + &why));
            }
        }
    }
    Ok(None)
}

fn fallen<'a>(nodes: impl Iterator<Item = &'a NodeReport>) -> BTreeMap<&'static str, Fallback> {
    let mut found: BTreeMap<&'static str, Fallback> = BTreeMap::new();
    for node in nodes {
        if let Some(reason) = &node.fallback {
            let of = found.entry(node.op).or_default();
            if of.nodes == 0 {
                of.reason.clone_from(reason);
            }
            of.nodes += 1;
        }
    }
    found
}

/// Nodes of all operators.
pub(super) fn count(fallbacks: &BTreeMap<&'static str, Fallback>) -> usize {
    fallbacks.values().map(|f| f.nodes).sum()
}

fn wrong(data: &Path, output: &str, difference: &Difference) -> String {
    let set = data.file_name().unwrap_or_default().to_string_lossy();
    format!("{set}: output {output:?} {difference}")
}

/// The model of a case: in its folder, or next to it under its name.
pub(crate) fn model_of(dir: &Path) -> Result<PathBuf, CliError> {
    let sibling = |extension: &str| {
        // Without the separators at its end.
        let mut path = dir.components().as_path().as_os_str().to_owned();
        path.push(extension);
        PathBuf::from(path)
    };
    let places = [dir.join("model.onnx"), sibling(".onnx"), dir.join("model.json"), sibling(".json")];
    let found = places.into_iter().find(|path| path.exists());
    found.ok_or_else(|| CliError::content(dir, "there is no model.onnx and no model.json"))
}

/// The folders of a case's data.
pub(crate) fn data_sets(dir: &Path) -> Result<Vec<PathBuf>, CliError> {
    let sets = numbered(dir, "test_data_set_")?;
    if sets.is_empty() {
        return Err(CliError::content(dir, "there is no test_data_set_0"));
    }
    Ok(sets)
}

/// The entries of a folder that begin with `prefix` and a number, in the order of the numbers.
fn numbered(dir: &Path, prefix: &str) -> Result<Vec<PathBuf>, CliError> {
    let failed = |e| CliError::file("read", dir, e);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(rest) = name.strip_prefix(prefix) else { continue };
        if let Ok(number) = rest.strip_suffix(".pb").unwrap_or(rest).parse::<u32>() {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// A tensor with its name, or the two of a sequence; `ios` are those it is one of, from number `at` on.
fn read(path: &Path, ios: &[IoInfo], at: usize) -> Result<Vec<(String, Tensor)>, CliError> {
    // An optional without a value is written as no bytes.
    if std::fs::metadata(path).is_ok_and(|m| m.len() == 0) {
        return Err(CliError::Unsupported("an optional as an input or output".to_owned()));
    }
    let Some((name, items)) = read_list_pb(&read_bytes(path)?)? else {
        return Ok(vec![read_pb_tensor(path)?]);
    };
    let [values, table] = list_names(&name);
    let io = ios.iter().find(|io| io.name == values).or_else(|| ios.get(at));
    let dtype = io.and_then(|io| io.dtype).unwrap_or(DType::F32);
    let [elements, rows] =
        sequence::pack(&items, dtype).map_err(|e| CliError::content(path, e.to_string()))?;
    Ok(vec![(values, elements), (table, rows)])
}

/// The values of the inputs in a data set, in order, with the names of the inputs: by name where all names are inputs of
/// the model, else by position.
pub(crate) fn inputs_of(ios: &[IoInfo], data: &Path) -> Result<Vec<(String, Tensor)>, CliError> {
    let mut values: Vec<(String, Tensor)> = Vec::new();
    for path in numbered(data, "input_")? {
        values.extend(read(&path, ios, values.len())?);
    }
    let mut names: Vec<&str> = values.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let named = names.len() == values.len() && names.iter().all(|n| ios.iter().any(|io| io.name == *n));
    if !named {
        for ((name, _), io) in values.iter_mut().zip(ios) {
            name.clone_from(&io.name);
        }
    }
    Ok(values)
}

/// The expected outputs in a data set, in order.
pub(crate) fn outputs_of(ios: &[IoInfo], data: &Path) -> Result<Vec<Tensor>, CliError> {
    let mut wanted = Vec::new();
    for path in numbered(data, "output_")? {
        wanted.extend(read(&path, ios, wanted.len())?.into_iter().map(|(_, value)| value));
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_in_the_folder_or_beside_it_however_that_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let case = dir.path().join("case");
        std::fs::create_dir(&case).unwrap();
        assert!(model_of(&case).is_err());
        std::fs::write(dir.path().join("case.onnx"), []).unwrap();
        for written in [case.clone(), case.join(""), case.join(".")] {
            assert_eq!(model_of(&written).unwrap(), dir.path().join("case.onnx"), "{written:?}");
        }
        std::fs::write(case.join("model.onnx"), []).unwrap();
        assert_eq!(model_of(&case.join("")).unwrap(), case.join("model.onnx"));
    }

    #[test]
    fn entries_are_taken_in_the_order_of_their_numbers() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["input_10.pb", "input_2.pb", "input_x.pb", "output_0.pb", "input_0.pb"] {
            std::fs::write(dir.path().join(name), []).unwrap();
        }
        let names: Vec<String> = numbered(dir.path(), "input_")
            .unwrap()
            .iter()
            .map(|p| p.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["input_0.pb", "input_2.pb", "input_10.pb"]);
        assert!(data_sets(dir.path()).is_err());
        assert!(numbered(&dir.path().join("none"), "a").is_err());
    }
}
