//! RotaryEmbedding, of ONNX and of com.microsoft: pairs of elements rotated by the angle of their position
//! (RoFormer, arXiv 2104.09864).

use std::borrow::Cow;
use std::sync::Arc;

use half::f16;

use super::FLOATS_TO_32;
use super::attention_op::operand;
use super::scaled::Steps;
use crate::dtype::DType;
use crate::graph::TensorInfo;
pub(super) use crate::kernel::codes::rotary::Positions;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::real::{Real, RealInputs, RealIo, RealKernel, real_kernel, widened};
use crate::ops::window::bad;
use crate::ops::word::word;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, par};

/// Rotates vectors of `[batch, heads, length, size]` or `[batch, length, heads * size]`. ONNX's inputs are X,
/// cosines, sines and positions, com.microsoft's X, positions, cosines and sines.
#[derive(Clone, Debug)]
pub struct RotaryEmbedding {
    /// Whether a pair is two neighbours, not one element of each half.
    pub interleaved: bool,
    /// Number of elements of a vector that are rotated; `None` for all.
    pub rotated: Option<usize>,
    /// Heads, where X has three dimensions.
    pub heads: Option<usize>,
    /// Whether it is com.microsoft's.
    pub contrib: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    read_as(attrs, false)
}

pub(super) fn read_contrib(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    if attrs.flag("is_packed_batching", false)? {
        return Err(OpError::unsupported("RotaryEmbedding of packed batches"));
    }
    if attrs.float("scale", 1.0)? != 1.0 {
        return Err(OpError::unsupported("RotaryEmbedding with a scale"));
    }
    read_as(attrs, true)
}

fn read_as(attrs: &AttrReader<'_>, contrib: bool) -> Result<Arc<dyn Operator>, OpError> {
    let count = |name: &str| match attrs.int(name, 0)? {
        0 => Ok(None),
        n if n > 0 => Ok(Some(n as usize)),
        n => Err(bad(name, format!("is {n}, expected a positive number"))),
    };
    Ok(Arc::new(RotaryEmbedding {
        interleaved: attrs.flag("interleaved", false)?,
        rotated: count("rotary_embedding_dim")?,
        heads: count("num_heads")?,
        contrib,
    }))
}

