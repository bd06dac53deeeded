//! Attention against its definition, and devices against the native function.

use half::f16;

use super::Attention;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::ops::AttrValue;
use crate::ops::test_util::{assert_near, attrs, facts, read_op, run_cpu, tensor, tensor_of, values};
use crate::ops::{Operator, Strided};
use crate::shape::Shape;

/// The operator and sizes of one test.
#[derive(Clone, Default)]
struct Case {
    op: Attention,
    /// Batch, heads of queries, heads of keys, queries, new keys, past keys, sizes of heads.
    sizes: [usize; 8],
    /// Shape of the mask, and whether it is of bools.
    mask: Option<(Vec<usize>, bool)>,
    lens: Option<Vec<i64>>,
    rows_first: bool,
    outputs: usize,
}

impl Case {
    /// Whether heads lie inside rows.
    fn rows_first(&self) -> bool {
        self.rows_first || self.op.views[0].is_some()
    }

    fn inputs(&self) -> Vec<Option<Tensor>> {
        let [b, hq, hk, l, s, past, d, dv] = self.sizes;
        let shape = |h: usize, l: usize, d: usize| match (self.rows_first, self.op.views[0].is_some()) {
            (true, _) => vec![b, l, h * d],
            (_, true) => vec![b, l, h, d],
            _ => vec![b, h, l, d],
        };
        let mask = self.mask.as_ref().map(|(shape, bools)| {
            let v = values(shape.iter().product(), 9);
            if *bools {
                let v: Vec<u8> = v.iter().map(|v| u8::from(*v > -0.4)).collect();
                let info = crate::graph::TensorInfo::new(
                    crate::dtype::DType::Bool,
                    crate::shape::Shape::new(shape.clone()).unwrap(),
                );
                Tensor::from_bytes(info, &v).unwrap()
            } else {
                let v: Vec<f32> = v.iter().map(|v| if *v < -0.6 { f32::NEG_INFINITY } else { *v }).collect();
                Tensor::new(shape.clone(), &v).unwrap()
            }
        });
        let cache = |seed, d| (past > 0).then(|| tensor(&[b, hk, past, d], seed));
        let mut inputs = vec![
            Some(tensor(&shape(hq, l, d), 1)),
            Some(tensor(&shape(hk, s, d), 2)),
            Some(tensor(&shape(hk, s, dv), 3)),
            mask,
            cache(4, d),
            cache(5, dv),
            self.lens.as_ref().map(|l| Tensor::from_i64s(l)),
        ];
        while inputs.last().is_some_and(Option::is_none) {
            inputs.pop();
        }
        inputs
    }

