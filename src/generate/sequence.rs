//! One text in the making: tokens chosen, told and ended.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::error::GenerateError;
#[cfg(feature = "grammar")]
use super::grammar::Constraint;
use super::sampling::{Distribution, Guess, Sampler};
use super::scan::{Request, Row};
use super::settings::Config;
use super::text::{StopStrings, TextStream};
use super::{Finish, GenerateOptions, Generated, ModelFolder};
use crate::session::CancelToken;

/// A text in the making.
pub(super) struct Sequence<'a> {
    folder: &'a ModelFolder,
    options: Cow<'a, GenerateOptions>,
    sampler: Sampler,
    #[cfg(feature = "grammar")]
    constraint: Option<Constraint>,
    /// Tokens of the prompt and of the text.
    tokens: Vec<u32>,
    stream: TextStream,
    stops: StopStrings,
    made: Generated,
    /// When the first token came.
    start: Option<Instant>,
    finish: Option<Finish>,
    told: Told<'a>,
}

/// Gets a text in pieces, and may end it.
pub(super) type Told<'a> = Box<dyn FnMut(&str) -> ControlFlow<()> + 'a>;

impl<'a> Sequence<'a> {
    pub(super) fn new(
        folder: &'a ModelFolder,
        prompt: &[u32],
        options: Cow<'a, GenerateOptions>,
        told: Told<'a>,
    ) -> Result<Self, GenerateError> {
        let mut sampler = Sampler::new(options.sampling)?;
        prompt.iter().for_each(|&token| sampler.see(token));
        let made = Generated {
            text: String::new(),
            tokens: Vec::new(),
            prompt_tokens: prompt.len(),
            reused_tokens: 0,
            guessed_tokens: 0,
            accepted_tokens: 0,
            finish: Finish::Length,
            prepare_time: Duration::ZERO,
            prompt_time: Duration::ZERO,
            generation_time: Duration::ZERO,
            steps: 0,
        };
        let (stream, stops) = (TextStream::default(), StopStrings::new(&options.stop));
        let finish = (options.max_tokens == Some(0)).then_some(Finish::Length);
        Ok(Sequence {
            folder,
            options,
            sampler,
            #[cfg(feature = "grammar")]
            constraint: None,
            tokens: prompt.to_vec(),
            stream,
            stops,
            made,
            start: None,
            finish,
            told,
        })
    }

    /// Holds the text to a grammar.
    #[cfg(feature = "grammar")]
    pub(super) fn held_to(self, constraint: Constraint) -> Self {
        Sequence { constraint: Some(constraint), ..self }
    }

    /// Counts `tokens` as those of the prompt, which an encoder has.
    pub(super) fn with_prompt_tokens(mut self, tokens: usize) -> Self {
        self.made.prompt_tokens = tokens;
        self
    }

    pub(super) fn options(&self) -> &GenerateOptions {
        &self.options
    }

    /// Tokens of the prompt and of the text.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens that may still come after the next one.
    pub(super) fn left(&self) -> usize {
        let most = self.options.max_tokens.unwrap_or(usize::MAX);
        most.saturating_sub(self.made.tokens.len()).saturating_sub(1)
    }

