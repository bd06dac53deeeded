//! Products with a matrix of which each column is kept as codes: what they share whatever the codes are.

pub(crate) mod panel;

use pulp::Simd;

use super::joined::Beside;
use super::product::{Mat, Threads, product};
use super::tile::{self, Columns, Start, Tiled};
use crate::dtype::DType;
use crate::kernel::codes::coded_matrix::{SUBS_32, SUBS_64, SUBS_128};
use crate::kernel::codes::few_rows;
use crate::kernel::table::{id, params, spec};
use crate::kernel::{KernelError, KernelId, grid_1d};
use crate::ops::real::{Real, as_f32s, as_f32s_mut};
use crate::ops::{Activation, Candidate, ChoiceKey, Lowering, OpCx, OpError, Operand, par};
use crate::shape::Shape;
use crate::tensor::TensorInfo;

/// Columns of the result that a task of few rows makes at once.
const COLUMNS: usize = 32;
/// Up to this many rows, native functions multiply by codes directly, instead of decoding columns.
pub(crate) const FEW_ROWS: usize = 4;

/// From this many rows on, codes are decoded into panels where rows are rounded.
pub(crate) const PANEL_ROWS: usize = 4;
/// Multiplications of rounded rows below which one thread is faster.
pub(crate) const PARALLEL: usize = 400_000;
/// Multiplications of rounded rows that one task has at least.
pub(crate) const TASK: usize = 125_000;
/// Rounded rows that one task has at least.
pub(crate) const BAND: usize = 16;
/// How many bytes before they are multiplied codes are asked for.
pub(crate) const AHEAD: usize = 2048;
/// Bytes of rounded rows that are multiplied by all columns of a task before the next rows: they stay in the second
/// cache.
const TOGETHER: usize = 256 << 10;

/// The numbers below `count` in the order in which columns are read, of so many places in turn.
#[inline(always)]
pub(crate) fn in_streams(count: usize, streams: usize) -> impl Iterator<Item = usize> {
    let each = count.div_ceil(streams);
    (0..each * streams).map(move |i| i % streams * each + i / streams).filter(move |i| *i < count)
}

/// Elements of a row of `float16` that the kernels of cooperative matrices read at a time; `k` is a multiple of it.
pub(crate) const MATRIX_STEP: usize = 8;

/// A kernel of cooperative matrices for rows of `float16` and weights that it decodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrices {
    /// The kernel.
    pub kernel: KernelId,
    /// Its `LOCAL_SIZE_X`.
    pub threads: u32,
    /// Rows and columns of a work-group.
    side: usize,
}

impl Matrices {
    /// Side and subgroups of a work-group, and the least work-groups for every two processors of a device: with fewer of
    /// them, processors that idle cost more than smaller work-groups do.
    const SIDES: [(usize, usize, usize); 3] = [(128, SUBS_128, 3), (64, SUBS_64, 1), (32, SUBS_32, 0)];

    /// The one for a product of `m` rows of `t`, `k` elements each, and `n` columns, where the device runs one; `kernel` has
    /// that of work-groups of a side.
    pub(crate) fn of(
        lower: &mut Lowering<'_>,
        t: DType,
        [m, n, k]: [usize; 3],
        kernel: impl Fn(u32) -> Option<KernelId>,
    ) -> Option<Matrices> {
        let processors = lower.processors();
        let of = |lower: &Lowering<'_>, (side, subs, _): (usize, usize, usize)| {
            let kernel = kernel(side as u32)?;
            Some(Matrices { kernel, threads: lower.matrix_threads(kernel, subs)?, side })
        };
        let are_enough = |(side, _, pairs): &(usize, usize, usize)| {
            m.div_ceil(*side) * n.div_ceil(*side) >= processors * pairs / 2
        };
        let by_model = Self::SIDES.into_iter().filter(are_enough).find_map(|side| of(lower, side))?;
        Some(lower.choose(by_model, |lower| {
            let key = ChoiceKey::new("coded matrices", t).size("m", m).size("n", n).size("k", k);
            let key = key.exact("by", by_model.kernel.info().source);
            (key, Self::SIDES.into_iter().filter_map(|side| of(lower, side)).collect())
        }))
    }

    /// Work-groups for `m` rows and `n` columns. Those of neighbouring rows follow one another: they share weights, which
    /// are more than the rows.
    pub(crate) fn groups(&self, [m, n]: [u32; 2]) -> [u32; 3] {
        [m.div_ceil(self.side as u32), n.div_ceil(self.side as u32), 1]
    }
}

impl Candidate for Matrices {
    fn name(&self) -> String {
        self.kernel.info().name.to_owned()
    }
}

