//! Normalizations on devices: an invocation or a work-group for each row.

use super::Along;
use super::rows::RowNorm;
use crate::dtype::DType;
use crate::kernel::codes::row_norm_texels::Affine;
use crate::kernel::codes::team::{HELD, MOST_LANES};
use crate::kernel::codes::{softmax, stats};
use crate::kernel::table::{id, params, spec, variants};
use crate::ops::word::index32;
use crate::ops::{Activation, Candidate, ChoiceKey, Lowering, OpCx, OpError, Operand};

/// The fewest invocations that do one vector.
const LEAST_TEAM: usize = 8;
/// Invocations of a work-group, where vectors need no more.
const GROUP: usize = 256;
/// Passes of a kernel over a row.
const ROW_PASSES: usize = 3;

/// Where the elements of rows lie: the members of `params::RowNorm` of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) inner_rows: usize,
    pub(super) outer_step: usize,
    pub(super) row_step: usize,
    pub(super) run: usize,
    pub(super) jump: usize,
}

impl Places {
    /// Rows of `len` neighbouring elements.
    pub(super) fn dense(len: usize) -> Places {
        Places { inner_rows: 1, outer_step: len, row_step: 0, run: len.max(1), jump: 0 }
    }
}

/// Emits the normalization of rows that lie at `places`; scale and bias are inputs 1 and 2 where they are given.
pub(super) fn rows(
    cx: &OpCx,
    norm: &RowNorm,
    places: &Places,
    outer_epsilon: bool,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    if index32(norm.rows * norm.len)? == 0 {
        return Ok(());
    }
    let dtype = cx.dtype(0)?;
    let (code, [act_a, act_b]) = norm.activation.code();
    let same = (1..3).filter_map(|i| cx.input_opt(i)).chain(cx.outputs().first()).all(|i| i.dtype == dtype);
    let plain = cx.outputs().iter().skip(1).all(|o| o.dtype == DType::F32);
    if same && plain && dtype == DType::F32 && !outer_epsilon && row_texels(cx, norm, places, lower)? {
        return Ok(());
    }
    let grouped = lower.grouped(norm.len);
    if !same || !plain {
        return Err(OpError::unsupported("no device kernel for mixed types"));
    }
    if !outer_epsilon && row_wide(cx, norm, places, lower)? {
        return Ok(());
    }
    let kernel = variants::RowNorm { t: dtype, grouped }.id()?;
    let spec = [
        (spec::row_norm::CENTER, u32::from(norm.center)),
        (spec::row_norm::SCALED, u32::from(cx.has(1))),
        (spec::row_norm::BIASED, u32::from(cx.has(2))),
        (spec::row_norm::STATS, stats_code(cx)),
        (spec::row_norm::OUTER_EPSILON, u32::from(outer_epsilon)),
        (spec::row_norm::ACTIVATION, code),
    ];
    let params = params::RowNorm {
        rows: norm.rows as u32,
        len: norm.len as u32,
        inner_rows: places.inner_rows as u32,
        outer_step: places.outer_step as u32,
        row_step: places.row_step as u32,
        run: places.run as u32,
        jump: places.jump as u32,
        affine_rows: norm.affine.rows as u32,
        affine_stride: norm.affine.stride as u32,
        affine_run: norm.affine.run.max(1) as u32,
        epsilon: norm.epsilon,
        act_a,
        act_b,
    };
    lower.row_iterations(ROW_PASSES * norm.len, grouped)?;
    lower.dispatch_rows(kernel, &spec, &row_args(cx), &params, norm.rows, grouped)?;
    if grouped {
        lower.writes_in_order(dtype.bytes());
    }
    Ok(())
}

/// The arguments of a kernel for rows.
fn row_args(cx: &OpCx) -> [Operand; 6] {
    let pick = |given: bool, operand| if given { operand } else { Operand::Unused };
    let outputs = cx.outputs().len();
    [
        Operand::Input(0),
        pick(cx.has(1), Operand::Input(1)),
        pick(cx.has(2), Operand::Input(2)),
        Operand::Output(0),
        pick(outputs > 1, Operand::Output(1)),
        pick(outputs > 2, Operand::Output(2)),
    ]
}

