//! com.microsoft's attention operators against compositions of ONNX's.

use std::sync::Arc;

use super::group_query::GroupQueryAttention;
use super::multi_head::MultiHeadAttention;
use super::{Attention, CacheKind, RotaryEmbedding};
#[cfg(feature = "vulkan")]
use crate::backend::DeviceInfo;
use crate::graph::Tensor;
use crate::ops::test_util::{assert_near, attrs, facts, run_cpu, tensor, values};
use crate::ops::{AttrReader, AttrValue, OpError, Operator, find};

const GROUPED: GroupQueryAttention = GroupQueryAttention {
    heads: 4,
    kv_heads: 2,
    scale: None,
    softcap: 0.0,
    window: None,
    rotary: None,
    causal: true,
    smooth: false,
    cache: CacheKind::Same,
    updates: None,
};

fn read(name: &str, list: &[(&str, AttrValue)]) -> Result<Arc<dyn Operator>, OpError> {
    let map = attrs(list);
    let mut reader = AttrReader::new(&map, 3, 1);
    (find("com.microsoft", name).unwrap().read)(&mut reader, 1)
}

fn wide(t: &Tensor) -> Vec<f64> {
    t.to_f32s().unwrap().into_iter().map(f64::from).collect()
}

/// Compares `op` with `want`, the outputs of another operator, and devices with it.
fn same(op: &dyn Operator, inputs: &[Option<Tensor>], want: &[Tensor]) {
    let got = run_cpu(op, inputs, want.len()).unwrap();
    for (got, want) in got.iter().zip(want) {
        assert_eq!(got.shape(), want.shape());
        assert_near(got, &wide(want), 1e-5);
    }
    #[cfg(feature = "vulkan")]
    for change in [crate::ops::testing::as_is, crate::ops::testing::no_texels] {
        crate::ops::testing::Check::new(op, inputs).outputs(want.len()).pretend(change).tolerance(2e-5).run();
    }
}

/// `x` with `bias` added along the last axis.
fn biased(x: &Tensor, bias: &[f32]) -> Tensor {
    let v: Vec<f32> = x.to_f32s().unwrap().iter().zip(bias.iter().cycle()).map(|(x, b)| x + b).collect();
    Tensor::new(x.shape().dims(), &v).unwrap()
}

/// Attention of three heads over inputs of `[2, length, 3 * size]`.
fn plain(causal: bool) -> Attention {
    Attention { heads: Some((3, 3)), causal, ..Attention::default() }
}

#[test]
fn multi_head_attention_is_attention_of_biased_inputs() {
    let op = |causal| MultiHeadAttention { heads: 3, scale: None, causal };
    let [q, k, v] = [(4, 24), (6, 24), (6, 15)].map(|(l, w)| tensor(&[2, l, w], (l + w) as u64));
    let given = [Some(q.clone()), Some(k.clone()), Some(v.clone())];
    same(&op(false), &given, &run_cpu(&plain(false), &given, 3).unwrap());

    let bias = tensor(&[63], 9);
    let b = bias.to_f32s().unwrap();
    let sums = [biased(&q, &b[..24]), biased(&k, &b[24..48]), biased(&v, &b[48..])].map(Some);
    let inputs = [&given[..], &[Some(bias.clone())]].concat();
    same(&op(true), &inputs, &run_cpu(&plain(true), &sums, 1).unwrap());

    let (past_k, past_v) = (tensor(&[2, 3, 5, 8], 4), tensor(&[2, 3, 5, 5], 5));
    let past = [Some(past_k), Some(past_v)];
    let inputs = [&inputs[..], &[None, None], &past].concat();
    let whole = [&sums[..], &[None], &past].concat();
    same(&op(false), &inputs, &run_cpu(&plain(false), &whole, 3).unwrap());
}

#[test]
fn without_keys_the_result_is_zero() {
    let op = MultiHeadAttention { heads: 3, scale: None, causal: false };
    let inputs = [(4, 1), (0, 2), (0, 3)].map(|(l, s)| Some(tensor(&[2, l, 24], s)));
    assert_near(&run_cpu(&op, &inputs, 1).unwrap()[0], &[0.0; 192], 0.0);
}

