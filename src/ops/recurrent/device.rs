//! Recurrent layers on devices: the input's product once, then a product and a cell for every time step.

use super::layer::{Dims, Kind, Recurrent};
use crate::dtype::DType;
use crate::kernel::codes::cell_kind::Kind as CellKind;
use crate::kernel::codes::sequence::{MAX_HIDDEN, STATE_C, STATE_H};
use crate::kernel::table::{id, params, spec, variants};
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
    if by_sequence(d, dtype, lower) {
        return sequence(op, d, cx, lower);
    }
    let mut layer = Layer::new(op, d, cx, dtype, lower)?;
    for step in 0..d.steps {
        layer.step(step, lower)?;
    }
    layer.finish(lower)
}

/// The arguments of the kernel of whole sequences.
const SEQUENCE_ARGUMENTS: u32 = 10;
/// Fewer time steps are not worth laying out the matrix for.
const MIN_STEPS: usize = 3;

/// Whether a work-group does a whole sequence, rather than the device one time step after the other.
fn by_sequence(d: &Dims, dtype: DType, lower: &Lowering<'_>) -> bool {
    let device = lower.device();
    let enough = device.limits.max_arguments >= SEQUENCE_ARGUMENTS
        && device.limits.max_group_items >= MAX_HIDDEN as u32
        && device.limits.max_local_bytes >= 6 * 4 * MAX_HIDDEN as u32;
    // Where texels are preferred, products read the matrix far faster than this kernel does.
    let most = if device.prefers_texels { MAX_HIDDEN / 4 } else { MAX_HIDDEN };
    enough && dtype == DType::F32 && d.steps >= MIN_STEPS && d.hidden <= most
}

/// `X * W'` for every direction, in scratch memory.
fn project(d: &Dims, cx: &OpCx, dtype: DType, lower: &mut Lowering<'_>) -> Result<Product, OpError> {
    let (rows, width) = (d.steps * d.batch, d.width());
    let product = Product {
        m: rows,
        n: width,
        k: d.input,
        pairs: (0..d.dirs).map(|dir| (0, dir)).collect(),
        a: Source::input(cx, 0, rows, d.input, false)?,
        b: Source::input(cx, 1, d.input, width, true)?,
        c: None,
        alpha: 1.0,
        beta: 1.0,
        activation: Activation::None,
        dtype,
        y: lower.scratch(d.dirs * rows * width * dtype.bytes()),
        prepared: None,
    };
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

/// Specialization constants of a cell, which both kernels have with equal numbers.
fn cell_spec(op: &Recurrent, kind: CellKind, cx: &OpCx) -> [(u32, u32); 12] {
    const {
        assert!(spec::cell::KIND == spec::sequence::KIND && spec::cell::LENGTHS == spec::sequence::LENGTHS);
        assert!(spec::cell::F0 == spec::sequence::F0 && spec::cell::H1 == spec::sequence::H1);
    }
    let codes = functions(op).map(|f| Activation::Of(f).code().0);
    [
        (spec::cell::KIND, kind as u32),
        (spec::cell::BIASED, u32::from(cx.has(3))),
        (spec::cell::PEEPHOLES, u32::from(cx.has(7))),
        (spec::cell::LENGTHS, u32::from(cx.has(4))),
        (spec::cell::CLIPPED, u32::from(op.clip.is_some())),
        (spec::cell::INPUT_FORGET, u32::from(op.input_forget)),
        (spec::cell::F0, codes[0]),
        (spec::cell::G0, codes[1]),
        (spec::cell::H0, codes[2]),
        (spec::cell::F1, codes[3]),
        (spec::cell::G1, codes[4]),
        (spec::cell::H1, codes[5]),
    ]
}

/// Emits all time steps as one dispatch.
fn sequence(op: &Recurrent, d: &Dims, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let projected = project(d, cx, DType::F32, lower)?.y;
    let r = Source::input(cx, 2, d.hidden, d.width(), true)?.by_rows(d.hidden, d.width(), lower)?;
    let (functions, at) = (functions(op), Distances::of(d));
    let kind = match op.kind {
        Kind::Rnn => CellKind::Rnn,
        Kind::Lstm => CellKind::Lstm,
        Kind::Gru { linear_before_reset: true } => CellKind::Gru,
        Kind::Gru { linear_before_reset: false } => CellKind::GruBefore,
    };
    let states = |h: bool, c: bool| ((usize::from(h) * STATE_H) | (usize::from(c) * STATE_C)) as u32;
    let ends = [
        (spec::sequence::INITIAL, states(cx.has(5), cx.has(6))),
        (spec::sequence::LAST, states(cx.outputs().len() > 1, cx.outputs().len() > 2)),
    ];
    let spec = [&cell_spec(op, kind, cx)[..], &ends].concat();
    let params = params::Sequence {
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
    };
    let input = |i: usize| if cx.has(i) { Operand::Input(i) } else { Operand::Unused };
    let output = |i: usize| if i < cx.outputs().len() { Operand::Output(i) } else { Operand::Unused };
    let args = [
        projected,
        r,
        input(3),
        input(7),
        input(4),
        input(5),
        input(6),
        Operand::Output(0),
        output(1),
        output(2),
    ];
    lower.dispatch_rows(id::SEQUENCE, &spec, &args, &params, d.dirs * d.batch, true)
}

/// A state in scratch memory.
#[derive(Clone, Copy)]
struct State {
    operand: Operand,
    dtype: DType,
    /// Elements from one row to the next.
    row: usize,
}

struct Layer<'a> {
    op: &'a Recurrent,
    d: &'a Dims,
    cx: &'a OpCx,
    dtype: DType,
    /// The products of the input.
    projected: Operand,
    /// The products of the state.
    recurrent: Operand,
    h: State,
    /// An LSTM's second state; a GRU's z.
    c: State,
    /// A GRU's scaled state.
    scaled: State,
    /// The products of a time step: one, or two where the second needs the first's result.
    products: Vec<Product>,
}

