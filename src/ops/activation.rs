//! Activations on the CPU.

use super::real::{Real, as_f32s_mut, as_f64s_mut};
use super::{Activation, Pointwise};

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
