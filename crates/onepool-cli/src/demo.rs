//! `onepool demo`: filters a picture in the memory that holds it, and shows what that saved.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;

use super::bench::measure::{Transfer, measure};
use super::bench::transfer::table_of;
use super::error::CliError;
use super::open::{CacheArgs, open};
use super::output::Output;
use super::picture;
use super::scene::Planes;
use super::stop;
use super::table::si;
use onepool::device::Context;
use onepool::loader::onnx::load_onnx_bytes;
use onepool::memory::import::Verdict;
use onepool::ops::{self, AttrMap, AttrReader, AttrValue, OpError, Operator};
use onepool::registry::DEVICE_VARIABLE;
use onepool::session::{Error, Session};
use onepool::{DType, Graph, GraphBuilder, Tensor};

/// The model of `--filter denoise`: `models/README.md` says what it is and how it was trained.
static MODEL: &[u8] = include_bytes!("../models/denoise.onnx");

/// Arguments of `onepool demo`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// The picture to filter (png or jpeg); without one, one is drawn and spoiled.
    picture: Option<PathBuf>,
    /// The device: `auto`, `cpu`, `vulkan`, `vulkan:1`, `vulkan:NAME`, ...; without it ONEPOOL_DEVICE, then a GPU, then
    /// Vulkan in software, then the CPU.
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
    /// What is done to the picture: dehaze stretches its contrast and is light work, so that moving the picture is much
    /// of a run; denoise is a network of 11 thousand operations a pixel, where moving it may not show.
    #[arg(long, value_enum, default_value_t = Filter::Dehaze)]
    filter: Filter,
    /// Deviation of the noise that is added before denoising, of 255; by default 25 for the drawn picture and 0 for yours.
    #[arg(long)]
    noise: Option<f32>,
    /// Runs of each way, of which medians are taken; by default 30 of dehaze and 5 of denoise.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: Option<u16>,
}

/// What the demo does to a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Filter {
    /// One operator that reads and writes each value once.
    Dehaze,
    /// `models/denoise.onnx`.
    Denoise,
}

/// How much of a hazy picture's light comes from the scene, and the grey of the rest.
const HAZE: (f32, f32) = (0.4, 0.8);

impl Filter {
    /// What width and height must be multiples of: the network halves its picture three times.
    const MULTIPLE: usize = 8;

    fn graph(self, width: usize, height: usize) -> Result<Graph, CliError> {
        match self {
            Filter::Denoise => Ok(load_onnx_bytes(MODEL, None).map_err(Error::from)?),
            Filter::Dehaze => dehaze(width, height),
        }
    }

    fn runs(self) -> u16 {
        match self {
            Filter::Dehaze => 30,
            Filter::Denoise => 5,
        }
    }

    /// A picture as it was before whatever this mends.
    fn spoil(self, clean: &Planes, noise: Option<f32>) -> Result<Planes, CliError> {
        let sigma = noise.unwrap_or(25.0);
        if !(0.0..=255.0).contains(&sigma) {
            return Err(CliError::usage(format!("noise of {sigma}, expected 0 to 255")));
        }
        Ok(match self {
            Filter::Denoise => clean.noisy(sigma),
            Filter::Dehaze => clean.hazy(HAZE.0, HAZE.1),
        })
    }
}

/// `clean = clip(a * hazy + b, 0, 1)` with what undoes [`HAZE`], which is ONNX's `HardSigmoid`.
fn dehaze(width: usize, height: usize) -> Result<Graph, CliError> {
    let op = hard_sigmoid().map_err(|e| CliError::Failed(e.to_string()))?;
    let mut g = GraphBuilder::new("dehaze");
    let hazy = g.input("hazy", DType::F32, [1.into(), 3.into(), height.into(), width.into()]);
    let clean = g.op(op, &[hazy]);
    g.output("clean", clean);
    Ok(g.build().map_err(Error::from)?)
}

fn hard_sigmoid() -> Result<Arc<dyn Operator>, OpError> {
    let (part, grey) = HAZE;
    let attrs = AttrMap::from([
        ("alpha".to_owned(), AttrValue::Float(1.0 / part)),
        ("beta".to_owned(), AttrValue::Float(grey - grey / part)),
    ]);
    let def = ops::find("", "HardSigmoid").ok_or_else(|| OpError::unsupported("HardSigmoid"))?;
    (def.read)(&mut AttrReader::new(&attrs, 1, 1), 13)
}

fn parse_size(text: &str) -> Result<(usize, usize), String> {
    let parse = |s: &str| s.parse::<usize>().ok().filter(|n| (8..=16384).contains(n));
    let sizes = text.split_once('x').and_then(|(w, h)| Some((parse(w)?, parse(h)?)));
    sizes.ok_or_else(|| "expected COLUMNSxROWS, each from 8 to 16384, such as 1920x1080".to_owned())
}