/// Rounds `m` rows of `k` elements, `float32`, to `float16`, each by a factor of its own, a power of two that brings
/// its elements to the middle of what `float16` has. Returns the rows, and for each what results of it are multiplied by.
pub(crate) fn rounded_rows(
    lower: &mut Lowering<'_>,
    a: Operand,
    [m, k]: [usize; 2],
) -> Result<[Operand; 2], OpError> {
    let rows = lower.scratch(m * k * size_of::<half::f16>());
    let factors = lower.scratch(m * size_of::<f32>());
    let params = params::RoundRows { m: m as u32, k: k as u32 };
    let groups = [params.m.min(lower.device().limits.max_groups[0]), 1, 1];
    lower.dispatch(id::ROUND_ROWS, &[], &[a, rows, factors], &params, groups)?;
    Ok([rows, factors])
}

/// The result of rows of input `a` and a matrix of `columns`.
pub(crate) fn infer(cx: &OpCx, a: usize, dtype: DType, columns: usize) -> Result<Vec<TensorInfo>, OpError> {
    let mut dims = cx.shape(a)?.to_vec();
    if let Some(last) = dims.last_mut() {
        *last = columns;
    }
    Ok(vec![TensorInfo::new(dtype, Shape::new(dims)?)])
}

/// How teams of the kernel for few rows share columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Teams {
    /// Columns of a team.
    cols: usize,
    /// Teams that share them.
    split: usize,
}

impl Teams {
    /// All that there are, of which a team has at most `most` columns.
    fn all(most: usize) -> Vec<Teams> {
        let cols = [1, 2, 4].into_iter().filter(|cols| *cols <= most);
        cols.flat_map(|cols| [1, 2, 4].map(|split| Teams { cols, split })).collect()
    }
}

impl Candidate for Teams {
    fn name(&self) -> String {
        format!("few_rows/{}/{}", self.cols, self.split)
    }
}

/// Those of the model of a device with `processors`. A column has `units`, of which each thread of a team takes one at a
/// time.
fn teams(columns: usize, units: usize, processors: usize) -> Teams {
    /// The processors of the device whose numbers these are: smaller ones are busy with fewer teams.
    const PROCESSORS: usize = 132;
    /// A column of so many units keeps several teams busy.
    const LONG: usize = 128;
    /// With so many columns there are teams enough.
    const MANY: usize = 4096;
    /// With fewer teams than these, teams of as many columns leave a device idle.
    const LEAST: [(usize, usize); 2] = [(4, 4096), (2, 768)];
    /// The same for teams that share columns by fours.
    const LEAST_BY_FOUR: [(usize, usize); 2] = [(4, 2048), (2, 768)];
    let of_large = |count: usize| count.saturating_mul(PROCESSORS) / processors.max(1);
    let split = match (units, of_large(columns)) {
        (0..LONG, _) | (_, MANY..) => 1,
        // Two columns of a team are too few to be shared by four.
        (_, columns) if units >= 2 * LONG && !(MANY / 8..MANY / 2).contains(&columns) => 4,
        _ => 2,
    };
    let least = if split == 4 { LEAST_BY_FOUR } else { LEAST };
    let cols = least.into_iter().find(|(cols, least)| of_large(columns / cols * split) >= *least);
    Teams { cols: cols.map_or(1, |(cols, _)| cols), split }
}

/// Whether a kernel of few_rows.glsl does `m` rows.
pub(crate) fn are_few(m: usize) -> bool {
    (1..=few_rows::ROWS).contains(&m)
}

/// Emits `kernel`, which includes few_rows.glsl, for `m` rows and `n` columns of `units`, with what it does besides.
pub(crate) fn lower_few_rows<P: bytemuck::Pod>(
    lower: &mut Lowering<'_>,
    kernel: KernelId,
    [m, n, units]: [usize; 3],
    beside: &Beside,
    (mut constants, args, params): (Vec<(u32, u32)>, &[Operand], &P),
) -> Result<(), OpError> {
    // With a gate columns of both matrices are those of a team.
    let matrices = if beside.gate.is_some() { 2 } else { 1 };
    let most = few_rows::COLS_MAX / matrices;
    let by_model = teams(n, units, lower.processors());
    let by_model = Teams { cols: by_model.cols.min(most), ..by_model };
    let Teams { cols, split } = lower.choose(by_model, |_| {
        // One row or several, which a kernel holds in as many registers.
        let key = ChoiceKey::new("few rows", DType::F32).exact("by", kernel.info().name);
        let key = key.exact("m", m.next_power_of_two()).size("n", n).size("units", units);
        (key.flag("normed", beside.norm.is_some()), Teams::all(most))
    });
    if let Some(gate) = beside.gate {
        let (code, [a, b]) = gate.code();
        constants.extend([
            (spec::few_rows::ACTIVATION, code),
            (spec::few_rows::ACT_A, a.to_bits()),
            (spec::few_rows::ACT_B, b.to_bits()),
        ]);
    }
    constants.extend([
        (spec::few_rows::COLS, (matrices * cols) as u32),
        (spec::few_rows::SPLIT, split as u32),
        (spec::few_rows::HELD, m.next_power_of_two() as u32),
    ]);
    constants.extend(beside.constants());
    let groups = n.div_ceil(cols * few_rows::TEAMS / split) as u64;
    let grid = grid_1d(groups, 1, lower.device().limits.max_groups[0]);
    lower.dispatch(kernel, &constants, args, params, grid)
}

