//! Loops compiled for the vector instructions of the CPU that runs them; the crate itself is compiled for the
//! oldest CPU of its architecture.

use std::str::FromStr;
use std::sync::OnceLock;

/// The environment variable that says how wide vectors of native functions may be, as [`Vectors`] reads it.
pub const VECTORS_VARIABLE: &str = "ONEPOOL_CPU_VECTORS";

/// The widest vectors that native functions use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vectors {
    /// Those of the CPU.
    Widest,
    /// 256 bits with AVX2, on a CPU that has wider ones too.
    Avx2,
}

impl FromStr for Vectors {
    type Err = String;

    fn from_str(word: &str) -> Result<Vectors, String> {
        match word {
            "widest" => Ok(Vectors::Widest),
            "avx2" if cfg!(target_arch = "x86_64") => Ok(Vectors::Avx2),
            "avx2" => Err("this CPU has no AVX2".to_owned()),
            _ => Err(format!("no vectors are called {word:?}; give widest or avx2")),
        }
    }
}

impl Vectors {
    /// What [`VECTORS_VARIABLE`] says when it is first asked for; [`Vectors::Widest`] where it says nothing.
    ///
    /// # Errors
    /// A sentence where it says anything else.
    pub fn asked() -> Result<Vectors, String> {
        static ASKED: OnceLock<Result<Vectors, String>> = OnceLock::new();
        let read = || match std::env::var(VECTORS_VARIABLE) {
            Ok(word) => word.parse(),
            Err(std::env::VarError::NotPresent) => Ok(Vectors::Widest),
            Err(error) => Err(error.to_string()),
        };
        ASKED.get_or_init(read).clone()
    }

    /// Those in use. What is asked for wrongly asks for nothing: a device that is opened tells of it.
    pub fn used() -> Vectors {
        Vectors::asked().unwrap_or(Vectors::Widest)
    }
}

/// The vectors in use.
#[inline]
pub fn arch() -> pulp::Arch {
    static ARCH: OnceLock<pulp::Arch> = OnceLock::new();
    *ARCH.get_or_init(|| widest(Vectors::used()))
}

/// The widest of this CPU within `limit`.
fn widest(limit: Vectors) -> pulp::Arch {
    #[cfg(target_arch = "x86_64")]
    if limit == Vectors::Avx2 {
        return pulp::x86::V3::try_new().map_or(pulp::Arch::Scalar, pulp::Arch::V3);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = limit;
    pulp::Arch::new()
}

/// Calls `f` in a form compiled for the widest vectors this CPU has. `f` and what it calls must be inlined into
/// it (`#[inline(always)]`), else they stay in the crate's own form. That holds for the standard library too: a `for` loop
/// is compiled into `f`, `Iterator::for_each` with a long closure is a function of its own.
#[inline(always)]
pub fn wide<R>(f: impl FnOnce() -> R) -> R {
    arch().dispatch(Wide(f))
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
    use super::Vectors;

    #[test]
    fn vectors_are_asked_for_by_name() {
        assert_eq!("widest".parse(), Ok(Vectors::Widest));
        if cfg!(target_arch = "x86_64") {
            assert_eq!("avx2".parse(), Ok(Vectors::Avx2));
        }
        for wrong in ["", "AVX2", "avx512", "64"] {
            assert!(wrong.parse::<Vectors>().unwrap_err().contains("give widest or avx2"), "{wrong}");
        }
    }

    /// Also on a CPU with wider ones.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn vectors_are_kept_to_avx2() {
        struct Lanes;
        impl pulp::WithSimd for Lanes {
            type Output = usize;
            #[inline(always)]
            fn with_simd<S: pulp::Simd>(self, _: S) -> usize {
                S::F32_LANES
            }
        }
        let lanes = |limit| super::widest(limit).dispatch(Lanes);
        let has_avx2 = pulp::x86::V3::try_new().is_some();
        assert_eq!(lanes(Vectors::Avx2), if has_avx2 { 8 } else { 1 });
        assert!(lanes(Vectors::Widest) >= lanes(Vectors::Avx2));
    }

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
