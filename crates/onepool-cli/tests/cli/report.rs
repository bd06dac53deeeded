//! `--report`: the page as a browser shows it, and what it is compared with.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::onnx::{Dim, Model, add, case};
use crate::{SUM, ends, f32s, fails, folder, says, text, with_add};
use onepool::DType;
use onepool::loader::onnx::write_tensor_pb;

/// A node's name that would run a script where it is no text.
const HOSTILE: &str =
    "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";

fn page(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// The report that a page carries.
fn carried(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once("id=\"onepool-report\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn a_run_writes_a_page_that_carries_what_it_shows() {
    let dir = with_add();
    let d = dir.path();
    let run = ["run", "add.onnx", "-i", "x.pb", "-d", "cpu", "--repeat", "3", "--report", "out.html"];
    says(&ends(d, 0, &run), &["report: out.html"]);
    let report = carried(&page(&d.join("out.html")));
    assert_eq!((report["command"].as_str(), report["model"].as_str()), (Some("run"), Some("add.onnx")));
    assert_eq!(report["runs_ms"].as_array().unwrap().len(), 3);
    assert_eq!(report["devices"][0]["selector"], "cpu:0");
    let node = &report["profile"]["nodes"][0];
    assert_eq!((node["op"].as_str(), node["bytes"].as_u64()), (Some("Add"), Some(24 + 12 + 24)));
    assert_eq!(report["tensors"][0]["copied"], "no");
    let peak = &report["peaks"][0];
    assert!(
        peak["bytes_per_s"].as_f64().unwrap() > 1e6 && peak["flops_per_s"].as_f64().unwrap() > 1e6,
        "{peak}"
    );
    // The page in its own place is what the next one is compared with.
    ends(d, 0, &run);
    let again = page(&d.join("out.html"));
    says(&again, &["Against the last report", "out.html, made 2", "median of the runs"]);
    // JSON is still one value.
    let json = ends(d, 0, &[&run[..], &["--json"]].concat());
    serde_json::from_str::<serde_json::Value>(&json).unwrap();
}

#[test]
fn what_is_compared_with_is_a_report() {
    let dir = with_add();
    let d = dir.path();
    let run = |more: &[&'static str]| [&["run", "add.onnx", "-i", "x.pb", "-d", "cpu"], more].concat();
    fails(d, 2, &run(&["--against", "a.html"]), &["--report"]);
    fails(d, 1, &run(&["--report", "b.html", "--against", "a.html"]), &["cannot read a.html"]);
    std::fs::write(d.join("a.html"), "<html>").unwrap();
    fails(d, 1, &run(&["--report", "b.html", "--against", "a.html"]), &["a.html: it carries no report"]);
    assert!(!d.join("b.html").exists(), "an error comes before the run");
    // Nothing but a report is written over, and that is said before the run.
    let model = std::fs::read(d.join("add.onnx")).unwrap();
    for file in ["a.html", "add.onnx", "."] {
        fails(d, 2, &run(&["--report", file]), &[file, "is no report, so it is not written over"]);
    }
    fails(d, 2, &run(&["--report", "add.onnx", "--against", "a.html"]), &["is no report"]);
    assert_eq!(std::fs::read(d.join("add.onnx")).unwrap(), model);
    std::fs::write(d.join("a.html"), "").unwrap();
    ends(d, 0, &run(&["--report", "a.html"]));
    says(&ends(d, 0, &run(&["--report", "b.html", "--against", "a.html"])), &["report: b.html"]);
    says(&page(&d.join("b.html")), &["a.html, made 2"]);
    fails(d, 1, &run(&["--report", "none/b.html"]), &["cannot write none/b.html"]);
}

#[test]
fn measurements_write_pages() {
    let dir = folder();
    let d = dir.path();
    case(d, add(), &[f32s(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])], &[f32s(&[2, 3], &SUM)]);
    ends(d, 0, &["bench", "model", ".", "--device", "cpu", "--runs", "5", "--report", "m.html"]);
    let model = carried(&page(&d.join("m.html")));
    assert_eq!(model["ways"][0]["ways"][0]["parts"][0][0], "copied in");
    assert!(model["profile"]["nodes"][0]["nanos"].as_u64().unwrap() > 0);
    fails(d, 2, &["bench", "model", ".", "--serve", "--report", "s.html"], &["--serve", "--report"]);
    let transfer =
        ["bench", "transfer", "--device", "cpu", "--sizes", "1,2", "--runs", "2", "--report", "t.html"];
    ends(d, 0, &transfer);
    says(
        &page(&d.join("t.html")),
        &["1.0 MiB in, 1.0 MiB out", "2.0 MiB in", "work alone", "Saved by binding"],
    );
    let boundary =
        ["bench", "boundary", "--device", "sim", "--sizes", "1", "--runs", "1", "--report", "b.html"];
    ends(d, 0, &boundary);
    says(&page(&d.join("b.html")), &["1.0 MiB at each boundary", "shared memory", "cpu:0"]);
}

/// Sizes come in the run, and a simulated device has no speed: both are said.
#[test]
fn a_page_says_what_its_figures_lack() {
    let dir = folder();
    let d = dir.path();
    Model::default()
        .input("x", DType::F32, &[Dim::Size(6)])
        .node("NonZero", &["x"], &["i"])
        .node("Abs", &["i"], &["y"])
        .output("y", DType::I64)
        .write(&d.join("m.onnx"));
    std::fs::write(d.join("x.pb"), write_tensor_pb("x", &f32s(&[6], &SUM))).unwrap();
    ends(d, 0, &["run", "m.onnx", "-i", "x.pb", "-d", "sim", "-d", "cpu", "--report", "out.html"]);
    let said = ["The run has 2 stages", "A simulated device has no speed", "Given by value"];
    says(&page(&d.join("out.html")), &said);
}

/// A browser that shows pages; `None` where there is none and none is required.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found =
        std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name))).find(|p| p.is_file());
    let required = std::env::var_os("REQUIRE_BACKENDS").is_some();
    assert!(found.is_some() || !required, "no chromium: scripts/setup installs it");
    if found.is_none() {
        eprintln!("skipped: there is no chromium to show the page");
    }
    found
}