/// A product of few rows: `dots` gives a column's products with every row.
pub(crate) fn few_rows<T: Real>(
    [m, n]: [usize; 2],
    bias: Option<&[T]>,
    y: &mut [T],
    dots: impl Fn(usize, &mut [f32]) + Sync,
) {
    let mut sums = vec![0f32; m * n];
    // Element `[column, row]`, so that a thread's columns are its own.
    par::share(sums.chunks_mut(COLUMNS * m).enumerate(), |(part, sums)| {
        sums.chunks_mut(m).enumerate().for_each(|(c, sums)| dots(part * COLUMNS + c, sums));
    });
    for (i, y) in y.iter_mut().enumerate() {
        let bias = bias.and_then(|b| b.get(i % n)).copied().unwrap_or(T::ZERO);
        *y = T::from_f64(sums[i % n * m + i / n].into()) + bias;
    }
}

/// A product of the rows of `a`: `decode` writes whole columns of `k` elements, from the given one on. `T` is `f32`.
pub(crate) fn many_rows<T: Real>(
    [m, n, k]: [usize; 3],
    a: &[T],
    bias: Option<&[T]>,
    y: &mut [T],
    decode: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<(), KernelError> {
    let bias = bias.map(as_f32s);
    let (Some(a), Some(y), true) = (as_f32s(a), as_f32s_mut(y), bias != Some(None)) else {
        return Err(KernelError::Value { what: "a product with codes that is not summed in float32".into() });
    };
    if tile::has_vectors() {
        let columns = Decoded { decode: &decode, depth: k };
        let (start, epilogue) = (Start::Zero, Activation::None.into());
        Tiled { a, a_row: k, depth: k, columns: &columns, start, epilogue }.run(m, n, y, n, Threads::All);
    } else {
        let mut whole = vec![0f32; n * k];
        decode(0, &mut whole);
        product([m, n, k], Mat::rows(a, k), Mat::transposed(&whole, k), y, n, false, Threads::All)?;
    }
    // Added last, as devices do: sums that are exact stay so.
    if let Some(bias) = bias.flatten() {
        par::rows(y, n, m * n, |_, y| y.iter_mut().zip(bias).for_each(|(y, b)| *y += *b));
    }
    Ok(())
}

/// The columns of a matrix that are decoded when they are multiplied.
struct Decoded<'a> {
    /// Writes whole columns, from the given one on.
    decode: &'a (dyn Fn(usize, &mut [f32]) + Sync),
    depth: usize,
}

impl Columns for Decoded<'_> {
    const BAND: usize = 128;

    #[inline(always)]
    fn fill<S: Simd>(&self, _: S, first: usize, n: usize, pitch: usize, to: &mut [f32]) {
        /// Columns that are decoded together: a row of them is written at once.
        const SOME: usize = 8;
        let mut some = vec![0f32; SOME.min(n) * self.depth];
        for at in (0..n).step_by(SOME) {
            let count = SOME.min(n - at);
            let some = &mut some[..count * self.depth];
            (self.decode)(first + at, some);
            for (i, row) in to.chunks_exact_mut(pitch).enumerate().take(self.depth) {
                for (j, v) in row[at..at + count].iter_mut().enumerate() {
                    *v = some[j * self.depth + i];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn teams_are_as_many_as_keep_a_device_busy() {
        // Columns and units of a decoder of 1.5 billion parameters, then of one of half a billion, with 4 bits.
        let of = |columns, units| {
            let Teams { cols, split } = teams(columns, units, 132);
            (cols, split)
        };
        assert_eq!(of(128_256, 64), (4, 1));
        assert_eq!(of(3072, 64), (2, 1));
        assert_eq!(of(2048, 256), (4, 4));
        assert_eq!(of(896, 152), (2, 2));
        assert_eq!(of(1536, 280), (2, 2));
        assert_eq!(of(1152, 28), (1, 1));
        // Few long columns, and more of them than need to be shared.
        assert_eq!(of(3, 256), (1, 4));
        assert_eq!(of(8192, 256), (2, 1));
        // Twelve compute units of an APU, and a host.
        assert_eq!(teams(896, 152, 12), Teams { cols: 2, split: 1 });
        assert_eq!(teams(4096, 64, 12), Teams { cols: 4, split: 1 });
        assert_eq!(teams(128, 2, 1), Teams { cols: 4, split: 1 });
    }
}
