//! Any bytes as a `.params` file; what is read is written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onepool::loader::params::{read_factory, read_params, write_params};

fuzz_target!(|bytes: &[u8]| {
    let _ = read_factory(bytes);
    if let Ok(params) = read_params(bytes) {
        let mut written = Vec::new();
        write_params(&mut written, params.iter().map(|(n, t)| (n.as_str(), t))).expect("memory takes it");
        let back = read_params(&written).expect("it was written so");
        assert_eq!(params.len(), back.len());
        for ((n, t), (m, u)) in params.iter().zip(&back) {
            assert_eq!((n, t.info(), t.bytes()), (m, u.info(), u.bytes()));
        }
    }
});
