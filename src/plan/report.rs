//! What a plan decided, for people and for JSON.

use super::passes::{PassLog, PassReport};
use super::place::Roofline;
use super::{CrossingReport, ImageReport, PlannedArena};
use crate::ops::Cost;

/// One node of a plan.
#[derive(Clone, Debug, serde::Serialize)]
pub struct NodeReport {
    /// The node's name.
    pub name: String,
    /// Its operator.
    pub op: &'static str,
    /// The device it runs on.
    pub device: u32,
    /// Why it does not run where it was asked to.
    pub fallback: Option<String>,
    /// What it costs.
    pub cost: Cost,
    /// Number of its commands.
    pub commands: u32,
    /// Type and shape of its first output.
    pub output: String,
}

/// What a plan decided.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct PlanReport {
    /// Nodes in order.
    pub nodes: Vec<NodeReport>,
    /// Nodes of the graph before folding and fusion.
    pub graph_nodes: usize,
    /// Nodes that went into others.
    pub fused: usize,
    /// Operators of bytes that took the place of others between DequantizeLinear and QuantizeLinear.
    pub quantized: usize,
    /// Nodes that compute in `float16` where the graph says `float32`.
    pub halved: usize,
    /// What drivers said that the plan takes into account.
    pub remarks: Vec<String>,
    /// Dispatches, copies and fills.
    pub commands: usize,
    /// Barriers between them.
    pub barriers: usize,
    /// Arenas.
    pub arenas: Vec<PlannedArena>,
    /// Tensors that the graph wants in images.
    pub images: Vec<ImageReport>,
    /// Tensors that go from one device to another.
    pub crossings: Vec<CrossingReport>,
    /// Nodes that run on entry 0 because the device that the graph names is not in the table.
    pub foreign: Vec<String>,
    /// Bytes of constants on all devices.
    pub constant_bytes: u64,
    /// What all nodes cost.
    pub cost: Cost,
    /// What each pass did, in their order.
    #[serde(skip)]
    pub passes: Vec<PassReport>,
    /// How devices were chosen, where they were chosen automatically.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementReport>,
}

impl PlanReport {
    /// Counts what the passes of `log` did. Those over the graph, which ran before it was planned, come first.
    pub fn add_passes(&mut self, log: PassLog) {
        self.fused += log.fused();
        self.quantized += log.quantized();
        self.halved += log.halved();
        self.passes.extend(log.passes);
    }

    /// Counts what the passes over the graph did ([`prepare`](super::prepare)): the report is then about the graph as
    /// it was before them.
    pub fn add_prepared(&mut self, log: &PassLog) {
        let own = std::mem::take(&mut self.passes);
        self.graph_nodes += log.removed();
        self.add_passes(log.clone());
        self.passes.extend(own);
    }
}

/// How the devices of nodes were chosen.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct PlacementReport {
    /// What there was to choose from.
    pub candidates: Vec<CandidateReport>,
    /// Which of them was chosen.
    pub chosen: usize,
    /// The choice was made before and kept.
    pub cached: bool,
    /// The runs that were measured copied values into the inputs, as runs by value do.
    pub copied_in: bool,
    /// They copied the results out.
    pub copied_out: bool,
    /// Speeds of the devices.
    pub devices: Vec<Roofline>,
    /// Operators that were timed for this choice.
    pub timed: usize,
    /// For each node of [`PlanReport::nodes`] what was known of it; nothing of copies of outputs.
    pub nodes: Vec<NodeEstimate>,
    /// Nanoseconds that the choice took.
    pub nanos: u64,
}

/// One placement that could be chosen.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CandidateReport {
    /// The entry of the device table that has every node that can run there and is not placed elsewhere; `None` for the
    /// placement that is cheapest by the estimates.
    pub device: Option<u32>,
    /// Nanoseconds of a run by the estimates.
    pub estimate_ns: u64,
    /// Nanoseconds of the fastest run of several, where it was run.
    pub measured_ns: Option<u64>,
}

/// What was known of a node when its device was chosen.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct NodeEstimate {
    /// For each device the nanoseconds expected there; `None` where the node must not or cannot run.
    pub nanos: Vec<Option<u64>>,
    /// The times come from runs of the operator, not from the device's speeds.
    pub timed: bool,
    /// It was placed by the caller or the graph.
    pub fixed: bool,
}
