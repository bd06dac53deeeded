//! `onepool bench transfer`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::cli::error::CliError;
use crate::cli::output::Output;

/// Arguments of `onepool bench transfer`.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The device: `auto`, `cpu`, `vulkan`, `vulkan:1`, `vulkan:NAME`, ...; without it ONEPOOL_DEVICE, then `auto`.
    #[arg(long)]
    device: Option<String>,
    /// Where to write a plot (svg).
    #[arg(long)]
    plot: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// [`CliError`].
pub(in crate::cli) fn run(_args: &Args, _out: &mut Output) -> Result<ExitCode, CliError> {
    Err(CliError::NotBuilt("bench transfer"))
}
