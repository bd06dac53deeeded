//! Why there is no plan.

use crate::graph::GraphError;
use crate::kernel::KernelError;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The graph or one of its operators is invalid.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// There is no plan before more is known ([`PlanOutcome::plan`](super::PlanOutcome::plan)).
    #[error("{needs}")]
    Undecided {
        /// What a plan needs.
        needs: String,
    },
    /// A graph input has no type and shape.
    #[error("input {name:?} has no type and shape")]
    MissingInput {
        /// The input.
        name: String,
    },
    /// Computing a constant failed.
    #[error("node {node:?} ({op}) on known values: {source}")]
    Fold {
        /// The node.
        node: String,
        /// Its operator.
        op: &'static str,
        /// Error of its function.
        source: KernelError,
    },
    /// A node asks for a device that is not in the table.
    #[error(
        "node {node:?} is placed on entry {device} of the device table, which has {devices}: place it on an entry below \
         that, or add the device"
    )]
    UnknownDevice {
        /// The node.
        node: String,
        /// The requested device.
        device: u32,
        /// Number of devices.
        devices: usize,
    },
    /// Devices are assigned to a different number of nodes.
    #[error(
        "devices are assigned to {assigned} nodes, the graph has {nodes} once it is specialized and fused"
    )]
    Assignment {
        /// Nodes with a device.
        assigned: usize,
        /// Nodes in all.
        nodes: usize,
    },
    /// Control dependencies, followed through aliases, are too many.
    #[error(
        "control dependencies order more than {limit} pairs of nodes; leave out those that follow from others"
    )]
    TooManyDependencies {
        /// Limit of a plan.
        limit: usize,
    },
    /// Half precision is requested and a device has no storage for it.
    #[error("device {device:?} has no 16-bit storage, which half precision needs; use float32")]
    NoHalf {
        /// The device.
        device: String,
    },
    /// No device of the session has a kernel for a node.
    #[error("node {node:?} ({op}) runs on none of the session's devices: {reason}")]
    NoKernel {
        /// The node.
        node: String,
        /// Its operator.
        op: &'static str,
        /// Error of each device.
        reason: String,
    },
}
