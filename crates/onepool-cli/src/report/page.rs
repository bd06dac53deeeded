//! The page: what the template shows, and the report that a page carries.

use std::path::Path;

use minijinja::{AutoEscape, Environment};
use serde::Serialize;

use super::against::Against;
use super::data::{Copied, FORMAT, Report};
use super::memory::{self, Map};
use super::roofline::{self, Roofline};
use super::scale::percent;
use super::timeline::Timeline;
use crate::bench::measure::median;
use crate::error::CliError;
use crate::table::{bytes, count, time};

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// What is before and after the report in a page.
const CARRIED: (&str, &str) = ("<script type=\"application/json\" id=\"onepool-report\">", "</script>");

/// A larger file is no report.
const MAX_BYTES: u64 = 256 << 20;

/// What the template shows.
#[derive(Serialize)]
struct View<'a> {
    report: &'a Report,
    style: &'static str,
    script: &'static str,
    /// The report as JSON without a character that HTML knows.
    json: String,
    /// Only scripts with it run: nothing that a name could bring.
    nonce: String,
    tiles: Vec<Tile>,
    runs: Option<Runs>,
    ways: Vec<Chart>,
    /// The names of the ways' parts, by their colour.
    parts: Vec<&'a str>,
    timeline: Option<Timeline>,
    nodes: Vec<Row>,
    maps: Vec<Map>,
    tensors: Vec<Tensor>,
    crossings: Vec<Crossing>,
    copies: Option<Copies>,
    roofline: Option<Roofline>,
    chart: (f64, f64),
    against: Option<&'a Against>,
}

/// A figure at the top.
#[derive(Serialize)]
struct Tile {
    value: String,
    what: String,
}

/// The wall times of the runs.
#[derive(Serialize)]
struct Runs {
    bars: Vec<RunBar>,
    sentence: String,
}

#[derive(Serialize)]
struct RunBar {
    x: f64,
    width: f64,
    height: f64,
    title: String,
}

/// Ways of doing one thing.
#[derive(Serialize)]
struct Chart {
    label: String,
    remark: String,
    rows: Vec<Way>,
}

#[derive(Serialize)]
struct Way {
    name: String,
    sum: String,
    parts: Vec<Part>,
}

#[derive(Serialize)]
struct Part {
    x: f64,
    width: f64,
    shade: usize,
    title: String,
}

/// A row of the table of nodes.
#[derive(Serialize)]
struct Row {
    name: String,
    op: String,
    device: String,
    nanos: u64,
    time: String,
    share: f64,
    share_label: String,
    bytes: u64,
    moved: String,
    flops: u64,
    computed: String,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    info: String,
    access: String,
    bytes: u64,
    size: String,
    path: String,
    /// `good`, `fair` or `poor`.
    grade: &'static str,
    reason: String,
    fix: String,
}

#[derive(Serialize)]
struct Crossing {
    name: String,
    from: String,
    to: String,
    bytes: u64,
    size: String,
    moved: u64,
    copied: String,
    reason: String,
}

/// What each run copies, and what it would copy.
#[derive(Serialize)]
struct Copies {
    /// The path of copies, and that of imports: label, parts.
    rows: Vec<Way>,
    sentence: String,
}

/// The page of a report.
pub(super) fn render(report: &Report, against: Option<&Against>) -> Result<String, CliError> {
    let device = |d: u32| {
        report.devices.get(d as usize).map_or_else(|| format!("device {d}"), |device| device.selector.clone())
    };
    let json = serde_json::to_string(report).map_err(|e| CliError::Failed(e.to_string()))?;
    let profile = report.profile.as_ref();
    let view = View {
        report,
        style: STYLE,
        script: SCRIPT,
        // In JSON these are in strings alone.
        json: json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"),
        nonce: nonce(),
        tiles: tiles(report),
        runs: runs(&report.runs_ms),
        ways: ways(report),
        parts: parts(report),
        timeline: profile.and_then(|times| Timeline::new(times, &report.devices)),
        nodes: rows(report, &device),
        maps: report.plan.as_ref().map(|plan| memory::maps(plan, &report.devices)).unwrap_or_default(),
        tensors: tensors(report),
        crossings: crossings(report, &device),
        copies: copies(report),
        roofline: profile.and_then(|times| Roofline::new(times, &report.devices, &report.peaks)),
        chart: roofline::size(),
        against,
    };
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    let page = environment.render_named_str("page.html", TEMPLATE, &view);
    page.map_err(|e| CliError::Failed(format!("the page of the report: {e:#}")))
}

/// 128 bits that no model knows.
fn nonce() -> String {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}

