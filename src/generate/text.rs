//! Text and tokens: the tokenizer, text as it comes, and strings that end it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use serde_json::Value;
use tokenizers::normalizers::Precompiled;

use super::error::GenerateError;

/// A character has at most so many bytes, and a token at least one: text that ends within a character waits for no more
/// tokens.
const MAX_WAIT: usize = 4;

/// The tokenizer of a model.
#[derive(Debug)]
pub(super) struct TextTokenizer(tokenizers::Tokenizer);

impl TextTokenizer {
    /// Reads `tokenizer.json`.
    pub(super) fn new(json: &str) -> Result<Self, GenerateError> {
        check(json)?;
        let mut tokenizer = guarded(|| tokenizers::Tokenizer::from_bytes(json))?;
        // A prompt is never cut or filled up.
        guarded(|| tokenizer.with_truncation(None).map(drop))?;
        tokenizer.with_padding(None);
        Ok(TextTokenizer(tokenizer))
    }

    /// Whether each token has the text that it has in `other`.
    pub(super) fn has_tokens_of(&self, other: &TextTokenizer) -> bool {
        self.0.get_vocab(true) == other.0.get_vocab(true)
    }

    /// All of it, as `tokenizer.json` has it.
    #[cfg(feature = "grammar")]
    pub(super) fn to_json(&self) -> Result<serde_json::Value, GenerateError> {
        serde_json::to_value(&self.0).map_err(|e| GenerateError::Tokenizer(e.to_string()))
    }

    /// The tokens of `text`; `whole` texts get what marks their begin.
    pub(super) fn encode(&self, text: &str, whole: bool) -> Result<Vec<u32>, GenerateError> {
        guarded(|| self.0.encode_fast(text, whole).map(|encoding| encoding.get_ids().to_vec()))
    }

    /// The first `most` tokens of a whole `text`, among them those that mark its begin and end.
    pub(super) fn encode_cut(&self, text: &str, most: usize) -> Result<Vec<u32>, GenerateError> {
        let marks = guarded(|| self.0.encode_fast("", true))?.get_ids().len();
        guarded(|| {
            let mut content = self.0.encode_fast(text, false)?;
            content.truncate(most.saturating_sub(marks), 0, tokenizers::TruncationDirection::Right);
            let mut whole = self.0.post_process(content, None, true)?.get_ids().to_vec();
            whole.truncate(most);
            Ok(whole)
        })
    }

    /// The text of `tokens`, without those that are marks.
    pub(super) fn decode(&self, tokens: &[u32]) -> Result<String, GenerateError> {
        guarded(|| self.0.decode(tokens, true))
    }
}

/// Parts of a `tokenizer.json` of which damage makes the library panic.
#[derive(Deserialize)]
struct Parts {
    #[serde(default, rename = "decoder")]
    _decoder: Value,
    #[serde(default)]
    normalizer: Value,
}

/// Checks what the library does not check itself.
fn check(json: &str) -> Result<(), GenerateError> {
    let wrong = |e: serde_json::Error| GenerateError::Tokenizer(e.to_string());
    let Parts { normalizer, .. } = serde_json::from_str(json).map_err(wrong)?;
    let mut left = vec![normalizer];
    while let Some(mut part) = left.pop() {
        if part["type"] == "Precompiled" {
            serde_json::from_value::<Precompiled>(part).map_err(wrong)?;
        } else if let Value::Array(parts) = part["normalizers"].take() {
            left.extend(parts.into_iter().filter(Value::is_object));
        }
    }
    Ok(())
}

/// Calls the library, whose files may be hostile; a panic of it is an error.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, GenerateError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|e| GenerateError::Tokenizer(e.to_string())),
        Err(_) => Err(GenerateError::Tokenizer("it cannot work with this tokenizer.json or text".to_owned())),
    }
}

/// Text of tokens as they come.
#[derive(Debug, Default)]
pub(super) struct TextStream {
    /// Tokens whose text was told last, which the spaces of the next ones depend on, and those after them.
    tokens: Vec<u32>,
    told: usize,
}

impl TextStream {
    /// The text that `token` adds; nothing while a character is not whole.
    pub(super) fn push(&mut self, tokenizer: &TextTokenizer, token: u32) -> Result<String, GenerateError> {
        self.tokens.push(token);
        let text = self.untold(tokenizer)?;
        let waits = text.is_empty() || text.ends_with(char::REPLACEMENT_CHARACTER);
        if waits && self.tokens.len() - self.told < MAX_WAIT {
            return Ok(String::new());
        }
        self.tokens.drain(..self.told);
        self.told = self.tokens.len();
        Ok(text)
    }

    /// The rest, at the end.
    pub(super) fn finish(&mut self, tokenizer: &TextTokenizer) -> Result<String, GenerateError> {
        let text = self.untold(tokenizer)?;
        self.told = self.tokens.len();
        Ok(text)
    }

    fn untold(&self, tokenizer: &TextTokenizer) -> Result<String, GenerateError> {
        let known = tokenizer.decode(&self.tokens[..self.told])?;
        let mut all = tokenizer.decode(&self.tokens)?;
        Ok(if all.starts_with(&known) { all.split_off(known.len()) } else { String::new() })
    }
}

/// Strings that end a text, found also where they come in pieces.
#[derive(Debug)]
pub(super) struct StopStrings {
    stops: Vec<String>,
    /// Text that may be the start of one of them.
    held: String,
}

