//! A chain of pointwise operators that runs as one: one kernel on devices, one pass in chunks on the CPU.
//!
//! The planner makes it from the members' expressions ([`Operator::pointwise_expr`]); no model has it.

use std::borrow::Cow;
use std::sync::Arc;

use half::f16;

use super::program::{Dispatch, Program, Programs, element, unsupported};
use crate::dtype::DType;
use crate::expr::eval::{self, Scratch};
use crate::expr::{Indexing, PointwiseDesc, Term, broadcast_terms};
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::halves;
use crate::ops::real::widened;
use crate::ops::{Cost, Lowering, OpCx, OpError, Operand, Operator, par};

/// Elements that one thread does at a time.
const PART: usize = 16 << 10;

/// A chain of pointwise operators over `float32`, or over `float16` computed in `float32`: outputs of one shape, inputs that broadcast to it.
#[derive(Clone, Debug)]
pub struct Chain {
    program: Arc<Program>,
    inputs: Vec<TensorInfo>,
    terms: Arc<Vec<Vec<Term>>>,
    output: TensorInfo,
    flops: u64,
}

impl Chain {
    /// The types of elements.
    pub const TYPES: [DType; 2] = [DType::F32, DType::F16];

    /// How an input of `info` is indexed below an output of `output`; `None` where it does not broadcast to it,
    /// or is of another type or none of the two, or is too large for kernels.
    pub fn indexing(info: &TensorInfo, output: &TensorInfo) -> Option<Indexing> {
        let len = u32::try_from(output.elements()).ok()?;
        Some(Indexing::of(&terms_of(info, output)?, len))
    }

    /// The chain that `desc` says over inputs of `inputs`, with outputs of `output`; its inputs are indexed as
    /// [`Chain::indexing`] tells. `flops` is what its members cost.
    ///
    /// # Errors
    /// [`OpError::Unsupported`] where the description cannot be run.
    pub fn new(
        programs: &Programs,
        desc: PointwiseDesc,
        inputs: Vec<TensorInfo>,
        output: TensorInfo,
        flops: u64,
    ) -> Result<Self, OpError> {
        let fail = || OpError::unsupported(format!("a chain of pointwise operators to {output}"));
        let terms: Vec<Vec<Term>> =
            inputs.iter().map(|info| terms_of(info, &output)).collect::<Option<_>>().ok_or_else(fail)?;
        let len = u32::try_from(output.elements()).map_err(|_| fail())?;
        let indexing: Vec<Indexing> = terms.iter().map(|terms| Indexing::of(terms, len)).collect();
        if indexing != desc.inputs() {
            return Err(fail());
        }
        let terms = terms.into_iter().zip(&indexing).map(|(terms, indexing)| match indexing {
            Indexing::Full => Vec::new(),
            Indexing::Broadcast { .. } => terms,
        });
        let terms = Arc::new(terms.collect());
        Ok(Chain { program: programs.get(desc).map_err(unsupported)?, inputs, terms, output, flops })
    }

    fn desc(&self) -> &PointwiseDesc {
        self.program.evaluator.desc()
    }
}

fn terms_of(info: &TensorInfo, output: &TensorInfo) -> Option<Vec<Term>> {
    if info.dtype != output.dtype || !Chain::TYPES.contains(&output.dtype) {
        return None;
    }
    let dims = |info: &TensorInfo| -> Option<Vec<u32>> {
        info.shape.dims().iter().map(|d| u32::try_from(*d).ok()).collect()
    };
    broadcast_terms(&dims(output)?, &dims(info)?)
}