    /// Y and the scores at the stage that is shown, both heads first, by the definition.
    fn reference(&self) -> (Vec<f64>, Vec<f64>) {
        let [b, hq, hk, l, s, past, d, dv] = self.sizes;
        let inputs = self.inputs();
        let wide = |i: usize| -> Vec<f64> {
            let t = inputs.get(i).cloned().flatten();
            t.map_or(vec![], |t| t.to_f32s().unwrap().into_iter().map(f64::from).collect())
        };
        let (q, k, v, pk, pv) = (wide(0), wide(1), wide(2), wide(4), wide(5));
        let at = |data: &[f64], h: usize, n: usize, d: usize, [bi, hi, i, e]: [usize; 4]| {
            data[if self.rows_first() {
                ((bi * n + i) * h + hi) * d + e
            } else {
                ((bi * h + hi) * n + i) * d + e
            }]
        };
        let cached = |new: &[f64], old: &[f64], d: usize, [bi, hi, j, e]: [usize; 4]| {
            if j < past {
                old[((bi * hk + hi) * past + j) * d + e]
            } else {
                at(new, hk, s, d, [bi, hi, j - past, e])
            }
        };
        let total = s + past;
        let mask = |bi: usize, hi: usize, i: usize, j: usize| -> f64 {
            let Some((shape, bools)) = &self.mask else { return 0.0 };
            let full = [bi, hi, i, j];
            let mut index = 0;
            for (axis, n) in shape.iter().enumerate() {
                let c = full[4 - shape.len() + axis];
                if axis + 1 == shape.len() && *n > 1 && c >= *n {
                    return f64::NEG_INFINITY;
                }
                index = index * n + if *n == 1 { 0 } else { c };
            }
            let t = inputs[3].as_ref().unwrap();
            if *bools {
                if t.bytes()[index] != 0 { 0.0 } else { f64::NEG_INFINITY }
            } else {
                f64::from(t.to_f32s().unwrap()[index])
            }
        };
        let scale = f64::from(self.op.scale.unwrap_or(1.0 / (d as f32).sqrt()));
        let cap = f64::from(self.op.softcap);
        let (mut y, mut shown) = (Vec::new(), Vec::new());
        for (bi, hi, i) in (0..b * hq * l).map(|n| (n / (hq * l), n / l % hq, n % l)) {
            let kv = hi / (hq / hk);
            let len = self.lens.as_ref().map_or(total as i64, |n| n[bi]);
            let offset = self.lens.as_ref().map_or(past as i64, |n| n[bi] - l as i64);
            let place = offset + i as i64;
            let mut row = Vec::new();
            for j in 0..total {
                let mut score = scale
                    * (0..d)
                        .map(|e| at(&q, hq, l, d, [bi, hi, i, e]) * cached(&k, &pk, d, [bi, kv, j, e]))
                        .sum::<f64>();
                let mut stages = vec![score];
                if cap > 0.0 {
                    score = cap * (score / cap).tanh();
                }
                stages.push(score);
                let jj = j as i64;
                let hidden = jj >= len
                    || (self.op.causal && jj > place)
                    || self.op.window[0].is_some_and(|w| jj < place - w as i64)
                    || self.op.window[1].is_some_and(|w| jj > place + w as i64);
                score = if hidden { f64::NEG_INFINITY } else { score + mask(bi, hi, i, j) };
                stages.push(score);
                row.push((score, stages));
            }
            let top = row.iter().map(|r| r.0).fold(f64::NEG_INFINITY, f64::max);
            let weight = |s: f64| if top == f64::NEG_INFINITY { 0.0 } else { (s - top).exp() };
            let sum: f64 = row.iter().map(|r| weight(r.0)).sum();
            let probs: Vec<f64> =
                row.iter().map(|r| if sum > 0.0 { weight(r.0) / sum } else { 0.0 }).collect();
            for (r, p) in row.iter().zip(&probs) {
                shown.push(if self.op.shown < 3 { r.1[usize::from(self.op.shown)] } else { *p });
            }
            for e in 0..dv {
                let used = probs.iter().enumerate().filter(|(_, p)| **p > 0.0);
                y.push(used.map(|(j, p)| p * cached(&v, &pv, dv, [bi, kv, j, e])).sum());
            }
        }
        (y, shown)
    }

    fn check(&self) -> Vec<Tensor> {
        let [b, hq, _, l, _, _, _, dv] = self.sizes;
        let got = run_cpu(&self.op, &self.inputs(), self.outputs.max(1)).unwrap();
        let (mut y, shown) = self.reference();
        if self.rows_first() {
            let heads = y.clone();
            for (n, v) in heads.iter().enumerate() {
                let (e, i, h, bi) = (n % dv, n / dv % l, n / (dv * l) % hq, n / (dv * l * hq));
                y[((bi * l + i) * hq + h) * dv + e] = *v;
            }
        }
        assert_eq!(got[0].shape().elements(), b * hq * l * dv);
        assert_near(&got[0], &y, 1e-5);
        if self.outputs > 3 {
            assert_near(&got[3], &shown, 1e-5);
        }
        got
    }
}

