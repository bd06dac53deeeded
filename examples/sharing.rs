//! What several sessions of one model, or of its parts, hold together: parameters and intermediate tensors apart and
//! shared. Sessions of one file share its parameters by themselves, so those apart have a copy of the files each.
//!
//! `cargo run --example sharing -- vulkan 4 model.onnx` opens four sessions of one model, each from its file;
//! `cargo run --example sharing -- vulkan 1 step.onnx out.onnx` one of each of two parts that have weights in common.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::registry::Registry;
use onepool::session::{ParamStore, SharedArena};
use onepool::{HostRegion, Session};

type Error = Box<dyn std::error::Error>;

/// Bytes that sessions hold.
struct Held {
    /// On the device: allocated, and imported.
    device: u64,
    /// Of the host's memory that the parameters lie in.
    host: u64,
    /// Of the pool or pools of intermediate tensors.
    arenas: u64,
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((device, count, models)) = arguments(&args) else {
        eprintln!("usage: sharing DEVICE COUNT MODEL...");
        std::process::exit(2);
    };
    println!(
        "| parameters and pool | sessions | on the device | parameters on the host | intermediate tensors |"
    );
    println!("| --- | --- | --- | --- | --- |");
    for shared in [false, true] {
        let held = measure(device, count, models, shared)?;
        let how = if shared { "shared" } else { "apart" };
        let sessions = count * models.len();
        println!("| {how} | {sessions} | {} | {} | {} |", held.device, held.host, held.arenas);
    }
    Ok(())
}

fn arguments(args: &[String]) -> Option<(&str, usize, &[String])> {
    match args {
        [device, count, models @ ..] if !models.is_empty() => Some((device, count.parse().ok()?, models)),
        _ => None,
    }
}

fn measure(device: &str, count: usize, models: &[String], shared: bool) -> Result<Held, Error> {
    let context = Registry::with_defaults().open(device, &ContextDesc::default())?;
    let (store, arena) = (ParamStore::new(), SharedArena::new());
    let copies = std::env::temp_dir().join(format!("onepool-sharing-{}", std::process::id()));
    let mut sessions = Vec::new();
    for model in models.iter().flat_map(|model| std::iter::repeat_n(model, count)) {
        let own = copies.join(sessions.len().to_string());
        let model = if shared { PathBuf::from(model) } else { copied(Path::new(model), &own)? };
        let mut builder = Session::builder().model(model).context(context.clone());
        if shared {
            builder = builder.params(Arc::clone(&store)).shared_arena(Arc::clone(&arena));
        }
        sessions.push(builder.build()?);
    }
    if !shared {
        // The parameters are in memory.
        std::fs::remove_dir_all(&copies)?;
    }
    // Memory is had when it is bound.
    let bindings = sessions.iter().map(|s| s.bind().build()).collect::<Result<Vec<_>, _>>()?;
    let planned: u64 = bindings.iter().flat_map(|b| &b.plan().arenas).map(|arena| arena.bytes).sum();
    let arenas = if shared { arena.usage().bytes } else { planned };
    Ok(Held { device: on_device(&context), host: on_host(&sessions), arenas })
}

/// The model in a copy of its folder.
fn copied(model: &Path, to: &Path) -> std::io::Result<PathBuf> {
    std::fs::create_dir_all(to)?;
    let name = model.file_name().unwrap_or_default();
    for entry in
        std::fs::read_dir(model.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?
    {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(to.join(name))
}

fn on_device(context: &Context) -> u64 {
    let usage = context.usage();
    usage.allocated + usage.imported
}

fn on_host(sessions: &[Session]) -> u64 {
    let constants = sessions.iter().flat_map(|s| s.graph().constants());
    let mut regions: Vec<Arc<HostRegion>> = constants.filter_map(|(_, t)| Some(t.region()?.0)).collect();
    regions.sort_by_key(|region| Arc::as_ptr(region).addr());
    regions.dedup_by(|a, b| Arc::ptr_eq(a, b));
    regions.iter().map(|region| region.bytes() as u64).sum()
}
