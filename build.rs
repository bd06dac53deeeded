//! Compiles `shaders/` to the kernel table that `src/kernel/table.rs` includes (the work is in `build/`).

use std::path::Path;
use std::process::ExitCode;

#[path = "build/mod.rs"]
pub mod shader_build;

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=shaders");
    println!("cargo::rerun-if-changed=build");
    let (Some(root), Some(out)) = (std::env::var_os("CARGO_MANIFEST_DIR"), std::env::var_os("OUT_DIR"))
    else {
        eprintln!("CARGO_MANIFEST_DIR and OUT_DIR must be set; run this through cargo");
        return ExitCode::FAILURE;
    };
    match shader_build::run(Path::new(&root), Path::new(&out)) {
        Ok(_) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