/// What `report.js` finds on the page at `path`, which is shown in a window of `width` in the system's `theme`; a picture
/// of it is kept with cargo's other files of tests.
fn look(browser: &Path, path: &Path, width: u32, theme: &str) -> serde_json::Value {
    let dir = folder();
    let whole = page(path);
    let (_, rest) = whole.split_once("<script nonce=\"").unwrap();
    let nonce = rest.split('"').next().unwrap();
    let looking = format!("<script nonce=\"{nonce}\">{}</script></body>", include_str!("report.js"));
    let shown = dir.path().join("page.html");
    std::fs::write(&shown, whole.replacen("</body>", &looking, 1)).unwrap();
    let name = path.file_stem().unwrap().to_str().unwrap();
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("report-{name}-{width}-{theme}.png"));
    let mut command = Command::new(browser);
    // A program of root has no sandbox; the profile is one of its own.
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]);
    command.args(["--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", dir.path().join("profile").display()));
    command.arg(format!("--window-size={width},3600")).arg(format!("--screenshot={}", picture.display()));
    if theme == "dark" {
        command.arg("--force-dark-mode");
    }
    command.arg(format!("file://{}", shown.display()));
    let out = command.stdin(Stdio::null()).output().unwrap();
    let (dom, errors) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{errors}");
    let said: Vec<&str> = errors.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert_eq!(said, [""; 0], "{name}, {width}, {theme}");
    assert!(dom.contains(&format!("<title>{}", title(&whole))), "a script of a name has run");
    let (_, found) =
        dom.split_once("<pre id=\"found\" hidden=\"\">").unwrap_or_else(|| panic!("{dom}\n{errors}"));
    let found = found.split_once("</pre>").unwrap().0;
    // What the browser escapes of text.
    let found =
        found.replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\u{a0}").replace("&amp;", "&");
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    for (what, list) in
        [("outside", "labels beyond their boxes"), ("overlaps", "texts"), ("wide", "too wide")]
    {
        assert_eq!(found[what], serde_json::json!([]), "{list}: {name}, {width}, {theme}");
    }
    // One is data, one is the page's, one looks.
    assert_eq!((&found["counts"]["img"], &found["counts"]["script"]), (&0.into(), &3.into()), "{found}");
    let picture = image::open(&picture).unwrap().to_rgb8();
    let back = if theme == "dark" { [0x15, 0x18, 0x1d] } else { [0xf5, 0xf6, 0xf8] };
    assert_eq!(picture.get_pixel(3, 3).0, back, "{name}, {width}, {theme}");
    found
}

fn title(page: &str) -> &str {
    page.split_once("<title>").unwrap().1.split("</title>").next().unwrap()
}

const LIGHT: &str = "rgb(245, 246, 248)";
const DARK: &str = "rgb(21, 24, 29)";

