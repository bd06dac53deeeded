//! The next token from the logits of the last one.

use std::collections::HashMap;

use super::error::GenerateError;
use super::scan::Request;
use crate::ops::tokens::logits::{NotANumber, at_least, bound_of, most_likely, penalized, sum_of_weights};
use crate::ops::tokens::{Candidates, Found, MOST_COUNT, Wanted};

/// How the next token is chosen. The settings apply in the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the positive logits of tokens that were there before, and multiplies the negative ones; 1 leaves them.
    pub repetition_penalty: f32,
    /// Divides all logits; 0 takes the most likely token, and nothing after this field matters.
    pub temperature: f32,
    /// Keeps so many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the fewest of the most likely tokens whose probabilities sum up to this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens of at least this share of the most likely one's probability; 0 keeps all.
    pub min_p: f32,
    /// Chooses the sequence of random numbers: equal logits and seeds give equal tokens.
    pub seed: u64,
}

/// Settings that an application gives in place of the model's; what is `None` is the model's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingOverrides {
    /// [`Sampling::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// [`Sampling::temperature`].
    pub temperature: Option<f32>,
    /// [`Sampling::top_k`].
    pub top_k: Option<usize>,
    /// [`Sampling::top_p`].
    pub top_p: Option<f32>,
    /// [`Sampling::min_p`].
    pub min_p: Option<f32>,
    /// [`Sampling::seed`].
    pub seed: u64,
}

impl SamplingOverrides {
    /// The `model`'s settings with these instead. Where the model's are greedy, `top_k`, `top_p` or `min_p` make the
    /// temperature 1.
    pub fn over(&self, model: Sampling) -> Sampling {
        let samples = self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some();
        let temperature = if samples && model.temperature == 0.0 { 1.0 } else { model.temperature };
        Sampling {
            repetition_penalty: self.repetition_penalty.unwrap_or(model.repetition_penalty),
            temperature: self.temperature.unwrap_or(temperature),
            top_k: self.top_k.unwrap_or(model.top_k),
            top_p: self.top_p.unwrap_or(model.top_p),
            min_p: self.min_p.unwrap_or(model.min_p),
            seed: self.seed,
        }
    }
}

/// Vocabularies of more tokens than this are not sorted as a whole.
const LARGE: usize = 2048;
/// How far below the largest logit candidates are sought, in units of the temperature.
const NATS: [f32; 2] = [6.0, 14.0];
/// The lowest temperature above 0 at which devices are asked.
const LEAST_TEMPERATURE: f32 = 1e-3;

impl Sampling {
    /// The most likely token, always; of several the one of the lowest number.
    pub const GREEDY: Sampling =
        Sampling { repetition_penalty: 1.0, temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

    /// Checks the range of each setting.
    ///
    /// # Errors
    /// [`GenerateError::Setting`].
    pub fn check(&self) -> Result<(), GenerateError> {
        let wrong = |name, value: f32, expected| {
            Err(GenerateError::Setting { name, value: value.to_string(), expected })
        };
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            return wrong("the repetition penalty", self.repetition_penalty, "a number above 0; 1 is none");
        }
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return wrong("the temperature", self.temperature, "0 (greedy) or a number above 0");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong("top-p", self.top_p, "a number above 0 and up to 1");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return wrong("min-p", self.min_p, "a number from 0 to 1");
        }
        Ok(())
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling::GREEDY
    }
}

/// Random numbers: SplitMix64.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// At least 0 and below 1, in steps of 2^-53.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Chooses tokens, one after another.
#[derive(Clone, Debug)]
pub(super) struct Sampler {
    settings: Sampling,
    random: Random,
    /// Tokens that may still be chosen.
    candidates: Vec<(u32, f32)>,
    weights: Vec<f64>,
    /// The tokens so far, each once, ascending.
    seen: Vec<u32>,
}

impl Sampler {
    pub(super) fn new(settings: Sampling) -> Result<Self, GenerateError> {
        settings.check()?;
        let random = Random(settings.seed);
        Ok(Sampler { settings, random, candidates: Vec::new(), weights: Vec::new(), seen: Vec::new() })
    }

    /// Counts a token for the repetition penalty.
    pub(super) fn see(&mut self, token: u32) {
        if let Err(at) = self.seen.binary_search(&token) {
            self.seen.insert(at, token);
        }
    }

