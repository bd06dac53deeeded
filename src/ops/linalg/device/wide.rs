//! Products of large matrices on devices with fast workgroup memory: wide tiles, by cooperative matrices where
//! there are any.

use super::{Product, Source};
use crate::kernel::KernelId;
use crate::kernel::codes::gemm_matrix::{SMALL_SUBS, SUBS};
use crate::kernel::codes::{gemm_matrix, gemm_wide, gemv_wide};
use crate::kernel::table::{spec, variants};
use crate::ops::{Lowering, OpError, Operand};

/// Rows and columns of a wide tile.
const TILE: [usize; 2] = [gemm_wide::TILE; 2];
/// Rows and columns of a tile of cooperative matrices, and of a small one.
const MATRIX_TILE: [usize; 2] = [gemm_matrix::ROWS, gemm_matrix::COLS];
const SMALL_TILE: [usize; 2] = [gemm_matrix::SMALL_ROWS, gemm_matrix::SMALL_COLS];
/// Fewer work-groups of wide tiles leave more of a large device idle than their speed is worth.
const MIN_GROUPS: usize = 64;
/// With fewer work-groups of products of few rows, narrower ones use more of the device's bandwidth.
const MIN_VECTOR_GROUPS: usize = 256;
/// The least rows and columns that are worth a wide tile, and one of cooperative matrices.
const MIN_WIDE: usize = 64;
const MIN_MATRIX: usize = 16;

/// A kernel of wide tiles or of cooperative matrices, and its additional constants.
struct Wide {
    kernel: KernelId,
    local: Option<u32>,
    tile: [usize; 2],
}

impl Source {
    /// Whether `n` neighbours along the contiguous axis always lie in one aligned group.
    fn in_groups_of(&self, n: usize, rows: usize, cols: usize) -> bool {
        match (self.row, self.col) {
            (row, 1) => cols.is_multiple_of(n) && row.is_multiple_of(n),
            (1, col) => rows.is_multiple_of(n) && col.is_multiple_of(n),
            _ => false,
        }
    }
}

impl Product {
    /// The kernel of wide tiles or of cooperative matrices for it, if one fits.
    fn wide(&self, lower: &Lowering<'_>) -> Option<Wide> {
        // With k, the strides between matrices are multiples too.
        let groups_of = |n: usize| {
            self.k.is_multiple_of(n)
                && self.a.in_groups_of(n, self.m, self.k)
                && self.b.in_groups_of(n, self.k, self.n)
        };
        if !groups_of(4) || !self.n.is_multiple_of(4) || self.k == 0 {
            return None;
        }
        let groups = self.m.div_ceil(TILE[0]) * self.n.div_ceil(TILE[1]) * self.pairs.len();
        let least = self.m.min(self.n);
        let (t, small) = (self.dtype, groups < MIN_GROUPS);
        let each = if groups_of(8) { 8 } else { 4 };
        if let Ok(kernel) = (variants::GemmMatrix { t, each, small }).id()
            && least >= MIN_MATRIX
            && let Some(threads) = lower.matrix_threads(kernel, if small { SMALL_SUBS } else { SUBS })
        {
            let tile = if small { SMALL_TILE } else { MATRIX_TILE };
            return Some(Wide { kernel, local: Some(threads), tile });
        }
        let kernel = variants::GemmWide { t }.id().ok()?;
        let fits = least >= MIN_WIDE && groups >= MIN_GROUPS && lower.can_run(kernel);
        fits.then_some(Wide { kernel, local: None, tile: TILE })
    }

    /// Emits the product of few rows with a matrix that can be read four elements at a time, if it is one, else nothing.
    pub(super) fn lower_wide_vectors(&self, lower: &mut Lowering<'_>) -> Result<bool, OpError> {
        let columns = self.b.col != 1;
        let kernel = variants::GemvWide { t: self.dtype, columns }.id();
        let Some(kernel) = kernel.ok().filter(|kernel| lower.can_run(*kernel)) else { return Ok(false) };
        // With these the distances between matrices are multiples too.
        let left = self.a.col == 1 && self.a.row.is_multiple_of(4) && self.k.is_multiple_of(4);
        let fits = self.m <= gemv_wide::ROWS && self.k > 0 && self.b.in_groups_of(4, self.k, self.n);
        if !fits || columns && !left {
            return Ok(false);
        }
        let across = self.across();
        let cols = if columns { gemv_wide::COLS } else { 4 * across };
        let (code, _) = self.activation.code();
        let spec = [
            (spec::gemv_wide::BIASED, u32::from(self.c.is_some())),
            (spec::gemv_wide::ACTIVATION, code),
            (spec::gemv_wide::ACROSS, across as u32),
        ];
        let (c, c_strides) = self.c.unwrap_or((Operand::Unused, [0, 0]));
        let mut joined = false;
        self.batches(|batch, y_first| {
            let params = self.product_params(batch, y_first, c_strides);
            let groups = [self.n.div_ceil(cols), 1, batch.count].map(|g| g as u32);
            lower.dispatch(kernel, &spec, &[self.a.operand, self.b.operand, c, self.y], &params, groups)?;
            if std::mem::replace(&mut joined, true) {
                lower.no_barrier();
            }
            Ok(())
        })?;
        Ok(true)
    }

    /// Invocations side by side along a row: as many as leave work-groups for a large device.
    fn across(&self) -> usize {
        let groups = |across: usize| self.n.div_ceil(4 * across) * self.pairs.len();
        [32, 16, 8].into_iter().find(|across| groups(*across) >= MIN_VECTOR_GROUPS).unwrap_or(4)
    }

    /// Emits it if a kernel of wide tiles or of cooperative matrices fits, else nothing.
    pub(crate) fn lower_wide(&self, lower: &mut Lowering<'_>) -> Result<bool, OpError> {
        let wide = self.wide(lower);
        wide.map_or(Ok(false), |wide| self.wide_tiles(&wide, lower).map(|()| true))
    }

    /// Emits it.
    fn wide_tiles(&self, wide: &Wide, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (code, _) = self.activation.code();
        let mut spec = vec![
            (spec::tiles::A_COLUMNS, u32::from(self.a.col != 1)),
            (spec::tiles::B_COLUMNS, u32::from(self.b.col != 1)),
            (spec::tiles::BIASED, u32::from(self.c.is_some())),
            (spec::tiles::ACTIVATION, code),
        ];
        spec.extend(wide.local.map(|threads| (spec::gemm_matrix::LOCAL_SIZE_X, threads)));
        let (c, c_strides) = self.c.unwrap_or((Operand::Unused, [0, 0]));
        let mut joined = false;
        self.batches(|batch, y_first| {
            let params = self.product_params(batch, y_first, c_strides);
            let groups =
                [self.n.div_ceil(wide.tile[1]), self.m.div_ceil(wide.tile[0]), batch.count].map(|g| g as u32);
            let args = [self.a.operand, self.b.operand, c, self.y];
            lower.dispatch(wide.kernel, &spec, &args, &params, groups)?;
            self.writes_quads(lower);
            if std::mem::replace(&mut joined, true) {
                lower.no_barrier();
            }
            Ok(())
        })
    }
}
