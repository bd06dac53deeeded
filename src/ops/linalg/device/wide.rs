//! Products of large matrices on devices with fast workgroup memory: wide tiles, by cooperative matrices where
//! there are any.

use super::parts::shared_out;
use super::{Product, Source};
use crate::backend::DeviceKind;
use crate::kernel::KernelId;
use crate::kernel::codes::{gemm_matrix, gemm_wide, gemv_wide, slices};
use crate::kernel::table::{spec, variants};
use crate::ops::linalg::joined::Beside;
use crate::ops::{Lowering, OpError, Operand};

/// Rows and columns of a wide tile.
const TILE: [usize; 2] = [gemm_wide::TILE; 2];
/// A tile of cooperative matrices.
#[derive(Clone, Copy, Debug)]
struct MatrixTile {
    /// Rows and columns.
    size: [usize; 2],
    depth: usize,
    subs: usize,
    /// What a processor takes for one at a depth, in tenths of the smallest one's time; measured.
    cost: usize,
}

/// Larger ones first, which have more of the operands at hand.
const MATRIX_TILES: [MatrixTile; 3] = {
    use gemm_matrix as g;
    [
        MatrixTile { size: [128, g::COLS_128], depth: g::DEPTH_128, subs: g::SUBS_128, cost: 25 },
        MatrixTile { size: [64, g::COLS_64], depth: g::DEPTH_64, subs: g::SUBS_64, cost: 11 },
        MatrixTile { size: [32, g::COLS_32], depth: g::DEPTH_32, subs: g::SUBS_32, cost: 10 },
    ]
};
/// The least rows and columns that are worth a wide tile, and one of cooperative matrices.
const MIN_WIDE: usize = 64;
const MIN_MATRIX: usize = 16;

/// The least sums that are worth being shared out between wide tiles; measured on an H100.
const MIN_SHARED: usize = 384;

/// Whether tiles of that side, with what they compute outside an `m` by `n` result, compute over a quarter more elements than
/// large tiles of workgroup memory.
pub(crate) fn wastes(tile: usize, [m, n]: [usize; 2]) -> bool {
    let computed = |side: usize| m.next_multiple_of(side).saturating_mul(n.next_multiple_of(side));
    computed(tile) > computed(slices::TILE).saturating_mul(5) / 4
}

/// Whether enough work-groups of wide tiles of that side compute `batch` results of `m` by `n`, whose sums of `k` are shared
/// out where they are long; a step sums `depth` of them.
pub(crate) fn enough(
    lower: &Lowering<'_>,
    tile: usize,
    ([m, n, batch], k): ([usize; 3], usize),
    depth: usize,
) -> bool {
    let groups = m.div_ceil(tile) * n.div_ceil(tile) * batch;
    let shared = if k >= MIN_SHARED { shared_out(lower, groups, k.div_ceil(depth)) } else { groups };
    !lower.few_wide(shared)
}

/// Invocations of work-groups of the kernel for few rows; fewer where those are enough for the device.
const LOCALS: [usize; 3] = [LEAST_LOCAL, 512, 1024];
const LEAST_LOCAL: usize = 256;
/// Invocations side by side along a row that read whole parts of a memory's line, and the fewest there are.
const WHOLE_LINES: [usize; 3] = [32, 16, 8];
const LEAST_ACROSS: usize = 4;

/// Work-groups of the kernel for few rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strip {
    /// Invocations side by side along a row of the right operand, four columns each.
    pub(super) across: usize,
    /// Invocations, which share the depth out where a column has several.
    pub(super) local: usize,
}

/// A kernel of wide tiles or of cooperative matrices, and its additional constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wide {
    pub(super) kernel: KernelId,
    local: Option<u32>,
    tile: [usize; 2],
    /// How much of k a step sums.
    depth: usize,
}

