//! Texts that a grammar holds: which tokens may come next.

use std::collections::HashMap;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, token_bytes_from_tokenizer_json};
use serde_json::Value;

use super::error::GenerateError;

/// The longest grammar that is read.
const MAX_BYTES: usize = 1 << 20;

/// Brackets in one another that a grammar may have: its readers call themselves for each.
const MAX_DEPTH: usize = 100;

/// Levels of a schema with the parts that it refers to in their places, and rules of a grammar.
const MAX_LEVELS: usize = 2000;

/// The stack of the thread that reads a grammar: about 20 times what so many levels take.
const STACK_BYTES: usize = 256 << 20;

/// States of the lexer, of one or two KiB each.
const MAX_LEXER_STATES: usize = 50_000;

/// What a text must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grammar {
    /// A value that a JSON schema describes.
    JsonSchema(String),
    /// What a regular expression matches, the whole text.
    Regex(String),
    /// What a grammar in Lark's notation derives from `start`.
    Lark(String),
}

impl Grammar {
    fn text(&self) -> &str {
        match self {
            Grammar::JsonSchema(text) | Grammar::Regex(text) | Grammar::Lark(text) => text,
        }
    }

    fn read(&self) -> Result<TopLevelGrammar, GenerateError> {
        let text = self.text();
        if text.len() > MAX_BYTES {
            let problem = format!("it has {} bytes, and {MAX_BYTES} are read at most", text.len());
            return Err(GenerateError::Grammar(problem));
        }
        let mut depth = 0usize;
        for byte in text.bytes() {
            match byte {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth > MAX_DEPTH {
                let problem = format!("more than {MAX_DEPTH} brackets are in one another");
                return Err(GenerateError::Grammar(problem));
            }
        }
        Ok(match self {
            Grammar::JsonSchema(text) => {
                let schema = serde_json::from_str(text);
                let schema: Value =
                    schema.map_err(|e| GenerateError::Grammar(format!("the schema is no JSON: {e}")))?;
                check_levels("levels of the schema", levels(&schema, &schema, &mut HashMap::new()))?;
                TopLevelGrammar::from_json_schema(schema)
            }
            Grammar::Regex(text) => TopLevelGrammar::from_regex(text),
            Grammar::Lark(text) => {
                check_levels("rules", text.bytes().filter(|byte| *byte == b':').count())?;
                TopLevelGrammar::from_lark(text.clone())
            }
        })
    }
}

/// Levels of a schema's part, with the parts that it refers to in their places; a reference to itself ends it.
fn levels<'s>(part: &'s Value, schema: &'s Value, known: &mut HashMap<&'s str, usize>) -> usize {
    let inner = match part {
        Value::Array(parts) => parts.iter().map(|part| levels(part, schema, known)).max(),
        Value::Object(parts) => parts.values().map(|part| levels(part, schema, known)).max(),
        _ => None,
    };
    let target = part.get("$ref").and_then(Value::as_str);
    let referred = target.map_or(0, |target| match known.get(target) {
        Some(levels) => *levels,
        None => {
            known.insert(target, 0);
            let found = target.strip_prefix('#').and_then(|pointer| schema.pointer(pointer));
            let levels = found.map_or(0, |part| levels(part, schema, known));
            known.insert(target, levels);
            levels
        }
    });
    1 + inner.unwrap_or(0).max(referred)
}

fn check_levels(what: &str, levels: usize) -> Result<(), GenerateError> {
    match levels {
        0..=MAX_LEVELS => Ok(()),
        _ => Err(GenerateError::Grammar(format!("{levels} {what}, and {MAX_LEVELS} are read at most"))),
    }
}

/// Makes constraints for one tokenizer.
pub(super) struct Grammars(ParserFactory);

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    /// For the tokens of `tokenizer`, of which `ends` end a text.
    pub(super) fn new(tokenizer: &Value, ends: &[u32]) -> Result<Self, GenerateError> {
        let mut words = guarded(|| token_bytes_from_tokenizer_json(tokenizer))?;
        let mut ends: Vec<u32> = ends.iter().copied().filter(|t| (*t as usize) < words.len()).collect();
        if ends.is_empty() {
            // A mark that no text has, and that no logit is for.
            ends.push(words.len() as u32);
            words.push(b"\xFF<end>".to_vec());
        }
        let info = TokRxInfo::new(words.len() as u32, ends[0]);
        let trie = guarded(|| Ok::<_, GenerateError>(TokTrie::from(&info, &words).with_eos_tokens(&ends)))?;
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = guarded(|| ParserFactory::new(&tokens, InferenceCapabilities::default(), &[]))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.max_lexer_states = MAX_LEXER_STATES;
        limits.verbose_errors = false;
        Ok(Grammars(factory))
    }

    /// A text that `grammar` holds, at its begin.
    pub(super) fn constraint(&self, grammar: &Grammar) -> Result<Constraint, GenerateError> {
        let build = || {
            let read = grammar.read()?;
            let mut matcher = guarded(|| Ok::<_, GenerateError>(Matcher::new(self.0.create_parser(read))))?;
            // The first mask finds what cannot be begun.
            guarded(|| matcher.compute_mask_or_eos())?;
            Ok(Constraint(Box::new(matcher)))
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, build);
            let thread = thread.map_err(|e| GenerateError::Grammar(format!("no thread to read it: {e}")))?;
            thread.join().unwrap_or_else(|_| Err(GenerateError::Grammar("its reader failed".to_owned())))
        })
    }
}

