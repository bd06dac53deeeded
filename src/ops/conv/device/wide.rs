//! Convolutions of many elements on devices with fast workgroup memory: wide tiles, by cooperative matrices where
//! there are any.

use super::{Plain, Target, Tiles};
use crate::backend::DeviceKind;
use crate::kernel::KernelId;
use crate::kernel::codes::{conv_matrix, conv_wide};
use crate::kernel::table::{spec, variants};
use crate::ops::linalg::device::wide::{enough, wastes};
use crate::ops::linalg::device::{Product, Source, VECTOR_ROWS};
use crate::ops::pack::Pack;
use crate::ops::{Lowering, OpError, Operand};

/// Channels and elements of a wide tile.
const TILE: [usize; 2] = [conv_wide::TILE; 2];
/// Channels and elements of a tile of cooperative matrices, and of a small one.
const MATRIX_TILE: [usize; 2] = [conv_matrix::ROWS, conv_matrix::COLS];
const SMALL_TILE: [usize; 2] = [conv_matrix::SMALL_ROWS, conv_matrix::SMALL_COLS];
/// The least channels and elements that are worth a wide tile, and one of cooperative matrices.
const MIN_TILE: usize = 64;
const MIN_MATRIX: usize = 16;
/// The least input channels: those of one tap are summed in steps of 8, by cooperative matrices of 32.
const MIN_CHANNELS: [usize; 2] = [8, 16];

/// Multiply-adds for each processor of a card from which large tiles are faster however few they are: parts of their sums keep
/// the processors busy. Measured on an H100.
const MUCH: usize = 5 << 20;

/// A kernel of wide tiles or of cooperative matrices, and its additional constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wide {
    pub(super) kernel: KernelId,
    local: Option<u32>,
    tile: [usize; 2],
    /// Input channels that a step sums.
    depth: usize,
}

impl Plain {
    pub(super) fn plane(&self) -> usize {
        self.axes.iter().map(|a| a.output).product()
    }

    /// Products that an element of the output sums.
    pub(super) fn depth(&self) -> usize {
        self.ic * self.axes.iter().map(|a| a.kernel).product::<usize>()
    }

    /// Whether the output has all elements of its tensor, in their order.
    pub(super) fn is_whole(&self) -> bool {
        self.is_plain() && self.y[0] == self.plane() && self.y_first == 0
    }

    /// Whether an element of the output has any taps at all.
    fn has_taps(&self) -> bool {
        self.axes.iter().all(|a| a.kernel > 0)
    }

    /// Whether the elements of an output channel are contiguous.
    pub(super) fn is_plain(&self) -> bool {
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
    /// `c` as products of the weights, where they lie, and the input, if it is that.
    pub(super) fn product(&self, c: &Plain) -> Option<Product> {
        let plane = c.plane();
        let one_bias = !self.biased || c.groups == 1;
        // Products know no slopes, and their kernels for few rows or columns take no summand.
        if self.sloped || self.summed && c.oc.min(plane) <= VECTOR_ROWS {
            return None;
        }
        if !c.is_pointwise() || !c.has_plain_weights() || !c.is_whole() || !one_bias {
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
            c: self.biased.then(|| (self.bias(), [1, 0])),
            summand: self.summand(),
            activation: self.activation,
            ..Product::new(
                [c.oc, plane, c.ic],
                (0..c.batch * c.groups).map(|i| (i % c.groups, i)).collect(),
                [source(1, c.groups, c.ic), source(0, c.batch * c.groups, plane)],
                self.dtype,
                Operand::Output(0),
            )
        })
    }

    /// The kernel of cooperative matrices for `c`, of small tiles or of large ones, if the device has one.
    fn matrix(&self, c: &Plain, small: bool, lower: &Lowering<'_>) -> Option<Wide> {
        let kernel = variants::ConvMatrix { t: self.dtype, small }.id().ok()?;
        if !c.has_taps() || c.ic < MIN_CHANNELS[1] || c.oc.min(c.plane()) < MIN_MATRIX {
            return None;
        }
        let subs = if small { conv_matrix::SMALL_SUBS } else { conv_matrix::SUBS };
        let threads = lower.matrix_threads(kernel, subs)?;
        let (tile, depth) =
            if small { (SMALL_TILE, conv_matrix::SMALL_DEPTH) } else { (MATRIX_TILE, conv_matrix::DEPTH) };
        Some(Wide { kernel, local: Some(threads), tile, depth })
    }

