//! Matrix products on devices: which kernel, and the layouts that it reads.

mod candidates;
pub(crate) mod parts;
pub(crate) mod wide;

use self::parts::{PartSums, parts, shared_out};
use super::matmul::Dims;
use crate::dtype::DType;
use crate::graph::Tensor;
use crate::kernel::codes::gemv;
use crate::kernel::codes::slices::{DEPTH, SMALL_DEPTH, SMALL_TILE, TILE};
use crate::kernel::table::{id, params, spec, variants};
use crate::kernel::{KernelId, grid_1d};
use crate::ops::pack::Pack;
use crate::ops::{Activation, Lowering, OpCx, OpError, Operand};

/// Products of up to this many rows are summed in parts instead of computed in tiles.
pub(crate) const VECTOR_ROWS: usize = 4;

/// The tile of a work-group for `batch` products of `m` by `n`, whose sums of `k` may be shared out (0: they are not): its side
/// and its kernel, of one of large tiles and one of small ones. Small ones keep more of the device busy where there are few
/// elements and sums are too short to be shared out, and waste less on few rows or columns, where it has the local memory that
/// they take.
pub(crate) fn tile_of(
    lower: &Lowering<'_>,
    ([m, n, batch], k): ([usize; 3], usize),
    [large, small]: [KernelId; 2],
) -> (usize, KernelId) {
    let groups = |side: usize| m.div_ceil(side) * n.div_ceil(side) * batch;
    let [few, most] = [groups(TILE), groups(SMALL_TILE)];
    // Where small ones do for all processors, adding the parts of large ones takes longer than they save.
    let processors = lower.processors();
    let is_few =
        few < processors && (most >= processors || shared_out(lower, few, k.div_ceil(DEPTH)) < processors);
    let is_narrow = m.min(n) <= SMALL_TILE;
    if (is_few || is_narrow) && lower.can_run(small) { (SMALL_TILE, small) } else { (TILE, large) }
}

/// One operand: contiguous matrices.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Where it lies.
    pub operand: Operand,
    /// Its value, where it is known.
    pub value: Option<Tensor>,
    /// Number of matrices.
    pub matrices: usize,
    /// Stride of rows.
    pub row: usize,
    /// Stride of columns.
    pub col: usize,
}

impl Source {
    /// Input `i` of matrices of `rows` by `cols`, stored transposed where `transposed`.
    pub(crate) fn input(
        cx: &OpCx,
        i: usize,
        rows: usize,
        cols: usize,
        transposed: bool,
    ) -> Result<Source, OpError> {
        let matrices = cx.input(i)?.elements() / (rows * cols).max(1);
        let (row, col) = if transposed { (1, rows) } else { (cols, 1) };
        Ok(Source { operand: Operand::Input(i), value: cx.value(i).cloned(), matrices, row, col })
    }
}

/// Products `alpha * a * b + beta * c`, one for every element of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    /// Sizes.
    pub m: usize,
    /// Sizes.
    pub n: usize,
    /// Sizes.
    pub k: usize,
    /// Which matrices of A and B each product reads.
    pub pairs: Vec<(usize, usize)>,
    /// The left operand.
    pub a: Source,
    /// The right operand.
    pub b: Source,
    /// The summand and the strides of its rows and columns.
    pub c: Option<(Operand, [usize; 2])>,
    /// Another summand, which lies as the products do and has no factor; the kernels for few rows take none.
    pub summand: Option<Operand>,
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of the summand.
    pub beta: f32,
    /// Applied to the output.
    pub activation: Activation,
    /// The element type.
    pub dtype: DType,
    /// The contiguous products.
    pub y: Operand,
    /// The right operand as the row kernel reads it, where [`Product::prepare`] made it.
    pub prepared: Option<Layout>,
}

/// Products whose operands have regular strides: number `i` reads matrix
/// `first + i / inner * outer_step + i % inner * inner_step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Batch {
    count: usize,
    inner: usize,
    first: [usize; 2],
    outer_step: [usize; 2],
    inner_step: [usize; 2],
}

impl Batch {
    fn at(&self, i: usize) -> (usize, usize) {
        let of = |x: usize| {
            self.first[x] + i / self.inner * self.outer_step[x] + i % self.inner * self.inner_step[x]
        };
        (of(0), of(1))
    }