impl<'a> Layer<'a> {
    fn new(
        op: &'a Recurrent,
        d: &'a Dims,
        cx: &'a OpCx,
        dtype: DType,
        lower: &mut Lowering<'_>,
    ) -> Result<Self, OpError> {
        let (width, hidden) = (d.width(), d.hidden);
        let product = project(d, cx, dtype, lower)?;

        // Rows of whole texels, where products read them so.
        let texels = dtype == DType::F32 && lower.device().prefers_texels;
        let row = if texels { hidden.next_multiple_of(4) } else { hidden };
        let states = d.dirs * d.batch;
        let mut state = |dtype: DType, row: usize| State {
            operand: lower.scratch(states * row * dtype.bytes()),
            dtype,
            row,
        };
        let h = state(dtype, row);
        let before = op.kind == Kind::Gru { linear_before_reset: false };
        let c = if op.kind == Kind::Lstm || before { state(DType::F32, hidden) } else { h };
        let scaled = if before { state(dtype, row) } else { h };
        let recurrent = lower.scratch(states * width * dtype.bytes());

        let side = |state: &State| Source {
            operand: state.operand,
            value: None,
            matrices: d.dirs,
            row: state.row,
            col: 1,
        };
        let of = |state: &State, n: usize, pairs: Vec<(usize, usize)>| -> Result<Product, OpError> {
            Ok(Product {
                m: d.batch,
                n,
                k: hidden,
                pairs,
                a: side(state),
                b: Source::input(cx, 2, hidden, n, true)?,
                y: recurrent,
                ..product.clone()
            })
        };
        let mut products = if before {
            // R as one matrix for every gate.
            let gates = |gates: std::ops::Range<usize>| {
                (0..d.dirs).flat_map(|dir| gates.clone().map(move |g| (dir, 3 * dir + g))).collect()
            };
            vec![of(&h, hidden, gates(0..2))?, of(&scaled, hidden, gates(2..3))?]
        } else {
            vec![of(&h, width, (0..d.dirs).map(|dir| (dir, dir)).collect())?]
        };
        for product in &mut products {
            product.prepare(lower)?;
        }
        let layer = Layer { op, d, cx, dtype, projected: product.y, recurrent, h, c, scaled, products };
        layer.start(5, &layer.h, lower)?;
        if op.kind == Kind::Lstm {
            layer.start(6, &layer.c, lower)?;
        }
        Ok(layer)
    }

