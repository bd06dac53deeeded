//! Sampling of images at computed places, regions of interest and boxes.

mod affine_grid;
mod col2im;
mod deform_conv;
mod deform_device;
mod grid_device;
mod grid_sample;
mod max_roi_pool;
mod non_max_suppression;
mod place;
mod roi_align;

pub use affine_grid::AffineGrid;
pub use col2im::Col2Im;
pub use deform_conv::DeformConv;
pub use grid_sample::GridSample;
pub use max_roi_pool::MaxRoiPool;
pub use non_max_suppression::NonMaxSuppression;
pub use place::{Outside, SampleMode};
pub use roi_align::{RoiAlign, RoiMode};

use super::real::FLOATS;
use super::{Family, OpDef, row};
use crate::dtype::DType;

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "vision",
    ops: &[
        row("AffineGrid", 20, FLOATS, affine_grid::read),
        row("Col2Im", 18, DType::NUMBERS, col2im::read),
        row("DeformConv", 19, FLOATS, deform_conv::read),
        row("GridSample", 16, &DType::ALL, grid_sample::read),
        row("MaxRoiPool", 1, FLOATS, max_roi_pool::read),
        OpDef { gpu: false, ..row("NonMaxSuppression", 10, &[DType::F32], non_max_suppression::read) },
        row("RoiAlign", 10, FLOATS, roi_align::read),
    ],
};

/// The planes of `y` (of `plane` elements each, `channels` for an image) cut into tiles of at most `block`
/// elements of every channel: for every image and tile, its first element and the parts of the channels.
pub(crate) fn tiles<T>(
    y: &mut [T],
    channels: usize,
    plane: usize,
    block: usize,
) -> Vec<(usize, usize, Vec<&mut [T]>)> {
    let mut tiles = Vec::new();
    for (n, image) in y.chunks_mut((channels * plane).max(1)).enumerate() {
        let first_tile = tiles.len();
        tiles.extend((0..plane.div_ceil(block)).map(|b| (n, b * block, Vec::with_capacity(channels))));
        for channel in image.chunks_mut(plane.max(1)) {
            for (tile, part) in tiles[first_tile..].iter_mut().zip(channel.chunks_mut(block)) {
                tile.2.push(part);
            }
        }
    }
    tiles
}

#[cfg(test)]
mod tests {
    #[test]
    fn tiles_cover_every_element_once() {
        let mut y: Vec<usize> = (0..2 * 3 * 7).collect();
        let tiles = super::tiles(&mut y, 3, 7, 4);
        assert_eq!(tiles.len(), 4);
        for (n, first, parts) in tiles {
            assert_eq!(parts.len(), 3);
            for (c, part) in parts.iter().enumerate() {
                let from = (n * 3 + c) * 7 + first;
                assert_eq!(part[..], (from..from + if first == 0 { 4 } else { 3 }).collect::<Vec<_>>());
            }
        }
    }
}
