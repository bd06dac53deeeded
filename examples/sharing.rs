//! What several sessions of one model, or of its parts, hold together: parameters and intermediate tensors apart and
//! shared.
//!
//! `cargo run --example sharing -- vulkan 4 model.onnx` opens four sessions of one model, each from its file;
//! `cargo run --example sharing -- vulkan 1 step.onnx out.onnx` one of each of two parts that have weights in common.

use std::sync::Arc;

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::registry::Registry;
use onepool::session::{ParamStore, SharedArena};
use onepool::{Error, HostRegion, Session};

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
    let mut sessions = Vec::new();
    for model in models.iter().flat_map(|model| std::iter::repeat_n(model, count)) {
        let mut builder = Session::builder().model(model).context(context.clone());
        if shared {
            builder = builder.params(Arc::clone(&store)).shared_arena(Arc::clone(&arena));
        }
        sessions.push(builder.build()?);
    }
    // Memory is had when it is bound.
    let bindings = sessions.iter().map(|s| s.bind().build()).collect::<Result<Vec<_>, _>>()?;
    let planned: u64 = bindings.iter().flat_map(|b| &b.plan().arenas).map(|arena| arena.bytes).sum();
    let arenas = if shared { arena.usage().bytes } else { planned };
    Ok(Held { device: on_device(&context), host: on_host(&sessions), arenas })
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