/// Cosines and sines, in the type that is computed in or as they lie in memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tables<'a, T> {
    Whole([&'a [T]; 2]),
    Halves([&'a [f16]; 2]),
}

impl<'a, T: Real> Tables<'a, T> {
    /// Inputs `at` of `sizes` elements each; nothing where they are absent.
    pub(super) fn of(
        inputs: &RealInputs<'a, T>,
        at: [usize; 2],
        sizes: [usize; 2],
    ) -> Result<Self, KernelError> {
        let [cos, sin] = at;
        if let (Some(cos), Some(sin)) = (inputs.half(cos, sizes[0])?, inputs.half(sin, sizes[1])?) {
            return Ok(Tables::Halves([cos, sin]));
        }
        let table = |at, size| Ok::<_, KernelError>(inputs.get_opt(at, size)?.unwrap_or(&[]));
        Ok(Tables::Whole([table(cos, sizes[0])?, table(sin, sizes[1])?]))
    }

    /// Row `at` of both, of `pairs` elements.
    fn row(&self, at: usize, pairs: usize) -> Option<[Cow<'a, [T]>; 2]> {
        let range = at * pairs..(at + 1) * pairs;
        Some(match self {
            Tables::Whole([c, s]) => [Cow::Borrowed(c.get(range.clone())?), Cow::Borrowed(s.get(range)?)],
            Tables::Halves([c, s]) => [widened(c.get(range.clone())?), widened(s.get(range)?)],
        })
    }
}

/// A rotation with everything resolved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rotation {
    pub batch: usize,
    pub heads: usize,
    pub len: usize,
    /// Elements of a vector, and how many of them are rotated.
    pub head: usize,
    pub rotated: usize,
    /// Rows of the tables.
    pub rows: usize,
    pub interleaved: bool,
    pub positions: Positions,
    pub x: Steps,
    /// [`Steps::heads_first`] or [`Steps::rows_first`], but for the first vector.
    pub y: Steps,
    /// Whether positions tell the row that is written, and how many rows there are.
    pub append: bool,
    pub y_rows: usize,
}

impl Rotation {
    /// Number of elements written.
    pub(super) fn elements(&self) -> usize {
        self.batch * self.heads * self.len * self.head
    }

    /// Number of positions read.
    pub(super) fn ids(&self) -> usize {
        match self.positions {
            Positions::Rows | Positions::Place => 0,
            Positions::Each => self.batch * self.len,
            Positions::From => 1,
            Positions::Last => self.batch,
        }
    }

    /// Writes the rotated vectors.
    pub(super) fn run<T: Real>(
        &self,
        x: &[T],
        tables: Tables<'_, T>,
        ids: &[i64],
        y: &mut [T],
    ) -> Result<(), KernelError> {
        if y.is_empty() {
            return Ok(());
        }
        let heads_first = self.y == Steps::heads_first(self.heads, self.len, self.head);
        let work = 2 * y.len();
        par::try_rows(y, self.head, work, |n, y| {
            let (b, h, i) = if heads_first {
                (n / (self.heads * self.len), n / self.len % self.heads, n % self.len)
            } else {
                (n / (self.heads * self.len), n % self.heads, n / self.heads % self.len)
            };
            self.turn(x, tables, [b, h, i], self.row(ids, b, i)?, y)
        })
    }

    /// Writes the vectors into a cache of [`Steps::heads_first`] of `y_rows` rows.
    pub(super) fn fill<T: Real>(
        &self,
        x: &[T],
        tables: Tables<'_, T>,
        ids: &[i64],
        cache: &mut [T],
    ) -> Result<(), KernelError> {
        let size = self.y_rows * self.head;
        if size == 0 {
            return Ok(());
        }
        par::try_rows(cache, size, 2 * self.elements(), |n, cache| {
            let (b, h) = (n / self.heads, n % self.heads);
            for i in 0..self.len {
                let at = self.row(ids, b, i)?;
                let to = if self.append { at } else { self.y.first / self.head.max(1) + i };
                let row = cache.get_mut(to * self.head..(to + 1) * self.head).ok_or_else(|| {
                    KernelError::Value { what: format!("row {to} is beyond a cache of {}", self.y_rows) }
                })?;
                self.turn(x, tables, [b, h, i], at, row)?;
            }
            Ok(())
        })
    }

    /// Writes one vector; `at` is the row of the tables.
    fn turn<T: Real>(
        &self,
        x: &[T],
        tables: Tables<'_, T>,
        [b, h, i]: [usize; 3],
        at: usize,
        y: &mut [T],
    ) -> Result<(), KernelError> {
        let short = || KernelError::Value { what: "an operand of a rotation is too short".to_owned() };
        let from = self.x.vector([b, h, i]);
        let x = x.get(from..from + self.head).ok_or_else(short)?;
        let pairs = self.rotated / 2;
        if pairs > 0 {
            let [c, s] = tables.row(at, pairs).ok_or_else(short)?;
            for (pair, (c, s)) in c.iter().zip(s.iter()).enumerate() {
                let (one, two) =
                    if self.interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + pairs) };
                y[one] = *c * x[one] - *s * x[two];
                y[two] = *s * x[one] + *c * x[two];
            }
        }
        y[self.rotated..].copy_from_slice(&x[self.rotated..]);
        Ok(())
    }

    pub(super) fn row(&self, ids: &[i64], b: usize, i: usize) -> Result<usize, KernelError> {
        let id = |n: usize| ids.get(n).copied().unwrap_or(0);
        let at = match self.positions {
            Positions::Rows => (b * self.len + i) as i64,
            Positions::Each => id(b * self.len + i),
            Positions::From => id(0).saturating_add(i as i64),
            Positions::Place => i as i64,
            Positions::Last => id(b).saturating_sub(self.len as i64 - 1).saturating_add(i as i64).max(0),
        };
        let rows = if self.rotated > 0 { self.rows } else { usize::MAX };
        usize::try_from(at).ok().filter(|at| *at < rows).ok_or_else(|| KernelError::Value {
            what: format!("position {at} has no row in tables of {} rows", self.rows),
        })
    }

    /// Emits it; `words` are 32-bit words of one position.
    pub(super) fn lower(
        &self,
        dtype: DType,
        words: u32,
        args: [Operand; 5],
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        let n = self.elements();
        if n == 0 {
            return Ok(());
        }
        let kernel = variants::Rotary { t: dtype }.id()?;
        let spec = [
            (spec::rotary::INTERLEAVED, u32::from(self.interleaved)),
            (spec::rotary::POSITIONS, self.positions as u32),
            (spec::rotary::WORDS, words),
            (spec::rotary::APPEND, u32::from(self.append)),
        ];
        let params = params::Rotary {
            n: word(n)?,
            heads: word(self.heads)?,
            len: word(self.len)?,
            head: word(self.head)?,
            rotated: word(self.rotated)?,
            rows: word(self.rows)?,
            x_first: word(self.x.first)?,
            x_batch: word(self.x.batch)?,
            x_head: word(self.x.head)?,
            x_row: word(self.x.row)?,
            y_first: word(self.y.first)?,
            y_batch: word(self.y.batch)?,
            y_head: word(self.y.head)?,
            y_row: word(self.y.row)?,
            y_rows: word(self.y_rows)?,
        };
        lower.dispatch_1d(kernel, &spec, &args, &params, n)
    }
}

