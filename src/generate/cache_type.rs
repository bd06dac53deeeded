//! Types that a cache may hold keys and values in.

use std::fmt;
use std::str::FromStr;

use super::error::GenerateError;
use crate::ops::attention::CacheKind;

/// The type that a cache holds keys and values in, where it is not that of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheType {
    /// `float32`, as the graph has it: one that declares another type is refused.
    F32,
    /// `float16`. Sessions in half precision have it without asking, but in pages.
    F16,
    /// Codes of 8 bits, and a `float16` scale for each 32 of them: 8.5 bits for a number.
    Q8,
    /// Codes of 4 bits, and such scales: 4.5 bits for a number.
    Q4,
}

impl CacheType {
    /// All of them, in the order of their sizes.
    pub const ALL: [CacheType; 4] = [CacheType::F32, CacheType::F16, CacheType::Q8, CacheType::Q4];

    /// Its name, as [`CacheType::from_str`] takes it.
    pub fn name(self) -> &'static str {
        match self {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::Q8 => "q8",
            CacheType::Q4 => "q4",
        }
    }

    /// The names of all, quoted and with commas between them.
    pub fn names() -> String {
        CacheType::ALL.map(|known| format!("{:?}", known.name())).join(", ")
    }

    /// What GroupQueryAttention calls it.
    pub(super) fn kind(self) -> CacheKind {
        match self {
            CacheType::F32 => CacheKind::Same,
            CacheType::F16 => CacheKind::Half,
            CacheType::Q8 => CacheKind::Blocks { bits: 8 },
            CacheType::Q4 => CacheKind::Blocks { bits: 4 },
        }
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CacheType {
    type Err = GenerateError;

    fn from_str(name: &str) -> Result<Self, GenerateError> {
        CacheType::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known = CacheType::ALL.map(CacheType::name).join(", ");
            GenerateError::Unsupported(format!("a cache of {name:?}: expected one of {known}"))
        })
    }
}
