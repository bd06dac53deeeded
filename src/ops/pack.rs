//! The layout in which kernels read weights of convolutions and operands of products.

use std::ops::Range;
use std::sync::Arc;

use crate::dtype::{DType, Element};
use crate::files::hash::Hash;
use crate::graph::Tensor;
use crate::kernel::VECTOR_BYTES;
use crate::kernel::table::{params, spec, variants};
use crate::ops::{Lowering, OpCx, OpError, Operand, PackKey, PackLines, reaches_all};

/// `[group][channel / tile][ic][kd][kh][kw][tile]`, zeros after the last channel, read from weights at
/// `first + group * group_stride + channel * oc_stride + ...`. Of matrices channels are columns, and input channels are
/// rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pack {
    pub(crate) groups: usize,
    pub(crate) tile: usize,
    pub(crate) oc: usize,
    pub(crate) ic: usize,
    pub(crate) taps: [usize; 3],
    pub(crate) first: i64,
    pub(crate) group_stride: i64,
    pub(crate) oc_stride: i64,
    pub(crate) ic_stride: i64,
    pub(crate) tap_strides: [i64; 3],
}

/// Some groups, output channels of each, and input channels of each.
struct Part {
    groups: Range<usize>,
    oc: Range<usize>,
    ic: Range<usize>,
}

impl Pack {
    fn sizes(&self) -> [usize; 7] {
        let [kd, kh, kw] = self.taps;
        [self.groups, self.oc.div_ceil(self.tile), self.ic, kd, kh, kw, self.tile]
    }

    /// Elements of the result.
    pub(crate) fn len(&self) -> usize {
        self.sizes().iter().product()
    }

    /// A number for every layout, to tell packed constants apart.
    fn key(&self) -> PackKey {
        let [kd, kh, kw] = self.tap_strides;
        let strides = [self.first, self.group_stride, self.oc_stride, self.ic_stride, kd, kh, kw];
        let mut hash = Hash::new();
        hash.put((self.sizes(), strides, self.oc));
        PackKey { layout: "tiles of channels", numbers: hash.digest().words() }
    }

    /// Calls `f` with the place in the layout and in the weights of every element of `part`.
    fn each(&self, part: Part, mut f: impl FnMut(usize, usize)) {
        let [kd, kh, kw] = self.taps;
        let [sz, sy, sx] = self.tap_strides;
        let (size, tiles) = (self.tile, self.oc.div_ceil(self.tile));
        let taps = (0..kd * kh * kw).map(|t| [t / (kw * kh), t / kw % kh, t % kw]);
        for group in part.groups {
            for tile in part.oc.start / size..part.oc.end.div_ceil(size) {
                let channels = part.oc.start.max(tile * size)..part.oc.end.min((tile + 1) * size);
                for c in part.ic.clone() {
                    for [z, y, x] in taps.clone() {
                        let row = (((group * tiles + tile) * self.ic + c) * kd + z) * kh + y;
                        let place = (row * kw + x) * size;
                        let base = self.first
                            + group as i64 * self.group_stride
                            + c as i64 * self.ic_stride
                            + z as i64 * sz
                            + y as i64 * sy
                            + x as i64 * sx;
                        for channel in channels.clone() {
                            if let Ok(from) = usize::try_from(base + channel as i64 * self.oc_stride) {
                                f(place + channel - tile * size, from);
                            }
                        }
                    }
                }
            }
        }
    }

    fn whole(&self) -> Part {
        Part { groups: 0..self.groups, oc: 0..self.oc, ic: 0..self.ic }
    }

    fn fill<T: Element + Default>(&self, w: &[T], out: &mut [T]) {
        out.fill(T::default());
        self.fill_part(self.whole(), w, 0, out);
    }

    /// Writes `part` of the layout from weights that begin with number `first`.
    fn fill_part<T: Copy>(&self, part: Part, w: &[T], first: usize, out: &mut [T]) {
        self.each(part, |at, from| {
            let from = from.checked_sub(first).and_then(|from| w.get(from));
            if let (Some(to), Some(from)) = (out.get_mut(at), from) {
                *to = *from;
            }
        });
    }

    /// Undoes [`Pack::fill`] where the layout has all weights.
    fn unfill<T: Element>(&self, packed: &[T], w: &mut [T]) {
        self.each(self.whole(), |at, from| {
            if let (Some(to), Some(from)) = (w.get_mut(from), packed.get(at)) {
                *to = *from;
            }
        });
    }

