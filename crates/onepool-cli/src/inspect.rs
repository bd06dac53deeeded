//! `onepool inspect`: what a model is made of, and what running it takes.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Serialize;

use super::error;
use super::error::{CliError, chain};
use super::explain::{self, Planned};
use super::open::{CacheArgs, load_on, open_table, selector};
use super::output::Output;
use super::passes::{self, PassArgs};
use super::place::{self, PlaceArgs};
use super::shapes::ModelArgs;
use super::table::{Table, bytes};
use onepool::backend::DeviceInfo;
use onepool::graph::{Graph, ModelMetadata, StorageScope, TensorInfo};
use onepool::loader::{self, ModelSummary, SummaryIo};
use onepool::plan::{
    Assignment, Compiler, GraphCx, PassReport, Plan, PlanCache, PlanOptions, PlanOutcome, PlanRequest,
    choose, prepare,
};
use onepool::registry::{Registry, default_selector};
use onepool::session::{Error, IoInfo, Session};

/// Arguments of `onepool inspect`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    source: ModelArgs,
    /// The device that memory and cost are planned for; several make a table. Devices are opened only for `--place` and
    /// for tensors that lie in images.
    #[arg(short, long)]
    device: Vec<String>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    passes: PassArgs,
    /// List every node.
    #[arg(long)]
    nodes: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    model: String,
    #[serde(flatten)]
    summary: &'a ModelSummary,
    /// Operators that cannot be loaded.
    unsupported: Vec<String>,
    /// The plan, or why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    planned: Option<Planned<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_planned: Option<String>,
    /// What each pass did, where that is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    passes: Option<&'a [PassReport]>,
}

pub(super) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    let options = PlanOptions { passes: args.passes.selection()?, ..PlanOptions::default() };
    let summary = loader::summarize(&args.source.model, args.source.params.as_deref())?;
    let unsupported: Vec<String> =
        summary.operators.iter().filter(|o| !o.is_known()).map(|o| qualified(&o.domain, &o.name)).collect();
    let table = table(args)?;
    let apis: Vec<&str> = table.iter().map(|d| d.api).collect();
    let Planning { plan, devices, none } =
        match load_on(&args.source.model, args.source.params.as_deref(), &apis, true, out) {
            Ok((graph, moved)) => planned(args, graph, moved, table, &options)?,
            // The file is a model, and something in it is wrong or not supported.
            Err(e) => NotPlanned::Failed(e.into()).into(),
        };
    let not_planned = none.as_ref().map(NotPlanned::reason);
    let ends = match none {
        Some(NotPlanned::Failed(e)) => Err(e),
        Some(NotPlanned::Open(_)) | None => Ok(ExitCode::SUCCESS),
    };
    if out.is_json() {
        out.json(&Report {
            model: args.source.model.display().to_string(),
            summary: &summary,
            unsupported,
            planned: plan.as_ref().map(|p| Planned::new(p, devices)),
            not_planned,
            passes: plan.as_ref().filter(|_| args.passes.passes).map(|p| p.report.passes.as_slice()),
        })?;
        return ends;
    }
    describe(args, &summary, out)?;
    if !unsupported.is_empty() {
        out.line(format_args!("\nnot supported: {}", unsupported.join(", ")))?;
    }
    if let Some(plan) = &plan {
        if args.nodes {
            explain::plan(plan, &devices, out.verbose() > 0, out)?;
        } else {
            explain::summary(plan, &devices, out)?;
        }
        place::explain(&plan.report, &devices, None, out.verbose() > 0, out)?;
        fallbacks(plan, out)?;
        if args.passes.passes {
            passes::print(&plan.report.passes, out)?;
        }
    }
    if let Some(reason) = not_planned {
        out.line(format_args!("\nnot planned: {reason}"))?;
    }
    ends
}

fn qualified(domain: &str, name: &str) -> String {
    if domain.is_empty() { name.to_owned() } else { format!("{domain}.{name}") }
}

