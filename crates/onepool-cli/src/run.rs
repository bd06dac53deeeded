//! `onepool run`: a model on tensors or pictures from files, bound in place.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::assign;
use super::error::CliError;
use super::explain::{self, ByValue, Explained, Times};
use super::open::{CacheArgs, load_on, may_decide, open_table, selector};
use super::output::Output;
use super::picture::PictureOptions;
use super::place::{self, PlaceArgs};
use super::precision::PrecisionArgs;
use super::report::{self, ReportArgs};
use super::shapes::ModelArgs;
use super::stop::StopArgs;
use super::table::{Table, bytes, time};
use super::tensor_io::{Declared, Saved, TensorFile, read, write_all};
use super::trace;
use super::tune::TuningArgs;
use onepool::backend::ContextDesc;
use onepool::dtype::DType;
use onepool::graph::{Tensor, TensorInfo};
use onepool::memory::host::{HostRegion, SharedRegion};
use onepool::session::{Binding, BindingBuilder, IoInfo, Memory, Profile, Session, SessionError};
use onepool::shape::SymShape;

/// Arguments of `onepool run`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    source: ModelArgs,
    /// A file for an input: NAME=FILE, or only FILE where there is one input. Files are .npy, .npz
    /// (NAME=FILE.npz:ARRAY), .pb (an ONNX tensor), .bin or .raw (elements alone), .png and .jpg.
    #[arg(short, long, value_name = "NAME=FILE")]
    input: Vec<String>,
    /// A file for an output, as for inputs.
    #[arg(short, long, value_name = "NAME=FILE")]
    output: Vec<String>,
    /// A device: `auto`, `cpu`, `vulkan`, `vulkan:1`, `vulkan:NAME`, ...; several make a table, whose entry 0 is
    /// where nodes go that no one places. Without it ONEPOOL_DEVICE, then `auto`.
    #[arg(short, long)]
    device: Vec<String>,
    /// Makes every copy by the CPU of an input or output an error.
    #[arg(long)]
    strict: bool,
    /// Bytes below which a tensor is copied instead of imported.
    #[arg(long, value_name = "BYTES")]
    copy_threshold: Option<u64>,
    /// Show how each tensor reaches the device, where nodes run, the memory plan, barriers; with -v every
    /// command.
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    cache: CacheArgs,
    /// An operator without a kernel on its device is an error instead of running on the CPU.
    #[arg(long)]
    no_fallback: bool,
    /// Nodes of a TVM graph whose device is not among those given run on the first one instead of being an error.
    #[arg(long)]
    any_device: bool,
    #[command(flatten)]
    precision: PrecisionArgs,
    #[command(flatten)]
    tuning: TuningArgs,
    /// Keep operators apart that could be fused.
    #[arg(long)]
    no_fuse: bool,
    /// How many runs to make.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Show the time of every operator.
    #[arg(long)]
    profile: bool,
    /// Write the times of all operators for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Turn the device API's validation on; a message of it is a failure.
    #[arg(long)]
    validation: bool,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    stop: StopArgs,
    #[command(flatten)]
    pictures: PictureOptions,
}

/// An input that was read.
struct Given {
    at: usize,
    info: TensorInfo,
    region: Arc<SharedRegion>,
}

/// Memory for an output.
struct Wanted {
    name: String,
    info: TensorInfo,
    region: Arc<SharedRegion>,
}

impl Wanted {
    fn of(name: &str, tensor: &Tensor) -> Result<Self, CliError> {
        let region = HostRegion::from_bytes(tensor.bytes())?.into_shared();
        Ok(Wanted { name: name.to_owned(), info: tensor.info().clone(), region })
    }
}

#[derive(Serialize)]
struct Report<'a> {
    model: String,
    inputs: Vec<Io>,
    outputs: Vec<Io>,
    /// Wall time of each run in milliseconds.
    runs_ms: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    explain: Option<Explained<'a>>,
    /// The same of what was planned once the run had decided sizes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    later: Vec<Explained<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<&'a Profile>,
}

