//! Options of plans, the assignment of nodes to devices, and the cache that plans of one session share.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use super::passes::{Activations, HalfConstants, Integers, PassSelection, Precision};
use crate::backend::DeviceInfo;
use crate::memory::import::ImportCosts;
use crate::ops::Choices;
use crate::ops::pointwise::Programs;

/// Options of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Lets operators absorb their bias, normalization and activation, and fuses chains of pointwise operators.
    pub fuse: bool,
    /// Whether `fuse` includes chains of pointwise operators.
    pub chains: bool,
    /// Lets outputs overwrite inputs that are dead afterwards.
    pub in_place: bool,
    /// Lets an operator without a kernel on its device run on the first native device of the table.
    pub fallback: bool,
    /// Precision of a `float32` graph.
    pub precision: Precision,
    /// Whether operators may round their activations where the model allows it.
    pub activations: Activations,
    /// Whether operators between DequantizeLinear and QuantizeLinear compute with bytes.
    pub integers: Integers,
    /// Lets the hardware interpolate between texels of images even where its weights have too few bits to be exact.
    pub coarse_filter: bool,
    /// Devices by node name; overrides everything else.
    pub place_nodes: BTreeMap<String, u32>,
    /// Devices by operator name; overrides the graph.
    pub place_ops: BTreeMap<String, u32>,
    /// The device of all nodes that neither these nor the graph place; overrides automatic placement.
    pub place_rest: Option<u32>,
    /// Lets devices access tensors between them in place, where they can; else the session copies them.
    pub share: bool,
    /// Whether other sessions may read the same parameters as they lie: native functions that can do so too pack none.
    pub shared_parameters: bool,
    /// Which passes of [`PIPELINE`](super::PIPELINE) are left out.
    pub passes: PassSelection,
    /// Kernels that were measured to be faster, by entry of the device table; an entry that is missing has none.
    pub choices: Vec<Arc<Choices>>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        PlanOptions {
            fuse: true,
            chains: true,
            in_place: true,
            fallback: true,
            precision: Precision::F32,
            activations: Activations::Allowed,
            integers: Integers::Auto,
            coarse_filter: false,
            place_nodes: BTreeMap::new(),
            place_ops: BTreeMap::new(),
            place_rest: None,
            share: true,
            shared_parameters: false,
            passes: PassSelection::default(),
            choices: Vec::new(),
        }
    }
}

/// The devices of the nodes that neither the caller nor the graph places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// Every node runs on one entry of the device table.
    All(u32),
    /// Undecided: the result is an [`UnplacedPlan`](super::UnplacedPlan) instead of a plan.
    Open,
    /// The device of each node of the [`UnplacedPlan`](super::UnplacedPlan) of the same options. Entries of nodes
    /// that the caller or the graph places are ignored.
    Each(Arc<[u32]>),
}

impl Default for Assignment {
    fn default() -> Self {
        Assignment::All(0)
    }
}

impl Assignment {
    /// The device of nodes that passes add: copies into outputs, conversions.
    pub(super) fn rest(&self) -> u32 {
        match self {
            Assignment::All(device) => *device,
            Assignment::Open => 0,
            Assignment::Each(devices) => devices.last().copied().unwrap_or(0),
        }
    }
}

/// Intermediate results shared by plans.
#[derive(Debug, Default)]
pub struct PlanCache {
    pub(super) programs: Programs,
    pub(super) halves: HalfConstants,
    costs: OnceLock<Vec<ImportCosts>>,
}

impl PlanCache {
    /// Sets the import costs of each entry of the device table, once; without them the presets apply.
    pub fn know_costs(&self, costs: impl FnOnce() -> Vec<ImportCosts>) {
        self.costs.get_or_init(costs);
    }

    /// Import costs of entry `device` of the table, which is `info`.
    pub(super) fn costs(&self, device: u32, info: &DeviceInfo) -> ImportCosts {
        let known = self.costs.get().and_then(|costs| costs.get(device as usize)).copied();
        known.unwrap_or_else(|| ImportCosts::preset(info.memory.shares_host_memory()))
    }
}
