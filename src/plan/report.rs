//! What a plan decided, for people and for JSON.

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
    /// How many commands it became.
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
}
