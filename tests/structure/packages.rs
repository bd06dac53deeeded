//! What the packages of the crates hold, and what their manifests say alike.

use std::fs;
use std::path::{Component, PathBuf};

use super::{files, root, rust_files, text};

/// Manifests of the workspace's crates and of those that build against it, by their path.
fn manifests() -> Vec<String> {
    let mut found = vec!["Cargo.toml".to_owned()];
    let below = ["crates", "examples", "fuzz"].into_iter().flat_map(files);
    found.extend(below.filter(|file| file.ends_with("/Cargo.toml")));
    found
}

/// The value of `key` in the section `[section]` of a manifest, as it is written.
fn value<'a>(manifest: &'a str, section: &str, key: &str) -> Option<&'a str> {
    let (_, rest) = manifest.split_once(&format!("[{section}]\n"))?;
    let lines = rest.lines().take_while(|line| !line.starts_with('['));
    lines.filter_map(|line| line.split_once(" = ")).find(|(name, _)| *name == key).map(|(_, value)| value)
}

#[test]
fn one_version_of_rust_is_asked_for() {
    let workspace = text("Cargo.toml");
    let version = value(&workspace, "workspace.package", "rust-version").unwrap();
    let mut wrong = Vec::new();
    for file in manifests() {
        let manifest = text(&file);
        let own = value(&manifest, "package", "rust-version");
        let inherits = value(&manifest, "package", "rust-version.workspace") == Some("true");
        // Its toolkit needs a newer one, so it is a workspace of its own.
        if file == "examples/desktop/Cargo.toml" {
            continue;
        }
        if !inherits && own != Some(version) {
            wrong.push(format!("{file}: {own:?} in place of {version}"));
        }
    }
    let plain = version.trim_matches('"');
    for page in ["README.md", "CONTRIBUTING.md"] {
        let page_text = text(page);
        let said = page_text.split("Rust ").skip(1).filter_map(|rest| rest.split([' ', ',']).next());
        let said: Vec<&str> = said.filter(|word| word.starts_with(|c: char| c.is_ascii_digit())).collect();
        if said != [plain] {
            wrong.push(format!("{page}: Rust {said:?} in place of {plain}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every crate of the workspace has the version, edition and licence of the workspace, and a package that others build on
/// says for which system its documentation is built.
#[test]
fn manifests_of_the_workspace_agree() {
    let workspace = text("Cargo.toml");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for file in manifests().iter().filter(|file| *file == "Cargo.toml" || file.starts_with("crates/")) {
        let manifest = text(file);
        seen += 1;
        for key in ["version", "edition", "rust-version", "license"] {
            if value(&manifest, "package", &format!("{key}.workspace")) != Some("true") {
                wrong.push(format!("{file}: {key} is not the workspace's"));
            }
        }
        // One address or none.
        for key in ["repository", "homepage"] {
            let own = value(&manifest, "package", &format!("{key}.workspace")).is_some();
            let all = value(&workspace, "workspace.package", key).is_some();
            if own != all || value(&manifest, "package", key).is_some() {
                wrong.push(format!("{file}: {key} is not that of the workspace"));
            }
        }
        let is_program = manifest.contains("[[bin]]");
        let is_published = value(&manifest, "package", "publish") != Some("false");
        if is_published && !is_program && value(&manifest, "package.metadata.docs.rs", "targets").is_none() {
            wrong.push(format!("{file}: no targets for docs.rs"));
        }
    }
    assert!(seen >= 9, "only {seen} manifests were found");
    // What a crate of the workspace asks of another one is the workspace's version too.
    let version = value(&workspace, "workspace.package", "version").unwrap();
    let members = workspace.lines().filter(|line| line.starts_with("onepool") && line.contains("path = "));
    let asked: Vec<&str> = members.filter(|line| !line.contains(&format!("version = {version}"))).collect();
    assert_eq!(asked, [""; 0]);
    let lints = text("clippy.toml");
    let own = lints.lines().find_map(|line| line.strip_prefix("msrv = "));
    if own.is_some() && own != value(&workspace, "workspace.package", "rust-version") {
        wrong.push(format!("clippy.toml: msrv {own:?}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// No dependency needs a newer Rust than the workspace asks for.
#[test]
fn dependencies_build_with_the_version_of_rust_that_is_asked_for() {
    let workspace = text("Cargo.toml");
    let asked = value(&workspace, "workspace.package", "rust-version").unwrap().trim_matches('"');
    let number =
        |version: &str| -> Vec<u32> { version.split('.').map(|part| part.parse().unwrap()).collect() };
    let args = ["metadata", "--format-version", "1", "--locked", "--offline", "--all-features"];
    let out = std::process::Command::new(env!("CARGO")).args(args).current_dir(root()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "only {} packages were found", packages.len());
    let newer = packages.iter().filter_map(|package| {
        let needs = package["rust_version"].as_str()?;
        (number(needs) > number(asked))
            .then(|| format!("{} {}: Rust {needs}", package["name"], package["version"]))
    });
    let newer: Vec<String> = newer.collect();
    assert!(newer.is_empty(), "{}", newer.join("\n"));
}

#[test]
fn packages_are_described_and_have_their_license() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for file in manifests() {
        let manifest = text(&file);
        if value(&manifest, "package", "publish") == Some("false") {
            continue;
        }
        seen += 1;
        for key in ["description", "readme", "keywords", "categories", "include"] {
            if value(&manifest, "package", key).is_none() {
                wrong.push(format!("{file}: no {key}"));
            }
        }
        let folder = root().join(&file).parent().unwrap().to_path_buf();
        for name in ["README.md", "LICENSE-APACHE", "LICENSE-MIT"] {
            if !folder.join(name).is_file() {
                wrong.push(format!("{file}: no {name} in its folder"));
            }
        }
        let shared = fs::read(root().join("LICENSE-MIT")).unwrap();
        if fs::read(folder.join("LICENSE-MIT")).is_ok_and(|own| own != shared) {
            wrong.push(format!("{file}: another LICENSE-MIT"));
        }
    }
    assert!(seen >= 7, "only {seen} crates were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A package holds the folder of its crate alone.
#[test]
fn no_source_includes_a_file_of_another_crate() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for file in rust_files(&["src", "crates", "build"]) {
        // Tests are run in the repository.
        if file.contains("/tests/") {
            continue;
        }
        let dir = match file.split('/').collect::<Vec<_>>()[..] {
            ["crates", name, ..] => PathBuf::from("crates").join(name),
            _ => PathBuf::new(),
        };
        let source = text(&file);
        let starts =
            [concat!("include_", "str!(\""), concat!("include_", "bytes!(\""), concat!("#[pa", "th = \"")];
        for name in starts.iter().flat_map(|start| source.split(start).skip(1)) {
            let name = name.split('"').next().unwrap();
            let mut path = PathBuf::from(&file).parent().unwrap().to_path_buf();
            for part in PathBuf::from(name).components() {
                match part {
                    Component::ParentDir => drop(path.pop()),
                    part => path.push(part),
                }
            }
            seen += 1;
            if !path.starts_with(&dir) || !root().join(&path).is_file() || root().join(&path).is_symlink() {
                wrong.push(format!("{file}: {name}"));
            }
        }
    }
    assert!(seen > 3, "only {seen} files that are included were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
