//! Operators that move elements without computing: transposes, slices, concatenations, padding, tiling.

mod across;
mod center_crop_pad;
mod concat;
mod depth_space;
mod pad;
pub(crate) mod region;
mod slice;
mod split;
mod strided_view;
mod tile;
mod transpose;
mod trilu;

pub use center_crop_pad::CenterCropPad;
pub use concat::Concat;
pub use depth_space::{DepthMode, DepthToSpace, SpaceToDepth};
pub use pad::{Pad, PadMode};
pub use slice::Slice;
pub use split::Split;
pub use strided_view::StridedView;
pub use tile::Tile;
pub use transpose::Transpose;
pub use trilu::Trilu;

use super::{Family, OpDef, ReadFn};
use crate::dtype::DType;

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "movement",
    ops: &[
        OpDef { since: 18, ..row("CenterCropPad", center_crop_pad::read) },
        row("Concat", concat::read),
        row("DepthToSpace", depth_space::read_depth_to_space),
        row("Pad", pad::read),
        row("Slice", slice::read),
        row("SpaceToDepth", depth_space::read_space_to_depth),
        row("Split", split::read),
        row("Tile", tile::read),
        row("Transpose", transpose::read),
        row("Trilu", trilu::read),
    ],
};

const fn row(name: &'static str, read: ReadFn) -> OpDef {
    OpDef { name, domain: "", since: 1, types: &DType::ALL, gpu: true, read }
}

/// The parts of [`super::Operator`] that every movement shares; `pieces` does the work.
///
/// With `alike`, elements are moved alike whatever they stand for ([`super::Operator::quantized_move`]).
macro_rules! moves {
    (alike) => {
        moves!();

        fn quantized_move(&self, _: &OpCx) -> bool {
            true
        }
    };
    () => {
        fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
            region::cpu(self.name(), cx, self.pieces(cx)?)
        }

        fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
            region::gpu(lower, cx, &self.pieces(cx)?)
        }

        fn passed(&self, cx: &OpCx) -> crate::ops::Passed {
            self.pieces(cx).map(|pieces| region::passed(cx, &pieces)).unwrap_or_default()
        }

        fn cost(&self, cx: &OpCx) -> Cost {
            Cost { flops: 0, bytes: 2 * cx.outputs().iter().map(|o| o.bytes() as u64).sum::<u64>() }
        }
    };
}
pub(crate) use moves;
