//! Convolutions of 3 by 3 taps by cooperative matrices that read a patch of the input once for all taps.

use super::{Plain, Target, product_params};
use crate::backend::DeviceKind;
use crate::kernel::KernelId;
use crate::kernel::codes::conv_patch;
use crate::kernel::table::{spec, variants};
use crate::ops::{Lowering, OpError, Operand, WindowAxis};

/// The least input channels: those of a step that are not there are multiplied too.
const MIN_CHANNELS: usize = 9;
/// The least part of the elements of the tiles that are elements of the output.
const MIN_USED: [usize; 2] = [3, 4];
/// Work-groups for each processor of a card, as fractions, measured on an H100. With fewer, work-groups that read the input for
/// each tap are faster: there are more of them, which share sums out.
const LEAST_OF_CARD: [usize; 2] = [3, 7];
/// The same elsewhere, where processors are few: none should have much more than another.
const LEAST: [usize; 2] = [3, 2];
/// With so many, tiles of 64 channels are faster than those of 32.
const MANY_WIDE: [usize; 2] = [3, 2];
/// With so many, steps of 16 input channels are faster than those of 32: more of the work-groups share a processor.
const MANY: [usize; 2] = [9, 4];
/// Input channels that are summed so soon that twice the work-groups are worth reading the input twice.
const FEW_CHANNELS: usize = 16;

/// Output channels of a tile, and input channels that a step sums.
type Tile = (u32, u32);
const NARROW: Tile = (16, 16);
const DEEP: Tile = (32, 32);
const MIDDLE: Tile = (32, 16);
const WIDE: Tile = (64, 16);

/// The kernel of patches, and how it is run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patches {
    pub(super) kernel: KernelId,
    threads: u32,
    /// Patches, and tiles of output channels.
    groups: [usize; 2],
}

impl Plain {
    /// Whether the taps are those of patches, and the patches worth it.
    fn has_patches(&self) -> bool {
        let [d, h, w] = self.axes;
        let taps = |a: WindowAxis| a.kernel == 3 && a.stride == 1 && a.dilation == 1;
        let whole = self.is_plain() && self.y[0] == self.plane() && self.y_first == 0;
        if d != WindowAxis::UNIT || !taps(h) || !taps(w) || !whole || self.ic < MIN_CHANNELS {
            return false;
        }
        let computed =
            h.output.next_multiple_of(conv_patch::LINES) * w.output.next_multiple_of(conv_patch::ACROSS);
        self.plane() * MIN_USED[1] >= computed * MIN_USED[0]
    }

    /// Patches, and tiles of so many output channels.
    fn patch_groups(&self, channels: u32) -> [usize; 2] {
        let [_, h, w] = self.axes;
        let patches = h.output.div_ceil(conv_patch::LINES) * w.output.div_ceil(conv_patch::ACROSS);
        [patches, self.oc.div_ceil(channels as usize)]
    }

    /// The tile for a device of so many processors; `None` where it has too few patches to keep them busy.
    fn patch_tile(&self, kind: DeviceKind, processors: usize) -> Option<Tile> {
        let least = if kind == DeviceKind::Discrete { LEAST_OF_CARD } else { LEAST };
        let count = |channels: u32| -> usize {
            self.patch_groups(channels).iter().product::<usize>() * self.batch * self.groups
        };
        let reaches = |channels: u32, [part, whole]: [usize; 2]| count(channels) * whole >= processors * part;
        if self.oc <= 16 || (self.ic <= FEW_CHANNELS && !reaches(32, least)) {
            return reaches(16, least).then_some(NARROW);
        }
        if !reaches(32, least) {
            return None;
        }
        if self.oc > 32 && reaches(64, MANY_WIDE) {
            return Some(WIDE);
        }
        // A last step of no more than half its channels wastes as many.
        let half_empty = (1..=16).contains(&(self.ic % 32));
        Some(if half_empty || reaches(32, MANY) { MIDDLE } else { DEEP })
    }
}

