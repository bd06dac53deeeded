//! Guesses of the next tokens, which one run of the decoder checks.

use super::decoder::Decoder;
use super::error::GenerateError;
use super::sampling::Guess;
use super::scan::Row;
use super::sequence::Sequence;

/// The longest and the shortest run of last tokens that is looked up.
const LOOKED_UP: [usize; 3] = [4, 3, 2];

/// What came after the last tokens when they were there before, at most `most` tokens.
pub(super) fn look_up(tokens: &[u32], most: usize) -> Vec<Guess> {
    for count in LOOKED_UP {
        let Some(at) = tokens.len().checked_sub(count) else { continue };
        let (before, last) = tokens.split_at(at);
        // The last of those places; the tokens after it may be the last ones themselves.
        let found = (0..before.len()).rev().find(|&start| tokens[start..].starts_with(last));
        if let Some(start) = found {
            let next = tokens[start + count..].iter().take(most);
            return next.map(|token| Guess { token: *token, from: None }).collect();
        }
    }
    Vec::new()
}

/// Tokens that a decoder has in the cache of each sequence.
#[derive(Debug)]
pub(super) struct Cached {
    pub(super) decoder: Decoder,
    pub(super) tokens: Vec<Vec<u32>>,
}

impl Cached {
    pub(super) fn new(decoder: Decoder) -> Self {
        Cached { decoder, tokens: vec![Vec::new()] }
    }

    /// As [`Decoder::reserve`].
    pub(super) fn reserve(&mut self, sequences: usize) -> Result<(), GenerateError> {
        self.decoder.reserve(sequences)?;
        if sequences > self.tokens.len() {
            self.tokens = vec![Vec::new(); sequences];
        }
        Ok(())
    }

    /// Forgets all tokens of all sequences, after an error.
    pub(super) fn forget(&mut self) {
        self.tokens.iter_mut().for_each(Vec::clear);
        self.decoder.forget();
    }

    /// Keeps the tokens at the begin of a sequence that `wanted` has too, but its last one; gives their number.
    pub(super) fn keep(&mut self, sequence: usize, wanted: &[u32]) -> Result<usize, GenerateError> {
        let cached = &mut self.tokens[sequence];
        let equal = cached.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        let kept = equal.min(wanted.len().saturating_sub(1));
        cached.truncate(kept);
        let kept = self.decoder.share(sequence, wanted, kept)?;
        cached.clear();
        cached.extend_from_slice(&wanted[..kept]);
        Ok(kept)
    }

    /// Notes what the cache of a sequence has: the first of `tokens`.
    pub(super) fn note(&mut self, sequence: usize, tokens: &[u32]) {
        let len = self.decoder.len(sequence).min(tokens.len());
        self.tokens[sequence].clear();
        self.tokens[sequence].extend_from_slice(&tokens[..len]);
    }
}

/// A smaller model of the same tokens, which guesses.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) cached: Cached,
    /// The most tokens that are guessed at once.
    most: usize,
    /// Tokens that the other model knows.
    vocabulary: usize,
}

impl Draft {
    /// Guesses at most `most` tokens at once, of the first `vocabulary`.
    pub(super) fn new(cached: Cached, most: usize, vocabulary: usize) -> Self {
        Draft { cached, most, vocabulary }
    }

    /// Guesses at most `most` tokens after those of `text`, which is sequence `at`.
    pub(super) fn guess(
        &mut self,
        at: usize,
        text: &mut Sequence<'_>,
        most: usize,
    ) -> Result<Vec<Guess>, GenerateError> {
        let mut wanted = text.tokens().to_vec();
        let mut guesses = Vec::new();
        while guesses.len() < most.min(self.most) && wanted.len() <= self.cached.decoder.capacity() {
            let kept = self.cached.keep(at, &wanted)?;
            let last = wanted.len() - kept - 1;
            self.cached.decoder.ask(at, None);
            let rows = self.cached.decoder.forward(at, &wanted[kept..], last, None);
            self.cached.note(at, &wanted);
            let Some(mut logits) = rows?.pop().map(Row::into_logits) else { break };
            let guess = text.guess(&mut logits, wanted.len())?;
            let Some((token, from)) = guess.filter(|(token, _)| (*token as usize) < self.vocabulary) else {
                break;
            };
            guesses.push(Guess { token, from: Some(from) });
            wanted.push(token);
        }
        Ok(guesses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_after_equal_tokens_is_guessed() {
        let of = |tokens: &[u32], most| look_up(tokens, most).iter().map(|g| g.token).collect::<Vec<_>>();
        assert_eq!(of(&[1, 2, 3, 4, 5, 1, 2], 3), [3, 4, 5]);
        assert_eq!(of(&[1, 2, 3, 4, 5, 1, 2], 9), [3, 4, 5, 1, 2]);
        // More equal tokens count more than a later place.
        assert_eq!(of(&[7, 1, 2, 3, 9, 1, 2, 4, 7, 1, 2], 1), [3]);
        assert_eq!(of(&[1, 2, 3, 1, 2, 4, 1, 2], 1), [4]);
        assert_eq!(of(&[5, 5, 5], 4), [5]);
        assert!(of(&[1, 2, 3, 2], 4).is_empty() && of(&[1], 4).is_empty() && of(&[], 4).is_empty());
    }
}
