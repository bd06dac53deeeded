//! A plan's decisions, for people and for JSON.

use super::passes::{PassLog, PassReport};
use super::place::Roofline;
use super::{CrossingReport, ImageReport, PlannedArena};
use crate::ops::{Asked, ChoiceKey, Cost};

/// One node of a plan.
#[derive(Clone, Debug, serde::Serialize)]
pub struct NodeReport {
    /// The node's name.
    pub name: String,
    /// Its operator.
    pub op: &'static str,
    /// The device it runs on.
    pub device: u32,
    /// Why it does not run on the requested device.
    pub fallback: Option<String>,
    /// Its cost.
    pub cost: Cost,
    /// Number of its commands.
    pub commands: u32,
    /// Type and shape of its first output.
    pub output: String,
    /// Where a measured choice changed its kernels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tuned: Vec<TunedKernel>,
}

/// A kernel that runs because it was measured to be faster.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TunedKernel {
    /// What it was chosen for.
    pub key: ChoiceKey,
    /// Its name.
    pub chosen: String,
    /// The one that would run otherwise.
    pub default: String,
}

impl TunedKernel {
    /// The choices of a lowering that changed it, each once.
    pub(super) fn of(asked: &[Asked]) -> Vec<TunedKernel> {
        let mut all: Vec<TunedKernel> = Vec::new();
        for asked in asked.iter().filter(|asked| asked.is_changed()) {
            let tuned = TunedKernel {
                key: asked.key.clone(),
                chosen: asked.name().to_owned(),
                default: asked.default_name().to_owned(),
            };
            if !all.contains(&tuned) {
                all.push(tuned);
            }
        }
        all
    }
}

/// A plan's decisions.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct PlanReport {
    /// Nodes in order.
    pub nodes: Vec<NodeReport>,
    /// Nodes of the graph before folding and fusion.
    pub graph_nodes: usize,
    /// Nodes that were fused into others.
    pub fused: usize,
    /// Operators on bytes that replaced others between DequantizeLinear and QuantizeLinear.
    pub quantized: usize,
    /// Nodes that compute in `float16` where the graph declares `float32`.
    pub halved: usize,
    /// Driver behaviour that the plan takes into account, and wishes that it does not follow.
    pub remarks: Vec<String>,
    /// Dispatches, copies and fills.
    pub commands: usize,
    /// Barriers between them.
    pub barriers: usize,
    /// Arenas.
    pub arenas: Vec<PlannedArena>,
    /// Tensors that the graph requests in images.
    pub images: Vec<ImageReport>,
    /// Tensors that cross between devices.
    pub crossings: Vec<CrossingReport>,
    /// Nodes that run on entry 0 because the device that the graph names is not in the table.
    pub foreign: Vec<String>,
    /// Bytes of constants on all devices.
    pub constant_bytes: u64,
    /// The cost of all nodes.
    pub cost: Cost,
    /// Reports of the passes, in their order.
    #[serde(skip)]
    pub passes: Vec<PassReport>,
    /// How devices were chosen, where they were chosen automatically.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementReport>,
}

impl PlanReport {
    /// Adds the counts of the passes of `log`. Those over the graph, which ran before it was planned, come first.
    pub fn add_passes(&mut self, log: PassLog) {
        self.fused += log.fused();
        self.quantized += log.quantized();
        self.halved += log.halved();
        self.passes.extend(log.passes);
    }

    /// Adds the counts of the passes over the graph ([`prepare`](super::prepare)): the report then counts from the
    /// graph as it was before them.
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
    /// The candidates.
    pub candidates: Vec<CandidateReport>,
    /// The index of the chosen candidate.
    pub chosen: usize,
    /// The choice comes from the cache.
    pub cached: bool,
    /// The measured runs copied values into the inputs, as runs by value do.
    pub copied_in: bool,
    /// They copied the results out.
    pub copied_out: bool,
    /// Speeds of the devices.
    pub devices: Vec<Roofline>,
    /// Operators measured for this choice.
    pub timed: usize,
    /// For each node of [`PlanReport::nodes`] its estimate; without nodes that copy outputs.
    pub nodes: Vec<NodeEstimate>,
    /// Duration of the choice in nanoseconds.
    pub nanos: u64,
}

/// A candidate placement.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CandidateReport {
    /// The entry of the device table that runs every node that it can and that is not placed elsewhere; `None` for
    /// the placement that is cheapest by the estimates.
    pub device: Option<u32>,
    /// Estimated nanoseconds of a run.
    pub estimate_ns: u64,
    /// Nanoseconds of the fastest of several runs, where it was run.
    pub measured_ns: Option<u64>,
}

/// The times of a node when its device was chosen.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct NodeEstimate {
    /// Expected nanoseconds on each device; `None` where the node must not or cannot run.
    pub nanos: Vec<Option<u64>>,
    /// The times are measurements of the operator, not estimates from the device's speeds.
    pub timed: bool,
    /// The caller or the graph placed it.
    pub fixed: bool,
}
