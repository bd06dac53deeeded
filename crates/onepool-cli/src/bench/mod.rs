//! `onepool bench`.

mod boundary;
mod generate;
pub(super) mod measure;
mod model;
mod plot;
pub(super) mod transfer;

use std::process::ExitCode;

use super::error::CliError;
use super::output::Output;

/// What can be measured.
#[derive(Clone, Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Copying in and out against binding the caller's memory.
    Transfer(transfer::Args),
    /// What it costs to go from one device to another and back: in shared memory against copies.
    Boundary(boundary::Args),
    /// The time of a model on the inputs of a test case.
    Model(model::Args),
    /// Tokens in a second of a language model: those of a prompt, and those of a text.
    Generate(generate::Args),
}

pub(super) fn run(command: &Command, out: &mut Output) -> Result<ExitCode, CliError> {
    match command {
        Command::Transfer(args) => transfer::run(args, out),
        Command::Boundary(args) => boundary::run(args, out),
        Command::Model(args) => model::run(args, out),
        Command::Generate(args) => generate::run(args, out),
    }
}
