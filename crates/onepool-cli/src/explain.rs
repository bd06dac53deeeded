//! A plan and its verdicts, for people and as JSON.

use std::collections::{HashMap, VecDeque};

use serde::Serialize;

use super::error::CliError;
use super::output::Output;
use super::table::{Table, bytes, count, count_as, si};
use onepool::memory::import::Verdict;
use onepool::ops::StepKernel;
use onepool::plan::{Domain, KernelCode, Plan, PlanReport, Work};
use onepool::session::Profile;

/// What was planned and how tensors reach the devices, as `--json` prints it.
#[derive(Serialize)]
pub(super) struct Explained<'a> {
    verdicts: Vec<Said<'a>>,
    /// Inputs without a verdict, because their values were given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    by_value: Vec<ByValue>,
    #[serde(flatten)]
    plan: Planned<'a>,
}

/// A plan, as `--json` prints it.
#[derive(Serialize)]
pub(super) struct Planned<'a> {
    devices: Vec<String>,
    plan: &'a PlanReport,
    segments: Vec<SegmentReport>,
    kernels: usize,
    constants: usize,
}

#[derive(Serialize)]
struct Said<'a> {
    #[serde(flatten)]
    verdict: &'a Verdict,
    /// The verdict in words.
    sentence: String,
}

/// An input whose value is given when the plan is made.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ByValue {
    tensor: String,
    /// Bytes that the CPU copies, once.
    bytes: u64,
    /// The same in words.
    sentence: String,
}

impl ByValue {
    /// Of input `tensor`.
    pub(super) fn new(tensor: &str, bytes: u64) -> Self {
        let sentence = format!(
            "{tensor}: given by value, {bytes} bytes: the CPU copies them once, before the runs, as so short an input may \
             decide shapes"
        );
        ByValue { tensor: tensor.to_owned(), bytes, sentence }
    }
}

#[derive(Serialize)]
struct SegmentReport {
    device: u32,
    /// The segments of other devices that must be over before it.
    waits: Vec<u32>,
    commands: usize,
    /// Each barrier: the position of the command after it, its source and destination accesses.
    barriers: Vec<(usize, String, String)>,
}

impl<'a> Explained<'a> {
    /// What there is to say.
    pub(super) fn new(
        verdicts: impl Iterator<Item = &'a Verdict>,
        by_value: Vec<ByValue>,
        plan: &'a Plan,
        devices: Vec<String>,
    ) -> Self {
        let verdicts = verdicts.map(|verdict| Said { verdict, sentence: verdict.to_string() }).collect();
        Explained { verdicts, by_value, plan: Planned::new(plan, devices) }
    }
}

impl<'a> Planned<'a> {
    /// What there is to say.
    pub(super) fn new(plan: &'a Plan, devices: Vec<String>) -> Self {
        let segments = plan.segments.iter().map(|s| {
            let between = s.commands.iter().enumerate().filter_map(|(i, c)| Some((i, c.barrier?)));
            let closing = s.closing.map(|b| (s.commands.len(), b));
            let words = |(i, b): (usize, onepool::memory::coherency::Barrier)| {
                (i, format!("{:?}", b.src), format!("{:?}", b.dst))
            };
            SegmentReport {
                device: s.device,
                waits: s.waits.clone(),
                commands: s.commands.len(),
                barriers: between.chain(closing).map(words).collect(),
            }
        });
        Planned {
            devices,
            plan: &plan.report,
            segments: segments.collect(),
            kernels: plan.kernels.len(),
            constants: plan.constants.len(),
        }
    }
}

/// Measured times by node of a plan.
pub(super) struct Times(Vec<u64>);

impl Times {
    /// The times of `profile`, a run of the plan of `report`.
    pub(super) fn new(report: &PlanReport, profile: &Profile) -> Self {
        // Names need not be unique; nodes of one name run in the plan's order.
        let mut named: HashMap<&str, VecDeque<u64>> = HashMap::new();
        for node in &profile.nodes {
            named.entry(&node.name).or_default().push_back(node.nanos);
        }
        let mut time = |name: &str| named.get_mut(name).and_then(VecDeque::pop_front);
        let ran = report.nodes.iter().map(|n| if n.commands > 0 { time(&n.name) } else { None });
        Times(ran.map(Option::unwrap_or_default).collect())
    }

    /// Nanoseconds of node `n`.
    pub(super) fn of(&self, n: usize) -> u64 {
        self.0.get(n).copied().unwrap_or(0)
    }
}

/// Prints how every tensor reaches the devices: those that are bound, and inputs `by_value`.
pub(super) fn verdicts<'a>(
    verdicts: impl Iterator<Item = &'a Verdict>,
    by_value: &[ByValue],
    out: &mut Output,
) -> Result<(), CliError> {
    let verdicts: Vec<&Verdict> = verdicts.collect();
    out.line("\nmemory of inputs and outputs")?;
    for input in by_value {
        out.line(format_args!("  {}", input.sentence))?;
    }
    for verdict in &verdicts {
        out.line(format_args!("  {verdict}"))?;
    }
    out.line(format_args!("  {}", copied(verdicts.into_iter())))
}

