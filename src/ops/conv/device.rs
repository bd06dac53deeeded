//! Convolutions on devices: the choice of kernels, and their parameters.

mod candidates;
mod patch;
mod wide;
mod winograd;

use super::After;
use super::dims::ConvDims;
use crate::dtype::DType;
use crate::expr::Function;
use crate::kernel::codes::channel::SLOPED;
use crate::kernel::codes::slices::{DEPTH, SMALL_DEPTH, TILE};
use crate::kernel::table::{id, params, spec, variants};
use crate::kernel::{KernelId, grid_1d};
use crate::ops::linalg::device::parts::{PartSums, parts};
use crate::ops::pack::Pack;
use crate::ops::window::AxisNumbers;
use crate::ops::{Activation, Lowering, OpCx, OpError, Operand, WindowAxis};

/// The largest number of input elements of one row that a kernel keeps in registers.
const MAX_SPAN: usize = 40;
/// The most taps of one row that are unrolled.
const MAX_UNROLLED: usize = 7;
/// Output channels that an invocation of the row kernel computes.
const ROW_TILE: usize = 8;
/// Elements of a row that an invocation of a row kernel computes where it has several taps.
const ROW_PIXELS: usize = 8;
/// More parts of a transposed convolution than this are better off on the CPU.
const MAX_PHASES: usize = 64;

/// A convolution that writes some or all elements of the output.
#[derive(Clone, Debug)]
struct Plain {
    batch: usize,
    groups: usize,
    ic: usize,
    oc: usize,
    axes: [WindowAxis; 3],
    /// Strides of channels, planes, rows and elements in the output, and its first element.
    y: [usize; 4],
    y_first: usize,
    /// How the weights lie: strides of groups, output channels, input channels and taps.
    first: i64,
    strides: [i64; 3],
    taps: [i64; 3],
}

impl Plain {
    /// Elements of the input.
    fn in_len(&self) -> usize {
        let plane: usize = self.axes.iter().map(|a| a.input).product();
        self.batch * self.groups * self.ic * plane
    }

    /// Whether each element of the output is of one element of the input, at the same place.
    fn is_pointwise(&self) -> bool {
        self.axes.iter().all(|a| a.is_plain() && a.input == a.output)
    }

    /// Whether the weights lie as `[group][channel][ic][kd][kh][kw]`, contiguous.
    fn has_plain_weights(&self) -> bool {
        let [kd, kh, kw] = self.axes.map(|a| a.kernel as i64);
        let of_ic = kd * kh * kw;
        let of_oc = of_ic * self.ic as i64;
        self.first == 0
            && self.strides == [of_oc * self.oc as i64, of_oc, of_ic]
            && self.taps == [kh * kw, kw, 1]
    }
}

/// The arguments that all kernels of one operator share.
struct Target<'c> {
    cx: &'c OpCx,
    activation: Activation,
    biased: bool,
    /// Whether input 3 is added to the output.
    summed: bool,
    /// Whether input 2 has slopes after the biases.
    sloped: bool,
    dtype: DType,
}

/// Emits Conv.
pub(super) fn conv(
    cx: &OpCx,
    dims: &ConvDims,
    after: After,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let target = Target::new(cx, after)?;
    let [d, h, w] = dims.axes;
    let taps = [h.kernel * w.kernel, w.kernel, 1].map(|s| s as i64);
    let of_oc = (dims.ic * dims.taps()) as i64;
    let mut plain = Plain {
        batch: dims.batch,
        groups: dims.group,
        ic: dims.ic,
        oc: dims.oc,
        axes: dims.axes,
        y: [d.output * h.output * w.output, h.output * w.output, w.output, 1],
        y_first: 0,
        first: 0,
        strides: [of_oc * dims.oc as i64, of_oc, dims.taps() as i64],
        taps,
    };
    if dims.is_pointwise() {
        // One long row.
        let plane = dims.in_plane();
        let row = WindowAxis { input: plane, output: plane, ..WindowAxis::UNIT };
        plain.axes = [WindowAxis::UNIT, WindowAxis::UNIT, row];
        plain.y = [plane, plane, plane, 1];
    }
    if dims.out_len() == 0 {
        return Ok(());
    }
    check_sizes(dims.in_len(), dims.out_len(), dims.weights_len())?;
    if dims.ic == 1 && dims.oc <= 4 && d == WindowAxis::UNIT && depthwise(&target, &plain, lower)? {
        return Ok(());
    }
    target.emit(&plain, lower)
}

