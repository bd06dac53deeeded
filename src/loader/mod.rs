//! Files to graphs: ONNX models, GGUF files, and the graph JSON and `.params` of Apache TVM's graph executor.
//!
//! Every length, count and index of a file is checked before it is used; what is wrong is an error
//! that says where. Nothing allocates more than a small multiple of the file's size.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::string_slice))]

mod error;
mod options;
pub(crate) mod pack;
mod parallel;
mod source;
mod summary;
#[cfg(test)]
mod testing;

pub mod gguf;
pub mod onnx;
pub mod params;
pub mod tvm;

pub use error::{ErrorLocation, LoadError, LoadErrorKind};
pub use gguf::load_gguf;
pub use onnx::{load_onnx, load_onnx_bytes, load_onnx_parts};
pub use options::LoadOptions;
pub(crate) use options::UsedFiles;
pub use params::{Params, load_params, read_params, save_params, write_params};
pub use summary::{ModelSummary, OperatorCount, ParameterGroup, SummaryIo, summarize};
pub use tvm::{FunctionTable, TvmGraph, load_tvm, load_tvm_bytes};

use std::path::{Path, PathBuf};
#[cfg(feature = "generate")]
use std::{collections::BTreeSet, fs::File};

use crate::graph::Graph;
use crate::ops::OpDef;
use source::Source;

/// Finds the operator of a domain and a name: [`crate::ops::find`].
type Find = fn(&str, &str) -> Option<&'static OpDef>;

/// Loads the model `path`: an ONNX file, a GGUF file, a TVM graph JSON with the `.params` file next to it, or a folder
/// with one model in it.
///
/// What kind of file it is, its content tells; its name does not matter. Parameters of a JSON are in
/// the file of the same name that ends in `.params`, else in the only such file of the folder.
///
/// # Errors
/// [`LoadError`].
pub fn load(path: &Path) -> Result<Graph, LoadError> {
    load_with(path, &LoadOptions::default())
}

/// As [`load`], with the caller's decisions.
///
/// # Errors
/// [`LoadError`], also for [`LoadOptions::params`] next to a model that holds its own.
pub fn load_with(path: &Path, options: &LoadOptions<'_>) -> Result<Graph, LoadError> {
    match model_file(path)? {
        (path, Kind::Onnx) => {
            without_params(&path, "an ONNX model", options.params)?;
            onnx::load_onnx_with(&path, (options.progress, options.map, None))
        }
        (path, Kind::Gguf) => {
            without_params(&path, "a GGUF file", options.params)?;
            gguf::load_gguf_with(&path, (options.progress, options.map, None))
        }
        (path, Kind::Json) => load_json(&path, options),
    }
}

/// As [`load_with`], for a session whose device table has devices of the APIs `table`: the nodes of a TVM graph are
/// placed as it says. Returns the names of nodes that go on entry 0 because their device is not in the table, which
/// is an error unless `any` allows it.
///
/// # Errors
/// [`LoadError`], as [`TvmGraph::place`] too.
pub fn load_on(
    path: &Path,
    options: &LoadOptions<'_>,
    table: &[&str],
    any: bool,
) -> Result<(Graph, Vec<String>), LoadError> {
    load_noting(path, options, table, any, &UsedFiles::default())
}

/// As [`load_on`]; the files of a model that another session may have loaded are noted in `used`.
pub(crate) fn load_noting(
    path: &Path,
    options: &LoadOptions<'_>,
    table: &[&str],
    any: bool,
    used: &UsedFiles,
) -> Result<(Graph, Vec<String>), LoadError> {
    match model_file(path)? {
        (path, Kind::Onnx) => {
            without_params(&path, "an ONNX model", options.params)?;
            Ok((onnx::load_onnx_with(&path, (options.progress, options.map, Some(used)))?, Vec::new()))
        }
        (path, Kind::Gguf) => {
            without_params(&path, "a GGUF file", options.params)?;
            Ok((gguf::load_gguf_with(&path, (options.progress, options.map, Some(used)))?, Vec::new()))
        }
        (path, Kind::Json) => {
            let table: Vec<i32> = table.iter().map(|api| tvm::device_type::of_api(api)).collect();
            let mut graph = read_json(&path, options)?;
            let moved = graph.place(&table, any).map_err(|e| e.in_file(&path))?;
            Ok((graph.into_graph(), moved))
        }
    }
}

