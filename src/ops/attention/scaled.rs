//! Scaled dot product attention with every size, distance and mask resolved: what the operators of this
//! family that attend have in common, and its native function.

use crate::expr::simd::tanh;
use crate::kernel::KernelError;
use crate::kernel::codes::attention::Stage;
use crate::ops::linalg::product::{Mat, Threads, product, sum_of};
use crate::ops::norm::{exponentials, largest, top};
use crate::ops::real::{Real, as_f32s, as_f32s_mut};
use crate::ops::scratch::Scratch;
use crate::ops::{OpError, par};
use crate::shape::Shape;
use crate::simd::wide;

/// Queries that are scored at once; bounds the memory that scores take.
pub(super) const BLOCK: usize = 64;

/// Where the vectors of a tensor lie, in elements; the elements of one vector are neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Steps {
    /// The first vector.
    pub first: usize,
    /// From one element of the batch to the next.
    pub batch: usize,
    /// From one head to the next.
    pub head: usize,
    /// From one position in the sequence to the next.
    pub row: usize,
}

impl Steps {
    /// `[batch, heads, rows, size]`.
    pub(super) fn heads_first(heads: usize, rows: usize, size: usize) -> Steps {
        Steps { first: 0, batch: size * rows * heads, head: size * rows, row: size }
    }

    /// `[batch, rows, heads * size]`.
    pub(super) fn rows_first(heads: usize, rows: usize, size: usize) -> Steps {
        Steps { first: 0, batch: size * heads * rows, head: size, row: size * heads }
    }

    /// The first element of the vector of a head of an element of the batch at a position.
    pub(super) fn vector(&self, [batch, head, row]: [usize; 3]) -> usize {
        self.first + batch * self.batch + head * self.head + row * self.row
    }
}

/// How a mask is read: element `batch * b + head * h + row * i + key * j`, for keys `j < len` only; later keys
/// are hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MaskSteps {
    pub batch: usize,
    pub head: usize,
    pub row: usize,
    pub key: usize,
    pub len: usize,
    /// Number of its elements.
    pub elements: usize,
}

