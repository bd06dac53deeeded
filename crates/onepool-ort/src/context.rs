//! `EPContext` nodes: what a part was compiled from, in a model that onnxruntime writes and loads again.
//!
//! The payload is a model in ONNX's format with all constants, after a line that says so. Loading it leaves out
//! onnxruntime's own rewriting of the graph.

use std::path::{Path, PathBuf};

use onepool::Graph as Loaded;
use onepool::loader;

use crate::failure::Failure;
use crate::host::{Attribute, Graph, Node};
use crate::options::EP_NAME;

/// The operator and its domain.
pub(crate) const OPERATOR: &str = "EPContext";
pub(crate) const DOMAIN: &str = "com.microsoft";

/// What payloads begin with.
const HEAD: &[u8] = b"onepool model 1\n";

/// Whether a node is one that this provider wrote.
pub(crate) fn is_own(node: &Node<'_>) -> Result<bool, Failure> {
    if node.operator()? != OPERATOR || node.domain()? != DOMAIN {
        return Ok(false);
    }
    let own = |(name, value): &(String, Attribute<'_>)| {
        name == "source" && matches!(value, Attribute::Text(text) if text == EP_NAME.to_bytes())
    };
    Ok(node.attributes()?.iter().any(own))
}

/// The bytes for a model.
pub(crate) fn payload(model: &[u8]) -> Vec<u8> {
    [HEAD, model].concat()
}

/// The only node of `graph`, where that is one that this provider wrote: its model.
pub(crate) fn load(graph: &Graph<'_>) -> Result<Option<Loaded>, Failure> {
    let nodes = graph.nodes()?;
    let [node] = &nodes[..] else { return Ok(None) };
    if !is_own(node)? {
        return Ok(None);
    }
    let attributes = node.attributes()?;
    let find = |name: &str| attributes.iter().find(|(of, _)| of == name).map(|(_, value)| value);
    let Some(Attribute::Text(held)) = find("ep_cache_context") else {
        return Err(Failure::graph("an EPContext node without `ep_cache_context`"));
    };
    let read;
    let bytes = match find("embed_mode") {
        Some(Attribute::Int(0)) => {
            let file = beside(&graph.model_path()?, held)?;
            read = onepool::HostRegion::read_file(&file)?;
            read.as_slice()
        }
        _ => held,
    };
    let model = bytes.strip_prefix(HEAD).ok_or_else(|| {
        Failure::graph(
            "what an EPContext node holds is of another version, or damaged; write the model again",
        )
    })?;
    Ok(Some(loader::load_onnx_bytes(model, None)?))
}

/// The file that a node names, in the folder of the model.
fn beside(model: &Path, name: &[u8]) -> Result<PathBuf, Failure> {
    let name = String::from_utf8_lossy(name).into_owned();
    let plain = Path::new(&name).file_name().is_some_and(|file| file == name.as_str());
    match (plain, model.parent()) {
        (true, Some(folder)) => Ok(folder.join(name)),
        (true, None) => Err(Failure::graph("an EPContext node names a file, and the model has no folder")),
        (false, _) => Err(Failure::graph(format!(
            "an EPContext node names {name:?}; expected a file of the model's folder"
        ))),
    }
}

/// Folder and name of the file for what one node holds: next to the model that is written.
pub(crate) fn file_of(written: &Path, model: &Path, node: &str) -> Result<(PathBuf, String), Failure> {
    let named = if written.as_os_str().is_empty() { model } else { written };
    let stem = named.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let (Some(stem), Some(folder)) = (stem, named.parent()) else {
        return Err(Failure::argument(
            "set `ep.context_file_path`, or `ep.context_embed_mode` to 1: the model has no file",
        ));
    };
    let plain: String = node.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    Ok((folder.to_owned(), format!("{stem}_{plain}.onepool")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_of_the_models_folder() {
        assert_eq!(beside(Path::new("a/m.onnx"), b"w.bin").unwrap(), Path::new("a/w.bin"));
        assert_eq!(beside(Path::new("m.onnx"), b"w.bin").unwrap(), Path::new("w.bin"));
        for bad in [&b"../w.bin"[..], b"/etc/passwd", b"", b"a/b", b".."] {
            assert!(beside(Path::new("a/m.onnx"), bad).is_err());
        }
        assert!(beside(Path::new(""), b"w.bin").is_err());
        let (folder, file) = file_of(Path::new("c/x_ctx.onnx"), Path::new("a/m.onnx"), "n/1").unwrap();
        assert_eq!((folder.as_path(), file.as_str()), (Path::new("c"), "x_ctx_n_1.onepool"));
        assert!(file_of(Path::new(""), Path::new(""), "n").is_err());
        assert_eq!(payload(b"m"), b"onepool model 1\nm");
    }
}
