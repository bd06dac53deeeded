//! Folders of language models: settings, tokenizers and chat templates. The first byte says which file the others are.

#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use onepool::generate::{Message, ModelFolder, Prompt};

const FILES: [(&str, &[u8]); 3] = [
    ("genai_config.json", include_bytes!("../../models/tiny_llm/fixed/genai_config.json")),
    ("tokenizer.json", include_bytes!("../../models/tiny_llm/fixed/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../models/tiny_llm/fixed/tokenizer_config.json")),
];

fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let Ok(folder) = tempfile::tempdir() else { return };
    let changed = usize::from(*which) % (FILES.len() + 1);
    for (i, (name, whole)) in FILES.iter().enumerate() {
        // Of the settings there are two kinds.
        let is_other_kind = i == 0 && changed == FILES.len();
        let (name, content) = match i == changed || is_other_kind {
            true => (if is_other_kind { "config.json" } else { *name }, bytes),
            false => (*name, *whole),
        };
        if fs::write(folder.path().join(name), content).is_err() {
            return;
        }
    }
    let asked = ModelFolder::open(folder.path()).and_then(|folder| {
        folder.tokens(Prompt::Chat(&[Message::new("user", "hello")]))?;
        folder.tokens(Prompt::Text("hello"))
    });
    if let Err(e) = asked {
        assert!(!e.to_string().is_empty());
    }
});
