//! Resize on the CPU: nearest picks elements of any type, the others sum along one axis after another.

use half::{bf16, f16};

use super::table::AxisTable;
use crate::dtype::{DType, Element};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::pointwise::cast::{Code, NarrowRules};
use crate::ops::real::{Real, RealIo, RealKernel, check_len, real_kernel};
use crate::ops::{OpCx, OpError, par};
use crate::simd::wide;

/// The bits of an element of `dtype` of the value `outside`; integers take it as a conversion would.
pub(super) fn outside_bits(dtype: DType, outside: f32) -> u64 {
    match dtype {
        DType::F32 => outside.to_bits().into(),
        DType::F64 => f64::from(outside).to_bits(),
        DType::F16 => f16::from_f32(outside).to_bits().into(),
        DType::BF16 => bf16::from_f32(outside).to_bits().into(),
        DType::I8 => u64::from(outside as i8 as u8),
        DType::I16 => u64::from(outside as i16 as u16),
        DType::I32 => u64::from(outside as i32 as u32),
        DType::I64 => outside as i64 as u64,
        DType::Bool => u64::from(outside != 0.0),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => outside as u64,
        _ => Code::of(dtype, NarrowRules::default())
            .map_or(0, |code| code.byte(outside.into(), outside as i64).into()),
    }
}

/// Nearest of any type; elements of one size are moved by one function.
pub(super) fn nearest(tables: Vec<AxisTable>, dtype: DType, outside: f32) -> NativeKernel {
    let bits = outside_bits(dtype, outside);
    NativeKernel::new("Resize", move |args| match dtype.bytes() {
        1 => pick(args, &tables, bits as u8),
        2 => pick(args, &tables, bits as u16),
        4 => pick(args, &tables, bits as u32),
        _ => pick(args, &tables, bits),
    })
}

fn pick<T: Element>(
    args: &mut NativeArgs<'_, '_>,
    tables: &[AxisTable],
    outside: T,
) -> Result<(), KernelError> {
    let x = args.read::<T>(0)?;
    let y = args.take_write::<T>(args.len() - 1)?;
    check_len(0, x.len(), tables.iter().map(|t| t.input).product())?;
    check_len(args.len() - 1, y.len(), tables.iter().map(AxisTable::output).product())?;
    let Some((last, outer)) = tables.split_last() else {
        y.copy_from_slice(x);
        return Ok(());
    };
    if y.is_empty() {
        return Ok(());
    }
    let (len, work) = (last.output(), y.len());
    let places = Places::of(last);
    par::groups(y, len, work, |first, rows| {
        // Where the row before this one came from.
        let mut before = None;
        for k in 0..rows.len() / len {
            let (mut rest, mut from, mut step) = (first + k, Some(0), last.input);
            for table in outer.iter().rev() {
                let index = usize::try_from(table.index[rest % table.output()]).ok();
                from = from.zip(index).map(|(f, i)| f + i * step);
                rest /= table.output();
                step *= table.input;
            }
            if k > 0 && before == from {
                rows.copy_within((k - 1) * len..k * len, k * len);
                continue;
            }
            before = from;
            let y = &mut rows[k * len..][..len];
            match from {
                Some(from) => places.pick(&x[from..][..last.input], outside, y),
                None => y.fill(outside),
            }
        }
    });
    Ok(())
}

/// Which elements of a row of the input a row of the output has.
enum Places<'a> {
    /// Its own.
    Same,
    /// Each twice.
    Twice,
    /// Those of a table; -1 where there is none.
    Table(&'a [i32]),
}

impl Places<'_> {
    fn of(table: &AxisTable) -> Places<'_> {
        let is = |f: fn(usize) -> usize| {
            table.index.iter().enumerate().all(|(o, i)| usize::try_from(*i) == Ok(f(o)))
        };
        match () {
            () if table.output() == table.input && is(|o| o) => Places::Same,
            () if table.output() == 2 * table.input && is(|o| o / 2) => Places::Twice,
            () => Places::Table(&table.index),
        }
    }

    fn pick<T: Element>(&self, x: &[T], outside: T, y: &mut [T]) {
        match self {
            Places::Same => y.copy_from_slice(x),
            Places::Twice => y.as_chunks_mut::<2>().0.iter_mut().zip(x).for_each(|(y, x)| *y = [*x; 2]),
            Places::Table(index) => y.iter_mut().zip(*index).for_each(|(y, i)| {
                *y = usize::try_from(*i).map_or(outside, |i| x[i]);
            }),
        }
    }
}

