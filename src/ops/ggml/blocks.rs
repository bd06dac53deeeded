//! ggml's blocks: their sizes, and the numbers that their bytes stand for.

use half::{bf16, f16};

use crate::graph::TensorInfo;
pub use crate::kernel::codes::blocks::BlockType;
use crate::ops::OpError;
use crate::ops::window::bad;
use crate::{DType, Shape};

impl BlockType {
    /// Every type.
    pub const ALL: [BlockType; 11] = [
        BlockType::F32,
        BlockType::F16,
        BlockType::Bf16,
        BlockType::Q40,
        BlockType::Q41,
        BlockType::Q50,
        BlockType::Q51,
        BlockType::Q80,
        BlockType::Q4K,
        BlockType::Q5K,
        BlockType::Q6K,
    ];

    /// ggml's name.
    pub const fn name(self) -> &'static str {
        match self {
            BlockType::F32 => "F32",
            BlockType::F16 => "F16",
            BlockType::Bf16 => "BF16",
            BlockType::Q40 => "Q4_0",
            BlockType::Q41 => "Q4_1",
            BlockType::Q50 => "Q5_0",
            BlockType::Q51 => "Q5_1",
            BlockType::Q80 => "Q8_0",
            BlockType::Q4K => "Q4_K",
            BlockType::Q5K => "Q5_K",
            BlockType::Q6K => "Q6_K",
        }
    }

    /// Elements of a block.
    pub const fn elements(self) -> usize {
        match self {
            BlockType::F32 | BlockType::F16 | BlockType::Bf16 => 1,
            BlockType::Q40 | BlockType::Q41 | BlockType::Q50 | BlockType::Q51 | BlockType::Q80 => 32,
            BlockType::Q4K | BlockType::Q5K | BlockType::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            BlockType::F32 => 4,
            BlockType::F16 | BlockType::Bf16 => 2,
            BlockType::Q40 => 18,
            BlockType::Q41 => 20,
            BlockType::Q50 => 22,
            BlockType::Q51 => 24,
            BlockType::Q80 => 34,
            BlockType::Q4K => 144,
            BlockType::Q5K => 176,
            BlockType::Q6K => 210,
        }
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
            BlockType::Q40 => each(bytes, to, |b: &[u8; 18], to| {
                let [_, _, codes @ ..] = b;
                nibbles(codes, to, half(b), -8.0 * half(b));
            }),
            BlockType::Q41 => each(bytes, to, |b: &[u8; 20], to| {
                let [_, _, _, _, codes @ ..] = b;
                nibbles(codes, to, half(b), half(&b[2..]));
            }),
            BlockType::Q50 => each(bytes, to, |b: &[u8; 22], to| {
                let [_, _, fifth @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = b;
                with_fifth(&b[6..], *fifth, to, half(b), -16.0 * half(b));
            }),
            BlockType::Q51 => each(bytes, to, |b: &[u8; 24], to| {
                let [_, _, _, _, fifth @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = b;
                with_fifth(&b[8..], *fifth, to, half(b), half(&b[2..]));
            }),
            BlockType::Q80 => each(bytes, to, |b: &[u8; 34], to: &mut [f32; 32]| {
                let scale = half(b);
                for (to, code) in to.iter_mut().zip(&b[2..]) {
                    *to = f32::from(code.cast_signed()) * scale;
                }
            }),
            BlockType::Q4K => each(bytes, to, |b: &[u8; 144], to: &mut [f32; 256]| {
                let grain = SixBits::of(b);
                for (part, to) in to.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                    let (scale, summand) = grain.part(part);
                    let codes = &b[16 + part / 2 * 32..][..32];
                    let shift = part % 2 * 4;
                    for (to, code) in to.iter_mut().zip(codes) {
                        *to = f32::from(code >> shift & 15) * scale + summand;
                    }
                }
            }),
            BlockType::Q5K => each(bytes, to, |b: &[u8; 176], to: &mut [f32; 256]| {
                let grain = SixBits::of(b);
                for (part, to) in to.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                    let (scale, summand) = grain.part(part);
                    let (fifth, codes) = (&b[16..48], &b[48 + part / 2 * 32..][..32]);
                    let shift = part % 2 * 4;
                    for ((to, code), fifth) in to.iter_mut().zip(codes).zip(fifth) {
                        *to = f32::from((code >> shift & 15) | (fifth >> part & 1) << 4) * scale + summand;
                    }
                }
            }),
            BlockType::Q6K => each(bytes, to, |b: &[u8; 210], to: &mut [f32; 256]| {
                let scale = half(&b[208..]);
                for (run, to) in to.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                    let scale = scale * f32::from(b[192 + run].cast_signed());
                    let (part, first) = (run / 2, run % 2 * 16);
                    let low = &b[part / 4 * 64 + part % 2 * 32 + first..][..16];
                    let high = &b[128 + part / 4 * 32 + first..][..16];
                    let shifts = (part % 4 / 2 * 4, part % 4 * 2);
                    for ((to, low), high) in to.iter_mut().zip(low).zip(high) {
                        let code = (low >> shifts.0 & 15) | (high >> shifts.1 & 3) << 4;
                        *to = (f32::from(code) - 32.0) * scale;
                    }
                }
            }),
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
    let blocks = bytes.as_chunks::<B>().0.iter().zip(to.as_chunks_mut::<N>().0);
    blocks.for_each(|(block, to)| decode(block, to));
}

/// The `float16` that `bytes` begin with.
#[inline(always)]
fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// Low halves of the bytes, then the high ones.
#[inline(always)]
fn nibbles(codes: &[u8], to: &mut [f32; 32], scale: f32, summand: f32) {
    let (low, high) = to.split_at_mut(16);
    for ((low, high), code) in low.iter_mut().zip(high).zip(codes) {
        *low = f32::from(code & 15) * scale + summand;
        *high = f32::from(code >> 4) * scale + summand;
    }
}

/// As [`nibbles`], with a fifth bit of each code in `fifth`.
#[inline(always)]
fn with_fifth(codes: &[u8], fifth: [u8; 4], to: &mut [f32; 32], scale: f32, summand: f32) {
    let fifth = u32::from_le_bytes(fifth);
    let (low, high) = to.split_at_mut(16);
    for (i, ((low, high), code)) in low.iter_mut().zip(high).zip(codes).enumerate() {
        let bit = |i: usize| (fifth >> i & 1) as u8 * 16;
        *low = f32::from(code & 15 | bit(i)) * scale + summand;
        *high = f32::from(code >> 4 | bit(i + 16)) * scale + summand;
    }
}

/// The scales and summands of a block of 256.
struct SixBits<'a> {
    scale: f32,
    summand: f32,
    packed: &'a [u8],
}

impl<'a> SixBits<'a> {
    #[inline(always)]
    fn of(block: &'a [u8]) -> Self {
        SixBits { scale: half(block), summand: half(&block[2..]), packed: &block[4..16] }
    }

    /// Those of 32 elements.
    #[inline(always)]
    fn part(&self, part: usize) -> (f32, f32) {
        let p = self.packed;
        let (scale, summand) = match part {
            0..4 => (p[part] & 63, p[part + 4] & 63),
            _ => (p[part + 4] & 15 | p[part - 4] >> 6 << 4, p[part + 4] >> 4 | p[part] >> 6 << 4),
        };
        (self.scale * f32::from(scale), -self.summand * f32::from(summand))
    }
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
    pub(super) fn check(&self, found: &TensorInfo) -> Result<(), OpError> {
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
