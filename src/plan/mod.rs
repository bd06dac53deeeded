//! From a graph and concrete shapes to a plan: devices, order, memory and barriers. It calls no driver.

#![forbid(unsafe_code)]

mod alias_classes;
pub mod arena;
mod barriers;
mod compile;
mod emit;
mod error;
mod flow;
mod images;
mod in_place;
mod index;
mod lowering;
mod memory_plan;
mod operands;
mod options;
mod outcome;
mod overlay;
pub mod passes;
pub mod place;
mod report;
mod schedule;
mod segments;
mod split;
mod tunable;
mod unplaced;

pub use barriers::{Bound, ResourceMap, insert_barriers};
pub use compile::{Compiler, PlanRequest};
pub use error::PlanError;
pub use flow::{Flow, FlowNode, Signature, Value, ValueId, evaluate, specialize};
pub use images::{ImageReport, PlannedImage};
pub use index::FlowIndex;
pub use options::{Assignment, PlanCache, PlanOptions};
pub use outcome::PlanOutcome;
pub use passes::{
    Activations, Crossing, CrossingReport, GraphCx, HalfConstants, Integers, PIPELINE, Pass, PassError,
    PassLog, PassReport, PassSelection, PassStatus, Precision, prepare,
};
pub use report::{CandidateReport, NodeEstimate, NodeReport, PlacementReport, PlanReport, TunedKernel};
pub use segments::order_segments;
pub use split::{SplitGraph, StageInput, StageStep, StepInput, choose, split};
pub use tunable::TunableNode;
pub use unplaced::{BoundaryCost, UnplacedNode, UnplacedPlan};

use std::collections::BTreeSet;

use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::memory::coherency::{Access, Barrier};
use crate::memory::image::{ImageDesc, ImageView};
use crate::ops::{Packed, StepKernel};

/// The memory of a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// The memory bound to graph input `0`..
    Input(u32),
    /// The memory bound to graph output `0`..
    Output(u32),
    /// Constant of [`Plan::constants`].
    Constant(u32),
    /// Arena of [`Plan::arenas`].
    Arena(u32),
    /// Memory that several inputs and outputs have in common. Offsets count from where that memory begins.
    Common,
    /// A small buffer for arguments that a kernel declares and does not access.
    Unused,
}

/// A range of one space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The space.
    pub space: Space,
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// The work of one planned command.
#[derive(Clone, Debug)]
pub enum Work {
    /// Runs kernel `kernel` of [`Plan::kernels`].
    Dispatch {
        /// Index of the kernel.
        kernel: u32,
        /// Arguments in binding order.
        args: Vec<Option<(Location, Access)>>,
        /// Parameter bytes.
        params: Vec<u8>,
        /// Work-groups.
        groups: [u32; 3],
        /// Arguments that are images, by position.
        images: Vec<(u32, ImageView)>,
    },
    /// Copies bytes.
    Copy {
        /// Where from.
        src: Location,
        /// Where to.
        dst: Location,
    },
    /// The session copies from memory of device `from` to memory of the segment's device.
    Move {
        /// Where from.
        src: Location,
        /// The device that has `src`.
        from: u32,
        /// Where to.
        dst: Location,
    },
    /// Fills with a word.
    Fill {
        /// What.
        dst: Location,
        /// The word.
        value: u32,
    },
}

/// One command of a segment.
#[derive(Clone, Debug)]
pub struct PlannedCommand {
    /// The barrier before it, if it needs one.
    pub barrier: Option<Barrier>,
    /// What it does.
    pub work: Work,
    /// The node it belongs to: index into [`PlanReport::nodes`].
    pub node: u32,
    /// It may run in parallel with the previous command: the two write different elements.
    pub no_barrier_before: bool,
    /// It waits for all earlier commands, because of a control dependency.
    pub full_barrier_before: bool,
    /// It writes whole lines, as a bus to the host's memory carries them.
    pub writes_lines: bool,
}

/// Commands that run on one device in one submission. Segments of one device run in order; those of other devices run
/// in parallel unless a segment waits for them.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Entry of the session's device table.
    pub device: u32,
    /// Its commands are [`Work::Move`]: the session does them itself.
    pub by_session: bool,
    /// Earlier segments of other devices that must finish before it starts. Transitive ones are left out.
    pub waits: Vec<u32>,
    /// Earlier segments that the graph's control dependencies put before it.
    pub after: BTreeSet<u32>,
    /// Commands in order.
    pub commands: Vec<PlannedCommand>,
    /// The barrier before the copies of results to bound memory that follow the commands; see [`Bound::is_copied`].
    pub collecting: Option<Barrier>,
    /// The barrier at the end that makes results visible to the host.
    pub closing: Option<Barrier>,
    /// Ranges whose results the host or another device reads after the segment.
    pub host_reads: Vec<Location>,
}

