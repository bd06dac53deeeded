//! How the codes and scales of each type lie in its blocks, read into vectors.

use super::blocks::{BlockType, half};
use crate::dot::{RowDot, halved};

/// Elements of A that share a scale.
pub(super) const BLOCK: usize = 32;
/// Those of a part.
pub(super) const BLOCKS: usize = Part::ELEMENTS / BLOCK;

/// Some elements of a row. A number is `(code - middle) * scale + summand`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// In the order of elements.
    pub(super) codes: [u8; Part::ELEMENTS],
    /// Of each run.
    pub(super) scales: [f32; Part::RUNS],
    pub(super) summands: [f32; Part::RUNS],
}

/// Evaluates a call with `$layout` as the layout of `$blocks`, where that has codes.
macro_rules! with_layout {
    ($blocks:expr, $layout:ident => $call:expr) => {
        with_layout!($blocks, $layout => $call; Q40 Q41 Q50 Q51 Q80 Q2K Q3K Q4K Q5K Q6K Iq4Nl Iq4Xs Mxfp4)
    };
    ($blocks:expr, $layout:ident => $call:expr; $($of:ident)*) => {
        match $blocks {
            BlockType::F32 | BlockType::F16 | BlockType::Bf16 => {}
            $(BlockType::$of => {
                type $layout = $of;
                $call
            })*
        }
    };
}
pub(super) use with_layout;

impl Part {
    /// Elements; every block divides them.
    pub(super) const ELEMENTS: usize = 256;
    /// Elements that share a scale, of any type.
    pub(super) const RUN: usize = 16;
    pub(super) const RUNS: usize = Part::ELEMENTS / Part::RUN;

    /// Reads at most [`Part::ELEMENTS`] elements in whole blocks. Elements that are not there get scales of zero. Only for
    /// types that have codes.
    #[inline(always)]
    pub(super) fn read<D: RowDot>(&mut self, dot: D, blocks: BlockType, bytes: &[u8]) {
        with_layout!(blocks, L => self.read_as::<D, L, _>(dot, bytes));
    }

    #[inline(always)]
    fn read_as<D: RowDot, L: Layout<N>, const N: usize>(&mut self, dot: D, bytes: &[u8]) {
        let mut whole = [0u8; N];
        let bytes = match bytes.first_chunk::<N>() {
            Some(bytes) => bytes,
            None => {
                whole[..bytes.len()].copy_from_slice(bytes);
                &whole
            }
        };
        let mut codes = [0u8; Part::ELEMENTS];
        for (v, to) in codes.chunks_exact_mut(4 * D::SUMS).enumerate() {
            dot.store_bytes(L::codes(dot, bytes, v), to);
        }
        for (i, run) in codes.as_chunks::<{ Part::RUN }>().0.iter().enumerate() {
            let to = if L::HALVED { halved(i, D::SUMS) } else { i };
            self.codes[to * Part::RUN..][..Part::RUN].copy_from_slice(run);
        }
        let (scales, summands) = (L::scales(dot, bytes), L::summands(dot, bytes));
        for i in 0..Part::RUNS {
            self.scales[i] = scales[i * Part::RUN / L::TYPE.group()];
            self.summands[i] = summands[i * Part::RUN / L::TYPE.summed()];
        }
    }
}

impl Default for Part {
    fn default() -> Self {
        Part { codes: [0; Part::ELEMENTS], scales: [0.0; Part::RUNS], summands: [0.0; Part::RUNS] }
    }
}

/// A type of which [`Part::ELEMENTS`] elements are `N` bytes.
pub(super) trait Layout<const N: usize> {
    /// The type.
    const TYPE: BlockType;
    /// Whether codes are in the order of [`halved`].
    const HALVED: bool = Self::TYPE.has_halves();

    /// Vector `v` of the codes, in the order of elements or that of [`halved`].
    fn codes<D: RowDot>(dot: D, part: &[u8; N], v: usize) -> D::Bytes;

    /// The scale of each group; zeros after the last one.
    fn scales<D: RowDot>(dot: D, part: &[u8; N]) -> [f32; 2 * Part::RUNS];

    /// The summand of each [`BlockType::summed`] elements; zeros after the last one.
    #[inline(always)]
    fn summands<D: RowDot>(_: D, _: &[u8; N]) -> [f32; Part::RUNS] {
        [0.0; Part::RUNS]
    }
}

