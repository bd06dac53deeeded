//! Expressions in the forms they run in: an evaluator for the CPU, a kernel for each layout.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use crate::dtype::DType;
use crate::expr::eval::Evaluator;
use crate::expr::{PointwiseDesc, PointwiseError, PointwiseKey, Term};
use crate::kernel::{self, KernelSource, grid_1d};
use crate::ops::{Lowering, OpError, Operand};
use crate::spirv::{KernelLayout, ScalarType, build_pointwise};
use crate::sync::lock;

/// Prepared expressions: equal ones, of all chains that share this, are prepared once.
#[derive(Debug, Default)]
pub struct Programs {
    known: Mutex<HashMap<PointwiseKey, Arc<Program>>>,
}

/// An expression in the forms it runs in.
pub(super) struct Program {
    pub(super) evaluator: Evaluator,
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

    /// Number of prepared expressions.
    pub fn len(&self) -> usize {
        lock(&self.known).len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn get(&self, desc: PointwiseDesc) -> Result<Arc<Program>, PointwiseError> {
        let mut known = lock(&self.known);
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
    pub(super) fn source(&self, layout: &KernelLayout) -> Result<Arc<KernelSource>, OpError> {
        let mut sources = lock(&self.sources);
        if let Some(found) = sources.get(layout) {
            return Ok(Arc::clone(found));
        }
        let source = built("pointwise", self.evaluator.desc(), layout)?;
        sources.insert(layout.clone(), Arc::clone(&source));
        Ok(source)
    }
}

fn built(
    name: &'static str,
    desc: &PointwiseDesc,
    layout: &KernelLayout,
) -> Result<Arc<KernelSource>, OpError> {
    let words = build_pointwise(desc, layout).map_err(unsupported)?;
    let source = kernel::generated(name.to_owned(), words)
        .map_err(|e| OpError::unsupported(format!("the kernel {name}: {e}")))?;
    Ok(Arc::new(source))
}

pub(super) fn unsupported(e: PointwiseError) -> OpError {
    OpError::unsupported(format!("a pointwise expression: {e}"))
}

type Kernels = HashMap<(PointwiseKey, KernelLayout), Weak<KernelSource>>;

/// Kernels of single operators, while a plan has them.
static KERNELS: LazyLock<Mutex<Kernels>> = LazyLock::new(Mutex::default);

/// Above this many kernels, those that no plan has are forgotten.
const MANY: usize = 256;

/// The kernel of `desc`; equal ones are one.
fn shared(
    name: &'static str,
    desc: &PointwiseDesc,
    layout: &KernelLayout,
) -> Result<Arc<KernelSource>, OpError> {
    let mut kernels = lock(&KERNELS);
    let key = (desc.key(), layout.clone());
    if let Some(found) = kernels.get(&key).and_then(Weak::upgrade) {
        return Ok(found);
    }
    if kernels.len() >= MANY {
        kernels.retain(|_, kernel| kernel.strong_count() > 0);
    }
    let source = built(name, desc, layout)?;
    kernels.insert(key, Arc::downgrade(&source));
    Ok(source)
}

/// The specialization constant that is the size of a work-group.
const LOCAL_SIZE_ID: u32 = 0;
/// Invocations of a work-group where a device runs them in parallel: fewer groups to begin.
const LARGE_GROUP: u32 = 256;

/// The elements of kernels over `dtype`; `None` where there are none.
pub(super) fn element(dtype: DType) -> Option<ScalarType> {
    Some(match dtype {
        DType::F32 => ScalarType::F32,
        DType::F16 => ScalarType::F16,
        DType::F64 => ScalarType::F64,
        DType::I8 => ScalarType::I8,
        DType::I16 => ScalarType::I16,
        DType::I32 => ScalarType::I32,
        DType::I64 => ScalarType::I64,
        DType::U8 | DType::Bool => ScalarType::U8,
        DType::U16 => ScalarType::U16,
        DType::U32 => ScalarType::U32,
        DType::U64 => ScalarType::U64,
        _ => return None,
    })
}

/// A dispatch of an expression: `len` elements of one type, with the terms of each input.
pub(super) struct Dispatch<'a> {
    pub(super) desc: &'a PointwiseDesc,
    pub(super) element: ScalarType,
    pub(super) len: usize,
    pub(super) terms: &'a [Vec<Term>],
    /// Whether the outputs are bytes, 1 where the value is not 0.
    pub(super) tests: bool,
}

impl Dispatch<'_> {
    /// Emits it as the kernel of operator `name`, over `args`: the inputs and then the outputs.
    pub(super) fn emit(
        &self,
        name: &'static str,
        args: &[Operand],
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        self.emit_with(|layout| shared(name, self.desc, layout), args, lower)
    }

    /// As [`Dispatch::emit`], with the kernel that `source` gives for a layout.
    pub(super) fn emit_with(
        &self,
        source: impl Fn(&KernelLayout) -> Result<Arc<KernelSource>, OpError>,
        args: &[Operand],
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        let len = u32::try_from(self.len)
            .map_err(|_| OpError::unsupported(format!("{} elements on a device", self.len)))?;
        let walked = KernelLayout::of(self.desc, self.element, len, self.terms).map_err(unsupported)?;
        let walked = if self.tests { walked.with_tests() } else { walked };
        let layout = match lower.texels(self.len, self.len) {
            true => walked.layout.with_texels(),
            false => walked.layout,
        };
        let source = source(&layout)?;
        let limits = &lower.device().limits;
        let mut local = source.spirv().map_or(1, |(_, reflection)| reflection.local_size[0]);
        let mut spec = walked.spec;
        if !lower.device().prefers_texels
            && limits.max_group_items.min(limits.max_group_size[0]) >= LARGE_GROUP
        {
            local = LARGE_GROUP;
            spec.push((LOCAL_SIZE_ID, local));
        }
        let groups = grid_1d(walked.items.into(), local, limits.max_groups[0]);
        lower.dispatch_module(source, spec, args, walked.items.to_ne_bytes().to_vec(), groups);
        let element = if self.tests { 1 } else { self.element.bytes() };
        lower.writes_in_order((layout.lanes * element) as usize);
        Ok(())
    }
}