/// A kernel that a plan needs.
#[derive(Clone, Debug)]
pub struct PlannedKernel {
    /// The device it is created on.
    pub device: u32,
    /// Its code.
    pub code: KernelCode,
    /// Specialization constants.
    pub spec: Vec<(u32, u32)>,
}

/// The code of a planned kernel.
#[derive(Clone, Debug)]
pub enum KernelCode {
    /// SPIR-V.
    Device(StepKernel),
    /// A native function.
    Native(NativeKernel),
}

/// A constant that a plan reads on one device.
#[derive(Clone, Debug)]
pub struct PlannedConstant {
    /// The device that reads it.
    pub device: u32,
    /// The tensor's name.
    pub name: String,
    /// Its elements.
    pub tensor: Tensor,
    /// The layout it is read in, where it is not the tensor's own.
    pub packed: Option<Packed>,
    /// The image it is read through, and the bytes of memory that this takes.
    pub image: Option<(ImageDesc, u64)>,
}

impl PlannedConstant {
    /// Bytes the device reads.
    pub fn bytes(&self) -> u64 {
        let plain = self.packed.as_ref().map_or(self.tensor.info().bytes(), |p| p.bytes) as u64;
        self.image.map_or(plain, |(_, bytes)| bytes)
    }
}

/// The devices that access an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub enum Domain {
    /// One device alone touches it.
    Device(u32),
    /// Host memory that several devices touch.
    Host,
}

/// One range of memory that holds intermediate tensors.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PlannedArena {
    /// The devices that access it.
    pub domain: Domain,
    /// Its size in bytes.
    pub bytes: u64,
    /// Largest sum of live bytes at one step.
    pub lower_bound: u64,
    /// Bytes by TVM's rule.
    pub tvm_bytes: u64,
    /// Bytes of all tensors without sharing.
    pub naive_bytes: u64,
    /// Number of ranges in it.
    pub ranges: usize,
    /// The ranges that are not empty, one for the values that share it.
    #[serde(skip)]
    pub tensors: Vec<ArenaRange>,
}

/// A range of an arena, and the steps in which it is in use. Step `n` is node `n` of [`PlanReport::nodes`]; the copies to
/// outputs are all in the step after the last node that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaRange {
    /// The name of a value in it, or of the node whose scratch memory it is.
    pub name: String,
    /// Number of values that share it, one in place of the other; 0 for scratch memory.
    pub values: u32,
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The first step that accesses it.
    pub first: u32,
    /// The last step that accesses it.
    pub last: u32,
}

/// An input or output of a plan.
#[derive(Clone, Debug)]
pub struct PlannedIo {
    /// Its name.
    pub name: String,
    /// Type and shape.
    pub info: TensorInfo,
    /// Devices whose commands touch it, ascending.
    pub devices: Vec<u32>,
    /// How often commands read it: one that computes much with each element counts several times
    /// ([`Cost::passes`](crate::ops::Cost::passes)).
    pub reads: u32,
    /// Number of commands that write it.
    pub writes: u32,
    /// Whether a command writes it in pieces that a bus to the host's memory carries slowly.
    pub scattered: bool,
    /// Of an output, the input that is the same memory and whose bytes a command updates; of that input, the output.
    pub updated: Option<u32>,
    /// Position (segment, command) of the first command that touches it, if one does.
    pub first: Option<(u32, u32)>,
    /// Position (segment, command) of the last command that touches it, if one does.
    pub last: Option<(u32, u32)>,
}

/// The commands of a graph: devices, order, memory and barriers.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The graph's inputs; one whose value is part of the specialization is touched by no command.
    pub inputs: Vec<PlannedIo>,
    /// The graph's outputs.
    pub outputs: Vec<PlannedIo>,
    /// Kernels.
    pub kernels: Vec<PlannedKernel>,
    /// Constants.
    pub constants: Vec<PlannedConstant>,
    /// Arenas.
    pub arenas: Vec<PlannedArena>,
    /// Images in arenas; each is there from the first segment of its device on.
    pub images: Vec<PlannedImage>,
    /// Segments in order.
    pub segments: Vec<Segment>,
    /// Report for people.
    pub report: PlanReport,
}