/// A text that a grammar holds.
pub(super) struct Constraint(Box<Matcher>);

impl Constraint {
    /// Makes tokens that may not come next impossible.
    pub(super) fn mask(&mut self, logits: &mut [f32]) -> Result<(), GenerateError> {
        let mask = guarded(|| self.0.compute_mask_or_eos())?;
        for (token, logit) in logits.iter_mut().enumerate() {
            if token >= mask.len() || !mask.get(token) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// A bit for each token that may come next.
    pub(super) fn allowed(&mut self) -> Result<Vec<u32>, GenerateError> {
        let mask = guarded(|| self.0.compute_mask_or_eos())?;
        let mut words = vec![0; mask.len().div_ceil(32)];
        for token in (0..mask.len()).filter(|token| mask.get(*token)) {
            words[token / 32] |= 1u32 << (token % 32);
        }
        Ok(words)
    }

    /// Goes on by a token; says whether the text is whole, and nothing may come after it.
    pub(super) fn take(&mut self, token: u32) -> Result<bool, GenerateError> {
        guarded(|| self.0.consume_token(token))?;
        Ok(self.0.is_stopped())
    }
}

/// Calls the library, whose input may be hostile; a panic of it is an error.
fn guarded<T, E: Display>(call: impl FnOnce() -> Result<T, E>) -> Result<T, GenerateError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|e| GenerateError::Grammar(short(&e.to_string()))),
        Err(_) => Err(GenerateError::Grammar("it cannot be used with this tokenizer".to_owned())),
    }
}

