//! Bounds on what a model may ask for; beyond them is an error, never an attempt.

/// The most dimensions a tensor has.
pub const MAX_RANK: usize = 16;
/// The most nodes of one graph, sub-graphs included.
pub const MAX_NODES: usize = 1 << 20;
/// The most tensors of one graph.
pub const MAX_TENSORS: usize = 1 << 22;
/// The most inputs or outputs of one node.
pub const MAX_NODE_ARITY: usize = 1 << 16;
/// The longest name kept, in bytes.
pub const MAX_NAME_BYTES: usize = 1 << 16;
/// How deeply graphs may be nested (control flow, functions).
pub const MAX_DEPTH: usize = 32;
/// The largest tensor, in bytes, that constant folding computes.
pub const MAX_FOLDED_BYTES: usize = 64 << 20;
/// Bytes of all constants that folding computes, in addition to 8 times those of the model's constants.
pub const MAX_ALL_FOLDED_BYTES: u64 = 256 << 20;
/// Operations of all constant folding, in addition to 64 for each byte of the model's constants.
pub const MAX_FOLDED_WORK: u64 = 1 << 32;
/// The most dependencies of the nodes of a plan, where those of nodes that do nothing become those of their users.
pub const MAX_DEPENDENCIES: usize = 1 << 22;
/// The most iterations of one loop.
pub const MAX_ITERATIONS: i64 = 1 << 30;
