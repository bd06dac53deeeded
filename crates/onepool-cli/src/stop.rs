//! Runs that end early: Ctrl-C, `--time-limit`, and how long one submission may be.

use std::io::Write as _;
use std::process;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use super::error::{CliError, INTERRUPTED};
use onepool::session::{CancelToken, RunOptions, SessionBuilder, SubmissionLimit};

/// Cancelled by Ctrl-C.
static CTRL_C: LazyLock<CancelToken> = LazyLock::new(CancelToken::new);

/// Arguments of commands that run models.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct StopArgs {
    /// The most milliseconds that one submission may keep a device busy, so that a display goes on: `auto` for 100 on
    /// devices that may drive one, `off`, or a number for every device. Without it ONEPOOL_SUBMISSION_LIMIT, then `auto`.
    #[arg(long, value_name = "MS")]
    submission_limit: Option<SubmissionLimit>,
    /// Seconds after which a run is given up. `generate`, `embed` and `bench generate` are given up as a whole, at the
    /// next token or group of texts; what is printed by then stays.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time_limit: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s <= 86_400.0);
    let expected = || format!("{text:?}: expected a number of seconds above 0 and up to 86400");
    seconds.map(Duration::from_secs_f64).ok_or_else(expected)
}

impl StopArgs {
    /// Asks the builder of a session for it.
    pub(super) fn apply(&self, builder: SessionBuilder) -> SessionBuilder {
        let mut run = RunOptions::new().cancel(&CTRL_C);
        if let Some(limit) = self.time_limit {
            run = run.time_limit(limit);
        }
        self.limited(builder.run_options(run))
    }

    /// The same for a command of many runs that began at `began`: the time limit is that of all of them.
    pub(super) fn apply_whole(&self, builder: SessionBuilder, began: Instant) -> SessionBuilder {
        let mut run = RunOptions::new().cancel(&CTRL_C);
        if let Some(limit) = self.time_limit {
            run = run.interrupt(move || began.elapsed() >= limit);
        }
        self.limited(builder.run_options(run))
    }

    fn limited(&self, builder: SessionBuilder) -> SessionBuilder {
        match self.submission_limit {
            Some(limit) => builder.submission_limit(limit),
            None => builder,
        }
    }

    /// What a command of [`StopArgs::apply_whole`] failed with: `error`, unless its time was up.
    pub(super) fn ended(&self, began: Instant, error: CliError) -> CliError {
        let is_cancelled = error.exit_code() == Some(INTERRUPTED) && !is_pressed();
        match self.time_limit.filter(|limit| is_cancelled && began.elapsed() >= *limit) {
            Some(limit) => CliError::Failed(format!("the time limit of {} s was up", limit.as_secs_f64())),
            None => error,
        }
    }
}

/// A session whose runs Ctrl-C ends.
pub(super) fn cancellable(builder: SessionBuilder) -> SessionBuilder {
    StopArgs::default().apply(builder)
}

/// Whether Ctrl-C was pressed.
pub(super) fn is_pressed() -> bool {
    CTRL_C.is_cancelled()
}

/// The first Ctrl-C ends runs when devices are done with what they have; the second one ends the process.
pub(super) fn watch() {
    let pressed = || {
        let mut text = std::io::stderr();
        if CTRL_C.is_cancelled() {
            let _ = writeln!(text, "onepool: ended at once");
            process::exit(INTERRUPTED.into());
        }
        CTRL_C.cancel();
        let _ = writeln!(
            text,
            "onepool: ending when the device is done with what it has; Ctrl-C again ends at once"
        );
    };
    // Where the system has no such signal to give, Ctrl-C does what it does everywhere.
    if let Err(cause) = ctrlc::set_handler(pressed) {
        tracing::debug!(%cause, "Ctrl-C is not watched");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_whose_time_is_up_is_not_interrupted() {
        let limit = StopArgs { time_limit: Some(Duration::from_nanos(1)), ..StopArgs::default() };
        let began = Instant::now();
        std::thread::sleep(Duration::from_millis(1));
        let said = limit.ended(began, CliError::Interrupted).to_string();
        assert_eq!(said, "the time limit of 0.000000001 s was up");
        assert!(matches!(limit.ended(began, CliError::usage("x")), CliError::Usage(_)));
        assert!(matches!(StopArgs::default().ended(began, CliError::Interrupted), CliError::Interrupted));
    }

    #[test]
    fn times_are_told_in_seconds() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for bad in ["", "-1", "0", "fast", "NaN", "inf", "1e99"] {
            assert!(seconds(bad).unwrap_err().contains("seconds"), "{bad}");
        }
    }
}
