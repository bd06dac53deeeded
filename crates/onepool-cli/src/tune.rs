//! `onepool tune` and `--tuning`: kernels chosen by measurement.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use super::error::CliError;
use super::open::{CacheArgs, load_on, open_table, selector};
use super::output::Output;
use super::place::cache_folder;
use super::precision::PrecisionArgs;
use super::shapes::ModelArgs;
use super::stop;
use super::table::{Table, count, time};
use onepool::generate::{GenerateOptions, Generator, ModelFolder, Prompt};
use onepool::session::{Session, SessionBuilder, TunedChoice, Tuning, TuningReport};

/// The argument that says whether measured kernels are taken.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct TuningArgs {
    /// Which kernels run: `off` for those of the built-in rules, `kept` for those that `onepool tune` found to be faster on
    /// this device, or how many seconds to measure what is not known yet.
    #[arg(long, value_name = "off|kept|SECONDS", default_value = "off", value_parser = tuning)]
    tuning: Tuning,
}

fn tuning(text: &str) -> Result<Tuning, String> {
    match text {
        "off" => Ok(Tuning::Off),
        "kept" => Ok(Tuning::Kept),
        _ => seconds(text).map(Tuning::Within).map_err(|_| {
            format!("{text:?} is neither `off` nor `kept` nor a number of seconds from 0 to 86400")
        }),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.0..=86_400.0).contains(s));
    let seconds = seconds.ok_or_else(|| format!("{text:?} is no number of seconds from 0 to 86400"))?;
    Ok(Duration::from_secs_f64(seconds))
}

impl TuningArgs {
    /// Asks the builder of a session for it; `cache` is the folder that keeps measurements, where one is named.
    pub(super) fn apply(self, builder: SessionBuilder, cache: Option<PathBuf>) -> SessionBuilder {
        let builder = builder.tuning(self.tuning);
        match cache.or_else(cache_folder) {
            Some(folder) => builder.tuning_folder(folder),
            None => builder,
        }
    }
}

/// Arguments of `onepool tune`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    source: ModelArgs,
    /// A device: `auto`, `vulkan`, `vulkan:1`, `vulkan:NAME`, ... Without it ONEPOOL_DEVICE, then `auto`.
    #[arg(short, long)]
    device: Option<String>,
    /// The most seconds to measure. What takes longest is measured first, and the next call goes on.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    budget: Duration,
    /// Of a language model without --shape and --dim a token and then a prompt of so many tokens are measured.
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    prompt_tokens: u32,
    /// Tokens that its prompt and text may have, as `generate` will be told; else 128 more than the prompt.
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    precision: PrecisionArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    model: String,
    device: String,
    /// Where the choices are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    folder: Option<String>,
    budget_s: f64,
    /// Nanoseconds of the nodes that were measured.
    before_ns: u64,
    /// The same with the kernels that were chosen.
    after_ns: u64,
    #[serde(flatten)]
    report: &'a TuningReport,
}

pub(super) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    let desc = args.cache.desc()?;
    let folder = desc.cache_dir.clone().or_else(cache_folder);
    let selectors: Vec<String> = args.device.iter().cloned().collect();
    let table = open_table(&selectors, true, &desc)?;
    let device = table.first().map(|context| selector(context.info())).unwrap_or_default();
    if table.first().is_some_and(|context| context.info().native) {
        return Err(CliError::usage(format!(
            "--device {device}: there is nothing to choose between on a device whose kernels are the processor's functions"
        )));
    }
    let apis: Vec<&str> = table.iter().map(|context| context.info().api).collect();
    let text = if args.is_text() { Some(ModelFolder::open(&args.source.model)?) } else { None };
    let model = text.as_ref().map_or_else(|| args.source.model.clone(), ModelFolder::graph);
    let (graph, moved) = load_on(&model, args.source.params.as_deref(), &apis, true, out)?;
    let mut builder =
        stop::cancellable(Session::builder()).graph(graph).foreign_nodes(moved).context_desc(desc);
    builder = args.precision.apply(builder).tuning(Tuning::Within(args.budget));
    if let Some(folder) = &folder {
        builder = builder.tuning_folder(folder);
    }
    let session = table.into_iter().fold(builder, |builder, context| builder.context(context)).build()?;
    let report = match text {
        Some(folder) => args.measure_text(folder, session, out)?,
        None => {
            let (infos, open) = args.source.infos(&session.inputs())?;
            if let Some(open) = open.first() {
                let what = format!("the shape of {open} is open: give --shape or --dim");
                return Err(CliError::usage(what));
            }
            let _spinner = out.progress("measuring", None);
            session.plan(&infos)?;
            session.tuning_report()
        }
    };
    let (before_ns, after_ns) = report.total_ns();
    let folder = folder.map(|folder| folder.display().to_string());
    describe(&report, folder.as_deref(), out)?;
    out.json(&Report {
        model: args.source.model.display().to_string(),
        device,
        folder,
        budget_s: args.budget.as_secs_f64(),
        before_ns,
        after_ns,
        report: &report,
    })?;
    if stop::is_pressed() { Err(CliError::Interrupted) } else { Ok(ExitCode::SUCCESS) }
}