#[test]
fn padding_hides_keys() {
    let op = MultiHeadAttention { heads: 3, scale: Some(0.3), causal: false };
    let given = [(3, 1), (5, 2), (5, 3)].map(|(l, s)| Some(tensor(&[2, l, 24], s)));
    let added: Vec<f32> =
        (0..10).map(|i| if i % 5 < if i < 5 { 4 } else { 2 } { 0.0 } else { f32::NEG_INFINITY }).collect();
    let mask = Tensor::new([2, 1, 1, 5], &added).unwrap();
    let plain = Attention { scale: Some(0.3), ..plain(false) };
    let want = run_cpu(&plain, &[&given[..], &[Some(mask)]].concat(), 1).unwrap();
    let with = |padding: Tensor| [&given[..], &[None, Some(padding)]].concat();
    let kept: Vec<i32> = added.iter().map(|m| i32::from(*m == 0.0)).collect();
    same(&op, &with(Tensor::new([2, 5], &kept).unwrap()), &want);
    same(&op, &with(Tensor::new([2], &[4i32, 2]).unwrap()), &want);
    let rows: Vec<i32> = kept.chunks(5).flat_map(|row| row.repeat(3)).collect();
    same(&op, &with(Tensor::new([2, 3, 5], &rows).unwrap()), &want);
    assert!(facts(&op, &with(Tensor::new([8], &[0i32; 8]).unwrap()), 1).is_err());
    assert!(facts(&op, &with(tensor(&[2, 5], 1)), 1).is_err());
    let causal = MultiHeadAttention { causal: true, ..op };
    assert!(
        facts(&causal, &with(Tensor::new([2], &[4i32, 2]).unwrap()), 1)
            .is_err_and(|e| e.to_string().contains("unidirectional"))
    );
}

#[test]
fn padding_and_a_bias_are_one_mask() {
    let op = MultiHeadAttention { heads: 3, scale: None, causal: false };
    for (q_len, bias) in [(4, [2, 3, 4, 7]), (1, [1, 3, 1, 7]), (4, [2, 1, 4, 7]), (4, [1, 1, 1, 7])] {
        let given = [(q_len, 1), (7, 2), (7, 3)].map(|(l, s)| Some(tensor(&[2, l, 24], s)));
        let added = tensor(&bias, 4);
        let a = added.to_f32s().unwrap();
        for rows in [1, q_len] {
            let kept: Vec<i32> = (0..2 * rows * 7).map(|i| i32::from(i % 7 == 0 || i % 3 != 1)).collect();
            let whole: Vec<f32> = (0..2 * 3 * q_len * 7)
                .map(|i| {
                    let at = [i / 7 / q_len / 3, i / 7 / q_len % 3, i / 7 % q_len, i % 7];
                    let from = at.iter().zip(&bias).fold(0, |n, (at, len)| n * len + at % len);
                    let hidden = kept[(at[0] * rows + at[2] % rows) * 7 + at[3]] == 0;
                    if hidden { f32::NEG_INFINITY } else { a[from] }
                })
                .collect();
            let mask = Tensor::new([2, 3, q_len, 7], &whole).unwrap();
            let want = run_cpu(&plain(false), &[&given[..], &[Some(mask)]].concat(), 1).unwrap();
            let dims = if rows == 1 { vec![2, 7] } else { vec![2, rows, 7] };
            let padding = Tensor::new(dims, &kept).unwrap();
            same(&op, &[&given[..], &[None, Some(padding), Some(added.clone())]].concat(), &want);
        }
    }
}

