//! The contract of operators: [`crate::ops`] implements it and the planner queries it.
//!
//! An operator's `infer` is where every check of its inputs lives; `cpu` gives a native function, `gpu` emits
//! dispatches. Both get the same resolved facts (types, shapes and, where they are known, values), so neither checks
//! again.

mod absorb;
mod activation;
mod attr;
mod choice;
pub mod control;
mod error;
mod facts;
mod lowering;
mod native;
mod passed;
mod quantized;
mod row;
mod structure;
mod view;

pub use crate::expr::HalfRule;
pub use absorb::{Absorbed, AbsorbedInput};
pub use activation::{Activation, Pointwise};
pub use attr::{AttrError, AttrMap, AttrReader, AttrValue};
pub use choice::{Asked, Candidate, ChoiceKey, Choices, MAX_TEXT};
pub use control::Control;
pub use error::OpError;
pub use facts::{Cost, Fact, OpCx};
pub use lowering::{
    Lowered, Lowering, Operand, PackFn, PackInPlaceFn, PackKey, PackLines, PackLinesFn, Packed, Step,
    StepKernel, UnpackFn,
};
pub use native::Native;
pub use passed::{Passed, PassedBytes};
pub use quantized::{Quantized, Scaling, ZeroFill};
pub use row::{Family, OpDef, ReadFn};
pub(crate) use row::{contrib, row};
pub use structure::{AttentionPorts, Elementwise, Port, Structure};
pub use view::{Strided, View, ViewStep};

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::backend::DeviceInfo;
use crate::expr::{ExprId, PointwiseDesc};
use crate::kernel::NativeKernel;
use crate::memory::image::ImageDesc;
use crate::tensor::{Tensor, TensorInfo};

/// One operator with its attributes resolved.
pub trait Operator: fmt::Debug + Send + Sync + Any {
    /// ONNX's name of the operator.
    fn name(&self) -> &'static str;

