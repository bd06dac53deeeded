//! Attention of many queries by cooperative matrices: when, and by which kernel.

use super::scaled::{Scaled, Steps};
use crate::dtype::DType;
use crate::kernel::KernelId;
use crate::kernel::codes::attention_matrix::{FEW_ROWS, FEW_SUBS, SUBS};
use crate::kernel::codes::attention_streak;
use crate::kernel::table::variants;
use crate::ops::Lowering;

/// Elements of a vector that there are kernels for; shorter ones are filled up.
const HEADS: [usize; 3] = [32, 64, 128];
/// Fewer queries than this leave most of a matrix empty.
const LEAST_QUERIES: usize = 5;
/// Queries of a subgroup.
const ROWS: usize = 16;

/// Lanes of all subgroups of devices that have registers for the kernels that take most of them.
const MANY_REGISTERS: u32 = 32;
/// The shortest and the longest vectors of kernels whose subgroups have twice as many queries.
const TWO_HEADS: [usize; 2] = [33, 64];
/// Work-groups of a processor from which on it has enough of those.
const TWO_GROUPS: usize = 2;

/// A kernel of cooperative matrices for an attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrices {
    pub(super) kernel: KernelId,
    /// Invocations of a work-group.
    pub(super) threads: u32,
    pub(super) groups: usize,
}

/// What a subgroup does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Share {
    /// A part of the keys of a few queries, which others have too.
    Few,
    /// Queries of its own.
    Own,
    /// The same with more registers, fast where sums are seldom scaled anew.
    Streak,
    /// Twice as many.
    Two,
}

impl Matrices {
    /// The kernel for `s` with elements of `t`, where the device has matrices and vectors are whole groups of eight.
    pub(super) fn of(s: &Scaled, t: DType, bool_mask: bool, lower: &Lowering<'_>) -> Option<Self> {
        let few = lower.few_wide(groups(s, ROWS * SUBS)).then_some(Share::Few);
        let enough = groups(s, 2 * ROWS * attention_streak::SUBS) >= TWO_GROUPS * lower.processors();
        // Sums are scaled anew in every step with hidden keys.
        let streak = all_see_all(s).then_some(Share::Streak);
        let two = streak.filter(|_| enough).map(|_| Share::Two);
        // Few queries of the longest vectors take more workgroup memory than many.
        let shares = few.into_iter().chain(two).chain(streak).chain([Share::Own]);
        shares.into_iter().find_map(|share| Self::with(share, s, t, bool_mask, lower))
    }

    /// Those that may be the fastest one somewhere, of which the first is [`Self::of`].
    pub(super) fn all(s: &Scaled, t: DType, bool_mask: bool, lower: &Lowering<'_>) -> Vec<Self> {
        let mut all = Vec::from_iter(Self::of(s, t, bool_mask, lower));
        if !all.is_empty() && s.mask.is_none() {
            let others = [Share::Own, Share::Streak, Share::Two];
            for other in others.into_iter().filter_map(|share| Self::with(share, s, t, bool_mask, lower)) {
                if all.iter().all(|known| known.kernel != other.kernel) {
                    all.push(other);
                }
            }
        }
        all
    }

    fn with(share: Share, s: &Scaled, t: DType, bool_mask: bool, lower: &Lowering<'_>) -> Option<Self> {
        let longest = s.head.max(s.v_head);
        let head = HEADS.into_iter().find(|n| longest <= *n)?;
        let in_groups = |t: &Steps, n| [t.first, t.batch, t.head, t.row].iter().all(|step| step % n == 0);
        let whole = [s.head, s.v_head].iter().all(|n| n % 8 == 0)
            && [&s.q, &s.k, &s.v].iter().all(|t| in_groups(t, 8))
            && in_groups(&s.y, 4);
        if !whole || s.q_len < LEAST_QUERIES {
            return None;
        }
        let streak = matches!(share, Share::Streak | Share::Two);
        let two = share == Share::Two;
        let registers = lower.device().subgroup_range == [MANY_REGISTERS; 2];
        if streak && (!registers || s.mask.is_some())
            || two && !(TWO_HEADS[0]..=TWO_HEADS[1]).contains(&longest)
        {
            return None;
        }
        let (subs, rows) = match share {
            Share::Few => (FEW_SUBS, FEW_ROWS),
            Share::Own => (SUBS, ROWS * SUBS),
            Share::Streak => (attention_streak::SUBS, ROWS * attention_streak::SUBS),
            Share::Two => (attention_streak::SUBS, 2 * ROWS * attention_streak::SUBS),
        };
        let head = head as u32;
        let kernel = match streak {
            true => variants::AttentionStreak { t, head, two }.id(),
            false => variants::AttentionMatrix { t, head, few: share == Share::Few, bool_mask }.id(),
        };
        let kernel = kernel.ok()?;
        let threads = lower.matrix_threads(kernel, subs)?;
        Some(Matrices { kernel, threads, groups: groups(s, rows) })
    }
}

/// Whether every query sees all valid keys, with scores as their products are.
fn all_see_all(s: &Scaled) -> bool {
    !s.causal && s.mask.is_none() && s.left.is_none() && s.right.is_none() && s.softcap <= 0.0
}

/// Work-groups of so many queries.
fn groups(s: &Scaled, queries: usize) -> usize {
    s.batch * s.q_heads * s.q_len.div_ceil(queries)
}
