//! Settings, tokenizer and chat template from the metadata of a GGUF file.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::error::GenerateError;
use super::sampling::Sampling;
use super::settings::{Bans, Config, Names};
use crate::loader::gguf::{DecoderSizes, GgufFile};

/// Numbers of kinds of tokens.
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const DEFINED: i64 = 4;
const BYTE: i64 = 6;

/// Longer tokens are not made of shorter ones.
const MAX_LETTERS: usize = 128;

/// What stands for a space in tokens of SentencePiece.
const SPACE: &str = "\u{2581}";

/// Marks that end an answer, whatever the metadata says.
const ENDS: [&str; 12] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "</s>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
];

/// The end of one message of an answer that has several, each in a channel, and what these messages are made of.
const MESSAGE_END: &str = "<|end|>";
const CHANNELS: [&str; 4] = ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"];

/// Whether answers of a model with these tokens are messages in channels: marks of other names end the last one.
fn has_channels(tokens: &[String]) -> bool {
    let has = |mark: &str| tokens.iter().any(|text| text == mark);
    has("<|return|>") && has("<|call|>") || has("<|flush|>") && (has("<|call|>") || has("<|calls|>"))
}

/// The settings of the decoder in the file `name`.
pub(super) fn config(name: PathBuf, file: &GgufFile) -> Result<Config, GenerateError> {
    let DecoderSizes { layers, kv_heads, head, context } = DecoderSizes::of(file)?;
    let mut ends = BTreeSet::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        ends.extend(id(file, key)?);
    }
    let (tokens, kinds) = tokens(file)?;
    for (token, (text, kind)) in tokens.iter().zip(kinds).enumerate() {
        if *kind == CONTROL && ENDS.contains(&text.as_str()) {
            ends.extend(u32::try_from(token).ok());
        }
    }
    if has_channels(tokens) {
        ends.retain(|end| tokens.get(*end as usize).is_none_or(|text| text != MESSAGE_END));
    }
    Ok(Config {
        graph: name,
        names: Names::default(),
        layers,
        heads: [Some(kv_heads), Some(head)],
        context,
        max_length: context,
        ends: ends.into_iter().collect(),
        sampling: Sampling::GREEDY,
        bans: Bans::default(),
        remarks: Vec::new(),
        encoder: None,
        cache_type: None,
        window: None,
    })
}

/// The chat template and the texts of the first and the last token.
pub(super) fn chat_template(file: &GgufFile) -> Result<Option<(String, [String; 2])>, GenerateError> {
    let Some(template) = file.text("tokenizer.chat_template")? else { return Ok(None) };
    let (tokens, _) = tokens(file)?;
    let text = |key| -> Result<String, GenerateError> {
        let id = id(file, key)?;
        Ok(id.and_then(|id| tokens.get(id as usize)).cloned().unwrap_or_default())
    };
    Ok(Some((template.to_owned(), [text("bos_token_id")?, text("eos_token_id")?])))
}

fn id(file: &GgufFile, key: &str) -> Result<Option<u32>, GenerateError> {
    let found = file.unsigned(&format!("tokenizer.ggml.{key}"))?;
    Ok(found.and_then(|id| u32::try_from(id).ok()))
}

/// Texts and kinds of all tokens.
fn tokens(file: &GgufFile) -> Result<(&[String], &[i64]), GenerateError> {
    let missing = |key: &str| GenerateError::Tokenizer(format!("the file has no entry {key:?}"));
    let key = "tokenizer.ggml.tokens";
    let tokens = file.texts(key)?.ok_or_else(|| missing(key))?;
    let key = "tokenizer.ggml.token_type";
    let kinds = file.integers(key)?.ok_or_else(|| missing(key))?;
    if tokens.len() != kinds.len() {
        let problem = format!("there are {} tokens and {} of their kinds", tokens.len(), kinds.len());
        return Err(GenerateError::Tokenizer(problem));
    }
    Ok((tokens, kinds))
}

