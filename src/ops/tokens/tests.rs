use super::*;
use crate::graph::Tensor;
use crate::ops::test_util::{run_cpu, values};

/// A call of the operator.
struct Case {
    logits: Vec<Vec<f32>>,
    wanted: Vec<Option<Wanted>>,
    seen: Vec<usize>,
    allowed: Vec<usize>,
}

const PLAIN: Wanted =
    Wanted { line: 0, temperature: 1.0, penalty: 1.0, is_held: false, candidates: Candidates::None };

impl Case {
    fn new(logits: Vec<f32>, wanted: Wanted) -> Self {
        Case { logits: vec![logits], wanted: vec![Some(wanted)], seen: vec![], allowed: vec![] }
    }

    fn inputs(&self, dtype: DType) -> [Option<Tensor>; 3] {
        let (vocabulary, sequences) = (self.logits[0].len(), self.wanted.len());
        let shape = [1, self.logits.len(), vocabulary];
        let all = self.logits.concat();
        let logits = match dtype {
            DType::F16 => {
                Tensor::new(shape, &all.iter().map(|v| f16::from_f32(*v)).collect::<Vec<_>>()).unwrap()
            }
            _ => Tensor::new(shape, &all).unwrap(),
        };
        let row = |wanted: &Option<Wanted>| wanted.map_or(Wanted::nothing(), |wanted| wanted.words());
        let settings: Vec<u32> = self.wanted.iter().flat_map(row).collect();
        let words = mark_words(vocabulary);
        let mut marks = vec![0u32; sequences * 2 * words];
        for sequence in 0..sequences {
            for (row, tokens) in [&self.seen, &self.allowed].into_iter().enumerate() {
                for token in tokens {
                    marks[(2 * sequence + row) * words + token / 32] |= 1 << (token % 32);
                }
            }
        }
        let settings = Tensor::new([sequences, layout::SETTINGS], &settings).unwrap();
        [Some(logits), Some(settings), Some(Tensor::new([sequences, 2, words], &marks).unwrap())]
    }

    /// The line that a row is about, as the settings change it.
    fn line(&self, wanted: &Wanted, dtype: DType) -> Vec<f32> {
        let round = |v: f32| if dtype == DType::F16 { f16::from_f32(v).to_f32() } else { v };
        let mut line: Vec<f32> = self.logits[wanted.line].iter().map(|v| round(*v)).collect();
        for &token in &self.seen {
            let v = line[token];
            line[token] = if v > 0.0 { v * (1.0 / wanted.penalty) } else { v * wanted.penalty };
        }
        if wanted.is_held {
            let others = line.iter_mut().enumerate().filter(|(token, _)| !self.allowed.contains(token));
            others.for_each(|(_, v)| *v = f32::NEG_INFINITY);
        }
        line
    }

    /// Runs it everywhere and checks each row.
    fn check(&self) {
        for dtype in [DType::F32, DType::F16] {
            let inputs = self.inputs(dtype);
            let native = run_cpu(&TokenCandidates, &inputs, 1).unwrap();
            self.check_rows(&native[0], dtype, "the CPU");
            #[cfg(feature = "vulkan")]
            for context in crate::ops::testing::devices() {
                let ran = crate::ops::testing::Check::new(&TokenCandidates, &inputs).run_on(context).unwrap();
                self.check_rows(&ran[0], dtype, &context.info().name);
            }
        }
    }

    fn check_rows(&self, rows: &Tensor, dtype: DType, device: &str) {
        let vocabulary = self.logits[0].len();
        let rows: Vec<u32> = bytemuck::pod_collect_to_vec(rows.bytes());
        for (words, wanted) in rows.chunks(Found::words(vocabulary)).zip(&self.wanted) {
            let Some(wanted) = wanted else { continue };
            let line = self.line(wanted, dtype);
            let found = Found::read(words, vocabulary, wanted.temperature).unwrap();
            let what = format!("{wanted:?} of {dtype} on {device}");
            let Some(Ok(most)) = most_likely(&line) else {
                assert_eq!(found.most, Err(NotANumber), "{what}");
                continue;
            };
            assert_eq!(found.most, Ok(most), "{what}");
            let weight = |v: &f32| {
                let below = f64::from(*v) - f64::from(most.1);
                if below == 0.0 { 1.0 } else { (below / f64::from(wanted.temperature)).exp() }
            };
            if most.1.is_finite() {
                let sum: f64 = line.iter().map(weight).sum();
                assert!((found.sum - sum).abs() <= 1e-4 * sum, "{what}: {}, not {sum}", found.sum);
            }
            let mut sorted: Vec<(u32, f32)> = (0u32..).zip(line.iter().copied()).collect();
            sorted.retain(|(_, v)| *v > f32::NEG_INFINITY);
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            let needed = match wanted.candidates {
                Candidates::None => 0,
                Candidates::Largest(count) => count.min(sorted.len()),
                Candidates::Within(far) => sorted.iter().take_while(|(_, v)| *v >= most.1 - far).count(),
            };
            if !found.is_whole {
                let is_sure = needed <= MOST_COUNT && 64 * needed <= vocabulary;
                assert!(!is_sure, "{what}: {needed} have room");
                continue;
            }
            let mut got = found.candidates.clone();
            got.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            assert!(got.len() >= needed, "{what}: {} of {needed}", got.len());
            assert_eq!(got, sorted[..got.len()], "{what}");
            assert!(got.len() <= 2 * needed + 64, "{what}: {} for {needed}", got.len());
        }
    }
}

