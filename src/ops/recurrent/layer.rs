//! RNN, GRU and LSTM: attributes, checks and shapes.

use std::sync::Arc;

use super::cell::Run;
use super::device;
use super::function;
use crate::backend::DeviceInfo;
use crate::dtype::DType;
use crate::expr::Function;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::linalg::panels;
use crate::ops::pointwise::Pointwise;
use crate::ops::real::{FLOATS, real_kernel};
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, Lowering, Native, OpCx, OpError, Operator};
use crate::shape::Shape;

pub(super) const TANH: Pointwise = Pointwise::new(Function::Tanh);
const SIGMOID: Pointwise = Pointwise::new(Function::Sigmoid);

/// The kind of a recurrent layer's cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One gate.
    Rnn,
    /// Gates z, r and h.
    Gru {
        /// Whether r scales what the recurrent product gives, rather than the state that goes into it.
        linear_before_reset: bool,
    },
    /// Gates i, o, f and c, and a second state.
    Lstm,
}

impl Kind {
    /// Number of its gates.
    pub fn gates(self) -> usize {
        match self {
            Kind::Rnn => 1,
            Kind::Gru { .. } => 3,
            Kind::Lstm => 4,
        }
    }

    /// The functions it uses where none are named.
    fn functions(self) -> &'static [Pointwise] {
        match self {
            Kind::Rnn => &[TANH],
            Kind::Gru { .. } => &[SIGMOID, TANH],
            Kind::Lstm => &[SIGMOID, TANH, TANH],
        }
    }
}

/// In which order time steps are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// First to last.
    Forward,
    /// Last to first.
    Reverse,
    /// Both, with weights of their own.
    Bidirectional,
}

impl Direction {
    /// Number of directions.
    pub fn count(self) -> usize {
        if self == Direction::Bidirectional { 2 } else { 1 }
    }

    /// Whether direction `d` goes from last to first.
    pub fn reversed(self, d: usize) -> bool {
        self == Direction::Reverse || d == 1
    }
}

/// A recurrent layer. Inputs: X, W, R, and optionally B, sequence_lens, initial_h and, of an LSTM, initial_c and
/// the peephole weights P; outputs: Y, Y_h and, of an LSTM, Y_c.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrent {
    /// The cell.
    pub kind: Kind,
    /// The order of time steps.
    pub direction: Direction,
    /// The functions f, g and h, as far as the cell has them, of every direction.
    pub functions: Vec<Vec<Pointwise>>,
    /// Bound of the absolute values that the functions of gates are applied to; as in ONNX Runtime, h of an LSTM
    /// is applied to the unbounded cell.
    pub clip: Option<f32>,
    /// Whether an LSTM's forget gate is 1 minus its input gate.
    pub input_forget: bool,
    /// Elements of a state, where the attribute says so.
    pub hidden: Option<usize>,
    /// Whether the batch comes before time and direction (layout 1).
    pub batch_first: bool,
}

pub(super) fn read_rnn(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(attrs, opset, Kind::Rnn)
}

pub(super) fn read_gru(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let linear_before_reset = attrs.flag("linear_before_reset", false)?;
    read(attrs, opset, Kind::Gru { linear_before_reset })
}

pub(super) fn read_lstm(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(attrs, opset, Kind::Lstm)
}

fn read(attrs: &AttrReader<'_>, opset: i64, kind: Kind) -> Result<Arc<dyn Operator>, OpError> {
    let words = [
        ("forward", Direction::Forward),
        ("reverse", Direction::Reverse),
        ("bidirectional", Direction::Bidirectional),
    ];
    let direction = attrs.choice("direction", Direction::Forward, &words)?;
    if opset < 7 {
        // Says whether Y is wanted, which the node's outputs tell as well.
        let _ = attrs.int("output_sequence", 0)?;
    }
    let batch_first = match attrs.int("layout", 0)? {
        0 => false,
        1 => true,
        other => return Err(bad("layout", format!("is {other}, expected 0 or 1"))),
    };
    let clip = attrs.float_opt("clip")?;
    if let Some(c) = clip.filter(|c| c.is_nan() || *c < 0.0) {
        return Err(bad("clip", format!("is {c}, expected a bound of absolute values")));
    }
    let hidden = match attrs.int_opt("hidden_size")? {
        None => None,
        Some(n) => {
            let size = usize::try_from(n).ok().filter(|n| *n > 0);
            Some(size.ok_or_else(|| bad("hidden_size", format!("is {n}, expected at least 1")))?)
        }
    };
    Ok(Arc::new(Recurrent {
        kind,
        direction,
        functions: function::read(attrs, direction.count(), kind.functions())?,
        // Both ONNX and runtimes take 0 for no bound.
        clip: clip.filter(|c| *c > 0.0),
        input_forget: kind == Kind::Lstm && attrs.flag("input_forget", false)?,
        hidden,
        batch_first,
    }))
}

