//! Files to graphs: ONNX models, and the graph JSON and `.params` of Apache TVM's graph executor.
//!
//! Every length, count and index of a file is checked before it is used; what is wrong is an error
//! that says where. Nothing allocates more than a small multiple of the file's size.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::string_slice))]

mod error;
mod pack;
mod source;
#[cfg(test)]
mod testing;

pub mod onnx;
pub mod params;
pub mod tvm;

pub use error::{LoadError, LoadErrorKind, Location};
pub use onnx::{load_onnx, load_onnx_bytes};
pub use params::{Params, load_params, read_params, save_params, write_params};
pub use tvm::{FunctionTable, TvmGraph, load_tvm, load_tvm_bytes};

use std::path::{Path, PathBuf};

use crate::graph::Graph;
use crate::ops::OpDef;
use source::Source;

/// Finds the operator of a domain and a name: [`crate::ops::find`].
type Find = fn(&str, &str) -> Option<&'static OpDef>;

/// Loads the model `path`: an ONNX file, a TVM graph JSON with the `.params` file beside it, or a folder
/// with one model in it.
///
/// What kind of file it is, its content tells; its name does not matter. Parameters of a JSON are in
/// the file of the same name that ends in `.params`, else in the only such file of the folder.
///
/// # Errors
/// [`LoadError`].
pub fn load(path: &Path) -> Result<Graph, LoadError> {
    let path = if path.is_dir() { model_in(path)? } else { path.to_owned() };
    match kind_of(&path)? {
        Kind::Onnx => load_onnx(&path),
        Kind::Json => {
            let params = params_beside(&path)?;
            load_tvm(&path, params.as_deref(), &FunctionTable::new()).map(TvmGraph::into_graph)
        }
        Kind::Params => {
            let kind = LoadErrorKind::unexpected("a model", "parameters only; load the graph's JSON");
            Err(LoadError::from(kind).in_file(&path))
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Onnx,
    Json,
    Params,
}

fn kind_of(path: &Path) -> Result<Kind, LoadError> {
    let mut source = Source::open(path)?;
    let bytes = source.len().min(64);
    let start = source.take("the file", bytes).map_err(|e| e.in_file(path))?;
    let text = start.strip_prefix(b"\xef\xbb\xbf".as_slice()).unwrap_or(&start);
    Ok(match text.iter().find(|b| !b.is_ascii_whitespace()) {
        Some(b'{') => Kind::Json,
        Some(0xb7) => Kind::Params,
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
    for extension in ["onnx", "json"] {
        if let Some(path) = only_file(dir, extension)? {
            return Ok(path);
        }
    }
    let kind = LoadErrorKind::missing("a file that ends in .onnx or .json");
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
            (b"\xb7\x9c\x04\x05", Kind::Params),
            (b"\x08\x08\x3a\x00", Kind::Onnx),
            (b"", Kind::Onnx),
        ] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(kind_of(&path).unwrap(), kind);
        }
        assert!(load(&path).unwrap_err().to_string().contains("is this an ONNX model?"));
    }

    #[test]
    fn a_folder_is_searched_and_parameters_are_found_beside_the_graph() {
        let dir = tempfile::tempdir().unwrap();
        assert!(load(dir.path()).unwrap_err().to_string().contains(".onnx or .json"));
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
        std::fs::remove_file(dir.path().join("graph.params")).unwrap();
        save_params(&dir.path().join("more.params"), [("w", &w)]).unwrap();
        assert!(load(dir.path()).unwrap_err().to_string().contains("2 of them"));
        let e = load(&dir.path().join("more.params")).unwrap_err();
        assert!(e.to_string().contains("load the graph's JSON"), "{e}");
        assert!(matches!(load(&dir.path().join("none")).unwrap_err().kind(), LoadErrorKind::Io { .. }));
    }
}
