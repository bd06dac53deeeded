//! PagedAttention against its definition, and devices against the native function.

use half::f16;

use super::PagedAttention;
use crate::graph::Tensor;
use crate::ops::Operator;
use crate::ops::test_util::{assert_near, facts, run_cpu, tensor, tensor_of, values};

const OP: PagedAttention = PagedAttention {
    heads: 4,
    kv_heads: 2,
    scale: None,
    softcap: 0.0,
    window: None,
    rotary: None,
    causal: true,
    updates: None,
};

/// Tokens of each sequence, keys before them, and their pages.
struct Case {
    op: PagedAttention,
    lens: Vec<usize>,
    past: Vec<usize>,
    table: Vec<Vec<i32>>,
    page: usize,
    size: usize,
    /// Tokens that belong to no sequence.
    after: usize,
    packed: bool,
    slots: Option<Vec<i32>>,
    sinks: bool,
}

impl Default for Case {
    fn default() -> Self {
        Case {
            op: OP,
            lens: vec![5, 1, 3],
            past: vec![0, 6, 2],
            table: vec![vec![5, 2, -1], vec![1, 4, -1], vec![3, 0, -1]],
            page: 4,
            size: 8,
            after: 0,
            packed: false,
            slots: None,
            sinks: false,
        }
    }
}

const BLOCKS: usize = 8;
const ROWS: usize = 64;

fn ints(v: impl IntoIterator<Item = i32>) -> Option<Tensor> {
    let v: Vec<i32> = v.into_iter().collect();
    Some(Tensor::new([v.len()], &v).unwrap())
}

impl Case {
    fn tokens(&self) -> usize {
        self.lens.iter().sum::<usize>() + self.after
    }

    fn inputs(&self) -> Vec<Option<Tensor>> {
        let (n, h, g, size) = (self.tokens(), self.op.heads, self.op.kv_heads, self.size);
        let [q, k, v] = [(h, 1), (g, 2), (g, 3)].map(|(heads, seed)| values(n * heads * size, seed));
        let operands = if self.packed {
            let widths = [h * size, g * size, g * size];
            let rows = (0..n).flat_map(|t| {
                [&q, &k, &v].into_iter().zip(widths).flat_map(move |(x, w)| x[t * w..(t + 1) * w].to_vec())
            });
            let rows: Vec<f32> = rows.collect();
            [Some(Tensor::new([n, (h + 2 * g) * size], &rows).unwrap()), None, None]
        } else {
            [(q, h), (k, g), (v, g)].map(|(x, heads)| Some(Tensor::new([n, heads * size], &x).unwrap()))
        };
        let caches = [4, 5].map(|seed| Some(tensor(&[BLOCKS, self.page, g, size], seed)));
        let mut ends = vec![0];
        self.lens.iter().for_each(|len| ends.push(ends[ends.len() - 1] + *len as i32));
        let table: Vec<i32> = self.table.concat();
        let table = Tensor::new([self.table.len(), self.table[0].len()], &table).unwrap();
        let tables = match self.op.rotary {
            Some(_) => [6, 7].map(|seed| Some(tensor(&[ROWS, size / 2], seed))),
            None => [None, None],
        };
        let mut all = operands.to_vec();
        all.extend(caches);
        all.extend([ints(ends), ints(self.past.iter().map(|p| *p as i32)), Some(table)]);
        all.extend(tables);
        all.push(self.slots.as_ref().and_then(|slots| ints(slots.iter().copied())));
        all.push(self.sinks.then(|| tensor(&[h], 8)));
        all
    }

