//! Loops compiled for the vector instructions of the CPU that runs them; the crate itself is compiled for the
//! oldest CPU of its architecture.

/// Calls `f` in a form compiled for the widest vectors this CPU has. `f` and what it calls must be inlined into
/// it (`#[inline(always)]`), else they stay in the crate's own form. That holds for the standard library too: a `for` loop
/// is compiled into `f`, `Iterator::for_each` with a long closure is a function of its own.
#[inline(always)]
pub fn wide<R>(f: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(Wide(f))
}

struct Wide<F>(F);

impl<R, F: FnOnce() -> R> pulp::WithSimd for Wide<F> {
    type Output = R;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> R {
        (self.0)()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_wide_form_computes_the_same() {
        let x: Vec<f32> = (0..100).map(|i| i as f32 * 0.5 - 9.0).collect();
        let mut y = vec![0.0f32; 100];
        let n = super::wide(
            #[inline(always)]
            || {
                y.iter_mut().zip(&x).for_each(|(y, x)| *y = x * x + 1.0);
                y.len()
            },
        );
        assert_eq!(n, 100);
        assert!(x.iter().zip(&y).all(|(x, y)| *y == x * x + 1.0));
    }
}
