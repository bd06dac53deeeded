//! The generator: Philox4x32-10 (J. Salmon and others, Parallel random numbers: as easy as 1, 2, 3, SC 2011).
//! Number i of a stream is a function of the key and i, so any part of it is made in any order;
//! `shaders/include/philox.glsl` computes the same function and has its constants.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::kernel::codes::philox::{FACTOR_X, FACTOR_Z, KEY_X, KEY_Y, ROUNDS};
use crate::ops::OpError;

/// One stream of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Philox {
    /// Which stream.
    pub(crate) key: [u32; 2],
}

impl Philox {
    /// Four words, the `counter`-th block of the stream.
    pub(crate) fn block(&self, counter: u64) -> [u32; 4] {
        let mut c = [counter as u32, (counter >> 32) as u32, 0, 0];
        let mut key = self.key;
        for _ in 0..ROUNDS {
            let wide = |m: u32, x: u32| u64::from(m) * u64::from(x);
            let (p, q) = (wide(FACTOR_X, c[0]), wide(FACTOR_Z, c[2]));
            c = [(q >> 32) as u32 ^ c[1] ^ key[0], q as u32, (p >> 32) as u32 ^ c[3] ^ key[1], p as u32];
            key = [key[0].wrapping_add(KEY_X), key[1].wrapping_add(KEY_Y)];
        }
        c
    }

    /// Numbers of 0 to below 1 in steps of 2^-24.
    pub(crate) fn uniforms(&self) -> Numbers {
        Numbers { philox: *self, normal: false, counter: None, block: [0.0; 4] }
    }

    /// Numbers of the normal distribution with mean 0 and deviation 1 (G. Box and M. Muller, 1958): each pair from
    /// two words.
    pub(crate) fn normals(&self) -> Numbers {
        Numbers { normal: true, ..self.uniforms() }
    }
}

/// The numbers of a stream, four to a block. The last block is kept: neighbours are made together.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    philox: Philox,
    normal: bool,
    counter: Option<u64>,
    block: [f32; 4],
}

impl Numbers {
    /// Number `i`.
    pub(crate) fn at(&mut self, i: usize) -> f32 {
        let counter = i as u64 / 4;
        if self.counter != Some(counter) {
            let units = self.philox.block(counter).map(unit);
            let [a, b, c, d] = units;
            self.block = match self.normal {
                true => {
                    let ([a, b], [c, d]) = (normal_pair([a, b]), normal_pair([c, d]));
                    [a, b, c, d]
                }
                false => units,
            };
            self.counter = Some(counter);
        }
        self.block[i % 4]
    }
}

fn normal_pair([a, b]: [f32; 2]) -> [f32; 2] {
    // 1 minus a number below 1 is no zero.
    let radius = (-2.0 * (1.0 - a).ln()).sqrt();
    let angle = std::f32::consts::PI * (2.0 * b - 1.0);
    [radius * angle.cos(), radius * angle.sin()]
}

fn unit(word: u32) -> f32 {
    (word >> 8) as f32 / (1 << 24) as f32
}

/// Where an operator's numbers begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seed {
    /// The same in every run.
    Fixed(Philox),
    /// Others in every run.
    Fresh,
}

impl Seed {
    /// The seed of an attribute that is a number.
    pub(crate) fn of(seed: Option<f32>) -> Seed {
        seed.map_or(Seed::Fresh, |s| Seed::Fixed(Philox { key: [s.to_bits(), 0] }))
    }

    /// The generator of one run.
    pub(crate) fn philox(self) -> Philox {
        static START: OnceLock<u64> = OnceLock::new();
        static RUNS: AtomicU64 = AtomicU64::new(0);
        match self {
            Seed::Fixed(philox) => philox,
            Seed::Fresh => {
                let start = *START.get_or_init(|| RandomState::new().hash_one("onepool"));
                let key = start.wrapping_add(RUNS.fetch_add(1, Ordering::Relaxed));
                Philox { key: [key as u32, (key >> 32) as u32] }
            }
        }
    }

    /// The generator for a device.
    pub(crate) fn for_device(self) -> Result<Philox, OpError> {
        match self {
            Seed::Fixed(philox) => Ok(philox),
            Seed::Fresh => Err(OpError::unsupported("numbers that differ from run to run; give a seed")),
        }
    }
}