    /// The longest regular batch at the beginning of `pairs`, which is not empty.
    fn leading(pairs: &[(usize, usize)]) -> Batch {
        let first = pairs[0];
        let step = |to: Option<&(usize, usize)>| -> Option<[usize; 2]> {
            match to {
                None => Some([0, 0]),
                Some(to) => Some([to.0.checked_sub(first.0)?, to.1.checked_sub(first.1)?]),
            }
        };
        let mut best =
            Batch { count: 1, inner: 1, first: [first.0, first.1], outer_step: [0, 0], inner_step: [0, 0] };
        let divisors = (1..=pairs.len()).filter(|d| pairs.len().is_multiple_of(*d));
        for inner in divisors {
            let (Some(inner_step), Some(outer_step)) =
                (step(pairs.get(1).filter(|_| inner > 1)), step(pairs.get(inner)))
            else {
                continue;
            };
            let batch = Batch { count: pairs.len(), inner, inner_step, outer_step, ..best };
            let count = pairs.iter().enumerate().take_while(|(i, p)| batch.at(*i) == **p).count();
            if count > best.count {
                best = Batch { count, ..batch };
            }
            if count == pairs.len() {
                break;
            }
        }
        best
    }
}

/// The layout of one operand's tensor for the row kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    operand: Operand,
    /// Texels from one row to the next.
    row: usize,
    /// Texels from one tile of columns to the next.
    tile: usize,
    /// Texels from one matrix to the next.
    matrix: usize,
    /// Whether texels are of one column, not of one row.
    columns: bool,
}

impl Source {
    /// The matrices of `rows` by `cols` in tiles of `tile` columns.
    fn pack(
        &self,
        dtype: DType,
        tile: usize,
        rows: usize,
        cols: usize,
        lower: &mut Lowering<'_>,
    ) -> Result<Operand, OpError> {
        let pack = Pack {
            groups: self.matrices,
            tile,
            oc: cols,
            ic: rows,
            taps: [1; 3],
            first: 0,
            group_stride: (rows * cols) as i64,
            oc_stride: self.col as i64,
            ic_stride: self.row as i64,
            tap_strides: [0; 3],
        };
        pack.emit((self.operand, self.value.as_ref()), dtype, lower)
    }

    /// Contiguous matrices of `rows` by `cols`, with contiguous rows.
    pub(crate) fn by_rows(
        &self,
        dtype: DType,
        rows: usize,
        cols: usize,
        lower: &mut Lowering<'_>,
    ) -> Result<Operand, OpError> {
        if (self.row, self.col) == (cols, 1) {
            return Ok(self.operand);
        }
        self.pack(dtype, cols.max(1), rows, cols, lower)
    }
}

impl Product {
    /// The products `a * b` of `pairs` of matrices and nothing else.
    pub(crate) fn new(
        [m, n, k]: [usize; 3],
        pairs: Vec<(usize, usize)>,
        [a, b]: [Source; 2],
        dtype: DType,
        y: Operand,
    ) -> Product {
        Product {
            m,
            n,
            k,
            pairs,
            a,
            b,
            c: None,
            summand: None,
            alpha: 1.0,
            beta: 1.0,
            activation: Activation::None,
            dtype,
            y,
            prepared: None,
        }
    }

    /// The product of inputs 0 and 1 as `dims` has it.
    pub(crate) fn of(cx: &OpCx, dims: &Dims) -> Result<Product, OpError> {
        Ok(Product::new(
            [dims.m, dims.n, dims.k],
            dims.pairs.listed()?,
            [Source::input(cx, 0, dims.m, dims.k, false)?, Source::input(cx, 1, dims.k, dims.n, false)?],
            cx.dtype(0)?,
            Operand::Output(0),
        ))
    }

    /// Emits its dispatches.
    pub(crate) fn lower(&self, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        if self.pairs.is_empty() || self.m == 0 || self.n == 0 {
            return Ok(());
        }
        if !self.is_indexable() {
            return Err(OpError::unsupported("matrices of more elements than a kernel can index"));
        }
        if !matches!(self.dtype, DType::F32 | DType::F16) {
            return Err(OpError::unsupported(format!("no device kernel for products of {}", self.dtype)));
        }
        lower.iterations(self.k)?;
        self.lower_chosen(lower)
    }