    /// The next token; `position` is how many came before. The penalty is written to `logits`.
    pub(super) fn choose(&mut self, logits: &mut [f32], position: usize) -> Result<u32, GenerateError> {
        let (token, most) = self.penalize(logits, position)?;
        if self.settings.temperature == 0.0 {
            return Ok(token);
        }
        let at = self.random.unit();
        let sum = self.weigh(logits, most, at);
        Ok(self.find(at * sum).unwrap_or(token))
    }

    /// What [`Sampler::choose`] needs to know of the next logits; nothing where it needs all.
    pub(super) fn request(&self) -> Option<Request> {
        let Sampling { repetition_penalty: penalty, temperature, top_k, top_p, min_p, .. } = self.settings;
        // Differences over lower temperatures leave the range of floats.
        if temperature != 0.0 && temperature < LEAST_TEMPERATURE || top_k > MOST_COUNT {
            return None;
        }
        let (candidates, share) = match (top_k > 0, min_p > 0.0) {
            _ if temperature == 0.0 => (Candidates::None, None),
            (true, _) => (Candidates::Largest(top_k), None),
            // A little more, for what is rounded.
            (false, true) => (Candidates::Within(temperature * (1e-3 - min_p.ln())), None),
            (false, false) => {
                let share = if top_p == 1.0 { self.random.clone().unit() } else { f64::from(top_p) };
                (Candidates::Within(temperature * NATS[0]), Some(share))
            }
        };
        let wanted = Wanted {
            line: 0,
            temperature: if temperature == 0.0 { 1.0 } else { temperature },
            penalty,
            is_held: false,
            candidates,
        };
        let seen = if penalty == 1.0 { Vec::new() } else { self.seen.clone() };
        Some(Request { wanted, share, seen, allowed: None })
    }

    /// As [`Sampler::choose`], from what a device found for [`Sampler::request`].
    pub(super) fn choose_found(&mut self, found: &Found, position: usize) -> Result<u32, GenerateError> {
        let (token, most) = finite(Some(found.most), position)?;
        if self.settings.temperature == 0.0 {
            return Ok(token);
        }
        let at = self.random.unit();
        self.candidates.clear();
        self.candidates.extend_from_slice(&found.candidates);
        let some = self.settings.top_k > 0;
        let own = self.rank(most, some);
        let sum = self.keep(if some { own } else { found.sum });
        Ok(self.find(at * sum).unwrap_or(token))
    }

    /// What [`Sampler::choose`] chooses from: tokens with their probabilities. The penalty is written to `logits`.
    pub(super) fn distribution(
        &mut self,
        logits: &mut [f32],
        position: usize,
    ) -> Result<Distribution, GenerateError> {
        let (token, most) = self.penalize(logits, position)?;
        if self.settings.temperature == 0.0 {
            return Ok(Distribution(vec![(token, 1.0)]));
        }
        let sum = self.weigh(logits, most, 1.0);
        let tokens = self.candidates.iter().zip(&self.weights).map(|((token, _), w)| (*token, w / sum));
        Ok(Distribution(tokens.collect()))
    }

    /// A token of a distribution.
    pub(super) fn draw_from(&mut self, from: &Distribution) -> Option<u32> {
        self.candidates.clear();
        self.candidates.extend(from.0.iter().map(|(token, _)| (*token, 0.0)));
        self.weights.clear();
        self.weights.extend(from.0.iter().map(|(_, p)| p));
        let sum: f64 = self.weights.iter().sum();
        let at = self.random.unit();
        self.find(at * sum)
    }

    /// A token with the probabilities `wanted`, by way of `guess`, which was drawn from `guessed`: the guess as often as
    /// it may be, else one of those that were guessed too rarely.
    pub(super) fn accept(&mut self, guess: u32, guessed: &Distribution, wanted: &Distribution) -> u32 {
        if self.random.unit() * guessed.of(guess) < wanted.of(guess) {
            return guess;
        }
        let guessed: HashMap<u32, f64> = guessed.0.iter().copied().collect();
        let rare = |(token, p): &(u32, f64)| (*token, p - guessed.get(token).unwrap_or(&0.0));
        let rest: Vec<_> = wanted.0.iter().map(rare).filter(|(_, p)| *p > 0.0).collect();
        // Without a rest the two are equal up to rounding.
        self.draw_from(&Distribution(rest)).unwrap_or(guess)
    }