    /// The kernel of wide tiles for `c`, if the device has one.
    fn plain_wide(&self, c: &Plain, lower: &Lowering<'_>) -> Option<Wide> {
        let kernel = variants::ConvWide { t: self.dtype, out4: c.has_whole_quads() }.id().ok()?;
        let fits = c.has_taps() && c.ic >= MIN_CHANNELS[0] && lower.can_run(kernel);
        fits.then_some(Wide { kernel, local: None, tile: TILE, depth: conv_wide::DEPTH })
    }

    /// The kernel of wide tiles or of cooperative matrices for `c`, if one fits.
    pub(super) fn wide(&self, c: &Plain, lower: &Lowering<'_>) -> Option<Wide> {
        let plane = c.plane();
        let groups = plane.div_ceil(TILE[1]) * c.oc.div_ceil(TILE[0]) * c.batch * c.groups;
        let products = (c.oc * plane * c.batch * c.groups).saturating_mul(c.depth());
        let much = lower.device().kind == DeviceKind::Discrete && products / lower.processors() >= MUCH;
        let few = lower.few_wide(groups) && !much;
        let sizes = ([c.oc, plane, c.batch * c.groups], if c.is_whole() { c.depth() } else { 0 });
        let fits = c.oc.min(plane) >= MIN_TILE
            && !wastes(TILE[0], [c.oc, plane])
            && enough(lower, TILE[0], sizes, conv_wide::DEPTH);
        self.matrix(c, few, lower).or_else(|| self.plain_wide(c, lower).filter(|_| fits))
    }

    /// The same kernels, whatever the number of work-groups: those of fewer than this many channels or elements waste
    /// most of their tiles.
    pub(super) fn all_wide(&self, c: &Plain, lower: &Lowering<'_>) -> Vec<Wide> {
        if c.oc.min(c.plane()) < MIN_MATRIX {
            return Vec::new();
        }
        let matrices = [false, true].map(|small| self.matrix(c, small, lower));
        matrices.into_iter().chain([self.plain_wide(c, lower)]).flatten().collect()
    }

    /// Emits `c`.
    pub(super) fn wide_tiles(&self, c: &Plain, wide: &Wide, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let weights = self.channels_innermost(c, 4, lower)?;
        let mut spec = self.large_tiles(c);
        spec.extend(wide.local.map(|threads| (spec::conv_matrix::LOCAL_SIZE_X, threads)));
        let [channels, elements] = wide.tile;
        let groups = [c.plane().div_ceil(elements), c.oc.div_ceil(channels)];
        let taps: usize = c.axes.iter().map(|a| a.kernel).product();
        let steps = taps * c.ic.div_ceil(wide.depth);
        self.shared_out(c, Tiles { kernel: wide.kernel, spec, groups, steps, weights }, lower)
    }

    /// The constants of all kernels of large tiles.
    pub(super) fn large_tiles(&self, c: &Plain) -> Vec<(u32, u32)> {
        let (code, _) = self.activation.code();
        vec![
            (spec::large_tiles::PLAIN, u32::from(c.is_plain())),
            (spec::large_tiles::BIASED, self.biased_code()),
            (spec::large_tiles::ACTIVATION, code),
            self.summed_constant(),
        ]
    }

    /// The weights as `[group][kd][kh][kw][ic][channels]`, channels rounded up to a multiple.
    pub(super) fn channels_innermost(
        &self,
        c: &Plain,
        multiple: usize,
        lower: &mut Lowering<'_>,
    ) -> Result<Operand, OpError> {
        let pack = self.pack(c, c.oc.next_multiple_of(multiple));
        // The layout's four axes in another order.
        let [kd, kh, kw] = pack.taps;
        let [sd, sh, sw] = pack.tap_strides;
        let pack = Pack {
            ic: kd,
            ic_stride: sd,
            taps: [kh, kw, c.ic],
            tap_strides: [sh, sw, pack.ic_stride],
            ..pack
        };
        pack.weights(self.cx, lower)
    }
}
