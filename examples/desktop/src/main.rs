//! A window that filters a moving picture live: with copies, and without any, on the device and the buffers of the
//! window's own renderer.

mod app;
mod devices;
mod filter;
mod history;
mod pipeline;
mod scene;
mod screen;
mod script;
mod settings;
mod state;
mod view;
mod window;
mod worker;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser as _;
use wgpu_shared::Shared;

use crate::app::Beginning;
use crate::devices::Sharing;
use crate::script::Script;
use crate::settings::{Mode, Settings};

/// Filters a moving picture live in a window, with copies and without.
#[derive(Debug, clap::Parser)]
#[command(name = "desktop")]
struct Args {
    /// The device: `shared` (the window's own), `vulkan`, `opencl`, `cpu`, ...
    #[arg(long)]
    device: Option<String>,
    /// How frames reach the device and come back.
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// identity, invert, sepia, blur, edges, denoise, or a model that ends with .onnx.
    #[arg(long)]
    filter: Option<String>,
    /// `card`, which moves, or a picture (png or jpeg).
    #[arg(long)]
    source: Option<String>,
    /// Columns and rows of a frame, such as 640x360.
    #[arg(long)]
    size: Option<String>,
    /// Deviation of the noise that is added, of 255.
    #[arg(long)]
    noise: Option<String>,
    /// light, dark or system.
    #[arg(long, default_value = "system")]
    theme: String,
    /// Size of the window in points.
    #[arg(long, default_value = "1280x800")]
    window: String,
    /// Lets the window have a device of its own, which runs of models do not share.
    #[arg(long)]
    separate: bool,
    /// Writes a picture of the window after some frames, and ends.
    #[arg(long, value_name = "FILE", conflicts_with = "script")]
    screenshot: Option<PathBuf>,
    /// Frames before that picture.
    #[arg(long, default_value_t = 60)]
    frames: u64,
    /// Drives the window by the lines of a file, `-` for standard input: settings as above without dashes, and
    /// `wait FRAMES`, `theme NAME`, `screenshot FILE`, `print`.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("desktop: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), String> {
    let theme = script::parse_theme(&args.theme)?;
    let (width, height) = settings::parse_size(&args.window)?;
    let script = match (&args.script, args.screenshot) {
        (Some(path), _) => Some(Script::parse(&text(path)?)?),
        (None, Some(to)) => Some(Script::screenshot(to, args.frames)),
        (None, None) => None,
    };
    let mut settings = Settings::default();
    let given =
        [("filter", args.filter), ("source", args.source), ("size", args.size), ("noise", args.noise)];
    for (name, value) in given {
        value.map_or(Ok(()), |value| settings.set(name, &value))?;
    }
    settings.mode = args.mode.unwrap_or(settings.mode);
    let sharing = share(args.separate);
    // Without a device in common, whatever onepool finds; the window says why.
    settings.device = match (args.device, &sharing) {
        (Some(device), _) => device,
        (None, Ok(_)) => settings.device,
        (None, Err(_)) => "auto".to_owned(),
    };
    window::run(Beginning { settings, theme, script, sharing }, (width as f32, height as f32))
}

/// The device of window and models, or why there is none.
fn share(separate: bool) -> Sharing {
    if separate {
        return Err("--separate asks for two".to_owned());
    }
    let shared = Shared::open(eframe::wgpu::InstanceFlags::empty().with_env());
    shared.map(Arc::new).map_err(|e| filter::sentence(&*e))
}

fn text(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = match path.to_str() {
        Some("-") => std::io::stdin().read_to_string(&mut text),
        _ => std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text)),
    };
    read.map_err(|e| format!("{} is not read: {e}", path.display()))?;
    Ok(text)
}
