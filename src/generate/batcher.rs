//! Continuous batching: texts come and go, and each step gives all that run their next tokens.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use super::call::Part;
use super::conversation;
use super::decoder::Decoder;
use super::error::GenerateError;
#[cfg(feature = "grammar")]
use super::generator::constraint;
use super::generator::{finished, prompt_of};
#[cfg(feature = "grammar")]
use super::grammar::Grammars;
use super::sequence::Sequence;
use super::{Finish, GenerateOptions, Generated, Generator, ModelFolder, Prompt};
use crate::session::RunOptions;

/// The number of a text of a [`Batcher`], in the order of [`Batcher::add`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextId(pub u64);

/// The most texts that may run at once.
const MOST_TEXTS: usize = 1 << 16;

/// How texts are batched.
#[derive(Clone, Copy, Debug)]
pub struct BatchOptions {
    /// The most texts that run at once, at most 65536; others wait. A cache of a fixed length is as many
    /// times as large.
    pub texts: usize,
    /// The most tokens of a step: one of each text that goes on, which all have theirs, then tokens of
    /// prompts. The prompt that was added first has one in any case.
    pub step_tokens: usize,
}

impl Default for BatchOptions {
    /// 8 texts, 256 tokens.
    fn default() -> Self {
        BatchOptions { texts: 8, step_tokens: 256 }
    }
}

/// A text that runs, as who chooses one to be set aside sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its number.
    pub id: TextId,
    /// Tokens of its prompt and of the text so far.
    pub tokens: usize,
    /// Those of them that would have to be computed again.
    pub computed: usize,
}

/// What a batcher did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// Steps that ran.
    pub steps: u64,
    /// Tokens that ran in them.
    pub tokens: u64,
    /// Tokens of prompts that were in pages already.
    pub reused_tokens: u64,
    /// The most texts of one step.
    pub most_texts: usize,
    /// How often a text was set aside for want of pages, to be computed again.
    pub preempted: u64,
}

/// Chooses, by its place, the text that is set aside.
type Rule<'a> = Box<dyn FnMut(&[Running]) -> usize + 'a>;

/// Makes texts that are added at any time. A text that has ended leaves at once, and its place and its pages go to one that
/// waits. Texts are those that [`Generator::generate`] makes one by one, up to rounding; guesses
/// ([`GenerateOptions::lookup`], a draft model) are not made.
///
/// With a cache in pages prompts that begin alike have those pages in common, and a step is one run. Other
/// graphs run a part of each prompt on its own, then one token of all texts in one run.
pub struct Batcher<'a> {
    folder: &'a ModelFolder,
    decoder: &'a mut Decoder,
    #[cfg(feature = "grammar")]
    grammars: &'a mut Option<Grammars>,
    options: BatchOptions,
    waiting: VecDeque<Text<'a>>,
    /// The text of each sequence of the decoder.
    running: Vec<Option<Text<'a>>>,
    /// What the next step that does not fail gives.
    ended: Vec<(TextId, Generated)>,
    next: u64,
    rule: Option<Rule<'a>>,
    counts: BatchCounts,
}

impl fmt::Debug for Batcher<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = |texts: &mut dyn Iterator<Item = &Text<'_>>| texts.map(|t| t.id).collect::<Vec<_>>();
        f.debug_struct("Batcher")
            .field("running", &ids(&mut self.running.iter().flatten()))
            .field("waiting", &ids(&mut self.waiting.iter()))
            .field("counts", &self.counts)
            .finish()
    }
}

struct Text<'a> {
    id: TextId,
    sequence: Sequence<'a>,
    /// Tokens that the cache has.
    computed: usize,
    reused: usize,
    /// When its prompt began to run.
    since: Option<Instant>,
    has_begun: bool,
}

impl Text<'_> {
    /// Tokens that the cache does not have.
    fn left(&self) -> usize {
        self.sequence.tokens().len() - self.computed
    }

    /// Whether it has ended, as one does whose last token a cache of `capacity` has no room for.
    fn is_over(&mut self, capacity: usize) -> bool {
        if self.sequence.is_cancelled() {
            self.sequence.end(Finish::Cancelled);
        } else if self.sequence.tokens().len() > capacity {
            self.sequence.end(Finish::Context);
        }
        self.sequence.is_finished()
    }
}

