//! Convolutions of 3 by 3 taps by cooperative matrices that read a patch of the input once for all taps.

use super::{Plain, Target, product_params};
use crate::kernel::KernelId;
use crate::kernel::codes::conv_patch;
use crate::kernel::table::{spec, variants};
use crate::ops::{Lowering, OpError, Operand, WindowAxis};

/// The least input channels: those of a step that are not there are multiplied too.
const MIN_CHANNELS: usize = conv_patch::DEPTH / 2 + 1;
/// The least part of the elements of the tiles that are elements of the output.
const MIN_USED: [usize; 2] = [3, 4];

/// Output channels of a tile, and its rows of elements.
struct Tile {
    channels: usize,
    lines: usize,
}

/// The kernel of patches, and how it is run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patches {
    pub(super) kernel: KernelId,
    threads: u32,
    /// Patches, and tiles of output channels.
    groups: [usize; 2],
}

impl Plain {
    /// The tile for it, where its patches are worth that.
    fn patches(&self) -> Option<Tile> {
        let [d, h, w] = self.axes;
        let taps = |a: WindowAxis| a.kernel == 3 && a.stride == 1 && a.dilation == 1;
        let whole = self.is_plain() && self.y[0] == self.plane() && self.y_first == 0;
        if d != WindowAxis::UNIT || !taps(h) || !taps(w) || !whole || self.ic < MIN_CHANNELS {
            return None;
        }
        let channels = match self.oc {
            0..=16 => 16,
            17..=32 => 32,
            _ => 64,
        };
        let lines = if channels == 64 { conv_patch::LINES } else { conv_patch::MORE_LINES };
        let computed = h.output.next_multiple_of(lines) * w.output.next_multiple_of(conv_patch::ACROSS);
        (self.plane() * MIN_USED[1] >= computed * MIN_USED[0]).then_some(Tile { channels, lines })
    }
}

impl Target<'_> {
    /// The patches of `c` where the device can and they are worth it.
    pub(super) fn patches(&self, c: &Plain, lower: &Lowering<'_>) -> Option<Patches> {
        let Tile { channels, lines } = c.patches()?;
        let kernel = variants::ConvPatch { t: self.dtype, channels: channels as u32 }.id().ok()?;
        let threads = lower.matrix_threads(kernel, conv_patch::SUBS)?;
        let [_, h, w] = c.axes;
        let patches = h.output.div_ceil(lines) * w.output.div_ceil(conv_patch::ACROSS);
        let groups = [patches, c.oc.div_ceil(channels)];
        // Patches are large: few of them are slower than more work-groups that read the input for each tap.
        // So many need not share their depth out.
        let enough = groups[0] * groups[1] * c.batch * c.groups >= lower.processors();
        enough.then_some(Patches { kernel, threads, groups })
    }

    /// Emits `c` by patches.
    pub(super) fn in_patches(
        &self,
        c: &Plain,
        patches: Patches,
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        let Patches { kernel, threads, groups } = patches;
        let weights = self.channels_innermost(c, lower)?;
        let mut spec = self.large_tiles(c);
        spec.push((spec::conv_patch::LOCAL_SIZE_X, threads));
        let params = product_params(c, self.activation)?;
        let groups = [groups[0], groups[1], c.batch * c.groups].map(|g| g as u32);
        let args = [Operand::Input(0), weights, self.bias(), Operand::Output(0), self.summand_arg()];
        lower.dispatch(kernel, &spec, &args, &params, groups)
    }
}