/// Files besides `path` that tensors of an ONNX model lie in, by their names in its folder; none of another
/// model.
#[cfg(feature = "generate")]
pub(crate) fn external_files(path: &Path) -> Result<BTreeSet<String>, LoadError> {
    match kind_of(path)? {
        Kind::Onnx => onnx::external::names(path),
        Kind::Gguf | Kind::Json => Ok(BTreeSet::new()),
    }
}

/// Opens one of [`external_files`]; gives its size too.
#[cfg(feature = "generate")]
pub(crate) fn open_external(path: &Path, name: &str) -> Result<(File, u64), LoadError> {
    onnx::external::open(path, name)
}

fn without_params(model: &Path, what: &str, params: Option<&Path>) -> Result<(), LoadError> {
    match params {
        None => Ok(()),
        Some(params) => {
            let found = format!("{what}, which {} cannot be added to", params.display());
            let kind = LoadErrorKind::unexpected("the graph JSON of TVM beside a file of parameters", found);
            Err(LoadError::from(kind).in_file(model))
        }
    }
}

fn load_json(path: &Path, options: &LoadOptions<'_>) -> Result<Graph, LoadError> {
    read_json(path, options).map(TvmGraph::into_graph)
}

fn read_json(path: &Path, options: &LoadOptions<'_>) -> Result<TvmGraph, LoadError> {
    let params = match options.params {
        Some(params) => Some(params.to_owned()),
        None => params_beside(path)?,
    };
    let params = match params {
        Some(params) => params::load_params_with(&params, (options.progress, options.map, None))?,
        None => Params::new(),
    };
    tvm::load_tvm_with(path, params, &FunctionTable::new())
}

/// Formats of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Onnx,
    Gguf,
    Json,
}

/// Starts of files that people take for models this library reads: where, what, and what to do about it.
const FOREIGN: &[(usize, &[u8], &str)] = &[
    (0, b"\xb7", "parameters only; load the graph's JSON"),
    (0, b"PK\x03\x04", "a ZIP archive, as PyTorch and Keras write it; export the model to ONNX"),
    (0, b"\x80\x02", "a pickle, as PyTorch writes it; export the model to ONNX"),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes it; export the model to ONNX"),
    (4, b"TFL3", "a TensorFlow Lite model; convert it to ONNX"),
    (0, b"\x7fELF", "a library or program; load the graph's JSON and its parameters"),
    (0, b"<", "XML or HTML"),
    (0, b"version https://git-lfs.github.com/spec/", "a Git LFS pointer, not a model; run `git lfs pull`"),
];

/// The model that `path` names, which may be a folder, and its format as its content tells it.
fn model_file(path: &Path) -> Result<(PathBuf, Kind), LoadError> {
    let path = if path.is_dir() { model_in(path)? } else { path.to_owned() };
    let kind = kind_of(&path)?;
    Ok((path, kind))
}

fn kind_of(path: &Path) -> Result<Kind, LoadError> {
    let mut source = Source::open(path)?;
    let bytes = source.len().min(64);
    let start = source.take("the file", bytes).map_err(|e| e.in_file(path))?;
    let is = |at: usize, magic: &[u8]| start.get(at..).is_some_and(|rest| rest.starts_with(magic));
    if let Some((.., found)) = FOREIGN.iter().find(|(at, magic, _)| is(*at, magic)) {
        let kind = LoadErrorKind::unexpected("an ONNX model, a GGUF file or the graph JSON of TVM", *found);
        return Err(LoadError::from(kind).in_file(path));
    }
    if is(0, gguf::MAGIC) {
        return Ok(Kind::Gguf);
    }
    let text = start.strip_prefix(b"\xef\xbb\xbf".as_slice()).unwrap_or(&start);
    Ok(match text.iter().find(|b| !b.is_ascii_whitespace()) {
        Some(b'{') => Kind::Json,
        _ => Kind::Onnx,
    })
}

/// The only file of folder `dir` that ends in `.extension`; an error where there are several.
fn only_file(dir: &Path, extension: &str) -> Result<Option<PathBuf>, LoadError> {
    let io = |source| LoadError::from(LoadErrorKind::Io { action: "read the folder", source }).in_file(dir);
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension)) && path.is_file() {
            found.push(path);
        }
    }
    if found.len() > 1 {
        let expected = format!("one file that ends in .{extension}");
        let kind = LoadErrorKind::unexpected(expected, format!("{} of them", found.len()));
        return Err(LoadError::from(kind).in_file(dir));
    }
    Ok(found.pop())
}