/// Which statistics are wanted, as kernels have it.
fn stats_code(cx: &OpCx) -> u32 {
    let wanted = |output: usize, bit: usize| if cx.outputs().len() > output { bit } else { 0 };
    (wanted(1, stats::MEANS) | wanted(2, stats::INVERSES)) as u32
}

/// Invocations that do `rows` vectors of `len` elements, whole fours of them, in teams that hold them: how many are in
/// a team and in a work-group, and how many work-groups. `None` where a device has none or gains nothing by it.
pub(crate) fn teams(lower: &Lowering<'_>, len: usize, rows: usize) -> Option<[usize; 3]> {
    if lower.grouped(len) { teams_of(lower, len, rows, GROUP) } else { None }
}

/// The same in work-groups of `group` invocations, or more where a vector needs them, whether the device gains or not.
fn teams_of(lower: &Lowering<'_>, len: usize, rows: usize, group: usize) -> Option<[usize; 3]> {
    let limits = &lower.device().limits;
    let most = MOST_LANES.min(limits.max_group_items as usize).min(limits.max_group_size[0] as usize);
    let team = len.div_ceil(4 * HELD).next_power_of_two().max(LEAST_TEAM);
    let local = team.max(group.min(most));
    let fits = len.is_multiple_of(4) && len > 0 && team <= most;
    fits.then(|| [team, local, rows.div_ceil(local / team)])
}

/// Emits the normalization of contiguous rows that teams hold, where the device gains by that.
fn row_wide(cx: &OpCx, norm: &RowNorm, places: &Places, lower: &mut Lowering<'_>) -> Result<bool, OpError> {
    let by_element = norm.affine.run == 1 && norm.affine.stride == 0;
    let Some([team, local, groups]) = teams(lower, norm.len, norm.rows) else { return Ok(false) };
    let plain = norm.activation == Activation::None;
    if *places != Places::dense(norm.len) || !plain || !(by_element || !cx.has(1) && !cx.has(2)) {
        return Ok(false);
    }
    let dtype = cx.dtype(0)?;
    let spec = [
        (spec::row_norm_wide::LOCAL_SIZE_X, local as u32),
        (spec::row_norm_wide::CENTER, u32::from(norm.center)),
        (spec::row_norm_wide::SCALED, u32::from(cx.has(1))),
        (spec::row_norm_wide::BIASED, u32::from(cx.has(2))),
        (spec::row_norm_wide::STATS, stats_code(cx)),
        (spec::row_norm_wide::TEAM, team as u32),
    ];
    let quads = (norm.len / 4) as u32;
    let params = params::RowNormWide { rows: norm.rows as u32, quads, epsilon: norm.epsilon };
    let kernel = variants::RowNormWide { t: dtype }.id()?;
    lower.dispatch_rows(kernel, &spec, &row_args(cx), &params, groups, true)?;
    lower.writes_in_order(4 * dtype.bytes());
    Ok(true)
}

/// Emits the normalization of rows of whole texels, where the device gains by that.
fn row_texels(cx: &OpCx, norm: &RowNorm, places: &Places, lower: &mut Lowering<'_>) -> Result<bool, OpError> {
    let by_element = norm.affine.run == 1 && norm.affine.stride == 0;
    let whole = by_element || norm.affine.run.is_multiple_of(4);
    if *places != Places::dense(norm.len) || !whole || !lower.texels(norm.len, norm.rows * norm.len) {
        return Ok(false);
    }
    let affine = match (cx.has(1), by_element) {
        (false, _) => Affine::None,
        (true, true) => Affine::Elements,
        (true, false) => Affine::Runs,
    };
    let (code, [act_a, act_b]) = norm.activation.code();
    let spec = [
        (spec::row_norm_texels::CENTER, u32::from(norm.center)),
        (spec::row_norm_texels::AFFINE, affine as u32),
        (spec::row_norm_texels::BIASED, u32::from(cx.has(2))),
        (spec::row_norm_texels::STATS, stats_code(cx)),
        (spec::row_norm_texels::ACTIVATION, code),
    ];
    let params = params::RowNormTexels {
        rows: norm.rows as u32,
        texels: (norm.len / 4) as i32,
        affine_rows: norm.affine.rows as u32,
        affine_stride: norm.affine.stride as i32,
        affine_run: (norm.affine.run / 4) as i32,
        epsilon: norm.epsilon,
        act_a,
        act_b,
    };
    lower.iterations(ROW_PASSES * norm.len / 4)?;
    lower.dispatch_1d(id::ROW_NORM_TEXELS, &spec, &row_args(cx), &params, norm.rows)?;
    Ok(true)
}