    /// Applies the penalty; gives the most likely token and its logit.
    fn penalize(&self, logits: &mut [f32], position: usize) -> Result<(u32, f32), GenerateError> {
        let penalty = self.settings.repetition_penalty;
        if penalty != 1.0 {
            for &token in &self.seen {
                if let Some(v) = logits.get_mut(token as usize) {
                    *v = penalized(*v, penalty);
                }
            }
        }
        finite(most_likely(logits), position)
    }

    /// Sets candidates and their weights to the tokens that the filters keep, likely ones first, and gives
    /// the sum of the weights; `most` is the largest logit. Where no filter is set the candidates may be
    /// fewer: those that have share `need` of the sum.
    fn weigh(&mut self, logits: &[f32], most: f32, need: f64) -> f64 {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.settings;
        let some = top_k > 0 && top_k < logits.len();
        let is_large = logits.len() > LARGE;
        let all = match is_large && !some {
            true => Some(sum_of_weights(logits, most, temperature)),
            false => None,
        };
        let share = if min_p == 0.0 && top_p == 1.0 { need } else { f64::from(top_p) };
        // Most of a large vocabulary has next to no weight: it is left out where those above a bound have enough.
        let mut bounds = match (some, min_p > 0.0) {
            _ if !is_large => vec![],
            (true, _) => vec![bound_of(logits, top_k)],
            // A little below, for what is rounded.
            (false, true) => vec![most + temperature * (min_p.ln() - 1e-3)],
            (false, false) => NATS.map(|nats| most - temperature * nats).to_vec(),
        };
        bounds.push(f32::NEG_INFINITY);
        for bound in bounds {
            self.candidates.clear();
            at_least(logits, bound, &mut self.candidates);
            let found = self.rank(most, some);
            let sum = all.unwrap_or(found);
            // The sum of all is rounded otherwise.
            let enough = some || min_p > 0.0 || found >= share * sum * (1.0 + 1e-5);
            if !enough && bound > f32::NEG_INFINITY {
                continue;
            }
            return self.keep(sum);
        }
        0.0
    }

    /// Sorts the candidates, likely ones first, of which `some` alone are kept by top-k, and weighs them; `most` is the
    /// largest logit. Gives the sum of the weights.
    fn rank(&mut self, most: f32, some: bool) -> f64 {
        let Sampling { temperature, top_k, .. } = self.settings;
        let likely = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if some && top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(top_k - 1, likely);
            self.candidates.truncate(top_k);
        }
        self.candidates.sort_unstable_by(likely);
        let weight = |v: f32| ((f64::from(v) - f64::from(most)) / f64::from(temperature)).exp();
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(|(_, v)| weight(*v)));
        self.weights.iter().sum()
    }

    /// Keeps the candidates that top-p and min-p keep, where all weights have the sum `sum`; gives theirs.
    fn keep(&mut self, sum: f64) -> f64 {
        let Sampling { top_p, min_p, .. } = self.settings;
        let mut before = 0.0;
        let mut kept = 0;
        for w in &self.weights {
            if kept > 0 && (before >= f64::from(top_p) * sum || *w < f64::from(min_p)) {
                break;
            }
            before += w;
            kept += 1;
        }
        let is_whole = top_p == 1.0 && min_p == 0.0;
        self.candidates.truncate(kept);
        self.weights.truncate(kept);
        if is_whole { sum } else { before }
    }

    /// The candidate at which the weights so far exceed `at`, else the last one: rounding may leave a rest.
    fn find(&self, at: f64) -> Option<u32> {
        let (mut left, mut last) = (at, None);
        for ((token, _), w) in self.candidates.iter().zip(&self.weights).filter(|(_, w)| **w > 0.0) {
            last = Some(*token);
            left -= w;
            if left < 0.0 {
                break;
            }
        }
        last
    }
}

