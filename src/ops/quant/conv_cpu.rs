//! Convolutions of bytes on the CPU: products with an image that lies as taps read it.

use std::sync::Arc;

use super::depthwise::Depthwise;
use super::elements::integers;
use super::interleaved::{Interleaved, View};
use super::product::{Inputs, Places, Repeated, Requantize};
use crate::dot::Unit;
use crate::dtype::DType;
use crate::kernel::{KernelError, NativeArgs};
use crate::ops::conv::conv_op::ConvDims;
use crate::ops::kept::{Kept, Shelf};
use crate::ops::linalg::bytes::{Around, FLIP, Product, row_sums, with_scratch};
use crate::ops::linalg::product::Threads;
use crate::ops::real::check_len;
use crate::ops::{OpCx, OpError, par};

static KEPT: Shelf<Weights> = Shelf::new();

/// Weights as signed bytes, a row for every output channel: four channels of a tap side by side, then the taps, then the
/// groups of channels.
struct Weights {
    rows: Vec<u8>,
    sums: Vec<i32>,
}

impl Weights {
    fn new(dims: &ConvDims, w: &[u8], flip: u8) -> Weights {
        let (taps, groups) = (dims.taps(), dims.ic.div_ceil(4));
        let row = 4 * taps * groups;
        let depth = dims.ic * taps;
        let mut rows = vec![0; dims.group * dims.oc * row];
        for (to, from) in rows.chunks_mut(row.max(1)).zip(w.chunks(depth.max(1))) {
            for (c, from) in from.chunks(taps.max(1)).enumerate() {
                let to = to.get_mut(c / 4 * taps * 4 + c % 4..).unwrap_or_default();
                to.iter_mut().step_by(4).zip(from).for_each(|(to, byte)| *to = byte ^ flip);
            }
        }
        let sums = row_sums::<true>(&rows, row);
        Weights { rows, sums }
    }
}

/// How a convolution is computed.
enum Way {
    Product(Interleaved),
    Depthwise(Interleaved),
    /// Output by output: for windows that see padding more than anything else.
    Plain,
}

/// A convolution ready to run.
pub(super) struct Call {
    places: Places,
    dims: ConvDims,
    inputs: Inputs,
    to: DType,
    way: Way,
    kept: Option<Arc<Kept<Weights>>>,
}

impl Call {
    pub(super) fn new(cx: &OpCx, places: Places, dims: ConvDims) -> Result<Call, OpError> {
        let way = match Interleaved::new(&dims, if dims.ic == 1 { 1 } else { 4 }) {
            None => Way::Plain,
            Some(image) if dims.ic == 1 => Way::Depthwise(image),
            Some(image) => Way::Product(image),
        };
        let numbers = [dims.group, dims.oc, dims.ic, dims.taps()];
        let weights = cx.value(places.b).filter(|_| matches!(way, Way::Product(_)));
        let kept = weights.map(|w| KEPT.of(w, numbers));
        Ok(Call { places, dims, inputs: Inputs::of(cx), to: cx.output(0)?.dtype, way, kept })
    }

    pub(super) fn run(&self, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
        let (p, dims, inputs) = (self.places, &self.dims, &self.inputs);
        let (x, x_flip) = inputs.bytes(args, p.a, 0)?;
        let (w, w_flip) = inputs.bytes(args, p.b, FLIP)?;
        let x_zero = inputs.zeros(args, p.a_zero)?.whole(i32::from(x_flip)).at(0);
        let w_zeros = inputs.zeros(args, p.b_zero)?.whole(-i32::from(w_flip));
        let (x_scale, w_scale) = (inputs.scales(args, p.a_scale)?.at(0), inputs.scales(args, p.b_scale)?);
        let y_scale = inputs.scales(args, p.y_scale)?.at(0);
        let zero = p.y_zero.map_or(Ok(0.0), |i| inputs.zeros(args, i).map(|z| z.at(0)))?;
        let channels = dims.group * dims.oc;
        let bias = match p.bias.filter(|b| inputs.has(*b)) {
            Some(i) => {
                let bias = args.read::<i32>(i)?;
                check_len(i, bias.len(), channels)?;
                bias
            }
            None => &[],
        };
        let sums = Sums { call: self, x, x_flip, x_zero, w, w_flip, w_zeros, bias };
        let result = inputs.count();
        let Some(range) = integers(self.to) else {
            let y = args.take_write::<i32>(result)?;
            check_len(result, y.len(), dims.out_len())?;
            sums.each(y, #[inline(always)] |_, sums, y| {
                y.iter_mut().zip(sums).for_each(|(y, sum)| *y = *sum);
            });
            return Ok(());
        };
        let y = args.take_write::<u8>(result)?;
        check_len(result, y.len(), dims.out_len())?;
        let to = Requantize { zero, range };
        let multipliers: Vec<f32> = (0..channels).map(|c| x_scale * w_scale.at(c) / y_scale).collect();
        sums.each(y, #[inline(always)] |channel, sums, y| {
            if let Some(multiplier) = multipliers.get(channel) {
                to.bytes(sums, std::slice::from_ref(multiplier), y);
            }
        });
        Ok(())
    }
}

