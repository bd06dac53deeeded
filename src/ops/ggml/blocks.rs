//! ggml's blocks: their sizes, and the numbers that their bytes stand for.

use half::{bf16, f16};

use crate::graph::TensorInfo;
pub use crate::kernel::codes::blocks::BlockType;
use crate::ops::OpError;
use crate::ops::halves::Half;
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

    /// Whether a block is codes that share scales.
    pub(super) const fn has_codes(self) -> bool {
        !matches!(self, BlockType::F32 | BlockType::F16 | BlockType::Bf16)
    }

    /// The bits of a code.
    pub(super) const fn bits(self) -> u32 {
        match self {
            BlockType::Q40 | BlockType::Q41 | BlockType::Q4K => 4,
            BlockType::Q50 | BlockType::Q51 | BlockType::Q5K => 5,
            BlockType::Q6K => 6,
            _ => 8,
        }
    }

    /// The code that stands for zero, where there are no summands.
    pub(super) const fn middle(self) -> u8 {
        match self {
            BlockType::Q40 | BlockType::Q50 | BlockType::Q6K | BlockType::Q80 => 1 << (self.bits() - 1),
            _ => 0,
        }
    }

    /// Whether numbers have summands.
    pub(super) const fn has_summands(self) -> bool {
        matches!(self, BlockType::Q41 | BlockType::Q51 | BlockType::Q4K | BlockType::Q5K)
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
                    self.read(bytes, &mut part);
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

    /// Reads the codes of at most [`Part::ELEMENTS`] elements in whole blocks. Elements that are not there get scales
    /// of zero. Only for types that have codes.
    #[inline(always)]
    pub(super) fn read(self, bytes: &[u8], to: &mut Part) {
        let runs = bytes.len() / self.bytes() * self.elements() / Part::RUN;
        if let (Some(scales), Some(summands)) = (to.scales.get_mut(runs..), to.summands.get_mut(runs..)) {
            scales.fill(0.0);
            summands.fill(0.0);
        }
        match self {
            BlockType::F32 | BlockType::F16 | BlockType::Bf16 => {}
            BlockType::Q40 => to.blocks(bytes, |b: &[u8; 18], codes| {
                nibbles(&b[2..], codes);
                [half(b), 0.0]
            }),
            BlockType::Q41 => to.blocks(bytes, |b: &[u8; 20], codes| {
                nibbles(&b[4..], codes);
                [half(b), half(&b[2..])]
            }),
            BlockType::Q50 => to.blocks(bytes, |b: &[u8; 22], codes| {
                nibbles(&b[6..], codes);
                add_fifth(&b[2..6], codes);
                [half(b), 0.0]
            }),
            BlockType::Q51 => to.blocks(bytes, |b: &[u8; 24], codes| {
                nibbles(&b[8..], codes);
                add_fifth(&b[4..8], codes);
                [half(b), half(&b[2..])]
            }),
            BlockType::Q80 => to.blocks(bytes, |b: &[u8; 34], codes| {
                by_words(codes, [&b[2..], &b[2..]], |[word, _]| word ^ ONES << 7);
                [half(b), 0.0]
            }),
            BlockType::Q4K => {
                let Some(b) = bytes.first_chunk::<144>() else { return };
                to.six_bits(b);
                for (to, b) in to.codes.as_chunks_mut::<64>().0.iter_mut().zip(b[16..].as_chunks::<32>().0) {
                    by_words(&mut to[..32], [b, b], |[word, _]| word & (15 * ONES));
                    by_words(&mut to[32..], [b, b], |[word, _]| (word >> 4) & (15 * ONES));
                }
            }
            BlockType::Q5K => {
                let Some(b) = bytes.first_chunk::<176>() else { return };
                to.six_bits(b);
                let (fifth, codes) = (&b[16..48], b[48..].as_chunks::<32>().0);
                for (pair, (to, b)) in to.codes.as_chunks_mut::<64>().0.iter_mut().zip(codes).enumerate() {
                    let bit = |word: u64, of: usize| (word >> (2 * pair + of) & ONES) << 4;
                    by_words(&mut to[..32], [b, fifth], |[word, fifth]| word & (15 * ONES) | bit(fifth, 0));
                    by_words(&mut to[32..], [b, fifth], |[word, fifth]| {
                        (word >> 4) & (15 * ONES) | bit(fifth, 1)
                    });
                }
            }
            BlockType::Q6K => {
                let Some(b) = bytes.first_chunk::<210>() else { return };
                let scale = half(&b[208..]);
                for (to, part) in to.scales.iter_mut().zip(&b[192..208]) {
                    *to = scale * f32::from(part.cast_signed());
                }
                to.summands = [0.0; Part::RUNS];
                let (low, high) = (b[..128].as_chunks::<64>().0, b[128..192].as_chunks::<32>().0);
                for ((to, low), high) in to.codes.as_chunks_mut::<128>().0.iter_mut().zip(low).zip(high) {
                    for (part, to) in to.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                        let (low, shifts) = (&low[part % 2 * 32..][..32], (part / 2 * 4, part * 2));
                        by_words(to, [low, high], |[low, high]| {
                            (low >> shifts.0) & (15 * ONES) | ((high >> shifts.1) & (3 * ONES)) << 4
                        });
                    }
                }
            }
        }
    }
}