impl Args {
    /// Whether the model makes texts: its folder has the settings of that, or it is a GGUF file.
    fn is_text(&self) -> bool {
        let model = &self.source.model;
        let is_gguf = model.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        let settings = ["genai_config.json", "generation_config.json"];
        !self.source.has_sizes() && (is_gguf || settings.iter().any(|name| model.join(name).is_file()))
    }

    /// Makes texts, for which the session plans, and so measures, what a token and a prompt take.
    fn measure_text(
        &self,
        folder: ModelFolder,
        session: Session,
        out: &Output,
    ) -> Result<TuningReport, CliError> {
        let context = self.context.unwrap_or(self.prompt_tokens as usize + 128).min(folder.context());
        let mut generator = Generator::new(folder, session, Some(context))?;
        let options = GenerateOptions {
            max_tokens: Some(2),
            ignore_end: true,
            reuse: false,
            ..GenerateOptions::default()
        };
        // Small numbers, which every vocabulary has.
        let room = generator.context().saturating_sub(2).max(1);
        let tokens: Vec<u32> = (0..self.prompt_tokens).map(|i| 1 + i % 13).take(room).collect();
        let _spinner = out.progress("measuring", None);
        // A text has more tokens than prompts, so they are measured first.
        for prompt in [&tokens[..1], &tokens] {
            generator.generate(Prompt::Tokens(prompt), &options, |_| match stop::is_pressed() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            })?;
        }
        Ok(generator.session().tuning_report())
    }
}

fn describe(report: &TuningReport, folder: Option<&str>, out: &mut Output) -> Result<(), CliError> {
    let changed: Vec<&TunedChoice> = report.measured.iter().filter(|choice| choice.is_changed()).collect();
    let shown = if out.verbose() > 0 { report.measured.iter().collect() } else { changed.clone() };
    if !shown.is_empty() {
        let mut table = Table::new(["operator", "for", "nodes", "kernel", "time", "chosen", "time", "gain"]);
        for choice in shown {
            let gain = 100.0 * (1.0 - choice.chosen_ns as f64 / choice.default_ns.max(1) as f64);
            table.row([
                choice.op.to_owned(),
                choice.key.to_string(),
                choice.nodes.to_string(),
                choice.default.clone(),
                time(choice.default_ns),
                if choice.is_changed() { choice.chosen.clone() } else { "-".to_owned() },
                time(choice.chosen_ns),
                format!("{gain:.0} %"),
            ]);
        }
        out.table(&table)?;
    }
    let (before, after) = report.total_ns();
    out.line(format_args!(
        "{} measured in {:.1} s, {} changed; the nodes measured took {} and take {}",
        count(report.measured.len(), "choice"),
        report.seconds,
        changed.len(),
        time(before),
        time(after),
    ))?;
    if !report.out_of_time.is_empty() {
        let left = count(report.out_of_time.len(), "choice");
        let why = if stop::is_pressed() { "it was interrupted" } else { "the time was over" };
        out.line(format_args!("{why} before {left} or more: another call goes on"))?;
    }
    if out.verbose() > 0 {
        for key in &report.not_measured {
            out.line(format_args!("not measured: {key}"))?;
        }
    }
    match folder {
        Some(folder) if report.not_kept > 0 => {
            let lost = count(report.not_kept, "choice");
            out.line(format_args!("{lost} not kept: {folder} cannot be written or has no room"))
        }
        Some(folder) if !report.measured.is_empty() => out.line(format_args!("kept in {folder}")),
        Some(_) => Ok(()),
        None => out.line("not kept: there is no cache folder, give --cache DIR"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_read() {
        assert_eq!(tuning("off"), Ok(Tuning::Off));
        assert_eq!(tuning("kept"), Ok(Tuning::Kept));
        assert_eq!(tuning("0.5"), Ok(Tuning::Within(Duration::from_millis(500))));
        for bad in ["", "on", "-1", "NaN", "1e9"] {
            assert!(tuning(bad).is_err_and(|e| e.contains("`kept`")), "{bad}");
        }
        assert!(seconds("kept").is_err());
    }
}
