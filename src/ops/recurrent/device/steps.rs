//! A dispatch for every time step of all directions and a few sequences: the product with the state and the cell.

use super::{Distances, cell_kind, cell_spec, functions, input, output, project, reversed, state_spec};
use crate::dtype::DType;
use crate::kernel::codes::cell_kind::Kind as CellKind;
use crate::kernel::codes::time_step::TEAMS;
use crate::kernel::table::{params, spec, variants};
use crate::ops::recurrent::layer::{Dims, Recurrent};
use crate::ops::{Lowering, OpCx, OpError, Operand};

/// Units that the kernel reads at once where the size of the state allows it.
const QUAD: usize = 4;

/// The kernel for layers of these sizes.
pub(super) fn kernel(d: &Dims, dtype: DType) -> variants::TimeStep {
    variants::TimeStep { t: dtype, quads: d.hidden.is_multiple_of(QUAD) }
}

/// Emits all time steps; there is one at least. The state before a step is read where Y has it.
pub(super) fn emit(
    op: &Recurrent,
    d: &Dims,
    cx: &OpCx,
    dtype: DType,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let projected = project(d, cx, dtype, lower)?.y;
    let state = d.dirs * d.batch * d.hidden;
    let whole = cell_kind(op);
    let kinds: &[CellKind] = match whole {
        CellKind::GruBefore => &[CellKind::GruBefore, CellKind::GruCombined],
        _ => &[whole],
    };
    let second = match whole {
        CellKind::Lstm | CellKind::GruBefore => lower.scratch(state * DType::F32.bytes()),
        _ => Operand::Unused,
    };
    let scaled = if kinds.len() > 1 { lower.scratch(state * dtype.bytes()) } else { Operand::Unused };
    let (functions, at) = (functions(op), Distances::of(d));
    let kernel = kernel(d, dtype).id()?;
    let own = [(spec::time_step::ROWS, d.batch as u32)];
    let specs = kinds.iter().map(|kind| [&cell_spec(op, *kind, cx)[..], &state_spec(cx), &own].concat());
    let specs: Vec<_> = specs.collect();
    for step in 0..d.steps {
        let params = params::TimeStep {
            units: (d.dirs * d.hidden) as u32,
            hidden: d.hidden as u32,
            steps: d.steps as u32,
            step: step as u32,
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
        };
        let before = if step == 0 { input(cx, 5) } else { Operand::Output(0) };
        for (kind, spec) in kinds.iter().zip(&specs) {
            let vectors = if *kind == CellKind::GruCombined { scaled } else { before };
            let y = if *kind == CellKind::GruBefore { scaled } else { Operand::Output(0) };
            let [bias, peepholes, lengths, first_c] = [3, 7, 4, 6].map(|i| input(cx, i));
            let [last_h, last_c] = [1, 2].map(|i| output(cx, i));
            let r = Operand::Input(2);
            let args =
                [projected, r, bias, peepholes, lengths, before, vectors, first_c, second, y, last_h, last_c];
            lower.dispatch_rows(kernel, spec, &args, &params, (d.dirs * d.hidden).div_ceil(TEAMS), true)?;
        }
    }
    Ok(())
}
