//! `--place`: where nodes run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::error::CliError;
use super::explain::Times;
use super::open::CacheArgs;
use super::output::Output;
use super::table::{Table, count, time};
use onepool::device::Context;
use onepool::graph::Graph;
use onepool::plan::{NodeReport, PlacementReport, PlanReport};
use onepool::session::{NodePlacement, PlacementCache, Session, SessionBuilder};

/// Arguments that place nodes.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PlaceArgs {
    /// Where nodes run: `auto` for where a run takes least time by measurements; NODE=DEVICE for a node,
    /// op:OPERATOR=DEVICE for all nodes of an operator and DEVICE for all that nothing else places, which
    /// beat `auto`. DEVICE is an entry of the device table, by its position from 0 or as `--device` names it.
    /// May be given several times.
    #[arg(long, value_name = "WHAT")]
    place: Vec<String>,
    /// The most seconds that `--place auto` measures.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    place_time: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.0..=86_400.0).contains(s));
    seconds.ok_or_else(|| format!("{text:?} is no number of seconds from 0 to 86400"))
}

/// The arguments of a device table.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TableArgs {
    /// A device: `auto`, `cpu`, `vulkan`, `vulkan:1`, `vulkan:NAME`, ...; several make a table. Without it
    /// ONEPOOL_DEVICE, then `auto`.
    #[arg(short, long)]
    pub(super) device: Vec<String>,
    #[command(flatten)]
    pub(super) place: PlaceArgs,
    #[command(flatten)]
    pub(super) cache: CacheArgs,
}

/// What `--place` asks for, with the entries of a device table.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// The cache of automatic placement, where that is asked for.
    auto: Option<(Arc<PlacementCache>, Duration)>,
    given: Vec<Place>,
}

/// One thing that is placed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Every node of this operator.
    Op(String, u32),
    /// Every node of this name.
    Node(String, u32),
    /// Every node that nothing else places.
    Rest(u32),
}

impl PlaceArgs {
    /// Whether nothing is asked for.
    pub(super) fn is_empty(&self) -> bool {
        self.place.is_empty()
    }

    /// What is asked for on the devices of `table`; `cache` is the folder that keeps measurements, where one is named.
    pub(super) fn resolve(&self, table: &[Context], cache: Option<PathBuf>) -> Result<Places, CliError> {
        let names: Vec<(&str, usize)> = table.iter().map(|c| (c.info().api, c.info().index)).collect();
        let given = self.place.iter().filter(|text| *text != "auto");
        let given = given.map(|text| place(text, &names)).collect::<Result<_, _>>()?;
        let auto = self.place.iter().any(|text| text == "auto").then(|| {
            let folder = cache.or_else(cache_folder);
            let cache = folder.map_or_else(PlacementCache::in_memory, PlacementCache::in_folder);
            (cache, Duration::from_secs_f64(self.place_time))
        });
        Ok(Places { auto, given })
    }

    /// The session of `builder` on the devices of `table`, with what is asked for.
    pub(super) fn build(
        &self,
        builder: SessionBuilder,
        table: Vec<Context>,
        cache: Option<PathBuf>,
    ) -> Result<Session, CliError> {
        let builder = self.resolve(&table, cache)?.apply(builder);
        Ok(table.into_iter().fold(builder, SessionBuilder::context).build()?)
    }
}

impl Places {
    /// Asks the builder of a session for it.
    pub(super) fn apply(&self, builder: SessionBuilder) -> SessionBuilder {
        self.apply_where(builder, &|_| true)
    }

    /// The same for one graph of many: what it does not have is passed over.
    pub(super) fn apply_known(&self, builder: SessionBuilder, graph: &Graph) -> SessionBuilder {
        self.apply_where(builder, &|place| match place {
            Place::Op(op, _) => graph.nodes().iter().any(|n| n.op.name() == op),
            Place::Node(name, _) => graph.nodes().iter().any(|n| n.name == *name),
            Place::Rest(_) => true,
        })
    }

    fn apply_where(&self, mut builder: SessionBuilder, wanted: &dyn Fn(&Place) -> bool) -> SessionBuilder {
        if let Some((cache, budget)) = &self.auto {
            builder = builder.placement(NodePlacement::Auto);
            builder = builder.placement_cache(Arc::clone(cache)).placement_budget(*budget);
        }
        self.given.iter().filter(|place| wanted(place)).fold(builder, |builder, place| match place {
            Place::Op(op, device) => builder.place_op(op, *device),
            Place::Node(node, device) => builder.place_node(node, *device),
            Place::Rest(device) => builder.place_rest(*device),
        })
    }
}