fn describe(args: &Args, summary: &ModelSummary, out: &mut Output) -> Result<(), CliError> {
    out.line(format_args!("{}", args.source.model.display()))?;
    let said = &summary.metadata;
    let opsets: Vec<String> = said
        .opsets
        .iter()
        .map(|(d, v)| format!("{} {v}", if d.is_empty() { "ai.onnx" } else { d }))
        .collect();
    out.line(format_args!("  graph     {:?}, {} nodes", summary.graph, summary.nodes))?;
    if opsets.is_empty() {
        out.line(format_args!("  format    {}", said.format))?;
    } else {
        let (format, version) = (said.format, said.ir_version);
        out.line(format_args!("  opset     {}; file format {format} {version}", opsets.join(", ")))?;
    }
    about(said, out)?;
    if !summary.functions.is_empty() {
        out.line(format_args!("  functions {}", summary.functions.join(", ")))?;
    }
    let ios = |what: &str, ios: &[SummaryIo], out: &mut Output| -> Result<(), CliError> {
        let mut table = Table::new([what, "type", "shape"]);
        ios.iter().for_each(|io| table.row([&io.name, &io.kind, &io.shape]));
        out.line("")?;
        out.table(&table)
    };
    ios("input", &summary.inputs, out)?;
    ios("output", &summary.outputs, out)?;
    for io in summary.outputs.iter().filter(|io| !io.classes.is_empty()) {
        let shown: Vec<&str> = io.classes.iter().map(String::as_str).take(20).collect();
        let more = if io.classes.len() > shown.len() { ", ..." } else { "" };
        out.line(format_args!("  the columns of {:?} are classes {}{more}", io.name, shown.join(", ")))?;
    }
    let mut table = Table::new(["operator", "nodes", "family", "runs on"]);
    for o in &summary.operators {
        let runs = match (o.is_known(), o.function, o.device_kernels) {
            (false, ..) => "NOT SUPPORTED",
            (true, true, _) => "a function of the model",
            (true, false, true) => "device, cpu",
            (true, false, false) if matches!(o.family, Some("constant" | "sequence")) => "-",
            (true, false, false) if o.family == Some("control") => "session",
            (true, false, false) => "cpu",
        };
        table.row([&qualified(&o.domain, &o.name), &o.count.to_string(), o.family.unwrap_or("-"), runs]);
    }
    out.line("")?;
    out.table(&table)?;
    let mut table = Table::new(["parameters", "tensors", "elements", "bytes"]);
    for p in &summary.parameters {
        let size = if p.bytes == 0 && p.elements > 0 { "not supported".to_owned() } else { bytes(p.bytes) };
        table.row([&p.dtype, &p.tensors.to_string(), &p.elements.to_string(), &size]);
    }
    out.line("")?;
    out.table(&table)
}

/// What the file says of itself for people.
fn about(said: &ModelMetadata, out: &mut Output) -> Result<(), CliError> {
    // A property may be a page of text, or one line of many pages.
    const MOST: usize = 100;
    let verbose = out.verbose() > 0;
    let shown = |text: &str| {
        let line = text.lines().next().unwrap_or_default();
        let short: String = line.chars().take(MOST).collect();
        match verbose {
            true => text.to_owned(),
            false if short.len() < text.trim_end().len() => format!("{short}..."),
            false => short,
        }
    };
    if !said.producer.is_empty() {
        let by = format!("{} {}", said.producer, said.producer_version);
        out.line(format_args!("  written   by {}", by.trim_end()))?;
    }
    if !said.domain.is_empty() || said.version != 0 {
        out.line(format_args!("  model     {} version {}", said.domain, said.version))?;
    }
    for text in [&said.description, &said.graph_description].into_iter().filter(|text| !text.is_empty()) {
        out.line(format_args!("  says      {}", shown(text)))?;
    }
    for (name, value) in &said.properties {
        out.line(format_args!("  property  {name}: {}", shown(value)))?;
    }
    Ok(())
}

fn fallbacks(plan: &Plan, out: &mut Output) -> Result<(), CliError> {
    let mut reasons: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for n in &plan.report.nodes {
        if let Some(reason) = &n.fallback {
            *reasons.entry((n.op, reason)).or_default() += 1;
        }
    }
    if !reasons.is_empty() {
        out.line("\nruns on the CPU instead")?;
    }
    for ((op, reason), count) in reasons {
        out.line(format_args!("  {count} {op}: {reason}"))?;
    }
    Ok(())
}