/// The largest logit of the last of `position` tokens, which must be a number.
fn finite(
    most: Option<Result<(u32, f32), NotANumber>>,
    position: usize,
) -> Result<(u32, f32), GenerateError> {
    let bad = |what| Err(GenerateError::NotFinite { position, what });
    match most {
        Some(Ok((token, most))) if most.is_finite() => Ok((token, most)),
        Some(Ok((_, most))) => bad(if most > 0.0 { "infinity" } else { "minus infinity alone" }),
        Some(Err(NotANumber)) => bad("NaN"),
        None => bad("no element"),
    }
}

/// Tokens with their probabilities; all others have none.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Distribution(Vec<(u32, f64)>);

impl Distribution {
    fn of(&self, token: u32) -> f64 {
        self.0.iter().find(|(t, _)| *t == token).map_or(0.0, |(_, p)| *p)
    }
}

/// A token that may come next.
#[derive(Clone, Debug)]
pub(super) struct Guess {
    pub(super) token: u32,
    /// What it was drawn from, where it is a matter of chance.
    pub(super) from: Option<Distribution>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(settings: Sampling, logits: &[f32], draws: usize) -> Vec<usize> {
        let mut sampler = Sampler::new(settings).unwrap();
        let mut counts = vec![0; logits.len()];
        for at in 0..draws {
            counts[sampler.choose(&mut logits.to_vec(), at).unwrap() as usize] += 1;
        }
        counts
    }

    fn at(temperature: f32) -> Sampling {
        Sampling { temperature, seed: 7, ..Sampling::GREEDY }
    }

    #[test]
    fn greedy_takes_the_first_of_the_most_likely() {
        assert_eq!(counts(Sampling::GREEDY, &[1.0, 3.0, 3.0, -5.0], 3), [0, 3, 0, 0]);
        assert_eq!(counts(Sampling::GREEDY, &[f32::NEG_INFINITY, -3.0], 2), [0, 2]);
    }

