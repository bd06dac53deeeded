//! Attention of many queries by cooperative matrices: when, and by which kernel.

use super::scaled::{Scaled, Steps};
use crate::dtype::DType;
use crate::kernel::KernelId;
use crate::kernel::codes::attention_matrix::{FEW_ROWS, FEW_SUBS, SUBS};
use crate::kernel::table::variants;
use crate::ops::Lowering;

/// Elements of a vector that there are kernels for; shorter ones are filled up.
const HEADS: [usize; 3] = [32, 64, 128];
/// Fewer queries than this leave most of a matrix empty.
const LEAST_QUERIES: usize = 5;
/// Queries of a subgroup.
const ROWS: usize = 16;

/// A kernel of cooperative matrices for an attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrices {
    pub(super) kernel: KernelId,
    /// Invocations of a work-group.
    pub(super) threads: u32,
    pub(super) groups: usize,
}

impl Matrices {
    /// The kernel for `s` with elements of `t`, where the device has matrices and vectors are whole groups of eight.
    pub(super) fn of(s: &Scaled, t: DType, bool_mask: bool, lower: &Lowering<'_>) -> Option<Self> {
        let longest = s.head.max(s.v_head);
        let head = HEADS.into_iter().find(|n| longest <= *n)?;
        let in_groups = |t: &Steps, n| [t.first, t.batch, t.head, t.row].iter().all(|step| step % n == 0);
        let whole = [s.head, s.v_head].iter().all(|n| n % 8 == 0)
            && [&s.q, &s.k, &s.v].iter().all(|t| in_groups(t, 8))
            && in_groups(&s.y, 4);
        if !whole || s.q_len < LEAST_QUERIES {
            return None;
        }
        let groups = |queries: usize| s.batch * s.q_heads * s.q_len.div_ceil(queries);
        let few = lower.few_wide(groups(ROWS * SUBS)).then_some((true, FEW_SUBS, FEW_ROWS));
        // Few queries of the longest vectors take more workgroup memory than many.
        few.into_iter().chain([(false, SUBS, ROWS * SUBS)]).find_map(|(few, subs, rows)| {
            let kernel = variants::AttentionMatrix { t, head: head as u32, few, bool_mask }.id().ok()?;
            let threads = lower.matrix_threads(kernel, subs)?;
            Some(Matrices { kernel, threads, groups: groups(rows) })
        })
    }
}