/// Attention of one sequence by its definition: sinks take part in the softmax like keys without a value.
fn with_sinks(op: &GroupQueryAttention, inputs: &[Option<Tensor>], sinks: &[f64], past: usize) -> Vec<f64> {
    let wide = |i: usize| wide(inputs[i].as_ref().unwrap());
    let (q, k, v) = (wide(0), wide(1), wide(2));
    let (h, g) = (op.heads, op.kv_heads);
    let len = q.len() / h / 8;
    let total = past + len;
    let row = |new: &[f64], old: usize, head: usize, j: usize| -> Vec<f64> {
        match j.checked_sub(past) {
            Some(j) => new[(j * g + head) * 8..][..8].to_vec(),
            None => wide(old)[(head * past + j) * 8..][..8].to_vec(),
        }
    };
    let mut y = Vec::new();
    for (i, head) in (0..len * h).map(|n| (n / h, n % h)) {
        let at = past + i;
        let sees = |j: usize| (!op.causal || j <= at) && op.window.is_none_or(|w| j + w > at);
        let keys: Vec<usize> = (0..total).filter(|j| sees(*j)).collect();
        let score = |j: usize| {
            let key = row(&k, 3, head / (h / g), j);
            let s =
                q[(i * h + head) * 8..][..8].iter().zip(key).map(|(a, b)| a * b).sum::<f64>() / 8f64.sqrt();
            if op.softcap > 0.0 { f64::from(op.softcap) * (s / f64::from(op.softcap)).tanh() } else { s }
        };
        let weights: Vec<f64> = keys.iter().map(|j| score(*j).exp()).collect();
        let sum = weights.iter().sum::<f64>() + sinks[head].exp();
        let mut out = [0.0; 8];
        for (j, w) in keys.iter().zip(&weights) {
            let value = row(&v, 4, head / (h / g), *j);
            out.iter_mut().zip(value).for_each(|(o, v)| *o += w / sum * v);
        }
        y.extend(out);
    }
    y
}

#[test]
fn sinks_take_part_in_the_softmax() {
    for (q_len, past_len, window, softcap, causal) in [
        (5, 0, None, 0.0, true),
        (1, 6, Some(3), 1.5, true),
        (3, 6, Some(2), 0.0, true),
        (70, 0, Some(33), 0.5, true),
        (6, 4, None, 0.0, false),
        (2, 90, None, 0.7, true),
        (1, 80, Some(33), 0.0, true),
    ] {
        let op = GroupQueryAttention { softcap, window, causal, ..GROUPED };
        let total = (past_len + q_len) as i32;
        let past = |seed| (past_len > 0).then(|| tensor(&[1, 2, past_len, 8], seed));
        let sinks = tensor(&[4], 8);
        let mut inputs = vec![
            Some(tensor(&[1, q_len, 32], 1)),
            Some(tensor(&[1, q_len, 16], 2)),
            Some(tensor(&[1, q_len, 16], 3)),
            past(4),
            past(5),
            Some(Tensor::new([1], &[total - 1]).unwrap()),
            Some(Tensor::new([1], &[total]).unwrap()),
        ];
        let check = |op: &GroupQueryAttention, inputs: &[Option<Tensor>], sinks: &[f64]| {
            let got = run_cpu(op, inputs, 3).unwrap();
            assert_near(&got[0], &with_sinks(op, inputs, sinks, past_len), 1e-5);
            same(op, inputs, &got);
        };
        check(&GroupQueryAttention { smooth: true, ..op }, &inputs, &[0.0; 4]);
        inputs.resize(11, None);
        inputs.push(Some(sinks.clone()));
        check(&op, &inputs, &wide(&sinks));
        // The input takes precedence over the attribute.
        check(&GroupQueryAttention { smooth: true, ..op }, &inputs, &wide(&sinks));
        inputs[11] = Some(tensor(&[3], 8));
        assert!(facts(&op, &inputs, 3).is_err());
    }
}

