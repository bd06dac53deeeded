//! Scatters on devices, without atomics, so that results do not depend on the order of invocations.

use super::scatter::{Lines, Reduction};
use crate::dtype::DType;
use crate::kernel::Unit;
use crate::kernel::codes::scatter::{self, Mode};
use crate::kernel::table::{params, spec, variants};
use crate::ops::strided::Nest;
use crate::ops::word::word;
use crate::ops::{Lowering, OpError, Operand};

/// Lines that fill a device, so that each may be left to one invocation.
const MANY_LINES: usize = 1024;
/// Updates that one invocation may take on its own.
const FEW_UPDATES: usize = 4096;
/// Updates that all elements together may look at.
const MAX_LOOKS: usize = 1 << 32;

fn mode(lower: &Lowering<'_>, lines: &Lines, reduction: Reduction) -> Result<Mode, OpError> {
    if reduction == Reduction::None {
        return Ok(Mode::Update);
    }
    let count = lines.nest.elements();
    let looks = count.saturating_mul(lines.size).saturating_mul(lines.updates);
    // Few cores gain nothing from invocations that each look at all updates.
    let few_cores = lower.device().prefers_texels;
    if !few_cores && count < MANY_LINES && looks <= MAX_LOOKS && lines.size > 1 {
        Ok(Mode::Element)
    } else if few_cores || count >= MANY_LINES / 4 || lines.updates <= FEW_UPDATES {
        Ok(Mode::Line)
    } else {
        let what = format!("{} updates on {count} lines of {} elements", lines.updates, lines.size);
        Err(OpError::unsupported(format!("no device kernel reduces {what} fast")))
    }
}

/// Emits the updates of `args`: positions of `words` words each, updates, and the copy of the data that is
/// changed.
pub(super) fn lower(
    lower: &mut Lowering<'_>,
    lines: &Lines,
    reduction: Reduction,
    dtype: DType,
    args: [Operand; 3],
    words: u32,
) -> Result<(), OpError> {
    let mode = mode(lower, lines, reduction)?;
    let (lines, unit) = match reduction {
        Reduction::None => widened(lines, dtype.bytes()),
        _ => (lines.clone(), Unit::Of(dtype)),
    };
    let kernel = variants::Scatter { t: unit }.id()?;
    let count = lines.nest.elements();
    let items = match mode {
        Mode::Update => count * lines.updates,
        Mode::Line => count,
        Mode::Element => count * lines.size,
    };
    let many = || OpError::unsupported("a scatter of more than 6 dimensions or 2^31 elements");
    let strides = |k: usize| lines.nest.kernel_strides(k).ok_or_else(many);
    let p = params::Scatter {
        sizes: lines.nest.kernel_sizes().ok_or_else(many)?,
        data_strides: strides(0)?,
        index_strides: strides(1)?,
        update_strides: strides(2)?,
        n: word(items)?,
        lines: word(count)?,
        updates: word(lines.updates)?,
        size: word(lines.size)?,
        data_step: word(lines.steps[0])?,
        index_step: word(lines.steps[1])?,
        update_step: word(lines.steps[2])?,
    };
    let code = match reduction {
        Reduction::None => scatter::Reduction::None,
        Reduction::Add => scatter::Reduction::Add,
        Reduction::Mul => scatter::Reduction::Mul,
        Reduction::Min => scatter::Reduction::Min,
        Reduction::Max => scatter::Reduction::Max,
    };
    lower.iterations(lines.updates)?;
    let constants = [
        (spec::scatter::RANK, lines.nest.rank() as u32),
        (spec::scatter::INDEX_WORDS, words),
        (spec::scatter::MODE, mode as u32),
        (spec::scatter::REDUCTION, code as u32),
    ];
    lower.dispatch_1d(kernel, &constants, &args, &p, items)
}

/// The same lines over wider elements where whole runs of them are moved.
fn widened(lines: &Lines, mut bytes: usize) -> (Lines, Unit) {
    let mut lines = lines.clone();
    let slices = lines.nest.rank() == 1
        && [0, 2].iter().all(|&k| lines.nest.inner_stride(k) == 1)
        && lines.nest.inner_stride(1) == 0
        && lines.steps[0] == lines.nest.elements();
    let mut inner = lines.nest.elements();
    while slices && bytes < 16 && inner.is_multiple_of(2) {
        inner /= 2;
        bytes *= 2;
    }
    if slices {
        lines.nest = Nest::new(&[inner], &[vec![1], vec![0], vec![1]]);
        lines.steps = [inner, lines.steps[1], inner];
    }
    (lines, Unit::Bytes(bytes))
}
