//! The pages that people read: their links, names of files, code, numbers and sentences.
//!
//! `ONEPOOL_WRITE_DOCS=1 cargo test --test pages` writes what is generated: code that pages take from the repository,
//! and the tables and plots of docs/BENCHMARKS.md. Without it both are compared.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod code;
mod page;
mod plots;
mod records;
mod tables;

use std::fs;
use std::path::{Path, PathBuf};

use self::page::Page;

/// Set, generated parts are written instead of compared.
const WRITE: &str = "ONEPOOL_WRITE_DOCS";

/// Pages that a program writes or that are a list of changes: their sentences are not counted.
const NOT_PROSE: &[&str] = &["CHANGELOG.md", "docs/AMD.md", "docs/DRIVERS.md", "docs/OPERATORS.md"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compares `text` with the file at `path` below the root, or writes it there.
fn keep(path: &str, text: &str) -> Vec<String> {
    let file = root().join(path);
    if std::env::var_os(WRITE).is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        return Vec::new();
    }
    if fs::read_to_string(&file).unwrap_or_default() == text {
        return Vec::new();
    }
    vec![format!("{path} is not current: {WRITE}=1 cargo test --test pages writes it")]
}

fn markdown(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            markdown(&path, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
}

fn pages() -> Vec<Page> {
    let mut files = Vec::new();
    for name in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"] {
        files.push(root().join(name));
    }
    for folder in ["benches", "docs", "shaders", "models"] {
        markdown(&root().join(folder), &mut files);
    }
    let name = |file: &PathBuf| file.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/");
    files.iter().map(|file| Page::read(&name(file), &fs::read_to_string(file).unwrap())).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let pages = pages();
    let broken: Vec<String> = pages.iter().flat_map(|page| page.broken_links(root())).collect();
    assert!(pages.len() > 20 && pages.iter().any(|page| !page.links.is_empty()), "pages were not read");
    assert_eq!(broken, [""; 0]);
}

#[test]
fn files_that_pages_name_are_there() {
    let missing: Vec<String> = pages().iter().flat_map(|page| page.missing_files(root())).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn sentences_are_short() {
    let front = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let front: Vec<&str> = front.lines().filter_map(|line| line.strip_prefix("//!")).collect();
    let mut pages = pages();
    pages.retain(|page| !NOT_PROSE.contains(&page.name.as_str()));
    pages.push(Page::read("src/lib.rs", &front.join("\n")));
    let long: Vec<String> = pages.iter().flat_map(Page::long_sentences).collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn code_on_pages_is_that_of_the_repository() {
    let stale: Vec<String> = pages().iter().flat_map(|page| code::stale(page, root())).collect();
    assert_eq!(stale, [""; 0]);
    // The two pages that say how something is added show the code of something that was added.
    for name in ["docs/adding-an-operator.md", "docs/adding-a-backend.md"] {
        let text = fs::read_to_string(root().join(name)).unwrap();
        assert!(code::taken(&text).len() >= 3, "{name} takes no code from the repository");
        assert_eq!(code::loose_rust(&text), [""; 0], "{name} has Rust that nothing compares");
    }
}

#[test]
fn the_passes_on_the_page_are_those_that_run() {
    let page = "docs/design/plan.md";
    let text = fs::read_to_string(root().join(page)).unwrap();
    let filled = tables::fill(&text, &[("passes", tables::passes())]).unwrap();
    assert_eq!(keep(page, &filled), [""; 0]);
}

#[test]
fn tables_and_plots_of_benchmarks_are_those_of_the_records() {
    let records = records::read(&root().join("benches/records"));
    let mut stale = Vec::new();
    for (name, svg) in plots::all(&records) {
        stale.extend(keep(&format!("docs/images/bench/{name}.svg"), &svg));
    }
    stale.extend(keep("docs/images/arena.svg", &plots::arena()));
    let page = "docs/BENCHMARKS.md";
    let text = fs::read_to_string(root().join(page)).unwrap();
    let filled = tables::fill(&text, &tables::all(&records)).unwrap();
    stale.extend(keep(page, &filled));
    assert_eq!(stale, [""; 0]);
}