    /// Whether kernels can index all elements of its operands.
    pub(crate) fn is_indexable(&self) -> bool {
        let matrices = self.pairs.len().max(self.a.matrices).max(self.b.matrices);
        let sizes = [self.m * self.k, self.k * self.n, self.m * self.n];
        sizes.iter().all(|elements| elements.saturating_mul(matrices) <= i32::MAX as usize / 2)
    }

    /// Its sums, where a kernel of `tiles` work-groups for a product and `steps` steps is better shared out between more.
    fn sums(&self, tiles: usize, steps: usize, lower: &Lowering<'_>) -> Option<PartSums> {
        let parts = parts(lower, tiles * self.pairs.len(), steps);
        let is_regular = || Batch::leading(&self.pairs).count == self.pairs.len();
        (parts > 1 && is_regular()).then_some(PartSums {
            parts,
            sizes: [self.pairs.len(), self.m, self.n],
            c: self.c,
            summand: self.summand,
            alpha: self.alpha,
            beta: self.beta,
            activation: self.activation,
            sloped: false,
            dtype: self.dtype,
            y: self.y,
        })
    }

    /// Emits a kernel of tiles of `rows` by `cols` elements that sums `depth` of k in a step.
    fn in_tiles(
        &self,
        kernel: KernelId,
        mut spec: Vec<(u32, u32)>,
        [rows, cols, depth]: [usize; 3],
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        let (across, down) = (self.n.div_ceil(cols), self.m.div_ceil(rows));
        let sums = self.sums(across * down, self.k.div_ceil(depth), lower);
        let parts = sums.as_ref().map_or(1, |sums| sums.parts);
        let (code, _) = self.activation.code();
        spec.extend([
            (spec::tiles::A_COLUMNS, u32::from(self.a.col != 1)),
            (spec::tiles::B_COLUMNS, u32::from(self.b.col != 1)),
            (spec::tiles::BIASED, u32::from(self.c.is_some())),
            (spec::tiles::ACTIVATION, code),
            (spec::output::SUMMED, u32::from(self.summand.is_some() && parts == 1)),
        ]);
        let scratch = sums.as_ref().map_or(Operand::Unused, |sums| sums.scratch(lower));
        if parts > 1 {
            spec.push((spec::parts::PARTS, parts as u32));
        }
        let (c, c_strides) = self.c.unwrap_or((Operand::Unused, [0, 0]));
        let y = if parts > 1 { Operand::Unused } else { self.y };
        let summand = self.summand.filter(|_| parts == 1).unwrap_or(Operand::Unused);
        let args = [self.a.operand, self.b.operand, c, y, scratch, summand];
        let mut joined = false;
        self.batches(|batch, y_first| {
            let params = self.product_params(batch, y_first, c_strides);
            let groups = [across, down, batch.count * parts].map(|g| g as u32);
            lower.dispatch(kernel, &spec, &args, &params, groups)?;
            self.writes_quads(lower);
            if std::mem::replace(&mut joined, true) {
                lower.no_barrier();
            }
            Ok(())
        })?;
        sums.map_or(Ok(()), |sums| sums.add(scratch, lower))
    }

    /// Calls `f` with every regular part of the batch and where its output begins.
    fn batches(&self, mut f: impl FnMut(&Batch, usize) -> Result<(), OpError>) -> Result<(), OpError> {
        /// More parts than this are better off on the CPU.
        const MAX_PARTS: usize = 64;
        let mut rest = self.pairs.as_slice();
        let mut parts = 0;
        while !rest.is_empty() {
            let batch = Batch::leading(rest);
            let done = self.pairs.len() - rest.len();
            f(&batch, done * self.m * self.n)?;
            rest = &rest[batch.count..];
            parts += 1;
            if parts == MAX_PARTS && !rest.is_empty() {
                return Err(OpError::unsupported("batches that are broadcast so irregularly"));
            }
        }
        Ok(())
    }

    /// Lays out the right operand once for several products with it.
    pub(crate) fn prepare(&mut self, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        if self.by_texels(lower) && self.prepared.is_none() {
            self.prepared = Some(self.right(lower, self.cols())?);
        }
        Ok(())
    }