/// The tokenizer as the text of a `tokenizer.json`.
pub(super) fn tokenizer(file: &GgufFile) -> Result<String, GenerateError> {
    let (tokens, kinds) = tokens(file)?;
    let kind = file.text("tokenizer.ggml.model")?.unwrap_or("");
    let (mut parts, starts) = match kind {
        "gpt2" => bytes(file)?,
        "llama" => pieces(file, tokens, kinds)?,
        other => {
            let what = format!(
                "the tokenizer {other:?}: those named \"gpt2\" (bytes) and \"llama\" (SentencePiece) are read"
            );
            return Err(GenerateError::Unsupported(what));
        }
    };
    let vocabulary: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, text)| (text.clone(), id.into())).collect();
    let channels = has_channels(tokens);
    // Marks that tell channels apart are part of the text.
    let shown = |text: &str| channels && (text == MESSAGE_END || CHANNELS.contains(&text));
    let added: Vec<Value> = (tokens.iter().zip(kinds).enumerate())
        .filter(|(_, (text, kind))| matches!(**kind, UNKNOWN | CONTROL | DEFINED) && !text.is_empty())
        .map(|(id, (text, kind))| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind != DEFINED && !shown(text)})
        })
        .collect();
    parts["version"] = "1.0".into();
    parts["added_tokens"] = added.into();
    parts["model"]["vocab"] = vocabulary.into();
    let first = id(file, "bos_token_id")?;
    let wanted = file.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(starts);
    if let Some((id, text)) = first.and_then(|id| Some((id, tokens.get(id as usize)?))).filter(|_| wanted) {
        let mark = json!({"SpecialToken": {"id": text, "type_id": 0}});
        let [one, two] =
            [("A", 0), ("B", 1)].map(|(id, kind)| json!({"Sequence": {"id": id, "type_id": kind}}));
        parts["post_processor"] = json!({"type": "TemplateProcessing", "single": [mark, one], "pair": [mark, one, two],
            "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]}}});
    }
    serde_json::to_string(&parts).map_err(|e| GenerateError::Tokenizer(e.to_string()))
}

const CONTRACTIONS: &str = "'s|'t|'re|'ve|'m|'ll|'d";
const WORDS: &str = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LINES: &str = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How a text is split before pairs of bytes are merged: the patterns in turn, whether whole words that are tokens stay
/// so, and whether texts begin with a mark where the metadata does not say.
fn splits(name: &str) -> Option<(Vec<String>, bool, bool)> {
    let words = format!("{CONTRACTIONS}|{WORDS}");
    let lines =
        |digits: &str| format!(r"(?i:{CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{LINES}");
    Some(match name {
        "default" => {
            let first = [
                r"[\p{P}\$\+<=>\^~\|]+".to_owned(),
                words,
                r"\p{N}+".to_owned(),
                "[0-9][0-9][0-9]".to_owned(),
            ];
            (first.into(), false, false)
        }
        "gpt-2" | "phi-2" | "gpt2" | "olmo" | "mpt" | "trillion" | "mellum" | "a.x-4.0" => {
            (vec![words], false, false)
        }
        "smollm" | "starcoder" | "refact" | "command-r" | "exaone" | "codeshell" | "minerva-7b" => {
            (vec![r"\p{N}".to_owned(), words], false, false)
        }
        "falcon" => {
            let first = [r"[\p{P}\$\+<=>\^~\|`]+".to_owned(), words, "[0-9][0-9][0-9]".to_owned()];
            (first.into(), false, false)
        }
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2" => {
            (vec![lines(r"\p{N}{1,3}")], true, true)
        }
        "deepseek-coder" => {
            // Line ends, words, signs, scripts of East Asia and digits in turn.
            let east = r"[\x{4e00}-\x{9fa5}\x{0800}-\x{4e00}\x{ac00}-\x{d7ff}]+";
            let all = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", east, r"\p{N}"];
            (all.map(str::to_owned).into(), false, false)
        }
        "deepseek-v3" | "hunyuan-dense" => {
            let letters = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+";
            let rest = r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
            let east = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+";
            (vec![r"\p{N}{1,3}".to_owned(), east.to_owned(), format!("{letters}|{rest}")], false, false)
        }
        "dbrx" | "smaug-bpe" => (vec![lines(r"\p{N}{1,3}")], false, false),
        "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "megrez" | "kormo" => {
            (vec![lines(r"\p{N}")], false, false)
        }
        "tekken" => (vec![cased("", r"\p{N}")], true, true),
        "gpt-4o" | "llama4" | "kanana2" => {
            (vec![cased(&format!("(?i:{CONTRACTIONS})?"), r"\p{N}{1,3}")], false, false)
        }
        _ => return None,
    })
}

/// Words whose lower-case letters come last, with what may follow them, and digits.
fn cased(end: &str, digits: &str) -> String {
    let upper = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}";
    let lower = r"\p{Ll}\p{Lm}\p{Lo}\p{M}";
    let word = r"[^\r\n\p{L}\p{N}]?";
    let rest = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    format!("{word}[{upper}]*[{lower}]+{end}|{word}[{upper}]+[{lower}]*{end}|{digits}|{rest}")
}

