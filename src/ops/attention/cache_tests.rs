//! Caches of other types than keys and values.

use super::CacheKind;
use super::cache::{CodeScales, CodedRows};
use super::group_query::GroupQueryAttention;
use crate::graph::Tensor;
use crate::ops::test_util::{assert_near, run_cpu, tensor, values};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;

fn rows(kind: CacheKind, bits: usize, size: usize) -> CodedRows {
    let row = kind.row(size);
    CodedRows { bits, scales: CodeScales::Blocks, batch: 1, heads: 1, rows: 1, size, row }
}

/// Of 256 codes a number is off by half a scale, which is a 127th of the largest number of its block. Of 16 codes one less is
/// of the other sign than the largest number has.
#[test]
fn blocks_give_numbers_back_as_near_as_their_codes() {
    for size in [1, 31, 32, 33, 64, 80, 128, 200] {
        let mut vector = values(size, size as u64);
        vector[size / 2] = 40.0;
        for (bits, far) in [(8, 0.5 / 127.0), (4, 1.0 / 8.0)] {
            let rows = rows(CacheKind::Blocks { bits }, bits, size);
            assert!(
                rows.row.is_multiple_of(4) && rows.row <= size * bits / 8 + size / 16 + 8,
                "{}",
                rows.row
            );
            let (mut row, mut got) = (vec![0xff; rows.row], vec![f32::NAN; size]);
            rows.encode(&vector, &[], 0, &mut row);
            rows.decode(&row, &[], 0, &mut got);
            for (block, (got, want)) in got.chunks(32).zip(vector.chunks(32)).enumerate() {
                let most = want.iter().fold(0.0f32, |most, v| most.max(v.abs()));
                for (got, want) in got.iter().zip(want) {
                    assert!((got - want).abs() <= 1.01 * far * most, "{size} {bits} {block}: {got} {want}");
                }
            }
        }
    }
}

#[test]
fn no_number_makes_others_of_its_block_wrong_beyond_its_size() {
    for (bits, codes) in [(8, 127.0), (4, 8.0f32)] {
        let rows = rows(CacheKind::Blocks { bits }, bits, 64);
        let turn = |vector: &[f32]| {
            let (mut row, mut got) = (vec![0; rows.row], vec![0.0f32; 64]);
            rows.encode(vector, &[], 0, &mut row);
            rows.decode(&row, &[], 0, &mut got);
            got
        };
        assert_eq!(turn(&[0.0; 64]), [0.0; 64]);
        let mut odd = vec![1.0f32; 64];
        odd[3] = f32::NAN;
        let got = turn(&odd);
        assert_eq!((got[3], got[63]), (0.0, got[0]));
        assert!((got[0] - 1.0).abs() < 1e-3, "{}", got[0]);
        // What binary16 cannot scale is as large as it can be.
        let got = turn(&vec![f32::INFINITY; 64]);
        assert!(got.iter().all(|v| v.is_finite() && *v >= 65504.0 * (codes - 1.0)), "{got:?}");
        let got = turn(&vec![1e-9; 64]);
        assert!(got.iter().all(|v| v.abs() <= 1e-7), "{got:?}");
    }
}

struct Case {
    kind: CacheKind,
    /// How far results are from those of a cache of the same numbers.
    far: f64,
}

const CASES: [Case; 3] = [
    Case { kind: CacheKind::Half, far: 2e-3 },
    Case { kind: CacheKind::Blocks { bits: 8 }, far: 2e-2 },
    Case { kind: CacheKind::Blocks { bits: 4 }, far: 0.3 },
];

/// Attention of `q_len` tokens of two sequences after `past`, caches of `total` rows.
fn inputs(
    (q_len, size): (usize, usize),
    past: Option<[Tensor; 2]>,
    total: usize,
    rotates: bool,
) -> Vec<Option<Tensor>> {
    let width = (HEADS + 2 * KV_HEADS) * size;
    let lasts = [total as i32 - 1, (total as i32 - 3).max(q_len as i32 - 1)];
    let [k, v] = past.map_or([None, None], |past| past.map(Some));
    let mut inputs = vec![Some(tensor(&[2, q_len, width], total as u64)), None, None, k, v];
    inputs.push(Some(Tensor::new([2], &lasts).unwrap()));
    inputs.push(Some(Tensor::new([1], &[total as i32]).unwrap()));
    if rotates {
        inputs.extend([7, 8].map(|seed| Some(tensor(&[total, size / 2], seed))));
        // Positions that are those of the tokens or others, no bias, and sinks.
        let ids: Vec<i64> = (0..2 * q_len).map(|i| (i * 7 % total) as i64).collect();
        let ids = (size < 64).then(|| Tensor::new([2, q_len], &ids).unwrap());
        inputs.extend([ids, None, Some(tensor(&[HEADS], 9))]);
    }
    inputs
}

/// A prompt, and tokens after it, give nearly what a cache of the same numbers gives, and devices what the CPU does.
#[test]
fn other_types_of_caches_give_nearly_the_same() {
    for Case { kind, far } in &CASES {
        for (size, rotates, window) in [(8, false, None), (40, true, Some(5)), (64, true, None)] {
            let op = GroupQueryAttention {
                heads: HEADS,
                kv_heads: KV_HEADS,
                scale: None,
                softcap: 0.0,
                window,
                rotary: rotates.then_some(false),
                causal: true,
                smooth: false,
                cache: *kind,
                updates: None,
            };
            let plain = GroupQueryAttention { cache: CacheKind::Same, ..op };
            let mut caches: [Option<[Tensor; 2]>; 2] = [None, None];
            let mut total = 0;
            for q_len in [70, 1, 3] {
                total += q_len;
                let [given, want] =
                    caches.each_ref().map(|past| inputs((q_len, size), past.clone(), total, rotates));
                let [mut got, mut want] =
                    [run_cpu(&op, &given, 3), run_cpu(&plain, &want, 3)].map(Result::unwrap);
                let numbers: Vec<f64> = want[0].to_f32s().unwrap().into_iter().map(f64::from).collect();
                assert_near(&got[0], &numbers, *far);
                assert_eq!(got[1].shape()[3], kind.row(size));
                #[cfg(feature = "vulkan")]
                for change in [crate::ops::testing::as_is, crate::ops::testing::no_texels] {
                    // By value a native function attends to new keys before they are rounded to `float16`.
                    let tolerance = if *kind == CacheKind::Half { *far } else { 2e-5 };
                    let check = crate::ops::testing::Check::new(&op, &given).outputs(3);
                    check.tolerance(tolerance).pretend(change).run();
                }
                caches = [&mut got, &mut want].map(|all| {
                    let (v, k) = (all.pop().unwrap(), all.pop().unwrap());
                    Some([k, v])
                });
            }
        }
    }
}
