//! Recurrent layers on devices: the input's product once, then all time steps in one of several ways.

mod products;
mod steps;
mod way;
mod whole;

use self::way::Way;
use super::layer::{Dims, Kind, Recurrent};
use crate::dtype::DType;
use crate::kernel::codes::cell_kind::Kind as CellKind;
use crate::kernel::codes::cell_spec::{STATE_C, STATE_H};
use crate::kernel::table::spec::cell_spec as ids;
use crate::ops::linalg::device::{Product, Source};
use crate::ops::pointwise::Pointwise;
use crate::ops::{Activation, Lowering, OpCx, OpError, Operand};

/// Sequences longer than this would make recordings of too many commands.
const MAX_STEPS: usize = 1 << 14;

/// Emits all time steps of `op`.
pub(super) fn lower(op: &Recurrent, d: &Dims, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let dtype = cx.dtype(0)?;
    if !matches!(dtype, DType::F32 | DType::F16) {
        return Err(OpError::unsupported(format!("no device kernel for recurrent layers of {dtype}")));
    }
    if d.steps > MAX_STEPS {
        return Err(OpError::unsupported(format!("{} time steps, above {MAX_STEPS}", d.steps)));
    }
    let projected = d.dirs.checked_mul(d.steps * d.batch).and_then(|n| n.checked_mul(d.width()));
    if projected.is_none_or(|n| n > i32::MAX as usize / 2) {
        return Err(OpError::unsupported("more elements than a kernel can index"));
    }
    match Way::choose(op, d, cx, dtype, lower) {
        Way::Held(held) => whole::held(op, d, cx, dtype, held, lower),
        Way::Sequence => whole::sequence(op, d, cx, dtype, lower),
        Way::Steps => steps::emit(op, d, cx, dtype, lower),
        Way::Products => products::emit(op, d, cx, dtype, lower),
    }
}

/// `X * W'` for every direction, in scratch memory.
fn project(d: &Dims, cx: &OpCx, dtype: DType, lower: &mut Lowering<'_>) -> Result<Product, OpError> {
    let (rows, width) = (d.steps * d.batch, d.width());
    let product = Product::new(
        [rows, width, d.input],
        (0..d.dirs).map(|dir| (0, dir)).collect(),
        [Source::input(cx, 0, rows, d.input, false)?, Source::input(cx, 1, d.input, width, true)?],
        dtype,
        lower.scratch(d.dirs * rows * width * dtype.bytes()),
    );
    product.lower(lower)?;
    Ok(product)
}

/// Strides in the input's products, in Y and in states that are inputs or outputs.
struct Distances {
    /// Strides of time steps, sequences and directions.
    x: [u32; 3],
    y: [u32; 3],
    /// Strides of directions and sequences.
    state: [usize; 2],
}

impl Distances {
    fn of(d: &Dims) -> Distances {
        let Dims { dirs, steps, batch, hidden, batch_first, .. } = *d;
        let width = d.width();
        let all = steps * batch * width;
        let (x, y, state) = if batch_first {
            ([1, steps], [dirs, steps * dirs, 1], [hidden, dirs * hidden])
        } else {
            ([batch, 1], [dirs * batch, 1, batch], [batch * hidden, hidden])
        };
        Distances {
            x: [x[0] * width, x[1] * width, all].map(|n| n as u32),
            y: y.map(|n| (n * hidden) as u32),
            state,
        }
    }
}

/// The functions f, g and h of both directions.
fn functions(op: &Recurrent) -> [Pointwise; 6] {
    std::array::from_fn(|i| {
        let list = op.functions.get(i / 3).or(op.functions.first());
        list.and_then(|f| f.get(i % 3)).copied().unwrap_or(super::layer::TANH)
    })
}

fn reversed(op: &Recurrent, d: &Dims) -> u32 {
    (0..d.dirs).map(|dir| u32::from(op.direction.reversed(dir)) << dir).sum()
}

/// The cell of a whole time step.
fn cell_kind(op: &Recurrent) -> CellKind {
    match op.kind {
        Kind::Rnn => CellKind::Rnn,
        Kind::Lstm => CellKind::Lstm,
        Kind::Gru { linear_before_reset: true } => CellKind::Gru,
        Kind::Gru { linear_before_reset: false } => CellKind::GruBefore,
    }
}

/// Specialization constants that every kernel has.
fn cell_spec(op: &Recurrent, kind: CellKind, cx: &OpCx) -> [(u32, u32); 12] {
    let codes = functions(op).map(|f| Activation::Of(f).code().0);
    [
        (ids::KIND, kind as u32),
        (ids::BIASED, u32::from(cx.has(3))),
        (ids::PEEPHOLES, u32::from(cx.has(7))),
        (ids::LENGTHS, u32::from(cx.has(4))),
        (ids::CLIPPED, u32::from(op.clip.is_some())),
        (ids::INPUT_FORGET, u32::from(op.input_forget)),
        (ids::F0, codes[0]),
        (ids::G0, codes[1]),
        (ids::H0, codes[2]),
        (ids::F1, codes[3]),
        (ids::G1, codes[4]),
        (ids::H1, codes[5]),
    ]
}

/// Constants of kernels that read the initial states and write the last ones themselves.
fn state_spec(cx: &OpCx) -> [(u32, u32); 2] {
    let states = |h: bool, c: bool| ((usize::from(h) * STATE_H) | (usize::from(c) * STATE_C)) as u32;
    [
        (ids::INITIAL, states(cx.has(5), cx.has(6))),
        (ids::LAST, states(cx.outputs().len() > 1, cx.outputs().len() > 2)),
    ]
}

/// Input `i`, where there is one.
fn input(cx: &OpCx, i: usize) -> Operand {
    if cx.has(i) { Operand::Input(i) } else { Operand::Unused }
}

/// Output `i`, where it is wanted.
fn output(cx: &OpCx, i: usize) -> Operand {
    if i < cx.outputs().len() { Operand::Output(i) } else { Operand::Unused }
}