impl<'a> Batcher<'a> {
    /// Makes texts with `generator`, whose cache is empty then.
    ///
    /// # Errors
    /// [`GenerateError::Setting`] for options that allow no text, too many or no token;
    /// [`GenerateError::Unsupported`] for a model with an encoder; memory ran out.
    pub fn new(generator: &'a mut Generator, options: BatchOptions) -> Result<Self, GenerateError> {
        for (name, value, most, expected) in [
            ("texts", options.texts, MOST_TEXTS, "1 to 65536"),
            ("step tokens", options.step_tokens, usize::MAX, "at least 1"),
        ] {
            if !(1..=most).contains(&value) {
                return Err(GenerateError::Setting { name, value: value.to_string(), expected });
            }
        }
        generator.refuse_encoder("texts that come and go")?;
        generator.cached.forget();
        generator.cached.reserve(options.texts)?;
        Ok(Batcher {
            folder: &generator.folder,
            decoder: &mut generator.cached.decoder,
            #[cfg(feature = "grammar")]
            grammars: &mut generator.grammars,
            options,
            waiting: VecDeque::new(),
            running: (0..options.texts).map(|_| None).collect(),
            ended: Vec::new(),
            next: 0,
            rule: None,
            counts: BatchCounts::default(),
        })
    }

    /// Lets `rule` choose the text that is set aside where another needs its pages, by its place among those that run;
    /// without it the last one that was added is. A place that there is not is the last one's.
    pub fn preempt_by(&mut self, rule: impl FnMut(&[Running]) -> usize + 'a) {
        self.rule = Some(Box::new(rule));
    }

    /// Adds a text, which waits until there is room; `told` gets it in pieces of whole characters, and may end it.
    ///
    /// # Errors
    /// [`GenerateError`] for a prompt or options that make no sense, and [`GenerateError::PagesFull`] for a prompt that all
    /// pages together do not hold.
    pub fn add(
        &mut self,
        prompt: Prompt<'_>,
        options: GenerateOptions,
        told: impl FnMut(&str) -> ControlFlow<()> + 'a,
    ) -> Result<TextId, GenerateError> {
        let prompt = prompt_of(self.folder, prompt, self.decoder.capacity())?;
        self.decoder.check(&prompt)?;
        if let Some(pool) = self.decoder.pool() {
            let needed = prompt.len().div_ceil(pool.page_tokens());
            let pages = pool.counts().pages;
            if needed > pages {
                return Err(GenerateError::PagesFull { text: self.next, missing: needed - pages, pages });
            }
        }
        let text = self.text(&prompt, options, told)?;
        let id = text.id;
        self.waiting.push_back(text);
        Ok(id)
    }

    /// Adds a text that goes on from where another is now, as another seed may. With a cache in pages it has the other's
    /// pages until one of them writes on.
    ///
    /// # Errors
    /// As [`Batcher::add`]; [`GenerateError::NoText`] where no such text runs or waits.
    pub fn fork(
        &mut self,
        of: TextId,
        options: GenerateOptions,
        told: impl FnMut(&str) -> ControlFlow<()> + 'a,
    ) -> Result<TextId, GenerateError> {
        let from = self.running.iter().position(|text| text.as_ref().is_some_and(|text| text.id == of));
        let other = from.and_then(|at| self.running[at].as_ref());
        let other = other.or_else(|| self.waiting.iter().find(|text| text.id == of));
        let (tokens, computed) =
            other.map(|t| (t.sequence.tokens().to_vec(), t.computed)).ok_or(GenerateError::NoText(of.0))?;
        let mut text = self.text(&tokens, options, told)?;
        let id = text.id;
        let free = self.running.iter().position(Option::is_none);
        if let (Some(from), Some(to)) = (from, free)
            && self.waiting.is_empty()
            && self.decoder.fork(from, to)
        {
            (text.computed, text.reused, text.since) = (computed, computed, Some(Instant::now()));
            self.running[to] = Some(text);
        } else {
            self.waiting.push_back(text);
        }
        Ok(id)
    }

