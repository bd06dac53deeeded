//! Pools on the CPU: every tap is added to, or compared with, a whole row of the output.

use half::{bf16, f16};

use super::pool_op::{PoolDims, PoolKind};
use crate::dtype::Element;
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::linalg::tile::has_vectors;
use crate::ops::planes::{Largest, Planes, Source, Sum};
use crate::ops::real::{Real, RealIo, RealKernel, check_len};
use crate::ops::real::{as_f32s, as_f32s_mut};
use crate::ops::{Activation, WindowAxis, par};
use crate::simd::wide;

/// Comparisons that one task of a pool has at least.
const PART: usize = 16 << 10;
/// The farthest that windows lie apart whose results are found at every step of one.
const MAX_STEP: usize = 4;

/// Types that have a largest element.
pub(super) trait Ordered: Element + PartialOrd {
    /// Below or equal to every value.
    const LOWEST: Self;
}

macro_rules! ordered {
    ($($t:ty: $lowest:expr),*) => {$(
        impl Ordered for $t {
            const LOWEST: Self = $lowest;
        }
    )*};
}

ordered!(
    f32: f32::NEG_INFINITY, f64: f64::NEG_INFINITY, f16: f16::NEG_INFINITY, bf16: bf16::NEG_INFINITY,
    i8: i8::MIN, u8: 0
);

/// Calls `f(output, input, output step)` for every row of taps: `output` elements and the input elements
/// that tap reads for them, which lie `w.stride` apart.
fn each_tap<A, T>(axes: &[WindowAxis; 3], x: &[A], y: &mut [T], mut f: impl FnMut(&mut [T], &[A])) {
    let [d, h, w] = axes;
    for (line, y) in y.chunks_mut(w.output).enumerate() {
        let (od, oh) = (line / h.output, line % h.output);
        for kd in d.taps(od) {
            for kh in h.taps(oh) {
                let (Some(id), Some(ih)) = (d.at(od, kd), h.at(oh, kh)) else { continue };
                let x = &x[(id * h.input + ih) * w.input..][..w.input];
                for kw in w.reach() {
                    let inside = w.valid(kw);
                    let Some(from) = w.at(inside.start, kw).filter(|_| !inside.is_empty()) else { continue };
                    f(&mut y[inside], &x[from..]);
                }
            }
        }
    }
}

/// MaxPool; with `indices`, also the places of the largest elements, column-major where it says so.
pub(super) fn max<T: Ordered>(dims: PoolDims, indices: Option<bool>) -> NativeKernel {
    NativeKernel::new("MaxPool", move |args| {
        let (in_plane, out_plane) = (dims.in_plane(), dims.out_plane());
        let x = args.read::<T>(0)?;
        check_len(0, x.len(), dims.planes * in_plane)?;
        let y = args.take_write::<T>(1)?;
        check_len(1, y.len(), dims.planes * out_plane)?;
        let places = if args.has(2) { Some(args.take_write::<i64>(2)?) } else { None };
        if y.is_empty() {
            return Ok(());
        }
        let taps = dims.axes.iter().map(|a| a.kernel).product::<usize>();
        if let (Some(places), Some(column_major)) = (places, indices) {
            check_len(2, places.len(), y.len())?;
            let work = y.len() * taps;
            par::rows_of_two((y, out_plane), (places, out_plane), work, |i, y, places| {
                let x = x.get(i * in_plane..(i + 1) * in_plane).unwrap_or(&[]);
                wide(
                    #[inline(always)]
                    || max_with_places(&dims.axes, column_major, i * in_plane, x, y, places),
                );
            });
            return Ok(());
        }
        let least = (PART / (out_plane * taps).max(1)).max(1);
        let planes = Planes::new(&dims.axes).filter(|_| has_vectors() && in_plane > 0);
        let no_taps = vec![0.0; taps];
        par::share(y.chunks_mut(out_plane * least).enumerate(), |(part, y)| {
            if let (Some(planes), Some(x), Some(y)) = (&planes, as_f32s(x), as_f32s_mut(y)) {
                let of = |i| Source { x, at: (part * least + i) * in_plane, taps: &no_taps, kind: Largest };
                return planes.run(of, &Activation::None, y);
            }
            for (i, y) in y.chunks_mut(out_plane).enumerate() {
                let i = part * least + i;
                let x = x.get(i * in_plane..(i + 1) * in_plane).unwrap_or(&[]);
                wide(
                    #[inline(always)]
                    || plane(&dims.axes, x, y, T::LOWEST, |m, x| if x > m { x } else { m }),
                );
            }
        });
        Ok(())
    })
}

