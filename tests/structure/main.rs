//! What holds for the source tree: layers, islands of `unsafe`, the length of files, and what must not be in them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod circles;
mod packages;
mod source;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use self::source::{Kind, Source, Token, paths, tree, without_tests};

/// How high each module of a crate stands (docs/ARCHITECTURE.md); the longest match counts. Where the numbers differ, only
/// the larger one knows the other. What lies in another crate is the compiler's to keep. Crates that are not here are
/// one floor.
const LAYERS: &[(&str, &[(&str, u8)])] = &[
    (
        "crates/onepool-core/",
        &[
            ("dtype", 0),
            ("sync", 0),
            ("dlpack", 1),
            ("limits", 1),
            ("log", 1),
            ("shape", 2),
            ("files", 3),
            ("memory", 4),
            ("tensor", 5),
        ],
    ),
    (
        "crates/onepool-hal/",
        &[
            ("kernel", 0),
            ("team", 0),
            ("recording", 1),
            ("backend", 2),
            ("device", 3),
            ("backend::vulkan", 4),
            ("backend::cpu", 4),
            ("backend::sim", 4),
            ("backend::opencl", 4),
            ("registry", 5),
        ],
    ),
    (
        "",
        &[
            ("dot", 0),
            ("frame", 0),
            ("kernel", 1),
            ("operator", 2),
            ("graph", 3),
            ("ops", 4),
            ("loader", 5),
            ("plan", 6),
            ("session", 7),
            ("generate", 8),
        ],
    ),
];

/// The rooms of `src/session`, lowest first; a file uses its own room and lower ones. The longest match counts, so the
/// last row is what lies in no room.
const ROOMS: &[&str] = &[
    "session::error",
    "session::core",
    "session::bind",
    "session::run",
    "session::stages",
    "session::tuning",
    "session::placement",
    "session",
];

/// Roots of crates and modules that forbid `unsafe`: whole crates, and what is free of it in crates with islands.
const FORBIDDING: &[&str] = &[
    "crates/onepool-cli/src/main.rs",
    "crates/onepool-core/src/dtype.rs",
    "crates/onepool-core/src/files/mod.rs",
    "crates/onepool-core/src/memory/coherency/mod.rs",
    "crates/onepool-core/src/memory/import/mod.rs",
    "crates/onepool-core/src/shape.rs",
    "crates/onepool-core/src/tensor/mod.rs",
    "crates/onepool-expr/src/lib.rs",
    "crates/onepool-hal/src/backend/sim/profile/mod.rs",
    "crates/onepool-hal/src/recording.rs",
    "crates/onepool-hal/src/registry.rs",
    "crates/onepool-spirv/src/lib.rs",
    "src/frame/mod.rs",
    "src/generate/mod.rs",
    "src/graph/mod.rs",
    "src/loader/mod.rs",
    "src/plan/mod.rs",
    "src/session/bind/mod.rs",
    "src/session/core/mod.rs",
    "src/session/placement/mod.rs",
    "src/session/stages/mod.rs",
    "src/session/tuning/mod.rs",
];

/// Backends that only the registry names.
const BACKENDS: &[&str] = &["backend::vulkan", "backend::cpu", "backend::sim", "backend::opencl"];

/// Files that may use a higher layer: (file, path, reason).
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("src/operator/control.rs", "graph::Graph", "operators of control flow hold graphs"),
    ("src/operator/attr.rs", "graph::Graph", "an attribute of control flow is a graph"),
];

/// The page whose table says where `unsafe` may be: a file, or a folder that ends in a slash.
const ISLANDS: &str = "docs/SAFETY.md";

/// Unsafe functions that a trait declares; what their callers owe is said there: (name, file of the trait).
const TRAIT_FUNCTIONS: &[(&str, &str)] = &[
    ("import_host", "crates/onepool-hal/src/backend/mod.rs"),
    ("import_dma_buf", "crates/onepool-hal/src/backend/mod.rs"),
    ("import_buffer", "crates/onepool-hal/src/backend/mod.rs"),
    ("submit_between", "crates/onepool-hal/src/backend/mod.rs"),
];