    /// Whether the row kernel is the one to take: it has no variant for `float16` in plain buffers.
    fn by_texels(&self, lower: &Lowering<'_>) -> bool {
        lower.device().prefers_texels && self.can_take_rows(lower)
    }

    /// Whether the row kernel can compute it.
    fn can_take_rows(&self, lower: &Lowering<'_>) -> bool {
        let half = self.dtype == DType::F16
            && lower.can_run(id::GEMM_ROW_HALF)
            && self.texels(self.cols()) <= lower.device().limits.max_texels;
        self.dtype == DType::F32 || half
    }

    /// Texels of the larger operand, as the row kernel reads it.
    fn texels(&self, cols: usize) -> u64 {
        let a = self.a.matrices * self.m * self.k.next_multiple_of(4);
        let b = self.b.matrices * self.k * self.n.next_multiple_of(cols);
        (a.max(b) / 4) as u64
    }

    /// Columns of a tile of the row kernel: the widest among those that waste least.
    fn cols(&self) -> usize {
        [16, 8, 4].into_iter().min_by_key(|c| self.n.next_multiple_of(*c)).unwrap_or(8)
    }

    /// Register tiles of `rows` rows over whole texels, in work-groups of `local` invocations.
    fn rows(&self, rows: usize, local: u32, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let cols = self.cols();
        let a = self.left(lower)?;
        let b = match self.prepared {
            Some(layout) => layout,
            None => self.right(lower, cols)?,
        };
        let whole = self.n.is_multiple_of(4);
        let short = self.texels(cols) <= lower.device().limits.max_texels;
        let kernel = variants::GemmRow { t: self.dtype, texels: short, out4: whole }.id()?;
        let (code, _) = self.activation.code();
        // The kernel's own size needs no constant.
        let own = kernel.info().local_size[0];
        let mut spec: Vec<_> =
            (local != own).then_some((spec::gemm_row::LOCAL_SIZE_X, local)).into_iter().collect();
        spec.extend([
            (spec::gemm_row::ROWS, rows as u32),
            (spec::gemm_row::COLS, cols as u32),
            (spec::gemm_row::BIASED, u32::from(self.c.is_some())),
            (spec::gemm_row::ACTIVATION, code),
            (spec::gemm_row::B_COLUMNS, u32::from(b.columns)),
            (spec::output::SUMMED, u32::from(self.summand.is_some())),
        ]);
        self.over_texels(kernel, (&spec, local), [a, b], [rows, cols], lower)
    }

    /// Says of the last step that it writes whole quads of rows: those of float32 fill lines.
    pub(super) fn writes_quads(&self, lower: &mut Lowering<'_>) {
        if self.n.is_multiple_of(4) && self.dtype == DType::F32 {
            lower.writes_in_order(4 * self.dtype.bytes());
        }
    }

    /// Emits the row kernel for every regular part of the batch.
    fn over_texels(
        &self,
        kernel: KernelId,
        (spec, local): (&[(u32, u32)], u32),
        [a, b]: [Layout; 2],
        [rows, cols]: [usize; 2],
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        let (_, [act_a, act_b]) = self.activation.code();
        let (c, c_strides) = self.c.unwrap_or((Operand::Unused, [0, 0]));
        let mut joined = false;
        self.batches(|batch, y_first| {
            let count = self.m.div_ceil(rows) * self.n.div_ceil(cols) * batch.count;
            let params = params::GemmRow {
                count: count as u32,
                m: self.m as u32,
                n: self.n as u32,
                k: self.k as u32,
                a_first: (batch.first[0] * a.matrix) as i32,
                b_first: (batch.first[1] * b.matrix) as i32,
                a_row: a.row as i32,
                b_row: b.row as i32,
                b_tile: b.tile as i32,
                a_outer: (batch.outer_step[0] * a.matrix) as i32,
                a_inner: (batch.inner_step[0] * a.matrix) as i32,
                b_outer: (batch.outer_step[1] * b.matrix) as i32,
                b_inner: (batch.inner_step[1] * b.matrix) as i32,
                inner: batch.inner as u32,
                y_first: y_first as u32,
                c_row: c_strides[0] as u32,
                c_col: c_strides[1] as u32,
                alpha: self.alpha,
                beta: self.beta,
                act_a,
                act_b,
            };
            let args = [a.operand, b.operand, c, self.y, self.summand.unwrap_or(Operand::Unused)];
            let groups = grid_1d(count as u64, local, lower.device().limits.max_groups[0]);
            lower.dispatch(kernel, spec, &args, &params, groups)?;
            self.writes_quads(lower);
            if std::mem::replace(&mut joined, true) {
                lower.no_barrier();
            }
            Ok(())
        })
    }

