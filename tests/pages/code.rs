//! Code that a page takes from the repository.
//!
//! `<!-- code: PATH | START -->` before a fenced block: the block is the item of the file whose first line begins with
//! START, to the bracket that closes it. `<!-- lines: PATH -->`: every line of the block is a line of the file, in
//! order; lines of `...` stand for others. `<!-- diff: PATH -->`: the lines that are added or stay follow one another in
//! the file, and none that goes is there.

use std::fs;
use std::path::Path;

use super::keep;
use super::page::Page;

#[derive(Debug)]
enum Kind {
    /// An item, by the beginning of its first line.
    Item(String),
    Lines,
    Diff,
}

/// A block that is taken from a file.
#[derive(Debug)]
pub(crate) struct Taken {
    path: String,
    kind: Kind,
    /// The lines of the page between the fences, from and to.
    from: usize,
    to: usize,
}

pub(crate) fn taken(text: &str) -> Vec<Taken> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(marker) = line.trim().strip_prefix("<!-- ").and_then(|m| m.strip_suffix(" -->")) else {
            continue;
        };
        let (path, kind) = match marker.split_once(": ") {
            Some(("code", rest)) => {
                let (path, start) = rest.split_once(" | ").unwrap();
                (path, Kind::Item(start.to_owned()))
            }
            Some(("lines", path)) => (path, Kind::Lines),
            Some(("diff", path)) => (path, Kind::Diff),
            _ => continue,
        };
        assert!(
            lines.get(at + 1).is_some_and(|line| line.starts_with("```")),
            "{marker:?} stands before no code"
        );
        let from = at + 2;
        let to = from + lines[from..].iter().position(|line| line.starts_with("```")).unwrap();
        found.push(Taken { path: path.to_owned(), kind, from, to });
    }
    found
}

/// First lines of blocks of Rust that are not taken from a file.
pub(crate) fn loose_rust(text: &str) -> Vec<String> {
    let taken = taken(text);
    let mut loose = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.starts_with("```rust") && !taken.iter().any(|taken| taken.from == at + 1) {
            loose.push(text.lines().nth(at + 1).unwrap_or_default().to_owned());
        }
    }
    loose
}

/// What is not as the repository has it.
pub(crate) fn stale(page: &Page, root: &Path) -> Vec<String> {
    let mut lines: Vec<String> = page.text.lines().map(str::to_owned).collect();
    let mut stale = Vec::new();
    for taken in taken(&page.text).iter().rev() {
        let file = match fs::read_to_string(root.join(&taken.path)) {
            Ok(file) => file,
            Err(error) => {
                stale.push(format!("{}: {}: {error}", page.name, taken.path));
                continue;
            }
        };
        let block = taken.from..taken.to;
        let missing = match &taken.kind {
            Kind::Lines => missing_line(&file, &lines[block]),
            Kind::Diff => contradiction(&file, &lines[block]),
            Kind::Item(start) => match item(&file, start) {
                Some(item) => {
                    lines.splice(block, item);
                    None
                }
                None => Some(start.clone()),
            },
        };
        stale.extend(missing.map(|line| format!("{}: {} is not so at {line:?}", page.name, taken.path)));
    }
    if stale.is_empty() {
        stale.extend(keep(&page.name, &(lines.join("\n") + "\n")));
    }
    stale
}

/// The lines of the item whose first line begins with `start`, to the end of its brackets, moved to the left.
fn item(file: &str, start: &str) -> Option<Vec<String>> {
    let lines: Vec<&str> = file.lines().collect();
    let first = lines.iter().position(|line| line.trim_start().starts_with(start))?;
    let indent = lines[first].len() - lines[first].trim_start().len();
    let mut depth = 0i32;
    let mut found = Vec::new();
    for line in &lines[first..] {
        for c in line.chars() {
            depth += i32::from(matches!(c, '(' | '[' | '{')) - i32::from(matches!(c, ')' | ']' | '}'));
        }
        found.push(line.get(indent..).unwrap_or_default().to_owned());
        if depth <= 0 && line.ends_with(['}', ';', ',', ']', ')']) {
            break;
        }
    }
    Some(found)
}

/// The first of `wanted` that does not follow in the file what was found before it.
fn missing_line(file: &str, wanted: &[String]) -> Option<String> {
    let mut lines = file.lines();
    let wanted = wanted.iter().filter(|line| !matches!(line.trim(), "" | "..."));
    wanted.into_iter().find(|line| !lines.any(|known| known.trim() == line.trim())).cloned()
}

/// The first line of a diff that says otherwise than the file.
fn contradiction(file: &str, diff: &[String]) -> Option<String> {
    let known: Vec<&str> = file.lines().map(str::trim).collect();
    let with = |signs: &'static [char]| diff.iter().filter(move |line| line.starts_with(signs));
    let gone = with(&['-']).find(|line| known.contains(&line[1..].trim()));
    let kept: Vec<&str> = with(&[' ', '+']).map(|line| line[1..].trim()).collect();
    let is_there = !kept.is_empty() && known.windows(kept.len()).any(|lines| lines == kept);
    gone.or_else(|| if is_there { None } else { with(&['+']).next().or(diff.first()) }).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_goes_to_the_bracket_that_closes_it() {
        let file = "mod a;\n\nimpl A {\n    fn b(&self) {\n        c([1]);\n    }\n\n    fn d() {}\n}\n";
        assert_eq!(item(file, "fn b").unwrap(), ["fn b(&self) {", "    c([1]);", "}"]);
        assert_eq!(item(file, "mod a").unwrap(), ["mod a;"]);
        assert_eq!(item(file, "impl A").unwrap().len(), 7);
        assert!(item(file, "fn none").is_none());
    }

    #[test]
    fn a_diff_that_is_not_in_the_file_is_found() {
        let diff = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
        let file = "a\n  b\nc\n";
        assert_eq!(contradiction(file, &diff(" a\n+  b\n c\n-d")), None);
        assert_eq!(contradiction(file, &diff(" a\n+  x")).as_deref(), Some("+  x"));
        assert_eq!(contradiction(file, &diff("+a\n c")).as_deref(), Some("+a"));
        assert_eq!(contradiction(file, &diff(" a\n-b")).as_deref(), Some("-b"));
    }

    #[test]
    fn code_that_the_repository_does_not_have_is_found() {
        let text = "<!-- lines: Cargo.toml -->\n```toml\n[package]\n...\nname = \"another\"\n```\n";
        let page = Page::read("p", text);
        let found = stale(&page, super::super::root());
        assert_eq!(found, ["p: Cargo.toml is not so at \"name = \\\"another\\\"\""]);
        let gone = Page::read("p", "<!-- code: Cargo.toml | [none] -->\n```toml\n```\n");
        assert_eq!(stale(&gone, super::super::root()), ["p: Cargo.toml is not so at \"[none]\""]);
        assert_eq!(loose_rust("```rust\nfn a() {}\n```\n"), ["fn a() {}"]);
    }
}
