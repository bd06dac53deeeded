//! Convolutions of many elements on devices with fast workgroup memory: wide tiles, by cooperative matrices where
//! there are any.

use super::super::pack::Pack;
use super::{Plain, Target, product_params};
use crate::dtype::DType;
use crate::kernel::KernelId;
use crate::kernel::table::{id, spec};
use crate::ops::{Lowering, OpError, Operand};

/// Channels and elements of the tile of a work-group.
const TILE: usize = 128;
/// Fewer work-groups of wide tiles leave more of a large device idle than their speed is worth.
const MIN_GROUPS: usize = 64;
/// The least channels and elements that are worth a wide tile.
const MIN_TILE: usize = 64;
/// The least input channels: those of one tap are summed in steps of 8, by cooperative matrices of 32.
const MIN_CHANNELS: [usize; 2] = [8, 16];

/// A kernel of wide tiles and its constants beside those that all have.
pub(super) struct Wide {
    kernel: KernelId,
    local: Option<u32>,
}

impl Plain {
    fn plane(&self) -> usize {
        self.axes.iter().map(|a| a.output).product()
    }

    /// Whether the elements of an output channel lie one behind the other.
    fn is_plain(&self) -> bool {
        let [d, h, w] = self.axes;
        // The distance along an axis of one element does not matter.
        (w.output == 1 || self.y[3] == 1)
            && (h.output == 1 || self.y[2] == w.output)
            && (d.output == 1 || self.y[1] == h.output * w.output)
    }
}

impl Target<'_> {
    /// The kernel of wide tiles for `c`, if one fits.
    pub(super) fn wide(&self, c: &Plain, lower: &Lowering<'_>) -> Option<Wide> {
        let plane = c.plane();
        if c.oc < MIN_TILE || plane < MIN_TILE || c.axes.iter().any(|a| a.kernel == 0) {
            return None;
        }
        if self.dtype == DType::F16
            && c.ic >= MIN_CHANNELS[1]
            && let Some(threads) = lower.matrix_threads(id::CONV_MATRIX_F16)
        {
            return Some(Wide { kernel: id::CONV_MATRIX_F16, local: Some(threads) });
        }
        let groups = plane.div_ceil(TILE) * c.oc.div_ceil(TILE) * c.batch * c.groups;
        if c.ic < MIN_CHANNELS[0] || groups < MIN_GROUPS {
            return None;
        }
        let quads =
            c.is_plain() && [plane, c.y[0], c.y_first].iter().all(|distance| distance.is_multiple_of(4));
        let kernel = match (self.dtype, quads) {
            (DType::F16, false) => id::CONV_WIDE_F16,
            (DType::F16, true) => id::CONV_WIDE_F16X4,
            (_, false) => id::CONV_WIDE_F32,
            (_, true) => id::CONV_WIDE_F32X4,
        };
        lower.can_run(kernel).then_some(Wide { kernel, local: None })
    }

    /// Emits `c`.
    pub(super) fn wide_tiles(&self, c: &Plain, wide: &Wide, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let pack = self.pack(c, c.oc.next_multiple_of(4));
        // Channels innermost: the layout's four axes in another order.
        let [kd, kh, kw] = pack.taps;
        let [sd, sh, sw] = pack.tap_strides;
        let pack = Pack {
            ic: kd,
            ic_stride: sd,
            taps: [kh, kw, c.ic],
            tap_strides: [sh, sw, pack.ic_stride],
            ..pack
        };
        let weights = pack.emit(self.cx, lower)?;
        let (code, _) = self.activation.code();
        // One numbering of constants for both.
        let mut spec = vec![
            (spec::conv_wide::PLAIN, u32::from(c.is_plain())),
            (spec::conv_wide::BIASED, u32::from(self.biased)),
            (spec::conv_wide::ACTIVATION, code),
        ];
        spec.extend(wide.local.map(|threads| (spec::conv_matrix::LOCAL_SIZE_X, threads)));
        let params = product_params(c, self.activation);
        let groups = [c.plane().div_ceil(TILE), c.oc.div_ceil(TILE), c.batch * c.groups].map(|g| g as u32);
        let args = [Operand::Input(0), weights, self.bias(), Operand::Output(0)];
        lower.dispatch(wide.kernel, &spec, &args, &params, groups)
    }
}
