//! The pipeline cache on disk.

use std::fs;
use std::path::Path;

use super::*;

/// Opens a context with caches in `dir`, makes a kernel, and gives how many bytes the cache began with.
fn use_cache(dir: &Path) -> usize {
    let desc = ContextDesc { cache_dir: Some(dir.to_owned()), ..Default::default() };
    let fixture = Fixture::with(&desc, Without::default());
    fixture.kernel(id::AXPB_F32);
    fixture.context().loaded_cache_bytes()
}

fn the_file(dir: &Path) -> std::path::PathBuf {
    let files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

#[test]
fn a_cache_is_kept_and_a_bad_one_is_ignored_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let caches = dir.path().join("caches");
    assert_eq!(use_cache(&caches), 0);
    let file = the_file(&caches);
    let sound = fs::read(&file).unwrap();
    assert!(file.file_name().unwrap().to_string_lossy().starts_with("vulkan-"));
    let head = sound.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    assert_eq!(use_cache(&caches), sound.len() - head);

    for bad in [&sound[..sound.len() / 2], &[0u8; 64][..], b"", &[&sound[..16], &[0xff; 80]].concat()] {
        fs::write(&file, bad).unwrap();
        assert_eq!(use_cache(&caches), 0);
        assert_eq!(the_file(&caches), file);
        assert_eq!(fs::read(&file).unwrap().len(), sound.len());
    }
}

#[test]
fn a_folder_that_cannot_be_written_costs_the_cache_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let blocked = dir.path().join("file");
    fs::write(&blocked, "in the way").unwrap();
    assert_eq!(use_cache(&blocked), 0);
    assert_eq!(fs::read_to_string(&blocked).unwrap(), "in the way");
}