/// A tokenizer that merges pairs of bytes.
fn bytes(file: &GgufFile) -> Result<(Value, bool), GenerateError> {
    let name = file.text("tokenizer.ggml.pre")?.unwrap_or("default");
    let Some((patterns, whole, starts)) = splits(name) else {
        let what = format!("the pre-tokenizer {name:?}: how it splits texts is not known");
        return Err(GenerateError::Unsupported(what));
    };
    let key = "tokenizer.ggml.merges";
    let merges = file.texts(key)?;
    let merges = merges.ok_or_else(|| GenerateError::Tokenizer(format!("the file has no entry {key:?}")))?;
    // A part may begin with a space only where it is one.
    let pair = |merge: &String| {
        let (at, _) = merge.char_indices().skip(1).find(|(_, letter)| *letter == ' ')?;
        Some(json!([merge.get(..at)?, merge.get(at + 1..)?]))
    };
    let pairs: Option<Vec<Value>> = merges.iter().map(pair).collect();
    let pairs = pairs.ok_or_else(|| GenerateError::Tokenizer("a merge is no pair of tokens".to_owned()))?;
    let split = |pattern: String| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let mut steps: Vec<Value> = patterns.into_iter().map(split).collect();
    steps.push(level.clone());
    let parts = json!({
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": level,
        "model": {"type": "BPE", "merges": pairs, "ignore_merges": whole, "fuse_unk": false, "byte_fallback": false},
    });
    Ok((parts, starts))
}

/// A tokenizer of SentencePiece: the pair whose token has the highest score is merged first.
fn pieces(file: &GgufFile, tokens: &[String], kinds: &[i64]) -> Result<(Value, bool), GenerateError> {
    let key = "tokenizer.ggml.scores";
    let scores = file.floats(key)?.filter(|scores| scores.len() == tokens.len());
    let scores =
        scores.ok_or_else(|| GenerateError::Tokenizer(format!("{key:?} has not a number for each token")))?;
    let ids: HashMap<&str, usize> = (tokens.iter().zip(kinds).enumerate())
        .filter(|(_, (_, kind))| **kind != BYTE)
        .map(|(id, (text, _))| (text.as_str(), id))
        .collect();
    let mut merges: Vec<(usize, &str, &str)> = Vec::new();
    for (id, text) in
        tokens.iter().enumerate().filter(|(id, _)| !matches!(kinds[*id], BYTE | CONTROL | UNKNOWN))
    {
        if text.chars().count() > MAX_LETTERS {
            continue;
        }
        let cuts = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
        let known = cuts.filter(|(left, right)| ids.contains_key(left) && ids.contains_key(right));
        merges.extend(known.map(|(left, right)| (id, left, right)));
    }
    merges.sort_by(|(a, ..), (b, ..)| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    let merges: Vec<Value> = merges.into_iter().map(|(_, left, right)| json!([left, right])).collect();
    let unknown = id(file, "unknown_token_id")?.and_then(|id| tokens.get(id as usize));
    let prefixed = file.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let replace =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let mut before = vec![replace(" ", SPACE)];
    let mut after = vec![replace(SPACE, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if prefixed {
        before.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
        after.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let parts = json!({
        "normalizer": {"type": "Sequence", "normalizers": before},
        "decoder": {"type": "Sequence", "decoders": after},
        "model": {"type": "BPE", "merges": merges, "unk_token": unknown, "fuse_unk": true, "byte_fallback": true},
    });
    Ok((parts, true))
}

/// Whether `path` is a GGUF file, and what it says.
pub(super) fn open(path: &Path) -> Result<Option<GgufFile>, GenerateError> {
    if path.is_file() && GgufFile::is_one(path) { Ok(Some(GgufFile::open(path)?)) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use crate::generate::{ModelFolder, Prompt};

    /// Marks end the last message of an answer, not each of them, and those that tell messages apart are text.
    #[test]
    fn answers_in_channels_end_where_the_last_message_does() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny_gguf/gpt_oss.gguf");
        let folder = ModelFolder::open(path).unwrap();
        let marks = ["<|return|>", "<|call|>", "<|endoftext|>", "<|end|>", "<|channel|>", "<|start|>"];
        let ids = marks.map(|mark| *folder.tokens(Prompt::Text(mark)).unwrap().last().unwrap());
        assert_eq!(ids.map(|id| folder.config.ends.contains(&id)), [true, true, true, false, false, false]);
        assert_eq!(folder.tokenizer.decode(&ids).unwrap(), "<|end|><|channel|><|start|>");
        // Where nothing ends a last message, each end does.
        let mut bytes = std::fs::read(path).unwrap();
        let at = bytes.windows(10).position(|part| part == b"<|return|>").unwrap();
        bytes[at..at + 10].copy_from_slice(b"<|retain|>");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("m.gguf");
        std::fs::write(&file, bytes).unwrap();
        let folder = ModelFolder::open(&file).unwrap();
        assert_eq!(ids.map(|id| folder.config.ends.contains(&id)), [false, true, true, true, false, false]);
        assert_eq!(folder.tokenizer.decode(&ids).unwrap(), "");
    }
}