impl Operator for Chain {
    fn name(&self) -> &'static str {
        "Pointwise"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let (inputs, outputs) = (self.inputs.len(), self.desc().outputs().len());
        cx.expect_counts(inputs..=inputs, outputs..=outputs)?;
        for (i, info) in self.inputs.iter().enumerate() {
            if cx.input(i)? != info {
                return Err(cx.shape_error(i, format!("{info}, which the chain was made for")));
            }
        }
        Ok(vec![self.output.clone(); outputs])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.flops, bytes: cx.bytes_touched() }
    }

    fn in_place(&self, cx: &OpCx) -> Option<usize> {
        let full = |i: &usize| self.desc().inputs()[*i] == Indexing::Full && cx.value(*i).is_none();
        (0..self.inputs.len()).find(full)
    }

    fn cpu(&self, _: &OpCx) -> Result<NativeKernel, OpError> {
        let chain = self.clone();
        Ok(NativeKernel::new("Pointwise", move |args| chain.run(args)))
    }

    fn gpu(&self, _: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let inputs = (0..self.inputs.len()).map(Operand::Input);
        let args: Vec<Operand> =
            inputs.chain((0..self.desc().outputs().len()).map(Operand::Output)).collect();
        let element =
            element(self.output.dtype).ok_or_else(|| OpError::unsupported("a chain of such elements"))?;
        let dispatch = Dispatch {
            desc: self.desc(),
            element,
            len: self.output.elements(),
            terms: &self.terms,
            tests: false,
        };
        dispatch.emit_with(|layout| self.program.source(layout), &args, lower)
    }
}

impl Chain {
    fn run(&self, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
        let (count, n) = (self.desc().outputs().len(), self.output.elements());
        if self.output.dtype == DType::F32 {
            let inputs = (0..self.inputs.len())
                .map(|i| super::apply::input(args, i, self.inputs[i].elements()))
                .collect::<Result<Vec<&[f32]>, KernelError>>()?;
            let outputs = (0..count)
                .map(|o| super::apply::output::<f32>(args, self.inputs.len() + o, n))
                .collect::<Result<Vec<_>, KernelError>>()?;
            return self.eval(&inputs, outputs);
        }
        let inputs = (0..self.inputs.len())
            .map(|i| Ok(widened(super::apply::input::<f16>(args, i, self.inputs[i].elements())?)))
            .collect::<Result<Vec<Cow<'_, [f32]>>, KernelError>>()?;
        let mut wide = vec![vec![0f32; n]; count];
        self.eval(
            &inputs.iter().map(|input| &input[..]).collect::<Vec<_>>(),
            wide.iter_mut().map(|output| &mut output[..]).collect(),
        )?;
        for (o, wide) in wide.iter().enumerate() {
            halves::round(wide, super::apply::output::<f16>(args, self.inputs.len() + o, n)?);
        }
        Ok(())
    }

    fn eval(&self, inputs: &[&[f32]], outputs: Vec<&mut [f32]>) -> Result<(), KernelError> {
        let n = self.output.elements();
        let inputs: Vec<eval::InputData<'_>> =
            inputs.iter().zip(&*self.terms).map(|(data, terms)| eval::InputData { data, terms }).collect();
        let mut parts: Vec<Vec<&mut [f32]>> = Vec::new();
        parts.resize_with(n.div_ceil(PART), Vec::new);
        for output in outputs {
            parts.iter_mut().zip(output.chunks_mut(PART)).for_each(|(part, chunk)| part.push(chunk));
        }
        let evaluator = &self.program.evaluator;
        let part = |scratch: &mut Scratch, (at, mut part): (usize, Vec<&mut [f32]>)| {
            let (len, chunk) = (part.first().map_or(0, |p| p.len()), evaluator.chunk());
            for start in (0..len).step_by(chunk) {
                let end = (start + chunk).min(len);
                let mut outputs: Vec<&mut [f32]> = part.iter_mut().map(|p| &mut p[start..end]).collect();
                evaluator
                    .eval_chunk(at * PART + start, &inputs, &mut outputs, scratch)
                    .map_err(|e| KernelError::Value { what: e.to_string() })?;
            }
            Ok(())
        };
        // Below two parts one thread is faster.
        if parts.len() <= 2 {
            let scratch = &mut Scratch::default();
            return parts.into_iter().enumerate().try_for_each(|p| part(scratch, p));
        }
        par::try_share(parts.into_iter().enumerate(), |p| part(&mut Scratch::default(), p))
    }
}