impl RotaryEmbedding {
    /// Positions of cosines, sines and positions among the inputs.
    fn places(&self) -> [usize; 3] {
        if self.contrib { [2, 3, 1] } else { [1, 2, 3] }
    }

    fn resolve(&self, cx: &OpCx) -> Result<Rotation, OpError> {
        let [cos, sin, ids] = self.places();
        let table = cx.shape(cos)?.clone();
        if cx.shape(sin)? != &table {
            return Err(cx.shape_error(sin, format!("{table}, as the cosines have")));
        }
        let pairs = table.last().copied().unwrap_or(0);
        let heads = match (cx.shape(0)?.dims(), self.heads) {
            (_, Some(heads)) => Some(heads),
            // Without heads the tables tell the size of a vector.
            (&[_, _, width], None) if self.contrib && pairs > 0 => Some(width / (2 * pairs)),
            _ => None,
        };
        let x = operand(cx, 0, heads)?;
        let [batch, heads, len, head] = x.sizes;
        let rotated = self.rotated.unwrap_or(head);
        if rotated > head || !rotated.is_multiple_of(2) {
            return Err(bad("rotary_embedding_dim", format!("is {rotated} for vectors of {head} elements")));
        }
        if pairs != rotated / 2 {
            return Err(cx.shape_error(cos, format!("a last axis of {}", rotated / 2)));
        }
        let (positions, rows) = match cx.input_opt(ids) {
            None => {
                // Exporters give one table to all sequences of a batch.
                if table.dims() == [batch, len, pairs] {
                    (Positions::Rows, batch * len)
                } else if table.dims() == [1, len, pairs] {
                    (Positions::Place, len)
                } else {
                    return Err(
                        cx.shape_error(cos, format!("[{batch}, {len}, {pairs}] or [1, {len}, {pairs}]"))
                    );
                }
            }
            Some(t) => {
                let &[rows, _] = table.dims() else {
                    return Err(cx.shape_error(cos, "two dimensions"));
                };
                if t.shape.dims() == [batch, len] {
                    (Positions::Each, rows)
                } else if self.contrib && t.shape.elements() == 1 {
                    (Positions::From, rows)
                } else {
                    return Err(cx.shape_error(ids, format!("[{batch}, {len}]")));
                }
            }
        };
        if rows == 0 && cx.shape(0)?.elements() > 0 {
            return Err(cx.shape_error(cos, "at least one row"));
        }
        let (interleaved, y) = (self.interleaved, x.steps);
        Ok(Rotation {
            batch,
            heads,
            len,
            head,
            rotated,
            rows,
            interleaved,
            positions,
            x: x.steps,
            y,
            append: false,
            y_rows: len,
        })
    }
}