impl Strip {
    /// For matrices of so many rows, columns and of such a number, as wide as leaves nearly two work-groups for each
    /// processor. Where the narrowest ones that read whole parts of a memory's line are fewer, they are longer instead, of
    /// at most `most` invocations.
    fn of([rows, cols, matrices]: [usize; 3], processors: usize, most: usize) -> Strip {
        let groups = |across: usize| cols.div_ceil(4 * across) * matrices;
        // Two of LEAST_LOCAL a processor, less a sixteenth, for sizes that are powers of two.
        let enough = |strip: Strip| 16 * groups(strip.across) * strip.local >= 30 * LEAST_LOCAL * processors;
        let wide = WHOLE_LINES.map(|across| Strip { across, local: LEAST_LOCAL });
        if let Some(wide) = wide.into_iter().find(|strip| enough(*strip)) {
            return wide;
        }
        // An invocation reads four elements of a column before it waits.
        let fits = |strip: &Strip| strip.local <= most && strip.local / strip.across * 4 <= rows;
        let longer = |across: usize| LOCALS.map(|local| Strip { across, local }).into_iter().filter(fits);
        let narrow = || longer(LEAST_ACROSS).next_back();
        let plain = Strip { across: LEAST_ACROSS, local: LEAST_LOCAL };
        longer(WHOLE_LINES[2]).find(|strip| enough(*strip)).or_else(narrow).unwrap_or(plain)
    }
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
    /// How many neighbours of both operands always lie in one aligned group: 8, 4, or `None` for fewer.
    fn group(&self) -> Option<u32> {
        // With k, the strides between matrices are multiples too.
        let groups_of = |n: usize| {
            self.k.is_multiple_of(n)
                && self.a.in_groups_of(n, self.m, self.k)
                && self.b.in_groups_of(n, self.k, self.n)
        };
        if !groups_of(4) || !self.n.is_multiple_of(4) || self.k == 0 {
            return None;
        }
        Some(if groups_of(8) { 8 } else { 4 })
    }

    /// The kernel of cooperative matrices of that tile for it, if the device has one.
    fn matrix(&self, tile: &MatrixTile, lower: &Lowering<'_>) -> Option<Wide> {
        let rows = tile.size[0] as u32;
        let kernel = variants::GemmMatrix { t: self.dtype, each: self.group()?, rows }.id().ok()?;
        if self.m.min(self.n) < MIN_MATRIX {
            return None;
        }
        let threads = lower.matrix_threads(kernel, tile.subs)?;
        Some(Wide { kernel, local: Some(threads), tile: tile.size, depth: tile.depth })
    }

    /// The kernel of cooperative matrices for it whose tiles take the processors the least time.
    fn best_matrix(&self, lower: &Lowering<'_>) -> Option<Wide> {
        let time = |tile: &MatrixTile| {
            let [rows, cols] = tile.size;
            let groups = self.m.div_ceil(rows) * self.n.div_ceil(cols) * self.pairs.len();
            groups.div_ceil(lower.processors()) * tile.cost
        };
        let tiles = MATRIX_TILES.iter().filter_map(|tile| Some((time(tile), self.matrix(tile, lower)?)));
        tiles.min_by_key(|(time, _)| *time).map(|(_, wide)| wide)
    }

    /// The kernel of wide tiles for it, if the device has one.
    fn plain_wide(&self, lower: &Lowering<'_>) -> Option<Wide> {
        self.group()?;
        let kernel = variants::GemmWide { t: self.dtype }.id().ok()?;
        lower.can_run(kernel).then_some(Wide { kernel, local: None, tile: TILE, depth: gemm_wide::DEPTH })
    }

    /// The kernel of wide tiles or of cooperative matrices for it, if one fits.
    pub(super) fn wide(&self, lower: &Lowering<'_>) -> Option<Wide> {
        let fits = self.m.min(self.n) >= MIN_WIDE
            && !wastes(TILE[0], [self.m, self.n])
            && enough(lower, TILE[0], ([self.m, self.n, self.pairs.len()], self.k), gemm_wide::DEPTH);
        self.best_matrix(lower).or_else(|| self.plain_wide(lower).filter(|_| fits))
    }