    fn text(
        &mut self,
        prompt: &[u32],
        options: GenerateOptions,
        told: impl FnMut(&str) -> ControlFlow<()> + 'a,
    ) -> Result<Text<'a>, GenerateError> {
        #[cfg(feature = "grammar")]
        let held = constraint(self.folder, self.grammars, &options)?;
        let sequence = Sequence::new(self.folder, prompt, Cow::Owned(options), Box::new(told))?;
        #[cfg(feature = "grammar")]
        let sequence = match held {
            Some(held) => sequence.held_to(held),
            None => sequence,
        };
        let id = TextId(self.next);
        self.next += 1;
        Ok(Text { id, sequence, computed: 0, reused: 0, since: None, has_begun: false })
    }

    /// Texts that run.
    pub fn running(&self) -> Vec<Running> {
        self.running.iter().flatten().map(Running::of).collect()
    }

    /// Texts that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no text runs or waits, and none that has ended is still to be given.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.ended.is_empty() && self.running.iter().all(Option::is_none)
    }

    /// What was done so far.
    pub fn counts(&self) -> BatchCounts {
        self.counts
    }

    /// Writes the tokens of a text that are in the cache, with their keys and values, to a file: [`Generator::save`].
    ///
    /// # Errors
    /// [`GenerateError::NoText`] where no such text runs, [`GenerateError::Write`], and what the device says.
    pub fn save(&self, id: TextId, path: impl AsRef<Path>) -> Result<(), GenerateError> {
        let of = |text: &Option<Text<'_>>| text.as_ref().is_some_and(|text| text.id == id);
        let at = self.running.iter().position(of).ok_or(GenerateError::NoText(id.0))?;
        let text = self.running[at].as_ref().ok_or(GenerateError::NoText(id.0))?;
        let tokens = &text.sequence.tokens()[..text.computed];
        conversation::save(self.decoder, at, tokens, &self.folder.fingerprint()?, path.as_ref())
    }

    /// Reads keys and values from a file of [`Batcher::save`] or [`Generator::save`] into pages, where
    /// prompts that begin with their tokens find them; gives the number of those tokens, which are whole
    /// pages.
    ///
    /// # Errors
    /// As [`Generator::restore`]; [`GenerateError::Pages`] where the cache is not in pages, or no text may be added now.
    pub fn restore(&mut self, path: impl AsRef<Path>) -> Result<usize, GenerateError> {
        let wrong = |problem: &str| GenerateError::Pages(problem.to_owned());
        let Some(rows) = self.decoder.pool().map(super::PagePool::page_tokens) else {
            return Err(wrong("there is none: a file goes to a cache in pages alone"));
        };
        let free = self.running.iter().position(Option::is_none);
        let at = free.ok_or_else(|| wrong("as many texts run as may: end one before a file is read"))?;
        let (model, context) = (self.folder.fingerprint()?, self.folder.context());
        let read = conversation::restore(self.decoder, at, context, &model, path.as_ref());
        self.decoder.truncate(at, 0)?;
        Ok(read?.len() / rows * rows)
    }

    /// Runs one step; gives the texts that have ended since the last one that did not fail.
    ///
    /// # Errors
    /// [`GenerateError::PagesFull`] where the pages of others leave no room for any text; what the session says. Texts that
    /// ran wait then, to be computed again, but for one whose own logits or grammar failed: that one is gone.
    pub fn step(&mut self) -> Result<Vec<(TextId, Generated)>, GenerateError> {
        if let Err(e) = self.try_step() {
            (0..self.running.len()).for_each(|at| self.set_waiting(at));
            // What failed may have left in the cache what is no number.
            self.decoder.forget();
            return Err(e);
        }
        Ok(std::mem::take(&mut self.ended))
    }

    /// Asks the device for the tokens that may come next in the texts of `plan` that run all their tokens. A text whose
    /// grammar fails is gone.
    fn ask(&mut self, plan: &[(usize, usize)]) -> Result<(), GenerateError> {
        for &(at, count) in plan {
            let request = match &mut self.running[at] {
                Some(text) if self.decoder.finds_tokens() && count == text.left() => text.sequence.request(),
                _ => Ok(None),
            };
            if request.is_err() {
                self.running[at] = None;
            }
            self.decoder.ask(at, request?);
        }
        Ok(())
    }

    fn try_step(&mut self) -> Result<(), GenerateError> {
        self.leave()?;
        self.enter()?;
        let plan = self.make_room()?;
        // Texts may have ended for want of pages.
        self.leave()?;
        let plan: Vec<(usize, usize)> =
            plan.into_iter().filter(|(at, _)| self.running[*at].is_some()).collect();
        if plan.is_empty() {
            return Ok(());
        }
        self.ask(&plan)?;
        let parts: Vec<Part<'_>> = plan
            .iter()
            .filter_map(|&(sequence, count)| {
                let text = self.running[sequence].as_ref()?;
                let tokens = &text.sequence.tokens()[text.computed..][..count];
                // Only a text that has run all its tokens chooses the next.
                let from = if count == text.left() { count - 1 } else { count };
                Some(Part { sequence, tokens, from, ahead: text.left() - count })
            })
            .collect();
        let run = self.only_cancel();
        let Some(logits) = finished(self.decoder.run_parts(&parts, run.as_ref()))? else {
            self.running.iter_mut().flatten().for_each(|text| text.sequence.end(Finish::Cancelled));
            // A run with the token of its only text is ended by that alone, another by the session.
            if run.is_none() {
                self.waiting.iter_mut().for_each(|text| text.sequence.end(Finish::Cancelled));
            }
            return self.leave();
        };
        self.counts.steps += 1;
        self.counts.most_texts = self.counts.most_texts.max(plan.len());
        for (&(at, count), mut rows) in plan.iter().zip(logits) {
            self.counts.tokens += count as u64;
            let Some(text) = &mut self.running[at] else { continue };
            text.computed += count;
            let Some(row) = rows.pop() else { continue };
            if !std::mem::replace(&mut text.has_begun, true) {
                let took = text.since.map(|since| since.elapsed()).unwrap_or_default();
                text.sequence.begin(text.reused, Duration::ZERO, took);
            }
            let position = text.sequence.tokens().len();
            if let Err(e) = text.sequence.choose(row, position) {
                self.running[at] = None;
                return Err(e);
            }
        }
        self.leave()
    }

    /// The end of one of several texts ends no run of the others.
    fn only_cancel(&self) -> Option<RunOptions> {
        let mut running = self.running.iter().flatten();
        let (Some(text), None) = (running.next(), running.next()) else { return None };
        text.sequence.options().cancel.as_ref().map(|token| RunOptions::new().cancel(token))
    }

    /// Lets texts go that have ended.
    fn leave(&mut self) -> Result<(), GenerateError> {
        let capacity = self.decoder.capacity();
        for at in 0..self.running.len() {
            if let Some(text) = self.running[at].take_if(|text| text.is_over(capacity)) {
                self.ended.push((text.id, text.sequence.finish()?));
                self.decoder.truncate(at, 0)?;
            }
        }
        let mut at = 0;
        while let Some(text) = self.waiting.get_mut(at) {
            if !text.is_over(capacity) {
                at += 1;
            } else if let Some(text) = self.waiting.remove(at) {
                self.ended.push((text.id, text.sequence.finish()?));
            }
        }
        Ok(())
    }

    /// Lets texts that wait begin, as far as there are places and pages for their tokens.
    fn enter(&mut self) -> Result<(), GenerateError> {
        while let Some(at) = self.running.iter().position(Option::is_none) {
            let Some(text) = self.waiting.front() else { break };
            let tokens = text.sequence.tokens();
            let shared = self.decoder.share(at, tokens, 0)?;
            if let Err(e) = self.decoder.make_room(at, tokens.len() - shared) {
                self.decoder.truncate(at, 0)?;
                let e = of_text(e, text.id);
                let alone = self.running.iter().all(Option::is_none);
                return if alone || !matches!(e, GenerateError::PagesFull { .. }) { Err(e) } else { Ok(()) };
            }
            let Some(mut text) = self.waiting.pop_front() else { break };
            self.counts.reused_tokens += shared as u64;
            text.computed = shared;
            text.reused = if text.has_begun { text.reused } else { shared };
            text.since.get_or_insert_with(Instant::now);
            self.running[at] = Some(text);
        }
        Ok(())
    }

    /// Which texts run how many tokens in this step; there is room for them then.
    fn make_room(&mut self) -> Result<Vec<(usize, usize)>, GenerateError> {
        let plan = self.plan();
        for &(at, count) in &plan {
            // Those that begin have had room since they did, but for what a fork has in common with another.
            while let Some(text) = &self.running[at] {
                let (id, goes_on) = (text.id, text.has_begun && text.left() == 1);
                let Err(e) = self.decoder.make_room(at, count) else { break };
                let is_alone = self.running.iter().flatten().count() == 1;
                if !matches!(e, GenerateError::PagesFull { .. }) || (is_alone && !goes_on) {
                    return Err(of_text(e, id));
                }
                if !is_alone {
                    let victim = self.victim();
                    self.counts.preempted += 1;
                    self.set_waiting(victim);
                    self.decoder.truncate(victim, 0)?;
                } else if let Some(text) = &mut self.running[at] {
                    // All pages that there are for it are full.
                    text.sequence.end(Finish::Context);
                    break;
                }
            }
        }
        Ok(plan)
    }

    /// Which texts are to run how many tokens.
    fn plan(&self) -> Vec<(usize, usize)> {
        let running = self.running.iter().enumerate();
        let lefts = running.filter_map(|(at, text)| text.as_ref().map(|text| (at, text.id, text.left())));
        let (texts, mut prompts): (Vec<_>, Vec<_>) = lefts.partition(|(_, _, count)| *count == 1);
        let mut left = self.options.step_tokens.saturating_sub(texts.len()).max(1);
        let mut plan: Vec<(usize, usize)> = texts.into_iter().map(|(at, _, count)| (at, count)).collect();
        // Those that were added first are the first to begin.
        prompts.sort_by_key(|(_, id, _)| *id);
        for (at, _, count) in prompts {
            let count = count.min(left);
            if count == 0 {
                break;
            }
            plan.push((at, count));
            left -= count;
        }
        plan
    }

    /// The place of the text that is set aside.
    fn victim(&mut self) -> usize {
        let running: Vec<(usize, Running)> = self
            .running
            .iter()
            .enumerate()
            .filter_map(|(at, text)| text.as_ref().map(|text| (at, Running::of(text))))
            .collect();
        let last = running.iter().max_by_key(|(_, text)| text.id).map_or(0, |(at, _)| *at);
        let Some(rule) = &mut self.rule else { return last };
        let texts: Vec<Running> = running.iter().map(|(_, text)| *text).collect();
        running.get(rule(&texts)).map_or(last, |(at, _)| *at)
    }

    /// Lets a text wait again; its place is another's.
    fn set_waiting(&mut self, at: usize) {
        if let Some(mut text) = self.running[at].take() {
            text.computed = 0;
            // In the order in which they were added.
            let place = self.waiting.iter().take_while(|other| other.id < text.id).count();
            self.waiting.insert(place, text);
        }
    }
}

impl Running {
    fn of(text: &Text<'_>) -> Self {
        Running { id: text.id, tokens: text.sequence.tokens().len(), computed: text.computed }
    }
}

impl Drop for Batcher<'_> {
    fn drop(&mut self) {
        self.decoder.forget();
    }
}

/// Names the text whose sequence lacks pages.
fn of_text(e: GenerateError, id: TextId) -> GenerateError {
    match e {
        GenerateError::PagesFull { missing, pages, .. } => {
            GenerateError::PagesFull { text: id.0, missing, pages }
        }
        e => e,
    }
}