/// The codes of some elements of a row. A number is `(code - middle) * scale + summand`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) codes: [u8; Part::ELEMENTS],
    /// Of each run.
    pub(super) scales: [f32; Part::RUNS],
    pub(super) summands: [f32; Part::RUNS],
}

impl Part {
    /// Elements; every block divides them.
    pub(super) const ELEMENTS: usize = 256;
    /// Elements that share a scale, of any type.
    pub(super) const RUN: usize = 16;
    pub(super) const RUNS: usize = Part::ELEMENTS / Part::RUN;
}

impl Part {
    /// Reads blocks of 32 elements: `read` writes the codes and returns scale and summand.
    #[inline(always)]
    fn blocks<const N: usize>(&mut self, bytes: &[u8], read: impl Fn(&[u8; N], &mut [u8; 32]) -> [f32; 2]) {
        let grains = self.scales.as_chunks_mut::<2>().0.iter_mut().zip(self.summands.as_chunks_mut::<2>().0);
        let to = self.codes.as_chunks_mut::<32>().0.iter_mut().zip(grains);
        for (bytes, (codes, (scales, summands))) in bytes.as_chunks::<N>().0.iter().zip(to) {
            let [scale, summand] = read(bytes, codes);
            (*scales, *summands) = ([scale; 2], [summand; 2]);
        }
    }

    /// Reads the scales and summands of a block of 256, which `bytes` begin with.
    #[inline(always)]
    fn six_bits(&mut self, bytes: &[u8]) {
        let grain = SixBits::of(bytes);
        let grains = self.scales.as_chunks_mut::<2>().0.iter_mut().zip(self.summands.as_chunks_mut::<2>().0);
        for (part, (scales, summands)) in grains.enumerate() {
            let (scale, summand) = grain.part(part);
            (*scales, *summands) = ([scale; 2], [summand; 2]);
        }
    }
}

impl Default for Part {
    fn default() -> Self {
        Part { codes: [0; Part::ELEMENTS], scales: [0.0; Part::RUNS], summands: [0.0; Part::RUNS] }
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
fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).widen()
}

/// A one in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// Writes words of eight bytes that follow from those of both in `from`: compilers do not make vectors of such loops over
/// bytes.
#[inline(always)]
fn by_words(to: &mut [u8], from: [&[u8]; 2], f: impl Fn([u64; 2]) -> u64) {
    let [a, b] = from.map(|from| from.as_chunks::<8>().0);
    for ((to, a), b) in to.as_chunks_mut::<8>().0.iter_mut().zip(a).zip(b) {
        *to = f([u64::from_le_bytes(*a), u64::from_le_bytes(*b)]).to_le_bytes();
    }
}

/// The low halves of 16 bytes as the first codes, the high ones as the others.
#[inline(always)]
fn nibbles(bytes: &[u8], to: &mut [u8; 32]) {
    let (low, high) = to.split_at_mut(16);
    by_words(low, [bytes, bytes], |[word, _]| word & (15 * ONES));
    by_words(high, [bytes, bytes], |[word, _]| (word >> 4) & (15 * ONES));
}

/// Adds a fifth bit to each code, from 4 bytes.
#[inline(always)]
fn add_fifth(bits: &[u8], to: &mut [u8; 32]) {
    for (to, bits) in to.as_chunks_mut::<8>().0.iter_mut().zip(bits) {
        // Bit `i` in byte `i`; a carry makes it the highest.
        let spread = (u64::from(*bits) * ONES) & 0x8040_2010_0804_0201;
        let fifth = (spread + 0x7f * ONES) >> 7 & ONES;
        *to = (u64::from_le_bytes(*to) | fifth << 4).to_le_bytes();
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
