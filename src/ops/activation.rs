//! Activations on the CPU, and what is added before them.

use super::real::{Real, as_f32s_mut, as_f64s_mut};
use super::{Activation, Pointwise};
use crate::simd::wide;

/// What is done with the sums of an output: `activation(sums + summand)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epilogue<'a, T> {
    pub(crate) activation: Activation,
    /// Elements that lie as the output's do.
    pub(crate) summand: Option<&'a [T]>,
}

impl<T> From<Activation> for Epilogue<'_, T> {
    fn from(activation: Activation) -> Self {
        Epilogue { activation, summand: None }
    }
}

impl<'a, T: Real> Epilogue<'a, T> {
    /// The bounds of the activation, where they are all that is done: cheap while sums are in registers.
    #[inline(always)]
    pub(crate) fn in_registers(&self) -> Option<[f32; 2]> {
        self.activation.bounds().filter(|_| self.summand.is_none())
    }

    /// Does it with the sums in `y`, elements of the output from `at` on.
    pub(crate) fn apply(&self, y: &mut [T], at: usize) {
        let Some(summand) = self.summand.map(|all| &all[at..][..y.len()]) else {
            return self.activation.apply(y);
        };
        if let Some(bounds) = self.activation.bounds() {
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
        self.activation.apply(y);
    }

    /// The epilogue of the part of the output that begins at `at`.
    pub(crate) fn part(&self, at: usize) -> Self {
        Epilogue { summand: self.summand.map(|all| &all[at..]), ..*self }
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
        let loops = self.function.loops();
        if let Some(values) = as_f32s_mut(values) {
            (loops.f32_in_place)(values, self.params);
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
