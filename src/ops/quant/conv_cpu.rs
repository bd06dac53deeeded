//! Convolutions of bytes on the CPU: products with an image that lies as taps read it.

use std::sync::Arc;

use super::depthwise;
use super::interleaved::{Interleaved, Order, View};
use super::product::{Inputs, Numbers, Places, Repeated, Requantize, SumsBecome, flip};
use super::scaling::range_of;
use crate::dot::Unit;
use crate::dtype::{DType, Element};
use crate::kernel::{KernelError, NativeArgs};
use crate::ops::conv::dims::ConvDims;
use crate::ops::linalg::bytes::{Around, FLIP, Product, row_sums, with_scratch};
use crate::ops::linalg::product::Threads;
use crate::ops::planes::Planes;
use crate::ops::real::check_len;
use crate::ops::{OpCx, OpError, PackKey, Packed, par};

/// The packed layout of weights: signed bytes, a row for every output channel, in the order of the image to
/// multiply with, and after them the sums of all rows as 32-bit integers.
#[derive(Clone, Copy, Debug)]
struct Packing {
    order: Order,
    channels: usize,
    /// Bytes of a channel as they are, and of a packed row.
    given: usize,
    row: usize,
}

impl Packing {
    fn new(dims: &ConvDims, image: &Interleaved) -> Packing {
        let (given, row) = (dims.ic * dims.taps(), 4 * image.offsets().len());
        Packing { order: image.order(), channels: dims.group * dims.oc, given, row }
    }

    fn bytes(&self) -> usize {
        self.channels * (self.row + 4)
    }

    fn pack(&self, w: &[u8], flip: u8, to: &mut [u8]) {
        let Some((rows, sums)) = to.split_at_mut_checked(self.channels * self.row) else { return };
        rows.fill(0);
        for (to, from) in rows.chunks_mut(self.row.max(1)).zip(w.chunks(self.given.max(1))) {
            for (i, byte) in from.iter().enumerate() {
                if let Some(to) = to.get_mut(self.order.at(i)) {
                    *to = byte ^ flip;
                }
            }
        }
        let of_rows = row_sums::<true>(rows, self.row);
        sums.as_chunks_mut::<4>().0.iter_mut().zip(of_rows).for_each(|(to, sum)| *to = sum.to_ne_bytes());
    }

    fn unpack(&self, packed: &[u8], flip: u8, w: &mut [u8]) {
        for (from, to) in packed.chunks(self.row.max(1)).zip(w.chunks_mut(self.given.max(1))) {
            for (i, byte) in to.iter_mut().enumerate() {
                *byte = from.get(self.order.at(i)).copied().unwrap_or(0) ^ flip;
            }
        }
    }
}

/// The algorithm of a convolution.
enum Way {
    Product(Box<Interleaved>),
    /// One input channel per group.
    Depthwise(Box<Planes>),
    /// Output by output: for windows that see padding more than anything else.
    Plain,
}

/// A convolution ready to run.
pub(super) struct Call {
    places: Places,
    dims: ConvDims,
    inputs: Inputs,
    made: SumsBecome,
    /// The output's type.
    to: DType,
    way: Way,
    /// Bytes of the weights, where they are given packed.
    packed: Option<usize>,
}

impl Call {
    pub(super) fn new(cx: &OpCx, places: Places, dims: ConvDims, made: SumsBecome) -> Result<Call, OpError> {
        let way = match depthwise::planes(&dims) {
            Some(planes) => Way::Depthwise(Box::new(planes)),
            None => Interleaved::new(&dims).map_or(Way::Plain, |image| Way::Product(Box::new(image))),
        };
        let to = cx.output(0)?.dtype;
        Ok(Call { places, dims, inputs: Inputs::of(cx), made, to, way, packed: None })
    }

