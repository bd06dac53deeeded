//! Operators: one row of a family's table and one set of files that carry the operator's name.
//!
//! An operator's `infer` is where every check of its inputs lives; `cpu` gives a native function,
//! `gpu` emits dispatches of kernels of `shaders/<family>/`. Both get the same resolved facts
//! (types, shapes and, where they are known, values), so neither checks again.

mod absorb;
mod activation;
mod attr;
mod cx;
mod halves;
mod lower;
mod native;
mod par;
mod planes;
mod real;
pub mod strided;
#[cfg(test)]
pub(crate) mod test_util;
#[cfg(test)]
mod testing;
mod window;

pub mod attention;
pub mod control;
pub mod conv;
pub mod custom;
pub mod image;
pub mod index;
pub mod linalg;
pub mod loss;
pub mod ml;
pub mod movement;
pub mod norm;
pub mod pointwise;
pub mod pool;
pub mod quant;
pub mod random;
pub mod recurrent;
pub mod reduce;
pub mod sequence;
pub mod shape_ops;
pub mod signal;
pub mod tvm;
pub mod vision;

pub use crate::expr::Function;
pub use crate::expr::HalfRule;
pub use activation::Activation;
pub use attr::{AttrError, AttrMap, AttrReader, AttrValue};
pub use cx::{Fact, OpCx};
pub(crate) use lower::reaches_all;
pub use lower::{
    Lowered, Lowering, Operand, PackFn, PackKey, PackLines, PackLinesFn, Packed, Step, StepKernel, UnpackFn,
};
pub use native::Native;
pub use pointwise::{
    BinaryFunction, NaryOp, Pointwise, add, binary, cast, div, mul, nary, select_where, sub, unary,
};
pub use window::{AutoPad, Window, WindowAxis};

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::backend::DeviceInfo;
use crate::dtype::DType;
use crate::expr::{ExprId, PointwiseDesc};
use crate::graph::{Tensor, TensorError, TensorInfo};
use crate::kernel::NativeKernel;
use crate::memory::image::ImageDesc;
use crate::shape::ShapeError;

/// Why an operator does not accept its attributes or inputs, or cannot run somewhere.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// A required input is missing.
    #[error("input {input} is missing")]
    MissingInput {
        /// Its position.
        input: usize,
    },
    /// An input or output too few or too many.
    #[error("has {found} {what}, expected {expected}")]
    Count {
        /// "inputs" or "outputs".
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there should be, in words.
        expected: String,
    },
    /// An input's element type is not allowed.
    #[error("input {input} has type {got}, expected {expected}")]
    DType {
        /// Its position.
        input: usize,
        /// Its type.
        got: DType,
        /// What is allowed, in words.
        expected: String,
    },
    /// An input's shape is not allowed.
    #[error("input {input} has shape {got}, expected {expected}")]
    InputShape {
        /// Its position.
        input: usize,
        /// Its shape.
        got: String,
        /// What is allowed, in words.
        expected: String,
    },
    /// Sizes do not make a shape or do not fit one another.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A constant's data is not what the operator reads.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An attribute is missing or wrong.
    #[error(transparent)]
    Attr(#[from] AttrError),
    /// The value of an input is not allowed.
    #[error("input {input}: {problem}")]
    Value {
        /// Its position.
        input: usize,
        /// What is wrong.
        problem: String,
    },
    /// The value of an input decides shapes but is not known before the run.
    #[error("the value of input {input} must be known before the run")]
    NeedsValue {
        /// Its position.
        input: usize,
    },
    /// A form of the operator that is not supported.
    #[error("unsupported: {what}")]
    Unsupported {
        /// Which form.
        what: String,
    },
}

impl OpError {
    /// An [`OpError::Unsupported`] that says `what`.
    pub fn unsupported(what: impl Into<String>) -> Self {
        OpError::Unsupported { what: what.into() }
    }
}

/// What one execution of an operator costs, for placement, the roofline and benchmarks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Cost {
    /// Arithmetic operations; a multiply-add counts two.
    pub flops: u64,
    /// Bytes read and written at least once.
    pub bytes: u64,
}

impl Cost {
    /// The product of counts, or the largest number: a tensor that has no memory yet may be of any size.
    pub(crate) fn product(counts: &[usize]) -> u64 {
        counts.iter().fold(1, |n, count| n.saturating_mul(*count as u64))
    }

