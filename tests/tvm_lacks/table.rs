//! The table of `docs/TVM.md`.

use std::path::Path;

/// Each test that the table names, as (file, name).
fn named() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("docs/TVM.md")).unwrap();
    let spans = text.split('`').skip(1).step_by(2);
    let test = |span: &str| {
        let (file, name) = span.split_once(".rs::")?;
        Some((format!("{file}.rs"), name.to_owned()))
    };
    spans.filter_map(test).collect()
}

#[test]
fn every_test_that_the_table_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named = named();
    assert!(named.len() > 40, "the table names only {} tests", named.len());
    let mut missing = Vec::new();
    for (file, name) in named {
        let text = std::fs::read_to_string(root.join(&file)).unwrap_or_default();
        let heads = [format!("    fn {name}("), format!("\nfn {name}(")];
        let at = heads.iter().find_map(|head| text.find(head.as_str()));
        // The attribute stands right before, with those of proptest and conditions between.
        let before = at.map_or("", |at| text[..at].rsplit("\n\n").next().unwrap_or_default());
        if !before.contains("#[test]") {
            missing.push(format!("{file}::{name}"));
        }
    }
    assert!(missing.is_empty(), "docs/TVM.md names tests that are not there: {missing:#?}");
}
