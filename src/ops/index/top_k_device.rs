//! TopK on devices: work-groups sort tiles, of which the first `k` elements stay; pairs of these sorted runs are
//! merged, again to `k` elements, until one run is left.

use super::top_k::TopK;
use crate::kernel::codes::top_k_sort::TILE;
use crate::kernel::grid_1d;
use crate::kernel::table::{params, spec, variants};
use crate::ops::norm::Along;
use crate::ops::word::word;
use crate::ops::{Lowering, OpCx, OpError, Operand};

pub(super) fn lower(op: &TopK, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let dtype = cx.dtype(0)?;
    let (sort, merge) = (variants::TopKSort { t: dtype }.id()?, variants::TopKMerge { t: dtype }.id()?);
    let (Along { outer, len, inner }, k) = (op.along(cx)?, op.count(cx)?);
    let lines = outer * inner;
    if lines == 0 || k == 0 {
        return Ok(());
    }
    if lines.saturating_mul(len) > i32::MAX as usize {
        return Err(OpError::unsupported("TopK of more elements than a kernel can index"));
    }
    let constants =
        |last: bool| [(spec::top_k::LARGEST, u32::from(op.largest)), (spec::top_k::LAST, u32::from(last))];
    let outputs = [Operand::Output(0), Operand::Output(1)];
    let scratch = |lower: &mut Lowering<'_>, run: usize, runs: usize| {
        let n = lines * run * runs;
        [lower.scratch(n * dtype.bytes()), lower.scratch(4 * n)]
    };
    let mut runs = len.div_ceil(TILE);
    // Every run but the last one has `run` elements.
    let mut run = k.min(TILE);
    let mut last_run = k.min(len - (runs - 1) * TILE);
    let mut to = if runs == 1 { outputs } else { scratch(lower, run, runs) };
    let p = params::TopKSort {
        groups: word(lines * runs)?,
        tiles: word(runs)?,
        len: word(len)?,
        inner: word(inner)?,
        keep: word(k)?,
        run: word(run)?,
    };
    let groups = grid_1d((lines * runs) as u64, 1, lower.device().limits.max_groups[0]);
    lower.dispatch(sort, &constants(runs == 1), &[Operand::Input(0), to[0], to[1]], &p, groups)?;
    while runs > 1 {
        let from = to;
        let (pairs, odd) = (runs / 2, runs % 2 == 1);
        let next_run = k.min(2 * run);
        let next_last = if odd { last_run } else { k.min(run + last_run) };
        let next = pairs + usize::from(odd);
        to = if next == 1 { outputs } else { scratch(lower, next_run, next) };
        let items = lines * ((runs - 1) * run + last_run);
        let p = params::TopKMerge {
            n: word(items)?,
            runs: word(runs)?,
            run: word(run)?,
            last_run: word(last_run)?,
            next_runs: word(next)?,
            next_run: word(next_run)?,
            inner: word(inner)?,
            keep: word(k)?,
        };
        let args = [from[0], from[1], to[0], to[1]];
        lower.dispatch_1d(merge, &constants(next == 1), &args, &p, items)?;
        (runs, run, last_run) = (next, next_run, next_last);
    }
    Ok(())
}