    /// Weights of a line, where those of the output channels of a tile are contiguous lines. The layout has all
    /// weights.
    fn line(&self) -> Option<usize> {
        let of_channel = self.ic * self.taps.iter().product::<usize>();
        let by_channels =
            usize::try_from(self.oc_stride) == Ok(of_channel) && self.oc.is_multiple_of(self.tile);
        by_channels.then_some(of_channel * self.tile).filter(|line| *line > 0)
    }

    /// Rows of the weights and tiles of a row, where those are matrices whose tiles are whole: the layout is then the matrix
    /// of tiles, transposed.
    fn blocks(&self) -> Option<[usize; 2]> {
        let rows = usize::try_from(self.ic_stride) == Ok(self.oc) && self.oc_stride == 1 && self.first == 0;
        let is_matrix = rows && self.groups == 1 && self.taps == [1; 3];
        (is_matrix && self.oc.is_multiple_of(self.tile)).then_some([self.ic, self.oc / self.tile])
    }

    /// As [`Pack::fill`] of some lines; elsewhere are zeros.
    fn fill_lines<T: Copy>(&self, lines: Range<usize>, line: usize, w: &[T], out: &mut [T]) {
        let tiles = self.oc.div_ceil(self.tile).max(1);
        for at in lines.clone() {
            let (group, first) = (at / tiles, at % tiles * self.tile);
            let part = Part { groups: group..group + 1, oc: first..first + self.tile, ic: 0..self.ic };
            self.fill_part(part, w, lines.start * line, out);
        }
    }

    /// Whether the layout has each of `elements` weights.
    fn has_all(&self, elements: usize) -> bool {
        let [kd, kh, kw] = self.taps;
        let [sz, sy, sx] = self.tap_strides;
        let steps = [
            (self.groups, self.group_stride),
            (self.oc, self.oc_stride),
            (self.ic, self.ic_stride),
            (kd, sz),
            (kh, sy),
            (kw, sx),
        ];
        self.first == 0 && reaches_all(&steps, elements)
    }

