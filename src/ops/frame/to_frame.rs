//! A tensor becomes a frame.

use std::sync::Arc;

use half::f16;

use super::sampling::{Tap, WEIGHT_BITS, sampled, taps};
use super::{Layout, device};
use crate::dtype::DType;
use crate::frame::{Affine, ENCODED_FRACTION, FrameError, FrameSpec, Pixels};
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::par::share;
use crate::ops::{Cost, HalfRule, Lowering, OpCx, OpError, Operator};
use crate::shape::{Shape, SymShape};

/// A tensor as the pixels of a frame. Its inputs are the tensor and, for each memory that the frame lies in, what it
/// held before, where the frame leaves bytes of it as they are. Its outputs are the memories.
#[derive(Clone, Debug)]
pub struct TensorToFrame {
    spec: FrameSpec,
    /// Bytes of each memory.
    memories: Vec<u64>,
    /// Of each memory, whether bytes of it stay.
    keeps: Vec<bool>,
    /// Whether the outputs already hold what stays.
    in_place: bool,
}

impl TensorToFrame {
    /// The operator for a frame as `spec` describes it.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn new(spec: FrameSpec) -> Result<Self, FrameError> {
        spec.check()?;
        spec.check_written()?;
        let (memories, keeps) = (spec.memory_bytes()?, spec.keeps_bytes()?);
        Ok(TensorToFrame { spec, memories, keeps, in_place: false })
    }

    /// Of each memory, its bytes and whether some of them stay.
    pub fn memories(&self) -> impl Iterator<Item = (u64, bool)> {
        self.memories.iter().copied().zip(self.keeps.iter().copied())
    }

    fn pixels(&self, cx: &OpCx) -> Result<Pixels, OpError> {
        let info = cx.input(0)?;
        Ok(self.spec.pixels(Some(info.dtype), Some(&SymShape::from(&info.shape)))?)
    }

    /// The memories that are copied before the frame is written.
    pub(super) fn copied(&self) -> impl Iterator<Item = usize> {
        let keeps = self.keeps.iter().enumerate().filter(|(_, keeps)| **keeps && !self.in_place);
        keeps.map(|(m, _)| m)
    }

    pub(super) fn affine(&self) -> Affine {
        let spec = &self.spec;
        Affine::encode(spec.format(), spec.color_matrix(), spec.color_range())
    }
}

