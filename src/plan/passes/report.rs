//! Reports of passes.

use std::time::{Duration, Instant};

use super::{Counts, PIPELINE, Pass};
use crate::plan::PlanOptions;

/// Whether a pass ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PassStatus {
    /// It ran.
    Ran,
    /// The options do not request it, or its input is missing.
    NotAskedFor,
    /// [`PassSelection`](super::PassSelection) leaves it out.
    LeftOut,
}

/// Report of one pass.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PassReport {
    /// Its name in [`PIPELINE`].
    pub name: &'static str,
    /// Whether it ran.
    pub status: PassStatus,
    /// Nodes before it.
    pub nodes_before: usize,
    /// Nodes after it.
    pub nodes_after: usize,
    /// Its number of changes, in its own unit: nodes, tensors, copies.
    pub changes: usize,
    /// Duration in nanoseconds.
    pub nanos: u64,
}

/// Reports of passes, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassLog {
    /// One report for each pass that could run.
    pub passes: Vec<PassReport>,
}

impl PassLog {
    /// Runs `run` on `work` for `pass`, where the options request it, and records the result; `nodes` counts the
    /// nodes of `work`, `run` returns its changes.
    pub(super) fn run<W, E>(
        &mut self,
        pass: &Pass,
        options: &PlanOptions,
        work: &mut W,
        nodes: impl Fn(&W) -> usize,
        run: impl FnOnce(&mut W) -> Result<usize, E>,
    ) -> Result<(), E> {
        let nodes_before = nodes(work);
        let status = if !(pass.when)(options) {
            PassStatus::NotAskedFor
        } else if options.passes.includes(pass) {
            PassStatus::Ran
        } else {
            PassStatus::LeftOut
        };
        if status != PassStatus::Ran {
            self.skip(pass, nodes_before, status);
            return Ok(());
        }
        let began = Instant::now();
        let changes = run(work)?;
        self.note(pass, [nodes_before, nodes(work)], changes, began.elapsed());
        Ok(())
    }

    /// Records that `pass` ran.
    pub(super) fn note(&mut self, pass: &Pass, nodes: [usize; 2], changes: usize, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let ([nodes_before, nodes_after], status) = (nodes, PassStatus::Ran);
        self.passes.push(PassReport { name: pass.name, status, nodes_before, nodes_after, changes, nanos });
    }

    /// Records that `pass` did not run.
    pub(super) fn skip(&mut self, pass: &Pass, nodes: usize, status: PassStatus) {
        let (nodes_before, nodes_after, changes, nanos) = (nodes, nodes, 0, 0);
        self.passes.push(PassReport { name: pass.name, status, nodes_before, nodes_after, changes, nanos });
    }

    /// Nodes removed since the first pass.
    pub fn removed(&self) -> usize {
        self.passes.iter().map(PassReport::removed).sum()
    }

    /// Nodes that were fused into others.
    pub fn fused(&self) -> usize {
        self.of(Counts::Fused).map(PassReport::removed).sum()
    }

    /// Operators on bytes that replaced others.
    pub fn quantized(&self) -> usize {
        self.of(Counts::Quantized).map(|p| p.changes).sum()
    }

    /// Nodes that compute in `float16` where the graph declares `float32`.
    pub fn halved(&self) -> usize {
        self.of(Counts::Halved).map(|p| p.changes).sum()
    }

    fn of(&self, counts: Counts) -> impl Iterator<Item = &PassReport> {
        let names: Vec<&str> = PIPELINE.iter().filter(|p| p.counts == counts).map(|p| p.name).collect();
        self.passes.iter().filter(move |p| names.contains(&p.name))
    }
}

impl PassReport {
    /// Nodes that the pass removed.
    pub fn removed(&self) -> usize {
        self.nodes_before.saturating_sub(self.nodes_after)
    }
}