/// How a function of vectors is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// An invocation for each vector, which it reads by texels.
    Texels,
    /// A team for each vector, which it holds: invocations of a team and of a work-group, and work-groups.
    Team([usize; 3]),
    /// A work-group for each vector.
    Group,
    /// An invocation for each vector.
    Single,
}

impl Candidate for Way {
    fn name(&self) -> String {
        match self {
            Way::Texels => "softmax_texels".to_owned(),
            Way::Team([team, local, _]) => format!("softmax_wide/{team}/{local}"),
            Way::Group => "softmax/group".to_owned(),
            Way::Single => "softmax/single".to_owned(),
        }
    }
}

impl Way {
    fn by_model(along: Along, kind: softmax::Kind, dtype: DType, lower: &Lowering<'_>) -> Way {
        let soft = matches!(kind, softmax::Kind::Soft | softmax::Kind::Log);
        // Neighbouring vectors of an inner axis are best left to neighbouring invocations.
        if along.inner != 1 {
            return Way::Single;
        }
        if soft && dtype == DType::F32 && lower.texels(along.len, along.elements()) {
            return Way::Texels;
        }
        match teams(lower, along.len, along.outer).filter(|_| soft) {
            Some(team) => Way::Team(team),
            None if lower.grouped(along.len) => Way::Group,
            None => Way::Single,
        }
    }

    /// Every way that the device can go.
    fn all(along: Along, kind: softmax::Kind, dtype: DType, lower: &Lowering<'_>) -> Vec<Way> {
        let soft = matches!(kind, softmax::Kind::Soft | softmax::Kind::Log);
        let mut all = vec![Way::Single];
        if along.inner != 1 {
            return all;
        }
        all.push(Way::Group);
        if soft {
            let groups = [GROUP / 4, GROUP].into_iter();
            all.extend(groups.filter_map(|g| teams_of(lower, along.len, along.outer, g)).map(Way::Team));
            let texels = along.elements().div_ceil(4) as u64 <= lower.device().limits.max_texels;
            if texels && dtype == DType::F32 && along.len.is_multiple_of(4) {
                all.push(Way::Texels);
            }
        }
        all
    }
}

/// Emits a function of vectors along an axis.
pub(super) fn vectors(
    cx: &OpCx,
    along: Along,
    kind: softmax::Kind,
    to: Operand,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    if index32(along.elements())? == 0 {
        return Ok(());
    }
    let vectors = along.outer * along.inner;
    let dtype = cx.dtype(0)?;
    let default = Way::by_model(along, kind, dtype, lower);
    let way = lower.choose(default, |lower| {
        let key = ChoiceKey::new("vectors", dtype)
            .exact("kind", kind as u32)
            .size("len", along.len)
            .size("outer", along.outer)
            .size("inner", along.inner);
        (key, Way::all(along, kind, dtype, lower))
    });
    let grouped = match way {
        Way::Texels => {
            let params = params::SoftmaxTexels { rows: along.outer as u32, texels: (along.len / 4) as i32 };
            let args = [Operand::Input(0), to];
            let spec = [(spec::softmax_texels::LOGARITHM, u32::from(kind == softmax::Kind::Log))];
            lower.iterations(ROW_PASSES * along.len / 4)?;
            return lower.dispatch_1d(id::SOFTMAX_TEXELS, &spec, &args, &params, along.outer);
        }
        Way::Team([team, local, groups]) => {
            let params = params::SoftmaxWide { rows: along.outer as u32, quads: (along.len / 4) as u32 };
            let spec = [
                (spec::softmax_wide::LOCAL_SIZE_X, local as u32),
                (spec::softmax_wide::TEAM, team as u32),
                (spec::softmax_wide::LOGARITHM, u32::from(kind == softmax::Kind::Log)),
            ];
            let kernel = variants::SoftmaxWide { t: dtype }.id()?;
            lower.dispatch_rows(kernel, &spec, &[Operand::Input(0), to], &params, groups, true)?;
            lower.writes_in_order(4 * dtype.bytes());
            return Ok(());
        }
        Way::Group => true,
        Way::Single => false,
    };
    lower.row_iterations(ROW_PASSES * along.len, grouped)?;
    let kernel = variants::Softmax { t: dtype, grouped }.id()?;
    let params =
        params::Softmax { vectors: vectors as u32, len: along.len as u32, inner: along.inner as u32 };
    let args = [Operand::Input(0), to];
    lower.dispatch_rows(kernel, &[(spec::softmax::KIND, kind as u32)], &args, &params, vectors, grouped)
}