/// What each run does with the bytes of bound tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Copies {
    /// Bytes used in place.
    pub(super) in_place: u64,
    /// Bytes that the device copies.
    pub(super) by_device: u64,
    /// Bytes that the CPU copies.
    pub(super) by_cpu: u64,
}

impl Copies {
    /// Adds up verdicts.
    pub(super) fn of<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> Self {
        let mut copies = Copies::default();
        for v in verdicts {
            match v.path {
                p if p.copies_on_cpu() => copies.by_cpu += v.bytes,
                _ if v.copies_on_device() => copies.by_device += v.bytes,
                _ => copies.in_place += v.bytes,
            }
        }
        copies
    }
}

/// How many bytes are copied in each run and how many are not.
pub(super) fn copied<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> String {
    let Copies { in_place, by_device, by_cpu } = Copies::of(verdicts);
    let (cpu, device, none) = (bytes(by_cpu), bytes(by_device), bytes(in_place));
    format!("each run: {none} used in place, {device} copied by the device, {cpu} copied by the CPU")
}

/// Prints a plan: nodes and where they run, memory, barriers; with `commands` every command too.
pub(super) fn plan(
    plan: &Plan,
    devices: &[String],
    commands: bool,
    out: &mut Output,
) -> Result<(), CliError> {
    let device = |d: u32| devices.get(d as usize).cloned().unwrap_or_else(|| d.to_string());
    let report = &plan.report;
    out.line("\nnodes")?;
    let mut table = Table::new(["node", "operator", "device", "commands", "flops", "bytes", "output"]);
    for n in &report.nodes {
        table.row([
            n.name.clone(),
            n.op.to_owned(),
            device(n.device),
            n.commands.to_string(),
            si(n.cost.flops),
            bytes(n.cost.bytes),
            n.output.clone(),
        ]);
    }
    out.table(&table)?;
    let moved: Vec<_> = report.nodes.iter().filter_map(|n| Some((n, n.fallback.as_ref()?))).collect();
    if !moved.is_empty() {
        out.line("\nnot where they were asked to run")?;
        for (n, reason) in moved {
            out.line(format_args!("  {} ({}) runs on {}: {reason}", n.name, n.op, device(n.device)))?;
        }
    }
    if !report.foreign.is_empty() {
        let names = report.foreign.join(", ");
        out.line(format_args!("\non {} for want of the device that the graph names: {names}", device(0)))?;
    }
    crossings(report, &device, out)?;
    tuned(report, out)?;
    summary(plan, devices, out)?;
    if commands {
        list_commands(plan, &device, out)?;
    }
    Ok(())
}

/// Prints what happens to tensors that go from one device to another.
fn crossings(report: &PlanReport, device: &dyn Fn(u32) -> String, out: &mut Output) -> Result<(), CliError> {
    if report.crossings.is_empty() {
        return Ok(());
    }
    out.line("\nfrom one device to another")?;
    let mut table = Table::new(["tensor", "from", "to", "bytes", "copied", "why"]);
    for c in &report.crossings {
        let (from, to) = (device(c.from), device(c.to));
        table.row([c.tensor.clone(), from, to, bytes(c.bytes), bytes(c.copied()), c.reason.to_owned()]);
    }
    out.table(&table)
}

/// Prints which kernels run because they were measured to be faster.
fn tuned(report: &PlanReport, out: &mut Output) -> Result<(), CliError> {
    if report.nodes.iter().all(|node| node.tuned.is_empty()) {
        return Ok(());
    }
    out.line("\nkernels chosen by measurement")?;
    let mut table = Table::new(["node", "chosen", "instead of", "for"]);
    for node in &report.nodes {
        for tuned in &node.tuned {
            table.row([node.name.as_str(), &tuned.chosen, &tuned.default, tuned.key.as_str()]);
        }
    }
    out.table(&table)
}

