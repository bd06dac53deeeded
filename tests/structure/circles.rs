//! Files of a crate that use one another in a circle: what one of them means cannot be said without the others.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Kind, Source, Token, tree, without_tests};
use super::{EXCEPTIONS, is_in, module_of, rust_files, text};

/// Where circles are inherent: (crate, module, reason). A circle elsewhere, or one that leaves its module, is wrong.
const INHERENT: &[(&str, &str, &str)] = &[
    ("crates/onepool-hal/", "device", "one lock, and objects that know their context by a weak pointer"),
    ("crates/onepool-spirv/", "opencl_c", "one translator, a file for each kind of instruction"),
    ("", "loader", "a node may hold a graph, an attribute a tensor; a summary is told by the format"),
    ("", "ops", "an operator in one file, its kernels in another"),
    ("", "plan", "passes, and the graph that they change"),
    ("", "session::stages", "a stage runs control flow, which runs stages"),
];

/// What the file of a module says of others.
#[derive(Default)]
struct Module {
    file: String,
    /// What a name means that the file imports.
    imports: BTreeMap<String, Vec<String>>,
    /// Lines and paths of what it uses. What it only hands on is the concern of others.
    uses: Vec<(usize, Vec<String>)>,
}

type Modules = BTreeMap<Vec<String>, Module>;

/// The modules of the crate in `dir`, without tests.
fn modules(dir: &str) -> Modules {
    let mut sources = BTreeMap::new();
    let mut tests = BTreeSet::new();
    for file in rust_files(&[&format!("{dir}src")]) {
        let (tokens, names) = without_tests(&Source::read(&text(&file)).tokens);
        let (_, mut here) = module_of(&file);
        here.retain(|name| name != "main");
        tests.extend(names.into_iter().map(|name| [&here[..], &[name]].concat()));
        sources.insert(here, (file, tokens));
    }
    sources.retain(|here, _| !(1..=here.len()).any(|n| tests.contains(&here[..n])));
    let names: BTreeSet<Vec<String>> = sources.keys().cloned().collect();
    sources
        .into_iter()
        .map(|(here, (file, tokens))| (here.clone(), read(file, &tokens, &here, &names)))
        .collect()
}

/// Reads the file of module `here`.
fn read(file: String, tokens: &[Token], here: &[String], modules: &BTreeSet<Vec<String>>) -> Module {
    let mut module = Module { file, ..Module::default() };
    let starts = |i: usize| match tokens.get(i).map(|token| &token.kind) {
        Some(Kind::Word(word)) => {
            matches!(word.as_str(), "crate" | "self" | "super")
                || modules.contains(&[here, std::slice::from_ref(word)].concat())
        }
        _ => false,
    };
    // Modules written in braces: the depth they end at.
    let (mut depth, mut inner): (usize, Vec<usize>) = (0, Vec::new());
    let mut i = 0;
    while i < tokens.len() {
        let base = [here, &vec!["{}".to_owned(); inner.len()]].concat();
        let mut found = Vec::new();
        if tokens[i].is("use") && starts(i + 1) {
            i = tree(tokens, i + 1, base, &mut found);
            let first = found.first().map_or(0, |used| used.line);
            let declared = tokens[..i].iter().rposition(|token| token.is("use")).unwrap_or(0);
            let hands_on = declared > 0 && (tokens[declared - 1].is("pub") || tokens[declared - 1].sign(')'));
            for used in found {
                if !hands_on {
                    module.uses.push((used.line.max(first) + 1, used.path.clone()));
                }
                module.imports.insert(used.name, used.path);
            }
            continue;
        }
        match tokens[i].kind {
            Kind::Sign('{') => {
                depth += 1;
                if i >= 2 && tokens[i - 2].is("mod") {
                    inner.push(depth);
                }
            }
            Kind::Sign('}') => {
                if inner.last() == Some(&depth) {
                    inner.pop();
                }
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
        // `in` is that of a visibility.
        let alone = i == 0 || tokens[i - 1].kind != Kind::Path && !tokens[i - 1].is("in");
        if alone && starts(i) && tokens.get(i + 1).is_some_and(|token| token.kind == Kind::Path) {
            i = tree(tokens, i, base, &mut found).max(i + 1);
            module.uses.extend(found.into_iter().map(|used| (used.line + 1, used.path)));
            continue;
        }
        i += 1;
    }
    module
}

/// The module that defines what `path` names.
fn home<'a>(modules: &'a Modules, path: &[String]) -> Option<&'a [String]> {
    let mut path = path.to_vec();
    // As often as a name may be handed on.
    for _ in 0..16 {
        let (at, (here, module)) =
            (0..=path.len()).rev().find_map(|n| Some((n, modules.get_key_value(&path[..n])?)))?;
        match path.get(at).and_then(|name| module.imports.get(name)) {
            Some(real) => path = [&real[..], &path[at + 1..]].concat(),
            None => return Some(here),
        }
    }
    None
}

