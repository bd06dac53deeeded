//! The kernels against the same in Rust.

use half::f16;

use super::{Case, check};

/// Numbers that look random.
fn numbers(count: usize) -> Vec<u32> {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as u32
    };
    (0..count).map(|_| next()).collect()
}

fn bytes<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

fn first_factor(v: u32) -> u32 {
    (2..).take_while(|d| d * d <= v).find(|d| v.is_multiple_of(*d)).unwrap_or(v)
}

fn steps(v: u32) -> u32 {
    let mut sum = 0u32;
    for i in 0..12u32 {
        for j in 0..12u32 {
            if j == v % 5 {
                continue;
            }
            if i * j > v {
                break;
            }
            if sum > 5000 {
                return sum.wrapping_add(7);
            }
            sum = sum.wrapping_add(i * 3 + j);
        }
        let case = (v + i) % 7;
        match case {
            0 => sum = sum.wrapping_add(11),
            1 => sum = sum.wrapping_add(10),
            2 | 3 => {
                if v & 1 == 0 {
                    continue;
                }
                sum = sum.wrapping_add(100);
            }
            5 if i > 8 => sum ^= 0x40,
            5 => sum = sum.wrapping_add((0..v % 3).sum::<u32>() + 1003),
            _ => sum = sum.wrapping_add(3),
        }
        if (sum & 0xff == 0x80 && i > 3) || (sum > 9000 && v > 50) {
            break;
        }
        sum = sum.wrapping_mul(2).wrapping_add(1);
    }
    sum
}

#[test]
fn control_flow() {
    let (n, limit) = (200u32, 60u32);
    let x: Vec<u32> = (0..n).collect();
    let of = |v: u32| {
        let (mut a, mut count) = (v, 0u32);
        loop {
            a = if a & 1 == 0 { a / 2 } else { 3 * a + 1 };
            count += 1;
            if a <= 1 || count >= limit {
                break;
            }
        }
        count += match v {
            0 => 1_000_000,
            39 => 2_000_000,
            40 => 0,
            1..39 => 3_000_000,
            _ => 4_000_000,
        };
        count.wrapping_add(7 * first_factor(v)).wrapping_add(steps(v).wrapping_mul(31))
    };
    let y: Vec<u32> = x.iter().map(|v| of(*v)).collect();
    check(&Case {
        glsl: include_str!("control.comp"),
        spec: &[],
        params: bytes(&[n, limit]),
        groups: n.div_ceil(32),
        before: vec![bytes(&x), vec![0; 4 * n as usize]],
        after: vec![bytes(&x), bytes(&y)],
    });
}

#[test]
fn workgroup_memory_and_specialization() {
    let n = 150u32;
    let x: Vec<f32> = (0..n).map(|i| (i % 11) as f32 - 4.0).collect();
    for (local, scale, scan) in [(32u32, 1u32, false), (64, 3, false), (16, 2, true), (64, 1, true)] {
        let scaled: Vec<f32> = x.iter().map(|v| v * (scale * 2 + local) as f32).collect();
        let groups = scaled.chunks(local as usize).map(|group| {
            let mut sum = 0.0;
            let sums: Vec<f32> = group
                .iter()
                .map(|v| {
                    sum += v;
                    sum
                })
                .collect();
            let columns = |lane: usize| 4.0 * sum + 24.0 + 4.0 * (lane % 4) as f32;
            if scan { sums } else { (0..group.len()).map(columns).collect() }
        });
        let y: Vec<f32> = groups.flatten().collect();
        check(&Case {
            glsl: include_str!("shared.comp"),
            spec: &[(0, local), (1, scale), (2, u32::from(scan))],
            params: bytes(&[n]),
            groups: n.div_ceil(local),
            before: vec![bytes(&x), vec![0; 4 * n as usize]],
            after: vec![bytes(&x), bytes(&y)],
        });
    }
}

/// Many groups at once, on threads of the driver's: none sees another's memory.
#[test]
fn work_groups_have_memory_of_their_own() {
    let (rows, len) = (3000u32, 300u32);
    let x: Vec<u32> = (0..rows * len).map(|i| i.wrapping_mul(0x9e37_79b9) >> 7).collect();
    let row = |row: &[u32]| {
        let sum = row.iter().fold(0u32, |sum, v| sum.wrapping_add(*v));
        let mixed = row.iter().fold(0u32, |mixed, v| mixed.wrapping_add(v ^ sum));
        row.iter().map(|v| v.wrapping_mul(sum).wrapping_add(mixed)).collect::<Vec<u32>>()
    };
    let y: Vec<u32> = x.chunks(len as usize).flat_map(row).collect();
    check(&Case {
        glsl: include_str!("groups.comp"),
        spec: &[],
        params: bytes(&[rows, len]),
        groups: rows + 1,
        before: vec![bytes(&x), vec![0; 4 * (rows * len) as usize]],
        after: vec![bytes(&x), bytes(&y)],
    });
}

