//! Opens the models and devices that arguments name.

use std::path::{Path, PathBuf};

use super::error::CliError;
use super::output::Output;
use onepool::backend::{ContextDesc, DeviceInfo};
use onepool::device::Context;
use onepool::graph::{Graph, TensorInfo};
use onepool::loader::{self, LoadError, LoadOptions};
use onepool::registry::Registry;
use onepool_core::files::cache::CacheFolder;

/// Names the folder of caches where `--cache` does not.
const CACHE_VARIABLE: &str = "ONEPOOL_CACHE";

/// How devices are opened: where caches are kept, and threads.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CacheArgs {
    /// The folder that keeps what drivers compile, what imports cost and what `--place auto` measures;
    /// without it the one that ONEPOOL_CACHE names. Without both, programs are not kept, and measurements are
    /// in `onepool` in the user's cache folder. No one else may write to it.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Threads of the CPU device; 0 is one for each core.
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
}

impl CacheArgs {
    /// The folder that is asked for, which is made if it is not there.
    pub(super) fn folder(&self) -> Result<Option<PathBuf>, CliError> {
        let named = || std::env::var_os(CACHE_VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from);
        let folder = self.cache.clone().or_else(named);
        if let Some(folder) = &folder {
            CacheFolder::new(folder).check()?;
        }
        Ok(folder)
    }

    /// How contexts are opened that use it.
    pub(super) fn desc(&self) -> Result<ContextDesc, CliError> {
        Ok(ContextDesc { cache_dir: self.folder()?, threads: self.threads, ..ContextDesc::default() })
    }
}

/// Opens the device of a selector; without one the device that the environment names, else `auto`.
pub(super) fn open(selector: Option<&str>, desc: &ContextDesc) -> Result<Context, CliError> {
    let registry = Registry::with_defaults();
    Ok(match selector {
        Some(selector) => registry.open(selector, desc)?,
        None => registry.open_default(desc)?,
    })
}

/// Opens the devices of a session's table, one where none is named, and after them the CPU where no
/// native device is among them: operators without a device kernel run there.
pub(super) fn open_table(
    selectors: &[String],
    fallback: bool,
    desc: &ContextDesc,
) -> Result<Vec<Context>, CliError> {
    let mut table = Vec::new();
    for selector in selectors {
        table.push(open(Some(selector), desc)?);
    }
    if table.is_empty() {
        table.push(open(None, desc)?);
    }
    if fallback && !table.iter().any(|c| c.info().native) {
        table.push(open(Some("cpu"), desc)?);
    }
    Ok(table)
}

/// What opens a device; simulated ones go by their names, of which there is one each.
pub(super) fn selector(info: &DeviceInfo) -> String {
    match info.api {
        "sim" => format!("sim:{}", info.name),
        api => format!("{api}:{}", info.index),
    }
}

/// Loads the model `path`, with a bar over its parameters, and places the nodes of a TVM graph on devices of the APIs
/// `table`; returns the names of those whose device is not among them, which only `any` allows.
pub(super) fn load_on(
    path: &Path,
    params: Option<&Path>,
    table: &[&str],
    any: bool,
    out: &Output,
) -> Result<(Graph, Vec<String>), LoadError> {
    let bar = out.progress_bytes("loading");
    let options = LoadOptions {
        params,
        progress: Some(&|done, total| bar.bytes(done, total)),
        ..LoadOptions::default()
    };
    loader::load_on(path, &options, table, any)
}

/// Whether an input is better given by value: one as short as lists of axes or sizes may decide shapes, and is
/// copied anyway.
pub(super) fn may_decide(info: &TensorInfo) -> bool {
    info.bytes() <= if info.dtype.is_float() { 64 } else { 4096 }
}