/// Emits ConvTranspose: one convolution of stride 1 for every remainder of output places by the strides.
pub(super) fn transpose(
    cx: &OpCx,
    dims: &ConvDims,
    activation: Activation,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let target = Target::new(cx, activation.into())?;
    if dims.out_len() == 0 {
        return Ok(());
    }
    check_sizes(dims.in_len(), dims.out_len(), dims.weights_len())?;
    let phases: Vec<Vec<Phase>> = dims.axes.iter().map(Phase::all).collect();
    if phases.iter().map(Vec::len).product::<usize>() > MAX_PHASES {
        return Err(OpError::unsupported("a transposed convolution of so large strides"));
    }
    let [_, h, w] = dims.axes;
    let rows = [h.input * w.input, w.input, 1];
    let taps = [h.kernel * w.kernel, w.kernel, 1].map(|s| s as i64);
    let (taps_len, oc) = (dims.taps() as i64, dims.oc as i64);
    let mut joined = false;
    for pd in &phases[0] {
        for ph in &phases[1] {
            for pw in &phases[2] {
                let all = [pd, ph, pw];
                let stride = |i: usize| rows[i] * dims.axes[i].stride;
                let plain = Plain {
                    batch: dims.batch,
                    groups: dims.group,
                    ic: dims.ic,
                    oc: dims.oc,
                    axes: all.map(|p| p.axis),
                    y: [dims.out_plane(), stride(0), stride(1), stride(2)],
                    y_first: all.iter().zip(rows).map(|(p, r)| p.place * r).sum(),
                    first: all.iter().zip(taps).map(|(p, t)| p.first * t).sum(),
                    strides: [dims.ic as i64 * oc * taps_len, taps_len, oc * taps_len],
                    taps: [0, 1, 2].map(|i| all[i].step * taps[i]),
                };
                target.emit(&plain, lower)?;
                if std::mem::replace(&mut joined, true) && cx.value(1).is_some() {
                    lower.no_barrier();
                }
            }
        }
    }
    Ok(())
}

impl After {
    /// The activation of kernels, which take slopes as parameters of one.
    pub(super) fn on_devices(&self) -> Activation {
        if self.sloped { Activation::of(Function::LeakyRelu) } else { self.activation }
    }
}

/// What kernels are told of an input with biases, and maybe slopes.
pub(super) fn biased_code(biased: bool, sloped: bool) -> u32 {
    if sloped { SLOPED as u32 } else { u32::from(biased) }
}

/// Kernels index with 32 bits.
pub(super) fn check_sizes(input: usize, output: usize, weights: usize) -> Result<(), OpError> {
    // Packing rounds channels up to eights.
    let limit = i32::MAX as usize / 16;
    if input.max(output) > limit * 8 || weights > limit {
        return Err(OpError::unsupported("a convolution of more elements than a kernel can index"));
    }
    Ok(())
}

/// The outputs of one axis of a transposed convolution at `place + q * stride`, as a convolution of stride 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Phase {
    place: usize,
    axis: WindowAxis,
    /// The first tap in the order of the convolution, and the stride to the next.
    first: i64,
    step: i64,
}

impl Phase {
    fn all(axis: &WindowAxis) -> Vec<Phase> {
        (0..axis.stride.min(axis.input)).map(|place| Phase::new(axis, place)).collect()
    }

    /// Output o takes input i by tap k where o = i * stride + k * dilation - pad.
    fn new(axis: &WindowAxis, place: usize) -> Phase {
        let (stride, dilation) = (axis.stride as i64, axis.dilation as i64);
        let sum = place as i64 + axis.pads[0];
        let hits = |k: &i64| (sum - k * dilation).rem_euclid(stride) == 0;
        let taps: Vec<i64> = (0..axis.kernel as i64).filter(hits).collect();
        let step = taps.get(1).map_or(0, |k| k - taps[0]);
        // The largest tap reads the leftmost input.
        let last = taps.last().copied().unwrap_or(0);
        let left = (sum - last * dilation).div_euclid(stride);
        Phase {
            place,
            axis: WindowAxis {
                input: axis.output,
                output: (axis.input - place).div_ceil(axis.stride),
                kernel: taps.len(),
                stride: 1,
                dilation: (step * dilation / stride).max(1) as usize,
                pads: [-left, 0],
            },
            first: last,
            step: -step,
        }
    }
}

