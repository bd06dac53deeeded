//! Conv on the CPU: depthwise ones are direct loops, those whose window is the image are products of rows, large ones of 3 by 3
//! taps go through [`Winograd`], those of small images through [`Channels`], other pointwise ones are one product, others over
//! two dimensions go through [`Shifted`], and the rest are products over column blocks.

use super::After;
use super::channels::Channels;
use super::columns::{self, Columns};
use super::depthwise;
use super::dims::ConvDims;
use super::shifted::Shifted;
use super::unfold::Unfold;
use super::winograd::Winograd;
use crate::kernel::KernelError;
use crate::ops::activation::{Epilogue, Slopes};
use crate::ops::linalg::product::{Mat, Threads, product};
use crate::ops::linalg::tile::{self, Rows, Start, Tiled};
use crate::ops::planes::Planes;
use crate::ops::real::{Real, RealIo, RealKernel};
use crate::ops::real::{as_f32s, as_f32s_mut};
use crate::ops::{WindowAxis, par};

/// Bytes of columns that are unfolded at a time.
const BLOCK_BYTES: usize = 2 << 20;

/// A convolution ready to run.
pub(super) struct Run {
    pub(super) dims: ConvDims,
    pub(super) after: After,
    /// Where the weights are packed.
    pub(super) channels: Option<Channels>,
}

/// The fewest output channels of one input channel that are a product rather than planes, each by itself, and the taps from
/// which they are.
const FEW_CHANNELS: usize = 8;
const MANY_TAPS: usize = 32;

/// Whether each plane of the output is computed by itself, of one plane of the input.
fn by_planes(d: &ConvDims) -> bool {
    let is_quick = || d.taps() < MANY_TAPS && Planes::new(&d.axes).is_some();
    d.ic == 1 && (d.oc < FEW_CHANNELS || is_quick())
}

/// Whether each output sees all elements of its image: images are rows of one product.
fn sees_all(d: &ConvDims) -> bool {
    let whole = |a: &WindowAxis| [a.kernel, a.output, a.dilation] == [a.input, 1, 1] && a.pads[0] == 0;
    d.group == 1 && d.axes.iter().all(whole)
}

/// The convolution of `f32` whose weights are worth packing.
pub(super) fn channels(d: &ConvDims) -> Option<Channels> {
    let others = by_planes(d) || d.in_plane() == 0 || d.out_plane() == 0 || !tile::has_vectors();
    if others || Winograd::new(d.ic, d.oc, &d.axes).is_some() {
        return None;
    }
    Channels::new(d.ic, d.oc, &d.axes)
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let d = &self.dims;
        let (y, inputs) = io.output(0, d.out_len())?;
        let (x, w) = (inputs.get(0, d.in_len())?, inputs.get(1, d.weights_len())?);
        let channels = d.group * d.oc;
        let After { activation, summed, sloped } = self.after;
        let bias = inputs.get_opt(2, if sloped { 2 * channels } else { channels })?;
        if y.is_empty() {
            return Ok(());
        }
        let summand = summed.then(|| inputs.get(3, d.out_len())).transpose()?;
        let of_channels = bias.filter(|_| sloped).map(|b| &b[channels..]);
        let slopes = of_channels.map(|of_channels| Slopes { of_channels, plane: d.out_plane(), first: 0 });
        let epilogue = Epilogue { activation, summand, slopes };
        if by_planes(d) {
            depthwise::run(d, &epilogue, x, w, bias, y);
            return Ok(());
        }
        if sees_all(d) {
            if let Some(bias) = bias {
                y.chunks_exact_mut(d.oc).for_each(|y| y.copy_from_slice(&bias[..d.oc]));
            }
            let depth = d.ic * d.taps();
            let (x, w) = (Mat::rows(x, depth), Mat::transposed(w, depth));
            product([d.batch, d.oc, depth], x, w, y, d.oc, bias.is_some(), Threads::All)?;
            epilogue.apply(y, 0);
            return Ok(());
        }
        let (out_group, in_group) = (d.oc * d.out_plane(), d.ic * d.in_plane());
        let job = |(i, y): (usize, &mut [T]), threads| {
            let g = i % d.group;
            let bias = bias.map(|b| &b[g * d.oc..][..d.oc]);
            let w = &w[g * d.oc * d.ic * d.taps()..][..d.oc * d.ic * d.taps()];
            self.one(&x[i * in_group..][..in_group], w, bias, (y, epilogue.part(i * out_group)), threads)
        };
        if d.batch * d.group >= par::threads() {
            par::try_share(y.chunks_mut(out_group).enumerate(), |y| job(y, Threads::One))
        } else {
            y.chunks_mut(out_group).enumerate().try_for_each(|y| job(y, Threads::All))
        }
    }
}

