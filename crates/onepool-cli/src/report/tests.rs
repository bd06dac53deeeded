//! Pages: what is in them, what is escaped, and what is read back.

use std::path::PathBuf;

use super::data::{Arena, Device, Node, NodeTime, Peak, Planned, Range, Segment, Tensor, Times};
use super::{Report, Way, Ways, against, page};

/// Names that a model may have.
const HOSTILE: &[&str] = &[
    "</script><img src=x onerror=alert(1)>",
    "\"' onmouseover=alert(1) x='",
    "<!--<script>",
    "{{ 7 * 7 }}{% raw %}",
    "]]>&lt;&#x3c;script&#x3e;",
    "\u{2028}\u{0}\u{202e}evil",
];

fn report(name: &str) -> Report {
    let name = name.to_owned();
    let node = NodeTime {
        name: name.clone(),
        op: name.clone(),
        nanos: 100,
        begin: 5,
        flops: 10,
        bytes: 10,
        device: 0,
    };
    let range = Range { name: name.clone(), bytes: 64, ..Range::default() };
    Report {
        arguments: vec![name.clone()],
        devices: vec![Device {
            selector: name.clone(),
            name: name.clone(),
            driver: name.clone(),
            ..Device::default()
        }],
        runs_ms: vec![1.0, 2.0],
        ways: vec![Ways {
            label: name.clone(),
            ways: vec![Way { name: name.clone(), parts: vec![(name.clone(), 1.0)] }],
            remark: name.clone(),
        }],
        plan: Some(Planned {
            nodes: vec![Node { name: name.clone(), op: name.clone(), device: 0 }],
            arenas: vec![Arena { bytes: 64, ranges: vec![range], ..Arena::default() }],
            ..Planned::default()
        }),
        profile: Some(Times {
            nodes: vec![node],
            segments: vec![Segment { end: 200, ..Segment::default() }],
            device_nanos: 100,
            host_nanos: 200,
            ..Times::default()
        }),
        tensors: vec![Tensor { name: name.clone(), info: name.clone(), bytes: 64, ..Tensor::default() }],
        peaks: vec![Peak { bytes_per_s: 1e9, flops_per_s: 1e10, source: name.clone() }],
        notes: vec![name.clone()],
        ..Report::new("run", name)
    }
}

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page.html");
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

#[test]
fn names_are_text_wherever_they_are() {
    let plain = page::render(&report("plain"), None).unwrap();
    let tags = |page: &str| page.matches('<').count();
    for name in HOSTILE {
        let hostile = report(name);
        let against = against::compare(&hostile, &report("plain"), name);
        assert!(!against.warnings.is_empty());
        let page = page::render(&hostile, None).unwrap();
        // No name makes a tag, and none ends the JSON.
        assert_eq!(tags(&page), tags(&plain), "{name}");
        // In the script that is data, quotes end nothing.
        let (before, rest) = page.split_once("id=\"onepool-report\">").unwrap();
        let (_, after) = rest.split_once("</script>").unwrap();
        for shown in [before, after] {
            assert!(!shown.contains("<img") && !shown.contains("' onmouseover"), "{name}");
        }
        let both = page::render(&hostile, Some(&against)).unwrap();
        assert!(!both.contains("<img") && both.matches("<script").count() == 2, "{name}");
        let (_dir, path) = file(&both);
        assert_eq!(page::read(&path).unwrap(), hostile, "{name}");
    }
}

#[test]
fn a_page_is_whole_and_names_no_other_address() {
    let text = page::render(&report("plain"), None).unwrap();
    for section in ["heading", "runs", "timeline", "memory", "tensors", "copies", "roofline"] {
        assert!(text.contains(&format!("<section id=\"{section}\"")), "{section}");
    }
    assert!(!text.contains("<section id=\"against\""));
    assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("url("), "{text}");
    assert!(text.contains("default-src &#x27;none&#x27;") || text.contains("default-src 'none'"));
}

#[test]
fn an_empty_report_is_a_page_too() {
    let text = page::render(&Report::new("bench transfer", "nothing"), None).unwrap();
    assert!(text.contains("<section id=\"heading\"") && !text.contains("<section id=\"timeline\""));
}

#[test]
fn what_carries_no_report_is_an_error_that_says_so() {
    let whole = page::render(&report("plain"), None).unwrap();
    let other = whole.replacen("{\"format\":1,", "{\"format\":99,", 1);
    let broken = whole.replacen("\"command\":\"run\"", "\"command\":[3]", 1);
    let cut = whole.split("\"command\"").next().unwrap();
    for (text, problem) in [
        ("<html></html>", "carries no report"),
        (cut, "carries no report"),
        (&other, "of another version"),
        (&broken, "is damaged"),
        ("<script type=\"application/json\" id=\"onepool-report\">{</script>", "is damaged"),
    ] {
        let (_dir, path) = file(text);
        let e = page::read(&path).unwrap_err().to_string();
        assert!(e.contains(problem), "{e}");
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(page::read(dir.path()).unwrap_err().to_string().contains("no report"));
    assert!(page::read(&dir.path().join("none")).is_err());
}

/// WCAG 2.2: text has a contrast of at least 4.5 to what is under it.
#[test]
fn text_can_be_read_in_both_themes() {
    let style = include_str!("page.css");
    let colours = |name: &str| -> [f64; 2] {
        let (_, rest) =
            style.split_once(&format!("--{name}: light-dark(")).unwrap_or_else(|| panic!("no {name}"));
        let (pair, _) = rest.split_once(')').unwrap();
        let luminance = |colour: &str| {
            let channel = |at: usize| {
                let v = f64::from(u8::from_str_radix(&colour.trim()[at..at + 2], 16).unwrap()) / 255.0;
                if v <= 0.04045 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
        };
        let (light, dark) = pair.split_once(',').unwrap();
        [luminance(light), luminance(dark)]
    };
    let mut pairs: Vec<(&str, &str)> =
        vec![("good", "good-back"), ("fair", "fair-back"), ("poor", "poor-back")];
    for back in ["page", "card", "stripe"] {
        pairs.extend(["ink", "soft"].map(|text| (text, back)));
    }
    for text in ["accent", "good", "poor", "peak"] {
        pairs.push((text, "card"));
    }
    pairs.push(("ink", "fair-back"));
    for back in ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "host"] {
        pairs.push(("on", back));
    }
    for (text, back) in pairs {
        let (a, b) = (colours(text), colours(back));
        for (theme, at) in [("light", 0), ("dark", 1)] {
            let contrast = (a[at].max(b[at]) + 0.05) / (a[at].min(b[at]) + 0.05);
            assert!(contrast >= 4.5, "{text} on {back}, {theme}: {contrast:.2}");
        }
    }
}