/// The access pattern of a row kernel along a row of the input.
struct Reading {
    /// Elements of the output.
    px: usize,
    /// Unrolled taps and how often they are repeated.
    kw: usize,
    repeats: usize,
    scattered: bool,
    shift: u32,
}

impl Reading {
    fn new(w: &WindowAxis) -> Reading {
        let narrow = w.output.next_multiple_of(8) < w.output.next_multiple_of(16);
        let px = if w.kernel <= 1 && w.stride == 1 && !narrow { 16 } else { ROW_PIXELS };
        let span = |taps: usize| (px - 1) * w.stride + (taps.max(1) - 1) * w.dilation + 1;
        let (kw, repeats) = match w.kernel {
            0 => (1, 0),
            k if k <= MAX_UNROLLED && w.stride <= 2 && span(k) <= MAX_SPAN => (k, 1),
            k => (1, k),
        };
        let scattered = w.stride > 2;
        // Rows that begin at texels begin all at one place in a texel.
        let fixed = w.input.is_multiple_of(4) && repeats <= 1 && !scattered;
        let shift = if fixed { (-w.pads[0]).rem_euclid(4) as u32 } else { 4 };
        Reading { px, kw, repeats, scattered, shift }
    }
}

impl<'c> Target<'c> {
    fn new(cx: &'c OpCx, after: After) -> Result<Self, OpError> {
        let After { summed, sloped, .. } = after;
        Ok(Target {
            cx,
            activation: after.on_devices(),
            biased: cx.has(2),
            summed,
            sloped,
            dtype: cx.dtype(0)?,
        })
    }

    /// What kernels are told of input 2.
    fn biased_code(&self) -> u32 {
        biased_code(self.biased, self.sloped)
    }

    fn bias(&self) -> Operand {
        if self.biased { Operand::Input(2) } else { Operand::Unused }
    }

    /// The summand of the output, if there is one.
    fn summand(&self) -> Option<Operand> {
        self.summed.then_some(Operand::Input(3))
    }

    fn summand_arg(&self) -> Operand {
        self.summand().unwrap_or(Operand::Unused)
    }

    fn summed_constant(&self) -> (u32, u32) {
        (spec::output::SUMMED, u32::from(self.summed))
    }

    fn emit(&self, c: &Plain, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        if !matches!(self.dtype, DType::F32 | DType::F16) {
            return Err(OpError::unsupported(format!("no device kernel for convolutions of {}", self.dtype)));
        }
        self.lower_chosen(c, lower)
    }

    /// Whether `float16` is better read by texels, and can be.
    fn by_texels(&self, c: &Plain, lower: &Lowering<'_>) -> bool {
        let device = lower.device();
        let elements = c.in_len().max(self.pack(c, ROW_TILE).len());
        device.prefers_texels
            && lower.can_run(id::CONV_ROW_HALF)
            && elements.div_ceil(4) as u64 <= device.limits.max_texels
    }

    fn pack(&self, c: &Plain, tile: usize) -> Pack {
        Pack {
            groups: c.groups,
            tile,
            oc: c.oc,
            ic: c.ic,
            taps: c.axes.map(|a| a.kernel),
            first: c.first,
            group_stride: c.strides[0],
            oc_stride: c.strides[1],
            ic_stride: c.strides[2],
            tap_strides: c.taps,
        }
    }