#[derive(Serialize)]
struct Io {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

pub(super) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    let report = args.report.wanted(out)?;
    let session = session(args, out)?;
    let devices: Vec<String> = session.devices().map(selector).collect();
    let files = output_files(args, &session)?;
    let given = inputs(args, &session, out)?;
    let (mut wanted, mut binding) = bind(args, &session, &given)?;
    let by_value = by_value(args, &session, &given);
    if args.explain {
        explain::verdicts(binding.verdicts(), &by_value, out)?;
        explain::plan(binding.plan(), &devices, out.verbose() > 0, out)?;
        out.line("")?;
    }
    let runs = repeat(args.repeat, &mut binding, out)?;
    for output in session.outputs() {
        // Of an output whose size the run decides nothing was known before.
        if !wanted.iter().any(|w| w.name == output.name) {
            wanted.push(Wanted::of(&output.name, &binding.get_output(&output.name)?)?);
        }
    }
    for stage in binding.stages().skip(1).filter(|_| args.explain) {
        out.line("after it, with sizes that the run decided")?;
        explain::plan(stage.plan(), &devices, out.verbose() > 0, out)?;
        out.line("")?;
    }
    let chosen = args.explain && binding.plan().report.placement.is_some();
    let wants_profile = args.profile || args.trace.is_some() || chosen;
    let profile = if wants_profile { Some(binding.profile()?) } else { None };
    if chosen {
        let times = profile.as_ref().map(|p| Times::new(&binding.plan().report, p));
        place::explain(&binding.plan().report, &devices, times.as_ref(), out.verbose() > 0, out)?;
    }
    if let (Some(path), Some(profile)) = (&args.trace, &profile) {
        trace::write(path, profile, &devices)?;
    }
    show(&wanted, &runs, &binding, out)?;
    if let Some(profile) = profile.as_ref().filter(|_| args.profile) {
        show_profile(profile, out)?;
    }
    save(args, &wanted, &files, out)?;
    if let Some(page) = report {
        let mut report = report::Report::new("run", args.source.model.display().to_string());
        report.runs_ms = runs.iter().map(|n| *n as f64 / 1e6).collect();
        report.add_run(&session, &mut binding)?;
        page.measure_peaks(&mut report, &session, out);
        page.write(&report, out)?;
    }
    check_validation(args, &session)?;
    let file = |name: &str| files.iter().find(|(n, _)| n == name).map(|(_, f)| f.path.display().to_string());
    let io = |name: &str, info: &TensorInfo, file: Option<String>| Io {
        name: name.to_owned(),
        dtype: info.dtype,
        shape: info.shape.to_vec(),
        file,
    };
    let mut stages = Vec::new();
    for (at, stage) in binding.stages().enumerate().filter(|_| args.explain) {
        let by_value = if at == 0 { by_value.clone() } else { Vec::new() };
        stages.push(Explained::new(stage.verdicts(), by_value, stage.plan(), devices.clone()));
    }
    let later = stages.split_off(stages.len().min(1));
    let names = session.inputs();
    let name = |at: usize| names.get(at).map_or("", |io| io.name.as_str());
    out.json(&Report {
        model: args.source.model.display().to_string(),
        inputs: given.iter().map(|g| io(name(g.at), &g.info, None)).collect(),
        outputs: wanted.iter().map(|w| io(&w.name, &w.info, file(&w.name))).collect(),
        runs_ms: runs.iter().map(|n| *n as f64 / 1e6).collect(),
        explain: stages.pop(),
        later,
        profile: profile.as_ref(),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn session(args: &Args, out: &Output) -> Result<Session, CliError> {
    let desc = ContextDesc { validation: args.validation, ..args.cache.desc()? };
    let table = open_table(&args.device, !args.no_fallback, &desc)?;
    let apis: Vec<&str> = table.iter().map(|context| context.info().api).collect();
    let (graph, moved) =
        load_on(&args.source.model, args.source.params.as_deref(), &apis, args.any_device, out)?;
    let _spinner = out.progress("preparing", None);
    let mut builder = Session::builder()
        .graph(graph)
        .foreign_nodes(moved)
        .context_desc(desc.clone())
        .strict(args.strict)
        .fuse(!args.no_fuse)
        .fallback(!args.no_fallback);
    builder = args.precision.apply(args.stop.apply(builder));
    builder = args.tuning.apply(builder, desc.cache_dir.clone());
    if let Some(bytes) = args.copy_threshold {
        builder = builder.copy_threshold(bytes);
    }
    args.place.build(builder, table, desc.cache_dir)
}

fn output_files(args: &Args, session: &Session) -> Result<Vec<(String, TensorFile)>, CliError> {
    let outputs = session.outputs();
    assign::by_name("--output", "output", &args.output, &outputs)?
        .into_iter()
        .map(|(at, text)| Ok((outputs[at].name.clone(), TensorFile::parse(text)?)))
        .collect()
}

fn inputs(args: &Args, session: &Session, out: &mut Output) -> Result<Vec<Given>, CliError> {
    let ios = session.inputs();
    let files = assign::by_name("--input", "input", &args.input, &ios)?;
    let shapes = args.source.shapes(&ios)?;
    let missing: Vec<IoInfo> =
        ios.iter().enumerate().filter(|(i, _)| !files.contains_key(i)).map(|(_, io)| io.clone()).collect();
    if !missing.is_empty() {
        return Err(CliError::usage(format!(
            "no file for {}: give --input NAME=FILE",
            assign::names(&missing)
        )));
    }
    let mut given = Vec::new();
    for (&at, text) in &files {
        let io = &ios[at];
        let file = TensorFile::parse(text)?;
        let shape = shapes[at].as_ref();
        let declared = Declared { name: &io.name, dtype: io.dtype, shape };
        let loaded = read(&file, declared, &args.pictures)?;
        check(io, shape, &loaded.info)?;
        if let Some(note) = loaded.note {
            out.line(format_args!("{}: {note}", file.path.display()))?;
        }
        given.push(Given { at, info: loaded.info, region: loaded.region.into_shared() });
    }
    Ok(given)
}

/// Checks type and shape of a file against those of the model and the arguments.
fn check(io: &IoInfo, shape: Option<&SymShape>, got: &TensorInfo) -> Result<(), SessionError> {
    let name = io.name.clone();
    if let Some(expected) = io.dtype.filter(|d| *d != got.dtype) {
        return Err(SessionError::DType { name, expected, got: got.dtype });
    }
    match shape {
        Some(shape) => shape
            .unify(&got.shape, &mut BTreeMap::new())
            .map_err(|source| SessionError::Shape { name, source }),
        None => Ok(()),
    }
}

/// Binds all inputs in place, except those whose values may decide shapes, and memory for the outputs.
fn bind(
    args: &Args,
    session: &Session,
    given: &[Given],
) -> Result<(Vec<Wanted>, Binding<'static>), CliError> {
    let builder = bind_inputs(args, session, given)?;
    let plan = builder.plan()?;
    let names = session.outputs();
    let wanted: Vec<Wanted> = plan
        .outputs
        .iter()
        .filter(|io| names.iter().any(|n| n.name == io.name))
        .map(|io| {
            let region = HostRegion::new(io.info.bytes())?.into_shared();
            Ok(Wanted { name: io.name.clone(), info: io.info.clone(), region })
        })
        .collect::<Result<_, CliError>>()?;
    let builder = wanted.iter().fold(builder, |b, w| b.output(&w.name, Memory::region(&w.region)));
    Ok((wanted, builder.strict(args.strict).build()?))
}

/// Whether an input is not bound in place.
fn is_by_value(args: &Args, given: &Given) -> bool {
    !args.strict && may_decide(&given.info)
}

fn by_value(args: &Args, session: &Session, given: &[Given]) -> Vec<ByValue> {
    let ios = session.inputs();
    let given = given.iter().filter(|g| is_by_value(args, g));
    given.map(|g| ByValue::new(&ios[g.at].name, g.info.bytes() as u64)).collect()
}

fn bind_inputs(args: &Args, session: &Session, given: &[Given]) -> Result<BindingBuilder<'static>, CliError> {
    let ios = session.inputs();
    let mut builder = session.bind();
    for g in given {
        let name = &ios[g.at].name;
        let memory = if is_by_value(args, g) {
            Memory::value(Tensor::from_bytes(g.info.clone(), &g.region.read()?)?)
        } else {
            Memory::region(&g.region).shape(g.info.shape.clone())
        };
        builder = builder.input(name, memory);
    }
    Ok(builder)
}

fn repeat(times: u32, binding: &mut Binding<'_>, out: &Output) -> Result<Vec<u64>, CliError> {
    let bar = out.progress("running", Some(times.into()));
    let mut nanos = Vec::new();
    for _ in 0..times {
        let start = Instant::now();
        binding.run()?;
        nanos.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        bar.inc(1);
    }
    Ok(nanos)
}

fn show(wanted: &[Wanted], runs: &[u64], binding: &Binding<'_>, out: &mut Output) -> Result<(), CliError> {
    if out.is_json() {
        return Ok(());
    }
    let mut table = Table::new(["output", "type", "shape", "smallest", "largest", "first values"]);
    for w in wanted {
        let guard = w.region.read()?;
        let values = Tensor::from_bytes(w.info.clone(), &guard)?;
        let (low, high, first) = glance(&values);
        let (dtype, shape) = (w.info.dtype.to_string(), w.info.shape.to_string());
        table.row([w.name.clone(), dtype, shape, low, high, first]);
    }
    out.table(&table)?;
    out.line(explain::copied(binding.verdicts()))?;
    let mut sorted = runs.to_vec();
    sorted.sort_unstable();
    match (runs, sorted.as_slice()) {
        ([only], _) => out.line(format_args!("1 run: {}", time(*only))),
        ([first, ..], [fastest, ..]) => out.line(format_args!(
            "{} runs: median {}, fastest {}, first {}",
            runs.len(),
            time(sorted[sorted.len() / 2]),
            time(*fastest),
            time(*first)
        )),
        _ => Ok(()),
    }
}

/// Smallest, largest and first values of a tensor.
fn glance(tensor: &Tensor) -> (String, String, String) {
    const FIRST: usize = 5;
    fn of<T: Copy + PartialOrd + std::fmt::Display>(values: &[T]) -> (String, String, String) {
        let pick = |better: fn(&T, &T) -> bool| {
            let best = values.iter().copied().reduce(|a, b| if better(&b, &a) { b } else { a });
            best.map_or("-".to_owned(), |v| format!("{v:.6}"))
        };
        let mut first: Vec<String> = values.iter().take(FIRST).map(|v| format!("{v:.4}")).collect();
        if values.len() > FIRST {
            first.push("...".to_owned());
        }
        // What is no number compares with nothing and is passed over, unless it comes first.
        (pick(|b, a| b < a), pick(|b, a| b > a), first.join(" "))
    }
    match (tensor.to_f32s(), tensor.to_i64s()) {
        (Ok(values), _) => of(&values),
        (_, Ok(values)) => of(&values),
        _ => ("-".to_owned(), "-".to_owned(), String::new()),
    }
}

fn show_profile(profile: &Profile, out: &mut Output) -> Result<(), CliError> {
    out.line("")?;
    if profile.nodes.is_empty() {
        return out.line("the device gives no times of single operators");
    }
    let total: u64 = profile.nodes.iter().map(|n| n.nanos).sum();
    let share = |n: u64| format!("{:.1} %", n as f64 * 100.0 / total.max(1) as f64);
    let mut table = Table::new(["operator", "nodes", "time", "share"]);
    for (op, count, nanos) in profile.by_op() {
        table.row([op.to_owned(), count.to_string(), time(nanos), share(nanos)]);
    }
    out.table(&table)?;
    out.line("")?;
    let mut nodes: Vec<_> = profile.nodes.iter().collect();
    nodes.sort_by_key(|n| std::cmp::Reverse(n.nanos));
    let most = if out.verbose() > 0 { nodes.len() } else { 20 };
    let mut table = Table::new(["node", "operator", "time", "share", "GFLOP/s", "GB/s"]);
    for n in nodes.into_iter().take(most) {
        let rate = |count: u64| format!("{:.1}", count as f64 / n.nanos.max(1) as f64);
        let (flops, moved) = (rate(n.cost.flops), rate(n.cost.bytes));
        table.row([n.name.clone(), n.op.to_owned(), time(n.nanos), share(n.nanos), flops, moved]);
    }
    out.table(&table)?;
    out.line(format_args!(
        "operators {}, on the device {}, until the host knew {}",
        time(total),
        time(profile.device_nanos),
        time(profile.host_nanos)
    ))?;
    out.line(format_args!(
        "{} moved, {} used in place",
        bytes(profile.bytes_moved),
        bytes(profile.bytes_not_moved)
    ))
}

fn save(
    args: &Args,
    wanted: &[Wanted],
    files: &[(String, TensorFile)],
    out: &mut Output,
) -> Result<(), CliError> {
    let mut guards = Vec::new();
    for (name, file) in files {
        if let Some(w) = wanted.iter().find(|w| w.name == *name) {
            guards.push((file, w, w.region.read()?));
        }
    }
    let saved: Vec<(&TensorFile, Saved<'_>)> = guards
        .iter()
        .map(|(file, w, guard)| (*file, Saved { name: &w.name, info: &w.info, bytes: guard }))
        .collect();
    write_all(&saved, &args.pictures)?;
    for (file, w, guard) in &guards {
        out.line(format_args!("{} -> {} ({})", w.name, file.path.display(), bytes(guard.len() as u64)))?;
    }
    Ok(())
}

fn check_validation(args: &Args, session: &Session) -> Result<(), CliError> {
    if !args.validation {
        return Ok(());
    }
    let count = session.devices().count();
    let messages: Vec<String> =
        (0..count).filter_map(|i| session.context(i)).flat_map(|c| c.validation_messages()).collect();
    if messages.is_empty() {
        return Ok(());
    }
    Err(CliError::Failed(format!("validation: {}", messages.join("\n"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_shown_at_a_glance() {
        let t = Tensor::new([7], &[3f32, 1.0, 2.0, 9.0, 5.0, 6.0, 7.0]).unwrap();
        let (low, high, first) = glance(&t);
        assert_eq!((low.as_str(), high.as_str()), ("1.000000", "9.000000"));
        assert_eq!(first, "3.0000 1.0000 2.0000 9.0000 5.0000 ...");
        let empty = Tensor::new::<i64>([0], &[]).unwrap();
        assert_eq!(glance(&empty), ("-".into(), "-".into(), String::new()));
    }

    #[test]
    fn a_file_is_held_against_the_model() {
        let io = IoInfo {
            name: "x".into(),
            dtype: Some(DType::F32),
            shape: Some(SymShape(vec!["n".into(), 3.into()])),
        };
        let info = |dtype, dims: &[usize]| TensorInfo::new(dtype, onepool::shape::Shape::new(dims).unwrap());
        assert!(check(&io, io.shape.as_ref(), &info(DType::F32, &[5, 3])).is_ok());
        let e = check(&io, io.shape.as_ref(), &info(DType::F64, &[5, 3])).unwrap_err();
        assert_eq!(e.to_string(), "\"x\" holds float32, got float64");
        let e = check(&io, io.shape.as_ref(), &info(DType::F32, &[5, 4])).unwrap_err();
        assert!(e.to_string().contains("expected shape [n, 3], got [5, 4]"), "{e}");
    }
}