/// Given positions rotate queries and keys; keys are appended to the cache in order.
#[test]
fn given_positions_turn_queries_and_keys() {
    for (q_len, past_len) in [(4, 0), (1, 5), (3, 5)] {
        let op = GroupQueryAttention { rotary: Some(false), ..GROUPED };
        let total = (past_len + q_len) as i32;
        let past = |seed| (past_len > 0).then(|| tensor(&[1, 2, past_len, 8], seed));
        let [cos, sin] = [6, 7].map(|s| tensor(&[20, 4], s));
        let ids: Vec<i64> = (0..q_len as i64).map(|i| 9 + i).collect();
        let ids = Tensor::new([1, q_len], &ids).unwrap();
        let turned = |x: &Tensor, heads: usize| {
            let op = RotaryEmbedding { interleaved: false, rotated: None, heads: Some(heads), contrib: true };
            let inputs = [x.clone(), ids.clone(), cos.clone(), sin.clone()].map(Some);
            run_cpu(&op, &inputs, 1).unwrap().remove(0)
        };
        let [q, k, v] = [(32, 1), (16, 2), (16, 3)].map(|(w, s)| tensor(&[1, q_len, w], s));
        let number = |n: i32| Some(Tensor::new([1], &[n]).unwrap());
        let plain = GroupQueryAttention { rotary: None, ..op };
        let rest = [Some(v), past(4), past(5), number(total - 1), number(total)];
        let before = [&[Some(turned(&q, 4)), Some(turned(&k, 2))], &rest[..]].concat();
        let want = run_cpu(&plain, &before, 3).unwrap();
        let tables = [Some(cos.clone()), Some(sin.clone()), Some(ids.clone())];
        same(&op, &[&[Some(q), Some(k)], &rest[..], &tables].concat(), &want);
    }
}

/// A cache of codes gives the same results as a cache of the decoded numbers.
#[test]
fn caches_may_be_codes() {
    for (bits, channels, q_len, past_len) in
        [(8, false, 1, 6), (8, true, 3, 6), (4, true, 1, 5), (4, false, 5, 0), (8, true, 70, 0)]
    {
        let op = GroupQueryAttention { smooth: true, cache: CacheKind::Scaled { bits }, ..GROUPED };
        let (total, half) = (past_len + q_len, 1i32 << (bits - 1));
        let whole = |v: f32| (v * half as f32) as i32;
        let scale: Vec<f32> =
            (0..if channels { 16 } else { 1 }).map(|i| (1.0 + i as f32 / 16.0) / half as f32).collect();
        let dims: &[usize] = if channels { &[1, 2, 1, 8] } else { &[1] };
        let scales = Tensor::new(dims, &scale).unwrap();
        let stored = |codes: &[i32], rows: usize| match bits {
            8 => Tensor::new([1, 2, rows, 8], &codes.iter().map(|c| *c as i8).collect::<Vec<_>>()).unwrap(),
            _ => {
                let pair = |c: &[i32]| ((c[0] + 8) | ((c[1] + 8) << 4)) as u8;
                Tensor::new([1, 2, rows, 4], &codes.chunks(2).map(pair).collect::<Vec<_>>()).unwrap()
            }
        };
        // Codes of past keys and values, those of new ones, and what all stand for.
        let of = |at: usize, rows: usize| if channels { scale[at / 8 / rows * 8 + at % 8] } else { scale[0] };
        let codes = |seed: u64| -> Vec<i32> { values(16 * past_len, seed).into_iter().map(whole).collect() };
        let past = [codes(4), codes(5)];
        let new = [2, 3].map(|seed| tensor(&[1, q_len, 16], seed));
        let mut caches = Vec::new();
        let mut wholes = Vec::new();
        for (past, new) in past.iter().zip(&new) {
            let (new, mut all, mut numbers) = (new.to_f32s().unwrap(), Vec::new(), Vec::new());
            for (i, (head, row, d)) in (0..16 * total).map(|i| (i, (i / 8 / total, i / 8 % total, i % 8))) {
                let scale = of(i, total);
                let code = match row.checked_sub(past_len) {
                    None => past[(head * past_len + row) * 8 + d],
                    Some(r) => {
                        let q = (new[r * 16 + head * 8 + d] / scale).round_ties_even() as i32;
                        q.clamp(-half, half - 1)
                    }
                };
                all.push(code);
                numbers.push(code as f32 * scale);
            }
            caches.push(stored(&all, total));
            wholes.push(Tensor::new([1, 2, total, 8], &numbers).unwrap());
        }
        let number = |n: usize| Some(Tensor::new([1], &[n as i32]).unwrap());
        let q = tensor(&[1, q_len, 32], 1);
        let before = past.map(|codes| (past_len > 0).then(|| stored(&codes, past_len)));
        let [k, v] = new.map(Some);
        let mut inputs = vec![Some(q.clone()), k, v];
        inputs.extend(before);
        inputs.extend([number(total - 1), number(total), None, None, None, None, None]);
        inputs.extend([Some(scales.clone()), Some(scales)]);
        let got = run_cpu(&op, &inputs, 3).unwrap();
        assert_eq!((got[1].bytes(), got[2].bytes()), (caches[0].bytes(), caches[1].bytes()));
        // The same by numbers: everything but the new rows is the past.
        let plain = GroupQueryAttention { cache: CacheKind::Same, ..op };
        let rows = |t: &Tensor| -> Vec<f32> {
            let v = t.to_f32s().unwrap();
            (0..16 * q_len).map(|i| v[(i % 16 / 8 * total + past_len + i / 16) * 8 + i % 8]).collect()
        };
        let old = |t: &Tensor| {
            let v = t.to_f32s().unwrap();
            let past: Vec<f32> = v.chunks(total * 8).flat_map(|h| h[..past_len * 8].to_vec()).collect();
            (past_len > 0).then(|| Tensor::new([1, 2, past_len, 8], &past).unwrap())
        };
        let [k, v] = [0, 1].map(|n| Some(Tensor::new([1, q_len, 16], &rows(&wholes[n])).unwrap()));
        let numbers = [Some(q), k, v, old(&wholes[0]), old(&wholes[1]), number(total - 1), number(total)];
        let want = run_cpu(&plain, &numbers, 3).unwrap();
        assert_near(&got[0], &wide(&want[0]), 1e-5);
        #[cfg(feature = "vulkan")]
        crate::ops::testing::Check::new(&op, &inputs).outputs(3).tolerance(2e-5).run();
        inputs[12] = Some(tensor(&[3], 1));
        assert!(facts(&op, &inputs, 3).is_err());
    }
}