/// The reduction by `f` of each column of a window, then of the results, beginning with `start`.
#[inline(always)]
fn plane<T: Copy>([d, h, w]: &[WindowAxis; 3], x: &[T], y: &mut [T], start: T, f: impl Fn(T, T) -> T) {
    // The columns that any window has, padding included, and the results of windows at every step of one.
    let reach = w.reach();
    let first = w.start(0) + (reach.start * w.dilation) as i64;
    let steps = w.output.saturating_sub(1) * w.stride + 1;
    let columns = steps + reach.len().saturating_sub(1) * w.dilation;
    // Few columns lie between windows that are not far apart; those between others are not worth a result.
    let close = w.stride <= MAX_STEP && !reach.is_empty();
    let (skipped, before) = if close { (first.max(0) as usize, (-first).max(0) as usize) } else { (0, 0) };
    let mut columns = vec![start; if close { columns } else { w.input }];
    let inside = w.input.saturating_sub(skipped).min(columns.len().saturating_sub(before));
    let mut results = vec![start; if close { steps } else { 0 }];
    let mut lines = Vec::with_capacity(d.kernel.min(d.input) * h.kernel.min(h.input));
    for (line, y) in y.chunks_mut(w.output).enumerate() {
        let (od, oh) = (line / h.output, line % h.output);
        lines.clear();
        for (kd, kh) in d.taps(od).flat_map(|kd| h.taps(oh).map(move |kh| (kd, kh))) {
            let (Some(id), Some(ih)) = (d.at(od, kd), h.at(oh, kh)) else { continue };
            lines.push(&x[(id * h.input + ih) * w.input + skipped..][..inside]);
        }
        fold(&mut columns[before..][..inside], start, lines.len(), |k| lines[k], &f);
        if close {
            fold(&mut results, start, reach.len(), |k| &columns[k * w.dilation..], &f);
            each_step(y, &results, w.stride, |y, x| *y = x);
            continue;
        }
        y.fill(start);
        for kw in w.reach() {
            let inside = w.valid(kw);
            let Some(from) = w.at(inside.start, kw).filter(|_| !inside.is_empty()) else { continue };
            each_step(&mut y[inside], &columns[from..], w.stride, |y, x| *y = f(*y, x));
        }
    }
}

/// `to[i] = f(... f(f(start, row(0)[i]), row(1)[i]) ..., row(count - 1)[i])`
#[inline(always)]
fn fold<'a, T: Copy + 'a>(
    to: &mut [T],
    start: T,
    count: usize,
    row: impl Fn(usize) -> &'a [T],
    f: impl Fn(T, T) -> T,
) {
    /// Elements that are folded at once, in registers.
    const AT_ONCE: usize = 32;
    let len = to.len();
    let whole = len / AT_ONCE * AT_ONCE;
    // The last ones that are whole once more, as far as they are not.
    let starts = (0..whole).step_by(AT_ONCE).chain((whole < len && whole > 0).then(|| len - AT_ONCE));
    for at in starts {
        let mut sums = [start; AT_ONCE];
        for k in 0..count {
            let x = &row(k)[at..][..AT_ONCE];
            for i in 0..AT_ONCE {
                sums[i] = f(sums[i], x[i]);
            }
        }
        to[at..][..AT_ONCE].copy_from_slice(&sums);
    }
    if whole == 0 {
        for (i, to) in to.iter_mut().enumerate() {
            *to = (0..count).fold(start, |sum, k| f(sum, row(k)[i]));
        }
    }
}