    /// The same kernels, whatever the number of work-groups: those of fewer than this many rows or columns waste most of
    /// their tiles.
    pub(super) fn all_wide(&self, lower: &Lowering<'_>) -> Vec<Wide> {
        if self.m.min(self.n) < MIN_MATRIX {
            return Vec::new();
        }
        let matrices = MATRIX_TILES.map(|tile| self.matrix(&tile, lower));
        matrices.into_iter().chain([self.plain_wide(lower)]).flatten().collect()
    }

    /// The kernel for few rows and a matrix that can be read four elements at a time, or two of them where `gated`, if the
    /// operands are such; with it whether columns of B are contiguous.
    pub(crate) fn wide_vectors(&self, gated: bool, lower: &Lowering<'_>) -> Option<(KernelId, bool)> {
        let columns = self.b.col != 1;
        let kernel = |eight: bool| {
            let kernel = variants::GemvWide { t: self.dtype, columns, eight, gated }.id().ok()?;
            let each = if eight { 8 } else { 4 };
            let whole =
                self.b.in_groups_of(each, self.k, self.n) && (!columns || self.k.is_multiple_of(each));
            (whole && lower.can_run(kernel)).then_some(kernel)
        };
        let kernel = kernel(columns).or_else(|| kernel(false))?;
        // With these the distances between matrices are multiples too.
        let left = self.a.col == 1 && self.a.row.is_multiple_of(4) && self.k.is_multiple_of(4);
        let fits = self.m <= gemv_wide::ROWS && self.k > 0;
        (fits && (left || !columns)).then_some((kernel, columns))
    }

    /// Whether it is a single product, with a matrix or two where `gated`, that this kernel computes.
    pub(crate) fn is_few(&self, gated: bool, lower: &Lowering<'_>) -> bool {
        let single = self.m > 0 && self.n > 1 && self.pairs.len() == 1 && self.is_indexable();
        single && !lower.device().prefers_texels && self.wide_vectors(gated, lower).is_some()
    }

    /// Emits the product with that kernel, if there is one, else nothing; with `other`, a matrix as the right operand, the
    /// product times that of the same left operand with this matrix. A summand of `beside` is the product's own.
    pub(crate) fn lower_wide_vectors(
        &self,
        other: Option<Operand>,
        beside: &Beside,
        lower: &mut Lowering<'_>,
    ) -> Result<bool, OpError> {
        let Some(kernel) = self.wide_vectors(other.is_some(), lower) else { return Ok(false) };
        self.in_wide_vectors(kernel, self.strip(kernel.1, lower), (other, beside), lower)?;
        Ok(true)
    }

    /// Emits that kernel, with such work-groups.
    pub(super) fn in_wide_vectors(
        &self,
        (kernel, columns): (KernelId, bool),
        Strip { across, local }: Strip,
        (other, beside): (Option<Operand>, &Beside),
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        let cols = if columns { gemv_wide::COLS } else { 4 * across };
        let (code, _) = self.activation.code();
        let mut spec = vec![
            (spec::gemv_wide::LOCAL_SIZE_X, local as u32),
            (spec::gemv_wide::BIASED, u32::from(self.c.is_some())),
            (spec::gemv_wide::ACTIVATION, code),
            (spec::gemv_wide::ACROSS, across as u32),
            (spec::gemv_wide::HELD, self.m.next_power_of_two() as u32),
        ];
        spec.extend(Beside { summand: None, ..*beside }.constants());
        let (c, c_strides) = self.c.unwrap_or((Operand::Unused, [0, 0]));
        let mut joined = false;
        self.batches(|batch, y_first| {
            let params = self.product_params(batch, y_first, c_strides);
            let groups = [self.n.div_ceil(cols), 1, batch.count].map(|g| g as u32);
            let args = [
                Some(self.a.operand),
                Some(self.b.operand),
                Some(c),
                Some(self.y),
                other,
                Some(beside.gain()),
            ];
            let args: Vec<Operand> = args.into_iter().flatten().collect();
            lower.dispatch(kernel, &spec, &args, &params, groups)?;
            if std::mem::replace(&mut joined, true) {
                lower.no_barrier();
            }
            Ok(())
        })
    }

