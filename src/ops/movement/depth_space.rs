//! DepthToSpace and SpaceToDepth: channels to blocks of pixels and back.

use std::sync::Arc;

use super::moves;
use super::region::{self, Block, Piece, Source, signed_strides};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator};
use crate::shape::Shape;

/// The order of the channels of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DepthMode {
    /// Depth, column, row: the block's position is the slower index.
    #[default]
    Dcr,
    /// Column, row, depth: the output channel is the slower index.
    Crd,
}

impl DepthMode {
    /// Steps among the deep side's channels from one of the wide side's `c` channels, one row and one column
    /// of a block to the next.
    fn strides(self, c: usize, b: usize) -> [usize; 3] {
        match self {
            DepthMode::Dcr => [1, b * c, c],
            DepthMode::Crd => [b * b, b, 1],
        }
    }
}

/// `[N, C*b*b, H, W]` to `[N, C, H*b, W*b]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepthToSpace {
    /// Edge of a block.
    pub block: usize,
    /// The order of channels.
    pub mode: DepthMode,
}

/// `[N, C, H*b, W*b]` to `[N, C*b*b, H, W]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceToDepth {
    /// Edge of a block.
    pub block: usize,
    /// The order of channels.
    pub mode: DepthMode,
}

fn block_size(attrs: &AttrReader<'_>) -> Result<usize, OpError> {
    let block = attrs.int("blocksize", 0)?;
    match usize::try_from(block) {
        Ok(b) if (1..=1 << 16).contains(&b) => Ok(b),
        _ => Err(attrs.error("blocksize", format!("is {block}, expected 1 to 65536")).into()),
    }
}

fn mode(attrs: &AttrReader<'_>) -> Result<DepthMode, OpError> {
    Ok(attrs.choice("mode", DepthMode::Dcr, &[("DCR", DepthMode::Dcr), ("CRD", DepthMode::Crd)])?)
}

pub(super) fn read_depth_to_space(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let block = block_size(attrs)?;
    Ok(Arc::new(DepthToSpace { block, mode: mode(attrs)? }))
}

pub(super) fn read_space_to_depth(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(SpaceToDepth { block: block_size(attrs)?, mode: mode(attrs)? }))
}

fn nchw(cx: &OpCx) -> Result<[usize; 4], OpError> {
    cx.shape(0)?.dims().try_into().map_err(|_| cx.shape_error(0, "4 dimensions"))
}

/// The block that walks (n, c, by, bx, h, w) with channel strides `(c, by, bx)` on the deep side.
fn walk(deep: &Shape, wide: &Shape, b: usize, channel: [usize; 3], to_wide: bool) -> Block {
    let (d, w) = (signed_strides(deep), signed_strides(wide));
    let of = |k: usize| d[1] * channel[k] as isize;
    let deep_strides = vec![d[0], of(0), of(1), of(2), d[2], d[3]];
    let wide_strides = vec![w[0], w[1], w[2], w[3], w[2] * b as isize, w[3] * b as isize];
    let dims = [wide[0], wide[1], b, b, deep[2], deep[3]];
    // The wide side's rows are the inner loop where it is written, so that writes run forwards.
    let order = if to_wide { [0, 1, 4, 2, 5, 3] } else { [0, 2, 3, 1, 4, 5] };
    let pick = |v: &[isize]| order.map(|i| v[i]).to_vec();
    let (src, dst) = if to_wide { (&deep_strides, &wide_strides) } else { (&wide_strides, &deep_strides) };
    Block {
        dims: order.map(|i| dims[i]).to_vec(),
        src_strides: pick(src),
        dst_strides: pick(dst),
        ..Block::default()
    }
}

impl DepthToSpace {
    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let (x, y, b) = (cx.shape(0)?, &cx.output(0)?.shape, self.block);
        let channel = self.mode.strides(y[1], b);
        Ok(walk(x, y, b, channel, true).piece(Source::Input(0), 0).into_iter().collect())
    }
}

impl Operator for DepthToSpace {
    fn name(&self) -> &'static str {
        "DepthToSpace"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let [n, c, h, w] = nchw(cx)?;
        let area = self.block * self.block;
        if c % area != 0 {
            return Err(cx.shape_error(0, format!("channels in multiples of {area}")));
        }
        let wide = |v: usize| v.saturating_mul(self.block);
        Ok(vec![TensorInfo::new(cx.dtype(0)?, Shape::new([n, c / area, wide(h), wide(w)])?)])
    }

    moves!(alike);
}

impl SpaceToDepth {
    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let (x, y, b) = (cx.shape(0)?, &cx.output(0)?.shape, self.block);
        let channel = self.mode.strides(x[1], b);
        Ok(walk(y, x, b, channel, false).piece(Source::Input(0), 0).into_iter().collect())
    }
}

impl Operator for SpaceToDepth {
    fn name(&self) -> &'static str {
        "SpaceToDepth"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let [n, c, h, w] = nchw(cx)?;
        let b = self.block;
        if h % b != 0 || w % b != 0 {
            return Err(cx.shape_error(0, format!("rows and columns in multiples of {b}")));
        }
        let deep = c.saturating_mul(b * b);
        Ok(vec![TensorInfo::new(cx.dtype(0)?, Shape::new([n, deep, h / b, w / b])?)])
    }

    moves!(alike);
}
