//! Recurrent layers as a native function.

use super::function::bound;
use super::layer::{Dims, Kind, Recurrent};
use crate::kernel::KernelError;
use crate::ops::linalg::panels::{self, Layout};
use crate::ops::linalg::product::{Around, Mat, Threads, product, product_around};
use crate::ops::pointwise::Pointwise;
use crate::ops::real::{Real, RealIo, RealKernel};
use crate::ops::{Activation, par};

/// A layer with its sizes.
pub(super) struct Run {
    pub(super) op: Recurrent,
    pub(super) dims: Dims,
    /// How W of one direction lies, where it is packed.
    pub(super) panels: Option<Layout>,
}

/// The operands of one direction.
struct Weights<'a, T> {
    w: &'a [T],
    r: &'a [T],
    bias: Option<&'a [T]>,
    peepholes: Option<&'a [T]>,
}

/// The results of one direction, in rows of a state's elements: Y in the order of X's rows, then the last states.
struct Written<'a, T> {
    y: Vec<&'a mut [T]>,
    last_h: Vec<&'a mut [T]>,
    last_c: Vec<&'a mut [T]>,
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let d = &self.dims;
        let (outputs, inputs) = io.outputs();
        let width = d.width();
        let states = d.dirs * d.batch * d.hidden;
        let [y, last_h, last_c] = outputs;
        if states == 0 {
            return Ok(());
        }
        let x = inputs.get(0, d.steps * d.batch * d.input)?;
        let of_w = self.panels.map_or(width * d.input, |panels| panels.len());
        let w = inputs.get(1, d.dirs * of_w)?;
        let r = inputs.get(2, d.dirs * width * d.hidden)?;
        let bias = inputs.get_opt(3, d.dirs * 2 * width)?;
        let lens = self.lengths(inputs.raw_opt::<i32>(4, d.batch)?)?;
        let initial = [inputs.get_opt(5, states)?, inputs.get_opt(6, states)?];
        let peepholes = inputs.get_opt(7, d.dirs * 3 * d.hidden)?;

        let y = rows_by_direction(y, d, d.steps * d.batch)?;
        let last_h = rows_by_direction(last_h, d, d.batch)?;
        let last_c = rows_by_direction(last_c, d, d.batch)?;
        let jobs = y.into_iter().zip(last_h).zip(last_c).enumerate();
        let jobs = jobs.map(|(dir, ((y, last_h), last_c))| (dir, Written { y, last_h, last_c }));
        par::try_share(jobs.collect::<Vec<_>>().into_iter(), |(dir, out)| {
            let part = |n: usize| dir * n..(dir + 1) * n;
            let weights = Weights {
                w: &w[part(of_w)],
                r: &r[part(width * d.hidden)],
                bias: bias.map(|b| &b[part(2 * width)]),
                peepholes: peepholes.map(|p| &p[part(3 * d.hidden)]),
            };
            let start = initial.map(|from| start_state(from, d, dir));
            self.direction(dir, x, &weights, &lens, start, out)
        })
    }
}

/// The state before the first step of direction `dir`, sequence by sequence.
fn start_state<T: Real>(from: Option<&[T]>, d: &Dims, dir: usize) -> Vec<T> {
    let Some(from) = from else { return vec![T::ZERO; d.batch * d.hidden] };
    let row = |b: usize| if d.batch_first { b * d.dirs + dir } else { dir * d.batch + b };
    (0..d.batch).flat_map(|b| from[row(b) * d.hidden..][..d.hidden].iter().copied()).collect()
}

/// The rows of an output for every direction; `count` of them for each, or none where the output is not wanted.
fn rows_by_direction<'a, T: Real>(
    out: Option<&'a mut [T]>,
    d: &Dims,
    count: usize,
) -> Result<Vec<Vec<&'a mut [T]>>, KernelError> {
    let mut rows: Vec<Vec<&mut [T]>> = (0..d.dirs).map(|_| Vec::new()).collect();
    let Some(out) = out else { return Ok(rows) };
    if out.len() != d.dirs * count * d.hidden {
        let expected = d.dirs * count * d.hidden;
        let what = format!("an output has {} elements, expected {expected}", out.len());
        return Err(KernelError::Value { what });
    }
    // The axis of directions is the one before the batch, or the last but one where the batch comes first.
    let inner = if d.batch_first { 1 } else { d.batch };
    for (i, row) in out.chunks_mut(d.hidden).enumerate() {
        if let Some(list) = rows.get_mut(i / inner % d.dirs) {
            list.push(row);
        }
    }
    Ok(rows)
}

