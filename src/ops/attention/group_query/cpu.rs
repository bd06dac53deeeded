//! GroupQueryAttention on the CPU.

use super::super::cache::CodedRows;
use super::super::few::Rows;
use super::super::rotary::{Positions, Rotation, Tables};
use super::super::scaled::{Attended, MaskData, Scaled, Sink, Steps};
use super::{ADDED, COS, IDS, K, K_SCALE, LAST, PAST_K, PAST_V, Q, Resolved, SIN, SINKS, V_SCALE};
use crate::dtype::DType;
use crate::kernel::KernelError;
use crate::ops::par;
use crate::ops::real::{
    Halves, Real, RealInputs, RealIo, RealKernel, Updated, as_f32s_mut, check_len, of_f32s_mut,
};
use crate::simd::wide;

/// Tables of cosines and sines, given positions, and the last key of each sequence.
type Turning<'a, T> = (Tables<'a, T>, &'a [i64], &'a [i64]);

/// The position of the result in errors.
const Y: usize = 16;

impl Scaled {
    fn beyond(&self, row: usize) -> KernelError {
        KernelError::Value { what: format!("row {row} is beyond a cache of {} rows", self.kv_len) }
    }
}

impl Resolved {
    fn places<'a, T: Real>(
        &self,
        inputs: &RealInputs<'a, T>,
        last: &'a [i64],
    ) -> Result<Turning<'a, T>, KernelError> {
        let tables = Tables::of(inputs, [COS, SIN], [self.sizes[COS], self.sizes[SIN]])?;
        let ids = inputs.raw_opt::<i64>(IDS, self.sizes[IDS])?.unwrap_or(&[]);
        Ok((tables, ids, last))
    }

    /// Writes the new keys or values (`n` is 1 or 2) into `cache`.
    fn append<T: Real>(
        &self,
        n: usize,
        inputs: &RealInputs<'_, T>,
        (tables, ids, last): Turning<'_, T>,
        cache: &mut [T],
    ) -> Result<(), KernelError> {
        self.append_as(&self.moves[n], n, inputs, (tables, ids, last), cache)
    }

    /// As [`Resolved::append`], by another move.
    fn append_as<T: Real>(
        &self,
        moves: &Rotation,
        n: usize,
        inputs: &RealInputs<'_, T>,
        (tables, ids, last): Turning<'_, T>,
        cache: &mut [T],
    ) -> Result<(), KernelError> {
        let from = self.from[n];
        let mut new = inputs.get(from, self.sizes[from])?;
        let mut turned = Vec::new();
        if let Some(turn) = self.turned.as_ref().filter(|_| n == K) {
            turned.resize(turn.elements(), T::ZERO);
            turn.run(new, tables, ids, &mut turned)?;
            new = &turned;
        }
        moves.fill(new, tables, last, cache)
    }

    /// The result.
    fn attend<T: Real>(
        &self,
        inputs: &RealInputs<'_, T>,
        (tables, ids, last): Turning<'_, T>,
        caches: Caches<'_, T>,
        y: &mut [T],
    ) -> Result<(), KernelError> {
        let s = &self.scaled;
        let given_q = inputs.get(Q, self.sizes[Q])?;
        let mut rotated = Vec::new();
        if self.moves[0].rotated > 0 {
            rotated.resize(self.moves[0].elements(), T::ZERO);
            let at = if self.moves[0].positions == Positions::Each { ids } else { last };
            self.moves[0].run(given_q, tables, at, &mut rotated)?;
        }
        let q = if rotated.is_empty() { given_q } else { &rotated };
        let mask = inputs.get_opt(ADDED, self.sizes[ADDED])?.map_or(MaskData::None, MaskData::Add);
        let lens = self.bounded().then_some(last);
        let sink = match inputs.get_opt(SINKS, self.sizes[SINKS])? {
            Some(sinks) => Sink::Heads(sinks),
            None if self.smooth => Sink::Zero,
            None => Sink::None,
        };
        check_len(Y, y.len(), s.batch * s.q_len * s.q_heads * s.head)?;
        match caches {
            Caches::Whole([k, v]) => s.attend(&Attended { q, k, v, mask, lens, sink }, y, None),
            Caches::Stored([k, v]) => {
                let absent = KernelError::Absent { index: Y };
                let given = Attended { q, k: &[], v: &[], mask, lens, sink };
                let (Some(given), Some(y)) = (given.f32s(), as_f32s_mut(y)) else { return Err(absent) };
                let read = |of: &Stored<'_, T>, [b, h]: [usize; 2], first: usize, to: &mut [f32]| {
                    let is_there = of.rows(s, b * s.kv_heads + h, first, of_f32s_mut(to)?);
                    is_there.then_some(()).ok_or_else(|| s.beyond(first))
                };
                let rows = [
                    Rows::Read(&|at, first, to| read(k, at, first, to)),
                    Rows::Read(&|at, first, to| read(v, at, first, to)),
                ];
                s.few_of(&given, rows, y)
            }
        }
    }
}

