//! ggml's blocks: their sizes, and the numbers that their bytes stand for.

use half::{bf16, f16};

use super::layout::Part;
use crate::dot::Portable;
use crate::graph::TensorInfo;
pub use crate::kernel::codes::blocks::BlockType;
use crate::ops::OpError;
use crate::ops::halves::Half;
use crate::ops::window::bad;
use crate::{DType, Shape};

impl BlockType {
    /// Every type.
    pub const ALL: [BlockType; 16] = {
        use BlockType::*;
        [F32, F16, Bf16, Q40, Q41, Q50, Q51, Q80, Q2K, Q3K, Q4K, Q5K, Q6K, Iq4Nl, Iq4Xs, Mxfp4]
    };

    /// ggml's name, elements and bytes of a block, and bits of a code.
    const fn form(self) -> (&'static str, usize, usize, u32) {
        use BlockType::*;
        match self {
            F32 => ("F32", 1, 4, 8),
            F16 => ("F16", 1, 2, 8),
            Bf16 => ("BF16", 1, 2, 8),
            Q40 => ("Q4_0", 32, 18, 4),
            Q41 => ("Q4_1", 32, 20, 4),
            Q50 => ("Q5_0", 32, 22, 5),
            Q51 => ("Q5_1", 32, 24, 5),
            Q80 => ("Q8_0", 32, 34, 8),
            Q2K => ("Q2_K", 256, 84, 2),
            Q3K => ("Q3_K", 256, 110, 3),
            Q4K => ("Q4_K", 256, 144, 4),
            Q5K => ("Q5_K", 256, 176, 5),
            Q6K => ("Q6_K", 256, 210, 6),
            Iq4Nl => ("IQ4_NL", 32, 18, 8),
            Iq4Xs => ("IQ4_XS", 256, 136, 8),
            Mxfp4 => ("MXFP4", 32, 17, 5),
        }
    }

    /// ggml's name.
    pub const fn name(self) -> &'static str {
        self.form().0
    }

    /// Elements of a block.
    pub const fn elements(self) -> usize {
        self.form().1
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        self.form().2
    }

    /// Whether a block is codes that share scales.
    pub(super) const fn has_codes(self) -> bool {
        !matches!(self, BlockType::F32 | BlockType::F16 | BlockType::Bf16)
    }

    /// The bits of a code; of types that have a table, those of its numbers.
    pub(super) const fn bits(self) -> u32 {
        self.form().3
    }

    /// The code that stands for zero, where there are no summands.
    pub(super) const fn middle(self) -> u8 {
        match self {
            BlockType::Q41 | BlockType::Q51 | BlockType::Q2K | BlockType::Q4K | BlockType::Q5K => 0,
            _ => 1 << (self.bits() - 1),
        }
    }

    /// Elements that share a scale, of types that have codes.
    pub(super) const fn group(self) -> usize {
        if matches!(self, BlockType::Q2K | BlockType::Q3K | BlockType::Q6K) { 16 } else { 32 }
    }

    /// Elements that share a summand.
    pub(super) const fn summed(self) -> usize {
        if matches!(self, BlockType::Q2K) { 16 } else { 32 }
    }

    /// Whether 16 bytes have the codes of both halves of a block of 32.
    pub(super) const fn has_halves(self) -> bool {
        matches!(self, BlockType::Q40 | BlockType::Q41 | BlockType::Q50 | BlockType::Q51 | BlockType::Mxfp4)
    }

    /// Whether numbers have summands.
    pub(super) const fn has_summands(self) -> bool {
        matches!(self, BlockType::Q41 | BlockType::Q51 | BlockType::Q2K | BlockType::Q4K | BlockType::Q5K)
    }

    /// Writes the numbers of whole blocks.
    #[inline(always)]
    pub(super) fn decode(self, bytes: &[u8], to: &mut [f32]) {
        match self {
            BlockType::F32 => {
                each(bytes, to, |b: &[u8; 4], to: &mut [f32; 1]| to[0] = f32::from_le_bytes(*b))
            }
            BlockType::F16 => each(bytes, to, |b: &[u8; 2], to: &mut [f32; 1]| to[0] = half(b)),
            BlockType::Bf16 => each(bytes, to, |b: &[u8; 2], to: &mut [f32; 1]| {
                to[0] = bf16::from_le_bytes(*b).to_f32();
            }),
            _ => {
                let (mut part, middle) = (Part::default(), f32::from(self.middle()));
                let bytes = bytes.chunks(Part::ELEMENTS / self.elements() * self.bytes());
                for (bytes, to) in bytes.zip(to.chunks_mut(Part::ELEMENTS)) {
                    part.read(Portable, self, bytes);
                    let grains = part.scales.iter().zip(&part.summands);
                    let runs = to.chunks_mut(Part::RUN).zip(part.codes.as_chunks::<{ Part::RUN }>().0);
                    for ((to, codes), (scale, summand)) in runs.zip(grains) {
                        for (to, code) in to.iter_mut().zip(codes) {
                            *to = (f32::from(*code) - middle) * scale + summand;
                        }
                    }
                }
            }
        }
    }
}

/// Calls `decode` for every whole block.
#[inline(always)]
fn each<const B: usize, const N: usize>(
    bytes: &[u8],
    to: &mut [f32],
    decode: impl Fn(&[u8; B], &mut [f32; N]),
) {
    for (block, to) in bytes.as_chunks::<B>().0.iter().zip(to.as_chunks_mut::<N>().0) {
        decode(block, to);
    }
}

/// The `float16` that `bytes` begin with.
#[inline(always)]
pub(super) fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).widen()
}

/// Rows of blocks, contiguous in a tensor of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The type of the blocks.
    pub blocks: BlockType,
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row, a multiple of [`Rows::STEP`].
    pub k: usize,
}

impl Rows {
    /// What the length of a row is a multiple of, whatever its blocks are.
    pub const STEP: usize = 32;

    /// What the number of bytes of a tensor is rounded up to, so that kernels read whole words.
    const PADDING: usize = 16;

    /// Bytes of a row.
    pub const fn row_bytes(&self) -> usize {
        self.k / self.blocks.elements() * self.blocks.bytes()
    }

    /// The tensor that holds them: bytes, with some after the last row that nothing reads. `None` where there are more
    /// than memory can have.
    pub fn info(&self) -> Option<TensorInfo> {
        let bytes =
            (self.k / self.blocks.elements()).checked_mul(self.blocks.bytes())?.checked_mul(self.rows)?;
        Some(TensorInfo::new(DType::U8, Shape::new([bytes.checked_next_multiple_of(Self::PADDING)?]).ok()?))
    }

    /// Checks that rows are of whole blocks, and that `found` can hold them.
    pub(in crate::ops) fn check(&self, found: &TensorInfo) -> Result<(), OpError> {
        let step = Self::STEP.max(self.blocks.elements());
        if self.k == 0 || self.rows == 0 || !self.k.is_multiple_of(step) {
            let found = format!("is {} rows of {}, expected rows of a multiple of {step}", self.rows, self.k);
            return Err(bad("k", found));
        }
        match self.info() {
            Some(wanted) if wanted == *found => Ok(()),
            Some(wanted) => Err(bad("rows", format!("are in {found}, expected {wanted}"))),
            None => Err(bad("rows", "are larger than memory".to_owned())),
        }
    }
}