#[derive(Debug, Serialize)]
struct Report {
    device: String,
    kind: onepool::backend::DeviceKind,
    filter: Filter,
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

pub(super) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    let [width, height] = [args.size.0, args.size.1].map(|n| n.next_multiple_of(Filter::MULTIPLE));
    let context = device(args)?;
    let info = context.info().clone();
    out.line(format!("device: {} ({}, {})", info.name, info.api, info.driver))?;
    if info.native && !is_named(args) {
        out.line("there is no usable GPU or Vulkan driver, so the demo runs on the CPU")?;
    }
    let (clean, before) = pictures(args, width, height)?;
    let graph = args.filter.graph(width, height)?;
    let session = stop::cancellable(Session::builder()).graph(graph).context(context).build()?;
    let value = Tensor::new([1, 3, height, width], &before.values).map_err(Error::from)?;
    let runs = usize::from(args.runs.unwrap_or(args.filter.runs()));
    let bar = out.progress("filtering", Some(runs as u64 + 2));
    let (transfer, bound) = measure(&session, &value, runs, &|| bar.inc(1))?;
    drop(bar);
    let filtered = {
        let memory = bound.output.read().map_err(Error::from)?;
        let values = memory.as_slice_of::<f32>().map_err(Error::from)?;
        let values = values.get(..before.values.len()).unwrap_or(values).to_vec();
        Planes { values, width, height }
    };
    std::fs::create_dir_all(&args.out).map_err(|e| CliError::file("create", &args.out, e))?;
    let files = [args.out.join("before.png"), args.out.join("after.png")];
    save(&files[0], &before)?;
    save(&files[1], &filtered)?;
    let psnr = |p: &Planes| clean.as_ref().map(|c| c.psnr(&p.values));
    let (psnr_before, psnr_after) = (psnr(&before), psnr(&filtered));
    let flops =
        session.plan(&[onepool::TensorInfo::new(DType::F32, value.shape().clone())])?.report.cost.flops;
    let [before, after] = files;
    let report = Report {
        device: info.name,
        kind: info.kind,
        filter: args.filter,
        width,
        height,
        before,
        after,
        psnr_before,
        psnr_after,
        gflop: flops as f64 / 1e9,
        transfer,
        verdicts: bound.verdicts,
    };
    print(&report, out)?;
    out.json(&report)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a device was asked for.
fn is_named(args: &Args) -> bool {
    args.device.is_some() || std::env::var(DEVICE_VARIABLE).is_ok_and(|name| !name.trim().is_empty())
}

/// The device that was asked for; else a GPU, else Vulkan in software, because the demo is about its memory.
fn device(args: &Args) -> Result<Context, CliError> {
    let desc = args.cache.desc()?;
    if is_named(args) {
        return open(args.device.as_deref(), &desc);
    }
    let auto = open(Some("auto"), &desc)?;
    if !auto.info().native {
        return Ok(auto);
    }
    Ok(open(Some("vulkan"), &desc).unwrap_or(auto))
}

/// The clean picture, where it is known, and the one to filter.
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
    // A picture of the caller's is taken as it is, unless noise was asked for.
    if args.picture.is_some() && (args.filter == Filter::Dehaze || args.noise.is_none()) {
        return Ok((None, clean));
    }
    let spoiled = args.filter.spoil(&clean, args.noise)?;
    Ok((Some(clean), spoiled))
}

fn save(path: &Path, p: &Planes) -> Result<(), CliError> {
    let image = image::RgbImage::from_raw(p.width as u32, p.height as u32, p.to_rgb8());
    let image = image.ok_or_else(|| CliError::content(path, "the picture has no pixels"))?;
    image.save(path).map_err(|e| CliError::content(path, super::error::chain(&e)))
}

fn print(report: &Report, out: &mut Output) -> Result<(), CliError> {
    let Report { width, height, before, after, transfer, .. } = report;
    let operations = si((report.gflop * 1e9) as u64);
    out.line(format!("picture: {width}x{height}, {operations} operations a run"))?;
    if let Some((b, a)) = report.psnr_before.zip(report.psnr_after) {
        out.line(format!("PSNR against the clean picture: {b:.2} dB before, {a:.2} dB after"))?;
    }
    out.line(format!("written: {}, {}", before.display(), after.display()))?;
    out.line("")?;
    for v in &report.verdicts {
        out.line(v)?;
    }
    out.line("")?;
    table_of(std::slice::from_ref(transfer), out)?;
    let Transfer { saved, runs, .. } = transfer;
    let (by, times) = (saved.median_ms.abs(), saved.ratio);
    out.line(match (saved.is_measured, saved.median_ms > 0.0) {
        (true, true) => {
            format!("bound runs took {by:.3} ms less than copied ones, which took {times:.2} times as long")
        }
        (true, false) => {
            format!("bound runs took {by:.3} ms more than copied ones: binding does not pay here")
        }
        (false, _) => format!("no difference measured between bound and copied runs in {runs} pairs"),
    })
}
