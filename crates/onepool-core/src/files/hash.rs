//! The hash by which contents are told apart: BLAKE3.

use std::fmt::{self, Write};

/// 256 bits that stand for what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of `bytes`.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(*blake3::hash(bytes).as_bytes())
    }

    /// All of it, in hexadecimal.
    pub fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    /// Its first half, in hexadecimal: enough to name a file by.
    pub fn short_hex(&self) -> String {
        let mut hex = self.hex();
        hex.truncate(32);
        hex
    }

    /// Its first `N` numbers.
    pub fn words<const N: usize>(&self) -> [u32; N] {
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(self.0.chunks_exact(4)) {
            *word = bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        }
        words
    }

    /// Its first 64 bits.
    pub fn value(&self) -> u64 {
        let [low, high] = self.words::<2>();
        u64::from(high) << 32 | u64::from(low)
    }
}

/// A hash of several values in order.
#[derive(Default)]
pub struct Hash(blake3::Hasher);

impl Hash {
    /// Of nothing.
    pub fn new() -> Self {
        Hash::default()
    }

    /// Writes bytes as they are: two calls are as one with both.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Writes `value` so that it cannot run into what comes next.
    pub fn put(&mut self, value: impl fmt::Debug) {
        // Writing to a hash does not fail.
        let _ = write!(self, "{value:?}\u{0}");
    }

    /// The hash of what was written.
    pub fn digest(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

impl Write for Hash {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.bytes(s.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_blake3() {
        // The test vector of the algorithm's authors for no input.
        let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(Digest::of(b"").hex(), empty);
        assert_eq!(Digest::of(b"").short_hex(), empty[..32]);
        assert_eq!(Digest::of(b"").words::<2>(), [0xb949_13af, 0xa6a1_f9f5]);
        assert_eq!(Digest::of(b"").value(), 0xa6a1_f9f5_b949_13af);
        let mut parts = Hash::new();
        parts.bytes(b"a");
        parts.bytes(b"b");
        assert_eq!(parts.digest(), Digest::of(b"ab"));
    }

    #[test]
    fn values_do_not_run_into_each_other() {
        let of = |values: &[&str]| {
            let mut hash = Hash::new();
            values.iter().for_each(|value| hash.put(value));
            hash.digest()
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["a"]), of(&["a", ""]));
    }
}