fn heads(q: usize, kv: usize) -> Attention {
    Attention { heads: Some((q, kv)), ..Attention::default() }
}

/// `[batch, heads, length, size]` that lies as `[batch, length, heads, size]`.
fn rows_first([batch, heads, length, size]: [usize; 4]) -> Strided {
    let shape = |dims: [usize; 4]| Shape::new(dims).unwrap();
    Strided {
        root: shape([batch, length, heads, size]),
        offset: 0,
        shape: shape([batch, heads, length, size]),
        strides: vec![length * heads * size, size, heads * size, 1],
    }
}

/// Cases over sizes that fill no tile, every kind of mask, window and cache.
fn cases() -> Vec<Case> {
    let base = Attention::default();
    let plain = |sizes| Case { sizes, ..Case::default() };
    let mut all = vec![
        plain([2, 3, 3, 5, 7, 0, 8, 12]),
        plain([1, 2, 1, 70, 37, 0, 20, 4]),
        plain([1, 4, 2, 3, 300, 0, 16, 36]),
        plain([1, 2, 2, 9, 11, 0, 7, 5]),
        plain([1, 1, 1, 6, 40, 0, 8, 132]),
        // Enough work that a work-group takes more queries.
        plain([16, 32, 8, 33, 70, 0, 3, 5]),
    ];
    all.push(Case { op: heads(6, 2), rows_first: true, ..plain([2, 6, 2, 5, 9, 4, 8, 4]) });
    for causal in [false, true] {
        for (n, shape) in
            [vec![5, 9], vec![9], vec![4, 5, 9], vec![2, 1, 5, 9], vec![2, 4, 5, 6]].iter().enumerate()
        {
            let op = Attention { causal, softcap: if n == 1 { 0.7 } else { 0.0 }, ..base.clone() };
            for bools in [false, true] {
                let mask = Some((shape.clone(), bools));
                all.push(Case { op: op.clone(), mask, ..plain([2, 4, 2, 5, 9, 0, 8, 8]) });
            }
        }
        let op = Attention { causal, window: [Some(3), None], ..base.clone() };
        all.push(Case { op, ..plain([1, 2, 2, 70, 70, 6, 8, 8]) });
        let op = Attention { causal, window: [Some(1), Some(2)], scale: Some(0.3), ..base.clone() };
        all.push(Case { op, ..plain([1, 2, 2, 4, 9, 0, 8, 8]) });
        let op = Attention { causal, ..base.clone() };
        for queries in [2, 6] {
            let lens = Some(vec![7, 3, 0]);
            all.push(Case { op: op.clone(), lens, ..plain([3, 2, 1, queries, 9, 0, 8, 8]) });
        }
    }
    for past in [0, 4] {
        let views = [[2, 6, 5, 8], [2, 2, 9, 8], [2, 2, 9, 4], [2, 6, 5, 4]].map(|s| Some(rows_first(s)));
        let op = Attention { views, ..base.clone() };
        all.push(Case { op, mask: Some((vec![5, 9 + past], false)), ..plain([2, 6, 2, 5, 9, past, 8, 4]) });
    }
    // More queries than elements of a key.
    for lens in [[40, 17, 0], [23, 17, 0]] {
        all.push(Case { lens: Some(lens.to_vec()), ..plain([3, 4, 2, 20, 40, 0, 8, 20]) });
    }
    let views = [[2, 4, 19, 8], [2, 2, 33, 8], [2, 2, 33, 4], [2, 4, 19, 4]].map(|s| Some(rows_first(s)));
    let op = Attention { views, ..base.clone() };
    all.push(Case { op, mask: Some((vec![19, 33], false)), ..plain([2, 4, 2, 19, 33, 0, 8, 4]) });
    // Few queries and so many keys that work-groups share them.
    all.push(plain([1, 14, 2, 1, 600, 3, 64, 64]));
    let op = Attention { causal: true, ..base.clone() };
    all.push(Case { op: op.clone(), lens: Some(vec![200, 70, 0]), ..plain([3, 4, 2, 2, 300, 0, 8, 12]) });
    let window = Attention { softcap: 0.7, window: [Some(40), None], ..op.clone() };
    all.push(Case { op: window, ..plain([2, 6, 2, 3, 150, 7, 4, 128]) });
    for (op, bools) in [(op, false), (base.clone(), true)] {
        let mask = Some((vec![2, 1, 4, 80], bools));
        all.push(Case { op, mask, ..plain([2, 12, 1, 4, 80, 0, 8, 8]) });
    }
    for shown in 0..4 {
        let op = Attention { shown, softcap: 1.5, causal: true, ..base.clone() };
        let mask = Some((vec![5, 13], false));
        all.push(Case { op, mask, outputs: 4, ..plain([1, 4, 2, 5, 9, 4, 8, 8]) });
    }
    all
}