    /// Constant weights as the call reads them from then on, where it reads them in a layout of its own.
    pub(super) fn pack(&mut self, cx: &OpCx) -> Option<Packed> {
        let (source, Way::Product(image)) = (cx.packable(self.places.b)?, &self.way) else { return None };
        let (packing, flip) = (Packing::new(&self.dims, image), flip(source.dtype(), FLIP));
        let [d, h, w] = self.dims.axes.map(|axis| axis.kernel);
        let [ic, plane, line] = [self.dims.ic, d * h, w].map(|n| u32::try_from(n).ok());
        let key = PackKey { layout: "bytes of taps", numbers: [ic?, plane?, line?, flip.into()] };
        self.packed = Some(packing.bytes());
        Some(Packed {
            source: source.clone(),
            key,
            bytes: packing.bytes(),
            pack: Arc::new(move |source, to| {
                packing.pack(source.bytes(), flip, to);
                Ok(())
            }),
            optional: false,
            lines: None,
            in_place: None,
            unpack: Some(Arc::new(move |packed, to| packing.unpack(packed, flip, to))),
        })
    }

    pub(super) fn run(&self, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
        let (p, inputs) = (self.places, &self.inputs);
        let (x, x_flip) = inputs.bytes(args, p.a, 0)?;
        let w_flip = inputs.flip(p.b, FLIP)?;
        let w = match self.packed {
            Some(bytes) => {
                let w = args.read::<u8>(p.b)?;
                check_len(p.b, w.len(), bytes)?;
                w
            }
            None => inputs.bytes(args, p.b, FLIP)?.0,
        };
        let x_zero = inputs.zeros(args, p.a_zero)?.whole(i32::from(x_flip)).at(0);
        let w_zeros = inputs.zeros(args, p.b_zero)?.whole(-i32::from(w_flip));
        // Those of bytes are of the sums.
        let bias =
            if self.made == SumsBecome::Sums || self.to == DType::F32 { &[] } else { self.bias(args)? };
        let sums = Sums { call: self, x, x_flip, x_zero, w, w_flip, w_zeros, bias };
        match self.made {
            SumsBecome::Sums => sums.each(
                self.output(args)?,
                #[inline(always)]
                |_, sums, y| {
                    y.iter_mut().zip(sums).for_each(|(y, sum)| *y = *sum);
                },
            ),
            SumsBecome::Bytes { clamp } => {
                let zero = p.y_zero.map_or(Ok(0.0), |i| inputs.zeros(args, i).map(|z| z.at(0)))?;
                let to = Requantize { zero, range: range_of(self.to, clamp).unwrap_or_default() };
                let factors = self.factors(args, inputs.scales(args, p.y_scale)?.at(0))?;
                sums.each(
                    self.output(args)?,
                    #[inline(always)]
                    |channel, sums, y| to.bytes(sums, of_channel(&factors, channel), y),
                );
            }
            SumsBecome::Numbers { activation } => {
                let (to, factors) = (Numbers { activation }, self.factors(args, 1.0)?);
                let bias = self.bias(args)?;
                sums.each(
                    self.output(args)?,
                    #[inline(always)]
                    |channel, sums, y| {
                        to.of(sums, of_channel(&factors, channel), of_channel(bias, channel), y);
                    },
                );
            }
        }
        Ok(())
    }

    /// The output.
    fn output<'a, T: Element>(&self, args: &mut NativeArgs<'a, '_>) -> Result<&'a mut [T], KernelError> {
        let result = self.inputs.count();
        let y = args.take_write::<T>(result)?;
        check_len(result, y.len(), self.dims.out_len())?;
        Ok(y)
    }

    /// The bias of every channel, empty where there is none.
    fn bias<'a, T: Element>(&self, args: &NativeArgs<'a, '_>) -> Result<&'a [T], KernelError> {
        let Some(i) = self.places.bias.filter(|b| self.inputs.has(*b)) else { return Ok(&[]) };
        let bias = args.read::<T>(i)?;
        check_len(i, bias.len(), self.dims.group * self.dims.oc)?;
        Ok(bias)
    }

