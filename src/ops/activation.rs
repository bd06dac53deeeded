//! Activations on the CPU, and what is added before them.

use super::real::{Real, as_f32s, as_f32s_mut, as_f64s_mut};
use super::{Activation, Pointwise};
use crate::simd::wide;

/// What is done with the sums of an output: `activation(sums + summand)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epilogue<'a, T> {
    pub(crate) activation: Activation,
    /// Elements that lie as the output's do.
    pub(crate) summand: Option<&'a [T]>,
    /// In place of an activation.
    pub(crate) slopes: Option<Slopes<'a, T>>,
}

/// Factors of what is below 0, one for each channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slopes<'a, T> {
    pub(crate) of_channels: &'a [T],
    /// Elements of a channel, which are contiguous.
    pub(crate) plane: usize,
    /// The element of all channels at which the output begins.
    pub(crate) first: usize,
}

impl<T: Real> Slopes<'_, T> {
    /// Applies them to elements of the output from `at` on.
    fn apply(&self, mut y: &mut [T], at: usize) {
        let mut at = self.first + at;
        while !y.is_empty() {
            let n = y.len().min(self.plane - at % self.plane);
            let slope = self.of_channels[at / self.plane % self.of_channels.len()];
            let (channel, rest) = y.split_at_mut(n);
            wide(
                #[inline(always)]
                || channel.iter_mut().for_each(|y| *y = if *y < T::ZERO { *y * slope } else { *y }),
            );
            (y, at) = (rest, at + n);
        }
    }
}

impl<T> From<Activation> for Epilogue<'_, T> {
    fn from(activation: Activation) -> Self {
        Epilogue { activation, summand: None, slopes: None }
    }
}

impl<'a, T: Real> Epilogue<'a, T> {
    /// The bounds of the activation, where they are all that is done: cheap while sums are in registers.
    #[inline(always)]
    pub(crate) fn in_registers(&self) -> Option<[f32; 2]> {
        self.bounds().filter(|_| self.summand.is_none())
    }

    /// The bounds of the activation, where they are all that is done after the summand was added.
    #[inline(always)]
    pub(crate) fn bounds(&self) -> Option<[f32; 2]> {
        self.activation.bounds().filter(|_| self.slopes.is_none())
    }

    /// Does what comes after the summand was added with `y`, elements of the output from `at` on.
    pub(crate) fn activate(&self, y: &mut [T], at: usize) {
        match &self.slopes {
            Some(slopes) => slopes.apply(y, at),
            None => self.activation.apply(y),
        }
    }

    /// Does it with the sums in `y`, elements of the output from `at` on.
    pub(crate) fn apply(&self, y: &mut [T], at: usize) {
        let Some(summand) = self.summand.map(|all| &all[at..][..y.len()]) else {
            return self.activate(y, at);
        };
        if let Some(bounds) = self.bounds() {
            let [low, high] = bounds.map(|bound| T::from_f64(bound.into()));
            return wide(
                #[inline(always)]
                || {
                    for (y, z) in y.iter_mut().zip(summand) {
                        let sum = *y + *z;
                        // A NaN stays one.
                        let sum = if sum < low { low } else { sum };
                        *y = if sum > high { high } else { sum };
                    }
                },
            );
        }
        wide(
            #[inline(always)]
            || y.iter_mut().zip(summand).for_each(|(y, z)| *y += *z),
        );
        self.activate(y, at);
    }

    /// The same for an output of `f32`; nothing of what lies in memory for another.
    pub(crate) fn f32s(&self) -> Epilogue<'a, f32> {
        let slopes = self.slopes.and_then(|Slopes { of_channels, plane, first }| {
            Some(Slopes { of_channels: as_f32s(of_channels)?, plane, first })
        });
        Epilogue { activation: self.activation, summand: self.summand.and_then(as_f32s), slopes }
    }

    /// The epilogue of the part of the output that begins at `at`.
    pub(crate) fn part(&self, at: usize) -> Self {
        Epilogue {
            activation: self.activation,
            summand: self.summand.map(|all| &all[at..]),
            slopes: self.slopes.map(|slopes| Slopes { first: slopes.first + at, ..slopes }),
        }
    }
}

impl Activation {
    /// Applies it to every element.
    pub(crate) fn apply<T: Real>(&self, values: &mut [T]) {
        if let Activation::Of(function) = self {
            function.apply(values);
        }
    }
}

impl Pointwise {
    /// Applies it to every element in place.
    pub(crate) fn apply<T: Real>(&self, values: &mut [T]) {
        /// Elements that are copied at once.
        const COPIED: usize = 128;
        /// Elements of the longest vector.
        const LANES: usize = 16;
        let loops = self.function.loops();
        if let Some(values) = as_f32s_mut(values) {
            let (whole, rest) = values.split_at_mut(values.len() / LANES * LANES);
            (loops.f32_in_place)(whole, self.params);
            // One by one these would take as long as many vectors.
            if !rest.is_empty() {
                let mut vector = [0.0; LANES];
                vector[..rest.len()].copy_from_slice(rest);
                (loops.f32_in_place)(&mut vector, self.params);
                rest.copy_from_slice(&vector[..rest.len()]);
            }
        } else if let Some(values) = as_f64s_mut(values) {
            let mut x = [0.0; COPIED];
            for values in values.chunks_mut(COPIED) {
                let x = &mut x[..values.len()];
                x.copy_from_slice(values);
                (loops.f64)(x, values, self.params);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Function;

    #[test]
    fn codes_are_distinct_and_nan_survives_clipping() {
        let all = Function::ALL.iter().map(|f| Activation::of(*f)).chain([Activation::None]);
        let codes: std::collections::BTreeSet<u32> = all.map(|a| a.code().0).collect();
        assert_eq!(codes.len(), Function::ALL.len() + 1);
        let mut values = [f32::NAN, 9.0, -9.0];
        Activation::with(Function::Clip, [0.0, 6.0]).apply(&mut values);
        assert!(values[0].is_nan() && values[1..] == [6.0, 0.0]);
        let mut values = [f64::NAN, 9.0, -9.0];
        Activation::of(Function::Relu).apply(&mut values);
        assert!(values[0].is_nan() && values[1..] == [9.0, 0.0]);
    }
}
