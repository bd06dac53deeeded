//! Products of large matrices on devices with fast workgroup memory: wide tiles, by cooperative matrices where
//! there are any.

use super::{Product, Source};
use crate::dtype::DType;
use crate::kernel::KernelId;
use crate::kernel::table::{id, spec};
use crate::ops::{Lowering, OpError, Operand};

/// Rows and columns of the tile of a work-group.
const TILE: usize = 128;
/// Fewer work-groups of wide tiles leave more of a large device idle than their speed is worth.
const MIN_GROUPS: usize = 64;
/// The least rows and columns that are worth a tile of cooperative matrices.
const MIN_MATRIX: usize = 64;

/// A kernel of wide tiles and its constants beside those that all have.
pub(super) struct Wide {
    kernel: KernelId,
    local: Option<u32>,
}

impl Source {
    /// Whether four neighbours along the contiguous axis always lie in one aligned quad.
    fn in_quads(&self, rows: usize, cols: usize) -> bool {
        match (self.row, self.col) {
            (row, 1) => cols.is_multiple_of(4) && row.is_multiple_of(4),
            (1, col) => rows.is_multiple_of(4) && col.is_multiple_of(4),
            _ => false,
        }
    }
}

impl Product {
    /// The kernel of wide tiles for it, if one fits.
    pub(super) fn wide(&self, lower: &Lowering<'_>) -> Option<Wide> {
        let quads = self.a.in_quads(self.m, self.k) && self.b.in_quads(self.k, self.n);
        // Both kernels step along k by quads, also where it is not the contiguous axis.
        if !quads || !self.k.is_multiple_of(4) || !self.n.is_multiple_of(4) || self.k == 0 {
            return None;
        }
        let large = self.m.min(self.n) >= MIN_MATRIX;
        if self.dtype == DType::F16
            && large
            && let Some(threads) = lower.matrix_threads(id::GEMM_MATRIX_F16)
        {
            return Some(Wide { kernel: id::GEMM_MATRIX_F16, local: Some(threads) });
        }
        let groups = self.m.div_ceil(TILE) * self.n.div_ceil(TILE) * self.pairs.len();
        let kernel = if self.dtype == DType::F16 { id::GEMM_WIDE_F16 } else { id::GEMM_WIDE_F32 };
        (large && groups >= MIN_GROUPS && lower.can_run(kernel)).then_some(Wide { kernel, local: None })
    }

    /// Emits it.
    pub(super) fn wide_tiles(&self, wide: &Wide, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (code, _) = self.activation.code();
        // One numbering of constants for both.
        let mut spec = vec![
            (spec::gemm_wide::A_COLUMNS, u32::from(self.a.col != 1)),
            (spec::gemm_wide::B_COLUMNS, u32::from(self.b.col != 1)),
            (spec::gemm_wide::BIASED, u32::from(self.c.is_some())),
            (spec::gemm_wide::ACTIVATION, code),
        ];
        spec.extend(wide.local.map(|threads| (spec::gemm_matrix::LOCAL_SIZE_X, threads)));
        let (c, c_strides) = self.c.unwrap_or((Operand::Unused, [0, 0]));
        let mut joined = false;
        self.batches(|batch, y_first| {
            let params = self.distances(batch, y_first, c_strides);
            let groups = [self.n.div_ceil(TILE), self.m.div_ceil(TILE), batch.count].map(|g| g as u32);
            let args = [self.a.operand, self.b.operand, c, self.y];
            lower.dispatch(wide.kernel, &spec, &args, &params, groups)?;
            if std::mem::replace(&mut joined, true) {
                lower.join();
            }
            Ok(())
        })
    }
}
