//! `onepool bench generate`: how fast a language model reads a prompt and writes a text.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use super::measure::median;
use crate::error::CliError;
use crate::generate::{Common, SamplingArgs, SessionArgs};
use crate::output::Output;
use crate::table::Table;
use onepool::generate::{CacheType, Finish, GenerateOptions, Generator, Prompt};

/// Arguments of `onepool bench generate`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// A GGUF file, or the model's folder: an ONNX graph with genai_config.json (or config.json) and tokenizer.json.
    model: PathBuf,
    /// Tokens of the prompt.
    #[arg(long, default_value_t = 512, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    prompt_tokens: u32,
    /// Tokens of the text.
    #[arg(short = 'n', long, default_value_t = 128, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    max_tokens: u32,
    /// Tokens that the cache has room for. Without it as many as prompt and text need.
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    /// What the cache of a graph with GroupQueryAttention holds, as for `onepool generate`: f32, f16, q8 or q4.
    #[arg(long, value_name = "TYPE")]
    cache_type: Option<CacheType>,
    /// How many texts the medians are of, after one that is not counted.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    session: SessionArgs,
}

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    device: String,
    context: usize,
    runs: u16,
    plans: u64,
    prompt: Rate,
    /// The tokens after the first one.
    text: Rate,
}

/// Medians, and the least and the most of the runs.
#[derive(Debug, Serialize)]
struct Rate {
    tokens: usize,
    ms: f64,
    tokens_per_s: f64,
    least_per_s: f64,
    most_per_s: f64,
}

impl Rate {
    /// Of `tokens` that took so many milliseconds each time.
    fn of(tokens: usize, mut times: Vec<f64>) -> Self {
        let rate = |ms: f64| if ms > 0.0 { tokens as f64 * 1e3 / ms } else { 0.0 };
        let ms = median(&mut times);
        let (fastest, slowest) =
            (times.first().copied().unwrap_or(0.0), times.last().copied().unwrap_or(0.0));
        Rate { tokens, ms, tokens_per_s: rate(ms), least_per_s: rate(slowest), most_per_s: rate(fastest) }
    }

    fn row(&self, name: &str) -> Vec<String> {
        vec![
            name.to_owned(),
            self.tokens.to_string(),
            format!("{:.3}", self.ms / self.tokens as f64),
            format!("{:.1}", self.tokens_per_s),
            format!("{:.1} to {:.1}", self.least_per_s, self.most_per_s),
        ]
    }
}

pub(super) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    let common = Common::new();
    rates(args, &common, out).map_err(|e| args.session.ended(&common, e))
}

fn rates(args: &Args, common: &Common, out: &mut Output) -> Result<ExitCode, CliError> {
    let folder = args.sampling.open(&args.model)?.cache_type(args.cache_type);
    let sampling = args.sampling.over(folder.sampling());
    sampling.check()?;
    let (count, max_tokens) = (args.prompt_tokens as usize, args.max_tokens as usize);
    let context = args.context.unwrap_or((count + max_tokens + 1).min(folder.context()));
    let session = args.session.open(&folder, common, out)?;
    let device = session.devices().next().map(|d| d.name.clone()).unwrap_or_default();
    let mut generator = Generator::new(folder, session, Some(context))?;
    let options = GenerateOptions {
        max_tokens: Some(max_tokens),
        sampling,
        ignore_end: true,
        reuse: false,
        ..GenerateOptions::default()
    };
    // Small numbers, which every vocabulary has.
    let tokens: Vec<u32> = (0..args.prompt_tokens).map(|i| 1 + i % 13).collect();
    let (mut prompts, mut texts) = (Vec::new(), Vec::new());
    let bar = out.progress("measuring", Some(u64::from(args.runs) + 1));
    for run in 0..=args.runs {
        let made = generator.generate(Prompt::Tokens(&tokens), &options, |_| ControlFlow::Continue(()))?;
        if made.finish == Finish::Cancelled {
            return Err(CliError::Interrupted);
        }
        if made.finish != Finish::Length {
            let what = format!("the text ended after {} tokens: {:?}", made.tokens.len(), made.finish);
            return Err(CliError::Failed(what));
        }
        if run > 0 {
            prompts.push(made.prompt_time.as_secs_f64() * 1e3);
            texts.push(made.generation_time.as_secs_f64() * 1e3);
        }
        bar.inc(1);
    }
    drop(bar);
    let report = Report {
        model: args.model.display().to_string(),
        device,
        context: generator.context(),
        runs: args.runs,
        plans: generator.plans_made(),
        prompt: Rate::of(count, prompts),
        text: Rate::of(max_tokens - 1, texts),
    };
    out.line(format!(
        "{}: {} tokens of context, medians of {} texts",
        report.device, report.context, report.runs
    ))?;
    let mut table = Table::new(["", "tokens", "ms each", "tokens/s", "least to most"]);
    table.row(report.prompt.row("prompt"));
    table.row(report.text.row("text"));
    out.table(&table)?;
    out.json(&report)?;
    Ok(ExitCode::SUCCESS)
}