/// Calls `f` with every element of `y` and every `step`-th one of `x`.
#[inline(always)]
fn each_step<T, A: Copy>(y: &mut [T], x: &[A], step: usize, f: impl Fn(&mut T, A)) {
    #[inline(always)]
    fn chunks<const S: usize, T, A: Copy>(y: &mut [T], x: &[A], f: impl Fn(&mut T, A)) {
        let (whole, rest) = x.as_chunks::<S>();
        y.iter_mut().zip(whole).for_each(|(y, x)| f(y, x[0]));
        // The last one may have no neighbours.
        if let (Some(y), [x, ..]) = (y.get_mut(whole.len()), rest) {
            f(y, *x);
        }
    }
    match step {
        1 => y.iter_mut().zip(x).for_each(|(y, x)| f(y, *x)),
        2 => chunks::<2, T, A>(y, x, f),
        3 => chunks::<3, T, A>(y, x, f),
        4 => chunks::<4, T, A>(y, x, f),
        _ => y.iter_mut().zip(x.iter().step_by(step)).for_each(|(y, x)| f(y, *x)),
    }
}

/// The largest elements of a plane, the first ones of equal ones, and where they are, counted from `base` on.
#[inline(always)]
fn max_with_places<T: Ordered>(
    [d, h, w]: &[WindowAxis; 3],
    column_major: bool,
    base: usize,
    x: &[T],
    y: &mut [T],
    places: &mut [i64],
) {
    let mut picked = vec![T::LOWEST; w.output];
    // From one element of a line to the next, one line to the next, one plane to the next.
    let [across, down, deep] =
        if column_major { [h.input * d.input, d.input, 1] } else { [1, w.input, h.input * w.input] };
    for (line, (y, places)) in y.chunks_mut(w.output).zip(places.chunks_mut(w.output)).enumerate() {
        let (oh, od) = (line % h.output, line / h.output);
        // A window of nothing but padding has no place.
        y.fill(T::LOWEST);
        places.fill(-1);
        for (kd, kh) in d.taps(od).flat_map(|kd| h.taps(oh).map(move |kh| (kd, kh))) {
            let (Some(id), Some(ih)) = (d.at(od, kd), h.at(oh, kh)) else { continue };
            let x = &x[(id * h.input + ih) * w.input..][..w.input];
            for kw in w.reach() {
                let inside = w.valid(kw);
                let Some(from) = w.at(inside.start, kw).filter(|_| !inside.is_empty()) else { continue };
                let mut at = (base + id * deep + ih * down + from * across) as i64;
                let step = (w.stride * across) as i64;
                let (y, places) = (&mut y[inside.clone()], &mut places[inside]);
                let picked = &mut picked[..y.len()];
                each_step(picked, &x[from..], w.stride, |to, v| *to = v);
                for ((y, place), v) in y.iter_mut().zip(places).zip(picked) {
                    let better = (*place < 0) | (*v > *y);
                    *y = if better { *v } else { *y };
                    *place = if better { at } else { *place };
                    at += step;
                }
            }
        }
    }
}

/// AveragePool and LpPool.
pub(super) struct Sums {
    pub(super) dims: PoolDims,
    pub(super) kind: PoolKind,
}

