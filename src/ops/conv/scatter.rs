//! ConvTranspose on the CPU: one product gives all contributions, which are then added where they belong.

use super::dims::ConvDims;
use crate::kernel::KernelError;
use crate::ops::linalg::product::{Mat, Threads, product};
use crate::ops::real::{Real, RealIo, RealKernel};
use crate::ops::{Activation, par};

/// Bytes of contributions that are computed at a time.
const BLOCK_BYTES: usize = 2 << 20;
/// Input elements that are taken at a time at least, for the product to be efficient.
const MIN_ELEMENTS: usize = 128;

/// A transposed convolution ready to run.
pub(super) struct Run {
    pub(super) dims: ConvDims,
    pub(super) activation: Activation,
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let d = &self.dims;
        let (y, inputs) = io.output(0, d.out_len())?;
        let (x, w) = (inputs.get(0, d.in_len())?, inputs.get(1, d.weights_len())?);
        let bias = inputs.get_opt(2, d.group * d.oc)?;
        if y.is_empty() {
            return Ok(());
        }
        let (in_group, w_group) = (d.ic * d.in_plane(), d.ic * d.oc * d.taps());
        let job = |(i, y): (usize, &mut [T]), threads| {
            let g = i % d.group;
            match bias {
                Some(b) => y.chunks_mut(d.out_plane()).zip(&b[g * d.oc..]).for_each(|(y, b)| y.fill(*b)),
                None => y.fill(T::ZERO),
            }
            self.one(&x[i * in_group..][..in_group], &w[g * w_group..][..w_group], y, threads)?;
            self.activation.apply(y);
            Ok(())
        };
        let out_group = d.oc * d.out_plane();
        if d.batch * d.group >= par::threads() {
            par::try_share(y.chunks_mut(out_group).enumerate(), |y| job(y, Threads::One))
        } else {
            y.chunks_mut(out_group).enumerate().try_for_each(|y| job(y, Threads::All))
        }
    }
}

impl Run {
    /// One group of one image: adds to its output.
    fn one<T: Real>(&self, x: &[T], w: &[T], y: &mut [T], threads: Threads) -> Result<(), KernelError> {
        let d = &self.dims;
        let (plane, taps) = (d.in_plane(), d.taps());
        let fit = BLOCK_BYTES / size_of::<T>() / taps;
        let elements = fit.max(MIN_ELEMENTS).min(plane);
        let channels = (fit / elements).clamp(1, d.oc);
        let mut scratch = vec![T::ZERO; channels * taps * elements];
        for (c, y) in y.chunks_mut(channels * d.out_plane()).enumerate() {
            let rows = y.len() / d.out_plane() * taps;
            let w = Mat { data: &w[c * channels * taps..], row: 1, col: d.oc * taps };
            for first in (0..plane).step_by(elements) {
                let n = elements.min(plane - first);
                let parts = &mut scratch[..rows * n];
                let x = Mat::rows(&x[first..], plane);
                product([rows, n, d.ic], w, x, parts, n, false, threads)?;
                let parts = &*parts;
                let add = |(c, y): (usize, &mut [T])| {
                    self.scatter(first, n, &parts[c * taps * n..][..taps * n], y);
                };
                match threads {
                    Threads::One => y.chunks_mut(d.out_plane()).enumerate().for_each(add),
                    Threads::All => par::rows(y, d.out_plane(), parts.len(), |c, y| add((c, y))),
                }
            }
        }
        Ok(())
    }

    /// Adds the contributions of input elements `first` to `first + n` to one channel of the output.
    fn scatter<T: Real>(&self, first: usize, n: usize, parts: &[T], y: &mut [T]) {
        let [d, h, w] = self.dims.axes;
        for (tap, parts) in parts.chunks(n).enumerate() {
            let (kw, kh, kd) = (tap % w.kernel, tap / w.kernel % h.kernel, tap / w.kernel / h.kernel);
            let inside = w.valid(kw);
            let mut at = first;
            while at < first + n {
                let (line, start) = (at / w.output, at % w.output);
                let len = (w.output - start).min(first + n - at);
                let row = d.at(line / h.output, kd).zip(h.at(line % h.output, kh));
                let lo = inside.start.clamp(start, start + len);
                let hi = inside.end.clamp(lo, start + len);
                if let (Some((od, oh)), Some(to)) = (row, w.at(lo, kw).filter(|_| hi > lo)) {
                    let y = &mut y[(od * h.input + oh) * w.input..][..w.input];
                    let parts = &parts[at - first + lo - start..][..hi - lo];
                    y[to..].iter_mut().step_by(w.stride).zip(parts).for_each(|(y, p)| *y += *p);
                }
                at += len;
            }
        }
    }
}
