//! `onepool bench model`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::cli::error::CliError;
use crate::cli::output::Output;

/// Arguments of `onepool bench model`.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The test case: a folder with `model.onnx` and `test_data_set_0`.
    dir: PathBuf,
    /// The device: `auto`, `cpu`, `vulkan`, `vulkan:1`, `vulkan:NAME`, ...; without it ONEPOOL_DEVICE, then `auto`.
    #[arg(long)]
    device: Option<String>,
    /// Print `ready`, then for every line on standard input make one run and print its milliseconds.
    #[arg(long)]
    serve: bool,
}

/// Runs the command.
///
/// # Errors
/// [`CliError`].
pub(in crate::cli) fn run(_args: &Args, _out: &mut Output) -> Result<ExitCode, CliError> {
    Err(CliError::NotBuilt("bench model"))
}