impl Run {
    /// One group of one image.
    fn one<T: Real>(
        &self,
        x: &[T],
        w: &[T],
        bias: Option<&[T]>,
        (y, epilogue): (&mut [T], Epilogue<'_, T>),
        threads: Threads,
    ) -> Result<(), KernelError> {
        let d = &self.dims;
        let (plane, depth) = (d.out_plane(), d.ic * d.taps());
        if d.in_plane() > 0
            && tile::has_vectors()
            && let (Some(x), Some(w), Some(y)) = (as_f32s(x), as_f32s(w), as_f32s_mut(y))
        {
            let start = bias.and_then(as_f32s).map_or(Start::Zero, Start::PerRow);
            let (a, a_row, epilogue) = (w, depth, epilogue.f32s());
            if let Some(channels) = &self.channels {
                channels.run(x, w, bias.and_then(as_f32s), epilogue, y, threads);
            } else if d.is_pointwise() {
                let columns = &Rows { data: x, row: plane };
                Tiled { a, a_row, depth, columns, start, epilogue }.run(d.oc, plane, y, plane, threads);
            } else if let Some(tiles) = Winograd::new(d.ic, d.oc, &d.axes) {
                tiles.run(x, w, bias.and_then(as_f32s), epilogue, y, threads);
            } else if let Some(shifted) = Shifted::new(d.ic, &d.axes) {
                shifted.run(x, w, bias.and_then(as_f32s), epilogue, y, threads);
            } else {
                let columns = &Unfold { axes: d.axes, x };
                Tiled { a, a_row, depth, columns, start, epilogue }.run(d.oc, plane, y, plane, threads);
            }
            return Ok(());
        }
        if let Some(bias) = bias {
            y.chunks_mut(plane).zip(bias).for_each(|(y, b)| y.fill(*b));
        }
        let weights = Mat::rows(w, depth);
        if d.is_pointwise() {
            product([d.oc, plane, depth], weights, Mat::rows(x, plane), y, plane, bias.is_some(), threads)?;
        } else {
            let block = columns::block(depth, plane, size_of::<T>(), BLOCK_BYTES);
            let mut scratch = vec![T::ZERO; depth * block];
            let unfold = Columns { axes: d.axes, x };
            for first in (0..plane).step_by(block) {
                let n = block.min(plane - first);
                let scratch = &mut scratch[..depth * n];
                unfold.fill(first, n, scratch, threads);
                let y = &mut y[first..];
                product([d.oc, n, depth], weights, Mat::rows(scratch, n), y, plane, bias.is_some(), threads)?;
            }
        }
        epilogue.apply(y, 0);
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::expr::Function;
    use crate::graph::Tensor;
    use crate::ops::conv::Conv;
    use crate::ops::par::of_threads;
    use crate::ops::test_util::{assert_near, attrs, facts, read_op, run_cpu, run_f32, tensor};
    use crate::ops::window::AutoPad;
    use crate::ops::{Activation, AttrValue, OpError, Operator, WindowAttrs};

    /// The definition, in `f64`: every output element by itself, over any number of dimensions.
    pub(crate) fn reference(op: &Conv, x: &Tensor, w: &Tensor, b: Option<&Tensor>) -> (Vec<usize>, Vec<f64>) {
        let widen = |t: &Tensor| t.to_f32s().unwrap().into_iter().map(f64::from).collect::<Vec<_>>();
        let (xv, wv, bv) = (widen(x), widen(w), b.map(widen));
        let (xd, wd) = (x.shape().dims(), w.shape().dims());
        let rank = xd.len() - 2;
        let at = |list: &[i64], i: usize, default: i64| list.get(i).copied().unwrap_or(default);
        let mut out = vec![xd[0], wd[0]];
        let mut begins = Vec::new();
        for i in 0..rank {
            let (input, kernel) = (xd[2 + i] as i64, wd[2 + i] as i64);
            let (s, dil) = (at(&op.window.strides, i, 1), at(&op.window.dilations, i, 1));
            let extent = (kernel - 1) * dil + 1;
            let (begin, size) = match op.window.auto_pad {
                AutoPad::NotSet => {
                    let (p, q) = (at(&op.window.pads, i, 0), at(&op.window.pads, rank + i, 0));
                    (p, (input + p + q - extent).div_euclid(s) + 1)
                }
                AutoPad::Valid => (0, (input - extent).div_euclid(s) + 1),
                same => {
                    let size = (input as f64 / s as f64).ceil() as i64;
                    let total = ((size - 1) * s + extent - input).max(0);
                    (if same == AutoPad::SameUpper { total / 2 } else { (total + 1) / 2 }, size)
                }
            };
            out.push(size as usize);
            begins.push(begin);
        }
        let unflat = |mut i: usize, dims: &[usize]| {
            let mut at = vec![0; dims.len()];
            for (a, d) in at.iter_mut().zip(dims).rev() {
                *a = i % d;
                i /= d;
            }
            at
        };
        let mut y = Vec::new();
        for flat in 0..out.iter().product() {
            let o = unflat(flat, &out);
            let g = o[1] / (wd[0] / op.group);
            let mut sum = bv.as_ref().map_or(0.0, |b| b[o[1]]);
            for c in 0..wd[1] {
                for tap in 0..wd[2..].iter().product() {
                    let t = unflat(tap, &wd[2..]);
                    let mut index = Some(o[0] * xd[1] + g * wd[1] + c);
                    for i in 0..rank {
                        let p = o[2 + i] as i64 * at(&op.window.strides, i, 1) - begins[i]
                            + t[i] as i64 * at(&op.window.dilations, i, 1);
                        let inside = p >= 0 && p < xd[2 + i] as i64;
                        index = index.filter(|_| inside).map(|n| n * xd[2 + i] + p as usize);
                    }
                    if let Some(index) = index {
                        let wi = (o[1] * wd[1] + c) * wd[2..].iter().product::<usize>() + tap;
                        sum += xv[index] * wv[wi];
                    }
                }
            }
            y.push(sum);
        }
        (out, y)
    }

    #[derive(Clone, Debug)]
    struct Problem {
        op: Conv,
        x: Vec<usize>,
        w: Vec<usize>,
        biased: bool,
    }

    fn problem() -> impl Strategy<Value = Problem> {
        let axis = (1usize..9, 1usize..4, 1i64..4, 1i64..3, -1i64..3, -1i64..3);
        (
            proptest::collection::vec(axis, 1..6),
            (1usize..3, 1usize..4, 1usize..4, 1usize..4),
            prop_oneof![
                3 => Just(AutoPad::NotSet),
                1 => Just(AutoPad::Valid),
                1 => Just(AutoPad::SameUpper),
                1 => Just(AutoPad::SameLower)
            ],
            any::<bool>(),
        )
            .prop_map(|(axes, (batch, group, ic, oc), auto_pad, biased)| {
                let window = WindowAttrs {
                    kernel: Vec::new(),
                    strides: axes.iter().map(|a| a.2).collect(),
                    dilations: axes.iter().map(|a| a.3).collect(),
                    pads: axes.iter().map(|a| a.4).chain(axes.iter().map(|a| a.5)).collect(),
                    auto_pad,
                    ceil_mode: false,
                };
                let sizes = |head: [usize; 2], f: fn(&(usize, usize, i64, i64, i64, i64)) -> usize| {
                    head.into_iter().chain(axes.iter().map(f)).collect()
                };
                Problem {
                    op: Conv { window, group, ..Conv::default() },
                    x: sizes([batch, group * ic], |a| a.0),
                    w: sizes([group * oc, ic], |a| a.1),
                    biased,
                }
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn conv_matches_its_definition(p in problem()) {
            let (x, w) = (tensor(&p.x, 1), tensor(&p.w, 2));
            let b = p.biased.then(|| tensor(&p.w[..1], 3));
            let mut inputs = vec![Some(x.clone()), Some(w.clone())];
            inputs.extend(b.clone().map(Some));
            let Ok(got) = run_f32(&p.op, &inputs) else { return Ok(()) };
            let (shape, want) = reference(&p.op, &x, &w, b.as_ref());
            prop_assert_eq!(got.shape().dims(), &shape[..]);
            assert_near(&got, &want, 1e-5);
        }

        #[test]
        fn a_summand_is_added_before_the_activation(p in problem(), which in 0..3usize, double: bool) {
            let function = [None, Some(Function::Relu), Some(Function::Swish)][which];
            let activation = function.map_or(Activation::None, Activation::of);
            let double = |t: &Tensor| match double {
                true => Tensor::new(t.shape().to_vec(), &t.to_f32s().unwrap().into_iter().map(f64::from).collect::<Vec<_>>()),
                false => Ok(t.clone()),
            };
            let (x, w) = (tensor(&p.x, 1), tensor(&p.w, 2));
            let b = p.biased.then(|| tensor(&p.w[..1], 3));
            let plain = [Some(x.clone()), Some(w.clone())];
            if facts(&p.op, &plain, 1).is_err() { return Ok(()) };
            let (shape, sums) = reference(&p.op, &x, &w, b.as_ref());
            let z = tensor(&shape, 4);
            let want: Vec<f64> = sums.iter().zip(z.to_f32s().unwrap()).map(|(sum, z)| match function {
                None => sum + f64::from(z),
                Some(Function::Relu) => (sum + f64::from(z)).max(0.0),
                Some(_) => (sum + f64::from(z)) / (1.0 + (-sum - f64::from(z)).exp()),
            }).collect();
            let op = Conv { activation, summed: true, ..p.op.clone() };
            let inputs = [Some(x), Some(w), b, Some(z)].map(|t| t.map(|t| double(&t).unwrap()));
            match run_cpu(&op, &inputs, 1) {
                Ok(got) => assert_near(&got[0], &want, 1e-5),
                Err(error) => prop_assert!(p.x.len() > 5, "of {} dimensions: {error}", p.x.len()),
            }
        }
    }

    /// Each way that a convolution is computed, in several tasks.
    #[test]
    fn what_comes_after_is_done_in_every_way() {
        let window = |k: i64, stride: i64| WindowAttrs {
            pads: vec![k / 2; 4],
            strides: vec![stride; 2],
            ..WindowAttrs::default()
        };
        let forms: [([usize; 4], [usize; 4], usize, i64); 9] = [
            ([1, 64, 29, 31], [72, 64, 1, 1], 1, 1),
            ([1, 64, 32, 32], [128, 64, 3, 3], 1, 1),
            ([2, 33, 14, 14], [70, 33, 3, 3], 1, 1),
            ([1, 16, 21, 150], [70, 16, 3, 3], 1, 2),
            ([1, 8, 300, 3], [9, 8, 3, 3], 1, 1),
            ([2, 40, 30, 30], [40, 1, 3, 3], 40, 1),
            ([3, 64, 7, 7], [130, 32, 1, 1], 2, 1),
            ([1, 50, 1, 1], [70, 50, 1, 1], 1, 1),
            ([3, 90, 1, 1], [33, 90, 1, 1], 1, 1),
        ];
        for (x, w, group, stride) in forms {
            let op = Conv { window: window(w[2] as i64, stride), group, ..Conv::default() };
            let given = [Some(tensor(&x, 1)), Some(tensor(&w, 2)), Some(tensor(&w[..1], 3))];
            let y = of_threads(3, || run_f32(&op, &given)).unwrap();
            let z = tensor(y.shape().dims(), 4);
            let all = [&given[..], &[Some(z.clone())]].concat();
            for activation in
                [Activation::None, Activation::of(Function::Relu), Activation::of(Function::Tanh)]
            {
                let op = Conv { activation, summed: true, ..op.clone() };
                let got = of_threads(3, || run_f32(&op, &all)).unwrap();
                let mut want = y.to_f32s().unwrap();
                want.iter_mut().zip(z.to_f32s().unwrap()).for_each(|(y, z)| *y += z);
                activation.apply(&mut want);
                let want: Vec<f64> = want.into_iter().map(f64::from).collect();
                assert_near(&got, &want, 1e-5);
            }
            // Slopes of channels lie after the biases.
            let slopes = tensor(&w[..1], 5).to_f32s().unwrap();
            let both = [given[2].as_ref().unwrap().to_f32s().unwrap(), slopes.clone()].concat();
            let both = Some(Tensor::new([both.len()], &both).unwrap());
            let plane: usize = y.shape()[2..].iter().product();
            for summed in [false, true] {
                let op = Conv { sloped: true, summed, ..op.clone() };
                let mut inputs = vec![given[0].clone(), given[1].clone(), both.clone()];
                inputs.extend(summed.then(|| Some(z.clone())));
                let got = of_threads(3, || run_f32(&op, &inputs)).unwrap();
                let summand = |i: usize| if summed { z.as_slice::<f32>().unwrap()[i] } else { 0.0 };
                let sums = y.to_f32s().unwrap().into_iter().enumerate().map(|(i, y)| (i, y + summand(i)));
                let sloped = sums.map(|(i, v)| if v < 0.0 { v * slopes[i / plane % w[0]] } else { v });
                assert_near(&got, &sloped.map(f64::from).collect::<Vec<_>>(), 1e-5);
            }
        }
    }

    /// Rows of one element.
    #[test]
    fn columns_match_as_rows() {
        for (x, w, pads) in [
            ([1, 40, 90, 1], [70, 40, 5, 1], vec![0; 4]),
            ([2, 64, 33, 1], [64, 64, 3, 1], vec![1, 0, 1, 0]),
            ([1, 16, 20, 1], [24, 16, 3, 3], vec![1; 4]),
        ] {
            let op = Conv { window: WindowAttrs { pads, ..WindowAttrs::default() }, ..Conv::default() };
            let (x, w, b) = (tensor(&x, 1), tensor(&w, 2), tensor(&w[..1], 3));
            let want = reference(&op, &x, &w, Some(&b)).1;
            let inputs = [Some(x), Some(w), Some(b)];
            assert_near(&of_threads(3, || run_f32(&op, &inputs)).unwrap(), &want, 1e-5);
        }
    }

    /// Waves as windows of many taps, images of one channel, and windows that are the image.
    #[test]
    fn many_channels_of_one_match() {
        let wide = |stride: i64, pads: Vec<i64>| WindowAttrs {
            strides: vec![1, stride],
            pads,
            ..Default::default()
        };
        let square = WindowAttrs { strides: vec![3; 2], pads: vec![2; 4], ..WindowAttrs::default() };
        let forms: [([usize; 4], [usize; 4], WindowAttrs); 6] = [
            ([1, 1, 1, 640], [258, 1, 1, 256], wide(128, vec![0; 4])),
            ([3, 1, 1, 700], [40, 1, 1, 64], wide(16, vec![0, 24, 0, 8])),
            ([1, 1, 1, 900], [33, 1, 1, 10], wide(5, vec![0; 4])),
            ([2, 1, 1, 200], [8, 1, 1, 40], wide(1, vec![0; 4])),
            ([1, 1, 30, 34], [16, 1, 7, 7], square),
            ([3, 12, 5, 6], [70, 12, 5, 6], WindowAttrs::default()),
        ];
        for (x, w, window) in forms {
            let op = Conv { window, ..Conv::default() };
            let (x, w, b) = (tensor(&x, 1), tensor(&w, 2), tensor(&w[..1], 3));
            let want = reference(&op, &x, &w, Some(&b)).1;
            let inputs = [Some(x), Some(w), Some(b)];
            assert_near(&of_threads(3, || run_f32(&op, &inputs)).unwrap(), &want, 1e-5);
        }
    }

    #[test]
    fn a_large_convolution_in_several_blocks_matches() {
        let op = Conv {
            window: WindowAttrs { pads: vec![1, 1, 1, 1], ..WindowAttrs::default() },
            ..Conv::default()
        };
        let (x, w) = (tensor(&[1, 40, 61, 47], 1), tensor(&[3, 40, 3, 3], 2));
        assert!(columns::block(360, 61 * 47, 4, BLOCK_BYTES) < 61 * 47, "one block only");
        let got = run_f32(&op, &[Some(x.clone()), Some(w.clone())]).unwrap();
        assert_near(&got, &reference(&op, &x, &w, None).1, 1e-4);
    }

    #[test]
    fn a_convolution_of_no_channels_is_its_bias() {
        let window = WindowAttrs { pads: vec![1, 1, 1, 1], ..WindowAttrs::default() };
        let (x, w, b) = (tensor(&[1, 0, 16, 16], 1), tensor(&[8, 0, 3, 3], 2), tensor(&[8], 3));
        let got = run_f32(&Conv { window, ..Conv::default() }, &[Some(x), Some(w), Some(b.clone())]).unwrap();
        let want: Vec<f64> = b.to_f32s().unwrap().into_iter().flat_map(|b| [f64::from(b); 16 * 16]).collect();
        assert_near(&got, &want, 0.0);
    }

    #[test]
    fn fused_activation_and_half_types_match() {
        let op = Conv::default().with_activation(&Activation::with(Function::Clip, [-0.2, 0.2])).unwrap();
        let (x, w, b) = (tensor(&[1, 4, 5, 5], 1), tensor(&[6, 4, 3, 3], 2), tensor(&[6], 3));
        let want = reference(&Conv::default(), &x, &w, Some(&b)).1;
        let want: Vec<f64> = want.iter().map(|v| v.clamp(-0.2, 0.2)).collect();
        let got = run_f32(&*op, &[Some(x.clone()), Some(w.clone()), Some(b.clone())]).unwrap();
        assert_near(&got, &want, 1e-5);
        let half = |t: &Tensor| {
            let v: Vec<half::f16> = t.to_f32s().unwrap().into_iter().map(half::f16::from_f32).collect();
            Some(Tensor::new(t.shape().to_vec(), &v).unwrap())
        };
        let got = run_cpu(&*op, &[half(&x), half(&w), half(&b)], 1).unwrap().remove(0);
        assert_near(&got, &want, 2e-3);
    }

    #[test]
    fn attributes_that_do_not_fit_are_errors() {
        let infer = |list: &[(&str, AttrValue)], x: &[usize], w: &[usize]| -> Result<(), OpError> {
            let op = read_op("Conv", 22, &attrs(list))?;
            facts(&*op, &[Some(tensor(x, 1)), Some(tensor(w, 1))], 1).map(|_| ())
        };
        let ints = |v: &[i64]| AttrValue::Ints(v.to_vec());
        infer(&[("kernel_shape", ints(&[3, 3]))], &[1, 2, 5, 5], &[4, 2, 3, 3]).unwrap();
        let bad = [
            infer(&[("kernel_shape", ints(&[3, 2]))], &[1, 2, 5, 5], &[4, 2, 3, 3]),
            infer(&[("strides", ints(&[0, 1]))], &[1, 2, 5, 5], &[4, 2, 3, 3]),
            infer(&[("pads", ints(&[-6, 0, 9, 9]))], &[1, 2, 5, 5], &[4, 2, 3, 3]),
            infer(&[("dilations", ints(&[9, 1]))], &[1, 2, 5, 5], &[4, 2, 3, 3]),
            infer(&[("group", AttrValue::Int(0))], &[1, 2, 5, 5], &[4, 2, 3, 3]),
            infer(&[("group", AttrValue::Int(i64::MAX))], &[1, 2, 5, 5], &[4, 2, 3, 3]),
            infer(&[("auto_pad", AttrValue::Str(b"SOME".to_vec()))], &[1, 2, 5, 5], &[4, 2, 3, 3]),
            infer(&[], &[1, 2, 5, 5], &[4, 2, 7, 7]),
            infer(&[], &[1, 2, 5, 5], &[4, 3, 3, 3]),
            infer(&[], &[1, 2, 5, 5], &[4, 2, 3]),
            infer(&[], &[1, 2, 5, 5], &[4, 2, 0, 3]),
            infer(&[], &[1, 2], &[4, 2]),
            infer(&[], &[1, 2, 3, 3, 3, 3], &[4, 2, 1, 1, 1, 4]),
        ];
        for (i, result) in bad.iter().enumerate() {
            assert!(result.is_err(), "case {i}");
        }
    }
}
