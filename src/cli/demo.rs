//! `onepool demo`: denoises a picture in the memory that holds it, and shows what that saved.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use super::bench::measure::{Transfer, measure};
use super::bench::transfer::table_of;
use super::error::CliError;
use super::open::{CacheArgs, open};
use super::output::Output;
use super::picture;
use super::scene::Planes;
use super::stop;
use crate::device::Context;
use crate::loader::onnx::load_onnx_bytes;
use crate::memory::import::Verdict;
use crate::registry::DEVICE_VARIABLE;
use crate::session::{Error, Session};
use crate::{DType, Tensor};

/// The model: `models/README.md` says what it is and how it was trained.
static MODEL: &[u8] = include_bytes!("../../models/denoise.onnx");
/// The model halves its picture three times.
const MULTIPLE: usize = 8;

/// Arguments of `onepool demo`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// The picture to denoise (png or jpeg); without one, one is drawn and made noisy.
    picture: Option<PathBuf>,
    /// The device: `auto`, `cpu`, `vulkan`, `vulkan:1`, `vulkan:NAME`, ...; without it ONEPOOL_DEVICE, then `auto`.
    #[arg(long)]
    device: Option<String>,
    #[command(flatten)]
    cache: CacheArgs,
    /// The folder that the before and after pictures are written to.
    #[arg(long, default_value = ".")]
    out: PathBuf,
    /// Columns and rows that the picture is brought to; rounded up to multiples of 8.
    #[arg(long, value_parser = parse_size, default_value = "1920x1080")]
    size: (usize, usize),
    /// Deviation of the noise that is added, of 255; by default 25 for the drawn picture and 0 for yours.
    #[arg(long)]
    noise: Option<f32>,
    /// Runs that the times are medians of.
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

fn parse_size(text: &str) -> Result<(usize, usize), String> {
    let parse = |s: &str| s.parse::<usize>().ok().filter(|n| (8..=16384).contains(n));
    let sizes = text.split_once('x').and_then(|(w, h)| Some((parse(w)?, parse(h)?)));
    sizes.ok_or_else(|| "expected COLUMNSxROWS, each from 8 to 16384, such as 1920x1080".to_owned())
}

#[derive(Debug, Serialize)]
struct Report {
    device: String,
    kind: crate::backend::DeviceKind,
    width: usize,
    height: usize,
    before: PathBuf,
    after: PathBuf,
    psnr_before: Option<f64>,
    psnr_after: Option<f64>,
    gflop: f64,
    transfer: Transfer,
    verdicts: Vec<Verdict>,
}

/// Runs the command.
///
/// # Errors
/// [`CliError`].
pub(super) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    let (width, height) = (args.size.0.next_multiple_of(MULTIPLE), args.size.1.next_multiple_of(MULTIPLE));
    let context = device(args)?;
    let info = context.info().clone();
    out.line(format!("device: {} ({}, {})", info.name, info.api, info.driver))?;
    if info.api == "cpu" && args.device.is_none() {
        out.line("no usable Vulkan device was found, so the demo runs on the CPU")?;
    }
    let (clean, noisy) = pictures(args, width, height)?;
    let graph = load_onnx_bytes(MODEL, None).map_err(Error::from)?;
    let session = stop::cancellable(Session::builder()).graph(graph).context(context).build()?;
    let value = Tensor::new([1, 3, height, width], &noisy.values).map_err(Error::from)?;
    let runs = args.runs.clamp(1, 1000);
    let bar = out.progress("denoising", Some(runs as u64 + 2));
    let (transfer, bound) = measure(&session, &value, runs, &|| bar.inc(1))?;
    drop(bar);
    let denoised = {
        let memory = bound.output.read().map_err(Error::from)?;
        let values = memory.as_slice_of::<f32>().map_err(Error::from)?;
        let values = values.get(..noisy.values.len()).unwrap_or(values).to_vec();
        Planes { values, width, height }
    };
    std::fs::create_dir_all(&args.out).map_err(|e| CliError::file("create", &args.out, e))?;
    let (before, after) = (args.out.join("before.png"), args.out.join("after.png"));
    save(&before, &noisy)?;
    save(&after, &denoised)?;
    let psnr = |p: &Planes| clean.as_ref().map(|c| c.psnr(&p.values));
    let flops = session.plan(&[crate::TensorInfo::new(DType::F32, value.shape().clone())])?.report.cost.flops;
    let report = Report {
        device: info.name,
        kind: info.kind,
        width,
        height,
        psnr_before: psnr(&noisy),
        psnr_after: psnr(&denoised),
        before,
        after,
        gflop: flops as f64 / 1e9,
        transfer,
        verdicts: bound.verdicts,
    };
    print(&report, out)?;
    out.json(&report)?;
    Ok(ExitCode::SUCCESS)
}

/// The device that was asked for; else Vulkan, be it in software, because the demo is about its memory.
fn device(args: &Args) -> Result<Context, CliError> {
    let named = args.device.is_some() || std::env::var_os(DEVICE_VARIABLE).is_some();
    let desc = args.cache.desc()?;
    if !named && let Ok(context) = open(Some("vulkan"), &desc) {
        return Ok(context);
    }
    open(args.device.as_deref(), &desc)
}

/// The clean picture, where it is known, and the one to denoise.
fn pictures(args: &Args, width: usize, height: usize) -> Result<(Option<Planes>, Planes), CliError> {
    let clean = match &args.picture {
        None => Planes::scene(width, height),
        Some(path) => {
            let rgb = picture::open(path)?
                .resize_to_fill(width as u32, height as u32, image::imageops::FilterType::Lanczos3)
                .to_rgb32f();
            let pixels = rgb.as_raw();
            let values = (0..3).flat_map(|c| pixels.iter().skip(c).step_by(3).copied()).collect();
            Planes { width, height, values }
        }
    };
    let sigma = args.noise.unwrap_or(if args.picture.is_some() { 0.0 } else { 25.0 });
    if !(0.0..=255.0).contains(&sigma) {
        return Err(CliError::usage(format!("noise of {sigma}, expected 0 to 255")));
    }
    if sigma == 0.0 {
        return Ok((None, clean));
    }
    let noisy = clean.noisy(sigma);
    Ok((Some(clean), noisy))
}

fn save(path: &Path, p: &Planes) -> Result<(), CliError> {
    let image = image::RgbImage::from_raw(p.width as u32, p.height as u32, p.to_rgb8());
    let image = image.ok_or_else(|| CliError::content(path, "the picture has no pixels"))?;
    image.save(path).map_err(|e| CliError::content(path, super::error::chain(&e)))
}

fn print(report: &Report, out: &mut Output) -> Result<(), CliError> {
    let Report { width, height, before, after, .. } = report;
    out.line(format!("picture: {width}x{height}, {:.1} GFLOP a run", report.gflop))?;
    if let Some((b, a)) = report.psnr_before.zip(report.psnr_after) {
        out.line(format!("PSNR against the clean picture: {b:.2} dB before, {a:.2} dB after"))?;
    }
    out.line(format!("written: {}, {}", before.display(), after.display()))?;
    out.line("")?;
    for v in &report.verdicts {
        out.line(v)?;
    }
    out.line("")?;
    table_of(std::slice::from_ref(&report.transfer), out)
}