/// The `float16` numbers that blocks begin with.
#[inline(always)]
fn halves<D: RowDot, const STRIDE: usize>(dot: D, blocks: &[u8]) -> [f32; BLOCKS] {
    let mut bits = [0u16; BLOCKS];
    for i in 0..BLOCKS {
        bits[i] = u16::from_le_bytes([blocks[i * STRIDE], blocks[i * STRIDE + 1]]);
    }
    dot.halves(bits)
}

/// Numbers of blocks, and zeros.
#[inline(always)]
fn padded<const N: usize>(numbers: [f32; BLOCKS]) -> [f32; N] {
    let mut all = [0.0; N];
    all[..BLOCKS].copy_from_slice(&numbers);
    all
}

/// Vector `v`, in the order of [`halved`], of the bits of elements, of which 32 have four bytes; further ones are `stride`
/// bytes after these.
#[inline(always)]
fn fifth_bits<D: RowDot>(dot: D, from: &[u8], stride: usize, v: usize) -> D::Bytes {
    let (blocks, mut bits) = (D::SUMS / 4, 0);
    for i in 0..blocks {
        let at = (v / 2 * blocks + i) * stride + v % 2 * 2;
        bits |= u64::from(u16::from_le_bytes([from[at], from[at + 1]])) << (16 * i);
    }
    dot.ones(bits)
}

/// What the codes of 4 bits of two types stand for, plus 128: numbers that are closer near zero.
const TABLE: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// Vector `v` of [`TABLE`]'s numbers, in the order of elements. 32 have 16 bytes, of which the low bits are those of the
/// first half; further ones are `stride` bytes after these.
#[inline(always)]
fn tabled<D: RowDot>(dot: D, from: &[u8], stride: usize, v: usize) -> D::Bytes {
    let mut codes = [0u8; 64];
    for (i, to) in codes.as_chunks_mut::<16>().0.iter_mut().take(D::SUMS / 4).enumerate() {
        let run = v * D::SUMS / 4 + i;
        for (to, byte) in to.iter_mut().zip(&from[run / 2 * stride..]) {
            *to = byte >> (run % 2 * 4) & 15;
        }
    }
    dot.look_up(dot.bytes(&codes), TABLE)
}

/// The scales and summands of a block of 256, of six bits for each 32 elements.
struct SixBits {
    /// What they are multiplied by.
    scale: f32,
    summand: f32,
    scales: [u8; 8],
    summands: [u8; 8],
}

impl SixBits {
    #[inline(always)]
    fn of(block: &[u8]) -> Self {
        let word = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
        let (a, b, c) = (word(4), word(8), word(12));
        // The first four are whole; of the others the highest two bits are those of the first ones.
        let (six, four, two) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x0303_0303);
        let (scales, summands) = (c & four | (a >> 6 & two) << 4, c >> 4 & four | (b >> 6 & two) << 4);
        let both = |first: u32, last: u32| (u64::from(last) << 32 | u64::from(first & six)).to_le_bytes();
        SixBits {
            scale: half(block),
            summand: half(&block[2..]),
            scales: both(a, scales),
            summands: both(b, summands),
        }
    }

    /// The scale of each 32 elements.
    #[inline(always)]
    fn scales(&self) -> [f32; 8] {
        let mut scales = [0.0; 8];
        for (to, scale) in scales.iter_mut().zip(self.scales) {
            *to = self.scale * f32::from(scale);
        }
        scales
    }

    /// The summand of each 32 elements.
    #[inline(always)]
    fn summands(&self) -> [f32; 8] {
        let mut summands = [0.0; 8];
        for (to, summand) in summands.iter_mut().zip(self.summands) {
            *to = -self.summand * f32::from(summand);
        }
        summands
    }
}

pub(super) struct Q40;

impl Layout<144> for Q40 {
    const TYPE: BlockType = BlockType::Q40;

    #[inline(always)]
    fn codes<D: RowDot>(dot: D, part: &[u8; 144], v: usize) -> D::Bytes {
        dot.split_halves(&part[2..], 18, v)
    }

    #[inline(always)]
    fn scales<D: RowDot>(dot: D, part: &[u8; 144]) -> [f32; 2 * Part::RUNS] {
        padded(halves::<D, 18>(dot, part))
    }
}

pub(super) struct Q41;

impl Layout<160> for Q41 {
    const TYPE: BlockType = BlockType::Q41;

    #[inline(always)]
    fn codes<D: RowDot>(dot: D, part: &[u8; 160], v: usize) -> D::Bytes {
        dot.split_halves(&part[4..], 20, v)
    }

    #[inline(always)]
    fn scales<D: RowDot>(dot: D, part: &[u8; 160]) -> [f32; 2 * Part::RUNS] {
        padded(halves::<D, 20>(dot, part))
    }

