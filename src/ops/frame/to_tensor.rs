//! A frame becomes a tensor.

use half::f16;

use super::sampling::{Tap, sampled, taps};
use super::{FLOAT_POINT, Layout, device};
use crate::dtype::DType;
use crate::frame::{Affine, Channels, FrameSpec, POINT, Pixels, fraction};
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::par::share;
use crate::ops::{Cost, HalfRule, Lowering, OpCx, OpError, Operator};
use crate::shape::SymShape;

/// The pixels of a frame as a tensor. Its inputs are the memories that the frame lies in, as bytes.
#[derive(Clone, Debug)]
pub struct FrameToTensor {
    spec: FrameSpec,
    pixels: Pixels,
}

impl FrameToTensor {
    /// The operator for a frame as `spec` describes it and the tensor that the model declares.
    ///
    /// # Errors
    /// [`FrameError`](crate::frame::FrameError).
    pub fn new(
        spec: FrameSpec,
        dtype: Option<DType>,
        shape: Option<&SymShape>,
    ) -> Result<Self, crate::frame::FrameError> {
        spec.check()?;
        let pixels = spec.pixels(dtype, shape)?;
        Ok(FrameToTensor { spec, pixels })
    }

    /// Type and shape of the tensor.
    pub fn info(&self) -> &TensorInfo {
        &self.pixels.info
    }

    /// The colour matrix with a row for each channel of the tensor.
    pub(super) fn affine(&self) -> Affine {
        let (spec, channels) = (&self.spec, self.pixels.channels);
        let gray = channels == Channels::Gray;
        let of = Affine::decode(spec.format(), spec.color_matrix(), spec.color_range(), gray);
        let mut affine = Affine::default();
        for (color, channel) in channels.order().into_iter().enumerate() {
            (affine.rows[channel], affine.bias[channel]) = (of.rows[color], of.bias[color]);
        }
        affine
    }

    /// Components that the tensor depends on.
    pub(super) fn components(&self, affine: &Affine) -> usize {
        let all = self.spec.format().components().len();
        if affine.rows.iter().all(|row| row[1..] == [0, 0]) { 1 } else { all }
    }
}

impl Operator for FrameToTensor {
    fn name(&self) -> &'static str {
        "FrameToTensor"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let bytes = self.spec.memory_bytes()?;
        cx.expect_counts(bytes.len()..=bytes.len(), 1..=1)?;
        device::check_memories(cx, 0, &bytes)?;
        Ok(vec![self.pixels.info.clone()])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let elements = self.pixels.info.elements() as u64;
        Cost { flops: elements * 8, bytes: cx.bytes_touched() }
    }

    fn half_rule(&self) -> HalfRule {
        HalfRule::Full
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let loop_ = Loop::new(self)?;
        let (memories, dtype) = (cx.input_count(), self.pixels.info.dtype);
        Ok(NativeKernel::new("FrameToTensor", move |args| {
            let memories: Vec<&[u8]> = (0..memories).map(|m| args.read::<u8>(m)).collect::<Result<_, _>>()?;
            let out = memories.len();
            let floats = |channel: usize, v: i32| {
                let v = (v + (1 << (POINT - FLOAT_POINT - 1))) >> (POINT - FLOAT_POINT);
                let [scale, offset] = loop_.normalizing[channel];
                v.clamp(0, 255 << FLOAT_POINT) as f32 * scale + offset
            };
            match dtype {
                DType::U8 => loop_.run(&memories, args.take_write::<u8>(out)?, |_, v| {
                    ((v + (1 << (POINT - 1))) >> POINT).clamp(0, 255) as u8
                }),
                DType::F16 => {
                    loop_.run(&memories, args.take_write::<f16>(out)?, |c, v| f16::from_f32(floats(c, v)))
                }
                _ => loop_.run(&memories, args.take_write::<f32>(out)?, floats),
            }
        }))
    }

    fn gpu(&self, _: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        device::to_tensor(self, &self.spec, &self.pixels, lower)
    }
}

/// The loop of the native function.
struct Loop {
    layout: Layout,
    pixels: Pixels,
    affine: Affine,
    components: usize,
    origin: [u32; 2],
    columns: Vec<Tap>,
    rows: Vec<Tap>,
    normalizing: [[f32; 2]; 4],
}

impl Loop {
    fn new(op: &FrameToTensor) -> Result<Self, OpError> {
        let (pixels, rect, affine) = (op.pixels.clone(), op.spec.rect(), op.affine());
        Ok(Loop {
            layout: Layout::new(&op.spec)?,
            components: op.components(&affine),
            affine,
            origin: [rect.x, rect.y],
            columns: taps(pixels.filter, pixels.width, rect.width),
            rows: taps(pixels.filter, pixels.height, rect.height),
            normalizing: pixels.normalizing(FLOAT_POINT),
            pixels,
        })
    }

    /// Writes the tensor, of whose elements `number` makes one from a channel and a value with [`POINT`].
    fn run<T: Send>(
        &self,
        memories: &[&[u8]],
        out: &mut [T],
        number: impl Fn(usize, i32) -> T + Sync,
    ) -> Result<(), KernelError> {
        let (width, channels) = (self.pixels.width as usize, self.pixels.channels.count());
        let [_, pixel] = self.pixels.steps();
        if pixel > 1 || channels == 1 {
            share(out.chunks_mut(width * channels).enumerate(), |(y, line)| {
                for (x, to) in line.chunks_mut(channels).enumerate() {
                    self.pixel(memories, [x, y], |c, v| to[c] = number(c, v));
                }
            });
            return Ok(());
        }
        // One row of each channel.
        let plane = width * self.rows.len();
        let mut lines: Vec<Vec<&mut [T]>> =
            (0..self.rows.len()).map(|_| Vec::with_capacity(channels)).collect();
        for channel in out.chunks_mut(plane) {
            lines.iter_mut().zip(channel.chunks_mut(width)).for_each(|(lines, line)| lines.push(line));
        }
        share(lines.into_iter().enumerate(), |(y, mut lines)| {
            let pixel = |x| self.pixel(memories, [x, y], |c, v| lines[c][x] = number(c, v));
            (0..width).for_each(pixel);
        });
        Ok(())
    }

    fn pixel(&self, memories: &[&[u8]], [x, y]: [usize; 2], mut store: impl FnMut(usize, i32)) {
        let (tx, ty) = (self.columns[x], self.rows[y]);
        let bits = self.layout.format.bits();
        let sample = |c: usize, beyond: u32| {
            let of = &self.layout.components[c];
            let bytes = memories[of.memory];
            sampled(tx, ty, self.pixels.filter, bits, |x, y| {
                let row = ((self.origin[1] + y) >> of.shifts[1]) * of.stride;
                let at = (of.base + beyond + row + ((self.origin[0] + x) >> of.shifts[0]) * of.step) as usize;
                match self.layout.is_wide() {
                    false => i32::from(bytes[at]),
                    true => i32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]) >> 6),
                }
            })
        };
        let mut values = [sample(0, 0), 0, 0];
        for (c, value) in values.iter_mut().enumerate().take(self.components).skip(1) {
            *value = sample(c, 0);
        }
        let channels = self.pixels.channels.count();
        (0..channels.min(3)).for_each(|c| store(c, self.affine.apply(c, values)));
        if channels == 4 {
            let opaque = 255 << POINT;
            let alpha = self.layout.alpha.map(|beyond| sample(0, beyond) << (POINT - fraction(bits)));
            store(3, alpha.unwrap_or(opaque));
        }
    }
}