/// `softmax(cap(scale * q k') + mask) v` for every head of every element of a batch.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scaled {
    pub batch: usize,
    pub q_heads: usize,
    /// Divides `q_heads`: so many neighbouring heads of queries read the same keys.
    pub kv_heads: usize,
    pub q_len: usize,
    pub kv_len: usize,
    /// Elements of a query and of a key.
    pub head: usize,
    /// Elements of a value.
    pub v_head: usize,
    pub q: Steps,
    pub k: Steps,
    pub v: Steps,
    /// The vectors fill the output, from its first element on.
    pub y: Steps,
    pub mask: Option<MaskSteps>,
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`; 0 is none.
    pub softcap: f32,
    /// Whether a query sees no key after its own position, which is `i + offset`.
    pub causal: bool,
    /// Number of keys before its own position that a query sees, if bounded.
    pub left: Option<usize>,
    /// The same after its own position.
    pub right: Option<usize>,
    /// Position of the first query; where the numbers of valid keys are given it is that number less `q_len`.
    pub offset: usize,
    /// Added to the given numbers of valid keys.
    pub lens_add: i64,
}

/// The elements of a mask.
#[derive(Clone, Copy, Debug)]
pub(super) enum MaskData<'a, T> {
    None,
    /// Keys of elements that are 0 are hidden.
    Bool(&'a [u8]),
    /// Added to the scores; negative infinity hides.
    Add(&'a [T]),
}

/// A score that takes part in the softmax of every query and has no value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sink<T> {
    None,
    Zero,
    /// One for each head.
    Heads(T),
}

impl<T: Real> Sink<&[T]> {
    /// The score for one head.
    pub(super) fn of(&self, head: usize) -> Option<T> {
        match self {
            Sink::None => None,
            Sink::Zero => Some(T::ZERO),
            Sink::Heads(sinks) => sinks.get(head).copied(),
        }
    }
}

/// The operands of [`Scaled::attend`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Attended<'a, T> {
    pub q: &'a [T],
    pub k: &'a [T],
    pub v: &'a [T],
    pub mask: MaskData<'a, T>,
    /// Valid keys of each element of the batch, if not all are.
    pub lens: Option<&'a [i64]>,
    pub sink: Sink<&'a [T]>,
}

impl<T: Real> Attended<'_, T> {
    /// The same where these are numbers of `f32`.
    pub(super) fn f32s(&self) -> Option<Attended<'_, f32>> {
        let mask = match self.mask {
            MaskData::None => MaskData::None,
            MaskData::Bool(mask) => MaskData::Bool(mask),
            MaskData::Add(mask) => MaskData::Add(as_f32s(mask)?),
        };
        let sink = match self.sink {
            Sink::None => Sink::None,
            Sink::Zero => Sink::Zero,
            Sink::Heads(sinks) => Sink::Heads(as_f32s(sinks)?),
        };
        Some(Attended {
            q: as_f32s(self.q)?,
            k: as_f32s(self.k)?,
            v: as_f32s(self.v)?,
            mask,
            lens: self.lens,
            sink,
        })
    }
}

/// What is told of the stages of one query's scores.
pub(super) type Show<'a, T> = dyn FnMut(Stage, &[T]) + 'a;

/// A block of rows of one head, or the row of several heads that read the same keys.
struct Job<'a, T> {
    batch: usize,
    head: usize,
    first: usize,
    /// Whether each row is one of the next head.
    across: bool,
    y: &'a mut [T],
    scores: Option<&'a mut [T]>,
}

/// Checks that tensors of these sizes can exist: batch, heads of queries and of keys, queries and keys, elements
/// of a key and of a value. Strides computed afterwards do not overflow.
pub(super) fn check_sizes(
    batch: usize,
    [q_heads, kv_heads]: [usize; 2],
    [q_len, kv_len]: [usize; 2],
    [head, v_head]: [usize; 2],
) -> Result<(), OpError> {
    Shape::new([batch, q_heads, q_len, head])?;
    Shape::new([batch, q_heads, q_len, v_head])?;
    Shape::new([batch, kv_heads, kv_len, head])?;
    Shape::new([batch, kv_heads, kv_len, v_head])?;
    Ok(())
}

impl Scaled {
    /// Number of heads of queries that share one head of keys.
    pub(super) fn share(&self) -> usize {
        self.q_heads / self.kv_heads.max(1)
    }

    /// Arithmetic operations.
    pub(super) fn flops(&self) -> u64 {
        let each = 2 * self.head as u64 + 2 * self.v_head as u64 + 8;
        let counts = [self.batch, self.q_heads, self.q_len, self.kv_len];
        counts.iter().fold(each, |n, c| n.saturating_mul(*c as u64))
    }

    /// Writes the output, and a stage of the scores (`[batch, q_heads, q_len, kv_len]`) where it is wanted.
    pub(super) fn attend<T: Real>(
        &self,
        given: &Attended<'_, T>,
        y: &mut [T],
        scores: Option<(Stage, &mut [T])>,
    ) -> Result<(), KernelError> {
        let size = self.q_len * self.v_head;
        if size == 0 || y.is_empty() {
            return Ok(());
        }
        if scores.is_none()
            && self.is_many()
            && let (Some(given), Some(y)) = (given.f32s(), as_f32s_mut(y))
        {
            return self.many(&given, y);
        }
        if scores.is_none()
            && self.is_few()
            && let (Some(given), Some(y)) = (given.f32s(), as_f32s_mut(y))
        {
            return self.few(&given, y);
        }
        let (width, steps) = (self.v_head, self.y);
        // Sizes and steps of batch, heads and rows, in vectors.
        let axes = [(self.batch, steps.batch), (self.q_heads, steps.head), (self.q_len, steps.row)];
        let axes = axes.map(|(n, step)| (n, step / width));
        let straight = [self.q_heads * self.q_len, self.q_len, 1];
        if axes.iter().zip(straight).all(|((n, step), s)| *n == 1 || *step == s) {
            return self.heads(given, y, scores);
        }
        let mut heads = Scratch::new(y.len());
        self.heads(given, &mut heads, scores)?;
        // Vectors fill the output, so that its places count like digits.
        let digit = |at: usize, (n, step): (usize, usize)| if n == 1 { 0 } else { at / step.max(1) % n };
        par::share(y.chunks_mut(self.q_heads * width).enumerate(), |(r, y)| {
            for (j, y) in y.chunks_mut(width).enumerate() {
                let [b, h, i] = axes.map(|axis| digit(r * self.q_heads + j, axis));
                let from = ((b * self.q_heads + h) * self.q_len + i) * width;
                if let Some(from) = heads.get(from..from + y.len()) {
                    y.copy_from_slice(from);
                }
            }
        });
        Ok(())
    }

    /// The output as `[batch, q_heads, q_len, v_head]`.
    fn heads<T: Real>(
        &self,
        given: &Attended<'_, T>,
        y: &mut [T],
        scores: Option<(Stage, &mut [T])>,
    ) -> Result<(), KernelError> {
        let (stage, mut scores) = scores.map_or((None, None), |(stage, s)| (Some(stage), Some(s)));
        let mut jobs = Vec::new();
        if self.q_len == 1 && stage.is_none() {
            // Heads of the same keys read them together, as many as leave work for all threads.
            let parts = par::threads().div_ceil((self.batch * self.kv_heads).max(1)).min(self.share());
            let each = self.share().div_ceil(parts.max(1));
            for (n, y) in y.chunks_mut(self.share() * self.v_head).enumerate() {
                let (batch, kv) = (n / self.kv_heads, n % self.kv_heads);
                for (part, y) in y.chunks_mut(each * self.v_head).enumerate() {
                    let head = kv * self.share() + part * each;
                    jobs.push(Job { batch, head, first: 0, across: true, y, scores: None });
                }
            }
            return par::try_share(jobs.into_iter(), |job| self.block(given, stage, job));
        }
        for (n, y) in y.chunks_mut(self.q_len * self.v_head).enumerate() {
            for (r, y) in y.chunks_mut(BLOCK * self.v_head).enumerate() {
                let rows = y.len() / self.v_head;
                let part = scores.take().and_then(|s| {
                    let (part, rest) = s.split_at_mut_checked(rows * self.kv_len)?;
                    scores = Some(rest);
                    Some(part)
                });
                let (batch, head) = (n / self.q_heads, n % self.q_heads);
                jobs.push(Job { batch, head, first: r * BLOCK, across: false, y, scores: part });
            }
        }
        par::try_share(jobs.into_iter(), |job| self.block(given, stage, job))
    }

    fn block<T: Real>(
        &self,
        given: &Attended<'_, T>,
        stage: Option<Stage>,
        job: Job<'_, T>,
    ) -> Result<(), KernelError> {
        let Job { batch, head, first, across, y, scores } = job;
        let rows = y.len() / self.v_head;
        let last = if across { first } else { first + rows - 1 };
        let (valid, offset) = self.valid(given.lens, batch);
        // Where scores are shown, all are; else those that some row sees.
        let (low, high) = match stage {
            Some(_) => (0, self.kv_len),
            None => {
                let from = self.seen(first, valid, offset).0;
                let to = self.seen(last, valid, offset).1;
                (from, to.max(from))
            }
        };
        let keys = high - low;
        if keys == 0 {
            y.fill(T::ZERO);
            return Ok(());
        }
        let kv = head / self.share().max(1);
        let q = tail(given.q, self.q.vector([batch, head, first]))?;
        let k = tail(given.k, self.k.vector([batch, kv, low]))?;
        let v = tail(given.v, self.v.vector([batch, kv, low]))?;
        let mut own = Scratch::new(rows * keys);
        let left = Mat { data: q, row: if across { self.q.head } else { self.q.row }, col: 1 };
        let right = Mat { data: k, row: 1, col: self.k.row };
        product([rows, keys, self.head], left, right, &mut own, keys, false, Threads::One)?;
        let mut shown = scores.map(|s| s.chunks_mut(self.kv_len));
        for (r, row) in own.chunks_mut(keys).enumerate() {
            let show = shown.as_mut().and_then(Iterator::next);
            let (head, i) = if across { (head + r, first) } else { (head, first + r) };
            let seen = self.seen(i, valid, offset);
            let seen = (seen.0.clamp(low, high) - low, seen.1.clamp(low, high) - low);
            self.row((given.mask, given.sink.of(head)), [batch, head, i, low], seen, row, stage.zip(show));
        }
        let left = Mat { data: &own, row: keys, col: 1 };
        let right = Mat { data: v, row: self.v.row, col: 1 };
        product([rows, self.v_head, keys], left, right, y, self.v_head, false, Threads::One)
    }

    /// How many keys of element `batch` are valid, and the position of its first query.
    pub(super) fn valid(&self, lens: Option<&[i64]>, batch: usize) -> (usize, i64) {
        let Some(lens) = lens else { return (self.kv_len, self.offset as i64) };
        let len = lens.get(batch).copied().unwrap_or(0).saturating_add(self.lens_add);
        (len.clamp(0, self.kv_len as i64) as usize, len.saturating_sub(self.q_len as i64))
    }

    /// The keys from the first to before the second are those that query `i` sees, but for the mask.
    pub(super) fn seen(&self, i: usize, valid: usize, offset: i64) -> (usize, usize) {
        let at = offset.saturating_add(i as i64);
        let after = |n: i64| at.saturating_add(n).saturating_add(1).clamp(0, valid as i64) as usize;
        let low = self.left.map_or(0, |l| at.saturating_sub(l as i64).clamp(0, valid as i64) as usize);
        let mut high = valid;
        if self.causal {
            high = high.min(after(0));
        }
        if let Some(right) = self.right {
            high = high.min(after(right as i64));
        }
        (low.min(high), high)
    }

    /// Products of one query with keys become probabilities. `at` is the batch, the head, the query and the
    /// first key; `seen` the keys that are not hidden by their place.
    fn row<T: Real>(
        &self,
        given: (MaskData<'_, T>, Option<T>),
        at: [usize; 4],
        seen: (usize, usize),
        row: &mut [T],
        show: Option<(Stage, &mut [T])>,
    ) {
        let (stage, mut out) = show.unzip();
        let mut shown = |now: Stage, row: &[T]| {
            if let Some(out) = &mut out
                && stage == Some(now)
                && out.len() == row.len()
            {
                out.copy_from_slice(row);
            }
        };
        let factor = self.exponentials(given, at, seen, row, stage.map(|_| &mut shown as &mut Show<'_, T>));
        wide(
            #[inline(always)]
            || row.iter_mut().for_each(|s| *s *= factor),
        );
        shown(Stage::Softmax, row);
    }

    /// As [`Scaled::row`], but for a factor of all of them, which it returns. `shown` is called with each stage before.
    pub(super) fn exponentials<T: Real>(
        &self,
        given: (MaskData<'_, T>, Option<T>),
        at: [usize; 4],
        seen: (usize, usize),
        row: &mut [T],
        shown: Option<&mut Show<'_, T>>,
    ) -> T {
        let aside = |top: T| given.1.map_or(T::ZERO, |sink| (sink - top).exp());
        let raised = self.raised(given, at, seen, row, shown);
        raised.map_or(T::ONE, |(top, total)| T::ONE / (total + aside(top)))
    }

    /// As [`Scaled::exponentials`]; returns the number that scores are taken relative to, which is the largest of them and of
    /// the sink, and the sum of the exponentials. `None` where no key is seen.
    pub(super) fn raised<T: Real>(
        &self,
        (mask, sink): (MaskData<'_, T>, Option<T>),
        at: [usize; 4],
        seen: (usize, usize),
        row: &mut [T],
        mut shown: Option<&mut Show<'_, T>>,
    ) -> Option<(T, T)> {
        let scale = T::from_f64(self.scale.into());
        // Differences are scaled where nothing else is done with the scores.
        let alone = shown.is_none() && self.softcap == 0.0 && self.mask.is_none() && sink.is_none();
        let late = alone && self.scale > 0.0;
        if !late {
            wide(
                #[inline(always)]
                || row.iter_mut().for_each(|s| *s *= scale),
            );
        }
        let mut show = |stage: Stage, row: &[T]| {
            if let Some(shown) = &mut shown {
                shown(stage, row);
            }
        };
        show(Stage::Product, row);
        if self.softcap != 0.0 {
            bend(row, self.softcap);
        }
        show(Stage::Capped, row);
        row[..seen.0].fill(T::LOWEST);
        row[seen.1..].fill(T::LOWEST);
        self.add_mask(mask, at, seen, row);
        show(Stage::Masked, row);
        row[..seen.0].fill(T::ZERO);
        row[seen.1..].fill(T::ZERO);
        let part = &mut row[seen.0..seen.1];
        let number = as_f32s(part).map(|part| T::from_f64(top(part).into()));
        // Where there is none above the lowest, it may be NaN.
        let top = number.filter(|top| *top > T::LOWEST).unwrap_or_else(|| {
            wide(
                #[inline(always)]
                || largest(part),
            )
        });
        if top == T::LOWEST {
            part.fill(T::ZERO);
            return None;
        }
        let top = sink.filter(|s| *s > top).unwrap_or(top);
        let scale = if late { scale } else { T::ONE };
        if let Some(part) = as_f32s_mut(part) {
            let numbers = [top, scale].map(|x| x.to_f64() as f32);
            let total = exponentials(part, numbers[0], numbers[1]);
            return Some((top * scale, T::from_f64(total.into())));
        }
        let total = wide(
            #[inline(always)]
            || {
                for s in part.iter_mut() {
                    *s = ((*s - top) * scale).exp();
                }
                sum_of(
                    part,
                    #[inline(always)]
                    |s| s,
                )
            },
        );
        Some((top * scale, total))
    }

    fn add_mask<T: Real>(
        &self,
        data: MaskData<'_, T>,
        [batch, head, i, low]: [usize; 4],
        seen: (usize, usize),
        row: &mut [T],
    ) {
        let Some(mask) = self.mask else { return };
        let first = batch * mask.batch + head * mask.head + i * mask.row;
        let covered = mask.len.saturating_sub(low).clamp(seen.0, seen.1);
        row[covered..seen.1].fill(T::LOWEST);
        let part = &mut row[seen.0..covered];
        let from = first + (low + seen.0) * mask.key;
        match data {
            MaskData::None => {}
            MaskData::Bool(m) if mask.key == 1 => {
                let m = m.get(from..).unwrap_or_default();
                let given = part.len().min(m.len());
                wide(
                    #[inline(always)]
                    || part.iter_mut().zip(m).for_each(|(s, m)| *s = if *m == 0 { T::LOWEST } else { *s }),
                );
                part[given..].fill(T::LOWEST);
            }
            MaskData::Bool(m) => {
                for (j, s) in part.iter_mut().enumerate() {
                    if m.get(from + j * mask.key).is_none_or(|m| *m == 0) {
                        *s = T::LOWEST;
                    }
                }
            }
            MaskData::Add(m) if mask.key == 1 => {
                let m = m.get(from..).unwrap_or_default();
                let given = part.len().min(m.len());
                wide(
                    #[inline(always)]
                    || {
                        for (s, m) in part.iter_mut().zip(m) {
                            // Hidden whatever the score is, also where it is no number.
                            *s = if *m == T::LOWEST { *m } else { *s + *m };
                        }
                    },
                );
                part[given..].fill(T::LOWEST);
            }
            MaskData::Add(m) => {
                for (j, s) in part.iter_mut().enumerate() {
                    let m = m.get(from + j * mask.key).copied().unwrap_or(T::LOWEST);
                    // Hidden whatever the score is, also where it is no number.
                    *s = if m == T::LOWEST { m } else { *s + m };
                }
            }
        }
    }
}

/// Scores become `cap * tanh(score / cap)`.
fn bend<T: Real>(row: &mut [T], cap: f32) {
    if let Some(row) = as_f32s_mut(row) {
        let factor = 1.0 / cap;
        return wide(
            #[inline(always)]
            || row.iter_mut().for_each(|s| *s = cap * tanh(*s * factor)),
        );
    }
    let cap = f64::from(cap);
    row.iter_mut().for_each(|s| *s = T::from_f64(cap * (s.to_f64() / cap).tanh()));
}

pub(super) fn tail<T>(data: &[T], at: usize) -> Result<&[T], KernelError> {
    data.get(at..).ok_or_else(|| KernelError::Value { what: "an operand of attention is too short".into() })
}