    #[inline(always)]
    fn summands<D: RowDot>(dot: D, part: &[u8; 160]) -> [f32; Part::RUNS] {
        padded(halves::<D, 20>(dot, &part[2..]))
    }
}

pub(super) struct Q50;

impl Layout<176> for Q50 {
    const TYPE: BlockType = BlockType::Q50;

    #[inline(always)]
    fn codes<D: RowDot>(dot: D, part: &[u8; 176], v: usize) -> D::Bytes {
        dot.join(dot.split_halves(&part[6..], 22, v), fifth_bits(dot, &part[2..], 22, v))
    }

    #[inline(always)]
    fn scales<D: RowDot>(dot: D, part: &[u8; 176]) -> [f32; 2 * Part::RUNS] {
        padded(halves::<D, 22>(dot, part))
    }
}

pub(super) struct Q51;

impl Layout<192> for Q51 {
    const TYPE: BlockType = BlockType::Q51;

    #[inline(always)]
    fn codes<D: RowDot>(dot: D, part: &[u8; 192], v: usize) -> D::Bytes {
        dot.join(dot.split_halves(&part[8..], 24, v), fifth_bits(dot, &part[4..], 24, v))
    }

    #[inline(always)]
    fn scales<D: RowDot>(dot: D, part: &[u8; 192]) -> [f32; 2 * Part::RUNS] {
        padded(halves::<D, 24>(dot, part))
    }

    #[inline(always)]
    fn summands<D: RowDot>(dot: D, part: &[u8; 192]) -> [f32; Part::RUNS] {
        padded(halves::<D, 24>(dot, &part[2..]))
    }
}

pub(super) struct Q80;

impl Layout<272> for Q80 {
    const TYPE: BlockType = BlockType::Q80;

    #[inline(always)]
    fn codes<D: RowDot>(dot: D, part: &[u8; 272], v: usize) -> D::Bytes {
        dot.flip(dot.split::<8, 32>(&part[2..], 34, v))
    }

    #[inline(always)]
    fn scales<D: RowDot>(dot: D, part: &[u8; 272]) -> [f32; 2 * Part::RUNS] {
        padded(halves::<D, 34>(dot, part))
    }
}

pub(super) struct Q2K;

impl Layout<84> for Q2K {
    const TYPE: BlockType = BlockType::Q2K;

    #[inline(always)]
    fn codes<D: RowDot>(dot: D, part: &[u8; 84], v: usize) -> D::Bytes {
        dot.split::<2, 32>(&part[16..80], 32, v)
    }

    #[inline(always)]
    fn scales<D: RowDot>(_: D, part: &[u8; 84]) -> [f32; 2 * Part::RUNS] {
        let (scale, mut scales) = (half(&part[80..]), [0.0; 2 * Part::RUNS]);
        for i in 0..Part::RUNS {
            scales[i] = scale * f32::from(part[i] & 15);
        }
        scales
    }

    #[inline(always)]
    fn summands<D: RowDot>(_: D, part: &[u8; 84]) -> [f32; Part::RUNS] {
        let (scale, mut summands) = (half(&part[82..]), [0.0; Part::RUNS]);
        for i in 0..Part::RUNS {
            summands[i] = -scale * f32::from(part[i] >> 4);
        }
        summands
    }
}

pub(super) struct Q3K;

impl Layout<110> for Q3K {
    const TYPE: BlockType = BlockType::Q3K;

    #[inline(always)]
    fn codes<D: RowDot>(dot: D, part: &[u8; 110], v: usize) -> D::Bytes {
        let high = dot.split::<1, 32>(&part[..32], 32, v);
        dot.join_two(dot.split::<2, 32>(&part[32..96], 32, v), high)
    }

    #[inline(always)]
    fn scales<D: RowDot>(_: D, part: &[u8; 110]) -> [f32; 2 * Part::RUNS] {
        let (scale, mut scales) = (half(&part[108..]), [0.0; 2 * Part::RUNS]);
        for i in 0..Part::RUNS {
            let low = part[96 + i % 8] >> (i / 8 * 4) & 15;
            let high = part[104 + i % 4] >> (i / 4 * 2) & 3;
            scales[i] = scale * (f32::from(low | high << 4) - 32.0);
        }
        scales
    }
}

pub(super) struct Q4K;

impl Layout<144> for Q4K {
    const TYPE: BlockType = BlockType::Q4K;

    #[inline(always)]
    fn codes<D: RowDot>(dot: D, part: &[u8; 144], v: usize) -> D::Bytes {
        dot.split::<4, 32>(&part[16..], 32, v)
    }

