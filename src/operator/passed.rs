//! Bytes that operators move without changing them.

/// Bytes that lie contiguous in an input and in an output: all of the one, a part of the other or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassedBytes {
    /// The input.
    pub input: usize,
    /// The output.
    pub output: usize,
    /// Where they begin in the longer of both, in bytes.
    pub offset: u64,
}

/// What an operator passes on ([`super::Operator::passed`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Bytes of one input and one output each; a step of the lowered operator moves these alone.
    pub bytes: Vec<PassedBytes>,
    /// Whether the operator does nothing else.
    pub complete: bool,
}