/// Reads the report that the page at `path` carries.
pub(super) fn read(path: &Path) -> Result<Report, CliError> {
    let file = |e| CliError::file("read", path, e);
    let content = |problem: String| CliError::content(path, problem);
    let found = std::fs::metadata(path).map_err(file)?;
    if !found.is_file() || found.len() > MAX_BYTES {
        return Err(content(format!("it is no report: a file of at most {} is one", bytes(MAX_BYTES))));
    }
    let text = std::fs::read(path).map_err(file)?;
    let text = String::from_utf8_lossy(&text);
    let none = || content("it carries no report; give a page that --report wrote".to_owned());
    let (_, rest) = text.split_once(CARRIED.0).ok_or_else(none)?;
    let (json, _) = rest.split_once(CARRIED.1).ok_or_else(none)?;
    let format = serde_json::from_str::<serde_json::Value>(json)
        .map_err(|e| content(format!("its report is damaged: {e}")))?
        .get("format")
        .and_then(serde_json::Value::as_u64);
    if format != Some(u64::from(FORMAT)) {
        return Err(content("its report is of another version of onepool; make it again".to_owned()));
    }
    serde_json::from_str(json).map_err(|e| content(format!("its report is damaged: {e}")))
}

/// Whether a report may be written to `path`: there is none but a report, an empty file, or what is no regular file.
pub(super) fn may_be_replaced(path: &Path) -> Result<bool, CliError> {
    let file = |e| CliError::file("read", path, e);
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        Err(e) => return Err(file(e)),
    };
    if found.is_dir() || found.len() > MAX_BYTES {
        return Ok(false);
    }
    if !found.is_file() || found.len() == 0 {
        return Ok(true);
    }
    let text = std::fs::read(path).map_err(file)?;
    Ok(String::from_utf8_lossy(&text).contains(CARRIED.0))
}

fn tiles(report: &Report) -> Vec<Tile> {
    let mut tiles = Vec::new();
    let mut tile = |value: String, what: String| tiles.push(Tile { value, what });
    if !report.runs_ms.is_empty() {
        let mut runs = report.runs_ms.clone();
        let what =
            if runs.len() == 1 { "one run".to_owned() } else { format!("median of {} runs", runs.len()) };
        tile(time((median(&mut runs) * 1e6) as u64), what);
    }
    if let Some(profile) = &report.profile {
        tile(time(profile.device_nanos), "on the devices, in a profiled run".to_owned());
    }
    if let Some(plan) = &report.plan {
        let peak: u64 = plan.arenas.iter().map(|a| a.bytes).sum();
        tile(bytes(peak), "memory between nodes".to_owned());
        let of = format!("run, of {} in the graph", plan.graph_nodes);
        tile(count(plan.nodes.len(), "node"), of);
    }
    if !report.tensors.is_empty() {
        let of = |copied: Copied| report.tensors.iter().filter(move |t| t.copied == copied).map(|t| t.bytes);
        tile(bytes(of(Copied::No).sum()), "of inputs and outputs used in place".to_owned());
        let copied = of(Copied::ByCpu).chain(of(Copied::ByDevice)).sum();
        tile(bytes(copied), "of them copied in each run".to_owned());
    }
    tiles
}

/// Runs that are drawn: the last ones.
const RUNS: usize = 200;

fn runs(all: &[f64]) -> Option<Runs> {
    if all.len() < 2 {
        return None;
    }
    let drawn = all.get(all.len().saturating_sub(RUNS)..).unwrap_or(all);
    let most = drawn.iter().copied().fold(0.0, f64::max);
    let ms = |v: f64| time((v * 1e6) as u64);
    // Few runs are no wide bars.
    let columns = drawn.len().max(40) as f64;
    let bars = drawn.iter().enumerate().map(|(i, &v)| RunBar {
        x: percent(i as f64, columns),
        width: percent(1.0, columns) * 0.84,
        height: percent(v, most),
        title: format!("run {}: {}", all.len() - drawn.len() + i + 1, ms(v)),
    });
    let bars = bars.collect();
    let mut sorted = all.to_vec();
    let middle = median(&mut sorted);
    let (least, longest) = (sorted.first().copied()?, sorted.last().copied()?);
    let last = if drawn.len() < all.len() { format!(" The last {RUNS} are drawn.") } else { String::new() };
    Some(Runs {
        bars,
        sentence: format!(
            "{} runs: median {}, fastest {}, slowest {}.{last}",
            all.len(),
            ms(middle),
            ms(least),
            ms(longest)
        ),
    })
}