impl Operator for RotaryEmbedding {
    fn name(&self) -> &'static str {
        "RotaryEmbedding"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(if self.contrib { 4..=4 } else { 3..=4 }, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS_TO_32)?;
        let [cos, sin, ids] = self.places();
        cx.expect_dtype(cos, dtype)?;
        cx.expect_dtype(sin, dtype)?;
        if cx.has(ids) {
            cx.expect_dtype(ids, DType::I64)?;
        }
        self.resolve(cx)?;
        Ok(vec![cx.input(0)?.clone()])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 3 * cx.input_opt(0).map_or(0, |i| i.elements() as u64), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let rotation = self.resolve(cx)?;
        let table = cx.shape(self.places()[0])?.elements();
        real_kernel("RotaryEmbedding", cx, Run { rotation, places: self.places(), table })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let [cos, sin, ids] = self.places();
        let ids = if cx.has(ids) { Operand::Input(ids) } else { Operand::Unused };
        let args = [Operand::Input(0), Operand::Input(cos), Operand::Input(sin), ids, Operand::Output(0)];
        self.resolve(cx)?.lower(cx.dtype(0)?, 2, args, lower)
    }
}

struct Run {
    rotation: Rotation,
    places: [usize; 3],
    table: usize,
}

impl RealKernel for Run {
    // Of tables for all positions few rows are read.
    const HALF: &'static [usize] = &[1, 2, 3];

    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let [cos, sin, ids] = self.places;
        let n = self.rotation.elements();
        let (y, inputs) = io.output(0, n)?;
        let tables = Tables::of(&inputs, [cos, sin], [self.table; 2])?;
        let ids = inputs.raw_opt::<i64>(ids, self.rotation.ids())?.unwrap_or(&[]);
        self.rotation.run(inputs.get(0, n)?, tables, ids, y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, facts, run_f32, tensor};

    fn rotary(interleaved: bool, rotated: Option<usize>, heads: Option<usize>) -> RotaryEmbedding {
        RotaryEmbedding { interleaved, rotated, heads, contrib: false }
    }

    /// X of `[2, 3, 5, 12]` or `[2, 5, 36]` by the definition: a pair is a complex number that is turned.
    fn reference(op: &RotaryEmbedding, inputs: &[Option<Tensor>]) -> Vec<f64> {
        let wide = |i: usize| -> Vec<f64> {
            inputs[i].as_ref().unwrap().to_f32s().unwrap().into_iter().map(f64::from).collect()
        };
        let [cos, sin, ids] = op.places();
        let (x, c, s) = (wide(0), wide(cos), wide(sin));
        let rotated = op.rotated.unwrap_or(12);
        let half = rotated / 2;
        let mut y = x.clone();
        for (b, h, i) in (0..30).map(|n| (n / 15, n / 5 % 3, n % 5)) {
            let base =
                if op.heads.is_some() { (b * 5 + i) * 36 + h * 12 } else { ((b * 3 + h) * 5 + i) * 12 };
            let row = match inputs.get(ids).cloned().flatten() {
                None if c.len() == 5 * half => i,
                None => b * 5 + i,
                Some(t) if t.shape().elements() == 1 => t.to_i64s().unwrap()[0] as usize + i,
                Some(t) => t.to_i64s().unwrap()[b * 5 + i] as usize,
            };
            for pair in 0..half {
                let (re, im) = if op.interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
                let (c, s) = (c[row * half + pair], s[row * half + pair]);
                y[base + re] = x[base + re] * c - x[base + im] * s;
                y[base + im] = x[base + re] * s + x[base + im] * c;
            }
        }
        y
    }