/// What `bits.comp` writes for a pair.
fn bit_results(i: u32, a: i32, b: i32) -> [i32; 32] {
    let (ua, ub) = (a as u32, b as u32);
    let product = u64::from(ua) * u64::from(ub);
    let signed = i64::from(a) * i64::from(b);
    let msb = |v: u32| 31 - v.leading_zeros() as i32;
    let modulus = if b == 0 || b == -1 { 1 } else { b };
    let rest = a.wrapping_rem(modulus);
    let floor_mod = if rest != 0 && (rest < 0) != (modulus < 0) { rest + modulus } else { rest };
    let wide = signed.wrapping_sub(i64::from(ua));
    let less = [a < b, b < a, a.wrapping_neg() < b, 5 < a];
    let mut triple = [ua ^ ub, ua.wrapping_add(3), ub];
    triple[i as usize % 3] = triple[i as usize % 3].wrapping_mul(5);
    let mixed = triple[0].wrapping_add(triple[1].wrapping_mul(3)).wrapping_add(triple[2].wrapping_mul(7));
    let insert_mask = 0xfff << 7;
    [
        a.wrapping_add(b),
        a.wrapping_sub(b),
        a.wrapping_mul(b),
        if b != 0 && b != -1 { a / b } else { 0 },
        ua.checked_div(ub).unwrap_or(0) as i32,
        floor_mod,
        (product >> 32) as i32,
        product as i32,
        (signed >> 32) as i32,
        signed as i32,
        ua.wrapping_add(ub) as i32,
        i32::from(ua.checked_add(ub).is_none()),
        ua.wrapping_sub(ub) as i32,
        i32::from(ua < ub),
        a >> (ub & 31),
        (ua >> (ub & 31)) as i32,
        msb(if a < 0 { !ua } else { ua }),
        msb(ua),
        if a == 0 { -1 } else { a.trailing_zeros() as i32 },
        a.count_ones() as i32,
        a.reverse_bits(),
        (a << 18) >> 23,
        ((ua >> 3) & 0x1_ffff) as i32,
        (a & !insert_mask) | ((b << 7) & insert_mask),
        wide as i32,
        (wide >> 32) as i32,
        a.signum().wrapping_add(b.wrapping_abs()),
        a.clamp(-100, 1000).wrapping_add(a.max(b)).wrapping_add(ua.min(ub) as i32),
        i32::from(less[0])
            + 2 * i32::from(less[1])
            + 4 * i32::from(less.contains(&true))
            + 8 * i32::from(!less.contains(&false))
            + 16 * i32::from(!less[3]),
        mixed as i32,
        [a, b, a.wrapping_sub(b), a.wrapping_add(b)][ub as usize & 3],
        if ua & 1 != 0 { b } else { a },
    ]
}

#[test]
fn integers_of_every_width() {
    let edges = [0, 1, -1, i32::MAX, i32::MIN, 7, -8, 255, 65536];
    let mut x: Vec<i32> = edges.iter().flat_map(|a| edges.map(|b| [*a, b])).flatten().collect();
    x.extend(numbers(160).iter().map(|v| (*v as i32) >> (v & 15)));
    let n = x.len() / 2;
    let pairs = || x.chunks_exact(2).map(|pair| (pair[0], pair[1]));
    let y: Vec<i32> = pairs().enumerate().flat_map(|(i, (a, b))| bit_results(i as u32, a, b)).collect();
    // A storage buffer's bytes are whole words.
    let small: Vec<i8> = (0..n.next_multiple_of(4)).map(|i| (i * 37) as i8).collect();
    let shorts: Vec<u16> = (0..n.next_multiple_of(2)).map(|i| (i * 3001) as u16).collect();
    let (mut small_after, mut shorts_after) = (small.clone(), shorts.clone());
    for (i, (a, b)) in pairs().enumerate() {
        small_after[i] = small[i].wrapping_add(a as i8).wrapping_mul(b as i8);
        shorts_after[i] = shorts[i].wrapping_sub(a as u16) >> 3;
    }
    check(&Case {
        glsl: include_str!("bits.comp"),
        spec: &[],
        params: bytes(&[n as u32]),
        groups: (n as u32).div_ceil(16),
        before: vec![bytes(&x), vec![0; 128 * n], bytes(&small), bytes(&shorts)],
        after: vec![bytes(&x), bytes(&y), bytes(&small_after), bytes(&shorts_after)],
    });
}