/// The sizes of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dims {
    /// Directions.
    pub dirs: usize,
    /// Time steps.
    pub steps: usize,
    /// Sequences.
    pub batch: usize,
    /// Elements of X at one time step.
    pub input: usize,
    /// Elements of a state.
    pub hidden: usize,
    /// Gates.
    pub gates: usize,
    /// Whether the batch comes before time and direction.
    pub batch_first: bool,
}

impl Dims {
    /// Elements of the gates at one time step of one sequence.
    pub(super) fn width(&self) -> usize {
        self.gates * self.hidden
    }

    /// The row of X that time step `t` of sequence `b` is.
    pub(super) fn row(&self, t: usize, b: usize) -> usize {
        if self.batch_first { b * self.steps + t } else { t * self.batch + b }
    }
}

impl Recurrent {
    /// The sizes, after checking the shapes of all inputs.
    pub(super) fn resolve(&self, cx: &OpCx) -> Result<Dims, OpError> {
        let (dirs, gates) = (self.direction.count(), self.kind.gates());
        let (steps, batch, input) = match (cx.shape(0)?.dims(), self.batch_first) {
            (&[t, b, i], false) | (&[b, t, i], true) => (t, b, i),
            _ => return Err(cx.shape_error(0, "three dimensions")),
        };
        let hidden = match *cx.shape(2)?.dims() {
            [_, _, hidden] => hidden,
            _ => return Err(cx.shape_error(2, "three dimensions")),
        };
        if let Some(size) = self.hidden.filter(|h| *h != hidden) {
            return Err(cx.shape_error(2, format!("[{dirs}, {}, {size}]", gates.saturating_mul(size))));
        }
        let width = gates.saturating_mul(hidden);
        let state = if self.batch_first { [batch, dirs, hidden] } else { [dirs, batch, hidden] };
        let expected: [(usize, &[usize]); 6] = [
            (1, &[dirs, width, input]),
            (2, &[dirs, width, hidden]),
            (3, &[dirs, 2 * width]),
            (4, &[batch]),
            (5, &state),
            (6, &state),
        ];
        let peepholes = [dirs, 3 * hidden];
        for (i, dims) in expected.into_iter().chain([(7, &peepholes as &[usize])]) {
            if cx.has(i) && cx.shape(i)?.dims() != dims {
                return Err(cx.shape_error(i, format!("{dims:?}")));
            }
        }
        Ok(Dims { dirs, steps, batch, input, hidden, gates, batch_first: self.batch_first })
    }

    /// The scalar operations of all products.
    fn flops(d: &Dims) -> u64 {
        Cost::product(&[2, d.dirs, d.steps, d.batch, d.width(), d.input.saturating_add(d.hidden)])
    }
}

impl Operator for Recurrent {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Rnn => "RNN",
            Kind::Gru { .. } => "GRU",
            Kind::Lstm => "LSTM",
        }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let (inputs, outputs) = if self.kind == Kind::Lstm { (8, 3) } else { (6, 2) };
        cx.expect_counts(3..=inputs, 0..=outputs)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        for i in (1..inputs).filter(|i| *i != 4) {
            if i < 3 || cx.has(i) {
                cx.expect_dtype(i, dtype)?;
            }
        }
        if cx.has(4) {
            cx.expect_dtype(4, DType::I32)?;
        }
        let d = self.resolve(cx)?;
        let (all, last) = if d.batch_first {
            (vec![d.batch, d.steps, d.dirs, d.hidden], vec![d.batch, d.dirs, d.hidden])
        } else {
            (vec![d.steps, d.dirs, d.batch, d.hidden], vec![d.dirs, d.batch, d.hidden])
        };
        let last = TensorInfo::new(dtype, Shape::new(last)?);
        let infos = [TensorInfo::new(dtype, Shape::new(all)?), last.clone(), last];
        Ok(infos.into_iter().take(cx.output_count()).collect())
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.resolve(cx).map_or(0, |d| Recurrent::flops(&d)), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel(self.name(), cx, Run { op: self.clone(), dims: self.resolve(cx)?, panels: None })
    }

    fn cpu_on(&self, cx: &OpCx, _: &DeviceInfo) -> Result<Native, OpError> {
        let dims = self.resolve(cx)?;
        let packed = panels::of_constant(cx, 1, [dims.input, dims.width()], true);
        let Some((panels, packed)) = packed else { return self.cpu(cx).map(Native::from) };
        let run = Run { op: self.clone(), dims, panels: Some(panels) };
        Ok(Native { kernel: real_kernel(self.name(), cx, run)?, packed: vec![(1, packed)] })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        device::lower(self, &self.resolve(cx)?, cx, lower)
    }
}
