//! `onepool demo`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::error::CliError;
use super::output::Output;

/// Arguments of `onepool demo`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// The picture to denoise (png or jpeg); without one, one is drawn.
    picture: Option<PathBuf>,
    /// The device: `auto`, `cpu`, `vulkan`, `vulkan:1`, `vulkan:NAME`, ...; without it ONEPOOL_DEVICE, then `auto`.
    #[arg(long)]
    device: Option<String>,
    /// The folder that the before and after pictures are written to.
    #[arg(long, default_value = ".")]
    out: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// [`CliError`].
pub(super) fn run(_args: &Args, _out: &mut Output) -> Result<ExitCode, CliError> {
    Err(CliError::NotBuilt("demo"))
}