/// `conv1=0`, `op:Conv=vulkan`, `cpu`; `node:op:x=1` for a node whose name begins as an operator is told.
fn place(text: &str, table: &[(&str, usize)]) -> Result<Place, CliError> {
    let bad = || {
        CliError::usage(format!(
            "--place {text:?}: expected `auto`, DEVICE, NODE=DEVICE or op:OPERATOR=DEVICE, where DEVICE is an entry of the \
             device table: {}",
            described(table)
        ))
    };
    let Some((what, device)) = text.rsplit_once('=') else {
        let known = entry(text, text.trim(), table);
        return known
            .map(Place::Rest)
            .map_err(|e| if text.contains(':') || is_api(text, table) { e } else { bad() });
    };
    let (kind, name) = match what.split_once(':') {
        Some((kind @ ("op" | "node"), name)) => (kind, name),
        _ => ("node", what),
    };
    if name.is_empty() || device.trim().is_empty() {
        return Err(bad());
    }
    let (name, device) = (name.to_owned(), entry(text, device.trim(), table)?);
    Ok(if kind == "op" { Place::Op(name, device) } else { Place::Node(name, device) })
}

/// The entry of the device table that `text` names. A position beyond it is the session's to refuse, which knows the
/// whole table.
fn entry(whole: &str, text: &str, table: &[(&str, usize)]) -> Result<u32, CliError> {
    if let Ok(position) = text.parse() {
        return Ok(position);
    }
    let is = |(api, index): &(&str, usize)| text == *api || text == format!("{api}:{index}");
    let found: Vec<usize> = (0..table.len()).filter(|&d| is(&table[d])).collect();
    match found[..] {
        [one] => Ok(one as u32),
        [] => {
            let table = described(table);
            Err(CliError::usage(format!(
                "--place {whole:?}: {text:?} is no entry of the device table: {table}"
            )))
        }
        _ => {
            let table = described(table);
            Err(CliError::usage(format!(
                "--place {whole:?}: {text:?} is more than one entry of the device table, give its position: {table}"
            )))
        }
    }
}

/// Whether entries of the table are called so.
fn is_api(text: &str, table: &[(&str, usize)]) -> bool {
    table.iter().any(|(api, _)| *api == text)
}

fn described(table: &[(&str, usize)]) -> String {
    let entries = table.iter().enumerate().map(|(d, (api, index))| format!("{d} is {api}:{index}"));
    entries.collect::<Vec<_>>().join(", ")
}

/// Where measurements are kept where no folder is named.
pub(super) fn cache_folder() -> Option<PathBuf> {
    cache_folder_of(std::env::consts::OS, |variable| std::env::var_os(variable).map(PathBuf::from))
}

/// Where programs of that system keep what they can make again.
fn cache_folder_of(system: &str, variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let folder = |name| variable(name).filter(|value| !value.as_os_str().is_empty());
    let user = match system {
        "windows" => folder("LOCALAPPDATA"),
        "macos" => folder("HOME").map(|home| home.join("Library").join("Caches")),
        _ => folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache"))),
    };
    user.map(|user| user.join("onepool"))
}

/// Prints how the devices of a plan were chosen: what there was to choose from, and for each run of nodes on one device
/// what it was thought to take there and elsewhere; `times` are those of a profile, by node.
pub(super) fn explain(
    plan: &PlanReport,
    devices: &[String],
    times: Option<&Times>,
    every_node: bool,
    out: &mut Output,
) -> Result<(), CliError> {
    let Some(report) = &plan.placement else { return Ok(()) };
    out.line("\nplacement")?;
    candidates(report, devices, out)?;
    let head = ["nodes".to_owned(), "on".to_owned(), "timed".to_owned()].into_iter();
    let expected = devices.iter().map(|d| format!("expected on {d}"));
    let mut table = Table::new(head.chain(expected).chain(["measured".to_owned()]));
    let device = |d: u32| devices.get(d as usize).cloned().unwrap_or_else(|| d.to_string());
    let all: Vec<(usize, &NodeReport)> =
        plan.nodes.iter().enumerate().filter(|(_, n)| n.commands > 0).collect();
    for run in all.chunk_by(|(_, a), (_, b)| !every_node && a.device == b.device) {
        let [(_, first), ..] = run else { continue };
        let name = match run {
            [(_, one)] => one.name.clone(),
            [.., (_, last)] => format!("{} .. {} ({})", first.name, last.name, run.len()),
            [] => continue,
        };
        let known: Vec<_> = run.iter().filter_map(|(n, _)| report.nodes.get(*n)).collect();
        let fixed = known.iter().filter(|k| k.fixed).count();
        let on = match fixed {
            0 => device(first.device),
            n if n == run.len() => format!("{}, as asked", device(first.device)),
            n => format!("{}, {n} as asked", device(first.device)),
        };
        let expected = (0..devices.len()).map(|d| {
            let sum: Option<u64> = known.iter().map(|k| k.nanos.get(d).copied().flatten()).sum();
            sum.map_or("-".to_owned(), time)
        });
        let measured = times.map(|t| run.iter().map(|(n, _)| t.of(*n)).sum::<u64>());
        let timed = known.iter().filter(|k| k.timed).count();
        let head = [name, on, format!("{timed} of {}", run.len())].into_iter();
        table.row(head.chain(expected).chain([measured.map_or("-".to_owned(), time)]));
    }
    out.table(&table)
}