/// Weighted sums.
pub(super) fn weighted(tables: Vec<AxisTable>, cx: &OpCx, outside: f32) -> Result<NativeKernel, OpError> {
    let dtype = cx.dtype(0)?;
    let run = Run { tables, outside };
    macro_rules! integers {
        ($($d:ident: $t:ty),*) => {
            match dtype {
                $(DType::$d => Ok(NativeKernel::new("Resize", move |args| run.integers::<$t>(args, |v| v as f64, |v| v as $t))),)*
                _ => real_kernel("Resize", cx, run),
            }
        };
    }
    integers!(I8: i8, U8: u8, I16: i16, U16: u16, I32: i32, U32: u32, I64: i64, U64: u64)
}

struct Run {
    tables: Vec<AxisTable>,
    outside: f32,
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let (y, inputs) = io.output(0, self.tables.iter().map(AxisTable::output).product())?;
        let x = inputs.get(0, self.tables.iter().map(|t| t.input).product())?;
        self.resample(x, y);
        Ok(())
    }
}

impl Run {
    /// Computes in `f64` and rounds towards zero, as a conversion to the integer type does. A sum of weighted
    /// elements that is below an integer by its rounding errors alone is that integer: even areas stay even.
    fn integers<T: Element>(
        &self,
        args: &mut NativeArgs<'_, '_>,
        widen: impl Fn(T) -> f64,
        narrow: impl Fn(f64) -> T,
    ) -> Result<(), KernelError> {
        let x: Vec<f64> = args.read::<T>(0)?.iter().map(|v| widen(*v)).collect();
        let out = args.take_write::<T>(args.len() - 1)?;
        check_len(0, x.len(), self.tables.iter().map(|t| t.input).product())?;
        check_len(args.len() - 1, out.len(), self.tables.iter().map(AxisTable::output).product())?;
        let mut y = vec![0.0f64; out.len()];
        self.resample(&x, &mut y);
        let slack = |v: f64| (1e-9 + 1e-13 * v.abs()).copysign(v);
        out.iter_mut().zip(y).for_each(|(o, v)| *o = narrow(v + slack(v)));
        Ok(())
    }

    fn resample<T: Real>(&self, x: &[T], y: &mut [T]) {
        if y.is_empty() {
            return;
        }
        // Axes that shrink come first: less is left for the others.
        let mut order: Vec<usize> =
            (0..self.tables.len()).filter(|i| !self.tables[*i].is_identity()).collect();
        let growth = |i: &usize| self.tables[*i].output() as f64 / self.tables[*i].input as f64;
        order.sort_by(|a, b| growth(a).total_cmp(&growth(b)));
        let mut sizes: Vec<usize> = self.tables.iter().map(|t| t.input).collect();
        let mut held: Option<Vec<T>> = None;
        for (step, &axis) in order.iter().enumerate() {
            let table = &self.tables[axis];
            let inner: usize = sizes[axis + 1..].iter().product();
            let outer: usize = sizes[..axis].iter().product();
            sizes[axis] = table.output();
            let from = held.as_deref().unwrap_or(x);
            if step + 1 == order.len() {
                self.pass(table, inner, from, y);
                return;
            }
            let mut next = vec![T::ZERO; outer * table.output() * inner];
            self.pass(table, inner, from, &mut next);
            held = Some(next);
        }
        y.copy_from_slice(x);
    }

    /// Resamples the axis after which `inner` elements lie.
    fn pass<T: Real>(&self, table: &AxisTable, inner: usize, x: &[T], y: &mut [T]) {
        let (input, output, taps) = (table.input, table.output(), table.taps);
        let outside = T::from_f64(self.outside.into());
        let weights: Vec<T> = table.weight.iter().map(|w| T::from_f64(*w)).collect();
        let work = y.len() * taps.div_ceil(2);
        if inner == 1 {
            par::rows(y, output, work, |row, y| {
                let x = &x[row * input..][..input];
                match taps {
                    2 => places::<T, 2>(table, &weights, outside, x, y),
                    4 => places::<T, 4>(table, &weights, outside, x, y),
                    _ => {
                        let taps = table.index.chunks(taps).zip(weights.chunks(taps));
                        y.iter_mut().zip(taps).for_each(|(y, taps)| *y = place(taps, outside, x));
                    }
                }
            });
            return;
        }
        par::rows(y, inner, work, |row, y| {
            let (block, o) = (row / output, row % output);
            let index = &table.index[o * taps..][..taps];
            if index.first() == Some(&-1) {
                y.fill(outside);
                return;
            }
            let weights = &weights[o * taps..][..taps];
            let source = |i: i32| &x[(block * input + i as usize) * inner..][..inner];
            wide(
                #[inline(always)]
                || {
                    if let ([i, j], [v, w]) = (index, weights)
                        && *v != T::ZERO
                        && *w != T::ZERO
                    {
                        let each = y.iter_mut().zip(source(*i)).zip(source(*j));
                        return each.for_each(|((y, a), b)| *y = *v * *a + *w * *b);
                    }
                    y.fill(T::ZERO);
                    for (i, w) in index.iter().zip(weights).filter(|(_, w)| **w != T::ZERO) {
                        y.iter_mut().zip(source(*i)).for_each(|(y, x)| *y += *w * *x);
                    }
                },
            );
        });
    }
}