fn spread(n: usize, seed: u64) -> Vec<f32> {
    values(n, seed).iter().map(|v| v.powi(3) * 14.0).collect()
}

#[test]
fn largest_logits_and_weights_are_those_of_the_line() {
    let kinds = [
        Candidates::None,
        Candidates::Largest(1),
        Candidates::Largest(40),
        Candidates::Largest(MOST_COUNT),
        Candidates::Within(0.0),
        Candidates::Within(3.0),
    ];
    for (n, seed) in [(40_000, 1), (4096, 2), (4097, 3), (50, 4)] {
        for (candidates, temperature) in kinds.into_iter().zip([1.0, 0.7, 2.5, 1.0, 0.3, 1.0]) {
            Case::new(spread(n, seed), Wanted { candidates, temperature, ..PLAIN }).check();
        }
    }
}

#[test]
fn the_first_of_equal_logits_is_the_most_likely() {
    let mut logits = vec![-1.0; 20_000];
    for at in [19_999, 12_000, 4_200, 4_099] {
        logits[at] = 3.0;
        Case::new(logits.clone(), Wanted { candidates: Candidates::Within(0.0), ..PLAIN }).check();
    }
}

#[test]
fn seen_tokens_are_less_likely_and_those_not_allowed_impossible() {
    let logits = spread(9000, 7);
    let seen: Vec<usize> = (0..9000).step_by(5).collect();
    let allowed: Vec<usize> = (3..9000).step_by(7).collect();
    for (penalty, is_held) in [(1.3, false), (1.0, true), (1.3, true), (0.8, false)] {
        for candidates in [Candidates::Largest(20), Candidates::Within(4.0)] {
            let wanted = Wanted { penalty, is_held, candidates, ..PLAIN };
            let seen = if penalty == 1.0 { vec![] } else { seen.clone() };
            Case { seen, allowed: allowed.clone(), ..Case::new(logits.clone(), wanted) }.check();
        }
    }
}

#[test]
fn each_sequence_has_its_line_and_some_want_none() {
    let logits = (0..5).map(|seed| spread(5000, seed + 11)).collect();
    let wanted = |line, candidates| Some(Wanted { line, candidates, ..PLAIN });
    let wanted = vec![
        wanted(4, Candidates::Largest(9)),
        None,
        wanted(0, Candidates::None),
        wanted(4, Candidates::Within(2.0)),
    ];
    Case { logits, wanted, seen: vec![], allowed: vec![] }.check();
}

#[test]
fn odd_logits_are_told() {
    let wanted = Wanted { candidates: Candidates::Largest(3), ..PLAIN };
    for odd in [f32::NAN, f32::INFINITY] {
        let mut logits = spread(6000, 3);
        logits[5500] = odd;
        Case::new(logits, wanted).check();
    }
    Case::new(vec![f32::NEG_INFINITY; 5000], wanted).check();
    let mut one = vec![f32::NEG_INFINITY; 5000];
    one[4500] = -3.0;
    Case::new(one, wanted).check();
    // More than there is room for.
    Case::new(vec![0.5; 9000], Wanted { candidates: Candidates::Within(1.0), ..PLAIN }).check();
}

#[test]
fn wrong_shapes_are_errors() {
    let case = Case::new(spread(100, 1), PLAIN);
    let [logits, settings, marks] = case.inputs(DType::F32);
    let short = Some(Tensor::new([1usize, 2, 1], &[0u32; 2]).unwrap());
    assert!(run_cpu(&TokenCandidates, &[logits.clone(), settings, short], 1).is_err());
    let long = Some(Tensor::new([1usize, 9], &[0u32; 9]).unwrap());
    assert!(run_cpu(&TokenCandidates, &[logits, long, marks], 1).is_err());
    assert_eq!(Found::read(&[0; 10], 100, 1.0), None);
}