impl Operator for TensorToFrame {
    fn name(&self) -> &'static str {
        "TensorToFrame"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let count = self.memories.len();
        cx.expect_counts(1..=1 + count, count..=count)?;
        self.pixels(cx)?;
        for m in self.copied() {
            cx.input(1 + m)?;
        }
        device::check_memories(cx, 1, &self.memories)?;
        let info = |bytes: &u64| Ok(TensorInfo::new(DType::U8, Shape::new([*bytes as usize])?));
        self.memories.iter().map(info).collect()
    }

    fn updating(&self, pairs: &[(usize, usize)], _: &OpCx) -> Option<Arc<dyn Operator>> {
        let all: Vec<(usize, usize)> = self.copied().map(|m| (1 + m, m)).collect();
        let mut given = pairs.to_vec();
        given.sort_unstable();
        (given == all).then(|| Arc::new(TensorToFrame { in_place: true, ..self.clone() }) as _)
    }

    fn updates(&self, output: usize) -> bool {
        self.in_place && self.keeps.get(output).copied().unwrap_or(false)
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let elements = cx.input_opt(0).map_or(0, |info| info.elements() as u64);
        Cost { flops: elements * 8, bytes: cx.bytes_touched() }
    }

    fn half_rule(&self) -> HalfRule {
        HalfRule::Full
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let loop_ = Loop::new(self, self.pixels(cx)?)?;
        let (inputs, copied, count) =
            (cx.input_count(), self.copied().collect::<Vec<_>>(), self.memories.len());
        Ok(NativeKernel::new("TensorToFrame", move |args| {
            let mut memories = Vec::with_capacity(count);
            for m in 0..count {
                let to = args.take_write::<u8>(inputs + m)?;
                if copied.contains(&m) {
                    to.copy_from_slice(args.read::<u8>(1 + m)?);
                }
                memories.push(to);
            }
            match loop_.pixels.info.dtype {
                DType::U8 => {
                    let x = args.read::<u8>(0)?;
                    loop_.run(&mut memories, |_, at| i32::from(x[at]) << ENCODED_FRACTION)
                }
                DType::F16 => {
                    let x = args.read::<f16>(0)?;
                    loop_.run(&mut memories, |c, at| loop_.value(c, x[at].to_f32()))
                }
                _ => {
                    let x = args.read::<f32>(0)?;
                    loop_.run(&mut memories, |c, at| loop_.value(c, x[at]))
                }
            }
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        device::to_frame(self, &self.spec, &self.memories, &self.pixels(cx)?, lower)
    }
}

/// The loop of the native function.
struct Loop {
    layout: Layout,
    pixels: Pixels,
    affine: Affine,
    origin: [u32; 2],
    columns: Vec<Tap>,
    rows: Vec<Tap>,
    denormalizing: [[f32; 2]; 4],
}

impl Loop {
    fn new(op: &TensorToFrame, pixels: Pixels) -> Result<Self, OpError> {
        let rect = op.spec.rect();
        Ok(Loop {
            layout: Layout::new(&op.spec)?,
            affine: op.affine(),
            origin: [rect.x, rect.y],
            columns: taps(pixels.filter, rect.width, pixels.width),
            rows: taps(pixels.filter, rect.height, pixels.height),
            denormalizing: pixels.denormalizing(),
            pixels,
        })
    }

    /// A number of the tensor as a value of 8 bits with [`ENCODED_FRACTION`]; black where it is none.
    fn value(&self, channel: usize, number: f32) -> i32 {
        let [scale, offset] = self.denormalizing[channel];
        let value = number * scale + offset;
        let value = if value > 0.0 { value.min(255.0) } else { 0.0 };
        (value * (1 << ENCODED_FRACTION) as f32 + 0.5) as i32
    }

    /// Writes the frame; `load` gives the value of the tensor's channel at an element.
    fn run(
        &self,
        memories: &mut [&mut [u8]],
        load: impl Fn(usize, usize) -> i32 + Sync,
    ) -> Result<(), KernelError> {
        let [channel_step, pixel_step] = self.pixels.steps();
        let width = self.pixels.width;
        let channel = |c: usize, x: usize, y: usize| {
            sampled(self.columns[x], self.rows[y], self.pixels.filter, WEIGHT_BITS, |x, y| {
                load(c, ((y * width + x) * pixel_step + c as u32 * channel_step) as usize)
            })
        };
        let order = self.pixels.channels.order();
        let color = |x: usize, y: usize| match self.pixels.channels.count() {
            1 => [channel(0, x, y); 3],
            _ => order.map(|c| channel(c, x, y)),
        };
        for (p, plane) in self.layout.planes.iter().enumerate() {
            let of_plane = |c: &usize| self.layout.format.components()[*c].plane == p;
            let components: Vec<usize> = (0..self.layout.components.len()).filter(of_plane).collect();
            let down = components.iter().map(|c| self.layout.components[*c].shifts[1]).max().unwrap_or(0);
            let first = (u64::from(self.origin[1] >> down) * plane.stride + plane.offset) as usize;
            let end = (plane.offset + plane.stride * (plane.rows - 1) + plane.row_bytes) as usize;
            let stride = if plane.rows > 1 { plane.stride as usize } else { plane.row_bytes as usize };
            let rows = memories[plane.memory][first..end]
                .chunks_mut(stride)
                .take(self.rows.len().div_ceil(1 << down));
            share(rows.enumerate(), |(row, line)| {
                for &c in &components {
                    self.write_component(c, row, line, color);
                }
                if let Some(beyond) = self.layout.alpha {
                    for x in 0..self.columns.len() {
                        let alpha = match self.pixels.channels.count() {
                            4 => (channel(3, x, row) + (1 << (ENCODED_FRACTION - 1))) >> ENCODED_FRACTION,
                            _ => 255,
                        };
                        line[self.byte(0, x) + beyond as usize] = alpha as u8;
                    }
                }
            });
        }
        Ok(())
    }

    /// Writes the samples of component `c` to row `row` of its rectangle.
    fn write_component(
        &self,
        c: usize,
        row: usize,
        line: &mut [u8],
        color: impl Fn(usize, usize) -> [i32; 3],
    ) {
        let of = &self.layout.components[c];
        let [across, down] = of.shifts;
        let count = across + down;
        let half_unit = (1 << count) >> 1;
        // Pixels beyond an odd side are as those at the edge.
        let last = [self.columns.len() - 1, self.rows.len() - 1];
        for column in 0..self.columns.len().div_ceil(1 << across) {
            let mut sum = [half_unit; 3];
            for dy in 0..1usize << down {
                for dx in 0..1usize << across {
                    let color =
                        color(((column << across) + dx).min(last[0]), ((row << down) + dy).min(last[1]));
                    sum.iter_mut().zip(color).for_each(|(sum, v)| *sum += v);
                }
            }
            let v =
                self.affine.apply(c, sum.map(|v| v >> count)) >> Affine::encoded_point(self.layout.format);
            let at = self.byte(c, column);
            if self.layout.is_wide() {
                line[at..at + 2].copy_from_slice(&((v.clamp(0, 1023) as u16) << 6).to_le_bytes());
            } else {
                line[at] = v.clamp(0, 255) as u8;
            }
        }
    }

    /// The byte of a row of its plane at which the sample of component `c` in `column` of the rectangle begins.
    fn byte(&self, c: usize, column: usize) -> usize {
        let (of, component) = (&self.layout.components[c], &self.layout.format.components()[c]);
        component.byte as usize + ((self.origin[0] >> of.shifts[0]) as usize + column) * of.step as usize
    }
}
