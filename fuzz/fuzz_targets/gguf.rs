//! GGUF files: metadata, places of tensors, and the graph of a decoder.

#![no_main]

use libfuzzer_sys::fuzz_target;
use onepool::loader::gguf::load_gguf_bytes;

fuzz_target!(|bytes: &[u8]| {
    if let Err(e) = load_gguf_bytes(bytes) {
        assert!(!e.to_string().is_empty());
    }
});