impl Run {
    /// Time steps of every sequence.
    fn lengths(&self, given: Option<&[i32]>) -> Result<Vec<usize>, KernelError> {
        let Dims { steps, batch, .. } = self.dims;
        let Some(given) = given else { return Ok(vec![steps; batch]) };
        let length = |l: &i32| usize::try_from(*l).ok().filter(|l| *l <= steps);
        given
            .iter()
            .map(|l| {
                length(l).ok_or_else(|| KernelError::Value {
                    what: format!("sequence length {l} is not within 0 and the {steps} time steps"),
                })
            })
            .collect()
    }

    fn direction<T: Real>(
        &self,
        dir: usize,
        x: &[T],
        weights: &Weights<'_, T>,
        lens: &[usize],
        [mut h, mut c]: [Vec<T>; 2],
        mut out: Written<'_, T>,
    ) -> Result<(), KernelError> {
        let d = &self.dims;
        let (hidden, width) = (d.hidden, d.width());
        // With a direction for every thread, each one is computed by one.
        let threads = if d.dirs >= par::threads() { Threads::One } else { Threads::All };
        let projected = self.project(x, weights, threads)?;
        // Many rows are multiplied by a library that would turn the matrix around in every step.
        let turned = (d.batch > FEW_ROWS && d.steps > 2).then(|| transposed(weights.r, hidden));
        let r = match &turned {
            Some(turned) => Mat::rows(turned, width),
            None => Mat::transposed(weights.r, hidden),
        };
        let mut gates = vec![T::ZERO; d.batch * width];
        let mut recurrent = vec![T::ZERO; self.recurrent_len()];
        // A sequence without steps has zeros for its last state.
        for (b, _) in lens.iter().enumerate().filter(|(_, l)| **l == 0) {
            h[b * hidden..][..hidden].fill(T::ZERO);
            c[b * hidden..][..hidden].fill(T::ZERO);
        }
        for step in 0..d.steps {
            // The time that each sequence is at; those that have ended write zeros at what is left over.
            let reversed = self.op.direction.reversed(dir);
            let time = |b: usize| if reversed && step < lens[b] { lens[b] - 1 - step } else { step };
            if lens.iter().all(|l| step >= *l) {
                for b in 0..d.batch {
                    out.y.get_mut(d.row(step, b)).into_iter().for_each(|y| y.fill(T::ZERO));
                }
                continue;
            }
            for (b, gates) in gates.chunks_mut(width).enumerate() {
                gates.copy_from_slice(&projected[d.row(time(b), b) * width..][..width]);
            }
            self.recur(r, &mut gates, &mut recurrent, &h, (dir, threads))?;
            let cell = Cell { op: &self.op, functions: &self.op.functions[dir], hidden, weights };
            // A row of an array that the cell does not have is empty.
            let extra = recurrent.len() / d.batch;
            let many = par::group(d.batch, gates.len());
            let (h_groups, c_groups) = (h.chunks_mut(many * hidden), c.chunks_mut(many * hidden));
            let groups = gates.chunks_mut(many * width).zip(h_groups).zip(c_groups);
            par::share(groups.enumerate(), |(i, ((gates, h), c))| {
                let rows = gates.chunks_mut(width).zip(h.chunks_mut(hidden)).zip(c.chunks_mut(hidden));
                for (b, ((gates, h), c)) in (i * many..).zip(rows) {
                    if step < lens[b] {
                        cell.step(gates, &recurrent[b * extra..][..extra], h, c);
                    }
                }
            });
            for (b, h) in h.chunks(hidden).enumerate() {
                if let Some(y) = out.y.get_mut(d.row(time(b), b)) {
                    if step < lens[b] {
                        y.copy_from_slice(h);
                    } else {
                        y.fill(T::ZERO);
                    }
                }
            }
        }
        out.last_h.iter_mut().zip(h.chunks(hidden)).for_each(|(o, h)| o.copy_from_slice(h));
        out.last_c.iter_mut().zip(c.chunks(hidden)).for_each(|(o, c)| o.copy_from_slice(c));
        Ok(())
    }

