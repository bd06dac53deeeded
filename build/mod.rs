//! The shader build: `shaders/<family>/<file>.comp` to one typed, sorted kernel table.
//!
//! `source` reads files and their variants, `compile` runs glslang, `cache` keeps what did not change,
//! `convention` holds a kernel to the rules every backend relies on, `check` lets spirv-reflect contradict
//! our own reflection, `table` writes the Rust side, `select` in it the choice of a variant by its types and
//! `shared` what shaders define for Rust.

mod cache;
mod check;
mod compile;
mod convention;
mod select;
mod shared;
mod source;
mod table;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cache::Cache;
use compile::Form;
use onepool_spirv::reflect::Reflection;
use source::Source;

/// One compiled kernel.
pub struct Kernel<'s> {
    name: String,
    source: &'s Source,
    words: Vec<u32>,
    reflection: Reflection,
}

/// The results of a build.
#[derive(Debug)]
pub struct Summary {
    /// Kernels in the table.
    pub kernels: usize,
    /// Compiler runs that the cache did not save.
    pub compiled: usize,
    /// Source files that spirv-reflect could not read, and so did not cross-check.
    pub unchecked: usize,
}

/// Builds the table of the shaders under `root/shaders` into `out`.
///
/// # Errors
/// The messages of every shader that failed, one per line, each with its file.
pub fn run(root: &Path, out: &Path) -> Result<Summary, String> {
    let functions =
        onepool_expr::glsl::include_file().map_err(|error| format!("the table of functions: {error}"))?;
    let printed = [("functions", functions), ("binary", onepool_expr::text::include_file())];
    let sources = source::collect(root, &printed)?;
    let cache = Cache::open(out)?;
    let jobs: Vec<(&Source, usize)> =
        sources.iter().flat_map(|source| (0..source.variants.len()).map(move |at| (source, at))).collect();
    let mut kernels = all_ok(parallel(&jobs, |&(source, at)| kernel(&cache, source, at)))?;
    kernels.sort_by(|a, b| a.name.cmp(&b.name));
    for pair in kernels.windows(2) {
        if let [a, b] = pair
            && a.name == b.name
        {
            return Err(format!("{} and {} both make a kernel {}", a.source.path, b.source.path, a.name));
        }
    }
    let checks = all_ok(parallel(&sources, |source| cross_check(&cache, source, &kernels)))?;
    let skipped: Vec<&String> = checks.iter().flatten().collect();
    let none = source::Files::new();
    let files = sources.first().map_or(&none, |source| &source.files);
    table::write(out, files, &kernels, &skipped)?;
    Ok(Summary { kernels: kernels.len(), compiled: cache.finish()?, unchecked: skipped.len() })
}

fn kernel<'s>(cache: &Cache, source: &'s Source, at: usize) -> Result<Kernel<'s>, String> {
    let variant = &source.variants[at];
    let words = cache.compile(source, variant, Form::Kernel)?;
    let in_kernel = |error: &dyn std::fmt::Display| format!("{}: {}: {error}", source.path, variant.kernel);
    let reflection = onepool_spirv::reflect(&words).map_err(|error| in_kernel(&error))?;
    convention::check(&reflection).map_err(|error| in_kernel(&error))?;
    Ok(Kernel { name: variant.kernel.clone(), source, words, reflection })
}

/// `Some(line)` for the list of files that spirv-reflect cannot read.
fn cross_check(cache: &Cache, source: &Source, kernels: &[Kernel<'_>]) -> Result<Option<String>, String> {
    let mut reasons = Vec::new();
    for variant in &source.variants {
        let Some(kernel) = kernels.iter().find(|kernel| kernel.name == variant.kernel) else { continue };
        if let Some(reason) = check::unreadable(&kernel.reflection) {
            reasons.push(reason);
            continue;
        }
        let words = cache.compile(source, variant, Form::Reflected)?;
        check::compare(&words, &kernel.reflection)
            .map_err(|error| format!("{}: {}: {error}", source.path, variant.kernel))?;
        return Ok(None);
    }
    reasons.sort_unstable();
    reasons.dedup();
    Ok(Some(format!("{}: {}", source.path, reasons.join(", "))))
}

/// Runs `work` over `items` on all cores; results come in the order of the items.
fn parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { break };
                    let result = work(item);
                    if let Ok(mut results) = results.lock() {
                        results.push((at, result));
                    }
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// All values, or all distinct messages.
fn all_ok<T>(results: Vec<Result<T, String>>) -> Result<Vec<T>, String> {
    let mut values = Vec::with_capacity(results.len());
    let mut messages: Vec<String> = Vec::new();
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(message) if messages.contains(&message) => {}
            Err(message) => messages.push(message),
        }
    }
    if messages.is_empty() { Ok(values) } else { Err(messages.join("\n")) }
}
