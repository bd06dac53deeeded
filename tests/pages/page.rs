//! One page: its sentences, links, headings and the files it names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Most words of one sentence.
const LONGEST: usize = 40;
/// Most words of a page's sentences on average.
const MEAN: f64 = 18.0;

/// Folders of the repository whose files pages name with the folder.
const FOLDERS: &[&str] = &[
    "benches", "build", "crates", "docs", "examples", "fuzz", "models", "scripts", "shaders", "src", "tests",
];

/// What the checks need of a page.
#[derive(Debug)]
pub(crate) struct Page {
    /// Its path below the root.
    pub name: String,
    pub text: String,
    /// Sentences outside tables, code and headings.
    pub sentences: Vec<String>,
    /// Targets of links and pictures.
    pub links: Vec<String>,
    /// Anchors of its headings.
    pub anchors: BTreeSet<String>,
    /// What stands in backticks.
    pub names: Vec<String>,
}

impl Page {
    pub(crate) fn read(name: &str, text: &str) -> Page {
        let mut page = Page {
            name: name.to_owned(),
            text: text.to_owned(),
            sentences: Vec::new(),
            links: Vec::new(),
            anchors: BTreeSet::new(),
            names: Vec::new(),
        };
        let (mut block, mut heading) = (String::new(), None);
        // How many tables and pieces of code are open.
        let mut outside = 0u32;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.to_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    page.anchors.extend(heading.take().as_deref().map(anchor));
                }
                Event::Start(Tag::Table(_) | Tag::CodeBlock(_) | Tag::HtmlBlock) => outside += 1,
                Event::End(TagEnd::Table | TagEnd::CodeBlock | TagEnd::HtmlBlock) => outside -= 1,
                Event::Text(text) => match &mut heading {
                    Some(heading) => heading.push_str(&text),
                    None if outside == 0 => block.push_str(&text),
                    None => {}
                },
                Event::Code(code) => {
                    page.names.push(code.to_string());
                    match &mut heading {
                        Some(heading) => heading.push_str(&code),
                        None if outside == 0 => block.push_str("code"),
                        None => {}
                    }
                }
                Event::SoftBreak | Event::HardBreak => block.push(' '),
                Event::Start(Tag::Paragraph | Tag::Item) | Event::End(TagEnd::Paragraph | TagEnd::Item) => {
                    page.sentences.extend(sentences(&block));
                    block.clear();
                }
                _ => {}
            }
        }
        page
    }

    /// Links to files that are not there, or to headings that their page lacks.
    pub(crate) fn broken_links(&self, root: &Path) -> Vec<String> {
        let here = Path::new(&self.name).parent().unwrap();
        let mut broken = Vec::new();
        for link in self.links.iter().filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').map_or((link.as_str(), None), |(f, h)| (f, Some(h)));
            let target = root.join(normal(&here.join(file)));
            if !file.is_empty() && !target.exists() {
                broken.push(format!("{}: {link} leads to no file", self.name));
            }
            let Some(heading) = heading else { continue };
            let has = if file.is_empty() {
                self.anchors.contains(heading)
            } else {
                let text = fs::read_to_string(target).unwrap_or_default();
                Page::read("", &text).anchors.contains(heading)
            };
            if !has {
                broken.push(format!("{}: {link} leads to no heading", self.name));
            }
        }
        broken
    }

    /// Names in backticks that look like files of the repository and are none.
    pub(crate) fn missing_files(&self, root: &Path) -> Vec<String> {
        let missing = |name: &&String| file_named(name).is_some_and(|path| !is_there(root, path));
        self.names.iter().filter(missing).map(|name| format!("{}: there is no {name}", self.name)).collect()
    }

    /// Sentences that are too long, and the page where its sentences are on average.
    pub(crate) fn long_sentences(&self) -> Vec<String> {
        let counts: Vec<usize> = self.sentences.iter().map(|sentence| words(sentence)).collect();
        let long = counts.iter().zip(&self.sentences).filter(|(count, _)| **count > LONGEST);
        let mut found: Vec<String> =
            long.map(|(count, sentence)| format!("{}: {count} words: {sentence}", self.name)).collect();
        let mean = counts.iter().sum::<usize>() as f64 / counts.len().max(1) as f64;
        if mean > MEAN {
            found.push(format!("{}: {mean:.1} words in a sentence on average", self.name));
        }
        found
    }
}

