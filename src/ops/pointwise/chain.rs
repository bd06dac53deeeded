//! A chain of pointwise operators that runs as one: one kernel on devices, one pass in chunks on the CPU.
//!
//! The planner makes it from the members' expressions ([`Operator::pointwise_expr`]); no model has it.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, KernelSource, NativeArgs, NativeKernel, grid_1d};
use crate::ops::{Cost, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::spirv::eval::{self, Evaluator, Scratch};
use crate::spirv::{
    Indexing, KernelLayout, PointwiseDesc, PointwiseError, PointwiseKey, Term, broadcast_terms,
    build_pointwise,
};

/// Elements that one thread does at a time.
const PART: usize = 16 << 10;

/// What was prepared of expressions: equal ones, of all chains that share this, are prepared once.
#[derive(Debug, Default)]
pub struct Programs {
    known: Mutex<HashMap<PointwiseKey, Arc<Program>>>,
}

/// An expression in the forms it runs in.
struct Program {
    evaluator: Evaluator,
    /// Kernels by layout.
    sources: Mutex<HashMap<KernelLayout, Arc<KernelSource>>>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Program").field(&self.evaluator.desc().exprs()).finish()
    }
}

impl Programs {
    /// None yet.
    pub fn new() -> Self {
        Programs::default()
    }

    /// How many expressions are known.
    pub fn len(&self) -> usize {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn get(&self, desc: PointwiseDesc) -> Result<Arc<Program>, PointwiseError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = desc.key();
        if let Some(found) = known.get(&key) {
            return Ok(Arc::clone(found));
        }
        let program = Arc::new(Program { evaluator: Evaluator::new(desc)?, sources: Mutex::default() });
        known.insert(key, Arc::clone(&program));
        Ok(program)
    }
}

impl Program {
    fn source(&self, layout: &KernelLayout) -> Result<Arc<KernelSource>, OpError> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = sources.get(layout) {
            return Ok(Arc::clone(found));
        }
        let words = build_pointwise(self.evaluator.desc(), layout).map_err(unsupported)?;
        let source = KernelSource::generated("pointwise", words)
            .map_err(|e| OpError::unsupported(format!("the kernel of a chain: {e}")))?;
        let source = Arc::new(source);
        sources.insert(layout.clone(), Arc::clone(&source));
        Ok(source)
    }
}

fn unsupported(e: PointwiseError) -> OpError {
    OpError::unsupported(format!("a chain of pointwise operators: {e}"))
}

/// A chain of pointwise operators over `float32`: outputs of one shape, inputs that broadcast to it.
#[derive(Clone, Debug)]
pub struct Chain {
    program: Arc<Program>,
    inputs: Vec<TensorInfo>,
    terms: Arc<Vec<Vec<Term>>>,
    output: TensorInfo,
    flops: u64,
}

impl Chain {
    /// How an input of `info` is indexed below an output of `output`; `None` where it does not broadcast to it,
    /// or is not `float32`, or is too large for kernels.
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
    if info.dtype != DType::F32 || output.dtype != DType::F32 {
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
        let len =
            u32::try_from(self.output.elements()).map_err(|_| OpError::unsupported("a chain so long"))?;
        let walked = KernelLayout::of(self.desc(), len, &self.terms).map_err(unsupported)?;
        let layout = match lower.texels(len as usize, len as usize) {
            true => walked.layout.with_texels(),
            false => walked.layout,
        };
        let source = self.program.source(&layout)?;
        let local = source.spirv().map_or(1, |(_, reflection)| reflection.local_size[0]);
        let groups = grid_1d(walked.items.into(), local, lower.device().limits.max_groups[0]);
        let inputs = (0..self.inputs.len()).map(Operand::Input);
        let args: Vec<Operand> =
            inputs.chain((0..self.desc().outputs().len()).map(Operand::Output)).collect();
        let params = walked.items.to_ne_bytes().to_vec();
        lower.dispatch_module(source, walked.spec, &args, params, groups);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Chain {
    fn run(&self, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
        let n = self.output.elements();
        let inputs: Vec<eval::Operand<'_>> = (0..self.inputs.len())
            .map(|i| {
                Ok(eval::Operand {
                    data: super::apply::input(args, i, self.inputs[i].elements())?,
                    terms: &self.terms[i],
                })
            })
            .collect::<Result<_, KernelError>>()?;
        let outputs = (0..self.desc().outputs().len())
            .map(|o| super::apply::output::<f32>(args, self.inputs.len() + o, n))
            .collect::<Result<Vec<_>, KernelError>>()?;
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