#[test]
fn operands_may_be_packed() {
    let op = MultiHeadAttention { heads: 3, scale: None, causal: false };
    let all = tensor(&[2, 4, 3, 3, 8], 1);
    let v = all.to_f32s().unwrap();
    let part = |n: usize| -> Vec<f32> { (0..24).flat_map(|h| v[(h * 3 + n) * 8..][..8].to_vec()).collect() };
    let parts: Vec<_> = (0..3).map(|n| Some(Tensor::new([2, 4, 24], &part(n)).unwrap())).collect();
    let want = run_cpu(&plain(false), &parts, 1).unwrap();
    same(&op, &[Some(all)], &want);
    let pairs: Vec<f32> = (0..24).flat_map(|h| v[(h * 3 + 1) * 8..][..16].to_vec()).collect();
    let pairs = Tensor::new([2, 4, 3, 2, 8], &pairs).unwrap();
    same(&op, &[parts[0].clone(), Some(pairs)], &want);
}

/// Keys of `[1, 2, rows, 8]`: those of `a`, then those of `b`.
fn joined(a: &Tensor, b: &Tensor) -> Tensor {
    let (x, y) = (a.to_f32s().unwrap(), b.to_f32s().unwrap());
    let (n, m) = (a.shape()[2] * 8, b.shape()[2] * 8);
    let all: Vec<f32> = (0..2).flat_map(|h| [&x[h * n..][..n], &y[h * m..][..m]].concat()).collect();
    Tensor::new([1, 2, (n + m) / 8, 8], &all).unwrap()
}

/// `[1, length, 2 * 8]` as `[1, 2, length, 8]`.
fn heads_first(x: &Tensor) -> Tensor {
    let (v, len) = (x.to_f32s().unwrap(), x.shape()[1]);
    let all: Vec<f32> = (0..2 * len).flat_map(|n| v[(n % len * 2 + n / len) * 8..][..8].to_vec()).collect();
    Tensor::new([1, 2, len, 8], &all).unwrap()
}