fn candidates(report: &PlacementReport, devices: &[String], out: &mut Output) -> Result<(), CliError> {
    let mut table = Table::new(["candidate", "estimate", "measured", ""]);
    for (c, candidate) in report.candidates.iter().enumerate() {
        let name = match candidate.device {
            Some(d) => format!("all on {}", devices.get(d as usize).map_or("?", String::as_str)),
            None => "on several devices".to_owned(),
        };
        let measured = candidate.measured_ns.map_or("-".to_owned(), time);
        let chosen = if c == report.chosen { "chosen" } else { "" };
        table.row([name, time(candidate.estimate_ns), measured, chosen.to_owned()]);
    }
    out.table(&table)?;
    let how = if report.cached { "kept from an earlier run" } else { "decided now" };
    out.line(format_args!("  {how} in {}, {} timed", time(report.nanos), count(report.timed, "operator")))?;
    let copies = match (report.copied_in, report.copied_out) {
        (true, true) => "copies its inputs in and its outputs out",
        (true, false) => "copies its inputs in",
        (false, true) => "copies its outputs out",
        (false, false) => "copies nothing",
    };
    out.line(format_args!("  measured is a run that {copies}"))?;
    for (name, r) in devices.iter().zip(&report.devices) {
        let (submit, launch) = (time(r.submit_ns as u64), time(r.launch_ns as u64));
        out.line(format_args!(
            "  {name}: {submit} for a submission, {launch} for a command, {:.1} GFLOP/s, {:.1} GB/s",
            r.flops, r.bytes
        ))?;
    }
    out.line("")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[(&str, usize)] = &[("vulkan", 0), ("cpu", 0), ("vulkan", 1)];

    #[test]
    fn caches_lie_where_the_system_has_them() {
        let folder = |system, set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| PathBuf::from(v));
            cache_folder_of(system, value)
        };
        let all = [("XDG_CACHE_HOME", "/x"), ("HOME", "/h"), ("LOCALAPPDATA", "/l")];
        assert_eq!(folder("linux", &all), Some("/x/onepool".into()));
        assert_eq!(
            folder("linux", &[("XDG_CACHE_HOME", ""), ("HOME", "/h")]),
            Some("/h/.cache/onepool".into())
        );
        assert_eq!(folder("macos", &all), Some("/h/Library/Caches/onepool".into()));
        assert_eq!(folder("windows", &all), Some("/l/onepool".into()));
        assert_eq!(folder("windows", &all[..2]), None);
        assert_eq!(folder("linux", &all[2..]), None);
    }

    #[test]
    fn places_are_read() {
        let read = |text| place(text, TABLE).unwrap();
        assert_eq!(read("op:Conv=1"), Place::Op("Conv".into(), 1));
        assert_eq!(read("conv1=0"), Place::Node("conv1".into(), 0));
        assert_eq!(read("node:op:x=7"), Place::Node("op:x".into(), 7));
        assert_eq!(read("/a/b:c=d=cpu"), Place::Node("/a/b:c=d".into(), 1));
        assert_eq!(read("op:Conv=vulkan:1"), Place::Op("Conv".into(), 2));
        assert_eq!([read("cpu"), read("vulkan:1"), read("0")], [1, 2, 0].map(Place::Rest));
    }

    #[test]
    fn what_is_no_place_is_an_error_that_shows_the_table() {
        for bad in ["Conv", "op:=1", "=1", "x=", "x=metal", "op:Conv=-1", "x=vulkan:7", "node:=0"] {
            let e = place(bad, TABLE).unwrap_err().to_string();
            assert!(e.contains("1 is cpu:0") && e.contains(bad), "{e}");
        }
        for several in ["x=vulkan", "vulkan"] {
            let e = place(several, TABLE).unwrap_err().to_string();
            assert!(e.contains("more than one entry"), "{e}");
        }
    }

    #[test]
    fn times_to_measure_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for bad in ["-1", "1e9", "NaN", "x"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