    /// By the definition: result, keys and values.
    fn wanted(&self) -> [Vec<f64>; 3] {
        let inputs = Case { packed: false, ..self.again() }.inputs();
        let wide = |i: usize| -> Vec<f64> {
            inputs[i]
                .as_ref()
                .map_or(Vec::new(), |t| t.to_f32s().unwrap().into_iter().map(f64::from).collect())
        };
        let (h, g, size) = (self.op.heads, self.op.kv_heads, self.size);
        let [q, k, v, mut keys, mut values] = [0, 1, 2, 3, 4].map(wide);
        let (cos, sin, sinks) = (wide(8), wide(9), wide(11));
        let rotated = |x: &[f64], at: usize| -> Vec<f64> {
            let Some(interleaved) = self.op.rotary else { return x.to_vec() };
            let (mut y, pairs) = (x.to_vec(), size / 2);
            for i in 0..pairs {
                let (one, two) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + pairs) };
                let (c, s) = (cos[at * pairs + i], sin[at * pairs + i]);
                (y[one], y[two]) = (c * x[one] - s * x[two], s * x[one] + c * x[two]);
            }
            y
        };
        let mut tokens = Vec::new();
        for (b, (len, past)) in self.lens.iter().zip(&self.past).enumerate() {
            tokens.extend((0..*len).map(|i| (b, past + i, past + len)));
        }
        let row = |b: usize, j: usize| {
            let page = self.table[b][j / self.page];
            usize::try_from(page).ok().map(|page| page * self.page + j % self.page)
        };
        for (t, (b, at, _)) in tokens.iter().enumerate() {
            let to = match &self.slots {
                Some(slots) => usize::try_from(slots[t]).ok(),
                None => row(*b, *at),
            };
            let Some(to) = to else { continue };
            for head in 0..g {
                let from = (t * g + head) * size;
                let to = (to * g + head) * size;
                keys[to..to + size].copy_from_slice(&rotated(&k[from..from + size], *at));
                values[to..to + size].copy_from_slice(&v[from..from + size]);
            }
        }
        let mut y = vec![0.0; self.tokens() * h * size];
        for (t, (b, at, total)) in tokens.iter().enumerate() {
            for head in 0..h {
                let kv = head / (h / g);
                let query = rotated(&q[(t * h + head) * size..][..size], *at);
                let last = if self.op.causal { at + 1 } else { *total };
                let first = self.op.window.map_or(0, |w| (at + 1).saturating_sub(w));
                let rows: Vec<usize> = (first..last).filter_map(|j| row(*b, j)).collect();
                let scale = self.op.scale.map_or(1.0 / (size as f64).sqrt(), f64::from);
                let score = |row: &usize| {
                    let key = &keys[(row * g + kv) * size..][..size];
                    let s = key.iter().zip(&query).map(|(k, q)| k * q).sum::<f64>() * scale;
                    let cap = f64::from(self.op.softcap);
                    if cap > 0.0 { cap * (s / cap).tanh() } else { s }
                };
                let weights: Vec<f64> = rows.iter().map(|row| score(row).exp()).collect();
                let total: f64 = weights.iter().sum::<f64>() + sinks.get(head).map_or(0.0, |s| s.exp());
                for (row, w) in rows.iter().zip(&weights) {
                    for (d, v) in values[(row * g + kv) * size..][..size].iter().enumerate() {
                        y[(t * h + head) * size + d] += w / total * v;
                    }
                }
            }
        }
        [y, keys, values]
    }

    fn again(&self) -> Case {
        Case {
            op: self.op,
            lens: self.lens.clone(),
            past: self.past.clone(),
            table: self.table.clone(),
            slots: self.slots.clone(),
            ..*self
        }
    }

    fn check(&self) {
        let inputs = self.inputs();
        let got = run_cpu(&self.op, &inputs, 3).unwrap();
        for (got, want) in got.iter().zip(self.wanted()) {
            assert_near(got, &want, 1e-5);
        }
        #[cfg(feature = "vulkan")]
        for change in [crate::ops::testing::as_is, crate::ops::testing::no_texels] {
            crate::ops::testing::Check::new(&self.op, &inputs)
                .outputs(3)
                .pretend(change)
                .tolerance(2e-5)
                .run();
        }
    }
}

#[test]
fn sequences_read_and_write_their_pages() {
    Case::default().check();
    Case { packed: true, op: PagedAttention { rotary: Some(false), ..OP }, ..Case::default() }.check();
    let op = PagedAttention { rotary: Some(true), softcap: 2.0, scale: Some(0.4), ..OP };
    Case { op, sinks: true, after: 3, ..Case::default() }.check();
    Case { op: PagedAttention { window: Some(3), ..OP }, lens: vec![2, 0, 4], ..Case::default() }.check();
    Case { op: PagedAttention { causal: false, ..OP }, ..Case::default() }.check();
    // A page without a number hides its keys, and a token without a row is not written.
    let table = vec![vec![5, 2, -1], vec![-1, 4, -1], vec![3, 0, -1]];
    Case { table, ..Case::default() }.check();
    // Between others too, and where all are; a window may begin on any.
    let table = vec![vec![5, -1, 2, -1], vec![1, -1, 4, -1], vec![-1, -1, -1, -1]];
    for window in [None, Some(3), Some(6)] {
        let op = PagedAttention { window, ..OP };
        let (lens, past) = (vec![6, 2, 3], vec![5, 8, 2]);
        Case { op, table: table.clone(), lens, past, after: 2, ..Case::default() }.check();
    }
    let op = PagedAttention { causal: false, ..OP };
    Case { op, table, lens: vec![6, 2, 3], past: vec![5, 8, 2], ..Case::default() }.check();
    // Pages that are neighbours, of which the first tokens are in no window.
    let table = vec![vec![2, 3, -1], vec![4, 5, -1], vec![6, 7, -1]];
    for window in [None, Some(2)] {
        Case { table: table.clone(), op: PagedAttention { window, ..OP }, ..Case::default() }.check();
    }
    let slots = Some(vec![20, 21, 22, 23, 8, -1, 14, 15, 0]);
    Case { slots, packed: true, ..Case::default() }.check();
    // Two sequences share a full page.
    let table = vec![vec![6, 2, -1], vec![6, 4, -1], vec![6, 0, -1]];
    Case { table, lens: vec![1, 2, 1], past: vec![4, 5, 7], ..Case::default() }.check();
}

