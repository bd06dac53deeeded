//! Standard output: text or JSON, and bars for what takes long.

use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal as _, Stdout, Write as _};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::error::CliError;
use super::table::Table;

/// How long something may take before a bar shows.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where a command prints to. With `--json` text is dropped and one JSON value is printed.
#[derive(Debug)]
pub(super) struct Output {
    json: bool,
    verbose: u8,
    stdout: BufWriter<Stdout>,
}

impl Output {
    /// Standard output.
    pub(super) fn new(json: bool, verbose: u8) -> Self {
        Output { json, verbose, stdout: BufWriter::new(io::stdout()) }
    }

    /// Whether JSON is wanted.
    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    /// How often `-v` was given.
    pub(super) fn verbose(&self) -> u8 {
        self.verbose
    }

    /// Prints a line for people.
    pub(super) fn line(&mut self, text: impl Display) -> Result<(), CliError> {
        if self.json {
            return Ok(());
        }
        writeln!(self.stdout, "{text}").map_err(CliError::Stdout)
    }

    /// Prints part of a line for people, at once.
    pub(super) fn piece(&mut self, text: &str) -> Result<(), CliError> {
        if self.json {
            return Ok(());
        }
        write!(self.stdout, "{text}").map_err(CliError::Stdout)?;
        self.flush()
    }

    /// Prints a line also with `--json`, at once: for protocols.
    pub(super) fn raw_line(&mut self, text: impl Display) -> Result<(), CliError> {
        writeln!(self.stdout, "{text}").map_err(CliError::Stdout)?;
        self.flush()
    }

    /// Prints a table for people.
    pub(super) fn table(&mut self, table: &Table) -> Result<(), CliError> {
        if self.json {
            return Ok(());
        }
        write!(self.stdout, "{table}").map_err(CliError::Stdout)
    }

    /// Prints a value where `--json` was given.
    pub(super) fn json(&mut self, value: &impl Serialize) -> Result<(), CliError> {
        if !self.json {
            return Ok(());
        }
        serde_json::to_writer_pretty(&mut self.stdout, value).map_err(|e| CliError::Stdout(e.into()))?;
        writeln!(self.stdout).map_err(CliError::Stdout)
    }

    /// Hands everything to the system.
    pub(super) fn flush(&mut self) -> Result<(), CliError> {
        self.stdout.flush().map_err(CliError::Stdout)
    }

    /// A bar over bytes, how many of them is told to [`Progress::bytes`]; else as [`Output::progress`].
    pub(super) fn progress_bytes(&self, what: impl Into<String>) -> Progress {
        Progress::new(what.into(), "{msg} [{bar:30}] {bytes}/{total_bytes} {elapsed}", Some(0))
    }

    /// A bar over `len` steps on standard error, where that is a terminal and it takes over a second;
    /// without `len` a spinner.
    pub(super) fn progress(&self, what: impl Into<String>, len: Option<u64>) -> Progress {
        let template = match len {
            Some(_) => "{msg} [{bar:30}] {pos}/{len} {elapsed}",
            None => "{spinner} {msg} {elapsed}",
        };
        Progress::new(what.into(), template, len)
    }
}

/// A bar that shows itself once its work takes long; gone when dropped.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    // Dropping it ends the thread that waits to show the bar.
    _alive: Option<mpsc::Sender<()>>,
}

impl Progress {
    fn new(what: String, template: &str, len: Option<u64>) -> Self {
        let bar = ProgressBar::with_draw_target(len, ProgressDrawTarget::hidden());
        if !io::stderr().is_terminal() {
            return Progress { bar, _alive: None };
        }
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what);
        let (alive, ended) = mpsc::channel::<()>();
        let shown = bar.clone();
        std::thread::spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(Duration::from_millis(100));
            }
        });
        Progress { bar, _alive: Some(alive) }
    }

    /// `done` bytes of `total`.
    pub(super) fn bytes(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// Counts `n` more steps.
    pub(super) fn inc(&self, n: u64) {
        self.bar.inc(n);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
