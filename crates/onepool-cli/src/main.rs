//! The `onepool` program: one file for each command, and what they share.
//!
//! A command is an `Args` struct and `run(&args, &mut output) -> Result<ExitCode, CliError>`. Text goes to
//! standard output through `output::Output`, which knows `--json` and a reader that went away; errors
//! come back as `error::CliError`, whose kind decides the exit code.

#![forbid(unsafe_code)]

mod assign;
mod bench;
mod compile_report;
mod demo;
mod devices;
mod embed;
mod error;
mod explain;
mod generate;
mod input_file;
mod inspect;
mod npy;
mod open;
mod operators;
mod output;
mod packaging;
mod passes;
mod picture;
mod place;
mod precision;
mod report;
mod run;
mod scene;
mod shapes;
mod stop;
mod table;
mod tensor_io;
mod trace;
mod tune;
mod verify;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::error::{FAILED, USAGE};
use self::output::Output;

/// Runs graphs directly on the application's own memory.
#[derive(Debug, Parser)]
#[command(name = "onepool", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    /// Print JSON instead of tables.
    #[arg(long, global = true)]
    json: bool,
    /// Say more. Twice also shows what the library logs as information, three times what is for debugging, four times
    /// all of it; warnings are always shown, but for `verify`. RUST_LOG decides before this.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the devices, what they can do, and why one cannot be used.
    Devices(devices::Args),
    /// Run a model on tensors or pictures from files.
    Run(Box<run::Args>),
    /// Generate text with a language model.
    Generate(Box<generate::Args>),
    /// Make vectors of texts, whose directions tell how alike their meanings are.
    Embed(Box<embed::Args>),
    /// Show what a model is made of.
    Inspect(inspect::Args),
    /// Check models against the outputs that ONNX test cases hold.
    Verify(Box<verify::Args>),
    /// List the operators that models may have.
    Operators(operators::Args),
    /// Show what a driver's compiler makes of the kernels: registers, local memory, scratch, estimates.
    CompileReport(compile_report::Args),
    /// Measure which kernels are the fastest for a model on this device, and keep that for all later runs.
    Tune(Box<tune::Args>),
    /// Measure transfers or a model.
    #[command(subcommand)]
    Bench(bench::Command),
    /// Take the haze or the noise out of a picture in place, and show what that saved.
    Demo(demo::Args),
    /// Print the script that completes the program's arguments in a shell.
    Completions(packaging::CompletionsArgs),
    /// Print the manual page, or write those of all commands.
    Man(packaging::ManArgs),
}

/// The program: reads the arguments, runs the command, prints its error.
fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are errors to clap, and no failure.
            let code = if e.use_stderr() { USAGE } else { 0 };
            // No one may be reading any more.
            let _ = e.print();
            return ExitCode::from(code);
        }
    };
    // Over many cases the same warning would come again and again.
    let quiet = matches!(cli.command, Command::Verify(_));
    log_to_stderr(cli.verbose, quiet);
    stop::watch();
    let mut out = Output::new(cli.json, cli.verbose);
    let result = match &cli.command {
        Command::Devices(args) => devices::run(args, &mut out),
        Command::Run(args) => run::run(args, &mut out),
        Command::Generate(args) => generate::run(args, &mut out),
        Command::Embed(args) => embed::run(args, &mut out),
        Command::Inspect(args) => inspect::run(args, &mut out),
        Command::Verify(args) => verify::run(args, &mut out),
        Command::Operators(args) => operators::run(args, &mut out),
        Command::CompileReport(args) => compile_report::run(args, &mut out),
        Command::Tune(args) => tune::run(args, &mut out),
        Command::Bench(command) => bench::run(command, &mut out),
        Command::Demo(args) => demo::run(args, &mut out),
        Command::Completions(args) => packaging::completions(args, &mut out),
        Command::Man(args) => packaging::man(args, &mut out),
    };
    match result.and_then(|code| out.flush().map(|()| code)) {
        Ok(code) => code,
        Err(e) if e.is_broken_pipe() => ExitCode::SUCCESS,
        Err(e) => {
            // What was printed before the error comes before it.
            let _ = out.flush();
            let _ = writeln!(std::io::stderr(), "onepool: {}", error::chain(&e));
            ExitCode::from(e.exit_code().unwrap_or(FAILED))
        }
    }
}

fn log_to_stderr(verbose: u8, quiet: bool) {
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::prelude::*;
    let level = match verbose {
        0 | 1 if quiet => LevelFilter::ERROR,
        0 | 1 => LevelFilter::WARN,
        2 => LevelFilter::INFO,
        3 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let named = std::env::var("RUST_LOG").ok().and_then(|named| named.parse::<Targets>().ok());
    let filter = named.unwrap_or_else(|| Targets::new().with_default(level));
    // A second subscriber in one process is refused; the first one stays. Where no one reads the log, that is
    // nothing to log about.
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let _ = tracing_subscriber::registry().with(log).with(filter).try_init();
}