#[test]
fn group_query_attention_rotates_and_appends() {
    for (q_len, past_len, rotary) in
        [(5, 0, None), (1, 6, None), (1, 6, Some(false)), (3, 6, Some(true)), (4, 0, Some(false))]
    {
        let window = (q_len == 3).then_some(4);
        let op = GroupQueryAttention { window, rotary, ..GROUPED };
        let total = past_len + q_len;
        let [q, k, v] = [(32, 1), (16, 2), (16, 3)].map(|(w, s)| tensor(&[1, q_len, w], s));
        let tables = [tensor(&[20, 4], 4), tensor(&[20, 4], 5)];
        let past = [6, 7].map(|s| tensor(&[1, 2, past_len.max(1), 8], s));
        let cached = |p: &Tensor| (past_len > 0).then(|| p.clone());
        let table = |t: &Tensor| rotary.map(|_| t.clone());
        let mut inputs = vec![
            Some(q.clone()),
            Some(k.clone()),
            Some(v.clone()),
            cached(&past[0]),
            cached(&past[1]),
            Some(Tensor::new([1], &[total as i32 - 1]).unwrap()),
            Some(Tensor::new([1], &[total as i32]).unwrap()),
            table(&tables[0]),
            table(&tables[1]),
        ];
        while inputs.last().is_some_and(Option::is_none) {
            inputs.pop();
        }
        // The same by ONNX's operators: rotation, concatenation, attention with a window.
        let turned = |x: &Tensor, heads: usize| {
            let Some(interleaved) = rotary else { return x.clone() };
            let op = RotaryEmbedding { interleaved, rotated: None, heads: Some(heads), contrib: true };
            let first = Tensor::from_i64s(&[past_len as i64]);
            let inputs = [x.clone(), first, tables[0].clone(), tables[1].clone()].map(Some);
            run_cpu(&op, &inputs, 1).unwrap().remove(0)
        };
        let new = [heads_first(&turned(&k, 2)), heads_first(&v)];
        let cache = |n: usize| if past_len > 0 { joined(&past[n], &new[n]) } else { new[n].clone() };
        let seen = Tensor::from_i64s(&[total as i64]);
        let q4 = {
            let (v, x) = (turned(&q, 4).to_f32s().unwrap(), q_len);
            let all: Vec<f32> = (0..4 * x).flat_map(|n| v[(n % x * 4 + n / x) * 8..][..8].to_vec()).collect();
            Tensor::new([1, 4, x, 8], &all).unwrap()
        };
        let attention =
            Attention { causal: true, window: [window.map(|w| w - 1), None], ..Attention::default() };
        let given = [Some(q4), Some(cache(0)), Some(cache(1)), None, None, None, Some(seen)];
        let y = run_cpu(&attention, &given, 1).unwrap().remove(0).to_f32s().unwrap();
        let y: Vec<f32> =
            (0..4 * q_len).flat_map(|n| y[(n % 4 * q_len + n / 4) * 8..][..8].to_vec()).collect();
        let want = [Tensor::new([1, q_len, 32], &y).unwrap(), cache(0), cache(1)];
        same(&op, &inputs, &want);

        // All three operands in one tensor.
        let rows: Vec<f32> = (0..q_len)
            .flat_map(|i| {
                let row = |t: &Tensor, w: usize| t.to_f32s().unwrap()[i * w..][..w].to_vec();
                [row(&q, 32), row(&k, 16), row(&v, 16)].concat()
            })
            .collect();
        inputs[0] = Some(Tensor::new([1, q_len, 64], &rows).unwrap());
        (inputs[1], inputs[2]) = (None, None);
        same(&op, &inputs, &want);
    }
}