    /// `X * W' + biases` for every row of X.
    fn project<T: Real>(
        &self,
        x: &[T],
        weights: &Weights<'_, T>,
        threads: Threads,
    ) -> Result<Vec<T>, KernelError> {
        let d = &self.dims;
        let (width, rows) = (d.width(), d.steps * d.batch);
        let mut projected = vec![T::ZERO; rows * width];
        let sum = weights.bias.map(|bias| {
            let (own, recurrent) = bias.split_at(width);
            // The recurrent bias of a GRU's last gate is scaled with it where the reset comes after the product.
            let merged = if self.op.kind == LINEAR { 2 * d.hidden } else { width };
            let mut sum = own.to_vec();
            sum.iter_mut().zip(&recurrent[..merged]).for_each(|(s, r)| *s += *r);
            sum
        });
        let around = Around { bias: sum.as_deref(), activation: Activation::None };
        if let Some(layout) = self.panels {
            panels::product([x, weights.w], layout, rows, &mut projected, around, threads)?;
        } else {
            let (a, b) = (Mat::rows(x, d.input), Mat::transposed(weights.w, d.input));
            product_around([rows, width, d.input], a, b, &mut projected, width, around, threads)?;
        }
        Ok(projected)
    }

    /// Elements that the recurrent part keeps apart from the gates.
    fn recurrent_len(&self) -> usize {
        let d = &self.dims;
        match self.op.kind {
            Kind::Gru { linear_before_reset: true } => d.batch * d.width(),
            Kind::Gru { linear_before_reset: false } => d.batch * d.hidden,
            Kind::Rnn | Kind::Lstm => 0,
        }
    }

    /// Adds the products with the state to the gates, or leaves them in `recurrent` where the cell scales them.
    fn recur<T: Real>(
        &self,
        r: Mat<'_, T>,
        gates: &mut [T],
        recurrent: &mut [T],
        h: &[T],
        (dir, threads): (usize, Threads),
    ) -> Result<(), KernelError> {
        let d = &self.dims;
        let (hidden, width) = (d.hidden, d.width());
        match self.op.kind {
            Kind::Rnn | Kind::Lstm => rows_times(d.batch, [width, hidden], h, r, gates, width, true, threads),
            Kind::Gru { linear_before_reset: true } => {
                rows_times(d.batch, [width, hidden], h, r, recurrent, width, false, threads)
            }
            Kind::Gru { linear_before_reset: false } => {
                let after = Mat { data: &r.data[2 * hidden * r.col..], ..r };
                rows_times(d.batch, [2 * hidden, hidden], h, r, gates, width, true, threads)?;
                // z and r are finished here, because the last gate needs r.
                let rows = gates.chunks_mut(width).zip(recurrent.chunks_mut(hidden)).zip(h.chunks(hidden));
                for ((gates, scaled), h) in rows {
                    let zr = &mut gates[..2 * hidden];
                    finish(zr, &self.op.functions[dir][0], self.op.clip);
                    let reset = &zr[hidden..];
                    scaled.iter_mut().zip(reset).zip(h).for_each(|((s, r), h)| *s = *r * *h);
                }
                rows_times(
                    d.batch,
                    [hidden, hidden],
                    recurrent,
                    after,
                    &mut gates[2 * hidden..],
                    width,
                    true,
                    threads,
                )
            }
        }
    }
}

const LINEAR: Kind = Kind::Gru { linear_before_reset: true };

/// Maximum number of rows that are multiplied separately: the library would copy the matrix into its own layout
/// every time.
const FEW_ROWS: usize = 3;

/// The transpose of a matrix of rows of `row` elements.
fn transposed<T: Real>(matrix: &[T], row: usize) -> Vec<T> {
    let rows = matrix.len() / row;
    let mut out = vec![T::ZERO; matrix.len()];
    par::rows(&mut out, rows, matrix.len(), |c, out| {
        out.iter_mut().enumerate().for_each(|(r, o)| *o = matrix[r * row + c]);
    });
    out
}

