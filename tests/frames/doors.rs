//! What the tests of other languages compare with.

use onepool::frame::{ColorMatrix, ColorRange, FrameSpec, PixelFormat};
use onepool::{DType, Tensor};

use crate::common::{contexts, identity, session};

/// The hash that python/tests/test_frames.py has.
const NV12_HASH: u64 = 0xC019_C2A4_CA55_EC40;

#[test]
fn the_frame_of_the_python_tests_has_its_hash() {
    let (width, height, stride) = (320u32, 180u32, 384u64);
    let spec = FrameSpec::new(PixelFormat::Nv12, width, height)
        .strides([stride, stride])
        .matrix(ColorMatrix::Bt601)
        .range(ColorRange::Full);
    let bytes = spec.memory_bytes().unwrap()[0];
    let pattern: Vec<u8> = (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect();
    for (device, context) in contexts() {
        let mut session = session(identity(DType::U8, &[1, 3, 180, 320]), context, Some(spec.clone()), None);
        session.set_input("image", &Tensor::new([pattern.len()], &pattern).unwrap()).unwrap();
        session.run().unwrap();
        let result = session.get_output("result").unwrap();
        let hash = result.bytes().iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        assert_eq!(hash, NV12_HASH, "{device}");
    }
}
