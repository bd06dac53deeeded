//! The shader build of `build/`, run on sources made for each test, and what the library reads in its output.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod behaviour;
mod reflection;
#[path = "../../build/mod.rs"]
pub mod shader_build;
mod shared;
mod variants;

use std::path::{Path, PathBuf};

use shader_build::Summary;

/// A repository of shaders and the folder it is built into.
struct Project {
    root: tempfile::TempDir,
    out: tempfile::TempDir,
}

impl Project {
    /// `files` are (path under `shaders/`, text); the shipped `shaders/include/` is there too.
    fn new(files: &[(&str, &str)]) -> Self {
        let project = Self { root: tempfile::tempdir().unwrap(), out: tempfile::tempdir().unwrap() };
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders/include");
        for entry in std::fs::read_dir(include).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            project.write(&format!("include/{name}"), &std::fs::read_to_string(&path).unwrap());
        }
        for (path, text) in files {
            project.write(path, text);
        }
        project
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.path().join("shaders").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn build(&self) -> Result<Summary, String> {
        shader_build::run(self.root.path(), self.out.path())
    }

    /// The message of a build that must fail.
    fn error(&self) -> String {
        self.build().map(|summary| panic!("built {summary:?}")).unwrap_err()
    }

    fn output(&self, name: &str) -> String {
        std::fs::read_to_string(self.out.path().join(name)).unwrap()
    }

    /// The modules that would ship: (kernel, path), sorted.
    fn modules(&self) -> Vec<(String, PathBuf)> {
        let entries = std::fs::read_dir(self.out.path().join("spv")).unwrap();
        let mut modules: Vec<_> = entries
            .filter_map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                let kernel = name.split_once("-kernel-")?.0.to_owned();
                Some((kernel, path))
            })
            .collect();
        modules.sort();
        modules
    }

    /// The words of the only kernel.
    fn only_module(&self) -> Vec<u32> {
        let modules = self.modules();
        assert_eq!(modules.len(), 1);
        words(&modules[0].1)
    }
}

fn words(path: &Path) -> Vec<u32> {
    let bytes = std::fs::read(path).unwrap();
    bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
}

/// A kernel whose body is `body`, after `declarations`.
fn shader(declarations: &str, body: &str) -> String {
    format!(
        "#version 450\n#include \"spec.glsl\"\n#include \"grid.glsl\"\nlayout(local_size_x = 64) in;\n\
         {declarations}\nvoid main() {{\n{body}\n}}\n"
    )
}
