//! `onepool completions` and `onepool man`: what packages install next to the program, made from its arguments.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use super::error::CliError;
use super::output::Output;

/// Arguments of `onepool completions`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// The shell that the script is for.
    shell: Shell,
}

/// Arguments of `onepool man`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ManArgs {
    /// Write the page of every command to this folder: onepool.1, onepool-run.1, onepool-bench-model.1, ...
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints the script for a shell.
pub(super) fn completions(args: &CompletionsArgs, out: &mut Output) -> Result<ExitCode, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "onepool", &mut script);
    out.raw_line(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages of all commands, or prints that of the program.
pub(super) fn man(args: &ManArgs, out: &mut Output) -> Result<ExitCode, CliError> {
    // No page tells of `onepool help`.
    let command: Command = crate::Cli::command().disable_help_subcommand(true);
    if let Some(dir) = &args.out {
        let failed = |e| CliError::file("write", dir, e);
        std::fs::create_dir_all(dir).map_err(failed)?;
        clap_mangen::generate_to(command, dir).map_err(failed)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).map_err(CliError::Stdout)?;
    out.raw_line(String::from_utf8_lossy(&page).trim_end())?;
    Ok(ExitCode::SUCCESS)
}