    /// What is left out of a large vocabulary changes no token.
    #[test]
    fn large_vocabularies_give_the_tokens_of_a_whole_sort() {
        let mut random = Random(5);
        let logits: Vec<f32> = (0..9_000).map(|_| (random.unit() * 16.0 - 8.0) as f32).collect();
        let settings = [
            Sampling { top_k: 40, ..at(0.8) },
            Sampling { top_k: 3_000, top_p: 0.95, ..at(2.0) },
            Sampling { top_p: 0.9, ..at(0.7) },
            Sampling { top_p: 0.999, ..at(1.5) },
            Sampling { min_p: 0.05, ..at(1.0) },
            Sampling { min_p: 0.01, top_p: 0.8, ..at(1.3) },
            at(0.3),
            at(1.0),
            at(5.0),
        ];
        for settings in settings {
            let mut sampler = Sampler::new(settings).unwrap();
            let mut random = Random(settings.seed);
            let mut sorted: Vec<(u32, f32)> = (0u32..).zip(logits.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            if settings.top_k > 0 {
                sorted.truncate(settings.top_k);
            }
            let weight =
                |v: f32| ((f64::from(v) - f64::from(sorted[0].1)) / f64::from(settings.temperature)).exp();
            let weights: Vec<f64> = sorted.iter().map(|(_, v)| weight(*v)).collect();
            let sum: f64 = weights.iter().sum();
            let (mut kept, mut before) = (0, 0.0);
            while kept < weights.len()
                && (kept == 0
                    || before < f64::from(settings.top_p) * sum && weights[kept] >= f64::from(settings.min_p))
            {
                before += weights[kept];
                kept += 1;
            }
            for _ in 0..100 {
                let mut left = random.unit() * before;
                let place = weights[..kept].iter().position(|w| {
                    left -= w;
                    left < 0.0
                });
                let want = sorted[place.unwrap_or(kept - 1)].0;
                assert_eq!(sampler.choose(&mut logits.clone(), 0).unwrap(), want, "{settings:?}");
            }
        }
    }

    /// What a device finds leads to the token of the whole logits, or says that it does not suffice.
    #[test]
    fn what_a_device_finds_gives_the_same_tokens() {
        use crate::graph::Tensor;
        use crate::ops::test_util::run_cpu;
        use crate::ops::tokens::{TokenCandidates, mark_words};

        let vocabulary = 40_000;
        let mut random = Random(9);
        let all = [
            Sampling::GREEDY,
            Sampling { top_k: 40, ..at(0.8) },
            Sampling { top_k: 500, top_p: 0.9, min_p: 0.02, ..at(1.4) },
            Sampling { top_p: 0.9, ..at(0.7) },
            Sampling { min_p: 0.05, ..at(1.0) },
            Sampling { repetition_penalty: 1.3, top_k: 20, ..at(0.9) },
            Sampling { repetition_penalty: 1.3, ..Sampling::GREEDY },
            at(0.5),
        ];
        for settings in all {
            let mut sampler = Sampler::new(settings).unwrap();
            (0..vocabulary as u32).step_by(9).for_each(|token| sampler.see(token));
            let mut sufficed = 0;
            for position in 0..20 {
                let logits: Vec<f32> =
                    (0..vocabulary).map(|_| ((random.unit() * 2.0 - 1.0).powi(9) * 18.0) as f32).collect();
                let request = sampler.request().unwrap();
                let words = mark_words(vocabulary);
                let mut marks = vec![0u32; 2 * words];
                request.seen.iter().for_each(|token| marks[*token as usize / 32] |= 1 << (token % 32));
                let inputs = [
                    Tensor::new([1usize, vocabulary], &logits),
                    Tensor::new([1usize, 8], &request.wanted.words()),
                    Tensor::new([1usize, 2, words], &marks),
                ];
                let results = run_cpu(&TokenCandidates, &inputs.map(Result::ok), 1).unwrap();
                let results: Vec<u32> = bytemuck::pod_collect_to_vec(results[0].bytes());
                let found = Found::read(&results, vocabulary, request.wanted.temperature).unwrap();
                let mut by_logits = sampler.clone();
                let want = by_logits.choose(&mut logits.clone(), position).unwrap();
                if request.suffices(&found) {
                    sufficed += 1;
                    assert_eq!(sampler.choose_found(&found, position).unwrap(), want, "{settings:?}");
                }
                sampler = by_logits;
            }
            assert!(sufficed >= 10, "{settings:?}: {sufficed} of 20");
        }
        let too_many = Sampling { top_k: MOST_COUNT + 1, ..at(1.0) };
        assert!(Sampler::new(too_many).unwrap().request().is_none());
        assert!(Sampler::new(at(1e-6)).unwrap().request().is_none());
    }

    #[test]
    fn tokens_come_as_often_as_their_probabilities_say() {
        // Probabilities 1/2, 1/4, 1/4.
        let logits = [2f32.ln(), 0.0, 0.0];
        let n = 40_000;
        let got = counts(at(1.0), &logits, n);
        for (count, share) in got.iter().zip([0.5, 0.25, 0.25]) {
            assert!((*count as f64 / n as f64 - share).abs() < 0.01, "{got:?}");
        }
        // At half the temperature the ratios are squared: 4/6, 1/6, 1/6.
        let got = counts(at(0.5), &logits, n);
        assert!((got[0] as f64 / n as f64 - 4.0 / 6.0).abs() < 0.01, "{got:?}");
    }

    #[test]
    fn each_filter_keeps_what_it_says() {
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.15f32.ln(), 0.05f32.ln()];
        let kept = |settings: Sampling| -> Vec<bool> {
            counts(settings, &logits, 2000).iter().map(|n| *n > 0).collect()
        };
        assert_eq!(kept(at(1.0)), [true; 4]);
        assert_eq!(kept(Sampling { top_k: 2, ..at(1.0) }), [true, true, false, false]);
        assert_eq!(kept(Sampling { top_k: 9, ..at(1.0) }), [true; 4]);
        assert_eq!(kept(Sampling { top_p: 0.6, ..at(1.0) }), [true, true, false, false]);
        assert_eq!(kept(Sampling { top_p: 0.4, ..at(1.0) }), [true, false, false, false]);
        assert_eq!(kept(Sampling { min_p: 0.29, ..at(1.0) }), [true, true, true, false]);
        assert_eq!(kept(Sampling { min_p: 1.0, ..at(1.0) }), [true, false, false, false]);
    }

