//! `--report FILE`: a run or a measurement as one page that needs no network.
//!
//! `data` is what the page holds, `page` shows it; `timeline`, `memory` and `roofline` place its drawings, `against`
//! compares it with an earlier one, `peaks` measures what the devices do at most. Everything that a model names is
//! escaped by the template engine.

mod against;
pub(super) mod data;
mod memory;
mod page;
mod peaks;
mod roofline;
mod scale;
mod timeline;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use self::data::Peak;
pub(super) use self::data::{Report, Way, Ways};
use super::error::CliError;
use super::output::Output;
use onepool::session::Session;

/// Arguments of commands that write reports.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct ReportArgs {
    /// Write a page for a browser: timeline, memory, copies, speeds. Where the file is a report already, the page
    /// shows what changed. No other file is written over.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The report to compare with, in place of the one in the file that --report names.
    #[arg(long, value_name = "FILE", requires = "report")]
    against: Option<PathBuf>,
}

/// A report that was asked for: where it goes, and what it is compared with.
#[derive(Debug)]
pub(super) struct Wanted {
    path: PathBuf,
    before: Option<(PathBuf, Report)>,
}

impl ReportArgs {
    /// What is asked for; an earlier report is read before anything runs.
    pub(super) fn wanted(&self, out: &mut Output) -> Result<Option<Wanted>, CliError> {
        let Some(path) = self.report.clone() else { return Ok(None) };
        if !page::may_be_replaced(&path)? {
            return Err(CliError::usage(format!(
                "--report {}: this file is no report, so it is not written over; name another one, or remove it",
                path.display()
            )));
        }
        let before = match &self.against {
            Some(against) => Some((against.clone(), page::read(against)?)),
            None if path.exists() => match page::read(&path) {
                Ok(before) => Some((path.clone(), before)),
                Err(e) => {
                    out.line(format_args!("nothing to compare with: {}", super::error::chain(&e)))?;
                    None
                }
            },
            None => None,
        };
        Ok(Some(Wanted { path, before }))
    }
}

impl Wanted {
    /// Adds what the devices do at most on which operators ran.
    pub(super) fn measure_peaks(&self, report: &mut Report, session: &Session, out: &Output) {
        let _spinner = out.progress("measuring the devices", None);
        let ran = |entry: usize| {
            report.profile.iter().flat_map(|p| &p.nodes).any(|n| usize::try_from(n.device) == Ok(entry))
        };
        let contexts = (0..).map_while(|entry| Some((entry, session.context(entry)?)));
        let peaks = contexts
            .map(|(entry, context)| if ran(entry) { peaks::measure(context) } else { Peak::default() });
        report.peaks = peaks.collect();
    }

    /// Writes the page.
    pub(super) fn write(&self, report: &Report, out: &mut Output) -> Result<(), CliError> {
        let name = |path: &Path| path.display().to_string();
        let against =
            self.before.as_ref().map(|(path, before)| against::compare(report, before, &name(path)));
        let page = page::render(report, against.as_ref())?;
        std::fs::write(&self.path, page).map_err(|e| CliError::file("write", &self.path, e))?;
        out.line(format_args!("report: {}", self.path.display()))
    }
}