/// The operands; `x` is made unsigned and `w` signed by their flips, and so are their zero points.
struct Sums<'a> {
    call: &'a Call,
    x: &'a [u8],
    x_flip: u8,
    x_zero: i32,
    w: &'a [u8],
    w_flip: u8,
    w_zeros: Repeated<i32>,
    bias: &'a [i32],
}

impl Sums<'_> {
    /// Makes all elements of `y` by `finish(channel, sums, elements)`, which must be `#[inline(always)]`.
    fn each<T: Copy + Default + Send>(&self, y: &mut [T], finish: impl Fn(usize, &mut [i32], &mut [T]) + Sync) {
        if y.is_empty() {
            return;
        }
        match &self.call.way {
            Way::Product(image) => self.products(image, y, finish),
            Way::Depthwise(image) => {
                let taps = self.call.dims.taps().max(1);
                let weight = |(i, byte): (usize, &u8)| {
                    i16::from((byte ^ self.w_flip) as i8) - self.w_zeros.at(i / taps) as i16
                };
                let weights: Vec<i16> = self.w.iter().enumerate().map(weight).collect();
                let (dims, x, flip, bias) = (&self.call.dims, self.x, self.x_flip, self.bias);
                let weights = &weights;
                Depthwise { dims, image, x, flip, zero: self.x_zero as u8, weights, bias }.run(y, finish);
            }
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
        let made;
        let make = || Weights::new(dims, self.w, self.w_flip);
        let weights = match &self.call.kept {
            Some(kept) => kept.get(make),
            None => {
                made = make();
                &made
            }
        };
        let (plane, groups) = (dims.out_plane(), image.offsets().len());
        let depth = (dims.ic * dims.taps()) as i32;
        let zeros: Vec<i32> = (0..dims.group * dims.oc).map(|c| self.w_zeros.at(c)).collect();
        let start = |(c, sum): (usize, &i32)| {
            let zero = zeros.get(c).copied().unwrap_or(0);
            let factor = depth.wrapping_mul(zero).wrapping_sub(*sum);
            factor.wrapping_mul(self.x_zero).wrapping_add(self.bias.get(c).copied().unwrap_or(0))
        };
        let starts: Vec<i32> = weights.sums.iter().enumerate().map(start).collect();
        let (unit, places) = (Unit::best(), image.places());
        let one = |(i, y): (usize, &mut [T]), threads: Threads| {
            let channel = i % dims.group * dims.oc;
            let x = self.x.get(i * dims.ic * dims.in_plane()..).unwrap_or(&[]);
            with_scratch(image.bytes(), |data| {
                image.fill(x, self.x_flip, self.x_zero as u8, data, threads);
                let of = |all: &'_ [i32]| all.get(channel..channel + dims.oc).map(<[i32]>::to_vec);
                let (rows, left_zeros) = (of(&starts).unwrap_or_default(), of(&zeros).unwrap_or_default());
                let around = Around { rows: &rows, left_zeros: &left_zeros, right_zeros: None };
                let left = weights.rows.get(channel * 4 * groups..).unwrap_or(&[]);
                let product = Product { left, groups, right: &View { image, data }, around, unit };
                product.run([dims.oc, places], y, plane, threads, #[inline(always)] |row, _, sums, y| {
                    finish(channel + row, sums, y);
                });
            });
        };
        let parts = y.chunks_mut((dims.oc * plane).max(1)).enumerate();
        if dims.batch * dims.group >= rayon::current_num_threads() {
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
                        let Some(((id, ih), iw)) = d.at(at_d, kd).zip(h.at(at_h, kh)).zip(w.at(at_w, kw)) else {
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
