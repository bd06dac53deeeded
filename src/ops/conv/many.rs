//! Conv and ConvTranspose on the CPU over more dimensions than the other functions know: every tap of a window is
//! added to whole rows.

use super::dims::AnyDims;
use crate::kernel::KernelError;
use crate::ops::real::{Real, RealIo, RealKernel};
use crate::ops::{Activation, par};

/// A row of elements under a tap.
struct Row {
    tap: usize,
    /// Elements, the first of them on the side of [`WindowAxis::output`](crate::ops::window::WindowAxis::output), where they are neighbours.
    len: usize,
    out: usize,
    /// The first on the side of [`WindowAxis::input`](crate::ops::window::WindowAxis::input).
    first: usize,
}

impl AnyDims {
    /// Calls `f` for every row of every tap.
    fn each_row(&self, mut f: impl FnMut(&Row)) {
        let Some((last, outer)) = self.axes.split_last() else { return };
        let taps = outer.iter().map(|a| a.kernel).product::<usize>();
        let rows = outer.iter().map(|a| a.output).product::<usize>();
        for row in 0..rows {
            for tap in 0..taps {
                let (mut position, mut at, mut step, mut first) = (row, tap, 1, Some(0));
                for a in outer.iter().rev() {
                    let inside = a.at(position % a.output, at % a.kernel);
                    first = first.zip(inside).map(|(sum, i)| sum + i * step);
                    position /= a.output;
                    at /= a.kernel;
                    step *= a.input;
                }
                let Some(first) = first else { continue };
                for last_tap in last.reach() {
                    let inside = last.valid(last_tap);
                    let Some(from) = last.at(inside.start, last_tap).filter(|_| !inside.is_empty()) else {
                        continue;
                    };
                    f(&Row {
                        tap: tap * last.kernel + last_tap,
                        len: inside.len(),
                        out: row * last.output + inside.start,
                        first: first * last.input + from,
                    });
                }
            }
        }
    }
}

/// A convolution ready to run.
pub(super) struct Run {
    pub(super) dims: AnyDims,
    pub(super) activation: Activation,
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let d = &self.dims;
        let (x_plane, y_plane, taps) = (d.in_plane(), d.out_plane(), d.taps());
        let stride = d.axes.last().map_or(1, |a| a.stride);
        let (y, given) = io.output(0, d.out_len())?;
        let x = given.get(0, d.in_len())?;
        let w = given.get(1, d.weights_len())?;
        let bias = given.get_opt(2, d.group * d.oc)?;
        if y.is_empty() {
            return Ok(());
        }
        // Where the weights of an output channel of a group begin, and how far apart those of input channels are.
        let weights = |g: usize, o: usize| match d.transposed {
            true => (g * d.ic * d.oc * taps + o * taps, d.oc * taps),
            false => ((g * d.oc + o) * d.ic * taps, taps),
        };
        par::share(y.chunks_mut(y_plane).enumerate(), |(plane, y)| {
            let (image, o) = (plane / d.oc, plane % d.oc);
            let g = image % d.group;
            let (begin, apart) = weights(g, o);
            y.fill(bias.map_or(T::ZERO, |b| b[g * d.oc + o]));
            d.each_row(|row| {
                for c in 0..d.ic {
                    let w = w[begin + c * apart + row.tap];
                    let x = &x[(image * d.ic + c) * x_plane..][..x_plane];
                    if d.transposed {
                        let y = y[row.first..].iter_mut().step_by(stride);
                        y.zip(&x[row.out..][..row.len]).for_each(|(y, x)| *y += w * *x);
                    } else {
                        let x = x[row.first..].iter().step_by(stride);
                        y[row.out..][..row.len].iter_mut().zip(x).for_each(|(y, x)| *y += w * *x);
                    }
                }
            });
            self.activation.apply(y);
        });
        Ok(())
    }
}