/// Each sequence of a batch ends where its own keys do, in a cache that is longer.
#[test]
fn sequences_have_lengths_of_their_own() {
    let op = GroupQueryAttention { heads: 2, kv_heads: 1, softcap: 1.5, ..GROUPED };
    let [q, k, v] = [(8, 1), (4, 2), (4, 3)].map(|(w, s)| tensor(&[2, 1, w], s));
    let past = [4, 5].map(|s| tensor(&[2, 1, 7, 4], s));
    let last = Tensor::new([2], &[5i32, 2]).unwrap();
    let total = Tensor::new([1], &[6i32]).unwrap();
    let inputs = [q.clone(), k.clone(), v.clone(), past[0].clone(), past[1].clone(), last, total].map(Some);
    let cache = |past: &Tensor, new: &Tensor| {
        let (mut all, new) = (past.to_f32s().unwrap(), new.to_f32s().unwrap());
        all[5 * 4..6 * 4].copy_from_slice(&new[..4]);
        all[(7 + 2) * 4..(7 + 3) * 4].copy_from_slice(&new[4..]);
        Tensor::new([2, 1, 7, 4], &all).unwrap()
    };
    let (keys, values) = (cache(&past[0], &k), cache(&past[1], &v));
    let attention = Attention { causal: true, softcap: 1.5, ..Attention::default() };
    let q4 = Tensor::new([2, 2, 1, 4], &q.to_f32s().unwrap()).unwrap();
    let seen = Tensor::from_i64s(&[6, 3]);
    let given = [Some(q4), Some(keys.clone()), Some(values.clone()), None, None, None, Some(seen)];
    let y = run_cpu(&attention, &given, 1).unwrap().remove(0).to_f32s().unwrap();
    same(&op, &inputs, &[Tensor::new([2, 1, 8], &y).unwrap(), keys, values]);
}

/// The rows of a cache that nothing reaches are zeros, also where the cache ends within a word.
#[cfg(feature = "vulkan")]
#[test]
fn a_cache_may_be_an_odd_number_of_halves() {
    use crate::ops::test_util::tensor_of;
    let op = GroupQueryAttention { heads: 1, kv_heads: 1, ..GROUPED };
    let half = |shape: &[usize], seed| {
        Some(tensor_of(shape, &tensor(shape, seed).to_f32s().unwrap(), half::f16::from_f32))
    };
    let [q, k, v] = [1, 2, 3].map(|seed| half(&[1, 2, 3], seed));
    let [past_k, past_v] = [4, 5].map(|seed| half(&[1, 1, 1, 3], seed));
    let [last, total] = [2i32, 3].map(|n| Some(Tensor::new([1], &[n]).unwrap()));
    let inputs = [q, k, v, past_k, past_v, last, total];
    crate::ops::testing::Check::new(&op, &inputs).outputs(3).tolerance(2e-3).run();
}

/// A device that keys are done on in many parts.
#[cfg(feature = "vulkan")]
fn large(info: &mut DeviceInfo) {
    crate::ops::testing::no_texels(info);
    info.processors = Some(200);
}

/// A card.
#[cfg(feature = "vulkan")]
fn card(info: &mut DeviceInfo) {
    crate::ops::testing::no_texels(info);
    info.kind = crate::backend::DeviceKind::Discrete;
}

/// A device whose last work-group cannot join what others wrote.
#[cfg(feature = "vulkan")]
fn without_counting(info: &mut DeviceInfo) {
    crate::ops::testing::no_texels(info);
    info.orders_groups = false;
}