    /// The family whose device kernels it has, for one that is in no [`Family`]: a loader makes it.
    fn family(&self) -> Option<&'static str> {
        None
    }

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

    /// Its cost. The default counts every tensor once and one operation for each output element.
    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: cx.outputs().iter().map(|o| o.elements() as u64).sum(), bytes: cx.bytes_touched() }
    }

    /// The input whose bytes are the output's bytes unchanged (reshapes), so that no kernel runs.
    fn alias(&self, cx: &OpCx) -> Option<usize> {
        let _ = cx;
        None
    }

    /// What it moves from inputs to outputs unchanged: where the planner makes both one memory, nothing moves it.
    fn passed(&self, cx: &OpCx) -> Passed {
        let _ = cx;
        Passed::default()
    }

    /// Inputs that output 0 may overwrite in place, where the planner finds them dead afterwards:
    /// the GPU kernel reads element i of that input only to write element i of the output.
    fn in_place(&self, cx: &OpCx) -> Option<usize> {
        let _ = cx;
        None
    }

    /// The same operator for memory that is an input and an output: of each pair `(i, o)` it finds the bytes of input `i`
    /// in output `o`, writes the elements that differ, and is given no input `i`. `None` where it cannot.
    fn updating(&self, pairs: &[(usize, usize)], cx: &OpCx) -> Option<Arc<dyn Operator>> {
        let _ = (pairs, cx);
        None
    }

    /// Whether it finds earlier bytes in output `output`, as [`Operator::updating`] says.
    fn updates(&self, output: usize) -> bool {
        let _ = output;
        false
    }

    /// Elements of input `input`, integers that come from outside, for timing the operator apart from its model: those with
    /// which it has most to do. `None` where no such elements are known to be right.
    fn sample(&self, input: usize, cx: &OpCx) -> Option<Tensor> {
        let _ = (input, cx);
        None
    }

    /// The native function: arguments are all inputs in order (absent ones and value inputs
    /// [`crate::kernel::NativeArg::Absent`]), then all outputs. It may share loops among the device's threads, allocates only
    /// scratch memory, and writes every byte of its outputs.
    ///
    /// # Errors
    /// [`OpError::Unsupported`] where there is none for these types.
    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError>;

    /// As [`Operator::cpu`], where the function depends on the device that it is for, or reads constants in a
    /// layout of its own: those are packed once, at load, and not kept as they are where no one else reads them.
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

    /// The session's replacement, for control flow: no other method is called then.
    fn control(&self) -> Option<Control<'_>> {
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

    /// Its computation, in the terms of the planner's passes.
    fn structure(&self) -> Option<Structure<'_>> {
        None
    }

    /// The same operator with a transpose by `perm` taken in, where its kernels can: it transposes the input `port` as it
    /// reads it, or the output `port` as it writes it.
    fn with_transposed(&self, port: Port, perm: &[i64]) -> Option<Arc<dyn Operator>> {
        let _ = (port, perm);
        None
    }

    /// What output `output` is of input 0, where it is elements of it in other places, none twice. Where it is
    /// [`Operator::alias`], that says so.
    fn view_step(&self, cx: &OpCx, output: usize) -> Option<ViewStep> {
        let _ = (cx, output);
        None
    }

    /// The same operator with the tensor at `port` where it lies in another one, `view.root`, which it then reads or
    /// writes instead.
    fn with_view(&self, port: Port, view: &Strided) -> Option<Arc<dyn Operator>> {
        let _ = (port, view);
        None
    }

    /// The operator that computes with bytes what this one computes with the numbers that they stand for. The inputs of
    /// one that is [`Structure::Conv`] or [`Structure::MatMul`] are then those of QLinearConv: bytes, scale and zero
    /// point of input 0, the same of input 1, scale and zero point of the output, a bias in units of the sums. Those of
    /// others are the bytes of its inputs.
    fn quantized(&self, to: &Quantized<'_>) -> Option<Arc<dyn Operator>> {
        let _ = to;
        None
    }

    /// The same operator without the rounding of activations that its attributes allow; `None` where they allow none.
    fn with_exact_activations(&self) -> Option<Arc<dyn Operator>> {
        None
    }

    /// Its behaviour where a graph of `float32` computes in `float16`.
    fn half_rule(&self) -> HalfRule {
        HalfRule::Half
    }

    /// Whether its outputs are elements of input 0 in other places and nothing else, so that it does to bytes what it does to
    /// the numbers that these stand for by one positive scale. `cx` has what is known of the numbers.
    fn quantized_move(&self, cx: &OpCx) -> bool {
        let _ = cx;
        false
    }

    /// How it puts bytes where it puts zeros between the elements that it moves; `zero` is the byte that stands for 0.
    fn zero_fill(&self, zero: i32) -> ZeroFill {
        let _ = zero;
        ZeroFill::None
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

    /// This operator and `before`, which makes its input `at`, as one operator, where `before` does so little that others who
    /// read what it makes may do it again. Of its inputs [`AbsorbedInput::Next`] are those of `before`.
    fn absorb_before(
        &self,
        cx: &OpCx,
        at: usize,
        before: &dyn Operator,
        before_cx: &OpCx,
    ) -> Option<Absorbed> {
        let _ = (cx, at, before, before_cx);
        None
    }

    /// This operator and `other`, which reads the same input 0, as one that gives `activation` of this one's output times
    /// the other's, where a kernel for `device` does both at once. Its inputs are those of both.
    fn gate(
        &self,
        cx: &OpCx,
        (other, other_cx): (&dyn Operator, &OpCx),
        activation: &Activation,
        device: &DeviceInfo,
    ) -> Option<Absorbed> {
        let _ = (cx, other, other_cx, activation, device);
        None
    }

    /// This operator with the rows of its input 0, along the last axis, normalized before it reads them: divided by the root
    /// of their mean square plus `epsilon`, then multiplied by a gain, where a kernel for `device` does both at once. Of its
    /// inputs `Next(0)` is the rows and `Next(1)` the gain, as many elements as a row.
    fn with_normalized_rows(&self, cx: &OpCx, epsilon: f32, device: &DeviceInfo) -> Option<Absorbed> {
        let _ = (cx, epsilon, device);
        None
    }

    /// This operator with a summand of its output, a tensor of the same type and shape, where a kernel for `device` does both
    /// at once. Of its inputs `Next(0)` is the summand.
    fn with_summand(&self, cx: &OpCx, device: &DeviceInfo) -> Option<Absorbed> {
        let _ = (cx, device);
        None
    }

    /// The activation this operator is, where it is one of a single data input.
    fn as_activation(&self, cx: &OpCx) -> Option<Activation> {
        let _ = cx;
        None
    }

    /// Its output as an expression of the values `args` of its inputs, where it maps the elements at one
    /// place (broadcast by NumPy's rule) and all its tensors are `float32`, or all are `float16`. Chains of such operators become
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
}

impl dyn Operator {
    /// The operator as `T`, where it is one.
    pub fn downcast_ref<T: Operator>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}