/// The first lines of a message, which may quote the whole grammar.
fn short(text: &str) -> String {
    const MAX_CHARS: usize = 400;
    let text = text.split("\n<").next().unwrap_or_default().trim();
    if text.contains("NoExtensionBias") {
        return "no token may come next: what refers to itself needs an end, as another way to go on"
            .to_owned();
    }
    match text.char_indices().nth(MAX_CHARS) {
        Some((at, _)) => format!("{} ...", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENIZER: &str = include_str!("../../models/tiny_llm/fixed/tokenizer.json");

    fn grammars() -> Grammars {
        Grammars::new(&serde_json::from_str(TOKENIZER).unwrap(), &[2]).unwrap()
    }

    /// Tokens that may come first.
    fn first(grammar: Grammar) -> Vec<usize> {
        let mut logits = vec![0.0; 320];
        grammars().constraint(&grammar).unwrap().mask(&mut logits).unwrap();
        (0..320).filter(|t| logits[*t] == 0.0).collect()
    }

    #[test]
    fn only_what_the_grammar_allows_is_left() {
        let of = |text: &str| {
            let tokenizer: serde_json::Value = serde_json::from_str(TOKENIZER).unwrap();
            tokenizer["model"]["vocab"][text].as_u64().unwrap() as usize
        };
        assert_eq!(first(Grammar::Regex("[ab]".to_owned())), [of("a"), of("b")]);
        assert_eq!(first(Grammar::Lark("start: \"x\" | \"y\"".to_owned())), [of("x"), of("y")]);
        assert_eq!(first(Grammar::JsonSchema("{\"enum\": [7]}".to_owned())), [of("7")]);
        let mut text = grammars().constraint(&Grammar::Regex("ab?".to_owned())).unwrap();
        assert!(!text.take(of("a") as u32).unwrap());
        assert!(text.take(of("b") as u32).unwrap(), "nothing may come after it");
        assert!(text.take(of("b") as u32).is_err());
    }

    #[test]
    fn hostile_grammars_are_errors_within_bounded_time() {
        let all = grammars();
        let nested = "(".repeat(100_000) + &")".repeat(100_000);
        let refs = |n: usize| {
            let defs: Vec<String> = (0..n).map(|i| format!("\"d{i}\": {{\"allOf\": [{{\"$ref\": \"#/$defs/d{}\"}}, {{\"$ref\": \"#/$defs/d{}\"}}]}}", i + 1, i + 1)).collect();
            format!(
                "{{\"$ref\": \"#/$defs/d0\", \"$defs\": {{{}, \"d{n}\": {{\"type\": \"string\"}}}}}}",
                defs.join(",")
            )
        };
        let chain = |name: &str| {
            let rules: String = (0..1990).map(|i| format!("{name}{i}: \"a\" {name}{}\n", i + 1)).collect();
            format!("start: {name}0\n{rules}{name}1990: \"b\"\n")
        };
        let json = |text: &str| Grammar::JsonSchema(text.to_owned());
        let lark = |text: &str| Grammar::Lark(text.to_owned());
        for (grammar, phrase) in [
            (Grammar::Regex("(".to_owned()), "unclosed group"),
            (Grammar::Regex(nested.clone()), "in one another"),
            (Grammar::Lark(format!("start: {nested}")), "in one another"),
            (Grammar::JsonSchema("[".repeat(100_000)), "in one another"),
            (Grammar::Regex("a".repeat(MAX_BYTES + 1)), "1048577 bytes"),
            (json("{\"type\": "), "no JSON"),
            (json("{\"type\": \"colour\"}"), "colour"),
            (json("{\"$ref\": \"http://example.org/a\"}"), "$ref"),
            (json("{\"$ref\": \"#/none\"}"), "none"),
            (json("{\"minLength\": 9, \"maxLength\": 3, \"type\": \"string\"}"), "ength"),
            (json("false"), "false"),
            (json(&refs(3000)), "levels of the schema"),
            (Grammar::Lark("a: b\n".repeat(MAX_LEVELS + 1)), "2001 rules"),
            (lark("start: missing"), "missing"),
            (lark("begin: \"a\""), "start"),
            (lark("start: start \"a\""), "needs an end"),
            (json("{\"$ref\": \"#\"}"), "needs an end"),
        ] {
            let shown: String = grammar.text().chars().take(60).collect();
            let e = all.constraint(&grammar).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(e.starts_with("the grammar: ") && e.len() < 600, "{shown}: {e:?}");
            assert!(e.contains(phrase), "{phrase:?} is not in {e:?}");
        }
        // Sound, or found to be too much: either is told in time.
        let a = |grammar: &Grammars, constraint: &Grammar| -> Result<(), GenerateError> {
            let mut text = grammar.constraint(constraint)?;
            for _ in 0..20 {
                let mut logits = vec![0.0; 320];
                text.mask(&mut logits)?;
                let next = logits.iter().rposition(|l| *l == 0.0);
                if next.is_none_or(|next| next == 2 || text.take(next as u32).unwrap_or(true)) {
                    break;
                }
            }
            Ok(())
        };
        for grammar in [
            Grammar::Regex("((((a{1000}){1000}){1000}){1000})b".to_owned()),
            Grammar::Regex("(.*a.{0,30}){20}".to_owned()),
            Grammar::Regex("(a|ab|abc|b|c)*".repeat(300)),
            json(&refs(60)),
            json(&refs(600)),
            Grammar::Lark(chain("r")),
            Grammar::Lark(chain("R")),
            json(
                "{\"minItems\": 1000000, \"type\": \"array\", \"items\": {\"minItems\": 1000000, \"type\": \"array\"}}",
            ),
            lark("start: start"),
            lark("start: start start | \"a\" | \"\""),
        ] {
            let shown: String = grammar.text().chars().take(60).collect();
            let begin = std::time::Instant::now();
            let e = a(&all, &grammar).err().map(|e| e.to_string()).unwrap_or_default();
            println!("{shown}: {:?} {e}", begin.elapsed());
            assert!(e.len() < 600 && begin.elapsed().as_secs() < 30, "{shown}: {:?} {e}", begin.elapsed());
        }
    }

    #[test]
    fn tokenizers_without_bytes_are_errors() {
        let words = serde_json::json!({"decoder": {"type": "WordPiece"}, "added_tokens": [], "model": {"vocab": {"a": 0}}});
        let e = Grammars::new(&words, &[0]).unwrap_err().to_string();
        assert!(e.contains("WordPiece"), "{e}");
        let wrong = serde_json::json!({"decoder": {"type": "ByteLevel"}, "added_tokens": [], "model": {"vocab": {"日": 0}}});
        assert!(Grammars::new(&wrong, &[0]).is_err());
        assert!(Grammars::new(&serde_json::Value::Null, &[]).is_err());
    }
}