#[derive(Clone, Copy)]
struct Item {
    at: [f32; 3],
    weight: f32,
    speed: [f32; 3],
    tags: [u32; 3],
    pair: [f32; 2],
}

impl Item {
    fn words(&self) -> Vec<u32> {
        let mut words: Vec<u32> = self.at.iter().map(|v| v.to_bits()).collect();
        words.push(self.weight.to_bits());
        words.extend(self.speed.map(f32::to_bits));
        words.extend(self.tags);
        words.extend(self.pair.map(f32::to_bits));
        words
    }
}

#[test]
fn explicit_layouts() {
    let n = 21usize;
    let (shift, scale, tail) = ([1.0f32, -2.0, 3.0], [[0.5f32, 2.0], [4.0, -1.0]], [9i32, -3, 5]);
    let mut params = bytes(&shift);
    params.extend(bytes(&[n as u32]));
    params.extend(bytes(&scale.concat()));
    params.extend(bytes(&tail));
    let table = [0.5f32, 1.5, -2.0, 4.0, 8.0];
    let head = [1u32, 2, 3, 4];
    let (mut before, mut after) = (bytes(&head), bytes(&head));
    let (mut g, mut y) = (Vec::new(), Vec::new());
    let h: Vec<f16> = (0..n + 1).map(|i| f16::from_f32(i as f32 * 0.25 - 2.0)).collect();
    for (i, half) in h.iter().take(n).enumerate() {
        let f = i as f32;
        let mut item = Item {
            at: [f, f - 3.0, 2.0 - f],
            weight: f * 0.5,
            speed: [2.0, f, -1.0],
            tags: [i as u32, i as u32 * 3, 77],
            pair: [f, -f],
        };
        before.extend(bytes(&item.words()));
        for (at, shift) in item.at.iter_mut().zip(shift) {
            *at += shift;
        }
        let product: f32 = item.at.iter().zip(item.speed).map(|(a, b)| a * b).sum();
        let sums = [1.0 + item.weight, 2.0 - item.pair[1]];
        let slot = item.tags[1] & 3;
        item.speed = [item.at[2], item.at[1], item.at[0]].map(|v| v * 2.0 + n as f32);
        item.tags[i % 3] = (table[i % 5] * 2.0 + 8.0) as u32;
        let memo = |at: u32| at as f32 + if at == slot { 1.0 } else { 0.0 };
        y.push(product + sums[0] * 16.0 + sums[1] * 256.0 + memo(item.tags[1] & 3));
        let [a, b] = item.pair;
        item.pair = [b * scale[i & 1][0] + tail[1] as f32, a * scale[i & 1][1] + tail[2] as f32];
        after.extend(bytes(&item.words()));
        let v = half.to_f32();
        g.extend([v, v * 3.0, 1.0 / 3.0, product].map(f16::from_f32));
    }
    check(&Case {
        glsl: include_str!("layout.comp"),
        spec: &[],
        params,
        groups: 3,
        before: vec![before, bytes(&h), vec![0; g.len() * 2], vec![0; n * 4]],
        after: vec![after, bytes(&h), bytes(&g), bytes(&y)],
    });
}

#[test]
fn atomics() {
    let groups = 5u32;
    let n = groups * 64;
    let mut counters = vec![0u32; 9];
    counters[4] = 5;
    let y: Vec<u32> = (0..groups).map(|group| (group * 64..group * 64 + 64).sum()).collect();
    let after: Vec<u32> =
        vec![(0..n).sum(), (-(n as i32 - 1)) as u32, 16, u32::MAX, 9, n / 4, n / 4, n / 4, n / 4];
    check(&Case {
        glsl: include_str!("atomics.comp"),
        spec: &[],
        params: Vec::new(),
        groups,
        before: vec![bytes(&counters), vec![0; 4 * groups as usize]],
        after: vec![bytes(&after), bytes(&y)],
    });
}

#[test]
fn half_precision_is_rounded_at_every_step() {
    let n = 128usize;
    let value = |bits: &u32| f16::from_f32((*bits >> 8) as f32 / 65536.0 - 100.0);
    let values: Vec<f16> = numbers(2 * n).iter().map(value).collect();
    let (a, b) = values.split_at(n);
    let tenth = f16::from_f32(0.1);
    let y: Vec<f16> = a
        .iter()
        .zip(b)
        .flat_map(|(&x, &b)| [x + b, x * b + (x - b), b * x + tenth, if x < b { -x } else { b }])
        .collect();
    check(&Case {
        glsl: include_str!("half.comp"),
        spec: &[],
        params: bytes(&[n as u32]),
        groups: 2,
        before: vec![bytes(a), bytes(b), vec![0; n * 8]],
        after: vec![bytes(a), bytes(b), bytes(&y)],
    });
}
