//! Programs in the process and on disk.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use super::super::device::Device;
use super::super::program::{ProgramText, Programs};
use super::*;

/// A text that no other test compiles, so that it is not in the process yet.
fn unique(number: u32) -> &'static str {
    Box::leak(format!("// {number} of {}\n{OWN}", std::process::id()).into_boxed_str())
}

fn build(dir: &Path, text: &'static str) {
    let desc = ContextDesc { cache_dir: Some(dir.to_owned()), ..Default::default() };
    let fixture = Fixture::with(&desc);
    // As in a new process.
    fixture.context.tables.device.shared.programs.forget();
    let kernel = fixture.create(&own_source(text), &[]).unwrap();
    let x = fixture.upload(&[1.0f32; 100]);
    let y = fixture.buffer(400, Placement::Shared);
    let run = recording(vec![axpb(kernel, fixture.all(x), fixture.all(y), 100, 2.0, 1.0)]);
    fixture.run(&fixture.queue(), &run);
    assert_eq!(fixture.download::<f32>(y), [3.0; 100]);
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.iter().all(|f| f.file_name().unwrap().to_string_lossy().starts_with("opencl-")));
    files
}

#[test]
fn a_program_is_kept_and_a_bad_one_is_ignored_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let text = unique(1);
    build(dir.path(), text);
    let kept = files(dir.path());
    let [file] = &kept[..] else { panic!("{kept:?}") };
    let sound = fs::read(file).unwrap();
    let written = fs::metadata(file).unwrap().modified().unwrap();
    build(dir.path(), text);
    assert_eq!(fs::metadata(file).unwrap().modified().unwrap(), written);
    for bad in [&sound[..sound.len() / 2], &[0u8; 64][..], b""] {
        fs::write(file, bad).unwrap();
        build(dir.path(), text);
        assert_eq!(files(dir.path()), kept);
        assert!(fs::read(file).unwrap().len() > sound.len() / 2);
    }
}

#[test]
fn a_binary_that_the_driver_refuses_is_built_from_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let text = unique(2);
    let uuid = OpenClDriver.devices().unwrap()[0].uuid.clone();
    let cache = super::super::cache::BinaryCache::new(dir.path(), &uuid);
    let key = format!("{}\0{text}", onepool_spirv::opencl_c::BUILD_OPTIONS);
    cache.save(&key, b"no program of any driver");
    build(dir.path(), text);
    assert!(cache.load(&key).unwrap().len() > 100);
}

#[test]
fn contexts_of_one_process_share_programs() {
    let (one, two) = (Fixture::new(), Fixture::new());
    let [one, two] = [&one, &two].map(|fixture| &fixture.context.tables.device);
    assert!(Arc::ptr_eq(&one.shared, &two.shared));
    // Programs of its own: other tests forget the context's meanwhile.
    let programs = Programs::default();
    let options = onepool_spirv::opencl_c::BUILD_OPTIONS.to_owned();
    let text = ProgramText { source: unique(3).to_owned(), options };
    let got: Vec<_> = std::thread::scope(|scope| {
        let get = |device: &Device| {
            programs.get(&device.shared.context, device.id, None, "own", text.clone()).unwrap()
        };
        let threads = [one, two, one].map(|device| scope.spawn(move || get(device)));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(got.iter().all(|program| Arc::ptr_eq(program, &got[0])));
    assert_eq!(programs.len(), 1);
    let other = ProgramText { options: format!("{} -DSPEC_0=1", text.options), ..text };
    assert!(!Arc::ptr_eq(&programs.get(&one.shared.context, one.id, None, "own", other).unwrap(), &got[0]));
    assert_eq!(programs.len(), 2);
}