fn model_in(dir: &Path) -> Result<PathBuf, LoadError> {
    let usual = dir.join("model.onnx");
    if usual.is_file() {
        return Ok(usual);
    }
    for extension in ["onnx", "gguf", "json"] {
        if let Some(path) = only_file(dir, extension)? {
            return Ok(path);
        }
    }
    let kind = LoadErrorKind::missing("a file that ends in .onnx, .gguf or .json");
    Err(LoadError::from(kind).in_file(dir))
}

fn params_beside(json: &Path) -> Result<Option<PathBuf>, LoadError> {
    let same = json.with_extension("params");
    if same.is_file() {
        return Ok(Some(same));
    }
    match json.parent() {
        Some(dir) if dir.as_os_str().is_empty() => only_file(Path::new("."), "params"),
        Some(dir) => only_file(dir, "params"),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;

    #[test]
    fn the_content_tells_the_kind_of_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m");
        for (bytes, kind) in [
            (&b"\n {\"nodes\": []}"[..], Kind::Json),
            (b"\xef\xbb\xbf{", Kind::Json),
            (b"\x08\x08\x3a\x00", Kind::Onnx),
            (b"GGUF", Kind::Gguf),
            (b"", Kind::Onnx),
        ] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(kind_of(&path).unwrap(), kind);
        }
        assert!(load(&path).unwrap_err().to_string().contains("is this an ONNX model?"));
        for (bytes, says) in [
            (&b"\xb7\x9c\x04\x05"[..], "parameters only"),
            (b"PK\x03\x04....", "a ZIP archive"),
            (b"\x1c\0\0\0TFL3....", "TensorFlow Lite"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "run `git lfs pull`"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let e = load(&path).unwrap_err().to_string();
            assert!(
                e.contains("expected an ONNX model, a GGUF file or the graph JSON of TVM")
                    && e.contains(says),
                "{e}"
            );
        }
    }

    #[test]
    fn a_folder_is_searched_and_parameters_are_found_beside_the_graph() {
        let dir = tempfile::tempdir().unwrap();
        assert!(load(dir.path()).unwrap_err().to_string().contains(".onnx, .gguf or .json"));
        let json = r#"{"nodes":[{"op":"null","name":"x","inputs":[]},{"op":"null","name":"w","inputs":[]},
            {"op":"tvm_op","name":"r","attrs":{"func_name":"__nop"},"inputs":[[1,0]]}],
            "arg_nodes":[0,1],"heads":[[2,0,0],[0,0,0]],"node_row_ptr":[0,1,2,3],
            "attrs":{"shape":["list_shape",[[2],[2],[1,2]]],"dltype":["list_str",["float32","float32","float32"]],
            "storage_id":["list_int",[0,1,1]]}}"#;
        std::fs::write(dir.path().join("graph.json"), json).unwrap();
        assert_eq!(load(dir.path()).unwrap().inputs().len(), 2);
        let w = Tensor::new([2], &[1.0f32, 2.0]).unwrap();
        save_params(&dir.path().join("weights.params"), [("w", &w)]).unwrap();
        let graph = load(dir.path()).unwrap();
        assert_eq!((graph.inputs().len(), graph.constant_bytes()), (1, 8));
        save_params(&dir.path().join("graph.params"), [("w", &w)]).unwrap();
        assert_eq!(load(&dir.path().join("graph.json")).unwrap().inputs().len(), 1);
        let found = summarize(dir.path(), None).unwrap();
        assert_eq!((found.metadata.format, found.nodes, found.operators.len()), ("TVM graph JSON", 1, 1));
        assert_eq!((found.inputs.len(), found.outputs.len()), (1, 2));
        assert_eq!((found.parameters[0].tensors, found.parameters[0].bytes), (1, 8));
        std::fs::remove_file(dir.path().join("graph.params")).unwrap();
        let given = dir.path().join("other.bin");
        save_params(&given, [("w", &w), ("x", &w)]).unwrap();
        assert_eq!(
            load_with(dir.path(), &LoadOptions { params: Some(&given), ..LoadOptions::default() })
                .unwrap()
                .inputs()
                .len(),
            0
        );
        save_params(&dir.path().join("more.params"), [("w", &w)]).unwrap();
        assert!(load(dir.path()).unwrap_err().to_string().contains("2 of them"));
        let e = load(&dir.path().join("more.params")).unwrap_err();
        assert!(e.to_string().contains("load the graph's JSON"), "{e}");
        assert!(matches!(load(&dir.path().join("none")).unwrap_err().kind(), LoadErrorKind::Io { .. }));
    }
}