    /// How often about the operator reads its elements: once, unless it does so much arithmetic with each that it
    /// must read them again.
    pub fn passes(self) -> u32 {
        let passes = self.flops.div_ceil(self.bytes.saturating_mul(4).max(1));
        u32::try_from(passes).unwrap_or(u32::MAX).clamp(1, 1 << 16)
    }
}

/// Two operators in one ([`Operator::absorb`]).
#[derive(Clone, Debug)]
pub struct Absorbed {
    /// The one.
    pub op: Arc<dyn Operator>,
    /// Its inputs.
    pub inputs: Vec<AbsorbedInput>,
}

/// Where an input of an absorbing operator comes from.
#[derive(Clone, Debug)]
pub enum AbsorbedInput {
    /// An input of the first operator.
    Own(usize),
    /// An input of the second operator.
    Next(usize),
    /// A constant that was computed.
    New(Tensor),
    /// None.
    Absent,
}

/// One operator with its attributes resolved.
pub trait Operator: fmt::Debug + Send + Sync + Any {
    /// ONNX's name of the operator.
    fn name(&self) -> &'static str;

    /// Inputs whose values (not only shapes) decide shapes or the computation; they are read
    /// before the run and given in [`Fact::value`], and are not passed to the kernels.
    fn value_inputs(&self) -> &'static [usize] {
        &[]
    }

    /// Types and shapes of the outputs, after checking everything about the inputs.
    /// `cx.outputs()` is empty here; `cx.output_count()` tells how many outputs are wanted.
    ///
    /// # Errors
    /// [`OpError`]; [`OpError::NeedsValue`] where a value is needed that is not known yet.
    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError>;

    /// What it costs. The default counts every tensor once and one operation for each output element.
    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: cx.outputs().iter().map(|o| o.elements() as u64).sum(), bytes: cx.bytes_touched() }
    }

    /// The input whose bytes are the output's bytes unchanged (reshapes), so that no kernel runs.
    fn alias(&self, cx: &OpCx) -> Option<usize> {
        let _ = cx;
        None
    }

    /// Inputs that output 0 may overwrite in place, where the planner finds them dead afterwards:
    /// the GPU kernel reads element i of that input only to write element i of the output.
    fn in_place(&self, cx: &OpCx) -> Option<usize> {
        let _ = cx;
        None
    }

    /// The native function: arguments are all inputs in order (absent ones and value inputs
    /// [`crate::kernel::NativeArg::Absent`]), then all outputs. It may use rayon, allocates only
    /// scratch memory, and writes every byte of its outputs.
    ///
    /// # Errors
    /// [`OpError::Unsupported`] where there is none for these types.
    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError>;

    /// As [`Operator::cpu`], where the function depends on the device that it is for, or reads constants in a
    /// layout of its own: those are packed once, at load, and not kept as they are where nobody else reads them.
    ///
    /// # Errors
    /// As there.
    fn cpu_on(&self, cx: &OpCx, device: &DeviceInfo) -> Result<Native, OpError> {
        let _ = device;
        self.cpu(cx).map(Native::from)
    }

    /// Emits the dispatches that compute it with SPIR-V kernels.
    ///
    /// # Errors
    /// [`OpError::Unsupported`] where there is none for these types or this device.
    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let _ = (cx, lower);
        Err(OpError::unsupported(format!("{} has no device kernel", self.name())))
    }

    /// The outputs computed on the host from the values of its inputs, for an operator whose outputs' sizes
    /// depend on elements of its inputs (NonZero, Unique, NonMaxSuppression): nothing else of it is then
    /// called, [`Operator::infer`] gives the same outputs' types and shapes. Others return `None`.
    ///
    /// # Errors
    /// As [`Operator::infer`]; [`OpError::NeedsValue`] where the value of an input is not known yet.
    fn host(&self, cx: &OpCx) -> Option<Result<Vec<Tensor>, OpError>> {
        let _ = cx;
        None
    }

    /// What the session does in its place, for control flow: nothing else of it is called then.
    fn control(&self) -> Option<control::Control<'_>> {
        None
    }

    /// Whether its outputs depend on its inputs' shapes only, never on their elements (Shape, Size).
    fn shape_only(&self) -> bool {
        false
    }

    /// Whether its outputs differ between runs on equal inputs (random numbers without a seed), so that they
    /// are never computed once for all runs.
    fn varies(&self) -> bool {
        false
    }

    /// How it takes part where a graph of `float32` computes in `float16`.
    fn half_rule(&self) -> HalfRule {
        HalfRule::Half
    }

    /// Whether its outputs are elements of input 0 in other places and nothing else, so that it does to bytes what it does to
    /// the numbers that these stand for by one positive scale. `cx` has what is known of the numbers.
    fn quantized_move(&self, cx: &OpCx) -> bool {
        let _ = cx;
        false
    }

    /// The same operator with `activation` applied to its output, where its kernels can.
    fn with_activation(&self, activation: &Activation) -> Option<Arc<dyn Operator>> {
        let _ = activation;
        None
    }

    /// This operator and `next`, the only reader of output 0 (as its input `at`), as one operator.
    /// The default absorbs activations; operators that take constant biases and normalizations say so themselves.
    fn absorb(&self, cx: &OpCx, next: &dyn Operator, next_cx: &OpCx, at: usize) -> Option<Absorbed> {
        let _ = at;
        let op = self.with_activation(&next.as_activation(next_cx)?)?;
        Some(Absorbed { op, inputs: (0..cx.input_count()).map(AbsorbedInput::Own).collect() })
    }

    /// The activation this operator is, where it is one of a single data input.
    fn as_activation(&self, cx: &OpCx) -> Option<Activation> {
        let _ = cx;
        None
    }

    /// Its output as an expression of the values `args` of its inputs, where it maps the elements at one
    /// place (broadcast by NumPy's rule) and all its tensors are `float32`. Chains of such operators become
    /// one kernel. Values that are known may be built in, and the input is then not needed.
    fn pointwise_expr(&self, cx: &OpCx, desc: &mut PointwiseDesc, args: &[ExprId]) -> Option<ExprId> {
        let _ = (cx, desc, args);
        None
    }

    /// Whether its kernels for `device` read input `input` through `image`, where the graph wants that tensor in
    /// one; the planner then puts it there. Where it says so, `gpu` lowers for [`OpCx::image`].
    fn reads_image(&self, cx: &OpCx, input: usize, image: &ImageDesc, device: &DeviceInfo) -> bool {
        let _ = (cx, input, image, device);
        false
    }

    /// Whether its kernels for `device` write output `output` through `image`.
    fn writes_image(&self, cx: &OpCx, output: usize, image: &ImageDesc, device: &DeviceInfo) -> bool {
        let _ = (cx, output, image, device);
        false
    }

    /// For downcasts by the planner's rewrites.
    fn as_any(&self) -> &dyn Any;
}