#[test]
fn attention_matches_its_definition() {
    cases().iter().for_each(|c| drop(c.check()));
}

#[test]
fn the_cache_is_past_and_new_keys() {
    let case = Case {
        op: heads(2, 2),
        rows_first: true,
        outputs: 3,
        sizes: [1, 2, 2, 1, 1, 2, 3, 3],
        ..Case::default()
    };
    let got = case.check();
    let (inputs, key) = (case.inputs(), got[1].to_f32s().unwrap());
    let (new, past) =
        (inputs[1].as_ref().unwrap().to_f32s().unwrap(), inputs[4].as_ref().unwrap().to_f32s().unwrap());
    assert_eq!(got[1].shape().dims(), [1, 2, 3, 3]);
    assert_eq!(key, [&past[..6], &new[..3], &past[6..], &new[3..]].concat());
}

#[test]
fn a_query_that_sees_nothing_gives_zeros() {
    let mask = Tensor::new([1, 3], &[f32::NEG_INFINITY; 3]).unwrap();
    let inputs = [1, 2, 3].map(|s| Some(tensor(&[1, 1, if s == 1 { 2 } else { 3 }, 4], s)));
    let inputs = [&inputs[..], &[Some(mask)]].concat();
    let got = run_cpu(&Attention::default(), &inputs, 1).unwrap();
    assert_eq!(got[0].to_f32s().unwrap(), [0.0; 8]);
}

#[test]
fn misfits_are_errors() {
    let fails = |op: &Attention, shapes: &[&[usize]]| {
        let inputs: Vec<_> = shapes.iter().map(|s| Some(tensor(s, 1))).collect();
        facts(op, &inputs, 1).is_err()
    };
    let op = Attention::default();
    assert!(!fails(&op, &[&[1, 2, 3, 4][..], &[1, 1, 5, 4], &[1, 1, 5, 6], &[3, 5]]));
    assert!(fails(&op, &[&[1, 2, 3, 4][..], &[1, 1, 5, 4], &[1, 1, 5, 6], &[3, 6]]));
    assert!(fails(&op, &[&[1, 2, 3, 4][..], &[1, 1, 5, 4], &[1, 1, 4, 6]]));
    assert!(fails(&op, &[&[1, 3, 3, 4], &[1, 2, 5, 4], &[1, 2, 5, 4]]));
    assert!(fails(&op, &[&[1, 3, 3, 4], &[1, 0, 5, 4], &[1, 0, 5, 4]]));
    assert!(fails(&op, &[&[1, 3, 8], &[1, 3, 8], &[1, 3, 8]]));
    assert!(fails(&heads(3, 3), &[&[1, 3, 8], &[1, 3, 8], &[1, 3, 8]]));
    let sized = [&[1, 5, 3, 4][..], &[1, 1, 5, 4], &[1, 1, 5, 4]];
    let views = |q: Strided, y: [usize; 4]| Attention {
        views: [Some(q), None, None, Some(rows_first(y))],
        ..Attention::default()
    };
    let (q, y) = (rows_first([1, 3, 5, 4]), [1, 3, 5, 4]);
    assert!(!fails(&views(q.clone(), y), &sized));
    assert!(fails(&views(q.clone(), [1, 5, 3, 4]), &sized));
    assert!(fails(&views(Strided { offset: 1, ..q.clone() }, y), &sized));
    assert!(fails(&views(Strided { strides: vec![60, 1, 12, 4], ..q.clone() }, y), &sized));
    assert!(fails(&views(q.clone(), y), &[&[1, 4, 3, 4], sized[1], sized[2]]));
    assert!(fails(&views(Strided { shape: Shape::new([15, 4]).unwrap(), ..q }, y), &sized));
    assert!(read_op("Attention", 23, &attrs(&[("qk_matmul_output_mode", AttrValue::Int(4))])).is_err());
    assert!(read_op("Attention", 25, &attrs(&[("left_window_size", AttrValue::Int(-2))])).is_err());
    assert!(read_op("Attention", 23, &attrs(&[("q_num_heads", AttrValue::Int(-1))])).is_err());
}

