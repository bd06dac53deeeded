//! One text in the making: tokens chosen, told and ended.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::error::GenerateError;
use super::sampling::Sampler;
use super::text::{StopStrings, TextStream};
use super::{Finish, GenerateOptions, Generated, ModelFolder};
use crate::session::CancelToken;

/// A text in the making.
pub(super) struct Sequence<'a> {
    folder: &'a ModelFolder,
    options: &'a GenerateOptions,
    sampler: Sampler,
    stream: TextStream,
    stops: StopStrings,
    made: Generated,
    /// When the first token came.
    start: Option<Instant>,
    finish: Option<Finish>,
    told: &'a mut dyn FnMut(&str) -> ControlFlow<()>,
}

impl<'a> Sequence<'a> {
    /// # Errors
    /// [`GenerateError::Setting`].
    pub(super) fn new(
        folder: &'a ModelFolder,
        prompt: &[u32],
        options: &'a GenerateOptions,
        told: &'a mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Self, GenerateError> {
        let mut sampler = Sampler::new(options.sampling)?;
        prompt.iter().for_each(|&token| sampler.see(token));
        let made = Generated {
            text: String::new(),
            tokens: Vec::new(),
            prompt_tokens: prompt.len(),
            finish: Finish::Length,
            prepare_time: Duration::ZERO,
            prompt_time: Duration::ZERO,
            generation_time: Duration::ZERO,
            runs: 0,
        };
        let (stream, stops) = (TextStream::default(), StopStrings::new(&options.stop));
        let finish = (options.max_tokens == Some(0)).then_some(Finish::Length);
        Ok(Sequence { folder, options, sampler, stream, stops, made, start: None, finish, told })
    }

    pub(super) fn prompt_took(&mut self, prepare: Duration, prompt: Duration) {
        (self.made.prepare_time, self.made.prompt_time) = (prepare, prompt);
        self.start = Some(Instant::now());
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    pub(super) fn end(&mut self, finish: Finish) {
        self.finish.get_or_insert(finish);
        self.made.generation_time = self.start.map(|start| start.elapsed()).unwrap_or_default();
    }

    fn is_cancelled(&self) -> bool {
        self.options.cancel.as_ref().is_some_and(CancelToken::is_cancelled)
    }

    /// Chooses the token after `position` tokens; gives it where the text goes on after it.
    ///
    /// # Errors
    /// [`GenerateError::NotFinite`], [`GenerateError::Tokenizer`].
    pub(super) fn choose(
        &mut self,
        logits: &mut [f32],
        position: usize,
    ) -> Result<Option<u32>, GenerateError> {
        if self.is_finished() {
            return Ok(None);
        }
        let token = self.sampler.choose(logits, position)?;
        if !self.options.ignore_end && self.folder.config.ends.contains(&token) {
            self.end(Finish::End(token));
            return Ok(None);
        }
        self.made.tokens.push(token);
        self.sampler.see(token);
        let piece = self.stream.push(&self.folder.tokenizer, token)?;
        let (piece, stop) = self.stops.push(&piece);
        let goes_on = self.tell(&piece);
        if let Some(stop) = stop {
            self.end(Finish::Stop(stop));
        } else if goes_on.is_break() || self.is_cancelled() {
            self.end(Finish::Cancelled);
        } else if self.options.max_tokens == Some(self.made.tokens.len()) {
            self.end(Finish::Length);
        }
        Ok((!self.is_finished()).then_some(token))
    }

    /// Counts a run that gave a token.
    pub(super) fn ran(&mut self) {
        self.made.runs += 1;
    }

    /// Tells the rest of the text.
    ///
    /// # Errors
    /// [`GenerateError::Tokenizer`].
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