/// `c = a * b` or `c += a * b` for `rows` rows of `a`; rows of `c` are `c_row` elements apart.
#[allow(clippy::too_many_arguments, reason = "the sizes and operands of a product")]
fn rows_times<T: Real>(
    rows: usize,
    [n, k]: [usize; 2],
    a: &[T],
    b: Mat<'_, T>,
    c: &mut [T],
    c_row: usize,
    accumulate: bool,
    threads: Threads,
) -> Result<(), KernelError> {
    if rows > FEW_ROWS {
        return product([rows, n, k], Mat::rows(a, k), b, c, c_row, accumulate, threads);
    }
    a.chunks(k)
        .zip(c.chunks_mut(c_row))
        .try_for_each(|(a, c)| product([1, n, k], Mat::rows(a, k), b, c, c_row, accumulate, threads))
}

/// Bounds and activates the sums of a gate.
fn finish<T: Real>(gate: &mut [T], f: &Pointwise, clip: Option<f32>) {
    if let Some(clip) = clip {
        let high = T::from_f64(clip.into());
        gate.iter_mut().for_each(|v| *v = bound(*v, -high, high));
    }
    f.apply(gate);
}

/// One time step of one sequence.
struct Cell<'a, T> {
    op: &'a Recurrent,
    functions: &'a [Pointwise],
    hidden: usize,
    weights: &'a Weights<'a, T>,
}

impl<T: Real> Cell<'_, T> {
    /// From the sums of the gates and the state `h`, `c` the next state; `recurrent` is what [`Run::recur`] left.
    fn step(&self, gates: &mut [T], recurrent: &[T], h: &mut [T], c: &mut [T]) {
        match self.op.kind {
            Kind::Rnn => {
                self.finish(gates, 0);
                h.copy_from_slice(gates);
            }
            Kind::Gru { linear_before_reset } => {
                if linear_before_reset {
                    self.reset(gates, recurrent);
                }
                let (zr, new) = gates.split_at_mut(2 * self.hidden);
                self.finish(new, 1);
                h.iter_mut().zip(new).zip(zr).for_each(|((h, n), z)| *h = (T::ONE - *z) * *n + *z * *h);
            }
            Kind::Lstm => self.lstm(gates, h, c),
        }
    }

    fn finish(&self, gate: &mut [T], function: usize) {
        if let Some(f) = self.functions.get(function) {
            finish(gate, f, self.op.clip);
        }
    }

    /// A GRU's sums where the reset comes after the product.
    fn reset(&self, gates: &mut [T], recurrent: &[T]) {
        let (zr, new) = gates.split_at_mut(2 * self.hidden);
        let (from_zr, from_new) = recurrent.split_at(2 * self.hidden);
        zr.iter_mut().zip(from_zr).for_each(|(g, r)| *g += *r);
        self.finish(zr, 0);
        let reset = new.iter_mut().zip(&zr[self.hidden..]).zip(from_new);
        match self.weights.bias.map(|b| &b[5 * self.hidden..]) {
            Some(bias) => reset.zip(bias).for_each(|(((n, r), s), b)| *n += *r * (*s + *b)),
            None => reset.for_each(|((n, r), s)| *n += *r * *s),
        }
    }

    fn lstm(&self, gates: &mut [T], h: &mut [T], c: &mut [T]) {
        let hidden = self.hidden;
        let (io, fc) = gates.split_at_mut(2 * hidden);
        let (input, output) = io.split_at_mut(hidden);
        let (forget, new) = fc.split_at_mut(hidden);
        let peephole = |gate: &mut [T], which: usize, c: &[T]| {
            if let Some(p) = self.weights.peepholes {
                let p = &p[which * hidden..];
                gate.iter_mut().zip(p).zip(c).for_each(|((g, p), c)| *g += *p * *c);
            }
        };
        peephole(input, 0, c);
        peephole(forget, 2, c);
        self.finish(input, 0);
        if self.op.input_forget {
            forget.iter_mut().zip(&*input).for_each(|(f, i)| *f = T::ONE - *i);
        } else {
            self.finish(forget, 0);
        }
        self.finish(new, 1);
        let next = c.iter_mut().zip(&*forget).zip(&*input).zip(&*new);
        next.for_each(|(((c, f), i), n)| *c = *f * *c + *i * *n);
        peephole(output, 1, c);
        self.finish(output, 0);
        h.copy_from_slice(c);
        if let Some(f) = self.functions.get(2) {
            f.apply(h);
        }
        h.iter_mut().zip(&*output).for_each(|(h, o)| *h *= *o);
    }
}