#[cfg(feature = "vulkan")]
#[test]
fn devices_attend_the_same() {
    use crate::ops::testing::{Check, as_is, no_texels};
    for (n, case) in cases().iter().enumerate() {
        // Pipelines of the large kernel take long to make.
        for change in [as_is, no_texels]
            .iter()
            .take(if n % 3 == 0 || case.outputs > 1 || case.sizes[4] > 64 { 2 } else { 1 })
        {
            let inputs = case.inputs();
            Check::new(&case.op, &inputs).outputs(case.outputs.max(1)).pretend(*change).tolerance(2e-5).run();
        }
    }
}

#[cfg(feature = "vulkan")]
#[test]
fn devices_attend_to_values_longer_than_an_invocation_does() {
    use crate::ops::testing::Check;
    let of = |shape: &[usize], seed| Some(tensor_of(shape, &values(shape.iter().product(), seed), |v| v));
    let inputs = [of(&[1, 2, 9, 12], 1), of(&[1, 2, 21, 12], 2), of(&[1, 2, 21, 268], 3)];
    let op = Attention { causal: true, ..Attention::default() };
    Check::new(&op, &inputs).tolerance(2e-5).run();
    let scores = Attention { shown: 2, ..Attention::default() };
    Check::new(&scores, &inputs).outputs(4).tolerance(2e-5).run();
}

/// Tiles of 64, 32 and 16 queries, of values of up to 64 elements and of more, with every kind of scores; and where scores are
/// but products.
#[cfg(feature = "vulkan")]
#[test]
fn devices_attend_in_tiles() {
    use crate::backend::DeviceInfo;
    use crate::ops::testing::{Check, devices, no_texels};
    fn one(info: &mut DeviceInfo) {
        no_texels(info);
        (info.processors, info.subgroup_range) = (Some(1), [32; 2]);
    }
    fn many(info: &mut DeviceInfo) {
        one(info);
        info.processors = Some(1000);
    }
    fn wide(info: &mut DeviceInfo) {
        one(info);
        info.subgroup_range = [32, 64];
    }
    let sizes: [(_, _, fn(&mut DeviceInfo), _); 8] = [
        (9, 20, one, "_small_narrow"),
        (9, 72, one, "_small"),
        (30, 64, one, "_half_narrow"),
        (30, 140, one, "_half"),
        (70, 64, one, "_narrow"),
        (70, 140, one, ""),
        (70, 20, many, "_small_narrow"),
        (70, 64, wide, "_half_narrow"),
    ];
    for (queries, elements, change, form) in sizes {
        let of = |shape: &[usize], seed| Some(tensor_of(shape, &values(shape.iter().product(), seed), |v| v));
        let bools: Vec<u8> = (0..queries * 75).map(|i| u8::from(i % 7 != 3)).collect();
        let info = TensorInfo::new(DType::Bool, Shape::new([queries, 75]).unwrap());
        let masks = [None, of(&[queries, 75], 4), Some(Tensor::from_bytes(info, &bools).unwrap())];
        for (shown, mask) in (1..).zip(masks) {
            let (q, k) = (of(&[1, 2, queries, 19], 1), of(&[1, 1, 75, 19], 2));
            let inputs = [q, k, of(&[1, 1, 75, elements], 3), mask];
            let op = Attention { causal: shown == 1, softcap: 2.0, ..Attention::default() };
            let check = Check::new(&op, &inputs).pretend(change).tolerance(2e-5);
            check.run();
            let kernel = format!("attention_tile_f32{form}{}", if shown == 3 { "_bool" } else { "" });
            for context in devices() {
                assert_eq!(check.kernels_on(context), [&*kernel], "{queries} {elements}");
            }
            let scores = Attention { shown, ..op };
            Check::new(&scores, &inputs).outputs(4).pretend(change).tolerance(2e-5).run();
            let plain = Attention { causal: shown == 2, ..Attention::default() };
            Check::new(&plain, &inputs).pretend(change).tolerance(2e-5).run();
        }
    }
}