#[test]
fn a_browser_shows_a_small_page_in_both_themes() {
    let Some(browser) = browser() else { return };
    let dir = folder();
    let d = dir.path();
    let x: &[Dim] = &[Dim::Size(16), Dim::Size(3)];
    Model::default()
        .input("x", DType::F32, x)
        .constant("c", &f32s(&[3], &[1.0, 2.0, 3.0]))
        .named(HOSTILE, "Softmax", &["x"], &["\"><b onmouseover='document.title=1'>"])
        .named("second", "Softmax", &["\"><b onmouseover='document.title=1'>"], &["z"])
        .named("third", "Add", &["z", "c"], &["y"])
        .output("y", DType::F32)
        .write(&d.join("small.onnx"));
    std::fs::write(d.join("x.pb"), write_tensor_pb("x", &f32s(&[16, 3], &[0.5; 48]))).unwrap();
    let run = [
        "run",
        "small.onnx",
        "-i",
        "x.pb",
        "-d",
        "cpu",
        "--no-fuse",
        "--repeat",
        "12",
        "--report",
        "small.html",
    ];
    ends(d, 0, &run);
    ends(d, 0, &run);
    for (width, theme, back) in [(1280, "light", LIGHT), (1280, "dark", DARK), (420, "light", LIGHT)] {
        let found = look(&browser, &d.join("small.html"), width, theme);
        assert_eq!(found["background"], back, "{theme}");
        let counts = &found["counts"];
        let count = |what: &str| counts[what].as_u64().unwrap();
        assert_eq!(
            (count(".lane"), count(".arena"), count(".run"), count(".way")),
            (3, 1, 12, 2),
            "{counts}"
        );
        assert!(count(".lane .bar") >= 5 && count(".tensor") >= 1 && count(".tile") == 6, "{counts}");
        assert_eq!((count(".roofline"), count(".roof circle")), (1, 2), "{counts}");
        let tables = &found["tables"];
        let rows = |what: &str| tables[what].as_u64().unwrap_or(0);
        assert_eq!(
            (rows("devices"), rows("nodes"), rows("tensors"), rows("operators")),
            (1, 3, 2, 2),
            "{tables}"
        );
        assert!(rows("total") >= 4 && rows("operator") == 2 && rows("largest") >= 1, "{tables}");
        assert_eq!(
            (&found["falling"], &found["rising"], &found["gone"]),
            (&true.into(), &true.into(), &true.into())
        );
        assert_eq!(found["zoom"], 16);
        assert!(found["tip"].as_str().unwrap().contains("s"), "{found}");
        // The button goes from the system's theme to light, dark, and back.
        let system = serde_json::json!(["theme: as the system", back]);
        let others = [serde_json::json!(["theme: light", LIGHT]), serde_json::json!(["theme: dark", DARK])];
        assert_eq!(found["themes"], serde_json::json!([others[0], others[1], system]), "{theme}");
    }
}

/// A chain with branches, of several hundred nodes, over two devices.
#[test]
fn a_browser_shows_several_hundred_nodes() {
    const NODES: usize = 400;
    let Some(browser) = browser() else { return };
    let dir = folder();
    let d = dir.path();
    let mut model = Model::default().input("x", DType::F32, &[Dim::Size(64), Dim::Size(64)]);
    let ops = ["Softmax", "Abs", "Sigmoid", "MatMul", "Relu", "Neg", "Exp", "Tanh", "Add", "Sqrt", "Mul"];
    let mut last = "x".to_owned();
    let mut kept = last.clone();
    for n in 0..NODES {
        let (op, out) = (ops[n % ops.len()], format!("layer{}/value_{n}", n / 20));
        let both = [last.as_str(), kept.as_str()];
        let inputs = if matches!(op, "Add" | "Mul" | "MatMul") { &both[..] } else { &both[..1] };
        model = model.named(&format!("layer{}/{op}_{n}", n / 20), op, inputs, &[&out]);
        if n % 20 == 7 {
            kept.clone_from(&out);
        }
        last = out;
    }
    model.output(&last, DType::F32).write(&d.join("large.onnx"));
    std::fs::write(d.join("x.pb"), write_tensor_pb("x", &f32s(&[64, 64], &[0.5; 4096]))).unwrap();
    let place = ["--place", "op:Softmax=cpu", "--place", "sim"];
    let run =
        ["run", "large.onnx", "-i", "x.pb", "-d", "sim", "-d", "cpu", "--no-fuse", "--report", "large.html"];
    ends(d, 0, &[&run[..], &place].concat());
    for theme in ["light", "dark"] {
        let found = look(&browser, &d.join("large.html"), 1280, theme);
        let count = |what: &str| found["counts"][what].as_u64().unwrap();
        assert!(count(".lane") >= 5 && count(".lane .bar") > 100 && count(".tensor") > 100, "{found}");
        assert!(found["tables"]["nodes"].as_u64().unwrap() >= NODES as u64, "{}", found["tables"]);
        assert_eq!(found["tables"]["operators"], ops.len(), "{}", found["tables"]);
    }
}