    /// A as rows of whole texels.
    fn left(&self, lower: &mut Lowering<'_>) -> Result<Layout, OpError> {
        let row = self.k.next_multiple_of(4);
        // Elements after the last of a row are read but unused.
        let direct = self.a.col == 1 && self.a.row == row && self.k > 0;
        let operand = match direct {
            true => self.a.operand,
            false => self.a.pack(self.dtype, row.max(4), self.m, self.k, lower)?,
        };
        let matrix = self.m * row.max(4) / 4;
        Ok(Layout { operand, row: row.max(4) / 4, tile: 0, matrix, columns: false })
    }

    /// B as it is, if its columns are whole texels, or its rows and it is not known; else as tiles of columns, packed once
    /// where it is known: tiles of rows that lie apart take several times as long to read, those of columns little more.
    /// Either way products of any number of rows read one copy of it.
    fn right(&self, lower: &mut Lowering<'_>, cols: usize) -> Result<Layout, OpError> {
        let (operand, matrix) = (self.b.operand, self.k * self.n / 4);
        if self.b.row == 1 && self.b.col == self.k && self.k.is_multiple_of(4) && self.k > 0 {
            let row = self.k / 4;
            return Ok(Layout { operand, row, tile: cols * row, matrix, columns: true });
        }
        let whole = self.b.col == 1 && self.b.row == self.n && self.n.is_multiple_of(4) && self.k > 0;
        if whole && self.b.value.is_none() {
            return Ok(Layout { operand, row: self.n / 4, tile: cols / 4, matrix, columns: false });
        }
        let tile = self.k * cols / 4;
        let matrix = self.n.div_ceil(cols) * tile;
        let operand = self.b.pack(self.dtype, cols, self.k, self.n, lower)?;
        Ok(Layout { operand, row: cols / 4, tile, matrix, columns: false })
    }

    /// The transposed product, for outputs of one column.
    fn flipped(&self) -> Product {
        let turn = |s: &Source| Source { row: s.col, col: s.row, ..s.clone() };
        Product {
            m: self.n,
            n: self.m,
            k: self.k,
            pairs: self.pairs.iter().map(|(a, b)| (*b, *a)).collect(),
            a: turn(&self.b),
            b: turn(&self.a),
            c: self.c.map(|(operand, [row, col])| (operand, [col, row])),
            prepared: None,
            ..self.clone()
        }
    }

    /// Sums in parts, for few rows.
    fn vectors(&self, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let kernel = variants::Gemv { t: self.dtype }.id()?;
        let columns = self.b.col != 1;
        let (code, _) = self.activation.code();
        let spec = [
            (spec::gemv::B_COLUMNS, u32::from(columns)),
            (spec::gemv::BIASED, u32::from(self.c.is_some())),
            (spec::gemv::ACTIVATION, code),
        ];
        let (c, c_strides) = self.c.unwrap_or((Operand::Unused, [0, 0]));
        let args = [self.a.operand, self.b.operand, c, self.y];
        let mut joined = false;
        self.batches(|batch, y_first| {
            let params = self.product_params(batch, y_first, c_strides);
            let cols = if columns { gemv::FEW_COLS } else { gemv::COLS };
            let groups = [self.n.div_ceil(cols), self.m, batch.count].map(|g| g as u32);
            lower.dispatch(kernel, &spec, &args, &params, groups)?;
            if std::mem::replace(&mut joined, true) {
                lower.no_barrier();
            }
            Ok(())
        })
    }