/// Every kernel that may be measured, for few queries and for many.
#[cfg(feature = "vulkan")]
#[test]
fn devices_attend_by_every_candidate() {
    use crate::ops::testing::{Check, no_texels};
    let of = |shape: &[usize], seed| Some(tensor_of(shape, &values(shape.iter().product(), seed), |v| v));
    let mut ran = std::collections::BTreeSet::new();
    for (queries, keys) in [(2, 400), (33, 70)] {
        let inputs = [of(&[1, 4, queries, 16], 1), of(&[1, 2, keys, 16], 2), of(&[1, 2, keys, 16], 3)];
        let op = Attention { causal: true, ..Attention::default() };
        ran.extend(Check::new(&op, &inputs).pretend(no_texels).tolerance(2e-5).run_candidates());
    }
    for name in ["attention_vector", "attention_tile/2/64", "attention_tile/4/64", "attention_tile/8/64"] {
        assert!(ran.contains(name), "{ran:?}");
    }
    assert!(ran.iter().filter(|name| name.starts_with("attention_split/")).count() > 1, "{ran:?}");
}

#[cfg(feature = "vulkan")]
#[test]
fn devices_attend_to_halves() {
    use crate::ops::testing::{Check, no_texels};
    for (batch, queries) in [(1, 1), (1, 33), (130, 33)] {
        let half = |shape: &[usize], seed| {
            Some(tensor_of(shape, &values(shape.iter().product(), seed), f16::from_f32))
        };
        let inputs =
            [half(&[batch, 4, queries, 24], 1), half(&[batch, 2, 50, 24], 2), half(&[batch, 2, 50, 10], 3)];
        let op = Attention { causal: true, window: [Some(40), None], ..Attention::default() };
        let op: &dyn Operator = &op;
        Check::new(op, &inputs).pretend(no_texels).tolerance(2e-3).run();
        if batch > 1 {
            continue;
        }
        // Whole texels, and masks of both types.
        let bools: Vec<u8> = (0..queries * 50).map(|i| u8::from(i % 7 != 3)).collect();
        let info = TensorInfo::new(DType::Bool, Shape::new([queries, 50]).unwrap());
        for mask in [None, half(&[queries, 50], 4), Some(Tensor::from_bytes(info, &bools).unwrap())] {
            let inputs = [inputs[0].clone(), inputs[1].clone(), half(&[batch, 2, 50, 12], 3), mask];
            let scores = Attention { shown: 2, ..Attention::default() };
            Check::new(op, &inputs).tolerance(2e-3).run();
            Check::new(&scores, &inputs).outputs(4).tolerance(2e-3).run();
        }
    }
}