#[cfg(all(test, feature = "vulkan"))]
mod tests {
    use crate::expr::Function;
    use crate::graph::Tensor;
    use crate::ops::norm::*;
    use crate::ops::test_util::{tensor, tensor_of, values};
    use crate::ops::testing::{Check, as_is, no_texels};
    use crate::ops::{Activation, Operator};

    fn check(op: &dyn Operator, shapes: &[&[usize]], outputs: usize) {
        let inputs: Vec<_> = shapes.iter().zip(1..).map(|(s, seed)| Some(tensor(s, seed))).collect();
        for change in [as_is, no_texels] {
            Check::new(op, &inputs).outputs(outputs).pretend(change).tolerance(2e-5).run();
        }
    }

    #[test]
    fn rows_are_the_same() {
        let layer = |axis, center| LayerNormalization {
            axis,
            epsilon: 1e-5,
            center,
            stash: crate::dtype::DType::F32,
        };
        check(&layer(-1, true), &[&[5, 37], &[37], &[37]], 3);
        check(&layer(1, true), &[&[3, 4, 50], &[4, 50]], 2);
        check(&layer(-1, true), &[&[9, 36], &[36], &[36]], 3);
        check(&layer(-1, false), &[&[9, 36], &[36]], 1);
        check(&layer(-1, false), &[&[2, 9, 300], &[300]], 1);
        check(&layer(-1, true), &[&[2, 3, 1000], &[1000], &[1000]], 3);
        let group = |groups, scale| GroupNormalization {
            groups: Some(groups),
            epsilon: 1e-3,
            scale,
            ..GroupNormalization::instance(0.0)
        };
        check(&group(2, GroupScale::Channel), &[&[2, 6, 5, 3], &[6], &[6]], 1);
        check(&group(3, GroupScale::Group), &[&[2, 6, 7, 11], &[3], &[3]], 1);
        check(&group(2, GroupScale::Channel), &[&[2, 6, 4, 3], &[6], &[6]], 1);
        check(&group(3, GroupScale::Group), &[&[2, 6, 4, 3], &[3], &[3]], 1);
        check(&GroupNormalization::instance(1e-5), &[&[2, 3, 9, 10], &[3], &[3]], 1);
        for dims in [&[2, 6, 5, 3], &[2, 6, 4, 3]] {
            let activation = Activation::of(Function::Swish);
            let op = GroupNormalization { activation, ..group(2, GroupScale::Channel) };
            check(&op, &[dims, &[6], &[6]], 1);
        }
        let mvn = |axes: &[i64]| MeanVarianceNormalization { axes: axes.to_vec() };
        for axes in [&[0, 2, 3][..], &[2, 3], &[1], &[0], &[0, 1, 2, 3], &[-1]] {
            check(&mvn(axes), &[&[3, 4, 5, 6]], 1);
        }
    }