/// The devices that are planned for.
fn table(args: &Args) -> Result<Vec<DeviceInfo>, CliError> {
    let registry = Registry::with_defaults();
    let mut selectors = args.device.clone();
    if selectors.is_empty() {
        selectors.push(default_selector());
    }
    let mut table: Vec<DeviceInfo> = selectors.iter().map(|s| registry.find(s)).collect::<Result<_, _>>()?;
    if !table.iter().any(|d| d.native) {
        table.push(registry.find("cpu")?);
    }
    Ok(table)
}

/// A plan and the names of its devices, or why there is none.
struct Planning {
    plan: Option<Plan>,
    devices: Vec<String>,
    none: Option<NotPlanned>,
}

/// Why there is no plan.
enum NotPlanned {
    /// More must be known first, which is no failure.
    Open(String),
    /// The model is broken or not supported.
    Failed(CliError),
}

impl NotPlanned {
    fn reason(&self) -> String {
        match self {
            NotPlanned::Open(reason) => reason.clone(),
            NotPlanned::Failed(e) => chain(e),
        }
    }
}

impl From<NotPlanned> for Planning {
    fn from(none: NotPlanned) -> Self {
        Planning { plan: None, devices: Vec::new(), none: Some(none) }
    }
}

fn planned(
    args: &Args,
    graph: Graph,
    moved: Vec<String>,
    table: Vec<DeviceInfo>,
    options: &PlanOptions,
) -> Result<Planning, CliError> {
    let ios: Vec<IoInfo> = graph.inputs().iter().map(|&id| graph.tensor(id).into()).collect();
    let (infos, open) = args.source.infos(&ios)?;
    if !open.is_empty() {
        let reason = format!("the shapes of inputs are open: {}; give --shape or --dim", open.join(", "));
        return Ok(NotPlanned::Open(reason).into());
    }
    // How a driver lays out images is known only once its device is open.
    let images = graph.tensors().iter().any(|t| t.scope != StorageScope::Buffer);
    let (devices, plan) = if args.place.is_empty() && !images {
        let plan = closed(graph, &infos, &table, options, moved);
        (table, plan)
    } else {
        opened(args, graph, &infos, options, moved)?
    };
    let names = devices.iter().map(selector).collect();
    match plan {
        Ok(outcome) => match outcome.plan() {
            Ok(plan) => Ok(Planning { plan: Some(plan), devices: names, none: None }),
            // It runs in stages, or with values that are not given here.
            Err(e) => Ok(NotPlanned::Open(chain(&e)).into()),
        },
        Err(e) if error::is_unsupported(&e) => Ok(NotPlanned::Failed(e.into()).into()),
        Err(e) => Err(e.into()),
    }
}

/// The plan for devices that are only looked at, as a session would make it.
fn closed(
    mut graph: Graph,
    infos: &[TensorInfo],
    devices: &[DeviceInfo],
    options: &PlanOptions,
    foreign: Vec<String>,
) -> Result<PlanOutcome, Error> {
    let (devices, cache): (Vec<&DeviceInfo>, _) = (devices.iter().collect(), PlanCache::default());
    let prepared = prepare(&mut graph, &GraphCx { options, devices: &devices, free: false });
    let assignment = Assignment::default();
    let compiler = Compiler { devices: &devices, options, assignment, cache: &cache };
    loop {
        match compiler.compile(&PlanRequest::new(&graph, infos))? {
            PlanOutcome::Choose { node, then } => graph = choose(&graph, node, then)?,
            outcome => {
                return outcome.try_map(|mut plan| {
                    plan.report.foreign = foreign;
                    plan.report.add_prepared(&prepared);
                    Ok(plan)
                });
            }
        }
    }
}

/// The plan of a session on opened devices, which places nodes as asked.
fn opened(
    args: &Args,
    graph: Graph,
    infos: &[TensorInfo],
    options: &PlanOptions,
    moved: Vec<String>,
) -> Result<(Vec<DeviceInfo>, Result<PlanOutcome, Error>), CliError> {
    let desc = args.cache.desc()?;
    let table = open_table(&args.device, true, &desc)?;
    let builder = Session::builder().graph(graph).passes(options.passes.clone()).foreign_nodes(moved);
    let session = args.place.build(builder, table, desc.cache_dir)?;
    Ok((session.devices().cloned().collect(), session.plan(infos).map(PlanOutcome::Plan)))
}