fn words(sentence: &str) -> usize {
    sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

/// A block's sentences. One ends with a word that ends in a full stop, question mark or exclamation mark, or the block.
fn sentences(block: &str) -> Vec<String> {
    let (mut found, mut open) = (Vec::new(), Vec::new());
    for word in block.split_whitespace() {
        open.push(word);
        if word.trim_end_matches([')', '"', '*', '\'']).ends_with(['.', '?', '!']) {
            found.push(open.join(" "));
            open.clear();
        }
    }
    found.push(open.join(" "));
    found.retain(|sentence| words(sentence) > 0);
    found
}

/// The anchor that forges give a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            part => path.push(part),
        }
        path
    })
}

/// The path in a name, where it is one of the repository: it begins with a folder of ours, has no pattern, and may have
/// `::item` after it.
fn file_named(name: &str) -> Option<&str> {
    let path = name.split("::").next()?;
    let first = path.split('/').next()?;
    let plain = path.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-'));
    (plain && path.contains('/') && (FOLDERS.contains(&first) || SOURCE.contains(&first))).then_some(path)
}

/// Folders of `src` that pages name without it.
const SOURCE: &[&str] = &[
    "backend", "cli", "device", "expr", "graph", "kernel", "loader", "memory", "operator", "ops", "plan",
    "session", "simd", "spirv", "tensor",
];

/// Whether `path` is there: from the root, or from the sources of a crate, which may be named before it.
fn is_there(root: &Path, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    let crates = fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    let in_sources = |folder: &Path, path: &str| {
        let src = folder.join("src");
        src.join(path).exists() || src.join(format!("{path}.rs")).exists()
    };
    let in_crate = |folder: PathBuf| {
        let name = folder.file_name().and_then(|name| name.to_str()?.strip_prefix("onepool-"));
        let inner = name.and_then(|name| path.strip_prefix(name)?.strip_prefix('/'));
        in_sources(&folder, path) || inner.is_some_and(|inner| in_sources(&folder, inner))
    };
    root.join(path).exists() || in_sources(root, path) || crates.map(|entry| entry.path()).any(in_crate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        let text = "# A heading\n[a](Cargo.toml) [b](nothing.md) [c](#a-heading) [d](#none) [e](https://none.example)\n";
        let found = Page::read("page.md", text).broken_links(root());
        assert_eq!(found, ["page.md: nothing.md leads to no file", "page.md: #none leads to no heading"]);
        let below = Page::read("docs/design/page.md", "[a](../../Cargo.toml) [b](Cargo.toml)");
        assert_eq!(below.broken_links(root()), ["docs/design/page.md: Cargo.toml leads to no file"]);
    }

    #[test]
    fn a_file_that_is_not_there_is_found() {
        let text = "`src/lib.rs` `src/none.rs` `session` `a/b` `tests/pages/page.rs::x` `memory/none` `src/<x>/y.rs`";
        let found = Page::read("page.md", text).missing_files(root());
        assert_eq!(found, ["page.md: there is no src/none.rs", "page.md: there is no memory/none"]);
    }

    #[test]
    fn long_sentences_are_found_outside_tables_and_code() {
        let long = "word ".repeat(41);
        let page = Page::read("p", &format!("{long}.\n\n| {long} |\n|---|\n\n```text\n{long}\n```\n"));
        assert_eq!(page.sentences.len(), 1);
        let found = page.long_sentences();
        assert!(found[0].starts_with("p: 41 words"), "{found:?}");
        assert_eq!(found[1], "p: 41.0 words in a sentence on average");
        let short = Page::read("p", "One two three. Four (five `six seven` eight).\n\n- nine\n- ten");
        assert_eq!(short.sentences, ["One two three.", "Four (five code eight).", "nine", "ten"]);
        assert_eq!(short.long_sentences(), [""; 0]);
    }
}