    /// Work-groups of that kernel.
    pub(super) fn strip(&self, columns: bool, lower: &Lowering<'_>) -> Strip {
        if columns {
            return Strip { across: LEAST_ACROSS, local: LEAST_LOCAL };
        }
        let limits = &lower.device().limits;
        // A host's cores run the invocations of a work-group one after another.
        let is_host = lower.device().kind == DeviceKind::Cpu;
        let most = if is_host { LEAST_LOCAL } else { gemv_wide::MOST_LANES };
        let most = most.min(limits.max_group_items.min(limits.max_group_size[0]) as usize);
        Strip::of([self.k, self.n, self.pairs.len()], lower.processors(), most)
    }

    /// Every form of work-groups that may be the fastest one somewhere.
    pub(super) fn strips(&self, columns: bool, lower: &Lowering<'_>) -> Vec<Strip> {
        let own = self.strip(columns, lower);
        if columns {
            return vec![own];
        }
        let plain = [4, 8, 16, 32].map(|across| Strip { across, local: LEAST_LOCAL });
        plain.into_iter().chain((own.local != LEAST_LOCAL).then_some(own)).collect()
    }

    /// Whether it has a kernel of wide tiles or of cooperative matrices by the model of the device.
    pub(crate) fn is_wide(&self, lower: &Lowering<'_>) -> bool {
        self.wide(lower).is_some()
    }

    /// Emits it.
    pub(super) fn wide_tiles(&self, wide: &Wide, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let spec = wide.local.map(|threads| (spec::gemm_matrix::LOCAL_SIZE_X, threads));
        let [rows, cols] = wide.tile;
        self.in_tiles(wide.kernel, spec.into_iter().collect(), [rows, cols, wide.depth], lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_tiles_fit_the_result() {
        assert!(wastes(128, [64, 4096]) && wastes(128, [160, 160]));
        assert!(!wastes(128, [128, 4096]) && !wastes(128, [96, 4096]) && !wastes(128, [196, 1024]));
    }

    #[test]
    fn long_sums_of_few_wide_tiles_are_shared_out() {
        let mut device = crate::registry::Registry::with_defaults().find("sim").unwrap();
        device.processors = Some(132);
        let of = |m, n, k| enough(&Lowering::new(&device), 128, ([m, n, 1], k), 8);
        assert!(of(256, 1024, 1024) && of(4096, 4096, 8) && of(512, 196, 1024));
        assert!(!of(256, 1024, 256) && !of(256, 196, 1024));
    }

    /// Products of one token of a model of 1.5 billion parameters, its rows and columns.
    const SIZES: [[usize; 2]; 5] = [[2048, 3072], [2048, 2048], [2048, 8192], [8192, 2048], [2048, 128_256]];

    #[test]
    fn strips_leave_no_processor_idle() {
        let of = |processors: usize| {
            SIZES.map(|[rows, cols]| {
                let Strip { across, local } = Strip::of([rows, cols, 1], processors, 1024);
                (across, local)
            })
        };
        // A Steam Deck, a Radeon 780M, an 8060S and an H100.
        assert_eq!(of(8), [(32, 256), (32, 256), (32, 256), (32, 256), (32, 256)]);
        assert_eq!(of(12), [(32, 256), (16, 256), (32, 256), (16, 256), (32, 256)]);
        assert_eq!(of(40), [(8, 256), (8, 512), (16, 256), (8, 512), (32, 256)]);
        assert_eq!(of(132), [(8, 1024), (8, 1024), (8, 256), (8, 1024), (32, 256)]);
        // What a device or a short column has no room for.
        let longest = |rows, most| Strip::of([rows, 64, 1], 132, most);
        assert_eq!(longest(4096, 512), Strip { across: 4, local: 512 });
        assert_eq!(longest(64, 1024), Strip { across: 4, local: 256 });
        assert_eq!(longest(4096, 128), Strip { across: 4, local: 256 });
    }
}