/// The keys and the values.
enum Caches<'a, T> {
    Whole([&'a [T]; 2]),
    /// Read as they lie, where queries are few.
    Stored([&'a Stored<'a, T>; 2]),
}

/// A cache in another type than the one computed in.
enum Stored<'a, T> {
    Halves(Halves<'a>),
    /// Codes and their scales.
    Codes(&'a mut [u8], &'a CodedRows, &'a [T]),
}

impl<T: Real> Stored<'_, T> {
    /// Writes row `row` of those of all heads, of head `head`. Returns whether there is one.
    fn store(&mut self, row: usize, head: usize, vector: &[T]) -> bool {
        match self {
            Stored::Halves(halves) => halves.store(row * vector.len(), vector),
            Stored::Codes(codes, rows, scales) => {
                let to = codes.get_mut(row * rows.row..(row + 1) * rows.row);
                to.map(|to| rows.encode(vector, scales, head, to)).is_some()
            }
        }
    }

    /// Reads rows of one head of one sequence from row `first` on, of vectors of `s.head` elements. Returns whether there are
    /// so many.
    fn rows(&self, s: &Scaled, head: usize, first: usize, to: &mut [T]) -> bool {
        let first = head * s.kv_len + first;
        match self {
            Stored::Halves(halves) => halves.load(first * s.head, to),
            Stored::Codes(codes, coded, scales) => wide(
                #[inline(always)]
                || {
                    for (to, row) in to.chunks_mut(s.head.max(1)).zip(first..) {
                        let row = codes.get(row * coded.row..(row + 1) * coded.row);
                        let Some(row) = row else { return false };
                        coded.decode(row, scales, head % s.kv_heads, to);
                    }
                    true
                },
            ),
        }
    }

    /// Reads the first rows of each head of each sequence: `to` has as many for each. Returns whether there are so many.
    fn load(&self, s: &Scaled, rows: usize, to: &mut [T]) -> bool {
        let work = 4 * to.len();
        let read = par::try_rows(to, s.head, work, |n, to| {
            self.rows(s, n / rows, n % rows, to).then_some(()).ok_or(())
        });
        read.is_ok()
    }
}

impl Resolved {
    /// Writes the new keys or values (`n` is 1 or 2) into a cache.
    fn update<T: Real>(
        &self,
        n: usize,
        inputs: &RealInputs<'_, T>,
        (tables, ids, last): Turning<'_, T>,
        cache: &mut Stored<'_, T>,
    ) -> Result<(), KernelError> {
        let (s, moves) = (&self.scaled, &self.moves[n]);
        let mut new = vec![T::ZERO; s.batch * s.kv_heads * s.q_len * s.head];
        // The vectors one after the other, as a cache of the new rows alone.
        let aside = Rotation {
            append: false,
            y_rows: s.q_len,
            y: Steps::heads_first(s.kv_heads, s.q_len, s.head),
            ..*moves
        };
        self.append_as(&aside, n, inputs, (tables, ids, last), &mut new)?;
        for (at, vector) in new.chunks(s.head.max(1)).enumerate() {
            let (b, h, i) = (at / (s.kv_heads * s.q_len), at / s.q_len % s.kv_heads, at % s.q_len);
            let row = moves.row(last, b, i)?;
            if row >= s.kv_len || !cache.store((b * s.kv_heads + h) * s.kv_len + row, h, vector) {
                return Err(s.beyond(row));
            }
        }
        Ok(())
    }

    /// What is valid of a cache: of each sequence and head `rows` rows.
    fn loaded<T: Real>(&self, cache: &Stored<'_, T>, rows: usize) -> Result<Vec<T>, KernelError> {
        let s = &self.scaled;
        let mut valid = vec![T::ZERO; s.batch * s.kv_heads * rows * s.head];
        if cache.load(s, rows, &mut valid) { Ok(valid) } else { Err(s.beyond(rows)) }
    }

    /// Writes the new rows of both caches, and attends to what is valid of them.
    fn update_and_attend<T: Real>(
        &self,
        inputs: &RealInputs<'_, T>,
        turning: Turning<'_, T>,
        [mut keys, mut values]: [Stored<'_, T>; 2],
        y: &mut [T],
    ) -> Result<(), KernelError> {
        let (s, (.., last)) = (&self.scaled, turning);
        self.update(1, inputs, turning, &mut keys)?;
        self.update(2, inputs, turning, &mut values)?;
        if self.bounded() && s.is_few() && T::DTYPE == DType::F32 {
            return self.attend(inputs, turning, Caches::Stored([&keys, &values]), y);
        }
        let longest = last.iter().max().map_or(0, |n| (*n + 1).max(0) as usize);
        let rows = if self.bounded() { longest } else { s.q_len }.min(s.kv_len);
        let (keys, values) = (self.loaded(&keys, rows)?, self.loaded(&values, rows)?);
        let at = Steps::heads_first(s.kv_heads, rows, s.head);
        let scaled = Scaled { kv_len: rows, k: at, v: at, ..s.clone() };
        Resolved { scaled, ..self.clone() }.attend(inputs, turning, Caches::Whole([&keys, &values]), y)
    }

    /// As [`RealKernel::run`], where the caches are updated in place.
    fn run_in_place<T: Real>(&self, io: &mut RealIo<'_, T>, last: &[i64]) -> Result<(), KernelError> {
        let s = &self.scaled;
        let (y, caches, inputs) = io.output_and_updated();
        let places = self.places(&inputs, last)?;
        let (Some(y), [Some(keys), Some(values)]) = (y, caches) else {
            return Err(KernelError::Absent { index: Y });
        };
        match (keys, values) {
            (Updated::Whole(keys), Updated::Whole(values)) => {
                for (n, cache) in [(1, &mut *keys), (2, &mut *values)] {
                    check_len(Y + n, cache.len(), s.batch * s.kv_heads * s.kv_len * s.head)?;
                    self.append(n, &inputs, places, cache)?;
                }
                self.attend(&inputs, places, Caches::Whole([keys, values]), y)
            }
            (Updated::Halves(keys), Updated::Halves(values)) => {
                for (n, cache) in [(1, &keys), (2, &values)] {
                    check_len(Y + n, cache.len(), s.batch * s.kv_heads * s.kv_len * s.head)?;
                }
                let caches = [Stored::Halves(keys), Stored::Halves(values)];
                self.update_and_attend(&inputs, places, caches, y)
            }
            _ => Err(KernelError::Absent { index: Y }),
        }
    }

    /// As [`RealKernel::run`], where caches are codes, updated in place or not.
    fn run_codes<T: Real>(
        &self,
        io: &mut RealIo<'_, T>,
        last: &[i64],
        rows: &[CodedRows; 2],
    ) -> Result<(), KernelError> {
        let (y, [keys, values], inputs) = io.output_and_bytes();
        let (Some(y), Some(keys), Some(values)) = (y, keys, values) else {
            return Err(KernelError::Absent { index: Y });
        };
        let places = self.places(&inputs, last)?;
        let caches = [(1, PAST_K, &mut *keys), (2, PAST_V, &mut *values)];
        for ((n, past, cache), rows) in caches.into_iter().zip(rows) {
            check_len(Y + n, cache.len(), rows.bytes())?;
            if self.updates {
                continue;
            }
            let past = inputs.raw_opt::<u8>(past, self.sizes[past])?.unwrap_or(&[]);
            cache.fill(rows.zero());
            let heads = cache.chunks_mut((rows.rows * rows.row).max(1));
            for (cache, past) in heads.zip(past.chunks((self.past_len * rows.row).max(1))) {
                cache[..past.len()].copy_from_slice(past);
            }
        }
        let scales = |i: usize| Ok::<_, KernelError>(inputs.get_opt(i, self.sizes[i])?.unwrap_or(&[]));
        let keys = Stored::Codes(keys, &rows[0], scales(K_SCALE)?);
        let values = Stored::Codes(values, &rows[1], scales(V_SCALE)?);
        self.update_and_attend(&inputs, places, [keys, values], y)
    }
}

impl RealKernel for Resolved {
    // Of tables for all positions few rows are read.
    const HALF: &'static [usize] = &[COS, SIN];

    fn updates(&self, output: usize) -> bool {
        self.updates && output > 0
    }

    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let s = &self.scaled;
        let inputs = io.inputs();
        let last = inputs.raw_opt::<i32>(LAST, s.batch)?.ok_or(KernelError::Absent { index: LAST })?;
        let last: Vec<i64> = last.iter().map(|n| i64::from(*n)).collect();
        for n in &last {
            let rows = s.q_len as i64 - 1..s.kv_len as i64;
            if !self.prompt() && !rows.contains(n) {
                let what = format!("the last key of a sequence is {n}, expected one of {rows:?}");
                return Err(KernelError::Value { what });
            }
        }
        if let Some(rows) = self.coded.as_ref().filter(|rows| rows[0].bits < 16) {
            return self.run_codes(io, &last, rows);
        }
        if self.updates {
            return self.run_in_place(io, &last);
        }
        let size = s.batch * s.kv_heads * s.kv_len * s.head;
        let (outputs, inputs) = io.outputs();
        let [Some(y), Some(keys), Some(values)] = outputs else {
            return Err(KernelError::Absent { index: Y });
        };
        let places = self.places(&inputs, &last)?;
        for (n, past, cache) in [(1, PAST_K, &mut *keys), (2, PAST_V, &mut *values)] {
            check_len(Y + n, cache.len(), size)?;
            cache.fill(T::ZERO);
            if let Some(past) = inputs.get_opt(past, self.sizes[past])? {
                self.past().fill(past, places.0, &[], cache)?;
            }
            self.append(n, &inputs, places, cache)?;
        }
        self.attend(&inputs, places, Caches::Whole([keys, values]), y)
    }
}