    /// Register tiles over rows, in work-groups of `local` invocations.
    fn rows(&self, c: &Plain, local: u32, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let [d, h, w] = c.axes;
        let read = Reading::new(&w);
        let pack = self.pack(c, ROW_TILE);
        let steps = (512 / (read.px * read.kw * ROW_TILE)).clamp(1, 4);
        let one_tap = c.axes.iter().all(|a| a.kernel == 1) && c.has_plain_weights();
        let plain = one_tap && steps == 4 && c.ic.is_multiple_of(4);
        let weights = if plain { Operand::Input(1) } else { pack.weights(self.cx, lower)? };
        let elements = c.in_len();
        let whole = c.y[3] == 1 && [c.y[0], c.y[1], c.y[2], c.y_first, w.output].iter().all(|s| s % 4 == 0);
        let (texels, last) = texels(lower, elements, pack.len());
        let kernel = variants::ConvRow { t: self.dtype, texels, out4: whole }.id()?;
        let (code, [act_a, act_b]) = self.activation.code();
        let spec = [
            (0, local),
            (spec::conv_row::PX, read.px as u32),
            (spec::conv_row::KW, read.kw as u32),
            (spec::conv_row::SX, w.stride as u32),
            (spec::conv_row::DX, w.dilation as u32),
            (spec::conv_row::SHIFT, read.shift),
            (spec::conv_row::SCATTERED, u32::from(read.scattered)),
            (spec::conv_row::BIASED, self.biased_code()),
            (spec::conv_row::ACTIVATION, code),
            (spec::conv_row::STEPS, steps as u32),
            (spec::conv_row::PLAIN, u32::from(plain)),
            self.summed_constant(),
        ];
        let n =
            w.output.div_ceil(read.px) * h.output * d.output * c.oc.div_ceil(ROW_TILE) * c.groups * c.batch;
        let numbers = AxisNumbers::new(c.axes)?;
        let params = params::ConvRow {
            n: n as u32,
            output: numbers.into(),
            oc: c.oc as u32,
            groups: c.groups as u32,
            ic: c.ic as u32,
            window: numbers.row_window(read.repeats as u32),
            yc: c.y[0] as u32,
            yd: c.y[1] as u32,
            yh: c.y[2] as u32,
            yw: c.y[3] as u32,
            y_first: c.y_first as u32,
            last,
            act_a,
            act_b,
        };
        let groups = grid_1d(n as u64, local, lower.device().limits.max_groups[0]);
        let args = [Operand::Input(0), weights, self.bias(), Operand::Output(0), self.summand_arg()];
        // An invocation writes several quads of a row, so neighbours write no neighbouring pieces.
        lower.dispatch(kernel, &spec, &args, &params, groups)
    }

    /// Tiles in workgroup memory, of `tile` channels and elements.
    fn tiles(
        &self,
        c: &Plain,
        tile: usize,
        kernel: KernelId,
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        let weights = if c.has_plain_weights() {
            Operand::Input(1)
        } else {
            self.pack(c, 1).weights(self.cx, lower)?
        };
        let (code, _) = self.activation.code();
        let spec = vec![
            (spec::conv_tile::POINTWISE, u32::from(c.is_pointwise())),
            (spec::conv_tile::BIASED, self.biased_code()),
            (spec::conv_tile::ACTIVATION, code),
            self.summed_constant(),
        ];
        let depth = if tile == TILE { DEPTH } else { SMALL_DEPTH };
        let steps = c.depth().div_ceil(depth);
        let groups = [c.plane().div_ceil(tile), c.oc.div_ceil(tile)];
        self.shared_out(c, Tiles { kernel, spec, groups, steps, weights }, lower)?;
        writes_quads(lower, c.has_whole_quads(), self.dtype);
        Ok(())
    }

    /// Emits `tiles`, their depth shared out where that keeps more of the device busy.
    fn shared_out(&self, c: &Plain, tiles: Tiles, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Tiles { kernel, mut spec, groups: [across, down], steps, weights } = tiles;
        let (plane, batch) = (c.plane(), c.batch * c.groups);
        let parts = if c.is_whole() { parts(lower, across * down * batch, steps) } else { 1 };
        let sums = (parts > 1).then(|| PartSums {
            parts,
            sizes: [c.batch, c.groups * c.oc, plane],
            c: self.biased.then(|| (self.bias(), [1, 0])),
            summand: self.summand(),
            alpha: 1.0,
            beta: 1.0,
            activation: self.activation,
            sloped: self.sloped,
            dtype: self.dtype,
            y: Operand::Output(0),
        });
        let params = product_params(c, self.activation)?;
        let scratch = sums.as_ref().map_or(Operand::Unused, |sums| sums.scratch(lower));
        if parts > 1 {
            spec.push((spec::parts::PARTS, parts as u32));
        }
        let y = if parts > 1 { Operand::Unused } else { Operand::Output(0) };
        let groups = [across, down, batch * parts].map(|g| g as u32);
        let summand = if parts > 1 { Operand::Unused } else { self.summand_arg() };
        let args = [Operand::Input(0), weights, self.bias(), y, scratch, summand];
        lower.dispatch(kernel, &spec, &args, &params, groups)?;
        sums.map_or(Ok(()), |sums| sums.add(scratch, lower))
    }
}

