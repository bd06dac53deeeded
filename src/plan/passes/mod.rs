//! Everything between a loaded graph and its lowered nodes, as one ordered list of passes: [`PIPELINE`].
//!
//! Passes over the graph run once, when a session is built ([`prepare`]). The others run for every set of input
//! shapes, over the [`Flow`] that `specialize` returns. A pass returns its number of changes; [`PassReport`] holds
//! it.

mod absorb;
mod copy_between_devices;
mod drop_identities;
mod exact_activations;
mod fold_head_transposes;
mod fold_weights;
mod fuse_chains;
mod join_equal;
mod join_gates;
mod join_norms;
mod links;
mod mixed_precision;
mod norms_in_products;
mod place_in_images;
mod place_nodes;
mod quantize;
mod read_transposed;
mod recognize_activations;
mod recognize_attention;
mod recognize_norms;
mod recognize_rotations;
mod report;
mod run;
mod select;
#[cfg(test)]
mod tests;
mod update_in_place;
mod weights_to_f16;

#[cfg(test)]
pub(crate) use absorb::absorb;
pub use copy_between_devices::{Crossing, CrossingReport};
pub use exact_activations::Activations;
pub use mixed_precision::{HalfConstants, Precision};
pub use quantize::Integers;
#[cfg(test)]
pub(crate) use recognize_activations::recognize_activations;
pub use report::{PassLog, PassReport, PassStatus};
pub use run::{GraphCx, Share, prepare, prepare_and_share};
pub(super) use run::{lowered, rewritten};
pub use select::{PassError, PassSelection};

use super::lowering::{LoweredFlow, PlanCx};
use super::{Flow, PlanError, PlanOptions};
use crate::graph::Graph;

/// One step from a loaded graph to its lowered nodes.
#[derive(Debug)]
pub struct Pass {
    /// Its name.
    pub name: &'static str,
    /// What it does, as one sentence.
    pub does: &'static str,
    /// Why no plan can do without it; `None` where it may be left out.
    pub needed: Option<&'static str>,
    /// Whether it applies.
    when: fn(&PlanOptions) -> bool,
    /// The sum of the plan's report to which its changes are added.
    counts: Counts,
    run: PassFn,
}

/// The meaning of a pass's changes in the plan's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    /// No sum.
    Changes,
    /// Removed nodes were fused into others.
    Fused,
    /// Operators that compute on bytes.
    Quantized,
    /// Nodes in `float16`.
    Halved,
}