/// Sizes that kernels treat apart: heads that are no groups of four, and many keys.
#[test]
fn heads_and_lengths_of_all_kinds() {
    for size in [6, 16, 80] {
        Case { size, op: PagedAttention { rotary: Some(false), ..OP }, ..Case::default() }.check();
    }
    let table: Vec<Vec<i32>> = vec![vec![1, 5, 0, 7], vec![2, 3, 4, 6]];
    let rotary = PagedAttention { rotary: None, heads: 6, kv_heads: 1, ..OP };
    let long = Case { table, page: 40, lens: vec![1, 3], past: vec![130, 70], op: rotary, ..Case::default() };
    long.check();
}

/// Runs of many tokens of few sequences, which devices do in tiles: several sequences in one, and one in several.
#[test]
fn prompts_are_done_in_tiles() {
    let table = vec![vec![5, 2], vec![1, -1], vec![3, 0]];
    let prompts = |op, size| Case {
        op,
        size,
        table: table.clone(),
        page: 32,
        lens: vec![50, 3, 20],
        past: vec![10, 3, 40],
        ..Case::default()
    };
    let plain = PagedAttention { rotary: Some(false), ..OP };
    for size in [6, 16, 80, 136] {
        prompts(plain, size).check();
    }
    let op = PagedAttention { rotary: Some(true), softcap: 2.0, scale: Some(0.4), ..OP };
    Case { sinks: true, after: 30, packed: true, ..prompts(op, 8) }.check();
    for window in [1, 7, 45] {
        prompts(PagedAttention { window: Some(window), ..OP }, 8).check();
    }
    prompts(PagedAttention { causal: false, heads: 6, kv_heads: 1, ..OP }, 8).check();
    // Pages that there are not, and sequences of no token.
    let holes = vec![vec![5, -1, 2, -1], vec![1, -1, 4, -1], vec![-1, -1, -1, -1], vec![3, 0, 7, 6]];
    for window in [None, Some(20)] {
        let op = PagedAttention { window, ..OP };
        let (lens, past) = (vec![70, 0, 5, 60], vec![20, 8, 2, 60]);
        Case { table: holes.clone(), lens, past, after: 9, ..prompts(op, 8) }.check();
    }
    let one =
        Case { table: vec![vec![1, 5, 0, 7]], page: 40, lens: vec![100], past: vec![55], ..prompts(OP, 64) };
    one.check();
}

#[test]
fn halves_are_near_the_definition() {
    let case = Case { op: PagedAttention { rotary: Some(false), ..OP }, ..Case::default() };
    let half = |t: Option<Tensor>| {
        t.map(|t| match t.dtype() {
            crate::dtype::DType::F32 => tensor_of(t.shape().dims(), &t.to_f32s().unwrap(), f16::from_f32),
            _ => t,
        })
    };
    let inputs: Vec<_> = case.inputs().into_iter().map(half).collect();
    let got = run_cpu(&case.op, &inputs, 3).unwrap();
    for (got, want) in got.iter().zip(case.wanted()) {
        assert_near(got, &want, 4e-3);
    }
    #[cfg(feature = "vulkan")]
    for change in [crate::ops::testing::as_is, crate::ops::testing::no_texels] {
        let check = crate::ops::testing::Check::new(&case.op, &inputs).outputs(3).pretend(change);
        check.tolerance(4e-3).optional().run();
    }
}