/// A line of places of `N` taps each.
fn places<T: Real, const N: usize>(table: &AxisTable, weights: &[T], outside: T, x: &[T], y: &mut [T]) {
    let taps = table.index.as_chunks::<N>().0.iter().zip(weights.as_chunks::<N>().0);
    y.iter_mut().zip(taps).for_each(|(y, (index, weights))| *y = place((index, weights), outside, x));
}

/// The weighted sum of one place.
#[inline(always)]
fn place<T: Real>((index, weights): (&[i32], &[T]), outside: T, x: &[T]) -> T {
    if index.first() == Some(&-1) {
        return outside;
    }
    index.iter().zip(weights).map(|(i, w)| *w * x[*i as usize]).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, attrs, facts, read_op, run_cpu, run_f32, tensor};
    use crate::ops::{AttrValue, OpError};

    fn text(s: &str) -> AttrValue {
        AttrValue::Str(s.as_bytes().to_vec())
    }

    /// One axis by ONNX's text: the place, its neighbours, their weights.
    fn along(x: &[f64], out: usize, scale: f64, mode: &str, coordinates: &str, nearest: &str) -> Vec<f64> {
        let n = x.len() as f64;
        let at = |i: i64| x[i.clamp(0, x.len() as i64 - 1) as usize];
        (0..out)
            .map(|o| {
                let o = o as f64;
                let place = match coordinates {
                    "half_pixel" => (o + 0.5) / scale - 0.5,
                    "asymmetric" => o / scale,
                    "align_corners" if scale * n == 1.0 => 0.0,
                    "align_corners" => o * (n - 1.0) / (scale * n - 1.0),
                    _ => panic!(),
                };
                let left = place.floor();
                let r = place - left;
                let l = left as i64;
                match (mode, nearest) {
                    ("linear", _) => (1.0 - r) * at(l) + r * at(l + 1),
                    ("cubic", _) => {
                        let a = -0.75;
                        let c0 = ((a * (r + 1.0) - 5.0 * a) * (r + 1.0) + 8.0 * a) * (r + 1.0) - 4.0 * a;
                        let c1 = ((a + 2.0) * r - (a + 3.0)) * r * r + 1.0;
                        let s = 1.0 - r;
                        let c2 = ((a + 2.0) * s - (a + 3.0)) * s * s + 1.0;
                        let c3 = ((a * (s + 1.0) - 5.0 * a) * (s + 1.0) + 8.0 * a) * (s + 1.0) - 4.0 * a;
                        c0 * at(l - 1) + c1 * at(l) + c2 * at(l + 1) + c3 * at(l + 2)
                    }
                    (_, "floor") => at(l),
                    (_, "ceil") => at(place.ceil() as i64),
                    _ if r == 0.5 => at(if nearest == "round_prefer_floor" { l } else { l + 1 }),
                    _ => at(place.round() as i64),
                }
            })
            .collect()
    }

    proptest! {
        #[test]
        fn resampling_matches_its_definition(
            n in 1usize..3, sizes in (1usize..7, 1usize..7), out in (1i64..10, 1i64..10),
            mode in prop_oneof![Just("nearest"), Just("linear"), Just("cubic")],
            coordinates in prop_oneof![Just("half_pixel"), Just("asymmetric"), Just("align_corners")],
            nearest in prop_oneof![
                Just("round_prefer_floor"), Just("round_prefer_ceil"), Just("floor"), Just("ceil")
            ],
        ) {
            let (h, w) = sizes;
            let (oh, ow) = (out.0 as usize, out.1 as usize);
            let x = tensor(&[n, h, w], 5);
            let map = attrs(&[
                ("mode", text(mode)),
                ("nearest_mode", text(nearest)),
                ("coordinate_transformation_mode", text(coordinates)),
            ]);
            let op = read_op("Resize", 19, &map).unwrap();
            let wanted = Tensor::from_i64s(&[n as i64, out.0, out.1]);
            let got = run_f32(&*op, &[Some(x.clone()), None, None, Some(wanted)]).unwrap();
            let v: Vec<f64> = x.to_f32s().unwrap().into_iter().map(f64::from).collect();
            let mut want = Vec::new();
            for image in v.chunks(h * w) {
                let rows: Vec<Vec<f64>> = image
                    .chunks(w)
                    .map(|r| along(r, ow, ow as f64 / w as f64, mode, coordinates, nearest))
                    .collect();
                let columns: Vec<Vec<f64>> = (0..ow)
                    .map(|c| {
                        let column: Vec<f64> = rows.iter().map(|r| r[c]).collect();
                        along(&column, oh, oh as f64 / h as f64, mode, coordinates, nearest)
                    })
                    .collect();
                want.extend((0..oh).flat_map(|r| columns.iter().map(move |c| c[r])));
            }
            assert_near(&got, &want, 1e-5);
        }
    }

    fn resize(list: &[(&str, AttrValue)], x: Tensor, rest: [Option<Tensor>; 3]) -> Result<Tensor, OpError> {
        let op = read_op("Resize", 19, &attrs(list))?;
        let [roi, scales, sizes] = rest;
        Ok(run_cpu(&*op, &[Some(x), roi, scales, sizes], 1)?.remove(0))
    }

    fn grid() -> Tensor {
        Tensor::new([1, 1, 4, 4], &(1..17).map(|v| v as f32).collect::<Vec<_>>()).unwrap()
    }

    // Expected values: the ONNX specification's own examples.
    #[test]
    fn examples_of_the_specification() {
        let scales = |v: &[f32]| Some(Tensor::new([v.len()], v).unwrap());
        let x = Tensor::new([1, 1, 2, 4], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
        let align = [("mode", text("linear")), ("coordinate_transformation_mode", text("align_corners"))];
        let got = resize(&align, x.clone(), [None, scales(&[1.0, 1.0, 0.6, 0.6]), None]).unwrap();
        assert_near(&got, &[1.0, 3.142857], 1e-5);
        let got =
            resize(&[("mode", text("linear"))], x, [None, scales(&[1.0, 1.0, 0.6, 0.6]), None]).unwrap();
        assert_near(&got, &[2.6666665, 4.3333331], 1e-5);
        let antialias = [("mode", text("linear")), ("antialias", AttrValue::Int(1))];
        let got = resize(&antialias, grid(), [None, scales(&[1.0, 1.0, 0.6, 0.6]), None]).unwrap();
        assert_near(&got, &[2.875, 4.5, 9.375, 11.0], 1e-5);
        let antialias = [("mode", text("cubic")), ("antialias", AttrValue::Int(1))];
        let got = resize(&antialias, grid(), [None, scales(&[1.0, 1.0, 0.6, 0.6]), None]).unwrap();
        assert_near(&got, &[2.5180721, 4.2858863, 9.589329, 11.357142], 1e-5);
        let crop = [
            ("mode", text("linear")),
            ("coordinate_transformation_mode", text("tf_crop_and_resize")),
            ("extrapolation_value", AttrValue::Float(10.0)),
        ];
        let roi = Tensor::new([8], &[0.0f32, 0.0, 0.4, 0.6, 1.0, 1.0, 1.2, 1.7]).unwrap();
        let got = resize(&crop, grid(), [Some(roi), None, Some(Tensor::from_i64s(&[1, 1, 3, 3]))]).unwrap();
        assert_near(&got, &[7.6000004, 10.0, 10.0, 12.400001, 10.0, 10.0, 10.0, 10.0, 10.0], 1e-5);
        let outside = [
            ("mode", text("cubic")),
            ("exclude_outside", AttrValue::Int(1)),
            ("cubic_coeff_a", AttrValue::Float(-0.5)),
        ];
        let got = resize(&outside, grid(), [None, scales(&[1.0, 1.0, 0.8, 0.8]), None]).unwrap();
        let want = [
            1.36812675,
            2.6695014,
            4.0133367,
            6.57362535,
            7.875,
            9.2188353,
            11.94896657,
            13.25034122,
            14.59417652,
        ];
        assert_near(&got, &want, 1e-5);
    }

    #[test]
    fn aspect_policies_keep_the_ratio() {
        let x = Tensor::new([1, 1, 2, 4], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
        let size = |policy: &str| {
            let list = [("axes", AttrValue::Ints(vec![2, 3])), ("keep_aspect_ratio_policy", text(policy))];
            resize(&list, x.clone(), [None, None, Some(Tensor::from_i64s(&[7, 8]))]).unwrap().shape().to_vec()
        };
        assert_eq!(size("not_larger"), [1, 1, 4, 8]);
        assert_eq!(size("not_smaller"), [1, 1, 7, 14]);
        assert_eq!(size("stretch"), [1, 1, 7, 8]);
    }

    #[test]
    fn even_areas_of_integers_stay_even() {
        for mode in ["linear", "cubic"] {
            let op = read_op("Resize", 19, &attrs(&[("mode", text(mode))])).unwrap();
            for (n, out) in [(5, 19), (7, 40), (9, 33), (23, 7)] {
                let x = Tensor::new([n], &vec![199u8; n]).unwrap();
                let inputs = [Some(x), None, None, Some(Tensor::from_i64s(&[out as i64]))];
                let y = run_cpu(&*op, &inputs, 1).unwrap();
                assert_eq!(y[0].as_slice::<u8>().unwrap(), vec![199; out], "{mode} {n} {out}");
            }
        }
    }

    #[test]
    fn integers_and_old_forms_work() {
        let op = read_op("Upsample", 7, &attrs(&[("scales", AttrValue::Floats(vec![1.0, 2.0]))])).unwrap();
        let got = run_cpu(&*op, &[Some(Tensor::new([1, 2], &[3i64, 4]).unwrap())], 1).unwrap().remove(0);
        assert_eq!(got.as_slice::<i64>().unwrap(), [3, 3, 4, 4]);
        let op = read_op("Upsample", 9, &attrs(&[("mode", text("linear"))])).unwrap();
        let scales = Tensor::new([2], &[1.0f32, 2.0]).unwrap();
        let x = Tensor::new([1, 2], &[10u8, 20]).unwrap();
        let got = run_cpu(&*op, &[Some(x), Some(scales.clone())], 1).unwrap().remove(0);
        assert_eq!(got.as_slice::<u8>().unwrap(), [10, 15, 20, 20]);
        let op = read_op("Resize", 10, &attrs(&[])).unwrap();
        let got = run_f32(&*op, &[Some(tensor(&[2, 2], 1)), Some(scales)]).unwrap();
        assert_eq!(got.shape().dims(), [2, 4]);
    }

    #[test]
    fn impossible_sizes_are_errors() {
        let fails = |list: &[(&str, AttrValue)], rest: [Option<Tensor>; 3]| {
            let op = read_op("Resize", 19, &attrs(list)).unwrap();
            let [roi, scales, sizes] = rest;
            facts(&*op, &[Some(grid()), roi, scales, sizes], 1).is_err()
        };
        let scales = |v: &[f32]| Some(Tensor::new([v.len()], v).unwrap());
        assert!(!fails(&[], [None, scales(&[1.0, 1.0, 2.0, 2.0]), None]));
        assert!(fails(&[], [None, scales(&[1.0, 1.0, 2.0]), None]));
        assert!(fails(&[], [None, scales(&[1.0, 1.0, 0.0, 2.0]), None]));
        assert!(fails(&[], [None, scales(&[1.0, 1.0, f32::NAN, 2.0]), None]));
        assert!(fails(&[], [None, scales(&[1e30, 1e30, 1e30, 2.0]), None]));
        assert!(fails(&[], [None, None, None]));
        assert!(fails(&[], [None, scales(&[1.0, 1.0, 2.0, 2.0]), Some(Tensor::from_i64s(&[1, 1, 2, 2]))]));
        assert!(fails(&[], [None, None, Some(Tensor::from_i64s(&[1, 1, -2, 2]))]));
        assert!(fails(&[("axes", AttrValue::Ints(vec![2, -2]))], [None, scales(&[2.0, 2.0]), None]));
        // No elements at all, of an axis that is very long.
        assert!(!fails(&[], [None, scales(&[1.0, 1.0, 0.01, 2.0]), None]));
        assert!(fails(&[], [None, scales(&[1.0, 1.0, 0.01, 2e8]), None]));
        let crop = [("coordinate_transformation_mode", text("tf_crop_and_resize"))];
        assert!(fails(&crop, [scales(&[0.0; 3]), scales(&[1.0, 1.0, 2.0, 2.0]), None]));
        let tiny = [("mode", text("linear")), ("antialias", AttrValue::Int(1))];
        assert!(fails(
            &tiny,
            [None, scales(&[1.0, 1.0, 2.0, 1e-30]), Some(Tensor::from_i64s(&[1, 1, 8, 1]))]
        ));
    }
}
