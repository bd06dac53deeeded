//! Any bytes as a graph JSON; what is read is written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onepool::loader::tvm::{FunctionTable, GraphJson, TvmGraph};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(json) = GraphJson::parse(bytes) {
        assert_eq!(GraphJson::parse(json.to_json().as_bytes()).expect("it was written so"), json);
        if let Ok(graph) = TvmGraph::new(json, Vec::new(), &FunctionTable::new()) {
            assert!(!graph.graph().outputs().is_empty());
        }
    }
});
