//! What a GGUF file says of itself.

use std::collections::BTreeMap;
use std::path::Path;

use super::file::{GgufFile, kind_name};
use super::load_gguf;
use crate::loader::error::LoadError;
use crate::loader::summary::{ModelSummary, ParameterGroup, of_graph};

/// Reads what the file `path` says of itself; the graph's part is left out where it cannot be loaded.
pub(in crate::loader) fn summarize_gguf(path: &Path) -> Result<ModelSummary, LoadError> {
    let file = GgufFile::open(path)?;
    let mut summary = match load_gguf(path) {
        Ok(graph) => of_graph(&graph),
        Err(e) if e.is_unsupported() => ModelSummary { metadata: file.metadata(), ..ModelSummary::default() },
        Err(e) => return Err(e),
    };
    let mut parameters: BTreeMap<u32, ParameterGroup> = BTreeMap::new();
    for (_, tensor) in file.tensors() {
        let (k, rows) = tensor.rows();
        let group = parameters.entry(tensor.kind).or_default();
        group.dtype = kind_name(tensor.kind);
        group.tensors = group.tensors.saturating_add(1);
        group.elements = group.elements.saturating_add((k as u64).saturating_mul(rows as u64));
        group.bytes = group.bytes.saturating_add(tensor.bytes.unwrap_or(0));
    }
    summary.parameters = parameters.into_values().collect();
    if summary.graph.is_empty() {
        summary.graph = file.text("general.name").ok().flatten().unwrap_or_default().to_owned();
    }
    Ok(summary)
}
