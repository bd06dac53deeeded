//! Convolutions of many elements on devices with fast workgroup memory: wide tiles, by cooperative matrices where
//! there are any.

use super::{Plain, Target, product_params};
use crate::kernel::KernelId;
use crate::kernel::codes::{conv_matrix, conv_wide};
use crate::kernel::table::{spec, variants};
use crate::ops::linalg::device::{Product, Source};
use crate::ops::pack::Pack;
use crate::ops::{Lowering, OpError, Operand};

/// Channels and elements of a wide tile.
const TILE: [usize; 2] = [conv_wide::TILE; 2];
/// Channels and elements of a tile of cooperative matrices, and of a small one.
const MATRIX_TILE: [usize; 2] = [conv_matrix::ROWS, conv_matrix::COLS];
const SMALL_TILE: [usize; 2] = [conv_matrix::SMALL_ROWS, conv_matrix::SMALL_COLS];
/// Fewer work-groups of wide tiles leave more of a large device idle than their speed is worth.
const MIN_GROUPS: usize = 64;
/// The least channels and elements that are worth a wide tile, and one of cooperative matrices.
const MIN_TILE: usize = 64;
const MIN_MATRIX: usize = 16;
/// The least input channels: those of one tap are summed in steps of 8, by cooperative matrices of 32.
const MIN_CHANNELS: [usize; 2] = [8, 16];

/// A kernel of wide tiles or of cooperative matrices, and its additional constants.
struct Wide {
    kernel: KernelId,
    local: Option<u32>,
    tile: [usize; 2],
}

impl Plain {
    pub(super) fn plane(&self) -> usize {
        self.axes.iter().map(|a| a.output).product()
    }

    /// Whether the elements of an output channel are contiguous.
    fn is_plain(&self) -> bool {
        let [d, h, w] = self.axes;
        // The distance along an axis of one element does not matter.
        (w.output == 1 || self.y[3] == 1)
            && (h.output == 1 || self.y[2] == w.output)
            && (d.output == 1 || self.y[1] == h.output * w.output)
    }

    /// Whether the elements of a channel of the output are contiguous, in whole quads.
    pub(super) fn has_whole_quads(&self) -> bool {
        self.is_plain() && [self.plane(), self.y[0], self.y_first].iter().all(|at| at.is_multiple_of(4))
    }
}

impl Target<'_> {
    /// Emits `c` if a kernel of wide tiles or of cooperative matrices fits, else nothing.
    pub(super) fn lower_wide(&self, c: &Plain, lower: &mut Lowering<'_>) -> Result<bool, OpError> {
        if let Some(product) = self.product(c)
            && product.lower_wide(lower)?
        {
            return Ok(true);
        }
        let wide = self.wide(c, lower);
        wide.map_or(Ok(false), |wide| self.wide_tiles(c, &wide, lower).map(|()| true))
    }

    /// `c` as products of the weights, where they lie, and the input, if it is that.
    fn product(&self, c: &Plain) -> Option<Product> {
        let plane = c.plane();
        let one_bias = !self.biased || c.groups == 1;
        let whole = c.is_plain() && c.y[0] == plane && c.y_first == 0;
        if !c.is_pointwise() || !c.has_plain_weights() || !whole || !one_bias {
            return None;
        }
        let source = |i: usize, matrices: usize, row: usize| Source {
            operand: Operand::Input(i),
            value: None,
            matrices,
            row,
            col: 1,
        };
        Some(Product {
            m: c.oc,
            n: plane,
            k: c.ic,
            pairs: (0..c.batch * c.groups).map(|i| (i % c.groups, i)).collect(),
            a: source(1, c.groups, c.ic),
            b: source(0, c.batch * c.groups, plane),
            c: self.biased.then(|| (self.bias(), [1, 0])),
            alpha: 1.0,
            beta: 1.0,
            activation: self.activation,
            dtype: self.dtype,
            y: Operand::Output(0),
            prepared: None,
        })
    }

    /// The kernel of wide tiles or of cooperative matrices for `c`, if one fits.
    fn wide(&self, c: &Plain, lower: &Lowering<'_>) -> Option<Wide> {
        let plane = c.plane();
        if c.axes.iter().any(|a| a.kernel == 0) {
            return None;
        }
        let groups = plane.div_ceil(TILE[1]) * c.oc.div_ceil(TILE[0]) * c.batch * c.groups;
        let least = c.oc.min(plane);
        let small = groups < MIN_GROUPS;
        if let Ok(kernel) = (variants::ConvMatrix { t: self.dtype, small }).id()
            && c.ic >= MIN_CHANNELS[1]
            && least >= MIN_MATRIX
            && let Some(threads) = lower.matrix_threads(kernel, conv_matrix::SUBS)
        {
            let tile = if small { SMALL_TILE } else { MATRIX_TILE };
            return Some(Wide { kernel, local: Some(threads), tile });
        }
        if least < MIN_TILE || c.ic < MIN_CHANNELS[0] || groups < MIN_GROUPS {
            return None;
        }
        let kernel = variants::ConvWide { t: self.dtype, out4: c.has_whole_quads() }.id().ok()?;
        lower.can_run(kernel).then_some(Wide { kernel, local: None, tile: TILE })
    }

    /// Emits `c`.
    fn wide_tiles(&self, c: &Plain, wide: &Wide, lower: &mut Lowering<'_>) -> Result<(), OpError> {
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
        let weights = pack.weights(self.cx, lower)?;
        let (code, _) = self.activation.code();
        let mut spec = vec![
            (spec::large_tiles::PLAIN, u32::from(c.is_plain())),
            (spec::large_tiles::BIASED, u32::from(self.biased)),
            (spec::large_tiles::ACTIVATION, code),
        ];
        spec.extend(wide.local.map(|threads| (spec::conv_matrix::LOCAL_SIZE_X, threads)));
        let params = product_params(c, self.activation)?;
        let [channels, elements] = wide.tile;
        let groups =
            [c.plane().div_ceil(elements), c.oc.div_ceil(channels), c.batch * c.groups].map(|g| g as u32);
        let args = [Operand::Input(0), weights, self.bias(), Operand::Output(0)];
        lower.dispatch(wide.kernel, &spec, &args, &params, groups)
    }
}
