//! Any words as a SPIR-V module to be translated to OpenCL C.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onepool::spirv::opencl_c::{OpenClImages, OpenClOptions, Planes, TexelFormats, translate};

fuzz_target!(|bytes: &[u8]| {
    let words: Vec<u32> =
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
    for (fp16, planes) in [(false, Planes::None), (true, Planes::Lines), (true, Planes::Images)] {
        let texels = if fp16 { TexelFormats::ALL } else { TexelFormats::default() };
        let images = OpenClImages { texels, planes };
        let options = OpenClOptions { fp16, fp64: true, images, ..OpenClOptions::default() };
        if let Ok(kernel) = translate(&words, &options) {
            assert!(kernel.source.contains(kernel.name));
            assert_eq!(translate(&words, &options), Ok(kernel));
        }
    }
});