    #[inline(always)]
    fn scales<D: RowDot>(_: D, part: &[u8; 144]) -> [f32; 2 * Part::RUNS] {
        padded(SixBits::of(part).scales())
    }

    #[inline(always)]
    fn summands<D: RowDot>(_: D, part: &[u8; 144]) -> [f32; Part::RUNS] {
        padded(SixBits::of(part).summands())
    }
}

pub(super) struct Q5K;

impl Layout<176> for Q5K {
    const TYPE: BlockType = BlockType::Q5K;

    #[inline(always)]
    fn codes<D: RowDot>(dot: D, part: &[u8; 176], v: usize) -> D::Bytes {
        dot.join(dot.split::<4, 32>(&part[48..], 32, v), dot.split::<1, 32>(&part[16..48], 32, v))
    }

    #[inline(always)]
    fn scales<D: RowDot>(_: D, part: &[u8; 176]) -> [f32; 2 * Part::RUNS] {
        padded(SixBits::of(part).scales())
    }

    #[inline(always)]
    fn summands<D: RowDot>(_: D, part: &[u8; 176]) -> [f32; Part::RUNS] {
        padded(SixBits::of(part).summands())
    }
}

pub(super) struct Q6K;

impl Layout<210> for Q6K {
    const TYPE: BlockType = BlockType::Q6K;

    #[inline(always)]
    fn codes<D: RowDot>(dot: D, part: &[u8; 210], v: usize) -> D::Bytes {
        let high = dot.split::<2, 32>(&part[128..192], 32, v);
        dot.join(dot.split::<4, 64>(&part[..128], 64, v), high)
    }

    #[inline(always)]
    fn scales<D: RowDot>(_: D, part: &[u8; 210]) -> [f32; 2 * Part::RUNS] {
        let (scale, mut scales) = (half(&part[208..]), [0.0; 2 * Part::RUNS]);
        for i in 0..Part::RUNS {
            scales[i] = scale * f32::from(part[192 + i].cast_signed());
        }
        scales
    }
}

pub(super) struct Iq4Nl;

impl Layout<144> for Iq4Nl {
    const TYPE: BlockType = BlockType::Iq4Nl;

    #[inline(always)]
    fn codes<D: RowDot>(dot: D, part: &[u8; 144], v: usize) -> D::Bytes {
        tabled(dot, &part[2..], 18, v)
    }

    #[inline(always)]
    fn scales<D: RowDot>(dot: D, part: &[u8; 144]) -> [f32; 2 * Part::RUNS] {
        padded(halves::<D, 18>(dot, part))
    }
}

pub(super) struct Iq4Xs;

impl Layout<136> for Iq4Xs {
    const TYPE: BlockType = BlockType::Iq4Xs;

    #[inline(always)]
    fn codes<D: RowDot>(dot: D, part: &[u8; 136], v: usize) -> D::Bytes {
        tabled(dot, &part[8..], 16, v)
    }

    #[inline(always)]
    fn scales<D: RowDot>(_: D, part: &[u8; 136]) -> [f32; 2 * Part::RUNS] {
        let (scale, high) = (half(part), u16::from_le_bytes([part[2], part[3]]));
        let mut scales = [0.0; BLOCKS];
        for i in 0..BLOCKS {
            let low = part[4 + i / 2] >> (i % 2 * 4) & 15;
            let high = (high >> (2 * i) & 3) as u8;
            scales[i] = scale * (f32::from(low | high << 4) - 32.0);
        }
        padded(scales)
    }
}

/// Twice the numbers that the codes of [`Mxfp4`] stand for, plus 16.
const E2M1: [u8; 16] = [16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4];

pub(super) struct Mxfp4;

impl Layout<136> for Mxfp4 {
    const TYPE: BlockType = BlockType::Mxfp4;

    #[inline(always)]
    fn codes<D: RowDot>(dot: D, part: &[u8; 136], v: usize) -> D::Bytes {
        dot.look_up(dot.split_halves(&part[1..], 17, v), E2M1)
    }

    #[inline(always)]
    fn scales<D: RowDot>(_: D, part: &[u8; 136]) -> [f32; 2 * Part::RUNS] {
        let mut scales = [0.0; BLOCKS];
        for (i, to) in scales.iter_mut().enumerate() {
            // Half the power of two; the least two are below the normal numbers.
            let power = u32::from(part[17 * i]);
            *to = f32::from_bits(if power < 2 { 0x0020_0000 << power } else { (power - 1) << 23 });
        }
        padded(scales)
    }
}