    fn check(op: &RotaryEmbedding, ids: Option<Tensor>) {
        let half = op.rotated.unwrap_or(12) / 2;
        let shape: &[usize] = if op.heads.is_some() { &[2, 5, 36] } else { &[2, 3, 5, 12] };
        let table =
            |seed| Some(if ids.is_some() { tensor(&[20, half], seed) } else { tensor(&[2, 5, half], seed) });
        let mut inputs = vec![Some(tensor(shape, 1)), table(2), table(3)];
        if let Some(ids) = ids.clone() {
            inputs.insert(op.places()[2], Some(ids));
        }
        let got = run_f32(op, &inputs).unwrap();
        assert_near(&got, &reference(op, &inputs), 1e-6);
        #[cfg(feature = "vulkan")]
        crate::ops::testing::check_op(op, &inputs, 1e-5);
    }

    #[test]
    fn vectors_turn_by_the_angles_of_their_positions() {
        let ids = Tensor::new([2, 5], &[0i64, 3, 19, 4, 4, 1, 2, 3, 4, 5]).unwrap();
        for interleaved in [false, true] {
            for rotated in [None, Some(8)] {
                for heads in [None, Some(3)] {
                    check(&rotary(interleaved, rotated, heads), None);
                    check(&rotary(interleaved, rotated, heads), Some(ids.clone()));
                }
            }
            let contrib = RotaryEmbedding { contrib: true, ..rotary(interleaved, None, Some(3)) };
            check(&contrib, Some(ids.clone()));
            check(&contrib, Some(Tensor::from_i64s(&[7])));
        }
    }

    #[test]
    fn one_table_serves_all_sequences_of_a_batch() {
        for heads in [None, Some(3)] {
            let op = rotary(heads.is_none(), Some(8), heads);
            let shape: &[usize] = if heads.is_some() { &[2, 5, 36] } else { &[2, 3, 5, 12] };
            let inputs = [Some(tensor(shape, 1)), Some(tensor(&[1, 5, 4], 2)), Some(tensor(&[1, 5, 4], 3))];
            assert_near(&run_f32(&op, &inputs).unwrap(), &reference(&op, &inputs), 1e-6);
            #[cfg(feature = "vulkan")]
            crate::ops::testing::check_op(&op, &inputs, 1e-5);
        }
    }

    #[test]
    fn misfits_and_positions_out_of_range_are_errors() {
        let infers = |op: &RotaryEmbedding, shapes: &[&[usize]]| {
            let inputs: Vec<_> = shapes.iter().map(|s| Some(tensor(s, 1))).collect();
            facts(op, &inputs, 1).is_ok()
        };
        assert!(infers(&rotary(false, None, None), &[&[2, 3, 5, 12][..], &[2, 5, 6], &[2, 5, 6]]));
        assert!(!infers(&rotary(false, None, None), &[&[2, 3, 5, 12][..], &[2, 5, 5], &[2, 5, 5]]));
        assert!(!infers(&rotary(false, None, None), &[&[2, 5, 12][..], &[2, 5, 6], &[2, 5, 6]]));
        assert!(!infers(&rotary(false, Some(14), None), &[&[2, 3, 5, 12][..], &[2, 5, 7], &[2, 5, 7]]));
        let rotation = rotary(false, None, None);
        let ids = Tensor::new([1, 1], &[9i64]).unwrap();
        let inputs =
            [Some(tensor(&[1, 1, 1, 4], 1)), Some(tensor(&[3, 2], 2)), Some(tensor(&[3, 2], 3)), Some(ids)];
        let cx = facts(&rotation, &inputs, 1).unwrap();
        let run = rotation.resolve(&cx).unwrap();
        assert!(run.run(&[0.0f32; 4], Tables::Whole([&[0.0; 6]; 2]), &[9], &mut [0.0; 4]).is_err());
        assert!(run.run(&[0.0f32; 4], Tables::Whole([&[0.0; 6]; 2]), &[-1], &mut [0.0; 4]).is_err());
        assert!(run.run(&[0.0f32; 4], Tables::Whole([&[0.0; 6]; 2]), &[2], &mut [0.0; 4]).is_ok());
    }
}