    /// Sizes and strides in elements, as parameters of kernels over plain buffers.
    fn product_params(&self, batch: &Batch, y_first: usize, c: [usize; 2]) -> params::Product {
        let (a_matrix, b_matrix) = (self.m * self.k, self.k * self.n);
        let (_, [act_a, act_b]) = self.activation.code();
        params::Product {
            m: self.m as u32,
            n: self.n as u32,
            k: self.k as u32,
            a_first: (batch.first[0] * a_matrix) as u32,
            b_first: (batch.first[1] * b_matrix) as u32,
            a_row: self.a.row as u32,
            a_col: self.a.col as u32,
            b_row: self.b.row as u32,
            b_col: self.b.col as u32,
            a_outer: (batch.outer_step[0] * a_matrix) as u32,
            a_inner: (batch.inner_step[0] * a_matrix) as u32,
            b_outer: (batch.outer_step[1] * b_matrix) as u32,
            b_inner: (batch.inner_step[1] * b_matrix) as u32,
            inner: batch.inner as u32,
            y_first: y_first as u32,
            c_row: c[0] as u32,
            c_col: c[1] as u32,
            alpha: self.alpha,
            beta: self.beta,
            act_a,
            act_b,
        }
    }

    /// Tiles in workgroup memory, of `tile` rows and columns.
    fn tiles(&self, tile: usize, kernel: KernelId, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let depth = if tile == TILE { DEPTH } else { SMALL_DEPTH };
        self.in_tiles(kernel, Vec::new(), [tile, tile, depth], lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_util::{attrs, facts, read_op, tensor};

    #[test]
    fn a_tile_fits_the_device_and_its_local_memory() {
        let registry = crate::registry::Registry::with_defaults();
        let mut device = registry.find("sim").unwrap();
        device.processors = Some(132);
        let kernels = [id::GEMM_TILE_F32, id::GEMM_TILE_F32_SMALL];
        let mut of = |bytes: u32, n: usize, k: usize| {
            device.limits.max_local_bytes = bytes;
            tile_of(&Lowering::new(&device), ([n, n, 1], k), kernels)
        };
        assert_eq!(of(64 << 10, 128, 64), (32, kernels[1]));
        assert_eq!(of(64 << 10, 4096, 64), (64, kernels[0]));
        // Long sums are shared out between as many work-groups as there are processors, where small tiles are too few.
        assert_eq!(of(64 << 10, 256, 64), (32, kernels[1]));
        assert_eq!(of(64 << 10, 256, 4096), (64, kernels[0]));
        assert_eq!(of(64 << 10, 512, 4096), (32, kernels[1]));
        // The guaranteed minimum of Vulkan is too small for the small tile.
        assert_eq!(of(16 << 10, 128, 64), (64, kernels[0]));
    }

    /// What kernels write in pieces does not go over a bus.
    #[test]
    fn products_say_whether_they_write_whole_lines() {
        let mut device = crate::registry::Registry::with_defaults().find("sim").unwrap();
        device.prefers_texels = false;
        let op = read_op("MatMul", 13, &attrs(&[])).unwrap();
        for (n, whole) in [(256, true), (255, false)] {
            let operands = [tensor(&[128, 64], 1), tensor(&[64, n], 2)].map(Some);
            let cx = facts(&*op, &operands, 1).unwrap();
            let mut lower = Lowering::new(&device);
            op.gpu(&cx, &mut lower).unwrap();
            let lowered = lower.finish();
            assert_eq!(lowered.writes_lines.len() == lowered.steps.len(), whole, "{n} columns");
        }
    }

    #[test]
    fn regular_batches_are_found() {
        let all = |pairs: &[(usize, usize)]| {
            let b = Batch::leading(pairs);
            (0..b.count).for_each(|i| assert_eq!(b.at(i), pairs[i]));
            b.count == pairs.len()
        };
        assert!(all(&[(0, 0)]));
        assert!(all(&[(0, 0), (1, 1), (2, 2)]));
        assert!(all(&[(0, 0), (0, 1), (1, 0), (1, 1)]));
        assert!(all(&[(0, 0), (1, 0), (0, 1), (1, 1)].map(|(a, b)| (b, a))));
        assert!(all(&[(3, 0), (4, 0), (5, 0)]));
        assert!(!all(&[(0, 0), (1, 1), (5, 5), (1, 2)]));
    }
}
