//! Convolutions of 3 by 3 taps on devices as 36 products of matrices (`ops/conv/winograd.rs`): tiles of the input
//! are transformed for all channels, multiplied with the transformed taps, and transformed back.

use super::{Plain, Target};
use crate::backend::DeviceKind;
use crate::dtype::DType;
use crate::kernel::codes::conv_matrix;
use crate::kernel::codes::winograd::POINTS;
use crate::kernel::table::{params, spec, variants};
use crate::ops::linalg::device::{Product, Source};
use crate::ops::window::AxisNumbers;
use crate::ops::{Lowering, OpError, Operand, WindowAxis};

/// Outputs of a tile along an axis.
const OUT: usize = 4;
/// Multiply-adds that take as long as reading or writing an element of a transformed tile: more where memory is slower.
const TOUCH: usize = 32;
/// The same of a card; measured on an H100.
const TOUCH_OF_CARD: usize = 18;
/// Bytes of transformed tiles and their products that are made at a time.
const PART: usize = 64 << 20;
/// The most bytes of transformed taps: what a buffer of any device may have.
const MAX_TAPS: usize = 128 << 20;

/// The tiles of all images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tiles {
    across: usize,
    of_image: usize,
    count: usize,
}

impl Plain {
    /// The tiles, where it can be a transformed product.
    pub(super) fn tiles(&self) -> Option<Tiles> {
        let [d, h, w] = self.axes;
        let taps = |a: WindowAxis| a.kernel == 3 && a.stride == 1 && a.dilation == 1;
        let flat = d.kernel == 1 && d.input == 1 && d.output == 1 && d.pads == [0, 0];
        let plane = h.output * w.output;
        let whole = self.y == [plane, plane, w.output, 1] && self.y_first == 0 && self.has_plain_weights();
        if !flat || !taps(h) || !taps(w) || !whole || self.groups != 1 {
            return None;
        }
        if POINTS * self.oc * self.ic.next_multiple_of(4) * 4 > MAX_TAPS {
            return None;
        }
        let across = w.output.div_ceil(OUT);
        let of_image = across * h.output.div_ceil(OUT);
        let count = of_image * self.batch;
        (self.ic.min(self.oc) > 4).then_some(Tiles { across, of_image, count })
    }

    /// Whether the transformed product is the faster one on such a device, where memory and arithmetic are as fast as is
    /// usual.
    fn gains_by(&self, tiles: &Tiles, kind: DeviceKind) -> bool {
        let touch = if kind == DeviceKind::Discrete { TOUCH_OF_CARD } else { TOUCH };
        let [_, h, w] = self.axes;
        let plane = h.output * w.output;
        // Multiply-adds of the plain sum, and ours. Each element of tiles and products is written and read, the
        // taps are transformed in every run.
        let Some(plain) = (9 * self.ic * self.oc).checked_mul(plane * self.batch) else { return false };
        let touched = 92 * (self.ic + self.oc) * tiles.count + 81 * self.ic * self.oc;
        let ours = POINTS * self.ic * self.oc * tiles.count + touch * touched;
        ours < plain * 4 / 5
    }
}

impl Target<'_> {
    /// The transformed tiles of `c`, where they are faster.
    pub(super) fn winograd_by_model(&self, c: &Plain, lower: &Lowering<'_>) -> Option<Tiles> {
        // Cooperative matrices sum faster than the transforms take.
        let matrix = variants::ConvMatrix { t: self.dtype, small: false }.id();
        if matrix.is_ok_and(|kernel| lower.matrix_threads(kernel, conv_matrix::SUBS).is_some()) {
            return None;
        }
        c.tiles().filter(|tiles| c.gains_by(tiles, lower.device().kind))
    }

    /// Emits `c` by transformed tiles.
    pub(super) fn winograd(&self, c: &Plain, tiles: &Tiles, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let [_, h, w] = c.axes;
        let (ic, oc) = (c.ic, c.oc);
        // Products read channels four at a time.
        let row = ic.next_multiple_of(4);
        let taps = lower.scratch(POINTS * oc * row * 4);
        let t = self.dtype;
        let kernel = variants::WinogradTaps { t }.id()?;
        let params = params::WinogradTaps { n: (oc * row) as u32, ic: ic as u32, row: row as u32 };
        lower.dispatch_1d(kernel, &[], &[Operand::Input(1), taps], &params, oc * row)?;

        let of_tile = POINTS * (row + oc) * 4;
        let most = (PART / of_tile).clamp(OUT, tiles.count.next_multiple_of(4));
        let each = tiles.count.div_ceil(tiles.count.div_ceil(most)).next_multiple_of(4);
        let input = lower.scratch(POINTS * row * each * 4);
        let products = lower.scratch(POINTS * oc * each * 4);
        let (read, write) = (variants::WinogradInput { t }.id()?, variants::WinogradOutput { t }.id()?);
        let (code, [act_a, act_b]) = self.activation.code();
        let numbers = AxisNumbers::new([h, w])?;
        for first in (0..tiles.count).step_by(each) {
            let count = each.min(tiles.count - first);
            let line = count.next_multiple_of(4);
            let params = params::WinogradInput {
                n: (row * count) as u32,
                ic: ic as u32,
                channels: row as u32,
                first: first as u32,
                tiles: count as u32,
                line: line as u32,
                across: tiles.across as u32,
                of_image: tiles.of_image as u32,
                plane: numbers.into(),
            };
            lower.dispatch_1d(read, &[], &[Operand::Input(0), input], &params, row * count)?;
            let source = |operand, row| Source { operand, value: None, matrices: POINTS, row, col: 1 };
            let product = Product::new(
                [oc, line, row],
                (0..POINTS).map(|point| (point, point)).collect(),
                [source(taps, row), source(input, line)],
                DType::F32,
                products,
            );
            product.lower(lower)?;
            let params = params::WinogradOutput {
                n: (oc * count) as u32,
                channels: oc as u32,
                first: first as u32,
                tiles: count as u32,
                line: line as u32,
                across: tiles.across as u32,
                of_image: tiles.of_image as u32,
                output: numbers.into(),
                act_a,
                act_b,
            };
            let spec = [
                (spec::winograd_output::BIASED, self.biased_code()),
                (spec::winograd_output::ACTIVATION, code),
                self.summed_constant(),
            ];
            let args = [products, self.bias(), Operand::Output(0), self.summand_arg()];
            lower.dispatch_1d(write, &spec, &args, &params, oc * count)?;
        }
        Ok(())
    }
}
