//! `onepool verify`.

use std::process::ExitCode;

use super::error::CliError;
use super::output::Output;

/// Arguments of `onepool verify`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_args: &Args, _out: &mut Output) -> Result<ExitCode, CliError> {
    Err(CliError::NotBuilt("verify"))
}