const MAX_LINES: usize = 800;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files below `dir`, by their path from the repository's root, in order.
fn files(dir: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending: Vec<PathBuf> = vec![root().join(dir)];
    while let Some(folder) = pending.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !matches!(
                    name.as_str(),
                    "target" | ".git" | "data" | "corpus" | "artifacts" | "__pycache__"
                ) {
                    pending.push(path);
                }
            } else if name != ".git" {
                found.push(path.strip_prefix(root()).unwrap().to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

fn rust_files(dirs: &[&str]) -> Vec<String> {
    let all = dirs.iter().flat_map(|dir| files(dir)).filter(|f| f.ends_with(".rs"));
    // Snippets that must not compile.
    all.filter(|f| !f.starts_with("tests/ui/")).collect()
}

fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// The folder of the crate that a file is of, and its modules in it.
fn module_of(file: &str) -> (&str, Vec<String>) {
    let (dir, path) = file.split_at(file.find("src/").unwrap());
    let path = path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
    (dir, if path == "lib" { Vec::new() } else { path.split('/').map(str::to_owned).collect() })
}

/// Whether the module path `path` is `name` or lies in it.
fn is_in(path: &str, name: &str) -> bool {
    path == name || path.strip_prefix(name).is_some_and(|rest| rest.starts_with("::"))
}

/// The floor of a module of a crate; nothing for a name that the crate has of another one.
fn layer(layers: &[(&str, u8)], path: &[String]) -> Option<u8> {
    let joined = path.join("::");
    let rows = layers.iter().filter(|(name, _)| is_in(&joined, name));
    rows.max_by_key(|(name, _)| name.len()).map(|(_, layer)| *layer)
}

/// The number of the session's room that a path lies in.
fn room(path: &[String]) -> Option<usize> {
    let joined = path.join("::");
    let rows = ROOMS.iter().enumerate().filter(|(_, name)| is_in(&joined, name));
    rows.max_by_key(|(_, name)| name.len()).map(|(at, _)| at)
}

/// What the root of a crate re-exports: (name, path).
fn exports(dir: &str) -> Vec<(String, Vec<String>)> {
    let source = Source::read(&text(&format!("{dir}src/lib.rs")));
    let mut found = Vec::new();
    for (i, token) in source.tokens.iter().enumerate() {
        if token.is("use") {
            let mut paths = Vec::new();
            tree(&source.tokens, i + 1, Vec::new(), &mut paths);
            found.extend(paths.into_iter().map(|used| (used.name, used.path)));
        }
    }
    found
}

/// The files of the crate in `dir` that are no tests: (file, its module, tokens without those of tests).
fn sources(dir: &str) -> Vec<(String, Vec<String>, Vec<Token>)> {
    let mut sources = Vec::new();
    let mut test_modules: BTreeSet<String> = BTreeSet::new();
    let root = format!("{dir}src");
    for file in rust_files(&[&root]) {
        let (tokens, tests) = without_tests(&Source::read(&text(&file)).tokens);
        let (_, here) = module_of(&file);
        for name in tests {
            let mut module = here.clone();
            module.push(name);
            test_modules.insert(module.join("::"));
        }
        sources.push((file, here, tokens));
    }
    let is_test = |here: &[String]| (1..=here.len()).any(|n| test_modules.contains(&here[..n].join("::")));
    sources.retain(|(_, here, _)| !is_test(here));
    sources
}

/// Every use of a module of its own crate from a file of the crate in `dir` that is no test: (file, line, module of the file, path).
fn uses(dir: &str) -> Vec<(String, usize, Vec<String>, Vec<String>)> {
    let exports = exports(dir);
    let mut found = Vec::new();
    for (file, here, tokens) in sources(dir) {
        if here.is_empty() {
            continue;
        }
        for used in paths(&tokens, &here) {
            let exported = exports.iter().find(|(name, _)| used.path.first() == Some(name));
            let path = exported.map_or(used.path, |(_, real)| real.clone());
            if !path.first().is_some_and(|name| name.starts_with("onepool_")) {
                found.push((file.clone(), used.line + 1, here.clone(), path));
            }
        }
    }
    found
}

#[test]
fn no_file_uses_a_higher_layer() {
    let mut wrong = Vec::new();
    let mut used_exceptions = BTreeSet::new();
    let mut count = 0;
    for (dir, layers) in LAYERS {
        for (file, line, here, path) in uses(dir) {
            count += 1;
            let joined = path.join("::");
            let own = layer(layers, &here);
            let theirs = if path.is_empty() { own } else { layer(layers, &path) };
            let (Some(own), Some(theirs)) = (own, theirs) else {
                wrong.push(format!("{file}:{line}: no layer is known for {joined:?} or for the file itself"));
                continue;
            };
            if theirs > own {
                match EXCEPTIONS.iter().position(|(f, p, _)| *f == file && joined.starts_with(p)) {
                    Some(exception) => drop(used_exceptions.insert(exception)),
                    None => wrong.push(format!("{file}:{line}: L{own} uses {joined} of L{theirs}")),
                }
            }
        }
    }
    assert!(count > 500, "only {count} paths were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(used_exceptions.len(), EXCEPTIONS.len(), "an exception is no longer needed");
}

/// Passes ask operators what they compute; a new operator takes part by answering.
#[test]
fn the_planner_knows_no_operator_by_its_type() {
    let mut wrong = Vec::new();
    let mut planner = sources("");
    planner.retain(|(file, ..)| ["src/plan", "src/session"].iter().any(|dir| file.starts_with(dir)));
    assert!(planner.len() > 40, "only {} files were found", planner.len());
    for (file, _, tokens) in planner {
        let casts = tokens.iter().filter(|t| t.is("downcast_ref") || t.is("downcast") || t.is("Any"));
        wrong.extend(casts.map(|t| format!("{file}:{}", t.line + 1)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The lines that name what shares a loop among threads.
fn uses_of_threads(text: &str) -> Vec<usize> {
    let shared = ["rayon", "onepool_hal"];
    let tokens = Source::read(text).tokens;
    tokens.iter().filter(|t| shared.iter().any(|name| t.is(name))).map(|t| t.line + 1).collect()
}

/// One file decides how loops of operators are cut into tasks.
#[test]
fn only_one_file_of_the_operators_shares_loops_among_threads() {
    const LOOPS: &str = "src/ops/par.rs";
    let operators = rust_files(&["src/ops"]);
    assert!(operators.len() > 200, "only {} files were found", operators.len());
    let mut wrong = Vec::new();
    for file in operators.iter().filter(|file| *file != LOOPS) {
        wrong.extend(uses_of_threads(&text(file)).into_iter().map(|line| format!("{file}:{line}")));
    }
    assert!(wrong.is_empty(), "threads outside {LOOPS}:\n{}", wrong.join("\n"));
    assert!(!uses_of_threads(&text(LOOPS)).is_empty(), "{LOOPS} uses no team");
    let code =
        "use rayon::prelude::*;\n// rayon\nlet a = \"rayon\";\nonepool_hal::team::threads();\nuse rayon;\n";
    assert_eq!(uses_of_threads(code), [1, 4, 5]);
}

#[test]
fn no_room_of_the_session_uses_a_higher_one() {
    let mut wrong = Vec::new();
    let mut between = BTreeSet::new();
    for (file, line, here, path) in uses("") {
        let (Some(own), Some(theirs)) = (room(&here), room(&path)) else { continue };
        // The visibility `pub(in crate::session)`.
        if path == ["session"] {
            continue;
        }
        between.insert((own, theirs));
        if theirs > own {
            wrong.push(format!("{file}:{line}: {} uses {}", ROOMS[own], path.join("::")));
        }
    }
    assert!(between.len() > ROOMS.len(), "only {between:?} were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_has_no_unsafe_forbids_it() {
    for root in FORBIDDING {
        assert!(text(root).contains("#![forbid(unsafe_code)]"), "{root}");
    }
}

#[test]
fn only_the_registry_names_backends() {
    let mut wrong = Vec::new();
    let mut named = 0;
    for (dir, _) in LAYERS {
        for (file, line, here, path) in uses(dir) {
            let joined = path.join("::");
            let is_backend = |b: &&&str| joined == **b || joined.starts_with(&format!("{b}::"));
            let Some(backend) = BACKENDS.iter().find(is_backend) else { continue };
            named += 1;
            let own = here.join("::");
            if !file.ends_with("/src/registry.rs")
                && own != *backend
                && !own.starts_with(&format!("{backend}::"))
            {
                wrong.push(format!("{file}:{line}: {joined}"));
            }
        }
    }
    assert!(named > 10, "only {named} uses of backends were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The paths in the first column of the table of islands in `page`.
fn islands(page: &str) -> Vec<String> {
    let rows = page.lines().skip_while(|line| !line.starts_with("| island |")).skip(2);
    let cells = rows.map_while(|line| line.strip_prefix("| ")?.split(" |").next());
    // Every second piece is in backticks.
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned)).collect()
}

#[test]
fn unsafe_is_in_the_islands_alone_and_says_why() {
    let islands = islands(&text(ISLANDS));
    let mut wrong = Vec::new();
    for island in &islands {
        let path = root().join(island);
        if if island.ends_with('/') { !path.is_dir() } else { !path.is_file() } {
            wrong.push(format!("{ISLANDS}: there is no {island}"));
        }
    }
    assert_eq!(islands.iter().collect::<BTreeSet<_>>().len(), islands.len(), "an island has two rows");
    let mut blocks = 0;
    let mut used: BTreeSet<&String> = BTreeSet::new();
    for file in rust_files(&["src", "crates", "build", "tests", "examples", "benches", "fuzz"]) {
        let source = Source::read(&text(&file));
        for (i, token) in source.tokens.iter().enumerate().filter(|(_, t)| t.is("unsafe")) {
            let island = islands.iter().find(|island| match island.strip_suffix('/') {
                Some(_) => file.starts_with(*island),
                None => file == **island,
            });
            let place = format!("{file}:{}", token.line + 1);
            match island {
                Some(island) => drop(used.insert(island)),
                None => wrong.push(format!("{place}: unsafe outside the islands")),
            }
            blocks += 1;
            // The type of a function pointer does nothing.
            let after = |n: usize| source.tokens.get(i + n);
            let abi = usize::from(after(1).is_some_and(|t| t.is("extern")));
            if after(1 + abi).is_some_and(|t| t.is("fn")) && after(2 + abi).is_some_and(|t| t.sign('(')) {
                continue;
            }
            let of_trait = TRAIT_FUNCTIONS.iter().any(|(name, home)| {
                after(1).is_some_and(|t| t.is("fn")) && after(2).is_some_and(|t| t.is(name)) && file != *home
            });
            if !of_trait && !explained(&source, i) {
                wrong.push(format!(
                    "{place}: no `// SAFETY:` before it and no `# Safety` in its documentation"
                ));
            }
        }
    }
    assert!(blocks > 50, "only {blocks} uses of unsafe were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let idle: Vec<_> = islands.iter().filter(|i| !used.contains(i)).collect();
    assert!(idle.is_empty(), "{ISLANDS}: islands without unsafe: {idle:?}");
}

/// Whether a comment explains the `unsafe` at token `at`: in its statement, or directly above it.
fn explained(source: &Source, at: usize) -> bool {
    let tokens = &source.tokens;
    let ends = |t: &Token| matches!(t.kind, Kind::Sign(';' | '{' | '}'));
    let first = tokens[..at].iter().rposition(ends).map_or(0, |p| p + 1);
    let mut line = tokens[first].line;
    let has_code = |line: usize| tokens.binary_search_by_key(&line, |t| t.line).is_ok();
    while line > 0 && !source.comments[line - 1].is_empty() && !has_code(line - 1) {
        line -= 1;
    }
    let says = |text: &String| text.contains("SAFETY:") || text.contains("# Safety");
    source.comments[line..=tokens[at].line].iter().any(says)
}

#[test]
fn no_source_file_is_too_long() {
    let dirs =
        ["src", "crates", "build", "tests", "examples", "benches", "fuzz", "shaders", "scripts", "python"];
    let mut long = Vec::new();
    let mut seen = 0;
    for file in dirs.iter().flat_map(|dir| files(dir)) {
        if [".rs", ".comp", ".glsl", ".py"].iter().any(|end| file.ends_with(end)) {
            seen += 1;
            let lines = text(&file).lines().count();
            if lines > MAX_LINES {
                long.push(format!("{file}: {lines} lines"));
            }
        }
    }
    assert!(seen > 100, "only {seen} files were found");
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// Nothing in the tree names a folder of the machine it was made on or where its packages came from.
#[test]
fn no_machine_paths_and_no_registry_settings() {
    let forbidden = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
        concat!("sparse+", "http"),
        concat!("replace", "-with"),
        concat!("index", "-url"),
        concat!("trusted", "-host"),
        concat!("GO", "PROXY"),
    ];
    let mut wrong = Vec::new();
    let mut seen = 0;
    for file in files("") {
        let Ok(text) = fs::read_to_string(root().join(&file)) else { continue };
        seen += 1;
        for (at, line) in text.lines().enumerate() {
            let found = forbidden.iter().find(|f| line.contains(**f));
            let registry = line.contains(concat!("registry+", "http"))
                && !line.contains(concat!("registry+", "https://github.com/rust-lang/crates.io-index"));
            if found.is_some() || registry {
                wrong.push(format!("{file}:{}: {line}", at + 1));
            }
        }
    }
    assert!(seen > 200, "only {seen} files were read");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_reader_tells_code_from_comments_literals_and_tests() {
    let code = r##"
        // unsafe { } in a comment
        /* unsafe /* nested */ unsafe */
        const A: &str = "unsafe crate::cli \" crate::cli";
        const B: &str = r#"unsafe " crate::cli"#;
        const C: [char; 3] = ['"', '\'', 'x'];
        fn f<'a>(x: &'a u8) -> crate::dtype::DType { self::g::<crate::shape::Shape>() }
        use crate::{graph::{Graph, tensor as t}, kernel::*};
        #[cfg(test)]
        #[allow(unused)]
        mod tests { use crate::cli; fn f() { unsafe { } } }
        #[cfg(test)]
        mod files;
        #[cfg(any(test, feature = "testing"))]
        use super::run;
        #[cfg(any(unix, test))]
        use super::place;
        #[cfg(not(test))]
        use super::plan;
    "##;
    let (tokens, files) = without_tests(&Source::read(code).tokens);
    assert!(!tokens.iter().any(|t| t.is("unsafe")));
    assert_eq!(files, ["files"]);
    let here = ["session".to_owned(), "slot".to_owned()];
    let found: Vec<String> = paths(&tokens, &here).into_iter().map(|used| used.path.join("::")).collect();
    let expected = [
        "dtype::DType",
        "session::slot::g",
        "shape::Shape",
        "graph::Graph",
        "graph::tensor",
        "kernel",
        "session::place",
        "session::plan",
    ];
    assert_eq!(found, expected);
    let floor = |path: &[&str]| {
        layer(
            &[("backend", 1), ("backend::cpu", 3)],
            &path.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>(),
        )
    };
    assert_eq!(floor(&["backend", "cpu", "queue"]), Some(3));
    assert_eq!(floor(&["backend", "cpus"]), Some(1));
    assert_eq!(floor(&["graph"]), None);
    assert_eq!(module_of("crates/a/src/b/mod.rs"), ("crates/a/", vec!["b".to_owned()]));
    assert_eq!(module_of("src/lib.rs"), ("", vec![]));
    let of = |path: &str| room(&path.split("::").map(str::to_owned).collect::<Vec<_>>());
    assert_eq!(
        ["session::core::x", "session::cores", "plan"].map(of),
        [Some(1), Some(ROOMS.len() - 1), None]
    );
    let page = "text\n| island | what |\n|---|---|\n| `a/b.rs`, `c/` (tests) | does `x` |\n| `d.rs` | y |\n\n| `e` | |\n";
    assert_eq!(islands(page), ["a/b.rs", "c/", "d.rs"]);
    let source = Source::read("// SAFETY: yes\nlet a =\n    unsafe { b };\nlet c = unsafe { d };\n");
    let at: Vec<usize> = (0..source.tokens.len()).filter(|i| source.tokens[*i].is("unsafe")).collect();
    assert!(explained(&source, at[0]) && !explained(&source, at[1]));
}