/// A kernel of tiles of workgroup memory, with its constants.
struct Tiles {
    kernel: KernelId,
    spec: Vec<(u32, u32)>,
    /// Work-groups along the elements and along the output channels.
    groups: [usize; 2],
    /// Steps of the depth.
    steps: usize,
    weights: Operand,
}

/// What the last step writes: `quads` of elements of float32 fill lines, those of halves and single elements do not.
fn writes_quads(lower: &mut Lowering<'_>, quads: bool, dtype: DType) {
    if quads && dtype == DType::F32 {
        lower.writes_in_order(4 * dtype.bytes());
    }
}

/// Sizes and strides as parameters of kernels over plain buffers.
fn product_params(c: &Plain, activation: Activation) -> Result<params::Unfold, OpError> {
    let (_, [act_a, act_b]) = activation.code();
    let numbers = AxisNumbers::new(c.axes)?;
    Ok(params::Unfold {
        output: numbers.into(),
        oc: c.oc as u32,
        groups: c.groups as u32,
        ic: c.ic as u32,
        window: numbers.into(),
        yc: c.y[0] as u32,
        yd: c.y[1] as u32,
        yh: c.y[2] as u32,
        yw: c.y[3] as u32,
        y_first: c.y_first as u32,
        act_a,
        act_b,
    })
}

/// Whether an input and packed weights of so many elements are read by texels, and the last index into the input.
fn texels(lower: &Lowering<'_>, input: usize, weights: usize) -> (bool, i32) {
    let device = lower.device();
    let texels = input.max(weights).div_ceil(4) as u64;
    let by_texels = device.prefers_texels && texels <= device.limits.max_texels;
    (by_texels, if by_texels { input.div_ceil(4) } else { input } as i32 - 1)
}