    /// The packed weights of input 1.
    pub(crate) fn weights(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<Operand, OpError> {
        self.emit((Operand::Input(1), cx.value(1)), cx.dtype(1)?, lower)
    }

    /// The packed form of an operand: made at load where its value is known, else by a kernel.
    pub(crate) fn emit(
        &self,
        (source, value): (Operand, Option<&Tensor>),
        dtype: DType,
        lower: &mut Lowering<'_>,
    ) -> Result<Operand, OpError> {
        // A texel view has at least one texel.
        let bytes = (self.len() * dtype.bytes()).max(VECTOR_BYTES);
        if let Some(value) = value {
            let pack = *self;
            let packed = lower.packed(value, self.key(), bytes, move |t: &Tensor, out| {
                match dtype {
                    DType::F16 => {
                        let out: &mut [half::f16] = bytemuck::cast_slice_mut(out);
                        pack.fill(t.as_slice::<half::f16>()?, out);
                    }
                    _ => pack.fill(t.as_slice::<f32>()?, bytemuck::cast_slice_mut(out)),
                }
                Ok(())
            });
            if self.has_all(value.info().elements()) {
                lower.unpacked_by(move |packed, w| match dtype {
                    DType::F16 => {
                        let packed: &[half::f16] = bytemuck::cast_slice(packed);
                        pack.unfill(packed, bytemuck::cast_slice_mut(w));
                    }
                    _ => pack.unfill::<f32>(bytemuck::cast_slice(packed), bytemuck::cast_slice_mut(w)),
                });
                let element = dtype.bytes();
                if let Some([rows, tiles]) = self.blocks().filter(|_| value.info().bytes() == bytes) {
                    let block = self.tile * element;
                    lower.packed_in_place(move |w| transpose_blocks(w, [rows, tiles], block));
                }
                if let Some(line) = self.line() {
                    let fill = move |lines, w: &[u8], out: &mut [u8]| match dtype {
                        DType::F16 => {
                            let out: &mut [half::f16] = bytemuck::cast_slice_mut(out);
                            pack.fill_lines(lines, line, bytemuck::cast_slice(w), out);
                        }
                        _ => pack.fill_lines::<f32>(
                            lines,
                            line,
                            bytemuck::cast_slice(w),
                            bytemuck::cast_slice_mut(out),
                        ),
                    };
                    lower.packed_by_lines(PackLines { bytes: line * dtype.bytes(), pack: Arc::new(fill) });
                }
            }
            return Ok(packed);
        }
        let kernel = variants::PackTiles { t: dtype }.id()?;
        let packed = lower.scratch(bytes);
        let [kd_stride, kh_stride, kw_stride] = self.tap_strides.map(|s| s as i32);
        let [kd, kh, kw] = self.taps.map(|t| t as u32);
        let params = params::PackTiles {
            n: self.len() as u32,
            tile: self.tile as u32,
            oc: self.oc as u32,
            ic: self.ic as u32,
            kd,
            kh,
            kw,
            first: self.first as i32,
            group_stride: self.group_stride as i32,
            oc_stride: self.oc_stride as i32,
            ic_stride: self.ic_stride as i32,
            kd_stride,
            kh_stride,
            kw_stride,
        };
        let taps = [(spec::pack_tiles::TAPS, u32::from(self.taps != [1; 3]))];
        lower.dispatch_1d(kernel, &taps, &[source, packed], &params, self.len())?;
        Ok(packed)
    }
}

/// Transposes a matrix of blocks of `block` bytes where it lies.
fn transpose_blocks(bytes: &mut [u8], [rows, columns]: [usize; 2], block: usize) {
    if rows * columns * block == bytes.len() {
        permute_blocks(bytes, block, |at| at % columns * rows + at / columns);
    }
}

/// Moves block `n` of `block` bytes to `place(n)`, for all: each goes where it belongs, and what was there goes on. `place` is a
/// permutation.
pub(crate) fn permute_blocks(bytes: &mut [u8], block: usize, place: impl Fn(usize) -> usize) {
    let count = bytes.len() / block;
    let (mut done, mut held) = (vec![false; count], vec![0; block]);
    for start in 0..count {
        if done[start] {
            continue;
        }
        held.copy_from_slice(&bytes[start * block..][..block]);
        let mut at = start;
        loop {
            at = place(at);
            bytes[at * block..][..block].swap_with_slice(&mut held);
            done[at] = true;
            if at == start {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tiles_of_a_matrix_are_packed_where_they_lie(ic in 1usize..30, tiles in 1usize..12, tile in 1usize..9) {
            let oc = tiles * tile;
            let pack = Pack {
                groups: 1, tile, oc, ic, taps: [1; 3], first: 0, group_stride: 0, oc_stride: 1, ic_stride: oc as i64,
                tap_strides: [0; 3],
            };
            let mut w: Vec<f32> = (0..ic * oc).map(|i| i as f32).collect();
            let mut packed = vec![0.0f32; pack.len()];
            pack.fill(&w, &mut packed);
            prop_assert_eq!(pack.blocks(), Some([ic, tiles]));
            transpose_blocks(bytemuck::cast_slice_mut(&mut w), [ic, tiles], tile * 4);
            prop_assert_eq!(w, packed);
            let columns = Pack { oc: oc + 1, ..pack };
            prop_assert_eq!(columns.blocks(), None);
        }

        #[test]
        fn layouts_with_all_weights_are_undone(
            groups in 1usize..3, oc in 1usize..20, ic in 1usize..4, taps in [1usize..3, 1usize..4, 1usize..4],
            tile in 1usize..10, order in 0usize..3, first in 0i64..2, missing in 0usize..2,
            step in 1usize..4,
        ) {
            let [kd, kh, kw] = taps.map(|t| t as i64);
            let of_ic = kd * kh * kw;
            // As Conv has them, as ConvTranspose has them, and with strides that reach no element twice.
            let (oc_stride, ic_stride) = match order {
                0 => (of_ic * ic as i64, of_ic),
                1 => (of_ic, of_ic * oc as i64),
                _ => (2 * of_ic * ic as i64, of_ic),
            };
            let group_stride = of_ic * (oc * ic) as i64;
            let tap_strides = [kh * kw, kw, 1];
            let pack = Pack { groups, tile, oc, ic, taps, first, group_stride, oc_stride, ic_stride, tap_strides };
            let elements = groups * oc * ic * of_ic as usize;
            let w: Vec<f32> = (0..elements).map(|i| i as f32 + 1.0).collect();
            let mut packed = vec![7.0f32; pack.len()];
            pack.fill(&w, &mut packed);
            if pack.has_all(elements + missing) {
                let mut back = vec![0.0f32; elements];
                pack.unfill(&packed, &mut back);
                prop_assert_eq!(&back, &w);
                if let Some(line) = pack.line() {
                    let mut by_lines = vec![0.0f32; pack.len()];
                    let lines = elements / line;
                    for at in (0..lines).step_by(step) {
                        let end = (at + step).min(lines);
                        pack.fill_lines(at..end, line, &w[at * line..end * line], &mut by_lines);
                    }
                    prop_assert_eq!(lines * line, elements);
                    prop_assert_eq!(by_lines, packed);
                }
            } else {
                prop_assert!(first > 0 || missing > 0 || (order == 2 && oc > 1));
            }
        }
    }
}