fn ways(report: &Report) -> Vec<Chart> {
    let charts = report.ways.iter().map(|ways| {
        let sum = |parts: &[(String, f64)]| parts.iter().map(|p| p.1).sum::<f64>();
        let most = ways.ways.iter().map(|w| sum(&w.parts)).fold(0.0, f64::max);
        let rows = ways.ways.iter().map(|way| {
            let mut at = 0.0;
            let parts = way.parts.iter().enumerate().map(|(shade, (name, ms))| {
                let x = percent(at, most);
                at += ms;
                let title = format!("{name}: {}", time((ms * 1e6) as u64));
                Part { x, width: percent(at, most) - x, shade, title }
            });
            let parts = parts.collect();
            Way { name: way.name.clone(), sum: time((sum(&way.parts) * 1e6) as u64), parts }
        });
        Chart { label: ways.label.clone(), remark: ways.remark.clone(), rows: rows.collect() }
    });
    charts.collect()
}

/// The names of the parts of the way that has most.
fn parts(report: &Report) -> Vec<&str> {
    let ways = report.ways.iter().flat_map(|ways| &ways.ways);
    let most = ways.max_by_key(|way| way.parts.len());
    most.iter().flat_map(|way| &way.parts).map(|(name, _)| name.as_str()).collect()
}

fn rows(report: &Report, device: &dyn Fn(u32) -> String) -> Vec<Row> {
    let Some(profile) = &report.profile else { return Vec::new() };
    let all: u64 = profile.nodes.iter().map(|n| n.nanos).fold(0, u64::saturating_add);
    let mut nodes: Vec<_> = profile.nodes.iter().collect();
    nodes.sort_by_key(|n| (std::cmp::Reverse(n.nanos), n.begin));
    let rows = nodes.into_iter().map(|n| {
        let share = percent(n.nanos as f64, all as f64);
        Row {
            name: n.name.clone(),
            op: n.op.clone(),
            device: device(n.device),
            nanos: n.nanos,
            time: time(n.nanos),
            share,
            share_label: format!("{share:.1} %"),
            bytes: n.bytes,
            moved: bytes(n.bytes),
            flops: n.flops,
            computed: crate::table::si(n.flops),
        }
    });
    rows.collect()
}

fn tensors(report: &Report) -> Vec<Tensor> {
    let tensors = report.tensors.iter().map(|t| Tensor {
        name: t.name.clone(),
        info: t.info.clone(),
        access: t.access.clone(),
        bytes: t.bytes,
        size: bytes(t.bytes),
        path: t.path.clone(),
        grade: match t.copied {
            Copied::No => "good",
            Copied::ByDevice => "fair",
            Copied::ByCpu => "poor",
        },
        reason: t.reason.clone(),
        fix: t.fix.clone().unwrap_or_default(),
    });
    tensors.collect()
}

fn crossings(report: &Report, device: &dyn Fn(u32) -> String) -> Vec<Crossing> {
    let crossings = report.crossings.iter().map(|c| Crossing {
        name: c.name.clone(),
        from: device(c.from),
        to: device(c.to),
        bytes: c.bytes,
        size: bytes(c.bytes),
        moved: c.copied,
        copied: bytes(c.copied),
        reason: c.reason.clone(),
    });
    crossings.collect()
}

fn copies(report: &Report) -> Option<Copies> {
    let bound: u64 = report.tensors.iter().map(|t| t.bytes).sum();
    let between: u64 = report.crossings.iter().map(|c| c.bytes).sum();
    if bound + between == 0 {
        return None;
    }
    let by = |who: Copied| report.tensors.iter().filter(|t| t.copied == who).map(|t| t.bytes).sum::<u64>();
    let (cpu, device) = (by(Copied::ByCpu), by(Copied::ByDevice));
    let crossed: u64 = report.crossings.iter().map(|c| c.copied).sum();
    let all = bound + between;
    let way = |name: &str, parts: [(&str, u64); 3]| {
        let mut at = 0;
        let parts = parts.into_iter().enumerate().map(|(shade, (what, n))| {
            let x = percent(at as f64, all as f64);
            at += n;
            Part {
                x,
                width: percent(at as f64, all as f64) - x,
                shade,
                title: format!("{what}: {}", bytes(n)),
            }
        });
        let parts = parts.filter(|part| part.width > 0.0).collect();
        Way { name: name.to_owned(), sum: bytes(at), parts }
    };
    let names = ["copied by the CPU", "copied by the device", "copied between devices"];
    let saved = all - (cpu + device + crossed);
    Some(Copies {
        rows: vec![
            way("copy path", [(names[0], bound), (names[1], 0), (names[2], between)]),
            way("import path", [(names[0], cpu), (names[1], device), (names[2], crossed)]),
        ],
        sentence: format!(
            "Each run saves {} of {} that it would copy if every input, output and tensor between devices were copied.",
            bytes(saved),
            bytes(all)
        ),
    })
}
