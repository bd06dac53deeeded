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

/// Of vectors of `lanes` elements of `f32`, how many elements a unit of this CPU takes at once: 8 where vectors of 512 bits
/// take two passes, as AMD's CPUs say that have units of 256 bits (CPUID 8000_001A, AMD64 Architecture Programmer's Manual,
/// volume 3). Others do not say: they count as whole.
pub fn lanes_at_once(lanes: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        static HALVES: OnceLock<bool> = OnceLock::new();
        if *HALVES.get_or_init(|| takes_halves(|leaf| raw_cpuid::cpuid!(leaf))) {
            return lanes.min(8);
        }
    }
    lanes
}

/// Whether a CPU says that its units have 256 bits.
#[cfg(target_arch = "x86_64")]
fn takes_halves(leaf: impl Fn(u32) -> raw_cpuid::CpuIdResult) -> bool {
    const HIGHEST: u32 = 0x8000_0000;
    const UNITS: u32 = 0x8000_001a;
    /// Bits of the answer: units of 256 and of 512 bits.
    const BITS: [u32; 2] = [1 << 2, 1 << 3];
    let vendor = leaf(0);
    let is_amd = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD";
    is_amd && leaf(HIGHEST).eax >= UNITS && BITS.map(|bit| leaf(UNITS).eax & bit != 0) == [true, false]
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

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn amd_says_how_wide_its_units_are() {
        let cpu = |name: &[u8; 12], highest: u32, units: u32| {
            let [ebx, edx, ecx] = [0, 4, 8].map(|at| u32::from_le_bytes(*name[at..].first_chunk().unwrap()));
            super::takes_halves(move |leaf| match leaf {
                0 => raw_cpuid::CpuIdResult { eax: 16, ebx, ecx, edx },
                0x8000_0000 => raw_cpuid::CpuIdResult { eax: highest, ebx: 0, ecx: 0, edx: 0 },
                0x8000_001a => raw_cpuid::CpuIdResult { eax: units, ebx: 0, ecx: 0, edx: 0 },
                _ => panic!("leaf {leaf:x}"),
            })
        };
        // Zen 4 and Zen 5 with units of 512 bits.
        assert!(cpu(b"AuthenticAMD", 0x8000_0028, 0b0110));
        assert!(!cpu(b"AuthenticAMD", 0x8000_0028, 0b1110));
        assert!(!cpu(b"AuthenticAMD", 0x8000_0008, 0b0110));
        assert!(!cpu(b"GenuineIntel", 0x8000_0028, 0b0110));
        assert!([4, 8].iter().all(|lanes| super::lanes_at_once(*lanes) == *lanes));
        assert!([8, 16].contains(&super::lanes_at_once(16)));
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
