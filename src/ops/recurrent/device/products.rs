//! A product and a cell for every time step, for any number of sequences and any size.

use super::{Distances, cell_spec, functions, input, project, reversed};
use crate::dtype::DType;
use crate::kernel::codes::cell_kind::Kind as CellKind;
use crate::kernel::table::{params, variants};
use crate::ops::linalg::device::{Product, Source};
use crate::ops::recurrent::layer::{Dims, Kind, Recurrent};
use crate::ops::{Lowering, OpCx, OpError, Operand};

/// Emits all time steps.
pub(super) fn emit(
    op: &Recurrent,
    d: &Dims,
    cx: &OpCx,
    dtype: DType,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let mut layer = Layer::new(op, d, cx, dtype, lower)?;
    for step in 0..d.steps {
        layer.step(step, lower)?;
    }
    layer.finish(lower)
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
        let second = match kind {
            CellKind::Rnn | CellKind::Gru => Operand::Unused,
            CellKind::Lstm | CellKind::GruBefore | CellKind::GruCombined => self.c.operand,
        };
        let args = [
            self.projected,
            self.recurrent,
            input(cx, 3),
            input(cx, 7),
            input(cx, 4),
            self.h.operand,
            second,
            y,
        ];
        let kernel = variants::Cell { t: self.dtype }.id()?;
        lower.dispatch_1d(kernel, &spec, &args, &params, n)
    }
}