/// The form of a pass, by what it works on, in pipeline order.
#[derive(Clone, Copy, Debug)]
enum PassFn {
    /// On the graph, once.
    Graph(fn(&mut Graph, &GraphCx<'_>) -> usize),
    /// On the graph, by the owner of parameters of several graphs.
    Share,
    /// From the graph to a flow.
    Specialize,
    /// On the flow, while nodes may have no device yet.
    Flow(fn(&mut Flow, &PlanCx<'_>) -> Result<usize, PlanError>),
    /// On the flow, after its nodes have devices.
    Placed(fn(&mut Flow, &PlanCx<'_>) -> Result<usize, PlanError>),
    /// Lowers the flow.
    Lower,
    /// On the lowered flow.
    Lowered(fn(&mut LoweredFlow, &PlanCx<'_>) -> Result<usize, PlanError>),
}

/// All passes, in the order in which they run.
pub const PIPELINE: &[Pass] = &[
    Pass {
        name: "share_parameters",
        does: "Makes parameters of equal bytes of graphs with one parameter store one.",
        run: PassFn::Share,
        ..ALWAYS
    },
    Pass {
        name: "exact_activations",
        does: "Takes from operators the rounding of activations that the model allows.",
        when: |o| o.activations == Activations::Exact,
        run: PassFn::Graph(|graph, _| exact_activations::exact_activations(graph)),
        ..ALWAYS
    },
    Pass {
        name: "quantize",
        does: "Lets operators between DequantizeLinear and QuantizeLinear compute with the bytes themselves.",
        when: |o| o.integers != Integers::Never,
        counts: Counts::Quantized,
        run: PassFn::Graph(quantize::quantize),
        ..ALWAYS
    },
    Pass {
        name: "read_transposed",
        does: "Lets products read a large weight transposed where another operator reads it as it is.",
        run: PassFn::Graph(|graph, _| read_transposed::read_transposed(graph)),
        ..FUSING
    },
    Pass {
        name: "fold_weights",
        does: "Computes large parameters that other parameters alone decide.",
        run: PassFn::Graph(fold_weights::fold_weights),
        ..ALWAYS
    },
    Pass {
        name: "fold_normalizations",
        does: "Lets convolutions of large weights take in the normalization after them.",
        run: PassFn::Graph(fold_weights::fold_normalizations),
        ..FUSING
    },
    Pass {
        name: "weights_to_f16",
        does: "Keeps large weights of a graph that computes in float16 in float16 alone.",
        when: |o| o.precision == Precision::F16,
        run: PassFn::Graph(|graph, _| weights_to_f16::weights_to_f16(graph)),
        ..ALWAYS
    },
    Pass {
        name: "share_new_parameters",
        does: "Makes parameters that the passes before it made one with equal ones of other graphs.",
        run: PassFn::Share,
        ..ALWAYS
    },
    Pass {
        name: "specialize",
        does: "Infers all shapes, computes what is known, and drops what no output needs.",
        needed: Some("plans are made of concrete shapes"),
        run: PassFn::Specialize,
        ..ALWAYS
    },
    Pass {
        name: "place_nodes",
        does: "Gives nodes the devices that the caller or the graph asks for.",
        needed: Some("nodes run where they are asked to"),
        run: PassFn::Flow(place_nodes::place_nodes),
        ..ALWAYS
    },
    Pass {
        name: "drop_identities",
        does: "Drops nodes that give their input unchanged, or repeated for operators that broadcast.",
        run: PassFn::Flow(|flow, _| Ok(drop_identities::drop_identities(flow))),
        ..FUSING
    },
    Pass {
        name: "recognize_activations",
        does: "Finds activations (Swish, HardSwish, Gelu) that the model spells out.",
        run: PassFn::Flow(|flow, _| Ok(recognize_activations::recognize_activations(flow))),
        ..FUSING
    },
    Pass {
        name: "recognize_norms",
        does: "Finds layer and group normalizations that the model spells out.",
        run: PassFn::Flow(|flow, _| Ok(recognize_norms::recognize_norms(flow))),
        ..FUSING
    },
    Pass {
        name: "recognize_rotations",
        does: "Finds rotations of queries and keys by their positions that the model spells out.",
        run: PassFn::Flow(|flow, _| recognize_rotations::recognize_rotations(flow)),
        ..FUSING
    },
    Pass {
        name: "recognize_attention",
        does: "Finds attention (product, scale, mask, softmax, product) that the model spells out.",
        run: PassFn::Flow(|flow, _| Ok(recognize_attention::recognize_attention(flow))),
        ..FUSING
    },
    Pass {
        name: "fold_head_transposes",
        does: "Lets attention read and write heads where they lie, without transposes.",
        run: PassFn::Flow(|flow, _| Ok(fold_head_transposes::fold_head_transposes(flow))),
        ..FUSING
    },
    Pass {
        name: "join_equal",
        does: "Makes one node of nodes that compute the same of the same.",
        run: PassFn::Flow(|flow, _| Ok(join_equal::join_equal(flow))),
        ..FUSING
    },
    Pass {
        name: "join_gates",
        does: "Makes one node of two products of few rows of one input that meet in a gate, as in SwiGLU.",
        run: PassFn::Flow(|flow, cx| Ok(join_gates::join_gates(flow, cx))),
        ..FUSING
    },
    Pass {
        name: "absorb",
        does: "Lets operators absorb their only reader (a bias, a norm, a sum, an activation) and factors before them.",
        run: PassFn::Flow(|flow, cx| absorb::absorb(flow, cx.options.precision)),
        ..FUSING
    },
    Pass {
        name: "mixed_precision",
        does: "Lets nodes compute in float16, with conversions around those that must not.",
        when: |o| o.precision == Precision::F16,
        counts: Counts::Halved,
        run: PassFn::Flow(mixed_precision::mixed_precision),
        ..ALWAYS
    },
    Pass {
        name: "join_norms",
        does: "Makes one node of a sum of two tensors and the layer normalization of it.",
        run: PassFn::Flow(|flow, cx| Ok(join_norms::join_norms(flow, cx))),
        ..FUSING
    },
    Pass {
        name: "norms_in_products",
        does: "Lets products of few rows normalize the rows that they read and add the residual sum.",
        run: PassFn::Flow(|flow, cx| Ok(norms_in_products::norms_in_products(flow, cx))),
        ..FUSING
    },
    Pass {
        name: "fuse_chains",
        does: "Makes one node of each connected set of operators that map elements.",
        when: |o| o.fuse && o.chains,
        run: PassFn::Flow(|flow, cx| Ok(fuse_chains::fuse_chains(flow, cx))),
        ..FUSING
    },
    Pass {
        name: "update_in_place",
        does: "Lets operators write into memory that is bound to an input and an output, where nothing else reads it.",
        run: PassFn::Flow(|flow, cx| Ok(update_in_place::update_in_place(flow, cx.updates))),
        ..ALWAYS
    },
    Pass {
        name: "assign_devices",
        does: "Gives the other nodes the devices that automatic placement chose.",
        needed: Some("every node runs on a device"),
        run: PassFn::Flow(place_nodes::assign_devices),
        ..ALWAYS
    },
    Pass {
        name: "place_in_images",
        does: "Puts tensors into the images that the graph asks for, with the copies that this takes.",
        run: PassFn::Placed(place_in_images::place_in_images),
        ..ALWAYS
    },
    Pass {
        name: "lower",
        does: "Makes dispatches or calls of every node, on another device where its own has no kernel.",
        needed: Some("plans run commands"),
        run: PassFn::Lower,
        ..ALWAYS
    },
    Pass {
        name: "copy_between_devices",
        does: "Adds a copy where a device cannot, or should not, use a tensor where another one has it.",
        needed: Some("devices read only memory that they reach"),
        run: PassFn::Lowered(copy_between_devices::copy_between_devices),
        ..ALWAYS
    },
];

/// What most passes have.
const ALWAYS: Pass =
    Pass { name: "", does: "", needed: None, when: |_| true, counts: Counts::Changes, run: PassFn::Share };

/// What passes have that fuse operators.
const FUSING: Pass = Pass { when: |o| o.fuse, counts: Counts::Fused, ..ALWAYS };
