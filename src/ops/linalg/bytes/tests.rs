use proptest::prelude::*;

use super::*;
use crate::ops::par::of_threads;

fn number(byte: u8, signed: bool) -> i32 {
    if signed { i32::from(byte as i8) } else { i32::from(byte) }
}

fn bytes(n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // The extremes are frequent.
            match (state >> 33) % 8 {
                0 => 0,
                1 => 0xff,
                2 => 0x80,
                3 => 0x7f,
                _ => (state >> 40) as u8,
            }
        })
        .collect()
}

fn packed(shape: [usize; 2], rows: &[u8], flip: u8, unit: Unit) -> (Packing, Vec<i32>) {
    let packing = Packing::new(shape, unit);
    // Bytes after the last column must not count.
    let mut words = vec![-1; packing.bytes() / 4];
    packing.pack(rows, flip, bytemuck::cast_slice_mut(&mut words));
    (packing, words)
}

proptest! {
    #[test]
    fn products_are_exact_on_every_unit(
        m in 1usize..20, n in 1usize..120, k in 1usize..40, gap in 0usize..3,
        flip in any::<bool>(), one in any::<bool>(), per_column in any::<bool>(), all in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let (left, right) = (bytes(m * k, seed), bytes(k * n, seed ^ 5));
        let left_zeros: Vec<i32> = bytes(if one { 1 } else { m }, seed ^ 7).into_iter().map(i32::from).collect();
        let zeros: Vec<i32> = bytes(n, seed ^ 9).into_iter().map(|b| number(b, true)).collect();
        let left_zero = |r: usize| left_zeros[r % left_zeros.len()];
        let right_zero = |c: usize| if per_column { zeros[c] } else { 3 };
        // Unsigned bytes are flipped to signed ones, and count 128 less.
        let value = |i: usize| if flip { i32::from(right[i]) - 128 } else { number(right[i], true) };
        let mut want = vec![0; m * n];
        for r in 0..m {
            for c in 0..n {
                want[r * n + c] = (0..k)
                    .map(|i| (i32::from(left[r * k + i]) - left_zero(r)) * (value(i * n + c) - right_zero(c)))
                    .sum();
            }
        }
        let row = k.next_multiple_of(4);
        let mut padded = vec![0; m * row];
        padded.chunks_mut(row).zip(left.chunks(k)).for_each(|(to, from)| to[..k].copy_from_slice(from));
        let sums = row_sums::<false>(&padded, row);
        let factors: Vec<i32> = (0..m).map(|r| k as i32 * left_zero(r) - sums[r]).collect();
        let rows: Vec<i32> = factors.iter().map(|f| 3 * f).collect();
        for unit in Unit::all() {
            let (packing, words) = packed([k, n], &right, if flip { FLIP } else { 0 }, unit);
            let panels = Panels::new(&packing, &words);
            let around = Around {
                rows: if per_column { &[] } else { &rows },
                left_zeros: &left_zeros,
                right_zeros: per_column.then_some((&zeros, &factors)),
            };
            let product = Product { left: &padded, groups: panels.groups(), right: &panels, around, unit };
            let mut y = vec![-1i32; m * (n + gap)];
            let threads = if all { Threads::All } else { Threads::One };
            product.run([m, n], &mut y, n + gap, threads, |_, _, sums, to| {
                to.iter_mut().zip(sums).for_each(|(y, sum)| *y = *sum);
            });
            for (r, y) in y.chunks(n + gap).enumerate() {
                prop_assert_eq!(&y[..n], &want[r * n..][..n], "{:?} row {}", unit, r);
                prop_assert!(y[n..].iter().all(|y| *y == -1));
            }
        }
    }
}

#[test]
fn large_products_are_shared_out_completely() {
    for [m, n, k] in [[130, 70, 64], [9, 1000, 60], [64, 65, 300]] {
        let (left, right) = (bytes(m * k, 1), bytes(k * n, 2));
        for unit in Unit::all() {
            let (packing, words) = packed([k, n], &right, 0, unit);
            let panels = Panels::new(&packing, &words);
            let (groups, around) = (panels.groups(), Around::default());
            let product = Product { left: &left, groups, right: &panels, around, unit };
            let mut y = vec![(0, 0, 0); m * n];
            of_threads(3, || {
                product.run([m, n], &mut y, n, Threads::All, |row, column, sums, to| {
                    let each = to.iter_mut().zip(sums).enumerate();
                    each.for_each(|(i, (y, sum))| *y = (row, column + i, *sum));
                });
            });
            for (i, (row, column, sum)) in y.into_iter().enumerate() {
                assert_eq!((row, column), (i / n, i % n));
                let want: i32 =
                    (0..k).map(|i| i32::from(left[row * k + i]) * number(right[i * n + column], true)).sum();
                assert_eq!(sum, want);
            }
        }
    }
}