/// How ONNX operators are made: one row for every operator name.
#[derive(Clone, Copy)]
pub struct OpDef {
    /// The operator's name.
    pub name: &'static str,
    /// Its domain; "" is ONNX's own.
    pub domain: &'static str,
    /// The first opset it is read from.
    pub since: i64,
    /// Element types of its data inputs, for the table of operators.
    pub types: &'static [DType],
    /// Whether it has device kernels.
    pub gpu: bool,
    /// Makes the operator from its attributes as opset `opset` defines them.
    pub read: fn(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError>,
}

impl fmt::Debug for OpDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpDef")
            .field("name", &self.name)
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

/// A family of operators: a name for reports and its rows.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name; kernels are in `shaders/<name>/`.
    pub name: &'static str,
    /// Its rows.
    pub ops: &'static [OpDef],
}

/// Every operator, by family.
pub static FAMILIES: &[Family] = &[
    pointwise::FAMILY,
    linalg::FAMILY,
    conv::FAMILY,
    pool::FAMILY,
    norm::FAMILY,
    recurrent::FAMILY,
    attention::FAMILY,
    reduce::FAMILY,
    movement::FAMILY,
    index::FAMILY,
    quant::FAMILY,
    loss::FAMILY,
    random::FAMILY,
    shape_ops::FAMILY,
    control::FAMILY,
    vision::FAMILY,
    signal::FAMILY,
    ml::FAMILY,
];

/// The row of operator `name` of `domain` ("" and "ai.onnx" are the same).
pub fn find(domain: &str, name: &str) -> Option<&'static OpDef> {
    let domain = if domain == "ai.onnx" { "" } else { domain };
    FAMILIES.iter().flat_map(|f| f.ops).find(|d| d.name == name && d.domain == domain)
}