    /// Guesses from one distribution, corrected, come as often as the other one says.
    #[test]
    fn accepted_guesses_have_the_wanted_distribution() {
        let cases: [([f64; 4], [f64; 4]); 5] = [
            ([0.25; 4], [0.1, 0.2, 0.3, 0.4]),
            ([0.7, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7]),
            ([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.6, 0.4]),
            ([0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1]),
            ([0.0, 1.0, 0.0, 0.0], [0.5, 0.25, 0.25, 0.0]),
        ];
        let of = |p: [f64; 4]| Distribution((0..4).zip(p).filter(|(_, p)| *p > 0.0).collect());
        for (guessed, wanted) in cases {
            let mut sampler = Sampler::new(at(1.0)).unwrap();
            let (n, mut counts, mut kept) = (40_000, [0f64; 4], 0f64);
            for _ in 0..n {
                let guess = sampler.draw_from(&of(guessed)).unwrap();
                let token = sampler.accept(guess, &of(guessed), &of(wanted));
                counts[token as usize] += 1.0;
                kept += f64::from(u8::from(token == guess));
            }
            // Chi-square with 3 degrees of freedom: 16.27 comes once in a thousand times.
            let parts = counts.iter().zip(wanted).map(|(got, p)| match p * f64::from(n) {
                0.0 => got * f64::INFINITY.min(1e9),
                want => (got - want).powi(2) / want,
            });
            let chi: f64 = parts.sum();
            assert!(chi < 16.27, "{guessed:?} for {wanted:?}: {counts:?}, {chi}");
            let overlap: f64 = guessed.iter().zip(wanted).map(|(a, b)| a.min(b)).sum();
            assert!((kept / f64::from(n) - overlap).abs() < 0.01, "{kept} guesses of {n} were kept");
        }
    }

    #[test]
    fn distributions_are_what_is_chosen_from() {
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.15f32.ln(), 0.05f32.ln()];
        let of = |settings| Sampler::new(settings).unwrap().distribution(&mut logits.to_vec(), 0).unwrap();
        assert_eq!(of(Sampling::GREEDY), Distribution(vec![(0, 1.0)]));
        let two = of(Sampling { top_k: 2, ..at(1.0) });
        assert!(
            (two.of(0) - 0.625).abs() < 1e-6 && (two.of(1) - 0.375).abs() < 1e-6 && two.of(2) == 0.0,
            "{two:?}"
        );
    }

    #[test]
    fn tokens_that_were_there_become_less_likely() {
        let settings = Sampling { repetition_penalty: 2.0, ..Sampling::GREEDY };
        let mut sampler = Sampler::new(settings).unwrap();
        sampler.see(1);
        sampler.see(1);
        sampler.see(2);
        sampler.see(400);
        let mut logits = [1.5, 2.0, -1.0, -1.5];
        assert_eq!(sampler.choose(&mut logits, 0).unwrap(), 0);
        assert_eq!(logits, [1.5, 1.0, -2.0, -1.5]);
    }

    #[test]
    fn a_seed_gives_the_same_tokens_and_another_one_others() {
        let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
        let draw = |seed| {
            let mut sampler = Sampler::new(Sampling { seed, ..at(1.5) }).unwrap();
            (0..64).map(|i| sampler.choose(&mut logits.clone(), i).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }

    #[test]
    fn the_random_numbers_are_those_of_the_published_generator() {
        let mut random = Random(1_234_567);
        assert_eq!([random.next(), random.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn what_is_no_number_and_what_is_out_of_range_are_errors() {
        let mut sampler = Sampler::new(at(1.0)).unwrap();
        let mut said = |logits: &[f32]| sampler.choose(&mut logits.to_vec(), 5).unwrap_err().to_string();
        assert!(said(&[0.0, f32::NAN]).starts_with("the logits after 5 tokens have NaN"));
        assert!(said(&[0.0, f32::INFINITY]).contains("infinity"));
        assert!(said(&[f32::NEG_INFINITY; 3]).contains("minus infinity alone"));
        assert!(said(&[]).contains("no element"));
        for bad in [
            Sampling { temperature: -1.0, ..Sampling::GREEDY },
            Sampling { temperature: f32::NAN, ..Sampling::GREEDY },
            Sampling { top_p: 0.0, ..Sampling::GREEDY },
            Sampling { top_p: 1.5, ..Sampling::GREEDY },
            Sampling { min_p: -0.1, ..Sampling::GREEDY },
            Sampling { repetition_penalty: 0.0, ..Sampling::GREEDY },
        ] {
            let said = bad.check().unwrap_err().to_string();
            assert!(said.contains("expected"), "{said}");
        }
    }
}
