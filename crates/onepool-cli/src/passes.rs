//! `--passes`, `--stop-after`, `--without`: what each pass between a model and its plan does.

use super::error::CliError;
use super::output::Output;
use super::table::Table;
use onepool::plan::{PIPELINE, PassReport, PassSelection, PassStatus};

/// Arguments about passes.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct PassArgs {
    /// Show what each pass between the model and its plan did: nodes before and after, changes, time.
    #[arg(long)]
    pub(super) passes: bool,
    /// Leave out every pass after PASS that a plan can do without.
    #[arg(long, value_name = "PASS")]
    stop_after: Option<String>,
    /// Leave out PASS; may be given several times.
    #[arg(long, value_name = "PASS")]
    without: Vec<String>,
}

impl PassArgs {
    /// The passes that are left out.
    pub(super) fn selection(&self) -> Result<PassSelection, CliError> {
        let usage = |e: onepool::plan::PassError| CliError::usage(e.to_string());
        let mut selection = PassSelection::default();
        for name in &self.without {
            selection = selection.without(name).map_err(usage)?;
        }
        match &self.stop_after {
            Some(name) => selection.stop_after(name).map_err(usage),
            None => Ok(selection),
        }
    }
}

/// Prints what `passes` did.
pub(super) fn print(passes: &[PassReport], out: &mut Output) -> Result<(), CliError> {
    out.line("\npasses")?;
    let mut table = Table::new(["pass", "nodes before", "after", "changes", "ms", "what it does"]);
    for pass in passes {
        let does = PIPELINE.iter().find(|p| p.name == pass.name).map_or("", |p| p.does);
        let row = match pass.status {
            PassStatus::Ran => [
                pass.nodes_before.to_string(),
                pass.nodes_after.to_string(),
                pass.changes.to_string(),
                format!("{:.3}", pass.nanos as f64 / 1e6),
                does.to_owned(),
            ],
            status => {
                let why = if status == PassStatus::LeftOut { "left out" } else { "not asked for" };
                let none = || "-".to_owned();
                [pass.nodes_before.to_string(), none(), none(), none(), format!("{why}: {does}")]
            }
        };
        table.row(std::iter::once(pass.name.to_owned()).chain(row));
    }
    out.table(&table)
}
