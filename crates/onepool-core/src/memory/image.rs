//! Images that lie in buffers: what a device prescribes, and where the texels are. Pure.
//!
//! An image is a view of a range of a buffer: rows of texels at a stride of [`ImageDesc::row_pitch`] bytes, so
//! its bytes can be read and written as a buffer too. Numbers come from the driver; nothing here knows one.

use crate::dtype::DType;

/// What one texel holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Texel {
    /// One `float16`.
    R16F,
    /// One `float32`.
    R32F,
    /// Four `float16`.
    Rgba16F,
    /// Four `float32`.
    Rgba32F,
}

impl Texel {
    /// Every kind.
    pub const ALL: [Texel; 4] = [Texel::R16F, Texel::R32F, Texel::Rgba16F, Texel::Rgba32F];

    /// The texel of `channels` elements of `dtype`, where there is one.
    pub fn of(dtype: DType, channels: usize) -> Option<Texel> {
        match (dtype, channels) {
            (DType::F16, 1) => Some(Texel::R16F),
            (DType::F32, 1) => Some(Texel::R32F),
            (DType::F16, 4) => Some(Texel::Rgba16F),
            (DType::F32, 4) => Some(Texel::Rgba32F),
            _ => None,
        }
    }

    /// Its size in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Texel::R16F => 2,
            Texel::R32F => 4,
            Texel::Rgba16F => 8,
            Texel::Rgba32F => 16,
        }
    }

    /// How many elements it holds.
    pub const fn channels(self) -> u32 {
        match self {
            Texel::R16F | Texel::R32F => 1,
            Texel::Rgba16F | Texel::Rgba32F => 4,
        }
    }
}

/// A set of kinds of texels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TexelSet(u8);

impl TexelSet {
    /// Every kind.
    pub const ALL: TexelSet = TexelSet(0b1111);

    /// The set without `texel`.
    pub const fn without(self, texel: Texel) -> TexelSet {
        TexelSet(self.0 & !(1 << texel as u8))
    }

    /// Whether `texel` is in the set.
    pub const fn contains(self, texel: Texel) -> bool {
        self.0 & (1 << texel as u8) != 0
    }
}

impl FromIterator<Texel> for TexelSet {
    fn from_iter<I: IntoIterator<Item = Texel>>(texels: I) -> Self {
        TexelSet(texels.into_iter().fold(0, |set, texel| set | (1 << texel as u8)))
    }
}

/// What a distance must be a multiple of. OpenCL counts in texels (`CL_DEVICE_IMAGE_PITCH_ALIGNMENT`), Vulkan's
/// drivers in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grain {
    /// So many bytes.
    Bytes(u64),
    /// So many texels.
    Texels(u64),
}

impl Grain {
    /// The multiple in bytes, for images of `texel`; never 0.
    pub const fn bytes(self, texel: Texel) -> u64 {
        let bytes = match self {
            Grain::Bytes(bytes) => bytes,
            Grain::Texels(texels) => texels.saturating_mul(texel.bytes()),
        };
        if bytes < texel.bytes() { texel.bytes() } else { bytes }
    }
}

/// What a device prescribes for images that lie in its buffers.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ImageRules {
    /// What the stride of rows is a multiple of.
    pub pitch: Grain,
    /// What the place of the first texel in the memory is a multiple of.
    pub base: Grain,
    /// What the number of rows that an image takes memory for is a multiple of.
    pub rows: u32,
    /// The widest image, in texels.
    pub max_width: u32,
    /// The highest image, in rows.
    pub max_height: u32,
    /// The most texels that rows take in all, what pads them included.
    pub max_texels: u64,
    /// Texels that kernels read.
    pub sampled: TexelSet,
    /// Texels that kernels write.
    pub stored: TexelSet,
    /// Texels between which the hardware interpolates.
    pub filtered: TexelSet,
    /// Bits of the weights it interpolates with (Vulkan: `subTexelPrecisionBits`).
    pub filter_bits: u32,
    /// Whether images may lie in memory that was imported, which several devices may share.
    pub over_imports: bool,
}

/// Why a tensor cannot be an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageRefusal {
    /// The device has no images in buffers.
    #[error("the device makes no images of buffers")]
    NoImages,
    /// The element type or the number of channels.
    #[error("the device has no images of {what}")]
    Texel {
        /// What was asked for.
        what: String,
    },
    /// It is too wide or too high, or empty.
    #[error(
        "{width} x {height} texels are beyond the device's images of 1 x 1 to {max_width} x {max_height}{}",
        if *.max_texels == u64::MAX { String::new() } else { format!(", {max_texels} in all") }
    )]
    Size {
        /// Texels of a row.
        width: u64,
        /// Rows.
        height: u64,
        /// The device's limit.
        max_width: u32,
        /// The device's limit.
        max_height: u32,
        /// The device's limit.
        max_texels: u64,
    },
}

/// An image in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct ImageDesc {
    /// What a texel holds.
    pub texel: Texel,
    /// Texels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Bytes from one row to the next.
    pub row_pitch: u64,
}

impl ImageDesc {
    /// Bytes of the texels of one row.
    pub fn row_bytes(&self) -> u64 {
        u64::from(self.width) * self.texel.bytes()
    }

    /// Whether its rows are contiguous, so that the bytes are those of the tensor.
    pub fn is_dense(&self) -> bool {
        self.row_pitch == self.row_bytes()
    }