impl StopStrings {
    pub(super) fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|s| !s.is_empty()).cloned().collect();
        StopStrings { stops, held: String::new() }
    }

    /// Text that can be told now that `piece` has come, and the string that ends it.
    pub(super) fn push(&mut self, piece: &str) -> (String, Option<String>) {
        self.held.push_str(piece);
        let found = self.stops.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        if let Some((at, stop)) = found.min_by_key(|(at, stop)| (*at, std::cmp::Reverse(stop.len()))) {
            let stop = stop.clone();
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), Some(stop));
        }
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let first = self.held.len().saturating_sub(longest.saturating_sub(1));
        let may_begin = |at: &usize| {
            self.held.get(*at..).is_some_and(|tail| self.stops.iter().any(|stop| stop.starts_with(tail)))
        };
        let at = (first..self.held.len()).find(may_begin).unwrap_or(self.held.len());
        let rest = self.held.split_off(at);
        (std::mem::replace(&mut self.held, rest), None)
    }

    /// What was held, at the end.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const TOKENIZER: &str = include_str!("../../models/tiny_llm/fixed/tokenizer.json");

    fn tokenizer() -> TextTokenizer {
        TextTokenizer::new(TOKENIZER).unwrap()
    }

    #[test]
    fn text_comes_in_whole_characters_and_is_the_same() {
        let t = tokenizer();
        let text = "a Über-naïve 日本 🦀 end";
        let tokens = t.encode(text, false).unwrap();
        assert!(tokens.len() > text.chars().count(), "characters of several tokens are what this is about");
        let (mut stream, mut got, mut pieces) = (TextStream::default(), String::new(), 0);
        for token in tokens {
            let piece = stream.push(&t, token).unwrap();
            assert!(!piece.contains(char::REPLACEMENT_CHARACTER), "{piece:?}");
            pieces += usize::from(!piece.is_empty());
            got.push_str(&piece);
        }
        got.push_str(&stream.finish(&t).unwrap());
        assert_eq!(got, text);
        assert!(pieces > 10);
    }

    #[test]
    fn bytes_that_are_no_text_wait_for_a_character_at_most() {
        let t = tokenizer();
        // The first byte of a character of three, again and again.
        let first = t.encode("日", false).unwrap()[0];
        let mut stream = TextStream::default();
        let pieces: Vec<String> = (0..9).map(|_| stream.push(&t, first).unwrap()).collect();
        assert!(pieces[..3].iter().all(String::is_empty), "{pieces:?}");
        assert_eq!(pieces[3], "\u{fffd}".repeat(4));
        assert_eq!(stream.finish(&t).unwrap().chars().count(), 1);
    }

    #[test]
    fn stop_strings_are_found_in_pieces_and_not_told() {
        let mut stops = StopStrings::new(&["END".into(), "\n\n".into(), String::new()]);
        assert_eq!(stops.push("some E"), ("some ".into(), None));
        assert_eq!(stops.push("N"), (String::new(), None));
        assert_eq!(stops.push("ough EN"), ("ENough ".into(), None));
        assert_eq!(stops.push("D and more"), (String::new(), Some("END".into())));
        let mut stops = StopStrings::new(&["ü!".into()]);
        assert_eq!(stops.push("aü"), ("a".into(), None));
        assert_eq!(stops.finish(), "ü");
        let mut none = StopStrings::new(&[]);
        assert_eq!(none.push("all"), ("all".into(), None));
        let mut both = StopStrings::new(&["ab".into(), "abc".into(), "b".into()]);
        assert_eq!(both.push("xabcd"), ("x".into(), Some("abc".into())));
    }

    #[test]
    fn broken_tokenizers_are_errors() {
        let step = (TOKENIZER.len() / 97).max(1);
        for end in (0..TOKENIZER.len()).step_by(step).filter(|end| TOKENIZER.is_char_boundary(*end)) {
            assert!(TextTokenizer::new(&TOKENIZER[..end]).is_err());
        }
        // A panic would print its place before the error.
        let panics = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&panics);
        let thread = std::thread::current().id();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |_| {
            let is_own = std::thread::current().id() == thread;
            counted.fetch_add(usize::from(is_own), Ordering::Relaxed);
        }));
        let whole: Value = serde_json::from_str(TOKENIZER).unwrap();
        let mut damaged = Vec::new();
        for (part, value) in [
            ("decoder", r#"{"type": "Sequence", "decoders": [{"type": 3}, 1e999]}"#),
            ("decoder", r#"{"type": "Byte"#),
            ("decoder", "3"),
            ("normalizer", r#"{"type": "Precompiled", "precompiled_charsmap": "AA"}"#),
            ("normalizer", r#"{"type": "Precompiled"}"#),
            (
                "normalizer",
                r#"{"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": 4}]}"#,
            ),
            ("normalizer", r#"{"type": "Sequence", "normalizers": 4}"#),
        ] {
            let mut parts: Vec<String> = whole
                .as_object()
                .unwrap()
                .iter()
                .filter(|(name, _)| *name != part)
                .map(|(name, value)| format!("{name:?}: {value}"))
                .collect();
            parts.push(format!("{part:?}: {value}"));
            damaged.push(TextTokenizer::new(&format!("{{{}}}", parts.join(", "))).map(drop));
        }
        std::panic::set_hook(before);
        assert!(damaged.iter().all(Result::is_err), "{damaged:?}");
        assert_eq!(panics.load(Ordering::Relaxed), 0);
        let said = TextTokenizer::new("{\"model\": 3}").unwrap_err().to_string();
        assert!(said.starts_with("the tokenizer: "), "{said}");
    }
}