/// Few queries to many keys: the kernel that reads a cache in parts rotates queries and new keys, and writes new rows.
#[cfg(feature = "vulkan")]
#[test]
fn attention_in_parts_writes_new_keys_and_values() {
    use crate::ops::test_util::tensor_of;
    use crate::ops::testing::{Check, devices, no_texels};
    let cases = [
        // Heads, those of keys, size, queries, past keys, rotated elements.
        ([4, 2, 8], [1, 90], Some((false, 8))),
        ([4, 2, 16], [1, 64], Some((true, 12))),
        ([14, 2, 16], [1, 130], Some((false, 8))),
        ([12, 2, 8], [4, 70], Some((true, 8))),
        ([6, 1, 8], [3, 100], Some((false, 8))),
        ([4, 4, 32], [2, 300], None),
    ];
    for (n, ([heads, kv_heads, size], [q_len, past_len], turned)) in cases.into_iter().enumerate() {
        for (half, packed) in [(false, false), (false, true), (true, true)] {
            let make = |shape: &[usize], seed: u64| {
                let plain = tensor(shape, seed);
                match half {
                    true => tensor_of(shape, &plain.to_f32s().unwrap(), half::f16::from_f32),
                    false => plain,
                }
            };
            let op = GroupQueryAttention {
                heads,
                kv_heads,
                softcap: if n == 2 { 1.5 } else { 0.0 },
                window: (n == 4).then_some(33),
                rotary: turned.map(|(interleaved, _)| interleaved),
                causal: n != 5,
                smooth: n == 1,
                ..GROUPED
            };
            // The second sequence is shorter, and the cache longer than both.
            let rows = past_len + q_len + 3;
            let last = [past_len + q_len - 1, past_len + q_len - 12].map(|n| n as i32);
            let (q, kv) = (heads * size, kv_heads * size);
            let mut inputs = match packed {
                true => vec![Some(make(&[2, q_len, q + 2 * kv], 1)), None, None],
                false => [(q, 1), (kv, 2), (kv, 3)].map(|(w, s)| Some(make(&[2, q_len, w], s))).to_vec(),
            };
            inputs.extend([4, 5].map(|seed| Some(make(&[2, kv_heads, rows, size], seed))));
            inputs.push(Some(Tensor::new([2], &last).unwrap()));
            inputs.push(Some(Tensor::new([1], &[last[0] + 1]).unwrap()));
            if let Some((_, rotated)) = turned {
                inputs.extend([6, 7].map(|seed| Some(make(&[rows, rotated / 2], seed))));
            }
            let tolerance = if half { 4e-3 } else { 2e-5 };
            let split = if half { "attention_split_f16_fresh" } else { "attention_split_f32_fresh" };
            let ways: [(fn(&mut DeviceInfo), bool); 4] =
                [(no_texels, true), (large, true), (without_counting, false), (card, false)];
            for (way, joined) in ways {
                let check = Check::new(&op, &inputs).outputs(3).pretend(way).tolerance(tolerance);
                check.run();
                if n == 1 && !half && joined {
                    let ran = check.run_candidates();
                    assert!(ran.iter().any(|name| name.ends_with("/joined")) && ran.len() > 1, "{ran:?}");
                }
                for context in devices() {
                    let kernels = check.kernels_on(context);
                    let split = format!("{split}{}", if joined { "_joined" } else { "" });
                    assert!(kernels.contains(&&*split), "{kernels:?}");
                    // Two copies of past rows; nothing else moves vectors.
                    let of = |name: &str| kernels.iter().filter(|kernel| kernel.starts_with(name)).count();
                    assert_eq!(
                        (of("rotary"), of("attention_merge")),
                        (2, usize::from(!joined)),
                        "{kernels:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn forms_that_are_not_known_are_refused() {
    let int = |n| AttrValue::Int(n);
    let heads = [("num_heads", int(4)), ("kv_num_heads", int(2))];
    assert!(read("GroupQueryAttention", &heads).is_ok());
    assert!(read("GroupQueryAttention", &heads[..1]).is_err());
    for (name, value) in [("qk_output", 1), ("sliding_window_cache", 1)] {
        let list = [&heads[..], &[(name, int(value))]].concat();
        assert!(matches!(read("GroupQueryAttention", &list), Err(OpError::Unsupported { .. })));
    }
    let window = [&heads[..], &[("causal", int(0)), ("local_window_size", int(4))]].concat();
    assert!(matches!(read("GroupQueryAttention", &window), Err(OpError::Unsupported { .. })));
    assert!(read("MultiHeadAttention", &[]).is_err());
    assert!(read("MatMulNBits", &[("K", int(32)), ("N", int(2)), ("block_size", int(24))]).is_err());
    assert!(
        read("MatMulNBits", &[("K", int(32)), ("N", int(2)), ("block_size", int(32)), ("bits", int(3))])
            .is_err()
    );
    assert!(read("FusedConv", &[("activation", AttrValue::Str(b"Sine".to_vec()))]).is_err());
    assert!(read("FusedConv", &[("activation", AttrValue::Str(b"Relu".to_vec()))]).is_ok());
    assert!(read("QuickGelu", &[]).is_ok() && read("Gelu", &[]).is_ok());
}