    /// Bytes from the first texel to the end of the last.
    pub fn bytes(&self) -> u64 {
        self.row_pitch
            .saturating_mul(u64::from(self.height).saturating_sub(1))
            .saturating_add(self.row_bytes())
    }
}

impl ImageRules {
    /// An image of `width` times `height` texels.
    ///
    /// # Errors
    /// [`ImageRefusal`].
    pub fn describe(&self, texel: Texel, width: u64, height: u64) -> Result<ImageDesc, ImageRefusal> {
        if !self.sampled.contains(texel) && !self.stored.contains(texel) {
            return Err(ImageRefusal::Texel { what: format!("{texel:?} texels") });
        }
        let (max_width, max_height, max_texels) = (self.max_width, self.max_height, self.max_texels);
        let size = || ImageRefusal::Size { width, height, max_width, max_height, max_texels };
        let fit = |n: u64, most: u32| u32::try_from(n).ok().filter(|n| (1..=most).contains(n));
        let (w, h) = (fit(width, max_width).ok_or_else(size)?, fit(height, max_height).ok_or_else(size)?);
        let pitch =
            (width * texel.bytes()).checked_next_multiple_of(self.pitch.bytes(texel)).ok_or_else(size)?;
        let texels = (pitch / texel.bytes()).saturating_mul(height);
        if texels > max_texels {
            return Err(size());
        }
        Ok(ImageDesc { texel, width: w, height: h, row_pitch: pitch })
    }

    /// Bytes of memory that an image takes.
    pub fn memory_bytes(&self, image: &ImageDesc) -> u64 {
        let rows = u64::from(image.height).next_multiple_of(u64::from(self.rows.max(1)));
        image.row_pitch.saturating_mul(rows)
    }

    /// What the offset of `image` in its memory must be a multiple of.
    pub fn alignment(&self, image: &ImageDesc) -> u64 {
        self.base.bytes(image.texel)
    }
}

/// What lies between texels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Filter {
    /// The nearest texel.
    #[default]
    Nearest,
    /// A line between neighbours, along both axes, by the hardware's fixed-point weights.
    Linear,
}

/// How a kernel sees an image: places are counted in texels, and beyond the edge is the edge's texel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageView {
    /// The image.
    pub image: ImageDesc,
    /// What lies between its texels.
    pub filter: Filter,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(pitch: Grain) -> ImageRules {
        ImageRules {
            pitch,
            base: Grain::Bytes(64),
            rows: 4,
            max_width: 1000,
            max_height: 500,
            max_texels: u64::MAX,
            sampled: TexelSet::ALL,
            stored: TexelSet::default(),
            filtered: TexelSet::default(),
            filter_bits: 8,
            over_imports: false,
        }
    }

    #[test]
    fn rows_are_padded_as_the_driver_pads_them() {
        let rules = rules(Grain::Bytes(64));
        // What lavapipe answers for these sizes.
        for (width, height, pitch, bytes) in [(67, 5, 1088, 8704), (100, 10, 1600, 19_200), (1, 7, 64, 512)] {
            let image = rules.describe(Texel::Rgba32F, width, height).unwrap();
            assert_eq!((image.row_pitch, rules.memory_bytes(&image)), (pitch, bytes));
            assert_eq!(image.is_dense(), width == 100);
        }
    }

    #[test]
    fn a_pitch_in_texels_is_no_pitch_in_bytes() {
        let image = rules(Grain::Texels(64)).describe(Texel::Rgba16F, 65, 1).unwrap();
        assert_eq!((image.row_pitch, image.bytes()), (1024, 520));
        let image = rules(Grain::Bytes(64)).describe(Texel::Rgba16F, 65, 1).unwrap();
        assert_eq!(image.row_pitch, 576);
    }

    #[test]
    fn what_a_device_cannot_hold_is_refused() {
        let mut rules = rules(Grain::Bytes(1));
        let size = |w, h| matches!(rules.describe(Texel::R32F, w, h), Err(ImageRefusal::Size { .. }));
        assert!(size(0, 1) && size(1, 0) && size(1001, 1) && size(1, 501) && size(u64::MAX, 1));
        let few = ImageRules { max_texels: 12, ..rules.clone() };
        assert!(few.describe(Texel::R32F, 4, 3).is_ok());
        let refused = few.describe(Texel::R32F, 13, 1).unwrap_err();
        assert!(refused.to_string().contains("12 in all"), "{refused}");
        rules.sampled = [Texel::R32F].into_iter().collect();
        assert!(matches!(rules.describe(Texel::R16F, 1, 1), Err(ImageRefusal::Texel { .. })));
        assert!(rules.describe(Texel::R32F, 1, 1).is_ok());
    }

    proptest! {
        #[test]
        fn rows_never_overlap_and_memory_holds_them(
            width in 1u64..1000, height in 1u64..500, shift in 0u32..10, texels in any::<bool>(), kind in 0usize..4,
        ) {
            let grain = if texels { Grain::Texels(1 << shift) } else { Grain::Bytes(1 << shift) };
            let (rules, texel) = (rules(grain), Texel::ALL[kind]);
            let image = rules.describe(texel, width, height).unwrap();
            prop_assert!(image.row_pitch >= image.row_bytes());
            prop_assert_eq!(image.row_pitch % grain.bytes(texel), 0);
            prop_assert!(image.row_pitch - image.row_bytes() < grain.bytes(texel));
            prop_assert!(rules.memory_bytes(&image) >= image.bytes());
        }
    }
}