/// Prints the sums of a plan.
pub(super) fn summary(plan: &Plan, devices: &[String], out: &mut Output) -> Result<(), CliError> {
    let device = |d: u32| devices.get(d as usize).cloned().unwrap_or_else(|| d.to_string());
    let report = &plan.report;
    out.line("\nplan")?;
    out.line(format_args!(
        "  {} of the graph became {} ({} fused), in {} and {}",
        count(report.graph_nodes, "node"),
        report.nodes.len(),
        report.fused,
        count(report.commands, "command"),
        count(plan.segments.len(), "segment")
    ))?;
    if report.quantized > 0 {
        let operators = count(report.quantized, "operator");
        out.line(format_args!(
            "  {operators} of bytes in place of float32 between QuantizeLinear and DequantizeLinear"
        ))?;
    }
    if report.halved > 0 {
        out.line(format_args!("  {} in half precision", count(report.halved, "node")))?;
    }
    for remark in &report.remarks {
        out.line(format_args!("  {remark}"))?;
    }
    let dispatches = plan.segments.iter().flat_map(|s| &s.commands);
    let dispatches = dispatches.filter(|c| matches!(c.work, Work::Dispatch { .. })).count();
    out.line(format_args!(
        "  {} of {}, {}",
        count_as(dispatches, "dispatch", "dispatches"),
        count(plan.kernels.len(), "kernel"),
        count(report.barriers, "barrier")
    ))?;
    out.line(format_args!(
        "  {} flops, {} moved by kernels",
        si(report.cost.flops),
        bytes(report.cost.bytes)
    ))?;
    let constants = count(plan.constants.len(), "constant");
    out.line(format_args!("  {constants} of {}", bytes(report.constant_bytes)))?;
    images(plan, &device, out)?;
    if report.arenas.is_empty() {
        return out.line("  no memory between nodes");
    }
    out.line("\nmemory between nodes")?;
    let mut table = Table::new(["arena", "tensors", "peak", "lower bound", "TVM's rule", "all apart"]);
    for a in &report.arenas {
        let domain = match a.domain {
            Domain::Device(d) => device(d),
            Domain::Host => "host, shared by devices".to_owned(),
        };
        let (peak, bound) = (bytes(a.bytes), bytes(a.lower_bound));
        table.row([domain, a.ranges.to_string(), peak, bound, bytes(a.tvm_bytes), bytes(a.naive_bytes)]);
    }
    out.table(&table)
}

/// Prints the tensors that the graph wants in images, and what became of that.
fn images(plan: &Plan, device: &dyn Fn(u32) -> String, out: &mut Output) -> Result<(), CliError> {
    if plan.report.images.is_empty() {
        return Ok(());
    }
    out.line("\ntensors in images")?;
    let mut table = Table::new(["tensor", "scope", "device", "texels", "row pitch", "memory", "how"]);
    for i in &plan.report.images {
        let (texels, pitch, memory) = match &i.image {
            Some(image) => (
                format!("{} x {} {:?}", image.width, image.height, image.texel),
                format!("{} ({} used)", bytes(image.row_pitch), bytes(image.row_bytes())),
                bytes(i.bytes),
            ),
            None => ("-".to_owned(), "-".to_owned(), "-".to_owned()),
        };
        let how = match (&i.reason, i.copied) {
            (Some(reason), _) => format!("a buffer: {reason}"),
            (None, true) => "copied".to_owned(),
            (None, false) => "in place".to_owned(),
        };
        table.row([i.name.clone(), i.scope.to_owned(), device(i.device), texels, pitch, memory, how]);
    }
    out.table(&table)
}

fn list_commands(plan: &Plan, device: &dyn Fn(u32) -> String, out: &mut Output) -> Result<(), CliError> {
    for (s, segment) in plan.segments.iter().enumerate() {
        let waits: Vec<String> = segment.waits.iter().map(u32::to_string).collect();
        let waits = if waits.is_empty() { String::new() } else { format!(", after {}", waits.join(", ")) };
        out.line(format_args!("\nsegment {s} on {}{waits}", device(segment.device)))?;
        for (i, c) in segment.commands.iter().enumerate() {
            if let Some(b) = c.barrier {
                out.line(format_args!("       barrier {:?} -> {:?}", b.src, b.dst))?;
            }
            let node = plan.report.nodes.get(c.node as usize).map_or("", |n| n.name.as_str());
            let work = match &c.work {
                Work::Dispatch { kernel, groups, .. } => {
                    let name =
                        plan.kernels.get(*kernel as usize).map_or_else(String::new, |k| kernel_name(&k.code));
                    format!("{name} {}x{}x{}", groups[0], groups[1], groups[2])
                }
                Work::Copy { src, .. } => format!("copy of {}", bytes(src.bytes)),
                Work::Move { src, from, .. } => {
                    format!("copy of {} from {} by the session", bytes(src.bytes), device(*from))
                }
                Work::Fill { dst, value } => format!("fill of {} with {value:#x}", bytes(dst.bytes)),
            };
            out.line(format_args!("  {i:4} {work}  ({node})"))?;
        }
        if let Some(b) = segment.closing {
            out.line(format_args!("       barrier {:?} -> {:?}", b.src, b.dst))?;
        }
    }
    Ok(())
}

fn kernel_name(code: &KernelCode) -> String {
    match code {
        KernelCode::Device(StepKernel::Table(id)) => id.info().name.to_owned(),
        KernelCode::Device(StepKernel::Module(source)) => source.name().to_owned(),
        KernelCode::Native(native) => native.name().to_owned(),
    }
}