    /// Begins the text after its prompt, of which `reused` tokens were in the cache.
    pub(super) fn begin(&mut self, reused: usize, prepare: Duration, prompt: Duration) {
        (self.made.prepare_time, self.made.prompt_time) = (prepare, prompt);
        self.made.reused_tokens = reused;
        self.start = Some(Instant::now());
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    pub(super) fn end(&mut self, finish: Finish) {
        self.finish.get_or_insert(finish);
        self.made.generation_time = self.start.map(|start| start.elapsed()).unwrap_or_default();
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.options.cancel.as_ref().is_some_and(CancelToken::is_cancelled)
    }

    /// Chooses the token after `position` tokens; gives it where the text goes on after it.
    pub(super) fn choose(&mut self, row: Row, position: usize) -> Result<Option<u32>, GenerateError> {
        if self.is_finished() {
            return Ok(None);
        }
        let token = match row {
            Row::Logits(mut logits) => {
                self.hold(&mut logits)?;
                self.sampler.choose(&mut logits, position)?
            }
            Row::Found(found) => self.sampler.choose_found(&found, position)?,
        };
        self.go_on(token)
    }

    /// What [`Sequence::choose`] needs to know of the logits; nothing where it needs all.
    pub(super) fn request(&mut self) -> Result<Option<Request>, GenerateError> {
        let request = self.sampler.request();
        #[cfg(feature = "grammar")]
        if let (Some(request), Some(constraint)) = (&request, &mut self.constraint) {
            return Ok(Some(Request { allowed: Some(constraint.allowed()?), ..request.clone() }));
        }
        Ok(request.filter(|_| self.banned().next().is_none()))
    }

    /// As [`Sequence::choose`], by way of a guess: the text has the same distribution as without it.
    pub(super) fn check(
        &mut self,
        row: Row,
        position: usize,
        guess: Option<&Guess>,
    ) -> Result<Option<u32>, GenerateError> {
        // A guess that is no matter of chance is accepted where it is what would be chosen.
        let Some(Guess { token, from: Some(guessed) }) = guess else { return self.choose(row, position) };
        if self.is_finished() {
            return Ok(None);
        }
        let mut logits = row.into_logits();
        self.hold(&mut logits)?;
        let wanted = self.sampler.distribution(&mut logits, position)?;
        let token = self.sampler.accept(*token, guessed, &wanted);
        self.go_on(token)
    }

    /// A guess of the token after `position` tokens, by the logits of another model.
    pub(super) fn guess(
        &mut self,
        logits: &mut [f32],
        position: usize,
    ) -> Result<Option<(u32, Distribution)>, GenerateError> {
        let from = self.sampler.distribution(logits, position)?;
        Ok(self.sampler.draw_from(&from).map(|token| (token, from)))
    }

    /// Counts guesses, and those of them that were accepted.
    pub(super) fn guessed(&mut self, guessed: usize, accepted: usize) {
        self.made.guessed_tokens += guessed;
        self.made.accepted_tokens += accepted;
    }

    /// Makes tokens impossible that the grammar does not allow, or else the settings.
    fn hold(&mut self, logits: &mut [f32]) -> Result<(), GenerateError> {
        #[cfg(feature = "grammar")]
        if let Some(constraint) = &mut self.constraint {
            return constraint.mask(logits);
        }
        for token in self.banned() {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Tokens that the settings do not let come next.
    fn banned(&self) -> impl Iterator<Item = u32> {
        let Config { bans, ends, .. } = &self.folder.config;
        let [whole, new] = bans.least;
        let made = self.made.tokens.len();
        let is_short = self.tokens.len() < whole || made < new;
        let ends = ends.iter().filter(move |_| is_short);
        let first = bans.first.iter().filter(move |_| made == 0);
        bans.always.iter().chain(first).chain(ends).copied()
    }

    /// Adds a token to the text; gives it where the text goes on after it.
    fn go_on(&mut self, token: u32) -> Result<Option<u32>, GenerateError> {
        self.made.steps += 1;
        let is_end = self.folder.config.ends.contains(&token);
        #[cfg(feature = "grammar")]
        let (is_end, is_whole) = match &mut self.constraint {
            // What ends a text has no place in one that a grammar holds.
            Some(_) if is_end => (true, false),
            Some(constraint) => (false, constraint.take(token)?),
            None => (is_end && !self.options.ignore_end, false),
        };
        #[cfg(not(feature = "grammar"))]
        let (is_end, is_whole) = (is_end && !self.options.ignore_end, false);
        if is_end {
            self.end(Finish::End(token));
            return Ok(None);
        }
        self.made.tokens.push(token);
        self.tokens.push(token);
        self.sampler.see(token);
        let piece = self.stream.push(&self.folder.tokenizer, token)?;
        let (piece, stop) = self.stops.push(&piece);
        let goes_on = self.tell(&piece);
        if let Some(stop) = stop {
            self.end(Finish::Stop(stop));
        } else if goes_on.is_break() || self.is_cancelled() {
            self.end(Finish::Cancelled);
        } else if is_whole {
            self.end(Finish::Grammar);
        } else if self.options.max_tokens == Some(self.made.tokens.len()) {
            self.end(Finish::Length);
        }
        Ok((!self.is_finished()).then_some(token))
    }

    /// Tells the rest of the text.
    pub(super) fn finish(mut self) -> Result<Generated, GenerateError> {
        let mut finish = self.finish.take().unwrap_or(Finish::Cancelled);
        if !matches!(finish, Finish::Stop(_)) {
            let rest = self.stream.finish(&self.folder.tokenizer)?;
            let (piece, stop) = self.stops.push(&rest);
            let rest = if stop.is_none() { self.stops.finish() } else { String::new() };
            if let Some(stop) = stop {
                finish = Finish::Stop(stop);
            }
            if self.tell(&(piece + &rest)).is_break() {
                finish = Finish::Cancelled;
            }
        }
        self.made.finish = finish;
        Ok(self.made)
    }

    fn tell(&mut self, piece: &str) -> ControlFlow<()> {
        if piece.is_empty() {
            return ControlFlow::Continue(());
        }
        self.made.text.push_str(piece);
        (self.told)(piece)
    }
}