impl RealKernel for Sums {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let d = &self.dims;
        let (in_plane, out_plane) = (d.in_plane(), d.out_plane());
        let (y, inputs) = io.output(0, d.planes * out_plane)?;
        let x = inputs.get(0, d.planes * in_plane)?;
        if y.is_empty() {
            return Ok(());
        }
        let counts = match self.kind {
            PoolKind::Average { include_pad } => Some(d.axes.map(|a| counts::<T>(&a, include_pad))),
            _ => None,
        };
        let stride = d.axes[2].stride;
        let taps = d.axes.iter().map(|a| a.kernel).product::<usize>();
        let planes = Planes::new(&d.axes).filter(|_| counts.is_some() && has_vectors() && in_plane > 0);
        let ones = vec![1.0; taps];
        let least = (PART / (out_plane * taps).max(1)).max(1);
        let one = |i: usize, y: &mut [T]| {
            let x = &x[i * in_plane..][..in_plane];
            let summed = match (&planes, as_f32s(x), as_f32s_mut(y)) {
                (Some(planes), Some(x), Some(y)) => {
                    let of = |_| Source { x, at: 0, taps: &ones, kind: Sum(0.0) };
                    planes.run(of, &Activation::None, y);
                    true
                }
                _ => false,
            };
            match self.kind {
                _ if summed => {}
                PoolKind::Lp { p } => {
                    y.fill(T::ZERO);
                    each_tap(&d.axes, x, y, |y, x| {
                        let x = x.iter().step_by(stride);
                        y.iter_mut().zip(x).for_each(|(y, x)| *y += power(*x, p));
                    });
                    y.iter_mut().for_each(|y| *y = root(*y, p));
                }
                _ => wide(
                    #[inline(always)]
                    || plane(&d.axes, x, y, T::ZERO, |sum, x| sum + x),
                ),
            }
            if let Some([cd, ch, cw]) = &counts {
                for (line, y) in y.chunks_mut(cw.len()).enumerate() {
                    let outer = cd[line / ch.len()] * ch[line % ch.len()];
                    y.iter_mut().zip(cw).for_each(|(y, c)| {
                        let n = outer * *c;
                        // A window of nothing but padding has the mean 0.
                        *y = if n > T::ZERO { *y / n } else { T::ZERO };
                    });
                }
            }
        };
        par::share(y.chunks_mut(out_plane * least).enumerate(), |(part, y)| {
            y.chunks_mut(out_plane).enumerate().for_each(|(i, y)| one(part * least + i, y));
        });
        Ok(())
    }
}

/// `|x|^p`.
pub(super) fn power<T: Real>(x: T, p: u32) -> T {
    match p {
        1 => x.abs(),
        2 => x * x,
        _ => x.abs().powf(T::from_f64(p.into())),
    }
}

/// The p-th root.
pub(super) fn root<T: Real>(x: T, p: u32) -> T {
    match p {
        1 => x,
        2 => x.sqrt(),
        _ => x.powf(T::from_f64(1.0 / f64::from(p))),
    }
}

/// Number of elements in the window of every output along one axis.
fn counts<T: Real>(axis: &WindowAxis, include_pad: bool) -> Vec<T> {
    (0..axis.output).map(|o| T::from_f64(count(axis, o, include_pad) as f64)).collect()
}

