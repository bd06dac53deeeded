//! Frames on devices.

use super::{FLOAT_POINT, FrameToTensor, Layout, TensorToFrame};
use crate::dtype::DType;
use crate::frame::{Affine, Filter, FrameSpec, Pixels, Rect, TensorLayout};
use crate::kernel::table::{params, spec, variants};
use crate::ops::{Lowering, OpCx, OpError, Operand};

/// Checks the inputs from `first` on that are memories of `bytes`; absent ones are fine.
pub(super) fn check_memories(cx: &OpCx, first: usize, bytes: &[u64]) -> Result<(), OpError> {
    for (m, bytes) in bytes.iter().enumerate().filter(|(m, _)| cx.has(first + m)) {
        cx.expect_dtype(first + m, DType::U8)?;
        if cx.shape(first + m)?.dims() != [*bytes as usize] {
            return Err(cx.shape_error(first + m, format!("[{bytes}]")));
        }
    }
    Ok(())
}

fn parameters(
    rect: Rect,
    pixels: &Pixels,
    layout: &Layout,
    affine: &Affine,
    numbers: [[f32; 2]; 4],
) -> params::Frame {
    let of = |c: usize| layout.components.get(c).copied().unwrap_or_default();
    let mut rows = [0; 9];
    rows.iter_mut().zip(affine.rows.as_flattened()).for_each(|(to, v)| *to = *v);
    params::Frame {
        x: rect.x,
        y: rect.y,
        w: rect.width,
        h: rect.height,
        tw: pixels.width,
        th: pixels.height,
        base: [0, 1, 2].map(|c| of(c).base),
        stride: [0, 1, 2].map(|c| of(c).stride),
        rows,
        bias: affine.bias,
        scale: numbers.map(|[scale, _]| scale),
        offset: numbers.map(|[_, offset]| offset),
    }
}

/// Specialization constants that both kernels have, with equal numbers.
fn constants(pixels: &Pixels, layout: &Layout, components: usize) -> Vec<(u32, u32)> {
    use spec::frame as ids;
    let of = |c: usize| layout.components.get(c).copied().unwrap_or_default();
    vec![
        (ids::LINEAR, u32::from(pixels.filter == Filter::Bilinear)),
        (ids::COMPONENTS, components as u32),
        (ids::MEMORY1, of(1).memory as u32),
        (ids::MEMORY2, of(2).memory as u32),
        (ids::STEP0, of(0).step),
        (ids::STEP1, of(1).step),
        (ids::ACROSS, of(1).shifts[0]),
        (ids::DOWN, of(1).shifts[1]),
        (ids::WIDE, u32::from(layout.is_wide())),
        (ids::ALPHA, layout.alpha.unwrap_or(0)),
        (ids::CHANNELS, pixels.channels.count() as u32),
        (ids::LAST, u32::from(pixels.layout == TensorLayout::Nhwc)),
    ]
}

/// The operands of at most three memories.
fn planes(memories: usize, operand: impl Fn(usize) -> Operand) -> [Operand; 3] {
    [0, 1, 2].map(|m| if m < memories { operand(m) } else { Operand::Unused })
}

/// Emits the kernel of a frame that becomes a tensor.
pub(super) fn to_tensor(
    op: &FrameToTensor,
    frame: &FrameSpec,
    pixels: &Pixels,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let kernel = variants::FrameToTensor { t: pixels.info.dtype }.id()?;
    let (layout, affine) = (Layout::new(frame)?, op.affine());
    let params = parameters(frame.rect(), pixels, &layout, &affine, pixels.normalizing(FLOAT_POINT));
    let constants = constants(pixels, &layout, op.components(&affine));
    let [a, b, c] = planes(frame.memory_bytes()?.len(), Operand::Input);
    let items = pixels.width as usize * pixels.height as usize;
    lower.dispatch_1d(kernel, &constants, &[a, b, c, Operand::Output(0)], &params, items)
}

/// Emits the kernel of a tensor that becomes a frame.
pub(super) fn to_frame(
    op: &TensorToFrame,
    frame: &FrameSpec,
    memories: &[u64],
    pixels: &Pixels,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    use spec::tensor_to_frame as ids;
    let kernel = variants::TensorToFrame { t: pixels.info.dtype }.id()?;
    let rect = frame.rect();
    let [across, down] = frame.format().chroma_shifts();
    for m in op.copied() {
        if !memories[m].is_multiple_of(4) {
            return Err(OpError::unsupported("no device kernel for a copy of a part of a word"));
        }
        lower.copy((Operand::Input(1 + m), 0), (Operand::Output(m), 0), memories[m]);
    }
    let layout = Layout::new(frame)?;
    let params = parameters(frame.rect(), pixels, &layout, &op.affine(), pixels.denormalizing());
    let mut constants = constants(pixels, &layout, layout.components.len());
    let [red, green, blue] = pixels.channels.order().map(|channel| channel as u32);
    constants.extend([(ids::RED, red), (ids::GREEN, green), (ids::BLUE, blue)]);
    let [a, b, c] = planes(memories.len(), Operand::Output);
    let items = rect.width.div_ceil(1 << across) as usize * rect.height.div_ceil(1 << down) as usize;
    lower.dispatch_1d(kernel, &constants, &[Operand::Input(0), a, b, c], &params, items)
}
