//! Completions and manual pages, as shells and readers of manuals take them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{ends, fails, folder, says, text};

/// Runs a program of the system on a file; `None` where it is not there and nothing requires it.
fn ran(program: &str, args: &[&str], dir: &Path) -> Option<String> {
    let mut command = Command::new(program);
    let out = match command.args(args).current_dir(dir).stdin(Stdio::null()).output() {
        Ok(out) => out,
        Err(e) => {
            let required = std::env::var_os("REQUIRE_BACKENDS").is_some();
            assert!(!required, "{program}: {e}; scripts/setup installs it");
            eprintln!("skipped: there is no {program}");
            return None;
        }
    };
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{program} {args:?}\n{stdout}\n{stderr}");
    Some(stdout + &stderr)
}

/// The commands that `--help` lists after `words`.
fn commands(words: &[&str]) -> Vec<String> {
    let dir = folder();
    let help = ends(dir.path(), 0, &[words, &["--help"]].concat());
    let Some((_, list)) = help.split_once("Commands:\n") else { return Vec::new() };
    let rows = list.lines().take_while(|line| !line.is_empty());
    let names = rows.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_command_has_a_manual_page_without_a_warning() {
    let dir = folder();
    let d = dir.path();
    ends(d, 0, &["man", "--out", "man1"]);
    let found: BTreeSet<String> = std::fs::read_dir(d.join("man1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut wanted = BTreeSet::from(["onepool.1".to_owned()]);
    for command in commands(&[]) {
        wanted.extend(commands(&[&command]).iter().map(|inner| format!("onepool-{command}-{inner}.1")));
        wanted.insert(format!("onepool-{command}.1"));
    }
    assert!(wanted.len() > 13 && wanted.contains("onepool-bench-model.1"), "{wanted:?}");
    assert_eq!(found, wanted);
    let page = std::fs::read_to_string(d.join("man1/onepool-run.1")).unwrap();
    says(&page, &[".TH onepool-run 1", "report", "NAME=FILE"]);
    for page in &found {
        if let Some(said) = ran("mandoc", &["-T", "lint", "-W", "error", &format!("man1/{page}")], d) {
            assert_eq!(said, "", "{page}");
        }
        if let Some(shown) = ran("mandoc", &["-T", "utf8", &format!("man1/{page}")], d) {
            let shown: String = shown.replace('\u{8}', "");
            assert!(shown.lines().count() > 15, "{page}: {shown}");
        }
    }
    // Without a folder it is the program's page.
    assert_eq!(
        ends(d, 0, &["man"]).trim_end(),
        std::fs::read_to_string(d.join("man1/onepool.1")).unwrap().trim_end()
    );
    fails(d, 1, &["man", "--out", "/dev/null/man"], &["cannot write /dev/null/man"]);
}

#[test]
fn shells_take_the_scripts() {
    let dir = folder();
    let d = dir.path();
    for (shell, name) in [("bash", "onepool"), ("zsh", "_onepool"), ("fish", "onepool.fish")] {
        let script = ends(d, 0, &["completions", shell]);
        std::fs::write(d.join(name), script).unwrap();
        ran(shell, &["-n", name], d);
    }
    // No PowerShell is at hand: the script is the right one, and no more is known.
    says(
        &ends(d, 0, &["completions", "powershell"]),
        &["Register-ArgumentCompleter -Native -CommandName 'onepool'"],
    );
    fails(d, 2, &["completions", "cmd"], &["invalid value 'cmd'", "bash", "powershell"]);
}

/// What a shell offers after `words`.
fn offered(dir: &Path, words: &[&str]) -> BTreeSet<String> {
    let line = words.iter().map(|w| format!("'{w}'")).collect::<Vec<_>>().join(" ");
    let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
    let script = format!(
        "source ./onepool; COMP_WORDS=({line}); COMP_CWORD={}; _onepool onepool '{last}' '{before}'; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.len() - 1
    );
    let said = ran("bash", &["--norc", "-c", &script], dir).unwrap();
    said.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    let dir = folder();
    let d = dir.path();
    std::fs::write(d.join("onepool"), ends(d, 0, &["completions", "bash"])).unwrap();
    let all = offered(d, &["onepool", ""]);
    assert!(commands(&[]).iter().all(|command| all.contains(command)), "{all:?}");
    assert_eq!(offered(d, &["onepool", "insp"]), BTreeSet::from(["inspect".to_owned()]));
    let report = offered(d, &["onepool", "bench", "model", "--rep"]);
    assert_eq!(report, BTreeSet::from(["--report".to_owned()]));
}