/// Number of elements in the window of output `o` along one axis.
pub(super) fn count(axis: &WindowAxis, o: usize, include_pad: bool) -> usize {
    if !include_pad {
        return axis.taps(o).len();
    }
    let room = axis.input as i64 + axis.pads[1] - axis.start(o);
    let step = axis.dilation as i64;
    ((room.max(0) + step - 1) / step).min(axis.kernel as i64) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::graph::Tensor;
    use crate::ops::pool::Pool;
    use crate::ops::test_util::{assert_near, attrs, read_op, run_cpu, run_f32, tensor, tensor_of, values};
    use crate::ops::{AttrValue, AutoPad, WindowAttrs};

    #[derive(Clone, Debug)]
    struct Problem {
        window: WindowAttrs,
        x: Vec<usize>,
    }

    fn problem() -> impl Strategy<Value = Problem> {
        let axis = (1usize..9, 1i64..4, 1i64..4, 1i64..3, 0i64..3, 0i64..3);
        let auto = prop_oneof![3 => Just(AutoPad::NotSet), 1 => Just(AutoPad::SameUpper), 1 => Just(AutoPad::SameLower)];
        (proptest::collection::vec(axis, 1..4), 1usize..3, 1usize..3, auto, any::<bool>()).prop_map(
            |(axes, n, c, auto_pad, ceil_mode)| Problem {
                window: WindowAttrs {
                    kernel: axes.iter().map(|a| a.1).collect(),
                    strides: axes.iter().map(|a| a.2).collect(),
                    dilations: axes.iter().map(|a| a.3).collect(),
                    pads: axes.iter().map(|a| a.4).chain(axes.iter().map(|a| a.5)).collect(),
                    auto_pad,
                    ceil_mode,
                },
                x: [n, c].into_iter().chain(axes.iter().map(|a| a.0)).collect(),
            },
        )
    }

    /// For every output element, the inputs under its window and how many elements of the padded input it
    /// covers; sizes as ONNX defines them.
    fn windows(p: &Problem) -> (Vec<usize>, Vec<(Vec<usize>, usize)>) {
        let rank = p.x.len() - 2;
        let mut out = p.x[..2].to_vec();
        let mut axes = Vec::new();
        for i in 0..rank {
            let (n, k) = (p.x[2 + i] as i64, p.window.kernel[i]);
            let (s, d) = (p.window.strides[i], p.window.dilations[i]);
            let extent = (k - 1) * d + 1;
            let (begin, end, size) = match p.window.auto_pad {
                AutoPad::NotSet => {
                    let (b, e) = (p.window.pads[i], p.window.pads[rank + i]);
                    let exact = (n + b + e - extent) as f64 / s as f64;
                    let mut size = if p.window.ceil_mode { exact.ceil() } else { exact.floor() } as i64 + 1;
                    if p.window.ceil_mode && (size - 1) * s >= n + b {
                        size -= 1;
                    }
                    (b, e, size)
                }
                auto => {
                    let size = (n + s - 1) / s;
                    let total = ((size - 1) * s + extent - n).max(0);
                    let begin = if auto == AutoPad::SameUpper { total / 2 } else { total - total / 2 };
                    (begin, total - begin, size)
                }
            };
            out.push(size as usize);
            axes.push((n, k, s, d, begin, end, size));
        }
        let plane: usize = p.x[2..].iter().product();
        let mut all = Vec::new();
        for base in 0..p.x[0] * p.x[1] {
            for flat in 0..out[2..].iter().product::<usize>() {
                let (mut inside, mut counted) = (vec![base * plane], 1);
                let (mut rest, mut step) = (flat, 1);
                for &(n, k, s, d, begin, end, size) in axes.iter().rev() {
                    let o = (rest as i64) % size;
                    rest /= size as usize;
                    let taps: Vec<i64> = (0..k).map(|t| o * s - begin + t * d).collect();
                    counted *= taps.iter().filter(|t| **t < n + end).count();
                    inside = inside
                        .iter()
                        .flat_map(|b| {
                            taps.iter().filter(|t| **t >= 0 && **t < n).map(move |t| b + *t as usize * step)
                        })
                        .collect();
                    step *= n as usize;
                }
                inside.sort_unstable();
                all.push((inside, counted));
            }
        }
        (out, all)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn pools_match_their_definition(p in problem(), include_pad in any::<bool>(), power in 1u32..4) {
            let x = tensor(&p.x, 7);
            let op = |kind| Pool { kind, window: p.window.clone() };
            let max = op(PoolKind::Max { column_major: false });
            let Ok(got) = run_cpu(&max, &[Some(x.clone())], 2) else { return Ok(()) };
            let (shape, windows) = windows(&p);
            let v: Vec<f64> = x.to_f32s().unwrap().into_iter().map(f64::from).collect();
            prop_assert_eq!(got[0].shape().dims(), &shape[..]);
            let largest: Vec<f64> =
                windows.iter().map(|w| w.0.iter().fold(f64::NEG_INFINITY, |m, i| m.max(v[*i]))).collect();
            assert_near(&got[0], &largest, 0.0);
            for ((place, (inside, _)), best) in got[1].to_i64s().unwrap().iter().zip(&windows).zip(&largest) {
                let first = inside.iter().find(|i| v[**i] == *best).map_or(-1, |i| *i as i64);
                prop_assert_eq!(*place, first);
            }
            assert_near(&run_f32(&max, &[Some(x.clone())]).unwrap(), &largest, 0.0);
            let mean: Vec<f64> = windows.iter().map(|(inside, counted)| {
                let n = if include_pad { *counted } else { inside.len() };
                inside.iter().map(|i| v[*i]).sum::<f64>() / (n as f64).max(1.0)
            }).collect();
            let got = run_f32(&op(PoolKind::Average { include_pad }), &[Some(x.clone())]).unwrap();
            assert_near(&got, &mean, 1e-6);
            let norm: Vec<f64> = windows.iter().map(|(inside, _)| {
                inside.iter().map(|i| v[*i].abs().powi(power as i32)).sum::<f64>().powf(1.0 / f64::from(power))
            }).collect();
            let got = run_f32(&op(PoolKind::Lp { p: power }), &[Some(x)]).unwrap();
            assert_near(&got, &norm, 1e-5);
        }
    }

    #[test]
    fn places_can_count_columns_first() {
        let map = attrs(&[
            ("kernel_shape", AttrValue::Ints(vec![2, 2])),
            ("strides", AttrValue::Ints(vec![2, 2])),
            ("storage_order", AttrValue::Int(1)),
        ]);
        let op = read_op("MaxPool", 12, &map).unwrap();
        let x = Tensor::new([1, 1, 5, 5], &(1..26).map(|v| v as f32).collect::<Vec<_>>()).unwrap();
        let got = run_cpu(&*op, &[Some(x)], 2).unwrap();
        assert_eq!(got[0].to_f32s().unwrap(), [7.0, 9.0, 17.0, 19.0]);
        assert_eq!(got[1].to_i64s().unwrap(), [6, 16, 8, 18]);
    }

    #[test]
    fn bytes_and_halves_have_maxima() {
        let map = attrs(&[("kernel_shape", AttrValue::Ints(vec![3]))]);
        let op = read_op("MaxPool", 12, &map).unwrap();
        let x = Tensor::new([1, 1, 4], &[-5i8, -7, -6, -128]).unwrap();
        assert_eq!(run_cpu(&*op, &[Some(x)], 1).unwrap()[0].as_slice::<i8>().unwrap(), [-5, -6]);
        let x = Tensor::new([1, 1, 4], &[5u8, 200, 6, 0]).unwrap();
        assert_eq!(run_cpu(&*op, &[Some(x)], 1).unwrap()[0].as_slice::<u8>().unwrap(), [200, 200]);
        let x = tensor_of(&[1, 1, 4], &values(4, 1), bf16::from_f32);
        let all = x.to_f32s().unwrap();
        let want =
            [all[..3].iter().copied().fold(-2.0, f32::max), all[1..].iter().copied().fold(-2.0, f32::max)];
        assert_eq!(run_cpu(&*op, &[Some(x)], 1).unwrap()[0].to_f32s().unwrap(), want);
    }

    #[test]
    fn impossible_pools_are_errors() {
        let fails = |name: &str, list: &[(&str, AttrValue)], x: &[usize]| {
            read_op(name, 22, &attrs(list)).and_then(|op| run_f32(&*op, &[Some(tensor(x, 1))])).is_err()
        };
        let k = ("kernel_shape", AttrValue::Ints(vec![2, 2]));
        assert!(!fails("MaxPool", std::slice::from_ref(&k), &[1, 1, 4, 4]));
        assert!(fails("MaxPool", &[], &[1, 1, 4, 4]));
        assert!(fails("MaxPool", std::slice::from_ref(&k), &[1, 1, 4]));
        assert!(fails("MaxPool", std::slice::from_ref(&k), &[1, 1, 1, 1]));
        assert!(fails("AveragePool", &[k.clone(), ("strides", AttrValue::Ints(vec![0, 1]))], &[1, 1, 4, 4]));
        assert!(fails("LpPool", &[k.clone(), ("p", AttrValue::Int(0))], &[1, 1, 4, 4]));
        assert!(fails("AveragePool", &[k], &[4, 4]));
    }
}
