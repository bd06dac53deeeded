//! Losses on devices: one loss for each place, or sums of them by work-groups and then of their sums by one.

use super::nll::{NllLoss, Reduction};
use crate::kernel::table::{params, spec, variants};
use crate::ops::index::positions::index_words;
use crate::ops::norm::log_softmax_to;
use crate::ops::word::word;
use crate::ops::{Lowering, OpCx, OpError, Operand};

/// Work-groups that sum, at most; one more work-group sums their results.
const MAX_GROUPS: usize = 256;
/// Places that a work-group sums, at least.
const GROUP_PLACES: usize = 256;

pub(super) fn lower(op: &NllLoss, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let t = cx.dtype(0)?;
    let (kernel, finish) = (variants::NllLoss { t }.id()?, variants::LossSum { t }.id()?);
    let along = NllLoss::along(cx)?;
    let logs = if !op.scores {
        Operand::Input(0)
    } else {
        let logs = match cx.outputs().len() {
            1 => lower.scratch(cx.input(0)?.bytes()),
            _ => Operand::Output(1),
        };
        log_softmax_to(cx, along, logs, lower)?;
        logs
    };
    let places = along.outer * along.inner;
    let sums = op.reduction != Reduction::None;
    let groups = if sums { places.div_ceil(GROUP_PLACES).clamp(1, MAX_GROUPS) } else { 0 };
    let (sum, y) = match sums {
        true => (lower.scratch(8 * groups), Operand::Unused),
        false => (Operand::Unused, Operand::Output(0)),
    };
    let weights = if cx.has(2) { Operand::Input(2) } else { Operand::Unused };
    let ignore = op.ignore.unwrap_or(0);
    let words = index_words(cx.dtype(1)?);
    let never = words == 1 && i32::try_from(ignore).is_err();
    let p = params::NllLoss {
        n: word(places)?,
        classes: word(along.len)?,
        inner: word(along.inner)?,
        ignore_low: ignore as i32,
        ignore_high: (ignore >> 32) as i32,
    };
    let constants = [
        (spec::nll_loss::INDEX_WORDS, words),
        (spec::nll_loss::WEIGHTED, u32::from(cx.has(2))),
        (spec::nll_loss::IGNORES, u32::from(op.ignore.is_some() && !never)),
        (spec::nll_loss::SUMS, u32::from(sums)),
    ];
    let args = [logs, Operand::Input(1), weights, y, sum];
    if !sums {
        return if places == 0 { Ok(()) } else { lower.dispatch_1d(kernel, &constants, &args, &p, places) };
    }
    lower.dispatch(kernel, &constants, &args, &p, [groups as u32, 1, 1])?;
    let mean = u32::from(op.reduction == Reduction::Mean);
    let p = params::LossSum { n: groups as u32, mean };
    lower.dispatch(finish, &[], &[sum, Operand::Output(0)], &p, [1, 1, 1])
}
