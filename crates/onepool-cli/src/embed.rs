//! `onepool embed`: vectors of texts.

use std::path::PathBuf;
use std::process::ExitCode;

use onepool::generate::{EmbedOptions, Embedded, Embedder};
use serde::Serialize;

use super::error::CliError;
use super::generate::{Common, SessionArgs, given};
use super::output::Output;
use super::table::Table;
use super::tensor_io::{Saved, TensorFile, write_all};

/// Characters of a text that a table shows.
const SHOWN: usize = 48;

/// Arguments of `onepool embed`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// The model's folder, as sentence-transformers exports it: model.onnx or onnx/model.onnx,
    /// tokenizer.json, modules.json.
    model: PathBuf,
    /// A text; may be given several times.
    #[arg(short, long, required_unless_present = "texts", value_name = "TEXT")]
    text: Vec<String>,
    /// A file with a text in each line, after those of --text, or `-` for standard input. Empty lines are none.
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,
    /// The name of a text that the model's settings put before each text, such as `query`.
    #[arg(long, value_name = "NAME")]
    prompt: Option<String>,
    /// Take so many elements of each vector.
    #[arg(long, value_name = "ELEMENTS")]
    dims: Option<usize>,
    /// Write the vectors to this file (.npy, .npz, .pb or raw).
    #[arg(short, long, value_name = "FILE")]
    out: Option<String>,
    #[command(flatten)]
    session: SessionArgs,
}

#[derive(Serialize)]
struct Report {
    model: String,
    device: String,
    /// Elements of a vector.
    dims: usize,
    /// Plans that were made for all texts.
    plans: u64,
    texts: Vec<Text>,
}

#[derive(Serialize)]
struct Text {
    text: String,
    tokens: usize,
    /// Whether its end was cut, because the model takes fewer tokens.
    cut: bool,
    vector: Vec<f32>,
}

pub(super) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    let common = Common::new();
    vectors(args, &common, out).map_err(|e| args.session.ended(&common, e))
}

fn vectors(args: &Args, common: &Common, out: &mut Output) -> Result<ExitCode, CliError> {
    let texts = given(&args.text, args.texts.as_ref())?;
    let file = args.out.as_deref().map(TensorFile::parse).transpose()?;
    let embedder =
        Embedder::open(&args.model, |builder, path| args.session.open_graph(builder, path, common, out))?;
    let mut options = EmbedOptions::default();
    (options.prompt, options.dims) = (args.prompt.clone(), args.dims);
    let made = embedder.embed(&texts.iter().map(String::as_str).collect::<Vec<_>>(), &options)?;
    if let Some(file) = &file {
        let (info, bytes) = (made.vectors.info(), made.vectors.bytes());
        write_all(&[(file, Saved { name: "vectors", info, bytes })], &Default::default())?;
    }
    let report = report(args, &embedder, texts, &made)?;
    let mut table = Table::new(["similar to the first", "tokens", "text"]);
    for text in &report.texts {
        let similar = report.texts.first().map_or(0.0, |first| cosine(&first.vector, &text.vector));
        let mut shown: String = text.text.chars().take(SHOWN).collect();
        if shown.len() < text.text.len() {
            shown += "...";
        }
        let cut = if text.cut { ", cut" } else { "" };
        table.row([format!("{similar:.3}"), format!("{}{cut}", text.tokens), shown]);
    }
    out.table(&table)?;
    out.json(&report)?;
    Ok(ExitCode::SUCCESS)
}

fn report(args: &Args, embedder: &Embedder, texts: Vec<String>, made: &Embedded) -> Result<Report, CliError> {
    let dims = made.vectors.shape().dims().last().copied().unwrap_or(0);
    let vectors = made.vectors.to_f32s()?;
    let rows = vectors.chunks(dims.max(1)).zip(&made.tokens).enumerate();
    let texts = texts.into_iter().zip(rows).map(|(text, (at, (vector, tokens)))| Text {
        text,
        tokens: *tokens,
        cut: made.cut.contains(&at),
        vector: vector.to_vec(),
    });
    Ok(Report {
        model: args.model.display().to_string(),
        device: embedder.session().devices().next().map(|d| d.name.clone()).unwrap_or_default(),
        dims,
        plans: embedder.session().plans_made(),
        texts: texts.collect(),
    })
}

/// The cosine of the angle between two vectors.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(1e-12)
}