/// Which modules each one uses, and where it does first.
fn edges(modules: &Modules) -> BTreeMap<&[String], BTreeMap<&[String], String>> {
    let mut found: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for (here, module) in modules.iter().filter(|(here, _)| !here.is_empty()) {
        for (line, path) in &module.uses {
            let there = home(modules, path).filter(|there| !there.starts_with(here) && !there.is_empty());
            let is_allowed = |(file, p, _): &(&str, &str, &str)| {
                *file == module.file && there.is_some_and(|there| is_in(p, &there.join("::")))
            };
            if let Some(there) = there.filter(|_| !EXCEPTIONS.iter().any(is_allowed)) {
                let to: &mut BTreeMap<&[String], String> = found.entry(&here[..]).or_default();
                to.entry(there).or_insert_with(|| format!("{}:{line}", module.file));
            }
        }
    }
    found
}

/// What can be reached from `start`.
fn reached<'a, V>(
    edges: &BTreeMap<&'a [String], BTreeMap<&'a [String], V>>,
    start: &[String],
) -> BTreeSet<&'a [String]> {
    let mut found = BTreeSet::new();
    let mut pending: Vec<&[String]> =
        edges.get(start).into_iter().flat_map(|to| to.keys().copied()).collect();
    while let Some(next) = pending.pop() {
        if found.insert(next) {
            pending.extend(edges.get(next).into_iter().flat_map(|to| to.keys().copied()));
        }
    }
    found
}

/// The largest sets of modules each of which uses all others, directly or through them.
fn circles<'a, V>(edges: &BTreeMap<&'a [String], BTreeMap<&'a [String], V>>) -> Vec<BTreeSet<&'a [String]>> {
    let reach: BTreeMap<_, _> = edges.keys().map(|&module| (module, reached(edges, module))).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (&module, to) in &reach {
        if to.contains(module) && !seen.contains(module) {
            let back = |other: &&&[String]| reach.get(**other).is_some_and(|back| back.contains(module));
            let circle: BTreeSet<_> = to.iter().filter(back).copied().collect();
            seen.extend(circle.iter().copied());
            found.push(circle);
        }
    }
    found
}

/// The crates of the workspace, by their folder.
fn crates() -> BTreeSet<String> {
    let roots = rust_files(&["src", "crates", "examples"]);
    let dirs =
        roots.iter().filter_map(|file| file.strip_suffix("src/lib.rs").or(file.strip_suffix("src/main.rs")));
    dirs.map(str::to_owned).collect()
}

#[test]
fn no_files_use_one_another_in_a_circle() {
    let mut wrong = Vec::new();
    let mut needed = BTreeSet::new();
    let mut count = 0;
    for dir in crates() {
        let modules = modules(&dir);
        let edges = edges(&modules);
        count += edges.values().map(BTreeMap::len).sum::<usize>();
        for circle in circles(&edges) {
            let inside = |name: &str| circle.iter().all(|module| is_in(&module.join("::"), name));
            if let Some(at) = INHERENT.iter().position(|(of, name, _)| *of == dir && inside(name)) {
                needed.insert(at);
                continue;
            }
            wrong.push(format!("{dir}: a circle of {} files", circle.len()));
            for from in &circle {
                let to = edges[from].iter().filter(|(to, _)| circle.contains(*to));
                wrong.extend(
                    to.map(|(to, place)| format!("  {place}: {} uses {}", from.join("::"), to.join("::"))),
                );
            }
        }
    }
    assert!(count > 1000, "only {count} uses between files were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let idle: Vec<_> = INHERENT.iter().enumerate().filter(|(at, _)| !needed.contains(at)).collect();
    assert!(idle.is_empty(), "there is no circle any more in {idle:?}");
}
