//! Lists the recorded drivers that `src/backend/sim/profile/mod.rs` includes.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

fn main() -> ExitCode {
    let (Some(root), Some(out)) = (std::env::var_os("CARGO_MANIFEST_DIR"), std::env::var_os("OUT_DIR"))
    else {
        eprintln!("CARGO_MANIFEST_DIR and OUT_DIR must be set; run this through cargo");
        return ExitCode::FAILURE;
    };
    match profiles(Path::new(&root), Path::new(&out)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{PROFILES}: {error}");
            ExitCode::FAILURE
        }
    }
}

const PROFILES: &str = "src/backend/sim/profiles";

/// Writes the table of the files in [`PROFILES`]: name and text.
fn profiles(root: &Path, out: &Path) -> io::Result<()> {
    println!("cargo::rerun-if-changed={PROFILES}");
    let mut files = fs::read_dir(root.join(PROFILES))?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<PathBuf>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort_by(|a, b| a.file_stem().cmp(&b.file_stem()));
    let mut table = String::from("static FILES: &[(&str, &str)] = &[\n");
    for file in &files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let _ = writeln!(table, "    ({name:?}, include_str!({:?})),", file.display().to_string());
    }
    table.push_str("];\n");
    fs::write(out.join("profiles.rs"), table)
}
