//! The columns that a convolution multiplies by its weights, unfolded a few at a time.

use pulp::Simd;

use crate::ops::WindowAxis;
use crate::ops::linalg::tile::Columns;
use crate::ops::planes::copy;

/// The channels of one group of one image: a row for every (channel, tap), a column for every output.
pub(super) struct Unfold<'a> {
    pub(super) axes: [WindowAxis; 3],
    pub(super) x: &'a [f32],
}

/// Neighbouring outputs of one line.
struct Run {
    /// The first one's place among the columns.
    at: usize,
    line: usize,
    start: usize,
    len: usize,
}

/// Neighbouring columns that a tap reads from the input.
struct Piece {
    at: usize,
    len: usize,
    /// The first one's input element in its channel.
    from: usize,
}

impl Columns for Unfold<'_> {
    const BAND: usize = 128;

    #[inline(always)]
    fn fill<S: Simd>(&self, simd: S, first: usize, n: usize, pitch: usize, to: &mut [f32]) {
        let [d, h, w] = self.axes;
        let mut runs: Vec<Run> = Vec::with_capacity(n / w.output.max(1) + 2);
        let mut at = 0;
        while at < n {
            let (line, start) = ((first + at) / w.output, (first + at) % w.output);
            let len = (w.output - start).min(n - at);
            runs.push(Run { at, line, start, len });
            at += len;
        }
        let plane = d.input * h.input * w.input;
        let taps = d.kernel * h.kernel * w.kernel;
        let mut pieces: Vec<Piece> = Vec::with_capacity(runs.len());
        for tap in 0..taps {
            let (kw, rest) = (tap % w.kernel, tap / w.kernel);
            let (kh, kd) = (rest % h.kernel, rest / h.kernel);
            let inside = w.valid(kw);
            pieces.clear();
            for run in &runs {
                let source = d.at(run.line / h.output, kd).zip(h.at(run.line % h.output, kh));
                let lo = inside.start.clamp(run.start, run.start + run.len);
                let hi = inside.end.clamp(lo, run.start + run.len);
                let (Some((id, ih)), Some(iw)) = (source, w.at(lo, kw).filter(|_| hi > lo)) else { continue };
                let from = (id * h.input + ih) * w.input + iw;
                pieces.push(Piece { at: run.at + lo - run.start, len: hi - lo, from });
            }
            let rows = to.chunks_exact_mut(pitch).skip(tap).step_by(taps);
            for (row, x) in rows.zip(self.x.chunks_exact(plane)) {
                let mut done = 0;
                for piece in &pieces {
                    // This overwrites elements beyond the end of the previous piece, and fills padding.
                    row[done..piece.at].fill(0.0);
                    done = piece.at + piece.len;
                    let (to, x) = (&mut row[piece.at..], &x[piece.from..]);
                    match w.stride {
                        1 => copy::<S, 1>(simd, x, to, piece.len),
                        2 => copy::<S, 2>(simd, x, to, piece.len),
                        s => {
                            to.iter_mut().zip(x.iter().step_by(s)).take(piece.len).for_each(|(y, x)| *y = *x)
                        }
                    }
                }
                row[done..n].fill(0.0);
            }
        }
    }
}