/// Emits a convolution of one input channel per group, unless its window is too large for the kernel.
fn depthwise(target: &Target<'_>, c: &Plain, lower: &mut Lowering<'_>) -> Result<bool, OpError> {
    let [_, h, w] = c.axes;
    let Some((px, rows, local)) = target.depthwise_tile(c, lower) else { return Ok(false) };
    let channels = c.groups * c.oc;
    let taps = (h.kernel * w.kernel) as i64;
    let pack = Pack {
        groups: channels,
        tile: w.kernel.next_multiple_of(4),
        oc: w.kernel,
        ic: 1,
        taps: [1, h.kernel, 1],
        first: 0,
        group_stride: taps,
        oc_stride: 1,
        ic_stride: 0,
        tap_strides: [0, w.kernel as i64, 0],
    };
    let weights = pack.weights(target.cx, lower)?;
    let elements = c.batch * c.groups * h.input * w.input;
    let whole = w.output.is_multiple_of(4);
    let (mut texels, mut last) = texels(lower, elements, pack.len());
    let mut out4 = whole;
    if target.dtype == DType::F16 && !(texels && lower.can_run(id::DEPTHWISE_HALF)) {
        (texels, out4, last) = (false, false, elements as i32 - 1);
    }
    let kernel = variants::Depthwise { t: target.dtype, texels, out4 }.id()?;
    let shift = if w.input.is_multiple_of(4) { (-w.pads[0]).rem_euclid(4) as u32 } else { 4 };
    let (code, [act_a, act_b]) = target.activation.code();
    let spec = [
        (0, local),
        (spec::depthwise::PX, px as u32),
        (spec::depthwise::ROWS, rows as u32),
        (spec::depthwise::KW, w.kernel as u32),
        (spec::depthwise::KH, h.kernel as u32),
        (spec::depthwise::SX, w.stride as u32),
        (spec::depthwise::SY, h.stride as u32),
        (spec::depthwise::DX, w.dilation as u32),
        (spec::depthwise::DY, h.dilation as u32),
        (spec::depthwise::SHIFT, shift),
        (spec::depthwise::BIASED, target.biased_code()),
        (spec::depthwise::ACTIVATION, code),
        target.summed_constant(),
    ];
    let n = w.output.div_ceil(px) * h.output.div_ceil(rows) * channels * c.batch;
    let numbers = AxisNumbers::new([h, w])?;
    let params = params::Depthwise {
        n: n as u32,
        output: numbers.into(),
        channels: channels as u32,
        multiplier: c.oc as u32,
        plane: numbers.into(),
        last,
        act_a,
        act_b,
    };
    let groups = grid_1d(n as u64, local, lower.device().limits.max_groups[0]);
    let args = [Operand::Input(0), weights, target.bias(), Operand::Output(0), target.summand_arg()];
    lower.dispatch(kernel, &spec, &args, &params, groups)?;
    writes_quads(lower, out4, target.dtype);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn phases_reach_what_the_definition_reaches(
            input in 1usize..6, kernel in 1usize..6, stride in 1usize..5, dilation in 1usize..5,
            pad in 0i64..4, output in 1usize..20,
        ) {
            let axis = WindowAxis { input: output, output: input, kernel, stride, dilation, pads: [pad, 0] };
            let mut want: Vec<(usize, usize, i64)> = Vec::new();
            for i in 0..input {
                for k in 0..kernel {
                    let o = (i * stride + k * dilation) as i64 - pad;
                    if (0..output as i64).contains(&o) {
                        want.push((o as usize, i, k as i64));
                    }
                }
            }
            let mut got = Vec::new();
            for phase in Phase::all(&axis) {
                for q in 0..phase.axis.output {
                    for j in 0..phase.axis.kernel {
                        if let Some(i) = phase.axis.at(q, j) {
                            got.push((phase.place + q * stride, i, phase.first + j as i64 * phase.step));
                        }
                    }
                }
            }
            want.sort_unstable();
            got.sort_unstable();
            prop_assert_eq!(got, want);
        }
    }

    #[cfg(feature = "vulkan")]
    mod on_devices {
        use super::super::*;
        use crate::expr::Function;
        use crate::graph::Tensor;
        use crate::ops::conv::{Conv, ConvTranspose};
        use crate::ops::test_util::{tensor, tensor_of, values};
        use crate::ops::testing::{Check, as_is, devices, no_texels, short_texels};
        use crate::ops::{Operator, WindowAttrs};

        const RELU: Activation = Activation::of(Function::Relu);

        fn window(strides: &[i64], dilations: &[i64], pads: &[i64]) -> WindowAttrs {
            let list = |l: &[i64]| l.to_vec();
            WindowAttrs {
                strides: list(strides),
                dilations: list(dilations),
                pads: list(pads),
                ..WindowAttrs::default()
            }
        }

        fn check(op: &dyn Operator, x: &[usize], w: &[usize], bias: usize, every: bool) {
            let inputs = [Some(tensor(x, 1)), Some(tensor(w, 2)), Some(tensor(&[bias], 3))];
            let changes: &[fn(&mut crate::backend::DeviceInfo)] =
                if every { &[as_is, no_texels, short_texels] } else { &[as_is, no_texels] };
            for change in changes {
                Check::new(op, &inputs).constants(&[1]).pretend(*change).tolerance(1e-4).run();
            }
            let unbiased = [inputs[0].clone(), inputs[1].clone()];
            Check::new(op, &unbiased).tolerance(1e-4).run();
        }

        #[test]
        fn conv_is_the_same() {
            let conv = |window: WindowAttrs, group: usize| Conv {
                window,
                group,
                activation: RELU,
                ..Conv::default()
            };
            let same = window(&[], &[], &[1, 1, 1, 1]);
            // Rows of whole texels, then odd ones, then more channels than a tile.
            check(&conv(same.clone(), 1), &[1, 3, 12, 16], &[8, 3, 3, 3], 8, true);
            check(&conv(same.clone(), 1), &[2, 5, 7, 13], &[11, 5, 3, 3], 11, true);
            check(&conv(same.clone(), 2), &[1, 8, 9, 9], &[70, 4, 3, 3], 70, false);
            // Pointwise: whole texels and not.
            check(&conv(WindowAttrs::default(), 1), &[2, 20, 6, 6], &[9, 20, 1, 1], 9, true);
            check(&conv(WindowAttrs::default(), 3), &[1, 9, 5, 7], &[6, 3, 1, 1], 6, false);
            // Strides, dilations, long and wide windows, a patch embedding.
            check(&conv(window(&[2, 2], &[], &[3, 3, 2, 2]), 1), &[1, 3, 20, 21], &[8, 3, 7, 7], 8, false);
            check(&conv(window(&[1, 2], &[2, 3], &[0, 1, 2, 0]), 1), &[1, 2, 9, 20], &[3, 2, 3, 3], 3, false);
            check(&conv(window(&[], &[], &[0, 5, 0, 5]), 1), &[1, 2, 3, 20], &[3, 2, 1, 11], 3, false);
            check(&conv(window(&[4, 4], &[], &[]), 1), &[1, 3, 12, 16], &[5, 3, 4, 4], 5, false);
            // One and three dimensions.
            check(&conv(window(&[2], &[], &[1, 1]), 1), &[2, 3, 17], &[4, 3, 3], 4, false);
            check(&conv(window(&[1, 2, 1], &[], &[1; 6]), 1), &[1, 2, 4, 5, 6], &[3, 2, 3, 2, 3], 3, false);
        }

        #[test]
        fn depthwise_is_the_same() {
            let conv = |window: WindowAttrs, group: usize| Conv {
                window,
                group,
                activation: RELU,
                ..Conv::default()
            };
            check(&conv(window(&[], &[], &[1, 1, 1, 1]), 5), &[2, 5, 7, 12], &[5, 1, 3, 3], 5, true);
            check(&conv(window(&[2, 2], &[], &[0, 1, 1, 0]), 3), &[1, 3, 9, 11], &[6, 1, 3, 3], 6, false);
            check(&conv(window(&[1, 1], &[2, 1], &[2, 2, 2, 2]), 4), &[1, 4, 8, 9], &[4, 1, 3, 5], 4, false);
        }

        #[test]
        fn transposed_is_the_same() {
            let op = |window: WindowAttrs, group: usize, padding: &[i64]| ConvTranspose {
                window,
                group,
                output_padding: padding.to_vec(),
                activation: RELU,
                ..ConvTranspose::default()
            };
            check(&op(window(&[2, 2], &[], &[1, 1, 1, 1]), 1, &[]), &[1, 4, 6, 8], &[4, 5, 4, 4], 5, false);
            check(
                &op(window(&[2, 3], &[], &[1, 0, 0, 1]), 2, &[1, 1]),
                &[2, 4, 5, 3],
                &[4, 3, 3, 2],
                6,
                false,
            );
            check(&op(window(&[3], &[2], &[1, 2]), 1, &[]), &[1, 2, 9], &[2, 9, 3], 9, false);
            check(&op(window(&[1, 2, 1], &[], &[]), 1, &[]), &[1, 2, 3, 2, 4], &[2, 3, 2, 1, 3], 3, false);
        }

        #[test]
        fn halves_are_the_same() {
            let half = |t: &[usize], seed| {
                let n = t.iter().product();
                Some::<Tensor>(tensor_of(t, &values(n, seed), half::f16::from_f32))
            };
            let check = |op: &dyn Operator, inputs: &[Option<Tensor>]| {
                for change in [as_is, no_texels, short_texels] {
                    Check::new(op, inputs).pretend(change).tolerance(4e-3).run();
                    Check::new(op, inputs).constants(&[1]).pretend(change).tolerance(4e-3).run();
                }
            };
            let op = Conv {
                window: window(&[], &[], &[1, 1, 1, 1]),
                group: 2,
                activation: RELU,
                ..Conv::default()
            };
            check(&op, &[half(&[1, 6, 7, 9], 1), half(&[10, 3, 3, 3], 2), half(&[10], 3)]);
            check(&op, &[half(&[1, 6, 5, 12], 1), half(&[10, 3, 3, 3], 2), half(&[10], 3)]);
            let op = Conv { group: 6, ..op };
            check(&op, &[half(&[1, 6, 7, 9], 1), half(&[6, 1, 3, 3], 2), half(&[6], 3)]);
            check(&op, &[half(&[1, 6, 7, 8], 1), half(&[6, 1, 3, 3], 2), half(&[6], 3)]);
        }

        /// Sizes for which there are enough wide tiles.
        #[test]
        fn large_ones_are_the_same() {
            let one = |op: &dyn Operator, inputs: &[Option<Tensor>], tolerance| {
                Check::new(op, inputs).constants(&[1]).pretend(no_texels).tolerance(tolerance).run();
            };
            let check = |op: &dyn Operator, x: &[usize], w: &[usize], bias: usize| {
                let bias = [bias];
                let shapes = [x, w, &bias];
                let singles = [0, 1, 2].map(|i| Some(tensor(shapes[i], i as u64 + 1)));
                one(op, &singles, 1e-4);
                let half = |i: usize| {
                    let s: &[usize] = shapes[i];
                    Some(tensor_of(s, &values(s.iter().product(), i as u64 + 1), half::f16::from_f32))
                };
                one(op, &[0, 1, 2].map(half), 4e-3);
            };
            let same = Conv { window: window(&[], &[], &[1, 1, 1, 1]), activation: RELU, ..Conv::default() };
            check(&same, &[1, 9, 64, 130], &[70, 9, 3, 3], 70);
            let strided = Conv {
                window: window(&[1, 2], &[2, 1], &[0, 2, 1, 0]),
                group: 2,
                activation: RELU,
                ..Conv::default()
            };
            check(&strided, &[2, 20, 44, 47], &[130, 10, 3, 3], 130);
            let pointwise = Conv { window: WindowAttrs::default(), activation: RELU, ..Conv::default() };
            check(&pointwise, &[1, 17, 91, 91], &[131, 17, 1, 1], 131);
            let up = ConvTranspose {
                window: window(&[2, 2], &[], &[]),
                activation: RELU,
                ..ConvTranspose::default()
            };
            check(&up, &[1, 8, 91, 92], &[8, 65, 2, 2], 65);
        }

        /// More transformed tiles than are made at a time.
        #[test]
        fn transformed_parts_are_the_same() {
            let op = Conv { window: window(&[], &[], &[1, 1, 1, 1]), activation: RELU, ..Conv::default() };
            let inputs = [Some(tensor(&[1, 128, 170, 174], 1)), Some(tensor(&[130, 128, 3, 3], 2))];
            let check = Check::new(&op, &inputs).tolerance(1e-4);
            for context in devices() {
                let kernels = check.kernels_on(context);
                assert_eq!(kernels.iter().filter(|k| **k == "winograd_input_f32").count(), 2, "{kernels:?}");
            }
            check.run();
        }

        /// Sums of 1,827 products, which the CPU adds plainly.
        const NEAR: f64 = 2e-4;

        /// Sizes for which transformed tiles are faster: odd channels and places, several images, none of whose tiles is
        /// whole at its ends.
        #[test]
        fn transformed_ones_are_the_same() {
            let op = Conv { window: window(&[], &[], &[1, 0, 2, 1]), activation: RELU, ..Conv::default() };
            let (x, w) = ([2, 203, 33, 38], [121, 203, 3, 3]);
            for change in [as_is as fn(&mut crate::backend::DeviceInfo), no_texels] {
                let inputs = [Some(tensor(&x, 1)), Some(tensor(&w, 2)), Some(tensor(&[121], 3))];
                Check::new(&op, &inputs).pretend(change).tolerance(NEAR).run();
                Check::new(&op, &inputs[..2]).constants(&[1]).pretend(change).tolerance(NEAR).run();
                let half = |t: &[usize], seed| {
                    let n = t.iter().product();
                    Some::<Tensor>(tensor_of(t, &values(n, seed), half::f16::from_f32))
                };
                for context in devices() {
                    let kernels = Check::new(&op, &inputs).pretend(change).kernels_on(context);
                    assert!(kernels.contains(&"winograd_input_f32"), "{kernels:?}");
                }
                let halves = [half(&x, 1), half(&w, 2), half(&[121], 3)];
                Check::new(&op, &halves).pretend(change).tolerance(4e-3).run();
            }
        }
    }
}