impl Target<'_> {
    /// The patches of `c` where the device can and they are worth it.
    pub(super) fn patches(&self, c: &Plain, lower: &Lowering<'_>) -> Option<Patches> {
        let tile =
            c.has_patches().then(|| c.patch_tile(lower.device().kind, lower.processors())).flatten()?;
        self.patches_of(c, tile, lower)
    }

    /// The patches of `c` by each tile, where the device can.
    pub(super) fn all_patches(&self, c: &Plain, lower: &Lowering<'_>) -> Vec<Patches> {
        // Wider tiles would waste half of their channels.
        let tiles = [NARROW, DEEP, MIDDLE, WIDE]
            .into_iter()
            .filter(|(channels, _)| c.has_patches() && c.oc > *channels as usize / 2);
        tiles.filter_map(|tile| self.patches_of(c, tile, lower)).collect()
    }

    fn patches_of(&self, c: &Plain, (channels, depth): Tile, lower: &Lowering<'_>) -> Option<Patches> {
        let kernel = variants::ConvPatch { t: self.dtype, channels, depth }.id().ok()?;
        let threads = lower.matrix_threads(kernel, conv_patch::SUBS)?;
        Some(Patches { kernel, threads, groups: c.patch_groups(channels) })
    }

    /// Emits `c` by patches.
    pub(super) fn in_patches(
        &self,
        c: &Plain,
        patches: Patches,
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        let Patches { kernel, threads, groups } = patches;
        let weights = self.channels_innermost(c, 8, lower)?;
        let mut spec = self.large_tiles(c);
        spec.push((spec::conv_patch::LOCAL_SIZE_X, threads));
        let params = product_params(c, self.activation)?;
        let groups = [groups[0], groups[1], c.batch * c.groups].map(|g| g as u32);
        let args = [Operand::Input(0), weights, self.bias(), Operand::Output(0), self.summand_arg()];
        lower.dispatch(kernel, &spec, &args, &params, groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A convolution of images of `side` by `side` with 3 by 3 taps.
    fn conv(ic: usize, oc: usize, side: usize) -> Plain {
        let axis = WindowAxis { input: side, output: side, kernel: 3, stride: 1, dilation: 1, pads: [1, 1] };
        let plane = side * side;
        Plain {
            batch: 1,
            groups: 1,
            ic,
            oc,
            axes: [WindowAxis::UNIT, axis, axis],
            y: [plane, plane, side, 1],
            y_first: 0,
            first: 0,
            strides: [0, 9 * ic as i64, 9],
            taps: [9, 3, 1],
        }
    }

    #[test]
    fn tiles_are_those_that_were_measured_as_the_fastest() {
        let tile = |ic, oc, side| conv(ic, oc, side).patch_tile(DeviceKind::Discrete, 132);
        // Many wide tiles; some, each of which has more to sum in a step; a last step that were half empty.
        assert_eq!(tile(256, 256, 112), Some((64, 16)));
        assert_eq!(tile(512, 512, 56), Some((64, 16)));
        assert_eq!(tile(64, 64, 128), Some((32, 32)));
        assert_eq!(tile(128, 128, 64), Some((32, 32)));
        assert_eq!(tile(48, 48, 80), Some((32, 16)));
        // So many that several share a processor.
        assert_eq!(tile(32, 32, 256), Some((32, 16)));
        assert_eq!(tile(24, 24, 200), Some((32, 16)));
        assert_eq!(tile(16, 16, 512), Some((16, 16)));
        assert_eq!(tile(16, 64, 55), Some((16, 16)));
        // Too few.
        assert_eq!([tile(256, 256, 14), tile(64, 64, 56), tile(128, 12, 40)], [None; 3]);
        let tile = |ic, oc, side| conv(ic, oc, side).patch_tile(DeviceKind::Integrated, 12);
        assert_eq!([tile(64, 64, 56), tile(128, 128, 28)], [Some((64, 16)), Some((32, 16))]);
        assert_eq!(tile(256, 256, 14), None);
    }

    #[test]
    fn patches_are_of_windows_that_fill_them() {
        assert!(conv(9, 16, 112).has_patches());
        // Few channels, a row of which most lies beyond the image, and other windows.
        assert!(!conv(8, 16, 112).has_patches());
        assert!(!conv(64, 64, 7).has_patches());
        let strided = conv(64, 64, 112);
        let axes = strided.axes.map(|axis| WindowAxis { stride: 2, ..axis });
        assert!(!Plain { axes, ..strided }.has_patches());
    }
}