    /// Fills `state` from input `i`, or with zeros, also where no step will follow.
    fn start(&self, i: usize, state: &State, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        if !self.cx.has(i) || self.d.steps == 0 {
            lower.fill(state.operand, 0);
            return Ok(());
        }
        let from = State { operand: Operand::Input(i), dtype: self.dtype, row: 0 };
        self.copy((&from, Distances::of(self.d).state), (state, self.inside(state)), lower)
    }

    /// Stores the last states.
    fn finish(&self, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        for (i, state) in [(1, &self.h), (2, &self.c)] {
            if i < self.cx.outputs().len() {
                let to = State { operand: Operand::Output(i), dtype: self.dtype, row: 0 };
                self.copy((state, self.inside(state)), (&to, Distances::of(self.d).state), lower)?;
            }
        }
        Ok(())
    }

    /// Strides of directions and sequences in a state in scratch memory.
    fn inside(&self, state: &State) -> [usize; 2] {
        [self.d.batch * state.row, state.row]
    }

    fn copy(
        &self,
        (from, from_steps): (&State, [usize; 2]),
        (to, to_steps): (&State, [usize; 2]),
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        let kernel = variants::State { s: from.dtype, d: to.dtype }.id()?;
        let n = self.d.dirs * self.d.batch * self.d.hidden;
        let params = params::State {
            n: n as u32,
            batch: self.d.batch as u32,
            hidden: self.d.hidden as u32,
            from_dir: from_steps[0] as u32,
            from_batch: from_steps[1] as u32,
            to_dir: to_steps[0] as u32,
            to_batch: to_steps[1] as u32,
        };
        lower.dispatch_1d(kernel, &[], &[from.operand, to.operand], &params, n)
    }

    fn step(&mut self, step: usize, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Dims { batch, hidden, .. } = *self.d;
        let width = self.d.width();
        let dense = [batch * width, hidden, width];
        // The products of single gates are contiguous.
        let single = |gates: usize| [gates * batch * hidden, batch * hidden, hidden];
        let codes: &[(CellKind, [usize; 3], Operand)] = match self.op.kind {
            Kind::Rnn => &[(CellKind::Rnn, dense, Operand::Output(0))],
            Kind::Lstm => &[(CellKind::Lstm, dense, Operand::Output(0))],
            Kind::Gru { linear_before_reset: true } => &[(CellKind::Gru, dense, Operand::Output(0))],
            Kind::Gru { linear_before_reset: false } => &[
                (CellKind::GruBefore, single(2), self.scaled.operand),
                (CellKind::GruCombined, single(1), Operand::Output(0)),
            ],
        };
        for (product, &(kind, distances, y)) in self.products.iter().zip(codes) {
            product.lower(lower)?;
            self.cell(step, kind, distances, y, lower)?;
        }
        Ok(())
    }

    fn cell(
        &self,
        step: usize,
        kind: CellKind,
        [r_dir, r_gate, r_batch]: [usize; 3],
        y: Operand,
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        let (op, d, cx) = (self.op, self.d, self.cx);
        let (functions, at) = (functions(op), Distances::of(d));
        let spec = cell_spec(op, kind, cx);
        let n = d.dirs * d.batch * d.hidden;
        let params = params::Cell {
            n: n as u32,
            batch: d.batch as u32,
            hidden: d.hidden as u32,
            steps: d.steps as u32,
            step: step as u32,
            reversed: reversed(op, d),
            x_step: at.x[0],
            x_batch: at.x[1],
            x_dir: at.x[2],
            r_dir: r_dir as u32,
            r_gate: r_gate as u32,
            r_batch: r_batch as u32,
            state_row: self.h.row as u32,
            y_step: at.y[0],
            y_batch: at.y[1],
            y_dir: at.y[2],
            clip: op.clip.unwrap_or(0.0),
            alpha: functions.map(|f| f.params[0]),
            beta: functions.map(|f| f.params[1]),
        };
        let pick = |i: usize| if cx.has(i) { Operand::Input(i) } else { Operand::Unused };
        let second = match kind {
            CellKind::Rnn | CellKind::Gru => Operand::Unused,
            CellKind::Lstm | CellKind::GruBefore | CellKind::GruCombined => self.c.operand,
        };
        let args = [self.projected, self.recurrent, pick(3), pick(7), pick(4), self.h.operand, second, y];
        let kernel = variants::Cell { t: self.dtype }.id()?;
        lower.dispatch_1d(kernel, &spec, &args, &params, n)
    }
}