    #[test]
    fn vectors_are_the_same() {
        for kind in [SoftmaxKind::Soft, SoftmaxKind::Log, SoftmaxKind::Hard] {
            for (axis, flatten) in [(-1, false), (1, false), (1, true)] {
                check(&Softmax { kind, axis, flatten }, &[&[3, 5, 130]], 1);
                check(&Softmax { kind, axis, flatten }, &[&[2, 9, 36]], 1);
                check(&Softmax { kind, axis, flatten }, &[&[2, 5, 1000]], 1);
            }
        }
        for (axis, p) in [(-1, 1), (-1, 2), (0, 2)] {
            check(&LpNormalization { axis, p }, &[&[7, 90]], 1);
        }
        let ties = [1.0f32; 300];
        let inputs = [Some(Tensor::new([1, 300], &ties).unwrap())];
        let op = Softmax { kind: SoftmaxKind::Hard, axis: -1, flatten: false };
        Check::new(&op, &inputs).pretend(no_texels).run();
        // NaN is the largest, the first of several.
        for nans in [&[299, 7, 130][..], &[130], &[0, 256]] {
            let mut values = ties;
            nans.iter().for_each(|i| values[*i] = f32::NAN);
            for shape in [[1, 300], [100, 3]] {
                let inputs = [Some(Tensor::new(shape, &values).unwrap())];
                Check::new(&op, &inputs).pretend(no_texels).run();
                Check::new(&op, &inputs).run();
            }
        }
    }

    #[test]
    fn every_candidate_for_vectors_is_right() {
        let mut ran = std::collections::BTreeSet::new();
        for (at, shape) in [[3, 5, 130], [2, 9, 36], [2, 5, 1000], [4, 3, 8]].iter().enumerate() {
            for kind in [SoftmaxKind::Soft, SoftmaxKind::Log, SoftmaxKind::Hard] {
                let op = Softmax { kind, axis: if at == 1 { 1 } else { -1 }, flatten: at == 1 };
                let half = tensor_of(shape, &values(shape.iter().product(), 9), half::f16::from_f32);
                for change in [as_is, no_texels] {
                    let singles = [Some(tensor(shape, 1))];
                    let check = Check::new(&op, &singles).pretend(change).tolerance(2e-5);
                    ran.extend(check.run_candidates());
                    let halves = [Some(half.clone())];
                    Check::new(&op, &halves).pretend(change).tolerance(4e-3).run_candidates();
                }
            }
        }
        if !crate::ops::testing::devices().is_empty() {
            let all = ["softmax_texels", "softmax_wide/8/64", "softmax/group", "softmax/single"];
            assert!(all.iter().all(|name| ran.contains(*name)), "{ran:?}");
        }
    }

    #[test]
    fn channels_are_the_same() {
        let var: Vec<f32> = values(5, 5).iter().map(|v| v.abs() + 0.1).collect();
        let mut inputs = vec![Some(tensor(&[2, 5, 3, 7], 1))];
        inputs.extend([2, 3, 4].map(|s| Some(tensor(&[5], s))));
        inputs.push(Some(Tensor::new([5], &var).unwrap()));
        let op = BatchNormalization {
            epsilon: 1e-4,
            activation: Activation::of(Function::Relu),
            by_element: false,
        };
        Check::new(&op, &inputs).tolerance(1e-5).run();
        inputs[0] = Some(tensor(&[2, 5, 4, 9], 1));
        Check::new(&op, &inputs).tolerance(1e-5).run();
        for size in [1, 2, 5] {
            check(&Lrn { alpha: 0.5, beta: 0.75, bias: 1.0, size }, &[&[2, 6, 3, 5]], 1);
        }
    }

    #[test]
    fn halves_are_the_same() {
        let half =
            |s: &[usize], seed| Some(tensor_of(s, &values(s.iter().product(), seed), half::f16::from_f32));
        let op = GroupNormalization::instance(1e-5);
        let inputs = [half(&[1, 3, 90], 1), half(&[3], 2), half(&[3], 3)];
        let soft = Softmax { kind: SoftmaxKind::Soft, axis: -1, flatten: false };
        let rows = [half(&[3, 148], 4)];
        let layer =
            LayerNormalization { axis: -1, epsilon: 1e-5, center: true, stash: crate::dtype::DType::F32 };
        let scaled = [half(&[3, 148], 4), half(&[148], 5), half(&[148], 6)];
        for change in [as_is, no_texels] {
            Check::new(&soft, &rows).pretend(change).tolerance(2e-3).run();
            Check::new(&layer, &scaled).pretend(change).tolerance(4e-3).run();
            Check::new(&op, &inputs).pretend(change).tolerance(4e-3).run();
            Check::new(&soft, &inputs[..1]).pretend(change).tolerance(2e-3).run();
        }
    }
}
