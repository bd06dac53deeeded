//! Compiled modules kept in `OUT_DIR` under a hash of everything that makes them: the source with its
//! includes, the macros, the target, and what compiles it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::compile::{self, Form};
use super::source::{Source, Variant};

/// The fingerprint of the compilation: this script's own part of it, and the version of the compiler.
const BUILD: [&str; 3] =
    [include_str!("compile.rs"), include_str!("source.rs"), include_str!("../Cargo.lock")];

/// The cache of one output folder.
pub(super) struct Cache {
    folder: PathBuf,
    compiled: AtomicUsize,
    used: Mutex<HashSet<String>>,
}

impl Cache {
    /// Opens or creates the cache under `out`.
    pub(super) fn open(out: &Path) -> Result<Self, String> {
        let folder = out.join("spv");
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Self { folder, compiled: AtomicUsize::new(0), used: Mutex::default() })
    }

    /// The SPIR-V of `variant`, from the cache or freshly compiled.
    pub(super) fn compile(&self, source: &Source, variant: &Variant, form: Form) -> Result<Vec<u32>, String> {
        let key = self.key(source, variant, form)?;
        let path = self.folder.join(&key);
        if let Ok(mut used) = self.used.lock() {
            used.insert(key);
        }
        if let Ok(bytes) = std::fs::read(&path)
            && bytes.len() % 4 == 0
            && !bytes.is_empty()
        {
            return Ok(bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect());
        }
        let words = compile::compile(source, variant, form)?;
        self.compiled.fetch_add(1, Ordering::Relaxed);
        write_atomic(&path, bytemuck::cast_slice(&words))?;
        Ok(words)
    }

    /// Forgets modules that were not asked for, and says how many were compiled.
    pub(super) fn finish(self) -> Result<usize, String> {
        let used = self.used.into_inner().unwrap_or_default();
        let entries = std::fs::read_dir(&self.folder);
        for entry in entries.map_err(|error| format!("{}: {error}", self.folder.display()))?.flatten() {
            if !entry.file_name().to_str().is_some_and(|name| used.contains(name)) {
                // A file that stays is only a waste of space.
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(self.compiled.into_inner())
    }

    fn key(&self, source: &Source, variant: &Variant, form: Form) -> Result<String, String> {
        let mut hash = Fnv::new();
        BUILD.iter().for_each(|text| hash.write(text));
        hash.write(&format!("{form:?} {:?}", source.target));
        hash.write(&source.path);
        hash.write(&compile::expand(source, variant, form)?);
        for (path, text) in source.includes() {
            hash.write(path);
            hash.write(text);
        }
        Ok(format!("{}-{form:?}-{:032x}.spv", variant.kernel, hash.0).to_lowercase())
    }
}

/// Writes so that a reader sees the old file or the new one, whole.
pub(super) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let partial = path.with_extension("partial");
    std::fs::write(&partial, bytes)
        .and_then(|()| std::fs::rename(&partial, path))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// FNV-1a of 128 bits, over length-prefixed strings.
struct Fnv(u128);

impl Fnv {
    const fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn write(&mut self, text: &str) {
        for &byte in text.len().to_le_bytes().iter().chain(text.as_bytes()) {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        }
    }
}
