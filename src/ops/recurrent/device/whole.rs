//! All time steps in one dispatch: a work-group does a sequence in one direction.

use super::way::Held;
use super::{Distances, cell_kind, cell_spec, functions, input, output, project, reversed, state_spec};
use crate::dtype::DType;
use crate::kernel::table::{params, spec, variants};
use crate::ops::linalg::device::Source;
use crate::ops::recurrent::layer::{Dims, Recurrent};
use crate::ops::{Lowering, OpCx, OpError, Operand};

/// Emits the kernel that reads the matrix in every step.
pub(super) fn sequence(
    op: &Recurrent,
    d: &Dims,
    cx: &OpCx,
    dtype: DType,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let projected = project(d, cx, dtype, lower)?.y;
    let r = Source::input(cx, 2, d.hidden, d.width(), true)?.by_rows(dtype, d.hidden, d.width(), lower)?;
    let spec = [&cell_spec(op, cell_kind(op), cx)[..], &state_spec(cx)].concat();
    let kernel = variants::Sequence { t: dtype }.id()?;
    let params = whole_params(op, d);
    lower.dispatch_rows(kernel, &spec, &arguments(cx, projected, r), &params, d.dirs * d.batch, true)
}

/// Emits the kernel that reads the matrix once.
pub(super) fn held(
    op: &Recurrent,
    d: &Dims,
    cx: &OpCx,
    dtype: DType,
    held: Held,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let projected = project(d, cx, dtype, lower)?.y;
    let own = [
        (spec::sequence_held::LOCAL_SIZE_X, held.items as u32),
        (spec::sequence_held::SLICES, held.slices as u32),
        (spec::sequence_held::PIECES, held.pieces as u32),
    ];
    let spec = [&cell_spec(op, cell_kind(op), cx)[..], &state_spec(cx), &own].concat();
    let kernel = variants::SequenceHeld { t: dtype }.id()?;
    let args = arguments(cx, projected, Operand::Input(2));
    lower.dispatch_rows(kernel, &spec, &args, &whole_params(op, d), d.dirs * d.batch, true)
}

fn arguments(cx: &OpCx, projected: Operand, r: Operand) -> [Operand; 10] {
    let [bias, peepholes, lengths, h, c] = [3, 7, 4, 5, 6].map(|i| input(cx, i));
    let [last_h, last_c] = [1, 2].map(|i| output(cx, i));
    [projected, r, bias, peepholes, lengths, h, c, Operand::Output(0), last_h, last_c]
}

fn whole_params(op: &Recurrent, d: &Dims) -> params::WholeSequence {
    let (functions, at) = (functions(op), Distances::of(d));
    params::WholeSequence {
        rows: (d.dirs * d.batch) as u32,
        batch: d.batch as u32,
        hidden: d.hidden as u32,
        steps: d.steps as u32,
        reversed: reversed(op, d),
        x_step: at.x[0],
        x_batch: at.x[1],
        x_dir: at.x[2],
        s_batch: at.state[1] as u32,
        s_dir: at.state[0] as u32,
        y_step: at.y[0],
        y_batch: at.y[1],
        y_dir: at.y[2],
        clip: op.clip.unwrap_or(0.0),
        alpha: functions.map(|f| f.params[0]),
        beta: functions.map(|f| f.params[1]),
    }
}