/// On devices numbers out of range write nothing and read nothing outside; on the CPU they are errors, as tests of
/// sessions see.
#[cfg(feature = "vulkan")]
#[test]
fn numbers_out_of_range_touch_nothing_else() {
    let with = |at: usize, value: Option<Tensor>| {
        let mut inputs = Case::default().inputs();
        inputs[at] = value;
        inputs
    };
    let table = |page: i32| Tensor::new([3, 3], &[5, 2, -1, 1, page, -1, 3, 0, -1]).unwrap();
    let slots = |slot: i32| ints([slot, 21, 22, 23, 8, 6, 14, 15, 0]);
    let wrong = [
        with(7, Some(table(8))),
        with(7, Some(table(i32::MAX))),
        with(10, slots(32)),
        with(10, slots(i32::MAX)),
        with(6, ints([0, 12, 2])),
        with(6, ints([0, -1, 2])),
        with(6, ints([0, i32::MAX, 2])),
        with(5, ints([0, 5, 6, 10])),
        with(5, ints([0, 6, 5, 9])),
        with(5, ints([-4, 5, 6, 9])),
        with(5, ints([i32::MIN, i32::MAX, i32::MIN, i32::MAX])),
    ];
    for inputs in &wrong {
        for context in crate::ops::testing::devices() {
            // What lies after each buffer is checked there.
            crate::ops::testing::Check::new(&OP, inputs).outputs(3).run_on(context).unwrap();
        }
    }
    // A page that no sequence names keeps every byte.
    for context in crate::ops::testing::devices() {
        let got = crate::ops::testing::Check::new(&OP, &wrong[0]).outputs(3).run_on(context).unwrap();
        let before = wrong[0][3].as_ref().unwrap().to_f32s().unwrap();
        let page = 4 * 2 * 8;
        assert_eq!(got[1].to_f32s().unwrap()[6 * page..], before[6 * page..]);
    }
}

/// Pages of a table that are far more than there are.
const WIDE: usize = 1 << 15;

/// A table of 2^15 pages of 2^15 rows, of which one or two are there: memory is for what is in the caches.
#[test]
fn a_wide_table_takes_memory_for_the_pages_that_there_are() {
    let far = |at: usize, page: i32| {
        let mut table = vec![-1; WIDE];
        (table[0], table[at]) = (2, page);
        vec![table]
    };
    let case = |op, table: Vec<Vec<i32>>, page: usize, past: usize| Case {
        op,
        lens: vec![3],
        past: vec![past],
        table,
        page,
        size: 2,
        ..Case::default()
    };
    for op in [OP, PagedAttention { causal: false, ..OP }] {
        // Without a rotation only which keys there are counts: as if the pages were neighbours.
        let wide = case(op, far(WIDE - 1, 5), WIDE, (WIDE - 1) * WIDE + 40);
        let near = case(op, vec![vec![2, 5]], WIDE, WIDE + 40);
        let [wide, near] = [wide, near].map(|case| run_cpu(&op, &case.inputs(), 3).unwrap());
        for (wide, near) in wide.iter().zip(&near) {
            assert_near(wide, &near.to_f32s().unwrap().into_iter().map(f64::from).collect::<Vec<_>>(), 1e-5);
        }
    }
    // A window before which all is hidden.
    let op = PagedAttention { window: Some(30), ..OP };
    let wide = case(op, far(WIDE - 1, 5), WIDE, (WIDE - 1) * WIDE + 40);
    let near = case(op, vec![vec![-1, 5]], WIDE, WIDE + 40);
    let [wide, near] = [wide, near].map(|case| run_cpu(&op, &case.inputs(), 1).unwrap());
    assert_near(&wide[0], &near[0].to_f32s().unwrap().into_iter().map(f64::from).collect::<Vec<_>>(), 1e-6);
}

/// One page for all: what is read would be as long as the table is wide.
#[test]
#[should_panic(expected = "more keys on its pages than the caches' 128 rows")]
fn a_page_that_a_table_names_many_times_is_an_error() {
    let (table, past) = (vec![vec![1; WIDE]], vec![16 * WIDE - 3]);
    let many = Case { lens: vec![3], past, table, page: 16, size: 2, ..Case::default() };
    run_cpu(&OP, &many.inputs(), 3).unwrap();
}

#[test]
fn misfits_are_errors() {
    let fails = |at: usize, value: Option<Tensor>| {
        let mut inputs = Case::default().inputs();
        inputs[at] = value;
        assert!(facts(&OP, &inputs, 3).is_err(), "input {at}");
    };
    fails(0, Some(tensor(&[9, 33], 1)));
    fails(1, None);
    fails(2, Some(tensor(&[9, 8], 1)));
    fails(3, Some(tensor(&[8, 4, 2, 7], 1)));
    fails(4, Some(tensor(&[8, 5, 2, 8], 1)));
    fails(5, ints([0, 5, 9]));
    fails(6, Some(tensor(&[3], 1)));
    fails(7, Some(Tensor::new([2, 3], &[0; 6]).unwrap()));
    fails(10, ints([0]));
    let rotary = PagedAttention { rotary: Some(false), ..OP };
    assert!(facts(&rotary, &Case::default().inputs(), 3).is_err());
    let heads: Box<dyn Operator> = Box::new(PagedAttention { kv_heads: 3, ..OP });
    assert!(facts(&*heads, &Case::default().inputs(), 3).is_err());
}