    /// The factor of every channel's sums: the scales, divided by `by`.
    fn factors(&self, args: &NativeArgs<'_, '_>, by: f32) -> Result<Vec<f32>, KernelError> {
        let (p, inputs) = (self.places, &self.inputs);
        let (x_scale, w_scale) = (inputs.scales(args, p.a_scale)?.at(0), inputs.scales(args, p.b_scale)?);
        Ok((0..self.dims.group * self.dims.oc).map(|c| x_scale * w_scale.at(c) / by).collect())
    }
}

/// The number of a channel, none where there are none.
fn of_channel(all: &[f32], channel: usize) -> &[f32] {
    all.get(channel..=channel).unwrap_or(&[])
}

/// The operands; `x` is made unsigned and `w` signed by their flips, and so are their zero points.
pub(super) struct Sums<'a> {
    call: &'a Call,
    pub(super) x: &'a [u8],
    pub(super) x_flip: u8,
    pub(super) x_zero: i32,
    pub(super) w: &'a [u8],
    pub(super) w_flip: u8,
    pub(super) w_zeros: Repeated<i32>,
    pub(super) bias: &'a [i32],
}

impl Sums<'_> {
    /// Makes all elements of `y` by `finish(channel, sums, elements)`, which must be `#[inline(always)]`.
    fn each<T: Copy + Default + Send>(
        &self,
        y: &mut [T],
        finish: impl Fn(usize, &mut [i32], &mut [T]) + Sync,
    ) {
        if y.is_empty() {
            return;
        }
        match &self.call.way {
            Way::Product(image) => self.products(image, y, finish),
            Way::Depthwise(planes) => self.depthwise(&self.call.dims, planes, y, finish),
            Way::Plain => par::parts(y, |start, part| {
                for (i, y) in part.iter_mut().enumerate() {
                    let (channel, sum) = self.sum(start + i);
                    finish(channel, &mut [sum], std::slice::from_mut(y));
                }
            }),
        }
    }

    fn products<T: Copy + Default + Send>(
        &self,
        image: &Interleaved,
        y: &mut [T],
        finish: impl Fn(usize, &mut [i32], &mut [T]) + Sync,
    ) {
        let dims = &self.call.dims;
        let packing = Packing::new(dims, image);
        let mut made = Vec::new();
        let packed = if self.call.packed.is_some() {
            self.w
        } else {
            made.resize(packing.bytes(), 0);
            packing.pack(self.w, self.w_flip, &mut made);
            &made
        };
        let Some((weights, sums)) = packed.split_at_checked(packing.channels * packing.row) else { return };
        let (plane, groups) = (dims.out_plane(), image.offsets().len());
        let depth = (dims.ic * dims.taps()) as i32;
        let zeros: Vec<i32> = (0..dims.group * dims.oc).map(|c| self.w_zeros.at(c)).collect();
        let start = |(c, sum): (usize, &[u8; 4])| {
            let sum = i32::from_ne_bytes(*sum);
            let zero = zeros.get(c).copied().unwrap_or(0);
            let factor = depth.wrapping_mul(zero).wrapping_sub(sum);
            factor.wrapping_mul(self.x_zero).wrapping_add(self.bias.get(c).copied().unwrap_or(0))
        };
        let starts: Vec<i32> = sums.as_chunks::<4>().0.iter().enumerate().map(start).collect();
        let (unit, places) = (Unit::best(), image.places());
        let one = |(i, y): (usize, &mut [T]), threads: Threads| {
            let channel = i % dims.group * dims.oc;
            let x = self.x.get(i * dims.ic * dims.in_plane()..).unwrap_or(&[]);
            with_scratch(image.bytes(), |data| {
                image.fill(x, self.x_flip, self.x_zero as u8, data, threads);
                let rows = starts.get(channel..channel + dims.oc).unwrap_or(&[]);
                let left_zeros = zeros.get(channel..channel + dims.oc).unwrap_or(&[]);
                let around = Around { rows, left_zeros, right_zeros: None };
                let left = weights.get(channel * 4 * groups..).unwrap_or(&[]);
                let product = Product { left, groups, right: &View { image, data }, around, unit };
                product.run(
                    [dims.oc, places],
                    y,
                    plane,
                    threads,
                    #[inline(always)]
                    |row, _, sums, y| {
                        finish(channel + row, sums, y);
                    },
                );
            });
        };
        let parts = y.chunks_mut((dims.oc * plane).max(1)).enumerate();
        if dims.batch * dims.group >= par::threads() {
            par::share(parts, |part| one(part, Threads::One));
        } else {
            parts.for_each(|part| one(part, Threads::All));
        }
    }

    /// The output channel and the sum of element `i`, by the definition.
    fn sum(&self, i: usize) -> (usize, i32) {
        let dims = &self.call.dims;
        let [d, h, w] = &dims.axes;
        let (at_w, rest) = (i % w.output, i / w.output);
        let (at_h, rest) = (rest % h.output, rest / h.output);
        let (at_d, rest) = (rest % d.output, rest / d.output);
        let (channel, image) = (rest % (dims.group * dims.oc), rest / (dims.group * dims.oc));
        let first = (image * dims.group + channel / dims.oc) * dims.ic;
        let zero = self.w_zeros.at(channel);
        let mut sum = self.bias.get(channel).copied().unwrap_or(0);
        for c in 0..dims.ic {
            for kd in d.taps(at_d) {
                for kh in h.taps(at_h) {
                    for kw in w.taps(at_w) {
                        let Some(((id, ih), iw)) = d.at(at_d, kd).zip(h.at(at_h, kh)).zip(w.at(at_w, kw))
                        else {
                            continue;
                        };
                        let x = (((first + c) * d.input + id) * h.input + ih) * w.input + iw;
                        let tap = (kd * h.kernel + kh) * w.kernel + kw;
                        let weight = (channel * dims.ic + c) * dims.taps() + tap;
                        let (Some(x), Some(weight)) = (self.x.get(x), self.w.get(weight)) else { continue };
                        let x = i32::from(x ^ self.x_flip) - self.x_zero;
                        let weight = i32::from((weight ^ self.w_flip) as i8) - zero;
                        sum = sum.wrapping_add(x.wrapping_mul(weight));
                    }
                }
            }
        }
        (channel, sum)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::graph::{Tensor, TensorInfo};
    use crate::kernel::NativeArg;
    use crate::ops::quant::QuantizedConv;
    use crate::ops::test_util::facts;
    use crate::ops::{AutoPad, WindowAttrs};
    use crate::shape::Shape;

    fn bytes(dtype: DType, shape: Vec<usize>, seed: u64) -> Tensor {
        let info = TensorInfo::new(dtype, Shape::new(shape).unwrap());
        let mut state = seed | 1;
        let data: Vec<u8> = (0..info.elements())
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as u8
            })
            .collect();
        Tensor::from_bytes(info, &data).unwrap()
    }

    /// The sums by `call`, as ConvInteger has them, with the weights in the layout `packed`.
    fn sums(call: &Call, inputs: &[Option<Tensor>], packed: Option<&Packed>) -> Vec<i32> {
        let mut y = vec![i32::MIN; call.dims.out_len()];
        let read = |t: &Option<Tensor>| t.as_ref().map(|t| t.bytes().to_vec());
        let mut held: Vec<Option<Vec<u8>>> = inputs.iter().map(read).collect();
        if let Some(packed) = packed {
            let mut bytes = vec![0xaa; packed.bytes];
            (packed.pack)(&packed.source, &mut bytes).unwrap();
            let mut back = vec![0; packed.source.info().bytes()];
            packed.unpack.as_ref().unwrap()(&bytes, &mut back);
            assert_eq!(back, packed.source.bytes());
            held[1] = Some(bytes);
        }
        let mut args: Vec<NativeArg<'_>> =
            held.iter().map(|bytes| bytes.as_deref().map_or(NativeArg::Absent, NativeArg::Read)).collect();
        args.push(NativeArg::Write(bytemuck::cast_slice_mut(&mut y)));
        call.run(&mut NativeArgs::new(&mut args, &[])).unwrap();
        y
    }

    proptest! {
        #[test]
        fn images_as_taps_read_them_give_the_sums_of_the_definition(
            axes in proptest::collection::vec(
                (1usize..20, 1usize..6, 1i64..4, 1i64..3, -1i64..4, -1i64..4), 1..4),
            (batch, group, ic, oc) in (1usize..3, 1usize..4, 1usize..7, 1usize..11),
            signed in any::<[bool; 2]>(), zeros in 0usize..3, known in any::<bool>(), seed in any::<u64>(),
        ) {
            let window = WindowAttrs {
                kernel: Vec::new(),
                strides: axes.iter().map(|a| a.2).collect(),
                dilations: axes.iter().map(|a| a.3).collect(),
                pads: axes.iter().map(|a| a.4).chain(axes.iter().map(|a| a.5)).collect(),
                auto_pad: AutoPad::NotSet,
                ceil_mode: false,
            };
            let op = QuantizedConv { window, group, sums: SumsBecome::Sums };
            let [x_type, w_type] = signed.map(|signed| if signed { DType::I8 } else { DType::U8 });
            let dims = |n, c, size: fn(&(usize, usize, i64, i64, i64, i64)) -> usize| {
                [n, c].into_iter().chain(axes.iter().map(size)).collect::<Vec<usize>>()
            };
            let zero = |dtype, shape: Vec<usize>, seed| (zeros > 0).then(|| bytes(dtype, shape, seed));
            let of_w = if zeros == 1 { vec![1] } else { vec![group * oc] };
            let inputs = [
                Some(bytes(x_type, dims(batch, group * ic, |a| a.0), seed)),
                Some(bytes(w_type, dims(group * oc, ic, |a| a.1), seed ^ 77)),
                zero(x_type, vec![1], seed ^ 99),
                zero(w_type, of_w, seed ^ 55),
            ];
            let Ok(mut cx) = facts(&op, &inputs, 1) else { return Ok(()) };
            if !known {
                let facts = (0..4).map(|i| cx.input_opt(i).cloned().map(crate::ops::Fact::of)).collect();
                cx = OpCx::for_infer(facts, 1).with_outputs(cx.outputs().to_vec());
            }
            let resolved = op.resolve(&cx).unwrap().0;
            let mut call = Call::new(&cx, Places::of(&SumsBecome::Sums), resolved.clone(), SumsBecome::Sums).unwrap();
            let packed = call.pack(&cx);
            prop_assert_eq!(packed.is_some(), known && matches!(call.way, Way::Product(_)));
            let plain = Call { way: Way::Plain, ..Call::new(&cx, Places::of(&SumsBecome::Sums), resolved, SumsBecome::Sums).unwrap() };
            prop_assert_eq!(sums(&call, &inputs, packed.as_ref()), sums(&plain, &inputs, None));
        }
    }

    #[test]
    fn windows_of_mostly_padding_are_not_unfolded() {
        let window = WindowAttrs {
            dilations: vec![1 << 28, 1],
            pads: vec![1 << 28, 0, 0, 0],
            ..WindowAttrs::default()
        };
        let op = QuantizedConv { window, group: 1, sums: SumsBecome::Sums };
        let inputs =
            [Some(bytes(DType::U8, vec![1, 1, 3, 1], 1)), Some(bytes(DType::I8, vec![1, 1, 2, 1], 2))];
        let cx = facts(&op, &inputs, 1).unwrap();
        let call =
            Call::new(&cx, Places::of(&SumsBecome::Sums), op.resolve(&cx).unwrap().0, SumsBecome::Sums)
                .unwrap();
        assert!(matches!(call.way, Way::Plain));
        let (x, w) =
            (inputs[0].as_ref().unwrap().bytes()[..3].to_vec(), inputs[1].as_ref().unwrap().bytes()[1]);
        let want: Vec<i32> = x.into_iter().map(|x| i32::from(x) * i32::from(w as i8)).collect();
        assert_eq!(sums(&call, &inputs, None), want);
    }
}
