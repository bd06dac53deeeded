//! The operators of one input that map each element by a function of the table.

use std::sync::Arc;

use super::chain::Chain;
use super::function_cpu;
use super::program::{Dispatch, element};
use crate::dtype::DType;
use crate::expr::{ExprId, Function, HalfRule, Indexing, PointwiseDesc, PointwiseError, Types};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
pub use crate::operator::Pointwise;
use crate::ops::real::FLOATS;
use crate::ops::{Activation, AttrReader, Lowering, OpCx, OpError, Operand, Operator};

pub(super) const NUMBERS: &[DType] = DType::NUMBERS;
const SIGNED: &[DType] =
    &[DType::F32, DType::F16, DType::BF16, DType::F64, DType::I8, DType::I16, DType::I32, DType::I64];
pub(super) const INTEGERS: &[DType] =
    &[DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64];

/// The element types that `types` stands for.
pub(super) const fn dtypes(types: Types) -> &'static [DType] {
    match types {
        Types::Floats => FLOATS,
        Types::Numbers => NUMBERS,
        Types::Signed => SIGNED,
        Types::Integers => INTEGERS,
        Types::Bool => &[DType::Bool],
        Types::Any => &DType::COMPUTE,
    }
}

/// Whether input `i` is there and `f32`.
pub(super) fn is_f32_at(cx: &OpCx, i: usize) -> bool {
    cx.input_opt(i).is_some_and(|x| x.dtype == DType::F32)
}

/// Whether all inputs and outputs are of one type that chains have.
pub(super) fn has_chain_type(cx: &OpCx) -> bool {
    let Some(first) = cx.outputs().first().map(|y| y.dtype) else { return false };
    Chain::TYPES.contains(&first)
        && cx.outputs().iter().all(|y| y.dtype == first)
        && (0..cx.input_count()).all(|i| cx.input_opt(i).is_some_and(|x| x.dtype == first))
}

impl Pointwise {
    /// Reads the parameters by the names they have; `self` has those by default.
    pub(super) fn read(mut self, attrs: &AttrReader<'_>) -> Result<Self, OpError> {
        for (param, row) in self.params.iter_mut().zip(self.function.row().parameters) {
            *param = attrs.float(row.name, *param)?;
        }
        Ok(self)
    }

    /// Gelu with its attribute.
    pub(super) fn read_gelu(attrs: &AttrReader<'_>) -> Result<Self, OpError> {
        let words = [("none", Function::Gelu), ("tanh", Function::GeluTanh)];
        Ok(Pointwise::new(attrs.choice("approximate", Function::Gelu, &words)?))
    }

    /// The element types it takes.
    pub fn types(&self) -> &'static [DType] {
        dtypes(self.function.row().types)
    }

    /// Its expression of one input, of as many elements as the output.
    pub(super) fn desc(&self) -> Result<PointwiseDesc, PointwiseError> {
        let mut desc = PointwiseDesc::new([Indexing::Full]);
        let x = desc.input(0)?;
        let y = self.function.build(&mut desc, x, self.params)?;
        desc.output(y)?;
        Ok(desc)
    }

    /// Emits it from `x` to `y`, both of `n` elements of `dtype`.
    pub(super) fn dispatch(
        &self,
        lower: &mut Lowering<'_>,
        dtype: DType,
        n: usize,
        x: Operand,
        y: Operand,
    ) -> Result<(), OpError> {
        let row = self.function.row();
        // Parameters of integers may be fractions.
        let of_fractions = !dtype.is_float() && !row.parameters.is_empty();
        let element = element(dtype).filter(|_| !of_fractions && dtype != DType::F64);
        let element =
            element.ok_or_else(|| OpError::unsupported(format!("{} of {dtype} on the device", row.name)))?;
        let desc = self.desc().map_err(super::program::unsupported)?;
        Dispatch { desc: &desc, element, len: n, terms: &[Vec::new()], tests: false }.emit(
            row.name,
            &[x, y],
            lower,
        )
    }
}

impl Operator for Pointwise {
    fn name(&self) -> &'static str {
        self.function.name()
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        cx.dtype_of(0, self.types())?;
        Ok(vec![cx.input(0)?.clone()])
    }

    fn half_rule(&self) -> HalfRule {
        self.function.row().half
    }

    fn in_place(&self, _: &OpCx) -> Option<usize> {
        Some(0)
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        function_cpu::kernel(*self, cx.dtype(0)?, cx.input(0)?.elements(), 1)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let x = cx.input(0)?;
        self.dispatch(lower, x.dtype, x.elements(), Operand::Input(0), Operand::Output(0))
    }

    fn as_activation(&self, cx: &OpCx) -> Option<Activation> {
        let applies = cx.dtype(0).ok()?.is_float() && self.function.is_epilogue();
        applies.then_some(Activation::Of(*self))
    }

    fn pointwise_expr(&self, cx: &OpCx, desc: &mut PointwiseDesc, args: &[ExprId]) -> Option<ExprId> {
        has_chain_type(cx).then(|| self.function.build(desc, *args.first()?, self.params).ok())?
    }
}

/// `function` with ONNX's default parameters.
pub fn unary(function: Function) -> Arc<dyn Operator> {
    Arc::new(Pointwise::new(function))
}
